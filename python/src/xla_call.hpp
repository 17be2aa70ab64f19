// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A custom call of XLA as a handler reads it: buffers by position, attributes by name. Used by the CPU's handlers
// (xla.cpp) and by a device's (device/xla.cpp).
#pragma once

#include <algorithm>
#include <cfenv>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

#include "rotoscale/format.hpp"
#include "xla_ffi.hpp"

namespace rotoscale::python::xla {

/// The format of a buffer's elements. Bytes are int8.
inline format element_of(data_type d) {
  switch (d) {
    case f32: return formats::fp32;
    case f64: return formats::fp64;
    case f16: return formats::fp16;
    case bf16: return formats::bf16;
    case f8e4m3fn: return formats::e4m3;
    case f8e5m2: return formats::e5m2;
    case f8e4m3fnuz: return formats::e4m3fnuz;
    case f8e5m2fnuz: return formats::e5m2fnuz;
    case f8e4m3b11fnuz: return formats::e4m3b11fnuz;
    case u8: return formats::int8;
    default: throw std::invalid_argument("an argument has XLA's type " + std::to_string(d));
  }
}

class call {
 public:
  explicit call(const call_frame& frame) : frame_(frame) {}

  const call_frame& frame() const { return frame_; }
  std::int64_t arguments() const { return frame_.arguments.size; }
  const buffer& argument(std::int64_t i) const { return *frame_.arguments.items[i]; }
  /// Elements of an argument whose type Python chose.
  template <class T>
  const T* elements(std::int64_t i) const {
    return static_cast<const T*>(argument(i).data);
  }
  template <class T>
  T* result(std::int64_t i) const {
    return static_cast<T*>(frame_.results.items[i]->data);
  }

  template <class T>
  T number(std::string_view name) const {
    const auto* found = static_cast<const scalar*>(attribute(name, scalar_attribute));
    T value;
    std::memcpy(&value, found->value, sizeof value);
    return value;
  }
  bool flag(std::string_view name) const { return number<std::uint8_t>(name) != 0; }
  std::string string(std::string_view name) const {
    const auto* found = static_cast<const byte_span*>(attribute(name, string_attribute));
    return {found->data, found->size};
  }

 private:
  const void* attribute(std::string_view name, int type) const {
    const xla::attributes& all = frame_.attributes;
    for (std::int64_t i = 0; i < all.size; ++i) {
      if (std::string_view(all.names[i]->data, all.names[i]->size) == name && all.types[i] == type) return all.items[i];
    }
    throw std::invalid_argument("the call has no attribute " + std::string(name) + " of that type");
  }

  const call_frame& frame_;
};

/// Seed or stream i of four words of 32 bits, low words first.
inline std::uint64_t random_number(const std::uint32_t* words, int i) {
  return words[2 * i] | static_cast<std::uint64_t>(words[2 * i + 1]) << 32;
}

/// Answers XLA's query for the interface version. XLA of interface version 0.1 passes no `api` with the query.
inline void describe(const call_frame& frame) {
  metadata& m = *reinterpret_cast<metadata_extension*>(frame.extensions)->metadata;
  const int minor = frame.api == nullptr ? 1 : std::min(frame.api->version.minor, newest_minor_version);
  m.version = {sizeof(api_version), nullptr, major_version, minor};
  m.traits = 0;
}

/// Arithmetic with subnormal numbers for its lifetime: XLA's threads flush them to zero.
class default_arithmetic {
 public:
  default_arithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  default_arithmetic(const default_arithmetic&) = delete;
  default_arithmetic& operator=(const default_arithmetic&) = delete;
  ~default_arithmetic() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

/// The function that XLA calls for `compute`, whose exceptions become XLA's errors.
template <class Call, void (*compute)(const Call&)>
error* handler(call_frame* frame) noexcept {
  if (frame->extensions != nullptr && frame->extensions->type == metadata_extension_type) {
    describe(*frame);
    return nullptr;
  }
  try {
    if (frame->stage != execute_stage) {
      throw std::invalid_argument("the call has XLA's stage " + std::to_string(frame->stage));
    }
    const default_arithmetic here;
    compute(Call(*frame));
    return nullptr;
  } catch (const std::exception& caught) {
    error_arguments arguments{sizeof(error_arguments), nullptr, caught.what(), invalid_argument_code};
    return frame->api->create_error(&arguments);
  }
}

}  // namespace rotoscale::python::xla
