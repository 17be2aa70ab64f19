// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "command.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>

#include "../applicable.hpp"
#include "../format_names.hpp"
#include "../ranking.hpp"
#include "check.hpp"
#include "presets.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/names.hpp"

namespace rotoscale::validate {

namespace {

void print(const distribution& d, const char* indent) {
  std::printf("%srounding by unknown words: %lld elements lie between two numbers\n", indent,
              static_cast<long long>(d.rounded));
  std::printf("%saway from zero, deviation in standard errors: all %.2f; by eighths of the fraction", indent, d.z[0]);
  for (int bin = 1; bin < 9; ++bin) std::printf(" %.2f", d.z[bin]);
  std::printf(" (limit 5)\n");
}

void print(const side_report& r) {
  const char* name = r.side->code_name();
  std::cout << name << ": " << r.blocks_different << " of " << r.blocks << " blocks differ (" << r.scales_different
            << " scales, " << r.codes_different << " of " << r.elements << " codes)\n";
  for (const auto& [kind, count] : r.kinds) std::cout << "  " << kind << ": " << count << "\n";
  if (r.padding_different != 0)
    std::cout << "  padding of scales: " << r.padding_different << " of " << r.padding << " bytes\n";
  if (r.rounding) print(*r.rounding, "  ");
  if (!r.first.empty()) std::cout << "first:\n";
  for (const std::string& line : r.first) std::cout << "  " << line << "\n";
}

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

void write_report(const std::string& path, const std::string& input, const quantizer& q, const dump_report& report,
                  const std::vector<std::string>& notes) {
  nlohmann::ordered_json j;
  j["input"] = input;
  j["quantizer"] = q.name;
  j[outcome_key(q)] = report.accepted();
  add_to(j, report);
  j["notes"] = notes;
  validate::write_report(path, j);
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

void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) std::cout << "note: " << note << "\n";
}

constexpr std::size_t max_listed = 20;

/// Result of --identify, and whether it explains the whole dump.
struct identified_dump {
  dump_ranking ranking;
  std::size_t tied = 0;              ///< number of leading candidates that explain the same runs
  std::size_t best = 0;              ///< index of the candidate that explains the sample and most of the dump; else 0
  std::optional<dump_report> whole;  ///< the best on the whole dump, if it explains the sample
  bool accepted = false;             ///< the best explains the whole dump

