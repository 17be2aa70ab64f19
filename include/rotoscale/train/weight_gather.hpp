// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Weights whose FP32 masters are divided among ranks, by whole rows. Each rank quantizes its rows, and ranks gather the
// operands. FP32 values are gathered instead if an operand depends on the whole tensor, or if a pass reads FP32.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "rotoscale/nn/schedule.hpp"
#include "rotoscale/train/gradient_sums.hpp"
#include "rotoscale/train/weights.hpp"

namespace rotoscale::train {

/// Rows of a weight that a recipe quantizes together, over all of its linear layers.
inline index_t rows_quantized_together(const nn::recipe& r) {
  index_t most = 1;
  const auto add = [&](const nn::linear_recipe& l) {
    using form = nn::operand_form;
    const index_t run = nn::run_length_of(recipe_for(l, nn::tensor_role::w, form::column));
    const index_t rows = nn::run_rows_of(recipe_for(l, nn::tensor_role::w, form::row));
    most = std::max({most, run, rows, index_t{nn::run_rows_of(recipe_for(l, nn::tensor_role::w, form::column))}});
  };
  add(r);
  add(nn::head_of(r));
  return most;
}

/// The place closest to `element` of the arenas where a matrix may be cut: between `rows` of its rows, and between
/// chunks of the norm.
inline index_t nearest_cut(const parameter_list& list, index_t element, index_t rows) {
  constexpr index_t chunk = nn::parameter_alignment;
  for (const parameter& p : list.all()) {
    const index_t end = p.offset + (p.size() + chunk - 1) / chunk * chunk;
    if (!p.trains || element < p.offset || element >= end) continue;
    if (p.is_vector) return element;
    const index_t unit = std::lcm(rows * p.cols, chunk), cut = (element - p.offset + unit / 2) / unit * unit;
    return cut >= p.size() ? end : p.offset + cut;
  }
  return element;
}

namespace detail {

/// Copies the operands of rows [first, ...) of a tensor into the operands of all rows.
inline void place_rows(nn::backend& ops, nn::queue q, const nn::operand_set& part, const nn::operand_set& whole,
                       index_t first) {
  const auto bytes = [](const std::uint8_t* at) { return reinterpret_cast<std::byte*>(const_cast<std::uint8_t*>(at)); };
  const auto copy = [&](const std::uint8_t* to, index_t to_stride, const std::uint8_t* from, index_t from_stride,
                        index_t width, index_t rows) {
    ops.copy_rows(q,
                  {bytes(to), static_cast<std::size_t>(to_stride), bytes(from), static_cast<std::size_t>(from_stride),
                   static_cast<std::size_t>(width), static_cast<std::size_t>(rows)});
  };
  const index_t rows = part.request().rows;
  const std::uint8_t* copied = nullptr;
  for (const nn::operand_form f : {nn::operand_form::row, nn::operand_form::column}) {
    if (!part.request().recipe(f)) continue;
    const gemm_operand &from = ops.described({&part, f}), &to = ops.described({&whole, f});
    const bool keeps_rows = f == nn::operand_form::row || to.transposed;  // codes of a row are contiguous
    if (std::exchange(copied, to.codes) != to.codes) {
      if (keeps_rows) {
        copy(to.codes + first * to.code_stride, to.code_stride, from.codes, from.code_stride, from.code_stride, rows);
      } else {
        copy(to.codes + packed_bytes(to.element, first), to.code_stride, from.codes, from.code_stride,
             packed_bytes(from.element, rows), from.rows);
      }
    }
    if (to.factor != nullptr) {
      const auto* const factor = reinterpret_cast<const std::uint8_t*>(from.factor);
      copy(reinterpret_cast<const std::uint8_t*>(to.factor), 0, factor, 0, sizeof(float), 1);
    }
    if (to.block == 0) continue;
    if (f == nn::operand_form::row) {
      copy(to.scales + first / to.block_rows * to.scale_stride, to.scale_stride, from.scales, from.scale_stride,
           from.scale_stride, rows / to.block_rows);
    } else {
      copy(to.scales + first / to.block, to.scale_stride, from.scales, from.scale_stride, rows / to.block,
           from.rows / to.block_rows);
    }
  }
}

}  // namespace detail

/// Do ranks gather the operands of a parameter with divided masters? Else its FP32 values. After operands were laid
/// out.
inline bool gathers_operands(const weights& w, std::size_t number) {
  bool has_linear = false;
  for (const nn::linear* l : w.linears()) {
    if (l->w.number != number) continue;
    has_linear = true;
    if (!can_quantize_rows(l->request(nn::tensor_role::w))) return false;
  }
  return has_linear && !w.has_copy(number);
}

/// Bytes of all trained parameters that ranks gather after an update.
inline std::size_t bytes_gathered(const weights& w) {
  if (!w.divides_masters()) return static_cast<std::size_t>(w.list().arena_size()) * sizeof(float);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < w.list().all().size(); ++i) {
    if (w.list()[i].trains && !gathers_operands(w, i))
      bytes += static_cast<std::size_t>(w.list()[i].size()) * sizeof(float);
  }
  for (const weight_location& l : w.locations()) {
    if (l.trains && gathers_operands(w, l.number)) bytes += l.bytes;
  }
  return bytes;
}

