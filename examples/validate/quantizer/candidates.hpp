// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The ways in which shipped quantizers differ, the order of bytes left out, and how one is named beside a preset.
#pragma once

#include "check.hpp"

namespace rotoscale::validate {

/// The amax of a dump's source as candidates see it, each computed once.
class seen_amax {
 public:
  seen_amax(const quantizer_dump& dump, thread_pool& pool) : dump_(dump), pool_(pool) {}
  /// After the candidate's rounding of the source and, if `rotated`, after its rotation of runs along `axis`.
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

/// Every combination of rotation, scale rule, policy, source rounding and factor with one of `roundings` that is
/// defined for the dump's blocks.
std::vector<quantizer> arithmetics(const quantizer& base, const fixed_fields& fixed, const quantizer_dump& dump,
                                   const std::vector<rounding>& roundings, seen_amax& amax);

/// Text and number of changes from the nearest of `presets`.
dump_explanation describe(const std::vector<quantizer>& presets, const quantizer& q, const quantizer_dump& dump);

}  // namespace rotoscale::validate
