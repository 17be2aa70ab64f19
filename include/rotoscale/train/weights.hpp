// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Memory of a model's parameters: arenas of trained ones, FP32 values of others, and their GEMM operands.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "rotoscale/train/divided_operands.hpp"
#include "rotoscale/train/parameters.hpp"

namespace rotoscale::train {

/// Place of the operands of a linear layer's weight under a recipe.
struct weight_location {
  std::size_t number = 0;       ///< of the parameter
  index_t layer = 0;            ///< of the linear layer
  bool trains = true;           ///< its operands are made again after each update
  bool has_source = false;      ///< its FP32 values are kept
  std::size_t bytes = 0;        ///< of the operands
  stored_part own;              ///< part that this rank stores: all, unless they are divided
  nn::operand_request request;  ///< the operands
  nn::delayed_scaling fp8;      ///< rule of their FP8 scales
  bool is_divided = false;      ///< ranks store parts
  std::size_t group = 0;        ///< of blocks, where they are divided
  std::size_t place = 0;        ///< in the group

  /// The same operands in the same memory.
  bool is_as(const weight_location& other) const { return request == other.request && own == other.own; }
};

/// Arenas of which a rank keeps only its own parts.
enum class shard_level {
  moments,   ///< AdamW's moments, and averages
  masters,   ///< also FP32 weights: passes read operands, which ranks gather
  gradients  ///< also gradients, which each microbatch adds to the shards a group of layers at a time
};
ROTOSCALE_ENUM_NAMES(shard_level, moments, masters, gradients)

/// True if the operands of some rows of a weight equal these rows of its operands. False with random words or a scale
/// of the whole tensor.
inline bool can_quantize_rows(const nn::operand_request& r) {
  const auto can = [](const std::optional<nn::operand_recipe>& o) {
    if (!o) return true;
    return !draws_words(*o) && !keeps_values(*o) && !is_current(*o) && o->format != nn::operand_format::nvfp4;
  };
  return can(r.row) && can(r.column);
}

/// Places of the gradients of groups while they are computed. By default the arena.
class gradient_places {
 public:
  /// A range of the arenas, and the start of its gradients.
  struct place {
    nn::arena_range range;  ///< of parameters, in elements
    index_t at = 0;         ///< of the range's gradients, in elements of the gradients' memory
  };

  /// One range in order.
  explicit gradient_places(index_t elements) : groups_{{{{0, elements}, 0}}}, size_(elements) {}
  /// Groups alternate between two places, except for `kept` groups, which have separate ones.
  gradient_places(const std::vector<std::vector<nn::arena_range>>& groups, const std::vector<bool>& kept) {
    const auto size_of = [&](std::size_t g) {
      index_t n = 0;
      for (const nn::arena_range& r : groups[g]) n += r.count;
      return n;
    };
    index_t most[2] = {0, 0};
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!kept[g]) most[g % 2] = std::max(most[g % 2], size_of(g));
    }
    size_ = most[0] + most[1];
    for (std::size_t g = 0; g < groups.size(); ++g) {
      index_t at = kept[g] ? std::exchange(size_, size_ + size_of(g)) : g % 2 == 0 ? 0 : most[0];
      auto& own = groups_.emplace_back();
      for (const nn::arena_range& r : groups[g]) own.push_back({r, std::exchange(at, at + r.count)});
    }
  }

  /// Elements of all places.
  index_t size() const { return size_; }
  /// Ranges of a group.
  const std::vector<place>& group(std::size_t g) const { return groups_[g]; }
  /// Place of an element of the arenas.
  index_t of(index_t element) const {
    for (const auto& g : groups_) {
      for (const place& p : g) {
        if (intersection(p.range, {element, 1}).count > 0) return p.at + element - p.range.first;
      }
    }
    return 0;
  }

 private:
  std::vector<std::vector<place>> groups_;
  index_t size_ = 0;
};

/// Parameters in backend memory.
class weights {
 public:
  using category = nn::memory_category;          ///< shorthand
  using linear_list = std::vector<nn::linear*>;  ///< layers of the model, the head, matrices of adapters

  /// Weights without memory. `training`: a backward pass follows. `averages`: those that train have a moving average.
  weights(nn::backend& ops, parameter_list list, bool training, bool averages)
      : ops_(&ops), list_(std::move(list)), training_(training), averages_(averages), places_(list_.arena_size()) {
    set_shards({{0, list_.arena_size()}});
  }

