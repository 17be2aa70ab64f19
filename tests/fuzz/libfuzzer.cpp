// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// libFuzzer's entry point: runs the target named by ROTOSCALE_FUZZ, or the program's only target.
#include <cstdio>
#include <cstdlib>

#include "target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const rotoscale::fuzz::target* const chosen = [] {
    const char* const name = std::getenv("ROTOSCALE_FUZZ");
    const auto* const found = rotoscale::fuzz::target::find(name == nullptr ? "" : name);
    if (found == nullptr) {
      std::fprintf(stderr, "ROTOSCALE_FUZZ names no target of this program\n");
      std::exit(2);
    }
    return found;
  }();
  (*chosen)(data, size);
  return 0;
}
