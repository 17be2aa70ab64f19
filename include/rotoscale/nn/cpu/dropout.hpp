// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Dropout on the CPU. A word is a pure function of seed, layer, pass and element. So threads, ranks and a second pass
// over the same tensor agree on the mask.
#pragma once

#include "rotoscale/nn/cpu/layers.hpp"

namespace rotoscale::nn::cpu {

/// One row: `at` is the number of its first element.
template <class Update>
void dropout_row(const random_stream& words, std::uint64_t at, std::uint32_t threshold, index_t n,
                 const Update& update) {
  philox_block block{};
  for (index_t j = 0; j < n; ++j) {
    const std::uint64_t i = at + static_cast<std::uint64_t>(j);
    if (j == 0 || i % 4 == 0) block = words.block(i / 4);
    update(j, block.word[i % 4] >= threshold);
  }
}

inline void compute(const op::dropout::in& i, const op::dropout::out& o, thread_pool& pool) {
  const dropout_args& args = i.args;
  const random_stream words = args.words(*i.state);
  const auto rows = [&](const auto& x, const auto& y) {
    const index_t n = x.extent(1);
    for_each_chunk(pool, x.extent(0), row_chunk, [&](index_t first, index_t last) {
      const row_scratch room(2, n);
      for (index_t t = first; t < last; ++t) {
        const float* from = read_row(&x(t, 0), n, room[0]);
        float* to = i.accumulate ? update_row(&y(t, 0), n, room[1]) : target_row(&y(t, 0), room[1]);
        const auto update = [&](index_t j, bool kept) {
          to[j] = i.accumulate ? dropped_onto(from[j], args.factor, kept, to[j]) : dropped(from[j], args.factor, kept);
        };
        if (args.threshold == 0) {  // nothing is dropped: no words are needed
          for (index_t j = 0; j < n; ++j) update(j, true);
        } else {
          dropout_row(words, static_cast<std::uint64_t>(t * n), args.threshold, n, update);
        }
        write_row(to, n, &y(t, 0));
      }
    });
  };
  with_storage(i.x.type, [&](auto s) {
    with_storage(o.y.type, [&](auto t) { rows(as_matrix<const decltype(s)>(i.x), as_matrix<decltype(t)>(o.y)); });
  });
}

}  // namespace rotoscale::nn::cpu
