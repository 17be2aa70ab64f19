// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The sm_90 GEMM kernels of expanded operands: E5M2 emptied every 128 k.
#include "gpu/gemm/sm90/multiply.hpp"

namespace rotoscale::gpu::detail {

template status multiply_expanded<operand_width::e5m2, 128>(const std::uint8_t* a, const std::uint8_t* b, int k,
                                                            const gemm_arguments& g, const device_info& device,
                                                            stream s);

}  // namespace rotoscale::gpu::detail
