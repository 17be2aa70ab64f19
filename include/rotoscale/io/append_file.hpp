// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// append_file: a file to which records are appended. POSIX. atomic_file.hpp has files that are written as a whole.
#pragma once

#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include "rotoscale/io/file.hpp"

namespace rotoscale::io {

/// A file open for appending. write() returns after the operating system has the bytes; it does not flush to disk.
class append_file {
 public:
  /// Treatment of an existing file: append to it, truncate it, or refuse it (create).
  enum class mode { append, truncate, create };

  append_file() = default;
  /// Opens `path`. Throws io::error; with mode::create also if the file exists.
  append_file(std::filesystem::path path, mode how) : path_(std::move(path)) {
    const int flag = how == mode::truncate ? O_TRUNC : how == mode::create ? O_EXCL : 0;
    file_ = detail::descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | flag, 0666));
    if (!file_.is_open()) detail::fail(path_, "cannot write", errno);
  }

  /// Appends `bytes`.
  void write(std::string_view bytes) { detail::write_all(file_, bytes, path_); }

 private:
  std::filesystem::path path_;
  detail::descriptor file_;
};

}  // namespace rotoscale::io
