// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The fast quantizer equals quantize_ref by bytes.
#include "rotoscale/quantize.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <utility>

#include "oracle/block_values.hpp"

using namespace rotoscale;

namespace {

struct shape {
  index_t rows, cols, stride;
};

/// Runs both, into memory with padding whose bytes must stay, and compares all of it.
template <class T>
bool same_bytes(block_format f, const block_options& o, matrix<T> source, block_axis axis, thread_pool& pool,
                bool dense = false) {
  const index_t rows = source.extent(axis == block_axis::row ? 0 : 1);
  const index_t k = source.extent(axis == block_axis::row ? 1 : 0);
  const index_t code_stride = packed_bytes(f.element, k) + (dense ? 0 : 3),
                scale_stride = k / f.length + (dense ? 0 : 2);
  std::vector<std::uint8_t> codes[2], scales[2];
  for (int fast = 0; fast < 2; ++fast) {
    codes[fast].assign(static_cast<std::size_t>(rows * code_stride), 0xEE);
    scales[fast].assign(static_cast<std::size_t>(rows * scale_stride), 0xEE);
    const block_matrix<std::uint8_t> out{rows, k, codes[fast].data(), code_stride, scales[fast].data(), scale_stride};
    if (fast) {
      quantize(f, o, source, axis, out, pool);
    } else {
      quantize_ref(f, o, source, axis, out);
    }
  }
  return codes[0] == codes[1] && scales[0] == scales[1];
}

std::vector<bf16> as_bf16(const std::vector<float>& x) {
  std::vector<bf16> halves;
  for (const float v : x) halves.push_back(bf16::from_bits(static_cast<std::uint16_t>(fp32_bits(v) >> 16)));
  return halves;
}

const std::vector<scale_rule> rules{scale_rule::floor, scale_rule::ceil, scale_rule::even, scale_rule::rceil};

}  // namespace

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
          for (const rotation& r : {rotation{0, 0}, rotation{0, 5}, rotation{16, 0}, rotation{16, 0xC0FFEE11u}}) {
            const block_options o{source, r, rule, policy, rounding::nearest_even, {}};
            for (const auto axis : {block_axis::row, block_axis::column}) {
              for (const shape& s : axis == block_axis::row ? by_row : by_column) {
                const auto x = oracle::block_values(s.rows, s.stride, ++seed);
                CAPTURE(seed);
                REQUIRE(same_bytes(mxfp4, o, row_major(x.data(), s.rows, s.cols, s.stride), axis, *pool));
                const auto halves = as_bf16(x);
                REQUIRE(same_bytes(mxfp4, o, row_major(halves.data(), s.rows, s.cols, s.stride), axis, *pool));
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
  for (const std::uint32_t bits : {0x7FC00000u, 0xFFC00001u, 0x7F800000u, 0xFF800000u, 0x7F7FFFFFu, 0x80000000u, 1u,
                                   0x80000001u, 0x007FFFFFu, 0x7F7F8000u, 0x00800000u, 0x7F3FFFFFu}) {
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

TEST_CASE("dense matrices, whose rows lie back to back, with ends of every length") {
  thread_pool one(1), three(3);
  std::uint64_t seed = 1000;
  for (const index_t blocks : {1, 2, 5, 16, 17}) {
    for (const index_t rows : {1, 3, 16, 31}) {
      const auto x = oracle::block_values(rows, 32 * blocks, ++seed, rows % 2 == 0);
      const auto halves = as_bf16(x);
      CAPTURE(seed);
      for (thread_pool* pool : {&one, &three}) {
        REQUIRE(
            same_bytes(mxfp4, presets::te_rocm, row_major(x.data(), rows, 32 * blocks), block_axis::row, *pool, true));
        REQUIRE(same_bytes(mxfp4, presets::primus, row_major(halves.data(), rows, 32 * blocks), block_axis::row, *pool,
                           true));
      }
    }
  }
}

TEST_CASE("rounding in code space: FP32 numbers around every tie of E2M1, under every scale that is plain") {
  thread_pool pool(2);
  std::vector<float> x;
  for (int e = -98; e <= 98; e += 7) {
    for (const float tie :
         {0.25f, 0.5f, 0.75f, 1.0f, 1.25f, 1.5f, 1.75f, 2.0f, 2.5f, 3.0f, 3.5f, 4.0f, 5.0f, 6.0f, 7.0f}) {
      const std::uint32_t at = fp32_bits(std::ldexp(tie, e));
      // A block with its largest number first, so that the scale is 2^e, and 31 neighbours of the tie.
      x.push_back(std::ldexp(5.9f, e));
      for (std::uint32_t i = 0; i < 31; ++i) x.push_back(fp32_from_bits((at + i - 15) | (i % 2 << 31)));
    }
  }
  const auto source = row_major(x.data(), static_cast<index_t>(x.size()) / 32, 32);
  for (const auto rule : rules) {
    block_options o;
    o.rule = rule;
    CHECK(same_bytes(mxfp4, o, source, block_axis::row, pool));
    CHECK(same_bytes(mxfp4, o, transposed(source), block_axis::column, pool));
  }
}

TEST_CASE("outputs beyond the caches, which are written past them") {
  thread_pool pool(2);
  CHECK(detail::streaming_bytes <= 2080 * 4096 / 2);
  const auto x = oracle::block_values(2080, 4096, 5);
  const auto source = row_major(x.data(), 2080, 4096);
  CHECK(same_bytes(mxfp4, presets::te_rocm, source, block_axis::row, pool, true));
}

TEST_CASE("both orientations at once are the two by themselves") {
  thread_pool one(1), three(3);
  std::uint64_t seed = 2000;
  block_options other = presets::ocp;
  other.rotation = {16, {0x12345678u}};
  block_options stochastic = presets::te_rocm;
  stochastic.rounding = rounding::stochastic;
  for (const auto& [rows, cols] : {std::pair<index_t, index_t>{32, 32}, {96, 544}, {160, 1056}, {256, 64}}) {
    const auto x = oracle::block_values(rows, cols + 7, ++seed);
    const auto halves = as_bf16(x);
    const auto check = [&](const auto& source, const block_options& by_row, const block_options& by_column,
                           thread_pool& pool) {
      std::vector<std::uint8_t> codes[4], scales[4];
      block_matrix<std::uint8_t> out[4];
      for (int i = 0; i < 4; ++i) {
        const index_t height = i % 2 == 0 ? rows : cols, k = i % 2 == 0 ? cols : rows;
        codes[i].assign(static_cast<std::size_t>(rows * cols / 2), 0xEE);
        scales[i].assign(static_cast<std::size_t>(rows * cols / 32), 0xEE);
        out[i] = dense_blocks(mxfp4, height, k, codes[i].data(), scales[i].data());
      }
      quantize_ref(mxfp4, by_row, source, block_axis::row, out[0]);
      quantize_ref(mxfp4, by_column, source, block_axis::column, out[1]);
      quantize_both(mxfp4, by_row, out[2], by_column, out[3], source, pool);
      CHECK((codes[0] == codes[2] && scales[0] == scales[2]));
      CHECK((codes[1] == codes[3] && scales[1] == scales[3]));
    };
    for (thread_pool* pool : {&one, &three}) {
      check(row_major(x.data(), rows, cols, cols + 7), presets::te_rocm, other, *pool);
      check(row_major(halves.data(), rows, cols, cols + 7), other, presets::te_rocm, *pool);
      check(row_major(x.data(), rows, cols, cols + 7), presets::te_rocm, stochastic, *pool);
    }
  }
}

TEST_CASE("what the 16-lane path does not cover goes the slow way and gives the same bytes") {
  thread_pool pool(3);
  const auto x = oracle::block_values(64, 64, 3);
  const auto source = row_major(x.data(), 64, 64);
  block_options stochastic = presets::te_rocm;
  stochastic.rounding = rounding::stochastic;
  stochastic.random = {99, 7};
  block_options wide = presets::te_rocm;
  wide.rotation = {32, 3};
  block_options half = presets::te_rocm;
  half.source = formats::fp16;
  for (const auto axis : {block_axis::row, block_axis::column}) {
    for (const block_format& f :
         {mxfp4, mxfp8_e4m3, mxfp8_e5m2, block_format{formats::e2m3, 32}, block_format{formats::e2m1, 64}}) {
      for (const auto& o : {presets::te_rocm, stochastic, wide, half}) CHECK(same_bytes(f, o, source, axis, pool));
    }
    CHECK(same_bytes(mxfp4, presets::te_rocm, transposed(matrix<const float>(source)), axis, pool));  // stride(1) != 1
  }
}

TEST_CASE("an empty matrix") {
  thread_pool pool(2);
  quantize(mxfp4, presets::te_rocm, row_major<const float>(nullptr, 0, 32), block_axis::row,
           {0, 32, nullptr, 16, nullptr, 1}, pool);
}
