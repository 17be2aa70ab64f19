// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// JSON lines as training data. The answer of `{"prompt": ..., "answer": ...}` is learnt, the whole text of
// `{"text": ...}`, and the assistant's turns of `{"messages": [{"role": ..., "content": ...}, ...]}`. Other keys are
// ignored. Each record is a document. It ends with the tokenizer's end of text, which is learnt too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer.hpp"
#include "data/window_source.hpp"

namespace rotoscale::program {

/// Records as tokens, one after the other.
struct record_list {
  struct record {
    std::size_t begin = 0, end = 0;  ///< in tokens
    std::size_t learnt = 0;          ///< the first token that is a target; at least begin + 1
    std::vector<std::pair<std::size_t, std::size_t>> masked = {};  ///< padding tokens after it

    /// Is a token, which is not the first one, a target?
    bool learns(std::size_t token) const {
      return token >= learnt && std::none_of(masked.begin(), masked.end(), [&](const auto& range) {
               return token >= range.first && token < range.second;
             });
    }
  };
  std::vector<std::int32_t> tokens;
  std::vector<record> records;
  std::int64_t too_long = 0;  ///< records that were cut or left out
};

/// Adds the records of JSON lines. Throws io::error naming a line that is not a record, or whose tokens do not fit a
/// window. `name` stands for the file in messages. `progress` receives the bytes done.
void add_records(record_list& list, std::string_view text, const std::string& name, const tokenizer& t,
                 const data_options& options, const progress_function& progress = {});

/// Records packed into windows in their order: as many as fit, whole. The last records are held out.
std::unique_ptr<window_source> pack_records(record_list list, const data_options& options, const tokenizer& t);

}  // namespace rotoscale::program
