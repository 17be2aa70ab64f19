// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Smallest user of the device library, built by an ordinary compiler for every library mode: quantizes one matrix to
// MXFP4 and compares it with quantize_ref. Prints the version, or why there is no device (exit code 77).
#include <cstdio>
#include <cstdlib>
#include <rotoscale/gpu/device.hpp>
#include <rotoscale/gpu/gemm_library.hpp>
#include <rotoscale/gpu/quantize.hpp>
#include <rotoscale/gpu/quantize_fp8.hpp>
#include <rotoscale/quantize_ref.hpp>
#include <rotoscale/version.hpp>
#include <vector>

namespace gpu = rotoscale::gpu;

static void expect(const gpu::status& s) {
  if (s.ok()) return;
  std::printf("%s\n", s.message().c_str());
  std::exit(s.code == gpu::error_code::no_device ? 77 : 1);
}

int main() {
  using namespace rotoscale;
  constexpr index_t rows = 32, k = 64;
  gpu::device_info device;
  expect(gpu::current_device(device));
  std::vector<float> x(rows * k);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 23) - 11.0f;
  std::vector<std::uint8_t> codes(rows * k / 2), scales(rows * k / 32), codes_here(codes), scales_here(scales);
  float* source = nullptr;
  gpu::quantized_output out;
  expect(gpu::allocate(source, x.size()));
  expect(gpu::allocate(out.codes, codes.size()));
  expect(gpu::allocate(out.scales, scales.size()));
  gpu::stream stream;
  expect(gpu::create(stream));
  expect(gpu::upload(source, x.data(), x.size() * sizeof(float), stream));
  expect(gpu::quantize(mxfp4, row_major<const float>(source, rows, k), out, {}, stream));
  expect(gpu::download(codes.data(), out.codes, codes.size(), stream));
  expect(gpu::download(scales.data(), out.scales, scales.size(), stream));
  expect(gpu::synchronize(stream));
  quantize_ref(mxfp4, {}, row_major<const float>(x.data(), rows, k), block_axis::row,
               dense_blocks(mxfp4, rows, k, codes_here.data(), scales_here.data()));
  for (void* memory : {static_cast<void*>(source), static_cast<void*>(out.codes), static_cast<void*>(out.scales)}) {
    expect(gpu::release(memory));
  }
  expect(gpu::destroy(stream));
  if (codes != codes_here || scales != scales_here) return 1;
  std::puts("rotoscale " ROTOSCALE_VERSION);
}
