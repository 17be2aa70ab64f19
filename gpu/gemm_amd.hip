// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMD's GEMM kernels alone, for clang without an SDK: what tests/gpu/amd_listings.py reads the disassembly of, and what an
// emulator of gfx950 executes.
#include "gpu/gemm_gfx942.hpp"
#include "gpu/gemm_gfx950.hpp"

namespace rotoscale::gpu {

#if defined(__gfx950__)
template __global__ void gfx950::gemm_kernel<false, output_mode::plain>(const arguments);
template __global__ void gfx950::gemm_kernel<false, output_mode::partial>(const arguments);
template __global__ void gfx950::gemm_kernel<true, output_mode::plain>(const arguments);
template __global__ void gfx950::gemm_kernel<true, output_mode::partial>(const arguments);
#endif
template __global__ void gfx942::gemm_kernel<false>(const arguments);
template __global__ void gfx942::gemm_kernel<true>(const arguments);

}  // namespace rotoscale::gpu
