// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Cases of operands, GEMMs, delayed scaling and fused operations. The layout of operands is the backend's, so their
// bits are tested through products.
#pragma once

#include "backend_ops_rows.hpp"

namespace rotoscale::testing {

/// A tensor as a row operand and as a column operand, each multiplied with a row operand of another tensor.
struct gemm_shape {
  index_t m, n, k;
};
inline op_case::prepared gemm_case(op_scene& c, const gemm_shape& s, const nn::operand_recipe& how,
                                   const nn::gemm_contract& contract, nn::dtype source, nn::dtype stored,
                                   bool accumulate) {
  const auto request = [&](index_t rows, index_t cols, bool row, bool column) {
    nn::operand_request r;
    r.tensor = nn::tensor_role::x;
    r.layer = 3;
    r.source = source;
    r.rows = rows;
    r.cols = cols;
    if (row) r.row = how;
    if (column) r.column = how;
    r.row_in_bf16 = r.column_in_bf16 = nn::expands_operands(contract.name);
    return r;
  };
  // x (m, k) in both forms, w (n, k) and v (n, m) along rows.
  const auto x = c.tensor(source, s.m, s.k, 1, 4), w = c.tensor(source, s.n, s.k, 2, 4),
             v = c.tensor(source, s.n, s.m, 3, 4);
  nn::operand_set* const sets[] = {
      c.operands(request(s.m, s.k, true, true), x), c.operands(request(s.n, s.k, true, false), w),
      c.operands(request(s.n, s.m, true, false), v), c.operands(request(s.m, s.k, true, true), x)};
  // x's operands are copied, and the copies multiplied.
  std::byte *const made = c.bytes_of(3).data(), *const copied = c.bytes_of(0).data();
  const auto bytes = static_cast<std::size_t>(c.bytes_of(0).size());
  const auto by_rows = c.tensor(stored, s.m, s.n, 4), by_columns = c.tensor(stored, s.k, s.n, 5),
             bias = c.tensor(nn::dtype::fp32, 1, s.n, 6);
  float* scaling = c.keep(std::vector<float>{3.0f, 1.0f / 3.0f, 0.0f});
  nn::step_state* state = c.state();
  const nn::scaling_ref scale{scaling, scaling + 1, scaling + 2};
  const bool exact = accumulate && stored == nn::dtype::fp32;  // as gradients of weights
  const nn::operand_format output = exact ? nn::operand_format::fp32 : nn::operand_format::bf16;
  return {[=, &c] {
            c.ops().quantize(c.queue, {x, state}, {{sets[0], true, true, scale}});
            c.ops().quantize(c.queue, {w, state}, {{sets[1], true, false, scale}});
            c.ops().quantize(c.queue, {v, state}, {{sets[2], true, false, scale}});
            c.ops().copy(c.queue, copied, made, bytes);
            const nn::operand a{sets[3], nn::operand_form::row}, b{sets[1], nn::operand_form::row};
            if (accumulate) {
              c.ops().gemm(c.queue, {a, b, contract, output, true}, {by_rows});
            } else {
              c.ops().gemm_bias(c.queue, {a, b, contract, output, bias}, {by_rows});
            }
            c.ops().gemm(
                c.queue,
                {{sets[3], nn::operand_form::column}, {sets[2], nn::operand_form::row}, contract, output, accumulate},
                {by_columns});
          },
          [=, &c] {
            c.result(by_rows);
            c.result(by_columns);
            c.result(scaling, 3);
          }};
}

/// An operand's values and error statistics, in both forms.
inline op_case::prepared observe_case(op_scene& c, const nn::operand_recipe& how, index_t rows, index_t cols,
                                      nn::dtype source, bool in_bf16) {
  const auto x = c.tensor(source, rows, cols, 1, 9);
  const nn::operand_request r{nn::tensor_role::dy, 4, source, rows, cols, how, how, 0, in_bf16, in_bf16};
  nn::operand_set* const set = c.operands(r, x);
  const auto by_rows = c.tensor(nn::dtype::fp32, rows, cols, 2), by_columns = c.tensor(nn::dtype::bf16, rows, cols, 3);
  auto* lost = c.keep(std::vector<nn::operand_statistics>(2));
  float* scaling = c.keep(std::vector<float>{3.0f, 1.0f / 3.0f});
  nn::step_state* state = c.state();
  return {[=, &c] {
            c.ops().quantize(c.queue, {x, state}, {{set, true, true, {scaling, scaling + 1, nullptr}}});
            c.ops().dequantize(c.queue, {{set, nn::operand_form::row}}, {by_rows});
            c.ops().dequantize(c.queue, {{set, nn::operand_form::column}}, {by_columns});
            c.ops().observe(c.queue, {x, {set, nn::operand_form::row}, state}, {lost});
            c.ops().observe(c.queue, {x, {set, nn::operand_form::column}, state}, {lost + 1});
          },
          [=, &c] {
            c.result(by_rows);
            c.result(by_columns);
            c.result(lost, 2);
          }};
}
/// A column form made from the row form (`again`), as BF16 if it is dequantized, and in a product.
inline op_case::prepared dequantized_case(op_scene& c, const nn::operand_recipe& how, const nn::operand_recipe& again,
                                          index_t rows, index_t cols, nn::dtype source, bool apart) {
  const auto x = c.tensor(source, rows, cols, 1, 9), w = c.tensor(nn::dtype::fp32, 24, rows, 2, 4);
  const nn::operand_recipe narrow{nn::operand_format::bf16};
  nn::operand_set* const set = c.operands({nn::tensor_role::x, 4, source, rows, cols, how, again, 0, true, true}, x);
  nn::operand_set* const other = c.operands({nn::tensor_role::dy, 4, nn::dtype::fp32, 24, rows, narrow, {}}, w);
  const auto values = c.tensor(nn::dtype::bf16, rows, cols, 3), products = c.tensor(nn::dtype::fp32, cols, 24, 4);
  float* scaling = c.keep(std::vector<float>{3.0f, 1.0f / 3.0f});
  nn::step_state* state = c.state();
  const nn::scaling_ref scale{scaling, scaling + 1, nullptr};
  return {[=, &c] {
            c.ops().quantize(c.queue, {x, state}, {{set, true, !apart, scale}});
            if (apart) c.ops().quantize(c.queue, {x, state}, {{set, false, true, scale}});
            c.ops().quantize(c.queue, {w, state}, {{other, true, false, {}}});
            if (again.format == nn::operand_format::dequantized) {
              c.ops().dequantize(c.queue, {{set, nn::operand_form::column}}, {values});
            }
            c.ops().gemm(c.queue,
                         {{set, nn::operand_form::column},
                          {other, nn::operand_form::row},
                          nn::gemm_contract{},
                          nn::operand_format::fp32,
                          false},
                         {products});
          },
          [=, &c] {
            c.result(values);
            c.result(products);
          }};
}
/// Operands that are stored as values, of ragged groups of 128.
inline std::vector<op_case> kept_cases() {
  using enum nn::operand_format;
  std::vector<std::pair<const char*, nn::operand_recipe>> recipes;
  const auto add = [&](const char* name, nn::operand_format f, const auto& change) {
    nn::operand_recipe how{f};
    change(how);
    recipes.emplace_back(name, how);
  };
  add("row", fp8_e4m3, [](auto& o) { o.scaling = nn::fp8_scaling::row; });
  add("1x128", fp8_e5m2, [](auto& o) { o.scaling = nn::fp8_scaling::block_1x128; });
  add("128x128", fp8_e4m3, [](auto& o) { o.scaling = nn::fp8_scaling::block_128x128; });
  add("macro-blocks", mxfp4, [](auto& o) { o.macro_blocks = true, o.rounding = rounding::stochastic; });
  add("square macro-blocks", mxfp4, [](auto& o) { o.macro_blocks = true, o.block = {32, 32, formats::e8m0}; });
  add("outliers", mxfp4, [](auto& o) { o.outliers = 5; });
  add("outliers of MXFP6", mxfp6_e2m3, [](auto& o) { o.outliers = 300; });
  std::vector<op_case> all;
  for (const auto& [name, how] : recipes) {
    for (const nn::dtype source : storages) {
      all.push_back({std::string(name) + " from " + std::string(to_string(source)), false,
                     [=, own = how](op_scene& c, bool) { return observe_case(c, own, 160, 288, source, true); }});
    }
    all.push_back(
        {std::string("gemm of ") + name, false, [own = how](op_scene& c, bool) {
           return gemm_case(c, {160, 32, 288}, own, nn::gemm_contract{}, nn::dtype::fp32, nn::dtype::fp32, false);
         }});
  }
  return all;
}
/// The gradient of a weight under its soft quantizer.
inline op_case::prepared estimate_case(op_scene& c, const nn::operand_recipe& how) {
  const auto w = c.tensor(nn::dtype::fp32, 64, 96, 1, 3), gradient = c.tensor(nn::dtype::fp32, 64, 96, 2);
  nn::operand_set* const set = c.operands({nn::tensor_role::w, 4, nn::dtype::fp32, 64, 96, how, {}}, w);
  return {[=, &c] {
            c.ops().quantize(c.queue, {w, c.state()}, {{set, true, false, {}}});
            c.ops().estimate_gradient(c.queue, {{set, nn::operand_form::row}, w}, {gradient});
          },
          [=, &c] { c.result(gradient); }};
}
inline void add_dequantized_cases(std::vector<op_case>& all) {
  using numbers = nn::operand_format;
  const auto add = [&](numbers f, const nn::rotation_recipe& rotation, index_t cols,
                       const std::optional<nn::block_recipe>& block = {}) {
    for (const nn::dtype source : storages) {
      for (const bool apart : {false, true}) {
        nn::operand_recipe how{f};
        if (f == numbers::nvfp4) how.policy = policies::nvidia;
        how.rotation = rotation;
        how.block = block;
        nn::operand_recipe requantized = how;
        requantized.source = nn::operand_source::forward;
        for (const nn::operand_recipe& again : {nn::operand_recipe{numbers::dequantized}, requantized}) {
          if (again.source == nn::operand_source::forward && !nn::has_blocks(f)) continue;
          all.push_back({std::string(to_string(again.source)) + " dequantized " + std::string(to_string(f)) + " H" +
                             std::to_string(rotation.points) + " signs " + std::string(to_string(rotation.signs)) +
                             " from " + std::string(to_string(source)) + (apart ? " apart" : ""),
                         false,
                         [=](op_scene& c, bool) { return dequantized_case(c, how, again, 64, cols, source, apart); }});
        }
      }
    }
  };
  for (const numbers f : {numbers::fp8_e4m3, numbers::fp8_e5m2, numbers::mxfp8_e4m3, numbers::mxfp6_e2m3,
                          numbers::mxfp4, numbers::nvfp4}) {
    add(f, {}, 96);
  }
  for (const nn::sign_kind signs : {nn::sign_kind::none, nn::sign_kind::layer, nn::sign_kind::step}) {
    add(numbers::mxfp4, {16, signs}, 160);
    add(numbers::mxfp4, {32, signs}, 96);
    add(numbers::mxfp8_e5m2, {16, signs}, 96);
    add(numbers::nvfp4, {16, signs}, 80);
    add(numbers::nvfp4, {32, signs}, 96);
    add(numbers::nvfp4, {64, signs}, 192);
  }
  add(numbers::nvfp4, {32, nn::sign_kind::mask, 0xD7E8}, 96);
  add(numbers::mxfp4, {16, nn::sign_kind::step}, 96, {{32, 32}});
}
inline op_case::prepared compare_case(op_scene& c, index_t n, int width) {
  const float *x = c.floats(n, 1, width), *y = c.floats(n, 2, width);
  auto* to = c.keep(std::vector<nn::comparison_statistics>(1));
  return {[=, &c] { c.ops().compare(c.queue, {y, x, n}, {to}); }, [=, &c] { c.result(to, 1); }};
}

inline std::vector<op_case> statistics_cases() {
  using numbers = nn::operand_format;
  std::vector<op_case> all;
  const auto add = [&](numbers f, index_t rows, index_t cols, const nn::rotation_recipe& rotation = {},
                       const std::optional<nn::block_recipe>& block = {}) {
    for (const nn::dtype source : storages) {
      nn::operand_recipe how{f};
      if (f == numbers::nvfp4) how.policy = policies::nvidia;
      how.rotation = rotation;
      how.block = block;
      all.push_back({"dequantize and observe " + std::string(to_string(f)) + " H" + std::to_string(rotation.points) +
                         " signs " + std::string(to_string(rotation.signs)) + " " + std::to_string(rows) + "x" +
                         std::to_string(cols) + " from " + std::string(to_string(source)),
                     false, [=](op_scene& c, bool) {
                       return observe_case(c, how, rows, cols, source, source == nn::dtype::bf16);
                     }});
    }
  };
  for (const numbers f : {numbers::fp32, numbers::bf16, numbers::fp8_e4m3, numbers::fp8_e5m2}) {
    add(f, 1, 1);
    add(f, 65, 130);
  }
  for (const numbers f : {numbers::mxfp4, numbers::mxfp8_e4m3, numbers::mxfp8_e5m2}) add(f, 160, 96);
  add(numbers::mxfp4, 64, 160, {16});
  add(numbers::mxfp4, 64, 160, {16, nn::sign_kind::step});
  add(numbers::mxfp4, 64, 96, {32, nn::sign_kind::step});
  for (const numbers f : {numbers::mxfp6_e2m3, numbers::mxfp6_e3m2, numbers::nvfp4}) add(f, 160, 96);
  add(numbers::nvfp4, 48, 80, {16, nn::sign_kind::step});
  add(numbers::nvfp4, 48, 80, {}, {{16, 16, formats::ue4m3}});
  add(numbers::mxfp4, 64, 96, {}, {{32, 32}});
  add(numbers::mxfp8_e4m3, 48, 80, {}, {{16, 1}});
  add(numbers::mxfp8_e4m3, 128, 384, {}, {{128, 1}});
  add(numbers::nvfp4, 64, 192, {64, nn::sign_kind::mask, 0xD7E8});
  add(numbers::mxfp4, 128, 256, {128, nn::sign_kind::step});
  add(numbers::mxfp8_e5m2, 128, 256, {}, {{128, 128}});
  add_dequantized_cases(all);
  for (const index_t n : {index_t{1}, index_t{100}, index_t{4097}, index_t{40000}}) {
    for (const int width : {0, 20}) {
      all.push_back({"compare " + std::to_string(n) + " 2^" + std::to_string(width), false,
                     [=](op_scene& c, bool) { return compare_case(c, n, width); }});
    }
  }
  return all;
}

inline std::vector<op_case> gemm_cases() {
  using numbers = nn::operand_format;
  std::vector<op_case> all;
  const auto add = [&](numbers f, const char* contract, const gemm_shape& s, rounding r = rounding::nearest_even,
                       const nn::rotation_recipe& rotation = {}, const std::optional<nn::block_recipe>& block = {}) {
    for (const nn::dtype source : storages) {
      for (const int output : {0, 1, 2, 3}) {                            // FP32, BF16; 2 and 3: the same, accumulated
        if ((output % 3 == 0) != (source == nn::dtype::fp32)) continue;  // the source's dtype affects the operands only
        nn::operand_recipe how{f};
        if (f == numbers::nvfp4) how.policy = policies::nvidia;
        how.rounding = r;
        how.rotation = rotation;
        how.block = block;
        const auto agreed = [=](const nn::backend& ops) {
          const nn::gemm_recipe g{how, how, contract, nn::operand_format::bf16};
          return ops.contract(g, s.m, s.n, s.k).has_value() && ops.contract(g, s.k, s.n, s.m).has_value();
        };
        all.push_back({"gemm " + std::string(to_string(f)) + " " + contract + " " + std::to_string(s.m) + "x" +
                           std::to_string(s.n) + "x" + std::to_string(s.k) + " from " + std::string(to_string(source)) +
                           " to " + (output % 2 == 0 ? "fp32" : "bf16") + (output > 1 ? " sum" : ""),
                       false,
                       [=](op_scene& c, bool) {
                         return gemm_case(c, s, how, *nn::find_gemm_contract(contract), source,
                                          output % 2 == 1 ? nn::dtype::bf16 : nn::dtype::fp32, output > 1);
                       },
                       agreed});
      }
    }
  };
  for (const gemm_shape& s : {gemm_shape{1, 1, 1}, {5, 70, 33}, {64, 32, 96}, {130, 17, 300}}) {
    for (const numbers f : {numbers::fp32, numbers::bf16, numbers::fp8_e4m3, numbers::fp8_e5m2}) {
      add(f, nn::fp32_fma_chain_contract, s);
    }
  }
  const gemm_shape blocks{96, 40, 160};
  for (const numbers f : {numbers::mxfp4, numbers::mxfp8_e4m3, numbers::mxfp8_e5m2}) {
    add(f, nn::fp32_fma_chain_contract, blocks);
    add(f, nn::fp32_fma_chain_contract, blocks, rounding::stochastic, {16, nn::sign_kind::step});
  }
  add(numbers::mxfp4, nn::fp32_blockwise_contract, blocks, rounding::nearest_even, {16});
  add(numbers::fp8_e4m3, nn::fp32_fma_chain_contract, blocks, rounding::stochastic);
  const gemm_shape squares{64, 32, 96};
  for (const numbers f : {numbers::mxfp6_e2m3, numbers::mxfp6_e3m2, numbers::nvfp4}) {
    add(f, nn::fp32_fma_chain_contract, squares, rounding::stochastic, {16, nn::sign_kind::step});
  }
  add(numbers::nvfp4, nn::fp32_fma_chain_contract, squares, rounding::nearest_even, {}, {{16, 16, formats::ue4m3}});
  add(numbers::mxfp4, nn::fp32_blockwise_contract, squares, rounding::nearest_even, {32}, {{32, 32}});
  add(numbers::nvfp4, nn::fp32_fma_chain_contract, {128, 24, 256}, rounding::stochastic, {128, nn::sign_kind::step});
  for (const char* contract : {nn::fp32_fma_chain_contract, "mx-bf16-sm90"}) {
    add(numbers::mxfp8_e4m3, contract, {128, 24, 256}, rounding::nearest_even, {}, {{128, 1}});
    add(numbers::mxfp8_e4m3, contract, {128, 128, 256}, rounding::stochastic, {}, {{128, 128}});
  }
  add(numbers::bf16, "cublas-fp16:split_k=2:split_grain=32", {64, 32, 64});
  for (const char* contract : {"mx-bf16-sm90", "mx-bf16-sm90:split_k=2", "mx-bf16-gfx942", "mx-bf16-gfx942:split_k=3",
                               "single-accumulator@cdna3-mfma-fp16-f32"}) {
    add(numbers::bf16, contract, {40, 72, 136});
  }
  // Blocks and FP8 expanded for a BF16 unit.
  for (const char* contract : {"mx-bf16-sm90", "mx-bf16-sm90:split_k=2", "mx-bf16-gfx942:split_k=2"}) {
    const gemm_shape ragged{32, 72, 160};  // a K of 160 is a whole part of split-K and a shorter one
    add(numbers::mxfp8_e4m3, contract, ragged);
    add(numbers::mxfp8_e5m2, contract, ragged);
    add(numbers::fp8_e4m3, contract, {32, 72, 136});
    add(numbers::fp8_e5m2, contract, ragged, rounding::stochastic);
    add(numbers::mxfp4, contract, ragged, rounding::stochastic, {16, nn::sign_kind::step});
    add(numbers::mxfp6_e2m3, contract, ragged);
    add(numbers::mxfp6_e3m2, contract, ragged, rounding::stochastic);
    add(numbers::mxfp8_e4m3, contract, ragged, rounding::nearest_even, {}, {{16, 1}});
    add(numbers::nvfp4, contract, ragged, rounding::stochastic, {16, nn::sign_kind::step});
    add(numbers::nvfp4, contract, {32, 64, 160}, rounding::nearest_even, {}, {{16, 16, formats::ue4m3}});
  }
  add(numbers::fp8_e4m3, "hopper-fp8-promoted", {64, 32, 64});
  add(numbers::fp8_e5m2, "hopper-fp8-promoted:split_k=2", {33, 18, 290});
  add(numbers::fp8_e4m3, "hopper-fp8-fast-accumulate", {33, 18, 290});
  add(numbers::mxfp4, "mxfp4-accurate-sm90", {64, 32, 64});
  return all;
}

/// Quantization of a layer's result in the same kernel.
struct layer_operands {
  const char* name;
  nn::operand_recipe row, column;
  index_t rows = 64, cols = 96;
  bool columns = true, keeps_source = true;
  int width = 0;
};
inline std::vector<layer_operands> layer_operands_cases() {
  using numbers = nn::operand_format;
  const auto how = [](numbers f, int points = 0, nn::sign_kind signs = nn::sign_kind::none,
                      rounding r = rounding::nearest_even) {
    nn::operand_recipe o{f};
    o.rotation = {points, signs};
    o.rounding = r;
    return o;
  };
  const auto bf16 = how(numbers::bf16), fp4 = how(numbers::mxfp4), rotated = how(numbers::mxfp4, 16),
             random = how(numbers::mxfp4, 16, nn::sign_kind::step, rounding::stochastic),
             fp8 = how(numbers::mxfp8_e4m3), wide = how(numbers::mxfp8_e5m2), tensor_fp8 = how(numbers::fp8_e4m3),
             tensor_wide = how(numbers::fp8_e5m2);
  return {{"bf16", bf16, bf16},
          {"mxfp4", fp4, fp4},
          {"mxfp4 and mxfp4 H16", fp4, rotated, 96, 160},
          {"mxfp4 H16", rotated, rotated, 160, 160, true, false},
          {"mxfp4 H16 SR", random, random, 96, 160},
          {"mxfp4 rows", fp4, fp4, 65, 32, false, false},
          {"mxfp4 of many magnitudes", fp4, fp4, 64, 96, true, false, 9},
          {"mxfp4 of anything", fp4, fp4, 64, 96, true, false, op_scene::special},
          {"mxfp8_e4m3", fp8, fp8, 160, 160},
          {"mxfp8_e5m2", wide, wide, 64, 32},
          {"mxfp8_e4m3 and mxfp8_e5m2", fp8, wide},
          {"fp8_e4m3", tensor_fp8, tensor_fp8, 160, 144},
          {"fp8_e4m3 without its source", tensor_fp8, tensor_fp8, 65, 100, true, false},
          {"fp8_e5m2", tensor_wide, tensor_wide, 64, 96, true, false},
          {"fp8_e4m3 rows", tensor_fp8, tensor_fp8, 33, 130, false, false},
          {"fp8_e4m3 and fp8_e5m2", tensor_fp8, tensor_wide}};
}

/// The layer that makes an operand's source.
struct made_by {
  enum { norm, layer_norm, activation, activation_gradient } layer;
  nn::activation which = {};

