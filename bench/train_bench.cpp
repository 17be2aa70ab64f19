// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Cost of emulation on one thread.
//   step/RECIPE     Tokens/s of a training step of the demo's model: forward, backward, scales, AdamW.
//   linears/RECIPE  FLOP/s of its linear layers, against Eigen's FP32 products of the same shapes.
#include <benchmark/benchmark.h>

#include <Eigen/Core>

#include "inputs.hpp"
#include "rotoscale/models/llama/model.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"
#include "rotoscale/train/session.hpp"

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
  const auto ops = nn::make_cpu_backend(1);
  llama::session_options options;
  options.model.batch = bench::batch;
  options.model.sequence = bench::sequence;
  llama::session session(*ops, llama::model_config{}, options, {recipe});
  session.initialize(1);
  std::vector<std::int32_t> text;
  const random_stream random{1, 3};
  for (index_t i = 0; i < tokens; ++i) {
    text.push_back(static_cast<std::int32_t>(random.word(static_cast<std::uint64_t>(i)) % 256));
  }
  nn::step_inputs inputs;
  inputs.learning_rate = 1e-4f;
  for (auto _ : state) {
    session.train_step(inputs, text, text);
    session.finish_step();
    ++inputs.step;
  }
  set_rate(state, "tokens", static_cast<double>(tokens));
}

/// Tensors of one linear layer, forward and backward.
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

  nn::const_tensor_view source(nn::tensor_role tensor) {
    const bool weight = tensor == nn::tensor_role::w;
    std::vector<float>& from = weight ? w : tensor == nn::tensor_role::x ? x : dy;
    return nn::dense_tensor(from.data(), nn::dtype::fp32,
                            {weight ? shape.out : tokens, tensor == nn::tensor_role::dy ? shape.out : shape.in});
  }
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

/// The linear layers of a decoder layer and their memory.
struct linear_layers {
  std::vector<nn::linear> layers;
  std::vector<std::byte> memory;

  linear_layers(nn::backend& ops, const nn::recipe& recipe, std::vector<linear_data>& data) {
    for (std::size_t i = 0; i < data.size(); ++i) {
      const auto [name, out, in] = data[i].shape;
      layers.emplace_back(nn::linear_shape{static_cast<index_t>(i), out, in, tokens}, recipe);
      layers.back().take_contracts(ops);
    }
    nn::memory_cursor counting;
    lay_out(ops, counting, data);
    memory.resize(counting.plan().total());
    nn::arena_bases bases{};
    std::size_t at = 0;
    for (std::size_t c = 0; c < bases.size(); at += counting.plan().bytes[c++]) bases[c] = memory.data() + at;
    nn::memory_cursor giving(bases);
    lay_out(ops, giving, data);
  }
  void lay_out(nn::backend& ops, nn::memory_cursor& cursor, std::vector<linear_data>& data) {
    for (std::size_t i = 0; i < data.size(); ++i) {
      for (const nn::tensor_role tensor : {nn::tensor_role::x, nn::tensor_role::w, nn::tensor_role::dy}) {
        layers[i].lay_out(ops, cursor, nn::memory_category::workspace, tensor, data[i].source(tensor));
      }
    }
  }
};

void linears(benchmark::State& state, const nn::recipe& recipe) {
  const auto ops = nn::make_cpu_backend(1);
  std::vector<linear_data> data = all_linears();
  const linear_layers made(*ops, recipe, data);
  nn::step_state now;
  const nn::pass pass{ops.get(), {}, &now, nullptr, true};
  for (auto _ : state) {
    for (std::size_t i = 0; i < data.size(); ++i) {
      linear_data& d = data[i];
      const nn::linear& layer = made.layers[i];
      const index_t out = d.shape.out, in = d.shape.in;
      const auto whole = [](std::vector<float>& x, index_t rows, index_t cols) {
        return nn::dense_tensor(x.data(), nn::dtype::fp32, {rows, cols});
      };
      layer.quantize_weights(pass, d.source(nn::tensor_role::w));
      ops->quantize({}, {d.source(nn::tensor_role::x), &now}, {layer.input_target(pass)});
      layer.forward(pass, whole(d.y, tokens, out));
      ops->quantize({}, {d.source(nn::tensor_role::dy), &now}, {layer.gradient_target(pass)});
      layer.backward(pass, whole(d.dx, tokens, in), whole(d.dw, out, in));
    }
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
