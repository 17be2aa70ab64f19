// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Memory, queues and events of the CPU. A queue runs an operation when it is put there. Errors are kept for
// synchronize, as on a device.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "rotoscale/nn/backend.hpp"
#include "rotoscale/nn/timed_operation.hpp"
#include "rotoscale/scratch.hpp"

namespace rotoscale::nn::cpu {

/// The device part of the CPU's backend.
class host_queues : public backend {
 public:
  /// `timing`: appends every operation, or null.
  explicit host_queues(const operation_table& rows, std::vector<timed_operation>* timing = nullptr)
      : backend(rows), timing_(timing) {}

  void* allocate(std::size_t bytes, memory_kind) override {
    const std::size_t size = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    void* memory = ::operator new (size, std::align_val_t{alignment});
    std::memset(memory, 0, size);
    ++allocations_;
    return memory;
  }
  void release(void* memory, memory_kind) noexcept override { ::operator delete (memory, std::align_val_t{alignment}); }

  void set_workspace(queue q, void* memory, std::size_t bytes) override {
    state_of(q).workspace = {static_cast<std::byte*>(memory), bytes};
  }

  queue make_queue(const char*) override {
    auto place = std::find_if(queues_.begin(), queues_.end(), [](const queue_state& s) { return s.is_released; });
    if (place == queues_.end()) place = queues_.emplace(place);
    *place = {};
    return {static_cast<int>(place - queues_.begin())};
  }
  void release_queue(queue q) noexcept override { state_of(q).is_released = true; }
  event record(queue on) override { return {on, ++tickets_}; }
  void order(queue after, const event& before) override {
    // All earlier work is done. A queue that waits for a failed queue fails too.
    if (!state_of(after).failed) state_of(after).failed = state_of(before.of).failed;
  }
  void synchronize(const event& until) override {
    if (const auto& failed = state_of(until.of).failed) throw backend_error(*failed);
  }
  using backend::synchronize;
  void transfer(queue q, copy_kind kind, void* to, const void* from, std::size_t bytes) override {
    run(q, {name_of(kind), op_class::copy, 0.0, 2 * bytes}, [&] {
      if (bytes != 0) std::memcpy(to, from, bytes);  // an empty vector has no address
    });
  }
  void fill_zero(queue q, void* memory, std::size_t bytes) override {
    run(q, {"fill_zero", op_class::copy, 0.0, bytes}, [&] {
      if (bytes != 0) std::memset(memory, 0, bytes);
    });
  }

  /// Runs body() as operation Op on a queue. Keeps its error, and times it if asked to.
  template <class Op, class Body>
  void run_operation(queue q, const typename Op::in& i, const typename Op::out& o, const Body& body) {
    run(q, describe_operation<Op>(i, o, timing_ != nullptr), body);
  }

  /// Runs operation() on a queue. Keeps its error under the name of `what`, which is timed if asked to.
  template <class Operation>
  void run(queue q, const timed_operation& what, const Operation& operation) {
    if (state_of(q).failed) return;
    const lent_scratch lent(state_of(q).workspace);
    const auto start = timing_ != nullptr ? clock::now() : clock::time_point{};
    try {
      operation();
    } catch (const std::bad_alloc&) {
      state_of(q).failed.emplace(what.name, "out of memory", true);
    } catch (const std::exception& e) {
      state_of(q).failed.emplace(what.name, e.what());
    }
    if (timing_ == nullptr) return;
    timing_->push_back(what);
    timing_->back().microseconds = std::chrono::duration<double, std::micro>(clock::now() - start).count();
  }

 private:
  using clock = std::chrono::steady_clock;
  static constexpr std::size_t alignment = 64;

  struct queue_state {
    std::optional<backend_error> failed;
    std::span<std::byte> workspace;
    bool is_released = false;
  };

  queue_state& state_of(queue q) { return queues_[static_cast<std::size_t>(q.id)]; }

  std::vector<queue_state> queues_ = std::vector<queue_state>(1);
  std::uint64_t tickets_ = 0;
  std::vector<timed_operation>* timing_;
};

}  // namespace rotoscale::nn::cpu
