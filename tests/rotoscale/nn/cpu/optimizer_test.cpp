// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Sums over arenas in their stated order, and the optimizer against PyTorch's formulas.
#include "rotoscale/nn/cpu/optimizer.hpp"

#include <limits>

#include "../numbers.hpp"

namespace cpu_optimizer_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace nn = rotoscale::nn;
namespace cpu = rotoscale::nn::cpu;
namespace op = rotoscale::nn::op;

/// Runs the body of an operation on two threads, with a workspace.
template <class Op>
void run(const typename Op::in& i, const typename Op::out& o) {
  thread_pool pool(2);
  std::vector<std::byte> room(1 << 10);
  const lent_scratch lent(room);
  cpu::compute(i, o, pool);
}

TEST_CASE("sum_squares: exact where FP32 is, near elsewhere") {
  thread_pool pool(2);
  for (const index_t n :
       {index_t{0}, index_t{1}, index_t{15}, index_t{4095}, index_t{4096}, index_t{4097}, index_t{20000}}) {
    std::vector<float> integers;
    double want = 0;
    for (index_t i = 0; i < n; ++i) {
      integers.push_back(static_cast<float>(i % 17 - 8));
      want += static_cast<double>(integers.back()) * static_cast<double>(integers.back());
    }
    std::vector<double> partial(static_cast<std::size_t>(cpu::chunk_count(n)));
    CHECK(cpu::sum_squares(integers.data(), n, partial.data(), pool) == want);

    const tensor x = random_tensor(n, 41);
    const std::vector<float> f = to_float(x);
    // A chunk of 4096 has a depth of 256 + 4 FP32 roundings; all terms are positive.
    CHECK(std::abs(cpu::sum_squares(f.data(), n, partial.data(), pool) - dot(x, x)) <= 260 * 0x1p-24 * dot(x, x));
  }
  // Chunks are added in FP64: a small one after a large one is not lost.
  std::vector<float> mixed(8192, 0.0f);
  mixed[0] = 0x1p20f;
  mixed[4096] = 1.0f;
  std::vector<double> partial(2);
  CHECK(cpu::sum_squares(mixed.data(), 8192, partial.data(), pool) == 0x1p40 + 1.0);
}

TEST_CASE("tree_sum adds the first half and the second, down to one term") {
  for (index_t n = 0; n <= 70; ++n) {
    std::vector<double> x;
    for (index_t i = 0; i < n; ++i) x.push_back(std::ldexp(std::sin(i + 1.0), static_cast<int>(i * 7 % 61)));
    std::vector<double> level = x;
    index_t width = 1;
    while (width < n) width *= 2;
    level.resize(static_cast<std::size_t>(width), 0.0);
    for (; width > 1; width /= 2) {
      for (index_t i = 0; i < width / 2; ++i) {
        level[static_cast<std::size_t>(i)] += level[static_cast<std::size_t>(i + width / 2)];
      }
    }
    CHECK(cpu::tree_sum(x.data(), n) == level[0]);
  }
}

TEST_CASE("gradient norm: clip factor, and a count where something is not finite") {
  std::vector<float> gradient(9000, 0.0f);
  gradient[5] = 3.0f;
  gradient[4096] = 4.0f;
  std::vector<double> squares(3);
  nn::step_state s;
  nn::optimizer_config config;
  const auto norm = [&] {
    run<op::square_chunks>({gradient.data(), 9000}, {squares.data()});
    run<op::gradient_norm>({gradient.data(), 9000, 3, config}, {squares.data(), &s});
  };
  norm();
  CHECK((s.squares == 25.0 && s.gradient_norm == 5.0 && s.clip_factor == 1.0f && s.nonfinite == 0));
  config.clip = 10.0;
  norm();
  CHECK(s.clip_factor == 1.0f);
  config.clip = 1.0;
  norm();
  CHECK(s.clip_factor == static_cast<float>(1.0 / (5.0 + 1e-6)));
  gradient[7] = std::numeric_limits<float>::infinity();
  gradient[8000] = std::numeric_limits<float>::quiet_NaN();
  norm();
  CHECK(s.nonfinite == 2);
  CHECK_FALSE(std::isfinite(s.squares));
}

TEST_CASE("AdamW leaves everything alone after a loss or norm that is not finite") {
  std::vector<float> w(4, 1.0f), g(4, 1.0f), m(4, 0.5f), v(4, 0.25f);
  const nn::parameter_arena::segment all{0, 4, true};
  const nn::parameter_arena arena{w.data(), g.data(), m.data(), v.data(), 4, {&all, 1}};
  for (const bool loss : {false, true}) {
    nn::step_state s;
    s.inputs.learning_rate = 1.0f;
    (loss ? s.loss_sum : s.squares) = std::numeric_limits<double>::quiet_NaN();
    run<op::adamw>({{}, &s}, {arena});
    CHECK(w == std::vector<float>(4, 1.0f));
    CHECK(m == std::vector<float>(4, 0.5f));
    CHECK(v == std::vector<float>(4, 0.25f));
  }
}

TEST_CASE("AdamW against PyTorch's formulas over several steps") {
  const index_t n = 40000;  // several chunks
  tensor x = random_tensor(n, 51), m(x.size(), 0.0), v(x.size(), 0.0);
  std::vector<float> w = to_float(x), fm(x.size(), 0.0f), fv(x.size(), 0.0f);
  nn::optimizer_config a;
  a.beta1 = 0.9f;
  a.beta2 = 0.95f;
  a.epsilon = 0x1p-20f;
  a.weight_decay = 0.125f;
  nn::step_state s;
  s.inputs.learning_rate = 0x1p-6f;
  s.clip_factor = 0.25f;
  // The exact FP32 numbers, so that only roundings differ.
  const auto wide = [](float f) { return static_cast<double>(f); };
  const oracle::adamw_options o{wide(s.inputs.learning_rate), wide(a.beta1), wide(a.beta2), wide(a.epsilon),
                                wide(a.weight_decay)};
  for (int step = 1; step <= 5; ++step) {
    tensor gradient = random_tensor(n, static_cast<unsigned>(60 + step));
    gradient[7] = 0.0;
    const std::vector<float> g = to_float(gradient);
    for (double& value : gradient) value *= wide(s.clip_factor);
    s.inputs.bias_correction1 = static_cast<float>(1.0 - std::pow(o.beta1, step));
    s.inputs.bias_correction2 = static_cast<float>(1.0 - std::pow(o.beta2, step));
    // Two adjacent segments equal one parameter.
    const nn::parameter_arena::segment segments[] = {{0, 20000, true}, {20000, n - 20000, true}};
    std::vector<float> own = g;
    run<op::adamw>({a, &s}, {{w.data(), own.data(), fm.data(), fv.data(), n, segments}});
    oracle::adamw_step(x, gradient, m, v, step, o);
    CHECK(roundings_apart(to_double(fm), m) < 3 * step);
    CHECK(roundings_apart(to_double(fv), v) < 4 * step);
    // The update is at most a few learning rates, 2^-6, so its roundings are small compared with the weight's two. But
    // m cancels if gradients change sign, and a small v amplifies that error: |error of m| / sqrt(v) <= 1/8 there.
    CHECK(roundings_apart(to_double(w), x) < 4 * step);
  }
}

}  // namespace cpu_optimizer_test
