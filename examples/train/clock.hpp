// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Elapsed time, and the time of day.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>

#include "format_text.hpp"

namespace rotoscale::program {

/// Seconds since some moment.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Of the wall clock.
inline std::int64_t milliseconds_since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

/// The time of day in UTC, "2026-11-27T20:15:00.042Z".
inline std::string time_of_day() {
  const std::int64_t now = milliseconds_since_1970();
  const auto seconds = static_cast<std::time_t>(now / 1000);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[48];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  return text + format_text(".%03dZ", static_cast<int>(now % 1000));
}

}  // namespace rotoscale::program
