// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operands for GEMM tests: random blocks on the host and the device, some with NaN, zero and extreme scales.
#pragma once

#include <doctest/doctest.h>

#include <cmath>

#include "gpu/api/gemm.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/dialect/element.hpp"
#include "gpu/gemm/contract_ref.hpp"
#include "gpu/gemm/table.hpp"

namespace gpu_test {

using namespace rotoscale::gpu;

/// Device memory with a host copy.
template <class T>
class array {
 public:
  explicit array(std::vector<T> values) : here(std::move(values)), memory_(here), there(memory_.data()) {}
  std::size_t bytes() const { return here.size() * sizeof(T); }
  void fetch() { here = memory_.read(); }
  bool guards_hold() const { return memory_.guards_hold(); }
  std::vector<T> here;

 private:
  device_array<T> memory_;

 public:
  T* const there;
};

using bytes = std::vector<std::uint8_t>;

inline index_t stride_of(int k, gemm_element e) { return ((e == gemm_element::e2m1 ? k / 2 : k) + 15) / 16 * 16; }

/// A contract of block-scaled operands, with a schedule.
struct gemm_choice {
  gemm_mode mode = gemm_mode::accurate;
  int split_k = 1;
  gemm_schedule schedule{};
};
inline gemm_call call_of(const gemm_result& out, const gemm_operand& a, const gemm_operand& b, const gemm_choice& c,
                         const device_info& on = device) {
  return {out, a, b, contract_options(c.mode, on, c.split_k, a.element != formats::e2m1), c.schedule};
}

/// Calls use(kernel) for every row of the table that takes `call` on `on`.
template <class Use>
void each_kernel(const gemm_call& call, const Use& use, const device_info& on = device) {
  int count = 0;
  for (const gpu::detail::gemm_kernel& kernel : gpu::detail::gemm_kernels()) {
    if (!gpu::detail::check_kernel(kernel, call, on).ok()) continue;
    CAPTURE(kernel.name);
    use(kernel);
    ++count;
  }
  CHECK(count > 0);
}

/// Blocks of 32 on the host and the device.
struct matrix_data {
  int rows, k;
  gemm_element element;
  array<std::uint8_t> codes, scales;
  matrix_data(int r, int length, bytes c, bytes s, gemm_element e = gemm_element::e2m1)
      : rows(r), k(length), element(e), codes(std::move(c)), scales(std::move(s)) {}
  index_t code_stride() const { return stride_of(k, element); }
  block_format blocks() const { return {format_of(element)}; }
  gemm_operand view() const {
    return {.element = format_of(element),
            .rows = rows,
            .k = k,
            .codes = codes.there,
            .code_stride = code_stride(),
            .block = 32,
            .scales = scales.there,
            .scale_stride = k / 32};
  }
  block_matrix<const std::uint8_t> here() const {
    block_matrix<const std::uint8_t> m;
    m.codes = codes.here.data();
    m.scales = scales.here.data();
    m.rows = rows;
    m.k = k;
    m.code_stride = code_stride();
    m.scale_stride = k / 32;
    return m;
  }
};

enum class scales_of { ordinary, far, special, wide, narrow, outliers, apart };

/// Random codes with scales of a kind:
///
/// `ordinary`  10 binades.
/// `far`       20 binades, so that FP32 sums of parts depend on their order.
/// `special`   NaN, the ends of the range, blocks of zeros with distant scales.
/// `wide`      Row 5 has nonzero blocks 60 binades apart.
/// `narrow`    4 binades, which fold into int8.
/// `outliers`  4 binades; 1 k-block of 128 elements in 150 is two binades off, and 1 block in 1500.
/// `apart`     3 binades in a k-block, k-blocks up to 12 apart. They fold into int8, and their sums depend on the
///             order.
inline matrix_data random_matrix(int rows, int k, unsigned seed, scales_of kind,
                                 gemm_element element = gemm_element::e2m1) {
  std::mt19937 random(seed);
  const index_t stride = stride_of(k, element), block_bytes = element == gemm_element::e2m1 ? 16 : 32;
  bytes codes(static_cast<std::size_t>(rows * stride)), scales(static_cast<std::size_t>(rows * (k / 32)));
  for (auto& c : codes) c = static_cast<std::uint8_t>(random());
  const unsigned binades = kind == scales_of::far                                     ? 20
                           : kind == scales_of::narrow || kind == scales_of::outliers ? 4
                                                                                      : 10;
  for (auto& s : scales) s = static_cast<std::uint8_t>(118 + random() % binades);
  for (std::size_t i = 0; kind == scales_of::outliers && i < scales.size(); ++i) {
    const std::size_t block = i % static_cast<std::size_t>(k / 32);
    if (block % 4 == 0 && random() % 150 == 0) {
      const unsigned to = 116 + random() % 5;
      for (std::size_t j = i; j < i + 4 && j % static_cast<std::size_t>(k / 32) >= block; ++j) {
        scales[j] = static_cast<std::uint8_t>(to + random() % 4);
        if (j + 1 == scales.size()) break;
      }
    }
    if (random() % 1500 == 0) scales[i] = static_cast<std::uint8_t>(random() % 2 == 0 ? 123 : 116);
  }
  for (std::size_t i = 0; kind == scales_of::apart && i < scales.size(); ++i) {
    const std::size_t row = i / static_cast<std::size_t>(k / 32), k_block = i % static_cast<std::size_t>(k / 32) / 4;
    scales[i] = static_cast<std::uint8_t>(112 + (7 * row + 5 * k_block) % 13 + random() % 3);
  }
  const auto set_block = [&](int row, int block, std::uint8_t scale, bool zero) {
    scales[static_cast<std::size_t>(row * (k / 32) + block)] = scale;
    for (index_t i = 0; zero && i < block_bytes; ++i) {
      codes[static_cast<std::size_t>(row * stride + block_bytes * block + i)] = 0x80;
    }
  };
  if (kind == scales_of::special && rows > 8) {
    set_block(1, 0, 255, false);
    for (int b = 0; b < k / 32; ++b) {
      set_block(2, b, static_cast<std::uint8_t>(b % 2), false);
      set_block(3, b, 254, false);
      set_block(4, b, 253, b % 2 == 0);
      set_block(6, b, 255, true);
    }
    set_block(7, 0, 0, true);
    set_block(8, k / 32 - 1, 254, true);
  }
  if (kind == scales_of::wide && rows > 5) set_block(5, 0, 60, false);
  return {rows, k, std::move(codes), std::move(scales), element};
}

inline std::uint64_t bits_at(const bytes& memory, index_t element, int width) {
  std::uint64_t x = 0;
  for (int i = 0; i < width; ++i) {
    x |= std::uint64_t{memory[static_cast<std::size_t>(element * width + i)]} << (8 * i);
  }
  return x;
}

/// The epilogue of an output, written independently: alpha * sum, C and bias, one rounding per step, then the output
/// format.
inline std::uint64_t finished_bits(float sum, const format& output, float alpha, bool accumulate, float beta, float old,
                                   const float* bias, std::uint32_t nan_bits) {
  float x = sum * alpha;
  if (accumulate && bias != nullptr) x = std::fma(sum, alpha, std::fma(beta, old, *bias));
  if (accumulate && bias == nullptr) x = std::fma(sum, alpha, beta * old);
  if (!accumulate && bias != nullptr) x = std::fma(sum, alpha, *bias);
  if (std::isnan(x)) return output == formats::bf16 ? nan_bits >> 16 : nan_bits;
  return encode(output, x, rounding::nearest_even, overflow::to_inf);
}

/// Expected output of a model.
struct model_output {
  float sum;
  std::uint32_t nan_bits;
};

/// Poisoned m × n output of a GEMM with its C and bias. Options: output, extra_stride, alpha, accumulate, bias.
template <class Options>
class judged_output {
 public:
  judged_output(int m, int n, const Options& o)
      : m_(m), n_(n), o_(o), bias_(bias_of(n)), out_(before_of(static_cast<std::size_t>(m * stride() * width()), o)) {
    before_ = out_.here;
  }
  gemm_result result() const {
    return {out_.there, o_.output, stride(), o_.alpha, o_.accumulate, beta, o_.bias ? bias_.there : nullptr};
  }
  /// Restores the memory before another launch.
  void poison() {
    out_.here = before_;
    expect(upload(out_.there, out_.here.data(), out_.here.size()));
    expect(synchronize());
  }
  /// Returns all of its memory after a launch.
  bytes fetched() {
    out_.fetch();
    CHECK(out_.guards_hold());
    return out_.here;
  }
  /// Compares all outputs, or `samples`, with model(i, j). Also checks the memory between and around rows.
  template <class Model>
  void check(const Model& model, int samples) {
    out_.fetch();
    CHECK(out_.guards_hold());
    int wrong = 0;
    std::mt19937 random(1);
    for (int s = 0; s < samples; ++s) {
      const auto i = static_cast<index_t>(random()) % m_;
      wrong += !is_right(model, i, static_cast<index_t>(random()) % n_, wrong < 3);
    }
    for (index_t i = 0; samples == 0 && i < m_; ++i) {
      for (index_t j = 0; j < n_; ++j) wrong += !is_right(model, i, j, wrong < 3);
    }
    CHECK(wrong == 0);
    for (index_t i = 0; i < m_; ++i) {
      for (index_t j = n_; j < stride(); ++j) {
        CHECK(bits_at(out_.here, i * stride() + j, width()) == bits_at(before_, i * stride() + j, width()));
      }
    }
  }

