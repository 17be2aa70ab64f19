// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Checkpoints: a directory with config.json and model.safetensors as Hugging Face's LlamaForCausalLM has them, plus
// optimizer.safetensors (moments and delayed-scaling state). It appears under its name complete or not at all.
#pragma once

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/io/file.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/io/safetensors.hpp"
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

inline void add_slices(io::safetensors_writer& out, const parameter& p, const std::vector<float>& host,
                       const std::string& prefix) {
  const std::span<const float> all(host);
  for_each_slice(p, [&](const std::string& name, const std::vector<std::int64_t>& shape, index_t first, index_t count) {
    out.add(prefix + name, "F32", shape,
            std::as_bytes(all.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count))));
  });
}

/// One F32 tensor of a file, its shape checked.
inline void read_floats(const io::safetensors_file& file, const std::string& path, const std::string& name,
                        const std::vector<std::int64_t>& shape, std::span<float> to) {
  const io::tensor_info* info = file.find(name);
  if (info == nullptr) throw io::error(path, "tensor '" + name + "' is missing");
  if (info->dtype != "F32") throw io::error(path, "tensor '" + name + "': expected F32, found " + info->dtype);
  if (info->shape != shape) throw io::error(path, "tensor '" + name + "': its shape does not fit config.json");
  const auto bytes = file.bytes(*info);
  std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(to).begin());
}

inline std::vector<float> read_slices(const io::safetensors_file& file, const std::string& path, const parameter& p,
                                      const std::string& prefix) {
  std::vector<float> all(static_cast<std::size_t>(p.size()));
  for_each_slice(p, [&](const std::string& name, const std::vector<std::int64_t>& shape, index_t first, index_t count) {
    read_floats(file, path, prefix + name, shape,
                std::span<float>(all).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
  });
  return all;
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
    detail::add_slices(weights, p, m.values(from.queue(), i), "");
    if (!p.trains) continue;
    detail::add_slices(optimizer, p, m.arena_values(from.queue(), m.arena().m, i), "exp_avg.");
    detail::add_slices(optimizer, p, m.arena_values(from.queue(), m.arena().v, i), "exp_avg_sq.");
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
  const std::string weights_path = (directory / "model.safetensors").string();
  const auto weights = io::safetensors_file::open(weights_path);
  const model& m = into.model();
  for (std::size_t i = 0; i < m.parameters().all().size(); ++i) {
    into.load(i, detail::read_slices(weights, weights_path, m.parameters()[i], ""));
  }
  if (!with_optimizer) return;
  const std::string optimizer_path = (directory / "optimizer.safetensors").string();
  const auto optimizer = io::safetensors_file::open(optimizer_path);
  for (std::size_t i = 0; i < m.parameters().all().size(); ++i) {
    const parameter& p = m.parameters()[i];
    if (!p.trains) continue;
    m.set_arena_values(into.queue(), m.arena().m, i, detail::read_slices(optimizer, optimizer_path, p, "exp_avg."));
    m.set_arena_values(into.queue(), m.arena().v, i, detail::read_slices(optimizer, optimizer_path, p, "exp_avg_sq."));
  }
}

/// Restores delayed scaling; throws io::error if the checkpoint does not hold it.
inline void read_scales(const std::filesystem::path& directory, const session& into) {
  const std::string path = (directory / "optimizer.safetensors").string();
  const auto file = io::safetensors_file::open(path);
  for (const auto& [name, memory, count] : detail::scaling_buffers(into.model().scales())) {
    std::vector<float> host(count);
    detail::read_floats(file, path, name, {static_cast<std::int64_t>(count)}, host);
    into.ops().upload(into.queue(), memory, host.data(), count * sizeof(float));
    into.ops().synchronize(into.queue());
  }
}

/// `path` itself if it is a checkpoint, else the newest one of the run directory `path`.
inline std::filesystem::path find_checkpoint(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code failed;
  if (!fs::exists(path, failed)) throw io::error(path.string(), "no such checkpoint or run directory");
  if (fs::exists(path / "model.safetensors", failed)) return path;
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(path / "checkpoints", failed)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name > newest.filename().string()) newest = entry.path();
  }
  if (newest.empty()) throw io::error(path.string(), "holds neither model.safetensors nor checkpoints/step-*");
  return newest;
}

}  // namespace rotoscale::llama
