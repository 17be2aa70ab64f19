// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMM kernel for fp32_fma_chain: rows of A and panels of B as FP32, one fused multiply-add per product.
#pragma once

#include "rotoscale/detail/gemm_decode.hpp"
#include "rotoscale/detail/gemm_plan.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// fp32_fma_chain for all operands, which are decoded to FP32 with their block scales.
class fp32_chain {
 public:
  static constexpr index_t columns = gemm_cols;
  static constexpr index_t slice(const mma_model&) { return 256; }

  static bool applies(const gemm_operand&, const gemm_operand&, const gemm_options& o) {
    const mma_model& m = o.model;
    return m.sum == mma_sum::exact && m.group == 1 && m.operand == format{} && m.instruction_k == 0 &&
           m.result == mma_result::fp32_nearest && !m.c_last && o.split_run == 0;
  }
  fp32_chain(const gemm_operand& a, const gemm_operand& b, const gemm_options&, const gemm_plan& plan)
      : a_(a), b_(b), plan_(plan), table_a_(a.element), table_b_(b.element) {}

  index_t row_bytes() const { return a_.k * 4; }
  index_t panel_bytes() const { return b_.k * 4 * columns; }
  operand_range pack_row(index_t r, std::byte* to) const {
    decode_row(a_, table_a_, r, reinterpret_cast<float*>(to));
    return {};
  }
  /// Is a transposed operand packed directly, without a copy?
  static bool reads_in_place(const gemm_operand& x) { return has_column_strips(x); }
  void pack_transposed_rows(index_t first, index_t last, std::byte* to) const {
    decode_transposed_rows(a_, table_a_, first, last, reinterpret_cast<float*>(to));
  }
  operand_range pack_panel(index_t first, index_t valid, std::byte* to) const {
    if (b_.transposed) {
      auto* panel = reinterpret_cast<float*>(to);
      for (index_t k = 0; k < b_.k; ++k, panel += columns) {
        decode_column_strip(b_, table_b_, k, first, valid, panel);
        for (index_t j = valid; j < columns; ++j) panel[j] = 0.0f;
      }
      return {};
    }
    const scratch_array<float> room(columns * b_.k);
    const float* rows = decode_rows(b_, table_b_, first, first + valid, room.data());
    pack_panel_from_rows(rows, b_.k, valid, b_.k, reinterpret_cast<float*>(to));
    return {};
  }
  std::size_t pack_bytes() const { return scratch_array<float>::bytes(columns * b_.k); }
  static bool admits(const operand_range&, const operand_range&) { return true; }
  static bool admits_start(const operand_range&, const operand_range&, float) { return true; }

  void run(const gemm_span& span, index_t, index_t, const operand_range*, const std::byte* rows, index_t count,
           const operand_range&, const std::byte* panel, float* acc) const {
    if (span.first == span.last) return;
    // Operands stay in ascending k, which is the order within a span; spans and parts may come in another order.
    const index_t k = plan_.k_of(span.first);
    multiply_panels(count, columns, span.last - span.first, reinterpret_cast<const float*>(rows) + k, a_.k,
                    reinterpret_cast<const float*>(panel) + k * columns, a_.k, acc, columns);
  }

 private:
  const gemm_operand &a_, &b_;
  const gemm_plan& plan_;
  decode_table table_a_, table_b_;
};

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
