// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "data/data.hpp"

#include "data/own_tokenizer.hpp"
#include "format_text.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/nn/backend.hpp"

namespace rotoscale::program {

namespace {

double windows_wanted(const train_options& o, std::int64_t skipped) {
  return (static_cast<double>(o.steps) + static_cast<double>(skipped)) * o.batch * o.accumulate;
}

}  // namespace

data_options data_of(const run_options& run) {
  data_options o;
  o.paths = run.data;
  o.text_format = run.text_format;
  o.tokenizer = run.tokenizer == bytes_name ? "" : run.tokenizer;
  o.chat_template = run.chat_template;
  o.long_records = run.long_records;
  o.begin_of_text = run.begin_of_text == "yes";
  o.sequence = run.train.sequence;
  o.validation = run.train.validation;
  o.first_windows = !run.train.mlperf.empty();
  return o;
}

corpus::corpus(const data_options& data, std::uint64_t seed, int vocabulary, const progress_function& progress)
    : source_(open_windows(data, progress)), sequence_(data.sequence), first_windows_(data.first_windows) {
  order_ = epoch_order(train_windows(), seed);
  is_bytes_ = data.tokenizer.empty() && !source_->bytes_of_tokens().empty() && !source_->has_documents();
  for (const std::string& path : data.paths) name_ += (name_.empty() ? "" : ", ") + path;
  if (source_->largest_token() != nullptr) {
    require_token(*source_->largest_token(), vocabulary, "model", "--vocab-size");
  }
  if (source_->least_vocabulary() > vocabulary) {
    const std::string& name = data.tokenizer.empty() ? name_ : data.tokenizer;
    throw io::error(name, "its tokens need a vocabulary of " + std::to_string(source_->least_vocabulary()) +
                              ", the model has " + std::to_string(vocabulary) + " (--vocab-size)");
  }
}

bool corpus::has_data_for(const train_options& o, std::int64_t skipped) const {
  return windows_wanted(o, skipped) <= static_cast<double>(train_windows()) * static_cast<double>(o.max_epochs);
}

void corpus::check_budget(const train_options& o, std::int64_t skipped) const {
  if (has_data_for(o, skipped)) return;
  const double wanted = windows_wanted(o, skipped);
  const double available = static_cast<double>(train_windows()) * static_cast<double>(o.max_epochs);
  const auto count = [&](double windows) {  // in FP64: the product may not fit 64 bits
    return format_text("%.0f", windows * static_cast<double>(sequence_));
  };
  throw io::error(name_, "too short: " + std::to_string(o.steps) + " steps read " + count(wanted) + " tokens, " +
                             std::to_string(o.max_epochs) + " epoch(s) have " + count(available) +
                             " (--steps, --max-epochs)");
}

token_batch corpus::training_batch(std::int64_t first, std::int64_t count, token_batch batch) {
  for (std::int64_t i = first; i < first + count; ++i) {
    source_->append(data_part::training, order_.window(i), batch);
  }
  return batch;
}

token_batch corpus::validation_batch(std::int64_t first, std::int64_t count, std::int64_t of) const {
  token_batch batch;
  const auto length = static_cast<std::size_t>(sequence_);
  for (std::int64_t i = first; i < first + count; ++i) {
    if (i < of) {
      source_->append(data_part::validation, first_windows_ ? i : i * validation_windows() / of, batch);
    } else {
      batch.tokens.insert(batch.tokens.end(), length, 0);
      batch.targets.insert(batch.targets.end(), length, nn::ignored_target);
      if (!batch.document_starts.empty()) batch.document_starts.insert(batch.document_starts.end(), length, 0);
    }
  }
  return batch;
}

std::int64_t corpus::bytes_of(std::span<const std::int32_t> targets) const {
  const std::vector<std::int32_t>& bytes = source_->bytes_of_tokens();
  std::int64_t sum = 0;
  for (const std::int32_t target : targets) {
    if (target != nn::ignored_target && !bytes.empty()) sum += bytes[static_cast<std::size_t>(target)];
  }
  return sum;
}

}  // namespace rotoscale::program
