// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// All options of a training run, listed once. The list reads and writes JSON and makes the flags.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rotoscale/models/any.hpp"
#include "rotoscale/train/lora.hpp"
#include "rotoscale/train/trigger.hpp"

namespace rotoscale::program {

struct train_options {
  std::int64_t steps = 1000;
  int batch = 16;
  int accumulate = 1;
  int sequence = 128;
  double learning_rate = 3e-3;
  double final_learning_rate = 0.1;
  double warmup = 0.05;
  std::int64_t decay_steps = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;
  double average_decay = 0;
  std::uint64_t seed = 1;
  double validation = 0.05;
  std::int64_t max_epochs = 1;
  std::int64_t eval_every = 50;
  int eval_windows = 128;
  int final_eval_windows = 512;
  std::int64_t checkpoint_every = 250;
  int keep_checkpoints = 2;
  double target_loss = 0;
  std::int64_t eval_every_samples = 0;
  std::string mlperf;
  std::string on_divergence = "stop";
  double max_loss_jump = 0;
  int max_rollbacks = 3;
  int head_chunk = 2048;
  std::string recompute = "none";
  std::string stored_activations = "as_computed";
};

template <class Visitor>
void describe(Visitor&& v, train_options& o) {
  v("steps", o.steps, "optimizer steps");
  v("batch", o.batch, "sequences a micro-batch");
  v("accumulate", o.accumulate, "micro-batches an optimizer step, over all ranks");
  v("sequence", o.sequence, "tokens a sequence");
  v("learning_rate", o.learning_rate, "peak learning rate");
  v("final_learning_rate", o.final_learning_rate, "end of the cosine, as a fraction of the peak");
  v("warmup", o.warmup, "linear warm-up: steps, or a fraction of the decay's below 1");
  v("decay_steps", o.decay_steps, "steps until the end of the cosine; 0: all of the run's");
  v("beta1", o.beta1, "AdamW first-moment decay");
  v("beta2", o.beta2, "AdamW second-moment decay");
  v("epsilon", o.epsilon, "AdamW epsilon");
  v("weight_decay", o.weight_decay, "AdamW decay of matrices");
  v("clip", o.clip, "largest global gradient norm; 0: no clipping");
  v("average_decay", o.average_decay, "decay of the weights' moving average, which is evaluated too; 0: none");
  v("seed", o.seed, "of weights, data order, signs and stochastic rounding");
  v("validation", o.validation, "held-out fraction of the text, at its end");
  v("max_epochs", o.max_epochs, "most passes over the training text");
  v("eval_every", o.eval_every, "steps between evaluations");
  v("eval_windows", o.eval_windows, "held-out sequences of an evaluation");
  v("final_eval_windows", o.final_eval_windows, "held-out sequences of the last evaluation");
  v("checkpoint_every", o.checkpoint_every, "steps between checkpoints; 0: only at the end");
  v("keep_checkpoints", o.keep_checkpoints, "newest checkpoints kept");
  v("target_loss", o.target_loss, "stop when an evaluation's loss is this or less; 0: never");
  v("eval_every_samples", o.eval_every_samples, "sequences between evaluations; 0: by eval_every");
  v("mlperf", o.mlperf,
    "llama31_8b or llama2_70b_lora: that benchmark's rules of evaluation, its values as defaults, and mlperf.log");
  v("on_divergence", o.on_divergence,
    "stop, or rollback: continue from the last checkpoint, without the data up to the diverged step");
  v("max_loss_jump", o.max_loss_jump,
    "nats above the mean of about ten losses at which a run has diverged; 0: any loss is allowed");
  v("max_rollbacks", o.max_rollbacks, "roll-backs before the run stops as diverged");
  v("head_chunk", o.head_chunk,
    "tokens whose logits exist at once; a larger micro-batch adds the head's gradient in parts");
  v("recompute", o.recompute,
    "part of a layer that the backward pass recomputes: none, elementwise, attention, mlp, layer");
  v("stored_activations", o.stored_activations, "storage of saved activations: as_computed or mxfp8_e4m3");
}

struct run_options {
  std::string name;
  std::vector<std::string> data;
  std::string text_format = "auto";
  std::string tokenizer;
  std::string begin_of_text = "auto";
  std::string chat_template;
  std::string long_records = "refuse";
  std::string schedule = "bf16";
  std::string contracts;
  std::string init;
  std::string adapter;
  std::optional<train::lora_config> lora;
  models::chosen_config model;
  train_options train;

  /// Shape of the model.
  models::config shape() const { return model.shape(); }
  /// The model as training sees it.
  train::architecture architecture() const { return models::architecture_of(shape()); }
  /// Token ids are below it.
  int vocabulary() const { return models::vocabulary_of(shape()); }
  /// Longest sequence.
  int positions() const { return static_cast<int>(architecture().positions); }
};

template <class Visitor>
void describe(Visitor&& v, run_options& o) {
  v("name", o.name, "of the run in logs and reports (default: the schedule's)");
  v("data", o.data, "text files or directories, plain or gzip; token files of llm.c; JSON lines of prompt and answer");
  v("text_format", o.text_format, "auto (finds token files and records), plain or bytes (binary files too)");
  v("tokenizer", o.tokenizer, "SentencePiece model, or bytes (default: that of the directory of init, else bytes)");
  v("begin_of_text", o.begin_of_text,
    "a begin-of-text token before a text and each record: yes, no, or auto: by tokenizer_config.json");
  v("chat_template", o.chat_template, "of records with messages: chatml or llama3");
  v("long_records", o.long_records, "records longer than a sequence: refuse, cut, or skip; the log counts them");
  v("schedule", o.schedule, "recipe or schedule: a preset's name or a JSON file");
  v("contracts", o.contracts,
    "contract set of all recipes: portable, hopper, cdna3, bf16, cpu, or native: the device's (default: as recipes "
    "say)");
  v("init", o.init, "initial weights: a directory or file of Hugging Face's, or a checkpoint (default: from the seed)");
  v("adapter", o.adapter, "initial adapters: PEFT's files, or a checkpoint or run (default: from the seed)");
  v("lora", o.lora, "adapters on the frozen weights of init, or null");
  describe(v, o.model);
  v("train", o.train, "training");
}

/// The value of run_options::contracts that means the device's own set. A run records the set's name in its place.
inline constexpr const char* native_contracts = "native";

/// Sets the options that the benchmark's rules fix, and its reference's defaults.
void set_mlperf_defaults(train_options& o);

/// Evaluation interval. The end of a run is always evaluated.
train::measurement_times evaluation_times(const train_options& o);

/// Whether files named by options must exist, and adapters need given weights. `none`: only the model's shape is used.
enum class given_files { needed, none };

/// Describes the first wrong field; nullopt: none.
std::optional<std::string> find_fault(const run_options& o);

}  // namespace rotoscale::program
