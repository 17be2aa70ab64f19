# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""The casts of ml_dtypes (JAX's number types for NumPy) against rotoscale.encode and decode.

- all codes decoded: every float type of 4, 6 and 8 bits, and bfloat16
- encoded: all 2^16 half and bfloat16 numbers, FP32 and FP64 samples, and all neighbours of ties

Deliberate differences are stated with both results. Skips (77) without rotoscale or ml_dtypes.
"""

import sys

import oracle

# Name here, name in ml_dtypes, rounding. E8M0 rounds halves up; the others round to nearest even. Casts do not
# saturate.
TYPES = [
    ("e2m1", "float4_e2m1fn", "nearest_even"),
    ("e2m3", "float6_e2m3fn", "nearest_even"),
    ("e3m2", "float6_e3m2fn", "nearest_even"),
    ("e4m3", "float8_e4m3fn", "nearest_even"),
    ("e5m2", "float8_e5m2", "nearest_even"),
    ("e4m3fnuz", "float8_e4m3fnuz", "nearest_even"),
    ("e5m2fnuz", "float8_e5m2fnuz", "nearest_even"),
    ("e4m3b11fnuz", "float8_e4m3b11fnuz", "nearest_even"),
    ("e4m3ieee", "float8_e4m3", "nearest_even"),
    ("e3m4ieee", "float8_e3m4", "nearest_even"),
    ("e8m0", "float8_e8m0fnu", "nearest_away"),
    ("bf16", "bfloat16", "nearest_even"),
]
WITHOUT_NAN = ("e2m1", "e2m3", "e3m2")


def compare_type(np, rotoscale, tally, ours, dtype, rounding):
    size = {"e2m1": 4, "e2m3": 6, "e3m2": 6, "bf16": 16}.get(ours, 8)
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    codes = np.arange(2**size, dtype=unsigned)
    values = codes.view(dtype).astype(np.float32)
    tally.bits(f"decode {ours}", rotoscale.decode(codes, ours), values, codes)

    def compare(name, x):
        # state_differences covers the NaN that is left out here.
        x = x[~np.isnan(x.astype(np.float32))] if ours in WITHOUT_NAN else x
        if ours == "e8m0":
            wide = x.astype(np.float64)
            x = x[(wide > 0) & ~((wide > 2.0**-127) & (wide < 1.5 * 2.0**-127)) | np.isnan(wide)]
        theirs = x.astype(dtype).view(unsigned)
        if x.dtype == np.float64:  # ml_dtypes rounds FP64 to FP32 first
            x = x.astype(np.float32)
        found = rotoscale.encode(x, ours, rounding=rounding, overflow="to_inf")
        tally.equal(f"{name} to {ours}", found, theirs, x)

    import ml_dtypes
    every = np.arange(2**16, dtype=np.uint16)
    near = oracle.ties(np, values)
    compare("half", every.view(np.float16))
    if ours != "bf16":
        compare("bfloat16", every.view(ml_dtypes.bfloat16))
    compare("float", np.concatenate([oracle.fp32_samples(np), near]))
    wide = near.astype(np.float64)
    compare("double", np.concatenate([wide, np.nextafter(wide, np.inf), np.nextafter(wide, -np.inf)]))


def state_differences(np, rotoscale, tally):
    import ml_dtypes

    def state(what, x, ours, dtype, our_code, their_code, rounding="nearest_even", overflow="to_inf"):
        x = np.array([x], np.uint32).view(np.float32) if isinstance(x, int) else np.array([x], np.float32)
        tally.equal(f"{what}, ours", rotoscale.encode(x, ours, rounding=rounding, overflow=overflow), [our_code])
        tally.equal(f"{what}, ml_dtypes", x.astype(dtype).view(np.uint8), [their_code])

    nan, minus_nan = 0x7FC00000, 0xFFC00000
    for ours, dtype, largest, sign in (("e2m1", ml_dtypes.float4_e2m1fn, 0x7, 0x8),
                                       ("e2m3", ml_dtypes.float6_e2m3fn, 0x1F, 0x20),
                                       ("e3m2", ml_dtypes.float6_e3m2fn, 0x1F, 0x20)):
        state(f"NaN to {ours}", nan, ours, dtype, largest, sign)
        state(f"-NaN to {ours}", minus_nan, ours, dtype, sign | largest, 0)
    # ml_dtypes rounds FP64 twice, through FP32. This library rounds once.
    above = np.array([np.nextafter(0.25, 1)])
    tally.equal("just above a tie to e2m1, ours", rotoscale.encode(above, "e2m1"), [1])
    tally.equal("just above a tie to e2m1, ml_dtypes", above.astype(ml_dtypes.float4_e2m1fn).view(np.uint8), [0])
    scale = ml_dtypes.float8_e8m0fnu
    # FP32 numbers between 2^-127 and the midpoint to 2^-126, all subnormal: ml_dtypes gives 2^-126.
    low = np.arange(0x400001, 0x600000, 1021, dtype=np.uint32).view(np.float32)
    ours = rotoscale.encode(low, "e8m0", rounding="nearest_away")
    tally.equal("subnormals to e8m0, ours", ours, np.zeros_like(ours))
    tally.equal("subnormals to e8m0, ml_dtypes", low.astype(scale).view(np.uint8), np.ones_like(ours))
    state("zero to e8m0", 0.0, "e8m0", scale, 0x00, 0xFF, "nearest_away")
    state("-1 to e8m0", -1.0, "e8m0", scale, 0x00, 0xFF, "nearest_away")
    # ml_dtypes cannot saturate. This library does by default.
    state("480 to e4m3", 480.0, "e4m3", ml_dtypes.float8_e4m3fn, 0x7E, 0x7F, overflow="saturate")
    state("61440 to e5m2", 61440.0, "e5m2", ml_dtypes.float8_e5m2, 0x7B, 0x7C, overflow="saturate")
    state("Inf to e4m3", float("inf"), "e4m3", ml_dtypes.float8_e4m3fn, 0x7E, 0x7F, overflow="saturate")


def main():
    np, rotoscale, ml_dtypes = oracle.require("numpy", "rotoscale", "ml_dtypes")
    tally = oracle.Tally(np)
    with np.errstate(all="ignore"):
        for ours, theirs, rounding in TYPES:
            compare_type(np, rotoscale, tally, ours, getattr(ml_dtypes, theirs), rounding)
        state_differences(np, rotoscale, tally)
    return tally.finish(f"ml_dtypes {ml_dtypes.__version__}")


if __name__ == "__main__":
    sys.exit(main())
