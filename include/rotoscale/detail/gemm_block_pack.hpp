// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Packs operands of the E2M1 kernels: doubled elements as bytes, four along K together, with the scale of each run.
#pragma once

#include <algorithm>
#include <cstddef>

#include "rotoscale/detail/gemm_decode.hpp"
#include "rotoscale/detail/gemm_plan.hpp"
#include "rotoscale/detail/simd.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// Values of E2M1 codes, doubled, times 2^row.
inline constexpr std::int8_t doubled_e2m1[4][16] = {
    {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
    {0, 2, 4, 6, 8, 12, 16, 24, 0, -2, -4, -6, -8, -12, -16, -24},
    {0, 4, 8, 12, 16, 24, 32, 48, 0, -4, -8, -12, -16, -24, -32, -48},
    {0, 8, 16, 24, 32, 48, 64, 96, 0, -8, -16, -24, -32, -48, -64, -96}};
/// Added to B's elements to make them unsigned.
inline constexpr std::int8_t e2m1_bias = 12;

/// Unpacks a row of E2M1 codes to doubled integers times 2^shift, shift <= 3.
inline void unpack_doubled(const std::uint8_t* codes, index_t count, std::int8_t* to, int shift = 0) {
  index_t i = 0;
#if defined(__AVX2__)
  const auto* const values = reinterpret_cast<const __m128i*>(doubled_e2m1[shift]);
  const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(values));
  for (; i + 32 <= count; i += 32) {  // sixteen bytes to 32 indices; even elements are in the low nibble
    const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i / 2)));
    const __m256i both = _mm256_or_si256(wide, _mm256_slli_epi16(wide, 4));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_shuffle_epi8(table, _mm256_and_si256(both, _mm256_set1_epi8(0xF))));
  }
#endif
  for (; i < count; ++i) to[i] = doubled_e2m1[shift][nibble(codes[i / 2], i)];
}
/// The same for blocks of 32 elements, block g times 2^(scales[g] - least).
inline void unpack_shifted_blocks(const std::uint8_t* codes, const std::uint8_t* scales, int least, index_t count,
                                  std::int8_t* to) {
  for (index_t g = 0; g < count; ++g, codes += 16, to += 32) unpack_doubled(codes, 32, to, scales[g] - least);
}

/// Sum of `count` integers.
inline std::int32_t sum_of_bytes(const std::int8_t* x, index_t count) {
  std::int32_t sum = 0;
  index_t i = 0;
#if defined(__AVX2__)
  const __m256i flip = _mm256_set1_epi8(-128);
  for (; i + 32 <= count; i += 32) {  // of unsigned bytes x + 128
    const __m256i bytes = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)), flip);
    const __m256i sums = _mm256_sad_epu8(bytes, _mm256_setzero_si256());
    const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    sum += _mm_cvtsi128_si32(half) + _mm_extract_epi32(half, 2) - 32 * 128;
  }
#endif
  for (; i < count; ++i) sum += x[i];
  return sum;
}

/// Blocks of a row or column whose scales' exponents differ by at most this may share the least scale: doubled elements
/// times 2^3 are int8.
inline constexpr int most_folded = 3;
/// The bias for such elements.
inline constexpr std::int8_t folded_bias = 12 << most_folded;

/// Packed operands. A run is the products whose sum is formed in integers, padded to whole quads of four bytes. Each
/// run has its quads, a correction for the bias and a scale.
/// - A: signed bytes, row after row
/// - B: panels of Columns columns; a quad of each column in turn, with `bias` added to the bytes
/// The elements of A's rows begin at whole cache lines and have a whole number of them.
/// `folds`: runs of 32 of a row or column get one scale where their exponents allow it (operand_range::folded).
template <index_t Columns>
class block_packing {
 public:
  static constexpr index_t columns = Columns;

  block_packing(const gemm_operand& a, const gemm_operand& b, const gemm_plan& plan, int run,
                std::int8_t bias = e2m1_bias, bool folds = false)
      : a_(a),
        b_(b),
        plan_(plan),
        run_(run),
        bias_(bias),
        folds_(folds),
        quads_((run + 3) / 4),
        runs_(plan.positions() / run) {}

  index_t quads() const { return quads_; }
  index_t runs() const { return runs_; }
  int run() const { return run_; }

  // A row: runs() scales of type Scale, runs() corrections, then quads.
  template <class Scale>
  index_t elements_at() const {
    return round_up(runs_ * static_cast<index_t>(sizeof(Scale) + 4), line);
  }
  template <class Scale>
  index_t row_bytes() const {
    return elements_at<Scale>() + row_room();
  }
  // A panel: runs() × columns scales, then runs() × quads() × columns quads, then zeros as in rows.
  template <class Scale>
  index_t panel_bytes() const {
    return runs_ * columns * static_cast<index_t>(sizeof(Scale)) + row_room() * columns;
  }

  /// Scratch bytes of pack_row and pack_panel.
  std::size_t pack_bytes() const {
    return scratch_array<std::int8_t>::bytes(lane_count * row_room()) + scratch_array<double>::bytes(runs_) +
           scratch_array<std::int8_t>::bytes(elements_room(a_.k));
  }

