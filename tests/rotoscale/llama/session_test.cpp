// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Guarantees of a session: planned memory is sufficient, steps are captured once, frozen parameters, masked targets,
// and ranks that give the bits of one rank.
#include "rotoscale/train/session.hpp"

#include "rotoscale/io/scratch.hpp"
#include "rotoscale/nn/cpu/backend.hpp"
#include "rotoscale/nn/thread_ranks.hpp"
#include "rotoscale/train/sliced_checkpoint.hpp"
#include "session_case.hpp"

namespace session_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;
using category = nn::memory_category;

llama::session_options options_for(index_t b, index_t seq) { return session_case::options(b, seq, nullptr); }

/// Stochastic rounding and signs of each step, so that every random word shows.
nn::recipe random_recipe() {
  nn::recipe r = preset("mxfp4_h16_step_signs");
  for (nn::gemm_recipe* g : {&r.fprop, &r.dgrad, &r.wgrad}) g->left.rounding = g->right.rounding = rounding::stochastic;
  return r;
}

bool is_matrix(const llama::parameter& p) { return p.name().find("proj") != std::string::npos; }

TEST_CASE("the plan is what is allocated, once for each category, and no step allocates") {
  const auto ops = nn::make_cpu_backend(1);
  const std::vector<nn::recipe> recipes = {preset("mxfp4_h16"), preset("fp8_delayed"), preset("fp32")};
  const auto config = small_config(false);
  const nn::memory_plan plan = llama::plan_session(*ops, config, options_for(2, 32), recipes);
  CHECK(ops->allocations() == 0);
  llama::session s(*ops, config, options_for(2, 32), recipes);
  CHECK(s.plan().bytes == plan.bytes);
  std::size_t used = 0;
  for (const std::size_t bytes : plan.bytes) used += bytes != 0;
  CHECK(ops->allocations() == used);
  const auto count = ops->allocations();
  s.initialize(1);
  const batch data(2, 32, 64, false);
  for (std::size_t i = 0; i < recipes.size(); ++i) {
    s.use(recipes[i]);
    for (std::uint64_t step = 0; step < 3; ++step) {
      nn::step_inputs inputs;
      inputs.step = step;
      s.train_step(inputs, data.tokens, data.targets);
    }
    s.finish_step();
    s.evaluate({}, data.tokens, data.targets);
    CHECK(s.in_use().fits(plan));
  }
  CHECK(ops->allocations() == count);
  // Categories have their stated contents.
  const std::size_t parameters = static_cast<std::size_t>(s.model().parameters().arena_size()) * sizeof(float);
  CHECK(plan[category::masters] == parameters);
  CHECK(plan[category::gradients] == parameters);
  CHECK(plan[category::moments] == 2 * parameters);
  CHECK(plan[category::quantized] > 0);
  CHECK(plan[category::stash] == 0);
}

TEST_CASE("loss, norm and amaxes of a step come later, by its number, and no step waits for them") {
  struct waiting_backend final : nn::cpu_backend {
    waiting_backend() : cpu_backend(1) {}
    using cpu_backend::synchronize;
    void synchronize(const nn::event& until) override {
      ++waits;
      cpu_backend::synchronize(until);
    }
    int waits = 0;
  };
  struct results {
    nn::step_state state;
    std::vector<float> amaxes;
  };
  for (const auto update : {nn::scale_update::micro_batch, nn::scale_update::step}) {
    nn::recipe r = preset("fp8_amd");
    r.fp8.update = update;
    auto options = options_for(2, 32);
    options.micro_batches = 2;
    const batch data(4, 32, 64, false);
    const auto inputs = [](std::uint64_t step) {
      nn::step_inputs in;
      in.step = step;
      in.learning_rate = 1e-2f;
      return in;
    };
    const auto amaxes = [](const llama::session& s, std::uint64_t number) {
      const auto found = s.amaxes(number);
      return std::vector<float>(found.begin(), found.end());
    };
    std::vector<results> expected;
    waiting_backend first, second;
    llama::session a(first, small_config(false), options, {r}), b(second, small_config(false), options, {r});
    a.initialize(1);
    b.initialize(1);
    for (std::uint64_t step = 0; step < 4; ++step) {
      a.train_step(inputs(step), data.tokens, data.targets);
      expected.push_back({a.finish_step(), amaxes(a, step)});
      CHECK(a.queued_steps() == step + 1);
      // They are the newest entries of the histories.
      const nn::scaling_snapshot now = a.model().scales().save(first, a.queue());
      REQUIRE(expected.back().amaxes.size() == now.scale.size());
      for (std::size_t i = 0; i < now.scale.size(); ++i) {
        CHECK(expected.back().amaxes[i] == now.history[i * static_cast<std::size_t>(r.fp8.history_length)]);
      }
    }
    CHECK(std::count(expected[0].amaxes.begin(), expected[0].amaxes.end(), 0.0f) <
          static_cast<std::ptrdiff_t>(expected[0].amaxes.size()));
    const auto check_step = [&](std::uint64_t number) {
      const nn::step_state found = b.finish_step(number);
      CHECK(found.loss_sum == expected[number].state.loss_sum);
      CHECK(found.gradient_norm == expected[number].state.gradient_norm);
      CHECK(found.inputs.step == number);
      CHECK(same_bytes(amaxes(b, number), expected[number].amaxes));
    };
    const int before = second.waits;
    b.train_step(inputs(0), data.tokens, data.targets);
    b.train_step(inputs(1), data.tokens, data.targets);
    CHECK(second.waits == before);
    check_step(0);
    for (std::uint64_t step = 2; step < 4; ++step) {
      b.train_step(inputs(step), data.tokens, data.targets);
      check_step(step - 1);
    }
    check_step(3);
  }
  session_case plain(small_config(false), preset("mxfp4_h16"), 2, 32);
  plain.step(batch(2, 32, 64, false));
  CHECK(plain.session.amaxes(0).empty());
}

