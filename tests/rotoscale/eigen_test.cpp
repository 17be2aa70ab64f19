// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Eigen's casts against rotoscale's conversions, and views against their elements.
#include "rotoscale/eigen.hpp"

#include <doctest/doctest.h>

#include <sstream>
#include <vector>

#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/quantize_ref.hpp"

using namespace rotoscale;

namespace {

template <class T>
using row_matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using column_matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;

/// All codes, as a row.
template <class Number>
Eigen::Matrix<Number, 1, Eigen::Dynamic> all_codes() {
  Eigen::Matrix<Number, 1, Eigen::Dynamic> all(1 << Number::format.bits());
  for (int i = 0; i < all.size(); ++i) all(i) = Number::from_bits(static_cast<typename Number::storage>(i));
  return all;
}

template <class Number>
void check_casts() {
  CAPTURE(Number::format.bits());
  const auto all = all_codes<Number>();
  const Eigen::RowVectorXf as_float = all.template cast<float>();
  const Eigen::RowVectorXd as_double = all.template cast<double>();
  const auto back = as_float.cast<Number>().eval();
  const auto back_from_double = as_double.cast<Number>().eval();
  for (int i = 0; i < all.size(); ++i) {
    REQUIRE(fp32_bits(as_float(i)) == fp32_bits(decode(Number::format, static_cast<std::uint64_t>(i))));
    if (Number::format.is_infinity(static_cast<std::uint64_t>(i))) {
      REQUIRE((back(i).bits() & Number::format.magnitude_mask()) == Number::format.max_code());
    } else if (all(i).is_nan()) {
      REQUIRE(back(i).is_nan());
      REQUIRE(back_from_double(i).is_nan());
    } else if (Number::format != formats::int8 || i != 0x80) {
      REQUIRE(back(i) == all(i));
      REQUIRE(back_from_double(i) == all(i));
      REQUIRE(as_double(i) == static_cast<double>(as_float(i)));
    }
  }
}

/// Every code converts to Eigen's type of the same encoding and back unchanged, with the same value.
template <class Number, class Eigens>
void check_same_bits() {
  const auto all = all_codes<Number>();
  const auto theirs = all.template cast<Eigens>().eval();
  const auto back = theirs.template cast<Number>().eval();
  for (int i = 0; i < all.size(); ++i) {
    REQUIRE(bit_cast<std::uint16_t>(theirs(i)) == i);
    REQUIRE(back(i) == all(i));
    if (!all(i).is_nan()) REQUIRE(static_cast<float>(theirs(i)) == static_cast<float>(all(i)));
  }
}

/// Element (r, c) holds 10 r + c.
template <class Matrix>
Matrix numbered(int rows, int cols) {
  Matrix m(rows, cols);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) m(r, c) = static_cast<typename Matrix::Scalar>(10 * r + c);
  }
  return m;
}

template <class T>
void check_numbered(matrix<T> m, int rows, int cols) {
  REQUIRE(m.extent(0) == rows);
  REQUIRE(m.extent(1) == cols);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) REQUIRE(m(r, c) == static_cast<float>(10 * r + c));
  }
}

}  // namespace

TEST_CASE("casts of all codes, both ways") {
  check_casts<e2m1>();
  check_casts<e2m3>();
  check_casts<e3m2>();
  check_casts<e4m3>();
  check_casts<e5m2>();
  check_casts<e4m3fnuz>();
  check_casts<e5m2fnuz>();
  check_casts<e4m3b11fnuz>();
  check_casts<mx_int8>();
  check_casts<e8m0>();
  check_casts<ue4m3>();
  check_casts<ue5m3>();
  check_casts<bf16>();
  check_casts<fp16>();
}

TEST_CASE("a cast from double rounds once") {
  // Just above the tie of 1 and 1.125, by less than FP32 resolves.
  Eigen::RowVector2d x(1.0625 + 0x1p-40, 1.0625);
  const auto codes = x.cast<e4m3>().eval();
  CHECK(static_cast<float>(codes(0)) == 1.125f);
  CHECK(static_cast<float>(codes(1)) == 1.0f);
  CHECK(static_cast<float>(x.cast<float>().cast<e4m3>().eval()(0)) == 1.0f);
}

