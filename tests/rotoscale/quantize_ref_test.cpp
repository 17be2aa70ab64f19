// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The reference quantizer against oracle/block_oracle.hpp for every block format, rule, policy, rounding, rotation and
// source; against AMD's described kernel. Also strides, decoding and bad input.
#include "rotoscale/quantize_ref.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "oracle/block_oracle.hpp"
#include "oracle/block_values.hpp"
#include "oracle/format_oracle.hpp"
#include "rotoscale/dequantize_ref.hpp"

namespace quantize_ref_test {

using namespace rotoscale;

struct result {
  std::vector<std::uint8_t> codes, scales;
};

template <class T>
result run_ref(block_format f, const block_options& o, matrix<const T> source, block_axis axis) {
  const index_t rows = source.extent(axis == block_axis::row ? 0 : 1);
  const index_t k = source.extent(axis == block_axis::row ? 1 : 0);
  result r;
  r.codes.assign(static_cast<std::size_t>(rows * packed_bytes(f.element, k)), 0xCC);
  r.scales.assign(static_cast<std::size_t>(rows / f.rows * (k / f.length)), 0xCC);
  quantize_ref(f, o, source, axis, dense_blocks(f, rows, k, r.codes.data(), r.scales.data()));
  return r;
}

long double exact_value(double x) { return x; }
template <format F>
long double exact_value(small_float<F> x) {
  return static_cast<long double>(static_cast<float>(x));  // exact: F has at most 16 bits
}

/// Describes the first difference between quantize_ref and the oracle, or is empty. `exactly`: see block_quantizer.
template <class T>
std::string difference(block_format f, const block_options& o, const std::vector<T>& x, index_t rows, block_axis axis,
                       bool exactly = false) {
  const index_t cols = static_cast<index_t>(x.size()) / rows;
  std::vector<long double> values;
  for (const T v : x) values.push_back(exact_value(v));
  const result got = run_ref(f, o, row_major(x.data(), rows, cols), axis);
  const auto words = [&](std::uint64_t i) { return o.random.word(i); };
  const oracle::quantized want = oracle::block_quantizer(f, o)(
      values, static_cast<std::size_t>(rows), static_cast<std::size_t>(cols), axis, exactly,
      o.rounding == rounding::stochastic || o.choice == scale_choice::eden
          ? std::function<std::uint32_t(std::uint64_t)>(words)
          : std::function<std::uint32_t(std::uint64_t)>{});
  for (std::size_t i = 0; i < want.scales.size(); ++i) {
    if (got.scales[i] == want.scales[i]) continue;
    return "scale " + std::to_string(i) + ": " + std::to_string(got.scales[i]) + ", expected " +
           std::to_string(want.scales[i]);
  }
  for (std::size_t i = 0; i < want.codes.size(); ++i) {
    if (got.codes[i] == want.codes[i]) continue;
    return "byte " + std::to_string(i) + " of codes: " + std::to_string(got.codes[i]) + ", expected " +
           std::to_string(want.codes[i]);
  }
  return got.scales.size() == want.scales.size() && got.codes.size() == want.codes.size() ? "" : "sizes";
}

float to_bf16(float x) {
  static const oracle::rounder round(oracle::all_formats()[6]);
  if (x != x) return std::copysign(fp32_from_bits(fp32_nan_bits), x);
  const std::uint64_t code = round(static_cast<double>(x), oracle::direction::nearest_even, oracle::excess::to_inf);
  return fp32_from_bits(static_cast<std::uint32_t>(code) << 16);
}

/// One 32-block as the fused kernel is described:
///
/// 1. Sums as a matrix of signs, in the order 1, 2, 4, 8.
/// 2. The scale by comparing doubles.
/// 3. Elements by the nearest of E2M1's eight magnitudes.
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
  for (float& v : x) v *= 0.25f;
  float amax = std::fabs(x[0]);
  for (const float v : x) amax = std::fmax(amax, std::fabs(v));  // NaN only if all are NaN
  amd_block out{};
  if (amax == 0.0f) {
    out.scale = 127;
  } else if (!std::isfinite(amax)) {
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
    // The standard does not define the sign of the rotation's NaN. The library's is positive.
    const bool negative = x[i] == x[i] && std::signbit(x[i]);
    out.codes[i] = code | (negative ? 8 : 0);
  }
  return out;
}

constexpr block_options plain{};

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

