// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// FLOP/s of the emulated GEMM. Time includes decoding and packing of operands, which are quantized before.
//   ARM/SHAPE              The demo's linear layers on one thread, against Eigen's FP32 product.
//   ARM/1024, ARM/2048     Cubes of MXFP4 and BF16 of that size on one thread, against Eigen's FP32 product.
//   UNIT/units, units-two  Models of matrix units on a larger product, one and two threads, against the FP32 chain.
#include <benchmark/benchmark.h>

#include <Eigen/Core>

#include "inputs.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/nn/cpu/backend.hpp"

namespace rotoscale {
namespace {

using row_major_matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct problem {
  index_t m, n, k;
  std::vector<float> a, b, c;

  explicit problem(const bench::linear_shape& s, index_t rows = bench::tokens)
      : m(rows),
        n(s.out),
        k(s.in),
        a(bench::random_values(m * k, 1)),
        b(bench::random_values(n * k, 2)),
        c(static_cast<std::size_t>(m * n) + 16) {}
  /// m × n outputs from a cache line on, as training's arenas have them.
  float* output() { return c.data() + (64 - reinterpret_cast<std::uintptr_t>(c.data()) % 64) % 64 / sizeof(float); }
  void set_rate(benchmark::State& state) const {
    const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    state.counters["flops"] =
        benchmark::Counter(flops * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  }
};

void eigen(benchmark::State& state, bench::linear_shape shape, index_t rows) {
  problem p(shape, rows);
  const Eigen::Map<const row_major_matrix> a(p.a.data(), p.m, p.k), b(p.b.data(), p.n, p.k);
  Eigen::Map<row_major_matrix> c(p.output(), p.m, p.n);
  for (auto _ : state) {
    c.noalias() = a * b.transpose();
    benchmark::ClobberMemory();
  }
  p.set_rate(state);
}

void emulated(benchmark::State& state, bench::linear_shape shape, index_t rows, nn::operand_format f, mma_model model) {
  problem p(shape, rows);
  thread_pool pool(1);
  const auto make = [&](const std::vector<float>& x, index_t rows, std::vector<std::byte>& memory) {
    nn::operand_request r;
    r.rows = rows;
    r.cols = p.k;
    r.row = nn::operand_recipe{f};
    memory.resize(nn::cpu::operands::layout(r).bytes);
    const nn::const_tensor_view source = nn::dense_tensor(const_cast<float*>(x.data()), nn::dtype::fp32, {rows, p.k});
    auto made = std::make_unique<nn::cpu::operands>(r, memory.data(), source);
    made->quantize(source, {made.get(), true, false, {}}, nullptr, pool);
    return made;
  };
  std::vector<std::byte> memory[2];
  const auto a = make(p.a, p.m, memory[0]), b = make(p.b, p.n, memory[1]);
  for (auto _ : state) {
    gemm(a->form(nn::operand_form::row), b->form(nn::operand_form::row), {model}, row_major(p.output(), p.m, p.n),
         pool);
    benchmark::ClobberMemory();
  }
  p.set_rate(state);
}

/// Random codes of `f`, with block scales near 1 if the unit has block scales.
struct unit_operand {
  std::vector<std::uint8_t> codes, scales;
  gemm_operand view;

  unit_operand(const mma_unit& unit, const format& f, index_t rows, index_t k, const std::vector<float>& x) {
    view.element = f;
    view.rows = rows;
    view.k = k;
    view.code_stride = packed_bytes(f, k);
    codes.resize(static_cast<std::size_t>(rows * view.code_stride));
    const float range = f.bits() > 8 ? 1.0f : decode(f, f.max_code());
    for (index_t i = 0; i < rows * k; ++i) {
      const auto code = static_cast<std::uint32_t>(encode(f, range * x[static_cast<std::size_t>(i)]));
      std::uint8_t* const row = codes.data() + i / k * view.code_stride;
      if (f.bits() <= 8) {
        store_code(f, row, i % k, code);
      } else {
        const int bytes = storage_bits(f) / 8;
        for (int byte = 0; byte < bytes; ++byte)
          row[i % k * bytes + byte] = static_cast<std::uint8_t>(code >> (8 * byte));
      }
    }
    view.codes = codes.data();
    if (unit.block == 0) return;
    view.block = unit.block;
    view.scale = unit.scale;
    view.scale_stride = k / unit.block;
    const auto one = static_cast<std::uint32_t>(encode(unit.scale, 1.0f));
    for (index_t i = 0; i < rows * view.scale_stride; ++i) {
      scales.push_back(static_cast<std::uint8_t>(one + (codes[static_cast<std::size_t>(i)] & 3)));
    }
    view.scales = scales.data();
  }
};

void modelled(benchmark::State& state, bench::linear_shape shape, index_t rows, const mma_unit* unit, format f,
              int threads) {
  problem p(shape, rows);
  thread_pool pool(threads);
  const unit_operand a(*unit, f, p.m, p.k, p.a), b(*unit, f, p.n, p.k, p.b);
  gemm_options o;
  o.model = unit->model;
  for (auto _ : state) {
    gemm(a.view, b.view, o, row_major(p.output(), p.m, p.n), pool);
    benchmark::ClobberMemory();
  }
  p.set_rate(state);
}

/// Square products.
constexpr bench::linear_shape cubes[] = {{"1024", 1024, 1024}, {"2048", 2048, 2048}};

/// An arm of the larger product: its name, unit and element format.
struct unit_arm {
  const char* name;
  const char* unit;
  format element;
};
constexpr unit_arm unit_arms[] = {{"fp32", "fp32-fma-chain", formats::fp32},
                                  {"mxfp4-exact", "fp32-blockwise", formats::e2m1},
                                  {"blackwell-nvf4", "blackwell-nvf4-f32", formats::e2m1},
                                  {"blackwell-mxf4", "blackwell-mxf4-f32", formats::e2m1},
                                  {"hopper-fp8", "hopper-wgmma-fp8-f32", formats::e4m3},
                                  {"hopper-fp8-f16", "hopper-wgmma-fp8-f16", formats::e4m3},
                                  {"hopper-mma-fp8", "hopper-mma-fp8-f32", formats::e4m3},
                                  {"hopper-fp16", "hopper-mma-fp16-f32", formats::fp16},
                                  {"hopper-bf16", "hopper-mma-fp16-f32", formats::bf16},
                                  {"hopper-fp16-f16", "hopper-mma-fp16-f16", formats::fp16},
                                  {"hopper-tf32", "hopper-mma-tf32-f32", formats::fp32},
                                  {"ampere-fp16", "ampere-mma-fp16-f32", formats::fp16},
                                  {"blackwell-fp8", "blackwell-f8f6f4-f32", formats::e4m3},
                                  {"blackwell-mxfp8", "blackwell-mxf8f6f4-f32", formats::e4m3}};
constexpr bench::linear_shape unit_shape{"units", 512, 1024};
constexpr index_t unit_rows = 512;

}  // namespace
}  // namespace rotoscale

int main(int argc, char** argv) {
  using namespace rotoscale;
  for (const auto& shape : bench::linear_shapes) {
    const auto name = [&](const char* arm) { return std::string(arm) + "/" + shape.name; };
    benchmark::RegisterBenchmark(name("eigen").c_str(), eigen, shape, bench::tokens);
    benchmark::RegisterBenchmark(name("fp32").c_str(), emulated, shape, bench::tokens, nn::operand_format::fp32,
                                 fp32_fma_chain);
    benchmark::RegisterBenchmark(name("bf16").c_str(), emulated, shape, bench::tokens, nn::operand_format::bf16,
                                 fp32_fma_chain);
    benchmark::RegisterBenchmark(name("fp8_e4m3").c_str(), emulated, shape, bench::tokens, nn::operand_format::fp8_e4m3,
                                 fp32_fma_chain);
    benchmark::RegisterBenchmark(name("mxfp4").c_str(), emulated, shape, bench::tokens, nn::operand_format::mxfp4,
                                 fp32_blockwise);
    benchmark::RegisterBenchmark(name("bf16_amx").c_str(), emulated, shape, bench::tokens, nn::operand_format::bf16,
                                 find_unit("intel-amx-bf16")->model);
  }
  for (const auto& shape : cubes) {
    const std::string name = std::string("/") + shape.name;
    benchmark::RegisterBenchmark(("eigen" + name).c_str(), eigen, shape, shape.out);
    benchmark::RegisterBenchmark(("mxfp4" + name).c_str(), emulated, shape, shape.out, nn::operand_format::mxfp4,
                                 fp32_blockwise);
    benchmark::RegisterBenchmark(("bf16_amx" + name).c_str(), emulated, shape, shape.out, nn::operand_format::bf16,
                                 find_unit("intel-amx-bf16")->model);
  }
  benchmark::RegisterBenchmark("eigen/units", eigen, unit_shape, unit_rows);
  for (const unit_arm& arm : unit_arms) {
    const mma_unit* const unit = find_unit(arm.unit);
    for (const int threads : {1, 2}) {
      const std::string name = arm.name + std::string(threads == 1 ? "/units" : "/units-two");
      benchmark::RegisterBenchmark(name.c_str(), modelled, unit_shape, unit_rows, unit, arm.element, threads)
          ->UseRealTime();
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
