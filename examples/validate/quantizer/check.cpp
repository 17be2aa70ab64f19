// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "check.hpp"

#include <algorithm>
#include <cstdio>

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
    check_padding();
    return std::move(report_);
  }

 private:
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
    for (const auto& [kind, line] : under_got.elements) ++report_.kinds[kind];
    report_.codes_different += different;
    report_.scales_different += want != got;
    if (different == 0 && want == got) return;
    ++report_.blocks_different;
    if (want != got) ++report_.kinds[scale_kind(t, b / length, want, got)];
    if (different != 0 && swapped_explains(t, tile, c, b, length, got)) ++report_.kinds["nibble order (blocks)"];
    if (report_.first.empty()) explain(t, tile, c, b, length, want, got, under_got);
  }

  /// Elements that differ under one scale: kind and, for the first ones, a line.
  struct block_difference {
    std::uint8_t scale = 0;
    std::vector<std::pair<std::string, std::string>> elements;
  };
  block_difference elements_under(const tile_values& t, index_t tile, index_t c, index_t b, index_t length,
                                  std::uint8_t scale) const {
    constexpr std::size_t max_listed = 8;
    block_difference d{scale, {}};
    for (index_t r = 0; r < q_.tile_rows(); ++r) {
      for (index_t i = b; i < b + length; ++i) {
        const index_t row = tile * q_.tile_rows() + r;
        const float x = t.x[static_cast<std::size_t>(r * q_.tile_k() + i)];
        const std::uint8_t code = got_code(row, c + i),
                           under = code_under(q_, dump_, side_, x, scale, row * side_.k + c + i, q_.options.rounding);
        if (code == under) continue;
        const std::string kind = code_kind(x, scale, under, code);
        const bool with_line = report_.first.empty() && d.elements.size() < max_listed;
        d.elements.emplace_back(kind, with_line ? element_line(row, c + i, x, under, code, kind) : "");
      }
    }
    return d;
  }

  std::string scale_kind(const tile_values& t, index_t block, std::uint8_t want, std::uint8_t got) const {
    const std::uint32_t amax = t.amax[static_cast<std::size_t>(block)];
    if (amax == 0) return "scale: policy of a block of zeros";
    if (amax == no_amax || fp32_is_nan(amax)) return "scale: policy of NaN";
    if (amax == fp32_infinity_bits) return "scale: policy of Inf";
    if (q_.blocks.scale.is_nan(got)) return "scale: NaN";
    return want + 1 == got || got + 1 == want ? "scale: off by one" : "scale: other";
  }

  std::string code_kind(float x, std::uint8_t scale, std::uint32_t want, std::uint32_t got) const {
    const format f = q_.blocks.element;
    if (fp32_is_nan(fp32_bits(x) & fp32_magnitude_mask)) return "code: policy of NaN";
    if (f.magnitude(want) == 0 && f.magnitude(got) == 0) return "code: sign of zero";
    if (f.magnitude(want) == f.magnitude(got)) return "code: sign";
    if (f.is_nan(got)) return "code: NaN";
    if (code_distance(f, want, got) != 1) return "code: other";
    return is_tie(x, scale, want, got) ? "code: tie" : "code: rounding";
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
        if (got_code(row, (c + i) ^ 1) !=
            code_under(q_, dump_, side_, x, scale, row * side_.k + c + i, q_.options.rounding))
          return false;
      }
    }
    return true;
  }

  index_t code_offset(index_t r, index_t c) const {
    const index_t byte = c * storage_bits(q_.blocks.element) / 8;
    return code_layout(q_.code_order, q_.blocks, side_.rows, side_.k).offset(r, byte);
  }

  std::string element_line(index_t r, index_t c, float x, std::uint32_t want, std::uint32_t got,
                           const std::string& kind) const {
    return text("  [%lld, %lld] %.9g: code 0x%02x (%g) expected, 0x%02x (%g) written at byte %lld: %s",
                static_cast<long long>(r), static_cast<long long>(c), static_cast<double>(x), want,
                static_cast<double>(decode(q_.blocks.element, want)), got,
                static_cast<double>(decode(q_.blocks.element, got)), static_cast<long long>(code_offset(r, c)),
                kind.c_str());
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
                            : text("amax %.9g (0x%08x)", static_cast<double>(fp32_from_bits(amax)), amax)) +
           ", " + rule + ", policy " + std::string(to_string(q_.options.policy)));
      const index_t offset = scale_layout(q_.scale_order, q_.blocks, side_.rows, side_.k).offset(row, (c + b) / length);
      line(text("scale byte 0x%02x (%g) expected, 0x%02x (%g) written%s", want,
                static_cast<double>(scale_value(q_.blocks.scale, want)), got,
                static_cast<double>(scale_value(q_.blocks.scale, got)),
                q_.scale_order == placement::row_major ? "" : text(" at byte %lld", at(offset)).c_str()));
    }
    if (want != got) {
      line(std::string(d.elements.empty() ? "all elements are right" : "elements") + " under the " +
           (d.scale == got ? "written" : "expected") + " scale" + (d.elements.empty() ? "" : ":"));
    }
    for (const auto& [kind, e] : d.elements) {
      if (!e.empty()) line(e);
    }
  }

  void check_padding() {
    if (q_.is_per_tensor()) return;
    const layout l = scale_layout(q_.scale_order, q_.blocks, side_.rows, side_.k);
    if (l.size_bytes() != static_cast<index_t>(side_.scales.size())) return;
    for (index_t i = 0; i < l.size_bytes(); ++i) {
      if (!l.is_padding(l.position(i))) continue;
      ++report_.padding;
      if (padding_ && side_.scales[static_cast<std::size_t>(i)] != *padding_) ++report_.padding_different;
    }
  }

  const quantizer& q_;
  const quantizer_dump& dump_;
  const dump_side& side_;
  std::optional<std::uint8_t> padding_;
  dense_side want_, got_;
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
