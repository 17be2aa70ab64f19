// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "train/statistics.hpp"

#include "rotoscale/io/json.hpp"

namespace rotoscale::llama_program {

namespace {

using nlohmann::ordered_json;

ordered_json maybe(const std::optional<double>& x) { return x ? ordered_json(*x) : ordered_json(nullptr); }

constexpr const char* kind_names[] = {"qkv", "o", "gate_up", "down"};
constexpr const char* gemm_names[] = {"fprop", "dgrad", "wgrad"};
constexpr const char* tensor_names[] = {"x", "w", "dy"};

/// What all records of a linear layer begin with; the head, the last of `count`, belongs to no decoder layer.
ordered_json begin_record(const char* event, std::int64_t step, index_t linear, index_t count) {
  ordered_json record = {{"event", event}, {"step", step}};
  const bool head = linear + 1 == count;
  record["layer"] = head ? ordered_json(nullptr) : ordered_json(linear / 4);
  record["linear"] = head ? "head" : kind_names[linear % 4];
  return record;
}

void add_operand(ordered_json& record, const nn::operand_statistics& s) {
  record["amax"] = s.amax;
  record["rms"] = s.rms();
  record["crest"] = maybe(s.source_crest());
  record["rotated_crest"] = maybe(s.crest());
  record["sqnr_db"] = maybe(s.sqnr_db());
  record["flushed"] = s.flushed_share();
  record["saturated"] = s.saturated_share();
  record["nonfinite"] = s.nonfinite;
  if (s.rows == 0) return;  // no block scales
  record["spread_mean"] = s.mean_spread();
  record["spread_max"] = s.spread_max;
  record["rows_int8"] = nn::operand_statistics::share(s.rows_int8, s.rows);
  record["rows_e5m2"] = nn::operand_statistics::share(s.rows_e5m2, s.rows);
}

/// All null where nothing was compared: 0 would be a measurement.
void add_gradient(ordered_json& record, const nn::comparison_statistics& s) {
  const bool measured = s.elements > 0;
  record["norm"] = measured ? ordered_json(std::sqrt(s.reference_squares)) : ordered_json(nullptr);
  record["noise"] = measured ? ordered_json(std::sqrt(s.error_squares)) : ordered_json(nullptr);
  record["relative_error"] = maybe(s.relative_error());
  record["cosine"] = maybe(s.cosine());
  record["norm_to_noise"] = maybe(s.norm_to_noise());
}

}  // namespace

std::int64_t statistics_interval(const std::filesystem::path& file) {
  std::int64_t every = 0;
  if (!std::filesystem::exists(file)) return every;
  for (const ordered_json& record : io::read_jsonl(file)) every = record.value("every", every);
  return every;
}

statistics_log::statistics_log(const std::filesystem::path& file, const std::string& name, std::int64_t every,
                               std::int64_t step, bool resumed) {
  const bool append = resumed && std::filesystem::exists(file);
  log_ =
      std::make_unique<io::jsonl_writer>(file, append ? io::jsonl_writer::mode::append : io::jsonl_writer::mode::write);
  if (append) {
    log_->write({{"event", "resume"}, {"schema", statistics_schema}, {"step", step}, {"every", every}});
  } else {
    log_->write({{"event", "start"}, {"schema", statistics_schema}, {"step", step}, {"every", every}, {"name", name}});
  }
}

void statistics_log::write_adapters(std::int64_t step, const llama::model& model,
                                    std::span<const llama::linear_statistics> observed) {
  const auto& layers = model.parameters().layers();
  for (std::size_t i = 0; i < 4 * layers.size(); ++i) {
    for (const llama::adapter_parameters& own : layers[i / 4].adapters[i % 4]) {
      for (const auto& [number, matrix] : {std::pair(own.a, ".lora_A"), std::pair(own.b, ".lora_B")}) {
        const auto& s = observed[static_cast<std::size_t>(model.observed_number(number))];
        if (s.gradient.elements == 0) continue;
        ordered_json record = begin_record("gradient", step, static_cast<index_t>(i), model.linear_count());
        record["tensor"] = std::string(own.target.name) + matrix;
        add_gradient(record, s.gradient);
        log_->write(record);
      }
    }
  }
}

void statistics_log::write(std::int64_t step, const std::string& recipe, const llama::model& model,
                           std::span<const llama::linear_statistics> observed) {
  const index_t count = model.linear_count();
  for (index_t i = 0; i < count; ++i) {
    const llama::linear_statistics& l = observed[static_cast<std::size_t>(i)];
    for (int u = 0; u < llama::operands_per_linear; ++u) {
      if (l.operands[u].elements == 0) continue;
      const nn::operand_use& use = nn::operand_uses[u];
      ordered_json record = begin_record("operand", step, i, count);
      record["tensor"] = tensor_names[static_cast<int>(use.tensor)];
      record["gemm"] = gemm_names[static_cast<int>(use.gemm)];
      record["format"] = to_string(nn::recipe_for(model.linear_layer(i).current(), use.tensor, use.form).format);
      add_operand(record, l.operands[u]);
      log_->write(record);
    }
    if (l.gradient.elements == 0) continue;
    ordered_json record = begin_record("gradient", step, i, count);
    add_gradient(record, l.gradient);
    log_->write(record);
  }
  write_adapters(step, model, observed);
  ordered_json record = {{"event", "step"}, {"step", step}, {"recipe", recipe}};
  add_gradient(record, llama::all_gradients(observed));
  record["stall"] = nn::stall_ratio;
  log_->write(record);
}

}  // namespace rotoscale::llama_program
