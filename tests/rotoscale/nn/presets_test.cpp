// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Every preset trains: a tiny model learns a sequence that repeats, whatever is stored between operations and whatever
// the head is made of.
#include "rotoscale/nn/presets.hpp"

#include "../llama/session_case.hpp"
#include "rotoscale/llama/recipe_fit.hpp"
#include "rotoscale/nn/recipe_faults.hpp"

using namespace rotoscale;
using namespace rotoscale::testing;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;

namespace {

/// 20 steps on one batch of a sequence of period 7 at least halve the mean loss.
void check_that_it_trains(const nn::recipe& r) {
  auto config = small_config(false);
  config.initializer_range = 0.02;
  REQUIRE(find_fault(r).value_or("none") == "none");
  REQUIRE(llama::find_block_fault(config, r, {64, 2048, true}).value_or("none") == "none");
  session_case c(config, r, 2, 32, 2);
  batch data(2, 32, 64, false);
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    data.tokens[i] = static_cast<std::int32_t>(i % 32 % 7);
    data.targets[i] = static_cast<std::int32_t>((i % 32 + 1) % 7);
  }
  double first = 0, last = 0;
  for (std::uint64_t step = 0; step < 20; ++step) {
    const nn::step_state s = c.step(data, step, 0.01f);
    REQUIRE(std::isfinite(s.mean_loss()));
    REQUIRE(std::isfinite(s.gradient_norm));
    (step == 0 ? first : last) = s.mean_loss();
  }
  CHECK(first == doctest::Approx(std::log(64.0)).epsilon(0.02));  // weights of 0.02: nothing is known yet
  CHECK(last < 0.5 * first);
}

}  // namespace

TEST_CASE("every preset trains 20 steps") {
  for (nn::recipe preset : nn::presets::all()) {
    preset.activations = nn::operand_format::bf16;
    CAPTURE(preset.name);
    check_that_it_trains(preset);
  }
}

TEST_SUITE("slow") {
  TEST_CASE("every preset, storage, head and backward override trains 20 steps") {
    for (const nn::recipe& preset : nn::presets::all()) {
      for (const auto stored : {nn::operand_format::fp32, nn::operand_format::bf16}) {
        for (const bool own_head : {false, true}) {
          for (const auto backward : {nn::backward_kind::none, nn::backward_kind::high_precision}) {
            nn::recipe r = override_backward(preset, backward);
            r.activations = stored;
            if (own_head) r.head = preset;
            CAPTURE(r.name);
            CAPTURE(own_head);
            check_that_it_trains(r);
          }
        }
      }
    }
  }
}
