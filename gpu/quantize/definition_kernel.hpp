// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Quantizer of the blocks that the tile kernel does not support, with the definition's bits. Such blocks have rotations
// of 32 to 128 points, UE5M3 scales, 128 elements, or extents that are not whole runs of 32.
// A subgroup of 32 lanes takes 32 elements of a row, or of the rows that share scales, one element per lane. A lane has
// up to four elements of a longer run. A rotation is a butterfly across lanes, then across a lane's elements.
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

/// Columns of an item: 32, or the length of a longer block or rotation.
__device__ inline unsigned item_width(const block_format& f, const block_options& o) {
  const auto run = static_cast<unsigned>(run_length(f, o.rotation));
  return run > unsigned{subgroup_lanes} ? run : unsigned{subgroup_lanes};
}

/// Elements (r, c + 32 i), rounded to the source format and rotated. All lanes of a subgroup call it together, with
/// neighbouring c.
template <class T, unsigned Parts>
__device__ inline lane_row<Parts> load_row(const definition_blocks_args& a, const block_options& o, unsigned r,
                                           unsigned c, unsigned parts) {
  const auto run = static_cast<unsigned>(run_length(a.format, o.rotation));
  lane_row<Parts> row;
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < Parts; ++i) {
    const unsigned column = c + i * unsigned{subgroup_lanes};
    row.x[i] = 0.0f;
    if (i < parts && column < a.columns) row.x[i] = definition_source(o.source, *a.template element<T>(r, column));
    const bool negated = o.rotation.points != 0 && o.rotation.negates(static_cast<int>(column % run));
    row.x[i] = fp32_from_bits(fp32_bits(row.x[i]) ^ (negated ? fp32_sign_mask : 0u));
  }
  if (o.rotation.points == 0) return row;
  row.rotate(c, static_cast<unsigned>(o.rotation.points), parts);
  const float factor = hadamard_factor(o.rotation.points);
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < Parts; ++i) row.x[i] = canonical_nan(row.x[i] * factor);
  return row;
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

/// Blocks of an item as one lane sees them, in columns `column` + 32 i.
template <unsigned Parts>
struct item_blocks {
  unsigned group, column, parts;
  std::uint32_t amax[Parts];
  std::uint8_t scale[Parts];
};

/// Step 1: amax over the rows of each block, then over its lanes and parts.
template <class T, unsigned Parts>
__device__ inline void measure_blocks(const definition_blocks_args& a, const block_format& f, const block_options& o,
                                      item_blocks<Parts>& b) {
  const auto height = static_cast<unsigned>(f.rows), length = static_cast<unsigned>(f.length);
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < Parts; ++i) b.amax[i] = no_amax;
  ROTOSCALE_KEEP_LOOP
  for (unsigned r = b.group * height; r < (b.group + 1) * height; ++r) {
    const lane_row<Parts> row = load_row<T, Parts>(a, o, r, b.column, b.parts);
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < Parts; ++i) {
      const bool is_element = i < b.parts && b.column + i * unsigned{subgroup_lanes} < a.columns;
      if (is_element) b.amax[i] = block_amax(&row.x[i], 1, o.policy, b.amax[i]);
    }
  }
  if (length > unsigned{subgroup_lanes}) {  // one block
    ROTOSCALE_UNROLL
    for (unsigned i = 1; i < Parts; ++i) b.amax[0] = larger_amax(b.amax[0], b.amax[i]);
    ROTOSCALE_UNROLL
    for (unsigned i = 1; i < Parts; ++i) b.amax[i] = b.amax[0];
  }
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < Parts; ++i) {
    ROTOSCALE_KEEP_LOOP
    for (unsigned mask = 1; mask < length && mask < unsigned{subgroup_lanes}; mask *= 2) {
      b.amax[i] = larger_amax(b.amax[i], shuffle_xor(b.amax[i], mask));
    }
  }
}

