// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Device operations of quantized training other than the quantizers: scales of FP8 tensors, BF16 copies, gradients of
// quantized weights.
// Each is one launch on `s`, takes device memory and allocates nothing. On any status but ok, nothing was launched.
#pragma once

#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/nn/operation_arguments.hpp"
#include "rotoscale/small_float.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// Delayed scaling, per tensor: moves amax into the history, computes the next scale, largest / amax * 2^-margin, and
/// its inverse, and resets amax. `rule` selects the amax from the history.
status update_scales(const nn::scaling_state& state, const nn::delayed_scaling& rule, stream s);

/// nn::current_fp8_scale of *amax for elements of `element`, and its inverse.
status current_scale(const float* amax, const format& element, float* scale, float* scale_inverse, stream s);

/// Writes M × N FP32 `source` (contiguous rows) as dense BF16, rounded to nearest even. NaN becomes the canonical NaN
/// of its sign.
status round_bf16(matrix<const float> source, bf16* to, stream s);

/// Multiplies the gradient of a weight, dense rows × k, by nn::dge_slope of its elements. `w` has blocks; `values` are
/// its dense FP32 values.
status estimate_gradient(const gemm_operand& w, const float* values, float* gradient, stream s);

}  // namespace rotoscale::gpu
