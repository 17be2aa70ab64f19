// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "dump.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "../format_names.hpp"
#include "../input.hpp"
#include "examples/threads.hpp"
#include "presets.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/quantize.hpp"

namespace rotoscale::validate {

namespace {

/// Do the first extents of a shape multiply to `rows`? A flat tensor may have any number of rows.
bool has_rows(const std::vector<std::int64_t>& shape, index_t rows) {
  index_t product = 1;
  for (const std::int64_t extent : shape) {
    if (product == rows) return true;
    product *= extent;
  }
  return shape.size() < 2 || product == rows;
}

/// Can a tensor of this shape hold bytes of this layout? Tiled layouts may have any shape.
bool may_hold(const std::vector<std::int64_t>& shape, const layout& l) {
  if (l.order == placement::row_major) return has_rows(shape, l.rows);
  return l.order != placement::column_major || has_rows(shape, l.rows) || has_rows(shape, l.columns);
}

/// Can the codes' tensor have this shape? With one code per byte, its columns are elements instead of packed bytes.
bool may_hold_codes(const dump_side& side, const layout& l) {
  return may_hold(side.code_shape, side.has_code_a_byte() ? layout{l.order, l.rows, side.k} : l);
}

/// Layout of the codes if only their size is checked.
std::optional<layout> sized_codes(const quantizer& q, const dump_side& side) {
  const layout l = code_layout(q.code_order, q.blocks, side.rows, side.k);
  if (!l.is_defined() || l.size_bytes() != static_cast<index_t>(side.codes.size())) return std::nullopt;
  return l;
}

/// Layout of the scales if only their size is checked.
std::optional<stored_scales> sized_scales(const quantizer& q, const dump_side& side) {
  for (const index_t repeat : {index_t{1}, static_cast<index_t>(q.blocks.rows)}) {
    const layout l{q.scale_order, side.rows / q.blocks.rows * repeat, side.k / q.blocks.length};
    if (l.is_defined() && l.size_bytes() == static_cast<index_t>(side.scales.size())) return stored_scales{l, repeat};
  }
  return std::nullopt;
}

class dump_loader {
 public:
  dump_loader(const io::safetensors_file& file, const std::string& format_name, int block_rows, thread_pool& pool)
      : file_(file), format_name_(format_name), block_rows_(block_rows), pool_(pool) {}

  quantizer_dump load(block_format& blocks) {
    check_names();
    dump_.where = file_.name();
    load_source();
    for (const block_axis axis : {block_axis::row, block_axis::column}) load_side(axis);
    if (dump_.sides.empty()) fail("codes", "missing (or codes_t)");
    blocks = block_format_of(dump_.sides.front());
    for (dump_side& side : dump_.sides) {
      check_dtypes(side, blocks);
      pack(side, blocks.element);
      check_sizes(side, blocks);
    }
    dump_.factor = scalar("factor");
    dump_.amax = scalar("amax");
    load_random();
    return std::move(dump_);
  }

 private:
  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    throw io::error(file_.name(), "tensor '" + name + "': " + what);
  }

  void check_names() const {
    const std::vector<std::string> known{"x", "codes", "scales", "codes_t", "scales_t", "factor", "amax", "random"};
    for (const io::tensor_info& t : file_.tensors()) {
      if (std::find(known.begin(), known.end(), t.name) != known.end()) continue;
      fail(io::printable(t.name), "not part of a quantizer's dump" + io::did_you_mean(t.name, known));
    }
  }

  void load_source() {
    const io::tensor_info* x = file_.find("x");
    if (x == nullptr) fail("x", "missing: the source that was quantized");
    if (x->dtype != "F32" && x->dtype != "BF16" && x->dtype != "F16")
      fail("x", "type " + x->dtype + " is none of F32, BF16, F16");
    dump_.source_format = x->dtype == "F32" ? formats::fp32 : x->dtype == "BF16" ? formats::bf16 : formats::fp16;
    if (x->shape.empty()) fail("x", "is a scalar");
    if (x->begin == x->end) fail("x", "is empty");  // first: the product of other extents may overflow
    dump_.cols = x->shape.back();
    dump_.rows = 1;
    for (std::size_t i = 0; i + 1 < x->shape.size(); ++i) dump_.rows *= x->shape[i];
    dump_.source.resize(static_cast<std::size_t>(dump_.rows * dump_.cols));
    file_.read_floats(*x, 0, dump_.source);
  }

