// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What emulation costs on one thread: one training step of the demo's model under each recipe (forward, backward,
// scales, AdamW), and its linear layers alone beside Eigen's FP32 products of the same shapes.
#include <benchmark/benchmark.h>

#include <Eigen/Core>

#include "inputs.hpp"
#include "rotoscale/llama/model.hpp"
#include "rotoscale/nn/cpu/backend.hpp"

namespace rotoscale {
namespace {

using bench::tokens;
using row_major_matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using eigen_view = Eigen::Map<row_major_matrix>;

void set_rate(benchmark::State& state, const char* what, double each) {
  state.counters[what] =
      benchmark::Counter(each * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void step(benchmark::State& state, const nn::recipe& recipe) {
  nn::cpu_backend ops(1);
  llama::model model(ops, {});
  model.initialize(1);
  model.reserve(bench::batch, bench::sequence);
  const nn::scaling_book scales(ops, model.linear_count(), recipe);
  nn::pass_context c;
  c.ops = &ops;
  c.current = &recipe;
  c.scales = &scales;
  c.training = true;
  std::vector<std::int32_t> text;
  const random_stream random{1, 3};
  for (index_t i = 0; i < tokens; ++i) {
    text.push_back(static_cast<std::int32_t>(random.word(static_cast<std::uint64_t>(i)) % 256));
  }
  nn::adamw_args update;
  update.learning_rate = 1e-4f;
  for (auto _ : state) {
    model.zero_gradients();
    model.forward(c, text, text, 1.0f / static_cast<float>(tokens));
    model.backward(c);
    scales.update(ops);
    for (llama::parameter& p : model.parameters()) {
      ops.adamw(p.weight.data(), p.gradient.data(), p.m.data(), p.v.data(), p.size(), update);
    }
    ++c.step;
    ++c.weight_version;
  }
  set_rate(state, "tokens", static_cast<double>(tokens));
}

/// Forward and backward of a decoder layer's linears.
struct linear_data {
  const bench::linear_shape& shape;
  std::vector<float> x, w, dy, y, dx, dw;

  explicit linear_data(const bench::linear_shape& s)
      : shape(s),
        x(bench::random_values(tokens * s.in, 1)),
        w(bench::random_values(s.out * s.in, 2)),
        dy(bench::random_values(tokens * s.out, 3)),
        y(dy.size()),
        dx(x.size()),
        dw(w.size()) {}
};
std::vector<linear_data> all_linears() {
  std::vector<linear_data> all;
  for (const auto& s : bench::linear_shapes) all.emplace_back(s);
  return all;
}
void set_flops(benchmark::State& state) {
  double flops = 0;
  for (const auto& s : bench::linear_shapes) flops += 3 * 2.0 * static_cast<double>(tokens * s.out * s.in);
  set_rate(state, "flops", flops);
}

void linears(benchmark::State& state, const nn::recipe& recipe) {
  nn::cpu_backend ops(1);
  std::vector<linear_data> data = all_linears();
  std::vector<nn::linear> layers;
  std::vector<nn::operand> scratch(2);
  for (std::size_t i = 0; i < data.size(); ++i) {
    const auto [name, out, in] = data[i].shape;
    layers.emplace_back(static_cast<index_t>(i), row_major(data[i].w.data(), out, in),
                        row_major(data[i].dw.data(), out, in));
    layers.back().share_scratch(scratch);
  }
  nn::pass_context c;
  c.ops = &ops;
  c.current = &recipe;
  c.training = true;
  for (auto _ : state) {
    for (std::size_t i = 0; i < data.size(); ++i) {
      linear_data& d = data[i];
      const index_t out = d.shape.out, in = d.shape.in;
      const auto x = row_major<const float>(d.x.data(), tokens, in);
      layers[i].forward(c, x, row_major(d.y.data(), tokens, out));
      layers[i].backward(c, x, row_major<const float>(d.dy.data(), tokens, out), row_major(d.dx.data(), tokens, in));
    }
    ++c.weight_version;
    benchmark::ClobberMemory();
  }
  set_flops(state);
}

void eigen_linears(benchmark::State& state) {
  std::vector<linear_data> data = all_linears();
  for (auto _ : state) {
    for (linear_data& d : data) {
      const index_t out = d.shape.out, in = d.shape.in;
      const eigen_view x(d.x.data(), tokens, in), w(d.w.data(), out, in), dy(d.dy.data(), tokens, out);
      eigen_view(d.y.data(), tokens, out).noalias() = x * w.transpose();
      eigen_view(d.dx.data(), tokens, in).noalias() = dy * w;
      eigen_view(d.dw.data(), out, in).noalias() += dy.transpose() * x;
    }
    benchmark::ClobberMemory();
  }
  set_flops(state);
}

}  // namespace
}  // namespace rotoscale

int main(int argc, char** argv) {
  using namespace rotoscale;
  const std::vector<nn::recipe> recipes = nn::presets::all();
  benchmark::RegisterBenchmark("linears/eigen", eigen_linears);
  for (const nn::recipe& r : recipes) {
    for (const char* arm : {"fp32", "bf16", "fp8_delayed", "mxfp4", "mxfp4_h16"}) {
      if (r.name != arm) continue;
      benchmark::RegisterBenchmark(("step/" + r.name).c_str(), step, r);
      benchmark::RegisterBenchmark(("linears/" + r.name).c_str(), linears, r);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
