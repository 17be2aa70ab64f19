// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "trainer/mlperf.hpp"

#include <algorithm>
#include <cmath>

#include "clock.hpp"
#include "options.hpp"
#include "rotoscale/io/append_file.hpp"

namespace rotoscale::program {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

/// The narrowest format of any operand of any phase, in the checker's words.
std::string lowest_precision(const ordered_json& schedule) {
  int lowest = 0;
  constexpr const char* names[] = {"fp32", "bfloat16", "fp8", "mxfp4"};
  const ordered_json flat = schedule.flatten();  // items() would outlive a temporary
  for (const auto& [key, value] : flat.items()) {
    if (!key.ends_with("/format") || !value.is_string()) continue;
    const auto format = value.get<std::string>();
    const int rank = format == "mxfp4" ? 3 : format == "fp32" ? 0 : format == "bf16" ? 1 : 2;
    lowest = std::max(lowest, rank);
  }
  return names[lowest];
}

class mlperf_log : public log_sink {
 public:
  mlperf_log(const fs::path& path, std::int64_t began_ms)
      : path_(path), file_(path, io::append_file::mode::truncate), began_ms_(began_ms) {}

  void write(const ordered_json& record) override {
    const std::string kind = record.value("event", "");
    if (kind == "start") begin(record);
    if (kind == "eval") evaluation(record);
    if (kind == "end") end(record);
    if (record.contains("step")) step_ = record["step"].get<std::int64_t>();
  }

 private:
  void line(std::int64_t ms, const char* type, const char* key, const ordered_json& value, ordered_json metadata = {}) {
    metadata["file"] = "train/mlperf.cpp";
    metadata["lineno"] = 0;
    const ordered_json record = {{"namespace", ""}, {"time_ms", ms},  {"event_type", type},
                                 {"key", key},      {"value", value}, {"metadata", metadata}};
    file_.write(":::MLLOG " + io::json_text(record, path_.string()) + "\n");
  }
  void point(const char* key, const ordered_json& value, const ordered_json& metadata = ordered_json::object()) {
    line(milliseconds_since_1970(), "POINT_IN_TIME", key, value, metadata);
  }
  ordered_json samples(std::int64_t step) const { return {{"samples_count", step * batch_}}; }

  void begin(const ordered_json& start) {
    const ordered_json& o = start["config"]["train"];
    batch_ = o["batch"].get<std::int64_t>() * o["accumulate"].get<std::int64_t>();
    target_ = o["target_loss"].get<double>();
    point("submission_benchmark", o["mlperf"]);
    point("submission_org", "none: this is not an MLPerf submission");
    point("submission_division", division(start));
    point("submission_status", "research");
    point("submission_platform", start["device"]);
    line(began_ms_, "POINT_IN_TIME", "cache_clear", true);
    line(began_ms_, "INTERVAL_START", "init_start", nullptr);
    hyperparameters(start);
    line(milliseconds_since_1970(), "INTERVAL_END", "init_stop", nullptr);
    line(milliseconds_since_1970(), "INTERVAL_START", "run_start", nullptr);
    start_block(0);
  }

  void hyperparameters(const ordered_json& start) {
    const ordered_json& o = start["config"]["train"];
    const double warmup = start["warmup_steps"], decay = start["decay_steps"];
    point("seed", start["seed"]);
    point("global_batch_size", batch_);
    point("micro_batch_size", o["batch"]);
    point("gradient_accumulation_steps", o["accumulate"]);
    point("max_sequence_length", o["sequence"]);
    point("max_steps", o["steps"]);
    point("train_samples", start["train_windows"]);
    point("eval_samples", std::min(o["eval_windows"].get<std::int64_t>(), start["val_windows"].get<std::int64_t>()));
    point("target_accuracy", target_);
    point("opt_name", "adamw");
    point("opt_base_learning_rate", o["learning_rate"]);
    point("opt_end_learning_rate", o["learning_rate"].get<double>() * o["final_learning_rate"].get<double>());
    point("opt_learning_rate_training_steps", o["steps"]);
    point("opt_learning_rate_warmup_steps", static_cast<std::int64_t>(warmup));
    point("opt_learning_rate_decay_steps", static_cast<std::int64_t>(decay - warmup));
    point("opt_learning_rate_decay_schedule", "cosine with linear warmup");
    point("opt_adamw_beta_1", o["beta1"]);
    point("opt_adamw_beta_2", o["beta2"]);
    point("opt_adamw_epsilon", o["epsilon"]);
    point("opt_adamw_weight_decay", o["weight_decay"]);
    point("opt_gradient_clip_norm", o["clip"]);
    point("lowest_numerical_precision_in_linear", lowest_precision(start["schedule"]));
    for (const char* of_adapters : {"rank", "alpha"}) {
      const ordered_json value = lora(start, of_adapters);
      if (!value.is_null()) point((std::string("lora_") + of_adapters).c_str(), value);
    }
  }

  /// A field of the run's LoRA options; null if the whole model trains.
  static ordered_json lora(const ordered_json& start, const char* key) {
    const ordered_json& config = start["config"];
    const bool has = config.contains("lora") && config["lora"].is_object() && config["lora"].contains(key);
    return has ? config["lora"][key] : ordered_json(nullptr);
  }