  void load_side(block_axis axis) {
    dump_side side;
    side.axis = axis;
    const bool row = axis == block_axis::row;
    side.rows = row ? dump_.rows : dump_.cols;
    side.k = row ? dump_.cols : dump_.rows;
    const io::tensor_info* codes = file_.find(side.code_name());
    const io::tensor_info* scales = file_.find(side.scale_name());
    if (codes == nullptr && scales == nullptr) return;
    if (codes == nullptr) fail(side.code_name(), std::string("missing; the file has only ") + side.scale_name());
    if (!holds_bytes(codes->dtype) && !find_format(codes->dtype, block_elements))
      fail(side.code_name(), "type " + codes->dtype + " is none of U8, I8, " + dtype_list(block_elements));
    if (codes->begin == codes->end) fail(side.code_name(), "is empty");
    side.codes = bytes_of(*codes);
    side.code_shape = codes->shape;
    if (scales != nullptr) {
      if (scales->dtype != "F8_E8M0" && scales->dtype != "F8_E4M3" && !holds_bytes(scales->dtype))
        fail(side.scale_name(), "type " + scales->dtype + " is none of F8_E8M0, F8_E4M3, U8, I8");
      if (scales->begin == scales->end) fail(side.scale_name(), "is empty");
      side.scales = bytes_of(*scales);
      side.scale_shape = scales->shape;
    }
    dump_.sides.push_back(std::move(side));
  }

  std::vector<std::uint8_t> bytes_of(const io::tensor_info& t) const {
    const auto bytes = file_.bytes(t);
    std::vector<std::uint8_t> copy(bytes.size());
    if (!copy.empty()) std::memcpy(copy.data(), bytes.data(), bytes.size());
    return copy;
  }

  /// Block format from the option, or else from dtypes and sizes if they determine it.
  block_format block_format_of(const dump_side& side) const {
    const io::tensor_info& codes = *file_.find(side.code_name());
    block_format f = side.scales.empty() ? block_format{formats::e4m3, 0} : mxfp4;
    const auto element = find_format(format_name_.empty() ? codes.dtype : format_name_, block_elements);
    if (!element && !format_name_.empty()) return find_blocks(format_name_, block_rows_);
    if (element) {
      f.element = *element;
    } else if (holds_bytes(codes.dtype) && 2 * static_cast<index_t>(side.codes.size()) == side.rows * side.k) {
      f.element = formats::e2m1;
    } else if (!side.scales.empty() && side.k % nvfp4.length != 0) {
      fail("x", extents(side) + " along the blocks are no whole blocks of any format");
    } else {
      fail_open_format(side, codes.dtype);
    }
    if (f.element == formats::e2m1) f.length = mxfp4.length;  // MXFP4 always has scales
    const io::tensor_info* scales = file_.find(side.scale_name());
    const std::vector<std::int64_t> sixteenths{side.rows, side.k / 16};
    if (f.element == formats::e2m1 && scales != nullptr && (scales->dtype == "F8_E4M3" || scales->shape == sixteenths))
      f = nvfp4;
    if (!side.scales.empty()) f.rows = block_rows_;
    return f;
  }

  /// Codes of bytes that are not half as many as elements: too few or too many for any format, or a format to name.
  [[noreturn]] void fail_open_format(const dump_side& side, const std::string& dtype) const {
    const auto size = static_cast<index_t>(side.codes.size()), elements = side.rows * side.k;
    if (size == elements || 4 * size == 3 * elements)
      fail(side.code_name(), "type " + dtype + " leaves the format open: give --format");
    fail(side.code_name(), std::to_string(size) + " bytes are not those of " + extents(side) + " elements: " +
                               std::to_string(elements / 2) + " of 4 bits, " + std::to_string(elements * 3 / 4) +
                               " of 6 bits, " + std::to_string(elements) + " of 8 bits");
  }

