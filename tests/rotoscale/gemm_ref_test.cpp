// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The reference GEMM against exact arithmetic (tests/oracle/exact.hpp): both accumulation models, factors, accumulation
// into C, output format, NaN.
#include "rotoscale/gemm_ref.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "oracle/block_values.hpp"
#include "oracle/exact.hpp"
#include "oracle/format_oracle.hpp"

namespace gemm_ref_test {

using namespace rotoscale;

/// Random MXFP4 codes with scales in [127 - range, 127 + range].
struct mx_operand {
  index_t rows, k;
  std::vector<std::uint8_t> codes, scales;
  mx_operand(index_t r, index_t depth, std::uint64_t seed, int range) : rows(r), k(depth) {
    const random_stream random{seed, 5};
    for (index_t i = 0; i < r * depth / 2; ++i) {
      codes.push_back(static_cast<std::uint8_t>(random.word(static_cast<std::uint64_t>(i))));
    }
    for (index_t i = 0; i < r * (depth / 32); ++i) {
      const auto word = random.word((std::uint64_t{1} << 40) + static_cast<std::uint64_t>(i));
      const int offset = range == 0 ? 0 : static_cast<int>(word % static_cast<std::uint32_t>(2 * range + 1)) - range;
      scales.push_back(static_cast<std::uint8_t>(127 + offset));
    }
  }
  gemm_operand view() const {
    return {formats::e2m1, rows, k, codes.data(), k / 2, 32, scales.data(), k / 32, nullptr};
  }
  /// Twice the value of element (r, c) without its scale, which is an integer.
  int twice(index_t r, index_t c) const {
    constexpr int magnitudes[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    const std::uint8_t byte = codes[static_cast<std::size_t>((r * k + c) / 2)];
    const int code = c % 2 == 0 ? byte & 0xF : byte >> 4;
    return code >= 8 ? -magnitudes[code - 8] : magnitudes[code];
  }
  int exponent(index_t r, index_t block) const { return scales[static_cast<std::size_t>(r * (k / 32) + block)] - 127; }
};

/// fp32_blockwise as its contract states it: integer block sums in quarters, one rounding per block.
float blockwise(const mx_operand& a, index_t i, const mx_operand& b, index_t j) {
  float acc = 0.0f;
  for (index_t block = 0; block < a.k / 32; ++block) {
    std::int64_t quarters = 0;
    for (index_t c = 32 * block; c < 32 * block + 32; ++c) quarters += a.twice(i, c) * b.twice(j, c);
    acc = oracle::exact_add({quarters, a.exponent(i, block) + b.exponent(j, block) - 2}, quarters < 0, acc);
    if (std::isinf(acc)) return acc;  // exact_add takes finite numbers; Inf changes only by Inf - Inf
  }
  return acc;
}

std::vector<float> run_ref(const gemm_operand& a, const gemm_operand& b, const gemm_options& o,
                           std::vector<float> c = {}) {
  c.resize(static_cast<std::size_t>(a.rows * b.rows), -1.0f);
  gemm_ref(a, b, o, row_major(c.data(), a.rows, b.rows));
  return c;
}

TEST_CASE("the oracle's exact_fma is the C library's fmaf") {
  const random_stream random{4, 4};
  for (std::uint64_t i = 0; i < 300000; ++i) {
    float v[3];
    for (std::uint64_t j = 0; j < 3; ++j) {
      const std::uint32_t word = random.word(3 * i + j);
      // Whole range, close together, or few bits (for ties and cancellation).
      std::uint32_t u = word;
      if (i % 3 == 1) u = (word & 0x807FFFFFu) | (120u + (word >> 23) % 14) << 23;
      if (i % 3 == 2) u = (word & 0x807C0001u) | (115u + (word >> 23) % 24) << 23;
      v[j] = fp32_from_bits(u);
    }
    if (!std::isfinite(v[0]) || !std::isfinite(v[1]) || !std::isfinite(v[2])) continue;
    REQUIRE(fp32_bits(oracle::exact_fma(v[0], v[1], v[2])) == fp32_bits(__builtin_fmaf(v[0], v[1], v[2])));
  }
}

TEST_CASE("fp32_blockwise: one rounding a block, from ordinary to all scales") {
  for (const int range : {0, 3, 12, 30, 70, 127}) {
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
      CAPTURE(range);
      CAPTURE(seed);
      const mx_operand a(5, 320, 2 * seed, range), b(7, 320, 2 * seed + 1, range);
      const auto c = run_ref(a.view(), b.view(), {fp32_blockwise});
      for (index_t i = 0; i < 5; ++i) {
        for (index_t j = 0; j < 7; ++j) {
          const float want = blockwise(a, i, b, j);
          const float got = c[static_cast<std::size_t>(7 * i + j)];
          if (std::isinf(want)) {
            REQUIRE((std::isinf(got) || std::isnan(got)));
          } else {
            REQUIRE(fp32_bits(got) == fp32_bits(want));
          }
        }
      }
    }
  }
}

TEST_CASE("fp32_blockwise: ties of the accumulator go to even, and sums of scales beyond FP32 are no matter") {
  // The accumulator is 2^24 after the first block. The second block adds an odd number of halves of its last place (2).
  mx_operand a(1, 64, 1, 0), b(1, 64, 2, 0);
  std::fill(a.codes.begin(), a.codes.end(), std::uint8_t{0});
  std::fill(b.codes.begin(), b.codes.end(), std::uint8_t{0});
  a.codes[0] = b.codes[0] = 0x02;  // 1
  a.scales[0] = 127 + 24;
  b.codes[16] = 0x02;
  for (const auto& [code, want] : {std::pair<int, float>{0x2, 0x1p24f}, {0x5, 0x1.000004p24f}, {0x3, 0x1.000002p24f}}) {
    a.codes[16] = static_cast<std::uint8_t>(code);  // 1 is a tie (down), 3 a tie (up), 1.5 above the tie
    CHECK(run_ref(a.view(), b.view(), {fp32_blockwise})[0] == want);
  }
  // FP32 cannot hold 6 * 2^127. Times 1 * 2^-127 it is 6.
  a.codes[0] = 0x07;
  a.codes[16] = 0;
  a.scales[0] = 254;
  b.scales[0] = 0;
  CHECK(run_ref(a.view(), b.view(), {fp32_blockwise})[0] == 6.0f);
  // 1 * 2^-127 * 2^-22 is FP32's least number; with 2^-23 a tie with zero, whose even neighbour is 0.
  a.codes[0] = 0x02;
  a.scales[0] = 0;
  b.scales[0] = 127 - 22;
  CHECK(run_ref(a.view(), b.view(), {fp32_blockwise})[0] == 0x1p-149f);
  b.scales[0] = 127 - 23;
  CHECK(run_ref(a.view(), b.view(), {fp32_blockwise})[0] == 0.0f);
}

TEST_CASE("fp32_fma_chain: one rounding a product, every operand format") {
  struct kind {
    format element;
    index_t bits;  // bits between codes; rows start on a byte
  };
  for (const kind& t :
       {kind{formats::fp32, 32}, kind{formats::bf16, 16}, kind{formats::fp16, 16}, kind{formats::e4m3, 8},
        kind{formats::e5m2, 8}, kind{formats::int8, 8}, kind{formats::e2m3, 6}, kind{formats::e2m1, 4}}) {
    const index_t m = 4, n = 3, k = 37;
    const index_t stride = (k * t.bits + 7) / 8;
    const random_stream random{8, static_cast<std::uint64_t>(t.element.bits())};
    std::vector<std::uint8_t> codes[2];
    std::vector<float> values[2];
    for (int side = 0; side < 2; ++side) {
      codes[side].resize(static_cast<std::size_t>(stride * (side == 0 ? m : n)));
      for (index_t i = 0; i < (side == 0 ? m : n) * k; ++i) {
        const std::uint32_t word = random.word(static_cast<std::uint64_t>(2 * i + side));
        const float x = fp32_from_bits((word & 0x807FFFFFu) | (122u + (word >> 23) % 10) << 23);
        const std::uint64_t code = encode(t.element, x);
        for (index_t bit = 0; bit < t.bits; ++bit) {
          const index_t at = i % k * t.bits + bit;
          codes[side][static_cast<std::size_t>(i / k * stride + at / 8)] |=
              static_cast<std::uint8_t>((code >> bit & 1) << (at % 8));
        }
        values[side].push_back(decode(t.element, code));
      }
    }
    const gemm_operand a{t.element, m, k, codes[0].data(), stride, 0, nullptr, 0, nullptr};
    const gemm_operand b{t.element, n, k, codes[1].data(), stride, 0, nullptr, 0, nullptr};
    const auto c = run_ref(a, b, {});
    for (index_t i = 0; i < m; ++i) {
      for (index_t j = 0; j < n; ++j) {
        float acc = 0.0f;
        for (index_t p = 0; p < k; ++p) {
          acc = oracle::exact_fma(values[0][static_cast<std::size_t>(i * k + p)],
                                  values[1][static_cast<std::size_t>(j * k + p)], acc);
        }
        REQUIRE(fp32_bits(c[static_cast<std::size_t>(i * n + j)]) == fp32_bits(acc));
      }
    }
  }
}

TEST_CASE("the end: factors, accumulation with one rounding, output format, NaN") {
  const float x[2] = {3.0f, 0x1p-20f}, y[2] = {1.0f, 1.0f};
  const auto a = make_operand(row_major<const float>(x, 1, 2)), b = make_operand(row_major<const float>(y, 1, 2));
  const float acc = 3.0f + 0x1p-20f, fa = 0.1f, fb = 7.0f;
  auto scaled_a = a, scaled_b = b;
  scaled_a.factor = &fa;
  scaled_b.factor = &fb;
  CHECK(run_ref(a, b, {})[0] == acc);
  CHECK(fp32_bits(run_ref(scaled_a, b, {})[0]) == fp32_bits(oracle::exact_fma(acc, fa, -0.0f)));
  CHECK(fp32_bits(run_ref(scaled_a, scaled_b, {})[0]) ==
        fp32_bits(oracle::exact_fma(acc, oracle::exact_fma(fa, fb, -0.0f), -0.0f)));
  CHECK(fp32_bits(run_ref(scaled_a, b, {fp32_fma_chain, formats::fp32, true}, {5.0f})[0]) ==
        fp32_bits(oracle::exact_fma(acc, fa, 5.0f)));
  CHECK(run_ref(a, b, {fp32_fma_chain, formats::bf16, false})[0] == 3.0f);
  // 1 + 2^-8 is a tie of BF16, to even; Inf from overflow; C is not read unless accumulating.
  const float tie[2] = {1.0f, 0x1p-8f}, huge[2] = {0x1.FFFFFEp127f, 0.0f};
  CHECK(run_ref(make_operand(row_major<const float>(tie, 1, 2)), b, {fp32_fma_chain, formats::bf16, false})[0] == 1.0f);
  CHECK(std::isinf(
      run_ref(make_operand(row_major<const float>(huge, 1, 2)), b, {fp32_fma_chain, formats::bf16, false})[0]));
  const float nan = fp32_from_bits(0xFFC01234u);
  CHECK(run_ref(a, b, {}, {nan})[0] == acc);
  CHECK(fp32_bits(run_ref(a, b, {fp32_fma_chain, formats::fp32, true}, {nan})[0]) == fp32_nan_bits);
  const float bad[2] = {nan, 1.0f};
  for (const format& output : {formats::fp32, formats::bf16}) {
    CHECK(fp32_bits(run_ref(make_operand(row_major<const float>(bad, 1, 2)), b, {fp32_fma_chain, output, false})[0]) ==
          fp32_nan_bits);
  }
}

TEST_CASE("exact: one rounding of the whole sum, C among it") {
  for (const int range : {0, 4}) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      const mx_operand a(3, 640, 2 * seed, range), b(3, 640, 2 * seed + 1, range);
      std::vector<float> c;
      for (std::uint64_t i = 0; i < 9; ++i) {
        const std::uint32_t word = random_stream{seed, 9}.word(i);
        c.push_back(fp32_from_bits((word & 0x807FFFFFu) | (110u + (word >> 23) % 30) << 23));
      }
      gemm_options o{exact};
      o.start_from_c = true;
      const auto got = run_ref(a.view(), b.view(), o, c);
      for (index_t i = 0; i < 3; ++i) {
        for (index_t j = 0; j < 3; ++j) {
          std::int64_t sum = 0;  // in quarters of the product of the least two scales
          for (index_t k = 0; k < 640; ++k) {
            const int shift = a.exponent(i, k / 32) + b.exponent(j, k / 32) + 2 * range;
            sum += static_cast<std::int64_t>(a.twice(i, k)) * b.twice(j, k) * (std::int64_t{1} << shift);
          }
          const auto e = static_cast<std::size_t>(3 * i + j);
          REQUIRE(fp32_bits(got[e]) == fp32_bits(oracle::exact_add({sum, -2 - 2 * range}, sum < 0, c[e])));
        }
      }
    }
  }
  const float inf = std::numeric_limits<float>::infinity(), one[3] = {1, 1, 1};
  const float rows[5][3] = {
      {0x1p127f, 1, -0x1p127f}, {0x1p127f, 0x1p127f, 0}, {inf, 1, -inf}, {-inf, 1, 1}, {-0.0f, -0.0f, -0.0f}};
  const float want[5] = {1, inf, 0, -inf, 0};
  for (int i = 0; i < 5; ++i) {
    const float got = run_ref(make_operand(row_major<const float>(rows[i], 1, 3)),
                              make_operand(row_major<const float>(one, 1, 3)), {exact})[0];
    if (i == 2) {
      CHECK(fp32_bits(got) == fp32_nan_bits);
    } else {
      CHECK(fp32_bits(got) == fp32_bits(want[i]));
    }
  }
}

