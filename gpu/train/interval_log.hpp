// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Time stamps of a backend's queues while ranks are profiled: collectives, operations beside the compute queue, and the
// compute queue's waits. Graphs are launched one operation at a time meanwhile.
#pragma once

#include <memory>
#include <vector>

#include "gpu/api/ranks.hpp"
#include "gpu/train/queues.hpp"

namespace rotoscale::gpu {

class interval_log {
 public:
  /// Of a backend whose operations are computed on `compute`.
  explicit interval_log(nn::queue compute) : compute_(compute) {}

  /// Does an operation on q, or a wait of q for another queue, have an interval? The operations of a collective share
  /// the collective's.
  bool notes(nn::queue q, bool waits) const { return !in_collective_ && waits == (q == compute_); }
  /// The compute queue.
  nn::queue compute() const { return compute_; }

  /// Calls f() between two time stamps on a stream.
  template <class Function>
  auto note(queue_interval::kind what, std::size_t bytes, stream s, const Function& f) {
    noted& now = *noted_.emplace_back(std::make_unique<noted>());
    now.interval.what = what;
    now.interval.bytes = bytes;
    expect(gpu::record(now.events.before, s));
    struct closing {
      noted& now;
      stream s;
      ~closing() { (void)gpu::record(now.events.after, s); }
    } const close{now, s};
    return f();
  }
  /// note() of a collective. Its operations have no intervals.
  template <class Function>
  void note_collective(queue_interval::kind what, std::size_t bytes, stream s, const Function& f) {
    in_collective_ = true;
    try {
      note(what, bytes, s, f);
    } catch (...) {
      in_collective_ = false;
      throw;
    }
    in_collective_ = false;
  }

  /// All of them, after the device was synchronized.
  std::vector<queue_interval> times() const {
    std::vector<queue_interval> all;
    for (const auto& n : noted_) {
      float begin = 0, length = 0;
      expect(elapsed(noted_.front()->events.before, n->events.before, begin));
      expect(elapsed(n->events.before, n->events.after, length));
      queue_interval& made = all.emplace_back(n->interval);
      made.begin = static_cast<double>(begin);
      made.end = made.begin + static_cast<double>(length);
    }
    return all;
  }

 private:
  struct noted {
    queue_interval interval;
    timed_events events;
  };

  nn::queue compute_;
  bool in_collective_ = false;
  std::vector<std::unique_ptr<noted>> noted_;
};

}  // namespace rotoscale::gpu
