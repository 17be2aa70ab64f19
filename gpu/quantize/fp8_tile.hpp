// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The FP8 cast's kernel. A thread block takes a tile of 128 × 128; a thread casts four rows of eight columns, twice,
// transposes its codes four by four in registers, and meets the others in shared memory for the transposed stores.
#pragma once

#include "gpu/api/quantize_fp8.hpp"
#include "gpu/dialect/lanes.hpp"
#include "gpu/quantize/block.hpp"
#include "gpu/quantize/source_tile.hpp"

namespace rotoscale::gpu {

struct fp8_kernel_args : tile_source {
  unsigned tiles_across = 0;
  const float* scale = nullptr;
  fp8_output out;
  bool bf16_source = false;
  rotoscale::rounding rounding = rotoscale::rounding::nearest_even;
  random_stream random;
  const random_stream* drawn = nullptr;
};

inline constexpr unsigned fp8_tile = 128;  // rows and columns
inline constexpr unsigned fp8_threads = 256;
template <class T>
inline constexpr unsigned fp8_blocks_per_processor = sizeof(T) == 2 && !bounds_count_waves ? 3
                                                                                           : 1;  // as registers allow

/// A thread's share of a tile: four rows of eight columns, twice, 64 columns apart.
template <class T>
struct fp8_share {
  static constexpr unsigned words = 8 * sizeof(T) / 4;
  std::uint32_t word[2][4][words];

  __device__ float value(unsigned side, unsigned r, unsigned c, bool bf16_source) const {
    constexpr unsigned per_word = 4 / sizeof(T);
    return tile_value<T>(word[side][r][c / per_word], static_cast<int>(c % per_word), bf16_source);
  }
  __device__ void load(const fp8_kernel_args& a, unsigned row, unsigned column, bool whole) {
    ROTOSCALE_UNROLL
    for (unsigned r = 0; r < 4; ++r) {
      ROTOSCALE_UNROLL
      for (unsigned side = 0; side < 2; ++side) {
        const T* from = a.element<T>(row + r, column + 64 * side);
        if (whole) {
          ROTOSCALE_UNROLL
          for (unsigned p = 0; p < words / 4; ++p) {
            const vec16 vec = load_streaming(from + p * (16 / sizeof(T)));
            ROTOSCALE_UNROLL
            for (unsigned w = 0; w < 4; ++w) word[side][r][4 * p + w] = vec.word[w];
          }
          continue;
        }
        ROTOSCALE_UNROLL
        for (unsigned w = 0; w < words; ++w) word[side][r][w] = 0;
        ROTOSCALE_UNROLL
        for (unsigned c = 0; c < 8; ++c) {
          if (row + r >= a.rows || column + 64 * side + c >= a.columns) continue;
          if constexpr (sizeof(T) == 4) {
            word[side][r][c] = fp32_bits(from[c * a.column_stride]);
          } else {
            word[side][r][c / 2] |= static_cast<std::uint32_t>(from[c * a.column_stride].bits()) << (16 * (c % 2));
          }
        }
      }
    }
  }
};

/// Four rows of four codes become four columns of four.
__device__ inline void transpose_bytes(std::uint32_t (&w)[4]) {
  const std::uint32_t a = permute_bytes<0x5140>(w[0], w[1]), b = permute_bytes<0x5140>(w[2], w[3]);
  const std::uint32_t c = permute_bytes<0x7362>(w[0], w[1]), d = permute_bytes<0x7362>(w[2], w[3]);
  w[0] = permute_bytes<0x5410>(a, b);
  w[1] = permute_bytes<0x7632>(a, b);
  w[2] = permute_bytes<0x5410>(c, d);
  w[3] = permute_bytes<0x7632>(c, d);
}

/// Codes of a share: word [side][row][half] holds columns 4 * half to 4 * half + 3.
struct fp8_codes_of_share {
  std::uint32_t word[2][4][2];
};

/// A share by the definition, read once more from memory: one number after the other, since few shares need it and
/// registers are not indexed. Returns the largest finite magnitude's bits.
template <class T, format F>
__device__ inline std::uint32_t encode_exactly(const fp8_kernel_args& a, float scale, unsigned row, unsigned column,
                                               fp8_codes_of_share& out) {
  std::uint32_t amax = 0;
  out = {};
  ROTOSCALE_KEEP_LOOP
  for (unsigned i = 0; i < 16; ++i) {
    const unsigned r = row + i / 2 % 4, c0 = column + i / 8 * 64 + i % 2 * 4;
    std::uint32_t word = 0;
    ROTOSCALE_KEEP_LOOP
    for (unsigned c = c0; c < c0 + 4; ++c) {
      if (r >= a.rows || c >= a.columns) continue;
      float x = source_value(*a.element<T>(r, c));
      if (a.bf16_source) x = round_to_format(formats::bf16, x);
      const std::uint32_t u = fp32_bits(x) & fp32_magnitude_mask;
      amax = u < fp32_infinity_bits && u > amax ? u : amax;
      const std::uint64_t index = std::uint64_t{r} * a.columns + c;
      std::uint32_t random = 0;
      if (a.rounding == rounding::stochastic) {
        const random_stream& words = a.drawn != nullptr ? *a.drawn : a.random;
        random = pick(words.block(index / 4).word, static_cast<unsigned>(index % 4));
      }
      // NaN keeps its sign, which FP32 arithmetic loses.
      const float scaled = fp32_is_nan(u) ? x : x * scale;
      const auto code = static_cast<std::uint32_t>(encode(F, scaled, a.rounding, overflow::saturate, random));
      word |= code << (8 * (c - c0));
    }
    ROTOSCALE_UNROLL
    for (unsigned k = 0; k < 16; ++k) {
      std::uint32_t& to = out.word[k / 8][k / 2 % 4][k % 2];
      to = k == i ? word : to;
    }
  }
  return amax;
}

/// Returns the largest finite magnitude's bits.
template <class T, format F, bool Exactly>
__device__ inline std::uint32_t encode_share(const fp8_kernel_args& a, const fp8_share<T>& share, float scale,
                                             unsigned row, unsigned column, fp8_codes_of_share& out) {
  if constexpr (Exactly) return encode_exactly<T, F>(a, scale, row, column, out);
  std::uint32_t amax = 0;
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < 64; ++i) {
    const std::uint32_t u = fp32_bits(share.value(i / 32, i / 8 % 4, i % 8, a.bf16_source)) & fp32_magnitude_mask;
    amax = u > amax ? u : amax;
  }
  if (amax >= fp32_infinity_bits) return encode_exactly<T, F>(a, scale, row, column, out);
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < 16; ++i) {
    const unsigned side = i / 8, r = i / 2 % 4, c = i % 2 * 4;
    const auto scaled = [&](unsigned j) { return share.value(side, r, c + j, a.bf16_source) * scale; };
    out.word[side][r][i % 2] = fp8_codes<F>(scaled(0), scaled(1)) | fp8_codes<F>(scaled(2), scaled(3)) << 16;
  }
  return amax;
}

