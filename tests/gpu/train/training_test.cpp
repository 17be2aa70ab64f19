// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Training on a device gives the CPU's bytes: weights, moments, scales and step state. Cases: every kind of recipe,
// several microbatches, masked targets, with and without graphs.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>

#include "make_device.hpp"
#include "oracle/share.hpp"
#include "rotoscale/llama/cache_case.hpp"
#include "rotoscale/models/gpt2/model.hpp"

namespace train_training_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;

using change_options = std::function<void(llama::session_options&)>;

/// Start of each token's document. A sequence of 32 tokens has three documents.
std::vector<std::int32_t> document_starts(int sequences) {
  std::vector<std::int32_t> starts;
  for (int i = 0; i < 32 * sequences; ++i) starts.push_back(i % 32 < 9 ? 0 : i % 32 < 22 ? 9 : 22);
  return starts;
}

train::architecture small_llama(bool tied) {
  llama::model_config c = small_config(tied);
  c.hidden_size = 32;
  c.intermediate_size = 64;
  c.num_attention_heads = 2;
  c.num_key_value_heads = 1;
  return c;
}

/// Returns the checkpoint contents after `steps` steps under each recipe, and evaluation losses. `targets`: modules
/// with adapters on a frozen base. `shape`: of another model than a small Llama.
std::vector<float> train(nn::backend& ops, const std::vector<nn::recipe>& phases, int steps, bool tied = false,
                         const std::vector<std::string>& targets = {}, int micro_batches = 2, int rank = 4,
                         const change_options& change = nullptr, const std::optional<train::architecture>& shape = {}) {
  llama::session_options o;
  o.model.batch = 1;
  o.model.sequence = 32;
  o.model.head_chunk = 32;
  o.micro_batches = micro_batches;
  o.optimizer.weight_decay = 0.1f;
  o.optimizer.clip = 1.0;
  if (!targets.empty()) {
    o.model.lora.emplace();
    o.model.lora->rank = rank;
    o.model.lora->dropout = 0.3;
    o.model.lora->targets = targets;
  }
  if (change) change(o);
  llama::session s(ops, shape ? *shape : small_llama(tied), o, phases);
  nn::step_inputs inputs;
  inputs.seed = 5;
  s.set_inputs(inputs);
  s.initialize(3);
  const batch data(micro_batches, 32, 64, true), held_out(1, 32, 64, false);
  const auto starts = document_starts(o.documents ? micro_batches : 0),
             held_out_starts = document_starts(o.documents ? 1 : 0);
  std::vector<float> all;
  for (int step = 0; step < steps * static_cast<int>(phases.size()); ++step) {
    if (step > 0 && step % steps == 0) s.use(phases[static_cast<std::size_t>(step / steps)]);
    inputs.step = static_cast<std::uint64_t>(step);
    inputs.learning_rate = 1e-3f;
    inputs.bias_correction1 = 1.0f - static_cast<float>(std::pow(0.9, step + 1));
    inputs.bias_correction2 = 1.0f - static_cast<float>(std::pow(0.95, step + 1));
    s.train_step(inputs, data.tokens, data.targets, starts);
    const nn::step_state state = s.finish_step();
    all.push_back(static_cast<float>(state.mean_loss()));
    all.push_back(static_cast<float>(state.gradient_norm));
  }
  const llama::model& m = s.model();
  for (std::size_t i = 0; i < m.parameters().all().size(); ++i) {
    if (!m.parameters()[i].trains) continue;
    for (const float* arena : {m.arena().weight, m.arena().m, m.arena().v}) {
      const auto host = m.arena_values(s.queue(), arena, i);
      all.insert(all.end(), host.begin(), host.end());
    }
  }
  const nn::scaling_state& scales = m.scales().state();
  if (scales.scale != nullptr && scales.count > 0) {
    std::vector<float> host(static_cast<std::size_t>(scales.count) * 2 + m.scales().history_size());
    const auto n = static_cast<std::size_t>(scales.count);
    ops.download(s.queue(), host.data(), scales.scale, n * sizeof(float));
    ops.download(s.queue(), host.data() + n, scales.scale_inverse, n * sizeof(float));
    ops.download(s.queue(), host.data() + 2 * n, scales.history, m.scales().history_size() * sizeof(float));
    ops.synchronize(s.queue());
    all.insert(all.end(), host.begin(), host.end());
  }
  const auto losses = s.evaluate(inputs, held_out.tokens, held_out.targets, held_out_starts);
  all.insert(all.end(), losses.begin(), losses.end());
  return all;
}

