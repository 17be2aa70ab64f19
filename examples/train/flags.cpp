// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "flags.hpp"

#include <algorithm>
#include <optional>

#include "commit.hpp"
#include "configs.hpp"
#include "examples/command_line.hpp"
#include "front.hpp"
#include "rotoscale/version.hpp"

namespace rotoscale::program {
namespace {

template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;

/// CLI11 reads -1 as the largest number of an unsigned type.
CLI::Validator not_negative() {
  return {[](std::string& text) { return text.starts_with('-') ? "must not be negative" : ""; }, ""};
}

/// Makes a flag of each described field: learning_rate becomes --learning-rate. Nested structs give groups.
struct flag_visitor {
  CLI::App& app;
  std::string group;
  std::string prefix = "";
  std::set<std::string> without = {};  ///< keys that get no flag

  template <class T>
  void operator()(const char* key, T& member, const char* text) {
    if (without.contains(key)) return;
    std::string flag = "--" + prefix + key;
    const std::string help = field_names().text(text);
    std::replace(flag.begin(), flag.end(), '_', '-');
    if constexpr (std::is_same_v<T, bool>) {
      app.add_flag(flag + ",!--no-" + flag.substr(2), member, help)->group(group);
    } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string> ||
                         std::is_same_v<T, std::vector<std::string>>) {
      CLI::Option* option = app.add_option(flag, member, help)->capture_default_str()->group(group);
      if constexpr (std::is_unsigned_v<T>) option->check(not_negative());
    } else if constexpr (named_enum<T>) {
      app.add_option_function<std::string>(
             flag,
             [flag, &member](const std::string& name) {
               if (!from_string(std::string_view(name), member)) {
                 const std::vector<std::string> valid = names(member);
                 throw CLI::ValidationError(
                     flag, "unknown value '" + io::printable(name) + "'" + io::did_you_mean(name, valid));
               }
             },
             help)
          ->default_str(std::string(to_string(member)))
          ->group(group);
    } else if constexpr (!is_optional<T>) {
      flag_visitor inner{app, key, "", without};
      describe(inner, member);
    }  // optional structs come from configuration files, or have other flags (lora)
  }
};

/// More than any machine has; a slip of the keyboard must not start a million.
constexpr int max_threads = 4096;

void define_device(CLI::App& sub, device_choice& d) {
  sub.add_option("--device", d.name, "auto, cpu, cuda, hip or host (a device's code on the CPU, slow)")
      ->capture_default_str()
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(device_names), std::end(device_names))))
      ->group("run");
  sub.add_option("--device-number", d.number, "number of the device")->check(CLI::Range(0, 1023))->group("run");
  sub.add_option("--threads", d.threads, "threads of the CPU; 0: one per core. Results do not depend on it")
      ->check(CLI::Range(0, max_threads))
      ->group("run");
  sub.add_flag("!--no-graphs", d.graphs, "launch each operation by itself")->group("run");
  sub.add_flag("--wait-for-each", d.wait_for_each, "wait for each operation, so that a fault has its name")
      ->group("run");
}

void define_gpus(CLI::App& sub, arguments& a) {
  sub.add_option("--gpus", a.gpus, "devices that divide a step's microbatches, from --device-number on")
      ->check(CLI::Range(1, 256))
      ->group("run");
  sub.add_option("--shard", a.session.shard,
                 "what ranks divide: the optimizer's moments, also masters (FP32 weights), or also gradients")
      ->capture_default_str()
      ->check(CLI::IsMember({"moments", "masters", "gradients"}))
      ->group("run");
  sub.add_option(
         "--reduce", a.session.reduce,
         "what adds the gradients of ranks: the tree of microbatches, or the library (NCCL, RCCL; CPU threads in "
         "their order), whose bits depend on ranks and --shard")
      ->capture_default_str()
      ->check(CLI::IsMember({"tree", "library"}))
      ->group("run");
  sub.add_flag("--divide-frozen", a.session.divide_frozen,
               "each rank stores a part of the operands of frozen layers, and passes gather a layer ahead")
      ->group("run");
}

void define_ranks(CLI::App& sub, arguments& a) {
  sub.add_option("--ranks", a.session.ranks,
                 "threads that divide a step's microbatches and --threads; results do not depend on it")
      ->check(CLI::Range(1, 256))
      ->group("run");
  define_gpus(sub, a);
}

/// Where ranks of several processes meet.
void define_launch(CLI::App& train, arguments& a) {
  train
      .add_option("--rendezvous", a.rendezvous,
                  "this process is a rank that torchrun, srun or mpirun starts; they meet by this file, which all see, "
                  "or with `env` at MASTER_ADDR and MASTER_PORT")
      ->excludes(train.get_option("--ranks"))
      ->excludes(train.get_option("--gpus"))
      ->group("run");
  train.add_option("--timeout", a.timeout, "seconds that ranks wait for each other")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20))
      ->group("run");
}

