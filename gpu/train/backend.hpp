// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// nn::backend over the launchers of gpu/api: memory, queues, contracts and GEMMs. Rows of operations are in rows.cpp.
// It has no kernel and no numerics.
#pragma once

#include <memory>
#include <new>

#include "gpu/api/launch.hpp"
#include "gpu/train/interval_log.hpp"
#include "gpu/train/operands.hpp"
#include "gpu/train/queues.hpp"

namespace rotoscale::gpu {

/// Not ok for an architecture without kernels.
inline status check_architecture(const device_info& device) {
  if (device.arch != arch::other) return {};
  return {error_code::unsupported_device, "", "this build has kernels for sm_90, gfx942 and gfx950 alone"};
}

/// The contract of a recipe's GEMM if `device` has a kernel and quantizers for it.
std::optional<nn::gemm_contract> supported_contract(const nn::gemm_recipe& gemm, index_t rows, index_t cols, index_t k,
                                                    const device_info& device);

/// Device function of each operation.
extern const nn::operation_table device_operations;

/// Is asked to do each wait of the host for the device.
class wait_guard {
 public:
  virtual ~wait_guard() = default;
  /// Calls `for_device`, which waits. May throw instead of returning.
  virtual void wait(const std::function<void()>& for_device) = 0;
};

class device_backend final : public nn::backend {
 public:
  explicit device_backend(const train_options& options);
  ~device_backend() override;

  nn::device_properties properties() const override;
  std::optional<nn::gemm_contract> contract(const nn::gemm_recipe& gemm, index_t rows, index_t cols,
                                            index_t k) const override;
  std::optional<nn::attention_contract> contract(const std::string& attention, index_t head_dim) const override;
  std::size_t gemm_workspace_bytes(const nn::gemm_contract& contract, const nn::gemm_recipe& gemm, nn::gemm_kind kind,
                                   index_t rows, index_t cols, index_t k) const override;

  void* allocate(std::size_t bytes, nn::memory_kind kind) override;
  void release(void* memory, nn::memory_kind kind) noexcept override;
  void set_workspace(nn::queue q, void* memory, std::size_t bytes) override {
    of(q).workspace = memory;
    of(q).workspace_bytes = bytes;
  }
  nn::queue make_queue(const char* name) override;
  void release_queue(nn::queue q) noexcept override { queues_[static_cast<std::size_t>(q.id)].reset(); }
  nn::event record(nn::queue on) override;
  void order(nn::queue after, const nn::event& before) override;
  void follow(nn::queue after, nn::queue before) override;
  void synchronize(const nn::event& until) override;
  using backend::synchronize;
  void transfer(nn::queue q, nn::copy_kind kind, void* to, const void* from, std::size_t bytes) override;
  void copy_rows(nn::queue q, const nn::row_copy& c) override;
  void fill_zero(nn::queue q, void* memory, std::size_t bytes) override {
    run(q, {"fill_zero", nn::op_class::copy, 0.0, bytes}, [&] { return fill(memory, 0, bytes, of(q).stream); });
  }
  std::unique_ptr<nn::recorded_graph> record_graph(nn::queue q, const std::function<void()>& operations) override;
  void replay(nn::queue q, nn::recorded_graph& what) override;

  nn::operand_layout layout_operands(const nn::operand_request& request) const override {
    return operands::layout(with_storage_of_codes(request));
  }
  std::unique_ptr<nn::operand_set> make_operands(const nn::operand_request& request, void* memory,
                                                 nn::const_tensor_view source) override {
    return std::make_unique<operands>(with_storage_of_codes(request), memory, source);
  }
  const gemm_operand& described(nn::operand what) const override {
    return static_cast<const operands&>(*what.set).form(what.form);
  }

  /// Runs launch(call) as operation Op on a queue. Keeps its error, shows it to profilers, and times it if asked to.
  template <class Op, class Launch>
  void run_operation(nn::queue q, const typename Op::in& i, const typename Op::out& o, const Launch& launch) {
    run(q, nn::describe_operation<Op>(i, o, options_.timing != nullptr || intervals_ != nullptr), [&] {
      const device_queue& on = of(q);
      return launch(device_call{on.stream, on.workspace, on.workspace_bytes, on.faults});
    });
  }

  /// Runs launch(stream), which returns a status, on a queue. Keeps its error.
  template <class Launch>
  void run_on(nn::queue q, const timed_operation& what, const Launch& launch) {
    run(q, what, [&] { return launch(of(q).stream); });
  }
  /// Its device.
  const device_info& info() const { return device_; }
  /// Index of its device.
  int number() const { return options_.device; }
  /// From here on `by` does the waits. Null: the backend itself.
  void guard_waits(wait_guard* by) { guard_ = by; }
  /// From here on `log` has times of queues. Null: none.
  void note_intervals(interval_log* log) { intervals_ = log; }
  /// The stream of a queue.
  stream stream_of(nn::queue q) { return of(q).stream; }

 private:
  static constexpr const char* wait_name = "order";  ///< of an operation that waits for another queue

  nn::operand_request with_storage_of_codes(nn::operand_request r) const {
    r.row_in_bf16 = r.row_in_bf16 && !options_.keeps_codes;
    r.column_in_bf16 = r.column_in_bf16 && !options_.keeps_codes;
    return r;
  }
  device_queue& of(nn::queue q) { return *queues_[static_cast<std::size_t>(q.id)]; }

  /// Calls operation(), which returns a status, and keeps its error for synchronize.
  template <class Operation>
  void run(nn::queue q, const timed_operation& what, const Operation& operation) {
    device_queue& on = of(q);
    if (on.failed) return;
    const profiler_range shown(what.name);
    try {
      begin_timing(on);
      expect(noting(q, what, operation));
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
  /// operation(), with its times if they are noted.
  template <class Operation>
  status noting(nn::queue q, const timed_operation& what, const Operation& operation) {
    const bool waits = what.name == wait_name;
    if (intervals_ == nullptr || !intervals_->notes(q, waits)) return operation();
    return intervals_->note(waits ? queue_interval::kind::wait : queue_interval::kind::other, what.bytes, of(q).stream,
                            operation);
  }
  bool is_observed() const override { return intervals_ != nullptr || backend::is_observed(); }
  void begin_timing(const device_queue& on);
  void end_timing(const device_queue& on, const timed_operation& what);
  bool waits() const { return !capturing_ && (options_.wait_for_each || options_.timing != nullptr); }

  train_options options_;
  device_info device_;
  std::string description_;
  std::vector<std::unique_ptr<device_queue>> queues_;  ///< null: released
  std::optional<timed_events> timed_;
  bool capturing_ = false;
  wait_guard* guard_ = nullptr;
  interval_log* intervals_ = nullptr;
};

}  // namespace rotoscale::gpu
