// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Hugging Face's safetensors: an 8-byte little-endian header length, a JSON header of names, dtypes, shapes and byte
// ranges, then the tensors without gaps. The reader trusts nothing in the file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rotoscale/io/error.hpp"
#include "rotoscale/io/file.hpp"
#include "rotoscale/io/json.hpp"

namespace rotoscale::io {

/// Bytes [begin, end) of the data that follows the header; elements little-endian, row-major.
struct tensor_info {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

namespace detail {

inline constexpr std::uint64_t safetensors_max_header = 100'000'000;
inline constexpr char safetensors_metadata_key[] = "__metadata__";

struct dtype_bits {
  const char* name;
  std::uint64_t bits;
};

inline constexpr dtype_bits safetensors_dtypes[] = {
    {"BOOL", 8},    {"U8", 8},      {"I8", 8},          {"U16", 16},        {"I16", 16},    {"U32", 32},
    {"I32", 32},    {"U64", 64},    {"I64", 64},        {"F16", 16},        {"BF16", 16},   {"F32", 32},
    {"F64", 64},    {"C64", 64},    {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6}, {"F8_E4M3", 8},
    {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
};

/// Why dtype and shape do not take exactly `size` bytes, or an empty string when they do.
inline std::string size_problem(const std::string& dtype, const std::vector<std::int64_t>& shape, std::uint64_t size) {
  const auto* type = std::find_if(std::begin(safetensors_dtypes), std::end(safetensors_dtypes),
                                  [&](const dtype_bits& d) { return dtype == d.name; });
  if (type == std::end(safetensors_dtypes)) {
    std::vector<std::string> valid;
    for (const dtype_bits& d : safetensors_dtypes) valid.emplace_back(d.name);
    return "unknown dtype '" + printable(dtype) + "'; did you mean '" + nearest_name(dtype, valid) + "'?";
  }
  std::uint64_t bits = 1;
  const auto multiply = [&bits](std::uint64_t factor) {
    if (factor != 0 && bits > std::numeric_limits<std::uint64_t>::max() / factor) return false;
    bits *= factor;
    return true;
  };
  for (const std::int64_t extent : shape) {
    if (extent < 0) return "negative extent " + std::to_string(extent) + " in its shape";
    if (!multiply(static_cast<std::uint64_t>(extent))) return "the number of elements overflows";
  }
  if (!multiply(type->bits)) return "the number of bytes overflows";
  if (bits % 8 != 0) return "its " + std::to_string(bits) + " bits do not end on a byte";
  if (bits / 8 == size) return "";
  return "dtype and shape take " + std::to_string(bits / 8) + " bytes, its data has " + std::to_string(size);
}

}  // namespace detail

/// A checked file, held in memory.
class safetensors_file {
 public:
  static safetensors_file open(const std::filesystem::path& path) {
    return from_bytes(path.string(), read_raw_file(path));
  }

  /// `name` stands for the file in messages.
  static safetensors_file from_bytes(std::string name, std::string bytes) {
    safetensors_file file;
    file.name_ = std::move(name);
    file.content_ = std::move(bytes);
    file.read_header();
    file.check_layout();
    return file;
  }

  /// In the order of their data.
  const std::vector<tensor_info>& tensors() const { return tensors_; }

  /// Null when there is none of that name.
  const tensor_info* find(std::string_view name) const {
    const auto found = index_.find(std::string(name));
    return found == index_.end() ? nullptr : &tensors_[found->second];
  }

  /// The bytes of one of this file's tensors. The format does not align them: copy, do not cast.
  std::span<const std::byte> bytes(const tensor_info& info) const {
    const std::uint64_t size = content_.size() - data_start_;
    if (info.begin > info.end || info.end > size) fail_tensor(info, "not a tensor of this file");
    const auto* data = reinterpret_cast<const std::byte*>(content_.data()) + data_start_;
    return {data + info.begin, static_cast<std::size_t>(info.end - info.begin)};
  }

  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& name() const { return name_; }

 private:
  // A std::map inside: the order of keys says nothing here, and an ordered_json looks keys up one by one.
  using header_json = nlohmann::json;

  [[noreturn]] void fail_tensor(const tensor_info& info, const std::string& what) const {
    const std::string at = "' at data offset " + std::to_string(info.begin) + ": ";
    throw error(name_, "tensor '" + printable(info.name) + at + what);
  }
  [[noreturn]] void fail_entry(const std::string& tensor, const std::string& what) const {
    throw error(name_, "tensor '" + printable(tensor) + "' in the header at offset 8: " + what);
  }

  void read_header() {
    if (content_.size() < 8) {
      throw error(name_, "offset 0: " + std::to_string(content_.size()) + " bytes are too few for a header length");
    }
    std::uint64_t length = 0;
    for (std::size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(content_[i]);
    if (length > detail::safetensors_max_header) {
      throw error(name_, "offset 0: header length " + std::to_string(length) + " is above the limit of 100000000");
    }
    if (length > content_.size() - 8) {
      throw error(name_, "offset 0: header length " + std::to_string(length) + " reaches beyond the end of the file");
    }
    data_start_ = 8 + static_cast<std::size_t>(length);
    const std::string_view text = std::string_view(content_).substr(8, static_cast<std::size_t>(length));
    if (text.empty() || text.front() != '{') throw error(name_, "offset 8: the header does not begin with '{'");
    const auto header = detail::parse_as<header_json>(text, name_ + ": header at offset 8");
    for (const auto& [key, entry] : header.items()) {
      if (key == detail::safetensors_metadata_key) {
        read_metadata(entry);
      } else {
        read_entry(key, entry);
      }
    }
  }

  void read_metadata(const header_json& entry) {
    if (!entry.is_object()) throw error(name_, "header at offset 8: __metadata__ is not an object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) {
        throw error(name_, "header at offset 8: __metadata__." + printable(key) + " is not a string");
      }
      metadata_[key] = value.get<std::string>();
    }
  }

