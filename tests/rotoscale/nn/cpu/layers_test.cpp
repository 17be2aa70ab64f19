// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The row-wise layers against the double-precision oracle, on strided views as the model passes them. Backward passes
// are compared with central differences of the oracle's forward pass. The optimizer is compared with PyTorch's
// formulas.
//
// Tolerances are counts of FP32 roundings (roundings_apart): a result of n operations on numbers no larger than it has
// an error of at most n. Sums use 16 lanes, so a sum of d terms has a depth of d / 16 + 4 roundings.
#include "rotoscale/nn/cpu/layers.hpp"

#include "../numbers.hpp"

namespace cpu_layers_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace cpu = rotoscale::nn::cpu;
namespace op = rotoscale::nn::op;

constexpr double nothing = 0.0;

/// Runs the body of an operation on two threads, with a workspace.
template <class Op>
void run(const typename Op::in& i, const typename Op::out& o) {
  thread_pool pool(2);
  std::vector<std::byte> room(1 << 20, std::byte{0x99});
  const lent_scratch lent(room);
  cpu::compute(i, o, pool);
}
nn::tensor_view row(std::vector<float>& x) {
  return nn::dense_tensor(x.data(), nn::dtype::fp32, {1, static_cast<index_t>(x.size())});
}

std::vector<int> to_int(const std::vector<std::int32_t>& x) { return {x.begin(), x.end()}; }

TEST_CASE("RMSNorm forward and backward") {
  // 130 rows: two whole chunks of the weight gradient's partial sums and a partial one.
  const struct { index_t rows, d; } shapes[] = {{1, 1}, {3, 7}, {5, 32}, {130, 20}};
  for (const auto& s : shapes) {
    const index_t rows = s.rows, d = s.d;
    CAPTURE(rows);
    CAPTURE(d);
    constexpr double eps = 0x1p-17;
    tensor x = random_tensor(rows * d, 1), weight = random_tensor(d, 2, 0.5, 1.0);
    const tensor dy = random_tensor(rows * d, 3), dx0 = random_tensor(rows * d, 4), dw0 = random_tensor(d, 5);
    strided_matrix sx(rows, d, 3, x), sy(rows, d, 5), sdy(rows, d, 2, dy), sdx(rows, d, 1, dx0);
    const std::vector<float> w = to_float(weight);
    std::vector<float> rstd(static_cast<std::size_t>(rows)), dw = to_float(dw0);
    run<op::norm_forward>({sx, w.data(), static_cast<float>(eps)}, {sy, rstd.data()});
    // d / 16 + 4 for the sum, then mean, +eps, sqrt (halves errors), 1/, two products.
    CHECK(roundings_apart(sy.values(), oracle::rmsnorm(x, weight, eps)) < 12);

    run<op::norm_backward>({sdy, sx, w.data(), rstd.data()}, {sdx, dw.data()});
    const auto objective = [&] { return dot(oracle::rmsnorm(x, weight, eps), dy); };
    // Gradients of inputs are added to the residual's, gradients of weights to other microbatches'.
    const tensor want_x = oracle::add(numeric_gradient(objective, x), dx0);
    CHECK(roundings_apart(sdx.values(), want_x) < 24);
    const tensor want_w = oracle::add(numeric_gradient(objective, weight), dw0);
    CHECK(roundings_apart(to_double(dw), want_w) < 24 + static_cast<double>(rows) / 4);  // errors of random sign
    CHECK((sx.gaps_untouched() && sy.gaps_untouched() && sdy.gaps_untouched() && sdx.gaps_untouched()));
  }
}

