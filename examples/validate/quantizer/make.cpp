// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A source on which quantizers differ: amax at the borders of every scale rule, elements at ties, zeros of both signs,
// NaN, Inf, subnormal and huge numbers; for a rotation the same numbers behind its inverse.
#include <algorithm>
#include <cmath>

#include "../applicable.hpp"
#include "../format_names.hpp"
#include "command.hpp"
#include "dump.hpp"
#include "presets.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/philox.hpp"

namespace rotoscale::validate {

namespace {

/// A block's elements by the block's number; `random` gives words.
class case_row {
 public:
  /// `unit` is the source of what is quantized as 1, where a tensor has one factor.
  case_row(format source, format element, std::uint64_t seed, index_t row, float unit)
      : source_(source),
        element_(element),
        random_{seed, 16 + static_cast<std::uint64_t>(row)},
        row_(row),
        unit_(unit) {
    // A power of two under which the element's numbers and their middles are the source's.
    const bool narrow = source.max_exponent() < formats::bf16.max_exponent();
    least_ = narrow ? -6 : -20;
    count_ = narrow ? source.max_exponent() - 1 - element.max_exponent() - least_ + 1 : 41;
  }

  void fill(float* x, index_t k, int length) {
    for (index_t b = 0; b < k / length; ++b)
      fill_block(x + b * length, length, static_cast<int>((row_ * (k / length) + b) % 16));
  }

 private:
  float uniform() { return static_cast<float>(random_.word(at_++) >> 8) * 0x1p-24f; }
  float normal() {
    const float u = uniform() + 0x1p-25f, v = uniform();
    return std::sqrt(-2.0f * std::log(u)) * std::cos(6.2831853f * v);
  }

  void fill_block(float* x, int length, int kind) {
    const float scale =
        std::ldexp(1.0f, static_cast<int>(random_.word(at_++) % static_cast<unsigned>(count_)) + least_);
    for (int i = 0; i < length; ++i) x[i] = normal() * scale;
    const float inf = fp32_from_bits(fp32_infinity_bits), nan = fp32_from_bits(fp32_nan_bits);
    const auto place = [&](float value) { x[random_.word(at_++) % static_cast<unsigned>(length)] = value; };
    switch (kind) {
      case 0: std::fill_n(x, length, 0.0f); break;
      case 1:
        std::fill_n(x, length, 0.0f);
        place(-0.0f);
        break;
      case 2: place(nan); break;
      case 3: std::fill_n(x, length, nan); break;
      case 4: place(inf); break;
      case 5:
        place(-inf);
        place(nan);
        break;
      case 6: ties(x, length, unit_); break;
      case 7: ties(x, length, scale); break;
      case 8: border(x, length, scale, 1.5f); break;
      case 9: border(x, length, scale, 1.75f); break;
      case 10: border(x, length, scale, 1.0f); break;
      case 11:
        for (int i = 0; i < length; ++i) x[i] = normal() * std::ldexp(1.0f, source_.min_exponent() - 4);
        break;
      case 12: place(0x1.FFp127f); break;
      default: break;
    }
  }
  /// The middles between neighbouring numbers of the format, of both signs, under an amax of its largest.
  void ties(float* x, int length, float scale) {
    const auto codes = static_cast<std::uint32_t>(element_.max_code());
    for (int i = 0; i < length; ++i) {
      const std::uint32_t low = random_.word(at_++) % codes;
      const float middle = (decode(element_, low) + decode(element_, low + 1)) / 2;
      x[i] = (i % 2 == 0 ? middle : -middle) * scale;
    }
    x[0] = decode(element_, element_.max_code()) * scale;
  }
  /// An amax at, just below or just above the mantissa where a rule steps.
  void border(float* x, int length, float scale, float mantissa) {
    for (int i = 0; i < length; ++i) x[i] = std::fmod(x[i], mantissa * scale);
    const int step = static_cast<int>(random_.word(at_++) % 3) - 1, ulp = 1 << (23 - source_.mantissa_bits);
    x[0] =
        fp32_from_bits(static_cast<std::uint32_t>(static_cast<std::int64_t>(fp32_bits(mantissa * scale)) + step * ulp));
  }

