// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The one exception of everything that reads or writes files, and the "did you mean" helper behind its messages.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "rotoscale/version.hpp"

namespace rotoscale::io {

/// Bytes of the UTF-8 character that `text` begins with: 1 for ASCII; 0 for what is none, surrogates among that.
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
  // The second byte's range after leads that could spell too much: overlong forms, surrogates, the end.
  const unsigned second = byte(1);
  const bool bad = (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
                   (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F);
  return bad ? 0 : length;
}

/// Does `text`, which begins with a UTF-8 character, begin with a control character (C0, DEL, C1)?
inline bool begins_with_control(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  return lead < 0x20 || lead == 0x7F || (lead == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0);
}

/// Text from a file, made fit for a message: what is no UTF-8 and control characters are escaped and the middle of a
/// long text is left out, so that hostile input cannot break the promise of one readable line.
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

/// Bad input or a failed file operation, in one line: "file: what is wrong".
struct error : std::runtime_error {
  /// The message as it is, made printable.
  explicit error(const std::string& message) : std::runtime_error(printable(message, message.size())) {}
  /// "where: what".
  error(const std::string& where, const std::string& what) : error(where + ": " + what) {}
};

namespace detail {

/// Twice the edit distance (insertion, deletion, substitution, swap of neighbours), a change of case counting half an
/// edit: "MXFP4" is nearer to "mxfp4" than to "MXFP8".
inline int edit_cost(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = 2 * static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = 2 * static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int change = a[i - 1] == b[j - 1] ? 0 : lower(a[i - 1]) == lower(b[j - 1]) ? 1 : 2;
      row[j] = std::min({above[j] + 2, row[j - 1] + 2, above[j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 2);
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

}  // namespace detail

/// The valid name closest to `wanted`, the first of equally close ones; empty only when there is none to choose from.
inline std::string nearest_name(std::string_view wanted, const std::vector<std::string>& valid) {
  // The cost is quadratic, and a key taken from a hostile file can be megabytes long.
  wanted = wanted.substr(0, 256);
  const std::string* best = nullptr;
  int best_cost = 0;
  for (const std::string& name : valid) {
    const int cost = detail::edit_cost(wanted, name);
    if (best == nullptr || cost < best_cost) {
      best = &name;
      best_cost = cost;
    }
  }
  return best == nullptr ? std::string() : *best;
}

}  // namespace rotoscale::io
