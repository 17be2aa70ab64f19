// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Numbers to codes of one format and back, without scales.
#include "arrays.hpp"
#include "module.hpp"
#include "rotoscale/detail/fast_round.hpp"
#include "rotoscale/philox.hpp"
#include "rotoscale/round.hpp"

namespace rotoscale::python {
namespace {

struct conversion {
  format to;
  rounding how;
  overflow beyond;
  random_stream random;
  int random_count;

  std::uint64_t operator()(format from, std::uint64_t code, index_t i) const {
    const std::uint32_t word = how == rounding::stochastic ? random.word(static_cast<std::uint64_t>(i)) : 0;
    return convert(from, code, to, how, beyond, {word, random_count});
  }
};

/// A format with codes of at most 16 bits.
format code_format(const std::string& name) {
  const auto f = named<format>("format", name);
  if (f.bits() > 16) fail("format: " + name + " has " + std::to_string(f.bits()) + " bits, expected at most 16");
  return f;
}

std::uint64_t bits_of(float x) { return fp32_bits(x); }
std::uint64_t bits_of(double x) { return bit_cast<std::uint64_t>(x); }
template <format F>
std::uint64_t bits_of(small_float<F> x) {
  return x.bits();
}

/// Calls each(x) for all elements, in order.
template <class T, class Each>
void for_each(matrix<const T> in, const Each& each) {
  for (index_t r = 0; r < in.extent(0); ++r) {
    for (index_t k = 0; k < in.extent(1); ++k) each(in(r, k));
  }
}

/// FP32 by the branch-free conversions, which have the bits of encode. False: there is none.
template <class Code>
bool encode_fast(matrix<const float> in, const conversion& c, Code* to) {
  const auto each = [&](const auto& convert) {
    for_each(in, [&](float x) {
      std::uint32_t u = fp32_bits(x);
      convert(u);
      *to++ = static_cast<Code>(u);
    });
    return true;
  };
  if (c.how != rounding::nearest_even) return false;
  if constexpr (sizeof(Code) == 2) {
    if (!(c.to == formats::bf16) || c.beyond != overflow::to_inf) return false;
    return each([](std::uint32_t& u) {
      detail::round_to_bf16(u);
      u >>= 16;
    });
  } else {
    if (c.beyond != overflow::saturate) return false;
    if (c.to == formats::e4m3) return each([](std::uint32_t& u) { detail::fast_encode<formats::e4m3>(u); });
    if (c.to == formats::e5m2) return each([](std::uint32_t& u) { detail::fast_encode<formats::e5m2>(u); });
    return false;
  }
}

template <class Code, class T>
nb::object encode_as(const array_view& x, const conversion& c) {
  const matrix<const T> in = as_rows<T>("x", x);
  const new_array<Code> out = make_array<Code>(x.shape);
  without_gil([&] {
    if constexpr (std::is_same_v<T, float>) {
      if (encode_fast(in, c, out.data)) return;
    }
    index_t i = 0;
    for_each(in, [&](T y) {
      out.data[i] = static_cast<Code>(c(x.element, bits_of(y), i));
      ++i;
    });
  });
  return out.object;
}

template <class Code>
nb::object encode_to(const array_view& x, const conversion& c) {
  if (x.element == formats::fp32) return encode_as<Code, float>(x, c);
  if (x.element == formats::fp64) return encode_as<Code, double>(x, c);
  if (x.element == formats::bf16) return encode_as<Code, bf16>(x, c);
  if (x.element == formats::fp16) return encode_as<Code, fp16>(x, c);
  throw nb::type_error("x: expected fp32, fp64, bf16 or fp16");
}

nb::object encode_array(nb::handle x_in, const std::string& name, const std::string& how, const std::string& beyond,
                        std::uint64_t seed, std::uint64_t stream, int random_count) {
  const conversion c{code_format(name),
                     named<rounding>("rounding", how),
                     named<overflow>("overflow", beyond),
                     {seed, stream},
                     random_count};
  if (random_count < 1 || random_count > 32) fail("random_count " + std::to_string(random_count) + ": not 1 to 32");
  const array_view x = read_array("x", x_in, {});
  return c.to.bits() <= 8 ? encode_to<std::uint8_t>(x, c) : encode_to<std::uint16_t>(x, c);
}

template <class T>
nb::object decode_as(const array_view& codes, format f) {
  const matrix<const T> in = as_rows<T>("codes", codes);
  const new_array<float> out = make_array<float>(codes.shape);
  without_gil([&] {
    float* to = out.data;
    for_each(in, [&](T code) {
      if constexpr (sizeof(T) == 1) {
        *to++ = decode(f, code);
      } else {
        const bool is_plain = f == formats::bf16 && (code.bits() & 0x7FFF) <= 0x7F80;  // other NaNs become canonical
        *to++ = is_plain ? fp32_from_bits(static_cast<std::uint32_t>(code.bits()) << 16) : decode(f, code.bits());
      }
    });
  });
  return out.object;
}

nb::object decode_array(nb::handle codes_in, const std::string& name) {
  const format f = code_format(name);
  const array_view codes = read_array("codes", codes_in, name);
  return f.bits() <= 8 ? decode_as<std::uint8_t>(codes, f) : decode_as<bf16>(codes, f);
}

}  // namespace

void add_convert(nb::module_& m) {
  using nb::arg;
  m.def("encode", &encode_array, arg("x").none(), arg("format"), arg("rounding"), arg("overflow"), arg("seed"),
        arg("stream"), arg("random_count"), "Codes of a format of at most 16 bits, in uint8 or uint16.");
  m.def("decode", &decode_array, arg("codes").none(), arg("format"), "FP32 numbers of codes.");
  m.def(
      "random_word",
      [](std::uint64_t seed, std::uint64_t stream, std::uint64_t i) {
        return random_stream{seed, stream}.word(i);
      },
      arg("seed"), arg("stream"), arg("index"), "A word of a stream of Philox4x32-10.");
}

}  // namespace rotoscale::python
