// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "replay.hpp"

#include <stdlib.h>  // mkdtemp
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ostream>

#include "examples/standard_streams.hpp"
#include "format_text.hpp"
#include "front.hpp"
#include "rotoscale/io/safetensors.hpp"
#include "rotoscale/train/checkpoint.hpp"
#include "trainer/digests.hpp"
#include "trainer/resume.hpp"
#include "trainer/signals.hpp"
#include "trainer/train.hpp"

namespace rotoscale::program {

namespace fs = std::filesystem;

namespace {

/// Parent of temporary directories.
fs::path temporary_parent() {
  const char* const given = std::getenv("TMPDIR");
  return given != nullptr && *given != 0 ? given : "/tmp";
}

[[noreturn]] void fail_temporary(int code) {
  throw io::error("TMPDIR", "cannot create a directory in " + temporary_parent().string() + ": " + std::strerror(code) +
                                "; --keep names one for the replay's own run");
}

/// Throws io::error if a scratch_directory cannot be created; called before a model is loaded.
void require_place(const std::string& keep) {
  std::error_code none;
  if (!keep.empty() && fs::exists(keep, none)) throw io::error(keep, "exists");
  if (keep.empty() && ::access(temporary_parent().c_str(), W_OK | X_OK) != 0) fail_temporary(errno);
}

/// A temporary directory, or one with a given name, which is kept.
class scratch_directory {
 public:
  explicit scratch_directory(const std::string& keep) : path_(keep), keeps_(!keep.empty()) {
    if (keeps_) return;
    std::string name = (temporary_parent() / "mini-llama-replay-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) fail_temporary(errno);
    path_ = name;
  }
  scratch_directory(const scratch_directory&) = delete;
  scratch_directory& operator=(const scratch_directory&) = delete;
  ~scratch_directory() {
    std::error_code failed;
    if (!keeps_) fs::remove_all(path_, failed);
  }
  const fs::path& path() const { return path_; }

  /// Calls f. If a file in this directory cannot be written, the message says what helps.
  template <class Function>
  auto explaining(const Function& f) const {
    try {
      return f();
    } catch (const io::error& e) {
      const std::string text = e.what();
      if (!text.starts_with(path_.string())) throw;
      throw io::error(text + "; a replay needs room for its checkpoint: TMPDIR or --keep says where");
    }
  }

 private:
  fs::path path_;
  bool keeps_;
};

/// The names of a checkpoint's files, in order.
std::vector<std::string> files_of(const fs::path& checkpoint) {
  std::error_code failed;
  std::vector<std::string> names;
  for (fs::directory_iterator at(checkpoint, failed); !failed && at != fs::directory_iterator(); at.increment(failed)) {
    names.push_back(at->path().filename().string());
  }
  if (failed == std::errc::no_such_file_or_directory) {
    throw io::error(checkpoint.string(), "is gone: the run has removed it meanwhile (--keep-checkpoints)");
  }
  if (failed) throw io::error(checkpoint.string(), "cannot read the directory: " + failed.message());
  std::sort(names.begin(), names.end());
  return names;
}

/// The first of `names` that `others` lack, both in order; null: none.
const std::string* find_missing(const std::vector<std::string>& names, const std::vector<std::string>& others) {
  const auto lacks = [&](const std::string& n) { return !std::binary_search(others.begin(), others.end(), n); };
  const auto found = std::find_if(names.begin(), names.end(), lacks);
  return found == names.end() ? nullptr : &*found;
}

struct stored_tensor {
  const io::safetensors_file& file;
  const io::tensor_info& info;
};

/// Counts the elements that differ, and finds the first. Reads in parts.
std::optional<std::string> find_element_difference(const stored_tensor& a, const stored_tensor& b, std::size_t count) {
  constexpr std::size_t part = std::size_t{1} << 20;
  std::vector<float> x, y;
  std::size_t differing = 0, at = 0;
  float run = 0, replayed = 0;
  for (std::size_t begin = 0; begin < count; begin += part) {
    throw_if_interrupted();
    for (std::vector<float>* v : {&x, &y}) v->resize(std::min(part, count - begin));
    a.file.read_floats(a.info, begin, x);
    b.file.read_floats(b.info, begin, y);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::memcmp(&x[i], &y[i], sizeof(float)) == 0) continue;
      if (differing++ > 0) continue;
      at = begin + i;
      run = x[i];
      replayed = y[i];
    }
  }
  if (differing == 0) return {};
  return format_text("%zu of %zu elements differ, first element %zu: %.9g, replayed %.9g", differing, count, at,
                     static_cast<double>(run), static_cast<double>(replayed));
}

/// Describes the first different tensor of two files; nullopt: the tensors are equal.
std::optional<std::string> find_tensor_difference(const fs::path& a, const fs::path& b) {
  const auto first = io::safetensors_file::open(a), second = io::safetensors_file::open(b);
  for (const io::tensor_info& info : first.tensors()) {
    const io::tensor_info* other = second.find(info.name);
    if (other == nullptr) return info.name + ": no such tensor in the replay's";
    if (other->shape != info.shape) return info.name + " has another shape";
    std::size_t count = 1;
    for (const std::int64_t extent : info.shape) count *= static_cast<std::size_t>(extent);
    if (const auto difference = find_element_difference({first, info}, {second, *other}, count)) {
      return info.name + ": " + *difference;
    }
  }
  for (const io::tensor_info& info : second.tensors()) {
    if (first.find(info.name) == nullptr) return info.name + ": no such tensor in the run's";
  }
  return {};
}

/// Do the states of two checkpoints agree? An older version has left out the options that it did not have.
bool have_equal_states(const fs::path& run, const fs::path& replayed) {
  return io::to_json(read_trainer_state(run)) == io::to_json(read_trainer_state(replayed));
}

/// Describes the first difference of two checkpoints; nullopt: none. `bytes` counts the compared ones. Throws
/// interruption.
std::optional<std::string> find_difference(const fs::path& run, const fs::path& replayed, std::size_t& bytes) {
  const std::vector<std::string> names = files_of(run), others = files_of(replayed);
  if (const std::string* name = find_missing(names, others)) return *name + ": the replay has no such file";
  if (const std::string* name = find_missing(others, names)) return *name + ": the run's checkpoint has no such file";
  for (const std::string& name : names) {
    const bool equal = io::have_equal_bytes(run / name, replayed / name, [&](std::size_t count) {
      bytes += count;
      throw_if_interrupted();
    });
    if (equal || (name == "trainer_state.json" && have_equal_states(run, replayed))) continue;
    if (name.ends_with(".safetensors")) {
      if (const auto tensor = find_tensor_difference(run / name, replayed / name)) return name + ": " + *tensor;
    }
    return name + ": differs";
  }
  return {};
}

/// Reads the state of a checkpoint, and checks its other files.
trainer_state read_there(const run_directory& run, std::int64_t step) {
  const fs::path checkpoint = run.checkpoint(step);
  return naming_older(checkpoint, "", [&] { return read_state({run.path(), checkpoint}); });
}

/// The state of the run after step `step`. `later` is a later state.
trainer_state state_at(const run_directory& run, std::int64_t step, const trainer_state& later) {
  if (step > 0) return read_there(run, step);
  field_names names;
  names.from_file(run.config().string(), io::to_json(later.run));
  trainer_state state = new_run(later.run, names, given_files::none, later.phases);
  state.resolved_init = later.resolved_init;
  state.resolved_adapter = later.resolved_adapter;
  state.base_digest = later.base_digest;
  state.adapter_digest = later.adapter_digest;
  state.data_fingerprint = later.data_fingerprint;
  return state;
}

/// Throws io::error if the run's ranks left some of these steps' sums to the library. The log says so.
void refuse_library_sums(const run_directory& run, step_range steps) {
  if (!fs::exists(run.log())) return;
  bool by_library = false;
  for (const nlohmann::ordered_json& r : read_log(run.log())) {
    if (r["event"] != "start" && r["event"] != "resume") continue;
    const std::int64_t first = r.value("step", std::int64_t{0});
    if (first >= steps.last) continue;
    if (first <= steps.first) by_library = false;  // all of these steps were computed again
    by_library |= r.contains("reduce");
  }
  if (!by_library) return;
  throw io::error(run.path().string(), "--reduce library added gradients of these steps; a replay adds by the tree");
}

session_options session_for(const replay_options& o, const run_directory& run, const run_options& options,
                            std::int64_t last) {
  session_options session;
  session.stop_at = last;
  session.replays = true;
  // An observed step has more operations, and each has a digest.
  session.statistics_every = read_statistics_choice(run.statistics()).every;
  session.tokenizer = find_tokenizer(options.tokenizer, run.checkpoint(last));
  take_new_places(o.moved, options, session);  // the state, which is compared, keeps the run's names
  return session;
}

}  // namespace

