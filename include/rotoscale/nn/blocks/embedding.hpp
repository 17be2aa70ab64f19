// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Token embedding: the first value of the residual stream.
#pragma once

#include <string>
#include <utility>

#include "rotoscale/nn/blocks/norm.hpp"

namespace rotoscale::nn {

/// Rows of a table, (vocabulary, features), by token.
class embedding final : public block {
 public:
  embedding(residual_stream& stream, index_t vocabulary, std::string name, initial_distribution initial)
      : stream_(&stream), vocabulary_(vocabulary), name_(std::move(name)), initial_(initial) {}

  void parameters(parameter_list& list) override {
    table_.number = list.add(vocabulary_, stream_->features(), {{name_}}, initial_);
  }
  void lay_out(const layout& at) override {
    if (at.phase == layout_phase::weights) table_ = at.weights(table_.number);
  }
  void forward(const pass& p) override {
    p.ops->embedding_forward(p.queue, {p.tokens, table_.values, p.state}, {stream_->entry(0)});
  }
  void backward(const pass& p) override {
    if (table_.gradient.empty()) return;
    p.ops->embedding_backward(p.queue, {p.tokens, stream_->d, p.state}, {table_.gradient});
  }

 private:
  residual_stream* stream_;
  index_t vocabulary_;
  std::string name_;
  initial_distribution initial_;
  weight table_;
};

}  // namespace rotoscale::nn