  /// Names and shapes.
  const parameter_list& list() const { return list_; }
  /// Trained parameters. Without moments and average if other ranks update parts.
  nn::parameter_arena arena() const {
    if (is_sharded()) {
      float* const all = divides_masters_ ? nullptr : masters_;
      return {
          all,      divides_gradients() ? nullptr : gradients_, nullptr, nullptr, list_.arena_size(), list_.segments(),
          segments_};
    }
    const nn::oscillation_state& o = oscillation_;
    return {masters_,         gradients_,       m_,       v_,     list_.arena_size(),
            list_.segments(), segments_,        average_, o.last, o.last_quantized,
            o.moved,          o.moved_quantized};
  }
  /// The parts that this rank updates, as arenas.
  std::vector<nn::parameter_arena> shards() const {
    std::vector<nn::parameter_arena> all;
    for (const shard& s : shards_) {
      const index_t at = s.range.first;
      float* const average = average_ == nullptr ? nullptr : average_ + s.at;
      nn::parameter_arena& own = all.emplace_back(arena());  // with the state of de-oscillation, which has no parts
      own.weight = masters_ + (divides_masters_ ? s.at : at);
      own.gradient = divides_gradients() ? own_gradients_ + s.at : gradients_ + at;
      own.m = m_ + s.at;
      own.v = v_ + s.at;
      own.size = s.range.count;
      own.segments = s.segments;
      own.segments_in_backend = s.in_backend;
      own.average = average;
    }
    return all;
  }
  /// Sets whether the arenas have the state of de-oscillation. Call it before the first layout.
  void track_oscillation(bool tracks) { tracks_oscillation_ = tracks; }
  /// True if the arenas have that state.
  bool tracks_oscillation() const { return tracks_oscillation_; }
  /// True if other ranks update parts of the weights.
  bool is_sharded() const { return shards_.size() != 1 || owned_ != list_.arena_size(); }
  /// First elements of shards() in the arenas.
  std::vector<index_t> shard_begins() const {
    std::vector<index_t> all;
    for (const shard& s : shards_) all.push_back(s.range.first);
    return all;
  }
  /// Gradients of this rank's parts, one after the other; null: they are in the arena.
  float* own_gradients() const { return own_gradients_; }
  /// Elements of all parts.
  index_t owned_count() const { return owned_; }
  /// Does this rank keep only the sums of its own parts?
  bool divides_gradients() const { return divides_gradients_; }
  /// Sets, before the first layout, the places of gradients until they are added to the parts' sums.
  void set_gradient_places(gradient_places places) {
    places_ = std::move(places);
    divides_gradients_ = true;
  }
  /// Where gradients lie.
  const gradient_places& places() const { return places_; }
  /// A place in backend memory.
  float* gradient_at(index_t place) const { return gradients_ + place; }
  /// Clears the gradients of a group.
  void clear_group(nn::queue q, std::size_t g) const {
    for (const gradient_places::place& p : places_.group(g)) fill_gradients(q, p.at, p.range.count);
  }
  /// Does this rank store FP32 weights only for its own parts, with copies of those that passes read?
  bool divides_masters() const { return divides_masters_; }
  /// Sets the parts that this rank updates, before the first layout. By default all.
  void set_shards(const std::vector<nn::arena_range>& parts, shard_level level = shard_level::moments) {
    divides_masters_ = level != shard_level::moments;
    shards_.clear();
    owned_ = 0;
    for (const nn::arena_range& r : parts) {
      if (r.count == 0) continue;
      shard& now = shards_.emplace_back(shard{r, owned_, {}, nullptr});
      owned_ += r.count;
      for (const nn::parameter_arena::segment& s : list_.segments()) {
        const nn::arena_range own = intersection(r, {s.first, s.count});
        if (own.count > 0) now.segments.push_back({own.first - r.first, own.count, s.decays});
      }
    }
  }
  /// A parameter's memory.
  nn::weight of(std::size_t number) const {
    const parameter& p = list_[number];
    nn::weight w{number, sources_[number], {}};
    if (p.trains && gradients_ != nullptr) {
      w.gradient = nn::dense_tensor(gradients_ + places_.of(p.offset), nn::dtype::fp32, {p.rows, p.cols});
    }
    return w;
  }
  /// Places of the operands, by linear layer.
  const std::vector<weight_location>& locations() const { return locations_; }

