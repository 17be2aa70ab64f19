// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Cases of operations on rows, tokens and arenas: whole and ragged extents, single rows and columns, magnitudes from
// subnormal squares to sums that overflow.
#pragma once

#include "backend_ops.hpp"

namespace rotoscale::testing {

struct row_shape {
  index_t rows, cols;
  int width;  ///< of magnitudes
};
inline constexpr row_shape row_shapes[] = {{1, 1, 0},    {3, 7, 0},     {64, 32, 0},
                                           {65, 16, 20}, {130, 70, 0},  {200, 128, 5},
                                           {2, 257, 40}, {67, 33, 60},  {70, 40, op_scene::special},
                                           {3, 2056, 0}, {66, 4104, 3}, {2, 60000, 0}};
inline constexpr nn::dtype storages[] = {nn::dtype::fp32, nn::dtype::bf16};

/// Divides a width; the special width stays.
constexpr int part_of(int width, int divisor) { return width == op_scene::special ? width : width / divisor; }

inline std::string shape_name(const std::string& op, const row_shape& s, nn::dtype type) {
  return op + " " + std::to_string(s.rows) + "x" + std::to_string(s.cols) + " " + std::string(to_string(type)) +
         (s.width == op_scene::special ? " with NaN and Inf"
          : s.width                    ? " 2^" + std::to_string(s.width)
                                       : "");
}

/// One case for each shape and storage; `make(scene, shape, type)` prepares it.
template <class Make>
void add_row_cases(std::vector<op_case>& all, const std::string& op, const Make& make) {
  for (const row_shape& s : row_shapes) {
    for (const nn::dtype type : storages) {
      all.push_back({shape_name(op, s, type), false, [=](op_scene& scene, bool) { return make(scene, s, type); }});
    }
  }
}

inline op_case::prepared rmsnorm_case(op_scene& c, const row_shape& s, nn::dtype type) {
  const auto x = c.tensor(type, s.rows, s.cols, 1, s.width),
             dy = c.tensor(type, s.rows, s.cols, 2, part_of(s.width, 2)), y = c.tensor(type, s.rows, s.cols, 3),
             dx = c.tensor(type, s.rows, s.cols, 4);
  float *gain = c.floats(s.cols, 5), *rstd = c.floats(s.rows, 6), *dgain = c.floats(s.cols, 7);
  return {[=, &c] {
            c.ops().norm_forward(c.queue, {x, gain, 1e-5f}, {y, rstd});
            c.ops().norm_backward(c.queue, {dy, x, gain, rstd}, {dx, dgain});
          },
          [=, &c] {
            for (const auto& t : {y, dx}) c.result(t);
            c.result(rstd, s.rows);
            c.result(dgain, s.cols);
          }};
}

/// A null gradient is not computed if `frozen`.
inline op_case::prepared layernorm_case(op_scene& c, const row_shape& s, nn::dtype type, bool frozen) {
  const auto x = c.tensor(type, s.rows, s.cols, 1, s.width),
             dy = c.tensor(type, s.rows, s.cols, 2, part_of(s.width, 2)), y = c.tensor(type, s.rows, s.cols, 3),
             dx = c.tensor(type, s.rows, s.cols, 4), table = c.tensor(nn::dtype::fp32, 1, s.cols, 11);
  float *gain = c.floats(s.cols, 5), *bias = c.floats(s.cols, 6), *mean = c.floats(s.rows, 7),
        *rstd = c.floats(s.rows, 8), *dgain = c.floats(s.cols, 9), *dbias = c.floats(s.cols, 10);
  return {[=, &c] {
            c.ops().norm_forward(c.queue, {x, gain, 1e-5f, bias}, {y, rstd, mean});
            c.ops().norm_backward(c.queue, {dy, x, gain, rstd, mean},
                                  {dx, frozen ? nullptr : dgain, frozen ? nullptr : dbias});
            c.ops().norm_backward(c.queue, {dy, x, gain, rstd, mean}, {dx, dgain, dbias, table});
          },
          [=, &c] {
            for (const auto& t : {y, dx, table}) c.result(t);
            for (const float* t : {mean, rstd}) c.result(t, s.rows);
            for (const float* t : {dgain, dbias}) c.result(t, s.cols);
          }};
}

inline op_case::prepared bias_case(op_scene& c, const row_shape& s, nn::dtype type, index_t period) {
  const auto table = c.tensor(nn::dtype::fp32, period, s.cols, 1), x = c.tensor(type, s.rows, s.cols, 2, s.width),
             dy = c.tensor(type, s.rows, s.cols, 3, part_of(s.width, 2)),
             d = c.tensor(nn::dtype::fp32, period, s.cols, 4);
  return {[=, &c] {
            c.ops().bias_forward(c.queue, {table}, {x});
            c.ops().bias_backward(c.queue, {dy}, {d});
          },
          [=, &c] {
            c.result(x);
            c.result(d);
          }};
}

#define ROTOSCALE_VALUE(name) nn::activation::name,
inline constexpr nn::activation activations[] = {ROTOSCALE_ACTIVATIONS(ROTOSCALE_VALUE)};
#undef ROTOSCALE_VALUE
/// The activation's name.
inline std::string name_of(nn::activation which) {
  const std::string forward = nn::forward_name(which);
  return forward.substr(0, forward.find("_forward"));
}

inline op_case::prepared activation_case(op_scene& c, const row_shape& s, nn::dtype type, nn::activation which) {
  const index_t inputs = nn::inputs_of(which) * s.cols;
  const auto x = c.tensor(type, s.rows, inputs, 1, part_of(s.width, 4)), h = c.tensor(type, s.rows, s.cols, 2),
             dh = c.tensor(type, s.rows, s.cols, 3, part_of(s.width, 2)), d = c.tensor(type, s.rows, inputs, 4),
             again = c.tensor(type, s.rows, inputs, 5), table = c.tensor(nn::dtype::fp32, 1, inputs, 6);
  return {[=, &c] {
            c.ops().activation_forward(c.queue, {x, which}, {h});
            c.ops().activation_backward(c.queue, {dh, x, which}, {d});
            c.ops().activation_backward(c.queue, {dh, x, which}, {again, table});
          },
          [=, &c] {
            for (const auto& t : {h, d, again, table}) c.result(t);
          }};
}

inline op_case::prepared add_case(op_scene& c, const row_shape& s, nn::dtype type) {
  const auto x = c.tensor(type, s.rows, s.cols, 1, s.width), y = c.tensor(type, s.rows, s.cols, 2, s.width),
             sum = c.tensor(type, s.rows, s.cols, 3);
  return {[=, &c] { c.ops().add(c.queue, {x, y}, {sum}); }, [=, &c] { c.result(sum); }};
}

/// Every pair of storages: an adapter's input is BF16 in an FP32 model.
inline op_case::prepared dropout_case(op_scene& c, const row_shape& s, nn::dtype from, nn::dtype to, double probability,
                                      bool accumulate) {
  const auto x = c.tensor(from, s.rows, s.cols, 1, s.width), y = c.tensor(to, s.rows, s.cols, 2, s.width);
  nn::step_state* state = c.state();
  const nn::dropout_args args{7, 3, static_cast<std::uint32_t>(probability * 0x1p32), 1.7f};
  return {[=, &c] { c.ops().dropout(c.queue, {x, args, accumulate, state}, {y}); }, [=, &c] { c.result(y); }};
}

inline op_case::prepared embedding_case(op_scene& c, const row_shape& s, nn::dtype type, index_t vocabulary) {
  const auto table = c.tensor(nn::dtype::fp32, vocabulary, s.cols, 1), y = c.tensor(type, s.rows, s.cols, 2),
             dy = c.tensor(type, s.rows, s.cols, 3, part_of(s.width, 2)),
             d = c.tensor(nn::dtype::fp32, vocabulary, s.cols, 4);
  const nn::token_source tokens{c.tokens(s.rows, vocabulary, 5, false), s.rows};
  nn::step_state* state = c.state();
  return {[=, &c] {
            c.ops().embedding_forward(c.queue, {tokens, table, state}, {y});
            c.ops().embedding_backward(c.queue, {tokens, dy, state}, {d});
          },
          [=, &c] {
            c.result(y);
            c.result(d);
          }};
}

/// Losses and gradients, some targets masked; then their sum.
inline op_case::prepared loss_case(op_scene& c, const row_shape& s, bool gradients) {
  const auto logits = c.tensor(nn::dtype::fp32, s.rows, s.cols, 1, part_of(s.width, 8));
  const nn::token_source targets{c.tokens(s.rows, s.cols, 2, true), s.rows};
  float* loss = c.floats(s.rows, 3);
  nn::step_state* state = c.state();
  return {[=, &c] {
            c.ops().cross_entropy(c.queue, {targets, 0, gradients, state}, {logits, loss});
            c.ops().sum_losses(c.queue, {loss, s.rows}, {state});
          },
          [=, &c] {
            if (gradients) c.result(logits);  // otherwise overwritten
            c.result(loss, s.rows);
            c.result(state, 1);
          }};
}

struct head_shape {
  index_t batch, seq, heads, kv_heads, dim;
  int width = 0;               ///< of magnitudes
  const char* unit = nullptr;  ///< the tiled contract's; null: FP32 chains
  index_t document = 0;        ///< mean document length in tokens; 0: each sequence is one
  index_t past = 0;            ///< cached tokens before the first query; with them no backward pass
  nn::attention_exp2 exp2 = nn::attention_exp2::deg3;
};
inline constexpr const char *hopper = "hopper-mma-fp16-f32", *cdna3 = "cdna3-mfma-fp16-f32";
inline constexpr head_shape head_shapes[] = {
    {1, 1, 1, 1, 2},
    {2, 5, 2, 2, 6},
    {1, 33, 4, 1, 4},
    {2, 64, 2, 1, 16},
    {1, 70, 4, 2, 8},
    {1, 129, 4, 1, 64},
    {1, 100, 2, 1, 24, 3},
    {2, 150, 2, 1, 16, 0, nullptr, 30},
    {1, 1, 1, 1, 16, 0, hopper},
    {2, 70, 2, 1, 32, 0, hopper},
    {1, 129, 4, 2, 48, 2, hopper},
    {2, 100, 2, 1, 64, 0, hopper, 40},
    {1, 65, 1, 1, 128, 0, hopper, 5},
    {1, 70, 2, 1, 64, 0, cdna3, 20},
    {1, 70, 4, 2, 8, 0, nullptr, 0, 69},
    {2, 150, 2, 1, 24, 0, nullptr, 30, 60},
    {1, 65, 2, 1, 32, 0, hopper, 0, 64},
    {2, 200, 2, 1, 64, 0, hopper, 70, 75},
    {1, 140, 4, 2, 48, 0, cdna3, 0, 130},
    {1, 70, 4, 2, 64, 2, hopper, 0, 0, nn::attention_exp2::ex2_approx},
    {2, 70, 2, 1, 128, 0, hopper, 40, 0, nn::attention_exp2::ex2_approx},
};

/// Starts of documents of 1 to 2 * `about` tokens, by token of (batch, seq).
inline std::vector<std::int32_t> document_starts(index_t batch, index_t seq, index_t about, std::uint64_t seed) {
  std::vector<std::int32_t> starts;
  for (index_t b = 0; b < batch; ++b) {
    index_t start = 0, end = 0;
    for (index_t t = 0; t < seq; ++t) {
      if (t == end) {
        const std::uint32_t word = random_stream{seed, 3}.word(static_cast<std::uint64_t>(b * seq + t));
        start = t;
        end = t + 1 + static_cast<index_t>(word) % (2 * about);
      }
      starts.push_back(static_cast<std::int32_t>(start));
    }
  }
  return starts;
}

inline std::string contract_of(const head_shape& s) {
  return s.unit == nullptr ? nn::fp32_attention_contract : nn::tiled_attention_name(s.exp2, s.unit);
}

inline op_case::prepared attention_case(op_scene& c, const head_shape& s, nn::dtype type) {
  const index_t n = s.batch * s.seq, q = s.heads * s.dim, kv = s.kv_heads * s.dim;
  const auto qkv = c.tensor(type, n, q + 2 * kv, 1, s.width), d_qkv = c.tensor(type, n, q + 2 * kv, 2),
             o = c.tensor(type, n, q, 3), d_o = c.tensor(type, n, q, 4);
  const index_t queries = s.seq - s.past;
  float *lse = c.floats(s.batch * queries * s.heads, 5), *cosine = c.floats(s.seq * s.dim / 2, 6),
        *sine = c.floats(s.seq * s.dim / 2, 7);
  const auto part = [=](nn::tensor_view x, index_t first, index_t heads) {
    return nn::as_heads(x.part(1, first, heads * s.dim), s.batch, heads, s.dim);
  };
  const auto last = [=](const nn::tensor_view& x) { return x.part(1, s.past, queries); };
  const nn::tensor_view queries_of = last(part(qkv, 0, s.heads)), keys = part(qkv, q, s.kv_heads),
                        values = part(qkv, q + kv, s.kv_heads), result = last(part(o, 0, s.heads));
  // Of the second of two microbatches.
  nn::token_source starts;
  if (s.document != 0) starts = {c.keep(document_starts(2 * s.batch, s.seq, s.document, 8)), n};
  const auto contract = c.ops().contract(contract_of(s), s.dim);
  nn::step_state* state = c.state();
  c.ops().next_micro_batch(c.queue, {}, {state});
  return {[=, &c] {
            c.ops().rope(c.queue, {cosine, sine, false}, {part(qkv, 0, s.heads), {}});
            c.ops().attention_forward(c.queue, {queries_of, keys, values, starts, *contract, state}, {result, lse});
            if (s.past != 0) return;
            c.ops().attention_backward(
                c.queue, {queries_of, keys, values, result, lse, part(d_o, 0, s.heads), starts, *contract, state},
                {part(d_qkv, 0, s.heads), part(d_qkv, q, s.kv_heads), part(d_qkv, q + kv, s.kv_heads)});
            c.ops().rope(c.queue, {cosine, sine, true}, {part(d_qkv, q, s.kv_heads), {}});
          },
          [=, &c] {
            for (const auto& x : {qkv, o, d_qkv}) c.result(x);
            c.result(lse, s.batch * queries * s.heads);
          }};
}

/// Three parameters, the last one without decay, in an arena with gaps.
struct arena_memory {
  std::vector<nn::parameter_arena::segment> segments = {{0, 10000, true}, {12288, 4096, true}, {16384, 70, false}};
  nn::parameter_arena arena;

