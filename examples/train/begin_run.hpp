// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The state of a new run, from a command line.
#pragma once

#include <optional>

#include "arguments.hpp"

namespace rotoscale::program {

/// Creates the state of a new run. `given`: does the command need the files? A plan needs only the shape.
trainer_state begin(const arguments& a, given_files given);

/// Returns the checked recipe of the synthetic warm-up of a new run.
std::optional<nn::recipe> find_synthetic_recipe(const arguments& a, const trainer_state& state);

/// Applies and checks the command line's statistics options.
void settle_statistics(arguments& a);

}  // namespace rotoscale::program
