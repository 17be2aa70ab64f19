// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMD's matrix instructions with 16 × 16 results.
//
//  A, B  Lane l holds quarter l / 16 of k of row l % 16.
//  C, D  Lane l holds rows 4 * (l / 16) .. + 3 of column l % 16.
//
// gfx942 multiplies FNUZ FP8. gfx950 multiplies OCP FP8, and FP8, FP6 and FP4 with a scale byte for every 32 elements
// of k. Both are compiled, and untested on hardware.
#pragma once

#include <cstdint>

#include "examples/probe/device.hpp"
#include "gpu/dialect/hip.hpp"
#include "rotoscale/pack.hpp"

namespace rotoscale::probe {

using gpu::block_index;
using gpu::thread_index;

using amd_float4 = float __attribute__((ext_vector_type(4)));
using amd_half4 = _Float16 __attribute__((ext_vector_type(4)));
using amd_half8 = _Float16 __attribute__((ext_vector_type(8)));
using amd_short4 = short __attribute__((ext_vector_type(4)));
using amd_bf16_8 = __bf16 __attribute__((ext_vector_type(8)));
using amd_int8 = int __attribute__((ext_vector_type(8)));

/// One lane's bytes of A and B, its accumulators and its scales.
struct lane_registers {
  alignas(32) std::uint8_t a[32], b[32];
  amd_float4 acc;
  int scale_a, scale_b;
};

template <class T>
__device__ T lane_operand(const std::uint8_t* bytes) {
  T x;
  __builtin_memcpy(&x, bytes, sizeof x);
  return x;
}

struct mfma_f16_k16 {
  static constexpr int k = 16, bytes = 8;
  __device__ static void run(lane_registers& t) {
    t.acc = __builtin_amdgcn_mfma_f32_16x16x16f16(lane_operand<amd_half4>(t.a), lane_operand<amd_half4>(t.b), t.acc, 0,
                                                  0, 0);
  }
};
struct mfma_bf16_k16 {
  static constexpr int k = 16, bytes = 8;
  __device__ static void run(lane_registers& t) {
    t.acc = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(lane_operand<amd_short4>(t.a), lane_operand<amd_short4>(t.b),
                                                      t.acc, 0, 0, 0);
  }
};
/// FNUZ on gfx942, OCP on gfx950.
struct mfma_fp8_k32 {
  static constexpr int k = 32, bytes = 8;
  __device__ static void run(lane_registers& t) {
    t.acc =
        __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(lane_operand<long>(t.a), lane_operand<long>(t.b), t.acc, 0, 0, 0);
  }
};
struct mfma_bf8_k32 {
  static constexpr int k = 32, bytes = 8;
  __device__ static void run(lane_registers& t) {
    t.acc =
        __builtin_amdgcn_mfma_f32_16x16x32_bf8_bf8(lane_operand<long>(t.a), lane_operand<long>(t.b), t.acc, 0, 0, 0);
  }
};

// The host lists these kernels for every architecture. Only gfx950 has the instructions: elsewhere they do nothing.
#if defined(__gfx950__)
#define ROTOSCALE_ON_GFX950(...) __VA_ARGS__
#else
#define ROTOSCALE_ON_GFX950(...) (void)t
#endif
struct mfma_f16_k32 {
  static constexpr int k = 32, bytes = 16;
  __device__ static void run(lane_registers& t) {
    ROTOSCALE_ON_GFX950(t.acc = __builtin_amdgcn_mfma_f32_16x16x32_f16(lane_operand<amd_half8>(t.a),
                                                                       lane_operand<amd_half8>(t.b), t.acc, 0, 0, 0));
  }
};
struct mfma_bf16_k32 {
  static constexpr int k = 32, bytes = 16;
  __device__ static void run(lane_registers& t) {
    ROTOSCALE_ON_GFX950(t.acc = __builtin_amdgcn_mfma_f32_16x16x32_bf16(lane_operand<amd_bf16_8>(t.a),
                                                                        lane_operand<amd_bf16_8>(t.b), t.acc, 0, 0, 0));
  }
};
/// Scaled FP8, FP6 and FP4; `Kind` is the instruction's code of the format. The scale of row l % 16 is the lowest byte
/// of lane l's scale register. It belongs to block l / 16 of 32 elements along k. Elements of lane l:
///
///  FP4  that block
///  FP8  16 elements from k = 16 * (l / 16), and 16 elements from k = 64 + 16 * (l / 16)
///  FP6  as FP4 (assumed)
///
/// https://rocm.blogs.amd.com/software-tools-optimization/matrix-cores-cdna shows the 32 × 32 forms of FP4 and FP8.
template <int Kind, format F>
struct mfma_scaled_k128 {
  static constexpr int k = 128, bytes = 32;
  static constexpr format element = F;
  __device__ static void run(lane_registers& t) {
    ROTOSCALE_ON_GFX950(
        t.acc = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(
            lane_operand<amd_int8>(t.a), lane_operand<amd_int8>(t.b), t.acc, Kind, Kind, 0, t.scale_a, 0, t.scale_b));
  }
};
using mfma_scaled_e4m3 = mfma_scaled_k128<0, formats::e4m3>;
using mfma_scaled_e5m2 = mfma_scaled_k128<1, formats::e5m2>;
using mfma_scaled_e2m3 = mfma_scaled_k128<2, formats::e2m3>;
using mfma_scaled_e3m2 = mfma_scaled_k128<3, formats::e3m2>;
using mfma_scaled_e2m1 = mfma_scaled_k128<4, formats::e2m1>;

/// One lane's operand from its row in memory, which has whole bytes per element. Narrow elements are packed.
template <class Instruction>
__device__ void load_lane(const std::uint8_t* row, int quarter, std::uint8_t* to) {
  for (int i = 0; i < Instruction::bytes; ++i) {
    if constexpr (requires { Instruction::element; }) {
      const bool fp8 = Instruction::element.bits() == 8;
      const int k = fp8 ? i / 16 * 64 + quarter * 16 + i % 16 : quarter * 32 + i;
      store_code(Instruction::element, to, i, row[k]);
    } else {
      to[i] = row[quarter * Instruction::bytes + i];
    }
  }
}

/// A scale; 1 if the case has none.
__device__ inline int lane_scale(const std::uint8_t* scales, std::int64_t at) {
  return scales == nullptr ? 127 : scales[at];
}

/// One wave per tile of 16 × 16 results.
template <class Instruction>
__global__ void mfma_kernel(tile_pointers p) {
  const int lane = static_cast<int>(thread_index().x);
  const std::int64_t tile = block_index().x;
  constexpr int row_bytes = 4 * Instruction::bytes;
  const std::int64_t row = tile * 16 + lane % 16;
  lane_registers t{};
  load_lane<Instruction>(p.a + row * row_bytes, lane / 16, t.a);
  load_lane<Instruction>(p.b + row * row_bytes, lane / 16, t.b);
  t.scale_a = lane_scale(p.scales_a, row * 4 + lane / 16);
  t.scale_b = lane_scale(p.scales_b, row * 4 + lane / 16);
  const auto result = [&](int i) { return (tile * 16 + 4 * (lane / 16) + i) * 16 + lane % 16; };
  for (int i = 0; i < 4; ++i) t.acc[i] = reinterpret_cast<const float*>(p.c)[result(i)];
  Instruction::run(t);
  for (int i = 0; i < 4; ++i) reinterpret_cast<float*>(p.d)[result(i)] = t.acc[i];
}

#if defined(ROTOSCALE_NO_HIP_SDK)

#define ROTOSCALE_INSTANTIATE(INSTRUCTION) template __global__ void mfma_kernel<INSTRUCTION>(tile_pointers);
ROTOSCALE_INSTANTIATE(mfma_f16_k16)
ROTOSCALE_INSTANTIATE(mfma_bf16_k16)
ROTOSCALE_INSTANTIATE(mfma_fp8_k32)
ROTOSCALE_INSTANTIATE(mfma_bf8_k32)
#if defined(__gfx950__)
ROTOSCALE_INSTANTIATE(mfma_f16_k32)
ROTOSCALE_INSTANTIATE(mfma_bf16_k32)
ROTOSCALE_INSTANTIATE(mfma_scaled_e4m3)
ROTOSCALE_INSTANTIATE(mfma_scaled_e5m2)
ROTOSCALE_INSTANTIATE(mfma_scaled_e2m3)
ROTOSCALE_INSTANTIATE(mfma_scaled_e3m2)
ROTOSCALE_INSTANTIATE(mfma_scaled_e2m1)
#endif

#else

struct device_entry {
  probed_instruction what;
  void (*launch)(tile_pointers);
  const char* architecture;
};

template <class Instruction>
device_entry entry(const char* unit, const char* name, format f, const char* architecture, instruction_form form = {}) {
  return {{unit, name, f, f, formats::fp32, 16, 16, Instruction::k, form},
          // clang-format reads the launch as template arguments and splits >>>.
          // clang-format off
          [](tile_pointers p) { mfma_kernel<Instruction><<<static_cast<unsigned>(p.tiles), 64>>>(p); },
          // clang-format on
          architecture};
}

inline constexpr instruction_form scaled{.scaled = true};

/// On gfx950 each entry shows where the defaults of CDNA4 and the models of CDNA3 hold.
const device_entry entries[] = {
    entry<mfma_f16_k16>("cdna3-mfma-fp16-f32", "v_mfma_f32_16x16x16_f16", formats::fp16, "gfx942"),
    entry<mfma_bf16_k16>("cdna3-mfma-fp16-f32", "v_mfma_f32_16x16x16_bf16", formats::bf16, "gfx942"),
    entry<mfma_fp8_k32>("cdna3-mfma-fp8-f32", "v_mfma_f32_16x16x32_fp8_fp8", formats::e4m3fnuz, "gfx942"),
    entry<mfma_bf8_k32>("cdna3-mfma-fp8-f32", "v_mfma_f32_16x16x32_bf8_bf8", formats::e5m2fnuz, "gfx942"),
    entry<mfma_f16_k16>("cdna3-mfma-fp16-f32", "v_mfma_f32_16x16x16_f16", formats::fp16, "gfx950"),
    entry<mfma_bf16_k16>("cdna3-mfma-fp16-f32", "v_mfma_f32_16x16x16_bf16", formats::bf16, "gfx950"),
    entry<mfma_f16_k32>("cdna4-mfma-fp16-f32", "v_mfma_f32_16x16x32_f16", formats::fp16, "gfx950"),
    entry<mfma_bf16_k32>("cdna4-mfma-fp16-f32", "v_mfma_f32_16x16x32_bf16", formats::bf16, "gfx950"),
    entry<mfma_fp8_k32>("cdna4-mfma-fp8-f32", "v_mfma_f32_16x16x32_fp8_fp8", formats::e4m3, "gfx950"),
    entry<mfma_bf8_k32>("cdna4-mfma-fp8-f32", "v_mfma_f32_16x16x32_bf8_bf8", formats::e5m2, "gfx950"),
    entry<mfma_scaled_e4m3>("cdna4-mfma-f8f6f4-f32", "v_mfma_scale_f32_16x16x128_f8f6f4 e4m3 scales 1", formats::e4m3,
                            "gfx950"),
    entry<mfma_scaled_e5m2>("cdna4-mfma-f8f6f4-f32", "v_mfma_scale_f32_16x16x128_f8f6f4 e5m2 scales 1", formats::e5m2,
                            "gfx950"),
    entry<mfma_scaled_e2m3>("cdna4-mfma-f8f6f4-f32", "v_mfma_scale_f32_16x16x128_f8f6f4 e2m3 scales 1", formats::e2m3,
                            "gfx950"),
    entry<mfma_scaled_e3m2>("cdna4-mfma-f8f6f4-f32", "v_mfma_scale_f32_16x16x128_f8f6f4 e3m2 scales 1", formats::e3m2,
                            "gfx950"),
    entry<mfma_scaled_e2m1>("cdna4-mfma-f8f6f4-f32", "v_mfma_scale_f32_16x16x128_f8f6f4 e2m1 scales 1", formats::e2m1,
                            "gfx950"),
    entry<mfma_scaled_e4m3>("cdna4-mfma-scale-f8f6f4-f32", "v_mfma_scale_f32_16x16x128_f8f6f4 e4m3", formats::e4m3,
                            "gfx950", scaled),
    entry<mfma_scaled_e5m2>("cdna4-mfma-scale-f8f6f4-f32", "v_mfma_scale_f32_16x16x128_f8f6f4 e5m2", formats::e5m2,
                            "gfx950", scaled),
    entry<mfma_scaled_e2m3>("cdna4-mfma-scale-f8f6f4-f32", "v_mfma_scale_f32_16x16x128_f8f6f4 e2m3", formats::e2m3,
                            "gfx950", scaled),
    entry<mfma_scaled_e3m2>("cdna4-mfma-scale-f8f6f4-f32", "v_mfma_scale_f32_16x16x128_f8f6f4 e3m2", formats::e3m2,
                            "gfx950", scaled),
    entry<mfma_scaled_e2m1>("cdna4-mfma-scale-f8f6f4-f32", "v_mfma_scale_f32_16x16x128_f8f6f4 e2m1", formats::e2m1,
                            "gfx950", scaled),
};

inline bool runs_here(const device_entry& e) {
  hipDeviceProp_t properties;
  return hipGetDeviceProperties(&properties, 0) == hipSuccess &&
         std::string(properties.gcnArchName).starts_with(e.architecture);
}

#endif

}  // namespace rotoscale::probe
