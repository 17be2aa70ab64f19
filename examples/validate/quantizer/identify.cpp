// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Identifies the implementation that made a dump. It tries every combination of details in which shipped quantizers
// differ on a sample of tiles, and ranks them by the tiles whose scales and codes they give.
#include <algorithm>
#include <array>
#include <limits>

#include "candidates.hpp"
#include "examples/threads.hpp"
#include "presets.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/philox.hpp"

namespace rotoscale::validate {

namespace {

/// A byte order that the tensors' sizes allow, with the tensors in dense order.
struct variant {
  placement order;
  nibble_order nibbles;
  std::vector<std::vector<std::uint8_t>> sides;
};

/// `first`, then all other placements, each once.
std::vector<placement> placements_from(std::vector<placement> first) {
  for (const auto& order : enum_names<placement>::table) first.push_back(order.value);
  for (auto at = first.begin(); at != first.end(); ++at)
    first.erase(std::remove(at + 1, first.end(), *at), first.end());
  return first;
}

std::vector<variant> code_variants(const quantizer& base, const quantizer_dump& dump) {
  std::vector<variant> all;
  // Usual orders of codes come first. Another order that gives the same bytes is then not named.
  for (const placement order :
       placements_from({base.code_order, placement::row_major, placement::aiter_data_16x16, placement::column_major})) {
    for (const nibble_order nibbles :
         {base.nibbles, nibble_order::low, nibble_order::high, nibble_order::halves}) {
      if (storage_bits(base.blocks.element) != 4 && nibbles != base.nibbles) continue;
      quantizer q = base;
      q.code_order = order;
      q.nibbles = nibbles;
      variant v{order, nibbles, {}};
      for (const dump_side& s : dump.sides) {
        if (auto bytes = dense_codes(q, s)) v.sides.push_back(std::move(*bytes));
      }
      const bool known = std::any_of(all.begin(), all.end(),
                                     [&](const variant& k) { return k.nibbles == nibbles && k.sides == v.sides; });
      if (v.sides.size() == dump.sides.size() && !known) all.push_back(std::move(v));
    }
  }
  return all;
}

std::vector<variant> scale_variants(const quantizer& base, const quantizer_dump& dump) {
  std::vector<variant> all;
  for (const placement order : placements_from({base.scale_order})) {
    quantizer q = base;
    q.scale_order = order;
    variant v{order, nibble_order::low, {}};
    for (const dump_side& s : dump.sides) {
      if (auto bytes = dense_scales(q, s)) v.sides.push_back(std::move(*bytes));
    }
    if (v.sides.size() == dump.sides.size()) all.push_back(std::move(v));
    if (base.is_per_tensor()) break;
  }
  return all;
}

/// A region of an orientation on which all candidates are tested. A rotation's run may be longer.
struct region {
  std::size_t side;
  index_t tile, first_k, count;
  index_t end_k() const { return first_k + count; }
};

/// Calls use(c) with the first element of every tile of `q` that overlaps the region.
template <class Use>
void for_each_tile(const quantizer& q, const region& p, const Use& use) {
  for (index_t c = p.first_k / q.tile_k() * q.tile_k(); c < p.end_k(); c += q.tile_k()) use(c);
}

std::vector<region> chosen_regions(const quantizer& base, const quantizer_dump& dump, index_t sample) {
  const index_t longest = base.is_per_tensor() ? 32 : std::max<index_t>(32, base.tile_k());
  std::vector<region> all;
  for (std::size_t s = 0; s < dump.sides.size(); ++s) {
    const dump_side& side = dump.sides[s];
    for (index_t tile = 0; tile < side.rows / base.tile_rows(); ++tile) {
      for (index_t k = 0; k < side.k; k += longest) all.push_back({s, tile, k, std::min(longest, side.k - k)});
    }
  }
  if (static_cast<index_t>(all.size()) <= sample) return all;
  const random_stream random{1, 2};
  for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), static_cast<std::size_t>(sample)); ++i) {
    const std::size_t j = i + random.word(i) % (all.size() - i);
    std::swap(all[i], all[j]);
  }
  all.resize(std::min<std::size_t>(all.size(), static_cast<std::size_t>(sample)));
  return all;
}

/// Steps before the scales: candidates that agree in these load equal values.
struct loading {
  rotation turn;
  bool hadamard_factor, rotated_bf16;
  format source;
  explicit loading(const quantizer& q)
      : turn(q.options.rotation),
        hadamard_factor(q.hadamard_factor),
        rotated_bf16(q.details.rotated_bf16),
        source(q.options.source) {}
  bool operator==(const loading&) const = default;
};

