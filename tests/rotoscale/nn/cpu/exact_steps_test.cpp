// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// MXFP4 under intel-amx-bf16 as blocks: the rule's limits, and equal bytes within them.
#include "rotoscale/nn/cpu/exact_steps.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "rotoscale/dequantize.hpp"
#include "rotoscale/gemm.hpp"

namespace exact_steps_test {

using namespace rotoscale;
namespace cpu = rotoscale::nn::cpu;

constexpr index_t k = 96;

/// Random codes. Scale exponents are in [exponent, exponent + spread], those of zero blocks 0 or 254.
struct operand {
  std::vector<std::uint8_t> codes, scales;
  std::vector<bf16> values;
  gemm_operand view;

  operand(index_t rows, int exponent, std::uint32_t spread, std::uint64_t seed) {
    const random_stream random{seed, 7};
    const auto word = [&](index_t i) { return random.word(static_cast<std::uint64_t>(i)); };
    for (index_t i = 0; i < rows * k / 2; ++i) codes.push_back(static_cast<std::uint8_t>(word(i)));
    for (index_t i = 0; i < rows * k / 32; ++i) {
      const std::uint32_t w = word(1000000 + i);
      const bool zero = w % 7 == 0;
      for (index_t b = 16 * i; zero && b < 16 * (i + 1); ++b) codes[static_cast<std::size_t>(b)] &= 0x88;
      scales.push_back(static_cast<std::uint8_t>(
          zero ? w / 8 % 2 * 254 : 127 + exponent + static_cast<int>(i == 1 ? 0 : w / 16 % (spread + 1))));
    }
    view = {formats::e2m1, rows, k, codes.data(), k / 2, 32, scales.data(), k / 32};
  }
  gemm_operand as_bf16(thread_pool& pool) {
    values.resize(static_cast<std::size_t>(view.rows * k));
    const block_matrix<const std::uint8_t> in{view.rows, k, codes.data(), k / 2, scales.data(), k / 32};
    const matrix<bf16> to = row_major(values.data(), view.rows, k);
    dequantize(view.blocks(), in, block_axis::row, to, pool);
    return make_operand(row_major<const bf16>(values.data(), view.rows, k));
  }
};

/// The definition's bytes against those of blocks, written over a C with NaN.
bool same_bytes(operand& a, operand& b, gemm_options o) {
  thread_pool pool(2);
  o.accumulate = true;
  std::vector<float> want(static_cast<std::size_t>(a.view.rows * b.view.rows), 0.0f);
  want[3] = fp32_from_bits(0x7F812345u);
  std::vector<float> got = want;
  gemm_ref(a.as_bf16(pool), b.as_bf16(pool), o, row_major(want.data(), a.view.rows, b.view.rows));
  gemm(a.view, b.view, cpu::blockwise_options(o), row_major(got.data(), a.view.rows, b.view.rows), pool);
  return std::memcmp(want.data(), got.data(), want.size() * sizeof(float)) == 0;
}

TEST_CASE("MXFP4 under AMX's model: exact steps have the bytes of blocks, up to the rule's limits") {
  gemm_options o;
  o.model = models::intel(32, mma_sum::split_chains);
  struct limit {
    int a, b;
    std::uint32_t spread;
    bool exact, same;
  };
  // Products below 2^-126, flushed inputs and Inf make other bytes.
  for (const limit& l : {limit{0, 0, 9, true, true},
                         {-62, -62, 8, true, true},
                         {-62, -63, 8, false, false},
                         {-125, 1, 3, true, true},
                         {-126, 40, 3, false, false},
                         {50, 50, 8, true, true},
                         {50, 50, 9, false, true},
                         {122, -20, 3, true, true},
                         {122, -20, 4, false, false}}) {
    CAPTURE(l.a);
    CAPTURE(l.b);
    operand a(19, l.a, l.spread, 1), b(37, l.b, l.spread, 2);
    CHECK(cpu::has_exact_steps(a.view, b.view, o) == l.exact);
    CHECK(same_bytes(a, b, o) == l.same);
  }
}

TEST_CASE("MXFP4 under AMX's model: NaN scales, square blocks, other contracts") {
  gemm_options o;
  o.model = models::intel(32, mma_sum::split_chains);
  operand a(32, -100, 3, 1), b(32, 80, 3, 2);
  REQUIRE(cpu::has_exact_steps(a.view, b.view, o));
  gemm_operand square = a.view;
  square.block_rows = 32;
  a.scales[2] = 1;  // not zero in all 32 rows
  CHECK_FALSE(cpu::has_exact_steps(square, b.view, o));
  a.scales[2] = 255;
  for (int i = 32; i < 48; ++i) a.codes[static_cast<std::size_t>(i)] = 0;
  CHECK_FALSE(cpu::has_exact_steps(a.view, b.view, o));
  a.scales[2] = 0;
  CHECK(cpu::has_exact_steps(a.view, b.view, o));
  gemm_options parts = o, other = o;
  parts.split_k = 2;
  other.start_from_c = true;
  CHECK_FALSE(cpu::has_exact_steps(a.view, b.view, parts));
  CHECK_FALSE(cpu::has_exact_steps(a.view, b.view, other));
  CHECK_FALSE(cpu::has_exact_steps(a.view, b.view, {fp32_fma_chain}));
}

}  // namespace exact_steps_test
