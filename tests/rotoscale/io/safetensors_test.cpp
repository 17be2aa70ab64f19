// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The safetensors writer's bytes, and a reader that answers every kind of bad file with a message.

#include "rotoscale/io/safetensors.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "scratch.hpp"

namespace safetensors_test {

namespace io = rotoscale::io;
using io::safetensors_file;
using io::safetensors_writer;
using namespace rotoscale::io::testing;

std::vector<std::byte> some_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 37 + 11);
  return bytes;
}

std::string file_of(std::string_view header, std::string_view data = "") {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes.append(header).append(data);
}

std::string failure_of_bytes(const std::string& bytes) {
  return message_of([&] { safetensors_file::from_bytes("m.st", bytes); });
}

std::string failure(std::string_view header, std::size_t data_size = 0) {
  return failure_of_bytes(file_of(header, std::string(data_size, 'x')));
}

/// A header entry named t.
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"t\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
}

safetensors_writer sample() {
  safetensors_writer writer;
  writer.metadata = {{"format", "pt"}, {"author", "\"x\""}};
  writer.add("model.weight", "F32", {2, 3}, some_bytes(24));
  writer.add("codes", "F4", {4, 2}, some_bytes(4));
  writer.add("a", "BF16", {}, some_bytes(2));
  writer.add("none", "I64", {0, 5}, {});
  return writer;
}

/// An accepted file must be consistent: the ranges tile the data and can be read.
void check_consistent(const safetensors_file& file, std::size_t file_size) {
  std::uint64_t covered = 0;
  std::size_t sum = 0;
  for (const io::tensor_info& info : file.tensors()) {
    REQUIRE(info.begin == covered);
    covered = info.end;
    REQUIRE(file.find(info.name) == &info);
    for (const std::byte b : file.bytes(info)) sum += static_cast<std::size_t>(b);
    REQUIRE(io::detail::size_problem(info.dtype, info.shape, info.end - info.begin) == "");
  }
  REQUIRE(sum <= file_size * 255);
  REQUIRE(covered <= file_size);
}

