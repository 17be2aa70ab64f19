// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launcher of gpu/api/gemm_definition.hpp.
#include "gpu/api/device.hpp"
#include "gpu/api/gemm_definition.hpp"
#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/blockwise.hpp"

namespace rotoscale::gpu {

namespace {

bool is_plain(const gemm_operand& x) {
  return x.code_order == placement::row_major && x.scale_order == placement::row_major && x.block_rows == 1 &&
         (x.block == 0 || (x.block == 32 && x.scale == formats::e8m0 && x.k % 32 == 0 && !x.transposed));
}

/// Fills `to`; `first` names a, else b.
status take_operand(const gemm_operand& x, bool first, definition_operand& to) {
  const auto named = [first](const char* a, const char* b) { return first ? a : b; };
  constexpr struct {
    format of;
    dense_element element;
  } known[] = {{formats::fp32, dense_element::fp32},
               {formats::bf16, dense_element::bf16},
               {formats::e4m3, dense_element::e4m3},
               {formats::e5m2, dense_element::e5m2},
               {formats::e2m1, dense_element::e2m1}};
  bool found = false;
  for (const auto& e : known) {
    if (e.of != x.element) continue;
    to.element = e.element;
    found = true;
  }
  const bool fp4 = x.element == formats::e2m1, wide = x.element.bits() >= 16;
  if (!found || fp4 != (x.block != 0 && fp4) || (wide && x.block != 0)) {
    return {error_code::bad_option, named("a.element", "b.element"),
            "must be FP32, BF16, E4M3 or E5M2, or blocks of E2M1, E4M3 or E5M2"};
  }
  if (!is_plain(x)) {
    return {error_code::bad_option, named("a.code_order", "b.code_order"),
            "must be row_major, blocks 1 x 32 with E8M0 scales, not transposed"};
  }
  if (x.rows < 0 || x.k < 0 || x.rows > 1 << 24 || x.k > 1 << 24) {
    return {error_code::bad_extent, named("a.rows", "b.rows"), "extents must be 0 to 2^24"};
  }
  const int bytes = fp4 ? 1 : x.element.bits() / 8;
  to.codes = x.codes;
  to.row_step = x.transposed ? bytes : x.code_stride;
  to.k_step = x.transposed ? x.code_stride : bytes;
  to.k_contiguous = !x.transposed;
  to.scales = x.scales;
  to.scale_stride = x.scale_stride;
  to.factor = x.factor;
  to.rows = static_cast<int>(x.rows);
  if (x.rows == 0 || x.k == 0) return {};
  const std::uintptr_t alignment = fp4 ? 4 : static_cast<std::uintptr_t>(bytes);
  if (fp4 && x.code_stride % 4 != 0) {
    return {error_code::bad_extent, named("a.code_stride", "b.code_stride"), "must be a multiple of 4"};
  }
  return check_pointer(x.codes, alignment, named("a.codes", "b.codes"));
}

/// Tiles of 16 R rows and columns.
template <int R>
std::int64_t tiles_of(const definition_arguments& p) {
  constexpr std::int64_t tile = 16 * R;
  return (p.a.rows + tile - 1) / tile * ((p.b.rows + tile - 1) / tile);
}
template <int R>
status run(defined_sum sum, const definition_arguments& p, stream s) {
  const auto kernel = sum == defined_sum::blockwise ? blockwise_kernel < R < 4 ? R : 4 > : chain_kernel<R>;
  return launch(kernel, blocks(tiles_of<R>(p)), blocks(definition_threads), 0, s, p);
}

}  // namespace

status gemm_defined(defined_sum sum, const gemm_operand& a, const gemm_operand& b, const defined_result& r,
                    stream stream) {
  definition_arguments p;
  if (status s = take_operand(a, true, p.a); !s.ok()) return s;
  if (status s = take_operand(b, false, p.b); !s.ok()) return s;
  if (a.k != b.k) return {error_code::bad_extent, "b.k", "must equal a.k"};
  if (sum == defined_sum::blockwise && (a.element != formats::e2m1 || b.element != formats::e2m1)) {
    return {error_code::bad_option, "sum", "blockwise needs blocks of E2M1 on both sides"};
  }
  const auto is_known = [](const format& f) { return f == formats::fp32 || f == formats::bf16; };
  if (!is_known(r.stored) || !is_known(r.output)) return {error_code::bad_option, "r.stored", "must be FP32 or BF16"};
  p.bf16_stored = r.stored == formats::bf16;
  p.bf16_rounded = r.output == formats::bf16;
  p.accumulate = r.accumulate;
  if (a.rows == 0 || b.rows == 0) return {};
  if (status s = check_pointer(r.out, p.bf16_stored ? 2 : 4, "r.out"); !s.ok()) return s;
  p.k = static_cast<int>(a.k);
  p.out = r.out;
  p.out_stride = r.out_stride == 0 ? b.rows : r.out_stride;
  device_info device;
  if (status s = current_device(device); !s.ok()) return s;
  if (status s = check_stream(stream); !s.ok()) return s;
  // The largest tile that leaves no processor idle.
  if (sum == defined_sum::fma_chain && tiles_of<most_owned>(p) >= device.processors) {
    return run<most_owned>(sum, p, stream);
  }
  return tiles_of<4>(p) >= device.processors ? run<4>(sum, p, stream) : run<2>(sum, p, stream);
}

status decode_operand(const gemm_operand& from, bool turned, void* to, format stored, index_t stride, stream stream) {
  decode_arguments a;
  if (status s = take_operand(from, true, a.from); !s.ok()) return s;
  if (stored != formats::fp32 && stored != formats::bf16) {
    return {error_code::bad_option, "stored", "must be FP32 or BF16"};
  }
  if (from.rows == 0 || from.k == 0) return {};
  if (status s = check_pointer(to, stored == formats::bf16 ? 2 : 4, "to"); !s.ok()) return s;
  if (status s = check_stream(stream); !s.ok()) return s;
  a.k = static_cast<int>(from.k);
  a.turned = turned;
  a.bf16_stored = stored == formats::bf16;
  a.to = to;
  a.stride = stride;
  const index_t needed = (from.rows * from.k + definition_threads - 1) / definition_threads;
  return launch(decode_kernel, blocks(needed < 8192 ? needed : 8192), blocks(definition_threads), 0, stream, a);
}

}  // namespace rotoscale::gpu
