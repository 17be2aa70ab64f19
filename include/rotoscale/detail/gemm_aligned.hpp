// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMM kernel for `aligned` models: NVIDIA's units from Volta to Blackwell.
// - Products have up to 11 significand bits per factor (FP16, BF16, TF32, FP8, FP6, FP4). E8M0 scales are optional and
//   constant within a step.
// - Up to 25 fraction bits, steps of up to 32 products, all truncated results and FP16.
//
// A step takes two passes. The first finds the largest exponent by adding bytes; the second truncates products to
// integers. If these have 16 bits (FP8 on Ada and Hopper), one fused multiply-add, rounded toward zero, multiplies,
// aligns and truncates.
#pragma once

#include "rotoscale/detail/gemm_aligned_pack.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

class aligned_steps {
 public:
  static constexpr index_t columns = aligned_packing::columns;
  static constexpr int rows_at_once = lane_count == 16 ? 2 : 1;

  static bool applies(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
    const mma_model& m = o.model;
    const bool result =
        m.result == mma_result::fp32_truncate || m.result == mma_result::e8m13 || m.result == mma_result::fp16_nearest;
    const int max_bits = m.result == mma_result::e8m13 ? 15 : 25;  // 2^-124 with so many bits is in range
    return m.sum == mma_sum::aligned && result && m.group <= 2 * products_of_partial && m.fraction_bits >= 10 &&
           m.fraction_bits <= max_bits && aligned_packing::takes(a, m) && aligned_packing::takes(b, m);
  }
  /// Positions of a panel slice that stays in L1.
  static constexpr index_t slice(const mma_model&) { return 64; }

  aligned_steps(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, const gemm_plan& plan)
      : a_(a),
        b_(b),
        model_(o.model),
        plan_(plan),
        pack_(a, b, o.model, plan),
        shared_(runs_share_scales(plan, plan.group, a.block) && runs_share_scales(plan, plan.group, b.block)) {}

  index_t row_bytes() const { return pack_.row_bytes(); }
  index_t panel_bytes() const { return pack_.panel_bytes(); }
  std::size_t pack_bytes() const { return pack_.pack_bytes(); }
  operand_range pack_row(index_t r, std::byte* to) const { return pack_.pack_row(r, to); }
  operand_range pack_panel(index_t first, index_t valid, std::byte* to) const {
    return pack_.pack_panel(first, valid, to);
  }

  /// Accumulators and products, relative to the operands' offsets, stay in the range where FP32 is exact. The true
  /// values neither overflow nor need bits below 2^-149.
  bool admits(const operand_range& row, const operand_range& panel) const {
    if (!shared_ || row.special || panel.special) return false;
    const int offset = row.offset + panel.offset;
    if (offset < -126 || offset > 126) return false;
    if (model_.result == mma_result::fp16_nearest) return offset == 0;
    if (model_.least_exponent > -126) return false;
    if (row.empty() || panel.empty()) return true;
    return row.least + panel.least >= -124 &&  // with 25 bits below: a multiple of 2^-149
           row.most + panel.most + 3 + highest_bit(static_cast<std::uint64_t>(pack_.positions()) + 1) <= 126;
  }
  /// Below 2^127 no step's sum overflows FP32, which only a persistent Inf would show. With c_last and FP16, c must be
  /// an FP16 number; otherwise FP32 would round the sum before FP16 does.
  bool admits_start(const operand_range& row, const operand_range& panel, float c) const {
    if ((fp32_bits(c) & fp32_magnitude_mask) == 0) return true;
    if (model_.c_last && model_.result == mma_result::fp16_nearest && round_to_format(formats::fp16, c) != c)
      return false;
    const int field = static_cast<int>(fp32_bits(c) >> 23 & 0xFF), exponent = field - 127 - row.offset - panel.offset;
    return field != 0 && field <= 126 + 127 && exponent >= min_c && exponent <= max_c;
  }

