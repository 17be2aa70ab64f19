// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Statistics of operands against a double-precision model, independent of the implementation: it reads codes, scales
// and factors and applies the definitions.
#include "rotoscale/nn/cpu/statistics.hpp"

#include <bit>
#include <limits>

#include "../backend_memory.hpp"
#include "../numbers.hpp"
#include "rotoscale/nn/cpu/backend.hpp"

namespace cpu_statistics_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace nn = rotoscale::nn;
namespace cpu = rotoscale::nn::cpu;
using numbers = nn::operand_format;

constexpr float infinity = std::numeric_limits<float>::infinity();

/// One form of a tensor, quantized and observed.
struct observed {
  nn::cpu_backend ops;
  std::vector<float> values;
  std::vector<bf16> narrow;
  nn::operand_request request;
  nn::const_tensor_view source;
  made_operands made;
  queue_workspace room;
  nn::step_state state;
  float scaling[2] = {24.0f, 1.0f / 24.0f};
  nn::operand_form form;
  nn::operand_statistics got;

  observed(const nn::operand_recipe& how, std::vector<float> x, index_t rows, index_t cols, nn::operand_form which,
           nn::dtype type = nn::dtype::fp32, int threads = 2)
      : ops(threads),
        values(std::move(x)),
        request(make_request(how, rows, cols, which, type)),
        source(store(rows, cols, type)),
        made(ops, request, source),
        room(ops),
        form(which) {
    state.inputs.seed = 9;
    state.inputs.step = 3;
    const bool row = form == nn::operand_form::row;
    ops.quantize({}, {source, &state}, {{made.set.get(), row, !row, {scaling, scaling + 1, nullptr}}});
    ops.observe({}, {source, {made.set.get(), form}, &state}, {&got});
    ops.synchronize(nn::queue{});
  }
  static nn::operand_request make_request(const nn::operand_recipe& how, index_t rows, index_t cols,
                                          nn::operand_form which, nn::dtype type) {
    nn::operand_request r;
    r.layer = 2;
    r.source = type;
    r.rows = rows;
    r.cols = cols;
    (which == nn::operand_form::row ? r.row : r.column) = how;
    return r;
  }
  nn::const_tensor_view store(index_t rows, index_t cols, nn::dtype type) {
    if (type == nn::dtype::fp32) return nn::dense_tensor(values.data(), type, {rows, cols});
    for (float& x : values) {
      narrow.push_back(bf16(x));
      x = static_cast<float>(narrow.back());
    }
    return nn::dense_tensor(narrow.data(), type, {rows, cols});
  }
  const gemm_operand& stored() const { return static_cast<const cpu::operands&>(*made.set).form(form); }
  double decoded(index_t r, index_t c) const {
    const gemm_operand& o = stored();
    return static_cast<double>(operand_value(o, r, c)) * (o.factor == nullptr ? 1.0 : static_cast<double>(*o.factor));
  }
  /// Element (r, c) of the operand before quantization, in double precision, with the matrix H in place of butterflies.
  double reference(index_t r, index_t c) const {
    const rotation rotated = nn::block_options_for(nn::resolve_form(request, form, &state)).rotation;
    const auto at = [&](index_t i) {
      return static_cast<double>(values[static_cast<std::size_t>(
          form == nn::operand_form::row ? r * request.cols + i : i * request.cols + r)]);
    };
    if (rotated.points == 0) return at(c);
    const index_t first = c / rotated.points * rotated.points;
    const int run = std::max(rotated.points, 32);
    double sum = 0;
    for (index_t i = 0; i < rotated.points; ++i) {
      const bool minus = (std::popcount(static_cast<unsigned>(i & (c - first))) % 2 != 0) !=
                         rotated.negates(static_cast<int>((first + i) % run));
      sum += minus ? -at(first + i) : at(first + i);
    }
    return sum / std::sqrt(static_cast<double>(rotated.points));
  }
};

std::vector<float> wide_values(index_t n, std::uint64_t seed) {
  std::vector<float> x;
  for (index_t i = 0; i < n; ++i) {
    const std::uint32_t word = random_stream{seed, 1}.word(static_cast<std::uint64_t>(i));
    const float value = (static_cast<float>(word >> 8) - 0x1p23f) * 0x1p-23f;
    x.push_back(word % 61 == 0 ? 0.0f : std::ldexp(value, static_cast<int>(word & 0xFF) % 25 - 12));
  }
  return x;
}

