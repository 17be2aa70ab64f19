// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Text names of enumerators, formats, block formats, policies and presets, one table per type. Configuration files,
// flags and logs use these names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rotoscale/block.hpp"
#include "rotoscale/gemm_options.hpp"
#include "rotoscale/layout.hpp"

namespace rotoscale {

/// Specialised for every type with named values: `static constexpr enum_name<E> table[]`.
template <class E>
struct enum_names;

/// One row of a table of names.
template <class E>
struct enum_name {
  E value;                ///< the value
  std::string_view name;  ///< its name in text, lower case
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

template <>
struct enum_names<scale_rule> {
  static constexpr enum_name<scale_rule> table[] = {{scale_rule::floor, "floor"},
                                                    {scale_rule::ceil, "ceil"},
                                                    {scale_rule::even, "even"},
                                                    {scale_rule::rceil, "rceil"}};
};

template <>
struct enum_names<split_order> {
  static constexpr enum_name<split_order> table[] = {{split_order::ascending, "ascending"},
                                                     {split_order::descending, "descending"},
                                                     {split_order::pairwise, "pairwise"}};
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

template <>
struct enum_names<overflow> {
  static constexpr enum_name<overflow> table[] = {
      {overflow::saturate, "saturate"}, {overflow::to_inf, "to_inf"}, {overflow::to_nan, "to_nan"}};
};

template <>
struct enum_names<specials> {
  static constexpr enum_name<specials> table[] = {
      {specials::none, "none"}, {specials::nan_only, "nan_only"}, {specials::ieee, "ieee"}, {specials::fnuz, "fnuz"}};
};

template <>
struct enum_names<block_axis> {
  static constexpr enum_name<block_axis> table[] = {{block_axis::row, "row"}, {block_axis::column, "column"}};
};

template <>
struct enum_names<placement> {
  static constexpr enum_name<placement> table[] = {{placement::row_major, "row_major"},
                                                   {placement::column_major, "column_major"},
                                                   {placement::aiter_data_16x16, "aiter_data_16x16"},
                                                   {placement::aiter_scale, "aiter_scale"},
                                                   {placement::hipblaslt_scale_32x8, "hipblaslt_scale_32x8"},
                                                   {placement::nvidia_scale_128x4, "nvidia_scale_128x4"}};
};

template <>
struct enum_names<block_policy::nan_rule> {
  using enum block_policy::nan_rule;
  static constexpr enum_name<block_policy::nan_rule> table[] = {
      {ignore, "ignore"}, {ignore_unless_all, "ignore_unless_all"}, {nan_scale, "nan_scale"}};
};

template <>
struct enum_names<block_policy::infinity_rule> {
  using enum block_policy::infinity_rule;
  static constexpr enum_name<block_policy::infinity_rule> table[] = {
      {exponent_128, "exponent_128"}, {largest_scale, "largest_scale"}, {nan_scale, "nan_scale"}};
};

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
