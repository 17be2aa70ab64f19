// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Non-owning strided views with the names of mdspan (extent, stride, operator()). Strides count elements. A view never
// allocates, and checks only in debug builds; checked.hpp has the checked interface.
#pragma once

#include <type_traits>

#include "rotoscale/config.hpp"

namespace rotoscale {

/// A strided array with `Rank` indices that owns no memory.
template <class T, int Rank>
struct view {
  T* data = nullptr;           ///< element (0, ..., 0)
  index_t extents[Rank] = {};  ///< elements along each axis
  index_t strides[Rank] = {};  ///< elements between neighbours along each axis

  /// Number of elements along axis `d`.
  ROTOSCALE_HD constexpr index_t extent(int d) const { return extents[d]; }
  /// Elements between neighbours along axis `d`.
  ROTOSCALE_HD constexpr index_t stride(int d) const { return strides[d]; }
  /// Number of elements.
  ROTOSCALE_HD constexpr index_t size() const {
    index_t n = 1;
    for (int d = 0; d < Rank; ++d) n *= extents[d];
    return n;
  }

  /// The element at these indices. They must be within the extents (asserted).
  template <class... I>
  ROTOSCALE_HD constexpr T& operator()(I... i) const {
    static_assert(sizeof...(I) == Rank);
    const index_t at[Rank] = {static_cast<index_t>(i)...};
    index_t offset = 0;
    for (int d = 0; d < Rank; ++d) {
      ROTOSCALE_ASSERT(at[d] >= 0 && at[d] < extents[d]);
      offset += at[d] * strides[d];
    }
    return data[offset];
  }

  /// A view of T converts to a view of const T.
  template <class U>
    requires(std::is_same_v<U, const T> && !std::is_const_v<T>)
  ROTOSCALE_HD constexpr operator view<U, Rank>() const {
    view<U, Rank> v;
    v.data = data;
    for (int d = 0; d < Rank; ++d) {
      v.extents[d] = extents[d];
      v.strides[d] = strides[d];
    }
    return v;
  }
};

/// A two-dimensional view: rows and columns.
template <class T>
using matrix = view<T, 2>;

/// Row-major view of rows × cols elements; `stride` elements between rows, by default cols.
template <class T>
ROTOSCALE_HD constexpr matrix<T> row_major(T* data, index_t rows, index_t cols, index_t stride = -1) {
  return {data, {rows, cols}, {stride < 0 ? cols : stride, 1}};
}

/// The transpose of m, without a copy.
template <class T>
ROTOSCALE_HD constexpr matrix<T> transposed(matrix<T> m) {
  return {m.data, {m.extents[1], m.extents[0]}, {m.strides[1], m.strides[0]}};
}

/// Rows [row, row + rows) and columns [col, col + cols) of m.
template <class T>
ROTOSCALE_HD constexpr matrix<T> submatrix(matrix<T> m, index_t row, index_t col, index_t rows, index_t cols) {
  ROTOSCALE_ASSERT(row >= 0 && rows >= 0 && row + rows <= m.extents[0]);
  ROTOSCALE_ASSERT(col >= 0 && cols >= 0 && col + cols <= m.extents[1]);
  return {m.data + row * m.strides[0] + col * m.strides[1], {rows, cols}, {m.strides[0], m.strides[1]}};
}

}  // namespace rotoscale
