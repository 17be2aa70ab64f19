// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Recipes as data: contents of the presets, refused combinations, and JSON round trips.
#include <doctest/doctest.h>

#include <set>

#include "preset.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/nn/recipe_faults.hpp"
#include "rotoscale/nn/schedule.hpp"

namespace recipe_test {

using namespace rotoscale;
using rotoscale::testing::preset;
namespace nn = rotoscale::nn;

TEST_CASE("presets are valid, named once, and read back from their JSON") {
  std::set<std::string> names;
  for (const nn::recipe& r : nn::presets::all()) {
    CAPTURE(r.name);
    CHECK_FALSE(find_fault(r).has_value());
    CHECK(names.insert(r.name).second);
    nn::recipe read;
    io::from_json(io::to_json(r), read, "recipe");
    CHECK(read == r);
  }
  for (const nn::schedule& s : nn::presets::schedules()) {
    CHECK(names.insert(s.name).second);
    for (const nn::phase& p : s.phases) CHECK(names.count(p.recipe) == 1);
  }
}

TEST_CASE("an alias is a recipe under a contract set, and so are all recipes under all sets") {
  const struct {
    const char *name, *fprop, *wgrad, *beside, *attention;
  } expected[] = {
      {"bf16_tc", "mx-bf16-sm90:split_fill=66", "mx-bf16-sm90:split_fill=66", "mx-bf16-sm90:split_fill=66", "hopper"},
      {"fp8_tc", "hopper-fp8-promoted", "hopper-fp8-promoted", "mx-bf16-sm90", "hopper"},
      {"mxfp8_tc", "mx-bf16-sm90:split_fill=66", "mx-bf16-sm90:split_fill=66", "mx-bf16-sm90:split_fill=66", "hopper"},
      {"mxfp4_tc", "fp32_blockwise", "fp32_blockwise", "mx-bf16-sm90", "hopper"},
      {"bf16_mfma", "mx-bf16-gfx942", "mx-bf16-gfx942", "mx-bf16-gfx942", "cdna3"},
      {"mxfp4_mfma", "fp32_blockwise", "fp32_blockwise", "mx-bf16-gfx942", "cdna3"}};
  REQUIRE(std::size(expected) == std::size(nn::presets::aliases));
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    const auto& [name, fprop, wgrad, beside, device] = expected[i];
    const nn::presets::alias& a = nn::presets::aliases[i];
    CAPTURE(name);
    nn::recipe r = preset(a.name), pair = take_contracts(preset(a.recipe), *nn::find_contract_set(a.contracts));
    CHECK(r.name == name);
    pair.name = r.name;
    CHECK(r == pair);
    CHECK((r.fprop.accumulate == fprop && r.dgrad.accumulate == fprop && r.wgrad.accumulate == wgrad));
    for (const std::string* c : {&r.bf16_layers.fprop, &r.bf16_layers.dgrad, &r.bf16_layers.wgrad, &r.adapters.fprop,
                                 &r.adapters.dgrad, &r.adapters.wgrad}) {
      CHECK(*c == beside);
    }
    CHECK(r.head == bf16_layers_of(r));
    CHECK(r.activations == nn::operand_format::bf16);
    CHECK(r.attention == (device == std::string("hopper") ? "attention-bf16-tile64x64-ex2approx@hopper-mma-fp16-f32"
                                                          : "attention-bf16-tile64x64-exp2deg3@cdna3-mfma-fp16-f32"));
  }
  for (const nn::recipe& r : nn::presets::all()) {
    for (const nn::contract_set& s : nn::contract_sets) {
      CAPTURE(r.name);
      CAPTURE(s.name);
      const nn::recipe once = take_contracts(r, s);
      CHECK(find_fault(once).value_or("none") == "none");
      CHECK(take_contracts(once, s) == once);
      for (const auto gemm : {&nn::linear_recipe::fprop, &nn::linear_recipe::dgrad, &nn::linear_recipe::wgrad}) {
        CHECK(((once.*gemm).left == (r.*gemm).left && (once.*gemm).right == (r.*gemm).right));
      }
    }
  }
  nn::recipe own = preset("mxfp4");
  own.contracts = "hoper";
  CHECK(find_fault(own).value_or("none") == "contracts: 'hoper' is no contract set; did you mean 'hopper'?");
}

