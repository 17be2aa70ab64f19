// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Checkpoints: a directory with config.json and model.safetensors as Hugging Face's LlamaForCausalLM has them, plus
// optimizer.safetensors (moments and delayed-scaling state). In a run with adapters it has PEFT's adapter_config.json
// and adapter_model.safetensors in place of the base. It appears complete or not at all. Models of other programs are
// read too: in shards, in BF16 and FP16. Reading and writing take some MiB of memory for any model.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/io/safetensors_shards.hpp"
#include "rotoscale/train/adapter_config.hpp"
#include "rotoscale/train/parameter_files.hpp"
#include "rotoscale/train/session.hpp"

namespace rotoscale::train {

namespace detail {

/// FNV-1a of 64 bits over names and values of parameters, independent of their storage.
class parameter_digest {
 public:
  /// The next parameter.
  void begin(const parameter& p) {
    for (const char c : p.name()) add(static_cast<unsigned char>(c));
  }
  /// Its next values.
  void add(std::span<const float> values) {
    for (const float x : values) add(fp32_bits(x));
  }
  /// Digest of the parameters so far.
  std::uint64_t value() const { return value_; }

 private:
  void add(std::uint64_t number) { value_ = (value_ ^ number) * 1099511628211u; }
  std::uint64_t value_ = 14695981039346656037u;
};

/// Reads parameter `number` into a session.
inline void load_rows(const io::safetensors_shards& from, std::size_t number, session& into, parameter_digest& digest) {
  const parameter& p = into.model().parameters()[number];
  digest.begin(p);
  read_rows(from, p, "", [&](index_t first, std::span<const float> values) {
    digest.add(values);
    into.load(number, values, first);
  });
}

}  // namespace detail

/// Source of a checkpoint's tensors. The session must outlive the writing.
class checkpoint_tensors {
 public:
  /// The session itself, which must not change and is waited for.
  checkpoint_tensors(const session& live) : model_(&live.model()) {  // NOLINT: is one
    const session* const s = &live;
    values_ = [s](std::size_t i, index_t first, index_t rows) {
      return s->model().weights().values(s->queue(), i, first, rows);
    };
    for (const auto& arena : detail::optimizer_arenas_of(live.model())) {
      optimizer_.push_back([s, memory = arena.memory](std::size_t i, index_t first, index_t rows) {
        return s->model().weights().arena_values(s->queue(), s->model().arena().*memory, i, first, rows);
      });
    }
    for (const auto& [name, memory, count] : detail::scaling_buffers(live.model().scales())) {
      scales_.push_back({name, [s, from = memory, n = count] {
                           std::vector<float> host(n);
                           s->ops().download(s->queue(), host.data(), from, n * sizeof(float));
                           s->ops().synchronize(s->queue());
                           return host;
                         }});
    }
  }
  /// Takes a snapshot. Any thread may write it after the session has finished the copies.
  static checkpoint_tensors snapshot_of(session& from) {
    checkpoint_tensors t(&from.model());
    const snapshot& s = from.take_snapshot();
    t.values_ = t.rows_of(s.weights);
    for (const float* arena : s.optimizer) {
      if (arena != nullptr) t.optimizer_.push_back(t.rows_of(arena));
    }
    const float* at = s.scales;
    for (const auto& [name, memory, count] : detail::scaling_buffers(from.model().scales())) {
      t.scales_.push_back({name, [at, n = count] { return std::vector<float>(at, at + n); }});
      at += count;
    }
    return t;
  }

  /// Names and shapes.
  const train::model& model() const { return *model_; }
  /// Rows of parameter i.
  std::vector<float> values(std::size_t i, index_t first, index_t rows) const { return values_(i, first, rows); }
  /// The same of arena k of detail::optimizer_arenas_of.
  std::vector<float> optimizer_values(std::size_t k, std::size_t i, index_t first, index_t rows) const {
    return optimizer_[k](i, first, rows);
  }
  /// Calls f(name, values) for the state of delayed scaling.
  template <class Function>
  void for_each_scale(const Function& f) const {
    for (const scale_source& s : scales_) f(s.name, s.fetch());
  }

 private:
  using row_source = std::function<std::vector<float>(std::size_t i, index_t first, index_t rows)>;
  struct scale_source {
    const char* name;
    std::function<std::vector<float>()> fetch;
  };

  explicit checkpoint_tensors(const train::model* m) : model_(m) {}
  row_source rows_of(const float* arena) const {
    return [list = &model_->parameters(), arena](std::size_t i, index_t first, index_t rows) {
      const parameter& p = (*list)[i];
      const float* const begin = arena + p.offset + first * p.cols;
      return std::vector<float>(begin, begin + rows * p.cols);
    };
  }

  const train::model* model_;
  row_source values_;
  std::vector<row_source> optimizer_;
  std::vector<scale_source> scales_;
};

namespace detail {

/// Files of tensors, whose values are fetched while they are written.
struct tensor_files {
  io::safetensors_writer weights, optimizer;

