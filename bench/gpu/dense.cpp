// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Times GEMMs of operands without block scales: BF16, FP8 with both accumulations, and the vendor library's GEMMs if
// the build has one. Outputs are BF16, operands N(0, 1). One line a shape and kernel:
//   m n k kernel microseconds TFLOP/s
// Kernels of a shape take turns. Times are medians of rounds of several launches.
//
// usage: dense MxNxK...
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "examples/standard_streams.hpp"
#include "gpu/api/gemm_library.hpp"

using namespace rotoscale;

namespace {

constexpr int rounds = 9, launches = 8;

void expect(const gpu::status& s) {
  if (s.ok()) return;
  print_error("dense", s.message());
  std::exit(1);
}

struct memory {
  explicit memory(std::size_t bytes) { expect(gpu::allocate(data, std::max<std::size_t>(bytes, 1))); }
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;
  ~memory() { (void)gpu::release(data); }
  std::uint8_t* data = nullptr;
};

/// Rows of N(0, 1) in device memory. Numbers repeat after a prime count, so rows differ.
class operand {
 public:
  operand(const format& f, index_t rows, index_t k, unsigned seed)
      : bytes_(static_cast<std::size_t>(rows * k * f.bits() / 8)) {
    constexpr std::size_t period = 1'048'573;
    const int width = f.bits() / 8;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<std::uint8_t> some, host(static_cast<std::size_t>(rows * k * width));
    for (std::size_t i = 0; i < period; ++i) {
      const std::uint64_t code = encode(f, normal(random));
      for (int b = 0; b < width; ++b) some.push_back(static_cast<std::uint8_t>(code >> (8 * b)));
    }
    for (std::size_t i = 0; i < host.size(); ++i) host[i] = some[i % some.size()];
    expect(gpu::upload(bytes_.data, host.data(), host.size()));
    expect(gpu::synchronize());
    view = {f, rows, k, bytes_.data, k * width};
  }
  gemm_operand view;

 private:
  memory bytes_;
};

/// A kernel on the operands of a shape.
struct candidate {
  std::string name;
  std::function<void()> run;
  std::vector<double> microseconds;
};

/// The library's GEMM, or nothing if it does not take these operands.
void add_library(std::vector<candidate>& all, const char* name, const operand& a, const operand& b, void* out,
                 bool fast) {
  gpu::plain_problem p;
  p.a = a.view;
  p.b = b.view;
  p.out = out;
  p.fast_accumulate = fast;
  const auto plan = std::make_shared<gpu::plain_gemm>();
  if (!gpu::plain_gemm::make(p, *plan).ok()) return;
  const auto workspace = std::make_shared<memory>(plan->workspace_bytes());
  all.push_back({name, [=] { expect(plan->run(p, workspace->data, plan->workspace_bytes(), {})); }, {}});
}

void time_all(std::vector<candidate>& all) {
  for (int round = -1; round < rounds; ++round) {
    for (candidate& c : all) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < launches; ++i) c.run();
      expect(gpu::synchronize());
      const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - start;
      if (round >= 0) c.microseconds.push_back(taken.count() / launches);
    }
  }
}

void measure(int m, int n, int k) {
  const operand a16(formats::bf16, m, k, 1), b16(formats::bf16, n, k, 2), a8(formats::e4m3, m, k, 3),
      b8(formats::e4m3, n, k, 4), dy8(formats::e5m2, m, k, 5);
  const memory out(2 * static_cast<std::size_t>(m) * static_cast<std::size_t>(n));
  std::vector<candidate> all;
  gpu::device_info device;
  expect(gpu::current_device(device));
  const auto add = [&](const char* name, const char* contract, const operand& a, const operand& b) {
    const gemm_contract_entry& entry = *find_contract(contract);
    const gpu::gemm_call c{{out.data}, a.view, b.view, contract_options(entry, find_unit(entry.unit)->model)};
    if (gpu::check_gemm(c, device).ok()) all.push_back({name, [c] { expect(gpu::gemm(c, nullptr, 0, {})); }, {}});
  };
  add("bf16", "mx-bf16-sm90", a16, b16);
  add("bf16", "mx-bf16-gfx942", a16, b16);
  add("e4m3-promoted", "hopper-fp8-promoted", a8, b8);
  add("e5m2xe4m3-promoted", "hopper-fp8-promoted", dy8, b8);
  add("e4m3-fast", "hopper-fp8-fast-accumulate", a8, b8);
  add_library(all, "library-bf16", a16, b16, out.data, false);
  add_library(all, "library-e4m3-promoted", a8, b8, out.data, false);
  add_library(all, "library-e4m3-fast", a8, b8, out.data, true);
  time_all(all);
  for (candidate& c : all) {
    std::sort(c.microseconds.begin(), c.microseconds.end());
    const double median = c.microseconds[rounds / 2];
    std::printf("%d %d %d %s %.1f %.1f\n", m, n, k, c.name.c_str(), median, 2e-6 * m * n * k / median);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  gpu::device_info device;
  if (const gpu::status s = gpu::current_device(device); !s.ok()) {
    std::printf("skipped: %s\n", s.message().c_str());
    return 77;
  }
  for (int i = 1; i < argc; ++i) {
    int m = 0, n = 0, k = 0;
    if (std::sscanf(argv[i], "%dx%dx%d", &m, &n, &k) != 3 || m < 1 || n < 1 || k < 1 || k % 16 != 0) {
      print_error("dense", argv[i] + std::string(" is no MxNxK with K a multiple of 16"));
      return 2;
    }
    measure(m, n, k);
  }
}
