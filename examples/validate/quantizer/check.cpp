// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "check.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "../code_distance.hpp"
#include "examples/threads.hpp"
#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/quantize.hpp"

namespace rotoscale::validate {

namespace {

template <class... Arguments>
std::string text(const char* pattern, Arguments... arguments) {
  char line[256];
  std::snprintf(line, sizeof line, pattern, arguments...);
  return line;
}

/// Kinds of difference of a scale byte or an element; their names in reports.
enum class difference_kind {
  scale_zeros,
  scale_nan_policy,
  scale_inf_policy,
  scale_nan,
  scale_off_by_one,
  scale_other,
  scale_repeated,
  code_nan_policy,
  code_sign_of_zero,
  code_sign,
  code_nan,
  code_other,
  code_tie,
  code_rounding,
  code_neither,
  nibble_order
};
constexpr const char* difference_names[] = {"scale: policy of a block of zeros",
                                            "scale: policy of NaN",
                                            "scale: policy of Inf",
                                            "scale: NaN",
                                            "scale: off by one",
                                            "scale: other",
                                            "scale: repeated for another row",
                                            "code: policy of NaN",
                                            "code: sign of zero",
                                            "code: sign",
                                            "code: NaN",
                                            "code: other",
                                            "code: tie",
                                            "code: rounding",
                                            "code: neither neighbour",
                                            "nibble order (blocks)"};
static_assert(std::size(difference_names) == static_cast<std::size_t>(difference_kind::nibble_order) + 1);
constexpr const char* name_of(difference_kind d) { return difference_names[static_cast<std::size_t>(d)]; }

/// A value as text, with the bits of a NaN, which "%g" hides.
std::string value_text(float x) {
  return std::isnan(x) ? text("nan (0x%08x)", fp32_bits(x)) : text("%.6g", static_cast<double>(x));
}

long long integer(index_t i) { return static_cast<long long>(i); }

/// A block: elements [first, first + length) along k of a tile's rows. For FP8 with one factor: one element.
struct block_place {
  index_t tile, tile_k;  ///< the tile, and its first element along k
  index_t first;         ///< relative to the tile
  index_t length;
};

/// The bytes compared in a block.
struct block_bytes : block_place {
  const tile_values& t;
  std::uint8_t want = 0, got = 0;  ///< scale bytes
};

/// Comparison results of the blocks of some tiles.
struct block_tally {
  index_t counts[std::size(difference_names)] = {};
  index_t blocks_different = 0, scales_different = 0, codes_different = 0;
  rounding_tally rounding;
  std::optional<block_place> first;  ///< the first block that differs

  void count(difference_kind d) { ++counts[static_cast<std::size_t>(d)]; }
  /// Adds the results of later tiles.
  void add(const block_tally& later) {
    for (std::size_t d = 0; d < std::size(counts); ++d) counts[d] += later.counts[d];
    blocks_different += later.blocks_different;
    scales_different += later.scales_different;
    codes_different += later.codes_different;
    rounding.add(later.rounding);
    if (!first) first = later.first;
  }
};

/// Compares one orientation of a dump.
class side_check {
 public:
  side_check(const quantizer& q, const quantizer_dump& dump, const dump_side& side, std::optional<std::uint8_t> padding,
             thread_pool& pool)
      : q_(q),
        dump_(dump),
        side_(side),
        padding_(padding),
        pool_(pool),
        choices_(q),
        want_(quantize_side(choices_.up(), dump, side, pool)) {
    if (q.has_unknown_words()) lower_ = quantize_side(choices_.down(), dump, side, pool).codes;
    const auto sized = [&](std::optional<std::vector<std::uint8_t>> bytes, bool of_scales, placement order) {
      if (!bytes) refuse_extents(q, dump, side, of_scales, order);
      return *std::move(bytes);
    };
    got_.codes = sized(dense_codes(q, side), false, q.code_order);
    got_.scales = sized(dense_scales(q, side), true, q.scale_order);
  }

