// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// npy.hpp and npy_header.hpp: the writer's bytes, headers, and a reader that answers every kind of bad file with a
// message. tests/oracle/numpy_test.py compares with NumPy.

#include "rotoscale/io/npy.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "scratch.hpp"

namespace npy_test {

namespace io = rotoscale::io;
using io::npy_file;
using io::npy_header;
using namespace rotoscale::io::testing;

std::vector<std::byte> some_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 37 + 11);
  return bytes;
}

/// A file with this exact header, without padding.
std::string file_of(std::string_view header, std::string_view data = "", int version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  for (std::size_t i = 0; i < (version == 1 ? 2u : 4u); ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes.append(header).append(data);
}

std::string failure_of_bytes(const std::string& bytes) {
  return message_of([&] { npy_file::from_bytes("a.npy", bytes); });
}

std::string failure(std::string_view header, std::size_t data_size = 0) {
  return failure_of_bytes(file_of(header, std::string(data_size, 'x')));
}

std::string dictionary(const std::string& descr, const std::string& order, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + "}";
}

template <class T>
npy_file file_with(const npy_header& h, const std::vector<T>& values) {
  return npy_file::from_bytes("a.npy", io::npy_bytes(h, std::as_bytes(std::span<const T>(values))));
}

TEST_CASE("the writer's bytes are NumPy's") {
  // np.save of np.array([[1, 2, 3], [4, 5, 6]], '<u2'), recorded from NumPy 2.4.
  const std::string header = "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }";
  const std::string data("\1\0\2\0\3\0\4\0\5\0\6\0", 12);
  const std::string expected =
      std::string("\x93NUMPY\x01\0\x76\0", 10) + header + std::string(127 - 10 - header.size(), ' ') + "\n" + data;
  const std::vector<std::uint16_t> values{1, 2, 3, 4, 5, 6};
  const scratch_directory dir;
  io::write_npy(dir / "a.npy", rotoscale::row_major(values.data(), 2, 3));
  CHECK(get(dir / "a.npy") == expected);
  CHECK(dir.entries() == 1);
  CHECK(io::npy_bytes({"u2", {2, 3}}, std::as_bytes(std::span(values))) == expected);
  const auto later = io::npy_bytes({"u2", {2, 3}}, std::as_bytes(std::span(values)), 3);
  CHECK(later.substr(0, 12) == std::string("\x93NUMPY\x03\0\x74\0\0\0", 12));
  CHECK(later.substr(12) == expected.substr(10, 0x73) + "\n" + data);
  CHECK(
      io::npy_bytes({"V1", {}, true}, some_bytes(1)).find("{'descr': '|V1', 'fortran_order': True, 'shape': (), } ") ==
      10);
  CHECK(io::npy_bytes({"f8", {0}}, {}).find("'shape': (0,), } ") != std::string::npos);
}

TEST_CASE("every type, order and version is read back as it was written") {
  for (const auto& type : io::detail::npy_types) {
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{}, {5}, {2, 3}, {2, 3, 4}, {0, 7}, {1, 0, 2, 3}}) {
      for (const bool fortran : {false, true}) {
        for (const int version : {1, 2, 3}) {
          const npy_header h{type.dtype, shape, fortran};
          const auto data = some_bytes(io::detail::npy_count(shape) * type.bytes);
          const auto bytes = io::npy_bytes(h, data, version);
          REQUIRE((bytes.size() - data.size()) % 64 == 0);
          const auto file = npy_file::from_bytes("a.npy", bytes);
          REQUIRE(file.header().dtype == type.dtype);
          REQUIRE(file.shape() == shape);
          REQUIRE(file.header().fortran_order == fortran);
          REQUIRE(std::vector<std::byte>(file.bytes().begin(), file.bytes().end()) == data);
        }
      }
    }
  }
}

