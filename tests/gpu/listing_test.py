#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Tests listing.py, the reader of AMD's listings: names, what may be outstanding at barriers, and what loops wait for; and what
amd_listings.py makes of the latter."""
import sys
import unittest

import amd_listings
import listing

FORMATS = {("8", "7", "127", "true"): "bf16", ("2", "1", "1", "true"): "e2m1"}
ENUMS = {"quantize_path": ["exact", "fast", "fast_h16"], "gemm_element": ["e2m1", "e4m3", "e5m2"]}


class Names(unittest.TestCase):
    """The expected names are what llvm-cxxfilt says, without namespaces and with the headers' names for numbers."""

    def expect(self, mangled, name):
        self.assertEqual(listing.Demangler(ENUMS, FORMATS).name(mangled), name)

    def test_functions(self):
        self.expect("_ZN9rotoscale3gpu16add_parts_kernelENS0_14gemm_argumentsE", "add_parts_kernel")
        self.expect("_Z5plaini", "plain")
        self.expect("not_mangled", "not_mangled")

    def test_internal_linkage_and_bool(self):
        self.expect("_ZN9rotoscale3gpu6gfx942L11gemm_kernelILb0EEEvNS1_9argumentsE", "gfx942::gemm_kernel<false>")

    def test_enumerators_through_substitutions(self):
        self.expect("_ZN9rotoscale3gpu6gfx950L11gemm_kernelILNS0_12gemm_elementE1ELS3_2ELb1EEEvNS1_9argumentsE",
                    "gfx950::gemm_kernel<e4m3, e5m2, true>")

    def test_types(self):
        self.expect("_ZN9rotoscale5probe11mfma_kernelINS0_12mfma_f16_k16EEEvNS0_13tile_pointersE", "mfma_kernel<mfma_f16_k16>")
        self.expect("_ZN9rotoscale3gpu15quantize_kernelINS_11small_floatIXtlNS_6formatELi8ELi7ELi127ELb1ELNS_8specialsE2ELb1ELb1E"
                    "EEEENS2_IXtlS3_Li2ELi1ELi1ELb1ELS4_0ELb1ELb1EEEEELNS0_13quantize_pathE2EEEvNS0_20quantize_kernel_argsE",
                    "quantize_kernel<bf16, e2m1, fast_h16>")

    def test_values(self):
        self.expect("_ZN9rotoscale1fIfLin3EEEvv", "f<float, -3>")
        self.expect("_ZN9rotoscale1fIXtlNS_6formatELi9ELi9ELi9EEEEEvv", "f<format{9, 9, 9}>")

    def test_headers(self):
        self.assertEqual(listing.formats()["4", "3", "7", "true"], "e4m3")
        self.assertEqual(listing.formats()["4", "3", "7", "false"], "ue4m3")
        self.assertEqual(listing.enumerators()["specials"][0], "none")


