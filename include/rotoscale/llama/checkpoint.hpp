// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Checkpoints: a directory with config.json and model.safetensors as Hugging Face's LlamaForCausalLM has them, plus
// optimizer.safetensors (moments and delayed-scaling state). With adapters it holds these, as PEFT's
// adapter_config.json and adapter_model.safetensors, and not the base. It appears under its name complete or not at
// all. Models of others are read as well: in shards, in BF16 and FP16. In memory is one parameter at a time beyond the
// session's own.
#pragma once

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/io/safetensors_shards.hpp"
#include "rotoscale/llama/adapter_config.hpp"
#include "rotoscale/llama/config_json.hpp"
#include "rotoscale/llama/session.hpp"

namespace rotoscale::llama {

namespace detail {

/// Calls f(slice name, shape, first element, count) for every slice of every parameter.
template <class Function>
void for_each_slice(const parameter& p, const Function& f) {
  for (const parameter::slice& s : p.slices) {
    std::vector<std::int64_t> shape{s.rows, p.cols};
    if (p.is_vector) shape = {p.cols};
    f(s.name, shape, s.first_row * p.cols, s.rows * p.cols);
  }
}

/// FP32 numbers as the bytes of a dtype: "F32", or "BF16" to nearest even.
inline void give_floats(std::span<const float> values, const std::string& type, const io::byte_sink& sink) {
  if (type == "F32") return sink(std::as_bytes(values));
  std::vector<bf16> narrow(values.begin(), values.end());
  sink(std::as_bytes(std::span<const bf16>(narrow)));
}

/// Adds a parameter's slices, its values fetched when they are written: at most one parameter's are held.
template <class Fetch>
void add_slices(io::safetensors_writer& out, const parameter& p, const std::string& prefix, const Fetch& fetch,
                const std::string& type = "F32") {
  const auto held = std::make_shared<std::vector<float>>();
  for_each_slice(p, [&](const std::string& name, const std::vector<std::int64_t>& shape, index_t first, index_t count) {
    const bool is_last = name == p.slices.back().name;
    out.add_streamed(prefix + name, type, shape, [=](const io::byte_sink& sink) {
      if (held->empty()) *held = fetch();
      give_floats(
          std::span<const float>(*held).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)), type,
          sink);
      if (is_last) *held = {};
    });
  });
}

/// "16 x 8".
inline std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "" : " x ") + std::to_string(extent);
  return text;
}

/// Where a tensor of these numbers is; throws io::error if it is missing or of another shape or dtype.
inline io::located_tensor check_tensor(const io::safetensors_shards& model, const std::string& name,
                                       const std::vector<std::int64_t>& shape) {
  const io::located_tensor found = model.find(name);
  if (found.info == nullptr) throw io::error(model.name(), "tensor '" + name + "' is missing");
  const std::string& file = found.file->name();
  if (found.info->dtype != "F32" && found.info->dtype != "BF16" && found.info->dtype != "F16") {
    throw io::error(file, "tensor '" + name + "': expected F32, BF16 or F16, found " + found.info->dtype);
  }
  if (found.info->shape == shape) return found;
  throw io::error(file, "tensor '" + name + "': its shape " + shape_text(found.info->shape) + " is not the model's " +
                            shape_text(shape));
}
inline void read_floats(const io::safetensors_shards& model, const std::string& name,
                        const std::vector<std::int64_t>& shape, std::span<float> to) {
  const io::located_tensor found = check_tensor(model, name, shape);
  found.file->read_floats(*found.info, 0, to);
}

inline std::vector<float> read_slices(const io::safetensors_shards& model, const parameter& p,
                                      const std::string& prefix) {
  std::vector<float> all(static_cast<std::size_t>(p.size()));
  index_t read = 0;
  for_each_slice(p, [&](const std::string& name, const std::vector<std::int64_t>& shape, index_t first, index_t count) {
    const auto to = std::span<float>(all).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    if (first >= read) {
      read_floats(model, prefix + name, shape, to);
      read = first + count;
      return;
    }
    // The A of a fused adapter stands in the file once for each part.
    std::vector<float> again(to.size());
    read_floats(model, prefix + name, shape, again);
    if (std::memcmp(again.data(), to.data(), to.size_bytes()) == 0) return;
    throw io::error(model.name(), "tensor '" + prefix + name + "': is not that of '" + p.name() +
                                      "', as a fused adapter's has to be");
  });
  return all;
}