TEST_CASE("MXFP8 and NVFP4 as Transformer Engine has them") {
  const nn::recipe mx = preset("mxfp8"), nv = preset("nvfp4");
  for (const nn::gemm_recipe& g : {mx.fprop, mx.dgrad, mx.wgrad}) {
    for (const nn::operand_recipe& o : {g.left, g.right}) {
      CHECK(nn::block_format_of(o) == rotoscale::mxfp8_e4m3);
      CHECK((o.rule == scale_rule::rceil && o.policy == policies::nvidia && o.rotation.points == 0));
    }
  }
  CHECK(nn::block_format_of(nv.fprop.left) == rotoscale::nvfp4);
  CHECK(nn::block_format_of(nv.fprop.right) == square_blocks(rotoscale::nvfp4));
  CHECK(nv.fprop.right == nv.dgrad.right);
  for (const nn::operand_recipe* o : {&nv.fprop.left, &nv.fprop.right, &nv.wgrad.right}) {
    CHECK(o->rounding == rounding::nearest_even);
  }
  for (const nn::operand_recipe* o : {&nv.dgrad.left, &nv.wgrad.left}) CHECK(o->rounding == rounding::stochastic);
  CHECK(nv.fprop.left.rotation.points == 0);
  CHECK(nv.dgrad.left.rotation.points == 0);
  CHECK(nv.wgrad.left.rotation == nn::rotation_recipe{16, nn::sign_kind::mask, 0xD7E8});
  // Its signs, in the order of that source.
  const int signs[16] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
  for (int i = 0; i < 16; ++i) CHECK((nn::presets::nvidia_sign_mask >> i & 1u) == (signs[i] < 0 ? 1u : 0u));
}

TEST_CASE("JSON shows what an operand has, and takes parts of it") {
  nn::operand_recipe o{nn::operand_format::nvfp4};
  auto json = io::to_json(o);
  CHECK(json["block"].dump() == R"({"length":16,"rows":1,"scale":"ue4m3"})");
  CHECK(json["rotation"].is_null());
  o.format = nn::operand_format::bf16;
  CHECK(io::to_json(o)["block"].is_null());
  o = {};
  io::from_json(io::parse_json(R"({"format": "mxfp4", "block": {"rows": 32}, "rotation": {"points": 16},
                                   "policy": "aiter_nonzero"})",
                               "x"),
                o, "x");
  CHECK(nn::block_format_of(o) == square_blocks(rotoscale::mxfp4));
  CHECK(o.rotation == nn::rotation_recipe{16});
  CHECK(o.policy == policies::aiter_nonzero);
  io::from_json(io::parse_json(R"({"block": null, "rotation": null})", "x"), o, "x");
  CHECK((nn::block_format_of(o) == rotoscale::mxfp4 && o.rotation.points == 0));
  CHECK_THROWS_AS(io::from_json(io::parse_json(R"({"policy": "nvidai"})", "x"), o, "x"), io::error);
}

TEST_CASE("a backward override replaces dgrad and wgrad, and is what the recipe says") {
  using enum nn::operand_format;
  const nn::recipe own = preset("mxfp8");
  const nn::recipe high = override_backward(own, nn::backward_kind::high_precision),
                   again = override_backward(own, nn::backward_kind::dequantized);
  for (const nn::operand_recipe* o : {&high.dgrad.left, &high.dgrad.right, &high.wgrad.left, &high.wgrad.right}) {
    CHECK(o->format == bf16);
  }
  CHECK((again.dgrad.left.format == bf16 && again.wgrad.left.format == bf16));
  CHECK((again.dgrad.right.format == dequantized && again.wgrad.right.format == dequantized));
  for (const nn::recipe& r : {high, again}) {
    CHECK(r.fprop == own.fprop);
    CHECK(r.wgrad.output == fp32);
    CHECK_FALSE(find_fault(r).has_value());
    CHECK(override_backward(r, r.backward_override) == r);
  }
  nn::recipe wrong = own;
  wrong.backward_override = nn::backward_kind::dequantized;
  CHECK(find_fault(wrong).value_or("none").starts_with("backward_override:"));
  // The rotation of fprop's operands is undone.
  CHECK(find_fault(override_backward(preset("mxfp4_h16"), nn::backward_kind::dequantized)).value_or("none") == "none");
}

