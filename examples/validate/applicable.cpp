// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "applicable.hpp"

#include <algorithm>
#include <string_view>

#include "rotoscale/io/error.hpp"
#include "rotoscale/names.hpp"

namespace rotoscale::validate {

namespace {

/// An option and the verbs, by their letters, for which it has a meaning.
struct option_use {
  std::string_view name, gemms, dumps;
};

constexpr option_use uses[] = {{"--model", "cfm", ""},
                               {"--kernel", "cif", ""},
                               {"--input", "cif", "ci"},
                               {"--tensor", "cif", "ci"},
                               {"--report", "cif", "ci"},
                               {"--nan", "cif", ""},
                               {"--a-format", "cifm", ""},
                               {"--b-format", "cifm", ""},
                               {"--scale-format", "cif", ""},
                               {"--scale-layout", "cif", ""},
                               {"--promotion", "cif", ""},
                               {"--split-k", "cif", ""},
                               {"--split-grain", "cif", ""},
                               {"--split-run", "cif", ""},
                               {"--split-order", "cif", ""},
                               {"--split-sum", "cif", ""},
                               {"--output-rounding", "cif", ""},
                               {"--epilogue-c", "cif", ""},
                               {"--alpha", "cif", ""},
                               {"--beta", "cif", ""},
                               {"--output", "cif", ""},
                               {"--add-after-rounding", "cif", ""},
                               {"--transposed-d", "cif", ""},
                               {"--ignore", "cifm", ""},
                               {"--identify", "i", "i"},
                               {"--tell-apart", "if", ""},
                               {"--fit", "f", ""},
                               {"--sample", "if", "i"},
                               {"--make-case", "m", "m"},
                               {"--m", "m", "m"},
                               {"--n", "m", ""},
                               {"--k", "m", "m"},
                               {"--kind", "m", ""},
                               {"--seed", "ifm", "m"},
                               {"--with-d", "ifm", "m"},
                               {"--quantizer", "", "cim"},
                               {"--format", "", "cim"},
                               {"--rotation", "", "cim"},
                               {"--signs", "", "cim"},
                               {"--scale-rule", "", "cim"},
                               {"--policy", "", "cim"},
                               {"--rounding", "", "cim"},
                               {"--source", "", "cim"},
                               {"--x-format", "", "m"},
                               {"--axis", "", "m"},
                               {"--factor", "", "cim"},
                               {"--block-rows", "", "cim"},
                               {"--code-placement", "", "cim"},
                               {"--scale-placement", "", "cim"},
                               {"--nibbles", "", "cim"},
                               {"--detail", "", "cim"},
                               {"--scale-padding", "", "c"},
                               {"--random-seed", "", "cim"},
                               {"--random-stream", "", "cim"},
                               {"--random-bits", "", "cim"}};

std::string list_of(std::string_view verbs) {
  std::string all;
  for (const char v : verbs) {
    const std::string_view name = v == 'c'   ? "comparisons"
                                  : v == 'i' ? "--identify"
                                  : v == 'f' ? "--fit"
                                             : "--make-case";
    all += (all.empty() ? "" : v == verbs.back() ? " and " : ", ") + std::string(name);
  }
  return all;
}

bool has(const option_names& given, std::string_view name) {
  return std::find(given.begin(), given.end(), name) != given.end();
}

/// An option, whether it would have no effect, and the reason.
struct idle_option {
  const char* name;
  bool idle;
  std::string reason;
};

/// Does --identify try other values of this option? It tries all that the command line leaves open; with --quantizer it
/// starts from the preset and tries all.
bool tries(const option_names& given, verb v, std::string_view name) {
  return v == verb::identify && (has(given, "--quantizer") || !has(given, name));
}

/// Does the program read the words of stochastic rounding, if there are any?
bool reads_words(const quantizer& q, const option_names& given, verb v) {
  return q.options.rounding == rounding::stochastic || (tries(given, v, "--rounding") && q.has_words);
}

/// Options without effect, for example options of blocks for a format without blocks.
std::vector<idle_option> idle_in(const quantizer& q, const quantizer_dump& dump, const option_names& given, verb v) {
  std::vector<idle_option> all;
  for (const char* name :
       {"--rotation", "--signs", "--scale-rule", "--policy", "--scale-placement", "--scale-padding", "--block-rows"})
    all.push_back({name, q.is_per_tensor(), "is for blocks; FP8 with one factor a tensor has none"});
  const bool has_factor = q.is_per_tensor() || !q.blocks.has_e8m0_scale();
  all.push_back({"--scale-rule", has_factor, "is for scales of powers of two"});
  all.push_back({"--factor", !has_factor, "is for NVFP4 and for FP8 with one factor a tensor"});
  const bool tries_rotations = tries(given, v, "--rotation"), tries_roundings = tries(given, v, "--rounding");
  all.push_back({"--signs", q.options.rotation.points == 0 && !tries_rotations, "is for a rotation"});
  const auto asks = [&](bool quantizer_details::*detail) { return q.details.*detail; };
  const bool may_rotate = q.options.rotation.points != 0 || tries_rotations;
  all.push_back({"--detail", asks(&quantizer_details::rotated_bf16) && !may_rotate, "rotated_bf16 is for a rotation"});
  all.push_back({"--detail", q.is_per_tensor() && (asks(&quantizer_details::rotated_bf16) ||
                                                   asks(&quantizer_details::amax_bf16)),
                 "rotated_bf16 and amax_bf16 are for blocks"});
  all.push_back({"--detail", q.details.replaces_rule() && has_factor,
                 "nearest_scale and nearest_log2 are for scales of powers of two"});
  all.push_back({"--detail", asks(&quantizer_details::zero_under_zero) && (!has_factor || q.is_per_tensor()),
                 "zero_under_zero is for floating-point scales"});
  all.push_back({"--detail", asks(&quantizer_details::overflow_nan) && !q.is_per_tensor(),
                 "overflow_nan is for FP8 with one factor a tensor"});
  all.push_back({"--nibbles", storage_bits(q.blocks.element) != 4, "is for elements of 4 bits"});
  const bool stochastic = reads_words(q, given, v);
  for (const char* name : {"--random-seed", "--random-stream"})
    all.push_back({name, !stochastic, "is for --rounding stochastic"});
  all.push_back({"--random-bits", !stochastic && !tries_roundings, "is for --rounding stochastic"});
  for (const char* name : {"--random-seed", "--random-stream"})
    all.push_back({name, !dump.random.empty(), "the words are in tensor 'random'"});
  all.push_back({"--random-stream", !has(given, "--random-seed"), "is for --random-seed"});
  all.push_back({"--random-bits", v == verb::make && !q.has_words, "is for --random-seed, or tensor 'random'"});
  return all;
}

std::vector<idle_option> idle_in(const gemm_case& x, const gemm_options& g, verb v) {
  std::vector<idle_option> all;
  for (const char* name : {"--epilogue-c", "--beta"}) all.push_back({name, !x.c, "there is no c"});
  all.push_back({"--beta", v != verb::identify && g.start_from_c, "is for a c that is added at the end: --epilogue-c"});
  for (const char* name : {"--split-grain", "--split-run", "--split-order", "--split-sum"})
    all.push_back({name, g.split_k == 1, "is for --split-k"});
  for (const char* name : {"--scale-format", "--scale-layout"})
    all.push_back({name, x.a.block == 0 && x.b.block == 0, "there are no scales"});
  return all;
}

void refuse(const option_names& given, const std::vector<idle_option>& all) {
  for (const idle_option& o : all) {
    if (o.idle && has(given, o.name)) throw io::error(o.name, o.reason);
  }
}

}  // namespace

void refuse_idle_options(const option_names& given, bool for_quantizer, verb v) {
  for (const option_use& use : uses) {
    if ((for_quantizer ? use.dumps : use.gemms).empty() && has(given, use.name))
      throw io::error(std::string(use.name), for_quantizer ? "is for GEMMs" : "is for quantizers' dumps");
  }
  for (const option_use& use : uses) {
    const std::string_view verbs = for_quantizer ? use.dumps : use.gemms;
    if (verbs.find(static_cast<char>(v)) == verbs.npos && has(given, use.name))
      throw io::error(std::string(use.name), "is for " + list_of(verbs));
  }
  if ((v != verb::identify && v != verb::fit) || has(given, "--tell-apart")) return;
  for (const char* const name : {"--seed", "--with-d"}) {
    if (has(given, name)) throw io::error(name, "is for --make-case and --tell-apart");
  }
}

void refuse_idle_options(const option_names& given, const quantizer& q, const quantizer_dump& dump, verb v) {
  refuse(given, idle_in(q, dump, given, v));
  for (const auto& [name, given_tensor] : {std::pair{"factor", dump.factor}, std::pair{"amax", dump.amax}}) {
    if (given_tensor && !q.is_per_tensor() && q.blocks.has_e8m0_scale())
      throw io::error(dump.where, "tensor '" + std::string(name) + "': scales of powers of two have none");
  }
  if (!dump.random.empty() && !reads_words(q, given, v))
    throw io::error(dump.where, "tensor 'random': give --rounding stochastic" +
                                    std::string(v == verb::identify ? ", or no --rounding" : ""));
}

void refuse_idle_options(const option_names& given, const gemm_case& x, const gemm_options& g, verb v) {
  refuse(given, idle_in(x, g, v));
}

}  // namespace rotoscale::validate
