// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMM under `aligned` models, NVIDIA's units from Volta to Blackwell: products of up to 11 significand bits each (FP16,
// BF16, TF32, FP8, FP6, FP4; with or without E8M0 scales, constant within a step), up to 25 fraction bits, steps of up to 32
// products, all three truncated or FP16 results. Two passes over a step: the largest exponent by additions of bytes, then
// products cut to integers. Where fraction_bits is 13 or less (FP8 on Ada and Hopper) and the machine rounds a single
// operation toward zero, one fused multiply-add onto a power of two multiplies, aligns and cuts.
#pragma once

#include <algorithm>

#include "rotoscale/detail/gemm_blocks.hpp"

namespace rotoscale::detail {

class aligned_steps {
 public:
  static constexpr index_t columns = 4 * word_lanes;
  static constexpr int rows_at_once = word_lanes == 16 ? 2 : 1;
#if defined(__AVX512F__) && defined(__AVX512VNNI__)
  static constexpr bool fused_cut = true;
#else
  static constexpr bool fused_cut = false;
#endif

  static bool applies(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
    const mma_model& m = o.model;
    const bool result = m.result == mma_result::fp32_truncate || m.result == mma_result::e8m13 ||
                        m.result == mma_result::fp16_nearest;
    return m.sum == mma_sum::aligned && result && m.group <= 2 * products_of_partial && m.fraction_bits >= 10 &&
           m.fraction_bits <= 25 && takes(a, m) && takes(b, m);
  }
  /// Positions of a panel that stay in the first-level cache.
  static constexpr index_t slice(const mma_model& m) { return fused_cut && m.fraction_bits <= 13 ? 32 : 64; }

  aligned_steps(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, const gemm_plan& plan)
      : a_(a),
        b_(b),
        model_(o.model),
        plan_(plan),
        positions_(plan.positions()),
        table_a_(a.element),
        table_b_(b.element),
        scaled_(a.block != 0 || b.block != 0),
        fused_(fused_cut && o.model.fraction_bits <= 13 && !scaled_ && is_narrow(a) && is_narrow(b)),
        shared_(runs_share_scales(plan, plan.group, a.block) && runs_share_scales(plan, plan.group, b.block)) {}

  // A row: values, exponents as four equal bytes, offsets of signs, scales of steps; each 4 bytes.
  index_t row_bytes() const { return (3 * positions_ + plan_.steps()) * 4; }
  // A panel: values, signs (those of B, then the opposite ones), scales of steps, each 4 bytes; exponents of 1.
  index_t panel_bytes() const {
    return ((fused_ ? 3 : 1) * positions_ + (scaled_ ? plan_.steps() : 0)) * columns * 4 + positions_ * columns;
  }

  operand_range pack_row(index_t r, std::byte* to) const {
    auto* const values = reinterpret_cast<float*>(to);
    auto* const exponents = reinterpret_cast<std::uint32_t*>(values + positions_);
    auto* const signs = reinterpret_cast<std::int32_t*>(exponents + positions_);
    std::int32_t* const scales = signs + positions_;
    operand_range range = unpack_row(a_, table_a_, r, values, scales);
    make_relative(a_, range, values, positions_, scales, plan_.steps());
    const int least = least_packed(a_);
    for (index_t i = 0; i < positions_; ++i) {
      const std::uint32_t u = fp32_bits(values[i]);
      exponents[i] = 0x01010101u * static_cast<std::uint8_t>(exponent_of(u, least));
      signs[i] = (u >> 31) != 0 ? static_cast<std::int32_t>(columns) : 0;
      values[i] = fp32_from_bits(fused_ ? u & fp32_magnitude_mask : u);
    }
    return range;
  }

