// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Compiles the sm_90 GEMM kernels of converted operands: int8.
#include "gpu/gemm/sm90/multiply.hpp"

namespace rotoscale::gpu::detail {

template status multiply_converted<operand_width::int8>(const std::uint8_t* a, const std::uint8_t* b,
                                                        const gemm_arguments& g, const device_info& device, stream s);

}  // namespace rotoscale::gpu::detail