TEST_CASE("parts of K: which k they take, in which order and format they are added") {
  constexpr int k = 96;
  std::vector<std::uint32_t> seen;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    std::vector<float> x, y;
    for (std::uint64_t i = 0; i < k; ++i) {
      for (auto* v : {&x, &y}) {
        const std::uint32_t word = random_stream{seed, v == &x}.word(i);
        v->push_back(fp32_from_bits((word & 0x807FFFFFu) | (123u + (word >> 23) % 8) << 23));
      }
    }
    const auto a = make_operand(row_major<const float>(x.data(), 1, k)),
               b = make_operand(row_major<const float>(y.data(), 1, k));
    const auto chain = [&](const std::vector<int>& ks) {
      float acc = 0;
      for (const int i : ks)
        acc = oracle::exact_fma(x[static_cast<std::size_t>(i)], y[static_cast<std::size_t>(i)], acc);
      return acc;
    };
    const auto stored = [](format f, float v) {
      return f == formats::fp32 ? v : decode(f, encode(f, v, rounding::nearest_even, overflow::to_inf));
    };
    for (const int parts : {2, 3, 4, 5, 6, 7, 8, 11}) {
      for (const int run : {0, 1, 4}) {
        if (run != 0 && k % (parts * run) != 0) continue;
        for (const format& sum : {formats::fp32, formats::fp16, formats::bf16}) {
          for (const auto order : {split_order::ascending, split_order::descending, split_order::pairwise}) {
            const int length = (k + parts - 1) / parts;
            std::vector<float> level;
            for (int p = 0; p < parts; ++p) {
              std::vector<int> ks;
              for (int i = 0; i < k; ++i) {
                if ((run == 0 ? i / length : i / run % parts) == p) ks.push_back(i);
              }
              if (!ks.empty()) level.push_back(stored(sum, chain(ks)));
            }
            if (order == split_order::descending) std::reverse(level.begin(), level.end());
            while (level.size() > 1) {
              std::vector<float> next;
              const bool pairs = order == split_order::pairwise;
              for (std::size_t i = 0; i < level.size(); i += pairs ? 2 : 1) {
                const bool add = i + 1 < level.size() && (pairs || i == 0);
                next.push_back(add ? stored(sum, level[i] + level[i + 1]) : level[i]);
                if (add && !pairs) ++i;
              }
              level = next;
            }
            gemm_options o;
            o.split_k = parts;
            o.split_run = run;
            o.split_sum = sum;
            o.order = order;
            CAPTURE(parts);
            CAPTURE(run);
            CAPTURE(static_cast<int>(order));
            CHECK(fp32_bits(run_ref(a, b, o)[0]) == fp32_bits(level[0]));
            seen.push_back(fp32_bits(level[0]));
          }
        }
      }
    }
  }
  std::sort(seen.begin(), seen.end());
  CHECK(std::unique(seen.begin(), seen.end()) - seen.begin() > 100);
}

