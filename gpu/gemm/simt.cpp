// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches GEMMs on CUDA cores or VALUs, and decode_operand of gpu/api/dequantize.hpp.
#include "gpu/api/dequantize.hpp"
#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/blockwise.hpp"
#include "gpu/gemm/check.hpp"
#include "gpu/gemm/simt_operand.hpp"

namespace rotoscale::gpu {

namespace {

using namespace detail;

/// Number of tiles of 16 R rows and columns.
template <int R>
std::int64_t tiles_of(const simt_arguments& p) {
  constexpr std::int64_t tile = 16 * R;
  return (p.a.rows + tile - 1) / tile * ((p.b.rows + tile - 1) / tile);
}
template <int R>
status run(void (*kernel)(simt_arguments), const simt_arguments& p, stream s) {
  return launch(kernel, blocks(tiles_of<R>(p)), blocks(simt_threads), 0, s, p);
}

/// Launches with the largest tile that still gives every SM or CU a tile. Tiles of one output per thread read twice as
/// much shared memory per product as tiles of four outputs. They are used only if each tile has an SM or CU to itself.
status run_chain(const simt_arguments& p, int processors, stream s) {
  if (tiles_of<max_owned>(p) >= processors) return run<max_owned>(chain_kernel<max_owned>, p, s);
  if (tiles_of<4>(p) >= processors) return run<4>(chain_kernel<4>, p, s);
  return tiles_of<1>(p) > processors ? run<2>(chain_kernel<2>, p, s) : run<1>(chain_kernel<1>, p, s);
}
status run_blockwise(const simt_arguments& p, int processors, stream s) {
  return tiles_of<4>(p) >= processors ? run<4>(blockwise_kernel<4>, p, s) : run<2>(blockwise_kernel<2>, p, s);
}

}  // namespace

status detail::check_simt(const gemm_call& c) {
  simt_arguments p;
  if (status s = take_call(c, p); !s.ok()) return s;
  return check_plain_epilogue(c);
}

status detail::launch_simt(const gemm_launch& l) {
  simt_arguments p;
  if (status s = take_call(l.call, p); !s.ok()) return s;
  if (p.a.rows == 0 || p.b.rows == 0) return {};
  return options_of(l.kernel).model == fp32_fma_chain ? run_chain(p, l.device.processors, l.stream)
                                                      : run_blockwise(p, l.device.processors, l.stream);
}

status decode_operand(const gemm_operand& from, bool transposed, void* to, format stored, index_t stride,
                      stream stream) {
  decode_arguments a;
  if (status s = take_operand(from, names_of_from, a.from); !s.ok()) return s;
  if (!is_result_format(stored)) return {error_code::bad_option, "stored", "must be FP32 or BF16"};
  if (from.rows == 0 || from.k == 0) return {};
  if (stride < (transposed ? from.rows : from.k)) {
    return {error_code::bad_extent, "stride", "must not be less than a row"};
  }
  if (status s = check_pointer(to, stored == formats::bf16 ? 2 : 4, "to"); !s.ok()) return s;
  if (status s = check_ready(stream); !s.ok()) return s;
  a.k = static_cast<int>(from.k);
  a.transposed = transposed;
  a.bf16_stored = stored == formats::bf16;
  a.to = to;
  a.stride = stride;
  const index_t needed = (from.rows * from.k + simt_threads - 1) / simt_threads;
  return launch(decode_kernel, blocks(needed < 8192 ? needed : 8192), blocks(simt_threads), 0, stream, a);
}

}  // namespace rotoscale::gpu
