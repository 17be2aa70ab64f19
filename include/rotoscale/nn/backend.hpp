// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A device with the operations of one table: the interface for models and training loops. It also looks contracts up,
// and lays GEMM operands out.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/nn/device.hpp"
#include "rotoscale/nn/operations.hpp"

namespace rotoscale::nn {

/// Observer that is called before and after each operation is put on a queue. A fused operation is one call, unless it
/// shows its parts.
class op_observer {
 public:
  virtual ~op_observer() = default;
  /// An operation with these uses is about to be put on the queue.
  virtual void begin(queue q, std::span<const op_use> uses) = 0;
  /// It has been put there.
  virtual void end(queue q, std::span<const op_use> uses) = 0;
};

/// A device and its operations: `ops.norm_forward(q, {x, gain, epsilon}, {y, rstd})`.
class backend : public device {
 public:
  /// The contract of a GEMM of rows × cols over k, asked before the first step. Null: not supported.
  virtual std::optional<gemm_contract> contract(const gemm_recipe& gemm, index_t rows, index_t cols,
                                                index_t k) const = 0;
  /// The contract of attention, asked before the first step. Null: not supported.
  virtual std::optional<attention_contract> contract(const std::string& attention, index_t head_dim) const = 0;
  /// Workspace of a GEMM of rows × cols over k, in bytes.
  virtual std::size_t gemm_workspace_bytes(const gemm_contract& contract, const gemm_recipe& gemm, gemm_kind kind,
                                           index_t rows, index_t cols, index_t k) const = 0;

  /// Memory of an operand set.
  virtual operand_layout layout_operands(const operand_request& request) const = 0;
  /// `memory` has the layout's bytes. `source` is read through the set if the layout says so.
  virtual std::unique_ptr<operand_set> make_operands(const operand_request& request, void* memory,
                                                     const_tensor_view source) = 0;
  /// Addresses of an operand's codes, block scales and factor in backend memory.
  virtual const gemm_operand& described(operand what) const = 0;

  // Templates, so that a source file compiles only the operations that it calls.
#define ROTOSCALE_CALL(name)                                                         \
  template <int = 0>                                                                 \
  void name(queue q, const op::name::in& i, const op::name::out& o) {                \
    run<op::name>(rows_->name, q, i, o);                                             \
  }                                                                                  \
  std::size_t workspace_bytes(const op::name::in& i, const op::name::out& o) const { \
    return rows_->name##_workspace(*this, i, o);                                     \
  }
  ROTOSCALE_OPERATIONS(ROTOSCALE_CALL)
#undef ROTOSCALE_CALL

  /// Records the operations that are put on the queue.
  std::unique_ptr<graph> capture(queue q, std::function<void()> operations) {
    auto made = std::make_unique<graph>(std::move(operations));
    record_once(q, *made);
    return made;
  }
  /// Puts the graph's operations on the queue. For an observer they run one by one, otherwise as recorded.
  void launch(queue q, graph& what) {
    record_once(q, what);
    if (is_observed() || what.recorded == nullptr) return what.operations();
    replay(q, *what.recorded);
  }

  /// Sets the observer of later operations. Null: no observer.
  void watch(op_observer* by) { observer_ = by; }

 protected:
  /// `rows` must outlive it.
  explicit backend(const operation_table& rows) : rows_(&rows) {}

  /// True while graphs are launched one operation at a time.
  virtual bool is_observed() const { return observer_ != nullptr; }

 private:
  void record_once(queue q, graph& what) {
    if (!is_observed() && what.recorded == nullptr) what.recorded = record_graph(q, what.operations);
  }
  template <class Op>
  void run(op_row<Op> row, queue q, const typename Op::in& i, const typename Op::out& o) {
    if (observer_ == nullptr) return row(*this, q, i, o);
    if constexpr (Op::info.shows_parts) {
      Op::compose(*this, q, i, o);
    } else {
      run_observed<Op>(row, q, i, o);
    }
  }
  /// The parts of a fused operation have no observer.
  template <class Op>
  void run_observed(op_row<Op> row, queue q, const typename Op::in& i, const typename Op::out& o) {
    std::array<op_use, 12> uses;
    std::size_t n = 0;
    Op::uses(
        [&](const op_use& u) {
          ROTOSCALE_ASSERT(n < uses.size());
          uses[n++] = u;
        },
        i, o);
    op_observer* const by = observer_;
    by->begin(q, {uses.data(), n});
    observer_ = nullptr;
    row(*this, q, i, o);  // does not throw: errors are the queue's
    observer_ = by;
    by->end(q, {uses.data(), n});
  }

  const operation_table* rows_;
  op_observer* observer_ = nullptr;
};

/// Largest workspace of the operations that a model uses, in bytes. Extents cover the largest calls.
class workspace_bound {
 public:
  /// Of no operation.
  workspace_bound(const backend& ops, index_t pass_tokens, index_t longest)
      : tokens(pass_tokens), positions(longest), ops_(&ops) {}

  const index_t tokens;     ///< of a pass
  const index_t positions;  ///< of a sequence

  /// A tensor without memory.
  static tensor_view extents(index_t rows, index_t cols, dtype type = dtype::fp32) {
    return dense_tensor(nullptr, type, {rows, cols});
  }
  /// Covers a call of an operation.
  template <class Op>
  void add(const typename Op::in& i, const typename Op::out& o) {
    most_ = std::max(most_, ops_->workspace_bytes(i, o));
  }
  /// Covers operations on rows of `features`.
  void add_rows(index_t features) {
    add<op::add>({extents(1, features), extents(1, features)}, {extents(1, features)});
  }
  /// Covers a GEMM with `bytes` of workspace and an output of `cols` columns.
  void add_gemm(std::size_t bytes, index_t cols = 0) {
    gemm_ = std::max(gemm_, bytes);
    gemm_cols_ = std::max(gemm_cols_, cols);
  }
  /// The workspace.
  std::size_t bytes() const {
    const gemm_contract any;
    const op::gemm::in gemm{{}, {}, any, operand_format::fp32, false};
    return std::max(most_, gemm_ + ops_->workspace_bytes(gemm, {extents(tokens, gemm_cols_, dtype::bf16)}));
  }

 private:
  const backend* ops_;
  std::size_t most_ = 0, gemm_ = 0;
  index_t gemm_cols_ = 0;
};

}  // namespace rotoscale::nn
