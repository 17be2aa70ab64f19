// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The MXFP4 GEMM of gfx942, which has neither FP4 nor block scales; plain codes and scales.
// MXFP4: E2M1 codes become FP8 bytes, one FP8 matrix instruction multiplies a block of 32 from zero, which is exact in
// whatever order the unit adds (multiples of 1/4 below 2^11, 24 bits), and one fused multiply-add scales and adds it.
// So the bits are those of the reference. MXFP8: products of E4M3 would need more bits than the unit keeps, so a pass
// of its own (expand.hpp) folds scales into BF16, exactly, and the kernel of dense.hpp multiplies. Compiled with clang
// and executed on an emulator with FNUZ bytes; nobody has run it on the device.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/gemm/amd/common.hpp"
#include "gpu/gemm/reference_kernel.hpp"

namespace rotoscale::gpu::gfx942 {

using amd::threads, amd::tile;

inline constexpr int step = 128;  // k of a step: 64 bytes and four scales a row

using amd::float4;
using amd::int4;

struct arguments {
  kernel_operand a, b;
  gemm_arguments p;
};

/// Bytes of FP8 for magnitudes 0 to 7 (0.5, 1, 1.5, ...): E4M3FNUZ, or E4M3 where the unit takes OCP's.
inline constexpr std::uint32_t table_low = amd::fp8_is_fnuz ? 0x44403800u : 0x3C383000u;
inline constexpr std::uint32_t table_high = amd::fp8_is_fnuz ? 0x54504C48u : 0x4C484440u;
static_assert(decode(formats::e4m3fnuz, 0x38) == 0.5f && decode(formats::e4m3fnuz, 0x44) == 1.5f &&
              decode(formats::e4m3fnuz, 0x48) == 2.0f && decode(formats::e4m3fnuz, 0x54) == 6.0f);
static_assert(decode(formats::e4m3, 0x30) == 0.5f && decode(formats::e4m3, 0x3C) == 1.5f &&
              decode(formats::e4m3, 0x40) == 2.0f && decode(formats::e4m3, 0x4C) == 6.0f);

/// Four codes, in the low halves of bytes, as FP8. FNUZ has no -0: a zero loses its sign.
__device__ inline std::uint32_t to_fp8(std::uint32_t codes) {
  const std::uint32_t magnitude = codes & 0x07070707u;
  const std::uint32_t value = amd::permute(table_low, table_high, magnitude);
  const std::uint32_t nonzero = amd::permute(0x80808000u, 0x80808080u, magnitude);
  return value | ((codes & 0x08080808u) << 4 & nonzero);
}
/// Eight codes; even ones first, which both operands do alike.
__device__ inline std::int64_t to_fragment(std::uint32_t codes) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(to_fp8(codes >> 4)) << 32 | to_fp8(codes));
}

/// Largest and least scale byte of a row so far.
struct byte_range {
  int least = 255, largest = 0;
  __device__ void add(int byte) {
    least = byte < least ? byte : least;
    largest = byte > largest ? byte : largest;
  }
};
/// Do all products of two rows' scales stay within what one multiply-add takes? Else the output is computed again.
__device__ inline bool scales_are_plain(const byte_range& a, const byte_range& b) {
  return a.least >= 1 && b.least >= 1 && a.largest <= 254 && b.largest <= 254 && a.least + b.least - 254 >= -147 &&
         a.largest + b.largest - 254 <= 127;
}

template <class Tile>
struct shared_memory {
  alignas(16) std::uint8_t codes[2][(Tile::rows + Tile::columns) * 64];  ///< [buffer]: A's, then B's
  std::uint32_t scales[2][2][Tile::columns];                             ///< [buffer][operand]
};

/// Of 16-byte vector `vec` of row `row`: vectors are permuted so that the rows of a fragment lie in different banks.
__device__ inline int lds_offset(int row, int vec) { return row * 64 + (vec ^ (row / 2 % 4)) * 16; }

