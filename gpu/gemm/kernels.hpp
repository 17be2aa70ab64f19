// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Which GEMM kernels a build has: NVIDIA's, AMD's, or in host mode AMD's own and a stand-in for NVIDIA's. The one file
// of gpu/ outside of dialect/ that depends on the mode, since what the others include exists in one mode only.
#pragma once

#include "gpu/dialect/hip.hpp"

#if defined(ROTOSCALE_CUDA)
#include "gpu/gemm/sm90/launch.hpp"
//
#include "gpu/gemm/expanded.hpp"
#elif defined(ROTOSCALE_AMD)
#include "gpu/gemm/amd/launch.hpp"
#else
#include "gpu/gemm/host_stand_in.hpp"
//
#include "gpu/gemm/amd/launch.hpp"
#include "gpu/gemm/expanded.hpp"
#endif

namespace rotoscale::gpu::detail {

/// `accurate` and `fast` on `device`, for which the problem has been checked.
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

}  // namespace rotoscale::gpu::detail
