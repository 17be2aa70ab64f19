#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""rotoscale-validate and rotoscale-probe as their users call them: measured cases, made cases, reports, bad input.

usage: validate.py VALIDATE PROBE ROOT [TEST...]
"""
import json
import math
import re
import struct
import sys
import unittest
from pathlib import Path

import validate_quantizer
from safetensors_bytes import load, read_safetensors, write_safetensors

VALIDATE, PROBE, ROOT = (Path(a).resolve() for a in sys.argv[1:4])


class Program(validate_quantizer.Program):
    def make(self, name, *arguments):
        path = self.folder / name
        done = self.call("--make-case", path, "--m", 8, "--n", 8, "--with-d", *arguments)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        return path

    def models(self):
        done = self.call("--list-models")
        self.assertEqual(done.returncode, 0)
        return re.findall(r"^  (\S+) +K .*\n      \S+ group \d+.* result \w+", done.stdout, re.M)


class Cases(Program):
    def test_measured_results(self):
        """golden_test.cpp compares all files with gemm_ref."""
        for path in sorted((ROOT / "tests/golden").rglob("*.safetensors"))[::8]:
            model = read_safetensors(path)[0]["__metadata__"]["model"]
            done = self.call("--model", model, "--input", path)
            self.assertRegex(done.stdout, r"\A0 of \d+ elements differ\n\Z")
            done = self.call("--identify", "--input", path)
            self.assertEqual(done.returncode, 0, path)
            first = int(re.search(r"^  (\d+)  ", done.stdout, re.M).group(1))
            self.assertIn((str(first), model), re.findall(r"^  (\d+)  (\S+)", done.stdout, re.M), path)

    def test_every_model_explains_its_own_case(self):
        for number, model in enumerate(self.models()):
            path = self.make("case.safetensors", "--model", model)
            self.assertEqual(self.call("--model", model, "--input", path).returncode, 0, model)
            if number % 8 != 0:
                continue
            ranking = self.call("--identify", "--input", path, "--sample", 100)
            self.assertEqual(ranking.returncode, 0, model)
            self.assertIn(("100", model), re.findall(r"^  (\d+)  (\S+)", ranking.stdout, re.M))

    def test_a_wrong_model_is_rejected_and_explained(self):
        path = self.make("case.safetensors", "--model", "hopper-wgmma-fp8-f32")
        done = self.call("--model", "blackwell-f8f6f4-f32", "--input", path, "--report", "report.json")
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        for part in (r"^\d+ of 576 elements differ$", r"^  \d+-\d+: \d+$", r"^  \[\d, \d, \d\] model .*, kernel ",
                     r"^  k 0\.\.31: products .*; aligned to 2\^-?\d+, unit 2\^-?\d+, \d+ of 32 products cut"):
            self.assertTrue(re.search(part, done.stdout, re.M), part)
        report = json.loads((self.folder / "report.json").read_text())
        self.assertEqual((report["identical"], report["elements"]), (False, 576))
        self.assertEqual(sum(report["ulps"].values()), report["different"])
        self.assertLessEqual(len(report["worst"]), 10)

    def test_differences_are_counted_and_the_worst_are_listed(self):
        """Distances in many rows. d is FP32 of one sign, so that differences of codes count units in the last place."""
        path = self.make("case.safetensors", "--model", "hopper-mma-fp16-f32", "--kind", "normal")
        tensors = load(path)
        dtype, shape, data = tensors["d"]
        codes = list(struct.unpack("<64I", data))
        moved = {e: 1 + (5 * e) % 37 for e in range(64) if e % 5 != 0}
        moved[33] = moved[12] = moved[50] = 36
        for e, units in moved.items():
            codes[e] += units
        codes[7] = 0x7F800000
        del moved[7]
        tensors["d"] = (dtype, shape, struct.pack("<64I", *codes))
        write_safetensors(path, tensors)
        done = self.call("--model", "hopper-mma-fp16-f32", "--input", path, "--report", "report.json")
        self.assertEqual((done.returncode, done.stdout.splitlines()[0]), (1, f"{len(moved) + 1} of 64 elements differ"))
        report = json.loads((self.folder / "report.json").read_text())
        self.assertEqual(report["different"], len(moved) + 1)
        bins = {}
        for units in sorted(moved.values()):
            half = 1 << (units - 1).bit_length() - 1 if units > 2 else 0
            name = f"{half + 1}-{2 * half}" if units > 2 else str(units)
            bins[name] = bins.get(name, 0) + 1
        self.assertEqual(list(report["ulps"].items()), [*bins.items(), ("Inf or NaN", 1)])
        # Largest first, then by position.
        worst = [7, *sorted(moved, key=lambda e: (-moved[e], e))][:10]
        listed = [d["row"] * 8 + d["column"] for d in report["worst"]]
        self.assertEqual(listed, worst)

    def test_fit_finds_how_scales_enter(self):
        path = self.make("case.safetensors", "--model", "blackwell-mxf4-f32", "--kind", "wide")
        done = self.call("--fit", "--model", "cdna4-mfma-scale-f8f6f4-f32", "--input", path, "--sample", 64)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("  64  scaled_groups group 64 fraction_bits 35 subgroup 16 result fp32_truncate ", done.stdout)
        self.assertNotIn("  64  scaled_groups group 64 fraction_bits 34 ", done.stdout)
        self.assertNotIn("  64  aligned", done.stdout)

    def test_every_model_is_listed_with_its_evidence(self):
        lines = self.call("--list-models").stdout.splitlines()
        for model, evidence in {"exact": "by definition", "volta-mma-fp16-f16": "published vectors of V100",
                                "hopper-wgmma-fp8-f32": "measured by this project on NVIDIA H200, driver 580",
                                "cublas-fp16": "measured by this project on NVIDIA H200, driver 580",
                                "blackwell-nvf4-f32": "literature only", "cdna4-mfma-f8f6f4-f32": "unverified"}.items():
            self.assertEqual([evidence in line for line in lines if line.startswith(f"  {model} ")], [True], model)

    def test_packed_fp4_as_bytes_and_swizzled_scales(self):
        tensors = load(self.make("case.safetensors", "--model", "blackwell-nvf4-f32"))
        for name in "ab":
            _, shape, data = tensors[name]
            tensors[name] = ("U8", shape[:2] + [shape[2] // 2], data)
            dtype, shape, data = tensors["scale_" + name]
            batch, rows, columns = shape
            padded = -(-columns // 4) * 4
            swizzled = bytearray(b"\x38" * (batch * 128 * padded))
            for i in range(batch):
                for r in range(rows):
                    for c in range(columns):
                        at = i * 128 * padded + c // 4 * 512 + r % 32 * 16 + r // 32 * 4 + c % 4
                        swizzled[at] = data[(i * rows + r) * columns + c]
            tensors["scale_" + name] = (dtype, [batch, 128, padded], bytes(swizzled))
        write_safetensors(self.folder / "u8.safetensors", tensors)
        arguments = ["--model", "blackwell-nvf4-f32", "--input", "u8.safetensors", "--scale-layout", "nvidia"]
        self.assertEqual(self.call(*arguments, "--a-format", "e2m1", "--b-format", "e2m1").returncode, 0)
        self.refused("tensor 'b': is U8: --b-format", *arguments, "--a-format", "e2m1")
        known = [*arguments, "--a-format", "e2m1", "--b-format", "e2m1"]
        bytes_of = {name: ("I8", *tensors[name][1:])
                    for name in ("a", "b", "scale_a", "scale_b")}  # torch.int8 is stored this way
        write_safetensors(self.folder / "u8.safetensors", tensors | bytes_of)
        self.assertEqual(self.call(*known).returncode, 0)
        self.refused("tensor 'b': is I8: --b-format", *arguments, "--a-format", "e2m1")
        for name, allowed in (("a", "F16, BF16, F8_E4M3, .*, F64, U8, I8"), ("scale_a", "F8_E8M0, F8_E4M3, U8, I8")):
            *outer, columns = tensors[name][1]
            write_safetensors(self.folder / "u8.safetensors",
                              tensors | {name: ("I16", [*outer, columns // 2], tensors[name][2])})
            self.refused(f"tensor '{name}': type I16 is none of {allowed}$",
                         *(arguments + known[-2:] if name == "a" else known))

    def test_sparse_a_whole_and_as_kept_elements(self):
        path = self.make("case.safetensors", "--model", "hopper-sparse-mma-fp8-f32", "--kind", "normal")
        tensors = load(path)
        dtype, shape, data = tensors["a"]
        kept, metadata = bytearray(), bytearray()
        for window in range(0, len(data), 4):
            places = [i for i in range(4) if data[window + i]]
            places += [i for i in (0, 1, 2, 3) if i not in places]
            places = sorted(places[:2])
            kept += bytes(data[window + i] for i in places)
            nibble = places[0] | places[1] << 2
            if window % 8 == 0:
                metadata.append(nibble)
            else:
                metadata[-1] |= nibble << 4
        batch, rows, k = shape
        tensors["a"] = (dtype, [batch, rows, k // 2], bytes(kept))
        tensors["metadata_a"] = ("U8", [batch, rows, k // 8], bytes(metadata))
        write_safetensors(path, tensors)
        arguments = ["--model", "hopper-sparse-mma-fp8-f32", "--input", path]
        self.assertEqual(self.call(*arguments).returncode, 0)
        self.refused("tensor 'metadata_a': hopper-mma-fp8-f32 takes no sparse A", "--model", "hopper-mma-fp8-f32",
                     "--input", path)
        tensors["metadata_a"] = ("U8", [batch, rows, k // 8], b"\x44\x54" + bytes(metadata[2:]))
        write_safetensors(path, tensors)
        self.refused("tensor 'metadata_a': row 0, indices 3: 5 names no two", *arguments)
        tensors["metadata_a"] = ("U8", [batch, rows, k // 4], bytes(metadata) * 2)
        write_safetensors(path, tensors)
        self.refused("tensor 'metadata_a': shape", *arguments)
        tensors["metadata_a"] = ("F8_E4M3", [batch, rows, k // 8], bytes(metadata))
        write_safetensors(path, tensors)
        self.refused("tensor 'metadata_a': type F8_E4M3 is not U8", *arguments)
        dense = self.make("dense.safetensors", "--model", "hopper-mma-fp8-f32", "--kind", "normal")
        self.refused(r"tensor 'a': batch 0 row 0 has more than 2 elements .* k 0\.\.3", "--model",
                     "hopper-sparse-wgmma-fp8-f32", "--input", dense)

    def test_fp64(self):
        path = self.make("case.safetensors", "--model", "hopper-mma-fp64-f64", "--kind", "normal")
        arguments = ["--model", "hopper-mma-fp64-f64", "--input", path]
        self.refused("--promotion: not for F64", *arguments, "--promotion", 64)
        self.assertEqual(self.call(*arguments, "--split-k", 2).returncode, 1)
        self.refused("--fit: F64", *arguments, "--fit")
        self.assertEqual(self.call(*arguments, "--alpha", 2).returncode, 1)
        tensors = load(path)
        dtype, shape, data = tensors["d"]
        tensors["d"] = (dtype, shape, data[:8] + bytes([data[8] ^ 1]) + data[9:])
        write_safetensors(path, tensors)
        done = self.call(*arguments)
        self.assertEqual(done.returncode, 1)
        self.assertIn("1 of 64 elements differ\n", done.stdout)
        self.assertRegex(done.stdout, r"\[0, 0, 1\] model \S+ \(0x[0-9a-f]{16}\), kernel")
        self.assertRegex(done.stdout, r"  k 0: \S+ \* \S+; accumulator \S+\n  k 1: ")
        tensors["d"] = ("F32", shape, data[:256])
        write_safetensors(path, tensors)
        self.refused("tensor 'a': F64 requires that a, b and d are all F64", *arguments)

    def test_the_trace_shows_what_each_kind_of_unit_does(self):
        lines = {
            "hopper-mma-fp8-f32": r"  k 0 1 4 5 8 9 \.\.\. 29: .*of 16 products cut.*\n"
                                  r"  k 2 3 6 7 10 11 \.\.\. 31: .*\n  their sum \S+ is added; accumulator",
            "blackwell-nvf4-f32": r"  k 0\.\.63: products .*; aligned to 2\^-?\d+, unit 2\^-?\d+, \d of 4 groups cut",
            "cdna3-mfma-fp8-f32": r"  k 0\.\.15: .*; even k aligned to .*, \d of 8 products cut.*; odd k aligned to "
                                  r".*; then c joins, rounded down; accumulator",
            "hopper-mma-fp16-f16": r"aligned to 2\^\d, unit 2\^-\d\d, [1-9]\d* of 16 products cut \(-?\d.*e-\d\d in "
                                   r"all\)",
            "exact": r"  k 0\.\.127: products .*; accumulator \S+ -> (\S+)\n  result \1 \(0x[0-9a-f]{8}\) before"}
        for model, pattern in lines.items():
            path = self.make("case.safetensors", "--model", model, "--kind", "normal")
            done = self.call("--model", model, "--input", path, "--epilogue-c", "--alpha", 0.75)
            self.assertEqual(done.returncode, 1, model)
            self.assertTrue(re.search(pattern, done.stdout, re.M), done.stdout)

    def test_the_trace_ends_in_the_result(self):
        path = self.make("case.safetensors", "--model", "hopper-wgmma-fp8-f32", "--kind", "normal", "--k", 512)
        for extra in (["--split-k", 3, "--split-grain", 32], ["--promotion", 128], ["--split-k", 4, "--split-run", 64],
                      ["--split-k", 4, "--split-order", "pairwise", "--promotion", 64]):
            done = self.call("--model", "hopper-wgmma-fp8-f32", "--input", path, *extra)
            self.assertEqual(done.returncode, 1)
            model = re.search(r"^first:\n.*: model (\S+ \S+), kernel", done.stdout, re.M).group(1)
            self.assertIn(f"\n  result {model} before it is scaled", done.stdout)

    def test_a_kernel_pads_k(self):
        tensors = load(self.make("case.safetensors", "--model", "hopper-wgmma-fp8-f32", "--kind", "normal"))
        for name in "ab":
            dtype, shape, data = tensors[name]
            rows = [data[i * 128:i * 128 + 112] + bytes(16) for i in range(shape[1])]
            tensors[name] = (dtype, shape, b"".join(rows))
        write_safetensors(self.folder / "zeros.safetensors", tensors)
        for name in "ab":
            dtype, shape, data = tensors[name]
            tensors[name] = (dtype, [1, 8, 112], b"".join(data[i:i + 112] for i in range(0, len(data), 128)))
        write_safetensors(self.folder / "tail.safetensors", tensors)
        found = [self.call("--kernel", "hopper-fp8-promoted", "--promotion", 64, "--input", name).stdout
                 for name in ("zeros.safetensors", "tail.safetensors")]
        self.assertEqual(*(re.search(r"^first:\n.*", text, re.M).group(0) for text in found))
        self.refused("tensor 'a': K is 112, no multiple of the 32", "--model", "hopper-wgmma-fp8-f32", "--input",
                     "tail.safetensors")


def fp32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bf16(x, truncate=False):
    """An FP32 number rounded to BF16."""
    stored = floats([x])[2:] if truncate else validate_quantizer.to_bf16(x)
    return struct.unpack("<f", b"\0\0" + stored)[0]


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def halves(values):
    """BF16 numbers as they are stored."""
    return b"".join(struct.pack("<f", v)[2:] for v in values)


class Epilogues(Program):
    """Epilogues between sums and d, planted in dumps: found, and named with the options that check the dump."""
    MODEL = "hopper-wgmma-fp8-f32"

    def setUp(self):
        super().setUp()
        path = self.folder / "sums.safetensors"
        done = self.call("--make-case", path, "--model", self.MODEL, "--m", 8, "--n", 16, "--kind", "normal",
                         "--ignore", "c", "--with-d")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.tensors = load(path)
        self.sums = struct.unpack("<128f", self.tensors["d"][2])
        # BF16 numbers, so that each type of d can hold them.
        self.bias = [bf16(7.5 * math.sin(j + 1)) for j in range(16)]
        self.c = [bf16(9 * math.cos(3 * e)) for e in range(128)]

    def plant(self, d, dtype="F32", **more):
        tensors = dict(self.tensors) | {"d": (dtype, [1, 8, 16], d)}
        for name, values in more.items():
            tensors[name] = ("F32", [16] if name == "bias" else [1, 8, 16], floats(values))
        write_safetensors(self.folder / "planted.safetensors", tensors)
        return self.folder / "planted.safetensors"

    def expect(self, options, path):
        """The first line names model and options, only other models tie with it, and the options check the dump."""
        done = self.call("--identify", "--input", path)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        first = re.search(r"^  128  (\S+)  \(.*\)(?:, with (.*))?$", done.stdout, re.M)
        self.assertEqual((first.group(1), first.group(2) or ""), (self.MODEL, options), done.stdout)
        self.assertEqual(self.call("--model", self.MODEL, "--input", path, *options.split()).returncode, 0)
        if options:
            self.assertEqual(self.call("--model", self.MODEL, "--input", path).returncode, 1)

    def test_a_bias(self):
        planted = [fp32(s + self.bias[e % 16]) for e, s in enumerate(self.sums)]
        self.expect("", self.plant(floats(planted), bias=self.bias))
        self.expect("--ignore bias", self.plant(floats(self.sums), bias=self.bias))
        self.expect("--ignore c", self.plant(floats(self.sums), c=self.c))

    def test_alpha(self):
        for alpha in (0.37, 2.0, -1.0, 1 / math.sqrt(128), 1 / 3, 0.0123456789):
            with self.subTest(alpha):
                path = self.plant(floats([fp32(fp32(alpha) * s) for s in self.sums]))
                done = self.call("--identify", "--input", path)
                text = re.search(r"^  128  \S+  \(.*\), with --alpha (\S+)$", done.stdout, re.M).group(1)
                self.assertEqual(fp32(float(text)), fp32(alpha))
                self.expect("--alpha " + text, path)

    def test_alpha_of_bf16_results(self):
        for alpha in (0.37, 1 / math.sqrt(128), 448.0 * 0.01):
            with self.subTest(alpha):
                path = self.plant(halves([bf16(fp32(fp32(alpha) * s)) for s in self.sums]), "BF16")
                done = self.call("--identify", "--input", path)
                # BF16 leaves several: the one with fewest digits first, and the right one among them.
                found = re.findall(r"^  128  \S+  \(.*\), with --alpha (\S+)$", done.stdout, re.M)
                self.assertLess(abs(float(found[0]) / alpha - 1), 1e-4)
                self.assertIn(fp32(alpha), [fp32(float(text)) for text in found])
                for text in found:
                    self.assertEqual(self.call("--model", self.MODEL, "--input", path, "--alpha", text).returncode, 0)

    def test_c_at_the_end(self):
        for alpha, beta, options in ((1, 1, "--epilogue-c"), (1, -1.5, "--epilogue-c --beta -1.5"),
                                     (0.75, 1, "--epilogue-c --alpha 0.75"),
                                     (0.75, 0.3, "--epilogue-c --alpha 0.75 --beta 0.3")):
            with self.subTest(options):
                added = [fp32(fp32(beta) * c) for c in self.c]
                self.expect(options,
                            self.plant(floats([fp32(alpha * s + a) for s, a in zip(self.sums, added)]), c=self.c))

    def test_c_and_a_bias(self):
        added = [fp32(2.5 * c + self.bias[e % 16]) for e, c in enumerate(self.c)]
        self.expect("--epilogue-c --alpha 0.5 --beta 2.5",
                    self.plant(floats([fp32(0.5 * s + a) for s, a in zip(self.sums, added)]), c=self.c, bias=self.bias))

    def test_narrow_results_in_a_wide_type(self):
        self.expect("--output bf16", self.plant(floats([bf16(s) for s in self.sums])))

    def test_truncation(self):
        self.expect("--output-rounding toward_zero", self.plant(halves([bf16(s, True) for s in self.sums]), "BF16"))

    def test_a_rounding_before_the_bias(self):
        planted = [bf16(fp32(bf16(s) + self.bias[e % 16])) for e, s in enumerate(self.sums)]
        self.expect("--add-after-rounding", self.plant(halves(planted), "BF16", bias=self.bias))

    def test_what_no_epilogue_explains(self):
        planted = [fp32(s * (1 + 0.01 * math.sin(e))) for e, s in enumerate(self.sums)]
        done = self.call("--identify", "--input", self.plant(floats(planted)))
        self.assertEqual(done.returncode, 1)

    def test_bad_options(self):
        path = self.plant(floats(self.sums), bias=self.bias)
        known = ["--model", self.MODEL, "--input", path]
        self.refused("--ignore: there is no tensor 'c'", *known, "--ignore", "c")
        self.refused("--ignore: ", *known, "--ignore", "d")
        self.refused("--output: ", *known, "--output", "e4m3")
        self.refused("--tell-apart: is for --identify and --fit", *known, "--tell-apart", "x")
        self.refused("would be written, and is an input", *known, "--identify", "--tell-apart", path)
        for shape in ([1, 16], [15], [17], []):
            bad = dict(self.tensors) | {"bias": ("F32", shape, floats([0.0] * math.prod(shape)))}
            write_safetensors(path, bad)
            self.refused("tensor 'bias': shape", *known)

    def test_what_is_found_is_reported(self):
        """Reports of --identify and --fit. The output is as without a report."""
        def report(code, *arguments):
            done = self.call(*arguments, "--report", "report.json")
            self.assertEqual((done.returncode, done.stderr), (code, ""))
            return json.loads((self.folder / "report.json").read_text()), done.stdout

        path = self.plant(floats([fp32(fp32(0.37) * s) for s in self.sums]))
        found, out = report(0, "--identify", "--input", path)
        self.assertEqual(out, self.call("--identify", "--input", path).stdout)
        self.assertEqual((found["input"], found["identical"], found["elements"], found["looked_at"],
                          found["different"]), (str(path), True, 128, 128, 0))
        self.assertEqual((found["best"]["model"], found["best"]["explained"]), (self.MODEL, 128))
        self.assertEqual(self.call("--model", self.MODEL, "--input", path,
                                   *found["best"]["options"].split()).returncode, 0)
        listed = [(int(count), model) for count, model in re.findall(r"^  (\d+)  (\S+)  \(", out, re.M)]
        self.assertEqual([(c["explained"], c["model"]) for c in found["candidates"]], listed)
        self.assertEqual(found["conclusion"], out.splitlines()[1 + len(listed):])
        self.assertEqual(found["tied"], sum(c["explained"] == 128 for c in found["candidates"]))
        # Without an explanation there is no best model.
        found, out = report(1, "--identify", "--input", self.plant(floats([1e30 * (-1) ** e + e for e in range(128)])))
        self.assertEqual((found["identical"], found["best"]), (False, None))
        self.assertRegex(found["conclusion"][0],
                         "nothing explains any of it|nothing that was tried explains half of this result")
        path = self.make("fit.safetensors", "--model", "cdna3-mfma-fp16-f32", "--a-format", "F16", "--b-format", "F16")
        found, _ = report(0, "--fit", "--model", "cdna4-mfma-fp16-f32", "--input", path, "--sample", 80)
        self.assertEqual((found["model"], found["identical"], found["best"]["explained"]),
                         ("cdna4-mfma-fp16-f32", True, 80))
        self.assertRegex(found["best"]["model"], "late_c group 8 fraction_bits 24 late_bits 31 ")
        path = self.folder / "planted.safetensors"
        self.refused("nowhere", "--identify", "--input", path, "--report", "nowhere/report.json")
        self.refused("--tell-apart: './new' is the report", "--identify", "--input", path, "--report", "new",
                     "--tell-apart", "./new")

    def test_the_case_that_tells_apart(self):
        # Small integers, whose sums are exact under every model, and a c of zeros.
        e4m3 = {0: 0x00, 1: 0x38, 2: 0x40, -1: 0xB8}
        a = [(3 * i * i + i) % 4 - 1 for i in range(8 * 128)]
        b = [(5 * i * i + 2 * i) % 4 - 1 for i in range(16 * 128)]
        sums = [float(sum(x * y for x, y in zip(a[i * 128:i * 128 + 128], b[j * 128:j * 128 + 128])))
                for i in range(8) for j in range(16)]
        self.tensors["a"] = ("F8_E4M3", [1, 8, 128], bytes(e4m3[x] for x in a))
        self.tensors["b"] = ("F8_E4M3", [1, 16, 128], bytes(e4m3[x] for x in b))
        path = self.plant(floats(sums), c=[0.0] * 128)
        plain = self.call("--identify", "--input", path)
        self.assertEqual(plain.returncode, 0)
        tied = int(re.search(r"^the first (\d+) cannot be told apart on this input; --tell-apart FILE", plain.stdout,
                             re.M).group(1))
        self.assertIn("with --epilogue-c\n", plain.stdout)
        self.assertIn("with --ignore c\n", plain.stdout)
        done = self.call("--identify", "--input", path, "--tell-apart", "apart.safetensors", "--with-d", "--report",
                         "report.json")
        told = json.loads((self.folder / "report.json").read_text())["told_apart"]
        self.assertGreater(len(told), 1)
        for group in told:
            self.assertIn("\n  " + " = ".join(group) + "\n", done.stdout)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        groups = done.stdout.split("apart.safetensors tells apart, once the kernel's d is added:\n")[1].splitlines()
        self.assertEqual(sum(len(g.split(" = ")) for g in groups), tied)
        self.assertGreater(len(groups), 12)
        # The first model's result leaves the models that were reported equal.
        again = self.call("--identify", "--input", "apart.safetensors")
        self.assertEqual(again.returncode, 0)
        count = int(re.search(r"of (\d+):", again.stdout).group(1))
        left = re.findall(rf"^  {count}  (\S+)  \([^,\n]*(?:, [^w][^,\n]*)*\)(?:, (with .*))?$", again.stdout, re.M)
        self.assertEqual({f"{m} {w}".strip() for m, w in left}, set(groups[0].strip().split(" = ")))


class NotANumber(Program):
    def test_a_cpus_nan(self):
        path = self.make("case.safetensors", "--model", "hopper-mma-fp16-f32")
        tensors = load(path)
        dtype, shape, data = tensors["d"]
        words = struct.unpack(f"<{len(data) // 4}I", data)
        self.assertIn(0x7FFFFFFF, words)
        other = [0xFFC00000 if w & 0x7FFFFFFF > 0x7F800000 else w for w in words]
        tensors["d"] = (dtype, shape, struct.pack(f"<{len(other)}I", *other))
        write_safetensors(path, tensors)
        arguments = ["--model", "hopper-mma-fp16-f32", "--input", path]
        self.assertEqual(self.call(*arguments).returncode, 1)
        self.assertEqual(self.call(*arguments, "--nan", "any").returncode, 0)
        self.assertRegex(self.call("--identify", "--input", path).stdout,
                         r"hopper-mma-fp16-f32  \(.*\), [1-9]\d* more except for NaN bits")
        self.assertEqual(self.call("--identify", "--nan", "any", "--input", path).returncode, 0)

    def test_nothing_but_nan(self):
        path = self.make("case.safetensors", "--model", "blackwell-mxf8f6f4-f32", "--kind", "normal")
        tensors = load(path)
        dtype, shape, data = tensors["d"]
        tensors["d"] = (dtype, shape, struct.pack("<I", 0x7FFFFFFF) * (len(data) // 4))
        write_safetensors(path, tensors)
        arguments = ["--model", "blackwell-mxf8f6f4-f32", "--input", path]
        self.refused("tensor 'd': every element is NaN, and none of the model's is", *arguments)
        dtype, shape, data = tensors["scale_a"]
        tensors["scale_a"] = (dtype, shape, b"\xff" * len(data))
        write_safetensors(path, tensors)
        self.assertEqual(self.call(*arguments).returncode, 0)

    def test_a_sample_is_said_and_the_whole_is_compared(self):
        path = self.folder / "wide.safetensors"
        model = ["--model", "hopper-mma-fp16-f32"]
        made = self.call("--make-case", path, *model, "--kind", "normal", "--m", 64, "--n", 64, "--with-d")
        self.assertEqual(made.returncode, 0)
        tensors = load(path)
        dtype, shape, data = tensors["d"]
        for changed, code in ((data, 0), (data[:9000] + bytes([data[9000] ^ 1]) + data[9001:], 1)):
            write_safetensors(path, {**tensors, "d": (dtype, shape, changed)})
            done = self.call("--identify", "--input", path, "--sample", 16)
            self.assertEqual(done.returncode, code, done.stdout)
            self.assertIn("models by elements explained, of 16, a sample of 4096:\n", done.stdout)
            self.assertEqual("but not all of the result: 1 of 4096 elements differ\n" in done.stdout, code == 1)

    def test_a_sign_of_ue4m3(self):
        path = self.make("case.safetensors", "--model", "blackwell-nvf4-f32", "--kind", "normal")
        tensors = load(path)
        dtype, shape, data = tensors["scale_b"]
        tensors["scale_b"] = (dtype, shape, bytes(b | 0x80 for b in data))
        dtype, shape, data = tensors["d"]
        tensors["d"] = (dtype, shape, bytes([data[0] ^ 1]) + data[1:])
        write_safetensors(path, tensors)
        note = r"\d+ bytes of scale_b have their top bit set"
        arguments = ["--model", "blackwell-nvf4-f32", "--input", path]
        for code, rest in ((1, tensors), (0, {**tensors, "d": (dtype, shape, data)})):  # any difference
            write_safetensors(path, rest)
            done = self.call(*arguments, "--report", self.folder / "report.json")
            self.assertEqual(done.returncode, code)
            self.assertRegex(done.stdout, f"elements differ\nnote: {note}")
            report = json.loads((self.folder / "report.json").read_text())
            self.assertEqual(len(report["notes"]), 1)
            self.assertRegex(report["notes"][0], note)
        self.assertRegex(self.call("--fit", *arguments, "--sample", 20).stdout, rf"\Anote: {note}.*\nparameters by")
        plain = self.make("case.safetensors", "--model", "blackwell-nvf4-f32", "--kind", "normal")
        done = self.call(*arguments[:-1], plain, "--report", self.folder / "report.json")
        self.assertNotIn("note", done.stdout)
        self.assertEqual(json.loads((self.folder / "report.json").read_text())["notes"], [])


class BadInput(Program):
    def test_arguments(self):
        path = self.make("case.safetensors")
        self.refused("--input: needed", "--model", "hopper-wgmma-fp8-f32")
        self.refused("--model: needed", "--input", path)
        self.refused("did you mean 'hopper-wgmma-fp8-f32'", "--model", "hopper-wgma-fp8-f32", "--input", path)
        self.refused("--kernel: no kernel 'x'", "--kernel", "x", "--input", path)
        self.refused("absent.safetensors", "--model", "hopper-wgmma-fp8-f32", "--input", "absent.safetensors")
        before = path.read_bytes()
        known = ["--model", "hopper-wgmma-fp8-f32", "--input", path]
        self.refused("case.safetensors: would be written, and is an input", *known, "--report", path)
        self.assertEqual(path.read_bytes(), before)
        self.assertEqual([p.name for p in self.folder.iterdir()], ["case.safetensors"])

    def test_control_characters_are_escaped(self):
        """A message is one line for every argument and file name."""
        path, odd = self.make("case.safetensors"), "a\nb\x1b"
        for argument in ("--nan", "--threads", "--split-sum", "--kernel", "--model", "--tensor"):
            self.refused(r"a\\x0ab\\x1b", "--input", path, argument, odd)
        self.refused(r"a\\x0ab\\x1b: ", "--input", odd)
        self.refused(r"unknown argument '--a\\x0ab\\x1b'", "--" + odd)
        for argument in ("--instruction", "--save", "--seed"):
            self.refused(r"a\\x0ab\\x1b", argument, odd, program=PROBE)

    def test_tensors(self):
        tensors = load(self.make("case.safetensors", "--model", "blackwell-mxf8f6f4-f32", "--kind", "normal"))
        path = self.folder / "bad.safetensors"

        def refused(pattern, change, model="blackwell-mxf8f6f4-f32"):
            bad = dict(tensors)
            change(bad)
            write_safetensors(path, bad)
            self.refused(pattern, "--model", model, "--input", path)

        def shape(name, new, dtype=None):
            def change(t):
                size = 1
                for extent in new:
                    size *= extent
                old = t[name][0]
                width = {"F32": 4, "F16": 2}.get(dtype or old, 1)
                t[name] = (dtype or old, new, (t[name][2] * 9)[:size * width])
            return change

        for name in "abd":
            refused(f"tensor '{name}': missing", lambda t: t.pop(name))
        refused("tensor 'scale_a': missing", lambda t: t.pop("scale_a"))
        refused("tensor 'biases': not part", lambda t: t.update(biases=("F32", [1], b"\0" * 4)))
        refused("tensor 'b': K is 64", shape("b", [1, 8, 64]))
        refused("tensor 'd': shape", shape("d", [1, 8, 7]))
        refused("tensor 'c': shape", shape("c", [1, 7, 8]))
        refused("tensor 'b': shape .* has batch 2", shape("b", [2, 8, 128]))
        refused("tensor 'a': .* rank", shape("a", [1, 1, 8, 128]))
        for wrong in ([1, 8, 5], [1, 4, 8], [8, 4, 1], [1, 32], [32]):  # [1, 8, 4] is right
            refused("tensor 'scale_b': shape", shape("scale_b", wrong))
        refused("tensor 'd': type F8_E4M3", shape("d", [1, 8, 8], "F8_E4M3"))
        refused("tensor 'd': every element is NaN", lambda t: t.update(d=("F32", [1, 8, 8], b"\xff" * 256)))
        refused("does not multiply", lambda t: None, "hopper-mma-fp16-f32")
        refused("takes no scales", lambda t: None, "hopper-wgmma-fp8-f32")
        refused("tensor 'a': shape .* is empty", shape("a", [1, 0, 128]))
        refused("tensor 'a': shape .* is empty", shape("a", [0, 8, 128]))
        refused("tensor 'a': shape .* is empty", shape("a", [1 << 62, 0, 128]))
        for name in "ab":
            tensors[name] = (tensors[name][0], [1, 8, 80], tensors[name][2][:640])
            del tensors["scale_" + name]
        refused("tensor 'a': K is 80, no multiple of the 32", lambda t: None, "hopper-wgmma-fp8-f32")

    def test_probe(self):
        self.refused("no instruction's name contains 'x86'", "--instruction", "x86", program=PROBE)
        self.refused("--save", "--save", "nowhere", program=PROBE)
        self.refused("^rotoscale-probe: --instruction: is empty$", "--instruction", "", program=PROBE)
        self.refused("--gemm", "--cpu", "--gemm", program=PROBE)
        done = self.call("--cpu", "--list", program=PROBE)
        if done.returncode != 0:
            self.assertEqual((done.returncode, done.stdout), (77, ""))
            self.assertRegex(done.stderr, r"\Arotoscale-probe: --cpu: .*\n\Z")


class Probe(Program):
    def test_models_answer_for_themselves_and_files_validate(self):
        done = self.call("--outputs", 3000, "--save", self.folder, "--seed", 5, program=PROBE)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        files = list(self.folder.glob("*.safetensors"))
        self.assertGreaterEqual(len(files), 5)
        for path in files:
            model = read_safetensors(path)[0]["__metadata__"]["model"]
            self.assertEqual(self.call("--model", model, "--input", path).returncode, 0, path)

    def test_exponentials(self):
        done = self.call("--exp2", 65537, program=PROBE)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertIn("ex2.approx.ftz.f32  ex2_approx: 0 of 65536 differ, digest 0x0b277404a3ad7c38", done.stdout)
        self.refused("--exp2", "--exp2", 0, program=PROBE)
        self.refused("--gemm", "--exp2", 1, "--gemm", program=PROBE)

    def test_whole_gemms(self):
        done = self.call("--gemm", "--sizes", 128, "--save", self.folder, program=PROBE)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        lines = [line.split(" | ") for line in done.stdout.splitlines() if " | " in line]
        own = [line for line in lines if line[0] == "own"]
        self.assertGreaterEqual(len(own), 2)
        for line in own:
            self.assertEqual(line[3], "4096 of 4096", line)
        # The library's stand-in adds in one chain, then in two parts, then in an order that no candidate has.
        found = {(line[0], line[1], line[2]): line[4:] for line in lines if line[0] not in ("own", "library")}
        fp16 = [found["FP16 to FP32", "128x128x128", str(i)] for i in range(3)]
        self.assertEqual(fp16[0], ["4096 of 4096", "hopper-mma-fp16-f32, one chain"])
        self.assertEqual(fp16[1], ["4096 of 4096", "hopper-mma-fp16-f32, parts of 64, added ascending"])
        self.assertEqual(fp16[2][0], "not found")
        self.assertEqual(found["E4M3 to BF16", "208x272x336", "0"], ["4096 of 4096",
                                                                      "hopper-wgmma-fp8-f32, promoted every 128"])
        # Unexplained GEMMs are saved: all but 10 fraction bits match the model that made this one.
        saved = self.folder / "FP16_to_FP32_128x128x128_2.safetensors"
        fitted = self.call("--fit", "--model", "hopper-mma-fp16-f32", "--input", saved, "--sample", 40)
        self.assertRegex(fitted.stdout, r"  40  aligned group 16 fraction_bits 10 result fp32_truncate ")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + [word for name in sys.argv[4:] for word in ("-k", name)])
