// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The computing functions of the module, compiled once per instruction set. They know nothing of Python.
#pragma once

#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/gemm_options.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::python {

/// The library's functions for one instruction set; all sets give the same bytes.
struct kernel_table {
  const char* name;  ///< of the instruction set
  /// rotoscale::quantize for each type of source.
  void (*quantize_fp32)(block_format, const block_options&, matrix<const float>, block_axis, block_matrix<std::uint8_t>,
                        thread_pool&);
  void (*quantize_fp64)(block_format, const block_options&, matrix<const double>, block_axis,
                        block_matrix<std::uint8_t>, thread_pool&);
  void (*quantize_bf16)(block_format, const block_options&, matrix<const bf16>, block_axis, block_matrix<std::uint8_t>,
                        thread_pool&);
  void (*quantize_fp16)(block_format, const block_options&, matrix<const fp16>, block_axis, block_matrix<std::uint8_t>,
                        thread_pool&);
  /// rotoscale::tensor_amax for each type of source.
  float (*amax_fp32)(block_format, const block_options&, matrix<const float>, block_axis, thread_pool&);
  float (*amax_fp64)(block_format, const block_options&, matrix<const double>, block_axis, thread_pool&);
  float (*amax_bf16)(block_format, const block_options&, matrix<const bf16>, block_axis, thread_pool&);
  float (*amax_fp16)(block_format, const block_options&, matrix<const fp16>, block_axis, thread_pool&);
  /// rotoscale::dequantize.
  void (*dequantize)(block_format, block_matrix<const std::uint8_t>, block_axis, matrix<float>, thread_pool&, float);
  /// rotoscale::gemm of one matrix.
  void (*gemm)(const gemm_operand&, const gemm_operand&, const gemm_options&, matrix<float>, thread_pool&);
};

extern const kernel_table kernels_baseline;
#if defined(ROTOSCALE_PYTHON_X86)
extern const kernel_table kernels_avx2;
extern const kernel_table kernels_avx512;
extern const kernel_table kernels_avx512_vbmi;
#endif

}  // namespace rotoscale::python
