// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "../applicable.hpp"
#include "presets.hpp"
#include "rotoscale/names.hpp"

namespace rotoscale::validate {

namespace {

nlohmann::ordered_json json_of(const side_report& r) {
  nlohmann::ordered_json side;
  side["blocks"] = r.blocks;
  side["blocks_different"] = r.blocks_different;
  side["scales_different"] = r.scales_different;
  side["elements"] = r.elements;
  side["codes_different"] = r.codes_different;
  side["padding_different"] = r.padding_different;
  side["kinds"] = r.kinds;
  side["repeated_different"] = r.repeated_different;
  if (r.rounding) {
    side["rounded"] = r.rounding->rounded;
    side["deviations"] = r.rounding->z;
  }
  side["first"] = r.first;
  return side;
}

/// Key of the outcome: with unknown words a dump is accepted, but not known to be identical.
const char* outcome_key(const quantizer& q) { return q.has_unknown_words() ? "accepted" : "identical"; }

void add_to(nlohmann::ordered_json& j, const dump_report& report) {
  j["tensor_faults"] = report.tensor_faults;
  for (const side_report& r : report.sides) j[r.side->code_name()] = json_of(r);
}

/// Notes on parts of the dump that are easily misread.
std::vector<std::string> notes_on(const quantizer& q, const quantizer_dump& dump, verb v) {
  std::vector<std::string> notes;
  // Comparing refuses these; an identified dump may be explained by another placement.
  for (const dump_side& side : dump.sides) {
    for (const bool of_scales : {false, true}) {
      if (const std::string fault = shape_fault(q, side, of_scales); !fault.empty())
        notes.push_back(std::string(of_scales ? side.scale_name() : side.code_name()) + ": " + fault);
    }
  }
  if (v == verb::compare && q.is_per_tensor() && q.assumed != assumed_factor::none) {
    char factor[48];
    std::snprintf(factor, sizeof factor, "%.9g", static_cast<double>(q.options.encode_factor));
    notes.push_back("there is no factor: " + std::string(factor) + " is assumed" +
                    (q.assumed == assumed_factor::amax ? ", of tensor 'amax'" : ""));
  }
  if (q.is_per_tensor() || !(q.blocks.scale == formats::ue4m3)) return notes;
  for (const dump_side& side : dump.sides) {
    const std::vector<std::uint8_t> scales = dense_scales(q, side).value_or(std::vector<std::uint8_t>{});
    const auto count = std::count_if(scales.begin(), scales.end(), [](std::uint8_t scale) { return scale > 0x7F; });
    if (count == 0) continue;
    notes.push_back(std::to_string(count) + " bytes of " + side.scale_name() +
                    " have their top bit set, which UE4M3 does not have");
  }
  return notes;
}

/// Number of differences between a dump and the quantizer's result.
index_t faults_of(const dump_report& r) {
  index_t faults = static_cast<index_t>(r.tensor_faults.size());
  for (const side_report& side : r.sides) faults += side.blocks_different + side.repeated_different;
  return faults;
}

/// Checks the candidates that explain the sample against the whole dump: other runs, repeated scales, factor and amax.
/// The best is the first that explains everything, else the first with the fewest differences.
void check_wholly(identified_dump& found, const quantizer_dump& dump, thread_pool& pool) {
  for (std::size_t i = 0; !found.accepted && i < found.all().size(); ++i) {
    if (found.all()[i].explained != found.looked_at()) break;
    dump_report whole = check_dump(found.all()[i].how, dump, std::nullopt, pool);
    found.accepted = whole.accepted();
    if (found.whole && !found.accepted && faults_of(whole) >= faults_of(*found.whole)) continue;
    found.best = i;
    found.whole = std::move(whole);
  }
}

/// Signs in the form of --signs; empty if all are positive.
std::string signs_text(const quantizer& q) {
  const rotation& r = q.options.rotation;
  std::string all;
  for (index_t i = 0; i < q.tile_k() / 32; ++i) {
    char word[16];
    std::snprintf(word, sizeof word, "%s%08x", i == 0 ? "" : ",", r.signs[i]);
    all += word;
  }
  return r == rotation{r.points} ? "" : all;
}

const char* nibble_name(nibble_order n) {
  return n == nibble_order::low ? "low" : n == nibble_order::high ? "high" : "halves";
}

/// True if each group of rows, as many as a block is long, has equal scales.
bool may_be_square(const quantizer& q, const quantizer_dump& dump) {
  const index_t length = q.blocks.length;
  return length != 0 && std::all_of(dump.sides.begin(), dump.sides.end(), [&](const dump_side& side) {
           const auto scales = dense_scales(q, side);
           if (!scales || side.rows % length != 0) return false;
           const auto columns = static_cast<std::ptrdiff_t>(side.k / length);
           for (index_t r = 1; r < side.rows; ++r) {
             const auto row = scales->begin() + r * columns;
             if (r % length != 0 && !std::equal(row, row + columns, row - columns)) return false;
           }
           return true;
         });
}

/// identify_quantizer for blocks with as many rows as elements, if these explain the sample; else nullopt.
std::optional<identified_dump> identify_square_blocks(const quantizer_options& o, const io::safetensors_file& file,
                                                      index_t sample, int length, thread_pool& pool) {
  quantizer_options square = o;
  square.block_rows = length;
  try {
    const auto [dump, q] = load_case(square, file, pool);
    const dump_ranking ranking = identify_dump(o.preset.empty() ? nullptr : &q, q, {}, dump, sample, 1, pool);
    if (ranking.all.front().explained != static_cast<index_t>(ranking.all.front().which.size())) return std::nullopt;
  } catch (const io::error&) {  // no whole blocks of so many rows
    return std::nullopt;
  }
  return identify_quantizer(square, file, sample, pool);
}

/// The byte of --scale-padding; nullopt for any.
std::optional<std::uint8_t> padding_of(const std::string& text) {
  if (text == "any") return std::nullopt;
  std::uint8_t byte = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, byte);
  if (error != std::errc() || stop != end)
    throw io::error("--scale-padding", "'" + text + "' is neither 'any' nor a byte");
  return byte;
}

}  // namespace

