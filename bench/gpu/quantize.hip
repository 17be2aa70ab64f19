// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Quantizers and dequantizers as a share of the device's copy rate in the same run. Medians of launches, random data.
// usage: gpu-quantize [REPEATS]
// exit codes: 0 measured, 1 a launch or the runtime failed, 77 no device
#include "gpu/api/dequantize.hpp"
#include "gpu/api/quantize.hpp"
#include "gpu/api/quantize_fp8.hpp"
#include "timing.hpp"

using namespace rotoscale;
using namespace gpu_bench;

namespace {

/// One shape: a BF16 source, memory for both orientations of its codes, and the copy as the roof.
class shape_bench {
 public:
  shape_bench(index_t m, index_t n, int repeats) : m_(m), n_(n), repeats_(repeats) {
    fill<<<4096, 256>>>(reinterpret_cast<std::uint16_t*>(source_.data), elements_);
    expect(hipGetLastError());  // a build without code for this device fails here
    expect(hipDeviceSynchronize());
    const copy_times copies = time_copy(source_.data, target_.data, 2 * elements_, repeats_);
    roof_ = 4.0 * static_cast<double>(elements_) / copies.best();
    report("copy (kernel)", copies.by_kernel, 4);
    report("copy (runtime)", copies.by_runtime, 4);
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

  /// Dequantizes blocks that it quantizes first.
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
  const int repeats = begin(argc, argv);
  bench_shape(8192, 8192, repeats);
  bench_shape(16384, 14336, repeats);
}
