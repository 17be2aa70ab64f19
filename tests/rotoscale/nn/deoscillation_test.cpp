// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Weight de-oscillation in a training run against sums in double precision over the oracle's quantized values, and
// across a checkpoint.
#include "rotoscale/nn/deoscillation.hpp"

#include "../llama/session_case.hpp"
#include "oracle/block_oracle.hpp"
#include "rotoscale/io/scratch.hpp"
#include "rotoscale/train/checkpoint.hpp"

namespace deoscillation_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;

nn::recipe watched() {
  nn::recipe r = preset("mxfp4_deoscillated");
  r.deoscillation = nn::deoscillation_recipe{1, 3, 3.0};
  return r;
}

/// MXFP4 in blocks of 32 × 32, as values.
std::vector<double> quantized(const std::vector<float>& w, index_t rows, index_t cols) {
  const format e2m1{2, 1, 1, true, specials::none}, e8m0{8, 0, 127, false, specials::nan_only, false, false};
  block_options o;
  o.source = {8, 7, 127};
  o.rule = scale_rule::even;
  o.policy = policies::te_rocm;
  const oracle::block_quantizer quantize({e2m1, 32, e8m0, 32}, o);
  const auto made =
      quantize({w.begin(), w.end()}, static_cast<std::size_t>(rows), static_cast<std::size_t>(cols), block_axis::row);
  std::vector<double> values;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const auto r = i / static_cast<std::size_t>(cols), c = i % static_cast<std::size_t>(cols);
    values.push_back(static_cast<double>(
        quantize.value(made.elements[i], made.scales[r / 32 * (static_cast<std::size_t>(cols) / 32) + c / 32])));
  }
  return values;
}

std::vector<float> weight(session_case& c, std::size_t number) {
  return c.session.model().values(c.session.queue(), number);
}

TEST_CASE("a window's end sets the weights whose quantized values moved more than they did") {
  session_case c(small_config(false), watched(), 2, 32);
  const batch data(2, 32, 64, false);
  const std::size_t number = c.session.model().parameters().find("model.layers.0.mlp.down_proj.weight"),
                    head = c.session.model().parameters().find("lm_head.weight");
  const llama::parameter& p = c.session.model().parameters()[number];
  c.step(data, 0, 0.01f);
  std::vector<std::vector<float>> before;  // weights after 1, 2, 3, 4 updates
  for (std::uint64_t step = 1; step < 5; ++step) {
    before.push_back(weight(c, number));
    if (step == 4) break;
    c.step(data, step, 0.01f);
  }
  const std::vector<float> of_head = weight(c, head);
  c.step(data, 4);  // ends the window; a rate of 0 updates nothing
  const std::vector<float> after = weight(c, number);
  CHECK(same_bytes(of_head, weight(c, head)));  // BF16

  std::vector<std::vector<double>> q;
  for (const auto& w : before) q.push_back(quantized(w, p.rows, p.cols));
  std::size_t set = 0, kept = 0, unclear = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    double moved = 0, moved_quantized = 0;
    for (std::size_t t = 1; t < before.size(); ++t) {
      moved += std::fabs(static_cast<double>(before[t][i]) - static_cast<double>(before[t - 1][i]));
      moved_quantized += std::fabs(q[t][i] - q[t - 1][i]);
    }
    const double ratio = moved_quantized / moved;
    if (std::fabs(ratio - 3.0) < 1e-5) {
      ++unclear;
      continue;
    }
    const double want = ratio > 3.0 ? q.back()[i] : static_cast<double>(before.back()[i]);
    CHECK(static_cast<double>(after[i]) == want);
    (ratio > 3.0 ? set : kept) += 1;
  }
  CHECK(set > 20);
  CHECK(kept > set);
  CHECK(unclear < 3);
}

TEST_CASE("its state goes through a checkpoint, and another recipe forgets it") {
  const io::testing::scratch_directory scratch;
  const batch data(2, 32, 64, false);
  session_case through(small_config(false), std::vector<nn::recipe>{watched(), preset("bf16")}, 2, 32),
      resumed(small_config(false), watched(), 2, 32), plain(small_config(false), preset("mxfp4_deoscillated"), 2, 32);
  for (std::uint64_t step = 0; step < 8; ++step) {
    if (step == 3) {
      llama::write_checkpoint(scratch / "a", through.session, {{"step", 3}});
      llama::read_checkpoint(scratch / "a", resumed.session, true);
      session_case untracked(small_config(false), preset("mxfp4"), 2, 32),
          forked(small_config(false), watched(), 2, 32);
      llama::write_checkpoint(scratch / "b", untracked.session, {{"step", 3}});
      CHECK_NOTHROW(llama::read_checkpoint(scratch / "b", forked.session, true));
    }
    through.step(data, step, 0.01f);
    plain.step(data, step, 0.01f);
    if (step >= 3) resumed.step(data, step, 0.01f);
  }
  CHECK(same_bytes(through.all(true), resumed.all(true)));
  CHECK_FALSE(same_bytes(through.all(true), plain.all(true)));
  const auto moved = [&] {
    const llama::model& m = through.session.model();
    return m.arena_values(through.session.queue(), m.arena().last,
                          m.parameters().find("model.layers.0.mlp.down_proj.weight"));
  };
  const auto tracked = moved();
  CHECK(std::any_of(tracked.begin(), tracked.end(), [](float x) { return x != 0.0f; }));
  through.session.use(preset("bf16"));
  through.step(data, 8);
  const auto forgotten = moved();
  CHECK(std::all_of(forgotten.begin(), forgotten.end(), [](float x) { return x == 0.0f; }));
}

}  // namespace deoscillation_test
