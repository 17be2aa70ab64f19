// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The beginning or continuation of a run: its model and its files.

#include <algorithm>

#include "clock.hpp"
#include "data/own_tokenizer.hpp"
#include "device_failure.hpp"
#include "merge.hpp"
#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/io/same_file.hpp"
#include "rotoscale/train/checkpoint.hpp"
#include "rotoscale/train/schedule.hpp"
#include "rotoscale/train/warm_up.hpp"
#include "trainer/log.hpp"
#include "trainer/mlperf.hpp"
#include "trainer/signals.hpp"
#include "trainer/train.hpp"

namespace rotoscale::program {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

/// Data options of a run, with the session's text and tokenizer.
data_options data_of(const run_options& run, const session_options& session) {
  data_options o = data_of(run);
  if (!session.data.empty()) o.paths = session.data;
  if (!session.tokenizer.empty()) o.tokenizer = session.tokenizer == bytes_name ? "" : session.tokenizer;
  return o;
}

/// Data options of a continued run, whose files may have moved.
data_options moved_data_of(const run_options& run, const session_options& session) {
  const data_options o = data_of(run, session);
  const auto check = [](const std::string& path, const char* flag) {
    std::error_code failed;
    if (fs::exists(fs::status(path, failed))) return;
    throw io::error(path, "cannot open: " + failed.message() + "; " + flag + " says where it is now");
  };
  for (const std::string& path : o.paths) check(path, "--data");
  if (!o.tokenizer.empty()) check(o.tokenizer, "--tokenizer");
  return o;
}

/// Path of the weights of --init.
std::string weights_place(const std::string& init) {
  return fs::is_regular_file(init) ? init : train::find_weights(init).directory.string();
}

void require_there(const std::string& path, const char* flag) {
  std::error_code failed;
  if (fs::exists(path, failed)) return;
  throw io::error(path, std::string("is gone, with which the run began (a run removes its older checkpoints: "
                                    "--keep-checkpoints); give a copy of it by ") +
                            flag);
}

}  // namespace

std::optional<nn::recipe> synthetic_recipe_of(const session_options& session, const trainer_state& state) {
  if (state.step != 0 || session.synthetic_warmup == 0) return std::nullopt;
  const std::string& name = session.synthetic_recipe;
  if (name.empty() && state.run.lora) return state.phases.front().recipe;
  return train::load_recipe(name.empty() ? "fp8_amd" : name, "--synthetic-recipe");
}

std::vector<nn::recipe> recipes_of(const trainer_state& state, const session_options& session,
                                   const std::optional<nn::recipe>& synthetic) {
  std::vector<nn::recipe> recipes = recipes_of(state, session.statistics_noise);
  if (synthetic && *synthetic != recipes.front()) recipes.push_back(*synthetic);
  return recipes;
}

trainer::trainer(nn::backend& ops, trainer_state state, const session_options& session,
                 const std::optional<resume_point>& from)
    : ranks_(session.communicator == nullptr ? &alone_ : session.communicator),
      ops_(&ops),
      state_(std::move(state)),
      session_(session),
      from_(from),
      files_(session.out),
      progress_(session.progress),
      text_((from_ && !session.auto_resume) || session.replays ? moved_data_of(state_.run, session)
                                                               : data_of(state_.run, session),
            state_.run.train.seed, state_.run.vocabulary(), progress_.counter(state_.run.name, "tokenizing")),
      tokenizer_(tokenizer_files::read(session_.tokenizer.empty() ? state_.run.tokenizer : session_.tokenizer)),
      roof_(make_roof(session.roof, session.threads)) {
  text_.check_budget(state_.run.train, state_.skipped_steps);
  if (!from_ && !session_.replays) {
    state_.data_fingerprint = text_.fingerprint();
  } else if (state_.data_fingerprint != text_.fingerprint()) {
    throw io::error(data_of(state_.run, session_).paths.front(),
                    "not the text that the checkpoint was trained on, or another tokenizer or text format");
  }
  resolve_given();
  carry_tokenizer();
  build_model(from_ ? from_->checkpoint : fs::path());
}

