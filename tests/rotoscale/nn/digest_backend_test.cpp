// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A quantizer that writes something wrong is named by the first digest that differs, not the operations that read it.
#include "rotoscale/nn/digest_backend.hpp"

#include <functional>

#include "../llama/session_case.hpp"
#include "rotoscale/nn/cpu/backend.hpp"

namespace digest_backend_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;

namespace {

/// Which byte of an operand is wrong.
enum class part { none, codes, scales, factor };

/// Flips a bit of what it quantizes a tensor's last form to.
struct faulty_backend final : nn::cpu_backend {
  faulty_backend(nn::tensor_role role, part p) : cpu_backend(2), wrong_role(role), wrong_part(p) {}
  void quantize(nn::queue q, nn::const_tensor_view source, const nn::quantize_target& to,
                const nn::step_state* state) override {
    cpu_backend::quantize(q, source, to, state);
    if (to.set == nullptr || to.set->request().tensor != wrong_role || !to.set->request().row) return;
    if (nn::is_source(*to.set->request().row, to.set->request().source)) return;
    const gemm_operand& o = described({to.set, nn::operand_form::row});
    // In a last row of codes or scales, whose bytes a digest must not leave out.
    if (wrong_part == part::codes) flip(o.codes + (o.rows - 1) * o.code_stride + o.row_bytes() - 1);
    if (wrong_part == part::scales && o.block != 0)
      flip(o.scales + (o.rows / o.block_rows - 1) * o.scale_stride + o.k / o.block - 1);
    if (wrong_part == part::factor && o.factor != nullptr) flip(reinterpret_cast<const std::uint8_t*>(o.factor));
  }
  static void flip(const std::uint8_t* byte) { *const_cast<std::uint8_t*>(byte) ^= 1; }
  nn::tensor_role wrong_role;
  part wrong_part;
};

/// Digests of an observed step, the first of its session.
std::vector<nn::operation_digest> digests_of(nn::backend& inner, const nn::recipe& r) {
  nn::digest_backend ops(inner);
  llama::session_options o = session_case::options(2, 32, nullptr);
  o.model.statistics = true;
  llama::session s(ops, small_config(false), o, {r});
  s.set_inputs({});
  s.initialize(3);
  const batch data(2, 32, 64, true);
  std::vector<nn::operation_digest> seen;
  ops.take_digests([&](const nn::operation_digest& d) { seen.push_back(d); });
  s.train_step({}, data.tokens, data.targets, {}, true);
  s.finish_step();
  ops.take_digests(nullptr);
  return seen;
}
/// The first operation that differs.
std::string first_difference(const std::vector<nn::operation_digest>& a, const std::vector<nn::operation_digest>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].operation == b[i].operation);
    if (a[i].digest != b[i].digest) return a[i].operation;
  }
  return "";
}

}  // namespace

TEST_CASE("what a quantizer writes wrong is named: codes, scales, factors, of each tensor") {
  struct {
    const char *recipe, *formats[3];
    std::vector<part> parts;
  } const cases[] = {{"mxfp4_h16", {"mxfp4", "mxfp4", "mxfp4"}, {part::codes, part::scales}},
                     {"fp8_amd", {"fp8_e4m3", "fp8_e4m3", "fp8_e5m2"}, {part::codes, part::factor}},
                     {"nvfp4", {"nvfp4", "nvfp4", "nvfp4"}, {part::codes, part::scales, part::factor}},
                     {"bf16", {"bf16", "bf16", "bf16"}, {part::codes}}};
  // The first quantized tensor of a step in each role: the query, key and value projection's x and w, the head's dy.
  const char* const names[] = {"quantize x by rows ", "quantize w by rows ", "quantize dy by rows "};
  for (const auto& c : cases) {
    nn::cpu_backend good(1);
    const auto want = digests_of(good, preset(c.recipe));
    for (const auto role : {nn::tensor_role::x, nn::tensor_role::w, nn::tensor_role::dy}) {
      CHECK(first_difference(want,
                             [&] {
                               faulty_backend same(role, part::none);
                               return digests_of(same, preset(c.recipe));
                             }())
                .empty());
      for (const part wrong : c.parts) {
        CAPTURE(c.recipe);
        CAPTURE(static_cast<int>(role));
        CAPTURE(static_cast<int>(wrong));
        faulty_backend bad(role, wrong);
        const std::string named = first_difference(want, digests_of(bad, preset(c.recipe)));
        // The head's gradient is BF16 under every recipe, and has neither scales nor a factor.
        const bool of_head = role == nn::tensor_role::dy && wrong == part::codes;
        const std::string format = of_head ? "bf16" : c.formats[static_cast<int>(role)];
        CHECK(named.starts_with(names[static_cast<int>(role)] + format + " "));
      }
    }
  }
}

TEST_CASE("what observing leaves has digests") {
  struct wrong_statistics final : nn::cpu_backend {
    explicit wrong_statistics(bool of_operands) : cpu_backend(1), operands(of_operands) {}
    void observe(nn::queue q, nn::const_tensor_view source, nn::operand what, const nn::step_state* state,
                 nn::operand_statistics* to) override {
      cpu_backend::observe(q, source, what, state, to);
      if (operands) ++to->flushed;
    }
    void compare(nn::queue q, const float* value, const float* reference, index_t n,
                 nn::comparison_statistics* to) override {
      cpu_backend::compare(q, value, reference, n, to);
      if (!operands) to->product += 1;
    }
    bool operands;
  };
  nn::cpu_backend good(1);
  const auto want = digests_of(good, preset("mxfp4"));
  for (const bool operands : {false, true}) {
    wrong_statistics bad(operands);
    CHECK(first_difference(want, digests_of(bad, preset("mxfp4"))).starts_with(operands ? "observe " : "compare "));
  }
}

TEST_CASE("a weight has one digest a step and form, however often it is multiplied") {
  nn::cpu_backend ops(1);
  nn::recipe r = preset("mxfp4");
  const auto seen = digests_of(ops, r);
  const auto count = [&](const std::string& begin) {
    return std::count_if(seen.begin(), seen.end(), [&](const auto& d) { return d.operation.starts_with(begin); });
  };
  // Four linear layers of two decoder layers, and the head.
  CHECK(count("quantize w by rows ") == 4 * 2 + 1);
  CHECK(count("quantize w by columns ") == 4 * 2 + 1);
}

}  // namespace digest_backend_test