TEST_CASE("the writer's bytes are fixed: insertion order, sorted metadata, padded header") {
  safetensors_writer writer;
  writer.metadata = {{"b", "2"}, {"a", "1"}};
  writer.add("z", "U8", {3}, some_bytes(3));
  writer.add("y", "F4", {2}, some_bytes(1));
  const std::string header = R"({"__metadata__":{"a":"1","b":"2"},"z":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                             R"("y":{"dtype":"F4","shape":[2],"data_offsets":[3,4]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  CHECK(writer.bytes("x") == file_of(padded, "\x0b\x30\x55\x0b"));
  CHECK(safetensors_writer().bytes("x") == file_of("{}      "));
  CHECK(sample().bytes("x") == sample().bytes("x"));
}

TEST_CASE("what is written is read back") {
  const scratch_directory dir;
  const auto path = dir / "m.safetensors";
  sample().write(path);
  CHECK(dir.entries() == 1);
  CHECK(get(path) == sample().bytes("x"));
  const auto file = safetensors_file::open(path);
  CHECK(file.name() == path.string());
  CHECK(file.metadata() == std::map<std::string, std::string>{{"author", "\"x\""}, {"format", "pt"}});
  REQUIRE(file.tensors().size() == 4);
  CHECK(file.tensors()[0].name == "model.weight");
  CHECK(file.find("missing") == nullptr);
  const io::tensor_info* weight = file.find("model.weight");
  REQUIRE(weight != nullptr);
  CHECK(weight->dtype == "F32");
  CHECK(weight->shape == std::vector<std::int64_t>{2, 3});
  const auto bytes = file.bytes(*weight);
  REQUIRE(bytes.size() == 24);
  CHECK(std::memcmp(bytes.data(), some_bytes(24).data(), 24) == 0);
  CHECK(file.find("a")->shape.empty());
  CHECK(file.bytes(*file.find("a")).size() == 2);
  CHECK(file.bytes(*file.find("none")).empty());
  check_consistent(file, get(path).size());
  const safetensors_file moved = [&] { return safetensors_file::open(path); }();
  CHECK(moved.bytes(*moved.find("codes")).size() == 4);
  const io::tensor_info foreign{"foreign", "U8", {1}, 40, 41};
  CHECK(message_of([&] { file.bytes(foreign); }) == path.string() + ": tensor 'foreign': not a tensor of this file");
}

TEST_CASE("every dtype has its size, and sub-byte tensors end on a byte") {
  for (const auto& dtype : io::detail::safetensors_dtypes) {
    const std::string name = dtype.name;
    const std::uint64_t bits = dtype.bits;
    CAPTURE(name);
    const std::string header = entry(name, "[4]", "[0," + std::to_string(bits / 2) + "]");
    CHECK(failure(header, bits / 2) == "(no error)");
    const std::string whole = "dtype and shape take " + std::to_string(bits / 8) + " bytes, its data has 0";
    const std::string broken = "its " + std::to_string(bits) + " bits do not end on a byte";
    CHECK(failure(entry(name, "[]", "[0,0]")) ==
          "m.st: tensor 't' at data offset 0: " + (bits % 8 == 0 ? whole : broken));
  }
  CHECK(failure(entry("F6_E2M3", "[3]", "[0,2]"), 2) ==
        "m.st: tensor 't' at data offset 0: its 18 bits do not end on a byte");
  CHECK(failure(entry("F8_E4M4", "[1]", "[0,1]"), 1) ==
        "m.st: tensor 't' at data offset 0: unknown dtype 'F8_E4M4'; did you mean 'F8_E4M3'?");
}

TEST_CASE("the dtypes are those of the Rust implementation: 22 names and their bits") {
  // safetensors/src/tensor.rs at 24b0b2857fef (May 2026): enum Dtype, its Display and bitsize().
  const std::map<std::string, std::uint64_t> upstream{
      {"BOOL", 8},        {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},   {"I8", 8},
      {"F8_E5M2", 8},     {"F8_E4M3", 8},     {"F8_E8M0", 8}, {"I16", 16},    {"U16", 16}, {"F16", 16},
      {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"BF16", 16},   {"I32", 32},    {"U32", 32}, {"F32", 32},
      {"C64", 64},        {"F64", 64},        {"I64", 64},    {"U64", 64}};
  std::map<std::string, std::uint64_t> ours;
  for (const auto& dtype : io::detail::safetensors_dtypes) ours[dtype.name] = dtype.bits;
  CHECK(ours == upstream);
  CHECK(ours.size() == std::size(io::detail::safetensors_dtypes));
}

TEST_CASE(
    "sub-byte tensors: eight elements of 6 bits take six bytes, of 4 bits four, on any shape that ends on a byte") {
  CHECK(failure(entry("F6_E2M3", "[2,4]", "[0,6]"), 6) == "(no error)");
  CHECK(failure(entry("F6_E3M2", "[4]", "[0,3]"), 3) == "(no error)");
  CHECK(failure(entry("F4", "[2,1,4]", "[0,4]"), 4) == "(no error)");
  CHECK(failure(entry("F6_E3M2", "[4,0]", "[0,0]")) == "(no error)");
  CHECK(failure(entry("F4", "[8]", "[0,8]"), 8) ==
        "m.st: tensor 't' at data offset 0: dtype and shape take 4 bytes, its data has 8");
  CHECK(failure(entry("F6_E3M2", "[2]", "[0,2]"), 2) ==
        "m.st: tensor 't' at data offset 0: its 12 bits do not end on a byte");
}

TEST_CASE("files that other writers may make are accepted") {
  CHECK(failure("{}") == "(no error)");
  CHECK(failure("{} ") == "(no error)");
  CHECK(failure("{ \"__metadata__\" : {} } ") == "(no error)");
  CHECK(failure("{}" + std::string(638, ' ')) == "(no error)");    // its length begins as a pickle does
  CHECK(failure("{}" + std::string(35613, ' ')) == "(no error)");  // and as gzip
  const std::string reversed =
      R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},"e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},)"
      R"("a":{"data_offsets":[0,1],"shape":[1],"dtype":"I8"}})";
  const auto file = safetensors_file::from_bytes("m.st", file_of(reversed, "xyz"));
  REQUIRE(file.tensors().size() == 3);
  CHECK(file.tensors()[0].name == "a");
  CHECK(file.tensors()[1].name == "e");
  CHECK(static_cast<char>(file.bytes(*file.find("b"))[1]) == 'z');
  CHECK(failure(entry("U8", "[0,9223372036854775807,9223372036854775807]", "[0,0]")) == "(no error)");
}

TEST_CASE("a bad frame is refused") {
  CHECK(failure_of_bytes("") == "m.st: offset 0: 0 bytes are too few for a header length");
  CHECK(failure_of_bytes("1234567") == "m.st: offset 0: 7 bytes are too few for a header length");
  CHECK(failure_of_bytes(std::string("\x03\0\0\0\0\0\0\0{}", 10)) ==
        "m.st: offset 0: header length 3 reaches beyond the end of the file");
  CHECK(failure_of_bytes(std::string(8, '\xff') + "{}") ==
        "m.st: offset 0: header length 18446744073709551615 is above the limit of 100000000");
  CHECK(failure_of_bytes(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10)) ==
        "m.st: offset 0: header length 100000001 is above the limit of 100000000");
  CHECK(failure_of_bytes(std::string("\x00\xe1\xf5\x05\0\0\0\0{}", 10)) ==
        "m.st: offset 0: header length 100000000 reaches beyond the end of the file");
  CHECK(failure("") == "m.st: offset 8: the header does not begin with '{'");
  CHECK(failure(" {}") == "m.st: offset 8: the header does not begin with '{'");
  CHECK(failure("\xef\xbb\xbf{}") == "m.st: offset 8: the header does not begin with '{'");
  CHECK(failure("[]") == "m.st: offset 8: the header does not begin with '{'");
}

