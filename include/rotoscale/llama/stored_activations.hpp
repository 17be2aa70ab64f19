// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What a forward pass leaves for the backward pass: all of it, all of it in 8 bits, or less, and the rest is computed
// once more. docs/reference/training.md has bytes a token and what 8 bits do to gradients.
#pragma once

#include <optional>
#include <string>

#include "rotoscale/llama/config.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/nn/operand.hpp"

namespace rotoscale::llama {

/// Which part of each decoder layer the backward pass computes once more, under the same contracts, so to the same
/// bits.
enum class recompute_part {
  none,
  elementwise,  ///< inputs of GEMMs that norms and SwiGLU make: kept are these layers' own inputs
  attention,    ///< from the layer's input to the output projection: kept is the input
  mlp,          ///< from the residual stream behind attention to the down projection: kept is that stream
  layer         ///< both: only the layer's input is kept
};
ROTOSCALE_ENUM_NAMES(recompute_part, none, elementwise, attention, mlp, layer)
/// How the tensors that are kept for the backward pass (inputs of norms, query-key-value, attention's result, gate-up)
/// are stored. Operands of weight gradients, and tensors of one number a token, stay as they are.
enum class kept_format {
  as_computed,  ///< as the recipe's `activations`
  mxfp8_e4m3    ///< E4M3 in blocks of 32 features, scales rounded up, so that nothing saturates
};
ROTOSCALE_ENUM_NAMES(kept_format, as_computed, mxfp8_e4m3)

/// What the quantizer is told for 8 bits.
inline constexpr nn::operand_recipe kept_mxfp8 = {nn::operand_format::mxfp8_e4m3, scale_rule::rceil};

/// A sentence that says what cannot be, or nothing.
inline std::optional<std::string> find_fault(const model_config& c, recompute_part recompute, kept_format kept) {
  if (kept == kept_format::as_computed) return std::nullopt;
  if (recompute != recompute_part::none) {
    return "recompute: " + std::string(to_string(recompute)) +
           " promises the bits of the forward pass, which stored_activations: " + std::string(to_string(kept)) +
           " does not keep; choose one of them";
  }
  const auto whole = [](const char* name, index_t value) -> std::optional<std::string> {
    if (value % 32 == 0) return std::nullopt;
    return "stored_activations: " + std::string(name) + " " + std::to_string(value) +
           " is not a multiple of 32, which MXFP8 blocks need";
  };
  if (auto f = whole("hidden_size", c.hidden_size)) return f;
  if (auto f = whole("num_attention_heads * head_dim", c.query_size())) return f;
  if (auto f = whole("2 * num_key_value_heads * head_dim", 2 * c.key_value_size())) return f;
  return whole("2 * intermediate_size", 2 * index_t{c.intermediate_size});
}

}  // namespace rotoscale::llama
