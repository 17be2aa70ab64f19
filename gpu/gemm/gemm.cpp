// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches of the block-scaled GEMM kernels. Compiled by nvcc, by hipcc, and by a C++ compiler in host mode.
#include "gpu/gemm/kernels.hpp"
#include "gpu/gemm/reference_kernel.hpp"

namespace rotoscale::gpu::detail {

status launch_reference(const gemm_launch& l) {
  const gemm_arguments g = make_arguments(l, nullptr);
  const std::int64_t across = (g.n + reference_threads - 1) / reference_threads;
  return launch(reference_kernel, blocks(across * g.m), blocks(reference_threads), 0, l.stream,
                reference_arguments{make_kernel_operand(l.call.a), make_kernel_operand(l.call.b), g});
}

}  // namespace rotoscale::gpu::detail