  void run(const gemm_span& span, index_t row, index_t column, const operand_range* ranges, const std::byte* rows,
           index_t count, const operand_range& panel_range, const std::byte* panel, float* acc) const {
    for_row_tiles<rows_at_once>(count, [&]<int Rows>(index_t i) {
      const place at{row + i, column, ranges + i, &panel_range, rows + i * row_bytes(), panel, acc + i * columns};
      scale_accumulators<Rows>(at, -1);
      if (pack_.fused()) {
        run_fused<Rows>(span, at);
      } else if (model_.result == mma_result::fp16_nearest) {
        pack_.scaled() ? tile<Rows, true, true>(span, at) : tile<Rows, true, false>(span, at);
      } else {
        pack_.scaled() ? tile<Rows, false, true>(span, at) : tile<Rows, false, false>(span, at);
      }
      scale_accumulators<Rows>(at, 1);
    });
  }

 protected:
  // Products of numbers below 2: 16 of them with 25 fraction bits stay below 2^31.
  static constexpr int products_of_partial = 16;
  static constexpr std::int64_t largest_significand = (1 << 11) - 1;  // in units of 2^-10
  static_assert((largest_significand * largest_significand * products_of_partial << (25 - 20)) < std::int64_t{1} << 31);

  // Nonzero accumulators are multiples of 2^(-62 - 25), with scales of 2^(-28 - 40 - 25), so their exponents are at
  // least min_c. A sum of exponents with a zero's is below it.
  static constexpr int min_c = -93, max_c = 90, least_step = -100;
  static_assert(aligned_packing::zero_exponent + aligned_packing::top_exponent < min_c &&
                -2 * aligned_packing::top_exponent - 25 >= min_c &&
                -28 - 2 * aligned_packing::scale_window - 25 >= min_c);

  struct place {
    index_t row, column;
    const operand_range *row_ranges, *panel_range;
    const std::byte *rows, *panel;
    float* acc;
  };

  /// Arrays of a packed panel.
  struct packed {
    const float* values;
    const std::int32_t* scales;
    const std::int8_t* exponents;
  };

  /// Converts accumulators to and from the scale of the offsets.
  template <int Rows>
  static void scale_accumulators(const place& at, int direction) {
    for (int i = 0; i < Rows; ++i) {
      const int offset = at.row_ranges[i].offset + at.panel_range->offset;
      if (offset == 0) continue;
      const float factor = pow2_fp32(direction * offset);
      for (index_t j = 0; j < columns; ++j) at.acc[i * columns + j] *= factor;
    }
  }

  packed panel_of(const place& at) const {
    return {pack_.values(at.panel), pack_.scales(at.panel), pack_.exponents(at.panel)};
  }

  template <int Rows, bool Fp16, bool Scaled>
  void tile(const gemm_span& span, const place& at) const {
    const packed x = panel_of(at);
    const float* a[Rows];
    for (int i = 0; i < Rows; ++i) a[i] = pack_.row_values(at.rows + i * row_bytes());
    for (index_t step = span.first; step < span.last; ++step) {
      const index_t first = step * plan_.group, last = first + plan_.group;
      lanes_i32 cut_c[Rows][4], sum[Rows][4], overflow[Rows][4];
      lanes_f32 up[Rows][4], down[Rows][4];
      align<Rows, Fp16, Scaled>(step, at, x, cut_c, up, down);
      // Truncated products in partial sums that fit in 32 bits.
      const index_t half = std::min(last, first + products_of_partial);
      products<Rows>(first, half, x, a, up, sum);
      for (int i = 0; i < Rows; ++i) {
        for (int v = 0; v < 4; ++v) overflow[i][v] = add(sum[i][v], cut_c[i][v]);
      }
      if (half < last) {
        lanes_i32 more[Rows][4];
        products<Rows>(half, last, x, a, up, more);
        for (int i = 0; i < Rows; ++i) {
          for (int v = 0; v < 4; ++v) overflow[i][v] |= add(sum[i][v], more[i][v]);
        }
      }
      for (int i = 0; i < Rows; ++i) {
        for (int v = 0; v < 4; ++v) {
          finish<Fp16>(sum[i][v], down[i][v], overflow[i][v], at, i, v * lane_count, step);
        }
      }
    }
  }

