// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The kernel that undoes rotations for AMD, for clang without an SDK: what tests/gpu/amd_listings.py reads the
// disassembly of.
#include "gpu/gemm/unrotate.hpp"
