// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The first digest that differs names the faulty quantizer, not the operations that read its result.
#include "rotoscale/nn/digest.hpp"

#include <cstring>
#include <functional>

#include "../llama/session_case.hpp"
#include "rotoscale/nn/cpu/backend.hpp"

namespace digest_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;

/// Faulty part of an operand.
enum class part { none, codes, scales, factor };

/// Flips a bit of the last form of a quantized tensor.
struct faulty_backend final : nn::cpu_backend {
  faulty_backend(nn::tensor_role role, part p) : cpu_backend(2, rows()), wrong_role(role), wrong_part(p) {}
  static const nn::operation_table& rows() {
    static const nn::operation_table all = [] {
      nn::operation_table table = nn::cpu_operations;
      table.quantize = [](nn::backend& ops, nn::queue q, const nn::op::quantize::in& i,
                          const nn::op::quantize::out& o) {
        nn::cpu_operations.quantize(ops, q, i, o);
        static_cast<faulty_backend&>(ops).spoil(o.to);
      };
      return table;
    }();
    return all;
  }
  void spoil(const nn::quantize_target& to) const {
    if (to.set == nullptr || to.set->request().tensor != wrong_role || !to.set->request().row) return;
    if (nn::is_source(*to.set->request().row, to.set->request().source)) return;
    const gemm_operand& o = described({to.set, nn::operand_form::row});
    // In the last row of codes or scales, which a digest must include.
    if (wrong_part == part::codes) flip(o.codes + (o.rows - 1) * o.code_stride + o.row_bytes() - 1);
    if (wrong_part == part::scales && o.block != 0)
      flip(o.scales + (o.rows / o.block_rows - 1) * o.scale_stride + o.k / o.block - 1);
    if (wrong_part == part::factor && o.factor != nullptr) flip(reinterpret_cast<const std::uint8_t*>(o.factor));
  }
  static void flip(const std::uint8_t* byte) { *const_cast<std::uint8_t*>(byte) ^= 1; }
  nn::tensor_role wrong_role;
  part wrong_part;
};

/// Digests of a step, the first of its session.
std::vector<nn::operation_digest> digests_of(nn::backend& ops, const nn::recipe& r, bool observed = true) {
  nn::digest_observer observer(ops);
  llama::session_options o = session_case::options(2, 32, nullptr);
  o.model.statistics = true;
  llama::session s(ops, small_config(false), o, {r});
  s.set_inputs({});
  s.initialize(3);
  const batch data(2, 32, 64, true);
  std::vector<nn::operation_digest> seen;
  observer.take_digests([&](const nn::operation_digest& d) { seen.push_back(d); });
  s.train_step({}, data.tokens, data.targets, {}, observed);
  s.finish_step();
  observer.take_digests(nullptr);
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

TEST_CASE("what a quantizer writes wrong is named: codes, scales, factors, of each tensor") {
  struct {
    const char *recipe, *formats[3];
    std::vector<part> parts;
  } const cases[] = {{"mxfp4_h16", {"mxfp4", "mxfp4", "mxfp4"}, {part::codes, part::scales}},
                     {"fp8_amd", {"fp8_e4m3", "fp8_e4m3", "fp8_e5m2"}, {part::codes, part::factor}},
                     {"nvfp4", {"nvfp4", "nvfp4", "nvfp4"}, {part::codes, part::scales, part::factor}},
                     {"bf16", {"bf16", "bf16", "bf16"}, {part::codes}}};
  // First quantized tensor of a step in each role: x and w of the query, key and value projection, dy of the head.
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
        // The head's gradient is always BF16, without scales or factor.
        const bool of_head = role == nn::tensor_role::dy && wrong == part::codes;
        const std::string format = of_head ? "bf16" : c.formats[static_cast<int>(role)];
        CHECK(named.starts_with(names[static_cast<int>(role)] + format + " "));
      }
    }
  }
}

