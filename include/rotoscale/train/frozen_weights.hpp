// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operands of frozen weights for later recipes. They are made when the weights are loaded, and kept in pinned host
// memory until a switch, since a frozen weight keeps no FP32 values. AMD's healing has such a stash: the E4M3 cast of
// the base.
#pragma once

#include <cstring>

#include "rotoscale/train/weights.hpp"

namespace rotoscale::train {

/// Memory of weight operands at a switch of recipe, in bytes of backend memory.
struct switch_memory {
  std::size_t before = 0;    ///< under the old recipe
  std::size_t between = 0;   ///< after the old operands are released
  std::size_t after = 0;     ///< under the new recipe
  std::size_t peak = 0;      ///< most at once during the switch
  std::size_t streamed = 0;  ///< uploaded from the stash
};

/// Operands that a session keeps for a later recipe. Operands that stay in place are not among them.
class frozen_weights {
 public:
  /// `recipes` in the order of use; `places`: the model's layout under each. Weights are loaded under the first recipe,
  /// so its operands are kept only if a later phase uses it again.
  void plan(const std::vector<nn::recipe>& recipes, const std::vector<std::vector<weight_location>>& places) {
    for (std::size_t k = 1; k < recipes.size(); ++k) {
      if (find(recipes[k]) != nullptr) continue;
      kept_recipe kept{recipes[k], {}};
      for (std::size_t i = 0; i < places[k].size(); ++i) {
        const weight_location& w = places[k][i];
        if (w.trains || stays(places, i)) continue;
        const bool loses_source =
            std::any_of(places.begin(), places.end(), [&](const auto& p) { return !p[i].has_source; });
        if (!loses_source) continue;
        kept.entries.push_back({i, w.number, w.layer, w.request, w.fp8, w.own, w.has_source ? source_bytes(w) : 0});
        staging_bytes_ = std::max(staging_bytes_, w.bytes);
      }
      if (!kept.entries.empty()) kept_.push_back(std::move(kept));
    }
  }

  /// True if there is nothing to keep.
  bool empty() const { return kept_.empty(); }

  /// Takes pinned memory for all entries, and backend memory in which one entry is made.
  void lay_out(nn::memory_cursor& memory) {
    for (kept_recipe& k : kept_) {
      for (entry& e : k.entries) {
        e.pinned = static_cast<std::byte*>(memory.take(nn::memory_category::stash, e.own.bytes + e.source_bytes));
        e.scales = memory.array<float>(nn::memory_category::stash, 2);
      }
    }
    if (empty()) return;
    staging_ = memory.take(nn::memory_category::weights, staging_bytes_);
    const auto number = [&] { return memory.array<float>(nn::memory_category::weights, 1); };
    scaling_ = {1, 1, number(), number(), number(), number(), nullptr};
    largest_ = number();
    scaling_.largest = largest_;
  }

  /// Makes the operands of parameter `number` from `source`, its values in backend memory. Waits for the queue.
  void keep(const nn::pass& p, std::size_t number, nn::const_tensor_view source) {
    for (kept_recipe& k : kept_) {
      for (entry& e : k.entries) {
        if (e.number == number) keep(p, e, source);
      }
    }
  }

  /// Uploads the operands of recipe `r` on queue `q`. Returns their bytes. The weights are laid out for `r`.
  std::size_t stream(nn::backend& ops, nn::queue q, const nn::recipe& r, weights& into) const {
    const kept_recipe* const k = find(r);
    std::size_t bytes = 0;
    if (k == nullptr) return bytes;
    for (const entry& e : k->entries) {
      if (!e.filled) continue;
      const weight_location& w = into.locations()[e.linear];
      ROTOSCALE_ASSERT(w.request == e.request && w.own.first == e.own.first && w.own.bytes == e.own.bytes);
      if (e.own.bytes != 0) ops.upload(q, w.own.at, e.pinned, e.own.bytes);
      if (e.source_bytes != 0) {
        ops.upload(q, const_cast<void*>(into.loaded(e.number).data), e.pinned + e.own.bytes, e.source_bytes);
      }
      if (e.request.has_delayed()) {
        const nn::scaling_state scale = into.scales.entry(e.layer, nn::tensor_role::w);
        nn::forget_maxima(ops, q, scale);
        ops.upload(q, scale.scale, e.scales, sizeof(float));
        ops.upload(q, scale.scale_inverse, e.scales + 1, sizeof(float));
      }
      into.note_written(e.linear);
      bytes += e.own.bytes + e.source_bytes;
    }
    return bytes;
  }

 private:
  struct entry {
    std::size_t linear, number;
    index_t layer;
    nn::operand_request request;
    nn::delayed_scaling fp8;
    stored_part own;  ///< of the operands
    std::size_t source_bytes;
    std::byte* pinned = nullptr;
    float* scales = nullptr;  ///< scale and inverse
    bool filled = false;
  };
  struct kept_recipe {
    nn::recipe recipe;
    std::vector<entry> entries;
  };

  static std::size_t source_bytes(const weight_location& w) {
    return static_cast<std::size_t>(w.request.rows * w.request.cols) * sizeof(float);
  }
  /// True if linear layer i has the same operands in the same place under all recipes. FP8 scales make them differ.
  static bool stays(const std::vector<std::vector<weight_location>>& places, std::size_t i) {
    const weight_location& first = places.front()[i];
    return std::all_of(places.begin(), places.end(),
                       [&](const auto& p) { return p[i].is_as(first) && !p[i].request.has_delayed(); });
  }
  const kept_recipe* find(const nn::recipe& r) const {
    for (const kept_recipe& k : kept_) {
      if (k.recipe == r) return &k;
    }
    return nullptr;
  }

  void keep(const nn::pass& p, entry& e, nn::const_tensor_view source) {
    const auto set = p.ops->make_operands(e.request, staging_, source);
    if (e.request.has_delayed()) {
      const bool row = e.request.row && nn::is_delayed(*e.request.row);
      const format f = nn::element_format(row ? e.request.row->format : e.request.column->format);
      const float largest = decode(f, f.max_code());
      p.ops->upload(p.queue, largest_, &largest, sizeof largest);
      nn::quantize_frozen(p, *set, source, scaling_, e.fp8);
      p.ops->download(p.queue, e.scales, scaling_.scale, sizeof(float));
      p.ops->download(p.queue, e.scales + 1, scaling_.scale_inverse, sizeof(float));
    } else {
      p.ops->quantize(p.queue, {source, p.state}, {{set.get(), true, e.request.column.has_value(), {}}});
    }
    const std::byte* const made = static_cast<const std::byte*>(staging_) + e.own.first;
    if (e.own.bytes != 0) p.ops->download(p.queue, e.pinned, made, e.own.bytes);
    if (e.source_bytes != 0) p.ops->download(p.queue, e.pinned + e.own.bytes, source.data, e.source_bytes);
    p.ops->synchronize(p.queue);
    e.filled = true;
  }

  std::vector<kept_recipe> kept_;
  std::size_t staging_bytes_ = 0;
  void* staging_ = nullptr;
  nn::scaling_state scaling_;  ///< of one tensor
  float* largest_ = nullptr;
};

}  // namespace rotoscale::train
