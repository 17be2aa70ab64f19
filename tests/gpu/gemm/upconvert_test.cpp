// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operands of the sm_90 GEMM converted to int8, E5M2 and BF16, against the definitions: every code with every scale,
// and the choice per row.
#include <doctest/doctest.h>

#include <random>

#include "gpu/gemm/data.hpp"
#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/upconvert_fallback.hpp"
#include "gpu/gemm/upconvert_int8.hpp"

namespace gemm_upconvert_test {

using namespace gpu_test;
using rotoscale::gpu::detail::second_base;

constexpr std::uint8_t poison = 0xC3;

/// Prologue of a fallback kernel.
[[maybe_unused]] static __global__ void __launch_bounds__(96)
    rest_of_operands_kernel(const upconvert_arguments e, fallback_work* work) {
  const operand_width widest = widest_fallback(*work);
  if (widest != operand_width::int8) upconvert_fallback(e, *work, widest);
}

static_assert(512.0f * 512.0f == int8_unit, "an int8 number times 2^9 is the E5M2 number");

[[maybe_unused]] static __global__ void widths_kernel(const operand_width* widths, int rows, std::uint32_t* combined) {
  const int i = static_cast<int>(thread_index().x);
  combined[i] = combined_widths_of_sixteen(widths, i, rows);
}

/// Conversions of both operands in workspace layout: rows of A, then of B, int8 apart from BF16.
struct expansions {
  expansions(const matrix_data& a, const matrix_data& b)
      : m(a),
        n(b),
        rows(a.rows + b.rows),
        folded(bytes(static_cast<std::size_t>(rows) * static_cast<std::size_t>(a.k), poison)),
        narrow(folded.here),
        wide(bytes(2 * folded.here.size(), poison)),
        base(std::vector<int>(slot(rows), -999)),
        widths(bytes(slot(rows), 0xFF)) {}

  upconvert_arguments arguments(bool int8, bool has_widths) const {
    const auto source = [](const matrix_data& x) {
      return block_source{x.codes.there, x.scales.there, x.code_stride(), x.k / 32, x.rows, x.element};
    };
    std::uint8_t* to = int8 ? narrow.there : wide.there;
    const std::int64_t second = std::int64_t{m.rows} * m.k;
    upconvert_arguments e{
        source(m), source(n), m.k, folded.there, folded.there + second, to, to + (int8 ? 1 : 2) * second};
    e.base_b = second_base(m.rows);
    if (has_widths) {
      e.base = base.there;
      e.widths = reinterpret_cast<operand_width*>(widths.there);
    }
    return e;
  }
  void run(void (*kernel)(upconvert_arguments), int count) {
    const upconvert_arguments e = arguments(kernel == upconvert_int8_kernel, kernel != upconvert_bf16_kernel);
    REQUIRE(launch(kernel, gpu::blocks(count), gpu::blocks(upconvert_threads), 0, {}, e).ok());
    fetch();
  }
  void fetch() {
    for (array<std::uint8_t>* x : {&folded, &narrow, &wide, &widths}) {
      x->fetch();
      CHECK(x->guards_hold());
    }
    base.fetch();
  }
  void run_e5m2() { run(upconvert_e5m2_kernel, upconvert_blocks(rows, m.k)); }
  void run_int8() { run(upconvert_int8_kernel, (rows + int8_rows(m.k) - 1) / int8_rows(m.k)); }
  void run_bf16() { run(upconvert_bf16_kernel, upconvert_blocks(rows, m.k)); }
  /// Runs the fallback's conversion with two blocks.
  void run_fallback() {
    std::uint32_t widest = 0;
    for (index_t r = 0; r < rows; ++r) widest |= widths.here[slot(r)];
    array<fallback_work> work({{static_cast<std::uint32_t>(combined_width(widest)), 0, 0}});
    REQUIRE(launch(rest_of_operands_kernel, gpu::blocks(2), gpu::blocks(96), 0, {}, arguments(false, true), work.there)
                .ok());
    fetch();
    work.fetch();
    CHECK(work.guards_hold());
    CHECK(work.here[0].converted == (widest == 0 ? 0u : static_cast<unsigned>(rows * row_chunks(m.k))));
  }

  block_matrix<const std::uint8_t> of(index_t row) const { return row < m.rows ? m.here() : n.here(); }
  index_t in_operand(index_t row) const { return row < m.rows ? row : row - m.rows; }
  operand_width width(index_t row) const { return static_cast<operand_width>(widths.here[slot(row)]); }
  std::size_t at(index_t row, index_t c) const { return static_cast<std::size_t>(row * m.k + c); }

