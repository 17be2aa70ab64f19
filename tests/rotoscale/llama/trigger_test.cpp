// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Triggers: when they measure and fire, their earliest possible step, and triggers that can never fire.
#include "rotoscale/train/trigger.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <limits>

#include "rotoscale/io/json.hpp"
#include "rotoscale/train/schedule.hpp"

namespace trigger_test {

using namespace rotoscale;
namespace train = rotoscale::train;
namespace nn = rotoscale::nn;

nn::trigger plateau(int patience, double min_delta = 0.0) { return {nn::trigger_kind::plateau, patience, min_delta}; }
nn::trigger noise(int patience, double ratio, std::int64_t every) {
  return {nn::trigger_kind::gradient_noise, patience, 0.0, ratio, every};
}
/// Number of measurements until it fires; 0: never.
int fires_after(const nn::trigger& t, const std::vector<double>& values) {
  train::trigger_state s;
  for (std::size_t i = 0; i < values.size(); ++i) {
    train::observe(t, values[i], s);
    if (s.fired) return static_cast<int>(i) + 1;
  }
  return 0;
}
std::vector<nn::resolved_phase> phases_of(const nn::trigger& t, std::int64_t steps, double at = 0,
                                          const char* first = "mxfp4_h16") {
  return train::resolve({"s", {{first}, {"fp8_amd", at, 0, nn::gemm_scope::all, nn::scale_handover::reset, t}}}, steps,
                        "s");
}
train::measurement_times every(std::int64_t steps) { return {steps, 1, 0, true}; }
std::string fault(const nn::trigger& t, std::int64_t steps, std::int64_t eval_every, double at = 0,
                  const char* first = "mxfp4_h16") {
  return train::find_trigger_fault(phases_of(t, steps, at, first), {steps, every(eval_every)}).value_or("");
}

TEST_CASE("a plateau: so many losses in a row that are not below the best by min_delta") {
  CHECK(fires_after(plateau(2), {3, 2, 2, 2}) == 4);
  CHECK(fires_after(plateau(2), {3, 2, 2, 1.9, 1.9, 1.9}) == 6);
  CHECK(fires_after(plateau(1), {3, 3}) == 2);
  CHECK(fires_after(plateau(2), {3, 2.9, 2.8, 2.7, 2.6}) == 0);
  CHECK(fires_after(plateau(2, 0.25), {3, 2.9, 2.8, 2.7}) == 3);  // against the best, not the loss before
  CHECK(fires_after(plateau(2, 0.1), {3, 2.95, 2.89, 2.88, 2.87}) == 5);
  CHECK(fires_after(plateau(2), {3, std::nan(""), std::nan("")}) == 3);
}

TEST_CASE("gradient noise: so many ratios in a row below the line") {
  CHECK(fires_after(noise(2, 1.7, 5), {3, 1.6, 1.6}) == 3);
  CHECK(fires_after(noise(2, 1.7, 5), {1.6, 1.8, 1.6, 1.5}) == 4);
  CHECK(fires_after(noise(1, 1.7, 5), {1.7}) == 0);
  CHECK(nn::trigger{}.ratio == doctest::Approx(std::sqrt(3.0)));
  const std::vector<float> g = {3, 4}, reference = {3, 0}, none = {0, 0};
  CHECK(train::gradient_to_noise(nn::compare(g, reference)) == 3.0 / 4.0);
  CHECK(std::isinf(train::gradient_to_noise(nn::compare(g, g))));
  CHECK(train::gradient_to_noise(nn::compare(g, none)) == 0);  // noise only
  CHECK(nn::compare(g, reference).cosine() == 3.0 / 5.0);
}

TEST_CASE("a trigger that has fired has fired; its state reads back") {
  train::trigger_state s;
  for (const double x : {3.0, 3.0, 1.0}) train::observe(plateau(1), x, s);
  CHECK((s.fired && s.best == 3.0 && s.value == 3.0 && s.measurements == 2));
  train::observe(noise(9, 1, 1), std::numeric_limits<double>::infinity(), s = {});
  train::trigger_state read;
  io::from_json(io::to_json(s), read, "s");
  CHECK((read.value == s.value && read.measurements == 1 && read.count == 0));
}

TEST_CASE("times of measurements by steps and by sequences, counted one after another") {
  const train::measurement_times by_steps = every(4);
  CHECK((by_steps.includes(0) && by_steps.includes(4) && !by_steps.includes(5) && by_steps.includes(8)));
  for (const auto& [units, per_step, skipped] : {std::array<std::int64_t, 3>{1, 1, 0},
                                                 {3, 1, 0},
                                                 {384, 8, 3},
                                                 {16, 2, 2},
                                                 {7, 2, 0},
                                                 {5, 5, 0},
                                                 {5, 7, 0},
                                                 {5, 7, 4},
                                                 {3, 50, 9},
                                                 {50, 3, 1}}) {
    const train::measurement_times times{units, per_step, skipped};
    CHECK_FALSE(times.includes(0));
    std::vector<std::int64_t> found;  // as a run would count its sequences
    for (std::int64_t step = 1; step <= 1000; ++step) {
      const std::int64_t before = (step - 1) * per_step / units, now = step * per_step / units;
      const bool expected = now > before && now > skipped;
      CHECK(times.includes(step) == expected);
      if (expected) found.push_back(step);
    }
    for (std::int64_t first = 1; first <= 200; ++first) {
      const auto begin = std::lower_bound(found.begin(), found.end(), first);
      for (std::ptrdiff_t n = 1; n <= 4 && n <= found.end() - begin; ++n) CHECK(times.nth(first, n) == begin[n - 1]);
    }
  }
  const train::measurement_times never{1'000'000'000'000, 1, 32'000'002};
  CHECK(never.nth(1, 1) == std::numeric_limits<std::int64_t>::max());
}

TEST_CASE("the earliest step is the one of a run that shows it in every measurement") {
  for (const std::int64_t steps : {1, 3, 50}) {
    for (const std::int64_t entered : {0, 1, 49, 50, 51}) {
      for (const std::int64_t not_before : {0, 1, 2, 60}) {
        for (const int patience : {1, 3}) {
          nn::trigger t = noise(patience, 1.0, steps), p = plateau(patience);
          t.not_before = p.not_before = not_before;
          train::trigger_state s, q;
          std::int64_t noise_step = 0, plateau_step = 0;
          for (std::int64_t done = entered; noise_step == 0 || plateau_step == 0; ++done) {
            if (train::measures_noise(t, done, entered)) train::observe(t, 0.5, s);
            const bool evaluated = (done + 1) % steps == 0 && train::observes(p, done + 1, entered);
            if (evaluated) train::observe(p, 2.0, q);
            if (s.fired && noise_step == 0) noise_step = done + 1;
            if (q.fired && plateau_step == 0) plateau_step = done + 1;
          }
          CHECK(train::earliest(t, entered, every(1000)) == noise_step);
          CHECK(train::earliest(p, entered, every(steps)) == plateau_step);
        }
      }
    }
  }
}

TEST_CASE("a trigger that can never fire is refused by the field that prevents it") {
  CHECK(fault(plateau(3), 201, 50) == "");
  CHECK(fault(plateau(3), 200, 50) ==
        "phases[1].trigger.patience: never fires, since 3 measurements, one every 50 steps, end at step 200 and the "
        "phase before it ends at step 200");
  CHECK(fault(noise(3, 1, 50), 151, 1) == "");
  CHECK(fault(noise(3, 1, 50), 150, 1).starts_with("phases[1].trigger.patience: never fires"));
  CHECK(fault(plateau(3), 1000, 50, 0.2).starts_with("phases[1].trigger.patience: never fires"));  // the latest step
  CHECK(fault(plateau(3), 1000, 50, 0.201) == "");
  CHECK(fault(noise(1, 0, 5), 100, 5).starts_with("phases[1].trigger.ratio: never fires"));
  CHECK(fault(noise(1, -1, 5), 100, 5).starts_with("phases[1].trigger.ratio"));
  CHECK(fault(noise(1, 1, 5), 100, 5, 0, "bf16").starts_with("phases[1].trigger.kind: never fires, since recipe bf16"));
  CHECK(fault(noise(1, 1, 101), 100, 5).find("never fires") != std::string::npos);
  CHECK(fault(noise(1, 1, 0), 100, 5) == "phases[1].trigger.every: must be at least 1");
  CHECK(fault(plateau(0), 100, 5) == "phases[1].trigger.patience: must be at least 1");
  CHECK(fault(plateau(1, -0.1), 100, 5) == "phases[1].trigger.min_delta: must not be negative");
  nn::trigger late = plateau(1);
  late.not_before = 95;
  CHECK(fault(late, 100, 5).starts_with("phases[1].trigger.patience: never fires"));
  late.not_before = std::int64_t{1} << 62;
  CHECK(fault(late, 100, 5).find("never fires") != std::string::npos);
  late.not_before = -1;
  CHECK(fault(late, 100, 5) == "phases[1].trigger.not_before: must not be negative");
  // The second trigger measures from the first one's earliest step on.
  const nn::schedule two{"two", {{"mxfp4"}, {"fp8_amd", 0, 0, {}, {}, plateau(1)}, {"bf16", 0, 0, {}, {}, plateau(1)}}};
  const auto fault_of = [&](std::int64_t steps) {
    return train::find_trigger_fault(train::resolve(two, steps, "two"), {steps, every(5)}).value_or("");
  };
  CHECK(fault_of(21) == "");
  CHECK(fault_of(20).starts_with("phases[2].trigger.patience"));
}

TEST_CASE("a plateau is measured when the run is evaluated") {
  const auto phases = phases_of(plateau(1), 100);
  const auto fault_of = [&](const train::measurement_times& evaluations) {
    return train::find_trigger_fault(phases, {100, evaluations}).value_or("");
  };
  CHECK(fault_of({98, 2}) == "");  // after steps 49 and 98
  CHECK(
      fault_of({100, 2}) ==  // after 50 and 100
      "phases[1].trigger.patience: never fires, since 1 measurements, one every 100 sequences (2 a step), end at step "
      "100 and the phase before it ends at step 100");
  CHECK(fault_of({66, 2, 0}) == "");  // after 33, 66 and 99
  CHECK(fault_of({66, 2, 1}) == "");  // after 66 and 99
  CHECK(fault_of({66, 2, 2}).find("66 sequences (2 a step, the first 2 times left out), end after the run and") !=
        std::string::npos);
}

}  // namespace trigger_test
