// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Reads the text of files or directories, as --text-format says.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "data/record_lines.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/io/text.hpp"

namespace rotoscale::program {

/// "auto", "plain" or "bytes". Throws io::error for another name.
inline io::text_format text_format_named(const std::string& name) {
  static constexpr std::pair<const char*, io::text_format> formats[] = {
      {"auto", io::text_format::plain}, {"plain", io::text_format::plain}, {"bytes", io::text_format::bytes}};
  std::vector<std::string> names;
  for (const auto& [known, format] : formats) {
    if (name == known) return format;
    names.emplace_back(known);
  }
  throw io::error("--text-format", "unknown value '" + name + "'" + io::did_you_mean(name, names));
}

/// One after the other, as they are. Throws io::error for JSON, unless a format other than auto is given.
inline std::string read_texts(const std::vector<std::string>& paths, const std::string& format) {
  const io::text_format kind = text_format_named(format);
  if (paths.empty()) throw io::error("--data", "no text given");
  std::string text;
  for (const std::string& path : paths) {
    const std::string part = io::read_text(path, kind);
    if (format == "auto" && begins_as_records(part, path)) {
      throw io::error(path,
                      "JSON lines of records, which train and eval tokenize themselves; --text-format plain takes "
                      "the file as text");
    }
    text += part;
  }
  return text;
}

}  // namespace rotoscale::program
