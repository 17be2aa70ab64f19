// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The search for a kernel's order along K. Results are made in a known order, by gemm_ref or, for FP64, by the C
// library's fma. Among the candidates up to that order, only the order itself may explain them.
#include "examples/probe/gemm.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "examples/probe/cases.hpp"

using namespace rotoscale;
using namespace rotoscale::probe;

namespace {

void fill(std::vector<std::uint8_t>& codes, const format& f, std::int64_t count, std::uint64_t seed) {
  case_source source(seed, 1);
  const int bytes = element_bytes(f);
  codes.resize(static_cast<std::size_t>(count * bytes));
  for (std::int64_t i = 0; i < count; ++i) {
    store_little_endian(codes, static_cast<std::size_t>(i * bytes), source.code(f, case_kind::normal), bytes);
  }
}

/// Random operands. TF32 operands are FP32 words.
probed_gemm problem(const format& element, const format& d, std::int64_t m, std::int64_t n, std::int64_t k) {
  probed_gemm p{m, n, k, element, element, d, {}, {}, {}};
  const format stored = element == formats::tf32 ? formats::fp32 : element;
  fill(p.codes_a, stored, m * k, 1);
  fill(p.codes_b, stored, n * k, 2);
  p.codes_d.resize(static_cast<std::size_t>(m * n * element_bytes(d)));
  return p;
}

gemm_operand operand(const format& element, const std::vector<std::uint8_t>& codes, std::int64_t rows, std::int64_t k) {
  gemm_operand o;
  o.element = element == formats::tf32 ? formats::fp32 : element;
  o.rows = rows;
  o.k = k;
  o.codes = codes.data();
  o.code_stride = k * element_bytes(o.element);
  return o;
}

/// Sets d to the result of a kernel with these options.
void answer(probed_gemm& p, const gemm_options& o, bool operands_to_nearest = false) {
  auto a = p.codes_a, b = p.codes_b;
  for (auto* codes : {&a, &b}) {
    for (std::size_t i = 0; operands_to_nearest && i < codes->size(); i += 4) {
      const auto word = static_cast<std::uint32_t>(load_little_endian(*codes, i, 4));
      store_little_endian(*codes, i, (word + 0xFFFu + (word >> 13 & 1u)) & ~0x1FFFu, 4);
    }
  }
  std::vector<float> c(static_cast<std::size_t>(p.m * p.n));
  gemm_ref(operand(p.a, a, p.m, p.k), operand(p.b, b, p.n, p.k), o, row_major(c.data(), p.m, p.n));
  const int bytes = element_bytes(p.d);
  for (std::size_t i = 0; i < c.size(); ++i) {
    store_little_endian(p.codes_d, i * static_cast<std::size_t>(bytes), encode(p.d, c[i]), bytes);
  }
}

/// Describes the first candidate that gives all of d.
std::string found(const probed_gemm& p) {
  thread_pool pool(1);
  for (const k_order& order : candidate_orders(p, p.d == formats::fp16)) {
    if (explained(p, order, pool) == p.m * p.n) return to_text(order, p.k);
  }
  return "none";
}

gemm_options on(const char* unit, const format& d) {
  gemm_options o;
  o.model = find_unit(unit)->model;
  o.output = d;
  return o;
}

}  // namespace

TEST_CASE("each way along K is found, and as what it is") {
  probed_gemm p = problem(formats::fp16, formats::fp32, 5, 6, 512);
  gemm_options o = on("hopper-wgmma-fp16-f32", p.d);
  const auto expect = [&](const std::string& text) {
    answer(p, o);
    CHECK(found(p) == text);
  };
  expect("hopper-mma-fp16-f32, one chain");
  o.split_k = 3;
  o.split_grain = 64;
  expect("hopper-mma-fp16-f32, parts of 192, added ascending");
  o.order = split_order::descending;
  expect("hopper-mma-fp16-f32, parts of 192, added descending");
  o.split_k = 5;
  o.order = split_order::pairwise;
  o.split_grain = 16;
  expect("hopper-mma-fp16-f32, parts of 112, added pairwise");
  o = on("hopper-mma-fp16-f32", p.d);
  o.split_k = 4;
  o.split_run = 32;
  expect("hopper-mma-fp16-f32, 4 slices of runs of 32, added ascending");
  o = on("hopper-mma-k8-fp16-f32", p.d);
  expect("hopper-mma-k8-fp16-f32, one chain");
  o = on("hopper-mma-fp16-f32", p.d);
  o.model.fraction_bits = 20;
  expect("none");
}

