// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Linear layers under a recipe, in double precision.
//
// 1. Operands are quantized as in docs/reference/layers.md, by block_oracle.hpp and by the list of a format's numbers.
// 2. Their values are multiplied and added with negligible error.
// 3. Results are rounded to the recipe's output format.
//
// A recipe is read as data. Of the library's functions only Philox is used. Delayed scales are those of the first step:
// 1.
#pragma once

#include <cstdint>

#include "block_oracle.hpp"
#include "reference_llama.hpp"
#include "rotoscale/nn/recipe.hpp"
#include "rotoscale/philox.hpp"

namespace rotoscale::oracle {

/// An operand's values: rows × k, k along the contraction axis.
struct operand_values {
  tensor values;
  size_t rows, k;
};

class recipe_gemms : public linear_gemms {
 public:
  /// `head`: layer number of the output head. Random words are those of step 0, microbatch 0.
  recipe_gemms(const nn::recipe& r, size_t head, std::uint64_t seed) : recipe_(r), head_(head), seed_(seed) {}

  tensor forward(size_t number, const tensor& x, const tensor& w, size_t in, size_t out) const override {
    const nn::linear_recipe r = of(number);
    const size_t n = x.size() / in;
    return product(operand(r.fprop.left, x, n, in, block_axis::row, {number, 0, 0}),
                   operand(r.fprop.right, w, out, in, block_axis::row, {number, 0, 1}), r.fprop.output);
  }
  linear_gradients backward(size_t number, const tensor& dy, const tensor& x, const tensor& w, size_t in,
                            size_t out) const override {
    const nn::linear_recipe r = of(number);
    const size_t n = x.size() / in;
    const auto again = [&](const nn::operand_recipe& own, const nn::operand_recipe& forward, const tensor& t,
                           size_t rows, const use& now, const use& then) {
      const bool requantized = own.source == nn::operand_source::forward;
      if (own.format != nn::operand_format::dequantized && !requantized) {
        return operand(own, t, rows, in, block_axis::column, now);
      }
      operand_values taken = operand(forward, t, rows, in, block_axis::row, then);
      unrotate(taken, rotation_of(forward, then), length_of(forward));
      // Through FP32: under 4/6 a factor of amax / 1536 puts many products on ties of BF16.
      for (double& v : taken.values) v = static_cast<double>(stored_as(bf16_, as_float(v)));
      return requantized ? operand(own, taken.values, rows, in, block_axis::column, now) : transpose(taken);
    };
    linear_gradients d;
    d.x = product(operand(r.dgrad.left, dy, n, out, block_axis::row, {number, 1, 0}),
                  again(r.dgrad.right, r.fprop.right, w, out, {number, 1, 1}, {number, 0, 1}), r.dgrad.output);
    const auto scaled_by_slope = [&](tensor gradient) {
      if (r.fprop.right.estimator == nn::gradient_estimator::straight_through) return gradient;
      tensor scales;
      blocks(r.fprop.right, w, out, in, block_axis::row, {number, 0, 1}, &scales);
      for (size_t i = 0; i < w.size(); ++i) {
        gradient[i] *= slope(static_cast<double>(stored_as(bf16_, w[i])) / scales[i]);
      }
      return gradient;
    };
    d.w = product(operand(r.wgrad.left, dy, n, out, block_axis::column, {number, 2, 0}),
                  again(r.wgrad.right, r.fprop.left, x, n, {number, 2, 1}, {number, 0, 0}), r.wgrad.output);
    d.w = scaled_by_slope(d.w);
    return d;
  }

 private:
  /// Operand, GEMM and layer, which name a random stream.
  struct use {
    size_t number, gemm, side;
  };

  nn::linear_recipe of(size_t number) const {
    if (number != head_) return recipe_;
    nn::linear_recipe r;  // BF16
    if (recipe_.fprop.left.format == nn::operand_format::fp32) r = recipe_;
    if (recipe_.head) r = *recipe_.head;
    r.wgrad.output = r.fprop.output = nn::operand_format::fp32;
    return r;
  }
  random_stream stream(std::uint64_t purpose, const use& u) const {
    return {seed_,
            purpose << 56 | std::uint64_t{u.gemm} << 52 | std::uint64_t{u.side} << 48 | std::uint64_t{u.number} << 32};
  }

