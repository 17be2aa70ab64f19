// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Which options mean something for what the program is asked to do; the others are refused, not ignored.
#pragma once

#include <string>
#include <vector>

#include "case.hpp"
#include "quantizer/dump.hpp"

namespace rotoscale::validate {

/// Long names of the options on the command line, "--alpha".
using option_names = std::vector<std::string>;

/// What becomes of the tensors.
enum class verb : char { compare = 'c', identify = 'i', fit = 'f', make = 'm' };

/// Throws io::error that names the first option given that has no meaning for a GEMM, or for a quantizer's dump.
void refuse_idle_options(const option_names& given, bool for_quantizer, verb v);

/// Throws io::error that names the first option, or tensor of the dump, that the quantizer's format, rotation or
/// rounding leaves without meaning. A case that is made has a dump without tensors.
void refuse_idle_options(const option_names& given, const quantizer& q, const quantizer_dump& dump, verb v);

/// The same of a GEMM's tensors and of how its kernel uses the unit.
void refuse_idle_options(const option_names& given, const gemm_case& x, const gemm_options& g, verb v);

}  // namespace rotoscale::validate
