// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The text names of enumerators, formats, block formats, policies and presets.
#include "rotoscale/names.hpp"

#include <doctest/doctest.h>

#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "oracle/format_oracle.hpp"

namespace names_test {

using namespace rotoscale;

template <class E>
void check(int count) {
  const auto all = names(E{});
  CHECK(all.size() == static_cast<std::size_t>(count));
  CHECK(std::set<std::string>(all.begin(), all.end()).size() == all.size());
  for (int i = 0; i < count; ++i) {
    const auto value = static_cast<E>(i);
    E back = static_cast<E>((i + 1) % count);
    CHECK(from_string(to_string(value), back));
    CHECK(back == value);
  }
  E untouched = static_cast<E>(1);
  for (const char* wrong : {"", "?", "Floor", "nearest_even ", "nearest"}) {
    CHECK_FALSE(from_string(wrong, untouched));
    CHECK(untouched == static_cast<E>(1));
  }
  CHECK(to_string(static_cast<E>(99)) == "?");
}

/// Names of values that are not enumerators.
template <class T>
void check_values(const std::vector<std::pair<const char*, T>>& all) {
  CHECK(names(T{}).size() == all.size());
  for (const auto& entry : all) {
    CAPTURE(entry.first);
    T back{};
    CHECK(from_string(entry.first, back));
    CHECK(back == entry.second);
    CHECK(to_string(entry.second) == entry.first);
  }
}

TEST_CASE("every enumerator has one name that leads back to it") {
  check<scale_rule>(4);
  check<rounding>(7);
  check<overflow>(3);
  check<specials>(4);
  check<block_axis>(2);
  check<placement>(6);
  check<block_policy::nan_rule>(3);
  check<block_policy::infinity_rule>(3);
  CHECK(to_string(scale_rule::even) == "even");
  CHECK(to_string(rounding::nearest_even) == "nearest_even");
  CHECK(to_string(overflow::to_inf) == "to_inf");
  CHECK(to_string(placement::aiter_scale) == "aiter_scale");
  CHECK(to_string(specials::nan_only) == "nan_only");
  CHECK(to_string(block_policy::nan_rule::ignore) == "ignore");
  CHECK(to_string(block_policy::infinity_rule::largest_scale) == "largest_scale");
}

TEST_CASE("formats have the names of their specifications") {
  std::vector<std::pair<const char*, format>> all;
  for (const auto* formats : {&oracle::named_formats(), &oracle::wide_formats()}) {
    for (const oracle::format_facts& f : *formats) all.emplace_back(f.name.c_str(), f.value);
  }
  check_values<format>(all);
  CHECK(to_string(format{3, 4, 3}) == "?");
}

TEST_CASE("block formats and policies") {
  check_values<block_format>({{"mxfp4", {formats::e2m1, 32, formats::e8m0, 1}},
                              {"mxfp6_e2m3", {formats::e2m3, 32, formats::e8m0, 1}},
                              {"mxfp6_e3m2", {formats::e3m2, 32, formats::e8m0, 1}},
                              {"mxfp8_e4m3", {formats::e4m3, 32, formats::e8m0, 1}},
                              {"mxfp8_e5m2", {formats::e5m2, 32, formats::e8m0, 1}},
                              {"mxint8", {formats::int8, 32, formats::e8m0, 1}},
                              {"nvfp4", {formats::e2m1, 16, formats::ue4m3, 1}}});
  CHECK(to_string(square_blocks(mxfp4)) == "?");
  using enum block_policy::infinity_rule;
  constexpr auto ignore = block_policy::nan_rule::ignore;
  constexpr auto unless_all = block_policy::nan_rule::ignore_unless_all;
  check_values<block_policy>({{"te_rocm", {127, 0, unless_all, exponent_128}},
                              {"primus", {0, 0, unless_all, exponent_128}},
                              {"aiter_even", {0, 0, ignore, exponent_128}},
                              {"aiter", {0, 0, ignore, nan_scale}},
                              {"aiter_nonzero", {0, 1, ignore, nan_scale}},
                              {"nvidia", {0, 0, ignore, largest_scale}},
                              {"torchao_nvfp4", {8, 8, block_policy::nan_rule::nan_scale, largest_scale}},
                              {"ocp", {0, 0, block_policy::nan_rule::nan_scale, nan_scale}}});
}

TEST_CASE("presets by name have the source, rule, policy and rotation of the implementation") {
  struct expected {
    const char* name;
    format source;
    int points;
    scale_rule rule;
    const char* policy;
  };
  const expected all[] = {{"te_rocm", formats::bf16, 16, scale_rule::even, "te_rocm"},
                          {"primus", formats::fp32, 0, scale_rule::even, "primus"},
                          {"aiter_even", formats::fp32, 0, scale_rule::even, "aiter_even"},
                          {"aiter_round_up", formats::fp32, 0, scale_rule::rceil, "aiter_nonzero"},
                          {"aiter_round_down", formats::fp32, 0, scale_rule::floor, "aiter"},
                          {"aiter_ceil", formats::fp32, 0, scale_rule::ceil, "aiter_nonzero"},
                          {"torchao_floor", formats::fp32, 0, scale_rule::floor, "ocp"},
                          {"torchao_rceil", formats::fp32, 0, scale_rule::rceil, "ocp"},
                          {"torchao_even", formats::fp32, 0, scale_rule::even, "ocp"},
                          {"torchao_ceil", formats::fp32, 0, scale_rule::ceil, "ocp"},
                          {"torchao_nvfp4", formats::fp32, 0, scale_rule::floor, "torchao_nvfp4"},
                          {"nvidia", formats::fp32, 0, scale_rule::rceil, "nvidia"},
                          {"ocp", formats::fp32, 0, scale_rule::floor, "ocp"}};
  CHECK(names(block_options{}).size() == std::size(all));
  for (const auto& e : all) {
    CAPTURE(e.name);
    block_options o;
    REQUIRE(from_string(e.name, o));
    CHECK(o.source == e.source);
    CHECK(o.rotation.points == e.points);
    CHECK(o.rule == e.rule);
    CHECK(to_string(o.policy) == e.policy);
  }
}

}  // namespace names_test