  std::string name() const {
    if (layer == layer_norm) return "residual_norm with a bias";
    return layer == norm ? "residual_norm" : name_of(which) + (layer == activation ? "" : "_backward");
  }
};
inline std::vector<made_by> makers() {
  std::vector<made_by> all = {{made_by::norm}, {made_by::layer_norm}};
  for (const nn::activation which : activations) {
    all.push_back({made_by::activation, which});
    all.push_back({made_by::activation_gradient, which});
  }
  return all;
}

/// A layer's result as operands: their values, and with `raw` all bytes, which differ between backends.
inline op_case::prepared layer_operands_case(op_scene& c, const made_by& by, nn::dtype type, const layer_operands& m,
                                             bool raw, bool composed) {
  const bool backward = by.layer == made_by::activation_gradient;
  const bool normed = by.layer == made_by::norm || by.layer == made_by::layer_norm;
  const index_t inputs = normed ? m.cols : nn::inputs_of(by.which) * m.cols;
  const index_t cols = backward ? inputs : m.cols;
  const auto x = c.tensor(type, m.rows, inputs, 1, m.width), other = c.tensor(type, m.rows, m.cols, 2, m.width),
             out = c.tensor(type, m.rows, cols, 3), sum = c.tensor(type, m.rows, m.cols, 4);
  float *gain = c.floats(m.cols, 5), *rstd = c.floats(m.rows, 6), *mean = c.floats(m.rows, 9);
  float* const bias = by.layer == made_by::layer_norm ? c.floats(m.cols, 10) : nullptr;
  nn::operand_request r{backward ? nn::tensor_role::dy : nn::tensor_role::x, 3, type, m.rows, cols, m.row, {}};
  if (m.columns) r.column = m.column;
  nn::operand_set* const set = c.operands(r, out);
  const device_array<std::byte>& bytes = c.bytes_of(0);
  const std::byte* const first = bytes.data();
  const auto size = static_cast<index_t>(c.ops().layout_operands(r).bytes);
  const auto by_rows = c.tensor(nn::dtype::fp32, m.rows, cols, 7),
             by_columns = c.tensor(nn::dtype::fp32, m.rows, cols, 8);
  nn::step_state* state = c.state();
  float* const scaling = nn::is_fp8(m.row.format) ? c.keep(std::vector<float>{3.0f, 1.0f / 3.0f, 0.0f}) : nullptr;
  const nn::scaling_ref scale =
      scaling == nullptr ? nn::scaling_ref{} : nn::scaling_ref{scaling, scaling + 1, scaling + 2};
  const nn::quantize_target to{set, true, m.columns, scale, m.keeps_source || c.ops().layout_operands(r).reads_source};
  return {[=, &c] {
            nn::backend& ops = c.ops();
            switch (by.layer) {
              case made_by::norm:
              case made_by::layer_norm:
                run_as<nn::op::residual_norm>(c, composed, {x, other, gain, 1e-5f, state, bias},
                                              {sum, out, rstd, to, mean});
                break;
              case made_by::activation:
                run_as<nn::op::activation_quantize>(c, composed, {x, by.which, state}, {out, to});
                break;
              case made_by::activation_gradient:
                run_as<nn::op::activation_backward_quantize>(c, composed, {other, x, by.which, state}, {out, to});
                break;
            }
            ops.dequantize(c.queue, {{set, nn::operand_form::row}}, {by_rows});
            if (m.columns) ops.dequantize(c.queue, {{set, nn::operand_form::column}}, {by_columns});
          },
          [=, &c] {
            c.result(by_rows);
            c.result(by_columns);
            if (normed) {
              c.result(sum);
              c.result(rstd, m.rows);
              c.result(mean, m.rows);
            }
            if (to.keeps_source) c.result(out);
            if (scaling != nullptr) c.result(scaling + 2, 1);  // the maximum
            if (raw) c.result(first, size);
          }};
}

inline std::vector<op_case> layer_operands_cases(bool raw) {
  std::vector<op_case> all;
  for (const nn::dtype type : storages) {
    for (const made_by& by : makers()) {
      for (const layer_operands& m : layer_operands_cases()) {
        // No contract defines the NaN of a product, nor its quantized code.
        if (!raw && m.width == op_scene::special) continue;
        all.push_back({by.name() + " to " + m.name + " " + std::string(to_string(type)),
                       true,
                       [=](op_scene& c, bool composed) { return layer_operands_case(c, by, type, m, raw, composed); },
                       {},
                       m.width == op_scene::special});
      }
    }
  }
  return all;
}

/// Gradients of logits as operands: their values, and FP32 gradients if kept.
inline op_case::prepared loss_operands_case(op_scene& c, index_t vocabulary, nn::operand_format format, bool keeps,
                                            bool column, bool composed) {
  constexpr index_t tokens = 37;
  const auto logits = c.tensor(nn::dtype::fp32, tokens, vocabulary, 1, 3);
  float* loss = c.floats(tokens, 2);
  nn::operand_request r{nn::tensor_role::dy, 9, nn::dtype::fp32, tokens, vocabulary, {}, {}};
  r.row = nn::operand_recipe{format};
  if (column) r.column = r.row;
  nn::operand_set* const set = c.operands(r, logits);
  const auto values = c.tensor(nn::dtype::fp32, tokens, vocabulary, 3);
  nn::step_state* state = c.state();
  const nn::token_source targets{c.tokens(tokens, vocabulary, 7, true), tokens};
  const nn::quantize_target to{set, true, column, {}, keeps || c.ops().layout_operands(r).reads_source};
  return {[=, &c] {
            nn::backend& ops = c.ops();
            run_as<nn::op::cross_entropy_quantize>(c, composed, {targets, 0, state}, {logits, loss, to});
            ops.dequantize(c.queue, {{set, nn::operand_form::row}}, {values});
          },
          [=, &c] {
            c.result(loss, tokens);
            c.result(values);
            if (to.keeps_source) c.result(logits);
          }};
}
inline void add_loss_operands_cases(std::vector<op_case>& all) {
  for (const nn::operand_format f : {nn::operand_format::fp32, nn::operand_format::bf16}) {
    for (const index_t vocabulary : {50, 52, 4500, 8193}) {
      for (const bool keeps : {false, true}) {
        all.push_back({"cross_entropy to " + std::string(to_string(f)) + " " + std::to_string(vocabulary), true,
                       [=](op_scene& c, bool composed) {
                         return loss_operands_case(c, vocabulary, f, keeps, keeps != (vocabulary == 52), composed);
                       }});
      }
    }
  }
}

inline std::vector<op_case> coarse_cases() {
  std::vector<op_case> all = layer_operands_cases(false);
  add_loss_operands_cases(all);
  return all;
}

}  // namespace rotoscale::testing
