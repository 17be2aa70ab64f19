# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's torchao (prototype/mx_formats) against the presets named after it.

- scale bytes and element codes of its four scale modes for its five element types
- packed FP4, one-level NVFP4, and the 128 x 4 scale layout

The presets follow torchao 0.19. Releases up to 0.18 handle Inf, byte 0 and some amax differently; both results are
stated. Skips (77) without rotoscale, torch or torchao.
"""

import sys

import oracle

# Block format: torchao's attribute, of torch or of constants.
FORMATS = {"mxfp4": "float4_e2m1fn_x2", "mxfp6_e2m3": "DTYPE_FP6_E2M3", "mxfp6_e3m2": "DTYPE_FP6_E3M2",
           "mxfp8_e4m3": "float8_e4m3fn", "mxfp8_e5m2": "float8_e5m2"}
MODES = ("floor", "ceil", "even", "rceil")


class Torchao:
    def __init__(self, np, torch, mx_tensor, constants):
        self.np, self.torch, self.mx_tensor, self.constants = np, torch, mx_tensor, constants
        # pytorch/ao#4725, in 0.19 and later, changed the results at the ends of the range.
        self.since_0_19 = hasattr(mx_tensor, "_e8m0_scale_to_reciprocal_fp32")

    def quantize(self, x, block_format, mode):
        """(scale bytes, element bytes): FP4 in pairs, FP6 one byte each."""
        name = FORMATS[block_format]
        dtype = getattr(self.torch, name, None) or getattr(self.constants, name)
        mode = self.mx_tensor.ScaleCalculationMode[mode.upper()]
        scales, codes = self.mx_tensor.to_mx(self.torch.from_numpy(x), dtype, 32, mode)
        return scales.view(self.torch.uint8).numpy(), codes.view(self.torch.uint8).numpy()


def matrices(np):
    rng = np.random.default_rng(3)
    normal = rng.standard_normal((256, 256)).astype(np.float32)
    yield "normal", normal * np.exp2(rng.integers(-90, 100, (256, 1))).astype(np.float32)
    coarse = rng.integers(-2047, 2048, (256, 256)) * np.exp2(rng.integers(-14, 15, (256, 256)))
    yield "coarse", coarse.astype(np.float32)


def compare_blocks(np, rotoscale, tally, theirs):
    for kind, x in matrices(np):
        for block_format in FORMATS:
            for mode in MODES:
                codes, scales, _ = oracle.blocks(rotoscale, x, block_format, f"torchao_{mode}")
                their_scales, their_codes = theirs.quantize(x, block_format, mode)
                codes = oracle.unpack(np, codes, 6) if block_format.startswith("mxfp6") else codes
                tally.equal(f"{block_format} {mode} {kind} scales", scales, their_scales)
                tally.equal(f"{block_format} {mode} {kind} codes", codes, their_codes)


def compare_nvfp4(np, rotoscale, tally, torch, nvfp4_tensor):
    for kind, x in matrices(np):
        x[0] = 0
        x[1] = np.float32(1e-30)
        x[2] = np.float32(1e30)
        codes, scales, _ = oracle.blocks(rotoscale, x, "nvfp4", "torchao_nvfp4")
        their_scales, their_codes = nvfp4_tensor.nvfp4_quantize(torch.from_numpy(x), 16)
        tally.equal(f"nvfp4 {kind} scales", scales, their_scales.view(torch.uint8).numpy())
        tally.equal(f"nvfp4 {kind} codes", codes, their_codes.view(torch.uint8).numpy())


def compare_swizzle(np, rotoscale, tally, torch, utils):
    rng = np.random.default_rng(4)
    for rows, cols in ((128, 4), (1, 1), (130, 7), (300, 33), (512, 16)):
        scales = rng.integers(0, 256, (rows, cols), dtype=np.uint8)
        ours = rotoscale.swizzle(scales, "nvidia_scale_128x4")
        tally.equal(f"to_blocked {rows} x {cols}", ours, utils.to_blocked(torch.from_numpy(scales)).numpy())


def state_differences(np, rotoscale, tally, theirs):
    def state(what, first, mode, our_byte, since_0_19, before):
        x = np.zeros((1, 32), np.float32)
        x[0, : len(first)] = first
        _, scales, _ = oracle.blocks(rotoscale, x, "mxfp4", f"torchao_{mode}")
        tally.equal(f"{what} {mode}, ours", scales, [our_byte])
        tally.equal(f"{what} {mode}, torchao", theirs.quantize(x, "mxfp4", mode)[0],
                    [since_0_19 if theirs.since_0_19 else before])

    largest = np.finfo(np.float32).max
    for mode in MODES:
        state("zeros", [0.0], mode, 0x00, 0x00, 0x00)
        state("NaN", [1.0, np.nan], mode, 0xFF, 0xFF, 0xFF)
        state("Inf", [1.0, np.inf], mode, 0xFF, 0xFF, 0xFE if mode == "rceil" else 0xFD)
    state("FLT_MAX", [largest], "even", 0xFF, 0xFF, 0xFD)
    # Just above 6 * 2^k, the releases compute log2 in FP32, which loses the difference.
    state("above 6 * 2^100", [np.nextafter(np.float32(6 * 2.0**100), np.float32(np.inf))], "rceil", 228, 228, 227)
    # One amax: the product with FP32's 1/6 rounds to 2^-127 exactly, so torchao gives byte 0.
    state("above 6 * 2^-127", [np.array([0x01400001], np.uint32).view(np.float32)[0]], "rceil", 0x01, 0x00, 0x00)


def main():
    parts = (f"torchao.prototype.mx_formats.{x}" for x in ("mx_tensor", "constants", "nvfp4_tensor", "utils"))
    np, rotoscale, torch, *modules = oracle.require("numpy", "rotoscale", "torch", *parts)
    mx_tensor, constants, nvfp4_tensor, utils = modules
    tally = oracle.Tally(np)
    theirs = Torchao(np, torch, mx_tensor, constants)
    torch.set_num_threads(1)
    compare_blocks(np, rotoscale, tally, theirs)
    compare_nvfp4(np, rotoscale, tally, torch, nvfp4_tensor)
    compare_swizzle(np, rotoscale, tally, torch, utils)
    state_differences(np, rotoscale, tally, theirs)
    return tally.finish("torchao, " + ("0.19 or later" if theirs.since_0_19 else "0.18 or earlier"))


if __name__ == "__main__":
    sys.exit(main())