  side_report run() {
    report_.side = &side_;
    report_.elements = side_.rows * side_.k;
    const index_t tiles_down = side_.rows / q_.tile_rows(), length = q_.is_per_tensor() ? 1 : q_.blocks.length;
    report_.blocks = tiles_down * (side_.k / length);
    const block_tally all = check_tiles(tiles_down, length);
    report_.blocks_different = all.blocks_different;
    report_.scales_different = all.scales_different;
    report_.codes_different = all.codes_different;
    for (std::size_t d = 0; d < std::size(all.counts); ++d) {
      if (all.counts[d] != 0) report_.kinds[difference_names[d]] = all.counts[d];
    }
    if (q_.has_unknown_words()) report_.rounding = all.rounding.result();
    if (all.first) explain(*all.first);
    check_other_bytes();
    name_layout();
    return std::move(report_);
  }

 private:
  /// Checks all blocks in chunks of tiles. Chunks depend only on the extents, so sums over them do too.
  block_tally check_tiles(index_t tiles_down, index_t length) const {
    constexpr index_t elements = 4096;  // per chunk, so that few tallies are kept
    const index_t chunk = std::max<index_t>(1, elements / (q_.tile_rows() * side_.k));
    std::vector<block_tally> of_chunks(static_cast<std::size_t>((tiles_down + chunk - 1) / chunk));
    for_each_or_throw(pool_, static_cast<index_t>(of_chunks.size()), [&](index_t i) {
      block_tally& tally = of_chunks[static_cast<std::size_t>(i)];
      for (index_t tile = i * chunk; tile < std::min(tiles_down, (i + 1) * chunk); ++tile) {
        if (row_is_equal(tile)) continue;
        for (index_t c = 0; c < side_.k; c += q_.tile_k()) {
          const tile_values t = quantize_tile(choices_.up(), dump_, side_, tile, c);
          for (index_t first = 0; first < q_.tile_k(); first += length)
            check_block(bytes_of({tile, c, first, length}, t), tally);
        }
      }
    });
    block_tally all;
    for (const block_tally& tally : of_chunks) all.add(tally);
    return all;
  }

  std::uint8_t code_of(const std::vector<std::uint8_t>& codes, index_t r, index_t c) const {
    return static_cast<std::uint8_t>(
        load_code(q_.blocks.element, codes.data() + r * packed_bytes(q_.blocks.element, side_.k), c));
  }
  /// Does a row match as a whole? Not with unknown words: then every element counts in their distribution.
  bool row_is_equal(index_t tile) const {
    if (q_.has_unknown_words()) return false;
    const auto equal = [](const auto& a, const auto& b, index_t first, index_t count) {
      return std::equal(a.begin() + first, a.begin() + first + count, b.begin() + first);
    };
    const index_t bytes = packed_bytes(q_.blocks.element, side_.k) * q_.tile_rows();
    if (!equal(want_.codes, got_.codes, tile * bytes, bytes)) return false;
    if (q_.is_per_tensor()) return true;
    const index_t scales = side_.k / q_.blocks.length;
    return equal(want_.scales, got_.scales, tile * scales, scales);
  }

  block_bytes bytes_of(const block_place& place, const tile_values& t) const {
    block_bytes p{place, t};
    if (q_.is_per_tensor()) return p;
    p.want = t.scales[static_cast<std::size_t>(p.first / p.length)];
    p.got = got_.scales[static_cast<std::size_t>(p.tile * (side_.k / p.length) + (p.tile_k + p.first) / p.length)];
    return p;
  }

  /// Checks one block: its scale, then its elements.
  void check_block(const block_bytes& p, block_tally& tally) const {
    const block_difference d = difference_of(p);
    for (const auto& [fraction, went_away] : d.rounded) tally.rounding.add(fraction, went_away);
    const auto different = static_cast<index_t>(d.elements.size());
    for (const element_difference& e : d.elements) tally.count(code_kind(e, d.scale));
    tally.codes_different += different;
    tally.scales_different += p.want != p.got;
    if (different == 0 && p.want == p.got) return;
    ++tally.blocks_different;
    if (p.want != p.got) tally.count(scale_kind(p));
    if (different != 0 && swapped_explains(p)) tally.count(difference_kind::nibble_order);
    if (!tally.first) tally.first = p;
  }

