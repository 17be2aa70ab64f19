// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The elements of C, D or a bias, in the type of the file.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "rotoscale/bits.hpp"
#include "rotoscale/config.hpp"
#include "rotoscale/format.hpp"
#include "rotoscale/round.hpp"

namespace rotoscale::validate {

/// The value of a code, for formats up to FP64.
inline double value_of(const format& f, std::uint64_t code) {
  return bit_cast<double>(f == formats::fp64 ? code : convert(f, code, formats::fp64));
}

/// Codes of F16, BF16, F32 or F64. They keep their width: 4096 × 4096 results as 64-bit words would take a tenth of
/// their GEMM's time to write.
class output_tensor {
 public:
  output_tensor() = default;
  output_tensor(const format& element, std::vector<std::uint8_t> bytes)
      : element_(element), width_(static_cast<std::size_t>(element.bits() / 8)), bytes_(std::move(bytes)) {}
  /// All zeros.
  output_tensor(const format& element, index_t size)
      : output_tensor(element, std::vector<std::uint8_t>(static_cast<std::size_t>(size * (element.bits() / 8)))) {}

  const format& element() const { return element_; }
  index_t size() const { return bytes_.empty() ? 0 : static_cast<index_t>(bytes_.size() / width_); }
  std::span<const std::uint8_t> bytes() const { return bytes_; }

  std::uint64_t code(index_t e) const {
    const std::uint8_t* const from = bytes_.data() + static_cast<std::size_t>(e) * width_;
    return width_ == 2   ? read<std::uint16_t>(from)
           : width_ == 4 ? read<std::uint32_t>(from)
                         : read<std::uint64_t>(from);
  }
  double value(index_t e) const { return value_of(element_, code(e)); }
  /// Sets an element. Threads may set different elements concurrently.
  void set(index_t e, std::uint64_t code) {
    std::memcpy(bytes_.data() + static_cast<std::size_t>(e) * width_, &code, width_);
  }

 private:
  template <class Word>
  static std::uint64_t read(const std::uint8_t* from) {
    Word word;
    std::memcpy(&word, from, sizeof word);
    return word;
  }

  format element_ = {};
  std::size_t width_ = 1;
  std::vector<std::uint8_t> bytes_;
};

}  // namespace rotoscale::validate
