// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMM kernel for `late_c` and `late_c_split` models, AMD's units from CDNA3 on. Operands have no block scales and are
// packed as for `aligned` models. A step truncates its products to integers at their largest exponent (split: even and
// odd products each at theirs). It then adds the accumulator in FP64, which is exact.
#pragma once

#include "rotoscale/detail/gemm_aligned.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

class late_steps : private aligned_steps {
 public:
  using aligned_steps::admits_start, aligned_steps::pack_bytes, aligned_steps::pack_panel, aligned_steps::pack_row,
      aligned_steps::panel_bytes, aligned_steps::row_bytes;
  using aligned_steps::columns, aligned_steps::rows_at_once, aligned_steps::slice;

  static bool applies(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
    const mma_model& m = o.model;
    const bool late = m.sum == mma_sum::late_c || m.sum == mma_sum::late_c_split;
    const bool few_bits = a.element.mantissa_bits <= 3 && b.element.mantissa_bits <= 3;
    return late && m.result == mma_result::fp32_nearest && m.fraction_bits == fraction_bits &&
           m.late_bits == late_bits && m.group > 0 && m.group <= (few_bits ? 32 : products_of_partial) &&
           m.group % 2 == 0 && !m.c_last && a.block == 0 && b.block == 0 && aligned_packing::takes(a, m) &&
           aligned_packing::takes(b, m);
  }

  late_steps(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, const gemm_plan& plan)
      : aligned_steps(a, b, o, plan) {}

  /// As for aligned_steps, but sums have more bits below their largest product.
  bool admits(const operand_range& row, const operand_range& panel) const {
    if (row.special || panel.special) return false;
    const int offset = row.offset + panel.offset;
    if (offset < -126 || offset > 126) return false;
    if (row.empty() || panel.empty()) return true;
    return row.least + panel.least - late_bits - 1 >= -149 &&
           row.most + panel.most + 3 + highest_bit(static_cast<std::uint64_t>(pack_.positions()) + 1) <= 126;
  }

  void run(const gemm_span& span, index_t row, index_t column, const operand_range* ranges, const std::byte* rows,
           index_t count, const operand_range& panel_range, const std::byte* panel, float* acc) const {
    for_row_tiles<rows_at_once>(count, [&]<int Rows>(index_t i) {
      const place at{row + i, column, ranges + i, &panel_range, rows + i * row_bytes(), panel, acc + i * columns};
      scale_accumulators<Rows>(at, -1);
      model_.sum == mma_sum::late_c ? tile<Rows, 1>(span, at) : tile<Rows, 2>(span, at);
      scale_accumulators<Rows>(at, 1);
    });
  }

 private:
  static constexpr int fraction_bits = 24, late_bits = 31;
  /// Bits that the products' sum has below the accumulator's last bit.
  static constexpr int guard_bits = late_bits + 1 - fraction_bits;
  // Products of numbers below 2.
  static_assert(std::int64_t{products_of_partial} << (fraction_bits + 2) < std::int64_t{1} << 31);
  static_assert(32 * (15 * 15) << (fraction_bits - 6) < std::int64_t{1} << 31);  // factors of four bits
  // Relative exponents: a zero's is below any product's, and no nonzero sum is below min_c.
  static constexpr int no_product = -96;
  static_assert(aligned_packing::zero_exponent + aligned_packing::top_exponent < no_product &&
                -2 * aligned_packing::top_exponent - late_bits - 1 >= min_c - 1);

  /// Sums of a step's products, truncated at 2^(exponent - fraction_bits): one sum of all, or one each of even and odd.
  template <int Rows, int Parts>
  struct step_sums {
    lanes_i32 sum[Parts][Rows][4], exponent[Parts][Rows][4];
  };

  template <int Rows, int Parts>
  void tile(const gemm_span& span, const place& at) const {
    const packed x = panel_of(at);
    const float* a[Rows];
    for (int i = 0; i < Rows; ++i) a[i] = pack_.row_values(at.rows + i * row_bytes());
    for (index_t step = span.first; step < span.last; ++step) {
      const index_t first = step * plan_.group, last = first + plan_.group;
      step_sums<Rows, Parts> s;
      for (int part = 0; part < Parts; ++part) {
        lanes_f32 up[Rows][4];
        align<Rows, Parts>(first + part, last, at, x, s.exponent[part], up);
        products<Rows>(first + part, last, x, a, up, s.sum[part], Parts);
      }
      for (int i = 0; i < Rows; ++i) {
        for (int v = 0; v < 4; ++v) join<Rows, Parts>(s, i, v, at.acc + i * columns + v * lane_count);
      }
    }
  }