  struct element_difference {
    index_t row, k;
    float x;  ///< value before element rounding
    code_pair want;
    std::uint8_t got;
  };
  /// Elements that differ under one scale. `rounded` has the others that unknown random words rounded.
  struct block_difference {
    std::uint8_t scale = 0;
    std::vector<element_difference> elements;
    std::vector<std::pair<double, bool>>
        rounded;  ///< distance from the neighbour toward zero; whether the other one was chosen
  };

  /// Compares elements under the written scale, or under the expected one if they match it better. A wrong scale is
  /// then one difference.
  block_difference difference_of(const block_bytes& p) const {
    block_difference d = elements_under(p, p.got);
    if (p.want != p.got && !d.elements.empty()) {
      block_difference under_want = elements_under(p, p.want);
      if (under_want.elements.size() < d.elements.size()) d = std::move(under_want);
    }
    return d;
  }

  /// Calls see(row, k, x) for the elements of a block until it returns false.
  template <class See>
  bool each_element(const block_bytes& p, See&& see) const {
    for (index_t r = 0; r < q_.tile_rows(); ++r) {
      for (index_t i = p.first; i < p.first + p.length; ++i) {
        if (!see(p.tile * q_.tile_rows() + r, p.tile_k + i, p.t.x[static_cast<std::size_t>(r * q_.tile_k() + i)]))
          return false;
      }
    }
    return true;
  }
  code_pair wanted(index_t row, index_t k, float x, std::uint8_t scale) const {
    return choices_.under(dump_, side_, x, scale, row * side_.k + k);
  }

  block_difference elements_under(const block_bytes& p, std::uint8_t scale) const {
    block_difference d{scale, {}, {}};
    each_element(p, [&](index_t row, index_t k, float x) {
      const std::uint8_t code = code_of(got_.codes, row, k);
      const code_pair want = wanted(row, k, x, scale);
      if (!want.contains(code)) {
        d.elements.push_back({row, k, x, want, code});
      } else if (want.toward_zero != want.away) {
        d.rounded.emplace_back(fraction_between(q_, x, scale, want), code == want.away);
      }
      return true;
    });
    return d;
  }

  difference_kind scale_kind(const block_bytes& p) const {
    const std::uint32_t amax = p.t.amax[static_cast<std::size_t>(p.first / p.length)];
    if (amax == 0) return difference_kind::scale_zeros;
    if (amax == no_amax || fp32_is_nan(amax)) return difference_kind::scale_nan_policy;
    if (amax == fp32_infinity_bits) return difference_kind::scale_inf_policy;
    if (q_.blocks.scale.is_nan(p.got)) return difference_kind::scale_nan;
    return p.want + 1 == p.got || p.got + 1 == p.want ? difference_kind::scale_off_by_one
                                                      : difference_kind::scale_other;
  }

  difference_kind code_kind(const element_difference& e, std::uint8_t scale) const {
    const format f = q_.blocks.element;
    const std::uint64_t low = f.magnitude(e.want.toward_zero), high = f.magnitude(e.want.away),
                        got = f.magnitude(e.got);
    if (fp32_is_nan(fp32_bits(e.x) & fp32_magnitude_mask)) return difference_kind::code_nan_policy;
    if (f.is_nan(e.got)) return difference_kind::code_nan;  // in FNUZ formats the code that is -0 in others
    if (low == 0 && got == 0) return difference_kind::code_sign_of_zero;
    if (low == got || high == got) return difference_kind::code_sign;
    if (q_.has_unknown_words()) return difference_kind::code_neither;
    if (code_distance(f, e.want.away, e.got) != 1) return difference_kind::code_other;
    return is_tie(e.x, scale, e.want.away, e.got) ? difference_kind::code_tie : difference_kind::code_rounding;
  }
  /// Is the scaled value halfway between two numbers of the format?
  bool is_tie(float x, std::uint8_t scale, std::uint32_t a, std::uint32_t b) const {
    const double middle =
        (static_cast<double>(decode(q_.blocks.element, a)) + static_cast<double>(decode(q_.blocks.element, b))) / 2;
    return scaled_value(q_, x, scale) == middle;
  }

