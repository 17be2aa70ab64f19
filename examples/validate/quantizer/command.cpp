// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "command.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iostream>

#include "../applicable.hpp"
#include "../format_names.hpp"
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

void write_report(const std::string& path, const std::string& input, const quantizer& q, const dump_report& report) {
  nlohmann::ordered_json j;
  j["input"] = input;
  j["quantizer"] = q.name;
  // What unknown words rounded is accepted, not known to be identical.
  j[q.has_unknown_words() ? "accepted" : "identical"] = report.accepted();
  j["tensor_faults"] = report.tensor_faults;
  for (const side_report& r : report.sides) {
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
    j[r.side->code_name()] = side;
  }
  io::write_file_atomically(path, j.dump(2) + "\n");
}

/// What the dump holds that a reader may take for something else.
void print_notes(const quantizer& q, const quantizer_dump& dump, verb v) {
  // A comparison has refused them: other placements may explain an identified dump.
  for (const dump_side& side : dump.sides) {
    for (const bool of_scales : {false, true}) {
      if (const std::string fault = shape_fault(q, side, of_scales); !fault.empty())
        std::cout << "note: " << (of_scales ? side.scale_name() : side.code_name()) << ": " << fault << "\n";
    }
  }
  if (v == verb::compare && q.is_per_tensor() && q.assumed != assumed_factor::none) {
    std::printf("note: there is no factor: %.9g is assumed%s\n", static_cast<double>(q.options.encode_factor),
                q.assumed == assumed_factor::amax ? ", of tensor 'amax'" : "");
  }
  if (q.is_per_tensor() || !(q.blocks.scale == formats::ue4m3)) return;
  for (const dump_side& side : dump.sides) {
    const std::vector<std::uint8_t> scales = dense_scales(q, side).value_or(std::vector<std::uint8_t>{});
    const auto count = std::count_if(scales.begin(), scales.end(), [](std::uint8_t scale) { return scale > 0x7F; });
    if (count == 0) continue;
    std::cout << "note: " << count << " bytes of " << side.scale_name()
              << " have their top bit set, which UE4M3 does not have\n";
  }
}

/// Those that explain the sample, on all of the dump: runs outside of the sample, repeated scales, factor and amax. One
/// that explains that as well is said, if it is not the first.
int check_wholly(const std::vector<dump_explanation>& ranked, const quantizer_dump& dump, thread_pool& pool) {
  const dump_report first = check_dump(ranked.front().how, dump, std::nullopt, pool);
  if (first.accepted()) return 0;
  for (std::size_t i = 1; i < ranked.size() && ranked[i].explained == ranked.front().explained; ++i) {
    if (!check_dump(ranked[i].how, dump, std::nullopt, pool).accepted()) continue;
    std::cout << "all of the dump: " << ranked[i].text << "\n";
    return 0;
  }
  std::cout << "but not all of the dump:\n";
  for (const std::string& fault : first.tensor_faults) std::cout << "  " << fault << "\n";
  for (const side_report& r : first.sides) {
    if (r.accepted()) continue;
    std::cout << "  " << r.side->code_name() << ": " << r.blocks_different << " of " << r.blocks << " blocks differ\n";
    for (const auto& [kind, count] : r.kinds) std::cout << "    " << kind << ": " << count << "\n";
    if (r.rounding) print(*r.rounding, "    ");
  }
  return 1;
}

/// Of a dump that nothing explains in one way: what explains most of each orientation.
void print_sides(const dump_ranking& ranking, const quantizer_dump& dump) {
  for (std::size_t i = 0; i < ranking.sides.size(); ++i) {
    std::cout << dump.sides[i].code_name() << " alone: " << ranking.sides[i].explained << "  " << ranking.sides[i].text
              << "\n";
  }
}

}  // namespace

