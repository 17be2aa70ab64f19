// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Recipes and schedules by name and file, and fractions of a run as steps.
#include "rotoscale/train/schedule.hpp"

#include <doctest/doctest.h>

#include "rotoscale/io/scratch.hpp"

namespace schedule_test {

using namespace rotoscale;
using namespace rotoscale::io::testing;
namespace train = rotoscale::train;
namespace nn = rotoscale::nn;

std::vector<std::int64_t> starts(const std::vector<nn::phase>& phases, std::int64_t steps) {
  std::vector<std::int64_t> all;
  for (const auto& p : train::resolve({"s", phases}, steps, "s")) all.push_back(p.from_step);
  return all;
}
std::string fault(const std::vector<nn::phase>& phases, std::int64_t steps) {
  return message_of([&] { train::resolve({"s", phases}, steps, "s.json"); });
}

TEST_CASE("presets by name, and the nearest name for a wrong one") {
  for (const nn::recipe& r : nn::presets::all()) {
    CHECK(train::load_recipe(r.name) == r);
    const nn::schedule s = train::load_schedule(r.name);
    CHECK(s.name == r.name);
    REQUIRE(s.phases.size() == 1);
    CHECK(s.phases[0].recipe == r.name);
  }
  CHECK(train::load_schedule("mxfp4_h16_heal").phases.size() == 2);
  CHECK(message_of([] { train::load_recipe("mxfp4_h61"); }) ==
        "recipe: 'mxfp4_h61' is neither a preset nor a file; did you mean 'mxfp4_h16'?");
  CHECK(message_of([] { train::load_schedule("mxfp4_h16_hael", "--schedule"); }) ==
        "--schedule: 'mxfp4_h16_hael' is neither a preset nor a file; did you mean 'mxfp4_h16_heal'?");
}

TEST_CASE("a phase that would never run is refused") {
  const nn::schedule late{"late", {{"mxfp4", 0.0}, {"fp8_delayed", 0.99}}};
  CHECK(message_of([&] { train::resolve(late, 10, "late.json"); }) ==
        "late.json: phases[1].at: step 10 does not come before the end of the run, 10 steps");
  CHECK(train::resolve(late, 1000, "late.json")[1].from_step == 990);
  const nn::schedule absolute{"absolute", {{"mxfp4", 0.0}, {"fp8_delayed", 340.0}}};
  CHECK(message_of([&] { train::resolve(absolute, 300, "f"); }).starts_with("f: phases[1].at: step 340"));
}

TEST_CASE("files: a recipe, a schedule, and a recipe where a schedule may stand") {
  const scratch_directory scratch;
  const std::string recipe = (scratch / "mine.json").string(), schedule = (scratch / "heal.json").string();
  put(recipe, R"({"bf16_first_layers": 2, "wgrad": {"x": {"format": "fp8_e4m3"}}})");
  const nn::recipe r = train::load_recipe(recipe);
  CHECK(r.name == "mine");
  CHECK(r.bf16_first_layers == 2);
  CHECK(r.wgrad.right.format == nn::operand_format::fp8_e4m3);
  CHECK(r.wgrad.left.format == nn::operand_format::bf16);
  CHECK(r.wgrad.output == nn::operand_format::fp32);

  put(schedule, R"({"phases": [{"recipe": "mxfp4"}, {"recipe": ")" + recipe + R"(", "at": 0.5}]})");
  const nn::schedule s = train::load_schedule(schedule);
  CHECK(s.name == "heal");
  const auto phases = train::resolve(s, 10, schedule);
  CHECK(phases[1].from_step == 5);
  CHECK(phases[1].recipe == r);

  // Another preset's fields for those missing in the file, and a backward override.
  put(recipe, R"({"base": "mxfp8", "backward_override": "dequantized", "fprop": {"x": {"scale_rule": "even"}}})");
  const nn::recipe based = train::load_recipe(recipe), mxfp8 = train::load_recipe("mxfp8");
  CHECK(based.fprop.right == mxfp8.fprop.right);
  CHECK(based.fprop.left.rule == scale_rule::even);
  CHECK(based.fprop.left.policy == mxfp8.fprop.left.policy);
  CHECK(based.dgrad.right.format == nn::operand_format::dequantized);
  put(recipe, R"({"bf16_first_layers": 2, "wgrad": {"x": {"format": "fp8_e4m3"}}})");

  const nn::schedule whole = train::load_schedule(recipe);
  CHECK(whole.name == "mine");
  REQUIRE(whole.phases.size() == 1);
  CHECK(train::resolve(whole, 10, recipe)[0].recipe == r);

  for (const auto& [text, part] :
       {std::pair{R"({"phases": []})", "phases: must not be empty"},
        {R"({"base": "mxfp4_h61"})", "base: no preset 'mxfp4_h61'; did you mean 'mxfp4_h16'?"},
        {"[]", "expected an object"}}) {
    put(schedule, text);
    const std::string message = message_of([&] { train::load_schedule(schedule); });
    CHECK(message.starts_with(schedule));
    CHECK(message.find(part) != message.npos);
  }
}

TEST_CASE("a changed format brings what belongs to it, unless the file gives it") {
  const scratch_directory scratch;
  const std::string file = (scratch / "mine.json").string();
  const auto load = [&](const std::string& text) {
    put(file, text);
    return train::load_recipe(file);
  };
  const nn::recipe bf16 =
      load(R"({"base": "mxfp4_h16", "wgrad": {"dy": {"format": "bf16"}, "x": {"format": "bf16"}}})");
  CHECK(bf16.wgrad.left == nn::operand_recipe{nn::operand_format::bf16});
  CHECK(bf16.wgrad.accumulate == nn::fp32_fma_chain_contract);
  CHECK(bf16.fprop == train::load_recipe("mxfp4_h16").fprop);
  const nn::recipe one = load(R"({"base": "mxfp4_h16", "wgrad": {"dy": {"format": "bf16"}}})");
  CHECK(one.wgrad.right.format == nn::operand_format::mxfp4);
  CHECK(one.wgrad.right.rotation == nn::rotation_recipe{});  // both operands have the same one
  const nn::recipe nvfp4 = load(R"({"fprop": {"x": {"format": "nvfp4"}, "w": {"format": "nvfp4"}}})");
  CHECK(nvfp4.fprop.left.policy == policies::nvidia);
  const nn::recipe given =
      load(R"({"base": "mxfp8", "fprop": {"x": {"format": "mxfp4", "scale_rule": "ceil", "rotation": {"points": 16}},)"
           R"( "w": {"format": "mxfp4", "rotation": {"points": 16}}, "accumulate": "fp32_blockwise"}})");
  CHECK(given.fprop.left.rule == scale_rule::ceil);
  CHECK(given.fprop.right.rule == scale_rule::even);
  CHECK(given.fprop.right.rotation.points == 16);
  CHECK(given.fprop.accumulate == nn::fp32_blockwise_contract);
}

TEST_CASE("a contract set in a file gives the contracts that the file does not name") {
  const scratch_directory scratch;
  const std::string file = (scratch / "mine.json").string();
  const auto load = [&](const std::string& text) {
    put(file, text);
    return train::load_recipe(file);
  };
  const auto renamed = [](nn::recipe r) {
    r.name = "mine";
    return r;
  };
  CHECK(load(R"({"base": "mxfp4_h16", "contracts": "hopper"})") == renamed(train::load_recipe("mxfp4_tc")));
  CHECK(load(R"({"base": "bf16_tc", "contracts": "cpu"})").fprop.accumulate == "intel-amx-bf16");
  const nn::recipe own = load(R"({"contracts": "hopper", "activations": "fp32", "dgrad": {"accumulate": "exact"},)"
                              R"( "fprop": {"x": {"format": "mxfp4"}, "w": {"format": "mxfp4"}}})");
  CHECK(own.fprop.accumulate == nn::fp32_blockwise_contract);
  CHECK(own.dgrad.accumulate == "exact");
  CHECK(own.activations == nn::operand_format::fp32);
  CHECK(own.wgrad.accumulate == "mx-bf16-sm90:split_fill=66");
  const nn::recipe back = load(R"({"base": "mxfp4", "contracts": "bf16", "backward_override": "dequantized"})");
  CHECK(back.dgrad.accumulate == "mx-bf16-sm90:split_fill=66");
  CHECK(load(io::to_json(back).dump()) == back);
  CHECK(message_of([&] { load(R"({"contracts": "native"})"); }).find("'native' is no contract set") !=
        std::string::npos);

  // A schedule's set holds for all its phases, even if their recipes name others.
  put(file, R"({"contracts": "bf16", "phases": [{"recipe": "mxfp4_tc"}, {"recipe": "fp8_amd", "at": 5, "gemms": )"
            R"("forward"}]})");
  for (const nn::resolved_phase& p : train::resolve(train::load_schedule(file), 10, file)) {
    const nn::recipe& r = p.recipe;
    CHECK(r.contracts == "bf16");
    for (const nn::gemm_recipe* g : {&r.fprop, &r.dgrad, &r.wgrad, &r.head->fprop}) {
      CHECK(g->accumulate == "mx-bf16-sm90:split_fill=66");
    }
  }
}

TEST_CASE("what a log prints is a schedule file: whole recipes and first steps") {
  const scratch_directory scratch;
  const std::string file = (scratch / "log.json").string();
  for (const char* name : {"mxfp4", "amd_lora", "heal_forward", "heal_plateau", "heal_gradient_noise"}) {
    const auto phases = train::resolve(train::load_schedule(name), 1000, name);
    const auto json = io::to_json(phases);
    put(file, json.dump());
    CHECK(io::to_json(train::resolve(train::load_schedule(file), 1000, file)) == json);
  }
  put(file, R"([{"from_step": 0, "recipe": "mxfp4_h16"}, {"from_step": 616, "recipe": "mxfp4_h16+forward:fp8_amd"}])");
  CHECK(io::to_json(train::resolve(train::load_schedule(file), 1000, file)) ==
        io::to_json(train::resolve(train::load_schedule("heal_forward"), 1000, "heal_forward")));
  put(file, R"({"phases": [{"recipe": {"base": "mxfp8", "name": "mine"}, "at": 0}]})");
  CHECK(train::resolve(train::load_schedule(file), 10, file)[0].recipe.name == "mine");
}

TEST_CASE("fractions of the run are rounded to the nearest step, numbers from 1 on are steps") {
  CHECK(starts({{"bf16", 0}}, 1) == std::vector<std::int64_t>{0});
  CHECK(starts({{"mxfp4", 0}, {"bf16", 0.62}}, 550) == std::vector<std::int64_t>{0, 341});
  CHECK(starts({{"mxfp4", 0}, {"bf16", 340}}, 550) == std::vector<std::int64_t>{0, 340});
}

TEST_CASE("phases that do not follow each other are refused") {
  CHECK(fault({{"bf16", 1}}, 10).find("must start at 0") != std::string::npos);
  CHECK(fault({{"bf16", 0}, {"mxfp4", 0.01}}, 10).find("does not come after") != std::string::npos);
  CHECK(fault({{"bf16", 0}, {"mxfp4", 5}, {"bf16", 5}}, 10).find("step 5 does not come after") != std::string::npos);
  CHECK(fault({{"bf16", 0}, {"mxfp4", 7.4}}, 10) ==
        "s.json: phases[1].at: 7.4 is neither a fraction below 1 nor a number of steps");
  CHECK(fault({{"bf16", 0}, {"mxfp4", 4, 1.5}}, 10) ==
        "s.json: phases[1].cap: 1.5 is neither a fraction below 1 nor a number of steps");
  CHECK(fault({{"bf16", 0}, {"nvfp5", 5}}, 10) ==
        "s.json: phases[1].recipe: 'nvfp5' is neither a preset nor a file; did you mean 'nvfp4'?");
}

TEST_CASE("AMD's numbers: 339 steps under MXFP4 and at most 211 under FP8 of 550") {
  const auto phases = train::resolve(train::load_schedule("amd_lora"), 550, "amd_lora");
  REQUIRE(phases.size() == 2);
  CHECK(phases[0].recipe.name == "mxfp4_h16");
  CHECK(phases[1].from_step == 339);
  CHECK(phases[1].cap == 211);
  CHECK(phases[1].scales == nn::scale_handover::reset);
  CHECK(phases[1].recipe.fp8 ==
        nn::delayed_scaling{4, nn::amax_algorithm::most_recent, 0, nn::frozen_scale::unscaled, false});
  for (const std::int64_t steps : {3, 10, 100, 1000, 1024}) {  // start and cap lose no step
    const auto p = train::resolve(train::load_schedule("amd_lora"), steps, "amd_lora");
    CHECK(p[1].from_step + p[1].cap >= steps);
  }
}

TEST_CASE("a phase may take over forward or backward GEMMs only") {
  const nn::recipe fp4 = train::load_recipe("mxfp4_h16"), fp8 = train::load_recipe("fp8_amd");
  const auto forward = train::resolve(train::load_schedule("heal_forward"), 100, "s")[1].recipe;
  CHECK((forward.fprop == fp8.fprop && forward.dgrad == fp4.dgrad && forward.wgrad == fp4.wgrad));
  CHECK(forward.name == "mxfp4_h16+forward:fp8_amd");
  CHECK(forward.fp8 == fp8.fp8);
  const auto late = [](const char* a, const char* b) {
    return train::resolve({"s", {{a}, {b, 5, 0, nn::gemm_scope::forward}}}, 10, "s.json")[1].recipe;
  };
  CHECK_FALSE(late("mxfp4_deoscillated", "bf16").deoscillation);
  CHECK(late("bf16", "mxfp4_deoscillated").deoscillation);
  const auto backward = train::resolve(train::load_schedule("heal_backward"), 100, "s")[1].recipe;
  CHECK((backward.fprop == fp4.fprop && backward.dgrad == fp8.dgrad && backward.wgrad == fp8.wgrad));
  CHECK(fault({{"bf16", 0, 0, nn::gemm_scope::forward}}, 10).starts_with("s.json: phases[0].gemms"));
}

TEST_CASE("a switch of one direction leaves the other one and the whole model as they were") {
  using enum nn::gemm_scope;
  const scratch_directory scratch;
  const auto file = [&](const char* name, const std::string& text) {
    const std::string path = (scratch / name).string();
    put(path, text);
    return path;
  };
  const std::string
      tiles = "attention-bf16-tile64x64-exp2deg3@hopper-mma-fp16-f32",
      whole = R"("activations": "bf16", "bf16_first_layers": 1, "bf16_last_layers": 2, "attention": ")" + tiles + "\"",
      head8 = R"("head": {"fprop": {"x": {"format": "mxfp8_e4m3"}}, "dgrad": {"w": {"format": "mxfp8_e5m2"}}})",
      head6 = R"("head": {"fprop": {"w": {"format": "mxfp6_e2m3"}}, "wgrad": {"x": {"format": "mxfp6_e3m2"}}})",
      old = file("old.json", R"({"base": "mxfp4_f", )" + whole + ", " + head8 + "}");
  const auto merged = [&](const std::string& before, const std::string& taken, nn::gemm_scope gemms) {
    return train::resolve({"s", {{before}, {taken, 5, 0, gemms}}}, 10, "s.json")[1];
  };
  const auto refused = [&](const std::string& before, const std::string& taken, nn::gemm_scope gemms) {
    return message_of([&] { merged(before, taken, gemms); });
  };
  const nn::recipe was = train::load_recipe(old), bf16 = train::load_recipe("bf16");
  for (const nn::gemm_scope gemms : {forward, backward}) {
    const nn::resolved_phase p = merged(old, "bf16", gemms);
    CHECK(p.gemms == gemms);
    const nn::recipe& r = p.recipe;
    CHECK((r.activations == was.activations && r.attention == tiles));
    CHECK((r.bf16_first_layers == 1 && r.bf16_last_layers == 2));
    CHECK(r.fp8 == was.fp8);
    REQUIRE(r.head);
    const nn::recipe &f = gemms == forward ? bf16 : was, &b = gemms == forward ? was : bf16;
    CHECK((r.fprop == f.fprop && r.dgrad == b.dgrad && r.wgrad == b.wgrad));
    CHECK(r.head->fprop == head_of(f).fprop);
    CHECK((r.head->dgrad == head_of(b).dgrad && r.head->wgrad == head_of(b).wgrad));
  }
  const nn::recipe both = merged(old, file("head.json", "{" + head6 + "}"), backward).recipe;
  CHECK(both.head->fprop.left.format == nn::operand_format::mxfp8_e4m3);
  CHECK(both.head->dgrad.right.format == nn::operand_format::bf16);
  CHECK(both.head->wgrad.right.format == nn::operand_format::mxfp6_e3m2);
  CHECK_FALSE(merged("mxfp4_h16", "fp8_amd", forward).recipe.head);  // BF16 in both
  CHECK(merged("mxfp4_h16", "fp32", forward).recipe.head->fprop == head_of(train::load_recipe("fp32")).fprop);

