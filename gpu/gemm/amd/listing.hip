// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMD's GEMM kernels alone, for clang without an SDK: what tests/gpu/amd_listings.py reads the disassembly of, and what an
// emulator of gfx950 executes.
#include "gpu/gemm/amd/gfx942.hpp"
#include "gpu/gemm/amd/gfx950.hpp"

namespace rotoscale::gpu {

#if defined(__gfx950__)
#define GFX950(A, B, shuffled, mode)                                                                             \
  template __global__ void gfx950::gemm_kernel<gemm_element::A, gemm_element::B, shuffled, output_mode::mode>( \
      const arguments);
#define GFX950_ALL(A, B) \
  GFX950(A, B, false, vector) GFX950(A, B, false, partial) GFX950(A, B, true, vector) GFX950(A, B, true, partial)
GFX950_ALL(e2m1, e2m1)
GFX950_ALL(e4m3, e4m3)
GFX950(e4m3, e5m2, true, vector)
GFX950(e5m2, e4m3, true, vector)
GFX950(e5m2, e5m2, true, vector)
#endif
template __global__ void gfx942::gemm_kernel<false>(const arguments);
template __global__ void gfx942::gemm_kernel<true>(const arguments);
template __global__ void gfx942::bf16_kernel<false>(const bf16_arguments);
template __global__ void gfx942::bf16_kernel<true>(const bf16_arguments);

}  // namespace rotoscale::gpu