  /// Number of elements of a row whose conversion differs from their value.
  int wrong(operand_width as, index_t row) const {
    int count = 0;
    for (index_t c = 0; c < m.k; ++c) {
      const float value =
          decode_element(m.element == gemm_element::e2m1 ? mxfp4 : m.blocks(), of(row), in_operand(row), c);
      float found = 0.0f;
      if (as == operand_width::bf16) {
        found = fp32_from_bits(static_cast<std::uint32_t>(bits_at(wide.here, row * m.k + c, 2)) << 16);
      } else {
        const std::uint8_t code = (as == operand_width::int8 ? narrow : folded).here[at(row, c)];
        const float x =
            as == operand_width::int8 ? static_cast<std::int8_t>(code) * 512.0f : decode(formats::e5m2, code);
        const bool subnormal = as == operand_width::e5m2 && (code & 0x7F) != 0 && (code & 0x7C) == 0;
        found = times_power(x, base.here[slot(row)]);
        count += subnormal;
      }
      const bool nan = fp32_is_nan(fp32_bits(value));
      // int8 has no -0.
      const bool same = as == operand_width::int8 ? found == value : fp32_bits(found) == fp32_bits(value);
      count += nan ? !fp32_is_nan(fp32_bits(found)) : !same;
    }
    return count;
  }
  bool untouched(const array<std::uint8_t>& x) const { return x.here == bytes(x.here.size(), poison); }

  const matrix_data &m, &n;
  int rows;
  /// Index of an operand's row in `base` and `widths`.
  std::size_t slot(index_t row) const {
    return static_cast<std::size_t>(row < m.rows ? row : row - m.rows + second_base(m.rows));
  }
  array<std::uint8_t> folded, narrow, wide;
  array<int> base;
  array<std::uint8_t> widths;
};

/// A row whose sum of squares is `sum` in units of its least scale's 0.5. One block has the least scale, then come
/// blocks `span` binades above; large ones last.
matrix_data row_of_squares(int k, int span, int sum) {
  bytes codes(static_cast<std::size_t>(k / 2)),
      scales(static_cast<std::size_t>(k / 32), static_cast<std::uint8_t>(100 + span));
  scales[0] = 100;
  const int doubled[] = {0, 1, 2, 3, 4, 6, 8, 12};
  const auto set = [&](int c, int code) {
    codes[static_cast<std::size_t>(c / 2)] |= static_cast<std::uint8_t>(code << (c % 2 * 4));
  };
  set(0, 1);
  --sum;
  int low = 1, high = k;
  for (int code = 7; code > 0; --code) {
    const int square = doubled[code] * doubled[code] << (2 * span);
    for (; sum >= square && high > 32; sum -= square) set(--high, code | (sum % 3 == 0 ? 8 : 0));
  }
  for (int code = 7; code > 0; --code) {
    for (; sum >= doubled[code] * doubled[code]; sum -= doubled[code] * doubled[code]) set(low++, code | 8);
  }
  REQUIRE(low <= 32);
  return {1, k, codes, scales};
}

TEST_CASE("operands are converted exactly: every code under every scale") {
  bytes codes(256 * 16), scales(256);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<std::uint8_t>((2 * i % 16) | ((2 * i + 1) % 16) << 4);
  }
  for (std::size_t i = 0; i < 256; ++i) scales[i] = static_cast<std::uint8_t>(i);
  const matrix_data a(256, 32, codes, scales), b(1, 32, bytes(16), bytes(1, 127));
  expansions e(a, b), f(a, b);
  e.run_bf16();
  e.run_e5m2();
  f.run_int8();
  for (index_t r = 0; r < 257; ++r) {
    CAPTURE(r);
    CHECK(e.wrong(operand_width::bf16, r) == 0);
    CHECK(e.wrong(operand_width::e5m2, r) == 0);
    CHECK(e.width(r) == operand_width::e5m2);
    CHECK(f.width(r) == (r == 255 ? operand_width::e5m2 : operand_width::int8));
    CHECK(f.wrong(f.width(r), r) == 0);
  }
}

