// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "train/train.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <numbers>

#include "clock.hpp"
#include "commit.hpp"
#include "rotoscale/llama/checkpoint.hpp"
#include "rotoscale/llama/schedule.hpp"
#include "rotoscale/version.hpp"

namespace rotoscale::llama_program {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

#if defined(__clang__)
constexpr const char* compiler = __VERSION__;  // "Debian Clang 14.0.6"
#else
constexpr const char* compiler = "g++ " __VERSION__;
#endif

std::string checkpoint_name(std::int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%09lld", static_cast<long long>(step));
  return text;
}

bool same_recipe_as(const nn::resolved_phase& a, const nn::resolved_phase& b) { return a.recipe == b.recipe; }

/// Do the shapes suit the formats of every phase?
void check_blocks(const trainer_state& s, const std::string& where) {
  for (const nn::resolved_phase& p : s.phases) {
    if (!nn::needs_blocks(p.recipe)) continue;
    const auto fault = llama::find_block_fault(s.run.model, index_t{s.run.train.batch} * s.run.train.sequence);
    if (fault) throw io::error(where, "recipe " + p.recipe.name + ": " + *fault);
  }
}

}  // namespace

trainer_state new_run(run_options options, const std::string& where) {
  if (const auto fault = find_fault(options)) throw io::error(where, *fault);
  trainer_state state;
  const nn::schedule schedule = llama::load_schedule(options.schedule);
  state.phases = llama::resolve(schedule, options.train.steps, options.schedule);
  if (options.name.empty()) options.name = schedule.name;
  state.run = std::move(options);
  check_blocks(state, where);
  return state;
}

trainer_state read_trainer_state(const fs::path& checkpoint) {
  const std::string path = (checkpoint / "trainer_state.json").string();
  trainer_state state;
  io::from_json(io::read_json(path), state, path);
  if (const auto fault = find_fault(state.run)) throw io::error(path, *fault);
  if (state.phases.empty() || state.step < 0 || state.step > state.run.train.steps) {
    throw io::error(path, "not the state of a run of mini-llama");
  }
  for (std::size_t i = 0; i < state.phases.size(); ++i) {
    const std::string where = path + ": phases[" + std::to_string(i) + "]";
    if (const auto fault = find_fault(state.phases[i].recipe)) throw io::error(where, *fault);
    const bool in_order =
        i == 0 ? state.phases[i].from_step == 0 : state.phases[i].from_step > state.phases[i - 1].from_step;
    if (!in_order) throw io::error(where, "from_step is out of order");
  }
  check_blocks(state, path);
  return state;
}

llama::session_options session_options_for(const run_options& run, std::size_t memory_limit) {
  const train_options& t = run.train;
  llama::session_options o;
  o.model.batch = t.batch;
  o.model.sequence = t.sequence;
  o.model.head_chunk = t.head_chunk;
  o.micro_batches = t.accumulate;
  o.optimizer = {static_cast<float>(t.beta1), static_cast<float>(t.beta2), static_cast<float>(t.epsilon),
                 static_cast<float>(t.weight_decay), t.clip};
  o.memory_limit = memory_limit;
  return o;
}

std::vector<nn::recipe> recipes_of(const std::vector<nn::resolved_phase>& phases) {
  std::vector<nn::recipe> recipes;
  for (const nn::resolved_phase& p : phases) recipes.push_back(p.recipe);
  return recipes;
}

std::string memory_table(const nn::memory_plan& plan) {
  std::string table;
  const auto line = [&](std::string_view name, std::size_t bytes) {
    char text[96];
    std::snprintf(text, sizeof text, "%-12s %16zu bytes %12.1f MiB\n", std::string(name).c_str(), bytes,
                  static_cast<double>(bytes) * 0x1p-20);
    table += text;
  };
  for (const auto& entry : enum_names<nn::memory_category>::table) line(entry.name, plan[entry.value]);
  line("total", plan.total());
  return table;
}

trainer::trainer(nn::backend& ops, trainer_state state, const session_options& session)
    : ops_(&ops),
      state_(std::move(state)),
      session_(session),
      text_(data_of(state_.run), state_.run.train.seed, state_.run.model.vocab_size) {
  text_.check_budget(state_.run.train);
  if (state_.step == 0) {
    state_.data_fingerprint = text_.fingerprint();
  } else if (state_.data_fingerprint != text_.fingerprint()) {
    throw io::error(state_.run.data.front(),
                    "not the text that the checkpoint was trained on, or another tokenizer or text format");
  }
  model_ = std::make_unique<llama::session>(
      ops, state_.run.model, session_options_for(state_.run, session_.memory_limit), recipes_of(state_.phases));
  if (state_.step == 0) model_->initialize(state_.run.train.seed);
  // The phase of the last step done: where the next one is in another phase, run() switches as an unbroken run does.
  phase_ = llama::phase_at(state_.phases, std::max<std::int64_t>(0, state_.step - 1));
  if (phase_ != 0) model_->use(state_.phases[phase_].recipe, false);
}

