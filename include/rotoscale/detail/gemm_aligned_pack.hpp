// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Packs operands of the `aligned` kernels: values as FP32, exponents as bytes, signs for the fused form, scales of
// steps. If a format's range exceeds a byte, exponents and values are relative to an offset per row or panel.
#pragma once

#include <algorithm>
#include <cstddef>

#include "rotoscale/detail/gemm_decode.hpp"
#include "rotoscale/detail/gemm_plan.hpp"
#include "rotoscale/detail/simd.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

class aligned_packing {
 public:
  static constexpr index_t columns = 4 * lane_count;

  // Relative exponents: elements span 62, from -31; scales reach 20 below the largest. A zero's exponent plus another
  // one is at most -97.
  static constexpr int top_exponent = 31, zero_exponent = -128, scale_window = 20;
  static constexpr int fused_bits = 13;  ///< limit on fraction bits in the fused form
  static_assert(fused_bits + 2 <= 15, "a cut product, below 4, fits 16 bits with its sign");

  aligned_packing(const gemm_operand& a, const gemm_operand& b, const mma_model& m, const gemm_plan& plan)
      : a_(a),
        b_(b),
        model_(m),
        plan_(plan),
        positions_(plan.positions()),
        table_a_(a.element),
        table_b_(b.element),
        scaled_(a.block != 0 || b.block != 0),
        fused_(has_fused_cut && m.fraction_bits <= fused_bits && !scaled_ && is_narrow(seen(a, m)) &&
               is_narrow(seen(b, m)) && !(toward_zero_mode::is_global && m.result == mma_result::fp16_nearest)) {}

  index_t positions() const { return positions_; }
  bool scaled() const { return scaled_; }
  bool fused() const { return fused_; }

  static bool takes(const gemm_operand& x, const mma_model& m) {
    const format &f = x.element, &to = m.operand;
    if (x.block != 0 && (x.scale.mantissa_bits != 0 || !is_narrow(seen(x, m)))) return false;
    if (f == formats::fp32 && to == formats::tf32) return true;
    if (f.mantissa_bits > 10 || !fits_fp32(f)) return false;
    if (to == format{}) return true;
    // Every number of f must also be a number of the format that f is converted to.
    return (to == formats::fp16 || to == formats::tf32) && f.max_exponent() <= to.max_exponent() &&
           f.min_exponent() - f.mantissa_bits >= to.min_exponent() - to.mantissa_bits;
  }

  // A row, 4 bytes each: values, exponents as four equal bytes, signs for the fused form. A step adds the scale or the
  // sum of signs.
  index_t row_bytes() const { return (3 * positions_ + plan_.steps()) * 4; }
  // A panel: values (4 bytes), scales of steps (4 bytes), exponents (1 byte).
  index_t panel_bytes() const {
    return (positions_ + (scaled_ ? plan_.steps() : 0)) * columns * 4 + positions_ * columns;
  }

  /// Scratch bytes of pack_row and pack_panel.
  std::size_t pack_bytes() const {
    return scratch_array<float>::bytes(columns * positions_) +
           scratch_array<std::int32_t>::bytes(columns * plan_.steps()) + scratch_array<float>::bytes(a_.k);
  }

  const float* row_values(const std::byte* row) const { return reinterpret_cast<const float*>(row); }
  const std::int32_t* row_exponents(const std::byte* row) const {
    return reinterpret_cast<const std::int32_t*>(row) + positions_;
  }
  const std::int32_t* row_signs(const std::byte* row) const { return row_exponents(row) + positions_; }
  const std::int32_t* row_scales(const std::byte* row) const { return row_signs(row) + positions_; }
  const float* values(const std::byte* panel) const { return reinterpret_cast<const float*>(panel); }
  const std::int32_t* scales(const std::byte* panel) const {
    return reinterpret_cast<const std::int32_t*>(panel) + positions_ * columns;
  }
  const std::int8_t* exponents(const std::byte* panel) const {
    return reinterpret_cast<const std::int8_t*>(scales(panel) + (scaled_ ? plan_.steps() : 0) * columns);
  }

