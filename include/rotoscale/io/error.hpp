// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// io::error, the one exception of file readers and writers, and printable() for text in its messages.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "rotoscale/nearest_name.hpp"
#include "rotoscale/version.hpp"

namespace rotoscale::io {

/// Bytes of the UTF-8 character at the start of `text`: 1 for ASCII, 0 for invalid bytes, surrogates among them.
inline std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return text.empty() ? 0 : 1;
  const std::size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                             : lead >= 0xE0 && lead <= 0xEF ? 3
                             : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                            : 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  // Valid second bytes after leads that allow overlong forms, surrogates or values beyond Unicode.
  const unsigned second = byte(1);
  const bool bad = (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
                   (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F);
  return bad ? 0 : length;
}

/// Does `text` begin with a control character (C0, DEL, C1)? It must begin with a UTF-8 character.
inline bool begins_with_control(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  return lead < 0x20 || lead == 0x7F || (lead == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0);
}

/// `text` for a one-line message: invalid UTF-8 and control characters are escaped, and the middle of a long text is
/// left out. Hostile input therefore cannot break a message.
inline std::string printable(std::string_view text, std::size_t limit = 120) {
  constexpr char hex[] = "0123456789abcdef";
  std::string out;
  const auto append = [&](std::string_view part) {
    for (std::size_t i = 0; i < part.size();) {
      const auto byte = static_cast<unsigned char>(part[i]);
      const std::size_t length = utf8_length(part.substr(i));
      if (length != 0 && !begins_with_control(part.substr(i))) {
        out += part.substr(i, length);
        i += length;
      } else {
        out += {'\\', 'x', hex[byte >> 4], hex[byte & 15]};
        ++i;
      }
    }
  };
  if (text.size() <= limit) {
    append(text);
  } else {
    append(text.substr(0, limit / 2));
    out += "...";
    append(text.substr(text.size() - limit / 2));
  }
  return out;
}

/// Bad input or a failed file operation, in one line: "file: problem".
struct error : std::runtime_error {
  /// Takes the whole message and makes it printable.
  explicit error(const std::string& message) : std::runtime_error(printable(message, message.size())) {}
  /// The message "where: what".
  error(const std::string& where, const std::string& what) : error(where + ": " + what) {}
};

using rotoscale::did_you_mean;
using rotoscale::nearest_name;

}  // namespace rotoscale::io
