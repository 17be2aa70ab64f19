// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Reads statistics.jsonl, in the directory of a run's log (docs/reference/logs.md), and writes all records as one CSV
// file.

#include <algorithm>
#include <filesystem>

#include "report/parts.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/io/jsonl.hpp"

namespace rotoscale::program::report_parts {

namespace {

constexpr std::int64_t schema = 1;

[[noreturn]] void refuse(const std::string& file, std::size_t record, const std::string& what) {
  throw io::error(file + ": record " + std::to_string(record + 1) + ": " + what);
}

std::int64_t step_of(const json& r, const std::string& file, std::size_t index) {
  const auto step = r.find("step");
  if (step == r.end() || !step->is_number_integer()) refuse(file, index, "\"step\" is missing or not an integer");
  return step->get<std::int64_t>();
}

observation read_observation(const json& r, const std::string& event, std::int64_t step) {
  observation o;
  o.step = step;
  o.event = event;
  for (const auto& [key, value] : r.items()) {
    if (key == "step" || key == "event") continue;
    if (key == "layer" && value.is_number_integer()) o.layer = value.get<std::int64_t>();
    if (key == "linear" && value.is_string()) o.linear = value.get<std::string>();
    if (key == "tensor" && value.is_string()) o.tensor = value.get<std::string>();
    if (key == "gemm" && value.is_string()) o.gemm = value.get<std::string>();
    if (key != "layer" && value.is_number()) o.numbers[key] = value.get<double>();
  }
  return o;
}

}  // namespace

std::vector<observation> read_observations(const std::string& file) {
  std::vector<observation> found;
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return found;
  const std::vector<json> records = io::read_jsonl(file);
  for (std::size_t i = 0; i < records.size(); ++i) {
    const json& r = records[i];
    if (!r.is_object() || !r.contains("event") || !r["event"].is_string()) {
      refuse(file, i, "no text \"event\", so these are no statistics");
    }
    const std::string event = r["event"].get<std::string>();
    const std::int64_t step = step_of(r, file, i);
    if (event == "start" || event == "resume") {
      if (r.value("schema", json()) != schema) refuse(file, i, "\"schema\" is not " + std::to_string(schema));
      std::erase_if(found, [&](const observation& o) { return o.step > step; });
    } else if (event == "operand" || event == "gradient" || event == "noise" || event == "step" ||
               event == "noise_step") {
      found.push_back(read_observation(r, event, step));
    }  // others are of a newer trainer
  }
  return found;
}

std::string statistics_csv(const std::vector<arm>& arms) {
  constexpr const char* figures[] = {"amax",      "rms",          "crest",     "rotated_crest", "sqnr_db",
                                     "flushed",   "saturated",    "nonfinite", "spread_mean",   "spread_max",
                                     "rows_int8", "rows_e5m2",    "norm",      "noise",         "relative_error",
                                     "cosine",    "norm_to_noise"};
  std::string s = "arm,event,step,layer,linear,tensor,gemm";
  for (const char* figure : figures) s += std::string(",") + figure;
  s += "\n";
  for (const arm& a : arms) {
    for (const observation& o : a.observations) {
      s += csv_field(a.name) + "," + o.event + "," + std::to_string(o.step) + "," +
           (o.layer ? std::to_string(*o.layer) : "") + "," + csv_field(o.linear) + "," + csv_field(o.tensor) + "," +
           csv_field(o.gemm);
      for (const char* figure : figures) {
        const auto at = o.numbers.find(figure);
        s += "," + (at == o.numbers.end() ? "" : exact(at->second));
      }
      s += "\n";
    }
  }
  return s;
}

}  // namespace rotoscale::program::report_parts
