// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A fuzzer's input as a sequence of choices and bytes.
#pragma once

#include <algorithm>
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
  /// Makes repeated_word() cycle through the unread input.
  void repeat_rest() {
    data_ += at_;
    size_ -= at_;
    at_ = 0;
  }
  std::uint32_t repeated_word() {
    if (size_ == 0) return 0;
    std::uint32_t w = 0;
    for (int i = 0; i < 4; ++i) w |= static_cast<std::uint32_t>(data_[at_++ % size_]) << (8 * i);
    return w;
  }
  /// The unread bytes.
  std::span<const std::byte> rest() const { return std::as_bytes(std::span(data_, size_)).subspan(at_); }
  std::string_view rest_as_text() const { return {reinterpret_cast<const char*>(data_) + at_, size_ - at_}; }
  /// Reads to a zero byte, which is skipped, or to the end.
  std::string_view text_to_zero() {
    const std::string_view rest = rest_as_text();
    const std::string_view text = rest.substr(0, rest.find('\0'));
    at_ += std::min(text.size() + 1, rest.size());
    return text;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

}  // namespace rotoscale::fuzz