TEST_CASE("the windows: 3 and 26 binades fit exactly, 4 and 27 do not; zeros and NaN scales") {
  const auto data = [](std::uint8_t first, std::uint8_t second, std::uint8_t code) {
    bytes codes(32, 0x31);
    for (std::size_t i = 0; i < 16; ++i) codes[i] = code;
    return matrix_data(1, 64, codes, {first, second});
  };
  constexpr auto int8 = operand_width::int8, e5m2 = operand_width::e5m2, bf16 = operand_width::bf16;
  const struct {
    std::uint8_t first, second, code;  // of the first block
    operand_width width;
  } cases[] = {{101, 127, 0x17, e5m2}, {100, 127, 0x17, bf16}, {127, 101, 0x17, e5m2}, {228, 254, 0xF9, e5m2},
               {0, 26, 0x99, e5m2},    {0, 27, 0x99, bf16},    {0, 127, 0x80, int8},   {254, 27, 0x08, int8},
               {255, 27, 0x11, e5m2},  {0, 255, 0x11, e5m2},   {124, 127, 0xF7, int8}, {123, 127, 0x17, e5m2},
               {127, 124, 0x7F, int8}, {127, 123, 0x17, e5m2}, {251, 254, 0xF7, int8}, {250, 254, 0x97, e5m2},
               {0, 3, 0x7F, int8},     {0, 4, 0xF7, e5m2},     {255, 127, 0x00, e5m2}, {127, 127, 0xF7, int8}};
  for (const auto& c : cases) {
    CAPTURE(static_cast<int>(c.first));
    CAPTURE(static_cast<int>(c.second));
    const matrix_data a = data(c.first, c.second, c.code), b(1, 64, bytes(32, 0x80), {3, 255});
    expansions e(a, b), f(a, b);
    e.run_e5m2();
    CHECK(e.width(0) == (c.width == int8 ? e5m2 : c.width));
    if (c.width != bf16) CHECK(e.wrong(e5m2, 0) == 0);
    CHECK(fold_range_ref(a.here(), 0).fits() == (c.width != bf16));
    f.run_int8();
    CHECK(f.width(0) == c.width);
    CHECK(width_ref(a.here(), 0) == c.width);
    if (c.width != bf16) CHECK(f.wrong(c.width, 0) == 0);
    CHECK(f.width(1) == e5m2);  // NaN scale of a block of zeros
    f.run_fallback();           // a row is outside int8, so all rows become E5M2
    if (c.width != bf16) CHECK(f.wrong(e5m2, 0) == 0);
    CHECK(f.untouched(f.wide) == (c.width != bf16));
    if (c.width == bf16) CHECK(f.wrong(bf16, 0) + f.wrong(bf16, 1) == 0);
  }
  const matrix_data zeros(2, 64, bytes(64, 0x80), {0, 254, 127, 3}), other = data(127, 125, 0x77);
  expansions e(zeros, other);
  e.run_int8();
  e.run_fallback();
  for (index_t r = 0; r < 3; ++r) CHECK(e.width(r) == int8);
  CHECK(e.wrong(int8, 0) + e.wrong(int8, 2) == 0);
  CHECK(e.untouched(e.folded));  // not needed
  CHECK(e.untouched(e.wide));
}

TEST_CASE("int8 rows have squares below 2^24 in sum, in units of their least scale") {
  const struct { int k, span; } cases[] = {{2048, 3}, {2080, 3}, {8192, 2}, {16416, 3}, {33792, 1}};
  for (const auto& c : cases) {
    CAPTURE(c.k);
    const matrix_data below = row_of_squares(c.k, c.span, (1 << 24) - 1), at = row_of_squares(c.k, c.span, 1 << 24);
    CHECK(width_ref(below.here(), 0) == operand_width::int8);
    CHECK(width_ref(at.here(), 0) == operand_width::e5m2);
    expansions e(below, at);
    e.run_int8();
    CHECK(e.width(0) == operand_width::int8);
    CHECK(e.width(1) == operand_width::e5m2);
    CHECK(e.wrong(operand_width::int8, 0) == 0);
    CHECK(e.wrong(operand_width::e5m2, 1) == 0);
    e.run_fallback();
    CHECK(e.wrong(operand_width::e5m2, 0) == 0);
    CHECK(e.untouched(e.wide));
  }
}

TEST_CASE("blocks of zeros count as long as they fit int8's window") {
  const int k = 8192;
  const struct {
    std::uint8_t zeros;  // scale of the first block
    operand_width width;
  } cases[] = {{104, operand_width::int8}, {100, operand_width::int8}, {99, operand_width::int8},
               {98, operand_width::e5m2},  {97, operand_width::e5m2},  {96, operand_width::int8}};
  for (const auto& c : cases) {
    CAPTURE(static_cast<int>(c.zeros));
    bytes codes(k / 2, 0x77), scales(k / 32, 100);  // squares: 2^20 to 2^21 in units of 100
    for (std::size_t i = 0; i < 16; ++i) codes[i] = 0x80;
    scales[0] = c.zeros;
    const matrix_data a(1, k, codes, scales), b(1, k, codes, scales);
    CHECK(width_ref(a.here(), 0) == c.width);
    expansions e(a, b);
    e.run_int8();
    CHECK(e.width(1) == c.width);
    CHECK(e.wrong(c.width, 1) == 0);
  }
}

