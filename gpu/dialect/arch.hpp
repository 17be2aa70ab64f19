// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Tile shapes of GEMM kernels, and the contracts of each architecture.
#pragma once

#include <span>
#include <string_view>

#include "gpu/api/device.hpp"

namespace rotoscale::gpu {

/// Tile of a GEMM kernel: m × n of C on `processors` SMs or CUs, with min_stages to max_stages steps of K in shared
/// memory. `percent` is the estimated share of the tensor core's rate, since m · n products read m + n rows of
/// operands.
///
/// Sources of `percent`:
/// - `sm_90`: measured on an H200 with int8 kernels.
/// - AMD: estimated, not measured, from the share of LDS or cache cycles (gfx950_tile.hpp, amd/dense.hpp).
/// - `gfx942` with MXFP4: estimated from the loop's instructions, few of which are products.
/// The gfx950 FP4 shapes are all of AITER's (hsa/gfx950/f4gemm/f4gemm_bf16_per1x32Fp4.csv in ROCm/aiter). The dense
/// shapes with 64 columns are all of AITER's BF16 kernels for gfx942 (hsa/gfx942/bf16gemm/bf16gemm_fp32bf16.csv).
struct tile_shape {
  int m, n, processors, min_stages, max_stages, percent;
};
inline constexpr tile_shape sm90_tiles[] = {
    {256, 256, 2, 2, 4, 100}, {128, 128, 1, 2, 6, 85}, {64, 256, 1, 2, 5, 75}, {256, 64, 1, 2, 5, 75}};
inline constexpr tile_shape gfx942_fp4_tiles[] = {{128, 128, 1, 1, 1, 100}, {32, 128, 1, 1, 1, 60}};
/// BF16 tiles, which gfx942 also uses for MXFP8 after expansion to BF16.
inline constexpr tile_shape dense_tiles[] = {{128, 128, 1, 1, 1, 100}, {160, 64, 1, 1, 1, 71}, {128, 64, 1, 1, 1, 66},
                                             {96, 64, 1, 1, 1, 60},    {32, 128, 1, 1, 1, 40}, {64, 64, 1, 1, 1, 50},
                                             {48, 64, 1, 1, 1, 42},    {32, 64, 1, 1, 1, 33}};
inline constexpr tile_shape gfx950_fp4_tiles[] = {
    {256, 256, 1, 2, 2, 100}, {128, 512, 1, 2, 2, 80}, {64, 1024, 1, 2, 2, 47}, {160, 384, 1, 2, 2, 88},
    {96, 640, 1, 2, 2, 65},   {224, 256, 1, 2, 2, 93}, {64, 896, 1, 2, 2, 46},  {192, 256, 1, 2, 2, 85},
    {128, 384, 1, 2, 2, 75},  {96, 512, 1, 2, 2, 63},  {64, 768, 1, 2, 2, 46},  {160, 256, 1, 2, 2, 76},
    {64, 640, 1, 2, 2, 45},   {96, 384, 1, 2, 2, 60},  {256, 128, 1, 2, 2, 66}, {128, 256, 1, 2, 2, 66},
    {64, 512, 1, 2, 2, 44},   {32, 1024, 1, 2, 2, 24}, {224, 128, 1, 2, 2, 63}, {32, 896, 1, 2, 2, 24},
    {192, 128, 1, 2, 2, 60},  {96, 256, 1, 2, 2, 54},  {64, 384, 1, 2, 2, 42},  {32, 768, 1, 2, 2, 24},
    {160, 128, 1, 2, 2, 55},  {32, 640, 1, 2, 2, 23},  {128, 128, 1, 2, 2, 50}, {64, 256, 1, 2, 2, 40},
    {32, 512, 1, 2, 2, 23},   {96, 128, 1, 2, 2, 42},  {32, 384, 1, 2, 2, 23},  {64, 128, 1, 2, 2, 33},
    {32, 256, 1, 2, 2, 22},   {32, 128, 1, 2, 2, 20}};
inline constexpr tile_shape gfx950_fp8_tiles[] = {{192, 256, 1, 2, 2, 85},
                                                  {128, 256, 1, 2, 2, 66},
                                                  {128, 128, 1, 2, 2, 50},
                                                  {64, 256, 1, 2, 2, 40},
                                                  {32, 128, 1, 2, 2, 20}};

struct arch_traits {
  gpu::arch arch;
  const char* name;
  bool multiplies_fnuz = false;  ///< FP8 of the matrix core and of the vendor library is FNUZ, not OCP
  /// Contracts (gemm_contracts.hpp) of MXFP4 with `accurate` and `fast`, and of MXFP8 and tiles converted to BF16.
  /// Null: only `reference`.
  const char *accurate = nullptr, *fast = nullptr, *bf16 = nullptr;
  /// Contracts of the vendor library's GEMMs. Null: not measured.
  const char *library_fp16 = nullptr, *library_fp8 = nullptr, *library_fp8_fast = nullptr;
};

/// Host mode runs the launchers of sm_90 with a stand-in for its kernels and without a vendor library.
inline constexpr arch_traits all_archs[] = {
    {.arch = arch::other, .name = "other"},
    {.arch = arch::host,
     .name = "host",
     .accurate = "mxfp4-accurate-sm90",
     .fast = "mxfp4-fast-sm90",
     .bf16 = "mx-bf16-sm90"},
    {.arch = arch::sm_90,
     .name = "sm_90",
     .accurate = "mxfp4-accurate-sm90",
     .fast = "mxfp4-fast-sm90",
     .bf16 = "mx-bf16-sm90",
     .library_fp16 = "cublas-fp16",
     .library_fp8 = "hopper-fp8-promoted",
     .library_fp8_fast = "hopper-fp8-fast-accumulate"},
    {.arch = arch::gfx942,
     .name = "gfx942",
     .multiplies_fnuz = true,
     .accurate = "mxfp4-reference",
     .fast = "mxfp4-reference",
     .bf16 = "mx-bf16-gfx942"},
    {.arch = arch::gfx950, .name = "gfx950", .accurate = "aiter-a4w4", .fast = "aiter-a4w4", .bf16 = "mxfp8-gfx950"},
};

constexpr const arch_traits& traits_of(arch a) { return all_archs[static_cast<int>(a)]; }
static_assert([] {
  for (const arch_traits& t : all_archs) {
    if (&traits_of(t.arch) != &t) return false;
  }
  return true;
}());

/// Returns the architecture whose name is a prefix of `name` ("gfx950:sramecc+"), or `other`.
constexpr arch arch_from_name(std::string_view name) {
  for (const arch_traits& t : all_archs) {
    if (name.starts_with(t.name)) return t.arch;
  }
  return arch::other;
}

}  // namespace rotoscale::gpu
