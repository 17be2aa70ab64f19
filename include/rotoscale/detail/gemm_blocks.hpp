// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMM of E2M1 blocks by integers: doubled elements are 0, 1, 2, 3, 4, 6, 8, 12, so a sum of products is an integer number
// of quarters, and four products a lane are one instruction. `exact` models of more than one product (fp32_blockwise)
// add each group's sum to an FP32 accumulator by one fused multiply-add; `scaled_groups` (Blackwell's MXFP4 and NVFP4) keep
// it in FP64, which holds a whole step without error as long as the model cuts nothing off; steps where it does, and
// rows or panels beyond the ranges below, go to the definition.
#pragma once

#include <cstddef>
#include <span>

#include "rotoscale/detail/gemm_decode.hpp"
#include "rotoscale/detail/gemm_lanes.hpp"
#include "rotoscale/detail/gemm_plan.hpp"

namespace rotoscale::detail {

/// One step of one output by the definition.
inline float step_ref(const mma_model& m, const gemm_operand& a, index_t i, const gemm_operand& b, index_t j,
                      const gemm_plan& plan, index_t step, float c) {
  mma_product products[max_mma_group];
  int count = 0;
  for (index_t p = step * plan.group; p < (step + 1) * plan.group; ++p) {
    if (plan.k_of(p) >= 0) products[count++] = product_ref(m, a, i, b, j, plan.k_of(p));
  }
  return fp32_value(mma_step(m, products, count, unpack(formats::fp32, fp32_bits(c))));
}

/// Codes of E2M1 as doubled integers.
inline constexpr std::int8_t doubled_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
/// Added to make B unsigned.
inline constexpr std::int8_t e2m1_bias = 12;

/// A row of packed E2M1 codes as doubled integers; `to` has room for `count` rounded up to two.
inline void unpack_doubled(const std::uint8_t* codes, index_t count, std::int8_t* to) {
  index_t i = 0;
#if defined(__AVX2__)
  const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(doubled_e2m1)));
  for (; i + 32 <= count; i += 32) {  // sixteen bytes to 32 indices, the even element in the low nibble
    const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i / 2)));
    const __m256i both = _mm256_or_si256(wide, _mm256_slli_epi16(wide, 4));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_shuffle_epi8(table, _mm256_and_si256(both, _mm256_set1_epi8(0xF))));
  }
#endif
  for (; i < count; ++i) to[i] = doubled_e2m1[nibble(codes[i / 2], i)];
}

/// Packed operands: for each run (products whose sum is formed in integers, padded to whole quads) quads of bytes, a
/// correction for the bias, and a scale. A: signed bytes, a row after another. B: panels of 2 * word_lanes columns,
/// a quad of each column together.
class block_packing {
 public:
  static constexpr index_t columns = 2 * word_lanes;

  block_packing(const gemm_operand& a, const gemm_operand& b, const gemm_plan& plan, int run)
      : a_(a), b_(b), plan_(plan), run_(run), quads_((run + 3) / 4), runs_(plan.positions() / run) {}

  index_t quads() const { return quads_; }
  index_t runs() const { return runs_; }
  int run() const { return run_; }

  // A row: runs() scales of Scale, runs() corrections, quads.
  template <class Scale>
  index_t row_bytes() const {
    return runs_ * static_cast<index_t>(sizeof(Scale) + 4) + runs_ * quads_ * 4;
  }
  // A panel: runs() × columns scales, runs() × quads() × columns quads.
  template <class Scale>
  index_t panel_bytes() const {
    return runs_ * columns * static_cast<index_t>(sizeof(Scale)) + runs_ * quads_ * columns * 4;
  }

  template <class Scale>
  operand_range pack_row(index_t r, std::byte* to) const {
    operand_range range;
    auto* const scales = reinterpret_cast<Scale*>(to);
    auto* const corrections = reinterpret_cast<std::int32_t*>(scales + runs_);
    auto* const bytes = reinterpret_cast<std::int8_t*>(corrections + runs_);
    pack_elements(a_, r, bytes);
    for (index_t g = 0; g < runs_; ++g) {
      scales[g] = static_cast<Scale>(scale_of(a_, r, g, range));
      std::int32_t sum = 0;
      for (index_t i = 4 * quads_ * g; i < 4 * quads_ * (g + 1); ++i) sum += bytes[i];
      corrections[g] = -e2m1_bias * sum;
    }
    return range;
  }