  /// Lays out FP32 values. Values that every recipe keeps come first, so that they stay in place if the recipe changes.
  /// A frozen matrix keeps none, unless an operand is these values or other users than a linear layer read it.
  void lay_out(nn::memory_cursor& memory, const linear_list& linears) {
    const index_t n = list_.arena_size();
    masters_ = memory.array<float>(category::masters, divides_masters_ ? owned_ : n);
    gradients_ = memory.array<float>(category::gradients, places_.size());
    if (divides_gradients_) own_gradients_ = memory.array<float>(category::gradients, owned_);
    m_ = memory.array<float>(category::moments, owned_);
    v_ = memory.array<float>(category::moments, owned_);
    if (averages_) average_ = memory.array<float>(category::moments, owned_);
    for (float** const x :
         {&oscillation_.last, &oscillation_.last_quantized, &oscillation_.moved, &oscillation_.moved_quantized}) {
      if (tracks_oscillation_) *x = memory.array<float>(category::moments, n);
    }
    const auto segments = [&](std::size_t count) {
      return memory.array<nn::parameter_arena::segment>(category::weights, static_cast<index_t>(count));
    };
    segments_ = segments(list_.segments().size());
    for (shard& s : shards_) s.in_backend = is_sharded() ? segments(s.segments.size()) : segments_;
    std::vector<bool> is_matrix(list_.all().size(), false);
    keeps_source_.assign(list_.all().size(), true);
    index_t largest = 0;
    for (const nn::linear* l : linears) {
      const parameter& p = list_[l->w.number];
      const bool is_table = p.linear < 0 && p.kind == parameter_kind::base && l->w.number < list_.group_end(0);
      is_matrix[l->w.number] = !is_table;
      if (p.trains || is_table || l->keeps_source(*ops_, nn::tensor_role::w)) continue;
      keeps_source_[l->w.number] = false;
      largest = std::max(largest, p.size());
    }
    copies_.assign(list_.all().size(), divides_masters_);
    for (const nn::linear* l : linears) {
      const parameter& p = list_[l->w.number];
      if (!p.trains || !divides_masters_ || !is_matrix[l->w.number] || reads_values(*l)) continue;
      copies_[l->w.number] = false;
      if (!can_quantize_rows(l->request(nn::tensor_role::w))) largest = std::max(largest, p.size());
    }
    sources_.assign(is_matrix.size(), {});
    for (const bool matrices : {false, true}) {
      for (std::size_t i = 0; i < is_matrix.size(); ++i) {
        const parameter& p = list_[i];
        if (is_matrix[i] != matrices) continue;
        float* at = nullptr;
        if (p.trains && !divides_masters_) {
          at = memory.counts_only() ? nullptr : masters_ + p.offset;
        } else if (p.trains ? copies_[i] : keeps_source_[i]) {
          at = memory.array<float>(category::weights, p.size());
        }
        sources_[i] = dense(at, p);
      }
    }
    staging_ = memory.array<float>(category::weights, largest);
  }
  /// Lays out operands. `keep`: the recipe is unchanged, so they stay valid. Operands without FP32 values stay valid if
  /// they are equal and in the same place. The head's come first, because almost all recipes have the same.
  void lay_out_operands(nn::memory_cursor& memory, const linear_list& linears, std::size_t head, bool keep,
                        const nn::delayed_scaling& fp8) {
    linears_ = linears;
    std::vector<weight_location> before = std::exchange(locations_, std::vector<weight_location>(linears.size()));
    before.resize(linears.size());
    prepared_.resize(linears.size());
    divided_.clear();
    for (std::size_t i = 0; i < linears.size(); ++i) describe(i, fp8);
    const auto place = [&](std::size_t i) {
      weight_location& w = locations_[i];
      w.is_divided ? bind_divided(i) : bind(i, memory);
      const bool stays = !w.has_source && !memory.counts_only() && w.is_as(before[i]);
      if (!keep && !stays) prepared_[i] = {};
    };
    place(head);
    if (divided_.is_divided()) divided_.lay_out(memory);
    for (std::size_t i = 0; i < linears.size(); ++i) {
      if (i != head) place(i);
    }
  }
  /// Memory of gradients that are written after the head's: before the head's gradient, or after it if that comes
  /// first. Nullopt if it is smaller than `bytes`.
  std::optional<nn::memory_cursor> lend(const nn::memory_cursor& memory, std::size_t bytes, std::size_t head) {
    const parameter& p = list_[head];
    const bool after = p.trains && p.offset == 0;
    const index_t a = nn::parameter_alignment, first = after ? (p.size() + a - 1) / a * a : 0;
    const index_t end = p.trains && !after ? p.offset : list_.arena_size();
    if (static_cast<std::size_t>(std::max<index_t>(0, end - first)) * sizeof(float) < bytes) return std::nullopt;
    lent_first_ = first;
    lent_count_ = static_cast<index_t>(bytes / sizeof(float));
    if (memory.counts_only()) return nn::memory_cursor();
    nn::arena_bases bases{};
    bases[static_cast<std::size_t>(category::workspace)] = reinterpret_cast<std::byte*>(gradients_ + first);
    return nn::memory_cursor(bases);
  }
  /// Ends the loan.
  void lend_nothing() { lent_first_ = lent_count_ = 0; }
  /// Clears gradients before a step's first pass, except lent ones.
  void clear_gradients(nn::queue q) const {
    const index_t after = lent_first_ + lent_count_;
    fill_gradients(q, 0, lent_first_);
    fill_gradients(q, after, places_.size() - after);
  }
  /// Clears the gradients that were lent, after the head's pass.
  void clear_lent(nn::queue q) const { fill_gradients(q, lent_first_, lent_count_); }

