// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "distribution.hpp"

#include <algorithm>
#include <cmath>

namespace rotoscale::validate {

double distribution::largest() const {
  double most = 0;
  for (const double d : z) most = std::max(most, std::abs(d));
  return most;
}

void rounding_tally::add(double fraction, bool went_away) {
  ++rounded_;
  for (const int bin : {0, 1 + std::min(7, static_cast<int>(fraction * 8))}) {
    expected_[bin] += fraction;
    variance_[bin] += fraction * (1 - fraction);
    away_[bin] += went_away;
  }
}

void rounding_tally::add(const rounding_tally& others) {
  rounded_ += others.rounded_;
  for (int bin = 0; bin < 9; ++bin) {
    expected_[bin] += others.expected_[bin];
    variance_[bin] += others.variance_[bin];
    away_[bin] += others.away_[bin];
  }
}

distribution rounding_tally::result() const {
  distribution d;
  d.rounded = rounded_;
  for (int bin = 0; bin < 9; ++bin) {
    if (variance_[bin] > 0) d.z[bin] = (static_cast<double>(away_[bin]) - expected_[bin]) / std::sqrt(variance_[bin]);
  }
  return d;
}

}  // namespace rotoscale::validate