TEST_CASE("faults are named") {
  const auto fault = [](auto change) {
    nn::recipe r = preset("mxfp4_h16");
    change(r);
    return find_fault(r).value_or("none");
  };
  CHECK(fault([](nn::recipe&) {}) == "none");
  using enum nn::operand_format;
  const auto operand_fault = [&](auto change) { return fault([&](nn::recipe& r) { change(r.fprop.right); }); };
  const auto blocks = [](int length, int rows, const format& scale) {
    return [=](nn::operand_recipe& o) { o.block = {length, rows, scale}; };
  };
  CHECK(fault([](nn::recipe& r) { r.dgrad.left.rotation = {}; }).starts_with("dgrad.w.rotation: both operands"));
  CHECK(fault([](nn::recipe& r) { r.wgrad.left.format = bf16; }).starts_with("wgrad.dy.rotation: needs"));
  CHECK(fault([](nn::recipe& r) { r.fprop.output = mxfp4; }).starts_with("fprop.output"));
  CHECK(fault([](nn::recipe& r) { r.fprop.left.format = mxfp8_e4m3; }).starts_with("fprop.accumulate: fp32_blockwise"));
  CHECK(fault([](nn::recipe& r) { r.fprop.left.rotation.points = r.fprop.right.rotation.points = 128; }) == "none");
  CHECK(operand_fault([](auto& o) { o.rotation.points = 8; }).starts_with("fprop.w.rotation.points"));
  CHECK(operand_fault([](auto& o) {
          o.choice = scale_choice::headroom;
        }).starts_with("fprop.w.scale_choice: headroom needs"));
  CHECK(fault([](nn::recipe& r) { r.dgrad.right.source = nn::operand_source::forward; }) == "none");
  CHECK(operand_fault([](auto& o) {
          o.source = nn::operand_source::forward;
        }).starts_with("fprop.w.source: forward is for"));
  CHECK(fault([](nn::recipe& r) {
          r.fprop = preset("bf16").fprop, r.wgrad.right.source = nn::operand_source::forward;
        }).starts_with("wgrad.x.source: forward needs a quantized fprop"));
  CHECK(
      operand_fault([](auto& o) { o.scaling = nn::fp8_scaling::current; }).starts_with("fprop.w.scaling: is for fp8"));
  CHECK(operand_fault([](auto& o) { o.macro_blocks = true; }).starts_with("fprop.w.macro_blocks: needs mxfp4 in"));
  CHECK(operand_fault([](auto& o) { o.outliers = 4; }).starts_with("fprop.w.outliers: needs mxfp4 or mxfp6 in"));
  CHECK(operand_fault([](auto& o) {
          o.estimator = nn::gradient_estimator::dge;
        }).starts_with("fprop.w.estimator: dge needs mxfp4 or nvfp4"));
  CHECK(fault([](nn::recipe& r) {
          r.dgrad.right.estimator = nn::gradient_estimator::dge;
        }).starts_with("dgrad.w.estimator: dge is for fprop.w"));
  CHECK(fault([](nn::recipe& r) { r.deoscillation.emplace(); }).starts_with("deoscillation: needs fprop.w in blocks"));
  nn::recipe rows = preset("fp8_row");
  rows.wgrad.left.rounding = rounding::stochastic;
  nn::recipe watched = preset("mxfp4_deoscillated");
  watched.head = preset("mxfp4_h16");
  CHECK(find_fault(watched).value_or("none").starts_with("deoscillation: needs fprop.w in blocks, to nearest"));
  watched = preset("mxfp4_deoscillated");
  watched.fprop.right.rounding = rounding::stochastic;
  CHECK(find_fault(watched).value_or("none").starts_with("deoscillation:"));
  CHECK(find_fault(rows).value_or("none").starts_with("wgrad.dy.rounding: must be nearest_even where scaling is row"));
  nn::recipe mixed = preset("fp8_current");
  CHECK_FALSE((find_fault(mixed) || has_delayed(mixed)));
  mixed.wgrad.right.scaling = nn::fp8_scaling::delayed;
  CHECK(find_fault(mixed).value_or("none").starts_with("wgrad.x.format: must be fprop.x's FP8 format and scaling"));
  nn::recipe sr = preset("nvfp4_4_6");
  CHECK(sr.dgrad.left.choice == scale_choice::headroom);
  sr.fprop.left.rounding = rounding::stochastic;
  CHECK(find_fault(sr).value_or("none").starts_with("fprop.x.scale_choice: four_over_six needs rounding nearest_even"));
  CHECK(operand_fault(blocks(64, 1, formats::e8m0)).starts_with("fprop.w.block.length"));
  CHECK(operand_fault(blocks(128, 1, formats::e8m0)).starts_with("fprop.w.block.length: 128 is for MX"));
  CHECK(operand_fault(blocks(32, 16, formats::e8m0)).starts_with("fprop.w.block.rows"));
  CHECK(operand_fault(blocks(32, 1, formats::ue4m3)).starts_with("fprop.w.block.scale: must be e8m0"));
  CHECK(operand_fault(blocks(32, 32, formats::e8m0)) == "none");
  CHECK(fault([](nn::recipe& r) { r.fprop = {{bf16}, {fp8_e4m3}}, r.fprop.left.block = {}; }) == "none");
  CHECK(fault([](nn::recipe& r) { r.head = r, r.head->dgrad.output = mxfp4; }).starts_with("head.dgrad.output"));
  CHECK(fault([](nn::recipe& r) { r.fp8.history_length = 0; }).starts_with("fp8.history_length"));
  CHECK(fault([](nn::recipe& r) { r.bf16_last_layers = -1; }).starts_with("bf16_first_layers"));
  CHECK(fault([](nn::recipe& r) {
          r.bf16_layers.dgrad = "cublas";
        }).starts_with("bf16_layers.dgrad.accumulate: 'cublas' is no contract"));
  // Operands are BF16 there under any recipe.
  CHECK(fault([](nn::recipe& r) {
          r.bf16_layers.fprop = nn::fp32_blockwise_contract;
        }).starts_with("bf16_layers.fprop.accumulate: "));
  CHECK(fault([](nn::recipe& r) { r.adapters.fprop = r.bf16_layers.wgrad = "hopper-wgmma-fp16-f32:split_k=2"; }) ==
        "none");
}