std::string options_to_paste(const dump_explanation& e) {
  const quantizer& q = e.how;
  const block_options& o = q.options;
  std::string all = "--quantizer " + e.preset + " " + format_options(q.blocks);
  const auto add = [&](const char* flag, std::string_view value) {
    all += std::string(" ") + flag + " " + std::string(value);
  };
  if (!q.is_per_tensor()) {
    add("--rotation", std::to_string(o.rotation.points));
    if (const std::string signs = signs_text(q); !signs.empty() && o.rotation.points != 0) add("--signs", signs);
    if (q.blocks.has_e8m0_scale()) add("--scale-rule", to_string(o.rule));
    add("--policy", to_string(o.policy));
    if (q.scale_order != placement::row_major) add("--scale-placement", to_string(q.scale_order));
  }
  add("--rounding", to_string(o.rounding));
  add("--source", to_string(o.source));
  if (q.is_per_tensor() || !q.blocks.has_e8m0_scale()) {
    char factor[32];
    std::snprintf(factor, sizeof factor, "%.9g", static_cast<double>(o.encode_factor));
    add("--factor", factor);
  }
  if (q.code_order != placement::row_major) add("--code-placement", to_string(q.code_order));
  if (q.nibbles != nibble_order::low) add("--nibbles", nibble_name(q.nibbles));
  for (const named_detail& d : all_details) {
    if (q.details.*d.member) add("--detail", d.name);
  }
  return all;
}

namespace {

/// Values of the options that check a dump against this candidate, and the rotation's factor, for which no option
/// exists.
nlohmann::ordered_json json_of(const dump_explanation& e) {
  const quantizer& q = e.how;
  nlohmann::ordered_json j;
  j["explained"] = e.explained;
  j["text"] = e.text;
  j["quantizer"] = e.preset;
  if (!q.is_per_tensor()) {
    j["rotation"] = q.options.rotation.points;
    if (const std::string signs = signs_text(q); !signs.empty()) j["signs"] = signs;
    j["rotation_factor"] = q.hadamard_factor;
    if (q.blocks.has_e8m0_scale()) j["scale_rule"] = to_string(q.options.rule);
    j["policy"] = to_string(q.options.policy);
    j["scale_placement"] = to_string(q.scale_order);
  }
  j["rounding"] = to_string(q.options.rounding);
  if (q.options.rounding == rounding::stochastic) {
    j["random_words"] = q.has_words ? "known" : "unknown";
    j["random_bits"] = q.options.random_count;
  }
  j["source"] = to_string(q.options.source);
  if (q.is_per_tensor() || !q.blocks.has_e8m0_scale()) j["factor"] = q.options.encode_factor;
  j["code_placement"] = to_string(q.code_order);
  if (storage_bits(q.blocks.element) == 4) j["nibbles"] = nibble_name(q.nibbles);
  if (q.blocks.rows != 1) j["block_rows"] = q.blocks.rows;
  j["details"] = nlohmann::ordered_json::array();
  for (const named_detail& d : all_details) {
    if (q.details.*d.member) j["details"].push_back(d.name);
  }
  j["options"] = options_to_paste(e);
  return j;
}

}  // namespace

