// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Refusals of every launcher: each call must return the error_code with a message and leave its outputs untouched.
//
// - `no device`: all devices are hidden from the runtime.
// - `other architecture`: the build has no code for this device.
// - `null stream`: another stream is captured on a device.
// The latter two exit with 77 (skipped) without a device.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <source_location>
#include <string>
#include <vector>

#include "gpu/api/attention.hpp"
#include "gpu/api/dequantize.hpp"
#include "gpu/api/gemm.hpp"
#include "gpu/api/gemm_library.hpp"
#include "gpu/api/nn.hpp"
#include "gpu/api/quantize.hpp"
#include "gpu/api/quantize_fp8.hpp"
#include "gpu/api/quantize_state.hpp"
#include "gpu/api/statistics.hpp"

namespace {

using namespace rotoscale;
using namespace rotoscale::gpu;

constexpr int extent = 256;
constexpr std::uint8_t poison = 0xA5;

/// A valid argument of any kind: poisoned, larger than any output of extent × extent.
struct alignas(256) buffer {
  std::vector<std::uint8_t> memory = std::vector<std::uint8_t>(4 * extent * extent + 256, poison);
  std::uint8_t* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + (256 - address % 256) % 256;
  }
  bool untouched() const { return memory == std::vector<std::uint8_t>(memory.size(), poison); }
};

struct buffers {
  buffer in, codes, scales, more_codes, more_scales, out, workspace;
  void require_untouched() const {
    for (const buffer* b : {&in, &codes, &scales, &more_codes, &more_scales, &out, &workspace}) {
      REQUIRE(b->untouched());
    }
  }
};

/// The expected error, and a check that buffers are untouched.
struct refusal {
  buffers& b;
  error_code expected;
  void operator()(const status& s, const std::source_location& at = std::source_location::current()) const {
    CAPTURE(at.line());
    CAPTURE(s.message());
    CHECK(s.code == expected);
    CHECK(s.reason[0] != '\0');
    if (expected == error_code::bad_option) CHECK(std::string(s.argument) == "stream");
    b.require_untouched();
  }
};

template <class T>
void refuse_quantizers(const refusal& check) {
  buffers& b = check.b;
  const auto source = row_major(reinterpret_cast<const T*>(b.in.data()), extent, extent);
  const quantized_output rows{b.codes.data(), b.scales.data(), presets::te_rocm};
  const quantized_output columns{b.more_codes.data(), b.more_scales.data(), presets::te_rocm};
  check(quantize(mxfp4, source, rows, columns, {}));
  for (const block_format f : {mxfp4, mxfp8_e4m3, mxfp8_e5m2, square_blocks(mxfp4)}) {
    check(quantize(f, source, rows, {}, {}));
    check(quantize(f, source, {}, columns, {}));
    const gemm_operand q = make_operand(f, rows, extent, extent);
    for (const block_axis axis : {block_axis::row, block_axis::column}) {
      check(dequantize(q, axis, row_major(reinterpret_cast<T*>(b.out.data()), extent, extent), {}));
    }
  }
  quantized_output factored{b.codes.data(), b.scales.data(), {}};
  check(quantize(nvfp4, source, factored, {}, {}));
  factored.amax = reinterpret_cast<std::uint32_t*>(b.out.data());
  factored.factor = reinterpret_cast<float*>(b.scales.data());
  check(measure_amax(nvfp4, source, factored, {}, {}));
  const auto* scale = reinterpret_cast<const float*>(b.scales.data());
  auto* amax = reinterpret_cast<float*>(b.out.data());
  for (const format& element : {formats::e4m3, formats::e5m2}) {
    const fp8_options o{.element = element};
    check(cast_transpose_fp8(o, source, scale, {b.codes.data(), b.more_codes.data(), 0, 0, amax}, {}));
    check(cast_transpose_fp8(o, source, scale, {b.codes.data(), nullptr, 0, 0, nullptr}, {}));
  }
}

/// gemm_operand of dense elements.
gemm_operand dense(buffers& b, const format& e) {
  return {.element = e, .rows = extent, .k = extent, .codes = b.codes.data(), .code_stride = e.bits() / 8 * extent};
}

