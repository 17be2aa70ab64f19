// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// mini-llama: trains, evaluates and samples small Llamas under low-precision recipes, and compares runs.
// Exit codes: 0 done, 2 bad input (one line on stderr), 3 the run diverged.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <numbers>
#include <optional>

#include "commit.hpp"
#include "data/commands.hpp"
#include "report/report.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/llama/checkpoint.hpp"
#include "rotoscale/llama/schedule.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"
#include "rotoscale/version.hpp"
#include "sample.hpp"
#include "train/train.hpp"

namespace rotoscale::llama_program {
namespace {

namespace fs = std::filesystem;

template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;

/// CLI11 reads -1 as the largest number where the type has no sign.
CLI::Validator not_negative() {
  return {[](std::string& text) { return text.starts_with('-') ? "must not be negative" : ""; }, ""};
}

/// Makes a flag of each described field: learning_rate becomes --learning-rate. Nested structs give groups.
struct flag_visitor {
  CLI::App& app;
  std::string group;

  template <class T>
  void operator()(const char* key, T& member, const char* help) {
    std::string flag = "--" + std::string(key);
    std::replace(flag.begin(), flag.end(), '_', '-');
    if constexpr (std::is_same_v<T, bool>) {
      app.add_flag(flag + ",!--no-" + flag.substr(2), member, help)->group(group);
    } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string> ||
                         std::is_same_v<T, std::vector<std::string>>) {
      CLI::Option* option = app.add_option(flag, member, help)->capture_default_str()->group(group);
      if constexpr (std::is_unsigned_v<T>) option->check(not_negative());
    } else if constexpr (!is_optional<T>) {
      flag_visitor inner{app, key};
      describe(inner, member);
    }  // optional structs (rope_scaling) are for configuration files
  }
};

struct arguments {
  run_options run;
  session_options session;
  std::string config, model_config, checkpoint, resume, schedule_override;
  int threads = 0;
  bool no_progress = false;
  std::vector<std::string> data;
  int windows = 0;
  sample_options sample;
  report_options report;
  std::string tokenizer, text_format;
  tokenizer_arguments tokens;
};

/// More than any machine has; a slip of the keyboard must not start a million.
constexpr int most_threads = 4096;

void define_eval_and_sample(CLI::App& app, arguments& a) {
  CLI::App* eval = app.add_subcommand("eval", "held-out loss of a checkpoint");
  CLI::App* sample = app.add_subcommand("sample", "text from a checkpoint");
  for (CLI::App* sub : {eval, sample}) {
    sub->add_option("--checkpoint", a.checkpoint, "checkpoint or run directory")->required();
    sub->add_option("--recipe", a.schedule_override, "another recipe than the one it was trained under last");
    sub->add_option("--threads", a.threads, "threads; 0: one per core")->check(CLI::Range(0, most_threads));
  }
  for (CLI::App* sub : {eval, sample}) {
    sub->add_option("--tokenizer", a.tokenizer, "SentencePiece model (default: the run's)");
  }
  eval->add_option("--data", a.data, "as train's (default: the run's)");
  eval->add_option("--text-format", a.text_format, "as train's (default: the run's)");
  eval->add_option("--windows", a.windows, "held-out sequences; 0: as the run's last evaluation")
      ->check(CLI::Range(0, 1 << 30));
  sample->add_option("--prompt", a.sample.prompt, "text to continue")->capture_default_str();
  sample->add_option("--tokens", a.sample.tokens, "tokens to write")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 24));
  sample->add_option("--temperature", a.sample.temperature, "0: always the likeliest")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e3) &
              CLI::Validator(
                  [](std::string& text) { return text.find_first_of("nN") == text.npos ? "" : "not a number"; }, ""));
  sample->add_option("--top-k", a.sample.top_k, "of the likeliest tokens; 0: all")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 24));
  sample->add_option("--seed", a.sample.seed, "of the draws")->capture_default_str()->check(not_negative());
}

