// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The contracts of attention by name: FP32 chains, or tiles whose products a BF16 matrix unit adds, with one of two
// functions for the exponentials. The definition is in docs/reference/layers.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "rotoscale/gemm_contracts.hpp"

namespace rotoscale::nn {

/// Scores, probabilities and sums in FP32, one fused multiply-add a product.
inline constexpr const char* fp32_attention_contract = "attention-fp32-chains-keys-ascending";
/// Prefix of the names of tiled contracts. The name of the exponential, '@' and a unit's name follow.
inline constexpr std::string_view tiled_attention_prefix = "attention-bf16-tile64x64-";

/// Queries of a tile, and keys. A pair of tiles is computed or skipped as a whole.
inline constexpr index_t attention_tile = 64;

/// 2^x of a tiled contract: a polynomial for any device (nn::exp2), or NVIDIA's instruction (ex2_approx).
enum class attention_exp2 { deg3, ex2_approx };
/// Their names within the names of contracts.
inline constexpr std::string_view attention_exp2_names[] = {"exp2deg3", "ex2approx"};

/// How attention's products are added.
struct attention_contract {
  std::string name = fp32_attention_contract;  ///< as recipes and logs have it
  bool tiled = false;                          ///< online softmax over tiles of keys; products by the unit
  attention_exp2 exp2 = attention_exp2::deg3;  ///< of probabilities and rescaling, where tiled
  mma_model model;                             ///< of the unit that multiplies BF16, where tiled

  /// Is it defined for heads of this size?
  constexpr bool takes(index_t head_dim) const {
    return !tiled || (head_dim >= 16 && head_dim <= 128 && head_dim % 16 == 0);
  }
};

/// True if the unit can multiply tiles of attention: BF16 into FP32, one accumulator, and a step length that divides
/// 16.
constexpr bool multiplies_attention(const mma_unit& u) {
  const mma_model& m = u.model;
  return (u.operands & takes_bf16) != 0 && u.block == 0 && !m.sparse && !m.c_last && m.interleave == 0 &&
         m.operand == format{} && m.result != mma_result::fp16_nearest && m.result != mma_result::fp64_nearest &&
         m.group >= 1 && 16 % m.group == 0;
}

/// The name of a tiled contract.
inline std::string tiled_attention_name(attention_exp2 exp2, std::string_view unit) {
  std::string name(tiled_attention_prefix);
  name += attention_exp2_names[static_cast<int>(exp2)];
  return name.append("@").append(unit);
}

/// The contract with a name, or nullopt: `attention-fp32-chains-keys-ascending`, or
/// `attention-bf16-tile64x64-EXP2@UNIT` with EXP2 of attention_exp2_names and a unit of models::all that
/// multiplies_attention.
inline std::optional<attention_contract> find_attention_contract(std::string_view name) {
  attention_contract found;
  found.name = std::string(name);
  if (name == fp32_attention_contract) return found;
  for (const attention_exp2 exp2 : {attention_exp2::deg3, attention_exp2::ex2_approx}) {
    const std::string prefix = tiled_attention_name(exp2, "");
    if (!name.starts_with(prefix)) continue;
    const mma_unit* unit = find_unit(name.substr(prefix.size()));
    if (unit == nullptr || !multiplies_attention(*unit)) return std::nullopt;
    found.tiled = true;
    found.exp2 = exp2;
    found.model = unit->model;
    return found;
  }
  return std::nullopt;
}

}  // namespace rotoscale::nn
