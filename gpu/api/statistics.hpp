// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Quantization errors on a device: the sums of SQNR, saturation and underflow.
// The bits equal nn/cpu/statistics.hpp's.
#pragma once

#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/nn/form_options.hpp"
#include "rotoscale/nn/statistics.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// How an operand was quantized from its source.
struct observed_form {
  bool columns = false;                   ///< the operand's rows are the source's columns
  int points = 0;                         ///< points of the rotation: 0, or 16 to 128
  nn::form_draws draws;                   ///< signs of the rotation
  const nn::step_state* state = nullptr;  ///< device memory; null: step 0, seed 0
};

/// Workspace of observe in bytes, for an operand of `rows` rows.
std::size_t observe_workspace_bytes(index_t rows);
/// Writes `*to` (device memory) for an operand that decode_operand takes and its source, FP32 or BF16 with contiguous
/// rows. `workspace` is device memory aligned to 16 bytes. Two launches on `s`, no allocation. On any status but ok,
/// nothing was launched.
status observe(nn::const_tensor_view source, const gemm_operand& stored, const observed_form& how,
               nn::operand_statistics* to, void* workspace, std::size_t workspace_bytes, stream s);

}  // namespace rotoscale::gpu
