// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Described structs to JSON and back: every member type, exact numbers, and the message for every mistake in a
// configuration file.

#include "rotoscale/io/json.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "scratch.hpp"

namespace json_test {

namespace io = rotoscale::io;
using namespace rotoscale::io::testing;
using json = nlohmann::ordered_json;

namespace sample {

enum class color { red, green };

std::string_view to_string(color c) { return c == color::red ? "red" : "green"; }
std::vector<std::string> names(color) { return {"red", "green"}; }
bool from_string(std::string_view text, color& out) {
  for (const color c : {color::red, color::green}) {
    if (text == to_string(c)) return out = c, true;
  }
  return false;
}

struct train_options {
  int steps = 10;
  std::int64_t tokens = -1;
  std::uint64_t seed = 7;
  float rate = 0.1f;
  double beta = 0.95;
  bool operator==(const train_options&) const = default;
};

template <class Visitor>
void describe(Visitor&& v, train_options& o) {
  v("steps", o.steps, "optimizer steps");
  v("tokens", o.tokens, "tokens to train on");
  v("seed", o.seed, "seed of everything random");
  v("rate", o.rate, "learning rate");
  v("beta", o.beta, "decay of the second moment");
}

struct config {
  std::string name = "run";
  bool resume = false;
  color paint = color::red;
  train_options train;
  std::vector<int> sizes = {1, 2};
  std::vector<train_options> stages;
  std::vector<bool> flags;
  std::optional<double> clip;
  std::optional<train_options> tuned;
  std::vector<std::vector<color>> grid;
  bool operator==(const config&) const = default;
};

template <class Visitor>
void describe(Visitor&& v, config& c) {
  v("name", c.name, "name of the run");
  v("resume", c.resume, "whether to continue");
  v("paint", c.paint, "colour");
  v("train", c.train, "training");
  v("sizes", c.sizes, "sizes in bytes");
  v("stages", c.stages, "stages");
  v("flags", c.flags, "flags");
  v("clip", c.clip, "gradient norm");
  v("tuned", c.tuned, "tuned training");
  v("grid", c.grid, "colours");
}

struct empty {};

template <class Visitor>
void describe(Visitor&&, empty&) {}

}  // namespace sample

namespace {

/// The message for a configuration with this text.
std::string failure(std::string_view text) {
  return message_of([&] {
    sample::config c;
    io::from_json(io::parse_json(text, "config.json"), c, "config.json");
  });
}

template <class T>
T through_text(const T& value) {
  T read;
  io::from_json(io::parse_json(io::json_text(io::to_json(value), "x"), "x"), read, "x");
  return read;
}

}  // namespace

TEST_CASE("every kind of member is written in the described order and read back") {
  sample::config c;
  c.name = "quote \" and \xc3\xa9";
  c.resume = true;
  c.paint = sample::color::green;
  c.train.seed = std::numeric_limits<std::uint64_t>::max();
  c.train.tokens = std::numeric_limits<std::int64_t>::min();
  c.stages.resize(2);
  c.stages[1].steps = -5;
  c.flags = {true, false};
  c.clip = 1.0;
  c.tuned.emplace().steps = 3;
  c.grid = {{}, {sample::color::red, sample::color::green}};
  CHECK(through_text(c) == c);
  CHECK(through_text(sample::config{}) == sample::config{});
  CHECK(io::to_json(sample::config{}).dump() ==
        R"({"name":"run","resume":false,"paint":"red","train":{"steps":10,"tokens":-1,"seed":7,"rate":0.1,"beta":0.95})"
        R"(,"sizes":[1,2],"stages":[],"flags":[],"clip":null,"tuned":null,"grid":[]})");
}

TEST_CASE("missing keys keep the present value, given ones replace it") {
  sample::config c;
  c.train.steps = 77;
  c.clip = 2.0;
  c.sizes = {9, 9, 9};
  sample::config expected = c;
  io::from_json(json::object(), c, "x");
  CHECK(c == expected);
  const char* text = R"({"train": {"tokens": 5}, "clip": null, "sizes": [4], "tuned": {"steps": 1}})";
  io::from_json(io::parse_json(text, "x"), c, "x");
  expected.train.tokens = 5;
  expected.clip.reset();
  expected.sizes = {4};
  expected.tuned.emplace().steps = 1;
  CHECK(c == expected);
}

TEST_CASE("a failed read leaves the object as it was") {
  sample::config c;
  CHECK_THROWS_AS(io::from_json(io::parse_json(R"({"name": "new", "resume": 1})", "x"), c, "x"), io::error);
  CHECK(c == sample::config{});
}

TEST_CASE("unknown keys are refused with the nearest known one") {
  CHECK(failure(R"({"train": {"stpes": 1}})") == "config.json: train.stpes: unknown key; did you mean 'steps'?");
  CHECK(failure(R"({"nmae": ""})") == "config.json: nmae: unknown key; did you mean 'name'?");
  CHECK(failure(R"({"stages": [{}, {"Seed": 1}]})") ==
        "config.json: stages[1].Seed: unknown key; did you mean 'seed'?");
  CHECK(failure("{\"a\\nb\": 1}").find('\n') == std::string::npos);
  sample::empty nothing;
  CHECK(message_of([&] { io::from_json(json{{"a", 1}}, nothing, "x"); }) == "x: a: unknown key");
}

TEST_CASE("wrong types are named") {
  CHECK(failure("[]") == "config.json: expected an object, found an array");
  CHECK(failure(R"({"train": {"steps": "5"}})") == "config.json: train.steps: expected an integer, found a string");
  CHECK(failure(R"({"train": {"steps": 1.5}})") ==
        "config.json: train.steps: expected an integer, found the number 1.5");
  CHECK(failure(R"({"train": {"rate": "x"}})") == "config.json: train.rate: expected a number, found a string");
  CHECK(failure(R"({"train": {"beta": null}})") == "config.json: train.beta: expected a number, found null");
  CHECK(failure(R"({"resume": 1})") == "config.json: resume: expected true or false, found the number 1");
  CHECK(failure(R"({"name": {}})") == "config.json: name: expected a string, found an object");
  CHECK(failure(R"({"sizes": 3})") == "config.json: sizes: expected an array, found the number 3");
  CHECK(failure(R"({"sizes": [1, "a"]})") == "config.json: sizes[1]: expected an integer, found a string");
  CHECK(failure(R"({"paint": 1})") == "config.json: paint: expected a name (a string), found the number 1");
}

TEST_CASE("unknown enum values are refused with the nearest valid one") {
  CHECK(failure(R"({"paint": "gren"})") == "config.json: paint: unknown value 'gren'; did you mean 'green'?");
  CHECK(failure(R"({"grid": [[], ["red", "RED"]]})") ==
        "config.json: grid[1][1]: unknown value 'RED'; did you mean 'red'?");
}

TEST_CASE("integers are refused out of range and accepted at its ends") {
  sample::train_options o;
  const auto read = [&](const char* text) {
    return message_of([&] { io::from_json(io::parse_json(text, "x"), o, "x"); });
  };
  CHECK(read(R"({"steps": 2147483647})") == "(no error)");
  CHECK(o.steps == 2147483647);
  CHECK(read(R"({"steps": -2147483648})") == "(no error)");
  CHECK(o.steps == std::numeric_limits<int>::min());
  CHECK(read(R"({"steps": 2147483648})") == "x: steps: 2147483648 is out of range: -2147483648 to 2147483647");
  CHECK(read(R"({"steps": -2147483649})") == "x: steps: -2147483649 is out of range: -2147483648 to 2147483647");
  CHECK(read(R"({"seed": 18446744073709551615})") == "(no error)");
  CHECK(o.seed == std::numeric_limits<std::uint64_t>::max());
  CHECK(read(R"({"seed": -1})") == "x: seed: -1 is out of range: 0 to 18446744073709551615");
  CHECK(read(R"({"seed": 18446744073709551616})") ==
        "x: seed: expected an integer, found the number 1.8446744073709552e+19");
  CHECK(read(R"({"tokens": 9223372036854775808})") ==
        "x: tokens: 9223372036854775808 is out of range: -9223372036854775808 to 9223372036854775807");
}

TEST_CASE("numbers that are not finite are refused") {
  CHECK(failure(R"({"train": {"beta": 1e400}})") == "config.json: a number is beyond the range of FP64");
  CHECK(failure(R"({"train": {"rate": 1e39}})") ==
        "config.json: train.rate: 1e+39 is out of range of 32-bit floating point");
  CHECK(failure(R"({"train": {"rate": -3.4028235677973366e38}})") ==
        "config.json: train.rate: -3.4028235677973366e+38 is out of range of 32-bit floating point");
  CHECK(failure(R"({"train": {"rate": 3.4028235677973362e38}})") == "(no error)");
  CHECK(failure(R"({"train": {"rate": NaN}})").rfind("config.json: line 1, column 20: syntax error", 0) == 0);
  sample::train_options o;
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    CHECK(message_of([&] { io::from_json(json{{"beta", bad}}, o, "x"); }) == "x: beta: expected a finite number");
    CHECK(message_of([&] { io::from_json(json{{"rate", bad}}, o, "x"); }) == "x: rate: expected a finite number");
  }
}