checked_dump check_quantizer(const quantizer_options& o, const io::safetensors_file& file, thread_pool& pool) {
  auto [dump, q] = load_case(o, file, pool);
  refuse_idle_options(o.given, q, dump, verb::compare);
  checked_dump found{std::move(dump), std::move(q), {}, {}};
  found.result = check_dump(found.q, found.dump, padding_of(o.scale_padding), pool);
  found.notes = notes_on(found.q, found.dump, verb::compare);
  return found;
}

identified_dump identify_quantizer(const quantizer_options& o, const io::safetensors_file& file, index_t sample,
                                   thread_pool& pool) {
  auto [dump, q] = load_case(o, file, pool);
  refuse_idle_options(o.given, q, dump, verb::identify);
  const bool named = !o.preset.empty();
  const fixed_fields fixed = named ? fixed_fields{}
                                   : fixed_fields{!o.rotation.empty(), !o.rule.empty(), !o.policy.empty(),
                                                  !o.rounding.empty(), !o.source.empty()};
  identified_dump found{identify_dump(named ? &q : nullptr, q, fixed, dump, sample, max_listed, pool), 0, 0, {}, false};
  found.dump = std::move(dump);
  found.q = std::move(q);
  const std::vector<dump_explanation>& all = found.all();
  while (all.front().explained != 0 && found.tied < all.size() && all[found.tied].which == all.front().which)
    ++found.tied;
  check_wholly(found, found.dump, pool);
  if (!found.accepted && o.block_rows == 1 && may_be_square(found.q, found.dump)) {
    if (auto square = identify_square_blocks(o, file, sample, found.q.blocks.length, pool)) return std::move(*square);
  }
  found.notes = notes_on(found.q, found.dump, verb::identify);
  return found;
}

nlohmann::ordered_json report_of(const std::string& input, const checked_dump& c) {
  nlohmann::ordered_json j;
  j["input"] = input;
  j["quantizer"] = c.q.name;
  j[outcome_key(c.q)] = c.result.accepted();
  add_to(j, c.result);
  j["notes"] = c.notes;
  return j;
}

nlohmann::ordered_json report_of(const std::string& input, const std::string& preset, const identified_dump& found) {
  nlohmann::ordered_json j;
  j["input"] = input;
  j["quantizer"] = preset;
  j[outcome_key(found.all()[found.best].how)] = found.accepted;
  j["runs"] = found.ranking.runs;
  j["looked_at"] = found.looked_at();
  j["best"] = nullptr;
  if (found.explains_half()) j["best"] = json_of(found.all()[found.best]);
  j["tied"] = found.tied;
  j["tied_or_more"] = found.tied == max_listed;
  j["candidates"] = nlohmann::ordered_json::array();
  for (const dump_explanation& e : found.all()) {
    if (e.explained != 0) j["candidates"].push_back(json_of(e));
  }
  for (std::size_t i = 0; i < found.ranking.sides.size(); ++i) {
    const dump_explanation& e = found.ranking.sides[i];
    j["alone"][found.dump.sides[i].code_name()] = e.explained != 0 ? json_of(e) : nlohmann::ordered_json();
  }
  if (!found.ranking.unlike_random.empty()) j["unlike_random"] = found.ranking.unlike_random;
  if (found.whole && !found.accepted) add_to(j, *found.whole);
  j["notes"] = found.notes;
  return j;
}

nlohmann::ordered_json report_of(const std::string& input, const std::string& preset, const dump_report& result) {
  nlohmann::ordered_json j;
  j["input"] = input;
  j["quantizer"] = preset;
  j["identical"] = result.accepted();
  add_to(j, result);
  return j;
}

}  // namespace rotoscale::validate
