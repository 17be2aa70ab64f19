// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMD's GEMM kernels, compiled by clang without an SDK. tests/gpu/amd_listings.py reads the disassembly, and an
// emulator of gfx950 executes it.
#include "gpu/gemm/amd/dense.hpp"
#include "gpu/gemm/amd/gfx942.hpp"
#include "gpu/gemm/amd/gfx950.hpp"

namespace rotoscale::gpu {

#if defined(__gfx950__)
#define GFX950(rows, columns, A, B) \
  template __global__ void gfx950::gemm_kernel<rows, columns, gemm_element::A, gemm_element::B>(const arguments);
#define FP4(rows, columns) GFX950(rows, columns, e2m1, e2m1)
#define FP8(rows, columns)                                                   \
  GFX950(rows, columns, e4m3, e4m3) GFX950(rows, columns, e4m3, e5m2) \
  GFX950(rows, columns, e5m2, e4m3) GFX950(rows, columns, e5m2, e5m2)
FP4(256, 256) FP4(128, 512) FP4(64, 1024) FP4(160, 384) FP4(96, 640) FP4(224, 256) FP4(64, 896) FP4(192, 256)
FP4(128, 384) FP4(96, 512) FP4(64, 768) FP4(160, 256) FP4(64, 640) FP4(96, 384) FP4(256, 128) FP4(128, 256)
FP4(64, 512) FP4(32, 1024) FP4(224, 128) FP4(32, 896) FP4(192, 128) FP4(96, 256) FP4(64, 384) FP4(32, 768)
FP4(160, 128) FP4(32, 640) FP4(128, 128) FP4(64, 256) FP4(32, 512) FP4(96, 128) FP4(32, 384) FP4(64, 128)
FP4(32, 256) FP4(32, 128)
FP8(192, 256) FP8(128, 256) FP8(128, 128) FP8(64, 256) FP8(32, 128)
#endif
#define DENSE(rows, columns, a, b) \
  template __global__ void amd::dense_kernel<rows, columns, a, b>(const dense_arguments);
#define DENSE_TILE(rows, columns)                                        \
  DENSE(rows, columns, false, false) DENSE(rows, columns, false, true) \
  DENSE(rows, columns, true, false) DENSE(rows, columns, true, true)
DENSE_TILE(128, 128)
DENSE_TILE(32, 128)
DENSE_TILE(160, 64)
DENSE_TILE(128, 64)
DENSE_TILE(96, 64)
DENSE_TILE(64, 64)
DENSE_TILE(48, 64)
DENSE_TILE(32, 64)
#define GFX942_TILE(rows, columns)                                                     \
  template __global__ void gfx942::gemm_kernel<rows, columns, false>(const arguments); \
  template __global__ void gfx942::gemm_kernel<rows, columns, true>(const arguments);
GFX942_TILE(128, 128)
GFX942_TILE(32, 128)

}  // namespace rotoscale::gpu
