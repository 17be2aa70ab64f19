// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Argument checks of the launchers of gpu/nn, and the conversion of views to row_span and row_extents.
#pragma once

#include <initializer_list>

#include "gpu/api/device.hpp"
#include "gpu/api/nn.hpp"
#include "gpu/dialect/launch.hpp"
#include "gpu/nn/norm.hpp"
#include "gpu/nn/rows.hpp"

namespace rotoscale::gpu::detail {

inline constexpr index_t max_columns = index_t{1} << 28;

inline bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }
inline std::size_t bytes_of(nn::dtype type) { return static_cast<std::size_t>(nn::size_of(type)); }

/// Checks that a view is FP32 or BF16 with contiguous rows. Errors name `argument`.
inline status check_rows(const nn::const_tensor_view& x, int rank, const char* argument) {
  if (x.type != nn::dtype::fp32 && x.type != nn::dtype::bf16)
    return {error_code::bad_option, argument, "must be FP32 or BF16"};
  if (x.rank != rank) return {error_code::bad_extent, argument, "has another number of dimensions"};
  if (x.extent(rank - 1) > 1 && x.stride(rank - 1) != 1)
    return {error_code::bad_extent, argument, "must have contiguous rows"};
  if (x.extent(rank - 1) > max_columns) return {error_code::bad_extent, argument, "must have at most 2^28 columns"};
  return x.size() == 0 ? status{} : check_pointer(x.data, bytes_of(x.type), argument);
}
/// Also checks that x has the extents and storage of `like`.
inline status check_like(const nn::const_tensor_view& x, const nn::const_tensor_view& like, const char* argument) {
  if (status s = check_rows(x, like.rank, argument); !s.ok()) return s;
  if (x.type != like.type) return {error_code::bad_option, argument, "must have the storage of the others"};
  for (int d = 0; d < like.rank; ++d) {
    if (x.extent(d) != like.extent(d)) return {error_code::bad_extent, argument, "must have the extents of the others"};
  }
  return {};
}
/// Input `at` of an activation: half of x's columns if it is gated, otherwise x.
template <class View>
View input_of(nn::activation which, const View& x, index_t at) {
  const index_t n = x.extent(1) / 2;
  return nn::inputs_of(which) == 2 ? x.part(1, at * n, n) : x;
}

/// Checks the input, or its gradient, of an activation with result h.
inline status check_input(nn::activation which, const nn::const_tensor_view& x, const nn::const_tensor_view& h,
                          const char* argument) {
  if (status s = check_rows(x, 2, argument); !s.ok()) return s;
  if (x.type != h.type) return {error_code::bad_option, argument, "must have the storage of the others"};
  if (x.extent(0) != h.extent(0) || x.extent(1) != nn::inputs_of(which) * h.extent(1)) {
    return {error_code::bad_extent, argument,
            nn::inputs_of(which) == 2 ? "must have a gate and an up for each element of the others"
                                      : "must have the extents of the others"};
  }
  return {};
}

/// True if all rows of a view are aligned to 16 bytes.
inline bool has_vectors(const nn::const_tensor_view& x) {
  const auto size = nn::size_of(x.type);
  bool all = is_aligned(x.data);
  for (int d = 0; d < x.rank - 1; ++d) all = all && (x.extent(d) == 1 || x.stride(d) * size % 16 == 0);
  return all;
}
inline row_extents extents_of(index_t rows, index_t cols, std::initializer_list<nn::const_tensor_view> views,
                              std::initializer_list<const float*> vectors = {}) {
  row_extents e{rows, static_cast<unsigned>(cols), static_cast<unsigned>((cols + vec8_elements - 1) / vec8_elements),
                cols % vec8_elements == 0};
  for (const auto& v : views) e.vectors = e.vectors && (v.empty() || has_vectors(v));
  for (const float* v : vectors) e.vectors = e.vectors && is_aligned(v);
  return e;
}
template <class T>
row_span<T> span_of(const nn::tensor_view& x) {
  return {static_cast<T*>(x.data), x.stride(0)};
}
template <class T>
row_span<const T> span_of(const nn::const_tensor_view& x) {
  return {static_cast<const T*>(x.data), x.stride(0)};
}

/// Computes the blocks of row_threads threads for e.rows rows of vec8s, `each` rows per thread.
inline status count_blocks(const row_extents& e, unsigned each, unsigned& count) {
  const index_t items = (e.rows + each - 1) / each * e.vec8s;
  if (items > index_t{0xFFFFFFFF} - row_threads)
    return {error_code::bad_extent, "", "has more than 2^32 vectors of 8 elements"};
  count = static_cast<unsigned>((items + row_threads - 1) / row_threads);
  return {};
}

/// Returns body(constant of the norm's kind): LayerNorm has a bias.
template <class Body>
status with_norm_kind(const float* bias, const Body& body) {
  if (bias != nullptr) return body(std::integral_constant<norm_kind, norm_kind::layer>{});
  return body(std::integral_constant<norm_kind, norm_kind::rms>{});
}

/// Returns body(T{}) for the C++ type of a storage.
template <class Body>
status with_storage(nn::dtype type, const Body& body) {
  return type == nn::dtype::bf16 ? body(bf16{}) : body(float{});
}

/// Launches a kernel that takes one structure of arguments, after check_ready.
template <class Args>
status launch_rows(void (*kernel)(Args), std::uint64_t grid, unsigned threads, stream s,
                   const std::type_identity_t<Args>& a, std::size_t shared_bytes = 0) {
  if (grid == 0) return {};
  if (grid > 0x7FFFFFFFu) return {error_code::bad_extent, "", "needs more than 2^31 blocks"};
  if (status ready = check_ready(s); !ready.ok()) return ready;
  return launch(kernel, dim3{static_cast<unsigned>(grid), 1, 1}, dim3{threads, 1, 1}, shared_bytes, s, a);
}

}  // namespace rotoscale::gpu::detail
