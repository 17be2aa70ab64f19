// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Rows of tensors as FP32: the stored row itself, or a widened copy. Stores round once to nearest even.
// A BF16 value rounds to itself, so an operation that leaves an element alone leaves its bits. Also the
// workspace of operations.
#pragma once

#include <stdexcept>
#include <string>

#include "rotoscale/detail/fast_round.hpp"
#include "rotoscale/nn/tensor.hpp"
#include "rotoscale/scratch.hpp"

namespace rotoscale::nn::cpu {

namespace detail {

/// BF16 bits of an FP32 value, nearest even, NaN canonical with its sign: round_to(formats::bf16, ·), branch-free.
inline std::uint32_t bf16_bits(float x) {
  std::uint32_t u = fp32_bits(x);
  rotoscale::detail::round_to_bf16(u);
  return u >> 16;
}

}  // namespace detail

inline float load_element(float x) { return x; }
inline float load_element(bf16 x) { return fp32_from_bits(static_cast<std::uint32_t>(x.bits()) << 16); }
inline void store_element(float& to, float x) { to = x; }
inline void store_element(bf16& to, float x) { to = bf16::from_bits(static_cast<std::uint16_t>(detail::bf16_bits(x))); }

/// n elements to read; `room` is used where they are not FP32.
inline const float* read_row(const float* row, index_t, float*) { return row; }
inline const float* read_row(const bf16* row, index_t n, float* room) {
  for (index_t j = 0; j < n; ++j) room[j] = load_element(row[j]);
  return room;
}

/// Memory for a row's new elements until write_row: the row itself if it is FP32.
inline float* target_row(float* row, float*) { return row; }
inline float* target_row(bf16*, float* room) { return room; }
inline void write_row(const float*, index_t, float*) {}
inline void write_row(const float* values, index_t n, bf16* row) {
  for (index_t j = 0; j < n; ++j) store_element(row[j], values[j]);
}

/// A row to read and write: its present elements. write_row stores them.
inline float* update_row(float* row, index_t, float*) { return row; }
inline float* update_row(bf16* row, index_t n, float* room) {
  read_row(row, n, room);
  return room;
}

/// Scratch memory for `rows` rows of n numbers.
class row_scratch {
 public:
  row_scratch(index_t rows, index_t n) : n_(n), memory_(rows * n) {}
  float* operator[](index_t i) const { return memory_.data() + i * n_; }

 private:
  index_t n_;
  scratch_array<float> memory_;
};

/// n values of the running queue's workspace.
template <class T>
scratch_array<T> work(index_t n) {
  const std::size_t needed = static_cast<std::size_t>(n) * sizeof(T), rest = scratch_stack::of_thread().rest().size();
  if (needed <= rest) return scratch_array<T>(n);
  throw std::length_error("needs " + std::to_string(needed) + " bytes of workspace, has " + std::to_string(rest));
}

/// Workspace of an operation in bytes: shared by its threads, and of each thread.
struct room {
  std::size_t shared = 0, thread = 0;
};
/// The shared part that work<T>(n) takes.
template <class T>
room room_for(index_t n, std::size_t thread = 0) {
  return {scratch_array<T>::bytes(n), thread};
}

/// Calls body(T{}) with the C++ type of a stored activation.
template <class Body>
void with_storage(dtype type, const Body& body) {
  if (type == dtype::bf16) return body(bf16{});
  ROTOSCALE_ASSERT(type == dtype::fp32);
  body(float{});
}

}  // namespace rotoscale::nn::cpu