struct named_format {
  std::string name;
  block_format f;
};
const std::vector<named_format> all_blocks{
    {"mxfp4", mxfp4},
    {"mxfp6_e2m3", mxfp6_e2m3},
    {"mxfp6_e3m2", mxfp6_e3m2},
    {"mxfp8_e4m3", mxfp8_e4m3},
    {"mxfp8_e5m2", mxfp8_e5m2},
    {"mxint8", mxint8},
    {"nvfp4", nvfp4},
    {"square mxfp4", square_blocks(mxfp4)},
    {"square mxint8", square_blocks(mxint8)},
    {"square nvfp4", square_blocks(nvfp4)},
    {"e2m1, 32 x 4", {formats::e2m1, 32, formats::e8m0, 4}},
    {"e3m2 by ue5m3", {formats::e3m2, 64, formats::ue5m3}},
    {"e4m3 in 128", {formats::e4m3, 128}},
    {"e2m1 alone", {formats::e2m1, 1}},
    {"e2m3 in threes", {formats::e2m3, 3}},
    {"e4m3fnuz in 256", {formats::e4m3fnuz, 256}},
    {"e5m2fnuz", {formats::e5m2fnuz, 16}},
    {"e4m3b11fnuz by ue4m3", {formats::e4m3b11fnuz, 8, formats::ue4m3}},
    {"int8 by an unsigned e5m2", {formats::int8, 32, {5, 2, 15, false, specials::ieee}}},
    {"unsigned e4m3", {formats::ue4m3, 32}},
};

using nan_rule = block_policy::nan_rule;
using infinity_rule = block_policy::infinity_rule;
const std::vector<block_policy> all_policies{
    policies::te_rocm, policies::ocp,
    policies::primus,  policies::aiter_even,
    policies::aiter,   policies::aiter_nonzero,
    policies::nvidia,  {9, 40, nan_rule::nan_scale, infinity_rule::largest_scale}};
const std::vector<scale_rule> all_rules{scale_rule::floor, scale_rule::ceil, scale_rule::even, scale_rule::rceil};
const std::vector<rounding> all_roundings{rounding::nearest_even, rounding::nearest_away, rounding::toward_zero,
                                          rounding::up,           rounding::down,         rounding::to_odd,
                                          rounding::stochastic};

rotation with_signs(int points, std::uint64_t seed) {
  rotation r{points, {}};
  for (std::size_t i = 0; i < std::size(r.signs); ++i) r.signs[i] = random_stream{seed, 5}.word(i);
  return r;
}

template <class T>
std::vector<T> as_source(const std::vector<float>& x);
template <>
std::vector<bf16> as_source(const std::vector<float>& x) {
  std::vector<bf16> y;
  for (const float v : x) y.push_back(bf16::from_bits(static_cast<std::uint16_t>(fp32_bits(v) >> 16)));
  return y;
}
template <>
std::vector<fp16> as_source(const std::vector<float>& x) {
  std::vector<fp16> y;
  for (const float v : x) y.push_back(fp16::from_bits(static_cast<std::uint16_t>(fp32_bits(v) * 0x9E3779B1u >> 16)));
  for (std::size_t i = 0; i < y.size(); i += 7) y[i] = fp16(x[i], rounding::nearest_even, overflow::to_inf);
  return y;
}
/// More bits than FP32 has; some numbers overflow FP32.
template <>
std::vector<double> as_source(const std::vector<float>& x) {
  std::vector<double> y;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto v = static_cast<double>(x[i]);
    y.push_back(i % 3 == 0 ? v : v * (1 + 0x1p-31 * static_cast<double>(i % 5)));
    if (i % 257 == 0) y.back() = std::ldexp(y.back(), i % 2 == 0 ? 200 : -200);
  }
  return y;
}

std::string difference(block_format f, const block_options& o, const std::vector<float>& x, index_t rows,
                       block_axis axis, int source) {
  switch (source) {
    case 0: return difference(f, o, as_source<double>(x), rows, axis);
    case 1: return difference(f, o, as_source<bf16>(x), rows, axis);
    case 2: return difference(f, o, as_source<fp16>(x), rows, axis);
    default: return difference(f, o, x, rows, axis);
  }
}

/// True if the zero byte is a number of this scale format. TE's 127 is UE4M3's NaN.
bool policy_fits(block_format f, const block_policy& p) {
  return f.has_e8m0_scale() || p.zero_byte <= f.scale.max_code();
}

