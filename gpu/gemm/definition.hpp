// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The GEMM of fp32_fma_chain: every output is one chain of fused multiply-adds with k ascending, whatever the tile.
// Tiles of the operands become FP32 in shared memory; a thread owns R × R outputs. Nothing is added for what lies
// beyond k, since +0 would change a sum of -0.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/dialect/packed.hpp"
#include "gpu/gemm/reference_kernel.hpp"

namespace rotoscale::gpu {

enum class dense_element : int { fp32, bf16, e4m3, e5m2, e2m1, e2m3, e3m2 };

/// An operand of gemm_by_definition.
struct definition_operand {
  const std::uint8_t* codes = nullptr;
  std::int64_t row_step = 0, k_step = 0;  ///< bytes; k_step is not for elements of less than a byte
  const std::uint8_t* scales = nullptr;   ///< of blocks; null: none
  std::int64_t scale_stride = 0;
  int length_log2 = 5, rows_log2 = 0;  ///< extents of a block
  bool ue4m3_scales = false;           ///< else E8M0
  const float* factor = nullptr;
  int rows = 0;
  dense_element element = dense_element::fp32;
  bool k_contiguous = true;  ///< else rows are: which way threads read
};

struct definition_arguments {
  definition_operand a, b;
  int k = 0;
  void* out = nullptr;
  std::int64_t out_stride = 0;
  bool bf16_stored = false, bf16_rounded = false, accumulate = false;
};

/// An E2M1 code's value: 0, 0.5, then numbers whose bits are 2^22 apart.
__device__ inline float e2m1_value(std::uint32_t code) {
  const std::uint32_t m = code & 7u, bits = m == 0 ? 0 : m == 1 ? 0x3F000000u : 0x3F800000u + ((m - 2) << 22);
  return fp32_from_bits(bits | (code & 8u) << 28);
}

/// The scale of the block that an element of an operand with blocks lies in.
__device__ inline float definition_scale(const definition_operand& o, int row, int k) {
  const std::uint8_t byte = o.scales[(row >> o.rows_log2) * o.scale_stride + (k >> o.length_log2)];
  return o.ue4m3_scales ? fp8_value(true, byte) : scale_value(byte);
}

/// Element k of a row of 6-bit codes: magnitude bits are those of an FP32 number with another bias.
__device__ inline float six_bit_value(const std::uint8_t* row, int k, bool e2m3) {
  const std::uint32_t code = load_code(formats::e2m3, row, k);
  const float magnitude = fp32_from_bits((code & 31u) << (e2m3 ? 20 : 21)) * pow2_fp32(e2m3 ? 126 : 124);
  return fp32_from_bits(fp32_bits(magnitude) | (code & 32u) << 26);
}

/// Inlined in any case: AMD's compiler would rather call it, and a kernel with calls has no budget of registers.
__device__ __attribute__((always_inline)) inline float definition_value(const definition_operand& o, int row, int k) {
  const std::uint8_t* const at = o.codes + row * o.row_step + k * o.k_step;
  float x = 0.0f;
  switch (o.element) {
    case dense_element::fp32: return *reinterpret_cast<const float*>(at);
    case dense_element::bf16:
      return fp32_from_bits(static_cast<std::uint32_t>(*reinterpret_cast<const std::uint16_t*>(at)) << 16);
    case dense_element::e4m3: x = fp8_value(true, *at); break;
    case dense_element::e5m2: x = fp8_value(false, *at); break;
    case dense_element::e2m3:
    case dense_element::e3m2: x = six_bit_value(o.codes + row * o.row_step, k, o.element == dense_element::e2m3); break;
    case dense_element::e2m1: x = e2m1_value(nibble(o.codes[row * o.row_step + k / 2], k)); break;
  }
  return o.scales == nullptr ? x : x * definition_scale(o, row, k);
}

/// The last step of an output, as finish_output and the CPU's storage of BF16 have it.
__device__ inline void store_definition(const definition_arguments& p, float acc, float factor, int row, int column) {
  const std::int64_t at = row * p.out_stride + column;
  float old = 0.0f;
  if (p.accumulate) {
    old = p.bf16_stored ? fp32_from_bits(static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(p.out)[at]) << 16)
                        : static_cast<const float*>(p.out)[at];
  }
  const float y = gemm_epilogue{factor, p.accumulate}(acc, old, 0.0f);
  if (p.bf16_stored) {
    static_cast<std::uint16_t*>(p.out)[at] = static_cast<std::uint16_t>(canonical_bf16(y));
  } else {
    static_cast<float*>(p.out)[at] =
        p.bf16_rounded && !fp32_is_nan(fp32_bits(y)) ? fp32_from_bits(canonical_bf16(y) << 16) : y;
  }
}

