// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launchers of gpu/api by names and addresses.
#include "library.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

#include "gpu/api/dequantize.hpp"
#include "gpu/api/gemm.hpp"
#include "gpu/train/backend.hpp"
#include "rotoscale/checked.hpp"
#include "rotoscale/nearest_name.hpp"
#include "rotoscale/version.hpp"

using namespace rotoscale;

namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

template <class E>
E named(const char* argument, const char* name) {
  E value{};
  if (name != nullptr && from_string(name, value)) return value;
  fail(std::string(argument) + ": no '" + (name == nullptr ? "" : name) + "'; the nearest name is '" +
       nearest_name(name == nullptr ? "" : name, names(E{})) + "'");
}
template <class E>
void replace(E& value, const char* argument, const char* name) {
  if (name != nullptr) value = named<E>(argument, name);
}

/// Runs f. Returns the text of its exception; "device: " marks a failure of the device.
template <class Function>
const char* guarded(const Function& f) {
  static thread_local std::string text;
  try {
    f();
    return nullptr;
  } catch (const gpu::refused& error) {
    text = (gpu::is_of_device(error.why) ? "device: " : "") + std::string(error.what());
  } catch (const std::exception& error) {
    text = error.what();
  }
  return text.c_str();
}
/// Runs f on the device and stream of `place`.
template <class Function>
const char* guarded(rotoscale_place place, const Function& f) {
  return guarded([&] {
    if (place.device != -1) gpu::expect(gpu::select_device(place.device));
    f(gpu::stream{place.stream});
  });
}

gpu::device_info device() {
  gpu::device_info d;
  gpu::expect(gpu::current_device(d));
  gpu::expect(gpu::check_architecture(d));
  return d;
}

template <class T>
matrix<const T> as_matrix(const rotoscale_matrix& x) {
  return {static_cast<const T*>(x.data), {x.rows, x.columns}, {x.row_stride, x.column_stride}};
}

block_format blocks_named(const char* name, bool square) {
  const auto f = named<block_format>("format", name);
  return square ? square_blocks(f) : f;
}

block_options options_of(const rotoscale_quantize_call& call) {
  auto o = named<block_options>("preset", call.preset);
  replace(o.source, "source", call.source);
  replace(o.rule, "scale_rule", call.scale_rule);
  replace(o.choice, "scale_choice", call.scale_choice);
  replace(o.rounding, "rounding", call.rounding);
  replace(o.policy, "policy", call.policy);
  if (call.points >= 0) o.rotation = {call.points, {call.signs}};
  o.random = {call.seed, call.random_stream};
  o.random_count = call.random_count;
  if (call.encode_factor != 0.0f) o.encode_factor = call.encode_factor;
  return o;
}

/// Measures the tensor's amax for its second-level factor.
template <class T>
void measure(const rotoscale_quantize_call& call, block_format f, matrix<const T> x, gpu::quantized_output& to,
             gpu::stream s) {
  if (f.has_e8m0_scale()) fail(std::string("encode_factor: ") + call.format + " has no second-level factor");
  static_assert(gpu::amax_words * sizeof(std::uint32_t) == 2048);  // as library.hpp says
  to.amax = static_cast<std::uint32_t*>(call.scratch);
  to.factor = call.factor;
  const gpu::quantized_output none;
  if constexpr (std::is_same_v<T, fp16>) {
    fail("encode_factor: 'amax' takes fp32 or bf16");
  } else {
    gpu::expect(gpu::measure_amax(f, x, call.column != 0 ? none : to, call.column != 0 ? to : none, s));
  }
}

template <class T>
void quantize_as(const rotoscale_quantize_call& call, gpu::stream s) {
  const matrix<const T> x = as_matrix<T>(call.x);
  const block_format f = blocks_named(call.format, call.square != 0);
  const bool column = call.column != 0;
  gpu::quantized_output to{static_cast<std::uint8_t*>(call.codes), static_cast<std::uint8_t*>(call.scales),
                           options_of(call)};
  checked::detail::check_formats(f, to.options.rotation);
  checked::detail::check_extents("x", f, to.options.rotation, x.extent(column ? 1 : 0), x.extent(column ? 0 : 1));
  checked::detail::check_options(f, to.options);
  if (x.size() == 0) return;
  if (call.encode_factor == 0.0f) measure(call, f, x, to, s);
  const gpu::quantized_output none;
  gpu::expect(gpu::quantize(f, x, column ? none : to, column ? to : none, s));
}