 private:
  static constexpr float beta = 0.3f;
  static std::vector<float> bias_of(int n) {
    std::vector<float> bias(static_cast<std::size_t>(n));
    for (std::size_t j = 0; j < bias.size(); ++j) bias[j] = 0.125f * static_cast<float>(j % 7) - 0.25f;
    return bias;
  }
  static bytes before_of(std::size_t size, const Options& o) {
    bytes before(size, 0xA5);
    for (std::size_t i = 0; o.accumulate && i < size; ++i) {
      before[i] = static_cast<std::uint8_t>(i % 2 != 0 ? 0x3F : i % 128);
    }
    return before;
  }
  int width() const { return o_.output == formats::bf16 ? 2 : 4; }
  index_t stride() const { return n_ + o_.extra_stride; }

  template <class Model>
  bool is_right(const Model& model, index_t i, index_t j, bool say) const {
    const index_t at = i * stride() + j;
    const auto old_bits = static_cast<std::uint32_t>(bits_at(before_, at, width()));
    const float old = fp32_from_bits(width() == 2 ? old_bits << 16 : old_bits);
    const model_output expected = model(i, j);
    const std::uint64_t want =
        finished_bits(expected.sum, o_.output, o_.alpha, o_.accumulate, beta, old,
                      o_.bias ? &bias_.here[static_cast<std::size_t>(j)] : nullptr, expected.nan_bits);
    const std::uint64_t got = bits_at(out_.here, at, width());
    if (want != got && say) MESSAGE("(" << i << ", " << j << "): " << got << " instead of " << want);
    return want == got;
  }

  int m_, n_;
  Options o_;
  array<float> bias_;
  array<std::uint8_t> out_;
  bytes before_;
};

}  // namespace gpu_test
