#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Times a small training run with one thread and with the default, while 0, 1, ... all cores have other work.

usage: busy.py MINI_LLAMA TEXT   Prints the median of three runs in seconds for each load, and the ratio to one thread.
The thread pool's target is a ratio of at most 1.3 under every load.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time

SHAPE = ("--recipe bf16 --steps 200 --hidden-size 64 --num-hidden-layers 2 --num-attention-heads 2 "
         "--num-key-value-heads 1 --batch 4 --sequence 64 --device cpu").split()


def seconds(program, text, threads):
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run([program, "train", "--data", text, "--out", f"{folder}/run", *SHAPE, *threads], check=True,
                       stdout=subprocess.DEVNULL)
        return time.perf_counter() - start


def main(program, text):
    print("busy cores  one thread  default  ratio")
    for busy in range(len(os.sched_getaffinity(0)) + 1):
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            one, default = (statistics.median(seconds(program, text, threads) for _ in range(3))
                            for threads in (["--threads", "1"], []))
        finally:
            for hog in hogs:
                hog.kill()
        print(f"{busy:10}  {one:10.2f}  {default:7.2f}  {default / one:5.2f}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
