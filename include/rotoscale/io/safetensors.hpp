// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The safetensors format: 8 bytes of header length, a JSON header with names, dtypes, shapes and byte ranges, then the
// tensors without gaps. The reader maps files and trusts nothing in them; the writer streams. Neither holds a whole
// file in memory. Models of several files: safetensors_shards.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/io/mapped_file.hpp"
#include "rotoscale/io/safetensors_header.hpp"
#include "rotoscale/round.hpp"

namespace rotoscale::io {

namespace detail {

/// Decodes `to.size()` elements of `type`, a floating-point type of 8, 16, 32 or 64 bits, to FP32. FP64 is rounded to
/// nearest even; all others are exact.
inline void decode_elements(const safetensors_dtype& type, const std::byte* from, std::span<float> to) {
  const auto each = [&](auto code, const auto& convert_one) {
    for (std::size_t i = 0; i < to.size(); ++i) {
      std::memcpy(&code, from + i * sizeof code, sizeof code);
      to[i] = convert_one(code);
    }
  };
  const format f = *type.number;
  if (f == formats::fp32) {
    std::memcpy(to.data(), from, to.size_bytes());
  } else if (f == formats::bf16) {
    each(std::uint16_t{}, [](std::uint16_t code) { return fp32_from_bits(std::uint32_t{code} << 16); });
  } else if (f.bits() == 64) {
    each(double{}, [](double x) { return static_cast<float>(x); });
  } else if (f.bits() == 16) {
    each(std::uint16_t{}, [&](std::uint16_t code) { return decode(f, code); });
  } else {
    float table[256];
    for (unsigned code = 0; code < 256; ++code) table[code] = decode(f, code);
    each(std::uint8_t{}, [&](std::uint8_t code) { return table[code]; });
  }
}

}  // namespace detail

/// A checked file, mapped or in memory. Opening reads only the header. Copies share the content.
class safetensors_file {
 public:
  /// Opens and checks a file. Throws io::error if it is not a regular file or not a complete safetensors file.
  static safetensors_file open(const std::filesystem::path& path) {
    const auto mapped = std::make_shared<const mapped_file>(path);
    safetensors_file file;
    file.mapped_ = mapped;
    file.content_ = mapped->bytes();
    file.read(path.string());
    return file;
  }

  /// The same for bytes in memory. Messages call them `name`.
  static safetensors_file from_bytes(std::string name, std::string bytes) {
    const auto held = std::make_shared<const std::string>(std::move(bytes));
    safetensors_file file;
    file.held_ = held;
    file.content_ = std::as_bytes(std::span(*held));
    file.read(std::move(name));
    return file;
  }

  /// All tensors, in the order of their data.
  const std::vector<tensor_info>& tensors() const { return tensors_; }

  /// The tensor of that name, or null.
  const tensor_info* find(std::string_view name) const {
    const auto found = index_.find(std::string(name));
    return found == index_.end() ? nullptr : &tensors_[found->second];
  }

  /// The bytes of a tensor of this file. The format does not align them: copy, do not cast.
  std::span<const std::byte> bytes(const tensor_info& info) const {
    const std::uint64_t size = content_.size() - data_start_;
    if (info.begin > info.end || info.end > size) fail_tensor(info, "not a tensor of this file");
    return content_.subspan(data_start_ + static_cast<std::size_t>(info.begin),
                            static_cast<std::size_t>(info.end - info.begin));
  }

  /// Elements first, first + 1, ... of a floating-point tensor as FP32 (FP64 is rounded to nearest even). Pages that
  /// were read leave memory again, so any file takes a few MiB. Throws io::error for integers and for codes that share
  /// bytes.
  void read_floats(const tensor_info& info, std::uint64_t first, std::span<float> to) const {
    const detail::safetensors_dtype& type = *detail::find_dtype(info.dtype);
    if (!type.number) fail_tensor(info, "its type " + info.dtype + " holds no floating-point numbers");
    if (type.bits % 8 != 0) fail_tensor(info, "elements of type " + info.dtype + " share bytes");
    const std::size_t width = static_cast<std::size_t>(type.bits / 8);
    const auto all = bytes(info);
    if (first > all.size() / width || to.size() > all.size() / width - first) {
      fail_tensor(info, "has no elements " + std::to_string(first) + " to " + std::to_string(first + to.size()));
    }
    constexpr std::size_t chunk = std::size_t{1} << 20;
    for (std::size_t done = 0; done < to.size(); done += chunk) {
      const std::size_t count = std::min(chunk, to.size() - done);
      const auto from = all.subspan((static_cast<std::size_t>(first) + done) * width, count * width);
      detail::decode_elements(type, from.data(), to.subspan(done, count));
      release(from);
    }
  }

