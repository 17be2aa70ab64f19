// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMMs of per-tensor FP8 operands on a tensor or matrix core, k contiguous: C [m, n] = factor_a * factor_b * A · Bᵀ (+
// C).
#pragma once

#include "gemm_definition.hpp"
#include "rotoscale/gemm_contracts.hpp"

namespace rotoscale::gpu {

/// Promotion of the matrix unit's accumulators, which have fewer bits than FP32.
enum class fp8_sums {
  promoted,  ///< adds them to FP32 accumulators every `promotion` k of the contract
  fast       ///< never promotes within a part of K
};

/// Contract of gemm_fp8 on a device. gemm_ref with its options gives the same bits. Null if the device has no kernel.
const gemm_contract_entry* fp8_contract(fp8_sums sums, const device_info& device);

/// Workspace in bytes for the sums of `split_k` parts of K. It suffices for any smaller k. 0 with one part.
std::size_t gemm_fp8_workspace_bytes(index_t m, index_t n, index_t k, int split_k, const device_info& device);

/// Computes r.out. Each operand has E4M3 or E5M2 codes. Optional factors are in device memory and are read when the
/// kernel runs. Codes are aligned to 16 bytes, and rows in memory are multiples of 16 bytes apart. K may be split into
/// up to 64 parts, as the contract's split_k and split_grain define. `workspace` holds their sums: device memory
/// aligned to 256 bytes, reusable by later work on the stream. No allocation. On any status but ok, nothing was
/// launched.
status gemm_fp8(fp8_sums sums, const gemm_operand& a, const gemm_operand& b, const sum_output& r, stream s,
                int split_k = 1, void* workspace = nullptr, std::size_t workspace_bytes = 0);

}  // namespace rotoscale::gpu
