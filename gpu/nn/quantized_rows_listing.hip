// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMD kernels of layers with quantized output, for clang without an SDK. tests/gpu/amd_listings.py reads their
// disassembly. BF16, and the FP32 kernel that needs most registers.
#include "gpu/nn/quantized_rows.hpp"

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

#define QUANTIZED_ROWS(producer, T, Element, path) \
  template __global__ void quantized_rows_kernel<producer<T>, Element, quantize_path::path>( \
      const quantized_rows_args<producer<T>>);
QUANTIZED_ROWS(rms_producer, bf16, e2m1, general)
QUANTIZED_ROWS(rms_producer, bf16, e4m3, fast_unrotated)
QUANTIZED_ROWS(swiglu_producer, bf16, e2m1, fast_h16)
QUANTIZED_ROWS(swiglu_gradient_producer, bf16, e2m1, general)
QUANTIZED_ROWS(swiglu_gradient_producer, bf16, e5m2, fast_unrotated)
QUANTIZED_ROWS(swiglu_gradient_producer, bf16, e2m1, fast_h16)
QUANTIZED_ROWS(swiglu_gradient_producer, float, e2m1, general)
QUANTIZED_ROWS(layer_producer, bf16, e2m1, general)
QUANTIZED_ROWS(gelu_producer, bf16, e2m1, general)
QUANTIZED_ROWS(gelu_gradient_producer, bf16, e2m1, fast_h16)

}  // namespace rotoscale::gpu
