# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Token files of examples/train/write_tokens.py: both forms. A token outside the vocabulary leaves no file.
Usage: write_tokens.py SCRIPT"""
import importlib.util
import os
import struct
import sys
import tempfile
import unittest


class WriteTokens(unittest.TestCase):
    def test_forms(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "t.bin")
            for vocabulary, magic, version, form in ((65536, 20240520, 1, "H"), (65537, 20240801, 7, "I")):
                self.assertEqual(SCRIPT.write(path, vocabulary, [[0, 65535], [], [7]]), 3)
                with open(path, "rb") as file:
                    data = file.read()
                self.assertEqual(struct.unpack("<256i", data[:1024]), (magic, version, 3) + (0,) * 253)
                self.assertEqual(struct.unpack(f"<3{form}", data[1024:]), (0, 65535, 7))
            os.remove(path)
            for tokens in ([300], [-1]):
                self.assertRaisesRegex(ValueError, "vocabulary of 300", SCRIPT.write, path, 300, [[1], tokens])
            self.assertEqual(os.listdir(folder), [])


spec = importlib.util.spec_from_file_location("write_tokens", sys.argv.pop(1))
SCRIPT = importlib.util.module_from_spec(spec)
spec.loader.exec_module(SCRIPT)
unittest.main()
