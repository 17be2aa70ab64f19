// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "rotoscale/gemm.hpp"

namespace rotoscale::detail {

template void gemm_batch<gemm_kernels>(const gemm_operand&, const gemm_operand&, const gemm_options&, view<float, 3>,
                                       thread_pool&);
template std::size_t gemm_batch_bytes<gemm_kernels>(gemm_operand, gemm_operand, const gemm_options&, int);

}  // namespace rotoscale::detail
