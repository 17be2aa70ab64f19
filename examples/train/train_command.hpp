// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The commands train and plan.
#pragma once

#include "arguments.hpp"

namespace rotoscale::program {

/// Trains, or continues a run. Returns an exit code.
int train(int argc, char** argv, arguments& a);

/// Prints the memory of train in the words of its log. Nothing is allocated.
int plan(arguments& a);

}  // namespace rotoscale::program