  /// Lets a part of bytes() leave memory after use.
  void release(std::span<const std::byte> part) const {
    if (mapped_ != nullptr) mapped_->release(part);
  }

  /// The entries of the header's __metadata__.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// The path, for messages.
  const std::string& name() const { return name_; }

 private:
  [[noreturn]] void fail_tensor(const tensor_info& info, const std::string& what) const {
    throw error(name_, "tensor '" + printable(info.name) + "': " + what);
  }

  void read(std::string name) {
    name_ = std::move(name);
    const std::string_view all(reinterpret_cast<const char*>(content_.data()), content_.size());
    // A header's length may have the bytes of another kind: 640 is 80 02, as a pickle begins.
    const bool has_header = all.size() > 8 && all[8] == '{';
    if (const char* kind = has_header ? nullptr : foreign_content(all)) throw error(name_, std::string("is ") + kind);
    if (content_.size() < 8) {
      throw error(name_, "offset 0: " + std::to_string(content_.size()) + " bytes are too few for a header length");
    }
    std::uint64_t length = 0;
    for (std::size_t i = 8; i-- > 0;) length = length << 8 | std::to_integer<std::uint64_t>(content_[i]);
    if (length > detail::safetensors_max_header) {
      throw error(name_, "offset 0: header length " + std::to_string(length) + " is above the limit of 100000000");
    }
    if (length > content_.size() - 8) {
      throw error(name_, "offset 0: header length " + std::to_string(length) + " reaches beyond the end of the file");
    }
    data_start_ = 8 + static_cast<std::size_t>(length);
    detail::safetensors_header header(all.substr(8, data_start_ - 8), content_.size() - data_start_, name_);
    tensors_ = std::move(header.tensors);
    metadata_ = std::move(header.metadata);
    for (std::size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
  }

  std::string name_;
  std::shared_ptr<const mapped_file> mapped_;
  std::shared_ptr<const std::string> held_;
  std::span<const std::byte> content_;  ///< content of one of the two
  std::size_t data_start_ = 0;
  std::vector<tensor_info> tensors_;
  std::unordered_map<std::string, std::size_t> index_;
  std::map<std::string, std::string> metadata_;
};

/// Receives a tensor's bytes in chunks of any length.
using byte_sink = std::function<void(std::span<const std::byte>)>;
/// Passes a tensor's bytes to a sink, in order.
using byte_source = std::function<void(const byte_sink&)>;

/// Writes tensors in the order in which they were added. Equal calls give equal bytes.
class safetensors_writer {
 public:
  std::map<std::string, std::string> metadata;  ///< the header's __metadata__

  /// Adds a tensor and copies its bytes.
  void add(std::string name, std::string dtype, std::vector<std::int64_t> shape, std::span<const std::byte> bytes) {
    const std::string problem = detail::size_problem(dtype, shape, bytes.size());
    if (!problem.empty()) fail(name, problem);
    const auto held = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
    append(std::move(name), std::move(dtype), std::move(shape), [held](const byte_sink& sink) { sink(*held); });
  }

  /// Adds a tensor whose bytes are requested from `source` during the write and not kept.
  void add_streamed(std::string name, std::string dtype, std::vector<std::int64_t> shape, byte_source source) {
    const std::string problem = detail::size_of_tensor(dtype, shape).problem;
    if (!problem.empty()) fail(name, problem);
    append(std::move(name), std::move(dtype), std::move(shape), std::move(source));
  }

  /// Writes one file. Throws io::error with the path.
  void write(const std::filesystem::path& path) const { write_file(path, 0, tensors_.size()); }

