// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Arguments that several functions of the module take.
#pragma once

#include "arrays.hpp"

namespace rotoscale::python {

/// The block format of that name, with a scale per row or per square.
block_format blocks_named(const std::string& name, bool square);

/// Bit i % 8 of signs[i / 8] negates element i of a run.
rotation make_rotation(int points, const nb::bytes& signs);

}  // namespace rotoscale::python