void define_passed_keys(CLI::App& sub, std::vector<std::string>& keys) {
  sub.add_option("--ignore-config-key", keys,
                 "a key of the model's config.json that is unknown here and changes no arithmetic; once for each");
}

void define_config(CLI::App& sub, arguments& a) {
  define_passed_keys(sub, a.passed_keys);
  std::string names;
  for (const std::string& name : config_names()) names += name + ", ";
  sub.add_option("--config", a.config, names + "or a JSON file with options of a run's config.json; flags override it")
      ->group("run");
  sub.add_option("--model-config", a.model_config, "model shape from a Hugging Face config.json")->group("run");
  sub.add_option("--recipe", a.schedule_override, "same as --schedule")->group("run");
}

/// Adds flags for the described options of a run except `without`. Any --lora-... flag asks for adapters.
void define_run(CLI::App& app, arguments& a, const std::set<std::string>& without = {}) {
  describe(flag_visitor{app, "run", "", without}, a.run);
  describe(flag_visitor{app, lora_group, "lora-"}, a.lora);
  app.get_option("--lora-targets")->delimiter(',');
}

void define_merge(CLI::App& app, arguments& a) {
  CLI::App* merge = app.add_subcommand("merge", "adds adapters to their base weights");
  merge->add_option("--base", a.merge.base, "weights: a directory or file of Hugging Face's, or a checkpoint")
      ->required();
  define_passed_keys(*merge, a.merge.passed_keys);
  merge->add_option("--adapter", a.merge.adapter, "PEFT's files, or a checkpoint or run with adapters")->required();
  merge->add_option("--out", a.merge.out, "directory to write, as Hugging Face has models")->required();
  merge->add_option("--dtype", a.merge.dtype, "dtype of the weights: F32, BF16 or F16")
      ->capture_default_str()
      ->check(CLI::IsMember({"F32", "BF16", "F16"}));
}

void define_convert(CLI::App& app, arguments& a) {
  CLI::App* convert =
      app.add_subcommand("convert", "a GPT-2 from llm.c's model file to Hugging Face's files, and back");
  convert->add_option("--from", a.convert.from, "llm.c's model file (.bin), or a directory or checkpoint")->required();
  convert->add_option("--out", a.convert.out, "directory or model file to write")->required();
  convert->add_option("--dtype", a.convert.dtype, "of a model file to write: F32 or BF16")
      ->capture_default_str()
      ->check(CLI::IsMember({"F32", "BF16"}));
}

void define_eval_and_sample(CLI::App& app, arguments& a) {
  CLI::App* eval = app.add_subcommand("eval", "held-out loss of a checkpoint");
  CLI::App* sample = app.add_subcommand("sample", "text from a checkpoint");
  for (CLI::App* sub : {eval, sample}) {
    define_passed_keys(*sub, a.passed_keys);
    sub->add_option("--checkpoint", a.checkpoint, "checkpoint or run directory")->required();
    sub->add_option("--adapter", a.adapter, "adapters for its weights: PEFT's files, or a checkpoint or run");
    sub->add_option("--recipe", a.schedule_override, "recipe (default: the last one of its training)");
    define_device(*sub, a.device);
  }
  for (CLI::App* sub : {eval, sample}) {
    sub->add_option("--tokenizer", a.tokenizer,
                    "SentencePiece model, or bytes (default: the run's or the directory's)");
    sub->add_option("--begin-of-text", a.begin_of_text,
                    "a begin-of-text token before the text: yes, no, or auto: as the run or tokenizer_config.json says")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "yes", "no"}));
  }
  eval->add_option("--data", a.data, "as train's (default: the run's)");
  eval->add_option("--text-format", a.text_format, "as train's (default: the run's)");
  eval->add_option("--windows", a.windows, "held-out sequences; 0: as the run's last evaluation")
      ->check(CLI::Range(0, 1 << 30));
  eval->add_flag("--all", a.all, "every token of the data, however few, and the standard error of the loss")
      ->excludes(eval->get_option("--windows"));
  eval->add_option("--sequence", a.sequence,
                   "tokens a sequence (default: the run's; another model: 128, if it has as many positions)")
      ->check(CLI::Range(1, 1 << 24));
  eval->add_option("--logits", a.logits,
                   "write the logits of every token, with tokens and targets, to this safetensors file");
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
  sample->add_flag("!--no-cache", a.sample.cache,
                   "recompute the whole text for each token, without cached keys and values");
}

