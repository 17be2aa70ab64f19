// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The operations on the CPU, which define every contract. Threads own outputs, so results do not depend on their
// number.
#pragma once

#include "rotoscale/gemm.hpp"
#include "rotoscale/nn/cpu/attention.hpp"
#include "rotoscale/nn/cpu/dropout.hpp"
#include "rotoscale/nn/cpu/layers.hpp"
#include "rotoscale/nn/cpu/operands.hpp"
#include "rotoscale/nn/cpu/optimizer.hpp"
#include "rotoscale/nn/cpu/queues.hpp"
#include "rotoscale/nn/cpu/statistics.hpp"
#include "rotoscale/nn/cpu/tiled_attention.hpp"

namespace rotoscale::nn {

/// All operations, on threads of this process.
class cpu_backend : public cpu::host_queues {
 public:
  /// threads = 0: one for every hardware thread.
  explicit cpu_backend(int threads = 0) : pool_(threads) {}

  std::string description() const override {
#if defined(__AVX512F__)
    const char* isa = "avx512";
#elif defined(__AVX2__) && defined(__FMA__)
    const char* isa = "avx2";
#else
    const char* isa = "generic";
#endif
    return "cpu (" + std::to_string(pool_.threads()) + (pool_.threads() == 1 ? " thread, " : " threads, ") + isa + ")";
  }
  std::span<const operation_contract> contracts() const override { return reference_contracts; }
  std::optional<gemm_contract> contract(const gemm_recipe& gemm, index_t rows, index_t cols, index_t k) const override {
    return find_gemm_contract(gemm.accumulate, rows, cols, k);  // any of them
  }
  std::size_t gemm_workspace_bytes(const gemm_contract& contract, const gemm_recipe& gemm, gemm_kind kind, index_t rows,
                                   index_t cols, index_t k) const override {
    // An operand that is the tensor itself has its type, which may be either.
    const bool is_tensor = gemm.left.format == operand_format::fp32 || gemm.right.format == operand_format::fp32;
    std::size_t most = 0;
    for (const dtype stored : {dtype::fp32, dtype::bf16}) {
      if (stored == dtype::bf16 && !is_tensor) continue;
      const auto describe = [&](const operand_recipe& own, index_t extent, bool right) {
        return cpu::operands::describe(own, stored, extent, k, nn::form_of(kind, right) == operand_form::column);
      };
      gemm_operand left = describe(gemm.left, rows, false), right = describe(gemm.right, cols, true);
      std::size_t expanded = 0, rows_of_threads = 0;
      for (gemm_operand* const x : {&left, &right}) {
        if (!becomes_bf16(*x, contract)) continue;
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
  int threads() const override { return pool_.threads(); }

  std::size_t workspace_bytes(const workspace_request& r) const override {
    using numbers = scratch_array<float>;
    using wide_numbers = scratch_array<double>;
    const index_t chunks = (r.tokens + cpu::row_chunk - 1) / cpu::row_chunk;
    // Of the operations as such, then of each thread.
    const std::size_t needs[] = {
        numbers::bytes(r.tokens * r.widest) + r.gemm_bytes,
        numbers::bytes(chunks * r.hidden) + each(cpu::row_bytes(r.hidden)),
        scratch_array<index_t>::bytes(cpu::token_order::room(r.tokens, r.vocabulary)),
        wide_numbers::bytes(cpu::chunk_count(r.parameters)),
        wide_numbers::bytes(r.tokens),
        scratch_array<operand_statistics>::bytes(r.observed_rows) + each(cpu::observed_bytes(r.observed_rows)),
        wide_numbers::bytes(4 * cpu::chunk_count(r.observed_elements)),
        each(cpu::row_bytes(std::max({r.features, r.hidden, r.tokens}))),
        each(cpu::softmax_bytes(r.vocabulary)),
        each(r.attention.tiled ? cpu::detail::tiled_scratch::bytes(r.attention.model, r.sequence, r.head_dim)
                               : cpu::detail::attention_scratch::bytes(r.sequence, r.head_dim))};
    return *std::max_element(std::begin(needs), std::end(needs)) + scratch_stack::alignment;
  }

  void begin_step(queue q, const std::int32_t* targets, index_t count, step_state* state) override {
    run(q, "begin_step", [&] {
      step_state fresh;
      fresh.inputs = state->inputs;
      for (index_t i = 0; i < count; ++i) fresh.valid_tokens += targets[i] != ignored_target;
      *state = fresh;
    });
  }
  void set_gradient_scale(queue q, step_state* state) override {
    run(q, "set_gradient_scale", [&] { state->gradient_scale = gradient_scale_of(state->valid_tokens); });
  }
  void next_micro_batch(queue q, step_state* state) override {
    run(q, "next_micro_batch", [&] { ++state->micro_batch; });
  }

  operand_layout layout_operands(const operand_request& request) const override {
    return cpu::operands::layout(request);
  }
  std::unique_ptr<operand_set> make_operands(const operand_request& request, void* memory,
                                             const_tensor_view source) override {
    return std::make_unique<cpu::operands>(request, memory, source);
  }
  const gemm_operand& described(operand what) const override {
    return static_cast<const cpu::operands&>(*what.set).form(what.form);
  }
  void quantize(queue q, const_tensor_view source, const quantize_target& to, const step_state* state) override {
    run(q, "quantize", [&] { static_cast<cpu::operands&>(*to.set).quantize(source, to, state, pool_); });
  }
  void gemm(queue q, operand a, operand b, const gemm_contract& contract, operand_format output, tensor_view c,
            bool accumulate) override {
    run(q, "gemm", [&] { multiply(described(a), described(b), contract, output, c, accumulate); });
  }
  void dequantize(queue q, operand what, tensor_view to) override {
    run(q, "dequantize", [&] {
      cpu::with_storage(to.type, [&](auto t) {
        cpu::dequantize_operand(described(what), what.form, as_matrix<decltype(t)>(to), pool_);
      });
    });
  }
  void observe(queue q, const_tensor_view source, operand what, const step_state* state,
               operand_statistics* to) override {
    run(q, "observe", [&] {
      const gemm_operand& stored = described(what);
      const rotation rotated = block_options_for(resolve_form(what.set->request(), what.form, state)).rotation;
      cpu::with_storage(source.type, [&](auto t) {
        cpu::observe_operand(as_matrix<const decltype(t)>(source), stored, what.form, rotated,
                             work<operand_statistics>(stored.rows).data(), *to, pool_);
      });
    });
  }
  void compare(queue q, const float* value, const float* reference, index_t n, comparison_statistics* to) override {
    run(q, "compare",
        [&] { cpu::compare_tensors(value, reference, n, work<double>(4 * cpu::chunk_count(n)).data(), *to, pool_); });
  }
  void update_scales(queue q, const scaling_state& state, const delayed_scaling& rule) override {
    run(q, "update_scales", [&] { cpu::update_scales(state, rule); });
  }

  void embedding_forward(queue q, const token_source& tokens, const_tensor_view table, tensor_view y,
                         const step_state* state) override {
    run(q, "embedding_forward", [&] {
      const std::int32_t* now = tokens.now(*state);
      check_tokens(now, y.extent(0), table.extent(0), false);
      cpu::with_storage(y.type, [&](auto t) {
        using T = decltype(t);
        cpu::embedding_forward(now, as_matrix<const float>(table), as_matrix<T>(y), pool_);
      });
    });
  }
  void embedding_backward(queue q, const token_source& tokens, const_tensor_view dy, tensor_view dtable,
                          const step_state* state) override {
    run(q, "embedding_backward", [&] {
      const auto room = work<index_t>(cpu::token_order::room(dy.extent(0), dtable.extent(0)));
      cpu::with_storage(dy.type, [&](auto t) {
        using T = decltype(t);
        cpu::embedding_backward(tokens.now(*state), as_matrix<const T>(dy), as_matrix<float>(dtable), room.data(),
                                pool_);
      });
    });
  }
  void rmsnorm_forward(queue q, const_tensor_view x, const float* gain, float eps, tensor_view y,
                       float* rstd) override {
    run(q, "rmsnorm_forward", [&] {
      cpu::with_storage(x.type, [&](auto t) {
        using T = decltype(t);
        cpu::rmsnorm_forward(as_matrix<const T>(x), gain, eps, as_matrix<T>(y), rstd, pool_);
      });
    });
  }
  void rmsnorm_backward(queue q, const_tensor_view dy, const_tensor_view x, const float* gain, const float* rstd,
                        tensor_view dx, float* dgain) override {
    run(q, "rmsnorm_backward", [&] {
      const auto partial = work<float>((x.extent(0) + cpu::row_chunk - 1) / cpu::row_chunk * x.extent(1));
      cpu::with_storage(x.type, [&](auto t) {
        using T = decltype(t);
        cpu::rmsnorm_backward(as_matrix<const T>(dy), as_matrix<const T>(x), gain, rstd, as_matrix<T>(dx), dgain,
                              partial.data(), pool_);
      });
    });
  }
  void rope(queue q, tensor_view x, const float* cosine, const float* sine, bool inverse) override {
    run(q, "rope", [&] {
      cpu::with_storage(x.type, [&](auto t) { cpu::rope(as<decltype(t), 4>(x), cosine, sine, inverse, pool_); });
    });
  }
  void attention_forward(queue q, const attention_tensors& a, const attention_contract& contract,
                         const step_state* state) override {
    run(q, "attention_forward", [&] {
      const std::int32_t* const starts = document_starts(a, state);
      cpu::with_storage(a.o.type, [&](auto t) {
        using T = decltype(t);
        const auto x = [](const const_tensor_view& v) { return as<const T, 4>(v); };
        if (contract.tiled) {
          cpu::tiled_attention_forward(contract, x(a.q), x(a.k), x(a.v), as<T, 4>(a.o), a.lse, starts, pool_);
        } else {
          cpu::attention_forward(x(a.q), x(a.k), x(a.v), as<T, 4>(a.o), a.lse, starts, pool_);
        }
      });
    });
  }
  void attention_backward(queue q, const attention_tensors& a, const attention_gradients& d,
                          const attention_contract& contract, const step_state* state) override {
    run(q, "attention_backward", [&] {
      ROTOSCALE_ASSERT(a.past() == 0);
      const std::int32_t* const starts = document_starts(a, state);
      cpu::with_storage(a.o.type, [&](auto t) {
        using T = decltype(t);
        const auto x = [](const const_tensor_view& v) { return as<const T, 4>(v); };
        const auto y = [](const tensor_view& v) { return as<T, 4>(v); };
        if (contract.tiled) {
          cpu::tiled_attention_backward(contract, x(a.q), x(a.k), x(a.v), x(a.o), a.lse, x(d.d_o), y(d.dq), y(d.dk),
                                        y(d.dv), starts, pool_);
        } else {
          cpu::attention_backward(x(a.q), x(a.k), x(a.v), x(a.o), a.lse, x(d.d_o), y(d.dq), y(d.dk), y(d.dv), starts,
                                  pool_);
        }
      });
    });
  }
  void swiglu_forward(queue q, const_tensor_view gate_up, tensor_view h) override {
    run(q, "swiglu_forward", [&] {
      cpu::with_storage(h.type, [&](auto t) {
        using T = decltype(t);
        cpu::swiglu_forward(half<const T>(gate_up, 0), half<const T>(gate_up, 1), as_matrix<T>(h), pool_);
      });
    });
  }
  void swiglu_backward(queue q, const_tensor_view dh, const_tensor_view gate_up, tensor_view d_gate_up) override {
    run(q, "swiglu_backward", [&] {
      cpu::with_storage(dh.type, [&](auto t) {
        using T = decltype(t);
        cpu::swiglu_backward(as_matrix<const T>(dh), half<const T>(gate_up, 0), half<const T>(gate_up, 1),
                             half<T>(d_gate_up, 0), half<T>(d_gate_up, 1), pool_);
      });
    });
  }
  void add(queue q, const_tensor_view x, const_tensor_view y, tensor_view sum) override {
    run(q, "add", [&] {
      cpu::with_storage(x.type, [&](auto t) {
        using T = decltype(t);
        cpu::add(as_matrix<const T>(x), as_matrix<const T>(y), as_matrix<T>(sum), pool_);
      });
    });
  }
  void dropout(queue q, const_tensor_view x, const dropout_args& args, tensor_view y, bool accumulate,
               const step_state* state) override {
    run(q, "dropout", [&] {
      const random_stream words = args.words(*state);
      cpu::with_storage(x.type, [&](auto s) {
        using X = decltype(s);
        cpu::with_storage(y.type, [&](auto t) {
          using Y = decltype(t);
          cpu::dropout(as_matrix<const X>(x), args, words, as_matrix<Y>(y), accumulate, pool_);
        });
      });
    });
  }
  void cross_entropy(queue q, tensor_view logits, const token_source& targets, index_t first, float* loss,
                     bool gradients, const step_state* state) override {
    run(q, "cross_entropy", [&] {
      const std::int32_t* now = targets.now(*state) + first;
      check_tokens(now, logits.extent(0), logits.extent(1), true);
      cpu::cross_entropy(as_matrix<float>(logits), now, loss, gradients, state->gradient_scale, pool_);
    });
  }
  void sum_losses(queue q, const float* loss, index_t n, step_state* state) override {
    run(q, "sum_losses", [&] {
      const auto terms = work<double>(n);
      for (index_t i = 0; i < n; ++i) terms[i] = static_cast<double>(loss[i]);
      state->loss_sum += cpu::tree_sum(terms.data(), n);
    });
  }

  void residual_norm(queue q, const residual_norm_args& a, const step_state* state) override {
    if (a.branch.empty()) return backend::residual_norm(q, a, state);
    run(q, "residual_norm", [&] {
      cpu::with_storage(a.x.type, [&](auto t) {
        using T = decltype(t);
        cpu::residual_norm(as_matrix<const T>(a.x), as_matrix<const T>(a.branch), a.gain, a.epsilon,
                           as_matrix<T>(a.sum), as_matrix<T>(a.y), a.rstd, pool_);
      });
    });
    if (a.to.set != nullptr) quantize(q, a.y, a.to, state);
  }

  void sum_squares(queue q, const float* x, const parameter_arena& arena, double* out) override {
    run(q, "sum_squares", [&] {
      for (std::size_t i = 0; i < arena.segments.size(); ++i) {
        const index_t n = arena.segments[i].count;
        out[i] = cpu::sum_squares(x + arena.segments[i].first, n, work<double>(cpu::chunk_count(n)).data(), pool_);
      }
    });
  }
  void gradient_norm(queue q, const parameter_arena& arena, const optimizer_config& config,
                     step_state* state) override {
    run(q, "gradient_norm",
        [&] { cpu::gradient_norm(arena, config, *state, work<double>(cpu::chunk_count(arena.size)).data(), pool_); });
  }
  void adamw(queue q, const parameter_arena& arena, const optimizer_config& config, const step_state* state) override {
    run(q, "adamw", [&] { cpu::adamw(arena, config, *state, pool_); });
  }

 private:
  /// Scratch memory with which each thread has `bytes`.
  std::size_t each(std::size_t bytes) const { return static_cast<std::size_t>(pool_.threads()) * bytes; }
  static void check_tokens(const std::int32_t* tokens, index_t n, index_t vocabulary, bool may_mask) {
    for (index_t t = 0; t < n; ++t) {
      if ((may_mask && tokens[t] == ignored_target) || (tokens[t] >= 0 && tokens[t] < vocabulary)) continue;
      throw std::out_of_range("number " + std::to_string(tokens[t]) + " at " + std::to_string(t) +
                              " is outside a vocabulary of " + std::to_string(vocabulary));
    }
  }
  /// Checked, since a start behind its token would leave a query without a key.
  static const std::int32_t* document_starts(const attention_tensors& a, const step_state* state) {
    if (a.starts.data == nullptr) return nullptr;
    const std::int32_t* const starts = a.starts.now(*state);
    const index_t seq = a.k.extent(1);
    for (index_t i = 0; i < a.k.extent(0) * seq; ++i) {
      if (starts[i] >= 0 && starts[i] <= i % seq) continue;
      throw std::out_of_range("document start " + std::to_string(starts[i]) + " of token " + std::to_string(i % seq));
    }
    return starts;
  }
  template <class T, class View>
  static matrix<T> half(const View& x, index_t which) {
    const index_t n = x.extent(1) / 2;
    return as_matrix<T>(x.part(1, which * n, n));
  }

  /// Does the contract's unit multiply the operand as BF16 numbers?
  static bool becomes_bf16(const gemm_operand& o, const gemm_contract& contract) {
    if (!expands_to_bf16(o.blocks())) return false;
    const mma_unit* const unit = detail::find_unit_and_kernel(contract.name).unit;
    return unit != nullptr && unit->block == 0 && takes(*unit, formats::bf16) && !takes(*unit, o.element);
  }
  /// The unit aligns a product by the exponents of BF16 numbers, of which a subnormal code has smaller ones than its
  /// own format says.
  void multiply(const gemm_operand& a, const gemm_operand& b, const gemm_contract& contract, operand_format output,
                tensor_view c, bool accumulate) {
    for (const gemm_operand* const x : {&a, &b}) {
      if (!becomes_bf16(*x, contract)) continue;
      const auto values = work<bf16>(x->rows * x->k);
      cpu::dequantize_operand(*x, operand_form::row, row_major(values.data(), x->rows, x->k), pool_);
      const gemm_operand expanded = make_operand(row_major<const bf16>(values.data(), x->rows, x->k));
      return multiply(x == &a ? expanded : a, x == &b ? expanded : b, contract, output, c, accumulate);
    }
    multiply_as_it_is(a, b, contract, output, c, accumulate);
  }

  void multiply_as_it_is(const gemm_operand& a, const gemm_operand& b, const gemm_contract& contract,
                         operand_format output, tensor_view c, bool accumulate) {
    gemm_options o = contract.options;
    o.accumulate = accumulate;
    if (c.type == dtype::fp32) {
      o.output = element_format(output);
      return rotoscale::gemm(a, b, o, as_matrix<float>(c), pool_);
    }
    // Stored as BF16, so rounded to it, whatever the recipe's output is.
    o.output = formats::bf16;
    const matrix<bf16> to = as_matrix<bf16>(c);
    const auto sums = work<float>(a.rows * b.rows);
    const matrix<float> wide = row_major(sums.data(), a.rows, b.rows);
    const auto each_row = [&](const auto& body) {
      for_each_chunk(pool_, a.rows, cpu::row_chunk, [&](index_t first, index_t last) {
        for (index_t i = first; i < last; ++i) body(i);
      });
    };
    if (accumulate) each_row([&](index_t i) { cpu::read_row(&to(i, 0), b.rows, &wide(i, 0)); });
    rotoscale::gemm(a, b, o, wide, pool_);
    each_row([&](index_t i) { cpu::write_row(&wide(i, 0), b.rows, &to(i, 0)); });
  }

  thread_pool pool_;
};

}  // namespace rotoscale::nn