/// Resolves --init and --adapter. If one names a run, the newest checkpoint at this moment counts, even if that run
/// continues.
void trainer::resolve_given() {
  const std::string &init = state_.run.init, &adapter = state_.run.adapter;
  // A path given on resume is compared with the recorded digest once, so that the run does not continue on other
  // values.
  checks_init_ = from_ && !init.empty() && (state_.resolved_init.empty() || !session_.init.empty());
  checks_adapter_ = from_ && !adapter.empty() && (state_.resolved_adapter.empty() || !session_.adapter.empty());
  if (!init.empty() && state_.resolved_init.empty()) state_.resolved_init = weights_place(init);
  if (!adapter.empty() && state_.resolved_adapter.empty()) state_.resolved_adapter = find_adapter(adapter).string();
  init_place_ = session_.init.empty() ? state_.resolved_init : weights_place(session_.init);
  adapter_place_ = session_.adapter.empty() ? state_.resolved_adapter : find_adapter(session_.adapter).string();
}

/// Copies the tokenizer files of the original model, unless text is read with another tokenizer.
void trainer::carry_tokenizer() {
  if (from_ && !from_->checkpoint.empty()) return tokenizer_.carry(from_->checkpoint);
  if (init_place_.empty()) return;
  const std::string &own = state_.run.tokenizer, &moved = session_.tokenizer;
  const fs::path place = fs::is_directory(init_place_) ? fs::path(init_place_) : fs::path(init_place_).parent_path();
  std::error_code failed;
  const bool same = fs::equivalent(moved.empty() ? own : moved, place / "tokenizer.model", failed);
  if (own.empty() || (same && !is_own_checkpoint(place))) tokenizer_.carry(place);
}

/// Calls f, which checks given weights. If they are damaged, a new run may use an older checkpoint, and the message
/// names it. A resumed or replayed run needs the same checkpoint, named by the flag.
template <class Function>
void trainer::check_given(const std::string& path, const char* flag, const Function& f) const {
  if (!from_ && !session_.replays) return naming_older(path, flag, [&] { reading(f); });
  try {
    f();
  } catch (const io::error& e) {
    throw io::error(std::string(e.what()) + "; " + flag + " takes what the run began with");
  }
}

/// Builds the model of state_ with the tensors of a checkpoint; empty: with initial values.
void trainer::build_model(const fs::path& checkpoint) {
  model_.reset();  // there is room for one
  train::session_options options = session_options_for(
      state_.run, session_.memory_limit, session_.statistics_every > 0 && leads(), session_.async_checkpoints);
  options.micro_batches /= ranks_->size();
  from_string(session_.shard, options.shard);
  from_string(session_.reduce, options.reduce);
  options.documents = text_.has_documents();
  options.divides_frozen = session_.divide_frozen;
  synthetic_ = synthetic_recipe_of(session_, state_);
  const std::vector<nn::recipe> recipes = recipes_of(state_, session_, synthetic_);
  if (!state_.run.init.empty() && (checkpoint.empty() || state_.run.lora || checks_init_)) {
    require_there(init_place_, "--init");
    check_given(init_place_, "--init",
                [&] { train::check_weights(train::find_weights(init_place_), state_.run.architecture()); });
  }
  if (!state_.run.adapter.empty() && (checkpoint.empty() || checks_adapter_)) {
    require_there(adapter_place_, "--adapter");
    check_given(adapter_place_, "--adapter", [&] {
      train::check_adapters(find_adapter(adapter_place_), state_.run.architecture(), *state_.run.lora);
    });
  }
  const nn::memory_plan plan = train::plan_session(*ops_, state_.run.architecture(), options, recipes, ranks_);
  with_plan(plan, "while the model was loaded", [&] {
    model_ = std::make_unique<train::session>(*ops_, state_.run.architecture(), options, recipes, ranks_);
    load_model(checkpoint);
  });
  text_.prepare((state_.step + state_.skipped_steps) * state_.run.train.batch * state_.run.train.accumulate);
  flops_per_token_ = model_flops_per_token(model_->model(), state_.run.train.sequence);
  saved_step_ = checkpoint.empty() || state_.evaluation_due ? -1 : state_.step;
  start_ = now_seconds();
  start_step_ = state_.step;
}

