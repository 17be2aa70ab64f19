// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Prints one line "name digest" per kind of result. digest.py compares the lines between compilers and flags.
//
// - The sections of numerics.hpp, fast block quantization, GEMMs, and training steps of a tiny model.
// - `-DDIGEST_NUMERICS_ONLY` leaves out training.
// - `-DDIGEST_DEVICE` (nvcc -x cu or hipcc) prints the device's sections, and fails where the host's differ.
//   Exit status 77 without a device.
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "numerics.hpp"
#ifdef DIGEST_DEVICE
#include "gpu/dialect/hip.hpp"
#else
#include "rotoscale/gemm.hpp"
#include "rotoscale/quantize.hpp"
#endif
#if !defined(DIGEST_DEVICE) && !defined(DIGEST_NUMERICS_ONLY)
#include "rotoscale/models/llama/model.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"
#include "rotoscale/train/session.hpp"
#endif

using namespace rotoscale;

namespace {

/// A digest of arrays, with a name.
class digest {
 public:
  template <class T>
  void add(const std::vector<T>& v) {
    const auto* p = reinterpret_cast<const unsigned char*>(v.data());
    for (std::size_t i = 0; i < v.size() * sizeof(T); ++i) hash_.add(p[i], 1);
  }
  /// `part`: definitions, kernels or training. Some builds have only part of them.
  void print(const char* part, const std::string& name) const {
    std::printf("%s: %s %016llx\n", part, name.c_str(), static_cast<unsigned long long>(hash_.value()));
  }

 private:
  digests::hash hash_;
};

/// Combines item digests, in order, into one.
void print_section(const digests::section& section, const std::vector<std::uint64_t>& items) {
  digest d;
  d.add(items);
  d.print("definitions", section.name);
}

std::vector<std::uint64_t> host_items(int which) {
  static digests::scratch memory;
  std::vector<std::uint64_t> items;
  for (index_t i = 0; i < digests::sections[which].items; ++i) items.push_back(digests::item_digest(which, i, memory));
  return items;
}

#ifndef DIGEST_DEVICE
/// Numbers around one with an occasional zero, subnormal, Inf or NaN.
std::vector<float> values(index_t n, std::uint64_t seed, bool specials) {
  const random_stream random{seed, 1};
  std::vector<float> x;
  for (index_t i = 0; i < n; ++i) {
    const std::uint32_t word = random.word(static_cast<std::uint64_t>(i));
    std::uint32_t u = (word & 0x807FFFFFu) | (120u + (word >> 23) % 12) << 23;
    if (specials && word % 611 == 0) u = word & 0x80000000u;
    if (specials && word % 613 == 0) u = word & 0x807FFFFFu;
    if (specials && word % 1009 == 0) u = (word & 0x80000000u) | 0x7F800000u | (i % 2 == 0 ? 0x00400000u : 0u);
    x.push_back(fp32_from_bits(u));
  }
  return x;
}

void print_quantize(thread_pool& pool) {
  const index_t rows = 96, cols = 64;
  const auto x = values(rows * cols, 2, true);
  for (const auto axis : {block_axis::row, block_axis::column}) {
    digest d;
    const index_t out_rows = axis == block_axis::row ? rows : cols, k = axis == block_axis::row ? cols : rows;
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(out_rows * k)),
        scales(static_cast<std::size_t>(out_rows * k / 32));
    for (const std::uint32_t signs : {0u, 0xBEEFu}) {
      block_options o = presets::te_rocm;
      o.rotation.signs[0] = signs;
      quantize(mxfp4, o, row_major(x.data(), rows, cols), axis,
               dense_blocks(mxfp4, out_rows, k, codes.data(), scales.data()), pool);
      d.add(codes);
      d.add(scales);
      o.rounding = rounding::stochastic;
      quantize(mxfp8_e4m3, o, row_major(x.data(), rows, cols), axis,
               dense_blocks(mxfp8_e4m3, out_rows, k, codes.data(), scales.data()), pool);
      d.add(codes);
      d.add(scales);
    }
    d.print("kernels", axis == block_axis::row ? "quantize row" : "quantize column");
  }
}

