// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Error texts, and reading plain and gzip files.

#include "rotoscale/io/file.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

#include "rotoscale/io/same_file.hpp"
#include "scratch.hpp"

namespace file_test {

namespace fs = std::filesystem;
namespace io = rotoscale::io;
using namespace rotoscale::io::testing;

std::string sample_text(std::size_t size) {
  std::string text;
  std::uint32_t state = 1;
  while (text.size() < size) {
    state = state * 1664525u + 1013904223u;
    text += static_cast<char>('a' + (state >> 24) % 16);
  }
  return text;
}

/// One gzip member. With `chunk` it has dictzip's layout: full flushes, and a header with an extra field.
std::string gzip(std::string_view text, std::size_t chunk = 0) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string extra("RA\x06\x00\x01\x00\x10\x00\x01\x00XY\x02\x00hi", 16);
  std::string name = "words.dict";
  gz_header header{};
  if (chunk > 0) {
    header.extra = reinterpret_cast<Bytef*>(extra.data());
    header.extra_len = static_cast<uInt>(extra.size());
    header.name = reinterpret_cast<Bytef*>(name.data());
    header.hcrc = 1;
    REQUIRE(deflateSetHeader(&stream, &header) == Z_OK);
  }
  std::string input(text);
  std::string out(text.size() * 2 + 4096, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(input.data());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  std::size_t left = input.size();
  while (chunk > 0 && left > chunk) {
    stream.avail_in = static_cast<uInt>(chunk);
    REQUIRE(deflate(&stream, Z_FULL_FLUSH) == Z_OK);
    left -= chunk;
  }
  stream.avail_in = static_cast<uInt>(left);
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST_CASE("an error message is one line: file and what is wrong") {
  CHECK(std::string(io::error("a.txt", "is bad").what()) == "a.txt: is bad");
  CHECK(std::string(io::error("a\nb: is\tbad\x7f").what()) == "a\\x0ab: is\\x09bad\\x7f");
  for (const char* good :
       {"caf\xC3\xA9", "\xE2\x88\x91", "\xED\x9F\xBF", "\xEE\x80\x80", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    CHECK(io::printable(good) == good);
  }
  for (const auto& [bad, escaped] : {std::pair{"a\xAD!", "a\\xad!"},
                                     {"\xC3", "\\xc3"},
                                     {"\xC3(", "\\xc3("},
                                     {"\xC0\xAF", "\\xc0\\xaf"},
                                     {"\xC2\x9B", "\\xc2\\x9b"},
                                     {"\xE0\x9F\xBF", "\\xe0\\x9f\\xbf"},
                                     {"\xED\xA0\x80", "\\xed\\xa0\\x80"},
                                     {"\xF0\x8F\xBF\xBF", "\\xf0\\x8f\\xbf\\xbf"},
                                     {"\xF4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
                                     {"\xFF", "\\xff"}}) {
    CHECK(io::printable(bad) == escaped);
  }
  CHECK(io::printable(std::string(1000, 'x')) == std::string(60, 'x') + "..." + std::string(60, 'x'));
}

TEST_CASE("nearest_name finds the closest valid name") {
  const std::vector<std::string> names = {"bf16", "fp8_delayed", "mxfp8", "mxfp4", "mxfp4_h16"};
  CHECK(io::nearest_name("mxpf4", names) == "mxfp4");  // neighbours swapped
  CHECK(io::nearest_name("MXFP4", names) == "mxfp4");  // case
  CHECK(io::nearest_name("MXFP4_H16", names) == "mxfp4_h16");
  CHECK(io::nearest_name("fp8", names) == "mxfp8");
  CHECK(io::nearest_name("mxfp", names) == "mxfp8");  // equally close: the first
  CHECK(io::nearest_name("", names) == "bf16");
  CHECK(io::nearest_name("completely different", names) != "");
  CHECK(io::nearest_name(std::string(10'000'000, 'm'), names) != "");
  CHECK(io::nearest_name("anything", {}) == "");
  CHECK(rotoscale::detail::edit_cost("kitten", "sitting") == 6);
  CHECK(rotoscale::detail::edit_cost("ab", "ba") == 2);
  CHECK(rotoscale::detail::edit_cost("", "abc") == 6);
}

TEST_CASE("an output below an input's directory is refused by device and inode") {
  const scratch_directory dir;
  put(dir / "data/a", "text");
  put(dir / "other", "text");
  fs::create_hard_link(dir / "data/a", dir / "hard");
  fs::create_symlink(dir / "other", dir / "soft");
  const auto message = [&](const char* output, const char* input) {
    return message_of([&] { io::require_no_input({dir / output}, {dir / input}); });
  };
  CHECK(message("other", "data") == "(no error)");
  CHECK(message("new", "data") == "(no error)");
  CHECK(message("data/a", "nowhere") == "(no error)");
  const std::string rest = "; another output leaves it alone", would = ": would be written, and is an input";
  const std::string other = (dir / "other").string(), below = (dir / "data/a").string();
  CHECK(message("other", "other") == other + would + rest);
  CHECK(message("soft", "other") == (dir / "soft").string() + would + " (" + other + ")" + rest);
  CHECK(message("hard", "data") == (dir / "hard").string() + would + " (" + below + ")" + rest);
  CHECK(message("./other", "other") == (dir / "./other").string() + would + " (" + other + ")" + rest);
  io::require_no_input({""}, {dir / "other", ""});
  CHECK(io::is_same_file(dir.path(), dir.path() / "."));
}

TEST_CASE("read_file gives the bytes of a plain file") {
  const scratch_directory dir;
  const std::vector<std::string> contents = {"", "a", "\x1f", std::string("\0\xff\n", 3), sample_text(300'000)};
  for (const std::string& text : contents) {
    put(dir / "plain", text);
    CHECK(io::read_file(dir / "plain") == text);
    CHECK(io::read_raw_file(dir / "plain") == text);
  }
}

TEST_CASE("files are compared in parts, to where they differ") {
  const scratch_directory dir;
  constexpr std::size_t part = std::size_t{4} << 20;
  const auto compare = [&](const std::string& x, const std::string& y) {
    put(dir / "x", x);
    put(dir / "y", y);
    std::vector<std::size_t> parts;
    const bool equal = io::have_equal_bytes(dir / "x", dir / "y", [&](std::size_t n) { parts.push_back(n); });
    return std::pair(equal, parts);
  };
  using found = std::pair<bool, std::vector<std::size_t>>;
  const std::string text(part + 7, 'a');
  CHECK(compare("", "") == found(true, {0}));
  CHECK(compare(text, text) == found(true, {part, 7}));
  CHECK(compare(text.substr(7), text.substr(7)) == found(true, {part, 0}));
  CHECK(compare(text, text.substr(7)) == found(false, {part}));
  CHECK(compare(text.substr(7), text) == found(false, {part}));
  std::string other = text;
  other.back() = 'b';
  CHECK(compare(text, other) == found(false, {part}));
  other.front() = 'b';
  CHECK(compare(other, text) == found(false, {}));
  CHECK_THROWS_AS(io::have_equal_bytes(dir / "x", dir / "missing", [](std::size_t) {}), io::error);
}

TEST_CASE("read_file decompresses gzip, of several members and as dictzip writes it") {
  const scratch_directory dir;
  const std::string text = sample_text(1'000'000);
  put(dir / "a.gz", gzip(text));
  CHECK(io::read_file(dir / "a.gz") == text);
  CHECK(io::read_raw_file(dir / "a.gz") == gzip(text));
  put(dir / "words.dict.dz", gzip(text, 58'315));
  CHECK(io::read_file(dir / "words.dict.dz") == text);
  put(dir / "empty.gz", gzip(""));
  CHECK(io::read_file(dir / "empty.gz") == "");
  put(dir / "members.gz", gzip("one ") + gzip("") + gzip(text) + gzip(" three", 2));
  CHECK(io::read_file(dir / "members.gz") == "one " + text + " three");
  put(dir / "padded.gz", gzip("one") + std::string(600'000, '\0'));
  CHECK(io::read_file(dir / "padded.gz") == "one");
  const std::string zeros(5'000'000, '\0');
  put(dir / "dense.gz", gzip(zeros));
  CHECK(io::read_file(dir / "dense.gz") == zeros);
}

TEST_CASE("read_file names what it cannot read") {
  const scratch_directory dir;
  const fs::path missing = dir / "missing";
  CHECK(message_of([&] { io::read_file(missing); }) == missing.string() + ": cannot open: No such file or directory");
  CHECK(message_of([&] { io::read_raw_file(missing); }) ==
        missing.string() + ": cannot open: No such file or directory");
  CHECK(message_of([&] { io::read_file(dir.path()); }) ==
        dir.path().string() + ": cannot read: a directory, not a regular file");
}

TEST_CASE("did_you_mean names a near name alone, else the valid ones if they are few") {
  CHECK(io::did_you_mean("scale", {"scales", "codes"}) == "; did you mean 'scales'?");
  CHECK(io::did_you_mean("RED", {"red", "green"}) == "; did you mean 'red'?");
  CHECK(io::did_you_mean("weight", {"x", "codes"}) == "; it is none of x, codes");
  CHECK(io::did_you_mean("a", {}) == "");
  CHECK(io::did_you_mean("weight", {std::string(300, 'x')}) == "");
}

TEST_CASE("devices, pipes and files beyond a limit are refused before they are read") {
  const scratch_directory dir;
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  const std::pair<fs::path, std::string> kinds[] = {{"/dev/zero", "a device"}, {dir / "pipe", "a pipe"}};
  for (const auto& [path, kind] : kinds) {
    const std::string message = path.string() + ": cannot read: " + kind + ", not a regular file";
    CHECK(message_of([&, &path = path] { io::read_beginning(path, 4); }) == message);
    CHECK(message_of([&, &path = path] { io::read_raw_file(path); }) == message);
    CHECK(message_of([&, &path = path] { io::read_file(path); }) == message);
  }
  const fs::path five = dir / "five";
  put(five, "12345");
  CHECK(message_of([&] { io::read_raw_file(five, 4); }) == five.string() + ": cannot read: 5 bytes, the limit is 4");
  CHECK(io::read_raw_file(five, 5) == "12345");
}

}  // namespace file_test
