#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""rotoscale-validate on quantizers' dumps: correct dumps, one planted fault of each kind, identification, bad input.

usage: validate_quantizer.py VALIDATE [TEST...]
"""
import json
import math
import re
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from safetensors_bytes import load, npy, write_safetensors

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


class Program(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def call(self, *arguments, program=VALIDATE, stdin=b""):
        """One thread, unless the test is about threads: cases are small, and tests run in parallel."""
        threads = ["--threads", "1"] if program == VALIDATE and "--threads" not in arguments else []
        done = subprocess.run([str(program), *map(str, arguments), *threads], capture_output=True, cwd=self.folder,
                              input=stdin, timeout=120)
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

    def refused(self, pattern, *arguments, **options):
        done = self.call(*arguments, **options)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertRegex(done.stderr, pattern)

    def change(self, path, tensor, edit):
        tensors = load(path)
        dtype, shape, data = tensors[tensor]
        tensors[tensor] = (dtype, shape, bytes(edit(bytearray(data))))
        write_safetensors(path, tensors)

    def turn(self, path):
        """A dump along rows becomes one along columns: a source's columns are the rows of its transpose."""
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
            for blocks in ("mxfp4", "mxfp6_e3m2", "mxfp8_e5m2", "mxint8"):
                path = self.make("--quantizer", preset, "--format", blocks, "--m", 16)
                self.assertRegex(self.same("--quantizer", preset, "--format", blocks, "--input", path),
                                 r"\Acodes: 0 of 128 blocks differ \(0 scales, 0 of 4096 codes\)\n\Z")

    def test_placements(self):
        for codes, scales in (("row_major", "aiter_scale"), ("aiter_data_16x16", "hipblaslt_scale_32x8"),
                              ("column_major", "column_major"), ("row_major", "nvidia_scale_128x4")):
            placed = ["--code-placement", codes, "--scale-placement", scales]
            path = self.make("--quantizer", "te_rocm", *placed)
            self.same("--quantizer", "te_rocm", "--input", path, *placed)
            found, done = self.ranking("--input", path, "--quantizer", "te_rocm", "--sample", 128)
            self.assertEqual(done.returncode, 0)
            self.assertIn({"column_major": "scales transposed"}.get(scales, "scales in " + scales), found[0][1])
            if codes != "row_major":
                self.assertIn("codes in " + codes, found[0][1])

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
        """The factor comes from the tensor's amax, from the source's amax, or is 1. The output says which."""
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
            self.assertEqual((done.returncode, found[0][1]), (0, f"fp8 (factor {factor:.9g} assumed, of {of})"),
                             done.stdout)
            self.assertTrue(all(" assumed, of " in text for _, text in found), done.stdout)

    def test_fnuz(self):
        """Output of gfx942's kernels: codes with another bias, where 0x80 is NaN."""
        for blocks, dtype in (("fp8_e5m2fnuz", "F8_E5M2FNUZ"), ("e4m3fnuz", "F8_E4M3FNUZ")):
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
            # One is twice the other, so OCP's reading of the bytes is wrong.
            tensors["codes"] = ("U8", *tensors["codes"][1:])
            write_safetensors(path, tensors)
            self.same(*known, "--format", blocks)
            self.differs("differ", *known, "--format", blocks.replace("fnuz", ""))
        self.refused(r"--format: 'e4m3b11fnuz' is no format; did you mean 'e4m3fnuz'", *known, "--format",
                     "e4m3b11fnuz")

    def test_stochastic_rounding_by_words_and_by_distribution(self):
        seeded = ["--quantizer", "primus", "--rounding", "stochastic", "--random-seed", 7, "--random-stream", 3]
        path = self.make(*seeded)
        self.same(*seeded, "--input", path)
        self.differs("code: rounding", *seeded[:-1], 4, "--input", path)
        unknown = ["--quantizer", "primus", "--rounding", "stochastic", "--input", path]
        self.assertRegex(self.same(*unknown), r"\Acodes: 0 of 512 blocks differ \(0 scales, 0 of 16384 codes\)\n"
                         r"  rounding by unknown words: \d{5} elements lie between two numbers\n  away from zero, .*\n"
                         r"\Z")

    def test_stochastic_rounding_is_identified(self):
        path = self.make("--quantizer", "primus", "--rounding", "stochastic", "--random-seed", 7, "--m", 16)
        found, done = self.ranking("--input", path)
        self.assertEqual((done.returncode, found[0]), (0, ("128", "primus, but rounding stochastic by unknown words")))
        seeded = ["--input", path, "--rounding", "stochastic", "--quantizer", "primus", "--random-seed"]
        found, done = self.ranking(*seeded, 7)
        self.assertEqual((done.returncode, found[0]), (0, ("128", "primus")))
        found, done = self.ranking(*seeded, 8)
        self.assertEqual(done.returncode, 1)
        self.assertLess(int(found[0][0]), 100)
        tensors = load(self.make("--quantizer", "te_rocm", "--rounding", "toward_zero", "--m", 16))
        rows, cols = tensors["x"][1]
        tensors["random"] = ("U32", [rows, cols], bytes(4 * rows * cols))  # words of zero never round up
        write_safetensors(path, tensors)
        found, done = self.ranking("--input", path)
        self.assertEqual({text for count, text in found if count == "128"},
                         {"te_rocm, but rounding stochastic", "te_rocm, but rounding toward_zero"})

    def test_repeated_scales_and_padding_of_square_blocks(self):
        square = ["--quantizer", "primus", "--block-rows", 32, "--scale-placement", "nvidia_scale_128x4"]
        path = self.make(*square, "--m", 160, "--k", 64)
        self.same(*square, "--input", path, "--scale-padding", 127)
        self.differs("padding of scales: 502 of 502 bytes", *square, "--input", path, "--scale-padding", 0)
        square = square[:4]
        path = self.make(*square, "--m", 64, "--k", 64)
        tensors = load(path)
        scales = tensors["scales"][2]
        for row in (0, 13, 32, 63):  # once per row, as GEMM kernels read it
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
        path = self.make("--quantizer", "primus", "--rounding", "toward_zero", "--m", 16)
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
        self.refused(re.escape(f"tensor 'random': shape [{cols}, {rows}] is not [{rows}, {cols}], the shape of x"),
                     *seeded, "--input", path, "--tensor", "random=random.npy")
        tensors["random"] = ("U32", [rows, cols], b"\xff" * (4 * rows * cols))
        write_safetensors(path, tensors)
        self.differs("code: rounding", "--quantizer", "primus", "--rounding", "stochastic", "--input", path)
        # A search without stochastic rounding does not read them either.
        fixed = ["--identify", "--input", path, "--rounding"]
        self.refused("dump.safetensors: tensor 'random': give --rounding stochastic$", "--quantizer", "primus",
                     "--input", path)
        self.refused("dump.safetensors: tensor 'random': give --rounding stochastic, or no --rounding$", *fixed,
                     "nearest_even")
        for arguments in (fixed[:-1], (*fixed, "stochastic"), (*fixed, "nearest_even", "--quantizer", "primus")):
            self.assertIn(self.call(*arguments).returncode, (0, 1), arguments)

    def test_other_bits_of_a_code_a_byte(self):
        """Whole bytes are compared: a code has 4 or 6 bits, and the bits above are 0."""
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
                self.refused(f"tensor 'codes': byte 777 is {codes[777]}, which is no code of {bits} bits", *verb,
                             *known)

    def test_a_code_a_byte_of_a_transpose(self):
        """Transposed elements, not pairs of elements: with different extents, and in a square, whose shape does not
        tell."""
        for rows, columns in ((32, 128), (64, 64)):
            path = self.make("--quantizer", "ocp", "--m", rows, "--k", columns)
            tensors = load(path)
            codes = bytes(n for byte in tensors["codes"][2] for n in (byte & 15, byte >> 4))
            shape, data = turned([rows, columns], codes)
            known = ["--quantizer", "ocp", "--format", "mxfp4", "--code-placement", "column_major", "--input", path]
            for held in (shape, [rows * columns]):
                write_safetensors(path, {**tensors, "codes": ("U8", held, data)})
                self.same(*known)
            found, done = self.ranking("--format", "mxfp4", "--input", path, "--sample", 128)
            self.assertEqual((done.returncode, found[0][1]), (0, "torchao_floor, but codes in column_major"),
                             done.stdout)
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


