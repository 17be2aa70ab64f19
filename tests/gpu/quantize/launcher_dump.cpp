// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What the launchers of gpu/ make of a source, as a file that rotoscale-validate reads.
//   launcher_dump CASE IN OUT   IN: safetensors with `x` (BF16, F32, F16); OUT gets x and what was written
//   launcher_dump --list        the cases
// Exit status: 1 for bad usage or files, 77 where a device's program finds no device.
#include <cstring>
#include <functional>
#include <string>

#include "gpu/api/quantize.hpp"
#include "gpu/api/quantize_fp8.hpp"
#include "gpu/api/quantize_state.hpp"
#include "rotoscale/io/safetensors.hpp"
#include "tests/gpu/device_memory.hpp"

namespace {

using namespace rotoscale;
using gpu_test::device_array;
using gpu_test::expect;

using bytes_type = device_array<std::uint8_t>;

template <class T>
struct source {
  device_array<T> x;
  index_t m, n;
  matrix<const T> view() const { return row_major<const T>(x.data(), m, n); }
};

template <class T>
void add(io::safetensors_writer& to, const char* name, const char* dtype, std::vector<std::int64_t> shape,
         const device_array<T>& data) {
  const std::vector<T> read = data.read();
  to.add(name, dtype, std::move(shape), std::as_bytes(std::span(read)));
}

/// Codes and scales of one orientation, vectors × k.
struct orientation {
  placement code_order, scale_order;
  bytes_type codes, scales;

