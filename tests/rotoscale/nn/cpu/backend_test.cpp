// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The CPU backend's memory, and that each operation gives the same bits on any number of threads.
#include "rotoscale/nn/cpu/backend.hpp"

#include "../numbers.hpp"

using namespace rotoscale;
using namespace rotoscale::testing;
namespace nn = rotoscale::nn;

TEST_CASE("memory is aligned to cache lines and zero") {
  nn::cpu_backend ops(1);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{1000}}) {
    auto* memory = static_cast<unsigned char*>(ops.allocate(bytes));
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0);
    for (std::size_t i = 0; i < bytes; ++i) CHECK(memory[i] == 0);
    ops.release(memory);
  }
}

TEST_CASE("the description names threads") {
  CHECK(nn::cpu_backend(1).description().starts_with("cpu (1 thread, "));
  CHECK(nn::cpu_backend(3).description().starts_with("cpu (3 threads, "));
  CHECK(nn::cpu_backend().pool().threads() >= 1);
}

namespace {

/// Every row-wise operation once, results in a row; 300 rows make several chunks.
std::vector<float> run_all(int threads) {
  nn::cpu_backend ops(threads);
  constexpr index_t n = 300, d = 70;
  const auto make = [&](unsigned seed) { return strided_matrix(n, d, 3, random_tensor(n * d, seed, 3.0)); };
  strided_matrix x = make(1), dy = make(2), y = make(3), dx = make(4), gate = make(5), up = make(6), z = make(7);
  std::vector<float> weight = to_float(random_tensor(d, 8)), rstd(n), dweight(d), loss(n);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(i * i % d);
  ops.rmsnorm_forward(x.view(), weight.data(), 1e-5f, y.view(), rstd.data());
  ops.rmsnorm_backward(dy.view(), x.view(), weight.data(), rstd.data(), dx.view(), dweight.data());
  ops.swiglu_backward(dy.view(), x.view(), y.view(), gate.view(), up.view());
  ops.swiglu_forward(gate.view(), up.view(), x.view());
  ops.add(x.view(), dy.view());
  ops.cross_entropy(z.view(), tokens.data(), loss.data(), 0.01f);
  ops.embedding_backward(tokens.data(), z.view(), submatrix(dx.view(), 0, 0, d, d));
  ops.embedding_forward(tokens.data(), submatrix(dx.view(), 0, 0, d, d), dy.view());
  std::vector<float> m(n * d), v(n * d), w = to_float(x.values());
  nn::adamw_args args;
  args.learning_rate = 0.01f;
  ops.adamw(w.data(), to_float(dx.values()).data(), m.data(), v.data(), n * d, args);
  std::vector<float> all{static_cast<float>(ops.sum_squares(w.data(), n * d))};
  for (strided_matrix* s : {&x, &dy, &y, &dx, &gate, &up, &z}) {
    const auto values = to_float(s->values());
    all.insert(all.end(), values.begin(), values.end());
  }
  for (const auto* f : {&rstd, &dweight, &loss, &m, &v, &w}) all.insert(all.end(), f->begin(), f->end());
  return all;
}

}  // namespace

TEST_CASE("1, 2 and 4 threads give the same bits") {
  const auto one = run_all(1);
  for (const float x : one) REQUIRE(std::isfinite(x));
  for (const int threads : {2, 4}) CHECK(same_bytes(one, run_all(threads)));
}
