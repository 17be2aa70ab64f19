// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A tile of a source matrix in shared memory: its layout, its loads, and its elements as the definition reads them.
#pragma once

#include "gpu/dialect/async_copy.hpp"
#include "gpu/dialect/convert.hpp"
#include "gpu/dialect/packed.hpp"
#include "rotoscale/small_float.hpp"
#include "rotoscale/view.hpp"

namespace rotoscale::gpu {

/// A matrix of any strides.
struct tile_source {
  const void* data = nullptr;
  index_t stride = 0, column_stride = 1;  ///< elements from row to row, from column to column
  unsigned rows = 0, columns = 0;
  bool vectors = false;  ///< rows are contiguous and begin at multiples of 16 bytes

  template <class T>
  __device__ const T* element(unsigned r, unsigned c) const {
    return static_cast<const T*>(data) + r * stride + c * column_stride;
  }
};

inline constexpr unsigned tile_columns = 128;
inline constexpr unsigned tile_threads = 128;
/// Rows times bytes per element. Several tiles fit even into a small shared memory.
inline constexpr unsigned tile_row_bytes = has_small_shared_memory ? 128 : 256;
template <class T>
inline constexpr unsigned tile_rows = tile_row_bytes / sizeof(T);

/// A tile in shared memory: rows of 128 elements. Its 16-byte vectors are swizzled within 128 bytes, so accesses along
/// rows and columns have no bank conflicts.
template <class T>
struct tile_view {
  static constexpr unsigned vec_elements = 16 / sizeof(T);
  static constexpr unsigned row_vecs = tile_columns / vec_elements;

  unsigned char* bytes;

  /// The swizzle of the vectors within 128 bytes of a row.
  __device__ static unsigned permutation(unsigned r, unsigned vec) {
    return vec / 8 | (r & 1u) << (sizeof(T) == 2 ? 1 : 2);
  }
  __device__ static unsigned place(unsigned r, unsigned vec) { return r * row_vecs + (vec ^ permutation(r, vec)); }
  __device__ vec16* vec(unsigned r, unsigned p) const { return reinterpret_cast<vec16*>(bytes) + place(r, p); }
  __device__ T* element(unsigned r, unsigned c) const {
    return reinterpret_cast<T*>(vec(r, c / vec_elements)) + c % vec_elements;
  }
};

/// One element of `word` as quantize_ref's load_run reads it. `bf16_source` rounds FP32 to BF16 first. `word` holds two
/// 16-bit elements, or one of FP32.
template <class T>
__device__ inline float tile_value(std::uint32_t word, int side, bool bf16_source) {
  if constexpr (std::is_same_v<T, bf16>) {
    return fp32_from_bits(side == 0 ? word << 16 : word & 0xFFFF0000u);
  } else if constexpr (std::is_same_v<T, fp16>) {
    const auto bits = static_cast<std::uint16_t>(side == 0 ? word : word >> 16);
    return fp16_value(bits);
  } else {
    const std::uint32_t rounded = round_to_bf16_quieting_nan(word);
    return fp32_from_bits(bf16_source ? rounded & 0xFFFF0000u : word);
  }
}

/// A tile's first row and column. `whole`: the tile is inside the matrix.
struct tile_origin {
  unsigned row, column;
  bool whole;
};

template <class T, unsigned Rows = tile_rows<T>>
__device__ inline tile_origin make_origin(const tile_source& a, std::uint32_t tile_row, std::uint32_t tile_column) {
  const unsigned row = tile_row * Rows, column = tile_column * tile_columns;
  return {row, column, row + Rows <= a.rows && column + tile_columns <= a.columns};
}

/// One element.
template <class T>
__device__ inline float tile_value(T x, bool bf16_source) {
  if constexpr (std::is_same_v<T, float>) {
    return tile_value<T>(fp32_bits(x), 0, bf16_source);
  } else {
    return tile_value<T>(std::uint32_t{x.bits()}, 0, bf16_source);
  }
}

/// Loads a tile, clipped to the matrix. The copies are asynchronous: call wait_for_copies.
template <class T, unsigned Rows = tile_rows<T>>
__device__ inline void load_tile(const tile_source& a, const tile_origin& at, const tile_view<T>& tile) {
  constexpr unsigned vec_elements = tile_view<T>::vec_elements, row_vecs = tile_view<T>::row_vecs;
  constexpr unsigned rows_at_once = tile_threads / row_vecs;
  static_assert(rows_at_once % 2 == 0, "the permutation of a row's vecs is the same for each step");
  const unsigned t = thread_index().x, r0 = t / row_vecs, p = t % row_vecs, c = at.column + p * vec_elements;
  const T* from = a.element<T>(at.row + r0, c);
  vec16* to = tile.vec(r0, p);
  const index_t step = rows_at_once * a.stride;
  if (at.whole && a.vectors) {
    ROTOSCALE_UNROLL
    for (unsigned r = 0; r < Rows; r += rows_at_once) {
      copy_async(to + r * row_vecs, from);
      from += step;
    }
    return;
  }
  ROTOSCALE_KEEP_LOOP
  for (unsigned r = r0; r < Rows && at.row + r < a.rows && c < a.columns; r += rows_at_once) {
    if (a.vectors && c + vec_elements <= a.columns) {
      copy_async(to, from);
    } else {
      auto* one = reinterpret_cast<T*>(to);
      ROTOSCALE_KEEP_LOOP
      for (unsigned j = 0; j < vec_elements && c + j < a.columns; ++j) one[j] = from[j * a.column_stride];
    }
    to += rows_at_once * row_vecs;
    from += step;
  }
}

/// Loads half a block along a row; `vec(i)` is its i-th vector.
template <class T, class Vec>
__device__ inline void load_along_row(const Vec& vec, bool bf16_source, float (&y)[16]) {
  constexpr unsigned vec_elements = tile_view<T>::vec_elements, word_elements = vec_elements / 4;
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < 16 / vec_elements; ++i) {
    const vec16 p = vec(i);
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < vec_elements; ++j) {
      y[i * vec_elements + j] =
          tile_value<T>(p.word[j / word_elements], static_cast<int>(j % word_elements), bf16_source);
    }
  }
}

}  // namespace rotoscale::gpu
