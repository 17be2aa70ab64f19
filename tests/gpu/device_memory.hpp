// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of gpu/: device arrays that are poisoned, guarded on both sides and compared by bytes. Also
// sources with every kind of block. A test program linked with a device library exits with 77 (skipped) if there is no
// device.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <vector>

#include "gpu/api/device.hpp"
#include "rotoscale/small_float.hpp"

namespace gpu_test {

using namespace rotoscale;

/// Requires that a call succeeds.
inline void expect(const gpu::status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "device: %s\n", s.message().c_str());
  std::abort();
}

/// The current device. Skips the program if there is none.
inline const gpu::device_info device = [] {
  gpu::device_info found;
  if (const gpu::status s = gpu::current_device(found); !s.ok()) {
    std::printf("skipped: %s\n", s.message().c_str());
    std::fflush(stdout);
    std::_Exit(77);
  }
  return found;
}();
inline const bool on_device = device.arch != gpu::arch::host;

/// True: `run` captures launches in a graph and replays it. Host mode has no graphs.
inline bool through_graphs = false;

/// Returns the status of launch(stream). The launch has completed.
template <class Launch>
gpu::status run(const Launch& launch) {
  if (!through_graphs || !on_device) return launch(gpu::stream{});
  gpu::stream stream;
  gpu::graph graph;
  expect(gpu::synchronize());
  expect(gpu::create(stream));
  expect(gpu::begin_capture(stream));
  const gpu::status s = launch(stream);
  expect(gpu::end_capture(stream, graph));
  expect(gpu::replay(graph, stream));
  expect(gpu::synchronize(stream));
  expect(gpu::destroy(graph));
  expect(gpu::destroy(stream));
  return s;
}

/// `count` elements of device memory between guards, `skew` elements after a multiple of 256 bytes.
template <class T>
class device_array {
 public:
  static constexpr std::size_t guard = 1024;
  static constexpr std::uint8_t poison = 0xA5;

  explicit device_array(std::size_t count, std::size_t skew = 0)
      : first_(guard + skew * sizeof(T)), bytes_(count * sizeof(T)), total_(first_ + bytes_ + guard) {
    expect(gpu::allocate(base_, total_));
    expect(gpu::fill(base_, poison, total_));
  }
  explicit device_array(const std::vector<T>& from, std::size_t skew = 0) : device_array(from.size(), skew) {
    write(from);
  }
  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;
  ~device_array() { (void)gpu::release(base_); }

  void write(const std::vector<T>& from) const {
    gpu_test::expect(gpu::upload(data(), from.data(), bytes_));
    expect(gpu::synchronize());
  }
  T* data() const { return reinterpret_cast<T*>(base_ + first_); }
  std::vector<T> read() const {
    std::vector<T> to(bytes_ / sizeof(T));
    fetch(to.data(), data(), bytes_);
    return to;
  }
  /// True if the memory around the array is still poisoned.
  bool guards_hold() const {
    std::vector<unsigned char> all(total_);
    fetch(all.data(), base_, total_);
    for (std::size_t i = 0; i < total_; ++i) {
      if (i == first_) i += bytes_;
      if (i < total_ && all[i] != poison) return false;
    }
    return true;
  }

 private:
  static void fetch(void* to, const void* from, std::size_t size) {
    expect(gpu::synchronize());
    expect(gpu::download(to, from, size));
    expect(gpu::synchronize());
  }

  std::size_t first_, bytes_, total_;
  unsigned char* base_ = nullptr;
};

/// Rows of `stride` numbers in runs of 32 along either axis. Each run has one kind: ordinary numbers of many
/// magnitudes, ties of E2M1 and FP8, zeros of both signs, NaN, Inf, subnormal or huge numbers.
template <class T>
std::vector<T> make_source(index_t rows, index_t stride, unsigned seed) {
  std::vector<T> x(static_cast<std::size_t>(rows * stride));
  std::mt19937 engine(seed);
  const auto word = [&] { return static_cast<std::uint32_t>(engine()); };
  std::normal_distribution<float> normal;
  std::vector<int> kind_of_row_run(static_cast<std::size_t>(rows)), exponent(kind_of_row_run.size());
  for (index_t c = 0; c < stride; ++c) {
    for (index_t r = 0; r < rows; ++r) {
      int& kind = kind_of_row_run[static_cast<std::size_t>(r)];
      int& e = exponent[static_cast<std::size_t>(r)];
      if (c % 32 == 0) {
        kind = static_cast<int>(word() % 24);
        e = static_cast<int>(word() % 20) - 10;
      }
      // Bands of 32 rows have one kind, so that columns have whole blocks of it too.
      const int band = static_cast<int>((static_cast<unsigned>(r / 32) * 2654435761u + seed) % 37);
      const int k = band < 12 ? band : kind;
      float v = normal(engine) * pow2_fp32(e);
      switch (k) {
        case 0: v = 0.0f; break;
        case 1: v = word() % 2 == 0 ? 0.0f : -0.0f; break;
        case 2: v = word() % 8 == 0 ? fp32_from_bits(fp32_infinity_bits | (word() % 2) << 31) : v; break;
        case 3: v = word() % 8 == 0 ? fp32_from_bits(fp32_nan_bits | (word() % 2) << 31) : v; break;
        case 4: v = fp32_from_bits(fp32_nan_bits | (word() % 2) << 31); break;
        case 5: v = fp32_from_bits(word() & 0x807FFFFFu); break;                            // subnormal
        case 6: v = fp32_from_bits((word() & 0x83FFFFFFu) | 0x7C000000u); break;            // huge and Inf
        case 7: v = 0.25f * static_cast<float>(static_cast<int>(word() % 57) - 28); break;  // ties
        case 8: v = word() % 32 == 0 ? v : 0.0f; break;
        case 9: v *= word() % 4 == 0 ? 0x1p-13f : 1.0f; break;
        case 10: v = fp32_from_bits(word()); break;
        case 11: v = std::ldexp(v, 6 * e - 90); break;  // tiny: 2^-160 to 2^-26
        default: break;
      }
      if constexpr (std::is_same_v<T, float>) {
        x[static_cast<std::size_t>(r * stride + c)] = v;
      } else {
        x[static_cast<std::size_t>(r * stride + c)] = T(v, rounding::nearest_even, overflow::to_inf);
      }
    }
  }
  return x;
}

}  // namespace gpu_test
