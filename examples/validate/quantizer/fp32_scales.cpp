// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "fp32_scales.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "../format_names.hpp"
#include "../input.hpp"
#include "examples/threads.hpp"
#include "rotoscale/philox.hpp"
#include "rotoscale/round.hpp"

namespace rotoscale::validate {

namespace {

using scale_of = fp32_scaling::scale_of;
using code_of = fp32_scaling::code_of;

struct named_least {
  float amax;
  const char *name, *text;
};
constexpr named_least least_amaxes[] = {{1e-12f, "least_1e-12", "amax at least 1e-12 (torchao)"},
                                        {1e-10f, "least_1e-10", "amax at least 1e-10 (vLLM, SGLang)"},
                                        {1e-4f, "least_1e-4", "amax at least 1e-4 (DeepGEMM)"}};

float next_power_of_two(float x) {
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);
  return fraction == 0.0f || !std::isfinite(x) ? x : std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

float power_of_two_below(float x) {
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);
  return fraction == 0.0f || !std::isfinite(x) ? x : std::ldexp(1.0f, exponent - 1);
}

std::string number(float x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(x));
  return text;
}

[[noreturn]] void fail(const io::safetensors_file& file, const std::string& tensor, const std::string& what) {
  throw io::error(file.name(), "tensor '" + tensor + "': " + what);
}

}  // namespace

std::vector<std::string> fp32_scaling::details() const {
  std::vector<std::string> names;
  if (scale != scale_of::quotient) names.emplace_back(scale == scale_of::product ? "scale_product" : "scale_inverse");
  if (code != code_of::quotient) names.emplace_back(code == code_of::product ? "code_product" : "code_factor");
  if (power_of_two) names.emplace_back("power_of_two");
  if (stores_factor) names.emplace_back("stored_factor");
  for (const named_least& l : least_amaxes) {
    if (least_amax == l.amax) names.emplace_back(l.name);
  }
  return names;
}

std::vector<fp32_scaling> all_fp32_scalings() {
  std::vector<fp32_scaling> all;
  for (const scale_of scale : {scale_of::quotient, scale_of::product, scale_of::inverse}) {
    for (const code_of code : {code_of::quotient, code_of::product, code_of::factor}) {
      for (const int flags : {0, 1, 2, 3}) {
        for (const float least : {0.0f, least_amaxes[0].amax, least_amaxes[1].amax, least_amaxes[2].amax})
          all.push_back({scale, code, (flags & 1) != 0, (flags & 2) != 0, least});
      }
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const fp32_scaling& a, const fp32_scaling& b) {
    return a.details().size() < b.details().size();
  });
  return all;
}

fp32_scaling find_fp32_scaling(const std::vector<std::string>& details) {
  std::vector<std::string> known;
  for (const fp32_scaling& s : all_fp32_scalings()) {
    std::vector<std::string> own = s.details();
    if (own.size() == 1) known.push_back(own.front());
    if (std::is_permutation(own.begin(), own.end(), details.begin(), details.end())) return s;
  }
  for (const std::string& name : details) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw io::error("--detail", "'" + name + "' is unknown" + io::did_you_mean(name, known));
  }
  throw io::error("--detail", "these details exclude each other");
}

std::string list_fp32_details() {
  std::string text = std::string("  ") + fp32_scaled_name +
                     ": FP8 in blocks with an FP32 scale, amax / largest; its details:\n"
                     "    scale_product: amax * (1 / largest)\n"
                     "    scale_inverse: 1 / (largest / amax), 1 for a block of zeros (Transformer Engine)\n"
                     "    code_product: x * (1 / scale) instead of x / scale\n"
                     "    code_factor: x * (largest / amax)\n"
                     "    power_of_two: scales rounded up to a power of two\n"
                     "    stored_factor: scales hold the factor of x\n";
  for (const named_least& l : least_amaxes) text += std::string("    ") + l.name + ": " + l.text + "\n";
  return text;
}

fp32_scaled_block quantize_fp32_scaled(const fp32_scaling& how, format element, const std::vector<float>& x) {
  float amax = how.least_amax;
  for (const float v : x) amax = std::fabs(v) > amax ? std::fabs(v) : amax;
  const float largest = decode(element, element.max_code());
  float factor = amax == 0.0f && how.scale == scale_of::inverse ? 1.0f : largest / amax;
  if (how.power_of_two) factor = power_of_two_below(factor);
  float scale = how.scale == scale_of::quotient  ? amax / largest
                : how.scale == scale_of::product ? amax * (1.0f / largest)
                                                 : 1.0f / factor;
  if (how.power_of_two) scale = next_power_of_two(scale);
  const float inverse = 1.0f / scale;
  fp32_scaled_block block{how.stores_factor ? factor : scale, {}};
  for (const float v : x) {
    const float scaled =
        how.code == code_of::quotient ? v / scale : v * (how.code == code_of::product ? inverse : factor);
    block.codes.push_back(
        static_cast<std::uint8_t>(encode(element, scaled, rounding::nearest_even, overflow::saturate)));
  }
  return block;
}

