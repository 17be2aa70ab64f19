// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Mock profiler: a library that reports the depth of ranges and the last name. It exports rocTX's functions. With
// CUDA's headers NVTX finds it through NVTX_INJECTION64_PATH.
#include <cstring>

#if __has_include(<nvtx3/nvToolsExt.h>)
#define NVTX_NO_IMPL  // types only
#include <nvtx3/nvToolsExt.h>
#endif

static int depth = 0;
static char last[64] = "";

extern "C" {

int roctxRangePushA(const char* name) {
  std::strncpy(last, name, sizeof last - 1);
  return depth++;
}
int roctxRangePop() { return --depth; }
int ranges_depth() { return depth; }
const char* ranges_last() { return last; }

#if __has_include(<nvtx3/nvToolsExt.h>)
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table) {
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned count = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &count) == 0 ||
      count <= NVTX_CBID_CORE_RangePop) {
    return 0;
  }
  *functions[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&roctxRangePushA);
  *functions[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&roctxRangePop);
  return 1;
}
#endif

}  // extern "C"
