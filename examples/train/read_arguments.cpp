// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "read_arguments.hpp"

#include <algorithm>
#include <optional>

#include "configs.hpp"
#include "examples/command_line.hpp"
#include "flags.hpp"
#include "front.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/train/checkpoint.hpp"
#include "trainer/mlperf.hpp"

namespace rotoscale::program {
namespace {

/// Did the command line name an option of that group?
bool names_group(const CLI::App& app, const std::string& group) {
  for (const CLI::App* sub : app.get_subcommands()) {
    for (const CLI::Option* o : sub->get_options()) {
      if (o->get_group() == group && o->count() > 0) return true;
    }
  }
  return false;
}

/// Throws io::error if flags or files contradict the adapters of --adapter.
void check_adapter(const arguments& a, const std::filesystem::path& directory) {
  if (!a.run.lora) return;
  if (const auto difference = find_difference(*a.run.lora, directory)) throw a.names.error("lora." + *difference);
  if (a.flags.contains("--lora-init")) throw io::error("--lora-init", "excludes --adapter, which has the values of A");
}

/// Refuses bytes that are not UTF-8: logs, states and messages are, and would not hold the name of the file.
void refuse_undecodable(const CLI::Option& option) {
  if (option.get_name() == "--prompt") return;  // text, of any bytes
  for (const std::string& value : option.results()) {
    for (std::size_t at = 0; at < value.size();) {
      const std::size_t length = io::utf8_length(std::string_view(value).substr(at));
      if (length == 0) throw io::error(option.get_name() + " " + value, "is not UTF-8, as logs and JSON are");
      at += length;
    }
  }
}

/// Name of an option on the command line; the last one if it has several (--x, --no-x).
std::string typed_name(int argc, char** argv, const CLI::Option& option) {
  std::string typed = option.get_name();
  const std::vector<std::string>& names = option.get_lnames();
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i], name = word.substr(0, word.find('='));
    if (!name.starts_with("--")) continue;
    if (std::find(names.begin(), names.end(), name.substr(2)) != names.end()) typed = name;
  }
  return typed;
}

/// End of messages about a wrong config.json of given weights.
constexpr const char* instead_of_config = "; --model-config takes another in its place";

/// Reads the shape of --init's model. A wrong config.json means a damaged checkpoint, or wrong files of another
/// program.
models::config read_init_shape(const std::string& init, const std::vector<std::string>& passed) {
  const train::weights_location from = train::find_weights(init);
  return naming_older(from.directory, "--init", [&] {
    return reading([&] {
      if (is_own_checkpoint(from.directory)) return read_shape(from, passed);
      try {
        return read_shape(from, passed);
      } catch (const io::error& e) {
        throw io::error(e.what() + std::string(instead_of_config));
      }
    });
  });
}

/// Does the config.json of given weights (with this shape) contradict their tensors? Throws io::error if so and
/// `instead` is empty.
bool has_wrong_config(const std::string& init, const models::config& shape, const std::string& instead) {
  const train::weights_location from = train::find_weights(init);
  if (is_own_checkpoint(from.directory)) return false;      // is compared with its state
  io::safetensors_shards::open(from.directory, from.stem);  // a damaged file is another fault
  try {
    train::check_weights(from, models::architecture_of(shape));
  } catch (const io::error& e) {
    if (!instead.empty()) return true;
    throw io::error(std::string(e.what()) + ": the model is that of " + from.config().string() + instead_of_config);
  }
  return false;
}

/// Reads the configuration of the adapters of --adapter.
train::lora_config read_given_adapter(const std::string& adapter) {
  const std::filesystem::path found = find_adapter(adapter);
  return naming_older(found, "--adapter", [&] { return reading([&] { return read_adapter_options(found); }); });
}

/// Reads the command line over what `target` holds.
void parse_flags(int argc, char** argv, arguments& target) {
  CLI::App app{program_about};
  define(app, target);
  explain_checks(app);
  refuse_overflow(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {  // --help, --version
      app.exit(e);
      std::exit(exit_ok);
    }
    throw io::error(explain_parse_error(app, e));
  }
  refuse_empty(app, {"--prompt", "--title"});
  for (const CLI::App* sub : app.get_subcommands()) {
    for (const CLI::Option* o : sub->get_options()) {
      if (o->count() == 0) continue;
      refuse_undecodable(*o);
      const std::string typed = typed_name(argc, argv, *o);
      for (const std::string& name : o->get_lnames()) target.flags["--" + name] = typed;
    }
  }
  if (target.run.lora || names_group(app, lora_group)) target.run.lora = target.lora;
}