TEST_CASE("RMSNorm of zeros is zero, and its gradient finite") {
  std::vector<float> x(8, 0.0f), w(8, 1.0f), y(8, 9.0f), rstd(1), dy(8, 1.0f), dx(8, 0.0f), dw(8, 0.0f);
  run<op::norm_forward>({row(x), w.data(), 1e-5f}, {row(y), rstd.data()});
  run<op::norm_backward>({row(dy), row(x), w.data(), rstd.data()}, {row(dx), dw.data()});
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(y[i] == 0.0f);
    CHECK(dx[i] == doctest::Approx(1.0 / std::sqrt(1e-5)).epsilon(1e-6));
    CHECK(dw[i] == 0.0f);
  }
}

TEST_CASE("LayerNorm forward and backward") {
  const struct { index_t rows, d; } shapes[] = {{1, 2}, {3, 7}, {5, 32}, {130, 20}};
  for (const auto& s : shapes) {
    const index_t rows = s.rows, d = s.d;
    CAPTURE(rows);
    CAPTURE(d);
    constexpr double eps = 0x1p-17;
    const tensor x = random_tensor(rows * d, 1, 1.0, 0.5), weight = random_tensor(d, 2, 0.5, 1.0),
                 bias = random_tensor(d, 6), dy = random_tensor(rows * d, 3), dx0 = random_tensor(rows * d, 4),
                 dw0 = random_tensor(d, 5), db0 = random_tensor(d, 7);
    strided_matrix sx(rows, d, 3, x), sy(rows, d, 5), sdy(rows, d, 2, dy), sdx(rows, d, 1, dx0), sum(rows, d, 0),
        zeros(rows, d, 0, tensor(x.size(), 0.0));
    const std::vector<float> w = to_float(weight), b = to_float(bias);
    std::vector<float> mean(static_cast<std::size_t>(rows)), rstd(mean.size()), dw = to_float(dw0), db = to_float(db0);
    run<op::residual_norm>({sx, zeros, w.data(), static_cast<float>(eps), nullptr, b.data()},
                           {sum, sy, rstd.data(), {}, mean.data()});
    CHECK(sum.values() == x);
    // As RMSNorm, and x - mean has the error of the mean.
    CHECK(roundings_apart(sy.values(), oracle::layernorm(x, weight, bias, eps)) < 16);

    run<op::norm_backward>({sdy, sx, w.data(), rstd.data(), mean.data()}, {sdx, dw.data(), db.data()});
    const auto want = oracle::layernorm_backward(dy, x, weight, eps);
    CHECK(roundings_apart(sdx.values(), oracle::add(want.x, dx0)) < 40);
    CHECK(roundings_apart(to_double(dw), oracle::add(want.weight, dw0)) < 24 + static_cast<double>(rows) / 4);
    CHECK(roundings_apart(to_double(db), oracle::add(want.bias, db0)) < 24 + static_cast<double>(rows) / 4);
    CHECK((sx.gaps_untouched() && sy.gaps_untouched() && sdy.gaps_untouched() && sdx.gaps_untouched()));
  }
}

TEST_CASE("the oracle of LayerNorm and GELU has PyTorch's numbers and the derivatives of its forward pass") {
  // torch.nn.functional.layer_norm of (1, 2, 3, 4): ±1.5 and ±0.5 divided by sqrt(1.25 + 1e-5).
  const tensor ramp{1.0, 2.0, 3.0, 4.0}, ones(4, 1.0), zeros(4, 0.0);
  const tensor normed = oracle::layernorm(ramp, ones, zeros, 1e-5);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(normed[i] == doctest::Approx((static_cast<double>(i) - 1.5) / std::sqrt(1.25 + 1e-5)).epsilon(1e-14));
  }
  // torch.nn.functional.gelu(x, approximate="tanh").
  const tensor at{-1.0, 0.5, 1.0, 3.0}, want{-0.15880801, 0.34571401, 0.84119199, 2.99636260};
  const tensor got = oracle::gelu_tanh(at);
  for (std::size_t i = 0; i < 4; ++i) CHECK(got[i] == doctest::Approx(want[i]).epsilon(1e-7));
  tensor x = random_tensor(3 * 5, 1, 2.0), w = random_tensor(5, 2), b = random_tensor(5, 3);
  const tensor dy = random_tensor(3 * 5, 4);
  const auto norm = [&] { return dot(oracle::layernorm(x, w, b, 1e-3), dy); };
  const auto d = oracle::layernorm_backward(dy, x, w, 1e-3);
  CHECK(roundings_apart(d.x, numeric_gradient(norm, x)) < 0.1);
  CHECK(roundings_apart(d.weight, numeric_gradient(norm, w)) < 0.1);
  CHECK(roundings_apart(d.bias, numeric_gradient(norm, b)) < 0.1);
  const auto gelu_sum = [&] { return dot(oracle::gelu_tanh(x), dy); };
  CHECK(roundings_apart(oracle::gelu_tanh_backward(dy, x), numeric_gradient(gelu_sum, x)) < 0.1);
}

