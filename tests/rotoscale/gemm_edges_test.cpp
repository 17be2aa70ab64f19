// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The fast GEMM equals gemm_ref by bytes in cases that random inputs rarely reach. These are sums that overflow FP32
// and return, accumulators that the model cannot represent, user formats and models at the kernels' limits.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "rotoscale/gemm.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/mma_cases.hpp"

namespace gemm_edges_test {

using namespace rotoscale;

/// Rows of k elements, initially zero.
struct operand {
  std::vector<std::uint8_t> codes, scales;
  gemm_operand view;

  operand(const format& element, index_t rows, index_t k) {
    view.element = element;
    view.rows = rows;
    view.k = k;
    view.code_stride = packed_bytes(element, k);
    codes.resize(static_cast<std::size_t>(rows * view.code_stride));
    view.codes = codes.data();
  }
  operand(const operand&) = delete;
  operand& operator=(const operand&) = delete;

  void set_code(index_t r, index_t i, std::uint64_t code) {
    std::uint8_t* const row = codes.data() + r * view.code_stride;
    if (view.element.bits() <= 8) return store_code(view.element, row, i, static_cast<std::uint32_t>(code));
    const int bytes = storage_bits(view.element) / 8;
    for (int byte = 0; byte < bytes; ++byte) row[i * bytes + byte] = static_cast<std::uint8_t>(code >> (8 * byte));
  }
  void set(index_t r, index_t i, double x) { set_code(r, i, case_source::encoded(view.element, x)); }
  void fill(double x) {
    for (index_t r = 0; r < view.rows; ++r) {
      for (index_t i = 0; i < view.k; ++i) set(r, i, x);
    }
  }
  void fill_numbers(std::uint64_t seed) {
    case_source source(seed, 1);
    for (index_t r = 0; r < view.rows; ++r) {
      for (index_t i = 0; i < view.k; ++i) {
        std::uint64_t code = source.bits(view.element);
        while (view.element.is_nan(code) || view.element.is_infinity(code)) code = source.bits(view.element);
        set_code(r, i, code);
      }
    }
  }
  void set_scales(int block, const format& scale, std::uint8_t code) {
    view.block = block;
    view.scale = scale;
    view.scale_stride = view.scale_columns();
    scales.assign(static_cast<std::size_t>(view.rows * view.scale_stride), code);
    view.scales = scales.data();
  }
};

bool same_from(const operand& a, const operand& b, const gemm_options& o, const std::vector<float>& start) {
  REQUIRE(gemm_is_defined(a.view, b.view, o));
  thread_pool pool(1);
  std::vector<float> c[2] = {start, start};
  gemm_ref(a.view, b.view, o, row_major(c[0].data(), a.view.rows, b.view.rows));
  gemm(a.view, b.view, o, row_major(c[1].data(), a.view.rows, b.view.rows), pool);
  return std::memcmp(c[0].data(), c[1].data(), start.size() * sizeof(float)) == 0;
}
bool same(const operand& a, const operand& b, const gemm_options& o) {
  return same_from(a, b, o, std::vector<float>(static_cast<std::size_t>(a.view.rows * b.view.rows)));
}
gemm_options from_c(const mma_model& model) {
  gemm_options o;
  o.model = model;
  o.start_from_c = true;
  return o;
}

TEST_CASE("an accumulator that leaves FP32 stays Inf, whatever is subtracted later") {
  const mma_model& model = find_unit("hopper-mma-fp16-f32")->model;
  operand a(formats::bf16, 1, 64), b(formats::bf16, 3, 64);
  b.fill(0x1p60);
  for (int exponent = 50; exponent <= 58; ++exponent) {
    for (index_t i = 0; i < 64; ++i) a.set(0, i, std::ldexp(i < 32 ? 1.0 : -1.0, exponent));
    for (const float c : {0x1p125f, 0x1p126f, 0x1.fffffep126f, 0x1p127f, 0x1.fffp127f, 0x1.fffffep127f}) {
      CAPTURE(exponent);
      CAPTURE(c);
      CHECK(same_from(a, b, from_c(model), {c, -c, c / 2}));
    }
  }
}

TEST_CASE("a C that is no number of FP16 joins FP16 accumulators with one rounding") {
  for (const char* name : {"hopper-mma-fp8-f16", "hopper-mma-fp16-f16"}) {
    const mma_unit& unit = *find_unit(name);
    const format f = takes(unit, formats::e4m3) ? formats::e4m3 : formats::fp16;
    operand a(f, 1, 32), b(f, 2, 32);
    a.set(0, 0, 0x1p-6);
    b.set(0, 0, 0x1p-9);
    b.set(1, 0, -0x1p-9);
    for (int bit = -24; bit <= -9; ++bit) {
      const auto c = static_cast<float>(1 + 0x1p-11 + std::ldexp(1.0, bit));
      CAPTURE(name);
      CAPTURE(bit);
      CHECK(same_from(a, b, from_c(unit.model), {c, c}));
      CHECK(same_from(a, b, from_c(unit.model), {1 + 0x1p-11f, -1 - 0x1p-11f}));
      // The same at 2^10: a product of 2^-14 is below FP32's last place.
      CHECK(same_from(a, b, from_c(unit.model), {1024 * c, 1024 + 0.5f}));
    }
  }
}

TEST_CASE("aligned units on formats of other ranges: least normal exponents below the window's, numbers beyond FP32") {
  const format elements[] = {formats::e5m2fnuz, formats::ue5m3, formats::e4m3b11fnuz, formats::int8,
                             formats::e8m0,     formats::e5m2,  formats::bf16,        {6, 9, 31},
                             {6, 3, 20},        {4, 3, -20},    {5, 2, 160},          {5, 10, 15, true, specials::none},
                             {6, 2, 15}};
  std::uint64_t seed = 0;
  for (const char* name : {"hopper-wgmma-fp8-f32", "hopper-mma-fp16-f32", "hopper-mma-fp16-f16", "hopper-mma-tf32-f32",
                           "hopper-mma-fp8-f32", "ada-mma-fp8-f16"}) {
    for (const format& f : elements) {
      for (const bool scaled : {false, true}) {
        operand a(f, 3, 70), b(f, 37, 70);
        a.fill_numbers(++seed);
        b.fill_numbers(++seed);
        if (f.bits() <= 16) {  // a row of least numbers
          for (index_t i = 0; i < 70; ++i) a.set_code(1, i, static_cast<std::uint64_t>(1 + i % 3));
        }
        if (scaled) a.set_scales(32, formats::e8m0, 120);
        gemm_options o;
        o.model = find_unit(name)->model;
        CAPTURE(name);
        CAPTURE(f.exponent_bits);
        CAPTURE(f.bias);
        CAPTURE(scaled);
        CHECK(same(a, b, o));
      }
    }
  }
}

TEST_CASE("aligned models of a user's own: results below FP32's normal numbers, and a floor there") {
  for (const mma_result result : {mma_result::e8m13, mma_result::fp32_truncate}) {
    for (const int bits : {10, 13, 15, 16, 20, 25}) {
      for (const int least : {-124, -125, -126, -133}) {
        operand a(formats::bf16, 2, 16), b(formats::bf16, 3, 16);
        a.fill(0x1p-60);
        b.fill(-0x1p-64);
        b.set(0, 3, 0x1.fep-62);
        b.set(1, 5, 0x1.02p-63);
        for (index_t i = 0; i < 16; ++i) a.set(1, i, i == 2 ? 0x1.fep-60 : i == 3 ? 0x1.02p-60 : 0);
        CAPTURE(bits);
        CAPTURE(least);
        const mma_model model = models::nvidia(16, bits, result, least);
        CHECK(same_from(a, b, from_c(model), {0, 0, 0, 0x1.fffffep-126f, 0x1.800002p-126f, 0x1.fffffep-125f}));
        const operand zeros(formats::e4m3, 2, 16);
        CHECK(same_from(zeros, b, from_c(model), {0, 0, 0, 0x1.fffffep-126f, 0x1.800002p-126f, 0x1.fffffep-125f}));
      }
    }
  }
}

TEST_CASE("aligned models of a user's own: sums cancel below an E8M13 result's last place, and below FP32's numbers") {
  for (const int bits : {13, 15, 16, 20, 25}) {
    // (1 + 2^-10)^2 - (1 + 2^-9) = 2^-20, of 2^-124: less than 2^-139.
    operand a(formats::tf32, 1, 16), b(formats::tf32, 1, 16);
    a.set(0, 0, 0x1.004p-60);
    b.set(0, 0, 0x1.004p-64);
    a.set(0, 1, 0x1.008p-60);
    b.set(0, 1, -0x1p-64);
    a.set(0, 2, 0x1p-30);  // times zero: moves the kernel's window down to the products
    b.set(0, 3, 0x1p-34);
    CAPTURE(bits);
    gemm_options o;
    o.model = models::nvidia(16, bits, mma_result::e8m13, -133);
    CHECK(same(a, b, o));

    // FP32 cannot hold 2^-161 and its multiples, but it holds their products with 2^100.
    operand small(format{5, 2, 160}, 1, 16), large(formats::bf16, 1, 16);
    for (index_t i = 0; i < 16; ++i) small.set_code(0, i, static_cast<std::uint64_t>(1 + i % 7));
    large.fill(0x1p100);
    o.model = models::nvidia(16, bits, mma_result::fp32_truncate, -133);
    CHECK(same(small, large, o));
  }
}

TEST_CASE("aligned units on a row whose largest number meets a zero, and whose least one decides") {
  for (const int apart : {62, 63, 100, 190}) {
    operand a(formats::bf16, 1, 16), b(formats::bf16, 1, 16);
    a.set(0, 0, std::ldexp(1.0, apart / 2));
    a.set(0, 1, std::ldexp(1.0, apart / 2 - apart));
    b.set(0, 1, 1.0);
    gemm_options o;
    o.model = find_unit("hopper-mma-fp16-f32")->model;
    CAPTURE(apart);
    CHECK(same(a, b, o));
  }
}

TEST_CASE("a C of -0 and negative sums times a scale of zero") {
  operand a(formats::e2m1, 3, 64), b(formats::e2m1, 2, 64);
  a.fill(-3);
  b.fill(2);
  a.set_scales(16, formats::ue4m3, 0x38);
  b.set_scales(16, formats::ue4m3, 0);
  const mma_model& model = find_unit("blackwell-nvf4-f32")->model;
  CHECK(same_from(a, b, from_c(model), {-0.0f, -0.0f, 0.0f, -0.0f, 1.0f, -1.0f}));
  // One run per step: packed rows of an odd number of words.
  gemm_options o = from_c(model);
  o.model.group = 16;
  operand x(formats::e2m1, 3, 16), y(formats::e2m1, 2, 16);
  x.fill_numbers(1);
  y.fill_numbers(2);
  x.set_scales(16, formats::ue4m3, 0x38);
  y.set_scales(16, formats::ue4m3, 0x41);
  CHECK(same_from(x, y, o, {-0.0f, 1.5f, 0.0f, -0.0f, 1.0f, -1.0f}));
}

TEST_CASE("a chain of -0 from a C of -0") {
  operand a(formats::fp32, 3, 4), b(formats::fp32, 40, 4);
  a.fill(-0.0);
  b.fill(2);
  CHECK(same_from(a, b, from_c(find_unit("fp32-fma-chain")->model), std::vector<float>(120, -0.0f)));
}

TEST_CASE("depth zero: no codes, but for the sanitizers a pointer to none") {
  for (const char* name : {"fp32-fma-chain", "fp32-blockwise", "blackwell-nvf4-f32", "hopper-wgmma-fp8-f32"}) {
    const operand a(formats::e2m1, 3, 0), b(formats::e2m1, 2, 0);
    CHECK(same_from(a, b, from_c(find_unit(name)->model), {-0.0f, 1.5f, 0.0f, -0.0f, 1.0f, 0x1p-149f}));
    const operand x(formats::fp32, 3, 0), y(formats::fp16, 2, 0);
    if (name[0] != 'b') CHECK(same_from(x, y, from_c(find_unit(name)->model), std::vector<float>(6, 2.0f)));
  }
}

}  // namespace gemm_edges_test
