// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Emulated GEMMs under a named contract.
#include "gemm.hpp"

#include <nanobind/stl/unique_ptr.h>

#include "module.hpp"
#include "quantize.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/gemm_ref.hpp"
#include "rotoscale/nearest_name.hpp"
#include "rotoscale/nn/contracts.hpp"
#include "runtime.hpp"

namespace rotoscale::python {
namespace {

std::string bytes_text(const char* name, const std::string& what) { return std::string(name) + ": " + what; }

struct contract {
  gemm_options options;
  const mma_unit* unit = nullptr;  ///< null: a contract without a matrix unit
};

/// KERNEL, UNIT or KERNEL@UNIT, or a name that recipes have (nn/contracts.hpp).
contract find_contract_named(const std::string& name, index_t rows, index_t cols, index_t k) {
  contract found;
  const std::string_view base = std::string_view(name).substr(0, name.find(':'));
  const std::size_t at = base.find('@');
  const gemm_contract_entry* kernel = find_contract(base.substr(0, at));
  const std::string_view own = kernel == nullptr ? std::string_view() : std::string_view(kernel->unit);
  found.unit = find_unit(at != base.npos ? base.substr(at + 1) : kernel != nullptr ? own : base);
  if (const auto trained = nn::find_gemm_contract(name, rows, cols, k)) {
    found.options = trained->options;
    return found;
  }
  const bool is_known = found.unit != nullptr && (at == base.npos || (kernel != nullptr && own.empty()));
  if (is_known && base.size() == name.size()) {
    if (kernel == nullptr) kernel = find_contract("single-accumulator");
    found.options = contract_options(*kernel, found.unit->model);
    return found;
  }
  std::vector<std::string> all{nn::fp32_fma_chain_contract, nn::fp32_blockwise_contract};
  for (const mma_unit& u : models::all) all.emplace_back(u.name);
  for (const gemm_contract_entry& c : gemm_contracts) {
    if (*c.unit != '\0') all.emplace_back(c.name);
  }
  fail("contract: no '" + name + "'; the nearest name is '" + nearest_name(name, all) + "'");
}

void check_unit(const contract& c, const char* name, const gemm_operand& x) {
  if (c.unit == nullptr) return;
  const std::string unit = c.unit->name;
  if (!takes(*c.unit, x.element)) {
    fail(bytes_text(name, unit + " does not multiply " + std::string(to_string(x.element))));
  }
  if (c.unit->evidence == mma_evidence::definition || x.block == 0) return;
  if (c.unit->block == 0) fail(bytes_text(name, unit + " takes no block scales"));
  if (c.unit->block != x.block || c.unit->scale != x.scale) {
    fail(bytes_text(name, unit + " takes scales of " + std::string(to_string(c.unit->scale)) + " for " +
                              std::to_string(c.unit->block) + " elements"));
  }
}

/// The operands of Python, which keep their arrays alive.
std::unique_ptr<operand> read_plain(const char* name, nb::handle array, const text& element,
                                    std::optional<float> factor) {
  return plain_operand(name, read_array(name, array, element), factor);
}
std::unique_ptr<operand> read_blocks(const char* name, nb::handle codes, nb::handle scales, const std::string& format,
                                     bool square, index_t rows, index_t k, const std::string& code_order,
                                     const std::string& scale_order, float factor) {
  return block_operand(name, read_bytes("codes", codes), read_bytes("scales", scales), blocks_named(format, square),
                       rows, k, named<placement>("placement", code_order), named<placement>("placement", scale_order),
                       factor);
}

nb::object multiply_arrays(const operand& a, const operand& b, const std::string& contract_name, nb::handle c_in,
                           const std::string& output, float alpha) {
  std::optional<array_view> c;
  if (!c_in.is_none()) c = read_array("c", c_in, {});
  const new_array<float> out =
      make_array<float>({static_cast<std::size_t>(a.x.rows), static_cast<std::size_t>(b.x.rows)});
  without_gil([&] { multiply(a, b, contract_name, c ? &*c : nullptr, output, alpha, out.data); });
  return out.object;
}

}  // namespace

std::unique_ptr<operand> plain_operand(const char* name, array_view numbers, std::optional<float> factor) {
  auto o = std::make_unique<operand>();
  o->codes = std::move(numbers);
  const array_view& v = o->codes;
  if (v.axes() != 2) fail(bytes_text(name, "has shape " + shape_text(v.shape) + ", expected two axes"));
  const format f = v.element;
  const int bytes = storage_bits(f) < 8 ? 1 : storage_bits(f) / 8;
  const bool by_rows = v.strides[1] == 1 || v.shape[1] <= 1, by_columns = v.strides[0] == 1 || v.shape[0] <= 1;
  if (!by_rows && (!by_columns || storage_bits(f) < 8)) fail(bytes_text(name, "one axis must be contiguous"));
  const index_t stride = v.strides[by_rows ? 0 : 1];
  if (stride < 0) fail(bytes_text(name, "a stride is negative; make the array contiguous"));
  o->x = {.element = f,
          .rows = static_cast<index_t>(v.shape[0]),
          .k = static_cast<index_t>(v.shape[1]) * (storage_bits(f) < 8 ? 8 : storage_bits(f)) / storage_bits(f),
          .codes = static_cast<const std::uint8_t*>(v.data),
          .code_stride = stride * bytes,
          .transposed = !by_rows};
  if (factor) {
    o->factor = *factor;
    o->x.factor = &o->factor;
  }
  return o;
}

std::unique_ptr<operand> block_operand(const char* name, array_view codes, array_view scales, block_format f,
                                       index_t rows, index_t k, placement code_order, placement scale_order,
                                       float factor) {
  auto o = std::make_unique<operand>();
  o->codes = std::move(codes);
  o->scales = std::move(scales);
  o->factor = factor;
  const auto c = as_byte_rows("codes", o->codes), s = as_byte_rows("scales", o->scales);
  o->x = make_operand(f, {rows, k, c.data, c.stride(0), s.data, s.stride(0)}, &o->factor);
  o->x.code_order = code_order;
  o->x.scale_order = scale_order;
  const bool plain_codes = o->x.code_order == placement::row_major,
             plain_scales = o->x.scale_order == placement::row_major;
  if (!plain_scales) o->x.block_rows = 1;
  const layout cl = code_layout(o->x.code_order, f, rows, k), sl = scale_layout(o->x.scale_order, f, rows, k);
  const auto dense = [](const matrix<const std::uint8_t>& m) { return m.extent(0) <= 1 || m.stride(0) == m.extent(1); };
  const bool codes_fit = plain_codes ? c.extent(0) == rows && c.extent(1) == cl.columns
                                     : cl.is_defined() && dense(c) && c.size() == cl.size_bytes();
  const bool scales_fit = plain_scales ? s.extent(0) * f.rows == rows && s.extent(1) == sl.columns
                                       : sl.is_defined() && dense(s) && s.size() == sl.size_bytes();
  if (rows < 0 || k < 0 || k % f.length != 0) fail(bytes_text(name, "k is not a multiple of the block length"));
  if (!codes_fit) fail(bytes_text(name, "codes of shape " + shape_text(o->codes.shape) + " do not fit the tensor"));
  if (!scales_fit) fail(bytes_text(name, "scales of shape " + shape_text(o->scales.shape) + " do not fit the tensor"));
  return o;
}

void multiply(const operand& a, const operand& b, const std::string& contract_name, const array_view* c,
              const std::string& output, float alpha, float* out) {
  if (a.x.k != b.x.k) {
    fail("a and b: k is " + std::to_string(a.x.k) + " and " + std::to_string(b.x.k) + ", must be equal");
  }
  contract k = find_contract_named(contract_name, a.x.rows, b.x.rows, a.x.k);
  if (k.options.model.result == mma_result::fp64_nearest) fail("contract: " + contract_name + " has FP64 results");
  check_unit(k, "a", a.x);
  check_unit(k, "b", b.x);
  k.options.alpha = alpha;
  k.options.output = named<format>("output", output);
  const auto to = row_major(out, a.x.rows, b.x.rows);
  if (c != nullptr) {
    const extents shape{static_cast<std::size_t>(a.x.rows), static_cast<std::size_t>(b.x.rows)};
    if (c->element != formats::fp32) throw nb::type_error("c: expected float32");
    if (c->shape != shape) fail("c of shape " + shape_text(c->shape) + ": a and b give " + shape_text(shape));
    const matrix<const float> from = as_rows<float>("c", *c);
    for (index_t i = 0; i < a.x.rows; ++i) {
      for (index_t j = 0; j < b.x.rows; ++j) to(i, j) = from(i, j);
    }
    k.options.accumulate = !k.options.start_from_c;
  } else {
    k.options.start_from_c = false;
  }
  if (!gemm_is_defined(a.x, b.x, k.options))
    fail("contract: " + contract_name + " is not defined for these formats and blocks");
  const std::shared_ptr<thread_pool> threads = pool();
  kernels().gemm(a.x, b.x, k.options, to, *threads);
}

void add_gemm(nb::module_& m) {
  using nb::arg;
  nb::class_<operand>(m, "Operand", "An operand of gemm; keeps its arrays alive.");
  m.def("plain_operand", &read_plain, arg("name"), arg("array").none(), arg("element").none(), arg("factor").none());
  m.def("block_operand", &read_blocks, arg("name"), arg("codes").none(), arg("scales").none(), arg("format"),
        arg("square"), arg("rows"), arg("k"), arg("code_order"), arg("scale_order"), arg("factor"));
  m.def("gemm", &multiply_arrays, arg("a"), arg("b"), arg("contract"), arg("c").none(), arg("output"), arg("alpha"),
        "a times b transposed under a contract, as float32 numbers.");
}

}  // namespace rotoscale::python
