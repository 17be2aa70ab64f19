// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Observed steps: they give the bits of unobserved steps, and their records are of the tensors that they name.
#include "rotoscale/train/model.hpp"
#include "session_case.hpp"

namespace statistics_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;
using nn::operand_form;
using nn::tensor_role;

void with_statistics(llama::session_options& o) { o.model.statistics = true; }

/// Weights, moments and scales after three steps. Bit i of `observed`: step i is observed.
std::vector<float> trained(session_case& c, const batch& data, unsigned observed) {
  for (std::uint64_t step = 0; step < 3; ++step) {
    nn::step_inputs inputs;
    inputs.seed = 5;
    inputs.step = step;
    inputs.learning_rate = 0.01f;
    c.session.train_step(inputs, data.tokens, data.targets, {}, (observed >> step & 1) != 0);
    c.session.finish_step();
    CHECK(c.session.statistics().empty() == ((observed >> step & 1) == 0));
  }
  std::vector<float> all = c.all(true);
  const llama::model& m = c.session.model();
  for (const float* moments : {m.arena().m, m.arena().v}) {
    std::vector<float> host(static_cast<std::size_t>(m.arena().size));
    c.ops->download(c.session.queue(), host.data(), moments, host.size() * sizeof(float));
    all.insert(all.end(), host.begin(), host.end());
  }
  const nn::scaling_state& s = m.scales().state();
  std::vector<float> history(static_cast<std::size_t>(s.count));
  c.ops->download(c.session.queue(), history.data(), s.scale, history.size() * sizeof(float));
  all.insert(all.end(), history.begin(), history.end());
  return all;
}

const nn::operand_statistics& of(const llama::linear_statistics& l, tensor_role tensor, operand_form form) {
  return l.operands[llama::operand_number(tensor, form)];
}

/// Observes the first step of a session.
std::vector<llama::linear_statistics> observe(session_case& c, const batch& data) {
  nn::step_inputs inputs;
  inputs.seed = 5;
  c.session.train_step(inputs, data.tokens, data.targets, {}, true);
  c.session.finish_step();
  return {c.session.statistics().begin(), c.session.statistics().end()};
}

TEST_CASE("observed steps leave the bits of steps that are not") {
  nn::recipe narrow = preset("bf16");
  narrow.activations = nn::operand_format::bf16;
  std::vector<nn::recipe> recipes = nn::presets::all();
  recipes.push_back(narrow);
  int micro_batches = 1;
  for (const nn::recipe& r : recipes) {
    micro_batches = 4 - micro_batches;  // 3 and 1 by turns
    CAPTURE(r.name);
    CAPTURE(micro_batches);
    const batch data(2 * micro_batches, 32, 64, true);
    const auto extents = [&](llama::session_options& o) {
      o.micro_batches = micro_batches;
      o.model.head_chunk = micro_batches == 1 ? 2048 : 48;
    };
    session_case without(small_config(micro_batches == 3), r, 2, 32, 1, 3, extents);
    const std::vector<float> want = trained(without, data, 0);
    session_case with(small_config(micro_batches == 3), r, 2, 32, 2, 3, [&](llama::session_options& o) {
      extents(o);
      with_statistics(o);
    });
    CHECK(same_bytes(want, trained(with, data, micro_batches == 1 ? 5 : 7)));
  }
}

TEST_CASE("an FP32 run loses nothing, and its gradients are the FP32 GEMM's to the bit") {
  session_case c(small_config(false), preset("fp32"), 2, 32, 1, 3, with_statistics);
  const auto all = observe(c, batch(2, 32, 64, false));
  REQUIRE(all.size() == 9);
  for (const llama::linear_statistics& l : all) {
    for (const nn::operand_statistics& o : l.operands) {
      CHECK(o.elements > 0);
      CHECK((o.noise == 0 && o.signal > 0 && o.flushed == 0 && o.saturated == 0));
    }
    CHECK((l.gradient.elements > 0 && l.gradient.error_squares == 0 && l.gradient.squares > 0));
    CHECK(l.gradient.cosine().value() == doctest::Approx(1.0).epsilon(1e-12));
  }
}

