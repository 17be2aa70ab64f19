// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The tiled attention contract. It equals the contract written row by row with mma_ref by bytes. It agrees with double
// precision within bounds from the roundings of BF16, the polynomial and the unit. Also the effect of masks, and
// documents for the FP32 contract.
#include "rotoscale/nn/cpu/tiled_attention.hpp"

#include "../numbers.hpp"
#include "rotoscale/mma_ref.hpp"

namespace cpu_tiled_attention_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace cpu = rotoscale::nn::cpu;
namespace nn = rotoscale::nn;

struct shape {
  index_t batch, seq, heads, kv_heads, dim;
  index_t document = 0;  ///< tokens of a document; 0: each sequence is one document
};

/// Memory of all tensors, dense (batch, seq, heads, dim). Inputs are BF16 numbers in FP32.
struct scene {
  shape s;
  std::vector<float> q, k, v, d_o, o, lse, dq, dk, dv;
  std::vector<std::int32_t> starts;

  explicit scene(const shape& of, double width = 2.0) : s(of) {
    const index_t nq = s.batch * s.seq * s.heads * s.dim, nk = s.batch * s.seq * s.kv_heads * s.dim;
    q = narrow(nq, 1, width);
    k = narrow(nk, 2, width);
    v = narrow(nk, 3, 1.0);
    d_o = narrow(nq, 4, 1.0);
    for (auto* x : {&o, &dq}) x->assign(q.size(), 1e9f);
    for (auto* x : {&dk, &dv}) x->assign(k.size(), 1e9f);
    lse.assign(static_cast<std::size_t>(s.batch * s.heads * s.seq), 1e9f);
    if (s.document == 0) return;
    for (index_t i = 0; i < s.batch * s.seq; ++i) {  // of s.document tokens, the second sequence's shifted
      const index_t t = i % s.seq, shift = i / s.seq * 3, begin = (t + shift) / s.document * s.document - shift;
      starts.push_back(static_cast<std::int32_t>(std::max<index_t>(0, begin)));
    }
  }
  static std::vector<float> narrow(index_t n, unsigned seed, double width) {
    std::vector<float> x = to_float(random_tensor(n, seed, width));
    for (float& y : x) y = static_cast<float>(bf16(y));
    return x;
  }
  view<float, 4> of(std::vector<float>& x, index_t heads) const {
    const index_t row = heads * s.dim;
    return {x.data(), {s.batch, s.seq, heads, s.dim}, {s.seq * row, row, s.dim, 1}};
  }
  index_t start(index_t b, index_t t) const {
    return starts.empty() ? 0 : starts[static_cast<std::size_t>(b * s.seq + t)];
  }
  const std::int32_t* start_data() const { return starts.empty() ? nullptr : starts.data(); }
  index_t kv(index_t h) const { return h / (s.heads / s.kv_heads); }
  std::size_t row(index_t b, index_t t, index_t heads, index_t h) const {
    return static_cast<std::size_t>(((b * s.seq + t) * heads + h) * s.dim);
  }

  void run(const nn::attention_contract& c, thread_pool& pool) {
    cpu::tiled_attention_forward(c, of(q, s.heads), of(k, s.kv_heads), of(v, s.kv_heads), of(o, s.heads), lse.data(),
                                 start_data(), pool);
    cpu::tiled_attention_backward(c, of(q, s.heads), of(k, s.kv_heads), of(v, s.kv_heads), of(o, s.heads), lse.data(),
                                  of(d_o, s.heads), of(dq, s.heads), of(dk, s.kv_heads), of(dv, s.kv_heads),
                                  start_data(), pool);
  }
  void run_chains(thread_pool& pool) {
    cpu::attention_forward(of(q, s.heads), of(k, s.kv_heads), of(v, s.kv_heads), of(o, s.heads), lse.data(),
                           start_data(), pool);
    cpu::attention_backward(of(q, s.heads), of(k, s.kv_heads), of(v, s.kv_heads), of(o, s.heads), lse.data(),
                            of(d_o, s.heads), of(dq, s.heads), of(dk, s.kv_heads), of(dv, s.kv_heads), start_data(),
                            pool);
  }
  bool equals(const scene& other) const {
    return same_bytes(o, other.o) && same_bytes(lse, other.lse) && same_bytes(dq, other.dq) &&
           same_bytes(dk, other.dk) && same_bytes(dv, other.dv);
  }
};

