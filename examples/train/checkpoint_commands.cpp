// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Commands on a checkpoint: held-out loss, text.
#include <algorithm>
#include <iostream>
#include <type_traits>

#include "commands.hpp"
#include "data/own_tokenizer.hpp"
#include "device_failure.hpp"
#include "front.hpp"
#include "merge.hpp"
#include "rotoscale/io/same_file.hpp"
#include "rotoscale/train/checkpoint.hpp"
#include "rotoscale/train/recipe_fit.hpp"
#include "rotoscale/train/schedule.hpp"

namespace rotoscale::program {

namespace fs = std::filesystem;

namespace {

/// The model of a checkpoint, with adapters if there are any, under its last recipe or another one.
struct loaded_model {
  chosen_backend device;
  trainer_state state;
  nn::recipe recipe;
  fs::path path, adapters;  ///< adapters: empty if there are none
  train::weights_location weights;
  bool own_recipe = false;
  std::unique_ptr<train::session> session;

  explicit loaded_model(const arguments& a)
      : device(choose_backend(a.device)), path(naming_older(a.checkpoint, "--checkpoint", [&] {
          return reading([&] { return train::find_checkpoint(a.checkpoint); });
        })) {
    const bool own = reading_from(path, [&] { return is_own_checkpoint(path); });
    if (own) {
      reading_from(path, [&] {
        state = read_trainer_state(path);
        check_config(path, state.run);
      });
    }
    find_parts(a, own);
    state.run.model.take(reading_from(weights.directory, [&] { return read_shape(weights, a.passed_keys); }));
    own_recipe = own && a.schedule_override.empty();
    recipe = own_recipe ? state.recipe()
                        : train::load_recipe(a.schedule_override.empty() ? "bf16" : a.schedule_override, "--recipe");
    state.run.tokenizer = a.tokenizer.empty() ? find_tokenizer(state.run.tokenizer, path) : a.tokenizer;
  }

  /// Chooses the tokenizer: the command line's, the run's, or the model directory's.
  void settle_tokenizer(const arguments& a) {
    run_options& run = state.run;
    const bool from_run = a.tokenizer.empty() && !run.tokenizer.empty();
    if (run.tokenizer.empty()) {
      const fs::path& directory = weights.directory;
      run.tokenizer = tokenizer_of_model(directory.empty() ? "." : directory, run.vocabulary());
    }
    if (a.begin_of_text == "auto" && from_run) return;
    run.begin_of_text = begins_with_token(a.begin_of_text, run.tokenizer) ? "yes" : "no";
  }

  /// Loads the model, for passes of at most batch × sequence tokens and for keys and values of `cache` tokens.
  /// `progress` receives the weights read.
  void load(const progress_function& progress, index_t batch, index_t sequence, bool documents, index_t cache = 0) {
    const index_t chunk = state.run.train.head_chunk;
    if (const auto fault =
            train::find_block_fault(state.run.architecture(), recipe, {batch * sequence, chunk, false})) {
      throw io::error((path / "config.json").string(), "recipe " + recipe.name + ": " + *fault);
    }
    reading_from(weights.directory, [&] { train::check_weights(weights, state.run.architecture()); });
    if (!adapters.empty()) {
      reading_from(adapters, [&] { train::check_adapters(adapters, state.run.architecture(), *state.run.lora); });
    }
    train::session_options o;
    o.documents = documents;
    o.model.batch = batch;
    o.model.sequence = sequence;
    o.model.head_chunk = chunk;
    o.model.training = false;
    o.model.cache = cache;
    o.model.lora = state.run.lora;
    const nn::memory_plan plan = train::plan_session(*device.ops, state.run.architecture(), o, {recipe});
    device.say_note();
    with_plan(plan, "while the model was loaded", [&] {
      session = std::make_unique<train::session>(*device.ops, state.run.architecture(), o, std::vector{recipe});
      read_tensors(progress);
    });
  }

  /// Throws io::error if `output` is a file that the command reads.
  void require_no_input(const std::string& output, const std::string& given_recipe) const {
    std::vector<fs::path> files(state.run.data.begin(), state.run.data.end());
    files.insert(files.end(), {fs::path(given_recipe), fs::path(state.run.tokenizer), weights.config()});
    const auto add = [&](const io::safetensors_shards& tensors) {
      files.emplace_back(tensors.name());
      for (const io::safetensors_file& file : tensors.files()) files.emplace_back(file.name());
    };
    add(io::safetensors_shards::open(weights.directory, weights.stem));
    if (!adapters.empty()) {
      add(io::safetensors_shards::open(adapters, "adapter_model"));
      files.push_back(adapters / "adapter_config.json");
    }
    for (const char* name : {"trainer_state.json", "optimizer.safetensors"}) files.push_back(path / name);
    io::require_no_input({output}, files);
  }

  nn::step_inputs inputs() const {
    nn::step_inputs now;
    now.seed = state.run.train.seed;
    now.step = static_cast<std::uint64_t>(state.step);
    return now;
  }

