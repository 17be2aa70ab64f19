// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Queues of a device: streams with what failed on them, a ring of events, and graphs. Whatever a launcher refuses, and
// whatever the device reports later, is kept and becomes a backend_error where somebody waits.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <stdexcept>

#include "gpu/api/train.hpp"

namespace rotoscale::gpu {

/// A launcher's refusal on its way to nn::backend_error.
class refused : public std::runtime_error {
 public:
  explicit refused(const status& s) : std::runtime_error(s.message()), why(s) {}

  status why;
};
inline void expect(const status& s) {
  if (!s.ok()) throw refused(s);
}

/// What a profiler shows of the host's work on an operation, and of what it launches.
class profiler_range {
 public:
  explicit profiler_range(const char* name) { begin_range(name); }
  profiler_range(const profiler_range&) = delete;
  profiler_range& operator=(const profiler_range&) = delete;
  ~profiler_range() { end_range(); }
};

/// Recorded operations; in a build for the host, or without graphs, the function that puts them on the queue.
class device_graph final : public nn::graph {
 public:
  explicit device_graph(std::function<void()> f) : operations(std::move(f)) {}
  explicit device_graph(gpu::graph recorded) : recorded(recorded) {}
  ~device_graph() override { (void)destroy(recorded); }

  std::function<void()> operations;  ///< empty where `recorded` holds them
  gpu::graph recorded;
};

/// Before and after an operation that is timed.
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
  /// Events in the ring; to wait for a ticket whose event was reused is to wait for the later ticket.
  static constexpr std::size_t ring = 64, fault_words = 2;

  device_queue() : device_queue(nullptr) {  // so that what was made is released where the rest cannot be
    expect(create(stream));
    expect(allocate(faults, fault_words));
    expect(fill(faults, 0, fault_words * sizeof(std::uint32_t), stream));
    for (event& e : events_) expect(create(e));  // none is created in a step
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
  /// Waits for a recorded point; throws nn::backend_error with what failed before it.
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

  /// A fault that the device reports after the launch: that of `last`, the last operation put on the queue, or of one
  /// before.
  static nn::backend_error late_fault(const status& s, const char* last) {
    return {"device", std::string("at or before ") + last + ": " + s.message(), is_of_device(s)};
  }

  gpu::stream stream;
  const char* last = "the first operation";  ///< name of what was put on the queue last
  std::optional<nn::backend_error> failed;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  /// What kernels found wrong with tokens and with targets, in device memory: 0, or 1 + a position.
  std::uint32_t* faults = nullptr;

 private:
  explicit device_queue(std::nullptr_t) {}

  std::uint32_t* seen_ = nullptr;  ///< `faults` at the last recorded point, in pinned memory
  std::array<event, ring> events_{};
  std::uint64_t tickets_ = 0;
};

}  // namespace rotoscale::gpu
