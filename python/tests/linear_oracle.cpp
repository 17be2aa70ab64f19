// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The trainer's linear layer, for comparison with rotoscale.torch.
//   linear_oracle RECIPE LAYER SEED TOKENS IN OUT   For each step, FP32 from stdin: x, w, dy; to stdout: y, dx, dw.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "rotoscale/nn/blocks/linear.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"
#include "rotoscale/nn/presets.hpp"

using namespace rotoscale;

namespace {

nn::recipe recipe_named(const std::string& name) {
  for (const nn::recipe& r : nn::presets::all()) {
    if (r.name == name) return r;
  }
  std::exit(2);
}

struct floats {
  std::vector<float> values;
  nn::tensor_view view;
  floats(index_t rows, index_t cols)
      : values(static_cast<std::size_t>(rows * cols)),
        view(nn::dense_tensor(values.data(), nn::dtype::fp32, {rows, cols})) {}
  bool read() { return std::fread(values.data(), sizeof(float), values.size(), stdin) == values.size(); }
  void write() const { std::fwrite(values.data(), sizeof(float), values.size(), stdout); }
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 7) return 2;
  const auto number = [&](int i) { return static_cast<index_t>(std::atol(arguments[i])); };
  const nn::recipe r = recipe_named(arguments[1]);
  const index_t layer = number(2), tokens = number(4), in = number(5), out = number(6);
  const std::unique_ptr<nn::backend> ops = nn::make_cpu_backend(1);
  floats x(tokens, in), w(out, in), dy(tokens, out), y(tokens, out), dx(tokens, in), dw(out, in);

  nn::linear linear({layer, out, in, tokens, true, true, nn::dtype::fp32, nn::dtype::fp32}, r);
  if (linear.take_contracts(*ops)) return 2;
  std::vector<std::byte> workspace(1 << 22);
  ops->set_workspace({}, workspace.data(), workspace.size());
  nn::delayed_scaling_state scales;
  const auto lay_out = [&](nn::memory_cursor& cursor) {
    scales = nn::delayed_scaling_state(cursor, layer + 2, r);  // the last layer is the head
    linear.lay_out(*ops, cursor, nn::memory_category::quantized, nn::tensor_role::w, w.view);
    linear.lay_out(*ops, cursor, nn::memory_category::activations, nn::tensor_role::x, x.view);
    linear.lay_out(*ops, cursor, nn::memory_category::workspace, nn::tensor_role::dy, dy.view);
  };
  nn::memory_cursor counting;
  lay_out(counting);
  std::vector<std::byte> memory(counting.plan().total() + 1024);
  nn::arena_bases bases{};
  auto* at = memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256);
  for (std::size_t c = 0; c < bases.size(); at += counting.plan().bytes[c++]) bases[c] = at;
  nn::memory_cursor giving(bases);
  lay_out(giving);
  scales.reset(*ops, {});

  nn::step_state state;
  state.inputs.seed = static_cast<std::uint64_t>(number(3));
  const nn::pass pass{ops.get(), {}, &state, &scales, true};
  for (; x.read() && w.read() && dy.read(); ++state.inputs.step) {
    linear.quantize_weights(pass, w.view);
    ops->quantize({}, {x.view, &state}, {linear.input_target(pass)});
    linear.forward(pass, y.view);
    ops->quantize({}, {dy.view, &state}, {linear.gradient_target(pass)});
    dw.values.assign(dw.values.size(), 0.0f);
    linear.backward(pass, dx.view, dw.view);
    scales.update(*ops, {});
    ops->synchronize(nn::queue{});
    for (const floats* result : {&y, &dx, &dw}) result->write();
  }
  return 0;
}