TEST_CASE("a coarse operation runs as the backend has it, and what it writes wrong is named") {
  enum class coarse { none, residual_norm, activation, activation_backward, rope, cross_entropy };
  struct fused_backend final : nn::cpu_backend {
    explicit fused_backend(coarse c) : cpu_backend(1, rows()), wrong(c) {}
    static void flip(const void* number) { *static_cast<std::uint8_t*>(const_cast<void*>(number)) ^= 1; }
    static void flip(const nn::quantize_target& to) {
      flip(static_cast<nn::cpu::operands&>(*to.set).form(nn::operand_form::row).codes);
    }
    static bool is_wrong(const nn::backend& ops, coarse c) { return static_cast<const fused_backend&>(ops).wrong == c; }
    static const nn::operation_table& rows() {
      static const nn::operation_table all = faulty_rows();
      return all;
    }
    static nn::operation_table faulty_rows() {
      namespace op = nn::op;
      nn::operation_table t = nn::cpu_operations;
      t.residual_norm = [](nn::backend& ops, nn::queue q, const op::residual_norm::in& i,
                           const op::residual_norm::out& o) {
        nn::cpu_operations.residual_norm(ops, q, i, o);
        if (is_wrong(ops, coarse::residual_norm)) flip(o.rstd);
      };
      t.activation_quantize = [](nn::backend& ops, nn::queue q, const op::activation_quantize::in& i,
                                 const op::activation_quantize::out& o) {
        nn::cpu_operations.activation_quantize(ops, q, i, o);
        if (!o.to.keeps_source) fill(o.h);  // as after a fused kernel: no digest may read it
        if (is_wrong(ops, coarse::activation)) flip(o.to);
      };
      t.activation_backward_quantize = [](nn::backend& ops, nn::queue q, const op::activation_backward_quantize::in& i,
                                          const op::activation_backward_quantize::out& o) {
        nn::cpu_operations.activation_backward_quantize(ops, q, i, o);
        if (!o.to.keeps_source) fill(o.dx);
        if (is_wrong(ops, coarse::activation_backward)) flip(o.to);
      };
      t.rope = [](nn::backend& ops, nn::queue q, const op::rope::in& i, const op::rope::out& o) {
        nn::cpu_operations.rope(ops, q, i, o);
        if (is_wrong(ops, coarse::rope)) flip(o.keys.data);
      };
      t.cross_entropy_quantize = [](nn::backend& ops, nn::queue q, const op::cross_entropy_quantize::in& i,
                                    const op::cross_entropy_quantize::out& o) {
        nn::cpu_operations.cross_entropy_quantize(ops, q, i, o);
        if (is_wrong(ops, coarse::cross_entropy)) flip(o.loss);
      };
      return t;
    }
    static void fill(nn::tensor_view x) {
      std::memset(x.data, 0x5A, static_cast<std::size_t>(x.size() * nn::size_of(x.type)));
    }
    coarse wrong;
  };
  const struct {
    coarse wrong;
    const char* named;
  } cases[] = {{coarse::none, ""},
               {coarse::residual_norm, "rmsnorm_forward's rstd "},
               {coarse::activation, "quantize x by rows mxfp4 "},
               {coarse::activation_backward, "quantize dy by rows mxfp4 "},
               {coarse::rope, "rope "},
               {coarse::cross_entropy, "cross_entropy "}};
  nn::cpu_backend composed(2);
  for (const bool observed : {false, true}) {
    const auto want = digests_of(composed, preset("mxfp4_h16"), observed);
    for (const auto& c : cases) {
      CAPTURE(c.named);
      fused_backend ops(c.wrong);
      const std::string named = first_difference(want, digests_of(ops, preset("mxfp4_h16"), observed));
      CHECK(named.starts_with(c.named));
      CHECK(named.empty() == (c.wrong == coarse::none));
    }
  }
}

}  // namespace digest_test
