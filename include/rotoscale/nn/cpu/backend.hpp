// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The CPU's backend: its table of operations and contracts.
#pragma once

#include "rotoscale/nn/cpu/queues.hpp"
#include "rotoscale/nn/cpu/rows.hpp"

namespace rotoscale::nn {

/// All operations, on threads of this process.
class cpu_backend : public cpu::host_queues {
 public:
  /// threads = 0: one for every hardware thread. `timing`: appends every operation, or null.
  explicit cpu_backend(int threads = 0, std::vector<timed_operation>* timing = nullptr);
  /// With other rows, e.g. in tests. `rows` must outlive it.
  cpu_backend(int threads, const operation_table& rows, std::vector<timed_operation>* timing = nullptr)
      : host_queues(rows, timing), pool_(threads) {}

  device_properties properties() const override {
#if defined(__AVX512F__)
    const char* isa = "avx512";
#elif defined(__AVX2__) && defined(__FMA__)
    const char* isa = "avx2";
#else
    const char* isa = "generic";
#endif
    const int n = pool_.threads();
    return {"cpu (" + std::to_string(n) + (n == 1 ? " thread, " : " threads, ") + isa + ")", n, true, "cpu"};
  }
  /// The CPU computes every contract.
  std::optional<gemm_contract> contract(const gemm_recipe& gemm, index_t rows, index_t cols, index_t k) const override {
    return find_gemm_contract(gemm.accumulate, rows, cols, k);
  }
  std::size_t gemm_workspace_bytes(const gemm_contract& contract, const gemm_recipe& gemm, gemm_kind kind, index_t rows,
                                   index_t cols, index_t k) const override {
    // An operand that is the tensor itself has its storage type, which may be either.
    const bool is_tensor = gemm.left.format == operand_format::fp32 || gemm.right.format == operand_format::fp32;
    std::size_t most = 0;
    for (const dtype stored : {dtype::fp32, dtype::bf16}) {
      if (stored == dtype::bf16 && !is_tensor) continue;
      const auto describe = [&](const operand_recipe& own, index_t extent, bool right) {
        return cpu::operands::describe(own, stored, extent, k, nn::form_of(kind, right) == operand_form::column);
      };
      gemm_operand left = describe(gemm.left, rows, false), right = describe(gemm.right, cols, true);
      if (cpu::may_have_exact_steps(left, right, contract.options)) {
        const gemm_options o = cpu::blockwise_options(contract.options);
        most = std::max(most, rotoscale::gemm_workspace_bytes(left, right, o, pool_.threads()));
      }
      std::size_t expanded = 0, rows_of_threads = 0;
      for (gemm_operand* const x : {&left, &right}) {
        if (!cpu::becomes_bf16(*x, contract)) continue;
        expanded += scratch_array<bf16>::bytes(x->rows * x->k);
        rows_of_threads = each(cpu::row_bytes(x->k));
        *x = make_operand(row_major<const bf16>(nullptr, x->rows, x->k));
      }
      const std::size_t own = rotoscale::gemm_workspace_bytes(left, right, contract.options, pool_.threads());
      most = std::max(most, expanded + std::max(own, rows_of_threads));
    }
    return most;
  }
  std::optional<attention_contract> contract(const std::string& attention, index_t head_dim) const override {
    auto found = find_attention_contract(attention);
    if (found && !found->takes(head_dim)) found.reset();
    return found;
  }

  operand_layout layout_operands(const operand_request& request) const override {
    return cpu::operands::layout(request);
  }
  std::unique_ptr<operand_set> make_operands(const operand_request& request, void* memory,
                                             const_tensor_view source) override {
    return std::make_unique<cpu::operands>(request, memory, source);
  }
  const gemm_operand& described(operand what) const override { return cpu::form_of(what); }

  thread_pool& pool() { return pool_; }
  /// Scratch memory with which each thread has `bytes`.
  std::size_t each(std::size_t bytes) const { return static_cast<std::size_t>(pool_.threads()) * bytes; }

 private:
  thread_pool pool_;
};

namespace cpu {

/// Runs the body of an operation, or its parts if it has none.
template <class Op>
void row(backend& ops, queue q, const typename Op::in& i, const typename Op::out& o) {
  auto& on = static_cast<cpu_backend&>(ops);
  if constexpr (requires { compute(i, o, on.pool()); }) {
    on.template run_operation<Op>(q, i, o, [&] { compute(i, o, on.pool()); });
  } else {
    Op::compose(ops, q, i, o);
  }
}
template <>
inline void row<op::residual_norm>(backend& ops, queue q, const op::residual_norm::in& i,
                                   const op::residual_norm::out& o) {
  auto& on = static_cast<cpu_backend&>(ops);
  on.run_operation<op::residual_norm>(q, i, o, [&] { compute(i, o, on.pool()); });
  if (o.to.set != nullptr) ops.quantize(q, {o.y, i.state}, {o.to});
}

template <class Op>
std::size_t workspace_of(const backend& ops, const typename Op::in& i, const typename Op::out& o) {
  const auto& on = static_cast<const cpu_backend&>(ops);
  const room needed = [&] {
    if constexpr (requires { workspace(i, o); }) {
      return workspace(i, o);
    } else {
      return room{0, row_bytes(widest<Op>(i, o))};
    }
  }();
  return needed.shared + on.each(needed.thread) + scratch_stack::alignment;
}

}  // namespace cpu

/// CPU function of each operation.
#define ROTOSCALE_CPU_ROW(name) &cpu::row<op::name>, &cpu::workspace_of<op::name>,
inline constexpr operation_table cpu_operations{ROTOSCALE_OPERATIONS(ROTOSCALE_CPU_ROW)};
#undef ROTOSCALE_CPU_ROW

inline cpu_backend::cpu_backend(int threads, std::vector<timed_operation>* timing)
    : cpu_backend(threads, cpu_operations, timing) {}

}  // namespace rotoscale::nn