/// Refuses tensors that the model has not, which would be another model; but for those that follow from config.json:
/// RoPE's frequencies in old files, and a head beside the embedding that it is tied to.
inline void refuse_others(const io::safetensors_shards& found, std::span<const parameter> parameters,
                          const model_config& config) {
  std::unordered_set<std::string> known;
  for (const parameter& p : parameters) {
    for (const parameter::slice& s : p.slices) known.insert(s.name);
  }
  for (const io::safetensors_file& file : found.files()) {
    for (const io::tensor_info& info : file.tensors()) {
      const bool follows =
          info.name.ends_with(".rotary_emb.inv_freq") || (config.tie_word_embeddings && info.name == "lm_head.weight");
      if (known.contains(info.name) || follows) continue;
      throw io::error(file.name(),
                      "tensor '" + io::printable(info.name) + "': no such parameter in the model of config.json");
    }
  }
}

/// Of names and values of parameters, whatever the values were stored as: FNV-1a of 64 bits.
class parameter_digest {
 public:
  /// The next parameter.
  void add(const parameter& p, std::span<const float> values) {
    for (const char c : p.name()) add(static_cast<unsigned char>(c));
    for (const float x : values) add(fp32_bits(x));
  }
  /// Of all so far.
  std::uint64_t value() const { return value_; }

 private:
  void add(std::uint64_t number) { value_ = (value_ ^ number) * 1099511628211u; }
  std::uint64_t value_ = 14695981039346656037u;
};

/// What goes on with the same bits (amax is recorded anew).
struct scaling_memory {
  const char* name;
  float* memory;
  std::size_t count;
};
inline std::vector<scaling_memory> scaling_buffers(const nn::delayed_scaling_state& s) {
  const auto count = static_cast<std::size_t>(s.state().count);
  return {{"fp8.scale", s.state().scale, count},
          {"fp8.scale_inverse", s.state().scale_inverse, count},
          {"fp8.amax_history", s.state().history, s.history_size()}};
}

}  // namespace detail

/// Writes a checkpoint directory: weights, or with adapters these; the moments of those that train; scales. `state`
/// goes to trainer_state.json as it is; `add_files` puts into the directory what else it holds. `base` says in
/// adapter_config.json what the adapters stand beside.
inline void write_checkpoint(const std::filesystem::path& directory, const session& from,
                             const nlohmann::ordered_json& state, const std::string& base = "",
                             const std::function<void(const std::filesystem::path&)>& add_files = nullptr) {
  io::atomic_directory out(directory);
  io::safetensors_writer weights, optimizer;
  const model& m = from.model();
  const std::optional<lora_config>& lora = m.options().lora;
  for (std::size_t i = lora ? m.parameters().base_count() : 0; i < m.parameters().all().size(); ++i) {
    const parameter& p = m.parameters()[i];
    detail::add_slices(weights, p, "", [&from, i] { return from.model().values(from.queue(), i); });
    if (!p.trains) continue;
    const auto moments = [&from, i](const float* arena) { return from.model().arena_values(from.queue(), arena, i); };
    detail::add_slices(optimizer, p, "exp_avg.", [=, &m] { return moments(m.arena().m); });
    detail::add_slices(optimizer, p, "exp_avg_sq.", [=, &m] { return moments(m.arena().v); });
  }
  for (const auto& [name, memory, count] : detail::scaling_buffers(m.scales())) {
    std::vector<float> host(count);
    from.ops().download(from.queue(), host.data(), memory, count * sizeof(float));
    from.ops().synchronize(from.queue());
    optimizer.add(name, "F32", {static_cast<std::int64_t>(count)}, std::as_bytes(std::span<const float>(host)));
  }
  weights.metadata["format"] = "pt";  // transformers refuses files without it
  weights.write(out.path() / (lora ? "adapter_model.safetensors" : "model.safetensors"));
  optimizer.write(out.path() / "optimizer.safetensors");
  if (lora) {
    io::write_json(out.path() / "adapter_config.json", adapter_config_json(*lora, base));
  } else {
    io::write_json(out.path() / "config.json", model_config_json(m.config()));
  }
  io::write_json(out.path() / "trainer_state.json", state);
  if (add_files) add_files(out.path());
  out.commit();
}