/// The contract's definition: one output at a time, every key of the sequence, masked keys with probability 0.
class definition {
 public:
  definition(scene& s, const nn::attention_contract& c) : x_(s), contract_(c), model_(c.model) {}

  void run() {
    const shape& s = x_.s;
    for (index_t b = 0; b < s.batch; ++b) {
      for (index_t h = 0; h < s.heads; ++h) {
        for (index_t t = 0; t < s.seq; ++t) forward_row(b, h, t);
      }
      for (index_t kv = 0; kv < s.kv_heads; ++kv) backward_head(b, kv);
    }
  }

 private:
  using numbers = std::vector<float>;

  float exp2(float x) const { return contract_.exp2 == nn::attention_exp2::deg3 ? nn::exp2(x) : ex2_approx(x); }
  static float rounded(float x) { return static_cast<float>(bf16(x)); }
  static mma_term term(float x) { return to_term(unpack(formats::bf16, bf16(x).bits()), formats::bf16.min_exponent()); }
  /// Returns acc + Σ a_i b_i in steps of the unit along i.
  float chain(const numbers& a, const numbers& b, float acc) {
    const auto group = static_cast<std::size_t>(model_.group);
    for (std::size_t first = 0; first < a.size(); first += group) {
      int n = 0;
      for (std::size_t i = first; i < std::min(a.size(), first + group); ++i) {
        products_[n++] = mma_multiply(model_, term(a[i]), term(b[i]));
      }
      acc = fp32_value(mma_step(model_, products_, n, unpack(formats::fp32, fp32_bits(acc))));
    }
    return acc;
  }
  numbers row_of(const numbers& x, std::size_t at) const {
    return {x.begin() + static_cast<std::ptrdiff_t>(at), x.begin() + static_cast<std::ptrdiff_t>(at) + x_.s.dim};
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(x_.s.dim)); }
  bool sees(index_t b, index_t t, index_t key) const { return key <= t && key >= x_.start(b, t); }

  void forward_row(index_t b, index_t h, index_t t) {
    const shape& s = x_.s;
    const index_t kv = x_.kv(h);
    const numbers q = row_of(x_.q, x_.row(b, t, s.heads, h));
    const float binary = scale() * 0x1.715476p+0f;
    numbers out(static_cast<std::size_t>(s.dim), 0.0f);
    float top = -INFINITY, lane[16] = {};
    for (index_t first = 0; first < s.seq; first += 64) {
      const index_t last = std::min(s.seq, first + 64);
      numbers score, p;
      float largest = top;
      for (index_t key = first; key < last; ++key) {
        score.push_back(chain(q, row_of(x_.k, x_.row(b, key, s.kv_heads, kv)), 0.0f));
        if (sees(b, t, key) && score.back() > largest) largest = score.back();
      }
      const float base = largest == -INFINITY ? 0.0f : largest;
      const float alpha = exp2((top - base) * binary), shift = base * binary;
      for (index_t key = first; key < last; ++key) {
        const auto i = static_cast<std::size_t>(key - first);
        p.push_back(sees(b, t, key) ? exp2(__builtin_fmaf(score[i], binary, -shift)) : 0.0f);
        float& l = lane[key % 16];
        l = i < 16 ? __builtin_fmaf(l, alpha, p[i]) : l + p[i];
        p[i] = rounded(p[i]);
      }
      for (index_t i = last - first; i < 16; ++i) lane[i] *= alpha;
      for (index_t j = 0; j < s.dim; ++j) {
        numbers column;
        for (index_t key = first; key < last; ++key) {
          column.push_back(x_.v[x_.row(b, key, s.kv_heads, kv) + static_cast<std::size_t>(j)]);
        }
        float& acc = out[static_cast<std::size_t>(j)];
        acc = chain(p, column, acc * alpha);
      }
      top = largest;
    }
    for (int width = 8; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    }
    const float inverse = 1.0f / lane[0];
    for (index_t j = 0; j < s.dim; ++j) {
      x_.o[x_.row(b, t, s.heads, h) + static_cast<std::size_t>(j)] = out[static_cast<std::size_t>(j)] * inverse;
    }
    x_.lse[lse_at(b, h, t)] = __builtin_fmaf(top, scale(), nn::log(lane[0]));
  }
  std::size_t lse_at(index_t b, index_t h, index_t t) const {
    return static_cast<std::size_t>((b * x_.s.heads + h) * x_.s.seq + t);
  }

  /// Gradients of a key head. Chains go over the queries of the group's heads, sixteen at a time.
  void backward_head(index_t b, index_t kv) {
    const shape& s = x_.s;
    const index_t group = s.heads / s.kv_heads, dim = s.dim, padded = (s.seq + 15) / 16 * 16;
    const auto at = [&](index_t i, index_t j, index_t n) { return static_cast<std::size_t>(i * n + j); };
    numbers p(static_cast<std::size_t>(group * padded * s.seq), 0.0f), ds(p.size(), 0.0f);
    const auto pair = [&](index_t g, index_t t, index_t key) { return at(g * padded + t, key, s.seq); };
    for (index_t g = 0; g < group; ++g) {
      for (index_t t = 0; t < s.seq; ++t) {
        const index_t h = kv * group + g;
        const std::size_t row = x_.row(b, t, s.heads, h);
        const numbers q = row_of(x_.q, row), d_o = row_of(x_.d_o, row);
        const float dot = nn::ordered_sum(dim, [&](index_t j, float acc) {
          return __builtin_fmaf(x_.o[row + static_cast<std::size_t>(j)], d_o[static_cast<std::size_t>(j)], acc);
        });
        numbers own;
        for (index_t key = 0; key < s.seq; ++key) {
          const std::size_t kv_row = x_.row(b, key, s.kv_heads, kv);
          const float score = chain(q, row_of(x_.k, kv_row), 0.0f), dp = chain(d_o, row_of(x_.v, kv_row), 0.0f);
          const float e =
              exp2(__builtin_fmaf(score, scale() * 0x1.715476p+0f, -(x_.lse[lse_at(b, h, t)] * 0x1.715476p+0f)));
          p[pair(g, t, key)] = sees(b, t, key) ? rounded(e) : 0.0f;
          ds[pair(g, t, key)] = sees(b, t, key) ? rounded(e * (dp - dot)) : 0.0f;
          own.push_back(ds[pair(g, t, key)]);
        }
        for (index_t j = 0; j < dim; ++j) {
          numbers column;
          for (index_t key = 0; key < s.seq; ++key)
            column.push_back(x_.k[x_.row(b, key, s.kv_heads, kv) + at(0, j, 0)]);
          x_.dq[row + at(0, j, 0)] = chain(own, column, 0.0f) * scale();
        }
      }
    }
    for (index_t key = 0; key < s.seq; ++key) {
      for (index_t j = 0; j < dim; ++j) {
        numbers left_v, left_k, right_v, right_k;
        for (index_t g = 0; g < group; ++g) {
          for (index_t t = 0; t < padded; ++t) {
            const std::size_t row = t < s.seq ? x_.row(b, t, s.heads, kv * group + g) + at(0, j, 0) : 0;
            left_v.push_back(p[pair(g, t, key)]);
            left_k.push_back(ds[pair(g, t, key)]);
            right_v.push_back(t < s.seq ? x_.d_o[row] : 0.0f);
            right_k.push_back(t < s.seq ? x_.q[row] : 0.0f);
          }
        }
        const std::size_t to = x_.row(b, key, s.kv_heads, kv) + at(0, j, 0);
        x_.dv[to] = chain(left_v, right_v, 0.0f);
        x_.dk[to] = chain(left_k, right_k, 0.0f) * scale();
      }
    }
  }

  scene& x_;
  const nn::attention_contract contract_;
  const mma_model& model_;
  mma_product products_[max_mma_group];  ///< of one step; cleared once
};

