// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Row-wise MXFP4 at the rate of memory: sixteen consecutive blocks at a time, one a lane. Their source is contiguous
// (the hardware prefetches it) and their codes fill whole cache lines (which can bypass the cache). Equal to
// quantize_ref by bytes: blocks that are not plain (non-finite, near the ends of FP32) are given back to the caller.
#pragma once

#include "rotoscale/detail/mxfp4_lanes.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::detail {

inline constexpr int mxfp4_chunk_blocks = lane_count;
inline constexpr int mxfp4_chunk_elements = 32 * mxfp4_chunk_blocks;
inline constexpr int mxfp4_chunk_bytes = mxfp4_chunk_elements / 2;

/// Lane l = 4q + j holds block 4j + q, so that the final transpose of code words stays within groups of four lanes. The
/// permutation is its own inverse.
constexpr int block_of_lane(int lane) { return 4 * (lane % 4) + lane / 4; }

/// Elements of 16 blocks as FP32 bits: element i of lane l's block in x[i][l].
inline void load_chunk(const float* from, lanes_u32 (&x)[32]) {
  for (int half = 0; half < 2; ++half) {
    lanes_u32 t[lane_count];
    for (int l = 0; l < lane_count; ++l) {
      __builtin_memcpy(&t[l], from + 32 * block_of_lane(l) + 16 * half, sizeof t[l]);
    }
    transpose_lanes(t);
    for (int i = 0; i < lane_count; ++i) x[16 * half + i] = t[i];
  }
}
inline void load_chunk(const bf16* from, lanes_u32 (&x)[32]) {
  lanes_u32 t[lane_count];  // pairs of elements, the even one below
  for (int l = 0; l < lane_count; ++l) __builtin_memcpy(&t[l], from + 32 * block_of_lane(l), sizeof t[l]);
  transpose_lanes(t);
  for (int i = 0; i < lane_count; ++i) {
    x[2 * i] = t[i] << 16;
    x[2 * i + 1] = t[i] & 0xFFFF0000u;
  }
}

/// Four words a lane to 256 bytes in the order of the blocks: 4 × 4 transposes within groups of four lanes.
inline void arrange_words(const lanes_u32 (&w)[4], lanes_u32 (&lines)[4]) {
  lanes_u32 t[4];
  for (int i = 0; i < 2; ++i) {
    const lanes_u32 &a = w[2 * i], &b = w[2 * i + 1];
    t[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    t[2 * i + 1] = __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
  for (int i = 0; i < 2; ++i) {
    const lanes_u32 &a = t[i], &b = t[i + 2];
    lines[2 * i] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    lines[2 * i + 1] = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
}

/// Quantizes 16 consecutive blocks from `from` on. False, with nothing written, if a block needs the definition.
template <class T>
inline bool quantize_chunk(const block_options& o, const T* from, lanes_u32 (&lines)[4],
                           std::uint8_t (&scales)[mxfp4_chunk_blocks]) {
  lanes_u32 x[32], words[4], bytes;
  load_chunk(from, x);
  if (!quantize_lanes(o, x, words, bytes)) return false;
  for (int l = 0; l < lane_count; ++l) scales[block_of_lane(l)] = static_cast<std::uint8_t>(bytes[l]);
  arrange_words(words, lines);
  return true;
}

template <bool Stream>
inline void store_lines(const lanes_u32 (&lines)[4], std::uint8_t* to) {
#if defined(__SSE2__)
  if constexpr (Stream) {
    for (int i = 0; i < 4; ++i) {
      for (int part = 0; part < 4; ++part) {
        __m128i v;
        __builtin_memcpy(&v, reinterpret_cast<const char*>(&lines[i]) + 16 * part, sizeof v);
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + 64 * i + 16 * part), v);
      }
    }
    return;
  }
#endif
  __builtin_memcpy(to, lines, sizeof lines);
}

/// Chunks that are fetched ahead of their use.
inline constexpr index_t prefetch_chunks = 2;
template <class T>
inline void prefetch_chunk(const T* chunk) {
  for (std::size_t at = 0; at < mxfp4_chunk_elements * sizeof(T); at += 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(chunk) + at);
  }
}