  /// Is it the benchmark's model? The closed division has no smaller one, with any hyper-parameters.
  static bool is_reference_model(const ordered_json& start) {
    struct shape {
      const char* benchmark;
      int hidden, intermediate, layers, heads, key_value_heads, vocabulary;
      double rope_theta;
      bool scales_rope;
    };
    constexpr shape shapes[] = {{"llama31_8b", 4096, 14336, 32, 32, 8, 128256, 500000, true},
                                {"llama2_70b_lora", 8192, 28672, 80, 64, 8, 32000, 10000, false}};
    const ordered_json &m = start["config"]["model"], &benchmark = start["config"]["train"]["mlperf"];
    return std::any_of(std::begin(shapes), std::end(shapes), [&](const shape& s) {
      return benchmark == s.benchmark && m["hidden_size"] == s.hidden && m["intermediate_size"] == s.intermediate &&
             m["num_hidden_layers"] == s.layers && m["num_attention_heads"] == s.heads &&
             m["num_key_value_heads"] == s.key_value_heads && m["vocab_size"] == s.vocabulary && m["head_dim"] == 128 &&
             m["rms_norm_eps"] == 1e-5 && m["rope_theta"] == s.rope_theta &&
             m["rope_scaling"].is_null() != s.scales_rope && m["tie_word_embeddings"] == false;
    });
  }

  /// "closed" if all settings agree with the closed division. The program cannot know whether the data do.
  static const char* division(const ordered_json& start) {
    const ordered_json& o = start["config"]["train"];
    train_options rules;
    rules.mlperf = o["mlperf"].get<std::string>();
    set_mlperf_defaults(rules);
    const ordered_json wanted = io::to_json(rules);
    const auto has = [&](std::initializer_list<const char*> keys) {
      return std::all_of(keys.begin(), keys.end(),
                         [&](const char* key) { return o[key].get<double>() == wanted[key].get<double>(); });
    };
    bool closed = is_reference_model(start) &&
                  has({"sequence", "weight_decay", "clip", "eval_every_samples", "eval_windows", "target_loss"});
    if (rules.mlperf == "llama31_8b") {
      closed = closed && has({"steps", "decay_steps", "beta1", "beta2", "epsilon", "final_learning_rate"});
    } else {
      closed = closed && lora(start, "rank") == 16 && lora(start, "alpha") == 32 && lora(start, "dropout") == 0.1 &&
               lora(start, "targets") == ordered_json::array({"qkv_proj", "o_proj"});
    }
    return closed ? "closed" : "open";
  }

  void start_block(std::int64_t step) {
    block_step_ = step;
    block_ms_ = milliseconds_since_1970();
    line(block_ms_, "INTERVAL_START", "block_start", nullptr, samples(step));
  }
  void stop_block(std::int64_t step, std::int64_t ms) {
    const double seconds = std::max(1e-3, static_cast<double>(ms - block_ms_) * 1e-3);
    const double rate = static_cast<double>((step - block_step_) * batch_) / seconds;
    line(ms, "POINT_IN_TIME", "tracked_stats", {{"throughput", rate}}, samples(step));
    line(ms, "INTERVAL_END", "block_stop", nullptr, samples(step));
    block_step_ = -1;
  }
  void evaluation(const ordered_json& record) {
    const std::int64_t step = record["step"], now = milliseconds_since_1970();
    const auto began = now - static_cast<std::int64_t>(record["seconds"].get<double>() * 1e3);
    if (block_step_ >= 0) stop_block(step, began);
    line(began, "INTERVAL_START", "eval_start", nullptr, samples(step));
    line(now, "POINT_IN_TIME", "eval_accuracy", record["val_loss"], samples(step));
    line(now, "INTERVAL_END", "eval_stop", nullptr, samples(step));
    reached_ = reached_ || (record["val_loss"].is_number() && record["val_loss"].get<double>() <= target_);
    if (reached_) return stop_run("success", step);
    start_block(step);
  }
  void end(const ordered_json& record) {
    const std::int64_t step = record["step"];
    if (block_step_ >= 0) stop_block(step, milliseconds_since_1970());
    stop_run("aborted", step);
  }
  /// The clock stops at the evaluation that meets the target. Later work does not count.
  void stop_run(const char* status, std::int64_t step) {
    if (stopped_) return;
    stopped_ = true;
    ordered_json metadata = samples(step);
    metadata["status"] = status;
    line(milliseconds_since_1970(), "INTERVAL_END", "run_stop", nullptr, metadata);
  }

  fs::path path_;
  io::append_file file_;
  std::int64_t began_ms_, batch_ = 1, step_ = 0, block_step_ = -1, block_ms_ = 0;
  double target_ = 0;
  bool reached_ = false, stopped_ = false;
};

}  // namespace

std::unique_ptr<log_sink> make_mlperf_log(const fs::path& path, std::int64_t began_ms) {
  return std::make_unique<mlperf_log>(path, began_ms);
}

}  // namespace rotoscale::program
