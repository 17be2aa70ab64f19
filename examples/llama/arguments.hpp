// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The command line of mini-llama.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "convert.hpp"
#include "data/commands.hpp"
#include "device.hpp"
#include "field_names.hpp"
#include "merge.hpp"
#include "replay.hpp"
#include "report/report.hpp"
#include "rotoscale/io/error.hpp"
#include "sample.hpp"
#include "study/command.hpp"
#include "train/train.hpp"

namespace rotoscale::llama_program {

struct arguments {
  run_options run;
  llama::lora_config lora;  ///< becomes run.lora if a field is set
  session_options session;
  std::string config, model_config, checkpoint, resume, schedule_override;
  device_choice device;
  std::optional<effective_schedule> schedule;  ///< from --config, unless a flag names another
  std::string digest_steps;
  replay_options replay;
  std::map<std::string, std::string> flags;  ///< given flags, under all of their names
  field_names names;
  bool no_progress = false;
  bool profile_operations = false;  ///< a table by operation as well
  std::optional<std::int64_t> statistics_every;
  std::vector<std::string> data;
  std::vector<std::string> passed_keys;  ///< of a model's config.json, unknown and without arithmetic
  int windows = 0, sequence = 0;
  bool all = false;  ///< eval: every token of the data
  std::string adapter;
  merge_options merge;
  convert_options convert;
  sample_options sample;
  report_options report;
  study_options study;
  std::string tokenizer, text_format, begin_of_text = "auto";
  std::string logits;  ///< a file for them; empty: not written
  tokenizer_arguments tokens;
};

/// Reads the command line. Flags override --config and --model-config, which override defaults. --help and --version
/// print and end the program. Throws io::error.
void parse_arguments(int argc, char** argv, arguments& a);

/// Throws io::error if an option contradicts the shape of --init's weights. If the files are needed, it also throws if
/// their config.json contradicts the weights and no --model-config replaces it.
void check_init(const arguments& a, given_files files);

/// Throws io::error for a flag that would change the options of a resumed run.
void check_resume_flags(int argc, char** argv);

}  // namespace rotoscale::llama_program