TEST_CASE("layers left in BF16 add as the recipe says of them") {
  const auto config = small_config(false);
  const batch data(2, 32, 64, false);
  nn::recipe all = preset("bf16"), left = preset("mxfp4_h16");
  all.fprop.accumulate = left.bf16_layers.fprop = "hopper-mma-fp16-f32";
  all.dgrad.accumulate = left.bf16_layers.dgrad = "hopper-mma-fp16-f32:split_k=2";
  all.wgrad.accumulate = left.bf16_layers.wgrad = "ampere-mma-fp16-f32";
  all.head = left.head = nn::head_of(all);
  left.bf16_first_layers = config.num_hidden_layers;
  session_case a(config, all, 2, 32), b(config, left, 2, 32);
  a.step(data);
  b.step(data);
  CHECK(same_bytes(a.all(), b.all()));
  CHECK(a.session.model().linears().exempt() == nullptr);
  REQUIRE(b.session.model().linears().exempt() != nullptr);
  CHECK(b.session.model().linears().exempt()->contract(nn::gemm_kind::wgrad).name == "ampere-mma-fp16-f32");
  left.bf16_layers = {};
  session_case chains(config, left, 2, 32);
  chains.step(data);
  CHECK(!same_bytes(b.all(), chains.all()));
}

TEST_CASE("adapters add as the recipe says of them") {
  const auto config = small_config(false);
  const batch data(2, 32, 64, false);
  const auto adapters = [](llama::session_options& o) {
    llama::lora_config c;
    c.rank = 4;
    c.targets = {"q_proj", "down_proj"};
    o.model.lora = c;
  };
  const auto gradients_of = [&](const nn::recipe& r) {
    session_case c(config, r, 2, 32, 1, 3, adapters);
    c.step(data, 0, 1e-2f);  // B is initially zero
    c.step(data, 1);
    const nn::linear* const own = c.session.model().linears().adapter();
    REQUIRE(own != nullptr);
    CHECK(own->contract(nn::gemm_kind::fprop).name == r.adapters.fprop);
    CHECK(own->contract(nn::gemm_kind::dgrad).name == r.adapters.dgrad);
    CHECK(own->contract(nn::gemm_kind::wgrad).name == r.adapters.wgrad);
    return c.all();
  };
  // In FP32, because rounding to BF16 could hide differences. TF32 drops 13 bits of each operand.
  const nn::recipe plain = preset("fp32");
  const auto expected = gradients_of(plain);
  for (std::string nn::accumulate_recipe::*const gemm :
       {&nn::accumulate_recipe::fprop, &nn::accumulate_recipe::dgrad, &nn::accumulate_recipe::wgrad}) {
    nn::recipe r = plain;
    r.adapters.*gemm = "ampere-mma-tf32-f32";
    CHECK(!same_bytes(gradients_of(r), expected));
  }
  session_case none(config, plain, 2, 32);
  CHECK(none.session.model().linears().adapter() == nullptr);
}

