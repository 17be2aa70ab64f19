// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The fast block quantizer, equal to quantize_ref by bytes: sixteen blocks at a time where there is a fast path
// (quantize_is_fast), else the reference; threaded.
#pragma once

#include "rotoscale/detail/quantize_panel.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale {

namespace detail {

/// Is an array of T, rounded to `source` first, FP32 or BF16 bits? `round` tells whether that rounding does anything.
template <class T>
constexpr bool lanes_take_source(format source, bool& round) {
  round = false;
  if constexpr (std::is_same_v<T, float>) {
    round = source == formats::bf16;
    return round || source == formats::fp32;
  } else if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, fp16>) {
    round = source == formats::bf16 && !std::is_same_v<T, bf16>;
    return round || source == formats::fp32 || source == T::format;
  }
  return false;
}

/// Blocks of 32 with E8M0 scales, or NVFP4; shared by one row or by all rows of one or two groups of lanes.
constexpr bool lanes_take_format(block_format f) {
  if (f.rows != 1 && f.rows != 16 && f.rows != 32) return false;
  if (f.length == 16) return f.element == formats::e2m1 && f.scale == formats::ue4m3;
  const bool element = f.element == formats::e2m1 || f.element == formats::e2m3 || f.element == formats::e3m2 ||
                       f.element == formats::e4m3 || f.element == formats::e5m2 || f.element == formats::int8;
  return f.length == 32 && f.has_e8m0_scale() && element;
}

constexpr bool lanes_take_options(block_format f, const block_options& o) {
  if (o.rotation.points != 0 && o.rotation.points != 16 && !(o.rotation.points == 32 && f.length == 32)) return false;
  if (o.rounding != rounding::nearest_even && o.rounding != rounding::stochastic) return false;
  // Then no step of a floating-point scale meets a NaN or a negative number that is not in the source.
  return f.has_e8m0_scale() || (o.encode_factor >= 0x1p-126f && o.encode_factor <= 0x1p126f);
}

/// Output rows and elements of a task: enough tasks to share out, each with whole strips and panels, few enough bytes
/// that a core's second-level cache holds the source for quantize_both.
inline constexpr index_t part_side = 256;

/// Calls body(part) for all parts of `out`, `elements` of each row at a time.
template <class Body>
void for_each_part(thread_pool& pool, index_t rows, index_t k, index_t part_rows, index_t part_k, const Body& body) {
  const index_t across = (k + part_k - 1) / part_k;
  pool.for_each((rows + part_rows - 1) / part_rows * across, [&](index_t i) {
    const index_t v = i / across * part_rows, e = i % across * part_k;
    body(output_part{v, rows - v < part_rows ? rows : v + part_rows, e, k - e < part_k ? k : e + part_k});
  });
}

}  // namespace detail

/// Does quantize have a fast path for these? If not, it takes quantize_ref's way, many times slower.
template <class T>
bool quantize_is_fast(block_format f, const block_options& o, matrix<T> source) {
  bool round = false;
  return detail::lanes_take_source<std::remove_const_t<T>>(o.source, round) && detail::lanes_take_format(f) &&
         detail::lanes_take_options(f, o) && (source.stride(0) == 1 || source.stride(1) == 1);
}

/// quantize_ref, blocked and threaded.
template <class T>
void quantize(block_format f, const block_options& o, matrix<T> source, block_axis axis, block_matrix<std::uint8_t> out,
              thread_pool& pool) {
  ROTOSCALE_ASSERT(quantize_is_defined(f, o, source, axis, out));
  if (!quantize_is_fast(f, o, source)) {
    pool.for_each(out.rows / f.rows, [&](index_t tile) { quantize_tile_ref(f, o, source, axis, out, tile); });
    return;
  }
  if (source.stride(1) != 1) {  // columns of a transposed view are rows
    const auto other = axis == block_axis::row ? block_axis::column : block_axis::row;
    return quantize(f, o, transposed(source), other, out, pool);
  }
  bool round = false;
  detail::lanes_take_source<std::remove_const_t<T>>(o.source, round);
  const detail::tile_plan plan = detail::plan_tiles(f, o, round);
  const bool rows = axis == block_axis::row;
  // A few groups of long rows, or strips of columns that go on downwards.
  const index_t part_rows = rows ? 32 : 256, part_k = rows ? 8192 : 2048;
  detail::for_each_part(pool, out.rows, out.k, part_rows, part_k, [&](const detail::output_part& part) {
    detail::quantize_part<std::remove_const_t<T>>(plan, source, axis, out, part);
  });
}

}  // namespace rotoscale
