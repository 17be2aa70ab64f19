// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Kernels around NVIDIA's instructions: one for independent tiles, one for a whole GEMM with a known order along K.
// They are not optimized.
#pragma once

#include <type_traits>

#include "examples/probe/device.hpp"
#include "examples/probe/nvidia_instructions.hpp"

namespace rotoscale::probe {

using gpu::block_index;
using gpu::thread_index;

/// A GEMM in device memory (see probed_gemm and gemm_schedule). Rows have `row_bytes` bytes, and k counts bytes too.
struct gemm_pointers {
  const std::uint8_t *a, *b;
  std::uint8_t* d;
  std::int64_t m, n;
  std::int64_t row_bytes, part_bytes, promotion_bytes;
};

/// ex2.approx.ftz.f32 of `count` numbers, given by their bits.
static __global__ void exp2_kernel(std::uint32_t first, std::uint32_t stride, std::uint32_t count, float* y) {
  const std::uint32_t i = block_index().x * 256 + thread_index().x;
  if (i >= count) return;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y[i]) : "f"(__uint_as_float(first + i * stride)));
}

__device__ inline std::uint32_t load_word(const std::uint8_t* from) {
  return *reinterpret_cast<const std::uint32_t*>(from);
}

/// A's registers for rows `row` and row + 8. Register i holds four bytes of k at 4 * (lane % 4), register i + 2 those
/// 16 bytes later.
template <int RowBytes>
__device__ void load_a(tile_registers& t, const std::uint8_t* a, std::int64_t stride, int row, int lane) {
  for (int i = 0; i < RowBytes / 8; ++i) {
    t.a[i] = load_word(a + (row + 8 * (i % 2)) * stride + 4 * (lane % 4) + 16 * (i / 2));
  }
}

/// B's registers for column lane / 4: register i holds four bytes of k, 16 bytes apart.
template <int RowBytes>
__device__ void load_b(tile_registers& t, const std::uint8_t* b, std::int64_t stride, int lane) {
  for (int i = 0; i < RowBytes / 16; ++i) t.b[i] = load_word(b + lane / 4 * stride + 4 * (lane % 4) + 16 * i);
}

/// Metadata of a sparse A for lanes 4g to 4g + 3, rows g and g + 8.
///
///  8 bytes per row  One word each: row g + 8 on odd lanes, a row's second word on the upper two lanes.
///  4 bytes          Half of both rows in one word: the upper halves on odd lanes.
///  2 bytes          Both rows on each lane.
template <int Bytes>
__device__ std::uint32_t load_metadata(const std::uint8_t* rows, int row, int lane) {
  [[maybe_unused]] const auto half = [&](int r, int i) {
    return static_cast<std::uint32_t>(*reinterpret_cast<const std::uint16_t*>(rows + r * Bytes + 2 * i));
  };
  if constexpr (Bytes == 0) {
    return 0;
  } else if constexpr (Bytes == 8) {
    return load_word(rows + (row + 8 * (lane % 2)) * Bytes + 4 * (lane / 2 % 2));
  } else {
    const int i = Bytes == 4 ? lane % 2 : 0;
    return half(row, i) | half(row + 8, i) << 16;
  }
}

/// Accumulators: columns 2 * (lane % 4) and the next, of rows `row` and row + 8.
template <bool Fp16, bool Store>
__device__ void move_accumulators(tile_registers& t, std::conditional_t<Store, std::uint8_t*, const std::uint8_t*> m,
                                  std::int64_t columns, int row, int lane) {
  constexpr int bytes = Fp16 ? 2 : 4;
  for (int i = 0; i < bytes; ++i) {  // FP16: two registers of two; FP32: four of one
    const int half = Fp16 ? i : i / 2, column = 2 * (lane % 4) + (Fp16 ? 0 : i % 2);
    auto* word = reinterpret_cast<std::conditional_t<Store, std::uint32_t*, const std::uint32_t*>>(
        m + ((row + 8 * half) * columns + column) * bytes);
    if constexpr (Store) {
      *word = t.acc[i];
    } else {
      t.acc[i] = *word;
    }
  }
}

