// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Integer GEMM kernels for E2M1 blocks. Doubled elements are 0, 1, 2, 3, 4, 6, 8, 12, so a sum of products is an
// integer number of quarters. One instruction adds four products per lane.
// - exact_blocks: `exact` models of several products (fp32_blockwise). A fused multiply-add adds each group's sum to an
//   FP32 accumulator.
// - scaled_blocks: `scaled_groups` models (Blackwell's MXFP4 and NVFP4). FP64 holds a step's sum without error if the
//   model truncates nothing.
// Other steps, and rows or panels beyond the ranges below, go to the definition.
#pragma once

#include "rotoscale/detail/gemm_block_pack.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// Sums of products of four bytes per lane, unsigned times signed. The unsigned bytes are at most 24, the magnitudes of
/// the signed ones at most 12. The 16-bit sums of the AVX2 form can therefore hold max_byte_quads quads.
inline constexpr int max_byte_quads = 32;
static_assert(2 * max_byte_quads * 24 * 12 < 1 << 15);

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
using byte_sums = __m512i;
inline void clear(byte_sums& s) { s = _mm512_setzero_si512(); }
inline void add_products(byte_sums& s, lanes_i32 unsigned_bytes, lanes_i32 signed_bytes) {
  s = _mm512_dpbusd_epi32(s, __builtin_bit_cast(__m512i, unsigned_bytes), __builtin_bit_cast(__m512i, signed_bytes));
}
inline lanes_i32 words(byte_sums s) { return __builtin_bit_cast(lanes_i32, s); }
#elif defined(__AVX2__) && !defined(__AVX512F__)
#if defined(__AVXVNNI__)
using byte_sums = __m256i;
inline void clear(byte_sums& s) { s = _mm256_setzero_si256(); }
inline void add_products(byte_sums& s, lanes_i32 unsigned_bytes, lanes_i32 signed_bytes) {
  s = _mm256_dpbusd_avx_epi32(s, __builtin_bit_cast(__m256i, unsigned_bytes),
                              __builtin_bit_cast(__m256i, signed_bytes));
}
inline lanes_i32 words(byte_sums s) { return __builtin_bit_cast(lanes_i32, s); }
#else
using byte_sums = __m256i;  // 16-bit sums
inline void clear(byte_sums& s) { s = _mm256_setzero_si256(); }
inline void add_products(byte_sums& s, lanes_i32 unsigned_bytes, lanes_i32 signed_bytes) {
  s = _mm256_add_epi16(
      s, _mm256_maddubs_epi16(__builtin_bit_cast(__m256i, unsigned_bytes), __builtin_bit_cast(__m256i, signed_bytes)));
}
inline lanes_i32 words(byte_sums s) {
  return __builtin_bit_cast(lanes_i32, _mm256_madd_epi16(s, _mm256_set1_epi16(1)));
}
#endif
#else
struct byte_sums {
  lanes_i32 v;
};
inline void clear(byte_sums& s) { s.v = lanes_i32{}; }
inline void add_products(byte_sums& s, lanes_i32 unsigned_bytes, lanes_i32 signed_bytes) {
  for (int i = 0; i < 4; ++i) {  // C++20: >> of negative numbers is arithmetic
    s.v += ((unsigned_bytes >> (8 * i)) & 0xFF) * ((signed_bytes << (24 - 8 * i)) >> 24);
  }
}
inline lanes_i32 words(byte_sums s) { return s.v; }
#endif

/// Integer sums of `quads` quads for Rows × 2 registers, without the bias.
template <int Rows>
inline void block_sums(index_t quads, const std::int8_t* const (&a)[Rows], const std::uint8_t* panel,
                       const std::int32_t (&corrections)[Rows], lanes_i32 (&sums)[Rows][2]) {
  for (int i = 0; i < Rows; ++i) sums[i][0] = sums[i][1] = broadcast(corrections[i]);
  for (index_t first = 0; first < quads; first += max_byte_quads) {
    const index_t last = first + max_byte_quads < quads ? first + max_byte_quads : quads;
    byte_sums s[Rows][2];
    for (int i = 0; i < Rows; ++i) {
      clear(s[i][0]);
      clear(s[i][1]);
    }
    for (index_t q = first; q < last; ++q) {
      const lanes_i32 b0 = load_lanes<lanes_i32>(panel + 2 * q * register_bytes);
      const lanes_i32 b1 = load_lanes<lanes_i32>(panel + (2 * q + 1) * register_bytes);
      for (int i = 0; i < Rows; ++i) {
        std::int32_t quad;
        __builtin_memcpy(&quad, a[i] + 4 * q, sizeof quad);
        const lanes_i32 x = broadcast(quad);
        add_products(s[i][0], b0, x);
        add_products(s[i][1], b1, x);
      }
    }
    for (int i = 0; i < Rows; ++i) {
      for (int j = 0; j < 2; ++j) sums[i][j] += words(s[i][j]);
    }
  }
}