  /// Those of a checkpoint, which must outlive it.
  explicit tensor_files(const checkpoint_tensors& from) {
    const model& m = from.model();
    for (std::size_t i = first_stored(m); i < m.parameters().all().size(); ++i) {
      const parameter& p = m.parameters()[i];
      add_slices(weights, p, "", [&from, i](index_t first, index_t rows) { return from.values(i, first, rows); });
      if (!p.trains) continue;
      const auto arenas = optimizer_arenas_of(m);
      for (std::size_t k = 0; k < arenas.size(); ++k) {
        add_slices(optimizer, p, arenas[k].prefix,
                   [&from, i, k](index_t first, index_t rows) { return from.optimizer_values(k, i, first, rows); });
      }
    }
    from.for_each_scale([&](const char* name, const std::vector<float>& host) {
      optimizer.add(name, "F32", {static_cast<std::int64_t>(host.size())}, std::as_bytes(std::span<const float>(host)));
    });
    weights.metadata["format"] = "pt";  // transformers refuses files without it
  }
  /// First parameter in a checkpoint: adapters are stored without their base.
  static std::size_t first_stored(const model& m) { return m.options().lora ? m.parameters().base_count() : 0; }
};
/// Name of the file of weights or adapters.
inline const char* weights_name(const model& m) {
  return m.options().lora ? "adapter_model.safetensors" : "model.safetensors";
}
inline constexpr const char* optimizer_name = "optimizer.safetensors";

/// Writes a checkpoint's files without tensors.
inline void write_descriptions(const std::filesystem::path& directory, const model& m,
                               const nlohmann::ordered_json& state, const std::string& base) {
  if (const std::optional<lora_config>& lora = m.options().lora) {
    io::write_json(directory / "adapter_config.json", adapter_config_json(*lora, base));
  } else {
    io::write_json(directory / "config.json", m.shape().config_json("float32"));
  }
  io::write_json(directory / "trainer_state.json", state);
}

}  // namespace detail

/// Writes a checkpoint directory: weights or, in a run with adapters, the adapters; moments of the trained parameters;
/// scales. `state` goes to trainer_state.json unchanged, `base` to adapter_config.json as the adapters' base.
/// `add_files` adds other files.
inline void write_checkpoint(const std::filesystem::path& directory, const checkpoint_tensors& from,
                             const nlohmann::ordered_json& state, const std::string& base = "",
                             const std::function<void(const std::filesystem::path&)>& add_files = nullptr) {
  io::atomic_directory out(directory);
  const detail::tensor_files files(from);
  files.weights.write(out.path() / detail::weights_name(from.model()));
  files.optimizer.write(out.path() / detail::optimizer_name);
  detail::write_descriptions(out.path(), from.model(), state, base);
  if (add_files) add_files(out.path());
  out.commit();
}

/// Throws io::error for a path that is no directory: checkpoints and runs are directories.
inline void require_run_directory(const std::filesystem::path& path) {
  std::error_code failed;
  if (!std::filesystem::exists(path, failed)) throw io::error(path.string(), "no such checkpoint or run directory");
  if (std::filesystem::is_directory(path, failed)) return;
  if (std::filesystem::is_regular_file(path, failed)) {
    if (const char* kind = io::foreign_content(io::read_beginning(path, 32)))
      throw io::error(path.string(), std::string("is ") + kind);
  }
  throw io::error(path.string(), "not a directory, as checkpoints and runs are");
}

/// Is it a checkpoint's folder name, "step-" and nine digits? Names then sort by step.
inline bool is_checkpoint_name(std::string_view name) {
  constexpr std::string_view begin = "step-";
  return name.size() == begin.size() + 9 && name.starts_with(begin) &&
         name.find_first_not_of("0123456789", begin.size()) == name.npos;
}

/// `path` itself if it is a checkpoint, else the newest one of the run directory `path`.
inline std::filesystem::path find_checkpoint(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  require_run_directory(path);
  std::error_code failed;
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors"}) {
    if (fs::exists(path / name, failed)) return path;
  }
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(path / "checkpoints", failed)) {
    const std::string name = entry.path().filename().string();
    if (is_checkpoint_name(name) && name > newest.filename().string()) newest = entry.path();
  }
  for (const char* name :
       {"pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin", "consolidated.00.pth"}) {
    if (!newest.empty() || !fs::exists(path / name, failed)) continue;
    throw io::error((path / name).string(),
                    "is PyTorch's, only safetensors are read (transformers' save_pretrained writes them)");
  }
  for (const auto& entry : fs::directory_iterator(path, failed)) {
    if (!newest.empty() || entry.path().extension() != ".gguf") continue;
    throw io::error(entry.path().string(), std::string("is ") + io::foreign_content("GGUF"));
  }
  if (newest.empty()) {
    throw io::error(path.string(),
                    "holds neither model.safetensors nor adapter_model.safetensors nor checkpoints/step-NNNNNNNNN");
  }
  return newest;
}

/// Where a model's tensors and its config.json are: a checkpoint or run directory as find_checkpoint takes it, or one
/// .safetensors file.
struct weights_location {
  std::filesystem::path directory;  ///< of tensors and config.json
  std::string stem = "model";       ///< of the tensors' file or files