  operand_range pack_panel(index_t first, index_t valid, std::byte* to) const {
    auto* const values = reinterpret_cast<float*>(to);
    auto* const signs = reinterpret_cast<std::int32_t*>(values + positions_ * columns);
    std::int32_t* const scales = signs + (fused_ ? 2 : 0) * positions_ * columns;
    auto* const exponents = reinterpret_cast<std::int8_t*>(scales + (scaled_ ? plan_.steps() : 0) * columns);
    // 1. Columns as rows; they share an offset.
    const index_t steps = plan_.steps();
    float* const rows = scratch<gemm_rows_scratch>(valid * (positions_ + steps));
    auto* const row_scales = reinterpret_cast<std::int32_t*>(rows + valid * positions_);
    operand_range range;
    for (index_t j = 0; j < valid; ++j) {
      const operand_range one = unpack_row(b_, table_b_, first + j, rows + j * positions_, row_scales + j * steps);
      range.special = range.special || one.special;
      if (one.empty()) continue;
      range.include(one.least);
      range.include(one.most);
      range.least_scale = std::min(range.least_scale, one.least_scale);
      range.most_scale = std::max(range.most_scale, one.most_scale);
    }
    make_relative(b_, range, rows, valid * positions_, row_scales, valid * steps);
    // 2. Columns side by side.
    pack_panel_from_rows<static_cast<int>(columns)>(rows, positions_, valid, positions_, values);
    for (index_t s = 0; scaled_ && s < steps; ++s) {
      for (index_t j = 0; j < columns; ++j) scales[s * columns + j] = j < valid ? row_scales[j * steps + s] : 0;
    }
    const int least = least_packed(b_);
    for (index_t p = 0; p < positions_; ++p) {
      float* const value = values + p * columns;
      std::int8_t* const exponent = exponents + p * columns;
      for (index_t j = 0; j < columns; ++j) exponent[j] = static_cast<std::int8_t>(exponent_of(fp32_bits(value[j]), least));
      if (!fused_) continue;
      std::int32_t* const sign = signs + 2 * p * columns;
      for (index_t j = 0; j < columns; ++j) {
        const std::uint32_t u = fp32_bits(value[j]);
        sign[j] = (u >> 31) != 0 ? 0xFFFF : 1;
        sign[columns + j] = (u >> 31) != 0 ? 1 : 0xFFFF;
        value[j] = fp32_from_bits(u & fp32_magnitude_mask);
      }
    }
    return range;
  }

  /// Accumulators and products relative to the operands' offsets stay where FP32 is exact; the true ones neither overflow
  /// nor need bits below 2^-149.
  bool admits(const operand_range& row, const operand_range& panel) const {
    if (!shared_ || row.special || panel.special) return false;
    const int offset = row.offset + panel.offset;
    if (offset < -126 || offset > 126) return false;
    if (model_.result == mma_result::fp16_nearest) return offset == 0;  // overflow is looked for step by step
    if (model_.least_exponent > -124) return false;
    if (row.empty() || panel.empty()) return true;
    return row.least + panel.least >= model_.fraction_bits - 149 && row.least + panel.least >= -124 &&
           row.most + panel.most + 3 + highest_bit(static_cast<std::uint64_t>(positions_) + 1) <= 126;
  }
  static bool admits_start(const operand_range& row, const operand_range& panel, float c) {
    const int field = static_cast<int>(fp32_bits(c) >> 23 & 0xFF), exponent = field - 127 - row.offset - panel.offset;
    return (fp32_bits(c) & fp32_magnitude_mask) == 0 ||
           (field != 0 && field != 255 && exponent >= least_c && exponent <= most_c);
  }

  void run(const gemm_span& span, index_t row, index_t column, const operand_range* ranges, const std::byte* rows,
           index_t count, const operand_range& panel_range, const std::byte* panel, float* acc) const {
    for_row_tiles<rows_at_once>(count, [&]<int Rows>(index_t i) {
      const place at{row + i, column, ranges + i, &panel_range, rows + i * row_bytes(), panel, acc + i * columns};
      scale_accumulators<Rows>(at, -1);
      if (model_.result == mma_result::fp16_nearest) {
        scaled_ ? tile<Rows, true, true>(span, at) : tile<Rows, true, false>(span, at);
      } else {
        scaled_ ? tile<Rows, false, true>(span, at) : tile<Rows, false, false>(span, at);
      }
      scale_accumulators<Rows>(at, 1);
    });
  }