  /// Packs codes of 4 or 6 bits that ml_dtypes stored one per byte, with zeros in the other bits.
  void pack(dump_side& side, format element) const {
    const int bits = storage_bits(element);
    if (bits == 8 || static_cast<index_t>(side.codes.size()) != side.rows * side.k) return;
    const auto wide =
        std::find_if(side.codes.begin(), side.codes.end(), [&](std::uint8_t byte) { return byte >> bits != 0; });
    if (wide != side.codes.end()) {
      fail(side.code_name(), "byte " + std::to_string(wide - side.codes.begin()) + " is " + std::to_string(*wide) +
                                 ", which is no code of " + std::to_string(bits) + " bits");
    }
    const index_t row_bytes = packed_bytes(element, side.k);
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(side.rows * row_bytes)), turned(packed.size());
    const auto packed_rows = row_major(packed.data(), side.rows, row_bytes);
    const auto pack_in = [&](auto&& code_at) {
      // A chunk has as many rows as a cache line has codes: these are neighbours in the transpose.
      for_each_chunk(pool_, side.rows, 64, [&](index_t first, index_t last) {
        for (index_t c = 0; c < side.k; ++c) {
          for (index_t r = first; r < last; ++r)
            store_code(element, &packed_rows(r, 0), c, side.codes[static_cast<std::size_t>(code_at(r, c))]);
        }
      });
    };
    pack_in([&](index_t r, index_t c) { return c * side.rows + r; });
    place(row_major<const std::uint8_t>(packed.data(), side.rows, row_bytes),
          layout{placement::column_major, side.rows, row_bytes}, turned.data(), 0);
    pack_in([&](index_t r, index_t c) { return r * side.k + c; });
    side.codes = std::move(packed);
    side.turned_codes = std::move(turned);
  }

  /// Throws io::error if the dtype of the codes or scales contradicts the format.
  void check_dtypes(const dump_side& side, block_format f) const {
    const std::string& codes = file_.find(side.code_name())->dtype;
    const auto element = find_format(codes, block_elements);
    if (element && !(*element == f.element))
      fail(side.code_name(), "type " + codes + " holds no elements of " + std::string(to_string(f.element)));
    const io::tensor_info* scales = file_.find(side.scale_name());
    if (scales == nullptr || f.length == 0 || holds_bytes(scales->dtype)) return;
    if ((scales->dtype == "F8_E8M0") != f.has_e8m0_scale())
      fail(side.scale_name(), "type " + scales->dtype + " holds no scales of " + std::string(to_string(f.scale)));
  }

  void check_sizes(const dump_side& side, block_format f) const {
    if (f.length == 0) {
      if (!side.scales.empty()) fail(side.scale_name(), "one factor a tensor has no scales: see --format");
      if (static_cast<index_t>(side.codes.size()) != side.rows * side.k) {
        fail(side.code_name(), std::to_string(side.codes.size()) + " bytes are not " + extents(side));
      }
      return;
    }
    if (side.scales.empty()) fail(side.scale_name(), "missing: " + std::string(to_string(f.element)) + " needs scales");
    if (side.k % f.length != 0 || side.rows % f.rows != 0) {
      fail("x", extents(side) + " along the blocks are no whole blocks of " + std::to_string(f.rows) + " x " +
                    std::to_string(f.length));
    }
  }
  static std::string extents(const dump_side& side) {
    return std::to_string(side.rows) + " x " + std::to_string(side.k);
  }

  std::optional<float> scalar(const char* name) const {
    const io::tensor_info* t = file_.find(name);
    if (t == nullptr) return std::nullopt;
    float value = 0;
    if (t->dtype != "F32" || file_.bytes(*t).size() != sizeof value) fail(name, "is not one number of type F32");
    std::memcpy(&value, file_.bytes(*t).data(), sizeof value);
    return value;
  }

  void load_random() {
    const io::tensor_info* t = file_.find("random");
    if (t == nullptr) return;
    const auto bytes = file_.bytes(*t);
    if (t->dtype != "U32" || bytes.size() != dump_.source.size() * 4)
      fail("random", "is not U32 of the source's extents");
    if (!has_rows(t->shape, dump_.rows))
      fail("random",
           "shape " + shape_text(t->shape) + " is not " + shape_text({dump_.rows, dump_.cols}) + ", the shape of x");
    dump_.random.resize(dump_.source.size());
    std::memcpy(dump_.random.data(), bytes.data(), bytes.size());
  }

