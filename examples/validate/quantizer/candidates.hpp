// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Candidates for --identify: combinations of the details in which shipped quantizers differ (except byte order), and
// their names relative to presets.
#pragma once

#include "check.hpp"

namespace rotoscale::validate {

/// amax of a dump's source as candidates see it; each is computed once.
class seen_amax {
 public:
  seen_amax(const quantizer_dump& dump, thread_pool& pool) : dump_(dump), pool_(pool) {}
  /// amax after the candidate's source rounding and, if `rotated`, after its rotation of runs along `axis`.
  float operator()(const quantizer& q, bool rotated, block_axis axis);

 private:
  struct known_amax {
    block_options how;
    block_axis axis;
    float amax;
  };
  const quantizer_dump& dump_;
  thread_pool& pool_;
  std::vector<known_amax> known_;
};

/// Every combination of rotation, scale rule, policy, source rounding, factor and one of `roundings` that is valid for
/// the dump's blocks.
std::vector<quantizer> arithmetics(const quantizer& base, const fixed_fields& fixed, const quantizer_dump& dump,
                                   const std::vector<rounding>& roundings, seen_amax& amax);

/// Names `q` by the nearest of `presets`: text and number of changes.
dump_explanation describe(const std::vector<quantizer>& presets, const quantizer& q, const quantizer_dump& dump);

}  // namespace rotoscale::validate