  /// Scales of B carry the unit of a product of doubled elements, 2^-2.
  template <class Scale>
  operand_range pack_panel(index_t first, index_t valid, std::byte* to) const {
    operand_range range;
    auto* const scales = reinterpret_cast<Scale*>(to);
    auto* const words = reinterpret_cast<std::uint32_t*>(scales + runs_ * columns);
    std::vector<std::int8_t> row(static_cast<std::size_t>(4 * quads_ * runs_));
    for (index_t j = 0; j < columns; ++j) {
      if (j < valid) {
        pack_elements(b_, first + j, row.data());
      } else {
        __builtin_memset(row.data(), 0, row.size());
      }
      for (index_t g = 0; g < runs_; ++g) {
        scales[g * columns + j] = j < valid ? static_cast<Scale>(scale_of(b_, first + j, g, range)) / 4 : Scale{0};
      }
      for (index_t q = 0; q < quads_ * runs_; ++q) {
        std::uint32_t quad;
        __builtin_memcpy(&quad, row.data() + 4 * q, sizeof quad);
        constexpr std::uint32_t bias = e2m1_bias * 0x01010101u;  // byte by byte, without a carry between them
        words[q * columns + j] = ((quad & 0x7F7F7F7Fu) + bias) ^ (quad & 0x80808080u);
      }
    }
    return range;
  }

 private:
  float scale_of(const gemm_operand& x, index_t r, index_t g, operand_range& range) const {
    const index_t k = plan_.k_of(g * run_);
    if (x.block == 0) {
      range.include(0);
      return 1.0f;
    }
    const unpacked u = unpack(x.scale, operand_scale(x, r, k));
    range.special = range.special || u.kind == value_class::nan;
    if (u.kind == value_class::finite) {
      range.include(u.exponent < x.scale.min_exponent() ? x.scale.min_exponent() : u.exponent);
    }
    return scale_value(x.scale, operand_scale(x, r, k));
  }
  /// Doubled elements of a row, run after run, each filled up to whole quads.
  void pack_elements(const gemm_operand& x, index_t r, std::int8_t* to) const {
    static thread_local std::vector<std::int8_t> memory;
    memory.resize(static_cast<std::size_t>(x.k + 1 + plan_.positions()));
    std::int8_t* const row = memory.data();
    unpack_doubled(x.codes + r * x.code_stride, x.k, row);
    if (4 * quads_ == run_) return arrange(plan_, row, x.k, to);
    std::int8_t* const arranged = row + x.k + 1;
    arrange(plan_, row, x.k, arranged);
    for (index_t i = 0; i < 4 * quads_ * runs_; ++i) {
      to[i] = i % (4 * quads_) < run_ ? arranged[i / (4 * quads_) * run_ + i % (4 * quads_)] : std::int8_t{0};
    }
  }

  const gemm_operand &a_, &b_;
  const gemm_plan& plan_;
  int run_;
  index_t quads_, runs_;
};

/// Integer sums of `quads` quads for Rows × 2 registers, the bias taken out.
template <int Rows>
inline void block_sums(index_t quads, const std::int8_t* const (&a)[Rows], const std::uint8_t* panel,
                       const std::int32_t (&corrections)[Rows], ilanes (&sums)[Rows][2]) {
  for (int i = 0; i < Rows; ++i) sums[i][0] = sums[i][1] = all_lanes(corrections[i]);
  for (index_t first = 0; first < quads; first += max_byte_quads) {
    const index_t last = first + max_byte_quads < quads ? first + max_byte_quads : quads;
    byte_sums s[Rows][2];
    for (int i = 0; i < Rows; ++i) {
      clear(s[i][0]);
      clear(s[i][1]);
    }
    for (index_t q = first; q < last; ++q) {
      const ilanes b0 = load_lanes<ilanes>(panel + 2 * q * register_bytes);
      const ilanes b1 = load_lanes<ilanes>(panel + (2 * q + 1) * register_bytes);
      for (int i = 0; i < Rows; ++i) {
        std::int32_t quad;
        __builtin_memcpy(&quad, a[i] + 4 * q, sizeof quad);
        const ilanes x = all_lanes(quad);
        add_products(s[i][0], b0, x);
        add_products(s[i][1], b1, x);
      }
    }
    for (int i = 0; i < Rows; ++i) {
      for (int j = 0; j < 2; ++j) sums[i][j] += words(s[i][j]);
    }
  }
}

/// Runs f.template operator()<R>(i) over `count` rows, Rows at a time and the rest one by one.
template <int Rows, class Function>
inline void for_row_tiles(index_t count, const Function& f) {
  index_t i = 0;
  for (; i + Rows <= count; i += Rows) f.template operator()<Rows>(i);
  for (; i < count; ++i) f.template operator()<1>(i);
}