/// Contracts of sm_90, the host or the definitions. Without a device any will do.
void refuse_gemms(const refusal& check) {
  buffers& b = check.b;
  const auto blocks = [&](const block_format& f) {
    return make_operand(f, {b.codes.data(), b.scales.data(), {}}, extent, extent);
  };
  const gemm_operand fp4 = blocks(mxfp4), fp8 = blocks(mxfp8_e4m3), bf16s = dense(b, formats::bf16);
  device_info device;
  const bool amd = current_device(device).ok() && (device.arch == arch::gfx942 || device.arch == arch::gfx950);
  struct product {
    const char* contract;
    gemm_operand x;
  };
  std::vector<product> all{{"mxfp4-reference", fp4},
                           {"mxfp8-reference", fp8},
                           {"mxfp8-reference", fp4},
                           {"mxfp8-reference", bf16s},
                           {"mxfp8-reference", dense(b, formats::fp32)}};
  if (amd) {
    for (const gemm_operand& x : {bf16s, fp4, fp8}) all.push_back({"mx-bf16-gfx942", x});
  } else {
    for (const gemm_operand& x : {bf16s, fp4, fp8}) all.push_back({"mx-bf16-sm90", x});
    for (const char* name : {"mxfp4-accurate-sm90", "mxfp4-fast-sm90"}) all.push_back({name, fp4});
    for (const char* name : {"hopper-fp8-promoted", "hopper-fp8-fast-accumulate"}) {
      all.push_back({name, dense(b, formats::e4m3)});
    }
  }
  for (const product& p : all) {
    const gemm_contract_entry& entry = *find_contract(p.contract);
    gemm_call c{{b.out.data()}, p.x, p.x, rotoscale::contract_options(entry, find_unit(entry.unit)->model)};
    check(gemm(c, b.workspace.data(), 1 << 30, {}));
    c.contract.split_k = 2;
    if (!std::string_view(p.contract).ends_with("-reference")) check(gemm(c, b.workspace.data(), 1 << 30, {}));
  }
  for (const gemm_operand& x : {dense(b, formats::fp32), bf16s, dense(b, formats::e4m3), fp4}) {
    check(decode_operand(x, false, b.out.data(), formats::fp32, extent, {}));
    check(decode_operand(x, true, b.out.data(), formats::bf16, extent, {}));
  }
  check(unrotate_operand(fp4, 16, {}, nullptr, reinterpret_cast<bf16*>(b.out.data()), extent, {}));
}

/// A tensor-core contract: the device's, or any without a device.
nn::attention_contract tiled_attention() {
  device_info device;
  const bool amd = current_device(device).ok() && (device.arch == arch::gfx942 || device.arch == arch::gfx950);
  return *nn::find_attention_contract(amd ? "attention-bf16-tile64x64-exp2deg3@cdna3-mfma-fp16-f32"
                                          : "attention-bf16-tile64x64-ex2approx@hopper-mma-fp16-f32");
}

void refuse_attention(const refusal& check) {
  buffers& b = check.b;
  for (const nn::dtype type : {nn::dtype::fp32, nn::dtype::bf16}) {
    const auto heads = [&](buffer& x) { return nn::as_heads(nn::dense_tensor(x.data(), type, {64, 64}), 2, 4, 16); };
    const device_call call{{}, b.workspace.data(), 1 << 30};
    auto* const lse = reinterpret_cast<float*>(b.more_codes.data());
    const auto refuse = [&](const nn::attention_contract& contract, const auto& view) {
      const nn::tensor_view q = view(b.in), k = view(b.codes), v = view(b.scales), o = view(b.out);
      check(launch<op::attention_forward>(call, {q, k, v, {}, contract, nullptr}, {o, lse}));
      check(launch<op::attention_backward>(call, {q, k, v, o, lse, q, {}, contract, nullptr},
                                           {o, view(b.more_scales), view(b.more_codes)}));
    };
    refuse({}, heads);
    if (type == nn::dtype::fp32) continue;
    const auto wide = [&](buffer& x) { return nn::as_heads(nn::dense_tensor(x.data(), type, {64, 128}), 1, 2, 64); };
    refuse(tiled_attention(), wide);
  }
}

void refuse_states(const refusal& check) {
  buffers& b = check.b;
  const auto floats = [](buffer& x) { return reinterpret_cast<float*>(x.data()); };
  const nn::scaling_state state{
      4, 16, floats(b.scales), floats(b.more_scales), floats(b.codes), floats(b.out), floats(b.in)};
  check(update_scales(state, {}, {}));
  float numbers[3] = {};
  check(current_scale(numbers, formats::e4m3, numbers + 1, numbers + 2, {}));
  check(round_bf16(row_major<const float>(floats(b.in), extent, extent), reinterpret_cast<bf16*>(b.out.data()), {}));
}

