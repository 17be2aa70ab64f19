// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Kernels of gpu/api/statistics.hpp. Sixteen lanes process a row of an operand or a chunk of a gradient; a 16-point
// rotation is a butterfly across them. One more block reduces the rows.
#pragma once

#include "gpu/gemm/simt.hpp"
#include "gpu/nn/rows.hpp"
#include "gpu/nn/tree_sum.hpp"
#include "rotoscale/nn/form_options.hpp"
#include "rotoscale/nn/statistics.hpp"

namespace rotoscale::gpu {

inline constexpr unsigned observed_rows = row_threads / 16;  ///< rows per block

/// Counts and maxima of one row of an operand.
struct observed_row {
  std::uint32_t nonzero = 0, flushed = 0, saturated = 0, nonfinite = 0;
  std::uint32_t amax = 0, rotated_amax = 0;  ///< bits
  std::int32_t spread = -1;                  ///< binades; -1: no block with a finite nonzero number
  std::int32_t reserved = 0;
};

struct observe_args {
  simt_operand stored;
  const void* source = nullptr;
  index_t row_step = 0, k_step = 0;  ///< elements of the source
  unsigned rows = 0, k = 0, block = 0;
  float largest = 0.0f;  ///< largest number of the element's format
  int points = 0;
  unsigned run = 0;  ///< elements per mask of signs
  nn::form_draws draws;
  const nn::step_state* state = nullptr;
  double *signal = nullptr, *noise = nullptr;  ///< one per row
  observed_row* found = nullptr;
  nn::operand_statistics* to = nullptr;
};

/// Rotates 16 * Count neighbouring elements by 16 points or more. Each of 16 lanes holds elements lane + 16 h. Bit i of
/// `signs` negates element i of a run.
template <unsigned Count, std::size_t Words>
__device__ inline void rotate_across_lanes(float (&x)[Count], unsigned lane, unsigned points, unsigned run,
                                           const std::uint32_t (&signs)[Words]) {
  ROTOSCALE_UNROLL
  for (unsigned h = 0; h < Count; ++h) {
    const unsigned i = (16 * h + lane) % run;
    x[h] = fp32_from_bits(fp32_bits(x[h]) ^ (signs[i / 32] >> (i % 32) & 1u) << 31);
    x[h] = subgroup_butterflies(x[h], lane, 16);
  }
  lane_butterflies(x, 16, points);
  const float factor = hadamard_factor(static_cast<int>(points));
  ROTOSCALE_UNROLL
  for (unsigned h = 0; h < Count; ++h) x[h] = canonical_nan(x[h] * factor);
}

/// floor(log2(x)) for finite x > 0.
__device__ inline int binade_of(float x) {
  const std::uint32_t bits = fp32_bits(x), field = bits >> 23;
  if (field != 0) return static_cast<int>(field) - 127;
  int binade = -149;
  for (std::uint32_t m = bits; m > 1; m >>= 1) ++binade;
  return binade;
}

/// Range of the scales of nonzero blocks, in binades.
struct observed_scales {
  std::uint32_t least = 0xFFFFFFFFu, most = 0;  ///< binades + 256; initially empty

  __device__ void add(float scale) {
    if (!(scale > 0.0f)) return;
    const auto binade = static_cast<std::uint32_t>(binade_of(scale) + 256);
    least = binade < least ? binade : least;
    most = binade > most ? binade : most;
  }
  __device__ std::int32_t spread() const {
    const std::uint32_t high = subgroup_max<16>(most), low = ~subgroup_max<16>(~least);
    return low > high ? -1 : static_cast<std::int32_t>(high - low);
  }
};

/// A lane's sums and counts along a row.
struct observed_lane {
  double signal = 0.0, noise = 0.0;
  observed_row row;

