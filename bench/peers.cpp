// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// This library's arm of peers.py: FP32 from a file to MXFP4 with OCP's floor scales, one thread, with and without H16.
// Usage: peers INPUT ROWS COLS OUTPUT PASSES
// Prints the seconds of each pass as one JSON object. OUTPUT receives the codes and scales without H16.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "rotoscale/io/error.hpp"
#include "rotoscale/quantize.hpp"

namespace rotoscale {
namespace {

std::vector<double> time_passes(const block_options& o, matrix<const float> source, block_matrix<std::uint8_t> out,
                                int passes) {
  thread_pool one(1);
  std::vector<double> seconds;
  for (int i = 0; i < passes; ++i) {
    const auto start = std::chrono::steady_clock::now();
    quantize(mxfp4, o, source, block_axis::row, out, one);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return seconds;
}

void print(const char* name, const std::vector<double>& seconds, const char* after) {
  std::printf("\"%s\": [", name);
  for (std::size_t i = 0; i < seconds.size(); ++i) std::printf("%s%.9f", i == 0 ? "" : ", ", seconds[i]);
  std::printf("]%s", after);
}

int run(char** argv) {
  const index_t rows = std::atoi(argv[2]), cols = std::atoi(argv[3]);
  const int passes = std::atoi(argv[5]);
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  std::ifstream in(argv[1], std::ios::binary);
  if (!in.read(reinterpret_cast<char*>(x.data()), static_cast<std::streamsize>(x.size() * sizeof(float)))) {
    const std::string name = argv[1];
    std::fprintf(stderr, "peers: cannot read %s\n", io::printable(name, name.size()).c_str());
    return 2;
  }
  std::vector<std::uint8_t> stored(
      static_cast<std::size_t>(packed_bytes(formats::e2m1, cols) * rows + rows * cols / 32));
  const auto out =
      dense_blocks(mxfp4, rows, cols, stored.data(), stored.data() + packed_bytes(formats::e2m1, cols) * rows);
  const auto source = row_major<const float>(x.data(), rows, cols);
  block_options rotated = presets::ocp;
  rotated.rotation.points = 16;
  const std::vector<double> with_h16 = time_passes(rotated, source, out, passes);
  const std::vector<double> without = time_passes(presets::ocp, source, out, passes);
  std::ofstream to(argv[4], std::ios::binary);
  to.write(reinterpret_cast<const char*>(stored.data()), static_cast<std::streamsize>(stored.size()));
  std::printf("{");
  print("mxfp4", without, ", ");
  print("mxfp4_h16", with_h16, "}\n");
  return to.good() ? 0 : 2;
}

}  // namespace
}  // namespace rotoscale

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: peers INPUT ROWS COLS OUTPUT PASSES\n");
    return 2;
  }
  return rotoscale::run(argv);
}