nn::operand_recipe recipe_of(numbers f, const nn::rotation_recipe& rotation = {}) {
  nn::operand_recipe r{f};
  r.rotation = rotation;
  return r;
}

/// All sums and counts of an operand without NaN and Inf, by plain loops.
void check_against_doubles(const observed& o) {
  const gemm_operand& s = o.stored();
  double signal = 0, noise = 0, amax = 0, rotated_amax = 0;
  std::int64_t nonzero = 0, flushed = 0, saturated = 0, spread = 0, spread_max = 0, narrow = 0, folds = 0, rows = 0;
  const double largest = static_cast<double>(decode(s.element, s.element.max_code())) *
                         (s.factor == nullptr ? 1.0 : static_cast<double>(*s.factor));
  for (index_t r = 0; r < s.rows; ++r) {
    std::vector<int> exponents;
    for (index_t c = 0; c < s.k; ++c) {
      const double x = o.reference(r, c), y = o.decoded(r, c);
      const double scale = s.block == 0 ? 1.0 : std::ldexp(1.0, operand_scale(s, r, c) - 127);
      signal += x * x;
      noise += (x - y) * (x - y);
      nonzero += x != 0;
      flushed += x != 0 && y == 0;
      saturated += std::fabs(x) > largest * scale;
      rotated_amax = std::max(rotated_amax, std::fabs(x));
      if (s.block != 0 && y != 0) exponents.push_back(operand_scale(s, r, c));
    }
    if (exponents.empty()) continue;
    const auto [low, high] = std::minmax_element(exponents.begin(), exponents.end());
    ++rows;
    spread += *high - *low;
    spread_max = std::max<std::int64_t>(spread_max, *high - *low);
    narrow += *high - *low <= 3;
    folds += *high - *low <= 26;
  }
  for (const float x : o.values) amax = std::max(amax, std::fabs(static_cast<double>(x)));
  const auto near = [](double got, double want) { return std::fabs(got - want) <= 2e-6 * std::fabs(want); };
  CHECK(near(o.got.signal, signal));
  CHECK(near(o.got.noise, noise));
  CHECK(o.got.elements == s.rows * s.k);
  CHECK(o.got.nonzero == nonzero);
  CHECK(o.got.flushed == flushed);
  CHECK(o.got.saturated == saturated);
  CHECK(o.got.nonfinite == 0);
  CHECK(o.got.rows == rows);
  CHECK(o.got.spread_sum == spread);
  CHECK(o.got.spread_max == spread_max);
  CHECK(o.got.rows_int8 == narrow);
  CHECK(o.got.rows_e5m2 == folds);
  CHECK(static_cast<double>(o.got.amax) == amax);
  CHECK(near(static_cast<double>(o.got.rotated_amax), rotated_amax));
}

TEST_CASE("sums and counts are those of a model in double precision") {
  for (const numbers f : {numbers::fp32, numbers::bf16, numbers::fp8_e4m3, numbers::fp8_e5m2, numbers::mxfp4,
                          numbers::mxfp8_e4m3, numbers::mxfp8_e5m2}) {
    for (const nn::operand_form form : {nn::operand_form::row, nn::operand_form::column}) {
      for (const nn::dtype type : {nn::dtype::fp32, nn::dtype::bf16}) {
        {
          CAPTURE(to_string(f));
          CAPTURE(static_cast<int>(form));
          check_against_doubles(observed(recipe_of(f), wide_values(64 * 96, 5), 64, 96, form, type));
        }
      }
    }
  }
}

TEST_CASE("a rotated operand is compared with the rotated tensor") {
  for (const auto signs : {nn::sign_kind::none, nn::sign_kind::layer, nn::sign_kind::step}) {
    for (const nn::operand_form form : {nn::operand_form::row, nn::operand_form::column}) {
      {
        CAPTURE(to_string(signs));
        const observed o(recipe_of(numbers::mxfp4, {16, signs}), wide_values(64 * 96, 6), 64, 96, form);
        check_against_doubles(o);
        CHECK(o.got.amax != o.got.rotated_amax);
      }
    }
  }
}

