// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// nn::backend over the launchers of gpu/api: memory, queues, operands and GEMMs here, layers in layers.cpp. It holds no
// kernel and no numerics; each operation is one call of a launcher or a few.
#pragma once

#include <memory>
#include <new>

#include "gpu/train/operands.hpp"
#include "gpu/train/queues.hpp"

namespace rotoscale::gpu {

/// Not ok: no kernel of this library runs there.
inline status check_architecture(const device_info& device) {
  if (device.arch != arch::other) return {};
  return {error_code::unsupported_device, "", "this build has kernels for sm_90, gfx942 and gfx950 alone"};
}

class device_backend final : public nn::backend {
 public:
  explicit device_backend(const train_options& options);
  ~device_backend() override;

  std::string description() const override { return description_; }
  int threads() const override { return 1; }
  bool runs_at_once() const override { return device_.arch == arch::host; }
  std::span<const nn::operation_contract> contracts() const override { return nn::reference_contracts; }
  std::optional<nn::gemm_contract> contract(const nn::gemm_recipe& gemm, index_t rows, index_t cols,
                                            index_t k) const override;
  std::optional<nn::attention_contract> contract(const std::string& attention, index_t head_dim) const override;
  std::size_t gemm_workspace_bytes(const nn::gemm_contract& contract, const nn::gemm_recipe& gemm, nn::gemm_kind kind,
                                   index_t rows, index_t cols, index_t k) const override;

  void* allocate(std::size_t bytes, nn::memory_kind kind) override;
  void release(void* memory, nn::memory_kind kind) noexcept override;
  std::size_t allocations() const override { return allocations_; }
  std::size_t workspace_bytes(const nn::workspace_request& request) const override;
  void set_workspace(nn::queue q, void* memory, std::size_t bytes) override {
    of(q).workspace = memory;
    of(q).workspace_bytes = bytes;
  }

  nn::queue make_queue(const char* name) override;
  void release_queue(nn::queue q) noexcept override { queues_[static_cast<std::size_t>(q.id)].reset(); }
  nn::event record(nn::queue on) override;
  void order(nn::queue after, const nn::event& before) override;
  void synchronize(const nn::event& until) override;
  using backend::synchronize;
  void upload(nn::queue q, void* to, const void* host, std::size_t bytes) override {
    run(q, {"upload", 0.0, bytes}, [&] { return gpu::upload(to, host, bytes, of(q).stream); });
  }
  void download(nn::queue q, void* host, const void* from, std::size_t bytes) override {
    run(q, {"download", 0.0, bytes}, [&] { return gpu::download(host, from, bytes, of(q).stream); });
  }
  void copy(nn::queue q, void* to, const void* from, std::size_t bytes) override {
    run(q, {"copy", 0.0, 2 * bytes}, [&] { return gpu::copy(to, from, bytes, of(q).stream); });
  }
  void fill_zero(nn::queue q, void* memory, std::size_t bytes) override {
    run(q, {"fill_zero", 0.0, bytes}, [&] { return fill(memory, 0, bytes, of(q).stream); });
  }
  std::unique_ptr<nn::graph> capture(nn::queue q, std::function<void()> operations) override;
  void launch(nn::queue q, nn::graph& what) override;

  void begin_step(nn::queue q, const std::int32_t* targets, index_t count, nn::step_state* state) override;
  void set_gradient_scale(nn::queue q, nn::step_state* state) override;
  void next_micro_batch(nn::queue q, nn::step_state* state) override;

  nn::operand_layout layout_operands(const nn::operand_request& request) const override {
    return operands::layout(request);
  }
  std::unique_ptr<nn::operand_set> make_operands(const nn::operand_request& request, void* memory,
                                                 nn::const_tensor_view source) override {
    return std::make_unique<operands>(request, memory, source);
  }
  const gemm_operand& described(nn::operand what) const override {
    return static_cast<const operands&>(*what.set).form(what.form);
  }
  void quantize(nn::queue q, nn::const_tensor_view source, const nn::quantize_target& to,
                const nn::step_state* state) override;
  void gemm(nn::queue q, nn::operand a, nn::operand b, const nn::gemm_contract& contract, nn::operand_format output,
            nn::tensor_view c, bool accumulate) override;
  void dequantize(nn::queue q, nn::operand what, nn::tensor_view to) override;
  void observe(nn::queue q, nn::const_tensor_view source, nn::operand what, const nn::step_state* state,
               nn::operand_statistics* to) override;
  void compare(nn::queue q, const float* value, const float* reference, index_t n,
               nn::comparison_statistics* to) override;
  void update_scales(nn::queue q, const nn::scaling_state& state, const nn::delayed_scaling& rule) override {
    run(q, {"update_scales"}, [&] { return gpu::update_scales(state, rule, of(q).stream); });
  }