  /// Largest exponent of every Parts-th product of [first, last), or less than no_product if all are zero, and the
  /// factors that truncate the products.
  template <int Rows, int Parts>
  void align(index_t first, index_t last, const place& at, const packed& x, lanes_i32 (&exponent)[Rows][4],
             lanes_f32 (&up)[Rows][4]) const {
    for (int i = 0; i < Rows; ++i) {
      const std::int32_t* const row = pack_.row_exponents(at.rows + i * row_bytes());
      lanes_i8 top{};  // nvcc's front end crashes on a sum in a declaration and on vectors in a conditional expression
      top = top + static_cast<std::int8_t>(aligned_packing::zero_exponent);
      for (index_t p = first; p < last; p += Parts) {
        top = largest_sum(top, __builtin_bit_cast(lanes_i8, broadcast(row[p])),
                          load_lanes<lanes_i8>(x.exponents + p * columns));
      }
      exponent[i][0] = widen_bytes<0>(top);
      exponent[i][1] = widen_bytes<1>(top);
      exponent[i][2] = widen_bytes<2>(top);
      exponent[i][3] = widen_bytes<3>(top);
      for (int v = 0; v < 4; ++v)
        up[i][v] = power_of_two(fraction_bits - larger(exponent[i][v], broadcast(std::int32_t{no_product})));
    }
  }

  /// Adds a step's sums to the accumulators.
  template <int Rows, int Parts>
  void join(const step_sums<Rows, Parts>& s, int i, int v, float* acc) const {
    const auto c = load_lanes<lanes_f32>(acc);
    const lanes_i32 of_c = ((__builtin_bit_cast(lanes_i32, c) >> 23) & 0xFF) - 127;
    lanes_i32 of_products = s.exponent[0][i][v];
    if constexpr (Parts == 2) of_products = larger(of_products, s.exponent[1][i][v]);
    // Zeros have smaller exponents than this.
    const lanes_i32 e = larger(larger(of_products, of_c), broadcast(std::int32_t{no_product}));
    // For far smaller terms any larger shift gives the same 0 or -1.
    constexpr std::int32_t far = -64;
    const lanes_f32 down = power_of_two(larger(of_products - e + guard_bits, broadcast(far)));
    lanes_f32 part_down[Parts];
    for (int part = 0; part < Parts; ++part) {
      part_down[part] = power_of_two(larger(s.exponent[part][i][v] - of_products, broadcast(far)));
    }
    lanes_i32 dropped{};
    if constexpr (Parts == 2) dropped = of_c < e - fraction_bits - 1;
    const lanes_f32 kept_c = __builtin_bit_cast(lanes_f32, __builtin_bit_cast(lanes_i32, c) & ~dropped);
    const lanes_f32 up = power_of_two(fraction_bits - e), unit = power_of_two(e - fraction_bits);
    const auto half = [&]<int Half>() {
      lanes_f64 products{};
      for (int part = 0; part < Parts; ++part) {
        const lanes_f64 sum = to_fp64<Half>(s.sum[part][i][v]);
        if constexpr (Parts == 1) {
          products = sum;
        } else {
          products += round_down(sum * to_fp64<Half>(part_down[part]));
        }
      }
      const lanes_f64 sum = round_down(products * to_fp64<Half>(down)) +
                            round_down(to_fp64<Half>(kept_c) * to_fp64<Half>(up)) * double(1 << guard_bits);
      // + 0.0 turns -0 into +0.
      return leading_bits_down(sum) * to_fp64<Half>(unit) * (1.0 / (1 << guard_bits)) + 0.0;
    };
    store_lanes(acc, to_fp32(half.template operator()<0>(), half.template operator()<1>()));
  }

  /// Rounds numbers below 2^51 down to integers.
  static lanes_f64 round_down(lanes_f64 x) {
    constexpr double magic = 0x1.8p52;
    const lanes_f64 nearest = (x + magic) - magic;
    return nearest > x ? nearest - 1.0 : nearest;
  }
  /// Keeps the leading late_bits + 1 bits, rounding down.
  static lanes_f64 leading_bits_down(lanes_f64 x) {
    constexpr std::int64_t below = (std::int64_t{1} << (52 - late_bits)) - 1;
    const lanes_i64 bits = __builtin_bit_cast(lanes_i64, x);
    return __builtin_bit_cast(lanes_f64, (bits + ((bits >> 63) & below)) & ~below);
  }
};

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