 private:
  // Products of numbers below 2 in their exponent: 16 of them and 25 fraction bits stay below 2^31.
  static constexpr int products_of_partial = 16;
  static constexpr std::int64_t largest_significand = (1 << 11) - 1;  // in units of 2^-10
  static_assert((largest_significand * largest_significand * products_of_partial << (25 - 20)) < std::int64_t{1} << 31);

  // Relative exponents. Elements span 62, from -31; scales 20 below the largest. Sums of a zero's exponent with another are
  // -97 at most, below every accumulator that is not zero: those are multiples of 2^(-62 - 25) or 2^(-28 - 40 - 25).
  static constexpr int top_exponent = 31, zero_exponent = -128, scale_window = 20;
  static constexpr std::int32_t no_scale = 1 << 20;  // of a step of zeros: its scale must not widen the window
  static constexpr int least_c = -93, most_c = 90, least_step = -100;
  static_assert(zero_exponent + top_exponent < least_c && -2 * top_exponent - 25 >= least_c &&
                -28 - 2 * scale_window - 25 >= least_c);

  struct place {
    index_t row, column;
    const operand_range *row_ranges, *panel_range;
    const std::byte *rows, *panel;
    float* acc;
  };

  static const format& seen(const gemm_operand& x, const mma_model& m) {
    return m.operand.exponent_bits != 0 ? m.operand : x.element;
  }
  /// Are all exponents in the window without an offset?
  bool is_narrow(const gemm_operand& x) const {
    const format& f = seen(x, model_);
    return f.min_exponent() >= -14 && f.max_exponent() <= 15;
  }
  static bool takes(const gemm_operand& x, const mma_model& m) {
    const format &f = x.element, &to = m.operand;
    if (x.block != 0 && (x.scale.mantissa_bits != 0 || seen(x, m).min_exponent() < -14)) return false;
    if (f == formats::fp32 && to == formats::tf32) return true;
    if (f.mantissa_bits > 10 || f.exponent_bits > 8) return false;
    if (to == format{}) return true;
    return f.mantissa_bits <= to.mantissa_bits && (f.exponent_bits < to.exponent_bits || f == to) &&
           f.bias <= to.bias && to.mantissa_bits <= 10;
  }

  /// A row's elements in the plan's order, its steps' scales, and the ranges of their exponents.
  operand_range unpack_row(const gemm_operand& x, const decode_table& table, index_t r, float* to,
                           std::int32_t* scales) const {
    gemm_operand elements = x;
    elements.block = 0;
    if (plan_.ascending) {
      decode_row(elements, table, r, to);
      for (index_t i = x.k; i < positions_; ++i) to[i] = 0.0f;
    } else {
      static thread_local std::vector<float> memory;
      memory.resize(static_cast<std::size_t>(x.k));
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
      range.least_scale = std::min(range.least_scale, u.exponent);
      range.most_scale = std::max(range.most_scale, u.exponent);
    }
    return range;
  }

  void include_elements(int least_exponent, const float* values, operand_range& range) const {
    std::uint32_t below_least = ~0u, most = 0;  // magnitudes less one, so that zero is the largest of all
    for (index_t i = 0; i < positions_; ++i) {
      const std::uint32_t u = fp32_bits(values[i]) & fp32_magnitude_mask;
      below_least = u - 1 < below_least ? u - 1 : below_least;
      most = u > most ? u : most;
    }
    if (most == 0) return;
    // NaN, Inf, and numbers that are subnormal in FP32 as well.
    range.special = range.special || most >= fp32_infinity_bits || below_least + 1 < (1u << 23);
    for (const std::uint32_t u : {below_least + 1, most}) {
      range.include(std::max(static_cast<int>(u >> 23) - 127, least_exponent));
    }
  }

