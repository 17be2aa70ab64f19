// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The text of HTML and roff sources, for training: what a reader sees, roughly, and none of the markup. Any bytes give
// some text; neither form is validated.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "rotoscale/version.hpp"

namespace rotoscale::io {

namespace detail {

constexpr char lower_case(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
constexpr bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f'; }
constexpr bool is_letter(char c) { return lower_case(c) >= 'a' && lower_case(c) <= 'z'; }
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Does `text` begin with `word`, given in lower case, whatever the case of its letters?
inline bool begins_with(std::string_view text, std::string_view word) {
  return text.size() >= word.size() &&
         std::equal(word.begin(), word.end(), text.begin(), [](char a, char b) { return a == lower_case(b); });
}

template <std::size_t N>
bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

inline void append_utf8(std::string& out, std::uint32_t code) {
  const bool valid = code != 0 && code < 0x110000 && (code < 0xD800 || code > 0xDFFF);
  if (!valid) code = 0xFFFD;
  const auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xE0 | code >> 12);
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 63));
    }
    put(0x80 | (code >> 6 & 63));
  }
  put(0x80 | (code & 63));
}

struct named_character {
  std::string_view name;
  std::uint32_t code;
};

/// The named characters that English text uses; others stay as they are written.
inline constexpr named_character html_characters[] = {
    {"amp", '&'},      {"lt", '<'},       {"gt", '>'},        {"quot", '"'},     {"apos", '\''},    {"nbsp", ' '},
    {"copy", 0xA9},    {"reg", 0xAE},     {"sect", 0xA7},     {"para", 0xB6},    {"middot", 0xB7},  {"deg", 0xB0},
    {"times", 0xD7},   {"ndash", 0x2013}, {"mdash", 0x2014},  {"lsquo", 0x2018}, {"rsquo", 0x2019}, {"ldquo", 0x201C},
    {"rdquo", 0x201D}, {"bull", 0x2022},  {"hellip", 0x2026}, {"trade", 0x2122}, {"larr", 0x2190},  {"rarr", 0x2192},
    {"laquo", 0xAB},   {"raquo", 0xBB},   {"eacute", 0xE9},   {"egrave", 0xE8},  {"agrave", 0xE0},  {"ccedil", 0xE7},
    {"auml", 0xE4},    {"ouml", 0xF6},    {"uuml", 0xFC},     {"szlig", 0xDF},   {"ntilde", 0xF1},  {"pound", 0xA3},
    {"cent", 0xA2},    {"yen", 0xA5},     {"euro", 0x20AC},   {"frac12", 0xBD},  {"le", 0x2264},    {"ge", 0x2265},
    {"ne", 0x2260},    {"minus", 0x2212}, {"shy", 0xAD},      {"iexcl", 0xA1},   {"iquest", 0xBF},  {"plusmn", 0xB1}};

/// Takes a character reference from the front of `text`, which begins with '&', and appends what it means.
inline void take_reference(std::string_view& text, std::string& out) {
  const std::size_t end = text.substr(0, 32).find(';');
  std::string_view name = text.substr(1, end == text.npos ? 0 : end - 1);
  std::uint32_t code = 0;
  bool known = false;
  if (name.starts_with('#')) {
    const bool hex = name.size() > 1 && lower_case(name[1]) == 'x';
    name.remove_prefix(hex ? 2 : 1);
    const auto read = std::from_chars(name.data(), name.data() + name.size(), code, hex ? 16 : 10);
    known = !name.empty() && read.ptr == name.data() + name.size();
    if (read.ec == std::errc::result_out_of_range) code = 0;
  } else {
    const auto* found = std::find_if(std::begin(html_characters), std::end(html_characters),
                                     [&](const named_character& c) { return c.name == name; });
    known = found != std::end(html_characters);
    if (known) code = found->code;
  }
  if (known) {
    append_utf8(out, code == 0xA0 ? ' ' : code);
    text.remove_prefix(end + 1);
  } else {
    out += '&';
    text.remove_prefix(1);
  }
}

