// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The CPU backend's memory, and equal bits of each operation on any number of threads.
#include "rotoscale/nn/cpu/backend.hpp"

#include "../backend_memory.hpp"
#include "../numbers.hpp"

namespace cpu_backend_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace nn = rotoscale::nn;

TEST_CASE("memory is aligned to cache lines and zero") {
  nn::cpu_backend ops(1);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{1000}}) {
    auto* memory = static_cast<unsigned char*>(ops.allocate(bytes, nn::memory_kind::device));
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0);
    for (std::size_t i = 0; i < bytes; ++i) CHECK(memory[i] == 0);
    ops.release(memory, nn::memory_kind::device);
  }
}

TEST_CASE("an operation without memory fails its queue, which skips the next ones") {
  nn::cpu_backend ops(1);
  bool ran = false;
  ops.run({}, {.name = "gemm"}, [] { throw std::bad_alloc(); });
  ops.run({}, {.name = "add"}, [&] { ran = true; });
  try {
    ops.synchronize(ops.record({}));
    FAIL("no error");
  } catch (const nn::backend_error& fault) {
    CHECK(fault.what() == std::string("gemm: out of memory"));
    CHECK(fault.of_device());
  }
  CHECK(!ran);
}

/// Every row-wise operation once on activations of a type, results concatenated. 300 rows make several chunks.
template <class T>
std::vector<float> run_all(int threads) {
  nn::cpu_backend ops(threads);
  constexpr index_t n = 300, d = 70;
  const queue_workspace room(ops);
  const auto make = [&](unsigned seed) {
    std::vector<T> values;
    for (const double x : random_tensor(n * d, seed, 3.0)) values.push_back(T(static_cast<float>(x)));
    return device_array<T>(ops, values);
  };
  const auto whole = [&](const device_array<T>& a) { return nn::dense_tensor(a.data(), nn::dtype_of<T>, {n, d}); };
  const auto x = make(1), dy = make(2), y = make(3), dx = make(4), gate_up = make(5), d_gate_up = make(6),
             sum = make(7), h = make(8), dh = make(9);
  const device_array<float> gain(ops, to_float(random_tensor(d, 8))), rstd(ops, n), dgain(ops, d), loss(ops, n),
      logits(ops, to_float(random_tensor(n * d, 10))), table(ops, to_float(random_tensor(d * d, 11))),
      dtable(ops, d * d);
  std::vector<std::int32_t> numbers;
  for (int i = 0; i < n; ++i) numbers.push_back(i * i % d);
  const device_array<std::int32_t> tokens(ops, numbers);
  nn::step_state initial;
  initial.gradient_scale = 0.01f;
  const device_array<nn::step_state> state(ops, std::vector<nn::step_state>{initial});
  const nn::token_source source{tokens.data(), n};
  const auto fp32 = [](float* data, index_t rows) { return nn::dense_tensor(data, nn::dtype::fp32, {rows, d}); };
  const nn::queue q;
  ops.embedding_forward(q, {source, fp32(table.data(), d), state.data()}, {whole(x)});
  ops.norm_forward(q, {whole(x), gain.data(), 1e-5f}, {whole(y), rstd.data()});
  ops.norm_backward(q, {whole(dy), whole(x), gain.data(), rstd.data()}, {whole(dx), dgain.data()});
  const auto half = [&](const device_array<T>& a) { return whole(a).part(1, 0, d / 2); };
  ops.activation_forward(q, {whole(gate_up), nn::activation::swiglu}, {half(h)});
  ops.activation_backward(q, {half(dh), whole(gate_up), nn::activation::swiglu}, {whole(d_gate_up)});
  ops.add(q, {whole(x), whole(dy)}, {whole(sum)});
  ops.cross_entropy(q, {source, 0, true, state.data()}, {fp32(logits.data(), n), loss.data()});
  ops.sum_losses(q, {loss.data(), n}, {state.data()});
  ops.embedding_backward(q, {source, whole(dx), state.data()}, {fp32(dtable.data(), d)});
  const device_array<float> w(ops, to_float(random_tensor(n * d, 12))), m(ops, n * d), v(ops, n * d);
  const nn::parameter_arena::segment all{0, n * d, true};
  const nn::parameter_arena arena{w.data(), logits.data(), m.data(), v.data(), n * d, {&all, 1}};
  const nn::optimizer_config config{0.9f, 0.95f, 1e-8f, 0.1f, 1.0};
  const device_array<double> squares(ops, n * d);
  ops.square_chunks(q, {arena.gradient, n * d}, {squares.data()});
  ops.gradient_norm(q, {arena.gradient, n * d, (n * d + 4095) / 4096, config}, {squares.data(), state.data()});
  ops.adamw(q, {config, state.data()}, {arena});
  ops.synchronize(q);
  std::vector<float> out;
  for (const auto* a : {&x, &y, &dx, &d_gate_up, &sum, &h}) {
    for (const T value : a->get()) out.push_back(static_cast<float>(value));
  }
  for (const auto* a : {&rstd, &dgain, &loss, &logits, &dtable, &w, &m, &v}) {
    const auto values = a->get();
    out.insert(out.end(), values.begin(), values.end());
  }
  const nn::step_state s = state.get()[0];
  for (const double value : {s.loss_sum, s.squares, s.gradient_norm}) out.push_back(static_cast<float>(value));
  return out;
}

TEST_CASE_TEMPLATE("1, 2 and 4 threads give the same bits", T, float, bf16) {
  const auto one = run_all<T>(1);
  for (const float x : one) REQUIRE(std::isfinite(x));
  for (const int threads : {2, 4}) CHECK(same_bytes(one, run_all<T>(threads)));
}

TEST_CASE("a GEMM stored as BF16 is the one rounded to BF16") {
  nn::cpu_backend ops(2);
  const index_t m = 5, n = 70, k = 33;
  const queue_workspace room(ops);
  const device_array<float> a(ops, to_float(random_tensor(m * k, 1))), b(ops, to_float(random_tensor(n * k, 2)));
  const nn::operand_recipe fp32{nn::operand_format::fp32};
  const auto make = [&](const device_array<float>& x, index_t rows) {
    nn::operand_request r;
    r.rows = rows;
    r.cols = k;
    r.row = fp32;
    return made_operands(ops, r, nn::dense_tensor(x.data(), nn::dtype::fp32, {rows, k}));
  };
  const made_operands left = make(a, m), right = make(b, n);
  const device_array<float> wide(ops, m * n);
  const device_array<bf16> narrow(ops, m * n);
  const nn::gemm_contract chain = *nn::find_gemm_contract(nn::fp32_fma_chain_contract);
  ops.gemm({}, {left.row(), right.row(), chain, nn::operand_format::bf16, false},
           {nn::dense_tensor(wide.data(), nn::dtype::fp32, {m, n})});
  ops.gemm({}, {left.row(), right.row(), chain, nn::operand_format::fp32, false},
           {nn::dense_tensor(narrow.data(), nn::dtype::bf16, {m, n})});
  ops.synchronize(nn::queue{});
  std::vector<float> widened;
  for (const bf16 x : narrow.get()) widened.push_back(static_cast<float>(x));
  CHECK(same_bytes(wide.get(), widened));
}

}  // namespace cpu_backend_test
