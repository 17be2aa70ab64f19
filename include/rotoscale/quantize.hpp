// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The fast block quantizer, threaded and equal to quantize_ref by bytes. It handles a register of blocks at a time
// where there is a fast path (quantize_is_fast), and calls the reference otherwise.
#pragma once

#include <atomic>

#include "rotoscale/detail/quantize_part.hpp"
#include "rotoscale/parallel.hpp"
#include "rotoscale/quantize_ref.hpp"

namespace rotoscale {

namespace detail {
inline namespace ROTOSCALE_ISA {

template <class T>
inline constexpr bool lanes_load = std::is_same_v<T, float> || std::is_same_v<T, bf16> || std::is_same_v<T, fp16>;

template <class T>
constexpr bool lanes_take_source(format source) {
  return source == formats::fp32 || source == formats::bf16 || (std::is_same_v<T, fp16> && source == formats::fp16);
}

/// Can the vector path take `f`? Blocks of 32 with E8M0 scales, or NVFP4, each shared by 1, 16 or 32 rows.
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
  if (o.choice == scale_choice::four_over_six || o.choice == scale_choice::eden) return false;
  // Then no step of a floating-point scale yields a NaN or a negative number that is not in the source.
  return f.has_e8m0_scale() || (o.encode_factor >= 0x1p-126f && o.encode_factor <= 0x1p126f);
}

/// Calls body(part) for all parts of an array, of at most `part_rows` × `part_columns` each.
template <class Body>
void for_each_part(thread_pool& pool, index_t rows, index_t columns, index_t part_rows, index_t part_columns,
                   const Body& body) {
  const index_t across = (columns + part_columns - 1) / part_columns;
  pool.for_each((rows + part_rows - 1) / part_rows * across, [&](index_t i) {
    const index_t r = i / across * part_rows, c = i % across * part_columns;
    const index_t r1 = rows - r < part_rows ? rows : r + part_rows;
    body(output_part{r, r1, c, columns - c < part_columns ? columns : c + part_columns});
  });
}

constexpr block_axis other_axis(block_axis axis) {
  return axis == block_axis::row ? block_axis::column : block_axis::row;
}

/// amax of `count` adjacent runs as FP32 bits, ignoring NaN. `at` is the first element; elements of a run are `step`
/// apart, runs are `next` apart.
template <class T>
std::uint32_t runs_amax(const block_options& o, const T* at, index_t step, index_t next, int run, int count) {
  constexpr int most = 32;
  ROTOSCALE_ASSERT(run <= most && count <= most);
  float x[most][most];  // element, run
  for (int i = 0; i < run; ++i) {
    for (int c = 0; c < count; ++c) {
      x[i][c] = source_value(at[i * step + c * next]);
      if (o.source == formats::bf16) {
        std::uint32_t u = fp32_bits(x[i][c]);
        round_to_bf16(u);
        x[i][c] = fp32_from_bits(u);
      } else {
        x[i][c] = round_to_format(o.source, x[i][c]);
      }
    }
  }
  const int points = o.rotation.points;
  for (int i = 0; i < run && points != 0; ++i) {
    for (int c = 0; c < count && o.rotation.negates(i); ++c) x[i][c] = -x[i][c];
  }
  for (int width = 1; width < points; width *= 2) {
    for (int i = 0; i < run; ++i) {
      if ((i & width) != 0) continue;
      for (int c = 0; c < count; ++c) {
        const float a = x[i][c], b = x[i + width][c];
        x[i][c] = a + b;
        x[i + width][c] = a - b;
      }
    }
  }
  const float factor = points == 0 ? 1.0f : hadamard_factor(points);
  std::uint32_t largest = 0;
  for (int i = 0; i < run; ++i) {
    for (int c = 0; c < count; ++c) {
      const std::uint32_t u = fp32_bits(x[i][c] * factor) & fp32_magnitude_mask;
      const std::uint32_t number = u <= fp32_infinity_bits ? u : 0;
      largest = number > largest ? number : largest;
    }
  }
  return largest;
}

}  // namespace ROTOSCALE_ISA
}  // namespace detail

