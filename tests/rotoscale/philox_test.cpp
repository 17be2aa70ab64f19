// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 against the known answers of Random123.
#include "rotoscale/philox.hpp"

#include <doctest/doctest.h>

#include <set>

namespace philox_test {

using namespace rotoscale;

void check(const philox_block& got, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  CHECK(got.word[0] == a);
  CHECK(got.word[1] == b);
  CHECK(got.word[2] == c);
  CHECK(got.word[3] == d);
}

TEST_CASE("Random123 known answers") {
  const std::uint32_t ones = 0xFFFFFFFFu;
  check(philox4x32({{0, 0, 0, 0}}, 0, 0), 0x6627E8D5u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u);
  check(philox4x32({{ones, ones, ones, ones}}, ones, ones), 0x408F276Du, 0x41C83B0Eu, 0xA20BC7C6u, 0x6D5451FDu);
  // The digits of pi.
  check(philox4x32({{0x243F6A88u, 0x85A308D3u, 0x13198A2Eu, 0x03707344u}}, 0xA4093822u, 0x299F31D0u), 0xD16CFE09u,
        0x94FDCCEBu, 0x5001E420u, 0x24126EA1u);
}

TEST_CASE("a stream's counter is (index, stream), its key the seed, low halves first") {
  const random_stream pi{0x299F31D0A4093822u, 0x0370734413198A2Eu};
  check(pi.block(0x85A308D3243F6A88u), 0xD16CFE09u, 0x94FDCCEBu, 0x5001E420u, 0x24126EA1u);
  const random_stream zero{};
  CHECK(zero.word(0) == 0x6627E8D5u);
  CHECK(zero.word(3) == 0x9B00DBD8u);
  CHECK(zero.word(4) == zero.block(1).word[0]);
  CHECK(zero.word(11) == zero.block(2).word[3]);
}

TEST_CASE("neighbouring words, streams and seeds differ; compile time equals run time") {
  std::set<std::uint32_t> words;
  for (std::uint64_t i = 0; i < 8; ++i) {
    words.insert(random_stream{0, 0}.word(i));
    words.insert(random_stream{i + 1, 0}.word(0));
    words.insert(random_stream{0, i + 1}.word(0));
  }
  CHECK(words.size() == 24);
  constexpr std::uint32_t at_compile_time = random_stream{7, 8}.word(9);
  volatile std::uint64_t nine = 9;
  CHECK(random_stream{7, 8}.word(nine) == at_compile_time);
}

}  // namespace philox_test
