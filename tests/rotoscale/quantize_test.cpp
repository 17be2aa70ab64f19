// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The fast quantizer equals quantize_ref by bytes.
#include "rotoscale/quantize.hpp"

#include <doctest/doctest.h>

#include <string>

#include "oracle/block_values.hpp"

using namespace rotoscale;

namespace {

struct shape {
  index_t rows, cols, stride;
};

/// Runs both, into memory with padding whose bytes must stay, and compares all of it.
bool same_bytes(block_format f, const block_options& o, matrix<const float> source, block_axis axis,
                thread_pool& pool) {
  const index_t rows = source.extent(axis == block_axis::row ? 0 : 1);
  const index_t k = source.extent(axis == block_axis::row ? 1 : 0);
  const index_t code_stride = packed_bytes(f.element, k) + 3, scale_stride = k / f.length + 2;
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
  quantize(mxfp4, presets::te_rocm, row_major<const float>(nullptr, 0, 32), block_axis::row, {0, 32, nullptr, 16, nullptr, 1},
           pool);
}
