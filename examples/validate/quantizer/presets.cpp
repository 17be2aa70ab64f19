// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "presets.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "../format_names.hpp"

namespace rotoscale::validate {

namespace {

constexpr const char* per_tensor_name = "fp8";

template <class T>
T named(const char* flag, const std::string& text) {
  T value{};
  if (from_string(text, value)) return value;
  throw io::error(flag, "'" + text + "' is unknown" + io::did_you_mean(text, names(T{})));
}

template <class T>
T number_of(const char* flag, std::string_view text, int base = 10) {
  T value{};
  if (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) text.remove_prefix(2);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size() || text.empty())
    throw io::error(
        flag, "'" + std::string(text) + "' is no number" + (base == 16 ? " of hexadecimal digits" : "") + " in range");
  return value;
}

/// Overrides the preset's fields with the command line's.
void apply(const quantizer_options& o, quantizer& q) {
  block_options& b = q.options;
  if (!o.rotation.empty()) b.rotation.points = number_of<int>("--rotation", o.rotation);
  std::size_t word = 0;
  for (std::size_t at = 0; at < o.signs.size(); ++word) {
    const std::size_t comma = std::min(o.signs.find(',', at), o.signs.size());
    if (word == std::size(b.rotation.signs)) throw io::error("--signs", "more than 256 signs");
    b.rotation.signs[word] = number_of<std::uint32_t>("--signs", std::string_view(o.signs).substr(at, comma - at), 16);
    at = comma + 1;
  }
  // A mask shorter than a run is repeated, for this run and for other rotations that are tried.
  if (word == 1) {
    if (b.rotation.signs[0] >> 16 == 0) b.rotation.signs[0] |= b.rotation.signs[0] << 16;
    for (std::uint32_t& other : b.rotation.signs) other = b.rotation.signs[0];
  }
  if (!o.rule.empty()) b.rule = named<scale_rule>("--scale-rule", o.rule);
  if (!o.policy.empty()) b.policy = named<block_policy>("--policy", o.policy);
  if (!o.rounding.empty()) b.rounding = named<rounding>("--rounding", o.rounding);
  if (!o.source.empty()) b.source = *find_format(o.source, float_formats);
  for (const std::string& name : o.details) {
    std::vector<std::string> known;
    for (const named_detail& d : all_details) {
      known.emplace_back(d.name);
      if (name == d.name) q.details.*d.member = true;
    }
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw io::error("--detail", "'" + name + "' is unknown" + io::did_you_mean(name, known));
  }
  b.random_count = o.random_count;
  if (o.seed) b.random = {*o.seed, o.stream};
  q.has_words = o.seed.has_value();
}

/// A quantizer with formats, placements and factor, before any preset.
quantizer base_of(const quantizer_options& o, block_format blocks, float factor) {
  quantizer q;
  q.name = "no preset";
  q.blocks = blocks;
  q.options.encode_factor = o.factor.value_or(factor);
  q.code_order = named<placement>("--code-placement", o.code_order);
  q.scale_order = named<placement>("--scale-placement", o.scale_order);
  q.nibbles = o.nibbles == "low"    ? nibble_order::low
              : o.nibbles == "high" ? nibble_order::high
                                    : nibble_order::halves;
  return q;
}

quantizer with_options(const quantizer& base, std::string_view name, block_options options) {
  quantizer q = base;
  q.name = name;
  options.encode_factor = base.options.encode_factor;
  q.options = options;
  q.hadamard_factor = true;
  return q;
}

}  // namespace

void check_defined(const quantizer& q, const quantizer_dump& dump) {
  if (q.is_per_tensor()) {
    if (!(q.options.encode_factor > 0) || !std::isfinite(q.options.encode_factor))
      throw io::error("--factor", "must be finite and above zero");
    return;
  }
  if (!runs_are_defined(q.blocks, q.options.rotation))
    throw io::error("--rotation", std::to_string(q.options.rotation.points) +
                                      " is no power of two from 2 to 256 that fits the blocks");
  if (!options_are_defined(q.blocks, q.options))
    throw io::error("--factor",
                    "the factor must be finite and above zero, and the policy's bytes numbers of the scale");
  for (const dump_side& side : dump.sides) {
    if (side.k % q.tile_k() != 0)
      throw io::error("--rotation",
                      "K = " + std::to_string(side.k) + " is no multiple of " + std::to_string(q.tile_k()));
  }
}