TEST_CASE("records are of the tensors they name") {
  for (const char* name : {"bf16", "fp8_delayed", "mxfp4", "mxfp4_h16"}) {
    CAPTURE(name);
    session_case c(small_config(false), preset(name), 2, 32, 1, 3, with_statistics);
    const auto all = observe(c, batch(2, 32, 64, false));
    const llama::model& m = c.session.model();
    nn::comparison_statistics sum;
    for (std::size_t i = 0; i < all.size(); ++i) {
      CAPTURE(i);
      const nn::linear& l = *m.linears().layers()[i];
      const llama::linear_statistics& s = all[i];
      for (const nn::operand_use& use : nn::operand_uses) {
        const nn::operand_statistics& o = of(s, use.tensor, use.form);
        const index_t rows = use.tensor == tensor_role::w ? l.shape().out : l.shape().tokens;
        const index_t cols = use.tensor == tensor_role::dy ? l.shape().out : l.shape().in;
        CHECK(o.elements == rows * cols);
        CHECK((o.noise > 0 && o.signal > 0 && o.nonfinite == 0));
        const bool blocks = nn::is_mx(nn::recipe_for(l.current(), use.tensor, use.form).format);
        CHECK((o.rows > 0) == blocks);
      }
      // Both axes have the same numbers, so the same amax. H is orthogonal, so the norm is equal too.
      for (const tensor_role tensor : {tensor_role::x, tensor_role::w, tensor_role::dy}) {
        const auto &row = of(s, tensor, operand_form::row), &column = of(s, tensor, operand_form::column);
        CHECK(row.amax == column.amax);
        CHECK(row.signal == doctest::Approx(column.signal).epsilon(1e-5));
      }
      // The error of dw comes from errors of dy and x and is at most the format's share. A wrong x or dy gives about 1.
      const double error = s.gradient.relative_error().value(), cosine = s.gradient.cosine().value();
      const bool bf16 = std::string(name) == "bf16" || i + 1 == all.size();
      const double lost = std::sqrt(
          of(s, tensor_role::dy, operand_form::column).noise / of(s, tensor_role::dy, operand_form::column).signal +
          of(s, tensor_role::x, operand_form::column).noise / of(s, tensor_role::x, operand_form::column).signal);
      CHECK(error < (bf16 ? 0x1p-7 : std::string(name) == "fp8_delayed" ? 1.01 : 0.4));
      CHECK(error < 3 * lost);
      CHECK(error > lost / 6);
      if (error < 0.4) CHECK(cosine > 1 - error * error);
      CHECK(s.gradient.norm_to_noise().value() == doctest::Approx(1 / error));
      sum.add(s.gradient);
    }
    CHECK(llama::all_gradients(all).error_squares == sum.error_squares);
    // The gradients' norm equals the arena's.
    const auto gradients = c.by_name(true);
    double o_proj = 0;
    for (const double g : gradients.at("model.layers.1.self_attn.o_proj.weight")) o_proj += g * g;
    CHECK(all[5].gradient.squares == doctest::Approx(o_proj).epsilon(1e-9));
  }
}

TEST_CASE("frozen weights have operands of x and w to observe, and no gradient") {
  session_case c(small_config(false), preset("mxfp4_h16"), 2, 32, 1, 3, [](llama::session_options& o) {
    o.model.statistics = true;
    o.model.trains = [](const llama::parameter& p) { return p.name().find("proj") == std::string::npos; };
  });
  const auto all = observe(c, batch(2, 32, 64, false));
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(all[i].gradient.elements == 0);
    CHECK(of(all[i], tensor_role::x, operand_form::row).elements > 0);
    CHECK(of(all[i], tensor_role::x, operand_form::column).elements == 0);
    CHECK(of(all[i], tensor_role::w, operand_form::row).elements == 0);  // its source was freed
    CHECK(of(all[i], tensor_role::dy, operand_form::row).elements > 0);
    CHECK(of(all[i], tensor_role::dy, operand_form::column).elements == 0);
  }
  CHECK(all[8].gradient.elements > 0);
}

/// With adapters whose B is nonzero, so that A has a gradient too.
std::unique_ptr<session_case> adapted(const nn::recipe& r, bool observed, const std::vector<std::string>& targets,
                                      llama::recompute_part recompute = llama::recompute_part::none) {
  auto c = std::make_unique<session_case>(small_config(false), r, 2, 32, 1, 3, [&](llama::session_options& o) {
    o.model.lora.emplace();
    o.model.lora->rank = 4;
    o.model.lora->targets = targets;
    o.model.recompute = recompute;
    o.model.statistics = observed;
  });
  c->step(batch(2, 32, 64, true), 7, 0.02f);
  return c;
}

TEST_CASE("adapters: gradients of A and B against the FP32 GEMM, and no bit moves") {
  const batch data(2, 32, 64, true);
  const std::vector<std::string> split = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
                                 fused = {"qkv_proj", "o_proj"};
  for (const char* name : {"fp32", "bf16", "mxfp4_h16"}) {
    for (const auto& targets : {split, fused}) {
      for (const auto recompute : {llama::recompute_part::none, llama::recompute_part::layer}) {
        CAPTURE(name);
        CAPTURE(targets.size());
        const nn::recipe r = preset(name);
        const auto without = adapted(r, false, targets, recompute), with = adapted(r, true, targets, recompute);
        const auto all = observe(*with, data);
        const llama::model& m = with->session.model();
        REQUIRE(all.size() == 9 + 2 * targets.size() * 2);
        for (std::size_t i = 0; i < 9; ++i) CHECK(all[i].gradient.elements == 0);  // frozen
        for (std::size_t i = m.parameters().base_count(); i < m.parameters().all().size(); ++i) {
          const llama::parameter& p = m.parameters()[i];
          CAPTURE(p.name());
          const nn::comparison_statistics& s =
              all[static_cast<std::size_t>(train::record_of(m.parameters(), i))].gradient;
          CHECK(s.elements == p.size());
          double squares = 0;
          for (const float g : m.arena_values(with->session.queue(), m.arena().gradient, i)) {
            squares += static_cast<double>(g) * static_cast<double>(g);
          }
          CHECK(squares > 0);
          CHECK(s.squares == doctest::Approx(squares).epsilon(1e-9));
          // Operands are BF16 of dy under any base recipe: half a unit of 2^-8 per product.
          if (std::string(name) == "fp32") {
            CHECK(s.error_squares == 0);
          } else {
            CHECK(s.relative_error().value() < 0x1p-8);
            CHECK(
                (s.error_squares > 0 || p.kind == llama::parameter_kind::adapter_a));  // operands are BF16 in any case
          }
        }
        CHECK(llama::all_gradients(all).elements == m.parameters().trained_count());
        CHECK(same_bytes(trained(*without, data, 0), trained(*adapted(r, true, targets, recompute), data, 7)));
      }
    }
  }
}

}  // namespace statistics_test
