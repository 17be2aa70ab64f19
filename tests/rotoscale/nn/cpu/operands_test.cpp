// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A tensor's operands on the CPU: both forms have the codes of the reference rounding for any storage of the source.
// Shared or in-place operands take no memory.
#include "rotoscale/nn/cpu/operands.hpp"

#include <bit>
#include <limits>

#include "../backend_memory.hpp"
#include "../numbers.hpp"
#include "rotoscale/nn/cpu/backend.hpp"

namespace cpu_operands_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace nn = rotoscale::nn;
namespace cpu = rotoscale::nn::cpu;
using nn::operand_form;
using numbers = nn::operand_format;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

float as_bf16(float x) {
  return decode(formats::bf16, encode(formats::bf16, x, rounding::nearest_even, overflow::to_inf));
}

nn::operand_request request_for(index_t rows, index_t cols, std::optional<nn::operand_recipe> row,
                                std::optional<nn::operand_recipe> column, nn::dtype source = nn::dtype::fp32) {
  nn::operand_request r;
  r.source = source;
  r.rows = rows;
  r.cols = cols;
  r.row = row;
  r.column = column;
  return r;
}
nn::operand_request request_for(index_t rows, index_t cols, nn::operand_format f, nn::dtype source = nn::dtype::fp32) {
  return request_for(rows, cols, nn::operand_recipe{f}, nn::operand_recipe{f}, source);
}

/// A source in either storage, its operands, and the step state.
struct operand_case {
  nn::cpu_backend ops{2};
  std::vector<float> values;  ///< as stored
  std::vector<bf16> narrow;
  nn::const_tensor_view source;
  made_operands made;
  nn::step_state state;
  float scale = 24.0f, inverse = 1.0f / 24.0f, amax = 0.0f;

  operand_case(const nn::operand_request& r, std::vector<float> x)
      : values(std::move(x)), source(store(r)), made(ops, r, source) {
    state.inputs.seed = 9;
    state.inputs.step = 3;
    state.micro_batch = 1;
  }
  nn::const_tensor_view store(const nn::operand_request& r) {
    if (r.source == nn::dtype::fp32) return nn::dense_tensor(values.data(), r.source, {r.rows, r.cols});
    for (float& x : values) {
      narrow.push_back(bf16(x));
      x = static_cast<float>(narrow.back());
    }
    return nn::dense_tensor(narrow.data(), r.source, {r.rows, r.cols});
  }
  void quantize(bool row = true, bool column = true) {
    ops.quantize({}, {source, &state}, {{made.set.get(), row, column, {&scale, &inverse, &amax}}});
    ops.synchronize(nn::queue{});
  }
  const gemm_operand& form(operand_form f) const { return static_cast<cpu::operands&>(*made.set).form(f); }
  float value(index_t r, index_t c) const { return values[static_cast<std::size_t>(r * source.extent(1) + c)]; }
};

TEST_CASE("formats without blocks: both forms hold encode of every element") {
  for (const auto& [rows, cols] : {std::pair<index_t, index_t>{70, 97}, {1, 5}, {64, 64}, {33, 65}}) {
    for (const nn::dtype stored : {nn::dtype::fp32, nn::dtype::bf16}) {
      for (const nn::operand_format f : {numbers::fp32, numbers::bf16, numbers::fp8_e4m3, numbers::fp8_e5m2}) {
        CAPTURE(to_string(f));
        auto values = to_float(random_tensor(rows * cols, 5, 4.0));
        values[0] = -0.0f;
        operand_case c(request_for(rows, cols, f, stored), values);
        c.quantize();
        long long wrong = 0;
        float largest = 0.0f;
        const gemm_operand &row = c.form(operand_form::row), &column = c.form(operand_form::column);
        CHECK((row.rows == rows && row.k == cols && column.rows == cols && column.k == rows));
        for (index_t r = 0; r < rows; ++r) {
          for (index_t k = 0; k < cols; ++k) {
            const float x = c.value(r, k), rounded = f == numbers::fp32 ? x : as_bf16(x);
            const float want = nn::is_fp8(f) ? decode(row.element, encode(row.element, rounded * c.scale)) : rounded;
            wrong += fp32_bits(operand_value(row, r, k)) != fp32_bits(want);
            wrong += fp32_bits(operand_value(column, k, r)) != fp32_bits(want);
            largest = std::fmax(largest, std::fabs(as_bf16(x)));
          }
        }
        CHECK(wrong == 0);
        CHECK(c.amax == largest);
        if (nn::is_fp8(f)) CHECK((*row.factor == c.inverse && *column.factor == c.inverse));
      }
    }
  }
}

