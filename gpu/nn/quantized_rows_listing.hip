// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The AMD kernels of layers that quantize what they make, for clang without an SDK: what tests/gpu/amd_listings.py reads
// the disassembly of. BF16, and the FP32 kernel that needs most registers.
#include "gpu/nn/quantized_rows.hpp"

namespace rotoscale::gpu {

#define MADE(maker, T, Element, path) \
  template __global__ void made_rows_kernel<maker<T>, Element, quantize_path::path>(const made_rows_args<maker<T>>);
MADE(norm_maker, bf16, e2m1, fast)
MADE(norm_maker, bf16, e4m3, fast)
MADE(swiglu_maker, bf16, e2m1, fast)
MADE(swiglu_gradient_maker, bf16, e2m1, exact)
MADE(swiglu_gradient_maker, bf16, e5m2, fast)
MADE(swiglu_gradient_maker, float, e2m1, fast)

}  // namespace rotoscale::gpu
