// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Steps over random tokens before a run, as MLPerf's rules allow before the clock starts. A device then compiles,
// allocates and tunes before first use. The run itself equals a run without such steps by bytes.
#pragma once

#include <functional>

#include "rotoscale/train/session.hpp"

namespace rotoscale::train {

/// Options of a synthetic warm-up.
struct warm_up_options {
  int steps = 0;                        ///< 0: none
  nn::recipe recipe;                    ///< one of the session's
  std::uint64_t seed = 0;               ///< seed of tokens and roundings
  float learning_rate = 1e-3f;          ///< constant; no update is kept
  std::function<void()> before_step{};  ///< may throw; then only reset() is allowed
};

/// Trains `o.steps` steps on random tokens, then resets model, optimizer, scales, random state and quantized weights to
/// a new session's under `run`. `load` sets every parameter, adapters and frozen ones included: it is called before and
/// after.
inline void warm_up(session& s, const warm_up_options& o, const nn::recipe& run,
                    const std::function<void(session&)>& load) {
  if (o.steps > 0) {
    s.use(o.recipe);
    load(s);
    const auto n = static_cast<std::size_t>(s.step_tokens());
    std::vector<std::int32_t> numbers(2 * n);
    for (int step = 0; step < o.steps; ++step) {
      if (o.before_step) o.before_step();
      const auto count = static_cast<std::uint64_t>(step);
      const random_stream random = nn::stream_for(o.seed, nn::random_purpose::synthetic_tokens, count);
      const auto vocabulary = static_cast<std::uint32_t>(s.model().shape().vocabulary);
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] = static_cast<std::int32_t>(random.word(i) % vocabulary);
      }
      nn::step_inputs inputs;
      inputs.seed = o.seed;
      inputs.step = count;
      inputs.learning_rate = o.learning_rate;
      s.train_step(inputs, std::span(numbers).first(n), std::span(numbers).last(n));
      s.finish_step();
    }
    s.reset(run);
  }
  load(s);
}

}  // namespace rotoscale::train
