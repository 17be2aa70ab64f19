// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Named ranges for profilers: NVTX of the CUDA toolkit, or rocTX loaded at run time if it is installed. Does nothing in
// host builds.
#pragma once

#include "gpu/dialect/hip.hpp"

#if defined(ROTOSCALE_CUDA) && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif
#if !defined(ROTOSCALE_CUDA)
#include <dlfcn.h>

#include <initializer_list>
#endif

namespace rotoscale::gpu {

#if !defined(ROTOSCALE_CUDA)

/// Loads rocTX from the first of `libraries` that is installed.
class range_library {
 public:
  explicit range_library(std::initializer_list<const char*> libraries) {
    for (const char* name : libraries) {
      void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) continue;
      begin_ = reinterpret_cast<int (*)(const char*)>(::dlsym(library, "roctxRangePushA"));
      end_ = reinterpret_cast<int (*)()>(::dlsym(library, "roctxRangePop"));
      if (begin_ != nullptr && end_ != nullptr) return;  // never unloaded
      begin_ = nullptr;
      ::dlclose(library);
    }
  }
  bool is_there() const { return begin_ != nullptr; }
  void begin(const char* name) const {
    if (is_there()) (void)begin_(name);
  }
  void end() const {
    if (is_there()) (void)end_();
  }

 private:
  int (*begin_)(const char*) = nullptr;
  int (*end_)() = nullptr;
};

#endif

#if defined(ROTOSCALE_CUDA) && __has_include(<nvtx3/nvToolsExt.h>)
inline void begin_native_range(const char* name) { (void)nvtxRangePushA(name); }
inline void end_native_range() { (void)nvtxRangePop(); }
#elif defined(ROTOSCALE_CUDA) || defined(ROTOSCALE_GPU_HOST)
inline void begin_native_range(const char*) {}
inline void end_native_range() {}
#else
inline const range_library& native_ranges() {
  static const range_library found{"librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so", "libroctx64.so.4",
                                   "libroctx64.so"};
  return found;
}
inline void begin_native_range(const char* name) { native_ranges().begin(name); }
inline void end_native_range() { native_ranges().end(); }
#endif

}  // namespace rotoscale::gpu