  /// Aligns to E, the largest exponent among an output's products and its accumulator:
  /// - `cut_c`: the accumulator in units of 2^(E - F), truncated.
  /// - `up`: the factor of products, 2^(F - E) times the step's scales.
  /// - `unit`: 2^(E - F).
  template <int Rows, bool Fp16, bool Scaled>
  void align(index_t step, const place& at, const packed& x, lanes_i32 (&cut_c)[Rows][4], lanes_f32 (&up)[Rows][4],
             lanes_f32 (&down)[Rows][4]) const {
    constexpr int w = lane_count;
    const index_t last = (step + 1) * plan_.group;
    const std::int32_t* exponents[Rows];
    lanes_i8 top[Rows];
    for (int i = 0; i < Rows; ++i) {
      exponents[i] = pack_.row_exponents(at.rows + i * row_bytes());
      top[i] = lanes_i8{} + static_cast<std::int8_t>(aligned_packing::zero_exponent);
    }
    const auto raise = [&](index_t p) {
      const auto b = load_lanes<lanes_i8>(x.exponents + p * columns);
      for (int i = 0; i < Rows; ++i) {
        top[i] = largest_sum(top[i], __builtin_bit_cast(lanes_i8, broadcast(exponents[i][p])), b);
      }
    };
    index_t p = step * plan_.group;
    for (; p + 4 <= last; p += 4) {
      for (index_t q = 0; q < 4; ++q) raise(p + q);
    }
    for (; p < last; ++p) raise(p);

    const lanes_i32 floor = broadcast(
        static_cast<std::int32_t>(Fp16 && model_.least_exponent > least_step ? model_.least_exponent : least_step));
    // Bias of the exponent fields of 2^(F - E) and 2^(E - F).
    const lanes_i32 bias_up = broadcast(static_cast<std::int32_t>(127 + model_.fraction_bits));
    const lanes_i32 bias_down = broadcast(static_cast<std::int32_t>(127 - model_.fraction_bits));
    for (int i = 0; i < Rows; ++i) {
      const auto part = [&]<int V>() {
        const auto c = load_lanes<lanes_f32>(at.acc + i * columns + V * w);
        lanes_i32 of_products = widen_bytes<V>(top[i]), s{};
        if (Scaled) {
          const std::int32_t scale = pack_.row_scales(at.rows + i * row_bytes())[step];
          s = load_lanes<lanes_i32>(x.scales + step * columns + V * w) + scale;
        }
        lanes_i32 of_c = ((__builtin_bit_cast(lanes_i32, c) >> 23) & 0xFF) - 127;
        // FP16 has its own least exponent; zero has no exponent.
        if (Fp16) of_c = larger(of_c, broadcast(std::int32_t{-14})) - ((c == 0.0f) & 1024);
        const lanes_i32 e = larger(larger(of_products + s, of_c), floor);
        const lanes_i32 up_bits = (bias_up - e) << 23;
        cut_c[i][V] = __builtin_convertvector(c * __builtin_bit_cast(lanes_f32, up_bits), lanes_i32);
        up[i][V] = __builtin_bit_cast(lanes_f32, Scaled ? up_bits + (s << 23) : up_bits);
        down[i][V] = __builtin_bit_cast(lanes_f32, (bias_down + e) << 23);
      };
      part.template operator()<0>();
      part.template operator()<1>();
      part.template operator()<2>();
      part.template operator()<3>();
    }
  }

  /// Rounds a step's result and stores it in the accumulator. Narrow: `sum` is an FP32 number.
  template <bool Fp16, bool Narrow = false>
  void finish(lanes_i32 sum, lanes_f32 unit, lanes_i32 doubtful, const place& at, int i, index_t first,
              index_t step) const {
    float* const to = at.acc + i * columns + first;
    lanes_f32 d;
    if (Fp16) {
      d = fp16_result(sum, unit, load_lanes<lanes_f32>(to), doubtful);
    } else {
      d = Narrow ? __builtin_convertvector(sum, lanes_f32) : truncate_to_fp32(sum);
      if (model_.result == mma_result::e8m13) {
        d = __builtin_bit_cast(lanes_f32, __builtin_bit_cast(lanes_i32, d) & ~((1 << 10) - 1));
      }
      d *= unit;
    }
    const std::uint32_t lanes = nonzero_lanes(doubtful >> 31);
    if (lanes != 0) d = repair(d, lanes, at, i, first, step);
    store_lanes(to, d);
  }

