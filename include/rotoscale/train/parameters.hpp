// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Parameters of a model with its adapters, and their places in the arenas of parameters that train.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rotoscale/nn/parameters.hpp"
#include "rotoscale/train/architecture.hpp"
#include "rotoscale/train/lora.hpp"

namespace rotoscale::train {

using nn::initial_values;
using nn::parameter;
using nn::parameter_kind;

/// An adapter's parameters, by number.
struct adapter_parameters {
  lora_target target;    ///< its target
  index_t linear = 0;    ///< number of the linear layer
  std::size_t base = 0;  ///< weight of the linear layer
  std::size_t a = 0;     ///< A
  std::size_t b = 0;     ///< B
  double scale = 1;      ///< factor of the adapter's output: alpha / rank
};

/// All parameters of a model, then the adapters of each linear layer.
class parameter_list : public nn::parameter_list {
 public:
  /// `trains` says which parameters have gradients. Null: all, or with `lora` the adapters alone.
  explicit parameter_list(const block_list& blocks, const std::function<bool(const parameter&)>& trains = nullptr,
                          const std::optional<lora_config>& lora = {}) {
    for (const group& g : blocks.groups) {
      for (const auto& b : g.blocks) b->parameters(*this);
      group_ends_.push_back(all().size());
    }
    base_count_ = all().size();
    for (std::size_t i = 0; lora && i < base_count_; ++i) {
      if (all()[i].linear >= 0) add_adapters(i, *lora);
    }
    for (parameter& p : all()) {
      p.trains = trains ? trains(p) : !lora || p.kind != parameter_kind::base;
      if (!p.trains) continue;
      p.offset = arena_size_;
      segments_.push_back({p.offset, p.size(), !p.is_vector});
      arena_size_ += (p.size() + nn::parameter_alignment - 1) / nn::parameter_alignment * nn::parameter_alignment;
    }
  }
  /// The parameters of an architecture.
  explicit parameter_list(const architecture& shape, const std::function<bool(const parameter&)>& trains = nullptr,
                          const std::optional<lora_config>& lora = {})
      : parameter_list(shape.blocks(), trains, lora) {}

  /// Number of parameters of the model itself. Adapters follow.
  std::size_t base_count() const { return base_count_; }
  /// One past the last parameter of a group's blocks.
  std::size_t group_end(std::size_t group) const { return group_ends_[group]; }
  /// Adapters, by linear layer.
  const std::vector<adapter_parameters>& adapters() const { return adapters_; }
  /// Elements of the arenas.
  index_t arena_size() const { return arena_size_; }
  /// Places in the arenas.
  const std::vector<nn::parameter_arena::segment>& segments() const { return segments_; }

 private:
  /// An A and a B for each target of a linear layer.
  void add_adapters(std::size_t number, const lora_config& c) {
    const parameter base = all()[number];
    const std::string first = module_of(base.slices.front());
    for (const lora_target& t : c.targets_in(std::string_view(first).substr(first.rfind('.') + 1))) {
      const std::vector<parameter::slice> parts =
          t.fused ? base.slices : std::vector{base.slices[static_cast<std::size_t>(t.slice)]};
      add_adapter(number, base, parts, t, c);
    }
  }
  void add_adapter(std::size_t number, const parameter& base, const std::vector<parameter::slice>& parts,
                   const lora_target& t, const lora_config& c) {
    using kind = nn::initial_distribution::kind;
    const index_t first = parts.front().first_row, end = parts.back().first_row + parts.back().rows;
    std::vector<parameter::slice> a, b;
    for (const parameter::slice& s : parts) {
      a.push_back({adapter_name(s, 'A'), 0, c.rank});
      b.push_back({adapter_name(s, 'B'), s.first_row - first, s.rows});
    }
    const bool uniform = c.init == lora_init::kaiming_uniform;
    const nn::initial_distribution initial =
        uniform ? nn::initial_distribution{kind::uniform, 1.0 / std::sqrt(static_cast<double>(base.cols))}
                : nn::initial_distribution{kind::normal, std::sqrt(2.0 / static_cast<double>(base.cols + c.rank))};
    const std::size_t i = add(c.rank, base.cols, a, initial), j = add(end - first, c.rank, b, {});
    all()[i].kind = parameter_kind::adapter_a;
    all()[i].stream = static_cast<std::uint64_t>(base.linear) << 8 | static_cast<std::uint64_t>(t.slice);
    all()[j].kind = parameter_kind::adapter_b;
    all()[j].base_row = first;
    adapters_.push_back({t, base.linear, number, i, j, c.scale()});
  }
  /// Path of the module that has a weight.
  static std::string module_of(const parameter::slice& weight) {
    constexpr std::string_view suffix = ".weight";
    return weight.name.substr(0, weight.name.size() - suffix.size());
  }
  /// PEFT's name for a matrix of a weight's adapter.
  static std::string adapter_name(const parameter::slice& weight, char matrix) {
    return "base_model.model." + module_of(weight) + ".lora_" + matrix + ".weight";
  }

  std::size_t base_count_ = 0;
  std::vector<std::size_t> group_ends_;
  std::vector<adapter_parameters> adapters_;
  index_t arena_size_ = 0;
  std::vector<nn::parameter_arena::segment> segments_;
};

/// A sentence that names a target without a linear layer in the model, or nullopt.
inline std::optional<std::string> find_target_fault(const architecture& shape, const lora_config& c) {
  const parameter_list list(shape, nullptr, c);
  for (const std::string& name : c.targets) {
    const auto is_it = [&](const adapter_parameters& own) { return own.target.name == name; };
    if (std::none_of(list.adapters().begin(), list.adapters().end(), is_it))
      return "targets: the model has no linear layer '" + name + "'";
  }
  return std::nullopt;
}

}  // namespace rotoscale::train
