// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Steps take nothing from the heap, on no thread, the first one included: what operations need beside tensors is the
// queue's workspace, which is planned.
#include <string>
#include <thread>
#include <vector>

#include "rotoscale/allocations.hpp"
#include "session_case.hpp"

using namespace rotoscale;
using namespace rotoscale::testing;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;

namespace {

using change = std::function<void(llama::session_options&)>;

nn::recipe with_contract(nn::recipe r, const std::string& name) {
  for (nn::gemm_recipe* g : {&r.fprop, &r.dgrad, &r.wgrad}) g->accumulate = name;
  return r;
}

nn::recipe with_attention(nn::recipe r, const std::string& unit) {
  r.attention = nn::tiled_attention_name(nn::attention_exp2::deg3, unit);
  return r;
}

/// Allocations of a session's first steps and of the later ones.
struct allocations {
  long first = 0, late = 0;
  bool operator==(const allocations&) const = default;
};
constexpr allocations none;

doctest::String toString(const allocations& a) {
  return (std::to_string(a.first) + " in the first two steps, " + std::to_string(a.late) + " in two more").c_str();
}

/// A model's shape and the extents of its passes.
struct shape {
  llama::model_config config = small_config(false);
  index_t batch = 2, sequence = 96;
};

/// The steps are made on a thread of their own: it has no scratch memory yet that could stand in for what was not
/// planned.
allocations count_allocations(const nn::recipe& r, int threads, const change& options, bool observe = false,
                              const shape& of = {}) {
  session_case c(of.config, r, of.batch, of.sequence, threads, 3, options);
  const batch data(c.session.step_tokens() / of.sequence, of.sequence, 64, true);
  const std::vector<std::int32_t> starts(data.tokens.size(), 0);
  allocations found;
  std::uint32_t nonfinite = 0;
  std::thread([&] {
    const auto two_steps = [&](std::uint64_t number) {
      const counted_allocations now;
      for (const std::uint64_t end = number + 2; number < end; ++number) {
        c.session.train_step(c.inputs(number, 1e-3f), data.tokens, data.targets, starts, observe);
        nonfinite += c.session.finish_step().nonfinite;
      }
      return now();
    };
    found.first = two_steps(0);
    found.late = two_steps(2);
  }).join();
  CHECK(nonfinite == 0);
  return found;
}

void add_adapters(llama::session_options& o, std::vector<std::string> targets) {
  llama::lora_config c;
  c.rank = 4;
  c.targets = std::move(targets);
  o.model.lora = c;
}

const char* const recipes[] = {"fp32",  "bf16",      "fp8_delayed",          "fp8_amd",     "mxfp8",
                               "nvfp4", "mxfp4_h16", "mxfp4_h16_step_signs", "mxfp4_h16_sr"};

}  // namespace

TEST_CASE("steps allocate nothing, whatever the recipe, the stored activations and the threads") {
  for (const std::string name : recipes) {
    for (const auto activations : {nn::operand_format::fp32, nn::operand_format::bf16}) {
      for (const int threads : {1, 3}) {
        CAPTURE(name);
        CAPTURE(to_string(activations));
        CAPTURE(threads);
        nn::recipe r = preset(name);
        r.activations = activations;
        CHECK(count_allocations(r, threads, [](llama::session_options& o) { o.optimizer.clip = 1.0; }) == none);
      }
    }
  }
}

