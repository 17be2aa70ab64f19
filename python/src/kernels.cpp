// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// kernel_table for the instruction set that the compiler's flags name. The build defines ROTOSCALE_PYTHON_KERNELS, the
// suffix of the table's name.
#include "kernels.hpp"

#include "rotoscale/dequantize.hpp"
#include "rotoscale/gemm.hpp"
#include "rotoscale/quantize.hpp"

#define ROTOSCALE_JOIN_(a, b) a##b
#define ROTOSCALE_JOIN(a, b) ROTOSCALE_JOIN_(a, b)
#define ROTOSCALE_TEXT_(a) #a
#define ROTOSCALE_TEXT(a) ROTOSCALE_TEXT_(a)

namespace rotoscale::python {
namespace {

inline namespace ROTOSCALE_ISA {
void gemm_of_matrix(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, matrix<float> c,
                    thread_pool& pool) {
  gemm(a, b, o, c, pool);
}
}  // namespace ROTOSCALE_ISA

}  // namespace

extern const kernel_table ROTOSCALE_JOIN(kernels_, ROTOSCALE_PYTHON_KERNELS);
const kernel_table ROTOSCALE_JOIN(kernels_, ROTOSCALE_PYTHON_KERNELS){
    .name = ROTOSCALE_TEXT(ROTOSCALE_PYTHON_KERNELS),
    .quantize_fp32 = &quantize<const float>,
    .quantize_fp64 = &quantize<const double>,
    .quantize_bf16 = &quantize<const bf16>,
    .quantize_fp16 = &quantize<const fp16>,
    .amax_fp32 = &tensor_amax<const float>,
    .amax_fp64 = &tensor_amax<const double>,
    .amax_bf16 = &tensor_amax<const bf16>,
    .amax_fp16 = &tensor_amax<const fp16>,
    .dequantize = &dequantize<float>,
    .gemm = &gemm_of_matrix,
};

}  // namespace rotoscale::python
