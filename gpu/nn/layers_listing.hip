// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMD kernels of gpu/nn for clang without an SDK. tests/gpu/amd_listings.py reads their disassembly, and an emulator of
// gfx950 executes them.
#include "gpu/nn/bias.hpp"
#include "gpu/nn/embedding.hpp"
#include "gpu/nn/loss.hpp"
#include "gpu/nn/norm_gradient.hpp"
#include "gpu/nn/optimizer.hpp"

namespace rotoscale::gpu {

using swiglu = nn::activation_math<nn::activation::swiglu>;
using gelu_tanh = nn::activation_math<nn::activation::gelu_tanh>;

#define STORAGE(T)                                                             \
  template __global__ void add_kernel<T>(const add_args<T>);                   \
  template __global__ void activation_kernel<swiglu, T>(const activation_args<T>); \
  template __global__ void activation_gradient_kernel<swiglu, T>(const activation_args<T>); \
  template __global__ void activation_kernel<gelu_tanh, T>(const activation_args<T>); \
  template __global__ void activation_gradient_kernel<gelu_tanh, T>(const activation_args<T>); \
  template __global__ void activation_bias_kernel<gelu_tanh, T>(const activation_bias_args<T>); \
  template __global__ void rope_kernel<T>(const rope_args<T>);                 \
  template __global__ void embedding_kernel<T>(const embedding_args<T>);       \
  template __global__ void embedding_gradient_kernel<T>(const embedding_gradient_args<T>); \
  template __global__ void embedding_long_gradient_kernel<T>(const embedding_gradient_args<T>); \
  template __global__ void norm_kernel<T, false, true, norm_kind::rms>(const norm_args<T>);    \
  template __global__ void norm_kernel<T, true, true, norm_kind::rms>(const norm_args<T>);     \
  template __global__ void norm_kernel<T, false, false, norm_kind::rms>(const norm_args<T>);   \
  template __global__ void norm_kernel<T, true, false, norm_kind::rms>(const norm_args<T>);    \
  template __global__ void norm_gradient_unstaged_kernel<T, norm_kind::rms>(const norm_gradient_args<T>); \
  template __global__ void norm_gradient_kernel<T, norm_kind::rms, 1, 4, 3>(const norm_gradient_args<T>); \
  template __global__ void norm_gradient_kernel<T, norm_kind::rms, 1, 2, 3>(const norm_gradient_args<T>); \
  template __global__ void norm_gradient_kernel<T, norm_kind::rms, 2, 2, 3>(const norm_gradient_args<T>); \
  template __global__ void norm_gradient_kernel<T, norm_kind::rms, 2, 1, 3>(const norm_gradient_args<T>); \
  template __global__ void norm_gradient_kernel<T, norm_kind::rms, 4, 1, 3>(const norm_gradient_args<T>);
#define LAYER_NORM(T) \
  template __global__ void norm_kernel<T, false, true, norm_kind::layer>(const norm_args<T>); \
  template __global__ void norm_kernel<T, true, true, norm_kind::layer>(const norm_args<T>); \
  template __global__ void norm_gradient_unstaged_kernel<T, norm_kind::layer>(const norm_gradient_args<T>); \
  template __global__ void norm_gradient_kernel<T, norm_kind::layer, 1, 4, 3>(const norm_gradient_args<T>); \
  template __global__ void norm_gradient_kernel<T, norm_kind::layer, 2, 2, 3>(const norm_gradient_args<T>); \
  template __global__ void bias_kernel<T>(const bias_args<T>); \
  template __global__ void bias_gradient_kernel<T>(const bias_gradient_args<T>);
LAYER_NORM(bf16)
LAYER_NORM(float)
STORAGE(bf16)
STORAGE(float)
template __global__ void dropout_kernel<bf16, bf16>(const dropout_kernel_args<bf16, bf16>);
template __global__ void dropout_kernel<bf16, float>(const dropout_kernel_args<bf16, float>);
template __global__ void dropout_kernel<float, bf16>(const dropout_kernel_args<float, bf16>);
template __global__ void dropout_kernel<float, float>(const dropout_kernel_args<float, float>);

}  // namespace rotoscale::gpu
