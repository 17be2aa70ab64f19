// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// `mini-llama study`: runs a study's arms and seeds, each as `mini-llama train`, and reports them.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "device.hpp"

namespace rotoscale::program {

struct study_options {
  std::string file;    ///< empty with resume, which reads the study's copy
  std::string out;     ///< directory of a new study
  std::string resume;  ///< directory of one that goes on
  std::vector<std::string> data;
  int seeds = 0;  ///< 0: as the file says
  int jobs = 0;   ///< at once: on the CPU in all (0: one a core), else on each device (0: one)
  device_choice device;
  std::vector<int> device_numbers = {0};
  int stop_after = 0;   ///< runs that end, after which no other begins; 0: all
  bool budget = false;  ///< print it and end
  std::string accept;   ///< results.json to compare with; empty: none
};

/// Prints the budget, does what is left of the study, and writes its report to DIR/report. Returns exit_ok, with
/// `accept` exit_differs if a mean lies outside its interval, and exit_interrupted after a signal. Throws io::error.
int run_study(const study_options& options, std::ostream& out);

}  // namespace rotoscale::program