TEST_CASE("views show the elements where the file has them") {
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  const auto rows = file_with<float>({"f4", {2, 3}, false}, values);
  const auto columns = file_with<float>({"f4", {3, 2}, true}, values);
  const auto r = rows.as_matrix<float>();
  const auto c = columns.as_matrix<float>();
  CHECK(r.stride(0) == 3);
  CHECK(r.stride(1) == 1);
  CHECK(c.stride(0) == 1);
  CHECK(c.stride(1) == 3);
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      CHECK(r(i, j) == static_cast<float>(3 * i + j + 1));
      CHECK(c(j, i) == r(i, j));
    }
  }
  CHECK(rows.to_fp32() == values);
  CHECK(columns.to_fp32() == std::vector<float>{1, 4, 2, 5, 3, 6});  // in C order
  const auto cube = file_with<std::uint8_t>({"u1", {1, 2, 2}, true}, {1, 2, 3, 4});
  CHECK(cube.as_view<std::uint8_t, 3>()(0, 1, 0) == 2);
  CHECK(cube.to_fp32() == std::vector<float>{1, 3, 2, 4});
  const auto scalar = file_with<double>({"f8", {}}, {0.1});
  CHECK(scalar.count() == 1);
  CHECK(scalar.to_fp32() == std::vector<float>{0.1f});

  CHECK(message_of([&] { rows.as_matrix<double>(); }) == "a.npy: elements of type 'f4' are not what is asked for");
  CHECK(message_of([&] { rows.as_matrix<std::uint16_t>(); }) ==
        "a.npy: elements of type 'f4' are not what is asked for");
  CHECK(message_of([&] { (void)rows.as_view<float, 3>(); }) == "a.npy: has 2 axes, not 3");
}

TEST_CASE("an array that its file does not align is aligned in memory") {
  const std::string data("\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\x40", 16);
  for (std::size_t spaces = 0; spaces < 8; ++spaces) {
    const auto file =
        npy_file::from_bytes("a.npy", file_of(dictionary("'<f8'", "False", "(1, 2)") + std::string(spaces, ' '), data));
    const auto x = file.as_matrix<double>();
    CHECK(reinterpret_cast<std::uintptr_t>(x.data) % alignof(double) == 0);
    CHECK(x(0, 0) == 1.0);
    CHECK(x(0, 1) == 2.0);
  }
}

TEST_CASE("codes: views and FP32 values in the format that the caller names") {
  using namespace rotoscale;
  const std::vector<std::uint8_t> codes{0x38, 0x7E, 0xFF, 0x00};
  for (const char* dtype : {"V1", "u1"}) {
    const auto file = file_with<std::uint8_t>({dtype, {2, 2}}, codes);
    CHECK(static_cast<float>(file.as_matrix<e4m3>()(0, 1)) == 448.0f);
    CHECK(file.as_matrix<std::uint8_t>()(1, 0) == 0xFF);
    const auto x = file.to_fp32(formats::e4m3);
    CHECK(x[0] == 1.0f);
    CHECK(x[1] == 448.0f);
    CHECK(fp32_bits(x[2]) == 0xFFC00000u);
    CHECK(file.to_fp32(formats::e8m0)[3] == 0x1p-127f);
    CHECK(message_of([&] { (void)file.to_fp32(formats::bf16); }) ==
          std::string("a.npy: elements of type '") + dtype + "' are not codes of 16 bits");
  }
  const auto e5m2 = npy_file::from_bytes("a.npy", file_of(dictionary("'<f1'", "False", "(1, 1)"), "\x3c"));
  CHECK(e5m2.header().dtype == "V1");  // as NumPy stores ml_dtypes.float8_e5m2
  CHECK(e5m2.to_fp32(formats::e5m2) == std::vector<float>{1.0f});
  const auto raw = file_with<std::uint16_t>({"V2", {1, 2}}, {0x3F80, 0xC000});
  CHECK(static_cast<float>(raw.as_matrix<bf16>()(0, 1)) == -2.0f);
  CHECK(raw.to_fp32(formats::bf16) == std::vector<float>{1.0f, -2.0f});
  CHECK(message_of([&] { (void)raw.to_fp32(); }) ==
        "a.npy: elements of type 'V2' are codes; their format must be named");
  const auto half = file_with<std::uint16_t>({"f2", {1, 3}}, {0x3C00, 0x0001, 0xFC00});
  CHECK(half.to_fp32() == std::vector<float>{1.0f, 0x1p-24f, -INFINITY});
  CHECK(half.to_fp32(formats::fp16) == half.to_fp32());
  CHECK(half.as_matrix<fp16>()(0, 1).bits() == 1);
  CHECK(message_of([&] { (void)half.as_matrix<bf16>(); }) == "a.npy: elements of type 'f2' are not what is asked for");
  CHECK(file_with<std::int8_t>({"i1", {2}}, {-128, 127}).to_fp32() == std::vector<float>{-128.0f, 127.0f});
  CHECK(file_with<std::uint16_t>({"u2", {1}}, {65535}).to_fp32() == std::vector<float>{65535.0f});
  const auto words =
      file_with<std::uint32_t>({"u4", {1, 3}}, {7, 0x01000001u, 0xFFFFFFFFu});  // a tie, which goes to even
  CHECK(words.to_fp32() == std::vector<float>{7.0f, 0x1p24f, 0x1p32f});
  CHECK(words.as_matrix<std::uint32_t>()(0, 1) == 0x01000001u);
  CHECK(message_of([&] { (void)words.as_matrix<float>(); }) ==
        "a.npy: elements of type 'u4' are not what is asked for");
  CHECK(message_of([&] { (void)words.to_fp32(formats::fp16); }) ==
        "a.npy: elements of type 'u4' are not codes of 16 bits");
  const auto wide = file_with<double>({"f8", {2}}, {0x1.000001p0, 1e300});  // a tie, which goes to even
  CHECK(wide.to_fp32() == std::vector<float>{1.0f, INFINITY});
  const auto bits = file_with<std::uint32_t>({"f4", {1}}, {0xFF800001u}).to_fp32();
  std::uint32_t word = 0;
  std::memcpy(&word, bits.data(), sizeof word);
  CHECK(word == 0xFF800001u);
}

