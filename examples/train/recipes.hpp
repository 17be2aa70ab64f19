// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// `mini-llama recipes`: the presets by name.
#pragma once

#include <iosfwd>

namespace rotoscale::program {

/// Writes a line for each recipe (formats of its GEMMs, a phrase) and for each schedule (its phases). Returns the exit
/// code.
int list_recipes(std::ostream& out);

}  // namespace rotoscale::program