  /// Uploads the places in the arenas.
  void upload(nn::queue q) const {
    const auto& segments = list_.segments();
    ops_->upload(q, segments_, segments.data(), segments.size() * sizeof segments[0]);
    for (const shard& s : shards_) {
      if (is_sharded()) ops_->upload(q, s.in_backend, s.segments.data(), s.segments.size() * sizeof segments[0]);
    }
  }
  /// Linear layers of the last layout.
  const linear_list& linears() const { return linears_; }
  /// Is there a copy of all FP32 values of a parameter whose masters are divided? Else only of its operands.
  bool has_copy(std::size_t number) const { return copies_[number]; }
  /// Are all operands of a parameter made of its present values?
  bool is_prepared(std::size_t number) const {
    for (std::size_t i = 0; i < linears_.size(); ++i) {
      if (linears_[i]->w.number != number) continue;
      if (!prepared_[i].valid || prepared_[i].version != list_[number].version) return false;
    }
    return true;
  }
  /// FP32 values of a parameter in backend memory: kept, or loaded last.
  nn::const_tensor_view loaded(std::size_t number) const {
    return sources_[number].empty() ? dense(staging_, list_[number]) : sources_[number];
  }
  /// Frees the operands of all weights, until the next layout.
  void release() {
    for (nn::linear* l : linears_) l->release_weights();
    divided_.release();
  }
  /// Operands that ranks store in parts.
  divided_operands& divided() { return divided_; }
  /// The same.
  const divided_operands& divided() const { return divided_; }
  /// Marks the operands of linear layer i as current: they are a copy.
  void note_written(std::size_t i) { prepared_[i] = {list_[locations_[i].number].version, true}; }
  /// Quantizes weights that have FP32 values again before the next pass.
  void invalidate() {
    for (std::size_t i = 0; i < locations_.size(); ++i) prepared_[i].valid &= !locations_[i].has_source;
  }
  /// After an update of all parameters that train.
  void note_update() {
    for (parameter& p : list_.all()) p.version += p.trains;
  }
  /// Quantizes every weight that changed since its last quantization, except divided masters. `frozen_only`:
  /// quantize_ranges does the others.
  void requantize(const nn::pass& p, bool frozen_only = false) {
    for (std::size_t i = 0; i < linears_.size(); ++i) {
      const parameter& w = list_[linears_[i]->w.number];
      if (w.trains && (frozen_only || divides_masters_)) continue;
      if (prepared_[i].valid && prepared_[i].version == w.version) continue;
      if (linears_[i]->w.values.empty()) {
        throw std::logic_error(w.name() + ": must be loaded again, only its operands of another recipe were kept");
      }
      quantize(p, i, linears_[i]->w.values);
      prepared_[i] = {w.version, true};
    }
  }
  /// Quantizes the trained weights that begin in these ranges of the arenas. note_quantized() follows for all.
  void quantize_ranges(const nn::pass& p, std::span<const nn::arena_range> ranges) const {
    for (std::size_t i = 0; i < linears_.size(); ++i) {
      const parameter& w = list_[linears_[i]->w.number];
      for (const nn::arena_range& r : ranges) {
        if (w.trains && intersection(r, {w.offset, 1}).count > 0) quantize(p, i, linears_[i]->w.values);
      }
    }
  }
  /// Every weight that trains was quantized.
  void note_quantized() {
    for (std::size_t i = 0; i < linears_.size(); ++i) {
      const parameter& w = list_[linears_[i]->w.number];
      if (w.trains) prepared_[i] = {w.version, true};
    }
  }
  /// De-oscillates weights with blocks after `step` updates, from the start of the rule's first window on. Without a
  /// rule it forgets what it has seen. Overwrites gradients.
  void deoscillate(const nn::pass& p, std::uint64_t step, const std::optional<nn::deoscillation_recipe>& rule) {
    if (std::exchange(has_oscillation_, rule.has_value()) && !rule) forget_oscillation(p.queue);
    if (!tracks_oscillation_ || !rule) return;
    const auto steps = static_cast<std::int64_t>(step) - rule->start;
    if (steps < 0) return;
    requantize(p);
    const bool closes = steps > 0 && steps % rule->period == 0;
    const nn::oscillation_state& s = oscillation_;
    for (const nn::linear* l : linears_) {
      const parameter& w = list_[l->w.number];
      if (!w.trains || !nn::has_blocks(l->current().fprop.right.format)) continue;
      const nn::tensor_view quantized = nn::dense_tensor(gradients_ + w.offset, nn::dtype::bf16, {w.rows, w.cols});
      ops_->dequantize(p.queue, {{l->weights(), nn::operand_form::row}}, {quantized});
      ops_->deoscillate(
          p.queue, {quantized, {static_cast<float>(rule->ratio), closes}},
          {masters_ + w.offset,
           {s.last + w.offset, s.last_quantized + w.offset, s.moved + w.offset, s.moved_quantized + w.offset}});
    }
    if (closes) note_update();
  }
  /// Swaps the trained values with their moving average. Gradients are free between steps.
  void exchange_average(nn::queue q) {
    for (const nn::parameter_arena& own : shards()) {
      const std::size_t bytes = static_cast<std::size_t>(own.size) * sizeof(float);
      ops_->copy(q, own.gradient, own.weight, bytes);
      ops_->copy(q, own.weight, own.average, bytes);
      ops_->copy(q, own.average, own.gradient, bytes);
    }
    note_update();
  }
  /// Clears gradients, moments, averages and the state of de-oscillation.
  void clear(nn::queue q) const {
    fill(q, gradients_, places_.size());
    for (float* const all : {m_, v_, average_}) fill(q, all, owned_);
    forget_oscillation(q);
  }
  /// Sets values from element `first` on. They take effect with the last element: a weight without FP32 values is then
  /// quantized. Waits.
  void load(const nn::pass& p, std::size_t number, index_t first, std::span<const float> values) {
    parameter& into = list_[number];
    const index_t end = first + static_cast<index_t>(values.size());
    ROTOSCALE_ASSERT(first >= 0 && end <= into.size());
    if (into.trains && divides_masters_) return load_owned(p, number, first, values);
    float* const at = static_cast<float*>(const_cast<void*>(loaded(number).data));
    ops_->upload(p.queue, at + first, values.data(), values.size_bytes());
    if (end == into.size()) take_loaded(p, number);
    ops_->synchronize(p.queue);
  }
  /// Sets all values of a parameter, in backend memory.
  void draw(const nn::pass& p, std::size_t number, const nn::normal_draw& how) {
    const nn::const_tensor_view x = loaded(number);
    ops_->draw_normal(p.queue, {how}, {nn::dense_tensor(const_cast<void*>(x.data), x.type, {x.size()})});
    take_loaded(p, number);
  }
  /// FP32 values of rows [first_row, first_row + rows). Throws std::logic_error if they are not kept.
  std::vector<float> values(nn::queue q, std::size_t number, index_t first_row, index_t rows) const {
    if (sources_[number].empty()) {
      throw std::logic_error(list_[number].name() + ": only its quantized operands are kept");
    }
    return elements(q, number, {first_row * list_[number].cols, rows * list_[number].cols});
  }
  /// FP32 values of some elements, which are kept.
  std::vector<float> elements(nn::queue q, std::size_t number, nn::arena_range r) const {
    if (list_[number].trains && divides_masters_) return owned_values(q, &nn::parameter_arena::weight, number, r);
    return download(q, static_cast<const float*>(sources_[number].data) + r.first, r.count);
  }
  /// The same of a gradient or moment, from that arena.
  std::vector<float> arena_values(nn::queue q, const float* from, std::size_t number, index_t first_row,
                                  index_t rows) const {
    const parameter& p = list_[number];
    return download(q, from + p.offset + first_row * p.cols, rows * p.cols);
  }
  /// FP32 master of an element that this rank updates.
  float* master(std::size_t number, index_t element) const {
    return owned_place(&nn::parameter_arena::weight, list_[number].offset + element);
  }
  /// Elements among `r` of a parameter that this rank updates.
  nn::arena_range owned(std::size_t number, nn::arena_range r) const {
    const index_t at = list_[number].offset;
    for (const shard& s : shards_) {
      const nn::arena_range own = intersection(s.range, {at + r.first, r.count});
      if (own.count > 0) return {own.first - at, own.count};
    }
    return {};
  }
  /// Optimizer's state of elements that this rank updates, from that arena of shards().
  std::vector<float> owned_values(nn::queue q, float* nn::parameter_arena::*arena, std::size_t number,
                                  nn::arena_range owned) const {
    return download(q, owned_place(arena, list_[number].offset + owned.first), owned.count);
  }
  /// Sets it from the parameter's values from element `first` on, some of which other ranks may update. Waits.
  void set_owned_values(nn::queue q, float* nn::parameter_arena::*arena, std::size_t number,
                        std::span<const float> values, index_t first) const {
    const nn::arena_range own = owned(number, {first, static_cast<index_t>(values.size())});
    if (own.count == 0) return;
    float* const to = owned_place(arena, list_[number].offset + own.first);
    ops_->upload(q, to, values.data() + (own.first - first), static_cast<std::size_t>(own.count) * sizeof(float));
    ops_->synchronize(q);
  }
  /// Scales that weights are quantized with.
  nn::delayed_scaling_state scales;

