// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Makes operands that are stored as BF16 of their quantized values (nn/kept_values.hpp), in the source's order.
#pragma once

#include <numeric>

#include "rotoscale/dequantize.hpp"
#include "rotoscale/nn/cpu/quantize.hpp"
#include "rotoscale/nn/kept_values.hpp"

namespace rotoscale::nn::cpu {

namespace detail {

/// Number of each group of `x` (rows × k).
template <class T>
void measure_groups(const value_recipe& v, matrix<T> x, float* numbers, thread_pool& pool) {
  pool.for_each(v.groups, [&](index_t g) {
    const index_t r0 = g / v.across * v.rows, c0 = g % v.across * v.length;
    const index_t r1 = std::min(x.extent(0), r0 + v.rows), c1 = std::min(x.extent(1), c0 + v.length);
    std::uint32_t most = 0;
    for (index_t r = r0; r < r1; ++r) {
      for (index_t c = c0; c < c1; ++c) {
        const std::uint32_t u = (bf16_bits(load_element(x(r, c))) << 16) & fp32_magnitude_mask;
        most = u < fp32_infinity_bits ? std::max(most, u) : most;
      }
    }
    numbers[g] = v.number(fp32_from_bits(most));
  });
}

/// Replaces maxima by 1 for the largest `count` (of equal ones the first), by 0 for others.
inline void mark_outliers(float* maxima, index_t n, index_t count) {
  const scratch_array<index_t> order(n);
  std::iota(order.data(), order.data() + n, index_t{0});
  const auto before = [&](index_t a, index_t b) { return maxima[a] != maxima[b] ? maxima[a] > maxima[b] : a < b; };
  const index_t kept = std::min(count, n);
  std::partial_sort(order.data(), order.data() + kept, order.data() + n, before);
  std::fill(maxima, maxima + n, 0.0f);
  for (index_t i = 0; i < kept; ++i) maxima[order[i]] = 1.0f;
}

/// Calls body(r, c) for all elements of rows × cols.
template <class Body>
void for_each_element(index_t rows, index_t cols, thread_pool& pool, const Body& body) {
  for_each_chunk(pool, rows, 16, [&](index_t first, index_t last) {
    for (index_t r = first; r < last; ++r) {
      for (index_t c = 0; c < cols; ++c) body(r, c);
    }
  });
}

/// Quantizes BF16 values to blocks and back. `values` and `to` are in the source's order.
inline void quantize_and_back(const form_options& form, matrix<const bf16> values, matrix<bf16> to, thread_pool& pool) {
  const block_format f = block_format_of(form.recipe);
  const bool row = form.axis == block_axis::row;
  const index_t rows = values.extent(row ? 0 : 1), k = values.extent(row ? 1 : 0);
  const scratch_array<std::uint8_t> codes(rows * packed_bytes(f.element, k)), scales(rows / f.rows * (k / f.length));
  const auto made = dense_blocks(f, rows, k, codes.data(), scales.data());
  rotoscale::quantize(f, block_options_for(form), values, form.axis, made, pool);
  rotoscale::dequantize(f, block_matrix<const std::uint8_t>(made), form.axis, to, pool);
}

}  // namespace detail

/// Writes the values of a form to `codes`, (rows, cols) of the source.
template <class T>
void fill_values(matrix<const T> source, const form_options& form, std::uint8_t* codes, thread_pool& pool) {
  const index_t rows = source.extent(0), cols = source.extent(1);
  const bool row = form.axis == block_axis::row;
  const value_recipe v = value_recipe_of(form.recipe, row ? rows : cols, row ? cols : rows);
  const scratch_array<float> numbers(v.groups);
  detail::measure_groups(v, row ? source : transposed(source), numbers.data(), pool);
  if (v.kind == value_kind::outlier) detail::mark_outliers(numbers.data(), v.groups, v.outliers);

  const matrix<bf16> to = row_major(reinterpret_cast<bf16*>(codes), rows, cols);
  const auto number = [&](index_t r, index_t c) { return numbers[row ? v.group_of(r, c) : v.group_of(c, r)]; };
  const auto value = [&](index_t r, index_t c) {
    return fp32_from_bits(detail::bf16_bits(load_element(source(r, c))) << 16);
  };
  const auto prepare = [&](const matrix<bf16>& out) {
    detail::for_each_element(rows, cols, pool, [&](index_t r, index_t c) {
      store_element(out(r, c), v.prepared(value(r, c), number(r, c)));
    });
  };
  if (v.kind == value_kind::scaled) return prepare(to);
  const scratch_array<bf16> room(rows * cols);
  const matrix<bf16> values = row_major(room.data(), rows, cols);
  prepare(values);
  detail::quantize_and_back(form, values, to, pool);
  detail::for_each_element(rows, cols, pool, [&](index_t r, index_t c) {
    store_element(to(r, c), v.finished(value(r, c), load_element(to(r, c)), number(r, c)));
  });
}

}  // namespace rotoscale::nn::cpu
