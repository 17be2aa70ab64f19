// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Makes a source on which quantizers differ. It has amax at the limits of every scale rule, ties, zeros of both signs,
// NaN, Inf, subnormal and huge numbers. With a rotation, the same numbers go through its inverse.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "../applicable.hpp"
#include "../format_names.hpp"
#include "../make_case.hpp"
#include "command.hpp"
#include "dump.hpp"
#include "presets.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/philox.hpp"
#include "write.hpp"

namespace rotoscale::validate {

namespace {

/// Makes a block's elements from the block's number; `random` supplies words.
class case_row {
 public:
  /// `unit`: source value that is quantized as 1, for formats with one factor per tensor. `bounded`: no Inf and not the
  /// type's largest number.
  case_row(format source, format element, std::uint64_t seed, index_t row, float unit, bool bounded)
      : source_(source),
        element_(element),
        random_{seed, 16 + static_cast<std::uint64_t>(row)},
        row_(row),
        unit_(unit),
        bounded_(bounded) {
    // Exponent of the smallest scale: the element's numbers and midpoints are then numbers of the source's type.
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
    if (bounded_ && (kind == 4 || kind == 5)) return;
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
      case 8: border(x, length, scale, largest_mantissa()); break;  // rceil steps just above it
      case 9: border(x, length, scale, carry_mantissa()); break;    // even steps here
      case 10: border(x, length, scale, 1.0f); break;               // floor and ceil step here
      case 11:
        for (int i = 0; i < length; ++i) x[i] = normal() * std::ldexp(1.0f, source_.min_exponent() - 4);
        break;
      case 12: place(bounded_ ? bound() : decode(source_, static_cast<std::uint32_t>(source_.max_code()))); break;
      default: break;
    }
  }
  /// The largest magnitude of a bounded source. It exceeds all other numbers and makes NVFP4's factor a power of two,
  /// so that elements can tie.
  float bound() const {
    const float largest = decode(element_, element_.max_code()) * decode(formats::ue4m3, formats::ue4m3.max_code());
    return std::ldexp(largest, least_ + count_ - 9);
  }
  float largest_mantissa() const { return std::ldexp(decode(element_, element_.max_code()), -element_.max_exponent()); }
  /// The least mantissa that rounds up to 2 in the element's precision.
  float carry_mantissa() const {
    const float unit = decode(element_, element_.max_code()) - decode(element_, element_.max_code() - 1);
    return 2.0f - std::ldexp(unit, -element_.max_exponent() - 1);
  }
  /// Midpoints between neighbouring numbers of the format, both signs, with the format's largest number as amax.
  void ties(float* x, int length, float scale) {
    const auto codes = static_cast<std::uint32_t>(element_.max_code());
    for (int i = 0; i < length; ++i) {
      const std::uint32_t low = random_.word(at_++) % codes;
      const float middle = (decode(element_, low) + decode(element_, low + 1)) / 2;
      x[i] = (i % 2 == 0 ? middle : -middle) * scale;
    }
    x[0] = decode(element_, element_.max_code()) * scale;
  }
  /// A block whose amax is at, just below or just above the mantissa at which a rule steps.
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
  bool bounded_;
  int least_, count_;
  std::uint64_t at_ = 0;
};

/// Plan of a case: quantizer, orientations and block length.
struct case_plan {
  quantizer q;
  quantizer_dump dump;  ///< its sides are the wanted ones
  int length = 32;      ///< elements that are made together
  std::uint64_t seed = 0;

  /// NVFP4's factor comes from the tensor's largest number and is 1 if that is Inf. Cases of even seeds are bounded, so
  /// that they have another factor.
  bool is_bounded() const { return !q.is_per_tensor() && !q.blocks.has_e8m0_scale() && seed % 2 == 0; }
  index_t whole_blocks() const { return std::max<index_t>(length, q.tile_k()); }