  /// Chooses an offset that brings what `range` describes into the window, and subtracts it.
  void make_relative(const gemm_operand& x, operand_range& range, float* values, index_t count, std::int32_t* scales,
                     index_t steps) const {
    if (x.block != 0 && !range.empty()) {
      range.special = range.special || range.most_scale - range.least_scale > scale_window;
      range.offset = range.most_scale;
      range.least += range.least_scale;
      range.most += range.most_scale;
    }
    for (index_t s = 0; s < steps; ++s) scales[s] = scales[s] == no_scale ? 0 : scales[s] - range.offset;
    if (range.empty() || range.special) return;
    if (x.block == 0 && !is_narrow(x)) {
      range.special = range.most - range.least > 2 * top_exponent;
      range.offset = range.most - top_exponent;
      const int half = range.offset / 2;  // one factor might not be a number of FP32
      const float factors[2] = {pow2_fp32(-half), pow2_fp32(half - range.offset)};
      for (index_t i = 0; i < count; ++i) values[i] = values[i] * factors[0] * factors[1];
    }
  }

  /// Least exponent that a packed value can have: the format's, or the window's end.
  int least_packed(const gemm_operand& x) const { return is_narrow(x) ? seen(x, model_).min_exponent() : -top_exponent; }
  static int exponent_of(std::uint32_t u, int least) {
    const int e = std::min(std::max(static_cast<int>(u >> 23 & 0xFF) - 127, least), top_exponent);
    return (u & fp32_magnitude_mask) == 0 ? zero_exponent : e;
  }

  /// Accumulators to and from the offsets' frame.
  template <int Rows>
  static void scale_accumulators(const place& at, int direction) {
    for (int i = 0; i < Rows; ++i) {
      const int offset = at.row_ranges[i].offset + at.panel_range->offset;
      if (offset == 0) continue;
      const float factor = pow2_fp32(direction * offset);
      for (index_t j = 0; j < columns; ++j) at.acc[i * columns + j] *= factor;
    }
  }

