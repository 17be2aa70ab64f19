// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The quantizer of BF16 numbers: what codes and scales would hold, code * scale, in the source's orientation. GEMMs on
// a BF16 unit read such numbers, so no codes are packed, stored or expanded.
// 1. Load a small tile into shared memory.
// 2. Each thread quantizes a run along a column, and stores its numbers directly.
// 3. Each thread quantizes a run along a row. The tile of numbers is staged and stored 16 bytes at a time.
#pragma once

#include "gpu/quantize/dequantize_kernel.hpp"
#include "gpu/quantize/small_tile.hpp"

namespace rotoscale::gpu {

/// Thread blocks per SM: with their registers the paths keep a run and its exchange of scales without spills.
template <quantize_path Path>
inline constexpr unsigned values_blocks_per_processor =
    Path == quantize_path::general                                                 ? 4
    : Path == quantize_path::mxfp4_nearest || Path == quantize_path::nvfp4_nearest ? 8
                                                                                   : 6;

template <class T>
inline constexpr std::size_t values_shared_bytes = small_tile_bytes<T> + small_tile_bytes<bf16>;

/// True if numbers under this scale are zero or normal in BF16, whatever the code. Quantizers write no NaN or Inf code.
template <format F>
__device__ inline bool scale_is_plain(bool e8m0, std::uint32_t byte) {
  constexpr unsigned least = 1 - (F.min_exponent() - F.mantissa_bits), most = 254 - F.max_exponent();
  return e8m0 ? byte - least <= most - least : byte != 0x7F;
}

/// Codes 4 g to 4 g + 3 of a run, in the low bits. (E2M1: 8 g to 8 g + 7.)
template <format F>
__device__ inline std::uint32_t codes_of_group(const std::uint32_t (&code)[storage_bits(F)], unsigned g) {
  if constexpr (F.bits() != 6) return code[g];
  const unsigned w = 24 * g / 32, shift = 24 * g % 32;
  const std::uint32_t high = shift > 8 ? code[w + 1] << (32 - shift) : 0;
  return (code[w] >> shift | high) & 0xFFFFFFu;
}

/// The numbers of a run as pairs of BF16, with the bits of dequantize. `scales`: quantize_run's result.
template <format F>
[[gnu::always_inline]] __device__ inline void values_of_run(const block_format& f, bool e8m0, bool halves,
                                                            const std::uint32_t (&code)[storage_bits(F)],
                                                            std::uint32_t scales, std::uint32_t (&pair)[16]) {
  constexpr unsigned count = word_count<F>, words = count / 2;
  const std::uint32_t byte[2] = {scales & 0xFFu, halves ? scales >> 8 : scales & 0xFFu};
  const bool plain = scale_is_plain<F>(e8m0, byte[0]) && scale_is_plain<F>(e8m0, byte[1]);
  float scale[2];
  ROTOSCALE_UNROLL
  for (int i = 0; i < 2; ++i) {
    scale[i] = !plain ? scale_of(f.scale, byte[i]) : e8m0 ? fp32_from_bits(byte[i] << 23) : fp8_value(true, byte[i]);
  }
  ROTOSCALE_UNROLL
  for (unsigned g = 0; g < 32 / count; ++g) {
    const std::uint32_t codes = codes_of_group<F>(code, g);
    const float own = scale[g / (16 / count)];
    decoded<bf16, F> out;
    if (!plain) {
      decode_word<bf16, F>(codes, own, 1.0f, out);
    } else if constexpr (F.bits() == 4) {
      const std::uint32_t high = fp32_bits(own) >> 16;
      const vec16 eight = scale_eight(codes, high | high << 16);
      ROTOSCALE_UNROLL
      for (unsigned w = 0; w < words; ++w) out[w] = eight.word[w];
    } else {
      ROTOSCALE_UNROLL
      for (unsigned j = 0; j < count; j += 2) {
        std::uint32_t x[2];
        ROTOSCALE_UNROLL
        for (unsigned i = 0; i < 2; ++i) {
          x[i] = fp32_bits(code_value<F>(codes >> (storage_bits(F) * (j + i)) & ((1u << storage_bits(F)) - 1)) * own);
        }
        out[j / 2] = permute_bytes<0x7632>(x[0], x[1]);
      }
    }
    ROTOSCALE_UNROLL
    for (unsigned w = 0; w < words; ++w) pair[g * words + w] = out[w];
  }
}

/// Quantizes one run of a tile to numbers.
template <class T, format F, quantize_path Path, bool Rows>
[[gnu::always_inline]] __device__ inline void make_values(const quantize_kernel_args& a, const tile_view<T>& tile,
                                                          unsigned v, unsigned first, std::uint64_t index,
                                                          std::uint32_t (&pair)[16]) {
  using kind = run_kind<Path>;
  std::uint32_t code[storage_bits(F)];
  const std::uint32_t scales = quantize_run<T, F, Path, Rows>(a, tile, v, first, index, code);
  values_of_run<F>(a.format, kind::has_e8m0_scale(a.format), kind::length(a.format) == 16, code, scales, pair);
}

/// A column per thread. The tile has all rows of its runs.
template <class T, format F, quantize_path Path>
__device__ inline void store_values_of_columns(const quantize_kernel_args& a, const tile_view<T>& tile,
                                               const tile_origin& at) {
  const block_output& out = a.column;
  const unsigned v = at.column + thread_index().x;
  if (v >= a.columns) return;
  std::uint32_t pair[16];
  make_values<T, F, Path, false>(a, tile, thread_index().x, 0, out.random_first + v * out.random_step + at.row, pair);
  auto* to = reinterpret_cast<any_half*>(out.codes + at.row * out.code_stride) + v;
  const index_t step = out.code_stride / 2;
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < 16; ++i) {
    to[0] = static_cast<std::uint16_t>(pair[i]);
    to[step] = static_cast<std::uint16_t>(pair[i] >> 16);
    to += 2 * step;
  }
}

