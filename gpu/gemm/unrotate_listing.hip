// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The kernel of unrotate.hpp for AMD, compiled by clang without an SDK. tests/gpu/amd_listings.py reads its
// disassembly.
#include "gpu/gemm/unrotate.hpp"
