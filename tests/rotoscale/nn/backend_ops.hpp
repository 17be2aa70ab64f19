// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Every backend operation as cases for any backend: inputs from a seed, results as bytes. A backend must give the CPU's
// bytes, and a fused operation its composition's.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "backend_memory.hpp"
#include "rotoscale/philox.hpp"

namespace rotoscale::testing {

/// Memory of one case, and its result bytes.
class op_scene {
 public:
  explicit op_scene(nn::backend& ops) : ops_(&ops), room_(ops, 6 << 20) {}

  nn::backend& ops() const { return *ops_; }
  static constexpr nn::queue queue{};

  /// Width for special numbers: every 97th has arbitrary bits (NaN, Inf, zeros of both signs, subnormal, huge).
  static constexpr int special = -1;
  /// Numbers of many magnitudes, some zero. `width` 0: numbers in (-1, 1).
  static float number(std::uint64_t i, std::uint64_t seed, int width) {
    return number_of(random_stream{seed, 1}.word(i), width);
  }
  static float number_of(std::uint32_t word, int width) {
    if (width == special) {
      constexpr std::uint32_t some[] = {0x7FC00000u, 0xFF800000u, 0x7F800000u, 0x80000000u, 0x00000001u, 0x7F7FFFFFu};
      if (word % 97 == 0) return fp32_from_bits(word / 97 % 2 == 0 ? some[word / 194 % std::size(some)] : word);
      width = 0;
    }
    if (width != 0 && word % 97 == 0) return 0.0f;
    const float x = (static_cast<float>(word >> 8) - 0x1p23f) * 0x1p-23f;
    // A product with a power of two, because std::ldexp takes a quarter of the tests' time.
    return width == 0 ? x : x * pow2_fp32(static_cast<int>(word & 0xFF) % (2 * width + 1) - width);
  }
  nn::tensor_view tensor(nn::dtype type, index_t rows, index_t cols, std::uint64_t seed, int width = 0) {
    std::vector<float> x(static_cast<std::size_t>(rows * cols));
    for (std::size_t i = 0; i < x.size(); i += 4) {  // a Philox block has four words
      const philox_block words = random_stream{seed, 1}.block(i / 4);
      for (std::size_t j = i; j < std::min(i + 4, x.size()); ++j) x[j] = number_of(words.word[j - i], width);
    }
    if (type == nn::dtype::fp32) return nn::dense_tensor(keep(x), type, {rows, cols});
    std::vector<bf16> narrow;
    for (const float v : x) narrow.push_back(bf16(v));
    return nn::dense_tensor(keep(narrow), type, {rows, cols});
  }
  float* floats(index_t n, std::uint64_t seed, int width = 0) {
    return static_cast<float*>(tensor(nn::dtype::fp32, 1, n, seed, width).data);
  }
  const std::int32_t* tokens(index_t n, index_t vocabulary, std::uint64_t seed, bool masked) {
    std::vector<std::int32_t> t;
    for (index_t i = 0; i < n; ++i) {
      const std::uint32_t word = random_stream{seed, 2}.word(static_cast<std::uint64_t>(i));
      t.push_back(masked && word % 5 == 0 ? nn::ignored_target
                                          : static_cast<std::int32_t>(word % static_cast<std::uint32_t>(vocabulary)));
    }
    return keep(t);
  }
  nn::step_state* state() {
    nn::step_state s;
    s.inputs = {11, 5, 0.01f, 0.4f, 0.3f, 1, 2, 0};
    s.micro_batch = 0;
    s.valid_tokens = 100;
    s.gradient_scale = 0.01f;
    return keep(std::vector<nn::step_state>{s});
  }
  nn::operand_set* operands(const nn::operand_request& r, nn::const_tensor_view source) {
    made_.emplace_back(*ops_, r, source);
    return made_.back().set.get();
  }
  /// Bytes of the operands made `back` before the last, to copy to operands of an equal request.
  const device_array<std::byte>& bytes_of(std::size_t back) const { return made_[made_.size() - 1 - back].memory; }
  template <class T>
  T* keep(const std::vector<T>& values) {
    const auto n = static_cast<index_t>(values.size() * sizeof(T));
    memory_.emplace_back(*ops_, n);
    ops_->upload(queue, memory_.back().data(), values.data(), static_cast<std::size_t>(n));
    return reinterpret_cast<T*>(memory_.back().data());
  }