  const io::safetensors_file& file_;
  const std::string& format_name_;
  int block_rows_;
  thread_pool& pool_;
  quantizer_dump dump_;
};

random_bits bits_of(const quantizer& q, const quantizer_dump& dump, const dump_side& side, index_t index) {
  if (q.options.rounding != rounding::stochastic) return {};
  if (dump.random.empty()) return {q.options.random.word(static_cast<std::uint64_t>(index)), q.options.random_count};
  // Words are in the source's order, for blocks along either axis.
  const index_t at = side.axis == block_axis::row ? index : index % side.k * dump.cols + index / side.k;
  return {dump.random[static_cast<std::size_t>(at)], q.options.random_count};
}

/// Rotates a run; without hadamard_factor it applies only the butterflies.
void rotate(const quantizer& q, float* x, int run) {
  rotate_run(x, run, q.options.rotation);
  for (int i = 0; i < run && q.details.rotated_bf16; ++i) x[i] = round_to_format(formats::bf16, x[i]);
  if (q.hadamard_factor || q.options.rotation.points == 0) return;
  const float inverse = 1.0f / hadamard_factor(q.options.rotation.points);
  for (int i = 0; i < run; ++i) x[i] *= inverse;
}

/// The next FP32 number toward zero. Rounded to nearest away, it gives what `x` gives with ties toward zero.
float next_toward_zero(float x) {
  const std::uint32_t u = fp32_bits(x), magnitude = u & fp32_magnitude_mask;
  return magnitude == 0 || fp32_is_nan(magnitude) ? x : fp32_from_bits(u - 1);
}

/// The power of two nearest to `x` > 0 by logarithm.
float nearest_in_log2(float x) {
  const int exponent = std::ilogb(x);
  const double fraction = std::ldexp(static_cast<double>(x), -exponent);  // its square is exact, and never 2
  return std::ldexp(1.0f, exponent + (fraction * fraction > 2));
}

/// Scale of a block with this amax, with the quantizer's details.
std::uint8_t scale_of_amax(const quantizer& q, std::uint32_t amax) {
  if (q.details.amax_bf16 && amax != no_amax) amax = fp32_bits(round_to_format(formats::bf16, fp32_from_bits(amax)));
  const std::uint8_t scale = choose_scale(q.blocks, q.options, amax);
  if (!q.details.replaces_rule() || amax == 0 || amax >= fp32_infinity_bits) return scale;
  float wanted = fp32_from_bits(amax) / decode(q.blocks.element, q.blocks.element.max_code());
  if (q.details.nearest_log2 && wanted > 0) wanted = nearest_in_log2(wanted);
  return std::max(static_cast<std::uint8_t>(encode(formats::e8m0, wanted)), q.options.policy.least_byte);
}

}  // namespace

void turn_nibbles(const quantizer& q, std::vector<std::uint8_t>& codes, bool to_dense) {
  if (storage_bits(q.blocks.element) != 4) return;
  if (q.nibbles == nibble_order::high) {
    for (std::uint8_t& byte : codes) byte = static_cast<std::uint8_t>(byte << 4 | byte >> 4);
  }
  if (q.nibbles != nibble_order::halves) return;
  const index_t half = q.blocks.length / 2;
  std::vector<std::uint8_t> block(static_cast<std::size_t>(half));
  for (index_t first = 0; first + half <= static_cast<index_t>(codes.size()); first += half) {
    // Place of element e in the order of halves, counted in nibbles.
    const auto place = [half](index_t e) { return e % half * 2 + e / half; };
    for (index_t e = 0; e < 2 * half; ++e) {
      const auto code = load_code(formats::e2m1, codes.data() + first, to_dense ? place(e) : e);
      store_code(formats::e2m1, block.data(), to_dense ? e : place(e), code);
    }
    std::copy(block.begin(), block.end(), codes.begin() + first);
  }
}

quantizer_dump load_dump(const io::safetensors_file& file, const std::string& format_name, int block_rows,
                         block_format& blocks, thread_pool& pool) {
  return dump_loader(file, format_name, block_rows, pool).load(blocks);
}

