// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A model's parameters as tensors in safetensors files, read and written some rows at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "rotoscale/io/safetensors_shards.hpp"
#include "rotoscale/train/parameters.hpp"

namespace rotoscale::train {

/// Receives the number of elements read or written, and of all.
using element_progress = std::function<void(std::int64_t done, std::int64_t total)>;

}  // namespace rotoscale::train

namespace rotoscale::train::detail {

/// Calls f(slice name, shape in files, first element, count) for every slice of a parameter.
template <class Function>
void for_each_slice(const parameter& p, const Function& f) {
  for (const parameter::slice& s : p.slices) {
    std::vector<std::int64_t> shape{s.rows, p.cols};
    if (p.is_vector) shape = {p.cols};
    if (s.transposed) shape = {p.cols, s.rows};
    f(s.name, shape, s.first_row * p.cols, s.rows * p.cols);
  }
}

/// Dtype of written weights: its names, and the least magnitude that rounds to Inf.
struct stored_dtype {
  const char* name;
  const char* torch;
  float overflow;
};
inline constexpr stored_dtype stored_dtypes[] = {{"F32", "float32", std::numeric_limits<float>::infinity()},
                                                 {"BF16", "bfloat16", 0x1.FFp127f},
                                                 {"F16", "float16", 65520.0f}};
/// Types that hold a number, as "F32 or BF16".
inline std::string dtypes_for(float x) {
  std::string text;
  for (const stored_dtype& t : stored_dtypes) {
    if (std::abs(x) < t.overflow) text += (text.empty() ? "" : " or ") + std::string(t.name);
  }
  return text;
}
inline const stored_dtype& stored_dtype_of(const std::string& name) {
  for (const stored_dtype& t : stored_dtypes) {
    if (name == t.name) return t;
  }
  throw io::error("dtype", "'" + name + "' is none of " + dtypes_for(0.0f));
}

/// FP32 numbers as the bytes of a dtype, to nearest even.
inline void give_floats(std::span<const float> values, const std::string& type, const io::byte_sink& sink) {
  const auto give = [&]<class T>(T) {
    const std::vector<T> narrow(values.begin(), values.end());
    sink(std::as_bytes(std::span<const T>(narrow)));
  };
  if (type == "F32") return sink(std::as_bytes(values));
  type == "BF16" ? give(bf16()) : give(fp16());
}

/// Rows of a parameter that are in memory at a time: about 4 MiB of FP32.
inline index_t rows_at_a_time(const parameter& p) { return std::max<index_t>(1, (index_t{1} << 20) / p.cols); }

/// Calls f(first row, rows) for consecutive parts of rows [first, first + count).
template <class Function>
void for_each_part(const parameter& p, index_t first, index_t count, const Function& f) {
  const index_t most = rows_at_a_time(p);
  for (index_t done = 0; done < count; done += most) f(first + done, std::min(most, count - done));
}

/// The first slice at `first_row`. A fused adapter's A is stored once for each part, so slices may share rows.
inline const parameter::slice& first_with_rows_of(const parameter& p, index_t first_row) {
  return *std::find_if(p.slices.begin(), p.slices.end(),
                       [&](const parameter::slice& s) { return s.first_row == first_row; });
}

/// (cols, rows) of a matrix (rows, cols).
inline std::vector<float> transposed(std::span<const float> from, index_t rows, index_t cols) {
  std::vector<float> to(from.size());
  for (index_t r = 0; r < rows; ++r) {
    for (index_t c = 0; c < cols; ++c) {
      to[static_cast<std::size_t>(c * rows + r)] = from[static_cast<std::size_t>(r * cols + c)];
    }
  }
  return to;
}

/// Adds a parameter's slices, whose values fetch(first row, rows) gives when they are written.
template <class Fetch>
void add_slices(io::safetensors_writer& out, const parameter& p, const std::string& prefix, const Fetch& fetch,
                const std::string& type = "F32") {
  for_each_slice(p, [&](const std::string& name, const std::vector<std::int64_t>& shape, index_t first, index_t count) {
    out.add_streamed(prefix + name, type, shape, [=, &p](const io::byte_sink& sink) {
      if (first_with_rows_of(p, first / p.cols).transposed) {
        return give_floats(transposed(fetch(first / p.cols, count / p.cols), count / p.cols, p.cols), type, sink);
      }
      for_each_part(p, first / p.cols, count / p.cols, [&](index_t row, index_t rows) {
        const std::vector<float> values = fetch(row, rows);
        give_floats(values, type, sink);
      });
    });
  });
}

/// "16 x 8".
inline std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "" : " x ") + std::to_string(extent);
  return text;
}

/// Prefix of names that base models lack, as transformers saves them.
inline constexpr std::string_view base_prefix = "transformer.";

