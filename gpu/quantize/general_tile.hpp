// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The quantizer's general path: one or two blocks of a run of 32 elements. Signs are known at run time. Length, scale
// format, squares, rounding and choice of scales are constants of the paths of NVFP4 and MX blocks, and known at run
// time in the general one. Runs off the fast path take the definition's functions.
#pragma once

#include "gpu/quantize/four_over_six.hpp"
#include "gpu/quantize/tile_stores.hpp"

namespace rotoscale::gpu {

/// Loads half a block for exact_block: 16 elements of row or column `v`, from element `first` on.
template <class T, bool Rows>
__device__ inline void load_exactly(const block_options& o, const tile_view<T>& tile, unsigned v, unsigned first,
                                    float (&y)[16]) {
  ROTOSCALE_KEEP_LOOP
  for (unsigned j = 0; j < 16; ++j) {
    const T x = Rows ? *tile.element(v, first + j) : *tile.element(first + j, v);
    const float value = round_to_format(o.source, source_value(x));
    ROTOSCALE_UNROLL
    for (unsigned n = 0; n < 16; ++n) y[n] = n == j ? value : j == 0 ? 0.0f : y[n];
  }
}

/// A run of 32 elements that rotates as a whole, or whose scales EDEN corrects: the definition's functions over an
/// array. Arguments are those of exact_run.
template <class T, format F, bool Rows>
__device__ inline std::uint32_t whole_run(const block_format& f, const block_options& o, const tile_view<T>& tile,
                                          unsigned v, unsigned first, std::uint64_t index, const std::uint32_t* amax,
                                          const float* expansion, std::uint32_t* code) {
  constexpr int bits = storage_bits(F);
  const block_format blocks{F, f.length, f.scale, f.rows};
  float x[32];
  ROTOSCALE_KEEP_LOOP
  for (unsigned i = 0; i < 32; ++i) {
    x[i] = round_to_format(o.source, source_value(Rows ? *tile.element(v, first + i) : *tile.element(first + i, v)));
  }
  const int run = run_length(f, o.rotation), count = 32 / f.length;
  ROTOSCALE_KEEP_LOOP
  for (int r = 0; r < 32; r += run) rotate_run(x + r, run, o.rotation);
  std::uint32_t largest[2] = {};
  std::uint8_t scale[2] = {};
  ROTOSCALE_KEEP_LOOP
  for (int b = 0; b < count; ++b) {
    largest[b] = amax != nullptr ? amax[b] : block_amax(x + b * f.length, f.length, o.policy);
    scale[b] = choose_scale(blocks, o, largest[b], expansion != nullptr ? expansion[b] : 1.0f);
  }
  ROTOSCALE_KEEP_LOOP
  for (int w = 0; w < bits; ++w) code[w] = 0;
  ROTOSCALE_KEEP_LOOP
  for (int i = 0; i < 32; ++i) {
    random_bits drawn{0, o.random_count};
    if (o.rounding == rounding::stochastic) drawn.word = o.random.word(index + static_cast<unsigned>(i));
    const std::uint32_t one = encode_element(blocks, o, x[i], scale[i / f.length], drawn);
    code[i * bits / 32] |= one << i * bits % 32;
    if (i * bits % 32 + bits > 32) code[i * bits / 32 + 1] |= one >> (32 - i * bits % 32);
  }
  ROTOSCALE_KEEP_LOOP
  for (int r = 0; r < 32 && o.choice == scale_choice::eden; r += run) {
    correct_scales(blocks, o, x + r, run, largest + r / f.length, scale + r / f.length,
                   index + static_cast<unsigned>(r), o.random);
  }
  return scale[0] | (count == 2 ? scale[1] << 8 : 0u);
}

/// Quantizes a run off the fast path: row `v` of the tile (Rows) or column `v`, from element `first` on. Writes its
/// codes to `code`, and returns the scale of each block. Not inlined, because it is rare.
template <class T, format F, bool Rows>
ROTOSCALE_NOINLINE std::uint32_t quantize_slow_run(const block_format& f, const block_options& o, tile_view<T> tile,
                                                   unsigned v, unsigned first, std::uint64_t index,
                                                   const std::uint32_t* amax, const float* expansion,
                                                   std::uint32_t* code) {
  if (o.rotation.points == 32 || o.choice == scale_choice::eden) {
    return whole_run<T, F, Rows>(f, o, tile, v, first, index, amax, expansion, code);
  }
  const auto load = [&](int half, float(&y)[16]) {
    load_exactly<T, Rows>(o, tile, v, first + 16 * static_cast<unsigned>(half), y);
  };
  return exact_run<F>(f, o, index, amax, expansion, load, [&](int w, std::uint32_t word) { code[w] = word; });
}

/// Loads 16 elements of row or column `v`, from element `first` on.
template <class T, bool Rows>
__device__ inline void load_sixteen(const tile_view<T>& tile, unsigned v, unsigned first, bool bf16_source,
                                    float (&y)[16]) {
  if constexpr (Rows) {
    const auto vec = [&](unsigned i) { return *tile.vec(v, first / tile_view<T>::vec_elements + i); };
    load_along_row<T>(vec, bf16_source, y);
  } else {
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < 16; ++i) y[i] = tile_value(*tile.element(first + i, v), bf16_source);
  }
}

