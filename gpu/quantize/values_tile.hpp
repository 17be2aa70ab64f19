// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Quantizes to BF16 numbers: code * scale, in the source's orientation. GEMMs on
// a BF16 unit read such numbers, so no codes are packed, stored or expanded.
// 1. Load a small tile into shared memory.
// 2. Each thread quantizes a run along a column. The numbers are staged, and stored 16 bytes at a time.
// 3. The same along rows.
#pragma once

#include "gpu/quantize/dequantize_kernel.hpp"
#include "gpu/quantize/e2m1_values.hpp"
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

/// Calls emit(p, pair) with the numbers of codes as pairs of BF16, with the bits of dequantize. `scale`: of each half.
template <format F, class Emit>
[[gnu::always_inline]] __device__ inline void decode_run(const std::uint32_t (&code)[storage_bits(F)],
                                                         const float (&scale)[2], const Emit& emit) {
  constexpr unsigned count = word_count<F>, words = count / 2;
  ROTOSCALE_UNROLL
  for (unsigned g = 0; g < 32 / count; ++g) {
    decoded<bf16, F> out;
    decode_word<bf16, F>(codes_of_group<F>(code, g), scale[g / (16 / count)], 1.0f, out);
    ROTOSCALE_UNROLL
    for (unsigned w = 0; w < words; ++w) emit(g * words + w, out[w]);
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
  decode_run<F>(code, scale, [&](unsigned p, std::uint32_t numbers) { pair[p] = numbers; });
}

/// scale_value of a byte below 0xFF.
__device__ inline float e8m0_value(std::uint32_t byte) { return fp32_from_bits(byte == 0 ? 1u << 22 : byte << 23); }

/// Calls emit(p, pair) with the numbers of a measured run of E2M1 on the fast path. `index`: of each half, the random
/// word of its first element. False: they are not sure.
template <quantize_path Path, bool Rows, pair_order Order, class Emit>
[[gnu::always_inline]] __device__ inline bool fast_e2m1_values(const quantize_kernel_args& a,
                                                               const std::uint64_t (&index)[2], general_run& run,
                                                               const Emit& emit, float factor = 1.0f) {
  using kind = run_kind<Path>;
  constexpr int side = Rows ? 0 : 1;
  const general_options& g = block_shared<general_options>();
  const block_options& o = g.of[side].get();
  scale_run<formats::e2m1, Path, Rows>(a, run, factor);
  if constexpr (kind::corrects) correct_both(o, g.random[side], index[0], run.y, run.amax, run.scale);
  std::uint32_t scale[2];
  ROTOSCALE_UNROLL
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t byte = run.scale[i].byte;
    scale[i] = fp32_bits(kind::has_e8m0_scale(a.format) ? e8m0_value(byte) : fp8_value(true, byte)) >> 16;
  }
  if (!kind::is_stochastic(o)) {
    nearest_e2m1_run<Order>(run.y, scale, emit);
    return true;
  }
  const std::uint64_t block[2] = {index[0] / 4, index[1] / 4};
  if constexpr (bounds_count_waves) {
    return stochastic_e2m1_run<Order>(run.y, o.random, block, scale, emit);  // keys would cost a wave of occupancy
  } else {
    return stochastic_e2m1_run<Order>(run.y, g.random[side], block, scale, emit);
  }
}

/// Calls emit(p, pair) with the numbers of a measured run on the fast path. False: they are not sure.
template <format F, quantize_path Path, bool Rows, class Emit>
[[gnu::always_inline]] __device__ inline bool fast_values(const quantize_kernel_args& a, std::uint64_t index,
                                                          general_run& run, const Emit& emit) {
  if constexpr (F == formats::e2m1) {
    return fast_e2m1_values<Path, Rows, pair_order::run>(a, {index, index + 16}, run, emit);
  } else {
    using kind = run_kind<Path>;
    const block_options& o = block_shared<general_options>().of[Rows ? 0 : 1].get();
    const bool direct = !kind::is_stochastic(o);
    scale_run<F, Path, Rows>(a, run);
    std::uint32_t code[storage_bits(F)];
    if (!direct) encode_scaled_run<F, Path, Rows>(index, run, code);
    float scale[2];
    ROTOSCALE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t byte = run.scale[i].byte;
      scale[i] = kind::has_e8m0_scale(a.format) ? e8m0_value(byte) : fp8_value(true, byte);
    }
    if (!direct) {
      decode_run<F>(code, scale, emit);
      return true;
    }
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < 16; ++i) {
      const float* const two = &run.y[i / 8][i % 8 * 2];
      const float own = scale[i / 8];
      emit(i, bf16_pair(nearest_value<F>(two[0]) * own, nearest_value<F>(two[1]) * own));
    }
    return true;
  }
}

/// True for paths of blocks of 16 that choose their scales alone. They take rotations of 16 points (values_path).
ROTOSCALE_HD constexpr bool is_of_sixteen(quantize_path path) {
  return path == quantize_path::nvfp4_nearest || path == quantize_path::nvfp4_stochastic;
}

