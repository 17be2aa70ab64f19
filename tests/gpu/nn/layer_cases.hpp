// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A layer, and the same layer with quantized output in one kernel, on random numbers.
#pragma once

#include <doctest/doctest.h>

#include <cmath>

#include "../device_memory.hpp"
#include "gpu/api/nn.hpp"

namespace gpu_test {

enum class layer { norm, swiglu, swiglu_gradient, gelu, gelu_gradient };
inline constexpr layer layers[] = {layer::norm, layer::swiglu, layer::swiglu_gradient, layer::gelu,
                                   layer::gelu_gradient};

/// Random numbers, some special. `finite`: no special ones, because the NaN of a product of two NaNs is not defined.
template <class T>
std::vector<T> source_of(rotoscale::index_t m, rotoscale::index_t n, std::uint64_t seed, bool finite) {
  std::vector<T> x = make_source<T>(m, n, seed);
  for (T& value : x) {
    if (finite && !std::isfinite(static_cast<float>(value))) value = static_cast<T>(1.0f);
  }
  return x;
}

/// m rows of a layer of width n (a gradient has 2 n). `writes`: also store the unquantized result. Sources start `skew`
/// elements after a multiple of 16 bytes.
template <class T>
class layer_case {
 public:
  layer_case(layer which, rotoscale::index_t m, rotoscale::index_t n, bool writes, std::size_t skew)
      : which_(which),
        m_(m),
        n_(n),
        writes_(writes),
        x_(source_of<T>(m, inputs(), 1, !writes), skew),
        other_(source_of<T>(m, n, 2, !writes), skew),
        gain_(source_of<float>(1, n, 3, !writes)),
        alone_(static_cast<std::size_t>(m * cols())),
        made_(static_cast<std::size_t>(m * cols())),
        sum_(static_cast<std::size_t>(m * n)),
        rstd_(static_cast<std::size_t>(m)) {}

  bool is_gradient() const { return which_ == layer::swiglu_gradient || which_ == layer::gelu_gradient; }
  rotoscale::nn::activation activation() const {
    return which_ == layer::gelu || which_ == layer::gelu_gradient ? rotoscale::nn::activation::gelu_tanh
                                                                   : rotoscale::nn::activation::swiglu;
  }
  rotoscale::index_t inputs() const { return which_ == layer::norm ? n_ : rotoscale::nn::inputs_of(activation()) * n_; }
  rotoscale::index_t cols() const { return is_gradient() ? inputs() : n_; }

  /// `target`: of launch_quantized. Returns the values that are quantized.
  template <class Target>
  std::vector<T> run(const Target& target) const {
    namespace nn = rotoscale::nn;
    namespace gpu = rotoscale::gpu;
    constexpr nn::dtype type = std::is_same_v<T, rotoscale::bf16> ? nn::dtype::bf16 : nn::dtype::fp32;
    const auto view = [&](const device_array<T>& a, rotoscale::index_t c) {
      return nn::dense_tensor(a.data(), type, {m_, c});
    };
    const nn::tensor_view x = view(x_, inputs()), to = writes_ ? view(made_, cols()) : nn::tensor_view{};
    const nn::op::residual_norm::in norm{x, view(other_, n_), gain_.data(), 1e-5f, nullptr};
    const nn::activation act = activation();
    switch (which_) {
      case layer::norm:
        gpu_test::expect(
            gpu::launch<nn::op::residual_norm>({}, norm, {view(sum_, n_), view(alone_, n_), rstd_.data(), {}}));
        gpu_test::expect(
            gpu::launch_quantized<nn::op::residual_norm>({}, norm, {view(sum_, n_), to, rstd_.data(), {}}, target));
        break;
      case layer::swiglu:
      case layer::gelu:
        gpu_test::expect(gpu::launch<nn::op::activation_forward>({}, {x, act}, {view(alone_, n_)}));
        gpu_test::expect(gpu::launch_quantized<nn::op::activation_quantize>({}, {x, act, nullptr}, {to, {}}, target));
        break;
      case layer::swiglu_gradient:
      case layer::gelu_gradient:
        gpu_test::expect(
            gpu::launch<nn::op::activation_backward>({}, {view(other_, n_), x, act}, {view(alone_, cols())}));
        gpu_test::expect(gpu::launch_quantized<nn::op::activation_backward_quantize>(
            {}, {view(other_, n_), x, act, nullptr}, {to, {}}, target));
        break;
    }
    const std::vector<T> want = alone_.read(), got = writes_ ? made_.read() : want;
    CHECK(std::equal(want.begin(), want.end(), got.begin(), [](T a, T b) {
      const auto x = static_cast<float>(a), y = static_cast<float>(b);
      return rotoscale::fp32_bits(x) == rotoscale::fp32_bits(y) || (std::isnan(x) && std::isnan(y));
    }));
    return got;
  }

 private:
  layer which_;
  rotoscale::index_t m_, n_;
  bool writes_;
  device_array<T> x_, other_;
  device_array<float> gain_;
  device_array<T> alone_, made_, sum_;
  device_array<float> rstd_;
};

}  // namespace gpu_test