TEST_CASE("sums have the stated order, whatever the threads") {
  // 16 lanes along a row, folded by halves, then the tree over rows: FP64 additions are the only roundings.
  constexpr index_t rows = 37, cols = 75;
  const observed one(recipe_of(numbers::bf16), wide_values(rows * cols, 7), rows, cols, nn::operand_form::row,
                     nn::dtype::fp32, 1);
  const observed many(recipe_of(numbers::bf16), wide_values(rows * cols, 7), rows, cols, nn::operand_form::row,
                      nn::dtype::fp32, 4);
  CHECK(std::memcmp(&one.got, &many.got, sizeof one.got) == 0);
  std::vector<double> terms(64, 0.0);
  for (index_t r = 0; r < rows; ++r) {
    double lane[16] = {};
    for (index_t c = 0; c < cols; ++c) lane[c % 16] += one.reference(r, c) * one.reference(r, c);
    for (int width : {8, 4, 2, 1}) {
      for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    }
    terms[static_cast<std::size_t>(r)] = lane[0];
  }
  for (std::size_t width : {32u, 16u, 8u, 4u, 2u, 1u}) {
    for (std::size_t i = 0; i < width; ++i) terms[i] += terms[i + width];
  }
  CHECK(one.got.signal == terms[0]);
}

TEST_CASE("edges: zeros, one block, what is not finite, and blocks that cannot hold their source") {
  // Zeros: no loss, and no row has a scale.
  const observed zeros(recipe_of(numbers::mxfp4), std::vector<float>(64 * 32, 0.0f), 64, 32, nn::operand_form::row);
  CHECK((zeros.got.elements == 2048 && zeros.got.nonzero == 0 && zeros.got.rows == 0));
  CHECK_FALSE(zeros.got.sqnr_db().has_value());
  CHECK_FALSE(zeros.got.crest().has_value());
  // One row of two blocks, 2^30 apart: neither int8 nor E5M2. A block of zeros between them does not count.
  std::vector<float> x(96, 0.0f);
  x[0] = 6.0f;
  x[64] = std::ldexp(6.0f, 30);
  const observed far(recipe_of(numbers::mxfp4), x, 1, 96, nn::operand_form::row);
  CHECK((far.got.rows == 1 && far.got.spread_sum == 30 && far.got.rows_int8 == 0 && far.got.rows_e5m2 == 0));
  x[64] = std::ldexp(6.0f, 26);
  CHECK(observed(recipe_of(numbers::mxfp4), x, 1, 96, nn::operand_form::row).got.rows_e5m2 == 1);
  x[64] = 48.0f;
  CHECK(observed(recipe_of(numbers::mxfp4), x, 1, 96, nn::operand_form::row).got.rows_int8 == 1);
  x[64] = 96.0f;
  CHECK(observed(recipe_of(numbers::mxfp4), x, 1, 96, nn::operand_form::row).got.rows_int8 == 0);
  // With EVEN scales 6.9 saturates and 0.1 in its block is flushed. 0 does not count as flushed.
  std::vector<float> y(32, 0.0f);
  y[0] = -6.9f;
  y[1] = 0.1f;
  const observed both(recipe_of(numbers::mxfp4), y, 1, 32, nn::operand_form::row);
  CHECK((both.got.saturated == 1 && both.got.flushed == 1 && both.got.nonzero == 2));
  CHECK(both.got.saturated_share() == 1.0 / 32);
  CHECK(both.got.flushed_share() == 0.5);
  CHECK(both.got.crest().value() == doctest::Approx(6.9 / std::sqrt((6.9 * 6.9 + 0.01) / 32)));
  // NaN and Inf are counted and excluded from every sum.
  y[2] = infinity;
  y[3] = std::numeric_limits<float>::quiet_NaN();
  const observed bad(recipe_of(numbers::bf16), y, 1, 32, nn::operand_form::row);
  CHECK((bad.got.nonfinite == 2 && bad.got.nonzero == 2 && bad.got.amax == 6.9f));
  CHECK(std::isfinite(bad.got.signal + bad.got.noise));
}