gemm_operand operand_of(const char* name, const rotoscale_operand& o) {
  const rotoscale_matrix& c = o.codes;
  gemm_operand x;
  if (o.blocks != nullptr) {
    const block_format f = blocks_named(o.blocks, o.square != 0);
    const index_t k = c.columns * 8 / storage_bits(f.element);
    if (c.column_stride != 1 || k % f.length != 0) fail(std::string(name) + ": codes are not rows of whole blocks");
    x = make_operand(f, {c.rows, k, static_cast<const std::uint8_t*>(c.data), c.row_stride,
                         static_cast<const std::uint8_t*>(o.scales), k / f.length});
  } else {
    x.element = named<format>(name, c.element);
    const int bits = storage_bits(x.element), bytes = bits < 8 ? 1 : bits / 8;
    x.transposed = c.column_stride != 1;
    if (x.transposed && (c.row_stride != 1 || bits < 8)) fail(std::string(name) + ": one axis must be contiguous");
    x.rows = c.rows;
    x.k = c.columns * bytes * 8 / bits;
    x.codes = static_cast<const std::uint8_t*>(c.data);
    x.code_stride = (x.transposed ? c.column_stride : c.row_stride) * bytes;
  }
  x.factor = o.factor;
  return x;
}

gpu::gemm_call gemm_of(const rotoscale_gemm_call& call) {
  gpu::gemm_call g;
  g.a = operand_of("a", call.a);
  g.b = operand_of("b", call.b);
  if (g.a.k != g.b.k) {
    fail("a and b: k is " + std::to_string(g.a.k) + " and " + std::to_string(g.b.k) + ", must be equal");
  }
  const auto found = nn::find_gemm_contract(call.contract, g.a.rows, g.b.rows, g.a.k);
  if (!found) fail(std::string("contract: no '") + call.contract + "' on devices");
  g.contract = found->options;
  g.out = call.out;
  g.stored = formats::fp32;
  g.output = named<format>("output", call.output);
  g.alpha = call.alpha;
  g.accumulate = call.accumulate != 0;
  return g;
}

nn::operand_recipe operand_recipe_of(const rotoscale_operand_recipe& o) {
  nn::operand_recipe r;
  r.format = named<nn::operand_format>("format", o.format);
  r.rounding = named<rounding>("rounding", o.rounding);
  r.scaling = named<nn::fp8_scaling>("scaling", o.scaling);
  if (!nn::has_blocks(r.format)) return r;
  r.rule = named<scale_rule>("scale_rule", o.scale_rule);
  r.source = named<nn::operand_source>("source", o.source);
  r.choice = named<scale_choice>("scale_choice", o.scale_choice);
  r.policy = named<block_policy>("policy", o.policy);
  r.rotation = {o.points, named<nn::sign_kind>("signs", o.signs), o.mask};
  nn::block_recipe b = nn::own_blocks(r.format);
  if (b.length != o.length || b.rows != o.rows) {
    b.length = o.length;
    b.rows = o.rows;
    r.block = b;
  }
  return r;
}

constexpr nn::operand_use use_in(nn::gemm_kind gemm, bool right) {
  for (const nn::operand_use& u : nn::operand_uses) {
    if (u.gemm == gemm && u.right == right) return u;
  }
  return nn::operand_uses[0];
}

/// The operand of one side of a GEMM, and the form that it is read in.
struct side {
  nn::operand_request request;
  nn::operand_form form = nn::operand_form::row;
  nn::const_tensor_view source;
  nn::scaling_ref scaling;

  index_t rows() const { return form == nn::operand_form::row ? request.rows : request.cols; }
  index_t k() const { return form == nn::operand_form::row ? request.cols : request.rows; }
};