  /// x += y; returns lanes that are negative where the sum overflowed.
  static lanes_i32 add(lanes_i32& x, lanes_i32 y) {
    const lanes_i32 sum =
        __builtin_bit_cast(lanes_i32, __builtin_bit_cast(lanes_u32, x) + __builtin_bit_cast(lanes_u32, y));
    const lanes_i32 overflow = (x ^ sum) & (y ^ sum);
    x = sum;
    return overflow;
  }

  template <int Rows>
  static void products(index_t first, index_t last, const packed& x, const float* const (&a)[Rows],
                       const lanes_f32 (&unit)[Rows][4], lanes_i32 (&sum)[Rows][4], index_t stride = 1) {
    for (int i = 0; i < Rows; ++i) {
      for (int v = 0; v < 4; ++v) sum[i][v] = lanes_i32{};
    }
    for (index_t p = first; p < last; p += stride) {
      for (int v = 0; v < 4; ++v) {
        const auto b = load_lanes<lanes_f32>(x.values + p * columns + v * lane_count);
        for (int i = 0; i < Rows; ++i) {
          sum[i][v] += __builtin_convertvector(b * a[i][p] * unit[i][v], lanes_i32);
        }
      }
    }
  }

  /// Truncated products by one fused multiply-add, in units q of a product's last bit.
  ///
  /// Let T be |a b| / q truncated to an integer. Let B = 1.5 · 2^23 q; the numbers below it are B - q, B - 2 q, ... The
  /// magnitude of A is packed one ULP too large. So |a| b is slightly farther from zero than the product, but not as
  /// far as the next integer. Rounding toward zero therefore gives B + T q for b > 0 and B - (T + 1) q for b < 0.
  ///
  /// The low 16 bits are then T or -T - 1, and the high 16 bits h or h - 1. The sign s of A multiplies the low half,
  /// and -s the high half. This gives s T - s h or -s T - s h. Adding h times the sum of A's signs leaves the truncated
  /// product. That sum is stored for each row and step (`row_scales`).
  template <int Rows>
  void fused_products(index_t step, const place& at, const packed& x, const lanes_f32 (&unit)[Rows][4],
                      lanes_i32 (&sum)[Rows][4]) const {
    const float* a[Rows];
    const std::int32_t* signs[Rows];
    lanes_f32 base[Rows][4];
    for (int i = 0; i < Rows; ++i) {
      const std::byte* const row = at.rows + i * row_bytes();
      a[i] = pack_.row_values(row);
      signs[i] = pack_.row_signs(row);
      const lanes_i32 all_signs = broadcast(pack_.row_scales(row)[step]);
      for (int v = 0; v < 4; ++v) {
        base[i][v] = unit[i][v] * 0x1.8p23f;
        sum[i][v] = add_half_products(lanes_i32{}, __builtin_bit_cast(lanes_i32, base[i][v]), all_signs);
      }
    }
    for (index_t p = step * plan_.group; p < (step + 1) * plan_.group; ++p) {
      lanes_f32 value[Rows];
      lanes_i32 sign[Rows];
      for (int i = 0; i < Rows; ++i) {
        value[i] = broadcast(a[i][p]);
        sign[i] = broadcast(signs[i][p]);
      }
      for (int v = 0; v < 4; ++v) {
        const auto b = load_lanes<lanes_f32>(x.values + p * columns + v * lane_count);
        for (int i = 0; i < Rows; ++i) {
          const lanes_f32 product = fma_toward_zero(value[i], b, base[i][v]);
          sum[i][v] = add_half_products(sum[i][v], __builtin_bit_cast(lanes_i32, product), sign[i]);
        }
      }
    }
  }

