// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The rounding routine against oracle::rounder, which only compares doubles with a list of the format's numbers.
#include "rotoscale/round.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cmath>

#include "oracle/format_oracle.hpp"
#include "rotoscale/parallel.hpp"
#include "rotoscale/philox.hpp"

using namespace rotoscale;
using oracle::direction;
using oracle::excess;

namespace {

constexpr int roundings = 7;
constexpr int overflows = 3;
rounding rounding_of(int i) { return static_cast<rounding>(i); }
direction direction_of(int i) { return static_cast<direction>(i); }
static_assert(static_cast<int>(rounding::stochastic) == static_cast<int>(direction::stochastic) &&
              static_cast<int>(rounding::to_odd) == static_cast<int>(direction::to_odd));

double value_of(std::uint32_t fp32) { return static_cast<double>(fp32_from_bits(fp32)); }

const oracle::format_facts& facts(const format& f) {
  for (const auto& candidate : oracle::all_formats()) {
    if (candidate.value == f) return candidate;
  }
  FAIL("unknown format");
  return oracle::all_formats().front();
}

/// First source, ascending, in chunks of the FP32 magnitudes of one sign, whose code is not the oracle's; or `none`.
constexpr std::uint64_t none = ~std::uint64_t{0};
std::uint64_t first_wrong(const oracle::rounder& expected, std::uint64_t first, std::uint64_t last,
                          std::uint64_t step) {
  const format f = expected.f.value;
  const auto& list = expected.list;
  const std::uint64_t sign = std::uint64_t{1} << (f.bits() - 1);
  std::uint64_t code = 0;  // the code that is right for `u`: it only grows along the loop
  for (std::uint64_t u = first; u < last; u += step) {
    const auto bits = static_cast<std::uint32_t>(u);
    const double m = value_of(bits);
    std::uint64_t want;
    if (std::isnan(m) || std::isinf(m)) {
      want = expected(m, direction::nearest_even, excess::saturate);
    } else {
      for (; code < f.max_code(); ++code) {
        const double middle = list[code] + (list[code + 1] - list[code]) / 2;
        if (m < middle || (m == middle && code % 2 == 0)) break;
      }
      want = code;
    }
    if (encode(f, fp32_from_bits(bits)) != want) return u;
    if (encode(f, fp32_from_bits(bits | 0x80000000u)) != (want | sign)) return u | 0x80000000u;
  }
  return none;
}

void compare_fp32(const format& f, std::uint64_t step) {
  const oracle::rounder expected(facts(f));
  thread_pool pool;
  std::atomic<std::uint64_t> wrong{none};
  const index_t chunks = 256;
  const std::uint64_t size = (std::uint64_t{1} << 31) / static_cast<std::uint64_t>(chunks);
  pool.for_each(chunks, [&](index_t i) {
    const std::uint64_t first = static_cast<std::uint64_t>(i) * size;
    const std::uint64_t at = first_wrong(expected, first, first + size, step);
    if (at != none) wrong = at;
  });
  CAPTURE(expected.f.name);
  CHECK(wrong.load() == none);
}

}  // namespace

TEST_CASE("unpack and decode: every code of every format has the value of the definition") {
  for (const auto& f : oracle::all_formats()) {
    CAPTURE(f.name);
    const std::uint64_t sign = f.is_signed ? std::uint64_t{1} << (f.exponent_bits + f.mantissa_bits) : 0;
    for (std::uint64_t code = 0; code <= f.max_code; ++code) {
      const double m = oracle::magnitude_of(f, code);
      REQUIRE(static_cast<double>(decode(f.value, code)) == m);
      REQUIRE(std::signbit(decode(f.value, code)) == false);
      if (sign == 0 || (oracle::is_fnuz(f) && code == 0)) continue;
      REQUIRE(static_cast<double>(decode(f.value, code | sign)) == -m);
      REQUIRE(std::signbit(decode(f.value, code | sign)));
    }
    if (f.nan_code != 0) CHECK((fp32_bits(decode(f.value, f.nan_code)) & fp32_magnitude_mask) == fp32_nan_bits);
    if (f.infinity_code != 0) {
      CHECK(fp32_bits(decode(f.value, f.infinity_code)) == fp32_infinity_bits);
      CHECK(fp32_bits(decode(f.value, f.infinity_code | sign)) == (fp32_infinity_bits | fp32_sign_mask));
    }
  }
}

TEST_CASE("encoding a decoded code gives the code back, under every rounding") {
  for (const auto& f : oracle::all_formats()) {
    CAPTURE(f.name);
    for (std::uint64_t code = 0; code < std::uint64_t{1} << f.value.bits(); ++code) {
      if (f.value.is_nan(code)) continue;
      for (int r = 0; r < roundings; ++r) {
        REQUIRE(encode(f.value, decode(f.value, code), rounding_of(r), overflow::to_inf, 0xFFFFFFFFu) == code);
      }
    }
  }
}

