// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A transport's reduce_scatter against sums of ascending ranks, whose order shows in their bits.
#pragma once

#include <doctest/doctest.h>

#include <vector>

#include "rotoscale/nn/communicator.hpp"

namespace rotoscale::nn {

/// All ranks call it.
inline void check_reduce_scatter(communicator& rank) {
  const auto value = [](int r, index_t i) {
    const float values[] = {1e8f, static_cast<float>(i), -1e8f, 0.5f};
    return values[r % 4];
  };
  std::vector<index_t> even(1, 0);    // lengths are equal, and the last part has one element more
  std::vector<index_t> ragged(1, 0);  // all lengths differ
  for (int r = 0; r < rank.size(); ++r) {
    even.push_back(even.back() + 3 + (r + 1 == rank.size() ? 1 : 0));
    ragged.push_back(ragged.back() + 2 * r);
  }
  for (const std::vector<index_t>& cuts : {even, ragged}) {
    std::vector<float> x;
    for (index_t i = 0; i < cuts.back(); ++i) x.push_back(value(rank.rank(), i));
    rank.reduce_scatter({}, x.data(), cuts);
    const auto own = static_cast<std::size_t>(rank.rank());
    for (index_t i = 0; i < cuts.back(); ++i) {
      const bool is_own = i >= cuts[own] && i < cuts[own + 1];
      float want = value(is_own ? 0 : rank.rank(), i);
      for (int r = 1; is_own && r < rank.size(); ++r) want += value(r, i);
      CHECK(x[static_cast<std::size_t>(i)] == want);
    }
  }
}

}  // namespace rotoscale::nn
