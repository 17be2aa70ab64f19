// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The contracts of attention by name: FP32 chains, or tiles whose products a BF16 matrix unit adds. docs/numerics.md
// has both in full.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "rotoscale/gemm_contracts.hpp"

namespace rotoscale::nn {

/// Scores, probabilities and sums in FP32, one fused multiply-add a product.
inline constexpr const char* fp32_attention_contract = "attention-fp32-chains-keys-ascending";
/// What the name of a tiled contract is in front of its unit's.
inline constexpr std::string_view tiled_attention_prefix = "attention-bf16-tile64x64-exp2deg3@";

/// Queries of a tile, and keys: pairs of tiles are what is computed or left.
inline constexpr index_t attention_tile = 64;

/// How attention's products are added.
struct attention_contract {
  std::string name = fp32_attention_contract;  ///< as recipes and logs have it
  bool tiled = false;                          ///< online softmax over tiles of keys; products by the unit
  mma_model model;                             ///< of the unit that multiplies BF16, where tiled

  /// Is it defined for heads of this size?
  constexpr bool takes(index_t head_dim) const {
    return !tiled || (head_dim >= 16 && head_dim <= 128 && head_dim % 16 == 0);
  }
};

/// May the unit multiply the tiles? Of BF16, into FP32, in steps that sixteen products are a multiple of and that
/// nothing but the accumulator joins.
constexpr bool multiplies_attention(const mma_unit& u) {
  const mma_model& m = u.model;
  return (u.operands & takes_bf16) != 0 && u.block == 0 && !m.sparse && !m.c_last && m.interleave == 0 &&
         m.operand == format{} && m.result != mma_result::fp16_nearest && m.result != mma_result::fp64_nearest &&
         m.group >= 1 && 16 % m.group == 0;
}

/// The contract of a name, or nothing: `attention-fp32-chains-keys-ascending`, or
/// `attention-bf16-tile64x64-exp2deg3@UNIT` with a unit of models::all that multiplies_attention.
inline std::optional<attention_contract> find_attention_contract(std::string_view name) {
  attention_contract found;
  found.name = std::string(name);
  if (name == fp32_attention_contract) return found;
  if (!name.starts_with(tiled_attention_prefix)) return std::nullopt;
  const mma_unit* unit = find_unit(name.substr(tiled_attention_prefix.size()));
  if (unit == nullptr || !multiplies_attention(*unit)) return std::nullopt;
  found.tiled = true;
  found.model = unit->model;
  return found;
}

}  // namespace rotoscale::nn
