// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The library's conversions and block quantizer on standard input and output, for the Python oracles (oracle.py). All
// data is little-endian and raw.
//
// convert codes FROM TO ROUNDING OVERFLOW [BITS]
//     input: codes of FROM, in 1, 2, 4 or 8 bytes; with BITS (stochastic rounding), 4 bytes of random bits after each
// convert blocks FORMAT PRESET ROUNDING ROWS COLS FACTOR
//     input: an FP32 matrix. Output: codes, scales and FP32 values (times 1/FACTOR).
//     PRESET may add +hN for a Hadamard rotation of N points.
// convert swizzle ROWS COLS
//     scale bytes to NVIDIA's 128 × 4 layout, padded with zeros
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/layout.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/quantize_ref.hpp"

namespace rotoscale {
namespace {

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "convert: %s\n", what.c_str());
  std::exit(2);
}

template <class T, std::size_t N>
const T& named(const std::pair<const char*, T> (&table)[N], const std::string& name) {
  for (const auto& entry : table) {
    if (name == entry.first) return entry.second;
  }
  fail("unknown name '" + name + "'");
}

constexpr std::pair<const char*, format> format_names[] = {
    {"e2m1", formats::e2m1},         {"e2m3", formats::e2m3},
    {"e3m2", formats::e3m2},         {"e4m3", formats::e4m3},
    {"e5m2", formats::e5m2},         {"e4m3fnuz", formats::e4m3fnuz},
    {"e5m2fnuz", formats::e5m2fnuz}, {"e4m3b11fnuz", formats::e4m3b11fnuz},
    {"int8", formats::int8},         {"e8m0", formats::e8m0},
    {"ue4m3", formats::ue4m3},       {"bf16", formats::bf16},
    {"fp16", formats::fp16},         {"fp32", formats::fp32},
    {"fp64", formats::fp64},         {"e4m3ieee", format{4, 3, 7}},  // IEEE-like types that ml_dtypes has as well
    {"e3m4ieee", format{3, 4, 3}},   {"e5m2ieee", formats::e5m2}};

constexpr std::pair<const char*, overflow> overflow_names[] = {
    {"saturate", overflow::saturate}, {"to_inf", overflow::to_inf}, {"to_nan", overflow::to_nan}};

constexpr std::pair<const char*, block_format> block_names[] = {{"mxfp4", mxfp4},
                                                                {"mxfp6_e2m3", mxfp6_e2m3},
                                                                {"mxfp6_e3m2", mxfp6_e3m2},
                                                                {"mxfp8_e4m3", mxfp8_e4m3},
                                                                {"mxfp8_e5m2", mxfp8_e5m2},
                                                                {"mxint8", mxint8},
                                                                {"nvfp4", nvfp4}};

constexpr std::pair<const char*, block_options> preset_names[] = {{"ocp", presets::ocp},
                                                                  {"torchao_floor", presets::torchao_floor},
                                                                  {"torchao_rceil", presets::torchao_rceil},
                                                                  {"torchao_even", presets::torchao_even},
                                                                  {"torchao_ceil", presets::torchao_ceil},
                                                                  {"torchao_nvfp4", presets::torchao_nvfp4},
                                                                  {"nvidia", presets::nvidia}};

rounding rounding_named(const std::string& name) {
  rounding r{};
  if (!from_string(name, r)) fail("unknown rounding '" + name + "'");
  return r;
}

std::vector<std::uint8_t> read_all() {
  std::vector<std::uint8_t> all;
  std::uint8_t buffer[1 << 16];
  for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, stdin)) != 0;) {
    all.insert(all.end(), buffer, buffer + n);
  }
  return all;
}

template <class T>
void write_all(const std::vector<T>& x) {
  if (std::fwrite(x.data(), sizeof(T), x.size(), stdout) != x.size()) fail("cannot write");
}

std::size_t code_bytes(format f) {
  std::size_t bytes = 1;
  while (8 * bytes < static_cast<std::size_t>(f.bits())) bytes *= 2;
  return bytes;
}

void convert_codes(const std::vector<std::string>& args) {
  const format from = named(format_names, args[1]), to = named(format_names, args[2]);
  const rounding r = rounding_named(args[3]);
  const overflow o = named(overflow_names, args[4]);
  const bool random = args.size() > 5;
  const int count = random ? std::atoi(args[5].c_str()) : 32;
  const std::vector<std::uint8_t> in = read_all();
  const std::size_t from_bytes = code_bytes(from), to_bytes = code_bytes(to), step = from_bytes + (random ? 4 : 0);
  std::vector<std::uint8_t> out(in.size() / step * to_bytes);
  for (std::size_t i = 0; i < in.size() / step; ++i) {
    std::uint64_t code = 0;
    std::memcpy(&code, in.data() + i * step, from_bytes);
    random_bits bits{0, count};
    if (random) std::memcpy(&bits.word, in.data() + i * step + from_bytes, 4);
    code = convert(from, code, to, r, o, bits);
    std::memcpy(out.data() + i * to_bytes, &code, to_bytes);
  }
  write_all(out);
}

void quantize_blocks(const std::vector<std::string>& args) {
  const block_format f = named(block_names, args[1]);
  const std::size_t plus = args[2].find("+h");
  block_options o = named(preset_names, args[2].substr(0, plus));
  if (plus != std::string::npos) o.rotation.points = std::atoi(args[2].c_str() + plus + 2);
  o.rounding = rounding_named(args[3]);
  const index_t rows = std::atoi(args[4].c_str()), cols = std::atoi(args[5].c_str());
  o.encode_factor = std::strtof(args[6].c_str(), nullptr);
  const std::vector<std::uint8_t> in = read_all();
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  if (in.size() != x.size() * sizeof(float)) fail("the matrix has another size");
  std::memcpy(x.data(), in.data(), in.size());
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * packed_bytes(f.element, cols)));
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(rows * cols / f.length));
  const auto out = dense_blocks(f, rows, cols, codes.data(), scales.data());
  const matrix<const float> source = row_major<const float>(x.data(), rows, cols);
  if (!quantize_is_defined(f, o, source, block_axis::row, out)) fail("the quantizer does not take such a matrix");
  quantize_ref(f, o, source, block_axis::row, out);
  write_all(codes);
  write_all(scales);
  const block_matrix<const std::uint8_t> quantized = out;
  dequantize_ref(f, quantized, block_axis::row, row_major(x.data(), rows, cols), 1.0f / o.encode_factor);
  write_all(x);
}

void swizzle_scales(const std::vector<std::string>& args) {
  const layout l{placement::nvidia_scale_128x4, std::atoi(args[1].c_str()), std::atoi(args[2].c_str())};
  const std::vector<std::uint8_t> in = read_all();
  if (in.size() != static_cast<std::size_t>(l.rows * l.columns)) fail("the matrix has another size");
  std::vector<std::uint8_t> out(static_cast<std::size_t>(l.size_bytes()));
  place(row_major(in.data(), l.rows, l.columns), l, out.data(), 0);
  write_all(out);
}

}  // namespace
}  // namespace rotoscale

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() >= 5 && args.size() <= 6 && args[0] == "codes") {
    rotoscale::convert_codes(args);
  } else if (args.size() == 7 && args[0] == "blocks") {
    rotoscale::quantize_blocks(args);
  } else if (args.size() == 3 && args[0] == "swizzle") {
    rotoscale::swizzle_scales(args);
  } else {
    rotoscale::fail("see the top of convert.cpp");
  }
}