TEST_CASE("floats are written short and read back to the bit") {
  CHECK(io::json_text(io::to_json(std::vector<float>{0.1f, 1, 1e-8f, 3e38f}), "x") == "[0.1,1.0,1e-08,3e+38]");
  std::uint32_t state = 1;
  const auto check = [](std::uint32_t low, std::uint32_t high) {
    sample::train_options o;
    o.rate = std::bit_cast<float>(high);
    o.beta = std::bit_cast<double>(std::uint64_t{high} << 32 | low);
    if (!std::isfinite(o.rate) || !std::isfinite(o.beta)) return;
    const sample::train_options read = through_text(o);
    REQUIRE(std::bit_cast<std::uint32_t>(read.rate) == std::bit_cast<std::uint32_t>(o.rate));
    REQUIRE(std::bit_cast<std::uint64_t>(read.beta) == std::bit_cast<std::uint64_t>(o.beta));
  };
  for (int i = 0; i < 5'000; ++i) {
    const std::uint32_t low = state = state * 1664525u + 1013904223u;
    check(low, state = state * 1664525u + 1013904223u);
  }
  for (const std::uint32_t high : {0u, 0x80000000u, 1u, 0x007fffffu, 0x00800000u, 0x7f7fffffu, 0xff7fffffu}) {
    check(0, high);
    check(~0u, high);
  }
}

