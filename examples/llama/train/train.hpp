// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The training loop: recipes by step, optimizer, log, evaluations, checkpoints, exact resume.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evaluate.hpp"
#include "options.hpp"
#include "rotoscale/io/jsonl.hpp"
#include "rotoscale/llama/session.hpp"

namespace rotoscale::llama_program {

/// What is not part of a run's identity: it may differ between a run and its continuation.
struct session_options {
  std::string out;
  bool overwrite = false;
  bool resume = false;
  std::string resumed_run;       ///< directory of the run that is resumed
  std::int64_t stop_at = 0;      ///< end after this many steps, as if killed behind its checkpoint; 0: at the last
  int threads = 0;               ///< for the log
  std::size_t memory_limit = 0;  ///< bytes; 0: none
  bool progress = false;         ///< a line on stderr, rewritten every step
};

inline constexpr int exit_ok = 0;
inline constexpr int exit_bad_input = 2;
inline constexpr int exit_diverged = 3;

/// What trainer_state.json holds. No clocks: equal runs leave equal bytes.
struct trainer_state {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  double best_val_loss = 0;  ///< of all evaluations; meaningful once one was made
  bool evaluated = false;
  std::uint64_t data_fingerprint = 0;
  run_options run;
  std::vector<nn::resolved_phase> phases;
};

template <class Visitor>
void describe(Visitor&& v, trainer_state& s) {
  v("step", s.step, "optimizer steps done");
  v("tokens", s.tokens, "training tokens seen");
  v("best_val_loss", s.best_val_loss, "nats");
  v("evaluated", s.evaluated, "whether best_val_loss holds anything");
  v("data_fingerprint", s.data_fingerprint, "of the text");
  v("run", s.run, "effective options");
  v("phases", s.phases, "effective recipes by step");
}

class trainer {
 public:
  /// A new run (state.step = 0) or the continuation of a checkpoint.
  trainer(nn::backend& ops, trainer_state state, const session_options& session);

  /// Restores weights and optimizer from a checkpoint of this run.
  void restore(const std::filesystem::path& checkpoint);

  /// Trains to the end; returns the exit code.
  int run();

 private:
  void open_log();
  double logged_seconds() const;
  void enter_phase();
  nn::step_inputs inputs() const;
  nn::step_state train_step();
  double learning_rate() const;
  void note_validation(double loss);
  double log_evaluation();
  void save_checkpoint();
  void log_step(const nn::step_state& r, double rate, double step_seconds);
  void show_progress(const nn::step_state& r);
  void end_progress();
  std::optional<std::string> find_divergence(std::optional<double> loss);
  int diverged(std::int64_t step, const std::string& what);
  int finish(const char* status, int code);

  nn::backend* ops_;
  trainer_state state_;
  session_options session_;
  corpus text_;
  std::unique_ptr<llama::session> model_;
  std::size_t phase_ = 0;
  std::unique_ptr<io::jsonl_writer> log_;
  bool progress_open_ = false;
  double loader_seconds_ = 0;  ///< of the last step
  double seconds_ = 0;         ///< spent training, evaluations and checkpoints left out
};

/// What a run asks of its session.
llama::session_options session_options_for(const run_options& run, std::size_t memory_limit);
std::vector<nn::recipe> recipes_of(const std::vector<nn::resolved_phase>& phases);

/// Bytes by category, a line each, and their sum.
std::string memory_table(const nn::memory_plan& plan);

/// Reads trainer_state.json of a checkpoint.
trainer_state read_trainer_state(const std::filesystem::path& checkpoint);

/// Checks options against each other and resolves the schedule; throws io::error.
trainer_state new_run(run_options options, const std::string& where);

}  // namespace rotoscale::llama_program
