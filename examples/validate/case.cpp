// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "case.hpp"

#include <algorithm>
#include <cstring>

#include "input.hpp"

namespace rotoscale::validate {

namespace {

constexpr std::pair<const char*, placement> scale_orders[] = {{"plain", placement::row_major},
                                                              {"nvidia", placement::nvidia_scale_128x4},
                                                              {"hipblaslt", placement::hipblaslt_scale_32x8},
                                                              {"aiter", placement::aiter_scale}};

template <class Table>
std::string keys(const Table& table) {
  std::string all;
  for (const auto& [name, value] : table) all += (all.empty() ? "" : ", ") + std::string(name);
  return all;
}

class loader {
 public:
  loader(const io::safetensors_file& file, const case_options& options) : file_(file), options_(options) {}

  gemm_case load() {
    check_names();
    if (scale_order() == std::end(scale_orders)) throw io::error("--scale-layout", "none of " + keys(scale_orders));
    gemm_case x;
    x.compressed = file_.find("metadata_a") != nullptr;
    load_operand("a", options_.a_format, x.a, x);
    load_operand("b", options_.b_format, x.b, x);
    if (x.compressed) expand(x);
    x.m = x.a.rows;
    x.n = x.b.rows;
    const io::tensor_info& d = tensor("d");
    x.output = float_format("d", d);
    x.d = load_outputs("d", d, x);
    if (const io::tensor_info* c = file_.find("c")) x.c = load_outputs("c", *c, x);
    load_bias(x);
    const bool fp64 = x.is_fp64();
    if ((x.a.element == formats::fp64) != fp64 || (x.b.element == formats::fp64) != fp64) {
      fail(fp64 ? "d" : "a", "F64 requires that a, b and d are all F64");
    }
    load_scales("scale_a", x.a, x);
    load_scales("scale_b", x.b, x);
    for (const std::string& name : options_.ignored) {
      if (file_.find(name) == nullptr) throw io::error("--ignore", "there is no tensor '" + name + "'");
      if (name == "c") x.c.reset();
      if (name == "bias") x.bias.reset();
    }
    return x;
  }

 private:
  void load_bias(gemm_case& x) const {
    const io::tensor_info* t = file_.find("bias");
    if (t == nullptr) return;
    const format f = float_format("bias", *t);
    if (x.is_fp64() || f == formats::fp64) fail("bias", "must be F32, F16 or BF16, and so must d");
    if (t->shape != std::vector<std::int64_t>{x.n})
      fail("bias", "shape " + shape_text(t->shape) + " is not [" + std::to_string(x.n) + "]");
    const output_tensor row(f, raw(*t));
    x.bias.emplace();
    for (index_t j = 0; j < x.n; ++j) x.bias->push_back(static_cast<float>(row.value(j)));
  }

  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    throw io::error(file_.name(), "tensor '" + name + "': " + what);
  }

  void check_names() const {
    const std::vector<std::string> known{"a", "b", "c", "bias", "d", "scale_a", "scale_b", "metadata_a"};
    for (const io::tensor_info& t : file_.tensors()) {
      if (std::find(known.begin(), known.end(), t.name) == known.end()) {
        fail(io::printable(t.name),
             "not part of a case (a, b, d, and optionally c, bias, scale_a, scale_b, metadata_a)");
      }
    }
  }
  const io::tensor_info& tensor(const std::string& name) const {
    const io::tensor_info* t = file_.find(name);
    if (t == nullptr) fail(name, "missing");
    return *t;
  }

  /// Rows and columns of a tensor of rank 2 or 3; checks or sets x.batch.
  std::pair<index_t, index_t> extents(const std::string& name, const io::tensor_info& t, gemm_case& x) {
    if (t.shape.size() != 2 && t.shape.size() != 3) fail(name, "shape " + shape_text(t.shape) + " has not rank 2 or 3");
    const index_t batch = t.shape.size() == 3 ? t.shape[0] : 1;
    if (x.batch != 0 && batch != x.batch) {
      fail(name,
           "shape " + shape_text(t.shape) + " has batch " + std::to_string(batch) + ", not " + std::to_string(x.batch));
    }
    x.batch = batch;
    return {t.shape[t.shape.size() - 2], t.shape.back()};
  }

