// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding whose words nobody knows: does it go up as often as it should?
#pragma once

#include "rotoscale/config.hpp"

namespace rotoscale::validate {

struct distribution {
  index_t rounded = 0;     ///< elements between two numbers of the format
  double z[9] = {};        ///< deviation in standard errors: overall, then by the fraction's eighth
  double largest() const;  ///< deviation, of either sign
  bool accepted() const { return largest() <= 5.0; }
};

/// Counts how often elements went away from zero, and how often they should have.
class rounding_tally {
 public:
  /// Of an element that lies that far between its neighbours.
  void add(double fraction, bool went_away);
  /// Those of other elements.
  void add(const rounding_tally& others);
  distribution result() const;

 private:
  double expected_[9] = {}, variance_[9] = {};  ///< of all, then by the fraction's eighth
  index_t away_[9] = {}, rounded_ = 0;
};

}  // namespace rotoscale::validate