  /// Would this block match if the halves of its bytes were exchanged?
  bool swapped_explains(const block_bytes& p) const {
    if (storage_bits(q_.blocks.element) != 4 || p.length % 2 != 0) return false;
    return each_element(p, [&](index_t row, index_t k, float x) {
      return wanted(row, k, x, p.got).contains(code_of(got_.codes, row, k ^ 1));
    });
  }

  index_t code_offset(index_t r, index_t c) const {
    if (side_.has_code_a_byte() && q_.code_order == placement::column_major) return c * side_.rows + r;
    if (side_.has_code_a_byte() && q_.code_order == placement::row_major) return r * side_.k + c;
    const index_t byte = c * storage_bits(q_.blocks.element) / 8;
    return code_layout(q_.code_order, q_.blocks, side_.rows, side_.k).offset(r, byte);
  }

  std::string code_text(std::uint8_t code) const {
    return text("0x%02x (%g)", code, static_cast<double>(decode(q_.blocks.element, code)));
  }
  std::string element_line(const element_difference& e, std::uint8_t scale) const {
    const bool two = e.want.toward_zero != e.want.away;
    return text("  [%lld, %lld] %.9g: code ", integer(e.row), integer(e.k), static_cast<double>(e.x)) +
           (two ? code_text(e.want.toward_zero) + " or " : "") + code_text(e.want.away) + " expected, " +
           code_text(e.got) + text(" written at byte %lld: ", integer(code_offset(e.row, e.k))) +
           name_of(code_kind(e, scale));
  }

  /// Position (row of the side, k) of the element with the block's amax; -1 if there is none.
  std::pair<index_t, index_t> place_of_amax(const block_bytes& p) const {
    std::pair<index_t, index_t> place{-1, -1};
    if (q_.is_per_tensor()) return place;
    each_element(p, [&](index_t row, index_t k, float x) {
      const bool is_it = (fp32_bits(x) & fp32_magnitude_mask) == p.t.amax[static_cast<std::size_t>(p.first / p.length)];
      if (is_it) place = {row, k};
      return !is_it;
    });
    return place;
  }

  /// Shows all values of one row of the block, before and after the rotation: the first row that differs, else the row
  /// of the amax.
  void show_values(const block_bytes& p, const block_difference& d) {
    const index_t amax_row = place_of_amax(p).first, first_row = p.tile * q_.tile_rows();
    const index_t row = !d.elements.empty() ? d.elements.front().row : amax_row < 0 ? first_row : amax_row;
    const matrix<const float> in =
        side_.axis == block_axis::row ? dump_.source_view() : transposed(dump_.source_view());
    std::string source = text("source of row %lld: ", integer(row)), rotated = "after the rotation: ";
    for (index_t i = p.first; i < p.first + p.length; ++i) {
      source += " " + value_text(in(row, p.tile_k + i));
      rotated += " " + value_text(p.t.x[static_cast<std::size_t>((row - first_row) * q_.tile_k() + i)]);
    }
    report_.first.push_back(source);
    if (q_.options.rotation.points != 0) report_.first.push_back(rotated);
  }

