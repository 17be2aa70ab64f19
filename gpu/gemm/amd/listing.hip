// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMD's GEMM kernels alone, for clang without an SDK: what tests/gpu/amd_listings.py reads the disassembly of, and what an
// emulator of gfx950 executes.
#include "gpu/gemm/amd/dense.hpp"
#include "gpu/gemm/amd/gfx942.hpp"
#include "gpu/gemm/amd/gfx950.hpp"

namespace rotoscale::gpu {

#if defined(__gfx950__)
#define GFX950(rows, columns, A, B, shuffled, mode)                                                      \
  template __global__ void                                                                               \
  gfx950::gemm_kernel<rows, columns, gemm_element::A, gemm_element::B, shuffled, output_mode::mode>( \
      const arguments);
#define GFX950_TILE(rows, columns)                                                           \
  GFX950(rows, columns, e2m1, e2m1, false, vector) GFX950(rows, columns, e2m1, e2m1, false, partial) \
  GFX950(rows, columns, e2m1, e2m1, true, vector) GFX950(rows, columns, e2m1, e2m1, true, partial)   \
  GFX950(rows, columns, e4m3, e4m3, false, vector) GFX950(rows, columns, e4m3, e4m3, false, partial) \
  GFX950(rows, columns, e4m3, e4m3, true, vector) GFX950(rows, columns, e4m3, e4m3, true, partial)   \
  GFX950(rows, columns, e4m3, e5m2, true, vector) GFX950(rows, columns, e5m2, e4m3, true, vector)    \
  GFX950(rows, columns, e5m2, e5m2, true, vector)
GFX950_TILE(256, 256)
GFX950_TILE(128, 128)
GFX950_TILE(64, 256)
GFX950_TILE(32, 128)
#endif
#define DENSE(rows, columns, a, b) template __global__ void amd::dense_kernel<rows, columns, a, b>(const dense_arguments);
#define GFX942_TILE(rows, columns)                                                     \
  template __global__ void gfx942::gemm_kernel<rows, columns, false>(const arguments); \
  template __global__ void gfx942::gemm_kernel<rows, columns, true>(const arguments);  \
  DENSE(rows, columns, false, false) DENSE(rows, columns, false, true)                 \
  DENSE(rows, columns, true, false) DENSE(rows, columns, true, true)
GFX942_TILE(128, 128)
GFX942_TILE(32, 128)

}  // namespace rotoscale::gpu
