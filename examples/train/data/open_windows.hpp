// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Opens the data of a run as windows, by the content of its files.
#pragma once

#include <memory>
#include <string>

#include "data/window_source.hpp"
#include "progress.hpp"

namespace rotoscale::program {

/// Throws io::error if the token is not below `vocabulary`. `whose` and `flag` name the owner of the vocabulary.
void require_token(const token_place& largest, std::int64_t vocabulary, const std::string& whose, const char* flag);

/// True for token files, which need no tokenizer.
bool are_token_files(const data_options& options);

/// Opens files by content: token files of llm.c, JSON lines with "prompt" and "answer", "text" or "messages", else
/// text. All paths must be of one kind. Throws io::error naming an unreadable file, data shorter than one window in
/// each part, a record longer than a window, or an unknown token. `progress` receives the bytes tokenized.
std::unique_ptr<window_source> open_windows(const data_options& options, const progress_function& progress = {});

}  // namespace rotoscale::program
