// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// JSON lines: one record a line, each on disk's side of a write before the next begins, so that a killed run loses at
// most the line that it was writing. A log has one writer at a time.
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

/// Whether a last line without its newline is a whole record. Only an object or an array shows its own end: "12" may
/// be what is left of "123".
inline bool is_whole_record(std::string_view line) {
  const auto parsed = json::parse(line.begin(), line.end(), nullptr, false);
  return parsed.is_object() || parsed.is_array();
}

/// Is this the file that has the name now?
inline bool has_name(const descriptor& file, const std::filesystem::path& path) {
  struct stat own {
  }, named{};
  if (::fstat(file.get(), &own) != 0) return true;
  return ::stat(path.c_str(), &named) == 0 && own.st_dev == named.st_dev && own.st_ino == named.st_ino;
}

/// What `open` returns, a descriptor of `path` or none, locked: LOCK_EX, or LOCK_SH. The writer before, whose run has
/// failed, may remove the file while it is opened here: what is written to it then has no name, and the lock keeps
/// nobody out, so that it is opened again.
template <class Open>
descriptor open_locked(const std::filesystem::path& path, int how, const Open& open) {
  constexpr int attempts = 16;  // a file system may have no lasting numbers of files
  for (int i = 1;; ++i) {
    descriptor file = open();
    if (!file.is_open()) return file;
    // File systems without locks say something else than EWOULDBLOCK; there is no lock to be had then.
    if (::flock(file.get(), how | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw error(path.string(), "cannot write: another process is writing it");
    }
    if (i == attempts || has_name(file, path)) return file;
  }
}

}  // namespace detail

/// Throws io::error while another process writes the log at `path`, which need not exist, and for what is no regular
/// file: to open a pipe is to wait for its other end.
inline void require_no_writer(const std::filesystem::path& path) {
  detail::open_locked(path, LOCK_SH, [&] {
    std::error_code failed;
    return std::filesystem::exists(path, failed) ? detail::open_regular(path) : detail::descriptor();
  });
}

/// A log of one JSON record a line.
class jsonl_writer {
 public:
  /// A new file, or the end of an old one.
  enum class mode { write, append };

  /// Appending to the log of a killed run first removes the line that it left unfinished. Throws io::error, also while
  /// another writer has the log open, and for a pipe, which nobody may read.
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

  /// The record is with the operating system when this returns.
  void write(const nlohmann::ordered_json& record) {
    detail::write_all(file_, json_text(record, path_.string()) + "\n", path_);
  }

  /// All records so far are on disk when this returns.
  void flush() {
    if (::fsync(file_.get()) != 0 && errno != EINVAL) detail::fail(path_, "cannot flush", errno);
  }

  /// Of the log.
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

/// Calls use(record, number of its line) for all records of a file (plain or gzip). Blank lines are skipped, and so is
/// an unfinished last line, which a killed run leaves: its number is returned, 0 where there is none.
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

/// All records of a file, as for_each_record has them.
inline std::vector<nlohmann::ordered_json> read_jsonl(const std::filesystem::path& path) {
  std::vector<nlohmann::ordered_json> records;
  for_each_record(path, [&](nlohmann::ordered_json record, std::size_t) { records.push_back(std::move(record)); });
  return records;
}

}  // namespace rotoscale::io
