// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What a session takes of its backend is its plan, category by category: behind steps, evaluations, switches of recipe
// and snapshots as well, and the steps use what they were given up to the end.
#include <string>
#include <vector>

#include "rotoscale/nn/cpu/backend.hpp"
#include "session_case.hpp"

namespace session_memory_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;
using category = nn::memory_category;

namespace {

/// Knows what was allocated and not yet released.
struct counting_backend final : nn::cpu_backend {
  struct allocation {
    void* memory;
    std::size_t bytes;
    nn::memory_kind kind;
  };
  counting_backend() : cpu_backend(2) {}
  void* allocate(std::size_t bytes, nn::memory_kind kind) override {
    void* const memory = cpu_backend::allocate(bytes, kind);
    held.push_back({memory, bytes, kind});
    return memory;
  }
  void release(void* memory, nn::memory_kind kind) noexcept override {
    std::erase_if(held, [&](const allocation& a) { return a.memory == memory && a.kind == kind; });
    cpu_backend::release(memory, kind);
  }
  std::vector<allocation> held;
};

/// The allocations are those of the categories, in their order, but for the snapshot, which may come last.
void check_allocations(const counting_backend& ops, const nn::memory_plan& plan) {
  nn::memory_plan found;
  for (const counting_backend::allocation& a : ops.held) {
    bool is_known = false;
    for (const auto& [c, name] : enum_names<category>::table) {
      if (is_known || found[c] != 0 || plan[c] != a.bytes || nn::kind_of(c) != a.kind) continue;
      found[c] = a.bytes;
      is_known = true;
    }
    CAPTURE(a.bytes);
    CHECK(is_known);
  }
  for (const auto& entry : enum_names<category>::table) {
    CAPTURE(entry.name);
    CHECK(found[entry.value] == plan[entry.value]);
  }
}

struct memory_case {
  const char* what;
  std::vector<std::string> recipes;
  void (*change)(llama::session_options&);
};

void nothing(llama::session_options&) {}
void adapters(llama::session_options& o) {
  llama::lora_config c;
  c.rank = 4;
  o.model.lora = c;
}
void adapters_and_snapshot(llama::session_options& o) {
  adapters(o);
  o.snapshot = llama::snapshot_use::required;
}
void snapshot(llama::session_options& o) { o.snapshot = llama::snapshot_use::required; }
void snapshot_that_fits(llama::session_options& o) { o.snapshot = llama::snapshot_use::if_it_fits; }
void observed(llama::session_options& o) { o.model.statistics = true; }
void recomputed(llama::session_options& o) { o.model.recompute = llama::recompute_part::layer; }
void made_again(llama::session_options& o) { o.model.recompute = llama::recompute_part::elementwise; }
void micro_batches(llama::session_options& o) { o.micro_batches = 3; }

const memory_case cases[] = {
    {"fp32", {"fp32"}, nothing},
    {"bf16", {"bf16"}, nothing},
    {"fp8", {"fp8_amd"}, nothing},
    {"nvfp4", {"nvfp4"}, nothing},
    {"healing", {"mxfp4_h16", "fp8_amd"}, nothing},
    {"adapters", {"mxfp4_h16"}, adapters},
    {"adapters with healing", {"mxfp4_h16", "fp8_amd"}, adapters},
    {"adapters with healing and snapshots", {"mxfp4_h16", "fp8_amd", "bf16"}, adapters_and_snapshot},
    {"snapshots", {"mxfp4_h16"}, snapshot},
    {"snapshots where they fit", {"fp8_amd"}, snapshot_that_fits},
    {"statistics", {"mxfp4_h16"}, observed},
    {"recomputed layers", {"bf16"}, recomputed},
    {"norms and SwiGLU again", {"bf16"}, made_again},
    {"micro-batches", {"mxfp8"}, micro_batches},
};

}  // namespace

