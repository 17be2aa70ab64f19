#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""rotoscale-validate on quantizers' dumps: right ones, a planted fault of each kind, identification, bad input.

usage: validate_quantizer.py VALIDATE [TEST...]
"""
import json
import math
import os
import re
import resource
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from safetensors_bytes import load, write_safetensors

VALIDATE = Path(sys.argv[1]).resolve()
PRESETS = ("te_rocm", "primus", "aiter_even", "aiter_round_up", "aiter_round_down", "aiter_ceil", "torchao_floor",
           "torchao_rceil", "torchao_even", "torchao_ceil", "nvidia", "ocp")


def floats_of_bf16(data):
    return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]


def to_bf16(value):
    """FP32 rounded to nearest even, in its upper 16 bits."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    if value != value:
        return struct.pack("<H", bits >> 16 | 64)
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def turned(shape, data):
    """The bytes of a matrix's transpose."""
    rows, cols = shape
    width = len(data) // (rows * cols)
    elements = [data[i:i + width] for i in range(0, len(data), width)]
    return [cols, rows], b"".join(elements[r * cols + c] for c in range(cols) for r in range(rows))


def npy(descr, shape, data):
    header = repr({"descr": descr, "fortran_order": False, "shape": tuple(shape)})
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


class Program(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def call(self, *arguments, stdin=b""):
        done = subprocess.run([str(VALIDATE), *map(str, arguments)], capture_output=True, cwd=self.folder, input=stdin,
                              timeout=120)
        done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
        return done

    def make(self, *arguments, name="dump.safetensors", result=True):
        extra = ["--with-d"] if result else []
        done = self.call("--make-case", name, *arguments, *extra)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        return self.folder / name

    def same(self, *arguments):
        done = self.call(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout

    def differs(self, pattern, *arguments):
        done = self.call(*arguments)
        self.assertEqual((done.returncode, done.stderr), (1, ""), done.stdout)
        self.assertRegex(done.stdout, pattern)
        return done.stdout

    def refused(self, pattern, *arguments, stdin=b""):
        done = self.call(*arguments, stdin=stdin)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertRegex(done.stderr, pattern)

    def change(self, path, tensor, edit):
        tensors = load(path)
        dtype, shape, data = tensors[tensor]
        tensors[tensor] = (dtype, shape, bytes(edit(bytearray(data))))
        write_safetensors(path, tensors)

    def turn(self, path):
        """A dump along rows becomes one along columns: these of a source are the rows of its transpose."""
        tensors = load(path)
        dtype, *x = tensors["x"]
        tensors["x"] = (dtype, *turned(*x))
        for name in ("codes", "scales"):
            tensors[name + "_t"] = tensors.pop(name)
        write_safetensors(path, tensors)

    def ranking(self, *arguments):
        done = self.call("--identify", *arguments)
        self.assertEqual(done.stderr, "")
        return re.findall(r"^  (\d+)  (.*)$", done.stdout, re.M), done


class RightDumps(Program):
    def test_every_preset_and_format(self):
        for preset in PRESETS:
            for blocks in ("mxfp4", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8"):
                path = self.make("--quantizer", preset, "--format", blocks, "--m", 16)
                self.assertRegex(self.same("--quantizer", preset, "--format", blocks, "--input", path),
                                 r"\Acodes: 0 of 128 blocks differ \(0 scales, 0 of 4096 codes\)\n\Z")

    def test_placements(self):
        for codes in ("row_major", "aiter_data_16x16", "column_major"):
            for scales in ("aiter_scale", "hipblaslt_scale_32x8", "nvidia_scale_128x4", "column_major"):
                placed = ["--code-placement", codes, "--scale-placement", scales]
                path = self.make("--quantizer", "te_rocm", *placed)
                self.same("--quantizer", "te_rocm", "--input", path, *placed)
                found, done = self.ranking("--input", path)
                self.assertEqual(done.returncode, 0)
                names = {"column_major": "scales transposed"}
                self.assertIn(names.get(scales, "scales in " + scales), found[0][1])
                if codes != "row_major":
                    self.assertIn("codes in " + codes, found[0][1])

    def test_nvfp4_and_its_factor(self):
        path = self.make("--quantizer", "nvidia", "--format", "nvfp4")
        self.same("--quantizer", "nvidia", "--input", path)
        self.change(path, "factor", lambda b: struct.pack("<f", struct.unpack("<f", b)[0] * 2))
        self.differs("scale: ", "--quantizer", "nvidia", "--input", path)

    def test_fp8_with_one_factor(self):
        path = self.make("--quantizer", "fp8", "--format", "fp8_e5m2", "--factor", 0.25)
        self.same("--quantizer", "fp8", "--input", path)
        tensors = load(path)
        values = [abs(v) for v in floats_of_bf16(tensors["x"][2])]
        tensors["amax"] = ("F32", [1], struct.pack("<f", max(v for v in values if math.isfinite(v))))
        tensors["codes_t"] = ("F8_E5M2", *turned(*tensors["codes"][1:]))
        write_safetensors(path, tensors)
        self.same("--quantizer", "fp8", "--input", path)
        self.change(path, "amax", lambda b: struct.pack("<f", 1.0))
        self.differs(r"amax: \S+ expected, 1 written", "--quantizer", "fp8", "--input", path)

    def test_fp8_without_its_factor(self):
        """It is that of the amax, the tensor's or the source's, or 1, and which one is said."""
        made = ["--quantizer", "fp8", "--format", "fp8_e4m3", "--factor"]
        x = floats_of_bf16(load(self.make(*made, 1, result=False))["x"][2])
        amax = max(abs(v) for v in x if math.isfinite(v))
        of_amax = struct.unpack("<f", struct.pack("<f", 448 / amax))[0]
        for factor, more, of in ((of_amax, {"amax": ("F32", [1], struct.pack("<f", amax))}, "tensor 'amax'"),
                                 (of_amax, {}, "the source's amax"), (1, {}, "no amax")):
            path = self.make(*made, repr(factor))
            tensors = load(path)
            write_safetensors(path, {**{name: tensors[name] for name in ("codes",)}, **more, "x": tensors["x"]})
            if of != "the source's amax":
                said = self.same("--quantizer", "fp8", "--input", path)
                self.assertTrue(said.startswith("note: there is no factor: %.9g is assumed" % factor), said)
            found, done = self.ranking("--input", path)
            self.assertEqual((done.returncode, found[0][1]), (0, f"fp8 (factor {factor:.9g} assumed, of {of})"), done.stdout)
            self.assertTrue(all(" assumed, of " in text for _, text in found), done.stdout)

    def test_fnuz(self):
        """What gfx942's kernels write: codes of another bias, whose 0x80 is NaN."""
        for blocks, dtype in (("fp8_e4m3fnuz", "F8_E4M3FNUZ"), ("fp8_e5m2fnuz", "F8_E5M2FNUZ"), ("e4m3fnuz", "F8_E4M3FNUZ")):
            preset = "fp8" if blocks.startswith("fp8") else "te_rocm"
            made = ["--quantizer", preset, "--format", blocks, *(["--factor", 0.25] if preset == "fp8" else [])]
            path = self.make(*made)
            known = ["--quantizer", preset, "--input", path]
            self.same(*known)
            self.assertEqual(self.ranking(*known)[0][0], ("512", preset))
            tensors = load(path)
            self.assertEqual(tensors["codes"][0], dtype)
            codes = tensors["codes"][2]
            zero = codes.index(0)
            self.change(path, "codes", lambda b: b[:zero] + b"\x80" + b[zero + 1:])
            out = self.differs("codes: 1 of ", *known)
            self.assertIn("code: NaN: 1\n", out)
            self.assertRegex(out, rf"code 0x00 \(0\) expected, 0x80 \(-?nan\) written at byte {zero}: code: NaN")
            # One is twice the other, so OCP's reading of the bytes is not right.
            tensors["codes"] = ("U8", *tensors["codes"][1:])
            write_safetensors(path, tensors)
            self.same(*known, "--format", blocks)
            self.differs("differ", *known, "--format", blocks.replace("fnuz", ""))
        self.refused("--format: 'fp8_e4m3fnu' is no format; did you mean 'fp8_e4m3fnuz'", *known, "--format", "fp8_e4m3fnu")
        self.refused(r"--format: 'e4m3b11fnuz' is no format; did you mean 'e4m3fnuz'", *known, "--format", "e4m3b11fnuz")

    def test_square_blocks_and_both_orientations(self):
        square = ["--quantizer", "primus", "--block-rows", 32]
        path = self.make(*square, "--m", 64, "--k", 64)
        self.same(*square, "--input", path)
        tensors = load(path)
        codes, scales = tensors["codes"][2], tensors["scales"][2]
        nibbles = [codes[i // 2] >> 4 * (i % 2) & 15 for i in range(64 * 64)]
        turned = [nibbles[r * 64 + c] for c in range(64) for r in range(64)]
        tensors["codes_t"] = ("U8", [64, 32], bytes(turned[i] | turned[i + 1] << 4 for i in range(0, 4096, 2)))
        tensors["scales_t"] = ("U8", [2, 2], bytes([scales[0], scales[2], scales[1], scales[3]]))
        write_safetensors(path, tensors)
        self.assertIn("codes_t: 0 of 4 blocks differ", self.same(*square, "--input", path))

    def test_stochastic_rounding_by_words_and_by_distribution(self):
        seeded = ["--quantizer", "primus", "--rounding", "stochastic", "--random-seed", 7, "--random-stream", 3]
        path = self.make(*seeded)
        self.same(*seeded, "--input", path)
        self.differs("code: rounding", *seeded[:-1], 4, "--input", path)
        unknown = ["--quantizer", "primus", "--rounding", "stochastic", "--input", path]
        self.assertRegex(self.same(*unknown), r"\Acodes: 0 of 512 blocks differ \(0 scales, 0 of 16384 codes\)\n"
                         r"  rounding by unknown words: \d{5} elements lie between two numbers\n  away from zero, .*\n\Z")

    def test_stochastic_rounding_is_identified(self):
        seeded = ["--quantizer", "primus", "--rounding", "stochastic", "--random-seed", 7]
        path = self.make(*seeded)
        found, done = self.ranking("--input", path)
        self.assertEqual((done.returncode, found[0]), (0, ("512", "primus, but rounding stochastic by unknown words")))
        found, done = self.ranking("--input", path, "--random-seed", 7, "--rounding", "stochastic")
        self.assertEqual((done.returncode, found[0]), (0, ("512", "primus, but rounding stochastic")))
        found, done = self.ranking("--input", path, "--random-seed", 8, "--rounding", "stochastic")
        self.assertEqual(done.returncode, 1)
        self.assertLess(int(found[0][0]), 400)
        tensors = load(self.make("--quantizer", "te_rocm", "--rounding", "toward_zero"))
        rows, cols = tensors["x"][1]
        tensors["random"] = ("U32", [rows, cols], bytes(4 * rows * cols))  # words of zero never round up
        write_safetensors(path, tensors)
        found, done = self.ranking("--input", path)
        self.assertEqual({text for count, text in found if count == "512"},
                         {"te_rocm, but rounding stochastic", "te_rocm, but rounding toward_zero"})

    def test_columns(self):
        for preset, blocks in (("te_rocm", "mxfp4"), ("primus", "mxfp8_e5m2"), ("nvidia", "nvfp4")):
            path = self.make("--quantizer", preset, "--format", blocks)
            self.turn(path)
            known = ["--quantizer", preset, "--input", path]
            self.assertRegex(self.same(*known), r"\Acodes_t: 0 of \d+ blocks differ")
            self.assertIn(preset, self.ranking(*known)[0][0][1])
            self.change(path, "codes_t", lambda b: b[:700] + bytes([b[700] ^ 1]) + b[701:])
            self.differs(r"codes_t: 1 of \d+ blocks differ[^$]*code 0x\w\w \(\S+\) expected, .* written at byte 700: ", *known)

    def test_repeated_scales_and_padding_of_square_blocks(self):
        square = ["--quantizer", "primus", "--block-rows", 32, "--scale-placement", "nvidia_scale_128x4"]
        path = self.make(*square, "--m", 160, "--k", 64)
        self.same(*square, "--input", path, "--scale-padding", 127)
        self.differs("padding of scales: 502 of 502 bytes", *square, "--input", path, "--scale-padding", 0)
        square = square[:4]
        path = self.make(*square, "--m", 64, "--k", 64)
        tensors = load(path)
        scales = tensors["scales"][2]
        for row in (0, 13, 32, 63):  # once for each row, as GEMM kernels read it
            repeated = bytearray(b"".join(scales[r // 32 * 2:r // 32 * 2 + 2] for r in range(64)))
            tensors["scales"] = ("U8", [64, 2], bytes(repeated))
            write_safetensors(path, tensors)
            self.same(*square, "--input", path)
            repeated[2 * row + 1] ^= 1
            tensors["scales"] = ("U8", [64, 2], bytes(repeated))
            write_safetensors(path, tensors)
            out = self.differs("codes: ", *square, "--input", path)
            if row % 32 != 0:
                self.assertIn("scale: repeated for another row: 1\n", out)
            else:
                self.assertIn(f"written at byte {2 * row + 1}\n", out)

    def test_words_in_the_file(self):
        path = self.make("--quantizer", "primus", "--rounding", "toward_zero")
        tensors = load(path)
        rows, cols = tensors["x"][1]
        tensors["random"] = ("U32", [rows, cols], bytes(4 * rows * cols))  # words of zero never round up
        write_safetensors(path, tensors)
        self.same("--quantizer", "primus", "--rounding", "stochastic", "--input", path)
        words = [struct.pack("<I", (r * cols + c) * 2654435761 % 2**32) for r in range(rows) for c in range(cols)]
        seeded = ["--quantizer", "primus", "--rounding", "stochastic"]
        (self.folder / "random.npy").write_bytes(npy("<u4", [rows, cols], tensors.pop("random")[2]))
        write_safetensors(path, tensors)
        self.same(*seeded, "--input", path, "--tensor", "random=random.npy")
        (self.folder / "random.npy").write_bytes(npy("<u4", [rows, cols], b"".join(words)))
        self.differs("code: rounding", *seeded, "--input", path, "--tensor", "random=random.npy")
        (self.folder / "random.npy").write_bytes(npy("<u4", [cols, rows], b"".join(words)))
        self.refused(re.escape(f"tensor 'random': shape [{cols}, {rows}] is not [{rows}, {cols}], as x lies"), *seeded, "--input", path,
                     "--tensor", "random=random.npy")
        (self.folder / "random.npy").write_bytes(npy("<u2", [rows, cols], bytes(2 * rows * cols)))
        self.refused("tensor 'random': is not U32", *seeded, "--input", path, "--tensor", "random=random.npy")
        tensors["random"] = ("U32", [rows, cols], b"\xff" * (4 * rows * cols))
        write_safetensors(path, tensors)
        self.differs("code: rounding", "--quantizer", "primus", "--rounding", "stochastic", "--input", path)
        # Nor does a search read them that looks for no stochastic rounding.
        fixed = ["--identify", "--input", path, "--rounding"]
        self.refused("dump.safetensors: tensor 'random': give --rounding stochastic$", "--quantizer", "primus", "--input", path)
        self.refused("dump.safetensors: tensor 'random': give --rounding stochastic, or no --rounding$", *fixed, "nearest_even")
        for arguments in (fixed[:-1], (*fixed, "stochastic"), (*fixed, "nearest_even", "--quantizer", "primus")):
            self.assertIn(self.call(*arguments).returncode, (0, 1), arguments)

    def test_a_code_a_byte(self):
        path = self.make("--quantizer", "te_rocm")
        tensors = load(path)
        _, (rows, columns), data = tensors["codes"]
        tensors["codes"] = ("U8", [rows, 2 * columns], bytes(n for byte in data for n in (byte & 15, byte >> 4)))
        write_safetensors(path, tensors)
        self.same("--quantizer", "te_rocm", "--format", "mxfp4", "--input", path)

    def test_bytes_of_int8(self):
        """As torch.int8 and numpy.int8 are stored: bytes, as those of uint8."""
        for preset, blocks in (("te_rocm", "mxfp4"), ("ocp", "mxfp8_e4m3"), ("ocp", "mxint8"), ("nvidia", "nvfp4")):
            path = self.make("--quantizer", preset, "--format", blocks)
            good = load(path)
            write_safetensors(path, {**good, **{name: ("I8", *good[name][1:]) for name in ("codes", "scales")}})
            known = ["--quantizer", preset, "--input", path]
            self.same(*known, "--format", blocks)
            if blocks in ("mxfp4", "nvfp4"):  # two codes a byte are no others'
                self.same(*known)
            else:
                self.refused("tensor 'codes': type I8 leaves the format open: give --format", *known)

    def test_other_bits_of_a_code_a_byte(self):
        """Every byte is compared: a code has 4 bits, or 6, and those above are 0."""
        for blocks, bits, above in (("mxfp4", 4, 0x30), ("mxfp6_e2m3", 6, 0x80)):
            path = self.make("--quantizer", "ocp", "--format", blocks)
            tensors = load(path)
            packed = int.from_bytes(tensors["codes"][2], "little")
            rows, columns = tensors["x"][1]
            codes = bytearray(packed >> bits * i & (1 << bits) - 1 for i in range(rows * columns))
            known = ["--format", blocks, "--input", path]
            write_safetensors(path, {**tensors, "codes": ("U8", [rows, columns], bytes(codes))})
            self.same("--quantizer", "ocp", *known)
            codes[777] |= above
            write_safetensors(path, {**tensors, "codes": ("U8", [rows, columns], bytes(codes))})
            for verb in (["--quantizer", "ocp"], ["--identify"]):
                self.refused(f"tensor 'codes': byte 777 is {codes[777]}, which is no code of {bits} bits", *verb, *known)

    def test_a_code_a_byte_of_a_transpose(self):
        """Elements change places, not pairs of them: of extents that differ, and of a square, which no shape tells."""
        for rows, columns in ((64, 256), (64, 64)):
            path = self.make("--quantizer", "ocp", "--m", rows, "--k", columns)
            tensors = load(path)
            codes = bytes(n for byte in tensors["codes"][2] for n in (byte & 15, byte >> 4))
            shape, data = turned([rows, columns], codes)
            known = ["--quantizer", "ocp", "--format", "mxfp4", "--code-placement", "column_major", "--input", path]
            for held in (shape, [rows * columns]):
                write_safetensors(path, {**tensors, "codes": ("U8", held, data)})
                self.same(*known)
                found, done = self.ranking("--format", "mxfp4", "--input", path)
                self.assertEqual((done.returncode, found[0][1]), (0, "torchao_floor, but codes in column_major"), done.stdout)
            data = data[:5 * rows + 3] + bytes([data[5 * rows + 3] ^ 1]) + data[5 * rows + 4:]
            write_safetensors(path, {**tensors, "codes": ("U8", shape, data)})
            self.differs(rf"\[3, 5\] .* written at byte {5 * rows + 3}: code", *known)

    def test_npy_files_and_a_pipe(self):
        path = self.make("--quantizer", "te_rocm")
        tensors = load(path)
        arguments = []
        for name, descr in (("x", "|V2"), ("codes", "|u1"), ("scales", "|u1")):
            (self.folder / f"{name}.npy").write_bytes(npy(descr, *tensors[name][1:]))
            arguments += ["--tensor", f"{name}={name}.npy"]
        self.same("--quantizer", "te_rocm", *arguments)
        done = self.call("--quantizer", "te_rocm", "--input", "-", stdin=path.read_bytes())
        self.assertEqual((done.returncode, done.stderr), (0, ""))


    def test_formats_are_spelled_one_way(self):
        """By the library's name or by that of safetensors, in every option."""
        path = self.make("--quantizer", "te_rocm")
        for name in ("mxfp4", "e2m1", "F4"):
            self.same("--quantizer", "te_rocm", "--format", name, "--input", path)
        for name in ("fp32", "F32", "bf16", "BF16"):
            self.same("--quantizer", "te_rocm", "--source", name, "--input", path)
        for name in ("mxfp8_e4m3", "e4m3", "F8_E4M3"):
            path = self.make("--quantizer", "te_rocm", "--format", name)
            self.same("--quantizer", "te_rocm", "--input", path)
        path = self.make("--quantizer", "fp8", "--format", "fp8_e4m3")
        tensors = load(path)
        tensors["codes"] = ("U8", *tensors["codes"][1:])
        write_safetensors(path, tensors)
        for name in ("fp8_e4m3", "e4m3", "F8_E4M3"):
            self.same("--quantizer", "fp8", "--format", name, "--input", path)
        self.refused("--source: 'e4m3' is none of fp32, fp16, bf16", "--quantizer", "fp8", "--source", "e4m3", "--input",
                     path)


class UnknownWords(Program):
    """Stochastic rounding by its distribution: two codes are right where a value lies between numbers, and all else is compared
    as under any rounding."""

    def setUp(self):
        super().setUp()
        self.path = self.make("--quantizer", "te_rocm", "--rounding", "stochastic", "--random-seed", 7, "--axis", "both")
        self.good = load(self.path)
        self.check = ["--quantizer", "te_rocm", "--rounding", "stochastic", "--input", self.path]

    def changed(self, tensor, data):
        write_safetensors(self.path, {**self.good, tensor: (self.good[tensor][0], [len(data)], bytes(data))})

    def kinds(self, out):
        return re.findall(r"^  ([a-z]+: [^:\n]+|nibble order \(blocks\)): (\d+)$", out, re.M)

    def test_the_distribution(self):
        self.assertEqual(self.same(*self.check).count(" blocks differ (0 scales, 0 of 16384 codes)\n  rounding by unknown words: "),
                         2)
        self.same(*self.check, "--report", "report.json")
        report = json.loads((self.folder / "report.json").read_text())
        self.assertNotIn("identical", report)
        for side in ("codes", "codes_t"):
            self.assertEqual((report["accepted"], report[side]["codes_different"], len(report[side]["deviations"])), (True, 0, 9))
            self.assertGreater(report[side]["rounded"], 5000)
        up = self.make("--quantizer", "te_rocm", "--rounding", "up", name="up.safetensors")
        self.assertIn("codes: 0 of 512 blocks differ", self.differs("limit 5", *self.check[:-1], up))
        nearest = self.make("--quantizer", "te_rocm", name="nearest.safetensors")
        out = self.differs("limit 5", *self.check[:-1], nearest, "--report", "report.json")
        self.assertIn("codes: 0 of 512 blocks differ", out)
        self.assertNotIn("first:", out)
        self.assertFalse(json.loads((self.folder / "report.json").read_text())["accepted"])

    def test_a_code_that_is_neither_neighbour(self):
        for tensor in ("codes", "codes_t"):
            codes, width = self.good[tensor][2], self.good[tensor][1][1]
            at = next(i for i in range(1000, len(codes)) if codes[i] & 7 in (1, 2) and codes[i] & 8 == 0)
            for bits, kind in ((4, "code: neither neighbour"), (8, "code: sign")):
                self.changed(tensor, codes[:at] + bytes([codes[at] ^ bits]) + codes[at + 1:])
                out = self.differs(rf"\b{tensor}: 1 of 512 blocks differ \(0 scales, 1 of 16384 codes\)", *self.check)
                self.assertEqual(self.kinds(out), [(kind, "1")])
                row, k = at // width, 2 * (at % width)
                self.assertRegex(out, rf"\n  {tensor}, rows {row}\.\.{row}, elements {k // 32 * 32}\.\.{k // 32 * 32 + 31} along the "
                                 rf"block\n  source of row {row}: ( \S+){{32}}\n  after the rotation: ( \S+){{32}}\n"
                                 r"  amax \S+ \(0x[0-9a-f]{8}\) of \[\d+, \d+\], rule even, policy te_rocm\n"
                                 r"  scale byte 0x(\w\w) \(\S+\) expected, 0x\3 \(\S+\) written at byte \d+\n"
                                 rf"    \[{row}, {k}\] \S+: code 0x0\d \(\S+\) or 0x0\d \(\S+\) expected, "
                                 rf"0x0{codes[at] & 15 ^ bits:x} \(\S+\) written at byte {at}: {kind}\n")

    def test_words_of_fewer_bits(self):
        """They round up as often as the fraction's first bits say, in which a word of 32 bits has more."""
        bits = ["--random-bits", 2]
        path = self.make("--quantizer", "primus", "--m", 512, "--x-format", "F32", "--rounding", "stochastic", "--random-seed", 3, *bits)
        known = ["--quantizer", "primus", "--rounding", "stochastic", "--input", path]
        self.assertIn("rounding by unknown words", self.same(*known, *bits))
        self.assertIn("(limit 5)", self.differs(r"\Acodes: 0 of 4096 blocks differ", *known))
        found, done = self.ranking("--input", path, *bits)
        self.assertEqual((done.returncode, found[0][1]), (0, "primus, but rounding stochastic by unknown words"), done.stdout)
        self.assertRegex(self.differs(".", "--identify", "--input", path),
                         "\nall elements are neighbours under primus, .*; their frequencies are not those of 32-bit words")
        # Asked for, it is compared with the whole dump, and why it is not accepted is said.
        self.assertRegex(self.differs(".", "--identify", "--rounding", "stochastic", "--input", path),
                         "\nbut not all of the dump:\n.*\n    rounding by unknown words: .*\n.*deviation in standard errors")

    def test_scales_are_not_random(self):
        for tensor in ("scales", "scales_t"):
            scales = self.good[tensor][2]
            at = next(i for i in range(14, len(scales)) if 100 < scales[i] < 126)
            for step in (-1, 1):
                self.changed(tensor, scales[:at] + bytes([scales[at] + step]) + scales[at + 1:])
                out = self.differs(r"1 of 512 blocks differ \(1 scales,", *self.check)
                self.assertEqual(self.kinds(out), [("scale: off by one", "1")])
            self.assertIn(f"scale byte 0x{scales[at]:02x}", out)
            self.assertIn("all elements are right under the expected scale\n", out)
        self.changed("scales", self.good["scales"][2])
        out = self.differs("scale: ", *self.check, "--policy", "primus")
        self.assertEqual({kind for kind, _ in self.kinds(out)}, {"scale: policy of a block of zeros"})

    def test_signs_of_zero_nibbles_and_layouts(self):
        codes = self.good["codes"][2]
        zeros = bytes(byte ^ 8 if byte & 7 == 0 else byte for byte in codes)
        self.changed("codes", zeros)
        self.assertEqual([kind for kind, _ in self.kinds(self.differs("codes: ", *self.check))], ["code: sign of zero"])
        self.changed("codes", bytes((byte << 4 | byte >> 4) & 255 for byte in codes))
        self.differs(r"nibble order \(blocks\): \d{3}", *self.check)
        for option, placed, unit in (("--code-placement", "codes in aiter_data_16x16", "codes"),
                                     ("--scale-placement", "scales in nvidia_scale_128x4", "bytes")):
            path = self.make("--quantizer", "te_rocm", "--rounding", "stochastic", "--random-seed", 7, "--m", 128, option,
                             placed.split()[-1])
            out = self.differs("blocks differ", *self.check[:-1], path)
            found = re.findall(r"layout: (.*): (\d+)\n", out)
            self.assertEqual([name for name, _ in found], [f"{placed} ({unit})"])
            if unit == "codes":  # all that differs under the right scales, of which the right order leaves nothing
                self.assertIn(f"(0 scales, {found[0][1]} of 32768 codes)", out)
            self.same(*self.check[:-1], path, option, placed.split()[-1])

    def test_words_of_columns_lie_as_the_source_does(self):
        """Words of zeros and of ones, by what a seed's words did to each element, make a dump's rows, and its transpose's columns."""
        toward_zero = load(self.make("--quantizer", "te_rocm", "--rounding", "toward_zero", name="zero.safetensors"))
        path = self.make("--quantizer", "te_rocm", "--rounding", "stochastic", "--random-seed", 7)
        tensors = load(path)
        self.assertEqual(tensors["x"], toward_zero["x"])
        words = b"".join(b"\xff" * 4 if (a ^ b) >> shift & 15 else bytes(4)
                         for a, b in zip(tensors["codes"][2], toward_zero["codes"][2]) for shift in (0, 4))
        shape = tensors["x"][1]
        write_safetensors(path, {**tensors, "random": ("U32", shape, words)})
        self.same(*self.check[:-1], path)
        self.turn(path)
        tensors = load(path)
        write_safetensors(path, {**tensors, "random": ("U32", *turned(shape, words))})
        self.assertRegex(self.same(*self.check[:-1], path), r"\Acodes_t: 0 of 512 blocks differ")
        write_safetensors(path, {**tensors, "random": ("U32", shape[::-1], words)})
        self.differs("code: rounding", *self.check[:-1], path)

    def test_amax_padding_and_repeated_scales(self):
        seeded = ["--rounding", "stochastic", "--random-seed", 7]
        path = self.make("--quantizer", "nvidia", "--format", "nvfp4", *seeded)
        tensors = load(path)
        finite = [abs(v) for v in floats_of_bf16(tensors["x"][2]) if v == v]  # Inf is the amax, which leaves a factor of 1
        for amax in (max(finite), 1.0):
            write_safetensors(path, {**tensors, "amax": ("F32", [1], struct.pack("<f", amax))})
            call = ["--quantizer", "nvidia", *seeded[:2], "--input", path]
            self.same(*call) if amax != 1.0 else self.differs(r"\Aamax: inf expected, 1 written\n", *call)
        placed = ["--scale-placement", "nvidia_scale_128x4"]
        path = self.make("--quantizer", "te_rocm", *seeded, *placed)
        known = [*self.check[:-1], path, *placed, "--scale-padding"]
        self.same(*known, 127)
        self.differs("padding of scales: 512 of 512 bytes", *known, 0)
        path = self.make("--quantizer", "primus", "--block-rows", 32, *seeded, "--k", 64)
        tensors = load(path)
        scales = tensors["scales"][2]
        repeated = bytearray(b"".join(scales[r // 32 * 2:r // 32 * 2 + 2] for r in range(64)))
        known = ["--quantizer", "primus", "--block-rows", 32, *seeded[:2], "--input", path]
        for wrong in (False, True):
            repeated[2 * 13 + 1] ^= wrong
            write_safetensors(path, {**tensors, "scales": ("U8", [64, 2], bytes(repeated))})
            self.differs("scale: repeated for another row: 1\n", *known) if wrong else self.same(*known)


class SourceTypes(Program):
    """x of F32 and F16, along rows and columns, with and without a rotation; elsewhere it is BF16."""

    KINDS = (("F32", "f"), ("F16", "e"))

    def both_ways(self, path, check):
        for turn in (False, True):
            if turn:
                self.turn(path)
            with self.subTest(columns=turn):
                check()

    def test_right_dumps(self):
        for dtype, letter in self.KINDS:
            for preset, blocks in (("te_rocm", "mxfp4"), ("primus", "mxfp8_e5m2"), ("nvidia", "nvfp4")):
                path = self.make("--quantizer", preset, "--format", blocks, "--x-format", dtype)
                tensors = load(path)
                self.assertEqual(tensors["x"][0], dtype)
                known = ["--quantizer", preset, "--input", path]
                self.both_ways(path, lambda: self.same(*known))
                # The same numbers, and those that the preset makes of them first, are as good in a wider type.
                values = struct.unpack(f"<{len(tensors['x'][2]) // struct.calcsize(letter)}{letter}", tensors["x"][2])
                shape = tensors["x"][1]
                write_safetensors(path, {**tensors, "x": ("F32", shape, struct.pack(f"<{len(values)}f", *values))})
                self.same(*known)
                write_safetensors(path, {**tensors, "x": ("BF16", shape, b"".join(map(to_bf16, values)))})
                (self.same if preset == "te_rocm" else lambda *a: self.differs("blocks differ", *a))(*known)

    def test_the_preset_is_identified(self):
        for dtype, _ in self.KINDS:
            for preset in ("te_rocm", "primus", "torchao_rceil"):
                path = self.make("--quantizer", preset, "--x-format", dtype)

                def check():
                    found, done = self.ranking("--input", path)
                    self.assertEqual((done.returncode, found[0]), (0, ("512", preset)))
                    self.assertLess(int(found[1][0]), 512, done.stdout)
                self.both_ways(path, check)

    def test_what_the_source_was_rounded_to_is_identified(self):
        for dtype, preset, rounded, text in (("F32", "te_rocm", "fp32", "source taken as it is"),
                                             ("F32", "te_rocm", "fp16", "source rounded to FP16"),
                                             ("F32", "primus", "bf16", "source rounded to BF16"),
                                             ("F32", "primus", "fp16", "source rounded to FP16"),
                                             ("F16", "te_rocm", "fp16", "source taken as it is"),
                                             ("F16", "primus", "bf16", "source rounded to BF16"),
                                             ("BF16", "primus", "fp16", "source rounded to FP16")):
            path = self.make("--quantizer", preset, "--x-format", dtype, "--source", rounded)

            def check():
                known = ["--quantizer", preset, "--input", path]
                self.same(*known, "--source", rounded)
                self.differs("blocks differ", *known)
                found, done = self.ranking(*known)
                self.assertEqual((done.returncode, found[0]), (0, ("512", f"{preset}, but {text}")))
                self.assertLess(int(found[1][0]), 512, done.stdout)
            with self.subTest(dtype=dtype, preset=preset, rounded=rounded):
                self.both_ways(path, check)
        for dtype, rounded in (("F16", "fp16"), ("BF16", "bf16")):  # its own type: nothing to name
            path = self.make("--quantizer", "primus", "--x-format", dtype, "--source", rounded)
            self.assertEqual(self.ranking("--quantizer", "primus", "--input", path)[0][0], ("512", "primus"))


class BothOrientations(Program):
    """Codes and scales along rows and along columns of one source, as a fused launch writes them."""

    LAUNCHES = (("te_rocm", [], []),
                ("te_rocm", [], ["--code-placement", "aiter_data_16x16", "--scale-placement", "aiter_scale"]),
                ("te_rocm", ["--format", "mxfp8_e4m3"], ["--scale-placement", "nvidia_scale_128x4"]),
                ("aiter_even", ["--rotation", 16], ["--code-placement", "aiter_data_16x16", "--scale-placement", "aiter_scale"]),
                ("aiter_round_up", ["--rotation", 32, "--x-format", "F32"], ["--scale-placement", "nvidia_scale_128x4"]))

    def make_both(self, preset, changes, placed, **name):
        path = self.make("--quantizer", preset, *changes, *placed, "--axis", "both", "--m", 256, **name)
        return path, ["--quantizer", preset, "--input", path, *(c for c in changes if c not in ("--x-format", "F32")), *placed]

    def test_right_dumps(self):
        for preset, changes, placed in self.LAUNCHES:
            path, known = self.make_both(preset, changes, placed)
            with self.subTest(preset=preset, placed=placed):
                self.assertRegex(self.same(*known), r"\Acodes: 0 of 2048 blocks differ \(0 scales, 0 of 65536 codes\)\n"
                                                    r"codes_t: 0 of 2048 blocks differ \(0 scales, 0 of 65536 codes\)\n\Z")
                # The columns are the rows of the source's transpose.
                tensors = load(path)
                dtype, *x = tensors["x"]
                alone = {"x": (dtype, *turned(*x)), "codes": tensors["codes_t"], "scales": tensors["scales_t"]}
                write_safetensors(path, alone)
                self.assertRegex(self.same(*known), r"\Acodes: 0 of 2048 blocks differ")

    def test_identification(self):
        for preset, changes, placed in self.LAUNCHES:
            path, _ = self.make_both(preset, changes, placed)
            found, done = self.ranking("--quantizer", preset, "--input", path)
            orders = dict(zip(placed[::2], placed[1::2]))
            named = [f"rotation of {changes[1]} points"] if "--rotation" in changes else []
            named += [f"{what}s in {orders[option]}" for what, option in (("scale", "--scale-placement"), ("code", "--code-placement"))
                      if option in orders]
            with self.subTest(preset=preset, placed=placed):
                text = preset + ", but " * bool(named) + ", ".join(named)
                self.assertEqual((done.returncode, found[0]), (0, ("512", text)), done.stdout)
                # Two of the scales' orders differ in their padding alone, of which these extents have none.
                same = text.replace("in aiter_scale", "in hipblaslt_scale_32x8")
                self.assertEqual({t for count, t in found if count == "512"}, {text, same}, done.stdout)

    def test_faults_in_columns(self):
        placed = ["--code-placement", "aiter_data_16x16", "--scale-placement", "aiter_scale"]
        path, known = self.make_both("te_rocm", [], placed)
        good = load(path)
        plain = load(self.make_both("te_rocm", [], [], name="plain.safetensors")[0])
        scales = good["scales_t"][2]
        at = next(i for i in range(100, len(scales)) if 110 < scales[i] < 126)

        def replaced(data, index, value):
            return data[:index] + bytes([value]) + data[index + 1:]

        swapped = bytes((byte << 4 | byte >> 4) & 255 for byte in good["codes_t"][2])
        for tensor, data, patterns in (
                ("codes_t", replaced(good["codes_t"][2], 700, good["codes_t"][2][700] ^ 1),
                 (r"codes_t: 1 of 2048 blocks differ \(0 scales, 1 of 65536 codes\)", "written at byte 700: code: ")),
                ("scales_t", replaced(scales, at, scales[at] + 1),
                 (r"codes_t: 1 of 2048 blocks differ \(1 scales,", "scale: off by one: 1\n", f"written at byte {at}\n")),
                ("codes_t", swapped, (r"nibble order \(blocks\): \d{3}",)),
                ("codes_t", plain["codes_t"][2], (r"layout: codes in row_major \(bytes\): \d{4}",)),
                ("scales_t", plain["scales_t"][2], (r"layout: scales in row_major \(bytes\): \d{3}",))):
            write_safetensors(path, {**good, tensor: ("U8", [len(data)], data)})
            with self.subTest(patterns[0]):
                out = self.differs(patterns[0], *known)
                self.assertIn("codes: 0 of 2048 blocks differ (0 scales, 0 of 65536 codes)\ncodes_t: ", out)
                self.assertRegex(out, r"\n  codes_t, rows \d+\.\.\d+, elements ")
                for pattern in patterns[1:]:
                    self.assertRegex(out, pattern)

    def test_arguments(self):
        self.refused("--m: 96 is no multiple of 64", "--quantizer", "ocp", "--make-case", "new", "--axis", "both", "--m", 96)
        self.refused("--m: 48 is no multiple of 32", "--quantizer", "ocp", "--make-case", "new", "--axis", "column", "--m", 48)
        self.refused("--k: 48 is no multiple of 32", "--quantizer", "ocp", "--make-case", "new", "--axis", "both", "--k", 48)
        self.refused("--rotation: 24 is no power of two", "--quantizer", "ocp", "--make-case", "new", "--rotation", 24)
        self.refused("--factor: ", "--quantizer", "nvidia", "--format", "nvfp4", "--make-case", "new", "--factor", -1)
        for option in ("--code-placement", "--scale-placement"):  # 16 rows of 32 bytes a tile
            self.refused(f"{option}: not defined for these extents", "--quantizer", "ocp", "--make-case", "new", "--with-d", "--m", 8,
                         option, "aiter_data_16x16")
        self.refused("--m, --k: a tensor of 1099511627776 elements, the limit is 268435456", "--quantizer", "ocp", "--make-case",
                     "new", "--m", 1 << 20, "--k", 1 << 20)
        self.refused("--axis: ", "--quantizer", "ocp", "--make-case", "new", "--axis", "up")
        path = self.make("--quantizer", "ocp", "--axis", "column", "--k", 40)  # of no whole blocks along rows
        self.assertEqual(sorted(load(path)), ["codes_t", "scales_t", "x"])
        self.assertRegex(self.same("--quantizer", "ocp", "--input", path), r"\Acodes_t: 0 of 80 blocks differ")


class PlantedFaults(Program):
    """Each fault is named by its kind, or by --identify as the change that explains the dump."""

    def setUp(self):
        super().setUp()
        self.path = self.make("--quantizer", "te_rocm")
        self.check = ["--quantizer", "te_rocm", "--input", self.path]

    def test_a_scale_off_by_one(self):
        scales = load(self.path)["scales"][2]
        at = next(i for i in range(14, len(scales)) if 100 < scales[i] < 140)
        self.change(self.path, "scales", lambda b: b[:at] + bytes([b[at] + 1]) + b[at + 1:])
        out = self.differs(r"scale: off by one: 1\n", *self.check)
        self.assertIn("1 of 512 blocks differ (1 scales,", out)
        self.assertRegex(out, r"amax \S+ \(0x[0-9a-f]{8}\) of \[\d+, \d+\], rule even, policy te_rocm")
        self.assertIn(f"scale byte 0x{scales[at]:02x}", out)

    def test_an_element(self):
        self.change(self.path, "codes", lambda b: b[:1000] + bytes([b[1000] ^ 1]) + b[1001:])
        out = self.differs(r"codes: 1 of 512 blocks differ \(0 scales, 1 of 16384 codes\)", *self.check)
        self.assertRegex(out, r"\[7, 208\] \S+: code 0x\w\w \(\S+\) expected, 0x\w\w \(\S+\) written at byte 1000: code: ")
        # All of the block, so that the element is among what is shown.
        x = floats_of_bf16(load(self.path)["x"][2])[7 * 256 + 192:7 * 256 + 224]
        self.assertIn("\n  source of row 7:  " + " ".join(f"{v:.6g}" for v in x) + "\n  after the rotation:  ", out)
        rotated = re.search(r"after the rotation:  (.*)\n", out).group(1).split(" ")
        self.assertEqual((len(rotated), rotated[16]), (32, f"{float(re.search(r'208. (.*?): code', out).group(1)):.6g}"))

    def test_the_row_of_a_square_block_and_a_column_are_shown(self):
        path = self.make("--quantizer", "te_rocm", "--block-rows", 32, "--axis", "both", "--m", 128)
        good = load(path)
        x = floats_of_bf16(good["x"][2])
        for tensor, width, element in (("codes", 256, lambda r, k: x[r * 256 + k]), ("codes_t", 128, lambda r, k: x[k * 256 + r])):
            row, k = 45, 70
            at = (row * width + k) // 2
            write_safetensors(path, good)
            self.change(path, tensor, lambda b: b[:at] + bytes([b[at] ^ 1]) + b[at + 1:])
            out = self.differs(rf"{tensor}: 1 of 32 blocks differ", "--quantizer", "te_rocm", "--block-rows", 32, "--input", path)
            values = " ".join(f"{element(row, i):.6g}" for i in range(64, 96))
            self.assertIn(f"\n  {tensor}, rows 32..63, elements 64..95 along the block\n  source of row 45:  {values}\n  after the rotation:  ", out)
            rotated = re.search(r"after the rotation:  (.*)\n", out).group(1).split(" ")
            self.assertEqual(rotated[6], f"{float(re.search(r'45, 70. (.*?): code', out).group(1)):.6g}")

    def test_bits_of_a_nan_are_shown(self):
        tensors = load(self.path)
        block = next(i for i in range(len(tensors["scales"][2]))
                     if sum(v != v for v in floats_of_bf16(tensors["x"][2][64 * i:64 * i + 64])) == 1)
        self.change(self.path, "scales", lambda b: b[:block] + bytes([b[block] ^ 1]) + b[block + 1:])
        out = self.differs("1 of 512", *self.check)
        self.assertRegex(out, r"source of row \d+: .* nan \(0x7fc00000\) .*\n  after the rotation: .* nan \(0x")

    def test_ties_away_from_zero(self):
        path = self.make("--quantizer", "te_rocm", "--rounding", "nearest_away")
        out = self.differs(r"code: tie: \d+", "--quantizer", "te_rocm", "--input", path)
        self.assertNotIn("code: rounding", out)
        self.assertEqual(self.ranking("--quantizer", "te_rocm", "--input", path)[0][0][1],
                         "te_rocm, but rounding nearest_away")

    def test_the_sign_of_zero(self):
        def positive(b):
            halves = [[n if n != 8 else 0 for n in (byte & 15, byte >> 4)] for byte in b]
            return bytes(low | high << 4 for low, high in halves)
        self.change(self.path, "codes", positive)
        out = self.differs(r"code: sign of zero: \d+", *self.check)
        self.assertEqual(re.findall(r"^  (code: [a-z ]+): \d+", out, re.M), ["code: sign of zero"])

    def test_policies(self):
        for policy, kinds in (("ocp", {"NaN", "Inf", "a block of zeros"}), ("primus", {"a block of zeros"})):
            out = self.differs("policy of", *self.check, "--policy", policy)
            self.assertEqual(set(re.findall(r"scale: policy of (.*):", out)), kinds)

    def test_what_the_command_line_says_narrows_the_search(self):
        """Without --quantizer no field is one to start from: those that are given are those that were used."""
        path = self.make("--quantizer", "te_rocm")
        self.assertEqual(self.ranking("--input", path)[0][0], ("512", "te_rocm"))
        for option, right, wrong, said in (("--scale-rule", "even", "floor", "scale rule floor"), ("--rotation", 16, 0, "no rotation"),
                                           ("--policy", "te_rocm", "ocp", None), ("--source", "bf16", "fp16", "source rounded to FP16"),
                                           ("--rounding", "nearest_even", "toward_zero", "rounding toward_zero")):
            with self.subTest(option=option):
                found, done = self.ranking("--input", path, option, right)
                self.assertEqual((done.returncode, found[0]), (0, ("512", "te_rocm")), done.stdout)
                found, done = self.ranking("--input", path, option, wrong)
                self.assertEqual(done.returncode, 1, done.stdout)
                if said and option in ("--rounding", "--source"):
                    self.assertEqual({said in text for _, text in found}, {True}, done.stdout)
                self.assertNotIn(("512", "te_rocm"), found)

    def test_changes_that_identify_names(self):
        for arguments, text in (
                (["--nibbles", "high"], "even element in the high nibble"),
                (["--rotation", 0], "no rotation"),
                (["--scale-rule", "floor"], "scale rule floor"),
                (["--scale-rule", "rceil"], "scale rule rceil"),
                (["--policy", "aiter"], "policy aiter"),
                (["--rounding", "toward_zero"], "rounding toward_zero"),
                (["--scale-placement", "column_major"], "scales transposed")):
            path = self.make("--quantizer", "te_rocm", *arguments, name="changed.safetensors")
            self.differs("blocks differ", "--quantizer", "te_rocm", "--input", path)
            found, done = self.ranking("--quantizer", "te_rocm", "--input", path)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertEqual(found[0][1], "te_rocm, but " + text)

    def test_a_missing_factor_of_the_rotation(self):
        # Without 1/4 every number of every block is four times as large: the same codes, scales two higher.
        self.change(self.path, "scales", lambda b: bytes(s + 2 if 100 < s < 150 and s != 127 else s for s in b))
        found, _ = self.ranking("--quantizer", "te_rocm", "--input", self.path)
        self.assertEqual(found[0][1], "te_rocm, but rotation without its factor 1/sqrt(16)")

    def test_every_other_kind_of_a_scale_or_a_code(self):
        path = self.make("--quantizer", "te_rocm", "--format", "mxfp8_e4m3")
        good = load(path)
        x, codes, scales = floats_of_bf16(good["x"][2]), good["codes"][2], good["scales"][2]
        ordinary = next(i for i, c in enumerate(codes) if 0x20 < c & 0x7F < 0x60 and 100 < scales[i // 32] < 140
                        and all(map(math.isfinite, x[i // 32 * 32:i // 32 * 32 + 32])))
        nan = next(i for i, v in enumerate(x) if math.isnan(v))
        code = codes[ordinary]
        for kind, tensor, at, value in (
                ("scale: NaN", "scales", ordinary // 32, 0xFF),
                ("scale: other", "scales", ordinary // 32, scales[ordinary // 32] + 9),
                ("code: sign", "codes", ordinary, code ^ 0x80),
                ("code: NaN", "codes", ordinary, 0x7F),
                ("code: other", "codes", ordinary, code ^ 0x10),
                ("code: rounding", "codes", ordinary, code + 1),
                ("code: policy of NaN", "codes", nan, codes[nan] ^ 1)):
            with self.subTest(kind):
                write_safetensors(path, good)
                self.change(path, tensor, lambda b: b[:at] + bytes([value]) + b[at + 1:])
                out = self.differs("1 of 512 blocks differ", "--quantizer", "te_rocm", "--input", path)
                self.assertEqual(re.findall(r"^  ((?:scale|code): [^:]+): (\d+)$", out, re.M), [(kind, "1")])

    def test_swapped_nibbles_are_a_kind(self):
        self.change(self.path, "codes", lambda b: bytes((byte << 4 | byte >> 4) & 255 for byte in b))
        self.differs(r"nibble order \(blocks\): \d{3}", *self.check)

    def test_layouts_are_a_kind(self):
        for arguments, placed in ((["--code-placement", "column_major"], "codes in column_major"),
                                  (["--code-placement", "aiter_data_16x16"], "codes in aiter_data_16x16"),
                                  (["--scale-placement", "nvidia_scale_128x4"], "scales in nvidia_scale_128x4"),
                                  (["--scale-placement", "column_major"], "scales in column_major")):
            path = self.make("--quantizer", "te_rocm", "--m", 128, *arguments, name="placed.safetensors")
            out = self.differs("blocks differ", "--quantizer", "te_rocm", "--input", path)
            self.assertEqual(re.findall(r"layout: (.*) \(bytes\): \d+\n", out), [placed])
        out = self.differs("scale: ", *self.check, "--scale-rule", "floor")
        self.assertNotIn("layout", out)

    def test_identify_tries_every_placement_for_codes_too(self):
        path = self.make("--quantizer", "te_rocm", "--m", 256, "--k", 512)

        def in_tiles_of_128x4(codes):
            rows, columns, out = 256, 256, bytearray(256 * 256)
            for r in range(rows):
                for c in range(columns):
                    tile = (r // 128 * (columns // 4) + c // 4) * 512
                    out[tile + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = codes[r * columns + c]
            return bytes(out)

        self.change(path, "codes", in_tiles_of_128x4)
        out = self.same("--identify", "--input", path)
        self.assertIn("\n  512  te_rocm, but codes in nvidia_scale_128x4\n", out)

    def test_the_element_of_the_amax_and_every_offset_are_shown(self):
        self.change(self.path, "scales", lambda b: b[:14] + bytes([b[14] ^ 1]) + b[15:])
        out = self.differs("1 scales", *self.check)
        self.assertRegex(out, r"amax \S+ \(0x[0-9a-f]{8}\) of \[1, (19[2-9]|2[01]\d|22[0-3])\], rule even")
        self.assertIn(" written at byte 14\n", out)
        wide = ["--quantizer", "te_rocm", "--rotation", 64]  # two blocks a run, of which this is the second
        path = self.make(*wide)
        self.change(path, "scales", lambda b: b[:15] + bytes([b[15] ^ 1]) + b[16:])
        out = self.differs("1 scales", *wide, "--input", path)
        self.assertRegex(out, r"elements 224..255 .*\n.*\n.*\n  amax \S+ \(0x[0-9a-f]{8}\) of \[1, (22[4-9]|2[345]\d)\], rule even")
        x = floats_of_bf16(load(path)["x"][2])[256 + 224:512]
        self.assertIn("\n  source of row 1:  " + " ".join(f"{v:.6g}" for v in x) + "\n  after", out)

    def test_padding(self):
        placed = ["--quantizer", "te_rocm", "--scale-placement", "nvidia_scale_128x4"]
        path = self.make(*placed)
        self.same(*placed, "--input", path, "--scale-padding", 127)
        self.differs(r"padding of scales: 512 of 512 bytes", *placed, "--input", path, "--scale-padding", 0)

    def test_scales_of_ue4m3_have_no_sign(self):
        path = self.make("--quantizer", "nvidia", "--format", "nvfp4")
        self.change(path, "scales", lambda b: b[:40] + bytes([b[40] | 0x80]) + b[41:])
        note = "note: 1 bytes of scales have their top bit set, which UE4M3 does not have\n"
        self.assertIn(note, self.differs("scale: other: 1", "--quantizer", "nvidia", "--input", path))
        self.assertIn(note, self.ranking("--input", path)[1].stdout)

    def test_the_report(self):
        self.change(self.path, "codes", lambda b: b[:1000] + bytes([b[1000] ^ 1]) + b[1001:])
        self.differs("1 of 512", *self.check, "--report", "report.json")
        report = json.loads((self.folder / "report.json").read_text())
        self.assertEqual((report["identical"], report["codes"]["codes_different"]), (False, 1))


class Threads(Program):
    def test_their_number_changes_nothing(self):
        """All that is said of a dump, the first block among that, and the report: of rows, of columns, of unknown words, of FP8."""
        for made, known in ((["te_rocm", "--axis", "both", "--m", 128], ["te_rocm", "--scale-rule", "floor"]),
                            (["te_rocm", "--m", 128, "--scale-placement", "nvidia_scale_128x4"], ["te_rocm"]),
                            (["primus", "--rounding", "stochastic", "--random-seed", 5, "--m", 128], ["te_rocm", "--rounding", "stochastic"]),
                            (["fp8", "--format", "fp8_e4m3", "--factor", 0.5], ["fp8", "--rounding", "up"])):
            path = self.make("--quantizer", *made)
            # In the middle and at the end too, so that later chunks of tiles alone have some kinds.
            for at in (0.3, 0.999):
                self.change(path, "codes", lambda b: b[:int(at * len(b))] + bytes([b[int(at * len(b))] ^ 4]) + b[int(at * len(b)) + 1:])
            said = set()
            for threads in (1, 2, 5):
                out = self.differs("differ", "--quantizer", *known, "--input", path, "--threads", threads, "--report", "report.json")
                said.add((out, (self.folder / "report.json").read_text()))
            self.assertEqual(len(said), 1, made)

    def test_the_first_block_that_differs_is_a_late_one(self):
        path = self.make("--quantizer", "te_rocm", "--m", 256)
        self.change(path, "codes", lambda b: b[:-130] + bytes([b[-130] ^ 1]) + b[-129:-3] + bytes([b[-3] ^ 1]) + b[-2:])
        out = self.differs(r"2 of 2048 blocks differ \(0 scales, 2 of 65536 codes\)", "--quantizer", "te_rocm", "--input", path,
                           "--threads", 3)
        self.assertIn("first:\n  codes, rows 254..254, elements 224..255 along the block\n", out)

    def test_memory_that_runs_out_in_any_of_them_is_one_line(self):
        path = self.make("--quantizer", "te_rocm", "--m", 512, "--k", 512)
        self.change(path, "codes", lambda b: bytes((byte * 37 + i * i * 11) & 255 for i, byte in enumerate(b)))

        def limited(kib):
            def limit():
                resource.setrlimit(resource.RLIMIT_AS, (kib * 1024, kib * 1024))
            return subprocess.run([str(VALIDATE), "--quantizer", "te_rocm", "--input", path, "--threads", "4"], capture_output=True,
                                  cwd=self.folder, timeout=120, preexec_fn=limit)
        enough, little = 4 << 20, 1 << 10
        self.assertEqual(limited(enough).returncode, 1)
        while enough - little > 256:
            middle = (enough + little) // 2
            enough, little = (middle, little) if limited(middle).returncode == 1 else (enough, middle)
        for kib in range(enough - 4096, enough, 256):
            done = limited(kib)
            self.assertIn(done.returncode, (1, 2), (kib, done.stderr))
            if done.returncode == 2:
                self.assertRegex(done.stderr.decode(), r"\A[^\n]+\n\Z")

    @unittest.skipUnless(Path("/proc/self/schedstat").exists(), "no times of threads")
    def test_all_of_them_explain_what_differs(self):
        """By the time that each has run, which does not depend on what else the machine does."""
        path = self.make("--quantizer", "te_rocm", "--m", 2048, "--k", 2048)
        command = [VALIDATE, "--quantizer", "te_rocm", "--scale-rule", "floor", "--rounding", "toward_zero", "--input", path,
                   "--threads", "2"]
        with subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as program:
            ran, tasks = {}, Path("/proc", str(program.pid), "task")
            while program.poll() is None:
                for task in tasks.glob("*/schedstat"):
                    try:
                        ran[task.parent.name] = int(task.read_text().split()[0])
                    except (OSError, IndexError):  # it has ended
                        pass
                time.sleep(0.005)
            self.assertEqual((program.returncode, program.stderr.read()), (1, b""))
        first = ran.pop(str(program.pid))
        self.assertGreater(sum(ran.values()), first / 3, "the other thread's nanoseconds, beside a third of the first one's")


class Identification(Program):
    #: Presets that are the same bytes by definition: floor's rule under OCP's policy is OCP's procedure.
    EQUAL = [{"torchao_floor", "ocp"}]
    #: Scales of UE4M3 come of amax and factor without a rule, so those that differ in the rule alone are equal. Of policies,
    #: largest_scale is what exponent_128 gives too, since 2^128 is beyond every scale of UE4M3 (docs/reference/numerics.md).
    EQUAL_IN_NVFP4 = [{"aiter_round_up", "aiter_ceil"}, {"aiter_even", "nvidia"},
                      {"torchao_floor", "torchao_rceil", "torchao_even", "torchao_ceil", "ocp"}]

    def told_apart(self, preset, equal, *arguments, runs="512", asked=()):
        """The preset explains all, and of all other explanations without a change only those that are equal to it do."""
        path = self.make("--quantizer", preset, *arguments)
        found, done = self.ranking("--input", path, *asked)
        self.assertEqual((done.returncode, found[0][0]), (0, runs), done.stdout)
        wholly = {name for count, text in found if count == runs and ", but " not in text for name in text.split(" = ")}
        self.assertEqual(wholly, next((names for names in equal if preset in names), {preset}), done.stdout)
        return found

    def test_every_preset_is_told_from_the_others(self):
        for blocks in ("mxfp4", "mxfp8_e4m3"):
            for preset in PRESETS:
                with self.subTest(blocks=blocks, preset=preset):
                    found = self.told_apart(preset, self.EQUAL, "--format", blocks)
                    self.assertLess(int(found[1][0]), 512)  # nor does any change of it explain all

    def test_nvfp4(self):
        for preset in (*PRESETS, "torchao_nvfp4"):
            # A byte of 127 for a block of zeros is no number of UE4M3, so te_rocm makes none of these blocks.
            if preset != "te_rocm":
                with self.subTest(preset):
                    self.told_apart(preset, self.EQUAL_IN_NVFP4, "--format", "nvfp4")
        self.refused("--quantizer: no preset 'te_rocm' for these blocks", "--quantizer", "te_rocm", "--format", "nvfp4",
                     "--make-case", "new.safetensors")

    def test_fp6_and_int8(self):
        """Of F32: no BF16 number lies between INT8's largest, where rceil steps, and the middle to 2, where even does."""
        for blocks in ("mxfp6_e2m3", "mxfp6_e3m2", "mxint8"):
            for preset in ("te_rocm", "primus", "aiter_even", "torchao_rceil", "nvidia", "ocp"):
                with self.subTest(blocks=blocks, preset=preset):
                    found = self.told_apart(preset, self.EQUAL, "--format", blocks, "--x-format", "F32",
                                            asked=["--format", blocks])
                    # Inf counts as 2^127 in INT8 under policies exponent_128 and largest_scale.
                    if blocks != "mxint8" or preset not in ("aiter_even", "nvidia"):
                        self.assertLess(int(found[1][0]), 512)

    def test_columns_under_a_rotation(self):
        for blocks in ("mxfp4", "mxfp8_e4m3"):
            for arguments, text in (([], "te_rocm"), (["--rotation", 0], "te_rocm, but no rotation"),
                                    (["--rotation", 32], "te_rocm, but rotation of 32 points"),
                                    (["--signs", "a5c3"], "te_rocm, but other signs of the rotation"),
                                    (["--scale-rule", "floor"], "te_rocm, but scale rule floor")):
                path = self.make("--quantizer", "te_rocm", "--format", blocks, "--axis", "column", "--m", 256, *arguments)
                self.assertNotIn("codes", load(path))
                signs = arguments if "--signs" in arguments else []
                found, done = self.ranking("--quantizer", "te_rocm", "--input", path)
                with self.subTest(blocks=blocks, text=text):
                    if signs:  # which are tried where they are given
                        self.assertEqual(done.returncode, 1)
                        found, done = self.ranking("--quantizer", "te_rocm", "--input", path, *signs)
                        text = "te_rocm"
                    self.assertEqual((done.returncode, found[0]), (0, ("512", text)), done.stdout)
                    # No tie survives the rounding of its products with 1/sqrt(32).
                    also = {text + ", rounding nearest_away"} if "32 points" in text else set()
                    self.assertLessEqual({t for count, t in found[1:] if count == "512"}, also)

    def test_squares(self):
        square = ["--block-rows", 32]
        for preset, axis in (("te_rocm", "both"), ("primus", "row"), ("aiter_even", "column"), ("torchao_rceil", "both")):
            runs = "128" if axis == "both" else "64"
            with self.subTest(preset=preset, axis=axis):
                found = self.told_apart(preset, self.EQUAL, *square, "--m", 256, "--axis", axis, runs=runs, asked=square)
                self.assertLess(int(found[1][0]), int(runs))
        path = self.make("--quantizer", "primus", *square, "--m", 256, "--axis", "both", "--scale-rule", "ceil")
        self.assertEqual(self.ranking("--quantizer", "primus", *square, "--input", path)[0][0],
                         ("128", "primus, but scale rule ceil"))

    def test_fp8_with_one_factor(self):
        for blocks in ("fp8_e4m3", "fp8_e5m2"):
            for arguments, text in (([], "fp8"), (["--rounding", "nearest_away"], "fp8, but rounding nearest_away"),
                                    (["--rounding", "toward_zero"], "fp8, but rounding toward_zero"),
                                    (["--source", "bf16"], "fp8, but source rounded to BF16"),
                                    (["--source", "fp16"], "fp8, but source rounded to FP16")):
                made = ["--quantizer", "fp8", "--format", blocks, "--factor", 0.25, "--x-format", "F32", "--axis", "both"]
                path = self.make(*made, "--m", 256, *arguments)
                found, done = self.ranking("--quantizer", "fp8", "--input", path)
                with self.subTest(blocks=blocks, text=text):
                    self.assertEqual((done.returncode, found[0]), (0, ("512", text)), done.stdout)
                    self.assertLess(int(found[1][0]), 512)
            for used in (1.0, 0.25):  # the factor was not used, or its inverse was stored
                path = self.make(*made[:4], "--factor", used, *made[6:], "--m", 256)
                self.change(path, "factor", lambda _: struct.pack("<f", 4.0))
                found, done = self.ranking("--quantizer", "fp8", "--input", path)
                self.assertEqual((done.returncode, found[0]), (0, ("512", f"fp8, but factor {used:g}")), done.stdout)

    def test_made_cases_have_the_borders_of_their_elements(self):
        """The largest number, where rceil steps, and what rounds up to 2, where even does: an amax there, just below and just above."""
        for blocks, largest, carry in (("mxfp4", 1.5, 1.75), ("mxfp8_e4m3", 1.75, 1.9375), ("mxfp8_e5m2", 1.75, 1.875),
                                       ("mxfp6_e2m3", 1.875, 1.9375), ("mxint8", 1.984375, 1.9921875)):
            x = floats_of_bf16(load(self.make("--quantizer", "ocp", "--format", blocks, result=False))["x"][2])
            amax = [max(map(abs, x[i:i + 32])) for i in range(0, len(x), 32)]
            mantissas = {2 * math.frexp(a)[0] for a in amax if math.isfinite(a)}
            for border in (largest, carry, 1.0):
                with self.subTest(blocks=blocks, border=border):
                    below = border - 2**-7 if border > 1 else 2 - 2**-7
                    self.assertLessEqual({below, border, (border + 2**-7) % 1 + 1 if border + 2**-7 >= 2 else border + 2**-7}, mantissas)

    def test_a_single_wrong_code_is_no_random_rounding(self):
        """Either neighbour of a value is what unknown words may give, but not always the nearer one."""
        good = load(self.make("--quantizer", "te_rocm"))
        for at, bit in ((1000, 1), (5000, 2), (7777, 16), (12, 1)):
            data = bytearray(good["codes"][2])
            data[at % len(data)] ^= bit
            path = self.folder / "flipped.safetensors"
            write_safetensors(path, {**good, "codes": (*good["codes"][:2], bytes(data))})
            found, done = self.ranking("--input", path)
            with self.subTest(at=at):
                self.assertEqual((done.returncode, found[0]), (1, ("511", "te_rocm")), done.stdout)
                self.assertNotIn("stochastic", done.stdout)

    def test_few_elements_are_no_random_rounding_either(self):
        """Of a few blocks no distribution can be told from that of nearest."""
        for extents in (("--m", 1, "--k", 32), ("--m", 2, "--k", 128), ("--m", 4, "--k", 128)):
            good = load(self.make("--quantizer", "te_rocm", *extents))
            for at in range(0, len(good["codes"][2]), 5):
                data = bytearray(good["codes"][2])
                data[at] ^= 1
                path = self.folder / "flipped.safetensors"
                write_safetensors(path, {**good, "codes": (*good["codes"][:2], bytes(data))})
                done = self.ranking("--input", path)[1]
                self.assertFalse(done.returncode == 0 and "stochastic" in done.stdout.split("\n")[1], (extents, at, done.stdout))

    def test_an_orientation_of_its_own_rounding(self):
        """Gradients of which one orientation alone is rounded at random."""
        nearest = load(self.make("--quantizer", "primus", "--axis", "both", "--m", 256))
        random = load(self.make("--quantizer", "primus", "--axis", "both", "--m", 256, "--rounding", "stochastic", "--random-seed", 7))
        self.assertEqual(nearest["x"], random["x"])
        path = self.folder / "mixed.safetensors"
        write_safetensors(path, {**nearest, "codes_t": random["codes_t"], "scales_t": random["scales_t"]})
        done = self.ranking("--input", path, "--sample", 4096)[1]
        self.assertEqual(done.returncode, 1)
        self.assertIn("\ncodes alone: 2048  primus\ncodes_t alone: 2048  primus, but rounding stochastic by unknown words\n", done.stdout)

    def test_signs_of_longer_rotations(self):
        signs = ["--signs", "b3c5"]
        path = self.make("--quantizer", "te_rocm", "--rotation", 64, *signs)
        found, done = self.ranking("--quantizer", "te_rocm", "--input", path, *signs)
        self.assertEqual((done.returncode, found[0]), (0, ("512", "te_rocm, but rotation of 64 points")), done.stdout)
        self.same("--quantizer", "te_rocm", "--rotation", 64, *signs, "--input", path)
        path = self.make("--quantizer", "te_rocm", "--rotation", 64)
        found, done = self.ranking("--quantizer", "te_rocm", "--input", path, *signs)
        self.assertEqual((done.returncode, found[0][1]), (0, "te_rocm, but rotation of 64 points, other signs of the rotation"), done.stdout)
        self.assertEqual(self.ranking("--input", path, *signs)[1].returncode, 0)  # of presets without a rotation as well

    def test_directed_roundings(self):
        for rounding in ("up", "down", "to_odd"):
            path = self.make("--quantizer", "te_rocm", "--rounding", rounding)
            found, done = self.ranking("--input", path)
            self.assertEqual((done.returncode, found[0]), (0, ("512", f"te_rocm, but rounding {rounding}")), done.stdout)
            self.assertNotIn("stochastic", done.stdout)

    def test_long_rotations(self):
        for points in (64, 128, 256):
            for more in ([], ["--axis", "both", "--m", 512]):
                path = self.make("--quantizer", "te_rocm", "--rotation", points, *more)
                found, done = self.ranking("--input", path)
                with self.subTest(points=points, more=more):
                    self.assertEqual((done.returncode, found[0]), (0, ("512", f"te_rocm, but rotation of {points} points")),
                                     done.stdout)
                    # A wrong code is one region's, however long the run.
                    self.change(path, "codes", lambda b: b[:1000] + bytes([b[1000] ^ 1]) + b[1001:])
                    self.assertEqual(self.ranking("--input", path, "--sample", 8192)[0][0],
                                     ("8191" if more else "511", f"te_rocm, but rotation of {points} points"))

    def test_a_sample_is_said_and_the_whole_is_checked(self):
        path = self.make("--quantizer", "te_rocm", "--m", 256)
        self.change(path, "codes", lambda b: b[:9000] + bytes([b[9000] ^ 1]) + b[9001:])
        for sample, total in ((16, ", a sample of 2048"), (4096, "")):
            found, done = self.ranking("--input", path, "--sample", sample)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(f"runs of elements explained, of {min(sample, 2048)}{total}:\n", done.stdout)
            self.assertEqual("but not all of the dump:\n  codes: 1 of 2048 blocks differ\n    code: " in done.stdout, sample == 16)
            self.assertEqual(found[0], (str(16 if sample == 16 else 2047), "te_rocm"))

    def test_orientations_that_differ(self):
        path = self.make("--quantizer", "te_rocm", "--axis", "both", "--m", 256)
        self.change(path, "codes_t", lambda b: bytes((byte << 4 | byte >> 4) & 255 for byte in b))
        found, done = self.ranking("--input", path, "--sample", 4096)
        self.assertEqual(done.returncode, 1)
        self.assertIn("\ncodes alone: 2048  te_rocm\ncodes_t alone: 2048  te_rocm, but even element in the high nibble\n",
                      done.stdout)

    def test_what_nothing_made(self):
        path = self.make("--quantizer", "te_rocm")
        self.change(path, "codes", lambda b: bytes((byte + i * 7) & 255 for i, byte in enumerate(b)))
        found, done = self.ranking("--input", path)
        self.assertNotIn("0", [count for count, _ in found])
        out = done.stdout
        self.assertRegex(out, r"no more than that: of what was tried .*, nothing made this dump|nothing explains any of it")

    def test_the_factor_of_a_tensor(self):
        """Cases of odd seeds have an Inf, which makes NVFP4's factor 1; those of even seeds do not."""
        for seed, is_one in ((1, True), (2, False), (4, False)):
            path = self.make("--quantizer", "nvidia", "--format", "nvfp4", "--seed", seed)
            tensors = load(path)
            (factor,) = struct.unpack("<f", tensors["factor"][2])
            self.assertEqual(factor == 1.0, is_one)
            known = ["--quantizer", "nvidia", "--input", path]
            self.same(*known)
            amax = max(abs(v) for v in floats_of_bf16(tensors["x"][2]) if v == v)
            write_safetensors(path, {**tensors, "amax": ("F32", [1], struct.pack("<f", amax))})
            self.same(*known)
            found, done = self.ranking(*known)
            self.assertEqual((done.returncode, found[0][1]), (0, "nvidia"), done.stdout)
            if is_one:
                continue
            self.assertEqual(factor * amax, 2688)
            write_safetensors(path, {name: t for name, t in tensors.items() if name != "factor"})  # of the source
            self.same(*known)
            # Twice as large beside the right amax: the codes show it, and the number itself is named.
            write_safetensors(path, {**tensors, "amax": ("F32", [1], struct.pack("<f", amax)),
                                     "factor": ("F32", [1], struct.pack("<f", 2 * factor))})
            self.differs(r"\Afactor: \S+ expected of the amax, \S+ written\n", *known)

    def test_a_factor_that_the_dump_does_not_have(self):
        """NVFP4's is of the amax after the rotation, as the definition has it, or of the source's, and the answer says of which."""
        source, rows, columns = "the source's amax", "the amax of rotated rows", "the amax of rotated columns"
        for points, axis, of in ((0, "row", source), (16, "row", rows), (64, "row", rows), (16, "column", columns), (16, "both", rows),
                                 (16, "row", source), (16, "column", source), (16, "both", source)):
            made = ["--quantizer", "nvidia", "--format", "nvfp4", "--seed", 2, "--m", 64, "--rotation", points, "--axis", axis]
            path = self.make(*made)
            if of == source:
                x = floats_of_bf16(load(path)["x"][2])
                path = self.make(*made, "--factor", 2688 / max(abs(v) for v in x if v == v))
            tensors = load(path)
            (used,) = struct.unpack("<f", tensors.pop("factor")[2])
            write_safetensors(path, tensors)
            changes = f", but rotation of {points} points" if points else ""
            with self.subTest(points=points, axis=axis, of=of):
                for asked in ([], ["--quantizer", "nvidia"]):
                    found, done = self.ranking("--input", path, *asked)
                    first = "nvidia" if asked else "aiter_even"  # which is equal there
                    self.assertEqual((done.returncode, found[0][1]), (0, f"{first}{changes} (factor {used:.9g} assumed, of {of})"), done.stdout)
            # The factor is what decides: another one explains less.
            self.assertEqual({text.split("(")[1] for count, text in found if count == found[0][0] and "(" in text},
                             {f"factor {used:.9g} assumed, of {of})"}, done.stdout)

    def test_each_orientation_has_a_factor_that_the_dump_does_not_have(self):
        """As Transformer Engine's has: no one factor explains both, and each by itself has its own."""
        made = ["--quantizer", "nvidia", "--format", "nvfp4", "--seed", 8, "--m", 128, "--rotation", 16, "--axis", "both"]
        asked = ["--quantizer", "nvidia", "--input"]
        rows = load(self.make(*made))
        alone = self.folder / "alone.safetensors"
        write_safetensors(alone, {name: rows[name] for name in ("x", "codes_t", "scales_t")})
        said = r"nvidia, but rotation of 16 points \(factor (\S+) assumed, of the amax of rotated columns\)"
        factor = re.search(said, self.ranking(*asked, alone, "--sample", 64)[1].stdout)[1]
        columns = load(self.make(*made, "--factor", factor))
        self.assertEqual(columns["x"], rows["x"])
        self.assertNotEqual(columns["factor"], rows["factor"])
        path = self.folder / "own.safetensors"
        write_safetensors(path, {**{name: rows[name] for name in ("x", "codes", "scales")},
                                 **{name: columns[name] for name in ("codes_t", "scales_t")}})
        found, done = self.ranking(*asked, path, "--sample", 128)
        self.assertEqual(done.returncode, 1)
        of_rows = "%.9g" % struct.unpack("<f", rows["factor"][2])
        explained = re.search(rf"\ncodes alone: (\d+)  nvidia, but rotation of 16 points \(factor {of_rows} assumed, of the amax of rotated "
                              r"rows\)\ncodes_t alone: (\d+)  " + said.replace(r"\S+", factor) + "\n", done.stdout)
        self.assertIsNotNone(explained, done.stdout)
        self.assertEqual(int(explained[1]) + int(explained[2]), 128)

    def test_an_input_that_tells_nothing_apart(self):
        path = self.make("--quantizer", "ocp")
        tensors = load(path)
        tensors["x"] = ("BF16", [1, 32], b"\x80\x3f" * 32)
        tensors["codes"] = ("U8", [1, 16], b"\x66" * 16)
        tensors["scales"] = ("U8", [1, 1], bytes([125]))
        write_safetensors(path, tensors)
        self.assertIn("cannot be told apart on this input", self.ranking("--input", path)[1].stdout)

    def test_what_is_advised_can_be_done(self):
        """The case of the dump's format that is advised where quantizers tie, by a name of its own for the file."""
        for preset, *blocks in (("ocp",), ("nvidia", "--format", "nvfp4"), ("fp8", "--format", "fp8_e4m3fnuz"),
                                ("primus", "--format", "e5m2fnuz"), ("primus", "--format", "mxfp8_e4m3", "--block-rows", 32)):
            path = self.make("--quantizer", preset, *blocks, "--m", 32, "--k", 64)
            tensors = load(path)
            for name in tensors.keys() - {"factor"}:  # zeros, which tell nothing apart but policies
                dtype, shape, data = tensors[name]
                tensors[name] = (dtype, shape, bytes(len(data)))
            write_safetensors(path, tensors)
            out = self.ranking("--input", path, *blocks)[1].stdout
            advised = re.search("; (--make-case FILE .*) writes one that tells more apart$", out, re.M)[1]
            done = self.call(*advised.replace("FILE", "told.safetensors").split(), "--with-d")
            self.assertEqual((done.returncode, done.stderr), (0, ""), advised)
            told = load(self.folder / "told.safetensors")
            self.assertEqual([name for name in told], [name for name in tensors], advised)


class Reports(Program):
    """Of --identify: what it says, and its exit code, as without one."""

    def report(self, code, *arguments):
        plain = self.call("--identify", *arguments)
        done = self.call("--identify", *arguments, "--report", "report.json")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (code, plain.stdout, ""))
        listed = re.findall(r"^  (\d+)  (.*)$", done.stdout, re.M)
        found = json.loads((self.folder / "report.json").read_text())
        self.assertEqual([(str(c["explained"]), c["text"]) for c in found["candidates"]], listed)
        return found

    def test_the_best_explanation(self):
        path = self.make("--quantizer", "te_rocm", "--rotation", 32, "--scale-placement", "nvidia_scale_128x4", "--nibbles", "high")
        found = self.report(0, "--input", path)
        best = found["best"]
        self.assertEqual((found["input"], found["quantizer"], found["identical"], found["runs"], found["looked_at"]),
                         (str(path), "", True, 512, 512))
        self.assertEqual({key: best[key] for key in ("rotation", "scale_placement", "code_placement", "nibbles", "policy", "scale_rule")},
                         {"rotation": 32, "scale_placement": "nvidia_scale_128x4", "code_placement": "row_major", "nibbles": "high",
                          "policy": "te_rocm", "scale_rule": "even"})
        self.same("--quantizer", "te_rocm", "--input", path, *(f"--{key.replace('_', '-')}={best[key]}" for key in (
            "rotation", "scale_placement", "code_placement", "nibbles", "policy", "scale_rule", "rounding", "source")))
        path = self.make("--quantizer", "fp8", "--format", "fp8_e4m3", "--factor", 0.25)
        found = self.report(0, "--quantizer", "fp8", "--input", path)
        self.assertEqual((found["quantizer"], found["best"]["factor"], "rotation" in found["best"]), ("fp8", 0.25, False))
        path = self.make("--quantizer", "primus", "--rounding", "stochastic", "--random-seed", 7)
        self.assertTrue(self.report(0, "--input", path)["accepted"])

    def test_what_is_not_wholly_explained(self):
        path = self.make("--quantizer", "te_rocm", "--m", 256)
        self.change(path, "codes", lambda b: b[:9000] + bytes([b[9000] ^ 1]) + b[9001:])
        found = self.report(1, "--input", path, "--sample", 16)
        self.assertEqual((found["identical"], found["looked_at"], found["runs"], found["best"]["text"]), (False, 16, 2048, "te_rocm"))
        self.assertEqual((found["codes"]["blocks_different"], sum(found["codes"]["kinds"].values())), (1, 1))
        path = self.make("--quantizer", "te_rocm", "--axis", "both", "--m", 256)
        self.change(path, "codes_t", lambda b: bytes((byte << 4 | byte >> 4) & 255 for byte in b))
        found = self.report(1, "--input", path, "--sample", 4096)
        self.assertEqual({side: (e["text"], e["nibbles"]) for side, e in found["alone"].items()},
                         {"codes": ("te_rocm", "low"), "codes_t": ("te_rocm, but even element in the high nibble", "high")})
        path = self.make("--quantizer", "te_rocm")
        self.change(path, "codes", lambda b: bytes((byte + i * 7) & 255 for i, byte in enumerate(b)))
        found = self.report(1, "--input", path)
        self.assertEqual((found["identical"], found["best"]), (False, None))

    def test_the_best_of_those_that_explain_the_sample(self):
        """That which leaves the fewest blocks, not the first of them; where one leaves none, that one."""
        path = self.make("--quantizer", "torchao_even", "--m", 256)
        for wrong in (1, 0):
            self.change(path, "codes", lambda b: b[:9000] + bytes([b[9000] ^ 1]) + b[9001:])
            found = self.report(wrong, "--input", path, "--sample", 4)
            self.assertNotIn("torchao_even", found["candidates"][0]["text"])
            self.assertEqual((found["best"]["quantizer"], found["best"]["scale_rule"]), ("torchao_even", "even"))
            if wrong:
                self.assertEqual(found["codes"]["blocks_different"], 1)
                out = self.call("--identify", "--input", path, "--sample", 4).stdout
                self.assertIn("\nbut not all of the dump, most of it by torchao_even:\n  codes: 1 of 2048 blocks differ\n", out)

    def test_an_orientation_that_nothing_explains(self):
        path = self.make("--quantizer", "te_rocm", "--axis", "both")
        for tensor, factor in (("codes_t", 37), ("scales_t", 0)):
            self.change(path, tensor, lambda b: bytes((byte * factor + i * i * 11 * (factor != 0) + 3) & 255 for i, byte in enumerate(b)))
        found = self.report(1, "--input", path)
        self.assertEqual((found["alone"]["codes"]["text"], found["alone"]["codes_t"]), ("te_rocm", None))
        self.assertIn("te_rocm\ncodes_t alone: nothing explains any of it\n", self.call("--identify", "--input", path).stdout)

    def test_notes(self):
        path = self.make("--quantizer", "nvidia", "--format", "nvfp4")
        self.change(path, "scales", lambda b: b[:40] + bytes([b[40] | 0x80]) + b[41:])
        note = ["1 bytes of scales have their top bit set, which UE4M3 does not have"]
        self.assertEqual(self.report(1, "--input", path)["notes"], note)
        self.differs("note: " + note[0], "--quantizer", "nvidia", "--input", path, "--report", "report.json")
        self.assertEqual(json.loads((self.folder / "report.json").read_text())["notes"], note)

    def test_the_best_one_has_its_preset_and_signs(self):
        path = self.make("--quantizer", "ocp", "--rotation", 32, "--signs", "00112233")
        best = self.report(0, "--input", path, "--signs", "00112233")["best"]
        self.assertEqual((best["rotation"], best["signs"]), (32, "00112233"))
        self.same("--input", path, *(f"--{key.replace('_', '-')}={best[key]}" for key in (
            "quantizer", "rotation", "signs", "policy", "scale_rule", "rounding", "source")))

    def test_nothing_is_tied_where_nothing_explains(self):
        path = self.make("--quantizer", "te_rocm")
        self.change(path, "codes", lambda b: bytes((byte * 37 + i * i * 11) & 255 for i, byte in enumerate(b)))
        self.change(path, "scales", lambda b: bytes(3 for _ in b))
        found = self.report(1, "--input", path)
        self.assertEqual((found["tied"], found["tied_or_more"], found["candidates"], found["best"]), (0, False, [], None))

    def test_an_input_whose_name_is_not_utf_8(self):
        path = self.make("--quantizer", "te_rocm")
        os.rename(path, os.fsencode(self.folder) + b"/g\xff.safetensors")
        for verb in (["--identify"], ["--quantizer", "te_rocm"]):
            done = self.call(*verb, "--input", os.fsdecode(b"g\xff.safetensors"), "--report", "report.json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads((self.folder / "report.json").read_text(encoding="utf-8"))["input"], "g\ufffd.safetensors")

    def test_a_report_that_cannot_be_written(self):
        """Refused before anything else, so that the missing input is not what is said; no file is made for it."""
        (self.folder / "folder").mkdir()
        (self.folder / "file").write_bytes(b"")
        before = sorted(self.folder.rglob("*"))
        for place, why in (("nowhere/report.json", "No such file"), ("folder", "is a directory"), ("folder/", "is a directory"),
                           ("new/", "is a directory"), (".", "not a name"), ("file/report.json", "Not a directory"),
                           ("/dev/stdout", "not a regular file")):
            for verb in (["--identify", "--input", "absent", "--report"], ["--identify", "--input", "absent", "--tell-apart"],
                         ["--quantizer", "te_rocm", "--make-case"]):
                self.refused(f"^rotoscale-validate: {place}: (cannot write: )?{why}", *verb, place)
        for option in ("--report", "--tell-apart", "--make-case"):
            self.refused(f"^rotoscale-validate: {option}: '-' is no file, .*'./-'", option, "-")
        self.assertEqual(sorted(self.folder.rglob("*")), before)
        path = self.make("--quantizer", "te_rocm")
        self.same("--identify", "--input", path, "--report", "./-")
        self.assertTrue(json.loads((self.folder / "-").read_text())["identical"])

    def test_a_list_has_no_report(self):
        for name in ("--list-models", "--list-quantizers"):
            for option, *value in (("--report", "report.json"), ("--input", "x"), ("--identify",), ("--k", 32)):
                self.refused(f"^rotoscale-validate: {option}: excludes {name}$", name, option, *value)
            self.assertEqual(self.same(name, "--threads", 2), self.same(name))
        self.assertEqual(self.same("--list-models", "--list-quantizers"), self.same("--list-models") + self.same("--list-quantizers"))
        self.assertEqual(list(self.folder.iterdir()), [])


class BadInput(Program):
    def test_arguments(self):
        path = self.make("--quantizer", "te_rocm")
        known = ["--quantizer", "te_rocm", "--input", path]
        self.refused("did you mean 'te_rocm'", "--quantizer", "te_rock", "--input", path)
        self.refused("--policy: 'oc' is unknown; did you mean 'ocp'", *known, "--policy", "oc")
        self.refused("--scale-rule: 'flor' .* 'floor'", *known, "--scale-rule", "flor")
        self.refused("--rotation: '1x' is no number", *known, "--rotation", "1x")
        self.refused("--rotation: 24 is no power of two", *known, "--rotation", 24)
        narrow = self.make("--quantizer", "ocp", "--k", 96, name="96.safetensors")
        self.refused("--rotation: K = 96 is no multiple of 64", "--quantizer", "ocp", "--input", narrow, "--rotation", 64)
        self.refused("--signs: 'zz' is no number of hexadecimal", *known, "--signs", "zz")
        self.refused("--scale-padding: '256' is neither", *known, "--scale-padding", 256)
        self.refused("--format: 'mxfp5' .* 'mxfp", *known, "--format", "mxfp5")
        self.refused("tensor 'scales': 512 bytes are not what placement aiter_scale takes", *known, "--scale-placement",
                     "aiter_scale")
        self.refused("--tensor: 'x' is not NAME=FILE.npy", "--quantizer", "te_rocm", "--tensor", "x")
        self.refused("standard input: ", "--quantizer", "te_rocm", "--input", "-", stdin=b"abc")
        self.refused("/dev/zero", "--quantizer", "te_rocm", "--input", "/dev/zero")
        self.refused("/dev/zero", "--quantizer", "te_rocm", "--tensor", "x=/dev/zero")
        os.mkfifo(self.folder / "fifo")  # which nobody writes: opening it must not wait
        self.refused("fifo: cannot read: a pipe", "--quantizer", "te_rocm", "--input", "fifo")
        self.refused("a directory, not a regular file", "--quantizer", "te_rocm", "--input", self.folder)

    def test_sizes_that_fit_no_placement(self):
        path = self.make("--quantizer", "primus", "--block-rows", 32, "--m", 64, "--k", 64)
        for verb in (["--quantizer", "primus"], ["--identify"]):
            self.refused(r"tensor 'scales': 4 bytes are not what .* takes for 64 x 64; squares of 32 x 32 .*: --block-rows 32",
                         *verb, "--input", path)
        self.refused("tensor 'codes': 2048 bytes are not what any placement takes", "--identify", "--input", path, "--format",
                     "mxfp6_e2m3")
        tensors = load(self.make("--quantizer", "te_rocm", "--axis", "both"))
        for tensor in ("codes", "codes_t", "scales", "scales_t"):
            dtype, _, data = tensors[tensor]
            write_safetensors(path, {**tensors, tensor: (dtype, [len(data) - 1], data[:-1])})
            self.refused(f"tensor '{tensor}': .* bytes are not what any placement takes", "--identify", "--input", path,
                         "--format", "mxfp4")

    def test_shapes_that_contradict_the_source(self):
        """A matrix of the right size whose rows are not the source's; flat ones, and x's own leading extents, say nothing wrong."""
        path = self.make("--quantizer", "te_rocm", "--axis", "both", "--m", 128)
        known, good = ["--quantizer", "te_rocm", "--input", path], load(path)
        for tensor, shape, wrong, also in (("codes", [128, 128], [64, 256], [8, 16, 128]), ("codes_t", [256, 64], [64, 256], [16, 16, 64]),
                                           ("scales", [128, 8], [8, 128], [2, 64, 8]), ("scales_t", [256, 4], [4, 256], [256, 2, 2])):
            dtype, _, data = good[tensor]
            self.assertEqual(good[tensor][1], shape)
            for right in (also, [len(data)], [1, *shape]):
                write_safetensors(path, {**good, tensor: (dtype, right, data)})
                self.same(*known)
            write_safetensors(path, {**good, tensor: (dtype, wrong, data)})
            hint = "; it is column_major's" if wrong == shape[::-1] else ""
            said = re.escape(f"shape {wrong} is not {shape}, which {'256 x 128' if '_t' in tensor else '128 x 256'} elements have in "
                             f"placement row_major{hint}")
            self.refused(rf"tensor '{tensor}': {said}$", *known)
            (self.folder / "tensor.npy").write_bytes(npy("|u1", wrong, data))
            write_safetensors(path, {name: t for name, t in good.items() if name != tensor})
            self.refused(rf"tensor '{tensor}': {said}$", *known, "--tensor", f"{tensor}=tensor.npy")
            # Other placements may be what it is, so that identification goes on without row_major.
            write_safetensors(path, {**good, tensor: (dtype, wrong, data)})
            found, done = self.ranking("--input", path)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertRegex(done.stdout, rf"\Anote: {tensor}: {said}\n")

    def test_shapes_of_other_placements(self):
        """Of a transpose the shape may be either's, and of tiles any."""
        for option, tensor in (("--code-placement", "codes"), ("--scale-placement", "scales")):
            for placement in ("column_major", "nvidia_scale_128x4" if tensor == "scales" else "aiter_data_16x16"):
                path = self.make("--quantizer", "te_rocm", "--m", 128, "--k", 512, option, placement)
                dtype, shape, data = load(path)[tensor]
                known = ["--quantizer", "te_rocm", option, placement, "--input", path]
                shapes = [shape, shape[::-1], [len(data)]] + ([] if placement == "column_major" else [[shape[0] // 16, shape[1] * 16]])
                for held in shapes:
                    write_safetensors(path, {**load(path), tensor: (dtype, held, data)})
                    self.same(*known)
                    found, done = self.ranking("--input", path)
                    self.assertEqual((done.returncode, found[0][0]), (0, "512"), done.stdout)
                write_safetensors(path, {**load(path), tensor: (dtype, [shape[0] // 2, shape[1] * 2], data)})
                self.refused(f"tensor '{tensor}': shape ", *known[:2], *known[-2:])

    def test_inputs_are_not_overwritten(self):
        tensors = load(self.make("--quantizer", "te_rocm"))
        arguments = []
        for name, descr in (("x", "|V2"), ("codes", "|u1"), ("scales", "|u1")):
            (self.folder / f"{name}.npy").write_bytes(npy(descr, *tensors[name][1:]))
            arguments += ["--tensor", f"{name}={name}.npy"]
        before = (self.folder / "codes.npy").read_bytes()
        os.link(self.folder / "codes.npy", self.folder / "other.npy")
        for path in ("codes.npy", "./codes.npy", "other.npy"):
            self.refused(f"--report: '{path}' is an input, that of --tensor codes=codes.npy", "--quantizer", "te_rocm", *arguments,
                         "--report", path)
        self.assertEqual((self.folder / "codes.npy").read_bytes(), before)
        dump = self.folder / "dump.safetensors"
        for path in (dump, "/dev/stdin", "/proc/self/fd/0"):
            with dump.open("rb") as file:
                done = subprocess.run([VALIDATE, "--quantizer", "te_rocm", "--input", "-", "--report", path], stdin=file, cwd=self.folder,
                                      capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("is the input", done.stderr)
        self.assertEqual(load(dump), tensors)
        self.refused("--tensor: 'x' is given twice", "--quantizer", "te_rocm", *arguments, *arguments)
        self.refused("--tensor: 'x' is in .*dump.safetensors as well", "--quantizer", "te_rocm", *arguments, "--input",
                     self.folder / "dump.safetensors")

    def test_factors_and_maxima_that_are_none(self):
        """The tensor is named, not an option that nobody gave; an option in its place is taken."""
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
        for option in ("--quantizer", "--format", "--rotation", "--signs", "--scale-rule", "--policy", "--rounding", "--scale-padding",
                       "--input", "--make-case"):  # as a script's unset variable leaves it: absent is something else
            self.refused(f"^rotoscale-validate: {option}: is empty$", "--identify", option, "")
        self.refused("--quantizer: no preset 'te_rocm' for these blocks; they have .*nvidia", "--quantizer", "te_rocm", "--format",
                     "nvfp4", "--make-case", "new.safetensors")
        path = self.make("--quantizer", "nvidia", "--m", 96, "--k", 96, "--scale-placement", "nvidia_scale_128x4")
        self.refused("tensor 'scales': 512 bytes are not what placement row_major takes for 96 x 96; it has the size of "
                     "nvidia_scale_128x4", "--quantizer", "nvidia", "--input", path)
        write_safetensors(path, {"x": ("BF16", [64, 1], bytes(128)), "codes": ("U8", [64, 1], bytes(64)),
                                 "scales": ("U8", [64, 1], bytes(64))})
        self.refused("tensor 'x': 64 x 1 along the blocks are no whole blocks", "--quantizer", "ocp", "--input", path)

    def test_lost_output(self):
        """What nobody can read is no result: by the exit code of bad input, not by that of identical."""
        path = self.make("--quantizer", "te_rocm")
        for arguments in (["--list-models"], ["--list-quantizers"], ["--help"], ["--identify", "--input", path],
                          ["--quantizer", "te_rocm", "--input", path]):
            for lost in (">/dev/full", ">&-"):
                done = subprocess.run(["sh", "-c", f'exec "$@" {lost}', "sh", str(VALIDATE), *map(str, arguments)],
                                      capture_output=True, text=True, timeout=120)
                self.assertEqual((done.returncode, done.stderr), (2, "rotoscale-validate: standard output: cannot write\n"), arguments)

    def test_fp8_needs_its_format(self):
        self.refused("--quantizer: 'fp8' has one factor a tensor and no blocks: --format fp8_e4m3", "--quantizer", "fp8", "--make-case",
                     "new.safetensors")
        self.refused("--quantizer: 'fp8' has one factor", "--quantizer", "fp8", "--input", self.make("--quantizer", "te_rocm"))

    def test_a_dump_needs_a_quantizer(self):
        self.refused("--quantizer: needed .or --identify.", "--input", self.make("--quantizer", "te_rocm"))

    def test_options_without_a_meaning(self):
        """Every option but these is refused by name; with a value, if it takes one."""
        meant = {"compare": "input tensor report quantizer format rotation signs scale-rule policy rounding source block-rows "
                            "code-placement scale-placement nibbles scale-padding",
                 "identify": "identify input tensor report sample quantizer format rotation signs scale-rule policy rounding source "
                             "block-rows code-placement scale-placement nibbles",
                 "make-case": "make-case m k seed with-d x-format axis quantizer format rotation signs scale-rule policy rounding source "
                              "block-rows code-placement scale-placement nibbles",
                 "gemm": "model kernel input tensor report nan a-format b-format scale-format scale-layout promotion split-k "
                         "split-grain split-run split-order split-sum output-rounding epilogue-c alpha beta output "
                         "add-after-rounding ignore"}
        everywhere = {"help", "version", "threads", "list-models", "list-quantizers"}
        elsewhere = {"factor", "random-seed", "random-stream", "random-bits"}  # test_options_that_the_format_leaves_idle
        values = {"a-format": "e4m3", "b-format": "e4m3", "scale-format": "e8m0", "split-order": "pairwise",
                  "split-sum": "fp16", "nan": "any", "output-rounding": "up", "output": "bf16", "ignore": "c",
                  "source": "bf16", "x-format": "fp32", "axis": "both", "code-placement": "column_major", "scale-placement": "column_major",
                  "nibbles": "high", "make-case": "made.safetensors"}
        options = re.findall(r"^  (?:-\w,)?--([a-z-]+)(?: (TEXT|INT|UINT|FLOAT))?", self.same("--help"), re.M)
        self.assertGreater(len(options), 55)
        path = self.make("--quantizer", "te_rocm")
        gemm = self.make("--model", "hopper-wgmma-fp8-f32", "--m", 8, "--n", 8, name="gemm.safetensors")
        before = sorted(p.name for p in self.folder.iterdir())
        bases = {"compare": ["--quantizer", "te_rocm", "--input", path],
                 "identify": ["--quantizer", "te_rocm", "--identify", "--input", path],
                 "make-case": ["--quantizer", "te_rocm", "--make-case", "made.safetensors"],
                 "gemm": ["--model", "hopper-wgmma-fp8-f32", "--input", gemm]}
        for verb, base in bases.items():
            for name, takes_value in options:
                if name in everywhere | elsewhere | set(meant[verb].split()) or "--" + name in base:
                    continue
                if name in ("identify", "fit", "make-case", "quantizer") and verb != "identify" or name == "input":
                    continue  # these say what is asked for: below
                with self.subTest(verb=verb, option=name):
                    value = [values.get(name, 1)] if takes_value else []
                    self.refused(rf"--{name}: (is for|excludes)", *base, f"--{name}", *value)
        for arguments, pattern in (((*bases["make-case"], "--input", path), "--make-case: excludes --input"),
                                   ((*bases["make-case"], "--identify"), "--make-case: excludes --identify"),
                                   ((*bases["make-case"], "--fit"), "--make-case: excludes --fit"),
                                   ((*bases["compare"], "--fit"), "--fit: is for GEMMs"),
                                   ((*bases["gemm"], "--sample", 5), "--sample: is for --identify and --fit"),
                                   ((*bases["compare"], "--nan", "any"), "--nan: is for GEMMs"),
                                   (("--input", gemm, "--identify", "--seed", 5), "--seed: is for --make-case and --tell-"),
                                   ((*bases["gemm"], "--identify"), "--model: is for comparisons, --fit and --make-case"),
                                   ((*bases["gemm"], "--scale-rule", "even"), "--scale-rule: is for quantizers' dumps"),
                                   (("--quantizer", "te_rocm", "--input", gemm), "tensor 'a': not part of a quantizer"),
                                   ((*bases["gemm"], "--quantizer", "te_rocm"), "--model: is for GEMMs")):
            self.refused(pattern, *arguments)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), before)

    def test_options_that_the_format_leaves_idle(self):
        paths = {blocks: self.make("--quantizer", preset, "--format", blocks, name=blocks)
                 for preset, blocks in (("fp8", "fp8_e4m3"), ("nvidia", "nvfp4"), ("te_rocm", "mxfp4"), ("ocp", "mxfp8_e4m3"))}
        no_blocks, words = "is for blocks", "is for --rounding stochastic"
        for blocks, quantizer, arguments, pattern in (
                ("fp8_e4m3", "fp8", ("--rotation", 16), no_blocks),
                ("fp8_e4m3", "fp8", ("--signs", "ffff"), no_blocks),
                ("fp8_e4m3", "fp8", ("--scale-rule", "floor"), no_blocks),
                ("fp8_e4m3", "fp8", ("--policy", "ocp"), no_blocks),
                ("fp8_e4m3", "fp8", ("--scale-placement", "aiter_scale"), no_blocks),
                ("fp8_e4m3", "fp8", ("--scale-padding", 0), no_blocks),
                ("fp8_e4m3", "fp8", ("--block-rows", 32), no_blocks),
                ("fp8_e4m3", "fp8", ("--nibbles", "high"), "is for elements of 4 bits"),
                ("mxfp8_e4m3", "ocp", ("--nibbles", "high"), "is for elements of 4 bits"),
                ("nvfp4", "nvidia", ("--scale-rule", "floor"), "is for scales of powers of two"),
                ("mxfp4", "te_rocm", ("--factor", 2), "is for NVFP4 and for FP8 with one factor"),
                ("nvfp4", "nvidia", ("--signs", "ffff"), "is for a rotation"),
                ("mxfp4", "te_rocm", ("--signs", "ffff", "--rotation", 0), "is for a rotation"),
                ("mxfp4", "te_rocm", ("--random-seed", 1), words),
                ("mxfp4", "te_rocm", ("--random-bits", 8), words),
                ("mxfp4", "te_rocm", ("--random-stream", 1), words),
                ("mxfp4", "te_rocm", ("--random-stream", 1, "--rounding", "stochastic"), "is for --random-seed")):
            with self.subTest(blocks=blocks, arguments=arguments):
                self.refused(f"{arguments[0]}: {pattern}", "--quantizer", quantizer, "--input", paths[blocks], *arguments)
                made = arguments[0] == "--scale-padding"
                self.refused(f"{arguments[0]}: {'is for comparisons' if made else pattern}", "--quantizer", quantizer,
                             "--format", blocks, "--make-case", "new.safetensors", *arguments)
        # --identify tries other rotations and roundings, but not in the place of what is given without a preset to start from.
        known = ["--identify", "--input", paths["mxfp4"]]
        for idle, fixed, pattern in ((("--signs", "ffff"), ("--rotation", 0), "is for a rotation"),
                                     (("--random-seed", 1), ("--rounding", "nearest_even"), words),
                                     (("--random-bits", 8), ("--rounding", "nearest_even"), words)):
            self.refused(f"{idle[0]}: {pattern}", *known, *idle, *fixed)
            for used in ((*idle,), (*idle, *fixed, "--quantizer", "te_rocm")):
                self.assertEqual(self.ranking(*known[1:], *used)[1].returncode, 0)
        self.refused("--random-bits: is for --random-seed", "--quantizer", "te_rocm", "--make-case", "new.safetensors", "--rounding",
                     "stochastic", "--random-bits", 8)
        tensors = load(paths["mxfp4"])
        write_safetensors(paths["mxfp4"], {**tensors, "factor": ("F32", [1], struct.pack("<f", 1))})
        self.refused("tensor 'factor': scales of powers of two have none", "--quantizer", "te_rocm", "--input", paths["mxfp4"])
        rows, cols = tensors["x"][1]
        write_safetensors(paths["mxfp4"], {**tensors, "random": ("U32", [rows, cols], bytes(4 * rows * cols))})
        self.refused("tensor 'random': give --rounding stochastic", "--quantizer", "te_rocm", "--input", paths["mxfp4"])
        self.refused("--random-seed: the words are in tensor 'random'", "--quantizer", "te_rocm", "--rounding", "stochastic",
                     "--random-seed", 1, "--input", paths["mxfp4"])
        self.assertFalse((self.folder / "new.safetensors").exists())

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
        broken("tensor 'codes': type U8 leaves the format open", codes=("U8", [4], bytes(4)))
        broken("tensor 'factor': is not one number", factor=("F32", [2], bytes(8)))
        broken("tensor 'random': is not U32", random=("U32", [2], bytes(8)))
        broken("tensor 'x': 1 x 33 .* no whole blocks", x=("BF16", [1, 33], bytes(66)),
               codes=("F4", [1, 34], bytes(17)), scales=("U8", [2], bytes(2)))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + [word for name in sys.argv[2:] for word in ("-k", name)])
