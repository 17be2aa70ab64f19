// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What every function of gpu/ that may fail returns: a value that says which argument was wrong and why. Nothing here
// throws. A refused argument launches nothing and changes no output. After a device_error, or an out_of_memory of the
// runtime, outputs and workspace of the call are undefined.
#pragma once

#include <string>

namespace rotoscale::gpu {

/// What kind of refusal or failure a status is.
enum class error_code {
  none,
  no_device,
  unsupported_device,  ///< the build has no code for the device's architecture, or the device not what is asked for
  bad_extent,
  bad_pointer,  ///< null, or not aligned
  bad_option,   ///< a combination that is not defined
  out_of_memory,
  device_error  ///< what the runtime said, of this call or of earlier work
};

/// A kind and two pointers to static text; copying it costs nothing.
struct [[nodiscard]] status {
  error_code code = error_code::none;  ///< none: all went well
  const char* argument = "";           ///< name of the launcher's argument, a member after a dot; may be empty
  const char* reason = "";             ///< what is wrong with it

  /// Did all go well?
  bool ok() const { return code == error_code::none; }
  /// "argument: reason", or "ok".
  std::string message() const {
    if (ok()) return "ok";
    return argument[0] == '\0' ? std::string(reason) : std::string(argument) + ": " + reason;
  }
};

/// Did the device fail, or run out of memory? A launcher's own refusal, of workspace that is too small as well, names
/// its argument.
inline bool is_of_device(const status& s) {
  return s.code == error_code::device_error || (s.code == error_code::out_of_memory && *s.argument == '\0');
}

}  // namespace rotoscale::gpu
