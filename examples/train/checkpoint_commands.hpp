// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Commands on a checkpoint: held-out loss, text.
#pragma once

#include "arguments.hpp"

namespace rotoscale::program {

/// Prints one line of JSON; returns the exit code.
int evaluate_checkpoint(const arguments& a);
/// Prints the prompt and its continuation. Returns the exit code.
int sample_checkpoint(const arguments& a);

}  // namespace rotoscale::program