TEST_CASE("every block format, rule, policy, rounding, source and axis") {
  std::uint64_t seed = 0;
  for (const auto& entry : all_blocks) {
    const block_format f = entry.f;
    CAPTURE(entry.name);
    const index_t k = 2 * std::max(f.length, 96), rows = 3 * f.rows;
    for (const auto& policy : all_policies) {
      if (!policy_fits(f, policy)) continue;
      for (const auto rule : all_rules) {
        for (const auto r : all_roundings) {
          for (const auto axis : {block_axis::row, block_axis::column}) {
            const auto x = oracle::block_values(rows, k / f.length * f.length, ++seed, true,
                                                static_cast<std::size_t>(std::max(f.length, 16)));
            block_options o{formats::fp32, {}, rule, policy, r, {seed, 456}};
            o.random_count = static_cast<int>(1 + seed % 32);
            o.encode_factor = std::ldexp(1 + 0.125f * static_cast<float>(seed % 8), static_cast<int>(seed % 31) - 10);
            const std::vector<format> stored{formats::fp32, formats::fp32, formats::bf16, formats::fp16, formats::tf32};
            o.source = stored[seed % stored.size()];
            CAPTURE(seed);
            const index_t source_rows = axis == block_axis::row ? rows : static_cast<index_t>(x.size()) / rows;
            REQUIRE(difference(f, o, x, source_rows, axis, static_cast<int>(seed % 8)) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("rotations of 2 to 256 points, within a block and across blocks, with 256 signs") {
  std::uint64_t seed = 0;
  for (const block_format& f : {mxfp4, nvfp4, mxfp8_e5m2, mxint8, square_blocks(mxfp4), block_format{formats::e2m1, 1},
                                block_format{formats::e4m3, 128, formats::ue5m3}, block_format{formats::e3m2, 256}}) {
    for (int points = 2; points <= 256; points *= 2) {
      for (const auto& policy : {policies::primus, policies::ocp}) {
        for (const auto axis : {block_axis::row, block_axis::column}) {
          const index_t k = 512, rows = f.rows;
          const auto x = oracle::block_values(rows, k, ++seed, true, 64);
          block_options o{formats::fp32, with_signs(points, seed), scale_rule::even, policy};
          if (seed % 3 == 0) o.rotation = {points, {}};
          if (seed % 5 == 0) o.rounding = rounding::stochastic;
          if (seed % 2 == 0) o.source = formats::bf16;
          CAPTURE(points);
          CAPTURE(seed);
          REQUIRE(difference(f, o, x, axis == block_axis::row ? rows : k, axis, static_cast<int>(seed % 6)) == "");
        }
      }
    }
  }
}

TEST_CASE("NVFP4: second-level factors to both ends of FP32") {
  std::uint64_t seed = 0;
  for (const float factor : {1.0f, 2688.0f / 3.0f, 0x1p-149f, 0x1p-126f, 0x1p-130f, 0x1p100f, 0x1.FFFFFEp127f}) {
    for (const auto& policy : {policies::nvidia, policies::ocp, block_policy{0, 3, nan_rule::ignore}}) {
      for (const auto choice :
           {scale_choice::amax, scale_choice::headroom, scale_choice::four_over_six, scale_choice::eden}) {
        for (const auto r : {rounding::nearest_even, rounding::stochastic}) {
          const auto x = oracle::block_values(8, 256, ++seed, true, 16);
          block_options o = presets::nvidia;
          o.policy = policy;
          o.rounding = r;
          o.random = {seed, 1};
          o.encode_factor = factor;
          o.choice = choice;
          if (!options_are_defined(nvfp4, o)) continue;
          CAPTURE(factor);
          REQUIRE(difference(nvfp4, o, x, 8, block_axis::row) == "");
          REQUIRE(difference(nvfp4, o, x, 16, block_axis::column, 1) == "");
          if (r == rounding::stochastic) continue;
          o.rotation = {32, {static_cast<std::uint32_t>(seed)}};
          const int tall = choice == scale_choice::eden ? 1 : 4;
          REQUIRE(difference({formats::e2m1, 16, formats::ue5m3, tall}, o, x, 8, block_axis::row) == "");
        }
      }
    }
  }
}

TEST_CASE("MS-EDEN is unbiased over signs and words, where rounding to nearest is not") {
  constexpr index_t k = 64;
  std::mt19937 engine(9);
  std::normal_distribution<float> normal;
  std::vector<float> x(k);
  for (float& v : x) v = normal(engine);
  double bias[2] = {}, norm = 0;
  for (const float v : x) norm += static_cast<double>(v) * static_cast<double>(v);
  for (const bool eden : {false, true}) {
    std::vector<double> mean(k, 0.0);
    constexpr int draws = 4000;
    for (int i = 0; i < draws; ++i) {
      block_options o = presets::nvidia;
      o.rotation = {32, {static_cast<std::uint32_t>(engine())}};
      o.choice = eden ? scale_choice::eden : scale_choice::amax;
      o.random = {static_cast<std::uint64_t>(i), 1};
      o.encode_factor = tensor_encode_factor(4.0f, formats::e2m1, formats::ue4m3, o.choice);
      result q = run_ref(nvfp4, o, row_major<const float>(x.data(), 1, k), block_axis::row);
      std::vector<float> y(k);
      dequantize_ref(nvfp4, dense_blocks<const std::uint8_t>(nvfp4, 1, k, q.codes.data(), q.scales.data()),
                     block_axis::row, row_major<float>(y.data(), 1, k), 1.0f / o.encode_factor);
      for (index_t at = 0; at < k; at += 32) unrotate_run(y.data() + at, 32, o.rotation);
      for (std::size_t c = 0; c < x.size(); ++c) mean[c] += static_cast<double>(y[c]) / draws;
    }
    for (std::size_t c = 0; c < x.size(); ++c)
      bias[eden] += (mean[c] - static_cast<double>(x[c])) * static_cast<double>(x[c]) / norm;
  }
  CHECK(std::fabs(bias[true]) < 0.001);  // the standard error is .0003
  CHECK(std::fabs(bias[false]) > 0.002);
  // A block whose scale underflows to 0 takes no part in the correction of the others. Zero blocks keep their byte.
  std::vector<float> small(k, 0.5f);
  for (std::size_t i = 0; i < 32; ++i) small[i] = i == 2 ? 1e-22f : i % 16 < 2 ? 1e-4f : 0.0f;
  for (const auto& policy : {policies::nvidia, policies::torchao_nvfp4}) {
    block_options o = presets::nvidia;
    o.policy = policy;
    o.choice = scale_choice::eden;
    o.rotation.points = 32;
    o.encode_factor = tensor_encode_factor(3.0f, formats::e2m1, formats::ue4m3, o.choice);
    CHECK(difference(nvfp4, o, small, 1, block_axis::row) == "");
    const result q = run_ref(nvfp4, o, row_major<const float>(small.data(), 1, k), block_axis::row);
    CHECK(decode(formats::ue4m3, q.scales[0]) < 0.1f);
    CHECK(q.scales[3] == policy.zero_byte);
    CHECK(*std::min_element(q.scales.begin(), q.scales.end()) >= policy.least_byte);
  }
}

// The formula in double precision, for blocks of normal scales: E4M3 has 4 significant bits, E2M1 has 0, .5, ..., 6.
TEST_CASE("4/6 keeps the scale with the smaller error, headroom never saturates") {
  const auto nearest = [](double x, std::initializer_list<double> values) {
    return *std::min_element(values.begin(), values.end(),
                             [x](double a, double b) { return std::fabs(a - x) < std::fabs(b - x); });
  };
  const auto e4m3 = [](double x) {
    return std::ldexp(std::nearbyint(std::ldexp(x, 3 - std::ilogb(x))), std::ilogb(x) - 3);
  };
  std::mt19937 engine(5);
  std::normal_distribution<float> normal;
  int fours = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<float> x(16);
    for (float& v : x) v = normal(engine);
    double amax = 0, error[2] = {};
    for (const float v : x) amax = std::max(amax, std::fabs(static_cast<double>(v)));
    block_options o = presets::nvidia;
    o.choice = scale_choice::four_over_six;
    o.encode_factor = 16;
    const double scales[] = {e4m3(amax / 6 * 16), e4m3(1.5 * amax / 6 * 16)};
    for (int s = 0; s < 2; ++s) {
      for (const float v : x) {
        const double scaled = 16 * static_cast<double>(v) / scales[s];
        error[s] +=
            std::pow(std::copysign(nearest(std::fabs(scaled), {0, .5, 1, 1.5, 2, 3, 4, 6}), scaled) * scales[s] -
                         16 * static_cast<double>(v),
                     2);
      }
    }
    const auto scale_of = [&] {
      return static_cast<double>(decode(
          formats::ue4m3, run_ref(nvfp4, o, row_major<const float>(x.data(), 1, 16), block_axis::row).scales[0]));
    };
    if (std::fabs(error[0] - error[1]) > 1e-5 * error[0]) CHECK(scale_of() == scales[error[1] < error[0]]);
    fours += error[1] < error[0];
    o.choice = scale_choice::headroom;
    CHECK(scale_of() == e4m3(amax / (6 * 16 / 17.0) * 16));
    CHECK(amax * 16 / scale_of() < 6.0001);
  }
  CHECK(fours > 400);
  CHECK(fours < 1600);
}

TEST_CASE("a tensor's amax: what the blocks see, without NaN") {
  std::vector<float> x(std::size_t{2} * 32, 0.0f);
  const auto amax = [&](const block_options& o, block_axis axis = block_axis::row) {
    return tensor_amax(axis == block_axis::row ? mxfp4 : block_format{formats::e2m1, 2}, o,
                       row_major<const float>(x.data(), 2, 32), axis);
  };
  block_options plain, h16 = presets::te_rocm;
  CHECK(fp32_bits(amax(plain)) == 0);
  x[5] = -3.0f;
  x[40] = fp32_from_bits(0x7F800001u);  // a signalling NaN, before and after numbers
  x[63] = 7.0f;
  CHECK(amax(plain) == 7.0f);
  CHECK(amax(plain, block_axis::column) == 7.0f);
  x[63] = 0.0f;
  CHECK(amax(plain) == 3.0f);
  CHECK(amax(h16) == 0.75f);  // -3 spread over 16 elements; the rotated run with the NaN is all NaN
  x[5] = 0x1.FFp127f;
  CHECK(amax(plain) == 0x1.FFp127f);
  plain.source = formats::bf16;  // rounds beyond BF16's largest number
  CHECK(fp32_bits(amax(plain)) == fp32_infinity_bits);
  x.assign(x.size(), fp32_from_bits(0xFFC00000u));
  CHECK(fp32_bits(amax(plain)) == 0);
  const block_options column = {formats::fp32, {2}};
  x.assign(x.size(), 0.0f);
  x[7] = 1.0f, x[39] = -1.0f;  // vertical neighbours: one run along columns
  CHECK(amax(column, block_axis::column) == 2.0f * 0x1.6A09E6p-1f);
  CHECK(tensor_amax(mxfp4, presets::ocp, row_major<const float>(x.data(), 0, 32), block_axis::row) == 0.0f);
  static_assert([] {
    const float y[16] = {1, -2, 4};
    return tensor_amax(nvfp4, presets::nvidia, row_major<const float>(y, 1, 16), block_axis::row) == 4.0f;
  }());
}

/// Blocks of 32 FP64 numbers near the thresholds of rules and roundings. The first number sets the scale: a power of
/// two, an element's largest number, or a carry of `even`. The others are elements and ties at that scale. Each is a
/// few last places of FP64 or FP32 off.
std::vector<double> near_thresholds(const format& element, index_t blocks, std::uint64_t seed) {
  const oracle::grid g(element);
  const random_stream random{seed, 99};
  const std::vector<double> off{0, 0x1p-52, -0x1p-53, 0x1p-40, -0x1p-40, 0x1p-25, -0x1p-25, 0x1p-24, 0x1p-23};
  const std::vector<double> deciding{1, 1.5, 1.75, 1.875, 1.9375, 1.96875, 1.984375, 1.9921875, 2};
  std::vector<double> x;
  for (std::uint64_t b = 0; b < static_cast<std::uint64_t>(blocks); ++b) {
    const int exponent = b % 4 == 0 ? -130 + static_cast<int>(b / 4 % 8) : static_cast<int>(b * 37 % 250) - 125;
    for (std::uint64_t i = 0; i < 32; ++i) {
      const std::uint32_t w = random.word(32 * b + i);
      const double factor = 1 + off[w % off.size()];
      double v = deciding[w / 16 % deciding.size()];
      if (i > 0) {
        const std::size_t at = w / 16 % (g.values.size() - 1);
        v = static_cast<double>(g.values[at] + (w >> 30 & 1 ? g.values[at + 1] - g.values[at] : 0) / 2);
        v = std::ldexp(v, -g.largest_exponent());
      }
      v = std::ldexp(v * factor, exponent);
      x.push_back(w >> 31 ? -v : v);
    }
    // Some blocks have mostly numbers below FP32's least.
    if (b % 16 == 8) {
      for (std::size_t i = x.size() - 32; i < x.size(); ++i) x[i] = std::ldexp(x[i], -150);
    }
  }
  return x;
}

TEST_CASE("FP64 sources: rounding to odd first gives what one rounding of the exact value gives") {
  std::uint64_t seed = 0;
  for (const format& element : {formats::e2m1, formats::e2m3, formats::e3m2, formats::e4m3, formats::e5m2,
                                formats::int8, formats::e5m2fnuz, formats::e4m3b11fnuz}) {
    for (const auto rule : all_rules) {
      for (const auto& policy : {policies::ocp, policies::te_rocm, policies::aiter_nonzero}) {
        for (const auto r : all_roundings) {
          if (r == rounding::stochastic) continue;
          for (const format& source : {formats::fp32, formats::bf16, formats::fp16}) {
            const auto x = near_thresholds(element, 32, ++seed);
            const block_options o{source, {}, rule, policy, r};
            CAPTURE(seed);
            REQUIRE(difference({element, 32}, o, x, 4, block_axis::row, true) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("FP64 sources: where one rounding is not promised") {
  // Numbers from 2^128 on count as FP32's largest, so `floor` sees exponent 127.
  std::vector<double> x(32, 0.0);
  x[0] = 0x1p128;
  CHECK(run_ref(mxfp4, presets::ocp, row_major<const double>(x.data(), 1, 32), block_axis::row).scales[0] == 252);
  CHECK(difference(mxfp4, presets::ocp, x, 1, block_axis::row, true) != "");
  // At the least scale this element format has numbers below 2^-147, where FP32 lacks two spare bits.
  const format wide{6, 1, 31, true, specials::none};
  x[0] = 0x1p-100;
  x[1] = 0x1.8p-158 * (1 - 0x1p-52);
  block_options o = presets::ocp;
  o.rule = scale_rule::ceil;
  CHECK(difference({wide, 32}, o, x, 1, block_axis::row, true) != "");
  CHECK(difference({wide, 32}, o, x, 1, block_axis::row) == "");
}

/// Scale byte of a block of zeros with one value at `at`.
int byte_of(block_options o, float value, std::size_t at) {
  std::vector<float> x(32, 0.0f);
  x[at] = value;
  o.rotation = {};  // the table's amax is after rotation
  o.source = formats::fp32;
  return run_ref(mxfp4, o, row_major<const float>(x.data(), 1, 32), block_axis::row).scales[0];
}

/// Codes of one MXFP4 block.
std::array<int, 32> codes_of(const block_options& o, const std::array<float, 32>& x) {
  const result q = run_ref(mxfp4, o, row_major<const float>(x.data(), 1, 32), block_axis::row);
  std::array<int, 32> codes{};
  for (std::size_t i = 0; i < 32; ++i) codes[i] = q.codes[i / 2] >> (i % 2 * 4) & 0xF;
  return codes;
}

TEST_CASE("presets: a NaN is passed by, or takes its block along") {
  std::array<float, 32> x{};
  x[0] = std::copysign(fp32_from_bits(fp32_nan_bits), -1.0f);
  x[1] = fp32_from_bits(fp32_nan_bits);
  x[2] = 4.0f;
  for (const auto& o :
       {presets::torchao_floor, presets::torchao_rceil, presets::torchao_even, presets::torchao_ceil, presets::ocp}) {
    CHECK(byte_of(o, x[0], 0) == 255);
    for (const int code : codes_of(o, x)) CHECK(code == 0);
  }
  for (block_options o : {presets::te_rocm, presets::primus, presets::aiter_even, presets::aiter_round_up,
                          presets::aiter_round_down, presets::aiter_ceil, presets::nvidia}) {
    o.rotation = {};
    const auto codes = codes_of(o, x);
    CHECK(codes[0] == 0xF);  // -6: FP4 has no NaN, and the gfx950 conversion keeps the sign
    CHECK(codes[1] == 0x7);
    CHECK(codes[2] == 0x6);  // the scale is 2^0, from 4.0
  }
}

TEST_CASE("strides of source and target: rows in the middle of larger memory, the rest untouched") {
  const index_t rows = 5, cols = 64, wide = 70;
  auto x = oracle::block_values(rows, wide, 7);
  std::vector<float> dense;
  for (index_t r = 0; r < rows; ++r)
    dense.insert(dense.end(), &x[static_cast<std::size_t>(r * wide)], &x[static_cast<std::size_t>(r * wide)] + cols);
  const result want =
      run_ref(mxfp4, presets::te_rocm, row_major<const float>(dense.data(), rows, cols), block_axis::row);
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

/// Converts FP32 to T's storage by the oracle: nearest even, Inf on overflow, the canonical NaN.
template <class T>
std::uint64_t stored_bits(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return std::isnan(x) ? fp32_nan_bits : fp32_bits(x);
  } else {
    static const auto& all = oracle::all_formats();
    static const oracle::rounder round(
        *std::find_if(all.begin(), all.end(), [](const auto& f) { return f.value == T::format; }));
    return round(std::isnan(x) ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(x),
                 oracle::direction::nearest_even, oracle::excess::to_inf);
  }
}
std::uint64_t bits(float x) { return fp32_bits(x); }
template <format F>
std::uint64_t bits(small_float<F> x) {
  return x.bits();
}

/// All codes with all scales of a format, in both orientations, against the oracle.
template <class T>
void check_decoding(block_format f, float factor) {
  const index_t codes = index_t{1} << f.element.bits(), scale_count = index_t{1} << f.scale.bits();
  const index_t k = std::max<index_t>(codes, f.length), rows = scale_count * f.rows;
  if (k % f.length != 0) return;
  std::vector<std::uint8_t> stored, scales;
  for (index_t r = 0; r < rows; ++r) {
    std::vector<std::uint32_t> row;
    for (index_t c = 0; c < k; ++c) row.push_back(static_cast<std::uint32_t>((c + r) % codes));
    const auto bytes = oracle::packed(f.element, row);
    stored.insert(stored.end(), bytes.begin(), bytes.end());
    if (r % f.rows == 0) {
      for (index_t b = 0; b < k / f.length; ++b) {
        scales.push_back(static_cast<std::uint8_t>((r / f.rows + 3 * b) % scale_count));
      }
    }
  }
  const auto in = dense_blocks<const std::uint8_t>(f, rows, k, stored.data(), scales.data());
  const oracle::block_quantizer expected(f, {});
  for (const auto axis : {block_axis::row, block_axis::column}) {
    std::vector<T> y(static_cast<std::size_t>(rows * k));
    const bool by_row = axis == block_axis::row;
    const auto target = by_row ? row_major(y.data(), rows, k) : row_major(y.data(), k, rows);
    dequantize_ref(f, in, axis, target, factor);
    int wrong = 0;
    for (index_t r = 0; r < rows; ++r) {
      for (index_t c = 0; c < k; ++c) {
        const std::uint8_t scale = scales[static_cast<std::size_t>(r / f.rows * (k / f.length) + c / f.length)];
        const float value = expected.value(static_cast<std::uint32_t>((c + r) % codes), scale) * factor;
        wrong += bits(by_row ? target(r, c) : target(c, r)) != stored_bits<T>(value);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("decoding: every code under every scale, to FP32, BF16 and FP16, with and without a factor") {
  for (const auto& entry : all_blocks) {
    const block_format f = entry.f;
    CAPTURE(entry.name);
    if (f.rows > 16) continue;
    for (const float factor : {1.0f, 1.0f / 3.0f, 0x1.8p-140f}) {
      check_decoding<float>(f, factor);
      check_decoding<bf16>(f, factor);
      check_decoding<fp16>(f, factor);
    }
  }
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

TEST_CASE("a block of nothing but NaN, as each implementation's maximum sees it") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto byte = [](const block_options& o, const std::vector<float>& x) {
    std::uint8_t codes[16], scale = 0xEE;
    quantize_ref(mxfp4, o, row_major(x.data(), 1, 32), block_axis::row, {1, 32, codes, 16, &scale, 1});
    return int{scale};
  };
  const std::vector<float> all(32, nan);
  CHECK(byte(presets::te_rocm, all) == 253);
  CHECK(byte(presets::primus, all) == 253);
  CHECK(byte(presets::aiter_even, all) == 0);
  CHECK(byte(presets::aiter_round_up, all) == 0);
  CHECK(byte(presets::nvidia, all) == 0);
  CHECK(byte(presets::ocp, all) == 255);
  // After H16 one NaN in each half makes all NaN; with one NaN, one half stays finite.
  std::vector<float> halves(32, 1.0f);
  halves[3] = nan;
  CHECK(byte(presets::te_rocm, halves) == 127);  // amax 4
  halves[20] = nan;
  CHECK(byte(presets::te_rocm, halves) == 253);
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

TEST_CASE("a rotation must divide the block or span whole blocks, and a run fit the reference's buffer") {
  const auto defined = [](block_format f, int points) {
    block_options o;
    o.rotation.points = points;
    const index_t k = std::max(f.length, 64);
    return quantize_is_defined(f, o, row_major<const float>(nullptr, 1, k), block_axis::row, {1, k});
  };
  CHECK((defined(mxfp4, 0) && defined(mxfp4, 16) && defined(mxfp4, 32) && defined(mxfp4, 64)));
  CHECK_FALSE((defined(mxfp4, 128) || defined(mxfp4, 24) || defined(mxfp4, -16) || defined(mxfp4, 1)));
  CHECK(defined({formats::e2m1, max_run_length}, 256));
  CHECK_FALSE(defined({formats::e2m1, max_run_length}, 512));
  CHECK_FALSE(defined({formats::e2m1, 2 * max_run_length}, 0));
  CHECK_FALSE((defined({formats::e2m1, 0}, 0) || defined({formats::e2m1, 3}, 2) || defined({formats::e2m1, 48}, 64)));
  CHECK_FALSE(defined({formats::e2m1, 32, formats::e8m0, 0}, 0));
  CHECK_FALSE(defined({formats::e2m1, 32, formats::e8m0, 2}, 0));  // one row only
}

TEST_CASE("formats and options must go together") {
  const auto defined = [](block_format f, const block_options& o) {
    return quantize_is_defined(f, o, row_major<const float>(nullptr, 1, 32), block_axis::row,
                               dense_blocks<std::uint8_t>(f, 1, 32, nullptr, nullptr));
  };
  CHECK((defined(mxfp4, {}) && defined(nvfp4, {}) && defined(mxfp4, {}) && defined({formats::e5m2}, {})));
  CHECK_FALSE(defined({formats::fp16}, {}));
  CHECK_FALSE(defined({formats::e2m1, 32, formats::e4m3}, {}));                          // signed scale
  CHECK_FALSE(defined({formats::e2m1, 32, {4, 3, 7, false, specials::none}}, {}));       // no NaN
  CHECK_FALSE(defined({formats::e2m1, 32, {5, 4, 15, false, specials::nan_only}}, {}));  // nine bits
  for (const int count : {-1, 0, 33}) {
    block_options o;
    o.random_count = count;
    CHECK_FALSE(defined(mxfp4, o));
  }
  for (const float factor : {0.0f, -1.0f, HUGE_VALF, fp32_from_bits(fp32_nan_bits)}) {
    block_options o;
    o.encode_factor = factor;
    CHECK_FALSE(defined(nvfp4, o));
    CHECK(defined(mxfp4, o));  // no floating-point scale
  }
  block_options o;
  o.policy = policies::te_rocm;
  CHECK_FALSE(defined(nvfp4, o));  // byte 127 is UE4M3's NaN
  CHECK(defined({formats::e2m1, 16, formats::ue5m3}, o));
  o.policy = {0, 127};
  CHECK_FALSE(defined(nvfp4, o));
  for (const auto choice : {scale_choice::four_over_six, scale_choice::headroom, scale_choice::eden}) {
    o = {};
    o.choice = choice;
    CHECK(defined(nvfp4, o));
    CHECK_FALSE(defined(mxfp4, o));
    o.rounding = rounding::stochastic;
    CHECK(defined(nvfp4, o) == (choice == scale_choice::headroom));
  }
  o = {};
  o.choice = scale_choice::four_over_six;
  CHECK_FALSE(defined({formats::e2m3, 16, formats::ue4m3}, o));
  o.choice = scale_choice::eden;
  CHECK_FALSE(takes_choice(square_blocks(nvfp4), o.choice));
}

TEST_CASE("unused bits of a row's last byte are zero") {
  const std::vector<float> x(9, 6.0f);
  const result q = run_ref({formats::e2m1, 3}, {}, row_major<const float>(x.data(), 1, 9), block_axis::row);
  CHECK(q.codes == std::vector<std::uint8_t>{0x77, 0x77, 0x77, 0x77, 0x07});
}

}  // namespace quantize_ref_test
