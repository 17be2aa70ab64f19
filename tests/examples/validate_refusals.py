#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""rotoscale-validate on quantizers' dumps: bad arguments, tensors and files, each refused in one line.

usage: validate_refusals.py VALIDATE [TEST...]
"""
import math
import os
import re
import struct
import subprocess
import sys
import unittest

from safetensors_bytes import load, npy, write_safetensors
from validate_quantizer import VALIDATE, Program


class BadInput(Program):
    def test_arguments(self):
        path = self.make("--quantizer", "te_rocm")
        known = ["--quantizer", "te_rocm", "--input", path]
        self.refused("did you mean 'te_rocm'", "--quantizer", "te_rock", "--input", path)
        self.refused("--rotation: 24 is no power of two", *known, "--rotation", 24)
        narrow = self.make("--quantizer", "ocp", "--k", 96, name="96.safetensors")
        self.refused("--rotation: K = 96 is no multiple of 64", "--quantizer", "ocp", "--input", narrow, "--rotation",
                     64)
        self.refused("--signs: 'zz' is no number of hexadecimal", *known, "--signs", "zz")
        self.refused("--scale-padding: '256' is neither", *known, "--scale-padding", 256)
        self.refused("--format: 'mxfp5' .* 'mxfp", *known, "--format", "mxfp5")
        self.refused("tensor 'scales': 512 bytes are not what placement aiter_scale takes", *known, "--scale-placement",
                     "aiter_scale")
        self.refused("--tensor: 'x' is not NAME=FILE.npy", "--quantizer", "te_rocm", "--tensor", "x")
        self.refused("standard input: ", "--quantizer", "te_rocm", "--input", "-", stdin=b"abc")
        self.refused("/dev/zero", "--quantizer", "te_rocm", "--input", "/dev/zero")
        self.refused("/dev/zero", "--quantizer", "te_rocm", "--tensor", "x=/dev/zero")
        os.mkfifo(self.folder / "fifo")  # opening must not wait for a writer
        self.refused("fifo: cannot read: a pipe", "--quantizer", "te_rocm", "--input", "fifo")
        self.refused("a directory, not a regular file", "--quantizer", "te_rocm", "--input", self.folder)

    def test_sizes_that_fit_no_placement(self):
        path = self.make("--quantizer", "primus", "--block-rows", 32, "--m", 64, "--k", 64)
        for verb in (["--quantizer", "primus"], ["--identify"]):
            self.refused(r"tensor 'scales': 4 bytes are not what .* takes for 64 x 64; squares of 32 x 32 .*: "
                         r"--block-rows 32", *verb, "--input", path)
        self.refused("tensor 'codes': 2048 bytes are not what any placement takes", "--identify", "--input", path,
                     "--format", "mxfp6_e2m3")
        tensors = load(self.make("--quantizer", "te_rocm", "--axis", "both"))
        for tensor in ("codes", "codes_t", "scales", "scales_t"):
            dtype, _, data = tensors[tensor]
            write_safetensors(path, {**tensors, tensor: (dtype, [len(data) - 1], data[:-1])})
            self.refused(f"tensor '{tensor}': .* bytes are not what any placement takes", "--identify", "--input", path,
                         "--format", "mxfp4")

    def test_shapes_that_contradict_the_source(self):
        """A matrix of the right size with other rows than the source. Flat tensors, and tensors with x's leading
        extents, are valid."""
        path = self.make("--quantizer", "te_rocm", "--axis", "both", "--m", 128)
        known, good = ["--quantizer", "te_rocm", "--input", path], load(path)
        for tensor, shape, wrong, also in (("codes", [128, 128], [64, 256], [8, 16, 128]),
                                           ("codes_t", [256, 64], [64, 256], [16, 16, 64]),
                                           ("scales", [128, 8], [8, 128], [2, 64, 8]),
                                           ("scales_t", [256, 4], [4, 256], [256, 2, 2])):
            dtype, _, data = good[tensor]
            self.assertEqual(good[tensor][1], shape)
            for right in (also, [len(data)], [1, *shape]):
                write_safetensors(path, {**good, tensor: (dtype, right, data)})
                self.same(*known)
            write_safetensors(path, {**good, tensor: (dtype, wrong, data)})
            hint = "; it is column_major's" if wrong == shape[::-1] else ""
            said = re.escape(f"shape {wrong} is not {shape}, which {'256 x 128' if '_t' in tensor else '128 x 256'} "
                             f"elements have in "
                             f"placement row_major{hint}")
            self.refused(rf"tensor '{tensor}': {said}$", *known)
            (self.folder / "tensor.npy").write_bytes(npy("|u1", wrong, data))
            write_safetensors(path, {name: t for name, t in good.items() if name != tensor})
            self.refused(rf"tensor '{tensor}': {said}$", *known, "--tensor", f"{tensor}=tensor.npy")
            # Other placements may fit, so identification continues without row_major.
            write_safetensors(path, {**good, tensor: (dtype, wrong, data)})
            found, done = self.ranking("--quantizer", "te_rocm", "--input", path, "--sample", 32)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertRegex(done.stdout, rf"\Anote: {tensor}: {said}\n")

    def test_factors_and_maxima_that_are_none(self):
        """Names the tensor, not an absent option. An option that replaces the tensor is accepted."""
        for preset, blocks in (("fp8", "fp8_e4m3"), ("nvidia", "nvfp4")):
            path = self.make("--quantizer", preset, "--format", blocks)
            good = load(path)
            known = ["--quantizer", preset, "--input", path]
            for tensor, values in (("factor", (-1, 0, math.inf, math.nan)), ("amax", (-4, math.nan))):
                for value in values:
                    write_safetensors(path, {**good, tensor: ("F32", [1], struct.pack("<f", value))})
                    for verb in ([], ["--identify"]):
                        self.refused(rf"dump.safetensors: tensor '{tensor}': ", *known, *verb)
            write_safetensors(path, {**good, "factor": ("F32", [1], struct.pack("<f", math.nan))})
            (factor,) = struct.unpack("<f", good["factor"][2])
            self.same(*known, "--factor", factor)
        path = self.make("--quantizer", "ocp")
        write_safetensors(path, {**load(path), "amax": ("F32", [1], struct.pack("<f", 1))})
        self.refused("tensor 'amax': scales of powers of two have none", "--quantizer", "ocp", "--input", path)

    def test_what_a_refusal_names(self):
        self.refused("^rotoscale-validate: --signs: is empty$", "--identify", "--signs", "")  # as by an unset variable
        self.refused("--quantizer: no preset 'te_rocm' for these blocks; they have .*nvidia", "--quantizer", "te_rocm",
                     "--format", "nvfp4", "--make-case", "new.safetensors")
        path = self.make("--quantizer", "nvidia", "--m", 96, "--k", 96, "--scale-placement", "nvidia_scale_128x4")
        self.refused("tensor 'scales': 512 bytes are not what placement row_major takes for 96 x 96; it has the size "
                     "of nvidia_scale_128x4", "--quantizer", "nvidia", "--input", path)
        write_safetensors(path, {"x": ("BF16", [64, 1], bytes(128)), "codes": ("U8", [64, 1], bytes(64)),
                                 "scales": ("U8", [64, 1], bytes(64))})
        self.refused("tensor 'x': 64 x 1 along the blocks are no whole blocks", "--quantizer", "ocp", "--input", path)

    def test_lost_output(self):
        """An unreadable file gives the exit code of bad input, not the one of identical."""
        path = self.make("--quantizer", "te_rocm")
        for arguments in (["--list-models"], ["--list-quantizers"], ["--help"], ["--identify", "--input", path],
                          ["--quantizer", "te_rocm", "--input", path]):
            for lost in (">/dev/full", ">&-"):
                done = subprocess.run(["sh", "-c", f'exec "$@" {lost}', "sh", str(VALIDATE), *map(str, arguments)],
                                      capture_output=True, text=True, timeout=120)
                self.assertEqual((done.returncode, done.stderr),
                                 (2, "rotoscale-validate: standard output: cannot write\n"), arguments)

    def test_dtypes_that_say_otherwise_than_the_format(self):
        path = self.make("--quantizer", "ocp", "--format", "mxfp8_e4m3")
        known = ["--quantizer", "ocp", "--input", path]
        self.refused("tensor 'codes': type F8_E4M3 holds no elements of e5m2", *known, "--format", "mxfp8_e5m2")
        good = load(path)
        for name, dtype, pattern in (("scales", "F8_E4M3", "type F8_E4M3 holds no scales of e8m0"),
                                     ("codes", "I16", "type I16 is none of U8, I8, F4, F6_E2M3"),
                                     ("scales", "BF16", "type BF16 is none of F8_E8M0, F8_E4M3, U8, I8$")):
            _, (rows, columns), data = good[name]
            shape = [rows, columns // 2] if "16" in dtype else [rows, columns]
            write_safetensors(path, {**good, name: (dtype, shape, data)})
            self.refused(f"tensor '{name}': {pattern}", *known, "--format", "mxfp8_e4m3")
        path = self.make("--quantizer", "nvidia", "--format", "nvfp4")
        good = load(path)
        write_safetensors(path, {**good, "scales": ("F8_E8M0", *good["scales"][1:])})
        self.refused("tensor 'scales': type F8_E8M0 holds no scales of ue4m3", "--quantizer", "nvidia", "--input", path,
                     "--format", "nvfp4")

    def test_tensors(self):
        path = self.make("--quantizer", "te_rocm")
        good = load(path)
        known = ["--quantizer", "te_rocm", "--input", path]

        def broken(pattern, **changed):
            tensors = {**good, **changed}
            write_safetensors(path, {n: t for n, t in tensors.items() if t is not None})
            self.refused(pattern, *known)

        broken("tensor 'x': missing", x=None)
        broken("tensor 'codes': missing", codes=None)
        broken("tensor 'scales': missing: e2m1 needs scales", scales=None)
        broken("tensor 'x': type I8", x=("I8", [2, 32], bytes(64)))
        broken("tensor 'codes': is empty", codes=("U8", [0], b""))
        broken("tensor 'scales': is empty", scales=("U8", [0], b""))
        broken("tensor 'code_t': not part .* 'codes_t'", code_t=good["codes"])
        broken("tensor 'scales': 16 bytes are not", scales=("U8", [16], bytes(16)))
        broken("tensor 'codes': 4 bytes are not those of", codes=("U8", [4], bytes(4)))
        broken("tensor 'factor': is not one number", factor=("F32", [2], bytes(8)))
        broken("tensor 'random': is not U32", random=("U32", [2], bytes(8)))
        broken("tensor 'x': 1 x 33 .* no whole blocks", x=("BF16", [1, 33], bytes(66)),
               codes=("F4", [1, 34], bytes(17)), scales=("U8", [2], bytes(2)))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + [word for name in sys.argv[2:] for word in ("-k", name)])
