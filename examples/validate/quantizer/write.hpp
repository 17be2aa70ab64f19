// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Writes the tensors of a dump, under the names that load_dump reads.
#pragma once

#include "dump.hpp"

namespace rotoscale::validate {

/// Adds the source "x" in its storage type.
void add_source(io::safetensors_writer& writer, const quantizer_dump& dump);

/// Adds the codes and scales of one orientation, in the quantizer's placements. Throws io::error if a placement is not
/// defined for the extents.
void add_side(io::safetensors_writer& writer, const quantizer& q, const dump_side& side, const dense_side& result);

}  // namespace rotoscale::validate