/// One run of `blocks` consecutive blocks (of a row, or of several where rows lie back to back), whose first is block
/// `b` of row `r`.
template <bool Stream, class T>
void quantize_run(const block_options& o, matrix<T> source, block_matrix<std::uint8_t> out, index_t r, index_t b,
                  index_t blocks) {
  const T* from = source.data + r * source.stride(0) + 32 * b;
  std::uint8_t* codes = out.codes + r * out.code_stride + 16 * b;
  std::uint8_t* scales = out.scales + r * out.scale_stride + b;
  using element = std::remove_const_t<T>;
  for (index_t done = 0; done < blocks; done += mxfp4_chunk_blocks) {
    const index_t count = blocks - done < mxfp4_chunk_blocks ? blocks - done : mxfp4_chunk_blocks;
    const element* chunk = from + 32 * done;
    element padded[mxfp4_chunk_elements];
    if (count < mxfp4_chunk_blocks) {
      auto* bytes_of_padded = reinterpret_cast<std::uint8_t*>(padded);
      __builtin_memset(bytes_of_padded, 0, sizeof padded);
      __builtin_memcpy(bytes_of_padded, chunk, static_cast<std::size_t>(32 * count) * sizeof(element));
      chunk = padded;
    }
    if (blocks - done >= prefetch_chunks * mxfp4_chunk_blocks)
      prefetch_chunk(chunk + prefetch_chunks * mxfp4_chunk_elements);
    lanes_u32 lines[4];
    std::uint8_t bytes[mxfp4_chunk_blocks];
    if (!quantize_chunk<element>(o, chunk, lines, bytes)) {
      const block_matrix<std::uint8_t> some{count, 32, codes + 16 * done, 16, scales + done, 1};
      quantize_ref(mxfp4, o, row_major<const element>(chunk, count, 32), block_axis::row, some);
    } else if (count == mxfp4_chunk_blocks) {
      store_lines<Stream>(lines, codes + 16 * done);
      __builtin_memcpy(scales + done, bytes, sizeof bytes);
    } else {
      __builtin_memcpy(codes + 16 * done, lines, static_cast<std::size_t>(16 * count));
      __builtin_memcpy(scales + done, bytes, static_cast<std::size_t>(count));
    }
  }
}

/// quantize_ref along rows, where mxfp4_lanes_apply.
template <class T>
void quantize_mxfp4_rows(const block_options& o, matrix<T> source, block_matrix<std::uint8_t> out, thread_pool& pool) {
  const index_t row_blocks = out.k / 32;
  const bool dense = source.stride(0) == out.k && out.code_stride == out.k / 2 && out.scale_stride == row_blocks;
  const index_t rows = dense ? 1 : out.rows, blocks = dense ? out.rows * row_blocks : row_blocks;
  const bool stream = out.rows * out.k / 2 >= streaming_bytes &&
                      reinterpret_cast<std::uintptr_t>(out.codes) % 16 == 0 && (dense || out.code_stride % 16 == 0);
  constexpr index_t share = 64 * mxfp4_chunk_blocks;  // blocks of one task: 128 KiB of FP32
  const index_t shares = (blocks + share - 1) / share;
  pool.for_each(rows * shares, [&](index_t i) {
    const index_t r = i / shares, b = i % shares * share;
    const index_t count = blocks - b < share ? blocks - b : share;
    if (stream) {
      quantize_run<true>(o, source, out, r, b, count);
    } else {
      quantize_run<false>(o, source, out, r, b, count);
    }
#if defined(__SSE2__)
    if (stream) _mm_sfence();  // the pool's own release does not order non-temporal stores
#endif
  });
}

}  // namespace rotoscale::detail