TEST_CASE("over budget is refused before anything is allocated, with the plan") {
  const auto ops = nn::make_cpu_backend(1);
  auto options = options_for(2, 32);
  const nn::memory_plan plan = llama::plan_session(*ops, small_config(false), options, {preset("bf16")});
  options.memory_limit = plan.total();
  const llama::session fits(*ops, small_config(false), options, {preset("bf16")});
  const auto count = ops->allocations();
  options.memory_limit = plan.total() - 1;
  try {
    const llama::session s(*ops, small_config(false), options, {preset("bf16")});
    FAIL("not refused");
  } catch (const llama::over_budget& e) {
    CHECK(e.plan().bytes == plan.bytes);
  }
  CHECK(ops->allocations() == count);
}

/// A backend with at most `most` live allocations.
struct small_backend final : nn::cpu_backend {
  small_backend() : cpu_backend(1) {}
  void* allocate(std::size_t bytes, nn::memory_kind kind) override {
    if (held == most) throw std::bad_alloc();
    ++held, ++taken;
    return cpu_backend::allocate(bytes, kind);
  }
  void release(void* memory, nn::memory_kind kind) noexcept override {
    --held;
    cpu_backend::release(memory, kind);
  }
  int held = 0, taken = 0, most = 0;
};

TEST_CASE("memory that the backend does not have: the plan, and what was taken goes back") {
  small_backend ops;
  const auto options = options_for(2, 32);
  const nn::memory_plan plan = llama::plan_session(ops, small_config(false), options, {preset("bf16")});
  std::vector<std::string> said;
  for (;; ++ops.most) {
    try {
      const llama::session s(ops, small_config(false), options, {preset("bf16")});
      break;
    } catch (const llama::out_of_memory& e) {
      CHECK(e.plan().bytes == plan.bytes);
      said.emplace_back(e.what());
    }
    CHECK(ops.held == 0);
  }
  CHECK(ops.held == 0);
  REQUIRE(said.size() > 2);
  CHECK(said[0] == "out of memory at " + std::to_string(plan[category::weights]) + " bytes for weights");
  CHECK(said.back().ends_with(" bytes for transfers"));
}

TEST_CASE("a session that refuses its options after it took memory gives it back") {
  small_backend ops;
  ops.most = static_cast<int>(nn::memory_categories);
  auto options = options_for(1, 32);
  options.model.training = false;
  options.model.cache = 32;
  options.documents = true;
  CHECK_THROWS_AS(llama::session(ops, small_config(false), options, {preset("bf16")}), std::invalid_argument);
  CHECK(ops.taken > 0);
  CHECK(ops.held == 0);
}

TEST_CASE("without a backward pass there are no gradients, moments or masters, and one layer's activations") {
  const auto ops = nn::make_cpu_backend(1);
  auto options = options_for(1, 32);
  options.model.training = false;
  auto deep = small_config(false);
  deep.num_hidden_layers = 6;
  const nn::memory_plan two = llama::plan_session(*ops, small_config(false), options, {preset("mxfp4")});
  const nn::memory_plan six = llama::plan_session(*ops, deep, options, {preset("mxfp4")});
  for (const category c : {category::masters, category::gradients, category::moments}) CHECK(two[c] == 0);
  CHECK(two[category::activations] == six[category::activations]);
  // The same losses as a training session's evaluation, for any previous extents.
  const batch data(1, 32, 64, false);
  session_case training(small_config(false), preset("mxfp4"), 1, 32);
  session_case only(small_config(false), preset("mxfp4"), 1, 64, 1, 3,
                    [](llama::session_options& o) { o.model.training = false; });
  only.session.resize(1, 32);
  CHECK(same_bytes(training.evaluate(data), only.evaluate(data)));
  const auto logits = only.session.logits({}, data.tokens, 31);
  CHECK(logits.size() == 64);
}

TEST_CASE("steps are captured once and still draw new random words, as a session made anew does") {
  const batch data(2, 32, 64, false);
  const nn::recipe r = random_recipe();
  session_case replayed(small_config(false), r, 2, 32);
  std::vector<std::vector<float>> gradients;
  for (std::uint64_t step = 0; step < 3; ++step) {
    replayed.step(data, step);
    gradients.push_back(replayed.all());
    session_case fresh(small_config(false), r, 2, 32);
    fresh.step(data, step);
    CHECK(same_bytes(fresh.all(), gradients.back()));
  }
  CHECK_FALSE(same_bytes(gradients[0], gradients[1]));
  CHECK_FALSE(same_bytes(gradients[1], gradients[2]));
}

