// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Fuzz target over the block quantizers. The first bytes of an input choose the block format, the options, the
// shape, the layout and the threads; the rest are values. quantize, quantize_both and dequantize must leave the bytes
// that quantize_ref and dequantize_ref leave, padding included. Buffers are as small as they may be, so that the
// address sanitizer sees a read or a write beyond the matrices. Arrays of several MiB, which bypass caches, are too
// slow here.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "byte_choices.hpp"
#include "rotoscale/dequantize.hpp"
#include "rotoscale/quantize.hpp"
#include "target.hpp"

namespace quantize_fuzz {

namespace {

using namespace rotoscale;
using fuzz::byte_choices;

/// A format of the caller's own, of 3 to 8 bits; a scale is unsigned and has a NaN.
format custom_format(byte_choices& in, bool scale) {
  const int exponent_bits = 1 + in.below(scale ? 8 : 6);
  const int room = (scale ? 8 : 7) - exponent_bits;
  int mantissa_bits = in.below(room + 1);
  if (exponent_bits + mantissa_bits < 2) mantissa_bits = 1;
  const int bias = in.below(1 << exponent_bits);
  constexpr specials kinds[] = {specials::nan_only, specials::ieee, specials::none, specials::fnuz};
  specials kind = scale ? kinds[in.below(2)] : in.one_of(kinds);
  // Infinity and NaN of an IEEE format need a mantissa, and numbers an exponent beside theirs.
  if (kind == specials::ieee && (mantissa_bits == 0 || exponent_bits == 1)) kind = specials::nan_only;
  return {exponent_bits, mantissa_bits, bias, !scale, kind, in.flag()};
}

block_format choose_format(byte_choices& in) {
  constexpr block_format named[] = {mxfp4, mxfp6_e2m3, mxfp6_e3m2, mxfp8_e4m3, mxfp8_e5m2, mxint8, nvfp4};
  constexpr format elements[] = {formats::e2m1,     formats::e2m3,        formats::e3m2, formats::e4m3,
                                 formats::e5m2,     formats::e4m3fnuz,    formats::int8, formats::e8m0,
                                 formats::e5m2fnuz, formats::e4m3b11fnuz, formats::ue4m3};
  constexpr format scales[] = {formats::e8m0, formats::ue4m3, formats::ue5m3};
  constexpr int lengths[] = {32, 16, 64, 128, 256, 8, 4, 2, 1, 3, 12, 96};
  constexpr int heights[] = {1, 32, 16, 2, 3};
  const int kind = in.below(4);
  if (kind == 0) return in.one_of(named);
  if (kind == 1) return square_blocks(in.one_of(named));
  block_format f;
  f.element = kind == 2 ? in.one_of(elements) : custom_format(in, false);
  f.length = in.one_of(lengths);
  f.scale = in.flag() ? custom_format(in, true) : in.one_of(scales);
  f.rows = in.one_of(heights);
  return f;
}

block_policy choose_policy(byte_choices& in, format scale) {
  constexpr block_policy named[] = {policies::te_rocm, policies::ocp,           policies::primus,
                                    policies::aiter,   policies::aiter_nonzero, policies::nvidia};
  // Numbers of the scale format, which are all that a floating-point one may have here; E8M0 takes any byte.
  constexpr format e8m0 = formats::e8m0;
  const unsigned codes = scale == e8m0 ? 256 : static_cast<unsigned>(scale.max_code()) + 1;
  block_policy p;
  if (in.flag()) {
    p = in.one_of(named);
    p.zero_byte = static_cast<std::uint8_t>(p.zero_byte % codes);
    return p;
  }
  p.zero_byte = static_cast<std::uint8_t>(in.byte() % codes);
  p.least_byte = static_cast<std::uint8_t>(in.byte() % codes);
  p.nan = static_cast<block_policy::nan_rule>(in.below(3));
  p.infinity = static_cast<block_policy::infinity_rule>(in.below(3));
  return p;
}

/// A positive finite FP32 number.
float choose_factor(byte_choices& in) {
  if (in.flag()) return 1.0f;
  const std::uint32_t bits = in.word() % fp32_infinity_bits;
  return bits == 0 ? 1.0f : fp32_from_bits(bits);
}

block_options choose_options(byte_choices& in, block_format f) {
  constexpr format sources[] = {formats::fp32, formats::bf16, formats::fp16, formats::tf32,
                                formats::fp64, formats::e4m3, formats::e5m2};
  constexpr scale_rule rules[] = {scale_rule::floor, scale_rule::ceil, scale_rule::even, scale_rule::rceil};
  constexpr rounding roundings[] = {rounding::nearest_even, rounding::nearest_away, rounding::toward_zero, rounding::up,
                                    rounding::down,         rounding::to_odd,       rounding::stochastic};
  block_options o;
  o.source = in.one_of(sources);
  o.rule = in.one_of(rules);
  o.policy = choose_policy(in, f.scale);
  o.rounding = in.flag() ? in.one_of(roundings) : rounding::nearest_even;
  // None, or a power of two that divides a block or is a multiple of one.
  constexpr int point_numbers[] = {0, 16, 32, 2, 4, 8, 64, 128, 256};
  const int points = in.one_of(point_numbers);
  if (points != 0 && (f.length % points == 0 || points % f.length == 0)) {
    o.rotation.points = points;
    const int words = in.below(4);  // fixed signs, one word, two, or all
    for (int i = 0; i < (words == 3 ? 8 : words); ++i) o.rotation.signs[i] = in.word();
  }
  if (o.rounding == rounding::stochastic) {
    o.random = {in.byte(), in.byte()};
    o.random_count = 1 + in.below(32);
  }
  if (!f.has_e8m0_scale()) o.encode_factor = choose_factor(in);
  return o;
}

/// Raw bits, or numbers of neighbouring exponents with few mantissa bits, among which ties are frequent.
class value_source {
 public:
  explicit value_source(byte_choices& in)
      : in_(in), raw_(in.flag()), first_exponent_(in.byte()), exponent_mask_((1u << in.below(5)) - 1) {
    constexpr std::uint32_t mantissas[] = {0x700000u, 0x7FFFFFu, 0x7F0000u, 0x7FC000u, 0x400000u, 0x7F8001u};
    mantissa_mask_ = in.one_of(mantissas);
    special_every_ = in.byte();
    in.repeat_rest();
  }

