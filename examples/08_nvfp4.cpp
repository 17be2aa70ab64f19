// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Compares NVFP4 with MXFP4 by signal-to-noise ratio in dB, after rotating back.
// - NVFP4: E2M1, blocks of 16 with E4M3 scales. An FP32 factor per tensor brings the scales into E4M3's range.
// - MXFP4: E2M1, blocks of 32 with power-of-two scales.
// - MXFP4 after a 16-point Hadamard transform.
// An outlier costs the precision of its block, 16 or 32 elements; H16 spreads it out first.
#include <cmath>
#include <cstdio>
#include <vector>

#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/quantize_ref.hpp"

using namespace rotoscale;

constexpr index_t rows = 8, cols = 64;

struct stored {
  std::vector<std::uint8_t> codes, scales;
  std::vector<float> decoded;
};

static stored quantize_and_back(block_format f, const block_options& o, const std::vector<float>& x) {
  stored s;
  s.codes.resize(static_cast<std::size_t>(rows * packed_bytes(f.element, cols)));
  s.scales.resize(static_cast<std::size_t>(rows * cols / f.length));
  s.decoded.resize(x.size());
  const auto blocks = dense_blocks(f, rows, cols, s.codes.data(), s.scales.data());
  quantize_ref(f, o, row_major<const float>(x.data(), rows, cols), block_axis::row, blocks);
  dequantize_ref(f, blocks, block_axis::row, row_major(s.decoded.data(), rows, cols), 1.0f / o.encode_factor);
  const int run = run_length(f, o.rotation);
  for (std::size_t i = 0; i < x.size(); i += static_cast<std::size_t>(run))
    unrotate_run(&s.decoded[i], run, o.rotation);
  return s;
}

static double decibels(const std::vector<float>& x, const std::vector<float>& y) {
  double signal = 0.0, noise = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = static_cast<double>(x[i]), d = static_cast<double>(y[i]) - v;
    signal += v * v;
    noise += d * d;
  }
  return 10.0 * std::log10(signal / noise);
}

int main() {
  const random_stream random{8, 0};
  for (const bool outliers : {false, true}) {
    std::vector<float> x(static_cast<std::size_t>(rows * cols));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto word = random.word(i);  // the sum of four bytes is nearly normal
      x[i] = static_cast<float>(static_cast<int>((word & 255) + (word >> 8 & 255) + (word >> 16 & 255) + (word >> 24)) -
                                510);
      x[i] /= 4096;
      if (outliers && i % 97 == 5) x[i] *= 16;
    }

    const auto all = row_major<const float>(x.data(), rows, cols);
    const float amax = tensor_amax(nvfp4, presets::nvidia, all, block_axis::row);
    block_options nv = presets::nvidia, mx = presets::primus, mx_h16 = presets::primus;
    nv.encode_factor = tensor_encode_factor(amax, nvfp4.element, nvfp4.scale);
    mx_h16.rotation.points = 16;
    const stored n = quantize_and_back(nvfp4, nv, x), m = quantize_and_back(mxfp4, mx, x),
                 h = quantize_and_back(mxfp4, mx_h16, x);

    std::printf("%s, largest magnitude %g\n", outliers ? "with outliers" : "without outliers",
                static_cast<double>(amax));
    std::printf("  NVFP4 factor %g, first row's scales", static_cast<double>(nv.encode_factor));
    for (std::size_t b = 0; b < 4; ++b)
      std::printf(" %02x = %g", n.scales[b], static_cast<double>(decode(nvfp4.scale, n.scales[b])));
    std::printf("\n  codes of its first block");
    for (std::size_t i = 0; i < 8; ++i) std::printf(" %02x", n.codes[i]);
    std::printf("\n  MXFP4 scales 2^%d 2^%d, codes", scale_exponent(m.scales[0]), scale_exponent(m.scales[1]));
    for (std::size_t i = 0; i < 8; ++i) std::printf(" %02x", m.codes[i]);
    std::printf("\n  signal to noise: NVFP4 %.2f dB, MXFP4 %.2f dB, MXFP4 with H16 %.2f dB\n", decibels(x, n.decoded),
                decibels(x, m.decoded), decibels(x, h.decoded));
  }
}
