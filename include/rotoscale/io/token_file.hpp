// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Token files of llm.c, little-endian: 256 integers of 32 bits, then the tokens. The first three integers are magic
// number, version and number of tokens. Tokens have 16 bits for GPT-2's vocabulary, 32 bits for Llama 3's. Source:
// karpathy/llm.c, dev/data/data_common.py, write_datafile.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/io/mapped_file.hpp"

namespace rotoscale::io {

/// Vocabulary, as given by the magic number.
enum class token_kind { gpt2, llama3 };

namespace detail {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

struct token_format {
  token_kind kind;
  const char* name;
  std::uint32_t magic, version;
  std::size_t bytes;         ///< bytes per token
  std::int32_t end_of_text;  ///< token that llm.c's scripts put before each document: <|endoftext|>, <|begin_of_text|>
};

inline constexpr token_format token_formats[] = {{token_kind::gpt2, "GPT-2", 20240520, 1, 2, 50256},
                                                 {token_kind::llama3, "Llama 3", 20240801, 7, 4, 128000}};
inline constexpr std::size_t token_header_bytes = 256 * 4;
/// Limit on the number of tokens: the header's count has 31 bits.
inline constexpr std::uint64_t max_tokens = std::numeric_limits<std::int32_t>::max();

inline const token_format& format_of(token_kind kind) { return token_formats[kind == token_kind::gpt2 ? 0 : 1]; }

inline std::uint32_t token_header_word(std::span<const std::byte> bytes, std::size_t i) {
  std::uint32_t word = 0;
  std::memcpy(&word, bytes.data() + 4 * i, 4);
  return word;
}

/// The format that `bytes` begin with, or null if they lack the magic number of a token file.
inline const token_format* find_token_format(std::span<const std::byte> bytes) {
  if (bytes.size() < 4) return nullptr;
  const std::uint32_t magic = token_header_word(bytes, 0);
  const auto* found = std::find_if(std::begin(token_formats), std::end(token_formats),
                                   [&](const token_format& f) { return f.magic == magic; });
  return found == std::end(token_formats) ? nullptr : found;
}

}  // namespace detail

/// Does a file that begins with these bytes have the magic number of a token file?
inline bool is_token_file(std::span<const std::byte> beginning) {
  return detail::find_token_format(beginning) != nullptr;
}

/// A checked token file, mapped: tokens are read on demand. Copies share the mapping.
class token_file {
 public:
  /// Opens a file. Throws io::error if it is not a regular file, not a token file, or differs from its stated length.
  static token_file open(const std::filesystem::path& path) {
    token_file file;
    file.mapped_ = std::make_shared<const mapped_file>(path);
    file.check(path.string(), file.mapped_->bytes());
    return file;
  }

  /// The same for bytes, which must outlive it. Messages call them `name`.
  static token_file from_bytes(const std::string& name, std::span<const std::byte> bytes) {
    token_file file;
    file.check(name, bytes);
    return file;
  }

  /// The vocabulary.
  token_kind kind() const { return format_->kind; }
  /// The token at the start of each document, if the file follows llm.c's scripts.
  std::int32_t end_of_text() const { return format_->end_of_text; }
  /// Number of tokens.
  std::uint64_t size() const { return tokens_.size() / format_->bytes; }

  /// Reads tokens first, first + 1, ..., which must all be in the file. Throws io::error for a token above 2^31 - 1,
  /// and if the file has been truncated since it was opened.
  void read(std::uint64_t first, std::span<std::int32_t> to) const {
    if (mapped_ != nullptr) mapped_->require_whole();
    const std::byte* from = tokens_.data() + static_cast<std::size_t>(first) * format_->bytes;
    for (std::size_t i = 0; i < to.size(); ++i) {
      std::uint16_t narrow = 0;
      std::uint32_t wide = 0;
      if (format_->bytes == 2) {
        std::memcpy(&narrow, from + 2 * i, 2);
        wide = narrow;
      } else {
        std::memcpy(&wide, from + 4 * i, 4);
      }
      if (wide > detail::max_tokens) {
        throw error(name_,
                    "token " + std::to_string(first + i) + " is " + std::to_string(wide) + ", which no vocabulary has");
      }
      to[i] = static_cast<std::int32_t>(wide);
    }
  }