TEST_CASE("the output's rounding") {
  const float x[1] = {0x1.018p0f}, one[1] = {1}, minus[1] = {-1};  // 1 + 1.5 * 2^-8, which BF16 rounds to 1 + 2^-7
  const auto a = make_operand(row_major<const float>(x, 1, 1));
  for (const auto& [r, up, down] :
       {std::tuple{rounding::nearest_even, 0x1.02p0f, -0x1.02p0f}, std::tuple{rounding::toward_zero, 1.0f, -1.0f},
        std::tuple{rounding::up, 0x1.02p0f, -1.0f}, std::tuple{rounding::down, 1.0f, -0x1.02p0f}}) {
    gemm_options o;
    o.output = formats::bf16;
    o.output_rounding = r;
    CHECK(run_ref(a, make_operand(row_major<const float>(one, 1, 1)), o)[0] == up);
    CHECK(run_ref(a, make_operand(row_major<const float>(minus, 1, 1)), o)[0] == down);
  }
}

TEST_CASE("accumulation into C, and a bias, are one rounding each: factor * acc + c, beta * c + bias") {
  const random_stream random{12, 12};
  for (std::uint64_t i = 0; i < 20000; ++i) {
    float v[4];
    for (std::uint64_t j = 0; j < 4; ++j) {
      const std::uint32_t word = random.word(4 * i + j);
      v[j] = fp32_from_bits((word & 0x807FFFFFu) | (124u + (word >> 23) % 6) << 23);
    }
    gemm_options o{.accumulate = true};
    REQUIRE(fp32_bits(finish_output(v[0], v[1], o, v[2], 0)) == fp32_bits(oracle::exact_fma(v[0], v[1], v[2])));
    const float bias[2] = {0.0f, v[3]};
    o.bias = bias;
    o.beta = v[1];
    REQUIRE(fp32_bits(finish_output(v[0], v[1], o, v[2], 1)) ==
            fp32_bits(oracle::exact_fma(v[0], v[1], oracle::exact_fma(v[1], v[2], v[3]))));
    o.accumulate = false;
    REQUIRE(fp32_bits(finish_output(v[0], v[1], o, v[2], 1)) == fp32_bits(oracle::exact_fma(v[0], v[1], v[3])));
  }
}