TEST_CASE("parse errors are one line with line and column") {
  const auto parse = [](std::string_view text) { return message_of([&] { io::parse_json(text, "a.json"); }); };
  CHECK(parse("{\n  \"a\": nul\n}") == "a.json: line 2, column 11: syntax error at '\\x0a'");
  CHECK(parse("") == "a.json: line 1, column 1: syntax error: the text ends too early");
  CHECK(parse("{} x") == "a.json: line 1, column 4: syntax error at 'x'");
  CHECK(parse("[1,]") == "a.json: line 1, column 4: syntax error at ']'");
  CHECK(parse("// no\n1").rfind("a.json: line 1, column 1: syntax error", 0) == 0);
  CHECK(parse(std::string_view("{}\0x", 4)) == "a.json: line 1, column 3: a zero byte");
  CHECK(parse("\"\xff\"").rfind("a.json: line 1, column 2: syntax error at '", 0) == 0);
  CHECK(parse("{\"a\": {\"b\": 1, \"c\": [{\"b\": 1}], \"b\": 2}}") == "a.json: the key 'b' is given twice");
  CHECK(parse(std::string(200'000, '[')) == "a.json: nested too deep");
  CHECK(parse(std::string(128, '[') + std::string(128, ']')) == "(no error)");
  CHECK(parse("\"" + std::string(1'000'000, 'x')).size() < 400);
}

TEST_CASE("read_json and write_json name their file") {
  const scratch_directory dir;
  const auto path = dir / "a.json";
  sample::train_options o;
  o.steps = 3;
  io::write_json(path, io::to_json(o));
  CHECK(get(path).substr(0, 18) == "{\n  \"steps\": 3,\n  ");
  CHECK(get(path).back() == '\n');
  sample::train_options read;
  io::from_json(io::read_json(path), read, path.string());
  CHECK(read == o);
  put(path, "{");
  CHECK(message_of([&] { io::read_json(path); }).rfind(path.string() + ": line 1, column 2: syntax error", 0) == 0);
  const std::string missing = (dir / "no").string() + "/a.json";
  CHECK(message_of([&] { io::read_json(missing); }) == missing + ": cannot open: No such file or directory");
  CHECK(message_of([&] { io::write_json(missing, 1); }) == missing + ": cannot write: No such file or directory");
  CHECK(message_of([&] { io::json_text("\xff", "x"); }) == "x: cannot be written as JSON: a string is not UTF-8");
}

}  // namespace json_test
