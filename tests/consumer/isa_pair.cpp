// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A user's program of two translation units for different instruction sets: this file with -DPART=older and with
// -DPART=newer, and isa_main.cpp. headers.py checks the symbols.
#include <vector>

#include "rotoscale.hpp"
#include "rotoscale/checked.hpp"

namespace PART {

using namespace rotoscale;

/// FP32 lanes of this unit's registers, and the bytes of a quantizer, a dequantizer and a GEMM.
int compute(const std::vector<float>& x, std::vector<std::uint8_t>& bytes) {
  thread_pool pool(2);
  const index_t rows = 64, k = static_cast<index_t>(x.size()) / rows;
  std::vector<std::uint8_t> codes(x.size() / 2), scales(x.size() / 32);
  checked::quantize(mxfp4, presets::te_rocm, checked::array<const float>{x, rows, k}, block_axis::row, codes, scales,
                    pool);
  const auto blocks = dense_blocks(mxfp4, rows, k, codes.data(), scales.data());
  std::vector<float> y(x.size()), c(static_cast<std::size_t>(rows * rows)), reference(c.size());
  dequantize(mxfp4, block_matrix<const std::uint8_t>(blocks), block_axis::row, row_major(y.data(), rows, k), pool);
  const gemm_operand a = make_operand(mxfp4, blocks), b = make_operand(row_major<const float>(y.data(), rows, k));
  gemm_options o;
  o.model = fp32_blockwise;
  gemm(a, a, o, row_major(c.data(), rows, rows), pool);
  gemm(a, b, {}, row_major(reference.data(), rows, rows), pool);
  bytes = codes;
  bytes.insert(bytes.end(), scales.begin(), scales.end());
  for (const auto* v : {&y, &c, &reference}) {
    const auto* first = reinterpret_cast<const std::uint8_t*>(v->data());
    bytes.insert(bytes.end(), first, first + v->size() * sizeof(float));
  }
  return detail::lane_count;
}

/// The same bytes by the reference functions.
void compute_ref(const std::vector<float>& x, std::vector<std::uint8_t>& bytes) {
  const index_t rows = 64, k = static_cast<index_t>(x.size()) / rows;
  std::vector<std::uint8_t> codes(x.size() / 2), scales(x.size() / 32);
  const auto blocks = dense_blocks(mxfp4, rows, k, codes.data(), scales.data());
  quantize_ref(mxfp4, presets::te_rocm, row_major(x.data(), rows, k), block_axis::row, blocks);
  std::vector<float> y(x.size()), c(static_cast<std::size_t>(rows * rows)), reference(c.size());
  dequantize_ref(mxfp4, block_matrix<const std::uint8_t>(blocks), block_axis::row, row_major(y.data(), rows, k));
  const gemm_operand a = make_operand(mxfp4, blocks), b = make_operand(row_major<const float>(y.data(), rows, k));
  gemm_options o;
  o.model = fp32_blockwise;
  gemm_ref(a, a, o, row_major(c.data(), rows, rows));
  gemm_ref(a, b, {}, row_major(reference.data(), rows, rows));
  bytes = codes;
  bytes.insert(bytes.end(), scales.begin(), scales.end());
  for (const auto* v : {&y, &c, &reference}) {
    const auto* first = reinterpret_cast<const std::uint8_t*>(v->data());
    bytes.insert(bytes.end(), first, first + v->size() * sizeof(float));
  }
}

}  // namespace PART
