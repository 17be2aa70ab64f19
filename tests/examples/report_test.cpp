// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// `mini-llama report` on generated logs. No model was trained for any number in this file.

#include "examples/train/report/report.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "../rotoscale/io/scratch.hpp"
#include "examples/train/report/published.hpp"
#include "report/parts.hpp"
#include "rotoscale/io/json.hpp"

namespace report_test {

namespace io = rotoscale::io;
using namespace rotoscale::io::testing;
using json = nlohmann::ordered_json;
namespace report_parts = rotoscale::program::report_parts;
using rotoscale::program::report_options;
using rotoscale::program::write_report;

/// Builds one generated log, record by record.
class log_text {
 public:
  explicit log_text(const std::string& name, const std::vector<std::pair<int, std::string>>& schedule = {},
                    int seed = 1) {
    json list = json::array();
    for (const auto& [step, recipe] : schedule.empty() ? decltype(schedule){{0, name}} : schedule) {
      list.push_back({{"from_step", step}, {"recipe", {{"name", recipe}, {"note", "generated <data>"}}}});
    }
    recipe_ = list[0]["recipe"]["name"];
    json start = json::parse(R"({"event": "start", "name": "", "version": "0.1.0", "commit": "abc123", "device": "cpu",
        "compiler": "g++ 12.2.0", "threads": 2, "seed": 0, "config": {"model": {"hidden_size": 128}, "train": {"lr": 1e-3,
        "seed": 0}}, "schedule": [], "parameters": 820000, "train_tokens": 3900000, "val_tokens": 200000})");
    start["name"] = name;
    start["seed"] = start["config"]["train"]["seed"] = seed;
    start["schedule"] = list;
    add(start);
  }