TEST_CASE("a bias and positions, forward and backward") {
  constexpr index_t rows = 200, d = 21;
  for (const index_t period : {index_t{1}, index_t{3}, index_t{150}}) {
    const tensor x = random_tensor(rows * d, 1), table = random_tensor(period * d, 2), dy = random_tensor(rows * d, 3),
                 before = random_tensor(period * d, 4);
    strided_matrix sx(rows, d, 3, x), stable(period, d, 1, table), sdy(rows, d, 2, dy), sd(period, d, 2, before);
    run<op::bias_forward>({stable}, {sx});
    CHECK(sx.values() == oracle::add_table(x, table));  // exact: multiples of 2^-12
    run<op::bias_backward>({sdy}, {sd});
    CHECK(sd.values() == oracle::add(oracle::table_backward(dy, table.size()), before));
    CHECK((sx.gaps_untouched() && sd.gaps_untouched()));
  }
}

TEST_CASE("RoPE forward and backward on the queries and keys of one matrix") {
  constexpr index_t batch = 2, seq = 5, heads = 3, kv = 2, dim = 6, width = (heads + 2 * kv) * dim;
  const tensor frequencies = oracle::rope_frequencies(dim, 100.0);
  std::vector<float> cosine, sine;
  for (index_t t = 0; t < seq; ++t) {
    for (const double f : frequencies) {
      cosine.push_back(static_cast<float>(std::cos(static_cast<double>(t) * f)));
      sine.push_back(static_cast<float>(std::sin(static_cast<double>(t) * f)));
    }
  }
  for (const auto& part : {std::pair<index_t, index_t>{0, heads}, {heads * dim, kv}}) {
    const index_t first = part.first, count = part.second;
    tensor x = random_tensor(batch * seq * count * dim, 7);
    const tensor dy = random_tensor(batch * seq * count * dim, 8);
    for (const bool inverse : {false, true}) {
      const tensor& source = inverse ? dy : x;
      tensor all = random_tensor(batch * seq * width, 9);
      for (index_t t = 0; t < batch * seq; ++t) {
        for (index_t i = 0; i < count * dim; ++i) {
          all[static_cast<std::size_t>(t * width + first + i)] = source[static_cast<std::size_t>(t * count * dim + i)];
        }
      }
      std::vector<float> memory = to_float(all);
      const nn::tensor_view view{
          memory.data() + first, nn::dtype::fp32, 4, {batch, seq, count, dim}, {seq * width, width, dim, 1}};
      run<op::rope>({cosine.data(), sine.data(), inverse}, {view, {}});
      tensor got;
      for (index_t t = 0; t < batch * seq; ++t) {
        for (index_t i = 0; i < width; ++i) {
          const auto at = static_cast<std::size_t>(t * width + i);
          if (i >= first && i < first + count * dim) {
            got.push_back(static_cast<double>(memory[at]));
          } else {
            CHECK(static_cast<double>(memory[at]) == all[at]);  // neighbours in the row are unchanged
          }
        }
      }
      const auto forward = [&] { return oracle::rope(x, seq, static_cast<std::size_t>(count), dim, frequencies); };
      const tensor want = inverse ? numeric_gradient([&] { return dot(forward(), dy); }, x) : forward();
      CHECK(roundings_apart(got, want) < 4);  // cosine, sine, product, fma
    }
  }
}

