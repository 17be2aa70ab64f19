// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Quantizers by name.
#pragma once

#include <utility>

#include "command.hpp"
#include "dump.hpp"

namespace rotoscale::validate {

/// "fp8", one factor a tensor, or a preset of the library (block.hpp) for `base`'s blocks, placements and factor.
/// Throws io::error naming --quantizer and the nearest name.
quantizer find_preset(const std::string& name, const quantizer& base);

/// All that `base`'s format may have been made by.
std::vector<quantizer> all_presets(const quantizer& base);

/// The preset that the options name with the fields that they set; `factor` is the tensor's unless they give one.
/// Throws io::error naming the option.
quantizer quantizer_of(const quantizer_options& o, block_format blocks, float factor = 1.0f);

/// Throws io::error naming the option for a rotation, policy or factor that the blocks, or the dump's extents, do not
/// allow.
void check_defined(const quantizer& q, const quantizer_dump& dump);

/// The dump, and the quantizer with its factor: the option's, the file's, or the source's own. Throws io::error for
/// what is no dump, and for options that do not fit it.
std::pair<quantizer_dump, quantizer> load_case(const quantizer_options& o, const io::safetensors_file& file,
                                               thread_pool& pool);

/// Blocks by name, or by that of their elements (MX); fp8_e4m3 and fp8_e5m2 have length 0. Throws io::error naming
/// --format.
block_format find_blocks(const std::string& name, int rows);
/// The options that say these blocks: "--format mxfp4", also --block-rows where blocks are squares.
std::string format_options(block_format blocks);

/// A line each, for --list-quantizers.
std::string list_presets();

}  // namespace rotoscale::validate
