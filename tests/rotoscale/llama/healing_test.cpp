// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Switches of recipe: the stash, scales, measurements without side effects, and ranks that heal as one rank does.
#include <algorithm>
#include <numeric>
#include <thread>

#include "../nn/numbers.hpp"
#include "rotoscale/nn/cpu/backend.hpp"
#include "rotoscale/nn/thread_ranks.hpp"
#include "rotoscale/train/session.hpp"
#include "session_case.hpp"

namespace healing_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;
using category = nn::memory_category;

bool is_matrix(const llama::parameter& p) { return p.name().find("proj") != std::string::npos; }

/// Trained parameters: all, all but the linear layers, or LoRA's adapters only.
enum class base { trains, frozen, adapted };

struct healing_case {
  nn::cpu_backend ops{1};
  llama::session session;

  explicit healing_case(const std::vector<nn::recipe>& recipes, base kind = base::frozen, index_t b = 2,
                        index_t seq = 32, const llama::model_config& config = small_config(false),
                        nn::communicator* ranks = nullptr, int micro_batches = 1, bool divides = false,
                        train::shard_level shard = {})
      : session(ops, config,
                session_case::options(b, seq,
                                      [&](llama::session_options& o) {
                                        if (kind == base::frozen)
                                          o.model.trains = [](const llama::parameter& p) { return !is_matrix(p); };
                                        if (kind == base::adapted) o.model.lora = adapters();
                                        o.micro_batches = micro_batches;
                                        o.divides_frozen = divides;
                                        o.shard = shard;
                                      }),
                recipes, ranks) {
    session.set_inputs(inputs(0));
    session.initialize(3);
  }
  static llama::lora_config adapters() {
    llama::lora_config c;
    c.rank = 4;
    c.targets = {"q_proj", "v_proj", "o_proj", "down_proj"};
    return c;
  }
  static nn::step_inputs inputs(std::uint64_t step) {
    nn::step_inputs now;
    now.seed = 5;
    now.step = step;
    now.learning_rate = 0.01f;
    return now;
  }
  nn::step_state step(const batch& data, std::uint64_t number) {
    session.train_step(inputs(number), data.tokens, data.targets);
    return session.finish_step();
  }
  std::vector<float> evaluate(const batch& data) { return session.evaluate(inputs(9), data.tokens, data.targets); }
  /// Of all ranks, which call this together.
  std::vector<float> trained(nn::communicator& ranks) const {
    std::vector<float> all;
    const llama::model& m = session.model();
    for (std::size_t i = 0; i < m.parameters().all().size(); ++i) {
      if (!m.parameters()[i].trains) continue;
      const nn::arena_range own = m.weights().owned(i, {0, m.parameters()[i].size()});
      std::vector<float> values;
      if (own.count > 0) values = m.weights().elements(session.queue(), i, own);
      for (const auto& part : nn::gather_values<float>(ranks, values)) all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  std::vector<float> trained() const {
    nn::communicator alone;
    return trained(alone);
  }
  nn::scaling_snapshot scales() { return session.model().scales().save(ops, session.queue()); }
  /// Operands of linear layer i in the CPU backend.
  nn::cpu::operands operands(std::size_t i) const {
    const llama::weight_location& w = session.model().weights().locations()[i];
    return {w.request, w.own.at, {}};
  }
};

float as_bf16(float x) {
  return decode(formats::bf16, encode(formats::bf16, x, rounding::nearest_even, overflow::to_inf));
}
std::uint8_t as_e4m3(float x) {
  return static_cast<std::uint8_t>(encode(formats::e4m3, x, rounding::nearest_even, overflow::saturate));
}

TEST_CASE("the stash is the E4M3 cast of the weights as they were loaded, unscaled or by their maximum") {
  for (const bool scaled : {false, true}) {
    CAPTURE(scaled);
    const nn::recipe fp8 = preset(scaled ? "fp8_scaled_stash" : "fp8_amd");
    healing_case c({preset("mxfp4_h16"), fp8});
    const batch data(2, 32, 64, false);
    for (std::uint64_t s = 0; s < 2; ++s) c.step(data, s);
    c.session.use(fp8);
    const llama::model& m = c.session.model();
    for (std::size_t i = 0; i + 1 < m.weights().locations().size(); ++i) {
      const llama::weight_location& w = m.weights().locations()[i];
      const auto values = llama::initial_values(m.parameters()[w.number], 3);
      float amax = 0.0f;
      for (const float x : values) amax = std::fmax(amax, std::fabs(as_bf16(x)));
      const float scale = scaled ? 448.0f / amax : 1.0f;
      const nn::cpu::operands made = c.operands(i);
      const gemm_operand& row = made.form(nn::operand_form::row);
      CHECK(*row.factor == 1.0f / scale);
      std::vector<std::uint8_t> want;
      for (const float x : values) want.push_back(as_e4m3(as_bf16(x) * scale));
      CHECK(std::equal(want.begin(), want.end(), row.codes));
      CHECK(made.form(nn::operand_form::column).codes == row.codes);
      CHECK(c.scales().scale[static_cast<std::size_t>(3 * w.layer + 1)] == scale);
    }
    // It stays; no step quantizes it again.
    for (std::uint64_t s = 2; s < 5; ++s) c.step(data, s);
    const auto values = llama::initial_values(m.parameters()[m.weights().locations()[0].number], 3);
    CHECK(c.operands(0).form(nn::operand_form::row).codes[5] == as_e4m3(as_bf16(values[5]) * c.scales().scale[1]));
    // As a base that is FP8 from the start.
    healing_case from_start({fp8});
    CHECK(same_bytes(std::vector<float>{*c.operands(2).form(nn::operand_form::row).factor},
                     std::vector<float>{*from_start.operands(2).form(nn::operand_form::row).factor}));
    CHECK(std::equal(c.operands(2).form(nn::operand_form::row).codes,
                     c.operands(2).form(nn::operand_form::row).codes + 64,
                     from_start.operands(2).form(nn::operand_form::row).codes));
  }
}

TEST_CASE("a base that trains is healed from its masters, and has no stash") {
  const batch data(2, 32, 64, false);
  healing_case c({preset("mxfp4_h16"), preset("fp8_amd")}, base::trains);
  CHECK(c.session.plan()[category::stash] == 0);
  c.step(data, 0);
  c.session.use(preset("fp8_amd"));
  CHECK((c.session.last_switch().between == 0 && c.session.last_switch().streamed == 0));
  CHECK(c.session.last_switch().peak == std::max(c.session.last_switch().before, c.session.last_switch().after));
  // As a session that used only FP8, with the same master weights.
  healing_case fresh({preset("fp8_amd")}, base::trains);
  const llama::model& m = c.session.model();
  for (std::size_t i = 0; i < m.parameters().all().size(); ++i) fresh.session.load(i, m.values(c.session.queue(), i));
  CHECK(same_bytes(c.evaluate(data), fresh.evaluate(data)));
  CHECK(c.step(data, 1).loss_sum == fresh.step(data, 1).loss_sum);
  CHECK(same_bytes(c.session.gradients(), fresh.session.gradients()));
  CHECK(c.scales().scale == fresh.scales().scale);
}

TEST_CASE("a frozen base heals to any recipe, back, and only as it was planned") {
  const batch data(2, 32, 64, false);
  nn::recipe forward = preset("fp8_amd"), backward = preset("mxfp4_h16"), mx8 = preset("bf16");
  forward.name = "forward";
  forward.dgrad = forward.wgrad = preset("mxfp4_h16").dgrad;
  forward.wgrad.output = nn::operand_format::fp32;
  backward.name = "backward";
  backward.dgrad = preset("fp8_amd").dgrad;
  backward.wgrad = preset("fp8_amd").wgrad;
  mx8.name = "mx8";
  for (nn::gemm_recipe* g : {&mx8.fprop, &mx8.dgrad, &mx8.wgrad}) {
    g->left.format = g->right.format = nn::operand_format::mxfp8_e4m3;
  }
  const nn::recipe fp4 = preset("mxfp4_h16");
  nn::recipe again = override_backward(preset("mxfp4_h16_fixed_signs"), nn::backward_kind::dequantized);
  again.name = "again";
  std::vector<nn::recipe> order;
  for (const nn::recipe& r : {preset("fp8_amd"), preset("bf16"), mx8, forward, backward, preset("fp32"), again}) {
    order.push_back(fp4);
    order.push_back(r);
  }
  healing_case c(order);
  for (const nn::recipe& r : order) {
    CAPTURE(r.name);
    c.session.use(r);
    healing_case fresh({r});
    CHECK(same_bytes(c.evaluate(data), fresh.evaluate(data)));
    CHECK(c.session.last_switch().between == 0);
  }
  CHECK_THROWS_AS((c.session.use(preset("mxfp4")), c.evaluate(data)), std::logic_error);
}

TEST_CASE("scales at a switch: reset, kept where the format stays, seeded from the pass before") {
  const batch data(2, 32, 64, false);
  nn::recipe forward = preset("fp8_amd");
  forward.name = "forward";
  forward.dgrad = forward.wgrad = preset("mxfp4_h16").dgrad;
  forward.wgrad.output = nn::operand_format::fp32;
  const nn::recipe whole = preset("fp8_delayed");
  nn::recipe backward = whole;  // reads no FP8 of x and w
  backward.dgrad.right = backward.wgrad.right = {nn::operand_format::bf16};
  healing_case c({preset("mxfp4_h16"), forward, whole, backward}, base::trains);
  const std::size_t x = 0, w = 1, dy = 2;  // of layer 0
  // Observation has no side effects.
  healing_case plain({preset("mxfp4_h16"), forward, whole}, base::trains);
  const auto maxima = c.session.observe_maxima(healing_case::inputs(0), data.tokens, data.targets);
  for (std::uint64_t s = 0; s < 2; ++s) CHECK(c.step(data, s).loss_sum == plain.step(data, s).loss_sum);
  CHECK(same_bytes(c.trained(), plain.trained()));
  CHECK(c.scales().amax == plain.scales().amax);
  for (const std::size_t t : {x, w, dy}) CHECK(maxima[t] > 0.0f);
  float amax = 0.0f;
  const std::size_t qkv = c.session.model().parameters().find("model.layers.0.self_attn.q_proj.weight");
  for (const float v : llama::initial_values(c.session.model().parameters()[qkv], 3)) {
    amax = std::fmax(amax, std::fabs(as_bf16(v)));
  }
  CHECK(maxima[w] == amax);
  // Seeded: the scales that one pass would have made.
  c.session.use(forward, nn::scale_handover::seed, maxima);
  CHECK(c.scales().scale[x] == 448.0f / maxima[x]);
  CHECK(c.scales().history[0] == maxima[x]);
  // keep: x and w have the previous format, dy is new. A history of 1024 entries begins with the previous four.
  for (std::uint64_t s = 2; s < 4; ++s) c.step(data, s);
  const nn::scaling_snapshot before = c.scales();
  c.session.use(whole, nn::scale_handover::keep);
  const nn::scaling_snapshot after = c.scales();
  CHECK(after.scale[x] == before.scale[x]);
  CHECK(after.scale_inverse[w] == before.scale_inverse[w]);
  CHECK(after.scale[dy] == 1.0f);
  CHECK((after.history_length == 1024 && before.history_length == 4));
  for (const std::size_t t : {x, w, x + 3}) {  // 3: of the next layer
    for (std::size_t h = 0; h < 4; ++h) CHECK(after.history[1024 * t + h] == before.history[4 * t + h]);
    CHECK(after.history[1024 * t + 4] == 0.0f);
  }
  c.evaluate(data);
  CHECK(*c.operands(0).form(nn::operand_form::row).factor != 1.0f);
  // One direction only: tensors that only the other direction reads in FP8 keep their scales, reset or seeded.
  for (std::uint64_t s = 4; s < 6; ++s) c.step(data, s);
  const nn::scaling_snapshot known = c.scales();
  REQUIRE((known.scale[x] != 1.0f && known.scale[w] != 1.0f && known.scale[dy] != 1.0f));
  for (const auto how : {nn::scale_handover::reset, nn::scale_handover::seed}) {
    const auto check = [&](std::size_t t, bool kept) {
      CHECK((c.scales().scale[t] == known.scale[t]) == kept);
      CHECK((c.scales().history[1024 * t + 1] == known.history[1024 * t + 1]) == kept);
    };
    const auto switch_to = [&](const nn::recipe& r, nn::gemm_scope gemms) {
      c.session.use(whole);
      c.session.model().scales().restore(c.ops, c.session.queue(), known);
      c.session.use(r, how, std::vector<float>(maxima.size(), 0.25f), gemms);
    };
    switch_to(whole, nn::gemm_scope::forward);
    check(x, false), check(w, false), check(dy, true);
    switch_to(backward, nn::gemm_scope::backward);
    check(x, true), check(w, true), check(dy, false);
  }
  c.session.use(whole);
  for (const float s : c.scales().scale) CHECK(s == 1.0f);
  c.evaluate(data);
  CHECK(*c.operands(0).form(nn::operand_form::row).factor == 1.0f);
  // Earlier records do not count.
  auto halved = c.session.model().values(c.session.queue(), qkv);
  for (float& v : halved) v *= 0.5f;
  c.session.load(qkv, halved);
  const float recorded = c.scales().amax[w];
  CHECK(c.session.observe_maxima(healing_case::inputs(5), data.tokens, data.targets)[w] == 0.5f * recorded);
}

TEST_CASE("a frozen weight's scale is that of its cast, whatever is handed over and however often scales are updated") {
  const batch data(2, 32, 64, false);
  nn::recipe maximum = preset("fp8_delayed"), other = preset("fp8_scaled_stash");
  maximum.fp8.frozen_weights = other.fp8.frozen_weights;
  other.fp8.algorithm = nn::amax_algorithm::max;
  for (const base kind : {base::frozen, base::adapted}) {
    for (const nn::recipe& before : {preset("mxfp4_h16"), preset("bf16"), preset("fp32"), other}) {
      for (const nn::recipe& after : {preset("fp8_delayed"), preset("fp8_amd"), maximum}) {
        for (const auto how : {nn::scale_handover::seed, nn::scale_handover::keep}) {
          CAPTURE(before.name);
          CAPTURE(after.name);
          healing_case c({before, after}, kind), begun({after}, kind);
          const auto maxima = c.session.observe_maxima(healing_case::inputs(0), data.tokens, data.targets);
          c.session.use(after, how, maxima);
          const std::vector<float> loss = c.evaluate(data);
          for (std::uint64_t s = 0; s < 3; ++s) c.step(data, s);
          const nn::scaling_snapshot now = c.scales(), expected = begun.scales();
          for (const std::size_t w : {1, 4, 7, 10}) {  // of layer 0
            CHECK(now.scale[w] == expected.scale[w]);
            CHECK(now.scale_inverse[w] == expected.scale_inverse[w]);
          }
          // Small steps of the adapters or the gains do not ruin the model.
          const std::vector<float> later = c.evaluate(data);
          const auto sum = [](const std::vector<float>& all) { return std::accumulate(all.begin(), all.end(), 0.0); };
          CHECK(sum(later) < 1.05 * sum(loss));
        }
      }
    }
  }
}

TEST_CASE("gradients under another recipe leave no trace and are that recipe's") {
  const batch data(2, 32, 64, false);
  for (const base kind : {base::trains, base::frozen, base::adapted}) {
    for (const char* name : {"mxfp4_h16", "fp8_amd"}) {
      CAPTURE(name);
      const nn::recipe own = preset(name), reference = preset("bf16");
      healing_case c({own, reference, own}, kind), plain({own}, kind), other({reference}, kind);
      for (std::uint64_t s = 0; s < 3; ++s) {
        const auto found = c.session.gradients_under(reference, healing_case::inputs(s), data.tokens, data.targets);
        if (s == 0) {
          other.step(data, 0);
          CHECK(same_bytes(found, other.session.gradients()));
        }
        CHECK(c.step(data, s).loss_sum == plain.step(data, s).loss_sum);
        CHECK_FALSE(same_bytes(found, c.session.gradients()));
      }
      CHECK(same_bytes(c.trained(), plain.trained()));
      CHECK(c.scales().scale == plain.scales().scale);
      CHECK(c.scales().history == plain.scales().history);
    }
  }
}

TEST_CASE("a session made in the healed phase goes on as the one that healed") {
  const batch data(2, 32, 64, false);
  for (const base kind : {base::frozen, base::adapted}) {
    for (const char* name : {"fp8_amd", "fp8_scaled_stash", "bf16"}) {
      CAPTURE(name);
      const std::vector<nn::recipe> recipes = {preset("mxfp4_h16"), preset(name)};
      healing_case c(recipes, kind), resumed(recipes, kind);
      c.step(data, 0);
      c.session.use(recipes[1]);
      c.step(data, 1);
      // As a program resumes: the phase first, then weights, moments and scales.
      resumed.session.use(recipes[1]);
      const llama::model &from = c.session.model(), &to = resumed.session.model();
      for (std::size_t i = 0; i < from.parameters().all().size(); ++i) {
        const llama::parameter& p = from.parameters()[i];
        const auto given = p.trains ? from.values(c.session.queue(), i) : llama::initial_values(p, 3);
        resumed.session.load(i, given);
        if (!p.trains) continue;
        for (const auto arena : {&nn::parameter_arena::m, &nn::parameter_arena::v}) {
          to.weights().set_owned_values(resumed.session.queue(), arena, i,
                                        from.arena_values(c.session.queue(), from.arena().*arena, i), 0);
        }
      }
      resumed.session.model().scales().restore(resumed.ops, resumed.session.queue(), c.scales());
      for (std::uint64_t s = 2; s < 4; ++s) CHECK(c.step(data, s).loss_sum == resumed.step(data, s).loss_sum);
      CHECK(same_bytes(c.trained(), resumed.trained()));
      CHECK(c.scales().scale == resumed.scales().scale);
      CHECK(c.scales().history == resumed.scales().history);
      if (kind == base::adapted) CHECK_FALSE(same_bytes(c.trained(), healing_case(recipes, kind).trained()));
    }
  }
}

/// State of a training run after a step, a switch and two more steps.
struct healed_run {
  std::vector<float> weights, scales;  ///< at the end
  std::vector<float> maxima, seeded;   ///< maxima before the switch, scales after it
  std::vector<float> gradients;        ///< of the first step after it

  healed_run() = default;
  healed_run(healing_case& c, const nn::recipe& to, nn::scale_handover how, const batch& data,
             nn::communicator& ranks) {
    c.step(data, 0);
    maxima = c.session.observe_maxima(healing_case::inputs(1), data.tokens, data.targets);
    c.session.use(to, how, maxima);
    seeded = c.scales().scale;
    c.step(data, 1);
    gradients = c.session.gradients();
    c.step(data, 2);
    c.session.complete_weights(healing_case::inputs(9));
    weights = c.trained(ranks);
    scales = c.scales().scale;
  }
};

/// Two ranks of one microbatch each, and one rank with both. If maxima are observed, the ranks divide frozen weights,
/// in more layers than buffers.
struct healed_ranks {
  healed_run ranks[2], one;

  healed_ranks(const nn::recipe& to, base kind, nn::scale_handover how, train::shard_level shard = {}) {
    constexpr index_t b = 2, seq = 32;
    const batch data(b * 2, seq, 64, true);
    const std::vector<nn::recipe> recipes = {preset("mxfp4_h16"), to};
    const bool divides = kind != base::trains && how == nn::scale_handover::seed;
    llama::model_config config = small_config(false);
    if (divides) config.num_hidden_layers = 3;
    std::size_t stored[2] = {};
    nn::rank_group group(2);
    nn::run_ranks(group, [&](nn::thread_rank& own) {
      healing_case c(recipes, kind, b, seq, config, &own, 1, divides, shard);
      batch part(b, seq, 64, false);
      std::copy_n(data.tokens.begin() + own.rank() * b * seq, b * seq, part.tokens.begin());
      std::copy_n(data.targets.begin() + own.rank() * b * seq, b * seq, part.targets.begin());
      ranks[own.rank()] = healed_run(c, to, how, part, own);
      stored[own.rank()] = c.session.plan()[category::stash];
    });
    healing_case alone(recipes, kind, b, seq, config, nullptr, 2);
    nn::communicator rank;
    one = healed_run(alone, to, how, data, rank);
    for (const std::size_t part : stored) CHECK((!divides || 3 * part < 2 * alone.session.plan()[category::stash]));
  }
};

TEST_CASE("ranks heal as one does, whatever trains") {
  const auto once_a_step = [](const char* name) {
    nn::recipe r = preset(name);
    r.fp8.reduce_amax = true;
    r.fp8.update = nn::scale_update::step;
    return r;
  };
  nn::recipe longest = once_a_step("fp8_amd");
  longest.name = "fp8, largest of four";
  longest.fp8.algorithm = nn::amax_algorithm::max;
  // mxfp4_w has FP8 in fprop and dgrad.
  for (const nn::recipe& to :
       {preset("bf16"), once_a_step("fp8_amd"), longest, once_a_step("mxfp4_w"), preset("nvfp4")}) {
    for (const base kind : {base::trains, base::frozen, base::adapted}) {
      for (const auto how : {nn::scale_handover::seed, nn::scale_handover::reset}) {
        CAPTURE(to.name);
        CAPTURE(static_cast<int>(kind));
        CAPTURE(to_string(how));
        using level = train::shard_level;
        for (const level shard :
             {level::moments, how == nn::scale_handover::seed ? level::gradients : level::masters}) {
          CAPTURE(to_string(shard));
          const healed_ranks r(to, kind, how, shard);
          for (const healed_run& rank : r.ranks) {
            CHECK(rank.seeded == r.one.seeded);
            CHECK(same_bytes(rank.gradients, r.one.gradients));
            CHECK(same_bytes(rank.weights, r.one.weights));
            CHECK(rank.scales == r.one.scales);
          }
        }
      }
    }
  }
}

TEST_CASE("scales after each micro-batch are those of all ranks, or of each") {
  for (const bool reduce : {true, false}) {
    CAPTURE(reduce);
    nn::recipe to = preset("fp8_amd");
    to.fp8.reduce_amax = reduce;
    const healed_ranks r(to, base::trains, nn::scale_handover::seed);
    const healed_run &a = r.ranks[0], &b = r.ranks[1];
    CHECK(same_bytes(a.weights, b.weights));
    CHECK((a.scales == b.scales) == reduce);
    CHECK((a.seeded == b.seeded) == reduce);
    CHECK(a.maxima != b.maxima);
    for (const healed_run* rank : {&a, &b}) {
      const float amax = reduce ? std::fmax(a.maxima[0], b.maxima[0]) : rank->maxima[0];
      CHECK(rank->seeded[0] == 448.0f / amax);
    }
    // With one rank, the second microbatch uses scales from the first one's maxima.
    CHECK(roundings_apart(to_double(a.gradients), to_double(r.one.gradients)) > 2.0);
  }
}

}  // namespace healing_test