std::optional<std::vector<std::uint8_t>> dense_codes(const quantizer& q, const dump_side& side) {
  const std::optional<layout> l = sized_codes(q, side);
  if (!l || !may_hold_codes(side, *l)) return std::nullopt;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(l->rows * l->columns));
  gather(side.codes_in(l->order).data(), *l, row_major(codes.data(), l->rows, l->columns));
  turn_nibbles(q, codes, true);
  return codes;
}

std::optional<stored_scales> find_scales(const quantizer& q, const dump_side& side) {
  const std::optional<stored_scales> stored = sized_scales(q, side);
  if (!stored || !may_hold(side.scale_shape, stored->where)) return std::nullopt;
  return stored;
}

std::optional<std::vector<std::uint8_t>> dense_scales(const quantizer& q, const dump_side& side) {
  if (q.is_per_tensor()) return std::vector<std::uint8_t>{};
  const std::optional<stored_scales> stored = find_scales(q, side);
  if (!stored) return std::nullopt;
  const auto& [where, repeat] = *stored;
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(where.rows / repeat * where.columns));
  gather(side.scales.data(), where, row_major(scales.data(), where.rows / repeat, where.columns), repeat);
  return scales;
}

std::string shape_fault(const quantizer& q, const dump_side& side, bool of_scales) {
  if (of_scales && q.is_per_tensor()) return "";
  std::optional<layout> l = of_scales ? std::nullopt : sized_codes(q, side);
  if (of_scales) {
    if (const std::optional<stored_scales> stored = sized_scales(q, side)) l = stored->where;
  }
  const std::vector<std::int64_t>& shape = of_scales ? side.scale_shape : side.code_shape;
  if (!l || (of_scales ? may_hold(shape, *l) : may_hold_codes(side, *l))) return "";
  const index_t count = std::accumulate(shape.begin(), shape.end(), index_t{1}, std::multiplies<>());
  return "shape " + shape_text(shape) + " is not " + shape_text({l->rows, count / l->rows}) + ", which " +
         std::to_string(side.rows) + " x " + std::to_string(side.k) + " elements have in placement " +
         std::string(to_string(l->order)) +
         (has_rows(shape, of_scales || !side.has_code_a_byte() ? l->columns : side.k) ? "; it is column_major's" : "");
}

void refuse_extents(const quantizer& q, const quantizer_dump& dump, const dump_side& side, bool of_scales,
                    std::optional<placement> order) {
  const std::string tensor = std::string("tensor '") + (of_scales ? side.scale_name() : side.code_name()) + "': ";
  if (const std::string fault = shape_fault(q, side, of_scales); !fault.empty())
    throw io::error(dump.where, tensor + fault);
  const std::size_t size = of_scales ? side.scales.size() : side.codes.size();
  std::string fitting;
  for (const auto& other : enum_names<placement>::table) {
    quantizer in = q;
    (of_scales ? in.scale_order : in.code_order) = other.value;
    const bool fits = of_scales ? find_scales(in, side).has_value() : dense_codes(in, side).has_value();
    if (fits) fitting += (fitting.empty() ? "; it has the size of " : ", ") + std::string(other.name);
  }
  const bool square = of_scales && q.blocks.rows == 1 && q.blocks.length == 32 &&
                      static_cast<index_t>(32 * 32 * size) == side.rows * side.k;
  throw io::error(dump.where, tensor + std::to_string(size) + " bytes are not what " +
                                  (order ? "placement " + std::string(to_string(*order)) : "any placement") +
                                  " takes for " + std::to_string(side.rows) + " x " + std::to_string(side.k) +
                                  (square ? "; squares of 32 x 32 have as many: --block-rows 32" : fitting));
}

