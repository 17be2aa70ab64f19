// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Messages about command lines, as "ARGUMENT: fault", in the same words under every version of CLI11.
#include "examples/command_line.hpp"

#include <doctest/doctest.h>

namespace command_line_test {

using namespace rotoscale;

std::string message_of(std::vector<std::string> words) {
  CLI::App app;
  std::string mode, folder, input;
  int threads = 0, steps = 0;
  long long seed = 0;
  double share = 0;
  std::vector<std::string> data;
  bool quick = false, all = false;
  CLI::App* run = app.add_subcommand("run");
  app.add_subcommand("plan");
  app.require_subcommand(1);
  run->add_option("input", input)->required();
  run->add_option("--mode", mode)->check(CLI::IsMember({"row", "column"}));
  run->add_option("--folder", folder)->check(CLI::ExistingDirectory);
  run->add_option("--threads", threads)->check(CLI::Range(0, 4096));
  run->add_option("--share", share)->check(CLI::Range(0.0, 0.5) & CLI::Validator([](std::string&) { return ""; }, ""));
  run->add_option("--seed", seed)->check(CLI::NonNegativeNumber);
  run->add_option("--steps", steps);
  run->add_option("--data", data);
  run->add_flag("--quick", quick)->excludes(run->add_flag("--all", all));
  explain_checks(app);
  refuse_overflow(app);
  try {
    words.insert(words.begin(), "program");
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    app.parse(static_cast<int>(argv.size()), argv.data());
  } catch (const CLI::ParseError& e) {
    return explain_parse_error(app, e);
  }
  return "";
}

TEST_CASE("every refusal of a command line names the argument") {
  const auto refused = [](const std::vector<std::string>& words) {
    std::vector<std::string> all{"run", "x"};
    all.insert(all.end(), words.begin(), words.end());
    return message_of(all);
  };
  CHECK(refused({"--mode", "row", "--threads", "4096", "--share", "0.5", "--folder", "/", "--seed", "0"}) == "");
  CHECK(message_of({}) == "needs a command: run, plan");
  CHECK(message_of({"run"}) == "input: is required");
  CHECK(message_of({"runn"}) == "unknown argument 'runn'; did you mean 'run'?");
  CHECK(refused({"--thread", "1"}) == "unknown argument '--thread'; did you mean '--threads'?");
  CHECK(refused({"--mode", "rows"}) == "--mode: unknown value 'rows'; did you mean 'row'?");
  CHECK(refused({"--mode", "x"}) == "--mode: unknown value 'x'; it is none of row, column");
  CHECK(refused({"--threads", "5000"}) == "--threads: '5000' is not between 0 and 4096");
  CHECK(refused({"--threads", "1.5"}) == "--threads: '1.5' is not a whole number");
  CHECK(refused({"--share", "half"}) == "--share: 'half' is not a number");
  CHECK(refused({"--share", "0.6"}) == "--share: '0.6' is not between 0 and 0.5");
  CHECK(refused({"--seed", "-1"}) == "--seed: '-1' is not a number from 0");
  CHECK(refused({"--folder", "/nowhere"}) == "--folder: '/nowhere' is not a directory");
  CHECK(refused({"--steps", "ten"}) == "--steps: 'ten' is not a whole number");
  CHECK(refused({"--steps", "99999999999"}) == "--steps: '99999999999' is out of range");
  CHECK(refused({"--steps"}) == "--steps: needs a value");
  CHECK(refused({"--data"}) == "--data: needs a value");
  CHECK(refused({"--steps", "1", "--steps", "2"}) == "--steps: takes one value, and is given 2");
  CHECK(refused({"--quick", "--all"}) == "--quick: excludes --all");
  CHECK(refused({"--quick=maybe"}) == "--quick: takes no such value");
}

}  // namespace command_line_test
