// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Compares a dump with a quantizer: differences by kind, and the first different block in full.
#pragma once

#include <map>

#include "distribution.hpp"
#include "dump.hpp"

namespace rotoscale::validate {

/// Differences of one orientation.
struct side_report {
  const dump_side* side = nullptr;
  index_t blocks = 0, blocks_different = 0;
  index_t scales_different = 0, codes_different = 0, elements = 0;
  std::map<std::string, index_t> kinds;        ///< number of scale bytes or elements by kind of difference
  index_t padding = 0, padding_different = 0;  ///< padding bytes of scales, and how many are not the wanted byte
  index_t repeated_different = 0;              ///< repeated scale bytes that differ from the block's first row
  std::vector<std::string> first;              ///< text of the first different block, by line
  std::optional<distribution> rounding;        ///< stochastic rounding by unknown words
  bool identical() const { return blocks_different == 0 && padding_different == 0 && repeated_different == 0; }
  bool accepted() const { return identical() && (!rounding || rounding->accepted()); }
};

/// Differences of a dump, numbers of the whole tensor first.
struct dump_report {
  std::vector<std::string> tensor_faults;  ///< factor or amax that do not match the source
  std::vector<side_report> sides;
  bool identical() const;  ///< no wrong byte; with unknown words an element may be either neighbour
  bool accepted() const;   ///< identical, and unknown words rounded up as often as they should
};

/// Compares every byte. `padding` is the required byte in padded scales, or nothing if any is allowed. Throws io::error
/// if the dump's sizes do not fit the quantizer's placements.
dump_report check_dump(const quantizer& q, const quantizer_dump& dump, std::optional<std::uint8_t> padding,
                       thread_pool& pool);

/// A candidate for how the dump was made: a combination of preset, rotation, scale rule, policy, rounding, source
/// rounding, placement and nibble order. Candidates are ranked by the runs of elements that they explain.
struct dump_explanation {
  std::string preset;  ///< the nearest one
  std::string text;    ///< the preset and the changes from it
  int changes = 0;     ///< fields that differ from the nearest preset
  index_t explained = 0;
  quantizer how;            ///< the candidate
  std::vector<bool> which;  ///< explained runs of the sample
};
/// Fields that the search keeps as in the base, because the command line sets them without naming a quantizer.
struct fixed_fields {
  bool rotation = false, rule = false, policy = false, rounding = false, source = false;
};
struct dump_ranking {
  std::vector<dump_explanation> all;    ///< best first
  std::vector<dump_explanation> sides;  ///< with two orientations: the best candidate for each
  std::string unlike_random;  ///< if not empty, a candidate that explains all elements, but not as random rounding
  index_t runs = 0;           ///< runs of the dump, from which the sample was taken
};
/// Identifies the quantizer of a dump; returns at most `limit` candidates. `from` is the preset of --quantizer, or null
/// for all presets. Throws io::error if the dump's sizes fit no placement.
dump_ranking identify_dump(const quantizer* from, const quantizer& base, const fixed_fields& fixed,
                           const quantizer_dump& dump, index_t sample, std::size_t limit, thread_pool& pool);

}  // namespace rotoscale::validate
