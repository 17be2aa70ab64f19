// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Memory for tests of reads and writes: an access one byte outside ends the program.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace rotoscale::oracle {

/// Memory between two protected pages.
class fenced_memory {
 public:
  explicit fenced_memory(std::size_t bytes) : bytes_(bytes), room_((bytes / page + 1) * page) {
    void* const all = mmap(nullptr, room_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) throw std::runtime_error("no memory between fences");
    room_begin_ = static_cast<std::uint8_t*>(all) + page;
    allow(PROT_READ | PROT_WRITE);
  }
  fenced_memory(const fenced_memory&) = delete;
  fenced_memory& operator=(const fenced_memory&) = delete;
  ~fenced_memory() { munmap(room_begin_ - page, room_ + 2 * page); }

  /// First byte of the memory, which ends at the fence after it (`end`) or starts at the fence before it.
  std::uint8_t* at(bool end) { return end ? room_begin_ + room_ - bytes_ : room_begin_; }
  /// Makes the memory read-only.
  void hold() { allow(PROT_READ); }

 private:
  static constexpr std::size_t page = 1 << 16;  // the largest page size of Linux
  void allow(int protection) {
    if (mprotect(room_begin_, room_, protection) != 0) throw std::runtime_error("no fences");
  }

  std::size_t bytes_, room_;
  std::uint8_t* room_begin_ = nullptr;
};

}  // namespace rotoscale::oracle
