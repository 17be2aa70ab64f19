// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// JSON lines: whether a text is a file of records, and its lines.
#pragma once

#include <string>
#include <string_view>

namespace rotoscale::program {

/// Is the first non-blank line a record? Throws io::error if it looks like a damaged one: a brace before a key or
/// before a line that is a record. An array of objects is refused too. `name` stands for the file in messages.
bool begins_as_records(std::string_view text, const std::string& name);

/// Without the byte order mark that some editors put before UTF-8.
inline std::string_view without_mark(std::string_view text) {
  return text.substr(text.starts_with("\xEF\xBB\xBF") ? 3 : 0);
}

/// Place of a line in messages.
inline std::string name_line(const std::string& file, std::size_t number) {
  return file + ": line " + std::to_string(number);
}

/// Calls f(line, number) for each line that is not blank.
template <class Function>
void for_each_line(std::string_view text, const Function& f) {
  text = without_mark(text);
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (line.find_first_not_of(" \t\r") != line.npos) f(line, number);
  }
}

}  // namespace rotoscale::program
