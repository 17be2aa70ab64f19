# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Mutants of a program, which its Python tests have to notice: a copy of the tree is configured and the program built once, and
then again for each mutant, which compiles the one source that has changed. The tests run once without a mutant first: they
must pass, and their time says how long is too long."""
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

LONGEST = 3600  # seconds of a mutant's tests without a mutant
# By how the names of a program's tests begin: the program, and what else they take.
TARGETS = {"mini_llama": ["examples/llama/mini-llama", "tests/libfaults.so"], "validate": ["examples/validate/rotoscale-validate"]}


def targets_of(test):
    name = test.rsplit("/", 1)[-1]
    return next(targets for begin, targets in TARGETS.items() if name.startswith(begin))


class Program:
    """Programs in a copy of the tree."""

    def __init__(self, root, folder):
        self.root = root
        self.tree = folder / "tree"
        self.build = self.tree / "build"
        self.lock = threading.Lock()
        self.unchanged = {}  # by test and names: what is wrong with them where nothing is, or None, and their longest time

    def made(self, test):
        """What went wrong, or None."""
        done = subprocess.run(["ninja", "-C", str(self.build), *targets_of(test)], capture_output=True, text=True)
        return done.stdout[-2000:] if done.returncode else None

    def begin(self):
        listed = subprocess.run(["git", "-C", str(self.root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                check=True, capture_output=True, text=True).stdout
        for path in filter(None, listed.split("\0")):
            if (self.root / path).is_file():
                (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.root / path, self.tree / path)
        subprocess.run(["meson", "setup", str(self.build), str(self.tree), "-Dtests=enabled", "-Dexamples=enabled",
                        "-Dbench=disabled", "-Dgpu=none", "-Doptimization=1", "-Ddebug=false"],
                       check=True, capture_output=True)

    def outcome(self, mutant, mutated):
        """`killed`, `survived`, `timed out`, or what is wrong: with the tests before any change, or how the mutant does not
        compile. mutated(root, mutant): the source with its one change."""
        with self.lock:
            if not self.tree.exists():
                self.begin()
            if fault := self.passes_unchanged(mutant):
                return fault
            source = self.tree / mutant.source
            before = source.read_text(encoding="utf-8")
            source.write_text(mutated(self.tree, mutant), encoding="utf-8")
            try:
                return self.made(mutant.test) or self.tested(mutant, self.unchanged[mutant.test, mutant.names][1])
            finally:
                source.write_text(before, encoding="utf-8")

    def passes_unchanged(self, mutant):
        """What is wrong with a mutant's tests where nothing is, or None. Found out once."""
        tests = mutant.test, mutant.names
        if tests not in self.unchanged:
            if fault := self.made(mutant.test):  # the mutant before may have left its program
                sys.exit(f"{targets_of(mutant.test)[0]} does not compile:\n{fault}")
            begin = time.monotonic()
            found = self.tested(mutant, LONGEST)
            took = time.monotonic() - begin
            what = {"survived": None, "killed": "fails without a mutant"}.get(found, found)
            self.unchanged[tests] = what and f"{mutant.test} {' '.join(mutant.names)}: {what}", max(300, 10 * took)
        return self.unchanged[tests][0]

    def tested(self, mutant, limit):
        # What a test does not name it does not take: mini_llama.py takes the program alone.
        targets = targets_of(mutant.test)
        faults = [str(self.build / targets[1])] if "FAULTS" in (self.tree / mutant.test).read_text(encoding="utf-8") else []
        test = subprocess.Popen([sys.executable, str(self.tree / mutant.test), str(self.build / targets[0]), *faults, *mutant.names],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            _, said = test.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(test.pid, signal.SIGKILL)  # with the programs that it runs
            test.communicate()
            return f"timed out after {limit:.0f} s"
        if test.returncode == 0 and "Ran 0 tests" in said:
            return f"no test of {mutant.test} has one of the names {', '.join(mutant.names)}"
        return "killed" if test.returncode else "survived"