  template <int Rows, bool Fp16, bool Scaled>
  void tile(const gemm_span& span, const place& at) const {
    constexpr int w = word_lanes;
    const int group = plan_.group, f = model_.fraction_bits;
    const auto* const values = reinterpret_cast<const float*>(at.panel);
    const auto* const signs = reinterpret_cast<const std::int32_t*>(values + positions_ * columns);
    const std::int32_t* const scales = signs + (fused_ ? 2 : 0) * positions_ * columns;
    const auto* const exponents =
        reinterpret_cast<const std::int8_t*>(scales + (Scaled ? plan_.steps() : 0) * columns);
    const float* a[Rows];
    for (int i = 0; i < Rows; ++i) a[i] = reinterpret_cast<const float*>(at.rows + i * row_bytes());
    const ilanes floor = all_lanes(
        static_cast<std::int32_t>(Fp16 && model_.least_exponent > least_step ? model_.least_exponent : least_step));

    for (index_t step = span.first; step < span.last; ++step) {
      const index_t first = step * group;
      // 1. The largest exponent of each output's products.
      blanes top[Rows];
      for (int i = 0; i < Rows; ++i) top[i] = blanes{} + static_cast<std::int8_t>(zero_exponent);
      const auto raise = [&](index_t p) {
        const auto b = load_lanes<blanes>(exponents + p * columns);
        for (int i = 0; i < Rows; ++i) {
          std::int32_t four;
          __builtin_memcpy(&four, a[i] + positions_ + p, sizeof four);
          top[i] = largest_sum(top[i], __builtin_bit_cast(blanes, all_lanes(four)), b);
        }
      };
      index_t p = first;
      for (; p + 4 <= first + group; p += 4) {
        for (index_t q = 0; q < 4; ++q) raise(p + q);
      }
      for (; p < first + group; ++p) raise(p);
      // 2. With the accumulator's, E; and what the accumulator is cut to.
      ilanes e[Rows][4], cut_c[Rows][4];
      flanes unit[Rows][4];
      for (int i = 0; i < Rows; ++i) {
        std::int32_t scale = 0;
        if (Scaled) __builtin_memcpy(&scale, a[i] + 3 * positions_ + step, sizeof scale);
        const auto align = [&]<int V>() {
          const auto c = load_lanes<flanes>(at.acc + i * columns + V * w);
          ilanes products = widen_bytes<V>(top[i]), s{};
          if (Scaled) s = load_lanes<ilanes>(scales + step * columns + V * w) + scale;
          ilanes of_c = ((__builtin_bit_cast(ilanes, c) >> 23) & 0xFF) - 127;
          if (Fp16) {  // its own least exponent, which zero has not
            of_c = larger(of_c, all_lanes(std::int32_t{-14})) - ((c == 0.0f) & 1024);
          }
          e[i][V] = larger(larger(products + s, of_c), floor);
          const flanes scale_c = power_of_two(f - e[i][V]);
          cut_c[i][V] = __builtin_convertvector(c * scale_c, ilanes);
          unit[i][V] = Scaled ? power_of_two(f - e[i][V] + s) : scale_c;
        };
        align.template operator()<0>();
        align.template operator()<1>();
        align.template operator()<2>();
        align.template operator()<3>();
      }
      // 3. Products, cut, in partial sums that 32 bits hold.
      ilanes sum[Rows][4], carry[Rows][4];
      const index_t half = first + (group < products_of_partial ? group : products_of_partial), last = first + group;
      if (fused_) {
        fused_products<Rows>(first, last, a, values, signs, e, sum);
        for (int i = 0; i < Rows; ++i) {
          for (int v = 0; v < 4; ++v) {
            sum[i][v] += cut_c[i][v];
            carry[i][v] = ilanes{};
          }
        }
      } else {
        products<Rows>(first, half, a, values, unit, sum);
        for (int i = 0; i < Rows; ++i) {
          for (int v = 0; v < 4; ++v) carry[i][v] = add(sum[i][v], cut_c[i][v]);
        }
        if (half < last) {
          ilanes more[Rows][4];
          products<Rows>(half, last, a, values, unit, more);
          for (int i = 0; i < Rows; ++i) {
            for (int v = 0; v < 4; ++v) carry[i][v] |= add(sum[i][v], more[i][v]);
          }
        }
      }
      // 4. Results.
      for (int i = 0; i < Rows; ++i) {
        for (int v = 0; v < 4; ++v) {
          float* const to = at.acc + i * columns + v * w;
          flanes d;
          if (Fp16) {
            d = fp16_result(sum[i][v], e[i][v] - f, load_lanes<flanes>(to), carry[i][v]);
          } else {
            d = truncate_to_fp32(sum[i][v]);
            if (model_.result == mma_result::e8m13) {
              d = __builtin_bit_cast(flanes, __builtin_bit_cast(ilanes, d) & ~((1 << 10) - 1));
            }
            d *= power_of_two(e[i][v] - f);
          }
          const std::uint32_t doubtful = nonzero_lanes(carry[i][v] >> 31);
          if (doubtful != 0) d = repair(d, doubtful, at, i, v * w, step);
          store_lanes(to, d);
        }
      }
    }
  }

  /// x += y; lanes below zero overflowed.
  static ilanes add(ilanes& x, ilanes y) {
    const ilanes sum = __builtin_bit_cast(ilanes, __builtin_bit_cast(ulanes, x) + __builtin_bit_cast(ulanes, y));
    const ilanes overflow = (x ^ sum) & (y ^ sum);
    x = sum;
    return overflow;
  }

  template <int Rows>
  static void products(index_t first, index_t last, const float* const (&a)[Rows], const float* values,
                       const flanes (&unit)[Rows][4], ilanes (&sum)[Rows][4]) {
    for (int i = 0; i < Rows; ++i) {
      for (int v = 0; v < 4; ++v) sum[i][v] = ilanes{};
    }
    for (index_t p = first; p < last; ++p) {
      for (int v = 0; v < 4; ++v) {
        const auto b = load_lanes<flanes>(values + p * columns + v * word_lanes);
        for (int i = 0; i < Rows; ++i) {
          sum[i][v] += __builtin_convertvector(b * a[i][p] * unit[i][v], ilanes);
        }
      }
    }
  }

