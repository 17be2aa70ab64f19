// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Statistics of `mini-llama study` against published values, and its results on generated logs. No model was trained
// for any number in this file.

#include <doctest/doctest.h>

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "../rotoscale/io/scratch.hpp"
#include "examples/train/report/report.hpp"
#include "study/page.hpp"

namespace llama_study_test {

namespace io = rotoscale::io;
namespace statistics = rotoscale::study_statistics;
using namespace rotoscale::io::testing;
using json = nlohmann::ordered_json;
using namespace rotoscale::program;

/// Hours of sleep gained under two drugs by ten patients (Student, The probable error of a mean, Biometrika 6, 1908).
const std::vector<double> first_drug = {0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0};
const std::vector<double> second_drug = {1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4};

std::vector<double> sleep_differences() {
  std::vector<double> d;
  for (std::size_t i = 0; i < first_drug.size(); ++i) d.push_back(second_drug[i] - first_drug[i]);
  return d;
}

/// A run's log with evaluations at steps 0, 10, 20 and so on, 100 tokens a step.
std::string log_of(const std::string& name, int seed, const std::vector<double>& losses, const std::string& status) {
  const int last = 10 * (static_cast<int>(losses.size()) - 1);
  std::string text;
  const auto add = [&](const json& record) { text += record.dump() + "\n"; };
  add({{"event", "start"},
       {"name", name},
       {"version", "0"},
       {"commit", "c"},
       {"device", "cpu"},
       {"compiler", "g"},
       {"threads", 1},
       {"seed", seed},
       {"config", {{"name", name}, {"train", {{"steps", last}, {"seed", seed}}}}},
       {"schedule", json::array({{{"from_step", 0}, {"recipe", {{"name", name}}}}})}});
  for (std::size_t i = 0; i < losses.size(); ++i) {
    add({{"event", "eval"}, {"step", 10 * i}, {"tokens", 1000 * i}, {"val_loss", losses[i]}, {"recipe", name}});
  }
  json end = {{"event", "end"}, {"status", status}, {"step", last}, {"tokens", 100 * last}, {"seconds", 1.0}};
  if (status == "ok") {
    end["final_val_loss"] = losses.back();
    end["final_average_val_loss"] = losses.back() - 0.5;
  }
  add(end);
  return text;
}

void put_run(const scratch_directory& at, const std::string& arm, int seed, const std::vector<double>& losses,
             const std::string& status = "ok") {
  const std::filesystem::path run = at / ("runs/" + arm + "-" + std::to_string(seed));
  put(run / "log.jsonl", log_of(arm, seed, losses, status));
  put(run / "trainer_state.json", R"({"data_fingerprint": 7})");
}

/// Two arms of three seeds: the gap is 0.1, 0.2 and 0.3 after 2000 tokens. One run diverges, one fails.
void put_study(const scratch_directory& at) {
  put(at / "study.json", R"({"name": "s", "seeds": 4, "last_evaluations": 2, "arms": [{"name": "a"}, {"name": "b"}]})");
  put_run(at, "a", 1, {5.0, 3.0, 2.0});
  put_run(at, "a", 2, {5.0, 3.0, 2.2});
  put_run(at, "a", 3, {5.0, 3.0, 2.1});
  put_run(at, "a", 4, {5.0, 6.0}, "diverged");
  put_run(at, "b", 1, {5.0, 3.1, 2.1});
  put_run(at, "b", 2, {5.0, 3.1, 2.4});
  put_run(at, "b", 3, {5.0, 3.1, 2.4});
  put(at / "runs/b-4.failed", R"({"code": 2, "reason": "no such file"})");
}

TEST_CASE("Student's t has the quantiles of the tables") {
  // Abramowitz and Stegun, table 26.10: A(t) = 0.95 and 0.99.
  for (const auto& [freedom, t95, t99] : std::vector<std::tuple<int, double, double>>{{1, 12.706, 63.657},
                                                                                      {2, 4.303, 9.925},
                                                                                      {5, 2.571, 4.032},
                                                                                      {10, 2.228, 3.169},
                                                                                      {30, 2.042, 2.750},
                                                                                      {120, 1.980, 2.617}}) {
    CHECK(std::abs(statistics::student_quantile(0.95, freedom) - t95) <= 5.0e-4);
    CHECK(std::abs(statistics::student_quantile(0.99, freedom) - t99) <= 5.0e-4);
  }
  CHECK(std::abs(statistics::student_probability(1.0, 1) - 0.5) < 1e-15);  // Cauchy's quartiles are -1 and 1
}

TEST_CASE("The interval of Student's own example is R's") {
  // R 4: t.test(extra ~ group, data = sleep, paired = TRUE).
  const std::vector<double> d = sleep_differences();
  CHECK(std::abs(statistics::mean(d) - 1.58) < 1e-12);
  CHECK(std::abs(statistics::deviation(d) - 1.229995) < 1e-6);
  const auto i = statistics::student_interval(d);
  CHECK(std::abs(i.low - 0.7001142) < 1e-6);
  CHECK(std::abs(i.high - 2.4598858) < 1e-6);
}

TEST_CASE("A bootstrap interval has the quantiles of all resamples, and equal bytes every time") {
  // Resamples of {0, 1} have the means 0, 0.5 and 1 with probabilities 1/4, 1/2 and 1/4.
  const std::vector<double> two = {0, 1};
  const auto wide = statistics::bootstrap_interval(two), narrow = statistics::bootstrap_interval(two, 0.4);
  CHECK(wide.low == 0);
  CHECK(wide.high == 1);
  CHECK(narrow.low == 0.5);
  CHECK(narrow.high == 0.5);
  const std::vector<double> d = sleep_differences();
  const auto i = statistics::bootstrap_interval(d), again = statistics::bootstrap_interval(d);
  CHECK(i.low == again.low);
  CHECK(i.high == again.high);
  // The resampled mean has the s.d. sqrt((n - 1) / n) * sd / sqrt(n) = 0.369; skewness moves the ends by less than
  // half.
  CHECK(std::abs(i.low - (1.58 - 1.96 * 0.369)) < 0.18);
  CHECK(std::abs(i.high - (1.58 + 1.96 * 0.369)) < 0.18);
}

TEST_CASE("Sample sizes are those of published tables") {
  // Paired t test, two-sided 5 %, power 80 % by the non-central t (G*Power 3, Faul et al. 2007; Cohen 1988).
  // Effects of 0.2, 0.5, 0.8 and 1.0 need 199, 34, 15 and 10 pairs.
  CHECK(statistics::pairs_needed(1.0, 0.2) == 199);
  CHECK(statistics::pairs_needed(1.0, 0.5) == 34);
  CHECK(statistics::pairs_needed(1.0, 0.8) == 15);
  CHECK(statistics::pairs_needed(1.0, 1.0) == 10);
  CHECK(statistics::pairs_needed(0.0, 0.01) == 3);
  CHECK(statistics::pairs_needed(0.1, 0.003) == std::ceil(2.80158 * 2.80158 * 1e4 / 9) + 2);
}

TEST_CASE("Tokens to a target are interpolated between evaluations") {
  const std::vector<statistics::curve_point> curve = {{0, 5}, {1000, 3}, {2000, 2}, {3000, 2.5}};
  CHECK(statistics::tokens_to(curve, 2.75).value() == 1250);
  CHECK(statistics::tokens_to(curve, 5).value() == 0);
  CHECK(statistics::tokens_to(curve, 2).value() == 2000);
  CHECK(!statistics::tokens_to(curve, 1.9));
}

TEST_CASE("A study's results: endpoints, pairs, outcomes, target") {
  const scratch_directory at;
  put_study(at);
  const study_results r = read_results(at.path());
  CHECK(r.runs.size() == 8);
  CHECK(r.of("a")[3]->outcome == run_outcome::diverged);
  CHECK(r.of("b")[3]->outcome == run_outcome::failed);
  CHECK(r.of("b")[3]->reason == "no such file");
  CHECK(std::abs(r.target - (2.1 + 2 * 0.1)) < 1e-12);
  const auto gaps = paired_differences(losses(r, "b", endpoint::final), losses(r, "a", endpoint::final));
  REQUIRE(gaps.size() == 3);
  CHECK(std::abs(gaps[1] - 0.2) < 1e-12);
  CHECK(std::abs(losses(r, "a", endpoint::last).at(1) - 2.5) < 1e-12);
  CHECK(std::abs(losses(r, "a", endpoint::average).at(1) - 1.5) < 1e-12);
  CHECK(std::abs(*tokens_to_target(r, *r.of("b")[0]) - 1800) < 1e-9);  // 3.1 to 2.1 passes 2.3 after four fifths
  CHECK(!tokens_to_target(r, *r.of("b")[1]));
  CHECK(message_of([&] { read_results(at.path(), "c"); }).find("no such arm") != std::string::npos);
}

TEST_CASE("A fork has the evaluations of the run that it continues") {
  const scratch_directory at;
  put(at / "study.json", R"({"seeds": 1, "arms": [{"name": "a"}, {"name": "f", "fork": {"arm": "a", "step": 10}}]})");
  put_run(at, "a", 1, {5.0, 3.0, 2.0});
  std::string log = log_of("f", 1, {5.0, 9.0, 1.5}, "ok");
  std::string own;  // without the evaluations that precede it
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("\"step\":0,") == line.npos && line.find("\"step\":10,") == line.npos) own += line + "\n";
  }
  put(at / "runs/f-1/log.jsonl", own);
  const study_results r = read_results(at.path());
  const auto& evals = r.of("f")[0]->evals;
  REQUIRE(evals.size() == 3);
  CHECK(*evals[1].loss == 3.0);
  CHECK(*evals[2].loss == 1.5);
  CHECK(r.of("f")[0]->definition["data"] == 7);
}

