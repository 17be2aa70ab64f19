// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention against the double-precision oracle: the forward pass directly, the backward pass
// against central differences. Queries, keys and values share one matrix, as in the model.
#include "rotoscale/nn/cpu/attention.hpp"

#include "../numbers.hpp"

namespace cpu_attention_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace cpu = rotoscale::nn::cpu;

struct shape {
  index_t batch, seq, heads, kv_heads, dim;

  index_t width() const { return (heads + 2 * kv_heads) * dim; }
  oracle::attention_shape oracle() const {
    const auto u = [](index_t n) { return static_cast<std::size_t>(n); };
    return {u(batch), u(seq), u(heads), u(kv_heads), u(dim)};
  }
};

/// (tokens, q | k | v), and views of the three.
struct joint_matrix {
  shape s;
  std::vector<float> memory;

  explicit joint_matrix(const shape& of)
      : s(of), memory(static_cast<std::size_t>(of.batch * of.seq * of.width()), 1e9f) {}
  view<float, 4> part(index_t first_head, index_t count) {
    const index_t w = s.width();
    return {memory.data() + first_head * s.dim, {s.batch, s.seq, count, s.dim}, {s.seq * w, w, s.dim, 1}};
  }
  view<float, 4> q() { return part(0, s.heads); }
  view<float, 4> k() { return part(s.heads, s.kv_heads); }
  view<float, 4> v() { return part(s.heads + s.kv_heads, s.kv_heads); }
};

template <class Function>
void for_all(view<float, 4> x, const Function& f) {
  std::size_t i = 0;
  for (index_t b = 0; b < x.extent(0); ++b)
    for (index_t t = 0; t < x.extent(1); ++t)
      for (index_t h = 0; h < x.extent(2); ++h)
        for (index_t j = 0; j < x.extent(3); ++j) f(x(b, t, h, j), i++);
}
void put(view<float, 4> x, const tensor& from) {
  for_all(x, [&](float& to, std::size_t i) { to = static_cast<float>(from[i]); });
}
tensor get(view<float, 4> x) {
  tensor all;
  for_all(x, [&](float& from, std::size_t) { all.push_back(static_cast<double>(from)); });
  return all;
}

struct attention_case {
  shape s;
  tensor q, k, v, dy;
  joint_matrix qkv, d_qkv;
  std::vector<float> o, d_o, lse;
  std::vector<std::int32_t> document_starts;  ///< empty: none

  const std::int32_t* starts() const { return document_starts.empty() ? nullptr : document_starts.data(); }

  explicit attention_case(const shape& of)
      : s(of),
        q(random_tensor(of.batch * of.seq * of.heads * of.dim, 1, 2.0)),
        k(random_tensor(of.batch * of.seq * of.kv_heads * of.dim, 2, 2.0)),
        v(random_tensor(of.batch * of.seq * of.kv_heads * of.dim, 3)),
        dy(random_tensor(of.batch * of.seq * of.heads * of.dim, 4)),
        qkv(of),
        d_qkv(of),
        o(q.size(), 1e9f),
        d_o(to_float(dy)),
        lse(static_cast<std::size_t>(of.batch * of.heads * of.seq), 1e9f) {
    put(qkv.q(), q);
    put(qkv.k(), k);
    put(qkv.v(), v);
  }
  view<float, 4> output(std::vector<float>& memory) const {
    const index_t w = s.heads * s.dim;
    return {memory.data(), {s.batch, s.seq, s.heads, s.dim}, {s.seq * w, w, s.dim, 1}};
  }
  void run(thread_pool& pool) {
    cpu::attention_forward(qkv.q(), qkv.k(), qkv.v(), output(o), lse.data(), starts(), pool);
    cpu::attention_backward(qkv.q(), qkv.k(), qkv.v(), output(o), lse.data(), output(d_o), d_qkv.q(), d_qkv.k(),
                            d_qkv.v(), starts(), pool);
  }
  double objective() const { return dot(oracle::attention(q, k, v, s.oracle()), dy); }
  /// Terms of the objective that depend on entry i: of q its query's, of k or v the terms of queries that see its key.
  double objective_around(std::size_t i, bool of_query) const {
    const oracle::attention_shape n = s.oracle();
    const std::size_t heads = of_query ? n.heads : n.kv_heads, vector = i / n.head_dim;
    const std::size_t head = vector % heads, t = vector / heads % n.seq, b = vector / heads / n.seq;
    const std::size_t group = of_query ? 1 : n.heads / n.kv_heads;
    double sum = 0;
    tensor y(q.size(), 0.0);
    for (std::size_t h = head * group; h < (head + 1) * group; ++h) {
      for (std::size_t row = t; row < (of_query ? t + 1 : n.seq); ++row) {
        oracle::add_attention_row(q, k, v, n, b, row, h, y);
        sum += oracle::dot(y, n.q_at(b, row, h), dy, n.q_at(b, row, h), n.head_dim);
      }
    }
    return sum;
  }
};