TEST_CASE("a tensor has one FP8 format, for it has one scale") {
  const auto fault = [](auto change) {
    nn::recipe r = preset("fp8_delayed");
    change(r);
    return find_fault(r).value_or("none");
  };
  CHECK(fault([](nn::recipe& r) {
          r.wgrad.right.format = nn::operand_format::fp8_e5m2;
        }).starts_with("wgrad.x.format: must be"));
  CHECK(fault([](nn::recipe& r) {
          r.dgrad.right.format = nn::operand_format::fp8_e5m2;
        }).starts_with("dgrad.w.format: must be"));
  CHECK(fault([](nn::recipe& r) {
          r.wgrad.left.format = nn::operand_format::fp8_e4m3;
        }).starts_with("wgrad.dy.format: must be"));
  CHECK(fault([](nn::recipe& r) { r.wgrad.left.format = nn::operand_format::bf16; }) == "none");
}

TEST_CASE("every format has its element, and MX formats blocks of 32") {
  using enum nn::operand_format;
  CHECK(nn::element_format(mxfp4) == formats::e2m1);
  CHECK(nn::element_format(mxfp8_e4m3) == formats::e4m3);
  CHECK(nn::element_format(fp8_e5m2) == formats::e5m2);
  CHECK(nn::element_format(bf16) == formats::bf16);
  CHECK(nn::block_format_of({mxfp4}) == rotoscale::mxfp4);
  CHECK(nn::block_format_of({nvfp4}) == rotoscale::nvfp4);
  CHECK((nn::has_blocks(nvfp4) && nn::has_factor(nvfp4) && !nn::is_mx(nvfp4) && !nn::has_factor(mxfp4)));
  CHECK((nn::is_mx(mxfp4) && !nn::is_mx(fp8_e4m3) && nn::is_fp8(fp8_e4m3) && !nn::is_fp8(mxfp8_e4m3)));
}

