// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Continues a run from a checkpoint.
#pragma once

#include <functional>
#include <vector>

#include "arguments.hpp"
#include "device.hpp"
#include "rank_team.hpp"

namespace rotoscale::program {

/// Resumes from the first undamaged checkpoint of `points`. Later ones count only with --auto-resume; `wanted` then has
/// the command line's options. `watch` begins to record digests if the run asks for them.
int resume(const chosen_backend& device, rank_team& team, arguments& a, const std::vector<resume_point>& points,
           const trainer_state* wanted, const std::function<void(const trainer_state&)>& watch);

}  // namespace rotoscale::program
