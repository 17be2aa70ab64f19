// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Kernels of gpu/nn as a share of the device's copy rate in the same run. Medians of launches, random data. Bytes count
// each input and each output once. The first share refers to a copy of 512 MiB. The second refers to a copy of as many
// bytes, which includes the fixed time of a launch.
// Usage: gpu-layers [REPEATS]
// exit codes: 0 measured, 1 a launch or the runtime failed, 77 no device
#include "gpu/api/nn.hpp"
#include "gpu/api/quantize.hpp"
#include "timing.hpp"

using namespace gpu_bench;
namespace op = nn::op;

namespace {

int repeats = 0;

/// Rates of the device's copies: of 512 MiB, and of fewer bytes.
class copies {
 public:
  static constexpr index_t largest = index_t{1} << 29;
  copies() {
    fill<<<4096, 256>>>(reinterpret_cast<std::uint16_t*>(from_.data), largest / 2);
    expect(hipGetLastError());
    expect(hipDeviceSynchronize());
    const copy_times times = time_copy(from_.data, to_.data, largest, repeats);
    rate_ = 2.0 * static_cast<double>(largest) / times.best();
    std::printf("copy of 512 MiB: %.1f us by a kernel, %.1f us by the runtime, %.0f GB/s\n", times.by_kernel,
                times.by_runtime, rate_ / 1e3);
    std::printf("%-32s %-34s %12s %11s %9s %9s\n", "", "", "", "", "of 512 MiB", "of as much");
  }
  double rate() const { return rate_; }  ///< bytes a microsecond
  /// Rate of a copy that moves `bytes`, or of the largest copy if they are more.
  double rate_of(double bytes) {
    const auto size = static_cast<index_t>(bytes / 2) / 16 * 16;
    if (size >= largest) return rate_;
    if (size != last_size_) {
      last_size_ = size;
      last_rate_ = 2.0 * static_cast<double>(size) / time_copy(from_.data, to_.data, size, repeats).best();
    }
    return last_rate_;
  }