std::vector<float> train(nn::backend& ops, const nn::recipe& r, int steps, bool tied = false,
                         const std::vector<std::string>& targets = {}, int micro_batches = 2, int rank = 4) {
  return train(ops, std::vector<nn::recipe>{r}, steps, tied, targets, micro_batches, rank);
}

std::vector<nn::recipe> recipes() {
  std::vector<nn::recipe> all = {preset("fp32"),      preset("bf16"),  preset("fp8_amd"),  preset("mxfp4"),
                                 preset("mxfp4_h16"), preset("nvfp4"), preset("mxfp4_h32")};
  nn::recipe narrow = preset("bf16");
  narrow.name = "bf16 stored as BF16";
  narrow.activations = nn::operand_format::bf16;
  all.push_back(narrow);
  nn::recipe random = preset("mxfp4_h16_step_signs");
  random.name = "stochastic";
  for (nn::gemm_recipe* g : {&random.fprop, &random.dgrad, &random.wgrad}) {
    g->left.rounding = g->right.rounding = rounding::stochastic;
  }
  all.push_back(random);
  nn::recipe six = preset("nvfp4");
  six.name = "MXFP6 forward, BF16 backward";
  for (nn::operand_recipe* o : {&six.fprop.left, &six.fprop.right}) *o = {nn::operand_format::mxfp6_e2m3};
  all.push_back(nn::override_backward(six, nn::backward_kind::high_precision));
  for (const char* name : {"mxfp4_h16_step_signs", "fp8_amd"}) {
    all.push_back(nn::override_backward(preset(name), nn::backward_kind::dequantized));
    all.back().name = std::string(name) + ", dequantized backward";
  }
  for (const char* name : {"fp8_current", "quartet2_h32"}) all.push_back(preset(name));
  all.push_back(preset("nvfp4_4_6"));
  all.back().dgrad.right.source = all.back().wgrad.right.source = nn::operand_source::forward;
  all.back().name = "NVFP4 from the forward's operands";
  return all;
}

/// BF16 under a matrix unit's contract, weight gradients with split-K.
struct unit_contracts {
  const char *gemm, *wgrad, *attention;
};
constexpr unit_contracts units[] = {
    {"mx-bf16-sm90", "mx-bf16-sm90:split_k=2", "attention-bf16-tile64x64-exp2deg3@hopper-mma-fp16-f32"},
    {"mx-bf16-gfx942", "mx-bf16-gfx942:split_k=2", "attention-bf16-tile64x64-exp2deg3@cdna3-mfma-fp16-f32"}};

nn::recipe bf16_of(const unit_contracts& unit) {
  nn::recipe r = preset("bf16");
  r.name = std::string("bf16 under ") + unit.gemm;
  r.fprop.accumulate = r.dgrad.accumulate = unit.gemm;
  r.wgrad.accumulate = unit.wgrad;
  r.adapters = {unit.gemm, unit.gemm, unit.wgrad};
  r.attention = unit.attention;
  return r;
}
bool runs_here(const nn::backend& device, const nn::recipe& r) {
  return device.contract(r.fprop, 8, 8, 8).has_value() && device.contract(r.attention, 16).has_value();
}

/// FP8 on Hopper's unit as in Transformer Engine: the forward pass accumulates in the unit.
nn::recipe fp8_of_unit() {
  nn::recipe r = preset("fp8_amd");
  r.fprop.accumulate = "hopper-fp8-fast-accumulate";
  r.dgrad.accumulate = "hopper-fp8-promoted";
  r.wgrad.accumulate = "hopper-fp8-promoted:split_k=2";
  return r;
}

TEST_CASE("a device trains with the CPU's bytes") {
  const auto cpu = nn::make_cpu_backend(1);
  for (const nn::recipe& r : recipes()) {
    CAPTURE(r.name);
    const auto device = make_device();
    CHECK(same_bytes(train(*cpu, r, 2), train(*device, r, 2)));
  }
  const auto device = make_device();
  CHECK(same_bytes(train(*cpu, preset("bf16"), 2, true), train(*device, preset("bf16"), 2, true)));
}

TEST_CASE("kept keys and values: the logits of the CPU's passes over the whole text") {
  const auto cpu = nn::make_cpu_backend(1);
  std::vector<nn::recipe> all = cached_recipes();
  for (const unit_contracts& unit : units) {  // continue in steps of eight rows
    all.push_back(preset("bf16"));
    all.back().name = unit.gemm;
    for (nn::gemm_recipe* g : {&all.back().fprop, &all.back().dgrad, &all.back().wgrad}) g->accumulate = unit.gemm;
  }
  for (const nn::recipe& r : all) {
    CAPTURE(r.name);
    const auto device = make_device();
    if (!runs_here(*device, r)) continue;
    const bool of_unit = r.fprop.accumulate.starts_with("mx-bf16");
    // From token 60 on, past the end of an attention tile. The CPU's test starts earlier.
    const auto got = cache_case(*device, r, 60).continued();
    CHECK(got.rows == (r.name == "square blocks" ? 32 : of_unit ? 8 : 1));
    CHECK(same_bytes(got.logits, cache_case(*cpu, r, 60).whole()));
  }
}

