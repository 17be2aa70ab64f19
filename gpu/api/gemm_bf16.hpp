// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMMs of dense BF16 operands on a tensor or matrix core, k contiguous or transposed: C [m, n] = A · Bᵀ (+ C).
#pragma once

#include "gemm_definition.hpp"
#include "rotoscale/gemm_contracts.hpp"

namespace rotoscale::gpu {

/// Contract of gemm_bf16 on a matrix unit of `model`. gemm_ref with its options gives the same bits. Null if the device
/// has no kernel for that unit. A build for the host has Hopper's and CDNA3's.
const gemm_contract_entry* bf16_contract(const mma_model& model, const device_info& device);

/// Workspace in bytes for the sums of `split_k` parts of K. It suffices for any smaller k. 0 with one part.
std::size_t gemm_bf16_workspace_bytes(const gemm_contract_entry& contract, index_t m, index_t n, index_t k,
                                      int split_k);

/// Computes r.out under a contract from bf16_contract for the current device. Codes are aligned to 16 bytes, and rows
/// in memory are multiples of 16 bytes apart. K may be split into up to 64 parts, as the contract's split_k and
/// split_grain define. `workspace` holds their sums: device memory aligned to 256 bytes, reusable by later work on the
/// stream. No allocation. On any status but ok, nothing was launched.
status gemm_bf16(const gemm_contract_entry& contract, const gemm_operand& a, const gemm_operand& b, const sum_output& r,
                 stream s, int split_k = 1, void* workspace = nullptr, std::size_t workspace_bytes = 0);

}  // namespace rotoscale::gpu