/// 64 bytes of each row of the tiles of A and B on their way to LDS: a thread's vectors.
template <class Tile>
struct staged_rows {
  struct source {
    const std::uint8_t* codes;  ///< of row 0, at the step's k
    std::int64_t stride;
    int rows, first;
  };
  int4 vec[2][2];
  __device__ void load(const source& a, const source& b) {
    const int thread = static_cast<int>(thread_index().x);
    ROTOSCALE_UNROLL
    for (int m = 0; m < 2; ++m) {
      const source& x = m == 0 ? a : b;
      ROTOSCALE_UNROLL
      for (int i = 0; i < Tile::extent(m); i += 64) {
        const int row = x.first + thread / 4 + i, last = x.rows - 1;
        vec[m][i / 64] =
            *reinterpret_cast<const int4*>(x.codes + (row < last ? row : last) * x.stride + thread % 4 * 16);
      }
    }
  }
  __device__ void store(std::uint8_t* to) {
    const int thread = static_cast<int>(thread_index().x);
    ROTOSCALE_UNROLL
    for (int m = 0; m < 2; ++m) {
      ROTOSCALE_UNROLL
      for (int i = 0; i < Tile::extent(m); i += 64) {
        if (Tile::extent(m) < 64 && thread / 4 >= Tile::extent(m)) continue;
        amd::keep_in_vector_registers(vec[m][i / 64]);
        *reinterpret_cast<int4*>(to + Tile::first(m) * 64 + lds_offset(thread / 4 + i, thread % 4)) = vec[m][i / 64];
      }
    }
  }
};

