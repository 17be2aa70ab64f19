// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The part of XLA's C interface for custom calls that handlers here use, major version 0. The structures have the
// layout of xla/ffi/api/c_api.h, which JAX's wheel carries; python/tests/test_jax.py compares the two. So the package
// needs no headers of JAX.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rotoscale::python::xla {

inline constexpr int major_version = 0, newest_minor_version = 5;
inline constexpr int metadata_extension_type = 1, execute_stage = 3, invalid_argument_code = 3;
inline constexpr int scalar_attribute = 3, string_attribute = 4;

enum data_type : int {
  u8 = 6,
  f16 = 10,
  f32 = 11,
  f64 = 12,
  bf16 = 16,
  f8e5m2 = 19,
  f8e4m3fn = 20,
  f8e4m3b11fnuz = 23,
  f8e5m2fnuz = 24,
  f8e4m3fnuz = 25
};

struct extension {
  std::size_t struct_size;
  int type;
  extension* next;
};

struct byte_span {
  const char* data;
  std::size_t size;
};

struct buffer {
  std::size_t struct_size;
  extension* extensions;
  data_type dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

struct scalar {
  data_type dtype;
  void* value;
};

/// Arguments or results.
struct buffers {
  std::size_t struct_size;
  extension* extensions;
  std::int64_t size;
  int* types;
  buffer** items;
};

/// Sorted by name.
struct attributes {
  std::size_t struct_size;
  extension* extensions;
  std::int64_t size;
  int* types;
  byte_span** names;
  void** items;
};

struct api_version {
  std::size_t struct_size;
  extension* extensions;
  int major, minor;
};

struct error;
struct error_arguments {
  std::size_t struct_size;
  extension* extensions;
  const char* message;
  int code;
};

struct stream_arguments {
  std::size_t struct_size;
  extension* extensions;
  void* context;
  void* stream;  ///< result
};

/// Memory of the device that the call runs on.
struct allocate_arguments {
  std::size_t struct_size;
  extension* extensions;
  void* context;
  std::size_t size, alignment;
  void* data;  ///< result
};
struct free_arguments {
  std::size_t struct_size;
  extension* extensions;
  void* context;
  std::size_t size;
  void* data;
};

struct api {
  std::size_t struct_size;
  extension* extensions;
  api_version version;
  const void* internal;
  error* (*create_error)(error_arguments*);
  const void* others[3];
  error* (*get_stream)(stream_arguments*);
  const void* more[4];
  error* (*allocate)(allocate_arguments*);
  error* (*free)(free_arguments*);
};

struct call_frame {
  std::size_t struct_size;
  extension* extensions;
  const xla::api* api;
  void* context;
  int stage;
  buffers arguments, results;
  xla::attributes attributes;
};

struct metadata {
  std::size_t struct_size;
  api_version version;
  std::uint32_t traits;
};

struct metadata_extension {
  extension base;
  xla::metadata* metadata;
};

}  // namespace rotoscale::python::xla
