// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A number that tells one run's data from another's.
#pragma once

#include <cstdint>

namespace rotoscale::program {

/// 64-bit FNV-1a over numbers or bytes.
class token_fingerprint {
 public:
  void add(std::uint64_t number) { hash_ = (hash_ ^ number) * 1099511628211u; }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 14695981039346656037u;
};

}  // namespace rotoscale::program
