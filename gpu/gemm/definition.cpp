// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launchers of gpu/api/gemm_definition.hpp, except unrotate_operand.
#include "gpu/api/device.hpp"
#include "gpu/api/gemm_definition.hpp"
#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/blockwise.hpp"
#include "gpu/gemm/check.hpp"
#include "gpu/gemm/definition_operand.hpp"

namespace rotoscale::gpu {

namespace {

using namespace detail;

/// Number of tiles of 16 R rows and columns.
template <int R>
std::int64_t tiles_of(const definition_arguments& p) {
  constexpr std::int64_t tile = 16 * R;
  return (p.a.rows + tile - 1) / tile * ((p.b.rows + tile - 1) / tile);
}
template <int R>
status run(void (*kernel)(definition_arguments), const definition_arguments& p, stream s) {
  return launch(kernel, blocks(tiles_of<R>(p)), blocks(definition_threads), 0, s, p);
}

/// Launches with the largest tile that still gives every SM or CU a tile. Tiles of one output per thread read twice as
/// much shared memory per product as tiles of four outputs. They are used only if each tile has an SM or CU to itself.
status run_chain(const definition_arguments& p, int processors, stream s) {
  if (tiles_of<max_owned>(p) >= processors) return run<max_owned>(chain_kernel<max_owned>, p, s);
  if (tiles_of<4>(p) >= processors) return run<4>(chain_kernel<4>, p, s);
  return tiles_of<1>(p) > processors ? run<2>(chain_kernel<2>, p, s) : run<1>(chain_kernel<1>, p, s);
}
status run_blockwise(const definition_arguments& p, int processors, stream s) {
  return tiles_of<4>(p) >= processors ? run<4>(blockwise_kernel<4>, p, s) : run<2>(blockwise_kernel<2>, p, s);
}

/// True if a matrix unit's kernels can read an operand that take_operand accepts.
bool is_for_unit(const gemm_operand& x) {
  return x.block_rows == 1 && x.factor == nullptr && x.code_stride % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(x.codes) % 16 == 0;
}

}  // namespace

status gemm_by_definition(definition_sum sum, const gemm_operand& a, const gemm_operand& b, const sum_output& r,
                          stream stream, void* workspace, std::size_t workspace_bytes) {
  definition_arguments p;
  if (status s = take_operand(a, names_of_a, p.a); !s.ok()) return s;
  if (status s = take_operand(b, names_of_b, p.b); !s.ok()) return s;
  if (a.k != b.k) return {error_code::bad_extent, "b.k", "must equal a.k"};
  const auto is_mxfp4 = [](const gemm_operand& x) {
    return x.element == formats::e2m1 && x.block == 32 && x.scale == formats::e8m0;
  };
  if (sum == definition_sum::blockwise && !(is_mxfp4(a) && is_mxfp4(b))) {
    return {error_code::bad_option, "sum", "blockwise needs MXFP4 on both sides"};
  }
  if (status s = check_sum_output(r, a.rows, b.rows); !s.ok()) return s;
  p.bf16_stored = r.stored == formats::bf16;
  p.bf16_rounded = r.output == formats::bf16;
  p.accumulate = r.accumulate;
  if (a.rows == 0 || b.rows == 0) return {};
  p.k = static_cast<int>(a.k);
  p.out = r.out;
  p.out_stride = r.out_stride == 0 ? b.rows : r.out_stride;
  device_info device;
  if (status s = current_device(device); !s.ok()) return s;
  if (status s = check_stream(stream); !s.ok()) return s;
  if (sum == definition_sum::blockwise && is_for_unit(a) && is_for_unit(b) &&
      has_blockwise_unit(a, b, workspace, workspace_bytes, device)) {
    return run_blockwise_on_unit(a, b, p, r, workspace, device, stream);
  }
  return sum == definition_sum::fma_chain ? run_chain(p, device.processors, stream)
                                          : run_blockwise(p, device.processors, stream);
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
  const index_t needed = (from.rows * from.k + definition_threads - 1) / definition_threads;
  return launch(decode_kernel, blocks(needed < 8192 ? needed : 8192), blocks(definition_threads), 0, stream, a);
}

}  // namespace rotoscale::gpu