TEST_CASE("a contract whose unit cannot multiply the operands is refused, and what would do is named") {
  const auto fault = [](const char* name, const char* accumulate) {
    nn::recipe r = preset(name);
    r.dgrad.accumulate = accumulate;
    return find_fault(r).value_or("none");
  };
  // Not in any recipe: a pruned operand, FP64, FP16 accumulators.
  CHECK(fault("mxfp4_h16", "hopper-sparse-mma-fp8-f32") ==
        "dgrad.accumulate: 'hopper-sparse-mma-fp8-f32' multiplies a pruned A only, which no operand of a recipe is; "
        "hopper-mma-fp16-f32, hopper-mma-k8-fp16-f32, hopper-mma-tf32-f32, hopper-mma-k4-tf32-f32, hopper-mma-fp8-f32, "
        "hopper-mma-k16-fp8-f32, hopper-wgmma-fp16-f32, hopper-wgmma-tf32-f32, hopper-wgmma-fp8-f32 would do");
  CHECK(fault("mxfp4", "fp64-fma-chain") ==
        "dgrad.accumulate: 'fp64-fma-chain' multiplies FP64 only ('exact' adds the products of any operands without "
        "error); fp32_fma_chain would do");
  CHECK(fault("mxfp4", "exact") == "none");
  // Other formats, and other blocks.
  CHECK(fault("bf16", "volta-mma-fp16-f32") ==
        "dgrad.accumulate: 'volta-mma-fp16-f32' does not take dgrad.dy (bf16); fp32_fma_chain would do");
  CHECK(fault("fp8_amd", "single-accumulator@cdna3-mfma-fp8-f32") ==
        "dgrad.accumulate: 'single-accumulator@cdna3-mfma-fp8-f32' runs on cdna3-mfma-fp8-f32, which does not take "
        "dgrad.w (fp8_e4m3); cdna3-mfma-fp32-f32, cdna3-mfma-fp16-f32, cdna3-mfma-xf32-f32 would do");
  // Units whose formats represent the elements exactly, as in kernels that expand them. Scales are 1 if a unit has
  // scales.
  for (const auto& use : {std::pair{"mxfp4_h16", "mxfp4-accurate-sm90"},
                          {"mxfp8", "mx-bf16-gfx942"},
                          {"mxfp4", "cdna3-mfma-fp8-f32"},
                          {"nvfp4", "blackwell-nvf4-f32"},
                          {"fp8_amd", "blackwell-mxf8f6f4-f32"},
                          {"bf16", "cdna1-mfma-fp32-f32"},
                          {"fp8_amd", "volta-mma-fp16-f32"},
                          {"fp32", "ampere-mma-tf32-f32"}}) {
    CAPTURE(use.second);
    CHECK(fault(use.first, use.second) == "none");
  }
}