constexpr nn::attention_exp2 both_exponentials[] = {nn::attention_exp2::deg3, nn::attention_exp2::ex2_approx};

nn::attention_contract contract_of(const char* unit, nn::attention_exp2 exp2 = nn::attention_exp2::deg3) {
  const auto c = nn::find_attention_contract(nn::tiled_attention_name(exp2, unit));
  REQUIRE(c.has_value());
  return *c;
}

const shape shapes[] = {{1, 1, 1, 1, 16},      {2, 5, 2, 1, 32},       {1, 64, 2, 2, 16}, {1, 70, 4, 2, 32},
                        {1, 130, 2, 1, 48, 0}, {2, 100, 2, 1, 32, 23}, {1, 66, 1, 1, 128}};

TEST_CASE("tiled attention leaves the bytes of its definition, under any unit") {
  for (const shape& s : shapes) {
    for (const char* unit : {"hopper-mma-fp16-f32", "cdna3-mfma-fp16-f32", "ampere-mma-fp16-f32"}) {
      if (s.seq > 64 && std::string(unit) == "ampere-mma-fp16-f32") continue;
      for (const nn::attention_exp2 exp2 : both_exponentials) {
        const nn::attention_contract c = contract_of(unit, exp2);
        CAPTURE(s.seq);
        CAPTURE(c.name);
        scene got(s), want(s);
        thread_pool pool(2);
        got.run(c, pool);
        definition(want, c).run();
        CHECK(same_bytes(got.o, want.o));
        CHECK(same_bytes(got.lse, want.lse));
        CHECK(same_bytes(got.dv, want.dv));
        CHECK(same_bytes(got.dk, want.dk));
        CHECK(same_bytes(got.dq, want.dq));
      }
    }
  }
}

