// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// NVIDIA's conversions as an oracle. `cuda_fp4.h`, `cuda_fp6.h` and `cuda_fp8.h` run on the host, without a GPU. They
// convert double, float, half and bfloat16 by separate code. Every conversion is compared. Deliberate differences
// (docs/reference/oracles.md) are stated with both results.
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "rotoscale/pack.hpp"
#include "rotoscale/parallel.hpp"
#include "rotoscale/round.hpp"

namespace rotoscale {
namespace {

using code = std::uint64_t;

/// One of NVIDIA's conversions, by source type, and the library's arguments for it.
struct conversion {
  std::string name;
  format to;
  rounding mode;
  overflow excess;
  code nan;             ///< NVIDIA's result for NaN
  bool keeps_fp64_nan;  ///< an FP64 NaN keeps its sign and payload
  bool is_scale;        ///< E8M0: takes |x|
  code (*from_double)(double);
  code (*from_float)(float);
  code (*from_half)(std::uint16_t);  ///< null if missing
  code (*from_bf16)(std::uint16_t);
};

__half_raw half_of(std::uint16_t bits) {
  __half_raw x;
  x.x = bits;
  return x;
}
__nv_bfloat16_raw bf16_of(std::uint16_t bits) {
  __nv_bfloat16_raw x;
  x.x = bits;
  return x;
}

constexpr rounding rounding_of(cudaRoundMode r) {
  return r == cudaRoundNearest ? rounding::nearest_even : r == cudaRoundZero ? rounding::toward_zero : rounding::up;
}
std::string suffix(cudaRoundMode r) { return r == cudaRoundNearest ? " rn" : r == cudaRoundZero ? " rz" : " rp"; }
std::string suffix(__nv_saturation_t s) { return s == __NV_SATFINITE ? " satfinite" : " nosat"; }

template <cudaRoundMode R>
conversion fp4() {
  return {"e2m1" + suffix(R),
          formats::e2m1,
          rounding_of(R),
          overflow::saturate,
          0x7,
          false,
          false,
          [](double x) { return code{__nv_cvt_double_to_fp4(x, __NV_E2M1, R)}; },
          [](float x) { return code{__nv_cvt_float_to_fp4(x, __NV_E2M1, R)}; },
          [](std::uint16_t x) { return code{__nv_cvt_halfraw_to_fp4(half_of(x), __NV_E2M1, R)}; },
          [](std::uint16_t x) { return code{__nv_cvt_bfloat16raw_to_fp4(bf16_of(x), __NV_E2M1, R)}; }};
}

template <__nv_fp6_interpretation_t I, cudaRoundMode R>
conversion fp6() {
  return {(I == __NV_E2M3 ? "e2m3" : "e3m2") + suffix(R),
          I == __NV_E2M3 ? formats::e2m3 : formats::e3m2,
          rounding_of(R),
          overflow::saturate,
          0x1F,
          false,
          false,
          [](double x) { return code{__nv_cvt_double_to_fp6(x, I, R)}; },
          [](float x) { return code{__nv_cvt_float_to_fp6(x, I, R)}; },
          [](std::uint16_t x) { return code{__nv_cvt_halfraw_to_fp6(half_of(x), I, R)}; },
          [](std::uint16_t x) { return code{__nv_cvt_bfloat16raw_to_fp6(bf16_of(x), I, R)}; }};
}

template <__nv_fp8_interpretation_t I, __nv_saturation_t S>
conversion fp8() {
  return {(I == __NV_E4M3 ? "e4m3" : "e5m2") + suffix(S),
          I == __NV_E4M3 ? formats::e4m3 : formats::e5m2,
          rounding::nearest_even,
          S == __NV_SATFINITE ? overflow::saturate : overflow::to_inf,
          0x7F,
          true,
          false,
          [](double x) { return code{__nv_cvt_double_to_fp8(x, S, I)}; },
          [](float x) { return code{__nv_cvt_float_to_fp8(x, S, I)}; },
          [](std::uint16_t x) { return code{__nv_cvt_halfraw_to_fp8(half_of(x), S, I)}; },
          [](std::uint16_t x) { return code{__nv_cvt_bfloat16raw_to_fp8(bf16_of(x), S, I)}; }};
}

template <cudaRoundMode R, __nv_saturation_t S>
conversion scale() {
  return {"e8m0" + suffix(R) + suffix(S),
          formats::e8m0,
          rounding_of(R),
          S == __NV_SATFINITE ? overflow::saturate : overflow::to_nan,
          0xFF,
          false,
          true,
          [](double x) { return code{__nv_cvt_double_to_e8m0(x, S, R)}; },
          [](float x) { return code{__nv_cvt_float_to_e8m0(x, S, R)}; },
          nullptr,
          [](std::uint16_t x) { return code{__nv_cvt_bfloat16raw_to_e8m0(bf16_of(x), S, R)}; }};
}

const std::vector<conversion>& conversions() {
  static const std::vector<conversion> all{
      fp4<cudaRoundNearest>(),
      fp4<cudaRoundZero>(),
      fp6<__NV_E2M3, cudaRoundNearest>(),
      fp6<__NV_E2M3, cudaRoundZero>(),
      fp6<__NV_E3M2, cudaRoundNearest>(),
      fp6<__NV_E3M2, cudaRoundZero>(),
      fp8<__NV_E4M3, __NV_SATFINITE>(),
      fp8<__NV_E4M3, __NV_NOSAT>(),
      fp8<__NV_E5M2, __NV_SATFINITE>(),
      fp8<__NV_E5M2, __NV_NOSAT>(),
      scale<cudaRoundZero, __NV_SATFINITE>(),
      scale<cudaRoundZero, __NV_NOSAT>(),
      scale<cudaRoundPosInf, __NV_SATFINITE>(),
      scale<cudaRoundPosInf, __NV_NOSAT>(),
  };
  return all;
}

code sign_bit(format f) { return code{1} << (f.bits() - 1); }

/// Does `theirs` equal NVIDIA's expected result? That is the library's, with three exceptions: NaN, the sign that E8M0
/// ignores, and finite numbers beyond E8M0, which stay finite under rounding toward zero.
bool agrees(const conversion& c, format from, code x, code theirs) {
  if (from.is_nan(x)) {
    constexpr format fp64 = formats::fp64;
    if (!c.keeps_fp64_nan || from != fp64) return theirs == c.nan;
    return c.to.is_nan(theirs) && c.to.is_negative(theirs) == from.is_negative(x);
  }
  if (!c.is_scale) return theirs == convert(from, x, c.to, c.mode, c.excess);
  const bool stays_finite = c.mode == rounding::toward_zero && !from.is_infinity(x);
  return theirs == convert(from, x & ~sign_bit(from), c.to, c.mode, stays_finite ? overflow::saturate : c.excess);
}

/// Counts comparisons and reports the first differences.
class tally {
 public:
  void compare(const conversion& c, const char* from_name, format from, code x, code theirs) {
    ++count_;
    if (!agrees(c, from, x, theirs) && ++differences_ <= 5) {
      std::printf("%s of %s %#llx: CUDA %#llx\n", c.name.c_str(), from_name, static_cast<unsigned long long>(x),
                  static_cast<unsigned long long>(theirs));
    }
  }
  void compare_float(const conversion& c, std::uint32_t bits) {
    compare(c, "fp32", formats::fp32, bits, c.from_float(fp32_from_bits(bits)));
  }
  void compare_double(const conversion& c, double x) {
    compare(c, "fp64", formats::fp64, bit_cast<std::uint64_t>(x), c.from_double(x));
  }
  long long count() const { return count_; }
  long long differences() const { return differences_; }