  void store(float& to) { to = fp32_from_bits(bits()); }
  void store(double& to) {
    const std::uint64_t low = raw_ ? in_.repeated_word() : in_.repeated_word() & 3u;
    const double wide = fp32_from_bits(bits());
    to = bit_cast<double>(bit_cast<std::uint64_t>(wide) ^ low);
  }
  void store(bf16& to) { to = bf16::from_bits(static_cast<std::uint16_t>(bits() >> 16)); }
  void store(fp16& to) {
    const std::uint32_t u = bits();
    to = raw_ ? fp16::from_bits(static_cast<std::uint16_t>(u))
              : fp16(fp32_from_bits(u), rounding::nearest_even, overflow::to_inf);
  }

 private:
  std::uint32_t bits() {
    constexpr std::uint32_t special[] = {0u,          0x80000000u, 0x7F800000u, 0xFF800000u, 0x7FC00000u,
                                         0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu, 0x7F7FFFFFu, 0x00000001u,
                                         0x807FFFFFu, 0x00800000u, 0x7F7F8000u, 0x7F600000u, 0x7F400000u};
    const std::uint32_t w = in_.repeated_word();
    if (raw_) return w;
    ++count_;
    if (special_every_ != 0 && count_ % special_every_ == 0) return special[w % std::size(special)];
    const std::uint32_t exponent = (first_exponent_ + (w >> 24 & exponent_mask_)) & 0xFFu;
    return (w & fp32_sign_mask) | exponent << 23 | (w & mantissa_mask_);
  }

