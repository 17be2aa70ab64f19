// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Quantizer of the blocks that the tile kernel does not support, with the definition's bits: rotations of 32 points,
// UE5M3 scales, extents that are not whole runs of 32.
// A subgroup of 32 lanes takes 32 elements of a row, or of the rows that share scales, one element per lane. A rotation
// is a butterfly across lanes.
#pragma once

#include "gpu/quantize/made_options.hpp"
#include "gpu/quantize/source_tile.hpp"
#include "rotoscale/quantize_ref.hpp"

namespace rotoscale::gpu {

inline constexpr unsigned definition_subgroups = 8, definition_block_threads = definition_subgroups * subgroup_lanes;

/// The source is in the orientation of its blocks: rows, and k along columns.
struct definition_blocks_args : tile_source, made_options {
  block_format format;
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;
  index_t code_stride = 0, scale_stride = 0;
  std::uint64_t random_step = 0;  ///< random words per row
};

/// round_to_format(source, source_value(x)), with a short path for BF16 sources, which training uses. A NaN of a BF16
/// matrix keeps its payload, which no code shows.
template <class T>
__device__ inline float definition_source(format source, T x) {
  const float value = source_value(x);
  constexpr format bf16_format = formats::bf16;
  if (!(source == bf16_format)) return round_to_format(source, value);
  return std::is_same_v<T, bf16> ? value : fp32_from_bits(canonical_bf16(value) << 16);
}

/// Element (r, c), rounded to the source format and rotated. All lanes of a subgroup call it together, with
/// neighbouring c.
template <class T>
__device__ inline float definition_element(const definition_blocks_args& a, const block_options& o, unsigned r,
                                           unsigned c) {
  float x = 0.0f;
  if (c < a.columns) x = definition_source(o.source, *a.template element<T>(r, c));
  if (o.rotation.points == 0) return x;
  const auto run = static_cast<unsigned>(run_length(a.format, o.rotation));
  if (o.rotation.negates(static_cast<int>(c % run))) x = fp32_from_bits(fp32_bits(x) ^ fp32_sign_mask);
  x = subgroup_butterflies(x, c, static_cast<unsigned>(o.rotation.points));
  return canonical_nan(x * hadamard_factor(o.rotation.points));
}

/// Group of rows and first column of item `i`, with `across` items of `width` columns per row.
struct definition_item {
  unsigned group, column;
};
__device__ inline definition_item definition_place(std::uint64_t i, unsigned across, unsigned width) {
  if (i >> 32 == 0) {  // 64-bit division is a routine on devices
    const auto low = static_cast<unsigned>(i);
    return {low / across, low % across * width};
  }
  return {static_cast<unsigned>(i / across), static_cast<unsigned>(i % across) * width};
}

/// One lane's byte of the packed codes of 32 elements, one code per lane. A byte has bits of at most two elements of 4,
/// 6 or 8 bits.
__device__ inline std::uint32_t gather_byte(std::uint32_t code, unsigned lane, unsigned bits) {
  std::uint32_t byte = 0;
  ROTOSCALE_UNROLL
  for (unsigned j = 0; j < 2; ++j) {
    const unsigned element = 8 * lane / bits + j;
    const std::uint32_t other = shuffle(code, element % subgroup_lanes);
    const int shift = static_cast<int>(bits * element) - static_cast<int>(8 * lane);
    if (shift < 8) byte |= shift < 0 ? other >> -shift : other << shift;
  }
  return byte & 0xFFu;
}

/// Block formats known at run time, by the definition's functions.
struct any_blocks {
  __device__ static block_format of(const block_format& f) { return f; }
  __device__ static std::uint8_t scale(const block_format& f, const block_options& o, std::uint32_t amax) {
    return choose_scale(f, o, amax);
  }
  __device__ static float multiplier(const block_options&, std::uint8_t) { return 0.0f; }
  [[gnu::always_inline]] __device__ static std::uint32_t code(const block_format& f, const block_options& o, float x,
                                                              std::uint8_t scale, float, random_bits random) {
    return encode_element(f, o, x, scale, random);
  }
};

/// Block formats known at compile time. Finite elements rounded to nearest take a short path. (nvcc does not accept a
/// class-type template parameter of a kernel.)
template <class Element, class Scale, int Length>
struct known_blocks {
  static constexpr block_format format{Element::format, Length, Scale::format};
  static_assert(format.has_e8m0_scale() || format.scale == formats::ue4m3);

  __device__ static block_format of(const block_format& f) { return {Element::format, Length, Scale::format, f.rows}; }