TEST_CASE("tiled attention: scores far apart, in the definition's bytes") {
  for (const nn::attention_exp2 exp2 : both_exponentials) {
    scene got({1, 70, 1, 1, 16}, 24.0), want({1, 70, 1, 1, 16}, 24.0);
    thread_pool pool(1);
    const nn::attention_contract c = contract_of("hopper-wgmma-fp16-f32", exp2);
    got.run(c, pool);
    definition(want, c).run();
    CHECK(got.equals(want));
  }
}

TEST_CASE("units that cannot multiply its tiles have no tiled contract") {
  const auto found = [](const char* unit) {
    const bool one = nn::find_attention_contract(nn::tiled_attention_name(nn::attention_exp2::deg3, unit)).has_value();
    CHECK(one ==
          nn::find_attention_contract(nn::tiled_attention_name(nn::attention_exp2::ex2_approx, unit)).has_value());
    return one;
  };
  for (const char* unit : {"hopper-mma-fp16-f32", "hopper-wgmma-fp16-f32", "cdna3-mfma-fp16-f32", "cdna4-mfma-fp16-f32",
                           "blackwell-fp16-f32", "fp32-fma-chain"}) {
    CHECK(found(unit));
  }
  for (const char* unit : {"", "hopper-mma-fp16-f16", "hopper-mma-fp8-f32", "hopper-sparse-fp16-f32", "exact",
                           "volta-mma-fp16-f32", "cdna4-mfma-scale-f8f6f4-f32"}) {
    CAPTURE(unit);
    CHECK_FALSE(found(unit));
  }
  CHECK(nn::find_attention_contract(nn::fp32_attention_contract).has_value());
  CHECK_FALSE(nn::find_attention_contract("attention-bf16-tile64x64-exp2deg3").has_value());
  CHECK_FALSE(nn::find_attention_contract("attention-bf16-tile64x64-exp2deg4@hopper-mma-fp16-f32").has_value());
  CHECK_FALSE(nn::find_attention_contract("attention").has_value());
  for (const index_t dim : {16, 32, 80, 128})
    CHECK(nn::find_attention_contract(nn::fp32_attention_contract)->takes(dim));
  auto tiled = *nn::find_attention_contract("attention-bf16-tile64x64-exp2deg3@hopper-mma-fp16-f32");
  CHECK(nn::find_attention_contract("attention-bf16-tile64x64-ex2approx@hopper-mma-fp16-f32")->exp2 ==
        nn::attention_exp2::ex2_approx);
  for (const index_t dim : {16, 32, 80, 128}) CHECK(tiled.takes(dim));
  for (const index_t dim : {8, 40, 144}) CHECK_FALSE(tiled.takes(dim));
}