class Waits(unittest.TestCase):
    def expect(self, code, faults, barriers=1):
        """`faults`: (line, LDS operations, copies) of barriers; a line of `code` without indentation is a label."""
        text = "\n".join(line if line.endswith(":") else "\t" + line for line in code)
        self.assertEqual(listing.outstanding_at_barriers(listing.body(text, 1)), (faults, barriers))

    def test_waited(self):
        self.expect(["ds_write_b32 v0, v1", "s_waitcnt lgkmcnt(0)", "s_barrier", "s_endpgm"], [])

    def test_not_waited(self):
        self.expect(["ds_write_b32 v0, v1", "s_waitcnt vmcnt(0)", "s_barrier", "s_endpgm"], [(3, 1, False)])

    def test_waited_for_all_but_one(self):
        self.expect(["ds_read_b32 v0, v1", "ds_read_b32 v0, v1", "s_waitcnt lgkmcnt(1)", "s_barrier"], [(4, 1, False)])

    def test_scalar_loads_are_no_reason(self):
        self.expect(["s_load_dword s0, s[2:3], 0x0", "s_barrier"], [])

    def test_flat_counts_as_both(self):
        self.expect(["flat_store_dword v[0:1], v2", "s_waitcnt vmcnt(0)", "s_barrier"], [(3, 1, False)])

    def test_one_way_round_a_wait(self):
        code = ["ds_write_b32 v0, v1", "s_cbranch_vccz .LBB0_1", "s_waitcnt lgkmcnt(0)", ".LBB0_1:", "s_barrier"]
        self.expect(code, [(5, 1, False)])

    def test_last_round_of_a_loop(self):
        code = [".LBB0_1:", "s_barrier", "ds_read_b32 v0, v1", "s_cbranch_scc1 .LBB0_1", "s_endpgm"]
        self.expect(code, [(2, 64, False)])  # a wave that never waits: as many as are counted
        self.expect(code[:3] + ["s_waitcnt lgkmcnt(0)"] + code[3:], [])

    def test_code_behind_an_end_is_reached_by_branches_only(self):
        self.expect(["s_branch .LBB0_1", "ds_write_b32 v0, v1", ".LBB0_1:", "s_barrier", "s_endpgm", "s_barrier"], [])

    def test_copies(self):
        copy = "global_load_lds_dwordx4 v0, s[0:1]"
        load = "global_load_dword v1, v2, s[0:1]"
        self.expect([copy, "s_barrier"], [(2, 0, True)])
        self.expect([copy, "s_waitcnt vmcnt(0)", "s_barrier"], [])
        self.expect([copy, load, "s_waitcnt vmcnt(1)", "s_barrier"], [])  # the load is younger
        self.expect([load, copy, "s_waitcnt vmcnt(1)", "s_barrier"], [(4, 0, True)])

    def test_what_cannot_be_read_is_refused(self):
        for instruction in ("s_setpc_b64 s[30:31]", "s_swappc_b64 s[30:31], s[0:1]", "s_waitcnt 0x70"):
            with self.assertRaises(ValueError):
                self.expect([instruction, "s_barrier"], [])


