// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Quantizers by name, from presets and command-line options.
#pragma once

#include <utility>

#include "command.hpp"
#include "dump.hpp"

namespace rotoscale::validate {

/// The preset `name` with `base`'s blocks, placements and factor: a preset of block.hpp, or "fp8" (one factor per
/// tensor). Throws io::error naming `flag` and the nearest name.
quantizer find_preset(const std::string& name, const quantizer& base, const char* flag = "--quantizer");

/// All presets for `base`'s format.
std::vector<quantizer> all_presets(const quantizer& base);

/// The preset of the options with the fields that they set. `factor` is used unless they set one. Throws io::error
/// naming the option.
quantizer quantizer_of(const quantizer_options& o, block_format blocks, float factor = 1.0f);

/// Throws io::error naming the option if the blocks or the dump's extents do not allow a rotation, policy or factor.
void check_defined(const quantizer& q, const quantizer_dump& dump);

/// Loads the dump and the quantizer. Its factor comes from the option, the file, or the source. Throws io::error if the
/// file is not a dump or the options do not fit it.
std::pair<quantizer_dump, quantizer> load_case(const quantizer_options& o, const io::safetensors_file& file,
                                               thread_pool& pool);

/// Block format by its name or, for MX, by its element's. fp8_e4m3 and fp8_e5m2 have length 0. Throws io::error naming
/// --format.
block_format find_blocks(const std::string& name, int rows);
/// Options that select these blocks: "--format mxfp4", with --block-rows for square blocks.
std::string format_options(block_format blocks);

/// Text of --list-quantizers, a line per preset.
std::string list_presets();

}  // namespace rotoscale::validate