TEST_CASE("half and bfloat16 keep their bits, and cast to other formats by their value") {
  check_same_bits<fp16, Eigen::half>();
  check_same_bits<bf16, Eigen::bfloat16>();
  const auto halves = all_codes<fp16>().cast<Eigen::half>().eval();
  const auto direct = halves.cast<e4m3>().eval();
  const auto brains = all_codes<bf16>().cast<Eigen::bfloat16>().cast<e2m1>().eval();
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto at = static_cast<Eigen::Index>(i);
    REQUIRE(direct(at).bits() == convert(formats::fp16, i, formats::e4m3));
    REQUIRE(brains(at).bits() == convert(formats::bf16, i, formats::e2m1));
  }
  const auto up = all_codes<e5m2>().cast<Eigen::half>().eval();
  for (std::uint32_t i = 0; i < 0x100; ++i) {
    if (!formats::e5m2.is_nan(i)) REQUIRE(bit_cast<std::uint16_t>(up(static_cast<Eigen::Index>(i))) == i << 8);
  }
}

TEST_CASE("a view becomes a map") {
  std::vector<float> data(60);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  const auto rows = row_major(data.data(), 4, 6, 10);  // a gap of 4 after each row
  const auto map = to_eigen(rows);
  CHECK(map.rows() == 4);
  CHECK(map.cols() == 6);
  const auto as_transposed = to_eigen(transposed(rows));
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 6; ++c) {
      CHECK(map(r, c) == static_cast<float>(10 * r + c));
      CHECK(as_transposed(c, r) == map(r, c));
    }
  }
  to_eigen(rows)(3, 5) = -1.0f;
  CHECK(data[35] == -1.0f);
  static_assert(std::is_same_v<decltype(to_eigen(matrix<const float>()).data()), const float*>);
}

TEST_CASE("an Eigen object becomes a view") {
  auto rows = numbered<row_matrix<float>>(4, 6);
  auto columns = numbered<column_matrix<float>>(4, 6);
  check_numbered(from_eigen(rows), 4, 6);
  check_numbered(from_eigen(columns), 4, 6);
  CHECK(from_eigen(columns).stride(0) == 1);
  CHECK(from_eigen(columns).stride(1) == 4);
  auto block = columns.block(1, 2, 3, 4);
  CHECK(from_eigen(block)(1, 1) == 23.0f);
  CHECK(from_eigen(block).extent(0) == 3);
  auto map = to_eigen(from_eigen(columns));
  check_numbered(from_eigen(map), 4, 6);
  Eigen::RowVectorXf row = rows.row(0);
  check_numbered(from_eigen(row), 1, 6);
  from_eigen(rows)(2, 3) = -1.0f;
  CHECK(rows(2, 3) == -1.0f);
  const auto& constant = columns;
  static_assert(std::is_same_v<decltype(from_eigen(constant)), matrix<const float>>);
  static_assert(std::is_same_v<decltype(from_eigen(rows)), matrix<float>>);
}

TEST_CASE("quantizing an Eigen matrix of either order, from its own memory") {
  const row_matrix<bf16> rows = (row_matrix<float>::Random(3, 64) * 10.0f).cast<bf16>();
  const column_matrix<bf16> columns = rows;
  std::vector<std::uint8_t> codes[2], scales[2];
  for (int i = 0; i < 2; ++i) {
    codes[i].resize(3 * 32);
    scales[i].resize(3 * 2);
    quantize_ref(mxfp4, presets::ocp, i == 0 ? from_eigen(rows) : from_eigen(columns), block_axis::row,
                 dense_blocks(mxfp4, 3, 64, codes[i].data(), scales[i].data()));
  }
  CHECK(codes[0] == codes[1]);
  CHECK(scales[0] == scales[1]);
  row_matrix<float> y(3, 64);
  const block_matrix<const std::uint8_t> blocks = dense_blocks(mxfp4, 3, 64, codes[0].data(), scales[0].data());
  dequantize_ref(mxfp4, blocks, block_axis::row, from_eigen(y));
  CHECK((y - rows.cast<float>()).cwiseAbs().maxCoeff() <= 2.0f);  // half of the step from 8 to 12, or 8 clipped to 6
}
