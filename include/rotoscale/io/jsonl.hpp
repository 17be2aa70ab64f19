// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// JSON lines: one record per line, written by one process at a time. Each record is with the operating system before
// the next is written, so a killed run loses at most its last line.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rotoscale/io/error.hpp"
#include "rotoscale/io/file.hpp"
#include "rotoscale/io/json.hpp"

namespace rotoscale::io {

namespace detail {

/// Is a last line without newline a whole record? Only an object or array shows its end: "12" may be the start of
/// "123".
inline bool is_whole_record(std::string_view line) {
  const auto parsed = json::parse(line.begin(), line.end(), nullptr, false);
  return parsed.is_object() || parsed.is_array();
}

/// Does `path` name `file` now?
inline bool has_name(const descriptor& file, const std::filesystem::path& path) {
  struct stat own {
  }, named{};
  if (::fstat(file.get(), &own) != 0) return true;
  return ::stat(path.c_str(), &named) == 0 && own.st_dev == named.st_dev && own.st_ino == named.st_ino;
}

/// Returns the descriptor from `open`, locked with LOCK_EX or LOCK_SH, or none if `open` returns none. A writer whose
/// run failed may remove the file while it is opened. It then has no name and its lock protects nothing, so it is
/// opened again.
template <class Open>
descriptor open_locked(const std::filesystem::path& path, int how, const Open& open) {
  constexpr int attempts = 16;  // a limit, since a file system may have no stable inode numbers
  for (int i = 1;; ++i) {
    descriptor file = open();
    if (!file.is_open()) return file;
    // File systems without locks return another error than EWOULDBLOCK; the file is then used without a lock.
    if (::flock(file.get(), how | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw error(path.string(), "cannot write: another process is writing it");
    }
    if (i == attempts || has_name(file, path)) return file;
  }
}

}  // namespace detail

/// Throws io::error if another process is writing the log at `path`, or if `path` is not a regular file (opening a pipe
/// would wait). The log need not exist.
inline void require_no_writer(const std::filesystem::path& path) {
  detail::open_locked(path, LOCK_SH, [&] {
    std::error_code failed;
    return std::filesystem::exists(path, failed) ? detail::open_regular(path) : detail::descriptor();
  });
}

/// Writer of a log with one JSON record per line.
class jsonl_writer {
 public:
  /// write: a new file; append: continue an existing one.
  enum class mode { write, append };

  /// Opens the log. With append, an unfinished last line of a killed run is removed first. Throws io::error, also while
  /// another writer has the log open, and for a pipe.
  explicit jsonl_writer(const std::filesystem::path& path, mode how = mode::write) : path_(path) {
    file_ = detail::open_locked(path, LOCK_EX, [&] {
      detail::descriptor file(::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
      if (!file.is_open()) detail::fail(path, "cannot write", errno);
      return file;
    });
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0) return;
    if (S_ISFIFO(status.st_mode)) throw error(path.string(), "cannot write: a pipe, not a regular file");
    if (!S_ISREG(status.st_mode)) return;
    if (how == mode::append) {
      mend_last_line();
    } else {
      clear();
    }
  }

  /// Removes all records.
  void clear() {
    if (::ftruncate(file_.get(), 0) != 0 && errno != EINVAL) detail::fail(path_, "cannot write", errno);
  }

  /// Writes a record, which is with the operating system when this returns.
  void write(const nlohmann::ordered_json& record) {
    detail::write_all(file_, json_text(record, path_.string()) + "\n", path_);
  }

  /// Flushes all records to disk.
  void flush() {
    if (::fsync(file_.get()) != 0 && errno != EINVAL) detail::fail(path_, "cannot flush", errno);
  }

  /// Path of the log.
  const std::filesystem::path& path() const { return path_; }

 private:
  void mend_last_line() {
    std::string text;
    detail::read_rest(file_, text, path_);
    const std::size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
    if (line == text.size()) return;
    if (detail::is_whole_record(std::string_view(text).substr(line))) {
      detail::write_all(file_, "\n", path_);
    } else if (::ftruncate(file_.get(), static_cast<off_t>(line)) != 0) {
      detail::fail(path_, "cannot remove an unfinished last line", errno);
    }
  }

  std::filesystem::path path_;
  detail::descriptor file_;
};

/// Calls use(record, line number) for all records of a file, plain or gzip. Skips blank lines and an unfinished last
/// line, as a killed run leaves it. Returns the number of that unfinished line, or 0.
template <class Use>
std::size_t for_each_record(const std::filesystem::path& path, const Use& use) {
  const std::string text = read_file(path);
  std::string_view rest = text;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    if (end == rest.npos && !detail::is_whole_record(line)) return number;
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    use(parse_json(line, path.string(), number), number);
  }
  return 0;
}

/// All records of a file, as for_each_record passes them.
inline std::vector<nlohmann::ordered_json> read_jsonl(const std::filesystem::path& path) {
  std::vector<nlohmann::ordered_json> records;
  for_each_record(path, [&](nlohmann::ordered_json record, std::size_t) { records.push_back(std::move(record)); });
  return records;
}

}  // namespace rotoscale::io
