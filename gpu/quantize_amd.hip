// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The quantizers' AMD kernels, for clang without an SDK: what tests/gpu/gemm_amd.py reads the disassembly of, and what an
// emulator of gfx950 executes. BF16 sources, and the FP32 kernel that needs most registers; ROTOSCALE_ALL_KERNELS
// compiles every other one too, which takes a minute and more.
#include "gpu/dequantize_kernel.hpp"
#include "gpu/quantize_fp8_tile.hpp"
#include "gpu/quantize_tile.hpp"

namespace rotoscale::gpu {

#define QUANTIZE(T, Element, way) \
  template __global__ void quantize_kernel<T, Element, tile_way::way>(const quantize_args);
#define FP8(T, Element, exactly) template __global__ void fp8_kernel<T, Element, exactly>(const fp8_args);
#define DEQUANTIZE(T, Element, transposed) \
  template __global__ void dequantize_kernel<T, Element, transposed>(const dequantize_args);

QUANTIZE(bf16, e2m1, h16)
QUANTIZE(bf16, e2m1, exact)
QUANTIZE(bf16, e4m3, unrotated)
QUANTIZE(float, e2m1, full)
FP8(bf16, e4m3, false)
FP8(bf16, e5m2, true)
DEQUANTIZE(bf16, e2m1, false)

#if defined(ROTOSCALE_ALL_KERNELS)
#define QUANTIZE_REST(T, Element) QUANTIZE(T, Element, full) QUANTIZE(T, Element, h16) QUANTIZE(T, Element, exact)
QUANTIZE(bf16, e2m1, full)
QUANTIZE(bf16, e2m1, unrotated)
QUANTIZE_REST(bf16, e4m3)
QUANTIZE_REST(bf16, e5m2)
QUANTIZE(bf16, e5m2, unrotated)
QUANTIZE(float, e2m1, h16)
QUANTIZE(float, e2m1, exact)
QUANTIZE(float, e2m1, unrotated)
QUANTIZE_REST(float, e4m3)
QUANTIZE(float, e4m3, unrotated)
QUANTIZE_REST(float, e5m2)
QUANTIZE(float, e5m2, unrotated)
QUANTIZE_REST(fp16, e2m1)
QUANTIZE(fp16, e2m1, unrotated)
QUANTIZE_REST(fp16, e4m3)
QUANTIZE(fp16, e4m3, unrotated)
FP8(bf16, e4m3, true)
FP8(bf16, e5m2, false)
FP8(float, e4m3, false)
FP8(float, e5m2, true)
FP8(fp16, e4m3, false)
FP8(fp16, e5m2, true)
DEQUANTIZE(bf16, e2m1, true)
DEQUANTIZE(float, e4m3, false)
DEQUANTIZE(float, e5m2, true)
DEQUANTIZE(fp16, e2m1, true)
DEQUANTIZE(fp16, e4m3, false)
#endif

}  // namespace rotoscale::gpu
