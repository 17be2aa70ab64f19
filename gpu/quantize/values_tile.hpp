// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Quantizes to BF16 numbers: code * scale, in the source's orientation. GEMMs on
// a BF16 unit read such numbers, so no codes are packed, stored or expanded.
// 1. Load a small tile into shared memory.
// 2. Each thread quantizes a run along a column. The numbers are staged, and stored 16 bytes at a time.
// 3. The same along rows.
#pragma once

#include "gpu/quantize/dequantize_kernel.hpp"
#include "gpu/quantize/small_tile.hpp"

namespace rotoscale::gpu {

/// Thread blocks per SM: with their registers the paths keep a run and its exchange of scales without spills.
template <quantize_path Path>
inline constexpr unsigned values_blocks_per_processor =
    Path == quantize_path::general                                              ? 4
    : Path == quantize_path::mx_nearest || Path == quantize_path::nvfp4_nearest ? 8
                                                                                : 6;

template <class T>
inline constexpr std::size_t values_shared_bytes = small_tile_bytes<T> + small_tile_bytes<bf16>;

/// Codes 4 g to 4 g + 3 of a run, in the low bits. (E2M1: 8 g to 8 g + 7.)
template <format F>
__device__ inline std::uint32_t codes_of_group(const std::uint32_t (&code)[storage_bits(F)], unsigned g) {
  if constexpr (F.bits() != 6) return code[g];
  const unsigned w = 24 * g / 32, shift = 24 * g % 32;
  const std::uint32_t high = shift > 8 ? code[w + 1] << (32 - shift) : 0;
  return (code[w] >> shift | high) & 0xFFFFFFu;
}

/// The numbers of codes as pairs of BF16, with the bits of dequantize. `scale`: of each half. `Exact`: BF16 holds the
/// products of E2M1 numbers with the scale.
template <format F, bool Exact>
[[gnu::always_inline]] __device__ inline void decode_run(const std::uint32_t (&code)[storage_bits(F)],
                                                         const float (&scale)[2], std::uint32_t (&pair)[16]) {
  constexpr unsigned count = word_count<F>, words = count / 2;
  ROTOSCALE_UNROLL
  for (unsigned g = 0; g < 32 / count; ++g) {
    const std::uint32_t codes = codes_of_group<F>(code, g);
    const float own = scale[g / (16 / count)];
    decoded<bf16, F> out;
    if constexpr (Exact && F.bits() == 4) {
      const std::uint32_t high = fp32_bits(own) >> 16;
      const vec16 eight = scale_eight(codes, high | high << 16);
      ROTOSCALE_UNROLL
      for (unsigned w = 0; w < words; ++w) out[w] = eight.word[w];
    } else {
      decode_word<bf16, F>(codes, own, 1.0f, out);
    }
    ROTOSCALE_UNROLL
    for (unsigned w = 0; w < words; ++w) pair[g * words + w] = out[w];
  }
}

/// The number of F nearest to `y`, ties to even, saturated; the sign stays.
template <format F>
__device__ inline float nearest_value(float y) {
  constexpr std::uint32_t least_normal = static_cast<std::uint32_t>(F.min_exponent() + 127) << 23;
  constexpr float largest = decode(F, F.max_code());
  const float m = fp32_from_bits(fp32_bits(y) & fp32_magnitude_mask);
  const std::uint32_t field = fp32_bits(m) & fp32_infinity_bits;
  // The addition rounds at the last place of F in the number's binade.
  const float magic = fp32_from_bits((field > least_normal ? field : least_normal) + ((23u - F.mantissa_bits) << 23));
  const float rounded = (m + magic) - magic;
  return fp32_from_bits(fp32_bits(rounded < largest ? rounded : largest) | (fp32_bits(y) & fp32_sign_mask));
}

/// quantize_slow_run, then its numbers in `pair`.
template <class T, format F, bool Rows>
ROTOSCALE_NOINLINE void slow_values(const block_format& f, const block_options& o, tile_view<T> tile, unsigned v,
                                    unsigned first, std::uint64_t index, const std::uint32_t* amax,
                                    const float* expansion, std::uint32_t (&pair)[16]) {
  std::uint32_t code[storage_bits(F)];
  const std::uint32_t scales = quantize_slow_run<T, F, Rows>(f, o, tile, v, first, index, amax, expansion, code);
  const float scale[2] = {scale_of(f.scale, scales & 0xFFu),
                          scale_of(f.scale, f.length == 16 ? scales >> 8 : scales & 0xFFu)};
  decode_run<F, false>(code, scale, pair);
}

/// scale_value of a byte below 0xFF.
__device__ inline float e8m0_value(std::uint32_t byte) { return fp32_from_bits(byte == 0 ? 1u << 22 : byte << 23); }

/// The numbers of a measured run on the fast path.
template <format F, quantize_path Path, bool Rows>
[[gnu::always_inline]] __device__ inline void fast_values(const quantize_kernel_args& a, std::uint64_t index,
                                                          general_run& run, std::uint32_t (&pair)[16]) {
  using kind = run_kind<Path>;
  const block_options& o = block_shared<general_options>().of[Rows ? 0 : 1].get();
  const bool direct = F.bits() != 4 && !kind::is_stochastic(o);
  scale_run<F, Path, Rows>(a, run);
  std::uint32_t code[storage_bits(F)];
  if (!direct) encode_scaled_run<F, Path, Rows>(index, run, code);
  float scale[2];
  ROTOSCALE_UNROLL
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t byte = run.scale[i].byte;
    scale[i] = kind::has_e8m0_scale(a.format) ? e8m0_value(byte) : fp8_value(true, byte);
  }
  if (!direct) return decode_run<F, F.bits() == 4>(code, scale, pair);
  if constexpr (F.bits() != 4) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < 16; ++i) {
      const float* const two = &run.y[i / 8][i % 8 * 2];
      const float own = scale[i / 8];
      pair[i] = bf16_pair(nearest_value<F>(two[0]) * own, nearest_value<F>(two[1]) * own);
    }
  }
}

