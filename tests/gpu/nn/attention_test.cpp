// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Attention launchers against the CPU's contracts, by bytes: outputs, log-sum-exp and gradients, for ragged and whole
// tiles, grouped heads, documents, FP32 and BF16. Also their refusals.
#include "gpu/api/attention.hpp"

#include <doctest/doctest.h>

#include <cstring>

#include "../device_memory.hpp"
#include "oracle/share.hpp"
#if !defined(ROTOSCALE_TEST_DEVICE)
#include "gpu/dialect/hip.hpp"
#endif
#include "rotoscale/nn/cpu/rows.hpp"
#include "tests/gpu/thread_orders.hpp"

namespace nn_attention_test {

using namespace rotoscale;
using namespace gpu_test;
namespace nn = rotoscale::nn;
namespace op = rotoscale::nn::op;

struct shape {
  index_t batch, seq, heads, kv_heads, dim;
  index_t document = 0;  ///< mean tokens of a document; 0: each sequence is one document
  float width = 2.0f;    ///< scale of random queries and keys
  index_t past = 0;      ///< cached tokens before the first query; with them no gradients
};

/// If not 0, the value of an element of a key, in the second tile if the sequence is long enough.
float poison_key = 0.0f;
index_t poison_token(const shape& s) { return s.seq > 70 ? 70 : s.seq - 2; }

/// Inputs and results of one type. q, k and v share one matrix, as in a model.
template <class T>
struct scene {
  shape s;
  std::vector<T> qkv, d_qkv, o, d_o;
  std::vector<float> lse;
  std::vector<std::int32_t> starts;  ///< of two microbatches; the second is used
  std::vector<nn::step_state> state = std::vector<nn::step_state>(1);

  index_t row() const { return (s.heads + 2 * s.kv_heads) * s.dim; }
  explicit scene(const shape& of) : s(of) {
    std::mt19937 engine(static_cast<unsigned>(of.seq * 31 + of.dim));
    const auto fill = [&](std::vector<T>& x, index_t n, float width) {
      for (index_t i = 0; i < n; ++i) {
        const float u = static_cast<float>(static_cast<std::int32_t>(engine())) * 0x1p-31f;
        x.push_back(T(i % row() < (s.heads + s.kv_heads) * s.dim ? u * width : u));
      }
    };
    fill(qkv, s.batch * s.seq * row(), s.width);
    if (poison_key != 0.0f)
      qkv[static_cast<std::size_t>(poison_token(s) * row() + s.heads * s.dim + 3)] = T(poison_key);
    fill(d_o, s.batch * s.seq * s.heads * s.dim, 1.0f);
    d_qkv.assign(qkv.size(), T(0.0f));
    o.assign(d_o.size(), T(0.0f));
    lse.assign(static_cast<std::size_t>(s.batch * s.heads * (s.seq - s.past)), 0.0f);
    state[0].micro_batch = 1;
    for (index_t i = 0, start = 0; s.document != 0 && i < 2 * s.batch * s.seq; ++i) {
      if (i % s.seq == 0 || engine() % static_cast<unsigned>(s.document) == 0) start = i % s.seq;
      starts.push_back(static_cast<std::int32_t>(start));
    }
  }
  static constexpr nn::dtype type = nn::dtype_of<T>;
  nn::tensor_view part(T* x, index_t first, index_t heads) const {
    const nn::tensor_view all = nn::dense_tensor(x, type, {s.batch * s.seq, row()});
    return nn::as_heads(all.part(1, first * s.dim, heads * s.dim), s.batch, heads, s.dim);
  }
  nn::tensor_view output(T* x) const {
    return nn::as_heads(nn::dense_tensor(x, type, {s.batch * s.seq, s.heads * s.dim}), s.batch, s.heads, s.dim);
  }
  nn::tensor_view last(const nn::tensor_view& x) const { return x.part(1, s.past, s.seq - s.past); }
  op::attention_forward::in inputs(const nn::attention_contract& contract, T* in, const std::int32_t* at,
                                   const nn::step_state* now) const {
    return {last(part(in, 0, s.heads)),
            part(in, s.heads, s.kv_heads),
            part(in, s.heads + s.kv_heads, s.kv_heads),
            {s.document == 0 ? nullptr : at, s.batch * s.seq},
            contract,
            now};
  }
  op::attention_forward::out outputs(T* out, float* sums) const { return {last(output(out)), sums}; }
  op::attention_backward::in backward(const op::attention_forward::in& i, const op::attention_forward::out& done,
                                      T* d_out) const {
    return {i.q, i.k, i.v, done.o, done.lse, output(d_out), i.starts, i.contract, i.state};
  }
  op::attention_backward::out gradients(T* d_in) const {
    return {part(d_in, 0, s.heads), part(d_in, s.heads, s.kv_heads), part(d_in, s.heads + s.kv_heads, s.kv_heads)};
  }
};

/// Results of the CPU.
template <class T>
void run_reference(const nn::attention_contract& contract, scene<T>& c) {
  thread_pool pool(2);
  const auto i = c.inputs(contract, c.qkv.data(), c.starts.data(), c.state.data());
  const auto o = c.outputs(c.o.data(), c.lse.data());
  nn::cpu::compute(i, o, pool);
  if (c.s.past == 0) nn::cpu::compute(c.backward(i, o, c.d_o.data()), c.gradients(c.d_qkv.data()), pool);
}

template <class A>
bool same(const std::vector<A>& got, const std::vector<A>& want) {
  if (got.size() == want.size() && std::memcmp(got.data(), want.data(), got.size() * sizeof(A)) == 0) return true;
  std::size_t wrong = 0, first = got.size();
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(A)) == 0) continue;
    ++wrong;
    first = std::min(first, i);
  }
  std::printf("%zu of %zu differ, first %zu: %g, wanted %g\n", wrong, got.size(), first,
              static_cast<double>(static_cast<float>(got[first])),
              static_cast<double>(static_cast<float>(want[first])));
  return false;
}

