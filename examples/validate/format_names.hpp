// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Format names in options: the library's (e4m3) or safetensors' (F8_E4M3).
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "rotoscale/io/safetensors.hpp"
#include "rotoscale/names.hpp"

namespace rotoscale::validate {

inline std::optional<format> find_format(std::string_view name, std::span<const format> among) {
  for (const format& f : among) {
    if (to_string(f) == name) return f;
    // safetensors has no type for UE4M3; files store it as E4M3 with the top bit clear.
    const std::string dtype = io::safetensors_dtype_of(f == formats::ue4m3 ? formats::e4m3 : f);
    if (dtype == name && dtype != "U8") return f;
  }
  return std::nullopt;
}

/// The library's names of these formats, for messages.
inline std::string format_list(std::span<const format> among) {
  std::string all;
  for (const format& f : among) all += (all.empty() ? "" : ", ") + std::string(to_string(f));
  return all;
}

/// CLI::Option::transform check for one of these formats; converts it to the library's name.
template <std::size_t N>
auto one_format_of(const format (&among)[N]) {
  return [all = std::to_array(among)](std::string& text) -> std::string {
    const std::optional<format> f = find_format(text, all);
    if (!f) return "'" + text + "' is none of " + format_list(all);
    text = to_string(*f);
    return "";
  };
}

inline constexpr format float_formats[] = {formats::fp32, formats::fp16, formats::bf16};
inline constexpr format scale_formats[] = {formats::e8m0, formats::ue4m3};
inline constexpr format fp8_formats[] = {formats::e4m3, formats::e5m2, formats::e4m3fnuz, formats::e5m2fnuz};
inline constexpr format block_elements[] = {formats::e2m1, formats::e2m3,     formats::e3m2,    formats::e4m3,
                                            formats::e5m2, formats::e4m3fnuz, formats::e5m2fnuz};

/// Does a tensor of this type hold raw bytes, whose format comes from an option or from their number? The int8 of NumPy
/// and PyTorch counts as bytes like uint8.
inline bool holds_bytes(std::string_view dtype) { return dtype == "U8" || dtype == "I8"; }

/// The safetensors names of these formats, for messages.
inline std::string dtype_list(std::span<const format> among) {
  std::string all;
  for (const format& f : among) all += (all.empty() ? "" : ", ") + io::safetensors_dtype_of(f);
  return all;
}

}  // namespace rotoscale::validate
