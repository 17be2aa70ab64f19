// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The FP8 cast's kernel: 128 × 128 tiles, one per thread block.
// 1. A thread loads four rows of eight columns, twice, and casts them.
// 2. It stores its codes along rows.
// 3. It transposes its codes 4 × 4 in registers. The transposed stores go through shared memory.
#pragma once

#include "gpu/api/quantize_fp8.hpp"
#include "gpu/dialect/lanes.hpp"
#include "gpu/quantize/block.hpp"
#include "gpu/quantize/source_tile.hpp"

namespace rotoscale::gpu {

/// Options of the cast.
struct fp8_cast {
  const float* scale = nullptr;  ///< null: 1
  bool bf16_source = false;
  rotoscale::rounding rounding = rotoscale::rounding::nearest_even;
  random_stream random;
  nn::form_draws draws;
  const nn::step_state* state = nullptr;
};
struct fp8_kernel_args : tile_source {
  unsigned tiles_across = 0;
  fp8_cast cast;
  fp8_output out;
};

inline constexpr unsigned fp8_tile = 128;  // rows and columns
inline constexpr unsigned fp8_threads = 256;
template <class T>
inline constexpr unsigned fp8_blocks_per_processor = sizeof(T) == 2 && !bounds_count_waves ? 3
                                                                                           : 1;  // limited by registers

/// A thread's part of a tile: four rows of eight columns, twice, 64 columns apart.
template <class T>
struct fp8_share {
  static constexpr unsigned words = 8 * sizeof(T) / 4;
  std::uint32_t word[2][4][words];

  __device__ float value(unsigned side, unsigned r, unsigned c, bool bf16_source) const {
    constexpr unsigned per_word = 4 / sizeof(T);
    return tile_value<T>(word[side][r][c / per_word], static_cast<int>(c % per_word), bf16_source);
  }
  /// The source's value at an index that is known only at run time.
  __device__ float picked(unsigned side, unsigned r, unsigned c) const {
    constexpr unsigned per_word = 4 / sizeof(T);
    std::uint32_t bits = 0;
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < 8 * words; ++i) {
      bits |= word[i / words / 4][i / words % 4][i % words] & (i == (side * 4 + r) * words + c / per_word ? ~0u : 0u);
    }
    return tile_value<T>(bits, static_cast<int>(c % per_word), false);
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

/// Transposes 4 × 4 bytes: w[i] is row i before and column i after.
__device__ inline void transpose_bytes(std::uint32_t (&w)[4]) {
  const std::uint32_t a = permute_bytes<0x5140>(w[0], w[1]), b = permute_bytes<0x5140>(w[2], w[3]);
  const std::uint32_t c = permute_bytes<0x7362>(w[0], w[1]), d = permute_bytes<0x7362>(w[2], w[3]);
  w[0] = permute_bytes<0x5410>(a, b);
  w[1] = permute_bytes<0x7632>(a, b);
  w[2] = permute_bytes<0x5410>(c, d);
  w[3] = permute_bytes<0x7632>(c, d);
}

/// A thread's codes: word [side][row][half] holds columns 4 * half to 4 * half + 3.
struct fp8_codes_of_share {
  std::uint32_t word[2][4][2];
};

/// Position of a thread's part in the matrix of rows × columns.
struct fp8_place {
  unsigned row, column, rows, columns;
  bool whole;  ///< the tile is inside the matrix, and all accesses are 16-byte vectors
};

/// Casts a thread's part by the definition, one element at a time: it is rare, and registers cannot be indexed.
/// `element(side, r, c)` returns the source's value. Returns the bits of the largest finite magnitude.
template <format F, class Element>
__device__ inline std::uint32_t encode_exactly(const fp8_cast& cast, float scale, const fp8_place& at,
                                               const Element& element, fp8_codes_of_share& out) {
  std::uint32_t amax = 0;
  out = {};
  ROTOSCALE_KEEP_LOOP
  for (unsigned i = 0; i < 16; ++i) {
    const unsigned side = i / 8, r = i / 2 % 4, c0 = i % 2 * 4;
    std::uint32_t word = 0;
    ROTOSCALE_KEEP_LOOP
    for (unsigned c = c0; c < c0 + 4; ++c) {
      const unsigned row = at.row + r, column = at.column + 64 * side + c;
      if (row >= at.rows || column >= at.columns) continue;
      float x = element(side, r, c);
      if (cast.bf16_source) x = round_to_format(formats::bf16, x);
      const std::uint32_t u = fp32_bits(x) & fp32_magnitude_mask;
      amax = u < fp32_infinity_bits && u > amax ? u : amax;
      const std::uint64_t index = std::uint64_t{row} * at.columns + column;
      std::uint32_t random = 0;
      if (cast.rounding == rounding::stochastic) {
        const random_stream words = cast.state != nullptr ? cast.draws.words(*cast.state) : cast.random;
        random = pick(words.block(index / 4).word, static_cast<unsigned>(index % 4));
      }
      // FP32 arithmetic would lose the sign of NaN.
      const float scaled = fp32_is_nan(u) ? x : x * scale;
      const auto code = static_cast<std::uint32_t>(encode(F, scaled, cast.rounding, overflow::saturate, random));
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

/// The same with a fast path for finite parts. Returns the bits of the largest finite magnitude.
template <format F, bool Exactly, class T, class Element>
__device__ inline std::uint32_t encode_share(const fp8_cast& cast, const fp8_share<T>& share, float scale,
                                             const fp8_place& at, const Element& element, fp8_codes_of_share& out) {
  if constexpr (Exactly) return encode_exactly<F>(cast, scale, at, element, out);
  std::uint32_t amax = 0;
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < 64; ++i) {
    const std::uint32_t u = fp32_bits(share.value(i / 32, i / 8 % 4, i % 8, cast.bf16_source)) & fp32_magnitude_mask;
    amax = u > amax ? u : amax;
  }
  if (amax >= fp32_infinity_bits) return encode_exactly<F>(cast, scale, at, element, out);
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < 16; ++i) {
    const unsigned side = i / 8, r = i / 2 % 4, c = i % 2 * 4;
    const auto scaled = [&](unsigned j) { return share.value(side, r, c + j, cast.bf16_source) * scale; };
    out.word[side][r][i % 2] = fp8_codes<F>(scaled(0), scaled(1)) | fp8_codes<F>(scaled(2), scaled(3)) << 16;
  }
  return amax;
}

/// Transposed codes of a tile, swizzled so that neither writes nor reads have bank conflicts.
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

/// Stores a thread's codes along rows.
__device__ inline void store_fp8_rows(const fp8_output& out, const fp8_codes_of_share& codes, const fp8_place& at) {
  ROTOSCALE_UNROLL
  for (unsigned r = 0; r < 4; ++r) {
    ROTOSCALE_UNROLL
    for (unsigned side = 0; side < 2; ++side) {
      const unsigned c = at.column + 64 * side;
      std::uint8_t* to = out.rows + (at.row + r) * out.row_stride + c;
      if (at.whole) {
        store_streaming8(to, codes.word[side][r][0], codes.word[side][r][1]);
      } else if (at.row + r < at.rows && c < at.columns) {
        const unsigned count = at.columns - c < 8 ? at.columns - c : 8;
        ROTOSCALE_UNROLL
        for (unsigned i = 0; i < 8; ++i) {
          if (i < count) to[i] = static_cast<std::uint8_t>(codes.word[side][r][i / 4] >> (8 * (i % 4)));
        }
      }
    }
  }
}

/// Stores the tile's codes along columns, by all threads of a block.
__device__ inline void store_fp8_columns(const fp8_output& out, const fp8_codes_of_share& codes, fp8_stage& stage,
                                         const fp8_place& at, bool vectors) {
  const unsigned t = thread_index().x, row0 = at.row / fp8_tile * fp8_tile, column0 = at.column / fp8_tile * fp8_tile;
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned side = i / 2, half = i % 2;
    std::uint32_t w[4] = {codes.word[side][0][half], codes.word[side][1][half], codes.word[side][2][half],
                          codes.word[side][3][half]};
    transpose_bytes(w);
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < 4; ++j) {
      stage.word[fp8_stage::place(t % 8 * 8 + 64 * side + 4 * half + j, t / 8)] = w[j];
    }
  }
  block_barrier();
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < fp8_tile * fp8_tile / 16 / fp8_threads; ++i) {
    const unsigned c = t / 8 + i * (fp8_threads / 8), r = row0 + t % 8 * 16;
    if (!at.whole && (column0 + c >= at.columns || r >= at.rows)) continue;
    std::uint8_t* to = out.columns + (column0 + c) * out.column_stride + r;
    const std::uint32_t* from = stage.word + fp8_stage::place(c, t % 8 * 4);
    store_bytes(to, from, at.whole || at.rows - r >= 16 ? 16 : at.rows - r, vectors);
  }
}

