// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Logits that alias the gradient arena change no bit.
#include <string>
#include <vector>

#include "session_case.hpp"

namespace session_memory_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;
using category = nn::memory_category;

void adapters(llama::session_options& o) {
  llama::lora_config c;
  c.rank = 4;
  o.model.lora = c;
}

/// Results of two steps with an evaluation between them, and the session's memory.
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

TEST_CASE("logits lie where gradients come to be where they fit, and change no bit there") {
  const auto workspace = [](const trained_session& t) { return t.plan[category::workspace]; };
  // Logits of 48 tokens are the largest part of the workspace. In the second shape they exceed all gradients.
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
  const auto lent = train(some, "bf16", true, 3, false), apart = train(some, "bf16", false, 3, false);
  CHECK(same_bytes(lent.gradients, apart.gradients));
  CHECK(workspace(lent) < workspace(apart));
}

}  // namespace session_memory_test
