# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of mini-llama evaluated by Hugging Face transformers in float64 gives the loss that `mini-llama eval` gives
in FP32. Skips (77) where torch and transformers are missing; ROTOSCALE_ORACLE_PYTHON may name an interpreter that has
them.  usage: transformers_test.py MINI_LLAMA"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

SEQUENCE, WINDOWS = 64, 8
HERE = pathlib.Path(__file__).parent


def main():
    python = os.environ.get("ROTOSCALE_ORACLE_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import torch, transformers"], capture_output=True).returncode != 0:
        print("skipped: torch and transformers are not installed (ROTOSCALE_ORACLE_PYTHON)")
        return 77
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        # Generated text: bytes of a fixed linear congruence, letters only, so that there is something to learn.
        state, text = 1, bytearray()
        for _ in range(20 * (WINDOWS * SEQUENCE + 1)):
            state = (state * 1103515245 + 12345) % 2**31
            text.append(97 + (state >> 16) % 7 * (state >> 20) % 26)
        data = folder / "text"
        data.write_bytes(text)
        subprocess.run([program, "train", "--data", data, "--out", folder / "run", "--recipe", "fp32", "--steps", "20",
                        "--batch", "4", "--sequence", str(SEQUENCE), "--hidden-size", "64", "--intermediate-size", "96",
                        "--num-hidden-layers", "2", "--final-eval-windows", str(WINDOWS)], check=True,
                       stdout=subprocess.DEVNULL)
        checkpoint = next((folder / "run" / "checkpoints").iterdir())
        ours = json.loads(subprocess.run([program, "eval", "--checkpoint", checkpoint, "--windows", str(WINDOWS)],
                                         check=True, capture_output=True).stdout)
        held_out = round(len(text) * 0.05)
        theirs = subprocess.run([python, HERE / "transformers_reference.py", "--checkpoint", checkpoint, "--data", data,
                                 "--offset", str(len(text) - held_out), "--windows", str(WINDOWS), "--seq", str(SEQUENCE)],
                                check=True, capture_output=True, text=True).stdout.split()[-1]
        difference = abs(ours["val_loss"] - float(theirs))
        print(f"ours {ours['val_loss']}, transformers {theirs}, difference {difference:.1e}")
        # FP32 against float64: about 100 roundings of 2^-24 on the way to a logit, averaged over 512 tokens.
        assert difference < 1e-6, "the losses differ"
    return 0


if __name__ == "__main__":
    sys.exit(main())