TEST_CASE("what a session has allocated is its plan, before steps and behind them") {
  for (const memory_case& which : cases) {
    for (const auto activations : {nn::operand_format::fp32, nn::operand_format::bf16}) {
      CAPTURE(which.what);
      CAPTURE(to_string(activations));
      std::vector<nn::recipe> recipes;
      for (const std::string& name : which.recipes) recipes.push_back(preset(name));
      for (nn::recipe& r : recipes) r.activations = activations;
      const auto options = session_case::options(2, 32, which.change);
      counting_backend ops;
      const nn::memory_plan plan = llama::plan_session(ops, small_config(false), options, recipes);
      CHECK(ops.held.empty());
      {
        llama::session s(ops, small_config(false), options, recipes);
        CHECK(s.plan().bytes == plan.bytes);
        CHECK((plan[category::snapshot] != 0) == (options.snapshot != llama::snapshot_use::none));
        CHECK((plan[category::stash] != 0) == (options.model.lora.has_value() && recipes.size() > 1));
        CHECK(plan[category::transfers] > 0);
        check_allocations(ops, plan);
        s.set_inputs({});
        s.initialize(1);
        const batch data(2 * options.micro_batches, 32, 64, false);
        const batch one(2, 32, 64, false);
        std::uint64_t number = 0;
        for (const nn::recipe& r : recipes) {
          if (number != 0) s.use(r);
          for (int i = 0; i < 3; ++i) {
            nn::step_inputs inputs;
            inputs.step = number++;
            inputs.learning_rate = 1e-3f;
            s.train_step(inputs, data.tokens, data.targets, {}, options.model.statistics);
            CHECK(s.finish_step().nonfinite == 0);
            if (s.has_snapshot()) s.take_snapshot();
          }
          s.evaluate({}, one.tokens, one.targets);
          CHECK(s.in_use().fits(plan));
          check_allocations(ops, plan);
        }
        s.finish_snapshot();
      }
      CHECK(ops.held.empty());
    }
  }
}

TEST_CASE("no category of a plan is more than its session uses under some recipe") {
  for (const memory_case& which : cases) {
    CAPTURE(which.what);
    std::vector<nn::recipe> recipes;
    for (const std::string& name : which.recipes) recipes.push_back(preset(name));
    const auto options = session_case::options(2, 32, which.change);
    counting_backend ops;
    llama::session s(ops, small_config(false), options, recipes);
    s.set_inputs({});
    s.initialize(1);
    nn::memory_plan most = s.in_use();
    for (std::size_t i = 1; i < recipes.size(); ++i) {
      s.use(recipes[i]);
      most.cover(s.in_use());
    }
    CHECK(most.bytes == s.plan().bytes);
  }
}

namespace {

/// Everything that two steps with an evaluation between them leave, and what the session took.
struct trained_session {
  std::vector<float> weights, gradients, losses;
  std::vector<llama::linear_statistics> statistics;
  nn::memory_plan plan;
};
trained_session train(const llama::model_config& config, const std::string& recipe, bool lends, int micro_batches,
                      bool lora) {
  session_case c(config, preset(recipe), 2, 32, 2, 3, [&](llama::session_options& o) {
    o.model.lends_gradients = lends;
    o.model.statistics = true;
    o.model.head_chunk = 48;
    o.micro_batches = micro_batches;
    if (lora) adapters(o);
  });
  const batch data(2 * micro_batches, 32, 64, true), other(2, 32, 64, false);
  trained_session t;
  for (std::uint64_t step = 0; step < 2; ++step) {
    c.session.train_step(c.inputs(step, 1e-3f), data.tokens, data.targets, {}, true);
    CHECK(c.session.finish_step().nonfinite == 0);
    t.gradients = c.session.gradients();
    t.statistics.assign(c.session.statistics().begin(), c.session.statistics().end());
    t.losses = c.evaluate(other);
  }
  t.weights = c.all(true);
  t.plan = c.session.plan();
  return t;
}

}  // namespace

TEST_CASE("logits lie where gradients come to be where a step is one pass and they fit, and change no bit there") {
  const auto workspace = [](const trained_session& t) { return t.plan[category::workspace]; };
  // Logits of 48 tokens are the largest part of the workspace; in the second shape they are more than all gradients.
  llama::model_config some = small_config(false), wide = some;
  some.vocab_size = 512;
  wide.vocab_size = 2048;
  wide.hidden_size = wide.intermediate_size = 32;
  for (const bool tied : {false, true}) {
    some.tie_word_embeddings = wide.tie_word_embeddings = tied;
    CAPTURE(tied);
    for (const std::string recipe : {"bf16", "mxfp4_h16", "fp8_amd"}) {
      CAPTURE(recipe);
      const auto lent = train(some, recipe, true, 1, false), apart = train(some, recipe, false, 1, false);
      CHECK(same_bytes(lent.weights, apart.weights));
      CHECK(same_bytes(lent.gradients, apart.gradients));
      CHECK(same_bytes(lent.losses, apart.losses));
      CHECK(same_bytes(lent.statistics, apart.statistics));
      CHECK(workspace(lent) < workspace(apart));
    }
    CHECK(workspace(train(wide, "bf16", true, 1, false)) == workspace(train(wide, "bf16", false, 1, false)));
    const auto adapted = [&](bool lends) { return workspace(train(some, "bf16", lends, 1, true)); };
    CHECK(adapted(true) == adapted(false));
  }
  // The second pass's logits would lie on the first one's gradients.
  const auto lent = train(some, "bf16", true, 2, false), apart = train(some, "bf16", false, 2, false);
  CHECK(same_bytes(lent.gradients, apart.gradients));
  CHECK(workspace(lent) == workspace(apart));
}

}  // namespace session_memory_test
