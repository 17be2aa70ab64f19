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

/// The length of the JSON value that `text` begins with, an array, object or string; 0: it begins with none.
std::size_t json_length(std::string_view text) {
  std::size_t depth = 0, at = 0;
  bool in_string = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    }
    if (depth == 0 && !in_string) break;
  }
  const std::string_view value = text.substr(0, at + 1);
  return at < text.size() && nlohmann::json::accept(value.begin(), value.end()) ? value.size() : 0;
}

/// Describes JSON that is not lines of records; null: the text is something else. The text begins with a non-blank. The
/// first element of an array is examined, the first two values of other JSON.
const char* find_other_json(std::string_view text) {
  const auto after_blanks = [](std::string_view t) {
    return t.substr(std::min(t.find_first_not_of(blanks), t.size()));
  };
  constexpr const char* array = "an array of JSON, not JSON lines";
  if (text.starts_with('[')) {
    const std::string_view element = after_blanks(text.substr(1));
    const std::size_t length = element.find_first_of("{[\"") == 0 ? json_length(element) : 0;
    const std::string_view rest = after_blanks(element.substr(length));
    if (length > 0 && rest.starts_with(',')) return array;
  }
  const std::size_t length = json_length(text);
  if (length == 0) return nullptr;
  const std::string_view rest = text.substr(length), next = after_blanks(rest);
  const std::string_view to_line_end = line_of(rest);
  if (to_line_end.find_first_not_of(" \t\r,") != to_line_end.npos) return nullptr;  // other text follows the value
  if (!next.empty() && text[0] != '{' && json_length(next) == 0) return nullptr;    // a line that happens to be JSON
  if (text.starts_with('"')) return "lines of JSON strings, no records";
  if (text.starts_with('[')) return next.empty() ? array : "lines of JSON arrays, no records";
  return line_of(text).size() < length ? "JSON objects over several lines, not JSON lines" : nullptr;
}

}  // namespace

bool begins_as_records(std::string_view text, const std::string& name) {
  text = without_mark(text);
  const std::size_t begin = text.find_first_not_of(blanks);
  if (begin == text.npos) return false;
  if (std::string_view("{[\"").find(text[begin]) == std::string_view::npos) return false;
  if (const char* what = find_other_json(text.substr(begin))) {
    throw io::error(name, std::string(what) + "; --text-format plain takes the file as text");
  }
  if (text[begin] != '{') return false;
  const auto lines =
      static_cast<std::size_t>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin), '\n'));
  const std::string_view first = line_of(text.substr(begin));
  const std::string fault = find_record_fault(first, name, lines + 1);
  if (fault.empty()) return true;
  const std::size_t key = first.find_first_not_of(" \t", 1);
  const std::string_view rest = text.substr(begin + first.size());
  const std::size_t next = std::min(rest.find_first_not_of(blanks), rest.size());
  const bool is_meant =
      (key != first.npos && first[key] == '"') || find_record_fault(line_of(rest.substr(next)), name, 0).empty();
  if (is_meant) throw io::error(fault + "; --text-format plain takes the file as text");
  return false;
}

}  // namespace rotoscale::program
