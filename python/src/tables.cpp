// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Tables of the library as lists of records (dicts), for rotoscale.formats and its like.
#include "arrays.hpp"
#include "module.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/nn/presets.hpp"

namespace rotoscale::python {
namespace {

nb::str name_of(std::string_view name) { return nb::str(name.data(), name.size()); }

template <class E>
nb::str name_of_value(E value) {
  return name_of(to_string(value));
}

nb::dict format_record(const enum_name<format>& entry) {
  const format& f = entry.value;
  nb::dict d;
  d["name"] = name_of(entry.name);
  d["bits"] = f.bits();
  d["exponent_bits"] = f.exponent_bits;
  d["mantissa_bits"] = f.mantissa_bits;
  d["bias"] = f.bias;
  d["is_signed"] = f.is_signed;
  d["specials"] = name_of_value(f.specials);
  d["has_zero"] = f.has_zero;
  d["has_subnormals"] = f.has_subnormals;
  const auto value = [&](std::uint64_t code) {
    return bit_cast<double>(convert(f, code, formats::fp64, rounding::nearest_even, overflow::to_inf));
  };
  d["max"] = value(f.max_code());
  d["min"] = value(f.has_zero ? 1 : 0);
  return d;
}

nb::dict block_format_record(const enum_name<block_format>& entry) {
  nb::dict d;
  d["name"] = name_of(entry.name);
  d["element"] = name_of_value(entry.value.element);
  d["length"] = entry.value.length;
  d["scale"] = name_of_value(entry.value.scale);
  d["unit_scale"] = static_cast<int>(unit_scale(entry.value.scale));
  return d;
}

nb::dict preset_record(const enum_name<block_options>& entry) {
  const block_options& o = entry.value;
  nb::dict d;
  d["name"] = name_of(entry.name);
  d["source"] = name_of_value(o.source);
  d["rotation"] = o.rotation.points;
  d["scale_rule"] = name_of_value(o.rule);
  d["rounding"] = name_of_value(o.rounding);
  d["policy"] = name_of_value(o.policy);
  return d;
}

const char* evidence_name(mma_evidence e) {
  switch (e) {
    case mma_evidence::definition: return "definition";
    case mma_evidence::measured: return "measured";
    case mma_evidence::published_vectors: return "published_vectors";
    case mma_evidence::literature: return "literature";
    case mma_evidence::unverified: return "unverified";
  }
  return "?";
}

nb::dict model_record(const mma_unit& u) {
  nb::list operands;
  for (const auto& f : enum_names<format>::table) {
    if (takes(u, f.value)) operands.append(name_of(f.name));
  }
  nb::dict d;
  d["name"] = u.name;
  d["operands"] = operands;
  d["instruction_k"] = u.instruction_k;
  d["group"] = u.model.group;
  d["fraction_bits"] = u.model.fraction_bits;
  d["sparse"] = u.model.sparse;
  d["block"] = u.block;
  d["scale"] = u.block == 0 ? nb::object(nb::none()) : nb::object(name_of_value(u.scale));
  d["evidence"] = evidence_name(u.evidence);
  d["device"] = u.device;
  return d;
}

nb::dict contract_record(const gemm_contract_entry& c) {
  nb::dict d;
  d["name"] = c.name;
  d["unit"] = c.unit;
  d["start_from_c"] = c.start_from_c;
  d["promotion"] = c.promotion;
  d["split_grain"] = c.split_grain;
  d["evidence"] = evidence_name(c.evidence);
  d["device"] = c.device;
  return d;
}

nb::dict operand_record(const nn::operand_recipe& o) {
  nb::dict d;
  d["format"] = name_of_value(o.format);
  d["rounding"] = name_of_value(o.rounding);
  d["scaling"] = name_of_value(o.scaling);
  if (nn::has_blocks(o.format)) {
    const block_format f = nn::block_format_of(o);
    d["scale_rule"] = name_of_value(o.rule);
    d["scale_choice"] = name_of_value(o.choice);
    d["source"] = name_of_value(o.source);
    d["policy"] = name_of_value(o.policy);
    d["rotation"] = o.rotation.points;
    d["signs"] = name_of_value(o.rotation.signs);
    d["mask"] = o.rotation.mask;
    d["length"] = f.length;
    d["rows"] = f.rows;
  }
  return d;
}

nb::dict recipe_record(const nn::recipe& r) {
  nb::dict d;
  d["name"] = r.name;
  const std::pair<const char*, const nn::gemm_recipe*> gemms[] = {
      {"fprop", &r.fprop}, {"dgrad", &r.dgrad}, {"wgrad", &r.wgrad}};
  for (const auto& [name, g] : gemms) {
    nb::dict gemm;
    gemm["left"] = operand_record(g->left);
    gemm["right"] = operand_record(g->right);
    gemm["contract"] = g->accumulate;
    gemm["output"] = name_of_value(g->output);
    d[name] = gemm;
  }
  nb::dict scaling;
  scaling["history_length"] = r.fp8.history_length;
  scaling["algorithm"] = name_of_value(r.fp8.algorithm);
  scaling["margin"] = r.fp8.margin;
  d["fp8"] = scaling;
  d["activations"] = name_of_value(r.activations);
  d["attention"] = r.attention;
  return d;
}

template <class Table, class Record>
nb::list records(const Table& table, Record record) {
  nb::list all;
  for (const auto& entry : table) all.append(record(entry));
  return all;
}

template <class E>
nb::list name_list() {
  nb::list all;
  for (const auto& entry : enum_names<E>::table) all.append(name_of(entry.name));
  return all;
}

}  // namespace

void add_tables(nb::module_& m) {
  m.attr("formats") = records(enum_names<format>::table, format_record);
  m.attr("block_formats") = records(enum_names<block_format>::table, block_format_record);
  m.attr("presets") = records(enum_names<block_options>::table, preset_record);
  m.attr("models") = records(models::all, model_record);
  m.attr("contracts") = records(gemm_contracts, contract_record);
  std::vector<nn::recipe> recipes = nn::presets::all();
  std::erase_if(recipes, [](const nn::recipe& r) { return nn::keeps_values(r.fprop.left); });  // not in this package
  m.attr("recipes") = records(recipes, recipe_record);
  m.attr("scale_rules") = name_list<scale_rule>();
  m.attr("scale_choices") = name_list<scale_choice>();
  m.attr("roundings") = name_list<rounding>();
  m.attr("policies") = name_list<block_policy>();
  m.attr("placements") = name_list<placement>();
}

}  // namespace rotoscale::python
