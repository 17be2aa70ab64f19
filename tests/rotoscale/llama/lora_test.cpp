// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters beside a frozen model: gradients against the double-precision model, what is quantized and how
// often, masks that whoever asks again gets again, ranks that give the bits of one, memory.
#include "rotoscale/llama/lora.hpp"

#include <thread>

#include "oracle/reference_llama.hpp"
#include "rotoscale/nn/cpu/backend.hpp"
#include "rotoscale/nn/thread_ranks.hpp"
#include "session_case.hpp"

using namespace rotoscale;
using namespace rotoscale::testing;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;
namespace oracle = rotoscale::oracle;
using category = nn::memory_category;

namespace {

const std::vector<std::string> split_targets = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                "gate_proj", "up_proj", "down_proj"};
const std::vector<std::string> fused_targets = {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"};

llama::lora_config adapters(int rank, double dropout, std::vector<std::string> targets) {
  llama::lora_config c;
  c.rank = rank;
  c.alpha = 12.0;
  c.dropout = dropout;
  c.targets = std::move(targets);
  return c;
}

std::function<void(llama::session_options&)> with(const llama::lora_config& c) {
  return [c](llama::session_options& o) { o.model.lora = c; };
}

/// B of every adapter, which begins at 0, from a seed.
void fill_b(session_case& c) {
  const llama::model& m = c.session.model();
  for (std::size_t i = m.parameters().base_count(); i < m.parameters().all().size(); ++i) {
    const llama::parameter& p = m.parameters()[i];
    if (p.kind != llama::parameter_kind::adapter_b) continue;
    std::vector<float> b(static_cast<std::size_t>(p.size()));
    const random_stream random{21, i};
    for (std::size_t j = 0; j < b.size(); ++j) b[j] = (random.word(j) * 0x1p-32f - 0.5f) * 0.4f;
    c.session.load(i, b);
  }
}

/// Counts what a quantization is asked for.
class counting_backend final : public nn::cpu_backend {
 public:
  using nn::cpu_backend::cpu_backend;
  struct counts {
    int calls = 0, rows = 0, columns = 0;
  };
  /// By tensor and format.
  std::map<std::pair<nn::tensor_role, nn::operand_format>, counts> seen;

  void quantize(nn::queue q, nn::const_tensor_view source, const nn::quantize_target& to,
                const nn::step_state* state) override {
    counts& c = seen[{to.set->request().tensor, to.set->request().row->format}];
    ++c.calls;
    c.rows += to.row;
    c.columns += to.column;
    nn::cpu_backend::quantize(q, source, to, state);
  }
};

}  // namespace

TEST_CASE("adapters that begin at B = 0 leave the bytes of the base, whatever the recipe") {
  const batch data(2, 32, 64, true);
  for (const char* name : {"fp32", "bf16", "fp8_delayed", "mxfp4_h16", "mxfp4_h16_fixed_signs"}) {
    for (const auto stored : {nn::operand_format::fp32, nn::operand_format::bf16}) {
      CAPTURE(name);
      nn::recipe r = preset(name);
      r.activations = stored;
      session_case base(small_config(false), r, 2, 32);
      session_case adapted(small_config(false), r, 2, 32, 1, 3, with(adapters(4, 0.1, split_targets)));
      CHECK(same_bytes(base.evaluate(data), adapted.evaluate(data)));
      const nn::step_state a = base.step(data), b = adapted.step(data);
      CHECK(a.loss_sum == b.loss_sum);
      // A's gradient is B's share of it, 0; B's is not.
      const llama::model& m = adapted.session.model();
      for (std::size_t i = m.parameters().base_count(); i < m.parameters().all().size(); ++i) {
        const auto g = m.arena_values(adapted.session.queue(), m.arena().gradient, i);
        const bool zero = std::all_of(g.begin(), g.end(), [](float x) { return x == 0.0f; });
        CHECK(zero == (m.parameters()[i].kind == llama::parameter_kind::adapter_a));
      }
    }
  }
}

