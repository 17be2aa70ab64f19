// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "trainer/statistics.hpp"

#include "rotoscale/io/json.hpp"

namespace rotoscale::program {

namespace {

using nlohmann::ordered_json;

constexpr const char* kind_names[] = {"qkv", "o", "gate_up", "down"};
constexpr const char* gemm_names[] = {"fprop", "dgrad", "wgrad"};
constexpr const char* tensor_names[] = {"x", "w", "dy"};

/// Common fields of all records of a linear layer. The head, the last of `count`, belongs to no decoder layer.
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
  record["crest"] = io::to_json(s.source_crest());
  record["rotated_crest"] = io::to_json(s.crest());
  record["sqnr_db"] = io::to_json(s.sqnr_db());
  record["flushed"] = s.flushed_share();
  record["saturated"] = s.saturated_share();
  record["nonfinite"] = s.nonfinite;
  if (s.rows == 0) return;  // no block scales
  record["spread_mean"] = s.mean_spread();
  record["spread_max"] = s.spread_max;
  record["rows_int8"] = nn::operand_statistics::share(s.rows_int8, s.rows);
  record["rows_e5m2"] = nn::operand_statistics::share(s.rows_e5m2, s.rows);
}

/// All fields are null if nothing was compared. 0 would be a measurement.
void add_gradient(ordered_json& record, const nn::comparison_statistics& s) {
  const bool measured = s.elements > 0;
  record["norm"] = measured ? ordered_json(std::sqrt(s.reference_squares)) : ordered_json(nullptr);
  record["noise"] = measured ? ordered_json(std::sqrt(s.error_squares)) : ordered_json(nullptr);
  record["relative_error"] = io::to_json(s.relative_error());
  record["cosine"] = io::to_json(s.cosine());
  record["norm_to_noise"] = io::to_json(s.norm_to_noise());
}

/// Calls use(linear, tensor, number) for each adapter's A and B: index of its linear layer, name such as
/// "q_proj.lora_A", number of the parameter.
template <class Use>
void for_each_adapter(const train::model& model, const Use& use) {
  for (const train::adapter_parameters& own : model.parameters().adapters()) {
    use(own.linear, std::string(own.target.name) + ".lora_A", own.a);
    use(own.linear, std::string(own.target.name) + ".lora_B", own.b);
  }
}

}  // namespace

statistics_choice read_statistics_choice(const std::filesystem::path& file) {
  statistics_choice choice;
  if (!std::filesystem::exists(file)) return choice;
  for (const ordered_json& record : io::read_jsonl(file)) {
    if (record.contains("every")) choice = {record.value("every", choice.every), record.value("noise", false)};
  }
  return choice;
}

std::vector<nn::comparison_statistics> compare_gradients(const train::parameter_list& parameters,
                                                         std::span<const float> gradients,
                                                         std::span<const float> reference) {
  std::vector<nn::comparison_statistics> each;
  for (const train::parameter& p : parameters.all()) {
    each.emplace_back();
    if (!p.trains) continue;
    const auto first = static_cast<std::size_t>(p.offset), count = static_cast<std::size_t>(p.size());
    each.back() = nn::compare(gradients.subspan(first, count), reference.subspan(first, count));
  }
  return each;
}

nn::comparison_statistics sum_of(std::span<const nn::comparison_statistics> each) {
  nn::comparison_statistics sum;
  for (const nn::comparison_statistics& s : each) sum.add(s);
  return sum;
}

statistics_log::statistics_log(const std::filesystem::path& file, const std::string& name,
                               const statistics_choice& choice, std::int64_t step, bool resumed) {
  const bool append = resumed && std::filesystem::exists(file);
  log_ =
      std::make_unique<io::jsonl_writer>(file, append ? io::jsonl_writer::mode::append : io::jsonl_writer::mode::write);
  ordered_json record = {
      {"event", append ? "resume" : "start"}, {"schema", statistics_schema}, {"step", step}, {"every", choice.every}};
  if (!append) record["name"] = name;
  if (choice.noise) record["noise"] = true;
  log_->write(record);
}

void statistics_log::write_gradient(const char* event, std::int64_t step, index_t linear, index_t count,
                                    const std::string& tensor, const nn::comparison_statistics& s) {
  if (s.elements == 0) return;  // does not train
  ordered_json record = begin_record(event, step, linear, count);
  if (!tensor.empty()) record["tensor"] = tensor;
  add_gradient(record, s);
  log_->write(record);
}

/// Statistics of all gradients of a step as one vector.
void statistics_log::write_sum(const char* event, std::int64_t step, const std::string& recipe,
                               const nn::comparison_statistics& s) {
  ordered_json record = {{"event", event}, {"step", step}, {"recipe", recipe}};
  add_gradient(record, s);
  record["stall"] = nn::stall_ratio;
  log_->write(record);
}

void statistics_log::write(std::int64_t step, const std::string& recipe, const train::model& model,
                           std::span<const train::linear_statistics> observed) {
  const auto& layers = model.linears().layers();
  const auto count = static_cast<index_t>(layers.size());
  for (index_t i = 0; i < count; ++i) {
    const train::linear_statistics& l = observed[static_cast<std::size_t>(i)];
    for (int u = 0; u < train::operands_per_linear; ++u) {
      if (l.operands[u].elements == 0) continue;
      const nn::operand_use& use = nn::operand_uses[u];
      ordered_json record = begin_record("operand", step, i, count);
      record["tensor"] = tensor_names[static_cast<int>(use.tensor)];
      record["gemm"] = gemm_names[static_cast<int>(use.gemm)];
      record["format"] =
          to_string(nn::recipe_for(layers[static_cast<std::size_t>(i)]->current(), use.tensor, use.form).format);
      add_operand(record, l.operands[u]);
      log_->write(record);
    }
    write_gradient("gradient", step, i, count, "", l.gradient);
  }
  for_each_adapter(model, [&](index_t linear, const std::string& tensor, std::size_t number) {
    const auto at = static_cast<std::size_t>(train::record_of(model.parameters(), number));
    write_gradient("gradient", step, linear, count, tensor, observed[at].gradient);
  });
  write_sum("step", step, recipe, train::all_gradients(observed));
}

void statistics_log::write_noise(std::int64_t step, const std::string& recipe, const train::model& model,
                                 std::span<const nn::comparison_statistics> each) {
  const auto& layers = model.linears().layers();
  const auto count = static_cast<index_t>(layers.size());
  for (index_t i = 0; i < count; ++i) {
    write_gradient("noise", step, i, count, "", each[layers[static_cast<std::size_t>(i)]->w.number]);
  }
  for_each_adapter(model, [&](index_t linear, const std::string& tensor, std::size_t number) {
    write_gradient("noise", step, linear, count, tensor, each[number]);
  });
  write_sum("noise_step", step, recipe, sum_of(each));
}

}  // namespace rotoscale::program
