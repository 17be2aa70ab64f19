// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// nearest_name and did_you_mean: the suggestions of error messages.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "rotoscale/version.hpp"

namespace rotoscale {

namespace detail {

/// Twice the edit distance (insertion, deletion, substitution, swap of neighbours). A change of case costs half an
/// edit, so "MXFP4" is nearer to "mxfp4" than to "MXFP8".
inline int edit_cost(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = 2 * static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = 2 * static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int change = a[i - 1] == b[j - 1] ? 0 : lower(a[i - 1]) == lower(b[j - 1]) ? 1 : 2;
      row[j] = std::min({above[j] + 2, row[j - 1] + 2, above[j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 2);
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

}  // namespace detail

/// The valid name closest to `wanted`, the first if several are; empty if `valid` is empty.
inline std::string nearest_name(std::string_view wanted, const std::vector<std::string>& valid) {
  // The cost is quadratic, and a key from a hostile file can be megabytes long.
  wanted = wanted.substr(0, 256);
  const std::string* best = nullptr;
  int best_cost = 0;
  for (const std::string& name : valid) {
    const int cost = detail::edit_cost(wanted, name);
    if (best == nullptr || cost < best_cost) {
      best = &name;
      best_cost = cost;
    }
  }
  return best == nullptr ? std::string() : *best;
}

/// End of a message about an unknown name. "; did you mean 'NAME'?" if at most a third of the characters (or one)
/// differ. Else "; it is none of A, B" for a short list, or "".
inline std::string did_you_mean(std::string_view wanted, const std::vector<std::string>& valid) {
  const auto lower = [](std::string_view text) {
    std::string out(text.substr(0, 256));
    for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
  };
  const std::string nearest = nearest_name(wanted, valid);
  const std::size_t length = std::max(wanted.size(), nearest.size());
  const auto limit = static_cast<int>(std::max<std::size_t>(2, 2 * std::min<std::size_t>(length, 256) / 3));
  if (!nearest.empty() && detail::edit_cost(lower(wanted), lower(nearest)) <= limit)
    return "; did you mean '" + nearest + "'?";
  std::string all;
  for (const std::string& name : valid) all += (all.empty() ? "; it is none of " : ", ") + name;
  return all.size() <= 200 ? all : "";
}

}  // namespace rotoscale