TEST_CASE("typed views are written in either order, from any strides") {
  using namespace rotoscale;
  const scratch_directory dir;
  std::vector<bf16> values;
  for (int i = 0; i < 12; ++i) values.push_back(bf16(static_cast<float>(i)));
  const view<bf16, 2> every_other{values.data() + 11, {2, 3}, {-6, -2}};
  for (const bool fortran : {false, true}) {
    io::write_npy(dir / "x.npy", every_other, fortran);
    const auto file = npy_file::open(dir / "x.npy");
    CHECK(file.name() == (dir / "x.npy").string());
    CHECK(file.header().dtype == "V2");
    CHECK(file.header().fortran_order == fortran);
    CHECK(file.to_fp32(formats::bf16) == std::vector<float>{11, 9, 7, 5, 3, 1});
    CHECK(static_cast<float>(file.as_matrix<bf16>()(1, 0)) == 5.0f);
  }
  std::vector<fp16> half(1, fp16(1.0f));
  io::write_npy(dir / "h.npy", row_major(half.data(), 1, 1));
  CHECK(npy_file::open(dir / "h.npy").header().dtype == "f2");
  std::vector<e2m1> small(3, e2m1(6.0f));
  io::write_npy(dir / "s.npy", view<const e2m1, 1>{small.data(), {3}, {1}});
  CHECK(npy_file::open(dir / "s.npy").to_fp32(formats::e2m1) == std::vector<float>{6, 6, 6});
  const std::string missing = (dir / "no").string() + "/x.npy";
  CHECK(message_of([&] { io::write_npy(missing, every_other); }) ==
        missing + ": cannot write: No such file or directory");
  CHECK(message_of([&] { npy_file::open(missing); }) == missing + ": cannot open: No such file or directory");
}

TEST_CASE("headers that other writers make are accepted") {
  const auto accepts = [](const std::string& header, std::size_t size) {
    return failure(header, size) == "(no error)";
  };
  CHECK(accepts("{'shape':(2,),'descr':'|u1','fortran_order':False}", 2));
  CHECK(accepts("{\"shape\": (2L, 3L), \"descr\": \"<f4\", \"fortran_order\": True,}   \n", 24));
  CHECK(accepts(" \t{\n'shape' : ( 2 , 3 , ) ,\r\n'descr' : '<V2' , 'fortran_order' : False , } ", 12));
  CHECK(accepts(dictionary("'<u1'", "False", "()"), 1));
  CHECK(accepts(dictionary("'|V2'", "False", "(9223372036854775807,0)"), 0) == false);
  CHECK(accepts(dictionary("'|V2'", "False", "(4611686018427387903,0)"), 0));
  for (const int version : {2, 3}) {
    CHECK(failure_of_bytes(file_of(dictionary("'<f4'", "False", "(1,)"), "abcd", version)) == "(no error)");
  }
}

