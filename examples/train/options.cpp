// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <algorithm>
#include <cmath>

#include "format_text.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/nn/recipe_faults.hpp"

namespace rotoscale::program {

namespace {

std::optional<std::string> within(const std::string& name, double value, double low, double high) {
  if (value >= low && value <= high) return std::nullopt;
  const auto text = [](double x) {
    if (std::abs(x) >= 1e15) return format_text("%.6g", x);
    std::string s = std::to_string(x);
    s.erase(s.find_last_not_of('0') + 1);
    if (s.back() == '.') s.pop_back();
    return s;
  };
  return "train." + name + ": " + text(value) + " is not between " + text(low) + " and " + text(high);
}

/// "FIELD: 'VALUE' is none of A, B", unless it is one of them.
std::optional<std::string> find_unknown(const std::string& field, const std::string& value,
                                        const std::vector<std::string>& valid) {
  if (std::find(valid.begin(), valid.end(), value) != valid.end()) return std::nullopt;
  std::string all;
  for (const std::string& name : valid) all += (all.empty() ? "" : ", ") + name;
  return field + ": '" + value + "' is none of " + all;
}

std::optional<std::string> find_unknown_choice(const run_options& o) {
  const train_options& t = o.train;
  const struct {
    const char* field;
    const std::string& value;
    std::vector<std::string> valid;
  } choices[] = {{"begin_of_text", o.begin_of_text, {"auto", "yes", "no"}},
                 {"chat_template", o.chat_template, {"", "chatml", "llama3"}},
                 {"long_records", o.long_records, {"refuse", "cut", "skip"}},
                 {"train.on_divergence", t.on_divergence, {"stop", "rollback"}},
                 {"train.mlperf", t.mlperf, {"", "llama31_8b", "llama2_70b_lora"}}};
  for (const auto& c : choices) {
    if (auto f = find_unknown(c.field, c.value, c.valid)) return f;
  }
  if (!t.mlperf.empty() && t.on_divergence == "rollback") {
    return "train.on_divergence: rollback takes steps back, which the rules of train.mlperf do not have";
  }
  return o.contracts.empty() ? std::nullopt : nn::find_set_fault(o.contracts, native_contracts);
}

std::optional<std::string> find_shape_fault(const run_options& o) {
  const auto fault = models::find_fault(o.shape());
  return fault ? std::optional(models::options_of(o.shape()).key + "." + *fault) : std::nullopt;
}

/// Numbers outside their ranges.
std::optional<std::string> find_range_fault(const train_options& t) {
  struct {
    const char* name;
    double value, low, high;
  } const ranges[] = {
      {"steps", static_cast<double>(t.steps), 1, 1e9 - 1},  // nine digits in a checkpoint's name
      {"batch", static_cast<double>(t.batch), 1, 1e6},
      {"accumulate", static_cast<double>(t.accumulate), 1, 256},
      {"sequence", static_cast<double>(t.sequence), 1, 1 << 24},
      {"learning_rate", t.learning_rate, 0, 1e30},
      {"final_learning_rate", t.final_learning_rate, 0, 1},
      {"warmup", t.warmup, 0, 1e9},
      {"decay_steps", static_cast<double>(t.decay_steps), 0, 1e12},
      {"beta1", t.beta1, 0, 0.999999},
      {"beta2", t.beta2, 0, 0.999999},
      {"epsilon", t.epsilon, 1e-30, 1},
      {"weight_decay", t.weight_decay, 0, 1e6},
      {"clip", t.clip, 0, 1e30},
      {"average_decay", t.average_decay, 0, 0.999999},
      {"validation", t.validation, 0.0001, 0.9},
      {"max_epochs", static_cast<double>(t.max_epochs), 1, 1e6},
      {"eval_every", static_cast<double>(t.eval_every), 1, 1e12},
      {"eval_windows", static_cast<double>(t.eval_windows), 1, 1e9},
      {"final_eval_windows", static_cast<double>(t.final_eval_windows), 1, 1e9},
      {"checkpoint_every", static_cast<double>(t.checkpoint_every), 0, 1e12},
      {"keep_checkpoints", static_cast<double>(t.keep_checkpoints), 1, 1e6},
      {"target_loss", t.target_loss, 0, 1e30},
      {"eval_every_samples", static_cast<double>(t.eval_every_samples), 0, 1e12},
      {"max_loss_jump", t.max_loss_jump, 0, 1e30},
      {"max_rollbacks", static_cast<double>(t.max_rollbacks), 0, 1e6},
      {"head_chunk", static_cast<double>(t.head_chunk), 1, 1e9},
  };
  for (const auto& r : ranges) {
    if (auto f = within(r.name, r.value, r.low, r.high)) return f;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> find_fault(const run_options& o) {
  if (!nn::is_one_line(o.name)) return std::string("name: holds a control character, and logs are of lines");
  if (auto f = find_shape_fault(o)) return f;
  if (o.lora) {
    if (auto f = find_fault(*o.lora)) return "lora." + *f;
    if (auto f = train::find_target_fault(o.architecture(), *o.lora)) return "lora." + *f;
  } else if (!o.adapter.empty()) {
    return std::string("adapter: excludes training all weights (lora is null)");
  }
  const train_options& t = o.train;
  if (auto f = find_range_fault(t)) return f;
  train::recompute_part recompute{};
  train::kept_format kept{};
  if (auto f = find_unknown("train.recompute", t.recompute, names(recompute))) return f;
  if (auto f = find_unknown("train.stored_activations", t.stored_activations, names(kept))) return f;
  from_string(t.recompute, recompute);
  from_string(t.stored_activations, kept);
  if (auto f = o.architecture().find_fault(recompute, kept)) return "train." + *f;
  if (t.sequence > o.positions()) {
    return "train.sequence: " + std::to_string(t.sequence) + " is longer than the model's " +
           std::to_string(o.positions()) + " positions" + models::options_of(o.shape()).positions_hint;
  }
  if (t.warmup >= 1 && t.warmup != std::floor(t.warmup)) {
    return "train.warmup: " + std::to_string(t.warmup) + " is neither a fraction below 1 nor a number of steps";
  }
  return find_unknown_choice(o);
}

void set_mlperf_defaults(train_options& o) {
  if (o.mlperf == "llama31_8b") {
    o.sequence = 8192;
    o.steps = 1'200'000;
    o.beta1 = 0.9;
    o.beta2 = 0.95;
    o.epsilon = 1e-5;
    o.weight_decay = 0.1;
    o.clip = 1.0;
    o.final_learning_rate = 0.1;
    o.eval_every_samples = 12'288;
    o.eval_windows = o.final_eval_windows = 1024;
    o.target_loss = 3.3;
  } else if (o.mlperf == "llama2_70b_lora") {
    o.sequence = 8192;
    o.steps = 1024;
    o.beta1 = 0.9;
    o.beta2 = 0.999;
    o.weight_decay = 1e-4;
    o.clip = 0.3;
    o.warmup = 0;
    o.learning_rate = 4e-4;
    o.final_learning_rate = 0;
    o.eval_every_samples = 384;
    o.eval_windows = o.final_eval_windows = 173;
    o.target_loss = 0.925;
  }
}

train::measurement_times evaluation_times(const train_options& o) {
  if (o.eval_every_samples == 0) return {o.eval_every, 1, 0, true};
  const std::int64_t samples = std::int64_t{o.batch} * o.accumulate;
  // LoRA's first evaluations are left out.
  const auto skipped = o.mlperf == "llama2_70b_lora"
                           ? static_cast<std::int64_t>(std::floor(0.125 * static_cast<double>(samples) + 2))
                           : 0;
  return {o.eval_every_samples, samples, skipped};
}

}  // namespace rotoscale::program
