// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Refuses an output that is an input, by device and inode: links and other spellings of a path are the same file.
// POSIX.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "rotoscale/io/error.hpp"

namespace rotoscale::io {

namespace detail {

using file_identity = std::pair<dev_t, ino_t>;

/// False if there is no such file.
inline bool identify(const std::filesystem::path& path, file_identity& identity) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return false;
  identity = {status.st_dev, status.st_ino};
  return true;
}

/// Adds an input, and all files below it if it is a directory.
inline void add_identities(const std::filesystem::path& input, std::map<file_identity, std::string>& found) {
  namespace fs = std::filesystem;
  file_identity identity;
  if (identify(input, identity)) found.emplace(identity, input.string());
  std::error_code failed;
  if (!fs::is_directory(input, failed)) return;
  fs::recursive_directory_iterator at(input, fs::directory_options::skip_permission_denied, failed);
  for (; !failed && at != fs::recursive_directory_iterator(); at.increment(failed)) {
    if (identify(at->path(), identity)) found.emplace(identity, at->path().string());
  }
}

}  // namespace detail

/// Do two paths name one file or directory, under any name? False if either does not exist.
inline bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  detail::file_identity x, y;
  return detail::identify(a, x) && detail::identify(b, y) && x == y;
}

/// Throws io::error if an existing file of `outputs` equals a file of `inputs` or is inside a directory of `inputs`.
/// Call it before anything is opened for writing. Empty and missing paths are ignored.
inline void require_no_input(const std::vector<std::filesystem::path>& outputs,
                             const std::vector<std::filesystem::path>& inputs) {
  std::map<detail::file_identity, std::string> known;
  for (const std::filesystem::path& output : outputs) {
    detail::file_identity identity;
    if (!detail::identify(output, identity)) continue;
    if (known.empty()) {
      for (const std::filesystem::path& input : inputs) detail::add_identities(input, known);
    }
    const auto found = known.find(identity);
    if (found == known.end()) continue;
    throw error(output.string(), "would be written, and is an input" +
                                     (found->second == output.string() ? std::string() : " (" + found->second + ")") +
                                     "; another output leaves it alone");
  }
}

}  // namespace rotoscale::io
