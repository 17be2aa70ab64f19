// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Fuzz target over GEMM cases as rotoscale-validate reads them, and over what --make-case is asked for. The first byte
// chooses: a file as it stands; one made of the input, some of whose tensors come from .npy files; a case to make. What
// is read is refused with io::error, or compared, traced and (seldom, for it is slow) identified, and has no difference
// once it holds the model's own d. A case that was made is read again without a difference.
// fuzz: -I. examples/validate/applicable.cpp examples/validate/case.cpp examples/validate/compare.cpp
// fuzz: examples/validate/epilogue.cpp examples/validate/explain.cpp examples/validate/identify.cpp
// fuzz: examples/validate/input.cpp examples/validate/kernel_options.cpp examples/validate/make_case.cpp
// fuzz: examples/validate/quantizer/check.cpp examples/validate/quantizer/distribution.cpp
// fuzz: examples/validate/quantizer/dump.cpp examples/validate/quantizer/make.cpp
// fuzz: examples/validate/quantizer/presets.cpp
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "byte_choices.hpp"
#include "examples/validate/input.hpp"
#include "examples/validate/kernel_options.hpp"
#include "examples/validate/make_case.hpp"
#include "examples/validate/quantizer/check.hpp"
#include "examples/validate/quantizer/presets.hpp"
#include "quantizer_choices.hpp"
#include "rotoscale/gemm_ref.hpp"
#include "rotoscale/mma_cases.hpp"
#include "target.hpp"

namespace cases_fuzz {

namespace {

using namespace rotoscale;
using namespace rotoscale::validate;
using fuzz::byte_choices;
using fuzz::require;

constexpr std::size_t unit_count = std::size(models::all), kernel_count = std::size(gemm_contracts);

case_options chosen_files(byte_choices& in) {
  constexpr const char* elements[] = {"", "e4m3", "e2m1", "e5m2", "fp16", "e3m2", "F8_E4M3FNUZ", "fp64", "x"};
  constexpr const char* scales[] = {"", "e8m0", "ue4m3"};
  constexpr const char* layouts[] = {"plain", "plain", "plain", "nvidia", "hipblaslt", "aiter", "x"};
  case_options o;
  o.a_format = in.one_of(elements);
  o.b_format = in.one_of(elements);
  o.scale_format = in.one_of(scales);
  o.scale_layout = in.one_of(layouts);
  const int ignored = in.below(16);
  if (ignored == 1) o.ignored = {"c"};
  if (ignored == 2) o.ignored = {"bias", "c"};
  return o;
}

use_options chosen_options(byte_choices& in) {
  constexpr index_t counts[] = {1, 1, 1, 2, 3, 4, 8, 1024};
  constexpr const char* orders[] = {"ascending", "descending", "pairwise"};
  constexpr const char* types[] = {"fp32", "fp16", "bf16"};
  constexpr float factors[] = {1, 1, 1, 0.5f, -3, 0, 1e38f, 0.1f};
  const auto roundings = names(rounding{});
  use_options o;
  if (in.flag()) o.kernel = gemm_contracts[in.byte() % kernel_count].name;
  if (in.flag()) o.promotion = 16 * in.below(10);
  if (in.flag()) o.split_grain = 1 + in.below(64);
  o.split_k = in.one_of(counts);
  if (in.flag()) o.split_run = in.one_of(counts);
  o.split_order = in.one_of(orders);
  o.split_sum = in.one_of(types);
  if (in.flag()) {
    o.output_rounding = roundings[in.byte() % roundings.size()];
    if (o.output_rounding == "stochastic") o.output_rounding = "up";  // the option has all but it
  }
  if (in.flag()) o.output = in.one_of(types);
  o.alpha = in.one_of(factors);
  o.beta = in.one_of(factors);
  o.epilogue_c = in.flag();
  o.add_after_rounding = in.flag();
  return o;
}

/// A case whose extents mostly fit, of the bytes that are left; some tensors as arrays of NumPy.
class case_maker {
 public:
  explicit case_maker(byte_choices& in) {
    constexpr const char* operand_types[] = {"F8_E4M3", "F16",     "BF16",        "F4",  "F8_E5M2", "U8",
                                             "F32",     "F6_E2M3", "F8_E4M3FNUZ", "F64", "F16",     "I8"};
    constexpr const char* output_types[] = {"F32", "F32", "F32", "F16", "BF16", "F64", "I8"};
    constexpr const char* scale_types[] = {"F8_E8M0", "F8_E4M3", "U8", "I8"};
    constexpr std::int64_t depths[] = {64, 32, 16, 128, 8, 256, 4, 0, 48, 33};
    constexpr std::int64_t blocks[] = {32, 16, 32, 16, 1};
    const std::int64_t batch = in.below(8) == 0 ? 2 : 1, m = 1 + in.below(5), n = 1 + in.below(5),
                       k = in.one_of(depths);
    const std::string a = in.one_of(operand_types), b = in.below(4) == 0 ? in.one_of(operand_types) : a;
    const std::string d = in.one_of(output_types), scale = in.one_of(scale_types);
    const std::int64_t block = in.one_of(blocks);
    const int parts = in.byte();
    array_bits_ = in.byte();
    has_batch_ = (parts & 1) == 0 || batch != 1;
    const bool sparse = (parts & 2) != 0 && in.below(4) == 0, packed = (parts & 4) != 0;
    values_ = in.rest();
    add("a", a, batch, m, (sparse ? k / 2 : k) / (a == "U8" && packed ? 2 : 1));
    add("b", b, batch, n, k / (b == "U8" && packed ? 2 : 1));
    if ((parts & 8) == 0) add("d", d, batch, m, n);
    if ((parts & 16) != 0) add("c", d, batch, m, n);
    if ((parts & 32) != 0) add_tensor("bias", d, {n});
    if ((parts & 64) != 0) add("scale_a", scale, batch, m, k / block);
    if ((parts & 64) != 0) add("scale_b", scale, batch, n, k / block);
    if (sparse) add("metadata_a", "U8", batch, m, k / 8);
    if ((parts & 128) != 0 && in.below(8) == 0) add_tensor("e", "U8", {1});
  }