std::uint8_t code_under(const quantizer& q, const quantizer_dump& dump, const dump_side& side, float x,
                        std::uint8_t scale, index_t index) {
  const random_bits random = bits_of(q, dump, side, index);
  block_options o = q.options;
  if (q.details.ties_to_zero) o.rounding = rounding::nearest_away;
  const auto rounded = [&](float v) { return q.details.ties_to_zero ? next_toward_zero(v) : v; };
  if (q.is_per_tensor()) {
    const overflow beyond = q.details.overflow_nan ? overflow::to_nan : overflow::saturate;
    const float scaled = canonical_nan(x * o.encode_factor);
    return static_cast<std::uint8_t>(encode(q.blocks.element, rounded(scaled), o.rounding, beyond, random));
  }
  if (q.blocks.has_e8m0_scale()) {
    return static_cast<std::uint8_t>(encode_element(q.blocks, o, rounded(x), scale, random));
  }
  if (q.details.zero_under_zero && scale == 0) return static_cast<std::uint8_t>(encode(q.blocks.element, x * 0.0f));
  if (!q.details.ties_to_zero || q.blocks.scale.is_nan(scale))
    return static_cast<std::uint8_t>(encode_element(q.blocks, o, x, scale, random));
  const float scaled = canonical_nan(x * scale_inverse(q.blocks.scale, scale, o.encode_factor));
  return static_cast<std::uint8_t>(encode(q.blocks.element, rounded(scaled), o.rounding, overflow::saturate, random));
}

code_choices::code_choices(const quantizer& q) : up_(q), down_(q) {
  if (!q.has_unknown_words()) return;
  up_.options.rounding = rounding::up;
  down_.options.rounding = rounding::down;
}

code_pair code_choices::under(const quantizer_dump& dump, const dump_side& side, float x, std::uint8_t scale,
                              index_t index) const {
  const std::uint8_t up = code_under(up_, dump, side, x, scale, index);
  if (up_.options.rounding == down_.options.rounding) return {up, up};
  const std::uint8_t down = code_under(down_, dump, side, x, scale, index);
  const format f = up_.blocks.element;
  return f.magnitude(up) > f.magnitude(down) ? code_pair{down, up} : code_pair{up, down};
}

double scaled_value(const quantizer& q, float x, std::uint8_t scale) {
  if (q.is_per_tensor()) return static_cast<double>(x * q.options.encode_factor);
  if (q.blocks.has_e8m0_scale()) return std::ldexp(static_cast<double>(x), -scale_exponent(scale));
  return static_cast<double>(x * scale_inverse(q.blocks.scale, scale, q.options.encode_factor));
}

double fraction_between(const quantizer& q, float x, std::uint8_t scale, const code_pair& neighbours) {
  const auto value = [&](std::uint8_t code) { return std::abs(static_cast<double>(decode(q.blocks.element, code))); };
  const double low = value(neighbours.toward_zero), high = value(neighbours.away);
  const double fraction = (std::abs(scaled_value(q, x, scale)) - low) / (high - low);
  if (q.options.random_count == 32) return fraction;
  // With fewer random bits, lower bits of the fraction have no effect.
  return std::ldexp(std::floor(std::ldexp(fraction, q.options.random_count)), -q.options.random_count);
}

std::vector<float> load_tile(const quantizer& q, const quantizer_dump& dump, const dump_side& side, index_t tile,
                             index_t first_k) {
  const matrix<const float> in = side.axis == block_axis::row ? dump.source_view() : transposed(dump.source_view());
  const index_t rows = q.tile_rows(), run = q.tile_k();
  std::vector<float> all(static_cast<std::size_t>(rows * run));
  for (index_t r = 0; r < rows; ++r) {
    float* x = all.data() + r * run;
    for (index_t i = 0; i < run; ++i) x[i] = round_to_format(q.options.source, in(tile * rows + r, first_k + i));
    if (!q.is_per_tensor()) rotate(q, x, static_cast<int>(run));
  }
  return all;
}

tile_values scale_tile(const quantizer& q, std::vector<float> x) {
  tile_values t;
  t.x = std::move(x);
  if (q.is_per_tensor()) return t;
  const auto length = static_cast<std::size_t>(q.blocks.length), run = static_cast<std::size_t>(q.tile_k());
  t.amax.assign(run / length, no_amax);
  for (std::size_t first = 0; first < t.x.size(); first += run) {
    for (std::size_t b = 0; b < t.amax.size(); ++b)
      t.amax[b] = block_amax(t.x.data() + first + b * length, q.blocks.length, q.options.policy, t.amax[b]);
  }
  for (const std::uint32_t amax : t.amax) t.scales.push_back(scale_of_amax(q, amax));
  return t;
}