/// Rows of a tile that a thread block quantizes at once, four blocks per row.
inline constexpr unsigned row_step = tile_threads / 4;
static_assert(row_step % 32 == 0, "a step is whole groups of 32 rows of scales");

/// Blocks, rounding and choice of scales of a path.
template <quantize_path Path>
struct run_kind {
  static constexpr bool is_mx = Path == quantize_path::mx_nearest || Path == quantize_path::mx_stochastic;
  static constexpr bool is_known = Path != quantize_path::general, is_nvfp4 = is_known && !is_mx;
  static constexpr bool chooses = Path == quantize_path::nvfp4_chosen || Path == quantize_path::nvfp4_chosen_square;
  static constexpr bool corrects = Path == quantize_path::nvfp4_eden;
  __device__ static bool has_e8m0_scale(const block_format& f) { return is_known ? is_mx : f.has_e8m0_scale(); }
  __device__ static unsigned length(const block_format& f) {
    return is_mx ? 32u : is_nvfp4 ? 16u : static_cast<unsigned>(f.length);
  }
  __device__ static unsigned height(const block_format& f) {
    constexpr bool square = Path == quantize_path::nvfp4_square || Path == quantize_path::nvfp4_chosen_square;
    constexpr unsigned known = square ? 16 : 1;
    return is_known ? known : static_cast<unsigned>(f.rows);
  }
  __device__ static bool is_stochastic(const block_options& o) {
    constexpr bool known = Path == quantize_path::nvfp4_stochastic || Path == quantize_path::mx_stochastic;
    return is_known ? known : o.rounding == rounding::stochastic;
  }
};

/// Options of both orientations as a thread block uses them: drawn words and signs, and the tensor's factor.
struct general_options {
  options_memory of[2];  ///< rows, columns
  keyed_stream random[2];
  float multiplier[2][128];  ///< under UE4M3 scales: the factor of elements for each scale
};

/// Makes the options of both orientations in shared memory, one subgroup each. All threads call it. `measured`: amax is
/// known.
__device__ inline void make_both_options(const quantize_kernel_args& a, general_options& g, bool measured) {
  const unsigned t = thread_index().x;
  if (t < 2 * unsigned{subgroup_lanes}) {
    const made_options& from = t < unsigned{subgroup_lanes} ? a.row : a.column;
    make_options(from, a.format, measured ? from.amax : nullptr, g.of[t / subgroup_lanes].get());
  }
  block_barrier();
}

/// Makes the options of the general path, once per thread block.
__device__ inline void make_general_options(const quantize_kernel_args& a) {
  general_options& g = block_shared<general_options>();
  make_both_options(a, g, true);
  static_assert(tile_threads == 128, "a thread per scale");
  const unsigned t = thread_index().x;
  if (t < 2) g.random[t].set(g.of[t].get().random);
  for (int i = 0; i < 2 && !a.format.has_e8m0_scale(); ++i) {
    g.multiplier[i][t] = scale_inverse(fp8_value(true, t), g.of[i].get().encode_factor);
  }
  block_barrier();
}

