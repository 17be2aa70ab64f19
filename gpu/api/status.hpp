// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Return value of every function of gpu/ that can fail: the wrong argument and the reason. Nothing here throws.
// A refused argument launches nothing and changes no output. After a device_error, or an out_of_memory of the runtime,
// the call's outputs and workspace are undefined.
#pragma once

#include <string>

namespace rotoscale::gpu {

/// Kind of refusal or failure.
enum class error_code {
  none,
  no_device,
  unsupported_device,  ///< no code for the device's architecture in this build, or a feature that the device lacks
  bad_extent,
  bad_pointer,  ///< null, or not aligned
  bad_option,   ///< an undefined combination
  out_of_memory,
  device_error  ///< runtime error of this call or of earlier work
};

/// An error code and two pointers to static text. Copying is cheap.
struct [[nodiscard]] status {
  error_code code = error_code::none;  ///< none: success
  const char* argument = "";           ///< name of the launcher's argument, a member after a dot; may be empty
  const char* reason = "";             ///< reason

  /// True on success.
  bool ok() const { return code == error_code::none; }
  /// "argument: reason", or "ok".
  std::string message() const {
    if (ok()) return "ok";
    return argument[0] == '\0' ? std::string(reason) : std::string(argument) + ": " + reason;
  }
};

/// True if the device failed or ran out of memory. False for a launcher's refusal (also of a small workspace), which
/// names its argument.
inline bool is_of_device(const status& s) {
  return s.code == error_code::device_error || (s.code == error_code::out_of_memory && *s.argument == '\0');
}

}  // namespace rotoscale::gpu
