// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Queues of a device: streams with their first error, a ring of events, and graphs. An error of a launcher or of the
// device is kept and thrown as backend_error at the next wait.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <stdexcept>
#include <type_traits>

#include "gpu/api/train.hpp"

namespace rotoscale::gpu {

/// Error of a launcher, which becomes nn::backend_error.
class refused : public std::runtime_error {
 public:
  explicit refused(const status& s) : std::runtime_error(s.message()), why(s) {}

  status why;
};
inline void expect(const status& s) {
  if (!s.ok()) throw refused(s);
}
/// Returns f(). An error of a launcher in f becomes nn::backend_error of `operation`.
template <class Function>
std::invoke_result_t<Function> naming_operation(const char* operation, const Function& f) {
  try {
    return f();
  } catch (const refused& e) {
    throw nn::backend_error(operation, e.what(), is_of_device(e.why));
  }
}

/// Range of an operation in a profiler (NVTX, ROCTX).
class profiler_range {
 public:
  explicit profiler_range(const char* name) { begin_range(name); }
  profiler_range(const profiler_range&) = delete;
  profiler_range& operator=(const profiler_range&) = delete;
  ~profiler_range() { end_range(); }
};

class device_graph final : public nn::recorded_graph {
 public:
  explicit device_graph(gpu::graph made) : recorded(made) {}
  ~device_graph() override { (void)destroy(recorded); }

  gpu::graph recorded;
};

/// Events before and after a timed operation.
class timed_events {
 public:
  timed_events() : timed_events(nullptr) {  // as device_queue
    for (event* e : {&before, &after}) expect(create(*e, true));
  }
  timed_events(const timed_events&) = delete;
  timed_events& operator=(const timed_events&) = delete;
  ~timed_events() {
    for (const event e : {before, after}) (void)destroy(e);
  }

  event before, after;

 private:
  explicit timed_events(std::nullptr_t) {}
};

class device_queue {
 public:
  /// Events in the ring. A wait for a ticket whose event was reused waits for the later ticket.
  static constexpr std::size_t ring = 64, fault_words = 2;

  device_queue() : device_queue(nullptr) {  // delegates, so that the destructor runs if a later step throws
    expect(create(stream));
    expect(allocate(faults, fault_words));
    expect(fill(faults, 0, fault_words * sizeof(std::uint32_t), stream));
    for (event& e : events_) expect(create(e));  // none is created in a step
    expect(create(end));
    void* pinned = nullptr;
    expect(allocate_pinned(pinned, fault_words * sizeof(std::uint32_t)));
    seen_ = static_cast<std::uint32_t*>(pinned);
    std::fill_n(seen_, fault_words, 0u);
  }
  device_queue(const device_queue&) = delete;
  device_queue& operator=(const device_queue&) = delete;
  ~device_queue() {
    (void)gpu::synchronize(stream);  // a copy to `seen_` may be under way
    for (const event e : events_) (void)destroy(e);
    (void)destroy(end);
    (void)release_pinned(seen_);
    (void)release(faults);
    (void)destroy(stream);
  }

  std::uint64_t record() {
    const event& e = find(++tickets_);
    expect(download(seen_, faults, fault_words * sizeof(std::uint32_t), stream));
    expect(gpu::record(e, stream));
    return tickets_;
  }
  const event& find(std::uint64_t ticket) const { return events_[ticket % ring]; }
  /// Waits for a recorded point. Throws nn::backend_error with the first error before it.
  void synchronize(std::uint64_t ticket) {
    if (!failed) {
      const status s = gpu::synchronize(find(ticket));
      if (!s.ok()) failed.emplace(late_fault(s, last));
    }
    constexpr const char* names[] = {"embedding_forward", "cross_entropy"};
    for (std::size_t i = 0; i < fault_words && !failed; ++i) {
      if (seen_[i] == 0) continue;
      failed.emplace(names[i], "number at " + std::to_string(seen_[i] - 1) + " is outside the vocabulary");
    }
    if (failed) throw nn::backend_error(*failed);
  }

  /// An error that the device reports after the launch: of `last`, the last operation on the queue, or of an earlier
  /// one.
  static nn::backend_error late_fault(const status& s, const char* last) {
    return {"device", std::string("at or before ") + last + ": " + s.message(), is_of_device(s)};
  }

  gpu::stream stream;
  event end;                                 ///< of the work so far, for another queue; may be recorded in a graph
  const char* last = "the first operation";  ///< name of the last operation
  std::optional<nn::backend_error> failed;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  /// Invalid tokens and targets, in device memory: 0, or 1 + a position.
  std::uint32_t* faults = nullptr;

 private:
  explicit device_queue(std::nullptr_t) {}

  std::uint32_t* seen_ = nullptr;  ///< `faults` at the last recorded point, in pinned memory
  std::array<event, ring> events_{};
  std::uint64_t tickets_ = 0;
};

}  // namespace rotoscale::gpu