class Loops(unittest.TestCase):
    CODE = [".LBB0_0:", "v_add_u32 v0, v1, v2", "s_cbranch_scc1 .LBB0_0", ".LBB0_1:", "ds_read_b128 v[0:3], v4", "ds_read_b128 v[0:3], v5",
            "s_waitcnt lgkmcnt(0)", "v_mfma_f32_16x16x16_bf16 a[0:3], v[0:1], v[2:3], a[0:3]", "ds_read_b128 v[0:3], v6",
            "s_cbranch_scc1 .LBB0_1", "s_endpgm"]

    def test_the_loop_with_the_most_products(self):
        code = list(enumerate(self.CODE, 1))
        loop = listing.main_loop(code)
        self.assertEqual(loop, self.CODE[4:10])
        self.assertEqual(listing.longest_wait_for_lds(loop), 2)
        self.assertEqual(listing.main_loop(code[:3]), [])

    PRODUCT, LOAD, COPY = "v_mfma_f32_16x16x16_bf16 a[0:3]", "global_load_dword v1, v2, s[0:1]", "global_load_lds_dwordx4 v0, s[0:1]"

    def test_idle_cycles(self):
        self.assertEqual(listing.idle_cycles(["s_nop 0", self.PRODUCT, "s_nop 7"]), 9)

    def test_products_before_a_load_is_waited_for(self):
        for loop, products in (([self.LOAD, self.PRODUCT, "s_waitcnt vmcnt(0)", self.PRODUCT], 1),
                               ([self.PRODUCT, "s_waitcnt vmcnt(0)", self.LOAD, self.PRODUCT], 2),  # in the next round
                               ([self.LOAD, self.COPY, "s_waitcnt vmcnt(1)", self.PRODUCT], 0),  # the copy is younger
                               ([self.COPY, self.LOAD, "s_waitcnt vmcnt(1)", self.PRODUCT, "s_waitcnt vmcnt(0)"], 1),
                               ([self.LOAD, self.PRODUCT, self.LOAD, "s_waitcnt vmcnt(0)"], 0),  # the second
                               ([self.LOAD, self.PRODUCT, "s_waitcnt lgkmcnt(0)"], None), ([self.COPY, "s_waitcnt vmcnt(0)"], None)):
            self.assertEqual(listing.products_before_wait(loop), products)

    READ, WRITE, SCALAR = "ds_read_b128 v[0:3], v4", "ds_write_b128 v4, v[0:3]", "s_load_dword s0, s[2:3], 0x0"

    def test_products_over_reads(self):
        read, product, done = self.READ, self.PRODUCT, "s_waitcnt lgkmcnt(0)"
        for loop, products in (([read, product, product, done, product], [2]),
                               ([read, done, product, product], [0]),
                               ([product, done, product, read, product], [2]),  # in the next round
                               ([done, product, read], [0]),
                               ([read, product, read, product, "s_waitcnt lgkmcnt(1)", product, done], [2, 2]),  # the older, then both
                               ([read, read, "s_waitcnt lgkmcnt(1)", product, done], [0, 1]),
                               ([read, self.WRITE, product, "s_waitcnt lgkmcnt(1)", product, done], [1]),  # the write is younger
                               ([read, self.SCALAR, "s_waitcnt lgkmcnt(1)", product, done], [0]),  # perhaps for the scalar load alone
                               ([read, self.LOAD, product, "s_waitcnt vmcnt(0) lgkmcnt(1)", product, done], [2]),
                               ([read, product, "s_waitcnt vmcnt(0)"], []), ([product, done], [])):
            self.assertEqual(listing.products_over_reads(loop), products)

    def test_reads_in_flight(self):
        """Two reads: one has at least one product before its wait, the other two."""
        read, product, done = self.READ, self.PRODUCT, "s_waitcnt lgkmcnt(0)"
        expected = amd_listings.Loop(0, 2, 1, 0, 0, (1, 2))
        for loop, allowed in (([done, read, product, product, read, product], True),
                              ([read, product, read, product, "s_waitcnt lgkmcnt(1)", product, done], True),
                              ([read, done, product, product, read, done, product], False),
                              ([read, done, product, read, product, product, done], False),  # one of them
                              ([read, product, read, "s_waitcnt lgkmcnt(1)", product, done], False),  # both, but too early
                              ([product, product, product, read, done, read, done], False),
                              ([done, read, product, product], False),  # where is the other?
                              ([read, read, product, product], False)):  # never waited for
            code = list(enumerate([".LBB0_0:", *loop, "s_cbranch_scc1 .LBB0_0"], 1))
            self.assertIs(expected.allows(amd_listings.Loop.of(code)), allowed, loop)

    def test_steps_of_gfx950(self):
        step = amd_listings.gfx950_step
        self.assertEqual(step(8, 2, 4, 5), amd_listings.Loop(0, 10, 0, 5, 32, (6,) * 4 + (14,) * 12))  # 256 x 256 of FP4
        self.assertEqual(step(4, 2, 2, 3), amd_listings.Loop(0, 2, 0, 3, 8, (2,) * 4 + (6,) * 4))  # 64 x 128
        self.assertEqual(step(16, 1, 4, 8), amd_listings.Loop(0, 14, 0, 8, 32, (3,) * 4 + (7,) * 28))  # 128 x 256 of FP8
        self.assertEqual(step(2, 2, 14, 2), amd_listings.Loop(0, 2, 0, 2, 28, (26,) * 4))  # 32 x 896
        self.assertEqual(step(6, 2, 8, 4), amd_listings.Loop(0, 6, 0, 4, 48, (14,) * 4 + (30,) * 8))  # 96 x 512


if __name__ == "__main__":
    sys.exit(not unittest.main(exit=False, verbosity=0).result.wasSuccessful())