TEST_CASE("steps allocate nothing under contracts of matrix units") {
  // Operands that lie transposed are copied there; FDPA of NVIDIA, of AMD, blocks, split-K, tiles of attention.
  const nn::recipe all[] = {
      with_contract(preset("bf16"), "hopper-wgmma-fp16-f32"),
      with_contract(preset("bf16"), "cdna3-mfma-fp16-f32"),
      with_contract(preset("bf16"), "hopper-mma-fp16-f32:split_k=3:split_grain=16"),
      with_contract(preset("fp8_amd"), "hopper-wgmma-fp8-f32:promotion=32"),
      with_contract(preset("mxfp4_h16"), "blackwell-mxf4-f32"),
      with_contract(preset("mxfp4_h16"), "exact"),
      with_contract(preset("nvfp4"), "blackwell-nvf4-f32"),
      with_attention(preset("bf16"), "hopper-wgmma-fp16-f32"),
      with_attention(preset("mxfp4_h16"), "cdna3-mfma-fp16-f32"),
  };
  shape brief;
  brief.batch = 1;
  for (const nn::recipe& r : all) {
    CAPTURE(r.name);
    CAPTURE(r.fprop.accumulate);
    CAPTURE(r.attention);
    CHECK(count_allocations(r, 2, nullptr, false, brief) == none);
  }
}

TEST_CASE("steps allocate nothing, whatever a session does besides") {
  const std::pair<const char*, change> all[] = {
      {"micro-batches", [](llama::session_options& o) { o.micro_batches = 3; }},
      {"documents", [](llama::session_options& o) { o.documents = true; }},
      {"chunks of the head", [](llama::session_options& o) { o.model.head_chunk = 40; }},
      {"recomputed layers", [](llama::session_options& o) { o.model.recompute = llama::recompute_part::layer; }},
      {"activations in 8 bits", [](llama::session_options& o) { o.model.kept = llama::kept_format::mxfp8_e4m3; }},
      {"a snapshot", [](llama::session_options& o) { o.snapshot = llama::snapshot_use::required; }},
      {"adapters",
       [](llama::session_options& o) {
         add_adapters(o, {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"});
       }},
      {"one adapter of a fused layer", [](llama::session_options& o) { add_adapters(o, {"qkv_proj"}); }},
  };
  for (const auto& use : all) {
    for (const char* name : {"mxfp4_h16", "bf16"}) {
      CAPTURE(use.first);
      CAPTURE(name);
      nn::recipe r = preset(name);
      r.activations = nn::operand_format::bf16;
      CHECK(count_allocations(r, 2, use.second) == none);
    }
  }
}

TEST_CASE("observed steps allocate nothing") {
  for (const std::string name : recipes) {
    CAPTURE(name);
    CHECK(count_allocations(
              preset(name), 2, [](llama::session_options& o) { o.model.statistics = true; }, true) == none);
  }
}

TEST_CASE("workspace is enough whichever operation takes the most of it") {
  shape wide;  // GEMMs of layers: of rows that are long, against short sequences
  wide.config.hidden_size = 256;
  wide.config.intermediate_size = 512;
  wide.config.num_attention_heads = 16;
  wide.config.num_key_value_heads = 8;
  wide.batch = 8;
  wide.sequence = 16;
  for (const char* name : {"fp32", "bf16", "fp8_amd", "mxfp4_h16", "nvfp4"}) {
    CAPTURE(name);
    CHECK(count_allocations(preset(name), 3, nullptr, false, wide) == none);
  }
  CHECK(count_allocations(with_contract(preset("bf16"), "hopper-wgmma-fp16-f32"), 3, nullptr, false, wide) == none);

  shape many = wide;  // the FP32 GEMM that gradients of weights are compared with: its k is the tokens of a pass
  many.batch = 32;
  const auto observed = [](llama::session_options& o) {
    o.model.statistics = true;
    o.model.head_chunk = 32;
  };
  CHECK(count_allocations(preset("mxfp4_h16"), 3, observed, true, many) == none);

  shape deep;  // attention: long sequences
  deep.config.hidden_size = deep.config.intermediate_size = 32;
  deep.config.num_attention_heads = 2;
  deep.config.num_key_value_heads = 1;
  deep.batch = 1;
  deep.sequence = 256;
  CHECK(count_allocations(preset("bf16"), 3, nullptr, false, deep) == none);
  CHECK(count_allocations(with_attention(preset("bf16"), "hopper-wgmma-fp16-f32"), 3, nullptr, false, deep) == none);
}