tile_values quantize_tile(const quantizer& q, const quantizer_dump& dump, const dump_side& side, index_t tile,
                          index_t first_k) {
  tile_values t = scale_tile(q, load_tile(q, dump, side, tile, first_k));
  const index_t run = q.tile_k();
  for (index_t e = 0; e < static_cast<index_t>(t.x.size()); ++e) {
    const index_t at = (tile * q.tile_rows() + e / run) * side.k + first_k + e % run;
    t.codes.push_back(code_under(q, dump, side, t.x[static_cast<std::size_t>(e)], t.scale_of(q, e), at));
  }
  return t;
}

dense_side quantize_side(const quantizer& q, const quantizer_dump& dump, const dump_side& side, thread_pool& pool) {
  dense_side out;
  out.codes.resize(static_cast<std::size_t>(side.rows * packed_bytes(q.blocks.element, side.k)));
  if (q.is_per_tensor()) {
    for_each_or_throw(pool, side.rows, [&](index_t r) {
      for (index_t c = 0; c < side.k; ++c)
        out.codes[static_cast<std::size_t>(r * side.k + c)] = quantize_tile(q, dump, side, r, c).codes[0];
    });
    return out;
  }
  out.scales.resize(static_cast<std::size_t>(side.rows / q.blocks.rows * (side.k / q.blocks.length)));
  const auto blocks = dense_blocks(q.blocks, side.rows, side.k, out.codes.data(), out.scales.data());
  if (q.hadamard_factor && q.details == quantizer_details{} && dump.random.empty()) {
    quantize(q.blocks, q.options, dump.source_view(), side.axis, blocks, pool);
    return out;
  }
  const index_t rows = q.tile_rows(), run = q.tile_k();
  for_each_or_throw(pool, side.rows / rows, [&](index_t tile) {
    for (index_t c = 0; c < side.k; c += run) {
      const tile_values t = quantize_tile(q, dump, side, tile, c);
      for (std::size_t b = 0; b < t.scales.size(); ++b)
        blocks.scales[tile * blocks.scale_stride + c / q.blocks.length + static_cast<index_t>(b)] = t.scales[b];
      for (index_t i = 0; i < rows * run; ++i) {
        store_code(q.blocks.element, blocks.codes + (tile * rows + i / run) * blocks.code_stride, c + i % run,
                   t.codes[static_cast<std::size_t>(i)]);
      }
    }
  });
  return out;
}

float fp8_factor(format element, float amax) {
  const float factor = decode(element, element.max_code()) / amax;
  return factor > 0 && std::isfinite(factor) ? factor : 1.0f;
}

float source_amax(const quantizer& q, const quantizer_dump& dump) {
  std::uint32_t bits = 0;
  for (const float x : dump.source) {
    const std::uint32_t u = fp32_bits(round_to_format(q.options.source, x)) & fp32_magnitude_mask;
    if (u < fp32_infinity_bits && u > bits) bits = u;
  }
  return fp32_from_bits(bits);
}

void take_own_factor(quantizer& q, const quantizer_dump& dump, thread_pool& pool) {
  q.options.encode_factor = 1.0f;
  if (q.is_per_tensor()) {
    if (dump.amax) q.options.encode_factor = fp8_factor(q.blocks.element, *dump.amax);
    q.assumed = dump.amax ? assumed_factor::amax : assumed_factor::one;
    return;
  }
  if (q.blocks.has_e8m0_scale()) return;
  const block_axis axis = dump.sides.empty() ? block_axis::row : dump.sides.front().axis;
  const float amax = dump.amax ? *dump.amax : tensor_amax(q.blocks, q.options, dump.source_view(), axis, pool);
  q.options.encode_factor = tensor_encode_factor(amax, q.blocks.element, q.blocks.scale);
  if (dump.amax) return;
  q.assumed = q.options.rotation.points == 0 ? assumed_factor::source
              : axis == block_axis::row      ? assumed_factor::rotated_rows
                                             : assumed_factor::rotated_columns;
}

}  // namespace rotoscale::validate