TEST_CASE("memory: in place, shared, or a copy for each form") {
  const auto bytes = [](const nn::operand_request& r) { return cpu::operands::layout(r).bytes; };
  const auto reads_source = [](const nn::operand_request& r) { return cpu::operands::layout(r).reads_source; };
  const index_t n = 64;
  CHECK(bytes(request_for(n, n, numbers::fp32)) == 0);
  CHECK(reads_source(request_for(n, n, numbers::fp32)));
  CHECK(bytes(request_for(n, n, numbers::bf16)) == n * n * 2);
  CHECK_FALSE(reads_source(request_for(n, n, numbers::bf16)));
  CHECK(bytes(request_for(n, n, numbers::bf16, nn::dtype::bf16)) == 0);
  CHECK(bytes(request_for(n, n, numbers::fp8_e4m3)) == n * n + 64);  // a factor
  nn::operand_recipe random{numbers::fp8_e4m3};
  random.rounding = rounding::stochastic;
  CHECK(bytes(request_for(n, n, random, random)) == 2 * (n * n + 64));
  CHECK(bytes(request_for(n, n, numbers::mxfp4)) == 2 * (n * n / 2 + n * 2));
  CHECK(bytes(request_for(n, n, numbers::nvfp4)) == 2 * (n * n / 2 + n * 4 + 64));
  nn::operand_recipe square{numbers::mxfp4};
  square.block = {32, 32, formats::e8m0};
  CHECK(bytes(request_for(n, n, square, std::nullopt)) == n * n / 2 + 64);
  CHECK(bytes(request_for(n, n, nn::operand_recipe{numbers::mxfp4}, nn::operand_recipe{numbers::dequantized})) ==
        n * n / 2 + n * 2 + n * n * 2);
  CHECK(bytes(request_for(n, n, nn::operand_recipe{numbers::fp8_e4m3}, nn::operand_recipe{numbers::mxfp4})) ==
        n * n + 64 + n * n / 2 + n * 2);
  CHECK(bytes(request_for(n, n, nn::operand_recipe{numbers::mxfp4}, std::nullopt)) == n * n / 2 + n * 2);
}

TEST_CASE("dequantized: BF16 of what the row form holds, its tensor's factor included") {
  const index_t rows = 64, cols = 96;
  for (const nn::operand_format f :
       {numbers::fp8_e4m3, numbers::fp8_e5m2, numbers::mxfp4, numbers::mxfp8_e5m2, numbers::nvfp4}) {
    CAPTURE(to_string(f));
    nn::operand_recipe row{f};
    row.policy = policies::nvidia;
    operand_case c(request_for(rows, cols, row, nn::operand_recipe{numbers::dequantized}),
                   to_float(random_tensor(rows * cols, 8, 4.0)));
    c.quantize();
    const gemm_operand &from = c.form(operand_form::row), &to = c.form(operand_form::column);
    CHECK((to.rows == cols && to.k == rows && to.factor == nullptr && to.element == formats::bf16));
    long long wrong = 0, other = 0;
    for (index_t r = 0; r < rows; ++r) {
      for (index_t k = 0; k < cols; ++k) {
        const float factor = from.factor != nullptr ? *from.factor : 1.0f;
        const float value = operand_value(to, k, r);
        wrong += fp32_bits(value) != fp32_bits(as_bf16(operand_value(from, r, k) * factor));
        other += value != as_bf16(c.value(r, k));
      }
    }
    CHECK(wrong == 0);
    CHECK(other > rows);  // quantized operands are larger
    if (nn::has_factor(f)) CHECK(*from.factor != 1.0f);
  }
}