  operand_values operand(const nn::operand_recipe& o, const tensor& t, size_t rows, size_t cols, block_axis axis,
                         const use& u) const {
    using enum nn::operand_format;
    if (o.scaling > nn::fp8_scaling::current || o.macro_blocks || o.outliers != 0) {
      return kept(o, t, rows, cols, axis, u);
    }
    if (o.format == mxfp4 || o.format == mxfp6_e2m3 || o.format == mxfp6_e3m2 || o.format == mxfp8_e4m3 ||
        o.format == mxfp8_e5m2 || o.format == nvfp4) {
      return blocks(o, t, rows, cols, axis, u);
    }
    operand_values plain{t, rows, cols};
    if (o.format != fp32) {
      for (double& v : plain.values) v = static_cast<double>(stored_as(bf16_, v));
    }
    const bool current = o.scaling == nn::fp8_scaling::current;
    if (o.format == fp8_e4m3) as_fp8(plain.values, {4, 3, 7, true, specials::nan_only}, current);
    if (o.format == fp8_e5m2) as_fp8(plain.values, {5, 2, 15}, current);
    return axis == block_axis::row ? plain : transpose(plain);
  }

  /// `current`: under the scale largest / amax, which is FP32 as its inverse.
  static void as_fp8(tensor& values, const format& f, bool current) {
    const grid g(f);
    double amax = 0;
    for (const double v : values) amax = std::max(amax, std::fabs(v));
    const float scale = current && amax != 0 ? as_float(g.largest() / static_cast<exact_t>(amax)) : 1.0f;
    const float inverse = 1.0f / scale;
    const std::uint32_t sign = 1u << (f.exponent_bits + f.mantissa_bits);
    for (double& v : values) {
      const exact_t scaled = as_float(static_cast<exact_t>(v) * static_cast<exact_t>(scale));
      const std::uint32_t code = element_code(f, g, scaled, rounding::nearest_even, 0, 32);
      const auto magnitude = static_cast<double>(g.values[code & (sign - 1)] * static_cast<exact_t>(inverse));
      v = (code & sign) != 0 ? -magnitude : magnitude;
    }
  }

  /// Slope of the soft quantizer between neighbours of the list 0, .5, 1, 1.5, 2, 3, 4, 6.
  static double slope(double x) {
    const std::vector<double> list = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    size_t i = 0;
    while (i + 2 < list.size() && std::fabs(x) > list[i + 1]) ++i;
    const double half = (list[i + 1] - list[i]) / 2, from = std::fabs(std::fabs(x) - list[i] - half);
    return std::min(3.0, std::pow(half / from, 0.8) / 5);
  }

