# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Microsoft's microxcaling, the emulation library of the paper on microscaling formats (arXiv:2310.10537), against
rotoscale.quantize.

- MX blocks of all six element types, with floor scales
- rounding to nearest with halves away ('nearest', its default), to even, and toward zero ('floor')

microxcaling has no codes, so values are compared by their bits. It is a checkout of microsoft/microxcaling on
PYTHONPATH. Skips (77) without rotoscale, it or torch.
"""

import sys

import oracle

FORMATS = {"mxfp4": "fp4_e2m1", "mxfp6_e2m3": "fp6_e2m3", "mxfp6_e3m2": "fp6_e3m2", "mxfp8_e4m3": "fp8_e4m3",
           "mxfp8_e5m2": "fp8_e5m2", "mxint8": "int8"}
ROUNDINGS = {"nearest_away": "nearest", "nearest_even": "even", "toward_zero": "floor"}


def matrices(np):
    """FP32 matrices whose blocks contain all magnitudes, ties, and zeros."""
    rng = np.random.default_rng(2)
    normal = rng.standard_normal((512, 256)).astype(np.float32)
    normal *= np.exp2(rng.integers(-90, 100, (512, 1))).astype(np.float32)
    yield "normal", normal
    # Few mantissa bits, so that values and ties of every type are frequent.
    coarse = rng.integers(-2047, 2048, (512, 256)) * np.exp2(rng.integers(-14, 15, (512, 256)))
    yield "coarse", coarse.astype(np.float32)
    sparse = np.where(rng.random((64, 256)) < 0.9, 0, coarse[:64]).astype(np.float32)
    sparse[0] = 0
    sparse[1, ::2] = -0.0
    yield "sparse", sparse


def theirs(torch, mx_ops, x, name, rounding):
    out = mx_ops._quantize_mx(torch.from_numpy(x), 8, name, axes=[-1], block_size=32, round=rounding)
    return out.numpy()


def state_differences(np, torch, mx_ops, rotoscale, tally):
    def both(x, ours, name, rounding):
        x = np.array([x + [0.0] * (32 - len(x))], np.float32)
        values = oracle.blocks(rotoscale, x, ours, "ocp", rounding)[2]
        return values[0], theirs(torch, mx_ops, x, name, ROUNDINGS[rounding])[0]

    def state(what, pair, our_values, their_values):
        our_values, their_values = (np.array(v, np.float32) for v in (our_values, their_values))
        tally.bits(f"{what}, ours", pair[0][: our_values.size], our_values)
        tally.bits(f"{what}, microxcaling", pair[1][: their_values.size], their_values)

    # The sign of zero: a -0 of the source becomes +0; a negative number that rounds to zero becomes -0, even in INT8.
    zeros = [4.0, -0.0, -0.03125]
    state("-0 of E2M1", both(zeros, "mxfp4", "fp4_e2m1", "nearest_even"), [4.0, -0.0, -0.0], [4.0, 0.0, -0.0])
    state("-0 of INT8", both([4.0, -0.0, -0.0078125], "mxint8", "int8", "nearest_even"), [4.0, 0.0, 0.0],
          [4.0, 0.0, -0.0])
    # Ties in microxcaling's default rounding: away from zero. This library's default is to even.
    tie = [127 / 64, 2.5 / 64, -2.5 / 64]
    state("ties of INT8, to even", both(tie, "mxint8", "int8", "nearest_even"), [127 / 64, 2 / 64, -2 / 64],
          [127 / 64, 2 / 64, -2 / 64])
    state("ties of INT8, away", both(tie, "mxint8", "int8", "nearest_away"), [127 / 64, 3 / 64, -3 / 64],
          [127 / 64, 3 / 64, -3 / 64])
    # microxcaling computes floor(log2(amax)) in FP32. Just below a large power of two it rounds up, one binade too
    # high.
    below = float(np.nextafter(np.float32(2.0**100), np.float32(0)))
    state("amax below 2^100", both([below, 2.0**97.0 * 1.25], "mxfp4", "fp4_e2m1", "nearest_even"),
          [6 * 2.0**97, 2.0**97], [4 * 2.0**98, 2.0**97])
    # Equal: NaN or Inf make the scale, and so all values, NaN. (microxcaling calls the other values undefined.)
    for special in (np.nan, np.inf):
        state(f"{special}", both([1.0, special, 2.0], "mxfp4", "fp4_e2m1", "nearest_even"), [np.nan] * 3, [np.nan] * 3)


def main():
    np, rotoscale, torch, mx_ops = oracle.require("numpy", "rotoscale", "torch", "mx.mx_ops")
    tally = oracle.Tally(np)
    torch.set_num_threads(1)
    for kind, x in matrices(np):
        for ours, name in FORMATS.items():
            for our_rounding, their_rounding in ROUNDINGS.items():
                values = oracle.blocks(rotoscale, x, ours, "ocp", our_rounding)[2]
                # Adding +0 turns -0 into +0. state_differences covers its sign.
                expected = theirs(torch, mx_ops, x, name, their_rounding) + np.float32(0)
                tally.bits(f"{ours} {our_rounding} {kind}", values + np.float32(0), expected, x)
    state_differences(np, torch, mx_ops, rotoscale, tally)
    return tally.finish("microxcaling")


if __name__ == "__main__":
    sys.exit(main())