/// choose_four_over_six for blocks whose scales are those for 6.
template <class T, unsigned Parts>
__device__ inline void choose_by_error(const definition_blocks_args& a, const block_format& f, const block_options& o,
                                       item_blocks<Parts>& b) {
  const auto height = static_cast<unsigned>(f.rows), length = static_cast<unsigned>(f.length);
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < Parts; ++i) {
    const std::uint8_t four = choose_scale(f, o, b.amax[i], four_over_six);
    neighbour_sum of_six, of_four;
    ROTOSCALE_KEEP_LOOP
    for (unsigned r = b.group * height; r < (b.group + 1) * height; ++r) {
      const float x = load_row<T, Parts>(a, o, r, b.column, b.parts).x[i];
      of_six.add(row_error(element_error(f, o, x, b.scale[i]), b.column, length));
      of_four.add(row_error(element_error(f, o, x, four), b.column, length));
    }
    if (of_four.value() < of_six.value()) b.scale[i] = four;
  }
}

/// EDEN's correction of the run of a lane: correct_scales for one row.
template <class T, unsigned Parts>
__device__ inline float correction_of_row(const definition_blocks_args& a, const block_format& f,
                                          const block_options& o, const item_blocks<Parts>& b) {
  const lane_row<Parts> row = load_row<T, Parts>(a, o, b.group, b.column, b.parts);
  const auto run = static_cast<unsigned>(run_length(f, o.rotation));
  eden_terms sum[Parts];
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < Parts; ++i) {
    const float y = eden_element(f, o, row.x[i], b.scale[i]);
    const float q = decode(f.element, encode_element(f, o, row.x[i], b.scale[i], {}));
    const float other_y = shuffle_xor(y, 1), other_q = shuffle_xor(q, 1);
    sum[i] = b.column % 2 == 0 ? pair_terms(y, q, other_y, other_q) : pair_terms(other_y, other_q, y, q);
    ROTOSCALE_KEEP_LOOP
    for (unsigned mask = 2; mask < run && mask < unsigned{subgroup_lanes}; mask *= 2) {
      sum[i].squares += shuffle_xor(sum[i].squares, mask);
      sum[i].products += shuffle_xor(sum[i].products, mask);
    }
  }
  ROTOSCALE_UNROLL
  for (unsigned step = 1; step < Parts; step *= 2) {
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i + step < Parts; i += 2 * step) {
      if (i + step >= b.parts) continue;
      sum[i].squares += sum[i + step].squares;
      sum[i].products += sum[i + step].products;
    }
  }
  return eden_correction(sum[0].squares, sum[0].products);
}

/// Step 2: scales, stored once per block. The codes of EDEN's blocks are those under the scale before its correction.
template <class T, class Blocks, unsigned Parts>
__device__ inline void make_scales(const definition_blocks_args& a, const block_format& f, const block_options& o,
                                   item_blocks<Parts>& b) {
  const auto length = static_cast<unsigned>(f.length);
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < Parts; ++i) b.scale[i] = Blocks::scale(f, o, b.amax[i]);
  if (o.choice == scale_choice::four_over_six) choose_by_error<T>(a, f, o, b);
  const bool corrects = o.choice == scale_choice::eden;
  const float correction = corrects ? correction_of_row<T>(a, f, o, b) : 1.0f;
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < Parts; ++i) {
    const unsigned c = b.column + i * unsigned{subgroup_lanes};
    if (i >= b.parts || c >= a.columns || c % length != 0) continue;
    std::uint8_t scale = b.scale[i];
    if (corrects) {
      scale = correct_scale(f, o, b.amax[i], scale, correction, o.random.word(b.group * a.random_step + c));
    }
    a.scales[b.group * a.scale_stride + c / length] = scale;
  }
}