  // Fields shared by both directions must be unchanged or omitted. Another value is refused.
  CHECK(merged(old, file("same.json", "{" + whole + "}"), backward).recipe.attention == tiles);
  for (const auto& [field, text] :
       {std::pair{"activations", R"({"activations": "bf16"})"},
        {"attention", R"({"attention": "attention-bf16-tile64x64-exp2deg3@hopper-mma-fp16-f32"})"}}) {
    CHECK(refused("mxfp4", file("new.json", text), forward) ==
          "s.json: phases[1].gemms: recipe new has another " + std::string(field) +
              " than the phase before, and both directions share it");
  }
  // Delayed scaling belongs to the GEMMs that it scales.
  CHECK(refused("mxfp4_f", "fp8_delayed", forward).find("another fp8 than") != std::string::npos);
  CHECK(refused("mxfp4_d", "fp8_delayed", backward).find("another fp8 than") != std::string::npos);
  // A backward override belongs to the backward GEMMs. It requires its forward operands.
  const std::string again = file("again.json", R"({"base": "mxfp8", "backward_override": "dequantized"})");
  CHECK(merged(again, "mxfp4", forward).recipe.backward_override == nn::backward_kind::dequantized);
  CHECK(refused(again, "bf16", forward) ==
        "s.json: phases[1].gemms: dgrad.w.format: dequantized needs a quantized fprop");
  CHECK(merged("mxfp4", again, backward).recipe.backward_override == nn::backward_kind::dequantized);
  CHECK(merged(again, "mxfp4", backward).recipe.backward_override == nn::backward_kind::none);
}

