// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Device code that calls every numerics function for devices. tests/consumer/headers.py compiles it where nvcc is
// found. It keeps headers free of code that devices cannot use: constants taken by reference, and functions without
// ROTOSCALE_HD. tests/digest runs most of the functions.
#include "rotoscale/ex2_approx.hpp"
#include "rotoscale/gemm_epilogue.hpp"
#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/layout.hpp"
#include "rotoscale/mma_models.hpp"
#include "rotoscale/mma_ref.hpp"
#include "rotoscale/quantize_ref.hpp"

using namespace rotoscale;

__global__ void quantize_rows(const float* source, index_t rows, index_t k, std::uint8_t* codes, std::uint8_t* scales,
                              float* back) {
  const index_t r = blockIdx.x * static_cast<index_t>(blockDim.x) + threadIdx.x;
  if (r >= rows) return;
  constexpr block_format f{formats::e2m1};
  block_options o{formats::bf16, {16, {5}}, scale_rule::even, policies::te_rocm};
  o.rounding = rounding::stochastic;
  o.random = {1, 2};
  const auto out = dense_blocks(f, rows, k, codes, scales);
  quantize_tile_ref(f, o, row_major(source, rows, k), block_axis::row, out, r, o.random);
  for (index_t c = 0; c < k; ++c) back[r * k + c] = decode_element(f, out, r, c);
}

__global__ void convert(const float* x, std::uint8_t* codes) {
  codes[0] = e4m3(x[0]).bits();
  codes[1] = e5m2(x[1], rounding::up, overflow::to_inf).bits();
  codes[2] = e8m0(static_cast<double>(x[2])).bits();
  codes[3] = static_cast<std::uint8_t>(bf16(x[3]).bits() >> 8);
  codes[4] = static_cast<float>(e2m1::from_bits(3)) > 1.0f;
}

__global__ void format_facts(format f, std::uint64_t code, std::uint64_t* out) {
  out[0] = f.sign_mask() | f.magnitude_mask() | f.mantissa_mask();
  out[1] = f.signed_code(f.is_negative(code), f.magnitude(code));
  out[2] = f.infinity_code() + f.nan_code() + f.max_code();
  out[3] = static_cast<std::uint64_t>(f.max_exponent() - f.min_exponent() + f.bits());
  out[4] = f.is_nan(code) || f.is_infinity(code) || f.has_nan() || f.has_infinity() || f.has_negative_zero();
  out[5] = f == format{4, 3, 7};
}

__global__ void round_codes(format from, format to, std::uint64_t code, std::uint64_t* out, float* values) {
  const unpacked u = unpack(from, code);
  out[0] = round_to(to, u, rounding::stochastic, overflow::to_nan, {7, 5});
  out[1] = convert(from, code, to);
  out[2] = encode(to, decode(from, code), rounding::to_odd);
  values[0] = pow2_fp32(u.exponent);
  values[1] = canonical_nan(fp32_from_bits(static_cast<std::uint32_t>(shift_right_sticky(code, 3))));
  values[2] = static_cast<float>(highest_bit(code));
}

__global__ void scales(std::uint32_t amax, format element, format scale, std::uint8_t* out, float* values) {
  constexpr block_policy aiter = policies::aiter, nvidia = policies::nvidia;
  out[0] = shared_scale(amax, element, scale_rule::rceil, aiter);
  values[0] = tensor_encode_factor(fp32_from_bits(amax), element, scale);
  out[1] = shared_scale(amax, element, scale, values[0], nvidia);
  values[1] = scale_value(out[0]) + scale_value(scale, out[1]);
  values[2] = scale_inverse(scale, out[1], values[0]);
  out[2] = unit_scale(scale);
}

__global__ void rotate(float* x, rotation r, random_stream random) {
  rotate_run(x, 256, r);
  unrotate_run(x, 256, r);
  hadamard(x, 16, 2);
  x[0] = hadamard_factor(r.points) + static_cast<float>(r.negates(3)) + static_cast<float>(r == rotation{});
  x[1] = static_cast<float>(random.word(5) ^ random.block(6).word[1]);
}