/// Step 3: codes of each row, packed across lanes and stored.
template <class T, class Blocks, unsigned Parts>
__device__ inline void store_item_codes(const definition_blocks_args& a, const block_format& f, const block_options& o,
                                        const item_blocks<Parts>& b) {
  const unsigned lane = thread_index().x % subgroup_lanes;
  const auto height = static_cast<unsigned>(f.rows), bits = static_cast<unsigned>(storage_bits(f.element));
  float multiplier[Parts];
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < Parts; ++i) multiplier[i] = Blocks::multiplier(o, b.scale[i]);
  ROTOSCALE_KEEP_LOOP
  for (unsigned r = b.group * height; r < (b.group + 1) * height; ++r) {
    const lane_row<Parts> row = load_row<T, Parts>(a, o, r, b.column, b.parts);
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < Parts; ++i) {
      if (i >= b.parts) continue;
      const unsigned c = b.column + i * unsigned{subgroup_lanes};
      random_bits random{0, o.random_count};
      if (o.rounding == rounding::stochastic) random.word = o.random.word(r * a.random_step + c);
      const bool is_element = c < a.columns;
      const std::uint32_t code = is_element ? Blocks::code(f, o, row.x[i], b.scale[i], multiplier[i], random) : 0;
      const std::uint32_t byte = gather_byte(code, lane, bits);
      const index_t at = index_t{c - lane} * bits / 8 + lane;
      if (lane < 4 * bits && at < packed_bytes(f.element, a.columns)) {
        a.codes[r * a.code_stride + at] = static_cast<std::uint8_t>(byte);
      }
    }
  }
}

/// One subgroup per item: 32 elements (of longer blocks and rotations: theirs, at most 32 * Parts) of format.rows rows,
/// along rows first.
template <class T, class Blocks, unsigned Parts>
__global__ void __launch_bounds__(definition_block_threads)
    definition_blocks_kernel(const ROTOSCALE_GRID_CONSTANT definition_blocks_args a) {
  block_options& o = block_shared<options_memory>().get();
  const block_format f = Blocks::of(a.format);
  if (thread_index().x < unsigned{subgroup_lanes}) make_options(a, f, a.amax, o);
  block_barrier();
  const unsigned width = Parts == 1 ? unsigned{subgroup_lanes} : item_width(f, o);
  const unsigned across = (a.columns + width - 1) / width;
  const std::uint64_t items = std::uint64_t{a.rows / static_cast<unsigned>(f.rows)} * across;
  ROTOSCALE_KEEP_LOOP
  for (std::uint64_t i = std::uint64_t{block_index().x} * definition_subgroups + thread_index().x / subgroup_lanes;
       i < items; i += std::uint64_t{grid_size().x} * definition_subgroups) {
    const auto [group, c0] = definition_place(i, across, width);
    item_blocks<Parts> b;
    b.group = group;
    b.column = c0 + thread_index().x % subgroup_lanes;
    b.parts = Parts == 1 ? 1 : width / unsigned{subgroup_lanes};
    measure_blocks<T>(a, f, o, b);
    make_scales<T, Blocks>(a, f, o, b);
    store_item_codes<T, Blocks>(a, f, o, b);
  }
}

/// Measures the tensor's amax as tensor_amax computes it. The grid has at most amax_words blocks.
template <class T, unsigned Parts>
__global__ void __launch_bounds__(definition_block_threads)
    tensor_amax_kernel(const ROTOSCALE_GRID_CONSTANT definition_blocks_args a) {
  block_options& o = block_shared<options_memory>().get();
  if (thread_index().x < unsigned{subgroup_lanes}) make_options(a, a.format, nullptr, o);
  block_barrier();
  const unsigned width = Parts == 1 ? unsigned{subgroup_lanes} : item_width(a.format, o);
  const unsigned lane = thread_index().x % subgroup_lanes, across = (a.columns + width - 1) / width;
  const std::uint64_t items = std::uint64_t{a.rows} * across;
  std::uint32_t most = 0;
  ROTOSCALE_KEEP_LOOP
  for (std::uint64_t i = std::uint64_t{block_index().x} * definition_subgroups + thread_index().x / subgroup_lanes;
       i < items; i += std::uint64_t{grid_size().x} * definition_subgroups) {
    const auto [r, c0] = definition_place(i, across, width);
    const lane_row<Parts> row = load_row<T, Parts>(a, o, r, c0 + lane, width / unsigned{subgroup_lanes});
    ROTOSCALE_UNROLL
    for (unsigned part = 0; part < Parts; ++part) {
      const std::uint32_t m = fp32_bits(row.x[part]) & fp32_magnitude_mask;
      if (!fp32_is_nan(m) && m > most) most = m;
    }
  }
  store_amax(a.amax, most);
}

}  // namespace rotoscale::gpu
