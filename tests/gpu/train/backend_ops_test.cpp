// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Every operation of the device backend against the CPU's, by bytes, and fused operations against their compositions,
// in host mode or on a device.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "gpu/api/device.hpp"
#include "gpu/train/backend.hpp"
#include "gpu/train/queues.hpp"
#include "make_device.hpp"
#include "rotoscale/nn/backend_ops_all.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"
#include "rotoscale/nn/preset.hpp"
#include "rotoscale/nn/presets.hpp"

namespace train_backend_ops_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace nn = rotoscale::nn;

/// Compares the results of both backends. Most cases run on every device.
void compare(const std::vector<std::vector<op_case>>& groups) {
  const auto reference = nn::make_cpu_backend(1);
  const auto device = make_device();
  std::size_t compared = 0, all = 0;
  for (const auto& cases : groups) {
    all += cases.size();
    for (const op_case& c : cases) {
      if (!c.runs_on(*device)) continue;
      CAPTURE(c.name);
      const auto want = bytes_of(c, *reference);
      CHECK_FALSE(want.empty());
      CHECK(want == bytes_of(c, *device));
      ++compared;
    }
  }
  CHECK(2 * compared > all);
}

TEST_CASE("every operation on rows leaves the CPU's bytes") { compare({row_cases(), coarse_row_cases()}); }
TEST_CASE("attention and the step's state leave the CPU's bytes") { compare({attention_cases(), state_cases()}); }
TEST_CASE("every GEMM leaves the CPU's bytes") { compare({gemm_cases()}); }
TEST_CASE("every fused operation and statistic leaves the CPU's bytes") {
  compare({statistics_cases(), coarse_cases()});
}

TEST_CASE("a coarse operation leaves the bytes of its composition") {
  const auto device = make_device();
  // A device has one NaN. In host mode the NaN has an operand's sign, chosen by the compiler.
  const bool one_nan = std::string_view(gpu::build_mode()) != "host";
  for (const op_case& c : coarse_and_raw_cases()) {
    if (!c.coarse || !c.runs_on(*device) || (c.quantizes_nan && !one_nan)) continue;
    CAPTURE(c.name);
    CHECK(bytes_of(c, *device) == bytes_of(c, *device, true));
  }
}

TEST_CASE("operands are read back with the CPU's bytes") {
  const auto values = [](nn::backend& ops, nn::operand_format f, nn::dtype stored) {
    op_scene c(ops);
    nn::operand_request r;
    r.rows = 64;
    r.cols = 96;
    r.row = r.column = nn::operand_recipe{f};
    const auto x = c.tensor(nn::dtype::fp32, r.rows, r.cols, 1, 9);
    nn::operand_set* const set = c.operands(r, x);
    float* const scale = c.keep(std::vector<float>{3.0f, 1.0f / 3.0f});
    const nn::scaling_ref scaling{nn::is_fp8(f) ? scale : nullptr, nn::is_fp8(f) ? scale + 1 : nullptr, nullptr};
    ops.quantize(c.queue, {x, c.state()}, {{set, true, true, scaling}});
    for (const auto form : {nn::operand_form::row, nn::operand_form::column}) {
      const auto to = c.tensor(stored, r.rows, r.cols, 2);
      ops.dequantize(c.queue, {{set, form}}, {to});
      c.result(to);
    }
    return c.bytes();
  };
  const auto reference = nn::make_cpu_backend(1);
  const auto device = make_device();
  using enum nn::operand_format;
  for (const nn::operand_format f : {fp32, bf16, fp8_e4m3, fp8_e5m2, mxfp4, mxfp8_e4m3, mxfp8_e5m2}) {
    for (const nn::dtype stored : {nn::dtype::fp32, nn::dtype::bf16}) {
      CAPTURE(to_string(f));
      CHECK(values(*reference, f, stored) == values(*device, f, stored));
    }
  }
}