  arena_memory(op_scene& c, int width) {
    arena.size = 20480;
    arena.segments_in_backend = c.keep(segments);
    const auto with_gaps = [&](std::uint64_t seed, int w, bool positive) {
      std::vector<float> x(static_cast<std::size_t>(arena.size), 0.0f);
      for (const auto& s : segments) {
        for (index_t i = s.first; i < s.first + s.count; ++i) {
          const float value = op_scene::number(static_cast<std::uint64_t>(i), seed, w);
          x[static_cast<std::size_t>(i)] = positive ? std::fabs(value) : value;
        }
      }
      return c.keep(x);
    };
    arena.weight = with_gaps(1, 0, false);
    arena.gradient = with_gaps(2, width, false);
    arena.m = with_gaps(3, 0, false);
    arena.v = with_gaps(4, 0, true);
    arena.average = with_gaps(5, 0, false);
  }
};

inline op_case::prepared optimizer_case(op_scene& c, int width) {
  const auto memory = std::make_shared<arena_memory>(c, width);
  nn::step_state* state = c.state();
  auto* squares = c.keep(std::vector<double>(3));
  auto* chunks = c.keep(std::vector<double>(5));
  return {[=, &c] {
            const nn::optimizer_config config{0.9f, 0.95f, 1e-8f, 0.1f, 1.0, 0.999f};
            nn::parameter_arena arena = memory->arena;
            arena.segments = memory->segments;
            c.ops().sum_squares(c.queue, {arena.weight, arena}, {squares});
            c.ops().square_chunks(c.queue, {arena.gradient, arena.size}, {chunks});
            c.ops().gradient_norm(c.queue, {arena.gradient, arena.size, 5, config}, {chunks, state});
            c.ops().adamw(c.queue, {config, state}, {arena});
          },
          [=, &c] {
            for (const float* x : {memory->arena.weight, memory->arena.m, memory->arena.v, memory->arena.average})
              c.result(x, memory->arena.size);
            c.result(squares, 3);
            c.result(state, 1);
          }};
}

inline std::vector<op_case> row_cases() {
  std::vector<op_case> all;
  add_row_cases(all, "rmsnorm", rmsnorm_case);
  // The grids are rmsnorm's.
  for (const row_shape& s : {row_shape{1, 1, 0},
                             {65, 16, 20},
                             {130, 70, 0},
                             {2, 257, 40},
                             {70, 40, op_scene::special},
                             {3, 4104, 3},
                             {67, 768, 3}}) {
    for (const nn::dtype type : storages) {
      const bool frozen = s.cols == 16;
      all.push_back({shape_name(frozen ? "layernorm of frozen weights" : "layernorm", s, type), false,
                     [=](op_scene& c, bool) { return layernorm_case(c, s, type, frozen); }});
    }
  }
  // One bias, positions with a ragged last sequence, one chunk of 64 terms and more.
  for (const index_t period : {1, 2, 70}) {
    for (const row_shape& s : {row_shape{1, 1, 0}, {200, 24, 20}, {130, 7, op_scene::special}, {3, 2056, 0}}) {
      for (const nn::dtype type : storages) {
        all.push_back({shape_name("bias of " + std::to_string(period), s, type), false,
                       [=](op_scene& c, bool) { return bias_case(c, s, type, period); }});
      }
    }
  }
  // Row counts around the rows per block of a device for each width, and more chains of a gain's gradient than are
  // added at once.
  for (const row_shape& s : {row_shape{130, 768, 3}, {67, 1024, 0}, {66, 2048, 0}, {65, 4096, 0}, {32900, 8, 0}}) {
    for (const nn::dtype type : storages) {
      all.push_back(
          {shape_name("rmsnorm", s, type), false, [=](op_scene& c, bool) { return rmsnorm_case(c, s, type); }});
    }
  }
  for (const nn::activation which : activations) {
    add_row_cases(all, name_of(which),
                  [=](op_scene& c, const row_shape& s, nn::dtype type) { return activation_case(c, s, type, which); });
  }
  add_row_cases(all, "add", add_case);
  // 1. More ids than a device's sorting range, and more tokens than its batch. 2. Few ids, with runs longer than a
  // thread or the stages take. 3. Runs of the longest short length, and one longer.
  for (const row_shape& s : {row_shape{700, 72, 3}, {450, 128, 0}, {2300, 13, 0}, {64, 24, 0}, {65, 24, 0}}) {
    for (const index_t vocabulary : {1, 3, 200}) {
      for (const nn::dtype type : storages) {
        all.push_back({shape_name("embedding of " + std::to_string(vocabulary), s, type), false,
                       [=](op_scene& c, bool) { return embedding_case(c, s, type, vocabulary); }});
      }
    }
  }
  for (const index_t vocabulary : {130, 3}) {
    add_row_cases(
        all, "embedding of " + std::to_string(vocabulary),
        [=](op_scene& c, const row_shape& s, nn::dtype type) { return embedding_case(c, s, type, vocabulary); });
  }
  // Chunks of 4096 logits: two, some, more than a subgroup has lanes, more than blocks wait for at once.
  std::vector<row_shape> losses(std::begin(row_shapes), std::end(row_shapes));
  losses.insert(losses.end(), {{5, 8200, op_scene::special}, {6, 50304, 3}, {3, 135170, 60}, {2, 266304, 0}});
  for (const row_shape& s : losses) {
    for (const bool gradients : {false, true}) {
      all.push_back({shape_name(gradients ? "cross_entropy with gradients" : "cross_entropy", s, nn::dtype::fp32),
                     false, [=](op_scene& c, bool) { return loss_case(c, s, gradients); }});
    }
  }
  for (const row_shape& s : row_shapes) {
    for (const nn::dtype from : storages) {
      for (const nn::dtype to : storages) {
        for (const double probability : {0.0, 0.1, 0.5}) {
          const bool accumulate = (s.cols + (from == to)) % 2 == 0;
          all.push_back({shape_name(accumulate ? "dropout onto" : "dropout", s, from) + " to " +
                             std::string(to_string(to)) + " " + std::to_string(probability),
                         false,
                         [=](op_scene& c, bool) { return dropout_case(c, s, from, to, probability, accumulate); }});
        }
      }
    }
  }
  for (const int width : {0, 20, 63, op_scene::special}) {  // 63 overflows, special may: AdamW changes nothing
    all.push_back({"squares, norm, AdamW 2^" + std::to_string(width), false,
                   [=](op_scene& c, bool) { return optimizer_case(c, width); }});
  }
  return all;
}

inline std::vector<op_case> attention_cases() {
  std::vector<op_case> all;
  for (const head_shape& s : head_shapes) {
    for (const nn::dtype type : storages) {
      all.push_back({"rope and attention " + std::to_string(s.batch) + "x" + std::to_string(s.seq) + " heads " +
                         std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " of " + std::to_string(s.dim) +
                         " " + std::string(to_string(type)) + (s.document != 0 ? " documents" : "") +
                         (s.past != 0 ? " behind " + std::to_string(s.past) : "") +
                         (s.unit != nullptr ? " " + contract_of(s) : ""),
                     false, [=](op_scene& c, bool) { return attention_case(c, s, type); },
                     [=](const nn::backend& ops) { return ops.contract(contract_of(s), s.dim).has_value(); }});
    }
  }
  return all;
}

inline op_case::prepared residual_case(op_scene& c, const row_shape& s, nn::dtype type, bool branch, bool layer,
                                       bool composed) {
  const auto x = c.tensor(type, s.rows, s.cols, 1, s.width);
  const nn::const_tensor_view other =
      branch ? nn::const_tensor_view(c.tensor(type, s.rows, s.cols, 2, s.width)) : nn::const_tensor_view{};
  const auto sum = c.tensor(type, s.rows, s.cols, 3), y = c.tensor(type, s.rows, s.cols, 4);
  float *gain = c.floats(s.cols, 5), *rstd = c.floats(s.rows, 6), *mean = c.floats(s.rows, 7);
  float* const bias = layer ? c.floats(s.cols, 8) : nullptr;
  nn::step_state* state = c.state();
  return {[=, &c] {
            run_as<nn::op::residual_norm>(c, composed, {x, other, gain, 1e-5f, state, bias},
                                          {sum, y, rstd, {}, layer ? mean : nullptr});
          },
          [=, &c] {
            c.result(sum);
            c.result(y);
            c.result(rstd, s.rows);
            c.result(mean, s.rows);
          }};
}

inline op_case::prepared rope_case(op_scene& c, const head_shape& s, nn::dtype type, bool inverse) {
  const index_t n = s.batch * s.seq, q = s.heads * s.dim, kv = s.kv_heads * s.dim;
  const auto qkv = c.tensor(type, n, q + 2 * kv, 1);
  float *cosine = c.floats(s.seq * s.dim / 2, 2), *sine = c.floats(s.seq * s.dim / 2, 3);
  const auto queries = nn::as_heads(qkv.part(1, 0, q), s.batch, s.heads, s.dim),
             keys = nn::as_heads(qkv.part(1, q, kv), s.batch, s.kv_heads, s.dim);
  return {[=, &c] { c.ops().rope(c.queue, {cosine, sine, inverse}, {queries, keys}); }, [=, &c] { c.result(qkv); }};
}

/// Fused operations on rows without quantization.
inline std::vector<op_case> coarse_row_cases() {
  std::vector<op_case> all;
  for (const nn::dtype type : storages) {
    const std::string stored = " " + std::string(to_string(type));
    for (const row_shape& s : row_shapes) {
      for (const bool branch : {false, true}) {
        for (const bool layer : {false, true}) {
          if (layer && s.cols > 5000) continue;
          const std::string name = layer ? "residual_norm with a bias" : "residual_norm";
          all.push_back(
              {shape_name(branch ? name : name + " without a branch", s, type), true,
               [=](op_scene& c, bool composed) { return residual_case(c, s, type, branch, layer, composed); }});
        }
      }
    }
    for (const head_shape& s : head_shapes) {
      all.push_back({"rope of " + std::to_string(s.seq) + stored, false,
                     [=](op_scene& c, bool) { return rope_case(c, s, type, s.seq % 2 == 0); }});
    }
  }
  return all;
}

}  // namespace rotoscale::testing