// Short, ragged, whole and several query blocks of 64; groups of 1, 2 and 4 query heads.
const shape shapes[] = {{1, 1, 1, 1, 2},  {2, 5, 2, 2, 6},  {1, 33, 4, 1, 4},  {2, 64, 2, 1, 16},
                        {1, 65, 4, 2, 8}, {1, 70, 4, 4, 6}, {1, 129, 2, 1, 4}, {1, 200, 4, 1, 32}};

TEST_CASE("attention forward") {
  for (const shape& s : shapes) {
    CAPTURE(s.seq);
    attention_case c(s);
    thread_pool pool(2);
    c.run(pool);
    // A score sums dim products of numbers up to 2. Its error is at most sqrt(dim) * 4 * 2^-24 * (dim / 2), which exp
    // turns into a relative error of a probability. Errors of random sign are far smaller: 64 suffices for dim <= 32.
    CHECK(roundings_apart(to_double(c.o), oracle::attention(c.q, c.k, c.v, s.oracle())) < 64);
    const oracle::attention_shape n = s.oracle();
    tensor want;
    for (std::size_t b = 0; b < n.batch; ++b)
      for (std::size_t h = 0; h < n.heads; ++h)
        for (std::size_t t = 0; t < n.seq; ++t) {
          double sum = 0;
          for (std::size_t at = 0; at <= t; ++at) {
            sum += std::exp(n.scale() * oracle::dot(c.q, n.q_at(b, t, h), c.k, n.kv_at(b, at, h), n.head_dim));
          }
          want.push_back(std::log(sum));
        }
    CHECK(roundings_apart(to_double(c.lse), want) < 64);
  }
}

TEST_CASE("attention backward against central differences") {
  for (const shape& s : shapes) {
    CAPTURE(s.seq);
    attention_case c(s);
    thread_pool pool(2);
    c.run(pool);
    const auto objective = [&] { return c.objective(); };
    const auto entries = static_cast<std::size_t>(s.batch * s.seq * s.heads * s.dim);
    // All entries of the small cases, some of the large ones. The slopes below cover every entry.
    const std::size_t every = entries < 200 ? 1 : entries / 60 | 1;
    const struct {
      const char* name;
      tensor& x;
      tensor got;
    } gradients[] = {{"q", c.q, get(c.d_qkv.q())}, {"k", c.k, get(c.d_qkv.k())}, {"v", c.v, get(c.d_qkv.v())}};
    for (const auto& g : gradients) {
      tensor& x = g.x;
      const tensor& got = g.got;
      CAPTURE(g.name);
      tensor want;
      for (std::size_t i = 0; i < x.size(); i += every) {
        want.push_back(numeric_derivative([&] { return c.objective_around(i, &x == &c.q); }, x, i));
      }
      const tensor picked = every_nth(got, every);
      const double size = std::max(largest(want), largest(got));
      if (s.seq > 1) CHECK(size > 0.1);
      for (std::size_t i = 0; i < want.size(); ++i) {
        CAPTURE(i * every);
        CHECK(std::abs(picked[i] - want[i]) <= 256 * 0x1p-24 * std::max(size, 0.1));
      }
      for (unsigned seed = 0; seed < 3; ++seed) {
        const tensor direction = random_tensor(static_cast<index_t>(x.size()), 90 + seed);
        // Errors of random sign: a slope over n entries has sqrt(n) times one entry's error.
        const double tolerance = 256 * 0x1p-24 * std::max(size, 0.1) * std::sqrt(static_cast<double>(x.size()));
        CHECK(std::abs(numeric_slope(objective, x, direction) - dot(got, direction)) <= tolerance);
      }
    }
  }
}

TEST_CASE("attention: threads and leftovers of larger calls change no bit") {
  for (const shape& s : {shape{2, 70, 4, 2, 8}, shape{3, 17, 4, 1, 6}}) {
    attention_case one(s);
    thread_pool single(1);
    one.run(single);
    for (const int threads : {2, 4}) {
      thread_pool pool(threads);
      attention_case large({1, 150, 4, 2, 32}), many(s);
      large.run(pool);  // scratch memory is kept between calls
      many.run(pool);
      CHECK(same_bytes(one.o, many.o));
      CHECK(same_bytes(one.lse, many.lse));
      CHECK(same_bytes(one.d_qkv.memory, many.d_qkv.memory));
    }
  }
}

TEST_CASE("attention: large scores do not overflow") {
  attention_case c({1, 40, 1, 1, 4});
  for (std::size_t i = 0; i < c.q.size(); ++i) {
    c.q[i] *= 256.0;
    c.k[i] *= 256.0;
  }
  put(c.qkv.q(), c.q);
  put(c.qkv.k(), c.k);
  thread_pool pool(1);
  c.run(pool);
  for (const float x : c.o) CHECK(std::isfinite(x));
  for (const float x : c.d_qkv.memory) CHECK(std::isfinite(x));
}

}  // namespace cpu_attention_test
