// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Per-tensor FP8 with a scale from earlier steps (delayed scaling): cast, transposed cast and amax in one launch.
// Codes are encode(element, x * scale). amax is the largest finite |x|. x is the source, rounded to BF16 first if
// requested.
#pragma once

#include "rotoscale/format.hpp"
#include "rotoscale/nn/form_options.hpp"
#include "rotoscale/philox.hpp"
#include "rotoscale/round.hpp"
#include "rotoscale/small_float.hpp"
#include "rotoscale/view.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// Options of the cast.
struct fp8_options {
  format element = formats::e4m3;  ///< E4M3 or E5M2
  format source = formats::bf16;   ///< FP32, or BF16: FP32 sources are rounded to it first, FP16 sources refused
  rotoscale::rounding rounding = rotoscale::rounding::nearest_even;  ///< of elements
  random_stream random = {};  ///< for stochastic rounding: element (r, c) of the M × N source uses word r * N + c
  /// With a state, the words of `draws` in its step replace `random`.
  nn::form_draws draws = {};
  const nn::step_state* state = nullptr;  ///< device memory, or null
};

/// Results in device memory. Null results are not computed.
struct fp8_output {
  std::uint8_t* rows = nullptr;          ///< M × N codes
  std::uint8_t* columns = nullptr;       ///< N × M codes, the transpose
  index_t row_stride = 0;                ///< bytes; 0: dense
  index_t column_stride = 0;             ///< bytes; 0: dense
  float* amax = nullptr;                 ///< updated to max(*amax, amax of the source); must not be negative
  float* factor = nullptr;               ///< set to *scale_inverse, the factor for products of the codes
  const float* scale_inverse = nullptr;  ///< null: 1
};

/// Casts M × N `source` (any strides). `scale` (device memory, finite and positive; null: 1) multiplies every element.
/// Extents are 0 to 2^24. An empty source writes nothing, not even `factor`. One launch on `s`, no allocation. On any
/// status but ok, nothing was launched.
status cast_transpose_fp8(const fp8_options& o, matrix<const float> source, const float* scale, const fp8_output& out,
                          stream s);
/// From FP16.
status cast_transpose_fp8(const fp8_options& o, matrix<const fp16> source, const float* scale, const fp8_output& out,
                          stream s);
/// From BF16.
status cast_transpose_fp8(const fp8_options& o, matrix<const bf16> source, const float* scale, const fp8_output& out,
                          stream s);

}  // namespace rotoscale::gpu
