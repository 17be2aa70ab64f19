// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The training loop: recipes by step, optimizer, log, evaluations, checkpoints, exact resume, signals, roll-back. Each
// rank has a trainer, and all are in the same state. Rank 0 alone writes files and messages.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer_files.hpp"
#include "evaluate.hpp"
#include "progress.hpp"
#include "rotoscale/train/checkpoint.hpp"
#include "throughput.hpp"
#include "trainer/checkpoint_writer.hpp"
#include "trainer/digests.hpp"
#include "trainer/log.hpp"
#include "trainer/resume.hpp"
#include "trainer/run_directory.hpp"
#include "trainer/state.hpp"
#include "trainer/statistics.hpp"

namespace rotoscale::program {

class device_failure;

/// Options that may differ between a run and its continuation.
struct session_options {
  std::string out;
  bool overwrite = false;
  bool auto_resume = false;    ///< resume the run in `out`, if there is one
  bool lengthens = false;      ///< a resumed run has more steps than before
  std::int64_t stop_at = 0;    ///< end after this many steps, as if killed after its checkpoint; 0: at the last
  int threads = 0;             ///< for the log
  int ranks = 1;               ///< that train on parts of a step
  bool own_process = false;    ///< this rank is a process, which takes signals
  bool divide_frozen = false;  ///< ranks store parts of frozen layers' operands, and gather them in each pass
  nn::communicator* communicator = nullptr;   ///< of one of several ranks
  std::string shard = "moments";              ///< what ranks divide, a train::shard_level
  std::string reduce = "tree";                ///< who adds their gradients, a train::gradient_reduction
  std::size_t memory_limit = 0;               ///< bytes; 0: none
  std::string async_checkpoints = "auto";     ///< see snapshot_use_for
  int synthetic_warmup = 0;                   ///< steps on random tokens before a new run; leave no trace
  std::string synthetic_recipe;               ///< of those steps; empty: as AMD's runs have it (synthetic_recipe_of)
  std::int64_t statistics_every = 100;        ///< interval of observed steps; 0: none
  bool statistics_noise = false;              ///< observed steps also compute reference gradients in BF16
  bool progress = false;                      ///< a line on stderr, if that is a terminal
  bool tensorboard = false;                   ///< write tensorboard/
  std::string roof;                           ///< see make_roof
  std::string tokenizer;                      ///< replaces the run's tokenizer file; empty: no
  std::vector<std::string> data;              ///< replaces the run's data paths; the state keeps the old names
  std::string init, adapter;                  ///< replace the run's paths
  std::vector<std::string> passed_keys;       ///< of config.json, for the log
  std::vector<std::filesystem::path> inputs;  ///< further inputs, which a new run must not overwrite
  std::int64_t began_ms = 0;                  ///< when the program began, in milliseconds since 1970
  step_watcher* watcher = nullptr;            ///< told of every step
  bool replays = false;  ///< end after the checkpoint, silently, without evaluation; cannot be resumed
};

/// Recipe of the synthetic warm-up; nullopt: no warm-up. The default is AMD's FP8 in pre-training. With adapters it is
/// the run's first recipe, which needs no second copy of the base. Throws io::error.
std::optional<nn::recipe> synthetic_recipe_of(const session_options& session, const trainer_state& state);
/// Recipes of the phases and of the warm-up, in the order of their use.
std::vector<nn::recipe> recipes_of(const trainer_state& state, const session_options& session,
                                   const std::optional<nn::recipe>& synthetic);

class trainer {
 public:
  /// Begins a run. With `from`, continues the run of `state` from there. Throws io::error or damaged_checkpoint.
  trainer(nn::backend& ops, trainer_state state, const session_options& session,
          const std::optional<resume_point>& from = {});

  /// Trains to the end or until a signal. Returns the exit code.
  int run();
  /// The same in another directory than the session's. It need not exist while the model is loaded.
  int run_in(const std::string& out);

 private:
  // start.cpp
  void resolve_given();
  void carry_tokenizer();
  template <class Function>
  void check_given(const std::string& path, const char* flag, const Function& f) const;
  void build_model(const std::filesystem::path& checkpoint);
  void load_model(const std::filesystem::path& checkpoint);
  void load_base();
  void load_given_adapters();
  bool is_own_run() const;
  void open_log();
  void load_initial();
  void warm_up();
  void open_statistics(bool continues);
  void continue_log();
  void begin_log();
  void write_start();
  void begin_records();
  void add_ranks(nlohmann::ordered_json& record) const;
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

  // ranks.cpp
  bool leads() const { return ranks_->rank() == 0; }
  void require_equal_ranks() const;
  void stop_if_interrupted() const;
  evaluation evaluate_on_ranks(std::int64_t windows, const progress_function& progress = {});

  // train.cpp
  void record(const nlohmann::ordered_json& entry);
  void say(const std::string& text) const;
  int train();
  std::optional<std::string> train_step();
  bool observes() const;
  double log_evaluation();
  void note_validation(double loss);
  void show_progress(double loss, bool always);
  progress_function evaluation_progress();
  void add_average_loss(nlohmann::ordered_json& entry, const char* name, std::int64_t windows);
  std::optional<std::string> find_divergence(std::optional<double> loss);
  bool roll_back(std::int64_t step, const std::string& what);
  int train_until_signal();
  int diverged(std::int64_t step, const std::string& what);
  int device_failed(const device_failure& e);
  int interrupted(int signal);
  int finish(const char* status);

  // checkpoints.cpp
  void write_checkpoint(const trainer_state& state, const train::checkpoint_tensors& tensors) const;
  void save_checkpoint(bool is_extra);
  void release_checkpoint();
  void finish_checkpoint();
  std::string settle_checkpoint();
  std::string advice() const;
  void log_checkpoint(std::int64_t step, double seconds, double waited);

  nn::communicator alone_;
  nn::communicator* ranks_;
  nn::backend* ops_;
  trainer_state state_;
  session_options session_;
  std::optional<resume_point> from_;
  run_directory files_;
  progress_line progress_;
  std::string init_place_, adapter_place_;             ///< paths to read for run.init and run.adapter
  bool checks_init_ = false, checks_adapter_ = false;  ///< still to be compared with their digests
  corpus text_;
  tokenizer_files tokenizer_;
  std::unique_ptr<train::session> model_;
  std::optional<nn::recipe> synthetic_;  ///< of the synthetic warm-up, if any
  std::unique_ptr<run_log> log_;
  std::unique_ptr<statistics_log> statistics_;
  std::optional<roof> roof_;
  double flops_per_token_ = 0;
  std::int64_t saved_step_ = -1;          ///< its checkpoint is complete or in flight; -1: none
  double seconds_ = 0;                    ///< training time without evaluations and checkpoints
  double start_ = 0;                      ///< wall clock at the start of training in this process
  std::optional<double> time_to_target_;  ///< seconds from the first step; only for uninterrupted runs
  std::int64_t start_step_ = 0;           ///< first step of this process
  double waited_ = 0;                     ///< seconds that steps waited for the checkpoint in flight
  checkpoint_writer writer_;              ///< destroyed first: it uses the log and the model
};

}  // namespace rotoscale::program