TEST_CASE("another kind of file under this name is called by its kind") {
  CHECK(failure_of_bytes("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n") ==
        "m.st: is a Git LFS pointer, not the file itself: run `git lfs pull`");
  CHECK(failure_of_bytes("<!DOCTYPE html><html>") == "m.st: is a web page: the download did not get the file itself");
  CHECK(failure_of_bytes("GGUF").starts_with("m.st: is a GGUF file: "));
  CHECK(failure_of_bytes("PK\x03\x04") ==
        "m.st: is a zip archive (.bin, .pt or .npz): convert it to safetensors or .npy");
}

TEST_CASE("a bad header is refused") {
  const std::string at = "m.st: header at offset 8: ";
  CHECK(failure("{").rfind(at + "line 1, column 2: syntax error", 0) == 0);
  CHECK(failure("{}x").rfind(at + "line 1, column 3: syntax error", 0) == 0);
  CHECK(failure(std::string_view("{}\0\0", 4)) == at + "line 1, column 3: a zero byte");
  CHECK(failure("{\"\xff\":1}").rfind(at + "line 1, column 3: syntax error", 0) == 0);
  CHECK(failure(R"({"__metadata__":null})") == "(no error)");
  CHECK(failure(R"({"__metadata__":[]})") == at + "__metadata__ is not an object");
  CHECK(failure(R"({"__metadata__":{"k":1}})") == at + "__metadata__.k is not a string");
  CHECK(failure(R"({"__metadata__":{"k":"1","k":"1"}})") == at + "the key 'k' is given twice");
  const std::string t = R"("t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  CHECK(failure("{" + t + "," + t + "}") == at + "the key 't' is given twice");
  CHECK(failure(R"({"t":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})") ==
        at + "the key 'dtype' is given twice");
}

TEST_CASE("a bad header entry is refused") {
  const std::string at = "m.st: tensor 't' in the header at offset 8: ";
  CHECK(failure(R"({"t":1})") == at + "not an object");
  CHECK(failure(R"({"t":{}})") == at + "dtype is missing");
  CHECK(failure(R"({"t":{"dtype":"U8","shape":[]}})") == at + "data_offsets is missing");
  CHECK(failure(R"({"t":{"dtype":"U8","data_offsets":[0,1]}})") == at + "shape is missing");
  CHECK(failure(R"({"t":{"dtype":1,"shape":[],"data_offsets":[0,1]}})") == at + "dtype is not a string");
  for (const char* offsets : {"[0]", "[0,1,2]", "1", "null", "[0,-1]", "[-0,1]", "[0,1.0]", "[0,\"1\"]", "[0,1e0]",
                              "[0,18446744073709551616]"}) {
    CHECK(failure(entry("U8", "[1]", offsets), 1) == at + "data_offsets is not an array of two non-negative integers");
  }
  const std::string with_offset = "m.st: tensor 't' at data offset 0: ";
  CHECK(failure(entry("U8", "1", "[0,1]"), 1) == with_offset + "shape is not an array");
  for (const char* shape : {"[-1]", "[1.0]", "[null]", "[[1]]", "[9223372036854775808]"}) {
    CHECK(failure(entry("U8", shape, "[0,1]"), 1) ==
          with_offset + "shape holds something other than non-negative 64-bit integers");
  }
}

