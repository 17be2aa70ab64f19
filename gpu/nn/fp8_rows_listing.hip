// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMD kernels of layers with FP8 output, for clang without an SDK. tests/gpu/amd_listings.py reads their disassembly.
// BF16, and the FP32 kernel that needs most registers.
#include "gpu/nn/fp8_rows.hpp"

namespace rotoscale::gpu {

template <class T>
using rms_producer = norm_producer<norm_kind::rms, T>;
template <class T>
using layer_producer = norm_producer<norm_kind::layer, T>;
template <class T>
using swiglu_producer = activation_producer<nn::activation_math<nn::activation::swiglu>, T>;
template <class T>
using swiglu_gradient_producer = activation_gradient_producer<nn::activation_math<nn::activation::swiglu>, T>;
template <class T>
using gelu_producer = activation_producer<nn::activation_math<nn::activation::gelu_tanh>, T>;
template <class T>
using gelu_gradient_producer = activation_gradient_producer<nn::activation_math<nn::activation::gelu_tanh>, T>;

#define FP8_ROWS(producer, T, Element) \
  template __global__ void fp8_rows_kernel<producer<T>, Element>(const fp8_rows_args<producer<T>>);
FP8_ROWS(rms_producer, bf16, e4m3)
FP8_ROWS(swiglu_producer, bf16, e4m3)
FP8_ROWS(swiglu_gradient_producer, bf16, e5m2)
FP8_ROWS(swiglu_gradient_producer, float, e5m2)
FP8_ROWS(layer_producer, bf16, e4m3)
FP8_ROWS(gelu_producer, bf16, e4m3)
FP8_ROWS(gelu_gradient_producer, bf16, e5m2)

}  // namespace rotoscale::gpu
