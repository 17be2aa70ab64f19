// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A file that grows. POSIX.
#pragma once

#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include "rotoscale/io/file.hpp"

namespace rotoscale::io {

/// Each write is with the operating system when it returns.
class append_file {
 public:
  /// What is there already, and whether that may be.
  enum class mode { append, truncate, create };

  append_file() = default;
  /// Throws io::error; with mode::create also for a file that exists.
  append_file(std::filesystem::path path, mode how) : path_(std::move(path)) {
    const int flag = how == mode::truncate ? O_TRUNC : how == mode::create ? O_EXCL : 0;
    file_ = detail::descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | flag, 0666));
    if (!file_.is_open()) detail::fail(path_, "cannot write", errno);
  }

  /// Appends.
  void write(std::string_view bytes) { detail::write_all(file_, bytes, path_); }

 private:
  std::filesystem::path path_;
  detail::descriptor file_;
};

}  // namespace rotoscale::io