void add_quantizer_options(CLI::App& app, quantizer_options& o) {
  const char* group = "Quantizer dumps (x, codes and scales, codes_t and scales_t, factor, amax, random)";
  const auto is_one_of = [](std::vector<std::string> all) { return CLI::IsMember(std::move(all)); };
  app.add_option("--quantizer", o.preset, "check a quantizer's dump against this preset (see --list-quantizers)")
      ->group(group);
  app.add_flag("--list-quantizers", o.list, "name all presets")->group(group);
  app.add_option("--format", o.format,
                 "where dtypes leave it open, of the blocks (mxfp4, mxfp8_e4m3, nvfp4, fp8_e4m3 ...) or of the "
                 "elements (e2m1 ...)")
      ->group(group);
  app.add_option("--rotation", o.rotation, "points of the rotation; 0: none")->group(group);
  app.add_option("--signs", o.signs, "its signs: words of 32 elements in hexadecimal, the first elements first")
      ->group(group);
  app.add_option("--scale-rule", o.rule, "floor, ceil, even or rceil")->group(group);
  app.add_option("--policy", o.policy, "blocks of zeros, NaN and Inf, by the implementation's name")->group(group);
  app.add_option("--rounding", o.rounding, "of elements; stochastic needs words, or is checked by its distribution")
      ->group(group);
  app.add_option("--source", o.source, "what x is rounded to first: fp32 (as it is), bf16 or fp16")
      ->transform(CLI::Validator(one_format_of(float_formats), ""))
      ->group(group);
  app.add_option("--x-format", o.x_format, "for --make-case: what x is stored as")
      ->transform(CLI::Validator(one_format_of(float_formats), ""))
      ->capture_default_str()
      ->group(group);
  app.add_option("--axis", o.axis,
                 "for --make-case: what blocks lie along, and so which codes are added: row, column or both")
      ->check(is_one_of({"row", "column", "both"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--factor", o.factor, "of the tensor (NVFP4, FP8), instead of the file's")->group(group);
  app.add_option("--block-rows", o.block_rows, "rows that share a scale: 1, or 32 for square blocks")
      ->check(CLI::Range(1, 256))
      ->capture_default_str()
      ->group(group);
  app.add_option("--code-placement", o.code_order, "order of the codes' bytes")
      ->check(is_one_of(names(placement{})))
      ->capture_default_str()
      ->group(group);
  app.add_option("--scale-placement", o.scale_order, "order of the scales' bytes")
      ->check(is_one_of(names(placement{})))
      ->capture_default_str()
      ->group(group);
  app.add_option("--nibbles", o.nibbles, "half of a byte that holds the even element: low or high")
      ->check(is_one_of({"low", "high"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--scale-padding", o.scale_padding, "what padded scale bytes must hold, 0 to 255, or any")
      ->capture_default_str()
      ->group(group);
  app.add_option("--random-seed", o.seed, "Philox seed of stochastic rounding (docs/numerics.md)")->group(group);
  app.add_option("--random-stream", o.stream, "its stream")->group(group);
  app.add_option("--random-bits", o.random_count, "bits of a word that are used")
      ->check(CLI::Range(1, 32))
      ->capture_default_str()
      ->group(group);
}

int check_quantizer(const quantizer_options& o, const io::safetensors_file& file, const std::string& report,
                    thread_pool& pool) {
  const auto [dump, q] = load_case(o, file);
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
  if (!report.empty()) write_report(report, file.name(), q, result);
  print_notes(q, dump, verb::compare);
  for (const std::string& fault : result.tensor_faults) std::cout << fault << "\n";
  for (const side_report& side : result.sides) print(side);
  return result.accepted() ? 0 : 1;
}

int identify_quantizer(const quantizer_options& o, const io::safetensors_file& file, index_t sample,
                       thread_pool& pool) {
  const auto [dump, q] = load_case(o, file);
  refuse_idle_options(o.given, q, dump, verb::identify);
  constexpr std::size_t max_listed = 20;
  const bool named = !o.preset.empty();
  const fixed_fields fixed = named ? fixed_fields{}
                                   : fixed_fields{!o.rotation.empty(), !o.rule.empty(), !o.policy.empty(),
                                                  !o.rounding.empty(), !o.source.empty()};
  const dump_ranking ranking = identify_dump(named ? &q : nullptr, q, fixed, dump, sample, max_listed, pool);
  print_notes(q, dump, verb::identify);
  const std::vector<dump_explanation>& all = ranking.all;
  const dump_explanation& best = all.front();
  const auto looked_at = static_cast<index_t>(best.which.size());
  std::cout << "quantizers by runs of elements explained, of " << looked_at;
  if (looked_at < ranking.runs) std::cout << ", a sample of " << ranking.runs;
  std::cout << ":\n";
  for (const dump_explanation& e : all) {
    if (e.explained != 0) std::cout << "  " << e.explained << "  " << e.text << "\n";
  }
  std::size_t same = 0;
  while (same < all.size() && all[same].which == best.which) ++same;
  if (best.explained == 0) {
    std::cout << "nothing explains any of it\n";
  } else if (same > 1) {
    std::cout << "the first " << same << (same == max_listed ? " or more" : "")
              << " cannot be told apart on this input; --make-case --quantizer writes one that tells more apart\n";
  }
  if (best.explained == looked_at) return check_wholly(all, dump, pool);
  if (!ranking.unlike_random.empty() && 2 * best.explained < looked_at) {
    std::cout << "all elements are neighbours under " << ranking.unlike_random
              << "; their frequencies are not those of " << q.options.random_count
              << "-bit words (--random-bits; compare for the deviation)\n";
    return 1;
  }
  print_sides(ranking, dump);
  if (2 * best.explained < looked_at && best.explained != 0) {
    std::cout << "no more than that: of what was tried (docs/validate.md), nothing made this dump\n";
  }
  return 1;
}

void list_quantizers() { std::cout << list_presets(); }

}  // namespace rotoscale::validate