TEST_CASE("what the backward pass computes again or keeps in 8 bits, and documents") {
  const auto cpu = nn::make_cpu_backend(2);
  const auto device = make_device();
  const struct {
    const char* name;
    change_options change;
    bool same;  ///< equal to the run without it
  } cases[] = {
      {"elementwise", [](auto& o) { o.model.recompute = llama::recompute_part::elementwise; }, true},
      {"attention", [](auto& o) { o.model.recompute = llama::recompute_part::attention; }, true},
      {"mlp", [](auto& o) { o.model.recompute = llama::recompute_part::mlp; }, true},
      {"layer", [](auto& o) { o.model.recompute = llama::recompute_part::layer; }, true},
      {"8 bits", [](auto& o) { o.model.kept = llama::kept_format::mxfp8_e4m3; }, false},
      {"documents", [](auto& o) { o.documents = true; }, false},
  };
  int recipe_number = 0;
  for (const char* recipe : {"bf16_tc", "mxfp4_h16", "fp8_amd", "mxfp4_mfma"}) {
    const nn::recipe r = preset(recipe);
    if (!runs_here(*device, r)) continue;
    const int steps = r.name == "fp8_amd" ? 2 : 1;  // the first step's amax is the second's scale
    const auto plain = train(*device, r, steps);
    int number = recipe_number++;
    for (const auto& c : cases) {
      if (!oracle::in_share(number++)) continue;
      CAPTURE(recipe);
      CAPTURE(c.name);
      const auto got = train(*device, {r}, steps, false, {}, 2, 4, c.change);
      CHECK(same_bytes(train(*cpu, {r}, steps, false, {}, 2, 4, c.change), got));
      CHECK(same_bytes(plain, got) == c.same);
    }
  }
}

TEST_CASE("adapters of both models: masks, accumulated microbatches, recomputation, a base in MXFP4 and FP8") {
  const auto cpu = nn::make_cpu_backend(2);
  const auto device = make_device();
  gpt2::model_config gpt2;
  gpt2.vocab_size = 64;
  gpt2.n_positions = gpt2.n_embd = 32;
  gpt2.n_layer = gpt2.n_head = 2;
  using part = nn::recompute_part;
  const train::architecture llama = small_llama(false);
  const std::vector<std::string> each{"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"},
      fused{"qkv_proj", "o_proj", "gate_up_proj"}, all{"c_attn", "c_fc", "c_proj"};
  const struct {
    const char* recipe;
    const train::architecture& shape;
    const std::vector<std::string>& targets;
    part recompute;
  } cases[] = {{"fp8_amd", llama, each, part::none},        {"mxfp4_h16", llama, each, part::layer},
               {"fp8_amd", llama, fused, part::layer},      {"mxfp4_h16", llama, fused, part::elementwise},
               {"mxfp4_h16", gpt2, all, part::elementwise}, {"fp8_amd", gpt2, all, part::layer}};
  for (const auto& c : cases) {
    CAPTURE(c.recipe);
    CAPTURE(c.targets.size());
    CAPTURE(nn::to_string(c.recompute));
    const auto trained = [&](nn::backend& ops, part recompute) {
      return train(
          ops, {preset(c.recipe)}, 2, false, c.targets, 2, 4, [&](auto& o) { o.model.recompute = recompute; }, c.shape);
    };
    CHECK(same_bytes(trained(*cpu, part::none), trained(*device, c.recompute)));
  }
}