  /// Shows the scale with the amax that it comes from, and its position.
  void show_scale(const block_bytes& p) {
    const std::uint32_t amax = p.t.amax[static_cast<std::size_t>(p.first / p.length)];
    const auto [row, k] = place_of_amax(p);
    const std::string rule = q_.blocks.has_e8m0_scale()
                                 ? "rule " + std::string(to_string(q_.options.rule))
                                 : text("factor %.9g", static_cast<double>(q_.options.encode_factor));
    report_.first.push_back((amax == no_amax
                                 ? std::string("amax: no number in the block")
                                 : text("amax %.9g (0x%08x)", static_cast<double>(fp32_from_bits(amax)), amax)) +
                            (row < 0 ? "" : text(" of [%lld, %lld]", integer(row), integer(k))) + ", " + rule +
                            ", policy " + std::string(to_string(q_.options.policy)));
    const auto [where, repeat] = *find_scales(q_, side_);
    report_.first.push_back(text("scale byte 0x%02x (%g) expected, 0x%02x (%g) written at byte %lld", p.want,
                                 static_cast<double>(scale_value(q_.blocks.scale, p.want)), p.got,
                                 static_cast<double>(scale_value(q_.blocks.scale, p.got)),
                                 integer(where.offset(p.tile * repeat, (p.tile_k + p.first) / p.length))));
  }

  void explain(const block_place& place) {
    const tile_values t = quantize_tile(choices_.up(), dump_, side_, place.tile, place.tile_k);
    const block_bytes p = bytes_of(place, t);
    const block_difference d = difference_of(p);
    const index_t row = p.tile * q_.tile_rows(), k = p.tile_k + p.first;
    report_.first.push_back(text("%s, rows %lld..%lld, elements %lld..%lld along the block", side_.code_name(),
                                 integer(row), integer(row + q_.tile_rows() - 1), integer(k),
                                 integer(k + p.length - 1)));
    show_values(p, d);
    if (!q_.is_per_tensor()) show_scale(p);
    if (p.want != p.got) {
      report_.first.push_back(std::string(d.elements.empty() ? "all elements are right" : "elements") + " under the " +
                              (d.scale == p.got ? "written" : "expected") + " scale" + (d.elements.empty() ? "" : ":"));
    }
    constexpr std::size_t max_listed = 8;
    for (std::size_t i = 0; i < std::min(d.elements.size(), max_listed); ++i)
      report_.first.push_back(element_line(d.elements[i], d.scale));
  }

  /// Checks padding, and scales repeated for the rows that share them.
  void check_other_bytes() {
    if (q_.is_per_tensor()) return;
    const auto [where, repeat] = *find_scales(q_, side_);
    for (index_t i = 0; i < where.size_bytes(); ++i) {
      const std::uint8_t byte = side_.scales[static_cast<std::size_t>(i)];
      const auto at = where.position(i);
      if (!where.is_padding(at)) {
        // The scale of the first row has been compared with its block.
        const auto first = static_cast<std::size_t>(at.row / repeat * where.columns + at.column);
        if (byte == got_.scales[first]) continue;
        ++report_.kinds[name_of(difference_kind::scale_repeated)];
        ++report_.repeated_different;
        continue;
      }
      ++report_.padding;
      if (padding_ && byte != *padding_) ++report_.padding_different;
    }
  }