  /// Records n results, with NaN made canonical.
  template <class T>
  void result(const T* data, index_t n) {
    std::vector<T> host(static_cast<std::size_t>(n));
    ops_->download(queue, host.data(), data, host.size() * sizeof(T));
    ops_->synchronize(queue);
    for (T& x : host) canonical_nan_of(x);
    const auto* const first = reinterpret_cast<const std::byte*>(host.data());
    bytes_.insert(bytes_.end(), first, first + host.size() * sizeof(T));
  }
  void result(nn::const_tensor_view dense) {
    if (dense.type == nn::dtype::fp32) return result(static_cast<const float*>(dense.data), dense.size());
    result(static_cast<const bf16*>(dense.data), dense.size());
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  static void canonical_nan_of(float& x) { x = canonical_nan(x); }
  static void canonical_nan_of(double& x) { x = std::isnan(x) ? std::nan("") : x; }
  static void canonical_nan_of(bf16& x) {
    if (x.is_nan()) x = bf16::from_bits(0x7FC0);
  }
  static void canonical_nan_of(std::byte&) {}
  static void canonical_nan_of(nn::operand_statistics&) {}  // sums exclude NaN and Inf
  static void canonical_nan_of(nn::comparison_statistics&) {}
  static void canonical_nan_of(nn::step_state& s) {
    for (double* const x : {&s.loss_sum, &s.squares, &s.gradient_norm}) canonical_nan_of(*x);
    canonical_nan_of(s.clip_factor);
    for (double& x : s.losses) canonical_nan_of(x);
  }

  nn::backend* ops_;
  queue_workspace room_;
  std::vector<device_array<std::byte>> memory_;
  std::vector<made_operands> made_;
  std::vector<std::byte> bytes_;
};

/// `prepare` sets up a scene and returns the operation, which may run several times. `composed`: the composition of a
/// fused operation. `collect` takes the results.
struct op_case {
  std::string name;
  bool coarse = false;
  struct prepared {
    std::function<void()> run, collect;
  };
  std::function<prepared(op_scene&, bool composed)> prepare;
  /// True if the backend supports the case's contract. Empty: every backend must.
  std::function<bool(const nn::backend&)> agreed = {};
  bool quantizes_nan = false;  ///< the case quantizes NaN from arithmetic

  bool runs_on(const nn::backend& ops) const { return !agreed || agreed(ops); }
};

template <class Op>
void run_fused(op_scene& c, const typename Op::in& i, const typename Op::out& o);
#define ROTOSCALE_RUN_FUSED(name)                                                                            \
  template <>                                                                                                \
  inline void run_fused<nn::op::name>(op_scene & c, const nn::op::name::in& i, const nn::op::name::out& o) { \
    c.ops().name(c.queue, i, o);                                                                             \
  }
ROTOSCALE_RUN_FUSED(residual_norm)
ROTOSCALE_RUN_FUSED(activation_quantize)
ROTOSCALE_RUN_FUSED(activation_backward_quantize)
ROTOSCALE_RUN_FUSED(cross_entropy_quantize)
#undef ROTOSCALE_RUN_FUSED
/// Runs a fused operation as the backend does, or its composition.
template <class Op>
void run_as(op_scene& c, bool composed, const typename Op::in& i, const typename Op::out& o) {
  composed ? Op::compose(c.ops(), c.queue, i, o) : run_fused<Op>(c, i, o);
}

/// Returns a case's result bytes on a backend.
inline std::vector<std::byte> bytes_of(const op_case& c, nn::backend& ops, bool composed = false) {
  op_scene scene(ops);
  const op_case::prepared p = c.prepare(scene, composed);
  p.run();
  ops.synchronize(op_scene::queue);
  p.collect();
  return scene.bytes();
}

}  // namespace rotoscale::testing