TEST_CASE("rows of every length become what the definition says") {
  std::mt19937 random(6);
  const struct { int rows, others, k; } cases[] = {{13, 6, 32}, {9, 5, 2112}, {4, 3, 6144}, {3, 2, 16416}};
  for (const auto& c : cases) {
    CAPTURE(c.k);
    const auto operand = [&](int rows) {
      bytes codes(static_cast<std::size_t>(rows * (c.k / 2))), scales(static_cast<std::size_t>(rows * (c.k / 32)));
      for (auto& x : codes) x = static_cast<std::uint8_t>(random());
      for (std::size_t i = 0; i < scales.size(); ++i) {
        const std::size_t row = i / static_cast<std::size_t>(c.k / 32);
        scales[i] = static_cast<std::uint8_t>(120 + random() % (row % 3 == 0 ? 5 : row % 3 == 1 ? 3 : 4));
        if (row % 5 == 4 && random() % 200 == 0) scales[i] = 255;
        if (random() % 16 != 0) continue;
        for (std::size_t j = 0; j < 16; ++j) codes[16 * i + j] &= 0x88;
        if (scales[i] != 255) scales[i] = static_cast<std::uint8_t>(random() % 255);
      }
      return matrix_data(rows, c.k, codes, scales);
    };
    const matrix_data a = operand(c.rows), b = operand(c.others);
    expansions e(a, b);
    e.run_int8();
    bool outside = false;
    for (index_t r = 0; r < e.rows; ++r) {
      CAPTURE(r);
      CHECK(e.width(r) == width_ref(e.of(r), e.in_operand(r)));
      CHECK(e.wrong(e.width(r), r) == 0);
      outside = outside || e.width(r) != operand_width::int8;
    }
    e.run_fallback();
    for (index_t r = 0; outside && r < e.rows; ++r) CHECK(e.wrong(operand_width::e5m2, r) == 0);
  }
}

TEST_CASE("widths of sixteen rows are joined without those beyond the last row") {
  for (int rows = 1; rows <= 48; ++rows) {
    for (int only = 0; only < 48; ++only) {
      bytes widths(48, poison);
      for (int r = 0; r < rows; ++r) widths[static_cast<std::size_t>(r)] = r == only ? 1 + rows % 2 : 0;
      const array<std::uint8_t> from(widths);
      array<std::uint32_t> combined(std::vector<std::uint32_t>(3, 9));
      const int groups = (rows + 15) / 16;
      REQUIRE(launch(widths_kernel, gpu::blocks(1), gpu::blocks(groups), 0, {},
                     reinterpret_cast<const operand_width*>(from.there), rows, combined.there)
                  .ok());
      combined.fetch();
      for (int i = 0; i < 3; ++i) {
        const std::uint32_t want = i >= groups ? 9 : only / 16 == i && only < rows ? 1 + rows % 2 : 0;
        CHECK(combined.here[static_cast<std::size_t>(i)] == want);
      }
    }
  }
}

TEST_CASE("one rounding brings a folded sum back, whatever the exponent") {
  std::mt19937 random(3);
  int wrong = 0;
  for (int i = 0; i < 300; ++i) {  // significands of an E8M13 accumulator and of an FP32 sum of them
    const auto significand = static_cast<float>((1u << 23 | (random() & 0x7FFFFFu)) & (i % 2 == 0 ? ~0x3FFu : ~0u));
    const float x = (i % 3 == 0 ? -1.0f : 1.0f) * significand * pow2_fp32(static_cast<int>(random() % 99) - 41 - 23);
    for (int e = -280; e <= 228; ++e) {
      const float want = static_cast<float>(__builtin_ldexp(static_cast<double>(x), e));
      wrong += fp32_bits(times_power(x, e)) != fp32_bits(want);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("FP8 codes are decoded and converted as the definition says: every code under every scale") {
  for (const gemm_element element : {gemm_element::e4m3, gemm_element::e5m2}) {
    bytes codes(256 * 256), scales(256 * 8);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::uint8_t>(i / 8);
    const matrix_data a(256, 256, codes, scales, element), b(1, 256, bytes(256), bytes(8, 127), element);
    expansions e(a, b);
    e.run_bf16();
    int wrong = 0;
    for (index_t r = 0; r < 256; ++r) {
      for (index_t c = 0; c < 256; ++c) {
        const auto code = static_cast<std::uint32_t>(c);
        wrong += fp32_bits(fp8_value(element == gemm_element::e4m3, code)) !=
                 fp32_bits(canonical_nan(decode(format_of(element), code)));
        const auto want =
            encode(formats::bf16, decode_element(a.blocks(), a.here(), r, c), rounding::nearest_even, overflow::to_inf);
        const std::uint64_t got = bits_at(e.wide.here, r * 256 + c, 2);
        wrong += formats::bf16.is_nan(want) ? !formats::bf16.is_nan(got) : got != want;
      }
    }
    CHECK(wrong == 0);
  }
}

}  // namespace gemm_upconvert_test
