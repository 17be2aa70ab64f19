// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The reference quantizer against a second one, written here in doubles from the description of AMD's kernel and the
// MX specification; packing, axes, random words and decoding.
#include "rotoscale/block.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "oracle/block_values.hpp"
#include "oracle/format_oracle.hpp"

using namespace rotoscale;

namespace {

struct result {
  std::vector<std::uint8_t> codes, scales;
};

result run_ref(block_format f, const block_options& o, matrix<const float> source, block_axis axis) {
  const index_t rows = source.extent(axis == block_axis::row ? 0 : 1);
  const index_t k = source.extent(axis == block_axis::row ? 1 : 0);
  result r;
  r.codes.assign(static_cast<std::size_t>(rows * packed_bytes(f.element, k)), 0xCC);
  r.scales.assign(static_cast<std::size_t>(rows * (k / f.length)), 0xCC);
  quantize_ref(f, o, source, axis, dense_blocks(f, rows, k, r.codes.data(), r.scales.data()));
  return r;
}

float to_bf16(float x) {
  static const oracle::rounder round(oracle::all_formats()[6]);
  if (x != x) return std::copysign(fp32_from_bits(fp32_nan_bits), x);
  const std::uint64_t code = round(static_cast<double>(x), oracle::direction::nearest_even, oracle::excess::to_inf);
  return fp32_from_bits(static_cast<std::uint32_t>(code) << 16);
}

/// One 32-block as the description of the fused kernel goes, step by step: sums as a matrix of signs would give them in
/// the order 1, 2, 4, 8; the scale by comparing doubles; elements by the nearest of E2M1's eight magnitudes.
struct amd_block {
  int scale;
  std::array<int, 32> codes;
};
amd_block amd(std::array<float, 32> x, std::uint32_t signs) {
  for (std::size_t i = 0; i < 32; ++i) {
    x[i] = to_bf16(x[i]);
    if (signs >> i & 1) x[i] = -x[i];
  }
  for (std::size_t base = 0; base < 32; base += 16) {
    for (std::size_t stride = 1; stride < 16; stride *= 2) {
      std::array<float, 16> y{};
      for (std::size_t i = 0; i < 16; ++i) {
        const float mine = x[base + i], other = x[base + (i ^ stride)];
        y[i] = (i & stride) == 0 ? mine + other : other - mine;
      }
      std::copy(y.begin(), y.end(), x.begin() + static_cast<std::ptrdiff_t>(base));
    }
  }
  float amax = 0.0f;
  for (float& v : x) {
    v *= 0.25f;
    amax = std::fmax(amax, std::fabs(v));  // drops NaN
  }
  amd_block out{};
  if (amax == 0.0f) {
    out.scale = 127;
  } else if (std::isinf(amax)) {
    out.scale = 253;
  } else {
    const int e = std::ilogb(amax);
    const bool up = std::ldexp(static_cast<double>(amax), -e) >= 1.75;
    out.scale = std::max(0, e + (up ? 1 : 0) - 2 + 127);
  }
  constexpr std::array<double, 8> magnitudes{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (std::size_t i = 0; i < 32; ++i) {
    const double m = std::ldexp(std::fabs(static_cast<double>(x[i])), 127 - out.scale);
    int code = 7;
    if (!(m >= 5.0)) {
      code = 0;
      while (code < 7) {
        const auto at = static_cast<std::size_t>(code);
        const double middle = (magnitudes[at] + magnitudes[at + 1]) / 2;
        if (m < middle || (m == middle && code % 2 == 0)) break;
        ++code;
      }
    } else if (m == 5.0) {
      code = 6;
    }
    if (x[i] != x[i]) code = 7;
    // A NaN of the rotation has no sign that the standard defines; the library's is positive.
    const bool negative = x[i] == x[i] && std::signbit(x[i]);
    out.codes[i] = code | (negative ? 8 : 0);
  }
  return out;
}

constexpr block_options plain{};

}  // namespace

TEST_CASE("te_rocm is AMD's kernel as described, along both axes, with and without signs") {
  const index_t rows = 96, cols = 160;
  for (const std::uint32_t signs : {0u, 0xDEADBEEFu}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      const auto x = oracle::block_values(rows, cols, seed);
      const auto source = row_major(x.data(), rows, cols);
      block_options o = presets::te_rocm;
      o.rotation.signs[0] = signs;
      for (const auto axis : {block_axis::row, block_axis::column}) {
        const auto in = axis == block_axis::row ? source : transposed(source);
        const result got = run_ref(mxfp4, o, source, axis);
        const index_t k = in.extent(1);
        for (index_t r = 0; r < in.extent(0); ++r) {
          for (index_t b = 0; b < k / 32; ++b) {
            std::array<float, 32> block{};
            for (index_t i = 0; i < 32; ++i) block[static_cast<std::size_t>(i)] = in(r, 32 * b + i);
            const amd_block want = amd(block, signs);
            REQUIRE(int{got.scales[static_cast<std::size_t>(r * (k / 32) + b)]} == want.scale);
            for (index_t i = 0; i < 32; ++i) {
              const std::uint8_t byte = got.codes[static_cast<std::size_t>((r * k + 32 * b + i) / 2)];
              REQUIRE((i % 2 == 0 ? byte & 0xF : byte >> 4) == want.codes[static_cast<std::size_t>(i)]);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("every rule, policy and MX element: scale by shared_scale, elements rounded once from x / scale") {
  const index_t rows = 24, cols = 128;
  for (const format& element :
       {formats::e2m1, formats::e2m3, formats::e3m2, formats::e4m3, formats::e5m2, formats::e4m3fnuz}) {
    const auto& all = oracle::all_formats();
    const oracle::rounder round(
        *std::find_if(all.begin(), all.end(), [&](const auto& f) { return f.value == element; }));
    CAPTURE(round.f.name);
    for (const auto rule : {scale_rule::floor, scale_rule::ceil, scale_rule::even, scale_rule::rceil}) {
      for (const auto& policy : {policies::te_rocm, policies::ocp}) {
        const block_format f{element, 32};
        const auto x = oracle::block_values(rows, cols, 5);
        block_options o = plain;
        o.rule = rule;
        o.policy = policy;
        const result got = run_ref(f, o, row_major(x.data(), rows, cols), block_axis::row);
        for (std::size_t b = 0; b < x.size() / 32; ++b) {
          std::uint32_t amax = 0;
          bool nan = false;
          for (std::size_t i = 32 * b; i < 32 * b + 32; ++i) {
            nan = nan || x[i] != x[i];
            if (x[i] == x[i]) amax = std::max(amax, fp32_bits(std::fabs(x[i])));
          }
          const bool poisoned = nan && policy.nan == block_policy::nan_rule::nan_scale;
          const int scale = poisoned ? 255 : shared_scale(amax, element, rule, policy);
          REQUIRE(int{got.scales[b]} == scale);
          for (std::size_t i = 32 * b; i < 32 * b + 32; ++i) {
            const double v = std::ldexp(static_cast<double>(x[i]), 127 - scale);
            const std::uint64_t want =
                scale == 255 ? 0 : round(v, oracle::direction::nearest_even, oracle::excess::saturate);
            REQUIRE(std::uint64_t{load_code(element, got.codes.data(), static_cast<index_t>(i))} == want);
          }
        }
      }
    }
  }
}

TEST_CASE("stochastic rounding: element (r, c) takes word r * k + c of the stream, along either axis") {
  const index_t rows = 32, cols = 64;
  const auto x = oracle::block_values(rows, cols, 6, false);
  const auto source = row_major(x.data(), rows, cols);
  block_options o = plain;
  o.rounding = rounding::stochastic;
  o.random = {123, 456};
  const oracle::rounder round(oracle::all_formats()[0]);
  for (const auto axis : {block_axis::row, block_axis::column}) {
    const auto in = axis == block_axis::row ? source : transposed(source);
    const index_t k = in.extent(1);
    const result got = run_ref(mxfp4, o, source, axis);
    for (index_t r = 0; r < in.extent(0); ++r) {
      for (index_t c = 0; c < k; ++c) {
        const int scale = got.scales[static_cast<std::size_t>((r * k + c) / 32)];
        const std::uint32_t word = o.random.word(static_cast<std::uint64_t>(r * k + c));
        const std::uint64_t want = round(std::ldexp(static_cast<double>(in(r, c)), 127 - scale),
                                         oracle::direction::stochastic, oracle::excess::saturate, word);
        REQUIRE(std::uint64_t{load_code(formats::e2m1, got.codes.data(), r * k + c)} == want);
      }
    }
  }
}

TEST_CASE("strides of source and target: rows in the middle of larger memory, the rest untouched") {
  const index_t rows = 5, cols = 64, wide = 70;
  auto x = oracle::block_values(rows, wide, 7);
  std::vector<float> dense;
  for (index_t r = 0; r < rows; ++r)
    dense.insert(dense.end(), &x[static_cast<std::size_t>(r * wide)], &x[static_cast<std::size_t>(r * wide)] + cols);
  const result want = run_ref(mxfp4, presets::te_rocm, row_major(dense.data(), rows, cols), block_axis::row);
  std::vector<std::uint8_t> codes(5 * 40, 0xEE), scales(5 * 8, 0xEE);
  const matrix<const float> source = row_major(x.data(), rows, cols, wide);
  quantize_ref(mxfp4, presets::te_rocm, source, block_axis::row, {rows, cols, codes.data(), 40, scales.data(), 8});
  for (std::size_t r = 0; r < 5; ++r) {
    CHECK(std::memcmp(&codes[40 * r], &want.codes[32 * r], 32) == 0);
    CHECK(std::memcmp(&scales[8 * r], &want.scales[2 * r], 2) == 0);
    for (std::size_t i = 32; i < 40; ++i) CHECK(codes[40 * r + i] == 0xEE);
    for (std::size_t i = 2; i < 8; ++i) CHECK(scales[8 * r + i] == 0xEE);
  }
}

TEST_CASE("decoding: code times scale in FP32, or NaN") {
  const index_t rows = 32, cols = 96;
  for (const block_format& f : {mxfp4, mxfp8_e4m3, mxfp8_e5m2}) {
    const auto& all = oracle::all_formats();
    const auto& facts = *std::find_if(all.begin(), all.end(), [&](const auto& a) { return a.value == f.element; });
    for (const auto axis : {block_axis::row, block_axis::column}) {
      const auto x = oracle::block_values(rows, cols, 8);
      const auto source = row_major(x.data(), rows, cols);
      block_options o = plain;
      o.rule = scale_rule::rceil;
      result q = run_ref(f, o, source, axis);
      const index_t out_rows = axis == block_axis::row ? rows : cols, k = axis == block_axis::row ? cols : rows;
      const auto blocks = dense_blocks<const std::uint8_t>(f, out_rows, k, q.codes.data(), q.scales.data());
      std::vector<float> y(x.size());
      dequantize_ref(f, blocks, axis, row_major(y.data(), rows, cols));
      const matrix<const float> values = row_major<const float>(y.data(), rows, cols);
      const auto oriented = axis == block_axis::row ? values : transposed(values);
      for (index_t r = 0; r < out_rows; ++r) {
        for (index_t c = 0; c < k; ++c) {
          const int scale = q.scales[static_cast<std::size_t>((r * k + c) / 32)];
          const std::uint32_t code = load_code(f.element, q.codes.data(), r * k + c);
          const float got = oriented(r, c);
          if (scale == 255) {
            REQUIRE(got != got);
            continue;
          }
          const int sign_bit = facts.exponent_bits + facts.mantissa_bits;
          const double m = oracle::magnitude_of(facts, code & ((1u << sign_bit) - 1));
          const double want = std::ldexp(code >> sign_bit ? -m : m, scale - 127);
          REQUIRE(fp32_bits(got) == fp32_bits(static_cast<float>(want)));
        }
      }
    }
  }
}

TEST_CASE("quantizing what was decoded gives the same values: they are on the grid of their scale or a finer one") {
  const index_t rows = 32, cols = 96;
  for (const block_format& f : {mxfp4, mxfp8_e4m3, mxfp8_e5m2}) {
    const auto x = oracle::block_values(rows, cols, 9, false);  // far from FP32's maximum: rounding up stays finite
    block_options o = plain;
    o.rule = scale_rule::rceil;
    std::vector<float> once(x.size()), twice(x.size());
    for (const auto& [from, to] :
         {std::pair{&x, &once}, std::pair{const_cast<const std::vector<float>*>(&once), &twice}}) {
      result q = run_ref(f, o, row_major(from->data(), rows, cols), block_axis::row);
      dequantize_ref(f, dense_blocks<const std::uint8_t>(f, rows, cols, q.codes.data(), q.scales.data()),
                     block_axis::row, row_major(to->data(), rows, cols));
    }
    CHECK(x != once);
    CHECK(std::memcmp(once.data(), twice.data(), once.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("a value beyond FP32 decodes to Inf") {
  const std::uint8_t code = 0x77, scale = 254;
  const block_matrix<const std::uint8_t> m{1, 32, &code, 16, &scale, 1};
  CHECK(std::isinf(decode_element(mxfp4, m, 0, 0)));
}

TEST_CASE("constexpr: a block quantized at compile time") {
  constexpr auto quantized = [] {
    std::array<float, 32> x{};
    for (int i = 0; i < 32; ++i) x[static_cast<std::size_t>(i)] = static_cast<float>(i - 11) * 0.37f;
    std::array<std::uint8_t, 17> out{};
    quantize_ref(mxfp4, presets::te_rocm, row_major<const float>(x.data(), 1, 32), block_axis::row,
                 {1, 32, out.data(), 16, out.data() + 16, 1});
    return out;
  };
  constexpr auto at_compile_time = quantized();
  CHECK(quantized() == at_compile_time);
}

TEST_CASE("when quantize is defined") {
  const auto defined = [](index_t rows, index_t cols, block_axis axis, index_t out_rows, index_t out_k) {
    return quantize_is_defined(mxfp4, presets::te_rocm, row_major<const float>(nullptr, rows, cols), axis,
                               {out_rows, out_k, nullptr, 0, nullptr, 0});
  };
  CHECK(defined(5, 64, block_axis::row, 5, 64));
  CHECK(defined(64, 5, block_axis::column, 5, 64));
  CHECK_FALSE(defined(64, 5, block_axis::row, 5, 64));
  CHECK_FALSE(defined(5, 60, block_axis::row, 5, 60));
  CHECK_FALSE(defined(5, 64, block_axis::row, 4, 64));
}

TEST_CASE("a rotation must divide the block, and a block fit the reference's buffer") {
  const auto defined = [](block_format f, int points) {
    block_options o;
    o.rotation.points = points;
    const index_t k = f.length;
    return quantize_is_defined(f, o, row_major<const float>(nullptr, 1, k), block_axis::row,
                               dense_blocks<std::uint8_t>(f, 1, k, nullptr, nullptr));
  };
  CHECK((defined(mxfp4, 0) && defined(mxfp4, 16) && defined(mxfp4, 32)));
  CHECK_FALSE((defined(mxfp4, 64) || defined(mxfp4, 24) || defined(mxfp4, -16)));  // 64 points need k = 64
  CHECK(defined({formats::e2m1, max_run_length}, 256));
  CHECK_FALSE(defined({formats::e2m1, 2 * max_run_length}, 0));
}
