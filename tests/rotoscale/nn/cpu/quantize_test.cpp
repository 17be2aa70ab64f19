// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operand quantization equals the one rounding routine, code by code, and delayed scaling is Transformer Engine's.
#include "rotoscale/nn/cpu/quantize.hpp"

#include <limits>

#include "../numbers.hpp"

using namespace rotoscale;
using namespace rotoscale::testing;
namespace nn = rotoscale::nn;
namespace cpu = rotoscale::nn::cpu;

namespace {

float as_bf16(float x) {
  return decode(formats::bf16, encode(formats::bf16, x, rounding::nearest_even, overflow::to_inf));
}

/// An operand with memory for rows × k codes and `gap` bytes between rows.
struct memory_operand {
  std::vector<std::uint8_t> codes, scales;
  gemm_operand described;

  memory_operand(nn::number_format f, index_t rows, index_t k, index_t gap = 0) {
    gemm_operand& o = described;
    o.element = nn::element_format(f);
    o.rows = rows;
    o.k = k;
    o.code_stride = packed_bytes(o.element, k) + gap;
    o.block = nn::is_mx(f) ? 32 : 0;
    o.scale_stride = o.block ? k / o.block : 0;
    codes.assign(static_cast<std::size_t>(rows * o.code_stride), 0xA5);
    scales.assign(static_cast<std::size_t>(rows * o.scale_stride), 0xA5);
    o.codes = codes.data();
    o.scales = scales.data();
  }

  block_matrix<std::uint8_t> memory() {
    const gemm_operand& o = described;
    return {o.rows, o.k, codes.data(), o.code_stride, scales.data(), o.scale_stride};
  }
};

/// One tensor's state of delayed scaling.
struct scaling_case {
  float scale = 3.0f, inverse = 1.0f / 3.0f, amax = 0.0f, largest = 448.0f;
  std::vector<float> history;

