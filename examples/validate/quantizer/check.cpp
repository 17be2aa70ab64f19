// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "check.hpp"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "../code_distance.hpp"
#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/quantize_ref.hpp"

namespace rotoscale::validate {

namespace {

template <class... Arguments>
std::string text(const char* pattern, Arguments... arguments) {
  char line[256];
  std::snprintf(line, sizeof line, pattern, arguments...);
  return line;
}

/// How a scale byte or an element differs, and its name in reports.
enum class difference {
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
                                            "nibble order (blocks)"};
static_assert(std::size(difference_names) == static_cast<std::size_t>(difference::nibble_order) + 1);
constexpr const char* name_of(difference d) { return difference_names[static_cast<std::size_t>(d)]; }

/// Compares one orientation.
class side_check {
 public:
  side_check(const quantizer& q, const quantizer_dump& dump, const dump_side& side, std::optional<std::uint8_t> padding,
             thread_pool& pool)
      : q_(q), dump_(dump), side_(side), padding_(padding), want_(quantize_side(q, dump, side, pool)) {
    const auto sized = [&](const std::optional<std::vector<std::uint8_t>>& bytes, const char* name, placement order,
                           index_t size) {
      if (bytes) return *bytes;
      throw io::error(dump.where, "tensor '" + std::string(name) + "': " + std::to_string(size) +
                                      " bytes are not what placement " + std::string(to_string(order)) + " takes for " +
                                      std::to_string(side.rows) + " x " + std::to_string(side.k));
    };
    got_.codes = sized(dense_codes(q, side), side.code_name(), q.code_order, static_cast<index_t>(side.codes.size()));
    got_.scales =
        sized(dense_scales(q, side), side.scale_name(), q.scale_order, static_cast<index_t>(side.scales.size()));
  }

  side_report run() {
    report_.side = &side_;
    report_.elements = side_.rows * side_.k;
    const index_t tiles_down = side_.rows / q_.tile_rows(), length = q_.is_per_tensor() ? 1 : q_.blocks.length;
    report_.blocks = tiles_down * (side_.k / length);
    for (index_t tile = 0; tile < tiles_down; ++tile) {
      if (row_is_equal(tile)) continue;
      for (index_t c = 0; c < side_.k; c += q_.tile_k()) {
        const tile_values t = quantize_tile(q_, dump_, side_, tile, c);
        for (index_t b = 0; b < q_.tile_k(); b += length) check_block(t, tile, c, b, length);
      }
    }
    check_other_bytes();
    name_layout();
    for (std::size_t d = 0; d < std::size(counts_); ++d) {
      if (counts_[d] != 0) report_.kinds[difference_names[d]] = counts_[d];
    }
    return std::move(report_);
  }

 private:
  void count(difference d) { ++counts_[static_cast<std::size_t>(d)]; }
  std::uint8_t got_code(index_t r, index_t c) const {
    return static_cast<std::uint8_t>(
        load_code(q_.blocks.element, got_.codes.data() + r * packed_bytes(q_.blocks.element, side_.k), c));
  }
  bool row_is_equal(index_t tile) const {
    const auto equal = [](const auto& a, const auto& b, index_t first, index_t count) {
      return std::equal(a.begin() + first, a.begin() + first + count, b.begin() + first);
    };
    const index_t bytes = packed_bytes(q_.blocks.element, side_.k) * q_.tile_rows();
    if (!equal(want_.codes, got_.codes, tile * bytes, bytes)) return false;
    if (q_.is_per_tensor()) return true;
    const index_t scales = side_.k / q_.blocks.length;
    return equal(want_.scales, got_.scales, tile * scales, scales);
  }