TEST_CASE("SQNR of E2M1 and of BF16 is what the literature gives") {
  // Uniform numbers in (-1, 1): BF16's relative error is at most 2^-9; FP32 is exact.
  std::vector<float> x;
  for (std::uint64_t i = 0; i < 64 * 64; ++i)
    x.push_back((static_cast<float>(random_stream{3, 4}.word(i) >> 8) - 0x1p23f) * 0x1p-23f);
  const observed exact(recipe_of(numbers::fp32), x, 64, 64, nn::operand_form::row);
  CHECK((exact.got.noise == 0 && !exact.got.sqnr_db()));
  const double bf16_db = observed(recipe_of(numbers::bf16), x, 64, 64, nn::operand_form::row).got.sqnr_db().value();
  CHECK((bf16_db > 20 * std::log10(512.0) && bf16_db < 62));
  const double fp4_db = observed(recipe_of(numbers::mxfp4), x, 64, 64, nn::operand_form::row).got.sqnr_db().value();
  CHECK((fp4_db > 15 && fp4_db < 22));
}

TEST_CASE("dequantize gives the operand's values in the source's orientation") {
  for (const numbers f : {numbers::bf16, numbers::fp8_e4m3, numbers::mxfp4, numbers::mxfp8_e4m3}) {
    for (const nn::operand_form form : {nn::operand_form::row, nn::operand_form::column}) {
      observed o(recipe_of(f), wide_values(64 * 96, 8), 64, 96, form);
      std::vector<float> out(64 * 96);
      o.ops.dequantize({}, {{o.made.set.get(), form}}, {nn::dense_tensor(out.data(), nn::dtype::fp32, {64, 96})});
      o.ops.synchronize(nn::queue{});
      bool equal = true;
      for (index_t i = 0; i < 64; ++i) {
        for (index_t j = 0; j < 96; ++j) {
          const double want = form == nn::operand_form::row ? o.decoded(i, j) : o.decoded(j, i);
          equal &= out[static_cast<std::size_t>(i * 96 + j)] == static_cast<float>(want);
        }
      }
      CHECK(equal);
    }
  }
}

TEST_CASE("comparison of tensors: sums in double precision, cosine and error by their definitions") {
  thread_pool pool(3);
  for (const index_t n : {index_t{1}, index_t{15}, index_t{4096}, index_t{4097}, index_t{20000}}) {
    const auto x = wide_values(n, 9);
    auto y = x;
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += 0.01f * y[(i * 7) % y.size()];
    std::vector<std::byte> room(1024);
    const lent_scratch lent(room);
    nn::comparison_statistics got;
    cpu::compute(nn::op::compare::in{y.data(), x.data(), n}, nn::op::compare::out{&got}, pool);
    double xx = 0, yy = 0, xy = 0, ee = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double a = static_cast<double>(x[i]), b = static_cast<double>(y[i]);
      xx += a * a;
      yy += b * b;
      xy += a * b;
      ee += (a - b) * (a - b);
    }
    CHECK(got.elements == n);
    CHECK(got.reference_squares == doctest::Approx(xx).epsilon(1e-12));
    CHECK(got.squares == doctest::Approx(yy).epsilon(1e-12));
    CHECK(got.product == doctest::Approx(xy).epsilon(1e-12));
    CHECK(got.error_squares == doctest::Approx(ee).epsilon(1e-6));
    CHECK(got.relative_error().value() == doctest::Approx(std::sqrt(ee / xx)).epsilon(1e-6));
    CHECK(got.cosine().value() == doctest::Approx(xy / std::sqrt(xx * yy)).epsilon(1e-12));
    CHECK(got.norm_to_noise().value() == doctest::Approx(std::sqrt(xx / ee)).epsilon(1e-6));
  }
  const nn::comparison_statistics none;
  CHECK((!none.cosine() && !none.relative_error() && !none.norm_to_noise()));
  static_assert(nn::stall_ratio * nn::stall_ratio > 2.9999999999999 &&
                nn::stall_ratio * nn::stall_ratio < 3.0000000000001);
}

}  // namespace cpu_statistics_test