  format source_, element_;
  random_stream random_;
  index_t row_;
  float unit_;
  int least_, count_;
  std::uint64_t at_ = 0;
};

/// The source as it is stored.
void add_source(io::safetensors_writer& writer, const quantizer_dump& dump) {
  const format f = dump.source_format;
  std::vector<std::uint8_t> bytes;
  for (const float x : dump.source) {
    const auto code = encode(f, x, rounding::nearest_even, overflow::to_inf);
    for (int bit = 0; bit < f.bits(); bit += 8) bytes.push_back(static_cast<std::uint8_t>(code >> bit));
  }
  writer.add("x", io::safetensors_dtype_of(f), {dump.rows, dump.cols}, std::as_bytes(std::span(bytes)));
}

/// codes and scales along rows, in the quantizer's placements, and the factor where the format has one.
void add_result(io::safetensors_writer& writer, const quantizer& q, const quantizer_dump& dump, thread_pool& pool) {
  dump_side side;
  side.rows = dump.rows;
  side.k = dump.cols;
  const dense_side result = quantize_side(q, dump, side, pool);
  const auto stored = [](const layout& l, const std::vector<std::uint8_t>& dense, std::uint8_t padding) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(l.size_bytes()));
    place(row_major(dense.data(), l.rows, l.columns), l, bytes.data(), padding);
    return bytes;
  };
  const auto add = [&](const char* name, const char* dtype, const layout& l, const std::vector<std::uint8_t>& bytes) {
    const bool plain = l.padded_rows() == l.rows && l.padded_columns() == l.columns;
    const std::vector<std::int64_t> flat{l.size_bytes()}, shape{l.rows, l.columns};
    writer.add(name, dtype, plain ? shape : flat, std::as_bytes(std::span(bytes)));
  };
  const layout codes = code_layout(q.code_order, q.blocks, side.rows, side.k);
  if (!codes.is_defined()) throw io::error("--code-placement", "not defined for these extents");
  std::vector<std::uint8_t> code_bytes = stored(codes, result.codes, 0);
  if (!q.low_nibble_first) {
    for (std::uint8_t& byte : code_bytes) byte = static_cast<std::uint8_t>(byte << 4 | byte >> 4);
  }
  const char* element = q.blocks.element == formats::e4m3   ? "F8_E4M3"
                        : q.blocks.element == formats::e5m2 ? "F8_E5M2"
                                                            : "U8";
  add("codes", element, codes, code_bytes);
  if (q.is_per_tensor() || !q.blocks.has_e8m0_scale())
    writer.add("factor", "F32", {1}, std::as_bytes(std::span(&q.options.encode_factor, 1)));
  if (q.is_per_tensor()) return;
  const layout scales{q.scale_order, side.rows / q.blocks.rows, side.k / q.blocks.length};
  add("scales", q.blocks.has_e8m0_scale() ? "U8" : "F8_E4M3", scales,
      stored(scales, result.scales, unit_scale(q.blocks.scale)));
}

}  // namespace

void make_quantizer_case(const std::string& path, const quantizer_options& o, index_t rows, index_t cols,
                         std::uint64_t seed, bool with_result, thread_pool& pool) {
  const block_format blocks = find_blocks(o.format.empty() ? "mxfp4" : o.format, o.block_rows);
  quantizer_dump dump;
  dump.rows = rows;
  dump.cols = cols;
  dump.source_format = *find_format(o.x_format, float_formats);
  quantizer q = quantizer_of(o, blocks);
  refuse_idle_options(o.given, q, dump, verb::make);
  const int length = blocks.length == 0 ? 32 : blocks.length;
  if (cols % std::max<index_t>(length, q.tile_k()) != 0)
    throw io::error(
        "--k", std::to_string(cols) + " is no multiple of " + std::to_string(std::max<index_t>(length, q.tile_k())));
  if (rows % q.tile_rows() != 0)
    throw io::error("--m", std::to_string(rows) + " is no multiple of " + std::to_string(q.tile_rows()));
  dump.source.resize(static_cast<std::size_t>(rows * cols));
  const float unit = q.is_per_tensor() ? 1 / q.options.encode_factor : 1.0f;
  for (index_t r = 0; r < rows; ++r) {
    float* x = dump.source.data() + r * cols;
    case_row(dump.source_format, blocks.element, seed, r, unit).fill(x, cols, length);
    // Behind the inverse rotation ties and borders arise in the rotated block; small ones exactly.
    if (q.options.rotation.points != 0 && r % 2 == 0) {
      for (index_t c = 0; c < cols; c += q.tile_k())
        unrotate_run(x + c, static_cast<int>(q.tile_k()), q.options.rotation);
    }
    for (index_t c = 0; c < cols; ++c) x[c] = round_to_format(dump.source_format, x[c]);
  }
  if (!o.factor && !q.is_per_tensor()) q.options.encode_factor = own_factor(q, dump);
  io::safetensors_writer writer;
  writer.metadata["quantizer"] = q.name;
  add_source(writer, dump);
  if (with_result) add_result(writer, q, dump, pool);
  writer.write(path);
}

}  // namespace rotoscale::validate
