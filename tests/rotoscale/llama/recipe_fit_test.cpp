// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Lengths that blocks must divide, and messages that name the field and the operand.
#include "rotoscale/train/recipe_fit.hpp"

#include <doctest/doctest.h>

#include "rotoscale/models/gpt2/model.hpp"
#include "rotoscale/models/llama/model.hpp"
#include "rotoscale/nn/preset.hpp"

namespace recipe_fit_test {

using namespace rotoscale;
using rotoscale::testing::preset;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;

std::string fault(const train::architecture& c, const nn::recipe& r, const train::pass_extents& p = {64, 64, true}) {
  return train::find_block_fault(c, r, p).value_or("none");
}

TEST_CASE("blocks of 32 along every contraction axis") {
  const nn::recipe r = preset("mxfp4");
  llama::model_config c;
  CHECK(fault(c, r) == "none");
  CHECK(fault(c, r, {65, 2048, true}) ==
        "batch * sequence: 65 is not a multiple of 32, which the blocks of wgrad.dy need");
  CHECK(fault(c, r, {65, 2048, false}) == "none");
  c.intermediate_size = 100;
  CHECK(fault(c, r) == "intermediate_size: 100 is not a multiple of 32, which the blocks of dgrad.dy need");
  c = {};
  c.head_dim = 24;
  CHECK(fault(c, r).starts_with("num_key_value_heads * head_dim: 48"));
  c.hidden_size = 48;
  CHECK(fault(c, r) == "hidden_size: 48 is not a multiple of 32, which the blocks of fprop.x need");
  CHECK(fault(c, preset("fp8_delayed")) == "none");
  nn::recipe exempt = r;
  exempt.bf16_first_layers = c.num_hidden_layers;
  CHECK(fault(c, exempt) == "none");
}

TEST_CASE("blocks of 16, rotations over several blocks, and rows that share a scale") {
  llama::model_config c;
  c.hidden_size = c.intermediate_size = 48;
  c.head_dim = 48;
  nn::recipe r = preset("nvfp4");
  CHECK(fault(c, r, {48, 48, true}) == "none");
  r.wgrad.left.rotation.points = r.wgrad.right.rotation.points = 32;
  CHECK(fault(c, r, {48, 48, true}) ==
        "batch * sequence: 48 is not a multiple of 32, which the blocks of wgrad.dy need");
  r = preset("nvfp4");
  for (nn::gemm_recipe* g : {&r.dgrad, &r.wgrad}) g->left = g->right = {};
  c.num_key_value_heads = 4;
  c.head_dim = 10;  // 40 rows of w
  c.hidden_size = c.intermediate_size = 32;
  r.fprop.left = {};
  CHECK(fault(c, r).starts_with(
      "num_attention_heads * head_dim: 40 is not a multiple of 16, which the blocks of fprop.w"));
  r.fprop.right.block->rows = 1;
  CHECK(fault(c, r).starts_with("num_attention_heads * head_dim: 40"));  // o contracts them
}

TEST_CASE("the head has lengths of its own: the vocabulary, and chunks of tokens") {
  llama::model_config c;
  nn::recipe r = preset("bf16");
  c.vocab_size = 300;
  CHECK(fault(c, r) == "none");
  r.head = preset("mxfp4");
  CHECK(fault(c, r) == "vocab_size: 300 is not a multiple of 32, which the blocks of head.dgrad.dy need");
  c.vocab_size = 320;
  CHECK(fault(c, r, {64, 48, true}) ==
        "head_chunk: 48 is not a multiple of 32, which the blocks of head.wgrad.dy need");
  CHECK(fault(c, r, {64, 100, true}) == "none");  // one chunk
}

TEST_CASE("GPT-2 names its extents") {
  gpt2::model_config c;
  nn::recipe r = preset("mxfp4");
  CHECK(fault(c, r) == "none");
  c.n_embd = 48;
  CHECK(fault(c, r) == "n_embd: 48 is not a multiple of 32, which the blocks of fprop.x need");
  c.n_embd = 96;
  r.dgrad.left.rotation.points = r.dgrad.right.rotation.points = 256;
  CHECK(fault(c, r) == "3 * n_embd: 288 is not a multiple of 256, which the blocks of dgrad.dy need");
  r.bf16_first_layers = c.n_layer;
  r.head = preset("mxfp4");
  CHECK(fault(c, r) == "vocab_size: 50257 is not a multiple of 32, which the blocks of head.dgrad.dy need");
  CHECK(train::find_frozen_fault(c, preset("mxfp4_h16_step_signs"))->starts_with("fprop.w.rotation.signs: step"));
}

TEST_CASE("signs of each step and weights that are quantized once") {
  const llama::model_config c;
  CHECK_FALSE(llama::find_frozen_fault(c, preset("mxfp4_h16_fixed_signs")));
  CHECK(llama::find_frozen_fault(c, preset("mxfp4_h16_step_signs")) ==
        "fprop.w.rotation.signs: step, but frozen weights are quantized once");
  nn::recipe r = preset("bf16");
  r.wgrad = preset("mxfp4_h16_step_signs").wgrad;  // no weights
  CHECK_FALSE(llama::find_frozen_fault(c, r));
  r.dgrad = preset("mxfp4_h16_step_signs").dgrad;
  CHECK(llama::find_frozen_fault(c, r)->starts_with("dgrad.w.rotation.signs: step"));
  r.bf16_first_layers = c.num_hidden_layers;
  CHECK_FALSE(llama::find_frozen_fault(c, r));
  r.head = preset("mxfp4_h16_step_signs");
  CHECK(llama::find_frozen_fault(c, r)->starts_with("head.fprop.w.rotation.signs: step"));
}

}  // namespace recipe_fit_test
