// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Fuzz target for llm.c's token files. Any bytes are refused with io::error, or hold as many tokens as the header
// states. Reading one by one and reading in pieces give the same tokens.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "rotoscale/io/token_file.hpp"
#include "target.hpp"

namespace token_file_fuzz {

using namespace rotoscale;
using fuzz::require;

void check_accepted(const io::token_file& file) {
  std::vector<std::int32_t> all(file.size()), pieces;
  bool refused = false;
  try {
    file.read(0, all);
  } catch (const io::error&) {  // a token outside every vocabulary
    refused = true;
  }
  try {
    file.for_each_chunk([&](auto piece) { pieces.insert(pieces.end(), piece.begin(), piece.end()); });
    require(!refused && pieces == all);
  } catch (const io::error&) {
    require(refused);
  }
  if (refused || all.empty()) return;
  std::int32_t last[1];
  file.read(file.size() - 1, last);
  require(last[0] == all.back() && last[0] >= 0);
}

/// The first two bytes choose the header's magic, version and count, which a fuzzer rarely finds.
void one_input(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> bytes;
  const std::uint8_t choice = size > 0 ? data[0] : 0;
  if (choice % 4 != 0 && size > 1) {
    const std::size_t width = choice % 4 == 1 ? 2 : 4, rest = size - 2;
    const std::uint32_t header[] = {choice % 4 == 1 ? 20240520u : 20240801u,
                                    (choice % 4 == 1 ? 1u : 7u) + (choice >> 2 & 1u),
                                    static_cast<std::uint32_t>(rest / width) + (choice >> 3 & 1u)};
    bytes.resize(choice & 0x10 ? 12 : 1024);
    std::memcpy(bytes.data(), header, sizeof header);
    for (std::size_t i = 2; i < size; ++i) bytes.push_back(static_cast<std::byte>(data[i]));
  } else {
    for (std::size_t i = 0; i < size; ++i) bytes.push_back(static_cast<std::byte>(data[i]));
  }
  std::optional<io::token_file> file;
  try {
    file = io::token_file::from_bytes("input", bytes);
  } catch (const io::error&) {
    return;
  }
  check_accepted(*file);
}

const rotoscale::fuzz::target here("token_file", one_input);

}  // namespace token_file_fuzz
