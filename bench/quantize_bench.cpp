// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Bytes/s (read and written) of quantizers and dequantizers, against a copy with non-temporal stores.
// Two threads work on a matrix larger than all caches, so memory bandwidth is the roof. The `cached` cases run one
// thread on a matrix in the L2 cache, where arithmetic is the limit.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>

#include "inputs.hpp"
#include "rotoscale/dequantize.hpp"
#include "rotoscale/nn/cpu/operands.hpp"

namespace rotoscale {
namespace {

constexpr index_t rows = 8192, cols = 8192;
constexpr auto elements = static_cast<std::size_t>(rows * cols);
constexpr index_t cached_rows = 64, cached_cols = 2048;

/// Page-aligned memory, as frameworks allocate it.
template <class T>
T* page_aligned(std::size_t count) {
  return static_cast<T*>(std::aligned_alloc(4096, (count * sizeof(T) + 4095) / 4096 * 4096));
}

template <class T>
const T* source() {
  static const T* const data = [] {
    const std::vector<float> x = bench::random_values(1 << 20, 0);
    T* all = page_aligned<T>(elements);
    for (std::size_t i = 0; i < x.size(); ++i) store_value(x[i], all[i]);
    for (std::size_t i = x.size(); i < elements; ++i) all[i] = all[i - x.size()];
    return all;
  }();
  return data;
}
template <class T>
matrix<const T> source_view(index_t some_rows = rows, index_t some_cols = cols) {
  return row_major(source<T>(), some_rows, some_cols);
}

void set_bytes(benchmark::State& state, double read, double written) {
  state.SetBytesProcessed(static_cast<std::int64_t>(static_cast<double>(state.iterations()) * (read + written)));
}

/// Roofline: two threads copy 256 MiB, on x86 with non-temporal stores.
void copy(benchmark::State& state) {
  static float* const to = page_aligned<float>(elements);
  std::memset(to, 0, elements * sizeof(float));  // pages exist before the clock starts
  thread_pool pool(2);
  const float* from = source<float>();
  for (auto _ : state) {
    for_each_chunk(pool, rows * cols, 1 << 15, [&](index_t first, index_t last) {
#if defined(__SSE2__)
      for (index_t i = first; i < last; i += 4) _mm_stream_ps(to + i, _mm_load_ps(from + i));
      _mm_sfence();
#else
      std::memcpy(to + first, from + first, static_cast<std::size_t>(last - first) * sizeof(float));
#endif
    });
    benchmark::ClobberMemory();
  }
  set_bytes(state, 4.0 * elements, 4.0 * elements);
}

struct blocks {
  std::vector<std::uint8_t> codes, scales;
  block_matrix<std::uint8_t> view;
  blocks(index_t height, index_t k)
      : codes(static_cast<std::size_t>(height * k / 2 + 64)), scales(static_cast<std::size_t>(height * k / 32)) {
    auto* line = codes.data() + (64 - reinterpret_cast<std::uintptr_t>(codes.data()) % 64) % 64;
    view = dense_blocks(mxfp4, height, k, line, scales.data());
  }
};

block_options options_with(bool rotate) {
  block_options o = presets::te_rocm;
  o.source = formats::fp32;
  if (!rotate) o.rotation = {};
  return o;
}

template <class T>
void quantize_blocks(benchmark::State& state, bool rotate, block_axis axis) {
  thread_pool pool(2);
  const blocks out(axis == block_axis::row ? rows : cols, axis == block_axis::row ? cols : rows);
  const matrix<const T> from = source_view<T>();  // made before the clock starts
  for (auto _ : state) {
    quantize(mxfp4, options_with(rotate), from, axis, out.view, pool);
    benchmark::ClobberMemory();
  }
  set_bytes(state, static_cast<double>(sizeof(T) * elements), 17.0 / 32 * elements);
}

/// Both orientations from one pass over the source.
template <class T>
void quantize_both_ways(benchmark::State& state) {
  thread_pool pool(2);
  const blocks by_row(rows, cols), by_column(cols, rows);
  const matrix<const T> from = source_view<T>();
  for (auto _ : state) {
    quantize_both(mxfp4, options_with(true), by_row.view, options_with(true), by_column.view, from, pool);
    benchmark::ClobberMemory();
  }
  set_bytes(state, static_cast<double>(sizeof(T) * elements), 17.0 / 16 * elements);
}

template <class T>
void dequantize_blocks(benchmark::State& state) {
  static T* const to = page_aligned<T>(elements);
  std::memset(static_cast<void*>(to), 0, elements * sizeof(T));  // pages exist before the clock starts
  thread_pool pool(2);
  const blocks in(rows, cols);
  quantize(mxfp4, options_with(true), source_view<float>(), block_axis::row, in.view, pool);
  for (auto _ : state) {
    dequantize<T>(mxfp4, in.view, block_axis::row, row_major(to, rows, cols), pool);
    benchmark::ClobberMemory();
  }
  set_bytes(state, 17.0 / 32 * elements, static_cast<double>(sizeof(T) * elements));
}

template <class T>
void cached(benchmark::State& state, bool rotate) {
  thread_pool one(1);
  const blocks out(cached_rows, cached_cols);
  const matrix<const T> from = source_view<T>(cached_rows, cached_cols);
  for (auto _ : state) {
    quantize(mxfp4, options_with(rotate), from, block_axis::row, out.view, one);
    benchmark::ClobberMemory();
  }
  constexpr double count = cached_rows * cached_cols;
  set_bytes(state, sizeof(T) * count, 17.0 / 32 * count);
}

/// `quantize_ref` on a few rows of the same matrix.
void reference(benchmark::State& state) {
  constexpr index_t few = 8;
  const blocks out(few, cols);
  for (auto _ : state) {
    quantize_ref(mxfp4, presets::te_rocm, source_view<float>(few), block_axis::row, out.view);
    benchmark::ClobberMemory();
  }
  set_bytes(state, 4.0 * few * cols, 17.0 / 32 * few * cols);
}

/// Casts to BF16, and to FP8 with one scale.
void cast(benchmark::State& state, nn::operand_format to, index_t code_bytes) {
  thread_pool pool(2);
  std::vector<std::uint8_t> codes(elements * static_cast<std::size_t>(code_bytes));
  nn::operand_request request;
  request.rows = rows;
  request.cols = cols;
  request.row = nn::operand_recipe{to};
  codes.resize(nn::cpu::operands::layout(request).bytes);
  const nn::const_tensor_view from =
      nn::dense_tensor(const_cast<float*>(source<float>()), nn::dtype::fp32, {rows, cols});
  nn::cpu::operands operands(request, codes.data(), from);
  for (auto _ : state) {
    operands.quantize(from, {&operands, true, false, {}}, nullptr, pool);
    benchmark::ClobberMemory();
  }
  set_bytes(state, 4.0 * elements, static_cast<double>(codes.size()));
}

// The macros below take plain names. Rates use wall time, because threads share the work.
constexpr auto from_fp32 = quantize_blocks<float>, from_bf16 = quantize_blocks<bf16>;
constexpr auto cached_from_fp32 = cached<float>, cached_from_bf16 = cached<bf16>;
void both_from_fp32(benchmark::State& state) { quantize_both_ways<float>(state); }
void both_from_bf16(benchmark::State& state) { quantize_both_ways<bf16>(state); }
void mxfp4_to_fp32(benchmark::State& state) { dequantize_blocks<float>(state); }
void mxfp4_to_bf16(benchmark::State& state) { dequantize_blocks<bf16>(state); }

BENCHMARK(copy)->UseRealTime();
BENCHMARK_CAPTURE(cast, bf16, nn::operand_format::bf16, 2)->UseRealTime();
BENCHMARK_CAPTURE(cast, fp8_e4m3, nn::operand_format::fp8_e4m3, 1)->UseRealTime();
BENCHMARK_CAPTURE(from_fp32, mxfp4_rows, false, block_axis::row)->UseRealTime();
BENCHMARK_CAPTURE(from_fp32, mxfp4_h16_rows, true, block_axis::row)->UseRealTime();
BENCHMARK_CAPTURE(from_fp32, mxfp4_h16_columns, true, block_axis::column)->UseRealTime();
BENCHMARK_CAPTURE(from_bf16, mxfp4_h16_rows, true, block_axis::row)->UseRealTime();
BENCHMARK_CAPTURE(from_bf16, mxfp4_h16_columns, true, block_axis::column)->UseRealTime();
BENCHMARK(both_from_fp32)->UseRealTime();
BENCHMARK(both_from_bf16)->UseRealTime();
BENCHMARK(mxfp4_to_fp32)->UseRealTime();
BENCHMARK(mxfp4_to_bf16)->UseRealTime();
BENCHMARK_CAPTURE(cached_from_fp32, mxfp4_h16_rows, true)->UseRealTime();
BENCHMARK_CAPTURE(cached_from_bf16, mxfp4_h16_rows, true)->UseRealTime();
BENCHMARK(reference)->UseRealTime();

}  // namespace
}  // namespace rotoscale

BENCHMARK_MAIN();
