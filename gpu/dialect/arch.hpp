// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Table of architecture properties that launchers use: tile shapes, contracts, GEMM features.
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
/// - sm_90: measured on an H200 with int8 kernels.
/// - AMD: estimated, not measured, from the share of LDS or cache cycles (gfx950_tile.hpp, amd/dense.hpp).
/// - gfx942 MXFP4: estimated from the loop's instructions, few of which are products.
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

/// Contracts of gemm_bf16. gfx950 runs gfx942's instruction. Its own, with twice the k, adds in an unknown order.
inline constexpr const char *hopper_bf16[] = {"mx-bf16-sm90"}, *cdna3_bf16[] = {"mx-bf16-gfx942"},
                            *host_bf16[] = {"mx-bf16-sm90", "mx-bf16-gfx942"};

struct arch_traits {
  gpu::arch arch;
  const char* name;
  /// GEMM operands are expanded in the workspace first: MXFP4 to E5M2, int8 or BF16, and MXFP8 to BF16.
  bool expands_mxfp4 = false, expands_mxfp8 = false;
  /// The matrix core takes block scales. Its kernel reads scales in AITER's layout (aiter_scale), and codes in AITER's
  /// (aiter_data_16x16) or row-major.
  bool has_scaled_mma = false;
  bool multiplies_fnuz = false;  ///< FP8 of the matrix core and of the vendor library is FNUZ, not OCP
  /// One kernel computes fp32_blockwise from MXFP4 operands if k is a multiple of 128. The FP8 products of a block are
  /// exact in an accumulator that keeps 13 bits.
  bool forms_blockwise_sums = false;
  bool splits_k = false;
  /// Least m * n * k for which the matrix core, expansion included, beats ordinary cores on MXFP4.
  std::int64_t least_unit_products = std::int64_t{1} << 28;
  std::span<const tile_shape> fp4_tiles{}, fp8_tiles{};  ///< tiles of the GEMM kernels, largest first
  bool walks_bands = false;                              ///< tiles are walked in bands, whose width the caller sets
  int grain = 1;                                         ///< parts of K are multiples of this
  int k_multiple = 32;                                   ///< of MXFP4 operands, and of MXFP8 if has_scaled_mma
  /// Contracts (gemm_contracts.hpp) of MXFP4 with `accurate` and `fast`, and of MXFP8 and tiles expanded to BF16. Null:
  /// only `reference`.
  const char *accurate = nullptr, *fast = nullptr, *bf16 = nullptr;
  std::span<const char* const> dense_bf16{};  ///< contracts of gemm_bf16, one for each matrix unit
  /// Contracts of gemm_fp8; `fp8_fast` has no promotion. Null: no kernel.
  const char *fp8 = nullptr, *fp8_fast = nullptr;
  /// Contracts of the vendor library's GEMMs. Null: not measured.
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

/// Host mode runs the launchers of sm_90 with a stand-in for its kernels and without a vendor library.
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

/// Returns the architecture whose name is a prefix of `name` ("gfx950:sramecc+"), or `other`.
constexpr arch arch_from_name(std::string_view name) {
  for (const arch_traits& t : all_archs) {
    if (name.starts_with(t.name)) return t.arch;
  }
  return arch::other;
}

}  // namespace rotoscale::gpu
