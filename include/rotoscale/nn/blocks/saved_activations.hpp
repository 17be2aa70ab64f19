// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Activations that a forward pass saves for the backward pass: all as computed, all in 8 bits, or fewer with the others
// recomputed. Bytes a token, and the effect of 8 bits on gradients: docs/reference/training.md.
#pragma once

#include <vector>

#include "rotoscale/names.hpp"
#include "rotoscale/nn/blocks/linear.hpp"

namespace rotoscale::nn {

/// Part of each layer that the backward pass recomputes, under the same contracts and so to the same bits.
enum class recompute_part {
  none,
  elementwise,  ///< inputs of GEMMs that norms and activations produce; the inputs of these are saved
  attention,    ///< from the layer's input to the output projection; the input is saved
  mlp,          ///< from the residual stream after attention to the down projection; the stream is saved
  layer         ///< both; only the layer's input is saved
};
ROTOSCALE_ENUM_NAMES(recompute_part, none, elementwise, attention, mlp, layer)
/// Format of saved activations. Operands of weight gradients, and tensors of one number a token, are not changed.
enum class kept_format {
  as_computed,  ///< as the recipe's `activations`
  mxfp8_e4m3    ///< E4M3 in blocks of 32 features; scales are rounded up, so nothing saturates
};
ROTOSCALE_ENUM_NAMES(kept_format, as_computed, mxfp8_e4m3)

/// Recipe of activations in 8 bits.
inline constexpr operand_recipe kept_mxfp8 = {operand_format::mxfp8_e4m3, scale_rule::rceil};

/// Extents and modes of a model's passes.
struct pass_options {
  index_t batch = 1;                                ///< sequences of a pass
  index_t sequence = 1;                             ///< tokens of a sequence
  bool training = true;                             ///< a backward pass follows
  index_t head_chunk = 2048;                        ///< tokens whose logits exist at once
  recompute_part recompute = recompute_part::none;  ///< activations that the backward pass recomputes
  kept_format kept = kept_format::as_computed;      ///< format of saved activations
  bool statistics = false;                          ///< room for the statistics of observed steps
  bool lends_gradients = true;                      ///< logits may alias the gradient arena before it is written
  bool codes_of_weights = false;                    ///< trained weights are stored as codes, like frozen ones
  index_t cache = 0;                                ///< tokens of the one sequence whose keys and values are cached

  /// Tokens of a pass.
  index_t tokens() const { return batch * sequence; }
  /// Positions of a sequence.
  index_t positions() const { return std::max(sequence, cache); }
};

/// Moments at which a model lays memory out, in order. Blocks of one group are laid out one after the other.
enum class layout_phase {
  weights,  ///< binds parameters, takes tables
  fixed,    ///< cached keys and values, losses: stay in place in all passes
  scratch,  ///< of the forward pass, shared by all groups
  saved,    ///< from the forward to the backward pass
  loss,     ///< logits, which may alias the gradient arena
  backward  ///< of the backward pass, shared by all blocks
};

/// Destination of a block's memory.
struct layout {
  backend& ops;                                       ///< backend of the model
  memory_cursor& memory;                              ///< counts or binds
  const pass_options& options;                        ///< extents of passes
  dtype stored;                                       ///< of activations
  layout_phase phase;                                 ///< memory of this request
  const std::function<weight(std::size_t)>& weights;  ///< memory of parameters

  /// Memory of operands and made tensors that live until their GEMM, or until the backward pass.
  memory_category inputs() const {
    return options.training ? memory_category::activations : memory_category::workspace;
  }
  /// (tokens, cols) in the activations' dtype.
  tensor_view tensor(memory_category c, index_t cols) const { return memory.tensor(c, stored, options.tokens(), cols); }
  /// n numbers a token.
  float* numbers(memory_category c, index_t n = 1) const { return memory.array<float>(c, n * options.tokens()); }
  /// True if saved activations are packed into 8 bits.
  bool packs() const { return options.training && options.kept != kept_format::as_computed; }
  /// True if a part of a layer is not saved.
  bool is_recomputed(recompute_part part) const {
    return !options.training || options.recompute == part || options.recompute == recompute_part::layer;
  }
  /// (tokens, cols) that all groups share, for saved_activations::keep. Without memory unless saved tensors are packed.
  tensor_view shared(index_t cols) const {
    return packs() ? tensor(memory_category::workspace, cols) : dense_tensor(nullptr, stored, {options.tokens(), cols});
  }
  /// Calls body() in the phase of tensors that are saved, or that are `shared` by all groups.
  template <class Body>
  void take(bool shared, const Body& body) const {
    if (phase == (shared ? layout_phase::scratch : layout_phase::saved)) body();
  }
  /// A tensor that is made for quantization. It is saved only if an operand is the tensor itself, otherwise `shared`.
  tensor_view made_for(const linear& consumer, tensor_view shared) const {
    if (!options.training || !consumer.keeps_source(ops, tensor_role::x)) return shared;
    return tensor(memory_category::activations, shared.extent(1));
  }
};

/// Tensors of a block that are saved in 8 bits.
class saved_activations {
 public:
  /// Before the layout.
  void clear() { packed_.clear(); }
  /// A tensor that the backward pass reads: the block's own, or `shared` with a packed copy.
  tensor_view keep(const layout& at, tensor_view shared) {
    if (!at.packs()) return at.tensor(memory_category::activations, shared.extent(1));
    pack_of(at, shared);
    return shared;
  }
  /// Saves a packed copy of a tensor that groups share.
  void pack_of(const layout& at, tensor_view shared) {
    const operand_request r{tensor_role::x, 0, at.stored, at.options.tokens(), shared.extent(1), kept_mxfp8, {}};
    packed_.push_back({take_operands(at.ops, at.memory, memory_category::activations, r, shared), shared});
  }
  /// Quantizes all tensors.
  void pack(const pass& p) const {
    for (const auto& x : packed_) p.ops->quantize(p.queue, {x.whole, p.state}, {{x.set.get(), true, false, {}}});
  }
  /// Restores all tensors.
  void unpack(const pass& p) const {
    for (const auto& x : packed_) p.ops->dequantize(p.queue, {{x.set.get(), operand_form::row}}, {x.whole});
  }

 private:
  struct packed_tensor {
    std::unique_ptr<operand_set> set;  ///< 8 bits
    tensor_view whole;                 ///< shared by all groups
  };
  std::vector<packed_tensor> packed_;
};

}  // namespace rotoscale::nn