 private:
  /// The values of a parameter are complete. Operands of a weight without FP32 values are made now.
  void take_loaded(const nn::pass& p, std::size_t number) {
    const std::uint64_t version = ++list_[number].version;
    if (!sources_[number].empty()) return;
    for (std::size_t i = 0; i < linears_.size(); ++i) {
      if (linears_[i]->w.number != number) continue;
      quantize(p, i, loaded(number));
      prepared_[i] = {version, true};
    }
  }
  static nn::const_tensor_view dense(const float* data, const parameter& p) {
    return nn::dense_tensor(const_cast<float*>(data), nn::dtype::fp32, {p.rows, p.cols});
  }
  /// Place of an element of the arenas that this rank updates.
  float* owned_place(float* nn::parameter_arena::*arena, index_t element) const {
    const std::vector<nn::parameter_arena> all = shards();
    std::size_t i = 0;
    while (intersection(shards_[i].range, {element, 1}).count == 0) ++i;
    return all[i].*arena + (element - shards_[i].range.first);
  }
  std::vector<float> download(nn::queue q, const float* from, index_t count) const {
    std::vector<float> host(static_cast<std::size_t>(count));
    ops_->download(q, host.data(), from, host.size() * sizeof(float));
    ops_->synchronize(q);
    return host;
  }
  /// Do passes read its FP32 values?
  bool reads_values(const nn::linear& l) const {
    const bool is_scaled = l.current().fprop.right.estimator != nn::gradient_estimator::straight_through;
    return is_scaled || l.keeps_source(*ops_, nn::tensor_role::w);
  }
  /// load() of a parameter whose masters are divided.
  void load_owned(const nn::pass& p, std::size_t number, index_t first, std::span<const float> values) {
    set_owned_values(p.queue, &nn::parameter_arena::weight, number, values, first);
    parameter& into = list_[number];
    if (first + static_cast<index_t>(values.size()) == into.size()) ++into.version;
  }
  void fill(nn::queue q, float* first, index_t count) const {
    if (first != nullptr && count > 0) ops_->fill_zero(q, first, static_cast<std::size_t>(count) * sizeof(float));
  }
  void fill_gradients(nn::queue q, index_t first, index_t count) const { fill(q, gradients_ + first, count); }
  void forget_oscillation(nn::queue q) const {
    const nn::oscillation_state& s = oscillation_;
    for (float* const all : {s.last, s.last_quantized, s.moved, s.moved_quantized}) fill(q, all, list_.arena_size());
  }
  /// A frozen weight is quantized once, so its FP8 scale is not delayed. Without a backward pass, scales are the
  /// training run's.
  void quantize(const nn::pass& p, std::size_t i, nn::const_tensor_view source) const {
    const nn::linear& l = *linears_[i];
    const weight_location& w = locations_[i];
    if (training_ && !w.trains && w.request.has_delayed()) {
      nn::quantize_frozen(p, *l.weights(), source, scales.entry(w.layer, nn::tensor_role::w), w.fp8);
    } else {
      l.quantize_weights(p, source);
    }
    if (w.is_divided) divided_.store(p.queue, w.group, w.place, w.bytes);
  }
  /// Fills the location of linear layer i, except for its memory.
  void describe(std::size_t i, const nn::delayed_scaling& fp8) {
    const nn::linear& l = *linears_[i];
    const parameter& p = list_[l.w.number];
    weight_location& w = locations_[i];
    w.number = l.w.number;
    w.layer = l.shape().layer;
    w.trains = l.shape().trains;
    w.has_source = keeps_source_[w.number];
    w.request = l.request(nn::tensor_role::w);
    w.bytes = ops_->layout_operands(w.request).bytes;
    w.fp8 = fp8;
    w.is_divided = divided_.is_divided() && !w.trains && p.kind == parameter_kind::base && p.linear >= 0;
    if (!w.is_divided) return;
    while (w.number >= list_.group_end(w.group)) ++w.group;
    w.place = divided_.add(w.group, w.bytes);
  }
  void bind(std::size_t i, nn::memory_cursor& memory) {
    weight_location& w = locations_[i];
    const category own = list_[w.number].kind == parameter_kind::base ? category::quantized : category::adapters;
    w.own = {0, w.bytes, memory.mark(own), nullptr};
    w.own.at =
        static_cast<std::byte*>(linears_[i]->lay_out(*ops_, memory, own, nn::tensor_role::w, sources_[w.number]));
  }
  void bind_divided(std::size_t i) {
    weight_location& w = locations_[i];
    nn::memory_cursor buffer = divided_.buffer(w.group, w.place);
    (void)linears_[i]->lay_out(*ops_, buffer, category::quantized, nn::tensor_role::w, sources_[w.number]);
    w.own = divided_.part(w.group, w.place, w.bytes);
  }

