// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The GEMM of fp32_fma_chain on CUDA cores or VALUs: each output is one chain of fused multiply-adds in ascending k.
// 1. Load a tile of A and B, decoded to FP32 in shared memory.
// 2. Fused multiply-adds; a thread owns R × R outputs.
// 3. Scale by the factors and store.
// Nothing is added beyond k, since +0 would change a sum of -0.
#pragma once

#include <type_traits>

#include "gpu/dialect/hip.hpp"
#include "gpu/dialect/packed.hpp"
#include "gpu/gemm/reference_kernel.hpp"

namespace rotoscale::gpu {

enum class dense_element : int { fp32, bf16, e4m3, e5m2, e2m1, e2m3, e3m2 };

/// An operand of a GEMM on CUDA cores.
struct simt_operand {
  const std::uint8_t* codes = nullptr;
  std::int64_t row_step = 0, k_step = 0;  ///< bytes; k_step is unused for elements of less than a byte
  const std::uint8_t* scales = nullptr;   ///< block scales; null: none
  std::int64_t scale_stride = 0;
  int length_log2 = 5, rows_log2 = 0;  ///< log2 of a block's length and rows
  bool ue4m3_scales = false;           ///< else E8M0
  const float* factor = nullptr;
  int rows = 0;
  dense_element element = dense_element::fp32;
  bool k_contiguous = true;  ///< else rows are contiguous; selects the order of loads
};

struct simt_arguments {
  simt_operand a, b;
  int k = 0;
  void* out = nullptr;
  std::int64_t out_stride = 0;
  bool bf16_stored = false, bf16_rounded = false, accumulate = false;
};

/// Value of an E2M1 code: 0, 0.5, then numbers whose bits are 2^22 apart.
__device__ inline float e2m1_value(std::uint32_t code) {
  const std::uint32_t m = code & 7u, bits = m == 0 ? 0 : m == 1 ? 0x3F000000u : 0x3F800000u + ((m - 2) << 22);
  return fp32_from_bits(bits | (code & 8u) << 28);
}

/// Scale byte of the block of element (row, k).
__device__ inline std::uint8_t scale_byte_of(const simt_operand& o, int row, int k) {
  return o.scales[(row >> o.rows_log2) * o.scale_stride + (k >> o.length_log2)];
}
__device__ inline float scale_of(const simt_operand& o, std::uint8_t byte) {
  return o.ue4m3_scales ? fp8_value(true, byte & 0x7Fu) : scale_value(byte);  // UE4M3 has no sign
}
__device__ inline float simt_scale(const simt_operand& o, int row, int k) {
  return scale_of(o, scale_byte_of(o, row, k));
}

/// Calls f with a std::integral_constant of the element. Always inlined: AMD's compiler would emit a call, and the
/// registers of a kernel with calls cannot be bounded.
template <class Function>
[[gnu::always_inline]] __device__ inline auto with_element(dense_element e, const Function& f) {
  switch (e) {
    case dense_element::fp32: return f(std::integral_constant<dense_element, dense_element::fp32>());
    case dense_element::bf16: return f(std::integral_constant<dense_element, dense_element::bf16>());
    case dense_element::e4m3: return f(std::integral_constant<dense_element, dense_element::e4m3>());
    case dense_element::e5m2: return f(std::integral_constant<dense_element, dense_element::e5m2>());
    case dense_element::e2m1: return f(std::integral_constant<dense_element, dense_element::e2m1>());
    case dense_element::e2m3: return f(std::integral_constant<dense_element, dense_element::e2m3>());
    default: return f(std::integral_constant<dense_element, dense_element::e3m2>());
  }
}

/// Address of element k of a row; of 6-bit codes the row's first byte.
template <dense_element E>
__device__ inline const std::uint8_t* element_place(const simt_operand& o, int row, int k) {
  const std::uint8_t* const first = o.codes + row * o.row_step;
  if constexpr (E <= dense_element::e5m2) return first + k * o.k_step;
  return E == dense_element::e2m1 ? first + k / 2 : first;
}
/// Bits read at that address: a number of 32 or 16 bits, a byte with an 8-bit code or two E2M1 codes, or a 6-bit
/// code.
template <dense_element E>
__device__ inline std::uint32_t element_bits(const std::uint8_t* at, int k) {
  if constexpr (E == dense_element::fp32) return *reinterpret_cast<const any_word*>(at);
  if constexpr (E == dense_element::bf16) return *reinterpret_cast<const any_half*>(at);
  if constexpr (E <= dense_element::e2m1) return *at;
  return load_code(formats::e2m3, at, k);
}
/// Value of these bits, without scale.
template <dense_element E>
__device__ inline float element_value(std::uint32_t bits, int k) {
  if constexpr (E == dense_element::fp32) return fp32_from_bits(bits);
  if constexpr (E == dense_element::bf16) return fp32_from_bits(bits << 16);
  if constexpr (E <= dense_element::e5m2) return fp8_value(E == dense_element::e4m3, static_cast<std::uint8_t>(bits));
  if constexpr (E == dense_element::e2m1) return e2m1_value(nibble(static_cast<std::uint8_t>(bits), k));
  // A 6-bit code's magnitude has the bits of an FP32 number with another bias.
  constexpr bool e2m3 = E == dense_element::e2m3;
  const float magnitude = fp32_from_bits((bits & 31u) << (e2m3 ? 20 : 21)) * pow2_fp32(e2m3 ? 126 : 124);
  return fp32_from_bits(fp32_bits(magnitude) | (bits & 32u) << 26);
}

[[gnu::always_inline]] __device__ inline float simt_value(const simt_operand& o, int row, int k) {
  const float x = with_element(
      o.element, [&](auto e) __attribute__((always_inline)) {
        constexpr dense_element of = decltype(e)::value;
        return element_value<of>(element_bits<of>(element_place<of>(o, row, k), k), k);
      });
  return o.scales == nullptr ? x : x * simt_scale(o, row, k);
}

/// Epilogue of an output, with the bits of finish_output and of the CPU's BF16 storage.
__device__ inline void store_simt(const simt_arguments& p, float acc, float factor, int row, int column) {
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
__device__ inline float simt_factor(const simt_arguments& p) {
  return (p.a.factor != nullptr ? *p.a.factor : 1.0f) * (p.b.factor != nullptr ? *p.b.factor : 1.0f);
}

inline constexpr int simt_threads = 256;
/// Maximum rows and columns of outputs per thread. AMD's compiler spills at eight.
inline constexpr int max_owned = bounds_count_waves ? 4 : 8;
/// k per tile. Threads with few outputs take more k, so that their arithmetic takes as long as a load.
template <int R>
inline constexpr int simt_step = R < 4   ? 64
                                 : R < 8 ? 32
                                         : 16;
/// Blocks per SM in the launch bounds; 0: no bound.
template <int R>
inline constexpr int chain_blocks_per_processor = bounds_count_waves ? 0
                                                  : R < 4            ? 4
                                                  : R < 8            ? 0
                                                                     : 2;

struct decode_arguments {
  simt_operand from;
  int k = 0;
  bool transposed = false, bf16_stored = false;
  void* to = nullptr;
  std::int64_t stride = 0;
};

/// One thread per element, in the target's order.
[[maybe_unused]] static __global__ void __launch_bounds__(simt_threads) decode_kernel(const decode_arguments a) {
  const std::int64_t columns = a.transposed ? a.from.rows : a.k, rows = a.transposed ? a.k : a.from.rows;
  const float factor = a.from.factor != nullptr ? *a.from.factor : 1.0f;
  for (std::int64_t i = std::int64_t{block_index().x} * simt_threads + thread_index().x; i < rows * columns;
       i += std::int64_t{grid_size().x} * simt_threads) {
    const std::int64_t r = i / columns, c = i % columns, at = r * a.stride + c;
    const float x =
        simt_value(a.from, static_cast<int>(a.transposed ? c : r), static_cast<int>(a.transposed ? r : c)) * factor;
    if (a.bf16_stored) {
      static_cast<std::uint16_t*>(a.to)[at] = static_cast<std::uint16_t>(canonical_bf16(x));
    } else {
      static_cast<float*>(a.to)[at] = x;
    }
  }
}

/// N numbers loaded as one vector.
template <class T, int N>
struct alignas(N * sizeof(T)) packed_numbers {
  T of[N];
};

/// Rows (or columns) of a tile that a thread owns: groups of V neighbours.
template <int R>
struct owned {
  static constexpr int vector = R < 4 ? R : 4, groups = R / vector, tile = 16 * R;
  __device__ static constexpr int index(int part, int i) {
    return i / vector * 16 * vector + part * vector + i % vector;
  }
  /// Loads the owned numbers of a row of shared memory.
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

/// One stage in shared memory, aligned for owned::load.
template <int R>
struct alignas(16) simt_tiles {
  static constexpr int pitch = 16 * R + 4;
  float a[simt_step<R>][pitch], b[simt_step<R>][pitch];
};

/// A thread's part of a tile of simt_step<R> × 16 R numbers, in registers between memory and shared memory. It has
/// equidistant rows of one k, or equidistant k of one row. Numbers are decoded when stored, so that all loads are in
/// flight together.
template <int R>
struct simt_share {
  static constexpr int step = simt_step<R>, tile = 16 * R, count = step * tile / simt_threads;
  static_assert(simt_threads % tile == 0 && simt_threads % step == 0 && step <= 64);
  std::uint32_t bits[count];  ///< element_bits; 0 outside
  std::uint8_t scale[count];  ///< with block scales only

  /// The first element. If k is contiguous, a warp has 8 k of 4 rows, which cover all banks of shared memory.
  __device__ static int row_of(const simt_operand& o, int thread) {
    return o.k_contiguous ? thread / 8 % 4 + thread / (4 * step) * 4 : thread % tile;
  }
  __device__ static int k_of(const simt_operand& o, int thread) {
    return o.k_contiguous ? thread % 8 + thread / 32 * 8 % step : thread / tile;
  }
  __device__ static int rows_apart(const simt_operand& o) { return o.k_contiguous ? simt_threads / step : 0; }
  __device__ static int k_apart(const simt_operand& o) { return o.k_contiguous ? 0 : simt_threads / tile; }

  /// Loads this thread's part of the tile at (row, k) of a matrix of o.rows × `end`.
  [[gnu::always_inline]] __device__ void load(const simt_operand& o, int row, int k, int end, int thread) {
    row += row_of(o, thread);
    k += k_of(o, thread);
    with_element(
        o.element, [&](auto e) __attribute__((always_inline)) { load_elements<decltype(e)::value>(o, row, k, end); });
  }
  [[gnu::always_inline]] __device__ void store(const simt_operand& o, float (&to)[step][simt_tiles<R>::pitch],
                                               int thread) const {
    const int row = row_of(o, thread), k = k_of(o, thread);
    with_element(
        o.element, [&](auto e)
                       __attribute__((always_inline)) { store_elements<decltype(e)::value>(o, &to[k][row], k); });
  }

 private:
  /// Operands of whole bytes may be transposed. Then a thread's elements differ in k.
  template <dense_element E>
  static constexpr bool has_k_apart = E <= dense_element::e5m2;
  template <dense_element E>
  static constexpr bool has_scales = E >= dense_element::e4m3;

  template <dense_element E>
  [[gnu::always_inline]] __device__ void load_elements(const simt_operand& o, int row, int k, int end) {
    const int dr = rows_apart(o), dk = has_k_apart<E> ? k_apart(o) : 0;
    const std::uint8_t* at = element_place<E>(o, row, k);
    const std::int64_t apart = dr * o.row_step + (has_k_apart<E> ? dk * o.k_step : 0);
    ROTOSCALE_UNROLL
    for (int i = 0; i < count; ++i, at += apart) {
      bits[i] = 0;
      if (row + i * dr < o.rows && k + i * dk < end) bits[i] = element_bits<E>(at, k + i * dk);
    }
    if constexpr (has_scales<E>) {
      if (o.scales == nullptr) return;
      ROTOSCALE_UNROLL
      for (int i = 0; i < count; ++i) {
        scale[i] = 0;
        if (row + i * dr < o.rows && k + i * dk < end) scale[i] = scale_byte_of(o, row + i * dr, k + i * dk);
      }
    }
  }
  template <dense_element E>
  [[gnu::always_inline]] __device__ void store_elements(const simt_operand& o, float* to, int k) const {
    const int dk = has_k_apart<E> ? k_apart(o) : 0, apart = rows_apart(o) + dk * simt_tiles<R>::pitch;
    if (has_scales<E> && o.scales != nullptr) {
      ROTOSCALE_UNROLL
      for (int i = 0; i < count; ++i) to[i * apart] = element_value<E>(bits[i], k + i * dk) * scale_of(o, scale[i]);
    } else {
      ROTOSCALE_UNROLL
      for (int i = 0; i < count; ++i) to[i * apart] = element_value<E>(bits[i], k + i * dk);
    }
  }
};

/// Adds the R × R products of one k: outer product of the owned rows and columns.
template <int R>
__device__ inline void add_products(const simt_tiles<R>& t, int k, int row_part, int column_part, float (&acc)[R][R]) {
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
__device__ inline void store_tile(const simt_arguments& p, const float (&acc)[R][R], int row, int column, int row_part,
                                  int column_part) {
  const float factor = simt_factor(p);
  ROTOSCALE_UNROLL
  for (int i = 0; i < R; ++i) {
    ROTOSCALE_UNROLL
    for (int j = 0; j < R; ++j) {
      const int r = row + owned<R>::index(row_part, i), c = column + owned<R>::index(column_part, j);
      if (r < p.a.rows && c < p.b.rows) store_simt(p, acc[i][j], factor, r, c);
    }
  }
}

/// One thread block per tile. The next stage is prefetched to registers during the products.
template <int R>
[[maybe_unused]] static __global__ void __launch_bounds__(simt_threads, chain_blocks_per_processor<R>)
    chain_kernel(const simt_arguments p) {
  constexpr int tile = 16 * R, step = simt_step<R>;
  auto& t = block_shared<simt_tiles<R>>();
  const int across = (p.b.rows + tile - 1) / tile, block = static_cast<int>(block_index().x);
  const int row = block / across * tile, column = block % across * tile;
  const int thread = static_cast<int>(thread_index().x), row_part = thread / 16, column_part = thread % 16;
  float acc[R][R] = {};
  if (p.k == 0) return store_tile<R>(p, acc, row, column, row_part, column_part);  // codes may be null
  simt_share<R> a, b;
  a.load(p.a, row, 0, p.k, thread);
  b.load(p.b, column, 0, p.k, thread);
  for (int k = 0; k < p.k; k += step) {
    a.store(p.a, t.a, thread);
    b.store(p.b, t.b, thread);
    block_barrier();
    if (k + step < p.k) {
      a.load(p.a, row, k + step, p.k, thread);
      b.load(p.b, column, k + step, p.k, thread);
    }
    const int left = p.k - k, here = left < step ? left : step;
    ROTOSCALE_KEEP_LOOP
    for (int first = 0; first + 8 <= here; first += 8) {
      ROTOSCALE_UNROLL
      for (int i = 0; i < 8; ++i) add_products<R>(t, first + i, row_part, column_part, acc);
    }
    ROTOSCALE_KEEP_LOOP
    for (int i = here / 8 * 8; i < here; ++i) add_products<R>(t, i, row_part, column_part, acc);
    block_barrier();
  }
  store_tile<R>(p, acc, row, column, row_part, column_part);
}

}  // namespace rotoscale::gpu
