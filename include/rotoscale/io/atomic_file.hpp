// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Files and directories that appear whole or not at all, and then survive a power loss. POSIX.
//
// 1. Write the data under a hidden name in the same directory, and flush it.
// 2. Rename it to the final name.
// 3. Flush the directory.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "rotoscale/io/error.hpp"
#include "rotoscale/io/file.hpp"

namespace rotoscale::io {

namespace detail {

inline void sync_path(const std::filesystem::path& path) {
  const descriptor file = open_to_read(path);
  // Some file systems cannot flush a directory and return EINVAL, which is ignored.
  if (::fsync(file.get()) != 0 && errno != EINVAL) fail(path, "cannot flush", errno);
}

/// Normal form of a path: "a/b" for "a/b", "a/b/" and "a/./b". Fails for a path that names no entry of its parent.
inline std::filesystem::path entry_path(const std::filesystem::path& path) {
  std::filesystem::path entry = path.lexically_normal();
  if (!entry.has_filename()) entry = entry.parent_path();
  const auto name = entry.filename();
  if (name.empty() || name == "." || name == "..") throw error(path.string(), "not a name that can be written");
  return entry;
}

inline std::filesystem::path parent_directory(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// ".name.<kind>-<pid>" in the directory of `path`: on the same file system, and hidden from globs.
inline std::filesystem::path sibling(const std::filesystem::path& path, const char* kind) {
  std::filesystem::path name = ".";
  name += path.filename();
  name += std::string(".") + kind + "-" + std::to_string(::getpid());
  return path.parent_path() / name;
}

/// Renames `from` over an existing directory `to` in two steps. In between, `to` is absent for an instant, but never
/// incomplete. Returns the new path of the old directory.
inline std::filesystem::path displace_directory(const std::filesystem::path& from, const std::filesystem::path& to) {
  const std::filesystem::path old = sibling(to, "old");
  std::filesystem::remove_all(old);
  if (::rename(to.c_str(), old.c_str()) != 0) fail(to, "cannot move the existing directory away", errno);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int code = errno;
    if (::rename(old.c_str(), to.c_str()) != 0) fail(to, "cannot restore " + old.string(), errno);
    fail(to, "cannot rename to it", code);
  }
  return old;
}

/// displace_directory in one step, if the kernel and the file system can exchange two names.
inline std::filesystem::path exchange_directory(const std::filesystem::path& from, const std::filesystem::path& to) {
#if defined(RENAME_EXCHANGE)
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return from;
#endif
  return displace_directory(from, to);
}

/// The final name that belongs to a hidden name of sibling(); empty for any other name.
inline std::string name_beside(const std::string& hidden, const std::string& kind) {
  const std::size_t mark = hidden.rfind("." + kind + "-");
  if (!hidden.starts_with('.') || mark == hidden.npos || mark < 2) return {};
  const std::size_t number = mark + kind.size() + 2;
  const bool is_number = number < hidden.size() && hidden.find_first_not_of("0123456789-", number) == hidden.npos;
  return is_number ? hidden.substr(1, mark - 1) : std::string();
}

}  // namespace detail

/// Creates a directory and its missing parents. Without keep() the destructor removes the new ones again, if they are
/// empty.
class new_directories {
 public:
  /// Creates the missing directories and flushes each. Throws io::error, after removing those it made.
  explicit new_directories(const std::filesystem::path& path) {
    try {
      make(path);
    } catch (...) {
      remove();
      throw;
    }
  }
  new_directories(const new_directories&) = delete;
  new_directories& operator=(const new_directories&) = delete;
  ~new_directories() { remove(); }

  /// Keeps all new directories.
  void keep() { made_.clear(); }

 private:
  void make(const std::filesystem::path& path) {
    const std::filesystem::path parent = path.parent_path();
    std::error_code ignored;
    if (path.empty() || std::filesystem::is_directory(path, ignored)) return;
    if (parent != path) make(parent);
    if (::mkdir(path.c_str(), 0777) == 0) {
      made_.push_back(path);
    } else if (errno != EEXIST) {
      detail::fail(path, "cannot create the directory", errno);
    }
    if (!std::filesystem::is_directory(path, ignored)) {
      throw error(path.string(), "cannot create the directory: exists and is no directory");
    }
    detail::sync_path(detail::parent_directory(path));
  }

  void remove() noexcept {
    for (; !made_.empty(); made_.pop_back()) ::rmdir(made_.back().c_str());
  }

