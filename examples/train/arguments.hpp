// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Arguments of a command line.
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
#include "prediction.hpp"
#include "replay.hpp"
#include "report/report.hpp"
#include "rotoscale/io/error.hpp"
#include "sample.hpp"
#include "study/command.hpp"
#include "trainer/train.hpp"

namespace rotoscale::program {

struct arguments {
  run_options run;
  train::lora_config lora;  ///< becomes run.lora if a field is set
  session_options session;
  std::string config, model_config, checkpoint, resume, schedule_override;
  device_choice device;
  int gpus = 0;                                ///< devices that are a rank each; 0: session.ranks
  std::string rendezvous;                      ///< where processes of a launcher meet; empty: this is no rank of theirs
  int timeout = 600;                           ///< of each collective, in seconds
  std::optional<effective_schedule> schedule;  ///< from --config, unless a flag names another
  std::string digest_steps;
  bool seed_base = false;  ///< base weights of adapters come from the seed, unless init gives them
  replay_options replay;
  std::map<std::string, std::string> flags;  ///< given flags, under all of their names
  field_names names;
  cluster planned;  ///< by plan --profile
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

}  // namespace rotoscale::program