void print_gemm(thread_pool& pool) {
  const index_t m = 19, n = 21, k = 96;
  auto x = values(m * k, 3, false), y = values(n * k, 4, false);
  // Blocks of different magnitude, so that sums exceed FP32's precision and the two models differ.
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= i / 32 % 3 == 0 ? 1.0f : (i / 32 % 3 == 1 ? 0x1p-17f : 0x1p-20f);
  std::vector<std::uint8_t> codes[2], scales[2];
  gemm_operand operands[2];
  for (int side = 0; side < 2; ++side) {
    const index_t rows = side == 0 ? m : n;
    codes[side].resize(static_cast<std::size_t>(rows * k / 2));
    scales[side].resize(static_cast<std::size_t>(rows * k / 32));
    const auto blocks = dense_blocks(mxfp4, rows, k, codes[side].data(), scales[side].data());
    quantize(mxfp4, presets::te_rocm, row_major<const float>(side == 0 ? x.data() : y.data(), rows, k), block_axis::row,
             blocks, pool);
    operands[side] = make_operand(mxfp4, blocks);
  }
  for (const int group : {1, 32}) {
    digest d;
    for (const format& output : {formats::fp32, formats::bf16}) {
      std::vector<float> c(static_cast<std::size_t>(m * n), 0.3f);
      gemm(operands[0], operands[1], {mma_model{group}, output, true}, row_major(c.data(), m, n), pool);
      d.add(c);
    }
    d.print("kernels", group == 1 ? "gemm fp32_fma_chain" : "gemm fp32_blockwise");
  }
  digest d;
  std::vector<float> c(static_cast<std::size_t>(m * n));
  gemm(make_operand(row_major<const float>(x.data(), m, k)), make_operand(row_major<const float>(y.data(), n, k)), {},
       row_major(c.data(), m, n), pool);
  d.add(c);
  d.print("kernels", "gemm fp32");
}

#ifndef DIGEST_NUMERICS_ONLY
/// Three steps. Weights come from integers, so that they do not depend on the C library.
void print_training(const nn::recipe& r, int threads) {
  llama::model_config config;
  config.vocab_size = 32;
  config.hidden_size = 32;
  config.intermediate_size = 32;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  const auto backend = nn::make_cpu_backend(threads);
  nn::backend& ops = *backend;
  const index_t seq = 32;
  llama::session_options options;
  options.model.sequence = seq;
  options.optimizer.weight_decay = 0.1f;
  llama::session session(ops, config, options, {r});
  const llama::model& m = session.model();
  std::uint64_t stream = 0;
  for (std::size_t p = 0; p < m.parameters().all().size(); ++p) {
    const random_stream random{6, ++stream};
    std::vector<float> host(static_cast<std::size_t>(m.parameters()[p].size()), 1.0f);
    for (std::size_t i = 0; i < host.size() && !m.parameters()[p].is_vector; ++i) {
      host[i] = (static_cast<float>(random.word(i) >> 8) - 0x1p23f) * 0x1p-26f;
    }
    session.load(p, host);
  }
  digest d;
  const random_stream random{7, 7};
  for (int step = 0; step < 3; ++step) {
    std::vector<std::int32_t> tokens, targets;
    for (index_t i = 0; i < seq; ++i) {
      const auto at = static_cast<std::uint64_t>(step * seq + i);
      tokens.push_back(static_cast<std::int32_t>(random.word(2 * at) % 32));
      targets.push_back(static_cast<std::int32_t>(random.word(2 * at + 1) % 32));
    }
    nn::step_inputs inputs;
    inputs.seed = 5;
    inputs.step = static_cast<std::uint64_t>(step);
    inputs.learning_rate = 0.01f;
    inputs.bias_correction1 = 1.0f - static_cast<float>(step == 0 ? 0.9 : (step == 1 ? 0.81 : 0.729));
    inputs.bias_correction2 = 1.0f - static_cast<float>(step == 0 ? 0.95 : (step == 1 ? 0.9025 : 0.857375));
    session.train_step(inputs, tokens, targets);
    session.finish_step();
    std::vector<float> losses(static_cast<std::size_t>(seq));
    ops.download(session.queue(), losses.data(), m.loss(), losses.size() * sizeof(float));
    d.add(losses);
    for (std::size_t p = 0; p < m.parameters().all().size(); ++p) {
      d.add(m.arena_values(session.queue(), m.arena().gradient, p));
    }
  }
  for (std::size_t p = 0; p < m.parameters().all().size(); ++p) d.add(m.values(session.queue(), p));
  d.print("training", r.name);
}
#endif
#else

