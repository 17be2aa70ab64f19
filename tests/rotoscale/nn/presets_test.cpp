// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Every preset (recipe or schedule) trains: a tiny model learns a periodic sequence, for any storage type and head
// format, and through every switch.
#include "rotoscale/nn/presets.hpp"

#include "../llama/session_case.hpp"
#include "rotoscale/train/recipe_fit.hpp"
#include "rotoscale/train/schedule.hpp"
#include "rotoscale/train/session.hpp"
#include "rotoscale/train/trigger.hpp"

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

double mean(const std::vector<float>& losses) {
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
}

/// Phases of a run of 20 steps. A trigger that measures every 50 steps measures every second one, and accepts any
/// noise.
std::vector<nn::resolved_phase> short_phases(const nn::schedule& s, nn::operand_format stored) {
  auto phases = llama::resolve(s, steps, s.name);
  for (nn::resolved_phase& p : phases) {
    p.recipe.activations = stored;
    check_that_it_fits(p.recipe);
    if (p.trigger && p.trigger->kind == nn::trigger_kind::gradient_noise) p.trigger->every = 2, p.trigger->ratio = 1e9;
  }
  return phases;
}

/// The same through all phases, as in the trainer. Loss on other text rises during training, so the plateau trigger
/// fires. Adapters alone learn less.
void check_that_it_heals(const nn::schedule& s, nn::operand_format stored, bool adapted) {
  const auto phases = short_phases(s, stored);
  std::vector<nn::recipe> recipes;
  for (const nn::resolved_phase& p : phases) recipes.push_back(p.recipe);
  const nn::recipe plain = llama::noise_reference(recipes[0]);
  recipes.insert(recipes.begin() + 1, {plain, recipes[0]});  // there and back: the frozen base stays quantized for both
  session_case c(tiny_config(), recipes, 2, 32, 1, 3, [&](llama::session_options& o) {
    if (adapted) o.model.lora = llama::lora_config{};
  });
  const batch data = learnable(), other(2, 32, 64, false);
  llama::trigger_state seen;
  std::size_t at = 0;
  std::int64_t entered = 0;
  double first = 0, last = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    const nn::resolved_phase* next = at + 1 < phases.size() ? &phases[at + 1] : nullptr;
    const nn::step_inputs inputs = c.inputs(static_cast<std::uint64_t>(step), 0.01f);
    if (next != nullptr && (seen.fired || step >= next->from_step)) {
      const double before = mean(c.evaluate(data));
      std::vector<float> maxima;
      if (next->scales == nn::scale_handover::seed) {
        maxima = c.session.observe_maxima(inputs, data.tokens, data.targets);
      }
      c.session.use(next->recipe, next->scales, maxima, next->gemms);
      CHECK(std::fabs(mean(c.evaluate(data)) - before) < 0.2);  // the weights are the same
      seen = {};
      entered = step;
      next = ++at + 1 < phases.size() ? &phases[at + 1] : nullptr;
    }
    const bool noise = next != nullptr && next->trigger && llama::measures_noise(*next->trigger, step, entered);
    std::vector<float> reference;
    if (noise) reference = c.session.gradients_under(plain, inputs, data.tokens, data.targets);
    (step == 0 ? first : last) = checked_loss(c.step(data, static_cast<std::uint64_t>(step), 0.01f));
    if (noise) {
      llama::observe(*next->trigger, llama::gradient_to_noise(nn::compare(c.session.gradients(), reference)), seen);
    }
    if (next != nullptr && next->trigger && next->trigger->kind == nn::trigger_kind::plateau) {
      llama::observe(*next->trigger, mean(c.evaluate(other)), seen);
    }
  }
  CHECK(at + 1 == phases.size());
  CHECK(last < (adapted ? 0.999 : 0.5) * first);
}

TEST_CASE("every preset trains 20 steps") {
  for (nn::recipe preset : nn::presets::all()) {
    preset.activations = nn::operand_format::bf16;
    CAPTURE(preset.name);
    check_that_it_trains(preset);
  }
}

TEST_CASE("every schedule trains 20 steps through all its switches") {
  for (const nn::schedule& s : nn::presets::schedules()) {
    CAPTURE(s.name);
    check_that_it_heals(s, nn::operand_format::bf16, false);
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
  TEST_CASE("every schedule, storage, with all weights or adapters, trains 20 steps") {
    for (const nn::schedule& s : nn::presets::schedules()) {
      for (const auto stored : {nn::operand_format::fp32, nn::operand_format::bf16}) {
        for (const bool adapted : {false, true}) {
          CAPTURE(s.name);
          CAPTURE(adapted);
          check_that_it_heals(s, stored, adapted);
        }
      }
    }
  }
}

}  // namespace presets_test