  __device__ static std::uint32_t finite_magnitude(float x) {
    const std::uint32_t m = fp32_bits(x) & fp32_magnitude_mask;
    return m < fp32_infinity_bits ? m : 0;
  }
  __device__ void add(float reference, float stored, float largest) {
    const bool finite = nn::is_finite(reference) && nn::is_finite(stored);
    const float x = finite ? reference : 0.0f, error = finite ? x - stored : 0.0f;
    signal += static_cast<double>(x) * static_cast<double>(x);
    noise += static_cast<double>(error) * static_cast<double>(error);
    row.nonfinite += !finite;
    row.nonzero += x != 0.0f;
    row.flushed += finite && x != 0.0f && stored == 0.0f;
    row.saturated += x > largest || -x > largest;
    const std::uint32_t m = finite_magnitude(x);
    row.rotated_amax = m > row.rotated_amax ? m : row.rotated_amax;
  }
  /// Combines the sixteen lanes of a row.
  __device__ observed_row fold(const observed_scales& scales) {
    signal = subgroup_sum<16>(signal);
    noise = subgroup_sum<16>(noise);
    observed_row all;
    all.nonzero = subgroup_sum<16>(row.nonzero);
    all.flushed = subgroup_sum<16>(row.flushed);
    all.saturated = subgroup_sum<16>(row.saturated);
    all.nonfinite = subgroup_sum<16>(row.nonfinite);
    all.amax = subgroup_max<16>(row.amax);
    all.rotated_amax = subgroup_max<16>(row.rotated_amax);
    all.spread = scales.spread();
    return all;
  }
};

/// Sixteen lanes per row, Count elements per lane and step: two, or eight for rotations of more than 32 points. All
/// lanes take part in all steps, because they exchange values.
template <class T, unsigned Count>
__global__ void __launch_bounds__(row_threads) observe_kernel(const ROTOSCALE_GRID_CONSTANT observe_args a) {
  constexpr unsigned step = 16 * Count;
  const unsigned lane = thread_index().x % 16, row = block_index().x * observed_rows + thread_index().x / 16;
  const bool is_row = row < a.rows;
  const nn::step_state none;
  std::uint32_t signs[Count == 2 ? 1 : Count / 2] = {};
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < Count / 2; ++i) {
    if (a.points != 0) signs[i] = a.draws.mask(a.state != nullptr ? *a.state : none, static_cast<int>(i));
  }
  const float factor = a.stored.factor != nullptr ? *a.stored.factor : 1.0f;
  const T* const source = static_cast<const T*>(a.source) + row * a.row_step;
  const auto r = static_cast<int>(row);
  observed_lane mine;
  observed_scales scales;
  std::uint32_t filled = 0;  // bit b: block b of 32 has a nonzero element
  for (unsigned first = 0; first < a.k; first += step) {
    float x[Count];
    ROTOSCALE_UNROLL
    for (unsigned h = 0; h < Count; ++h) {
      const unsigned c = first + 16 * h + lane;
      x[h] = is_row && c < a.k ? widened(source[c * a.k_step]) : 0.0f;
      const std::uint32_t magnitude = observed_lane::finite_magnitude(x[h]);
      mine.row.amax = magnitude > mine.row.amax ? magnitude : mine.row.amax;
    }
    if (a.points != 0) rotate_across_lanes(x, lane, static_cast<unsigned>(a.points), a.run, signs);
    ROTOSCALE_UNROLL
    for (unsigned h = 0; h < Count; ++h) {
      const unsigned c = first + 16 * h + lane;
      if (!is_row || c >= a.k) continue;
      const auto k = static_cast<int>(c);
      const float stored = rounded_product(simt_value(a.stored, r, k), factor);  // add subtracts it
      const float largest = (a.block == 0 ? a.largest : a.largest * simt_scale(a.stored, r, k)) * factor;
      mine.add(x[h], stored, largest);
      if (a.block != 0 && !(stored == 0.0f)) filled |= 1u << (c / a.block % 32);
    }
    if (a.block == 0 || ((first + step) % (32 * a.block) != 0 && first + step < a.k)) continue;
    filled = subgroup_or<16>(filled);
    const unsigned blocks = first / (32 * a.block) * 32;
    for (unsigned b = lane; b < 32 && is_row; b += 16) {
      if ((filled >> b & 1u) == 0) continue;
      scales.add(simt_scale(a.stored, r, static_cast<int>((blocks + b) * a.block)));
    }
    filled = 0;
  }
  const observed_row all = mine.fold(scales);
  if (lane != 0 || !is_row) return;
  a.signal[row] = mine.signal;
  a.noise[row] = mine.noise;
  a.found[row] = all;
}