/// Conversions from each source type, along both axes, and back.
template <class T>
__global__ void whole_matrix(T* source, std::uint8_t* codes, std::uint8_t* scale, block_options o) {
  constexpr block_format f = square_blocks({formats::e2m3, 32, formats::ue5m3});
  const auto out = dense_blocks(f, 32, 64, codes, scale);
  const matrix<const T> in = submatrix(row_major<const T>(source, 64, 64), 0, 0, 32, 64);
  if (!quantize_is_defined(f, o, in, block_axis::row, out)) return;
  quantize_ref(f, o, in, block_axis::row, out);
  quantize_ref(f, o, transposed(in), block_axis::column, out);
  dequantize_ref(f, out, block_axis::column, transposed(row_major(source, 32, 64)), 0.5f);
  store_value(decode_element(f, out, 0, 0) + source_value(source[0]), source[0]);
}
template __global__ void whole_matrix(float*, std::uint8_t*, std::uint8_t*, block_options);
template __global__ void whole_matrix(bf16*, std::uint8_t*, std::uint8_t*, block_options);
template __global__ void whole_matrix(fp16*, std::uint8_t*, std::uint8_t*, block_options);

__global__ void fp64_blocks(const double* source, std::uint8_t* codes, std::uint8_t* scale, block_options o) {
  constexpr block_format f = nvfp4;
  quantize_ref(f, o, row_major(source, 16, 64), block_axis::row, dense_blocks(f, 16, 64, codes, scale));
}

__global__ void layouts(block_matrix<std::uint8_t> m, std::uint8_t* codes, std::uint8_t* scale) {
  constexpr block_format f = mxfp8_e4m3;
  place_codes(f, m, placement::aiter_data_16x16, codes);
  place_scales(f, m, placement::nvidia_scale_128x4, scale);
  place_scales(f, m, placement::aiter_scale, scale, 0);
  gather_codes(f, codes, placement::aiter_data_16x16, m);
  gather_scales(f, scale, placement::hipblaslt_scale_32x8, m);
}

__global__ void exponentials(float* x) { x[0] = ex2_approx(x[0]); }

__global__ void matrix_unit(mma_model m, format f, const std::uint8_t* a, const std::uint8_t* b, float* d) {
  mma_product p[64] = {};
  for (int i = 0; i < 64; ++i) {
    p[i] = mma_multiply(m, mma_element(m, f, a[i]), mma_element(m, f, b[i]));
    mma_scale(p[i], formats::e8m0, 127);
  }
  d[0] = fp32_value(mma_instruction(m, p, 64, unpack(formats::fp32, fp32_bits(d[0]))));
  constexpr mma_model known = models::hopper_f32;
  d[1] = fp32_value(mma_step(known, p, 16, unpacked{}));
}

template <format F>
ROTOSCALE_HD std::uint64_t through(float x, double y) {
  const small_float<F> a(x, rounding::down, overflow::to_inf), b(y, rounding::stochastic, overflow::saturate, 9);
  return a.bits() + small_float<F>::from_bits(b.bits()).bits() + static_cast<unsigned>(a.is_nan()) +
         static_cast<std::uint64_t>(static_cast<float>(b) > 1.0f);
}

__global__ void every_type(float x, double y, std::uint64_t* out) {
  out[0] = through<formats::e2m1>(x, y) + through<formats::e2m3>(x, y) + through<formats::e3m2>(x, y) +
           through<formats::e4m3>(x, y) + through<formats::e5m2>(x, y) + through<formats::e8m0>(x, y);
  out[1] = through<formats::e4m3fnuz>(x, y) + through<formats::e5m2fnuz>(x, y) + through<formats::e4m3b11fnuz>(x, y) +
           through<formats::int8>(x, y) + through<formats::ue4m3>(x, y) + through<formats::ue5m3>(x, y);
  out[2] = through<formats::bf16>(x, y) + through<formats::fp16>(x, y) + through<formats::tf32>(x, y) +
           through<formats::fp32>(x, y) + through<formats::fp64>(x, y);
}

__global__ void operands(const std::uint8_t* codes, const std::uint8_t* scales, float* c) {
  constexpr block_format f{formats::e2m1};
  const block_matrix<const std::uint8_t> blocks{16, 64, codes, 32, scales, 2};
  gemm_operand a = make_operand(f, blocks);
  c[0] = operand_value(a, 1, 33);
  a.code_order = placement::aiter_data_16x16;
  a.scale_order = placement::nvidia_scale_128x4;
  c[1] = operand_value(batch_element(a, 1), 2, 3);
  c[2] = gemm_epilogue{2.0f, true, 3.0f, true}(c[0], c[1], 1.0f);
}
