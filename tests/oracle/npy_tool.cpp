// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Commands for numpy_test.py.
//
//    copy VERSION IN OUT   Reads an .npy file and writes it again.
//    fp32 FORMAT IN OUT    Writes its elements as FP32 in C order. FORMAT of raw codes is as in ml_dtypes, or "-".
//    rewrite ORDER IN OUT  Writes its elements, a matrix, through a typed view. ORDER is C or F.

#include <cstdio>
#include <span>
#include <string>
#include <string_view>

#include "rotoscale/io/npy.hpp"

namespace io = rotoscale::io;

namespace {

rotoscale::format format_named(std::string_view name) {
  namespace formats = rotoscale::formats;
  constexpr struct {
    std::string_view name;
    rotoscale::format value;
  } table[] = {{"bfloat16", formats::bf16},
               {"float8_e4m3fn", formats::e4m3},
               {"float8_e5m2", formats::e5m2},
               {"float8_e4m3fnuz", formats::e4m3fnuz},
               {"float8_e5m2fnuz", formats::e5m2fnuz},
               {"float8_e4m3b11fnuz", formats::e4m3b11fnuz},
               {"float8_e8m0fnu", formats::e8m0},
               {"float6_e2m3fn", formats::e2m3},
               {"float6_e3m2fn", formats::e3m2},
               {"float4_e2m1fn", formats::e2m1}};
  for (const auto& entry : table) {
    if (entry.name == name) return entry.value;
  }
  throw io::error("npy_tool", "no format " + std::string(name));
}

template <class T>
void rewrite(const io::npy_file& file, const std::string& out, bool fortran) {
  io::write_npy(out, file.as_matrix<T>(), fortran);
}

void rewrite(const io::npy_file& file, const std::string& out, bool fortran) {
  const std::string& type = file.header().dtype;
  if (type == "f2") return rewrite<rotoscale::fp16>(file, out, fortran);
  if (type == "f4") return rewrite<float>(file, out, fortran);
  if (type == "f8") return rewrite<double>(file, out, fortran);
  if (type == "u1") return rewrite<std::uint8_t>(file, out, fortran);
  if (type == "u2") return rewrite<std::uint16_t>(file, out, fortran);
  if (type == "u4") return rewrite<std::uint32_t>(file, out, fortran);
  if (type == "i1") return rewrite<std::int8_t>(file, out, fortran);
  if (type == "V1") return rewrite<rotoscale::e4m3>(file, out, fortran);
  return rewrite<rotoscale::bf16>(file, out, fortran);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) return 2;
  const std::string_view command = argv[1], how = argv[2];
  const auto file = io::npy_file::open(argv[3]);
  if (command == "copy") {
    io::write_npy(argv[4], file.header(), file.bytes(), how[0] - '0');
  } else if (command == "fp32") {
    const auto values = how == "-" ? file.to_fp32() : file.to_fp32(format_named(how));
    io::write_npy(argv[4], {"f4", file.shape()}, std::as_bytes(std::span(values)));
  } else {
    rewrite(file, argv[4], how == "F");
  }
  return 0;
} catch (const io::error& e) {
  std::printf("%s\n", e.what());
  return 1;
}
