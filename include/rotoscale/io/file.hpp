// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Reads whole files, plain or gzip, with helpers that readers and writers share. POSIX.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "rotoscale/io/error.hpp"
#include "rotoscale/io/inflater.hpp"

namespace rotoscale::io {

namespace detail {

[[noreturn]] inline void fail(const std::filesystem::path& path, const std::string& what, int code) {
  throw error(path.string(), what + ": " + std::generic_category().message(code));
}

class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int fd) : fd_(fd) {}
  descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

  /// Closes the file and returns the result of close(2): some file systems report a failed write only here.
  int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_ = -1;
};

inline descriptor open_to_read(const std::filesystem::path& path) {
  descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) fail(path, "cannot open", errno);
  return file;
}

inline const char* kind_of_file(mode_t mode) {
  return S_ISDIR(mode) ? "a directory" : S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

/// Opens a regular file, and sets `size` to its size. Throws io::error for other kinds of files, since a pipe or device
/// may never end.
inline descriptor open_regular(const std::filesystem::path& path, std::uint64_t* size = nullptr) {
  // O_NONBLOCK: opening a pipe would otherwise wait for a writer. It has no effect on regular files.
  descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) fail(path, "cannot open", errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(path, "cannot read", errno);
  if (!S_ISREG(status.st_mode)) {
    throw error(path.string(), std::string("cannot read: ") + kind_of_file(status.st_mode) + ", not a regular file");
  }
  if (size != nullptr) *size = static_cast<std::uint64_t>(status.st_size);
  return file;
}

/// Appends up to `count` bytes to `out` and returns their number; less than `count` means end of file.
inline std::size_t read_some(const descriptor& file, std::string& out, std::size_t count,
                             const std::filesystem::path& path) {
  const std::size_t start = out.size();
  std::size_t got = 0;
  out.resize(start + count);
  while (got < count) {
    const ssize_t n = ::read(file.get(), out.data() + start + got, count - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "cannot read", errno);
    if (n == 0) break;
    got += static_cast<std::size_t>(n);
  }
  out.resize(start + got);
  return got;
}

/// Throws io::error if `size` bytes are more than half of the memory, before any is allocated.
inline void check_size(std::uint64_t size, const std::filesystem::path& path) {
  if (size <= half_of_memory()) return;
  throw error(path.string(), "cannot read: " + std::to_string(size) + " bytes are more than " +
                                 std::to_string(half_of_memory()) + ", half of this machine's memory");
}

/// Limit for kernel files such as /proc: they state a size of zero, and some never end.
inline constexpr std::uint64_t max_unstated_bytes = std::uint64_t{64} << 20;

/// Appends the rest of a file, which may be longer than its size at opening. Throws io::error above `limit` bytes.
inline void read_rest(const descriptor& file, std::string& out, const std::filesystem::path& path,
                      std::uint64_t limit = std::numeric_limits<std::uint64_t>::max()) {
  struct stat status {};
  std::size_t chunk = std::size_t{1} << 16;
  limit = std::min<std::uint64_t>(limit, half_of_memory());
  // One byte more than the stated size: a regular file is then read, and its end seen, in one call.
  if (::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    check_size(static_cast<std::uint64_t>(status.st_size), path);
    chunk = std::max(chunk, static_cast<std::size_t>(status.st_size) + 1);
  } else {
    limit = std::min(limit, max_unstated_bytes);
  }
  while (read_some(file, out, chunk, path) == chunk && out.size() <= limit) {
  }
  if (out.size() <= limit) return;
  throw error(path.string(), "cannot read: more than the " + std::to_string(status.st_size) +
                                 " bytes that it states, the limit is " + std::to_string(limit));
}

inline void write_all(const descriptor& file, std::string_view bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "cannot write", errno);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

}  // namespace detail

/// All bytes of a regular file. Throws io::error above `limit` bytes, before memory is allocated.
inline std::string read_raw_file(const std::filesystem::path& path,
                                 std::uint64_t limit = std::numeric_limits<std::uint64_t>::max()) {
  std::uint64_t size = 0;
  const detail::descriptor file = detail::open_regular(path, &size);
  if (size > limit) {
    throw error(path.string(),
                "cannot read: " + std::to_string(size) + " bytes, the limit is " + std::to_string(limit));
  }
  std::string bytes;
  detail::read_rest(file, bytes, path, limit);
  return bytes;
}

/// The first `count` bytes of a regular file, fewer if it is shorter.
inline std::string read_beginning(const std::filesystem::path& path, std::size_t count) {
  const detail::descriptor file = detail::open_regular(path);
  std::string bytes;
  detail::read_some(file, bytes, count, path);
  return bytes;
}

/// Are two regular files equal by bytes? Holds a few MiB of each in memory. After each equal part it calls
/// compared(bytes), which may throw.
template <class Compared>
bool have_equal_bytes(const std::filesystem::path& a, const std::filesystem::path& b, const Compared& compared) {
  const detail::descriptor first = detail::open_regular(a), second = detail::open_regular(b);
  constexpr std::size_t chunk = std::size_t{4} << 20;
  std::string x, y;
  do {
    x.clear();
    y.clear();
    detail::read_some(first, x, chunk, a);
    detail::read_some(second, y, chunk, b);
    if (x != y) return false;
    compared(x.size());
  } while (x.size() == chunk);
  return true;
}

/// Recognizes files that are often mistaken for tensor files, by their first bytes. Returns kind and advice; null for
/// other files.
inline const char* foreign_content(std::string_view bytes) {
  constexpr struct {
    std::string_view magic;
    const char* kind;
  } kinds[] = {
      {"version https://git-lfs", "a Git LFS pointer, not the file itself: run `git lfs pull`"},
      {"<!DOCTYPE", "a web page: the download did not get the file itself"},
      {"<!doctype", "a web page: the download did not get the file itself"},
      {"<html", "a web page: the download did not get the file itself"},
      {"GGUF", "a GGUF file: transformers reads it (gguf_file) and writes safetensors (save_pretrained)"},
      {"PK\x03\x04", "a zip archive (.bin, .pt or .npz): convert it to safetensors or .npy"},
      {"\x80\x02", "a pickle of PyTorch: convert it to safetensors"},
      {"\x1f\x8b", "gzip: decompress it"},
      {"\x28\xb5\x2f\xfd", "zstd: decompress it"},
      {"PAR1", "Parquet: convert it to JSON lines or safetensors"},
      {"\x89HDF", "HDF5: convert it to safetensors"},
      {"\x93NUMPY", "an .npy file"},
      {"\x8A\xD8\x34\x01",
       "an evaluation file of llm.c (questions with endings), not a token file: a .bin of its training data is"}};
  for (const auto& k : kinds) {
    if (bytes.starts_with(k.magic)) return k.kind;
  }
  return nullptr;
}

/// All bytes of a regular file, decompressed if it begins as gzip (which includes dictd's .dz).
inline std::string read_file(const std::filesystem::path& path) {
  const detail::descriptor file = detail::open_regular(path);
  constexpr std::size_t chunk = std::size_t{1} << 18;
  std::string input;
  detail::read_some(file, input, 2, path);
  if (input != "\x1f\x8b") {
    detail::read_rest(file, input, path);
    return input;
  }
  std::string out;
  detail::inflater decoder(path);
  do {
    decoder.feed(input, out);
    input.clear();
  } while (detail::read_some(file, input, chunk, path) > 0);
  decoder.finish();
  return out;
}

}  // namespace rotoscale::io