  operand_range pack_row(index_t r, std::byte* to) const {
    auto* const values = reinterpret_cast<float*>(to);
    auto* const exponents = reinterpret_cast<std::uint32_t*>(values + positions_);
    auto* const signs = reinterpret_cast<std::int32_t*>(exponents + positions_);
    std::int32_t* const scales = signs + positions_;
    operand_range range = unpack_row(a_, table_a_, r, values, scales);
    make_relative(a_, range, values, positions_, scales, plan_.steps());
    const int least = least_packed(a_, range);
    for (index_t i = 0; i < positions_; ++i) {
      const std::uint32_t u = fp32_bits(values[i]);
      exponents[i] = 0x01010101u * static_cast<std::uint8_t>(exponent_of(u, least));
      if (!fused_) continue;
      const std::uint32_t magnitude = u & fp32_magnitude_mask;
      const std::int32_t sign = (u >> 31) != 0 ? -1 : 1;
      signs[i] = halves(sign, -sign);
      scales[i / plan_.group] += sign;
      values[i] = magnitude == 0 ? 0.0f : fp32_from_bits(magnitude + 1);  // subnormals are slow on CPUs
    }
    for (index_t s = 0; fused_ && s < plan_.steps(); ++s) scales[s] = halves(0, scales[s]);
    return range;
  }

  operand_range pack_panel(index_t first, index_t valid, std::byte* to) const {
    auto* const values = reinterpret_cast<float*>(to);
    auto* const scales = reinterpret_cast<std::int32_t*>(values + positions_ * columns);
    auto* const exponents = reinterpret_cast<std::int8_t*>(scales + (scaled_ ? plan_.steps() : 0) * columns);
    // 1. Unpack the columns as rows with one offset.
    const index_t steps = plan_.steps();
    const scratch_array<float> row_values(valid * positions_);
    const scratch_array<std::int32_t> row_scale_values(valid * steps);
    float* const rows = row_values.data();
    std::int32_t* const row_scales = row_scale_values.data();
    operand_range range;
    for (index_t j = 0; j < valid; ++j) {
      const operand_range one = unpack_row(b_, table_b_, first + j, rows + j * positions_, row_scales + j * steps);
      range.special = range.special || one.special;
      if (one.empty()) continue;
      range.include(one.least);
      range.include(one.most);
      range.min_scale = std::min(range.min_scale, one.min_scale);
      range.max_scale = std::max(range.max_scale, one.max_scale);
    }
    make_relative(b_, range, rows, valid * positions_, row_scales, valid * steps);
    // 2. Interleave the columns.
    pack_panel_from_rows<static_cast<int>(columns)>(rows, positions_, valid, positions_, values);
    for (index_t s = 0; scaled_ && s < steps; ++s) {
      for (index_t j = 0; j < columns; ++j) scales[s * columns + j] = j < valid ? row_scales[j * steps + s] : 0;
    }
    const int least = least_packed(b_, range);
    for (index_t p = 0; p < positions_; ++p) {
      float* const value = values + p * columns;
      std::int8_t* const exponent = exponents + p * columns;
      for (index_t j = 0; j < columns; ++j)
        exponent[j] = static_cast<std::int8_t>(exponent_of(fp32_bits(value[j]), least));
    }
    return range;
  }

 private:
  static std::int32_t halves(std::int32_t low, std::int32_t high) {
    return static_cast<std::int32_t>((static_cast<std::uint32_t>(low) & 0xFFFF) | static_cast<std::uint32_t>(high)
                                                                                      << 16);
  }
  static constexpr std::int32_t no_scale = 1 << 20;  // scale of a step of zeros, which must not widen the window

