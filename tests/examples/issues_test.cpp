// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// tests/issues.json: cases that users of other libraries reported, with the bits that this one gives.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "examples/validate/quantizer/report.hpp"
#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/gemm_ref.hpp"
#include "rotoscale/io/npy.hpp"
#include "rotoscale/io/safetensors.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/quantize_ref.hpp"

namespace issues_test {

using namespace rotoscale;
using nlohmann::json;
using bytes = std::vector<std::uint8_t>;

namespace {

template <class E>
E named(const json& name) {
  E value{};
  REQUIRE(from_string(name.get<std::string>(), value));
  return value;
}

std::uint32_t word_of(const json& hex) {
  return static_cast<std::uint32_t>(std::stoul(hex.get<std::string>(), nullptr, 16));
}
std::uint8_t byte_of(const json& hex) { return static_cast<std::uint8_t>(word_of(hex)); }

bool is_value(float found, const json& expected) {
  return expected == "nan" ? found != found : fp32_bits(found) == word_of(expected);
}

/// One block: the case's numbers, then +0.
struct block_case {
  block_format f;
  block_options o;
  std::vector<float> x;
  bytes codes, scales = bytes(1);

  explicit block_case(const json& c) : f(named<block_format>(c["format"])), x(static_cast<std::size_t>(f.length)) {
    codes.resize(static_cast<std::size_t>(packed_bytes(f.element, f.length)));
    if (c.contains("preset")) o = named<block_options>(c["preset"]);
    if (c.contains("source")) o.source = named<format>(c["source"]);
    if (c.contains("rounding")) o.rounding = named<rounding>(c["rounding"]);
    std::size_t i = 0;
    for (const json& word : c.value("x", json::array())) x[i++] = fp32_from_bits(word_of(word));
  }
  void draw(const json& random) { o.random = {random[0].get<std::uint64_t>(), random[1].get<std::uint64_t>()}; }
  block_matrix<std::uint8_t> blocks() { return dense_blocks(f, 1, f.length, codes.data(), scales.data()); }
  void quantize() { quantize_ref(f, o, row_major<const float>(x.data(), 1, f.length), block_axis::row, blocks()); }
  void dequantize() {
    const block_matrix<const std::uint8_t> in = blocks();
    dequantize_ref(f, in, block_axis::row, row_major(x.data(), 1, f.length));
  }
};

void encode_case(const json& c) {
  for (std::size_t i = 0; i < c["x"].size(); ++i) {
    CAPTURE(c["x"][i]);
    const auto code = encode(named<format>(c["format"]), fp32_from_bits(word_of(c["x"][i])),
                             named<rounding>(c["rounding"]), named<overflow>(c["overflow"]));
    CHECK(code == word_of(c["codes"][i]));
  }
}

void decode_case(const json& c) {
  for (std::size_t i = 0; i < c["codes"].size(); ++i) {
    CHECK(is_value(decode(named<format>(c["format"]), word_of(c["codes"][i])), c["values"][i]));
  }
}

void round_trip(const json& c) {
  const auto f = named<format>(c["format"]);
  for (std::uint32_t code = 0; code < 256; ++code) {
    const float value = decode(f, code);
    CHECK((value != value || encode(f, value) == code));
  }
}

void quantize_case(const json& c) {
  block_case b(c);
  if (c.contains("random")) b.draw(c["random"]);
  b.quantize();
  CHECK(b.scales[0] == byte_of(c["scale"]));
  for (std::size_t i = 0; i < c["codes"].size(); ++i) {
    CHECK(load_code(b.f.element, b.codes.data(), static_cast<index_t>(i)) == word_of(c["codes"][i]));
  }
}

void dequantize_case(const json& c) {
  block_case b(c);
  b.scales[0] = byte_of(c["scale"]);
  for (std::size_t i = 0; i < c["codes"].size(); ++i) {
    store_code(b.f.element, b.codes.data(), static_cast<index_t>(i), byte_of(c["codes"][i]));
  }
  b.dequantize();
  for (std::size_t i = 0; i < c["values"].size(); ++i) CHECK(is_value(b.x[i], c["values"][i]));
}

void dot(const json& c) {
  const auto k = c["k"].get<index_t>();
  const auto f = named<block_format>(c["b_format"]);
  REQUIRE(c["a_format"] == "bf16");
  const std::vector<std::uint16_t> a(static_cast<std::size_t>(k), static_cast<std::uint16_t>(word_of(c["a"])));
  const bytes b(static_cast<std::size_t>(k), byte_of(c["b"])),
      scales(static_cast<std::size_t>(k / f.length), byte_of(c["b_scale"]));
  const gemm_operand left{.element = formats::bf16,
                          .rows = 1,
                          .k = k,
                          .codes = reinterpret_cast<const std::uint8_t*>(a.data()),
                          .code_stride = 2 * k};
  const gemm_operand right = make_operand(f, dense_blocks(f, 1, k, b.data(), scales.data()));
  const mma_unit* const unit = find_unit(c["contract"].get<std::string>());
  REQUIRE(unit != nullptr);
  float sum = 0;
  gemm_ref(left, right, contract_options(*find_contract("single-accumulator"), unit->model), row_major(&sum, 1, 1));
  CHECK(is_value(sum, c["value"]));
}

bytes from_hex(const std::string& text) {
  bytes all;
  for (std::size_t i = 0; i < text.size(); i += 2) all.push_back(byte_of(text.substr(i, 2)));
  return all;
}

void validate_case(const json& c) {
  io::safetensors_writer writer;
  const auto add = [&](const char* name, const char* dtype, index_t columns, const auto& values) {
    writer.add(name, dtype, {1, columns}, std::as_bytes(std::span(values)));
  };
  std::vector<float> x;
  for (const json& word : c["x"]) x.push_back(fp32_from_bits(word_of(word)));
  add("x", "F32", static_cast<index_t>(x.size()), x);
  for (const char* name : {"codes", "scales"}) {
    if (!c.contains(name)) continue;
    const std::string dtype = c[std::string(name) + "_dtype"];
    const bytes data = from_hex(c[name]);
    add(name, dtype.c_str(), static_cast<index_t>(data.size()) * (dtype == "F4" ? 2 : 1), data);
  }
  std::vector<float> factor;
  if (c.contains("factor")) {
    factor = {fp32_from_bits(word_of(c["factor"]))};
    writer.add("factor", "F32", {1}, std::as_bytes(std::span(factor)));
  }
  validate::quantizer_options o;
  o.preset = c["options"]["preset"];
  o.format = c["options"]["format"];
  o.nibbles = c["options"].value("nibbles", o.nibbles);
  thread_pool pool(1);
  const auto file = io::safetensors_file::from_bytes("case", writer.bytes("case"));
  CHECK(validate::check_quantizer(o, file, pool).result.identical() == c["identical"].get<bool>());
}

void refuse_file(const json& c) {
  const std::string header = c["header"].dump();
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  file += header + std::string(c["bytes"].get<std::size_t>(), '\0');
  CHECK_THROWS_AS(io::safetensors_file::from_bytes("case", file), io::error);
}

void refuse_quantize(const json& c) {
  const auto f = named<block_format>(c["format"]);
  const auto rows = c["rows"].get<index_t>(), k = c["columns"].get<index_t>();
  std::vector<float> x(static_cast<std::size_t>(rows * k));
  bytes codes(x.size()), scales(x.size());
  CHECK_FALSE(quantize_is_defined(f, {}, row_major<const float>(x.data(), rows, k), block_axis::row,
                                  dense_blocks(f, rows, k, codes.data(), scales.data())));
}

void unlike(const json& c) {
  block_case first(c), second(c);
  first.o.rounding = second.o.rounding = rounding::stochastic;
  first.draw(c["random"][0]);
  second.draw(c["random"][1]);
  first.quantize();
  second.quantize();
  CHECK(first.codes != second.codes);
}

void again(const json& c) {
  block_case b(c);
  b.quantize();
  const bytes codes = b.codes, scales = b.scales;
  b.dequantize();
  b.quantize();
  CHECK((b.codes == codes && b.scales == scales));
}

/// An array of that type is read as bytes: its header names no format.
void refuse_dtype(const json& c) {
  std::string header = "{'descr': '|" + c["dtype"].get<std::string>() + "', 'fortran_order': False, 'shape': (4,), }";
  header.resize(117, ' ');
  const std::string file = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n" + "abcd";
  CHECK(io::npy_file::from_bytes("case", file).header().dtype == c["dtype"].get<std::string>());
}

const std::map<std::string, void (*)(const json&)> checks = {{"encode", encode_case},
                                                             {"decode", decode_case},
                                                             {"round_trip", round_trip},
                                                             {"quantize", quantize_case},
                                                             {"dot", dot},
                                                             {"dequantize", dequantize_case},
                                                             {"validate", validate_case},
                                                             {"refuse_file", refuse_file},
                                                             {"unlike", unlike},
                                                             {"refuse_quantize", refuse_quantize},
                                                             {"again", again},
                                                             {"refuse_dtype", refuse_dtype}};

}  // namespace

TEST_CASE("complaints about other libraries have these bits") {
  const char* path = std::getenv("ROTOSCALE_ISSUES");
  REQUIRE_MESSAGE(path != nullptr, "ROTOSCALE_ISSUES must name tests/issues.json");
  const json issues = json::parse(std::ifstream(path));
  CHECK(issues.size() == 36);
  for (const json& issue : issues) {
    CAPTURE(issue["number"]);
    for (const json& c : issue["cases"]) checks.at(c["do"].get<std::string>())(c);
  }
}

}  // namespace issues_test