 private:
  /// Calls f, which reads that directory. The error of a damaged checkpoint names the previous one. The base named by
  /// adapters has no replacement.
  template <class Function>
  std::invoke_result_t<Function> reading_from(const fs::path& directory, const Function& f) const {
    if (adapters == path && directory != path) return f();
    return naming_older(directory, directory == path ? "--checkpoint" : "--adapter", [&] { return reading(f); });
  }
  void read_tensors(const progress_function& progress) {
    // Weights are quantized when they are read, with the checkpoint's random words and scales. Frozen weights use the
    // random words of the run's beginning.
    nn::step_inputs now = inputs();
    if (adapters == path) now.step = 0;
    session->set_inputs(now);
    if (own_recipe) reading_from(path, [&] { train::read_scales(path, *session); });
    const std::uint64_t digest = train::read_weights(weights, *session, progress);
    if (adapters == path && state.base_digest != 0 && digest != state.base_digest) {
      throw io::error(weights.directory.string(), "not the base that the adapters were trained on");
    }
    if (!adapters.empty()) train::read_adapters(adapters, *session);
  }
  /// --checkpoint is a model (--adapter adds adapters), or adapters that name their base.
  void find_parts(const arguments& a, bool own) {
    if (train::is_adapter(path)) {
      if (!a.adapter.empty()) throw io::error("--adapter", a.checkpoint + " holds adapters, not their base");
      adapters = path;
      if (!own) state.run.lora = train::read_adapter_config(path);
      const std::string base = own ? state.resolved_init : train::adapter_base(path);
      std::error_code failed;
      if (base.empty() || !fs::exists(base, failed)) {
        throw io::error(
            (path / "adapter_config.json").string(),
            "base_model_name_or_path: '" + base + "' is not here; give it as --checkpoint, and this as --adapter");
      }
      weights = train::find_weights(base);
      return;
    }
    weights = {path};
    state.run.lora.reset();
    if (a.adapter.empty()) return;
    adapters = find_adapter(a.adapter);
    reading_from(adapters, [&] {
      if (is_own_checkpoint(adapters)) check_config(adapters, read_trainer_state(adapters).run);
      state.run.lora = train::read_adapter_config(adapters);
    });
  }
};

}  // namespace

int evaluate_checkpoint(const arguments& a) {
  loaded_model m(a);
  train_options& o = m.state.run.train;
  const int positions = m.state.run.positions();
  if (a.sequence > positions) {
    throw io::error("--sequence", std::to_string(a.sequence) + " is longer than the model's " +
                                      std::to_string(positions) + " positions");
  }
  o.sequence = a.sequence > 0 ? a.sequence : std::min(o.sequence, positions);
  if (!a.data.empty()) m.state.run.data = a.data;
  if (!a.text_format.empty()) m.state.run.text_format = a.text_format;
  if (!are_token_files(data_of(m.state.run))) m.settle_tokenizer(a);
  data_options data = data_of(m.state.run);
  data.whole = a.all;
  const corpus text(data, o.seed, m.state.run.vocabulary());
  progress_line line;
  m.load(line.counter(a.checkpoint, "reading weights"), o.batch, o.sequence, text.has_documents());
  m.require_no_input(a.logits, a.schedule_override);
  const auto windows =
      a.all ? text.validation_windows() : std::int64_t{a.windows > 0 ? a.windows : o.final_eval_windows};
  const evaluation e = with_plan(m.session->plan(), "in a pass", [&] {
    // Written first, so that an unwritable file fails early.
    if (!a.logits.empty()) {
      write_logits(*m.session, m.inputs(), text, windows, a.logits, line.counter(a.logits, "writing logits"));
    }
    return evaluate(*m.session, m.inputs(), text, windows, line.counter(a.checkpoint, "evaluating"));
  });
  line.end();
  nlohmann::ordered_json out = {{"checkpoint", a.checkpoint},
                                {"recipe", m.recipe.name},
                                {"step", m.state.step},
                                {"val_loss", e.loss},
                                {"bits_per_byte", io::to_json(e.bits_per_byte)},
                                {"windows", e.window_losses.size()},
                                {"sequence", o.sequence}};
  if (a.all) out["standard_error"] = io::to_json(e.standard_error);
  std::cout << io::json_text(out, a.checkpoint) << "\n";
  return exit_ok;
}

int sample_checkpoint(const arguments& a) {
  loaded_model m(a);
  m.settle_tokenizer(a);
  const tokenizer t = tokenizer::choose(m.state.run.tokenizer);
  sample_options options = a.sample;
  options.begins = m.state.run.begin_of_text == "yes" && t.begin_of_text() >= 0;
  if (t.vocabulary() > m.state.run.vocabulary()) {
    throw io::error(m.path.string(), "vocab_size: " + std::to_string(m.state.run.vocabulary()) +
                                         " is too small for the tokenizer's " + std::to_string(t.vocabulary()) +
                                         " tokens (--tokenizer)");
  }
  const auto wanted =
      static_cast<index_t>(a.sample.prompt.size()) + a.sample.tokens + 1 + options.begins;  // a byte is the least token
  const index_t longest = std::min<index_t>(m.state.run.positions(), (wanted + 31) / 32 * 32);
  progress_line line;
  m.load(line.counter(a.checkpoint, "reading weights"), 1, longest, false, a.sample.cache ? longest : 0);
  line.end();
  std::cout << a.sample.prompt << std::flush;
  with_plan(m.session->plan(), "in a pass", [&] {
    sample(*m.session, m.inputs(), options, t, [](std::string_view text) {
      // The reader is gone.
      if (!(std::cout << text << std::flush)) throw io::error("standard output", "cannot write");
    });
  });
  std::cout << "\n";
  return exit_ok;
}

}  // namespace rotoscale::program
