// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The records of a run's log that need more than a line to make.
#pragma once

#include <filesystem>

#include "data/data.hpp"
#include "rotoscale/io/json.hpp"
#include "train/state.hpp"

namespace rotoscale::llama_program {

/// "start": everything that the run depends on.
nlohmann::ordered_json start_record(const trainer_state& state, const llama::session& model, const corpus& text,
                                    int threads);

/// Training seconds that a log gives for a step; 0 where it says nothing of it. Checkpoints hold no clock.
double logged_seconds(const std::filesystem::path& log, std::int64_t step);

}  // namespace rotoscale::llama_program
