// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A block is a part of a model: it owns its parameters, memory and passes. A pass puts a fixed list of operations on a
// queue, so that graphs can record it.
#pragma once

#include <memory>
#include <stdexcept>

#include "rotoscale/nn/blocks/adapter.hpp"
#include "rotoscale/nn/blocks/saved_activations.hpp"
#include "rotoscale/nn/kernel_refusal.hpp"
#include "rotoscale/nn/parameters.hpp"

namespace rotoscale::nn {

/// Makes the linear layers of a block under a recipe. Layers are numbered in the order in which they are made.
struct linear_maker {
  backend& ops;                      ///< asked for contracts
  const pass_options& options;       ///< extents of passes
  const parameter_list& parameters;  ///< shapes
  const recipe& whole;               ///< recipe of the model
  const linear_recipe* layers;       ///< recipe of this block's layers
  const linear_recipe* head;         ///< recipe of the output head
  dtype stored;                      ///< of activations
  index_t next = 0;                  ///< number of the next layer

  /// The layer y = x·wᵀ of a parameter w. Throws std::invalid_argument if a frozen w would need requantization.
  adapted_linear make(std::size_t number, const linear_recipe& r, index_t tokens) {
    const parameter& p = parameters[number];
    if (options.training && !p.trains && redraws_signs_of_weights(r)) {
      fail(p.name() + " is frozen and quantized once: its signs cannot change each step");
    }
    adapted_linear made(
        {next++, p.rows, p.cols, tokens, p.trains, options.training, stored, stored, true, options.codes_of_weights},
        r);
    made.w.number = number;
    return made;
  }
  /// The same under the block's recipe, for all tokens of a pass.
  adapted_linear make(std::size_t number) { return make(number, *layers, options.tokens()); }
  /// The contract of attention. Throws std::invalid_argument if the backend does not support it.
  attention_contract attention(index_t head_dim) const {
    const auto found = ops.contract(whole.attention, head_dim);
    if (!found) fail(attention_refusal(ops, whole.attention, head_dim));
    return *found;
  }
  /// Throws std::invalid_argument that names the recipe.
  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument("recipe " + whole.name + ": " + what);
  }
};

/// A linear layer of a block, with the tensors of its weight gradient.
struct linear_use {
  adapted_linear* layer = nullptr;  ///< the layer
  const_tensor_view x;              ///< its input in the backward pass
  const_tensor_view dy;             ///< gradient of its output
};

/// Takes the operands of output gradients. Layers of a block share memory.
inline void lay_out_gradients(const layout& at, std::initializer_list<linear_use> layers) {
  const std::size_t mark = at.memory.mark(memory_category::workspace);
  for (const linear_use& use : layers) {
    at.memory.rewind(memory_category::workspace, mark);
    use.layer->lay_out(at.ops, at.memory, memory_category::workspace, tensor_role::dy, use.dy);
    use.layer->lay_out_adapters_backward(at.ops, at.memory, use.dy);
  }
}

/// Part of a model.
class block {
 public:
  block() = default;
  block(const block&) = delete;
  block& operator=(const block&) = delete;
  virtual ~block() = default;

  /// Adds its parameters: names, shapes, initial values.
  virtual void parameters(parameter_list&) {}
  /// Makes its linear layers under a recipe.
  virtual void make(linear_maker&) {}
  /// Takes the memory of a phase: counts or binds.
  virtual void lay_out(const layout&) {}
  /// Uploads tables that the host computes.
  virtual void upload(backend&, queue) {}
  /// Adds the workspace of its operations.
  virtual void require(workspace_bound&) const {}
  /// Forward pass.
  virtual void forward(const pass&) {}
  /// Recomputes what saved() leaves out.
  virtual void recompute(const pass&) {}
  /// Backward pass. Adds to all gradients.
  virtual void backward(const pass&) {}
  /// Its tensors that are saved in 8 bits.
  virtual const saved_activations& saved() const {
    static const saved_activations none;
    return none;
  }
  /// Its linear layers, in the order of their numbers.
  virtual std::vector<linear_use> linears() { return {}; }
};

}  // namespace rotoscale::nn