  /// Calls use(tokens) for all tokens in order, in chunks that leave memory afterwards.
  template <class Use>
  void for_each_chunk(const Use& use) const {
    std::vector<std::int32_t> chunk;
    constexpr std::uint64_t most = std::uint64_t{1} << 18;
    for (std::uint64_t first = 0; first < size(); first += most) {
      chunk.resize(static_cast<std::size_t>(std::min(most, size() - first)));
      read(first, chunk);
      use(std::span<const std::int32_t>(chunk));
      if (mapped_ != nullptr) {
        mapped_->release(
            tokens_.subspan(static_cast<std::size_t>(first) * format_->bytes, chunk.size() * format_->bytes));
      }
    }
  }

  /// The path, for messages.
  const std::string& name() const { return name_; }

 private:
  void check(const std::string& name, std::span<const std::byte> bytes) {
    name_ = name;
    format_ = detail::find_token_format(bytes);
    if (format_ == nullptr) {
      const std::string_view beginning(reinterpret_cast<const char*>(bytes.data()),
                                       std::min<std::size_t>(bytes.size(), 32));
      if (const char* kind = foreign_content(beginning)) throw error(name, std::string("is ") + kind);
      throw error(name, "not a token file: it begins with neither 20240520 (GPT-2) nor 20240801 (Llama 3)");
    }
    if (bytes.size() < detail::token_header_bytes) {
      throw error(name, std::to_string(bytes.size()) + " bytes are too few for the header's 1024");
    }
    const std::uint32_t version = detail::token_header_word(bytes, 1), count = detail::token_header_word(bytes, 2);
    if (version != format_->version) {
      throw error(name, std::string("version ") + std::to_string(version) + " of a " + format_->name +
                            " token file, only " + std::to_string(format_->version) + " is known");
    }
    tokens_ = bytes.subspan(detail::token_header_bytes);
    if (tokens_.size() % format_->bytes == 0 && tokens_.size() / format_->bytes == count) return;
    throw error(name, "its header says " + std::to_string(count) + " tokens of " + std::to_string(format_->bytes) +
                          " bytes, " + std::to_string(tokens_.size()) + " bytes follow");
  }

  std::string name_;
  std::shared_ptr<const mapped_file> mapped_;
  const detail::token_format* format_ = nullptr;
  std::span<const std::byte> tokens_;
};

/// Writes a token file in chunks; it appears under its name on commit().
class token_file_writer {
 public:
  /// Opens a hidden file next to `path`. Throws io::error if it cannot be written.
  token_file_writer(const std::filesystem::path& path, token_kind kind)
      : name_(path.string()), format_(detail::format_of(kind)), file_(path) {
    file_.write(std::string(detail::token_header_bytes, '\0'));  // placeholder: the count is not known yet
  }

  /// Writes tokens. Throws io::error for tokens that do not fit, and for more than 2^31 - 1 in total.
  void write(std::span<const std::int32_t> tokens) {
    const std::int64_t most = format_.bytes == 2 ? 65535 : std::numeric_limits<std::int32_t>::max();
    std::string bytes;
    bytes.reserve(tokens.size() * format_.bytes);
    for (const std::int32_t token : tokens) {
      if (token < 0 || token > most) {
        throw error(name_, "token " + std::to_string(token) + " does not fit a " + format_.name + " token file (0 to " +
                               std::to_string(most) + ")");
      }
      for (std::size_t i = 0; i < format_.bytes; ++i) bytes += static_cast<char>(token >> (8 * i) & 0xff);
    }
    count_ += tokens.size();
    if (count_ > detail::max_tokens) throw error(name_, "more than 2147483647 tokens; write several files");
    file_.write(bytes);
  }

  /// Tokens written.
  std::uint64_t count() const { return count_; }

  /// Completes the header, flushes to disk and renames.
  void commit() {
    std::string header;
    for (const std::uint64_t word : {std::uint64_t{format_.magic}, std::uint64_t{format_.version}, count_}) {
      for (int i = 0; i < 4; ++i) header += static_cast<char>(word >> (8 * i) & 0xff);
    }
    file_.write_at(0, header);
    file_.commit();
  }

 private:
  std::string name_;
  const detail::token_format& format_;
  atomic_file file_;
  std::uint64_t count_ = 0;
};

}  // namespace rotoscale::io