inline namespace ROTOSCALE_ISA {

/// Does quantize have a fast path for these arguments? The fallback, quantize_ref, is many times slower.
template <class T>
bool quantize_is_fast(block_format f, const block_options& o, matrix<T> source) {
  using value = std::remove_const_t<T>;
  return detail::lanes_load<value> && detail::lanes_take_source<value>(o.source) && detail::lanes_take_format(f) &&
         detail::lanes_take_options(f, o) && (source.stride(0) == 1 || source.stride(1) == 1);
}

/// quantize_ref, blocked and threaded; equal by bytes.
template <class T>
void quantize(block_format f, const block_options& o, matrix<T> source, block_axis axis, block_matrix<std::uint8_t> out,
              thread_pool& pool) {
  ROTOSCALE_REQUIRE(quantize_is_defined(f, o, source, axis, out));
  using value = std::remove_const_t<T>;
  if (!quantize_is_fast(f, o, source)) {
    pool.for_each(out.rows / f.rows, [&](index_t tile) { quantize_tile_ref(f, o, source, axis, out, tile, o.random); });
  } else if (source.stride(1) != 1) {  // transpose: columns of the source become rows
    quantize(f, o, transposed(source), detail::other_axis(axis), out, pool);
  } else if constexpr (detail::lanes_load<value>) {
    const detail::output_plan plan = detail::plan_output<value>(f, o, axis, out);
    // Parts are a few long rows, or a strip of columns.
    const bool row = axis == block_axis::row;
    const index_t part_rows = row ? 32 : detail::strip_rows<value>,
                  part_k = row ? 8192 : detail::part_height(source.extent(0) * source.extent(1));
    detail::for_each_part(pool, out.rows, out.k, part_rows, part_k,
                          [&](const detail::output_part& part) { detail::quantize_part<value>(plan, source, part); });
  }
}

/// quantize_ref with the caller's random words, threaded: out.rows × out.k of them, in the order of the result.
template <class T>
void quantize(block_format f, const block_options& o, matrix<T> source, block_axis axis, block_matrix<std::uint8_t> out,
              random_words words, thread_pool& pool) {
  ROTOSCALE_REQUIRE(quantize_is_defined(f, o, source, axis, out));
  pool.for_each(out.rows / f.rows, [&](index_t tile) { quantize_tile_ref(f, o, source, axis, out, tile, words); });
}

/// Quantizes along rows and along columns, as training needs, in one pass over the source. Equal by bytes to two calls
/// of quantize_ref.
template <class T>
void quantize_both(block_format f, const block_options& row_options, block_matrix<std::uint8_t> row_out,
                   const block_options& column_options, block_matrix<std::uint8_t> column_out, matrix<T> source,
                   thread_pool& pool) {
  ROTOSCALE_REQUIRE(quantize_is_defined(f, row_options, source, block_axis::row, row_out));
  ROTOSCALE_REQUIRE(quantize_is_defined(f, column_options, source, block_axis::column, column_out));
  using value = std::remove_const_t<T>;
  const bool fast = quantize_is_fast(f, row_options, source) && quantize_is_fast(f, column_options, source);
  if (!fast || source.stride(1) != 1) {
    quantize(f, row_options, source, block_axis::row, row_out, pool);
    quantize(f, column_options, source, block_axis::column, column_out, pool);
  } else if constexpr (detail::lanes_load<value>) {
    const detail::output_plan rows = detail::plan_output<value>(f, row_options, block_axis::row, row_out);
    const detail::output_plan columns = detail::plan_output<value>(f, column_options, block_axis::column, column_out);
    const index_t part_rows = detail::part_height(source.extent(0) * source.extent(1));
    detail::for_each_part(
        pool, source.extent(0), source.extent(1), part_rows, detail::strip_rows<value>,
        [&](const detail::output_part& part) { detail::quantize_part_both<value>(rows, columns, source, part); });
  }
}

/// tensor_amax, threaded.
template <class T>
float tensor_amax(block_format f, const block_options& o, matrix<T> source, block_axis axis, thread_pool& pool) {
  const int run = run_length(f, o.rotation);
  if (run > 32) return tensor_amax(f, o, source, axis);
  const int along = axis == block_axis::row ? 1 : 0;
  ROTOSCALE_REQUIRE(runs_are_defined(f, o.rotation) && source.extent(along) % run == 0);
  const index_t vectors = source.extent(1 - along), k = source.extent(along);
  std::atomic<std::uint32_t> most{0};
  for_each_chunk(pool, vectors, 32, [&](index_t first, index_t last) {
    std::uint32_t largest = 0;
    for (index_t i = 0; i < k; i += run) {
      const T* at = source.data + first * source.stride(1 - along) + i * source.stride(along);
      const std::uint32_t amax =
          detail::runs_amax(o, at, source.stride(along), source.stride(1 - along), run, static_cast<int>(last - first));
      largest = amax > largest ? amax : largest;
    }
    // Bits of nonnegative numbers are ordered as their values, and a maximum does not depend on its order.
    std::uint32_t before = most.load(std::memory_order_relaxed);
    while (before < largest && !most.compare_exchange_weak(before, largest, std::memory_order_relaxed)) {
    }
  });
  return fp32_from_bits(most.load());
}

}  // namespace ROTOSCALE_ISA

}  // namespace rotoscale
