// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Text in the formats of printf.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

namespace rotoscale::program {

/// The text that printf would write, at most 255 bytes of it.
[[gnu::format(printf, 1, 2)]] inline std::string format_text(const char* format, ...) {
  char text[256];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

}  // namespace rotoscale::program
