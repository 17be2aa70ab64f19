// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Text names of enumerators, formats, block formats, policies and presets, one table per type. Configuration files,
// flags and logs use these names.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "rotoscale/block.hpp"
#include "rotoscale/gemm_options.hpp"
#include "rotoscale/layout.hpp"

namespace rotoscale {

/// A table of enum_name<E> for each type with named values.
template <class E>
struct enum_names;

/// One row of a table of names.
template <class E>
struct enum_name {
  E value;                ///< the value
  std::string_view name;  ///< its name in text, lower case
};

namespace detail {
/// Splits the text of a list of enumerators at its commas.
template <class E, std::size_t N>
constexpr std::array<enum_name<E>, N> enumerator_table(const E (&values)[N], std::string_view text) {
  std::array<enum_name<E>, N> table{};
  for (std::size_t i = 0; i < N; ++i) {
    const std::size_t end = text.find(',');
    table[i] = {values[i], text.substr(0, end)};
    if (end != text.npos) text.remove_prefix(end + 2);
  }
  return table;
}
}  // namespace detail

/// Put after an enum, in its namespace: the names are the enumerators'.
#define ROTOSCALE_ENUM_NAMES(type, ...)                                  \
  constexpr auto named_enumerators(type) {                               \
    using enum type;                                                     \
    return ::rotoscale::detail::enumerator_table<type>({__VA_ARGS__},    \
                                                       #__VA_ARGS__);    \
  }
template <class E>
  requires requires { named_enumerators(E{}); }
struct enum_names<E> {
  static constexpr auto table = named_enumerators(E{});
};

template <class E>
concept named_enum = requires {
  enum_names<E>::table;
};

/// The first name of `value`, or "?".
template <named_enum E>
constexpr std::string_view to_string(E value) {
  for (const auto& entry : enum_names<E>::table) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}

/// Sets `value` to the one of that name. Returns false and leaves it unchanged if there is none.
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

/// All names of a type; the argument only selects it.
template <named_enum E>
std::vector<std::string> names(E) {
  std::vector<std::string> all;
  for (const auto& entry : enum_names<E>::table) all.emplace_back(entry.name);
  return all;
}

ROTOSCALE_ENUM_NAMES(scale_rule, floor, ceil, even, rceil)
ROTOSCALE_ENUM_NAMES(scale_choice, amax, four_over_six, headroom, eden)
ROTOSCALE_ENUM_NAMES(split_order, ascending, descending, pairwise)
ROTOSCALE_ENUM_NAMES(rounding, nearest_even, nearest_away, toward_zero, up, down, to_odd, stochastic)
ROTOSCALE_ENUM_NAMES(overflow, saturate, to_inf, to_nan)
ROTOSCALE_ENUM_NAMES(specials, none, nan_only, ieee, fnuz)
ROTOSCALE_ENUM_NAMES(block_axis, row, column)
ROTOSCALE_ENUM_NAMES(placement, row_major, column_major, aiter_data_16x16, aiter_scale, hipblaslt_scale_32x8,
                     nvidia_scale_128x4)
ROTOSCALE_ENUM_NAMES(block_policy::nan_rule, ignore, ignore_unless_all, nan_scale)
ROTOSCALE_ENUM_NAMES(block_policy::infinity_rule, exponent_128, largest_scale, nan_scale)

template <>
struct enum_names<block_policy> {
  static constexpr enum_name<block_policy> table[] = {{policies::te_rocm, "te_rocm"},
                                                      {policies::ocp, "ocp"},
                                                      {policies::primus, "primus"},
                                                      {policies::aiter_even, "aiter_even"},
                                                      {policies::aiter, "aiter"},
                                                      {policies::nvidia, "nvidia"},
                                                      {policies::aiter_nonzero, "aiter_nonzero"},
                                                      {policies::torchao_nvfp4, "torchao_nvfp4"}};
};

template <>
struct enum_names<format> {
  static constexpr enum_name<format> table[] = {{formats::e2m1, "e2m1"},         {formats::e2m3, "e2m3"},
                                                {formats::e3m2, "e3m2"},         {formats::e4m3, "e4m3"},
                                                {formats::e5m2, "e5m2"},         {formats::e4m3fnuz, "e4m3fnuz"},
                                                {formats::e5m2fnuz, "e5m2fnuz"}, {formats::e4m3b11fnuz, "e4m3b11fnuz"},
                                                {formats::int8, "int8"},         {formats::e8m0, "e8m0"},
                                                {formats::ue4m3, "ue4m3"},       {formats::ue5m3, "ue5m3"},
                                                {formats::bf16, "bf16"},         {formats::fp16, "fp16"},
                                                {formats::tf32, "tf32"},         {formats::fp32, "fp32"},
                                                {formats::fp64, "fp64"}};
};

template <>
struct enum_names<block_format> {
  static constexpr enum_name<block_format> table[] = {{mxfp4, "mxfp4"},
                                                      {mxfp6_e2m3, "mxfp6_e2m3"},
                                                      {mxfp6_e3m2, "mxfp6_e3m2"},
                                                      {mxfp8_e4m3, "mxfp8_e4m3"},
                                                      {mxfp8_e5m2, "mxfp8_e5m2"},
                                                      {mxint8, "mxint8"},
                                                      {nvfp4, "nvfp4"}};
};

/// Presets are only read by name: some are equal, and options are not compared.
template <>
struct enum_names<block_options> {
  static constexpr enum_name<block_options> table[] = {{presets::te_rocm, "te_rocm"},
                                                       {presets::primus, "primus"},
                                                       {presets::aiter_even, "aiter_even"},
                                                       {presets::aiter_round_up, "aiter_round_up"},
                                                       {presets::aiter_round_down, "aiter_round_down"},
                                                       {presets::aiter_ceil, "aiter_ceil"},
                                                       {presets::torchao_floor, "torchao_floor"},
                                                       {presets::torchao_rceil, "torchao_rceil"},
                                                       {presets::torchao_even, "torchao_even"},
                                                       {presets::torchao_ceil, "torchao_ceil"},
                                                       {presets::torchao_nvfp4, "torchao_nvfp4"},
                                                       {presets::nvidia, "nvidia"},
                                                       {presets::ocp, "ocp"}};
};

}  // namespace rotoscale
