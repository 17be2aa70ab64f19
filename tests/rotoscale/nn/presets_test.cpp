// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Every recipe trains: a tiny model learns a periodic sequence, for any storage type and head format. mini_llama.py
// trains every schedule.
#include "rotoscale/nn/presets.hpp"

#include "../llama/session_case.hpp"
#include "rotoscale/nn/recipe_faults.hpp"
#include "rotoscale/train/recipe_fit.hpp"
#include "rotoscale/train/session.hpp"

namespace presets_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;

constexpr std::int64_t steps = 20;

llama::model_config tiny_config() {
  auto config = small_config(false);
  config.initializer_range = 0.02;
  return config;
}
void check_that_it_fits(const nn::recipe& r) {
  REQUIRE(find_fault(r).value_or("none") == "none");
  REQUIRE(llama::find_block_fault(tiny_config(), r, {64, 2048, true}).value_or("none") == "none");
}
/// A sequence of period 7.
batch learnable() {
  batch data(2, 32, 64, false);
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    data.tokens[i] = static_cast<std::int32_t>(i % 32 % 7);
    data.targets[i] = static_cast<std::int32_t>((i % 32 + 1) % 7);
  }
  return data;
}
double checked_loss(const nn::step_state& s) {
  REQUIRE(std::isfinite(s.mean_loss()));
  REQUIRE(std::isfinite(s.gradient_norm));
  return s.mean_loss();
}

/// 20 steps on one batch at least halve the mean loss.
void check_that_it_trains(const nn::recipe& r) {
  check_that_it_fits(r);
  session_case c(tiny_config(), r, 2, 32);
  const batch data = learnable();
  double first = 0, last = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    (step == 0 ? first : last) = checked_loss(c.step(data, step, 0.01f));
  }
  CHECK(first == doctest::Approx(std::log(64.0)).epsilon(0.02));  // weights of 0.02: untrained
  CHECK(last < 0.5 * first);
}

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
          for (const auto backward :
               {nn::backward_kind::none, nn::backward_kind::high_precision, nn::backward_kind::dequantized}) {
            nn::recipe r = override_backward(preset, backward);
            r.activations = stored;
            if (own_head) r.head = preset;
            CAPTURE(r.name);
            CAPTURE(own_head);
            CAPTURE(to_string(backward));
            check_that_it_trains(r);
          }
        }
      }
    }
  }
}

}  // namespace presets_test