bool fp32_scaled_dump::is_one(const io::safetensors_file& file) {
  for (const char* name : {"scales", "scales_t"}) {
    const io::tensor_info* const scales = file.find(name);
    if (scales != nullptr && scales->dtype == "F32") return true;
  }
  return false;
}

fp32_scaled_dump::fp32_scaled_dump(const io::safetensors_file& file) {
  const std::vector<std::string> known{"x", "codes", "scales", "codes_t", "scales_t"};
  for (const io::tensor_info& t : file.tensors()) {
    if (std::find(known.begin(), known.end(), t.name) == known.end())
      fail(file, io::printable(t.name), "not part of a dump with FP32 scales" + io::did_you_mean(t.name, known));
  }
  const io::tensor_info* const x = file.find("x");
  if (x == nullptr) fail(file, "x", "missing: the source that was quantized");
  if (x->dtype != "F32" && x->dtype != "BF16" && x->dtype != "F16")
    fail(file, "x", "type " + x->dtype + " is none of F32, BF16, F16");
  if (x->shape.empty() || x->begin == x->end) fail(file, "x", x->shape.empty() ? "is a scalar" : "is empty");
  cols_ = x->shape.back();
  rows_ = 1;
  for (std::size_t i = 0; i + 1 < x->shape.size(); ++i) rows_ *= x->shape[i];
  source_.resize(static_cast<std::size_t>(rows_ * cols_));
  file.read_floats(*x, 0, source_);
  for (const block_axis axis : {block_axis::row, block_axis::column}) load_side(file, axis);
}

void fp32_scaled_dump::load_side(const io::safetensors_file& file, block_axis axis) {
  side s;
  s.named.axis = axis;
  const bool row = axis == block_axis::row;
  s.named.rows = row ? rows_ : cols_;
  s.named.k = row ? cols_ : rows_;
  const char *const code_name = s.named.code_name(), *const scale_name = s.named.scale_name();
  const io::tensor_info *const codes = file.find(code_name), *const scales = file.find(scale_name);
  if (codes == nullptr && scales == nullptr) return;
  if (codes == nullptr || scales == nullptr)
    fail(file, codes == nullptr ? code_name : scale_name,
         std::string("missing; the file has only ") + (codes == nullptr ? scale_name : code_name));
  const auto element = find_format(codes->dtype, fp8_formats);
  if (!element) fail(file, code_name, "type " + codes->dtype + " is none of " + dtype_list(fp8_formats));
  if (!sides_.empty() && !(*element == element_))
    fail(file, code_name, "type " + codes->dtype + " is not that of codes");
  if (scales->dtype != "F32") fail(file, scale_name, "type " + scales->dtype + " is not F32");
  element_ = *element;
  const auto bytes = file.bytes(*codes);
  if (static_cast<index_t>(bytes.size()) != s.named.rows * s.named.k)
    fail(file, code_name,
         std::to_string(bytes.size()) + " bytes are not " + std::to_string(s.named.rows) + " x " +
             std::to_string(s.named.k));
  s.named.codes.resize(bytes.size());
  std::memcpy(s.named.codes.data(), bytes.data(), bytes.size());
  // [rows of blocks, blocks along k], or the transpose, as kernels that load scales by columns store them.
  const auto fits = [&](index_t down, index_t across) {
    return down > 0 && across > 0 && s.named.rows % down == 0 && s.named.k % across == 0;
  };
  if (scales->shape.size() != 2)
    fail(file, scale_name, "its shape " + shape_text(scales->shape) + " is not two extents");
  index_t down = scales->shape[0], across = scales->shape[1];
  const bool turned = !fits(down, across) || (down != s.named.rows && across == s.named.rows);
  if (turned) std::swap(down, across);
  if (!fits(down, across))
    fail(file, scale_name,
         "its shape " + shape_text(scales->shape) + " divides " + std::to_string(s.named.rows) + " x " +
             std::to_string(s.named.k) + " into no whole blocks");
  s.block_rows = s.named.rows / down;
  s.block_columns = s.named.k / across;
  std::vector<float> stored(static_cast<std::size_t>(down * across));
  file.read_floats(*scales, 0, stored);
  s.scales = stored;
  for (index_t i = 0; turned && i < down * across; ++i)
    s.scales[static_cast<std::size_t>(i)] = stored[static_cast<std::size_t>(i % across * down + i / across)];
  sides_.push_back(std::move(s));
}

index_t fp32_scaled_dump::blocks() const {
  index_t all = 0;
  for (const side& s : sides_) all += s.blocks();
  return all;
}

