// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operands of arrays and their product under a named contract, without Python.
#pragma once

#include <memory>

#include "arrays.hpp"
#include "rotoscale/gemm_operand.hpp"

namespace rotoscale::python {

/// One operand of the caller and the arrays that it points into.
struct operand {
  gemm_operand x;
  array_view codes, scales;
  float factor = 1.0f;
};

/// An operand of numbers (rows, k), or of packed codes in uint8, times a factor of the tensor.
/// Throws ValueError naming the operand for other axes and strides.
std::unique_ptr<operand> plain_operand(const char* name, array_view numbers, std::optional<float> factor);

/// An operand of blocks. Bytes that are not row-major are dense, as `place` returns them.
/// Throws ValueError naming the operand if the bytes do not fit rows and k.
std::unique_ptr<operand> block_operand(const char* name, array_view codes, array_view scales, block_format f,
                                       index_t rows, index_t k, placement code_order, placement scale_order,
                                       float factor);

/// out = alpha * a * b^T (+ c) of (rows of a, rows of b). `c` may be null. Needs no GIL.
/// Throws ValueError for a contract that does not multiply these operands, TypeError for the dtype of c.
void multiply(const operand& a, const operand& b, const std::string& contract_name, const array_view* c,
              const std::string& output, float alpha, float* out);

}  // namespace rotoscale::python
