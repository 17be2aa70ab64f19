// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMM kernel for fp32_fma_chain: rows of A and panels of B as FP32, one fused multiply-add per product.
#pragma once

#include <algorithm>

#include "rotoscale/detail/gemm_decode.hpp"
#include "rotoscale/detail/gemm_plan.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// Packs both operands as FP32 with their block scales, in ascending k, with zeros up to the plan's positions. A panel
/// has `Columns` columns, in parts of `Part` columns one after the other.
template <index_t Columns, index_t Part = Columns>
class float_panels {
 public:
  static constexpr index_t columns = Columns;

  float_panels(const gemm_operand& a, const gemm_operand& b, const gemm_plan& plan)
      : a_(a), b_(b), plan_(plan), depth_(plan.positions()), table_a_(a.element), table_b_(b.element) {}

  index_t row_bytes() const { return depth_ * 4; }
  index_t panel_bytes() const { return depth_ * 4 * columns; }
  operand_range pack_row(index_t r, std::byte* to) const {
    auto* const row = reinterpret_cast<float*>(to);
    decode_row(a_, table_a_, r, row);
    std::fill(row + a_.k, row + depth_, 0.0f);
    return {};
  }
  /// Transposed operands of has_column_strips, without a copy.
  void pack_transposed_rows(index_t first, index_t last, std::byte* to, operand_range*) const {
    auto* const rows = reinterpret_cast<float*>(to);
    decode_transposed_rows(a_, table_a_, first, last, rows, depth_);
    for (index_t i = 0; i < last - first; ++i) std::fill(rows + i * depth_ + a_.k, rows + (i + 1) * depth_, 0.0f);
  }
  operand_range pack_panel(index_t first, index_t valid, std::byte* to) const {
    auto* part = reinterpret_cast<float*>(to);
    for (index_t j = 0; j < columns; j += Part, part += depth_ * Part) {
      pack_part(first + j, std::clamp(valid - j, index_t{0}, Part), part);
      std::fill(part + b_.k * Part, part + depth_ * Part, 0.0f);
    }
    return {};
  }
  std::size_t pack_bytes() const { return scratch_array<float>::bytes(Part * b_.k); }

 protected:
  index_t depth() const { return depth_; }  ///< floats of a packed row
  const gemm_plan& plan() const { return plan_; }

 private:
  void pack_part(index_t first, index_t valid, float* part) const {
    if (b_.transposed) {
      for (index_t k = 0; k < b_.k; ++k) {
        float* const row = part + k * Part;
        decode_column_strip(b_, table_b_, k, first, valid, row);
        std::fill(row + valid, row + Part, 0.0f);
      }
      return;
    }
    const scratch_array<float> room(Part * b_.k);
    const float* rows = decode_rows(b_, table_b_, first, first + valid, room.data());
    pack_panel_from_rows<static_cast<int>(Part)>(rows, b_.k, valid, b_.k, part);
  }

  const gemm_operand &a_, &b_;
  const gemm_plan& plan_;
  const index_t depth_;
  decode_table table_a_, table_b_;
};

/// fp32_fma_chain for all operands.
class fp32_chain : public float_panels<gemm_cols> {
 public:
  static constexpr index_t slice(const mma_model&) { return 256; }

  static bool applies(const gemm_operand&, const gemm_operand&, const gemm_options& o) {
    const mma_model& m = o.model;
    return m.sum == mma_sum::exact && m.group == 1 && m.operand == format{} && m.instruction_k == 0 &&
           m.result == mma_result::fp32_nearest && !m.c_last && o.split_run == 0;
  }
  fp32_chain(const gemm_operand& a, const gemm_operand& b, const gemm_options&, const gemm_plan& plan)
      : float_panels(a, b, plan) {}

  static bool admits(const operand_range&, const operand_range&) { return true; }
  static bool admits_start(const operand_range&, const operand_range&, float) { return true; }

  void run(const gemm_span& span, index_t, index_t, const operand_range*, const std::byte* rows, index_t count,
           const operand_range&, const std::byte* panel, float* acc) const {
    if (span.first == span.last) return;
    // Operands stay in ascending k, which is the order within a span; spans and parts may come in another order.
    const index_t k = plan().k_of(span.first);
    multiply_panels(count, columns, span.last - span.first, reinterpret_cast<const float*>(rows) + k, depth(),
                    reinterpret_cast<const float*>(panel) + k * columns, depth(), acc, columns);
  }
};

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