void refuse_layers(const refusal& check) {
  buffers& b = check.b;
  const auto floats = [](buffer& x) { return reinterpret_cast<float*>(x.data()); };
  const std::size_t all = 1 << 30;
  const device_call call{{}, b.workspace.data(), all};
  auto* const state = reinterpret_cast<nn::step_state*>(b.out.data());
  const nn::token_source tokens{reinterpret_cast<const std::int32_t*>(b.in.data()), 0};
  float *const gain = floats(b.scales), *const rstd = floats(b.more_scales), *const dgain = floats(b.codes);
  for (const nn::dtype type : {nn::dtype::fp32, nn::dtype::bf16}) {
    const auto rows = [&](buffer& x, index_t cols) { return nn::dense_tensor(x.data(), type, {16, cols}); };
    const auto table = nn::dense_tensor(b.in.data(), nn::dtype::fp32, {16, 64});
    const auto dtable = nn::dense_tensor(b.out.data(), nn::dtype::fp32, {16, 64});
    const nn::tensor_view x = rows(b.in, 64), y = rows(b.out, 64);
    const op::residual_norm::in norm{x, x, gain, 1e-5f, nullptr};
    const op::residual_norm::out normed{y, y, rstd, {}};
    check(launch<op::residual_norm>(call, norm, normed));
    check(launch<op::norm_forward>(call, {x, gain, 1e-5f}, {y, rstd}));
    check(launch<op::norm_backward>(call, {x, x, gain, rstd}, {y, dgain}));
    check(launch<op::norm_forward>(call, {x, gain, 1e-5f, gain}, {y, rstd, rstd}));
    check(launch<op::norm_backward>(call, {x, x, gain, rstd, rstd}, {y, dgain, dgain}));
    check(launch<op::bias_forward>(call, {table}, {y}));
    check(launch<op::bias_backward>(call, {x}, {dtable.part(0, 0, 2)}));
    check(launch<op::add>(call, {x, x}, {y}));
    check(launch<op::dropout>(call, {x, {}, true, state}, {y}));
    constexpr auto swiglu = nn::activation::swiglu;
    const op::activation_quantize::in forward{rows(b.in, 128), swiglu, nullptr};
    const op::activation_backward_quantize::in backward{x, rows(b.in, 128), swiglu, nullptr};
    check(launch<op::activation_forward>(call, {forward.x, swiglu}, {y}));
    check(launch<op::activation_backward>(call, {x, forward.x, swiglu}, {rows(b.out, 128)}));
    const auto refuse = [&](const auto& to) {
      check(launch_quantized<op::residual_norm>(call, norm, normed, to));
      check(launch_quantized<op::activation_quantize>(call, forward, {y, {}}, to));
      check(launch_quantized<op::activation_backward_quantize>(call, backward, {rows(b.out, 128), {}}, to));
    };
    refuse(block_target{mxfp4, {b.codes.data(), b.more_scales.data(), presets::te_rocm}, {}});
    refuse(fp8_target{{.element = formats::e4m3}, gain, {b.codes.data(), b.more_codes.data(), 0, 0, rstd}});
    gemm_operand stored;
    stored.element = type == nn::dtype::bf16 ? formats::bf16 : formats::fp32;
    stored.rows = 16;
    stored.k = 64;
    stored.codes = b.in.data();
    stored.code_stride = 64 * size_of(type);
    check(observe(x, stored, {}, reinterpret_cast<nn::operand_statistics*>(b.out.data()), b.workspace.data(), all, {}));
    const auto heads = nn::as_heads(y, 2, 4, 16);
    check(launch<op::rope>(call, {floats(b.in), floats(b.in), true}, {heads, heads}));
    check(launch<op::embedding_forward>(call, {tokens, table, state}, {y}));
    check(launch<op::embedding_backward>(call, {tokens, x, state}, {dtable}));
  }
  for (const index_t vocabulary : {index_t{64}, index_t{5000}}) {
    const auto logits = nn::dense_tensor(b.out.data(), nn::dtype::fp32, {4, vocabulary});
    for (bf16* const narrow : {static_cast<bf16*>(nullptr), reinterpret_cast<bf16*>(b.more_codes.data())}) {
      check(cross_entropy(call, {tokens, 0, true, state}, {logits, floats(b.codes)}, narrow));
    }
  }
  check(launch<op::sum_losses>(call, {floats(b.in), 64}, {state}));
  check(launch<op::compare>(call, {floats(b.in), floats(b.in), 64},
                            {reinterpret_cast<nn::comparison_statistics*>(b.out.data())}));
  check(launch<op::begin_step>(call, {tokens.data, 64}, {state}));
  check(launch<op::set_gradient_scale>(call, {}, {state}));
  check(launch<op::next_micro_batch>(call, {}, {state}));
  const nn::parameter_arena::segment whole{0, 4096, true};
  nn::parameter_arena arena{floats(b.codes), floats(b.in), floats(b.more_codes), floats(b.scales), 4096, {&whole, 1}};
  arena.segments_in_backend = reinterpret_cast<const nn::parameter_arena::segment*>(b.in.data());
  check(launch<op::sum_squares>(call, {floats(b.in), arena}, {reinterpret_cast<double*>(b.out.data())}));
  check(launch<op::square_chunks>(call, {arena.gradient, 4096}, {reinterpret_cast<double*>(b.out.data())}));
  check(
      launch<op::gradient_norm>(call, {arena.gradient, 4096, 1, {}}, {reinterpret_cast<double*>(b.out.data()), state}));
  check(launch<op::adamw>(call, {{}, state}, {arena}));
}

