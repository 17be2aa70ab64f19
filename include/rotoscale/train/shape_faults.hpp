// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Checks of the fields of a model's shape. Each returns a sentence that names the first wrong field, or nullopt.
#pragma once

#include <cmath>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "rotoscale/config.hpp"

namespace rotoscale::train {

/// Largest number of layers: random streams count linear layers in 14 bits.
inline constexpr long long max_layers = 4000;
static_assert(4 * max_layers + 1 <= 1 << 14);

/// A size and its limit. Products of two default limits fit any index.
struct size_field {
  const char* name;             ///< for messages
  long long value;              ///< elements
  long long largest = 1 << 24;  ///< limit
};

/// Returns a fault if a size is below 1 or above its limit.
inline std::optional<std::string> find_size_fault(std::initializer_list<size_field> fields) {
  for (const size_field& f : fields) {
    const std::string at = std::string(f.name) + ": must be ", is = ", is " + std::to_string(f.value);
    if (f.value <= 0) return at + "positive" + is;
    if (f.value > f.largest) return at + "at most " + std::to_string(f.largest) + is;
  }
  return std::nullopt;
}
/// Checks that one size divides another.
inline std::optional<std::string> find_divisor_fault(const size_field& divisor, const size_field& of) {
  if (of.value % divisor.value == 0) return std::nullopt;
  return std::string(divisor.name) + ": " + std::to_string(divisor.value) + " does not divide " + of.name + " " +
         std::to_string(of.value);
}
/// Checks that numbers are positive and finite.
inline std::optional<std::string> find_number_fault(std::initializer_list<std::pair<const char*, double>> fields) {
  for (const auto& [name, x] : fields) {
    if (!(x > 0 && std::isfinite(x))) return std::string(name) + ": must be positive and finite";
  }
  return std::nullopt;
}

}  // namespace rotoscale::train
