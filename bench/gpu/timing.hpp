// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Shared by the benchmarks of kernels: random device memory, medians of launches, and the device's copy as the roof.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "gpu/api/device.hpp"
#include "gpu/dialect/hip.hpp"
#include "rotoscale/bits.hpp"
#include "rotoscale/philox.hpp"

namespace gpu_bench {

using namespace rotoscale;

inline void expect(hipError_t error) {
  if (error == hipSuccess) return;
  std::fprintf(stderr, "device: %s\n", hipGetErrorString(error));
  std::exit(1);
}

/// BF16 numbers with the distribution of activations: normal, by the sum of twelve bytes.
[[maybe_unused]] static __global__ void fill(std::uint16_t* to, index_t count) {
  for (index_t i = gpu::block_index().x * index_t{256} + gpu::thread_index().x; i < count;
       i += gpu::grid_size().x * index_t{256}) {
    const philox_block r = random_stream{1, 2}.block(static_cast<std::uint64_t>(i));
    float sum = -1530.0f;
    for (int w = 0; w < 3; ++w) {
      for (int b = 0; b < 4; ++b) sum += static_cast<float>(r.word[w] >> (8 * b) & 0xFFu);
    }
    to[i] = static_cast<std::uint16_t>(fp32_bits(sum * 0.0039f) >> 16);
  }
}

[[maybe_unused]] static __global__ void __launch_bounds__(256)
    copy(const gpu::vec16* from, gpu::vec16* to, index_t count) {
  const index_t first = gpu::block_index().x * index_t{1024} + gpu::thread_index().x;
  gpu::vec16 x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + 256 * i < count) x[i] = gpu::load_streaming(from + first + 256 * i);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + 256 * i < count) gpu::store_streaming(to + first + 256 * i, x[i]);
  }
}

/// Delays the stream by some 20 microseconds without memory traffic.
[[maybe_unused]] static __global__ void wait(unsigned* never) {
  unsigned x = gpu::thread_index().x;
  for (int i = 0; i < 10000; ++i) x = x * 1664525u + 1013904223u;
  if (x == 1) *never = x;
}

/// Median microseconds of a launch. A delay kernel before each launch hides the host's launch latency.
template <class Launch>
double median_us(int repeats, const Launch& launch) {
  hipEvent_t begin, end;
  expect(hipEventCreate(&begin));
  expect(hipEventCreate(&end));
  std::vector<double> times;
  for (int i = -3; i < repeats; ++i) {
    wait<<<1, 32>>>(nullptr);
    expect(hipEventRecord(begin, nullptr));
    launch();
    expect(hipEventRecord(end, nullptr));
    expect(hipEventSynchronize(end));
    float ms = 0;
    expect(hipEventElapsedTime(&ms, begin, end));
    if (i >= 0) times.push_back(1000.0 * ms);
  }
  expect(hipEventDestroy(begin));
  expect(hipEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<std::size_t>(repeats / 2)];
}

/// Memory of the device's pool, which keeps freed memory until the program ends. The driver would clear it, at the
/// expense of the next measurement.
struct device_bytes {
  explicit device_bytes(index_t size) {
    [[maybe_unused]] static const bool is_kept = keep_pool();
    if (size == 0) return;
    expect(hipMallocAsync(reinterpret_cast<void**>(&data), static_cast<std::size_t>(size), nullptr));
  }
  ~device_bytes() {
    if (data != nullptr) (void)hipFreeAsync(data, nullptr);
  }
  std::uint8_t* data = nullptr;

 private:
  static bool keep_pool() {
    int device = 0;
    hipMemPool_t pool;
    std::uint64_t kept_bytes = ~std::uint64_t{0};
    expect(hipGetDevice(&device));
    expect(hipDeviceGetDefaultMemPool(&pool, device));
    expect(hipMemPoolSetAttribute(pool, hipMemPoolAttrReleaseThreshold, &kept_bytes));
    return true;
  }
};

inline void expect(const gpu::status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "%s\n", s.message().c_str());
  std::exit(1);
}

/// Microseconds of a copy, by a kernel and by the runtime.
struct copy_times {
  double by_kernel, by_runtime;
  double best() const { return std::min(by_kernel, by_runtime); }
};
inline copy_times time_copy(const void* from, void* to, index_t bytes, int repeats) {
  const index_t vectors = bytes / 16;
  return {median_us(repeats,
                    [&] {
                      copy<<<static_cast<unsigned>((vectors + 1023) / 1024), 256>>>(
                          static_cast<const gpu::vec16*>(from), static_cast<gpu::vec16*>(to), vectors);
                    }),
          median_us(repeats, [&] {
            expect(hipMemcpyAsync(to, from, static_cast<std::size_t>(bytes), hipMemcpyDeviceToDevice, nullptr));
          })};
}

/// Prints a line about the device and returns the repeats of the command line. Exits with 77 without a device.
inline int begin(int argc, char** argv) {
  gpu::device_info device;
  if (const gpu::status s = gpu::current_device(device); !s.ok()) {
    std::printf("skipped: %s\n", s.message().c_str());
    std::exit(77);
  }
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 30;
  hipDeviceProp_t properties;
  std::string driver;
  int runtime = 0;
  expect(hipGetDeviceProperties(&properties, 0));
  expect(gpu::driver_version(driver));
  expect(hipRuntimeGetVersion(&runtime));
  std::printf("%s, %s, runtime %d, %d launches each\n", properties.name, driver.c_str(), runtime, repeats);
  return repeats;
}

}  // namespace gpu_bench
