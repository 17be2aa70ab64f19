// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "trainer/run_directory.hpp"

#include <unistd.h>

#include <algorithm>
#include <functional>

#include "format_text.hpp"
#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/train/checkpoint.hpp"

namespace rotoscale::program {

namespace fs = std::filesystem;

namespace {

/// Removes a directory. It is renamed first: half a checkpoint must not look like one.
void discard(const fs::path& directory) {
  std::error_code failed;
  const fs::path hidden =
      directory.parent_path() / ("." + directory.filename().string() + ".tmp-" + std::to_string(::getpid()));
  fs::remove_all(hidden, failed);
  fs::rename(directory, hidden, failed);
  fs::remove_all(failed ? directory : hidden, failed);
}

/// Does an uninterrupted run write a checkpoint at this step?
bool is_at_interval(std::int64_t step, const train_options& o) {
  return step == o.steps || (o.checkpoint_every > 0 && step % o.checkpoint_every == 0);
}

}  // namespace

fs::path run_directory::checkpoint(std::int64_t step) const {
  return checkpoints() / format_text("step-%09lld", static_cast<long long>(step));
}

std::vector<std::int64_t> run_directory::steps() const {
  std::error_code failed;
  std::vector<std::int64_t> steps;
  for (const auto& entry : fs::directory_iterator(checkpoints(), failed)) {
    const std::string name = entry.path().filename().string();
    if (train::is_checkpoint_name(name)) steps.push_back(std::stoll(name.substr(name.find('-') + 1)));
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

fs::path run_directory::rollback_checkpoint(const train_options& o) const {
  const std::vector<std::int64_t> all = steps();
  for (const std::int64_t step : all) {
    if (is_at_interval(step, o)) return checkpoint(step);
  }
  // A run that continues another run elsewhere has no beginning in its directory.
  std::error_code failed;
  return all.empty() || fs::exists(start(), failed) ? fs::path() : checkpoint(all.back());
}

bool run_directory::is_used(const fs::path& file) const {
  std::error_code failed;
  const fs::file_status status = fs::status(file, failed);
  if (!fs::exists(status)) return false;
  const bool is_own_kind = fs::is_directory(status) == (file == checkpoints() || file == tensorboard());
  if (!is_own_kind) return true;
  // A run killed at its very beginning leaves an empty log, or a directory with half a checkpoint.
  if (file != checkpoints()) return !fs::is_empty(file, failed);
  const fs::directory_iterator entries(file, failed);
  return std::any_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
    return !entry.path().filename().string().starts_with('.');
  });
}

void run_directory::require_unused(const std::string& of_run, const std::string& otherwise) const {
  const std::vector<fs::path> files = all();
  const auto used = std::find_if(files.begin(), files.end(), [this](const fs::path& file) { return is_used(file); });
  if (used == files.end()) return;
  std::error_code failed;
  const bool has_run = !steps().empty() || fs::exists(start(), failed);
  throw io::error(used->string(),
                  "exists" + (has_run ? of_run : ", and " + path_.string() + " holds no run" + otherwise));
}

std::vector<fs::path> run_directory::all() const {
  return {checkpoints(), statistics(), digests(), mlperf(), tensorboard(), config(), start(), log()};
}

std::vector<fs::path> run_directory::unused() const {
  std::error_code failed;
  std::vector<fs::path> files = all();
  std::erase_if(files, [&](const fs::path& file) { return fs::exists(file, failed) && !fs::is_empty(file, failed); });
  return files;
}

void run_directory::remove(const std::vector<fs::path>& files) const {
  std::error_code failed;
  for (const fs::path& file : files) {
    if (file != checkpoints()) {
      fs::remove_all(file, failed);
    } else if (fs::exists(file, failed)) {
      discard(file);
    }
  }
}

void run_directory::clear() const {
  std::vector<fs::path> files = all();
  files.pop_back();  // the log
  remove(files);
}

void run_directory::remove_leftovers() const {
  io::remove_leftovers(path_);
  io::remove_leftovers(checkpoints());
}

void run_directory::remove_beyond(std::int64_t step) const {
  for (const std::int64_t other : steps()) {
    if (other > step) discard(checkpoint(other));
  }
}

void run_directory::prune(std::int64_t step, bool is_extra, const train_options& o) const {
  int kept = 0;
  for (const std::int64_t other : steps()) {
    const bool counts = is_at_interval(other, o) || (other == step && !is_extra);
    const bool keep = counts ? kept++ < o.keep_checkpoints : other == step;
    if (!keep) discard(checkpoint(other));
  }
}

}  // namespace rotoscale::program