TEST_CASE("contracts without a kernel are refused, a matrix unit's where the device has it") {
  const auto device = make_device();
  nn::gemm_recipe g;
  for (const char* name : {nn::fp32_fma_chain_contract, "cublas-fp16:split_k=2", "hopper-fp8-promoted", "nothing"}) {
    g.accumulate = name;
    CHECK(device->contract(g, 64, 64, 64).has_value() == (g.accumulate == nn::fp32_fma_chain_contract));
  }
  gpu::device_info here;
  REQUIRE(gpu::current_device(here).ok());
  const bool host = here.arch == gpu::arch::host, hopper = here.arch == gpu::arch::sm_90 || host,
             cdna3 = here.arch == gpu::arch::gfx942 || here.arch == gpu::arch::gfx950 || host;
  for (const char* name : {"mx-bf16-sm90", "hopper-wgmma-fp16-f32", "mx-bf16-sm90:split_k=4"}) {
    g.accumulate = name;
    CHECK(device->contract(g, 64, 64, 64).has_value() == hopper);
    CHECK_FALSE(device->contract(g, 64, 63, 64).has_value());  // rows of 126 bytes
  }
  for (const char* name : {"mx-bf16-gfx942", "single-accumulator@cdna3-mfma-fp16-f32", "cdna3-mfma-fp16-f32",
                           "mx-bf16-gfx942:split_k=64", "cdna3-mfma-fp16-f32:split_k=2:split_grain=32"}) {
    g.accumulate = name;
    CHECK(device->contract(g, 64, 64, 64).has_value() == cdna3);
    CHECK_FALSE(device->contract(g, 63, 64, 64).has_value());
  }
  for (const char* name : {"mx-bf16-gfx942:split_k=65", "cdna3-mfma-fp16-f32:split_k=2", "mx-bf16-gfx942:promotion=64",
                           "mx-bf16-sm90:split_k=2:split_grain=32", "cdna3-mfma-xf32-f32"}) {
    g.accumulate = name;
    CHECK_FALSE(device->contract(g, 64, 64, 64).has_value());
  }
}

TEST_CASE("FP8 runs on a matrix unit under its two contracts in any extents, as BF16 where k is a multiple of 8") {
  const auto device = make_device();
  gpu::device_info here;
  REQUIRE(gpu::current_device(here).ok());
  const bool has_unit = here.arch == gpu::arch::sm_90 || here.arch == gpu::arch::host;
  nn::gemm_recipe g = preset("fp8_amd").dgrad;
  for (const char* name : {"hopper-fp8-promoted", "hopper-fp8-fast-accumulate", "hopper-fp8-promoted:split_k=64"}) {
    g.accumulate = name;
    CHECK(device->contract(g, 64, 63, 65).has_value() == has_unit);
  }
  for (const char* name : {"hopper-fp8-promoted:promotion=64", "hopper-fp8-promoted:split_k=65",
                           "hopper-fp8-promoted:split_k=2:split_grain=64", "mxfp4-accurate-sm90"}) {
    g.accumulate = name;
    CHECK_FALSE(device->contract(g, 64, 64, 64).has_value());
  }
  g.accumulate = "mx-bf16-sm90";
  CHECK(device->contract(g, 64, 64, 64).has_value() == has_unit);
  CHECK_FALSE(device->contract(g, 64, 64, 65).has_value());
  g.accumulate = "hopper-fp8-promoted";
  g.left.format = nn::operand_format::mxfp8_e4m3;
  CHECK_FALSE(device->contract(g, 64, 64, 64).has_value());
}

TEST_CASE("a BF16 unit aligns the product of two subnormal codes by their numbers, on each backend") {
  // One product per block, of subnormal E4M3 numbers. The element that sets a block's scale meets zeros.
  constexpr index_t rows = 8, k = 64;
  const auto tensor = [](float sign, index_t scale_at) {
    std::vector<float> values(rows * k);
    for (index_t r = 0; r < rows; ++r) {
      for (const auto& [at, scale] : {std::pair{0, 0x1p-12f}, std::pair{32, 1.0f}}) {
        values[static_cast<std::size_t>(r * k + at)] = (at == 0 ? sign : 1.0f) * 0x1p-7f * scale;
        values[static_cast<std::size_t>(r * k + at + scale_at)] = 448 * scale;
      }
    }
    return values;
  };
  const auto multiply = [&](nn::backend& ops, const nn::operand_recipe& how, const std::string& contract) {
    const queue_workspace room(ops);
    const device_array<float> x(ops, tensor(-1.0f, 16)), w(ops, tensor(1.0f, 17)), c(ops, rows * rows);
    const device_array<nn::step_state> state(ops, 1);
    nn::operand_request request;
    request.rows = rows;
    request.cols = k;
    request.row = how;
    const auto source = [&](const device_array<float>& a) {
      return nn::dense_tensor(a.data(), nn::dtype::fp32, {rows, k});
    };
    const made_operands left(ops, request, source(x)), right(ops, request, source(w));
    ops.quantize({}, {source(x), state.data()}, {{left.set.get(), true, false, {}}});
    ops.quantize({}, {source(w), state.data()}, {{right.set.get(), true, false, {}}});
    ops.gemm(
        {},
        {left.row(), right.row(), *nn::find_gemm_contract(contract, rows, rows, k), nn::operand_format::fp32, false},
        {nn::dense_tensor(c.data(), nn::dtype::fp32, {rows, rows})});
    return fp32_bits(c.get()[0]);
  };
  const auto cpu = nn::make_cpu_backend(2);
  const auto device = make_device();
  const nn::operand_recipe mxfp8 = preset("mxfp8").fprop.left, plain{nn::operand_format::bf16};
  for (const char* contract : {"mx-bf16-sm90", "mx-bf16-gfx942"}) {
    CAPTURE(contract);
    CHECK(multiply(*cpu, mxfp8, contract) == multiply(*cpu, plain, contract));
    if (!device->contract({mxfp8, mxfp8, contract, nn::operand_format::fp32}, rows, rows, k)) continue;
    CHECK(multiply(*device, mxfp8, contract) == multiply(*cpu, plain, contract));
  }
  CHECK(multiply(*cpu, mxfp8, "mx-bf16-sm90") == 0x387FFFFFu);
}

