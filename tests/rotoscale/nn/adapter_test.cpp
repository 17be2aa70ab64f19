// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// An adapter beside a linear layer leaves, by bytes, what docs/numerics.md says: written here as chains of FMA over
// numbers that encode() rounds to BF16, on top of what the layer gives without it.
#include "rotoscale/nn/adapter.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "backend_memory.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"
#include "rotoscale/nn/presets.hpp"

using namespace rotoscale;
using namespace rotoscale::testing;
namespace nn = rotoscale::nn;

namespace {

constexpr index_t tokens = 64, in = 96, out = 160, rank = 5, layer_number = 3;
const std::vector<nn::adapter_part> parts = {{0, 64}, {96, 64}};  // rows 64 to 95 have no adapter
constexpr std::uint64_t seed = 17, step = 5;
constexpr double scale = 12.0 / rank, probability = 0.3;

using numbers = std::vector<float>;

float rounded(float x) { return decode(formats::bf16, encode(formats::bf16, x)); }
numbers rounded(numbers x) {
  for (float& v : x) v = rounded(v);
  return x;
}
numbers values(index_t n, std::uint64_t own, float width) {
  numbers x;
  for (index_t i = 0; i < n; ++i) {
    x.push_back((random_stream{own, 3}.word(static_cast<std::uint64_t>(i)) * 0x1p-32f - 0.5f) * width);
  }
  return x;
}
numbers transpose(const numbers& x, index_t rows, index_t cols) {
  numbers t(x.size());
  for (index_t i = 0; i < rows; ++i)
    for (index_t j = 0; j < cols; ++j)
      t[static_cast<std::size_t>(j * rows + i)] = x[static_cast<std::size_t>(i * cols + j)];
  return t;
}
numbers columns(const numbers& x, index_t width, index_t first, index_t count) {
  numbers part;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto j = static_cast<index_t>(i) % width;
    if (j >= first && j < first + count) part.push_back(x[i]);
  }
  return part;
}
/// a[m, k] · b[n, k]ᵀ, one FP32 fused multiply-add a product.
numbers chains(const numbers& a, const numbers& b, index_t k) {
  const index_t m = static_cast<index_t>(a.size()) / k, n = static_cast<index_t>(b.size()) / k;
  numbers c;
  for (index_t i = 0; i < m; ++i)
    for (index_t j = 0; j < n; ++j) {
      float sum = 0;
      for (index_t l = 0; l < k; ++l) {
        sum = std::fma(a[static_cast<std::size_t>(i * k + l)], b[static_cast<std::size_t>(j * k + l)], sum);
      }
      c.push_back(sum);
    }
  return c;
}
/// Which elements of x stay, or all.
bool kept(std::size_t i, bool training, std::uint64_t micro_batch) {
  const random_stream words{seed,
                            std::uint64_t{6} << 56 | std::uint64_t{layer_number} << 40 | (step * 4096 + micro_batch)};
  return !training || words.word(i) >= static_cast<std::uint32_t>(probability * 0x1p32 + 0.5);
}

struct results {
  numbers y, dx, a;
  std::vector<numbers> b;
};

