// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Kernels of gpu/api/kept_values.hpp.
#pragma once

#include "gpu/api/kept_values.hpp"
#include "gpu/dialect/lanes.hpp"
#include "gpu/dialect/packed.hpp"

namespace rotoscale::gpu {

inline constexpr unsigned value_threads = 256, value_subgroups = value_threads / subgroup_lanes;

template <class T>
struct value_arguments {
  nn::value_recipe how;
  bool column = false;
  const T* from = nullptr;
  index_t stride = 0, rows = 0, cols = 0;  ///< of the source
  float* maxima = nullptr;
  const float* numbers = nullptr;
  std::uint16_t* to = nullptr;

  /// Element (r, c) of the source as BF16 bits.
  __device__ std::uint32_t bits(index_t r, index_t c) const {
    if constexpr (sizeof(T) == 2) {
      return canonical_bf16(decode(formats::bf16, from[r * stride + c].bits()));
    } else {
      return canonical_bf16(from[r * stride + c]);
    }
  }
};

/// Computes how.number of each group from its largest finite magnitude. One thread block per group.
template <class T>
[[maybe_unused]] static __global__ void __launch_bounds__(value_threads)
    measure_values_kernel(const value_arguments<T> a) {
  struct maxima {
    std::uint32_t of[value_subgroups];
  };
  const index_t g = block_index().x, r0 = g / a.how.across * a.how.rows, c0 = g % a.how.across * a.how.length;
  const index_t rows = a.column ? a.cols : a.rows, k = a.column ? a.rows : a.cols;
  const index_t tall = rows - r0 < a.how.rows ? rows - r0 : a.how.rows,
                wide = k - c0 < a.how.length ? k - c0 : a.how.length;
  std::uint32_t most = 0;
  for (index_t i = thread_index().x; i < tall * wide; i += value_threads) {
    const index_t r = r0 + i / wide, c = c0 + i % wide;
    const std::uint32_t u = (a.column ? a.bits(c, r) : a.bits(r, c)) << 16 & fp32_magnitude_mask;
    most = u < fp32_infinity_bits && u > most ? u : most;
  }
  most = subgroup_max(most);
  maxima& shared = block_shared<maxima>();
  if (thread_index().x % subgroup_lanes == 0) shared.of[thread_index().x / subgroup_lanes] = most;
  block_barrier();
  if (thread_index().x != 0) return;
  for (unsigned i = 0; i < value_subgroups; ++i) most = shared.of[i] > most ? shared.of[i] : most;
  a.maxima[g] = a.how.number(fp32_from_bits(most));
}

/// One thread per group: 1 for the `count` groups with the largest maxima, else 0. Ties go to the lower index.
[[maybe_unused]] static __global__ void __launch_bounds__(value_threads)
    mark_outliers_kernel(const float* maxima, index_t groups, index_t count, float* marks) {
  const index_t g = index_t{block_index().x} * value_threads + thread_index().x;
  if (g >= groups) return;
  index_t before = 0;
  for (index_t i = 0; i < groups && before < count; ++i) {
    before += maxima[i] > maxima[g] || (maxima[i] == maxima[g] && i < g);
  }
  marks[g] = before < count ? 1.0f : 0.0f;
}

/// One thread per element and step. `Finishes`: after the quantizer, else before.
template <class T, bool Finishes>
[[maybe_unused]] static __global__ void __launch_bounds__(value_threads) values_kernel(const value_arguments<T> a) {
  for (index_t i = index_t{block_index().x} * value_threads + thread_index().x; i < a.rows * a.cols;
       i += index_t{grid_size().x} * value_threads) {
    const index_t r = i / a.cols, c = i % a.cols;
    const float number = a.numbers[a.column ? a.how.group_of(c, r) : a.how.group_of(r, c)];
    const float x = fp32_from_bits(a.bits(r, c) << 16);
    const float value =
        Finishes ? a.how.finished(x, fp32_from_bits(std::uint32_t{a.to[i]} << 16), number) : a.how.prepared(x, number);
    a.to[i] = static_cast<std::uint16_t>(canonical_bf16(value));
  }
}

}  // namespace rotoscale::gpu
