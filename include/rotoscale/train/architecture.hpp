// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Interface of a kind of model for training: its list of blocks, names of extents, and its config.json. Folder models/
// has one for each kind.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/nn/blocks/attention.hpp"
#include "rotoscale/nn/blocks/loss_head.hpp"

namespace rotoscale::train {

/// Blocks whose activations are recomputed together, and whose gradients are complete together.
struct group {
  std::vector<std::unique_ptr<nn::block>> blocks;  ///< in the order of the forward pass
  bool is_layer = false;                           ///< counts as a layer for recipes with exempt layers
};

/// A model's blocks. The last one is the loss head.
struct block_list {
  std::unique_ptr<nn::residual_stream> stream;  ///< which all blocks share
  std::vector<group> groups;                    ///< in the order of the forward pass
  nn::loss_head* head = nullptr;                ///< the last block
  nn::attention* attention = nullptr;           ///< a block of attention

  /// Number of groups that are layers.
  std::ptrdiff_t layer_count() const {
    return std::count_if(groups.begin(), groups.end(), [](const group& g) { return g.is_layer; });
  }
  /// Appends a block to the last group, and returns it.
  template <class Block>
  Block* add(std::unique_ptr<Block> b) {
    Block* const added = b.get();
    groups.back().blocks.push_back(std::move(b));
    return added;
  }
};

/// Extents of the axes of a linear layer y (tokens, out) = x (tokens, in)·wᵀ. An axis of fused projections has several.
struct linear_axes {
  std::vector<nn::named_extent> in;      ///< columns of w
  std::vector<nn::named_extent> out;     ///< rows of w
  std::vector<nn::named_extent> tokens;  ///< rows of x
};

/// A kind of model with a shape.
struct architecture {
  std::function<block_list()> blocks;     ///< makes the blocks
  index_t vocabulary = 0;                 ///< token ids are below it
  index_t positions = 0;                  ///< longest sequence
  index_t attention_width = 0;            ///< of the queries of all layers
  int layers = 0;                         ///< groups of blocks that are layers
  std::vector<linear_axes> linears;       ///< of a layer, without tokens
  linear_axes head;                       ///< of the output head, without tokens
  std::vector<nn::named_extent> extents;  ///< of all weights but the output head's, for errors
  std::vector<nn::named_extent> saved;    ///< widths of saved activations
  /// The model's config.json, with the dtype of its weights.
  std::function<nlohmann::ordered_json(const std::string& dtype)> config_json;
  /// True for a tensor of files that is no parameter, since config.json determines it.
  std::function<bool(const std::string& tensor)> is_implied;

  architecture() = default;
  /// Of a model's configuration, which has an architecture_of().
  template <class Config>
    requires requires(const Config& c) { architecture_of(c); }
  architecture(const Config& c) : architecture(architecture_of(c)) {}  // NOLINT: is one

  /// An error if activations cannot be saved so, or nullopt.
  std::optional<std::string> find_fault(nn::recompute_part recompute, nn::kept_format kept) const {
    if (kept == nn::kept_format::as_computed) return std::nullopt;
    if (recompute != nn::recompute_part::none) {
      return "recompute: " + std::string(to_string(recompute)) +
             " promises the bits of the forward pass, which stored_activations: " + std::string(to_string(kept)) +
             " does not keep; choose one of them";
    }
    for (const nn::named_extent& e : saved) {
      if (e.size % 32 == 0) continue;
      return "stored_activations: " + e.name + " " + std::to_string(e.size) +
             " is not a multiple of 32, which MXFP8 blocks need";
    }
    return std::nullopt;
  }
};

}  // namespace rotoscale::train
