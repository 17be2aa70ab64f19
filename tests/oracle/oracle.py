# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Shared code of the Python oracles, which call the package rotoscale or programs."""

import importlib
import os
import shutil
import sys

SKIPPED = 77


def missing(*modules):
    """The name of the first module that cannot be imported, or None."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError:
            return name
    return None


def require(*modules):
    """Imports modules, or ends the script as skipped. ROTOSCALE_ORACLE_PYTHON may name an interpreter that has them."""
    # Removed: a wrapper may start an interpreter of another name, which must not start it again.
    python = os.environ.pop("ROTOSCALE_ORACLE_PYTHON", "")
    if python:
        path = shutil.which(python)
        if path is None:
            sys.exit(f"ROTOSCALE_ORACLE_PYTHON: there is no program '{python}'")
        os.execv(path, [path, *sys.argv])
    lacks = missing(*modules)
    if lacks:
        print(f"skipped: {lacks} is not installed (ROTOSCALE_ORACLE_PYTHON)")
        sys.exit(SKIPPED)
    found = [importlib.import_module(name) for name in modules]
    return found[0] if len(found) == 1 else found


def blocks(rotoscale, matrix, block_format, preset, rounding="nearest_even"):
    """(packed codes, scales, FP32 values) of a float32 matrix."""
    q = rotoscale.quantize(matrix, format=block_format, preset=preset, rounding=rounding)
    return q.codes, q.scales, q.dequantize()


def unpack(numpy, packed, bits):
    """Codes of `bits` bits from rows of bytes: a little-endian stream of bits without gaps."""
    stream = numpy.unpackbits(numpy.ascontiguousarray(packed), axis=-1, bitorder="little")
    weights = (1 << numpy.arange(bits)).astype(numpy.uint8)
    return (stream.reshape(*packed.shape[:-1], -1, bits) * weights).sum(-1, dtype=numpy.uint8)


class Tally:
    """Counts comparisons. Every difference is an error, and the first few are printed."""

    def __init__(self, numpy):
        self.np, self.compared, self.different = numpy, 0, 0

    def equal(self, what, ours, theirs, inputs=None):
        ours, theirs = self.np.asarray(ours).ravel(), self.np.asarray(theirs).ravel()
        assert ours.shape == theirs.shape, f"{what}: {ours.shape} against {theirs.shape}"
        at = self.np.flatnonzero(ours != theirs)
        self.compared += ours.size
        self.different += at.size
        for i in at[:5]:
            source = "" if inputs is None else f" of {self.np.asarray(inputs).ravel()[i]!r}"
            print(f"{what}[{i}]{source}: ours {ours[i]!r}, theirs {theirs[i]!r}")

    def bits(self, what, ours, theirs, inputs=None):
        """Compares floating-point arrays by their bits. Any NaN equals any other."""
        ours, theirs = self.np.ascontiguousarray(ours).ravel(), self.np.ascontiguousarray(theirs).ravel()
        both = self.np.isnan(ours) & self.np.isnan(theirs)
        ours, theirs = (self.np.where(both, 0, x.view(f"u{x.itemsize}")) for x in (ours, theirs))
        self.equal(what, ours, theirs, inputs)

    def finish(self, name):
        print(f"{name}: {self.compared} results compared, {self.different} differ")
        return 1 if self.different else 0


def fp32_samples(numpy, stride=4093):
    """FP32 numbers without NaN: every stride-th bit pattern."""
    x = numpy.arange(0, 2**32, stride, dtype=numpy.uint64).astype(numpy.uint32).view(numpy.float32)
    return x[~numpy.isnan(x)]


def ties(numpy, values):
    """The finite `values`, the midpoints between them and above the largest, and their FP32 neighbours."""
    v = numpy.unique(numpy.abs(values[numpy.isfinite(values)]).astype(numpy.float64))
    step = v[-1] - v[-2]
    v = numpy.concatenate([v, (v[1:] + v[:-1]) / 2, [v[0] / 2, v[-1] + step / 2, v[-1] + step, v[-1] * 4]])
    with numpy.errstate(over="ignore"):
        x = v.astype(numpy.float32)
    x = x[numpy.isfinite(x)]
    infinity = numpy.float32(numpy.inf)
    x = numpy.concatenate([x, numpy.nextafter(x, infinity), numpy.nextafter(x, -infinity)])
    return numpy.concatenate([x, -x])
