// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// `mini-llama recipes`: the presets by name.
#include <cmath>
#include <iomanip>
#include <ostream>
#include <string>
#include <string_view>

#include "commands.hpp"
#include "front.hpp"
#include "rotoscale/nn/presets.hpp"
#include "rotoscale/nn/schedule.hpp"

namespace rotoscale::program {
namespace {

/// One phrase for each preset; docs/reference/recipes.md has sources.
constexpr struct {
  std::string_view name, phrase;
} phrases[] = {{"fp32", "FP32 everywhere, the output head included"},
               {"bf16", "the usual baseline"},
               {"fp8_delayed", "Transformer Engine's DelayedScaling: history 1024"},
               {"fp8_amd", "AMD's MLPerf v6.0 FP8: history 4, most recent amax"},
               {"fp8_scaled_stash", "fp8_amd with scaled frozen weights"},
               {"fp8_current", "Transformer Engine's Float8CurrentScaling"},
               {"fp8_row", "E4M3, a scale for each row of an operand"},
               {"fp8_blocks", "E4M3, DeepSeek-V3's FP32 scales of 1 x 128 and 128 x 128"},
               {"mxfp8", "Transformer Engine's MXFP8BlockScaling"},
               {"nvfp4", "Transformer Engine's NVFP4BlockScaling"},
               {"nvfp4_4_6", "nvfp4 with 4/6 scales, headroom for stochastic rounding"},
               {"quartet2_h32", "Quartet II's MS-EDEN with 32-point rotations"},
               {"mxfp4", "ROCm Transformer Engine's MXFP4, no rotation"},
               {"mxfp4_h16", "16-point Hadamard rotation: AMD's MLPerf v6.0 MXFP4"},
               {"mxfp4_h16_fixed_signs", "16 points, random signs drawn once a run"},
               {"mxfp4_h16_step_signs", "16 points, random signs drawn each step"},
               {"mxfp4_h32", "32-point Hadamard rotation"},
               {"mxfp4_deoscillated", "weights in 32 x 32 blocks, de-oscillated"},
               {"mxfp6_h16", "E2M3, 16-point Hadamard rotation"},
               {"mxfp4_sr", "stochastic rounding of all operands"},
               {"mxfp4_h16_sr", "16 points, stochastic rounding of all operands"},
               {"mxfp4_sr_gradients", "stochastic rounding of dy"},
               {"mxfp4_f", "FP8 as fp8_amd in the other GEMMs"},
               {"mxfp4_fd", "FP8 as fp8_amd in the other GEMM"},
               {"mxfp4_d", "FP8 as fp8_amd in the other GEMMs"},
               {"mxfp4_w", "FP8 as fp8_amd in the other GEMMs"},
               {"mxfp4_f_sr", "mxfp4_f with stochastic rounding"},
               {"mxfp4_fd_sr", "mxfp4_fd with stochastic rounding"},
               {"mxfp4_f_step_signs", "mxfp4_f with 16 points, random signs drawn each step"},
               {"mxfp4_fd_step_signs", "mxfp4_fd with 16 points, random signs drawn each step"}};

std::string phrase_of(std::string_view recipe) {
  for (const auto& p : phrases) {
    if (p.name == recipe) return std::string(p.phrase);
  }
  for (const nn::presets::alias& a : nn::presets::aliases) {
    if (a.name == recipe) return std::string(a.recipe) + " --contracts " + a.contracts;
  }
  return "";
}

/// Without the element: fp8, mxfp8.
std::string_view family(const nn::gemm_recipe& g) {
  const std::string_view format = to_string(g.left.format);
  return format.substr(0, format.find('_'));
}

std::string text_of(const nn::phase& p) {
  std::string text = ", " + p.recipe;
  if (p.gemms != nn::gemm_scope::all) text += " in the " + std::string(to_string(p.gemms)) + " GEMMs";
  if (p.trigger) return text + " by trigger " + std::string(to_string(p.trigger->kind));
  text += " at " + std::to_string(std::lround(p.at * 100)) + " %";
  if (p.scales != nn::scale_handover::reset) text += " with scales " + std::string(to_string(p.scales));
  return text;
}

}  // namespace

int list_recipes(std::ostream& out) {
  const auto row = [&out](std::string_view name, std::string_view f, std::string_view d, std::string_view w,
                          std::string_view phrase) {
    out << std::left << std::setw(24) << name << std::setw(7) << f << std::setw(7) << d << std::setw(7) << w << phrase
        << '\n';
  };
  row("recipe", "fprop", "dgrad", "wgrad", "note");
  for (const nn::recipe& r : nn::presets::all()) {
    row(r.name, family(r.fprop), family(r.dgrad), family(r.wgrad), phrase_of(r.name));
  }
  out << "\nschedule\n";
  for (const nn::schedule& s : nn::presets::schedules()) {
    out << std::setw(24) << s.name << s.phases[0].recipe;
    for (std::size_t i = 1; i < s.phases.size(); ++i) out << text_of(s.phases[i]);
    out << '\n';
  }
  return exit_ok;
}

}  // namespace rotoscale::program