std::pair<quantizer_dump, quantizer> load_case(const quantizer_options& o, const io::safetensors_file& file,
                                               thread_pool& pool) {
  block_format blocks;
  quantizer_dump dump = load_dump(file, o.format, o.block_rows, blocks, pool);
  if (!o.factor && dump.factor && !(*dump.factor > 0 && std::isfinite(*dump.factor)))
    throw io::error(file.name(), "tensor 'factor': must be finite and above zero");
  if (dump.amax && !(*dump.amax >= 0)) throw io::error(file.name(), "tensor 'amax': is NaN or below zero");
  quantizer q = quantizer_of(o, blocks, dump.factor.value_or(1.0f));
  q.has_words = q.has_words || !dump.random.empty();
  check_defined(q, dump);
  if (!o.factor && !dump.factor) {
    take_own_factor(q, dump, pool);
    check_defined(q, dump);
  }
  return {std::move(dump), std::move(q)};
}

std::vector<quantizer> all_presets(const quantizer& base) {
  if (base.is_per_tensor()) return {with_options(base, per_tensor_name, {})};
  std::vector<quantizer> all;
  for (const auto& preset : enum_names<block_options>::table) {
    if (options_are_defined(base.blocks, preset.value)) all.push_back(with_options(base, preset.name, preset.value));
  }
  return all;
}

quantizer find_preset(const std::string& name, const quantizer& base, const char* flag) {
  std::vector<std::string> known;
  for (const quantizer& q : all_presets(base)) {
    if (q.name == name) return q;
    known.push_back(q.name);
  }
  if (name == per_tensor_name)
    throw io::error(flag,
                    "'fp8' has one factor a tensor and no blocks: --format fp8_e4m3, fp8_e5m2 or of FNUZ");
  const std::string kind = base.is_per_tensor() ? "FP8 with one factor a tensor" : "these blocks";
  const auto shipped = names(block_options{});
  if (std::find(shipped.begin(), shipped.end(), name) != shipped.end()) {
    std::string all;
    for (const std::string& other : known) all += (all.empty() ? "" : ", ") + other;
    throw io::error(flag, "no preset '" + name + "' for " + kind + "; they have " + all);
  }
  throw io::error(flag, "no preset '" + name + "' for " + kind + io::did_you_mean(name, known));
}

quantizer quantizer_of(const quantizer_options& o, block_format blocks, float factor) {
  const quantizer base = base_of(o, blocks, factor);
  quantizer q = o.preset.empty() ? base : find_preset(o.preset, base, o.preset_flag);
  apply(o, q);
  return q;
}

block_format find_blocks(const std::string& name, int rows) {
  block_format f;
  if (from_string(name, f)) {
    f.rows = rows;
    return f;
  }
  if (const auto element = find_format(name, block_elements)) return {*element, 32, formats::e8m0, rows};
  std::vector<std::string> known = names(block_format{});
  for (const format& element : fp8_formats) {
    known.push_back("fp8_" + std::string(to_string(element)));
    if (name == known.back()) return {element, 0};
  }
  for (const format& element : block_elements) known.emplace_back(to_string(element));
  throw io::error("--format", "'" + name + "' is no format" + io::did_you_mean(name, known));
}

std::string format_options(block_format blocks) {
  const int rows = blocks.rows;
  blocks.rows = 1;
  std::string name(to_string(blocks.element));
  if (blocks.length == 0) name = "fp8_" + name;
  for (const auto& known : enum_names<block_format>::table) {
    if (known.value == blocks) name = known.name;
  }
  return "--format " + name + (rows == 1 ? "" : " --block-rows " + std::to_string(rows));
}

std::string list_presets() {
  std::string text = "quantizers:\n";
  for (const auto& preset : enum_names<block_options>::table) {
    const block_options& o = preset.value;
    text += "  " + std::string(preset.name) + ": ";
    text += o.rotation.points == 0 ? "no rotation" : "rotation of " + std::to_string(o.rotation.points) + " points";
    text += ", scale rule " + std::string(to_string(o.rule)) + ", policy " + std::string(to_string(o.policy));
    text += o.source == formats::bf16 ? ", source rounded to BF16\n" : "\n";
  }
  return text + "  fp8: one factor a tensor, saturating\n";
}

}  // namespace rotoscale::validate
