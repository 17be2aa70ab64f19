// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The header of safetensors files: dtypes, a parser for untrusted input, and the bytes of a written header. The
// parser's memory is proportional to the header's length.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "rotoscale/format.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/io/json.hpp"

namespace rotoscale::io {

/// A tensor in bytes [begin, end) of the data after the header. Elements are little-endian and row-major.
struct tensor_info {
  std::string name;                 ///< unique in a file
  std::string dtype;                ///< as the format writes it: F32, BF16, F8_E4M3, F4, U8, ...
  std::vector<std::int64_t> shape;  ///< in elements
  std::uint64_t begin = 0;          ///< first byte
  std::uint64_t end = 0;            ///< one past the last byte
};

namespace detail {

inline constexpr std::uint64_t safetensors_max_header = 100'000'000;  // limit of the Rust implementation
/// Limits on the values of a tensor's entry (extents included) and on entries of __metadata__; they bound memory.
inline constexpr std::size_t safetensors_max_entry = 4096, safetensors_max_metadata = 65536;
inline constexpr char safetensors_metadata_key[] = "__metadata__";

struct safetensors_dtype {
  const char* name;
  std::uint64_t bits;
  std::optional<format> number = std::nullopt;  ///< none for integers, booleans and complex numbers
};

inline constexpr safetensors_dtype safetensors_dtypes[] = {{"BOOL", 8},
                                                           {"U8", 8},
                                                           {"I8", 8},
                                                           {"U16", 16},
                                                           {"I16", 16},
                                                           {"U32", 32},
                                                           {"I32", 32},
                                                           {"U64", 64},
                                                           {"I64", 64},
                                                           {"F16", 16, formats::fp16},
                                                           {"BF16", 16, formats::bf16},
                                                           {"F32", 32, formats::fp32},
                                                           {"F64", 64, formats::fp64},
                                                           {"C64", 64},
                                                           {"F4", 4, formats::e2m1},
                                                           {"F6_E2M3", 6, formats::e2m3},
                                                           {"F6_E3M2", 6, formats::e3m2},
                                                           {"F8_E4M3", 8, formats::e4m3},
                                                           {"F8_E5M2", 8, formats::e5m2},
                                                           {"F8_E8M0", 8, formats::e8m0},
                                                           {"F8_E4M3FNUZ", 8, formats::e4m3fnuz},
                                                           {"F8_E5M2FNUZ", 8, formats::e5m2fnuz}};

/// The type of that name, or null.
inline const safetensors_dtype* find_dtype(std::string_view name) {
  const auto* type = std::find_if(std::begin(safetensors_dtypes), std::end(safetensors_dtypes),
                                  [&](const safetensors_dtype& d) { return name == d.name; });
  return type == std::end(safetensors_dtypes) ? nullptr : type;
}

/// Number of bytes for a dtype and shape, or the reason why there is none.
struct tensor_size {
  std::uint64_t bytes = 0;
  std::string problem;
};

inline tensor_size size_of_tensor(const std::string& dtype, const std::vector<std::int64_t>& shape) {
  const safetensors_dtype* type = find_dtype(dtype);
  if (type == nullptr) {
    std::vector<std::string> valid;
    for (const safetensors_dtype& d : safetensors_dtypes) valid.emplace_back(d.name);
    return {0, "unknown dtype '" + printable(dtype) + "'" + did_you_mean(dtype, valid)};
  }
  std::uint64_t bits = 1;
  const auto multiply = [&bits](std::uint64_t factor) {
    if (factor != 0 && bits > std::numeric_limits<std::uint64_t>::max() / factor) return false;
    bits *= factor;
    return true;
  };
  for (const std::int64_t extent : shape) {
    if (extent < 0) return {0, "negative extent " + std::to_string(extent) + " in its shape"};
    if (!multiply(static_cast<std::uint64_t>(extent))) return {0, "the number of elements overflows"};
  }
  if (!multiply(type->bits)) return {0, "the number of bytes overflows"};
  if (bits % 8 != 0) return {0, "its " + std::to_string(bits) + " bits do not end on a byte"};
  return {bits / 8, ""};
}

/// The reason why dtype and shape do not take exactly `size` bytes, or an empty string.
inline std::string size_problem(const std::string& dtype, const std::vector<std::int64_t>& shape, std::uint64_t size) {
  const tensor_size expected = size_of_tensor(dtype, shape);
  if (!expected.problem.empty() || expected.bytes == size) return expected.problem;
  return "dtype and shape take " + std::to_string(expected.bytes) + " bytes, its data has " + std::to_string(size);
}

/// A parsed header. Entries are taken during parsing, so no JSON document is kept.
class safetensors_header {
 public:
  std::vector<tensor_info> tensors;  ///< in the order of their data
  std::map<std::string, std::string> metadata;

  /// Parses `text`, which is followed by `data_bytes` of tensors. Messages call the file `file`.
  safetensors_header(std::string_view text, std::uint64_t data_bytes, const std::string& file) : file_(file) {
    if (text.empty() || text.front() != '{') throw error(file, "offset 8: the header does not begin with '{'");
    const auto visit = [this](int depth, json::parse_event_t event, json& parsed) { return see(depth, event, parsed); };
    parse_as<json>(text, file + ": header at offset 8", 0, visit);
    check_layout(data_bytes);
  }

 private:
  using json = nlohmann::json;  // uses std::map: an ordered_json searches keys linearly

