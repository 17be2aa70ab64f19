// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A fuzzer's input as a sequence of choices and bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace rotoscale::fuzz {

/// Bytes of the input, followed by zeros.
class byte_choices {
 public:
  byte_choices(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  std::uint8_t byte() { return at_ < size_ ? data_[at_++] : std::uint8_t{0}; }
  std::uint32_t word() {
    std::uint32_t w = 0;
    for (int i = 0; i < 4; ++i) w |= static_cast<std::uint32_t>(byte()) << (8 * i);
    return w;
  }
  bool flag() { return (byte() & 1) != 0; }
  /// 0 to n - 1.
  int below(int n) { return byte() % n; }
  template <class T, std::size_t N>
  const T& one_of(const T (&list)[N]) {
    return list[byte() % N];
  }
  /// The unread bytes.
  std::span<const std::byte> rest() const { return std::as_bytes(std::span(data_, size_)).subspan(at_); }
  std::string_view rest_as_text() const { return {reinterpret_cast<const char*>(data_) + at_, size_ - at_}; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

}  // namespace rotoscale::fuzz
