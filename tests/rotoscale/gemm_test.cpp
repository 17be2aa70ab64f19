// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The fast GEMM equals gemm_ref by bytes.
#include "rotoscale/gemm.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "oracle/block_values.hpp"

namespace gemm_test {

using namespace rotoscale;

/// Scale bytes of an operand.
enum class scale_kind { none, ordinary, with_nan, top, bottom, any };

struct operand {
  std::vector<std::uint8_t> codes, scales;
  float factor = 1.0f;
  gemm_operand view;

  operand(const format& element, index_t rows, index_t k, scale_kind kind, std::uint64_t seed, int block = 32) {
    const random_stream random{seed, 21};
    const index_t stride = packed_bytes(element, k) + (seed % 3 == 0 ? 0 : 4 * static_cast<index_t>(seed % 3));
    for (index_t i = 0; i < rows * stride; ++i) {
      codes.push_back(static_cast<std::uint8_t>(random.word(static_cast<std::uint64_t>(i))));
    }
    if (element.bits() > 8) fill_numbers(element, rows, k, stride, seed);
    view = {element, rows, k, codes.data(), stride, 0, nullptr, 0, nullptr};
    if (kind != scale_kind::none) {
      const index_t per_row = (k + block - 1) / block;
      for (index_t i = 0; i < rows * per_row; ++i) {
        scales.push_back(scale_byte(kind, random.word((std::uint64_t{1} << 40) + static_cast<std::uint64_t>(i))));
      }
      view.block = block;
      view.scales = scales.data();
      view.scale_stride = per_row;
    }
    if (seed % 2 == 1) {
      factor = 0.37f + static_cast<float>(seed % 5);
      view.factor = &factor;
    }
  }
  operand(const operand&) = delete;
  operand& operator=(const operand&) = delete;

