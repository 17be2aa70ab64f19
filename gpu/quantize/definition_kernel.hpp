// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Blocks that the tile kernel does not know (NVFP4, MXFP6, square blocks of 16, rotations of 32 points), by the
// definition's own functions: a segment of 32 lanes takes 32 elements of a row, or of the rows that share their scales,
// a lane an element. A rotation is a butterfly across lanes.
#pragma once

#include "gpu/dialect/lanes.hpp"
#include "gpu/quantize/source_tile.hpp"
#include "rotoscale/quantize_ref.hpp"

namespace rotoscale::gpu {

inline constexpr unsigned definition_segments = 8, definition_block_threads = definition_segments * segment_lanes;

struct definition_blocks_args
    : tile_source {  ///< the source in the orientation of its blocks: rows, and k along columns
  block_format format;
  block_options options;
  const block_options* drawn = nullptr;  ///< device memory, not null: instead of `options`
  std::uint8_t* codes = nullptr;         ///< null where amax is wanted
  std::uint8_t* scales = nullptr;
  index_t code_stride = 0, scale_stride = 0;
  std::uint32_t* amax = nullptr;  ///< bits; becomes the larger of what it holds and the tensor's
  std::uint64_t random_step = 0;  ///< words from a row to the next
};

/// Element (r, c) as its block sees it; all lanes of a segment come here with neighbouring c.
template <class T>
__device__ inline float definition_element(const definition_blocks_args& a, const block_options& o, unsigned r,
                                           unsigned c) {
  float x = 0.0f;
  if (c < a.columns) x = round_to_format(o.source, source_value(*a.template element<T>(r, c)));
  if (o.rotation.points == 0) return x;
  const auto run = static_cast<unsigned>(run_length(a.format, o.rotation));
  if (o.rotation.negates(static_cast<int>(c % run))) x = fp32_from_bits(fp32_bits(x) ^ fp32_sign_mask);
  x = segment_butterflies(x, c, static_cast<unsigned>(o.rotation.points));
  return canonical_nan(x * hadamard_factor(o.rotation.points));
}

/// One lane's byte of the packed codes of 32 elements, whose codes the lanes hold. A byte has bits of at most two
/// elements of 4, 6 or 8 bits.
__device__ inline std::uint32_t gather_byte(std::uint32_t code, unsigned lane, unsigned bits) {
  std::uint32_t byte = 0;
  ROTOSCALE_UNROLL
  for (unsigned j = 0; j < 2; ++j) {
    const unsigned element = 8 * lane / bits + j;
    const std::uint32_t other = shuffle(code, element % segment_lanes);
    const int shift = static_cast<int>(bits * element) - static_cast<int>(8 * lane);
    if (shift < 8) byte |= shift < 0 ? other >> -shift : other << shift;
  }
  return byte & 0xFFu;
}

/// Items are 32 elements of format.rows rows; along rows first.
template <class T>
__global__ void __launch_bounds__(definition_block_threads)
    definition_blocks_kernel(const ROTOSCALE_GRID_CONSTANT definition_blocks_args a) {
  const block_options& o = a.drawn != nullptr ? *a.drawn : a.options;
  const unsigned lane = thread_index().x % segment_lanes, across = (a.columns + segment_lanes - 1) / segment_lanes;
  const auto height = static_cast<unsigned>(a.format.rows), length = static_cast<unsigned>(a.format.length);
  const auto bits = static_cast<unsigned>(storage_bits(a.format.element));
  const std::uint64_t items = std::uint64_t{a.rows / height} * across;
  ROTOSCALE_KEEP_LOOP
  for (std::uint64_t i = std::uint64_t{block_index().x} * definition_segments + thread_index().x / segment_lanes;
       i < items; i += std::uint64_t{grid_size().x} * definition_segments) {
    const auto group = static_cast<unsigned>(i / across), c0 = static_cast<unsigned>(i % across) * segment_lanes;
    const unsigned c = c0 + lane;
    std::uint32_t amax = no_amax;
    ROTOSCALE_KEEP_LOOP
    for (unsigned r = group * height; r < (group + 1) * height; ++r) {
      const float x = definition_element<T>(a, o, r, c);
      if (c < a.columns) amax = block_amax(&x, 1, o.policy, amax);
    }
    ROTOSCALE_KEEP_LOOP
    for (unsigned mask = 1; mask < length; mask *= 2) amax = larger_amax(amax, shuffle_xor(amax, mask));
    const std::uint8_t scale = choose_scale(a.format, o, amax);
    if (c < a.columns && lane % length == 0) a.scales[group * a.scale_stride + c / length] = scale;
    ROTOSCALE_KEEP_LOOP
    for (unsigned r = group * height; r < (group + 1) * height; ++r) {
      const float x = definition_element<T>(a, o, r, c);
      random_bits random{0, o.random_count};
      if (o.rounding == rounding::stochastic) random.word = o.random.word(r * a.random_step + c);
      const std::uint32_t code = c < a.columns ? encode_element(a.format, o, x, scale, random) : 0;
      const std::uint32_t byte = gather_byte(code, lane, bits);
      const index_t at = index_t{c0} * bits / 8 + lane;
      if (lane < 4 * bits && at < packed_bytes(a.format.element, a.columns)) {
        a.codes[r * a.code_stride + at] = static_cast<std::uint8_t>(byte);
      }
    }
  }
}

/// tensor_amax.
template <class T>
__global__ void __launch_bounds__(definition_block_threads)
    tensor_amax_kernel(const ROTOSCALE_GRID_CONSTANT definition_blocks_args a) {
  const block_options& o = a.drawn != nullptr ? *a.drawn : a.options;
  const unsigned lane = thread_index().x % segment_lanes, across = (a.columns + segment_lanes - 1) / segment_lanes;
  const std::uint64_t items = std::uint64_t{a.rows} * across;
  std::uint32_t most = 0;
  ROTOSCALE_KEEP_LOOP
  for (std::uint64_t i = std::uint64_t{block_index().x} * definition_segments + thread_index().x / segment_lanes;
       i < items; i += std::uint64_t{grid_size().x} * definition_segments) {
    const auto r = static_cast<unsigned>(i / across), c = static_cast<unsigned>(i % across) * segment_lanes + lane;
    const std::uint32_t m = fp32_bits(definition_element<T>(a, o, r, c)) & fp32_magnitude_mask;
    if (!fp32_is_nan(m) && m > most) most = m;
  }
  most = segment_max(most);
  if (lane == 0 && most != 0) atomic_max(a.amax, most);
}

struct encode_factor_args {
  block_format format;
  const std::uint32_t* amax = nullptr;
  block_options* options = nullptr;
  float* factor = nullptr;
};
/// The second-level factor of a tensor: into its options, and inverted where its GEMM reads it.
[[maybe_unused]] static __global__ void encode_factor_kernel(const encode_factor_args a) {
  const float encode = tensor_encode_factor(fp32_from_bits(*a.amax), a.format.element, a.format.scale);
  a.options->encode_factor = encode;
  *a.factor = 1.0f / encode;
}

}  // namespace rotoscale::gpu