/// `exact` models of E2M1 with E8M0 scales or without scales: packed operands and the cases that sums of integers
/// cover.
template <index_t Columns>
class exact_block_operands {
 public:
  static constexpr index_t columns = Columns;

  static bool applies(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
    const mma_model& m = o.model;
    const auto takes = [](const gemm_operand& x) {
      return x.element == formats::e2m1 && (x.block == 0 || x.scale == formats::e8m0);
    };
    return m.sum == mma_sum::exact && m.group > 1 && m.result == mma_result::fp32_nearest && m.operand == format{} &&
           takes(a) && takes(b);
  }
  exact_block_operands(const gemm_operand& a, const gemm_operand& b, const gemm_plan& plan, std::int8_t bias,
                       bool folds = false)
      : pack_(a, b, plan, plan.group, bias, folds),
        shared_(runs_share_scales(plan, plan.group, a.block) && runs_share_scales(plan, plan.group, b.block)) {}

  index_t row_bytes() const { return pack_.template row_bytes<float>(); }
  index_t panel_bytes() const { return pack_.template panel_bytes<float>(); }
  std::size_t pack_bytes() const { return pack_.pack_bytes(); }
  operand_range pack_row(index_t r, std::byte* to) const { return pack_.template pack_row<float>(r, to); }
  operand_range pack_panel(index_t first, index_t valid, std::byte* to) const {
    return pack_.template pack_panel<float>(first, valid, to);
  }

  /// The product of two scales and 1/4 must be an FP32 number. Then a block's sum is exact before the addition, and a
  /// nonzero sum does not round to zero. A NaN scale propagates without help.
  bool admits(const operand_range& row, const operand_range& panel) const {
    return shared_ &&
           (row.empty() || panel.empty() || (row.least + panel.least - 2 >= -149 && row.most + panel.most - 2 <= 127));
  }
  /// A -0 survives a group of -0 products in the model, but not in these kernels.
  static bool admits_start(const operand_range&, const operand_range&, float c) {
    return fp32_bits(c) != fp32_sign_mask;
  }

 protected:
  block_packing<Columns> pack_;

 private:
  bool shared_;
};

/// Any group, by the instructions that the compiler may use.
class exact_blocks : public exact_block_operands<2 * lane_count> {
 public:
  static constexpr index_t slice(const mma_model&) { return 512; }
  static constexpr int rows_at_once = lane_count == 16 ? 6 : 2;

  exact_blocks(const gemm_operand& a, const gemm_operand& b, const gemm_options&, const gemm_plan& plan)
      : exact_block_operands(a, b, plan, e2m1_bias) {}

  void run(const gemm_span& span, index_t, index_t, const operand_range*, const std::byte* rows, index_t count,
           const operand_range&, const std::byte* panel, float* acc) const {
    for_row_tiles<rows_at_once>(
        count, [&]<int Rows>(index_t i) { tile<Rows>(span, rows + i * row_bytes(), panel, acc + i * columns); });
  }

 private:
  template <int Rows>
  void tile(const gemm_span& span, const std::byte* rows, const std::byte* panel, float* acc) const {
    constexpr int w = lane_count;
    const index_t runs = pack_.runs(), quads = pack_.quads();
    lanes_f32 sum[Rows][2];
    for (int i = 0; i < Rows; ++i) {
      for (int j = 0; j < 2; ++j) sum[i][j] = load_lanes<lanes_f32>(acc + i * columns + j * w);
    }
    for (index_t g = span.first; g < span.last; ++g) {
      const std::int8_t* a[Rows];
      std::int32_t corrections[Rows];
      float scales[Rows];
      for (int i = 0; i < Rows; ++i) {
        const std::byte* row = rows + i * row_bytes();
        __builtin_memcpy(&scales[i], row + 4 * g, 4);
        __builtin_memcpy(&corrections[i], row + 4 * (runs + g), 4);
        a[i] = reinterpret_cast<const std::int8_t*>(row + pack_.template elements_at<float>()) + 4 * quads * g;
      }
      const auto* const b_scales = reinterpret_cast<const float*>(panel) + g * columns;
      const auto* const b = reinterpret_cast<const std::uint8_t*>(panel) + 4 * runs * columns + 4 * quads * columns * g;
      lanes_i32 sums[Rows][2];
      block_sums<Rows>(quads, a, b, corrections, sums);
      const lanes_f32 s[2] = {load_lanes<lanes_f32>(b_scales), load_lanes<lanes_f32>(b_scales + w)};
      for (int i = 0; i < Rows; ++i) {
        for (int j = 0; j < 2; ++j) {
          sum[i][j] = fma(__builtin_convertvector(sums[i][j], lanes_f32), s[j] * scales[i], sum[i][j]);
        }
      }
    }
    for (int i = 0; i < Rows; ++i) {
      for (int j = 0; j < 2; ++j) store_lanes(acc + i * columns + j * w, sum[i][j]);
    }
  }
};