TEST_CASE("SwiGLU forward and backward on halves of one matrix") {
  for (const index_t f : {index_t{1}, index_t{20}, index_t{33}}) {
    const index_t rows = 67;
    tensor gate = random_tensor(rows * f, 11, 8.0), up = random_tensor(rows * f, 12);
    const tensor dh = random_tensor(rows * f, 13);
    strided_matrix joint(rows, 2 * f, 0), d_joint(rows, 2 * f, 0), h(rows, f, 3), sdh(rows, f, 1, dh);
    for (index_t r = 0; r < rows; ++r) {
      for (index_t j = 0; j < f; ++j) {
        joint.view()(r, j) = static_cast<float>(gate[static_cast<std::size_t>(r * f + j)]);
        joint.view()(r, f + j) = static_cast<float>(up[static_cast<std::size_t>(r * f + j)]);
      }
    }
    const auto half = [&](strided_matrix& m, index_t which) { return submatrix(m.view(), 0, which * f, rows, f); };
    run<op::activation_forward>({joint, nn::activation::swiglu}, {h});
    CHECK(roundings_apart(h.values(), oracle::swiglu(gate, up)) < 8);  // exp (2), +1, 1/, two products

    run<op::activation_backward>({sdh, joint, nn::activation::swiglu}, {d_joint});
    tensor want_gate, want_up;
    for (std::size_t i = 0; i < gate.size(); ++i) {  // each result has one input
      tensor one_gate{gate[i]}, one_up{up[i]};
      const auto objective = [&] { return oracle::swiglu(one_gate, one_up)[0] * dh[i]; };
      want_gate.push_back(numeric_derivative(objective, one_gate, 0));
      want_up.push_back(numeric_derivative(objective, one_up, 0));
    }
    tensor got_gate, got_up;
    for (index_t r = 0; r < rows; ++r) {
      for (index_t j = 0; j < f; ++j) got_gate.push_back(static_cast<double>(half(d_joint, 0)(r, j)));
      for (index_t j = 0; j < f; ++j) got_up.push_back(static_cast<double>(half(d_joint, 1)(r, j)));
    }
    // 1 - s has the absolute error of s, which |gate| <= 8 multiplies.
    CHECK(roundings_apart(got_gate, want_gate) < 8 * 5 + 8);
    CHECK(roundings_apart(got_up, want_up) < 8);
    CHECK((h.gaps_untouched() && sdh.gaps_untouched()));
  }
}

TEST_CASE("SwiGLU far from zero") {
  std::vector<float> x{-200.0f, 200.0f, -88.0f, 0.0f, 2.0f, 2.0f, 2.0f, 2.0f}, h(4), dh(4, 1.0f), dx(8);
  run<op::activation_forward>({row(x), nn::activation::swiglu}, {row(h)});
  run<op::activation_backward>({row(dh), row(x), nn::activation::swiglu}, {row(dx)});
  const float *const dg = dx.data(), *const du = dg + 4;
  CHECK(std::abs(h[0]) == 0.0f);
  CHECK(h[1] == 400.0f);
  CHECK(h[3] == 0.0f);
  CHECK(std::abs(dg[0]) == 0.0f);
  CHECK(dg[1] == 2.0f);
  CHECK(dg[3] == 1.0f);  // silu'(0) = 1/2
  CHECK(du[1] == 200.0f);
  for (const float value : {h[2], dg[2], du[2]}) CHECK(std::isfinite(value));
}