  byte_choices& in_;
  bool raw_;
  std::uint32_t first_exponent_;
  std::uint32_t exponent_mask_;
  std::uint32_t mantissa_mask_ = 0;
  std::uint32_t special_every_ = 0;
  std::uint32_t count_ = 0;
};

/// Distances between rows and between columns of an m × n array: some order and padding, or one row or column for all.
void choose_strides(byte_choices& in, index_t m, index_t n, index_t (&strides)[2]) {
  const index_t pad = in.below(8);
  const int kind = in.below(8);
  const index_t layouts[8][2] = {{n, 1},          {n + pad, 1},  {1, m + pad}, {2 * n + pad, 2},
                                 {-(n + pad), 1}, {n + pad, -1}, {0, 1},       {1, 0}};
  for (int d = 0; d < 2; ++d) strides[d] = layouts[kind][d];
}

struct job {
  block_format format;
  block_options options;
  block_options other;  ///< of the columns, where both orientations are made
  block_axis axis;
  index_t rows, k;  ///< of the output
  index_t code_pad, scale_pad;
  int threads;
};

struct stored {
  std::vector<std::uint8_t> codes, scales;
  block_matrix<std::uint8_t> blocks;
};

/// Memory for rows × k elements without a byte after the last row, its padding marked.
stored make_output(const job& j, index_t rows, index_t k) {
  const index_t code_row = packed_bytes(j.format.element, k), scale_row = k / j.format.length;
  const auto size = [](index_t count, index_t row, index_t pad) {
    return static_cast<std::size_t>(count == 0 ? 0 : count * (row + pad) - pad);
  };
  stored s;
  s.codes.assign(size(rows, code_row, j.code_pad), 0xEE);
  s.scales.assign(size(rows / j.format.rows, scale_row, j.scale_pad), 0xEE);
  s.blocks = {rows, k, s.codes.data(), code_row + j.code_pad, s.scales.data(), scale_row + j.scale_pad};
  return s;
}

void print(const char* what, format f) {
  std::printf("%s {%d, %d, %d, %d, %d, %d, %d, %d} ", what, f.exponent_bits, f.mantissa_bits, f.bias, f.is_signed,
              static_cast<int>(f.specials), f.has_subnormals, f.has_zero, f.twos_complement);
}

[[noreturn]] void fail(const job& j, const char* what, const std::vector<std::uint8_t>& expected,
                       const std::vector<std::uint8_t>& got) {
  print("element", j.format.element);
  print("scale", j.format.scale);
  print("source", j.options.source);
  std::printf("\nlength %d rows %d; output %td x %td, %s; rule %d, rounding %d, points %d, policy {%d, %d, %d, %d}, ",
              j.format.length, j.format.rows, j.rows, j.k, j.axis == block_axis::row ? "row" : "column",
              static_cast<int>(j.options.rule), static_cast<int>(j.options.rounding), j.options.rotation.points,
              j.options.policy.zero_byte, j.options.policy.least_byte, static_cast<int>(j.options.policy.nan),
              static_cast<int>(j.options.policy.infinity));
  std::printf("factor %a, threads %d\n", static_cast<double>(j.options.encode_factor), j.threads);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == got[i]) continue;
    std::printf("%s: byte %zu is %02X, must be %02X\n", what, i, got[i], expected[i]);
    break;
  }
  std::fflush(stdout);
  std::abort();
}

void compare(const job& j, const char* what, const stored& expected, const stored& got) {
  if (expected.codes != got.codes) fail(j, what, expected.codes, got.codes);
  if (expected.scales != got.scales) fail(j, what, expected.scales, got.scales);
}

thread_pool& pool_of(int threads) {
  static thread_pool one(1), two(2), three(3);
  return threads == 1 ? one : threads == 2 ? two : three;
}

/// Memory for an m × n array in a chosen layout, and its view.
template <class T>
struct array {
  array(byte_choices& in, index_t m, index_t n) : view{nullptr, {m, n}, {}} {
    choose_strides(in, m, n, view.strides);
    if (m == 0 || n == 0) return;
    const index_t span[2] = {(m - 1) * view.strides[0], (n - 1) * view.strides[1]};
    const index_t first = (span[0] < 0 ? span[0] : 0) + (span[1] < 0 ? span[1] : 0);
    const index_t last = (span[0] > 0 ? span[0] : 0) + (span[1] > 0 ? span[1] : 0);
    values.resize(static_cast<std::size_t>(last - first + 1));
    view.data = values.data() - first;
  }
  std::vector<T> values;
  matrix<T> view;
};