 private:
  long long count_ = 0;
  long long differences_ = 0;
};

/// All codes of `f` as numbers, the midpoints between neighbours, and the midpoint above the largest, with both signs.
std::vector<double> ties_and_values(format f) {
  std::vector<double> all{0.0};
  double previous = 0.0;
  for (code magnitude = 0; magnitude <= f.max_code(); ++magnitude) {
    const double value = static_cast<double>(decode(f, magnitude));
    all.push_back(value);
    all.push_back((previous + value) / 2);
    if (magnitude == f.max_code()) {
      all.push_back(value + (value - previous) / 2);
      all.push_back(value + (value - previous));
    }
    previous = value;
  }
  const std::size_t positive = all.size();
  for (std::size_t i = 0; i < positive; ++i) all.push_back(-all[i]);
  return all;
}

constexpr double infinity = std::numeric_limits<double>::infinity();

TEST_CASE("all half and bfloat16 sources") {
  tally t;
  for (const conversion& c : conversions()) {
    for (std::uint32_t i = 0; i < 0x10000; ++i) {
      const auto x = static_cast<std::uint16_t>(i);
      if (c.from_half != nullptr) t.compare(c, "fp16", formats::fp16, x, c.from_half(x));
      t.compare(c, "bf16", formats::bf16, x, c.from_bf16(x));
    }
  }
  MESSAGE("compared " << t.count() << " conversions of half and bfloat16");
  CHECK(t.differences() == 0);
}

TEST_CASE("values, ties and their neighbours, FP32 and FP64") {
  tally t;
  for (const conversion& c : conversions()) {
    for (const double x : ties_and_values(c.to)) {
      for (const double y : {x, std::nextafter(x, infinity), std::nextafter(x, -infinity)}) t.compare_double(c, y);
      const std::uint32_t bits = fp32_bits(static_cast<float>(x));
      for (const std::uint32_t u : {bits - 1, bits, bits + 1}) t.compare_float(c, u);
    }
  }
  MESSAGE("compared " << t.count() << " conversions at and beside values and ties");
  CHECK(t.differences() == 0);
}

TEST_CASE("FP32, every 4093rd pattern, and as FP64") {
  tally t;
  for (const conversion& c : conversions()) {
    for (code u = 0; u < code{1} << 32; u += 4093) {
      const auto bits = static_cast<std::uint32_t>(u);
      t.compare_float(c, bits);
      // The low half of the FP64 pattern is set too, so that the value exceeds FP32's precision.
      t.compare_double(c, bit_cast<double>(u << 32 | (u * 0x9E3779B9u & 0xFFFFFFFFu)));
    }
  }
  MESSAGE("compared " << t.count() << " conversions of FP32 and FP64");
  CHECK(t.differences() == 0);
}

TEST_CASE("all codes decode alike") {
  const auto check = [](format f, format to, code theirs, code x) {
    const code ours = convert(f, x, to, rounding::nearest_even, overflow::to_inf);
    CAPTURE(f.bits());
    CAPTURE(x);
    CHECK(to.is_nan(ours) == to.is_nan(theirs));
    if (!to.is_nan(ours)) CHECK(ours == theirs);
  };
  using u8 = unsigned char;
  for (code x = 0; x < 16; ++x) {
    check(formats::e2m1, formats::fp16, __nv_cvt_fp4_to_halfraw(static_cast<u8>(x), __NV_E2M1).x, x);
  }
  for (code x = 0; x < 64; ++x) {
    check(formats::e2m3, formats::fp16, __nv_cvt_fp6_to_halfraw(static_cast<u8>(x), __NV_E2M3).x, x);
    check(formats::e3m2, formats::fp16, __nv_cvt_fp6_to_halfraw(static_cast<u8>(x), __NV_E3M2).x, x);
  }
  for (code x = 0; x < 256; ++x) {
    check(formats::e4m3, formats::fp16, __nv_cvt_fp8_to_halfraw(static_cast<u8>(x), __NV_E4M3).x, x);
    check(formats::e5m2, formats::fp16, __nv_cvt_fp8_to_halfraw(static_cast<u8>(x), __NV_E5M2).x, x);
    check(formats::e8m0, formats::bf16, __nv_cvt_e8m0_to_bf16raw(static_cast<u8>(x)).x, x);
  }
}

TEST_CASE("packed pairs keep the first element low") {
  for (code even = 0; even < 16; ++even) {
    for (code odd = 0; odd < 16; ++odd) {
      const float2 pair{decode(formats::e2m1, even), decode(formats::e2m1, odd)};
      CHECK(__nv_cvt_float2_to_fp4x2(pair, __NV_E2M1, cudaRoundNearest) ==
            pack_nibbles(static_cast<std::uint32_t>(even), static_cast<std::uint32_t>(odd)));
    }
  }
}

TEST_CASE("where the two differ by choice") {
  const float nan = fp32_from_bits(fp32_nan_bits), minus_nan = fp32_from_bits(fp32_nan_bits | fp32_sign_mask);
  const auto fp4_rn = [](float x) { return int{__nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest)}; };
  const auto fp8_sat = [](float x, auto type) { return int{__nv_cvt_float_to_fp8(x, __NV_SATFINITE, type)}; };
  const auto up = [](float x) { return int{__nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf)}; };