  void load_operand(const std::string& name, const std::string& u8_format, operand_data& out, gemm_case& x) {
    const io::tensor_info& t = tensor(name);
    auto [rows, columns] = extents(name, t, x);
    const bool u8 = holds_bytes(t.dtype);
    if (u8 && u8_format.empty())
      fail(name,
           "is " + t.dtype + ": --" + name + "-format must say what it holds (" + format_list(gemm_formats) + ")");
    const std::optional<format> type = find_format(u8 ? u8_format : t.dtype, gemm_formats);
    const std::optional<format> said = find_format(u8_format, gemm_formats);
    if (!u8 && !u8_format.empty() && !(said && type && *said == *type))
      throw io::error("--" + name + "-format", "tensor '" + name + "' is " + t.dtype + ", which says what it holds");
    if (!type && u8)
      throw io::error("--" + name + "-format", "'" + u8_format + "' is none of " + format_list(gemm_formats));
    if (!type) fail(name, "type " + t.dtype + " is none of " + dtype_list(gemm_formats) + ", U8, I8");
    out.element = *type;
    if (u8) columns = columns * 8 / storage_bits(out.element);  // packed codes: bytes to elements
    if (rows < 1 || columns < 1 || x.batch < 1) fail(name, "shape " + shape_text(t.shape) + " is empty");
    if (x.compressed && name == "a") columns *= 2;
    if (x.k != 0 && columns != x.k) {
      fail(name, "K is " + std::to_string(columns) + ", that of 'a' is " + std::to_string(x.k));
    }
    if (columns * storage_bits(out.element) % 8 != 0) fail(name, "rows do not end on a byte");
    x.k = columns;
    out.rows = rows;
    out.codes = raw(t);
  }

  /// Expands the kept elements and metadata of a sparse A to rows × k.
  void expand(gemm_case& x) {
    const format& f = x.a.element;
    const io::tensor_info& t = tensor("metadata_a");
    const index_t bytes = sparse_metadata_bytes(f, x.k), width = storage_bits(f) / 8;
    if (f.bits() < 8 || f.bits() > 32) fail("metadata_a", "a has elements of type " + io::safetensors_dtype_of(f));
    if (!holds_bytes(t.dtype)) fail("metadata_a", "type " + t.dtype + " is not U8 or I8");
    const auto [rows, columns] = extents("metadata_a", t, x);
    if (rows != x.a.rows || columns != bytes || x.k % (2 * sparse_window(f)) != 0) {
      fail("metadata_a", "shape " + shape_text(t.shape) + " is not [" + std::to_string(x.a.rows) + ", " +
                             std::to_string(bytes) + "], four bits for " + std::to_string(sparse_window(f)) +
                             " elements");
    }
    const std::vector<std::uint8_t> metadata = raw(t);
    std::vector<std::uint8_t> dense(static_cast<std::size_t>(x.batch * rows * x.k * width));
    for (index_t r = 0; r < x.batch * rows; ++r) {
      const index_t wrong = expand_sparse_row(f, x.a.codes.data() + r * x.k / 2 * width, metadata.data() + r * bytes,
                                              x.k, dense.data() + r * x.k * width);
      if (wrong >= 0) {
        fail("metadata_a", "row " + std::to_string(r) + ", indices " + std::to_string(wrong) + ": " +
                               std::to_string(sparse_indices(metadata.data() + r * bytes, wrong)) +
                               " names no two elements");
      }
    }
    x.a.codes = std::move(dense);
  }

  std::vector<std::uint8_t> raw(const io::tensor_info& t) const {
    const auto bytes = file_.bytes(t);
    std::vector<std::uint8_t> copy(bytes.size());
    if (!copy.empty()) std::memcpy(copy.data(), bytes.data(), bytes.size());
    return copy;
  }

  format float_format(const std::string& name, const io::tensor_info& t) const {
    if (t.dtype == "F32") return formats::fp32;
    if (t.dtype == "F16") return formats::fp16;
    if (t.dtype == "BF16") return formats::bf16;
    if (t.dtype == "F64") return formats::fp64;
    fail(name, "type " + t.dtype + " is none of F64, F32, F16, BF16");
  }

