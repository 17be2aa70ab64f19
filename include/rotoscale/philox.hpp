// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10, the counter-based generator of Salmon et al. ("Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// A random word is a pure function of (seed, stream, index), hence equal on all devices and threads.
#pragma once

#include "rotoscale/config.hpp"

namespace rotoscale {

/// A 128-bit counter, or the four words generated from it.
struct philox_block {
  std::uint32_t word[4];  ///< lowest first
};

/// Philox4x32 (Salmon et al., SC 2011): the random block of `counter` under a 64-bit key.
ROTOSCALE_HD constexpr philox_block philox4x32(philox_block counter, std::uint32_t key0, std::uint32_t key1,
                                               int rounds = 10) {
  philox_block c = counter;
  for (int i = 0; i < rounds; ++i) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c.word[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c.word[2];
    c = {{static_cast<std::uint32_t>(p1 >> 32) ^ c.word[1] ^ key0, static_cast<std::uint32_t>(p1),
          static_cast<std::uint32_t>(p0 >> 32) ^ c.word[3] ^ key1, static_cast<std::uint32_t>(p0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

/// A sequence of random words: key = seed, upper half of the counter = stream.
struct random_stream {
  std::uint64_t seed = 0;    ///< the key
  std::uint64_t stream = 0;  ///< upper half of the counter

  /// Words 4 i to 4 i + 3.
  ROTOSCALE_HD constexpr philox_block block(std::uint64_t i) const {
    return philox4x32({{static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32),
                        static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}},
                      static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  }
  /// Word `i` of the sequence: word i % 4 of block i / 4.
  ROTOSCALE_HD constexpr std::uint32_t word(std::uint64_t i) const { return block(i / 4).word[i % 4]; }
};

/// Random words that the caller holds, in place of a random_stream. Their number is not checked.
struct random_words {
  const std::uint32_t* words = nullptr;  ///< all of them

  /// Word `i`.
  ROTOSCALE_HD constexpr std::uint32_t word(std::uint64_t i) const { return words[i]; }
};

// Known answer of the authors' Random123 distribution (kat_vectors): counter and key all zero.
static_assert(philox4x32({{0, 0, 0, 0}}, 0, 0).word[0] == 0x6627E8D5u);

}  // namespace rotoscale
