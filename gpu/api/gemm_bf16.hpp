// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMMs of dense BF16 operands on a matrix unit, k contiguous or transposed: C [m, n] = A · Bᵀ (+ C).
#pragma once

#include "gemm_definition.hpp"
#include "rotoscale/gemm_contracts.hpp"

namespace rotoscale::gpu {

/// The contract under which gemm_bf16 multiplies on a matrix unit of `model`: gemm_ref under its options gives the
/// bits. Null: the device has no kernel for such a unit. A build for the host has Hopper's and CDNA3's.
const gemm_contract_entry* bf16_contract(const mma_model& model, const device_info& device);

/// Bytes of workspace for the sums of `split_k` parts of K, enough for any smaller k as well; 0 where there is one
/// part.
std::size_t gemm_bf16_workspace_bytes(const gemm_contract_entry& contract, index_t m, index_t n, index_t k,
                                      int split_k);

/// Computes r.out under a contract that bf16_contract names for the current device. Codes are aligned to 16 bytes, rows
/// in memory multiples of 16 bytes apart. K may be cut into up to 64 parts, as the contract's split_k and split_grain
/// say; their sums stand in `workspace` (device memory aligned to 256 bytes, free again behind this call on the
/// stream). No allocation. Any status but ok: nothing was launched.
status gemm_bf16(const gemm_contract_entry& contract, const gemm_operand& a, const gemm_operand& b, const sum_output& r,
                 stream s, int split_k = 1, void* workspace = nullptr, std::size_t workspace_bytes = 0);

}  // namespace rotoscale::gpu