class UnknownWords(Program):
    """Stochastic rounding checked by its distribution. Two codes are right where a value lies between numbers; the
    rest is compared as under any rounding."""

    def setUp(self):
        super().setUp()
        self.path = self.make("--quantizer", "te_rocm", "--rounding", "stochastic", "--random-seed", 7, "--axis",
                              "both")
        self.good = load(self.path)
        self.check = ["--quantizer", "te_rocm", "--rounding", "stochastic", "--input", self.path]

    def changed(self, tensor, data):
        write_safetensors(self.path, {**self.good, tensor: (self.good[tensor][0], [len(data)], bytes(data))})

    def kinds(self, out):
        return re.findall(r"^  ([a-z]+: [^:\n]+|nibble order \(blocks\)): (\d+)$", out, re.M)

    def test_the_distribution(self):
        self.assertEqual(self.same(*self.check).count(" blocks differ (0 scales, 0 of 16384 codes)\n  rounding by "
                                                      "unknown words: "), 2)
        self.same(*self.check, "--report", "report.json")
        report = json.loads((self.folder / "report.json").read_text())
        self.assertNotIn("identical", report)
        for side in ("codes", "codes_t"):
            self.assertEqual((report["accepted"], report[side]["codes_different"], len(report[side]["deviations"])),
                             (True, 0, 9))
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
                self.assertRegex(out,
                                 rf"\n  {tensor}, rows {row}\.\.{row}, elements {k // 32 * 32}\.\.{k // 32 * 32 + 31} "
                                 rf"along the "
                                 rf"block\n  source of row {row}: ( \S+){{32}}\n  after the rotation: ( \S+){{32}}\n"
                                 r"  amax \S+ \(0x[0-9a-f]{8}\) of \[\d+, \d+\], rule even, policy te_rocm\n"
                                 r"  scale byte 0x(\w\w) \(\S+\) expected, 0x\3 \(\S+\) written at byte \d+\n"
                                 rf"    \[{row}, {k}\] \S+: code 0x0\d \(\S+\) or 0x0\d \(\S+\) expected, "
                                 rf"0x0{codes[at] & 15 ^ bits:x} \(\S+\) written at byte {at}: {kind}\n")


