// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The fast quantizer equals quantize_ref by bytes.
#include "rotoscale/quantize.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "oracle/block_values.hpp"
#include "oracle/fenced_memory.hpp"
#include "oracle/share.hpp"
#include "rotoscale/dequantize_ref.hpp"

namespace quantize_test {

using namespace rotoscale;

struct shape {
  index_t rows, cols, stride;
};

/// Bytes between rows of an output.
struct row_gaps {
  index_t codes, scales;
  constexpr row_gaps(index_t both) : codes(both), scales(both) {}
  constexpr row_gaps(index_t between_codes, index_t between_scales) : codes(between_codes), scales(between_scales) {}
};

/// An output with gaps between rows and guards on both sides, filled with one value. Comparisons include the bytes that
/// a quantizer must not write.
struct guarded_output {
  static constexpr index_t guard = 64;
  std::vector<std::uint8_t> codes, scales;
  block_matrix<std::uint8_t> view;

  /// The first code is `offset` bytes after a cache line.
  guarded_output(block_format f, index_t rows, index_t k, row_gaps gaps, index_t offset) {
    const index_t code_stride = packed_bytes(f.element, k) + gaps.codes, scale_stride = k / f.length + gaps.scales;
    codes.assign(static_cast<std::size_t>(rows * code_stride + 3 * guard), 0xEE);
    scales.assign(static_cast<std::size_t>(rows / f.rows * scale_stride + 2 * guard), 0xEE);
    const auto place = reinterpret_cast<std::uintptr_t>(codes.data()) % 64;
    view = {rows, k, codes.data() + guard + (64 - place) + offset, code_stride, scales.data() + guard, scale_stride};
    first = view.codes - codes.data();
  }
  index_t first;