TEST_CASE("dequantized beside a rotation: the source again but for what the blocks lost") {
  const index_t rows = 64, cols = 96;
  for (const nn::operand_format f : {numbers::mxfp4, numbers::mxfp8_e4m3, numbers::nvfp4}) {
    for (const nn::rotation_recipe& rotation : {nn::rotation_recipe{16},
                                                {32},
                                                {16, nn::sign_kind::mask, 0xD7E8},
                                                {16, nn::sign_kind::layer},
                                                {32, nn::sign_kind::step}}) {
      CAPTURE(to_string(f));
      CAPTURE(rotation.points);
      CAPTURE(to_string(rotation.signs));
      nn::operand_recipe row{f};
      row.policy = policies::nvidia;
      row.rotation = rotation;
      operand_case c(request_for(rows, cols, row, nn::operand_recipe{numbers::dequantized}),
                     to_float(random_tensor(rows * cols, 8, 4.0)));
      c.quantize();
      const gemm_operand &from = c.form(operand_form::row), &to = c.form(operand_form::column);
      // In double precision: the Hadamard transform is its own inverse, signs come last.
      const nn::step_state now = c.state;
      const std::uint32_t signs = nn::draws_of(c.made.set->request(), operand_form::row).mask(now);
      CHECK((signs != 0) == (rotation.signs != nn::sign_kind::none));
      long long far = 0;
      double error = 0, norm = 0;
      for (index_t r = 0; r < rows; ++r) {
        for (index_t k = 0; k < cols; ++k) {
          const index_t first = k / rotation.points * rotation.points;
          double sum = 0;
          for (index_t j = first; j < first + rotation.points; ++j) {
            const float factor = from.factor != nullptr ? *from.factor : 1.0f;
            const double v = static_cast<double>(operand_value(from, r, j) * factor);
            sum += (std::popcount(static_cast<unsigned>((j - first) & (k - first))) % 2 != 0 ? -v : v);
          }
          sum /= std::sqrt(static_cast<double>(rotation.points));
          if ((signs >> (k % nn::run_length_of(row)) & 1u) != 0) sum = -sum;
          const double value = static_cast<double>(operand_value(to, k, r)),
                       source = static_cast<double>(c.value(r, k));
          far += std::fabs(value - sum) > 0x1p-8 * std::fabs(sum) + 1e-6;  // one rounding to BF16
          error += (value - source) * (value - source);
          norm += source * source;
        }
      }
      CHECK(far == 0);
      CHECK(std::sqrt(error / norm) < (f == numbers::mxfp8_e4m3 ? 0.05 : 0.15));
    }
  }
}

TEST_CASE("FP8 with stochastic rounding: each form has its own stream, numbered along the rows of the source") {
  const index_t rows = 20, cols = 33;
  nn::operand_recipe random{numbers::fp8_e4m3};
  random.rounding = rounding::stochastic;
  nn::operand_request r = request_for(rows, cols, random, random);
  r.tensor = nn::tensor_role::dy;
  r.layer = 7;
  operand_case c(r, to_float(random_tensor(rows * cols, 6, 4.0)));
  c.quantize();
  for (const operand_form f : {operand_form::row, operand_form::column}) {
    // dy: the left operand of dgrad (1) along rows, of wgrad (2) along columns. Step 3, microbatch 1.
    const std::uint64_t gemm = f == operand_form::row ? 1 : 2;
    const random_stream words{9, std::uint64_t{1} << 56 | gemm << 52 | std::uint64_t{7} << 32 | 3 << 8 | 1};
    for (index_t i = 0; i < rows; ++i) {
      for (index_t j = 0; j < cols; ++j) {
        const auto want = encode(formats::e4m3, as_bf16(c.value(i, j)) * c.scale, rounding::stochastic,
                                 overflow::saturate, words.word(static_cast<std::uint64_t>(i * cols + j)));
        CHECK((f == operand_form::row ? operand_code(c.form(f), i, j) : operand_code(c.form(f), j, i)) == want);
      }
    }
  }
}