TEST_CASE("a recipe names the contract of each GEMM") {
  using nn::find_gemm_contract;
  CHECK(find_gemm_contract("fp32_fma_chain")->options.model == fp32_fma_chain);
  CHECK(find_gemm_contract("fp32_blockwise")->options.model == fp32_blockwise);
  // KERNEL, UNIT, or KERNEL@UNIT, with settings after them.
  const auto promoted = find_gemm_contract("hopper-fp8-promoted");
  REQUIRE(promoted.has_value());
  CHECK(promoted->name == "hopper-fp8-promoted");
  CHECK(promoted->options.promotion == 128);
  CHECK(promoted->options.split_grain == 128);
  CHECK(find_gemm_contract("hopper-mma-fp16-f32")->options.model == find_unit("hopper-mma-fp16-f32")->model);
  const auto split = find_gemm_contract("single-accumulator@hopper-mma-fp16-f32:promotion=64:split_k=4:split_grain=32");
  REQUIRE(split.has_value());
  CHECK((split->options.promotion == 64 && split->options.split_k == 4 && split->options.split_grain == 32));
  for (const char* name :
       {"", "fp32", "single-accumulator", "instruction@hopper-mma-fp16-f32", "cublas-fp16@hopper-mma-fp16-f32",
        "hopper-mma-fp16-f16", "cublas-fp16:", "cublas-fp16:promotion",
        "cublas-fp16:promotion=", "cublas-fp16:split_k=0", "cublas-fp16:promotion=x", "cublas-fp16:promotion=1x",
        "cublas-fp16:promotion=7", "cublas-fp16:other=1", "cublas-fp16:split_k=4:promotion=64:split_k=2",
        "cublas-fp16:split_fill=0", "cublas-fp16:split_fill=66:split_k=2", "cublas-fp16:split_k=2:split_fill=66"}) {
    CAPTURE(name);
    CHECK_FALSE(find_gemm_contract(name).has_value());
  }
  // split-K from the extents: weight gradients of a 124M-class model over 32768 tokens with 27, 9, 48, 24 and 591
  // tiles, and its head's dx.
  const auto parts = [](index_t rows, index_t cols, index_t k) {
    return find_gemm_contract("mx-bf16-sm90:split_fill=66", rows, cols, k)->options.split_k;
  };
  CHECK(parts(2304, 768, 32768) == 7);
  CHECK(parts(768, 768, 32768) == 7);
  CHECK(parts(4096, 768, 32768) == 4);
  CHECK(parts(768, 2048, 32768) == 8);
  CHECK(parts(50304, 768, 8192) == 1);
  CHECK(parts(8192, 768, 50304) == 2);
  CHECK(parts(128, 128, 32768) == 16);  // one tile: the maximum split
  CHECK(parts(768, 768, 4096) == 2);    // parts have at least 2048 k
  CHECK(parts(128, 128, 100) == 1);
  CHECK(parts(17 * 256, 256 * 3, 4096) == 1);  // 51 tiles: two parts would fill 102 of 132, no better than 51 of 66
  CHECK(nn::split_to_fill(1, 1 << 20, 1 << 20, 1 << 20) == 1);
  const auto fill = find_gemm_contract("mx-bf16-sm90:split_fill=66");
  CHECK((fill->options.split_k == 1 && fill->split_fill == 66 && fill->options.split_grain == 128));
  // Every entry with an FP32-accumulating unit, and every such unit, has a name.
  for (const gemm_contract_entry& e : gemm_contracts) {
    if (*e.unit != '\0') CHECK(find_gemm_contract(e.name).has_value());
  }
  for (const mma_unit& u : models::all) {
    const bool fp32 = u.model.result != mma_result::fp16_nearest && u.model.result != mma_result::fp64_nearest;
    CHECK(find_gemm_contract(u.name).has_value() == (fp32 && !u.model.sparse));
  }
  nn::recipe r = preset("bf16");
  r.dgrad.accumulate = "cublas";
  CHECK(find_fault(r).value_or("none").starts_with("dgrad.accumulate: 'cublas' is no contract"));
  r.dgrad.accumulate = "ampere-mma-bf16-f32:split_k=2";
  CHECK(find_fault(r).value_or("none").find("; did you mean 'ampere-mma-fp16-f32'? docs/reference/matrix-units.md") !=
        std::string::npos);
  r = preset("bf16");
  r.attention = "attention-bf16-tile64x64-exp2deg3@hopper-mma-fp8-f32";  // no BF16
  CHECK(find_fault(r).value_or("none").starts_with(
      "attention: 'attention-bf16-tile64x64-exp2deg3@hopper-mma-fp8-f32' is"));
  r.attention = "attention-bf16-tile64x64-exp2deg3@cdna4-mfma-fp16-f32";
  CHECK(!find_fault(r));
  r.activations = nn::operand_format::mxfp4;
  CHECK(find_fault(r).value_or("none") == "activations must be fp32 or bf16");
}

}  // namespace recipe_test
