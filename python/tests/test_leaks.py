# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""No call keeps a reference or memory, also if it refuses. tests/python.sh --sanitizers adds the leak sanitizer."""
import ctypes
import gc
import glob
import os
import sys
import threading

import numpy as np
import pytest

import rotoscale

X = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)


def calls():
    """Each computing function, and refusals of it."""
    q = rotoscale.quantize(X, preset="te_rocm")
    codes = rotoscale.encode(X, "e4m3")
    dump = {"x": X, "codes": q.codes, "scales": q.scales}
    return [
        lambda: rotoscale.quantize(X), lambda: rotoscale.quantize(X.astype(np.float64), axis=0),
        lambda: rotoscale.quantize(X, format="nvfp4", encode_factor="amax"),
        lambda: rotoscale.quantize(X[:, :33]), lambda: rotoscale.quantize([1.0] * 32),
        lambda: rotoscale.quantize(X, format="mxfp5"), lambda: rotoscale.quantize(X.astype(np.int32)),
        q.dequantize, lambda: q.sqnr(X), lambda: q.sqnr(X[:1]), lambda: q.to("nvidia_scale_128x4").dequantize(),
        lambda: rotoscale.dequantize(q.codes[:, 1:], q.scales),
        lambda: rotoscale.gemm(q, q, contract="fp32_blockwise"), lambda: rotoscale.gemm(X, X[:, :32]),
        lambda: rotoscale.gemm(codes, codes, contract="exact", format_a="e4m3", format_b="e4m3"),
        lambda: rotoscale.gemm(X, X, contract="none"), lambda: rotoscale.gemm(X, X, c=X),
        lambda: rotoscale.decode(codes, "e4m3"), lambda: rotoscale.decode(codes, "e4m9"),
        lambda: rotoscale.unpack(rotoscale.pack(codes & 15, "e2m1"), "e2m1"), lambda: rotoscale.pack(codes, "e2m1"),
        lambda: rotoscale.unswizzle(rotoscale.swizzle(codes, "aiter_scale"), "aiter_scale", codes.shape),
        lambda: rotoscale.swizzle(codes, "none"), lambda: rotoscale.rotate(X, 16), lambda: rotoscale.rotate(X, 12),
        lambda: rotoscale.explain(X[0], presets=["ocp"]),
        lambda: rotoscale.validate(dump, preset="ocp", format="mxfp4"), lambda: rotoscale.validate(dump, preset="none"),
    ]


def run(call):
    try:
        call()
    except (TypeError, ValueError):
        pass


def growth(call):
    """Blocks of memory that Python has more of after 100 calls."""
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(100):
        run(call)
    gc.collect()
    return sys.getallocatedblocks() - before


@pytest.mark.parametrize("number", range(len(calls())))
def test_a_call_keeps_nothing(number):
    call = calls()[number]
    run(call)
    references = sys.getrefcount(X)
    # Caches of the interpreter grow in early rounds. A leak grows in all of them, by a block per call.
    assert any(growth(call) < 50 for _ in range(8))
    assert sys.getrefcount(X) == references


def test_threads_keep_nothing():
    def work():
        for call in calls():
            run(call)

    threads = [threading.Thread(target=work) for _ in range(4)]
    gc.collect()
    references = sys.getrefcount(X)
    for count, thread in enumerate(threads):
        thread.start()
        rotoscale.set_threads(count + 1)
    for thread in threads:
        thread.join()
    rotoscale.set_threads(0)
    gc.collect()
    assert sys.getrefcount(X) == references


def test_the_leak_sanitizer_finds_nothing():
    check = getattr(ctypes.CDLL(None), "__lsan_do_recoverable_leak_check", None)
    if check is None:
        pytest.skip("not under the sanitizer")
    for call in calls():
        run(call)
    gc.collect()
    check()
    reports = "".join(open(name, encoding="utf-8", errors="replace").read()
                      for name in glob.glob(os.environ["ROTOSCALE_SANITIZER_LOG"] + "*"))
    ours = [leak for leak in reports.split("\n\n") if "leak of" in leak and "/_core." in leak]
    assert not ours, "\n\n".join(ours)
