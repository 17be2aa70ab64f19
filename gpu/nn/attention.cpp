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
  if (x.type != type) return {error_code::bad_option, argument, "must have the type of o, FP32 or BF16"};
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

/// Checks the inputs that both passes have, and the row sums.
template <class In>
status take_shape(const In& i, const float* lse, attention_shape& n) {
  device_info device;
  if (status s = current_device(device); !s.ok()) return s;
  if (i.q.rank != 4 || i.k.rank != 4) return {error_code::bad_extent, "q", "must be [batch, seq, heads, head_dim]"};
  const index_t heads = i.q.extents[2], kv_heads = i.k.extents[2];
  for (const index_t e : {i.q.extents[0], i.q.extents[1], i.k.extents[1], heads, kv_heads}) {
    if (e < 1 || e > (1 << 24)) return {error_code::bad_extent, "q", "extents must be 1 to 2^24"};
  }
  if (i.q.extents[1] > i.k.extents[1]) return {error_code::bad_extent, "q", "must have at most the tokens of k"};
  if (i.q.extents[0] > 65535 || heads > 65535 || heads % kv_heads != 0) {
    return {error_code::bad_extent, "q", "must have at most 65535 sequences and heads, a multiple of those of k"};
  }
  if (!runs_attention(i.contract, i.q.extents[3], device)) {
    return {error_code::unsupported_device, "contract",
            "this device has no kernel for its unit, its exponential or heads of this size"};
  }
  n.batch = static_cast<int>(i.q.extents[0]);
  n.seq = static_cast<int>(i.k.extents[1]);
  n.heads = static_cast<int>(heads);
  n.kv_heads = static_cast<int>(kv_heads);
  n.dim = static_cast<int>(i.q.extents[3]);
  n.scale = 1.0f / std::sqrt(static_cast<float>(n.dim));
  n.starts = i.starts.data;
  n.starts_stride = i.starts.stride;
  n.state = i.state;
  n.lse = const_cast<float*>(lse);  // which the backward pass reads
  n.dots = nullptr;
  if (n.starts != nullptr) {
    if (status s = check_pointer(n.starts, "starts"); !s.ok()) return s;
    if (status s = check_pointer(i.state, "state"); !s.ok()) return s;
  }
  return check_pointer(lse, "lse");
}

/// Checks and converts the inputs and the result o of either pass.
template <class In, class View, class Pass>
status take_pass(const In& i, const View& o, const attention_shape& n, Pass& p) {
  const index_t q[] = {n.batch, i.q.extents[1], n.heads, n.dim}, kv[] = {n.batch, n.seq, n.kv_heads, n.dim};
  p.n = n;
  p.vectors = true;
  if (status s = take(i.q, o.type, q, "q", p.q, p.vectors); !s.ok()) return s;
  if (status s = take(i.k, o.type, kv, "k", p.k, p.vectors); !s.ok()) return s;
  if (status s = take(i.v, o.type, kv, "v", p.v, p.vectors); !s.ok()) return s;
  return take(o, o.type, q, "o", p.o, p.vectors);
}

template <class T>
status take_forward(const op::attention_forward::in& i, const op::attention_forward::out& o, const attention_shape& n,
                    attention_pass<T>& p) {
  if (status s = take_pass(i, o.o, n, p); !s.ok()) return s;
  p.past = static_cast<int>(i.k.extents[1] - i.q.extents[1]);
  p.q.data -= p.past * p.q.token;
  p.o.data -= p.past * p.o.token;
  return {};
}

template <class T>
status take_backward(const op::attention_backward::in& i, const op::attention_backward::out& o,
                     const attention_shape& n, attention_backward_pass<T>& p) {
  if (status s = take_pass(i, i.o, n, p); !s.ok()) return s;
  const index_t q[] = {n.batch, n.seq, n.heads, n.dim}, kv[] = {n.batch, n.seq, n.kv_heads, n.dim};
  if (status s = take(i.d_o, i.o.type, q, "d_o", p.d_o, p.vectors); !s.ok()) return s;
  if (status s = take(o.dq, i.o.type, q, "dq", p.dq, p.vectors); !s.ok()) return s;
  if (status s = take(o.dk, i.o.type, kv, "dk", p.dk, p.vectors); !s.ok()) return s;
  return take(o.dv, i.o.type, kv, "dv", p.dv, p.vectors);
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

/// `Unit` with tiles loaded by its threads instead of TMA.
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
  return {error_code::bad_option, "o", "must be FP32 or BF16"};
}

}  // namespace

bool runs_attention(const nn::attention_contract& contract, index_t head_dim, const device_info& device) {
  if (head_dim < 1 || head_dim > max_head_dim || !contract.takes(head_dim) || device.arch == arch::other) return false;
  return !contract.tiled || with_attention_unit(contract, false, [](auto) { return true; });
}

template <>
status launch<op::attention_forward>(const device_call& call, const op::attention_forward::in& i,
                                     const op::attention_forward::out& o) {
  attention_shape n;
  if (status r = take_shape(i, o.lse, n); !r.ok()) return r;
  return with_type(o.o.type, [&](auto element) {
    attention_pass<decltype(element)> p;
    if (status r = take_forward(i, o, n, p); !r.ok()) return r;
    if (status r = check_stream(call.s); !r.ok()) return r;
    return i.contract.tiled ? forward_tiles(i.contract, p, call.s) : forward_chains(p, call.s);
  });
}

template <>
std::size_t workspace_bytes<op::attention_backward>(const op::attention_backward::in& i,
                                                    const op::attention_backward::out&) {
  return static_cast<std::size_t>(i.q.extent(0) * i.q.extent(1) * i.q.extent(2)) * sizeof(float);
}

template <>
status launch<op::attention_backward>(const device_call& call, const op::attention_backward::in& i,
                                      const op::attention_backward::out& o) {
  attention_shape n;
  if (status r = take_shape(i, i.lse, n); !r.ok()) return r;
  if (i.q.extent(1) != i.k.extent(1)) return {error_code::bad_extent, "q", "must have the tokens of k"};
  const std::size_t needed = workspace_bytes<op::attention_backward>(i, o);
  if (status r = check_workspace(call.workspace, call.bytes, needed, 16); !r.ok()) return r;
  n.dots = static_cast<float*>(call.workspace);
  return with_type(i.o.type, [&](auto element) {
    attention_backward_pass<decltype(element)> p;
    if (status r = take_backward(i, o, n, p); !r.ok()) return r;
    if (status r = check_stream(call.s); !r.ok()) return r;
    if (status r = make_dots(p, call.s); !r.ok()) return r;
    return i.contract.tiled ? backward_tiles(i.contract, p, call.s) : backward_chains(p, call.s);
  });
}

}  // namespace rotoscale::gpu