  bool operator==(const guarded_output& other) const {  // compares from the first code on, for any address
    const auto codes_from = [](const guarded_output& g) {
      return std::vector<std::uint8_t>(g.codes.begin() + (g.first - guard),
                                       g.codes.end() - (2 * guard - (g.first - guard)));
    };
    return codes_from(*this) == codes_from(other) && scales == other.scales;
  }
};

/// Runs both and compares all bytes.
template <class T>
bool same_bytes(block_format f, const block_options& o, matrix<const T> source, block_axis axis, thread_pool& pool,
                row_gaps gaps = 3, index_t offset = 0) {
  const index_t rows = source.extent(axis == block_axis::row ? 0 : 1);
  const index_t k = source.extent(axis == block_axis::row ? 1 : 0);
  guarded_output want(f, rows, k, gaps, offset), got = guarded_output(f, rows, k, gaps, offset);
  quantize_ref(f, o, source, axis, want.view);
  quantize(f, o, source, axis, got.view, pool);
  return got == want;
}
bool same_bytes(block_format f, const block_options& o, matrix<const float> source, block_axis axis,
                thread_pool& pool) {
  return same_bytes<float>(f, o, source, axis, pool);
}

const std::vector<scale_rule> rules{scale_rule::floor, scale_rule::ceil, scale_rule::even, scale_rule::rceil};

TEST_CASE("MXFP4: rules, policies, sources, rotations, axes, shapes and threads") {
  const std::vector<shape> by_row{{1, 32, 32}, {15, 64, 64}, {16, 32, 40}, {37, 96, 99}, {64, 256, 256}};
  const std::vector<shape> by_column{{32, 1, 1}, {64, 15, 15}, {32, 16, 20}, {96, 37, 41}, {256, 64, 64}};
  thread_pool one(1), two(2), three(3);
  const std::vector<block_policy> all_policies{
      policies::te_rocm,
      policies::ocp,
      {255, 40, block_policy::nan_rule::ignore, block_policy::infinity_rule::largest_scale}};
  std::uint64_t seed = 0;
  for (thread_pool* pool : {&one, &two, &three}) {
    for (const auto rule : rules) {
      for (const auto& policy : all_policies) {
        for (const format& source : {formats::fp32, formats::bf16}) {
          for (const rotation& r : {rotation{}, rotation{0, {5}}, rotation{16}, rotation{16, {0xC0FFEE11u}}}) {
            const block_options o{source, r, rule, policy, rounding::nearest_even, {}};
            for (const auto axis : {block_axis::row, block_axis::column}) {
              for (const shape& s : axis == block_axis::row ? by_row : by_column) {
                const auto x = oracle::block_values(s.rows, s.stride, ++seed);
                CAPTURE(seed);
                REQUIRE(same_bytes(mxfp4, o, row_major(x.data(), s.rows, s.cols, s.stride), axis, *pool));
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("each kind of block by itself: every special bit pattern at every place of a block") {
  thread_pool pool(1);
  const auto base = oracle::block_values(32, 32, 1, false);
  for (const std::uint32_t bits :
       {0x7FC00000u, 0xFFC00001u, 0x7F800000u, 0xFF800000u, 0x7F7FFFFFu, 0x80000000u, 1u, 0x80000001u, 0x007FFFFFu,
        0x7F7F8000u, 0x00800000u, 0x7F3FFFFFu, 0x7FFFFFFFu, 0xFFFF8000u}) {
    for (const float magnitude : {0.0f, 1.0f, 0x1p-140f, 0x1p120f}) {
      std::vector<float> x;
      for (std::size_t i = 0; i < base.size(); ++i) {
        x.push_back(i % 33 == 0 ? fp32_from_bits(bits) : base[i] * magnitude);  // row r has it at element r
      }
      for (const auto& options : {presets::te_rocm, block_options{}}) {
        for (const auto rule : rules) {
          block_options o = options;
          o.rule = rule;
          CAPTURE(bits);
          REQUIRE(same_bytes(mxfp4, o, row_major(x.data(), 32, 32), block_axis::row, pool));
          REQUIRE(same_bytes(mxfp4, o, row_major(x.data(), 32, 32), block_axis::column, pool));
        }
      }
    }
  }
}

/// Elements of other types: numbers of the values' magnitudes; one in eight has arbitrary bits.
template <class T>
std::vector<T> values_of(const std::vector<float>& x, std::uint64_t seed) {
  std::vector<T> y;
  const random_stream random{seed, 78};
  for (std::size_t i = 0; i < x.size(); ++i) {
    if constexpr (std::is_same_v<T, float>) {
      y.push_back(x[i]);
    } else {
      const std::uint32_t word = random.word(i);
      y.push_back(i / 64 % 8 == 7 ? T::from_bits(static_cast<std::uint16_t>(word))
                                  : T(x[i], rounding::nearest_even, overflow::to_inf));
    }
  }
  return y;
}

/// Draws list entries from a random stream.
struct chooser {
  random_stream random;
  std::uint64_t drawn = 0;
  index_t below(index_t n) { return static_cast<index_t>(random.word(drawn++)) % n; }
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return list.begin()[below(static_cast<index_t>(list.size()))];
  }
};

const std::vector<block_format> fast_formats{
    mxfp4,  mxfp6_e2m3, mxfp6_e3m2,           mxfp8_e4m3,           mxfp8_e5m2,
    mxint8, nvfp4,      square_blocks(mxfp4), square_blocks(nvfp4), square_blocks(mxfp8_e4m3)};

/// Options with a fast path for sources of T.
template <class T>
block_options fast_options(chooser& choose, block_format f) {
  block_options o;
  if constexpr (std::is_same_v<T, fp16>) {
    o.source = choose.one_of({formats::fp32, formats::bf16, formats::fp16});
  } else {
    o.source = choose.one_of({formats::fp32, formats::bf16});
  }
  o.rotation.points = f.length == 16 ? choose.one_of({0, 16}) : choose.one_of({0, 16, 32});
  o.rotation.signs[0] = choose.one_of({0u, 0xC0FFEE11u});
  o.rule = choose.one_of({scale_rule::floor, scale_rule::ceil, scale_rule::even, scale_rule::rceil});
  o.policy =
      choose.one_of({policies::te_rocm, policies::ocp, policies::aiter_nonzero, policies::nvidia,
                     block_policy{255, 40, policies::nan_rule::ignore, policies::infinity_rule::exponent_128},
                     block_policy{0, 124, policies::nan_rule::nan_scale, policies::infinity_rule::largest_scale}});
  if (!f.has_e8m0_scale()) o.policy.zero_byte = choose.one_of<std::uint8_t>({0, 1, 126});
  o.rounding = choose.one_of({rounding::nearest_even, rounding::stochastic});
  o.random = {choose.one_of({std::uint64_t{7}, std::uint64_t{0x123456789ABCDEF0}}), 0xFEDCBA9876543210u};
  o.random_count = choose.one_of({32, 32, 31, 8, 1});
  o.encode_factor = choose.one_of({1.0f, 0.3f, 1000.0f, 0x1p-100f});
  if (!f.has_e8m0_scale()) o.choice = choose.one_of({scale_choice::amax, scale_choice::headroom});
  return o;
}

template <class T>
void check_combinations(std::uint64_t seed, int count) {
  thread_pool one(1), two(2), three(3);
  thread_pool* pools[] = {&one, &two, &three};
  chooser choose{{seed, 79}};
  for (int i = 0; i < count / oracle::share(); ++i) {
    const block_format f = fast_formats[static_cast<std::size_t>(i) % fast_formats.size()];
    const block_options o = fast_options<T>(choose, f);
    const index_t vectors = f.rows == 1 ? 1 + choose.below(70) : f.rows * (1 + choose.below(3));
    const index_t k = 32 * (1 + choose.below(9)) - (f.length == 16 ? 16 * choose.below(2) : 0);
    const auto axis = choose.one_of({block_axis::row, block_axis::column});
    const bool row = axis == block_axis::row;
    const index_t rows = row ? vectors : k, columns = row ? k : vectors, stride = columns + choose.below(5);
    const std::vector<float> x = oracle::block_values(rows, stride + 1, seed + static_cast<std::uint64_t>(i));
    const std::vector<T> y = values_of<T>(x, seed);
    const matrix<const T> source = row_major<const T>(y.data() + choose.below(2), rows, columns, stride);
    CAPTURE(i);
    CAPTURE(f.element.exponent_bits);
    REQUIRE(quantize_is_fast(f, o, source));
    const index_t gap = choose.below(4), offset = choose.below(17);
    REQUIRE(same_bytes<T>(f, o, source, axis, *pools[choose.below(3)], gap, offset));
  }
}

TEST_CASE("combinations of formats, options, axes, shapes, addresses and threads: FP32") {
  check_combinations<float>(1000, 2500);
}
TEST_CASE("combinations: BF16") { check_combinations<bf16>(2000, 1200); }
TEST_CASE("combinations: FP16") { check_combinations<fp16>(3000, 1200); }

TEST_CASE("magnitudes: every exponent of FP32 alone in its tiles, under every rule") {
  thread_pool pool(1);
  const auto base = oracle::block_values(32, 32, 2, false);
  for (const auto& f : fast_formats) {
    for (int e = -150; e < 128; ++e) {
      std::vector<float> x;
      for (const float v : base) x.push_back(v * pow2_fp32(e < -149 ? -149 : e) * 0x1p3f);
      for (const auto rule : rules) {
        block_options o = e % 2 == 0 ? presets::te_rocm : presets::nvidia;
        if (!f.has_e8m0_scale()) o.policy.zero_byte = 0;  // 127 is a NaN there
        o.rule = rule;
        o.rounding = e % 3 == 0 ? rounding::stochastic : rounding::nearest_even;
        CAPTURE(e);
        REQUIRE(same_bytes(f, o, row_major(x.data(), 32, 32), block_axis::column, pool));
      }
    }
  }
}

TEST_CASE("mantissas: an amax on either side of every rule's threshold, and elements on every tie") {
  thread_pool pool(1);
  for (const auto& f : fast_formats) {
    std::vector<float> x(32 * 1024);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t block = i / 32;  // amax has its block's 8 leading mantissa bits, or is next to that
      const std::uint32_t amax =
          fp32_bits(1.0f) + (static_cast<std::uint32_t>(block / 4) << 15) + static_cast<std::uint32_t>(block % 4) - 1;
      const float tie = static_cast<float>(i % 32 + block % 5 * 32) * 0x1p-7f;
      x[i] = i % 32 == 0 ? fp32_from_bits(amax) : i % 2 == 0 ? tie : -tie;
    }
    for (const auto rule : rules) {
      block_options o;
      o.rule = rule;
      CHECK(same_bytes(f, o, row_major(x.data(), 1024, 32), block_axis::row, pool));
      CHECK(same_bytes(f, o, row_major(x.data(), 32, 1024), block_axis::column, pool));
    }
  }
}

TEST_CASE("rows of any number of blocks, back to back or with gaps, and some blocks that are not ordinary") {
  thread_pool pool(2);
  for (index_t blocks = 1; blocks <= 70; ++blocks) {
    const auto x = oracle::block_values(3, 32 * blocks, static_cast<std::uint64_t>(blocks), blocks % 2 == 0);
    const auto halves = values_of<bf16>(x, 1);
    block_options o = blocks % 3 == 0 ? presets::ocp : presets::te_rocm;
    o.source = blocks % 5 == 0 ? formats::bf16 : formats::fp32;
    o.rotation.signs[0] = blocks % 4 == 0 ? 0x9E3779B9u : 0;
    CAPTURE(blocks);
    REQUIRE(same_bytes(mxfp4, o, row_major(x.data(), 3, 32 * blocks), block_axis::row, pool));
    REQUIRE(same_bytes<bf16>(mxfp4, o, row_major<const bf16>(halves.data(), 3, 32 * blocks), block_axis::row, pool, 0));
  }
}

TEST_CASE("rows back to back, but for gaps in the source, the codes or the scales; and more than a thread's part") {
  thread_pool pool(2);
  for (const index_t k : {index_t{96}, index_t{2 * 8192 + 160}}) {
    const auto x = oracle::block_values(3, k + 32, static_cast<std::uint64_t>(k));
    for (const index_t between_rows : {0, 32}) {
      for (const row_gaps gaps : {row_gaps{0}, row_gaps{4, 0}, row_gaps{0, 1}}) {
        CAPTURE(k);
        CHECK(same_bytes<float>(mxfp4, presets::te_rocm, row_major(x.data(), 3, k, k + between_rows), block_axis::row,
                                pool, gaps));
      }
    }
  }
}

TEST_CASE("rounding in code space: FP32 numbers around every tie of E2M1, under every ordinary scale") {
  thread_pool pool(2);
  std::vector<float> x;
  for (int e = -98; e <= 98; e += 7) {
    for (const float tie :
         {0.25f, 0.5f, 0.75f, 1.0f, 1.25f, 1.5f, 1.75f, 2.0f, 2.5f, 3.0f, 3.5f, 4.0f, 5.0f, 6.0f, 7.0f}) {
      const std::uint32_t at = fp32_bits(std::ldexp(tie, e));
      // The block's largest number comes first, so that the scale is 2^e; 31 neighbours of the tie follow.
      x.push_back(std::ldexp(5.9f, e));
      for (std::uint32_t i = 0; i < 31; ++i) x.push_back(fp32_from_bits((at + i - 15) | (i % 2 << 31)));
    }
    // Zeros and least numbers keep their signs.
    x.push_back(std::ldexp(5.9f, e));
    for (std::uint32_t i = 0; i < 31; ++i) x.push_back(fp32_from_bits(i / 2 | (i % 2 << 31)));
  }
  const auto source = row_major(x.data(), static_cast<index_t>(x.size()) / 32, 32);
  for (const auto rule : rules) {
    block_options o;
    o.rule = rule;
    CHECK(same_bytes(mxfp4, o, source, block_axis::row, pool));
    CHECK(same_bytes(mxfp4, o, transposed(source), block_axis::column, pool));
  }
}

TEST_CASE("results too large for a cache, whose lines are written past it, at any distance from a line") {
  thread_pool pool(2);
  const index_t height = 2048, width = 1088;
  const auto x = oracle::block_values(height, width, 5);
  const auto source = row_major<const float>(x.data(), height, width);
  for (const auto& f : {mxfp4, mxfp6_e3m2, mxfp8_e5m2}) {
    for (const auto axis : {block_axis::row, block_axis::column}) {
      const index_t rows = axis == block_axis::row ? height : width, k = height * width / rows;
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * packed_bytes(f.element, k)));
      std::vector<std::uint8_t> scales(static_cast<std::size_t>(rows * k / 32));
      const auto dense = dense_blocks(f, rows, k, codes.data(), scales.data());
      quantize_ref(f, presets::te_rocm, source, axis, dense);
      for (const index_t offset : {0, 16, 40}) {
        for (const bool whole_lines : {true, false}) {
          const index_t gap = whole_lines ? (64 - dense.code_stride % 64) % 64 : 8;
          guarded_output want(f, rows, k, gap, offset), got(f, rows, k, gap, offset);
          const auto copy_rows = [rows](const std::uint8_t* from, index_t bytes, std::uint8_t* to, index_t stride) {
            for (index_t r = 0; r < rows; ++r)
              std::memcpy(to + r * stride, from + r * bytes, static_cast<std::size_t>(bytes));
          };
          copy_rows(dense.codes, dense.code_stride, want.view.codes, want.view.code_stride);
          copy_rows(dense.scales, dense.scale_stride, want.view.scales, want.view.scale_stride);
          quantize(f, presets::te_rocm, source, axis, got.view, pool);
          CHECK(got == want);
        }
      }
    }
  }
}

/// Columns of one block each, whose sums overflow. Butterflies combine infinities of both signs. A block without
/// infinities may then contain NaN and finite numbers.
TEST_CASE("sums that overflow within a rotation") {
  thread_pool pool(1);
  chooser choose{{5000, 80}};
  const index_t columns = 4096;
  std::vector<float> x;
  for (index_t i = 0; i < 32 * columns; ++i) {
    const float largest = choose.one_of({0x1.8p127f, -0x1.8p127f, 0x1.8p127f, -0x1.8p127f, 1.0f});
    x.push_back(i / columns < 4 ? largest : choose.one_of({0.0f, 1.0f}));
  }
  const auto halves = values_of<bf16>(x, 2);
  for (const auto rule : rules) {
    block_options o = presets::te_rocm;
    o.rule = rule;
    o.source = formats::fp32;
    CHECK(same_bytes(mxfp4, o, row_major<const float>(x.data(), 32, columns), block_axis::column, pool));
    CHECK(same_bytes<bf16>(mxfp4, o, row_major<const bf16>(halves.data(), 32, columns), block_axis::column, pool));
    CHECK(same_bytes(mxfp4, o, transposed(row_major<const float>(x.data(), 32, columns)), block_axis::row, pool));
  }
}

template <class T>
void check_both_of_many_parts(const block_options& along, const block_options& down) {
  thread_pool pool(2);
  const index_t rows = 2 * 256 + 32, columns = 1024 + 32 + 64;
  for (const auto& f : {mxfp4, mxfp8_e4m3}) {
    // Ordinary numbers and one NaN, because this test excludes other kinds of blocks.
    const auto numbers = oracle::block_values(rows, columns, 77, false);
    std::vector<T> x(numbers.size());
    for (std::size_t i = 0; i < x.size(); ++i) store_value(numbers[i], x[i]);
    store_value(std::numeric_limits<float>::quiet_NaN(), x[static_cast<std::size_t>(40 * columns + 70)]);
    const auto source = row_major<const T>(x.data(), rows, columns);
    guarded_output want[2] = {{f, rows, columns, 0, 0}, {f, columns, rows, 0, 0}}, got[2] = {want[0], want[1]};
    for (auto& g : got) g = guarded_output(f, g.view.rows, g.view.k, 0, 0);
    for (auto& w : want) w = guarded_output(f, w.view.rows, w.view.k, 0, 0);
    quantize_ref(f, along, source, block_axis::row, want[0].view);
    quantize_ref(f, down, source, block_axis::column, want[1].view);
    quantize_both(f, along, got[0].view, down, got[1].view, source, pool);
    CHECK(got[0] == want[0]);
    CHECK(got[1] == want[1]);
  }
}

TEST_CASE("both copies in one pass of several parts, with lines of columns that are left over") {
  block_options signs = presets::te_rocm;
  signs.rotation.signs[0] = 0x9E3779B9u;
  check_both_of_many_parts<float>(presets::te_rocm, presets::te_rocm);
  check_both_of_many_parts<float>(presets::ocp, signs);
  check_both_of_many_parts<bf16>(presets::te_rocm, signs);
  check_both_of_many_parts<bf16>(signs, presets::ocp);
}

TEST_CASE("both copies in one pass") {
  chooser choose{{4000, 79}};
  for (int i = 0; i < 200 / oracle::share(); ++i) {
    thread_pool pool(1 + i % 3);
    const block_format f = fast_formats[static_cast<std::size_t>(i) % fast_formats.size()];
    block_options along = fast_options<float>(choose, f), down = fast_options<float>(choose, f);
    if (i % 7 == 0) down.rounding = rounding::toward_zero;  // has no fast path
    const index_t rows = 32 * (1 + choose.below(i % 10 == 0 ? 20 : 4)), columns = 32 * (1 + choose.below(20));
    const auto x = oracle::block_values(rows, columns + 1, static_cast<std::uint64_t>(i));
    const auto source = row_major<const float>(x.data() + i % 2, rows, columns);
    guarded_output want[2] = {{f, rows, columns, 1, 0}, {f, columns, rows, 2, 5}};
    guarded_output got[2] = {{f, rows, columns, 1, 0}, {f, columns, rows, 2, 5}};
    quantize_ref(f, along, source, block_axis::row, want[0].view);
    quantize_ref(f, down, source, block_axis::column, want[1].view);
    quantize_both(f, along, got[0].view, down, got[1].view, source, pool);
    CAPTURE(i);
    REQUIRE(got[0] == want[0]);
    REQUIRE(got[1] == want[1]);
  }
}

TEST_CASE("a transposed view: its columns are rows") {
  thread_pool pool(2);
  const auto x = oracle::block_values(64, 96, 4);
  const auto source = transposed(row_major<const float>(x.data(), 64, 96));
  for (const auto& f : {mxfp4, mxfp8_e4m3}) {
    CHECK(quantize_is_fast(f, presets::te_rocm, source));
    CHECK(same_bytes(f, presets::te_rocm, source, block_axis::row, pool));
    CHECK(same_bytes(f, presets::te_rocm, source, block_axis::column, pool));
  }
  guarded_output want[2] = {{mxfp4, 96, 64, 0, 0}, {mxfp4, 64, 96, 0, 0}}, got[2] = {want[0], want[1]};
  for (auto& g : got) g = guarded_output(mxfp4, g.view.rows, g.view.k, 0, 0);
  quantize_ref(mxfp4, presets::te_rocm, source, block_axis::row, want[0].view);
  quantize_ref(mxfp4, presets::te_rocm, source, block_axis::column, want[1].view);
  quantize_both(mxfp4, presets::te_rocm, got[0].view, presets::te_rocm, got[1].view, source, pool);
  CHECK(got[0] == want[0]);
  CHECK(got[1] == want[1]);
}

TEST_CASE("what lanes do not cover goes the slow way and gives the same bytes") {
  thread_pool pool(3);
  const auto x = oracle::block_values(128, 128, 3);
  const auto source = row_major<const float>(x.data(), 128, 128);
  std::vector<double> wide(x.begin(), x.end());
  block_options away = presets::te_rocm, long_rotation = presets::te_rocm, short_rotation = presets::te_rocm;
  away.rounding = rounding::nearest_away;
  long_rotation.rotation = {64, {3, 5}};
  short_rotation.rotation = {8, {3}};
  block_options half = presets::te_rocm, huge_factor = presets::nvidia;
  half.source = formats::fp16;
  huge_factor.encode_factor = 0x1p127f;
  struct slow_case {
    block_format f;
    block_options o;
  };
  const slow_case slow[] = {{mxfp4, away},
                            {mxfp4, long_rotation},
                            {mxfp8_e4m3, short_rotation},
                            {mxfp6_e2m3, half},
                            {nvfp4, huge_factor},
                            {{formats::e2m1, 64}, presets::te_rocm},
                            {{formats::e4m3fnuz, 32}, presets::te_rocm},
                            {{formats::e2m1, 16, formats::ue5m3}, presets::nvidia},
                            {{formats::e2m1, 32, formats::e8m0, 8}, presets::primus}};
  for (const auto axis : {block_axis::row, block_axis::column}) {
    for (const auto& c : slow) {
      CHECK_FALSE(quantize_is_fast(c.f, c.o, source));
      CHECK(same_bytes(c.f, c.o, source, axis, pool));
    }
    const matrix<const double> wide_source = row_major<const double>(wide.data(), 128, 128);
    CHECK_FALSE(quantize_is_fast(mxfp4, presets::te_rocm, wide_source));
    CHECK(same_bytes<double>(mxfp4, presets::te_rocm, wide_source, axis, pool));
    const matrix<const float> sparse{x.data(), {32, 32}, {256, 2}};
    CHECK_FALSE(quantize_is_fast(mxfp4, presets::te_rocm, sparse));
    CHECK(same_bytes(mxfp4, presets::te_rocm, sparse, axis, pool));
  }
}

template <class T>
void check_fences(block_format f, const block_options& o, index_t rows, index_t columns, block_axis axis) {
  const auto x = values_of<T>(oracle::block_values(rows, columns, static_cast<std::uint64_t>(rows + columns)), 1);
  const bool row = axis == block_axis::row;
  const index_t vectors = row ? rows : columns, k = row ? columns : rows;
  thread_pool pool(2);
  guarded_output want(f, vectors, k, 0, 0);
  quantize_ref(f, o, row_major<const T>(x.data(), rows, columns), axis, want.view);
  const auto code_bytes = static_cast<std::size_t>(vectors * want.view.code_stride);
  const auto scale_bytes = static_cast<std::size_t>(vectors / f.rows * want.view.scale_stride);
  for (const bool end : {true, false}) {
    oracle::fenced_memory source(x.size() * sizeof(T)), codes(code_bytes), scales(scale_bytes);
    const auto place = [end](oracle::fenced_memory& m) { return m.at(end); };
    std::memcpy(place(source), x.data(), x.size() * sizeof(T));
    source.hold();
    const auto* data = reinterpret_cast<const T*>(place(source));
    quantize(f, o, row_major(data, rows, columns), axis, dense_blocks(f, vectors, k, place(codes), place(scales)),
             pool);
    CHECK(std::memcmp(place(codes), want.view.codes, code_bytes) == 0);
    CHECK(std::memcmp(place(scales), want.view.scales, scale_bytes) == 0);
  }
}

TEST_CASE("nothing beyond the source is read, nor anything beyond the results written") {
  for (const auto& f : fast_formats) {
    for (const index_t blocks : {1, 3, 17}) {
      for (const index_t vectors : {index_t{f.rows}, f.rows == 1 ? 19 : index_t{2 * f.rows}}) {
        const index_t k = f.length * blocks;
        const block_options o = f.has_e8m0_scale() ? presets::te_rocm : presets::nvidia;
        check_fences<float>(f, o, vectors, k, block_axis::row);
        check_fences<float>(f, o, k, vectors, block_axis::column);
        check_fences<bf16>(f, o, vectors, k, block_axis::row);
        check_fences<bf16>(f, o, k, vectors, block_axis::column);
      }
    }
  }
}

TEST_CASE("random words of rows far into a large result") {
  block_options o;
  o.random = {3, 4};
  o.random_count = 20;
  const index_t k = index_t{1} << 35, e = k - 32;
  for (const index_t v : {index_t{0}, index_t{5}, index_t{1} << 20}) {
    detail::tile_words words(o, k, v, e);
    for (index_t i = 0; i < 32; i += 4) {
      detail::lanes_u32 drawn[4];
      words.next(drawn);
      for (int l = 0; l < detail::lane_count; ++l) {
        for (int j = 0; j < 4; ++j) {
          const std::uint32_t want = o.random.word(static_cast<std::uint64_t>((v + l) * k + e + i + j));
          const std::uint32_t lane = drawn[j][l];
          REQUIRE(lane == want << 12);
        }
      }
    }
  }
}

TEST_CASE("the amax of a tensor is what its blocks see, on any number of threads") {
  thread_pool one(1), three(3);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const block_format f : {nvfp4, mxfp4, block_format{formats::e2m1, 64}}) {
    for (const int points : {0, 16, 32, 64}) {
      for (const format& source : {formats::fp32, formats::bf16}) {
        for (const index_t vectors : {1, 31, 70}) {
          for (const float special : {1.0f, -0.0f, inf, nan, 3.4e38f}) {
            block_options o;
            o.source = source;
            o.rotation = {points, {0xD7E8B0F1u, 0x12345678u}};
            const index_t k = 192;
            std::vector<float> x;
            const random_stream random{5, 6};
            for (index_t i = 0; i < vectors * k; ++i) {
              x.push_back(static_cast<float>(random.word(static_cast<std::uint64_t>(i)) >> 8) * 0x1p-24f - 0.5f);
            }
            x[static_cast<std::size_t>(vectors * k * 2 / 3)] = special;
            const auto wide = row_major<const float>(x.data(), vectors, k),
                       tall = row_major<const float>(x.data(), k, vectors);
            for (const auto& [m, axis] : {std::pair{wide, block_axis::row}, {tall, block_axis::column}}) {
              const float want = tensor_amax(f, o, m, axis);
              CHECK(fp32_bits(tensor_amax(f, o, m, axis, one)) == fp32_bits(want));
              CHECK(fp32_bits(tensor_amax(f, o, m, axis, three)) == fp32_bits(want));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("an empty matrix") {
  thread_pool pool(2);
  quantize(mxfp4, presets::te_rocm, row_major<const float>(nullptr, 0, 32), block_axis::row,
           {0, 32, nullptr, 16, nullptr, 1}, pool);
  quantize_both(mxfp4, presets::te_rocm, {0, 32, nullptr, 16, nullptr, 1}, presets::te_rocm,
                {32, 0, nullptr, 0, nullptr, 0}, row_major<const float>(nullptr, 0, 32), pool);
}

}  // namespace quantize_test
