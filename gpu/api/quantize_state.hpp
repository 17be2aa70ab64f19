// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What quantizing by the step's state needs on a device: delayed scaling, random words and signs, and BF16 copies. Each
// is one launch on `s`, takes device memory and allocates nothing; any status but ok: nothing was launched.
#pragma once

#include "rotoscale/nn/form_options.hpp"
#include "rotoscale/small_float.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// Delayed scaling: moves each tensor's amax into its history and computes its next scale, largest / amax * 2^-margin
/// (`rule` says of which amax), and its inverse. The recorded amax is zero then.
status update_scales(const nn::scaling_state& state, const nn::delayed_scaling& rule, stream s);

/// *to = `options` with the random words and signs that `draws` gives for the state's step; a null state: step 0, seed
/// 0.
status draw_options(const block_options& options, const nn::form_draws& draws, const nn::step_state* state,
                    block_options* to, stream s);

/// M × N FP32 `source` (contiguous rows) as BF16, dense, to nearest even; NaN becomes the canonical one of its sign.
status round_bf16(matrix<const float> source, bf16* to, stream s);

}  // namespace rotoscale::gpu