 private:
  device_bytes from_{largest}, to_{largest};
  double rate_ = 0, last_rate_ = 0;
  index_t last_size_ = 0;
};
copies* roof = nullptr;

template <class Launch>
void measure(const char* what, const char* shape, double bytes, const Launch& launch) {
  const double us = median_us(repeats, [&] { expect(launch()); }), rate = bytes / us;
  std::printf("%-32s %-34s %9.1f us %6.0f GB/s %7.1f %% %7.1f %%\n", what, shape, us, rate / 1e3,
              100.0 * rate / roof->rate(), 100.0 * rate / roof->rate_of(bytes));
}

__global__ void to_floats(const std::uint16_t* from, float* to, index_t count) {
  for (index_t i = gpu::block_index().x * index_t{256} + gpu::thread_index().x; i < count;
       i += gpu::grid_size().x * index_t{256}) {
    to[i] = fp32_from_bits(static_cast<std::uint32_t>(from[i]) << 16);
  }
}

/// `count` random numbers of `type`.
struct numbers : device_bytes {
  numbers(nn::dtype type, index_t count) : device_bytes(count * nn::size_of(type)) {
    const device_bytes narrow(2 * count);
    auto* const bf16s = reinterpret_cast<std::uint16_t*>(type == nn::dtype::bf16 ? data : narrow.data);
    fill<<<4096, 256>>>(bf16s, count);
    if (type == nn::dtype::fp32) to_floats<<<4096, 256>>>(bf16s, reinterpret_cast<float*>(data), count);
    expect(hipGetLastError());
    expect(hipDeviceSynchronize());
  }
  float* floats() const { return reinterpret_cast<float*>(data); }
};

/// MXFP4 with H16 in both orientations, as in training.
struct operands {
  operands(index_t rows, index_t cols)
      : codes{device_bytes(rows * cols / 2), device_bytes(rows * cols / 2)},
        scales{device_bytes(rows * cols / 32), device_bytes(rows * cols / 32)} {}
  gpu::quantized_output output(int which) const {
    gpu::quantized_output q{codes[which].data, scales[which].data, presets::te_rocm};
    q.options.rotation.points = 16;
    return q;
  }
  gpu::block_target target() const { return {mxfp4, output(0), output(1)}; }
  static constexpr double bytes_of_element = 2 * (0.5 + 1.0 / 32);
  device_bytes codes[2], scales[2];
};

std::string text(const char* format, index_t a, index_t b, nn::dtype type) {
  char line[64];
  std::snprintf(line, sizeof line, format, a, b, type == nn::dtype::bf16 ? "BF16" : "FP32");
  return line;
}

void norms(index_t rows, index_t cols, nn::dtype type) {
  const index_t n = rows * cols;
  const numbers x(type, n), branch(type, n), y(type, n), sum(type, n), gain(nn::dtype::fp32, cols);
  const numbers rstd(nn::dtype::fp32, rows), dgain(nn::dtype::fp32, cols);
  const auto view = [&](const numbers& t) { return nn::dense_tensor(t.data, type, {rows, cols}); };
  const std::string shape = text("%td x %td %s", rows, cols, type);
  const double element = static_cast<double>(n * nn::size_of(type));
  measure("add", shape.c_str(), 3 * element, [&] {
    return gpu::launch<op::add>({}, {view(x), view(branch)}, {view(sum)});
  });
  measure("RMSNorm", shape.c_str(), 2 * element, [&] {
    return gpu::launch<op::norm_forward>({}, {view(x), gain.floats(), 1e-5f}, {view(y), rstd.floats()});
  });
  const op::residual_norm::in in{view(x), view(branch), gain.floats(), 1e-5f, nullptr};
  measure("residual + RMSNorm", shape.c_str(), 4 * element, [&] {
    return gpu::launch<op::residual_norm>({}, in, {view(sum), view(y), rstd.floats(), {}});
  });
  const operands q(rows, cols);
  const double blocks = operands::bytes_of_element * static_cast<double>(n);
  measure("residual + RMSNorm to MXFP4", shape.c_str(), 3 * element + blocks, [&] {
    return gpu::launch_quantized<op::residual_norm>({}, in, {view(sum), {}, rstd.floats(), {}}, q.target());
  });
  const op::norm_backward::in from{view(branch), view(x), gain.floats(), rstd.floats()};
  const op::norm_backward::out to{view(y), dgain.floats()};
  const std::size_t bytes = gpu::workspace_bytes<op::norm_backward>(from, to);
  const device_bytes room(static_cast<index_t>(bytes));
  measure("RMSNorm backward with gain", shape.c_str(), 4 * element, [&] {
    return gpu::launch<op::norm_backward>({{}, room.data, bytes}, from, to);
  });
}

void swiglu(index_t rows, index_t cols, nn::dtype type) {
  const numbers gate_up(type, 2 * rows * cols), h(type, rows * cols), d(type, 2 * rows * cols);
  const auto wide = [&](const numbers& t) { return nn::dense_tensor(t.data, type, {rows, 2 * cols}); };
  const auto narrow = nn::dense_tensor(h.data, type, {rows, cols});
  const std::string shape = text("%td x %td %s", rows, cols, type);
  const double element = static_cast<double>(rows * cols * nn::size_of(type));
  constexpr nn::activation swiglu = nn::activation::swiglu;
  measure("SwiGLU", shape.c_str(), 3 * element, [&] {
    return gpu::launch<op::activation_forward>({}, {wide(gate_up), swiglu}, {narrow});
  });
  measure("SwiGLU backward", shape.c_str(), 5 * element, [&] {
    return gpu::launch<op::activation_backward>({}, {narrow, wide(gate_up), swiglu}, {wide(d)});
  });
  const operands q(rows, 2 * cols);
  const double blocks = operands::bytes_of_element * static_cast<double>(rows * cols);
  measure("SwiGLU to MXFP4", shape.c_str(), 2 * element + blocks, [&] {
    return gpu::launch_quantized<op::activation_quantize>({}, {wide(gate_up), swiglu, nullptr}, {}, q.target());
  });
  measure("SwiGLU backward to MXFP4", shape.c_str(), 3 * element + 2 * blocks, [&] {
    return gpu::launch_quantized<op::activation_backward_quantize>({}, {narrow, wide(gate_up), swiglu, nullptr}, {},
                                                                   q.target());
  });
}

void rope(index_t seq, index_t head_dim, nn::dtype type) {
  constexpr index_t batch = 4, heads = 32, kv_heads = 8;
  const index_t width = (heads + 2 * kv_heads) * head_dim, rows = batch * seq;
  const numbers qkv(type, rows * width);
  const numbers cosine(nn::dtype::fp32, seq * head_dim / 2), sine(nn::dtype::fp32, seq * head_dim / 2);
  const auto all = nn::dense_tensor(qkv.data, type, {rows, width});
  const auto q = nn::as_heads(all.part(1, 0, heads * head_dim), batch, heads, head_dim);
  const auto k = nn::as_heads(all.part(1, heads * head_dim, kv_heads * head_dim), batch, kv_heads, head_dim);
  const std::string shape = text("4 x %td, 32 + 8 heads of %td %s", seq, head_dim, type);
  const double bytes = 2.0 * static_cast<double>(rows * (heads + kv_heads) * head_dim * nn::size_of(type));
  measure("RoPE of q and k", shape.c_str(), bytes, [&] {
    return gpu::launch<op::rope>({}, {cosine.floats(), sine.floats(), false}, {q, k});
  });
}

/// Tokens below `vocabulary`, with small ids more frequent, as in text.
struct tokens : device_bytes {
  tokens(index_t count, index_t vocabulary) : device_bytes(4 * count) {
    std::vector<std::int32_t> t;
    for (index_t i = 0; i < count; ++i) {
      const double u = static_cast<double>(random_stream{3, 4}.word(static_cast<std::uint64_t>(i))) * 0x1p-32;
      t.push_back(static_cast<std::int32_t>(static_cast<double>(vocabulary) * u * u * u * u));
    }
    expect(hipMemcpy(data, t.data(), t.size() * 4, hipMemcpyHostToDevice));
  }
  nn::token_source source() const { return {reinterpret_cast<const std::int32_t*>(data), 0}; }
};

void loss(index_t rows, index_t vocabulary) {
  const numbers logits(nn::dtype::fp32, rows * vocabulary), losses(nn::dtype::fp32, rows);
  const tokens targets(rows, vocabulary);
  const device_bytes state(sizeof(nn::step_state));
  auto* const s = reinterpret_cast<nn::step_state*>(state.data);
  nn::step_state host;
  host.gradient_scale = 1.0f / static_cast<float>(rows);
  expect(hipMemcpy(s, &host, sizeof host, hipMemcpyHostToDevice));
  const op::cross_entropy::out out{nn::dense_tensor(logits.data, nn::dtype::fp32, {rows, vocabulary}), losses.floats()};
  const std::size_t bytes = gpu::workspace_bytes<op::cross_entropy>({targets.source(), 0, true, s}, out);
  const device_bytes room(static_cast<index_t>(bytes));
  const gpu::device_call call{{}, room.data, bytes};
  const std::string shape = text("%td x %td %s", rows, vocabulary, nn::dtype::fp32);
  const double element = 4.0 * static_cast<double>(rows * vocabulary);
  for (const bool gradients : {false, true}) {
    measure(gradients ? "loss and gradient" : "loss", shape.c_str(), (gradients ? 2 : 1) * element, [&] {
      return gpu::launch<op::cross_entropy>(call, {targets.source(), 0, gradients, s}, out);
    });
  }
  const device_bytes narrow(2 * rows * vocabulary);
  measure("loss and BF16 gradient", shape.c_str(), 1.5 * element, [&] {
    return gpu::cross_entropy(call, {targets.source(), 0, true, s}, out, reinterpret_cast<bf16*>(narrow.data));
  });
}

void embedding(index_t rows, index_t cols, index_t vocabulary) {
  const numbers table(nn::dtype::fp32, vocabulary * cols), y(nn::dtype::bf16, rows * cols);
  const tokens ids(rows, vocabulary);
  const device_bytes state(sizeof(nn::step_state));
  expect(hipMemset(state.data, 0, sizeof(nn::step_state)));
  const auto* const s = reinterpret_cast<const nn::step_state*>(state.data);
  const auto t = nn::dense_tensor(table.data, nn::dtype::fp32, {vocabulary, cols});
  const auto v = nn::dense_tensor(y.data, nn::dtype::bf16, {rows, cols});
  const op::embedding_backward::in from{ids.source(), v, s};
  const std::size_t bytes = gpu::workspace_bytes<op::embedding_backward>(from, {t});
  const device_bytes room(static_cast<index_t>(bytes));
  const std::string shape = text("%td tokens x %td %s", rows, cols, nn::dtype::bf16);
  const double element = static_cast<double>(rows * cols);
  measure("embedding", shape.c_str(), 6 * element, [&] {
    return gpu::launch<op::embedding_forward>({}, {ids.source(), t, s}, {v});
  });
  measure("embedding backward", shape.c_str(), 2 * element, [&] {
    return gpu::launch<op::embedding_backward>({{}, room.data, bytes}, from, {t});
  });
}

void optimizer(index_t size) {
  const numbers weight(nn::dtype::fp32, size), gradient(nn::dtype::fp32, size);
  const device_bytes m(4 * size), v(4 * size), state(sizeof(nn::step_state));
  expect(hipMemset(m.data, 0, static_cast<std::size_t>(4 * size)));
  expect(hipMemset(v.data, 0, static_cast<std::size_t>(4 * size)));
  nn::step_state host;
  host.inputs.learning_rate = 1e-5f;
  expect(hipMemcpy(state.data, &host, sizeof host, hipMemcpyHostToDevice));
  std::vector<nn::parameter_arena::segment> segments;  // 200 parameters
  const index_t each = size / 200 / 4096 * 4096;
  for (index_t i = 0; i < 200; ++i) segments.push_back({i * each, each, i % 2 == 0});
  const device_bytes copy(static_cast<index_t>(segments.size() * sizeof segments[0]));
  expect(hipMemcpy(copy.data, segments.data(), segments.size() * sizeof segments[0], hipMemcpyHostToDevice));
  nn::parameter_arena arena;
  arena.weight = weight.floats();
  arena.gradient = gradient.floats();
  arena.m = reinterpret_cast<float*>(m.data);
  arena.v = reinterpret_cast<float*>(v.data);
  arena.size = size;
  arena.segments = segments;
  arena.segments_in_backend = reinterpret_cast<const nn::parameter_arena::segment*>(copy.data);
  auto* const s = reinterpret_cast<nn::step_state*>(state.data);
  const nn::optimizer_config config{0.9f, 0.95f, 1e-8f, 0.1f, 1.0};
  const index_t chunks = (size + nn::parameter_alignment - 1) / nn::parameter_alignment;
  const device_bytes room(chunks * index_t{sizeof(double)});
  auto* const squares = reinterpret_cast<double*>(room.data);
  char shape[64];
  std::snprintf(shape, sizeof shape, "%.0f M parameters", static_cast<double>(size) * 1e-6);
  measure("gradient norm", shape, 4.0 * static_cast<double>(size), [&] {
    const gpu::status c = gpu::launch<op::square_chunks>({}, {arena.gradient, size}, {squares});
    return c.ok() ? gpu::launch<op::gradient_norm>({}, {arena.gradient, size, chunks, config}, {squares, s}) : c;
  });
  const double touched = static_cast<double>(segments.back().first + segments.back().count);
  measure("AdamW", shape, 28.0 * touched, [&] { return gpu::launch<op::adamw>({}, {config, s}, {arena}); });
}

}  // namespace

int main(int argc, char** argv) {
  repeats = begin(argc, argv);
  copies device_copies;
  roof = &device_copies;
  for (const nn::dtype type : {nn::dtype::bf16, nn::dtype::fp32}) {
    norms(16384, 4096, type);
    norms(16384, 2048, type);
    norms(32768, 768, type);
    swiglu(16384, 8192, type);
    rope(4096, 128, type);
    rope(4096, 64, type);
  }
  loss(2048, 128256);
  loss(2048, 50304);
  loss(8192, 50304);
  loss(16384, 4096);
  embedding(16384, 2048, 128256);
  optimizer(index_t{124} * 1000 * 1000 / 4096 * 4096);
  optimizer(index_t{1236} * 1000 * 1000 / 4096 * 4096);
}
