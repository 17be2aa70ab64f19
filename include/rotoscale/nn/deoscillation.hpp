// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Weight de-oscillation: tracks the movement of weights and of their quantized values in a window of optimizer steps
// (AMD-AGI/Primus, weight_deosc.py).
#pragma once

#include "rotoscale/config.hpp"
#include "rotoscale/nn/math.hpp"

namespace rotoscale::nn {

/// State of n weights. A weight whose `last` is 0 is not tracked yet: its next movement does not count.
struct oscillation_state {
  float* last = nullptr;             ///< weights after the last step
  float* last_quantized = nullptr;   ///< their quantized values
  float* moved = nullptr;            ///< sum of |w - last| in this window
  float* moved_quantized = nullptr;  ///< the same of quantized values
};

/// Parameters of one step.
struct deoscillation_step {
  float ratio = 3.0f;   ///< least ratio at which a weight is set to its quantized value
  bool closes = false;  ///< the window ends

  /// Tracks weight i, whose quantized value is q.
  ROTOSCALE_HD void apply(float& w, float q, const oscillation_state& s, index_t i) const {
    if (s.last[i] != 0.0f) {
      s.moved[i] += magnitude(w - s.last[i]);
      s.moved_quantized[i] += magnitude(q - s.last_quantized[i]);
    }
    if (closes && s.moved[i] > 0.0f && s.moved_quantized[i] / at_least(s.moved[i], 1e-12f) >= ratio) w = q;
    s.last[i] = w;
    s.last_quantized[i] = q;
    if (closes) s.moved[i] = s.moved_quantized[i] = 0.0f;
  }

 private:
  ROTOSCALE_HD static float magnitude(float x) { return x < 0.0f ? -x : x; }
  ROTOSCALE_HD static float at_least(float x, float least) { return x < least ? least : x; }
};

}  // namespace rotoscale::nn
