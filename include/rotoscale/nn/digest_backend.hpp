// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A backend around another one that takes a digest of what each operation writes, so that two runs of one sequence of
// operations, on whichever backends, can be compared operation by operation. Quantized operands are taken as codes,
// block scales and factors, element by element, however a backend places them; those of a weight where they are
// read first, since they may be made in a step or before it. A coarse operation runs as `inner` has it, fused or not;
// what it may leave unwritten (quantize_target::keeps_source) has no digest. While digests are taken, each operation is
// waited for and none comes from a graph; otherwise graphs are launched as ever.
#pragma once

#include <cstring>
#include <set>
#include <utility>

#include "rotoscale/nn/backend.hpp"

namespace rotoscale::nn {

/// What an operation left.
struct operation_digest {
  std::string operation;     ///< as in backend, with the tensor's extents
  std::uint64_t digest = 0;  ///< FNV-1a over the elements in order, all NaN alike
  bool operator==(const operation_digest&) const = default;
};

/// Forwards everything to `inner`; see above.
class digest_backend final : public backend {
 public:
  /// Called behind each operation while digests are taken.
  using sink = std::function<void(const operation_digest&)>;

  /// `inner` must outlive it.
  explicit digest_backend(backend& inner) : inner_(&inner) {}

  /// From here on digests go to `to`; null: none are taken.
  void take_digests(sink to) {
    sink_ = std::move(to);
    seen_weights_.clear();
  }

  std::string description() const override { return inner_->description(); }
  int threads() const override { return inner_->threads(); }
  bool runs_at_once() const override { return inner_->runs_at_once(); }
  std::span<const operation_contract> contracts() const override { return inner_->contracts(); }
  std::optional<gemm_contract> contract(const gemm_recipe& gemm, index_t rows, index_t cols, index_t k) const override {
    return inner_->contract(gemm, rows, cols, k);
  }
  std::size_t gemm_workspace_bytes(const gemm_contract& c, const gemm_recipe& gemm, gemm_kind kind, index_t rows,
                                   index_t cols, index_t k) const override {
    return inner_->gemm_workspace_bytes(c, gemm, kind, rows, cols, k);
  }
  std::optional<attention_contract> contract(const std::string& attention, index_t head_dim) const override {
    return inner_->contract(attention, head_dim);
  }
  void* allocate(std::size_t bytes, memory_kind kind) override { return inner_->allocate(bytes, kind); }
  void release(void* memory, memory_kind kind) noexcept override { inner_->release(memory, kind); }
  std::size_t allocations() const override { return inner_->allocations(); }
  std::size_t workspace_bytes(const workspace_request& r) const override { return inner_->workspace_bytes(r); }
  void set_workspace(queue q, void* memory, std::size_t bytes) override { inner_->set_workspace(q, memory, bytes); }
  queue make_queue(const char* name) override { return inner_->make_queue(name); }
  void release_queue(queue q) noexcept override { inner_->release_queue(q); }
  event record(queue on) override { return inner_->record(on); }
  void order(queue after, const event& before) override { inner_->order(after, before); }
  void synchronize(const event& until) override { inner_->synchronize(until); }
  using backend::synchronize;
  void upload(queue q, void* to, const void* host, std::size_t bytes) override { inner_->upload(q, to, host, bytes); }
  void download(queue q, void* host, const void* from, std::size_t bytes) override {
    inner_->download(q, host, from, bytes);
  }
  void copy(queue q, void* to, const void* from, std::size_t bytes) override { inner_->copy(q, to, from, bytes); }
  void fill_zero(queue q, void* memory, std::size_t bytes) override { inner_->fill_zero(q, memory, bytes); }
  std::unique_ptr<graph> capture(queue q, std::function<void()> operations) override {
    auto made = std::make_unique<watched_graph>(std::move(operations));
    if (!sink_) made->captured = inner_->capture(q, made->operations);
    return made;
  }
  void launch(queue q, graph& what) override {
    auto& g = static_cast<watched_graph&>(what);
    if (sink_) return g.operations();
    if (g.captured == nullptr) g.captured = inner_->capture(q, g.operations);
    inner_->launch(q, *g.captured);
  }