/// Scale and factor of a block's elements.
struct general_scale {
  std::uint32_t byte;
  float multiplier;
};
template <format F, quantize_path Path>
__device__ inline general_scale choose_general_scale(const quantize_kernel_args& a, const fast_rule& rule,
                                                     const block_options& o, const float (&multiplier)[128],
                                                     std::uint32_t amax, float expansion) {
  if (F.bits() != 4 || run_kind<Path>::has_e8m0_scale(a.format)) {
    const fast_scale s = choose_fast_scale<false>(rule, amax);
    return {s.byte, fp32_from_bits(s.inverse << 23)};
  }
  const float wanted = fp32_from_bits(amax) / known_target<F>(o) * o.encode_factor;
  std::uint32_t byte = encode_nearest<formats::ue4m3>(wanted * expansion);
  byte = amax == 0 ? o.policy.zero_byte : byte < o.policy.least_byte ? o.policy.least_byte : byte;
  return {byte, multiplier[byte]};
}

/// Bits of the largest magnitude. A NaN is above every number.
__device__ inline std::uint32_t magnitude_of(const float (&y)[16]) {
  std::uint32_t most = 0;
  ROTOSCALE_UNROLL
  for (int i = 0; i < 16; ++i) {
    const std::uint32_t m = fp32_bits(y[i]) & fp32_magnitude_mask;
    most = m > most ? m : most;
  }
  return most;
}

/// amax of a square of blocks under `o.policy`, for the two halves of a run. The lanes of a subgroup hold 32 vectors.
template <quantize_path Path>
__device__ inline void share_amax(const quantize_kernel_args& a, const block_options& o, const float (&y)[2][16],
                                  std::uint32_t (&amax)[2]) {
  ROTOSCALE_UNROLL
  for (int half = 0; half < 2; ++half) amax[half] = block_amax(y[half], 16, o.policy);
  if (run_kind<Path>::length(a.format) == 32) amax[0] = amax[1] = larger_amax(amax[0], amax[1]);
  ROTOSCALE_KEEP_LOOP
  for (unsigned mask = 1; mask < run_kind<Path>::height(a.format); mask *= 2) {
    amax[0] = larger_amax(amax[0], shuffle_xor(amax[0], mask));
    amax[1] = larger_amax(amax[1], shuffle_xor(amax[1], mask));
  }
}

/// 4/6's expansion of the scale of each half of a run: 1 or 1.5. All lanes of a square's rows call it.
template <format F, quantize_path Path>
__device__ inline void choose_expansions(const quantize_kernel_args& a, const fast_rule& rule, const block_options& o,
                                         const float (&multiplier)[128], const float (&y)[2][16],
                                         const std::uint32_t (&amax)[2], float (&expansion)[2]) {
  ROTOSCALE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t known = amax[half] < fp32_infinity_bits ? amax[half] : 0;  // 6 if it is no number
    float error[2];
    ROTOSCALE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const general_scale s =
          choose_general_scale<F, Path>(a, rule, o, multiplier, known, i == 0 ? 1.0f : four_over_six);
      error[i] = error_of_sixteen(y[half], s.byte, s.multiplier, o.encode_factor);
      ROTOSCALE_UNROLL
      for (unsigned mask = 1; mask < run_kind<Path>::height(a.format); mask *= 2) {
        error[i] += shuffle_xor(error[i], mask);
      }
    }
    expansion[half] = error[1] < error[0] ? four_over_six : 1.0f;
  }
}

