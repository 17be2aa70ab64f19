// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "candidates.hpp"

#include <algorithm>
#include <cmath>

#include "../format_names.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/quantize.hpp"

namespace rotoscale::validate {

namespace {

/// Rotations to try, with their factor: the given one, none, and 16 to 256 points with and without the given signs.
/// Then 16 and 32 points without the factor.
std::vector<std::pair<rotation, bool>> rotations(const quantizer& base, bool fixed) {
  std::vector<std::pair<rotation, bool>> all{{base.options.rotation, base.hadamard_factor}};
  if (base.is_per_tensor()) return all;
  const auto add = [&](const rotation& r, bool factor) {
    if (fixed && r.points != base.options.rotation.points) return;
    if (std::find(all.begin(), all.end(), std::pair(r, factor)) == all.end()) all.emplace_back(r, factor);
  };
  add({}, true);
  for (const int points : {16, 32, 64, 128, 256}) {
    rotation with_signs = base.options.rotation;
    with_signs.points = points;
    add({points}, true);
    add(with_signs, true);
    if (points <= 32) add(with_signs, false);
  }
  return all;
}

/// Returns `rounded`, or fp32 if the source has that type and the rounding changes nothing.
format effective_source(format rounded, const quantizer_dump& dump) {
  return rounded == dump.source_format ? formats::fp32 : rounded;
}

/// Factors that a candidate may have used, the likeliest first, with their assumed origin. A known factor may have been
/// left out or stored as its inverse. Power-of-two scales have none. `q` has its base's factor.
std::vector<std::pair<float, assumed_factor>> factors(const quantizer& q, const quantizer_dump& dump, seen_amax& amax) {
  const float known = q.options.encode_factor;
  if (!q.is_per_tensor() && q.blocks.has_e8m0_scale()) return {{known, assumed_factor::none}};
  std::vector<std::pair<float, assumed_factor>> all;
  const auto add = [&](float factor, assumed_factor from) {
    const auto is_it = [&](const auto& other) { return fp32_bits(other.first) == fp32_bits(factor); };
    if (factor > 0 && std::isfinite(factor) && std::none_of(all.begin(), all.end(), is_it))
      all.emplace_back(factor, from);
  };
  if (q.assumed == assumed_factor::none) {
    for (const float factor : {known, 1.0f, 1.0f / known}) add(factor, assumed_factor::none);
    return all;
  }
  if (q.is_per_tensor()) {
    if (dump.amax) add(fp8_factor(q.blocks.element, *dump.amax), assumed_factor::amax);
    add(fp8_factor(q.blocks.element, amax(q, false, block_axis::row)), assumed_factor::source);
    add(1.0f, assumed_factor::one);
    return all;
  }
  const auto add_amax = [&](bool rotated, block_axis axis, assumed_factor from) {
    add(tensor_encode_factor(amax(q, rotated, axis), q.blocks.element, q.blocks.scale), from);
  };
  for (const dump_side& side : dump.sides) {
    if (q.options.rotation.points == 0) break;
    const bool row = side.axis == block_axis::row;
    add_amax(true, side.axis, row ? assumed_factor::rotated_rows : assumed_factor::rotated_columns);
  }
  add_amax(false, dump.sides.front().axis, assumed_factor::source);
  add(1.0f, assumed_factor::none);
  return all;
}

}  // namespace

float seen_amax::operator()(const quantizer& q, bool rotated, block_axis axis) {
  block_options how;
  how.source = q.options.source;
  if (rotated) how.rotation = q.options.rotation;
  auto known = std::find_if(known_.begin(), known_.end(), [&](const known_amax& k) {
    return k.axis == axis && k.how.source == how.source && k.how.rotation == how.rotation;
  });
  if (known == known_.end()) {
    const float amax =
        q.is_per_tensor() ? source_amax(q, dump_) : tensor_amax(q.blocks, how, dump_.source_view(), axis, pool_);
    known = known_.insert(known_.end(), {how, axis, amax});
  }
  if (rotated && q.details.rotated_bf16) return round_to_format(formats::bf16, known->amax);
  return rotated && !q.hadamard_factor ? known->amax * (1.0f / hadamard_factor(how.rotation.points)) : known->amax;
}

std::vector<quantizer> arithmetics(const quantizer& base, const fixed_fields& fixed, const quantizer_dump& dump,
                                   const std::vector<rounding>& roundings, seen_amax& amax) {
  std::vector<quantizer> all;
  const bool rules_matter = !base.is_per_tensor() && base.blocks.has_e8m0_scale();
  for (const auto& [turn, has_factor] : rotations(base, fixed.rotation)) {
    if (base.details.rotated_bf16 && (turn.points == 0 || !has_factor)) continue;
    for (const auto& rule : enum_names<scale_rule>::table) {
      if (fixed.rule && rule.value != base.options.rule) continue;
      if (base.details.replaces_rule() && !fixed.rule && rule.value != scale_rule::floor) continue;  // no effect
      for (const auto& policy : enum_names<block_policy>::table) {
        if (fixed.policy && !(policy.value == base.options.policy)) continue;
        for (const rounding r : roundings) {
          for (const format source : float_formats) {
            if (fixed.source ? !(source == base.options.source) : !(effective_source(source, dump) == source)) continue;
            quantizer q = base;
            q.options.rotation = turn;
            q.hadamard_factor = has_factor;
            q.options.rule = rule.value;
            q.options.policy = policy.value;
            q.options.rounding = r;
            q.options.source = source;
            if (!base.is_per_tensor() &&
                (!runs_are_defined(q.blocks, turn) || !options_are_defined(q.blocks, q.options)))
              continue;
            // Blocks of one orientation may be shorter than this rotation's runs.
            const bool fits = std::all_of(dump.sides.begin(), dump.sides.end(),
                                          [&](const dump_side& s) { return s.k % q.tile_k() == 0; });
            if (!fits) continue;
            for (const auto& [factor, from] : factors(q, dump, amax)) {
              q.options.encode_factor = factor;
              q.assumed = from;
              all.push_back(q);
            }
          }
        }
        if (base.is_per_tensor()) break;
      }
      if (!rules_matter) break;
    }
  }
  return all;
}

namespace {

/// Text on the differences between a candidate and a preset.
std::vector<std::string> changes_from(const quantizer& preset, const quantizer& q, const quantizer_dump& dump) {
  std::vector<std::string> all;
  const block_options &a = preset.options, &b = q.options;
  const auto points = [](const rotation& r) {
    return r.points == 0 ? std::string("no rotation") : "rotation of " + std::to_string(r.points) + " points";
  };
  if (a.rotation.points != b.rotation.points) all.push_back(points(b.rotation));
  rotation signs = a.rotation;
  signs.points = b.rotation.points;
  if (b.rotation.points != 0 && !(signs == b.rotation)) all.emplace_back("other signs of the rotation");
  if (!q.hadamard_factor)
    all.emplace_back("rotation without its factor 1/sqrt(" + std::to_string(b.rotation.points) + ")");
  if (q.blocks.has_e8m0_scale() && !q.is_per_tensor() && a.rule != b.rule)
    all.push_back("scale rule " + std::string(to_string(b.rule)));
  if (!q.is_per_tensor() && !(a.policy == b.policy)) all.push_back("policy " + std::string(to_string(b.policy)));
  if (a.rounding != b.rounding) {
    all.push_back("rounding " + std::string(to_string(b.rounding)) +
                  (q.has_unknown_words() ? " by unknown words" : ""));
  }
  if (const format from = effective_source(a.source, dump), to = effective_source(b.source, dump); !(from == to)) {
    all.push_back(to == formats::fp32 ? "source taken as it is"
                                      : "source rounded to " + std::string(to == formats::bf16 ? "BF16" : "FP16"));
  }
  if (q.assumed == assumed_factor::none && fp32_bits(a.encode_factor) != fp32_bits(b.encode_factor)) {
    char number[48];
    std::snprintf(number, sizeof number, "factor %.9g", static_cast<double>(b.encode_factor));
    all.emplace_back(number);
  }
  if (preset.scale_order != q.scale_order) {
    all.push_back(q.scale_order == placement::column_major ? "scales transposed"
                                                           : "scales in " + std::string(to_string(q.scale_order)));
  }
  if (preset.code_order != q.code_order) all.push_back("codes in " + std::string(to_string(q.code_order)));
  if (preset.nibbles != q.nibbles) {
    all.push_back(q.nibbles == nibble_order::low ? "even element in the low nibble"
                  : q.nibbles == nibble_order::high
                      ? "even element in the high nibble"
                      : "elements j and j + " + std::to_string(q.blocks.length / 2) + " in one byte");
  }
  for (const named_detail& d : all_details) {
    if (q.details.*d.member && !(preset.details.*d.member)) all.emplace_back(d.text);
  }
  return all;
}

/// Text on the assumed origin of an unknown factor.
std::string assumption(const quantizer& q) {
  constexpr const char* of[] = {
      "", "the source's amax", "the amax of rotated rows", "the amax of rotated columns", "tensor 'amax'", "no amax"};
  if (q.assumed == assumed_factor::none) return "";
  char text[96];
  std::snprintf(text, sizeof text, " (factor %.9g assumed, of %s)", static_cast<double>(q.options.encode_factor),
                of[static_cast<std::size_t>(q.assumed)]);
  return text;
}

}  // namespace

dump_explanation describe(const std::vector<quantizer>& presets, const quantizer& q, const quantizer_dump& dump) {
  dump_explanation best;
  best.changes = 1000;
  for (const quantizer& preset : presets) {
    const std::vector<std::string> changes = changes_from(preset, q, dump);
    // Some presets are equal: name them all.
    if (changes.empty() && best.changes == 0) best.text += " = " + preset.name;
    if (static_cast<int>(changes.size()) >= best.changes) continue;
    best.changes = static_cast<int>(changes.size());
    best.text = best.preset = preset.name;
    for (std::size_t i = 0; i < changes.size(); ++i) best.text += (i == 0 ? ", but " : ", ") + changes[i];
  }
  best.text += assumption(q);
  return best;
}

}  // namespace rotoscale::validate
