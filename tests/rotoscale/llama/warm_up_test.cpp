// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A synthetic warm-up has no effect: after steps, weights, moments, scales and histories equal a session without it, by
// bytes.
#include "rotoscale/train/warm_up.hpp"

#include "session_case.hpp"

namespace warm_up_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;

bool is_frozen(const llama::parameter& p) { return p.name().find("proj") != std::string::npos; }

/// Trained parameters: all, all but the linear layers, or LoRA's adapters only.
enum class base { trains, frozen, adapted };

/// Contents of a checkpoint, and the losses of an evaluation.
std::vector<std::vector<float>> run(const nn::recipe& r, base kind, int synthetic_steps) {
  const auto ops = nn::make_cpu_backend(2);
  llama::session_options o;
  o.model.batch = 2;
  o.model.sequence = 32;
  o.micro_batches = 2;
  if (kind == base::frozen) o.model.trains = [](const llama::parameter& p) { return !is_frozen(p); };
  if (kind == base::adapted) {
    o.model.lora.emplace();
    o.model.lora->targets = {"q_proj", "v_proj", "o_proj", "gate_up_proj"};
  }
  const nn::recipe fp8 = preset("fp8_amd");
  llama::session s(*ops, small_config(false), o, {r, fp8});
  llama::warm_up(s, {synthetic_steps, fp8, 7, 0.01f}, r, [](llama::session& into) { into.initialize(3); });
  const batch data(4, 32, 64, false);
  for (std::uint64_t step = 0; step < 2; ++step) {
    nn::step_inputs inputs;
    inputs.seed = 5;
    inputs.step = step;
    inputs.learning_rate = 0.01f;
    s.train_step(inputs, data.tokens, data.targets);
  }
  s.finish_step();
  std::vector<std::vector<float>> all;
  const nn::parameter_arena a = s.model().arena();
  const nn::delayed_scaling_state& scales = s.model().scales();
  const auto count = static_cast<std::size_t>(scales.state().count), size = static_cast<std::size_t>(a.size);
  const auto take = [&](const float* from, std::size_t n) {
    all.emplace_back(n);
    ops->download(s.queue(), all.back().data(), from, n * sizeof(float));
    ops->synchronize(s.queue());
  };
  for (const float* arena : {a.weight, a.gradient, a.m, a.v}) take(arena, size);
  take(scales.state().scale, count);
  take(scales.state().history, scales.history_size());
  const std::span one(data.tokens), targets(data.targets);
  all.push_back(s.evaluate({}, one.first(64), targets.first(64)));
  return all;
}

TEST_CASE("a run behind a synthetic warm-up is the run without it") {
  for (const char* name :
       {"mxfp4_h16_step_signs", "mxfp4_h16_fixed_signs", "mxfp4_h16_sr", "fp8_amd", "nvfp4", "fp32"}) {
    for (const base kind : {base::trains, base::frozen, base::adapted}) {
      const nn::recipe r = preset(name);
      if (kind != base::trains && nn::redraws_signs_of_weights(r)) continue;  // frozen weights are quantized once
      CAPTURE(r.name);
      CAPTURE(static_cast<int>(kind));
      const auto plain = run(r, kind, 0), warmed = run(r, kind, 3);
      REQUIRE(plain.size() == warmed.size());
      for (std::size_t i = 0; i < plain.size(); ++i) {
        CAPTURE(i);
        CHECK(same_bytes(plain[i], warmed[i]));
      }
    }
  }
}

TEST_CASE("its steps are steps: other tokens each time, and an update") {
  const auto ops = nn::make_cpu_backend(1);
  llama::session_options o;
  o.model.sequence = 32;
  const nn::recipe r = preset("fp8_amd");
  llama::session s(*ops, small_config(false), o, {r});
  std::vector<float> trained, initial;
  const auto load = [&](llama::session& into) {
    const auto table = [&] { return into.model().values(into.queue(), 0); };
    trained = table();  // the second time: after the steps
    into.initialize(3);
    initial = table();
  };
  llama::warm_up(s, {2, r, 7, 0.01f}, r, load);
  std::size_t moved = 0;
  for (std::size_t i = 0; i < initial.size(); i += 64) moved += trained[i] != initial[i];
  CHECK(moved > 32);  // more rows of the table than one step has tokens
}

}  // namespace warm_up_test