  SUBCASE("NaN without a NaN code: the largest number, CUDA drops the sign") {
    CHECK(fp4_rn(nan) == 0x7);
    CHECK(fp4_rn(minus_nan) == 0x7);
    CHECK(encode(formats::e2m1, nan) == 0x7);
    CHECK(encode(formats::e2m1, minus_nan) == 0xF);
  }
  SUBCASE("NaN: CUDA has one code, 0x7F, for both FP8 types, but an FP64 NaN keeps its sign and payload") {
    for (const float x : {nan, minus_nan}) {
      CHECK(fp8_sat(x, __NV_E4M3) == 0x7F);
      CHECK(fp8_sat(x, __NV_E5M2) == 0x7F);
      const int sign = std::signbit(x) ? 0x80 : 0;
      CHECK(__nv_cvt_double_to_fp8(static_cast<double>(x), __NV_SATFINITE, __NV_E4M3) == (sign | 0x7F));
      CHECK(__nv_cvt_double_to_fp8(static_cast<double>(x), __NV_SATFINITE, __NV_E5M2) == (sign | 0x7E));
    }
    CHECK(encode(formats::e4m3, nan) == 0x7F);
    CHECK(encode(formats::e4m3, minus_nan) == 0xFF);
    CHECK(encode(formats::e5m2, nan) == 0x7E);
    CHECK(encode(formats::e5m2, minus_nan) == 0xFE);
  }
  SUBCASE("E8M0 of a negative number: CUDA takes the magnitude") {
    CHECK(up(-3.0f) == 0x81);
    CHECK(encode(formats::e8m0, -3.0f, rounding::up) == 0x00);
  }
  SUBCASE("E8M0 of finite numbers beyond its range, rounded toward zero without saturation: CUDA keeps them finite") {
    CHECK(__nv_cvt_double_to_e8m0(0x1p128, __NV_NOSAT, cudaRoundZero) == 0xFE);
    CHECK(convert(formats::fp64, bit_cast<code>(0x1p128), formats::e8m0, rounding::toward_zero, overflow::to_nan) ==
          0xFF);
    CHECK(__nv_cvt_double_to_e8m0(infinity, __NV_NOSAT, cudaRoundZero) == 0xFF);
  }
  SUBCASE("the same: E8M0 of zero, of numbers below its range and above") {
    CHECK(up(0.0f) == 0x00);
    CHECK(encode(formats::e8m0, 0.0f, rounding::up) == 0x00);
    CHECK(up(0x1p-149f) == 0x00);
    CHECK(encode(formats::e8m0, 0x1p-149f, rounding::up) == 0x00);
    CHECK(up(0x1.8p127f) == 0xFE);
    CHECK(encode(formats::e8m0, 0x1.8p127f, rounding::up) == 0xFE);
  }
}

TEST_SUITE("slow") {
  TEST_CASE("all FP32 patterns") {
    thread_pool pool(0);
    for (const conversion& c : conversions()) {
      constexpr index_t chunks = 1 << 12;
      std::atomic<long long> differences{0};
      pool.for_each(chunks, [&](index_t chunk) {
        tally t;
        const code first = static_cast<code>(chunk) << 20;
        for (code u = first; u < first + (code{1} << 20); ++u) t.compare_float(c, static_cast<std::uint32_t>(u));
        differences += t.differences();
      });
      CAPTURE(c.name);
      CHECK(differences == 0);
    }
  }
}

}  // namespace
}  // namespace rotoscale
