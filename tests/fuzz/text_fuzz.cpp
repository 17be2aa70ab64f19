// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Fuzz target over what is made of text: HTML and roff without their markup, gzip files, UTF-8. Any bytes give some
// text of bounded length, or io::error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "rotoscale/io/text.hpp"
#include "target.hpp"

namespace text_fuzz {

namespace {

using namespace rotoscale;
using fuzz::require;

void check_markup(std::string_view text) {
  const std::string html = io::strip_html(text), roff = io::strip_roff(text);
  // A character reference of 4 bytes gives at most 4; a roff character of two gives at most 3.
  require(html.size() <= 2 * text.size() + 2 && roff.size() <= 2 * text.size() + 2);
  require(html.empty() || html.back() == '\n');
  require(roff.empty() || roff.back() == '\n');
  static_cast<void>(io::looks_like_html(text) || io::looks_like_roff(text));
}

void check_gzip(std::string_view text) {
  std::string out;
  try {
    io::detail::inflater decoder("input");
    while (!text.empty()) {  // in chunks of 7: states between them
      decoder.feed(text.substr(0, 7), out);
      text.remove_prefix(std::min<std::size_t>(7, text.size()));
    }
    decoder.finish();
  } catch (const io::error&) {
  }
}

void check_utf8(std::string_view text) {
  std::string shown = io::printable(text, text.size());
  for (std::string_view rest = shown; !rest.empty();) {
    const std::size_t length = io::utf8_length(rest);
    require(length > 0 && !io::begins_with_control(rest));
    rest.remove_prefix(length);
  }
}

void one_input(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_markup(text);
  check_gzip(text);
  check_utf8(text);
}

const rotoscale::fuzz::target here("text", one_input);

}  // namespace

}  // namespace text_fuzz
