// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Text names of enumerators, one table an enumeration: what configuration files, flags and logs spell.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rotoscale/block.hpp"

namespace rotoscale {

/// Specialised for each enumeration that has names: `static constexpr entry table[]`.
template <class E>
struct enum_names;

template <class E>
struct enum_name {
  E value;
  std::string_view name;
};

template <class E>
concept named_enum = requires {
  enum_names<E>::table;
};

template <named_enum E>
constexpr std::string_view to_string(E value) {
  for (const auto& entry : enum_names<E>::table) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}

/// False, leaving `value` alone, if no enumerator has that name.
template <named_enum E>
constexpr bool from_string(std::string_view name, E& value) {
  for (const auto& entry : enum_names<E>::table) {
    if (entry.name == name) {
      value = entry.value;
      return true;
    }
  }
  return false;
}

/// All names of an enumeration; the argument only selects it.
template <named_enum E>
std::vector<std::string> names(E) {
  std::vector<std::string> all;
  for (const auto& entry : enum_names<E>::table) all.emplace_back(entry.name);
  return all;
}

template <>
struct enum_names<scale_rule> {
  static constexpr enum_name<scale_rule> table[] = {{scale_rule::floor, "floor"},
                                                    {scale_rule::ceil, "ceil"},
                                                    {scale_rule::even, "even"},
                                                    {scale_rule::rceil, "rceil"}};
};

template <>
struct enum_names<rounding> {
  static constexpr enum_name<rounding> table[] = {{rounding::nearest_even, "nearest_even"},
                                                  {rounding::nearest_away, "nearest_away"},
                                                  {rounding::toward_zero, "toward_zero"},
                                                  {rounding::up, "up"},
                                                  {rounding::down, "down"},
                                                  {rounding::to_odd, "to_odd"},
                                                  {rounding::stochastic, "stochastic"}};
};

}  // namespace rotoscale