  const std::vector<dump_explanation>& all() const { return ranking.all; }
  index_t looked_at() const { return static_cast<index_t>(all().front().which.size()); }
  bool explains_half() const { return all().front().explained != 0 && 2 * all().front().explained >= looked_at(); }
  bool explains_sample() const { return all().front().explained == looked_at(); }
};

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

/// Prints how the candidate that explains the sample does on the whole dump; names it if it is not the first.
void print_whole(const identified_dump& found) {
  if (found.accepted && found.best != 0) std::cout << "all of the dump: " << found.all()[found.best].text << "\n";
  if (found.accepted) return;
  std::cout << "but not all of the dump" << (found.best == 0 ? "" : ", most of it by " + found.all()[found.best].text)
            << ":\n";
  for (const std::string& fault : found.whole->tensor_faults) std::cout << "  " << fault << "\n";
  for (const side_report& r : found.whole->sides) {
    if (r.accepted()) continue;
    std::cout << "  " << r.side->code_name() << ": " << r.blocks_different << " of " << r.blocks << " blocks differ\n";
    for (const auto& [kind, count] : r.kinds) std::cout << "    " << kind << ": " << count << "\n";
    if (r.rounding) print(*r.rounding, "    ");
  }
}

/// Prints the list, and which candidates cannot be told apart.
void print_list(const identified_dump& found) {
  const std::vector<dump_explanation>& all = found.all();
  std::cout << "quantizers by runs of elements explained, of " << found.looked_at();
  if (found.looked_at() < found.ranking.runs) std::cout << ", a sample of " << found.ranking.runs;
  std::cout << ":\n";
  for (const dump_explanation& e : all) {
    if (e.explained != 0) std::cout << "  " << e.explained << "  " << e.text << "\n";
  }
  if (all.front().explained == 0) {
    std::cout << "nothing explains any of it\n";
  } else if (found.tied > 1) {
    std::cout << "the first " << found.tied << (found.tied == max_listed ? " or more" : "")
              << " cannot be told apart on this input; --make-case FILE --quantizer " << all.front().preset << " "
              << format_options(all.front().how.blocks) << " writes one that tells more apart\n";
  }
}

/// Prints why no candidate explains the dump, and the best one for each orientation.
void print_unexplained(const identified_dump& found, const quantizer& q, const quantizer_dump& dump) {
  const dump_ranking& ranking = found.ranking;
  if (!ranking.unlike_random.empty() && !found.explains_half()) {
    std::cout << "all elements are neighbours under " << ranking.unlike_random
              << "; their frequencies are not those of " << q.options.random_count
              << "-bit words (--random-bits; compare for the deviation)\n";
    return;
  }
  for (std::size_t i = 0; i < ranking.sides.size(); ++i) {
    std::cout << dump.sides[i].code_name() << " alone: ";
    if (ranking.sides[i].explained == 0) {
      std::cout << "nothing explains any of it\n";
    } else {
      std::cout << ranking.sides[i].explained << "  " << ranking.sides[i].text << "\n";
    }
  }
  if (!found.explains_half() && found.all().front().explained != 0)
    std::cout << "nothing that was tried explains half of this dump (docs/reference/validate.md)\n";
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

/// The options that compare a dump with this candidate.
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

void write_report(const std::string& path, const std::string& input, const std::string& preset,
                  const identified_dump& found, const quantizer_dump& dump, const std::vector<std::string>& notes) {
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
    j["alone"][dump.sides[i].code_name()] = e.explained != 0 ? json_of(e) : nlohmann::ordered_json();
  }
  if (!found.ranking.unlike_random.empty()) j["unlike_random"] = found.ranking.unlike_random;
  if (found.whole && !found.accepted) add_to(j, *found.whole);
  j["notes"] = notes;
  validate::write_report(path, j);
}

/// Options of byte orders, details and random words.
void add_byte_options(CLI::App& app, quantizer_options& o, const char* group) {
  const auto is_one_of = [](std::vector<std::string> all) { return CLI::IsMember(std::move(all)); };
  app.add_option("--code-placement", o.code_order, "order of the codes' bytes")
      ->check(is_one_of(names(placement{})))
      ->capture_default_str()
      ->group(group);
  app.add_option("--scale-placement", o.scale_order, "order of the scales' bytes")
      ->check(is_one_of(names(placement{})))
      ->capture_default_str()
      ->group(group);
  app.add_option("--detail", o.details, "what presets do not have, may be repeated: rotated_bf16, amax_bf16, ...")
      ->delimiter(',')
      ->group(group);
  app.add_option("--nibbles", o.nibbles,
                 "half of a byte that holds the even element: low or high; halves: elements j and j + length / 2")
      ->check(is_one_of({"low", "high", "halves"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--scale-padding", o.scale_padding, "required byte in the padding of scales, 0 to 255, or any")
      ->capture_default_str()
      ->group(group);
  app.add_option("--random-seed", o.seed, "Philox seed of stochastic rounding (docs/reference/numerics.md)")
      ->group(group);
  app.add_option("--random-stream", o.stream, "Philox stream")->group(group);
  app.add_option("--random-bits", o.random_count, "bits used of each word")
      ->check(CLI::Range(1, 32))
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void add_quantizer_options(CLI::App& app, quantizer_options& o) {
  const char* group = "Quantizer dumps (x, codes and scales, codes_t and scales_t, factor, amax, random)";
  const auto is_one_of = [](std::vector<std::string> all) { return CLI::IsMember(std::move(all)); };
  app.add_option("--quantizer", o.preset, "check a quantizer's dump against this preset (see --list-quantizers)")
      ->group(group);
  app.add_flag("--list-quantizers", o.list, "name all presets")->group(group);
  app.add_option("--format", o.format,
                 "format if dtypes do not determine it: of blocks (mxfp4, mxfp8_e4m3, nvfp4, fp8_e4m3 ...) or of "
                 "elements (e2m1 ...)")
      ->group(group);
  app.add_option("--rotation", o.rotation, "points of the rotation; 0: none")->group(group);
  app.add_option("--signs", o.signs, "signs of the rotation: a hexadecimal word for each 32 elements, in order")
      ->group(group);
  app.add_option("--scale-rule", o.rule, "floor, ceil, even or rceil")->group(group);
  app.add_option("--policy", o.policy, "treatment of zeros, NaN and Inf, by implementation")->group(group);
  app.add_option("--rounding", o.rounding,
                 "rounding of elements; stochastic without words is checked by its distribution")
      ->group(group);
  app.add_option("--source", o.source, "format to which x is rounded first: fp32 (unchanged), bf16 or fp16")
      ->transform(CLI::Validator(one_format_of(float_formats), ""))
      ->group(group);
  app.add_option("--x-format", o.x_format, "for --make-case: type of x")
      ->transform(CLI::Validator(one_format_of(float_formats), ""))
      ->capture_default_str()
      ->group(group);
  app.add_option("--axis", o.axis,
                 "for --make-case: axis of the blocks: row (adds codes), column (adds codes_t) or both")
      ->check(is_one_of({"row", "column", "both"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--factor", o.factor, "factor of the tensor (NVFP4, FP8); replaces the file's")->group(group);
  app.add_option("--block-rows", o.block_rows, "rows that share a scale: 1, or 32 for square blocks")
      ->check(CLI::Range(1, 256))
      ->capture_default_str()
      ->group(group);
  add_byte_options(app, o, group);
}

int check_quantizer(const quantizer_options& o, const io::safetensors_file& file, const std::string& report,
                    thread_pool& pool) {
  const auto [dump, q] = load_case(o, file, pool);
  refuse_idle_options(o.given, q, dump, verb::compare);
  std::optional<std::uint8_t> padding;
  if (o.scale_padding != "any") {
    std::uint8_t byte = 0;
    const char* end = o.scale_padding.data() + o.scale_padding.size();
    const auto [stop, error] = std::from_chars(o.scale_padding.data(), end, byte);
    if (error != std::errc() || stop != end)
      throw io::error("--scale-padding", "'" + o.scale_padding + "' is neither 'any' nor a byte");
    padding = byte;
  }
  const dump_report result = check_dump(q, dump, padding, pool);
  const std::vector<std::string> notes = notes_on(q, dump, verb::compare);
  print_notes(notes);
  for (const std::string& fault : result.tensor_faults) std::cout << fault << "\n";
  for (const side_report& side : result.sides) print(side);
  if (!report.empty()) write_report(report, file.name(), q, result, notes);
  return result.accepted() ? 0 : 1;
}

/// Do as many rows as a block is long have equal scales, everywhere?
static bool may_be_square(const quantizer& q, const quantizer_dump& dump) {
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
static std::optional<int> identify_square_blocks(const quantizer_options& o, const io::safetensors_file& file,
                                                 index_t sample, int length, const std::string& report,
                                                 thread_pool& pool) {
  quantizer_options square = o;
  square.block_rows = length;
  try {
    const auto [dump, q] = load_case(square, file, pool);
    const dump_ranking ranking = identify_dump(o.preset.empty() ? nullptr : &q, q, {}, dump, sample, 1, pool);
    if (ranking.all.front().explained != static_cast<index_t>(ranking.all.front().which.size())) return std::nullopt;
  } catch (const io::error&) {  // no whole blocks of so many rows
    return std::nullopt;
  }
  return identify_quantizer(square, file, sample, report, pool);
}

int identify_quantizer(const quantizer_options& o, const io::safetensors_file& file, index_t sample,
                       const std::string& report, thread_pool& pool) {
  const auto [dump, q] = load_case(o, file, pool);
  refuse_idle_options(o.given, q, dump, verb::identify);
  const bool named = !o.preset.empty();
  const fixed_fields fixed = named ? fixed_fields{}
                                   : fixed_fields{!o.rotation.empty(), !o.rule.empty(), !o.policy.empty(),
                                                  !o.rounding.empty(), !o.source.empty()};
  identified_dump found{identify_dump(named ? &q : nullptr, q, fixed, dump, sample, max_listed, pool), 0, 0, {}, false};
  const std::vector<dump_explanation>& all = found.all();
  while (all.front().explained != 0 && found.tied < all.size() && all[found.tied].which == all.front().which)
    ++found.tied;
  check_wholly(found, dump, pool);
  if (!found.accepted && o.block_rows == 1 && may_be_square(q, dump)) {
    if (const auto code = identify_square_blocks(o, file, sample, q.blocks.length, report, pool)) return *code;
  }
  const std::vector<std::string> notes = notes_on(q, dump, verb::identify);
  print_notes(notes);
  print_list(found);
  if (found.explains_half() && all[found.best].how.hadamard_factor)
    std::cout << "options: " << options_to_paste(all[found.best]) << "\n";
  found.explains_sample() ? print_whole(found) : print_unexplained(found, q, dump);
  if (!report.empty()) write_report(report, file.name(), o.preset, found, dump, notes);
  return found.accepted ? 0 : 1;
}

void list_quantizers() { std::cout << list_presets(); }

}  // namespace rotoscale::validate