void define_replay(CLI::App& app, replay_options& o) {
  CLI::App* replay = app.add_subcommand("replay", "recompute steps of a run, and compare every byte");
  replay->add_option("run", o.run, "run directory")->required();
  replay->add_option("--steps", o.steps, "A:B: from the checkpoint of step A (0: from the seed) to that of step B")
      ->required();
  replay->add_option("--keep", o.keep, "directory to keep the replay's own run in");
  replay->add_option("--data", o.moved.data, "new path of the run's text");
  replay->add_option("--tokenizer", o.moved.tokenizer, "new path of its SentencePiece model");
  replay->add_option("--init", o.moved.init, "new path of its initial weights");
  replay->add_option("--adapter", o.moved.adapter, "new path of its initial adapters");
  define_device(*replay, o.device);
}

void define_seed_base(CLI::App& train, arguments& a) {
  train
      .add_flag("--seed-base", a.seed_base,
                "train adapters on weights from the seed, made on the device, without --init: for measurements")
      ->group("run");
}

void define_warm_up(CLI::App& train, arguments& a) {
  train
      .add_option("--synthetic-warmup", a.session.synthetic_warmup,
                  "steps on random tokens before a new run, whose results do not depend on it")
      ->check(CLI::Range(0, 1 << 20))
      ->group("run");
  train.add_option("--synthetic-recipe", a.session.synthetic_recipe, "recipe of the synthetic warm-up")
      ->default_str("fp8_amd; with adapters the run's first")
      ->group("run");
}

/// Options of train for further outputs.
void define_outputs(CLI::App& train, arguments& a) {
  train.add_flag("--tensorboard", a.session.tensorboard, "event files for TensorBoard as well")->group("run");
  train.add_option("--roof", a.session.roof, "FLOP/s of the full device: a rate, or measure")->group("run");
  train.add_flag("--no-progress", a.no_progress, "no progress line on a terminal")->group("run");
}

void define_statistics_noise(CLI::App& sub, arguments& a) {
  sub.add_flag("--statistics-noise,!--no-statistics-noise", a.session.statistics_noise,
               "observed steps also compute gradients in BF16, and record their difference from the quantized ones; "
               "frozen weights are kept in BF16 for that")
      ->group("run");
}

void define_memory_limit(CLI::App& sub, arguments& a) {
  sub.add_option("--memory-limit", a.session.memory_limit, "most bytes of all memory, e.g. 4GiB; 0: no limit")
      ->transform(CLI::Validator(  // one, as CLI11's versions differ in which of two comes first
          [](std::string& size) {
            if (size.starts_with('-')) return std::string("must not be negative");
            const std::string given = size;
            try {
              if (CLI::AsSizeValue(false)(size).empty()) return std::string();
            } catch (const CLI::ParseError&) {  // as below
            }
            return "'" + io::printable(given) + "' is no number of bytes, such as 4GiB";
          },
          ""))
      ->group("run");
}

/// Options that affect the memory of a run.
void define_memory(CLI::App& sub, arguments& a) {
  define_memory_limit(sub, a);
  sub.add_option(
         "--async-checkpoints", a.session.async_checkpoints,
         "on: steps continue while a checkpoint is written from a copy in host memory, 12 bytes for each number that "
         "trains; auto: on if that fits --memory-limit and half of the machine's memory; off")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str()
      ->group("run");
}

/// GPUs whose step plan predicts.
void define_prediction(CLI::App& plan, cluster& c) {
  CLI::Option* const profile =
      plan.add_option("--profile", c.profile, "predict a step of many GPUs from this output of profile on one");
  plan.add_option("--nodes", c.nodes, "nodes of --gpus each")->check(CLI::Range(1, 1024));
  plan.add_option("--link", c.link, "GB/s of a GPU to GPUs of its node, each way");
  plan.add_option("--node-link", c.node_link, "GB/s of a GPU to other nodes, each way");
  profile->group("run");
  for (const char* name : {"--nodes", "--link", "--node-link"}) plan.get_option(name)->needs(profile)->group("run");
}

void define_plan(CLI::App& app, arguments& a) {
  CLI::App* plan = app.add_subcommand("plan", "the memory that train would take with these options");
  define_config(*plan, a);
  plan->add_option("--statistics-every", a.statistics_every, "as train's; 0 needs no memory")->group("run");
  define_statistics_noise(*plan, a);
  define_memory(*plan, a);
  define_warm_up(*plan, a);
  define_run(*plan, a);
  define_device(*plan, a.device);
  define_ranks(*plan, a);
  define_prediction(*plan, a.planned);
}

