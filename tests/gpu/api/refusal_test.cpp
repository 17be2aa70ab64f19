// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Every launcher where nothing can be launched. "no device" is run with all devices hidden from the runtime; "other
// architecture" is for a build whose device code no device here executes; "null stream" is for a device, while another
// stream is captured. The latter two exit with 77 (skipped) where there is no device. Each call must return the fault
// with words and leave its outputs, host memory here, untouched.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "gpu/api/dequantize.hpp"
#include "gpu/api/gemm.hpp"
#include "gpu/api/quantize.hpp"
#include "gpu/api/quantize_fp8.hpp"
#if defined(ROTOSCALE_BLASLT)
#include "gpu/api/gemm_library.hpp"
#endif

namespace {

using namespace rotoscale;
using namespace rotoscale::gpu;

constexpr int extent = 256;
constexpr std::uint8_t poison = 0xA5;

/// A valid argument of any kind: more bytes than any output of extent × extent needs, poisoned.
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

void check_refusal(const status& s, fault expected, const buffers& b) {
  CAPTURE(s.message());
  CHECK(s.fault == expected);
  CHECK(s.reason[0] != '\0');
  if (expected == fault::bad_option) CHECK(std::string(s.argument) == "stream");
  b.require_untouched();
}

template <class T>
void refuse_quantizers(buffers& b, fault expected) {
  const auto check = [&](const status& s) { check_refusal(s, expected, b); };
  const auto source = row_major(reinterpret_cast<const T*>(b.in.data()), extent, extent);
  const quantized rows{b.codes.data(), b.scales.data(), presets::te_rocm};
  const quantized columns{b.more_codes.data(), b.more_scales.data(), presets::te_rocm};
  check(hadamard_quantize_mxfp4(source, rows, columns, nullptr));
  for (const block_format f : {mxfp4, mxfp8_e4m3, mxfp8_e5m2, square_blocks(mxfp4)}) {
    check(quantize(f, source, rows, {}, nullptr));
    check(quantize(f, source, {}, columns, nullptr));
    const quantized_source q{b.codes.data(), b.scales.data(), extent, extent};
    for (const block_axis axis : {block_axis::row, block_axis::column}) {
      check(dequantize(f, q, axis, row_major(reinterpret_cast<T*>(b.out.data()), extent, extent), nullptr));
    }
  }
  const auto* scale = reinterpret_cast<const float*>(b.scales.data());
  auto* amax = reinterpret_cast<float*>(b.out.data());
  for (const format& element : {formats::e4m3, formats::e5m2}) {
    const fp8_options o{.element = element};
    check(cast_transpose_fp8(o, source, scale, {b.codes.data(), b.more_codes.data(), 0, 0, amax}, nullptr));
    check(cast_transpose_fp8(o, source, scale, {b.codes.data(), nullptr, 0, 0, nullptr}, nullptr));
  }
}

void refuse_gemms(buffers& b, fault expected) {
  const auto check = [&](const status& s) { check_refusal(s, expected, b); };
  const std::size_t all = 1 << 30;
  for (const gemm_element e : {gemm_element::e2m1, gemm_element::e4m3}) {
    const int bytes = e == gemm_element::e2m1 ? extent / 2 : extent;
    gemm_operand_view x{b.codes.data(), b.scales.data(), bytes, extent / 32, extent, extent};
    x.element = e;
    const gemm_problem p{{b.out.data()}, x, x};
    for (const gemm_contract c : {gemm_contract::reference, gemm_contract::accurate, gemm_contract::fast}) {
      check(e == gemm_element::e2m1 ? gemm_mxfp4(p, {c, 1}, b.workspace.data(), all, nullptr)
                                    : gemm_mxfp8(p, {c, 1}, b.workspace.data(), all, nullptr));
    }
  }
}

#if defined(ROTOSCALE_BLASLT)
plain_problem plain(buffers& b) {
  const plain_operand_view x{b.codes.data(), formats::bf16, 0, extent, extent};
  plain_problem p{{b.out.data()}, x, x};
  p.alpha = 2.0f;  // a kernel of this project takes the last step
  return p;
}
void refuse_plan(buffers& b, fault expected) {
  plain_gemm plan;
  CHECK(plain_gemm::make(plain(b), plan).fault == expected);
  CHECK(plan.run(plain(b), b.workspace.data(), 1 << 30, nullptr).message() == "plan: was not made");
  CHECK(plan.workspace_bytes() == 0);
  CHECK(plan.contract() == nullptr);
  b.require_untouched();
}
#else
void refuse_plan(buffers&, fault) {}
#endif

void refuse_all(fault expected) {
  buffers b;
  refuse_quantizers<bf16>(b, expected);
  refuse_gemms(b, expected);
}

void require_device() {
  const status s = check_device();
  if (s.ok()) return;
  std::printf("skipped: %s\n", s.message().c_str());
  std::fflush(stdout);
  std::_Exit(77);
}

}  // namespace

TEST_CASE("no device") {
  REQUIRE(check_device().fault == fault::no_device);
  gemm_device device;
  CHECK(current_device(device).fault == fault::no_device);
  refuse_all(fault::no_device);
  buffers b;
  refuse_plan(b, fault::no_device);
}

TEST_CASE("other architecture") {
  require_device();
  refuse_all(fault::unsupported_device);
  buffers b;
  refuse_plan(b, fault::unsupported_device);
  CHECK(hipDeviceSynchronize() == hipSuccess);  // nothing was launched
}

TEST_CASE("null stream") {
  require_device();
#if defined(ROTOSCALE_BLASLT)
  buffers b;
  plain_gemm plan;
  REQUIRE(plain_gemm::make(plain(b), plan).ok());
#endif
  hipStream_t stream = nullptr;
  hipGraph_t graph = nullptr;
  REQUIRE(hipStreamCreate(&stream) == hipSuccess);
  REQUIRE(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal) == hipSuccess);
  refuse_all(fault::bad_option);
#if defined(ROTOSCALE_BLASLT)
  CHECK(std::string(plan.run(plain(b), b.workspace.data(), 1 << 30, nullptr).argument) == "stream");
  b.require_untouched();
#endif
  CHECK(hipStreamEndCapture(stream, &graph) == hipSuccess);  // the refusals have not broken the capture
  CHECK(hipGraphDestroy(graph) == hipSuccess);
  CHECK(hipStreamDestroy(stream) == hipSuccess);
  CHECK(hipDeviceSynchronize() == hipSuccess);
}
