// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A path in a command, for a message or a shell.
#pragma once

#include <string>
#include <string_view>

namespace rotoscale::program {

/// Quotes a word for a shell: in single quotes if it has other characters than letters, digits and -_./+:,=@%.
inline std::string shell_word(std::string_view path) {
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./+:,=@%";
  if (!path.empty() && path.find_first_not_of(plain) == path.npos) return std::string(path);
  std::string quoted = "'";
  for (const char c : path) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

}  // namespace rotoscale::program
