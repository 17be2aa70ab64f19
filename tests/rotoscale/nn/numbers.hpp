// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// For layer tests: random numbers exact in FP32, strided matrices with checked gaps, and central differences of the
// double-precision forward passes in tests/oracle.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "oracle/reference_layers.hpp"
#include "oracle/reference_llama.hpp"
#include "rotoscale/nn/tensor.hpp"
#include "same_bytes.hpp"

namespace rotoscale::testing {

using oracle::tensor;

/// Multiples of 2^-12 in [centre - width, centre + width): exact in FP32.
inline tensor random_tensor(index_t size, unsigned seed, double width = 1.0, double centre = 0.0) {
  std::mt19937_64 engine(seed);
  tensor x(static_cast<std::size_t>(size));
  for (double& value : x) {
    const double uniform = 2.0 * static_cast<double>(engine() >> 11) * 0x1p-53 - 1.0;
    value = std::floor((centre + width * uniform) * 4096.0) / 4096.0;
  }
  return x;
}

inline std::vector<float> to_float(const tensor& x) { return {x.begin(), x.end()}; }
inline tensor to_double(const std::vector<float>& x) { return {x.begin(), x.end()}; }

/// A rows × cols matrix with `gap` elements between rows. The gaps must keep their value.
class strided_matrix {
 public:
  strided_matrix(index_t rows, index_t cols, index_t gap, const tensor& values = {})
      : rows_(rows), cols_(cols), stride_(cols + gap), memory_(static_cast<std::size_t>(rows * stride_), canary) {
    for (index_t r = 0; r < rows; ++r) {
      for (index_t c = 0; c < cols; ++c) {
        view()(r, c) = values.empty() ? 12345.0f : static_cast<float>(values[static_cast<std::size_t>(r * cols + c)]);
      }
    }
  }

  matrix<float> view() { return row_major(memory_.data(), rows_, cols_, stride_); }
  operator nn::tensor_view() { return {memory_.data(), nn::dtype::fp32, 2, {rows_, cols_, 1, 1}, {stride_, 1, 0, 0}}; }
  operator nn::const_tensor_view() { return nn::tensor_view(*this); }
  tensor values() {
    tensor x;
    for (index_t r = 0; r < rows_; ++r) {
      for (index_t c = 0; c < cols_; ++c) x.push_back(static_cast<double>(view()(r, c)));
    }
    return x;
  }
  bool gaps_untouched() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (static_cast<index_t>(i) % stride_ >= cols_ && memory_[i] != canary) return false;
    }
    return true;
  }

 private:
  static constexpr float canary = -777.0f;
  index_t rows_, cols_, stride_;
  std::vector<float> memory_;
};

inline double largest(const tensor& x) {
  double most = 0.0;
  for (const double value : x) most = std::max(most, std::abs(value));
  return most;
}

/// Largest difference in units of 2^-24 of the largest expected entry: about the number of FP32 roundings between the
/// two. NaN counts as infinity.
inline double roundings_apart(const tensor& got, const tensor& expected) {
  REQUIRE(got.size() == expected.size());
  double most = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(got[i] - expected[i]);
    if (!(difference <= most)) most = difference;
    if (std::isnan(difference)) return HUGE_VAL;
  }
  return most / (largest(expected) * 0x1p-24);
}

/// d f / d x_i as (4 D(h) - D(2h)) / 3, which removes the h² term of the central difference. With h = 2^-10 the
/// remaining error, `h⁴ f⁽⁵⁾ / 30` and `rounding / h`, is below 1e-9 of the gradients here, far below FP32's 6e-8.
template <class Objective>
double numeric_derivative(const Objective& f, tensor& x, std::size_t i) {
  constexpr double h = 0x1p-10;
  const std::function<double(tensor&)> objective = [&](tensor&) { return f(); };
  const double near = oracle::central_difference(objective, x, i, h);
  const double far = oracle::central_difference(objective, x, i, 2 * h);
  return (4.0 * near - far) / 3.0;
}

/// The same for i = 0, every, 2 every, ...
template <class Objective>
tensor numeric_gradient(const Objective& f, tensor& x, std::size_t every = 1) {
  tensor gradient;
  for (std::size_t i = 0; i < x.size(); i += every) gradient.push_back(numeric_derivative(f, x, i));
  return gradient;
}

/// The same along one direction, which covers all entries of x.
template <class Objective>
double numeric_slope(const Objective& f, tensor& x, const tensor& direction) {
  const tensor centre = x;
  const auto at = [&](double step) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = centre[i] + step * direction[i];
    const double value = f();
    x = centre;
    return value;
  };
  constexpr double h = 0x1p-10;
  const double near = (at(h) - at(-h)) / (2 * h), far = (at(2 * h) - at(-2 * h)) / (4 * h);
  return (4.0 * near - far) / 3.0;
}

inline tensor every_nth(const tensor& x, std::size_t every) {
  tensor picked;
  for (std::size_t i = 0; i < x.size(); i += every) picked.push_back(x[i]);
  return picked;
}

inline double dot(const tensor& x, const tensor& y) {
  REQUIRE(x.size() == y.size());
  return oracle::dot(x, 0, y, 0, x.size());
}

}  // namespace rotoscale::testing
