// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launchers of gpu/api/attention.hpp: argument checks, the choice of kernel, grids. The kernels are in
// attention_chains.hpp (FP32 chains) and attention_tiles_*.hpp (tensor cores).
#include "gpu/api/attention.hpp"

#include <cmath>

#include "gpu/dialect/launch.hpp"
#include "gpu/nn/attention_chains.hpp"
#include "gpu/nn/attention_tiles_backward.hpp"
#include "gpu/nn/attention_tiles_forward.hpp"

namespace rotoscale::gpu {

namespace {

constexpr index_t max_head_dim = 128;

/// Checks a tensor and converts it for kernels. Clears `vectors` if rows are not aligned to 16 bytes. Errors name
/// `argument`.
template <class T, class View>
status take(const View& x, nn::dtype type, const index_t (&extents)[4], const char* argument, head_tensor<T>& to,
            bool& vectors) {
  if (x.type != type) return {error_code::bad_option, argument, "must have the type of t.o, FP32 or BF16"};
  if (x.rank != 4) return {error_code::bad_extent, argument, "must be [batch, seq, heads, head_dim]"};
  for (int d = 0; d < 4; ++d) {
    if (x.extents[d] != extents[d]) return {error_code::bad_extent, argument, "must have the extents of the others"};
  }
  if (x.strides[3] != 1) return {error_code::bad_extent, argument, "must have the elements of a head side by side"};
  to = {static_cast<T*>(x.data), x.strides[0], x.strides[1], x.strides[2]};
  vectors = vectors && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
  for (int d = 0; d < 3; ++d) vectors = vectors && x.strides[d] * sizeof(T) % 16 == 0;
  return check_pointer(x.data, sizeof(T), argument);
}

status take_shape(const nn::attention_contract& contract, const nn::attention_tensors& t, const nn::step_state* state,
                  attention_shape& n) {
  device_info device;
  if (status s = current_device(device); !s.ok()) return s;
  if (t.q.rank != 4 || t.k.rank != 4) return {error_code::bad_extent, "t.q", "must be [batch, seq, heads, head_dim]"};
  const index_t heads = t.q.extents[2], kv_heads = t.k.extents[2];
  for (const index_t e : {t.q.extents[0], t.q.extents[1], t.k.extents[1], heads, kv_heads}) {
    if (e < 1 || e > (1 << 24)) return {error_code::bad_extent, "t.q", "extents must be 1 to 2^24"};
  }
  if (t.past() < 0) return {error_code::bad_extent, "t.q", "must have at most the tokens of t.k"};
  if (t.q.extents[0] > 65535 || heads > 65535 || heads % kv_heads != 0) {
    return {error_code::bad_extent, "t.q", "must have at most 65535 sequences and heads, a multiple of those of t.k"};
  }
  if (!runs_attention(contract, t.q.extents[3], device)) {
    return {error_code::unsupported_device, "contract",
            "this device has no kernel for its unit, its exponential or heads of this size"};
  }
  n.batch = static_cast<int>(t.q.extents[0]);
  n.seq = static_cast<int>(t.k.extents[1]);
  n.heads = static_cast<int>(heads);
  n.kv_heads = static_cast<int>(kv_heads);
  n.dim = static_cast<int>(t.q.extents[3]);
  n.scale = 1.0f / std::sqrt(static_cast<float>(n.dim));
  n.starts = t.starts.data;
  n.starts_stride = t.starts.stride;
  n.state = state;
  n.lse = t.lse;
  n.dots = nullptr;
  if (n.starts != nullptr) {
    if (status s = check_pointer(n.starts, "t.starts"); !s.ok()) return s;
    if (status s = check_pointer(state, "state"); !s.ok()) return s;
  }
  return check_pointer(t.lse, "t.lse");
}

template <class T>
status take_forward(const nn::attention_tensors& t, const attention_shape& n, nn::dtype type, attention_pass<T>& p) {
  const index_t q[] = {n.batch, t.q.extents[1], n.heads, n.dim}, kv[] = {n.batch, n.seq, n.kv_heads, n.dim};
  p.n = n;
  p.past = static_cast<int>(t.past());
  p.vectors = true;
  if (status s = take(t.q, type, q, "t.q", p.q, p.vectors); !s.ok()) return s;
  if (status s = take(t.k, type, kv, "t.k", p.k, p.vectors); !s.ok()) return s;
  if (status s = take(t.v, type, kv, "t.v", p.v, p.vectors); !s.ok()) return s;
  if (status s = take(t.o, type, q, "t.o", p.o, p.vectors); !s.ok()) return s;
  p.q.data -= p.past * p.q.token;
  p.o.data -= p.past * p.o.token;
  return {};
}

template <class T>
status take_backward(const nn::attention_tensors& t, const nn::attention_gradients& d, const attention_shape& n,
                     nn::dtype type, attention_backward_pass<T>& p) {
  attention_pass<T> forward;
  if (status s = take_forward(t, n, type, forward); !s.ok()) return s;
  p.n = n;
  p.q = forward.q;
  p.k = forward.k;
  p.v = forward.v;
  p.o = {forward.o.data, forward.o.batch, forward.o.token, forward.o.head};
  const index_t q[] = {n.batch, n.seq, n.heads, n.dim}, kv[] = {n.batch, n.seq, n.kv_heads, n.dim};
  p.vectors = forward.vectors;
  if (status s = take(d.d_o, type, q, "d.d_o", p.d_o, p.vectors); !s.ok()) return s;
  if (status s = take(d.dq, type, q, "d.dq", p.dq, p.vectors); !s.ok()) return s;
  if (status s = take(d.dk, type, kv, "d.dk", p.dk, p.vectors); !s.ok()) return s;
  return take(d.dv, type, kv, "d.dv", p.dv, p.vectors);
}

/// Grid of blocks of `tiles` tiles: for the queries after the first `past` tokens, or for all keys.
dim3 blocks_of(const attention_shape& n, int heads, int tiles = 1, int past = 0) {
  const int across = (n.seq + attention_tile - 1) / attention_tile - past / attention_tile;
  return {static_cast<unsigned>((across + tiles - 1) / tiles), static_cast<unsigned>(heads),
          static_cast<unsigned>(n.batch)};
}

/// Calls launch_chunks<Chunks>() with the number of chunks of 32 features that hold a head.
template <class Launch>
status with_chunks(int dim, const Launch& launch_chunks) {
  if (dim <= 64) return launch_chunks.template operator()<2>();
  return launch_chunks.template operator()<4>();
}

template <class T>
status forward_chains(const attention_pass<T>& p, stream s) {
  return with_chunks(p.n.dim, [&]<int Chunks>() {
    return launch(chains::forward_kernel<T, Chunks>, blocks_of(p.n, p.n.heads, 1, p.past), dim3{chains::threads, 1, 1},
                  sizeof(chains::shared_tiles), s, p);
  });
}
template <class T>
status backward_chains(const attention_backward_pass<T>& p, stream s) {
  return with_chunks(p.n.dim, [&]<int Chunks>() {
    const dim3 threads{chains::threads, 1, 1};
    constexpr std::size_t shared = sizeof(chains::backward_tiles);
    status r = launch(chains::keys_kernel<T, Chunks>, blocks_of(p.n, p.n.kv_heads), threads, shared, s, p);
    if (!r.ok()) return r;
    return launch(chains::queries_kernel<T, Chunks>, blocks_of(p.n, p.n.heads), threads, shared, s, p);
  });
}

constexpr status no_unit{error_code::unsupported_device, "contract",
                         "this build has no kernel for its unit with its exponential"};

/// Returns body(unit) for the unit and exponential that the contract names, or `otherwise` if this build lacks one.
template <class Result, class Body>
Result with_attention_unit(const nn::attention_contract& contract, const Result& otherwise, const Body& body) {
  return with_bf16_unit(contract.model, otherwise, [&]<class Unit>(Unit unit) -> Result {
    switch (contract.exp2) {
      case nn::attention_exp2::deg3: return body(unit);
      case nn::attention_exp2::ex2_approx:
        if constexpr (Unit::has_ex2_approx) return body(tiles::ex2_unit<Unit>{});
        break;
    }
    return otherwise;
  });
}

/// The same unit with tiles loaded by its threads.
template <class Unit>
auto without_engine(Unit) {
  return typename Unit::without_engine{};
}
template <class Base>
auto without_engine(tiles::ex2_unit<Base>) {
  return tiles::ex2_unit<typename Base::without_engine>{};
}

/// Calls launch_features<D>() with the features that a head is padded to in shared memory.
template <class Launch>
status with_features(int dim, const Launch& launch_features) {
  if (dim <= 64) return launch_features.template operator()<64>();
  return launch_features.template operator()<128>();
}

/// Returns body(unit, maps) with TMA maps of x and y, which have `heads` heads. If TMA cannot read them, the unit is
/// the one without TMA.
template <class Unit, class T, class Body>
status with_maps(Unit unit, [[maybe_unused]] const head_tensor<const T>& x,
                 [[maybe_unused]] const head_tensor<const T>& y, [[maybe_unused]] const attention_shape& n,
                 [[maybe_unused]] int heads, [[maybe_unused]] bool vectors, const Body& body) {
  if constexpr (Unit::engine::exists) {
    if constexpr (sizeof(T) == 2) {
      typename Unit::engine::maps maps;
      const auto make = [&](auto& map, const head_tensor<const T>& from) {
        const std::int64_t extents[] = {n.dim, heads, n.seq, n.batch};
        const std::int64_t strides[] = {from.head * 2, from.token * 2, from.batch * 2};
        return Unit::engine::make_map(map, from.data, extents, strides);
      };
      if (vectors && make(maps.x, x) && make(maps.y, y)) return body(unit, maps);
    }
    return body(without_engine(unit), no_tile_engine::maps{});
  } else {
    return body(unit, typename Unit::engine::maps{});
  }
}

template <class T>
status forward_tiles(const nn::attention_contract& contract, const attention_pass<T>& p, stream s) {
  const auto launch_kernel = [&](auto unit, const auto& maps) {
    return with_features(p.n.dim, [&]<int D>() {
      using layout = tiles::forward_layout<decltype(unit), D>;
      return launch(tiles::forward_kernel<decltype(unit), T, D>, blocks_of(p.n, p.n.heads, layout::plan.tiles, p.past),
                    dim3{unsigned{layout::threads}, 1, 1}, layout::shared, s, p, maps);
    });
  };
  return with_attention_unit(contract, no_unit, [&](auto unit) {
    return with_maps(unit, p.k, p.v, p.n, p.n.kv_heads, p.vectors, launch_kernel);
  });
}
template <class T>
status backward_tiles(const nn::attention_contract& contract, const attention_backward_pass<T>& p, stream s) {
  const auto launch_keys = [&](auto unit, const auto& maps) {
    return with_features(p.n.dim, [&]<int D>() {
      using layout = tiles::keys_layout<decltype(unit), D>;
      return launch(tiles::keys_kernel<decltype(unit), T, D>, blocks_of(p.n, p.n.kv_heads, layout::plan.tiles),
                    dim3{unsigned{layout::threads}, 1, 1}, layout::shared, s, p, maps);
    });
  };
  const auto launch_queries = [&](auto unit, const auto& maps) {
    return with_features(p.n.dim, [&]<int D>() {
      using layout = tiles::queries_layout<decltype(unit), D>;
      return launch(tiles::queries_kernel<decltype(unit), T, D>, blocks_of(p.n, p.n.heads, layout::plan.tiles),
                    dim3{unsigned{layout::threads}, 1, 1}, layout::shared, s, p, maps);
    });
  };
  return with_attention_unit(contract, no_unit, [&](auto unit) {
    status r = with_maps(unit, p.q, p.d_o, p.n, p.n.heads, p.vectors, launch_keys);
    if (!r.ok()) return r;
    return with_maps(unit, p.k, p.v, p.n, p.n.kv_heads, p.vectors, launch_queries);
  });
}

/// Computes D = Σ o · do of every row into n.dots.
template <class T>
status make_dots(const attention_backward_pass<T>& p, stream s) {
  const std::int64_t rows = std::int64_t{p.n.batch} * p.n.heads * p.n.seq;
  return launch(attention_dots_kernel<T>, blocks((rows + dots_rows - 1) / dots_rows), dim3{dots_threads, 1, 1}, 0, s,
                p);
}

/// Returns body(T{}) for the element type.
template <class Body>
status with_type(nn::dtype type, const Body& body) {
  if (type == nn::dtype::fp32) return body(float{});
  if (type == nn::dtype::bf16) return body(bf16{});
  return {error_code::bad_option, "t.o", "must be FP32 or BF16"};
}

}  // namespace

bool runs_attention(const nn::attention_contract& contract, index_t head_dim, const device_info& device) {
  if (head_dim < 1 || head_dim > max_head_dim || !contract.takes(head_dim) || device.arch == arch::other) return false;
  return !contract.tiled || with_attention_unit(contract, false, [](auto) { return true; });
}

std::size_t attention_backward_workspace_bytes(index_t batch, index_t seq, index_t heads) {
  return static_cast<std::size_t>(batch * seq * heads) * sizeof(float);
}

status attention_forward(const nn::attention_contract& contract, const nn::attention_tensors& t,
                         const nn::step_state* state, stream s) {
  attention_shape n;
  if (status r = take_shape(contract, t, state, n); !r.ok()) return r;
  return with_type(t.o.type, [&](auto element) {
    attention_pass<decltype(element)> p;
    if (status r = take_forward(t, n, t.o.type, p); !r.ok()) return r;
    if (status r = check_stream(s); !r.ok()) return r;
    return contract.tiled ? forward_tiles(contract, p, s) : forward_chains(p, s);
  });
}

status attention_backward(const nn::attention_contract& contract, const nn::attention_tensors& t,
                          const nn::attention_gradients& d, const nn::step_state* state, void* workspace,
                          std::size_t workspace_bytes, stream s) {
  attention_shape n;
  if (status r = take_shape(contract, t, state, n); !r.ok()) return r;
  if (t.past() != 0) return {error_code::bad_extent, "t.q", "must have the tokens of t.k"};
  const std::size_t needed = attention_backward_workspace_bytes(n.batch, n.seq, n.heads);
  if (status r = check_workspace(workspace, workspace_bytes, needed, 16); !r.ok()) return r;
  n.dots = static_cast<float*>(workspace);
  return with_type(t.o.type, [&](auto element) {
    attention_backward_pass<decltype(element)> p;
    if (status r = take_backward(t, d, n, t.o.type, p); !r.ok()) return r;
    if (status r = check_stream(s); !r.ok()) return r;
    if (status r = make_dots(p, s); !r.ok()) return r;
    return contract.tiled ? backward_tiles(contract, p, s) : backward_chains(p, s);
  });
}

}  // namespace rotoscale::gpu