TEST_CASE("MX operands are quantize_ref of the source rounded to BF16, in one pass or in two") {
  const index_t rows = 64, cols = 96;
  for (const nn::dtype stored : {nn::dtype::fp32, nn::dtype::bf16}) {
    for (const auto f : {numbers::mxfp4, numbers::mxfp8_e4m3, numbers::mxfp8_e5m2}) {
      for (const int points : {0, 16, 32}) {
        for (const block_policy& policy : {policies::te_rocm, policies::ocp, policies::nvidia, policies::aiter}) {
          const nn::operand_recipe how{f, scale_rule::ceil, rounding::stochastic, {points}, policy, {}};
          operand_case c(request_for(rows, cols, how, how, stored), to_float(random_tensor(rows * cols, 7, 4.0)));
          for (const int pass : {0, 1, 2}) {  // both at once, then each alone
            c.quantize(pass != 2, pass != 1);
            for (const operand_form form : {operand_form::row, operand_form::column}) {
              if (pass != 0 && (form == operand_form::row) != (pass == 1)) continue;
              const gemm_operand& got = c.form(form);
              block_options o;
              o.source = formats::bf16;
              o.rule = scale_rule::ceil;
              o.rounding = rounding::stochastic;
              o.policy = policy;
              // x: left of fprop (0) along rows, right of wgrad (2) along columns.
              const std::uint64_t use = form == operand_form::row ? 0 : std::uint64_t{2} << 52 | std::uint64_t{1} << 48;
              o.random = {9, std::uint64_t{1} << 56 | use | 3 << 8 | 1};
              o.rotation.points = points;
              std::vector<std::uint8_t> codes(static_cast<std::size_t>(got.rows * got.code_stride)),
                  scales(static_cast<std::size_t>(got.rows * got.scale_stride));
              quantize_ref({got.element, 32}, o, row_major<const float>(c.values.data(), rows, cols),
                           form == operand_form::row ? block_axis::row : block_axis::column,
                           {got.rows, got.k, codes.data(), got.code_stride, scales.data(), got.scale_stride});
              CHECK(std::equal(codes.begin(), codes.end(), got.codes));
              CHECK(std::equal(scales.begin(), scales.end(), got.scales));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("the recorded amax is the largest finite one, after rounding to BF16, and only grows") {
  const auto amax_of = [&](std::vector<float> x, float before) {
    operand_case c(request_for(1, static_cast<index_t>(x.size()), numbers::fp8_e4m3), x);
    c.amax = before;
    c.quantize();
    return c.amax;
  };
  CHECK(amax_of({1.0f, -3.0f, 2.0f}, 0.0f) == 3.0f);
  CHECK(amax_of({1.0f, -3.0f, 2.0f}, 5.0f) == 5.0f);
  CHECK(amax_of({1.0f, infinity, -infinity, not_a_number}, 0.0f) == 1.0f);
  CHECK(amax_of({0.0f, -0.0f}, 0.0f) == 0.0f);
  CHECK(amax_of({1.00390625f}, 0.0f) == 1.0f);                              // a tie, to even
  CHECK(amax_of({1.0f, std::numeric_limits<float>::max()}, 0.0f) == 1.0f);  // Inf as BF16
}

}  // namespace cpu_operands_test
