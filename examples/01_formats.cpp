// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Formats are values: every property is computed from their fields. Prints the tables of docs/reference/formats.md:
// fields, limits and special codes of every format, and all numbers of formats of at most 6 bits.
#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <iterator>
#include <string>
#include <utility>

#include "rotoscale/limits.hpp"
#include "rotoscale/names.hpp"

using namespace rotoscale;

// A new format takes one line.
constexpr format e3m4{3, 4, 3};

static std::string hex(format f, std::uint64_t code) {
  std::string text = "0x";
  for (int nibble = (f.bits() + 3) / 4 - 1; nibble >= 0; --nibble) text += "0123456789ABCDEF"[code >> 4 * nibble & 15];
  return text;
}

template <format F>
static std::string number(std::uint64_t code) {
  return to_string(small_float<F>::from_bits(static_cast<typename small_float<F>::storage>(code)));
}

static void print_line(std::initializer_list<std::string> cells) {
  for (const std::string& cell : cells) std::printf("| %s ", cell.c_str());
  std::printf("|\n");
}

static void print_head(std::initializer_list<std::string> cells) {
  print_line(cells);
  for (std::size_t i = 0; i < cells.size(); ++i) std::printf("|---");
  std::printf("|\n");
}

/// Calls visit.operator()<F>(name) for every named format, then for e3m4.
template <class Visitor>
static void for_each_format(Visitor visit) {
  constexpr auto& table = enum_names<format>::table;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (visit.template operator()<table[I].value>(std::string(table[I].name)), ...);
  }
  (std::make_index_sequence<std::size(table)>());
  visit.template operator()<e3m4>("e3m4 (own)");
}

static void print_fields() {
  print_head({"Format", "Bits", "Sign, exponent, mantissa", "Bias", "Special codes"});
  for_each_format([]<format F>(const std::string& name) {
    const std::string special[] = {"none", "all ones is NaN", "Inf and NaNs", "the code of -0 is NaN"};
    const std::string fields = std::to_string(F.is_signed ? 1 : 0) + ", " + std::to_string(F.exponent_bits) + ", " +
                               std::to_string(F.mantissa_bits);
    print_line({name, std::to_string(F.bits()), fields, std::to_string(F.bias), special[static_cast<int>(F.specials)]});
  });
}

static void print_values() {
  print_head({"Format", "Largest", "Least normal", "Least above 0", "Epsilon"});
  for_each_format([]<format F>(const std::string& name) {
    using limits = std::numeric_limits<small_float<F>>;
    print_line({name, to_string(limits::max()), to_string(limits::min()), to_string(limits::denorm_min()),
                to_string(limits::epsilon())});
  });
}

static void print_codes() {
  print_head({"Format", "Largest", "Least normal", "Least above 0", "One", "-0", "Inf", "NaN"});
  for_each_format([]<format F>(const std::string& name) {
    using limits = std::numeric_limits<small_float<F>>;
    const auto code = [](small_float<F> x) { return hex(F, x.bits()); };
    if constexpr (F.bits() > 32) return;
    print_line({name, code(limits::max()), code(limits::min()), code(limits::denorm_min()), code(small_float<F>(1.0f)),
                F.has_negative_zero() ? hex(F, F.sign_mask()) : "", F.has_infinity() ? code(limits::infinity()) : "",
                F.has_nan() ? code(limits::quiet_NaN()) : ""});
  });
}

/// Prints the numbers of all codes without their sign bit, eight per line.
template <format F>
static void print_numbers(const std::string& name) {
  int width = 0;
  for (std::uint64_t code = 0; code <= F.magnitude_mask(); ++code) {
    width = std::max(width, static_cast<int>(number<F>(code).size()));
  }
  std::printf("\n%s\n\n```text\n", name.c_str());
  for (std::uint64_t row = 0; row <= F.magnitude_mask(); row += 8) {
    std::printf("%s:", hex(F, row).c_str());
    for (std::uint64_t i = 0; i < 8; ++i) std::printf(" %*s", width, number<F>(row + i).c_str());
    std::printf("\n");
  }
  if (F.is_signed) {
    std::printf("%s to %s: %s, %s to %s\n", hex(F, F.sign_mask()).c_str(), hex(F, 2 * F.sign_mask() - 1).c_str(),
                number<F>(F.sign_mask()).c_str(), number<F>(F.sign_mask() + 1).c_str(),
                number<F>(2 * F.sign_mask() - 1).c_str());
  }
  std::printf("```\n");
}

int main() {
  print_fields();
  std::printf("\nValues:\n\n");
  print_values();
  std::printf("\nCodes:\n\n");
  print_codes();
  for_each_format([]<format F>(const std::string& name) {
    if constexpr (F.bits() <= 6) print_numbers<F>(name);
  });
}