TEST_CASE("The report of a study has its files") {
  const scratch_directory at;
  put_study(at);
  std::ostringstream table;
  write_report({{at.path().string()}, (at / "report").string(), "", ""}, table);
  CHECK(table.str().find("b seed 4: failed: no such file") != std::string::npos);
  CHECK(table.str().find("3 of 4") != std::string::npos);
  const std::string runs = get(at / "report/runs.csv"), pairs = get(at / "report/pairs.csv");
  CHECK(runs.find("a,2,ok,eval,20,2000,2.2,") != std::string::npos);
  CHECK(runs.find("b,4,failed,end,0,0,,no such file") != std::string::npos);
  CHECK(pairs.find("b,a,final,3,") != std::string::npos);
  CHECK(get(at / "report/intervals.csv").find("b,20,2000,3,2.3") != std::string::npos);
  CHECK(get(at / "report/study.csv").find("a,last_mean,4,3,") != std::string::npos);
  CHECK(get(at / "report/report.html").find("Pairs of arms") != std::string::npos);
}

TEST_CASE("Acceptance compares means, outcomes and definitions") {
  const scratch_directory at, other;
  put_study(at);
  put_study(other);
  const json stored = stored_results(read_results(at.path()));
  std::ostringstream out;
  CHECK(accept_results(read_results(other.path()), stored, "r.json", out));
  put_run(other, "a", 1, {5.0, 3.0, 3.0});  // the pairs differ by 0.33 with an s.d. of 0.58
  CHECK(accept_results(read_results(other.path()), stored, "r.json", out));
  for (int seed = 1; seed <= 3; ++seed) put_run(other, "a", seed, {5.0, 3.0, 4.0 + seed / 100.0});
  CHECK(!accept_results(read_results(other.path()), stored, "r.json", out));
  put_study(other);
  json more = stored;
  more["arms"][0]["runs"].push_back({{"seed", 5}, {"outcome", "ok"}, {"final", 99.0}});
  CHECK(accept_results(read_results(other.path()), more, "r.json", out));  // the study here has no seed 5
  for (json& run : more["arms"][0]["runs"]) {
    if (run["final"].is_number()) run["final"] = run["final"].get<double>() + 1e-3;
  }
  CHECK(!accept_results(read_results(other.path()), more, "r.json", out));  // the same difference in every pair
  std::filesystem::remove(other / "runs/b-4.failed");
  CHECK(accept_results(read_results(other.path()), stored, "r.json", out));  // one run fewer is unfinished
  json all_ok = stored;
  all_ok["arms"][0]["runs"].erase(3);
  CHECK(!accept_results(read_results(other.path()), all_ok, "r.json", out));  // a run diverges, none did
  json longer = stored;
  longer["arms"][1]["definition"]["options"]["train"]["steps"] = 30;
  CHECK(message_of([&] { accept_results(read_results(other.path()), longer, "r.json", out); }) ==
        "r.json: b/options/train/steps was 30, is 20");
}

TEST_CASE("A study's file is checked") {
  const scratch_directory at;
  const auto refusal = [&](const std::string& text) {
    put(at / "s.json", text);
    return message_of([&] { read_study(at / "s.json"); });
  };
  CHECK(refusal(R"({"arms": []})").find("a study needs one") != std::string::npos);
  CHECK(refusal(R"({"arms": [{"name": "a/b"}]})").find("is not a plain name") != std::string::npos);
  CHECK(refusal(R"({"arms": [{"name": "a"}, {"name": "a"}]})").find("two are named 'a'") != std::string::npos);
  CHECK(refusal(R"({"baseline": "b", "arms": [{"name": "a"}]})").find("no arm 'b'") != std::string::npos);
  CHECK(refusal(R"({"arms": [{"name": "a", "recipe": "bf16"}]})").find("unknown key") != std::string::npos);
  CHECK(refusal(R"({"arms": [{"name": "a", "fork": {"arm": "b", "step": 1}}]})").find("no earlier arm") !=
        std::string::npos);
  CHECK(refusal(R"({"options": 3, "arms": [{"name": "a"}]})").find("not an object") != std::string::npos);
}

}  // namespace llama_study_test
