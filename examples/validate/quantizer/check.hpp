// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A dump beside what a quantizer gives: differences by kind, and the first block that differs in full.
#pragma once

#include <map>

#include "dump.hpp"

namespace rotoscale::validate {

/// How one orientation differs.
struct side_report {
  const dump_side* side = nullptr;
  index_t blocks = 0, blocks_different = 0;
  index_t scales_different = 0, codes_different = 0, elements = 0;
  std::map<std::string, index_t> kinds;        ///< scale bytes or elements by kind of difference
  index_t padding = 0, padding_different = 0;  ///< padded scale bytes that are not the wanted one
  index_t repeated_different = 0;              ///< scale bytes that are not those of the block's first row
  std::vector<std::string> first;              ///< the first block that differs, a line each
  bool identical() const { return blocks_different == 0 && padding_different == 0 && repeated_different == 0; }
};

/// Everything about a dump; tensor-wide numbers first.
struct dump_report {
  std::vector<std::string> tensor_faults;  ///< factor or amax that are not the source's
  std::vector<side_report> sides;
  bool identical() const;
};

/// Compares every byte; `padding` is what padded scales must hold, or nothing where it may be any. Throws io::error for
/// a dump whose sizes do not fit the quantizer's placements.
dump_report check_dump(const quantizer& q, const quantizer_dump& dump, std::optional<std::uint8_t> padding,
                       thread_pool& pool);

/// Stochastic rounding whose words nobody knows: is every code one of the two neighbours of its value, and does it go
/// up as often as it should?
struct distribution {
  index_t rounded = 0;     ///< elements between two numbers of the format
  index_t impossible = 0;  ///< codes that are neither neighbour, or wrong where there is nothing to round
  index_t scales_different = 0;
  double z[9] = {};       ///< deviation in standard errors: overall, then by the fraction's eighth
  bool accepted() const;  ///< no impossible code, all scales right, no deviation beyond 5
};
distribution check_distribution(const quantizer& q, const quantizer_dump& dump, const dump_side& side);

/// Which way of quantizing made the dump? Every combination of preset, rotation, scale rule, policy, rounding, source
/// rounding, placement and nibble order, ranked by the blocks that it explains.
struct dump_explanation {
  std::string text;  ///< the nearest preset, and what differs from it
  int changes = 0;   ///< fields that differ from the nearest preset
  index_t explained = 0;
  std::vector<bool> which;  ///< of the blocks that were looked at
};
/// `from` is what --quantizer names, or nothing: then all presets. At most `limit` of them.
std::vector<dump_explanation> identify_dump(const quantizer* from, const quantizer& base, const quantizer_dump& dump,
                                            index_t sample, std::size_t limit, thread_pool& pool);

}  // namespace rotoscale::validate