void define_study(CLI::App& app, study_options& o) {
  CLI::App* study = app.add_subcommand("study", "train arms over seeds, and compare them with intervals");
  study->add_option("file", o.file, "the study: arms, seeds, options (JSON)");
  study->add_option("--out", o.out, "directory of a new study");
  study->add_option("--resume", o.resume, "directory of a study to continue");
  study->add_option("--data", o.data, "as train's, in place of the file's");
  study->add_option("--seeds", o.seeds, "seeds of each arm, in place of the file's; 0: as the file says")
      ->check(CLI::Range(0, 10000));
  study->add_option("--jobs", o.jobs, "runs at once: on the CPU in all, else on each device; 0: one a core or device")
      ->check(CLI::Range(0, 1024));
  study->add_option("--device", o.device.name, "as train's")
      ->capture_default_str()
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(device_names), std::end(device_names))));
  study->add_option("--device-numbers", o.device_numbers, "devices that share the runs: 0,1")
      ->delimiter(',')
      ->check(CLI::Range(0, 1023));
  study->add_option("--stop-after", o.stop_after, "begin no run after so many have ended; 0: do all")
      ->check(CLI::Range(0, 1 << 30));
  study->add_flag("--budget", o.budget, "print runs, tokens and time, and end");
  study->add_option("--accept", o.accept, "results.json of an earlier study: do the means agree?");
}

void define_report(CLI::App& app, report_options& o) {
  CLI::App* report = app.add_subcommand("report", "compare runs: table, CSV, plots, one HTML page");
  report->add_option("logs", o.logs, "log.jsonl files or run directories, or a study's directory")->required();
  report->add_option("--out", o.out, "directory to write to")->required();
  report->add_option("--baseline", o.baseline, "run that gaps are measured against (default: bf16)");
  report->add_option("--title", o.title, "title of the page");
}

/// Options of a run that a profile, of steps on random tokens, has no use for.
constexpr const char* not_profiled =
    "name data text_format tokenizer begin_of_text chat_template long_records validation max_epochs "
    "eval_every eval_windows final_eval_windows checkpoint_every target_loss eval_every_samples "
    "on_divergence max_loss_jump max_rollbacks keep_checkpoints";

void define_profile(CLI::App& app, arguments& a) {
  CLI::App* profile = app.add_subcommand("profile", "time of a step by class of kernel, on random tokens");
  define_config(*profile, a);
  define_device(*profile, a.device);
  profile->get_option("--wait-for-each")->group("");  // which profile refuses
  define_memory_limit(*profile, a);
  define_gpus(*profile, a);
  CLI::Option* const gpus = profile->get_option("--gpus");
  for (const char* name : {"--shard", "--reduce", "--divide-frozen"}) profile->get_option(name)->needs(gpus);
  profile
      ->add_flag("--operations", a.profile_operations, "a second table: each operation by its name, the longest first")
      ->excludes(gpus)
      ->group("run");
  define_run(*profile, a, words_of(not_profiled));
}

}  // namespace

void define(CLI::App& app, arguments& a) {
  app.set_version_flag("--version",
                       std::string(program_name) + " " + ROTOSCALE_VERSION + " (" + ROTOSCALE_COMMIT + ")");
  app.require_subcommand(1);

  CLI::App* train = app.add_subcommand("train", "train a model, or continue with --resume");
  train->add_option("--out", a.session.out, "directory for log, configuration and checkpoints")->group("run");
  define_config(*train, a);
  train->add_option("--resume", a.resume, "run directory or checkpoint to continue, with its options")->group("run");
  train->add_flag("--overwrite", a.session.overwrite, "replace an existing run in --out")->group("run");
  train->add_flag("--auto-resume", a.session.auto_resume, "resume the run in --out if there is one, else begin it")
      ->group("run");
  train->add_option("--stop-at", a.session.stop_at, "end after this many steps and their checkpoint")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->group("run");
  define_device(*train, a.device);
  define_ranks(*train, a);
  define_launch(*train, a);
  train
      ->add_option("--digest-steps", a.digest_steps,
                   "A:B: digests of each operation's results in these steps, for replay")
      ->group("run");
  define_outputs(*train, a);
  define_memory(*train, a);
  define_seed_base(*train, a);
  define_warm_up(*train, a);
  train
      ->add_option(
          "--statistics-every", a.statistics_every,
          "steps between records of quantization errors in statistics.jsonl; 0: none. Results do not depend on it")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->default_str("100, or as the run that is resumed")
      ->group("run");
  define_statistics_noise(*train, a);
  define_run(*train, a);

  define_plan(app, a);
  define_profile(app, a);
  define_eval_and_sample(app, a);
  define_merge(app, a);
  define_convert(app, a);
  define_replay(app, a.replay);
  define_tokenizer(app, a.tokens);
  app.add_subcommand("recipes", "names all recipes and schedules");

  define_study(app, a.study);
  define_report(app, a.report);
}

}  // namespace rotoscale::program
