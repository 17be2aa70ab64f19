// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Argument checks of the GEMM kernels, with their error messages. Each returns the first error.
#pragma once

#include "gpu/gemm/plan.hpp"

namespace rotoscale::gpu::detail {

/// True if results may be stored in this format.
constexpr bool is_result_format(const format& f) { return f == formats::fp32 || f == formats::bf16; }

/// Checks formats and stride of `n` columns of results.
inline status check_result(const gemm_result& r, index_t n) {
  if (!is_result_format(r.stored)) return {error_code::bad_option, "stored", "must be BF16 or FP32"};
  if (!is_result_format(r.output)) return {error_code::bad_option, "output", "must be BF16 or FP32"};
  if (row_stride(r, n) < n) return {error_code::bad_extent, "out_stride", "must be at least n"};
  return {};
}

/// Name of a member of an operand.
struct named_operand {
  bool first;
  const char* operator()(const char* a, const char* b) const { return first ? a : b; }
};
/// Calls check(operand, names) for a, then for b.
template <class Check>
status check_operands(const gemm_call& c, const Check& check) {
  if (status s = check(c.a, named_operand{true}); !s.ok()) return s;
  return check(c.b, named_operand{false});
}

/// Checks that rows in memory are whole 16-byte vectors.
inline status check_vectors(const gemm_operand& x, const named_operand& named) {
  if (x.rows < 1 || x.k < 1 || x.rows > max_gemm_extent || x.k > max_gemm_extent) {
    return {error_code::bad_extent, named("a.rows", "b.rows"), "extents must be 1 to 2^20"};
  }
  if (x.code_order != placement::row_major || x.code_stride < x.row_bytes() || x.code_stride % 16 != 0) {
    return {error_code::bad_extent, named("a.code_stride", "b.code_stride"),
            "must be a multiple of 16, at least a row's bytes"};
  }
  if (x.batch_stride != 0) return {error_code::bad_option, named("a", "b"), "must be one matrix"};
  return check_pointer(x.codes, 16, named("a.codes", "b.codes"));
}
inline status check_bf16(const gemm_call& c) { return check_operands(c, check_vectors); }
inline status check_fp8(const gemm_call& c) {
  return check_operands(c, [](const gemm_operand& x, const named_operand& named) -> status {
    if (x.transposed) {
      return {error_code::bad_option, named("a.transposed", "b.transposed"), "must have k contiguous"};
    }
    if (status s = check_optional(x.factor, named("a.factor", "b.factor")); !s.ok()) return s;
    return check_vectors(x, named);
  });
}

/// Checks blocks of 32 of a row. Orders other than row-major need whole tiles.
inline status check_block_operand(const gemm_operand& x, const named_operand& named) {
  if (x.block_rows != 1) {
    return {error_code::bad_option, named("a.block", "b.block"), "must be 32 elements of a row, with E8M0 scales"};
  }
  if (x.transposed || x.factor != nullptr || x.batch_stride != 0 || x.scale_batch_stride != 0) {
    return {error_code::bad_option, named("a", "b"), "must be one matrix, not transposed, without a factor"};
  }
  if (x.rows < 1 || x.rows > max_gemm_extent)
    return {error_code::bad_extent, named("a.rows", "b.rows"), "must be 1 to 2^20"};
  if (x.k < 32 || x.k > max_gemm_extent || x.k % 32 != 0) {
    return {error_code::bad_extent, named("a.k", "b.k"), "must be a multiple of 32 up to 2^20"};
  }
  if (x.code_order != placement::row_major && !layout{x.code_order, x.rows, x.row_bytes()}.is_defined()) {
    return {error_code::bad_extent, named("a.rows", "b.rows"), "this order of codes needs whole tiles"};
  }
  if (x.code_order == placement::row_major && (x.code_stride < x.row_bytes() || x.code_stride % 16 != 0)) {
    return {error_code::bad_extent, named("a.code_stride", "b.code_stride"),
            "must be a multiple of 16, at least a row's bytes"};
  }
  if (x.scale_order == placement::row_major && x.scale_stride < x.k / 32) {
    return {error_code::bad_extent, named("a.scale_stride", "b.scale_stride"), "must be at least k / 32"};
  }
  if (status s = check_pointer(x.codes, 16, named("a.codes", "b.codes")); !s.ok()) return s;
  return check_pointer(x.scales, x.scale_order == placement::row_major ? 1 : 4, named("a.scales", "b.scales"));
}
inline status check_blocks(const gemm_call& c) { return check_operands(c, check_block_operand); }

inline status check_orders(const gemm_operand& x, const named_operand& named) {
  if (x.code_order != placement::row_major) {
    return {error_code::bad_option, named("a.code_order", "b.code_order"), "this kernel takes row-major codes"};
  }
  if (x.scale_order != placement::row_major) {
    return {error_code::bad_option, named("a.scale_order", "b.scale_order"), "this kernel takes row-major scales"};
  }
  return {};
}

/// Checks blocks of 32 of a row, in row-major order.
inline status check_rows(const gemm_call& c) {
  return check_operands(c, [](const gemm_operand& x, const named_operand& named) -> status {
    if (status s = check_orders(x, named); !s.ok()) return s;
    return check_block_operand(x, named);
  });
}

/// Checks FP8 without block scales that becomes BF16.
inline status check_fp8_operand(const gemm_operand& x, const named_operand& named) {
  if (x.rows < 1 || x.rows > max_gemm_extent || x.k < 1 || x.k > max_gemm_extent || x.k % 8 != 0) {
    return {error_code::bad_extent, named("a.k", "b.k"), "must be a multiple of 8 up to 2^20"};
  }
  if (x.transposed || x.batch_stride != 0) {
    return {error_code::bad_option, named("a", "b"), "must be one matrix, not transposed"};
  }
  if (status s = check_orders(x, named); !s.ok()) return s;
  if (x.code_stride < x.k) {
    return {error_code::bad_extent, named("a.code_stride", "b.code_stride"), "must be at least a row"};
  }
  if (status s = check_optional(x.factor, named("a.factor", "b.factor")); !s.ok()) return s;
  return check_pointer(x.codes, 1, named("a.codes", "b.codes"));
}

/// Checks BF16 operands, FP8, and blocks that dequantize() takes.
inline status check_upconverted(const gemm_call& c) {
  return check_operands(c, [](const gemm_operand& x, const named_operand& named) -> status {
    if (x.element == formats::bf16) return check_vectors(x, named);
    if (x.block == 0) return check_fp8_operand(x, named);
    if (x.rows < 1 || x.rows > max_gemm_extent || x.k < 1 || x.k > max_gemm_extent || x.k % x.block != 0 ||
        x.rows % x.block_rows != 0) {
      return {error_code::bad_extent, named("a.k", "b.k"), "extents must be whole blocks, up to 2^20"};
    }
    if ((x.block_rows != 1 && x.block_rows != x.block) || x.transposed || x.batch_stride != 0 ||
        x.scale_batch_stride != 0) {
      return {error_code::bad_option, named("a", "b"),
              "must be one matrix in blocks of a row or square, not transposed"};
    }
    if (status s = check_orders(x, named); !s.ok()) return s;
    const index_t alignment = x.element.bits() == 6 ? 1 : 4;
    if (x.code_stride < x.row_bytes() || x.code_stride % alignment != 0) {
      return {error_code::bad_extent, named("a.code_stride", "b.code_stride"), "must be a multiple of 4"};
    }
    if (status s = check_pointer(x.codes, alignment, named("a.codes", "b.codes")); !s.ok()) return s;
    if (status s = check_optional(x.factor, named("a.factor", "b.factor")); !s.ok()) return s;
    return check_pointer(x.scales, 1, named("a.scales", "b.scales"));
  });
}

/// True if the output is factor * sum (+ C) alone.
inline status check_plain_epilogue(const gemm_call& c) {
  if (c.alpha == 1.0f && (!c.accumulate || c.beta == 1.0f) && c.bias == nullptr) return {};
  return {error_code::bad_option, "alpha", "this kernel has no alpha, beta or bias"};
}

/// fp32_blockwise on tensor cores.
inline status check_blockwise(const gemm_call& c) {
  if (status s = check_rows(c); !s.ok()) return s;
  return check_plain_epilogue(c);
}

/// Checks the operands of gfx950's scaled matrix instruction, in AITER's layouts.
inline status check_gfx950(const gemm_call& c) {
  if (status s = check_blocks(c); !s.ok()) return s;
  if (c.a.k % 256 != 0) return {error_code::bad_extent, "a.k", "must be a multiple of 256 on gfx950"};
  if (c.b.rows % 16 != 0) return {error_code::bad_extent, "b.rows", "must be a multiple of 16 on gfx950"};
  const status s = check_operands(c, [](const gemm_operand& x, const named_operand& named) -> status {
    if (x.scale_order != placement::aiter_scale) {
      return {error_code::bad_option, named("a.scale_order", "b.scale_order"), "must be aiter_scale on gfx950"};
    }
    if (x.code_order != placement::row_major && x.code_order != placement::aiter_data_16x16) {
      return {error_code::bad_option, named("a.code_order", "b.code_order"),
              "must be row_major or aiter_data_16x16 on gfx950"};
    }
    // Lanes use 32-bit offsets over up to 15 rows.
    if (x.code_order == placement::row_major && x.code_stride >= index_t{1} << 27) {
      return {error_code::bad_extent, named("a.code_stride", "b.code_stride"), "must be below 2^27 on gfx950"};
    }
    return {};
  });
  if (!s.ok()) return s;
  // B's column tiles begin at 32-bit offsets in units of 16 bytes.
  const index_t stride = c.b.code_order == placement::row_major ? c.b.code_stride : c.b.row_bytes();
  if (c.b.rows * stride > index_t{1} << 36) {
    return {error_code::bad_extent, "b.rows", "codes must be 64 GiB at most on gfx950"};
  }
  return {};
}

/// Checks the operands of gfx942's MXFP4 kernel, which loads four scales at a time.
inline status check_gfx942(const gemm_call& c) {
  if (status s = check_rows(c); !s.ok()) return s;
  if (c.a.k % 128 != 0) return {error_code::bad_extent, "a.k", "must be a multiple of 128 on gfx942"};
  return check_operands(c, [](const gemm_operand& x, const named_operand& named) -> status {
    if (x.scale_stride % 4 != 0) {
      return {error_code::bad_extent, named("a.scale_stride", "b.scale_stride"), "must be a multiple of 4 on gfx942"};
    }
    return check_pointer(x.scales, 4, named("a.scales", "b.scales"));
  });
}

}  // namespace rotoscale::gpu::detail