  orientation(block_format f, index_t vectors, index_t k, placement codes_in, placement scales_in)
      : code_order(codes_in),
        scale_order(scales_in),
        codes(static_cast<std::size_t>(code_layout(codes_in, f, vectors, k).size_bytes())),
        scales(static_cast<std::size_t>(scales_in == placement::row_major
                                            ? vectors / f.rows * (k / f.length)  // of squares once
                                            : scale_layout(scales_in, f, vectors, k).size_bytes())) {}
  gpu::quantized_output output(const block_options& o) const {
    gpu::quantized_output q{codes.data(), scales.data(), o};
    q.code_order = code_order;
    q.scale_order = scale_order;
    return q;
  }
  void add_to(io::safetensors_writer& to, const char* code_name, const char* scale_name) const {
    add(to, code_name, "U8", {static_cast<std::int64_t>(codes.read().size())}, codes);
    add(to, scale_name, "U8", {static_cast<std::int64_t>(scales.read().size())}, scales);
  }
};

/// Both orientations by one launch.
template <class T>
void quantize(const source<T>& s, io::safetensors_writer& to, block_format f, const block_options& o,
              placement code_order = placement::row_major, placement scale_order = placement::row_major) {
  const orientation rows(f, s.m, s.n, code_order, scale_order), columns(f, s.n, s.m, code_order, scale_order);
  expect(gpu::quantize(f, s.view(), rows.output(o), columns.output(o), {}));
  rows.add_to(to, "codes", "scales");
  columns.add_to(to, "codes_t", "scales_t");
}

template <class T>
void cast_fp8(const source<T>& s, io::safetensors_writer& to, const format& element) {
  const auto count = static_cast<std::size_t>(s.m * s.n);
  const bytes_type rows(count), columns(count);
  const device_array<float> scale(std::vector<float>{24.0f}), amax(std::vector<float>{0.0f});
  gpu::fp8_options o;
  o.element = element;
  gpu::fp8_output out{rows.data(), columns.data()};
  out.amax = amax.data();
  expect(gpu::cast_transpose_fp8(o, s.view(), scale.data(), out, {}));
  add(to, "codes", "U8", {s.m, s.n}, rows);
  add(to, "codes_t", "U8", {s.n, s.m}, columns);
  add(to, "factor", "F32", {1}, scale);
  add(to, "amax", "F32", {1}, amax);
}

/// Rows alone: a tensor's factor is made of its own amax.
template <class T>
void quantize_nvfp4(const source<T>& s, io::safetensors_writer& to) {
  if constexpr (std::is_same_v<T, fp16>) throw io::error("x", "no launcher makes a factor of FP16");
  if constexpr (!std::is_same_v<T, fp16>) {
    const orientation rows(nvfp4, s.m, s.n, placement::row_major, placement::row_major);
    const device_array<block_options> drawn(std::vector<block_options>{presets::nvidia});
    const device_array<std::uint32_t> amax(1);
    const device_array<float> factor(1);
    expect(gpu::draw_encode_factor(nvfp4, presets::nvidia, s.view(), drawn.data(), amax.data(), factor.data(), {}));
    gpu::quantized_output q = rows.output(presets::nvidia);
    q.drawn = drawn.data();
    expect(gpu::quantize(nvfp4, s.view(), q, {}, {}));
    rows.add_to(to, "codes", "scales");
    add(to, "amax", "F32", {1}, amax);
    add(to, "factor", "F32", {1}, device_array<float>(std::vector<float>{drawn.read()[0].encode_factor}));
  }
}

template <class T>
struct dump_case {
  const char* name;
  std::function<void(const source<T>&, io::safetensors_writer&)> make;
};
template <class T>
const dump_case<T> cases[] = {
    {"mxfp4_h16", [](const source<T>& s, auto& to) { quantize(s, to, mxfp4, presets::te_rocm); }},
    {"mxfp4_h16_aiter",
     [](const source<T>& s, auto& to) {
       quantize(s, to, mxfp4, presets::te_rocm, placement::aiter_data_16x16, placement::aiter_scale);
     }},
    {"mxfp4_stochastic",
     [](const source<T>& s, auto& to) {
       block_options o = presets::primus;
       o.rounding = rounding::stochastic;
       o.random = {7, 3};
       quantize(s, to, mxfp4, o);
     }},
    {"mxfp8_e4m3", [](const source<T>& s, auto& to) { quantize(s, to, mxfp8_e4m3, presets::primus); }},
    {"mxfp8_e5m2_nvidia",
     [](const source<T>& s, auto& to) {
       quantize(s, to, mxfp8_e5m2, presets::nvidia, placement::row_major, placement::nvidia_scale_128x4);
     }},
    {"mxfp4_square", [](const source<T>& s, auto& to) { quantize(s, to, square_blocks(mxfp4), presets::primus); }},
    {"mxfp4_h32",
     [](const source<T>& s, auto& to) {
       block_options o = presets::te_rocm;
       o.rotation.points = 32;
       quantize(s, to, mxfp4, o);
     }},
    {"mxfp6_e2m3", [](const source<T>& s, auto& to) { quantize(s, to, mxfp6_e2m3, presets::ocp); }},
    {"nvfp4", quantize_nvfp4<T>},
    {"fp8_e4m3", [](const source<T>& s, auto& to) { cast_fp8(s, to, formats::e4m3); }},
    {"fp8_e5m2", [](const source<T>& s, auto& to) { cast_fp8(s, to, formats::e5m2); }},
};

template <class T>
void run_case(const std::string& name, const io::safetensors_file& file, const io::tensor_info& info, const char* out) {
  const auto bytes = file.bytes(info);
  std::vector<T> x(bytes.size() / sizeof(T));
  std::memcpy(static_cast<void*>(x.data()), bytes.data(), bytes.size());
  const source<T> s{device_array<T>(x), info.shape[0], info.shape[1]};
  io::safetensors_writer writer;
  writer.add("x", info.dtype, info.shape, bytes);
  for (const dump_case<T>& c : cases<T>) {
    if (name != c.name) continue;
    c.make(s, writer);
    writer.write(out);
    return;
  }
  throw io::error(name, "is no case");
}

void run(const std::string& name, const char* in, const char* out) {
  const auto file = io::safetensors_file::open(in);
  const io::tensor_info* const x = file.find("x");
  if (x == nullptr || x->shape.size() != 2) throw io::error(in, "has no matrix x");
  if (x->dtype == "BF16") return run_case<bf16>(name, file, *x, out);
  if (x->dtype == "F16") return run_case<fp16>(name, file, *x, out);
  if (x->dtype == "F32") return run_case<float>(name, file, *x, out);
  throw io::error(in, "x is none of BF16, F16, F32");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--list") {
    for (const auto& c : cases<bf16>) std::puts(c.name);
    return 0;
  }
  if (argc != 4) {
    std::fputs("usage: launcher_dump CASE IN OUT | --list\n", stderr);
    return 1;
  }
  try {
    run(argv[1], argv[2], argv[3]);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "launcher_dump: %s\n", e.what());
    return 1;
  }
}
