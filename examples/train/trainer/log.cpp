// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "trainer/log.hpp"

#include <utility>

#include "commit.hpp"
#include "rotoscale/io/jsonl.hpp"
#include "rotoscale/version.hpp"
#include "throughput.hpp"

namespace rotoscale::program {

using nlohmann::ordered_json;

namespace {

#if defined(__clang__)
constexpr const char* compiler = __VERSION__;  // "Debian Clang 14.0.6"
#else
constexpr const char* compiler = "g++ " __VERSION__;
#endif

/// Bytes in use and the most over the run's recipes, by category.
ordered_json memory_record(const train::session& s) {
  ordered_json record = ordered_json::object();
  for (const auto& entry : enum_names<nn::memory_category>::table) {
    record[std::string(entry.name)] = {{"bytes", s.in_use()[entry.value]}, {"peak", s.plan()[entry.value]}};
  }
  constexpr nn::memory_kind device = nn::memory_kind::device;
  record["device"] = {{"bytes", s.in_use().of_kind(device)}, {"peak", s.plan().of_kind(device)}};
  record["total"] = {{"bytes", s.in_use().total()}, {"peak", s.plan().total()}};
  return record;
}

/// The contract of each operation, from the backend.
ordered_json contract_record(const train::session& s) {
  ordered_json record = ordered_json::object();
  constexpr std::pair<const char*, nn::gemm_kind> kinds[] = {
      {"fprop", nn::gemm_kind::fprop}, {"dgrad", nn::gemm_kind::dgrad}, {"wgrad", nn::gemm_kind::wgrad}};
  const auto add = [&](const std::string& prefix, const nn::linear* l) {
    if (l == nullptr) return;
    for (const auto& [name, kind] : kinds) record[prefix + name] = l->contract(kind).name;
  };
  add("", &s.model().linears().middle());
  add("head_", &s.model().head());
  add("bf16_layers_", s.model().linears().exempt());
  add("adapters_", s.model().linears().adapter());
  record["attention"] = s.model().attention().name;
  for (const nn::operation_contract& c : nn::reference_contracts()) record[c.operation] = c.name;
  return record;
}

}  // namespace

ordered_json start_record(const trainer_state& state, const train::session& model, const corpus& text, int threads,
                          const ordered_json& roof) {
  ordered_json schedule = ordered_json::array();
  for (const auto& p : state.phases) schedule.push_back(io::to_json(p));
  return {{"event", "start"},
          {"schema", log_schema},
          {"name", state.run.name},
          {"version", ROTOSCALE_VERSION},
          {"commit", ROTOSCALE_COMMIT},
          {"device", model.ops().description()},
          {"compiler", compiler},
          {"threads", threads},
          {"seed", state.run.train.seed},
          {"config", io::to_json(state.run)},
          {"schedule", schedule},
          {"contracts", contract_record(model)},
          {"memory", memory_record(model)},
          {"parameters", model.model().parameters().count()},
          {"trained_parameters", model.model().parameters().trained_count()},
          {"flops_per_token", model_flops_per_token(model.model(), state.run.train.sequence)},
          {"roof", roof},
          {"warmup_steps", warmup_steps(state.run.train)},
          {"decay_steps", decay_steps(state.run.train)},
          {"data_kind", text.kind()},
          {"long_records", text.long_records()},
          {"train_tokens", text.train_tokens()},
          {"val_tokens", text.validation_tokens()},
          {"train_windows", text.train_windows()},
          {"val_windows", text.validation_windows()}};
}

std::vector<ordered_json> read_log(const std::filesystem::path& log) {
  std::vector<ordered_json> records = io::read_jsonl(log);
  for (std::size_t i = 0; i < records.size(); ++i) {
    const ordered_json& r = records[i];
    const bool named = r.is_object() && r.contains("event") && r["event"].is_string();
    const auto has_wrong = [&](const char* key) { return r.contains(key) && !r[key].is_number(); };
    if (!named || has_wrong("step") || has_wrong("seconds")) {
      throw io::error(log.string(), "record " + std::to_string(i + 1) + " is none of a training log");
    }
  }
  return records;
}

bool log_begins_with_start(const std::filesystem::path& log) {
  const auto records = read_log(log);
  return !records.empty() && records.front()["event"] == "start";
}

double logged_seconds(const std::filesystem::path& log, std::int64_t step) {
  double seconds = 0;
  if (!std::filesystem::exists(log)) return seconds;
  for (const ordered_json& record : read_log(log)) {
    if (record["event"] == "step" && record.value("step", std::int64_t{0}) == step) {
      seconds = record.value("seconds", 0.0);
    }
  }
  return seconds;
}

}  // namespace rotoscale::program
