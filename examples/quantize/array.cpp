// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "array.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "examples/threads.hpp"
#include "examples/validate/input.hpp"
#include "rotoscale/dequantize.hpp"

namespace rotoscale::quantize_program {

namespace {

/// The tensor of that name, or the only one if the name is empty.
const io::tensor_info& find_tensor(const io::safetensors_file& file, const std::string& name) {
  std::vector<std::string> names;
  for (const io::tensor_info& t : file.tensors()) names.push_back(t.name);
  const io::tensor_info* t = name.empty() && names.size() == 1 ? &file.tensors().front() : file.find(name);
  if (t != nullptr) return *t;
  if (name.empty())
    throw io::error(file.name(), "has " + std::to_string(names.size()) + " tensors: --tensor names one");
  throw io::error(file.name(), "no tensor '" + name + "'" + io::did_you_mean(name, names));
}

}  // namespace

quantizer_dump read_array(const std::string& path, const std::string& name) {
  const bool npy = path.ends_with(".npy");
  if (npy && !name.empty()) throw io::error("--tensor", "is for safetensors; '" + path + "' has one array");
  const io::safetensors_file file =
      npy ? merge_tensors({{"x", io::npy_file::open(path)}}, nullptr) : io::safetensors_file::open(path);
  const io::tensor_info& t = find_tensor(file, name);
  const std::string at = npy ? "" : "tensor '" + io::printable(t.name) + "': ";
  if (t.dtype != "F32" && t.dtype != "BF16" && t.dtype != "F16")
    throw io::error(path, at + "type " + t.dtype + " is none of F32, BF16, F16");
  if (t.shape.empty() || t.begin == t.end) throw io::error(path, at + "has no elements along an axis");
  quantizer_dump dump;
  dump.where = path;
  dump.source_format = t.dtype == "F32" ? formats::fp32 : t.dtype == "BF16" ? formats::bf16 : formats::fp16;
  dump.cols = t.shape.back();
  dump.rows = std::accumulate(t.shape.begin(), t.shape.end() - 1, index_t{1}, std::multiplies<>());
  dump.source.resize(static_cast<std::size_t>(dump.rows * dump.cols));
  file.read_floats(t, 0, dump.source);
  return dump;
}

std::pair<index_t, index_t> whole_extents(const quantizer& q, bool by_row, bool by_column) {
  const index_t across = q.tile_rows(), along = q.tile_k();
  return {std::lcm(by_row ? across : 1, by_column ? along : 1), std::lcm(by_row ? along : 1, by_column ? across : 1)};
}

void pad_with_zeros(quantizer_dump& dump, index_t rows, index_t cols) {
  std::vector<float> padded(static_cast<std::size_t>(rows * cols));
  for (index_t r = 0; r < dump.rows; ++r)
    std::copy_n(dump.source.begin() + r * dump.cols, dump.cols, padded.begin() + r * cols);
  dump.source = std::move(padded);
  dump.rows = rows;
  dump.cols = cols;
}

std::vector<float> decode_side(const quantizer& q, const dump_side& side, const dense_side& stored, thread_pool& pool) {
  const bool by_row = side.axis == block_axis::row;
  std::vector<float> values(static_cast<std::size_t>(side.rows * side.k));
  const matrix<float> target = row_major(values.data(), by_row ? side.rows : side.k, by_row ? side.k : side.rows);
  const float factor = 1.0f / q.options.encode_factor;
  if (q.is_per_tensor()) {
    const matrix<float> out = by_row ? target : transposed(target);
    for_each_or_throw(pool, side.rows, [&](index_t r) {
      for (index_t c = 0; c < side.k; ++c)
        out(r, c) = decode(q.blocks.element, stored.codes[static_cast<std::size_t>(r * side.k + c)]) * factor;
    });
    return values;
  }
  const auto blocks = dense_blocks<const std::uint8_t>(q.blocks, side.rows, side.k, stored.codes.data(),
                                                       stored.scales.data());
  dequantize(q.blocks, blocks, side.axis, target, pool, factor);
  unrotate(q.blocks, q.options.rotation, target, side.axis);
  return values;
}

side_loss loss_of(const quantizer& q, const quantizer_dump& dump, const dump_side& side, const dense_side& result,
                  index_t rows, index_t cols, thread_pool& pool) {
  const format element = q.blocks.element;
  const auto largest = static_cast<double>(decode(element, element.max_code()));
  std::vector<side_loss> of_tiles(static_cast<std::size_t>(side.rows / q.tile_rows()));
  for_each_or_throw(pool, side.rows / q.tile_rows(), [&](index_t tile) {
    side_loss& loss = of_tiles[static_cast<std::size_t>(tile)];
    for (index_t first = 0; first < side.k; first += q.tile_k()) {
      const std::vector<float> x = load_tile(q, dump, side, tile, first);
      for (index_t e = 0; e < static_cast<index_t>(x.size()); ++e) {
        const index_t r = tile * q.tile_rows() + e / q.tile_k(), c = first + e % q.tile_k();
        const float value = x[static_cast<std::size_t>(e)];
        const auto code = load_code(element, result.codes.data() + r * packed_bytes(element, side.k), c);
        const index_t scale_at = q.is_per_tensor() ? 0 : tile * (side.k / q.blocks.length) + c / q.blocks.length;
        const std::uint8_t scale =
            q.is_per_tensor() ? std::uint8_t{0} : result.scales[static_cast<std::size_t>(scale_at)];
        if (value == 0.0f) continue;
        ++loss.nonzero;
        if (!q.is_per_tensor() && q.blocks.scale.is_nan(scale)) continue;
        loss.flushed += decode(element, code) == 0.0f;
        loss.saturated += std::abs(scaled_value(q, value, scale)) > largest;
      }
    }
  });
  side_loss all;
  for (const side_loss& loss : of_tiles) {
    all.nonzero += loss.nonzero;
    all.flushed += loss.flushed;
    all.saturated += loss.saturated;
  }
  all.elements = side.rows * side.k;
  const std::vector<float> values = decode_side(q, side, result, pool);
  all.sqnr = sqnr(row_major<const float>(dump.source.data(), rows, cols, dump.cols),
                  row_major<const float>(values.data(), rows, cols, dump.cols));
  return all;
}

}  // namespace rotoscale::quantize_program