  log_text& add(const json& record) {
    text_ += record.dump() + "\n";
    return *this;
  }
  log_text& eval(int step, json loss) {
    return add({{"event", "eval"}, {"step", step}, {"tokens", step * 100}, {"val_loss", loss}, {"recipe", recipe_}});
  }
  log_text& step(int step, json loss) {
    return add({{"event", "step"},
                {"step", step},
                {"loss", loss},
                {"tokens", step * 100},
                {"seconds", step * 0.5},
                {"recipe", recipe_}});
  }
  log_text& change(int step, const std::string& to, double before) {
    const std::string from = recipe_;
    recipe_ = to;
    return add({{"event", "switch"}, {"step", step}, {"from", from}, {"to", to}, {"val_loss_before", before}});
  }
  log_text& resume(int step) { return add({{"event", "resume"}, {"step", step}}); }
  log_text& end(const std::string& status, int step, json loss, const std::vector<double>& windows = {}) {
    return add({{"event", "end"},
                {"status", status},
                {"step", step},
                {"tokens", step * 100},
                {"seconds", step * 0.5},
                {"final_val_loss", loss},
                {"best_val_loss", loss},
                {"window_losses", windows}});
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::string recipe_;
};

/// A generated run: loss `initial` at step 0, and `last` at steps 100 and 200.
log_text whole(const std::string& name, double initial, double last, const std::vector<double>& windows = {}) {
  log_text log(name);
  log.eval(0, initial).step(100, last + 0.1).eval(100, last).step(200, last + 0.1).eval(200, last);
  return log.end("ok", 200, last, windows);
}

struct result {
  json summary;
  std::string arms, curves, html, table, errors;
};

/// Redirects std::cerr during its lifetime.
class captured_errors {
 public:
  captured_errors() : old_(std::cerr.rdbuf(text_.rdbuf())) {}
  captured_errors(const captured_errors&) = delete;
  captured_errors& operator=(const captured_errors&) = delete;
  ~captured_errors() { std::cerr.rdbuf(old_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf* old_;
};

/// Most cases run without gnuplot, which is much faster.
class path_variable {
 public:
  explicit path_variable(const std::string& value) {
    const char* old = std::getenv("PATH");
    if (old != nullptr) old_ = old;
    ::setenv("PATH", value.c_str(), 1);
  }
  path_variable(const path_variable&) = delete;
  path_variable& operator=(const path_variable&) = delete;
  ~path_variable() { ::setenv("PATH", old_.c_str(), 1); }

 private:
  std::string old_;
};

std::vector<std::string> put_logs(const scratch_directory& scratch, const std::vector<log_text>& logs) {
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < logs.size(); ++i) {
    const auto path = scratch / ("generated" + std::to_string(i) + ".jsonl");
    put(path, logs[i].text());
    paths.push_back(path.string());
  }
  return paths;
}

result report(const scratch_directory& scratch, const std::vector<std::string>& paths,
              const std::string& baseline = "") {
  const captured_errors errors;
  std::ostringstream table;
  const auto out = scratch / "out";
  const int code = write_report({paths, out.string(), baseline, ""}, table);
  CHECK(code == 0);
  return {io::read_json(out / "summary.json"),
          get(out / "arms.csv"),
          get(out / "curves.csv"),
          get(out / "report.html"),
          table.str(),
          errors.text()};
}

result report_without_plots(const std::vector<log_text>& logs, const std::string& baseline = "") {
  const scratch_directory scratch;
  const path_variable path("/nonexistent");
  return report(scratch, put_logs(scratch, logs), baseline);
}

std::string error_of(const std::string& log) {
  const scratch_directory scratch;
  put(scratch / "bad.jsonl", log);
  std::ostringstream table;
  return message_of([&] {
    write_report({{(scratch / "bad.jsonl").string()}, (scratch / "out").string(), "", ""}, table);
  });
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<std::string> names(const result& r) {
  std::vector<std::string> found;
  for (const json& arm : r.summary["arms"]) found.push_back(arm["name"]);
  return found;
}

std::vector<std::string> keys(const json& object) {
  std::vector<std::string> found;
  for (const auto& [key, value] : object.items()) found.push_back(key);
  return found;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

/// A generated comparison with a switch. Gap to fp8_delayed: 0.04 before it, 0.02 just after, 0.01 at the end.
std::vector<log_text> switching_logs() {
  log_text healed("heal", {{0, "mxfp4"}, {150, "fp8_delayed"}});
  healed.eval(0, 5.5).step(100, 2.2).eval(100, 2.04).step(150, 2.1).change(150, "fp8_delayed", 1.94);
  healed.step(200, 2.0).eval(200, 1.82).eval(250, 1.71).end("ok", 250, 1.71, {1.7, 1.72, 1.71});
  log_text twin("mxfp4");
  twin.eval(0, 5.5).eval(100, 2.04).eval(200, 1.85).eval(250, 1.75).end("ok", 250, 1.75, {1.75, 1.76, 1.74});
  log_text fp8("fp8_delayed");
  fp8.eval(0, 5.5).eval(100, 2.0).eval(200, 1.8).eval(250, 1.7).end("ok", 250, 1.7, {1.7, 1.7, 1.7});
  return {healed, twin, fp8};
}

TEST_CASE("summary.json has exactly its keys, and arms come by final loss") {
  const result r = report_without_plots({whole("mxfp4", 5.5, 1.7), whole("bf16", 5.5, 1.6), whole("nvfp4", 5.5, 1.65)});
  CHECK(keys(r.summary) == std::vector<std::string>{"arms", "commit", "seed", "threads"});
  CHECK(names(r) == std::vector<std::string>{"bf16", "nvfp4", "mxfp4"});
  CHECK(r.summary["arms"][0] == json::parse(R"({"name": "bf16", "recipe": "bf16", "final_val_loss": 1.6,
      "best_val_loss": 1.6, "seeds": [1], "sd_over_seeds": null, "rank": 1, "gap_to_baseline": 0.0,
      "gap_interval_95": null, "tokens": 20000, "tokens_per_s": 200.0, "seconds": 100.0})"));
  CHECK(r.summary["commit"] == "abc123");
  CHECK(r.summary["seed"] == 1);
  CHECK(r.summary["threads"] == 2);
  CHECK(contains(r.html, "lowest first: bf16 (1.6000), nvfp4 (1.6500) and mxfp4 (1.7000)."));
  CHECK(contains(r.html, "Every arm learned"));
}

TEST_CASE("one seed ranks nothing closer than seeds are known to move") {
  // Windows that agree to 0.0001 change nothing: their spread is the evaluation's.
  const result r =
      report_without_plots({whole("bf16", 5, 2, {1.99, 2.0, 2.01}), whole("x", 5, 2.05, {2.04, 2.05, 2.06}),
                            whole("y", 5, 2.09), whole("z", 5, 2.9)});
  CHECK(contains(r.html, "bf16 and x differ by 0.05 nats: not resolved by one seed."));
  CHECK(contains(r.html, "x and y differ by 0.04 nats: not resolved by one seed."));
  CHECK(count(r.html, "not resolved") == 2);
  CHECK(contains(r.html, "All other neighbours in the order differ by more than what seeds are known to move (0.06"));
  CHECK(contains(r.html, "move by several hundredths of a nat between seeds"));
  CHECK(contains(r.table, "One seed an arm: gaps of such models move by several hundredths of a nat between seeds"));
  // bf16 is clearly below y and z; x is clearly below z only.
  std::vector<int> ranks;
  for (const json& arm : r.summary["arms"]) ranks.push_back(arm["rank"]);
  CHECK(ranks == std::vector<int>{1, 1, 2, 4});
}

/// A generated run with a seed.
log_text seeded(const std::string& name, int seed, double last) {
  log_text log(name, {}, seed);
  log.eval(0, 5).step(100, last + 0.1).eval(100, last + 0.5).step(200, last + 0.1).eval(200, last);
  return log.end("ok", 200, last, {last, last});
}
std::vector<log_text> three_seeds() {
  return {seeded("bf16", 1, 2.0), seeded("x", 3, 2.5),    seeded("bf16", 2, 2.1),
          seeded("x", 1, 2.2),    seeded("x", 2, 2.2),    seeded("y", 1, 2.3),
          seeded("y", 2, 2.41),   seeded("bf16", 3, 2.2), seeded("y", 3, 2.52)};
}

TEST_CASE("several seeds: mean, standard deviation, paired differences with Student's interval") {
  // x - bf16: 0.2, 0.1, 0.3: mean 0.2, s.d. 0.1, half width 4.3027 · 0.1 / √3 = 0.2484. y - bf16: 0.3, 0.31, 0.32.
  const result r = report_without_plots(three_seeds());
  CHECK(names(r) == std::vector<std::string>{"bf16", "x", "y"});
  const json &x = r.summary["arms"][1], &y = r.summary["arms"][2];
  CHECK(x["seeds"] == json{1, 2, 3});
  CHECK(x["final_val_loss"].get<double>() == doctest::Approx(2.3));
  CHECK(x["sd_over_seeds"].get<double>() == doctest::Approx(std::sqrt(0.03)));
  CHECK(x["gap_to_baseline"].get<double>() == doctest::Approx(0.2));
  CHECK(x["gap_interval_95"][0].get<double>() == doctest::Approx(0.2 - 0.248414).epsilon(1e-5));
  CHECK(x["gap_interval_95"][1].get<double>() == doctest::Approx(0.2 + 0.248414).epsilon(1e-5));
  CHECK(y["gap_interval_95"][0].get<double>() == doctest::Approx(0.31 - 0.0248414).epsilon(1e-5));
  // y is clearly worse than bf16, x is not. y minus x is 0.1, 0.21, 0.02.
  CHECK(r.summary["arms"][0]["rank"] == 1);
  CHECK(x["rank"] == 1);
  CHECK(y["rank"] == 2);
  CHECK(r.summary["seed"] == json{1, 2, 3});
  CHECK(r.table ==
        "#  arm   recipe  seeds  initial   final    s.d.  final/initial          gap to baseline    best  tokens/s  "
        "relative  status\n"
        "1  bf16  bf16        3   5.0000  2.1000  0.1000         42.0 %                 baseline  2.1000       200  "
        "   1.00x  ok\n"
        "1  x     x           3   5.0000  2.3000  0.1732         46.0 %     +0.20 [-0.05, +0.45]  2.3000       200  "
        "   1.00x  ok\n"
        "2  y     y           3   5.0000  2.4100  0.1100         48.2 %  +0.310 [+0.285, +0.335]  2.4100       200  "
        "   1.00x  ok\n"
        "Losses in nats per token. Losses are means over seeds; gaps are means over pairs of equal seeds, with their "
        "interval of 95 % (Student's t). Equal ranks: every interval of a difference contains zero.\n");
  CHECK(contains(r.html, "x minus bf16 is +0.20 [-0.05, +0.45] nats over 3 seeds: not resolved."));
  CHECK(contains(r.html, "y +0.310 [+0.285, +0.335] (3 seeds, s.d. 0.0100)"));
  CHECK(contains(r.html, "means over seeds"));
  CHECK(!contains(r.html, "One seed"));
  CHECK(!contains(r.html, "compare with care"));
  // Curves are means over seeds.
  CHECK(contains(r.curves, "bf16,100,10000,2.6,"));
}

TEST_CASE("statistics beside the logs: a CSV, plots over training and depth, steps below √3") {
  const scratch_directory scratch;
  const auto record = [](const char* event, int step, json layer, const std::string& more) {
    return json{{"event", event}, {"step", step}, {"layer", layer}}.dump().insert(1, more.empty() ? "" : more + ",") +
           "\n";
  };
  std::string statistics = R"({"event":"start","schema":1,"step":0,"every":1,"name":"a"})"
                           "\n";
  for (const int step : {1, 2, 3}) {
    for (const int layer : {0, 1}) {
      statistics += record("operand", step, layer,
                           R"("linear":"qkv","tensor":"x","gemm":"fprop","format":"mxfp4","amax":2.5,"sqnr_db":)" +
                               std::to_string(10 * step + layer));
      statistics += record("gradient", step, layer, R"("linear":"qkv","cosine":0.5,"norm_to_noise":2)");
    }
    statistics += record("operand", step, nullptr, R"("linear":"head","tensor":"x","gemm":"fprop","sqnr_db":null)");
    statistics += record("step", step, nullptr, "\"norm_to_noise\":" + std::to_string(4.0 - step));
    if (step == 3) continue;
    statistics += record("step", 9, nullptr, "\"norm_to_noise\":0.5");  // superseded
    statistics += R"({"event":"resume","schema":1,"step":)" + std::to_string(step) + "}\n";
  }
  put(scratch / "a/log.jsonl", whole("a", 5, 2).text());
  put(scratch / "b/log.jsonl", whole("bf16", 5, 2).text());
  put(scratch / "a/statistics.jsonl", statistics);
  const std::vector<std::string> paths = {(scratch / "a").string(), (scratch / "b").string()};
  const result r = report(scratch, paths);
  const std::string csv = get(scratch / "out/statistics.csv");
  CHECK(contains(csv, "arm,event,step,layer,linear,tensor,gemm,amax,"));
  CHECK(contains(csv, "a,operand,3,1,qkv,x,fprop,2.5,,,,31,"));
  CHECK(count(csv, "a,step,") == 3);
  CHECK(!contains(csv, ",9,"));
  CHECK(contains(r.html, "a: least 1.00, at step 3; 1 of 3 observed steps below it."));
  const std::string script = get(scratch / "out/plots.gnuplot");
  // Over training: the mean over layers 0 and 1 of step 2. Over depth: both layers of step 3, the last.
  CHECK(contains(script, "$sqnr_training_0_0 << END\n1 10.5\n2 20.5\n3 30.5\nEND\n"));
  CHECK(contains(script, "$sqnr_depth_0_0 << END\n0 30\n1 31\nEND\n"));
  for (const char* linear : {"qkv", "o", "gate-up", "down"})
    CHECK(contains(script, " title '" + std::string(linear) + "'"));
  CHECK(contains(script, "1.7320508075688772 with lines"));
  if (r.errors.empty()) {
    for (const char* id : {"sqnr_training", "flushed_depth", "saturated_training", "crest_depth", "amax_training",
                           "spread_depth", "gradient_training", "gradient_depth"}) {
      CAPTURE(id);
      CHECK(std::filesystem::exists(scratch / ("out/" + std::string(id) + ".png")));
    }
  }
  put(scratch / "a/statistics.jsonl", R"({"event":"start","schema":2,"step":0})"
                                      "\n");
  std::ostringstream table;
  CHECK(contains(message_of([&] {
                   write_report({paths, (scratch / "out").string(), "", ""}, table);
                 }),
                 "a/statistics.jsonl: record 1: \"schema\" is not 1"));
}

TEST_CASE("the baseline is bf16, or the first log, or the named arm") {
  const std::vector<log_text> logs = {whole("a", 5, 2.5), whole("bf16", 5, 2)};
  CHECK(contains(report_without_plots(logs).table, "+0.50 "));
  CHECK(contains(report_without_plots(logs, "a").table, "-0.50 "));
  CHECK(contains(report_without_plots({whole("a", 5, 2.5), whole("b", 5, 2)}).table, "-0.50 "));
  CHECK(message_of([&] { report_without_plots(logs, "bf61"); }) == "--baseline: no arm 'bf61'; did you mean 'bf16'?");
  CHECK(message_of([&] { report_without_plots(logs, "other"); }) ==
        "--baseline: no arm 'other'; it is none of a, bf16");
}

TEST_CASE("the gap of a healed arm: before the switch, after it, at the end") {
  const result r = report_without_plots(switching_logs());
  CHECK(names(r) == std::vector<std::string>{"fp8_delayed", "heal", "mxfp4"});
  CHECK(r.summary["arms"][1]["recipe"] == "mxfp4 -> fp8_delayed @150");
  CHECK(contains(r.html, "heal switched from mxfp4 to fp8_delayed at step 150."));
  CHECK(contains(r.html,
                 "was +0.04 nats at the last common evaluation before the switch (step 100) and +0.02 nats "
                 "at the first after it (step 200)."));
  CHECK(contains(r.html, "At the end (step 250) it was +0.01 nats."));
  CHECK(contains(r.html,
                 "Its twin without the switch, mxfp4, ended at +0.05 nats. The two ends are closer than one "
                 "seed resolves."));
  // The loss in the switch record is a point of the curve.
  CHECK(contains(r.curves, "heal,150,15000,1.94,"));
}

TEST_CASE("a resume supersedes what came after its step") {
  log_text log("bf16");
  log.eval(0, 5.0).step(100, 3.0).eval(100, 2.9).step(200, 9.0).eval(200, 9.0);
  log.add({{"event", "switch"}, {"step", 200}, {"from", "bf16"}, {"to", "other"}, {"val_loss_before", 9.0}});
  log.end("stopped", 200, 9.0, {9, 9})
      .resume(100)
      .eval(100, 2.8)
      .add({{"event", "step"}, {"step", 150}, {"loss", 2.0}, {"tokens", 15000}, {"seconds", 70.0}});
  const result cut = report_without_plots({log});
  CHECK(contains(cut.table, "incomplete"));
  CHECK(cut.summary["arms"][0]["final_val_loss"].is_null());
  CHECK(cut.summary["arms"][0]["best_val_loss"] == 2.8);
  CHECK(cut.summary["arms"][0]["tokens"] == 15000);
  CHECK(!contains(cut.curves, ",200,"));
  CHECK(!contains(cut.curves, "2.9"));
  CHECK(!contains(cut.html, "switched from"));
  const result r = report_without_plots({log.eval(200, 2.0).end("ok", 200, 2.0)});
  CHECK(contains(r.table, "40.0 %"));
  CHECK(contains(r.curves, "bf16,200,20000,2,"));
}

TEST_CASE("incomplete, diverged and stopped arms are listed as what they are") {
  log_text killed("killed");
  killed.eval(0, 5).step(100, 3.0).eval(100, 2.5);
  log_text diverged("diverged_arm");
  diverged.eval(0, 5).eval(100, nullptr).step(101, nullptr).end("diverged", 101, nullptr);
  log_text stopped("early");
  stopped.eval(0, 5).eval(100, 1.0).end("stopped", 100, 1.0);
  const scratch_directory scratch;
  const path_variable path("/nonexistent");
  auto paths = put_logs(scratch, {killed, diverged, stopped, whole("bf16", 5, 2), whole("flat", 5, 4.5)});
  put(paths[0], killed.text() + R"({"event":"st)");
  const result r = report(scratch, paths);
  CHECK(names(r) == std::vector<std::string>{"bf16", "flat", "killed", "diverged_arm", "early"});
  CHECK(r.summary["arms"][2]["final_val_loss"].is_null());
  CHECK(r.summary["arms"][2]["best_val_loss"] == 2.5);
  CHECK(r.summary["arms"][3]["final_val_loss"].is_null());
  CHECK(contains(r.html, "killed is incomplete"));
  CHECK(contains(r.html, "its last evaluation, at step 100, was 2.5000 nats"));
  CHECK(contains(r.html, "diverged_arm diverged by step 101"));
  CHECK(contains(r.html, "early was stopped at step 100 with 1.0000 nats"));
  CHECK(contains(r.html, "flat did not learn by this measure: its final loss is 90.0 % of its initial loss."));
  CHECK(!contains(r.html, "Every arm learned"));
  CHECK(contains(r.table, "incomplete"));
  CHECK(!contains(r.html, ">nan"));
}

TEST_CASE("the page names threads once, leaves empty settings out and explains the last evaluation") {
  const scratch_directory scratch;
  const path_variable path("/nonexistent");
  const auto paths = put_logs(scratch, {whole("bf16", 5, 2), whole("x", 5, 2.1)});
  for (const std::string& file : paths) {
    std::string log = get(file);
    log.replace(log.find("\"device\":\"cpu\""), 14, "\"device\":\"cpu (2 threads, avx512)\"");
    log.replace(log.find("\"lr\":0.001"), 10, R"("lr":0.001,"mlperf":"","eval_windows":128,"final_eval_windows":512)");
    const std::string heads = &file == &paths[0] ? "2" : "4";
    log.insert(log.find("\"model\":{"), "\"gpt2\":{\"n_head\":" + heads + "},");
    put(file, log);
  }
  const result r = report(scratch, paths);
  CHECK(contains(r.html, " parameters (n_head 2)<"));  // not the section that gpt2 replaces
  CHECK(contains(r.html, "the configuration&#39;s &quot;model&quot; section"));
  CHECK(contains(r.html, "<dd>cpu (2 threads, avx512)</dd>"));
  CHECK(!contains(r.html, "mlperf ,"));
  CHECK(contains(r.html, "over 512 windows of the held-out text; earlier points are over 128."));
  CHECK(r.html.find("<h2>Plots</h2>") < r.html.find("<h2>What this run says</h2>"));
}

TEST_CASE("table and curves end with the final loss, in one order") {
  const auto log = [](const std::string& name, double last, double final) {
    return log_text(name).eval(0, 5).eval(100, 3).eval(200, last).end("ok", 200, final);
  };
  const scratch_directory scratch;
  const path_variable path("/nonexistent");
  const auto paths = put_logs(scratch, {log("a", 2.5, 2), log("b", 2.25, 2.25), log_text("c").end("ok", 200, 2.5)});
  const result r = report(scratch, paths);
  CHECK(names(r) == std::vector<std::string>{"a", "b", "c"});
  for (const char* line : {"a,200,20000,2,", "b,200,20000,2.25,", "c,200,20000,2.5,"}) CHECK(contains(r.curves, line));
  const std::string script = get(scratch / "out/plots.gnuplot");
  CHECK(contains(script, "\n200 0.25\n"));  // b's gap to a, whose last evaluation alone would give -0.25
  CHECK(!contains(script, "\n200 -0.25\n"));
}

TEST_CASE("the plot of losses begins where curves can be told apart") {
  const auto log = [](const std::string& name, double offset) {
    log_text made(name);
    for (int i = 0; i < 12; ++i) made.eval(100 * i, 5 - 0.1 * i * (i < 8) - 3 * (i >= 8) - offset * (i > 0));
    return made.end("ok", 1100, 2 - offset);
  };
  for (const auto& [offset, begin] : {std::pair{0.01, "80"}, {0.04, "80"}, {1.0, "0"}}) {
    const scratch_directory scratch;
    const path_variable path("/nonexistent");
    report(scratch, put_logs(scratch, {log("bf16", 0), log("x", offset)}));
    CHECK(contains(get(scratch / "out/plots.gnuplot"), "set xrange [" + std::string(begin) + ":110]"));
  }
}

TEST_CASE("names cannot break out of HTML, CSV, gnuplot or the terminal") {
  const std::string name = "<script>\"a\",'b' & `touch pwned` @c {d}_e \\ \x1b[31m\nf";
  const scratch_directory scratch;
  const result r = report(scratch, put_logs(scratch, {whole(name, 5, 2), whole("bf16", 5, 2)}));
  CHECK(!contains(r.html, "<script"));
  CHECK(contains(r.html, "&lt;script&gt;&quot;a&quot;,&#39;b&#39; &amp; `touch pwned`"));
  CHECK(contains(r.arms, "\"<script>\"\"a\"\",'b' & `touch pwned`"));
  CHECK(!contains(r.table, "\x1b"));
  CHECK(count(r.table, "\n") == 4);
  CHECK(r.summary["arms"][0]["name"] == name);
  CHECK(contains(get(scratch / "out/plots.gnuplot"), "''b''"));
  CHECK(!std::filesystem::exists(scratch / "out/pwned"));
  CHECK((r.errors.empty() || contains(r.errors, "gnuplot is not on PATH")));
}

TEST_CASE("the page refers to nothing outside itself, and a second run writes the same bytes") {
  const scratch_directory scratch;
  const auto paths = put_logs(scratch, switching_logs());
  const result r = report(scratch, paths);
  for (const char* part : {"http:", "https:", "@import", "url(", "<script", "<link", "file:"}) {
    CAPTURE(part);
    CHECK(!contains(r.html, part));
  }
  std::vector<std::pair<std::filesystem::path, std::string>> before;
  for (const auto& entry : std::filesystem::directory_iterator(scratch / "out")) {
    before.emplace_back(entry.path(), get(entry.path()));
  }
  report(scratch, paths);
  for (const auto& file : before) {
    CAPTURE(file.first.string());
    const bool equal = get(file.first) == file.second;
    CHECK(equal);
  }
  if (r.errors.empty()) {
    CHECK(before.size() == 14);
    CHECK(count(r.html, "<img ") == 4);
    CHECK(count(r.html, " src=\"data:image/svg+xml;base64,PD94bWwg") == count(r.html, "src="));  // "<?xml "
    CHECK(contains(get(scratch / "out/healing.svg"), "switch at step 150"));
  } else {
    MESSAGE("gnuplot is not installed: plots not checked");
  }
}

TEST_CASE("without gnuplot, or with a failing one, everything but the plots is written") {
  const scratch_directory scratch;
  const auto paths = put_logs(scratch, switching_logs());
  put(scratch / "out/gap.svg", "of an earlier report");
  {
    const path_variable path("/nonexistent");
    const result r = report(scratch, paths);
    CHECK(r.errors == "gnuplot is not on PATH: plots skipped\n");
    CHECK(contains(r.html, "No plots"));
    CHECK(!std::filesystem::exists(scratch / "out/gap.svg"));
  }
  put(scratch / "bin/gnuplot", "#!/bin/sh\necho first; echo 'cannot draw' >&2; exit 3\n");
  std::filesystem::permissions(scratch / "bin/gnuplot", std::filesystem::perms::owner_all);
  const path_variable path((scratch / "bin").string());
  CHECK(report(scratch, paths).errors == "gnuplot failed: plots skipped (cannot draw)\n");
}

TEST_CASE("bad logs are named, with the line") {
  const std::string start = log_text("a").text();
  CHECK(contains(error_of(""), "bad.jsonl: empty log"));
  CHECK(contains(error_of("[1]\n"), "bad.jsonl: line 1: not a JSON object"));
  CHECK(contains(error_of("{\"a\":1}\n"), "bad.jsonl: line 1: no text \"event\""));
  CHECK(contains(error_of("{\"event\":\"step\"}\n"), "line 1: \"step\" record: a training log begins with"));
  CHECK(contains(error_of("{\"event\":\"start\",\"name\":\"x\"}\n"), "\"schedule\" is missing"));
  CHECK(contains(error_of(start + "\n{\"event\":\"eval\",\"step\":1}\n"), "line 3: \"eval\" record: \"tokens\""));
  CHECK(
      contains(error_of(start + "{\"event\":\"resume\",\"step\":-1}\n"), "line 2: \"resume\" record: \"step\" is neg"));
  CHECK(contains(error_of(start + "{\"event\":\"end\",\"status\":\"fine\"}\n"), "unknown status \"fine\""));
  CHECK(contains(error_of(start + "not json\n"), "line 2"));
  CHECK(error_of(start + "{\"event\":\"of the future\"}\n") == "(no error)");
}

TEST_CASE("AMD's published curve: the gap before the switch closes within 45 steps of FP8") {
  const auto gaps = report_parts::amd_healing_gaps();
  REQUIRE(gaps.size() == 6);
  CHECK(gaps[0].step == 192);
  CHECK(gaps[0].value == doctest::Approx(0.0337).epsilon(0.01));
  const auto amd = report_parts::measure_shape(report_parts::amd_gaps_around_switch(), report_parts::amd_switch_step,
                                               report_parts::amd_run_steps);
  REQUIRE(amd.points.size() == 6);
  CHECK(amd.points[3].gap == 1.0);  // step 336, the last one before the switch
  CHECK(amd.points[4].time == doctest::Approx(45.0 / 550));
  CHECK(amd.points[4].gap == doctest::Approx(0.026).epsilon(0.01));
  using report_parts::measure_shape;
  CHECK(measure_shape({{{10, 0.5}}, {}}, 20, 100).missing == "no evaluation after its switch to compare");
  CHECK(measure_shape({{}, {{30, 0.5}}}, 20, 100).missing == "no evaluation before its switch to compare");
  CHECK(measure_shape({{{10, 0.0}}, {{30, 0.5}}}, 20, 100).missing == "no gap before its switch");
  const auto below = measure_shape({{{10, -0.5}}, {{30, 0.1}}}, 20, 100);
  REQUIRE(below.points.size() == 2);
  CHECK((below.points[0].gap == -1.0 && below.points[1].gap == 0.2 && below.before == -0.5));
}

}  // namespace report_test
