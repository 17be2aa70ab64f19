// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "data/record_lines.hpp"

#include <algorithm>

#include "rotoscale/io/error.hpp"
#include "rotoscale/io/json.hpp"

namespace rotoscale::program {

namespace {

constexpr std::string_view blanks = " \t\r\n";

/// The first one, without its end.
std::string_view line_of(std::string_view text) { return text.substr(0, text.find('\n')); }

/// Why a line is no record, with its place before it; empty: it is one.
std::string find_record_fault(std::string_view line, const std::string& file, std::size_t number) {
  try {
    const auto json = io::parse_json(line, file, number);
    if (json.is_object() &&
        ((json.contains("prompt") && json.contains("answer")) || json.contains("text") || json.contains("messages"))) {
      return {};
    }
    return name_line(file, number) + ": no record: it has neither prompt and answer nor text nor messages";
  } catch (const io::error& e) {
    return e.what();
  }
}

}  // namespace

bool begins_as_records(std::string_view text, const std::string& name) {
  text = without_mark(text);
  const std::size_t begin = std::min(text.find_first_not_of(blanks), text.size());
  const std::string_view found = text.substr(begin), first = line_of(found);
  const std::size_t inner = found.find_first_not_of(blanks, 1);
  const char next = inner < found.size() ? found[inner] : ' ';
  constexpr const char* advice = "; --text-format plain takes the file as text";
  if (found.starts_with('[') && next == '{') {
    throw io::error(name, std::string("an array of JSON, not JSON lines") + advice);
  }
  if (!found.starts_with('{')) return false;
  const std::string_view before = text.substr(0, begin);
  const auto lines = static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
  const std::string fault = find_record_fault(first, name, lines + 1);
  if (fault.empty()) return true;
  const std::string_view rest = found.substr(first.size());
  const std::string_view second = line_of(rest.substr(std::min(rest.find_first_not_of(blanks), rest.size())));
  if (next == '"' || find_record_fault(second, name, 0).empty()) throw io::error(fault + advice);
  return false;
}

}  // namespace rotoscale::program