template <class T>
void check_both(const job& j, matrix<const T> x) {
  const index_t m = x.extent(0), n = x.extent(1);
  stored rows[2] = {make_output(j, m, n), make_output(j, m, n)};
  stored columns[2] = {make_output(j, n, m), make_output(j, n, m)};
  if (!quantize_is_defined(j.format, j.options, x, block_axis::row, rows[0].blocks)) return;
  if (!quantize_is_defined(j.format, j.other, x, block_axis::column, columns[0].blocks)) return;
  quantize_ref(j.format, j.options, x, block_axis::row, rows[0].blocks);
  quantize_ref(j.format, j.other, x, block_axis::column, columns[0].blocks);
  quantize_both(j.format, j.options, rows[1].blocks, j.other, columns[1].blocks, x, pool_of(j.threads));
  compare(j, "quantize_both, rows", rows[0], rows[1]);
  compare(j, "quantize_both, columns", columns[0], columns[1]);
}

/// Into an array of the first layouts, all of whose elements, padding included, are compared by bits.
template <class T>
void check_dequantize(const job& j, const stored& s, index_t m, index_t n, index_t pad) {
  const auto decode_into = [&](bool fast) {
    std::vector<T> values(static_cast<std::size_t>(m * (n + pad)));
    const matrix<T> to = row_major(values.data(), m, n, n + pad);
    const float factor = 1.0f / j.options.encode_factor;
    if (fast) {
      dequantize(j.format, block_matrix<const std::uint8_t>(s.blocks), j.axis, to, pool_of(j.threads), factor);
    } else {
      dequantize_ref(j.format, block_matrix<const std::uint8_t>(s.blocks), j.axis, to, factor);
    }
    std::vector<std::uint8_t> bytes(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  };
  const auto expected = decode_into(false), got = decode_into(true);
  if (expected != got) fail(j, "dequantize", expected, got);
}

template <class T>
void run(byte_choices& in, const job& j) {
  const index_t m = j.axis == block_axis::row ? j.rows : j.k, n = j.axis == block_axis::row ? j.k : j.rows;
  array<T> source(in, m, n);
  const index_t target_pad = in.below(4);
  const bool narrow_target = in.flag();
  value_source values(in);
  for (T& v : source.values) values.store(v);

  const matrix<const T> x = source.view;
  stored expected = make_output(j, j.rows, j.k), got = make_output(j, j.rows, j.k);
  if (!quantize_is_defined(j.format, j.options, x, j.axis, expected.blocks)) std::abort();
  quantize_ref(j.format, j.options, x, j.axis, expected.blocks);
  quantize(j.format, j.options, x, j.axis, got.blocks, pool_of(j.threads));
  compare(j, "quantize", expected, got);
  check_both(j, x);
  if (narrow_target) {
    check_dequantize<bf16>(j, expected, m, n, target_pad);
  } else {
    check_dequantize<float>(j, expected, m, n, target_pad);
  }
}

void one_input(const std::uint8_t* data, std::size_t size) {
  byte_choices in(data, size);
  job j{};
  j.format = choose_format(in);
  j.options = choose_options(in, j.format);
  j.other = in.flag() ? choose_options(in, j.format) : j.options;
  j.axis = in.flag() ? block_axis::column : block_axis::row;
  // Mostly small; vector paths work on pieces of 512 elements along either axis, so now and then beyond that.
  const index_t most_elements = index_t{256} << in.below(8);
  const bool whole_blocks = in.flag();
  j.k = run_length(j.format, j.options.rotation) * in.below(48);
  j.rows = in.flag() ? in.below(70) : in.below(256) * 5;
  if (j.k > most_elements) j.k = run_length(j.format, j.options.rotation);
  if (j.k > 0 && j.rows > most_elements / j.k) j.rows = most_elements / j.k;
  if (whole_blocks) j.rows -= j.rows % 32;
  j.rows -= j.rows % j.format.rows;
  j.code_pad = in.below(20);
  j.scale_pad = in.below(5);
  j.threads = 1 + in.below(3);
  switch (in.below(4)) {
    case 0: run<float>(in, j); break;
    case 1: run<bf16>(in, j); break;
    case 2: run<fp16>(in, j); break;
    default: run<double>(in, j); break;
  }
}

const rotoscale::fuzz::target here("quantize", one_input);

}  // namespace

}  // namespace quantize_fuzz
