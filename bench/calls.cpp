// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The C++ arm of calls.py, as a shared library: rotoscale::quantize of a matrix to MXFP4 with H16.
#include "rotoscale/quantize.hpp"

extern "C" void quantize_mxfp4_h16(const float* x, rotoscale::index_t rows, rotoscale::index_t cols,
                                   std::uint8_t* codes, std::uint8_t* scales) {
  using namespace rotoscale;
  static thread_pool pool(2);
  block_options o = presets::te_rocm;
  o.source = formats::fp32;
  quantize(mxfp4, o, row_major(x, rows, cols), block_axis::row, dense_blocks(mxfp4, rows, cols, codes, scales), pool);
}
