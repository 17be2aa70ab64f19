// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Safetensors as streams and in several files: conversions to FP32, shards and their index, and files
// that are none.
#include "rotoscale/io/safetensors_shards.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "rotoscale/small_float.hpp"
#include "scratch.hpp"

namespace safetensors_shards_test {

using namespace rotoscale;
namespace fs = std::filesystem;
using io::safetensors_file;
using io::safetensors_shards;
using io::safetensors_writer;
using namespace rotoscale::io::testing;

template <class T>
std::span<const std::byte> raw(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

/// Three tensors of 8, 12 and 4 bytes.
safetensors_writer three() {
  safetensors_writer writer;
  writer.metadata["format"] = "pt";
  writer.add("a", "F32", {2}, raw(std::vector<float>{1, 2}));
  writer.add("b", "F32", {3}, raw(std::vector<float>{3, 4, 5}));
  writer.add("c", "BF16", {2}, raw(std::vector<std::uint16_t>{0x3F80, 0xC000}));
  return writer;
}

std::vector<float> floats(const safetensors_file& file, const io::tensor_info& info, std::uint64_t first,
                          std::size_t count) {
  std::vector<float> out(count);
  file.read_floats(info, first, out);
  return out;
}

TEST_CASE("elements as FP32: every code of 8 and 16 bits, and FP64 rounded once") {
  safetensors_writer writer;
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint16_t> words;
  for (unsigned i = 0; i < 256; ++i) bytes.push_back(static_cast<std::uint8_t>(i));
  for (unsigned i = 0; i < 65536; ++i) words.push_back(static_cast<std::uint16_t>(i));
  const std::pair<const char*, format> types[] = {{"F8_E4M3", formats::e4m3},
                                                  {"F8_E5M2", formats::e5m2},
                                                  {"F8_E8M0", formats::e8m0},
                                                  {"F8_E4M3FNUZ", formats::e4m3fnuz},
                                                  {"F8_E5M2FNUZ", formats::e5m2fnuz},
                                                  {"F16", formats::fp16},
                                                  {"BF16", formats::bf16}};
  for (const auto& [name, f] : types) {
    if (f.bits() == 8) writer.add(name, name, {256}, raw(bytes));
    if (f.bits() == 16) writer.add(name, name, {65536}, raw(words));
  }
  const std::vector<double> doubles{0.1, -0.0, 1e300, 1 + 0x1p-24, 1 + 0x3p-24, 0x1p-149};
  writer.add("F64", "F64", {6}, raw(doubles));
  const auto file = safetensors_file::from_bytes("m.st", writer.bytes("m.st"));
  for (const auto& type : types) {
    const auto [name, f] = type;
    CAPTURE(type.first);
    const std::size_t count = std::size_t{1} << f.bits();
    const auto all = floats(file, *file.find(name), 0, count);
    for (std::size_t code = 0; code < count; ++code) {
      const float expected = decode(f, code);
      REQUIRE((fp32_bits(all[code]) == fp32_bits(expected) || (std::isnan(all[code]) && std::isnan(expected))));
    }
    CHECK(floats(file, *file.find(name), 3, 5)[4] == decode(f, 7));
  }
  const auto rounded = floats(file, *file.find("F64"), 0, 6);
  const std::vector<float> expected{0.1f, -0.0f, std::numeric_limits<float>::infinity(), 1.0f, 1 + 0x1p-22f, 0x1p-149f};
  for (std::size_t i = 0; i < 6; ++i) CHECK(fp32_bits(rounded[i]) == fp32_bits(expected[i]));
}

TEST_CASE("what holds no numbers, and elements that are not there") {
  safetensors_writer writer;
  writer.add("i", "I64", {1}, raw(std::vector<std::int64_t>{1}));
  writer.add("four", "F4", {2}, raw(std::vector<std::uint8_t>{1}));
  writer.add("f", "F32", {2}, raw(std::vector<float>{1, 2}));
  const auto file = safetensors_file::from_bytes("m.st", writer.bytes("m.st"));
  const auto message = [&](const char* name, std::uint64_t first, std::size_t count) {
    return message_of([&] { floats(file, *file.find(name), first, count); });
  };
  CHECK(message("i", 0, 1) == "m.st: tensor 'i': its type I64 holds no floating-point numbers");
  CHECK(message("four", 0, 1) == "m.st: tensor 'four': elements of type F4 share bytes");
  CHECK(message("f", 1, 2) == "m.st: tensor 'f': has no elements 1 to 3");
  CHECK(message("f", 3, 0) == "m.st: tensor 'f': has no elements 3 to 3");
  CHECK(message("f", std::numeric_limits<std::uint64_t>::max(), 1).starts_with("m.st: tensor 'f': has no elements"));
  CHECK(message("f", 2, 0) == "(no error)");
}

TEST_CASE("streamed tensors give the bytes that copied ones give, and are asked for once a write") {
  int asked = 0;
  safetensors_writer streamed;
  streamed.metadata["format"] = "pt";
  streamed.add("a", "F32", {2}, raw(std::vector<float>{1, 2}));
  streamed.add_streamed("b", "F32", {3}, [&](const io::byte_sink& sink) {
    ++asked;
    for (const float x : {3.0f, 4.0f, 5.0f}) sink(std::as_bytes(std::span(&x, 1)));
  });
  streamed.add("c", "BF16", {2}, raw(std::vector<std::uint16_t>{0x3F80, 0xC000}));
  CHECK(asked == 0);
  const scratch_directory dir;
  streamed.write(dir / "m.safetensors");
  CHECK(asked == 1);
  CHECK(get(dir / "m.safetensors") == three().bytes("x"));
}

TEST_CASE("a source of another length leaves no file") {
  const scratch_directory dir;
  for (const std::size_t size : {std::size_t{3}, std::size_t{5}}) {
    safetensors_writer writer;
    writer.add_streamed("t", "U8", {4}, [&](const io::byte_sink& sink) { sink(std::vector<std::byte>(size)); });
    CHECK(message_of([&] { writer.write(dir / "m.safetensors"); }) ==
          std::string("safetensors: tensor 't': its source gives ") +
              (size == 3 ? "1 bytes too few" : "more bytes than dtype and shape take"));
    CHECK(dir.entries() == 0);
  }
}

TEST_CASE("shards: names, index and tensors as transformers has them") {
  const scratch_directory dir;
  fs::create_directory(dir / "one");
  three().write_shards(dir / "one", "model", 24);
  CHECK(get(dir / "one/model.safetensors") == three().bytes("x"));

  three().write_shards(dir.path(), "model", 20);  // 8 + 12, then 4
  const auto index = io::read_json(dir / "model.safetensors.index.json");
  CHECK(index.dump() == R"({"metadata":{"total_size":24},"weight_map":{"a":"model-00001-of-00002.safetensors",)"
                        R"("b":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors"}})");
  const auto model = safetensors_shards::open(dir.path());
  CHECK(model.size() == 3);
  CHECK(model.files().size() == 2);
  CHECK(model.files()[1].metadata().at("format") == "pt");
  const auto c = model.find("c");
  REQUIRE(c.info != nullptr);
  CHECK(floats(*c.file, *c.info, 0, 2) == std::vector<float>{1, -2});
  CHECK(floats(*model.find("b").file, *model.find("b").info, 0, 3) == std::vector<float>{3, 4, 5});
  CHECK(model.find("d").info == nullptr);

