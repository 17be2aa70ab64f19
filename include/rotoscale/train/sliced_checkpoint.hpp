// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A checkpoint that all ranks write together, each its shard, equal to one rank's by bytes. Rank 0 makes the files and
// renames the directory when all have written.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>

#include "rotoscale/nn/communicator.hpp"
#include "rotoscale/train/checkpoint.hpp"

namespace rotoscale::train {

namespace detail {

/// A file of tensors of which each rank writes parts.
class sliced_file {
 public:
  using fetch_function = std::function<std::vector<float>(nn::arena_range)>;  ///< FP32 elements of a parameter

  sliced_file(const std::filesystem::path& path, const io::safetensors_writer& layout)
      : places_(layout.places(path)), file_(path) {}
  /// Writes elements `own` of a parameter into the tensors of its slices, some MiB at a time.
  void write(const parameter& p, const std::string& prefix, nn::arena_range own, const fetch_function& fetch) {
    constexpr index_t most = index_t{1} << 20;
    for_each_slice(p, [&](const std::string& name, const std::vector<std::int64_t>&, index_t first, index_t count) {
      const nn::arena_range part = intersection(own, {first, count});
      for (index_t at = 0; at < part.count; at += most) {
        const nn::arena_range now{part.first + at, std::min(most, part.count - at)};
        write_slice(p, first, count, places_.at(prefix + name), now, fetch(now));
      }
    });
  }
  /// Writes a tensor that no rank shares.
  void write(const std::string& name, std::span<const float> values) {
    file_.write_at(places_.at(name), std::as_bytes(values));
  }
  void finish() { file_.finish(); }

 private:
  /// Writes values of elements `at` of a parameter, within the slice of elements [first, first + count).
  void write_slice(const parameter& p, index_t first, index_t count, std::uint64_t place, nn::arena_range at,
                   std::span<const float> values) {
    const auto put = [&](index_t element, std::span<const float> x) {
      file_.write_at(place + static_cast<std::uint64_t>(element) * sizeof(float), std::as_bytes(x));
    };
    if (!first_with_rows_of(p, first / p.cols).transposed) return put(at.first - first, values);
    // The tensor is (cols, rows): each column of the parameter is a run.
    const index_t rows = count / p.cols, begin = at.first - first, end = begin + at.count;
    std::vector<float> run;
    for (index_t c = 0; c < p.cols; ++c) {
      const index_t top = (std::max<index_t>(0, begin - c) + p.cols - 1) / p.cols;
      run.clear();
      for (index_t r = top; r * p.cols + c < end; ++r)
        run.push_back(values[static_cast<std::size_t>(r * p.cols + c - begin)]);
      if (!run.empty()) put(c * rows + top, run);
    }
  }

  std::unordered_map<std::string, std::uint64_t> places_;
  io::file_parts file_;
};

/// Writes this rank's part of all tensors into the files of `directory`.
inline void write_shard(const std::filesystem::path& directory, const session& live, const tensor_files& files,
                        const checkpoint_tensors& all, bool leads) {
  const model& m = live.model();
  sliced_file weights(directory / weights_name(m), files.weights),
      optimizer(directory / optimizer_name, files.optimizer);
  for (std::size_t i = tensor_files::first_stored(m); i < m.parameters().all().size(); ++i) {
    const parameter& p = m.parameters()[i];
    const nn::arena_range own = m.weights().owned(i, {0, p.size()});
    if (!p.trains && !leads) continue;
    weights.write(p, "", p.trains ? own : nn::arena_range{0, p.size()},
                  [&](nn::arena_range part) { return m.weights().elements(live.queue(), i, part); });
    if (!p.trains) continue;
    for (const auto& arena : optimizer_arenas_of(m)) {
      optimizer.write(p, arena.prefix, own, [&](nn::arena_range part) {
        return m.weights().owned_values(live.queue(), arena.memory, i, part);
      });
    }
  }
  if (leads) all.for_each_scale([&](const char* name, const std::vector<float>& x) { optimizer.write(name, x); });
  weights.finish();
  optimizer.finish();
}

}  // namespace detail

/// Writes the checkpoint of write_checkpoint from all ranks, which call this together. `state`, `base` and `add_files`
/// are rank 0's. Throws io::error on the rank that cannot write; nothing is left then.
inline void write_sliced_checkpoint(const std::filesystem::path& directory, const session& live,
                                    nn::communicator& ranks, const nlohmann::ordered_json& state,
                                    const std::string& base = "",
                                    const std::function<void(const std::filesystem::path&)>& add_files = nullptr) {
  const checkpoint_tensors all(live);
  const detail::tensor_files files(all);
  const bool leads = ranks.rank() == 0;
  std::optional<io::atomic_directory> out;
  std::string place;
  if (leads) {
    out.emplace(directory);
    place = out->path().string();
    files.weights.reserve(out->path() / detail::weights_name(live.model()));
    files.optimizer.reserve(out->path() / detail::optimizer_name);
  }
  const std::vector<char> told = nn::gather_values<char>(ranks, std::span<const char>(place)).front();
  detail::write_shard(std::string(told.begin(), told.end()), live, files, all, leads);
  ranks.barrier();
  if (!leads) return;
  detail::write_descriptions(out->path(), live.model(), state, base);
  if (add_files) add_files(out->path());
  out->commit();
}

}  // namespace rotoscale::train
