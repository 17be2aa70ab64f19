// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Compiles the sm_90 GEMM kernels of per-tensor FP8 operands, never promoted.
#include "gpu/gemm/sm90/fp8.hpp"

namespace rotoscale::gpu::detail {

template status multiply_fp8<0>(const gemm_operand& a, const gemm_operand& b, const gemm_arguments& g,
                                const device_info& device, stream s);

}  // namespace rotoscale::gpu::detail