/// Gathers a group of parameters at a time. All ranks call the same functions.
class weight_gather {
 public:
  /// `sums` knows the parts of weights with divided masters. Both must outlive this object.
  weight_gather(nn::backend& ops, class weights& w, const gradient_sums& sums, nn::communicator* ranks)
      : ops_(&ops), weights_(&w), sums_(&sums), ranks_(ranks) {}

  /// Takes memory for the messages of one group, after weights and operands were laid out. `groups`: ranges of the
  /// arenas by group. `r`: the recipe of the layout.
  void lay_out(nn::memory_cursor& memory, const std::vector<std::vector<arena_range>>& groups, const nn::recipe& r) {
    reduces_amax_ = r.fp8.reduce_amax;
    groups_.clear();
    std::size_t most = 0;
    for (const auto& ranges : groups) {
      group& g = groups_.emplace_back();
      for (std::size_t i = 0; i < list().all().size(); ++i) {
        for (const arena_range& range : ranges) {
          if (list()[i].trains && intersection(range, {list()[i].offset, 1}).count > 0) add(g, i, range);
        }
      }
      begin_messages(g);
      most = std::max(most, g.begin.back());
    }
    auto* const messages = static_cast<std::byte*>(memory.take(nn::memory_category::workspace, most));
    for (group& g : groups_) bind(g, messages);
  }

  /// Gathers group `number` on the pass's queue, in the pass's state.
  void gather(const nn::pass& p, std::size_t number) const {
    const group& g = groups_[number];
    for (const item& x : g.items) {
      if (!x.is_direct) pack(p, x);
    }
    sums_->gather_parts(p.queue, message(g, rank()), [&](int s) { return message(g, s); });
    for (const item& x : g.items) x.is_direct ? gather_values(p, x) : unpack(p, x);
  }
  /// Gathers each group with an outdated operand; `all`: every group.
  void gather_changed(const nn::pass& p, bool all) const {
    for (std::size_t n = 0; n < groups_.size(); ++n) {
      const auto& items = groups_[n].items;
      const auto is_prepared = [&](const item& x) { return weights_->is_prepared(x.number); };
      if (all || !std::all_of(items.begin(), items.end(), is_prepared)) gather(p, n);
    }
  }

 private:
  /// Operands of a rank's rows.
  struct part {
    arena_range elements;                                    ///< of the parameter
    std::size_t at = 0;                                      ///< offset in the rank's message
    std::byte* memory = nullptr;                             ///< address of this place
    std::vector<std::unique_ptr<nn::operand_set>> operands;  ///< by linear layer of the item; empty: FP32 values
  };
  /// A parameter. A direct one has a separate transfer of FP32 values, and every rank quantizes it.
  struct item {
    std::size_t number = 0;
    bool is_direct = false;
    std::vector<nn::linear*> linears;
    std::vector<part> parts;  ///< by rank
  };
  struct group {
    std::vector<item> items;
    std::vector<std::size_t> begin;  ///< of each rank's message, and the end
    std::byte* messages = nullptr;
  };

  const parameter_list& list() const { return weights_->list(); }
  int rank() const { return sums_->rank(); }
  static std::size_t bytes_of(const part& p) { return static_cast<std::size_t>(p.elements.count) * sizeof(float); }
  static std::span<std::byte> bytes_of(float* at, const part& p) {
    return {reinterpret_cast<std::byte*>(at), bytes_of(p)};
  }
  std::span<std::byte> message(const group& g, int s) const {
    const auto i = static_cast<std::size_t>(s);
    return {g.messages + g.begin[i], g.begin[i + 1] - g.begin[i]};
  }
  float* values(std::size_t number) const {
    return static_cast<float*>(const_cast<void*>(weights_->loaded(number).data));
  }
  static nn::operand_request rows_of(const nn::linear& l, arena_range elements) {
    nn::operand_request r = l.request(nn::tensor_role::w);
    r.rows = elements.count / r.cols;
    return r;
  }

