// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint on a thread of its own, from host memory, while steps go on. One at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <future>

namespace rotoscale::llama_program {

class checkpoint_writer {
 public:
  checkpoint_writer() = default;
  checkpoint_writer(const checkpoint_writer&) = delete;
  checkpoint_writer& operator=(const checkpoint_writer&) = delete;
  ~checkpoint_writer() { abandon(); }

  /// `write` is called once release() says that its data are there. None may be in flight. False: there is no thread or
  /// memory for it, and none is.
  bool begin(std::int64_t step, std::function<void()> write);
  /// Lets it begin.
  void release();
  bool is_released() const { return is_released_; }
  /// Has one begun that nobody waited for?
  bool in_flight() const { return done_.valid(); }
  /// Is there one that wait() would not wait for?
  bool is_done() const;
  /// Of the one in flight, or the last one.
  std::int64_t step() const { return step_; }
  /// Waits for the one in flight, which is released; returns the seconds that it took, or throws what it threw.
  double wait();
  /// Waits for one that is released, and lets another one do nothing. What it throws is lost.
  void abandon() noexcept;

 private:
  std::promise<bool> go_;
  std::future<double> done_;
  std::int64_t step_ = -1;
  bool is_released_ = false;
};

}  // namespace rotoscale::llama_program