template <class T>
void check(const nn::attention_contract& contract, const shape& s, std::size_t skew = 0) {
  CAPTURE(contract.name);
  CAPTURE(s.seq);
  CAPTURE(s.dim);
  CAPTURE(sizeof(T));
  scene<T> c(s);
  const device_array<T> qkv(c.qkv, skew), d_o(c.d_o, skew), o(c.o, skew), d_qkv(c.d_qkv, skew);
  const device_array<float> lse(c.lse.size()), dots(c.lse.size());
  const device_array<std::int32_t> starts(c.starts);
  const device_array<nn::step_state> state(c.state);
  const auto in = c.inputs(contract, qkv.data(), starts.data(), state.data());
  const auto out = c.outputs(o.data(), lse.data());
  const gpu::status forward = run([&](gpu::stream q) { return gpu::launch<op::attention_forward>({q}, in, out); });
  CHECK_MESSAGE(forward.ok(), forward.message());
  if (s.past == 0) {
    const gpu::status backward = run([&](gpu::stream q) {
      return gpu::launch<op::attention_backward>({q, dots.data(), c.lse.size() * 4}, c.backward(in, out, d_o.data()),
                                                 c.gradients(d_qkv.data()));
    });
    CHECK_MESSAGE(backward.ok(), backward.message());
  }
  run_reference(contract, c);
  CHECK(same(o.read(), c.o));
  CHECK(same(lse.read(), c.lse));
  CHECK(same(d_qkv.read(), c.d_qkv));
  for (const auto* x : {&o, &d_qkv, &d_o, &qkv}) CHECK(x->guards_hold());
  CHECK(lse.guards_hold());
  CHECK(dots.guards_hold());
}

