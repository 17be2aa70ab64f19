// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Low-rank adaptation (LoRA): which linear layers have an adapter, and its numbers. The base model is frozen.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rotoscale/io/error.hpp"
#include "rotoscale/names.hpp"

namespace rotoscale::train {

/// The linear layers of a decoder layer, in the order of their numbers.
enum class layer_linear { qkv, o, gate_up, down };

/// A module that may have an adapter: Hugging Face's projections, or a fused layer whose parts share an A.
struct lora_target {
  const char* name;     ///< as in lora_config::targets
  layer_linear linear;  ///< which layer holds it
  int slice = 0;        ///< which part of that layer
  bool fused = false;   ///< all parts of that layer
  bool whole = false;   ///< the layer has one part (GPT-2)
};
/// All of them, the parts of a layer in order.
inline constexpr lora_target lora_targets[] = {{"q_proj", layer_linear::qkv, 0},
                                               {"k_proj", layer_linear::qkv, 1},
                                               {"v_proj", layer_linear::qkv, 2},
                                               {"o_proj", layer_linear::o, 0},
                                               {"gate_proj", layer_linear::gate_up, 0},
                                               {"up_proj", layer_linear::gate_up, 1},
                                               {"down_proj", layer_linear::down, 0},
                                               {"qkv_proj", layer_linear::qkv, 0, true},
                                               {"gate_up_proj", layer_linear::gate_up, 0, true},
                                               {"c_attn", layer_linear::qkv, 0, false, true},
                                               {"c_proj", layer_linear::o, 0, false, true},
                                               {"c_fc", layer_linear::gate_up, 0, false, true}};

/// Initialisation of A; B begins at 0.
enum class lora_init {
  kaiming_uniform,  ///< within 1 / sqrt(in), as PEFT does
  xavier_normal     ///< standard deviation sqrt(2 / (in + rank)), as Megatron's adapters do
};
ROTOSCALE_ENUM_NAMES(lora_init, kaiming_uniform, xavier_normal)

/// Adapters of a run. The defaults are from MLPerf's llama2_70b_lora.
struct lora_config {
  int rank = 16;                                           ///< rows of A, columns of B
  double alpha = 32.0;                                     ///< the added product is multiplied by alpha / rank
  double dropout = 0.1;                                    ///< probability, at the adapter's input
  std::vector<std::string> targets{"qkv_proj", "o_proj"};  ///< of lora_targets
  lora_init init = lora_init::kaiming_uniform;             ///< of A

  /// Factor of the adapters' output.
  double scale() const { return alpha / rank; }
  /// Is it among the targets?
  bool has(const std::string& target) const {
    return std::find(targets.begin(), targets.end(), target) != targets.end();
  }
  /// The targets in the linear layer that begins with a module, in the order of its parts; one if they are fused.
  std::vector<lora_target> targets_in(std::string_view first_module) const {
    for (const lora_target& t : lora_targets) {
      if (t.whole && first_module == t.name && has(t.name)) return {t};
      if (!t.fused && !t.whole && first_module == t.name) return targets_in(t.linear);
    }
    return {};
  }
  /// The targets in a linear layer, in the order of its parts; one if they are fused.
  std::vector<lora_target> targets_in(layer_linear linear) const {
    std::vector<lora_target> found;
    for (const lora_target& t : lora_targets) {
      if (t.linear == linear && !t.whole && has(t.name)) found.push_back(t);
    }
    return found;
  }
  /// The first linear layer of a decoder layer that holds a target.
  layer_linear first_linear() const {
    layer_linear first = layer_linear::down;
    for (const lora_target& t : lora_targets) {
      if (has(t.name)) first = std::min(first, t.linear);
    }
    return first;
  }
};

using rotoscale::from_string;
using rotoscale::names;
using rotoscale::to_string;

template <class Visitor>
void describe(Visitor&& v, lora_config& c) {
  v("rank", c.rank, "rank of the adapters");
  v("alpha", c.alpha, "scales the adapters' output, by alpha / rank");
  v("dropout", c.dropout, "probability of dropping an element of an adapter's input");
  v("targets", c.targets,
    "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj; qkv_proj and gate_up_proj share one A; "
    "c_attn, c_proj, c_fc of GPT-2");
  v("init", c.init, "of A: kaiming_uniform (PEFT) or xavier_normal (Megatron); B starts at 0");
}

/// Every target's name.
inline std::vector<std::string> lora_target_names() {
  std::vector<std::string> all;
  for (const lora_target& t : lora_targets) all.emplace_back(t.name);
  return all;
}

/// The targets as Hugging Face names them: the parts of fused ones.
inline std::vector<std::string> unfused_targets(const lora_config& c) {
  std::vector<std::string> names;
  for (const lora_target& t : lora_targets) {
    const std::vector<lora_target> in = c.targets_in(t.linear);
    const bool whole = !in.empty() && in.front().fused;
    if (!t.fused && ((whole && !t.whole) || c.has(t.name))) names.emplace_back(t.name);
  }
  return names;
}

/// A sentence that says which field is wrong, or nothing.
inline std::optional<std::string> find_fault(const lora_config& c) {
  constexpr int most = 65536;
  if (c.rank < 1 || c.rank > most) return "rank: " + std::to_string(c.rank) + " is not between 1 and 65536";
  if (!(c.alpha > 0.0) || !std::isfinite(c.alpha))
    return "alpha: " + std::to_string(c.alpha) + " is not positive and finite";
  if (!(c.dropout >= 0.0 && c.dropout < 0.99999)) {
    return "dropout: " + std::to_string(c.dropout) + " is not from 0 to below 1";
  }
  if (c.targets.empty()) return std::string("targets: names no linear layer");
  const std::vector<std::string> known = lora_target_names();
  for (std::size_t i = 0; i < c.targets.size(); ++i) {
    const std::string& name = c.targets[i];
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return "targets: no linear layer is called '" + name + "'" + io::did_you_mean(name, known);
    }
    if (std::count(c.targets.begin(), c.targets.end(), name) > 1) return "targets: '" + name + "' is named twice";
  }
  for (const lora_target& t : lora_targets) {
    if (!t.fused || !c.has(t.name)) continue;
    for (const lora_target& part : c.targets_in(t.linear)) {
      if (!part.fused) return std::string("targets: '") + part.name + "' is a part of '" + t.name + "'";
    }
  }
  return std::nullopt;
}

}  // namespace rotoscale::train