/// Both operands' factors, multiplied as combined_factor does.
__device__ inline float definition_factor(const definition_arguments& p) {
  return (p.a.factor != nullptr ? *p.a.factor : 1.0f) * (p.b.factor != nullptr ? *p.b.factor : 1.0f);
}

inline constexpr int definition_threads = 256, definition_step = 32;
/// Rows and columns of outputs that a thread owns at most: AMD's compiler has no registers for eight.
inline constexpr int max_owned = bounds_count_waves ? 4 : 8;

struct decode_arguments {
  definition_operand from;
  int k = 0;
  bool transposed = false, bf16_stored = false;
  void* to = nullptr;
  std::int64_t stride = 0;
};

/// One thread an element, in the target's order.
[[maybe_unused]] static __global__ void __launch_bounds__(definition_threads) decode_kernel(const decode_arguments a) {
  const std::int64_t columns = a.transposed ? a.from.rows : a.k, rows = a.transposed ? a.k : a.from.rows;
  const float factor = a.from.factor != nullptr ? *a.from.factor : 1.0f;
  for (std::int64_t i = std::int64_t{block_index().x} * definition_threads + thread_index().x; i < rows * columns;
       i += std::int64_t{grid_size().x} * definition_threads) {
    const std::int64_t r = i / columns, c = i % columns, at = r * a.stride + c;
    const float x =
        definition_value(a.from, static_cast<int>(a.transposed ? c : r), static_cast<int>(a.transposed ? r : c)) *
        factor;
    if (a.bf16_stored) {
      static_cast<std::uint16_t*>(a.to)[at] = static_cast<std::uint16_t>(canonical_bf16(x));
    } else {
      static_cast<float*>(a.to)[at] = x;
    }
  }
}

/// N numbers that move as one.
template <class T, int N>
struct alignas(N * sizeof(T)) packed_numbers {
  T of[N];
};

/// Which of a tile's rows (or columns) a thread owns: groups of V neighbours.
template <int R>
struct owned {
  static constexpr int vector = R < 4 ? R : 4, groups = R / vector, tile = 16 * R;
  __device__ static constexpr int index(int part, int i) {
    return i / vector * 16 * vector + part * vector + i % vector;
  }
  /// The owned numbers of a row of shared memory.
  template <class T>
  __device__ static void load(const T* from, int part, T (&to)[R]) {
    ROTOSCALE_UNROLL
    for (int g = 0; g < groups; ++g) {
      const auto x = *reinterpret_cast<const packed_numbers<T, vector>*>(from + g * 16 * vector + part * vector);
      ROTOSCALE_UNROLL
      for (int i = 0; i < vector; ++i) to[g * vector + i] = x.of[i];
    }
  }
};

/// In shared memory; aligned as owned::load reads it.
template <int R>
struct alignas(16) definition_tiles {
  static constexpr int pitch = 16 * R + 4;
  float a[definition_step][pitch], b[definition_step][pitch];
};

/// A thread's share of a tile of definition_step × 16 R numbers, on its way to shared memory.
template <int R>
struct definition_share {
  static constexpr int count = definition_step * 16 * R / definition_threads;
  float value[count];

