// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The tensors of one model in one safetensors file, or in several files with an index, as Hugging Face writes them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rotoscale/io/error.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/io/safetensors.hpp"

namespace rotoscale::io {

/// A tensor and the file that holds it.
struct located_tensor {
  const safetensors_file* file = nullptr;  ///< its file
  const tensor_info* info = nullptr;       ///< its entry in the file's header
};

/// A model's tensors in one file, or in several with an index.
class safetensors_shards {
 public:
  /// Opens the files of directory/stem.safetensors.index.json, or directory/stem.safetensors without an index. Throws
  /// io::error if neither exists, if the index and the files contradict each other, or if directory/stem.safetensors
  /// exists and the index names other files.
  static safetensors_shards open(const std::filesystem::path& directory, const std::string& stem = "model") {
    safetensors_shards model;
    const std::filesystem::path single = directory / (stem + ".safetensors");
    const std::filesystem::path index = directory / (stem + ".safetensors.index.json");
    std::error_code failed;
    if (!std::filesystem::exists(index, failed)) return of(safetensors_file::open(single));
    model.name_ = index.string();
    model.open_listed(directory, std::filesystem::exists(single, failed) ? single : "");
    model.collect();
    return model;
  }

  /// The tensors of one open file.
  static safetensors_shards of(safetensors_file file) {
    safetensors_shards model;
    model.name_ = file.name();
    model.files_.push_back(std::move(file));
    model.collect();
    return model;
  }

  /// All files, in the order of the index. Tensors of each: files()[i].tensors().
  const std::vector<safetensors_file>& files() const { return files_; }

  /// The tensor of that name, or {nullptr, nullptr}. Valid as long as this object.
  located_tensor find(std::string_view name) const {
    const auto found = index_.find(std::string(name));
    if (found == index_.end()) return {};
    return {&files_[found->second.first], &files_[found->second.first].tensors()[found->second.second]};
  }

  /// Number of tensors.
  std::size_t size() const { return index_.size(); }
  /// Path of the file or the index, for messages.
  const std::string& name() const { return name_; }

 private:
  /// `single`: the file that the index must name where it exists, for readers that take it without the index.
  void open_listed(const std::filesystem::path& directory, const std::filesystem::path& single) {
    const auto index = read_json(name_);
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
      throw error(name_, "weight_map is missing or not an object");
    }
    std::unordered_map<std::string, std::size_t> opened;
    std::unordered_set<std::string> listed;
    for (const auto& [tensor, file] : index["weight_map"].items()) {
      const std::string where = "weight_map: tensor '" + printable(tensor) + "'";
      if (!file.is_string()) throw error(name_, where + ": its file is not a string");
      const std::string shard = file.get<std::string>();
      // Only a plain file name: an untrusted index must not open files outside its directory.
      if (shard.empty() || shard == "." || shard == ".." || shard.find('/') != shard.npos) {
        throw error(name_, where + ": '" + printable(shard) + "' is not the name of a file in its directory");
      }
      if (!single.empty() && shard != single.filename()) {
        throw error(single.string(),
                    "exists as well as " + name_ + ", which names " + printable(shard) + "; remove one");
      }
      const auto [at, is_new] = opened.emplace(shard, files_.size());
      if (is_new) files_.push_back(safetensors_file::open(directory / shard));
      if (files_[at->second].find(tensor) == nullptr) {
        throw error(name_, where + ": is not in " + files_[at->second].name());
      }
      listed.insert(tensor);
    }
    for (const safetensors_file& file : files_) {
      for (const tensor_info& info : file.tensors()) {
        if (listed.contains(info.name)) continue;
        throw error(file.name(), "tensor '" + printable(info.name) + "': is not listed in " + name_);
      }
    }
  }

  void collect() {
    for (std::size_t f = 0; f < files_.size(); ++f) {
      for (std::size_t i = 0; i < files_[f].tensors().size(); ++i) {
        const std::string& tensor = files_[f].tensors()[i].name;
        if (index_.emplace(tensor, std::pair(f, i)).second) continue;
        throw error(name_, "tensor '" + printable(tensor) + "' is in two files, the second is " + files_[f].name());
      }
    }
  }

  std::string name_;
  std::vector<safetensors_file> files_;
  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>> index_;
};

}  // namespace rotoscale::io
