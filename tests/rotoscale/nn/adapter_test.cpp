// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Adapters of a linear layer follow docs/reference/layers.md, by bytes. The expected results are FMA chains over
// numbers rounded to BF16 by encode(), added to the layer's result without adapters.
#include "rotoscale/nn/blocks/adapter.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "backend_memory.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"
#include "rotoscale/nn/presets.hpp"

namespace adapter_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace nn = rotoscale::nn;

constexpr index_t tokens = 64, in = 96, out = 160, rank = 5, layer_number = 3;
/// Two adapters, on the layer's first and third part. Rows 64 to 95 have none.
struct adapter_rows {
  int part;
  index_t first_row, rows;
};
const std::vector<adapter_rows> parts = {{0, 0, 64}, {2, 96, 64}};
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
/// a (m, k) · b (n, k)ᵀ, one FP32 FMA per product.
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
/// True if element i of x is kept by the dropout of a part's adapter. Always true without training.
bool kept(std::size_t i, bool training, std::uint64_t micro_batch, int part) {
  const random_stream words{seed, std::uint64_t{6} << 56 | static_cast<std::uint64_t>(part) << 54 |
                                      std::uint64_t{layer_number} << 40 | (step * 4096 + micro_batch)};
  return !training || words.word(i) >= static_cast<std::uint32_t>(probability * 0x1p32 + 0.5);
}

struct results {
  numbers y, dx;
  std::vector<numbers> a, b;
};

/// Runs the layer with or without adapters. Gradients are added to ones.
results run(nn::backend& ops, const nn::recipe& r, const nn::recipe* adapter, nn::dtype stored, bool training,
            const std::vector<numbers>& a, const std::vector<numbers>& b, std::uint32_t micro_batch) {
  const nn::queue q{};
  const queue_workspace room(ops);
  nn::adapted_linear l({layer_number, out, in, tokens, false, true, stored, stored}, r);
  for (std::size_t i = 0; adapter != nullptr && i < parts.size(); ++i) {
    nn::adapter_shape s;
    s.base = l.shape();
    s.base.trains = true;
    s.rank = rank;
    s.scale = scale;
    s.dropout = probability;
    s.part = parts[i].part;
    s.first_row = parts[i].first_row;
    s.rows = parts[i].rows;
    l.adapters.emplace_back(s, *adapter);
  }
  REQUIRE(!l.take_contracts(ops));
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
  std::vector<decltype(load({}, stored, 1, 1))> am, da, bm, db;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    am.push_back(load(a[i], nn::dtype::fp32, rank, in));
    da.push_back(load(numbers(a[i].size(), 1.0f), nn::dtype::fp32, rank, in));
    bm.push_back(load(b[i], nn::dtype::fp32, parts[i].rows, rank));
    db.push_back(load(numbers(b[i].size(), 1.0f), nn::dtype::fp32, parts[i].rows, rank));
  }
  const auto lay_out = [&](nn::memory_cursor& memory) {
    using enum nn::memory_category;
    l.lay_out(ops, memory, quantized, nn::tensor_role::w, w.second);
    l.lay_out(ops, memory, activations, nn::tensor_role::x, x.second);
    l.lay_out(ops, memory, activations, nn::tensor_role::dy, dy.second);
    for (std::size_t i = 0; i < l.adapters.size(); ++i) {
      l.adapters[i].a().lay_out(ops, memory, adapters, nn::tensor_role::w, am[i].second);
      l.adapters[i].b().lay_out(ops, memory, adapters, nn::tensor_role::w, bm[i].second);
      l.adapters[i].lay_out_forward(ops, memory);
    }
    l.lay_out_adapters_backward(ops, memory, dy.second);
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
  for (std::size_t i = 0; i < l.adapters.size(); ++i) {
    l.adapters[i].a().quantize_weights(p, am[i].second);
    l.adapters[i].b().quantize_weights(p, bm[i].second);
  }
  ops.quantize(q, {x.second, &state}, {l.input_target(p)});
  l.forward(p, x.second, y.second);
  if (training) {
    ops.quantize(q, {dy.second, &state}, {l.gradient_target(p)});
    std::vector<nn::adapter_gradients> g;
    for (std::size_t i = 0; i < l.adapters.size(); ++i) g.push_back({da[i].second, db[i].second});
    l.linear::backward(p, dx.second, {});
    for (std::size_t i = 0; i < l.adapters.size(); ++i) l.adapters[i].backward(p, dy.second, dx.second, g[i]);
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
  results found{store(y), store(dx), {}, {}};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    found.a.push_back(store(da[i]));
    found.b.push_back(store(db[i]));
  }
  return found;
}