/// Raises *to to the maximum over all threads.
__device__ inline void raise_amax(float* to, std::uint32_t amax) {
  amax = subgroup_max(amax);
  auto* const bits = reinterpret_cast<std::uint32_t*>(to);
  if (thread_index().x % 32 == 0 && amax > load_relaxed(bits)) atomic_max(bits, amax);
}

__device__ inline void store_factor(const fp8_output& out) {
  if (out.factor == nullptr || block_index().x != 0 || thread_index().x != 0) return;
  *out.factor = out.scale_inverse == nullptr ? 1.0f : *out.scale_inverse;
}

/// Position of this thread's part. Blocks walk tiles along rows first.
__device__ inline fp8_place fp8_place_of_thread(unsigned tiles_across, unsigned rows, unsigned columns, bool vectors) {
  const unsigned row0 = block_index().x / tiles_across * fp8_tile, column0 = block_index().x % tiles_across * fp8_tile;
  const unsigned t = thread_index().x;
  return {row0 + t / 8 * 4, column0 + t % 8 * 8, rows, columns,
          vectors && row0 + fp8_tile <= rows && column0 + fp8_tile <= columns};
}

/// One thread block per tile: load, encode, store rows, store columns, update amax.
template <class T, class Element, bool Exactly>
__global__ void __launch_bounds__(fp8_threads, fp8_blocks_per_processor<T>)
    fp8_kernel(const ROTOSCALE_GRID_CONSTANT fp8_kernel_args a) {
  const fp8_place at = fp8_place_of_thread(a.tiles_across, a.rows, a.columns, a.vectors);
  const float scale = a.cast.scale == nullptr ? 1.0f : *a.cast.scale;
  store_factor(a.out);
  fp8_share<T> share;
  share.load(a, at.row, at.column, at.whole);
  fp8_codes_of_share codes;
  const auto element = [&](unsigned side, unsigned r, unsigned c) {  // reads memory again
    return source_value(*a.element<T>(at.row + r, at.column + 64 * side + c));
  };
  const std::uint32_t amax = encode_share<Element::format, Exactly>(a.cast, share, scale, at, element, codes);
  if (a.out.rows != nullptr) store_fp8_rows(a.out, codes, at);
  if (a.out.columns != nullptr) store_fp8_columns(a.out, codes, block_shared<fp8_stage>(), at, a.vectors);
  if (a.out.amax != nullptr) raise_amax(a.out.amax, amax);
}

}  // namespace rotoscale::gpu
