// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// amd_matrix.hpp in host mode. A matrix instruction collects the wave's fragments as two operands of 16 rows and
// computes each result under the unit's mma_model. Finite numbers under a late_c model (all of AMD's) take an integer
// fast path with the same steps; others take accumulate_ref.
#pragma once

#include <cmath>
#include <vector>

#include "gpu/dialect/element.hpp"
#include "gpu/dialect/hip.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/gemm_ref.hpp"

namespace rotoscale::gpu::amd {

/// A matrix instruction: unit, operand formats, k, bytes per lane, and the number of runs of k that those bytes form.
struct matrix_form {
  mma_unit unit;
  format a, b;
  int k, lane_bytes, runs;
  bool scaled = false;
  constexpr int row_bytes() const { return 4 * lane_bytes; }
};

/// A lane's arguments of a matrix instruction.
struct matrix_registers {
  const void *a, *b;
  float4* d;
  std::uint8_t scale_a = 0, scale_b = 0;
};

/// 16 rows of an operand: codes and scales, and for the fast path values and exponents with scales applied.
struct matrix_tile {
  static constexpr int max_k = 128;
  static constexpr int exponent_of_zero = -20000;

  std::uint8_t codes[16][max_k], scales[16][4];
  double values[16][max_k];
  int exponents[16][max_k];
  bool has_nan[16], has_infinity[16];  ///< of elements or scales

  /// An element without its scale.
  struct number {
    double value;
    int exponent;
    value_class kind;
  };
  template <const matrix_form& Form, format Element>
  static const number& number_of(std::uint64_t code) {
    static const std::vector<number> table = [] {
      std::vector<number> all;
      for (std::uint64_t c = 0; c < std::uint64_t{1} << Element.bits(); ++c) {
        const mma_term t = mma_element(Form.unit.model, Element, c);
        const double magnitude = std::ldexp(static_cast<double>(t.significand), t.low);
        const bool finite = t.kind == value_class::finite;
        all.push_back(
            {finite ? (t.negative ? -magnitude : magnitude) : 0, finite ? t.exponent : exponent_of_zero, t.kind});
      }
      return all;
    }();
    return table[code];
  }