TEST_CASE("every BF16 number into every format, rounding and overflow mode") {
  const random_stream random{1, 2};
  for (const auto& f : oracle::all_formats()) {
    const oracle::rounder expected(f);
    std::uint64_t wrong = 0;
    for (std::uint32_t source = 0; source < 65536; ++source) {
      const double x = value_of(source << 16);
      const std::uint32_t word = random.word(source);
      for (int r = 0; r < roundings; ++r) {
        for (int o = 0; o < overflows; ++o) {
          const std::uint64_t want = expected(x, direction_of(r), static_cast<excess>(o), word);
          const std::uint64_t got =
              convert(formats::bf16, source, f.value, rounding_of(r), static_cast<overflow>(o), word);
          if (want != got && wrong++ == 0) {
            INFO(f.name << " of BF16 " << source << ", rounding " << r << ", overflow " << o);
            CHECK(got == want);
          }
        }
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("FP32 around every number and every tie of every format") {
  const random_stream random{3, 4};
  for (const auto& f : oracle::all_formats()) {
    const oracle::rounder expected(f);
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i + 1 < expected.list.size(); ++i) {
      for (const double at : {expected.list[i], (expected.list[i] + expected.list[i + 1]) / 2, expected.list[i + 1]}) {
        if (at > 0x1.FFFFFEp127) continue;
        const std::uint32_t u = fp32_bits(static_cast<float>(at));
        for (std::uint32_t bits = u < 2 ? 0 : u - 2; bits <= u + 2; ++bits) {
          for (const std::uint32_t sign : {0u, 0x80000000u}) {
            for (int r = 0; r < roundings; ++r) {
              const std::uint32_t word = random.word(bits);
              const auto want = expected(value_of(bits | sign), direction_of(r), excess::to_inf, word);
              wrong += encode(f.value, fp32_from_bits(bits | sign), rounding_of(r), overflow::to_inf, word) != want;
            }
          }
        }
      }
    }
    CAPTURE(f.name);
    CHECK(wrong == 0);
  }
}

TEST_CASE("FP32 to nearest even, one source in 997") {
  for (const auto& f : {formats::e2m1, formats::e4m3, formats::e5m2, formats::bf16}) compare_fp32(f, 997);
}

TEST_SUITE("slow") {
  TEST_CASE("FP32 to nearest even, all sources") {
    for (const auto& f : {formats::e2m1, formats::e4m3, formats::e5m2, formats::bf16}) compare_fp32(f, 1);
  }
}

TEST_CASE("FP64 is rounded once: just above and below a tie, closer than FP32 can tell") {
  for (const auto& f : oracle::all_formats()) {
    CAPTURE(f.name);
    const oracle::rounder expected(f);
    for (std::size_t i = 0; i + 1 < expected.list.size(); ++i) {
      const double middle = (expected.list[i] + expected.list[i + 1]) / 2;
      for (const double x : {std::nextafter(middle, 0.0), middle, std::nextafter(middle, 1e300)}) {
        for (int r = 0; r < 6; ++r) {  // not stochastic: its fraction is not exact in the oracle
          for (const double signed_x : {x, -x}) {
            REQUIRE(convert(formats::fp64, bit_cast<std::uint64_t>(signed_x), f.value, rounding_of(r)) ==
                    expected(signed_x, direction_of(r), excess::saturate));
          }
        }
      }
    }
  }
}

TEST_CASE("FP64 to FP32 equals the hardware's conversion") {
  const random_stream random{5, 6};
  for (std::uint64_t i = 0; i < 200000; ++i) {
    std::uint64_t bits = (std::uint64_t{random.word(2 * i)} << 32) | random.word(2 * i + 1);
    if (i % 2 == 0) {  // near FP32's range, often at a tie
      const std::uint64_t field = 1023 - 155 + random.word(3 * i) % 290;
      bits = (bits & 0x800FFFFFE0000000u) | (field << 52) | (i % 4 == 0 ? 0x10000000u : random.word(5 * i) % 3);
    }
    const double x = bit_cast<double>(bits);
    if (std::isnan(x)) continue;
    REQUIRE(convert(formats::fp64, bits, formats::fp32, rounding::nearest_even, overflow::to_inf) ==
            fp32_bits(static_cast<float>(x)));
  }
}

TEST_CASE("known edge values") {
  const auto nosat = overflow::to_inf;
  const auto nearest = rounding::nearest_even;
  CHECK(encode(formats::e4m3, 464.0f) == 0x7E);
  CHECK(encode(formats::e4m3, 464.0f, nearest, nosat) == 0x7E);
  CHECK(encode(formats::e4m3, 464.1f, nearest, nosat) == 0x7F);
  CHECK(encode(formats::e4m3, 464.1f, nearest, overflow::to_nan) == 0x7F);
  CHECK(encode(formats::e5m2, 61439.0f, nearest, nosat) == 0x7B);
  CHECK(encode(formats::e5m2, 61440.0f, nearest, nosat) == 0x7C);
  CHECK(encode(formats::e2m1, 5.0f) == 0x6);
  CHECK(encode(formats::e2m1, std::nextafter(5.0f, 6.0f)) == 0x7);
  for (const auto& [x, code] : std::array<std::pair<float, std::uint64_t>, 7>{
           {{0.25f, 0}, {0.75f, 2}, {1.25f, 2}, {1.75f, 4}, {2.5f, 4}, {3.5f, 6}, {5.0f, 6}}}) {
    CHECK(encode(formats::e2m1, x) == code);
    CHECK(encode(formats::e2m1, -x) == (code | 8));
  }
  CHECK(encode(formats::e2m1, -0.0f) == 0x8);
  CHECK(encode(formats::e4m3, -0.0f) == 0x80);
  CHECK(encode(oracle::e4m3fnuz, -0.0f) == 0x00);
  // E8M0 toward +inf, as cvt.rp.
  CHECK(encode(formats::e8m0, std::nextafter(1.0f, 2.0f), rounding::up) == 0x80);
  CHECK(encode(formats::e8m0, 0x1.8p-127f, rounding::up) == 0x01);
  CHECK(encode(formats::e8m0, 0x1p-149f, rounding::up) == 0x00);
  CHECK(encode(formats::e8m0, 0x1.8p127f, rounding::up) == 0xFE);
  CHECK(encode(formats::e8m0, 0x1.8p127f, rounding::up, nosat) == 0xFF);
  CHECK(encode(formats::e8m0, -3.0f) == 0x00);
  CHECK(encode(formats::e8m0, fp32_from_bits(fp32_nan_bits | fp32_sign_mask)) == 0xFF);
}

TEST_CASE("stochastic rounding: the word decides at exactly the fraction's leading 32 bits") {
  // 1 + 2^-1 * fraction in E2M1: fraction * 2^32 = m << 10 for an FP32 source with m in its lowest 22 bits.
  for (const std::uint32_t m : {1u, 2u, 0x1234u, 0x200000u, 0x3FFFFFu}) {
    const float x = fp32_from_bits(0x3F800000u | m);
    const std::uint32_t threshold = 0u - (m << 10);  // least word that carries
    CHECK(encode(formats::e2m1, x, rounding::stochastic, overflow::saturate, threshold) == 3);
    CHECK(encode(formats::e2m1, x, rounding::stochastic, overflow::saturate, threshold - 1) == 2);
  }
  // Below the least subnormal: 0.5 * 2^-31 * 1.5 keeps only the bits above 2^-32.
  const float tiny = 0x1.8p-32f;
  CHECK(encode(formats::e2m1, tiny, rounding::stochastic, overflow::saturate, 0xFFFFFFFFu) == 1);
  CHECK(encode(formats::e2m1, tiny, rounding::stochastic, overflow::saturate, 0xFFFFFFFDu) == 1);
  CHECK(encode(formats::e2m1, tiny, rounding::stochastic, overflow::saturate, 0xFFFFFFFCu) == 0);
  CHECK(encode(formats::e2m1, 0x1p-34f, rounding::stochastic, overflow::saturate, 0xFFFFFFFFu) == 0);
}

TEST_CASE("stochastic rounding is unbiased") {
  // Words i * 2^32 / n + half a step are spread evenly: exactly fraction * n of them round up, for fractions in n-ths.
  const std::uint32_t n = 1024;
  for (std::uint32_t m = 0; m < n; ++m) {
    const float x = 2.0f + static_cast<float>(m) / static_cast<float>(n);  // between the codes of 2 and 3
    std::uint32_t up = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      up += encode(formats::e2m1, x, rounding::stochastic, overflow::saturate, i * (1u << 22) + (1u << 21)) == 5;
    }
    REQUIRE(up == m);
  }
}

TEST_CASE("a format without subnormals but with zero: nothing between zero and the least normal number") {
  constexpr format flushing{4, 3, 7, true, specials::none, false, true};
  CHECK(std::ldexp(1.0, flushing.min_exponent()) == 0x1p-6);
  for (std::uint64_t code = 0; code < 256; ++code) {
    const bool zero = (code & 0x78) == 0;
    CHECK(encode(flushing, decode(flushing, code)) == (zero ? code & 0x80 : code));
  }
  CHECK(encode(flushing, 0x1.FFp-7f) == 0x08);
  CHECK(encode(flushing, 0x1.8p-7f) == 0x00);
}

TEST_CASE("compile time and run time give the same codes") {
  constexpr auto table = [] {
    std::array<std::uint64_t, 1024> codes{};
    for (std::uint32_t i = 0; i < codes.size(); ++i) {
      const std::uint32_t bits = i * 0x00400FF1u ^ (i << 30);
      codes[i] = encode(formats::e4m3, fp32_from_bits(bits)) << 32 | encode(formats::e2m1, fp32_from_bits(bits)) << 16 |
                 encode(formats::bf16, fp32_from_bits(bits), rounding::stochastic, overflow::to_inf, bits * 77u);
    }
    return codes;
  }();
  volatile std::uint32_t opaque = 0;
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    const std::uint32_t bits = (i * 0x00400FF1u ^ (i << 30)) + opaque;
    const std::uint64_t code =
        encode(formats::e4m3, fp32_from_bits(bits)) << 32 | encode(formats::e2m1, fp32_from_bits(bits)) << 16 |
        encode(formats::bf16, fp32_from_bits(bits), rounding::stochastic, overflow::to_inf, bits * 77u);
    REQUIRE(code == table[i]);
  }
}
