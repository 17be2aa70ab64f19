// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Cached keys and values: continued passes give the bytes of full passes, and recipes under which they would not are
// refused.
#include "rotoscale/llama/cache_case.hpp"
#include "rotoscale/nn/blocks/kv_cache.hpp"

namespace cache_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;

TEST_CASE("a continued pass leaves the logits of a whole one") {
  const auto ops = nn::make_cpu_backend(2);
  for (const nn::recipe& r : cached_recipes()) {
    CAPTURE(r.name);
    const cache_case c(*ops, r, 30);
    const auto continued = c.continued();
    CHECK(continued.rows == (r.name == "square blocks" ? 32 : 1));
    CHECK(same_bytes(continued.logits, c.whole()));
  }
  const cache_case one(*ops, preset("bf16"), 1);
  CHECK(same_bytes(one.continued().logits, one.whole()));
  const cache_case lora(*ops, preset("mxfp4_h16"), 30, {"q_proj", "v_proj", "o_proj", "down_proj"});
  const auto continued = lora.continued();
  CHECK(continued.rows == 1);
  CHECK(same_bytes(continued.logits, lora.whole()));
}

TEST_CASE("where tokens meet in more than attention, no pass may continue") {
  const auto ops = nn::make_cpu_backend(1);
  nn::recipe random = preset("mxfp4");
  random.fprop.left.rounding = rounding::stochastic;
  nn::recipe head = preset("bf16");
  head.head = preset("nvfp4");
  for (const nn::recipe& r : {preset("nvfp4"), preset("fp8_current"), random, head}) {
    CAPTURE(r.name);
    CHECK(cache_case(*ops, r, 30).continued().rows == 0);
  }
}

TEST_CASE("a cache needs one sequence as one document, which fits, and no backward pass") {
  const auto ops = nn::make_cpu_backend(1);
  const auto make = [&](const std::function<void(llama::session_options&)>& change) {
    llama::session_options o;
    o.model.sequence = o.model.cache = 32;
    o.model.training = false;
    change(o);
    return llama::session(*ops, small_config(false), o, {preset("fp32")}).model().cache_rows();
  };
  CHECK(make([](auto&) {}) == 1);
  CHECK(make([](auto& o) { o.model.cache = 0; }) == 0);
  CHECK_THROWS_AS(make([](auto& o) { o.model.sequence = 64; }), std::invalid_argument);
  CHECK_THROWS_AS(make([](auto& o) { o.model.batch = 2; }), std::invalid_argument);
  CHECK_THROWS_AS(make([](auto& o) { o.model.training = true; }), std::invalid_argument);
  CHECK_THROWS_AS(make([](auto& o) { o.documents = true; }), std::invalid_argument);
}

}  // namespace cache_test
