// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Common to the launchers that cast to FP8: checks of options and outputs, and kernel arguments.
#pragma once

#include "gpu/quantize/fp8_tile.hpp"
#include "gpu/quantize/prepare.hpp"

namespace rotoscale::gpu::detail {

/// Checks the options for a source of T.
template <class T>
status check_fp8_options(const fp8_options& o) {
  if (o.element != formats::e4m3 && o.element != formats::e5m2) {
    return {error_code::bad_option, "o.element", "must be e4m3 or e5m2"};
  }
  if (o.source != formats::fp32 && (o.source != formats::bf16 || std::is_same_v<T, fp16>)) {
    return {error_code::bad_option, "o.source", "must be fp32, or bf16 where the source is not FP16"};
  }
  return {};
}
inline status check_fp8_scale(const float* scale) { return check_optional(scale, "scale"); }

/// Checks the outputs and replaces strides of 0 by dense ones.
inline status prepare_fp8_output(const fp8_output& out, index_t m, index_t n, fp8_output& to) {
  if (out.rows == nullptr && out.columns == nullptr && out.amax == nullptr) {
    return {error_code::bad_pointer, "out.rows", "must not be null where out.columns and out.amax are"};
  }
  to = out;
  if (to.row_stride == 0) to.row_stride = n;
  if (to.column_stride == 0) to.column_stride = m;
  if (to.row_stride < n) return {error_code::bad_extent, "out.row_stride", "must not be less than a row"};
  if (to.column_stride < m) return {error_code::bad_extent, "out.column_stride", "must not be less than a row"};
  if (status s = check_optional(out.factor, "out.factor"); !s.ok()) return s;
  return check_optional(out.amax, "out.amax");
}

/// True if the rows of both orientations begin at multiples of 16 bytes.
inline bool has_vectors(const fp8_output& out) {
  const auto aligned = [](const void* pointer, index_t stride) {
    return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0 && (pointer == nullptr || stride % 16 == 0);
  };
  return aligned(out.rows, out.row_stride) && aligned(out.columns, out.column_stride);
}

inline fp8_cast make_fp8_cast(const fp8_options& o, const float* scale) {
  return {scale, o.source == formats::bf16, o.rounding, o.random, o.draws, o.state};
}

/// Counts the tiles of rows × columns.
inline status count_fp8_tiles(index_t rows, index_t columns, unsigned& across, unsigned& tiles) {
  const auto of = [](index_t extent) { return static_cast<std::uint64_t>((extent + fp8_tile - 1) / fp8_tile); };
  const std::uint64_t count = of(rows) * of(columns);
  if (count > 0x7FFFFFFFu) return {error_code::bad_extent, "source", "has more than 2^31 tiles"};
  across = static_cast<unsigned>(of(columns));
  tiles = static_cast<unsigned>(count);
  return {};
}

}  // namespace rotoscale::gpu::detail