  /// BF16 of quantized values: FP8 under scales of groups, MXFP4 under macro-block scales, or with outliers.
  operand_values kept(const nn::operand_recipe& o, const tensor& t, size_t rows, size_t cols, block_axis axis,
                      const use& u) const {
    const bool row = axis == block_axis::row, fp8 = o.scaling > nn::fp8_scaling::current;
    operand_values x = row ? operand_values{t, rows, cols} : transpose({t, rows, cols});
    for (double& v : x.values) v = static_cast<double>(stored_as(bf16_, v));
    const tensor plain = x.values;
    const bool tall = o.scaling == nn::fp8_scaling::block_128x128 || (o.macro_blocks && o.block && o.block->rows > 1);
    const size_t group_rows = o.outliers != 0 ? x.rows : tall ? 128 : 1;
    const size_t group_k = o.outliers != 0 ? 1 : o.scaling == nn::fp8_scaling::row ? x.k : 128;
    std::vector<std::pair<double, size_t>> largest;  // -amax of each position, and its place
    tensor numbers(x.values.size(), 1.0);
    for (size_t r0 = 0; r0 < x.rows; r0 += group_rows) {
      for (size_t c0 = 0; c0 < x.k; c0 += group_k) {
        std::vector<size_t> group;
        for (size_t r = r0; r < std::min(x.rows, r0 + group_rows); ++r) {
          for (size_t c = c0; c < std::min(x.k, c0 + group_k); ++c) group.push_back(r * x.k + c);
        }
        tensor own;
        double amax = 0;
        for (const size_t i : group) own.push_back(x.values[i]), amax = std::max(amax, std::fabs(x.values[i]));
        if (fp8) {
          as_fp8(
              own,
              o.format == nn::operand_format::fp8_e4m3 ? format{4, 3, 7, true, specials::nan_only} : format{5, 2, 15},
              true);
          for (size_t i = 0; i < group.size(); ++i) x.values[group[i]] = own[i];
        }
        largest.emplace_back(-amax, c0);
        // 1.m of 6 / amax with 8 bits of m.
        int exponent = 0;
        const double significand =
            std::frexp(static_cast<double>(as_float(exact_t{6} / std::max(amax, 1e-12))), &exponent);
        for (const size_t i : group) numbers[i] = std::floor(significand * 512) / 256;
      }
    }
    if (!fp8) {
      std::sort(largest.begin(), largest.end());
      std::vector<bool> stays(x.k, false);
      for (size_t i = 0; i < std::min(x.k, static_cast<size_t>(o.outliers)); ++i) stays[largest[i].second] = true;
      for (size_t i = 0; i < plain.size(); ++i) {
        x.values[i] = o.macro_blocks ? plain[i] * numbers[i] : stays[i % x.k] ? 0 : plain[i];
      }
      nn::operand_recipe inner = o;
      inner.macro_blocks = false;
      inner.outliers = 0;
      x = blocks(inner, row ? x.values : transpose(x).values, rows, cols, axis, u);
      for (size_t i = 0; i < plain.size(); ++i) {
        x.values[i] = o.macro_blocks ? x.values[i] / numbers[i] : stays[i % x.k] ? plain[i] : x.values[i];
      }
    }
    for (double& v : x.values) v = static_cast<double>(stored_as(bf16_, v));
    return x;
  }

  /// `scales`, if not null: of each element.
  operand_values blocks(const nn::operand_recipe& o, const tensor& t, size_t rows, size_t cols, block_axis axis,
                        const use& u, tensor* scales = nullptr) const {
    using enum nn::operand_format;
    const bool two_levels = o.format == nvfp4;
    block_format f;
    f.element = o.format == mxfp6_e2m3   ? format{2, 3, 1, true, specials::none}
                : o.format == mxfp6_e3m2 ? format{3, 2, 3, true, specials::none}
                : o.format == mxfp8_e4m3 ? format{4, 3, 7, true, specials::nan_only}
                : o.format == mxfp8_e5m2 ? format{5, 2, 15}
                                         : format{2, 1, 1, true, specials::none};
    const format e8m0{8, 0, 127, false, specials::nan_only, false, false}, ue4m3{4, 3, 7, false, specials::nan_only};
    f.length = length_of(o);
    f.rows = o.block ? o.block->rows : 1;
    f.scale = o.block ? o.block->scale : two_levels ? ue4m3 : e8m0;
    block_options how;
    how.source = bf16_;
    how.rule = o.rule;
    how.choice = o.choice;
    how.policy = o.policy;
    how.rounding = o.rounding;
    how.rotation = rotation_of(o, u);
    float decode = 1.0f;
    if (two_levels) {
      how.encode_factor = encode_factor(f, how, t, rows, cols, axis);
      decode = 1.0f / how.encode_factor;
    }
    const random_stream words = stream(1, u);
    const block_quantizer quantize(f, how);
    const quantized q = quantize(std::vector<exact_t>(t.begin(), t.end()), rows, cols, axis, false,
                                 [&](std::uint64_t i) { return words.word(i); });
    operand_values out{{}, axis == block_axis::row ? rows : cols, axis == block_axis::row ? cols : rows};
    const auto length = static_cast<size_t>(f.length), tall = static_cast<size_t>(f.rows), across = out.k / length;
    for (size_t r = 0; r < out.rows; ++r) {
      for (size_t c = 0; c < out.k; ++c) {
        const float value = quantize.value(q.elements[r * out.k + c], q.scales[r / tall * across + c / length]);
        out.values.push_back(static_cast<double>(value) * static_cast<double>(decode));
        if (scales == nullptr) continue;
        const float one = quantize.value(2, q.scales[r / tall * across + c / length]);  // code 2 of E2M1
        scales->push_back(static_cast<double>(one) * static_cast<double>(decode));
      }
    }
    return out;
  }

