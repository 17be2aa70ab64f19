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
#include "rotoscale/io/jsonl.hpp"
#include "train/digests.hpp"
#include "train/run_directory.hpp"
#include "train/state.hpp"
#include "train/statistics.hpp"

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
  int synthetic_warmup = 0;      ///< steps on random tokens before a new run, without a trace in it
  std::string synthetic_recipe = "fp8_amd";  ///< of those steps
  std::int64_t statistics_every = 100;  ///< steps from an observed one to the next; 0: none is
  bool progress = false;         ///< a line on stderr, rewritten every step
  step_watcher* watcher = nullptr;  ///< told of every step
  bool replays = false;          ///< ends behind its checkpoint without an evaluation or a word
};

class trainer {
 public:
  /// A new run (state.step = 0) or the continuation of a checkpoint.
  trainer(nn::backend& ops, trainer_state state, const session_options& session);

  /// Restores weights and optimizer from a checkpoint of this run.
  void restore(const std::filesystem::path& checkpoint);

  /// Trains to the end; returns the exit code.
  int run();

 private:
  void load_given_weights();
  void open_log();
  void load_initial();
  void warm_up();
  void open_statistics();
  // healing.cpp
  void enter_phase();
  token_batch training_data();
  std::vector<float> reference_gradients();
  void observe_noise(const std::vector<float>& reference);
  void observe_validation(double loss);

  nn::step_state train_step();
  bool observes() const;
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
  run_directory files_;
  corpus text_;
  std::unique_ptr<llama::session> model_;
  nn::recipe synthetic_;  ///< of the synthetic warm-up
  std::unique_ptr<io::jsonl_writer> log_;
  std::unique_ptr<statistics_log> statistics_;
  bool progress_open_ = false;
  double loader_seconds_ = 0;  ///< of the last step
  double seconds_ = 0;         ///< spent training, evaluations and checkpoints left out
};

}  // namespace rotoscale::llama_program
