// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The device's quantizers as a share of its copy bandwidth, measured in the same run: medians of launches, random data.
// usage: gpu-quantize [REPEATS]; exit codes: 0 measured, 1 a launch or the runtime failed, 77 no device
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "gpu/api/dequantize.hpp"
#include "gpu/api/device.hpp"
#include "gpu/api/quantize.hpp"
#include "gpu/api/quantize_fp8.hpp"
#include "gpu/dialect/hip.hpp"

using namespace rotoscale;

namespace {

void expect(hipError_t error) {
  if (error == hipSuccess) return;
  std::fprintf(stderr, "device: %s\n", hipGetErrorString(error));
  std::exit(1);
}

/// Normal numbers by the sum of twelve bytes, of the sizes of activations.
__global__ void fill(std::uint16_t* to, index_t count) {
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

__global__ void __launch_bounds__(256) copy(const gpu::vec16* from, gpu::vec16* to, index_t count) {
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

/// Some 20 microseconds of one warp, without memory.
__global__ void wait(unsigned* never) {
  unsigned x = gpu::thread_index().x;
  for (int i = 0; i < 10000; ++i) x = x * 1664525u + 1013904223u;
  if (x == 1) *never = x;
}

/// The device waits before each launch, so that it has the launch when it is due: its own time is measured, not the
/// processor's.
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

struct device_bytes {
  explicit device_bytes(index_t size) { expect(hipMalloc(&data, static_cast<std::size_t>(size))); }
  ~device_bytes() { (void)hipFree(data); }
  std::uint8_t* data = nullptr;
};

void expect(const gpu::status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "%s\n", s.message().c_str());
  std::exit(1);
}

/// One shape: a BF16 source, room for both orientations of its codes, and the copy that all is compared with.
class shape_bench {
 public:
  shape_bench(index_t m, index_t n, int repeats) : m_(m), n_(n), repeats_(repeats) {
    fill<<<4096, 256>>>(reinterpret_cast<std::uint16_t*>(source_.data), elements_);
    expect(hipGetLastError());  // a build without code for this device fails here
    expect(hipDeviceSynchronize());
    const index_t pieces = elements_ / 8;
    const double by_kernel = median_us(repeats_, [&] {
      copy<<<static_cast<unsigned>((pieces + 1023) / 1024), 256>>>(
          reinterpret_cast<gpu::vec16*>(source_.data), reinterpret_cast<gpu::vec16*>(target_.data), pieces);
    });
    const double by_runtime = median_us(repeats_, [&] {
      expect(hipMemcpyAsync(target_.data, source_.data, static_cast<std::size_t>(2 * elements_),
                            hipMemcpyDeviceToDevice, nullptr));
    });
    roof_ = 4.0 * static_cast<double>(elements_) / std::min(by_kernel, by_runtime);
    report("copy (kernel)", by_kernel, 4);
    report("copy (runtime)", by_runtime, 4);
  }

  void blocks(const char* what, block_format f, bool rows, bool columns, int points, bool placed) {
    gpu::quantized_output row, column;
    row.options = presets::te_rocm;
    row.options.rotation.points = points;
    if (placed) row.scale_order = placement::aiter_scale;
    column = row;
    if (placed) column.code_order = placement::aiter_data_16x16;
    if (rows) row.codes = row_codes_.data, row.scales = row_scales_.data;
    if (columns) column.codes = column_codes_.data, column.scales = column_scales_.data;
    const double us = median_us(repeats_, [&] { expect(gpu::quantize(f, view_, row, column, {})); });
    report(what, us, 2 + (rows + columns) * bytes_of(f));
  }

  void fp8(const char* what, bool columns) {
    const device_bytes scalars(256);
    auto* const scale = reinterpret_cast<float*>(scalars.data);
    const float one = 1.0f;
    expect(hipMemset(scalars.data, 0, 256));
    expect(hipMemcpy(scale, &one, sizeof one, hipMemcpyHostToDevice));
    const gpu::fp8_output out{row_codes_.data, columns ? column_codes_.data : nullptr, 0, 0, scale + 1};
    const double us = median_us(repeats_, [&] { expect(gpu::cast_transpose_fp8({}, view_, scale, out, {})); });
    report(what, us, columns ? 4 : 3);
  }

  /// Of blocks that are quantized for it.
  void dequantize(const char* what, block_format f) {
    const gpu::quantized_output row{row_codes_.data, row_scales_.data, presets::ocp};
    expect(gpu::quantize(f, view_, row, {}, {}));
    const gemm_operand q = gpu::make_operand(f, row, m_, n_);
    const auto target = row_major(reinterpret_cast<bf16*>(target_.data), m_, n_);
    const double us = median_us(repeats_, [&] { expect(gpu::dequantize(q, block_axis::row, target, {})); });
    report(what, us, 2 + bytes_of(f));
  }

 private:
  static double bytes_of(block_format f) { return packed_bytes(f.element, 32) / 32.0 + 1.0 / 32; }
  void report(const char* what, double us, double bytes) const {
    const double all = bytes * static_cast<double>(elements_);
    std::printf("%-44s %6td x %-6td %9.1f us %6.0f GB/s %6.1f %%\n", what, m_, n_, us, all / us / 1e3,
                100.0 * all / us / roof_);
  }

  index_t m_, n_, elements_ = m_ * n_;
  int repeats_;
  double roof_ = 0;  // bytes a microsecond
  device_bytes source_{2 * elements_}, target_{2 * elements_}, row_codes_{elements_}, column_codes_{elements_};
  device_bytes row_scales_{elements_ / 16 + 65536}, column_scales_{elements_ / 16 + 65536};
  matrix<const bf16> view_ = row_major(reinterpret_cast<const bf16*>(source_.data), m_, n_);
};

void bench_shape(index_t m, index_t n, int repeats) {
  shape_bench b(m, n, repeats);
  b.blocks("H16 + MXFP4 row + column, swizzled", mxfp4, true, true, 16, true);
  b.blocks("H16 + MXFP4 row + column", mxfp4, true, true, 16, false);
  b.blocks("H16 + MXFP4 row, swizzled", mxfp4, true, false, 16, true);
  b.blocks("H16 + MXFP4 column, swizzled", mxfp4, false, true, 16, true);
  b.blocks("MXFP4 row + column, swizzled", mxfp4, true, true, 0, true);
  b.blocks("MXFP8 E4M3 row + column", mxfp8_e4m3, true, true, 0, false);
  b.blocks("MXFP8 E4M3 row", mxfp8_e4m3, true, false, 0, false);
  b.fp8("FP8 E4M3 cast + transpose + amax", true);
  b.fp8("FP8 E4M3 cast + amax", false);
  b.dequantize("MXFP4 to BF16", mxfp4);
  b.dequantize("MXFP8 E4M3 to BF16", mxfp8_e4m3);
}

}  // namespace

int main(int argc, char** argv) {
  gpu::device_info device;
  if (const gpu::status s = gpu::current_device(device); !s.ok()) {
    std::printf("skipped: %s\n", s.message().c_str());
    return 77;
  }
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 30;
  hipDeviceProp_t properties;
  int driver = 0, runtime = 0;
  expect(hipGetDeviceProperties(&properties, 0));
  expect(hipDriverGetVersion(&driver));
  expect(hipRuntimeGetVersion(&runtime));
  std::printf("%s, driver %d, runtime %d, %d launches each\n", properties.name, driver, runtime, repeats);
  bench_shape(8192, 8192, repeats);
  bench_shape(16384, 14336, repeats);
}
