// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Options that have no effect on the requested task are refused, not ignored.
#pragma once

#include <string>
#include <vector>

#include "case.hpp"
#include "quantizer/dump.hpp"

namespace rotoscale::validate {

/// Long names of the given options, for example "--alpha".
using option_names = std::vector<std::string>;

/// The task.
enum class verb : char { compare = 'c', identify = 'i', fit = 'f', make = 'm' };

/// Throws io::error naming the first given option that has no effect on a GEMM, or on a quantizer's dump.
void refuse_idle_options(const option_names& given, bool for_quantizer, verb v);

/// Throws io::error naming the first option or tensor that has no effect with the quantizer's format, rotation or
/// rounding. For verb::make the dump has no tensors.
void refuse_idle_options(const option_names& given, const quantizer& q, const quantizer_dump& dump, verb v);

/// The same for a GEMM's tensors and the kernel's use of its unit.
void refuse_idle_options(const option_names& given, const gemm_case& x, const gemm_options& g, verb v);

}  // namespace rotoscale::validate