/// Loaded values of every tile of every region, in order.
using loaded_tiles = std::vector<std::vector<float>>;
loaded_tiles load_regions(const quantizer& q, const quantizer_dump& dump, const std::vector<region>& regions) {
  loaded_tiles all;
  for (const region& p : regions) {
    for_each_tile(q, p, [&](index_t c) { all.push_back(load_tile(q, dump, dump.sides[p.side], p.tile, c)); });
  }
  return all;
}

/// Per region, a bit per byte order of codes and of scales that matches the candidate. Both are 0 if either has no
/// match.
/// codes, does.
struct matches {
  std::vector<std::uint32_t> codes, scales;
};

/// Matches one region with one candidate.
class region_match {
 public:
  region_match(const quantizer& q, const quantizer_dump& dump, const std::vector<variant>& codes,
               const std::vector<variant>& scales)
      : q_(q), choices_(q), dump_(dump), codes_(codes), scales_(scales) {}

  /// Bits of matching orders of codes and scales. `tiles` points to the region's tiles and is advanced to the next
  /// region's. Most candidates are wrong and fail at their scales or first codes.
  std::pair<std::uint32_t, std::uint32_t> operator()(const region& p, const std::vector<float>*& tiles) const {
    const dump_side& side = dump_.sides[p.side];
    std::uint32_t code_bits = (1u << codes_.size()) - 1, scale_bits = (1u << scales_.size()) - 1;
    for_each_tile(q_, p, [&](index_t c) {
      const std::vector<float>& x = *tiles++;
      if (code_bits == 0 || scale_bits == 0) return;
      const tile_values t = scale_tile(q_, x);
      scale_bits &= of_scales(t, p, side, c);
      for (index_t e = 0; e < q_.tile_rows() * q_.tile_k() && (code_bits != 0 && scale_bits != 0); ++e) {
        const index_t k = c + e % q_.tile_k();
        if (k >= p.first_k && k < p.end_k()) code_bits &= of_code(t, p, side, c, e);
      }
    });
    if (code_bits == 0 || scale_bits == 0) return {0, 0};
    return {code_bits, scale_bits};
  }