/// EDEN's corrected scales of a run whose elements `y` are divided by `scale`, in the definition's order
/// (correct_scales of quantize_ref.hpp).
template <class Random>
[[gnu::always_inline]] __device__ inline void correct_both(const block_options& o, const Random& random,
                                                           std::uint64_t index, const float (&y)[2][16],
                                                           const std::uint32_t (&amax)[2], general_scale (&scale)[2]) {
  eden_terms half_sum[2];
  ROTOSCALE_UNROLL
  for (int half = 0; half < 2; ++half) {
    eden_terms sum[8];
    ROTOSCALE_UNROLL
    for (int i = 0; i < 8; ++i) {
      float m[2], q[2];
      ROTOSCALE_UNROLL
      for (int j = 0; j < 2; ++j) {
        m[j] = fp32_from_bits(fp32_bits(y[half][2 * i + j]) & fp32_magnitude_mask);  // signs change no product
        q[j] = nearest_e2m1(m[j]);
        m[j] = scale[half].byte == 0 ? 0.0f : m[j];
      }
      sum[i] = pair_terms(m[0], q[0], m[1], q[1]);
    }
    ROTOSCALE_UNROLL
    for (int n = 4; n > 0; n /= 2) {
      ROTOSCALE_UNROLL
      for (int i = 0; i < n; ++i) {
        sum[i].squares = sum[2 * i].squares + sum[2 * i + 1].squares;
        sum[i].products = sum[2 * i].products + sum[2 * i + 1].products;
      }
    }
    half_sum[half] = sum[0];
  }
  if (o.rotation.points == 32) {
    half_sum[0].squares += half_sum[1].squares;
    half_sum[0].products += half_sum[1].products;
    half_sum[1] = half_sum[0];
  }
  ROTOSCALE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float correction = eden_correction(half_sum[half].squares, half_sum[half].products);
    const std::uint32_t word = random.block((index + 16 * static_cast<unsigned>(half)) / 4).word[0];
    const std::uint32_t byte = encode_stochastic<formats::ue4m3>(fp8_value(true, scale[half].byte) * correction, word);
    if (amax[half] != 0) scale[half].byte = byte < o.policy.least_byte ? o.policy.least_byte : byte;
  }
}

/// Codes of a run's elements, which are divided by their scales.
template <format F>
[[gnu::always_inline]] __device__ inline void encode_run(const general_options& g, int side, bool stochastic,
                                                         std::uint64_t index, const float (&y)[2][16],
                                                         std::uint32_t (&code)[storage_bits(F)]) {
  constexpr int bits = storage_bits(F);
  if (!stochastic) {
    typename block_for<F>::type block;
    block.put(0, y[0]);
    block.put(1, y[1]);
    ROTOSCALE_UNROLL
    for (int w = 0; w < bits; ++w) code[w] = block.codes(w, {0, 127, true});
    return;
  }
  const auto draw = [&](const auto& random) {
    ROTOSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      stochastic_codes<F>(y[half], random, (index + 16 * static_cast<unsigned>(half)) / 4, code + half * bits / 2);
    }
  };
  if constexpr (bounds_count_waves) {
    draw(g.of[side].get().random);  // the keys' registers would cost a wave of occupancy
  } else {
    draw(g.random[side]);
  }
}

/// A run of 32 elements: rotated, then divided by their scales.
struct general_run {
  float y[2][16];
  std::uint32_t amax[2];  ///< of the halves' blocks
  float expansion[2];     ///< of their scales, under 4/6
  general_scale scale[2];
};

/// Loads, rotates and measures the run from element `first` on of row `v` of the tile (Rows) or column `v`. True: the
/// run is off the fast path.
template <class T, format F, quantize_path Path, bool Rows>
[[gnu::always_inline]] __device__ inline bool measure_run(const quantize_kernel_args& a, const tile_view<T>& tile,
                                                          unsigned v, unsigned first, general_run& run) {
  using kind = run_kind<Path>;
  constexpr int side = Rows ? 0 : 1;
  const block_output& out = Rows ? a.row : a.column;
  const general_options& g = block_shared<general_options>();
  const block_options& o = g.of[side].get();
  const bool halves = kind::length(a.format) == 16;
  std::uint32_t own[2];
  ROTOSCALE_UNROLL
  for (int half = 0; half < 2; ++half) {
    load_sixteen<T, Rows>(tile, v, first + 16 * static_cast<unsigned>(half), out.bf16_source, run.y[half]);
    run.expansion[half] = 1.0f;
  }
  rotate_both(o, halves, run.y);
  ROTOSCALE_UNROLL
  for (int half = 0; half < 2; ++half) run.amax[half] = own[half] = magnitude_of(run.y[half]);
  if (!halves) run.amax[0] = run.amax[1] = own[0] > own[1] ? own[0] : own[1];
  if (kind::height(a.format) != 1) share_amax<Path>(a, o, run.y, run.amax);
  if constexpr (kind::chooses) {
    choose_expansions<F, Path>(a, out.fast, o, g.multiplier[side], run.y, run.amax, run.expansion);
  }
  bool slow = !kind::is_known && out.exact;
  ROTOSCALE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const bool fits =
        kind::has_e8m0_scale(a.format) ? takes_fast_path(run.amax[half]) : run.amax[half] < fp32_infinity_bits;
    slow = slow || !fits || own[half] >= fp32_infinity_bits;
  }
  return slow;
}