TEST_CASE("outputs and gradients are docs/reference/layers.md's, by bytes") {
  const auto ops = nn::make_cpu_backend(2);
  const std::vector<numbers> a = {values(rank * in, 4, 0.3f), values(rank * in, 7, 0.3f)},
                             b = {values(64 * rank, 5, 0.3f), values(64 * rank, 6, 0.3f)};
  const nn::recipe adapter = nn::presets::uniform("bf16", nn::operand_format::bf16, nn::operand_format::bf16);
  for (const char* name : {"bf16", "mxfp4_h16"}) {
    for (const nn::dtype stored : {nn::dtype::fp32, nn::dtype::bf16}) {
      for (const bool training : {true, false}) {
        CAPTURE(name);
        CAPTURE(training);
        const nn::recipe base = std::string(name) == "bf16" ? adapter : nn::presets::mxfp4("mxfp4", {16});
        constexpr std::uint32_t micro_batch = 2;
        const results plain = run(*ops, base, nullptr, stored, training, a, b, micro_batch),
                      got = run(*ops, base, &adapter, stored, training, a, b, micro_batch);
        const auto as_stored = [&](float v) { return stored == nn::dtype::bf16 ? rounded(v) : v; };
        const auto all_as_stored = [&](numbers x) { return stored == nn::dtype::bf16 ? rounded(std::move(x)) : x; };
        const numbers x = all_as_stored(values(tokens * in, 1, 2.0f)),
                      dy = all_as_stored(values(tokens * out, 3, 0.25f));
        const auto factor = static_cast<float>(training ? scale / (1.0 - probability) : scale);
        numbers y = plain.y, dx = plain.dx;
        for (std::size_t i = 0; i < parts.size(); ++i) {
          const auto& [part, first, rows] = parts[i];
          numbers dropped(x.size());
          for (std::size_t j = 0; j < x.size(); ++j)
            dropped[j] = kept(j, training, micro_batch, part) ? rounded(x[j] * factor) : 0.0f;
          const numbers low = rounded(chains(dropped, rounded(a[i]), in)), added = chains(low, rounded(b[i]), rank);
          for (index_t t = 0; t < tokens; ++t)
            for (index_t j = 0; j < rows; ++j) {
              float& to = y[static_cast<std::size_t>(t * out + first + j)];
              to = rounded(added[static_cast<std::size_t>(t * rows + j)] + to);
            }
          if (!training) continue;
          const numbers own = rounded(columns(dy, out, first, rows));
          const numbers d_low = rounded(chains(own, transpose(rounded(b[i]), rows, rank), rows)),
                        db = chains(transpose(own, tokens, rows), transpose(low, tokens, rank), tokens),
                        da = chains(transpose(d_low, tokens, rank), transpose(dropped, tokens, in), tokens);
          numbers d_dropped = chains(d_low, transpose(rounded(a[i]), rank, in), rank);
          for (float& v : d_dropped) v = as_stored(rounded(v));
          for (std::size_t j = 0; j < db.size(); ++j) REQUIRE(got.b[i][j] == db[j] + 1.0f);
          for (std::size_t j = 0; j < da.size(); ++j) REQUIRE(got.a[i][j] == da[j] + 1.0f);
          for (std::size_t j = 0; j < dx.size(); ++j) {
            if (kept(j, true, micro_batch, part)) dx[j] = as_stored(std::fma(d_dropped[j], factor, dx[j]));
          }
        }
        REQUIRE(got.y == y);
        if (training) REQUIRE(got.dx == dx);
      }
    }
  }
}

}  // namespace adapter_test