/// The tensor of a name, with or without base_prefix.
inline io::located_tensor locate(const io::safetensors_shards& model, const std::string& name) {
  const io::located_tensor found = model.find(name);
  return found.info == nullptr && name.starts_with(base_prefix) ? model.find(name.substr(base_prefix.size())) : found;
}

/// Finds a tensor with these numbers. Throws io::error if it is missing or has another shape or dtype.
inline io::located_tensor check_tensor(const io::safetensors_shards& model, const std::string& name,
                                       const std::vector<std::int64_t>& shape) {
  const io::located_tensor found = locate(model, name);
  if (found.info == nullptr) throw io::error(model.name(), "tensor '" + name + "' is missing");
  const std::string& file = found.file->name();
  if (found.info->dtype != "F32" && found.info->dtype != "BF16" && found.info->dtype != "F16") {
    throw io::error(file, "tensor '" + name + "': expected F32, BF16 or F16, found " + found.info->dtype);
  }
  if (found.info->shape == shape) return found;
  throw io::error(file, "tensor '" + name + "': its shape " + shape_text(found.info->shape) + " is not the model's " +
                            shape_text(shape));
}
inline void read_floats(const io::safetensors_shards& model, const std::string& name,
                        const std::vector<std::int64_t>& shape, std::span<float> to) {
  const io::located_tensor found = check_tensor(model, name, shape);
  found.file->read_floats(*found.info, 0, to);
}

/// Reads rows [first, first + rows) of a parameter's slice with `cols` columns from its tensor.
inline void read_slice_rows(const io::located_tensor& from, bool is_transposed, index_t first, index_t rows,
                            index_t cols, std::span<float> to) {
  if (!is_transposed) return from.file->read_floats(*from.info, static_cast<std::uint64_t>(first * cols), to);
  const index_t width = from.info->shape[1];
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (index_t c = 0; c < cols; ++c) {
    from.file->read_floats(
        *from.info, static_cast<std::uint64_t>(c * width + first),
        std::span(values).subspan(static_cast<std::size_t>(c * rows), static_cast<std::size_t>(rows)));
  }
  const std::vector<float> by_rows = transposed(values, cols, rows);
  std::copy(by_rows.begin(), by_rows.end(), to.begin());
}

/// "tensor 'x.weight': element [1, 2]", as files hold it, of number `i` of a slice's rows.
inline std::string element_text(const std::string& tensor, index_t i, const parameter& p, bool is_transposed) {
  const std::string row = std::to_string(i / p.cols), col = std::to_string(i % p.cols);
  const std::string place = p.is_vector ? col : is_transposed ? col + ", " + row : row + ", " + col;
  return "tensor '" + tensor + "': element [" + place + "]";
}

/// Throws io::error for the first number of a slice's rows that is NaN or Inf. The slice begins at row `first_row`.
inline void require_finite(const io::located_tensor& tensor, std::span<const float> rows, index_t first_row,
                           const parameter& p, bool is_transposed) {
  bool all = true;
  for (const float x : rows) all &= (fp32_bits(x) & 0x7F800000u) != 0x7F800000u;
  if (all) return;
  const auto at = std::find_if(rows.begin(), rows.end(), [](float x) { return !std::isfinite(x); });
  throw io::error(tensor.file->name(),
                  element_text(tensor.info->name, at - rows.begin() + first_row * p.cols, p, is_transposed) + " is " +
                      (std::isnan(*at) ? "NaN"
                       : *at < 0.0f    ? "-Inf"
                                       : "Inf"));
}

/// Throws io::error, which names `where` and --dtype, if a number of the rows from first_row on would be written as
/// Inf.
inline void require_range(const std::string& where, const parameter& p, std::span<const float> rows, index_t first_row,
                          const stored_dtype& type) {
  const auto at = std::find_if(rows.begin(), rows.end(), [&](float x) { return !(std::abs(x) < type.overflow); });
  if (at == rows.end()) return;
  const auto after = std::find_if(p.slices.begin(), p.slices.end(),
                                  [&](const parameter::slice& s) { return s.first_row > first_row; });
  const parameter::slice& s = *std::prev(after);
  char value[32];
  std::snprintf(value, sizeof value, "%.6g", static_cast<double>(*at));
  const std::string fitting = dtypes_for(*at);
  const std::string what = fitting.empty() ? "its sum is beyond what any dtype holds; smaller adapters would do"
                                           : std::string(value) + " is beyond what " + type.name + " holds (--dtype " +
                                                 fitting + " would do)";
  throw io::error(where, element_text(s.name, at - rows.begin() + (first_row - s.first_row) * p.cols, p, s.transposed) +
                             ": " + what);
}

