// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Checkpoints: a directory with config.json and model.safetensors as Hugging Face's LlamaForCausalLM has them, plus
// optimizer.safetensors (moments and delayed-scaling state). It appears under its name complete or not at all. Models
// of others are read as well: in shards, in BF16 and FP16. In memory is one parameter at a time beyond the session's
// own.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rotoscale/io/file.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/io/safetensors_shards.hpp"
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

/// Adds a parameter's slices, its values fetched when they are written: at most one parameter's are held.
template <class Fetch>
void add_slices(io::safetensors_writer& out, const parameter& p, const std::string& prefix, const Fetch& fetch) {
  const auto held = std::make_shared<std::vector<float>>();
  for_each_slice(p, [&](const std::string& name, const std::vector<std::int64_t>& shape, index_t first, index_t count) {
    const bool is_last = first + count == p.size();
    out.add_streamed(prefix + name, "F32", shape, [=](const io::byte_sink& sink) {
      if (held->empty()) *held = fetch();
      sink(std::as_bytes(
          std::span<const float>(*held).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count))));
      if (is_last) *held = {};
    });
  });
}

/// One tensor as FP32, its shape checked.
inline void read_floats(const io::safetensors_shards& model, const std::string& name,
                        const std::vector<std::int64_t>& shape, std::span<float> to) {
  const io::located_tensor found = model.find(name);
  if (found.info == nullptr) throw io::error(model.name(), "tensor '" + name + "' is missing");
  const std::string& file = found.file->name();
  if (found.info->dtype != "F32" && found.info->dtype != "BF16" && found.info->dtype != "F16") {
    throw io::error(file, "tensor '" + name + "': expected F32, BF16 or F16, found " + found.info->dtype);
  }
  if (found.info->shape != shape) throw io::error(file, "tensor '" + name + "': its shape does not fit config.json");
  found.file->read_floats(*found.info, 0, to);
}

inline std::vector<float> read_slices(const io::safetensors_shards& model, const parameter& p,
                                      const std::string& prefix) {
  std::vector<float> all(static_cast<std::size_t>(p.size()));
  for_each_slice(p, [&](const std::string& name, const std::vector<std::int64_t>& shape, index_t first, index_t count) {
    read_floats(model, prefix + name, shape,
                std::span<float>(all).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
  });
  return all;
}

/// Refuses tensors that the model has not, which would be another model; but for those that follow from config.json:
/// RoPE's frequencies in old files, and a head beside the embedding that it is tied to.
inline void refuse_others(const io::safetensors_shards& found, const parameter_list& parameters,
                          const model_config& config) {
  std::unordered_set<std::string> known;
  for (const parameter& p : parameters.all()) {
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

/// Writes a checkpoint directory: weights, the moments of those that train, scales. `state` goes to trainer_state.json
/// as it is.
inline void write_checkpoint(const std::filesystem::path& directory, const session& from,
                             const nlohmann::ordered_json& state) {
  io::atomic_directory out(directory);
  io::safetensors_writer weights, optimizer;
  const model& m = from.model();
  for (std::size_t i = 0; i < m.parameters().all().size(); ++i) {
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
  weights.write(out.path() / "model.safetensors");
  optimizer.write(out.path() / "optimizer.safetensors");
  io::write_json(out.path() / "config.json", model_config_json(m.config()));
  io::write_json(out.path() / "trainer_state.json", state);
  out.commit();
}

/// Reads weights, and the optimizer's state if `with_optimizer`.
inline void read_checkpoint(const std::filesystem::path& directory, session& into, bool with_optimizer) {
  const auto weights = io::safetensors_shards::open(directory);
  const model& m = into.model();
  for (std::size_t i = 0; i < m.parameters().all().size(); ++i) {
    into.load(i, detail::read_slices(weights, m.parameters()[i], ""));
  }
  detail::refuse_others(weights, m.parameters(), m.config());
  if (!with_optimizer) return;
  const auto optimizer = io::safetensors_shards::open(directory, "optimizer");
  for (std::size_t i = 0; i < m.parameters().all().size(); ++i) {
    const parameter& p = m.parameters()[i];
    if (!p.trains) continue;
    m.set_arena_values(into.queue(), m.arena().m, i, detail::read_slices(optimizer, p, "exp_avg."));
    m.set_arena_values(into.queue(), m.arena().v, i, detail::read_slices(optimizer, p, "exp_avg_sq."));
  }
}

/// Restores delayed scaling; throws io::error if the checkpoint does not hold it.
inline void read_scales(const std::filesystem::path& directory, const session& into) {
  const auto file = io::safetensors_shards::open(directory, "optimizer");
  for (const auto& [name, memory, count] : detail::scaling_buffers(into.model().scales())) {
    std::vector<float> host(count);
    detail::read_floats(file, name, {static_cast<std::int64_t>(count)}, host);
    into.ops().upload(into.queue(), memory, host.data(), count * sizeof(float));
    into.ops().synchronize(into.queue());
  }
}

/// `path` itself if it is a checkpoint, else the newest one of the run directory `path`.
inline std::filesystem::path find_checkpoint(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code failed;
  if (!fs::exists(path, failed)) throw io::error(path.string(), "no such checkpoint or run directory");
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (fs::exists(path / name, failed)) return path;
  }
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(path / "checkpoints", failed)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name > newest.filename().string()) newest = entry.path();
  }
  if (newest.empty()) throw io::error(path.string(), "holds neither model.safetensors nor checkpoints/step-*");
  return newest;
}

}  // namespace rotoscale::llama
