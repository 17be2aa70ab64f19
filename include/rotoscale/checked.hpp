// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Checked versions of quantize, dequantize and gemm for unvalidated input. Each checks formats, options, extents and
// memory before it writes, and throws std::invalid_argument with one line that names the argument and the extents. No
// other numerics header throws or includes this one.
#pragma once

#include <limits>
#include <span>
#include <stdexcept>
#include <string>

#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/gemm.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/quantize.hpp"

namespace rotoscale::checked {

inline namespace ROTOSCALE_ISA {

/// A row-major matrix and the memory that should hold it.
template <class T>
struct array {
  std::span<T> data;    ///< all elements, with the gaps between rows
  index_t rows = 0;     ///< above 0
  index_t cols = 0;     ///< above 0
  index_t stride = -1;  ///< elements between rows; -1: cols
};

}  // namespace ROTOSCALE_ISA

namespace detail {
inline namespace ROTOSCALE_ISA {

[[noreturn]] inline void fail(const std::string& message) { throw std::invalid_argument(message); }

inline std::string extents(index_t rows, index_t cols) { return std::to_string(rows) + " x " + std::to_string(cols); }

/// Address range of an argument, to detect overlaps between arrays.
struct byte_range {
  const char* name;
  std::uintptr_t first = 0, last = 0;  ///< [first, last)
};

template <class T>
byte_range bytes_spanned(const char* name, const T* data, index_t count) {
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  return {name, first, first + static_cast<std::uintptr_t>(count) * sizeof(T)};
}

inline void check_apart(const byte_range& a, const byte_range& b) {
  if (a.first >= b.last || b.first >= a.last) return;
  const auto overlap = (a.last < b.last ? a.last : b.last) - (a.first > b.first ? a.first : b.first);
  fail(std::string(a.name) + " and " + b.name + " overlap in " + std::to_string(overlap) + " bytes");
}

/// View of `a`. Fails if its memory cannot hold rows × cols elements with its stride.
template <class T>
matrix<T> view_of(const char* name, const array<T>& a) {
  const std::string what = std::string(name) + " of " + extents(a.rows, a.cols);
  if (a.rows <= 0 || a.cols <= 0) fail(what + ": extents must be above zero");
  const index_t stride = a.stride == -1 ? a.cols : a.stride;
  if (stride < a.cols)
    fail(what + ": stride " + std::to_string(stride) + " is below the " + std::to_string(a.cols) + " columns");
  if (a.data.data() == nullptr) fail(what + ": null pointer");
  if (reinterpret_cast<std::uintptr_t>(a.data.data()) % alignof(T) != 0) {
    fail(what + ": pointer is not aligned to " + std::to_string(alignof(T)) + " bytes");
  }
  const auto size = static_cast<index_t>(a.data.size());
  if (size < a.cols || (size - a.cols) / stride < a.rows - 1) {
    fail(what + ", stride " + std::to_string(stride) + ": does not fit in " + std::to_string(size) + " elements");
  }
  return row_major(a.data.data(), a.rows, a.cols, stride);
}

template <class T>
byte_range bytes_spanned(const char* name, matrix<T> m) {
  return bytes_spanned(name, m.data, (m.extent(0) - 1) * m.stride(0) + m.extent(1));
}

inline void check_formats(block_format f, const rotation& r) {
  if (f.element.bits() > 8) fail("element of " + std::to_string(f.element.bits()) + " bits: at most 8 can be stored");
  if (f.scale.bits() > 8) fail("scale of " + std::to_string(f.scale.bits()) + " bits: at most 8 can be stored");
  if (!f.scale.has_nan()) fail("scale: the format has no NaN to mark a block with");
  if (f.scale.is_signed) fail("scale: the format has negative numbers");
  if (f.length < 1 || f.rows < 1 || f.length > max_run_length) {
    fail("block of " + extents(f.rows, f.length) + ": extents must be above zero, the length at most " +
         std::to_string(max_run_length));
  }
  if (runs_are_defined(f, r)) return;
  fail("rotation.points " + std::to_string(r.points) + ": must be 0 or a power of two from 2 to " +
       std::to_string(max_run_length) + " that divides the block length " + std::to_string(f.length) +
       " or is a multiple of it");
}

inline void check_options(block_format f, const block_options& o) {
  if (o.random_count < 1 || o.random_count > 32) {
    fail("random_count " + std::to_string(o.random_count) + ": must be 1 to 32");
  }
  if (options_are_defined(f, o)) return;
  if (o.choice != scale_choice::amax && f.has_e8m0_scale()) fail("scale_choice: E8M0 scales are powers of two");
  if (o.choice == scale_choice::four_over_six || o.choice == scale_choice::eden) {
    if (o.rounding != rounding::nearest_even) fail("scale_choice: four_over_six and eden round to nearest_even");
    if (!takes_choice(f, o.choice)) {
      fail("scale_choice: needs E2M1 in blocks whose extents are powers of two, eden blocks of one row");
    }
  }
  if (!(o.encode_factor > 0.0f && o.encode_factor <= std::numeric_limits<float>::max())) {
    fail("encode_factor " + std::to_string(o.encode_factor) + ": must be finite and above zero");
  }
  const bool zero = o.policy.zero_byte > f.scale.max_code();
  fail(std::string(zero ? "policy.zero_byte " : "policy.least_byte ") +
       std::to_string(zero ? o.policy.zero_byte : o.policy.least_byte) +
       ": is above the scale format's largest number, whose code is " + std::to_string(f.scale.max_code()));
}

/// Fails unless k is whole runs and rows are whole blocks. `rows` × `k` is the matrix as the blocks see it.
inline void check_extents(const char* name, block_format f, const rotation& r, index_t rows, index_t k) {
  const std::string what = std::string(name) + ", " + extents(rows, k) + " along the blocks: ";
  if (k % f.length != 0) {
    fail(what + std::to_string(k) + " is not a multiple of the block length " + std::to_string(f.length));
  }
  if (k % run_length(f, r) != 0) {
    fail(what + std::to_string(k) + " is not a multiple of rotation.points " + std::to_string(r.points));
  }
  if (rows % f.rows != 0) {
    fail(what + std::to_string(rows) + " rows are not a multiple of the block's " + std::to_string(f.rows));
  }
}

/// View of dense codes and scales of rows × k elements. Fails unless both spans have exactly that size.
template <class Byte>
block_matrix<Byte> dense_of(block_format f, std::span<Byte> codes, std::span<Byte> scales, index_t rows, index_t k) {
  const block_matrix<Byte> m = dense_blocks(f, rows, k, codes.data(), scales.data());
  const auto check = [](const char* name, std::span<Byte> data, index_t count, index_t bytes) {
    if (static_cast<index_t>(data.size()) != count * bytes) {
      fail(std::string(name) + " has " + std::to_string(data.size()) + " bytes, expected " + extents(count, bytes) +
           " = " + std::to_string(count * bytes));
    }
    if (data.data() == nullptr) fail(std::string(name) + " of " + extents(count, bytes) + " bytes: null pointer");
  };
  check("codes", codes, rows, m.code_stride);
  check("scales", scales, rows / f.rows, m.scale_stride);
  check_apart(bytes_spanned("codes", codes.data(), static_cast<index_t>(codes.size())),
              bytes_spanned("scales", scales.data(), static_cast<index_t>(scales.size())));
  return m;
}

/// Checked arguments of quantize.
template <class T>
struct quantize_arguments {
  matrix<T> in;
  block_matrix<std::uint8_t> out;
};
template <class T>
quantize_arguments<T> check_quantize(block_format f, const block_options& o, array<T> source, block_axis axis,
                                     std::span<std::uint8_t> codes, std::span<std::uint8_t> scales) {
  check_formats(f, o.rotation);
  check_options(f, o);
  const matrix<T> in = view_of("source", source);
  const index_t rows = in.extent(axis == block_axis::row ? 0 : 1), k = in.extent(axis == block_axis::row ? 1 : 0);
  check_extents("source", f, o.rotation, rows, k);
  const block_matrix<std::uint8_t> out = dense_of(f, codes, scales, rows, k);
  const byte_range read = bytes_spanned("source", in);
  check_apart(read, bytes_spanned("codes", codes.data(), static_cast<index_t>(codes.size())));
  check_apart(read, bytes_spanned("scales", scales.data(), static_cast<index_t>(scales.size())));
  return {in, out};
}

/// Fails if matrix units have this model, and none of them multiplies these operands. Any operands may be used with a
/// definition and with the caller's own model.
inline void check_unit(const mma_model& model, const gemm_operand& a, const gemm_operand& b) {
  std::string message;
  for (const mma_unit& unit : models::all) {
    if (!(unit.model == model)) continue;
    if (unit.evidence == mma_evidence::definition) return;
    std::string wrong;
    for (const auto& [name, x] : {std::pair{"a", &a}, std::pair{"b", &b}}) {
      const char* reason = refusal(unit, x->element, x->block, x->scale);
      if (reason == nullptr || !wrong.empty()) continue;
      wrong = std::string(name) + " of " + std::string(to_string(x->element)) +
              (x->block == 0 ? "" : " in blocks of " + std::to_string(x->block)) + ": " + unit.name + " " + reason;
    }
    if (wrong.empty()) return;
    if (message.empty()) message = wrong;
  }
  if (!message.empty()) fail(message);
}

}  // namespace ROTOSCALE_ISA
}  // namespace detail

inline namespace ROTOSCALE_ISA {

/// rotoscale::quantize into dense codes [rows, packed k] and scales [rows / f.rows, k / f.length] (dense_blocks). Both
/// spans must have exactly that size.
template <class T>
void quantize(block_format f, const block_options& o, array<T> source, block_axis axis, std::span<std::uint8_t> codes,
              std::span<std::uint8_t> scales, thread_pool& pool) {
  const auto [in, out] = detail::check_quantize(f, o, source, axis, codes, scales);
  rotoscale::quantize(f, o, in, axis, out, pool);
}

/// The same with the caller's random words for stochastic rounding, one per element in the order of the result.
template <class T>
void quantize(block_format f, const block_options& o, array<T> source, block_axis axis, std::span<std::uint8_t> codes,
              std::span<std::uint8_t> scales, std::span<const std::uint32_t> words, thread_pool& pool) {
  const auto [in, out] = detail::check_quantize(f, o, source, axis, codes, scales);
  if (o.rounding != rounding::stochastic && o.choice != scale_choice::eden)
    detail::fail("words: options.rounding is not stochastic");
  if (static_cast<index_t>(words.size()) != out.rows * out.k) {
    detail::fail("words has " + std::to_string(words.size()) + " words, expected " + detail::extents(out.rows, out.k) +
                 " = " + std::to_string(out.rows * out.k));
  }
  const auto read = detail::bytes_spanned("words", words.data(), static_cast<index_t>(words.size()));
  detail::check_apart(read, detail::bytes_spanned("codes", codes.data(), static_cast<index_t>(codes.size())));
  detail::check_apart(read, detail::bytes_spanned("scales", scales.data(), static_cast<index_t>(scales.size())));
  rotoscale::quantize(f, o, in, axis, out, random_words{words.data()}, pool);
}

/// The same on the calling thread.
template <class T>
void quantize(block_format f, const block_options& o, array<T> source, block_axis axis, std::span<std::uint8_t> codes,
              std::span<std::uint8_t> scales) {
  thread_pool here(1);
  quantize(f, o, source, axis, codes, scales, here);
}

/// dequantize_ref from dense codes and scales. Both spans must have exactly the size that `target` needs.
template <class T>
void dequantize(block_format f, std::span<const std::uint8_t> codes, std::span<const std::uint8_t> scales,
                block_axis axis, array<T> target, float decode_factor = 1.0f) {
  detail::check_formats(f, {});
  if (fp32_bits(decode_factor) >= fp32_infinity_bits || decode_factor == 0.0f) {
    detail::fail("decode_factor " + std::to_string(decode_factor) + ": must be finite and above zero");
  }
  const matrix<T> out = detail::view_of("target", target);
  const index_t rows = out.extent(axis == block_axis::row ? 0 : 1), k = out.extent(axis == block_axis::row ? 1 : 0);
  detail::check_extents("target", f, {}, rows, k);
  const block_matrix<const std::uint8_t> in = detail::dense_of(f, codes, scales, rows, k);
  const detail::byte_range written = detail::bytes_spanned("target", out);
  detail::check_apart(written, detail::bytes_spanned("codes", codes.data(), static_cast<index_t>(codes.size())));
  detail::check_apart(written, detail::bytes_spanned("scales", scales.data(), static_cast<index_t>(scales.size())));
  dequantize_ref(f, in, axis, out, decode_factor);
}

/// rotoscale::gemm, c[a.rows, b.rows] = a · bᵀ. The memory of the operands is not checked, since gemm_operand carries
/// no size.
inline void gemm(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, array<float> c,
                 thread_pool& pool) {
  const std::string extents_a = "a of " + detail::extents(a.rows, a.k),
                    extents_b = "b of " + detail::extents(b.rows, b.k);
  const matrix<float> out = detail::view_of("c", c);
  const auto check = [&](const char* name, const std::string& what, const gemm_operand& x) {
    if (x.rows <= 0 || x.k <= 0) detail::fail(what + ": extents must be above zero");
    if (x.codes == nullptr || (x.block != 0 && x.scales == nullptr)) detail::fail(what + ": null pointer");
    const layout codes{x.code_order, x.rows, x.row_bytes()};
    if (!codes.is_defined()) detail::fail(what + ": no such extents in its order of codes");
    const index_t bytes = x.code_order == placement::row_major
                              ? ((x.transposed ? x.k : x.rows) - 1) * x.code_stride + x.row_bytes()
                              : codes.size_bytes();
    detail::check_apart(detail::bytes_spanned("c", out), detail::bytes_spanned(name, x.codes, bytes));
  };
  check("a", extents_a, a);
  check("b", extents_b, b);
  if (a.k != b.k) detail::fail(extents_a + " and " + extents_b + ": k must be equal");
  if (out.extent(0) != a.rows || out.extent(1) != b.rows) {
    detail::fail("c of " + detail::extents(c.rows, c.cols) + ": a and b give " + detail::extents(a.rows, b.rows));
  }
  if (!gemm_is_defined(a, b, o)) {
    detail::fail(extents_a + " and " + extents_b + ": not defined for these formats, blocks and gemm_options");
  }
  detail::check_unit(o.model, a, b);
  rotoscale::gemm(a, b, o, out, pool);
}

}  // namespace ROTOSCALE_ISA

}  // namespace rotoscale::checked
