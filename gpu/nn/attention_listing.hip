// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMD attention kernels for clang without an SDK. tests/gpu/amd_listings.py reads their disassembly.
#include "gpu/nn/attention_chains.hpp"
#include "gpu/nn/attention_tiles_backward.hpp"
#include "gpu/nn/attention_tiles_forward.hpp"

namespace rotoscale::gpu {

#define ATTENTION(T)                                                                                  \
  template __global__ void attention_dots_kernel<T>(const attention_backward_pass<T>);                \
  template __global__ void chains::forward_kernel<T, 4>(const attention_pass<T>);                     \
  template __global__ void chains::queries_kernel<T, 4>(const attention_backward_pass<T>);            \
  template __global__ void chains::keys_kernel<T, 4>(const attention_backward_pass<T>);               \
  template __global__ void tiles::forward_kernel<mfma_unit, T, 64>(const attention_pass<T>,           \
                                                                   const no_tile_engine::maps);       \
  template __global__ void tiles::forward_kernel<mfma_unit, T, 128>(const attention_pass<T>,          \
                                                                    const no_tile_engine::maps);      \
  template __global__ void tiles::queries_kernel<mfma_unit, T, 64>(const attention_backward_pass<T>,  \
                                                                   const no_tile_engine::maps);       \
  template __global__ void tiles::queries_kernel<mfma_unit, T, 128>(const attention_backward_pass<T>, \
                                                                    const no_tile_engine::maps);      \
  template __global__ void tiles::keys_kernel<mfma_unit, T, 64>(const attention_backward_pass<T>,     \
                                                                const no_tile_engine::maps);          \
  template __global__ void tiles::keys_kernel<mfma_unit, T, 128>(const attention_backward_pass<T>,    \
                                                                 const no_tile_engine::maps);
ATTENTION(float)
ATTENTION(bf16)

}  // namespace rotoscale::gpu
