// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// How operations are described: class, and memory that a call reads and writes.
#pragma once

#include "rotoscale/nn/contracts.hpp"
#include "rotoscale/nn/operation_arguments.hpp"
#include "rotoscale/nn/queue.hpp"
#include "rotoscale/nn/statistics.hpp"

namespace rotoscale::nn {

/// Purpose of an operation, in profiles.
enum class op_class : std::uint8_t { gemm, quantize, attention, layer, loss, optimizer, copy, other };

/// A contract that a backend must equal by bytes.
struct operation_contract {
  const char* operation = nullptr;  ///< key in logs
  const char* name = nullptr;       ///< defined in docs/reference/layers.md
};
/// Name, class and contract of an operation. Operations of one contract state it once. Recipes name those of GEMMs and
/// attention.
struct op_info {
  const char* name;                  ///< in errors, digests and profiles
  op_class kind;                     ///< in profiles
  operation_contract contract = {};  ///< no name: stated elsewhere
  bool shows_parts = false;          ///< observers see the operations that it is composed of
};

/// How a call uses memory.
enum class access : std::uint8_t { read, write, update };

/// Memory that a call uses: a tensor, or an operand.
struct op_use {
  access how;                    ///< read, write, or both
  const char* digest = nullptr;  ///< name of the written tensor's digest; null: no digest
  const_tensor_view at = {};     ///< the tensor
  operand made = {};             ///< or the operand
  index_t touched = 0;           ///< elements that are accessed; 0: all
};

/// n numbers as a tensor.
inline const_tensor_view numbers(const float* first, index_t n) {
  return dense_tensor(const_cast<float*>(first), dtype::fp32, {n});
}
/// The bytes of a record as a tensor.
template <class Record>
const_tensor_view record_bytes(const Record* record) {
  return dense_tensor(const_cast<Record*>(record), dtype::u8, {index_t{sizeof(Record)}});
}
/// Names tensors that are read, without a digest.
template <class Use, class... View>
void reads(const Use& use, const View&... x) {
  (use({access::read, nullptr, x}), ...);
}
/// Calls body(operand) for each form that quantizing writes.
template <class Body>
void for_each_form(const quantize_target& to, const Body& body) {
  if (to.set == nullptr) return;
  if (to.row && to.set->request().row) body(operand{to.set, operand_form::row});
  if (to.column && to.set->request().column) body(operand{to.set, operand_form::column});
}
/// True if an operation that quantizes its result also writes the result.
inline bool is_written(const quantize_target& to) { return to.set == nullptr || to.keeps_source; }
/// Names the forms that quantizing writes.
template <class Use>
void use_forms(const Use& use, const quantize_target& to) {
  for_each_form(to, [&](operand form) { use({access::write, "quantize", {}, form}); });
}

/// Number of bytes that a use accesses, at least. Both forms of BF16 share memory, and a form that is its source is not
/// written.
inline index_t bytes_of(const op_use& u) {
  if (u.made.set == nullptr) return u.at.empty() ? 0 : (u.touched != 0 ? u.touched : u.at.size()) * size_of(u.at.type);
  const operand_request& r = u.made.set->request();
  const operand_recipe& own = *r.recipe(u.made.form);
  const bool shared = u.made.form == operand_form::column && own.format == operand_format::bf16 && r.row &&
                      r.row->format == operand_format::bf16;
  if (u.how == access::write && (shared || is_source(own, r.source))) return 0;
  if (is_source(own, r.source)) return rows_of(u.made) * k_of(u.made) * size_of(r.source);
  return rows_of(u.made) * packed_bytes(element_format(stored_format(own)), k_of(u.made));
}
/// Number of bytes that a call reads and writes, at least.
template <class Op>
std::size_t bytes_moved(const typename Op::in& i, const typename Op::out& o) {
  index_t bytes = 0;
  Op::uses([&](const op_use& u) { bytes += bytes_of(u) * (u.how == access::update ? 2 : 1); }, i, o);
  return static_cast<std::size_t>(bytes);
}

}  // namespace rotoscale::nn
