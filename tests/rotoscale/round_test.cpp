// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The rounding routine against oracle::rounder (doubles compared with the list of a format's numbers) and
// oracle::exact_rounder (128-bit integer division). round_exhaustive_test.cpp covers all 2^32 FP32 inputs.
#include "rotoscale/round.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <functional>

#include "oracle/exact_rounding.hpp"
#include "rotoscale/parallel.hpp"
#include "rotoscale/philox.hpp"

namespace round_test {

using namespace rotoscale;
using oracle::direction;
using oracle::excess;

constexpr int roundings = oracle::direction_count;
constexpr int overflows = oracle::excess_count;
rounding rounding_of(int i) { return static_cast<rounding>(i); }
direction direction_of(int i) { return static_cast<direction>(i); }
overflow overflow_of(int i) { return static_cast<overflow>(i); }
excess excess_of(int i) { return static_cast<excess>(i); }
static_assert(static_cast<int>(rounding::stochastic) == static_cast<int>(direction::stochastic) &&
              static_cast<int>(rounding::to_odd) == static_cast<int>(direction::to_odd) &&
              static_cast<int>(overflow::to_nan) == static_cast<int>(excess::to_nan));

double value_of(std::uint32_t fp32) { return static_cast<double>(fp32_from_bits(fp32)); }

/// Random word and number of random bits for source i.
random_bits draw_for(std::uint64_t i) {
  const random_stream random{1, 2};
  return {random.word(2 * i), 1 + static_cast<int>(random.word(2 * i + 1) % 32)};
}
oracle::draw draw_of(random_bits r) { return {r.word, r.count}; }

/// Counts the sources 0 .. count - 1 with wrong(source), on all threads.
std::uint64_t count_wrong(std::uint64_t count, const std::function<bool(std::uint64_t)>& wrong) {
  static thread_pool pool;
  std::atomic<std::uint64_t> faults{0};
  const std::uint64_t chunk = 4096;
  pool.for_each(static_cast<index_t>((count + chunk - 1) / chunk), [&](index_t c) {
    const std::uint64_t first = static_cast<std::uint64_t>(c) * chunk;
    for (std::uint64_t i = first; i < std::min(first + chunk, count); ++i) {
      if (wrong(i)) ++faults;
    }
  });
  return faults;
}

/// True if convert(from, code, to) differs from the oracle in any rounding and overflow mode. x is the code's value.
template <class Oracle>
bool differs(format from, std::uint64_t code, double x, const Oracle& expected) {
  const random_bits random = draw_for(code);
  for (int r = 0; r < roundings; ++r) {
    for (int o = 0; o < overflows; ++o) {
      if (convert(from, code, expected.f.value, rounding_of(r), overflow_of(o), random) !=
          expected(x, direction_of(r), excess_of(o), draw_of(random)))
        return true;
    }
  }
  return false;
}

template <class Oracle>
bool differs(double x, const Oracle& expected) {
  return differs(formats::fp64, bit_cast<std::uint64_t>(x), x, expected);
}

/// Stride over the numbers: 1, but 13 for formats of 16 bits and more. The slow suite has all FP32 numbers.
std::uint64_t sparseness(const oracle::rounder& r) { return r.list.size() > 20000 ? 13 : 1; }

/// Value as a double; a NaN keeps its sign.
double source_value(const oracle::format_facts& f, std::uint64_t code) {
  if (!oracle::is_nan_code(f, code)) return oracle::value_of(f, code);
  const bool negative = f.is_signed && code >= oracle::sign_bit(f);
  return std::copysign(std::numeric_limits<double>::quiet_NaN(), negative ? -1.0 : 1.0);
}

TEST_CASE("decode: every code of every format has the value of the definition") {
  for (const auto& f : oracle::all_formats()) {
    CAPTURE(f.name);
    for (std::uint64_t code = 0; code < oracle::code_count(f); ++code) {
      const std::uint32_t got = fp32_bits(decode(f.value, code));
      if (oracle::is_nan_code(f, code)) {
        const bool negative = f.is_signed && code >= oracle::sign_bit(f);
        REQUIRE(got == (fp32_nan_bits | (negative ? fp32_sign_mask : 0)));
      } else {
        REQUIRE(got == fp32_bits(static_cast<float>(oracle::value_of(f, code))));
        REQUIRE(static_cast<double>(fp32_from_bits(got)) == oracle::value_of(f, code));
      }
    }
  }
  CHECK(decode(formats::int8, 0x80) == -2.0f);
  CHECK(decode(formats::int8, 0x81) == -1.984375f);
}

TEST_CASE("encoding a decoded code gives the code back, under every rounding") {
  for (const auto& f : oracle::all_formats()) {
    CAPTURE(f.name);
    for (std::uint64_t code = 0; code < oracle::code_count(f); ++code) {
      if (oracle::is_nan_code(f, code)) continue;
      std::uint64_t want = code;
      if (f.twos_complement && code == oracle::sign_bit(f)) want = code + 1;  // never stored: it saturates
      if (!f.subnormals && f.zero && f.value.magnitude(code) < std::uint64_t{1} << f.mantissa_bits)
        want = code & oracle::sign_bit(f);
      for (int r = 0; r < roundings; ++r) {
        REQUIRE(encode(f.value, decode(f.value, code), rounding_of(r), overflow::to_inf, 0xFFFFFFFFu) == want);
      }
    }
  }
}

TEST_CASE("every number of every format of at most 16 bits into every format, rounding and overflow mode") {
  for (const auto& from : oracle::all_formats()) {
    if (from.value.bits() > 16) continue;
    for (const auto& to : oracle::all_formats()) {
      const oracle::rounder expected(to);
      CAPTURE(from.name);
      CAPTURE(to.name);
      CHECK(count_wrong(oracle::code_count(from), [&](std::uint64_t code) {
              return differs(from.value, code, source_value(from, code), expected);
            }) == 0);
    }
  }
}

TEST_CASE("FP32 around every number and every tie of every format") {
  for (const auto& f : oracle::all_formats()) {
    const oracle::rounder expected(f);
    CAPTURE(f.name);
    const std::uint64_t sparse = sparseness(expected);
    CHECK(count_wrong((expected.list.size() - 1) / sparse, [&](std::uint64_t step) {
            const std::uint64_t i = step * sparse;
            for (const double at : {expected.list[i], (expected.list[i] + expected.list[i + 1]) / 2}) {
              const std::uint32_t u = fp32_bits(static_cast<float>(at));
              for (std::uint32_t bits = u < 2 ? 0 : u - 2; bits <= u + 2; ++bits) {
                for (const std::uint32_t sign : {0u, fp32_sign_mask}) {
                  if (differs(formats::fp32, bits | sign, value_of(bits | sign), expected)) return true;
                }
              }
            }
            return false;
          }) == 0);
  }
}

TEST_CASE(
    "FP64 is rounded once: above and below numbers and ties, from closer than FP32 can tell to a third of a step") {
  for (const auto& f : oracle::all_formats()) {
    CAPTURE(f.name);
    const oracle::rounder expected(f);
    const oracle::exact_rounder second(f);
    const std::uint64_t sparse = sparseness(expected);
    CHECK(count_wrong((expected.list.size() - 1) / sparse, [&](std::uint64_t step) {
            const std::uint64_t i = step * sparse;
            const double low = expected.list[i], high = expected.list[i + 1], middle = low + (high - low) / 2;
            for (const double near : {low, middle}) {
              for (const double x : {near, std::nextafter(near, 0.0), std::nextafter(near, 1e300),
                                     near - (high - low) * 0x1p-25, near + (high - low) * 0x1p-25,
                                     near + (high - low) * (0x1p-30 + 0x1p-31), near + (high - low) / 3}) {
                if (differs(x, expected) || differs(-x, expected) || differs(x, second)) return true;
              }
            }
            return false;
          }) == 0);
  }
}

TEST_CASE("FP64 of any bits, and near ties of FP32, into every format and FP32") {
  auto targets = oracle::all_formats();
  targets.push_back(oracle::facts_of(formats::fp32));
  const random_stream random{5, 6};
  for (const auto& f : targets) {
    CAPTURE(f.name);
    const oracle::exact_rounder expected(f);
    CHECK(count_wrong(40000, [&](std::uint64_t i) {
            std::uint64_t bits = std::uint64_t{random.word(2 * i)} << 32 | random.word(2 * i + 1);
            if (i % 4 != 0) {  // in and around the format's range
              const int low = std::ilogb(f.min_positive) - 3, high = std::ilogb(f.max) + 3;
              const auto field =
                  static_cast<std::uint64_t>(1023 + low) + random.word(3 * i) % static_cast<std::uint64_t>(high - low);
              bits = (bits & 0x800FFFFFFFFFFFFFu) | field << 52;
            }
            // Few bits: a number or tie of FP32, or (i % 4 == 3) one FP64 step off.
            if (i % 4 >= 2)
              bits = (bits & ~std::uint64_t{0x0FFFFFFF}) + (i % 4 == 3 ? random.word(5 * i) % 3 - 1ull : 0);
            const double x = bit_cast<double>(bits);
            return differs(x, expected);
          }) == 0);
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

TEST_CASE("to a wider format and back: FP32 through FP64, TF32 through FP32, each number the same, NaN canonical") {
  const random_stream random{7, 8};
  const auto through = [](format narrow, format wide, std::uint64_t code) {
    const std::uint64_t there = convert(narrow, code, wide, rounding::up, overflow::to_inf);
    return convert(wide, there, narrow, rounding::down, overflow::to_inf);
  };
  for (std::uint64_t i = 0; i < 200000; ++i) {
    const std::uint32_t u = i < 1000 ? static_cast<std::uint32_t>(i) * 0x01000001u : random.word(i);
    const std::uint32_t want = fp32_is_nan(u) ? (u & fp32_sign_mask) | fp32_nan_bits : u;
    REQUIRE(through(formats::fp32, formats::fp64, u) == want);
    REQUIRE(convert(formats::fp32, u, formats::fp32, rounding::up, overflow::to_inf) == want);
  }
  for (std::uint64_t code = 0; code < 1u << 19; ++code) {
    const std::uint64_t want = formats::tf32.is_nan(code) ? (code & 0x40000) | 0x3FE00 : code;
    REQUIRE(through(formats::tf32, formats::fp32, code) == want);
    // TF32 is the upper 19 bits of FP32, so truncation recovers it for any lower bits.
    if (!formats::tf32.is_nan(code) && !formats::tf32.is_infinity(code)) {
      const auto u = static_cast<std::uint32_t>(code << 13) | 0x1FFFu;
      REQUIRE(encode(formats::tf32, fp32_from_bits(u), rounding::toward_zero) == code);
    }
  }
}

TEST_CASE("a format without subnormals but with zero: nothing between zero and the least normal number") {
  constexpr format flushing = {4, 3, 7, true, specials::none, false};
  CHECK(std::ldexp(1.0, flushing.min_exponent()) == 0x1p-6);
  CHECK(encode(flushing, 0x1.FFp-7f) == 0x08);
  CHECK(encode(flushing, 0x1.8p-7f) == 0x00);
  CHECK(encode(flushing, -0x1.8p-7f) == 0x80);
}

TEST_CASE("stochastic rounding: the word decides at exactly the fraction's leading bits, for every number of bits") {
  for (const auto& f : oracle::all_formats()) {
    const oracle::rounder expected(f);
    CAPTURE(f.name);
    const std::uint64_t steps = f.max_code;  // between two finite numbers
    CHECK(count_wrong(std::min<std::uint64_t>(steps, 600), [&](std::uint64_t at) {
            const std::uint64_t i = steps <= 600 ? at : at * (steps / 600);
            const double low = expected.list[i], step = expected.list[i + 1] - low;
            for (const double fraction : {0x1p-33, 0x1p-32, 0x1.8p-20, 0.25, 1.0 / 3, 0.5, 0.7890123, 1 - 0x1p-22}) {
              const double x = low + step * fraction;  // may round: the oracle gets x, not the fraction
              if (x >= expected.list[i + 1]) continue;
              for (int count = 1; count <= 32; ++count) {
                const auto leading = static_cast<std::uint64_t>(expected.scaled_fraction(x, i, count));
                const std::uint64_t one = std::uint64_t{1} << count;
                for (const std::uint64_t carry : {one - leading, one - leading - 1}) {
                  if (carry >= one) continue;
                  // Bits of the word above `count` are ignored.
                  for (const std::uint64_t above : {std::uint64_t{0}, ~std::uint64_t{0} << count}) {
                    const random_bits random{static_cast<std::uint32_t>(carry | above), count};
                    const bool up = carry + leading >= one;
                    const std::uint64_t magnitude = oracle::finite_code(f, false, i + (up ? 1 : 0));
                    const std::uint64_t bits = bit_cast<std::uint64_t>(x), sign = bit_cast<std::uint64_t>(-0.0);
                    const auto to = [&](std::uint64_t u) {
                      return convert(formats::fp64, u, f.value, rounding::stochastic, overflow::saturate, random);
                    };
                    if (to(bits) != magnitude) return true;
                    const std::uint64_t negative = f.is_signed ? oracle::finite_code(f, true, i + (up ? 1 : 0)) : 0;
                    if (to(bits | sign) != negative) return true;
                  }
                }
              }
            }
            return false;
          }) == 0);
  }
}

TEST_CASE("stochastic rounding, all words of up to 10 bits: exactly the truncated fraction of them rounds up") {
  for (const format& f : {formats::e2m1, formats::e4m3, formats::e5m2, formats::int8, formats::ue4m3}) {
    const oracle::rounder expected(oracle::facts_of(f));
    for (int count = 1; count <= 10; ++count) {
      const std::uint32_t words = 1u << count;
      for (std::uint64_t code = 0; code < std::min<std::uint64_t>(expected.f.max_code, 12); ++code) {
        const double low = expected.list[code], step = expected.list[code + 1] - low;
        for (std::uint32_t m = 0; m<4 * words; m += words> 64 ? 37 : 1) {  // quarters of the last random bit
          const double x = low + step * static_cast<double>(m) / static_cast<double>(4 * words);
          double sum = 0;
          for (std::uint32_t word = 0; word < words; ++word) {
            const auto code_of_word =
                encode(f, static_cast<float>(x), rounding::stochastic, overflow::saturate, {word, count});
            sum += expected.list[code_of_word];
          }
          // Doubles of few bits: exact. The mean is x if the random bits hold the whole fraction.
          const double truncated = low + step * static_cast<double>(m / 4) / static_cast<double>(words);
          REQUIRE(sum / static_cast<double>(words) == truncated);
          REQUIRE(x - truncated < step / static_cast<double>(words));
        }
      }
    }
  }
}

/// Codes of 64 FP32 numbers of `F` under every rounding (all overflow modes in turn), as a table.
template <format F>
constexpr auto codes_of() {
  std::array<std::uint32_t, 64 * 7> codes{};
  for (std::uint32_t i = 0; i < codes.size(); ++i) {
    const std::uint32_t bits = i / 7 * 0x03F00FF1u ^ (i / 7 << 30);
    codes[i] =
        static_cast<std::uint32_t>(encode(F, fp32_from_bits(bits), static_cast<rounding>(i % 7),
                                          static_cast<overflow>(i % 3), {bits * 77u, 1 + static_cast<int>(i % 32)}));
  }
  return codes;
}

template <format F>
constexpr auto compile_time_codes = codes_of<F>();

/// Values of the first codes of F and of those around its middle and end.
template <format F>
constexpr auto values_of() {
  std::array<std::uint32_t, 64> values{};
  for (std::uint32_t i = 0; i < values.size(); ++i) {
    const std::uint64_t all = std::uint64_t{1} << F.bits();
    values[i] = fp32_bits(decode(F, (i < 32 ? i : i < 48 ? all / 2 + i : all - i) % all));
  }
  return values;
}

template <format F>
constexpr auto compile_time_values = values_of<F>();

template <format... F>
void compare_with_run_time() {
  CHECK(((codes_of<F>() == compile_time_codes<F>)&&...));
  CHECK(((values_of<F>() == compile_time_values<F>)&&...));
}

TEST_CASE("compile time and run time give the same codes and values, under every rounding and overflow mode") {
  namespace f = formats;  // small_float.hpp has types of the same names
  compare_with_run_time<f::e2m1, f::e2m3, f::e3m2, f::e4m3, f::e5m2, f::e4m3fnuz, f::e5m2fnuz, f::e4m3b11fnuz, f::int8,
                        f::e8m0, f::ue4m3, f::ue5m3, f::bf16, f::fp16, f::tf32, f::fp32>();
  constexpr std::uint64_t third = convert(f::fp64, bit_cast<std::uint64_t>(1.0 / 3), f::fp16, rounding::up);
  volatile double three = 3;
  CHECK(convert(f::fp64, bit_cast<std::uint64_t>(1.0 / three), f::fp16, rounding::up) == third);
}

}  // namespace round_test