  void add(group& g, std::size_t number, arena_range range) {
    item& x = g.items.emplace_back();
    const parameter& p = list()[number];
    x.number = number;
    for (nn::linear* l : weights_->linears()) {
      if (l->w.number == number) x.linears.push_back(l);
    }
    x.is_direct = !p.is_vector && !gathers_operands(*weights_, number);
    for (int s = 0; s < sums_->size(); ++s) {
      arena_range own = intersection(sums_->part_of(range, s), {p.offset, p.size()});
      own.first -= p.offset;
      x.parts.push_back({own, 0, nullptr, {}});
    }
  }
  /// Places the parts of each rank in its message.
  void begin_messages(group& g) const {
    g.begin.assign(1, 0);
    for (std::size_t s = 0; s < static_cast<std::size_t>(sums_->size()); ++s) {
      std::size_t bytes = 0;
      const auto take = [&](std::size_t n) { return std::exchange(bytes, bytes + nn::memory_cursor::aligned(n)); };
      for (item& x : g.items) {
        part& own = x.parts[s];
        if (x.is_direct || own.elements.count == 0) continue;
        if (x.linears.empty()) own.at = take(bytes_of(own));
        for (std::size_t k = 0; k < x.linears.size(); ++k) {
          const std::size_t at = take(ops_->layout_operands(rows_of(*x.linears[k], own.elements)).bytes);
          if (k == 0) own.at = at;
        }
      }
      g.begin.push_back(g.begin.back() + bytes);
    }
  }
  /// Makes operand sets over the messages; null while counting.
  void bind(group& g, std::byte* messages) {
    g.messages = messages;
    if (messages == nullptr) return;
    for (item& x : g.items) {
      for (std::size_t s = 0; s < x.parts.size(); ++s) {
        part& own = x.parts[s];
        if (x.is_direct || own.elements.count == 0) continue;
        own.memory = messages + g.begin[s] + own.at;
        std::byte* at = own.memory;
        for (const nn::linear* l : x.linears) {
          const nn::operand_request r = rows_of(*l, own.elements);
          ROTOSCALE_ASSERT(own.elements.first % r.cols == 0 && own.elements.count % r.cols == 0);
          own.operands.push_back(ops_->make_operands(r, at, {}));
          at += nn::memory_cursor::aligned(ops_->layout_operands(r).bytes);
        }
      }
    }
  }

  /// This rank's part of a message.
  void pack(const nn::pass& p, const item& x) const {
    const part& own = x.parts[static_cast<std::size_t>(rank())];
    if (own.elements.count > 0 && x.linears.empty()) {
      ops_->copy(p.queue, own.memory, weights_->master(x.number, own.elements.first), bytes_of(own));
    }
    for (std::size_t k = 0; k < x.linears.size(); ++k) {
      if (own.elements.count > 0) {
        const index_t cols = list()[x.number].cols;
        x.linears[k]->quantize_weights(p,
                                       nn::dense_tensor(weights_->master(x.number, own.elements.first), nn::dtype::fp32,
                                                        {own.elements.count / cols, cols}),
                                       *own.operands[k]);
      }
      float* const amax = x.linears[k]->scaling(p, nn::tensor_role::w, true).amax;
      if (amax != nullptr && !reduces_amax_) ranks_->max(p.queue, nn::dense_tensor(amax, nn::dtype::fp32, {1}));
    }
  }
  void unpack(const nn::pass& p, const item& x) const {
    const index_t cols = list()[x.number].cols;
    for (const part& own : x.parts) {
      if (own.elements.count == 0) continue;
      if (x.linears.empty()) {
        ops_->copy(p.queue, values(x.number) + own.elements.first, own.memory, bytes_of(own));
      }
      for (std::size_t k = 0; k < x.linears.size(); ++k) {
        detail::place_rows(*ops_, p.queue, *own.operands[k], *x.linears[k]->weights(), own.elements.first / cols);
      }
    }
  }
  void gather_values(const nn::pass& p, const item& x) const {
    float* const all = values(x.number);
    const part& own = x.parts[static_cast<std::size_t>(rank())];
    std::span<std::byte> sent;
    if (own.elements.count > 0) sent = bytes_of(weights_->master(x.number, own.elements.first), own);
    sums_->gather_parts(p.queue, sent, [&](int s) {
      const part& of_rank = x.parts[static_cast<std::size_t>(s)];
      return bytes_of(all + of_rank.elements.first, of_rank);
    });
    for (const nn::linear* l : x.linears) l->quantize_weights(p, weights_->loaded(x.number));
  }

  nn::backend* ops_;
  class weights* weights_;
  const gradient_sums* sums_;
  nn::communicator* ranks_;
  bool reduces_amax_ = false;
  std::vector<group> groups_;
};

}  // namespace rotoscale::train