  void begin_step(queue q, const std::int32_t* targets, index_t count, step_state* state) override {
    inner_->begin_step(q, targets, count, state);
    note_record(q, "begin_step", state);
  }
  void set_gradient_scale(queue q, step_state* state) override {
    inner_->set_gradient_scale(q, state);
    note_record(q, "set_gradient_scale", state);
  }
  void next_micro_batch(queue q, step_state* state) override { inner_->next_micro_batch(q, state); }
  operand_layout layout_operands(const operand_request& r) const override { return inner_->layout_operands(r); }
  std::unique_ptr<operand_set> make_operands(const operand_request& r, void* memory,
                                             const_tensor_view source) override {
    seen_weights_.clear();  // another set may lie where one was
    return inner_->make_operands(r, memory, source);
  }
  const gemm_operand& described(operand what) const override { return inner_->described(what); }
  void quantize(queue q, const_tensor_view source, const quantize_target& to, const step_state* state) override {
    inner_->quantize(q, source, to, state);
    note_target(q, to);
  }
  void gemm(queue q, operand a, operand b, const gemm_contract& contract, operand_format output, tensor_view c,
            bool accumulate) override {
    note_weight(q, a);
    note_weight(q, b);
    inner_->gemm(q, a, b, contract, output, c, accumulate);
    note(q, "gemm", c);
  }
  void dequantize(queue q, operand what, tensor_view to) override {
    inner_->dequantize(q, what, to);
    note(q, "dequantize", to);
  }
  void observe(queue q, const_tensor_view source, operand what, const step_state* state,
               operand_statistics* to) override {
    note_weight(q, what);
    inner_->observe(q, source, what, state, to);
    note_record(q, "observe", to);
  }
  void compare(queue q, const float* value, const float* reference, index_t n, comparison_statistics* to) override {
    inner_->compare(q, value, reference, n, to);
    note_record(q, "compare", to);
  }
  void update_scales(queue q, const scaling_state& state, const delayed_scaling& rule) override {
    inner_->update_scales(q, state, rule);
    note_numbers(q, "update_scales", state.scale, state.count);
  }
  void embedding_forward(queue q, const token_source& tokens, const_tensor_view table, tensor_view y,
                         const step_state* state) override {
    inner_->embedding_forward(q, tokens, table, y, state);
    note(q, "embedding_forward", y);
  }
  void embedding_backward(queue q, const token_source& tokens, const_tensor_view dy, tensor_view dtable,
                          const step_state* state) override {
    inner_->embedding_backward(q, tokens, dy, dtable, state);
    note(q, "embedding_backward", dtable);
  }
  void rmsnorm_forward(queue q, const_tensor_view x, const float* gain, float eps, tensor_view y,
                       float* rstd) override {
    inner_->rmsnorm_forward(q, x, gain, eps, y, rstd);
    note(q, "rmsnorm_forward", y);
  }
  void rmsnorm_backward(queue q, const_tensor_view dy, const_tensor_view x, const float* gain, const float* rstd,
                        tensor_view dx, float* dgain) override {
    inner_->rmsnorm_backward(q, dy, x, gain, rstd, dx, dgain);
    note(q, "rmsnorm_backward", dx);
    if (dgain != nullptr) note_numbers(q, "rmsnorm_backward's gain", dgain, x.extent(1));
  }
  void rope(queue q, tensor_view x, const float* cosine, const float* sine, bool inverse) override {
    inner_->rope(q, x, cosine, sine, inverse);
    note(q, "rope", x);
  }
  void attention_forward(queue q, const attention_tensors& t, const attention_contract& contract,
                         const step_state* state) override {
    inner_->attention_forward(q, t, contract, state);
    note(q, "attention_forward", t.o);
    note_numbers(q, "attention_forward's lse", t.lse, t.o.extent(0) * t.o.extent(1) * t.o.extent(2));
  }
  void attention_backward(queue q, const attention_tensors& t, const attention_gradients& d,
                          const attention_contract& contract, const step_state* state) override {
    inner_->attention_backward(q, t, d, contract, state);
    note(q, "attention_backward's dq", d.dq);
    note(q, "attention_backward's dk", d.dk);
    note(q, "attention_backward's dv", d.dv);
  }
  void swiglu_forward(queue q, const_tensor_view gate_up, tensor_view h) override {
    inner_->swiglu_forward(q, gate_up, h);
    note(q, "swiglu_forward", h);
  }
  void swiglu_backward(queue q, const_tensor_view dh, const_tensor_view gate_up, tensor_view d_gate_up) override {
    inner_->swiglu_backward(q, dh, gate_up, d_gate_up);
    note(q, "swiglu_backward", d_gate_up);
  }
  void add(queue q, const_tensor_view x, const_tensor_view y, tensor_view sum) override {
    inner_->add(q, x, y, sum);
    note(q, "add", sum);
  }
  void dropout(queue q, const_tensor_view x, const dropout_args& args, tensor_view y, bool accumulate,
               const step_state* state) override {
    inner_->dropout(q, x, args, y, accumulate, state);
    note(q, "dropout", y);
  }
  void cross_entropy(queue q, tensor_view logits, const token_source& targets, index_t first, float* loss,
                     bool gradients, const step_state* state) override {
    inner_->cross_entropy(q, logits, targets, first, loss, gradients, state);
    note_numbers(q, "cross_entropy", loss, logits.extent(0));
    if (gradients) note(q, "cross_entropy's gradient", logits);
  }
  void sum_losses(queue q, const float* loss, index_t n, step_state* state) override {
    inner_->sum_losses(q, loss, n, state);
    note_record(q, "sum_losses", state);
  }
  void sum_squares(queue q, const float* x, const parameter_arena& arena, double* out) override {
    inner_->sum_squares(q, x, arena, out);
  }
  void gradient_norm(queue q, const parameter_arena& arena, const optimizer_config& config,
                     step_state* state) override {
    inner_->gradient_norm(q, arena, config, state);
    note_record(q, "gradient_norm", state);
  }
  void adamw(queue q, const parameter_arena& arena, const optimizer_config& config, const step_state* state) override {
    inner_->adamw(q, arena, config, state);
    note_numbers(q, "adamw's weights", arena.weight, arena.size);
    note_numbers(q, "adamw's first moments", arena.m, arena.size);
    note_numbers(q, "adamw's second moments", arena.v, arena.size);
  }