std::vector<float> fp32_scaled_dump::values(const side& s, index_t block) const {
  std::vector<float> x;
  const index_t first_row = block / s.blocks_across() * s.block_rows;
  const index_t first_k = block % s.blocks_across() * s.block_columns;
  for (index_t r = first_row; r < first_row + s.block_rows; ++r) {
    for (index_t k = first_k; k < first_k + s.block_columns; ++k)
      x.push_back(source_[static_cast<std::size_t>(s.named.axis == block_axis::row ? r * cols_ + k : k * cols_ + r)]);
  }
  return x;
}

std::vector<std::uint8_t> fp32_scaled_dump::codes(const side& s, index_t block) const {
  std::vector<std::uint8_t> all;
  const index_t first_row = block / s.blocks_across() * s.block_rows;
  const index_t first_k = block % s.blocks_across() * s.block_columns;
  for (index_t r = first_row; r < first_row + s.block_rows; ++r) {
    const auto row = s.named.codes.begin() + r * s.named.k + first_k;
    all.insert(all.end(), row, row + s.block_columns);
  }
  return all;
}

bool fp32_scaled_dump::explains(const fp32_scaling& how, const side& s, index_t block) const {
  const fp32_scaled_block wanted = quantize_fp32_scaled(how, element_, values(s, block));
  return fp32_bits(wanted.scale) == fp32_bits(s.scales[static_cast<std::size_t>(block)]) &&
         wanted.codes == codes(s, block);
}

dump_report fp32_scaled_dump::check(const fp32_scaling& how, thread_pool& pool) const {
  dump_report report;
  for (const side& s : sides_) {
    std::vector<std::uint8_t> right(static_cast<std::size_t>(s.blocks()));
    for_each_or_throw(pool, s.blocks(),
                      [&](index_t b) { right[static_cast<std::size_t>(b)] = explains(how, s, b) ? 1 : 0; });
    side_report r;
    r.side = &s.named;
    r.blocks = s.blocks();
    r.elements = s.named.rows * s.named.k;
    for (index_t b = 0; b < s.blocks(); ++b) {
      if (right[static_cast<std::size_t>(b)] != 0) continue;
      const std::vector<float> x = values(s, b);
      const fp32_scaled_block wanted = quantize_fp32_scaled(how, element_, x);
      const std::vector<std::uint8_t> got = codes(s, b);
      const float scale = s.scales[static_cast<std::size_t>(b)];
      const auto place = [&](index_t e) {
        return "[" + std::to_string(b / s.blocks_across() * s.block_rows + e / s.block_columns) + ", " +
               std::to_string(b % s.blocks_across() * s.block_columns + e % s.block_columns) + "]";
      };
      const bool is_first = r.blocks_different++ == 0;
      if (fp32_bits(scale) != fp32_bits(wanted.scale)) {
        ++r.scales_different;
        const bool is_near = scale == std::nextafter(wanted.scale, scale);
        ++r.kinds[is_near ? "scale: off by one" : "scale: other"];
        if (is_first)
          r.first.push_back("block at " + place(0) + ": scale " + number(wanted.scale) + ", found " + number(scale));
      }
      for (std::size_t e = 0; e < got.size(); ++e) {
        if (got[e] == wanted.codes[e]) continue;
        ++r.codes_different;
        ++r.kinds[std::abs(got[e] - wanted.codes[e]) == 1 ? "code: neighbour" : "code: other"];
        if (is_first && r.first.size() < 8)
          r.first.push_back(place(static_cast<index_t>(e)) + ": x " + number(x[e]) + ", code " +
                            std::to_string(wanted.codes[e]) + ", found " + std::to_string(got[e]));
      }
    }
    report.sides.push_back(std::move(r));
  }
  return report;
}

std::vector<fp32_scaled_dump::explanation> fp32_scaled_dump::identify(index_t sample, thread_pool& pool) const {
  std::vector<std::pair<const side*, index_t>> chosen;
  const random_stream random{1, 3};
  const index_t all = blocks();
  for (index_t i = 0; i < std::min(sample, all); ++i) {
    auto block =
        all <= sample
            ? i
            : static_cast<index_t>(random.word(static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(all));
    const side* s = sides_.data();
    for (; block >= s->blocks(); ++s) block -= s->blocks();
    chosen.emplace_back(s, block);
  }
  std::vector<explanation> found;
  for (const fp32_scaling& how : all_fp32_scalings()) found.push_back({how, 0});
  for_each_or_throw(pool, static_cast<index_t>(found.size()), [&](index_t i) {
    explanation& e = found[static_cast<std::size_t>(i)];
    for (const auto& [s, block] : chosen) e.explained += explains(e.how, *s, block) ? 1 : 0;
  });
  std::stable_sort(found.begin(), found.end(),
                   [](const explanation& a, const explanation& b) { return a.explained > b.explained; });
  return found;
}

}  // namespace rotoscale::validate