  void read_entry(const std::string& tensor, const header_json& entry) {
    if (!entry.is_object()) fail_entry(tensor, "not an object");
    const auto field = [&](const char* key) -> const header_json& {
      const auto found = entry.find(key);
      if (found == entry.end()) fail_entry(tensor, std::string(key) + " is missing");
      return *found;
    };
    tensor_info info;
    info.name = tensor;
    const header_json& dtype = field("dtype");
    if (!dtype.is_string()) fail_entry(tensor, "dtype is not a string");
    info.dtype = dtype.get<std::string>();
    const header_json& offsets = field("data_offsets");
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned()) {
      fail_entry(tensor, "data_offsets is not an array of two non-negative integers");
    }
    info.begin = offsets[0].get<std::uint64_t>();
    info.end = offsets[1].get<std::uint64_t>();
    const header_json& shape = field("shape");
    if (!shape.is_array()) fail_tensor(info, "shape is not an array");
    for (const header_json& extent : shape) {
      if (!extent.is_number_unsigned() || !std::in_range<std::int64_t>(extent.get<std::uint64_t>())) {
        fail_tensor(info, "shape holds something other than non-negative 64-bit integers");
      }
      info.shape.push_back(extent.get<std::int64_t>());
    }
    tensors_.push_back(std::move(info));
  }

  void check_layout() {
    std::sort(tensors_.begin(), tensors_.end(), [](const tensor_info& a, const tensor_info& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    const std::uint64_t size = content_.size() - data_start_;
    std::uint64_t covered = 0;
    for (const tensor_info& info : tensors_) {
      const std::string end = std::to_string(info.end);
      if (info.begin > info.end) fail_tensor(info, "ends before it begins, at " + end);
      if (info.begin < covered) fail_tensor(info, "overlaps the one before, which ends at " + std::to_string(covered));
      if (info.begin > covered) fail_tensor(info, "a gap before it, from data offset " + std::to_string(covered));
      if (info.end > size) fail_tensor(info, "ends at " + end + ", beyond the " + std::to_string(size) + " data bytes");
      const std::string problem = detail::size_problem(info.dtype, info.shape, info.end - info.begin);
      if (!problem.empty()) fail_tensor(info, problem);
      covered = info.end;
    }
    if (covered != size) {
      throw error(name_, std::to_string(size - covered) + " bytes after the last tensor, which ends at data offset " +
                             std::to_string(covered));
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
  }

  std::string name_;
  std::string content_;
  std::size_t data_start_ = 0;
  std::vector<tensor_info> tensors_;
  std::unordered_map<std::string, std::size_t> index_;
  std::map<std::string, std::string> metadata_;
};

/// Collects tensors and writes them in the order of their adding. Equal calls give equal bytes.
class safetensors_writer {
 public:
  std::map<std::string, std::string> metadata;

  /// Copies the bytes, so that the caller's may be a temporary.
  void add(std::string name, std::string dtype, std::vector<std::int64_t> shape, std::span<const std::byte> bytes) {
    if (name == detail::safetensors_metadata_key) fail(name, "the name is reserved");
    if (!names_.insert(name).second) fail(name, "added twice");
    const std::string problem = detail::size_problem(dtype, shape, bytes.size());
    if (!problem.empty()) fail(name, problem);
    const std::uint64_t begin = data_.size();
    if (!bytes.empty()) data_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    tensors_.push_back({std::move(name), std::move(dtype), std::move(shape), begin, data_.size()});
  }

  /// Throws io::error naming the path when that cannot be written.
  void write(const std::filesystem::path& path) const {
    atomic_file file(path);
    file.write(header(path.string()));
    file.write(data_);
    file.commit();
  }

  /// What write() writes. `where` names the destination in messages.
  std::string bytes(const std::string& where) const { return header(where) + data_; }

 private:
  [[noreturn]] static void fail(const std::string& tensor, const std::string& what) {
    throw error("safetensors", "tensor '" + printable(tensor) + "': " + what);
  }

  std::string header(const std::string& where) const {
    // Put together by hand: inserting into an ordered_json takes time that is quadratic in the number of keys.
    std::string text = "{";
    const auto append = [&](const std::string& key, const nlohmann::ordered_json& value) {
      if (text.size() > 1) text += ',';
      text += json_text(nlohmann::ordered_json(key), where) + ":" + json_text(value, where);
    };
    if (!metadata.empty()) append(detail::safetensors_metadata_key, nlohmann::ordered_json(metadata));
    for (const tensor_info& info : tensors_) {
      nlohmann::ordered_json entry;
      entry["dtype"] = info.dtype;
      entry["shape"] = info.shape;
      entry["data_offsets"] = {info.begin, info.end};
      append(info.name, entry);
    }
    text += '}';
    text.append((8 - text.size() % 8) % 8, ' ');
    if (text.size() > detail::safetensors_max_header) {
      throw error(where, "a header of " + std::to_string(text.size()) + " bytes is above the limit of 100000000");
    }
    std::string length(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
    return length + text;
  }

  std::vector<tensor_info> tensors_;
  std::unordered_set<std::string> names_;
  std::string data_;
};

}  // namespace rotoscale::io
