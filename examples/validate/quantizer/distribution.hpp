// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Test of stochastic rounding with unknown random words: is the share of roundings away from zero as expected?
#pragma once

#include "rotoscale/config.hpp"

namespace rotoscale::validate {

struct distribution {
  index_t rounded = 0;     ///< elements that are between two numbers of the format
  double z[9] = {};        ///< deviation in standard errors: all elements, then by eighth of the fraction
  double largest() const;  ///< largest magnitude of a deviation
  bool accepted() const { return largest() <= 5.0; }
};

/// Counts how often elements were rounded away from zero, and the expected number.
class rounding_tally {
 public:
  /// Adds an element. `fraction` is its distance from the neighbour toward zero, as a share of the step.
  void add(double fraction, bool went_away);
  /// Adds the counts of other elements.
  void add(const rounding_tally& others);
  distribution result() const;

 private:
  double expected_[9] = {}, variance_[9] = {};  ///< all elements, then by eighth of the fraction
  index_t away_[9] = {}, rounded_ = 0;
};

}  // namespace rotoscale::validate
