// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A run's checkpoints: written at once, or from a snapshot while steps go on. The files are the same.

#include <chrono>
#include <new>
#include <system_error>

#include "clock.hpp"
#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/train/sliced_checkpoint.hpp"
#include "trainer/checkpoint_writer.hpp"
#include "trainer/signals.hpp"
#include "trainer/train.hpp"

namespace rotoscale::program {

namespace fs = std::filesystem;

bool checkpoint_writer::begin(std::int64_t step, std::function<void()> write) {
  step_ = step;
  is_released_ = false;
  go_ = {};
  const signals_blocked signals;  // the run's own thread takes them
  try {
    done_ = std::async(std::launch::async, [go = go_.get_future(), write = std::move(write)]() mutable {
      if (!go.get()) return 0.0;
      const double start = now_seconds();
      write();
      return now_seconds() - start;
    });
  } catch (const std::system_error&) {
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void checkpoint_writer::release() {
  if (is_released_) return;
  is_released_ = true;
  go_.set_value(true);
}

bool checkpoint_writer::is_done() const {
  return in_flight() && is_released_ && done_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

double checkpoint_writer::wait() { return done_.get(); }

void checkpoint_writer::abandon() noexcept {
  if (!in_flight()) return;
  if (!is_released_) go_.set_value(false);
  done_.wait();
  done_ = {};
}

/// Any thread may call this while `tensors` exist. Ranks call it together.
void trainer::write_checkpoint(const trainer_state& state, const train::checkpoint_tensors& tensors) const {
  const auto add_files = [&](const fs::path& directory) {
    if (!state.run.lora) tokenizer_.write(directory, state.run.positions());
  };
  const fs::path directory = files_.checkpoint(state.step);
  if (ranks_->size() > 1) {
    return train::write_sliced_checkpoint(directory, *model_, *ranks_, io::to_json(state), state.resolved_init,
                                          add_files);
  }
  train::write_checkpoint(directory, tensors, io::to_json(state), state.resolved_init, add_files);
}

/// Writes the checkpoint of the last step. With memory for a snapshot it is written while steps go on, until
/// finish_checkpoint.
void trainer::save_checkpoint(bool is_extra) {
  finish_checkpoint();
  saved_step_ = state_.step;
  const double start = now_seconds();
  if (leads()) io::make_directories(files_.checkpoints());
  const auto write = [this, is_extra](const trainer_state& state, const train::checkpoint_tensors& tensors) {
    if (log_) log_->flush();  // the log must not lag a checkpoint
    write_checkpoint(state, tensors);
    if (!leads()) return;
    train_options keeping = state.run.train;
    if (session_.replays) keeping.keep_checkpoints = 1;  // only the last one is compared or rolled back to
    files_.prune(state.step, is_extra, keeping);
  };
  const auto write_at_once = [&](const train::checkpoint_tensors& tensors) {
    write(state_, tensors);
    const double seconds = now_seconds() - start;
    log_checkpoint(state_.step, seconds, seconds);
  };
  if (!model_->has_snapshot()) return write_at_once(*model_);
  const auto tensors = train::checkpoint_tensors::snapshot_of(*model_);
  if (!writer_.begin(state_.step, [=, state = state_] { write(state, tensors); })) {
    model_->finish_snapshot();
    return write_at_once(tensors);
  }
  if (ops_->runs_at_once()) release_checkpoint();
  waited_ = now_seconds() - start;
}

/// Lets the checkpoint in flight be written. Waits for its data, which costs nothing after a step has been queued.
void trainer::release_checkpoint() {
  if (!writer_.in_flight() || writer_.is_released()) return;
  model_->finish_snapshot();
  writer_.release();
}

/// Waits for the checkpoint in flight. Throws the exception of its writing.
void trainer::finish_checkpoint() {
  if (!writer_.in_flight()) return;
  const double start = now_seconds();
  release_checkpoint();
  const double seconds = writer_.wait();
  log_checkpoint(writer_.step(), seconds, waited_ + now_seconds() - start);
}

/// After a failure: waits for the checkpoint in flight if its data have arrived. Returns the end of the error message.
std::string trainer::settle_checkpoint() {
  try {
    finish_checkpoint();
    return "";
  } catch (const std::exception&) {
    writer_.abandon();
    return "; the checkpoint of step " + std::to_string(writer_.step()) + " could not be written";
  }
}

void trainer::log_checkpoint(std::int64_t step, double seconds, double waited) {
  record({{"event", "checkpoint"},
          {"step", step},
          {"path", files_.checkpoint(step).string()},
          {"seconds", seconds},
          {"wait_seconds", waited}});
}

}  // namespace rotoscale::program