 private:
  std::uint32_t of_scales(const tile_values& t, const region& p, const dump_side& side, index_t c) const {
    std::uint32_t bits = (1u << scales_.size()) - 1;
    for (std::size_t v = 0; v < scales_.size(); ++v) {
      for (std::size_t b = 0; b < t.scales.size(); ++b) {
        const index_t k = c + static_cast<index_t>(b) * q_.blocks.length;
        if (k < p.first_k || k >= p.end_k()) continue;
        const index_t at = p.tile * (side.k / q_.blocks.length) + k / q_.blocks.length;
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
  const std::vector<float>* next = tiles.data();
  for (const region& p : regions) {
    const auto [code_bits, scale_bits] = match(p, next);
    m.codes.push_back(code_bits);
    m.scales.push_back(scale_bits);
  }
  return m;
}

/// Number of regions that each pair of orders explains: of the whole dump, then of each orientation.
using order_counts = std::vector<std::vector<index_t>>;
order_counts count_orders(const matches& m, const std::vector<region>& regions, std::size_t sides, std::size_t codes,
                          std::size_t scales) {
  order_counts counts(1 + sides, std::vector<index_t>(codes * scales));
  for (std::size_t p = 0; p < m.codes.size(); ++p) {
    for (std::size_t i = 0; m.codes[p] != 0 && i < codes * scales; ++i) {
      if ((m.codes[p] >> i / scales & m.scales[p] >> i % scales & 1) == 0) continue;
      ++counts[0][i];
      ++counts[1 + regions[p].side][i];
    }
  }
  return counts;
}

/// Ranks the candidates for a dump.
class dump_identifier {
 public:
  dump_identifier(const quantizer* from, const quantizer& base, const fixed_fields& fixed, const quantizer_dump& dump,
                  index_t sample, thread_pool& pool)
      : base_(base),
        fixed_(fixed),
        dump_(dump),
        pool_(pool),
        presets_(from != nullptr ? std::vector<quantizer>{*from} : all_presets(base)),
        regions_(chosen_regions(base, dump, sample)),
        amax_(dump, pool),
        codes_(code_variants(base, dump)),
        scales_(scale_variants(base, dump)) {
    for (const bool of_scales : {false, true}) {
      if (!(of_scales ? scales_ : codes_).empty()) continue;
      // Report the orientation that fits no order by itself; the last one if only both together fit none.
      const auto fits_some = [&](const dump_side& side) {
        quantizer_dump alone = dump;
        alone.sides = {side};
        return !(of_scales ? scale_variants(base, alone) : code_variants(base, alone)).empty();
      };
      const auto wrong = std::find_if_not(dump.sides.begin(), dump.sides.end(), fits_some);
      refuse_extents(base, dump, wrong == dump.sides.end() ? dump.sides.back() : *wrong, of_scales, std::nullopt);
    }
  }

  dump_ranking run(std::size_t limit) {
    std::vector<rounding> known{rounding::nearest_even, rounding::nearest_away, rounding::toward_zero};
    if (base_.has_words) known.push_back(rounding::stochastic);
    if (fixed_.rounding) known = {base_.options.rounding};
    try_all(base_, known);
    if (!explains_all() && base_.details == quantizer_details{}) try_details();
    if (!fixed_.rounding && !explains_all()) try_all(base_, {rounding::up, rounding::down, rounding::to_odd});
    // Unknown words come last: they explain everything that rounds to a neighbour.
    if (!fixed_.rounding && !explains_all() && !base_.has_words) try_all(base_, {rounding::stochastic});
    dump_ranking ranking;
    ranking.runs = static_cast<index_t>(chosen_regions(base_, dump_, std::numeric_limits<index_t>::max()).size());
    rank(0, limit, ranking.all);
    if (!unlike_random_.empty() && ranking.all.front().explained < static_cast<index_t>(regions_.size()))
      ranking.unlike_random = unlike_random_;
    for (std::size_t side = 0; dump_.sides.size() > 1 && side < dump_.sides.size(); ++side) {
      std::vector<dump_explanation> best;
      rank(1 + side, 1, best);
      ranking.sides.push_back(std::move(best.front()));
    }
    return ranking;
  }

 private:
  /// A candidate with its byte orders, and the regions that it explains: of the dump, and of each orientation.
  struct found_candidate {
    dump_explanation e;
    std::vector<index_t> explained;
  };

  bool explains_all() const {
    const auto all = static_cast<index_t>(regions_.size());
    return std::any_of(found_.begin(), found_.end(), [&](const found_candidate& f) { return f.explained[0] == all; });
  }

  /// Tries Transformer Engine's signs and each detail that has an effect on these blocks.
  void try_details() {
    const bool blocks = !base_.is_per_tensor(), powers = blocks && base_.blocks.has_e8m0_scale();
    const std::vector<rounding> roundings{fixed_.rounding ? base_.options.rounding : rounding::nearest_even};
    quantizer with_signs = base_;
    // Elements 3, 5 to 10, 12, 14 and 15 of 16 are negated (its random_sign_mask with a fixed seed).
    for (std::uint32_t& word : with_signs.options.rotation.signs) word = 0xD7E8D7E8u;
    if (blocks && base_.options.rotation == rotation{base_.options.rotation.points}) {
      try_all(with_signs, roundings);
      with_signs.details.rotated_bf16 = true;
      try_all(with_signs, roundings);
    }
    for (const named_detail& d : all_details) {
      quantizer varied = base_;
      varied.details.*d.member = true;
      const quantizer_details& v = varied.details;
      if (explains_all() || (!blocks && (v.rotated_bf16 || v.amax_bf16)) || (!powers && v.replaces_rule())) continue;
      if ((v.zero_under_zero && (powers || !blocks)) || (v.overflow_nan && blocks)) continue;
      if (!v.ties_to_zero || !fixed_.rounding) try_all(varied, roundings);
    }
  }

  void try_all(const quantizer& base, const std::vector<rounding>& roundings) {
    const std::vector<quantizer> candidates = arithmetics(base, fixed_, dump_, roundings, amax_);
    std::vector<loading> ways;
    std::vector<std::size_t> first_of, way_of;  // per loading its first candidate; per candidate its loading
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const auto known = std::find(ways.begin(), ways.end(), loading(candidates[i]));
      way_of.push_back(static_cast<std::size_t>(known - ways.begin()));
      if (known != ways.end()) continue;
      ways.emplace_back(candidates[i]);
      first_of.push_back(i);
    }
    std::vector<loaded_tiles> tiles(ways.size());
    for_each_or_throw(pool_, static_cast<index_t>(ways.size()), [&](index_t i) {
      const auto at = static_cast<std::size_t>(i);
      tiles[at] = load_regions(candidates[first_of[at]], dump_, regions_);
    });
    std::vector<matches> found(candidates.size());
    for_each_or_throw(pool_, static_cast<index_t>(candidates.size()), [&](index_t i) {
      const auto at = static_cast<std::size_t>(i);
      found[at] = compare_regions(candidates[at], dump_, regions_, tiles[way_of[at]], codes_, scales_);
    });
    for (std::size_t i = 0; i < candidates.size(); ++i) add_explanations(candidates[i], found[i]);
  }

  /// Adds the best byte orders for one candidate: for the whole dump, and for each orientation.
  void add_explanations(const quantizer& candidate, const matches& m) {
    const order_counts counts = count_orders(m, regions_, dump_.sides.size(), codes_.size(), scales_.size());
    std::vector<index_t> most;
    for (const auto& of : counts) most.push_back(*std::max_element(of.begin(), of.end()));
    for (std::size_t i = 0; i < counts[0].size(); ++i) {
      bool is_best = counts[0][i] == most[0];
      for (std::size_t part = 1; part < counts.size(); ++part) {
        is_best = is_best || (most[part] != 0 && counts[part][i] == most[part]);
      }
      if (!is_best) continue;
      const variant &codes = codes_[i / scales_.size()], &scales = scales_[i % scales_.size()];
      quantizer q = candidate;
      q.code_order = codes.order;
      q.nibbles = codes.nibbles;
      q.scale_order = scales.order;
      found_candidate f{describe(presets_, q, dump_), {}};
      f.e.how = q;
      for (const auto& of : counts) f.explained.push_back(of[i]);
      for (std::size_t p = 0; p < m.codes.size(); ++p) {
        f.e.which.push_back((m.codes[p] >> i / scales_.size() & m.scales[p] >> i % scales_.size() & 1) != 0);
      }
      found_.push_back(std::move(f));
    }
  }

  /// Ranks the best `limit` candidates for the dump (part 0) or for an orientation. Candidates with equal text are
  /// listed once.
  void rank(std::size_t part, std::size_t limit, std::vector<dump_explanation>& distinct) {
    std::stable_sort(found_.begin(), found_.end(), [&](const found_candidate& a, const found_candidate& b) {
      return a.explained[part] != b.explained[part] ? a.explained[part] > b.explained[part] : a.e.changes < b.e.changes;
    });
    for (const found_candidate& f : found_) {
      const auto is_same = [&](const dump_explanation& d) { return d.text == f.e.text; };
      if (std::any_of(distinct.begin(), distinct.end(), is_same)) continue;
      // If random rounding was requested, the comparison of the whole dump judges it.
      if (f.e.how.has_unknown_words() && !fixed_.rounding && !rounds_at_random(f.e, part)) {
        if (part == 0 && f.explained[0] == static_cast<index_t>(regions_.size()) && unlike_random_.empty())
          unlike_random_ = f.e.text;
        continue;
      }
      distinct.push_back(f.e);
      distinct.back().explained = f.explained[part];
      if (distinct.size() == limit) return;
    }
  }

  /// Do the elements of explained regions round up as often as random words would? False if they are so few that
  /// round-to-nearest with a few exceptions would look the same.
  bool rounds_at_random(const dump_explanation& e, std::size_t part) const {
    const quantizer& q = e.how;
    const code_choices choices(q);
    constexpr double enough = 10;  // in standard errors: twice the accepted deviation
    rounding_tally tally, to_nearest;
    for (std::size_t i = 0; i < regions_.size(); ++i) {
      const region& p = regions_[i];
      if (!e.which[i] || (part != 0 && p.side != part - 1)) continue;
      const dump_side& side = dump_.sides[p.side];
      const variant& codes = *std::find_if(codes_.begin(), codes_.end(), [&](const variant& v) {
        return v.order == q.code_order && v.nibbles == q.nibbles;
      });
      for_each_tile(q, p, [&](index_t c) {
        const tile_values t = scale_tile(q, load_tile(q, dump_, side, p.tile, c));
        for (index_t at = 0; at < q.tile_rows() * q.tile_k(); ++at) {
          const index_t row = p.tile * q.tile_rows() + at / q.tile_k(), k = c + at % q.tile_k();
          if (k < p.first_k || k >= p.end_k()) continue;
          const float x = t.x[static_cast<std::size_t>(at)];
          const std::uint8_t scale = t.scale_of(q, at);
          const code_pair want = choices.under(dump_, side, x, scale, row * side.k + k);
          if (want.toward_zero == want.away) continue;
          const auto got =
              load_code(q.blocks.element, codes.sides[p.side].data() + row * packed_bytes(q.blocks.element, side.k), k);
          const double fraction = fraction_between(q, x, scale, want);
          tally.add(fraction, got == want.away);
          to_nearest.add(fraction, fraction > 0.5);
        }
      });
    }
    return tally.result().accepted() && to_nearest.result().largest() > enough;
  }

  const quantizer& base_;
  fixed_fields fixed_;
  const quantizer_dump& dump_;
  thread_pool& pool_;
  std::vector<quantizer> presets_;
  std::vector<region> regions_;
  seen_amax amax_;
  std::vector<variant> codes_, scales_;
  std::vector<found_candidate> found_;
  std::string unlike_random_;
};

}  // namespace

dump_ranking identify_dump(const quantizer* from, const quantizer& base, const fixed_fields& fixed,
                           const quantizer_dump& dump, index_t sample, std::size_t limit, thread_pool& pool) {
  return dump_identifier(from, base, fixed, dump, sample, pool).run(limit);
}

}  // namespace rotoscale::validate
