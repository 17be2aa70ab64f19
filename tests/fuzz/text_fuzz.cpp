// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Fuzz target for text: gzip files and UTF-8. Any bytes give text or io::error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "rotoscale/io/text.hpp"
#include "target.hpp"

namespace text_fuzz {

using namespace rotoscale;
using fuzz::require;

void check_gzip(std::string_view text) {
  std::string out;
  try {
    io::detail::inflater decoder("input");
    while (!text.empty()) {  // in chunks of 7, so that the state crosses chunks
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
  check_gzip(text);
  check_utf8(text);
}

const rotoscale::fuzz::target here("text", one_input);

}  // namespace text_fuzz