TEST_CASE("BF16 under a matrix unit's contract as well: GEMMs, head, attention, adapters") {
  const auto device = make_device();
  const auto cpu = nn::make_cpu_backend(2);
  int contracts_here = 0;
  for (const unit_contracts& unit : units) {
    nn::recipe r = bf16_of(unit);
    if (!runs_here(*device, r)) continue;
    CAPTURE(r.name);
    ++contracts_here;
    for (const nn::operand_format stored : {nn::operand_format::fp32, nn::operand_format::bf16}) {
      r.activations = stored;
      const auto got = train(*device, r, 2);
      CHECK(same_bytes(train(*cpu, r, 2), got));
      nn::recipe on_cores = preset("bf16");
      on_cores.activations = stored;
      CHECK_FALSE(same_bytes(train(*cpu, on_cores, 2), got));
    }
    CHECK(same_bytes(train(*cpu, r, 2, true), train(*device, r, 2, true)));
    nn::recipe frozen = preset("mxfp4_h16");
    frozen.adapters = r.adapters;
    const std::vector<std::string> targets{"qkv_proj"};
    CHECK(same_bytes(train(*cpu, frozen, 2, false, targets, 2, 8), train(*device, frozen, 2, false, targets, 2, 8)));
  }
  for (const char* name : {"fp8_tc", "mxfp8_tc", "mxfp4_tc", "bf16_mfma"}) {  // others: recomputation
    CAPTURE(name);
    if (!runs_here(*device, preset(name))) continue;
    CHECK(same_bytes(train(*cpu, preset(name), 2), train(*device, preset(name), 2)));
  }
  // Other block formats that BF16 holds exactly, mixed with BF16, on each BF16 unit. The workspace varies with split-K.
  int number = 0;
  for (const nn::operand_format f : {nn::operand_format::mxfp8_e5m2, nn::operand_format::mxfp4}) {
    for (const char* unit : {"mx-bf16-sm90", "mx-bf16-sm90:split_k=2", "mx-bf16-gfx942"}) {
      CAPTURE(nn::to_string(f));
      CAPTURE(unit);
      if (!oracle::in_share(number++)) continue;
      nn::recipe r = preset("mxfp8");
      for (nn::gemm_recipe* g : {&r.fprop, &r.dgrad, &r.wgrad}) {
        g->accumulate = unit;
        g->left.format = g->right.format = f;
      }
      r.dgrad.left = nn::operand_recipe{nn::operand_format::bf16};
      if (!runs_here(*device, r)) continue;
      CHECK(same_bytes(train(*cpu, r, 1), train(*device, r, 1)));
    }
  }
  CHECK(contracts_here > 0);
}

TEST_CASE("FP8 under a matrix unit's contract as well") {
  const auto device = make_device();
  const nn::recipe fp8 = fp8_of_unit();
  if (!runs_here(*device, fp8)) return;
  const auto cpu = nn::make_cpu_backend(2);
  CHECK(same_bytes(train(*cpu, fp8, 2), train(*device, fp8, 2)));
  CHECK_FALSE(same_bytes(train(*device, fp8, 2), train(*device, preset("fp8_amd"), 2)));
  CHECK(same_bytes(train(*cpu, fp8, 2, false, {"qkv_proj"}), train(*device, fp8, 2, false, {"qkv_proj"})));
}

TEST_CASE("graphs change nothing, nor does waiting for each operation or taking its time") {
  const std::vector<nn::recipe> healed = {preset("mxfp4_h16"), preset("fp8_amd")};
  const struct {
    const char* what;
    std::vector<nn::recipe> phases;
    std::vector<std::string> targets;
    int micro_batches;
  } cases[] = {{"fp8_amd", {preset("fp8_amd")}, {}, 2},
               {"mxfp4", {preset("mxfp4")}, {}, 2},
               {"a step of one pass, whose logits lie among the gradients", {preset("mxfp4")}, {}, 1},
               {"all weights through a switch", healed, {}, 1},
               {"adapters through a switch, the base from its stash", healed, {"qkv_proj", "o_proj"}, 2}};
  int number = 0;
  for (const auto& c : cases) {
    CAPTURE(c.what);
    std::vector<gpu::timed_operation> timing;
    const auto trained = [&](bool graphs, bool wait_for_each, bool timed) {
      gpu::train_options o;
      o.graphs = graphs;
      o.wait_for_each = wait_for_each;
      if (timed) o.timing = &timing;
      return train(*make_device(o), c.phases, 2, false, c.targets, c.micro_batches);
    };
    const auto want = train(*make_device(), c.phases, 2, false, c.targets, c.micro_batches);
    const int first = number++;
    if (oracle::in_share(first)) CHECK(same_bytes(want, trained(false, false, false)));
    if (oracle::in_share(first + 1)) CHECK(same_bytes(want, trained(false, true, false)));
    if (oracle::in_share(first + 2)) {
      CHECK(same_bytes(want, trained(false, true, true)));
      CHECK(timing.size() > 100);
    }
    CHECK(same_bytes(want, train(*nn::make_cpu_backend(1), c.phases, 2, false, c.targets, c.micro_batches)));
  }
}

TEST_CASE("operations that are waited for one by one are put on the queue again, not recorded") {
  gpu::train_options o;
  o.wait_for_each = true;
  const auto device = make_device(o);
  const nn::queue queue = device->make_queue("steps");
  int runs = 0;
  const auto graph = device->capture(queue, [&] { ++runs; });
  for (int i = 0; i < 3; ++i) device->launch(queue, *graph);
  CHECK(runs == 3);
}

}  // namespace train_training_test
