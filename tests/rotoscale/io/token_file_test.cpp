// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// llm.c's token files: the bytes of its script, in both directions, and every kind of invalid file.
#include "rotoscale/io/token_file.hpp"

#include <doctest/doctest.h>

#include "scratch.hpp"

namespace token_file_test {

namespace io = rotoscale::io;
namespace fs = std::filesystem;
using io::token_file;
using io::token_file_writer;
using io::token_kind;
using namespace rotoscale::io::testing;

std::string words(std::initializer_list<std::uint32_t> values, int bytes) {
  std::string text;
  for (const std::uint32_t value : values) {
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  }
  return text;
}

std::string file_of(std::uint32_t magic, std::uint32_t version, std::uint32_t count, const std::string& tokens) {
  return words({magic, version, count}, 4) + std::string(1024 - 12, '\0') + tokens;
}

std::string failure(const std::string& bytes) {
  return message_of([&] { token_file::from_bytes("t.bin", std::as_bytes(std::span(bytes))); });
}

std::vector<std::int32_t> all_of(const token_file& file) {
  std::vector<std::int32_t> tokens(file.size());
  file.read(0, tokens);
  return tokens;
}

TEST_CASE("the bytes are llm.c's, for both vocabularies, in and out") {
  const scratch_directory dir;
  struct {
    token_kind kind;
    std::string bytes;
    std::int32_t end_of_text;
  } const cases[] = {{token_kind::gpt2, file_of(20240520, 1, 3, words({50256, 0, 65535}, 2)), 50256},
                     {token_kind::llama3, file_of(20240801, 7, 3, words({50256, 0, 65535}, 4)), 128000}};
  for (const auto& c : cases) {
    token_file_writer writer(dir / "t.bin", c.kind);
    writer.write(std::vector<std::int32_t>{50256, 0});
    writer.write(std::vector<std::int32_t>{65535});
    CHECK_FALSE(fs::exists(dir / "t.bin"));
    writer.commit();
    CHECK(writer.count() == 3);
    CHECK(get(dir / "t.bin") == c.bytes);
    const auto file = token_file::open(dir / "t.bin");
    CHECK(file.kind() == c.kind);
    CHECK(file.end_of_text() == c.end_of_text);
    CHECK(all_of(file) == std::vector<std::int32_t>{50256, 0, 65535});
    std::int32_t last[1];
    file.read(2, last);
    CHECK(last[0] == 65535);
    fs::remove(dir / "t.bin");
  }
  CHECK(dir.entries() == 0);
}

TEST_CASE("many tokens, chunk by chunk") {
  const scratch_directory dir;
  constexpr std::int32_t count = 1'000'003;
  token_file_writer writer(dir / "t.bin", token_kind::llama3);
  for (std::int32_t i = 0; i < count; i += 1000) {
    std::vector<std::int32_t> part;
    for (std::int32_t j = i; j < std::min(count, i + 1000); ++j) part.push_back(j * 7);
    writer.write(part);
  }
  writer.commit();
  std::int32_t next = 0;
  token_file::open(dir / "t.bin").for_each_chunk([&](std::span<const std::int32_t> chunk) {
    for (const std::int32_t token : chunk) REQUIRE(token == 7 * next++);
  });
  CHECK(next == count);
}

TEST_CASE("what is no token file says why") {
  CHECK(failure(file_of(20240520, 1, 0, "")) == "(no error)");
  const std::string neither = "t.bin: not a token file: it begins with neither 20240520 (GPT-2) nor 20240801 (Llama 3)";
  CHECK(failure("") == neither);
  CHECK(failure("abc") == neither);
  CHECK(failure(file_of(20240521, 1, 0, "")) == neither);
  CHECK(failure(file_of(20240522, 1, 0, "")).starts_with("t.bin: is an evaluation file of llm.c"));
  CHECK(failure(words({20240520, 1, 0}, 4)) == "t.bin: 12 bytes are too few for the header's 1024");
  CHECK(failure(file_of(20240520, 2, 0, "")) == "t.bin: version 2 of a GPT-2 token file, only 1 is known");
  // Version 3 is of llm.c's model files; its token files have 1 and 7.
  CHECK(failure(file_of(20240520, 3, 0, "")) == "t.bin: version 3 of a GPT-2 token file, only 1 is known");
  CHECK(failure(file_of(20240801, 3, 0, "")) == "t.bin: version 3 of a Llama 3 token file, only 7 is known");
  CHECK(failure(file_of(20240801, 1, 0, "")) == "t.bin: version 1 of a Llama 3 token file, only 7 is known");
  CHECK(failure(file_of(20240520, 1, 2, "abc")) == "t.bin: its header says 2 tokens of 2 bytes, 3 bytes follow");
  CHECK(failure(file_of(20240520, 1, 0x80000000, "abcd")) ==
        "t.bin: its header says 2147483648 tokens of 2 bytes, 4 bytes follow");
  CHECK(failure(file_of(20240801, 7, 2, "abcd")) == "t.bin: its header says 2 tokens of 4 bytes, 4 bytes follow");
  const std::string huge = file_of(20240801, 7, 2, words({5, 0x80000000}, 4));
  const auto file = token_file::from_bytes("t.bin", std::as_bytes(std::span(huge)));
  CHECK(message_of([&] { all_of(file); }) == "t.bin: token 1 is 2147483648, which no vocabulary has");
  CHECK(message_of([] { token_file::open("/dev/zero"); }) == "/dev/zero: cannot read: a device, not a regular file");
}

TEST_CASE("tokens that do not fit leave no file") {
  const scratch_directory dir;
  const auto failure_of = [&](token_kind kind, std::int32_t token) {
    return message_of([&] {
      token_file_writer writer(dir / "t.bin", kind);
      writer.write(std::vector<std::int32_t>{token});
      writer.commit();
    });
  };
  const std::string name = (dir / "t.bin").string();
  CHECK(failure_of(token_kind::gpt2, 65536) == name + ": token 65536 does not fit a GPT-2 token file (0 to 65535)");
  CHECK(failure_of(token_kind::gpt2, -1) == name + ": token -1 does not fit a GPT-2 token file (0 to 65535)");
  CHECK(failure_of(token_kind::llama3, -1).starts_with(name + ": token -1 does not fit a Llama 3 token file"));
  CHECK(dir.entries() == 0);
}

}  // namespace token_file_test