  std::vector<std::filesystem::path> made_;
};

/// Creates a directory and its missing parents, each flushed to disk. Throws io::error.
inline void make_directories(const std::filesystem::path& path) { new_directories(path).keep(); }

/// Removes leftovers of killed writers from a directory. A directory that was moved away but not yet replaced gets its
/// name back. No writer may be running.
inline void remove_leftovers(const std::filesystem::path& directory) {
  std::error_code failed;
  std::vector<std::filesystem::path> entries;
  for (const auto& entry : std::filesystem::directory_iterator(directory, failed)) entries.push_back(entry.path());
  for (const std::filesystem::path& path : entries) {
    const std::string name = path.filename().string();
    if (const std::string replaced = detail::name_beside(name, "old"); !replaced.empty()) {
      if (!std::filesystem::exists(directory / replaced, failed)) {
        if (::rename(path.c_str(), (directory / replaced).c_str()) != 0) {
          detail::fail(directory / replaced, "cannot restore it from " + path.string(), errno);
        }
        continue;
      }
    } else if (detail::name_beside(name, "tmp").empty()) {
      continue;
    }
    std::filesystem::remove_all(path, failed);
  }
}

namespace detail {

/// Locks a writer's hidden file or directory. Returns false if another process has removed it or is about to.
inline bool claim(const descriptor& file) {
  // File systems without locks return another error than EWOULDBLOCK; there nothing is removed either.
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  struct stat status {};
  return ::fstat(file.get(), &status) != 0 || status.st_nlink > 0;
}

/// Removes unlocked hidden files and directories that killed writers of `path` left.
inline void remove_unclaimed(const std::filesystem::path& path) {
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(parent_directory(path), failed)) {
    if (name_beside(entry.path().filename().string(), "tmp") != path.filename()) continue;
    const descriptor left(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat status {};
    if (!left.is_open() || ::fstat(left.get(), &status) != 0) continue;
    if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) continue;
    if (::flock(left.get(), LOCK_EX | LOCK_NB) == 0) std::filesystem::remove_all(entry.path(), failed);
  }
}

/// Writes all bytes from `offset` on.
inline void write_all_at(const descriptor& file, std::uint64_t offset, std::string_view bytes,
                         const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "cannot write", errno);
    bytes.remove_prefix(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
}

}  // namespace detail

/// A file that appears under its name on commit(). Without commit() it is removed. If the writer is killed, the next
/// writer of the same name removes its hidden file.
class atomic_file {
 public:
  /// Opens a hidden file next to `path`. Throws io::error if `path` cannot be written or is not a regular file.
  explicit atomic_file(const std::filesystem::path& path) : path_(detail::entry_path(path)) {
    std::error_code ignored;
    const auto status = std::filesystem::status(path_, ignored);
    // A path with a trailing slash names a directory, even if none exists.
    if (std::filesystem::is_directory(status) || !path.has_filename())
      throw error(path.string(), "cannot write: is a directory");
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
      throw error(path.string(), "cannot write: not a regular file");
    }
    // A symbolic link: replace its target, as a plain write would.
    if (std::filesystem::is_symlink(path_, ignored)) {
      std::error_code failed;
      path_ = std::filesystem::weakly_canonical(path_, failed);
      if (failed) detail::fail(path, "cannot write", failed.value());
    }
    static std::atomic<unsigned> count{0};
    detail::remove_unclaimed(path_);
    // A killed process with the same process number may have left this name on a file system without locks.
    for (int attempt = 0; attempt < 1000 && !file_.is_open(); ++attempt) {
      temporary_ = detail::sibling(path_, "tmp");
      temporary_ += "-" + std::to_string(count++);
      file_ = detail::descriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (!file_.is_open() && errno != EEXIST) break;
      if (file_.is_open() && !detail::claim(file_)) file_ = detail::descriptor();
    }
    if (!file_.is_open()) detail::fail(path_, "cannot write", errno);
  }
  atomic_file(const atomic_file&) = delete;
  atomic_file& operator=(const atomic_file&) = delete;
  ~atomic_file() {
    if (!committed_) ::unlink(temporary_.c_str());
  }

  /// Appends `bytes`.
  void write(std::string_view bytes) { detail::write_all(file_, bytes, path_); }

  /// Overwrites bytes written before, for example a header that counts the records.
  void write_at(std::uint64_t offset, std::string_view bytes) { detail::write_all_at(file_, offset, bytes, path_); }
  /// Sets the size. New bytes are zero.
  void resize(std::uint64_t size) {
    if (::ftruncate(file_.get(), static_cast<off_t>(size)) != 0) detail::fail(path_, "cannot write", errno);
  }

  /// Flushes to disk and renames to the final name.
  void commit() {
    if (::fsync(file_.get()) != 0) detail::fail(path_, "cannot flush", errno);
    const detail::descriptor lock(::dup(file_.get()));  // held until the hidden name is gone
    if (file_.close() != 0) detail::fail(path_, "cannot write", errno);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) detail::fail(path_, "cannot rename to it", errno);
    committed_ = true;
    detail::sync_path(detail::parent_directory(path_));
  }

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  detail::descriptor file_;
  bool committed_ = false;
};