/// Passes the numbers of a run to `store`. A run off the fast path is stored twice, so that no register of the fast
/// path lives across the call.
template <class T, format F, quantize_path Path, bool Rows, class Store>
[[gnu::always_inline]] __device__ inline void make_values(const quantize_kernel_args& a, const tile_view<T>& tile,
                                                          unsigned v, unsigned first, std::uint64_t index,
                                                          const Store& store) {
  general_run run;
  const bool slow = measure_run<T, F, Path, Rows>(a, tile, v, first, run);
  {
    std::uint32_t pair[16];
    fast_values<F, Path, Rows>(a, index, run, pair);
    store(pair);
  }
  if (!slow) return;
  with_slow_arguments<Path, Rows>(a, run,
                                  [&](const block_options& o, const std::uint32_t* amax, const float* expansion) {
                                    std::uint32_t pair[16];
                                    slow_values<T, F, Rows>(a.format, o, tile, v, first, index, amax, expansion, pair);
                                    store(pair);
                                  });
}

/// Stages the numbers of a thread's column. The tile has all rows of its runs.
template <class T, format F, quantize_path Path>
__device__ inline void stage_values_of_columns(const quantize_kernel_args& a, const tile_view<T>& tile,
                                               const tile_view<bf16>& stage, const tile_origin& at) {
  const block_output& out = a.column;
  const unsigned c = thread_index().x, v = at.column + c;
  if (v >= a.columns) return;
  // All even rows of the stage have one swizzle, all odd rows another.
  auto* const even = reinterpret_cast<any_half*>(stage.element(0, c));
  auto* const odd = reinterpret_cast<any_half*>(stage.element(1, c));
  const auto store = [&](const std::uint32_t(&pair)[16]) {
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < 16; ++i) {
      even[2 * i * tile_columns] = static_cast<std::uint16_t>(pair[i]);
      odd[2 * i * tile_columns] = static_cast<std::uint16_t>(pair[i] >> 16);
    }
  };
  make_values<T, F, Path, false>(a, tile, c, 0, out.random_first + v * out.random_step + at.row, store);
}

/// Stages the numbers of a thread's run along a row.
template <class T, format F, quantize_path Path>
__device__ inline void stage_values_of_rows(const quantize_kernel_args& a, const tile_view<T>& tile,
                                            const tile_view<bf16>& stage, const tile_origin& at) {
  const block_output& out = a.row;
  const row_run own(run_kind<Path>::height(a.format) != 1);
  const unsigned v = at.row + own.row, first = at.column + own.first;
  if (v >= a.rows || first >= a.columns) return;
  const auto store = [&](const std::uint32_t(&pair)[16]) {
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      *stage.vec(own.row, own.first / 8 + i) = {{pair[4 * i], pair[4 * i + 1], pair[4 * i + 2], pair[4 * i + 3]}};
    }
  };
  make_values<T, F, Path, true>(a, tile, own.row, own.first, out.random_first + v * out.random_step + first, store);
}

/// Stores the staged tile, 16 bytes per thread and row.
__device__ inline void flush_values(const quantize_kernel_args& a, const block_output& out,
                                    const tile_view<bf16>& stage, const tile_origin& at) {
  constexpr unsigned row_vecs = tile_view<bf16>::row_vecs, rows_at_once = tile_threads / row_vecs;
  const unsigned r0 = thread_index().x / row_vecs, p = thread_index().x % row_vecs;
  if (at.column + 8 * p >= a.columns) return;
  std::uint8_t* to = out.codes + (at.row + r0) * out.code_stride + 2 * (at.column + 8 * p);
  ROTOSCALE_UNROLL
  for (unsigned r = r0; r < r0 + small_rows; r += rows_at_once) {
    if (at.whole || at.row + r < a.rows) *reinterpret_cast<vec16*>(to) = *stage.vec(r, p);
    to += rows_at_once * out.code_stride;
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
    if (a.column.codes != nullptr) {
      stage_values_of_columns<T, F, Path>(a, tile, stage, at);
      block_barrier();
      flush_values(a, a.column, stage, at);
    }
    if (a.row.codes != nullptr) {
      if (a.column.codes != nullptr) block_barrier();  // the columns are stored
      stage_values_of_rows<T, F, Path>(a, tile, stage, at);
      block_barrier();
      flush_values(a, a.row, stage, at);
    }
  });
}

}  // namespace rotoscale::gpu
