// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMMs of dense BF16 operands on a matrix unit, k contiguous or transposed: C [m, n] = A · Bᵀ (+ C).
#pragma once

#include "gemm_definition.hpp"
#include "rotoscale/gemm_contracts.hpp"

namespace rotoscale::gpu {

/// The contract of gemm_bf16 on a device: gemm_ref under its options gives the bits. Null: the device has no kernel.
const gemm_contract_entry* bf16_contract(const device_info& device);

/// Computes r.out. Codes are aligned to 16 bytes, rows in memory multiples of 16 bytes apart. One launch on `s`, no
/// allocation. Any status but ok: nothing was launched.
status gemm_bf16(const gemm_operand& a, const gemm_operand& b, const defined_result& r, stream s);

}  // namespace rotoscale::gpu