  io::safetensors_file merged() const {
    const auto file = io::safetensors_file::from_bytes("made", writer_.bytes("made"));
    return arrays_.empty() ? file : merge_tensors(arrays_, &file);
  }

 private:
  void add(const char* name, const std::string& type, std::int64_t batch, std::int64_t rows, std::int64_t columns) {
    if (has_batch_) return add_tensor(name, type, {batch, rows, columns});
    add_tensor(name, type, {rows, columns});
  }
  void add_tensor(const char* name, const std::string& type, std::vector<std::int64_t> shape) {
    constexpr std::pair<std::string_view, const char*> arrays[] = {{"F32", "f4"}, {"F16", "f2"},  {"F64", "f8"},
                                                                   {"U8", "u1"},  {"BF16", "V2"}, {"F8_E4M3", "V1"}};
    const auto size = io::detail::size_of_tensor(type, shape);
    if (!size.problem.empty()) return;
    std::vector<std::byte> bytes(static_cast<std::size_t>(size.bytes));
    for (std::byte& byte : bytes) byte = values_.empty() ? std::byte{0} : values_[at_++ % values_.size()];
    array_bits_ >>= 1;
    const auto array =
        std::find_if(std::begin(arrays), std::end(arrays), [&](const auto& t) { return t.first == type; });
    if ((array_bits_ & 1) == 0 || array == std::end(arrays)) return writer_.add(name, type, std::move(shape), bytes);
    const io::npy_header header{array->second, std::move(shape), (array_bits_ & 64) != 0};
    arrays_.emplace_back(name, io::npy_file::from_bytes(name, io::npy_bytes(header, bytes)));
  }