  __device__ static std::uint8_t scale(const block_format& f, const block_options& o, std::uint32_t amax) {
    if constexpr (!format.has_e8m0_scale()) {
      const float wanted = fp32_from_bits(amax) / known_target<Element::format>(o) * o.encode_factor;
      if (amax != 0 && amax < fp32_infinity_bits && wanted >= 0.0f) {
        const std::uint32_t code = encode_nearest<Scale::format>(wanted);
        return static_cast<std::uint8_t>(code < o.policy.least_byte ? o.policy.least_byte : code);
      }
    }
    return choose_scale(f, o, amax);
  }

  /// Factor of an element before rounding. For E8M0 scales it is a power of two: the product is exact, or too small for
  /// every code. Otherwise it is scale_inverse.
  __device__ static float multiplier(const block_options& o, std::uint8_t scale) {
    if constexpr (format.has_e8m0_scale()) {
      return scale < 254 ? fp32_from_bits((254u - scale) << 23) : 0x1p-127f;
    } else {
      return scale_inverse(fp8_value(true, scale), o.encode_factor);
    }
  }

  [[gnu::always_inline]] __device__ static std::uint32_t code(const block_format& f, const block_options& o, float x,
                                                              std::uint8_t scale, float multiplier,
                                                              random_bits random) {
    const float y = rounded_product(x, multiplier);  // encode_nearest adds to it
    if (o.rounding != rounding::nearest_even || fp32_is_nan(fp32_bits(y))) {
      return encode_element(f, o, x, scale, random);
    }
    constexpr rotoscale::format scale_format = Scale::format;  // a copy: device code has no reference to it
    return scale_format.is_nan(scale) ? 0 : encode_nearest<Element::format>(y);
  }
};

/// Sum of squared errors of a row of a block, one element per lane, in the definition's order.
__device__ inline float row_error(float error, unsigned lane, unsigned length) {
  const float other = shuffle_xor(error, 1);
  float sum = pair_error(lane % 2 == 0 ? error : other, lane % 2 == 0 ? other : error);
  ROTOSCALE_KEEP_LOOP
  for (unsigned mask = 2; mask < length; mask *= 2) sum += shuffle_xor(sum, mask);
  return sum;
}

/// choose_four_over_six for the block of a lane's column `c`, of the rows of `group`.
template <class T>
__device__ inline std::uint8_t choose_by_error(const definition_blocks_args& a, const block_format& f,
                                               const block_options& o, unsigned group, unsigned c, std::uint32_t amax,
                                               std::uint8_t six) {
  const std::uint8_t four = choose_scale(f, o, amax, four_over_six);
  const auto height = static_cast<unsigned>(f.rows), length = static_cast<unsigned>(f.length);
  neighbour_sum of_six, of_four;
  ROTOSCALE_KEEP_LOOP
  for (unsigned r = group * height; r < (group + 1) * height; ++r) {
    const float x = definition_element<T>(a, o, r, c);
    of_six.add(row_error(element_error(f, o, x, six), c, length));
    of_four.add(row_error(element_error(f, o, x, four), c, length));
  }
  return of_four.value() < of_six.value() ? four : six;
}

/// correct_scales for a row of 32 columns: the corrected scale of the block of a lane's column `c`.
template <class T>
__device__ inline std::uint8_t correct_by_error(const definition_blocks_args& a, const block_format& f,
                                                const block_options& o, unsigned r, unsigned c, std::uint8_t scale) {
  const float x = definition_element<T>(a, o, r, c), y = scaled_element(f, o, x, scale);
  const float q = decode(f.element, encode_element(f, o, x, scale, {}));
  const float other_y = shuffle_xor(y, 1), other_q = shuffle_xor(q, 1);
  const bool even = c % 2 == 0;
  eden_terms t = even ? pair_terms(y, q, other_y, other_q) : pair_terms(other_y, other_q, y, q);
  const auto run = static_cast<unsigned>(run_length(f, o.rotation));
  ROTOSCALE_KEEP_LOOP
  for (unsigned mask = 2; mask < run; mask *= 2) {
    t.squares += shuffle_xor(t.squares, mask);
    t.products += shuffle_xor(t.products, mask);
  }
  const unsigned first = c / static_cast<unsigned>(f.length) * static_cast<unsigned>(f.length);
  const std::uint32_t word = o.random.word(r * a.random_step + first);
  return correct_scale(f, o, scale, eden_correction(t.squares, t.products), word);
}

/// Stores the codes of columns c0 to c0 + 31 of an item's rows, one column per lane.
template <class T, class Blocks>
__device__ inline void store_item_codes(const definition_blocks_args& a, const block_format& f, const block_options& o,
                                        unsigned group, unsigned c0, std::uint8_t scale) {
  const unsigned lane = thread_index().x % subgroup_lanes, c = c0 + lane;
  const auto height = static_cast<unsigned>(f.rows), bits = static_cast<unsigned>(storage_bits(f.element));
  const float multiplier = Blocks::multiplier(o, scale);
  ROTOSCALE_KEEP_LOOP
  for (unsigned r = group * height; r < (group + 1) * height; ++r) {
    const float x = definition_element<T>(a, o, r, c);
    random_bits random{0, o.random_count};
    if (o.rounding == rounding::stochastic) random.word = o.random.word(r * a.random_step + c);
    const std::uint32_t code = c < a.columns ? Blocks::code(f, o, x, scale, multiplier, random) : 0;
    const std::uint32_t byte = gather_byte(code, lane, bits);
    const index_t at = index_t{c0} * bits / 8 + lane;
    if (lane < 4 * bits && at < packed_bytes(f.element, a.columns)) {
      a.codes[r * a.code_stride + at] = static_cast<std::uint8_t>(byte);
    }
  }
}

/// One subgroup per item: 32 elements (of longer blocks: a block) of format.rows rows, along rows first.
/// 1. amax over the item's elements, then over the lanes of a block
/// 2. scale, stored once per block; under four_over_six, of the smaller error
/// 3. codes of each row, packed across lanes and stored
template <class T, class Blocks>
__global__ void __launch_bounds__(definition_block_threads)
    definition_blocks_kernel(const ROTOSCALE_GRID_CONSTANT definition_blocks_args a) {
  block_options& o = block_shared<options_memory>().get();
  const block_format f = Blocks::of(a.format);
  if (thread_index().x < unsigned{subgroup_lanes}) make_options(a, f, a.amax, o);
  block_barrier();
  constexpr unsigned lanes = subgroup_lanes;
  const auto height = static_cast<unsigned>(f.rows), length = static_cast<unsigned>(f.length);
  const unsigned lane = thread_index().x % lanes, width = length > lanes ? length : lanes;
  const unsigned across = (a.columns + width - 1) / width;
  const std::uint64_t items = std::uint64_t{a.rows / height} * across;
  ROTOSCALE_KEEP_LOOP
  for (std::uint64_t i = std::uint64_t{block_index().x} * definition_subgroups + thread_index().x / subgroup_lanes;
       i < items; i += std::uint64_t{grid_size().x} * definition_subgroups) {
    const auto [group, c0] = definition_place(i, across, width);
    const unsigned c = c0 + lane;
    std::uint32_t amax = no_amax;
    ROTOSCALE_KEEP_LOOP
    for (unsigned part = 0; part < height * width / lanes; ++part) {
      const unsigned column = c + part % (width / lanes) * lanes;
      const float x = definition_element<T>(a, o, group * height + part / (width / lanes), column);
      if (column < a.columns) amax = block_amax(&x, 1, o.policy, amax);
    }
    ROTOSCALE_KEEP_LOOP
    for (unsigned mask = 1; mask < length && mask < lanes; mask *= 2) amax = larger_amax(amax, shuffle_xor(amax, mask));
    std::uint8_t scale = Blocks::scale(f, o, amax);
    if (o.choice == scale_choice::four_over_six) scale = choose_by_error<T>(a, f, o, group, c, amax, scale);
    const bool corrects = o.choice == scale_choice::eden;
    const std::uint8_t stored = corrects ? correct_by_error<T>(a, f, o, group, c, scale) : scale;
    if (c < a.columns && lane % length == 0) a.scales[group * a.scale_stride + c / length] = stored;
    ROTOSCALE_KEEP_LOOP
    for (unsigned first = c0; first < c0 + width; first += lanes) {
      store_item_codes<T, Blocks>(a, f, o, group, first, scale);
    }
  }
}

/// Measures the tensor's amax as tensor_amax computes it. The grid has at most amax_words blocks.
template <class T>
__global__ void __launch_bounds__(definition_block_threads)
    tensor_amax_kernel(const ROTOSCALE_GRID_CONSTANT definition_blocks_args a) {
  block_options& o = block_shared<options_memory>().get();
  if (thread_index().x < unsigned{subgroup_lanes}) make_options(a, a.format, nullptr, o);
  block_barrier();
  const unsigned lane = thread_index().x % subgroup_lanes, across = (a.columns + subgroup_lanes - 1) / subgroup_lanes;
  const std::uint64_t items = std::uint64_t{a.rows} * across;
  std::uint32_t most = 0;
  ROTOSCALE_KEEP_LOOP
  for (std::uint64_t i = std::uint64_t{block_index().x} * definition_subgroups + thread_index().x / subgroup_lanes;
       i < items; i += std::uint64_t{grid_size().x} * definition_subgroups) {
    const auto [r, c0] = definition_place(i, across, subgroup_lanes);
    const std::uint32_t m = fp32_bits(definition_element<T>(a, o, r, c0 + lane)) & fp32_magnitude_mask;
    if (!fp32_is_nan(m) && m > most) most = m;
  }
  store_amax(a.amax, most);
}

}  // namespace rotoscale::gpu