/// HTML as a stream of tags and text between them.
class html_stripper {
 public:
  std::string strip(std::string_view html) {
    while (!html.empty()) {
      if (html.front() == '<' && html.size() > 1 &&
          (is_letter(html[1]) || html[1] == '/' || html[1] == '!' || html[1] == '?')) {
        take_tag(html);
      } else if (html.front() == '&') {
        flush_space();
        take_reference(html, out_);
      } else {
        take_character(html.front());
        html.remove_prefix(1);
      }
    }
    while (!out_.empty() && out_.back() == '\n') out_.pop_back();
    if (!out_.empty()) out_ += '\n';
    return std::move(out_);
  }

 private:
  void take_character(char c) {
    if (verbatim_ == 0 && is_blank(c)) {
      space_ = true;
      return;
    }
    flush_space();
    out_ += c;
  }

  /// Blanks between words become one space, at a line's beginning none.
  void flush_space() {
    if (space_ && !out_.empty() && out_.back() != '\n') out_ += ' ';
    space_ = false;
  }

  void break_line(std::size_t newlines) {
    space_ = false;
    if (out_.empty()) return;
    std::size_t there = 0;
    while (there < newlines && there < out_.size() && out_[out_.size() - 1 - there] == '\n') ++there;
    out_.append(newlines - there, '\n');
  }

  void take_tag(std::string_view& html) {
    static constexpr std::array<std::string_view, 4> hidden = {"script", "style", "head", "template"};
    static constexpr std::array<std::string_view, 22> blocks = {
        "p",   "h1", "h2",  "h3",      "h4",      "h5",     "h6",     "ul",         "ol",  "dl",   "table",
        "pre", "hr", "div", "section", "article", "header", "footer", "blockquote", "nav", "main", "body"};
    static constexpr std::array<std::string_view, 6> lines = {"br", "li", "dt", "dd", "tr", "caption"};
    if (html.starts_with("<!--")) return skip_past(html, "-->");
    std::string name;
    const bool closing = html[1] == '/';
    for (std::size_t i = closing ? 2 : 1; i < html.size() && (is_letter(html[i]) || is_digit(html[i])); ++i) {
      name += lower_case(html[i]);
    }
    skip_tag(html);
    if (!closing && is_one_of(name, hidden)) return skip_past_closing(html, name);
    if (is_one_of(name, blocks)) break_line(2);
    if (is_one_of(name, lines)) break_line(1);
    if (name == "td" || name == "th") space_ = true;
    if (name == "pre") verbatim_ = closing ? 0 : 1;
  }

  static void skip_past(std::string_view& html, std::string_view what) {
    const std::size_t end = html.find(what);
    html.remove_prefix(end == html.npos ? html.size() : end + what.size());
  }

  /// To behind the tag's '>', which may stand in a quoted attribute as well.
  static void skip_tag(std::string_view& html) {
    char quote = 0;
    for (std::size_t i = 1; i < html.size(); ++i) {
      const char c = html[i];
      if (quote != 0) {
        if (c == quote) quote = 0;
      } else if (c == '"' || c == '\'') {
        quote = html[i - 1] == '=' ? c : 0;
      } else if (c == '>') {
        return html.remove_prefix(i + 1);
      }
    }
    html = {};
  }

  static void skip_past_closing(std::string_view& html, const std::string& name) {
    for (std::size_t at = html.find("</"); at != html.npos; at = html.find("</", at + 2)) {
      if (!begins_with(html.substr(at + 2), name)) continue;
      html.remove_prefix(at);
      return skip_tag(html);
    }
    html = {};
  }

  std::string out_;
  bool space_ = false;
  int verbatim_ = 0;
};

}  // namespace detail

/// The text of an HTML page: no tags, scripts, styles or head; blanks joined but in `pre` elements; blocks on lines of
/// their own; character references decoded (numbers, and the names that English text uses).
inline std::string strip_html(std::string_view html) { return detail::html_stripper().strip(html); }

/// Does it look like an HTML page?
inline bool looks_like_html(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  while (!text.empty() && detail::is_blank(text.front())) text.remove_prefix(1);
  if (detail::begins_with(text, "<?xml")) {
    const std::string_view beginning = text.substr(0, 1024);
    return beginning.find("<html") != beginning.npos;
  }
  return detail::begins_with(text, "<!doctype html") || detail::begins_with(text, "<html");
}

}  // namespace rotoscale::io