/// Tiled contracts that have kernels.
const std::string tiled[] = {nn::tiled_attention_name(nn::attention_exp2::deg3, "hopper-mma-fp16-f32"),
                             nn::tiled_attention_name(nn::attention_exp2::ex2_approx, "hopper-mma-fp16-f32"),
                             nn::tiled_attention_name(nn::attention_exp2::deg3, "cdna3-mfma-fp16-f32")};

const nn::attention_contract chains = *nn::find_attention_contract(nn::fp32_attention_contract);

TEST_CASE("FP32 chains leave the CPU's bytes") {
  for (const shape& s : {shape{1, 1, 1, 1, 2}, shape{2, 5, 2, 2, 6}, shape{1, 65, 2, 1, 40},
                         shape{1, 130, 2, 1, 16, 40}, shape{1, 70, 1, 1, 128, 9}, shape{1, 64, 1, 1, 32, 0, 40.0f},
                         shape{2, 70, 2, 1, 16, 0, 2.0f, 69}, shape{1, 150, 2, 1, 16, 30, 2.0f, 70}}) {
    check<float>(chains, s);
    check<bf16>(chains, s);
  }
  if (!on_device) return;
  check<bf16>(chains, {2, 500, 8, 2, 64});
  check<float>(chains, {1, 777, 4, 4, 128, 100});
}

TEST_CASE("tiles on a matrix unit leave the CPU's bytes") {
  int contracts_here = 0;
  for (const std::string& name : tiled) {
    const auto contract = *nn::find_attention_contract(name);
    if (!gpu::runs_attention(contract, 64, device)) continue;
    int number = contracts_here++;
    for (const shape& s :
         {shape{1, 1, 1, 1, 16}, shape{2, 70, 2, 1, 32}, shape{1, 130, 2, 1, 48, 40}, shape{1, 66, 1, 1, 128, 0, 20.0f},
          shape{1, 200, 1, 1, 64, 15}, shape{2, 128, 2, 1, 64, 0, 2.0f, 127}, shape{1, 150, 2, 1, 32, 30, 2.0f, 70}}) {
      if (rotoscale::oracle::in_share(number++)) check<float>(contract, s);
      if (rotoscale::oracle::in_share(number)) check<bf16>(contract, s);
    }
    // Heads above 64 reuse each buffer, including kept values.
    for_thread_orders([&] {
      check<bf16>(contract, {1, 330, 1, 1, 128, 0, 2.0f, 200});
      check<float>(contract, {1, 330, 1, 1, 80, 0, 2.0f, 260});
    });
    // Blocks of three tiles with ping-pong on sm_90, if TMA can read the tensors. Cases: one tile (the others have no
    // keys), ragged, documents that start inside a tile, cached tokens, another scale.
    for (const shape& s :
         {shape{1, 1, 1, 1, 128}, shape{1, 64, 1, 1, 96}, shape{2, 130, 2, 1, 128}, shape{1, 270, 2, 1, 128, 60},
          shape{1, 400, 2, 1, 128, 90, 2.0f, 150}, shape{1, 200, 1, 1, 112, 0, 8.0f}}) {
      if (rotoscale::oracle::in_share(number++)) check<bf16>(contract, s);
    }
    if (rotoscale::oracle::in_share(number)) check<float>(contract, {1, 270, 1, 1, 128, 100});
    check<bf16>(contract, {1, 70, 1, 1, 32}, 3);  // rows not aligned to 16 bytes
    if (!on_device) continue;
    check<bf16>(contract, {2, 1000, 8, 2, 128});
    check<bf16>(contract, {2, 1000, 8, 2, 128, 150});
    check<bf16>(contract, {2, 777, 4, 4, 64, 100});
    check<float>(contract, {1, 500, 4, 2, 96, 200, 8.0f});
  }
  CHECK(contracts_here == (on_device ? 2 : 3));
  // AMD's devices have another instruction.
  CHECK_FALSE(gpu::runs_attention(
      *nn::find_attention_contract(nn::tiled_attention_name(nn::attention_exp2::ex2_approx, "cdna3-mfma-fp16-f32")), 64,
      device));
}