/// The layer with or without an adapter; gradients are added to ones.
results run(nn::backend& ops, const nn::recipe& r, const nn::recipe* adapter, nn::dtype stored, bool training,
            const numbers& a, const std::vector<numbers>& b, std::uint32_t micro_batch) {
  const nn::queue q{};
  const queue_workspace room(ops, {.tokens = tokens, .widest = out, .hidden = out, .vocabulary = 1, .parameters = 20000});
  nn::adapted_linear l({layer_number, out, in, tokens, false, true, stored, stored}, r);
  if (adapter != nullptr) {
    nn::adapter_shape s;
    s.base = l.shape();
    s.base.trains = true;
    s.rank = rank;
    s.scale = scale;
    s.dropout = probability;
    s.parts = parts;
    l.adapter.emplace(s, *adapter);
  }
  REQUIRE(l.agree(ops));
  const auto load = [&](const numbers& x, nn::dtype type, index_t rows, index_t cols) {
    auto memory = std::make_shared<device_array<std::byte>>(ops, rows * cols * size_of(type));
    if (type == nn::dtype::fp32) {
      ops.upload(q, memory->data(), x.data(), x.size() * sizeof(float));
    } else {
      std::vector<bf16> narrow(x.begin(), x.end());
      ops.upload(q, memory->data(), narrow.data(), narrow.size() * 2);
    }
    return std::pair(memory, nn::dense_tensor(memory->data(), type, {rows, cols}));
  };
  const auto x = load(values(tokens * in, 1, 2.0f), stored, tokens, in),
             w = load(values(out * in, 2, 0.5f), nn::dtype::fp32, out, in),
             dy = load(values(tokens * out, 3, 0.25f), stored, tokens, out),
             y = load(numbers(tokens * out), stored, tokens, out), dx = load(numbers(tokens * in), stored, tokens, in);
  const index_t width = static_cast<index_t>(parts.size()) * rank;
  const auto am = load(a, nn::dtype::fp32, width, in), da = load(numbers(a.size(), 1.0f), nn::dtype::fp32, width, in);
  std::vector<decltype(load(a, stored, 1, 1))> bm, db;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    bm.push_back(load(b[i], nn::dtype::fp32, parts[i].rows, rank));
    db.push_back(load(numbers(b[i].size(), 1.0f), nn::dtype::fp32, parts[i].rows, rank));
  }
  const auto lay_out = [&](nn::memory_cursor& memory) {
    using enum nn::memory_category;
    l.lay_out(ops, memory, quantized, nn::tensor_role::w, w.second);
    l.lay_out(ops, memory, activations, nn::tensor_role::x, x.second);
    l.lay_out(ops, memory, activations, nn::tensor_role::dy, dy.second);
    if (!l.adapter) return;
    l.adapter->a().lay_out(ops, memory, adapters, nn::tensor_role::w, am.second);
    for (std::size_t i = 0; i < parts.size(); ++i)
      l.adapter->b()[i].lay_out(ops, memory, adapters, nn::tensor_role::w, bm[i].second);
    l.adapter->lay_out_forward(ops, memory);
    l.adapter->lay_out_backward(ops, memory, dy.second);
  };
  nn::memory_cursor counting;
  lay_out(counting);
  std::vector<device_array<std::byte>> arenas;
  nn::arena_bases bases{};
  for (std::size_t c = 0; c < bases.size(); ++c) {
    arenas.emplace_back(ops, static_cast<index_t>(counting.plan().bytes[c] + 1));
    bases[c] = arenas.back().data();
  }
  nn::memory_cursor memory(bases);
  lay_out(memory);

  nn::step_state state;
  state.inputs.seed = seed;
  state.inputs.step = step;
  state.micro_batch = micro_batch;
  const nn::pass p{&ops, q, &state, nullptr, training};
  l.quantize_weights(p, w.second);
  if (l.adapter) {
    l.adapter->a().quantize_weights(p, am.second);
    for (std::size_t i = 0; i < parts.size(); ++i) l.adapter->b()[i].quantize_weights(p, bm[i].second);
  }
  ops.quantize(q, x.second, l.input_target(p), &state);
  l.forward(p, x.second, y.second);
  if (training) {
    ops.quantize(q, dy.second, l.gradient_target(p), &state);
    nn::adapter_gradients g{da.second, {}};
    for (const auto& one : db) g.b.push_back(one.second);
    l.backward(p, dy.second, dx.second, {}, g);
  }
  ops.synchronize(q);
  const auto store = [&](const auto& t) {
    numbers host(static_cast<std::size_t>(t.second.size()));
    if (t.second.type == nn::dtype::fp32) {
      ops.download(q, host.data(), t.second.data, host.size() * sizeof(float));
    } else {
      std::vector<bf16> narrow(host.size());
      ops.download(q, narrow.data(), t.second.data, narrow.size() * 2);
      for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<float>(narrow[i]);
    }
    return host;
  };
  results found{store(y), store(dx), store(da), {}};
  for (const auto& one : db) found.b.push_back(store(one));
  return found;
}

}  // namespace