/// `path` itself if it is a checkpoint, else the newest one of the run directory `path`.
inline std::filesystem::path find_checkpoint(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code failed;
  if (!fs::exists(path, failed)) throw io::error(path.string(), "no such checkpoint or run directory");
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors"}) {
    if (fs::exists(path / name, failed)) return path;
  }
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(path / "checkpoints", failed)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name > newest.filename().string()) newest = entry.path();
  }
  if (newest.empty()) {
    throw io::error(path.string(),
                    "holds neither model.safetensors nor adapter_model.safetensors nor checkpoints/step-*");
  }
  return newest;
}

/// Where a model's tensors and its config.json are: a checkpoint or run directory as find_checkpoint takes it, or one
/// .safetensors file.
struct weights_place {
  std::filesystem::path directory;  ///< of tensors and config.json
  std::string stem = "model";       ///< of the tensors' file or files

  /// The shape that the tensors belong to.
  std::filesystem::path config() const { return directory / "config.json"; }
};
/// Throws io::error where there is no model.
inline weights_place find_weights(const std::filesystem::path& path) {
  std::error_code failed;
  if (path.extension() == ".safetensors" && std::filesystem::is_regular_file(path, failed)) {
    return {path.parent_path(), path.stem().string()};
  }
  const std::filesystem::path directory = find_checkpoint(path);
  if (is_adapter(directory)) throw io::error(directory.string(), "holds adapters, no model");
  return {directory};
}

/// Reads the model's own weights, not those of adapters; returns a digest of names and values, whatever they were
/// stored as. Scales and the session's inputs must be those that frozen weights are to be quantized with.
inline std::uint64_t read_weights(const weights_place& from, session& into) {
  const auto weights = io::safetensors_shards::open(from.directory, from.stem);
  const model& m = into.model();
  const std::size_t count = m.parameters().base_count();
  detail::parameter_digest digest;
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<float> values = detail::read_slices(weights, m.parameters()[i], "");
    digest.add(m.parameters()[i], values);
    into.load(i, values);
  }
  detail::refuse_others(weights, std::span(m.parameters().all()).first(count), m.config());
  return digest.value();
}

/// Reads the adapters of a session that has some, from a checkpoint or from PEFT's files; returns their digest.
inline std::uint64_t read_adapters(const std::filesystem::path& directory, session& into) {
  const auto tensors = io::safetensors_shards::open(directory, "adapter_model");
  const parameter_list& list = into.model().parameters();
  detail::parameter_digest digest;
  for (std::size_t i = list.base_count(); i < list.all().size(); ++i) {
    const std::vector<float> values = detail::read_slices(tensors, list[i], "");
    digest.add(list[i], values);
    into.load(i, values);
  }
  detail::refuse_others(tensors, std::span(list.all()).subspan(list.base_count()), into.model().config());
  return digest.value();
}

/// Reads the optimizer's moments of all that trains.
inline void read_moments(const std::filesystem::path& directory, session& into) {
  const auto optimizer = io::safetensors_shards::open(directory, "optimizer");
  const model& m = into.model();
  for (std::size_t i = 0; i < m.parameters().all().size(); ++i) {
    const parameter& p = m.parameters()[i];
    if (!p.trains) continue;
    m.set_arena_values(into.queue(), m.arena().m, i, detail::read_slices(optimizer, p, "exp_avg."));
    m.set_arena_values(into.queue(), m.arena().v, i, detail::read_slices(optimizer, p, "exp_avg_sq."));
  }
}

/// Reads what write_checkpoint wrote, but for scales: weights or adapters, and the optimizer's state if
/// `with_optimizer`.
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
  // What was recorded while frozen weights were loaded is in the history already.
  into.ops().fill_zero(into.queue(), scales.state().amax,
                       static_cast<std::size_t>(scales.state().count) * sizeof(float));
}

}  // namespace rotoscale::llama