TEST_CASE("a NaN scale makes its row NaN, even where all codes are zero") {
  for (const auto& model : {fp32_fma_chain, fp32_blockwise}) {
    mx_operand a(3, 64, 1, 2), b(3, 64, 2, 2);
    std::fill(a.codes.begin(), a.codes.end(), std::uint8_t{0});
    a.scales[3] = 255;  // row 1, second block
    const auto c = run_ref(a.view(), b.view(), {model});
    for (std::size_t i = 0; i < 9; ++i) CHECK((fp32_bits(c[i]) == fp32_nan_bits) == (i / 3 == 1));
  }
}

TEST_CASE("when a GEMM is defined") {
  const mx_operand mx(2, 64, 1, 0);
  gemm_operand a = mx.view(), b = mx.view();
  CHECK(gemm_is_defined(a, b, {fp32_blockwise}));
  CHECK(gemm_is_defined(a, b, {mma_model{16}}));
  CHECK(gemm_is_defined(a, b, {mma_model{64}}));
  CHECK(gemm_is_defined(a, b, {exact}));
  CHECK_FALSE(gemm_is_defined(a, b, {mma_model{0, mma_sum::aligned}}));
  CHECK_FALSE(gemm_is_defined(a, b, {mma_model{-1}}));
  gemm_options o;
  o.split_k = 2;
  o.split_run = 16;
  CHECK(gemm_is_defined(a, b, o));
  o.split_run = 24;
  CHECK_FALSE(gemm_is_defined(a, b, o));
  o.split_run = -16;
  CHECK_FALSE(gemm_is_defined(a, b, o));
  o.split_run = 0;
  o.split_sum = formats::e4m3;
  CHECK_FALSE(gemm_is_defined(a, b, o));
  o.split_sum = formats::bf16;
  CHECK(gemm_is_defined(a, b, o));
  o.output_rounding = rounding::stochastic;
  CHECK_FALSE(gemm_is_defined(a, b, o));
  CHECK_FALSE(gemm_is_defined(a, b, {mma_model{2 * max_mma_group}}));
  CHECK_FALSE(gemm_is_defined(a, b, {mma_model{64, mma_sum::scaled_groups}}));  // no group size
  CHECK_FALSE(gemm_is_defined(a, b, {mma_model{4, mma_sum::rounded_tree}}));
  constexpr mma_model nvfp4_unit{64, mma_sum::scaled_groups, mma_result::fp32_truncate, 35, -139, 16};
  CHECK(gemm_is_defined(a, b, {nvfp4_unit}));
  a.element = formats::bf16;  // more than 64 bits, where only scales align
  CHECK_FALSE(gemm_is_defined(a, b, {nvfp4_unit}));
  CHECK_FALSE(gemm_is_defined(a, b, {mma_model{16, mma_sum::aligned, mma_result::fp32_truncate, 60}}));
  a.element = formats::e2m1;
  a.scale = formats::e4m3;  // negative scales
  CHECK_FALSE(gemm_is_defined(a, b, {fp32_fma_chain}));
  a.scale = formats::ue4m3;
  CHECK(gemm_is_defined(a, b, {fp32_fma_chain}));
  a.scale = formats::e8m0;
  a.element = {4, 1, 200};  // products exceed an exact_sum
  CHECK_FALSE(gemm_is_defined(a, b, {fp32_fma_chain}));
  a.element = formats::e2m1;
  a.block = 3;  // a block would start inside a byte
  CHECK_FALSE(gemm_is_defined(a, b, {fp32_fma_chain}));
  a.block = 0;
  b.block = 0;
  CHECK(gemm_is_defined(a, b, {mma_model{64}}));
  a.element = formats::e4m3;
  CHECK(gemm_is_defined(a, b, {fp32_blockwise}));
  CHECK(gemm_is_defined(a, b, {fp32_fma_chain}));
  a.k = 32;
  CHECK_FALSE(gemm_is_defined(a, b, {fp32_fma_chain}));
}

}  // namespace gemm_ref_test