  void check_extents() const {
    index_t rows = 1, cols = 1;
    for (const dump_side& side : dump.sides) {
      const bool row = side.axis == block_axis::row;
      (row ? rows : cols) = std::lcm(row ? rows : cols, q.tile_rows());
      (row ? cols : rows) = std::lcm(row ? cols : rows, whole_blocks());
    }
    if (dump.sides.size() == 2) rows *= 2;  // half are made along rows, half along columns
    const auto check = [](const char* option, index_t extent, index_t unit) {
      if (extent % unit != 0)
        throw io::error(option, std::to_string(extent) + " is no multiple of " + std::to_string(unit));
    };
    check("--k", dump.cols, cols);
    check("--m", dump.rows, rows);
  }

  /// Fills a part of the source, with rows parallel to the blocks. `number` is the number of its first row. Rows that
  /// share scales get the same elements per block, rotated by one position per row.
  void fill(matrix<float> part, index_t number) const {
    const float unit = q.is_per_tensor() ? 1 / q.options.encode_factor : 1.0f;
    const index_t k = part.extent(1);
    std::vector<float> row(static_cast<std::size_t>(k));
    for (index_t r = 0; r < part.extent(0); ++r) {
      const index_t tile = (number + r) / q.tile_rows(), turn = r % q.tile_rows() % length;
      case_row(dump.source_format, q.blocks.element, seed, tile, unit, is_bounded()).fill(row.data(), k, length);
      for (float* x = row.data(); x != row.data() + k; x += length) std::rotate(x, x + turn, x + length);
      // The inverse rotation produces ties and limits in the rotated block (small ones exactly). Half of the tiles get
      // it, in a pattern that gives every kind of block both ways, for any number of blocks per row.
      if (q.options.rotation.points != 0 && std::popcount(static_cast<std::uint64_t>(tile)) % 2 == 0) {
        for (index_t c = 0; c < k; c += q.tile_k())
          unrotate_run(row.data() + c, static_cast<int>(q.tile_k()), q.options.rotation);
      }
      for (index_t c = 0; c < k; ++c)
        part(r, c) = round_to_format(dump.source_format, row[static_cast<std::size_t>(c)]);
    }
  }

  void fill() {
    dump.source.resize(static_cast<std::size_t>(dump.rows * dump.cols));
    index_t first = 0;
    for (std::size_t s = 0; s < dump.sides.size(); ++s) {
      const index_t rows = dump.rows / static_cast<index_t>(dump.sides.size());
      const matrix<float> part = row_major(dump.source.data() + first * dump.cols, rows, dump.cols);
      fill(dump.sides[s].axis == block_axis::row ? part : transposed(part), first);
      first += rows;
    }
  }
};

}  // namespace

io::safetensors_writer make_quantizer_case(const quantizer_options& o, index_t rows, index_t cols, std::uint64_t seed,
                                           bool with_result, thread_pool& pool) {
  const block_format blocks = find_blocks(o.format.empty() ? "mxfp4" : o.format, o.block_rows);
  case_plan plan;
  plan.seed = seed;
  quantizer& q = plan.q = quantizer_of(o, blocks);
  quantizer_dump& dump = plan.dump;
  dump.rows = rows;
  dump.cols = cols;
  dump.source_format = *find_format(o.x_format, float_formats);
  refuse_idle_options(o.given, q, dump, verb::make);
  check_defined(q, dump);
  if (o.axis != "column") dump.sides.push_back({block_axis::row, rows, cols, {}, {}});
  if (o.axis != "row") dump.sides.push_back({block_axis::column, cols, rows, {}, {}});
  if (blocks.length != 0) plan.length = blocks.length;
  plan.check_extents();
  if (rows * cols > largest_made_tensor)
    throw io::error("--m, --k", "a tensor of " + std::to_string(rows * cols) + " elements, the limit is " +
                                    std::to_string(largest_made_tensor));
  plan.fill();
  if (!o.factor && !q.is_per_tensor()) {
    take_own_factor(q, dump, pool);
    check_defined(q, dump);
  }
  io::safetensors_writer writer;
  writer.metadata["quantizer"] = q.name;
  add_source(writer, dump);
  if (with_result) {
    for (const dump_side& side : dump.sides) add_side(writer, q, side, quantize_side(q, dump, side, pool));
    if (q.is_per_tensor() || !blocks.has_e8m0_scale())
      writer.add("factor", "F32", {1}, std::as_bytes(std::span(&q.options.encode_factor, 1)));
  }
  return writer;
}

}  // namespace rotoscale::validate
