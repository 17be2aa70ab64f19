// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Fuzz targets by name. One program holds many, since they share most of the code to compile. X_fuzz.cpp has everything
// in namespace X_fuzz and ends with the target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace rotoscale::fuzz {

/// Tries one input. Any fault aborts.
using target_function = void (*)(const std::uint8_t* data, std::size_t size);

/// A target of the program, in a global list. Targets have static lifetime.
class target {
 public:
  target(const char* name, target_function run) : name_(name), run_(run), next_(first()) { first() = this; }
  target(const target&) = delete;
  target& operator=(const target&) = delete;

  const char* name() const { return name_; }
  void operator()(const std::uint8_t* data, std::size_t size) const { run_(data, size); }

  /// The target of that name; without a name, the only one. nullptr if there is none.
  static const target* find(std::string_view name) {
    for (const target* t = first(); t != nullptr; t = t->next_) {
      if (name.empty() ? t->next_ == nullptr && t == first() : name == t->name_) return t;
    }
    return nullptr;
  }

 private:
  static const target*& first() {
    static const target* list = nullptr;
    return list;
  }

  const char* name_;
  target_function run_;
  const target* next_;
};

inline void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace rotoscale::fuzz