/// Loads the tensors of a checkpoint, and applies the recipe of state_.
void trainer::load_model(const fs::path& checkpoint) {
  nn::step_inputs loading;  // the same for a run and its continuation
  loading.seed = state_.run.train.seed;
  model_->set_inputs(loading);
  if (checkpoint.empty()) {
    load_initial();
  } else {
    if (state_.run.lora || checks_init_) load_base();
    if (checks_adapter_) load_given_adapters();
  }
  checks_init_ = checks_adapter_ = false;  // a roll-back loads without them
  // This is the phase of the last finished step. If the next step is in another phase, train() switches as in an
  // uninterrupted run.
  if (state_.phase != 0) model_->use(state_.recipe());
  if (!checkpoint.empty()) read_tensors(checkpoint, *model_);
}

/// Loads the weights of --init, or without it those of the seed. Frozen weights are quantized here, under every recipe
/// of the run.
void trainer::load_base() {
  if (state_.run.init.empty()) return model_->draw_base(state_.run.train.seed);
  const std::uint64_t digest = train::read_weights(train::find_weights(init_place_), *model_,
                                                   progress_.counter(state_.run.name, "reading weights"));
  if (state_.base_digest == 0) state_.base_digest = digest;
  if (digest == state_.base_digest) return;
  throw io::error(init_place_, state_.run.lora ? "not the base that the adapters were trained on (--init)"
                                               : "not the weights that the run began with (--init)");
}

/// Loads the values of --adapter. The optimizer starts from zero.
void trainer::load_given_adapters() {
  const std::uint64_t digest = train::read_adapters(find_adapter(adapter_place_), *model_);
  if (state_.adapter_digest == 0) state_.adapter_digest = digest;
  if (digest == state_.adapter_digest) return;
  throw io::error(adapter_place_, "not the adapters that the run began with (--adapter)");
}

/// Sets the initial value of every parameter.
void trainer::load_initial() {
  const std::uint64_t seed = state_.run.train.seed;
  if (state_.run.init.empty() && !state_.run.lora) return model_->initialize(seed);
  load_base();
  state_.run.adapter.empty() ? model_->initialize_adapters(seed) : load_given_adapters();
}

/// Synthetic warm-up before a new run: steps on random tokens that leave no trace in the run's bytes.
void trainer::warm_up() {
  if (!synthetic_) return;
  const double start = now_seconds();
  train::warm_up(*model_,
                 {session_.synthetic_warmup, *synthetic_, state_.run.train.seed,
                  static_cast<float>(state_.run.train.learning_rate), [this] { stop_if_interrupted(); }},
                 state_.recipe(), [this](train::session&) { load_initial(); });
  record({{"event", "warm_up"},
          {"steps", session_.synthetic_warmup},
          {"recipe", synthetic_->name},
          {"seconds", now_seconds() - start}});
}

/// Opens statistics.jsonl. With `continues`, records of later steps are removed.
void trainer::open_statistics(bool continues) {
  if (session_.statistics_every == 0 || !leads()) return;
  statistics_.reset();
  statistics_ = std::make_unique<statistics_log>(
      files_.statistics(), state_.run.name, statistics_choice{session_.statistics_every, session_.statistics_noise},
      state_.step, continues);
}

/// Does the run continue in the directory where it began?
bool trainer::is_own_run() const {
  return from_ && !from_->run.empty() && fs::weakly_canonical(files_.path()) == fs::weakly_canonical(from_->run);
}

void trainer::open_log() {
  if (!from_) require_elsewhere();
  const bool own = is_own_run();
  const auto require_unused = [&] {
    const std::string elsewhere = "another --out leaves it alone";
    if (from_ && !own) {
      files_.require_unused(" and belongs to another run than the one resumed", ": " + elsewhere);
    }
    if (!from_ && !session_.overwrite) {
      files_.require_unused("; use --resume to continue a run or --overwrite to begin again",
                            ": --overwrite removes it, " + elsewhere);
    }
  };
  require_unused();
  io::new_directories directories(files_.path());
  // The log is opened first: its lock keeps other processes out of the directory.
  log_ = std::make_unique<run_log>(files_.log());
  require_unused();  // by now another process may have begun and ended a run there
  files_.remove_leftovers();
  if (own) {
    continue_log();
  } else {
    begin_log();
  }
  directories.keep();
}

