// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "train/train.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "clock.hpp"
#include "exit_codes.hpp"
#include "rotoscale/llama/checkpoint.hpp"
#include "rotoscale/llama/healing.hpp"
#include "rotoscale/llama/schedule.hpp"
#include "rotoscale/llama/warm_up.hpp"
#include "train/log.hpp"

namespace rotoscale::llama_program {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

trainer::trainer(nn::backend& ops, trainer_state state, const session_options& session)
    : ops_(&ops),
      state_(std::move(state)),
      session_(session),
      files_(session.out),
      text_(data_of(state_.run), state_.run.train.seed, state_.run.model.vocab_size) {
  text_.check_budget(state_.run.train);
  if (state_.step == 0) {
    state_.data_fingerprint = text_.fingerprint();
  } else if (state_.data_fingerprint != text_.fingerprint()) {
    throw io::error(state_.run.data.front(),
                    "not the text that the checkpoint was trained on, or another tokenizer or text format");
  }
  std::vector<nn::recipe> recipes = recipes_of(state_.phases);
  if (state_.step == 0 && session_.synthetic_warmup > 0) {
    synthetic_ = llama::load_recipe(session_.synthetic_recipe);
    check_blocks(state_.run, synthetic_, "--synthetic-recipe");
    recipes.push_back(synthetic_);
  }
  llama::session_options options =
      session_options_for(state_.run, session_.memory_limit, session_.statistics_every > 0);
  options.documents = text_.has_documents();
  model_ = std::make_unique<llama::session>(ops, state_.run.model, options, recipes);
  nn::step_inputs loading;  // the same for a run and its continuation
  loading.seed = state_.run.train.seed;
  model_->set_inputs(loading);
  if (state_.step == 0) {
    load_initial();
  } else if (state_.run.lora) {
    load_given_weights();
  }
  // The phase of the last step done: where the next one is in another phase, run() switches as an unbroken run does.
  if (state_.phase != 0) model_->use(state_.recipe());
}

/// The weights of --init; frozen ones are quantized here, under every recipe of the run.
void trainer::load_given_weights() {
  const std::uint64_t digest = llama::read_weights(llama::find_weights(state_.run.init), *model_);
  if (!state_.run.lora) return;
  if (state_.step == 0) state_.base_digest = digest;
  if (digest != state_.base_digest) {
    throw io::error(state_.run.init, "not the weights that the adapters were trained beside");
  }
}

void trainer::restore(const fs::path& checkpoint) {
  llama::read_checkpoint(checkpoint, *model_, true);
  llama::read_scales(checkpoint, *model_);
}

void trainer::open_log() {
  files_.create();
  if (session_.resume) {
    const bool own = fs::weakly_canonical(files_.path()) == fs::weakly_canonical(session_.resumed_run);
    if (!own) files_.require_unused(" and belongs to another run than the one resumed");
    seconds_ = logged_seconds(files_.log(), state_.step);
    open_statistics();
    log_ = std::make_unique<io::jsonl_writer>(files_.log(), io::jsonl_writer::mode::append);
    log_->write(
        {{"event", "resume"}, {"step", state_.step}, {"device", ops_->description()}, {"threads", session_.threads}});
    return;
  }
  if (!session_.overwrite) {
    files_.require_unused("; use --resume to continue a run or --overwrite to start anew");
  }
  if (!state_.run.init.empty()) {
    const fs::path base = fs::weakly_canonical(llama::find_weights(state_.run.init).directory),
                   removed = fs::weakly_canonical(files_.checkpoints());
    if (std::mismatch(removed.begin(), removed.end(), base.begin(), base.end()).first == removed.end()) {
      throw io::error(state_.run.init, "lies in " + session_.out + ", whose checkpoints --overwrite would remove");
    }
  }
  std::error_code failed;
  fs::remove_all(files_.checkpoints(), failed);
  log_ = std::make_unique<io::jsonl_writer>(files_.log());
  log_->write(start_record(state_, *model_, text_, session_.threads));
  io::write_json(files_.config(), io::to_json(state_.run));
  fs::remove(files_.statistics(), failed);
  open_statistics();
}

void trainer::open_statistics() {
  if (session_.statistics_every == 0) return;
  statistics_ = std::make_unique<statistics_log>(files_.statistics(), state_.run.name, session_.statistics_every,
                                                 state_.step, session_.resume);
}

/// Is the coming step an observed one? Steps are counted from 0 here, so the first one is.
bool trainer::observes() const {
  return session_.statistics_every > 0 && state_.step % session_.statistics_every == 0;
}

/// The values that every parameter begins with.
void trainer::load_initial() {
  if (state_.run.lora || !state_.run.init.empty()) load_given_weights();
  state_.run.init.empty() ? model_->initialize(state_.run.train.seed)
                          : model_->initialize_adapters(state_.run.train.seed);
}

/// Random steps before a new run, whose bytes are those of one without them.
void trainer::warm_up() {
  if (state_.step != 0 || session_.synthetic_warmup == 0) return;
  const double start = now_seconds();
  llama::warm_up(*model_,
                 {session_.synthetic_warmup, synthetic_, state_.run.train.seed,
                  static_cast<float>(state_.run.train.learning_rate)},
                 state_.recipe(), [this](llama::session&) { load_initial(); });
  log_->write({{"event", "warm_up"},
               {"steps", session_.synthetic_warmup},
               {"recipe", synthetic_.name},
               {"seconds", now_seconds() - start}});
}

nn::step_state trainer::train_step() {
  const double start = now_seconds();
  const token_batch data = training_data();
  loader_seconds_ = now_seconds() - start;
  if (session_.watcher != nullptr) session_.watcher->begin(state_.step + 1);
  model_->train_step(step_inputs_for(state_), data.tokens, data.targets, data.document_starts, observes());
  const nn::step_state result = model_->finish_step();
  if (session_.watcher != nullptr) session_.watcher->end();
  return result;
}

/// Keeps the best validation loss, whether of the few windows of an evaluation or of the many of the final one.
void trainer::note_validation(double loss) {
  if (!std::isfinite(loss)) return;
  if (!state_.evaluated || loss < state_.best_val_loss) state_.best_val_loss = loss;
  state_.evaluated = true;
}

double trainer::log_evaluation() {
  const train_options& o = state_.run.train;
  const auto e = evaluate(*model_, step_inputs_for(state_), text_, o.eval_windows);
  note_validation(e.loss);
  log_->write({{"event", "eval"},
               {"step", state_.step},
               {"tokens", state_.tokens},
               {"val_loss", e.loss},
               {"bits_per_byte", e.bits_per_byte ? ordered_json(*e.bits_per_byte) : ordered_json(nullptr)},
               {"windows", e.window_losses.size()},
               {"loader_share", e.loader_share},
               {"recipe", state_.recipe().name}});
  return e.loss;
}

void trainer::save_checkpoint() {
  std::error_code failed;
  fs::create_directories(files_.checkpoints(), failed);
  const fs::path path = files_.checkpoint(state_.step);
  llama::write_checkpoint(path, *model_, io::to_json(state_), state_.run.init);
  log_->write({{"event", "checkpoint"}, {"step", state_.step}, {"path", path.string()}});
  files_.prune(state_.step, state_.run.train.keep_checkpoints);
}

void trainer::show_progress(const nn::step_state& r) {
  if (!session_.progress) return;
  const train_options& o = state_.run.train;
  const double tokens_per_step = static_cast<double>(o.batch) * o.accumulate * o.sequence;
  const double average = seconds_ / static_cast<double>(std::max<std::int64_t>(1, state_.tokens)) * tokens_per_step;
  const double left = average * static_cast<double>(o.steps - state_.step);
  std::fprintf(stderr, "\r%s  step %lld/%lld  loss %.4f  %.0f tokens/s  ETA %d:%02d   ", state_.run.name.c_str(),
               static_cast<long long>(state_.step), static_cast<long long>(o.steps), r.mean_loss(),
               tokens_per_step / average, static_cast<int>(left) / 60, static_cast<int>(left) % 60);
  progress_open_ = true;
}

/// Ends the progress line, so that what follows on the terminal has a line of its own.
void trainer::end_progress() {
  if (progress_open_) std::fputc('\n', stderr);
  progress_open_ = false;
}

/// Reports a number that is none: nothing more is written but the end of the log.
int trainer::diverged(std::int64_t step, const std::string& what) {
  end_progress();
  std::cerr << "mini-llama: " << state_.run.name << ": diverged at step " << step << " (" << what
            << "); log and last checkpoint are kept in " << session_.out << "\n";
  return finish("diverged", exit_diverged);
}

/// What is wrong with the model behind a step, if anything is: such a model must not displace an older checkpoint.
/// `loss` is its validation loss if one was computed.
std::optional<std::string> trainer::find_divergence(std::optional<double> loss) {
  const train_options& o = state_.run.train;
  if (const llama::parameter* p = model_->find_overflow()) return p->name() + " has overflown";
  if (!loss) loss = evaluate(*model_, step_inputs_for(state_), text_, o.batch).loss;
  if (std::isfinite(*loss)) return std::nullopt;
  return "validation loss " + std::to_string(*loss);
}

int trainer::finish(const char* status, int code) {
  const train_options& o = state_.run.train;
  ordered_json record = {
      {"event", "end"}, {"status", status}, {"step", state_.step}, {"tokens", state_.tokens}, {"seconds", seconds_}};
  if (code == exit_ok) {
    const auto e = evaluate(*model_, step_inputs_for(state_), text_, o.final_eval_windows);
    note_validation(e.loss);
    record["final_val_loss"] = e.loss;
    record["window_losses"] = e.window_losses;
    std::cout << state_.run.name << ": " << state_.step << " steps, validation loss " << e.loss << " nats/"
              << (text_.is_bytes() ? "byte" : "token");
    if (e.bits_per_byte) std::cout << " (" << *e.bits_per_byte << (text_.is_bytes() ? " bits)" : " bits/byte)");
    std::cout << "\n";
  }
  if (state_.evaluated) record["best_val_loss"] = state_.best_val_loss;
  log_->write(record);
  return code;
}

/// Counts a finished step and logs it.
void trainer::log_step(const nn::step_state& r, double rate, double step_seconds) {
  const train_options& o = state_.run.train;
  const std::int64_t step_tokens = std::int64_t{o.batch} * o.accumulate * o.sequence;
  ++state_.step;
  state_.tokens += step_tokens;
  log_->write({{"event", "step"},
               {"step", state_.step},
               {"loss", r.mean_loss()},
               {"lr", rate},
               {"grad_norm", r.gradient_norm},
               {"tokens", state_.tokens},
               {"seconds", seconds_},
               {"tokens_per_s", static_cast<double>(step_tokens) / step_seconds},
               {"loader_share", loader_seconds_ / step_seconds},
               {"recipe", state_.recipe().name}});
}

int trainer::run() {
  const train_options& o = state_.run.train;
  open_log();
  warm_up();
  if (state_.step == 0) log_evaluation();
  const auto last = [&] { return session_.stop_at > 0 ? std::min(session_.stop_at, state_.end()) : state_.end(); };
  bool reached = false;
  while (state_.step < last() && !reached) {
    enter_phase();
    const std::vector<float> reference = reference_gradients();
    const double start = now_seconds();
    const double rate = learning_rate(o, state_.step);
    const nn::step_state r = train_step();
    if (!std::isfinite(r.mean_loss()) || !std::isfinite(r.gradient_norm)) {
      return diverged(state_.step + 1,
                      "loss " + std::to_string(r.mean_loss()) + ", gradient norm " + std::to_string(r.gradient_norm));
    }
    const double step_seconds = now_seconds() - start;
    seconds_ += step_seconds;
    log_step(r, rate, step_seconds);
    if (const auto observed = model_->statistics(); !observed.empty()) {
      statistics_->write(state_.step, state_.recipe().name, model_->model(), observed);
    }
    show_progress(r);
    observe_noise(reference);
    std::optional<double> loss;
    if (state_.step % o.eval_every == 0 || state_.step == state_.end()) loss = log_evaluation();
    if (loss) observe_validation(*loss);
    reached = loss && o.target_loss > 0 && *loss <= o.target_loss;
    if (state_.step == last() || reached || (o.checkpoint_every > 0 && state_.step % o.checkpoint_every == 0)) {
      if (const auto fault = find_divergence(loss)) return diverged(state_.step, *fault);
      save_checkpoint();
    }
  }
  end_progress();
  if (session_.replays) return exit_ok;
  return finish(reached ? "target" : state_.step == state_.end() ? "ok" : "stopped", exit_ok);
}

}  // namespace rotoscale::llama_program