/// A grid of (columns of tiles, rows of tiles) blocks. Vector: BF16, rows of whole 8 bytes, no C, no bias.
template <int Rows, int Columns, bool Vector>
[[maybe_unused]] static __global__ void ROTOSCALE_AMD_BLOCK(threads, (Rows < 128 ? 2 : 1), 2)
    gemm_kernel(const arguments g) {
  using Tile = tile<Rows, Columns>;
  constexpr int row_tiles = Tile::row_tiles, column_tiles = Tile::column_tiles;
  static_assert(row_tiles * column_tiles * 4 <= 64, "a bit an output of a lane");
  static_assert(Columns == threads / 2 && Rows <= Columns, "half of the threads load scales of B");
  auto& shared = block_shared<shared_memory<Tile>>();
  const int thread = static_cast<int>(thread_index().x), lane = thread % 64, wave = thread / 64;
  const int first_row = static_cast<int>(block_index().y) * Rows,
            first_column = static_cast<int>(block_index().x) * Columns;
  const int wave_row = wave / Tile::waves_across * Tile::wave_rows,
            wave_column = wave % Tile::waves_across * Tile::wave_columns;

  staged_rows<Tile> staged;
  std::uint32_t staged_scale;
  const auto load = [&](int k) {
    staged.load({g.a.codes + k / 2, g.a.code_stride, g.a.rows, first_row},
                {g.b.codes + k / 2, g.b.code_stride, g.b.rows, first_column});
    const bool second = thread >= Columns;
    const kernel_operand& x = second ? g.b : g.a;
    const int row = (second ? first_column : first_row) + thread % Columns;  // A's beyond its tile: nobody reads them
    staged_scale =
        *reinterpret_cast<const std::uint32_t*>(x.scales + (row < x.rows ? row : x.rows - 1) * x.scale_stride + k / 32);
  };
  const auto stage = [&](int buffer) {
    staged.store(shared.codes[buffer]);
    amd::keep_in_vector_registers(staged_scale);
    shared.scales[buffer][thread / Columns][thread % Columns] = staged_scale;
  };

  // D of an instruction: lane l holds row l % 16 of C and columns 4 (l / 16) .. + 3, since B goes first.
  float4 acc[row_tiles][column_tiles] = {};  // [row tile][column tile]
  byte_range range_a[row_tiles], range_b[column_tiles][4];
  load(0);
  for (int k = 0; k < g.a.k; k += step) {
    const int buffer = k / step % 2;
    stage(buffer);
    block_barrier();
    if (k + step < g.a.k) load(k + step);
    std::uint32_t scale_a[row_tiles], scale_b[column_tiles][4];
    static_assert(row_tiles == column_tiles);
    ROTOSCALE_UNROLL
    for (int i = 0; i < row_tiles; ++i) {
      scale_a[i] = shared.scales[buffer][0][wave_row + 16 * i + lane % 16];
      ROTOSCALE_UNROLL
      for (int e = 0; e < 4; ++e) scale_b[i][e] = shared.scales[buffer][1][wave_column + 16 * i + lane / 16 * 4 + e];
    }
    ROTOSCALE_UNROLL
    for (int block = 0; block < 4; ++block) {
      const auto fragment = [&](int m, int row) {
        std::uint32_t codes;
        __builtin_memcpy(
            &codes, shared.codes[buffer] + Tile::first(m) * 64 + lds_offset(row + lane % 16, block) + lane / 16 * 4, 4);
        return to_fragment(codes);
      };
      std::int64_t a[row_tiles];
      float factor_a[row_tiles];
      ROTOSCALE_UNROLL
      for (int i = 0; i < row_tiles; ++i) {
        a[i] = fragment(0, wave_row + 16 * i);
        const std::uint32_t byte = scale_a[i] >> (8 * block) & 0xFFu;
        range_a[i].add(static_cast<int>(byte));
        factor_a[i] = fp32_from_bits(byte << 23);
      }
      ROTOSCALE_UNROLL
      for (int j = 0; j < column_tiles; ++j) {
        const std::int64_t b = fragment(1, wave_column + 16 * j);
        float factor_b[4];
        ROTOSCALE_UNROLL
        for (int e = 0; e < 4; ++e) {
          const std::uint32_t byte = scale_b[j][e] >> (8 * block) & 0xFFu;
          range_b[j][e].add(static_cast<int>(byte));
          factor_b[e] = fp32_from_bits(byte << 23);
        }
        ROTOSCALE_UNROLL
        for (int i = 0; i < row_tiles; ++i) {
          const float4 sum = amd::multiply_fp8(b, a[i]);
          ROTOSCALE_UNROLL
          for (int e = 0; e < 4; ++e) acc[i][j][e] = __builtin_fmaf(sum[e], factor_a[i] * factor_b[e], acc[i][j][e]);
        }
      }
    }
  }

  // Outputs whose scales one multiply-add does not take, a bit each, are computed again at the end.
  std::uint64_t again = 0;
  const int row0 = first_row + wave_row + lane % 16, column0 = first_column + wave_column + lane / 16 * 4;
  ROTOSCALE_UNROLL
  for (int i = 0; i < row_tiles; ++i) {
    const int row = row0 + 16 * i;
    ROTOSCALE_UNROLL
    for (int j = 0; j < column_tiles; ++j) {
      const int column = column0 + 16 * j;
      const bool inside = row < g.p.m && column < g.p.n;
      ROTOSCALE_UNROLL
      for (int e = 0; e < 4; ++e) {
        const bool plain = scales_are_plain(range_a[i], range_b[j][e]);
        again |= static_cast<std::uint64_t>(!plain) << (4 * (column_tiles * i + j) + e);
        if (!Vector && plain && inside && column + e < g.p.n) store_output(g.p, acc[i][j][e], row, column + e);
      }
      if (Vector && inside) amd::store_four(g.p, acc[i][j], row, column);
    }
  }
  for (; again != 0; again &= again - 1) {
    const int i = __builtin_ctzll(again), row = row0 + i / (4 * column_tiles) * 16,
              column = column0 + i / 4 % column_tiles * 16 + i % 4;
    if (row < g.p.m && column < g.p.n) store_output(g.p, reference_sum(g.a, g.b, row, column), row, column);
  }
}

}  // namespace rotoscale::gpu::gfx942