TEST_CASE("a moving average of the weights is evaluated without a trace") {
  for (const char* name : {"fp8_delayed", "mxfp4_h16_step_signs"}) {
    const auto ops = nn::make_cpu_backend(1);
    llama::session_options with = options_for(2, 32);
    with.optimizer.average_decay = 0.5f;
    const auto config = small_config(false);
    llama::session s(*ops, config, with, {preset(name)}), plain(*ops, config, options_for(2, 32), {preset(name)});
    llama::session at_average(*ops, config, options_for(2, 32), {preset(name)});
    const batch data(2, 32, 64, false);
    for (llama::session* one : {&s, &plain, &at_average}) one->initialize(1);
    const auto weights = [](const llama::session& from) {
      std::vector<std::vector<float>> all;
      for (std::size_t p = 0; p < from.model().parameters().all().size(); ++p) {
        all.push_back(from.model().values(from.queue(), p));
      }
      return all;
    };
    std::vector<std::vector<float>> average;
    nn::step_inputs inputs;
    inputs.learning_rate = 0.01f;
    for (inputs.step = 0; inputs.step < 12; ++inputs.step) {
      for (llama::session* one : {&s, &plain}) one->train_step(inputs, data.tokens, data.targets);
      const auto now = weights(s);
      CHECK(now == weights(plain));
      const float decay = std::min(0.5f, static_cast<float>(inputs.step) / static_cast<float>(inputs.step + 9));
      if (average.empty()) average = now;
      for (std::size_t p = 0; p < now.size(); ++p) {
        for (std::size_t i = 0; i < now[p].size(); ++i) {
          average[p][i] = std::fma(decay, average[p][i] - now[p][i], now[p][i]);
        }
      }
      nn::step_inputs next = inputs;
      ++next.step;
      std::vector<float> losses;
      s.with_average([&] {
        CHECK(weights(s) == average);
        losses = s.evaluate(next, data.tokens, data.targets);
      });
      CHECK((losses == plain.evaluate(next, data.tokens, data.targets)) == (inputs.step == 0));
      CHECK_THROWS(s.with_average([] { throw std::runtime_error("interrupted"); }));
    }
    if (nn::has_delayed(preset(name))) continue;  // its scales are of another history
    for (std::size_t p = 0; p < average.size(); ++p) at_average.load(p, average[p]);
    std::vector<float> losses;
    s.with_average([&] { losses = s.evaluate(inputs, data.tokens, data.targets); });
    CHECK(losses == at_average.evaluate(inputs, data.tokens, data.targets));
  }
}

TEST_CASE("masked targets count nowhere") {
  // Two sequences with one fully masked equal the other alone.
  const batch one(1, 32, 64, false);
  batch two(2, 32, 64, false);
  std::copy(one.tokens.begin(), one.tokens.end(), two.tokens.begin());
  std::copy(one.targets.begin(), one.targets.end(), two.targets.begin());
  std::fill(two.targets.begin() + 32, two.targets.end(), nn::ignored_target);
  session_case a(small_config(false), preset("fp32"), 1, 32), b(small_config(false), preset("fp32"), 2, 32);
  const nn::step_state x = a.step(one), y = b.step(two);
  CHECK((x.valid_tokens == 32 && y.valid_tokens == 32));
  CHECK(x.loss_sum == y.loss_sum);
  CHECK(same_bytes(a.all(), b.all()));
  // All masked: no parameter changes.
  std::fill(two.targets.begin(), two.targets.end(), nn::ignored_target);
  const nn::step_state none = b.step(two);
  CHECK((none.valid_tokens == 0 && none.mean_loss() == 0.0 && none.gradient_norm == 0.0));
}

