// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Joint steps of the ranks of one run: they compare themselves before the first step, evaluate, and stop on a signal.

#include <algorithm>

#include "commit.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/version.hpp"
#include "trainer/signals.hpp"
#include "trainer/train.hpp"

namespace rotoscale::program {

/// Throws nn::rank_failure if ranks have different builds, options, data, contracts or kinds of devices.
void trainer::require_equal_ranks() const {
  if (ranks_->size() == 1) return;
  const std::string device = ops_->description();  // with its size, which changes no bits
  std::vector<std::pair<std::string, std::string>> own = {
      {"version", ROTOSCALE_VERSION},
      {"commit", ROTOSCALE_COMMIT},
      {"device", device.substr(0, device.find(" ("))},
      {"--out", is_own_run() ? "of the resumed run" : "of a new run"}};
  const auto state = io::to_json(state_).flatten();
  for (const auto& [name, value] : state.items()) own.emplace_back(name.substr(1), value.dump());
  // They decide which collectives a step has.
  const auto add = [&](const char* name, const nlohmann::json& value) { own.emplace_back(name, value.dump()); };
  add("--stop-at", session_.stop_at);
  add("--divide-frozen", session_.divide_frozen);
  add("--shard", session_.shard);
  add("--reduce", session_.reduce);
  add("--statistics-every", session_.statistics_every);
  add("--statistics-noise", session_.statistics_noise);
  add("--synthetic-warmup", session_.synthetic_warmup);
  add("--synthetic-recipe", session_.synthetic_recipe);
  nn::require_equal_ranks(*ranks_, own);
}

/// Throws interruption after a signal, on all ranks at once.
void trainer::stop_if_interrupted() const {
  if (ranks_->size() == 1) return throw_if_interrupted();
  const int own = noted_signal();
  int signal = 0;
  for (const auto& noted : nn::gather_values<int>(*ranks_, std::span(&own, 1))) signal = std::max(signal, noted[0]);
  if (signal != 0) throw interruption{signal};
}

/// Evaluates the model now.
evaluation trainer::evaluate_on_ranks(std::int64_t windows, const progress_function& progress) {
  return evaluate(*model_, step_inputs_for(state_), text_, windows, progress, ranks_);
}

}  // namespace rotoscale::program
