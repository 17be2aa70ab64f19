// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Bias of a linear layer's output, and learned positions.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "rotoscale/nn/blocks/block.hpp"

namespace rotoscale::nn {

/// A vector that is added to each row of a linear layer's output.
class bias {
 public:
  /// An empty name means no bias.
  explicit bias(std::string name = {}) : name_(std::move(name)) {}

  /// Adds it, with zeros for `features`.
  void parameters(parameter_list& list, index_t features) {
    if (!name_.empty()) own_.number = list.add_vector(features, name_, 0.0);
  }
  /// Binds its values.
  void bind(const layout& at) {
    if (!name_.empty()) own_ = at.weights(own_.number);
  }
  /// Adds the workspace of its operations.
  void require(workspace_bound& most, index_t features) const {
    if (name_.empty()) return;
    most.add<op::bias_backward>({most.extents(most.tokens, features)}, {most.extents(1, features)});
  }
  /// True if its gradient is computed.
  bool trains() const { return !own_.gradient.empty(); }
  /// (1, features); empty: there is none.
  const_tensor_view values() const { return own_.values; }
  /// The same of its gradient; empty: it does not train.
  tensor_view gradient() const { return own_.gradient; }
  /// Adds dy to its gradient.
  void backward(const pass& p, tensor_view dy) const {
    if (trains()) p.ops->bias_backward(p.queue, {dy}, {own_.gradient});
  }

 private:
  std::string name_;
  weight own_;
};

}  // namespace rotoscale::nn