/// Writes the first records of this process, after the run's own first one.
void trainer::begin_records() {
  open_statistics(from_.has_value());
  if (!from_) return;
  ordered_json resume = {{"event", "resume"},
                         {"schema", log_schema},
                         {"step", state_.step},
                         {"steps", state_.run.train.steps},
                         {"device", ops_->description()},
                         {"threads", session_.threads}};
  add_ranks(resume);
  record(resume);
}

/// Ranks, and how they add gradients if bits depend on it.
void trainer::add_ranks(ordered_json& record) const {
  record["ranks"] = session_.ranks;
  if (session_.ranks > 1 && session_.reduce == "library") {
    record["reduce"] = "library: bits depend on ranks and --shard";
  }
}

/// Adds the other forms of the log.
void trainer::add_sinks(bool is_new) {
  if (session_.tensorboard) log_->add(make_tensorboard_log(files_.tensorboard()));
  // MLPerf times one process from its initialization, so a resumed run has no time to train.
  if (is_new && !state_.run.train.mlperf.empty()) log_->add(make_mlperf_log(files_.mlperf(), session_.began_ms));
}

ordered_json trainer::roof_record() const {
  if (!roof_) return nullptr;
  return {{"flops_per_s", roof_->flops_per_s}, {"source", roof_->source}};
}

/// Continues the log of the resumed run in its directory.
void trainer::continue_log() {
  seconds_ = logged_seconds(files_.log(), state_.step);
  files_.remove_beyond(state_.step);
  // If the run was killed after its last checkpoint, older ones were not removed. They are removed here.
  if (state_.step > 0) files_.prune(state_.step, !state_.target_reached, state_.run.train);
  if (!fs::exists(files_.config()) || session_.lengthens) io::write_json(files_.config(), config_json(state_));
  add_sinks(false);
  if (!log_begins_with_start(files_.log())) write_start();  // killed before its first record
  begin_records();
}

/// Throws io::error if --overwrite would remove the files that the run begins with.
void trainer::require_elsewhere() const {
  const auto check = [&](const std::string& name, const fs::path& place) {
    const fs::path given = fs::weakly_canonical(place);
    for (const fs::path& file : files_.all()) {
      const fs::path removed = fs::weakly_canonical(file);
      if (std::mismatch(removed.begin(), removed.end(), given.begin(), given.end()).first != removed.end()) continue;
      throw io::error(name, "is in " + session_.out + ", and --overwrite would remove it");
    }
  };
  const run_options& run = state_.run;
  if (!run.init.empty()) check(run.init, state_.resolved_init);
  if (!run.adapter.empty()) check(run.adapter, state_.resolved_adapter);
  if (!run.tokenizer.empty()) check(run.tokenizer, run.tokenizer);
  for (const std::string& data : run.data) check(data, data);
  std::vector<fs::path> inputs = session_.inputs;
  inputs.insert(inputs.end(), {fs::path(run.tokenizer), fs::path(run.schedule)});
  inputs.insert(inputs.end(), run.data.begin(), run.data.end());
  // A model's own files, not those below: --init . --out runs/a is right.
  for (const std::string& model : {state_.resolved_init, state_.resolved_adapter}) {
    std::error_code failed;
    for (const auto& file : fs::directory_iterator(model, failed)) {
      if (!file.is_directory(failed)) inputs.push_back(file.path());
    }
  }
  io::require_no_input(files_.all(), inputs);
}

void trainer::write_start() {
  ordered_json start = start_record(state_, *model_, text_, session_.threads, roof_record());
  add_ranks(start);
  if (!session_.passed_keys.empty()) start["ignored_config_keys"] = session_.passed_keys;
  record(start);
}

/// Begins the log in a new directory. If one of its files cannot be written, none stays.
void trainer::begin_log() {
  if (session_.overwrite) {
    files_.clear();
    log_->clear();
  }
  const std::vector<fs::path> own = files_.unused();
  try {
    if (from_ && state_.step > 0) {
      // The run must not depend on the run that it continues: after a kill it resumes from its own directory.
      io::make_directories(files_.checkpoints());
      write_checkpoint(state_, *model_);
    }
    if (!from_) io::write_json(files_.start(), io::to_json(state_));
    io::write_json(files_.config(), config_json(state_));
    add_sinks(!from_);
    write_start();
    begin_records();
  } catch (...) {
    files_.remove(own);
    throw;
  }
}

}  // namespace rotoscale::program
