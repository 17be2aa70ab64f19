// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMMs of per-tensor FP8 operands on a matrix unit, k contiguous: C [m, n] = factor_a * factor_b * A · Bᵀ (+ C).
#pragma once

#include "gemm_definition.hpp"
#include "rotoscale/gemm_contracts.hpp"

namespace rotoscale::gpu {

/// Promotion of the matrix unit's sums, which have fewer bits than FP32.
enum class fp8_sums {
  promoted,  ///< adds them to FP32 sums every `promotion` k of the contract
  fast       ///< keeps them to the end (a part's end)
};

/// The contract of gemm_fp8 on a device: gemm_ref under its options gives the bits. Null: the device has no kernel.
const gemm_contract_entry* fp8_contract(fp8_sums sums, const device_info& device);

/// Bytes of workspace for the sums of `split_k` parts of K, enough for any smaller k as well; 0 where there is one
/// part.
std::size_t gemm_fp8_workspace_bytes(index_t m, index_t n, index_t k, int split_k, const device_info& device);

/// Computes r.out from E4M3 and E5M2 codes, either of each. Factors, where there are any, stand in device memory and
/// are read when the kernel runs. Codes are aligned to 16 bytes, rows in memory multiples of 16 bytes apart. K may be
/// cut into up to 64 parts, as the contract's split_k and split_grain say; their sums stand in `workspace` (device
/// memory aligned to 256 bytes, free again behind this call on the stream). No allocation. Any status but ok: nothing
/// was launched.
status gemm_fp8(fp8_sums sums, const gemm_operand& a, const gemm_operand& b, const sum_output& r, stream s,
                int split_k = 1, void* workspace = nullptr, std::size_t workspace_bytes = 0);

}  // namespace rotoscale::gpu