  /// A part that this rank updates.
  struct shard {
    nn::arena_range range;
    index_t at = 0;                                      ///< in the arenas of moments
    std::vector<nn::parameter_arena::segment> segments;  ///< places in it
    nn::parameter_arena::segment* in_backend = nullptr;
  };
  struct prepared {
    std::uint64_t version = 0;
    bool valid = false;
  };
  nn::backend* ops_;
  parameter_list list_;
  bool training_, averages_;
  bool divides_masters_ = false, divides_gradients_ = false;
  gradient_places places_;
  linear_list linears_;
  nn::parameter_arena::segment* segments_ = nullptr;
  std::vector<shard> shards_;
  index_t owned_ = 0;  ///< elements of all shards
  float *masters_ = nullptr, *gradients_ = nullptr, *m_ = nullptr, *v_ = nullptr, *average_ = nullptr,
        *staging_ = nullptr, *own_gradients_ = nullptr;
  nn::oscillation_state oscillation_;                         ///< arenas
  bool tracks_oscillation_ = false, has_oscillation_ = true;  ///< there is state; it may not be zero
  index_t lent_first_ = 0, lent_count_ = 0;                   ///< gradients that the head's memory aliases
  std::vector<nn::const_tensor_view> sources_;                ///< FP32 values; empty: operands only
  std::vector<bool> keeps_source_;                            ///< by parameter
  std::vector<bool> copies_;                                  ///< by parameter, as has_copy
  std::vector<weight_location> locations_;                    ///< by linear layer
  divided_operands divided_;
  std::vector<prepared> prepared_;  ///< version of each linear layer's operands
};

}  // namespace rotoscale::train
