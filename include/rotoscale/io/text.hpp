// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Text to train on: one file, plain or gzip, or every file below a directory.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "rotoscale/io/error.hpp"
#include "rotoscale/io/file.hpp"

namespace rotoscale::io {

namespace detail {

/// Regular files below `root`, sorted by the bytes of their path below it: directory order differs between machines.
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

}  // namespace detail

/// The text of a file, or of all files below a directory: hidden ones skipped, sorted by path, a newline put between
/// two where the first does not end with one. Never empty.
inline std::string read_text(const std::filesystem::path& path) {
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  if (!std::filesystem::exists(status)) throw error(path.string(), "cannot open: " + code.message());
  if (!std::filesystem::is_directory(status)) {
    std::string text = read_file(path);
    if (text.empty()) throw error(path.string(), "the text is empty");
    return text;
  }
  std::string text;
  for (const auto& file : detail::files_below(path)) {
    const std::string part = read_file(file);
    if (part.empty()) continue;
    if (!text.empty() && text.back() != '\n') text += '\n';
    text += part;
  }
  if (text.empty()) throw error(path.string(), "the directory holds no text");
  return text;
}

}  // namespace rotoscale::io
