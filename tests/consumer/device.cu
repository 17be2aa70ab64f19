// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Device code that uses the numerics: compiled by tests/consumer/headers.py where nvcc is found, to keep the headers
// free of what device code cannot use (constants that are taken by reference, functions without ROTOSCALE_HD).
#include "rotoscale/block.hpp"
#include "rotoscale/small_float.hpp"

using namespace rotoscale;

__global__ void quantize_rows(const float* source, index_t rows, index_t k, std::uint8_t* codes, std::uint8_t* scales,
                              float* back) {
  const index_t r = blockIdx.x * static_cast<index_t>(blockDim.x) + threadIdx.x;
  if (r >= rows) return;
  constexpr block_format f{formats::e2m1};
  block_options o{formats::bf16, {16, {5}}, scale_rule::even, policies::te_rocm};
  o.rounding = rounding::stochastic;
  o.random = {1, 2};
  const auto out = dense_blocks(f, rows, k, codes, scales);
  quantize_tile_ref(f, o, row_major(source, rows, k), block_axis::row, out, r);
  for (index_t c = 0; c < k; ++c) back[r * k + c] = decode_element(f, out, r, c);
}

__global__ void convert(const float* x, std::uint8_t* codes) {
  codes[0] = e4m3(x[0]).bits();
  codes[1] = e5m2(x[1], rounding::up, overflow::to_inf).bits();
  codes[2] = e8m0(static_cast<double>(x[2])).bits();
  codes[3] = static_cast<std::uint8_t>(bf16(x[3]).bits() >> 8);
  codes[4] = static_cast<float>(e2m1::from_bits(3)) > 1.0f;
}