  template <class Scale>
  operand_range pack_row(index_t r, std::byte* to) const {
    operand_range range;
    auto* const scales = reinterpret_cast<Scale*>(to);
    auto* const corrections = reinterpret_cast<std::int32_t*>(scales + runs_);
    auto* const bytes = reinterpret_cast<std::int8_t*>(to + elements_at<Scale>());
    pack_runs(a_, r, bytes, scales, range);
    std::fill(bytes + 4 * quads_ * runs_, bytes + row_room(), std::int8_t{0});
    for (index_t g = 0; g < runs_; ++g) {
      corrections[g] = bias_ == 0 ? 0 : -bias_ * sum_of_bytes(bytes + 4 * quads_ * g, 4 * quads_);
    }
    return range;
  }

  /// Scales of B include 2^-2, the unit of a product of doubled elements.
  template <class Scale>
  operand_range pack_panel(index_t first, index_t valid, std::byte* to) const {
    operand_range range;
    range.folded = 0;
    const index_t words = quads_ * runs_;
    auto* const scales = reinterpret_cast<Scale*>(to);
    std::byte* const quads = to + runs_ * columns * static_cast<index_t>(sizeof(Scale));
    const scratch_array<std::int8_t> rows(lane_count * row_room());
    const scratch_array<Scale> own(runs_);
    for (index_t j0 = 0; j0 < columns; j0 += lane_count) {
      for (index_t j = j0; j < j0 + lane_count; ++j) {
        std::int8_t* const row = rows.data() + (j - j0) * row_room();
        if (j >= valid) {
          std::fill_n(row, 4 * words, std::int8_t{0});
          for (index_t g = 0; g < runs_; ++g) scales[g * columns + j] = Scale{0};
          continue;
        }
        operand_range column;
        pack_runs(b_, first + j, row, own.data(), column);
        range.include(column);
        for (index_t g = 0; g < runs_; ++g) scales[g * columns + j] = own[g] / 4;
      }
      for (index_t q = 0; q < words; q += lane_count)
        pack_quads(rows.data() + 4 * q, words - q, quads + 4 * (q * columns + j0));
    }
    std::fill(quads + 4 * words * columns, quads + row_room() * columns, std::byte{0});
    return range;
  }

 private:
  static constexpr index_t line = 64;

