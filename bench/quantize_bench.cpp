// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Quantizers on one thread in bytes a second (source read and result written), beside a streaming copy of the same
// matrix. The matrix is larger than most caches, so that the copy is a roof.
#include <benchmark/benchmark.h>

#include <cstring>

#include "inputs.hpp"
#include "rotoscale/nn/quantize.hpp"

namespace rotoscale {
namespace {

constexpr index_t rows = 4096, cols = 2048;
constexpr auto elements = static_cast<std::size_t>(rows * cols);

const std::vector<float>& source() {
  static const std::vector<float> x = bench::random_values(rows * cols, 0);
  return x;
}
matrix<const float> source_view(index_t some_rows = rows) { return row_major(source().data(), some_rows, cols); }

void set_bytes(benchmark::State& state, double read, double written) {
  state.SetBytesProcessed(static_cast<std::int64_t>(static_cast<double>(state.iterations()) * (read + written)));
}

void copy(benchmark::State& state) {
  std::vector<float> to(elements);
  for (auto _ : state) {
    std::memcpy(to.data(), source().data(), elements * sizeof(float));
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  }
  set_bytes(state, 4.0 * elements, 4.0 * elements);
}

void blocks(benchmark::State& state, bool rotate, block_axis axis) {
  thread_pool one(1);
  block_options o = presets::te_rocm;
  if (!rotate) o.rotation = {};
  std::vector<std::uint8_t> codes(elements / 2), scales(elements / 32);
  const index_t out_rows = axis == block_axis::row ? rows : cols;
  const auto out = dense_blocks(mxfp4, out_rows, rows * cols / out_rows, codes.data(), scales.data());
  for (auto _ : state) {
    quantize(mxfp4, o, source_view(), axis, out, one);
    benchmark::ClobberMemory();
  }
  set_bytes(state, 4.0 * elements, elements / 2 + elements / 32);
}

/// The definition, on a few rows of the same matrix.
void reference(benchmark::State& state) {
  constexpr index_t few = 32;
  std::vector<std::uint8_t> codes(few * cols / 2), scales(few * cols / 32);
  const auto out = dense_blocks(mxfp4, few, cols, codes.data(), scales.data());
  for (auto _ : state) {
    quantize_ref(mxfp4, presets::te_rocm, source_view(few), block_axis::row, out);
    benchmark::ClobberMemory();
  }
  set_bytes(state, 4.0 * few * cols, few * cols / 2 + few * cols / 32);
}

/// Copies in another format: BF16, and FP8 with one scale.
void cast(benchmark::State& state, nn::number_format to, index_t code_bytes) {
  thread_pool one(1);
  std::vector<std::uint8_t> codes(elements * static_cast<std::size_t>(code_bytes));
  nn::quantize_args args;
  args.recipe.format = to;
  float factor = 1.0f;
  gemm_operand out{nn::element_format(to), rows, cols, codes.data(), cols * code_bytes};
  for (auto _ : state) {
    nn::cpu::quantize_operand(source_view(), args, out, &factor, one);
    benchmark::ClobberMemory();
  }
  set_bytes(state, 4.0 * elements, static_cast<double>(codes.size()));
}

BENCHMARK(copy);
BENCHMARK_CAPTURE(cast, bf16, nn::number_format::bf16, 2);
BENCHMARK_CAPTURE(cast, fp8_e4m3, nn::number_format::fp8_e4m3, 1);
BENCHMARK_CAPTURE(blocks, mxfp4_rows, false, block_axis::row);
BENCHMARK_CAPTURE(blocks, mxfp4_h16_rows, true, block_axis::row);
BENCHMARK_CAPTURE(blocks, mxfp4_h16_columns, true, block_axis::column);
BENCHMARK(reference);

}  // namespace
}  // namespace rotoscale

BENCHMARK_MAIN();