TEST_CASE("the base is quantized once, in both orientations, and no column copy of x or dy is made for it") {
  counting_backend ops(1);
  const auto config = small_config(false);
  llama::session_options o = session_case::options(2, 32, with(adapters(4, 0.1, fused_targets)));
  o.micro_batches = 2;
  llama::session s(ops, config, o, {preset("mxfp4_h16")});
  s.initialize(3);
  const batch data(4, 32, 64, false), held_out(2, 32, 64, false);
  for (std::uint64_t step = 0; step < 3; ++step) {
    nn::step_inputs inputs;
    inputs.step = step;
    inputs.learning_rate = 0.01f;
    s.train_step(inputs, data.tokens, data.targets);
    s.finish_step();
    s.evaluate(inputs, held_out.tokens, held_out.targets);
  }
  const int layers = 4 * config.num_hidden_layers, passes = 3 * 2, evaluations = 3;
  const auto& w = ops.seen.at({nn::tensor_role::w, nn::operand_format::mxfp4});
  CHECK((w.calls == layers && w.rows == layers && w.columns == layers));
  const auto& x = ops.seen.at({nn::tensor_role::x, nn::operand_format::mxfp4});
  CHECK((x.calls == layers * (passes + evaluations) && x.columns == 0));
  const auto& dy = ops.seen.at({nn::tensor_role::dy, nn::operand_format::mxfp4});
  CHECK((dy.calls == layers * passes && dy.columns == 0));
  // Nor is there room for one: the operands of the frozen linear layers were laid out without.
  const nn::memory_plan frozen = s.in_use();
  o.model.trains = [](const llama::parameter&) { return true; };
  const nn::memory_plan whole = llama::plan_session(ops, config, o, {preset("mxfp4_h16")});
  CHECK(frozen[category::activations] < whole[category::activations]);
}

TEST_CASE("the plan shows base, adapters and moments apart") {
  const auto ops = nn::make_cpu_backend(1);
  const auto config = small_config(false);
  const auto base = llama::plan_session(*ops, config, session_case::options(2, 32, nullptr), {preset("mxfp4_h16")});
  const auto plan = llama::plan_session(
      *ops, config, session_case::options(2, 32, with(adapters(8, 0.1, fused_targets))), {preset("mxfp4_h16")});
  CHECK(plan[category::quantized] == base[category::quantized]);
  CHECK(base[category::adapters] == 0);
  const llama::parameter_list list(config, nullptr, adapters(8, 0.1, fused_targets));
  index_t elements = 0;
  for (std::size_t i = list.base_count(); i < list.all().size(); ++i) elements += list[i].size();
  CHECK(list.trained_count() == elements);
  CHECK(plan[category::adapters] >= static_cast<std::size_t>(elements) * 2);  // BF16, both forms read the same codes
  CHECK(plan[category::masters] == static_cast<std::size_t>(list.arena_size()) * 4);
  CHECK(plan[category::moments] == static_cast<std::size_t>(list.arena_size()) * 8);
}

TEST_CASE("ranks of one micro-batch each are one rank of as many micro-batches, masks included") {
  for (const char* name : {"fp32", "mxfp4_h16", "mxfp4_h16_fixed_signs"}) {
    for (const int ranks : {2, 4}) {
      CAPTURE(name);
      CAPTURE(ranks);
      constexpr index_t b = 2, seq = 32;
      const batch data(b * ranks, seq, 64, true);
      const nn::recipe r = preset(name);
      const auto lora = adapters(4, 0.3, split_targets);
      const auto train = [&](session_case& c, const std::vector<std::int32_t>& tokens,
                             const std::vector<std::int32_t>& targets) {
        fill_b(c);
        for (std::uint64_t step = 0; step < 2; ++step) {
          batch own = data;
          own.tokens = tokens;
          own.targets = targets;
          c.step(own, step, 0.01f);
        }
        return c.all(true);
      };
      session_case one(small_config(false), r, b, seq, 1, 3, [&](llama::session_options& o) {
        o.model.lora = lora;
        o.micro_batches = ranks;
      });
      const auto want = train(one, data.tokens, data.targets);
      nn::rank_group group(ranks);
      std::vector<std::vector<float>> weights(static_cast<std::size_t>(ranks));
      std::vector<std::thread> threads;
      for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
          nn::thread_rank own(group, rank);
          session_case c(small_config(false), r, b, seq, 1, 3, with(lora), &own);
          const auto part = [&](const std::vector<std::int32_t>& all) {
            const auto n = static_cast<std::ptrdiff_t>(b * seq);
            return std::vector<std::int32_t>(all.begin() + rank * n, all.begin() + (rank + 1) * n);
          };
          weights[static_cast<std::size_t>(rank)] = train(c, part(data.tokens), part(data.targets));
        });
      }
      for (std::thread& t : threads) t.join();
      for (const auto& own : weights) CHECK(same_bytes(own, want));
    }
  }
}

TEST_CASE("signs of each step need weights of each step") {
  const auto ops = nn::make_cpu_backend(1);
  const auto options = session_case::options(2, 32, with(adapters(4, 0.1, fused_targets)));
  CHECK_THROWS_WITH_AS(llama::plan_session(*ops, small_config(false), options, {preset("mxfp4_h16_step_signs")}),
                       "recipe mxfp4_h16_step_signs: model.layers.0.self_attn.q_proj.weight is frozen and quantized once: "
                       "its signs cannot be drawn anew each step",
                       std::invalid_argument);
}