  static const format& seen(const gemm_operand& x, const mma_model& m) {
    return m.operand.exponent_bits != 0 ? m.operand : x.element;
  }
  /// Do all exponents fit the window without an offset?
  static bool is_narrow(const format& f) { return f.min_exponent() >= -14 && f.max_exponent() <= 15; }
  /// Unpacks a row in the plan's order, with its steps' scales. Returns the ranges of the exponents.
  operand_range unpack_row(const gemm_operand& x, const decode_table& table, index_t r, float* to,
                           std::int32_t* scales) const {
    gemm_operand elements = x;
    elements.block = 0;
    if (plan_.ascending()) {
      decode_row(elements, table, r, to);
      for (index_t i = x.k; i < positions_; ++i) to[i] = 0.0f;
    } else {
      const scratch_array<float> memory(x.k);
      decode_row(elements, table, r, memory.data());
      arrange(plan_, memory.data(), x.k, to);
    }
    if (x.element == formats::fp32) {
      for (index_t i = 0; i < positions_; ++i) to[i] = fp32_from_bits(fp32_bits(to[i]) & 0xFFFFE000u);  // TF32
    }
    operand_range range;
    include_elements(seen(x, model_).min_exponent(), to, range);
    for (index_t s = 0; s < plan_.steps(); ++s) {
      scales[s] = no_scale;
      if (x.block == 0) continue;
      const unpacked u = unpack(x.scale, operand_scale(x, r, plan_.k_of(s * plan_.group)));
      range.special = range.special || u.kind != value_class::finite;
      std::uint32_t any = 0;
      for (index_t i = s * plan_.group; i < (s + 1) * plan_.group; ++i) any |= fp32_bits(to[i]) & fp32_magnitude_mask;
      if (any == 0) continue;
      scales[s] = u.exponent;
      range.min_scale = std::min(range.min_scale, u.exponent);
      range.max_scale = std::max(range.max_scale, u.exponent);
    }
    return range;
  }

  void include_elements(int least_exponent, const float* values, operand_range& range) const {
    std::uint32_t below_least = ~0u, most = 0;  // magnitudes minus one, so that zero wraps to the largest
    for (index_t i = 0; i < positions_; ++i) {
      const std::uint32_t u = fp32_bits(values[i]) & fp32_magnitude_mask;
      below_least = u - 1 < below_least ? u - 1 : below_least;
      most = u > most ? u : most;
    }
    if (most == 0) return;
    // NaN, Inf, or an FP32 subnormal.
    range.special = range.special || most >= fp32_infinity_bits || below_least + 1 < (1u << 23);
    for (const std::uint32_t u : {below_least + 1, most}) {
      range.include(std::max(static_cast<int>(u >> 23) - 127, least_exponent));
    }
  }

  /// Chooses the offset that moves `range` into the window, and subtracts it.
  void make_relative(const gemm_operand& x, operand_range& range, float* values, index_t count, std::int32_t* scales,
                     index_t steps) const {
    if (x.block != 0 && !range.empty()) {
      range.special = range.special || range.max_scale - range.min_scale > scale_window;
      range.offset = range.max_scale;
      range.least += range.min_scale;
      range.most += range.max_scale;
    }
    for (index_t s = 0; s < steps; ++s) scales[s] = scales[s] == no_scale ? 0 : scales[s] - range.offset;
    if (range.empty() || range.special) return;
    if (x.block == 0 && !is_narrow(seen(x, model_))) {
      range.special = range.most - range.least > 2 * top_exponent;
      range.offset = range.most - top_exponent;
      const int half = range.offset / 2;  // two factors, since one might overflow FP32
      const float factors[2] = {pow2_fp32(-half), pow2_fp32(half - range.offset)};
      for (index_t i = 0; i < count; ++i) values[i] = values[i] * factors[0] * factors[1];
    }
  }

  /// The format's least exponent, relative as packed values are.
  int least_packed(const gemm_operand& x, const operand_range& range) const {
    return seen(x, model_).min_exponent() - (x.block == 0 ? range.offset : 0);
  }
  static int exponent_of(std::uint32_t u, int least) {
    const int e = std::min(std::max(static_cast<int>(u >> 23 & 0xFF) - 127, least), top_exponent);
    return (u & fp32_magnitude_mask) == 0 ? zero_exponent : e;
  }

  const gemm_operand &a_, &b_;
  const mma_model& model_;
  const gemm_plan& plan_;
  index_t positions_;
  decode_table table_a_, table_b_;
  bool scaled_, fused_;
};

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