  [[noreturn]] void fail_header(const std::string& what) const { throw error(file_, "header at offset 8: " + what); }
  [[noreturn]] void fail_entry(const std::string& what) const {
    throw error(file_, "tensor '" + printable(key_) + "' in the header at offset 8: " + what);
  }
  [[noreturn]] void fail_tensor(const tensor_info& info, const std::string& what) const {
    const std::string at = "' at data offset " + std::to_string(info.begin) + ": ";
    throw error(file_, "tensor '" + printable(info.name) + at + what);
  }

  bool is_metadata() const { return key_ == safetensors_metadata_key; }

  /// Handles every event of the parser; returns false to drop a value.
  bool see(int depth, json::parse_event_t event, json& parsed) {
    using event_t = json::parse_event_t;
    if (depth == 0) return true;
    if (depth == 1 && event == event_t::key) {
      key_ = parsed.get<std::string>();
      values_ = 0;
    } else if (depth == 1 && (event == event_t::value || event == event_t::array_start)) {
      if (is_metadata() && event == event_t::value && parsed.is_null()) return false;  // as the Rust implementation
      if (is_metadata()) fail_header("__metadata__ is not an object");
      fail_entry("not an object");
    } else if (depth == 1 && event == event_t::object_end) {
      take(parsed);
      return false;
    } else if (event == event_t::value || event == event_t::array_start || event == event_t::object_start) {
      const std::size_t most = is_metadata() ? safetensors_max_metadata : safetensors_max_entry;
      if (++values_ > most && depth > 1) fail_entry("more than " + std::to_string(most) + " values");
    }
    return true;
  }

  void take(const json& entry) {
    if (!is_metadata()) return take_tensor(entry);
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) fail_header("__metadata__." + printable(key) + " is not a string");
      metadata[key] = value.get<std::string>();
    }
  }

  void take_tensor(const json& entry) {
    const auto field = [&](const char* key) -> const json& {
      const auto found = entry.find(key);
      if (found == entry.end()) fail_entry(std::string(key) + " is missing");
      return *found;
    };
    tensor_info info;
    info.name = key_;
    const json& dtype = field("dtype");
    if (!dtype.is_string()) fail_entry("dtype is not a string");
    info.dtype = dtype.get<std::string>();
    const json& offsets = field("data_offsets");
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned()) {
      fail_entry("data_offsets is not an array of two non-negative integers");
    }
    info.begin = offsets[0].get<std::uint64_t>();
    info.end = offsets[1].get<std::uint64_t>();
    const json& shape = field("shape");
    if (!shape.is_array()) fail_tensor(info, "shape is not an array");
    for (const json& extent : shape) {
      if (!extent.is_number_unsigned() || !std::in_range<std::int64_t>(extent.get<std::uint64_t>())) {
        fail_tensor(info, "shape holds something other than non-negative 64-bit integers");
      }
      info.shape.push_back(extent.get<std::int64_t>());
    }
    tensors.push_back(std::move(info));
  }

  void check_layout(std::uint64_t size) {
    std::sort(tensors.begin(), tensors.end(), [](const tensor_info& a, const tensor_info& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    std::uint64_t covered = 0;
    for (const tensor_info& info : tensors) {
      const std::string end = std::to_string(info.end);
      if (info.begin > info.end) fail_tensor(info, "ends before it begins, at " + end);
      if (info.begin < covered) fail_tensor(info, "overlaps the one before, which ends at " + std::to_string(covered));
      if (info.begin > covered) fail_tensor(info, "a gap before it, from data offset " + std::to_string(covered));
      if (info.end > size) fail_tensor(info, "ends at " + end + ", beyond the " + std::to_string(size) + " data bytes");
      const std::string problem = size_problem(info.dtype, info.shape, info.end - info.begin);
      if (!problem.empty()) fail_tensor(info, problem);
      covered = info.end;
    }
    if (covered != size) {
      throw error(file_, std::to_string(size - covered) + " bytes after the last tensor, which ends at data offset " +
                             std::to_string(covered));
    }
  }

  std::string file_;
  std::string key_;         ///< key of the root's value in progress
  std::size_t values_ = 0;  ///< values in it so far
};

/// Length and text of a header. The tensors' data begins at offset `base` of their byte ranges.
inline std::string safetensors_header_bytes(std::span<const tensor_info> tensors, std::uint64_t base,
                                            const std::map<std::string, std::string>& metadata,
                                            const std::string& where) {
  // Written by hand, since inserting n keys into an ordered_json takes O(n^2) time.
  std::string text = "{";
  const auto append = [&](const std::string& key, const nlohmann::ordered_json& value) {
    if (text.size() > 1) text += ',';
    text += json_text(nlohmann::ordered_json(key), where) + ":" + json_text(value, where);
  };
  if (!metadata.empty()) append(safetensors_metadata_key, nlohmann::ordered_json(metadata));
  for (const tensor_info& info : tensors) {
    nlohmann::ordered_json entry;
    entry["dtype"] = info.dtype;
    entry["shape"] = info.shape;
    entry["data_offsets"] = {info.begin - base, info.end - base};
    append(info.name, entry);
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > safetensors_max_header) {
    throw error(where, "a header of " + std::to_string(text.size()) + " bytes is above the limit of 100000000");
  }
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return length + text;
}

}  // namespace detail

/// safetensors dtype for codes of `f`; U8, with one code per byte, if there is none.
inline std::string safetensors_dtype_of(const format& f) {
  for (const detail::safetensors_dtype& d : detail::safetensors_dtypes) {
    if (d.number == f) return d.name;
  }
  return "U8";
}

}  // namespace rotoscale::io