TEST_CASE("every preset's operands are made on a device, others are refused with their GEMM") {
  const auto device = make_device();
  gpu::device_info here;
  REQUIRE(gpu::current_device(here).ok());
  const auto has_kernel = [&here](const std::string& contract) {
    if (contract.starts_with("fp32_") || here.arch == gpu::arch::host) return true;
    return (here.arch == gpu::arch::sm_90) == (contract.starts_with("mx-bf16-sm90") || contract.starts_with("hopper-"));
  };
  for (const nn::recipe& r : nn::presets::all()) {
    CAPTURE(r.name);
    for (nn::gemm_recipe g : {r.fprop, r.dgrad, r.wgrad}) {
      CHECK(device->contract(g, 64, 64, 64).has_value() == has_kernel(g.accumulate));
      g.left.format = nn::operand_format::mxfp4;
      g.left.rotation.points = 256;
      CHECK_FALSE(device->contract(g, 64, 64, 64).has_value());
    }
  }
}

TEST_CASE("what a launcher refuses, and tokens outside the vocabulary, become errors with the operation's name") {
  const auto device = make_device();
  const auto name_of_error = [&] {
    try {
      device->synchronize(nn::queue{});
    } catch (const nn::backend_error& e) {
      return e.operation();
    }
    return std::string();
  };
  {
    op_scene scene(*device);
    const auto x = scene.tensor(nn::dtype::fp32, 3, 8, 1), table = scene.tensor(nn::dtype::fp32, 5, 8, 2);
    const nn::token_source tokens{scene.keep(std::vector<std::int32_t>{0, 7, 1}), 3};
    device->embedding_forward({}, {tokens, table, scene.state()}, {x});
    CHECK(name_of_error() == "embedding_forward");
    CHECK(name_of_error() == "embedding_forward");  // the queue skips later operations
  }
  const auto other = make_device();
  op_scene scene(*other);
  auto x = scene.tensor(nn::dtype::fp32, 3, 8, 1);
  x.strides[1] = 2;
  other->activation_forward({}, {x, nn::activation::gelu_tanh}, {x});
  CHECK_THROWS_AS(other->synchronize(nn::queue{}), nn::backend_error);
}

TEST_CASE("a device of an architecture without kernels is refused, with those that have some") {
  const gpu::status other = gpu::check_architecture({gpu::arch::other, 132});
  CHECK(other.code == gpu::error_code::unsupported_device);
  CHECK(other.message() == "this build has kernels for sm_90, gfx942 and gfx950 alone");
  for (const gpu::arch a : {gpu::arch::host, gpu::arch::sm_90, gpu::arch::gfx942, gpu::arch::gfx950}) {
    CHECK(gpu::check_architecture({a, 132}).ok());
  }
}

TEST_CASE("a device's queue that was given back is made again, without its fault") {
  const auto device = make_device();
  const nn::queue failed = device->make_queue("one"), other = device->make_queue("two");
  device->sum_losses(failed, {nullptr, 8}, {nullptr});
  CHECK_THROWS_AS(device->synchronize(failed), nn::backend_error);
  device->release_queue(failed);
  device->synchronize(other);
  CHECK(device->make_queue("three") == failed);
  device->synchronize(failed);
}

TEST_CASE("a device names itself once") {
  const std::string said = make_device()->description();
  if (said.starts_with("host")) CHECK(said == "host (2 processors)");
}

TEST_CASE("a fault that a device reports late names the last operation") {
  const auto fault = gpu::device_queue::late_fault({gpu::error_code::device_error, "", "is lost"}, "gemm");
  CHECK(fault.operation() == "device");
  CHECK(fault.of_device());
  CHECK(std::string(fault.what()).starts_with("device: at or before gemm: "));
}

}  // namespace train_backend_ops_test