  std::span<const std::byte> values_;
  std::size_t at_ = 0;
  unsigned array_bits_ = 0;
  bool has_batch_ = true;
  io::safetensors_writer writer_;
  std::vector<named_array> arrays_;
};

/// Slow, so for one input in 1024.
bool is_chosen(const std::uint8_t* data, std::size_t size) {
  std::uint32_t hash = 2166136261u;
  for (std::size_t i = 0; i < size; ++i) hash = (hash ^ data[i]) * 16777619u;
  return hash >> 22 == 0;
}

void check_case(gemm_case x, const mma_unit& unit, const use_options& o, bool identifies, thread_pool& pool) {
  const kernel_use use = chosen_use(o, x, unit.model);
  check_use(o, use.gemm, x);
  const bool has_tails = o.kernel != "instruction";
  if (identifies) static_cast<void>(identify(x, use, has_tails, false, 4, pool));
  if (!mismatch(unit, x, has_tails).empty()) return;
  if (!x.is_fp64() && !gemm_is_defined(batch_operand(x.a, x.k, 0), batch_operand(x.b, x.k, 0), use.gemm)) return;
  const comparison found = compare(x, use, false, pool);
  require(found.elements == x.outputs() && (found.different != 0) == found.first.has_value());
  if (found.first) require(!trace(x, use.gemm, *found.first).empty());
  x.d = model_outputs(x, use, pool);
  require(compare(x, use, false, pool).different == 0);
}

void check_made_case(byte_choices& in, thread_pool& pool) {
  constexpr const char* elements[] = {"", "", "", "e4m3", "e2m1", "bf16", "x"};
  constexpr long long depths[] = {0, 0, 64, 128, 32, 1};
  make_options o;
  const mma_unit& unit = models::all[in.byte() % unit_count];
  o.model = unit.name;
  o.a_format = in.one_of(elements);
  o.b_format = in.one_of(elements);
  o.m = 1 + in.below(8);
  o.n = 1 + in.below(4);
  o.k = in.one_of(depths);
  if (in.below(64) == 1) o.m = o.k = 1 << 20;  // no memory holds it
  if (const int kind = in.below(16); kind < case_kinds) o.kind = case_kind_names[kind];
  o.seed = in.word();
  o.with_d = true;
  o.with_c = in.flag();
  const auto file = io::safetensors_file::from_bytes("made", make_case(o, pool).bytes("made"));
  const gemm_case x = load_case(file, {});
  const kernel_use use = chosen_use({}, x, unit.model);
  require(mismatch(unit, x, false).empty() && compare(x, use, false, pool).different == 0);
}

void check_made_dump(byte_choices& in, thread_pool& pool) {
  constexpr const char* axes[] = {"row", "column", "both"};
  constexpr const char* types[] = {"bf16", "fp32", "fp16"};
  constexpr index_t extents[] = {1 << 20, 1, 2, 3, 8, 16, 32, 64};  // no memory holds the square of the first
  quantizer_options o = fuzz::chosen_quantizer(in);
  for (const auto& [name, text] : {std::pair{"--rotation", &o.rotation}, std::pair{"--signs", &o.signs}}) {
    if (!text->empty()) o.given.emplace_back(name);  // refused where it has no meaning
  }
  o.axis = in.one_of(axes);
  o.x_format = in.one_of(types);
  const index_t rows = in.one_of(extents), cols = rows == extents[0] ? rows : in.one_of(extents);
  if (rows != cols && std::max(rows, cols) == extents[0]) return;
  const auto seed = std::uint64_t{in.word()};
  const auto made = make_quantizer_case(o, rows, cols, seed, true, pool).bytes("made");
  const auto [dump, q] = load_case(o, io::safetensors_file::from_bytes("made", made), pool);
  require(check_dump(q, dump, std::nullopt, pool).identical());
}

void one_input(const std::uint8_t* data, std::size_t size) {
  static thread_pool pool(1);
  byte_choices in(data, size);
  const int way = in.below(8);
  try {
    if (way == 6) return check_made_case(in, pool);
    if (way == 7) return check_made_dump(in, pool);
    const case_options files = chosen_files(in);
    const use_options use = chosen_options(in);
    const mma_unit& unit = models::all[in.byte() % unit_count];
    const auto file =
        way == 0 ? io::safetensors_file::from_bytes("input", std::string(in.rest_as_text())) : case_maker(in).merged();
    check_case(load_case(file, files), unit, use, is_chosen(data, size), pool);
  } catch (const io::error&) {
  }
}

const rotoscale::fuzz::target here("cases", one_input);

}  // namespace

}  // namespace cases_fuzz