  /// One block: its scale, then its elements.
  void check_block(const tile_values& t, index_t tile, index_t c, index_t b, index_t length) {
    const index_t per_row = q_.is_per_tensor() ? 0 : side_.k / length;
    std::uint8_t want = 0, got = 0;
    if (!q_.is_per_tensor()) {
      want = t.scales[static_cast<std::size_t>(b / length)];
      got = got_.scales[static_cast<std::size_t>(tile * per_row + (c + b) / length)];
    }
    // Elements count under the scale that was written or, where that is nearer, under the expected one, so that a wrong
    // scale is one difference.
    block_difference under_got = elements_under(t, tile, c, b, length, got);
    if (want != got && !under_got.elements.empty()) {
      block_difference under_want = elements_under(t, tile, c, b, length, want);
      if (under_want.elements.size() < under_got.elements.size()) under_got = std::move(under_want);
    }
    const auto different = static_cast<index_t>(under_got.elements.size());
    for (const element_difference& e : under_got.elements) count(code_kind(e, under_got.scale));
    report_.codes_different += different;
    report_.scales_different += want != got;
    if (different == 0 && want == got) return;
    ++report_.blocks_different;
    if (want != got) count(scale_kind(t, b / length, want, got));
    if (different != 0 && swapped_explains(t, tile, c, b, length, got)) count(difference::nibble_order);
    if (report_.first.empty()) explain(t, tile, c, b, length, want, got, under_got);
  }

  struct element_difference {
    index_t row, k;
    float x;  ///< as it is quantized
    std::uint8_t want, got;
  };
  /// Elements that differ under one scale.
  struct block_difference {
    std::uint8_t scale = 0;
    std::vector<element_difference> elements;
  };
  block_difference elements_under(const tile_values& t, index_t tile, index_t c, index_t b, index_t length,
                                  std::uint8_t scale) const {
    block_difference d{scale, {}};
    for (index_t r = 0; r < q_.tile_rows(); ++r) {
      for (index_t i = b; i < b + length; ++i) {
        const index_t row = tile * q_.tile_rows() + r;
        const float x = t.x[static_cast<std::size_t>(r * q_.tile_k() + i)];
        const std::uint8_t code = got_code(row, c + i),
                           under = code_under(q_, dump_, side_, x, scale, row * side_.k + c + i);
        if (code != under) d.elements.push_back({row, c + i, x, under, code});
      }
    }
    return d;
  }

  difference scale_kind(const tile_values& t, index_t block, std::uint8_t want, std::uint8_t got) const {
    const std::uint32_t amax = t.amax[static_cast<std::size_t>(block)];
    if (amax == 0) return difference::scale_zeros;
    if (amax == no_amax || fp32_is_nan(amax)) return difference::scale_nan_policy;
    if (amax == fp32_infinity_bits) return difference::scale_inf_policy;
    if (q_.blocks.scale.is_nan(got)) return difference::scale_nan;
    return want + 1 == got || got + 1 == want ? difference::scale_off_by_one : difference::scale_other;
  }

  difference code_kind(const element_difference& e, std::uint8_t scale) const {
    const format f = q_.blocks.element;
    if (fp32_is_nan(fp32_bits(e.x) & fp32_magnitude_mask)) return difference::code_nan_policy;
    if (f.magnitude(e.want) == 0 && f.magnitude(e.got) == 0) return difference::code_sign_of_zero;
    if (f.magnitude(e.want) == f.magnitude(e.got)) return difference::code_sign;
    if (f.is_nan(e.got)) return difference::code_nan;
    if (code_distance(f, e.want, e.got) != 1) return difference::code_other;
    return is_tie(e.x, scale, e.want, e.got) ? difference::code_tie : difference::code_rounding;
  }
  /// Does the scaled value lie in the middle between two numbers of the format?
  bool is_tie(float x, std::uint8_t scale, std::uint32_t a, std::uint32_t b) const {
    const double middle =
        (static_cast<double>(decode(q_.blocks.element, a)) + static_cast<double>(decode(q_.blocks.element, b))) / 2;
    return scaled_value(q_, x, scale) == middle;
  }

  /// Would this block's bytes be right with their halves exchanged?
  bool swapped_explains(const tile_values& t, index_t tile, index_t c, index_t b, index_t length,
                        std::uint8_t scale) const {
    if (storage_bits(q_.blocks.element) != 4 || length % 2 != 0) return false;
    for (index_t r = 0; r < q_.tile_rows(); ++r) {
      for (index_t i = b; i < b + length; ++i) {
        const index_t row = tile * q_.tile_rows() + r;
        const float x = t.x[static_cast<std::size_t>(r * q_.tile_k() + i)];
        if (got_code(row, (c + i) ^ 1) != code_under(q_, dump_, side_, x, scale, row * side_.k + c + i)) return false;
      }
    }
    return true;
  }