  /// The shape that the tensors belong to.
  std::filesystem::path config() const { return directory / "config.json"; }
};
/// Throws io::error where there is no model.
inline weights_location find_weights(const std::filesystem::path& path) {
  std::error_code failed;
  if (path.extension() == ".safetensors" && std::filesystem::is_regular_file(path, failed)) {
    return {path.parent_path(), path.stem().string()};
  }
  const std::filesystem::path directory = find_checkpoint(path);
  if (is_adapter(directory)) throw io::error(directory.string(), "holds adapters, no model");
  return {directory};
}

/// Throws io::error unless the files hold the tensors of this model, or of these adapters. Comes before the allocation,
/// so file sizes bound the memory.
inline void check_weights(const weights_location& from, const train::architecture& shape) {
  const parameter_list list(shape);
  detail::check_tensors(io::safetensors_shards::open(from.directory, from.stem), list.all(), shape);
}
/// See check_weights.
inline void check_adapters(const std::filesystem::path& directory, const train::architecture& shape,
                           const lora_config& lora) {
  const parameter_list list(shape, nullptr, lora);
  detail::check_tensors(io::safetensors_shards::open(directory, "adapter_model"),
                        std::span(list.all()).subspan(list.base_count()), shape);
}

/// Reads the model's own weights without adapters. Returns a digest of names and values, independent of their storage.
/// Frozen weights are quantized with the session's current scales and inputs. `progress` receives the elements read, of
/// all.
inline std::uint64_t read_weights(const weights_location& from, session& into,
                                  const element_progress& progress = nullptr) {
  const auto weights = io::safetensors_shards::open(from.directory, from.stem);
  const model& m = into.model();
  const std::size_t count = m.parameters().base_count();
  detail::check_tensors(weights, std::span(m.parameters().all()).first(count), m.shape());
  detail::parameter_digest digest;
  index_t done = 0, total = 0;
  for (std::size_t i = 0; i < count; ++i) total += m.parameters()[i].size();
  for (std::size_t i = 0; i < count; ++i) {
    if (progress) progress(done, total);
    detail::load_rows(weights, i, into, digest);
    done += m.parameters()[i].size();
  }
  if (progress) progress(done, total);
  return digest.value();
}

/// Reads the adapters of a session that has some, from a checkpoint or from PEFT's files; returns their digest.
inline std::uint64_t read_adapters(const std::filesystem::path& directory, session& into) {
  const auto tensors = io::safetensors_shards::open(directory, "adapter_model");
  const parameter_list& list = into.model().parameters();
  detail::check_tensors(tensors, std::span(list.all()).subspan(list.base_count()), into.model().shape());
  detail::parameter_digest digest;
  for (std::size_t i = list.base_count(); i < list.all().size(); ++i) detail::load_rows(tensors, i, into, digest);
  return digest.value();
}

/// Reads the optimizer's moments, and the moving average, of all parameters that train.
inline void read_moments(const std::filesystem::path& directory, session& into) {
  const auto optimizer = io::safetensors_shards::open(directory, "optimizer");
  const model& m = into.model();
  const auto& all = m.parameters().all();
  auto arenas = detail::optimizer_arenas_of(m);
  std::erase_if(arenas, [&](const auto& arena) {
    return arena.may_lack && std::none_of(all.begin(), all.end(), [&](const parameter& p) {
             return p.trains && detail::locate(optimizer, arena.prefix + p.slices.front().name).info != nullptr;
           });
  });
  for (std::size_t i = 0; i < all.size(); ++i) {
    const parameter& p = all[i];
    if (!p.trains) continue;
    for (const auto& arena : arenas) {
      detail::read_rows(optimizer, p, arena.prefix, [&](index_t first, std::span<const float> values) {
        m.weights().set_owned_values(into.queue(), arena.memory, i, values, first);
      });
    }
  }
}

/// Reads a checkpoint except for scales: weights or adapters, and the optimizer's state if `with_optimizer`.
inline void read_checkpoint(const std::filesystem::path& directory, session& into, bool with_optimizer) {
  if (into.model().options().lora) {
    read_adapters(directory, into);
  } else {
    read_weights({directory}, into);
  }
  if (with_optimizer) read_moments(directory, into);
}

/// Restores delayed scaling; throws io::error if the checkpoint does not hold it.
inline void read_scales(const std::filesystem::path& directory, const session& into) {
  const auto file = io::safetensors_shards::open(directory, "optimizer");
  const nn::delayed_scaling_state& scales = into.model().scales();
  for (const auto& [name, memory, count] : detail::scaling_buffers(scales)) {
    std::vector<float> host(count);
    detail::read_floats(file, name, {static_cast<std::int64_t>(count)}, host);
    into.ops().upload(into.queue(), memory, host.data(), count * sizeof(float));
    into.ops().synchronize(into.queue());
  }
  // Maxima recorded while frozen weights were loaded are already in the history.
  into.ops().fill_zero(into.queue(), scales.state().amax,
                       static_cast<std::size_t>(scales.state().count) * sizeof(float));
}

}  // namespace rotoscale::train
