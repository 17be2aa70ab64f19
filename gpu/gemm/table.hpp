// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Table of GEMM kernels and the selection of a row. A new kernel is a row of table.cpp with its check, workspace and
// launch.
#pragma once

#include <span>
#include <string_view>

#include "gpu/api/gemm.hpp"
#include "gpu/dialect/arch.hpp"

namespace rotoscale::gpu::detail {

inline constexpr int max_parts = 64;  ///< maximum split-K

/// Kinds of operands, as bits.
enum operand_kind : unsigned {
  dense_bf16 = 1,  ///< BF16 without block scales
  dense_fp8 = 2,   ///< E4M3 or E5M2 without block scales
  mxfp4_blocks = 4,
  mxfp8_blocks = 8,
  other_blocks = 16,  ///< other blocks that dequantize() takes
  other_operand = 32,
  any_operand = 63
};
operand_kind kind_of(const gemm_operand& x);

/// Architectures, as bits.
constexpr unsigned bit_of(arch a) { return 1u << static_cast<int>(a); }

struct gemm_kernel;

/// A checked call and what was selected for it.
struct gemm_launch {
  const gemm_call& call;
  const gemm_kernel& kernel;
  const device_info& device;
  gemm_schedule schedule;  ///< whole; empty if the kernel has no tiles
  std::uint8_t* workspace;
  gpu::stream stream;
};

/// A row: which calls a kernel takes, and its launch.
struct gemm_kernel {
  const char* name;                   ///< unique per architecture
  const char* contract;               ///< of gemm_contracts
  unsigned archs;                     ///< where it runs
  unsigned operands;                  ///< kinds of a and b
  int max_parts;                      ///< split-K
  std::span<const tile_shape> tiles;  ///< largest first; empty: the launch chooses
  status (*check)(const gemm_call&);  ///< extents, orders, strides, alignment, epilogue
  std::size_t (*workspace)(const gemm_call&);
  status (*launch)(const gemm_launch&);
  double least_products = 0;   ///< m * n * k from which it is faster than later rows; the host: any
  bool grouped = false;        ///< reserved
  bool biases_output = false;  ///< takes gemm_result::output_bias
};

/// All rows. Earlier rows are faster.
std::span<const gemm_kernel> gemm_kernels();

/// Options of a contract in gemm_contracts that has a unit.
gemm_options options_of(std::string_view contract);
/// Options of a row's contract.
const gemm_options& options_of(const gemm_kernel& kernel);

/// Checks whether a row takes the call on `device`. Returns unsupported_device if it is for other calls, else the first
/// wrong argument.
status check_kernel(const gemm_kernel& kernel, const gemm_call& call, const device_info& device);
/// Finds the first row that takes the call, or returns the answer of the first row for such calls.
status find_kernel(const gemm_call& call, const device_info& device, const gemm_kernel*& found);

/// gemm() on `device`: the current one, or in host mode also an AMD device.
status run_gemm(const gemm_call& call, const device_info& device, void* workspace, std::size_t workspace_bytes,
                stream s);
/// The same with a row that takes the call.
status run_kernel(const gemm_kernel& kernel, const gemm_call& call, const device_info& device, void* workspace,
                  std::size_t workspace_bytes, stream s);

// Launches, by the source that has the kernels.
status launch_dense(const gemm_launch& l);  // dense.cpp
status launch_upconverted(const gemm_launch& l);
status launch_mxfp8(const gemm_launch& l);  // gemm.cpp
status launch_accurate(const gemm_launch& l);
status launch_fast(const gemm_launch& l);
status launch_gfx950(const gemm_launch& l);
status launch_gfx942(const gemm_launch& l);
status launch_blockwise(const gemm_launch& l);
std::size_t blockwise_bytes(const gemm_call& call);
status launch_reference(const gemm_launch& l);
status launch_simt(const gemm_launch& l);  // simt.cpp
status check_simt(const gemm_call& call);

}  // namespace rotoscale::gpu::detail

namespace rotoscale::gpu {

using detail::find_kernel;
using detail::gemm_kernel;

}  // namespace rotoscale::gpu
