// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "command.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>

#include "../format_names.hpp"
#include "../ranking.hpp"
#include "fp32_scales.hpp"
#include "presets.hpp"
#include "report.hpp"
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

void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) std::cout << "note: " << note << "\n";
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
void print_unexplained(const identified_dump& found) {
  const dump_ranking& ranking = found.ranking;
  if (!ranking.unlike_random.empty() && !found.explains_half()) {
    std::cout << "all elements are neighbours under " << ranking.unlike_random
              << "; their frequencies are not those of " << found.q.options.random_count
              << "-bit words (--random-bits; compare for the deviation)\n";
    return;
  }
  for (std::size_t i = 0; i < ranking.sides.size(); ++i) {
    std::cout << found.dump.sides[i].code_name() << " alone: ";
    if (ranking.sides[i].explained == 0) {
      std::cout << "nothing explains any of it\n";
    } else {
      std::cout << ranking.sides[i].explained << "  " << ranking.sides[i].text << "\n";
    }
  }
  if (!found.explains_half() && found.all().front().explained != 0)
    std::cout << "nothing that was tried explains half of this dump (docs/reference/validate.md)\n";
}

/// Throws io::error for an option that says nothing of blocks with FP32 scales.
void refuse_idle_fp32_options(const quantizer_options& o) {
  constexpr std::string_view used[] = {"--input",    "--tensor", "--quantizer", "--detail",
                                       "--identify", "--sample", "--report",    "--threads"};
  for (const std::string& name : o.given) {
    if (std::find(std::begin(used), std::end(used), name) == std::end(used))
      throw io::error(name, "is not for FP8 with FP32 scales");
  }
  if (!o.preset.empty() && o.preset != fp32_scaled_name)
    throw io::error(o.preset_flag, "'" + o.preset + "' has no FP32 scales; " + fp32_scaled_name + " has");
}

/// "fp8_blocks" with its details, as options.
std::string fp32_options(const fp32_scaling& how) {
  std::string all = std::string("--quantizer ") + fp32_scaled_name;
  for (const std::string& detail : how.details()) all += " --detail " + detail;
  return all;
}

int check_fp32_scaled(const quantizer_options& o, const io::safetensors_file& file, const std::string& report,
                      thread_pool& pool) {
  refuse_idle_fp32_options(o);
  const fp32_scaled_dump dump(file);
  const dump_report result = dump.check(find_fp32_scaling(o.details), pool);
  for (const side_report& side : result.sides) print(side);
  if (!report.empty()) write_report(report, report_of(file.name(), fp32_scaled_name, result));
  return result.accepted() ? 0 : 1;
}

int identify_fp32_scaled(const quantizer_options& o, const io::safetensors_file& file, index_t sample,
                         const std::string& report, thread_pool& pool) {
  refuse_idle_fp32_options(o);
  if (!o.details.empty()) throw io::error("--detail", "is for comparisons; --identify tries all");
  const fp32_scaled_dump dump(file);
  const std::vector<fp32_scaled_dump::explanation> all = dump.identify(sample, pool);
  const index_t looked_at = std::min(sample, dump.blocks());
  std::cout << "quantizers by blocks explained, of " << looked_at;
  if (looked_at < dump.blocks()) std::cout << ", a sample of " << dump.blocks();
  std::cout << ":\n";
  nlohmann::ordered_json candidates = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < std::min(max_listed, all.size()) && all[i].explained != 0; ++i) {
    std::cout << "  " << all[i].explained << "  " << fp32_options(all[i].how) << "\n";
    candidates.push_back({{"explained", all[i].explained}, {"options", fp32_options(all[i].how)}});
  }
  if (all.front().explained == 0) std::cout << "nothing explains any of it\n";
  const dump_report result = dump.check(all.front().how, pool);
  if (2 * all.front().explained >= looked_at) std::cout << "options: " << fp32_options(all.front().how) << "\n";
  if (all.front().explained == looked_at && !result.accepted()) {
    std::cout << "but not all of the dump:\n";
    for (const side_report& side : result.sides) print(side);
  }
  if (!report.empty()) {
    nlohmann::ordered_json j = report_of(file.name(), fp32_scaled_name, result);
    j["candidates"] = candidates;
    write_report(report, j);
  }
  return result.accepted() ? 0 : 1;
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
  app.add_option("--detail", o.details, "arithmetic beyond presets, may be repeated: rotated_bf16, amax_bf16, ...")
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

int run_check(const quantizer_options& o, const io::safetensors_file& file, const std::string& report,
              thread_pool& pool) {
  if (fp32_scaled_dump::is_one(file)) return check_fp32_scaled(o, file, report, pool);
  const checked_dump found = check_quantizer(o, file, pool);
  print_notes(found.notes);
  for (const std::string& fault : found.result.tensor_faults) std::cout << fault << "\n";
  for (const side_report& side : found.result.sides) print(side);
  if (!report.empty()) write_report(report, report_of(file.name(), found));
  return found.result.accepted() ? 0 : 1;
}

int run_identify(const quantizer_options& o, const io::safetensors_file& file, index_t sample,
                 const std::string& report, thread_pool& pool) {
  if (fp32_scaled_dump::is_one(file)) return identify_fp32_scaled(o, file, sample, report, pool);
  const identified_dump found = identify_quantizer(o, file, sample, pool);
  const std::vector<dump_explanation>& all = found.all();
  print_notes(found.notes);
  print_list(found);
  if (found.explains_half() && all[found.best].how.hadamard_factor)
    std::cout << "options: " << options_to_paste(all[found.best]) << "\n";
  found.explains_sample() ? print_whole(found) : print_unexplained(found);
  if (!report.empty()) write_report(report, report_of(file.name(), o.preset, found));
  return found.accepted ? 0 : 1;
}

void list_quantizers() { std::cout << list_presets() << list_fp32_details(); }

}  // namespace rotoscale::validate