/// Calls emit(p, pair) with the numbers of a run. A run off the fast path is emitted twice, so that no register of the
/// fast path lives across the call.
template <class T, format F, quantize_path Path, bool Rows, class Emit>
[[gnu::always_inline]] __device__ inline void make_values(const quantize_kernel_args& a, const tile_view<T>& tile,
                                                          unsigned v, unsigned first, std::uint64_t index,
                                                          const Emit& emit) {
  general_run run;
  bool slow = measure_run<T, F, Path, Rows, !is_of_sixteen(Path)>(a, tile, v, first, run);
  slow = !fast_values<F, Path, Rows>(a, index, run, emit) || slow;
  if (!slow) return;
  with_slow_arguments<Path, Rows>(a, run,
                                  [&](const block_options& o, const std::uint32_t* amax, const float* expansion) {
                                    std::uint32_t pair[16];
                                    slow_values<T, F, Rows>(a.format, o, tile, v, first, index, amax, expansion, pair);
                                    ROTOSCALE_UNROLL
                                    for (unsigned p = 0; p < 16; ++p) emit(p, pair[p]);
                                  });
}

/// Stages the numbers of a thread's pair of columns.
template <quantize_path Path>
__device__ inline void stage_values_of_pairs(const quantize_kernel_args& a, const tile_view<bf16>& tile,
                                             const tile_view<bf16>& stage, const tile_origin& at) {
  constexpr format F = formats::e2m1;
  const block_output& out = a.column;
  const column_pair own;
  const unsigned v = at.column + own.column;
  if (v >= a.columns) return;
  const block_options& o = block_shared<general_options>().of[1].get();
  const bool turns = o.rotation.points != 0;
  general_run run;
  load_column_pair(tile, turns ? o.rotation.signs[0] : 0, run.y);
  if (turns) {
    butterflies16(run.y[0]);
    butterflies16(run.y[1]);
  }
  // BF16 numbers and normal multipliers keep all bits when they are divided by 4.
  const float factor = turns ? 0.25f : 1.0f;
  const std::uint64_t first = out.random_first + v * out.random_step + at.row;
  bool slow = measure_loaded<F, Path, false>(a, run, factor);
  const auto emit = [&](unsigned p, std::uint32_t pair) {
    *reinterpret_cast<any_word*>(stage.element(16 * own.half + p, own.column)) = pair;
  };
  const std::uint64_t index[2] = {first + 16 * own.half, first + 16 * own.half + out.random_step};
  slow = !fast_e2m1_values<Path, false, pair_order::columns>(a, index, run, emit, factor) || slow ||
         run.scale[0].multiplier < 0x1p-120f || run.scale[1].multiplier < 0x1p-120f;
  if (!slow) return;
  ROTOSCALE_KEEP_LOOP
  for (unsigned k = 0; k < 2; ++k) {
    std::uint32_t pair[16];
    slow_values<bf16, F, false>(a.format, o, tile, own.column + k, 0, first + k * out.random_step, nullptr, nullptr,
                                pair);
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < 16; ++i) {
      if (i / 8 != own.half) continue;
      *reinterpret_cast<any_half*>(stage.element(2 * i, own.column + k)) = static_cast<std::uint16_t>(pair[i]);
      *reinterpret_cast<any_half*>(stage.element(2 * i + 1, own.column + k)) =
          static_cast<std::uint16_t>(pair[i] >> 16);
    }
  }
}

/// Stages the numbers of a thread's column. The tile has all rows of its runs.
template <class T, format F, quantize_path Path>
__device__ inline void stage_values_of_columns(const quantize_kernel_args& a, const tile_view<T>& tile,
                                               const tile_view<bf16>& stage, const tile_origin& at) {
  if constexpr (std::is_same_v<T, bf16> && is_of_sixteen(Path)) {
    return stage_values_of_pairs<Path>(a, tile, stage, at);
  } else {
    const block_output& out = a.column;
    const unsigned c = thread_index().x, v = at.column + c;
    if (v >= a.columns) return;
    // All even rows of the stage have one swizzle, all odd rows another.
    auto* const even = reinterpret_cast<any_half*>(stage.element(0, c));
    auto* const odd = reinterpret_cast<any_half*>(stage.element(1, c));
    const auto emit = [&](unsigned p, std::uint32_t pair) {
      even[2 * p * tile_columns] = static_cast<std::uint16_t>(pair);
      odd[2 * p * tile_columns] = static_cast<std::uint16_t>(pair >> 16);
    };
    make_values<T, F, Path, false>(a, tile, c, 0, out.random_first + v * out.random_step + at.row, emit);
  }
}

/// Stages the numbers of a thread's run along a row.
template <class T, format F, quantize_path Path>
__device__ inline void stage_values_of_rows(const quantize_kernel_args& a, const tile_view<T>& tile,
                                            const tile_view<bf16>& stage, const tile_origin& at) {
  const block_output& out = a.row;
  const row_run own(run_kind<Path>::height(a.format) != 1);
  const unsigned v = at.row + own.row, first = at.column + own.first;
  if (v >= a.rows || first >= a.columns) return;
  vec16 eight;
  const auto emit = [&](unsigned p, std::uint32_t pair) {
    eight.word[p % 4] = pair;
    if (p % 4 == 3) *stage.vec(own.row, own.first / 8 + p / 4) = eight;
  };
  make_values<T, F, Path, true>(a, tile, own.row, own.first, out.random_first + v * out.random_step + first, emit);
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
  const auto prepare = [&] { make_general_options(a); };
  walk_small_tiles<T>(a, shared, prepare, [&](const tile_view<T>& tile, const tile_origin& at) {
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