  void residual_norm(queue q, const residual_norm_args& a, const step_state* state) override {
    inner_->residual_norm(q, a, state);
    if (!a.branch.empty()) note(q, "add", a.sum);
    if (is_written(a.to)) note(q, "rmsnorm_forward", a.y);
    note_numbers(q, "rmsnorm_forward's rstd", a.rstd, a.x.extent(0));
    note_target(q, a.to);
  }
  void swiglu_quantize(queue q, const_tensor_view gate_up, tensor_view h, const quantize_target& to,
                       const step_state* state) override {
    inner_->swiglu_quantize(q, gate_up, h, to, state);
    if (is_written(to)) note(q, "swiglu_forward", h);
    note_target(q, to);
  }
  void swiglu_backward_quantize(queue q, const_tensor_view dh, const_tensor_view gate_up, tensor_view d_gate_up,
                                const quantize_target& to, const step_state* state) override {
    inner_->swiglu_backward_quantize(q, dh, gate_up, d_gate_up, to, state);
    if (is_written(to)) note(q, "swiglu_backward", d_gate_up);
    note_target(q, to);
  }
  void rope_both(queue q, tensor_view queries, tensor_view keys, const float* cosine, const float* sine,
                 bool inverse) override {
    inner_->rope_both(q, queries, keys, cosine, sine, inverse);
    note(q, "rope", queries);
    note(q, "rope", keys);
  }
  void cross_entropy_quantize(queue q, tensor_view logits, const token_source& targets, index_t first, float* loss,
                              const quantize_target& to, const step_state* state) override {
    inner_->cross_entropy_quantize(q, logits, targets, first, loss, to, state);
    note_numbers(q, "cross_entropy", loss, logits.extent(0));
    if (is_written(to)) note(q, "cross_entropy's gradient", logits);
    note_target(q, to);
  }
  // These two have digests of what they compose, so they are composed while digests are taken.
  void head_loss(queue q, const head_args& args, step_state* state) override {
    sink_ ? backend::head_loss(q, args, state) : inner_->head_loss(q, args, state);
  }
  void clip_and_update(queue q, const parameter_arena& arena, const optimizer_config& config,
                       step_state* state) override {
    sink_ ? backend::clip_and_update(q, arena, config, state) : inner_->clip_and_update(q, arena, config, state);
  }

 private:
  /// What is launched while no digests are taken, and what is run while they are.
  struct watched_graph final : graph {
    explicit watched_graph(std::function<void()> f) : operations(std::move(f)) {}
    std::function<void()> operations;
    std::unique_ptr<graph> captured;  ///< null: not yet, since digests were taken
  };
  static constexpr std::uint64_t fnv_start = 0xCBF29CE484222325u, fnv_prime = 0x100000001B3u;