TEST_CASE("a bad frame is refused") {
  CHECK(failure_of_bytes("") == "a.npy: offset 0: not an .npy file: no \\x93NUMPY");
  CHECK(failure_of_bytes("\x93NUMPX\x01") == "a.npy: offset 0: not an .npy file: no \\x93NUMPY");
  CHECK(failure_of_bytes("\x93NUMPY\x01") == "a.npy: offset 6: the file ends before its version");
  CHECK(failure_of_bytes(std::string("\x93NUMPY\x04\0\0\0", 10)) ==
        "a.npy: offset 6: version 4.0 is not one of 1.0, 2.0, 3.0");
  CHECK(failure_of_bytes(std::string("\x93NUMPY\x01\x01\0\0", 10)) ==
        "a.npy: offset 6: version 1.1 is not one of 1.0, 2.0, 3.0");
  CHECK(failure_of_bytes(std::string("\x93NUMPY\x02\0\x10\0\0", 11)) ==
        "a.npy: offset 8: the file ends before its header length");
  CHECK(failure_of_bytes(std::string("\x93NUMPY\x01\0\x02\0{", 11)) ==
        "a.npy: offset 8: header length 2 reaches beyond the end of the file");
  CHECK(failure_of_bytes(std::string("\x93NUMPY\x03\0\xff\xff\xff\xff{", 13)) ==
        "a.npy: offset 8: header length 4294967295 is above the limit of 10000");
  CHECK(failure(std::string(10001, ' ')) == "a.npy: offset 8: header length 10001 is above the limit of 10000");
}

TEST_CASE("a bad field is refused by its name") {
  const auto descr = [](const std::string& text) { return failure("{'descr': " + text + ","); };
  const auto order = [](const std::string& text) { return failure("{'fortran_order': " + text + ","); };
  const auto shape = [](const std::string& text) { return failure("{'shape': " + text + ",'"); };
  const auto ends_with = [](const std::string& text, const std::string& end) {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
  };
  CHECK(ends_with(descr("'<f16'"), ": descr: unknown type '<f16'; it is none of f2, f4, f8, u1, u2, u4, i1, V1, V2"));
  CHECK(ends_with(descr("'>f4'"), ": descr: '>f4' is big-endian, which is not supported"));
  CHECK(ends_with(descr("'f4'"), ": descr: 'f4' does not begin with '<' or '|'"));
  CHECK(ends_with(descr("'|f4'"), ": descr: '|f4' has no byte order"));
  CHECK(ends_with(descr("[('a', '<f4')]"), ": descr: arrays of records are not supported"));
  CHECK(ends_with(descr("4"), ": a string expected"));
  for (const char* text : {"true", "0", "Tru", "'True'", ""}) {
    CHECK(ends_with(order(text), ": fortran_order: True or False expected"));
  }
  CHECK(ends_with(order("Truex"), ": '}' expected"));
  CHECK(ends_with(shape("[2]"), ": shape: '(' expected"));
  CHECK(ends_with(shape("(2)"), ": shape: a number in brackets is no tuple"));
  for (const char* text : {"(-1,)", "(,)", "(2,,3)", "(x,)", "(None,)", "((2,),)", "(+1,)", "(2, "}) {
    CHECK(ends_with(shape(text), ": shape: a non-negative integer expected"));
  }
  for (const char* text : {"(1.0,)", "(2 3)", "(1_0,)", "(1:", "(0x10,)", "(1LL,)"}) {
    CHECK(ends_with(shape(text), ": shape: ',' or ')' expected"));
  }
  CHECK(ends_with(shape("(01,)"), ": shape: an integer with leading zeros"));
  CHECK(ends_with(shape("(9223372036854775808,)"), ": shape: an extent above 2^63 - 1"));
  std::string axes;
  for (int i = 0; i < 64; ++i) axes += "1,";
  CHECK(failure(dictionary("'|u1'", "True", "(" + axes + ")"), 1) == "(no error)");
  CHECK(ends_with(shape("(" + axes + "1)"), ": shape: more than 64 axes"));
  CHECK(ends_with(shape(std::string(5000, '(')), ": shape: a non-negative integer expected"));  // no recursion
}

}  // namespace npy_test
