// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMD kernels of layers with FP8 output, for clang without an SDK. tests/gpu/amd_listings.py reads their disassembly.
// BF16, and the FP32 kernel that needs most registers.
#include "gpu/nn/fp8_rows.hpp"

namespace rotoscale::gpu {

#define FP8_ROWS(producer, T, Element) \
  template __global__ void fp8_rows_kernel<producer<T>, Element>(const fp8_rows_args<producer<T>>);
FP8_ROWS(norm_producer, bf16, e4m3)
FP8_ROWS(swiglu_producer, bf16, e4m3)
FP8_ROWS(swiglu_gradient_producer, bf16, e5m2)
FP8_ROWS(swiglu_gradient_producer, float, e5m2)

}  // namespace rotoscale::gpu
