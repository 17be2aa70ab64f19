// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Token embedding, with learned positions if there are any: the first value of the residual stream.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "rotoscale/nn/blocks/norm.hpp"

namespace rotoscale::nn {

/// Name and length of a table of positions.
struct position_table {
  std::string name;   ///< empty: none
  index_t count = 0;  ///< longest sequence
};

/// Rows of a table, (vocabulary, features), by token. Rows of a second table by position are added.
class embedding final : public block {
 public:
  /// `name` and `initial`: of the table's parameter.
  embedding(residual_stream& stream, index_t vocabulary, std::string name, initial_distribution initial,
            position_table positions = {})
      : stream_(&stream),
        vocabulary_(vocabulary),
        name_(std::move(name)),
        initial_(initial),
        places_(std::move(positions)) {}

  void parameters(parameter_list& list) override {
    table_.number = list.add(vocabulary_, stream_->features(), {{name_}}, initial_);
    if (!places_.name.empty()) {
      positions_.number = list.add(places_.count, stream_->features(), {{places_.name}}, initial_);
    }
  }
  void make(linear_maker& maker) override { sequence_ = maker.options.sequence; }
  void lay_out(const layout& at) override {
    if (at.phase != layout_phase::weights) return;
    table_ = at.weights(table_.number);
    if (!places_.name.empty()) positions_ = at.weights(positions_.number);
  }
  void require(workspace_bound& most) const override {
    const index_t d = stream_->features();
    const tensor_view dy = most.extents(most.tokens, d);
    most.add<op::embedding_backward>({{}, dy, nullptr}, {most.extents(vocabulary_, d)});
    if (!places_.name.empty()) most.add<op::bias_backward>({dy}, {most.extents(sequence_, d)});
  }
  void forward(const pass& p) override {
    p.ops->embedding_forward(p.queue, {p.tokens, table_.values, p.state}, {stream_->entry(0)});
    if (places_.name.empty()) return;
    p.ops->bias_forward(p.queue, {positions_.values.part(0, p.past, sequence_)}, {stream_->entry(0)});
  }
  void backward(const pass& p) override {
    if (!positions_.gradient.empty()) {
      p.ops->bias_backward(p.queue, {stream_->d}, {positions_.gradient.part(0, 0, sequence_)});
    }
    if (table_.gradient.empty()) return;
    p.ops->embedding_backward(p.queue, {p.tokens, stream_->d, p.state}, {table_.gradient});
  }

 private:
  residual_stream* stream_;
  index_t vocabulary_;
  std::string name_;
  initial_distribution initial_;
  position_table places_;
  index_t sequence_ = 1;
  weight table_, positions_;
};

}  // namespace rotoscale::nn
