// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What launchers have to know of each architecture, in one table.
#pragma once

#include <span>
#include <string_view>

#include "gpu/api/device.hpp"

namespace rotoscale::gpu {

/// Rows and columns of C that `processors` multiprocessors or compute units compute together, from min_stages to
/// max_stages steps of K in shared memory at a time; `percent` of the matrix unit's rate, roughly, since a processor
/// reads operands of m + n rows for m · n products. Of sm_90's from an H200's int8 kernels. Of AMD's nobody knows:
/// products take their share of the cycles of LDS or caches (gfx950_tile.hpp, amd/dense.hpp); of gfx942's MXFP4 the
/// loop's instructions, of which products are few. gfx950's are all of AITER's FP4 kernels
/// (hsa/gfx950/f4gemm/f4gemm_bf16_per1x32Fp4.csv in ROCm/aiter); dense ones of 64 columns are all of AITER's BF16
/// kernels for gfx942 (hsa/gfx942/bf16gemm/bf16gemm_fp32bf16.csv).
struct tile_shape {
  int m, n, processors, min_stages, max_stages, percent;
};
inline constexpr tile_shape sm90_tiles[] = {
    {256, 256, 2, 2, 4, 100}, {128, 128, 1, 2, 6, 85}, {64, 256, 1, 2, 5, 75}, {256, 64, 1, 2, 5, 75}};
inline constexpr tile_shape gfx942_fp4_tiles[] = {{128, 128, 1, 1, 1, 100}, {32, 128, 1, 1, 1, 60}};
/// Of BF16, and so of MXFP8 on gfx942, which is expanded to it.
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

/// Contracts of gemm_bf16. gfx950 has an instruction of its own that multiplies twice as many k, but nobody knows how
/// it adds; it has gfx942's as well.
inline constexpr const char *hopper_bf16[] = {"mx-bf16-sm90"}, *cdna3_bf16[] = {"mx-bf16-gfx942"},
                            *host_bf16[] = {"mx-bf16-sm90", "mx-bf16-gfx942"};

struct arch_traits {
  gpu::arch arch;
  const char* name;
  /// GEMM operands are expanded in the workspace before a kernel multiplies them: MXFP4 to E5M2, int8 or BF16, MXFP8 to
  /// BF16.
  bool expands_mxfp4 = false, expands_mxfp8 = false;
  /// The matrix unit takes block scales. Its kernel reads scales as AITER stores them (aiter_scale), and codes so
  /// (aiter_data_16x16) or row-major.
  bool has_scaled_mma = false;
  bool multiplies_fnuz = false;  ///< FP8 of the matrix unit and of the vendor's library is FNUZ, not OCP's
  /// A kernel forms fp32_blockwise's sums from MXFP4 operands themselves, k a multiple of 128: FP8 products of a block,
  /// which are exact in a unit that keeps 13 bits.
  bool forms_blockwise_sums = false;
  bool splits_k = false;
  /// Least m * n * k for which the matrix unit, expansion included, beats ordinary cores on MXFP4.
  std::int64_t least_unit_products = std::int64_t{1} << 28;
  std::span<const tile_shape> fp4_tiles{}, fp8_tiles{};  ///< that GEMM kernels have; the first is the largest
  bool walks_bands = false;  ///< tiles in bands of as many rows or columns as the caller says
  int grain = 1;             ///< parts of K are multiples of this
  int k_multiple = 32;       ///< of MXFP4 operands; of MXFP8's where has_scaled_mma
  /// Contracts (gemm_contracts.hpp) of MXFP4 under `accurate` and `fast`, of MXFP8 and of tiles expanded to BF16; null:
  /// only `reference`.
  const char *accurate = nullptr, *fast = nullptr, *bf16 = nullptr;
  std::span<const char* const> dense_bf16{};  ///< contracts of gemm_bf16, a matrix unit each
  /// Contracts of gemm_fp8, `fp8_fast` without promotion; null: it has no kernel.
  const char *fp8 = nullptr, *fp8_fast = nullptr;
  /// Contracts of the vendor library's plain GEMMs; null: not measured.
  const char *library_fp16 = nullptr, *library_fp8 = nullptr, *library_fp8_fast = nullptr;

  constexpr std::span<const tile_shape> tiles(bool fp8) const { return fp8 ? fp8_tiles : fp4_tiles; }
};

inline constexpr arch_traits sm90_traits = {.arch = arch::sm_90,
                                            .name = "sm_90",
                                            .expands_mxfp4 = true,
                                            .expands_mxfp8 = true,
                                            .splits_k = true,
                                            .fp4_tiles = sm90_tiles,
                                            .fp8_tiles = sm90_tiles,
                                            .walks_bands = true,
                                            .grain = 128,
                                            .accurate = "mxfp4-accurate-sm90",
                                            .fast = "mxfp4-fast-sm90",
                                            .bf16 = "mx-bf16-sm90",
                                            .dense_bf16 = hopper_bf16,
                                            .fp8 = "hopper-fp8-promoted",
                                            .fp8_fast = "hopper-fp8-fast-accumulate",
                                            .library_fp16 = "cublas-fp16",
                                            .library_fp8 = "hopper-fp8-promoted",
                                            .library_fp8_fast = "hopper-fp8-fast-accumulate"};

/// In host mode the launchers of sm_90 run, with a stand-in for its kernels and no vendor library.
constexpr arch_traits host_traits() {
  arch_traits host = sm90_traits;
  host.arch = arch::host;
  host.name = "host";
  host.least_unit_products = 1;
  host.dense_bf16 = host_bf16;
  host.library_fp16 = host.library_fp8 = host.library_fp8_fast = nullptr;
  return host;
}

inline constexpr arch_traits all_archs[] = {
    {.arch = arch::other, .name = "other"},
    host_traits(),
    sm90_traits,
    {.arch = arch::gfx942,
     .name = "gfx942",
     .expands_mxfp8 = true,
     .multiplies_fnuz = true,
     .forms_blockwise_sums = true,
     .fp4_tiles = gfx942_fp4_tiles,
     .fp8_tiles = dense_tiles,
     .grain = 256,
     .k_multiple = 128,
     .accurate = "mxfp4-reference",
     .fast = "mxfp4-reference",
     .bf16 = "mx-bf16-gfx942",
     .dense_bf16 = cdna3_bf16},
    {.arch = arch::gfx950,
     .name = "gfx950",
     .has_scaled_mma = true,
     .forms_blockwise_sums = true,
     .splits_k = true,
     .fp4_tiles = gfx950_fp4_tiles,
     .fp8_tiles = gfx950_fp8_tiles,
     .grain = 256,
     .k_multiple = 256,
     .accurate = "aiter-a4w4",
     .fast = "aiter-a4w4",
     .bf16 = "mxfp8-gfx950",
     .dense_bf16 = cdna3_bf16},
};

constexpr const arch_traits& traits_of(arch a) { return all_archs[static_cast<int>(a)]; }
static_assert([] {
  for (const arch_traits& t : all_archs) {
    if (&traits_of(t.arch) != &t) return false;
  }
  return true;
}());

/// The architecture that a name begins with ("gfx950:sramecc+"), or `other`.
constexpr arch arch_from_name(std::string_view name) {
  for (const arch_traits& t : all_archs) {
    if (name.starts_with(t.name)) return t.arch;
  }
  return arch::other;
}

}  // namespace rotoscale::gpu