/// `scaled_groups` models of E2M1 with scales of at most 4 significand bits and sums truncated to FP32.
///
/// Let e be a run's exponent, which its scales have, and F = fraction_bits. Let low be the fraction bits of a run's
/// scaled sum: 2 plus the scales' fraction bits.
/// - A run loses no bits if E - e <= F - low.
/// - A 24-bit accumulator loses no bits if its exponent is at least E - (F - 23).
/// - A step's sum is then below 2^(E + 18) and a multiple of 2^(E - F), hence exact in FP64 if F <= 35.
/// `tile` checks the first two for the exponents' ranges and for each accumulator.
class scaled_blocks {
 public:
  static constexpr index_t columns = 2 * lane_count;
  static constexpr index_t slice(const mma_model&) { return 512; }
  static constexpr int rows_at_once = lane_count == 16 ? 4 : 2;
  static constexpr int longest_run = 32;
  static_assert(18 + 35 <= 53 && 36 * longest_run * 4 * (max_mma_group / longest_run) < 1 << 18);

  static bool applies(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
    const mma_model& m = o.model;
    const auto takes = [](const gemm_operand& x) {
      return x.element == formats::e2m1 && (x.block == 0 || x.scale.mantissa_bits <= 3);
    };
    return m.sum == mma_sum::scaled_groups && m.result == mma_result::fp32_truncate && m.operand == format{} &&
           m.fraction_bits >= 23 && m.fraction_bits <= 35 && m.subgroup > 0 && m.subgroup % 4 == 0 &&
           m.subgroup <= longest_run && m.group % m.subgroup == 0 && takes(a) && takes(b);
  }
  scaled_blocks(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, const gemm_plan& plan)
      : a_(a),
        b_(b),
        model_(o.model),
        plan_(plan),
        pack_(a, b, plan, run_length(a, b, plan, o.model)),
        low_(2 + scale_bits(a) + scale_bits(b)),
        shared_(share_scales(a, b, plan, o.model.subgroup)) {}

  index_t row_bytes() const { return pack_.row_bytes<double>(); }
  index_t panel_bytes() const { return pack_.panel_bytes<double>(); }
  std::size_t pack_bytes() const { return pack_.pack_bytes(); }
  operand_range pack_row(index_t r, std::byte* to) const { return pack_.pack_row<double>(r, to); }
  operand_range pack_panel(index_t first, index_t valid, std::byte* to) const {
    return pack_.pack_panel<double>(first, valid, to);
  }

  /// A NaN scale propagates without help. In addition to the class's conditions, results must be normal FP32 numbers or
  /// multiples of 2^-149, and least_exponent must not matter.
  bool admits(const operand_range& row, const operand_range& panel) const {
    const int least = least_exponent(row, panel), most = greatest_exponent(row, panel), f = model_.fraction_bits;
    return shared_ && most - least <= f - low_ && least - f >= -149 && most <= 80 &&
           least - (f - 23) >= model_.least_exponent;
  }
  /// As in exact_blocks; also, a negative sum times a zero scale is -0 here.
  static bool admits_start(const operand_range&, const operand_range&, float c) {
    return fp32_bits(c) != fp32_sign_mask;
  }

  void run(const gemm_span& span, index_t row, index_t column, const operand_range* ranges, const std::byte* rows,
           index_t count, const operand_range& panel_range, const std::byte* panel, float* acc) const {
    for_row_tiles<rows_at_once>(count, [&]<int Rows>(index_t i) {
      tile<Rows>(span, row + i, column, ranges + i, rows + i * row_bytes(), panel_range, panel, acc + i * columns);
    });
  }

 private:
  static int scale_bits(const gemm_operand& x) { return x.block == 0 ? 0 : x.scale.mantissa_bits; }
  static bool share_scales(const gemm_operand& a, const gemm_operand& b, const gemm_plan& plan, int run) {
    return runs_share_scales(plan, run, a.block) && runs_share_scales(plan, run, b.block);
  }
  /// Groups with equal scales are summed in integers together, since they lose no bits.
  static int run_length(const gemm_operand& a, const gemm_operand& b, const gemm_plan& plan, const mma_model& m) {
    return m.group % longest_run == 0 && share_scales(a, b, plan, longest_run) ? longest_run : m.subgroup;
  }
  /// Least exponent of the runs. Without a nonzero scale all sums are zero, and any exponent will do.
  static int least_exponent(const operand_range& row, const operand_range& panel) {
    return row.empty() || panel.empty() ? 0 : row.least + panel.least;
  }
  static int greatest_exponent(const operand_range& row, const operand_range& panel) {
    return row.empty() || panel.empty() ? 0 : row.most + panel.most;
  }

