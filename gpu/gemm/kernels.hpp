// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMM kernels of a build: NVIDIA's or AMD's; in host mode AMD's own and a stand-in for NVIDIA's.
// Like dense_kernels.hpp and amd/listing.hip it depends on the mode, since the included files exist in one mode only.
#pragma once

#include "gpu/dialect/hip.hpp"

#if defined(ROTOSCALE_CUDA)
#include "gpu/gemm/sm90/launch.hpp"
//
#include "gpu/gemm/blockwise_units.hpp"
#include "gpu/gemm/expanded.hpp"
#elif defined(ROTOSCALE_AMD)
#include "gpu/gemm/amd/launch.hpp"
#else
#include "gpu/gemm/host_stand_in.hpp"
//
#include "gpu/gemm/amd/launch.hpp"
#include "gpu/gemm/blockwise_units.hpp"
#include "gpu/gemm/expanded.hpp"
#endif

namespace rotoscale::gpu::detail {

/// Runs `accurate` or `fast` on `device`, after the problem was checked.
inline status run_kernels(const gemm_problem& p, const gemm_choice& c, std::uint8_t* memory, const device_info& device,
                          stream s) {
  switch (device.arch) {
#if !defined(ROTOSCALE_CUDA)
    case arch::gfx942: return run_gfx942(p, c, memory, device, s);
    case arch::gfx950: return run_gfx950(p, c, memory, device, s);
#endif
#if !defined(ROTOSCALE_AMD)
    case arch::host:
    case arch::sm_90: return run_expanded(p, c, memory, device, s);
#endif
    default: return {error_code::unsupported_device, "choice.contract", "this build has the reference kernel only"};
  }
}

/// Workspace of run_blockwise_kernels in bytes; 0: no matrix unit of the device gives the definition's bits.
inline std::size_t blockwise_bytes([[maybe_unused]] index_t m, [[maybe_unused]] index_t n, [[maybe_unused]] index_t k,
                                   [[maybe_unused]] const device_info& device) {
#if !defined(ROTOSCALE_AMD)
  const arch_traits& traits = traits_of(device.arch);
  const bool fits =
      m > 0 && n > 0 && k >= 32 && k % 32 == 0 && m <= max_gemm_extent && n <= max_gemm_extent && k <= max_gemm_extent;
  if (traits.expands_mxfp4 && fits) return blockwise_map(m, n, k).size;
#endif
  return 0;
}
inline status run_blockwise_kernels([[maybe_unused]] const gemm_operand& a, [[maybe_unused]] const gemm_operand& b,
                                    [[maybe_unused]] const definition_arguments& p,
                                    [[maybe_unused]] const gemm_arguments& g, [[maybe_unused]] std::uint8_t* memory,
                                    [[maybe_unused]] const device_info& device, [[maybe_unused]] stream s) {
#if !defined(ROTOSCALE_CUDA)
  if (traits_of(device.arch).forms_blockwise_sums)
    return launch_mxfp4(a, b, in_cheapest_tile(g, a.k, gfx942_fp4_tiles, device), s);
#endif
#if !defined(ROTOSCALE_AMD)
  return run_blockwise(a, b, p, g, memory, device, s);
#else
  return {error_code::unsupported_device, "workspace", "this build has no such kernel"};
#endif
}

}  // namespace rotoscale::gpu::detail
