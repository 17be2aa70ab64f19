// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches of a build's block-scaled GEMM kernels: NVIDIA's or AMD's; in host mode AMD's own and a stand-in for
// NVIDIA's. gemm.cpp alone includes it.
// Like dense_kernels.hpp and amd/listing.hip it depends on the mode, since the included files exist in one mode only.
#pragma once

#include "gpu/dialect/hip.hpp"

#if defined(ROTOSCALE_CUDA)
#include "gpu/gemm/sm90/launch.hpp"
//
#include "gpu/gemm/blockwise_units.hpp"
#include "gpu/gemm/converted.hpp"
#elif defined(ROTOSCALE_AMD)
#include "gpu/gemm/amd/launch.hpp"
#else
#include "gpu/gemm/host_stand_in.hpp"
//
#include "gpu/gemm/amd/launch.hpp"
#include "gpu/gemm/blockwise_units.hpp"
#include "gpu/gemm/converted.hpp"
#endif

namespace rotoscale::gpu::detail {

[[maybe_unused]] static status no_kernel() {
  return {error_code::unsupported_device, "contract", "this build has no kernel of it"};
}

#if defined(ROTOSCALE_AMD)
status launch_mxfp8(const gemm_launch&) { return no_kernel(); }
status launch_accurate(const gemm_launch&) { return no_kernel(); }
status launch_fast(const gemm_launch&) { return no_kernel(); }
status launch_blockwise(const gemm_launch&) { return no_kernel(); }
std::size_t blockwise_bytes(const gemm_call&) { return 0; }
#else
status launch_mxfp8(const gemm_launch& l) { return launch_converted<operand_width::bf16>(l); }
status launch_accurate(const gemm_launch& l) { return launch_converted<operand_width::int8>(l); }
status launch_fast(const gemm_launch& l) { return launch_converted<operand_width::e5m2>(l); }
status launch_blockwise(const gemm_launch& l) { return run_blockwise_units(l); }
std::size_t blockwise_bytes(const gemm_call& c) { return blockwise_map(c.a.rows, c.b.rows, c.a.k).size; }
#endif

#if defined(ROTOSCALE_CUDA)
status launch_gfx942(const gemm_launch&) { return no_kernel(); }
status launch_gfx950(const gemm_launch&) { return no_kernel(); }
#else
status launch_gfx942(const gemm_launch& l) { return run_gfx942(l); }
status launch_gfx950(const gemm_launch& l) { return run_gfx950(l); }
#endif

}  // namespace rotoscale::gpu::detail