void trainer::restore(const fs::path& checkpoint) {
  llama::read_checkpoint(checkpoint, *model_, true);
  llama::read_scales(checkpoint, *model_);
}

namespace {

/// Bytes in use and the most over the run's recipes, by category.
ordered_json memory_record(const llama::session& s) {
  ordered_json record = ordered_json::object();
  for (const auto& entry : enum_names<nn::memory_category>::table) {
    record[std::string(entry.name)] = {{"bytes", s.in_use()[entry.value]}, {"peak", s.plan()[entry.value]}};
  }
  record["total"] = {{"bytes", s.in_use().total()}, {"peak", s.plan().total()}};
  return record;
}

/// Under which contract each operation runs, as the backend says.
ordered_json contract_record(const llama::session& s) {
  ordered_json record = ordered_json::object();
  constexpr std::pair<const char*, nn::gemm_kind> kinds[] = {
      {"fprop", nn::gemm_kind::fprop}, {"dgrad", nn::gemm_kind::dgrad}, {"wgrad", nn::gemm_kind::wgrad}};
  for (const auto& [name, kind] : kinds) record[name] = s.model().inner_linear().contract(kind).name;
  for (const auto& [name, kind] : kinds) record[std::string("head_") + name] = s.model().head().contract(kind).name;
  for (const nn::operation_contract& c : s.ops().contracts()) record[c.operation] = c.name;
  return record;
}

}  // namespace

void trainer::open_log() {
  const fs::path out(session_.out);
  std::error_code failed;
  fs::create_directories(out, failed);
  if (!fs::is_directory(out)) throw io::error(session_.out, "cannot create the directory");
  const fs::path path = out / "log.jsonl";
  if (session_.resume) {
    const bool own = fs::weakly_canonical(out) == fs::weakly_canonical(session_.resumed_run);
    for (const char* name : {"log.jsonl", "checkpoints", "config.json"}) {
      if (own || !fs::exists(out / name)) continue;
      throw io::error((out / name).string(), "exists and belongs to another run than the one resumed");
    }
    seconds_ = logged_seconds();
    log_ = std::make_unique<io::jsonl_writer>(path, io::jsonl_writer::mode::append);
    log_->write(
        {{"event", "resume"}, {"step", state_.step}, {"device", ops_->description()}, {"threads", session_.threads}});
    return;
  }
  for (const char* name : {"log.jsonl", "checkpoints", "config.json"}) {
    if (session_.overwrite || !fs::exists(out / name)) continue;
    throw io::error((out / name).string(), "exists; use --resume to continue a run or --overwrite to start anew");
  }
  fs::remove_all(out / "checkpoints", failed);
  log_ = std::make_unique<io::jsonl_writer>(path);
  ordered_json schedule = ordered_json::array();
  for (const auto& p : state_.phases) schedule.push_back(io::to_json(p));
  log_->write({{"event", "start"},
               {"name", state_.run.name},
               {"version", ROTOSCALE_VERSION},
               {"commit", ROTOSCALE_COMMIT},
               {"device", ops_->description()},
               {"compiler", compiler},
               {"threads", session_.threads},
               {"seed", state_.run.train.seed},
               {"config", io::to_json(state_.run)},
               {"schedule", schedule},
               {"contracts", contract_record(*model_)},
               {"memory", memory_record(*model_)},
               {"parameters", model_->model().parameters().count()},
               {"data_kind", text_.kind()},
               {"train_tokens", text_.train_tokens()},
               {"val_tokens", text_.validation_tokens()}});
  io::write_json(out / "config.json", io::to_json(state_.run));
}

/// Training time that the log gives for the step to continue from; the checkpoint holds no clock.
double trainer::logged_seconds() const {
  const fs::path path = fs::path(session_.out) / "log.jsonl";
  double seconds = 0;
  if (!fs::exists(path)) return seconds;
  for (const ordered_json& record : io::read_jsonl(path)) {
    if (record.value("event", "") == "step" && record.value("step", std::int64_t{0}) == state_.step) {
      seconds = record.value("seconds", 0.0);
    }
  }
  return seconds;
}

/// What the coming step, or an evaluation now, is told.
nn::step_inputs trainer::inputs() const {
  const train_options& o = state_.run.train;
  nn::step_inputs now;
  now.seed = o.seed;
  now.step = static_cast<std::uint64_t>(state_.step);
  now.learning_rate = static_cast<float>(learning_rate());
  const auto t = static_cast<double>(state_.step + 1);
  now.bias_correction1 = static_cast<float>(1.0 - std::pow(o.beta1, t));
  now.bias_correction2 = static_cast<float>(1.0 - std::pow(o.beta2, t));
  return now;
}

/// Switches to the recipe of the coming step, if it is another one: scales start from 1, as in AMD's healing step.
void trainer::enter_phase() {
  const std::size_t next = llama::phase_at(state_.phases, state_.step);
  if (next == phase_) return;
  const trainer_state& s = state_;
  const auto before = evaluate(*model_, inputs(), text_, s.run.train.eval_windows);
  log_->write({{"event", "switch"},
               {"step", s.step},
               {"from", s.phases[phase_].recipe.name},
               {"to", s.phases[next].recipe.name},
               {"val_loss_before", before.loss}});
  const bool keep_scales = same_recipe_as(s.phases[phase_], s.phases[next]);
  phase_ = next;
  model_->use(s.phases[phase_].recipe, keep_scales);
}

