// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// C functions of the FP4 GEMM and its quantizer, a shared library for bench/gpu/gemm.py. They take device pointers and
// a stream. They return a message, empty on success.
#include "gpu/api/gemm.hpp"

#include <cstdio>
#include <string>

#include "gpu/api/quantize.hpp"

namespace {

using namespace rotoscale;
using namespace rotoscale::gpu;

/// choice: gemm_mode, split-K (0: that of the fastest measured kernel).
gemm_call call_of(const void* const* pointers, const int* extents, const int* choice, const device_info& device) {
  const int m = extents[0], n = extents[1], k = extents[2];
  const auto operand = [&](int first, int rows) {
    return gemm_operand{.element = formats::e2m1,
                        .rows = rows,
                        .k = k,
                        .codes = static_cast<const std::uint8_t*>(pointers[first]),
                        .code_stride = k / 2,
                        .block = 32,
                        .scales = static_cast<const std::uint8_t*>(pointers[first + 1]),
                        .scale_stride = k / 32};
  };
  gemm_call c;
  c.a = operand(0, m);
  c.b = operand(2, n);
  c.out = const_cast<void*>(pointers[4]);
  c.stored = extents[3] == 2 ? formats::bf16 : formats::fp32;
  c.contract = contract_options(static_cast<gemm_mode>(choice[0]), device);
  c.contract.split_k = choice[1] != 0 ? choice[1] : fastest_split_k(c, device);
  return c;
}

int answer(const status& s, char* message, int size) {
  std::snprintf(message, static_cast<std::size_t>(size), "%s", s.ok() ? "" : s.message().c_str());
  return s.ok() ? 0 : 1;
}

}  // namespace

extern "C" {

/// MXFP4 of dense BF16 rows, rotated by H16: AMD's recipe.
int rotoscale_quantize(const void* from, int rows, int k, void* codes, void* scales, void* stream, char* message,
                       int size) {
  quantized_output to{static_cast<std::uint8_t*>(codes), static_cast<std::uint8_t*>(scales), presets::te_rocm};
  to.options.rotation.points = 16;
  return answer(quantize(mxfp4, row_major(static_cast<const bf16*>(from), rows, k), to, {}, {stream}), message, size);
}

/// pointers: codes and scales of A and B, out. extents: m, n, k, bytes of an output.
long long rotoscale_gemm_workspace(const void* const* pointers, const int* extents, const int* choice) {
  device_info device;
  if (!current_device(device).ok()) return -1;
  return static_cast<long long>(gemm_workspace_bytes(call_of(pointers, extents, choice, device), device));
}

/// Writes the error, or nothing, to `message` (at most `size` bytes). Returns 0 on success.
int rotoscale_gemm(const void* const* pointers, const int* extents, const int* choice, void* workspace, long long bytes,
                   void* stream, char* message, int size) {
  device_info device;
  status s = current_device(device);
  if (s.ok()) {
    s = gemm(call_of(pointers, extents, choice, device), workspace, static_cast<std::size_t>(bytes), {stream});
  }
  return answer(s, message, size);
}

/// Writes the selected kernel and split-K, and the reason.
int rotoscale_gemm_selection(const void* const* pointers, const int* extents, const int* choice, char* message,
                             int size) {
  device_info device;
  status s = current_device(device);
  const gemm_call c = s.ok() ? call_of(pointers, extents, choice, device) : gemm_call{};
  gemm_selection selected;
  if (s.ok()) s = select_gemm(c, device, selected);
  if (!s.ok()) return answer(s, message, size);
  std::snprintf(message, static_cast<std::size_t>(size), "split-K %d, %s", static_cast<int>(c.contract.split_k),
                selected.message().c_str());
  return 0;
}
}
