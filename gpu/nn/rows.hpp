// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Rows of FP32 or BF16 in vectors of eight elements (vec8), which a thread moves 16 bytes at a time. Sums along rows
// have the order of nn::ordered_sum.
#pragma once

#include "gpu/dialect/async_copy.hpp"
#include "gpu/dialect/lanes.hpp"
#include "gpu/dialect/packed.hpp"
#include "rotoscale/nn/layer_math.hpp"
#include "rotoscale/small_float.hpp"

namespace rotoscale::gpu {

inline constexpr unsigned row_threads = 256;  ///< block size of most row kernels
inline constexpr unsigned vec8_elements = 8;  ///< elements per vector

/// Contiguous rows, `stride` elements apart.
template <class T>
struct row_span {
  T* data = nullptr;
  index_t stride = 0;
  __device__ T* operator[](index_t r) const { return data + r * stride; }
};

/// Extents of a row kernel. `vectors`: every row is aligned to 16 bytes and has a multiple of 8 elements.
struct row_extents {
  index_t rows = 0;
  unsigned cols = 0, vec8s = 0;
  bool vectors = false;

  /// Elements of vec8 p.
  __device__ unsigned count(unsigned p) const {
    const unsigned left = cols - p * vec8_elements;
    return left < vec8_elements ? left : vec8_elements;
  }
};

/// A vec8 as it is stored: 16 bytes of BF16, 32 of FP32.
template <class T>
struct stored_vec8 {
  static constexpr unsigned vecs = vec8_elements * sizeof(T) / 16;
  vec16 vec[vecs];

  /// Loads `count` elements; the others are 0.
  __device__ void load(const T* from, unsigned count, bool vectors) {
    if (vectors) {
      ROTOSCALE_UNROLL
      for (unsigned i = 0; i < vecs; ++i) vec[i] = reinterpret_cast<const vec16*>(from)[i];
      return;
    }
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < vec8_elements; ++i) set(i, i < count ? bits(from[i]) : 0u);
  }
  __device__ void store(T* to, unsigned count, bool vectors) const {
    if (vectors) {
      ROTOSCALE_UNROLL
      for (unsigned i = 0; i < vecs; ++i) reinterpret_cast<vec16*>(to)[i] = vec[i];
      return;
    }
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < vec8_elements; ++i) {
      if (i < count) to[i] = element(i);
    }
  }
  __device__ void widen(float (&x)[vec8_elements]) const {
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < vec8_elements; ++i) {
      if constexpr (sizeof(T) == 4) {
        x[i] = fp32_from_bits(vec[i / 4].word[i % 4]);
      } else {
        const std::uint32_t word = vec[0].word[i / 2];
        x[i] = fp32_from_bits(i % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
      }
    }
  }
  /// Rounds once, to nearest even.
  __device__ void narrow(const float (&x)[vec8_elements]) {
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < vec8_elements; i += sizeof(T) == 4 ? 1 : 2) {
      if constexpr (sizeof(T) == 4) {
        vec[i / 4].word[i % 4] = fp32_bits(x[i]);
      } else {
        vec[0].word[i / 2] = bf16_pair(x[i], x[i + 1]);
      }
    }
  }

 private:
  __device__ static std::uint32_t bits(T x) {
    if constexpr (sizeof(T) == 4) {
      return fp32_bits(x);
    } else {
      return x.bits();
    }
  }
  __device__ void set(unsigned i, std::uint32_t to) {
    if constexpr (sizeof(T) == 4) {
      vec[i / 4].word[i % 4] = to;
    } else {
      vec[0].word[i / 2] = i % 2 == 0 ? to : vec[0].word[i / 2] | to << 16;
    }
  }
  __device__ T element(unsigned i) const {
    if constexpr (sizeof(T) == 4) {
      return fp32_from_bits(vec[i / 4].word[i % 4]);
    } else {
      return bf16::from_bits(static_cast<std::uint16_t>(vec[0].word[i / 2] >> (16 * (i % 2))));
    }
  }
};

/// Adds a vec8, as stored, to the sums of its columns.
template <class T>
__device__ inline void add_columns(const stored_vec8<T>& x, float (&sums)[vec8_elements]) {
  float values[vec8_elements];
  x.widen(values);
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < vec8_elements; ++i) sums[i] += values[i];
}

/// Copies a vec8 to shared memory aligned to 16 bytes, zero outside the row. Complete after wait_for_copies.
template <class T>
__device__ inline void stage_vec8(T* to, const T* from, unsigned count, bool vectors) {
  if (vectors) {
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < stored_vec8<T>::vecs; ++i) {
      copy_async(reinterpret_cast<vec16*>(to) + i, reinterpret_cast<const vec16*>(from) + i);
    }
    return;
  }
  stored_vec8<T> vec8;
  vec8.load(from, count, false);
  vec8.store(to, vec8_elements, true);
}

/// Loads `count` of eight FP32 numbers, the others 0. `from` is aligned to 4 bytes, with `vectors` to 16.
__device__ inline void load_floats(const float* from, unsigned count, bool vectors, float (&x)[vec8_elements]) {
  stored_vec8<float> vec8;
  vec8.load(from, count, vectors);
  vec8.widen(x);
}

/// Stores the first `count` numbers. `to` is aligned to 4 bytes.
__device__ inline void store_floats(float* to, unsigned count, const float (&x)[vec8_elements]) {
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < vec8_elements; ++i) {
    if (i < count) to[i] = x[i];
  }
}

__device__ inline float widened(float x) { return x; }
__device__ inline float widened(bf16 x) { return fp32_from_bits(static_cast<std::uint32_t>(x.bits()) << 16); }

/// nn::ordered_sum by 16 neighbouring lanes; `lane` is this one's index. All of them return the sum.
template <class Step>
__device__ inline float lane_sum(unsigned n, unsigned lane, const Step& step) {
  float sum = 0.0f;
  const unsigned whole = n / 16 * 16;  // no condition in the loop, so that many loads are in flight
  ROTOSCALE_UNROLL_16
  for (unsigned i = 0; i < whole; i += 16) sum = step(i + lane, sum);
  if (whole + lane < n) sum = step(whole + lane, sum);
  return subgroup_sum<nn::sum_lanes>(sum);
}

}  // namespace rotoscale::gpu