  explicit scaling_case(std::vector<float> past) : history(std::move(past)) {}
  void update(const nn::delayed_scaling& rule, float seen) {
    amax = seen;
    cpu::update_scales({1, static_cast<int>(history.size()), &scale, &inverse, &amax, history.data(), &largest}, rule);
  }
};

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("fp8_bits is encode for every BF16 number times many scales") {
  const float scales[] = {1.0f, 448.0f, 57344.0f, 3.0f, 0x1p-20f, 0x1p20f, 1.0f / 3.0f, 0x1p-126f, 3.4e38f, 0.1f};
  long long wrong = 0;
  for (const float scale : scales) {
    for (std::uint32_t b = 0; b < 0x10000; ++b) {
      const float x = fp32_from_bits(b << 16) * scale;
      wrong += cpu::detail::fp8_bits<formats::e4m3>(x) != encode(formats::e4m3, x);
      wrong += cpu::detail::fp8_bits<formats::e5m2>(x) != encode(formats::e5m2, x);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("bf16_bits and fp8_bits are encode over a scan of FP32, ties and specials included") {
  long long wrong = 0;
  const auto check = [&](std::uint32_t u) {
    const float x = fp32_from_bits(u);
    wrong += cpu::detail::bf16_bits(x) != encode(formats::bf16, x, rounding::nearest_even, overflow::to_inf);
    wrong += cpu::detail::fp8_bits<formats::e4m3>(x) != encode(formats::e4m3, x);
    wrong += cpu::detail::fp8_bits<formats::e5m2>(x) != encode(formats::e5m2, x);
  };
  for (std::uint64_t u = 0; u < 0x100000000u; u += 9973) check(static_cast<std::uint32_t>(u));
  for (std::uint32_t high = 0; high < 0x10000; high += 3) {  // halfway between two BF16 numbers, and its neighbours
    for (const std::uint32_t low : {0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) check(high << 16 | low);
  }
  CHECK(wrong == 0);
}

TEST_CASE("operands: every format along both axes from a strided source, ragged tiles included") {
  thread_pool pool(2);
  using enum nn::number_format;
  for (const auto& [rows, cols] : {std::pair<index_t, index_t>{70, 97}, {1, 5}, {64, 64}, {33, 65}}) {
    strided_matrix source(rows, cols, 3, random_tensor(rows * cols, 5, 4.0));
    source.view()(0, 0) = -0.0f;
    for (const nn::number_format f : {fp32, bf16, fp8_e4m3, fp8_e5m2}) {
      for (const block_axis axis : {block_axis::row, block_axis::column}) {
        CAPTURE(to_string(f));
        const bool row = axis == block_axis::row;
        memory_operand got(f, row ? rows : cols, row ? cols : rows, 8);
        const float scale = 24.0f, inverse = 1.0f / 24.0f;
        nn::quantize_args args;
        args.recipe.format = f;
        args.axis = axis;
        args.scale = &scale;
        args.scale_inverse = &inverse;
        float amax = 0.0f, factor = 0.0f;
        args.amax = &amax;
        cpu::quantize_operand(source.view(), args, got.memory(), &factor, pool);
        long long wrong = 0;
        float largest = 0.0f;
        for (index_t r = 0; r < rows; ++r) {
          for (index_t c = 0; c < cols; ++c) {
            const float x = source.view()(r, c), stored = f == fp32 ? x : as_bf16(x);
            const std::uint64_t want = encode(nn::element_format(f), nn::is_fp8(f) ? stored * scale : stored);
            wrong += operand_code(got.described, row ? r : c, row ? c : r) != want;
            largest = std::fmax(largest, std::fabs(stored));
          }
        }
        CHECK(wrong == 0);
        if (nn::is_fp8(f)) {
          CHECK(factor == inverse);
          CHECK(amax == largest);
        }
        for (std::size_t i = 0; i < got.codes.size(); ++i) {
          const bool in_gap = static_cast<index_t>(i) % got.described.code_stride >= got.described.code_stride - 8;
          if (in_gap) CHECK(got.codes[i] == 0xA5);
        }
      }
    }
  }
}

TEST_CASE("FP8 with stochastic rounding: words are numbered along the rows of the source, whichever way it lies") {
  thread_pool pool(2);
  const index_t rows = 20, cols = 33;
  strided_matrix source(rows, cols, 2, random_tensor(rows * cols, 6, 4.0));
  nn::quantize_args args;
  args.recipe.format = nn::number_format::fp8_e4m3;
  args.recipe.rounding = rounding::stochastic;
  args.random = {9, 10};
  memory_operand along(args.recipe.format, rows, cols), across(args.recipe.format, cols, rows);
  float factor = 0.0f;
  cpu::quantize_operand(source.view(), args, along.memory(), &factor, pool);
  CHECK(factor == 1.0f);  // no scale given
  args.axis = block_axis::column;
  cpu::quantize_operand(source.view(), args, across.memory(), &factor, pool);
  for (index_t r = 0; r < rows; ++r) {
    for (index_t c = 0; c < cols; ++c) {
      const std::uint32_t word = args.random.word(static_cast<std::uint64_t>(r * cols + c));
      const auto want =
          encode(formats::e4m3, as_bf16(source.view()(r, c)), rounding::stochastic, overflow::saturate, word);
      CHECK(operand_code(along.described, r, c) == want);
      CHECK(operand_code(across.described, c, r) == want);
    }
  }
}

TEST_CASE("MX operands are quantize_ref of the source rounded to BF16") {
  thread_pool pool(2);
  const index_t rows = 64, cols = 96;
  strided_matrix source(rows, cols, 1, random_tensor(rows * cols, 7, 4.0));
  for (const auto f : {nn::number_format::mxfp4, nn::number_format::mxfp8_e4m3, nn::number_format::mxfp8_e5m2}) {
    for (const block_axis axis : {block_axis::row, block_axis::column}) {
      for (const auto rotation :
           {nn::rotation_kind::none, nn::rotation_kind::h16, nn::rotation_kind::h16_fixed_signs}) {
        for (const auto policy : {nn::policy_kind::te_rocm, nn::policy_kind::ocp}) {
          nn::quantize_args args;
          args.recipe = {f, scale_rule::ceil, rounding::stochastic, rotation, policy};
          args.axis = axis;
          args.signs = rotation == nn::rotation_kind::h16_fixed_signs ? 0x9E3779B9u : 0u;
          args.random = {11, 12};
          const bool row = axis == block_axis::row;
          memory_operand got(f, row ? rows : cols, row ? cols : rows), want = got;
          cpu::quantize_operand(source.view(), args, got.memory(), nullptr, pool);
          block_options o;
          o.source = formats::bf16;
          o.rule = scale_rule::ceil;
          o.rounding = rounding::stochastic;
          o.random = {11, 12};
          o.policy = policy == nn::policy_kind::ocp ? policies::ocp : policies::te_rocm;
          if (rotation != nn::rotation_kind::none) o.rotation = {16, {args.signs}};
          const gemm_operand& d = want.described;
          quantize_ref({nn::element_format(f), 32}, o, source.view(), axis,
                       {d.rows, d.k, want.codes.data(), d.code_stride, want.scales.data(), d.scale_stride});
          CHECK(got.codes == want.codes);
          CHECK(got.scales == want.scales);
        }
      }
    }
  }
}

TEST_CASE("the recorded amax is the largest finite one, after rounding to BF16, and only grows") {
  thread_pool pool(2);
  const auto amax_of = [&](std::vector<float> x, float before) {
    nn::quantize_args args;
    args.recipe.format = nn::number_format::fp8_e4m3;
    args.amax = &before;
    memory_operand to(args.recipe.format, 1, static_cast<index_t>(x.size()));
    float factor = 0.0f;
    cpu::quantize_operand(row_major<const float>(x.data(), 1, static_cast<index_t>(x.size())), args, to.memory(),
                          &factor, pool);
    return before;
  };
  CHECK(amax_of({1.0f, -3.0f, 2.0f}, 0.0f) == 3.0f);
  CHECK(amax_of({1.0f, -3.0f, 2.0f}, 5.0f) == 5.0f);
  CHECK(amax_of({1.0f, infinity, -infinity, not_a_number}, 0.0f) == 1.0f);
  CHECK(amax_of({0.0f, -0.0f}, 0.0f) == 0.0f);
  CHECK(amax_of({1.00390625f}, 0.0f) == 1.0f);                              // a tie, to even
  CHECK(amax_of({1.0f, std::numeric_limits<float>::max()}, 0.0f) == 1.0f);  // Inf as BF16
}

TEST_CASE("delayed scaling: (largest / amax) / 2^margin from the most recent entry or the largest one") {
  using enum nn::amax_algorithm;
  scaling_case recent({64.0f, 2.0f, 1.0f});
  recent.update({3, most_recent, 0}, 4.0f);
  CHECK(recent.history == std::vector<float>{4.0f, 64.0f, 2.0f});  // rolled; the oldest is forgotten
  CHECK(recent.scale == 112.0f);
  CHECK(recent.inverse == 1.0f / 112.0f);
  CHECK(recent.amax == 0.0f);

  scaling_case most({64.0f, 2.0f, 1.0f});
  most.update({3, max, 0}, 4.0f);
  CHECK(most.scale == 7.0f);
  most.update({3, max, 0}, 1.0f);
  most.update({3, max, 0}, 1.0f);
  CHECK(most.scale == 112.0f);  // 64 has left the window
  CHECK(most.history == std::vector<float>{1.0f, 1.0f, 4.0f});

  scaling_case margin({0.0f});
  margin.update({1, max, 3}, 4.0f);
  CHECK(margin.scale == 14.0f);
  CHECK(margin.inverse == 1.0f / 14.0f);
  margin.update({1, max, -2}, 4.0f);
  CHECK(margin.scale == 448.0f);
}

TEST_CASE("delayed scaling: an amax of zero or no number keeps the scale, an infinite scale is FLT_MAX") {
  using enum nn::amax_algorithm;
  for (const float seen : {0.0f, infinity, not_a_number}) {
    scaling_case s({0.0f, 0.0f});
    s.update({2, most_recent, 0}, seen);
    CHECK(s.scale == 3.0f);
    CHECK(s.inverse == 1.0f / 3.0f);
    CHECK(s.amax == 0.0f);
  }
  scaling_case zero_now({8.0f, 0.0f});  // "max" still sees the entry before
  zero_now.update({2, max, 0}, 0.0f);
  CHECK(zero_now.scale == 56.0f);
  zero_now.update({2, max, 0}, 0.0f);
  zero_now.update({2, max, 0}, 0.0f);
  CHECK(zero_now.scale == 56.0f);  // nothing but zeros: kept

  scaling_case tiny({0.0f});
  tiny.update({1, max, 0}, 0x1p-130f);
  CHECK(tiny.scale == std::numeric_limits<float>::max());
  CHECK(tiny.inverse == 1.0f / std::numeric_limits<float>::max());
}

TEST_CASE("delayed scaling: tensors do not see each other") {
  std::vector<float> scale{1, 1}, inverse{1, 1}, amax{4, 0}, history{0, 0, 8, 0};
  const std::vector<float> largest{448, 57344};
  cpu::update_scales({2, 2, scale.data(), inverse.data(), amax.data(), history.data(), largest.data()},
                     {2, nn::amax_algorithm::max, 0});
  CHECK(scale == std::vector<float>{112, 7168});
  CHECK(history == std::vector<float>{4, 0, 0, 8});
}