TEST_CASE("FP8 that is promoted, FP16 accumulators, TF32 operands that are rounded first") {
  probed_gemm fp8 = problem(formats::e4m3, formats::bf16, 5, 6, 512);
  gemm_options o = on("hopper-wgmma-fp8-f32", fp8.d);
  o.promotion = 128;
  answer(fp8, o);
  CHECK(found(fp8) == "hopper-wgmma-fp8-f32, promoted every 128");
  probed_gemm fp16 = problem(formats::fp16, formats::fp16, 8, 8, 512);
  o = on("hopper-mma-fp16-f16", fp16.d);
  o.split_k = 4;
  answer(fp16, o);
  CHECK(found(fp16) == "hopper-mma-fp16-f16, parts of 128, added ascending");
  o.split_sum = formats::fp16;
  answer(fp16, o);
  CHECK(found(fp16) == "hopper-mma-fp16-f16, parts of 128, added ascending in FP16");
  probed_gemm tf32 = problem(formats::tf32, formats::fp32, 5, 6, 128);
  for (std::size_t i = 0; i < tf32.codes_a.size(); i += 28) {  // ties
    store_little_endian(tf32.codes_a, i, (load_little_endian(tf32.codes_a, i, 4) & ~std::uint64_t{0x1FFF}) | 0x1000, 4);
  }
  o = on("hopper-mma-tf32-f32", tf32.d);
  answer(tf32, o);
  CHECK(found(tf32) == "hopper-mma-tf32-f32, one chain");
  answer(tf32, o, true);
  CHECK(found(tf32) == "hopper-mma-tf32-f32 of operands rounded to nearest even, one chain");
}

TEST_CASE("FP64: chains of fused multiply-adds, whole, in parts and in slices") {
  probed_gemm p = problem(formats::fp64, formats::fp64, 3, 4, 256);
  const auto number = [](const std::vector<std::uint8_t>& codes, std::int64_t i) {
    return bit_cast<double>(load_little_endian(codes, static_cast<std::size_t>(i) * 8, 8));
  };
  const auto expect = [&](int parts, auto part_of, const char* text) {
    for (std::int64_t e = 0; e < 12; ++e) {
      std::vector<double> sums(static_cast<std::size_t>(parts));
      for (std::int64_t k = 0; k < 256; ++k) {
        double& sum = sums[static_cast<std::size_t>(part_of(k))];
        sum = std::fma(number(p.codes_a, e / 4 * 256 + k), number(p.codes_b, e % 4 * 256 + k), sum);
      }
      double d = sums[0];
      for (std::size_t i = 1; i < sums.size(); ++i) d += sums[i];
      store_little_endian(p.codes_d, static_cast<std::size_t>(e) * 8, bit_cast<std::uint64_t>(d), 8);
    }
    CHECK(found(p) == text);
  };
  expect(
      1, [](std::int64_t) { return 0; }, "hopper-mma-fp64-f64, one chain");
  expect(
      4, [](std::int64_t k) { return k / 64; }, "hopper-mma-fp64-f64, parts of 64, added ascending");
  expect(
      4, [](std::int64_t k) { return k / 16 % 4; }, "hopper-mma-fp64-f64, 4 slices of runs of 16, added ascending");
}

TEST_CASE("a sample is a problem of its own") {
  probed_gemm p = problem(formats::bf16, formats::bf16, 40, 70, 64);
  answer(p, on("hopper-mma-fp16-f32", p.d));
  const gemm_sample sample = make_sample(p, 50, 3);
  CHECK(sample.rows.size() == 40);
  CHECK(sample.columns.size() == 50);
  const probed_gemm small = gathered(p, sample);
  CHECK((small.m == 40 && small.n == 50 && small.k == 64));
  CHECK(found(small) == "hopper-mma-fp16-f32, one chain");
  probed_gemm wrong = small;
  wrong.codes_d[2 * 777] ^= 1;
  thread_pool pool(1);
  CHECK(explained(wrong, candidate_orders(wrong, false)[0], pool) == 40 * 50 - 1);
}