/// All subcommands and flags, bound to `a`.
void define(CLI::App& app, arguments& a) {
  app.set_version_flag("--version", std::string("mini-llama ") + ROTOSCALE_VERSION + " (" + ROTOSCALE_COMMIT + ")");
  app.require_subcommand(1);

  CLI::App* train = app.add_subcommand("train", "train a model, or continue with --resume");
  train->add_option("--out", a.session.out, "directory for log, configuration and checkpoints")->group("run");
  train->add_option("--config", a.config, "JSON file with any of the options below; flags override it")->group("run");
  train->add_option("--model-config", a.model_config, "model shape from a Hugging Face config.json")->group("run");
  train->add_option("--recipe", a.schedule_override, "same as --schedule")->group("run");
  train->add_option("--resume", a.resume, "run directory or checkpoint to continue, with its options")->group("run");
  train->add_flag("--overwrite", a.session.overwrite, "replace an existing run in --out")->group("run");
  train->add_option("--stop-at", a.session.stop_at, "end behind a checkpoint after this many steps")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->group("run");
  train->add_option("--threads", a.threads, "threads; 0: one per core. Results do not depend on it")
      ->check(CLI::Range(0, most_threads))
      ->group("run");
  train->add_flag("--no-progress", a.no_progress, "no progress line on a terminal")->group("run");
  train->add_option("--memory-limit", a.session.memory_limit, "most bytes of all memory, e.g. 4GiB; 0: no limit")
      ->transform(CLI::AsSizeValue(false))
      ->group("run");
  describe(flag_visitor{*train, "run"}, a.run);

  CLI::App* plan = app.add_subcommand("plan", "the memory that train would take with these options");
  plan->add_option("--config", a.config, "JSON file with any of the options below")->group("run");
  plan->add_option("--model-config", a.model_config, "model shape from a Hugging Face config.json")->group("run");
  plan->add_option("--recipe", a.schedule_override, "same as --schedule")->group("run");
  describe(flag_visitor{*plan, "run"}, a.run);

  define_eval_and_sample(app, a);
  define_tokenizer(app, a.tokens);

  CLI::App* report = app.add_subcommand("report", "compare runs: table, CSV, plots, one HTML page");
  report->add_option("logs", a.report.logs, "log.jsonl files or run directories")->required();
  report->add_option("--out", a.report.out, "directory to write to")->required();
  report->add_option("--baseline", a.report.baseline, "run that gaps are measured against (default: bf16)");
  report->add_option("--title", a.report.title, "title of the page");
}

/// A run's options: defaults, then --config and --model-config, then flags.
void parse(int argc, char** argv, arguments& a) {
  const auto parse_into = [&](arguments& target) {
    CLI::App app{"Trains and compares small Llamas under low-precision recipes."};
    define(app, target);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
      if (e.get_exit_code() == 0) {  // --help, --version
        app.exit(e);
        std::exit(exit_ok);
      }
      std::string what = e.what();
      const bool no_command = app.get_subcommands().empty() && argc > 1;
      if (no_command || dynamic_cast<const CLI::ExtrasError*>(&e) != nullptr) {
        const CLI::App* sub = app.get_subcommands().empty() ? &app : app.get_subcommands().front();
        std::vector<std::string> valid;
        for (const CLI::Option* o : sub->get_options()) {
          for (const std::string& name : o->get_lnames()) valid.push_back("--" + name);
        }
        if (sub == &app) {
          for (const CLI::App* s : app.get_subcommands([](CLI::App*) { return true; })) valid.push_back(s->get_name());
        }
        for (const std::string& extra : app.remaining(true)) {
          what = "unknown argument '" + extra + "'; did you mean '" + io::nearest_name(extra, valid) + "'?";
          break;
        }
      }
      throw io::error("arguments", what);
    }
  };
  parse_into(a);
  if (a.config.empty() && a.model_config.empty()) return;
  arguments again;
  if (!a.config.empty()) io::from_json(io::read_json(a.config), again.run, a.config);
  if (!a.model_config.empty()) {
    again.run.model = llama::read_model_config(io::read_json(a.model_config), a.model_config);
  }
  parse_into(again);
  a = again;
}