side side_of(const rotoscale_linear_call& call, bool right) {
  const auto& recipe = *static_cast<const nn::linear_recipe*>(call.recipe);
  const rotoscale_matrix& x = right ? call.right : call.left;
  const rotoscale_scaling& scaling = right ? call.right_scaling : call.left_scaling;
  const nn::operand_use use = use_in(static_cast<nn::gemm_kind>(call.gemm), right);
  const bool is_bf16 = named<format>("dtype", x.element) == formats::bf16;
  if (x.column_stride != 1) fail("x: rows of a linear layer's tensors must be contiguous");
  side s;
  s.form = use.form;
  s.request = {use.tensor, call.layer, is_bf16 ? nn::dtype::bf16 : nn::dtype::fp32, x.rows, x.columns, {}, {}, 0};
  const auto& own = nn::recipe_for(recipe, use.tensor, use.form);
  const bool row = use.form == nn::operand_form::row || nn::takes_row_form(own);
  const bool both = !right && call.share != rotoscale_share_none;
  if (row || both) s.request.row = nn::recipe_for(recipe, use.tensor, nn::operand_form::row);
  if (use.form == nn::operand_form::column || both) {
    s.request.column = nn::recipe_for(recipe, use.tensor, nn::operand_form::column);
  }
  s.source = nn::dense_tensor(x.data, s.request.source, {x.rows, x.columns});
  s.source.strides[0] = x.row_stride;
  s.scaling = {scaling.scale, scaling.inverse, scaling.amax};
  return s;
}

std::size_t round_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

/// The GEMM of two sides. Its memory holds the operands that are not shared, then the workspace.
struct linear_gemm {
  side left, right;
  nn::gemm_contract contract;
  std::size_t left_bytes = 0, right_bytes = 0, shared_bytes = 0;
};

linear_gemm linear_of(const rotoscale_linear_call& call) {
  const auto& recipe = *static_cast<const nn::linear_recipe*>(call.recipe);
  const nn::gemm_recipe& own = nn::recipe_for(recipe, static_cast<nn::gemm_kind>(call.gemm));
  linear_gemm g{side_of(call, false), side_of(call, true), {}};
  if (g.left.k() != g.right.k()) fail("x: a linear layer's tensors do not fit each other");
  const auto found = gpu::supported_contract(own, g.left.rows(), g.right.rows(), g.left.k(), device());
  if (!found) {
    fail("recipe: this device has no kernel for " + own.accumulate + " of " + std::to_string(g.left.rows()) + " x " +
         std::to_string(g.right.rows()) + " x " + std::to_string(g.left.k()));
  }
  g.contract = *found;
  (call.share == rotoscale_share_none ? g.left_bytes : g.shared_bytes) =
      round_up(gpu::operands::layout(g.left.request).bytes);
  g.right_bytes = round_up(gpu::operands::layout(g.right.request).bytes);
  return g;
}

gpu::gemm_call call_of(const rotoscale_linear_call& call, const linear_gemm& g, const gpu::operands& left,
                       const gpu::operands& right) {
  const auto& recipe = *static_cast<const nn::linear_recipe*>(call.recipe);
  gpu::gemm_call out;
  out.a = left.form(g.left.form);
  out.b = right.form(g.right.form);
  out.contract = g.contract.options;
  out.out = call.out.data;
  out.stored = named<format>("output", call.out.element);
  out.output = nn::element_format(nn::recipe_for(recipe, static_cast<nn::gemm_kind>(call.gemm)).output);
  out.out_stride = call.out.row_stride;
  out.accumulate = call.accumulate != 0;
  return out;
}

void fill(const gpu::operands& set, const side& s, const void* state, gpu::stream on) {
  nn::quantize_target to;
  to.row = s.request.row.has_value();
  to.column = s.request.column.has_value();
  to.scaling = s.scaling;
  gpu::expect(set.quantize(s.source, to, static_cast<const nn::step_state*>(state), on));
}

}  // namespace

#pragma GCC visibility push(default)

const char* rotoscale_device_mode() { return gpu::build_mode(); }
const char* rotoscale_device_version() { return ROTOSCALE_VERSION; }

const char* rotoscale_quantize(const rotoscale_quantize_call* call, rotoscale_place place) {
  return guarded(place, [&](gpu::stream s) {
    const auto element = named<format>("x", call->x.element);
    if (element == formats::fp32) return quantize_as<float>(*call, s);
    if (element == formats::bf16) return quantize_as<bf16>(*call, s);
    if (element == formats::fp16) return quantize_as<fp16>(*call, s);
    fail(std::string("x: dtype ") + call->x.element + ", expected fp32, bf16 or fp16 on a device");
  });
}

