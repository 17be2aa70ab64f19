#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""rotoscale-validate --identify on quantizers' dumps: distinguishes and reports presets, changes and factors.

usage: validate_identify.py VALIDATE [--slow] [TEST...]   --slow: every preset in every format
"""
import json
import os
import re
import struct
import sys
import unittest

from safetensors_bytes import load, write_safetensors
import validate_quantizer
from validate_quantizer import PRESETS, floats_of_bf16

SLOW = "--slow" in sys.argv


class Program(validate_quantizer.Program):
    def make(self, *arguments, **more):
        """A dump of 128 blocks, unless told otherwise: four of each kind, rotated back and not."""
        return super().make(*arguments, *([] if "--m" in arguments else ["--m", 16]), **more)


class Presets(Program):
    #: Presets with equal bytes by definition: floor's rule under OCP's policy is OCP's procedure.
    EQUAL = [{"torchao_floor", "ocp"}]
    #: UE4M3 scales come from amax and factor without a rule, so presets that differ only in the rule are equal.
    #: Policies exponent_128 and largest_scale are equal too (docs/reference/numerics.md): 2^128 exceeds every scale.
    EQUAL_IN_NVFP4 = [{"aiter_round_up", "aiter_ceil"}, {"aiter_even", "nvidia"},
                      {"torchao_floor", "torchao_rceil", "torchao_even", "torchao_ceil", "ocp"}]

    def told_apart(self, preset, equal, *arguments, runs="128", asked=()):
        """The preset explains the whole dump. Other explanations without a change do so only if they equal it."""
        path = self.make("--quantizer", preset, *arguments)
        found, done = self.ranking("--input", path, *asked)
        self.assertEqual((done.returncode, found[0][0]), (0, runs), done.stdout)
        wholly = {name for count, text in found if count == runs and ", but " not in text for name in text.split(" = ")}
        self.assertEqual(wholly, next((names for names in equal if preset in names), {preset}), done.stdout)
        return found

    def test_every_preset_is_told_from_the_others(self):
        some = ("te_rocm", "primus", "aiter_round_up", "torchao_even", "torchao_ceil", "ocp")
        for blocks, presets in (("mxfp4", PRESETS if SLOW else some),
                                ("mxfp8_e4m3", PRESETS if SLOW else ("torchao_rceil",))):
            for preset in presets:
                with self.subTest(blocks=blocks, preset=preset):
                    found = self.told_apart(preset, self.EQUAL, "--format", blocks)
                    self.assertLess(int(found[1][0]), 128)  # no change of it explains all either

    def test_nvfp4(self):
        # Byte 127 for a block of zeros is not a UE4M3 number, so te_rocm makes none of these blocks.
        all_others = (*(preset for preset in PRESETS if preset != "te_rocm"), "torchao_nvfp4")
        for preset in all_others if SLOW else ("primus", "aiter_ceil", "nvidia", "torchao_nvfp4"):
            with self.subTest(preset):
                self.told_apart(preset, self.EQUAL_IN_NVFP4, "--format", "nvfp4")
        self.refused("--quantizer: no preset 'te_rocm' for these blocks", "--quantizer", "te_rocm", "--format", "nvfp4",
                     "--make-case", "new.safetensors")

    def test_fp6_and_int8(self):
        """F32 sources: no BF16 number lies between INT8's largest number, where rceil steps, and the midpoint to 2,
        where even steps."""
        some = (("mxfp6_e2m3", ("torchao_rceil",)), ("mxint8", ("primus", "aiter_even")))
        six = ("te_rocm", "primus", "aiter_even", "torchao_rceil", "nvidia", "ocp")
        for blocks, presets in ((blocks, six) for blocks in ("mxfp6_e2m3", "mxfp6_e3m2", "mxint8")) if SLOW else some:
            for preset in presets:
                with self.subTest(blocks=blocks, preset=preset):
                    found = self.told_apart(preset, self.EQUAL, "--format", blocks, "--x-format", "F32",
                                            asked=["--format", blocks])
                    # Inf counts as 2^127 in INT8 under policies exponent_128 and largest_scale.
                    if blocks != "mxint8" or preset not in ("aiter_even", "nvidia"):
                        self.assertLess(int(found[1][0]), 128)


class Searches(Program):
    def test_columns_under_a_rotation(self):
        for arguments, text in (([], "te_rocm"), (["--rotation", 32], "te_rocm, but rotation of 32 points")):
            path = self.make("--quantizer", "te_rocm", "--axis", "column", "--m", 64, *arguments)
            self.assertNotIn("codes", load(path))
            found, done = self.ranking("--quantizer", "te_rocm", "--input", path, "--sample", 128)
            with self.subTest(text=text):
                self.assertEqual((done.returncode, found[0]), (0, ("128", text)), done.stdout)
                # No tie survives the rounding of its products with 1/sqrt(32).
                also = {text + ", rounding nearest_away"} if "32 points" in text else set()
                self.assertLessEqual({t for count, t in found[1:] if count == "128"}, also)

    def test_squares(self):
        square = ["--block-rows", 32]
        for preset, more, text in (("te_rocm", [], "te_rocm"),
                                   ("primus", ["--scale-rule", "ceil"], "primus, but scale rule ceil")):
            path = self.make("--quantizer", preset, *square, "--m", 128, "--axis", "both", *more)
            found, done = self.ranking("--quantizer", preset, *square, "--input", path)
            self.assertEqual((done.returncode, found[0]), (0, ("64", text)), done.stdout)
            self.assertLess(int(found[1][0]), 64)

    def test_fp8_with_one_factor(self):
        for arguments, text in (([], "fp8"), (["--rounding", "nearest_away"], "fp8, but rounding nearest_away"),
                                (["--rounding", "toward_zero"], "fp8, but rounding toward_zero"),
                                (["--source", "bf16"], "fp8, but source rounded to BF16"),
                                (["--source", "fp16"], "fp8, but source rounded to FP16")):
            made = ["--quantizer", "fp8", "--format", "fp8_e4m3", "--factor", 0.25, "--x-format", "F32", "--axis",
                    "both"]
            path = self.make(*made, "--m", 64, *arguments)
            found, done = self.ranking("--quantizer", "fp8", "--input", path, "--sample", 128)
            with self.subTest(text=text):
                self.assertEqual((done.returncode, found[0]), (0, ("128", text)), done.stdout)
                self.assertLess(int(found[1][0]), 128)
        for used in (1.0, 0.25):  # factor unused, or its inverse stored
            path = self.make(*made[:4], "--factor", used, *made[6:], "--m", 64)
            self.change(path, "factor", lambda _: struct.pack("<f", 4.0))
            found, done = self.ranking("--quantizer", "fp8", "--input", path, "--sample", 128)
            self.assertEqual((done.returncode, found[0]), (0, ("128", f"fp8, but factor {used:g}")), done.stdout)

    def test_a_single_wrong_code_is_no_random_rounding(self):
        """Unknown words may give either neighbour of a value, but the dump must not always have the nearer one."""
        good = load(self.make("--quantizer", "te_rocm"))
        data = bytearray(good["codes"][2])
        data[1000] ^= 1
        path = self.folder / "flipped.safetensors"
        write_safetensors(path, {**good, "codes": (*good["codes"][:2], bytes(data))})
        found, done = self.ranking("--input", path)
        self.assertEqual((done.returncode, found[0]), (1, ("127", "te_rocm")), done.stdout)
        self.assertNotIn("stochastic", done.stdout)

    def test_an_orientation_of_its_own_rounding(self):
        """Gradients of which one orientation is rounded at random."""
        made = ["--quantizer", "primus", "--axis", "both", "--m", 64, "--k", 64]
        nearest = load(self.make(*made))
        random = load(self.make(*made, "--rounding", "stochastic", "--random-seed", 7))
        self.assertEqual(nearest["x"], random["x"])
        path = self.folder / "mixed.safetensors"
        write_safetensors(path, {**nearest, "codes_t": random["codes_t"], "scales_t": random["scales_t"]})
        done = self.ranking(*made[:2], "--input", path, "--sample", 1024)[1]
        self.assertEqual(done.returncode, 1)
        self.assertIn("\ncodes alone: 128  primus\ncodes_t alone: 128  primus, but rounding stochastic by unknown "
                      "words\n", done.stdout)

    def test_a_sample_is_said_and_the_whole_is_checked(self):
        path = self.make("--quantizer", "te_rocm")
        self.change(path, "codes", lambda b: b[:1600] + bytes([b[1600] ^ 1]) + b[1601:])
        for sample, total in ((16, ", a sample of 128"), (4096, "")):
            found, done = self.ranking("--quantizer", "te_rocm", "--input", path, "--sample", sample, "--report",
                                       "report.json")
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(f"runs of elements explained, of {min(sample, 128)}{total}:\n", done.stdout)
            self.assertEqual("but not all of the dump:\n  codes: 1 of 128 blocks differ\n    code: " in done.stdout,
                             sample == 16)
            self.assertEqual(found[0], (str(16 if sample == 16 else 127), "te_rocm"))
            report = json.loads((self.folder / "report.json").read_text())
            self.assertEqual((report["identical"], report["looked_at"], report["runs"], report["best"]["text"]),
                             (False, min(sample, 128), 128, "te_rocm"))

    def test_an_input_that_tells_nothing_apart(self):
        path = self.make("--quantizer", "ocp")
        tensors = load(path)
        tensors["x"] = ("BF16", [1, 32], b"\x80\x3f" * 32)
        tensors["codes"] = ("U8", [1, 16], b"\x66" * 16)
        tensors["scales"] = ("U8", [1, 1], bytes([125]))
        write_safetensors(path, tensors)
        self.assertIn("cannot be told apart on this input", self.ranking("--input", path)[1].stdout)


class Factors(Program):
    def test_the_factor_of_a_tensor(self):
        """Cases of odd seeds have an Inf, which makes NVFP4's factor 1. Cases of even seeds have none."""
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
            write_safetensors(path, {name: t for name, t in tensors.items() if name != "factor"})  # from the source
            self.same(*known)
            # A wrong factor with the right amax: the codes show it, and the number is named.
            write_safetensors(path, {**tensors, "amax": ("F32", [1], struct.pack("<f", amax)),
                                     "factor": ("F32", [1], struct.pack("<f", 2 * factor))})
            self.differs(r"\Afactor: \S+ expected of the amax, \S+ written\n", *known)

    def test_a_factor_that_the_dump_does_not_have(self):
        """NVFP4's factor comes from the amax after the rotation (the definition) or from the source's. The answer says
        which."""
        source, rows, columns = "the source's amax", "the amax of rotated rows", "the amax of rotated columns"
        for points, axis, of in ((0, "row", source), (64, "row", rows), (16, "column", columns), (16, "both", rows),
                                 (16, "both", source)):
            made = ["--quantizer", "nvidia", "--format", "nvfp4", "--seed", 2, "--m", 64, "--rotation", points,
                    "--axis", axis]
            path = self.make(*made)
            if of == source:
                x = floats_of_bf16(load(path)["x"][2])
                path = self.make(*made, "--factor", 2688 / max(abs(v) for v in x if v == v))
            tensors = load(path)
            (used,) = struct.unpack("<f", tensors.pop("factor")[2])
            write_safetensors(path, tensors)
            changes = f", but rotation of {points} points" if points else ""
            with self.subTest(points=points, axis=axis, of=of):
                found, done = self.ranking("--input", path, "--quantizer", "nvidia")
                self.assertEqual((done.returncode, found[0][1]),
                                 (0, f"nvidia{changes} (factor {used:.9g} assumed, of {of})"), done.stdout)
            # The factor decides: any other one explains less.
            self.assertEqual({text.split("(")[1] for count, text in found if count == found[0][0] and "(" in text},
                             {f"factor {used:.9g} assumed, of {of})"}, done.stdout)

    def test_each_orientation_has_a_factor_that_the_dump_does_not_have(self):
        """As in Transformer Engine: no single factor explains both orientations, and each has its own."""
        made = ["--quantizer", "nvidia", "--format", "nvfp4", "--seed", 8, "--m", 128, "--rotation", 16, "--axis",
                "both"]
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
        explained = re.search(rf"\ncodes alone: (\d+)  nvidia, but rotation of 16 points \(factor {of_rows} assumed, "
                              rf"of the amax of rotated "
                              r"rows\)\ncodes_t alone: (\d+)  " + said.replace(r"\S+", factor) + "\n", done.stdout)
        self.assertIsNotNone(explained, done.stdout)
        self.assertEqual(int(explained[1]) + int(explained[2]), 128)

    def test_what_is_advised_can_be_done(self):
        """If quantizers tie, the advised command makes a case of the dump's format under a new file name."""
        for preset, *blocks in (("ocp",), ("nvidia", "--format", "nvfp4"), ("fp8", "--format", "fp8_e4m3fnuz"),
                                ("primus", "--format", "e5m2fnuz"),
                                ("primus", "--format", "mxfp8_e4m3", "--block-rows", 32)):
            path = self.make("--quantizer", preset, *blocks, "--m", 32, "--k", 64)
            tensors = load(path)
            for name in tensors.keys() - {"factor"}:  # zeros, which distinguish only policies
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
    """Reports of --identify. Output and exit code are as without a report."""

    def report(self, code, *arguments):
        done = self.call("--identify", *arguments, "--report", "report.json")
        self.assertEqual((done.returncode, done.stderr), (code, ""))
        self.said = done.stdout
        listed = re.findall(r"^  (\d+)  (.*)$", done.stdout, re.M)
        found = json.loads((self.folder / "report.json").read_text())
        self.assertEqual([(str(c["explained"]), c["text"]) for c in found["candidates"]], listed)
        return found

    def test_the_best_explanation(self):
        path = self.make("--quantizer", "te_rocm", "--rotation", 32, "--scale-placement", "nvidia_scale_128x4",
                         "--nibbles", "high")
        found = self.report(0, "--input", path)
        best = found["best"]
        self.assertEqual((found["input"], found["quantizer"], found["identical"], found["runs"], found["looked_at"]),
                         (str(path), "", True, 128, 128))
        self.assertEqual({key: best[key] for key in ("rotation", "scale_placement", "code_placement", "nibbles",
                                                     "policy", "scale_rule")},
                         {"rotation": 32, "scale_placement": "nvidia_scale_128x4", "code_placement": "row_major",
                          "nibbles": "high", "policy": "te_rocm", "scale_rule": "even"})
        self.same("--quantizer", "te_rocm", "--input", path, *(f"--{key.replace('_', '-')}={best[key]}" for key in (
            "rotation", "scale_placement", "code_placement", "nibbles", "policy", "scale_rule", "rounding", "source")))
        path = self.make("--quantizer", "fp8", "--format", "fp8_e4m3", "--factor", 0.25)
        found = self.report(0, "--quantizer", "fp8", "--input", path)
        self.assertEqual(self.call("--identify", "--quantizer", "fp8", "--input", path).stdout, self.said)
        self.assertEqual((found["quantizer"], found["best"]["factor"], "rotation" in found["best"]),
                         ("fp8", 0.25, False))
        path = self.make("--quantizer", "primus", "--rounding", "stochastic", "--random-seed", 7)
        self.assertTrue(self.report(0, "--quantizer", "primus", "--input", path)["accepted"])

    def test_what_is_not_wholly_explained(self):
        path = self.make("--quantizer", "te_rocm", "--axis", "both", "--m", 64, "--k", 64)
        self.change(path, "codes_t", lambda b: bytes((byte << 4 | byte >> 4) & 255 for byte in b))
        found = self.report(1, "--quantizer", "te_rocm", "--input", path, "--sample", 1024)
        self.assertEqual({side: (e["text"], e["nibbles"]) for side, e in found["alone"].items()},
                         {"codes": ("te_rocm", "low"),
                          "codes_t": ("te_rocm, but even element in the high nibble", "high")})
        path = self.make("--quantizer", "te_rocm")
        self.change(path, "codes", lambda b: bytes((byte + i * 7) & 255 for i, byte in enumerate(b)))
        found = self.report(1, "--quantizer", "te_rocm", "--input", path)
        self.assertEqual((found["identical"], found["best"]), (False, None))

    def test_the_best_of_those_that_explain_the_sample(self):
        """The best preset explains most blocks of the whole dump. It need not be the first on the sample."""
        path = self.make("--quantizer", "torchao_even", "--m", 256)
        for wrong in (1, 0):
            self.change(path, "codes", lambda b: b[:9000] + bytes([b[9000] ^ 1]) + b[9001:])
            found = self.report(wrong, "--input", path, "--sample", 4)
            self.assertNotIn("torchao_even", found["candidates"][0]["text"])
            self.assertEqual((found["best"]["quantizer"], found["best"]["scale_rule"]), ("torchao_even", "even"))
            if wrong:
                self.assertEqual(found["codes"]["blocks_different"], 1)
                self.assertIn("\nbut not all of the dump, most of it by torchao_even:\n  codes: 1 of 2048 blocks "
                              "differ\n", self.said)

    def test_an_orientation_that_nothing_explains(self):
        path = self.make("--quantizer", "te_rocm", "--axis", "both", "--m", 64, "--k", 64)
        for tensor, factor in (("codes_t", 37), ("scales_t", 0)):
            self.change(path, tensor, lambda b: bytes((byte * factor + i * i * 11 * (factor != 0) + 3) & 255 for i,
                                                      byte in enumerate(b)))
        found = self.report(1, "--quantizer", "te_rocm", "--input", path)
        self.assertEqual((found["alone"]["codes"]["text"], found["alone"]["codes_t"]), ("te_rocm", None))
        self.assertIn("te_rocm\ncodes_t alone: nothing explains any of it\n", self.said)

    def test_notes(self):
        path = self.make("--quantizer", "nvidia", "--format", "nvfp4")
        self.change(path, "scales", lambda b: b[:40] + bytes([b[40] | 0x80]) + b[41:])
        note = ["1 bytes of scales have their top bit set, which UE4M3 does not have"]
        self.assertEqual(self.report(1, "--input", path)["notes"], note)
        self.differs("note: " + note[0], "--quantizer", "nvidia", "--input", path, "--report", "report.json")
        self.assertEqual(json.loads((self.folder / "report.json").read_text())["notes"], note)

    def test_an_input_whose_name_is_not_utf_8(self):
        path = self.make("--quantizer", "te_rocm")
        os.rename(path, os.fsencode(self.folder) + b"/g\xff.safetensors")
        for verb in (["--identify"], ["--quantizer", "te_rocm"]):
            done = self.call(*verb, "--input", os.fsdecode(b"g\xff.safetensors"), "--report", "report.json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads((self.folder / "report.json").read_text(encoding="utf-8"))["input"],
                             "g\ufffd.safetensors")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + [word for name in sys.argv[2:] if name != "--slow" for word in ("-k", name)])
