// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The text of roff sources (manual pages with the macros man and mdoc), for training. Any bytes give some text.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "rotoscale/io/markup.hpp"

namespace rotoscale::io {

namespace detail {

struct roff_character {
  std::string_view name;
  std::string_view text;
};

/// groff_char(7), those that manual pages use, and the strings that pod2man defines (Aq, L", R", --).
inline constexpr roff_character roff_characters[] = {
    {"aq", "'"},       {"dq", "\""},     {"em", "\u2014"}, {"en", "\u2013"}, {"bu", "\u2022"}, {"co", "\u00A9"},
    {"rg", "\u00AE"},  {"lq", "\u201C"}, {"rq", "\u201D"}, {"oq", "\u2018"}, {"cq", "\u2019"}, {"ha", "^"},
    {"ti", "~"},       {"rs", "\\"},     {"hy", "-"},      {"mi", "-"},      {"ga", "`"},      {"tm", "\u2122"},
    {"<=", "\u2264"},  {">=", "\u2265"}, {"->", "\u2192"}, {"<-", "\u2190"}, {"mu", "\u00D7"}, {"+-", "\u00B1"},
    {"de", "\u00B0"},  {"sh", "#"},      {"at", "@"},      {"ba", "|"},      {"Aq", "'"},      {"L\"", "\u201C"},
    {"R\"", "\u201D"}, {"--", "--"}};

class roff_stripper {
 public:
  std::string strip(std::string_view roff) {
    while (!roff.empty()) {
      const std::size_t end = roff.find('\n');
      take_line(roff.substr(0, end));
      roff.remove_prefix(end == roff.npos ? roff.size() : end + 1);
    }
    while (!out_.empty() && out_.back() == '\n') out_.pop_back();
    if (!out_.empty()) out_ += '\n';
    return std::move(out_);
  }

 private:
  void take_line(std::string_view line) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!waiting_for_.empty()) {  // within a definition or a part that is left out
      const std::size_t end = line.find(waiting_for_);
      if (waiting_for_ == ".." ? end == 0 : end != line.npos) waiting_for_ = {};
      return;
    }
    if (line.starts_with('.') || line.starts_with('\'')) return take_request(line.substr(1));
    append_text(line);
    out_ += '\n';
  }

  void take_request(std::string_view line) {
    static constexpr std::array<std::string_view, 13> breaks = {"PP", "P",  "LP", "Pp", "TP", "TQ", "HP",
                                                                "sp", "bp", "IP", "It", "Bl", "Sp"};
    static constexpr std::array<std::string_view, 4> headings = {"SH", "SS", "Sh", "Ss"};
    static constexpr std::array<std::string_view, 17> silent = {"TH", "Dd", "Dt", "Os", "IX", "RS", "RE", "EX", "EE",
                                                                "UE", "ME", "El", "Bl", "Bd", "Ed", "Vb", "Ve"};
    static constexpr std::array<std::string_view, 6> joined = {"BR", "RB", "BI", "IB", "IR", "RI"};
    while (!line.empty() && is_blank(line.front())) line.remove_prefix(1);
    std::size_t length = 0;
    while (length < line.size() && (is_letter(line[length]) || is_digit(line[length]))) ++length;
    const std::string_view name = line.substr(0, length);
    std::string_view rest = line.substr(length);
    if (is_one_of(name, breaks) || is_one_of(name, headings)) break_paragraph();
    if (name == "de" || name == "am" || name == "ig") {
      waiting_for_ = "..";
    } else if (name == "if" || name == "ie" || name == "el") {
      if (rest.find("\\{") != rest.npos && rest.find("\\}") == rest.npos) waiting_for_ = "\\}";
    } else if (name.empty() || lower_case(name[0]) == name[0] || is_one_of(name, silent)) {
      return;  // requests of roff itself are in lower case
    } else {
      append_arguments(rest, !is_one_of(name, joined), name == "IP" ? 1 : 0);
    }
  }