  void fill_numbers(const format& element, index_t rows, index_t k, index_t stride, std::uint64_t seed) {
    const auto x = oracle::block_values(rows, k, seed, seed % 4 == 0);
    const index_t bytes = element.bits() / 8;
    for (index_t r = 0; r < rows; ++r) {
      for (index_t c = 0; c < k; ++c) {
        const std::uint64_t code = encode(element, x[static_cast<std::size_t>(r * k + c)]);
        for (index_t byte = 0; byte < bytes; ++byte) {
          codes[static_cast<std::size_t>(r * stride + c * bytes + byte)] =
              static_cast<std::uint8_t>(code >> (8 * byte));
        }
      }
    }
  }
  static std::uint8_t scale_byte(scale_kind kind, std::uint32_t word) {
    switch (kind) {
      case scale_kind::with_nan: return word % 50 == 0 ? 255 : static_cast<std::uint8_t>(120 + word % 14);
      case scale_kind::top: return static_cast<std::uint8_t>(250 + word % 5);
      case scale_kind::bottom: return static_cast<std::uint8_t>(word % 5);
      case scale_kind::any: return static_cast<std::uint8_t>(word % 255);
      default: return static_cast<std::uint8_t>(120 + word % 14);
    }
  }
};

/// Compares both results in padded memory. The padding must stay.
bool same_bytes(const operand& a, const operand& b, const gemm_options& o, thread_pool& pool, bool columns = false) {
  const index_t m = a.view.rows, n = b.view.rows;
  const index_t ldc = columns ? m + 1 : n + 3;
  std::vector<float> c[2];
  for (int fast = 0; fast < 2; ++fast) {
    c[fast] = oracle::block_values(columns ? n : m, ldc, 4, false);
    const auto whole = row_major(c[fast].data(), columns ? n : m, columns ? m : n, ldc);
    const auto target = columns ? transposed(whole) : whole;
    if (fast) {
      gemm(a.view, b.view, o, target, pool);
    } else {
      gemm_ref(a.view, b.view, o, target);
    }
  }
  return std::memcmp(c[0].data(), c[1].data(), c[0].size() * sizeof(float)) == 0;
}

struct shape {
  index_t m, n, k;
};
// Extents around the microkernel's 8 (6, 4) rows and 32 (16, 8) columns, and its 256-deep steps.
const std::vector<shape> shapes{{1, 1, 32}, {7, 5, 64}, {9, 33, 32}, {3, 2, 288}, {13, 34, 96}, {70, 3, 64}};
const std::vector<shape> odd_depths{{1, 1, 1}, {5, 3, 2}, {9, 35, 17}, {4, 5, 259}};

std::vector<gemm_options> option_list(const mma_model& model) {
  return {{model, formats::fp32, false},
          {model, formats::fp32, true},
          {model, formats::bf16, false},
          {model, formats::bf16, true}};
}

struct pools {
  thread_pool one{1}, two{2}, three{3};
  std::vector<thread_pool*> all{&one, &two, &three};
};

TEST_CASE("MXFP4, both models, every kind of scales") {
  pools p;
  std::uint64_t seed = 0;
  for (const auto kind : {scale_kind::ordinary, scale_kind::none, scale_kind::with_nan, scale_kind::any}) {
    for (const auto& model : {fp32_fma_chain, fp32_blockwise}) {
      for (const shape& s : shapes) {
        ++seed;
        const operand a(formats::e2m1, s.m, s.k, kind, seed), b(formats::e2m1, s.n, s.k, kind, seed + 1000);
        for (const auto& o : option_list(model)) {
          CAPTURE(seed);
          for (thread_pool* pool : p.all) REQUIRE(same_bytes(a, b, o, *pool));
        }
      }
    }
  }
}

TEST_CASE("FP32, BF16, FP16, E4M3, E5M2, E2M3 and mixtures along one chain") {
  pools p;
  std::uint64_t seed = 0;
  const std::vector<std::pair<format, format>> pairs{{formats::fp32, formats::fp32}, {formats::bf16, formats::bf16},
                                                     {formats::e4m3, formats::e4m3}, {formats::e5m2, formats::e4m3},
                                                     {formats::e5m2, formats::e5m2}, {formats::fp16, formats::bf16},
                                                     {formats::e2m3, formats::e2m1}, {formats::fp32, formats::e5m2}};
  for (const auto& [left, right] : pairs) {
    for (const auto& list : {shapes, odd_depths}) {
      for (const shape& s : list) {
        ++seed;
        const operand a(left, s.m, s.k, scale_kind::none, seed), b(right, s.n, s.k, scale_kind::none, seed + 1000);
        for (const auto& o : option_list(fp32_fma_chain)) {
          CAPTURE(seed);
          REQUIRE(same_bytes(a, b, o, *p.all[seed % 3]));
        }
      }
    }
  }
}

TEST_CASE("block scales with any element: MXFP8, and formats wider than a byte") {
  thread_pool pool(2);
  std::uint64_t seed = 0;
  constexpr format beyond_fp32{5, 2, 160, true, specials::none};  // only scaled numbers fit FP32
  for (const auto kind : {scale_kind::ordinary, scale_kind::with_nan, scale_kind::any}) {
    for (const format& element :
         {formats::e4m3, formats::e5m2, formats::e2m3, formats::bf16, formats::fp32, beyond_fp32}) {
      for (const shape& s : shapes) {
        ++seed;
        const operand a(element, s.m, s.k, kind, seed), b(formats::e4m3, s.n, s.k, kind, seed + 1000);
        CAPTURE(seed);
        REQUIRE(same_bytes(a, b, {}, pool));
        REQUIRE(same_bytes(b, a, {}, pool));
      }
    }
  }
}

TEST_CASE("blockwise at the ends of the scales: where FP32 cannot hold elements, partial or block sums") {
  thread_pool pool(2);
  std::uint64_t seed = 0;
  const auto kinds = {scale_kind::ordinary, scale_kind::top, scale_kind::bottom, scale_kind::any};
  for (const auto left : kinds) {
    for (const auto right : kinds) {
      for (const shape& s : shapes) {
        ++seed;
        const operand a(formats::e2m1, s.m, s.k, left, seed), b(formats::e2m1, s.n, s.k, right, seed + 1000);
        CAPTURE(seed);
        REQUIRE(same_bytes(a, b, {fp32_blockwise}, pool));
        REQUIRE(same_bytes(a, b, {fp32_fma_chain}, pool));
      }
    }
  }
}

TEST_CASE("elements beyond FP32 times small scales: the block sum is an ordinary number") {
  thread_pool pool(1);
  for (const int high : {251, 252, 253, 254}) {
    operand a(formats::e2m1, 3, 64, scale_kind::ordinary, 6), b(formats::e2m1, 3, 64, scale_kind::ordinary, 12);
    for (auto& s : a.scales) s = static_cast<std::uint8_t>(high);
    for (auto& s : b.scales) s = 3;
    CAPTURE(high);
    CHECK(same_bytes(a, b, {fp32_blockwise}, pool));
    CHECK(same_bytes(b, a, {fp32_blockwise}, pool));
  }
}

TEST_CASE("other groups, with whole-matrix and longer blocks; the largest sums that they can have") {
  thread_pool pool(2);
  for (const int group : {2, 4, 16, 24, 32, 64, 128, 256, 512}) {
    for (const shape& s : shapes) {
      const operand a(formats::e2m1, s.m, s.k, scale_kind::none, 3), b(formats::e2m1, s.n, s.k, scale_kind::none, 5);
      CAPTURE(group);
      REQUIRE(same_bytes(a, b, {mma_model{group}}, pool));
      const int length = group == 24 ? 24 : std::max(group, 32);
      const operand x(formats::e2m1, s.m, s.k, scale_kind::any, 7, length);
      const operand y(formats::e2m1, s.n, s.k, scale_kind::ordinary, 9, length);
      REQUIRE(same_bytes(x, y, {mma_model{group}}, pool));
    }
    if (group == 24) continue;
    // All products are 36 or -36 * 2^e. Sums go above 2^128 and return.
    const int block = group < 32 ? 32 : group;
    for (int e = 112; e <= 122; ++e) {
      operand x(formats::e2m1, 2, 2 * block, scale_kind::ordinary, 6, block);
      operand y(formats::e2m1, 2, 2 * block, scale_kind::ordinary, 12, block);
      for (auto& code : x.codes) code = 0x77;
      for (std::size_t i = 0; i < y.codes.size(); ++i) {
        y.codes[i] = i % static_cast<std::size_t>(block) < static_cast<std::size_t>(block / 2) ? 0x77 : 0xFF;
      }
      for (auto& scale : x.scales) scale = static_cast<std::uint8_t>(127 + e / 2);
      for (auto& scale : y.scales) scale = static_cast<std::uint8_t>(127 + e - e / 2);
      CAPTURE(e);
      REQUIRE(same_bytes(x, y, {mma_model{group}}, pool));
    }
  }
}

TEST_CASE("parts of K in each order: the operands of a chain stay where they are") {
  thread_pool pool(2);
  std::uint64_t seed = 0;
  for (const auto& list : {shapes, odd_depths}) {
    for (const shape& s : list) {
      const operand a(formats::fp32, s.m, s.k, scale_kind::none, ++seed);
      const operand b(formats::bf16, s.n, s.k, scale_kind::none, ++seed);
      for (const auto order : {split_order::ascending, split_order::descending, split_order::pairwise}) {
        for (const index_t parts : {1, 2, 3, 5}) {
          gemm_options o{fp32_fma_chain};
          o.order = order;
          o.split_k = parts;
          o.promotion = parts == 5 ? 7 : 0;
          CAPTURE(parts);
          REQUIRE(same_bytes(a, b, o, pool));
        }
      }
    }
  }
}

TEST_CASE("a column-major C") {
  thread_pool pool(2);
  for (const shape& s : shapes) {
    const operand a(formats::e2m1, s.m, s.k, scale_kind::ordinary, 3);
    const operand b(formats::e2m1, s.n, s.k, scale_kind::with_nan, 5);
    for (const auto& o : option_list(fp32_blockwise)) CHECK(same_bytes(a, b, o, pool, true));
  }
}

TEST_CASE("a large aligned C, which bypasses the caches") {
  thread_pool pool(2);
  constexpr index_t m = 513, n = 528, k = 7, room = m * n + 16;
  const operand a(formats::fp32, m, k, scale_kind::none, 3), b(formats::fp32, n, k, scale_kind::none, 6);
  for (const format output : {formats::fp32, formats::bf16}) {
    std::vector<float> want(room), got(room);
    const auto aligned = [](std::vector<float>& x) {
      return row_major(x.data() + (64 - reinterpret_cast<std::uintptr_t>(x.data()) % 64) % 64 / 4, m, n);
    };
    gemm_ref(a.view, b.view, {fp32_fma_chain, output}, aligned(want));
    gemm(a.view, b.view, {fp32_fma_chain, output}, aligned(got), pool);
    CHECK(std::memcmp(aligned(want).data, aligned(got).data, m * n * sizeof(float)) == 0);
  }
}

TEST_CASE("depth zero, and an output format without a short cut") {
  thread_pool pool(2);
  const operand a(formats::fp32, 3, 0, scale_kind::none, 3), b(formats::fp32, 5, 0, scale_kind::none, 6);
  for (const auto& o : option_list(fp32_fma_chain)) CHECK(same_bytes(a, b, o, pool));
  const operand x(formats::bf16, 9, 40, scale_kind::none, 3), y(formats::bf16, 35, 40, scale_kind::none, 6);
  CHECK(same_bytes(x, y, {fp32_fma_chain, formats::fp16, true}, pool));
  CHECK(same_bytes(x, y, {fp32_fma_chain, formats::e5m2, false}, pool));
}

}  // namespace gemm_test