double trainer::learning_rate() const {
  const train_options& o = state_.run.train;
  const auto decay = static_cast<double>(o.decay_steps > 0 ? o.decay_steps : o.steps);
  const double warmup = std::round(o.warmup < 1.0 ? o.warmup * decay : o.warmup);
  const auto step = static_cast<double>(state_.step);
  if (step < warmup) return o.learning_rate * (step + 1) / warmup;
  const double rest = std::max(1.0, decay - warmup);
  const double cosine =
      0.5 * (1.0 + std::cos(std::numbers::pi * std::min(step - warmup, rest) / rest));  // 0.5 is exact
  return o.learning_rate * std::fma(1.0 - o.final_learning_rate, cosine, o.final_learning_rate);
}

nn::step_state trainer::train_step() {
  const train_options& o = state_.run.train;
  const int sequences = o.batch * o.accumulate;
  const double start = now_seconds();
  const token_batch data = text_.training_batch(state_.step * sequences, sequences);
  loader_seconds_ = now_seconds() - start;
  model_->train_step(inputs(), data.tokens, data.targets);
  return model_->finish_step();
}

/// Keeps the best validation loss, whether of the few windows of an evaluation or of the many of the final one.
void trainer::note_validation(double loss) {
  if (!std::isfinite(loss)) return;
  if (!state_.evaluated || loss < state_.best_val_loss) state_.best_val_loss = loss;
  state_.evaluated = true;
}

double trainer::log_evaluation() {
  const train_options& o = state_.run.train;
  const auto e = evaluate(*model_, inputs(), text_, o.eval_windows);
  note_validation(e.loss);
  log_->write({{"event", "eval"},
               {"step", state_.step},
               {"tokens", state_.tokens},
               {"val_loss", e.loss},
               {"bits_per_byte", e.bits_per_byte ? ordered_json(*e.bits_per_byte) : ordered_json(nullptr)},
               {"windows", e.window_losses.size()},
               {"loader_share", e.loader_share},
               {"recipe", state_.phases[phase_].recipe.name}});
  return e.loss;
}

void trainer::save_checkpoint() {
  const fs::path directory = fs::path(session_.out) / "checkpoints";
  std::error_code failed;
  fs::create_directories(directory, failed);
  const fs::path path = directory / checkpoint_name(state_.step);
  llama::write_checkpoint(path, *model_, io::to_json(state_));
  log_->write({{"event", "checkpoint"}, {"step", state_.step}, {"path", path.string()}});
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  const auto keep = static_cast<std::size_t>(state_.run.train.keep_checkpoints);
  for (std::size_t i = 0; i + keep < names.size(); ++i) {
    if (directory / names[i] != path) fs::remove_all(directory / names[i], failed);
  }
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
  if (!loss) loss = evaluate(*model_, inputs(), text_, o.batch).loss;
  if (std::isfinite(*loss)) return std::nullopt;
  return "validation loss " + std::to_string(*loss);
}

int trainer::finish(const char* status, int code) {
  const train_options& o = state_.run.train;
  ordered_json record = {
      {"event", "end"}, {"status", status}, {"step", state_.step}, {"tokens", state_.tokens}, {"seconds", seconds_}};
  if (code == exit_ok) {
    const auto e = evaluate(*model_, inputs(), text_, o.final_eval_windows);
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
               {"recipe", state_.phases[phase_].recipe.name}});
}

int trainer::run() {
  const train_options& o = state_.run.train;
  open_log();
  if (state_.step == 0) log_evaluation();
  const std::int64_t last = session_.stop_at > 0 ? std::min(session_.stop_at, o.steps) : o.steps;
  bool reached = false;
  while (state_.step < last && !reached) {
    enter_phase();
    const double start = now_seconds();
    const double rate = learning_rate();
    const nn::step_state r = train_step();
    if (!std::isfinite(r.mean_loss()) || !std::isfinite(r.gradient_norm)) {
      return diverged(state_.step + 1,
                      "loss " + std::to_string(r.mean_loss()) + ", gradient norm " + std::to_string(r.gradient_norm));
    }
    const double step_seconds = now_seconds() - start;
    seconds_ += step_seconds;
    log_step(r, rate, step_seconds);
    show_progress(r);
    std::optional<double> loss;
    if (state_.step % o.eval_every == 0 || state_.step == o.steps) loss = log_evaluation();
    reached = loss && o.target_loss > 0 && *loss <= o.target_loss;
    if (state_.step == last || reached || (o.checkpoint_every > 0 && state_.step % o.checkpoint_every == 0)) {
      if (const auto fault = find_divergence(loss)) return diverged(state_.step, *fault);
      save_checkpoint();
    }
  }
  end_progress();
  return finish(reached ? "target" : state_.step == o.steps ? "ok" : "stopped", exit_ok);
}

}  // namespace rotoscale::llama_program
