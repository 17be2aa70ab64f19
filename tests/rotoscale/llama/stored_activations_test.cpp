// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Saved activations: recomputation gives the bits of a run without it; 8-bit storage keeps the bits of the forward
// pass.
#include "rotoscale/models/llama/model.hpp"
#include "rotoscale/nn/cpu/backend.hpp"
#include "session_case.hpp"

namespace stored_activations_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;
using llama::kept_format;
using llama::recompute_part;

/// Weights, moments and scales after three steps, the second one observed.
std::vector<float> trained(session_case& c, const batch& data) {
  for (std::uint64_t step = 0; step < 3; ++step) {
    nn::step_inputs inputs;
    inputs.seed = 5;
    inputs.step = step;
    inputs.learning_rate = 0.01f;
    c.session.train_step(inputs, data.tokens, data.targets, {}, step == 1);
    c.session.finish_step();
  }
  const llama::model& m = c.session.model();
  std::vector<float> all;
  const auto append = [&](const float* from, index_t n) {
    std::vector<float> host(static_cast<std::size_t>(n));
    c.ops->download(c.session.queue(), host.data(), from, host.size() * sizeof(float));
    all.insert(all.end(), host.begin(), host.end());
  };
  for (const float* x : {m.arena().weight, m.arena().m, m.arena().v}) append(x, m.arena().size);
  const nn::scaling_state& s = m.scales().state();
  append(s.scale, s.count);
  append(s.history, s.count * s.history_length);
  return all;
}

/// Stochastic rounding and per-step signs: recomputation must draw the same words.
nn::recipe random_recipe() {
  nn::recipe r = preset("mxfp4_h16_step_signs");
  for (nn::gemm_recipe* g : {&r.fprop, &r.dgrad, &r.wgrad}) g->left.rounding = g->right.rounding = rounding::stochastic;
  return r;
}
nn::recipe narrow(const char* name) {
  nn::recipe r = preset(name);
  r.activations = nn::operand_format::bf16;
  return r;
}
nn::recipe exempt_ends() {
  nn::recipe r = preset("mxfp4_h16");
  r.bf16_last_layers = 1;
  return r;
}

llama::session_options with(recompute_part recompute, kept_format kept, index_t sequence = 32) {
  auto o = session_case::options(2, sequence, nullptr);
  o.model.recompute = recompute;
  o.model.kept = kept;
  return o;
}

llama::model_config deep_config() {
  llama::model_config c = small_config(false);
  c.num_hidden_layers = 5;
  return c;
}

TEST_CASE("recomputation leaves the bytes of a run without it, with adapters and dropout too") {
  nn::recipe adapted = preset("mxfp4_h16");
  adapted.name = "adapters";
  for (const nn::recipe& r : {preset("fp32"), preset("bf16"), preset("fp8_delayed"), preset("mxfp4_h16"),
                              random_recipe(), narrow("bf16"), narrow("mxfp4_h16"), exempt_ends(), adapted}) {
    CAPTURE(r.name);
    const batch data(4, 32, 64, true);
    const auto run = [&](recompute_part part) {
      session_case c(deep_config(), r, 2, 32, 1, 3, [&](llama::session_options& o) {
        o.micro_batches = 2;
        o.model.recompute = part;
        o.model.statistics = true;
        if (r.name != adapted.name) return;
        llama::lora_config& lora = o.model.lora.emplace();
        lora.rank = 4;
        lora.dropout = 0.25;
        lora.targets = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
      });
      return trained(c, data);
    };
    const std::vector<float> want = run(recompute_part::none);
    for (const recompute_part part :
         {recompute_part::elementwise, recompute_part::attention, recompute_part::mlp, recompute_part::layer}) {
      CAPTURE(to_string(part));
      CHECK(same_bytes(want, run(part)));
    }
  }
}

/// The gradients of a third step on the same weights, and its losses.
std::vector<float> gradients_of(const nn::recipe& r, kept_format kept, std::vector<float>& losses) {
  auto config = deep_config();
  config.initializer_range = 0.05;
  session_case c(config, r, 2, 32, 2, 3, [&](llama::session_options& o) { o.model.kept = kept; });
  const batch data(2, 32, 64, true);
  // Steps without updates, which are equal for any storage: FP8 gets its scales.
  for (std::uint64_t step = 0; step < 3; ++step) c.step(data, step);
  losses = c.losses();
  return c.all();
}