/// B in shared memory without swizzle: core matrices of 8 rows of 16 bytes, 128 bytes apart along k.
template <int RowBytes>
__device__ std::uint64_t place_b(const std::uint8_t* b, std::int64_t stride, std::uint8_t* shared, int thread) {
  for (int i = thread; i < 8 * RowBytes; i += 128) {
    const int n = i / RowBytes, byte = i % RowBytes;
    shared[byte / 16 * 128 + n * 16 + byte % 16] = b[n * stride + byte];
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const auto address = static_cast<std::uint64_t>(__cvta_generic_to_shared(shared));
  return (address & 0x3FFFF) >> 4 | std::uint64_t{128 >> 4} << 16 | std::uint64_t{256 >> 4} << 32;
}

/// RowBytes: stored bytes of a row of A. MetadataBytes: metadata of a row, 0 for a dense A.
template <class Instruction, bool Fp16, int RowBytes, int MetadataBytes>
struct warp_tile {
  static constexpr int rows = 16, threads = 32, tiles_a_block = 4;
  static constexpr int a_bytes = RowBytes, b_bytes = MetadataBytes == 0 ? RowBytes : 2 * RowBytes;
  static constexpr int metadata_bytes = MetadataBytes;
  static constexpr bool fp16 = Fp16;
  __device__ static void step(tile_registers& t, const std::uint8_t* a, const std::uint8_t* b, std::int64_t stride_a,
                              std::int64_t stride_b, int row, int lane, std::uint8_t*) {
    load_a<a_bytes>(t, a, stride_a, row, lane);
    load_b<b_bytes>(t, b, stride_b, lane);
    Instruction::run(t);
  }
};
template <class Instruction, bool Fp16, int RowBytes, int MetadataBytes>
struct group_tile {
  static constexpr int rows = 64, threads = 128, tiles_a_block = 1;
  static constexpr int a_bytes = RowBytes, b_bytes = MetadataBytes == 0 ? RowBytes : 2 * RowBytes;
  static constexpr int metadata_bytes = MetadataBytes;
  static constexpr bool fp16 = Fp16;
  __device__ static void step(tile_registers& t, const std::uint8_t* a, const std::uint8_t* b, std::int64_t stride_a,
                              std::int64_t stride_b, int row, int lane, std::uint8_t* shared) {
    load_a<a_bytes>(t, a, stride_a, row, lane);
    __syncthreads();  // B of the previous step is read
    Instruction::run(t, place_b<b_bytes>(b, stride_b, shared, static_cast<int>(thread_index().x)));
  }
};

/// This thread's tile and its first row in it.
template <class Tile>
__device__ std::int64_t tile_of_thread(int& row, int& lane) {
  const int thread = static_cast<int>(thread_index().x);
  lane = thread % 32;
  row = thread % Tile::threads / 32 * 16 + lane / 4;
  return static_cast<std::int64_t>(block_index().x) * Tile::tiles_a_block + thread / Tile::threads;
}

template <class Tile>
__global__ void tiles_kernel(tile_pointers p) {
  __shared__ alignas(128) std::uint8_t shared[8 * Tile::b_bytes];
  int row, lane;
  const std::int64_t tile = tile_of_thread<Tile>(row, lane);
  if (tile >= p.tiles) return;
  constexpr int result_bytes = Tile::rows * 8 * (Tile::fp16 ? 2 : 4);
  tile_registers t;
  t.metadata = load_metadata<Tile::metadata_bytes>(p.metadata + tile * Tile::rows * Tile::metadata_bytes, row, lane);
  move_accumulators<Tile::fp16, false>(t, p.c + tile * result_bytes, 8, row, lane);
  Tile::step(t, p.a + tile * Tile::rows * Tile::a_bytes, p.b + tile * 8 * Tile::b_bytes, Tile::a_bytes, Tile::b_bytes,
             row, lane, shared);
  move_accumulators<Tile::fp16, true>(t, p.d + tile * result_bytes, 8, row, lane);
}

/// FP32 accumulators follow the schedule. FP16 accumulators form one chain.
template <class Tile>
__global__ void gemm_kernel(gemm_pointers p) {
  __shared__ alignas(128) std::uint8_t shared[8 * Tile::b_bytes];
  int row, lane;
  const std::int64_t tile = tile_of_thread<Tile>(row, lane), columns = p.n / 8;
  if (tile >= p.m / Tile::rows * columns) return;
  const std::int64_t first_row = tile / columns * Tile::rows, first_column = tile % columns * 8;
  const std::uint8_t *a = p.a + first_row * p.row_bytes, *b = p.b + first_column * p.row_bytes;
  tile_registers t{};
  const auto chain = [&](std::int64_t first, std::int64_t last) {
    for (int i = 0; i < 4; ++i) t.acc[i] = 0;
    for (std::int64_t k = first; k < last; k += Tile::a_bytes) {
      Tile::step(t, a + k, b + k, p.row_bytes, p.row_bytes, row, lane, shared);
    }
  };
  if constexpr (Tile::fp16) {
    chain(0, p.row_bytes);
  } else {
    float sum[4] = {};
    for (std::int64_t first = 0; first < p.row_bytes; first += p.part_bytes) {
      float promoted[4] = {};
      for (std::int64_t k = first; k < first + p.part_bytes; k += p.promotion_bytes) {
        const std::int64_t end = k + p.promotion_bytes, part_end = first + p.part_bytes;
        chain(k, end < part_end ? end : part_end);
        for (int i = 0; i < 4; ++i) {
          const float acc = __uint_as_float(t.acc[i]);
          promoted[i] = k == first ? acc : promoted[i] + acc;
        }
      }
      for (int i = 0; i < 4; ++i) sum[i] = first == 0 ? promoted[i] : sum[i] + promoted[i];
    }
    for (int i = 0; i < 4; ++i) t.acc[i] = __float_as_uint(sum[i]);
  }
  move_accumulators<Tile::fp16, true>(t, p.d + (first_row * p.n + first_column) * (Tile::fp16 ? 2 : 4), p.n, row, lane);
}

/// FP64 operands. Registers i and i + 1 of A hold rows lane / 4 and lane / 4 + 8 at k = lane % 4. The next two hold
/// k + 4. Register i of B holds k + 4 * i.
template <int Rows, int K>
__device__ void fp64_step(fp64_registers& t, const double* a, const double* b, std::int64_t stride, int lane) {
  for (int i = 0; i < Rows / 8 * K / 4; ++i) {
    const int half = i % (Rows / 8), block = i / (Rows / 8);
    t.a[i] = a[(lane / 4 + 8 * half) * stride + lane % 4 + 4 * block];
  }
  for (int i = 0; i < K / 4; ++i) t.b[i] = b[lane / 4 * stride + lane % 4 + 4 * i];
  mma_f64<Rows, K>::run(t);
}

template <int Rows, int K>
__global__ void fp64_tiles_kernel(tile_pointers p) {
  const std::int64_t tile = block_index().x;
  const int lane = static_cast<int>(thread_index().x);
  const auto at = [&](int i) { return tile * Rows * 8 + (lane / 4 + 8 * (i / 2)) * 8 + 2 * (lane % 4) + i % 2; };
  fp64_registers t{};
  for (int i = 0; i < Rows / 4; ++i) t.acc[i] = reinterpret_cast<const double*>(p.c)[at(i)];
  fp64_step<Rows, K>(t, reinterpret_cast<const double*>(p.a) + tile * Rows * K,
                     reinterpret_cast<const double*>(p.b) + tile * 8 * K, K, lane);
  for (int i = 0; i < Rows / 4; ++i) reinterpret_cast<double*>(p.d)[at(i)] = t.acc[i];
}

template <int Rows, int K>
__global__ void fp64_gemm_kernel(gemm_pointers p) {
  const std::int64_t tile = block_index().x, columns = p.n / 8;
  const std::int64_t first_row = tile / columns * Rows, first_column = tile % columns * 8, k = p.row_bytes / 8;
  const int lane = static_cast<int>(thread_index().x);
  const double* a = reinterpret_cast<const double*>(p.a) + first_row * k;
  const double* b = reinterpret_cast<const double*>(p.b) + first_column * k;
  fp64_registers t{};
  for (std::int64_t i = 0; i < k; i += K) fp64_step<Rows, K>(t, a + i, b + i, k, lane);
  for (int i = 0; i < Rows / 4; ++i) {
    reinterpret_cast<double*>(p.d)[(first_row + lane / 4 + 8 * (i / 2)) * p.n + first_column + 2 * (lane % 4) + i % 2] =
        t.acc[i];
  }
}

}  // namespace rotoscale::probe