int replay(const replay_options& o, std::ostream& out) {
  const step_range steps = parse_steps(o.steps, "--steps");
  train::require_run_directory(o.run);
  const run_directory run{fs::path(o.run)};
  for (const std::int64_t step : {steps.first, steps.last}) {
    if (step == 0 || fs::exists(run.checkpoint(step))) continue;
    throw io::error(run.checkpoint(step).string(), "no such checkpoint (--checkpoint-every, --keep-checkpoints)");
  }
  refuse_library_sums(run, steps);
  trainer_state state = state_at(run, steps.first, read_there(run, steps.last));
  require_place(o.keep);
  device_choice device = o.device;
  device.keeps_codes = true;
  const chosen_backend inner = choose_backend(device);
  nn::digest_observer observer(*inner.ops);
  digest_comparison digests(observer, run.digests());
  session_options session = session_for(o, run, state.run, steps.last);
  session.threads = inner.ops->threads();
  session.watcher = &digests;
  std::optional<resume_point> from;
  if (steps.first > 0) from = resume_point{run.path(), run.checkpoint(steps.first)};
  const auto make = [&] { return std::make_unique<trainer>(*inner.ops, std::move(state), session, from); };
  std::unique_ptr<trainer> t = from ? naming_older(from->checkpoint, "", make) : make();
  inner.say_note();
  const signal_guard signals;  // a signal during the load has ended the program, and left nothing
  const scratch_directory scratch(o.keep);
  const int code = scratch.explaining([&, own = std::move(t)] { return own->run_in(scratch.path().string()); });
  if (digests.difference()) out << "replay: " << *digests.difference() << "\n";
  if (code != exit_ok) return code;
  std::size_t bytes = 0;
  std::optional<std::string> difference;
  try {
    difference =
        find_difference(run.checkpoint(steps.last), run_directory(scratch.path()).checkpoint(steps.last), bytes);
  } catch (const interruption& i) {
    print_error(program_name, signal_name(i.signal) + ": only some files of the checkpoints were compared");
    return exit_interrupted;
  }
  if (difference) out << "replay: step " << steps.last << ": " << *difference << "\n";
  if (digests.difference() || difference) return exit_differs;
  const std::string compared = digests.summary();
  out << "replay: steps " << steps.first + 1 << " to " << steps.last << " on " << inner.ops->description() << ": "
      << bytes << " bytes of the checkpoint are equal" << (compared.empty() ? "" : ", and ") << compared << "\n";
  return exit_ok;
}

}  // namespace rotoscale::program
