// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// MLPerf Training's evaluation rules and log lines (mlcommons/training_policies, training_rules.adoc;
// mlcommons/logging, compliance_checker/training_6.0.0). What mini-llama writes is no submission, and says so.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "options.hpp"
#include "rotoscale/llama/trigger.hpp"
#include "train/log.hpp"

namespace rotoscale::llama_program {

/// Gives `o` the values that the rules of its benchmark fix, or that its reference has.
void set_mlperf_defaults(train_options& o);

/// When a run is evaluated; its end is in any case.
llama::measurement_times evaluation_times(const train_options& o);

/// The lines of a run that begins now, its initialization at `began_ms` (milliseconds since 1970).
std::unique_ptr<log_sink> make_mlperf_log(const std::filesystem::path& path, std::int64_t began_ms);

}  // namespace rotoscale::llama_program