/// With --resume the run's own options hold: only what is not part of its identity may be given.
void check_resume_flags(int argc, char** argv) {
  const std::vector<std::string> allowed = {"--resume", "--threads", "--stop-at",      "--no-progress",
                                            "--data",   "--out",     "--memory-limit", "--tokenizer"};
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("--")) continue;
    const std::string flag = word.substr(0, word.find('='));
    if (std::find(allowed.begin(), allowed.end(), flag) == allowed.end()) {
      throw io::error(flag, "cannot be changed when a run is resumed");
    }
  }
}

int train(int argc, char** argv, arguments& a) {
  const auto cpu = nn::make_cpu_backend(a.threads);
  nn::backend& ops = *cpu;
  a.session.threads = ops.threads();
  a.session.progress = !a.no_progress && isatty(STDERR_FILENO) != 0;
  if (a.resume.empty()) {
    if (!a.schedule_override.empty()) a.run.schedule = a.schedule_override;
    if (a.session.out.empty()) throw io::error("--out", "is required");
    const std::string where = a.config.empty() ? "arguments" : a.config;
    return trainer(ops, new_run(a.run, where), a.session).run();
  }
  check_resume_flags(argc, argv);
  const fs::path checkpoint = llama::find_checkpoint(a.resume);
  trainer_state state = read_trainer_state(checkpoint);
  if (!a.run.data.empty()) state.run.data = a.run.data;
  if (!a.run.tokenizer.empty()) state.run.tokenizer = a.run.tokenizer;
  a.session.resume = true;
  // A checkpoint lies in RUN/checkpoints/.
  a.session.resumed_run = fs::weakly_canonical(checkpoint).parent_path().parent_path().string();
  if (a.session.out.empty()) a.session.out = a.session.resumed_run;
  trainer t(ops, std::move(state), a.session);
  t.restore(checkpoint);
  return t.run();
}

/// What train would take, in the same words as its log; nothing is allocated.
int plan(const arguments& a) {
  run_options options = a.run;
  if (!a.schedule_override.empty()) options.schedule = a.schedule_override;
  const trainer_state state = new_run(options, a.config.empty() ? "arguments" : a.config);
  const auto ops = nn::make_cpu_backend(1);
  std::cout << memory_table(
      llama::plan_session(*ops, state.run.model, session_options_for(state.run, 0), recipes_of(state.phases)));
  return exit_ok;
}

/// A checkpoint's model under the recipe it was trained with last, or another one.
struct loaded_model {
  std::unique_ptr<nn::backend> ops;
  trainer_state state;
  nn::recipe recipe;
  fs::path path;
  bool own_recipe = false;
  std::unique_ptr<llama::session> session;

  explicit loaded_model(const arguments& a)
      : ops(nn::make_cpu_backend(a.threads)), path(llama::find_checkpoint(a.checkpoint)) {
    std::error_code failed;
    const bool own = fs::exists(path / "trainer_state.json", failed);
    if (own) state = read_trainer_state(path);
    const std::string config = (path / "config.json").string();
    state.run.model = llama::read_model_config(io::read_json(config), config);
    const std::size_t phase = own ? llama::phase_at(state.phases, std::max<std::int64_t>(0, state.step - 1)) : 0;
    own_recipe = own && a.schedule_override.empty();
    recipe = own_recipe ? state.phases[phase].recipe
                        : llama::load_recipe(a.schedule_override.empty() ? "bf16" : a.schedule_override);
    if (!a.tokenizer.empty()) state.run.tokenizer = a.tokenizer;
    if (nn::needs_blocks(recipe)) {
      const auto fault = llama::find_block_fault(state.run.model, 32);  // no gradients: any number of tokens will do
      if (fault) throw io::error(config, "recipe " + recipe.name + ": " + *fault);
    }
  }

