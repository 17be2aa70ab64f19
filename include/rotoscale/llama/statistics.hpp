// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What one observed step leaves of each linear layer and of each matrix of an adapter, as it lies in backend memory and
// comes to the host in one copy.
#pragma once

#include "rotoscale/nn/operand.hpp"
#include "rotoscale/nn/statistics.hpp"

namespace rotoscale::llama {

inline constexpr int operands_per_linear = 6;  ///< as nn::operand_uses lists them
static_assert(std::size(nn::operand_uses) == operands_per_linear);

/// Of one linear layer in the step's first micro-batch; of the head in its first chunk of tokens; of an adapter's
/// matrix the gradient alone. Those that do not exist (a frozen weight's gradient, a weight whose source is gone) have
/// no elements.
struct linear_statistics {
  nn::operand_statistics operands[operands_per_linear];  ///< in the order of nn::operand_uses
  nn::comparison_statistics gradient;                    ///< of w, against an FP32 GEMM over the same dy and x
};
static_assert(std::is_trivially_copyable_v<linear_statistics>);

/// Place of a form in linear_statistics::operands.
constexpr int operand_number(nn::tensor_role tensor, nn::operand_form form) {
  for (int i = 0; i < operands_per_linear; ++i) {
    if (nn::operand_uses[i].tensor == tensor && nn::operand_uses[i].form == form) return i;
  }
  return 0;
}
static_assert(operand_number(nn::tensor_role::dy, nn::operand_form::column) == 4);

/// All weight gradients of a step as one vector: its norm, and that of what quantization added.
template <class Range>
nn::comparison_statistics all_gradients(const Range& linears) {
  nn::comparison_statistics sum;
  for (const linear_statistics& l : linears) sum.add(l.gradient);
  return sum;
}

}  // namespace rotoscale::llama
