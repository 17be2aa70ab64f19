// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "check.hpp"
#include "rotoscale/quantize_ref.hpp"

namespace rotoscale::validate {

namespace {

/// How often elements went away from zero, and how often they should have: all of them, then by the fraction's eighth.
struct tally {
  double expected[9] = {}, variance[9] = {};
  index_t away[9] = {};

  void add(double fraction, bool went_away) {
    for (const int bin : {0, 1 + std::min(7, static_cast<int>(fraction * 8))}) {
      expected[bin] += fraction;
      variance[bin] += fraction * (1 - fraction);
      away[bin] += went_away;
    }
  }
};

/// The quantizer with other roundings: what a value lies between.
struct neighbours {
  explicit neighbours(const quantizer& q) : toward_zero(q), up(q), down(q) {
    toward_zero.options.rounding = rounding::toward_zero;
    up.options.rounding = rounding::up;
    down.options.rounding = rounding::down;
  }
  quantizer toward_zero, up, down;
};

/// One element: which codes its value lies between, and which one was written.
void check_element(const quantizer& q, const neighbours& to, const quantizer_dump& dump, const dump_side& side, float x,
                   std::uint8_t scale, index_t index, std::uint32_t got, distribution& d, tally& counts) {
  const auto value = [&](std::uint32_t code) { return std::abs(static_cast<double>(decode(q.blocks.element, code))); };
  const auto under = [&](const quantizer& by) { return code_under(by, dump, side, x, scale, index); };
  const std::uint32_t low = under(to.toward_zero), up = under(to.up), down = under(to.down);
  const std::uint32_t high = value(up) > value(down) ? up : down;
  if (got != low && got != high) {
    ++d.impossible;
  } else if (low != high) {
    ++d.rounded;
    const double magnitude = std::abs(scaled_value(q, x, scale));
    counts.add((magnitude - value(low)) / (value(high) - value(low)), got == high);
  }
}

}  // namespace

bool distribution::accepted() const {
  return impossible == 0 && scales_different == 0 &&
         std::all_of(std::begin(z), std::end(z), [](double d) { return std::abs(d) <= 5.0; });
}

distribution check_distribution(const quantizer& q, const quantizer_dump& dump, const dump_side& side) {
  const auto codes = dense_codes(q, side), scales = dense_scales(q, side);
  if (!codes || !scales) throw io::error(dump.where, "the tensors' sizes do not fit the placements");
  distribution d;
  tally counts;
  const neighbours to(q);
  const index_t length = q.is_per_tensor() ? 1 : q.blocks.length, row_bytes = packed_bytes(q.blocks.element, side.k);
  for (index_t tile = 0; tile < side.rows / q.tile_rows(); ++tile) {
    for (index_t c = 0; c < side.k; c += q.tile_k()) {
      const tile_values t = quantize_tile(q, dump, side, tile, c);
      for (index_t e = 0; e < q.tile_rows() * q.tile_k(); ++e) {
        const index_t row = tile * q.tile_rows() + e / q.tile_k(), at = c + e % q.tile_k();
        std::uint8_t scale = 0;
        if (!q.is_per_tensor()) {
          scale = (*scales)[static_cast<std::size_t>(tile * (side.k / length) + at / length)];
          if (e < q.tile_k() && e % length == 0)
            d.scales_different += scale != t.scales[static_cast<std::size_t>(e / length)];
        }
        check_element(q, to, dump, side, t.x[static_cast<std::size_t>(e)], scale, row * side.k + at,
                      load_code(q.blocks.element, codes->data() + row * row_bytes, at), d, counts);
      }
    }
  }
  for (int bin = 0; bin < 9; ++bin) {
    if (counts.variance[bin] > 0)
      d.z[bin] = (static_cast<double>(counts.away[bin]) - counts.expected[bin]) / std::sqrt(counts.variance[bin]);
  }
  return d;
}

}  // namespace rotoscale::validate
