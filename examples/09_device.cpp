// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMD's recipe on a device: rotates two BF16 matrices, quantizes them to MXFP4 (one launch each) and multiplies them.
// The result is compared with the CPU's bits.
//
// This is an ordinary C++ program: the kernels are in a library. It is built for one toolkit (-Dgpu=cuda, hip, or host,
// where the CPU is the device). With an installed library:
//   g++ -std=c++20 09_device.cpp $(pkg-config --cflags --libs rotoscale-gpu)
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/gemm_ref.hpp"
#include "rotoscale/gpu/device.hpp"
#include "rotoscale/gpu/gemm.hpp"
#include "rotoscale/gpu/quantize.hpp"
#include "rotoscale/quantize.hpp"

using namespace rotoscale;

/// Exits if a launch was refused. The status then names the wrong argument, and nothing was launched.
static void expect(const gpu::status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "09_device: %s\n", s.message().c_str());
  std::exit(1);
}

template <class T>
struct device_memory {
  explicit device_memory(std::size_t count) : size(count) { expect(gpu::allocate(data, count)); }
  explicit device_memory(const std::vector<T>& x) : device_memory(x.size()) {
    expect(gpu::upload(data, x.data(), size * sizeof(T)));
  }
  device_memory(const device_memory&) = delete;
  ~device_memory() { (void)gpu::release(data); }
  std::vector<T> read() const {
    std::vector<T> x(size);
    expect(gpu::download(x.data(), data, size * sizeof(T)));
    expect(gpu::synchronize());
    return x;
  }
  std::size_t size;
  T* data = nullptr;
};

/// Random BF16 numbers, rows × k, quantized on the device in the layouts that its GEMM reads, and on the CPU.
struct operand {
  std::vector<bf16> x;
  device_memory<std::uint8_t> codes, scales;
  std::vector<std::uint8_t> codes_here, scales_here;
  block_matrix<std::uint8_t> blocks;
  gemm_operand view;

  operand(int rows, int k, bool placed, random_stream random)
      : codes(static_cast<std::size_t>(rows * k / 2)),
        scales(static_cast<std::size_t>(
            scale_layout(placed ? placement::aiter_scale : placement::row_major, mxfp4, rows, k).size_bytes())),
        codes_here(codes.size),
        scales_here(static_cast<std::size_t>(rows * k / 32)) {
    for (index_t i = 0; i < index_t{rows} * k; ++i) {  // [-1, 1) times 2^0 .. 2^3
      const float unit = 0x1p-31f * static_cast<float>(random.word(static_cast<std::uint64_t>(i))) - 1;
      bf16 rounded;
      store_value(unit * pow2_fp32(static_cast<int>(i / 32 * 7 % 4)), rounded);
      x.push_back(rounded);
    }
    const device_memory<bf16> source(x);
    gpu::quantized_output to{codes.data, scales.data, presets::te_rocm};
    if (placed) {
      to.code_order = placement::aiter_data_16x16;
      to.scale_order = placement::aiter_scale;
    }
    expect(gpu::quantize(mxfp4, row_major<const bf16>(source.data, rows, k), to, {}, {}));
    expect(gpu::synchronize());
    view = gpu::make_operand(mxfp4, to, rows, k);

    blocks = dense_blocks(mxfp4, rows, k, codes_here.data(), scales_here.data());
    quantize_ref(mxfp4, presets::te_rocm, row_major<const bf16>(x.data(), rows, k), block_axis::row, blocks);
  }
};

int main() {
  gpu::device_info device;
  expect(gpu::current_device(device));
  const bool gfx950 = device.arch == gpu::arch::gfx950;  // its kernel reads AITER's layouts
  const int m = 64, n = 96, k = 512;
  const operand a(m, k, gfx950, {1, 0}), b(n, k, gfx950, {1, 1});
  if (!gfx950) {
    std::printf("codes of a %s those of quantize_ref, scales %s\n",
                a.codes.read() == a.codes_here ? "equal" : "DIFFER FROM",
                a.scales.read() == a.scales_here ? "too" : "DO NOT");
  }

  device_memory<float> c(static_cast<std::size_t>(m * n));
  gpu::gemm_call call{{c.data, formats::fp32}, a.view, b.view};
  call.contract = gpu::contract_options(gpu::gemm_mode::accurate, device);
  call.contract.split_k = gpu::fastest_split_k(call, device);
  const device_memory<std::uint8_t> workspace(gpu::gemm_workspace_bytes(call, device));
  expect(gpu::gemm(call, workspace.data, workspace.size, {}));
  expect(gpu::synchronize());

  // gfx950 has its own order of additions. Elsewhere `accurate` has the bits of `reference`.
  const auto mode = gfx950 ? gpu::gemm_mode::accurate : gpu::gemm_mode::reference;
  std::vector<float> expected(c.size);
  gemm_ref(make_operand(mxfp4, a.blocks), make_operand(mxfp4, b.blocks),
           gpu::contract_options(mode, device, static_cast<int>(call.contract.split_k)),
           row_major(expected.data(), m, n));
  const std::vector<float> found = c.read();
  int different = 0;
  for (std::size_t i = 0; i < c.size; ++i) different += fp32_bits(found[i]) != fp32_bits(expected[i]);
  std::printf("c[0][0] = %a, %d of %d results differ from gemm_ref\n", static_cast<double>(found[0]), different, m * n);
}
