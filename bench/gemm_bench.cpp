// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The emulated GEMM on one thread at the shapes of the demo's forward pass, beside Eigen's FP32 product of the same
// shape. Operands are quantized before the clock starts; decoding them is part of the GEMM.
#include <benchmark/benchmark.h>

#include <Eigen/Core>

#include "inputs.hpp"
#include "rotoscale/nn/cpu_backend.hpp"

namespace rotoscale {
namespace {

using row_major_matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct problem {
  index_t m = bench::tokens, n, k;
  std::vector<float> a, b, c;

  explicit problem(const bench::linear_shape& s)
      : n(s.out),
        k(s.in),
        a(bench::random_values(m * k, 1)),
        b(bench::random_values(n * k, 2)),
        c(static_cast<std::size_t>(m * n)) {}
  void set_rate(benchmark::State& state) const {
    const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    state.counters["flops"] =
        benchmark::Counter(flops * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  }
};

void eigen(benchmark::State& state, bench::linear_shape shape) {
  problem p(shape);
  const Eigen::Map<const row_major_matrix> a(p.a.data(), p.m, p.k), b(p.b.data(), p.n, p.k);
  Eigen::Map<row_major_matrix> c(p.c.data(), p.m, p.n);
  for (auto _ : state) {
    c.noalias() = a * b.transpose();
    benchmark::ClobberMemory();
  }
  p.set_rate(state);
}

void emulated(benchmark::State& state, bench::linear_shape shape, nn::number_format f, mma_model model) {
  problem p(shape);
  nn::cpu_backend ops(1);
  nn::operand a, b;
  nn::quantize_args args;
  args.recipe.format = f;
  a.quantize(ops, row_major<const float>(p.a.data(), p.m, p.k), args);
  b.quantize(ops, row_major<const float>(p.b.data(), p.n, p.k), args);
  for (auto _ : state) {
    ops.gemm(a.get(), b.get(), {model}, row_major(p.c.data(), p.m, p.n));
    benchmark::ClobberMemory();
  }
  p.set_rate(state);
}

}  // namespace
}  // namespace rotoscale

int main(int argc, char** argv) {
  using namespace rotoscale;
  for (const auto& shape : bench::linear_shapes) {
    const auto name = [&](const char* arm) { return std::string(arm) + "/" + shape.name; };
    benchmark::RegisterBenchmark(name("eigen").c_str(), eigen, shape);
    benchmark::RegisterBenchmark(name("fp32").c_str(), emulated, shape, nn::number_format::fp32, fp32_fma_chain);
    benchmark::RegisterBenchmark(name("bf16").c_str(), emulated, shape, nn::number_format::bf16, fp32_fma_chain);
    benchmark::RegisterBenchmark(name("fp8_e4m3").c_str(), emulated, shape, nn::number_format::fp8_e4m3,
                                 fp32_fma_chain);
    benchmark::RegisterBenchmark(name("mxfp4").c_str(), emulated, shape, nn::number_format::mxfp4, fp32_blockwise);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