  __device__ static int k_of(const definition_operand& o, int i, int thread) {
    const int at = i * definition_threads + thread;
    return o.k_contiguous ? at % definition_step : at / (16 * R);
  }
  __device__ static int row_of(const definition_operand& o, int i, int thread) {
    const int at = i * definition_threads + thread;
    return o.k_contiguous ? at / definition_step : at % (16 * R);
  }
  __device__ void load(const definition_operand& o, int first_row, int first_k, int k, int thread) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < count; ++i) {
      const int row = first_row + row_of(o, i, thread), at = first_k + k_of(o, i, thread);
      value[i] = row < o.rows && at < k ? definition_value(o, row, at) : 0.0f;
    }
  }
  __device__ void store(const definition_operand& o, float (&to)[definition_step][definition_tiles<R>::pitch],
                        int thread) const {
    ROTOSCALE_UNROLL
    for (int i = 0; i < count; ++i) to[k_of(o, i, thread)][row_of(o, i, thread)] = value[i];
  }
};

template <int R>
__device__ inline void add_products(const definition_tiles<R>& t, int k, int row_part, int column_part,
                                    float (&acc)[R][R]) {
  float a[R], b[R];
  owned<R>::load(t.a[k], row_part, a);
  owned<R>::load(t.b[k], column_part, b);
  ROTOSCALE_UNROLL
  for (int i = 0; i < R; ++i) {
    ROTOSCALE_UNROLL
    for (int j = 0; j < R; ++j) acc[i][j] = __builtin_fmaf(a[i], b[j], acc[i][j]);
  }
}

/// Writes a thread's outputs of the tile that begins at (row, column).
template <int R>
__device__ inline void store_tile(const definition_arguments& p, const float (&acc)[R][R], int row, int column,
                                  int row_part, int column_part) {
  const float factor = definition_factor(p);
  ROTOSCALE_UNROLL
  for (int i = 0; i < R; ++i) {
    ROTOSCALE_UNROLL
    for (int j = 0; j < R; ++j) {
      const int r = row + owned<R>::index(row_part, i), c = column + owned<R>::index(column_part, j);
      if (r < p.a.rows && c < p.b.rows) store_definition(p, acc[i][j], factor, r, c);
    }
  }
}

template <int R>
[[maybe_unused]] static __global__ void __launch_bounds__(definition_threads)
    chain_kernel(const definition_arguments p) {
  constexpr int tile = 16 * R;
  auto& t = block_shared<definition_tiles<R>>();
  const int across = (p.b.rows + tile - 1) / tile, block = static_cast<int>(block_index().x);
  const int row = block / across * tile, column = block % across * tile;
  const int thread = static_cast<int>(thread_index().x), row_part = thread / 16, column_part = thread % 16;
  float acc[R][R] = {};
  definition_share<R> a, b;
  a.load(p.a, row, 0, p.k, thread);
  b.load(p.b, column, 0, p.k, thread);
  for (int k = 0; k < p.k; k += definition_step) {
    a.store(p.a, t.a, thread);
    b.store(p.b, t.b, thread);
    block_barrier();
    if (k + definition_step < p.k) {
      a.load(p.a, row, k + definition_step, p.k, thread);
      b.load(p.b, column, k + definition_step, p.k, thread);
    }
    if (k + definition_step <= p.k) {
      ROTOSCALE_KEEP_LOOP
      for (int step = 0; step < definition_step; step += 8) {
        ROTOSCALE_UNROLL
        for (int i = 0; i < 8; ++i) add_products<R>(t, step + i, row_part, column_part, acc);
      }
    } else {
      ROTOSCALE_KEEP_LOOP
      for (int i = 0; k + i < p.k; ++i) add_products<R>(t, i, row_part, column_part, acc);
    }
    block_barrier();
  }
  store_tile<R>(p, acc, row, column, row_part, column_part);
}

}  // namespace rotoscale::gpu