/// Sets the shape of `run`, which has the options of --config: to --model-config's, else to --init's. Returns false
/// without either. Model values of a --config file stay, and check_init compares them. Those of a built-in
/// configuration are defaults.
bool take_shape(const arguments& given, arguments& run) {
  const std::string& init = given.run.init.empty() ? run.run.init : given.run.init;
  const bool takes_init = given.model_config.empty() && !init.empty() && given.resume.empty();
  if (given.model_config.empty() && !takes_init) return false;
  const std::string shape = takes_init ? train::find_weights(init).config().string() : given.model_config;
  const std::vector<std::string>& passed = given.passed_keys;
  run.run.model.take(takes_init ? read_init_shape(init, passed)
                                : models::read_config(io::read_json(shape), shape, passed));
  const models::shape_options own = models::options_of(run.run.shape());
  run.names.from_file(shape, own.fields, own.key + ".");
  if (!takes_init || given.config.empty() || has_config(given.config)) return true;
  const nlohmann::ordered_json json = read_config(given.config);
  if (run.run.model.take(json, given.config)) run.names.from_file(given.config, json);
  return true;
}

/// Refuses flags of another kind of model.
void refuse_other_flags(const arguments& a) {
  const models::shape_options own = models::options_of(a.run.shape()), flagged = models::options_of(models::config());
  if (own.key == flagged.key) return;
  for (const auto& [key, value] : flagged.fields.items()) {
    const std::string flag = flag_of(flagged.key + "." + key);
    if (!a.flags.contains(flag)) continue;
    throw io::error(flag, "is of a " + flagged.kind + "; --config or --model-config has a " + own.kind + "'s shape");
  }
}

}  // namespace

void parse_arguments(int argc, char** argv, arguments& a) {
  parse_flags(argc, argv, a);
  if (a.flags.contains("--recipe") && a.flags.contains("--schedule")) {
    throw io::error("--recipe", "is another name of --schedule, and only one of them can be given");
  }
  arguments again;
  again.run.train.mlperf = a.run.train.mlperf;
  const bool resumes = !a.resume.empty();
  std::string adapter = resumes ? "" : a.run.adapter;
  if (!a.config.empty()) {  // may name the benchmark and adapters, and then override their values
    run_options from_file;
    io::from_json(read_config(a.config), from_file, a.config);
    if (again.run.train.mlperf.empty()) again.run.train.mlperf = from_file.train.mlperf;
    if (adapter.empty() && !resumes) adapter = from_file.adapter;
  }
  set_mlperf_defaults(again.run.train);
  if (!adapter.empty()) again.run.lora = read_given_adapter(adapter);
  if (!a.config.empty()) io::from_json(read_config(a.config), again.run, a.config);
  if (again.run.lora) again.lora = *again.run.lora;
  if (!a.config.empty()) again.names.from_file(a.config, read_config(a.config));
  const bool has_shape = take_shape(a, again);
  if (!a.config.empty() || has_shape || !adapter.empty() || !again.run.train.mlperf.empty()) {
    parse_flags(argc, argv, again);
    a = again;
  }
  const bool names_schedule = a.flags.contains("--recipe") || a.flags.contains("--schedule");
  if (!a.config.empty() && !names_schedule) a.schedule = read_effective_schedule(a.config);
  for (const auto& [flag, typed] : a.flags) a.names.from_flag(flag, typed);
  refuse_other_flags(a);
  settle_targets(a.run, a.names);
  if (!adapter.empty()) check_adapter(a, find_adapter(adapter));
}

void check_init(const arguments& a, given_files files) {
  const std::string& init = a.run.init;
  if (init.empty()) return;
  models::config of_init;
  try {
    of_init = read_init_shape(init, a.passed_keys);
  } catch (const io::error&) {
    if (a.model_config.empty()) throw;
    return;  // the weights need no config.json then
  }
  if (files == given_files::needed && has_wrong_config(init, of_init, a.model_config))
    return;  // the trainer compares --model-config with the tensors
  const models::shape_options own = models::options_of(a.run.shape()), given = models::options_of(of_init);
  const std::string whose = a.names.name("init") + " " + init;
  if (own.key != given.key) throw io::error(whose, "is a model of another kind than the run's");
  // Fields that no weight depends on, such as the longest sequence, a run may choose.
  for (const char* key : own.of_tensors) {
    const auto &wanted = own.fields.at(key), &found = given.fields.at(key);
    if (wanted == found) continue;
    const std::string field = own.key + "." + key;
    const bool is_config = !a.flags.contains(flag_of(field)) && a.model_config.empty();
    const std::string left_out =
        is_config ? "it out" : "out " + (a.flags.contains(flag_of(field)) ? a.names.name(field) : "--model-config");
    throw io::error(a.names.name(field), wanted.dump() + " contradicts " + whose + ", whose model has " + found.dump() +
                                             ": leave " + left_out);
  }
}

void check_resume_flags(int argc, char** argv) {
  static const std::set<std::string> allowed = words_of(
      "--resume --threads --ranks --gpus --shard --reduce --rendezvous --timeout --divide-frozen --stop-at "
      "--no-progress --data --out --adapter --memory-limit --device --tokenizer --init --device-number "
      "--no-graphs --wait-for-each --digest-steps --statistics-every --roof --tensorboard "
      "--async-checkpoints --statistics-noise --no-statistics-noise --steps --max-epochs");
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("--")) continue;
    const std::string flag = word.substr(0, word.find('='));
    if (!allowed.contains(flag)) throw io::error(flag, "cannot be changed when a run is resumed");
  }
}

}  // namespace rotoscale::program