TEST_CASE("sizes that do not fit or overflow are refused") {
  const std::string at = "m.st: tensor 't' at data offset 0: ";
  CHECK(failure(entry("F32", "[2,2]", "[0,15]"), 15) == at + "dtype and shape take 16 bytes, its data has 15");
  CHECK(failure(entry("U8", "[4294967296,4294967296]", "[0,0]")) == at + "the number of elements overflows");
  CHECK(failure(entry("U8", "[4294967296,4294967296,0]", "[0,0]")) == at + "the number of elements overflows");
  CHECK(failure(entry("F64", "[2305843009213693952]", "[0,0]")) == at + "the number of bytes overflows");
  CHECK(failure(entry("F64", "[288230376151711744]", "[0,0]")) == at + "the number of bytes overflows");
  CHECK(failure(entry("U8", "[1]", "[0,18446744073709551615]"), 1) ==
        at + "ends at 18446744073709551615, beyond the 1 data bytes");
}

TEST_CASE("gaps, overlaps and bytes that belong to no tensor are refused") {
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + second + "}}";
  };
  CHECK(failure(two("[0,2]", "[2,4]"), 4) == "(no error)");
  CHECK(failure(two("[0,2]", "[3,5]"), 5) == "m.st: tensor 'b' at data offset 3: a gap before it, from data offset 2");
  CHECK(failure(two("[1,3]", "[3,5]"), 5) == "m.st: tensor 'a' at data offset 1: a gap before it, from data offset 0");
  CHECK(failure(two("[0,2]", "[1,3]"), 3) ==
        "m.st: tensor 'b' at data offset 1: overlaps the one before, which ends at 2");
  CHECK(failure(two("[0,2]", "[0,2]"), 2) ==
        "m.st: tensor 'b' at data offset 0: overlaps the one before, which ends at 2");
  CHECK(failure(two("[0,2]", "[2,0]"), 2) == "m.st: tensor 'b' at data offset 2: ends before it begins, at 0");
  CHECK(failure(two("[0,2]", "[2,4]"), 3) == "m.st: tensor 'b' at data offset 2: ends at 4, beyond the 3 data bytes");
  CHECK(failure(two("[0,2]", "[2,4]"), 7) == "m.st: 3 bytes after the last tensor, which ends at data offset 4");
  CHECK(failure("{}", 1) == "m.st: 1 bytes after the last tensor, which ends at data offset 0");
}

TEST_CASE("the writer refuses what the reader would refuse") {
  const auto attempt = [](const std::string& name, const std::string& dtype, std::vector<std::int64_t> shape,
                          std::size_t size) {
    return message_of([&] {
      safetensors_writer writer;
      writer.add("first", "U8", {1}, some_bytes(1));
      writer.add(name, dtype, shape, some_bytes(size));
      writer.bytes("out.st");
    });
  };
  CHECK(attempt("t", "U8", {2}, 2) == "(no error)");
  CHECK(attempt("first", "U8", {2}, 2) == "safetensors: tensor 'first': added twice");
  CHECK(attempt("__metadata__", "U8", {2}, 2) == "safetensors: tensor '__metadata__': the name is reserved");
  CHECK(attempt("t", "F31", {2}, 8) == "safetensors: tensor 't': unknown dtype 'F31'; did you mean 'F32'?");
  CHECK(attempt("t", "F32", {2}, 7) == "safetensors: tensor 't': dtype and shape take 8 bytes, its data has 7");
  CHECK(attempt("t", "F32", {-2}, 8) == "safetensors: tensor 't': negative extent -2 in its shape");
  CHECK(attempt("t", "F4", {3}, 2) == "safetensors: tensor 't': its 12 bits do not end on a byte");
  CHECK(attempt("\xff", "U8", {2}, 2) == "out.st: cannot be written as JSON: a string is not UTF-8");
  CHECK(attempt(std::string(100'000'000, 'n'), "U8", {1}, 1).rfind("out.st: a header of 1000001", 0) == 0);
}

TEST_CASE("a path that cannot be read or written is named") {
  const scratch_directory dir;
  const std::string missing = (dir / "no").string() + "/m.safetensors";
  CHECK(message_of([&] { safetensors_file::open(missing); }) == missing + ": cannot open: No such file or directory");
  CHECK(message_of([&] { sample().write(missing); }) == missing + ": cannot write: No such file or directory");
  put(dir / "short", "abc");
  CHECK(message_of([&] { safetensors_file::open(dir / "short"); }) ==
        (dir / "short").string() + ": offset 0: 3 bytes are too few for a header length");
}

}  // namespace safetensors_test