  /// An element's bits, all NaN as one.
  static std::uint64_t bits_of(const std::byte* at, dtype type) {
    std::uint64_t u = 0;
    std::memcpy(&u, at, static_cast<std::size_t>(size_of(type)));
    if (type == dtype::fp32 && fp32_is_nan(static_cast<std::uint32_t>(u))) return fp32_nan_bits;
    if (type == dtype::bf16 && fp32_is_nan(static_cast<std::uint32_t>(u) << 16)) return fp32_nan_bits >> 16;
    return u;
  }
  void note(queue q, const char* name, const const_tensor_view& x) {
    if (!sink_ || x.empty()) return;
    index_t last = 0;
    for (int d = 0; d < x.rank; ++d) last += (x.extents[d] - 1) * x.strides[d];
    (void)fetch(q, x.data, (last + 1) * size_of(x.type));
    std::uint64_t digest = fnv_start;
    for (index_t a = 0; a < x.extents[0]; ++a) {
      for (index_t b = 0; b < x.extents[1]; ++b) {
        for (index_t c = 0; c < x.extents[2]; ++c) {
          const index_t row = a * x.strides[0] + b * x.strides[1] + c * x.strides[2];
          for (index_t e = 0; e < x.extents[3]; ++e) {
            digest ^= bits_of(host_.data() + (row + e * x.strides[3]) * size_of(x.type), x.type);
            digest *= fnv_prime;
          }
        }
      }
    }
    std::string extents;
    for (int d = 0; d < x.rank; ++d) extents += (d == 0 ? " " : "x") + std::to_string(x.extents[d]);
    sink_({name + extents, digest});
  }
  void note_numbers(queue q, const char* name, const float* x, index_t n) {
    if (sink_ && x != nullptr && n > 0) note(q, name, dense_tensor(const_cast<float*>(x), dtype::fp32, {n}));
  }
  template <class Record>
  void note_record(queue q, const char* name, const Record* record) {
    if (!sink_) return;
    note(q, name, dense_tensor(const_cast<Record*>(record), dtype::u8, {index_t{sizeof(Record)}}));
  }

  /// Does an operation that quantizes what it makes write that as well?
  static bool is_written(const quantize_target& to) { return to.set == nullptr || to.keeps_source; }
  void note_target(queue q, const quantize_target& to) {
    if (to.set == nullptr) return;
    for (const operand_form f : {operand_form::row, operand_form::column}) {
      if (to.set->request().tensor == tensor_role::w) {
        seen_weights_.erase({to.set, f});
      } else if (f == operand_form::row ? to.row : to.column) {
        note_operand(q, {to.set, f});
      }
    }
  }

  std::span<const std::uint8_t> fetch(queue q, const void* from, index_t bytes) {
    host_.resize(static_cast<std::size_t>(bytes));
    inner_->download(q, host_.data(), from, host_.size());
    inner_->synchronize(q);
    return {reinterpret_cast<const std::uint8_t*>(host_.data()), host_.size()};
  }
  /// Where it is read first.
  void note_weight(queue q, operand what) {
    if (!sink_ || what.set->request().tensor != tensor_role::w) return;
    if (seen_weights_.insert({what.set, what.form}).second) note_operand(q, what);
  }
  /// Codes by rows of the operand, scales by rows of blocks, the factor: nothing of the backend's order.
  void note_operand(queue q, operand what) {
    const operand_request& r = what.set->request();
    if (!sink_ || !r.recipe(what.form) || is_source(*r.recipe(what.form), r.source)) return;
    const gemm_operand& o = inner_->described(what);
    const index_t packed_rows = o.transposed ? o.k : o.rows, block_rows = o.rows / o.block_rows;
    (void)fetch(q, o.codes, (packed_rows - 1) * o.code_stride + o.row_bytes());
    std::uint64_t digest = fnv_start;
    const auto take = [&](std::uint64_t bits) { digest = (digest ^ bits) * fnv_prime; };
    // Codes of less than a byte are read by bytes: their rows are whole bytes, and never transposed.
    const dtype type = o.element == formats::bf16 ? dtype::bf16 : dtype::u8;
    const index_t width = size_of(type), columns = o.element.bits() < 8 ? o.row_bytes() : o.k;
    const index_t down = o.transposed ? width : o.code_stride, along = o.transposed ? o.code_stride : width;
    for (index_t row = 0; row < o.rows; ++row) {
      for (index_t c = 0; c < columns; ++c) take(bits_of(host_.data() + row * down + c * along, type));
    }
    if (o.block != 0) {
      const index_t blocks = o.scale_columns();
      const auto scales = fetch(q, o.scales, (block_rows - 1) * o.scale_stride + blocks);
      for (index_t i = 0; i < block_rows * blocks; ++i) {
        take(scales[static_cast<std::size_t>(i / blocks * o.scale_stride + i % blocks)]);
      }
    }
    if (o.factor != nullptr) {
      for (const std::uint8_t byte : fetch(q, o.factor, sizeof(float))) take(byte);
    }
    constexpr const char* roles[] = {"x", "w", "dy"};
    sink_({std::string("quantize ") + roles[static_cast<int>(r.tensor)] + " by " +
               (what.form == operand_form::row ? "rows " : "columns ") +
               std::string(to_string(r.recipe(what.form)->format)) + " " + std::to_string(o.rows) + "x" +
               std::to_string(o.k),
           digest});
  }

  backend* inner_;
  sink sink_;
  std::vector<std::byte> host_;
  std::set<std::pair<const operand_set*, operand_form>> seen_weights_;  ///< whose operands have a digest
};

}  // namespace rotoscale::nn