/// Chooses the scales of a measured run, and divides its elements by them.
template <format F, quantize_path Path, bool Rows>
[[gnu::always_inline]] __device__ inline void scale_run(const quantize_kernel_args& a, general_run& run) {
  constexpr int side = Rows ? 0 : 1;
  const general_options& g = block_shared<general_options>();
  const fast_rule& rule = (Rows ? a.row : a.column).fast;
  ROTOSCALE_UNROLL
  for (int half = 0; half < 2; ++half) {
    run.scale[half] = choose_general_scale<F, Path>(a, rule, g.of[side].get(), g.multiplier[side], run.amax[half],
                                                    run.expansion[half]);
    ROTOSCALE_UNROLL
    for (int i = 0; i < 16; ++i) run.y[half][i] = rounded_product(run.y[half][i], run.scale[half].multiplier);
  }
}

/// Calls slow(options, amax, expansion) with the arguments of quantize_slow_run.
template <quantize_path Path, bool Rows, class Slow>
__device__ inline void with_slow_arguments(const quantize_kernel_args& a, const general_run& run, const Slow& slow) {
  using kind = run_kind<Path>;
  const std::uint32_t shared[2] = {run.amax[0], run.amax[1]};
  const float factors[2] = {run.expansion[0], run.expansion[1]};
  slow(block_shared<general_options>().of[Rows ? 0 : 1].get(), kind::height(a.format) != 1 ? shared : nullptr,
       kind::chooses ? factors : nullptr);
}

/// Codes of a scaled run. EDEN then corrects the scales.
template <format F, quantize_path Path, bool Rows>
[[gnu::always_inline]] __device__ inline void encode_scaled_run(std::uint64_t index, general_run& run,
                                                                std::uint32_t (&code)[storage_bits(F)]) {
  constexpr int side = Rows ? 0 : 1;
  const general_options& g = block_shared<general_options>();
  const block_options& o = g.of[side].get();
  encode_run<F>(g, side, run_kind<Path>::is_stochastic(o), index, run.y, code);
  if constexpr (run_kind<Path>::corrects) correct_both(o, g.random[side], index, run.y, run.amax, run.scale);
}

/// Quantizes a run as measure_run takes it. Returns its scale, that of a second block in the second byte. `index` is
/// the random word of the first element.
template <class T, format F, quantize_path Path, bool Rows>
__device__ inline std::uint32_t quantize_run(const quantize_kernel_args& a, const tile_view<T>& tile, unsigned v,
                                             unsigned first, std::uint64_t index,
                                             std::uint32_t (&code)[storage_bits(F)]) {
  constexpr int bits = storage_bits(F);
  general_run run;
  if (measure_run<T, F, Path, Rows>(a, tile, v, first, run)) {
    std::uint32_t scales = 0;
    with_slow_arguments<Path, Rows>(
        a, run, [&](const block_options& o, const std::uint32_t* amax, const float* expansion) {
          std::uint32_t word[bits];
          scales = quantize_slow_run<T, F, Rows>(a.format, o, tile, v, first, index, amax, expansion, word);
          ROTOSCALE_UNROLL
          for (int w = 0; w < bits; ++w) code[w] = word[w];
        });
    return scales;
  }
  scale_run<F, Path, Rows>(a, run);
  encode_scaled_run<F, Path, Rows>(index, run, code);
  const bool halves = run_kind<Path>::length(a.format) == 16;
  return run.scale[0].byte | (halves ? run.scale[1].byte << 8 : 0u);
}

