// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Faults of a recipe, each a sentence that begins with the field's path in its JSON.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "rotoscale/gemm_ref.hpp"
#include "rotoscale/nearest_name.hpp"
#include "rotoscale/nn/contract_sets.hpp"

namespace rotoscale::nn {

/// True if a name has no control character, so that it fits on one line of a message, log or table.
inline bool is_one_line(std::string_view name) {
  return std::none_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

namespace detail {

/// A sentence, or nothing.
using fault = std::optional<std::string>;

inline fault find_rotation_fault(const operand_recipe& o, const std::string& where) {
  const rotation_recipe& r = o.rotation;
  if (r.points != 0 && r.points != 16 && r.points != 32 && r.points != 64 && r.points != 128) {
    return where + ".rotation.points: must be 16, 32, 64 or 128";
  }
  if (r.points != 0 && !has_blocks(o.format)) return where + ".rotation: needs a format with blocks";
  if (r.mask > 0xFFFF) return where + ".rotation.mask: must be below 65536, one bit for each of 16 elements";
  if (r.mask != 0 && r.signs != sign_kind::mask) return where + ".rotation.mask: is for signs mask only";
  return std::nullopt;
}

/// Fault of an operand that is stored as values. Its quantizer has no rotation.
inline fault find_value_fault(const operand_recipe& o, const std::string& where) {
  const bool is_e2m1 = has_blocks(o.format) && element_format(o.format) == formats::e2m1;
  if (o.estimator != gradient_estimator::straight_through) {
    const std::string field = where + ".estimator: dge ";
    if (!where.starts_with("fprop.w")) return field + "is for fprop.w only";
    if (!is_e2m1 || keeps_values(o) || o.rotation.points != 0) return field + "needs mxfp4 or nvfp4 without a rotation";
  }
  if (!keeps_values(o)) return std::nullopt;
  if (is_fp8(o.format) && o.rounding != rounding::nearest_even) {
    return where + ".rounding: must be nearest_even where scaling is " + std::string(to_string(o.scaling));
  }
  const bool is_plain = o.rotation.points == 0 && o.source == operand_source::values;
  const std::string rest = " in blocks of 32, without a rotation, from the values";
  const bool of_32 = is_mx(o.format) && block_format_of(o).length == 32 && is_plain;
  if (o.macro_blocks && (o.format != operand_format::mxfp4 || !of_32 || o.outliers != 0)) {
    return where + ".macro_blocks: needs mxfp4" + rest + " and without outliers";
  }
  if (o.outliers != 0 && (element_format(o.format).bits() > 6 || !of_32)) {
    return where + ".outliers: needs mxfp4 or mxfp6" + rest;
  }
  return o.outliers < 0 ? fault(where + ".outliers: must not be negative") : std::nullopt;
}

inline fault find_choice_fault(const operand_recipe& o, const std::string& where) {
  if (o.scaling != fp8_scaling::delayed && !is_fp8(o.format)) return where + ".scaling: is for fp8 formats only";
  if (o.choice == scale_choice::amax) return std::nullopt;
  const std::string field = where + ".scale_choice: " + std::string(to_string(o.choice));
  if (o.format != operand_format::nvfp4) return field + " needs nvfp4, whose scales are not powers of two";
  if (o.choice == scale_choice::headroom) return std::nullopt;
  if (o.rounding != rounding::nearest_even) return field + " needs rounding nearest_even; headroom is for stochastic";
  if (!takes_choice(block_format_of(o), o.choice)) return field + " needs blocks of one row";
  return std::nullopt;
}

inline fault find_block_fault(const operand_recipe& o, const std::string& where) {
  if (!has_blocks(o.format)) {
    if (o.block) return where + ".block: " + std::string(to_string(o.format)) + " has no blocks";
    return std::nullopt;
  }
  const block_format f = block_format_of(o);
  if (f.length != 16 && f.length != 32 && f.length != 128) return where + ".block.length: must be 16, 32 or 128";
  if (f.rows != 1 && f.rows != f.length) return where + ".block.rows: must be 1, or as many as block.length";
  if (f.length == 128 && (!is_mx(o.format) || o.rotation.points != 0)) {
    return where + ".block.length: 128 is for MX formats without a rotation";
  }
  if (is_mx(o.format) && !f.has_e8m0_scale()) return where + ".block.scale: must be e8m0 in MX formats";
  if (o.format == operand_format::nvfp4 && f.scale != formats::ue4m3 && f.scale != formats::ue5m3) {
    return where + ".block.scale: must be ue4m3 or ue5m3 in nvfp4";
  }
  block_options options;
  options.policy = o.policy;
  if (!options_are_defined(f, options)) {
    return where + ".policy: " + std::string(to_string(o.policy)) + " stores zero blocks with a scale that " +
           std::string(to_string(f.scale)) + " has not";
  }
  return std::nullopt;
}

/// The operand as GEMMs see it, of `k` elements along the contraction axis and no memory.
inline gemm_operand make_shape(const operand_recipe& o, index_t k) {
  gemm_operand a{.element = element_format(stored_format(o)), .rows = 128, .k = k};
  if (!has_blocks(stored_format(o))) return a;
  const block_format f = block_format_of(o);
  a.block = f.length;
  a.block_rows = f.rows;
  a.scale = f.scale;
  a.scale_stride = k / f.length;
  return a;
}

/// Does `wide` have every number of `narrow`?
constexpr bool holds(const format& wide, const format& narrow) {
  return wide.mantissa_bits >= narrow.mantissa_bits && wide.max_exponent() >= narrow.max_exponent() &&
         wide.min_exponent() - wide.mantissa_bits <= narrow.min_exponent() - narrow.mantissa_bits;
}

/// True if the unit can multiply the operand. It takes the operand's elements, or a format that has all their numbers.
/// A unit with block scales takes its own blocks, or operands without blocks (scales of 1).
constexpr bool multiplies(const mma_unit& u, const operand_recipe& o) {
  if (unit_fault(u) != nullptr) return false;
  if (u.block != 0 && has_blocks(stored_format(o))) {
    const block_format f = block_format_of(o);
    if (f.length != u.block || f.scale != u.scale) return false;
  }
  const format element = element_format(stored_format(o));
  if (takes(u, element)) return true;
  for (const format& f : {formats::fp32, formats::tf32, formats::bf16, formats::fp16, formats::e4m3, formats::e5m2,
                          formats::e4m3fnuz, formats::e5m2fnuz, formats::e2m3, formats::e3m2}) {
    if (takes(u, f) && holds(f, element)) return true;
  }
  return false;
}

/// Contracts to suggest instead of a unit: of the same architecture, or a chain.
inline std::string units_instead(const gemm_recipe& g, std::string_view unit) {
  const std::string_view architecture = unit.substr(0, unit.find('-') + 1);
  std::string names;
  for (const mma_unit& u : models::all) {
    if (!std::string_view(u.name).starts_with(architecture) || !multiplies(u, g.left) || !multiplies(u, g.right)) {
      continue;
    }
    names += (names.empty() ? "" : ", ") + std::string(u.name);
  }
  return (names.empty() ? fp32_fma_chain_contract : names) + " would do";
}

/// Fault of a unit that cannot multiply a GEMM's operands.
inline fault find_unit_fault(const gemm_recipe& g, const std::string& where, const char* left, const char* right) {
  const mma_unit* const unit = find_unit_and_kernel(g.accumulate).unit;
  if (unit == nullptr) return std::nullopt;
  const std::string named = where + ".accumulate: '" + g.accumulate + "'" +
                            (g.accumulate == unit->name ? "" : " runs on " + std::string(unit->name) + ", which");
  if (const char* why = unit_fault(*unit)) return named + " " + why + "; " + units_instead(g, unit->name);
  for (const auto& [o, name] : {std::pair{&g.left, left}, {&g.right, right}}) {
    if (multiplies(*unit, *o)) continue;
    const bool blocks = unit->block != 0 && has_blocks(o->format);
    return named + " does not take " + where + "." + name + " (" + std::string(to_string(o->format)) +
           (blocks ? " in blocks of " + std::to_string(block_format_of(*o).length) + " under " +
                         std::string(to_string(block_format_of(*o).scale))
                   : "") +
           "); " + units_instead(g, unit->name);
  }
  return std::nullopt;
}

/// did_you_mean for a contract's name, ignoring settings after a colon.
inline std::string contract_suggestion(const std::string& wanted) {
  std::vector<std::string> valid = {fp32_fma_chain_contract, fp32_blockwise_contract};
  for (const gemm_contract_entry& c : gemm_contracts) valid.emplace_back(c.name);
  for (const mma_unit& u : models::all) valid.emplace_back(u.name);
  std::erase_if(valid, [](const std::string& name) { return !find_gemm_contract(name); });
  return did_you_mean(std::string_view(wanted).substr(0, wanted.find(':')), valid);
}

inline fault find_accumulate_fault(const gemm_recipe& g, const std::string& where, const char* left,
                                   const char* right) {
  if (auto f = find_unit_fault(g, where, left, right)) return f;
  const auto contract = find_gemm_contract(g.accumulate);
  if (!contract) {
    const std::string suggestion = contract_suggestion(g.accumulate);
    return where + ".accumulate: '" + g.accumulate + "' is no contract" + (suggestion.empty() ? ";" : suggestion) +
           " docs/reference/matrix-units.md has all units, docs/reference/contracts.md what runs where";
  }
  if (g.accumulate == fp32_blockwise_contract) {
    for (const operand_recipe* o : {&g.left, &g.right}) {
      if (stored_format(*o) != operand_format::mxfp4 || block_format_of(*o).length != 32) {
        return where + ".accumulate: fp32_blockwise needs mxfp4 in blocks of 32 on both operands, whose sums are exact";
      }
    }
  }
  if (!gemm_is_defined(make_shape(g.left, 1024), make_shape(g.right, 1024), contract->options)) {
    return where + ".accumulate: '" + g.accumulate + "' does not take these operands";
  }
  return std::nullopt;
}

inline fault find_fault(const gemm_recipe& g, const std::string& where, const char* left, const char* right) {
  for (const auto& [o, name] : {std::pair{&g.left, left}, {&g.right, right}}) {
    const std::string operand = where + "." + name;
    if (auto f = find_block_fault(*o, operand)) return f;
    if (auto f = find_choice_fault(*o, operand)) return f;
    if (auto f = find_value_fault(*o, operand)) return f;
    if (auto f = find_rotation_fault(*o, operand)) return f;
  }
  if (g.left.rotation != g.right.rotation) {
    return where + "." + right + ".rotation: both operands must have the same rotation, or it does not cancel";
  }
  const bool drawn = g.left.rotation.signs == sign_kind::layer || g.left.rotation.signs == sign_kind::step;
  if (g.left.rotation.points != 0 && drawn && run_length_of(g.left) != run_length_of(g.right)) {
    return where + "." + right + ".block.length: both operands must have blocks of one length under drawn signs";
  }
  if (g.output != operand_format::fp32 && g.output != operand_format::bf16) {
    return where + ".output: must be fp32 or bf16";
  }
  return find_accumulate_fault(g, where, left, right);
}

/// `where`: "" or "head.".
inline fault find_fault(const linear_recipe& r, const std::string& where) {
  if (auto f = find_fault(r.fprop, where + "fprop", "x", "w")) return f;
  if (auto f = find_fault(r.dgrad, where + "dgrad", "dy", "w")) return f;
  if (auto f = find_fault(r.wgrad, where + "wgrad", "dy", "x")) return f;
  const auto disagree = [](const operand_recipe& a, const operand_recipe& b) {
    if (keeps_values(a) && keeps_values(b)) return false;
    return is_fp8(a.format) && is_fp8(b.format) && (a.format != b.format || a.scaling != b.scaling);
  };
  if (disagree(r.fprop.left, r.wgrad.right)) {
    return where + "wgrad.x.format: must be fprop.x's FP8 format and scaling, they share one scale";
  }
  if (disagree(r.fprop.right, r.dgrad.right)) {
    return where + "dgrad.w.format: must be fprop.w's FP8 format and scaling, they share one scale";
  }
  if (disagree(r.dgrad.left, r.wgrad.left)) {
    return where + "wgrad.dy.format: must be dgrad.dy's FP8 format and scaling, they share one scale";
  }
  struct {
    const operand_recipe &own, *forward;
    const char* name;
  } const uses[] = {{r.fprop.left, nullptr, "fprop.x"},         {r.fprop.right, nullptr, "fprop.w"},
                    {r.dgrad.left, nullptr, "dgrad.dy"},        {r.wgrad.left, nullptr, "wgrad.dy"},
                    {r.dgrad.right, &r.fprop.right, "dgrad.w"}, {r.wgrad.right, &r.fprop.left, "wgrad.x"}};
  for (const auto& use : uses) {
    if (!takes_row_form(use.own)) continue;
    const bool quantizes = use.own.source == operand_source::forward;
    const std::string field = where + use.name + (quantizes ? ".source: forward " : ".format: dequantized ");
    if (quantizes && !has_blocks(use.own.format)) return field + "needs a format with blocks";
    if (use.forward == nullptr) return field + "is for dgrad.w and wgrad.x only";
    if (!is_fp8(use.forward->format) && !has_blocks(use.forward->format)) return field + "needs a quantized fprop";
  }
  return std::nullopt;
}

}  // namespace detail

/// Fault of a contract set's name, or nullopt. `more`: another valid name.
inline std::optional<std::string> find_set_fault(const std::string& name, const char* more = nullptr) {
  std::vector<std::string> valid = contract_set_names();
  if (more != nullptr) valid.emplace_back(more);
  if (std::find(valid.begin(), valid.end(), name) != valid.end()) return std::nullopt;
  return "contracts: '" + name + "' is no contract set" + did_you_mean(name, valid);
}

/// First fault of a recipe, or nullopt.
inline std::optional<std::string> find_fault(const recipe& r) {
  if (!is_one_line(r.name)) return "name: holds a control character, and logs are of lines";
  if (auto fault = find_set_fault(r.contracts)) return fault;
  if (auto fault = detail::find_fault(r, "")) return fault;
  if (r.head) {
    if (auto fault = detail::find_fault(*r.head, "head.")) return fault;
  }
  if (override_backward(r, r.backward_override) != r) {
    return "backward_override: dgrad and wgrad are not what " + std::string(to_string(r.backward_override)) +
           " makes of them";
  }
  if (r.activations != operand_format::fp32 && r.activations != operand_format::bf16) {
    return "activations must be fp32 or bf16";
  }
  if (r.fp8.history_length < 1 || r.fp8.history_length > 65536) return "fp8.history_length must be between 1 and 65536";
  if (r.deoscillation) {
    const deoscillation_recipe& d = *r.deoscillation;
    if (d.start < 0) return "deoscillation.start must not be negative";
    if (d.period < 1) return "deoscillation.period must be at least 1";
    if (!(d.ratio > 0)) return "deoscillation.ratio must be above 0";
    const auto has_plain_values = [](const linear_recipe& x) {
      return x.fprop.right.rotation.points == 0 && !draws_words(x.fprop.right);
    };
    if (!has_blocks(r.fprop.right.format) || !has_plain_values(r) || (r.head && !has_plain_values(*r.head))) {
      return "deoscillation: needs fprop.w in blocks, to nearest, without a rotation; the head's too";
    }
  }
  if (r.fp8.margin < -32 || r.fp8.margin > 32) return "fp8.margin must be between -32 and 32";
  if (r.bf16_first_layers < 0 || r.bf16_last_layers < 0) {
    return "bf16_first_layers and bf16_last_layers must not be negative";
  }
  if (auto fault = detail::find_fault(bf16_layers_of(r), "bf16_layers.")) return fault;
  if (auto fault = detail::find_fault(adapters_of(r), "adapters.")) return fault;
  if (!find_attention_contract(r.attention)) {
    return "attention: '" + r.attention + "' is no contract (docs/reference/layers.md lists them)";
  }
  return std::nullopt;
}

}  // namespace rotoscale::nn
