// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// JSON lines after a killed run: only the unfinished line is lost.

#include "rotoscale/io/jsonl.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cmath>
#include <string>

#include "scratch.hpp"

namespace jsonl_test {

namespace io = rotoscale::io;
using io::jsonl_writer;
using namespace rotoscale::io::testing;
using json = nlohmann::ordered_json;

TEST_CASE("a record is one line and is there at once") {
  const scratch_directory dir;
  const auto path = dir / "log.jsonl";
  put(path, "old\n");
  jsonl_writer log(path);
  CHECK(get(path) == "");
  log.write(json{{"step", 1}, {"text", "a\nb"}, {"loss", NAN}});
  CHECK(get(path) == "{\"step\":1,\"text\":\"a\\nb\",\"loss\":null}\n");
  log.write(json{{"step", 2}});
  const auto records = io::read_jsonl(path);
  REQUIRE(records.size() == 2);
  CHECK(records[0]["text"] == "a\nb");
  CHECK(records[1].dump() == "{\"step\":2}");
}

TEST_CASE("appending continues a log and mends its last line") {
  const scratch_directory dir;
  const auto path = dir / "log.jsonl";
  const auto append = [&](int step) { jsonl_writer(path, jsonl_writer::mode::append).write(json{{"step", step}}); };
  append(1);
  append(2);
  CHECK(get(path) == "{\"step\":1}\n{\"step\":2}\n");
  put(path, "{\"step\":1}\n{\"ste");
  append(2);
  CHECK(get(path) == "{\"step\":1}\n{\"step\":2}\n");
  put(path, "{\"step\":1}");  // only the newline is missing
  append(2);
  CHECK(get(path) == "{\"step\":1}\n{\"step\":2}\n");
  put(path, "{\"ste");
  append(2);
  CHECK(get(path) == "{\"step\":2}\n");
}

TEST_CASE("jsonl_writer names the file that it cannot write") {
  const scratch_directory dir;
  const std::string missing = (dir / "no/log").string();
  CHECK(message_of([&] { jsonl_writer log(missing); }) == missing + ": cannot write: No such file or directory");
  CHECK(message_of([&] { jsonl_writer log(dir.path()); }) == dir.path().string() + ": cannot write: Is a directory");
  for (const auto mode : {jsonl_writer::mode::write, jsonl_writer::mode::append}) {
    jsonl_writer full("/dev/full", mode);
    CHECK(message_of([&] { full.write(json{{"step", 1}}); }) == "/dev/full: cannot write: No space left on device");
  }
  jsonl_writer log(dir / "log");
  CHECK(message_of([&] { log.write(json("\xff")); }) ==
        (dir / "log").string() + ": cannot be written as JSON: a string is not UTF-8");
}

TEST_CASE("a log has one writer at a time, and the second changes nothing") {
  const scratch_directory dir;
  const auto path = dir / "log.jsonl";
  {
    jsonl_writer first(path);
    first.write(json{{"step", 1}});
    for (const auto mode : {jsonl_writer::mode::write, jsonl_writer::mode::append}) {
      CHECK(message_of([&] { jsonl_writer second(path, mode); }) ==
            path.string() + ": cannot write: another process is writing it");
    }
    CHECK(message_of([&] { io::require_no_writer(path); }) ==
          path.string() + ": cannot write: another process is writing it");
    first.write(json{{"step", 2}});
    first.flush();
  }
  io::require_no_writer(path);
  io::require_no_writer(dir / "none.jsonl");
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK(message_of([&] { io::require_no_writer(dir / "pipe"); }) ==
        (dir / "pipe").string() + ": cannot read: a pipe, not a regular file");
  CHECK(message_of([&] { jsonl_writer log(dir / "pipe"); }) ==
        (dir / "pipe").string() + ": cannot write: a pipe, not a regular file");
  jsonl_writer(path, jsonl_writer::mode::append).write(json{{"step", 3}});
  CHECK(io::read_jsonl(path).size() == 3);
}

TEST_CASE("read_jsonl drops an unfinished last line, whatever is left of it") {
  const scratch_directory dir;
  const auto path = dir / "log.jsonl";
  const std::string whole = "{\"step\":1,\"name\":\"a\"}\n{\"step\":2,\"name\":\"\\u00e9\"}\n";
  const std::size_t first = whole.find('\n');
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    put(path, whole.substr(0, size));
    // A record without its newline is complete.
    const std::size_t expected = size < first ? 0 : size < whole.size() - 1 ? 1 : 2;
    CHECK(io::read_jsonl(path).size() == expected);
  }
  put(path, "1\n12");
  CHECK(io::read_jsonl(path).size() == 1);
  put(path, "{}\r\n\n  \n[1]\n");
  CHECK(io::read_jsonl(path).size() == 2);
}

TEST_CASE("for_each_record has the numbers of lines, and that of an unfinished last one") {
  const scratch_directory dir;
  const auto path = dir / "log.jsonl";
  std::vector<std::size_t> numbers;
  const auto note = [&](const json&, std::size_t number) { numbers.push_back(number); };
  put(path, "{}\n\n[1]\n{\"a\": ");
  CHECK(io::for_each_record(path, note) == 4);
  CHECK(numbers == std::vector<std::size_t>{1, 3});
  put(path, "{}\n[1]");
  CHECK(io::for_each_record(path, note) == 0);
  CHECK(numbers == std::vector<std::size_t>{1, 3, 1, 2});
}

TEST_CASE("read_jsonl names file and line") {
  const scratch_directory dir;
  const auto path = dir / "log.jsonl";
  put(path, "{}\n\n{\"a\": nul}\n{}\n");
  CHECK(message_of([&] { io::read_jsonl(path); }) ==
        path.string() + ": line 3, column 10: syntax error at '}'");
  put(path, "{}\n{\"a\": 1, \"a\": 2}\n");
  CHECK(message_of([&] { io::read_jsonl(path); }) == path.string() + ": line 2: the key 'a' is given twice");
  const std::string missing = (dir / "missing").string();
  CHECK(message_of([&] { io::read_jsonl(missing); }) == missing + ": cannot open: No such file or directory");
}

}  // namespace jsonl_test