  fs::create_directory(dir / "two");
  three().write_shards(dir / "two", "model", 16);  // 8, then 12 + 4
  CHECK(safetensors_shards::open(dir / "two").files().at(1).tensors().size() == 2);
  fs::create_directory(dir / "each");
  three().write_shards(dir / "each", "adapter", 1);  // a tensor is never split
  CHECK(safetensors_shards::open(dir / "each", "adapter").files().size() == 3);
}

TEST_CASE("an index that lies") {
  const scratch_directory dir;
  three().write_shards(dir.path(), "model", 20);
  const fs::path path = dir / "model.safetensors.index.json";
  const auto whole = io::read_json(path);
  const auto message = [&](const nlohmann::ordered_json& index) {
    io::write_json(path, index);
    std::string text = message_of([&] { safetensors_shards::open(dir.path()); });
    for (std::size_t at; (at = text.find(dir.path().string())) != text.npos;)
      text.replace(at, dir.path().native().size(), "D");
    return text;
  };
  const auto with = [&](const char* tensor, const nlohmann::ordered_json& file) {
    auto changed = whole;
    changed["weight_map"][tensor] = file;
    return changed;
  };
  const std::string at = "D/model.safetensors.index.json: ";
  CHECK(message(whole) == "(no error)");
  CHECK(message(nlohmann::ordered_json::array()) == at + "weight_map is missing or not an object");
  CHECK(message({{"weight_map", 1}}) == at + "weight_map is missing or not an object");
  CHECK(message({{"weight_map", nlohmann::ordered_json::object()}}) == "(no error)");
  CHECK(message(with("a", 1)) == at + "weight_map: tensor 'a': its file is not a string");
  for (const char* path_out : {"../model-00001-of-00002.safetensors", "/etc/passwd", "", ".", ".."}) {
    CHECK(message(with("a", path_out)) ==
          at + "weight_map: tensor 'a': '" + path_out + "' is not the name of a file in its directory");
  }
  CHECK(message(with("a", "model-00002-of-00002.safetensors")) ==
        at + "weight_map: tensor 'a': is not in D/model-00002-of-00002.safetensors");
  CHECK(message(with("x", "none.safetensors")) == "D/none.safetensors: cannot open: No such file or directory");
  auto fewer = whole;
  fewer["weight_map"].erase("b");
  CHECK(message(fewer).starts_with("D/model-0000"));
  CHECK(message(fewer).ends_with(": tensor 'b': is not listed in D/model.safetensors.index.json"));
  safetensors_writer twice;
  twice.add("a", "U8", {1}, std::vector<std::byte>(1));
  twice.add("d", "U8", {1}, std::vector<std::byte>(1));
  twice.write(dir / "more.safetensors");
  CHECK(message(with("d", "more.safetensors")) == at + "tensor 'a' is in two files, the second is D/more.safetensors");
  twice.write(dir / "model.safetensors");
  CHECK(message(whole) ==
        "D/model.safetensors: exists as well as D/model.safetensors.index.json, which names "
        "model-00001-of-00002.safetensors; remove one");
  CHECK(message({{"weight_map", {{"a", "model.safetensors"}, {"d", "model.safetensors"}}}}) == "(no error)");
  fs::remove(path);
  CHECK(safetensors_shards::open(dir.path()).size() == 2);
  fs::remove(dir / "model.safetensors");
  CHECK(message_of([&] { safetensors_shards::open(dir.path()); }) ==
        (dir / "model.safetensors").string() + ": cannot open: No such file or directory");
}

}  // namespace safetensors_shards_test
