// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Training text from a file (plain or gzip) or from all files below a directory.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "rotoscale/io/error.hpp"
#include "rotoscale/io/file.hpp"

namespace rotoscale::io {

/// How a file is read. Plain text is UTF-8 without zero bytes; the beginning of the file is checked.
enum class text_format {
  plain,
  bytes  ///< any bytes, unchanged
};

namespace detail {

/// Regular files below `root`, sorted by the bytes of their relative path: directory order differs between machines.
inline std::vector<std::filesystem::path> files_below(const std::filesystem::path& root) {
  namespace fs = std::filesystem;
  std::vector<std::pair<std::string, fs::path>> found;
  std::error_code code;
  fs::recursive_directory_iterator at(root, code);
  if (code) throw error(root.string(), "cannot read the directory: " + code.message());
  while (at != fs::recursive_directory_iterator()) {
    const fs::path path = at->path();
    if (path.filename().native().front() == '.') {
      at.disable_recursion_pending();
    } else {
      const fs::file_status status = at->status(code);
      if (!fs::exists(status)) throw error(path.string(), "cannot open: " + code.message());
      if (fs::is_regular_file(status)) found.emplace_back(path.lexically_relative(root).generic_string(), path);
    }
    at.increment(code);
    if (code) throw error(path.string(), "cannot read the directory: " + code.message());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  for (auto& [name, path] : found) paths.push_back(std::move(path));
  return paths;
}

/// Bytes at the beginning of a file that decide what it is.
inline constexpr std::size_t text_beginning = std::size_t{1} << 20;

/// Throws io::error if the content does not begin as UTF-8 or has control characters that text does not use.
inline void require_text(std::string_view content, const std::filesystem::path& path) {
  for (std::size_t at = 0; at < content.size() && at < text_beginning;) {
    const std::size_t length = utf8_length(content.substr(at));
    const char c = content[at];
    const bool is_control = static_cast<unsigned char>(c) < 0x20 &&
                            std::string_view("\a\b\t\n\v\f\r\x1a\x1b").find(c) == std::string_view::npos;
    if (length == 0 || is_control) {
      throw error(path.string(), "not text: byte " + printable(content.substr(at, 1)) + " at offset " +
                                     std::to_string(at) +
                                     (is_control ? " is a control character (binary?)"
                                                 : " is not UTF-8 (binary, or text in another encoding)") +
                                     "; --text-format bytes takes it as it is");
    }
    at += length;
  }
}

/// The text of one file's content. Messages call the file `path`.
inline std::string extract_text(std::string content, const std::filesystem::path& path, text_format format) {
  if (format == text_format::bytes) return content;
  const char* const kind = content.starts_with('<') ? nullptr : foreign_content(content);  // HTML is text
  if (kind != nullptr) throw error(path.string(), std::string("is ") + kind);
  if (const auto zero = content.find('\0'); zero != content.npos) {
    throw error(path.string(), "not text: a zero byte at offset " + std::to_string(zero) +
                                   " (binary, or UTF-16); --text-format bytes takes it as it is");
  }
  require_text(content, path);
  return content;
}

}  // namespace detail

/// The text of a file, or of all files below a directory. Files are sorted by path; hidden files are skipped. A newline
/// separates two files. Throws io::error for a file that is unreadable or not text, and if the result is empty.
inline std::string read_text(const std::filesystem::path& path, text_format format = text_format::plain) {
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  if (!std::filesystem::exists(status)) throw error(path.string(), "cannot open: " + code.message());
  if (!std::filesystem::is_directory(status)) {
    std::string text = detail::extract_text(read_file(path), path, format);
    if (text.empty()) throw error(path.string(), "the text is empty");
    return text;
  }
  std::string text;
  for (const auto& file : detail::files_below(path)) {
    const std::string part = detail::extract_text(read_file(file), file, format);
    if (part.empty()) continue;
    if (!text.empty() && text.back() != '\n') text += '\n';
    text += part;
  }
  if (text.empty()) throw error(path.string(), "the directory holds no text");
  return text;
}

}  // namespace rotoscale::io
