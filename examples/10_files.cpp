// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Reads a NumPy array, quantizes it along both axes in one pass with checks, and stores it as safetensors; then reads
// it back. Needs nlohmann-json and zlib: g++ -std=c++20 -Iinclude examples/10_files.cpp -lz
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <vector>

#include "rotoscale/checked.hpp"
#include "rotoscale/io/npy.hpp"
#include "rotoscale/io/safetensors.hpp"

using namespace rotoscale;
using byte_vector = std::vector<std::uint8_t>;

/// Dense codes and scales of an MXFP4 matrix of rows × k elements.
struct quantized {
  index_t rows, k;
  byte_vector codes = byte_vector(std::size_t(rows * k / 2)), scales = byte_vector(std::size_t(rows * k / 32));

  block_matrix<std::uint8_t> blocks() { return dense_blocks(mxfp4, rows, k, codes.data(), scales.data()); }
};

/// Elements of an .npy file of float32, row-major.
static std::vector<float> load(const std::filesystem::path& path, index_t& rows, index_t& k) {
  const io::npy_file file = io::npy_file::open(path);
  const matrix<const float> x = file.as_matrix<float>();  // io::error unless it is a matrix of float32
  rows = x.extent(0), k = x.extent(1);
  return file.to_fp32();
}

/// Shows that checked:: refuses wrong extents before it writes; quantize_both only asserts them.
static void show_refusal(std::span<const float> x, index_t rows, index_t k, quantized& to) {
  try {
    checked::quantize(mxfp4, presets::ocp, checked::array<const float>{x, rows, k - 1, k}, block_axis::row, to.codes,
                      to.scales);
  } catch (const std::invalid_argument& e) {
    std::printf("refused: %s\n", e.what());
  }
}

/// Shows that a reader refuses a corrupt file with one line.
static void show_bad_file() {
  const char header[] = "\x08\0\0\0\0\0\0\0{\"x\": 1}";
  try {
    io::safetensors_file::from_bytes("broken.safetensors", {header, sizeof header - 1});
  } catch (const io::error& e) {
    std::printf("refused: %s\n", e.what());
  }
}

static void store(const std::filesystem::path& path, quantized& row, quantized& column) {
  io::safetensors_writer file;
  file.metadata["quantizer"] = "rotoscale presets::te_rocm";
  const auto add = [&file](const char* codes, const char* scales, quantized& q) {
    file.add(codes, "F4", {q.rows, q.k}, std::as_bytes(std::span(q.codes)));
    file.add(scales, "F8_E8M0", {q.rows, q.k / 32}, std::as_bytes(std::span(q.scales)));
  };
  add("codes", "scales", row);  // the names that rotoscale-validate reads
  add("codes_t", "scales_t", column);
  file.write(path);  // appears whole or not at all
}

static byte_vector bytes_of(const io::safetensors_file& file, const char* name) {
  const io::tensor_info* info = file.find(name);
  if (info == nullptr) throw io::error(file.name(), std::string("no tensor '") + name + "'");
  byte_vector bytes(info->end - info->begin);
  std::memcpy(bytes.data(), file.bytes(*info).data(), bytes.size());
  return bytes;
}

int main() try {
  char folder[] = "/tmp/rotoscale-10_files-XXXXXX";
  if (mkdtemp(folder) == nullptr) throw io::error(folder, "cannot create");
  const std::filesystem::path npy = std::filesystem::path(folder) / "x.npy", st = npy.parent_path() / "x.safetensors";

  std::vector<float> made(64 * 96);
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = 0.125f * static_cast<float>(int(i * i % 509) - 254);
  io::write_npy(npy, row_major<const float>(made.data(), 64, 96));

  index_t rows = 0, k = 0;
  const std::vector<float> x = load(npy, rows, k);
  std::printf("x.npy: %td x %td\n", rows, k);

  // Training needs blocks along rows and along columns; the latter are stored transposed.
  quantized row{rows, k}, column{k, rows};
  show_refusal(x, rows, k, row);
  thread_pool pool(2);
  quantize_both(mxfp4, presets::te_rocm, row.blocks(), presets::te_rocm, column.blocks(),
                row_major<const float>(x.data(), rows, k), pool);
  store(st, row, column);

  const io::safetensors_file file = io::safetensors_file::open(st);
  for (const io::tensor_info& t : file.tensors()) {
    std::printf("%-12s %-7s %3td x %-3td %5td bytes\n", t.name.c_str(), t.dtype.c_str(), std::ptrdiff_t(t.shape[0]),
                std::ptrdiff_t(t.shape[1]), std::ptrdiff_t(t.end - t.begin));
  }
  std::vector<float> y(x.size());
  checked::dequantize(mxfp4, bytes_of(file, "codes"), bytes_of(file, "scales"), block_axis::row,
                      checked::array<float>{y, rows, k});
  const matrix<float> values = row_major(y.data(), rows, k);
  unrotate(mxfp4, presets::te_rocm.rotation, values, block_axis::row);  // te_rocm stores rotated values
  std::printf("SQNR of the rows: %.2f dB\n", sqnr(row_major<const float>(x.data(), rows, k), values));
  std::filesystem::remove_all(folder);
  show_bad_file();
} catch (const io::error& e) {
  std::fprintf(stderr, "10_files: %s\n", e.what());
  return 1;
}
