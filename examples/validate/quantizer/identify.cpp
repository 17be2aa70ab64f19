// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Which implementation made a dump: every combination of the ways in which shipped quantizers differ, on a sample of
// tiles, ranked by the tiles whose scales and codes it gives.
#include <algorithm>
#include <array>

#include "../format_names.hpp"
#include "check.hpp"
#include "presets.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/philox.hpp"

namespace rotoscale::validate {

namespace {

/// Rotations that occur: the given one, none, 16 and 32 points, and 16 points without the factor 1/4.
std::vector<std::pair<rotation, bool>> rotations(const quantizer& base) {
  std::vector<std::pair<rotation, bool>> all{{base.options.rotation, base.hadamard_factor}};
  if (base.is_per_tensor()) return all;
  const auto add = [&](const rotation& r, bool factor) {
    if (std::find(all.begin(), all.end(), std::pair(r, factor)) == all.end()) all.emplace_back(r, factor);
  };
  rotation points16 = base.options.rotation, points32 = points16;
  points16.points = 16;
  points32.points = 32;
  add({}, true);
  add({16}, true);
  add(points16, true);
  add({32}, true);
  add(points32, true);
  add(points16, false);
  return all;
}

/// Stochastic only by words that are known: by others it explains whatever rounding to a neighbour does.
std::vector<rounding> roundings(const quantizer& base) {
  std::vector<rounding> all{rounding::nearest_even, rounding::nearest_away, rounding::toward_zero};
  if (base.has_words) all.push_back(rounding::stochastic);
  return all;
}

/// What a source of this type is rounded to first; its own type changes nothing.
format effective_source(format rounded, const quantizer_dump& dump) {
  return rounded == dump.source_format ? formats::fp32 : rounded;
}

/// Everything but the order of bytes.
std::vector<quantizer> arithmetics(const quantizer& base, const quantizer_dump& dump,
                                   const std::vector<rounding>& roundings) {
  std::vector<quantizer> all;
  const bool rules_matter = !base.is_per_tensor() && base.blocks.has_e8m0_scale();
  const float factor = base.options.encode_factor;
  for (const auto& [turn, has_factor] : rotations(base)) {
    for (const auto& rule : enum_names<scale_rule>::table) {
      for (const auto& policy : enum_names<block_policy>::table) {
        for (const rounding r : roundings) {
          for (const format source : float_formats) {
            if (!(effective_source(source, dump) == source)) continue;
            for (const float f : {factor, 1.0f, 1.0f / factor}) {
              quantizer q = base;
              q.options.rotation = turn;
              q.hadamard_factor = has_factor;
              q.options.rule = rule.value;
              q.options.policy = policy.value;
              q.options.rounding = r;
              q.options.source = source;
              q.options.encode_factor = f;
              if (!base.is_per_tensor() &&
                  (!runs_are_defined(q.blocks, turn) || !options_are_defined(q.blocks, q.options)))
                continue;
              // The blocks of one orientation may be shorter than this rotation's runs.
              const bool fits = std::all_of(dump.sides.begin(), dump.sides.end(),
                                            [&](const dump_side& s) { return s.k % q.tile_k() == 0; });
              if (fits) all.push_back(q);
              if (factor == 1.0f || rules_matter) break;  // scales of powers of two have no factor
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

/// An order of bytes that the tensors' sizes allow, and what it makes of them.
struct variant {
  placement order;
  bool low_nibble_first;
  std::vector<std::vector<std::uint8_t>> sides;
};

std::vector<variant> code_variants(const quantizer& base, const quantizer_dump& dump) {
  std::vector<variant> all;
  for (const placement order :
       {base.code_order, placement::row_major, placement::aiter_data_16x16, placement::column_major}) {
    for (const bool low : {base.low_nibble_first, !base.low_nibble_first}) {
      if (storage_bits(base.blocks.element) != 4 && low != base.low_nibble_first) continue;
      quantizer q = base;
      q.code_order = order;
      q.low_nibble_first = low;
      variant v{order, low, {}};
      for (const dump_side& s : dump.sides) {
        if (auto bytes = dense_codes(q, s)) v.sides.push_back(std::move(*bytes));
      }
      const bool known = std::any_of(all.begin(), all.end(),
                                     [&](const variant& k) { return k.order == order && k.low_nibble_first == low; });
      if (v.sides.size() == dump.sides.size() && !known) all.push_back(std::move(v));
    }
  }
  return all;
}

std::vector<variant> scale_variants(const quantizer& base, const quantizer_dump& dump) {
  std::vector<variant> all;
  std::vector<placement> orders{base.scale_order};
  for (const auto& order : enum_names<placement>::table) orders.push_back(order.value);
  for (const placement order : orders) {
    if (order == placement::aiter_data_16x16) continue;
    quantizer q = base;
    q.scale_order = order;
    variant v{order, true, {}};
    for (const dump_side& s : dump.sides) {
      if (auto bytes = dense_scales(q, s)) v.sides.push_back(std::move(*bytes));
    }
    const bool known = std::any_of(all.begin(), all.end(), [&](const variant& k) { return k.order == order; });
    if (v.sides.size() == dump.sides.size() && !known) all.push_back(std::move(v));
    if (base.is_per_tensor()) break;
  }
  return all;
}

/// A region of an orientation: as large as any rotation's run, so that all candidates are asked about the same regions.
struct region {
  std::size_t side;
  index_t tile, first_k, count;
};

std::vector<region> chosen_regions(const quantizer& base, const quantizer_dump& dump, index_t sample) {
  const index_t longest = base.is_per_tensor() ? 32 : std::max<index_t>(32, base.tile_k());
  std::vector<region> all;
  for (std::size_t s = 0; s < dump.sides.size(); ++s) {
    const dump_side& side = dump.sides[s];
    for (index_t tile = 0; tile < side.rows / base.tile_rows(); ++tile) {
      for (index_t k = 0; k < side.k; k += longest) all.push_back({s, tile, k, std::min(longest, side.k - k)});
    }
  }
  const random_stream random{1, 2};
  for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), static_cast<std::size_t>(sample)); ++i) {
    const std::size_t j = i + random.word(i) % (all.size() - i);
    std::swap(all[i], all[j]);
  }
  all.resize(std::min<std::size_t>(all.size(), static_cast<std::size_t>(sample)));
  return all;
}

/// What comes before scales: candidates that are equal in it see the same numbers.
struct loading {
  rotation turn;
  bool hadamard_factor;
  format source;
  explicit loading(const quantizer& q)
      : turn(q.options.rotation), hadamard_factor(q.hadamard_factor), source(q.options.source) {}
  bool operator==(const loading&) const = default;
};

/// These numbers: every tile of every region, in order.
using loaded_tiles = std::vector<std::vector<float>>;
loaded_tiles load_regions(const quantizer& q, const quantizer_dump& dump, const std::vector<region>& regions) {
  loaded_tiles all;
  for (const region& p : regions) {
    for (index_t c = p.first_k; c < p.first_k + p.count; c += q.tile_k())
      all.push_back(load_tile(q, dump, dump.sides[p.side], p.tile, c));
  }
  return all;
}

/// For each region, one bit a variant: does it hold what the candidate gives? None where no order of scales, or none of
/// codes, does.
struct matches {
  std::vector<std::uint32_t> codes, scales;
};

/// One region beside what one candidate gives.
class region_match {
 public:
  region_match(const quantizer& q, const quantizer_dump& dump, const std::vector<variant>& codes,
               const std::vector<variant>& scales)
      : q_(q), choices_(q), dump_(dump), codes_(codes), scales_(scales) {}

  /// The bits of codes and of scales. Most candidates are wrong, and their scales or first codes show it.
  std::pair<std::uint32_t, std::uint32_t> operator()(const region& p, const std::vector<float>* tiles) const {
    const dump_side& side = dump_.sides[p.side];
    std::uint32_t code_bits = (1u << codes_.size()) - 1, scale_bits = (1u << scales_.size()) - 1;
    for (index_t c = p.first_k; c < p.first_k + p.count; c += q_.tile_k()) {
      const tile_values t = scale_tile(q_, *tiles++);
      scale_bits &= of_scales(t, p, side, c);
      for (index_t e = 0; e < q_.tile_rows() * q_.tile_k() && (code_bits != 0 && scale_bits != 0); ++e)
        code_bits &= of_code(t, p, side, c, e);
      if (code_bits == 0 || scale_bits == 0) return {0, 0};
    }
    return {code_bits, scale_bits};
  }

 private:
  std::uint32_t of_scales(const tile_values& t, const region& p, const dump_side& side, index_t c) const {
    std::uint32_t bits = (1u << scales_.size()) - 1;
    for (std::size_t v = 0; v < scales_.size(); ++v) {
      for (std::size_t b = 0; b < t.scales.size(); ++b) {
        const index_t at = p.tile * (side.k / q_.blocks.length) + c / q_.blocks.length + static_cast<index_t>(b);
        if (scales_[v].sides[p.side][static_cast<std::size_t>(at)] != t.scales[b]) bits &= ~(1u << v);
      }
    }
    return bits;
  }
  std::uint32_t of_code(const tile_values& t, const region& p, const dump_side& side, index_t c, index_t e) const {
    const format element = q_.blocks.element;
    const index_t row = p.tile * q_.tile_rows() + e / q_.tile_k(), at = c + e % q_.tile_k();
    const code_pair want =
        choices_.under(dump_, side, t.x[static_cast<std::size_t>(e)], t.scale_of(q_, e), row * side.k + at);
    std::uint32_t bits = 0;
    for (std::size_t v = 0; v < codes_.size(); ++v) {
      const auto got = load_code(element, codes_[v].sides[p.side].data() + row * packed_bytes(element, side.k), at);
      if (want.contains(static_cast<std::uint8_t>(got))) bits |= 1u << v;
    }
    return bits;
  }

  const quantizer& q_;
  code_choices choices_;
  const quantizer_dump& dump_;
  const std::vector<variant>&codes_, &scales_;
};

matches compare_regions(const quantizer& q, const quantizer_dump& dump, const std::vector<region>& regions,
                        const loaded_tiles& tiles, const std::vector<variant>& codes,
                        const std::vector<variant>& scales) {
  matches m;
  const region_match match(q, dump, codes, scales);
  std::size_t first = 0;
  for (const region& p : regions) {
    const auto [code_bits, scale_bits] = match(p, tiles.data() + first);
    first += static_cast<std::size_t>(p.count / q.tile_k());
    m.codes.push_back(code_bits);
    m.scales.push_back(scale_bits);
  }
  return m;
}

/// What differs between a candidate and a preset, in words.
std::vector<std::string> changes_from(const quantizer& preset, const quantizer& q, const quantizer_dump& dump) {
  std::vector<std::string> all;
  const block_options &a = preset.options, &b = q.options;
  const auto points = [](const rotation& r) {
    return r.points == 0 ? std::string("no rotation") : "rotation of " + std::to_string(r.points) + " points";
  };
  if (a.rotation.points != b.rotation.points)
    all.push_back(points(b.rotation));
  else if (!(a.rotation == b.rotation))
    all.emplace_back("other signs of the rotation");
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
  if (fp32_bits(a.encode_factor) != fp32_bits(b.encode_factor)) {
    char number[48];
    std::snprintf(number, sizeof number, "factor %.9g", static_cast<double>(b.encode_factor));
    all.emplace_back(number);
  }
  if (preset.scale_order != q.scale_order) {
    all.push_back(q.scale_order == placement::column_major ? "scales transposed"
                                                           : "scales in " + std::string(to_string(q.scale_order)));
  }
  if (preset.code_order != q.code_order) all.push_back("codes in " + std::string(to_string(q.code_order)));
  if (preset.low_nibble_first != q.low_nibble_first)
    all.push_back(q.low_nibble_first ? "even element in the low nibble" : "even element in the high nibble");
  return all;
}

dump_explanation describe(const std::vector<quantizer>& presets, const quantizer& q, const quantizer_dump& dump) {
  dump_explanation best;
  best.changes = 1000;
  for (const quantizer& preset : presets) {
    const std::vector<std::string> changes = changes_from(preset, q, dump);
    // Some presets are equal.
    if (changes.empty() && best.changes == 0) best.text += " = " + preset.name;
    if (static_cast<int>(changes.size()) >= best.changes) continue;
    best.changes = static_cast<int>(changes.size());
    best.text = preset.name;
    for (std::size_t i = 0; i < changes.size(); ++i) best.text += (i == 0 ? ", but " : ", ") + changes[i];
  }
  return best;
}

/// The best orders of bytes for one candidate.
void add_explanations(const quantizer& candidate, const matches& m, const std::vector<variant>& codes,
                      const std::vector<variant>& scales, const std::vector<quantizer>& presets,
                      const quantizer_dump& dump, std::vector<dump_explanation>& all) {
  std::vector<std::pair<index_t, std::pair<std::size_t, std::size_t>>> counts;
  for (std::size_t c = 0; c < codes.size(); ++c) {
    for (std::size_t s = 0; s < scales.size(); ++s) {
      index_t explained = 0;
      for (std::size_t p = 0; p < m.codes.size(); ++p) explained += (m.codes[p] >> c & m.scales[p] >> s & 1) != 0;
      counts.push_back({explained, {c, s}});
    }
  }
  std::stable_sort(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (std::size_t i = 0; i < counts.size() && (i == 0 || counts[i].first == counts[0].first); ++i) {
    const auto [c, s] = counts[i].second;
    quantizer q = candidate;
    q.code_order = codes[c].order;
    q.low_nibble_first = codes[c].low_nibble_first;
    q.scale_order = scales[s].order;
    dump_explanation e = describe(presets, q, dump);
    e.explained = counts[i].first;
    for (std::size_t p = 0; p < m.codes.size(); ++p) e.which.push_back((m.codes[p] >> c & m.scales[p] >> s & 1) != 0);
    all.push_back(std::move(e));
  }
}

}  // namespace

std::vector<dump_explanation> identify_dump(const quantizer* from, const quantizer& base, const quantizer_dump& dump,
                                            index_t sample, std::size_t limit, thread_pool& pool) {
  const std::vector<quantizer> presets = from != nullptr ? std::vector<quantizer>{*from} : all_presets(base);
  const std::vector<region> regions = chosen_regions(base, dump, sample);
  const std::vector<variant> codes = code_variants(base, dump), scales = scale_variants(base, dump);
  std::vector<dump_explanation> all;
  const auto try_all = [&](const std::vector<quantizer>& candidates) {
    std::vector<loading> ways;
    std::vector<std::size_t> first_of, way_of;  // of each way the first candidate, of each candidate its way
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const auto known = std::find(ways.begin(), ways.end(), loading(candidates[i]));
      way_of.push_back(static_cast<std::size_t>(known - ways.begin()));
      if (known != ways.end()) continue;
      ways.emplace_back(candidates[i]);
      first_of.push_back(i);
    }
    std::vector<loaded_tiles> tiles(ways.size());
    pool.for_each(static_cast<index_t>(ways.size()), [&](index_t i) {
      const auto at = static_cast<std::size_t>(i);
      tiles[at] = load_regions(candidates[first_of[at]], dump, regions);
    });
    std::vector<matches> found(candidates.size());
    pool.for_each(static_cast<index_t>(candidates.size()), [&](index_t i) {
      const auto at = static_cast<std::size_t>(i);
      found[at] = compare_regions(candidates[at], dump, regions, tiles[way_of[at]], codes, scales);
    });
    for (std::size_t i = 0; i < candidates.size(); ++i)
      add_explanations(candidates[i], found[i], codes, scales, presets, dump, all);
  };
  try_all(arithmetics(base, dump, roundings(base)));
  const bool explained = std::any_of(all.begin(), all.end(), [&](const dump_explanation& e) {
    return e.explained == static_cast<index_t>(regions.size());
  });
  if (!explained && !base.has_words) try_all(arithmetics(base, dump, {rounding::stochastic}));
  std::stable_sort(all.begin(), all.end(), [](const dump_explanation& a, const dump_explanation& b) {
    return a.explained != b.explained ? a.explained > b.explained : a.changes < b.changes;
  });
  // Different candidates may differ in nothing that is named.
  std::vector<dump_explanation> distinct;
  for (dump_explanation& e : all) {
    const bool known =
        std::any_of(distinct.begin(), distinct.end(), [&](const dump_explanation& d) { return d.text == e.text; });
    if (!known) distinct.push_back(std::move(e));
    if (distinct.size() == limit) break;
  }
  return distinct;
}

}  // namespace rotoscale::validate