  /// Bytes of a row's elements, or of an unpacked column of a panel.
  index_t row_room() const { return round_up(4 * quads_ * runs_, line); }
  /// Packs the elements and scales of a row.
  template <class Scale>
  void pack_runs(const gemm_operand& x, index_t r, std::int8_t* elements, Scale* scales, operand_range& range) const {
    if (pack_near_runs(x, r, elements, scales, range)) return;
    if (has_plain_runs(x) && runs_ * run_ == x.k) {
      pack_plain_scales(x, r, scales, range);
      const bool folded = folds(scales, range);
      const std::uint8_t *codes = x.codes + r * x.code_stride, *stored = x.scales + r / x.block_rows * x.scale_stride;
      for (index_t g = 0; g < runs_; ++g, codes += run_ / 2) {
        const int above = scale_exponent(stored[g]) - range.least;  // of a run of zeros it may be any number
        unpack_doubled(codes, run_, elements + run_ * g, folded && above > 0 && above <= most_folded ? above : 0);
      }
      if (folded && !range.empty()) std::fill(scales, scales + runs_, static_cast<Scale>(pow2_fp32(range.least)));
      return;
    }
    pack_elements(x, r, elements);
    pack_scales(x, r, elements, scales, range);
    if (x.block == 0) folds(scales, range);  // all scales are 1
  }
  /// Packs a row of whole runs whose scales are near each other and not extreme. Runs of zeros may count.
  template <class Scale>
  bool pack_near_runs(const gemm_operand& x, index_t r, std::int8_t* elements, Scale* scales,
                      operand_range& range) const {
    if (runs_ == 0 || !has_plain_runs(x) || runs_ * run_ != x.k) return false;
    const std::uint8_t* const codes = x.codes + r * x.code_stride;
    const std::uint8_t* const stored = x.scales + r / x.block_rows * x.scale_stride;
    std::uint8_t least = 255, most = 0;
    for (index_t g = 0; g < runs_; ++g) {
      least = stored[g] < least ? stored[g] : least;
      most = stored[g] > most ? stored[g] : most;
    }
    if (least < 97 || most > 157 || most - least > most_folded) return false;
    const auto scale = [](std::uint8_t code) { return static_cast<Scale>(fp32_from_bits(std::uint32_t{code} << 23)); };
    range.include(least - 127);
    range.include(most - 127);
    if (folds_) {
      range.folded = most - least;
      unpack_shifted_blocks(codes, stored, least, runs_, elements);
      std::fill(scales, scales + runs_, scale(least));
    } else {
      unpack_doubled(codes, x.k, elements);
      for (index_t g = 0; g < runs_; ++g) scales[g] = scale(stored[g]);
    }
    return true;
  }
  /// True if all runs of a row can have the least scale. Sets range.folded then.
  template <class Scale>
  bool folds(const Scale* scales, operand_range& range) const {
    bool nan = false;
    for (index_t g = 0; g < runs_; ++g) nan |= scales[g] != scales[g];
    if (!folds_ || nan || (!range.empty() && range.most - range.least > most_folded)) return false;
    range.folded = range.empty() ? 0 : range.most - range.least;
    return true;
  }
  /// Transposes up to lane_count quads of lane_count rows, adds the bias to their bytes and stores them by quads.
  void pack_quads(const std::int8_t* rows, index_t count, std::byte* to) const {
    lanes_u32 t[lane_count];
    for (int l = 0; l < lane_count; ++l) t[l] = load_lanes<lanes_u32>(rows + l * row_room());
    transpose_lanes(t);
    const std::uint32_t bias = static_cast<std::uint32_t>(bias_) * 0x01010101u;
    for (int q = 0; q < lane_count && q < count; ++q) {  // to each byte; there is no carry
      store_lanes(to + 4 * q * columns, ((t[q] & 0x7F7F7F7Fu) + bias) ^ (t[q] & 0x80808080u));
    }
  }
  /// Room for a row in its own order (one extra element if k is odd), then in the plan's order.
  index_t elements_room(index_t k) const { return k + 1 + plan_.positions(); }
  /// Does each run have one E8M0 scale and whole bytes of codes?
  bool has_plain_runs(const gemm_operand& x) const {
    return plan_.ascending() && x.block == run_ && x.scale == formats::e8m0 && 4 * quads_ == run_ && run_ % 16 == 0;
  }
  /// Scales of a row's runs, whose packed elements are `elements`.
  template <class Scale>
  void pack_scales(const gemm_operand& x, index_t r, const std::int8_t* elements, Scale* to,
                   operand_range& range) const {
    index_t g = 0;
    if (has_plain_runs(x)) g = pack_plain_scales(x, r, to, range);
    for (; g < runs_; ++g) to[g] = static_cast<Scale>(scale_of(x, r, g, elements, range));
  }
  /// The same for whole plain runs, whose number it returns.
  template <class Scale>
  index_t pack_plain_scales(const gemm_operand& x, index_t r, Scale* to, operand_range& range) const {
    const std::uint8_t* const codes = x.codes + r * x.code_stride;
    const std::uint8_t* const stored = x.scales + r / x.block_rows * x.scale_stride;
    const index_t count = x.k / run_;
    int least = range.least, most = range.most;
    index_t g = 0;
    for (; g < count; ++g) {
      const bool nan = stored[g] == nan_scale_byte, counts = !nan && any_code(codes + run_ / 2 * g);
      const int exponent = scale_exponent(stored[g]);
      least = counts && exponent < least ? exponent : least;
      most = counts && exponent > most ? exponent : most;
      const std::uint32_t bits = stored[g] == 0 ? fp32_bits(0x1p-127f) : std::uint32_t{stored[g]} << 23;
      to[g] = static_cast<Scale>(fp32_from_bits(nan ? fp32_nan_bits : counts ? bits : fp32_bits(1.0f)));
    }
    range.least = least;
    range.most = most;
    return g;
  }
  /// Is a code of the run not zero?
  bool any_code(const std::uint8_t* codes) const {
    std::uint64_t any = 0;
    for (int i = 0; i < run_ / 2; i += 8) {
      std::uint64_t sixteen;
      __builtin_memcpy(&sixteen, codes + i, sizeof sixteen);
      any |= sixteen;
    }
    return (any & 0x7777777777777777u) != 0;
  }
  /// Scale of a run. A run of zeros has scale 1, unless its scale is NaN.
  float scale_of(const gemm_operand& x, index_t r, index_t g, const std::int8_t* elements, operand_range& range) const {
    const index_t k = plan_.k_of(g * run_);
    if (k < 0) return 1.0f;
    bool any = false;
    for (index_t i = 4 * quads_ * g; i < 4 * quads_ * (g + 1); ++i) any = any || elements[i] != 0;
    const unpacked u = x.block == 0 ? unpacked{value_class::finite} : unpack(x.scale, operand_scale(x, r, k));
    if (u.kind == value_class::finite) {
      if (!any) return 1.0f;
      range.include(x.block == 0 ? 0 : std::max(u.exponent, x.scale.min_exponent()));
    }
    return x.block == 0 ? 1.0f : scale_value(x.scale, operand_scale(x, r, k));
  }
  /// Packs a row's doubled elements run by run, each padded to whole quads.
  void pack_elements(const gemm_operand& x, index_t r, std::int8_t* to) const {
    if (plan_.ascending() && 4 * quads_ == run_) {
      unpack_doubled(x.codes + r * x.code_stride, x.k, to);
      return void(std::fill(to + x.k, to + 4 * quads_ * runs_, std::int8_t{0}));
    }
    const scratch_array<std::int8_t> memory(elements_room(x.k));
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
  std::int8_t bias_;
  bool folds_;
  index_t quads_, runs_;
};

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
