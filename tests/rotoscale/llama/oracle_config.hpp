// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A model's configuration for the double-precision model (tests/oracle).
#pragma once

#include "oracle/reference_llama.hpp"
#include "rotoscale/models/llama/config.hpp"

namespace rotoscale::testing {

inline oracle::config oracle_config(const llama::model_config& c) {
  oracle::config o{c.vocab_size,
                   c.hidden_size,
                   c.intermediate_size,
                   c.num_hidden_layers,
                   c.num_attention_heads,
                   c.num_key_value_heads,
                   static_cast<int>(c.head_size()),
                   c.rms_norm_eps,
                   c.rope_theta,
                   c.tie_word_embeddings};
  if (c.rope_scaling) {
    o.rope_scaling = {c.rope_scaling->factor, c.rope_scaling->low_freq_factor, c.rope_scaling->high_freq_factor,
                      static_cast<double>(c.rope_scaling->original_max_position_embeddings)};
  }
  return o;
}

}  // namespace rotoscale::testing