  static index_t different_bytes(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b) {
    index_t count = 0;
    for (std::size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
    return count;
  }
  /// Number of different bytes; with unknown words, of codes that are neither neighbour.
  index_t different_codes(const std::vector<std::uint8_t>& codes) const {
    if (!q_.has_unknown_words()) return different_bytes(want_.codes, codes);
    index_t count = 0;
    for (index_t e = 0; e < report_.elements; ++e) {
      const index_t r = e / side_.k, c = e % side_.k;
      const std::uint8_t got = code_of(codes, r, c);
      count += got != code_of(want_.codes, r, c) && got != code_of(lower_, r, c);
    }
    return count;
  }

  /// Names another byte order if it leaves less than half of the differences.
  void name_layout() {
    const auto name = [&](const char* what, const char* unit, index_t now, auto&& different_in) {
      constexpr auto& orders = enum_names<placement>::table;
      std::vector<std::optional<index_t>> different(std::size(orders));
      // If nothing differs, no order can leave less.
      if (now != 0) {
        for_each_or_throw(pool_, static_cast<index_t>(std::size(orders)), [&](index_t i) {
          const auto at = static_cast<std::size_t>(i);
          different[at] = different_in(orders[at].value);
        });
      }
      index_t least = (now + 1) / 2;
      std::string best;
      for (std::size_t i = 0; i < std::size(orders); ++i) {
        if (!different[i] || *different[i] >= least) continue;
        least = *different[i];
        best = orders[i].name;
      }
      if (!best.empty())
        report_.kinds["layout: " + std::string(what) + " in " + best + " (" + unit + ")"] = now - least;
    };
    name("codes", q_.has_unknown_words() ? "codes" : "bytes", different_codes(got_.codes),
         [&](placement order) -> std::optional<index_t> {
           quantizer other = q_;
           other.code_order = order;
           const std::optional<std::vector<std::uint8_t>> codes = dense_codes(other, side_);
           if (!codes) return std::nullopt;
           return different_codes(*codes);
         });
    name("scales", "bytes", different_bytes(want_.scales, got_.scales), [&](placement order) -> std::optional<index_t> {
      quantizer other = q_;
      other.scale_order = order;
      const std::optional<std::vector<std::uint8_t>> scales = dense_scales(other, side_);
      if (!scales) return std::nullopt;
      return different_bytes(want_.scales, *scales);
    });
  }

  const quantizer& q_;
  const quantizer_dump& dump_;
  const dump_side& side_;
  std::optional<std::uint8_t> padding_;
  thread_pool& pool_;
  code_choices choices_;
  dense_side want_, got_;
  std::vector<std::uint8_t> lower_;  ///< with unknown words: the lower neighbours, while want_ has the upper ones
  side_report report_;
};

/// Checks factor and amax. FP8's amax is taken before the factor, the amax of blocks after the rotation.
std::vector<std::string> check_tensor(const quantizer& q, const quantizer_dump& dump, thread_pool& pool) {
  std::vector<std::string> faults;
  if (dump.amax && (q.is_per_tensor() || !q.blocks.has_e8m0_scale())) {
    const float want = q.is_per_tensor()
                           ? source_amax(q, dump)
                           : tensor_amax(q.blocks, q.options, dump.source_view(), dump.sides.front().axis, pool);
    if (fp32_bits(want) != fp32_bits(*dump.amax))
      faults.push_back(
          text("amax: %.9g expected, %.9g written", static_cast<double>(want), static_cast<double>(*dump.amax)));
  }
  // FP8's factor may come from an amax history. Without an amax the origin of NVFP4's factor is unknown.
  if (dump.factor && dump.amax && !q.is_per_tensor() && !q.blocks.has_e8m0_scale()) {
    const float want = tensor_encode_factor(*dump.amax, q.blocks.element, q.blocks.scale);
    if (const float used = q.options.encode_factor; fp32_bits(want) != fp32_bits(used)) {
      faults.push_back(text("factor: %.9g expected of the amax, %.9g written", static_cast<double>(want),
                            static_cast<double>(used)));
    }
  }
  return faults;
}

}  // namespace

bool dump_report::identical() const {
  return tensor_faults.empty() &&
         std::all_of(sides.begin(), sides.end(), [](const side_report& s) { return s.identical(); });
}

bool dump_report::accepted() const {
  return identical() && std::all_of(sides.begin(), sides.end(), [](const side_report& s) { return s.accepted(); });
}

dump_report check_dump(const quantizer& q, const quantizer_dump& dump, std::optional<std::uint8_t> padding,
                       thread_pool& pool) {
  dump_report report;
  report.tensor_faults = check_tensor(q, dump, pool);
  for (const dump_side& side : dump.sides) report.sides.push_back(side_check(q, dump, side, padding, pool).run());
  return report;
}

}  // namespace rotoscale::validate
