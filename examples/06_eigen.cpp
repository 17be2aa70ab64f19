// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Linear algebra with Eigen on quantized operands: the error of a matrix product with E4M3 and with MXFP4 operands.
// Views let the quantizer read Eigen's matrices in place.
#include <cstdint>
#include <iostream>
#include <vector>

#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/eigen.hpp"
#include "rotoscale/quantize_ref.hpp"

using namespace rotoscale;
using Eigen::MatrixXd;
using Eigen::MatrixXf;

/// Quantizes the rows of `x` (the contraction axis) to MXFP4 and back.
static MatrixXf through_mxfp4(const MatrixXf& x) {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(packed_bytes(formats::e2m1, x.size())));
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(x.size() / mxfp4.length));
  const auto blocks = dense_blocks(mxfp4, x.rows(), x.cols(), codes.data(), scales.data());
  quantize_ref(mxfp4, presets::ocp, from_eigen(x), block_axis::row, blocks);
  MatrixXf y(x.rows(), x.cols());
  dequantize_ref<float>(mxfp4, blocks, block_axis::row, from_eigen(y));
  return y;
}

int main() {
  MatrixXf a(4, 64), b(4, 64);
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 64; ++c) {
      a(r, c) = static_cast<float>((r + 1) * c * c % 97 - 48);
      b(r, c) = static_cast<float>((r + 3) * c * c % 61 - 30);
    }
  }
  const Eigen::Matrix<e4m3, 2, 8> codes = a.leftCols(8).topRows(2).cast<e4m3>();  // one rounding each
  std::cout << "A:\n" << a.leftCols(8).topRows(2) << "\nas E4M3:\n" << codes << '\n';

  const auto product = [](const MatrixXf& x, const MatrixXf& y) {
    return MatrixXd(x.cast<double>() * y.transpose().cast<double>());  // exact: integers
  };
  const MatrixXd exact = product(a, b);
  const auto report = [&](const char* name, const MatrixXd& c) {
    std::cout << name << ": largest difference " << (c - exact).cwiseAbs().maxCoeff() << " of "
              << exact.cwiseAbs().maxCoeff() << '\n';
  };
  report("E4M3", product(a.cast<e4m3>().cast<float>(), b.cast<e4m3>().cast<float>()));
  report("E2M1, which saturates at 6", product(a.cast<e2m1>().cast<float>(), b.cast<e2m1>().cast<float>()));
  report("MXFP4", product(through_mxfp4(a), through_mxfp4(b)));
}
