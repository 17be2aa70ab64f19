// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What the launchers of gpu/ make of a source, as a file that rotoscale-validate reads.
//   launcher_dump CASE IN OUT   IN: a safetensors file with `x` in BF16; OUT gets x and what the launcher wrote
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

struct source {
  device_array<bf16> x;
  index_t m, n;
  matrix<const bf16> view() const { return row_major<const bf16>(x.data(), m, n); }
};

template <class T>
void add(io::safetensors_writer& to, const char* name, const char* dtype, std::vector<std::int64_t> shape,
         const device_array<T>& data) {
  const std::vector<T> read = data.read();
  to.add(name, dtype, std::move(shape), std::as_bytes(std::span(read)));
}

/// Codes and scales of one orientation, vectors × k.
struct orientation {
  block_format f;
  index_t vectors, k;
  placement code_order, scale_order;
  bytes_type codes, scales;

  orientation(block_format format, index_t vectors_, index_t k_, placement codes_in, placement scales_in)
      : f(format),
        vectors(vectors_),
        k(k_),
        code_order(codes_in),
        scale_order(scales_in),
        codes(static_cast<std::size_t>(code_layout(codes_in, format, vectors_, k_).size_bytes())),
        scales(static_cast<std::size_t>(scale_layout(scales_in, format, vectors_, k_).size_bytes())) {}
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
void quantize(const source& s, io::safetensors_writer& to, block_format f, const block_options& o,
              placement code_order = placement::row_major, placement scale_order = placement::row_major) {
  const orientation rows(f, s.m, s.n, code_order, scale_order), columns(f, s.n, s.m, code_order, scale_order);
  expect(gpu::quantize(f, s.view(), rows.output(o), columns.output(o), {}));
  rows.add_to(to, "codes", "scales");
  columns.add_to(to, "codes_t", "scales_t");
}

void cast_fp8(const source& s, io::safetensors_writer& to, const format& element) {
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
void quantize_nvfp4(const source& s, io::safetensors_writer& to) {
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
}

struct dump_case {
  const char* name;
  std::function<void(const source&, io::safetensors_writer&)> make;
};
const dump_case cases[] = {
    {"mxfp4_h16", [](const source& s, auto& to) { quantize(s, to, mxfp4, presets::te_rocm); }},
    {"mxfp4_h16_aiter",
     [](const source& s, auto& to) {
       quantize(s, to, mxfp4, presets::te_rocm, placement::aiter_data_16x16, placement::aiter_scale);
     }},
    {"mxfp4_stochastic",
     [](const source& s, auto& to) {
       block_options o = presets::primus;
       o.rounding = rounding::stochastic;
       o.random = {7, 3};
       quantize(s, to, mxfp4, o);
     }},
    {"mxfp8_e4m3", [](const source& s, auto& to) { quantize(s, to, mxfp8_e4m3, presets::primus); }},
    {"mxfp8_e5m2_nvidia",
     [](const source& s, auto& to) {
       quantize(s, to, mxfp8_e5m2, presets::nvidia, placement::row_major, placement::nvidia_scale_128x4);
     }},
    {"nvfp4", quantize_nvfp4},
    {"fp8_e4m3", [](const source& s, auto& to) { cast_fp8(s, to, formats::e4m3); }},
    {"fp8_e5m2", [](const source& s, auto& to) { cast_fp8(s, to, formats::e5m2); }},
};

int run(const std::string& name, const char* in, const char* out) {
  for (const dump_case& c : cases) {
    if (name != c.name) continue;
    const auto file = io::safetensors_file::open(in);
    const io::tensor_info* const info = file.find("x");
    if (info == nullptr || info->dtype != "BF16" || info->shape.size() != 2)
      throw io::error(in, "has no matrix x of BF16");
    const auto bytes = file.bytes(*info);
    std::vector<bf16> x(bytes.size() / 2);
    std::memcpy(static_cast<void*>(x.data()), bytes.data(), bytes.size());
    const source s{device_array<bf16>(x), info->shape[0], info->shape[1]};
    io::safetensors_writer writer;
    writer.add("x", "BF16", info->shape, bytes);
    c.make(s, writer);
    writer.write(out);
    return 0;
  }
  std::fprintf(stderr, "launcher_dump: '%s' is no case\n", name.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--list") {
    for (const dump_case& c : cases) std::puts(c.name);
    return 0;
  }
  if (argc != 4) {
    std::fputs("usage: launcher_dump CASE IN OUT | --list\n", stderr);
    return 1;
  }
  try {
    return run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "launcher_dump: %s\n", e.what());
    return 1;
  }
}