class SourceTypes(Program):
    """x of F32 and F16 instead of BF16, along rows and columns, with and without a rotation."""

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
                # The same numbers, or the numbers to which the preset rounds them, in a wider type.
                values = struct.unpack(f"<{len(tensors['x'][2]) // struct.calcsize(letter)}{letter}", tensors["x"][2])
                shape = tensors["x"][1]
                write_safetensors(path, {**tensors, "x": ("F32", shape, struct.pack(f"<{len(values)}f", *values))})
                self.same(*known)
                write_safetensors(path, {**tensors, "x": ("BF16", shape, b"".join(map(to_bf16, values)))})
                (self.same if preset == "te_rocm" else lambda *a: self.differs("blocks differ", *a))(*known)


class BothOrientations(Program):
    """Codes and scales along rows and along columns of one source, as a fused kernel writes them."""

    LAUNCHES = (("te_rocm", [], []),
                ("te_rocm", [], ["--code-placement", "aiter_data_16x16", "--scale-placement", "aiter_scale"]),
                ("te_rocm", ["--format", "mxfp8_e4m3"], ["--scale-placement", "nvidia_scale_128x4"]),
                ("aiter_round_up", ["--rotation", 32, "--x-format", "F32"],
                 ["--scale-placement", "nvidia_scale_128x4"]))

    def make_both(self, preset, changes, placed, **name):
        path = self.make("--quantizer", preset, *changes, *placed, "--axis", "both", "--m", 256, **name)
        return path, ["--quantizer", preset, "--input", path, *(c for c in changes if c not in ("--x-format", "F32")),
                      *placed]

    def test_right_dumps(self):
        for preset, changes, placed in self.LAUNCHES:
            path, known = self.make_both(preset, changes, placed)
            with self.subTest(preset=preset, placed=placed):
                self.assertRegex(self.same(*known), r"\Acodes: 0 of 2048 blocks differ \(0 scales, 0 of 65536 codes\)\n"
                                                    r"codes_t: 0 of 2048 blocks differ \(0 scales, 0 of 65536 "
                                                    r"codes\)\n\Z")
                # The columns are the rows of the source's transpose.
                tensors = load(path)
                dtype, *x = tensors["x"]
                alone = {"x": (dtype, *turned(*x)), "codes": tensors["codes_t"], "scales": tensors["scales_t"]}
                write_safetensors(path, alone)
                self.assertRegex(self.same(*known), r"\Acodes: 0 of 2048 blocks differ")

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
                 (r"codes_t: 1 of 2048 blocks differ \(1 scales,", "scale: off by one: 1\n",
                  f"written at byte {at}\n")),
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
        self.refused("--m: 96 is no multiple of 64", "--quantizer", "ocp", "--make-case", "new", "--axis", "both",
                     "--m", 96)
        self.refused("--factor: ", "--quantizer", "nvidia", "--format", "nvfp4", "--make-case", "new", "--factor", -1)
        self.refused("--code-placement: not defined for these extents", "--quantizer", "ocp", "--make-case", "new",
                     "--with-d", "--m", 8, "--code-placement", "aiter_data_16x16")  # 16 rows of 32 bytes a tile
        self.refused("--m, --k: a tensor of 1099511627776 elements, the limit is 268435456", "--quantizer", "ocp",
                     "--make-case", "new", "--m", 1 << 20, "--k", 1 << 20)
        self.refused("--axis: ", "--quantizer", "ocp", "--make-case", "new", "--axis", "up")
        path = self.make("--quantizer", "ocp", "--axis", "column", "--k", 40)  # no whole blocks along rows
        self.assertEqual(sorted(load(path)), ["codes_t", "scales_t", "x"])
        self.assertRegex(self.same("--quantizer", "ocp", "--input", path), r"\Acodes_t: 0 of 80 blocks differ")


