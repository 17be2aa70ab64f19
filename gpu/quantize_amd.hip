// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The quantizers' AMD kernels, for clang without an SDK: what tests/gpu/amd_listing.py reads the disassembly of, and what
// an emulator of gfx950 executes.
#include "gpu/dequantize_kernel.hpp"
#include "gpu/quantize_fp8_tile.hpp"
#include "gpu/quantize_tile.hpp"

namespace rotoscale::gpu {

#define QUANTIZE(T, Element)                                                                              \
  template __global__ void quantize_kernel<T, Element, tile_way::exact>(const quantize_args);     \
  template __global__ void quantize_kernel<T, Element, tile_way::full>(const quantize_args);      \
  template __global__ void quantize_kernel<T, Element, tile_way::h16>(const quantize_args);       \
  template __global__ void quantize_kernel<T, Element, tile_way::unrotated>(const quantize_args);
#define OTHERS(T, Element)                                                                                  \
  template __global__ void fp8_kernel<T, Element, false>(const fp8_args);                             \
  template __global__ void fp8_kernel<T, Element, true>(const fp8_args);                              
#define DEQUANTIZE(T, Element)                                                                              \
  template __global__ void dequantize_kernel<T, Element, false>(const dequantize_args);               \
  template __global__ void dequantize_kernel<T, Element, true>(const dequantize_args);
#define EACH_ELEMENT(T) QUANTIZE(T, e2m1) QUANTIZE(T, e4m3) QUANTIZE(T, e5m2) OTHERS(T, e4m3) OTHERS(T, e5m2) DEQUANTIZE(T, e2m1) DEQUANTIZE(T, e4m3) DEQUANTIZE(T, e5m2)
EACH_ELEMENT(bf16)
EACH_ELEMENT(fp16)
EACH_ELEMENT(float)

}  // namespace rotoscale::gpu
