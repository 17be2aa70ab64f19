// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "begin_run.hpp"

#include <vector>

#include "data/own_tokenizer.hpp"
#include "device.hpp"
#include "read_arguments.hpp"
#include "rotoscale/train/checkpoint.hpp"
#include "rotoscale/train/schedule.hpp"

namespace rotoscale::program {
namespace {

namespace fs = std::filesystem;

/// For data other than token files: takes the initial model's tokenizer unless an option names one, and sets
/// begin_of_text to "yes" if a begin-of-text token precedes each text.
void settle_tokenizer(run_options& run) {
  if ((run.init.empty() && run.tokenizer.empty()) || run.data.empty() || are_token_files(data_of(run))) return;
  if (run.tokenizer.empty()) {
    const fs::path directory = train::find_weights(run.init).directory;
    const std::string own = tokenizer_of_model(directory.empty() ? "." : directory, run.vocabulary());
    if (own != bytes_name) run.tokenizer = own;
  }
  if (begins_with_token(run.begin_of_text, run.tokenizer)) run.begin_of_text = "yes";
}

}  // namespace

trainer_state begin(const arguments& a, given_files given) {
  // A plan with --model-config needs nothing of the weights, which may not exist here.
  if (given == given_files::needed || a.model_config.empty()) check_init(a, given);
  run_options options = a.run;
  if (!a.schedule_override.empty()) options.schedule = a.schedule_override;
  if (options.contracts == native_contracts) options.contracts = choose_backend(a.device).ops->properties().contracts;
  if (given == given_files::needed) settle_tokenizer(options);
  std::vector<nn::resolved_phase> phases;
  if (a.schedule && a.schedule->is_of(options) && !a.flags.contains("--contracts")) phases = a.schedule->phases;
  trainer_state state =
      new_run(std::move(options), a.names, a.seed_base ? given_files::none : given, std::move(phases));
  return state;
}

std::optional<nn::recipe> find_synthetic_recipe(const arguments& a, const trainer_state& state) {
  const char* const flag = "--synthetic-recipe";
  if (a.session.synthetic_warmup == 0 && a.flags.contains(flag)) {
    throw io::error(flag, "needs --synthetic-warmup and its number of steps");
  }
  std::optional<nn::recipe> found = synthetic_recipe_of(a.session, state);
  if (!found) return found;
  const auto fault = find_recipe_fault(state.run, *found);
  if (fault) throw io::error(flag, a.names.text(*fault));
  return found;
}

void settle_statistics(arguments& a) {
  if (a.statistics_every) a.session.statistics_every = *a.statistics_every;
  if (a.session.statistics_every > 0 || !a.session.statistics_noise) return;
  if (a.flags.contains("--statistics-noise")) {
    throw io::error("--statistics-noise", "needs observed steps (--statistics-every)");
  }
  a.session.statistics_noise = false;  // was the resumed run's
}

}  // namespace rotoscale::program
