// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Distance between two codes of a format.
#pragma once

#include <cstdint>

#include "rotoscale/format.hpp"

namespace rotoscale::validate {

/// Distance of two codes in the order of their values; -1 if either is NaN or Inf.
inline std::int64_t code_distance(const format& f, std::uint64_t x, std::uint64_t y) {
  const auto special = [&](std::uint64_t c) { return f.is_nan(c) || f.is_infinity(c); };
  const auto ordered = [&](std::uint64_t c) {
    const auto magnitude = static_cast<std::int64_t>(f.magnitude(c));
    return f.is_negative(c) ? -magnitude : magnitude;
  };
  if (special(x) || special(y)) return -1;
  const std::int64_t apart = ordered(x) - ordered(y);
  return apart < 0 ? -apart : apart;
}

}  // namespace rotoscale::validate