TEST_CASE("GELU forward and backward, far from zero too") {
  constexpr index_t rows = 67, f = 33;
  tensor x = random_tensor(rows * f, 14, 8.0);
  const tensor dh = random_tensor(rows * f, 15);
  strided_matrix sx(rows, f, 2, x), sdh(rows, f, 1, dh), h(rows, f, 3), dx(rows, f, 0);
  run<op::activation_forward>({sx, nn::activation::gelu_tanh}, {h});
  // The argument of the sigmoid has three roundings, which up to 60 of |2 u| multiply where the sigmoid is small.
  CHECK(roundings_apart(h.values(), oracle::gelu_tanh(x)) < 200);
  run<op::activation_backward>({sdh, sx, nn::activation::gelu_tanh}, {dx});
  CHECK(roundings_apart(dx.values(), oracle::gelu_tanh_backward(dh, x)) < 200);
  CHECK((h.gaps_untouched() && dx.gaps_untouched()));

  std::vector<float> far{-1e30f, 1e30f, -30.0f, 0.0f, 1e20f}, value(5), slope(5), one(5, 1.0f);
  run<op::activation_forward>({row(far), nn::activation::gelu_tanh}, {row(value)});
  run<op::activation_backward>({row(one), row(far), nn::activation::gelu_tanh}, {row(slope)});
  CHECK(value == std::vector<float>{-0.0f, 1e30f, -0.0f, 0.0f, 1e20f});
  CHECK(slope == std::vector<float>{0.0f, 1.0f, 0.0f, 0.5f, 1.0f});
}

TEST_CASE("embedding forward and backward, with repeated tokens") {
  constexpr index_t vocab = 11, d = 37, n = 70;
  std::vector<std::int32_t> tokens;
  for (int t = 0; t < n; ++t) tokens.push_back(t * t % 7);
  tensor table = random_tensor(vocab * d, 21);
  const tensor dy = random_tensor(n * d, 22), before = random_tensor(vocab * d, 23);
  strided_matrix stable(vocab, d, 2, table), y(n, d, 3), sdy(n, d, 1, dy), grad(vocab, d, 2, before);
  const nn::step_state state;
  run<op::embedding_forward>({{tokens.data(), 0}, stable, &state}, {y});
  CHECK(roundings_apart(y.values(), oracle::embedding(to_int(tokens), table, d)) == nothing);
  run<op::embedding_backward>({{tokens.data(), 0}, sdy, &state}, {grad});
  const auto objective = [&] { return dot(oracle::embedding(to_int(tokens), table, d), dy); };
  const tensor want = oracle::add(numeric_gradient(objective, table), before);
  CHECK(roundings_apart(grad.values(), want) < 1);  // sums are exact; the difference is the oracle's
  CHECK((stable.gaps_untouched() && y.gaps_untouched() && sdy.gaps_untouched() && grad.gaps_untouched()));
}

TEST_CASE("add") {
  const tensor x = random_tensor(70 * 5, 24), y = random_tensor(70 * 5, 25);
  strided_matrix sx(70, 5, 2, x), sy(70, 5, 3, y);
  strided_matrix sum(70, 5, 1);
  run<op::add>({sx, sy}, {sum});
  CHECK(roundings_apart(sum.values(), oracle::add(x, y)) == nothing);
  run<op::add>({sx, sy}, {sx});
  CHECK(sx.values() == sum.values());
  CHECK((sx.gaps_untouched() && sy.gaps_untouched() && sum.gaps_untouched()));
}

