// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Decompresses gzip files chunk by chunk.
#pragma once

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <new>
#include <string>
#include <string_view>

#include "rotoscale/io/error.hpp"

namespace rotoscale::io::detail {

/// Half of the physical memory, in bytes: the limit for a file in memory, compressed or decompressed.
inline std::size_t half_of_memory() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) / 2 * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

class inflater {
 public:
  explicit inflater(const std::filesystem::path& path) : path_(path) {
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) throw error(path_.string(), "cannot start zlib");
  }
  inflater(const inflater&) = delete;
  inflater& operator=(const inflater&) = delete;
  ~inflater() { inflateEnd(&stream_); }

  /// Decodes one chunk of the file and appends to `out`. Several gzip members are concatenated; trailing zero bytes, as
  /// on tapes, are ignored.
  void feed(std::string_view input, std::string& out) {
    while (!input.empty()) {
      if (between_members_) {
        if (input.front() == '\0' || padding_) {
          if (input.find_first_not_of('\0') != input.npos) {
            throw error(path_.string(), "corrupt gzip file: data after its end");
          }
          padding_ = true;
          return;
        }
        if (inflateReset(&stream_) != Z_OK) throw error(path_.string(), "cannot restart zlib");
        between_members_ = false;
      }
      input.remove_prefix(step(input, out));
    }
  }

  void finish() const {
    if (!between_members_) throw error(path_.string(), "truncated gzip file");
  }

 private:
  std::size_t step(std::string_view input, std::string& out) {
    char buffer[1 << 16];
    const auto given = static_cast<uInt>(std::min<std::size_t>(input.size(), std::numeric_limits<uInt>::max()));
    // zlib's interface predates const; inflate does not write to its input.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));
    stream_.avail_in = given;
    int result = Z_OK;
    do {
      if (out.size() > limit_) {
        throw error(path_.string(),
                    "decompresses to more than " + std::to_string(limit_) + " bytes, half of this machine's memory");
      }
      stream_.next_out = reinterpret_cast<Bytef*>(buffer);
      stream_.avail_out = sizeof buffer;
      result = inflate(&stream_, Z_NO_FLUSH);
      out.append(buffer, sizeof buffer - stream_.avail_out);
      // Z_BUF_ERROR only means that this chunk is used up.
    } while (result == Z_OK && (stream_.avail_in > 0 || stream_.avail_out == 0));
    if (result == Z_STREAM_END) {
      between_members_ = true;
    } else if (result == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      const char* why = stream_.msg != nullptr ? stream_.msg : "invalid data";
      throw error(path_.string(), std::string("corrupt gzip file: ") + why);
    }
    return given - stream_.avail_in;
  }

  std::filesystem::path path_;
  std::size_t limit_ = half_of_memory();
  z_stream stream_{};
  bool between_members_ = false;
  bool padding_ = false;
};

}  // namespace rotoscale::io::detail