plain_problem plain(buffers& b) {
  const gemm_operand x{
      .element = formats::bf16, .rows = extent, .k = extent, .codes = b.codes.data(), .code_stride = 2 * extent};
  plain_problem p{{b.out.data()}, x, x};
  p.alpha = 2.0f;  // the epilogue is a kernel of this project
  return p;
}
void refuse_plan(buffers& b, error_code expected) {
  plain_gemm plan;
  CHECK(plain_gemm::make(plain(b), plan).code == expected);
  CHECK(plan.run(plain(b), b.workspace.data(), 1 << 30, {}).message() == "plan: was not made");
  CHECK(plan.workspace_bytes() == 0);
  CHECK(plan.contract() == nullptr);
  b.require_untouched();
}

void refuse_all(error_code expected) {
  buffers b;
  const refusal check{b, expected};
  refuse_quantizers<bf16>(check);
  refuse_gemms(check);
  refuse_attention(check);
  refuse_states(check);
  refuse_layers(check);
}

void require_device() {
  device_info device;
  const status s = current_device(device);
  if (s.ok()) return;
  std::printf("skipped: %s\n", s.message().c_str());
  std::fflush(stdout);
  std::_Exit(77);
}

}  // namespace

TEST_CASE("no device") {
  device_info device;
  int count = 1;
  CHECK(count_devices(count).code == error_code::no_device);
  CHECK(count == 0);
  CHECK(select_device(0).code == error_code::no_device);
  REQUIRE(current_device(device).code == error_code::no_device);
  refuse_all(error_code::no_device);
  buffers b;
  refuse_plan(b, error_code::no_device);
}

TEST_CASE("other architecture") {
  require_device();
  refuse_all(error_code::unsupported_device);
  buffers b;
  refuse_plan(b, error_code::unsupported_device);
  CHECK(synchronize().message() == "ok");  // no launch has failed
}

TEST_CASE("null stream") {
  require_device();
  buffers b;
  plain_gemm plan;
  const status planned = plain_gemm::make(plain(b), plan);
  REQUIRE((planned.ok() || planned.code == error_code::unsupported_device));  // or no library in the build
  gpu::stream stream;
  gpu::graph graph;
  REQUIRE(create(stream, true).ok());
  REQUIRE(begin_capture(stream).ok());
  refuse_all(error_code::bad_option);
  const status run = plan.run(plain(b), b.workspace.data(), 1 << 30, {});
  CHECK(std::string(run.argument) == (planned.ok() ? "stream" : "plan"));
  b.require_untouched();
  CHECK(end_capture(stream, graph).message() == "ok");  // refusals must not break the capture
  CHECK(destroy(graph).ok());
  CHECK(destroy(stream).ok());
  CHECK(synchronize().message() == "ok");
}