/// The transposed codes of a tile, permuted so that neither its writers nor its readers meet in a bank.
struct fp8_stage {
  std::uint32_t word[fp8_tile * fp8_tile / 4];
  __device__ static unsigned place(unsigned column, unsigned row_word) {
    return column * (fp8_tile / 4) + (row_word ^ (column / 8 % 8 * 4));
  }
};

__device__ inline void store_bytes(std::uint8_t* to, const std::uint32_t* words, unsigned count, bool vectors) {
  if (vectors && count == 16) {
    store_streaming(to, vec16{{words[0], words[1], words[2], words[3]}});
    return;
  }
  ROTOSCALE_KEEP_LOOP
  for (unsigned i = 0; i < count; ++i) to[i] = static_cast<std::uint8_t>(words[i / 4] >> (8 * (i % 4)));
}

/// A block a tile, along rows first.
template <class T, class Element, bool Exactly>
__global__ void __launch_bounds__(fp8_threads, fp8_blocks_per_processor<T>)
    fp8_kernel(const ROTOSCALE_GRID_CONSTANT fp8_kernel_args a) {
  constexpr format F = Element::format;
  const unsigned t = thread_index().x, row0 = block_index().x / a.tiles_across * fp8_tile;
  const unsigned column0 = block_index().x % a.tiles_across * fp8_tile;
  const unsigned group = t % 8, row = row0 + t / 8 * 4, column = column0 + group * 8;
  const bool whole = a.vectors && row0 + fp8_tile <= a.rows && column0 + fp8_tile <= a.columns;
  const float scale = a.scale == nullptr ? 1.0f : *a.scale;
  if (a.out.factor != nullptr && block_index().x == 0 && t == 0) {
    *a.out.factor = a.out.scale_inverse == nullptr ? 1.0f : *a.out.scale_inverse;
  }
  auto& stage = block_shared<fp8_stage>();
  fp8_share<T> share;
  share.load(a, row, column, whole);
  fp8_codes_of_share codes;
  std::uint32_t amax = encode_share<T, F, Exactly>(a, share, scale, row, column, codes);
  if (a.out.rows != nullptr) {
    ROTOSCALE_UNROLL
    for (unsigned r = 0; r < 4; ++r) {
      ROTOSCALE_UNROLL
      for (unsigned side = 0; side < 2; ++side) {
        const unsigned c = column + 64 * side;
        std::uint8_t* to = a.out.rows + (row + r) * a.out.row_stride + c;
        if (whole) {
          store_streaming8(to, codes.word[side][r][0], codes.word[side][r][1]);
        } else if (row + r < a.rows && c < a.columns) {
          const unsigned count = a.columns - c < 8 ? a.columns - c : 8;
          ROTOSCALE_UNROLL
          for (unsigned i = 0; i < 8; ++i) {
            if (i < count) to[i] = static_cast<std::uint8_t>(codes.word[side][r][i / 4] >> (8 * (i % 4)));
          }
        }
      }
    }
  }
  if (a.out.columns != nullptr) {
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned side = i / 2, half = i % 2;
      std::uint32_t w[4] = {codes.word[side][0][half], codes.word[side][1][half], codes.word[side][2][half],
                            codes.word[side][3][half]};
      transpose_bytes(w);
      ROTOSCALE_UNROLL
      for (unsigned j = 0; j < 4; ++j) stage.word[fp8_stage::place(group * 8 + 64 * side + 4 * half + j, t / 8)] = w[j];
    }
    block_barrier();
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < fp8_tile * fp8_tile / 16 / fp8_threads; ++i) {
      const unsigned c = t / 8 + i * (fp8_threads / 8), r = row0 + t % 8 * 16;
      if (!whole && (column0 + c >= a.columns || r >= a.rows)) continue;
      std::uint8_t* to = a.out.columns + (column0 + c) * a.out.column_stride + r;
      const std::uint32_t* from = stage.word + fp8_stage::place(c, t % 8 * 4);
      store_bytes(to, from, whole || a.rows - r >= 16 ? 16 : a.rows - r, a.vectors);
    }
  }
  if (a.out.amax != nullptr) {
    amax = segment_max(amax);
    auto* to = reinterpret_cast<std::uint32_t*>(a.out.amax);
    if (t % 32 == 0 && amax > load_relaxed(to)) atomic_max(to, amax);
  }
}

}  // namespace rotoscale::gpu