const char* rotoscale_dequantize(const rotoscale_operand* from, std::int32_t transposed, float* to,
                                 rotoscale_place place) {
  return guarded(place, [&](gpu::stream s) {
    const gemm_operand x = operand_of("codes", *from);
    if (x.rows == 0 || x.k == 0) return;
    gpu::expect(gpu::decode_operand(x, transposed != 0, to, formats::fp32, transposed != 0 ? x.rows : x.k, s));
  });
}

const char* rotoscale_plan_gemm(rotoscale_gemm_call* call, rotoscale_place place) {
  return guarded(place, [&](gpu::stream) {
    const gpu::gemm_call g = gemm_of(*call);
    gpu::expect(gpu::check_gemm(g, device()));
    call->workspace_bytes = gpu::gemm_workspace_bytes(g, device());
  });
}

const char* rotoscale_gemm(const rotoscale_gemm_call* call, rotoscale_place place) {
  return guarded(
      place, [&](gpu::stream s) { gpu::expect(gpu::gemm(gemm_of(*call), call->workspace, call->workspace_bytes, s)); });
}

const char* rotoscale_make_recipe(const rotoscale_gemm_recipe* gemms, void** recipe) {
  return guarded([&] {
    auto made = std::make_unique<nn::linear_recipe>();
    for (nn::gemm_recipe* to : {&made->fprop, &made->dgrad, &made->wgrad}) {
      const rotoscale_gemm_recipe& from = *gemms++;
      *to = {operand_recipe_of(from.left), operand_recipe_of(from.right), from.contract,
             named<nn::operand_format>("output", from.output)};
    }
    *recipe = made.release();
  });
}
void rotoscale_free_recipe(void* recipe) { delete static_cast<nn::linear_recipe*>(recipe); }

const char* rotoscale_write_state(void* state, std::uint64_t seed, std::uint64_t step, rotoscale_place place) {
  return guarded(place, [&](gpu::stream s) {
    static_assert(sizeof(nn::step_state) <= 4096 && offsetof(nn::step_state, inputs) == 0);
    nn::step_inputs now;
    now.seed = seed;
    now.step = step;
    // Pageable memory is read before the call returns.
    gpu::expect(gpu::upload(state, &now, sizeof now, s));
  });
}

const char* rotoscale_plan_linear(rotoscale_linear_call* call, rotoscale_place place) {
  return guarded(place, [&](gpu::stream) {
    const linear_gemm g = linear_of(*call);
    auto* const nowhere = reinterpret_cast<std::uint8_t*>(alignof(std::max_align_t));
    const gpu::operands left(g.left.request, nowhere, g.left.source), right(g.right.request, nowhere, g.right.source);
    call->shared_bytes = g.shared_bytes;
    call->memory_bytes =
        g.left_bytes + g.right_bytes + gpu::gemm_workspace_bytes(call_of(*call, g, left, right), device());
  });
}

const char* rotoscale_linear(const rotoscale_linear_call* call, rotoscale_place place) {
  return guarded(place, [&](gpu::stream s) {
    const linear_gemm g = linear_of(*call);
    auto* const memory = static_cast<std::uint8_t*>(call->memory);
    const std::size_t taken = g.left_bytes + g.right_bytes;
    if (taken > call->memory_bytes || g.shared_bytes > call->shared_bytes) fail("memory: too small");
    const gpu::operands left(g.left.request, g.shared_bytes != 0 ? call->shared : memory, g.left.source),
        right(g.right.request, memory + g.left_bytes, g.right.source);
    if (call->share != rotoscale_share_use) fill(left, g.left, call->state, s);
    fill(right, g.right, call->state, s);
    gpu::expect(gpu::gemm(call_of(*call, g, left, right), memory + taken, call->memory_bytes - taken, s));
  });
}

const char* rotoscale_update_scaling(float* words, std::int32_t history_length, const char* algorithm,
                                     std::int32_t margin, rotoscale_place place) {
  return guarded(place, [&](gpu::stream s) {
    nn::delayed_scaling rule;
    rule.history_length = history_length;
    rule.algorithm = named<nn::amax_algorithm>("algorithm", algorithm);
    rule.margin = margin;
    gpu::expect(gpu::update_scales({1, history_length, words, words + 1, words + 2, words + 4, words + 3}, rule, s));
  });
}

#pragma GCC visibility pop