/// One item per thread, each with its own memory.
__global__ void device_items(int which, index_t first, index_t count, digests::scratch* memory,
                             std::uint64_t* digest_of) {
  const index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) digest_of[i] = digests::item_digest(which, first + i, memory[i]);
}

void check(hipError_t status) {
  if (status == hipSuccess) return;
  std::fprintf(stderr, "digest: %s\n", hipGetErrorString(status));
  std::exit(1);
}

/// A section's items computed by the device, `chunk` at a time.
std::vector<std::uint64_t> device_section(int which) {
  constexpr index_t chunk = 1024;
  static digests::scratch* memory = nullptr;
  static std::uint64_t* results = nullptr;
  if (memory == nullptr) {
    check(hipMalloc(&memory, chunk * sizeof *memory));
    check(hipMalloc(&results, chunk * sizeof *results));
  }
  std::vector<std::uint64_t> items(static_cast<std::size_t>(digests::sections[which].items));
  const auto total = static_cast<index_t>(items.size());
  for (index_t first = 0; first < total; first += chunk) {
    const index_t count = total - first < chunk ? total - first : chunk;
    // clang-format off
    device_items<<<static_cast<unsigned>((count + 31) / 32), 32>>>(which, first, count, memory, results);
    // clang-format on
    check(hipGetLastError());
    check(hipMemcpy(&items[static_cast<std::size_t>(first)], results, static_cast<std::size_t>(count) * sizeof *results,
                    hipMemcpyDeviceToHost));
  }
  return items;
}
#endif

}  // namespace

#ifdef DIGEST_DEVICE
int main() {
  int devices = 0;
  if (hipGetDeviceCount(&devices) != hipSuccess || devices == 0) {
    std::puts("skipped: no device");
    return 77;
  }
  int differing = 0;
  for (int which = 0; which < static_cast<int>(std::size(digests::sections)); ++which) {
    const auto device = device_section(which), host = host_items(which);
    print_section(digests::sections[which], device);
    for (std::size_t i = 0; i < device.size(); ++i) {
      if (device[i] == host[i]) continue;
      std::printf("%s: item %zu differs from the host's\n", digests::sections[which].name, i);
      ++differing;
    }
  }
  return differing == 0 ? 0 : 1;
}
#else
int main(int argc, char** argv) {
  const int threads = argc > 1 && std::string(argv[1]) == "2" ? 2 : 1;
  thread_pool pool(threads);
  // Definitions use no threads, so they run once.
  for (int which = 0; which < static_cast<int>(std::size(digests::sections)) && threads == 1; ++which)
    print_section(digests::sections[which], host_items(which));
  print_quantize(pool);
  print_gemm(pool);
#ifndef DIGEST_NUMERICS_ONLY
  for (const auto& r : nn::presets::all()) {
    for (const char* name : {"fp32", "bf16", "fp8_delayed", "mxfp4_h16"}) {
      if (r.name == name) print_training(r, threads);
    }
    if (r.name != "mxfp4_h16") continue;
    nn::recipe under_cpu = take_contracts(r, *nn::find_contract_set("cpu"));
    under_cpu.name += "_cpu";
    print_training(under_cpu, threads);
  }
#endif
  return 0;
}
#endif