  /// |a| |b| + 2^23 q, rounded toward zero, is that power of two with the product's multiple of q in its low bits, which are
  /// fewer than 16 here; a product of 16-bit numbers gives them their sign.
  template <int Rows>
  void fused_products(index_t first, index_t last, const float* const (&a)[Rows], const float* values,
                      const std::int32_t* signs, const ilanes (&e)[Rows][4], ilanes (&sum)[Rows][4]) const {
#if defined(__AVX512F__) && defined(__AVX512VNNI__)
    __m512 base[Rows][4];
    __m512i s[Rows][4];
    for (int i = 0; i < Rows; ++i) {
      for (int v = 0; v < 4; ++v) {
        base[i][v] = __builtin_bit_cast(__m512, power_of_two(e[i][v] - model_.fraction_bits + 23));
        s[i][v] = _mm512_setzero_si512();
      }
    }
    for (index_t p = first; p < last; ++p) {
      const std::int32_t* sign[Rows];
      for (int i = 0; i < Rows; ++i) {
        std::int32_t offset;
        __builtin_memcpy(&offset, a[i] + 2 * positions_ + p, sizeof offset);
        sign[i] = signs + 2 * p * columns + offset;
      }
      for (int v = 0; v < 4; ++v) {
        const __m512 b = _mm512_loadu_ps(values + p * columns + v * word_lanes);
        for (int i = 0; i < Rows; ++i) {
          const __m512 product = _mm512_fmadd_round_ps(_mm512_set1_ps(a[i][p]), b, base[i][v],
                                                       _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
          s[i][v] = _mm512_dpwssd_epi32(s[i][v], _mm512_castps_si512(product),
                                        _mm512_loadu_si512(sign[i] + v * word_lanes));
        }
      }
    }
    for (int i = 0; i < Rows; ++i) {
      for (int v = 0; v < 4; ++v) sum[i][v] = __builtin_bit_cast(ilanes, s[i][v]);
    }
#endif
  }

  /// sum * 2^unit as FP16, nearest even; `doubtful` lanes become negative where c or the result is beyond FP16's numbers.
  static flanes fp16_result(ilanes sum, ilanes unit, flanes c, ilanes& doubtful) {
    constexpr float largest = 65504.0f;
    const flanes q = power_of_two(unit);
    const flanes d = to_fp32(nearest_fp16(to_fp64<0>(sum) * to_fp64<0>(q)), nearest_fp16(to_fp64<1>(sum) * to_fp64<1>(q)));
    doubtful |= ~((c <= largest) & (c >= -largest) & (d <= largest) & (d >= -largest));
    return d;
  }
  /// FP64 to multiples of FP16's unit in the last place, without a largest number.
  static dlanes nearest_fp16(dlanes x) {
    const dlanes power = __builtin_bit_cast(dlanes, __builtin_bit_cast(qlanes, x) & (std::int64_t{0x7FF} << 52));
    const dlanes least = all_lanes(0x1p-14);
    // 1.5 * 2^(52 - 10) times the number's power of two: its unit in the last place is FP16's.
    const dlanes big = (power > least ? power : least) * 0x1.8p42;
    return (x + big) - big;
  }

  /// Lanes of `d` whose bit is set, by the definition.
  flanes repair(flanes d, std::uint32_t lanes, const place& at, int i, index_t first, index_t step) const {
    const int offset = at.row_ranges[i].offset + at.panel_range->offset;
    for (index_t j = 0; j < word_lanes && at.column + first + j < b_.rows; ++j) {
      if ((lanes >> j & 1) == 0) continue;
      const float c = at.acc[i * columns + first + j] * pow2_fp32(offset);
      d[j] = step_ref(model_, a_, at.row + i, b_, at.column + first + j, plan_, step, c) * pow2_fp32(-offset);
    }
    return d;
  }

  using ulanes = std::uint32_t __attribute__((vector_size(register_bytes)));

  const gemm_operand &a_, &b_;
  const mma_model& model_;
  const gemm_plan& plan_;
  index_t positions_;
  decode_table table_a_, table_b_;
  bool scaled_, fused_, shared_;
};

}  // namespace rotoscale::detail