/// `exact` models of E2M1 with E8M0 scales, or without.
class exact_blocks {
 public:
  static constexpr index_t columns = block_packing::columns;
  static constexpr int rows_at_once = word_lanes == 16 ? 6 : 2;

  static bool applies(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
    const mma_model& m = o.model;
    const auto takes = [](const gemm_operand& x) {
      return x.element == formats::e2m1 && (x.block == 0 || x.scale == formats::e8m0);
    };
    return m.sum == mma_sum::exact && m.group > 1 && m.result == mma_result::fp32_nearest &&
           m.operand == format{} && takes(a) && takes(b);
  }
  exact_blocks(const gemm_operand& a, const gemm_operand& b, const gemm_options&, const gemm_plan& plan)
      : pack_(a, b, plan, plan.group),
        shared_(runs_share_scales(plan, plan.group, a.block) && runs_share_scales(plan, plan.group, b.block)) {}

  index_t row_bytes() const { return pack_.row_bytes<float>(); }
  index_t panel_bytes() const { return pack_.panel_bytes<float>(); }
  operand_range pack_row(index_t r, std::byte* to) const { return pack_.pack_row<float>(r, to); }
  operand_range pack_panel(index_t first, index_t valid, std::byte* to) const {
    return pack_.pack_panel<float>(first, valid, to);
  }

  /// The product of two scales and 1/4 must be a number of FP32; then so is a block's sum before the addition, sums that
  /// are not zero do not round to it, and a NaN scale does by itself what it should.
  bool admits(const operand_range& row, const operand_range& panel) const {
    return shared_ && (row.empty() || panel.empty() ||
                       (row.least + panel.least - 2 >= -149 && row.most + panel.most - 2 <= 127));
  }
  /// -0 survives a group of zeros of its sign in the model, but not here.
  static bool admits_start(const operand_range&, const operand_range&, float c) {
    return fp32_bits(c) != fp32_sign_mask;
  }

  void run(const gemm_span& span, index_t, index_t, const operand_range*, const std::byte* rows, index_t count,
           const operand_range&, const std::byte* panel, float* acc) const {
    for_row_tiles<rows_at_once>(count, [&]<int Rows>(index_t i) {
      tile<Rows>(span, rows + i * row_bytes(), panel, acc + i * columns);
    });
  }

 private:
  template <int Rows>
  void tile(const gemm_span& span, const std::byte* rows, const std::byte* panel, float* acc) const {
    constexpr int w = word_lanes;
    const index_t runs = pack_.runs(), quads = pack_.quads();
    fvec sum[Rows][2];
    for (int i = 0; i < Rows; ++i) {
      for (int j = 0; j < 2; ++j) sum[i][j] = fvec::load(acc + i * columns + j * w);
    }
    for (index_t g = span.first; g < span.last; ++g) {
      const std::int8_t* a[Rows];
      std::int32_t corrections[Rows];
      float scales[Rows];
      for (int i = 0; i < Rows; ++i) {
        const std::byte* row = rows + i * row_bytes();
        __builtin_memcpy(&scales[i], row + 4 * g, 4);
        __builtin_memcpy(&corrections[i], row + 4 * (runs + g), 4);
        a[i] = reinterpret_cast<const std::int8_t*>(row + 8 * runs) + 4 * quads * g;
      }
      const auto* const b_scales = reinterpret_cast<const float*>(panel) + g * columns;
      const auto* const b = reinterpret_cast<const std::uint8_t*>(panel) + 4 * runs * columns + 4 * quads * columns * g;
      ilanes sums[Rows][2];
      block_sums<Rows>(quads, a, b, corrections, sums);
      const flanes s[2] = {load_lanes<flanes>(b_scales), load_lanes<flanes>(b_scales + w)};
      for (int i = 0; i < Rows; ++i) {
        for (int j = 0; j < 2; ++j) {
          const flanes scale = s[j] * scales[i];
          sum[i][j] = fma(__builtin_bit_cast(fvec, __builtin_convertvector(sums[i][j], flanes)),
                          __builtin_bit_cast(fvec, scale), sum[i][j]);
        }
      }
    }
    for (int i = 0; i < Rows; ++i) {
      for (int j = 0; j < 2; ++j) sum[i][j].store(acc + i * columns + j * w);
    }
  }

  block_packing pack_;
  bool shared_;
};

}  // namespace rotoscale::detail