  template <int Rows>
  void run_fused(const gemm_span& span, const place& at) const {
    [[maybe_unused]] const toward_zero_mode mode;
    if (model_.result == mma_result::fp16_nearest) {
      if constexpr (!toward_zero_mode::is_global) fused_tile<Rows, true>(span, at);
    } else {
      fused_tile<Rows, false>(span, at);
    }
  }

  /// Sums have at most 21 bits: 32 products and the accumulator, each below 2^15. Not inlined, because it runs in
  /// toward_zero_mode, in which everything else must be exact.
  template <int Rows, bool Fp16>
  [[gnu::noinline]] void fused_tile(const gemm_span& span, const place& at) const {
    const packed x = panel_of(at);
    for (index_t step = span.first; step < span.last; ++step) {
      lanes_i32 cut_c[Rows][4], sum[Rows][4];
      lanes_f32 up[Rows][4], down[Rows][4];
      align<Rows, Fp16, false>(step, at, x, cut_c, up, down);
      fused_products<Rows>(step, at, x, down, sum);
      for (int i = 0; i < Rows; ++i) {
        for (int v = 0; v < 4; ++v) {
          finish<Fp16, true>(sum[i][v] + cut_c[i][v], down[i][v], lanes_i32{}, at, i, v * lane_count, step);
        }
      }
    }
  }

  /// sum * unit as FP16, nearest even. Inf or NaN in c is kept, since no product of an admitted row and panel is
  /// either; such lanes are not doubtful.
  static lanes_f32 fp16_result(lanes_i32 sum, lanes_f32 unit, lanes_f32 c, lanes_i32& doubtful) {
    const lanes_f32 d =
        to_fp32(nearest_fp16(to_fp64<0>(sum) * to_fp64<0>(unit)), nearest_fp16(to_fp64<1>(sum) * to_fp64<1>(unit)));
    constexpr auto infinity = static_cast<std::int32_t>(fp32_infinity_bits);
    constexpr std::int32_t largest = 0x477FE000;  // 65504
    const lanes_i32 bits = __builtin_bit_cast(lanes_i32, d), of_c = __builtin_bit_cast(lanes_i32, c);
    const lanes_i32 beyond = (bits & ~sign_mask) > largest, kept = (of_c & infinity) == infinity;
    const lanes_i32 finite = (bits & ~beyond) | (((bits & sign_mask) | infinity) & beyond);
    doubtful &= ~kept;
    return __builtin_bit_cast(lanes_f32, (finite & ~kept) | (of_c & kept));
  }
  /// Rounds FP64 to multiples of FP16's unit in the last place, without an upper limit.
  static lanes_f64 nearest_fp16(lanes_f64 x) {
    const lanes_f64 power =
        __builtin_bit_cast(lanes_f64, __builtin_bit_cast(lanes_i64, x) & (std::int64_t{0x7FF} << 52));
    const lanes_f64 least = broadcast(0x1p-14);
    // Adding 1.5 * 2^(52 - 10) times the number's power of two rounds at FP16's last place.
    const lanes_f64 big = (power > least ? power : least) * 0x1.8p42;
    return (x + big) - big;
  }

  /// Recomputes the lanes of `d` whose bit is set by the definition.
  lanes_f32 repair(lanes_f32 d, std::uint32_t lanes, const place& at, int i, index_t first, index_t step) const {
    const int offset = at.row_ranges[i].offset + at.panel_range->offset;
    for (index_t j = 0; j < lane_count && at.column + first + j < b_.rows; ++j) {
      if ((lanes >> j & 1) == 0) continue;
      const float c = at.acc[i * columns + first + j] * pow2_fp32(offset);
      d[j] = step_ref(model_, a_, at.row + i, b_, at.column + first + j, plan_, step, c) * pow2_fp32(-offset);
    }
    return d;
  }

  static constexpr std::int32_t sign_mask = -0x7FFFFFFF - 1;

  const gemm_operand &a_, &b_;
  const mma_model& model_;
  const gemm_plan& plan_;
  aligned_packing pack_;
  bool shared_;
};

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
