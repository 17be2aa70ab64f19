// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Table of the NVIDIA instructions that the probe runs (compute capability 9.0).
#pragma once

#include "examples/probe/nvidia_kernels.hpp"

namespace rotoscale::probe {

struct device_entry {
  probed_instruction what;
  void (*launch)(tile_pointers);
  void (*launch_gemm)(gemm_pointers);  ///< null: not available for this form
};

template <class Tile>
unsigned blocks_of(std::int64_t tiles) {
  return static_cast<unsigned>((tiles + Tile::tiles_a_block - 1) / Tile::tiles_a_block);
}

template <class Tile, instruction_form Form>
device_entry tile_entry(const char* unit, const char* name, format a, format b, int k) {
  constexpr bool plain = !Form.sparse && !Form.negate_a && !Form.negate_b && !Form.zero_c;
  constexpr int threads = Tile::threads * Tile::tiles_a_block;
  device_entry e{{unit, name, a, b, Tile::fp16 ? formats::fp16 : formats::fp32, Tile::rows, 8, k, Form, plain},
                 [](tile_pointers p) { tiles_kernel<Tile><<<blocks_of<Tile>(p.tiles), threads>>>(p); },
                 nullptr};
  if constexpr (plain) {
    e.launch_gemm = [](gemm_pointers p) {
      gemm_kernel<Tile><<<blocks_of<Tile>(p.m / Tile::rows * (p.n / 8)), threads>>>(p);
    };
  }
  return e;
}

inline constexpr instruction_form minus_a{.negate_a = true}, minus_b{.negate_b = true},
    minus_both{.negate_a = true, .negate_b = true}, no_c{.zero_c = true};

/// MetadataBytes: bytes per row, 0 for dense forms.
template <class Instruction, bool Fp16, int RowBytes, int MetadataBytes,
          instruction_form Form = instruction_form{.sparse = MetadataBytes != 0}>
device_entry warp_entry(const char* unit, const char* name, format a, format b, int k) {
  return tile_entry<warp_tile<Instruction, Fp16, RowBytes, MetadataBytes>, Form>(unit, name, a, b, k);
}
template <class Instruction, bool Fp16, int RowBytes, int MetadataBytes,
          instruction_form Form = instruction_form{.sparse = MetadataBytes != 0}>
device_entry group_entry(const char* unit, const char* name, format a, format b, int k) {
  return tile_entry<group_tile<Instruction, Fp16, RowBytes, MetadataBytes>, Form>(unit, name, a, b, k);
}

template <int Rows, int K>
device_entry fp64_entry(const char* name) {
  return {{"hopper-mma-fp64-f64", name, formats::fp64, formats::fp64, formats::fp64, Rows, 8, K, {}, true},
          [](tile_pointers p) { fp64_tiles_kernel<Rows, K><<<static_cast<unsigned>(p.tiles), 32>>>(p); },
          [](gemm_pointers p) { fp64_gemm_kernel<Rows, K><<<static_cast<unsigned>(p.m / Rows * (p.n / 8)), 32>>>(p); }};
}

// clang-format off
const device_entry entries[] = {
    warp_entry<mma_f16_k16, false, 32, 0>("hopper-mma-fp16-f32", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        formats::fp16, formats::fp16, 16),
    warp_entry<mma_f16_k16_f16, true, 32, 0>("hopper-mma-fp16-f16", "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
        formats::fp16, formats::fp16, 16),
    warp_entry<mma_f16_k8, false, 16, 0>("hopper-mma-k8-fp16-f32", "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
        formats::fp16, formats::fp16, 8),
    warp_entry<mma_f16_k8_f16, true, 16, 0>("hopper-mma-k8-fp16-f16",
        "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16", formats::fp16, formats::fp16, 8),
    warp_entry<mma_bf16_k16, false, 32, 0>("hopper-mma-fp16-f32", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        formats::bf16, formats::bf16, 16),
    warp_entry<mma_bf16_k8, false, 16, 0>("hopper-mma-k8-fp16-f32",
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", formats::bf16, formats::bf16, 8),
    warp_entry<mma_tf32_k8, false, 32, 0>("hopper-mma-tf32-f32", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
        formats::tf32, formats::tf32, 8),
    warp_entry<mma_tf32_k4, false, 16, 0>("hopper-mma-k4-tf32-f32",
        "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32", formats::tf32, formats::tf32, 4),
    warp_entry<mma_e4m3_e4m3_k32_f32, false, 32, 0>("hopper-mma-fp8-f32",
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", formats::e4m3, formats::e4m3, 32),
    warp_entry<mma_e4m3_e4m3_k16_f32, false, 16, 0>("hopper-mma-k16-fp8-f32",
        "mma.sync.aligned.m16n8k16.row.col.f32.e4m3.e4m3.f32", formats::e4m3, formats::e4m3, 16),
    warp_entry<mma_e4m3_e4m3_k32_f16, true, 32, 0>("hopper-mma-fp8-f16",
        "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e4m3.f16", formats::e4m3, formats::e4m3, 32),
    warp_entry<mma_e4m3_e4m3_k16_f16, true, 16, 0>("hopper-mma-k16-fp8-f16",
        "mma.sync.aligned.m16n8k16.row.col.f16.e4m3.e4m3.f16", formats::e4m3, formats::e4m3, 16),
    warp_entry<mma_e4m3_e5m2_k32_f32, false, 32, 0>("hopper-mma-fp8-f32",
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32", formats::e4m3, formats::e5m2, 32),
    warp_entry<mma_e4m3_e5m2_k32_f16, true, 32, 0>("hopper-mma-fp8-f16",
        "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e5m2.f16", formats::e4m3, formats::e5m2, 32),
    warp_entry<mma_e5m2_e4m3_k32_f32, false, 32, 0>("hopper-mma-fp8-f32",
        "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32", formats::e5m2, formats::e4m3, 32),
    warp_entry<mma_e5m2_e4m3_k32_f16, true, 32, 0>("hopper-mma-fp8-f16",
        "mma.sync.aligned.m16n8k32.row.col.f16.e5m2.e4m3.f16", formats::e5m2, formats::e4m3, 32),
    warp_entry<mma_e5m2_e5m2_k32_f32, false, 32, 0>("hopper-mma-fp8-f32",
        "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32", formats::e5m2, formats::e5m2, 32),
    warp_entry<mma_e5m2_e5m2_k16_f32, false, 16, 0>("hopper-mma-k16-fp8-f32",
        "mma.sync.aligned.m16n8k16.row.col.f32.e5m2.e5m2.f32", formats::e5m2, formats::e5m2, 16),
    warp_entry<mma_e5m2_e5m2_k32_f16, true, 32, 0>("hopper-mma-fp8-f16",
        "mma.sync.aligned.m16n8k32.row.col.f16.e5m2.e5m2.f16", formats::e5m2, formats::e5m2, 32),
    warp_entry<mma_e5m2_e5m2_k16_f16, true, 16, 0>("hopper-mma-k16-fp8-f16",
        "mma.sync.aligned.m16n8k16.row.col.f16.e5m2.e5m2.f16", formats::e5m2, formats::e5m2, 16),
    group_entry<wgmma_f16, false, 32, 0>("hopper-mma-fp16-f32", "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16",
        formats::fp16, formats::fp16, 16),
    group_entry<wgmma_f16_f16, true, 32, 0>("hopper-mma-fp16-f16", "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16",
        formats::fp16, formats::fp16, 16),
    group_entry<wgmma_bf16, false, 32, 0>("hopper-mma-fp16-f32", "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16",
        formats::bf16, formats::bf16, 16),
    group_entry<wgmma_tf32, false, 32, 0>("hopper-mma-tf32-f32", "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32",
        formats::tf32, formats::tf32, 8),
    group_entry<wgmma_e4m3_e4m3_f32, false, 32, 0>("hopper-wgmma-fp8-f32",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", formats::e4m3, formats::e4m3, 32),
    group_entry<wgmma_e4m3_e4m3_f16, true, 32, 0>("hopper-wgmma-fp8-f16",
        "wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e4m3", formats::e4m3, formats::e4m3, 32),
    group_entry<wgmma_e4m3_e5m2_f32, false, 32, 0>("hopper-wgmma-fp8-f32",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e5m2", formats::e4m3, formats::e5m2, 32),
    group_entry<wgmma_e4m3_e5m2_f16, true, 32, 0>("hopper-wgmma-fp8-f16",
        "wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e5m2", formats::e4m3, formats::e5m2, 32),
    group_entry<wgmma_e5m2_e4m3_f32, false, 32, 0>("hopper-wgmma-fp8-f32",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e4m3", formats::e5m2, formats::e4m3, 32),
    group_entry<wgmma_e5m2_e4m3_f16, true, 32, 0>("hopper-wgmma-fp8-f16",
        "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e4m3", formats::e5m2, formats::e4m3, 32),
    group_entry<wgmma_e5m2_e5m2_f32, false, 32, 0>("hopper-wgmma-fp8-f32",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e5m2", formats::e5m2, formats::e5m2, 32),
    group_entry<wgmma_e5m2_e5m2_f16, true, 32, 0>("hopper-wgmma-fp8-f16",
        "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e5m2", formats::e5m2, formats::e5m2, 32),
    warp_entry<sparse_f16_k32, false, 32, 4>("hopper-sparse-fp16-f32",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", formats::fp16, formats::fp16, 32),
    warp_entry<sparse_f16_k32_f16, true, 32, 4>("hopper-sparse-fp16-f16",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f16.f16.f16.f16", formats::fp16, formats::fp16, 32),
    warp_entry<sparse_f16_k16, false, 16, 2>("hopper-sparse-k16-fp16-f32",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", formats::fp16, formats::fp16, 16),
    warp_entry<sparse_f16_k16_f16, true, 16, 2>("hopper-sparse-k16-fp16-f16",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", formats::fp16, formats::fp16, 16),
    warp_entry<sparse_bf16_k32, false, 32, 4>("hopper-sparse-fp16-f32",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32", formats::bf16, formats::bf16, 32),
    warp_entry<sparse_bf16_k16, false, 16, 2>("hopper-sparse-k16-fp16-f32",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", formats::bf16, formats::bf16, 16),
    warp_entry<sparse_tf32_k16, false, 32, 4>("hopper-sparse-tf32-f32",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32", formats::tf32, formats::tf32, 16),
    warp_entry<sparse_tf32_k8, false, 16, 2>("hopper-sparse-k8-tf32-f32",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", formats::tf32, formats::tf32, 8),
    warp_entry<sparse_e4m3_e4m3_f32, false, 32, 8>("hopper-sparse-mma-fp8-f32",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.f32.e4m3.e4m3.f32", formats::e4m3, formats::e4m3, 64),
    warp_entry<sparse_e4m3_e5m2_f32, false, 32, 8>("hopper-sparse-mma-fp8-f32",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.f32.e4m3.e5m2.f32", formats::e4m3, formats::e5m2, 64),
    warp_entry<sparse_e5m2_e4m3_f32, false, 32, 8>("hopper-sparse-mma-fp8-f32",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.f32.e5m2.e4m3.f32", formats::e5m2, formats::e4m3, 64),
    warp_entry<sparse_e5m2_e5m2_f32, false, 32, 8>("hopper-sparse-mma-fp8-f32",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.f32.e5m2.e5m2.f32", formats::e5m2, formats::e5m2, 64),
    group_entry<wgmma_sparse_f16_f32, false, 32, 4>("hopper-sparse-fp16-f32",
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16", formats::fp16, formats::fp16, 32),
    group_entry<wgmma_sparse_f16_f16, true, 32, 4>("hopper-sparse-fp16-f16",
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f16.f16.f16", formats::fp16, formats::fp16, 32),
    group_entry<wgmma_sparse_bf16_f32, false, 32, 4>("hopper-sparse-fp16-f32",
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16", formats::bf16, formats::bf16, 32),
    group_entry<wgmma_sparse_tf32, false, 32, 4>("hopper-sparse-tf32-f32",
        "wgmma.mma_async.sp.sync.aligned.m64n8k16.f32.tf32.tf32", formats::tf32, formats::tf32, 16),
    group_entry<wgmma_sparse_e4m3_e4m3_f32, false, 32, 8>("hopper-sparse-wgmma-fp8-f32",
        "wgmma.mma_async.sp.sync.aligned.m64n8k64.f32.e4m3.e4m3", formats::e4m3, formats::e4m3, 64),
    group_entry<wgmma_sparse_e4m3_e4m3_f16, true, 32, 8>("hopper-sparse-wgmma-fp8-f16",
        "wgmma.mma_async.sp.sync.aligned.m64n8k64.f16.e4m3.e4m3", formats::e4m3, formats::e4m3, 64),
    group_entry<wgmma_sparse_e4m3_e5m2_f32, false, 32, 8>("hopper-sparse-wgmma-fp8-f32",
        "wgmma.mma_async.sp.sync.aligned.m64n8k64.f32.e4m3.e5m2", formats::e4m3, formats::e5m2, 64),
    group_entry<wgmma_sparse_e4m3_e5m2_f16, true, 32, 8>("hopper-sparse-wgmma-fp8-f16",
        "wgmma.mma_async.sp.sync.aligned.m64n8k64.f16.e4m3.e5m2", formats::e4m3, formats::e5m2, 64),
    group_entry<wgmma_sparse_e5m2_e4m3_f32, false, 32, 8>("hopper-sparse-wgmma-fp8-f32",
        "wgmma.mma_async.sp.sync.aligned.m64n8k64.f32.e5m2.e4m3", formats::e5m2, formats::e4m3, 64),
    group_entry<wgmma_sparse_e5m2_e4m3_f16, true, 32, 8>("hopper-sparse-wgmma-fp8-f16",
        "wgmma.mma_async.sp.sync.aligned.m64n8k64.f16.e5m2.e4m3", formats::e5m2, formats::e4m3, 64),
    group_entry<wgmma_sparse_e5m2_e5m2_f32, false, 32, 8>("hopper-sparse-wgmma-fp8-f32",
        "wgmma.mma_async.sp.sync.aligned.m64n8k64.f32.e5m2.e5m2", formats::e5m2, formats::e5m2, 64),
    group_entry<wgmma_sparse_e5m2_e5m2_f16, true, 32, 8>("hopper-sparse-wgmma-fp8-f16",
        "wgmma.mma_async.sp.sync.aligned.m64n8k64.f16.e5m2.e5m2", formats::e5m2, formats::e5m2, 64),
    group_entry<wgmma_f16_f32_minus_a, false, 32, 0, minus_a>("hopper-mma-fp16-f32",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 imm-scale-a -1", formats::fp16, formats::fp16, 16),
    group_entry<wgmma_f16_f32_minus_b, false, 32, 0, minus_b>("hopper-mma-fp16-f32",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 imm-scale-b -1", formats::fp16, formats::fp16, 16),
    group_entry<wgmma_f16_f32_minus_both, false, 32, 0, minus_both>("hopper-mma-fp16-f32",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 imm-scale-a -1 imm-scale-b -1", formats::fp16, formats::fp16, 16),
    group_entry<wgmma_f16_f32_no_c, false, 32, 0, no_c>("hopper-mma-fp16-f32",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 scale-d 0", formats::fp16, formats::fp16, 16),
    group_entry<wgmma_f16_f16_minus_a, true, 32, 0, minus_a>("hopper-mma-fp16-f16",
        "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 imm-scale-a -1", formats::fp16, formats::fp16, 16),
    group_entry<wgmma_f16_f16_minus_b, true, 32, 0, minus_b>("hopper-mma-fp16-f16",
        "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 imm-scale-b -1", formats::fp16, formats::fp16, 16),
    group_entry<wgmma_f16_f16_minus_both, true, 32, 0, minus_both>("hopper-mma-fp16-f16",
        "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 imm-scale-a -1 imm-scale-b -1", formats::fp16, formats::fp16, 16),
    group_entry<wgmma_f16_f16_no_c, true, 32, 0, no_c>("hopper-mma-fp16-f16",
        "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 scale-d 0", formats::fp16, formats::fp16, 16),
    group_entry<wgmma_bf16_f32_minus_a, false, 32, 0, minus_a>("hopper-mma-fp16-f32",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 imm-scale-a -1", formats::bf16, formats::bf16, 16),
    group_entry<wgmma_bf16_f32_minus_b, false, 32, 0, minus_b>("hopper-mma-fp16-f32",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 imm-scale-b -1", formats::bf16, formats::bf16, 16),
    group_entry<wgmma_bf16_f32_minus_both, false, 32, 0, minus_both>("hopper-mma-fp16-f32",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 imm-scale-a -1 imm-scale-b -1", formats::bf16, formats::bf16, 16),
    group_entry<wgmma_bf16_f32_no_c, false, 32, 0, no_c>("hopper-mma-fp16-f32",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 scale-d 0", formats::bf16, formats::bf16, 16),
    group_entry<wgmma_tf32_f32_minus_a, false, 32, 0, minus_a>("hopper-mma-tf32-f32",
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 imm-scale-a -1", formats::tf32, formats::tf32, 8),
    group_entry<wgmma_tf32_f32_minus_b, false, 32, 0, minus_b>("hopper-mma-tf32-f32",
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 imm-scale-b -1", formats::tf32, formats::tf32, 8),
    group_entry<wgmma_tf32_f32_minus_both, false, 32, 0, minus_both>("hopper-mma-tf32-f32",
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 imm-scale-a -1 imm-scale-b -1", formats::tf32, formats::tf32, 8),
    group_entry<wgmma_tf32_f32_no_c, false, 32, 0, no_c>("hopper-mma-tf32-f32",
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 scale-d 0", formats::tf32, formats::tf32, 8),
    group_entry<wgmma_e4m3_f32_minus_a, false, 32, 0, minus_a>("hopper-wgmma-fp8-f32",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 imm-scale-a -1", formats::e4m3, formats::e4m3, 32),
    group_entry<wgmma_e4m3_f32_minus_b, false, 32, 0, minus_b>("hopper-wgmma-fp8-f32",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 imm-scale-b -1", formats::e4m3, formats::e4m3, 32),
    group_entry<wgmma_e4m3_f32_minus_both, false, 32, 0, minus_both>("hopper-wgmma-fp8-f32",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 imm-scale-a -1 imm-scale-b -1", formats::e4m3, formats::e4m3, 32),
    group_entry<wgmma_e4m3_f32_no_c, false, 32, 0, no_c>("hopper-wgmma-fp8-f32",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 scale-d 0", formats::e4m3, formats::e4m3, 32),
    group_entry<wgmma_e5m2_f16_minus_a, true, 32, 0, minus_a>("hopper-wgmma-fp8-f16",
        "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e5m2 imm-scale-a -1", formats::e5m2, formats::e5m2, 32),
    group_entry<wgmma_e5m2_f16_minus_b, true, 32, 0, minus_b>("hopper-wgmma-fp8-f16",
        "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e5m2 imm-scale-b -1", formats::e5m2, formats::e5m2, 32),
    group_entry<wgmma_e5m2_f16_minus_both, true, 32, 0, minus_both>("hopper-wgmma-fp8-f16",
        "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e5m2 imm-scale-a -1 imm-scale-b -1", formats::e5m2, formats::e5m2, 32),
    group_entry<wgmma_e5m2_f16_no_c, true, 32, 0, no_c>("hopper-wgmma-fp8-f16",
        "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e5m2 scale-d 0", formats::e5m2, formats::e5m2, 32),
    fp64_entry<8, 4>("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"),
    fp64_entry<16, 4>("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64"),
    fp64_entry<16, 8>("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64"),
    fp64_entry<16, 16>("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64"),
};
// clang-format on

inline bool runs_here(const device_entry&) { return true; }

}  // namespace rotoscale::probe
