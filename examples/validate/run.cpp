// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

#include <algorithm>

#include "rotoscale/gemm_ref.hpp"
#include "rotoscale/names.hpp"

namespace rotoscale::validate {

namespace {

/// The unit of the options; null if --identify needs none.
const mma_unit* chosen_unit(const gemm_request& o, verb v) {
  if (find_contract(o.kernel) == nullptr)
    throw io::error("--kernel", "no kernel '" + o.kernel + "'; --list-models shows all");
  const std::string name = !o.model.empty() ? o.model : find_contract(o.kernel)->unit;
  const mma_unit* unit = find_unit(name);
  if (unit != nullptr || (v == verb::identify && name.empty())) return unit;
  if (name.empty()) throw io::error("--model", "needed");
  std::vector<std::string> known;
  for (const mma_unit& u : models::all) known.emplace_back(u.name);
  throw io::error("--model", "no model '" + name + "'" + io::did_you_mean(name, known) + " (--list-models shows all)");
}

/// Throws for a result of NaN alone that no model gives: it was not written.
[[noreturn]] void refuse_unwritten(const std::string& where) {
  throw io::error(where, "tensor 'd': every element is NaN, and none of the model's is; was it written?");
}

/// Throws if the unit or the kernel cannot have computed this case.
void require_match(const mma_unit& unit, const gemm_request& o, const io::safetensors_file& file, const gemm_case& x) {
  const std::string wrong = mismatch(unit, x, o.kernel != "instruction");
  if (!wrong.empty()) throw io::error(file.name(), wrong);
}

struct loaded_gemm {
  const mma_unit* unit;
  gemm_case x;
  kernel_use use;
};
loaded_gemm load_gemm(const gemm_request& o, const io::safetensors_file& file, verb v) {
  const mma_unit* const unit = chosen_unit(o, v);
  loaded_gemm l{unit, load_case(file, o.files), {}};
  l.use = chosen_use(o, l.x, unit == nullptr ? mma_model{} : unit->model);
  check_use(o, l.use.gemm, l.x);
  refuse_idle_options(o.given, l.x, l.use.gemm, v);
  if (l.x.is_fp64() && v == verb::fit) throw io::error("--fit", "F64 has nothing to fit");
  return l;
}

/// The first fields of every report.
nlohmann::ordered_json report_head(const std::string& input, const gemm_request& o) {
  nlohmann::ordered_json j;
  j["input"] = input;
  j["model"] = o.model;
  j["kernel"] = o.kernel;
  return j;
}

}  // namespace

checked_gemm check_gemm(const gemm_request& o, const io::safetensors_file& file, thread_pool& pool) {
  auto [unit, x, use] = load_gemm(o, file, verb::compare);
  require_match(*unit, o, file, x);
  const gemm_options& g = use.gemm;
  if (!x.is_fp64() && !gemm_is_defined(batch_operand(x.a, x.k, 0), batch_operand(x.b, x.k, 0), g)) {
    throw io::error("--promotion", std::to_string(g.promotion) + " is no multiple of the model's step");
  }
  comparison result = compare(x, use, o.any_nan, pool);
  // A NaN matches any NaN of the model here.
  if (result.different == result.elements && is_all_nan(x) && compare(x, use, true, pool).different == result.elements)
    refuse_unwritten(file.name());
  std::vector<std::string> steps = result.first ? trace(x, g, *result.first) : std::vector<std::string>{};
  return {std::move(x), std::move(result), std::move(steps)};
}

ranked_gemm identify_gemm(const gemm_request& o, const io::safetensors_file& file, verb v, index_t sample,
                          thread_pool& pool) {
  auto [unit, x, use] = load_gemm(o, file, v);
  const char* const what = v == verb::fit ? "parameters" : "models";
  std::vector<explanation> all;
  if (v == verb::fit) {
    require_match(*unit, o, file, x);
    all = fit(x, use, o.any_nan, sample, pool);
  } else {
    all = identify(x, use, o.kernel != "instruction", o.any_nan, sample, pool);
    const bool has_nan = all.empty() || all.front().explained != 0 || all.front().nan_bits != 0;
    if (!has_nan && is_all_nan(x)) refuse_unwritten(file.name());
  }
  if (all.empty()) throw io::error(std::string("no ") + what + " takes these tensors");
  ranking r = ranking_of(what, x, use, std::move(all), o.any_nan, pool);
  return {std::move(x), std::move(r)};
}

std::vector<std::string> notes_on(const gemm_case& x) {
  // UE4M3 has seven bits, but tools that show F8_E4M3 read a byte above 127 as a negative number.
  std::vector<std::string> notes;
  for (const auto& [name, operand] : {std::pair{"scale_a", &x.a}, std::pair{"scale_b", &x.b}}) {
    if (operand->block == 0 || !(operand->scale == formats::ue4m3)) continue;
    const auto has_top_bit = [](std::uint8_t scale) { return scale > 0x7F; };
    const auto count = std::count_if(operand->scales.begin(), operand->scales.end(), has_top_bit);
    if (count == 0) continue;
    notes.push_back(std::to_string(count) + " bytes of " + name +
                    " have their top bit set, which UE4M3 does not have: models read the other seven");
  }
  return notes;
}

nlohmann::ordered_json report_of(const std::string& input, const gemm_request& o, const checked_gemm& c) {
  nlohmann::ordered_json j = report_head(input, o);
  const comparison& r = c.result;
  j["identical"] = r.different == 0;
  j["elements"] = r.elements;
  j["different"] = r.different;
  j["rms"] = r.rms;
  j["largest_relative_error"] = r.relative;
  j["ulps"] = nlohmann::ordered_json::object();
  for (const auto& [distances, count] : r.histogram) j["ulps"][distances] = count;
  j["worst"] = nlohmann::ordered_json::array();
  for (const difference& d : r.worst) {
    const output_index at = index_of(c.x, d.element);
    j["worst"].push_back({{"batch", at.batch},
                          {"row", at.row},
                          {"column", at.column},
                          {"model_code", d.want},
                          {"kernel_code", d.got},
                          {"ulps", d.ulps}});
  }
  j["trace"] = c.steps;
  j["notes"] = notes_on(c.x);
  return j;
}

nlohmann::ordered_json report_of(const std::string& input, const gemm_request& o, const ranked_gemm& c) {
  nlohmann::ordered_json j = report_head(input, o);
  add_to(j, c.r);
  j["notes"] = notes_on(c.x);
  return j;
}

}  // namespace rotoscale::validate
