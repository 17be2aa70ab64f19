// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// MLPerf Training's evaluation rules and log lines (mlcommons/training_policies, training_rules.adoc;
// mlcommons/logging, compliance_checker/training_6.0.0). The log says that it is not a submission.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "trainer/log.hpp"

namespace rotoscale::program {

/// Writes the lines of a new run that was initialized at `began_ms` (milliseconds since 1970).
std::unique_ptr<log_sink> make_mlperf_log(const std::filesystem::path& path, std::int64_t began_ms);

}  // namespace rotoscale::program