/// Relative errors: BF16's rounding, exp2's polynomial (ex2_approx has less), and generously FP32's and the unit's
/// roundings.
constexpr double bf16_error = 0x1p-8, polynomial = 1.02e-4, small = 1e-5;

/// Double-precision attention of a scene, and error bounds for an implementation of the contract.
struct exact_attention {
  const scene& x;
  tensor o, lse, dq, dk, dv, e_o, e_dq, e_dk, e_dv;

  explicit exact_attention(const scene& s) : x(s) {
    for (tensor* t : {&o, &dq, &e_o, &e_dq}) t->assign(s.q.size(), 0.0);
    for (tensor* t : {&dk, &dv, &e_dk, &e_dv}) t->assign(s.k.size(), 0.0);
    lse.assign(s.lse.size(), 0.0);
    for (index_t b = 0; b < s.s.batch; ++b) {
      for (index_t h = 0; h < s.s.heads; ++h) {
        for (index_t t = 0; t < s.s.seq; ++t) row(b, h, t);
      }
    }
  }

  /// A probability is a value of the polynomial, and so is each rescaling factor of later tiles.
  double rescaled() const { return static_cast<double>((x.s.seq + 63) / 64) * polynomial; }

 private:
  static double at(const std::vector<float>& v, std::size_t i) { return static_cast<double>(v[i]); }

