// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Chooses options of rotoscale-validate from a fuzzer's bytes.
#pragma once

#include <cstdint>
#include <string>

#include "byte_choices.hpp"
#include "examples/validate/quantizer/command.hpp"
#include "rotoscale/names.hpp"

namespace rotoscale::fuzz {

/// One of the names, no name, or an unknown name.
template <class T>
std::string name_of(byte_choices& in) {
  const std::size_t choice = in.byte();
  const auto known = names(T{});
  if (choice < 128) return {};
  return choice - 128 < known.size() ? known[choice - 128] : known[choice % known.size()].substr(1);
}

/// Options for quantizers' dumps, mostly valid ones.
inline validate::quantizer_options chosen_quantizer(byte_choices& in) {
  constexpr const char* formats[] = {"",           "fp8_e5m2fnuz", "e4m3fnuz", "mxfp4",  "nvfp4",
                                     "mxfp8_e4m3", "mxfp6_e2m3",   "fp8_e4m3", "mxint8", "x"};
  constexpr const char* rotations[] = {"", "", "0", "16", "32", "64", "2", "256", "3", "-1", "99999999999"};
  constexpr const char* signs[] = {"", "ffff", "0x1", "1,2,3,4,5,6,7,8", "1,2,3,4,5,6,7,8,9", "g"};
  constexpr const char* sources[] = {"", "fp32", "bf16", "fp16"};
  constexpr int heights[] = {1, 1, 32, 16, 2, 256};
  validate::quantizer_options o;
  o.preset = in.flag() ? name_of<block_options>(in) : in.flag() ? "fp8" : "";
  o.format = in.one_of(formats);
  o.rotation = in.one_of(rotations);
  o.signs = in.one_of(signs);
  o.rule = name_of<scale_rule>(in);
  o.policy = name_of<block_policy>(in);
  o.rounding = name_of<rounding>(in);
  o.source = in.one_of(sources);
  if (in.flag()) o.code_order = names(placement{})[in.byte() % names(placement{}).size()];
  if (in.flag()) o.scale_order = names(placement{})[in.byte() % names(placement{}).size()];
  o.nibbles = in.flag() ? "high" : "low";
  if (in.flag()) o.factor = fp32_from_bits(in.word());
  if (in.flag()) o.seed = in.byte();
  o.random_count = 1 + in.below(32);
  o.block_rows = in.one_of(heights);
  return o;
}

}  // namespace rotoscale::fuzz
