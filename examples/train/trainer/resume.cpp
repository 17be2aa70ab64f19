// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "trainer/resume.hpp"

#include <algorithm>

#include "data/data.hpp"
#include "data/own_tokenizer.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/train/checkpoint.hpp"
#include "trainer/run_directory.hpp"

namespace rotoscale::program {

namespace fs = std::filesystem;

namespace {

/// "/train/learning_rate" as "train.learning_rate", "/data/0" as "data".
std::string field_of(std::string pointer) {
  const std::size_t last = pointer.rfind('/');
  if (pointer.find_first_not_of("0123456789", last + 1) == pointer.npos) pointer.resize(last);
  std::replace(pointer.begin(), pointer.end(), '/', '.');
  return pointer.substr(1);
}

/// Directory of the run whose checkpoints/ has this entry, with any of the run's files; empty: none.
fs::path run_of_checkpoint(const fs::path& path) {
  std::error_code failed;
  // The path may be a link to a checkpoint, or checkpoints/ may be a link to another place.
  for (fs::path at : {fs::absolute(path).lexically_normal(), fs::weakly_canonical(path)}) {
    if (!at.has_filename()) at = at.parent_path();
    const run_directory run(at.parent_path().parent_path());
    if (at.parent_path() != run.checkpoints() || !train::is_checkpoint_name(at.filename().string())) continue;
    for (const fs::path& file : {run.log(), run.config(), run.start()}) {
      if (fs::exists(file, failed)) return run.path();
    }
  }
  return {};
}

bool has_file_of_checkpoint(const fs::path& path) {
  std::error_code failed;
  for (const char* name : {"model.safetensors", "adapter_model.safetensors", "optimizer.safetensors",
                           "generation_config.json", "adapter_config.json"}) {
    if (fs::exists(path / name, failed)) return true;
  }
  return false;
}

}  // namespace

std::string older_checkpoint(const fs::path& checkpoint) {
  try {
    const std::vector<resume_point> points = find_resume_points(checkpoint);
    return points.size() > 1 && !points[1].checkpoint.empty() ? points[1].name() : "";
  } catch (const io::error&) {
    return "";
  }
}

bool is_own_checkpoint(const fs::path& directory) {
  const fs::path state = directory / "trainer_state.json";
  std::error_code failed;
  if (!fs::exists(state, failed)) return false;
  const auto json = io::read_json(state);
  return json.is_object() && json.contains("phases");
}

/// Training takes the model's shape from trainer_state.json. Other programs take it from these files.
void check_config(const fs::path& checkpoint, const run_options& run) {
  const std::string path = (checkpoint / (run.lora ? "adapter_config.json" : "config.json")).string();
  const auto found = (run.lora ? train::adapter_config_json(train::read_adapter_config(checkpoint), "")
                               : models::config_json(models::read_config(io::read_json(path), path)))
                         .flatten();
  const auto expected =
      (run.lora ? train::adapter_config_json(*run.lora, "") : models::config_json(run.shape())).flatten();
  for (const auto& [key, value] : expected.items()) {
    if (found.contains(key) && found[key] == value) continue;
    throw io::error(path, field_of(key) + " is not that of trainer_state.json");
  }
}

models::config read_shape(const train::weights_location& from, const std::vector<std::string>& passed) {
  if (is_own_checkpoint(from.directory)) {
    const run_options run = read_trainer_state(from.directory).run;
    if (!run.lora) check_config(from.directory, run);
  }
  const std::string path = from.config().string();
  return models::read_config(io::read_json(path), path, passed);
}

std::vector<resume_point> find_resume_points(const fs::path& path) {
  train::require_run_directory(path);
  const fs::path run = run_of_checkpoint(path);
  const bool is_checkpoint = !run.empty() || has_file_of_checkpoint(path);
  std::vector<resume_point> points;
  if (is_checkpoint) points.push_back({run, path});
  if (is_checkpoint && run.empty()) return points;
  const run_directory files(is_checkpoint ? run : path);
  const fs::path name = fs::weakly_canonical(path).filename();
  for (const std::int64_t step : files.steps()) {
    const fs::path checkpoint = files.checkpoint(step);
    if (is_checkpoint && checkpoint.filename() >= name) continue;
    points.push_back({files.path(), checkpoint});
  }
  std::error_code failed;
  if (fs::exists(files.start(), failed)) points.push_back({files.path(), {}});
  return points;
}

trainer_state read_state(const resume_point& from) {
  return reading([&] {
    trainer_state state = read_trainer_state(from.checkpoint.empty() ? from.run : from.checkpoint);
    if (from.checkpoint.empty() && state.step != 0) {
      throw io::error(run_directory(from.run).start().string(),
                      "the state of step " + std::to_string(state.step) + ", but no tensors");
    }
    if (from.checkpoint.empty()) return state;
    check_config(from.checkpoint, state.run);
    if (state.run.lora) {
      train::check_adapters(from.checkpoint, state.run.architecture(), *state.run.lora);
    } else {
      train::check_weights({from.checkpoint}, state.run.architecture());
    }
    return state;
  });
}

void read_tensors(const fs::path& checkpoint, train::session& into) {
  reading([&] {
    train::read_checkpoint(checkpoint, into, true);
    train::read_scales(checkpoint, into);
  });
}

std::string find_tokenizer(const std::string& given, const fs::path& checkpoint) {
  const fs::path own = checkpoint / "tokenizer.model";
  std::error_code failed;
  if (given.empty() || given == bytes_name || checkpoint.empty() || !fs::exists(own, failed)) return given;
  try {
    if (io::read_raw_file(given) == io::read_raw_file(own)) return given;
  } catch (const io::error&) {
  }
  return own.string();
}

std::string tokenizer_of_model(const fs::path& directory, int vocabulary) {
  if (!is_own_checkpoint(directory)) return find_own_tokenizer(directory, vocabulary);
  const run_options run = read_trainer_state(directory).run;
  if (!run.tokenizer.empty()) return find_tokenizer(run.tokenizer, directory);
  const data_options data = data_of(run);
  std::error_code failed;
  const bool has_own =
      fs::exists(directory / "tokenizer.model", failed) || fs::exists(directory / "tokenizer.json", failed);
  const bool has_data = !run.data.empty() && fs::exists(run.data.front(), failed);
  if (has_own || (has_data && are_token_files(data))) return find_own_tokenizer(directory, vocabulary);
  return bytes_name;
}

void require_same_run(const trainer_state& wanted, const field_names& names, const trainer_state& found,
                      const std::string& where) {
  const auto options = io::to_json(wanted.run).flatten(), old = io::to_json(found.run).flatten();
  const auto text = [](const auto& values, const std::string& key) {
    return values.contains(key) ? values.at(key).dump() : "none";
  };
  for (const auto* either : {&options, &old}) {
    for (const auto& [key, value] : either->items()) {
      if (key == "/name" && wanted.run.schedule != found.run.schedule) continue;  // the name is the schedule's
      if (text(options, key) == text(old, key)) continue;
      throw io::error(names.name(field_of(key)), "is " + text(options, key) + ", but " + text(old, key) +
                                                     " in the run in " + where +
                                                     ", which only the same options resume (--overwrite begins again)");
    }
  }
  if (const auto change = find_phase_change(found.phases, wanted.phases)) {
    throw io::error(names.schedule(), "its recipes have changed since the run in " + where + " began: " + *change);
  }
}

}  // namespace rotoscale::program
