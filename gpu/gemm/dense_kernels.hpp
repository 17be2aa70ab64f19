// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Selects the kernels of dense BF16 and FP8 operands of a build, like kernels.hpp.
#pragma once

#include "gpu/dialect/hip.hpp"

#if defined(ROTOSCALE_CUDA)
#include "gpu/gemm/sm90/dense.hpp"
#elif defined(ROTOSCALE_AMD)
#include "gpu/gemm/amd/dense_launch.hpp"
#else
#include "gpu/gemm/amd/dense_launch.hpp"
#include "gpu/gemm/dense_stand_in.hpp"
#endif

#if !defined(ROTOSCALE_CUDA)
namespace rotoscale::gpu::detail {

/// Multiplies under `o`. In host mode the unit of `o` selects the kernel.
inline status multiply_dense(const gemm_operand& a, const gemm_operand& b, [[maybe_unused]] const gemm_options& o,
                             const gemm_arguments& g, const device_info&, stream s) {
#if defined(ROTOSCALE_GPU_HOST)
  if (o.model != find_unit("cdna3-mfma-fp16-f32")->model) return stand_in_for_dense(a, b, o, g, s);
#endif
  ROTOSCALE_ASSERT(o.model == find_unit("cdna3-mfma-fp16-f32")->model);
  return multiply_dense_on_amd(a, b, g, s);
}

}  // namespace rotoscale::gpu::detail
#endif