struct difference {
  double error, cosine;
};
difference difference_of(const std::vector<float>& reference, const std::vector<float>& other) {
  double norm = 0, error = 0, product = 0, squares = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double x = static_cast<double>(reference[i]), y = static_cast<double>(other[i]);
    norm += x * x;
    squares += y * y;
    product += x * y;
    error += (x - y) * (x - y);
  }
  return {std::sqrt(error / norm), product / std::sqrt(norm * squares)};
}

TEST_CASE("8-bit activations: the forward pass's bits, and gradients within the format's error") {
  struct recorded {
    nn::recipe recipe;
    double error, cosine, plain, packed;  ///< as in docs/reference/training.md
  };
  std::vector<float> losses, packed_losses;
  const std::vector<float> exact = gradients_of(preset("fp32"), kept_format::as_computed, losses);
  for (const recorded& want : {recorded{preset("fp32"), 0.01255, 0.99992, 0.0, 0.01255},
                               {preset("bf16"), 0.01327, 0.99991, 0.00739, 0.01528},
                               {preset("fp8_delayed"), 0.0721, 0.99742, 0.1112, 0.1049},
                               {preset("mxfp4"), 0.1382, 0.99057, 0.3431, 0.3345},
                               {preset("mxfp4_h16"), 0.1444, 0.98953, 0.3828, 0.3843}}) {
    CAPTURE(want.recipe.name);
    const auto plain = gradients_of(want.recipe, kept_format::as_computed, losses),
               packed = gradients_of(want.recipe, kept_format::mxfp8_e4m3, packed_losses);
    CHECK(same_bytes(losses, packed_losses));
    const difference to_plain = difference_of(plain, packed), to_exact = difference_of(exact, packed),
                     plain_to_exact = difference_of(exact, plain);
    MESSAGE(want.recipe.name << ": to the plain run " << to_plain.error << " (" << to_plain.cosine << "), to fp32 "
                             << to_exact.error << " (" << to_exact.cosine << "), the plain run to fp32 "
                             << plain_to_exact.error << " (" << plain_to_exact.cosine << ")");
    CHECK(to_plain.error == doctest::Approx(want.error).epsilon(0.01));
    CHECK(to_plain.cosine == doctest::Approx(want.cosine).epsilon(0.001));
    CHECK(plain_to_exact.error == doctest::Approx(want.plain).epsilon(0.01));
    CHECK(to_exact.error == doctest::Approx(want.packed).epsilon(0.01));
  }
}

TEST_CASE("what excludes each other is refused by name") {
  const auto ops = nn::make_cpu_backend(1);
  const auto message = [&](const llama::model_config& config, recompute_part recompute,
                           kept_format kept) -> std::string {
    try {
      llama::plan_session(*ops, config, with(recompute, kept), {preset("bf16")});
    } catch (const std::invalid_argument& e) {
      return e.what();
    }
    return "";
  };
  CHECK(message(small_config(false), recompute_part::layer, kept_format::as_computed).empty());
  CHECK(message(small_config(false), recompute_part::none, kept_format::mxfp8_e4m3).empty());
  CHECK(message(small_config(false), recompute_part::mlp, kept_format::mxfp8_e4m3) ==
        "recompute: mlp promises the bits of the forward pass, which stored_activations: mxfp8_e4m3 does not keep; "
        "choose "
        "one of them");
  auto odd = small_config(false);
  odd.hidden_size = 72;
  odd.head_dim = 16;
  CHECK(message(odd, recompute_part::none, kept_format::mxfp8_e4m3) ==
        "stored_activations: hidden_size 72 is not a multiple of 32, which MXFP8 blocks need");
  odd = small_config(false);
  odd.intermediate_size = 104;
  CHECK(message(odd, recompute_part::none, kept_format::mxfp8_e4m3) ==
        "stored_activations: 2 * intermediate_size 208 is not a multiple of 32, which MXFP8 blocks need");
}

}  // namespace stored_activations_test
