// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Measures the FP4 GEMM kernels of the current device and writes gpu/gemm/tuned/ARCH.csv to standard output: for every
// shape and contract the split-K that took the least time. Medians of batches on random data; the error is that of 64
// outputs against FP64 (the whole of them, Frobenius norm). Shapes: tune 4096x4096x4096 ..., or those of Llama's
// layers. Exit codes: 0 measured, 1 a launch or the runtime failed, 2 bad usage, 77 no device.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "gpu/gemm/dispatch.hpp"
#include "rotoscale/dequantize_ref.hpp"

namespace {

using namespace rotoscale;
using namespace rotoscale::gpu;
using bytes = std::vector<std::uint8_t>;

struct shape {
  int m, n, k;
};

/// Llama 3.1 8B and 70B: the forward GEMMs of 4096 and 8192 tokens, and few tokens.
const shape default_shapes[] = {{4096, 4096, 4096},  {8192, 8192, 8192},  {8192, 6144, 4096},  {8192, 4096, 4096},
                                {8192, 28672, 4096}, {8192, 4096, 14336}, {8192, 10240, 8192}, {8192, 57344, 8192},
                                {8192, 8192, 28672}, {4096, 14336, 8192}, {14336, 4096, 8192}, {1024, 8192, 8192},
                                {256, 8192, 8192},   {128, 8192, 8192},   {16, 8192, 8192},    {2048, 2048, 2048}};

void check(const status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "tune: %s\n", s.message().c_str());
  std::exit(1);
}

std::uint8_t* device_copy(const bytes& from) {
  std::uint8_t* to = nullptr;
  check(allocate(to, from.size()));
  check(upload(to, from.data(), from.size()));
  check(synchronize());
  return to;
}

/// N(0, 1) as MXFP4: codes drawn with the frequencies that the even rule gives, scales of two binades.
struct operand_data {
  bytes codes, scales;
  operand_data(int rows, int k, unsigned seed)
      : codes(static_cast<std::size_t>(rows) * static_cast<std::size_t>(k / 2)),
        scales(static_cast<std::size_t>(rows) * static_cast<std::size_t>(k / 32)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    bytes pool(4096);
    const auto code = [&] { return static_cast<std::uint32_t>(encode(formats::e2m1, 2 * normal(random))); };
    for (auto& p : pool) p = pack_nibbles(code(), code());
    for (auto& c : codes) c = pool[random() % pool.size()];
    for (auto& s : scales) s = static_cast<std::uint8_t>(125 + random() % 2);
  }
};

double median_us(const gemm_problem& p, const gemm_choice& c, void* workspace, std::size_t size) {
  const auto batch = [&](int count) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) check(gemm_mxfp4(p, c, workspace, size, {}));
    check(synchronize());
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / count;
  };
  batch(1);  // clocks and caches
  const double first = batch(1);
  const int count = std::clamp(static_cast<int>(3000 / first), 1, 50);
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) times.push_back(batch(count));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

/// Of 64 outputs, relative to their norm.
double relative_error(const gemm_problem& p, const operand_data& a, const operand_data& b) {
  std::mt19937 random(7);
  double wrong = 0, norm = 0;
  const auto value = [&](const operand_data& x, index_t row, index_t c) {
    const auto code = nibble(x.codes[static_cast<std::size_t>(row * (p.a.k / 2) + c / 2)], c);
    return static_cast<double>(
        decode_scaled(mxfp4, code, x.scales[static_cast<std::size_t>(row * (p.a.k / 32) + c / 32)]));
  };
  for (int s = 0; s < 64; ++s) {
    const auto i = static_cast<index_t>(random()) % p.a.rows, j = static_cast<index_t>(random()) % p.b.rows;
    double sum = 0;
    for (index_t c = 0; c < p.a.k; ++c) sum += value(a, i, c) * value(b, j, c);
    std::uint16_t bits = 0;
    check(download(&bits, static_cast<const std::uint16_t*>(p.out) + i * p.b.rows + j, 2));
    check(synchronize());
    const double difference = fp32_from_bits(static_cast<std::uint32_t>(bits) << 16) - sum;
    wrong += difference * difference;
    norm += sum * sum;
  }
  return std::sqrt(wrong / norm);
}

void tune(const shape& s, const device_info& device) {
  const operand_data a(s.m, s.k, 1), b(s.n, s.k, 2);
  const auto operand = [&](const operand_data& x, int rows) {
    return gemm_operand{.element = formats::e2m1,
                        .rows = rows,
                        .k = s.k,
                        .codes = device_copy(x.codes),
                        .code_stride = s.k / 2,
                        .block = 32,
                        .scales = device_copy(x.scales),
                        .scale_stride = s.k / 32};
  };
  gemm_problem p{{}, operand(a, s.m), operand(b, s.n)};
  std::uint16_t* out = nullptr;
  check(allocate(out, static_cast<std::size_t>(s.m) * static_cast<std::size_t>(s.n)));
  p.out = out;
  for (const gemm_contract contract : {gemm_contract::fast, gemm_contract::accurate}) {
    double best = 0;
    gemm_choice choice{contract, 1};
    double error = 0;
    for (const int parts : {1, 2, 3, 4, 6, 8, 12, 16}) {
      if (parts > 1 && (s.k / parts < 512 || heuristic_choice(device, contract, s.m, s.n, s.k).split_k * 4 < parts))
        break;
      const gemm_choice c{contract, parts};
      check(check_gemm(p, c, device));
      const std::size_t size = gemm_workspace_bytes(p, c, device);
      std::uint8_t* workspace = nullptr;
      check(allocate(workspace, size));
      const double us = median_us(p, c, workspace, size);
      std::fprintf(stderr, "%dx%dx%d %s/%d %.1f us\n", s.m, s.n, s.k, to_text(contract), parts, us);
      if (best == 0 || us < best) {
        best = us;
        choice = c;
        error = relative_error(p, a, b);
      }
      check(release(workspace));
    }
    std::printf("%s,%d,%d,%d,%d,%s,%d,%.1f,%.0f,%.2e\n", to_text(device.arch), device.processors, s.m, s.n, s.k,
                to_text(contract), choice.split_k, best, 2e-6 * s.m * s.n * s.k / best, error);
    std::fflush(stdout);
  }
  for (const void* memory : {static_cast<const void*>(p.a.codes), static_cast<const void*>(p.a.scales),
                             static_cast<const void*>(p.b.codes), static_cast<const void*>(p.b.scales)}) {
    check(release(const_cast<void*>(memory)));
  }
  check(release(out));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<shape> shapes;
  for (int i = 1; i < argc; ++i) {
    shape s{};
    char rest = 0;
    if (std::sscanf(argv[i], "%dx%dx%d%c", &s.m, &s.n, &s.k, &rest) != 3) {
      std::fprintf(stderr, "usage: tune [MxNxK ...]\n");
      return 2;
    }
    shapes.push_back(s);
  }
  if (shapes.empty()) shapes.assign(std::begin(default_shapes), std::end(default_shapes));
  device_info device;
  const status found = current_device(device);
  if (found.code == error_code::no_device) {
    std::fprintf(stderr, "tune: no device: %s\n", found.reason);
    return 77;
  }
  check(found);
  std::printf("%s\n", tuned_header);
  for (const shape& s : shapes) tune(s, device);
  return 0;
}
