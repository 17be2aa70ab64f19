// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Writes checkpoints from host memory on a second thread, while steps go on. At most one is in flight.
#pragma once

#include <cstdint>
#include <functional>
#include <future>

namespace rotoscale::program {

class checkpoint_writer {
 public:
  checkpoint_writer() = default;
  checkpoint_writer(const checkpoint_writer&) = delete;
  checkpoint_writer& operator=(const checkpoint_writer&) = delete;
  ~checkpoint_writer() { abandon(); }

  /// Starts a thread that calls `write` after release(). No checkpoint may be in flight. Returns false without memory
  /// or a thread for it.
  bool begin(std::int64_t step, std::function<void()> write);
  /// Lets the thread call `write`: its data have arrived.
  void release();
  bool is_released() const { return is_released_; }
  /// Has a checkpoint begun whose result was not taken by wait()?
  bool in_flight() const { return done_.valid(); }
  /// Is a checkpoint in flight, and written?
  bool is_done() const;
  /// Step of the checkpoint in flight, or of the last one.
  std::int64_t step() const { return step_; }
  /// Waits for the released checkpoint in flight. Returns the seconds of `write`, or throws its exception.
  double wait();
  /// Waits for the checkpoint in flight; one that is not released is not written. Its exceptions are lost.
  void abandon() noexcept;

 private:
  std::promise<bool> go_;
  std::future<double> done_;
  std::int64_t step_ = -1;
  bool is_released_ = false;
};

}  // namespace rotoscale::program
