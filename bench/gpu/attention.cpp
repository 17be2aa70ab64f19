// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Times causal attention on random BF16 numbers, forward and backward. TFLOP/s count 2 products of seq² / 2 pairs a
// head forward, and 2.5 times as much backward. One line a shape:
// batch seq heads kv_heads head_dim contract forward_us backward_us forward_tflops backward_tflops equal
// `equal`: a second run left the same bytes. Times are medians of `repeats` runs of several launches.
//
// usage: attention BATCHxSEQxHEADSxKV_HEADSxHEAD_DIM... [--contract NAME]
#include "gpu/api/attention.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "examples/standard_streams.hpp"

using namespace rotoscale;

namespace {

constexpr int repeats = 9, launches = 4;

void expect(const gpu::status& s) {
  if (s.ok()) return;
  print_error("attention", s.message());
  std::exit(1);
}

struct shape {
  index_t batch, seq, heads, kv_heads, dim;
};

/// Device memory of BF16 numbers in (-1, 1), or of zeros.
bf16* tensor(index_t n, bool random) {
  bf16* memory = nullptr;
  expect(gpu::allocate(memory, static_cast<std::size_t>(n)));
  std::vector<bf16> host(static_cast<std::size_t>(n));
  std::mt19937 engine(static_cast<unsigned>(n));
  for (bf16& x : host) x = bf16(random ? static_cast<float>(static_cast<std::int32_t>(engine())) * 0x1p-31f : 0.0f);
  expect(gpu::upload(memory, host.data(), host.size() * sizeof(bf16)));
  expect(gpu::synchronize());
  return memory;
}

std::vector<std::uint8_t> bytes_of(const void* memory, index_t n) {
  std::vector<std::uint8_t> host(static_cast<std::size_t>(n));
  expect(gpu::download(host.data(), memory, host.size()));
  expect(gpu::synchronize());
  return host;
}

/// Median microseconds of run().
template <class Run>
double time_of(const Run& run) {
  run();
  expect(gpu::synchronize());
  std::vector<double> all;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    for (int j = 0; j < launches; ++j) run();
    expect(gpu::synchronize());
    all.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() /
                  launches);
  }
  std::sort(all.begin(), all.end());
  return all[repeats / 2];
}

void measure(const shape& s, const nn::attention_contract& contract) {
  const index_t n = s.batch * s.seq, q = s.heads * s.dim, kv = s.kv_heads * s.dim;
  bf16 *const in = tensor(n * (q + 2 * kv), true), *const d_in = tensor(n * (q + 2 * kv), false);
  bf16 *const out = tensor(n * q, false), *const d_out = tensor(n * q, true);
  float *lse = nullptr, *dots = nullptr;
  expect(gpu::allocate(lse, static_cast<std::size_t>(n * s.heads)));
  expect(gpu::allocate(dots, static_cast<std::size_t>(n * s.heads)));
  const auto part = [&](bf16* x, index_t columns, index_t first, index_t heads) {
    const nn::tensor_view all = nn::dense_tensor(x, nn::dtype::bf16, {n, columns});
    return nn::as_heads(all.part(1, first, heads * s.dim), s.batch, heads, s.dim);
  };
  const index_t row = q + 2 * kv;
  const nn::tensor_view o_view = part(out, q, 0, s.heads);
  const gpu::op::attention_forward::in i{part(in, row, 0, s.heads),
                                         part(in, row, q, s.kv_heads),
                                         part(in, row, q + kv, s.kv_heads),
                                         {},
                                         contract,
                                         nullptr};
  const gpu::op::attention_backward::in from{i.q, i.k,      i.v,    o_view, lse, part(d_out, q, 0, s.heads),
                                             {},  contract, nullptr};
  const gpu::op::attention_backward::out to{part(d_in, row, 0, s.heads), part(d_in, row, q, s.kv_heads),
                                            part(d_in, row, q + kv, s.kv_heads)};
  const std::size_t room = gpu::workspace_bytes<gpu::op::attention_backward>(from, to);
  const auto forward = [&] { expect(gpu::launch<gpu::op::attention_forward>({}, i, {o_view, lse})); };
  const auto backward = [&] { expect(gpu::launch<gpu::op::attention_backward>({{}, dots, room}, from, to)); };
  forward();
  backward();
  const auto o = bytes_of(out, n * q * 2), gradients = bytes_of(d_in, n * row * 2);
  const double f = time_of(forward), b = time_of(backward);
  const bool equal = o == bytes_of(out, n * q * 2) && gradients == bytes_of(d_in, n * row * 2);
  const double flop = 2.0 * static_cast<double>(s.batch * s.heads * s.dim) * static_cast<double>(s.seq * s.seq);
  std::printf("%lld %lld %lld %lld %lld %s %.1f %.1f %.1f %.1f %s\n", static_cast<long long>(s.batch),
              static_cast<long long>(s.seq), static_cast<long long>(s.heads), static_cast<long long>(s.kv_heads),
              static_cast<long long>(s.dim), contract.name.c_str(), f, b, flop / f * 1e-6, 2.5 * flop / b * 1e-6,
              equal ? "equal" : "DIFFERENT");
  std::fflush(stdout);
  for (void* memory : {static_cast<void*>(in), static_cast<void*>(d_in), static_cast<void*>(out),
                       static_cast<void*>(d_out), static_cast<void*>(lse), static_cast<void*>(dots)}) {
    expect(gpu::release(memory));
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string name = "attention-bf16-tile64x64-exp2deg3@hopper-mma-fp16-f32";
  std::vector<shape> shapes;
  for (int i = 1; i < argc; ++i) {
    long long x[5];
    if (std::strcmp(argv[i], "--contract") == 0 && i + 1 < argc) {
      name = argv[++i];
    } else if (std::sscanf(argv[i], "%lldx%lldx%lldx%lldx%lld", x, x + 1, x + 2, x + 3, x + 4) == 5) {
      shapes.push_back({x[0], x[1], x[2], x[3], x[4]});
    } else {
      print_error("attention", argv[i] + std::string(" is no BATCHxSEQxHEADSxKV_HEADSxHEAD_DIM"));
      return 2;
    }
  }
  const auto contract = nn::find_attention_contract(name);
  if (!contract) {
    print_error("attention", name + " is no contract");
    return 2;
  }
  for (const shape& s : shapes) measure(s, *contract);
}