TEST_CASE("cross-entropy with masked targets: losses and gradients") {
  for (const index_t vocab : {index_t{1}, index_t{5}, index_t{50}}) {
    CAPTURE(vocab);
    constexpr index_t n = 67;
    tensor logits = random_tensor(n * vocab, 31, 4.0);
    std::vector<std::int32_t> targets;
    for (index_t t = 0; t < n; ++t) {
      targets.push_back(t % 5 == 2 ? nn::ignored_target : static_cast<std::int32_t>(t * 7 % vocab));
    }
    constexpr double scale = 0.375;
    strided_matrix z(n, vocab, 3, logits);
    std::vector<float> loss(n, 99.0f);
    nn::step_state state;
    state.gradient_scale = static_cast<float>(scale);
    run<op::cross_entropy>({{targets.data(), 0}, 0, true, &state}, {z, loss.data()});

    tensor want;
    for (index_t t = 0; t < n; ++t) {
      const auto at = static_cast<std::size_t>(t);
      const tensor row(logits.begin() + t * vocab, logits.begin() + (t + 1) * vocab);
      const bool masked = targets[at] == nn::ignored_target;
      want.push_back(masked ? 0.0 : oracle::cross_entropy(row, {targets[at]}, static_cast<std::size_t>(vocab)));
      if (masked) CHECK(loss[at] == 0.0f);
    }
    if (vocab > 1) CHECK(roundings_apart(to_double(loss), want) < 16);  // log (3) of a sum of exps (2 + 8 deep)
    // The oracle's mean over counted targets as a sum, a few tokens at a time: each token has its own logits.
    tensor gradient;
    for (index_t first = 0; first < n; first += 10) {
      const index_t end = std::min(first + 10, n);
      tensor some(logits.begin() + first * vocab, logits.begin() + end * vocab);
      const auto of_some = to_int({targets.begin() + first, targets.begin() + end});
      const auto objective = [&] {
        return scale * oracle::counted_targets(of_some) *
               oracle::cross_entropy(some, of_some, static_cast<std::size_t>(vocab));
      };
      const tensor part = numeric_gradient(objective, some);
      gradient.insert(gradient.end(), part.begin(), part.end());
    }
    if (vocab > 1) {
      CHECK(roundings_apart(z.values(), gradient) < 16);
    } else {
      CHECK(largest(z.values()) == 0.0);
    }
    for (index_t t = 2; t < n; t += 5) {
      for (index_t j = 0; j < vocab; ++j) CHECK(fp32_bits(z.view()(t, j)) == 0u);
    }
    CHECK(z.gaps_untouched());

    // Without gradients the losses have the same bits.
    strided_matrix again(n, vocab, 0, logits);
    std::vector<float> loss_again(n);
    run<op::cross_entropy>({{targets.data(), 0}, 0, false, &state}, {again, loss_again.data()});
    CHECK(same_bytes(loss, loss_again));
  }
}

TEST_CASE("cross-entropy of large, infinite and NaN logits") {
  const auto loss_of = [&](std::vector<float> z, std::int32_t target) {
    float loss = 0;
    nn::step_state state;
    state.gradient_scale = 1.0f;
    run<op::cross_entropy>({{&target, 0}, 0, true, &state}, {row(z), &loss});
    return loss;
  };
  CHECK(loss_of({3e38f, 3e38f, 0, 0}, 0) == doctest::Approx(std::log(2.0)).epsilon(1e-6));
  CHECK(loss_of({-3e38f, -3e38f}, 1) == doctest::Approx(std::log(2.0)).epsilon(1e-6));
  CHECK(loss_of({1000, 0, 0}, 0) == 0.0f);
  CHECK(loss_of({1000, 0, 0}, 1) == 1000.0f);
  for (int at = 0; at < 40; ++at) {  // a NaN at any position shows in the loss
    std::vector<float> z(40, 1.0f);
    z[static_cast<std::size_t>(at)] = std::numeric_limits<float>::quiet_NaN();
    CHECK(std::isnan(loss_of(z, 3)));
  }
}

TEST_CASE("row_max") {
  for (index_t n = 1; n <= 70; ++n) {
    const std::vector<float> x = to_float(random_tensor(n, static_cast<unsigned>(n), 5.0, -10.0));
    CHECK(cpu::row_max(x.data(), n) == *std::max_element(x.begin(), x.end()));
  }
}

}  // namespace cpu_layers_test