TEST_CASE("tiles: NaN reaches the rows that see it, and a row without a finite score is canonical NaN") {
  for (const std::string& name : tiled) {
    const auto contract = *nn::find_attention_contract(name);
    if (!gpu::runs_attention(contract, 32, device)) continue;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
      poison_key = bad;
      // Two queries see the key, one of them in the next tile. If both scores are -Inf, no gradient of a key may be
      // NaN, regardless of memory after the last query.
      for (const index_t dim : {16, 32, 48}) check<float>(contract, {1, 65, 1, 1, dim});
      check<float>(contract, {1, 100, 2, 1, 32});
      check<bf16>(contract, {1, 140, 1, 1, 32, 60});
    }
  }
  poison_key = 0.0f;
}

TEST_CASE("through graphs, and in any order of threads") {
  through_graphs = true;
  check<float>(chains, {1, 70, 2, 1, 32, 30});
  through_graphs = false;
  for_thread_orders([] { check<float>(chains, {1, 70, 2, 1, 32, 30}); });
}

TEST_CASE("refusals name the argument") {
  scene<float> c({1, 70, 2, 1, 32, 30});
  const device_array<float> qkv(c.qkv), d_o(c.d_o), o(c.o.size()), d_qkv(c.qkv.size()), lse(c.lse.size());
  const device_array<std::int32_t> starts(c.starts);
  const device_array<nn::step_state> state(c.state);
  const auto in = c.inputs(chains, qkv.data(), starts.data(), state.data());
  const auto out = c.outputs(o.data(), lse.data());
  // Launches with arguments that `spoil` changes.
  const auto forward = [&](const auto& spoil) {
    auto i = in;
    auto x = out;
    spoil(i, x);
    return std::string(gpu::launch<op::attention_forward>({}, i, x).argument);
  };
  CHECK(forward([](auto& i, auto&) { i.state = nullptr; }) == "state");
  CHECK(forward([](auto&, auto& x) { x.lse = nullptr; }) == "lse");
  CHECK(forward([](auto& i, auto&) { i.k.extents[1] = 69; }) == "q");
  CHECK(forward([](auto& i, auto&) { i.v.extents[1] = 69; }) == "v");
  CHECK(forward([](auto& i, auto&) { i.v.strides[3] = 2; }) == "v");
  CHECK(forward([](auto& i, auto&) { i.q.type = nn::dtype::bf16; }) == "q");
  CHECK(forward([](auto& i, auto& x) { i.q.extents[3] = i.k.extents[3] = i.v.extents[3] = x.o.extents[3] = 160; }) ==
        "contract");
  CHECK(forward([](auto& i, auto&) { i.k.extents[2] = 3; }) == "q");
  const device_array<float> dots(c.lse.size());
  const auto whole = c.backward(in, out, d_o.data());
  const auto gradients = c.gradients(d_qkv.data());
  const auto backward = [&](const auto& i, const auto& x, void* room, std::size_t bytes) {
    return std::string(gpu::launch<op::attention_backward>({{}, room, bytes}, i, x).argument);
  };
  auto wrong = whole;
  wrong.q = whole.q.part(1, 1, 69);
  wrong.o = whole.o.part(1, 1, 69);
  CHECK(backward(wrong, gradients, dots.data(), 1 << 20) == "q");
  CHECK(backward(whole, gradients, nullptr, 1 << 20) == "workspace");
  CHECK(backward(whole, gradients, dots.data() + 1, 1 << 20) == "workspace");
  CHECK(backward(whole, gradients, dots.data(), 4 * c.lse.size() - 1) == "workspace_bytes");
  auto gone = gradients;
  gone.dk.data = nullptr;
  CHECK(backward(whole, gone, dots.data(), 4 * c.lse.size()) == "dk");
  CHECK(gpu::workspace_bytes<op::attention_backward>(whole, gradients) == 4 * c.lse.size());
}

}  // namespace nn_attention_test