  void row(index_t b, index_t h, index_t t) {
    const auto dim = static_cast<std::size_t>(x.s.dim);
    const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
    const std::size_t q = x.row(b, t, x.s.heads, h);
    const index_t begin = x.start(b, t), keys = t + 1 - begin;
    std::vector<std::size_t> kv;
    tensor score, dp;
    double sum = 0;
    for (index_t i = 0; i < keys; ++i) {
      kv.push_back(x.row(b, begin + i, x.s.kv_heads, x.kv(h)));
      double s = 0, d = 0;
      for (std::size_t j = 0; j < dim; ++j) {
        s += at(x.q, q + j) * at(x.k, kv.back() + j);
        d += at(x.d_o, q + j) * at(x.v, kv.back() + j);
      }
      score.push_back(s * scale);
      dp.push_back(d);
      sum += std::exp(s * scale);
    }
    lse[static_cast<std::size_t>((b * x.s.heads + h) * x.s.seq + t)] = std::log(sum);
    double mean = 0, mean_error = 0;
    for (std::size_t i = 0; i < kv.size(); ++i) {
      const double p = std::exp(score[i]) / sum;
      for (std::size_t j = 0; j < dim; ++j) {
        o[q + j] += p * at(x.v, kv[i] + j);
        e_o[q + j] += (bf16_error + 2 * rescaled() + small) * p * std::abs(at(x.v, kv[i] + j));
      }
    }
    for (std::size_t j = 0; j < dim; ++j) {
      mean += o[q + j] * at(x.d_o, q + j);
      mean_error += e_o[q + j] * std::abs(at(x.d_o, q + j));
    }
    for (std::size_t i = 0; i < kv.size(); ++i) {
      const double p = std::exp(score[i]) / sum, ds = p * (dp[i] - mean);
      const double e_p = (bf16_error + polynomial + rescaled() + 2 * small) * p;
      const double e_ds =
          (bf16_error + polynomial + rescaled() + 2 * small) * std::abs(ds) + 1.01 * p * mean_error + small * p;
      for (std::size_t j = 0; j < dim; ++j) {
        const double kj = at(x.k, kv[i] + j), qj = at(x.q, q + j), dj = at(x.d_o, q + j);
        dq[q + j] += scale * ds * kj;
        e_dq[q + j] += scale * e_ds * std::abs(kj);
        dk[kv[i] + j] += scale * ds * qj;
        e_dk[kv[i] + j] += scale * e_ds * std::abs(qj);
        dv[kv[i] + j] += p * dj;
        e_dv[kv[i] + j] += e_p * std::abs(dj);
      }
    }
  }
};

/// Largest error in units of the bound; 1e-6 for entries that are only rounding.
double worst(const std::vector<float>& got, const tensor& want, const tensor& bound) {
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double apart = std::abs(static_cast<double>(got[i]) - want[i]) / (bound[i] + 1e-6);
    most = apart <= most ? most : apart;  // NaN counts
  }
  return most;
}

TEST_CASE("tiled attention is within its roundings of double precision, forward and backward") {
  for (const shape& s : {shape{1, 65, 4, 2, 32, 0}, shape{2, 200, 2, 1, 64, 0}, shape{1, 150, 2, 1, 32, 31}}) {
    CAPTURE(s.seq);
    for (const auto& c : {contract_of("hopper-mma-fp16-f32"), contract_of("cdna4-mfma-fp16-f32"),
                          contract_of("hopper-mma-fp16-f32", nn::attention_exp2::ex2_approx)}) {
      CAPTURE(c.name);
      scene got(s);
      thread_pool pool(2);
      got.run(c, pool);
      const exact_attention want(got);
      CHECK(worst(got.o, want.o, want.e_o) < 1);
      CHECK(worst(got.lse, want.lse, tensor(want.lse.size(), want.rescaled() + small)) < 1);
      CHECK(worst(got.dv, want.dv, want.e_dv) < 1);
      CHECK(worst(got.dk, want.dk, want.e_dk) < 1);
      CHECK(worst(got.dq, want.dq, want.e_dq) < 1);
      CHECK(largest(want.dq) > 0.01);
    }
  }
}

TEST_CASE("documents: each is as if it were alone, under both contracts") {
  // Documents start at whole tiles. Each then has the same tiles as in a pass of its own.
  const shape together{1, 192, 2, 1, 32, 64}, alone{3, 64, 2, 1, 32, 0};
  thread_pool pool(2);
  for (const bool tiled : {false, true}) {
    scene one(together), many(alone);
    for (scene* s : {&one, &many}) tiled ? s->run(contract_of("hopper-mma-fp16-f32"), pool) : s->run_chains(pool);
    CHECK(same_bytes(one.o, many.o));
    CHECK(same_bytes(one.dq, many.dq));
    CHECK(same_bytes(one.dk, many.dk));
    CHECK(same_bytes(one.dv, many.dv));
  }
}