  void embedding_forward(nn::queue q, const nn::token_source& tokens, nn::const_tensor_view table, nn::tensor_view y,
                         const nn::step_state* state) override;
  void embedding_backward(nn::queue q, const nn::token_source& tokens, nn::const_tensor_view dy, nn::tensor_view dtable,
                          const nn::step_state* state) override;
  void rmsnorm_forward(nn::queue q, nn::const_tensor_view x, const float* gain, float eps, nn::tensor_view y,
                       float* rstd) override;
  void rmsnorm_backward(nn::queue q, nn::const_tensor_view dy, nn::const_tensor_view x, const float* gain,
                        const float* rstd, nn::tensor_view dx, float* dgain) override;
  void rope(nn::queue q, nn::tensor_view x, const float* cosine, const float* sine, bool inverse) override;
  void rope_both(nn::queue q, nn::tensor_view queries, nn::tensor_view keys, const float* cosine, const float* sine,
                 bool inverse) override;
  void residual_norm(nn::queue q, const nn::residual_norm_args& args, const nn::step_state* state) override;
  void attention_forward(nn::queue q, const nn::attention_tensors& t, const nn::attention_contract& contract,
                         const nn::step_state* state) override;
  void attention_backward(nn::queue q, const nn::attention_tensors& t, const nn::attention_gradients& d,
                          const nn::attention_contract& contract, const nn::step_state* state) override;
  void swiglu_forward(nn::queue q, nn::const_tensor_view gate_up, nn::tensor_view h) override;
  void swiglu_backward(nn::queue q, nn::const_tensor_view dh, nn::const_tensor_view gate_up,
                       nn::tensor_view d_gate_up) override;
  void swiglu_quantize(nn::queue q, nn::const_tensor_view gate_up, nn::tensor_view h, const nn::quantize_target& to,
                       const nn::step_state* state) override;
  void swiglu_backward_quantize(nn::queue q, nn::const_tensor_view dh, nn::const_tensor_view gate_up,
                                nn::tensor_view d_gate_up, const nn::quantize_target& to,
                                const nn::step_state* state) override;
  void add(nn::queue q, nn::const_tensor_view x, nn::const_tensor_view y, nn::tensor_view sum) override;
  void dropout(nn::queue q, nn::const_tensor_view x, const nn::dropout_args& args, nn::tensor_view y, bool accumulate,
               const nn::step_state* state) override;
  void cross_entropy(nn::queue q, nn::tensor_view logits, const nn::token_source& targets, index_t first, float* loss,
                     bool gradients, const nn::step_state* state) override;
  void cross_entropy_quantize(nn::queue q, nn::tensor_view logits, const nn::token_source& targets, index_t first,
                              float* loss, const nn::quantize_target& to, const nn::step_state* state) override;
  void sum_losses(nn::queue q, const float* loss, index_t n, nn::step_state* state) override;
  void sum_squares(nn::queue q, const float* x, const nn::parameter_arena& arena, double* out) override;
  void gradient_norm(nn::queue q, const nn::parameter_arena& arena, const nn::optimizer_config& config,
                     nn::step_state* state) override;
  void adamw(nn::queue q, const nn::parameter_arena& arena, const nn::optimizer_config& config,
             const nn::step_state* state) override;

 private:
  /// Of a GEMM's kernel, whatever its operands.
  std::size_t workspace_of(const nn::gemm_contract& contract, index_t rows, index_t cols, index_t k) const;
  status gemm_on_bf16_unit(const device_queue& on, const nn::gemm_contract& contract, gemm_operand left,
                           gemm_operand right, const sum_output& r) const;
  device_queue& of(nn::queue q) { return *queues_[static_cast<std::size_t>(q.id)]; }

  /// What a queue does with an operation, a function that gives a status.
  template <class Operation>
  void run(nn::queue q, const timed_operation& what, const Operation& operation) {
    device_queue& on = of(q);
    if (on.failed) return;
    const profiler_range shown(what.name);
    try {
      begin_timing(on);
      expect(operation());
      on.last = what.name;
      end_timing(on, what);
    } catch (const refused& e) {
      on.failed.emplace(what.name, e.what(), is_of_device(e.why));
    } catch (const std::bad_alloc&) {  // of host memory: host mode's launches take some
      on.failed.emplace(what.name, "out of memory", true);
    } catch (const std::exception& e) {
      on.failed.emplace(what.name, e.what());
    }
  }
  void begin_timing(const device_queue& on);
  void end_timing(const device_queue& on, const timed_operation& what);
  bool waits() const { return !capturing_ && (options_.wait_for_each || options_.timing != nullptr); }

  train_options options_;
  device_info device_;
  std::string description_;
  std::vector<std::unique_ptr<device_queue>> queues_;  ///< null: released
  std::optional<timed_events> timed_;
  bool capturing_ = false;
  std::size_t allocations_ = 0;
};

}  // namespace rotoscale::gpu
