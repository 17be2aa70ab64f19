// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Typed views of backend memory. The element type is data, not a template argument, so that one virtual function serves
// every storage type. Only the code that reads elements names a C++ type (`as`).
#pragma once

#include <initializer_list>
#include <type_traits>

#include "rotoscale/small_float.hpp"
#include "rotoscale/view.hpp"

namespace rotoscale::nn {

/// Storage type of an element.
enum class dtype : std::uint8_t { fp32, bf16, fp64, e4m3, e5m2, u8, i32, i64 };

/// Bytes of an element.
constexpr index_t size_of(dtype t) {
  switch (t) {
    case dtype::fp64:
    case dtype::i64: return 8;
    case dtype::fp32:
    case dtype::i32: return 4;
    case dtype::bf16: return 2;
    case dtype::e4m3:
    case dtype::e5m2:
    case dtype::u8: return 1;
  }
  return 0;
}

/// Is there a dtype for T?
template <class T>
inline constexpr bool has_dtype = false;
/// T's dtype.
template <class T>
inline constexpr dtype dtype_of = dtype::u8;
#define ROTOSCALE_DTYPE(type, name)             \
  template <>                                   \
  inline constexpr bool has_dtype<type> = true; \
  template <>                                   \
  inline constexpr dtype dtype_of<type> = dtype::name
ROTOSCALE_DTYPE(float, fp32);
ROTOSCALE_DTYPE(double, fp64);
ROTOSCALE_DTYPE(rotoscale::bf16, bf16);
ROTOSCALE_DTYPE(rotoscale::e4m3, e4m3);
ROTOSCALE_DTYPE(rotoscale::e5m2, e5m2);
ROTOSCALE_DTYPE(std::uint8_t, u8);
ROTOSCALE_DTYPE(std::int32_t, i32);
ROTOSCALE_DTYPE(std::int64_t, i64);
#undef ROTOSCALE_DTYPE

inline constexpr int max_rank = 4;  ///< most dimensions

/// Void is void or const void. Strides count elements; the extents beyond `rank` are 1.
template <class Void>
struct basic_tensor_view {
  Void* data = nullptr;                      ///< the first element
  dtype type = dtype::fp32;                  ///< of the elements
  int rank = 0;                              ///< dimensions
  index_t extents[max_rank] = {1, 1, 1, 1};  ///< elements along each dimension
  index_t strides[max_rank] = {0, 0, 0, 0};  ///< elements between neighbours along each

  /// Elements along dimension `d`.
  constexpr index_t extent(int d) const { return extents[d]; }
  /// Elements between neighbours along dimension `d`.
  constexpr index_t stride(int d) const { return strides[d]; }
  /// Number of elements.
  constexpr index_t size() const {
    index_t n = 1;
    for (int d = 0; d < rank; ++d) n *= extents[d];
    return n;
  }
  /// Is there no memory?
  constexpr bool empty() const { return data == nullptr; }

  /// A view converts to a read-only one.
  template <class To>
    requires(!std::is_const_v<Void> && std::is_same_v<To, basic_tensor_view<const void>>)
  constexpr operator To() const {
    To v;
    v.data = data;
    v.type = type;
    v.rank = rank;
    for (int d = 0; d < max_rank; ++d) {
      v.extents[d] = extents[d];
      v.strides[d] = strides[d];
    }
    return v;
  }

  /// `count` indices of dimension `d` from `first` on.
  basic_tensor_view part(int d, index_t first, index_t count) const {
    ROTOSCALE_ASSERT(d < rank && first >= 0 && count >= 0 && first + count <= extents[d]);
    using byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
    basic_tensor_view v = *this;
    if (data != nullptr) v.data = static_cast<byte*>(data) + first * strides[d] * size_of(type);
    v.extents[d] = count;
    return v;
  }
};
using tensor_view = basic_tensor_view<void>;              ///< one that may be written
using const_tensor_view = basic_tensor_view<const void>;  ///< one that is only read

/// Dense, last index fastest.
inline tensor_view dense_tensor(void* data, dtype type, std::initializer_list<index_t> extents) {
  ROTOSCALE_ASSERT(extents.size() <= max_rank);
  tensor_view v;
  v.data = data;
  v.type = type;
  for (const index_t extent : extents) v.extents[v.rank++] = extent;
  index_t stride = 1;
  for (int d = v.rank; d-- > 0; stride *= v.extents[d]) v.strides[d] = stride;
  return v;
}

/// [batch * seq, columns] as [batch, seq, heads, head_dim], the heads being `heads * head_dim` of its columns.
template <class Void>
basic_tensor_view<Void> as_heads(const basic_tensor_view<Void>& x, index_t batch, index_t heads, index_t head_dim) {
  ROTOSCALE_ASSERT(x.rank == 2 && x.extents[1] == heads * head_dim && x.extents[0] % batch == 0);
  const index_t seq = x.extents[0] / batch, row = x.strides[0];
  return {x.data, x.type, 4, {batch, seq, heads, head_dim}, {seq * row, row, head_dim, x.strides[1]}};
}

/// The view with its element type named; T is const where elements are only read.
template <class T, int Rank, class Void>
view<T, Rank> as(const basic_tensor_view<Void>& x) {
  static_assert(has_dtype<std::remove_const_t<T>>);
  ROTOSCALE_ASSERT(x.type == dtype_of<std::remove_const_t<T>> && x.rank == Rank);
  view<T, Rank> v;
  v.data = static_cast<T*>(x.data);
  for (int d = 0; d < Rank; ++d) {
    v.extents[d] = x.extents[d];
    v.strides[d] = x.strides[d];
  }
  return v;
}
/// `as` with two dimensions.
template <class T, class Void>
matrix<T> as_matrix(const basic_tensor_view<Void>& x) {
  return as<T, 2>(x);
}

}  // namespace rotoscale::nn
