// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// gemm() and select_gemm(): launch with a selected kernel. No device code.
#include "gpu/gemm/dispatch.hpp"

#include "gpu/gemm/check.hpp"

namespace rotoscale::gpu {

namespace {

/// The tuned table, read once per process.
struct loaded_table {
  std::vector<tuned_row> rows;
  std::string reason;
  status read;
  loaded_table() : read(load_tuned(tuned_text, rows, reason)) {}
};

}  // namespace

std::string gemm_selection::message() const {
  std::string text = to_text(choice.contract);
  const gemm_schedule& s = choice.schedule;
  if (s.tile_m != 0) text += ", " + tile_text(s) + " tiles";
  if (s.stages != 0) text += ", " + std::to_string(s.stages) + " stages";
  text += ", split-K " + std::to_string(choice.split_k) + (s.band != 0 ? ", raster " + raster_text(s) : "") + ": ";
  switch (from) {
    case source::forced: return text + "ROTOSCALE_GPU_KERNEL";
    case source::heuristic:
      return text + "no measurement of this shape on this device; the tile and parts of K that fill it";
    case source::table: break;
  }
  char measured[32];
  std::snprintf(measured, sizeof measured, "%.1f", microseconds);
  return text + "the fastest measured with M = " + std::to_string(table_m) + " (" + measured + " us)";
}

status select_gemm(const gemm_problem& p, gemm_contract contract, const device_info& device, gemm_selection& selected) {
  static const loaded_table table;
  if (!table.read.ok()) return table.read;
  // Unsupported extents are refused before the lookup.
  if (status s = check_gemm(p, {contract, 1}, device); !s.ok()) return s;
  if (status s = choose_gemm(table.rows, device, contract, make_shape(p), selected); !s.ok()) return s;
  status s = check_gemm(p, selected.choice, device);
  // The caller's arguments were valid, so the forced choice is wrong.
  if (!s.ok() && selected.from == gemm_selection::source::forced) s.argument = "ROTOSCALE_GPU_KERNEL";
  return s;
}

std::size_t gemm_workspace_bytes(const gemm_problem& p, gemm_contract contract, const device_info& device) {
  gemm_selection selected;
  return select_gemm(p, contract, device, selected).ok() ? gemm_workspace_bytes(p, selected.choice, device) : 0;
}

status gemm(const gemm_problem& p, gemm_contract contract, void* workspace, std::size_t workspace_bytes, stream s) {
  device_info device;
  if (status found = current_device(device); !found.ok()) return found;
  gemm_selection selected;
  if (status chosen = select_gemm(p, contract, device, selected); !chosen.ok()) return chosen;
  return detail::run_gemm(p, selected.choice, device, workspace, workspace_bytes, s);
}

}  // namespace rotoscale::gpu