/// Parts of an existing file, one of several writers.
class file_parts {
 public:
  /// Throws io::error if the file cannot be opened.
  explicit file_parts(const std::filesystem::path& path)
      : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CLOEXEC)) {
    if (!file_.is_open()) detail::fail(path_, "cannot write", errno);
  }
  /// Overwrites bytes.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
    detail::write_all_at(file_, offset, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path_);
  }
  /// Flushes to disk, and closes.
  void finish() {
    if (::fsync(file_.get()) != 0) detail::fail(path_, "cannot flush", errno);
    if (file_.close() != 0) detail::fail(path_, "cannot write", errno);
  }

 private:
  std::filesystem::path path_;
  detail::descriptor file_;
};

/// Writes a whole file; it appears whole or not at all.
inline void write_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  atomic_file file(path);
  file.write(bytes);
  file.commit();
}

/// A directory that appears under its name on commit(), replacing a directory of that name. The caller fills path(), a
/// hidden sibling. Without commit() it is removed. If the writer is killed, the next writer of the same name removes
/// its hidden directory. A name has one writer at a time.
class atomic_directory {
 public:
  /// Makes a hidden directory next to `path`. Throws io::error if `path` exists and is not a directory.
  explicit atomic_directory(const std::filesystem::path& path)
      : final_(detail::entry_path(path)), temporary_(detail::sibling(final_, "tmp")) {
    check_target();
    detail::remove_unclaimed(final_);
    // NFS does not lock directories, so one of a killed process with the same process number may remain.
    std::error_code code;
    std::filesystem::remove_all(temporary_, code);
    if (::mkdir(temporary_.c_str(), 0777) != 0) detail::fail(final_, "cannot create the directory", errno);
    lock_ = detail::descriptor(::open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (lock_.is_open()) (void)detail::claim(lock_);
  }
  atomic_directory(const atomic_directory&) = delete;
  atomic_directory& operator=(const atomic_directory&) = delete;
  ~atomic_directory() {
    std::error_code ignored;
    if (!committed_) std::filesystem::remove_all(temporary_, ignored);
  }

  /// The hidden directory, to be filled.
  const std::filesystem::path& path() const { return temporary_; }

  /// Flushes all files to disk and renames the directory, exchanging it with an older one of that name.
  void commit() try {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(temporary_)) {
      if (entry.is_symlink()) continue;
      if (entry.is_regular_file() || entry.is_directory()) detail::sync_path(entry.path());
    }
    detail::sync_path(temporary_);
    check_target();
    std::filesystem::path old;
    if (std::filesystem::exists(final_)) {
      old = detail::exchange_directory(temporary_, final_);
    } else if (::rename(temporary_.c_str(), final_.c_str()) != 0) {
      detail::fail(final_, "cannot rename to it", errno);
    }
    committed_ = true;
    detail::sync_path(detail::parent_directory(final_));
    if (!old.empty()) std::filesystem::remove_all(old);
  } catch (const std::filesystem::filesystem_error& e) {
    throw error(final_.string(), "cannot write the directory: " + e.code().message());
  }

 private:
  void check_target() const {
    std::error_code ignored;
    const auto status = std::filesystem::symlink_status(final_, ignored);
    if (std::filesystem::exists(status) && !std::filesystem::is_directory(status)) {
      throw error(final_.string(), "cannot write: exists and is not a directory");
    }
  }

  std::filesystem::path final_;
  std::filesystem::path temporary_;
  detail::descriptor lock_;
  bool committed_ = false;
};

}  // namespace rotoscale::io