  index_t code_offset(index_t r, index_t c) const {
    const index_t byte = c * storage_bits(q_.blocks.element) / 8;
    return code_layout(q_.code_order, q_.blocks, side_.rows, side_.k).offset(r, byte);
  }

  std::string element_line(const element_difference& e, std::uint8_t scale) const {
    return text("  [%lld, %lld] %.9g: code 0x%02x (%g) expected, 0x%02x (%g) written at byte %lld: %s",
                static_cast<long long>(e.row), static_cast<long long>(e.k), static_cast<double>(e.x), e.want,
                static_cast<double>(decode(q_.blocks.element, e.want)), e.got,
                static_cast<double>(decode(q_.blocks.element, e.got)), static_cast<long long>(code_offset(e.row, e.k)),
                name_of(code_kind(e, scale)));
  }

  /// The element whose magnitude it is.
  std::string place_of(std::uint32_t amax, const tile_values& t, index_t row, index_t c, index_t b,
                       index_t length) const {
    for (index_t r = 0; r < q_.tile_rows(); ++r) {
      for (index_t i = b; i < b + length; ++i) {
        const std::uint32_t bits = fp32_bits(t.x[static_cast<std::size_t>(r * q_.tile_k() + i)]);
        if ((bits & fp32_magnitude_mask) == amax)
          return text(" of [%lld, %lld]", static_cast<long long>(row + r), static_cast<long long>(c + i));
      }
    }
    return "";
  }

  void explain(const tile_values& t, index_t tile, index_t c, index_t b, index_t length, std::uint8_t want,
               std::uint8_t got, const block_difference& d) {
    const auto line = [&](std::string s) { report_.first.push_back(std::move(s)); };
    const auto at = [&](index_t i) { return static_cast<long long>(i); };
    const index_t row = tile * q_.tile_rows();
    line(text("%s, rows %lld..%lld, elements %lld..%lld along the block", side_.code_name(), at(row),
              at(row + q_.tile_rows() - 1), at(c + b), at(c + b + length - 1)));
    const matrix<const float> in =
        side_.axis == block_axis::row ? dump_.source_view() : transposed(dump_.source_view());
    std::string source = "source ", rotated = "after the rotation ";
    for (index_t i = 0; i < std::min<index_t>(length, 8); ++i) {
      source += text(" %.6g", static_cast<double>(in(row, c + b + i)));
      rotated += text(" %.6g", static_cast<double>(t.x[static_cast<std::size_t>(b + i)]));
    }
    line(source + (length > 8 ? " ..." : ""));
    if (q_.options.rotation.points != 0) line(rotated + (length > 8 ? " ..." : ""));
    if (!q_.is_per_tensor()) {
      const std::uint32_t amax = t.amax[static_cast<std::size_t>(b / length)];
      const std::string rule = q_.blocks.has_e8m0_scale()
                                   ? "rule " + std::string(to_string(q_.options.rule))
                                   : text("factor %.9g", static_cast<double>(q_.options.encode_factor));
      line((amax == no_amax ? std::string("amax: no number in the block")
                            : text("amax %.9g (0x%08x)%s", static_cast<double>(fp32_from_bits(amax)), amax,
                                   place_of(amax, t, row, c, b, length).c_str())) +
           ", " + rule + ", policy " + std::string(to_string(q_.options.policy)));
      const auto [where, repeat] = *find_scales(q_, side_);
      line(text("scale byte 0x%02x (%g) expected, 0x%02x (%g) written at byte %lld", want,
                static_cast<double>(scale_value(q_.blocks.scale, want)), got,
                static_cast<double>(scale_value(q_.blocks.scale, got)),
                at(where.offset(tile * repeat, (c + b) / length))));
    }
    if (want != got) {
      line(std::string(d.elements.empty() ? "all elements are right" : "elements") + " under the " +
           (d.scale == got ? "written" : "expected") + " scale" + (d.elements.empty() ? "" : ":"));
    }
    constexpr std::size_t max_listed = 8;
    for (std::size_t i = 0; i < std::min(d.elements.size(), max_listed); ++i)
      line(element_line(d.elements[i], d.scale));
  }

