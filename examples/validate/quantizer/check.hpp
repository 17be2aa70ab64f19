// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A dump beside what a quantizer gives: differences by kind, and the first block that differs in full.
#pragma once

#include <map>

#include "distribution.hpp"
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
  std::optional<distribution> rounding;        ///< of stochastic rounding by unknown words
  bool identical() const { return blocks_different == 0 && padding_different == 0 && repeated_different == 0; }
  bool accepted() const { return identical() && (!rounding || rounding->accepted()); }
};

/// Everything about a dump; tensor-wide numbers first.
struct dump_report {
  std::vector<std::string> tensor_faults;  ///< factor or amax that are not the source's
  std::vector<side_report> sides;
  bool identical() const;  ///< no byte is wrong; an element that unknown words rounded is either neighbour of its value
  bool accepted() const;   ///< and these went up as often as they should
};

/// Compares every byte; `padding` is what padded scales must hold, or nothing where it may be any. Throws io::error for
/// a dump whose sizes do not fit the quantizer's placements.
dump_report check_dump(const quantizer& q, const quantizer_dump& dump, std::optional<std::uint8_t> padding,
                       thread_pool& pool);

/// Which way of quantizing made the dump? Every combination of preset, rotation, scale rule, policy, rounding, source
/// rounding, placement and nibble order, ranked by the runs of elements that it explains.
struct dump_explanation {
  std::string preset;  ///< the nearest one
  std::string text;    ///< it, and what differs from it
  int changes = 0;     ///< fields that differ from the nearest preset
  index_t explained = 0;
  quantizer how;            ///< the candidate
  std::vector<bool> which;  ///< of the runs that were looked at
};
/// Fields of the base that a search keeps: what the command line says of a quantizer that nobody names.
struct fixed_fields {
  bool rotation = false, rule = false, policy = false, rounding = false, source = false;
};
struct dump_ranking {
  std::vector<dump_explanation> all;    ///< the best first
  std::vector<dump_explanation> sides;  ///< of a dump with two orientations, what explains most of each
  std::string unlike_random;  ///< if not empty, a candidate to whose neighbours all elements go, but not at random
  index_t runs = 0;           ///< of the dump, of which a sample was looked at
};
/// `from` is what --quantizer names, or nothing: then all presets. At most `limit` of them. Throws io::error for a dump
/// whose sizes fit no placement.
dump_ranking identify_dump(const quantizer* from, const quantizer& base, const fixed_fields& fixed,
                           const quantizer_dump& dump, index_t sample, std::size_t limit, thread_pool& pool);

}  // namespace rotoscale::validate