  rotation rotation_of(const nn::operand_recipe& o, const use& u) const {
    rotation r;
    r.points = o.rotation.points;
    for (std::uint32_t& word : r.signs) {
      if (o.rotation.signs == nn::sign_kind::mask) word = o.rotation.mask * 0x10001u;
    }
    if (o.rotation.signs == nn::sign_kind::layer || o.rotation.signs == nn::sign_kind::step) {
      random_stream signs = stream(2, {u.number, u.gemm, 0});
      if (o.rotation.signs == nn::sign_kind::step) signs.stream += 1;  // step 0
      for (const std::uint64_t i : {0u, 1u, 2u, 3u}) r.signs[i] = signs.word(i);
    }
    return r;
  }
  static int length_of(const nn::operand_recipe& o) {
    return o.block ? o.block->length : o.format == nn::operand_format::nvfp4 ? 16 : 32;
  }
  /// Undoes a rotation: the Hadamard matrix, which is orthonormal and symmetric, then the signs. `length`: of a block.
  static void unrotate(operand_values& x, const rotation& r, int length) {
    if (r.points == 0) return;
    const auto points = static_cast<size_t>(r.points), run = static_cast<size_t>(std::max(r.points, length));
    const tensor from = x.values;
    for (size_t i = 0; i < from.size(); ++i) {
      const size_t at = i % x.k, first = at / points * points;
      double sum = 0;
      for (size_t j = 0; j < points; ++j) {
        const bool odd = __builtin_popcountll(j & (at - first)) % 2 != 0;
        sum += odd ? -from[i - at + first + j] : from[i - at + first + j];
      }
      const bool negated = (r.signs[at % run / 32] >> (at % run % 32) & 1u) != 0;
      x.values[i] = (negated ? -sum : sum) / std::sqrt(static_cast<double>(points));
    }
  }

  /// Encode factor in FP32: largest scale × largest element / amax, with amax after the rotation. 4/6 and EDEN have
  /// a power of two for the scale, headroom 16/17 of the element, EDEN 16/15.81.
  float encode_factor(const block_format& f, const block_options& how, const tensor& t, size_t rows, size_t cols,
                      block_axis axis) const {
    const operand_values seen = axis == block_axis::row ? operand_values{t, rows, cols} : transpose({t, rows, cols});
    const auto run = static_cast<size_t>(std::max(f.length, how.rotation.points));
    exact_t amax = 0;
    for (size_t first = 0; first < seen.values.size(); first += run) {
      std::vector<exact_t> part;
      for (size_t i = first; i < first + run; ++i) part.push_back(stored_as(bf16_, seen.values[i]));
      rotated(part, how.rotation);
      for (const exact_t v : part) amax = std::max(amax, std::fabs(v));
    }
    const grid scales(f.scale);
    const exact_t part = how.choice == scale_choice::headroom ? exact_t{16} / 17
                         : how.choice == scale_choice::eden   ? 16 / exact_t{15.81f}
                                                              : exact_t{1};
    const exact_t element = grid(f.element).largest() * part;
    const bool power = how.choice == scale_choice::four_over_six || how.choice == scale_choice::eden;
    const float all = as_float(power ? std::ldexp(exact_t{1}, scales.largest_exponent()) : scales.largest()) *
                      as_float(element);
    return amax == 0 ? 1.0f : all / as_float(amax);
  }

  static operand_values transpose(const operand_values& x) {
    operand_values t{tensor(x.values.size()), x.k, x.rows};
    for (size_t r = 0; r < x.rows; ++r)
      for (size_t c = 0; c < x.k; ++c) t.values[c * t.k + r] = x.values[r * x.k + c];
    return t;
  }

  /// a · bᵀ, rounded once.
  tensor product(const operand_values& a, const operand_values& b, nn::operand_format output) const {
    tensor y = linear(a.values, b.values, a.k, b.rows);
    const format to = output == nn::operand_format::bf16 ? bf16_ : format{8, 23, 127};
    for (double& v : y) v = static_cast<double>(stored_as(to, v));
    return y;
  }

  nn::recipe recipe_;
  size_t head_;
  std::uint64_t seed_;
  const format bf16_{8, 7, 127};
};

}  // namespace rotoscale::oracle