  /// Padding, and scales that are repeated for the rows that share them.
  void check_other_bytes() {
    if (q_.is_per_tensor()) return;
    const auto [where, repeat] = *find_scales(q_, side_);
    for (index_t i = 0; i < where.size_bytes(); ++i) {
      const std::uint8_t byte = side_.scales[static_cast<std::size_t>(i)];
      const auto at = where.position(i);
      if (!where.is_padding(at)) {
        // The first row's has been compared with its block.
        const auto first = static_cast<std::size_t>(at.row / repeat * where.columns + at.column);
        if (byte == got_.scales[first]) continue;
        count(difference::scale_repeated);
        ++report_.repeated_different;
        continue;
      }
      ++report_.padding;
      if (padding_ && byte != *padding_) ++report_.padding_different;
    }
  }

  /// Were the bytes written in another order? One that leaves less than half of the differences is named.
  void name_layout() {
    const auto different = [](const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b) {
      index_t count = 0;
      for (std::size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
      return count;
    };
    const auto name = [&](const char* what, const std::vector<std::uint8_t>& want, const std::vector<std::uint8_t>& got,
                          auto&& in_order) {
      const index_t now = different(want, got);
      index_t least = (now + 1) / 2;
      std::string best;
      for (const auto& order : enum_names<placement>::table) {
        const std::optional<std::vector<std::uint8_t>> bytes = in_order(order.value);
        if (!bytes || different(want, *bytes) >= least) continue;
        least = different(want, *bytes);
        best = order.name;
      }
      if (!best.empty()) report_.kinds["layout: " + std::string(what) + " in " + best + " (bytes)"] = now - least;
    };
    name("codes", want_.codes, got_.codes, [&](placement order) {
      quantizer other = q_;
      other.code_order = order;
      return dense_codes(other, side_);
    });
    name("scales", want_.scales, got_.scales, [&](placement order) {
      quantizer other = q_;
      other.scale_order = order;
      return dense_scales(other, side_);
    });
  }

  const quantizer& q_;
  const quantizer_dump& dump_;
  const dump_side& side_;
  std::optional<std::uint8_t> padding_;
  dense_side want_, got_;
  index_t counts_[std::size(difference_names)] = {};
  side_report report_;
};

/// The FP8 amax is of the values before the factor, the blocks' one of rotated values.
std::vector<std::string> check_tensor(const quantizer& q, const quantizer_dump& dump) {
  std::vector<std::string> faults;
  if (dump.amax && (q.is_per_tensor() || !q.blocks.has_e8m0_scale())) {
    std::uint32_t bits = 0;
    for (const float x : dump.source) {
      const std::uint32_t u = fp32_bits(round_to_format(q.options.source, x)) & fp32_magnitude_mask;
      if (u < fp32_infinity_bits && u > bits) bits = u;
    }
    const float want = q.is_per_tensor()
                           ? fp32_from_bits(bits)
                           : tensor_amax(q.blocks, q.options, dump.source_view(), dump.sides.front().axis);
    if (fp32_bits(want) != fp32_bits(*dump.amax))
      faults.push_back(
          text("amax: %.9g expected, %.9g written", static_cast<double>(want), static_cast<double>(*dump.amax)));
  }
  return faults;
}

}  // namespace

bool dump_report::identical() const {
  return tensor_faults.empty() &&
         std::all_of(sides.begin(), sides.end(), [](const side_report& s) { return s.identical(); });
}

dump_report check_dump(const quantizer& q, const quantizer_dump& dump, std::optional<std::uint8_t> padding,
                       thread_pool& pool) {
  dump_report report;
  report.tensor_faults = check_tensor(q, dump);
  for (const dump_side& side : dump.sides) report.sides.push_back(side_check(q, dump, side, padding, pool).run());
  return report;
}

}  // namespace rotoscale::validate