/// Stores the scales of run `run` of vector `v`. The rows of a square have one row-major scale.
template <quantize_path Path>
__device__ inline void store_run_scales(const quantize_kernel_args& a, const block_output& out, unsigned v,
                                        unsigned run, std::uint32_t scales) {
  const unsigned height = run_kind<Path>::height(a.format);
  if (height != 1 && out.scale_order == placement::row_major) {
    if (v % height != 0) return;
    v /= height;
  }
  const bool halves = run_kind<Path>::length(a.format) == 16;
  std::uint8_t* const to = out.scales + scale_offset(out, v, halves ? 2 * run : run);
  if (halves && out.has_scale_words) {
    *reinterpret_cast<any_half*>(to) = static_cast<std::uint16_t>(scales);
    return;
  }
  to[0] = static_cast<std::uint8_t>(scales);
  if (halves) to[1] = static_cast<std::uint8_t>(scales >> 8);
}

/// The general path along rows. The lanes of a subgroup hold 32 rows of square blocks, which share an amax.
template <class T, format F, quantize_path Path>
__device__ inline void quantize_rows_generally(const quantize_kernel_args& a, const tile_view<T>& tile,
                                               const tile_origin& at) {
  const block_output& out = a.row;
  const bool square = run_kind<Path>::height(a.format) != 1;
  const unsigned t = thread_index().x, b = square ? t / 32 : t % 4, end = rows_of<T>(a, at);
  if (!at.whole && at.column + 32 * b >= a.columns) return;
  ROTOSCALE_KEEP_LOOP
  for (unsigned r = square ? t % 32 : t / 4; r < end; r += row_step) {
    const std::uint64_t index = out.random_first + (at.row + r) * out.random_step + at.column + 32 * b;
    std::uint32_t code[storage_bits(F)];
    const std::uint32_t scales = quantize_run<T, F, Path, true>(a, tile, r, 32 * b, index, code);
    const unsigned run = at.column / 32 + b;
    store_units<F>(out.codes + code_offset(out, at.row + r, run * code_stage<T, F>::block_vecs), out.code_vec, code);
    store_run_scales<Path>(a, out, at.row + r, run, scales);
  }
}

/// The general path along columns, into the stage.
template <class T, format F, quantize_path Path>
__device__ inline void quantize_columns_generally(const quantize_kernel_args& a, const tile_view<T>& tile,
                                                  const code_stage<T, F>& stage, const tile_origin& at) {
  const block_output& out = a.column;
  const unsigned c = thread_index().x % tile_columns, v = at.column + c, end = rows_of<T>(a, at);
  if (!at.whole && v >= a.columns) return;
  const unsigned length = run_kind<Path>::length(a.format);
  const bool as_words = out.has_scale_words && end == tile_rows<T> && run_kind<Path>::height(a.format) == 1;
  const unsigned count = tile_rows<T> / length, run_scales = count / (tile_rows<T> / 32);
  std::uint64_t all = 0;  // scales, the first block's in the lowest byte
  ROTOSCALE_KEEP_LOOP
  for (unsigned b = 0; 32 * b < end; ++b) {
    const std::uint64_t index = out.random_first + v * out.random_step + at.row + 32 * b;
    std::uint32_t code[storage_bits(F)];
    const std::uint32_t scales = quantize_run<T, F, Path, false>(a, tile, c, 32 * b, index, code);
    stage.put(c, b, code);
    all |= std::uint64_t{scales} << (8 * run_scales * b);
    if (!as_words) store_run_scales<Path>(a, out, v, at.row / 32 + b, scales);
  }
  if (!as_words) return;
  std::uint8_t* const to = out.scales + scale_offset(out, v, at.row / length);
  store_scales(to, count < 4 ? count : 4, static_cast<std::uint32_t>(all));
  if (count == 8) store_scales(to + 4, 4, static_cast<std::uint32_t>(all >> 32));
}

}  // namespace rotoscale::gpu
