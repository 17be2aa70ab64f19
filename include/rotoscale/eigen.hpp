// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Opt-in bridge to Eigen 3.4, host code only. small_float becomes an Eigen scalar that can be stored, copied, compared,
// printed and cast. Matrices convert between view and Eigen without a copy. There is no arithmetic: cast to float,
// compute, cast back.
//
// `m.cast<float>()` is exact. `m.cast<e4m3>()` rounds once, saturating, from float and from double. `m.unaryExpr()` can
// call the constructors with another rounding.
#pragma once

#include <Eigen/Core>
#include <type_traits>

#include "rotoscale/limits.hpp"
#include "rotoscale/view.hpp"

/// Real(0) does not exist, so neither does Matrix::Zero(). setConstant(e4m3(0.0f)) does the same.
template <rotoscale::format F>
struct Eigen::NumTraits<rotoscale::small_float<F>> : Eigen::GenericNumTraits<rotoscale::small_float<F>> {
  using number = rotoscale::small_float<F>;
  using limits = std::numeric_limits<number>;
  enum { RequireInitialization = 0 };

  // Members whose generic definition needs arithmetic.
  static constexpr int digits() { return limits::digits; }
  static constexpr int digits10() { return limits::digits10; }
  static constexpr number dummy_precision() { return limits::epsilon(); }
  static constexpr number lowest() { return limits::lowest(); }
};

namespace Eigen::internal {
/// Eigen::half and Eigen::bfloat16 have the encodings of fp16 and bf16, so a cast keeps every bit, also of Inf and NaN.
/// Aliasing the memory of one as the other would be undefined behaviour.
template <class From, class To>
struct same_bits_cast {
  static To run(From x) { return rotoscale::bit_cast<To>(x); }
};
template <>
struct cast_impl<half, rotoscale::fp16> : same_bits_cast<half, rotoscale::fp16> {};
template <>
struct cast_impl<rotoscale::fp16, half> : same_bits_cast<rotoscale::fp16, half> {};
template <>
struct cast_impl<bfloat16, rotoscale::bf16> : same_bits_cast<bfloat16, rotoscale::bf16> {};
template <>
struct cast_impl<rotoscale::bf16, bfloat16> : same_bits_cast<rotoscale::bf16, bfloat16> {};
}  // namespace Eigen::internal

namespace rotoscale {

/// The result of to_eigen: a matrix with both strides dynamic. `T` may be const.
template <class T>
using eigen_map = Eigen::Map<
    std::conditional_t<std::is_const_v<T>,
                       const Eigen::Matrix<std::remove_const_t<T>, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>,
                       Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>,
    Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

/// `m` as an Eigen map, for any strides. Valid as long as the view's memory.
template <class T>
eigen_map<T> to_eigen(matrix<T> m) {
  return {m.data, m.extent(0), m.extent(1), {m.stride(0), m.stride(1)}};
}

/// An Eigen object with storage as a view: a matrix or vector of either order, a map, or a block held in a variable.
/// Elements are const where `m` is const.
template <class Derived>
  requires(bool(Derived::Flags& Eigen::DirectAccessBit))
auto from_eigen(Derived& m) {
  return matrix<std::remove_pointer_t<decltype(m.data())>>{
      m.data(), {m.rows(), m.cols()}, {m.rowStride(), m.colStride()}};
}

}  // namespace rotoscale