TEST_CASE("the first phase has no scales to take over, and random words last for 2^24 steps") {
  for (const nn::scale_handover how : {nn::scale_handover::keep, nn::scale_handover::seed}) {
    nn::phase first{"fp8_amd"};
    first.scales = how;
    CHECK(fault({first}, 10) == "s.json: phases[0].scales: the first phase has no phase before it to take scales from");
    nn::phase second = first;
    second.at = 5;
    CHECK(train::resolve({"s", {{"mxfp4"}, second}}, 10, "s")[1].scales == how);
  }
  const std::int64_t most = 1 << 24;
  CHECK(starts({{"nvfp4"}}, most) == std::vector<std::int64_t>{0});
  CHECK(starts({{"mxfp4"}}, most + 1) == std::vector<std::int64_t>{0});
  CHECK(fault({{"nvfp4"}}, most + 1) ==
        "s.json: phases[0].recipe: nvfp4 rounds stochastically, and its random words repeat after 16777216 steps");
  CHECK(fault({{"mxfp4"}, {"nvfp4", 5}}, most + 1).starts_with("s.json: phases[1].recipe: nvfp4 rounds"));
}

TEST_CASE("caps and triggers of phases") {
  CHECK(fault({{"bf16", 0, 5}, {"mxfp4", 6}}, 10) == "s.json: phases[0].cap: only the last phase can end a run");
  CHECK(fault({{"bf16", 0, 0.01}}, 10) == "s.json: phases[0].cap: is no step of a run of 10");
  CHECK(fault({{"bf16", 0, -1}}, 10).starts_with("s.json: phases[0].cap: must not be negative"));
  CHECK(train::resolve({"s", {{"bf16", 0, 0.5}}}, 10, "s")[0].cap == 5);
  nn::phase open{"fp8_amd"}, latest{"fp8_amd", 0.5};
  open.trigger = latest.trigger = nn::trigger{};
  CHECK(starts({{"mxfp4"}, open}, 10) == std::vector<std::int64_t>{0, 10});
  CHECK(starts({{"mxfp4"}, latest, {"bf16", 0.9}}, 10) == std::vector<std::int64_t>{0, 5, 9});
  CHECK(starts({{"mxfp4"}, open, open}, 10) == std::vector<std::int64_t>{0, 10, 10});
  CHECK(fault({{"mxfp4"}, open, {"bf16", 0.9}}, 10) ==
        "s.json: phases[2].at: follows a phase whose trigger has no latest step");
  CHECK(fault({{"mxfp4"}, open, latest}, 10).starts_with("s.json: phases[2].at: follows a phase whose trigger"));
  CHECK(fault({open}, 10) == "s.json: phases[0].at: the first phase must start at 0");
}

}  // namespace schedule_test
