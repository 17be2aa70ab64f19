// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "replay.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <ostream>

#include "exit_codes.hpp"
#include "rotoscale/io/safetensors.hpp"
#include "rotoscale/llama/checkpoint.hpp"
#include "train/digests.hpp"
#include "train/train.hpp"

namespace rotoscale::llama_program {

namespace fs = std::filesystem;

namespace {

/// A directory that is removed at the end, unless it has a name that was asked for.
class scratch_directory {
 public:
  explicit scratch_directory(const std::string& keep) : path_(keep), keeps_(!keep.empty()) {
    std::error_code none;
    if (keeps_ && fs::exists(path_, none)) throw io::error(keep, "exists");
    if (!keeps_) path_ = fs::temp_directory_path() / ("mini-llama-replay-" + std::to_string(getpid()));
  }
  scratch_directory(const scratch_directory&) = delete;
  scratch_directory& operator=(const scratch_directory&) = delete;
  ~scratch_directory() {
    std::error_code failed;
    if (!keeps_) fs::remove_all(path_, failed);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  bool keeps_;
};

std::string read_bytes(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw io::error(file.string(), "cannot read");
  return bytes;
}

/// Where two files of tensors differ first; nothing where they differ otherwise.
std::optional<std::string> find_tensor_difference(const fs::path& a, const fs::path& b) {
  const auto first = io::safetensors_file::open(a), second = io::safetensors_file::open(b);
  for (const io::tensor_info& info : first.tensors()) {
    const io::tensor_info* other = second.find(info.name);
    if (other == nullptr || other->shape != info.shape) return info.name + " has another shape";
    std::size_t count = 1;
    for (const std::int64_t extent : info.shape) count *= static_cast<std::size_t>(extent);
    std::vector<float> x(count), y(count);
    first.read_floats(info, 0, x);
    second.read_floats(*other, 0, y);
    std::size_t differing = 0, at = count;
    for (std::size_t i = count; i-- > 0;) {
      if (std::memcmp(&x[i], &y[i], sizeof(float)) == 0) continue;
      ++differing;
      at = i;
    }
    if (differing == 0) continue;
    char text[192];
    std::snprintf(text, sizeof text, ": %zu of %zu elements differ, first element %zu: %.9g, replayed %.9g", differing,
                  count, at, static_cast<double>(x[at]), static_cast<double>(y[at]));
    return info.name + text;
  }
  return {};
}

/// What differs between two checkpoints, or nothing; `bytes` counts those compared.
std::optional<std::string> find_difference(const fs::path& run, const fs::path& replayed, std::size_t& bytes) {
  std::vector<std::string> names, others;
  for (const auto& entry : fs::directory_iterator(run)) names.push_back(entry.path().filename().string());
  for (const auto& entry : fs::directory_iterator(replayed)) others.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  std::sort(others.begin(), others.end());
  if (names != others) return "the checkpoints do not hold the same files";
  for (const std::string& name : names) {
    const std::string a = read_bytes(run / name), b = read_bytes(replayed / name);
    bytes += a.size();
    if (a == b) continue;
    if (name.ends_with(".safetensors")) {
      if (const auto tensor = find_tensor_difference(run / name, replayed / name)) return name + ": " + *tensor;
    }
    return name + ": differs";
  }
  return {};
}

/// That of a checkpoint, whose other files are looked at as well.
trainer_state read_there(const run_directory& run, std::int64_t step) {
  const fs::path checkpoint = run.checkpoint(step);
  return naming_older(checkpoint, "", [&] { return read_state({run.path(), checkpoint}); });
}

/// The state that the run had behind step `step`; `later` is one that it had later.
trainer_state state_at(const run_directory& run, std::int64_t step, const trainer_state& later) {
  if (step > 0) return read_there(run, step);
  field_names names;
  names.from_file(run.config().string(), io::to_json(later.run));
  trainer_state state = new_run(later.run, names);
  state.resolved_init = later.resolved_init;
  state.resolved_adapter = later.resolved_adapter;
  state.base_digest = later.base_digest;
  state.adapter_digest = later.adapter_digest;
  return state;
}

}  // namespace

int replay(const replay_options& o, std::ostream& out) {
  const step_range steps = parse_steps(o.steps, "--steps");
  llama::require_run_directory(o.run);
  const run_directory run{fs::path(o.run)};
  for (const std::int64_t step : {steps.first, steps.last}) {
    if (step == 0 || fs::exists(run.checkpoint(step))) continue;
    throw io::error(run.checkpoint(step).string(), "no such checkpoint (--checkpoint-every, --keep-checkpoints)");
  }
  trainer_state state = state_at(run, steps.first, read_there(run, steps.last));
  const scratch_directory scratch(o.keep);
  const chosen_backend inner = choose_backend(o.device);
  nn::digest_backend ops(*inner.ops);
  digest_comparison digests(ops, run.digests());
  session_options session;
  session.out = scratch.path().string();
  session.stop_at = steps.last;
  session.threads = inner.ops->threads();
  session.watcher = &digests;
  session.replays = true;
  // An observed step has more operations, and each has a digest.
  session.statistics_every = read_statistics_choice(run.statistics()).every;
  session.tokenizer = find_tokenizer(state.run.tokenizer, run.checkpoint(steps.last));
  std::optional<resume_point> from;
  if (steps.first > 0) from = resume_point{run.path(), run.checkpoint(steps.first)};
  const auto make = [&] {
    return std::make_unique<trainer>(digests.is_empty() ? *inner.ops : ops, std::move(state), session, from);
  };
  const auto t = from ? naming_older(from->checkpoint, "", make) : make();
  inner.say_note();
  if (const int code = t->run(); code != exit_ok) return code;
  std::size_t bytes = 0;
  const auto difference =
      find_difference(run.checkpoint(steps.last), run_directory(scratch.path()).checkpoint(steps.last), bytes);
  if (digests.difference()) out << "replay: " << *digests.difference() << "\n";
  if (difference) out << "replay: step " << steps.last << ": " << *difference << "\n";
  if (digests.difference() || difference) return exit_differs;
  out << "replay: steps " << steps.first + 1 << " to " << steps.last << " on " << inner.ops->description() << ": "
      << bytes << " bytes of the checkpoint are equal";
  const std::string compared = digests.summary();
  out << (compared.empty() ? "" : ", and ") << compared << "\n";
  return exit_ok;
}

}  // namespace rotoscale::llama_program