/// Runs along rows, through the stage. All threads call it.
template <class T, format F, quantize_path Path>
__device__ inline void store_values_of_rows(const quantize_kernel_args& a, const tile_view<T>& tile,
                                            const tile_view<bf16>& stage, const tile_origin& at) {
  const block_output& out = a.row;
  const row_run own(run_kind<Path>::height(a.format) != 1);
  const unsigned v = at.row + own.row, first = at.column + own.first;
  if (v < a.rows && first < a.columns) {
    std::uint32_t pair[16];
    make_values<T, F, Path, true>(a, tile, own.row, own.first, out.random_first + v * out.random_step + first, pair);
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      *stage.vec(own.row, own.first / 8 + i) = {{pair[4 * i], pair[4 * i + 1], pair[4 * i + 2], pair[4 * i + 3]}};
    }
  }
  block_barrier();
  constexpr unsigned row_vecs = tile_view<bf16>::row_vecs;
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < small_rows * row_vecs; i += tile_threads) {
    const unsigned r = (i + thread_index().x) / row_vecs, p = (i + thread_index().x) % row_vecs;
    if (at.row + r >= a.rows || at.column + 8 * p >= a.columns) continue;
    *reinterpret_cast<vec16*>(out.codes + (at.row + r) * out.code_stride + 2 * (at.column + 8 * p)) = *stage.vec(r, p);
  }
}

/// `codes` of an output are BF16 numbers, their rows `code_stride` bytes apart.
template <class T, class Element, quantize_path Path>
__global__ void __launch_bounds__(tile_threads, values_blocks_per_processor<Path>)
    values_kernel(const ROTOSCALE_GRID_CONSTANT quantize_kernel_args a) {
  constexpr format F = Element::format;
  wait_for_kernel_before();
  auto* shared = dynamic_shared<unsigned char>();
  const tile_view<bf16> stage{shared + small_tile_bytes<T>};
  make_general_options(a);
  walk_small_tiles<T>(a, shared, [&](const tile_view<T>& tile, const tile_origin& at) {
    if (a.column.codes != nullptr) store_values_of_columns<T, F, Path>(a, tile, at);
    if (a.row.codes != nullptr) store_values_of_rows<T, F, Path>(a, tile, stage, at);
  });
}

}  // namespace rotoscale::gpu
