// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The ways in which shipped quantizers differ, the order of bytes left out, and how one is named beside a preset.
#pragma once

#include "check.hpp"

namespace rotoscale::validate {

/// Every combination of rotation, scale rule, policy, source rounding and factor with one of `roundings` that is
/// defined for the dump's blocks.
std::vector<quantizer> arithmetics(const quantizer& base, const quantizer_dump& dump,
                                   const std::vector<rounding>& roundings);

/// Text and number of changes from the nearest of `presets`.
dump_explanation describe(const std::vector<quantizer>& presets, const quantizer& q, const quantizer_dump& dump);

}  // namespace rotoscale::validate
