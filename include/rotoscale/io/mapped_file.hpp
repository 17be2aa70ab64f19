// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// mapped_file: a regular file mapped into memory. POSIX.
#pragma once

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "rotoscale/io/error.hpp"
#include "rotoscale/io/file.hpp"

namespace rotoscale::io {

/// A read-only mapping. If the file is replaced, the mapping keeps the old content. If it is truncated, reading the
/// lost part ends the program (SIGBUS), as with every mapping: see require_whole.
class mapped_file {
 public:
  /// Maps `path` without reading it. Throws io::error if it is missing, unreadable or not a regular file.
  explicit mapped_file(const std::filesystem::path& path) : path_(path) {
    std::uint64_t size = 0;
    file_ = detail::open_regular(path, &size);
    if (size == 0) return;  // mmap rejects length 0
    void* at = ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_PRIVATE, file_.get(), 0);
    if (at == MAP_FAILED) detail::fail(path, "cannot map", errno);
    data_ = static_cast<const std::byte*>(at);
    size_ = static_cast<std::size_t>(size);
  }
  mapped_file(const mapped_file&) = delete;
  mapped_file& operator=(const mapped_file&) = delete;
  ~mapped_file() {
    if (size_ > 0) ::munmap(const_cast<std::byte*>(data_), size_);
  }

  /// Throws io::error if the file has been truncated since it was mapped. A later truncation cannot be excluded.
  void require_whole() const {
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0 || static_cast<std::uint64_t>(status.st_size) >= size_) return;
    throw error(path_.string(), "was cut short while it was read: " + std::to_string(status.st_size) + " bytes of " +
                                    std::to_string(size_));
  }

  /// The whole file.
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  /// Hint that `part` of bytes() is not needed soon: its whole pages leave this process's memory. Reading them again is
  /// allowed.
  void release(std::span<const std::byte> part) const {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = static_cast<std::size_t>(part.data() - data_), end = begin + part.size();
    const std::size_t first = (begin + page - 1) / page * page, last = end == size_ ? end : end / page * page;
    if (first < last) ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
  }

 private:
  std::filesystem::path path_;
  detail::descriptor file_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace rotoscale::io
