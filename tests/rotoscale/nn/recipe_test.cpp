// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Recipes as data: what the presets are made of, which combinations are refused, and that JSON holds all of it.
#include "rotoscale/nn/schedule.hpp"

#include <doctest/doctest.h>

#include <set>

#include "rotoscale/io/json.hpp"

using namespace rotoscale;
namespace nn = rotoscale::nn;

namespace {

nn::recipe preset(const std::string& name) {
  for (auto& r : nn::presets::all()) {
    if (r.name == name) return r;
  }
  FAIL("no preset " << name);
  return {};
}

}  // namespace

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

TEST_CASE("HYBRID FP8: E4M3 forward, E5M2 gradients") {
  const nn::recipe r = preset("fp8_delayed");
  using enum nn::operand_format;
  for (const auto& o : {r.fprop.left, r.fprop.right, r.dgrad.right, r.wgrad.right}) CHECK(o.format == fp8_e4m3);
  for (const auto& o : {r.dgrad.left, r.wgrad.left}) CHECK(o.format == fp8_e5m2);
  CHECK(r.fp8 == nn::delayed_scaling{1024, nn::amax_algorithm::max, 0});
  CHECK(preset("fp8_amd").fp8 == nn::delayed_scaling{4, nn::amax_algorithm::most_recent, 0});
}

TEST_CASE("MXFP4: every operand of all three GEMMs, even scales, AMD's policy") {
  for (const auto& [name, rotation] :
       {std::pair{"mxfp4", nn::rotation_kind::none}, {"mxfp4_h16", nn::rotation_kind::h16}}) {
    const nn::recipe r = preset(name);
    for (const nn::gemm_recipe& g : {r.fprop, r.dgrad, r.wgrad}) {
      CHECK(g.accumulate == nn::fp32_blockwise_contract);
      for (const nn::operand_recipe& o : {g.left, g.right}) {
        CHECK(o == nn::operand_recipe{nn::operand_format::mxfp4, scale_rule::even, rounding::nearest_even, rotation,
                                      nn::policy_kind::te_rocm});
      }
    }
    CHECK(needs_blocks(r));
  }
  CHECK_FALSE(needs_blocks(preset("fp8_delayed")));
}

TEST_CASE("faults are named") {
  const auto fault = [](auto change) {
    nn::recipe r = preset("mxfp4_h16");
    change(r);
    return find_fault(r).value_or("none");
  };
  CHECK(fault([](nn::recipe&) {}) == "none");
  CHECK(fault([](nn::recipe& r) {
          r.dgrad.left.rotation = nn::rotation_kind::none;
        }).starts_with("dgrad: both operands"));
  CHECK(fault([](nn::recipe& r) {
          r.wgrad.left.format = nn::operand_format::bf16;
        }).starts_with("wgrad: a rotation needs MX"));
  CHECK(fault([](nn::recipe& r) { r.fprop.output = nn::operand_format::mxfp4; }).starts_with("fprop: output"));
  CHECK(fault([](nn::recipe& r) {
          r.fprop.left.format = nn::operand_format::mxfp8_e4m3;
        }).starts_with("fprop: fp32_blockwise"));
  CHECK(fault([](nn::recipe& r) { r.fp8.history_length = 0; }).starts_with("fp8.history_length"));
  CHECK(fault([](nn::recipe& r) { r.fp8.history_length = 65537; }).starts_with("fp8.history_length"));
  for (const int margin : {-33, 33}) {
    CHECK(fault([&](nn::recipe& r) { r.fp8.margin = margin; }).starts_with("fp8.margin"));
  }
  CHECK(fault([](nn::recipe& r) { r.bf16_last_layers = -1; }).starts_with("bf16_first_layers"));
}

TEST_CASE("a tensor has one FP8 format, for it has one scale") {
  const auto fault = [](auto change) {
    nn::recipe r = preset("fp8_delayed");
    change(r);
    return find_fault(r).value_or("none");
  };
  CHECK(fault([](nn::recipe& r) {
          r.wgrad.right.format = nn::operand_format::fp8_e5m2;
        }).starts_with("wgrad.x: must have"));
  CHECK(fault([](nn::recipe& r) {
          r.dgrad.right.format = nn::operand_format::fp8_e5m2;
        }).starts_with("dgrad.w: must have"));
  CHECK(fault([](nn::recipe& r) {
          r.wgrad.left.format = nn::operand_format::fp8_e4m3;
        }).starts_with("wgrad.dy: must have"));
  CHECK(fault([](nn::recipe& r) { r.wgrad.left.format = nn::operand_format::bf16; }) == "none");
}

TEST_CASE("every format has its element, and MX formats blocks of 32") {
  using enum nn::operand_format;
  CHECK(nn::element_format(mxfp4) == formats::e2m1);
  CHECK(nn::element_format(mxfp8_e4m3) == formats::e4m3);
  CHECK(nn::element_format(fp8_e5m2) == formats::e5m2);
  CHECK(nn::element_format(bf16) == formats::bf16);
  CHECK(nn::block_format_of(mxfp4) == rotoscale::mxfp4);
  CHECK((nn::is_mx(mxfp4) && !nn::is_mx(fp8_e4m3) && nn::is_fp8(fp8_e4m3) && !nn::is_fp8(mxfp8_e4m3)));
}

TEST_CASE("a recipe names the contract of each GEMM") {
  using nn::find_gemm_contract;
  CHECK(find_gemm_contract("fp32_fma_chain")->options.model == fp32_fma_chain);
  CHECK(find_gemm_contract("fp32_blockwise")->options.model == fp32_blockwise);
  // A kernel, a unit, a kernel that any unit may have; settings behind them.
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
        "hopper-mma-fp16-f16", "cublas-fp16:", "cublas-fp16:promotion", "cublas-fp16:promotion=", "cublas-fp16:split_k=0",
        "cublas-fp16:promotion=x", "cublas-fp16:promotion=1x", "cublas-fp16:promotion=7", "cublas-fp16:other=1"}) {
    CAPTURE(name);
    CHECK_FALSE(find_gemm_contract(name).has_value());
  }
  // Every entry with a unit of FP32 accumulators, and every such unit, can be named.
  for (const gemm_contract_entry& e : gemm_contracts) {
    if (*e.unit != '\0') CHECK(find_gemm_contract(e.name).has_value());
  }
  for (const mma_unit& u : models::all) {
    CHECK(find_gemm_contract(u.name).has_value() == (u.model.result != mma_result::fp16_nearest));
  }
  nn::recipe r = preset("bf16");
  r.dgrad.accumulate = "cublas";
  CHECK(find_fault(r).value_or("none").starts_with("dgrad: accumulate: 'cublas' is no contract"));
  r = preset("bf16");
  r.attention = "attention-bf16-tile64x64-exp2deg3@hopper-mma-fp8-f32";  // no BF16
  CHECK(find_fault(r).value_or("none").starts_with("attention: 'attention-bf16-tile64x64-exp2deg3@hopper-mma-fp8-f32' is"));
  r.attention = "attention-bf16-tile64x64-exp2deg3@cdna4-mfma-fp16-f32";
  CHECK(!find_fault(r));
  r.activations = nn::operand_format::mxfp4;
  CHECK(find_fault(r).value_or("none") == "activations must be fp32 or bf16");
}
