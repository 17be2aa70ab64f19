// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The emulated GEMM. Two accumulation contracts give different bits. The fast path equals the definition by bytes on
// any number of threads.
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "rotoscale/gemm.hpp"
#include "rotoscale/quantize.hpp"

using namespace rotoscale;

/// A random rows × k matrix, quantized to MXFP4 with presets::te_rocm.
struct mxfp4_matrix {
  std::vector<std::uint8_t> codes, scales;
  block_matrix<std::uint8_t> blocks;

  mxfp4_matrix(index_t rows, index_t k, random_stream random, thread_pool& pool)
      : codes(static_cast<std::size_t>(rows * k / 2)), scales(static_cast<std::size_t>(rows * k / 32)) {
    std::vector<float> x;
    for (index_t i = 0; i < rows * k; ++i) {  // [-1, 1) times 2^0 .. 2^15, by columns of 32
      const float unit = 0x1p-31f * static_cast<float>(random.word(std::uint64_t(i))) - 1;
      x.push_back(unit * pow2_fp32(static_cast<int>(i / 32 * 7 % 16)));
    }
    blocks = dense_blocks(mxfp4, rows, k, codes.data(), scales.data());
    quantize(mxfp4, presets::te_rocm, row_major<const float>(x.data(), rows, k), block_axis::row, blocks, pool);
  }
  gemm_operand operand() const { return make_operand(mxfp4, blocks); }
};

int main() {
  const index_t m = 50, n = 70, k = 512;
  thread_pool one(1), three(3);
  const mxfp4_matrix a(m, k, {1, 0}, one), b(n, k, {1, 1}, three);
  std::vector<float> reference[2];
  for (const mma_model& model : {fp32_fma_chain, fp32_blockwise}) {
    std::vector<float> c(m * n), c1(m * n), c3(m * n);
    gemm_ref(a.operand(), b.operand(), {model}, row_major(c.data(), m, n));
    gemm(a.operand(), b.operand(), {model}, row_major(c1.data(), m, n), one);
    gemm(a.operand(), b.operand(), {model}, row_major(c3.data(), m, n), three);
    const bool equal =
        std::memcmp(c.data(), c1.data(), m * n * 4) == 0 && std::memcmp(c.data(), c3.data(), m * n * 4) == 0;
    std::printf("group %2d: c[0][1] = %a, gemm %s gemm_ref\n", model.group, static_cast<double>(c[1]),
                equal ? "equals" : "DIFFERS FROM");
    reference[model.group > 1] = c;
  }
  int different = 0;
  for (std::size_t i = 0; i < m * n; ++i) different += reference[0][i] != reference[1][i];
  std::printf("the two contracts differ in %d of %d results\n", different, static_cast<int>(m * n));
}
