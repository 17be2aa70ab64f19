// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "trainer/train.hpp"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <sstream>

#include "clock.hpp"
#include "device_failure.hpp"
#include "examples/standard_streams.hpp"
#include "format_text.hpp"
#include "front.hpp"
#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/train/checkpoint.hpp"
#include "rotoscale/train/schedule.hpp"
#include "shell_word.hpp"
#include "trainer/mlperf.hpp"
#include "trainer/signals.hpp"

namespace rotoscale::program {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// Writes to the log, on rank 0.
void trainer::record(const ordered_json& entry) {
  if (log_) log_->write(entry);
}

/// Prints a line on standard error, on rank 0.
void trainer::say(const std::string& text) const {
  if (leads()) print_error(program_name, text);
}

/// Is the next step observed? Steps are counted from 0 here, so the first one is.
bool trainer::observes() const { return session_.statistics_every > 0 && state_.step % session_.statistics_every == 0; }

/// Computes and logs one optimizer step. Returns a description of a divergence; nullopt: none.
std::optional<std::string> trainer::train_step() {
  const train_options& o = state_.run.train;
  const int sequences = o.batch * o.accumulate;
  const bool triggered = triggers_measure(), noise_observed = statistics_measure();
  const std::vector<float> reference = triggered || noise_observed ? reference_gradients() : std::vector<float>();
  const double start = now_seconds();
  const double rate = learning_rate(o, state_.step);
  const token_batch data = training_data();
  const double loading = now_seconds() - start;
  if (session_.watcher != nullptr) session_.watcher->begin(state_.step + 1, state_.skipped_steps);
  model_->train_step(step_inputs_for(state_), data.tokens, data.targets, data.document_starts, observes() && leads());
  release_checkpoint();
  const nn::step_state r = model_->finish_step();
  if (session_.watcher != nullptr) session_.watcher->end();
  const double loss = r.mean_loss();
  if (!std::isfinite(loss) || !std::isfinite(r.gradient_norm)) {
    return "loss " + std::to_string(loss) + ", gradient norm " + std::to_string(r.gradient_norm);
  }
  if (o.max_loss_jump > 0 && state_.step > 0 && loss > state_.recent_loss + o.max_loss_jump) {
    return "loss " + std::to_string(loss) + " after a mean of " + std::to_string(state_.recent_loss);
  }
  const double step_seconds = now_seconds() - start;
  const std::int64_t step_tokens = std::int64_t{sequences} * o.sequence;
  seconds_ += step_seconds;
  state_.recent_loss = state_.step == 0 ? loss : std::fma(0.1, loss - state_.recent_loss, state_.recent_loss);
  ++state_.step;
  state_.tokens += step_tokens;
  state_.evaluation_due = evaluation_times(o).includes(state_.step) || state_.step == state_.end();
  const double rate_of_tokens = static_cast<double>(step_tokens) / step_seconds;
  const double flops = flops_per_token_ * rate_of_tokens;
  record({{"event", "step"},
          {"step", state_.step},
          {"loss", loss},
          {"lr", rate},
          {"grad_norm", r.gradient_norm},
          {"tokens", state_.tokens},
          {"seconds", seconds_},
          {"tokens_per_s", rate_of_tokens},
          {"flops_per_s", flops},
          {"roof_share", roof_ ? ordered_json(flops / roof_->flops_per_s) : ordered_json(nullptr)},
          {"loader_share", loading / step_seconds},
          {"recipe", state_.recipe().name}});
  show_progress(loss, state_.step == state_.end());
  if (const auto observed = model_->statistics(); !observed.empty()) {
    statistics_->write(state_.step, state_.recipe().name, model_->model(), observed);
  }
  if (triggered || noise_observed) observe_noise(reference, triggered, noise_observed);
  return std::nullopt;
}

/// Keeps the best validation loss. Regular and final evaluations both count, though their windows differ.
void trainer::note_validation(double loss) {
  if (!std::isfinite(loss)) return;
  if (!state_.evaluated || loss < state_.best_val_loss) state_.best_val_loss = loss;
  state_.evaluated = true;
}

double trainer::log_evaluation() {
  const train_options& o = state_.run.train;
  const auto e = evaluate_on_ranks(o.eval_windows, evaluation_progress());
  note_validation(e.loss);
  state_.evaluation_due = false;
  if (state_.step > 0 && o.target_loss > 0 && e.loss <= o.target_loss && !state_.target_reached) {
    state_.target_reached = true;
    if (!from_) time_to_target_ = now_seconds() - start_;
  }
  ordered_json entry = {{"event", "eval"},
                        {"step", state_.step},
                        {"tokens", state_.tokens},
                        {"val_loss", e.loss},
                        {"bits_per_byte", io::to_json(e.bits_per_byte)},
                        {"windows", e.window_losses.size()},
                        {"seconds", e.seconds},
                        {"loader_share", e.loader_share},
                        {"recipe", state_.recipe().name}};
  if (state_.step > 0) add_average_loss(entry, "average_val_loss", o.eval_windows);
  record(entry);
  return e.loss;
}

/// Adds the validation loss of the weights' moving average, if there is one.
void trainer::add_average_loss(ordered_json& entry, const char* name, std::int64_t windows) {
  if (!model_->has_average()) return;
  model_->with_average([&] { entry[name] = evaluate_on_ranks(windows, evaluation_progress()).loss; });
}

void trainer::show_progress(double loss, bool always) {
  const train_options& o = state_.run.train;
  const double tokens_per_step = static_cast<double>(o.batch) * o.accumulate * o.sequence;
  const double average = (now_seconds() - start_) / static_cast<double>(state_.step - start_step_);
  progress_.show(
      state_.run.name,
      {"step " + std::to_string(state_.step) + "/" + std::to_string(state_.end()), format_text("loss %.4f", loss),
       "ETA " + duration_text(average * static_cast<double>(state_.end() - state_.step)),
       format_text("%.0f tokens/s", tokens_per_step / average)},
      always);
}

/// Shows the progress of an evaluation. Throws interruption after a signal.
progress_function trainer::evaluation_progress() {
  return [alone = ranks_->size() == 1,
          show = progress_.counter(state_.run.name, "step " + std::to_string(state_.step) + "  evaluating")](
             std::int64_t done, std::int64_t total) {
    if (alone) throw_if_interrupted();  // ranks stop together, between steps
    show(done, total);
  };
}

/// Describes a divergence after a step; nullopt: none. A diverged model must not replace an older checkpoint. `loss` is
/// the validation loss, if computed.
std::optional<std::string> trainer::find_divergence(std::optional<double> loss) {
  if (const train::parameter* p = model_->find_overflow()) return p->name() + " has overflown";
  if (!loss) loss = evaluate_on_ranks(state_.run.train.batch).loss;
  if (std::isfinite(*loss)) return std::nullopt;
  return "validation loss " + std::to_string(*loss);
}

/// Rolls back to the last checkpoint, and skips the data up to the diverged step. Returns false if the options or the
/// data do not allow it. It depends on the state alone: a run that is killed and resumed rolls back in the same way.
bool trainer::roll_back(std::int64_t step, const std::string& what) {
  const train_options& o = state_.run.train;
  if (o.on_divergence != "rollback" || state_.rollbacks >= o.max_rollbacks) return false;
  finish_checkpoint();  // it may be the roll-back's
  const std::string own = ranks_->rank() == 0 ? files_.rollback_checkpoint(o).string() : "";
  const auto told = nn::gather_values<char>(*ranks_, std::span<const char>(own)).front();
  const resume_point to{files_.path(), fs::path(told.begin(), told.end())};
  trainer_state good = read_state(to);
  good.run = state_.run;
  good.skipped_steps = state_.skipped_steps + step - good.step;
  good.rollbacks = state_.rollbacks + 1;
  if (!text_.has_data_for(o, good.skipped_steps)) return false;
  progress_.end();
  say(state_.run.name + ": diverged at step " + std::to_string(step) + " (" + what + "); going on from step " +
      std::to_string(good.step) + " with the data that follow");
  record({{"event", "rollback"},
          {"step", good.step},
          {"from_step", step},
          {"reason", what},
          {"skipped_steps", good.skipped_steps},
          {"rollbacks", good.rollbacks}});
  state_ = std::move(good);
  build_model(to.checkpoint);
  open_statistics(true);
  return true;
}

/// Advice after a run that ends early.
std::string trainer::advice() const {
  return session_.replays ? "; nothing was compared"
                          : "; to go on: mini-llama train --resume " + shell_word(session_.out);
}

/// Reports a divergence. Only the end of the log is written after it.
int trainer::diverged(std::int64_t step, const std::string& what) {
  progress_.end();
  say(state_.run.name + ": diverged at step " + std::to_string(step) + " (" + what + ")" +
      (session_.replays ? ", as the run did not" + advice() : "; log and last checkpoint are kept in " + session_.out));
  finish("diverged");
  return exit_diverged;
}

/// Writes a checkpoint, and says how to resume.
int trainer::interrupted(int signal) {
  progress_.end();
  finish_checkpoint();
  if (!session_.replays && state_.step > 0 && saved_step_ != state_.step) {
    if (const auto fault = find_divergence({})) return diverged(state_.step, *fault);
    save_checkpoint(true);
    finish_checkpoint();
  }
  say(state_.run.name + ": " + signal_name(signal) + " at step " + std::to_string(state_.step) + " of " +
      std::to_string(state_.end()) + advice());
  finish("interrupted");
  return exit_interrupted;
}

/// Reports a device that failed or has no memory. Its data are lost.
int trainer::device_failed(const device_failure& e) {
  progress_.end();
  ranks_->abort("failed: " + std::string(e.what()));
  const std::string checkpoint = settle_checkpoint();
  say(state_.run.name + ": " + e.at("after step " + std::to_string(state_.step)) + checkpoint +
      (session_.replays ? "" : "; log and last checkpoint are kept") + advice() + "; its memory, by category:");
  std::cerr << memory_table(e.plan());
  finish("failed");
  return exit_device;
}

/// Writes the end of the log. A complete run has a last evaluation.
int trainer::finish(const char* status) {
  const train_options& o = state_.run.train;
  ordered_json end = {
      {"event", "end"}, {"status", status}, {"step", state_.step}, {"tokens", state_.tokens}, {"seconds", seconds_}};
  const std::string_view kind = status;
  if (kind != "diverged" && kind != "interrupted" && kind != "failed") {
    const auto e = evaluate_on_ranks(o.final_eval_windows, evaluation_progress());
    progress_.end();
    finish_checkpoint();
    note_validation(e.loss);
    end["final_val_loss"] = e.loss;
    end["window_losses"] = e.window_losses;
    add_average_loss(end, "final_average_val_loss", o.final_eval_windows);
    std::ostringstream text;
    text << state_.run.name << ": " << state_.step << " steps, validation loss " << e.loss << " nats/"
         << (text_.is_bytes() ? "byte" : "token");
    if (e.bits_per_byte) text << " (" << *e.bits_per_byte << (text_.is_bytes() ? " bits)" : " bits/byte)");
    if (leads()) std::cout << text.str() << "\n";
  }
  finish_checkpoint();
  end["time_to_target"] = io::to_json(time_to_target_);
  if (state_.evaluated) end["best_val_loss"] = state_.best_val_loss;
  record(end);
  return exit_ok;
}

int trainer::train() {
  const train_options& o = state_.run.train;
  for (;;) {
    if (writer_.is_done()) finish_checkpoint();
    std::optional<double> loss;
    if (state_.evaluation_due) loss = log_evaluation();
    if (loss && state_.step > 0) observe_validation(*loss);
    const bool is_complete = state_.step >= state_.end() || state_.target_reached;
    const bool ends = is_complete || (session_.stop_at > 0 && state_.step >= session_.stop_at);
    const bool at_interval = o.checkpoint_every > 0 && state_.step % o.checkpoint_every == 0;
    if (state_.step > 0 && saved_step_ != state_.step && (ends || at_interval)) {
      if (const auto fault = find_divergence(loss)) {
        if (roll_back(state_.step, *fault)) continue;
        return diverged(state_.step, *fault);
      }
      save_checkpoint(!is_complete && !at_interval);
    }
    if (ends && session_.replays) {
      finish_checkpoint();
      return exit_ok;
    }
    if (ends) return finish(state_.target_reached ? "target" : is_complete ? "ok" : "stopped");
    stop_if_interrupted();
    enter_phase();
    if (const auto fault = train_step()) {
      if (roll_back(state_.step + 1, *fault)) continue;
      return diverged(state_.step + 1, *fault);
    }
  }
}

int trainer::train_until_signal() {
  try {
    warm_up();
    return train();
  } catch (const interruption& i) {
    return interrupted(i.signal);
  }
}

int trainer::run() {
  require_equal_ranks();
  std::optional<signal_guard> signals;
  if (leads() || session_.own_process) signals.emplace();
  if (leads()) {
    open_log();
  } else if (from_ && state_.step > 0 && !is_own_run()) {
    write_checkpoint(state_, *model_);  // as rank 0 does in begin_log
  }
  const nn::memory_plan plan = model_->plan();  // a roll-back that fails leaves no session
  try {
    return with_plan(plan, "in a step", [&] { return train_until_signal(); });
  } catch (const device_failure& e) {
    if (!leads()) throw;
    return device_failed(e);
  } catch (const io::error& e) {
    progress_.end();
    writer_.abandon();
    if (session_.replays || !leads()) throw;
    throw io::error(std::string(e.what()) + "; when that is mended: mini-llama train --resume " +
                    shell_word(session_.out));
  }
}

int trainer::run_in(const std::string& out) {
  session_.out = out;
  files_ = run_directory(out);
  return run();
}

}  // namespace rotoscale::program