class PlantedFaults(Program):
    """Each fault is named by its kind, or by --identify as the change that explains the dump."""

    def setUp(self):
        super().setUp()
        self.path = self.make("--quantizer", "te_rocm")
        self.check = ["--quantizer", "te_rocm", "--input", self.path]

    def test_an_element(self):
        self.change(self.path, "codes", lambda b: b[:1000] + bytes([b[1000] ^ 1]) + b[1001:])
        out = self.differs(r"codes: 1 of 512 blocks differ \(0 scales, 1 of 16384 codes\)", *self.check, "--report",
                           "report.json")
        report = json.loads((self.folder / "report.json").read_text())
        self.assertEqual((report["identical"], report["codes"]["codes_different"]), (False, 1))
        self.assertRegex(out,
                         r"\[7, 208\] \S+: code 0x\w\w \(\S+\) expected, 0x\w\w \(\S+\) written at byte 1000: code: ")
        # Prints the whole block, which includes the element.
        x = floats_of_bf16(load(self.path)["x"][2])[7 * 256 + 192:7 * 256 + 224]
        self.assertIn("\n  source of row 7:  " + " ".join(f"{v:.6g}" for v in x) + "\n  after the rotation:  ", out)
        rotated = re.search(r"after the rotation:  (.*)\n", out).group(1).split(" ")
        self.assertEqual((len(rotated), rotated[16]),
                         (32, f"{float(re.search(r'208. (.*?): code', out).group(1)):.6g}"))

    def test_bits_of_a_nan_are_shown(self):
        tensors = load(self.path)
        block = next(i for i in range(len(tensors["scales"][2]))
                     if sum(v != v for v in floats_of_bf16(tensors["x"][2][64 * i:64 * i + 64])) == 1)
        self.change(self.path, "scales", lambda b: b[:block] + bytes([b[block] ^ 1]) + b[block + 1:])
        out = self.differs("1 of 512", *self.check)
        self.assertRegex(out, r"source of row \d+: .* nan \(0x7fc00000\) .*\n  after the rotation: .* nan \(0x")

    def test_ties_away_from_zero(self):
        path = self.make("--quantizer", "te_rocm", "--rounding", "nearest_away", "--m", 16)
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
        """Without --quantizer, the given fields are the quantizer."""
        path = self.make("--quantizer", "te_rocm", "--m", 16)
        for option, right, wrong, said in (("--scale-rule", "even", "floor", None), ("--rotation", 16, 0, None),
                                           ("--policy", "te_rocm", "ocp", None),
                                           ("--source", "bf16", "fp16", "source rounded to FP16"),
                                           ("--rounding", "nearest_even", "toward_zero", "rounding toward_zero")):
            with self.subTest(option=option):
                found, done = self.ranking("--input", path, option, right)
                self.assertEqual((done.returncode, found[0]), (0, ("128", "te_rocm")), done.stdout)
                found, done = self.ranking("--input", path, option, wrong)
                self.assertEqual(done.returncode, 1, done.stdout)
                if said:
                    self.assertEqual({said in text for _, text in found}, {True}, done.stdout)
                self.assertNotIn(("128", "te_rocm"), found)

    def test_changes_that_identify_names(self):
        for arguments, text in (
                (["--nibbles", "high"], "even element in the high nibble"),
                (["--rotation", 0], "no rotation"),
                (["--scale-rule", "floor"], "scale rule floor"),
                (["--scale-rule", "rceil"], "scale rule rceil"),
                (["--policy", "aiter"], "policy aiter"),
                (["--rounding", "toward_zero"], "rounding toward_zero"),
                (["--scale-placement", "column_major"], "scales transposed")):
            path = self.make("--quantizer", "te_rocm", "--m", 16, *arguments, name="changed.safetensors")
            self.differs("blocks differ", "--quantizer", "te_rocm", "--input", path)
            found, done = self.ranking("--quantizer", "te_rocm", "--input", path)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertEqual(found[0][1], "te_rocm, but " + text)

    def test_a_missing_factor_of_the_rotation(self):
        # Without 1/4, every number of every block is four times as large: the same codes, scales two higher.
        self.path = self.make("--quantizer", "te_rocm", "--m", 16)
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
                ("scale: off by one", "scales", ordinary // 32, scales[ordinary // 32] + 1),
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


class Threads(Program):
    def test_their_number_changes_nothing(self):
        """All output for a dump, with the first block, and the report: of rows, of columns, of unknown words, of
        FP8."""
        for made, known in ((["te_rocm", "--axis", "both", "--m", 128], ["te_rocm", "--scale-rule", "floor"]),
                            (["te_rocm", "--m", 128, "--scale-placement", "nvidia_scale_128x4"], ["te_rocm"]),
                            (["primus", "--rounding", "stochastic", "--random-seed", 5, "--m", 128],
                             ["te_rocm", "--rounding", "stochastic"]),
                            (["fp8", "--format", "fp8_e4m3", "--factor", 0.5], ["fp8", "--rounding", "up"])):
            path = self.make("--quantizer", *made)
            # Faults in the middle and at the end too, so that some kinds occur in later chunks of tiles only.
            for at in (0.3, 0.999):
                self.change(path, "codes", lambda b: b[:int(at * len(b))] + bytes([b[int(at * len(b))] ^ 4]) +
                            b[int(at * len(b)) + 1:])
            said = set()
            for threads in (1, 2, 5):
                out = self.differs("differ", "--quantizer", *known, "--input", path, "--threads", threads, "--report",
                                   "report.json")
                said.add((out, (self.folder / "report.json").read_text()))
            self.assertEqual(len(said), 1, made)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + [word for name in sys.argv[2:] for word in ("-k", name)])