TEST_CASE("outputs and gradients are docs/numerics.md's, by bytes") {
  const auto ops = nn::make_cpu_backend(2);
  const index_t width = static_cast<index_t>(parts.size()) * rank;
  const numbers a = values(width * in, 4, 0.3f);
  const std::vector<numbers> b = {values(64 * rank, 5, 0.3f), values(64 * rank, 6, 0.3f)};
  const nn::recipe adapter = nn::presets::uniform("bf16", nn::operand_format::bf16, nn::operand_format::bf16);
  for (const char* name : {"bf16", "mxfp4_h16"}) {
    for (const nn::dtype stored : {nn::dtype::fp32, nn::dtype::bf16}) {
      for (const bool training : {true, false}) {
        CAPTURE(name);
        CAPTURE(training);
        const nn::recipe base =
            std::string(name) == "bf16" ? adapter : nn::presets::mxfp4("mxfp4", {16});
        constexpr std::uint32_t micro_batch = 2;
        const results plain = run(*ops, base, nullptr, stored, training, a, b, micro_batch),
                      got = run(*ops, base, &adapter, stored, training, a, b, micro_batch);
        const auto as_stored = [&](numbers x) { return stored == nn::dtype::bf16 ? rounded(std::move(x)) : x; };
        const numbers x = as_stored(values(tokens * in, 1, 2.0f)), dy = as_stored(values(tokens * out, 3, 0.25f));
        const auto factor = static_cast<float>(training ? scale / (1.0 - probability) : scale);
        numbers dropped(x.size());
        for (std::size_t i = 0; i < x.size(); ++i)
          dropped[i] = kept(i, training, micro_batch) ? rounded(x[i] * factor) : 0.0f;
        const numbers low = rounded(chains(dropped, rounded(a), in));
        numbers y = plain.y, d_low(low.size());
        for (std::size_t part = 0; part < parts.size(); ++part) {
          const index_t rows = parts[part].rows, first = static_cast<index_t>(part) * rank;
          const numbers u = columns(low, width, first, rank),
                        own = rounded(columns(dy, out, parts[part].first_row, rows));
          const numbers added = chains(u, rounded(b[part]), rank);
          for (index_t t = 0; t < tokens; ++t)
            for (index_t j = 0; j < rows; ++j) {
              float& to = y[static_cast<std::size_t>(t * out + parts[part].first_row + j)];
              to = rounded(added[static_cast<std::size_t>(t * rows + j)] + to);
            }
          if (!training) continue;
          const numbers du = rounded(chains(own, transpose(rounded(b[part]), rows, rank), rows));
          for (index_t t = 0; t < tokens; ++t)
            for (index_t j = 0; j < rank; ++j) {
              d_low[static_cast<std::size_t>(t * width + first + j)] = du[static_cast<std::size_t>(t * rank + j)];
            }
          const numbers db = chains(transpose(own, tokens, rows), transpose(u, tokens, rank), tokens);
          for (std::size_t i = 0; i < db.size(); ++i) REQUIRE(got.b[part][i] == db[i] + 1.0f);
        }
        REQUIRE(got.y == y);
        if (!training) continue;
        const numbers da = chains(transpose(d_low, tokens, width), transpose(dropped, tokens, in), tokens),
                      d_dropped = rounded(chains(d_low, transpose(rounded(a), width, in), width));
        for (std::size_t i = 0; i < da.size(); ++i) REQUIRE(got.a[i] == da[i] + 1.0f);
        for (std::size_t i = 0; i < got.dx.size(); ++i) {
          const float sum = kept(i, true, micro_batch) ? std::fma(d_dropped[i], factor, plain.dx[i]) : plain.dx[i];
          REQUIRE(got.dx[i] == (stored == nn::dtype::bf16 ? rounded(sum) : sum));
        }
      }
    }
  }
}