TEST_CASE("documents: FP32 chains against double precision") {
  scene got({2, 150, 2, 1, 16, 37});
  thread_pool pool(2);
  got.run_chains(pool);
  const exact_attention want(got);
  // A hundredth of BF16's bound covers FP32's errors of at most 150 terms.
  CHECK(worst(got.o, want.o, want.e_o) < 0.01);
  CHECK(worst(got.dq, want.dq, want.e_dq) < 0.01);
  CHECK(worst(got.dk, want.dk, want.e_dk) < 0.01);
  CHECK(worst(got.dv, want.dv, want.e_dv) < 0.01);
}

TEST_CASE("tiles without a visible pair are not touched, whatever they hold; in others masked keys change nothing") {
  const shape s{1, 200, 2, 1, 32, 0};
  const nn::attention_contract m = contract_of("hopper-mma-fp16-f32");
  thread_pool pool(2);
  for (const bool tiled : {false, true}) {
    const auto run = [&](scene& c) { tiled ? c.run(m, pool) : c.run_chains(pool); };
    scene plain(s), later(s), nan(s), before(s);
    run(plain);
    // 1. Other finite numbers from token 100 on, and NaN from the next tile, 128, on.
    for (std::size_t i = 100 * 32; i < later.k.size(); ++i) {
      later.k[i] = 3 - later.k[i];
      later.v[i] *= -2;
      if (i < 128 * 32) continue;
      nan.k[i] = nan.v[i] = NAN;
    }
    run(later);
    run(nan);
    CHECK(std::equal(plain.o.begin(), plain.o.begin() + 100 * 64, later.o.begin()));
    CHECK(std::equal(plain.o.begin(), plain.o.begin() + 128 * 64, nan.o.begin()));
    CHECK(std::equal(plain.dq.begin(), plain.dq.begin() + 128 * 64, nan.dq.begin()));
    CHECK(std::isnan(nan.o[199 * 64]));
    // 2. A document that starts at token 130 reads no tile before 128.
    for (index_t t = 0; t < s.seq; ++t) before.starts.push_back(t < 130 ? 0 : 130);
    scene documents = before;
    std::fill_n(before.k.begin(), 128 * 32, NAN);
    std::fill_n(before.v.begin(), 128 * 32, NAN);
    run(documents);
    run(before);
    CHECK(std::equal(documents.o.begin() + 192 * 64, documents.o.end(), before.o.begin() + 192 * 64));
    CHECK(std::equal(documents.dq.begin() + 192 * 64, documents.dq.end(), before.dq.begin() + 192 * 64));
    CHECK(std::equal(documents.dk.begin() + 192 * 32, documents.dk.end(), before.dk.begin() + 192 * 32));
  }
}

TEST_CASE("tiled attention: NaN and Inf become canonical NaN in the rows that see them") {
  scene c({1, 100, 1, 1, 32, 0});
  c.k[static_cast<std::size_t>(70 * 32 + 3)] = NAN;
  thread_pool pool(1);
  c.run(contract_of("hopper-mma-fp16-f32"), pool);
  for (index_t t = 0; t < 100; ++t) {
    for (index_t j = 0; j < 32; ++j) {
      const float o = c.o[static_cast<std::size_t>(t * 32 + j)];
      CHECK(std::isnan(o) == (t >= 70));
      if (t >= 70) CHECK(fp32_bits(o) == fp32_nan_bits);
    }
    if (t >= 70) CHECK(fp32_bits(c.lse[static_cast<std::size_t>(t)]) == fp32_nan_bits);
  }
}

TEST_CASE("tiled attention: threads and leftovers change no bit") {
  const nn::attention_contract m = contract_of("hopper-mma-fp16-f32");
  scene one({2, 100, 4, 2, 32, 17});
  thread_pool single(1);
  one.run(m, single);
  for (const int threads : {2, 4}) {
    thread_pool pool(threads);
    scene large({1, 150, 4, 2, 64}), many({2, 100, 4, 2, 32, 17});
    large.run(m, pool);
    many.run(m, pool);
    CHECK(one.equals(many));
  }
}

}  // namespace cpu_tiled_attention_test