  /// Writes directory/stem.safetensors. If the tensors exceed `limit` bytes, writes shards instead, as Hugging Face
  /// does: stem-00001-of-0000N.safetensors and stem.safetensors.index.json. A shard has at most `limit` bytes or one
  /// tensor.
  void write_shards(const std::filesystem::path& directory, const std::string& stem, std::uint64_t limit) const {
    std::vector<std::size_t> starts{0};
    for (std::size_t i = 1; i < tensors_.size(); ++i) {
      if (tensors_[i].end - tensors_[starts.back()].begin > limit) starts.push_back(i);
    }
    if (starts.size() == 1) return write(directory / (stem + ".safetensors"));
    if (starts.size() > 99999) throw error(directory.string(), "more than 99999 shards: the limit is too small");
    const std::size_t count = starts.size();
    starts.push_back(tensors_.size());
    const auto number = [](std::size_t n) {
      const std::string digits = std::to_string(n);
      return std::string(5 - digits.size(), '0') + digits;
    };
    nlohmann::json map = nlohmann::json::object();
    for (std::size_t s = 0; s < count; ++s) {
      const std::string name = stem + "-" + number(s + 1) + "-of-" + number(count) + ".safetensors";
      write_file(directory / name, starts[s], starts[s + 1]);
      for (std::size_t i = starts[s]; i < starts[s + 1]; ++i) map[tensors_[i].name] = name;
    }
    const nlohmann::ordered_json index = {{"metadata", {{"total_size", tensors_.back().end}}}, {"weight_map", map}};
    write_json(directory / (stem + ".safetensors.index.json"), index);
  }

  /// Makes the file of write() with zeros in place of all tensors' bytes, for writers of parts. Throws io::error.
  void reserve(const std::filesystem::path& path) const {
    const std::string header = detail::safetensors_header_bytes(tensors_, 0, metadata, path.string());
    atomic_file file(path);
    file.write(header);
    file.resize(header.size() + (tensors_.empty() ? 0 : tensors_.back().end));
    file.commit();
  }
  /// Where the bytes of each tensor begin in the file of write(). Messages call it `where`.
  std::unordered_map<std::string, std::uint64_t> places(const std::filesystem::path& where) const {
    const std::size_t header = detail::safetensors_header_bytes(tensors_, 0, metadata, where.string()).size();
    std::unordered_map<std::string, std::uint64_t> found;
    for (const tensor_info& t : tensors_) found[t.name] = header + t.begin;
    return found;
  }

  /// The bytes that write() would write. Messages call the destination `where`.
  std::string bytes(const std::string& where) const {
    std::string all;
    produce(where, 0, tensors_.size(), [&](std::string_view part) { all += part; });
    return all;
  }

 private:
  [[noreturn]] static void fail(const std::string& tensor, const std::string& what) {
    throw error("safetensors", "tensor '" + printable(tensor) + "': " + what);
  }

  void append(std::string name, std::string dtype, std::vector<std::int64_t> shape, byte_source source) {
    if (name == detail::safetensors_metadata_key) fail(name, "the name is reserved");
    if (!names_.insert(name).second) fail(name, "added twice");
    const std::uint64_t begin = tensors_.empty() ? 0 : tensors_.back().end;
    const std::uint64_t size = detail::size_of_tensor(dtype, shape).bytes;
    if (begin + size < begin) fail(name, "the file's size overflows");
    tensors_.push_back({std::move(name), std::move(dtype), std::move(shape), begin, begin + size});
    sources_.push_back(std::move(source));
  }

  void write_file(const std::filesystem::path& path, std::size_t first, std::size_t last) const {
    atomic_file file(path);
    produce(path.string(), first, last, [&](std::string_view part) { file.write(part); });
    file.commit();
  }

  /// Passes tensors first .. last - 1 to `write_part` as a file, in chunks.
  void produce(const std::string& where, std::size_t first, std::size_t last,
               const std::function<void(std::string_view)>& write_part) const {
    const auto part = std::span(tensors_).subspan(first, last - first);
    write_part(detail::safetensors_header_bytes(part, part.empty() ? 0 : part[0].begin, metadata, where));
    for (std::size_t i = first; i < last; ++i) {
      std::uint64_t left = tensors_[i].end - tensors_[i].begin;
      sources_[i]([&](std::span<const std::byte> chunk) {
        if (chunk.size() > left) fail(tensors_[i].name, "its source gives more bytes than dtype and shape take");
        left -= chunk.size();
        write_part({reinterpret_cast<const char*>(chunk.data()), chunk.size()});
      });
      if (left != 0) fail(tensors_[i].name, "its source gives " + std::to_string(left) + " bytes too few");
    }
  }

  std::vector<tensor_info> tensors_;
  std::vector<byte_source> sources_;
  std::unordered_set<std::string> names_;
};

}  // namespace rotoscale::io