  /// Loads c or d, which must have shape [batch, m, n].
  output_tensor load_outputs(const std::string& name, const io::tensor_info& t, gemm_case& x) {
    const auto [rows, columns] = extents(name, t, x);
    if (rows != x.a.rows || columns != x.b.rows) {
      fail(name, "shape " + shape_text(t.shape) + " is not that of A times B, [" + std::to_string(x.a.rows) + ", " +
                     std::to_string(x.b.rows) + "]");
    }
    return {float_format(name, t), raw(t)};
  }

  const std::pair<const char*, placement>* scale_order() const {
    return std::find_if(std::begin(scale_orders), std::end(scale_orders),
                        [&](const auto& l) { return options_.scale_layout == l.first; });
  }

  void load_scales(const std::string& name, operand_data& out, gemm_case& x) {
    const io::tensor_info* t = file_.find(name);
    if (t == nullptr) return;
    const bool bytes_alone = holds_bytes(t->dtype);
    const bool e8m0 = t->dtype == "F8_E8M0" || (bytes_alone && options_.scale_format == "e8m0");
    const bool ue4m3 = t->dtype == "F8_E4M3" || (bytes_alone && options_.scale_format == "ue4m3");
    if (!options_.scale_format.empty() && !bytes_alone && (options_.scale_format == "e8m0") != e8m0)
      throw io::error("--scale-format", "tensor '" + name + "' is " + t->dtype + ", which says what it holds");
    if (!e8m0 && !ue4m3 && !bytes_alone) fail(name, "type " + t->dtype + " is none of F8_E8M0, F8_E4M3, U8, I8");
    const std::vector<std::uint8_t> bytes = raw(*t);
    const auto per_batch = static_cast<index_t>(bytes.size()) / x.batch;
    for (const int block : {32, 16}) {
      if ((e8m0 && block != 32) || (ue4m3 && block != 16)) continue;
      const layout l{scale_order()->second, out.rows, (x.k + block - 1) / block};
      std::vector<std::int64_t> plain{x.batch, l.rows, l.columns};
      if (t->shape.size() == 2 && x.batch == 1) plain.erase(plain.begin());
      if (scale_order()->second == placement::row_major && t->shape != plain) continue;
      if (x.k % block != 0 || per_batch * x.batch != static_cast<index_t>(bytes.size()) || per_batch != l.size_bytes())
        continue;
      out.block = block;
      out.scale = block == 32 ? formats::e8m0 : formats::ue4m3;
      out.scales.resize(static_cast<std::size_t>(x.batch * l.rows * l.columns));
      for (index_t i = 0; i < x.batch; ++i) {
        for (index_t r = 0; r < l.rows; ++r) {
          for (index_t c = 0; c < l.columns; ++c) {
            out.scales[static_cast<std::size_t>((i * l.rows + r) * l.columns + c)] =
                bytes[static_cast<std::size_t>(i * per_batch + l.offset(r, c))];
          }
        }
      }
      return;
    }
    fail(name, "shape " + shape_text(t->shape) + " is not [" + std::to_string(out.rows) +
                   ", K/32 of E8M0 or K/16 of UE4M3] for K = " + std::to_string(x.k) + " in layout " +
                   options_.scale_layout);
  }

  const io::safetensors_file& file_;
  const case_options& options_;
};

}  // namespace

gemm_case load_case(const io::safetensors_file& file, const case_options& options) {
  return loader(file, options).load();
}

bool is_all_nan(const gemm_case& x) {
  for (index_t e = 0; e < x.d.size(); ++e) {
    if (!x.output.is_nan(x.d.code(e))) return false;
  }
  return x.d.size() != 0;
}

gemm_operand batch_operand(const operand_data& x, index_t k, index_t i) {
  gemm_operand o;
  o.element = x.element;
  o.rows = x.rows;
  o.k = k;
  o.code_stride = packed_bytes(x.element, k);
  o.codes = x.codes.data() + i * x.rows * o.code_stride;
  o.block = x.block;
  o.scale = x.scale;
  if (x.block != 0) {
    o.scale_stride = k / x.block;
    o.scales = x.scales.data() + i * x.rows * o.scale_stride;
  }
  return o;
}

}  // namespace rotoscale::validate