  template <int Rows>
  void tile(const gemm_span& span, index_t row, index_t column, const operand_range* ranges, const std::byte* rows,
            const operand_range& panel_range, const std::byte* panel, float* acc) const {
    constexpr int w = lane_count;
    const index_t runs = pack_.runs(), quads = pack_.quads(), runs_of_step = plan_.group / pack_.run();
    lanes_f64 sum[Rows][2][2];
    double least[Rows], most[Rows];
    for (int i = 0; i < Rows; ++i) {
      // Accumulators of these magnitudes lose no bits and make no run lose any.
      least[i] = power(greatest_exponent(ranges[i], panel_range) - (model_.fraction_bits - 23));
      most[i] = power(least_exponent(ranges[i], panel_range) + model_.fraction_bits - low_ + 1);
      for (int j = 0; j < 2; ++j) {
        const auto c = load_lanes<lanes_f32>(acc + i * columns + j * w);
        sum[i][j][0] = to_fp64<0>(c);
        sum[i][j][1] = to_fp64<1>(c);
      }
    }
    for (index_t step = span.first; step < span.last; ++step) {
      std::uint32_t outside = 0;
      for (int i = 0; i < Rows; ++i) {
        for (int j = 0; j < 4; ++j) outside |= lanes_outside(sum[i][j / 2][j % 2], least[i], most[i]);
      }
      lanes_f64 before[Rows][2][2];
      if (outside != 0) __builtin_memcpy(before, sum, sizeof sum);
      for (index_t g = step * runs_of_step; g < (step + 1) * runs_of_step; ++g) {
        const std::int8_t* a[Rows];
        std::int32_t corrections[Rows];
        double scales[Rows];
        for (int i = 0; i < Rows; ++i) {
          const std::byte* from = rows + i * row_bytes();
          __builtin_memcpy(&scales[i], from + 8 * g, 8);
          __builtin_memcpy(&corrections[i], from + 8 * runs + 4 * g, 4);
          a[i] = reinterpret_cast<const std::int8_t*>(from + pack_.elements_at<double>()) + 4 * quads * g;
        }
        const auto* const b_scales = reinterpret_cast<const double*>(panel) + g * columns;
        const auto* const b =
            reinterpret_cast<const std::uint8_t*>(panel) + 8 * runs * columns + 4 * quads * columns * g;
        lanes_i32 sums[Rows][2];
        block_sums<Rows>(quads, a, b, corrections, sums);
        for (int j = 0; j < 4; ++j) {
          const auto scale = load_lanes<lanes_f64>(b_scales + j * w / 2);
          for (int i = 0; i < Rows; ++i) {
            const lanes_f64 x = j % 2 == 0 ? to_fp64<0>(sums[i][j / 2]) : to_fp64<1>(sums[i][j / 2]);
            sum[i][j / 2][j % 2] += x * scales[i] * scale;  // exact
          }
        }
      }
      for (int i = 0; i < Rows; ++i) {
        for (int j = 0; j < 4; ++j) sum[i][j / 2][j % 2] = leading_24_bits(sum[i][j / 2][j % 2]);
      }
      if (outside != 0) repair<Rows>(before, sum, least, most, row, column, step);
    }
    for (int i = 0; i < Rows; ++i) {
      for (int j = 0; j < 2; ++j) store_lanes(acc + i * columns + j * w, to_fp32(sum[i][j][0], sum[i][j][1]));
    }
  }

  /// Recomputes by the definition the lanes that started out of range. Zeros are fine: they have no bits to lose.
  template <int Rows>
  void repair(const lanes_f64 (&before)[Rows][2][2], lanes_f64 (&after)[Rows][2][2], const double (&least)[Rows],
              const double (&most)[Rows], index_t row, index_t column, index_t step) const {
    double from[Rows][columns], to[Rows][columns];
    __builtin_memcpy(from, before, sizeof from);
    __builtin_memcpy(to, after, sizeof to);
    for (int i = 0; i < Rows; ++i) {
      for (int j = 0; j < columns && column + j < b_.rows; ++j) {
        const double c = from[i][j], magnitude = c < 0 ? -c : c;
        if (c == 0 || (magnitude >= least[i] && magnitude < most[i])) continue;
        to[i][j] =
            static_cast<double>(step_ref(model_, a_, row + i, b_, column + j, plan_, step, static_cast<float>(c)));
      }
    }
    __builtin_memcpy(after, to, sizeof to);
  }
  static double power(int e) { return bit_cast<double>(static_cast<std::uint64_t>(e + 1023) << 52); }

  const gemm_operand &a_, &b_;
  const mma_model& model_;
  const gemm_plan& plan_;
  block_packing<columns> pack_;
  int low_;
  bool shared_;
};

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
