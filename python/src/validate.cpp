// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The tasks of rotoscale-validate on tensors in memory or in a file. Options have the program's names.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <charconv>

#include "arrays.hpp"
#include "examples/validate/quantizer/report.hpp"
#include "examples/validate/run.hpp"
#include "module.hpp"
#include "runtime.hpp"

namespace rotoscale::python {
namespace {

namespace v = validate;

struct request : v::gemm_request {
  v::quantizer_options quantizer;
  index_t sample = 0;  ///< 0: the default of the task
};

/// An option as the caller gave it: its name without dashes and its value as text.
struct given_option {
  const std::string &name, &value;

  [[noreturn]] void refuse(const std::string& expected) const {
    fail("--" + name + ": '" + value + "', expected " + expected);
  }
  template <class T>
  T number(T least, T most) const {
    T n{};
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
    if (error == std::errc() && end == value.data() + value.size() && n >= least && n <= most) return n;
    refuse("a number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  float real() const { return number<float>(-3.4028234663852886e38f, 3.4028234663852886e38f); }
  bool flag() const { return one_of({"True", "False"}) == "True"; }
  std::string one_of(const std::vector<std::string>& all) const {
    for (const std::string& one : all) {
      if (one == value) return value;
    }
    std::string list;
    for (const std::string& one : all) list += (list.empty() ? "" : ", ") + one;
    refuse(list);
  }
  template <class E>
  std::string name_of() const {
    return std::string(to_string(named<E>(name.c_str(), value)));
  }
  template <std::size_t N>
  std::string format_of(const format (&all)[N]) const {
    if (const auto f = v::find_format(value, all)) return std::string(to_string(*f));
    refuse(v::format_list(all));
  }
  std::vector<std::string> list() const {
    std::vector<std::string> all;
    for (std::size_t at = 0; at <= value.size();) {
      const std::size_t comma = std::min(value.find(',', at), value.size());
      all.push_back(value.substr(at, comma - at));
      at = comma + 1;
    }
    return all;
  }
};

struct known_option {
  const char* name;
  void (*set)(request&, const given_option&);
};

constexpr index_t most_k = 1 << 20;
constexpr known_option gemm_options_by_name[] = {
    {"model", [](request& r, const given_option& o) { r.model = o.value; }},
    {"kernel", [](request& r, const given_option& o) { r.kernel = o.value; }},
    {"nan",
     [](request& r, const given_option& o) {
       r.any_nan = o.one_of({"bits", "any"}) == "any";
     }},
    {"a-format", [](request& r, const given_option& o) { r.files.a_format = o.value; }},
    {"b-format", [](request& r, const given_option& o) { r.files.b_format = o.value; }},
    {"scale-format", [](request& r, const given_option& o) { r.files.scale_format = o.format_of(v::scale_formats); }},
    {"scale-layout", [](request& r, const given_option& o) { r.files.scale_layout = o.value; }},
    {"promotion", [](request& r, const given_option& o) { r.promotion = o.number<index_t>(0, most_k); }},
    {"split-k", [](request& r, const given_option& o) { r.split_k = o.number<index_t>(1, 1024); }},
    {"split-grain", [](request& r, const given_option& o) { r.split_grain = o.number<index_t>(1, most_k); }},
    {"split-run", [](request& r, const given_option& o) { r.split_run = o.number<index_t>(0, most_k); }},
    {"split-order", [](request& r, const given_option& o) { r.split_order = o.name_of<split_order>(); }},
    {"split-sum", [](request& r, const given_option& o) { r.split_sum = o.format_of(v::float_formats); }},
    {"output-rounding",
     [](request& r, const given_option& o) {
       r.output_rounding = o.one_of({"nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd"});
     }},
    {"epilogue-c", [](request& r, const given_option& o) { r.epilogue_c = o.flag(); }},
    {"alpha", [](request& r, const given_option& o) { r.alpha = o.real(); }},
    {"beta", [](request& r, const given_option& o) { r.beta = o.real(); }},
    {"output", [](request& r, const given_option& o) { r.output = o.format_of(v::float_formats); }},
    {"add-after-rounding", [](request& r, const given_option& o) { r.add_after_rounding = o.flag(); }},
    {"transposed-d", [](request& r, const given_option& o) { r.transposed_d = o.flag(); }},
    {"ignore", [](request& r, const given_option& o) { r.files.ignored = o.list(); }},
    {"sample", [](request& r, const given_option& o) { r.sample = o.number<index_t>(1, 100000000); }},
};
constexpr known_option quantizer_options_by_name[] = {
    {"quantizer", [](request& r, const given_option& o) { r.quantizer.preset = o.value; }},
    {"format", [](request& r, const given_option& o) { r.quantizer.format = o.value; }},
    {"rotation", [](request& r, const given_option& o) { r.quantizer.rotation = o.value; }},
    {"signs", [](request& r, const given_option& o) { r.quantizer.signs = o.value; }},
    {"scale-rule", [](request& r, const given_option& o) { r.quantizer.rule = o.value; }},
    {"policy", [](request& r, const given_option& o) { r.quantizer.policy = o.value; }},
    {"rounding", [](request& r, const given_option& o) { r.quantizer.rounding = o.value; }},
    {"source", [](request& r, const given_option& o) { r.quantizer.source = o.format_of(v::float_formats); }},
    {"factor", [](request& r, const given_option& o) { r.quantizer.factor = o.real(); }},
    {"block-rows", [](request& r, const given_option& o) { r.quantizer.block_rows = o.number(1, 256); }},
    {"code-placement", [](request& r, const given_option& o) { r.quantizer.code_order = o.name_of<placement>(); }},
    {"scale-placement", [](request& r, const given_option& o) { r.quantizer.scale_order = o.name_of<placement>(); }},
    {"nibbles",
     [](request& r, const given_option& o) {
       r.quantizer.nibbles = o.one_of({"low", "high", "halves"});
     }},
    {"detail", [](request& r, const given_option& o) { r.quantizer.details = o.list(); }},
    {"scale-padding", [](request& r, const given_option& o) { r.quantizer.scale_padding = o.value; }},
    {"random-seed", [](request& r, const given_option& o) { r.quantizer.seed = o.number<std::uint64_t>(0, ~0ull); }},
    {"random-stream",
     [](request& r, const given_option& o) { r.quantizer.stream = o.number<std::uint64_t>(0, ~0ull); }},
    {"random-bits", [](request& r, const given_option& o) { r.quantizer.random_count = o.number(1, 32); }},
};

using option_list = std::vector<std::pair<std::string, std::string>>;

request request_of(const option_list& options) {
  request r;
  std::vector<std::string> known;
  for (const known_option& o : gemm_options_by_name) known.emplace_back(o.name);
  for (const known_option& o : quantizer_options_by_name) known.emplace_back(o.name);
  for (const auto& [name, value] : options) {
    const known_option* found = nullptr;
    for (const known_option& o : gemm_options_by_name) found = name == o.name ? &o : found;
    for (const known_option& o : quantizer_options_by_name) found = name == o.name ? &o : found;
    if (found == nullptr) throw io::error("--" + name, "is no option" + io::did_you_mean(name, known));
    found->set(r, {name, value});
    r.given.push_back("--" + name);
  }
  r.quantizer.given = r.given;
  return r;
}

/// The report of rotoscale-validate as JSON, of a comparison or of --identify. `content` is a safetensors file in
/// memory; if it is empty, `name` is a path.
std::string report_on(const std::string& name, const nb::bytes& content, const option_list& options, bool identify) {
  const std::string bytes(content.c_str(), content.size());
  const request r = request_of(options);
  const v::verb task = identify ? v::verb::identify : v::verb::compare;
  const std::shared_ptr<thread_pool> threads = pool();
  nlohmann::ordered_json report;
  without_gil([&] {
    const auto file = bytes.empty() ? io::safetensors_file::open(name) : io::safetensors_file::from_bytes(name, bytes);
    const bool of_quantizer = !r.quantizer.preset.empty() || file.find("x") != nullptr;
    v::refuse_idle_options(r.given, of_quantizer, task);
    if (of_quantizer && r.quantizer.preset.empty() && !identify) throw io::error("--quantizer", "needed");
    const index_t sample = r.sample != 0 ? r.sample : of_quantizer ? v::default_dump_sample : v::default_sample;
    if (of_quantizer) {
      report = identify
                   ? v::report_of(name, r.quantizer.preset, v::identify_quantizer(r.quantizer, file, sample, *threads))
                   : v::report_of(name, v::check_quantizer(r.quantizer, file, *threads));
    } else {
      report = identify ? v::report_of(name, r, v::identify_gemm(r, file, task, sample, *threads))
                        : v::report_of(name, r, v::check_gemm(r, file, *threads));
    }
  });
  return report.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

void add_validate(nb::module_& m) {
  using nb::arg;
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const io::error& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    }
  });
  m.def("validate_report", &report_on, arg("name"), arg("content"), arg("options"), arg("identify"),
        "The report of rotoscale-validate as JSON text; options are pairs (name, value).");
}

}  // namespace rotoscale::python