TEST_CASE("documents: a document does not see those before it, in any micro-batch, under both contracts") {
  // Windows of 32 tokens: documents of 20 and 12 tokens in the first microbatch, 12 and 20 in the second.
  const auto documents = [](llama::session_options& o) {
    o.documents = true;
    o.micro_batches = 2;
  };
  const batch data(2, 32, 64, false);
  batch other = data;
  for (std::size_t i = 32; i < 44; ++i) other.tokens[i] = (other.tokens[i] + 7) % 64;  // the second's first document
  std::vector<std::int32_t> starts(64, 0);
  std::fill(starts.begin() + 20, starts.begin() + 32, 20);
  std::fill(starts.begin() + 44, starts.end(), 12);
  for (const char* attention : {nn::fp32_attention_contract, "attention-bf16-tile64x64-exp2deg3@hopper-mma-fp16-f32"}) {
    CAPTURE(attention);
    nn::recipe r = preset("fp32");
    r.attention = attention;
    const auto losses = [&](const batch& b, std::span<const std::int32_t> at) {
      session_case c(small_config(false), r, 1, 32, 1, 3, documents);
      CHECK(c.session.model().attention().name == attention);
      c.session.train_step({}, b.tokens, b.targets, at);
      c.session.finish_step();
      const auto all = c.losses();  // of the second microbatch
      return std::vector<float>(all.begin() + 12, all.end());
    };
    CHECK(same_bytes(losses(data, starts), losses(other, starts)));
    CHECK_FALSE(same_bytes(losses(data, {}), losses(other, {})));
    CHECK_FALSE(same_bytes(losses(data, {}), losses(data, starts)));
  }
}

TEST_CASE("frozen parameters: operands only, the same forward pass, the same gradients of the rest") {
  for (const char* name : {"fp32", "bf16", "fp8_delayed", "mxfp4_h16"}) {
    CAPTURE(name);
    const batch data(2, 32, 64, false);
    session_case whole(small_config(false), preset(name), 2, 32);
    session_case frozen(small_config(false), preset(name), 2, 32, 1, 3, [](llama::session_options& o) {
      o.model.trains = [](const llama::parameter& p) { return !is_matrix(p); };
    });
    const nn::step_state a = whole.step(data, 0, 0.01f), b = frozen.step(data, 0, 0.01f);
    CHECK(a.loss_sum == b.loss_sum);
    const auto all = whole.by_name(true);
    const llama::model& m = frozen.session.model();
    for (std::size_t i = 0; i < m.parameters().all().size(); ++i) {
      const llama::parameter& p = m.parameters()[i];
      CHECK(p.trains == !is_matrix(p));
      if (!p.trains) continue;
      CAPTURE(p.name());
      const auto own = m.arena_values(frozen.session.queue(), m.arena().gradient, i);
      CHECK(std::equal(own.begin(), own.end(), all.at(p.name()).begin()));
    }
    const nn::memory_plan &big = whole.session.plan(), &small = frozen.session.plan();
    for (const category c : {category::masters, category::gradients, category::moments}) CHECK(small[c] < big[c] / 2);
    CHECK(small[category::activations] <= big[category::activations]);
    // FP32 values are freed if operands have another format. A recipe of another kind needs them again.
    const std::size_t qkv = m.parameters().find("model.layers.0.self_attn.q_proj.weight");
    if (std::string(name) == "fp32") {
      CHECK_FALSE(m.values(frozen.session.queue(), qkv).empty());
    } else {
      CHECK_THROWS_AS(m.values(frozen.session.queue(), qkv), std::logic_error);
    }
  }
}

TEST_CASE("an update is skipped where loss or norm is not finite") {
  const batch data(1, 32, 64, false);
  session_case c(small_config(false), preset("fp32"), 1, 32);
  const llama::model& m = c.session.model();
  auto gain = m.values(c.session.queue(), m.parameters().find("model.norm.weight"));
  gain[3] = std::numeric_limits<float>::infinity();
  c.session.load(m.parameters().find("model.norm.weight"), gain);
  const auto before = c.all(true);
  const nn::step_state s = c.step(data, 0, 1.0f);
  CHECK_FALSE((std::isfinite(s.loss_sum) && std::isfinite(s.squares)));
  CHECK(same_bytes(before, c.all(true)));
  CHECK(c.session.find_overflow() == &m.parameters()[m.parameters().find("model.norm.weight")]);
}

