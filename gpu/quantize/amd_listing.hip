// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The quantizers' AMD kernels, compiled by clang without an SDK.
// tests/gpu/amd_listings.py reads the disassembly, and an emulator of gfx950 executes it. By default: kernels for BF16
// sources and the FP32 kernel with most registers. ROTOSCALE_ALL_KERNELS compiles all, in more than a minute.
#include "gpu/quantize/dequantize_kernel.hpp"
#include "gpu/quantize/fp8_tile.hpp"
#include "gpu/quantize/state_kernels.hpp"
#include "gpu/quantize/tile.hpp"

namespace rotoscale::gpu {

#define QUANTIZE(T, Element, path) \
  template __global__ void quantize_kernel<T, Element, quantize_path::path>(const quantize_kernel_args);
#define FP8(T, Element, exactly) template __global__ void fp8_kernel<T, Element, exactly>(const fp8_kernel_args);
#define DEQUANTIZE(T, Element, transposed) \
  template __global__ void dequantize_kernel<T, Element, transposed>(const dequantize_kernel_args);

#if defined(ROTOSCALE_ALL_KERNELS)
#define QUANTIZE_ALL(T, Element)                           \
  QUANTIZE(T, Element, general) \
  QUANTIZE(T, Element, fast_h16) QUANTIZE(T, Element, fast_unrotated)
#define DEQUANTIZE_ALL(T, Element) DEQUANTIZE(T, Element, false) DEQUANTIZE(T, Element, true)
#define FP8_ALL(T, Element) FP8(T, Element, false) FP8(T, Element, true)
#define ALL(T)                                                                    \
  QUANTIZE_ALL(T, e2m1) QUANTIZE_ALL(T, e4m3) QUANTIZE_ALL(T, e5m2)               \
  DEQUANTIZE_ALL(T, e2m1) DEQUANTIZE_ALL(T, e4m3) DEQUANTIZE_ALL(T, e5m2)         \
  FP8_ALL(T, e4m3) FP8_ALL(T, e5m2)
ALL(bf16)
ALL(fp16)
ALL(float)
#else
QUANTIZE(bf16, e2m1, fast_h16)
QUANTIZE(bf16, e2m1, general)
QUANTIZE(bf16, e4m3, fast_unrotated)
QUANTIZE(float, e2m1, general)
FP8(bf16, e4m3, false)
FP8(bf16, e5m2, true)
DEQUANTIZE(bf16, e2m1, false)
#endif

}  // namespace rotoscale::gpu
