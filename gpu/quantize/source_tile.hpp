// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A tile of a source matrix in shared memory: how it comes there, and its elements as the definition reads them.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/api/status.hpp"
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

/// Checks a launcher's argument `source` and fills `to`.
template <class T>
status prepare_source(matrix<const T> source, tile_source& to) {
  const index_t m = source.extent(0), n = source.extent(1);
  if (m < 0 || n < 0 || m > detail::max_extent || n > detail::max_extent) {
    return {fault::bad_extent, "source", "extents must be 0 to 2^24"};
  }
  to.rows = static_cast<unsigned>(m);
  to.columns = static_cast<unsigned>(n);
  if (m == 0 || n == 0) return {};
  to.data = source.data;
  to.stride = source.stride(0);
  to.column_stride = source.stride(1);
  to.vectors = to.column_stride == 1 && reinterpret_cast<std::uintptr_t>(to.data) % 16 == 0 &&
               to.stride * static_cast<index_t>(sizeof(T)) % 16 == 0;
  return check_pointer(to.data, sizeof(T), "source");
}

/// Is it the transpose of a matrix whose rows are contiguous? Launchers then read that one.
template <class T>
bool is_transposed(matrix<const T> source) {
  return source.stride(0) == 1 && source.stride(1) != 1;
}

inline constexpr unsigned tile_columns = 128;
inline constexpr unsigned tile_threads = 128;
#if defined(ROTOSCALE_AMD)
inline constexpr unsigned tile_row_bytes = 128;  // rows times bytes of an element: several tiles in 64 KiB of LDS
#else
inline constexpr unsigned tile_row_bytes = 256;
#endif
template <class T>
inline constexpr unsigned tile_rows = tile_row_bytes / sizeof(T);

/// A tile in shared memory: rows of 128 elements in pieces of 16 bytes, permuted within 128 bytes so that neither a
/// thread that walks along a row nor one that walks down a column meets others of its warp in a bank.
template <class T>
struct tile_view {
  static constexpr unsigned piece_elements = 16 / sizeof(T);
  static constexpr unsigned row_pieces = tile_columns / piece_elements;

  unsigned char* bytes;

  /// What the pieces of 128 bytes of a row are permuted by.
  __device__ static unsigned permutation(unsigned r, unsigned piece) {
    return piece / 8 | (r & 1u) << (sizeof(T) == 2 ? 1 : 2);
  }
  __device__ static unsigned place(unsigned r, unsigned piece) {
    return r * row_pieces + (piece ^ permutation(r, piece));
  }
  __device__ bytes16* piece(unsigned r, unsigned p) const { return reinterpret_cast<bytes16*>(bytes) + place(r, p); }
  __device__ T* element(unsigned r, unsigned c) const {
    return reinterpret_cast<T*>(piece(r, c / piece_elements)) + c % piece_elements;
  }
};

/// An element as quantize_ref's load_run sees it; `bf16_source`: FP32 is first rounded to BF16. `word`: two elements,
/// or one of FP32. FP16 loses the signs of NaN on NVIDIA.
template <class T>
__device__ inline float tile_value(std::uint32_t word, int side, bool bf16_source) {
  if constexpr (std::is_same_v<T, bf16>) {
    return fp32_from_bits(side == 0 ? word << 16 : word & 0xFFFF0000u);
  } else if constexpr (std::is_same_v<T, fp16>) {
    const auto bits = static_cast<std::uint16_t>(side == 0 ? word : word >> 16);
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
    return y;
#elif defined(ROTOSCALE_AMD)
    return static_cast<float>(bit_cast<_Float16>(bits));
#else
    return static_cast<float>(fp16::from_bits(bits));
#endif
  } else {
    const std::uint32_t rounded = fp32_is_nan(word) ? word | 0x00400000u : word + 0x7FFFu + (word >> 16 & 1u);
    return fp32_from_bits(bf16_source ? rounded & 0xFFFF0000u : word);
  }
}

/// A tile's first row and column; `whole`: all of it lies in the matrix.
struct tile_origin {
  unsigned row, column;
  bool whole;
};

template <class T>
__device__ inline tile_origin make_origin(const tile_source& a, std::uint32_t tile_row, std::uint32_t tile_column) {
  const unsigned row = tile_row * tile_rows<T>, column = tile_column * tile_columns;
  return {row, column, row + tile_rows<T> <= a.rows && column + tile_columns <= a.columns};
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

/// Brings a tile, as far as the matrix reaches. The copies end with wait_for_copies.
template <class T>
__device__ inline void load_tile(const tile_source& a, const tile_origin& at, const tile_view<T>& tile) {
  constexpr unsigned piece_elements = tile_view<T>::piece_elements, row_pieces = tile_view<T>::row_pieces;
  constexpr unsigned rows_at_once = tile_threads / row_pieces;
  static_assert(rows_at_once % 2 == 0, "the permutation of a row's pieces is the same for each step");
  const unsigned t = thread_index().x, r0 = t / row_pieces, p = t % row_pieces, c = at.column + p * piece_elements;
  const T* from = a.element<T>(at.row + r0, c);
  bytes16* to = tile.piece(r0, p);
  const index_t step = rows_at_once * a.stride;
  if (at.whole && a.vectors) {
    ROTOSCALE_UNROLL
    for (unsigned r = 0; r < tile_rows<T>; r += rows_at_once) {
      copy_async(to + r * row_pieces, from);
      from += step;
    }
    return;
  }
  ROTOSCALE_KEEP_LOOP
  for (unsigned r = r0; r < tile_rows<T> && at.row + r < a.rows && c < a.columns; r += rows_at_once) {
    if (a.vectors && c + piece_elements <= a.columns) {
      copy_async(to, from);
    } else {
      auto* one = reinterpret_cast<T*>(to);
      ROTOSCALE_KEEP_LOOP
      for (unsigned j = 0; j < piece_elements && c + j < a.columns; ++j) one[j] = from[j * a.column_stride];
    }
    to += rows_at_once * row_pieces;
    from += step;
  }
}

/// Half a block along a row; `piece(i)` is the i-th of its pieces.
template <class T, class Piece>
__device__ inline void load_along_row(const Piece& piece, bool bf16_source, float (&y)[16]) {
  constexpr unsigned piece_elements = tile_view<T>::piece_elements, word_elements = piece_elements / 4;
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < 16 / piece_elements; ++i) {
    const bytes16 p = piece(i);
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < piece_elements; ++j) {
      y[i * piece_elements + j] =
          tile_value<T>(p.word[j / word_elements], static_cast<int>(j % word_elements), bf16_source);
    }
  }
}

}  // namespace rotoscale::gpu