TEST_CASE("gradients of microbatches are added by the binary tree") {
  constexpr index_t b = 2, seq = 32, leaves = 8;
  const batch data(b * leaves, seq, 64, false);
  const auto of = [&](session_case& c, index_t first, index_t count) {
    batch part(b * count, seq, 64, false);
    std::copy_n(data.tokens.begin() + first * b * seq, part.tokens.size(), part.tokens.begin());
    std::copy_n(data.targets.begin() + first * b * seq, part.targets.size(), part.targets.begin());
    c.step(part);
    return c.all();
  };
  session_case one(small_config(false), preset("fp32"), b, seq);
  std::vector<std::vector<float>> sums;
  for (index_t i = 0; i < leaves; ++i) sums.push_back(of(one, i, 1));
  while (sums.size() > 1) {
    for (std::size_t i = 0; i < sums.size() / 2; ++i) {
      for (std::size_t e = 0; e < sums[0].size(); ++e) sums[i][e] = sums[2 * i][e] + sums[2 * i + 1][e];
    }
    sums.resize(sums.size() / 2);
  }
  for (float& g : sums[0]) g /= leaves;  // of the mean over all tokens
  session_case all(small_config(false), preset("fp32"), b, seq, 1, 3,
                   [](llama::session_options& o) { o.micro_batches = leaves; });
  CHECK(same_bytes(of(all, 0, leaves), sums[0]));
  CHECK(all.session.plan()[category::gradients] == 4 * one.session.plan()[category::gradients]);
}

/// A checkpoint's files after two steps of `leaves` microbatches over some ranks, and the step's results on each.
std::string trained_on_ranks(const llama::model_config& config, const nn::recipe& r, int leaves, int ranks,
                             train::shard_level shard = {}) {
  constexpr index_t b = 2, seq = 32;
  const batch data(b * leaves, seq, 64, true);
  const io::testing::scratch_directory folder;
  std::vector<nn::step_state> states(static_cast<std::size_t>(ranks));
  nn::rank_group group(ranks);
  nn::run_ranks(group, [&](nn::thread_rank& rank) {
    session_case c(
        config, r, b, seq, 1, 3,
        [&](llama::session_options& o) {
          o.micro_batches = leaves / ranks;
          o.shard = shard;
          o.optimizer.clip = 0.5;
          o.optimizer.average_decay = 0.9f;
          o.model.head_chunk = 48;
        },
        &rank);
    const auto part = [&](const std::vector<std::int32_t>& all) {
      std::vector<std::int32_t> own;
      for (int i = 0; i < leaves / ranks; ++i) {
        const auto first = all.begin() + c.session.microbatch(i) * c.session.pass_tokens();
        own.insert(own.end(), first, first + c.session.pass_tokens());
      }
      return own;
    };
    batch own = data;
    own.tokens = part(data.tokens);
    own.targets = part(data.targets);
    c.step(own, 0, 0.01f);
    states[static_cast<std::size_t>(rank.rank())] = c.step(own, 1, 0.01f);
    if (ranks == 1) return train::write_checkpoint(folder / "step", c.session, {});
    train::write_sliced_checkpoint(folder / "step", c.session, rank, {});
  });
  std::string all;
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "config.json", "trainer_state.json"}) {
    all += io::testing::get(folder / "step" / name);
  }
  for (const nn::step_state& s : states) {
    CHECK(s.squares == states[0].squares);
    CHECK(s.loss_sum == states[0].loss_sum);
  }
  return all + std::to_string(states[0].loss_sum) + std::to_string(states[0].valid_tokens);
}

TEST_CASE("any number of ranks that divides the microbatches leaves the bytes of one") {
  nn::recipe narrow = preset("bf16"), fp8 = preset("fp8_amd");
  narrow.activations = nn::operand_format::bf16;
  fp8.fp8.update = nn::scale_update::step;
  fp8.fp8.reduce_amax = true;
  for (const nn::recipe& r :
       {preset("fp32"), preset("bf16"), fp8, preset("mxfp4_h16"), preset("nvfp4"), random_recipe(), narrow}) {
    CAPTURE(r.name);
    const std::string one = trained_on_ranks(small_config(false), r, 8, 1);
    for (const auto& [level, name] : enum_names<train::shard_level>::table) {
      CAPTURE(name);
      for (const int ranks : {2, 4, 8}) CHECK(trained_on_ranks(small_config(false), r, 8, ranks, level) == one);
    }
  }
  // Six leaves: with two ranks, each leaves two nodes to the others.
  const std::string one = trained_on_ranks(small_config(true), random_recipe(), 6, 1);
  for (const auto& [level, name] : enum_names<train::shard_level>::table) {
    for (const int ranks : {2, 3, 6}) {
      CHECK(trained_on_ranks(small_config(true), random_recipe(), 6, ranks, level) == one);
    }
  }
}

}  // namespace session_test
