// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMD kernels of gpu/nn for clang without an SDK. tests/gpu/amd_listings.py reads their disassembly, and an emulator of
// gfx950 executes them.
#include "gpu/nn/embedding.hpp"
#include "gpu/nn/loss.hpp"
#include "gpu/nn/norm_gradient.hpp"
#include "gpu/nn/optimizer.hpp"

namespace rotoscale::gpu {

#define STORAGE(T)                                                             \
  template __global__ void add_kernel<T>(const add_args<T>);                   \
  template __global__ void swiglu_kernel<T>(const swiglu_args<T>);             \
  template __global__ void swiglu_gradient_kernel<T>(const swiglu_args<T>);    \
  template __global__ void rope_kernel<T>(const rope_args<T>);                 \
  template __global__ void embedding_kernel<T>(const embedding_args<T>);       \
  template __global__ void embedding_gradient_kernel<T>(const embedding_gradient_args<T>); \
  template __global__ void embedding_long_gradient_kernel<T>(const embedding_gradient_args<T>); \
  template __global__ void norm_kernel<T, false, true>(const norm_args<T>);    \
  template __global__ void norm_kernel<T, true, true>(const norm_args<T>);     \
  template __global__ void norm_kernel<T, false, false>(const norm_args<T>);   \
  template __global__ void norm_kernel<T, true, false>(const norm_args<T>);    \
  template __global__ void norm_gradient_unstaged_kernel<T>(const norm_gradient_args<T>); \
  template __global__ void norm_gradient_kernel<T, 1, 4, 3>(const norm_gradient_args<T>); \
  template __global__ void norm_gradient_kernel<T, 1, 2, 3>(const norm_gradient_args<T>); \
  template __global__ void norm_gradient_kernel<T, 2, 2, 3>(const norm_gradient_args<T>); \
  template __global__ void norm_gradient_kernel<T, 2, 1, 3>(const norm_gradient_args<T>); \
  template __global__ void norm_gradient_kernel<T, 4, 1, 3>(const norm_gradient_args<T>);
STORAGE(bf16)
STORAGE(float)
template __global__ void dropout_kernel<bf16, bf16>(const dropout_kernel_args<bf16, bf16>);
template __global__ void dropout_kernel<bf16, float>(const dropout_kernel_args<bf16, float>);
template __global__ void dropout_kernel<float, bf16>(const dropout_kernel_args<float, bf16>);
template __global__ void dropout_kernel<float, float>(const dropout_kernel_args<float, float>);

}  // namespace rotoscale::gpu