  /// Room for passes of at most batch × sequence tokens.
  void load(index_t batch, index_t sequence) {
    llama::session_options o;
    o.model.batch = batch;
    o.model.sequence = sequence;
    o.model.head_chunk = state.run.train.head_chunk;
    o.model.training = false;
    session = std::make_unique<llama::session>(*ops, state.run.model, o, std::vector{recipe});
    if (own_recipe) llama::read_scales(path, *session);  // before weights are quantized with them
    llama::read_checkpoint(path, *session, false);
  }

  nn::step_inputs inputs() const {
    nn::step_inputs now;
    now.seed = state.run.train.seed;
    now.step = static_cast<std::uint64_t>(state.step);
    return now;
  }
};

int eval(const arguments& a) {
  loaded_model m(a);
  const train_options& o = m.state.run.train;
  if (!a.data.empty()) m.state.run.data = a.data;
  if (!a.text_format.empty()) m.state.run.text_format = a.text_format;
  const corpus text(data_of(m.state.run), o.seed, m.state.run.model.vocab_size);
  m.load(o.batch, o.sequence);
  const auto e = evaluate(*m.session, m.inputs(), text, a.windows > 0 ? a.windows : o.final_eval_windows);
  const nlohmann::ordered_json out = {
      {"checkpoint", a.checkpoint},
      {"recipe", m.recipe.name},
      {"step", m.state.step},
      {"val_loss", e.loss},
      {"bits_per_byte", e.bits_per_byte ? nlohmann::ordered_json(*e.bits_per_byte) : nlohmann::ordered_json(nullptr)},
      {"windows", e.window_losses.size()},
      {"sequence", o.sequence}};
  std::cout << out.dump() << "\n";
  return exit_ok;
}

int sample_text(const arguments& a) {
  loaded_model m(a);
  const tokenizer t = tokenizer::choose(m.state.run.tokenizer);
  if (t.vocabulary() > m.state.run.model.vocab_size) {
    throw io::error(m.path.string(), "vocab_size: " + std::to_string(m.state.run.model.vocab_size) +
                                         " is too small for the tokenizer's " + std::to_string(t.vocabulary()) +
                                         " tokens (--tokenizer)");
  }
  const auto wanted = static_cast<index_t>(a.sample.prompt.size()) + a.sample.tokens + 1;  // a byte is the least token
  m.load(1, std::min<index_t>(m.state.run.model.max_position_embeddings, (wanted + 31) / 32 * 32));
  std::cout << a.sample.prompt << std::flush;
  sample(*m.session, m.inputs(), a.sample, t, [](std::string_view text) { std::cout << text << std::flush; });
  std::cout << "\n";
  return exit_ok;
}

int run(int argc, char** argv) {
  arguments a;
  parse(argc, argv, a);
  const std::string command = argv[1];
  if (command == "train") return train(argc, argv, a);
  if (command == "plan") return plan(a);
  if (command == "eval") return eval(a);
  if (command == "sample") return sample_text(a);
  if (command == "tokenizer") return run_tokenizer(a.tokens, std::cout);
  return write_report(a.report, std::cout);
}

}  // namespace
}  // namespace rotoscale::llama_program

int main(int argc, char** argv) {
  using namespace rotoscale;
  try {
    const int code = llama_program::run(argc, argv);
    if (!std::cout.flush()) throw io::error("standard output", "cannot write");
    return code;
  } catch (const io::error& e) {
    std::cerr << "mini-llama: " << e.what() << "\n";
  } catch (const llama::over_budget& e) {
    std::cerr << llama_program::memory_table(e.plan()) << "mini-llama: --memory-limit: " << e.what() << "\n";
  } catch (const std::bad_alloc&) {
    std::cerr << "mini-llama: out of memory\n";
  } catch (const std::exception& e) {
    std::cerr << "mini-llama: " << e.what() << "\n";
  }
  return llama_program::exit_bad_input;
}
