// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// One MXFP4 block as AMD's production recipe makes it. README.md shows this file and its output.
#include <cstdio>

#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/quantize_ref.hpp"

int main() {
  using namespace rotoscale;
  float x[32], y[32];
  for (int i = 0; i < 32; ++i) x[i] = 0.25f * static_cast<float>(i * i % 23 - 9);
  std::uint8_t codes[16], scale;
  const auto block = dense_blocks(mxfp4, /*rows=*/1, /*k=*/32, codes, &scale);

  const block_options options = presets::te_rocm;  // BF16 source, H16, even scale, AMD's policy
  quantize_ref(mxfp4, options, row_major<const float>(x, 1, 32), block_axis::row, block);
  std::printf("scale byte %d = 2^%d, codes", scale, scale_exponent(scale));
  for (const std::uint8_t byte : codes) std::printf(" %02x", byte);

  dequantize_ref(mxfp4, block, block_axis::row, row_major(y, 1, 32));
  unrotate_run(y, 32, options.rotation);  // a GEMM needs none: two rotated operands cancel
  for (int i = 0; i < 8; ++i) std::printf("\n%6.2f became %8.4f", double(x[i]), double(y[i]));
  std::printf("\n");
}