/// Calls use(first element, values) for rows [first_row, first_row + rows) in order, a part at a time. Throws io::error
/// for a tensor that is missing, has another shape or dtype, or differs from the tensor that it must equal. Weights,
/// which have no prefix, must also be finite.
template <class Function>
void read_rows(const io::safetensors_shards& model, const parameter& p, const std::string& prefix, index_t first_row,
               index_t rows, const Function& use) {
  std::vector<float> part, again;
  for_each_slice(p, [&](const std::string& name, const std::vector<std::int64_t>& shape, index_t first, index_t count) {
    const io::located_tensor found = check_tensor(model, prefix + name, shape);
    const index_t begin = first / p.cols, from = std::max(first_row, begin),
                  to = std::min(first_row + rows, begin + count / p.cols);
    const parameter::slice& slice = first_with_rows_of(p, begin);
    const std::string& original = slice.name;
    for_each_part(p, from, to - from, [&](index_t row, index_t part_rows) {
      part.resize(static_cast<std::size_t>(part_rows * p.cols));
      read_slice_rows(found, slice.transposed, row - begin, part_rows, p.cols, part);
      if (prefix.empty()) require_finite(found, part, row - begin, p, slice.transposed);
      if (original == name) return use(row * p.cols, std::span<const float>(part));
      again.resize(part.size());
      const io::located_tensor earlier = model.find(prefix + original);
      read_slice_rows(earlier, slice.transposed, row - begin, part_rows, p.cols, again);
      if (std::memcmp(again.data(), part.data(), part.size() * sizeof(float)) == 0) return;
      throw io::error(model.name(), "tensor '" + prefix + name + "': is not that of '" + original +
                                        "', as a fused adapter's has to be");
    });
  });
}
/// All of them.
template <class Function>
void read_rows(const io::safetensors_shards& model, const parameter& p, const std::string& prefix,
               const Function& use) {
  read_rows(model, p, prefix, 0, p.rows, use);
}

/// The values of those rows.
inline std::vector<float> rows_of(const io::safetensors_shards& model, const parameter& p, index_t first_row,
                                  index_t rows) {
  std::vector<float> all;
  all.reserve(static_cast<std::size_t>(rows * p.cols));
  read_rows(model, p, "", first_row, rows,
            [&](index_t, std::span<const float> values) { all.insert(all.end(), values.begin(), values.end()); });
  return all;
}

/// Refuses tensors that are neither parameters nor determined by config.json: they belong to another model.
inline void refuse_others(const io::safetensors_shards& found, std::span<const parameter> parameters,
                          const train::architecture& shape) {
  std::unordered_set<std::string> known;
  for (const parameter& p : parameters) {
    for (const parameter::slice& s : p.slices) known.insert(s.name);
  }
  for (const io::safetensors_file& file : found.files()) {
    for (const io::tensor_info& info : file.tensors()) {
      const std::string at = "tensor '" + io::printable(info.name) + "': ",
                        whole = std::string(base_prefix) + info.name;
      const bool is_short = known.contains(whole);
      if (is_short && found.find(whole).info != nullptr)
        throw io::error(file.name(), at + "is another name of '" + whole + "', which the files have too");
      if (is_short || known.contains(info.name) || shape.is_implied(info.name)) continue;
      throw io::error(file.name(), at + "no such parameter in the model of config.json");
    }
  }
}

/// Refuses the head of a tied model unless it equals the embedding, the model's first parameter. Otherwise config.json
/// and weights contradict each other.
inline void require_tied_head(const io::safetensors_shards& found, std::span<const parameter> parameters) {
  const io::located_tensor head = found.find("lm_head.weight");
  if (head.info == nullptr || parameters.empty() || parameters[0].kind != parameter_kind::base) return;
  const parameter& p = parameters[0];
  const io::located_tensor own = check_tensor(found, p.name(), {p.rows, p.cols});
  bool equal = head.info->shape == own.info->shape;
  std::vector<float> a, b;
  for_each_part(p, 0, equal ? p.rows : 0, [&](index_t row, index_t rows) {
    for (std::vector<float>* v : {&a, &b}) v->resize(static_cast<std::size_t>(rows * p.cols));
    own.file->read_floats(*own.info, static_cast<std::uint64_t>(row * p.cols), a);
    head.file->read_floats(*head.info, static_cast<std::uint64_t>(row * p.cols), b);
    equal = equal && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  });
  if (equal) return;
  throw io::error(
      head.file->name(),
      "tensor 'lm_head.weight': differs from '" + p.name() +
          "', to which the model ties its head (tie_word_embeddings); remove the tensor, or untie the head");
}

/// Refuses a file or files that do not hold exactly the tensors of these parameters, before a number is read.
inline void check_tensors(const io::safetensors_shards& found, std::span<const parameter> parameters,
                          const train::architecture& model) {
  refuse_others(found, parameters, model);
  if (model.is_implied("lm_head.weight")) require_tied_head(found, parameters);
  for (const parameter& p : parameters) {
    for_each_slice(p, [&](const std::string& name, const std::vector<std::int64_t>& shape, index_t, index_t) {
      check_tensor(found, name, shape);
    });
  }
}

}  // namespace rotoscale::train::detail
