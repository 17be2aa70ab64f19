// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What a launcher returns: a value that says which argument was wrong and why. Nothing is launched unless it is ok.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace rotoscale::gpu {

namespace detail {
inline constexpr std::ptrdiff_t max_extent = std::ptrdiff_t{1} << 24;  // kernels count bytes of a tile in 32 bits
}

enum class fault {
  none,
  no_device,
  unsupported_device,  ///< the build has no code for the device's architecture, or the device not what is asked for
  bad_extent,
  bad_pointer,  ///< null, or not aligned
  bad_option,   ///< a combination that is not defined
  out_of_memory,
  device_error  ///< what the runtime said, by now or of earlier work
};

/// Two pointers to static text and a kind; copying it costs nothing.
struct [[nodiscard]] status {
  gpu::fault fault = gpu::fault::none;
  const char* argument = "";  ///< name of the argument of the launcher, a member after a dot
  const char* reason = "";

  bool ok() const { return fault == gpu::fault::none; }
  /// "argument: reason", or "ok".
  std::string message() const {
    if (ok()) return "ok";
    return argument[0] == '\0' ? std::string(reason) : std::string(argument) + ": " + reason;
  }
};

/// Is `pointer` set and a multiple of `alignment` (1, 2, 4 or 16)? `argument` names it.
inline status check_pointer(const void* pointer, std::uintptr_t alignment, const char* argument) {
  if (pointer == nullptr) return {fault::bad_pointer, argument, "must not be null"};
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
    return {fault::bad_pointer, argument,
            alignment == 16  ? "must be aligned to 16 bytes"
            : alignment == 4 ? "must be aligned to 4 bytes"
                             : "must be aligned to 2 bytes"};
  }
  return {};
}

}  // namespace rotoscale::gpu