/// Reduces the rows in one block: sums as a tree, counts in any order.
[[maybe_unused]] static __global__ void __launch_bounds__(tree_threads)
    observe_sum_kernel(const ROTOSCALE_GRID_CONSTANT observe_args a) {
  constexpr unsigned counters = 64, fields = 11, maxima = 3;
  struct counts {
    std::int64_t of[counters][fields];
  };
  auto& shared = block_shared<counts>();
  const unsigned t = thread_index().x;
  if (t < counters) {
    std::int64_t own[fields] = {};
    const auto raise = [&](unsigned field, std::int64_t x) { own[field] = x > own[field] ? x : own[field]; };
    for (unsigned r = t; r < a.rows; r += counters) {
      const observed_row& f = a.found[r];
      raise(0, f.spread);
      raise(1, f.amax);
      raise(2, f.rotated_amax);
      own[3] += f.nonzero;
      own[4] += f.flushed;
      own[5] += f.saturated;
      own[6] += f.nonfinite;
      if (f.spread < 0) continue;
      ++own[7];
      own[8] += f.spread;
      own[9] += f.spread <= nn::int8_window_binades;
      own[10] += f.spread <= nn::e5m2_window_binades;
    }
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < fields; ++i) shared.of[t][i] = own[i];
  }
  const double signal = tree_sum(a.signal, a.signal, a.rows);
  block_barrier();
  const double noise = tree_sum(a.noise, a.noise, a.rows);
  if (t != 0) return;
  std::int64_t all[fields] = {};
  for (unsigned i = 0; i < counters; ++i) {
    ROTOSCALE_UNROLL
    for (unsigned f = 0; f < fields; ++f) {
      const std::int64_t x = shared.of[i][f];
      all[f] = f >= maxima ? all[f] + x : x > all[f] ? x : all[f];
    }
  }
  nn::operand_statistics s;
  s.signal = signal;
  s.noise = noise;
  s.elements = std::int64_t{a.rows} * a.k;
  s.spread_max = static_cast<std::int32_t>(all[0]);
  s.amax = fp32_from_bits(static_cast<std::uint32_t>(all[1]));
  s.rotated_amax = fp32_from_bits(static_cast<std::uint32_t>(all[2]));
  s.nonzero = all[3];
  s.flushed = all[4];
  s.saturated = all[5];
  s.nonfinite = all[6];
  s.rows = all[7];
  s.spread_sum = all[8];
  s.rows_int8 = all[9];
  s.rows_e5m2 = all[10];
  *a.to = s;
}

inline constexpr unsigned compare_chunk = 4096, compare_sums = 4;
struct compare_args {
  const float *value = nullptr, *reference = nullptr;
  index_t size = 0, chunks = 0;
  double* partial = nullptr;  ///< (compare_sums, chunks)
  nn::comparison_statistics* to = nullptr;
};

/// Sums of a chunk, by sixteen lanes: reference², value², their product, and error².
[[maybe_unused]] static __global__ void __launch_bounds__(row_threads)
    compare_kernel(const ROTOSCALE_GRID_CONSTANT compare_args a) {
  const unsigned lane = thread_index().x % 16;
  const index_t chunk = block_index().x * index_t{observed_rows} + thread_index().x / 16;
  const index_t first = chunk * compare_chunk, left = a.size - first;
  const unsigned n = left <= 0 ? 0 : left < compare_chunk ? static_cast<unsigned>(left) : compare_chunk;
  double sum[compare_sums] = {};
  for (unsigned i = lane; i < n; i += 16) {
    const float reference = a.reference[first + i], value = a.value[first + i];
    const auto x = static_cast<double>(reference), y = static_cast<double>(value),
               error = static_cast<double>(reference - value);
    sum[0] += x * x;
    sum[1] += y * y;
    sum[2] += x * y;
    sum[3] += error * error;
  }
  ROTOSCALE_UNROLL
  for (unsigned s = 0; s < compare_sums; ++s) {
    sum[s] = subgroup_sum<16>(sum[s]);
    if (lane == 0 && chunk < a.chunks) a.partial[s * a.chunks + chunk] = sum[s];
  }
}

/// Reduces the chunks in one block.
[[maybe_unused]] static __global__ void __launch_bounds__(tree_threads)
    compare_sum_kernel(const ROTOSCALE_GRID_CONSTANT compare_args a) {
  double sum[compare_sums];
  ROTOSCALE_KEEP_LOOP
  for (unsigned s = 0; s < compare_sums; ++s) {
    double* const terms = a.partial + s * a.chunks;
    sum[s] = tree_sum(terms, terms, a.chunks);
    block_barrier();
  }
  if (thread_index().x == 0) *a.to = {sum[0], sum[1], sum[2], sum[3], a.size};
}

}  // namespace rotoscale::gpu
