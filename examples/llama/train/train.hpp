// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The training loop: recipes by step, optimizer, log, evaluations, checkpoints, exact resume, signals, roll-back.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer_files.hpp"
#include "evaluate.hpp"
#include "progress.hpp"
#include "rotoscale/llama/checkpoint.hpp"
#include "throughput.hpp"
#include "train/checkpoint_writer.hpp"
#include "train/digests.hpp"
#include "train/log.hpp"
#include "train/resume.hpp"
#include "train/run_directory.hpp"
#include "train/state.hpp"
#include "train/statistics.hpp"

namespace rotoscale::llama_program {

class device_failure;

/// What is not part of a run's identity: it may differ between a run and its continuation.
struct session_options {
  std::string out;
  bool overwrite = false;
  bool auto_resume = false;      ///< resume what is in `out`, if there is anything
  bool lengthens = false;        ///< a resumed run has more steps than before
  std::int64_t stop_at = 0;      ///< end after this many steps, as if killed behind its checkpoint; 0: at the last
  int threads = 0;               ///< for the log
  std::size_t memory_limit = 0;  ///< bytes; 0: none
  std::string async_checkpoints = "auto";  ///< see snapshot_use_for
  int synthetic_warmup = 0;                ///< steps on random tokens before a new run, without a trace in it
  std::string synthetic_recipe;            ///< of those steps; empty: as AMD's runs have it (synthetic_recipe_of)
  std::int64_t statistics_every = 100;     ///< steps from an observed one to the next; 0: none is
  bool statistics_noise = false;           ///< of each, also a backward pass in BF16 that gradients are compared with
  bool progress = false;                   ///< a line on stderr, if that is a terminal
  bool csv = false;                        ///< metrics.csv beside the log
  bool tensorboard = false;                ///< tensorboard/ beside the log
  std::string roof;                        ///< see make_roof
  std::string tokenizer;                   ///< read in place of the run's; empty: that one
  std::vector<std::string> data;           ///< the same: the state keeps the run's own names
  std::string init, adapter;               ///< the same
  std::vector<std::string> passed_keys;    ///< of config.json, for the log
  std::vector<std::filesystem::path> inputs;  ///< further files that a new run reads, none of which it may write
  std::int64_t began_ms = 0;                  ///< when the program began, in milliseconds since 1970
  step_watcher* watcher = nullptr;            ///< told of every step
  bool replays = false;  ///< ends behind its checkpoint without an evaluation or a word; is nothing to go on from
};

/// The recipe of the synthetic warm-up before a run's first step; none: there is no warm-up. Where the session names
/// none, of pre-training AMD's FP8, beside adapters the run's own first recipe, which needs no other copy of the base.
/// Throws io::error.
std::optional<nn::recipe> synthetic_recipe_of(const session_options& session, const trainer_state& state);
/// In the order of their use: the recipes of a run's phases and of the warm-up, if there is one.
std::vector<nn::recipe> recipes_of(const trainer_state& state, const session_options& session,
                                   const std::optional<nn::recipe>& synthetic);

class trainer {
 public:
  /// A run, or where `from` is given the continuation of one whose state there is `state`. Throws io::error, or
  /// damaged_checkpoint.
  trainer(nn::backend& ops, trainer_state state, const session_options& session,
          const std::optional<resume_point>& from = {});

  /// Trains to the end, or until a signal comes; returns the exit code.
  int run();
  /// The same in another directory than the session's, which need not be there while the model is loaded.
  int run_in(const std::string& out);

 private:
  // start.cpp
  void resolve_given();
  void carry_tokenizer();
  template <class Function>
  void check_given(const std::string& path, const char* flag, const Function& f) const;
  void build_model(const std::filesystem::path& checkpoint);
  void load_model(const std::filesystem::path& checkpoint);
  void load_given_weights();
  void load_given_adapters();
  void open_log();
  void load_initial();
  void warm_up();
  void open_statistics(bool continues);
  void continue_log();
  void begin_log();
  void write_start();
  void begin_records();
  void require_elsewhere() const;
  void add_sinks(bool is_new);
  nlohmann::ordered_json roof_record() const;

  // healing.cpp
  void enter_phase();
  token_batch training_data();
  bool triggers_measure() const;
  bool statistics_measure() const;
  std::vector<float> reference_gradients();
  void observe_noise(const std::vector<float>& reference, bool triggered, bool observed);
  void observe_validation(double loss);

  // train.cpp
  int train();
  std::optional<std::string> train_step();
  bool observes() const;
  double log_evaluation();
  void note_validation(double loss);
  void show_progress(double loss, bool always);
  progress_function evaluation_progress();
  std::optional<std::string> find_divergence(std::optional<double> loss);
  bool roll_back(std::int64_t step, const std::string& what);
  int train_until_signal();
  int diverged(std::int64_t step, const std::string& what);
  int device_failed(const device_failure& e);
  int interrupted(int signal);
  int finish(const char* status);

  // checkpoints.cpp
  void write_checkpoint(const trainer_state& state, const llama::checkpoint_tensors& tensors) const;
  void save_checkpoint(bool is_extra);
  void release_checkpoint();
  void finish_checkpoint();
  std::string settle_checkpoint();
  std::string advice() const;
  void log_checkpoint(std::int64_t step, double seconds, double waited);

  nn::backend* ops_;
  trainer_state state_;
  session_options session_;
  std::optional<resume_point> from_;
  run_directory files_;
  progress_line progress_;
  std::string init_place_, adapter_place_;             ///< what is read of run.init and run.adapter
  bool checks_init_ = false, checks_adapter_ = false;  ///< whether they are still to be compared with their digests
  corpus text_;
  tokenizer_files tokenizer_;
  std::unique_ptr<llama::session> model_;
  std::optional<nn::recipe> synthetic_;  ///< of the synthetic warm-up, where there is one
  std::unique_ptr<run_log> log_;
  std::unique_ptr<statistics_log> statistics_;
  std::optional<roof> roof_;
  double flops_per_token_ = 0;
  std::int64_t saved_step_ = -1;          ///< whose checkpoint is complete or in flight; -1: none
  double seconds_ = 0;                    ///< spent training, evaluations and checkpoints left out
  double start_ = 0;                      ///< of this process's training, on the wall
  std::optional<double> time_to_target_;  ///< from the first step, of a run that was never interrupted
  std::int64_t start_step_ = 0;           ///< where it began
  double waited_ = 0;                     ///< seconds that steps stood still for the checkpoint in flight
  checkpoint_writer writer_;              ///< goes first: it uses the log and the model
};

}  // namespace rotoscale::llama_program