  /// What a macro prints: its arguments, quotes removed, `most` of them if not 0.
  void append_arguments(std::string_view rest, bool spaced, int most) {
    bool any = false;
    for (int count = 0; most == 0 || count < most; ++count) {
      while (!rest.empty() && is_blank(rest.front())) rest.remove_prefix(1);
      if (rest.empty() || rest.starts_with("\\\"")) break;
      std::size_t end = 0;
      if (rest.front() == '"') {
        rest.remove_prefix(1);
        end = std::min(rest.find('"'), rest.size());
      } else {
        while (end < rest.size() && !is_blank(rest[end])) end += rest[end] == '\\' && end + 1 < rest.size() ? 2 : 1;
      }
      if (any && spaced) out_ += ' ';
      append_text(rest.substr(0, end));
      any = true;
      rest.remove_prefix(std::min(rest.size(), end + (end < rest.size() && rest[end] == '"' ? 1 : 0)));
    }
    if (any) out_ += '\n';
  }

  void break_paragraph() {
    if (!out_.empty() && !out_.ends_with("\n\n")) out_ += out_.ends_with('\n') ? "\n" : "\n\n";
  }

  void append_text(std::string_view text) {
    while (!text.empty()) {
      const std::size_t escape = std::min(text.find('\\'), text.size());
      out_ += text.substr(0, escape);
      text.remove_prefix(escape);
      if (!text.empty()) take_escape(text);
    }
  }

  /// Takes an escape, which begins with a backslash, from the front.
  void take_escape(std::string_view& text) {
    const char kind = text.size() > 1 ? text[1] : '\0';
    text.remove_prefix(std::min<std::size_t>(2, text.size()));
    switch (kind) {
      case '-': out_ += '-'; break;
      case 'e':
      case '\\': out_ += '\\'; break;
      case '\'':
      case '`':
      case '.': out_ += kind; break;
      case ' ':
      case '~':
      case '0': out_ += ' '; break;
      case '"':
      case '#': text = {}; break;  // a comment
      case '(': append_character(take(text, 2)); break;
      case '[': append_character(take_until(text, ']')); break;
      case '*': append_character(take_name(text, false)); break;
      case 'f':
      case 'n':
      case 'k':
      case 'm':
      case 'M':
      case 'F':
      case 'g':
      case 'Y':
      case 's': take_name(text, kind == 's'); break;
      case 'h':
      case 'v':
      case 'w':
      case 'o':
      case 'l':
      case 'L':
      case 'D':
      case 'N':
      case 'A':
      case 'B':
      case 'X':
      case 'Z':
      case 'b':
      case 'x':
        if (!text.empty()) {
          const char quote = text.front();
          text.remove_prefix(1);
          take_until(text, quote);
        }
        break;
      default: break;  // \& \| \^ \c \/ \, \: \% print nothing
    }
  }

  /// The name after an escape: one character, (xx or [xxx]; a size may have a sign and two digits.
  static std::string_view take_name(std::string_view& text, bool is_size) {
    if (is_size && (text.starts_with('+') || text.starts_with('-'))) text.remove_prefix(1);
    if (text.starts_with('[')) {
      text.remove_prefix(1);
      return take_until(text, ']');
    }
    if (text.starts_with('(')) return take(text, 3).substr(1);
    const bool two = is_size && text.size() > 1 && text[0] >= '1' && text[0] <= '3' && is_digit(text[1]);
    return take(text, two ? 2 : 1);
  }

  static std::string_view take(std::string_view& text, std::size_t count) {
    const std::string_view taken = text.substr(0, count);
    text.remove_prefix(taken.size());
    return taken;
  }

  static std::string_view take_until(std::string_view& text, char end) {
    const std::string_view taken = take(text, std::min(text.find(end), text.size()));
    if (!text.empty()) text.remove_prefix(1);
    return taken;
  }

  void append_character(std::string_view name) {
    for (const roff_character& c : roff_characters) {
      if (c.name == name) out_ += c.text;
    }
  }

  std::string out_;
  std::string_view waiting_for_;  ///< what ends the part that is left out; empty: none is
};

}  // namespace detail

/// The text of a roff source: arguments of the macros that print them, no requests, definitions, fonts and comments.
inline std::string strip_roff(std::string_view roff) { return detail::roff_stripper().strip(roff); }

/// Does it look like a manual page's source?
inline bool looks_like_roff(std::string_view text) {
  for (const std::string_view beginning : {".\\\"", "'\\\"", ".TH ", ".Dd ", ".so ", ".de ", ".if ", ".ig\n"}) {
    if (text.starts_with(beginning)) return true;
  }
  return false;
}

}  // namespace rotoscale::io