  template <const matrix_form& Form, format Element>
  void decode() {
    const gemm_operand o = operand<Form>(Element);
    for (int r = 0; r < 16; ++r) {
      has_nan[r] = has_infinity[r] = false;
      for (int k = 0; k < Form.k; ++k) {
        const number& x = number_of<Form, Element>(operand_code(o, r, k));
        const int scale = Form.scaled ? scale_exponent(scales[r][k / 32]) : 0;
        values[r][k] = x.value * bit_cast<double>(static_cast<std::uint64_t>(scale + 1023) << 52);
        exponents[r][k] = x.exponent + scale;
        has_nan[r] |= x.kind == value_class::nan || (Form.scaled && scales[r][k / 32] == nan_scale_byte);
        has_infinity[r] |= x.kind == value_class::infinity;
      }
    }
  }
  template <const matrix_form& Form>
  gemm_operand operand(format element) const {
    gemm_operand o{element, 16, Form.k, codes[0], max_k};
    if (Form.scaled) {
      o.block = 32;
      o.scales = scales[0];
      o.scale_stride = 4;
    }
    return o;
  }
};

/// late_step for finite numbers and models with has_fast_form. Returns false if a product's exponent is above `most`;
/// the caller then uses accumulate_ref.
template <int Parts>
bool late_step_of(const mma_model& m, const double* a, const int* exponents_a, const double* b, const int* exponents_b,
                  int count, int most, unpacked& acc) {
  int exponent[Parts];
  for (int h = 0; h < Parts; ++h) {
    exponent[h] = 2 * matrix_tile::exponent_of_zero;
    for (int i = h; i < count; i += Parts) {
      const int e = exponents_a[i] + exponents_b[i];
      exponent[h] = e > exponent[h] ? e : exponent[h];
    }
  }
  const int largest = exponent[0] > exponent[Parts - 1] ? exponent[0] : exponent[Parts - 1];
  if (largest > most) return false;
  if (acc.kind == value_class::nan) acc = {value_class::nan};
  if (acc.kind == value_class::nan || acc.kind == value_class::infinity) return true;
  const bool zeros = largest < matrix_tile::exponent_of_zero / 2;
  if (zeros && acc.kind == value_class::zero) return acc = {}, true;
  std::int64_t products = 0;
  for (int h = 0; h < Parts; ++h) {
    if (exponent[h] < matrix_tile::exponent_of_zero / 2) continue;
    const double unit = bit_cast<double>(static_cast<std::uint64_t>(m.fraction_bits - exponent[h] + 1023) << 52);
    std::int64_t sum = 0;
    for (int i = h; i < count; i += Parts) sum += static_cast<std::int64_t>(a[i] * b[i] * unit);  // toward zero
    products += rotoscale::detail::floor_shift(sum, largest - exponent[h]);
  }
  const mma_term c = to_term(acc, formats::fp32.min_exponent());
  const int exponent_of_products = zeros ? rotoscale::detail::no_exponent : largest;
  acc = rotoscale::detail::round_result(m, rotoscale::detail::late_sum(m, products, exponent_of_products, c));
  return true;
}

/// True if late_step_of implements the model and 64 bits hold its sums.
constexpr bool has_fast_form(const mma_model& m) {
  return (m.sum == mma_sum::late_c || m.sum == mma_sum::late_c_split) && m.fraction_bits <= 31 && m.late_bits <= 31 &&
         m.group >= 1 && m.operand == format{} && m.instruction_k == 0 && !m.c_last && !m.sparse;
}

template <const matrix_form& Form>
float matrix_element(const matrix_tile& a, int i, const matrix_tile& b, int j, float c) {
  constexpr mma_model m = Form.unit.model;
  constexpr auto step = late_step_of < m.sum == mma_sum::late_c_split ? 2 : 1 > ;
  // Products of narrow formats stay in FP32's range with any scale.
  constexpr int most = Form.a.max_exponent() + Form.b.max_exponent() < 126 ? 1000 : 125;
  if (a.has_nan[i] || b.has_nan[j]) return fp32_from_bits(fp32_nan_bits);
  if (has_fast_form(m) && !a.has_infinity[i] && !b.has_infinity[j]) {
    unpacked acc = unpack(formats::fp32, fp32_bits(c));
    int k = 0;
    for (; k < Form.k; k += m.group) {
      const int count = Form.k - k < m.group ? Form.k - k : m.group;
      if (!step(m, &a.values[i][k], &a.exponents[i][k], &b.values[j][k], &b.exponents[j][k], count, most, acc)) break;
    }
    if (k >= Form.k) return fp32_value(acc);
  }
  gemm_options o;
  o.model = m;
  o.start_from_c = true;
  return accumulate_ref(a.operand<Form>(Form.a), i, b.operand<Form>(Form.b), j, o, c);
}

/// Executes the instruction for a wave.
template <const matrix_form& Form>
void matrix_instruction(matrix_registers* const (&lanes)[64]) {
  static thread_local matrix_tile a, b;
  constexpr int run = Form.lane_bytes / Form.runs;
  for (int l = 0; l < 64; ++l) {
    const int row = l % 16, group = l / 16;
    for (int r = 0; r < Form.runs; ++r) {
      std::memcpy(&a.codes[row][(4 * r + group) * run], static_cast<const char*>(lanes[l]->a) + r * run, run);
      std::memcpy(&b.codes[row][(4 * r + group) * run], static_cast<const char*>(lanes[l]->b) + r * run, run);
    }
    a.scales[row][group] = lanes[l]->scale_a;
    b.scales[row][group] = lanes[l]->scale_b;
  }
  a.decode<Form, Form.a>();
  b.decode<Form, Form.b>();
  for (int l = 0; l < 64; ++l) {
    for (int e = 0; e < 4; ++e) {
      float4& d = *lanes[l]->d;
      d[e] = matrix_element<Form>(a, l / 16 * 4 + e, b, l % 16, d[e]);
    }
  }
}

inline int uniform(int x, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  host::wave_instruction<[](int* const(&lanes)[64]) {
    for (int* lane : lanes) *lane = *lanes[0];
  }>(x, file, line);
  return x;
}

/// A lane's arguments of wave_xor.
struct exchange_registers {
  std::uint32_t value;
  unsigned mask;
};
inline std::uint32_t wave_xor(std::uint32_t value, unsigned mask, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  exchange_registers mine{value, mask};
  host::wave_instruction<[](exchange_registers* const(&lanes)[64]) {
    std::uint32_t sent[64];
    for (unsigned l = 0; l < 64; ++l) sent[l] = lanes[l]->value;
    for (unsigned l = 0; l < 64; ++l) lanes[l]->value = sent[l ^ lanes[l]->mask];
  }>(mine, file, line);
  return mine.value;
}

template <class T>
void keep_in_vector_registers(T&) {}
template <class T>
const T* keep_in_scalar_registers(const T* x) {
  return x;
}
inline void schedule_barrier() {}

inline std::uint32_t permute(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
  const std::uint64_t bytes = std::uint64_t{high} << 32 | low;
  std::uint32_t result = 0;
  for (int i = 0; i < 32; i += 8) {
    result |= static_cast<std::uint32_t>(bytes >> (8 * (selector >> i & 7u)) & 0xFFu) << i;
  }
  return result;
}

/// Each load or copy is a copy group, perhaps empty, so that loads_done can count it.
template <class T>
T load_counted(const std::uint8_t* from, std::uint32_t offset) {
  host::end_copy_group();
  return *reinterpret_cast<const T*>(from + offset);
}
inline void load_to_lds(const std::uint8_t* from, std::uint8_t* to) {
  host::copy_later(to + thread_index().x % 64 * 16, from, 16);
  host::end_copy_group();
}
template <int Younger = 0>
void loads_done() {
  host::finish_copies_but(Younger);
}

inline constexpr matrix_form fp8_form{*find_unit("cdna3-mfma-fp8-f32"), formats::e4m3fnuz, formats::e4m3fnuz, 32, 8, 1};
inline constexpr matrix_form bf16_form{*find_unit("cdna3-mfma-fp16-f32"), formats::bf16, formats::bf16, 16, 8, 1};
template <gemm_element A, gemm_element B>
inline constexpr matrix_form scaled_form{
    *find_unit("cdna4-mfma-scale-f8f6f4-f32"), format_of(A), format_of(B), 128, A == gemm_element::e2m1 ? 16 : 32,
    A == gemm_element::e2m1 ? 1 : 2,           true};

inline float4 multiply_add(float4 x, float4 y, float4 z) {
  for (int e = 0; e < 4; ++e) z[e] = __builtin_fmaf(x[e], y[e], z[e]);
  return z;
}

inline float4 multiply_fp8(std::int64_t a, std::int64_t b, const char* file = __builtin_FILE(),
                           int line = __builtin_LINE()) {
  float4 d{};
  matrix_registers mine{&a, &b, &d};
  host::wave_instruction<matrix_instruction<fp8_form>>(mine, file, line);
  return d;
}

inline float4 multiply_bf16(short4 a, short4 b, float4 d, const char* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
  matrix_registers mine{&a, &b, &d};
  host::wave_instruction<matrix_instruction<bf16_form>>(mine, file, line);
  return d;
}

template <int ByteA, int ByteB, gemm_element A, gemm_element B>
float4 multiply_scaled(const scaled_fragment<A>& a, const scaled_fragment<B>& b, float4 d, int scale_a, int scale_b,
                       const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const auto byte = [](int x, int i) { return static_cast<std::uint8_t>(static_cast<unsigned>(x) >> (8 * i)); };
  matrix_registers mine{&a, &b, &d, byte(scale_a, ByteA), byte(scale_b, ByteB)};
  host::wave_instruction<matrix_instruction<scaled_form<A, B>>>(mine, file, line);
  return d;
}

}  // namespace rotoscale::gpu::amd
