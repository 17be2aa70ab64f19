# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Mutants of mini-llama, which its Python tests have to notice: a copy of the tree is configured and built once, and then
again for each mutant, which compiles the one source that has changed."""
import shutil
import subprocess
import sys
import threading

TARGETS = ["examples/llama/mini-llama", "tests/libfaults.so"]


class Program:
    """mini-llama in a copy of the tree."""

    def __init__(self, root, folder):
        self.root = root
        self.tree = folder / "tree"
        self.build = self.tree / "build"
        self.lock = threading.Lock()

    def made(self):
        """What went wrong, or None."""
        done = subprocess.run(["ninja", "-C", str(self.build), *TARGETS], capture_output=True, text=True)
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
        if fault := self.made():
            sys.exit(f"mini-llama does not compile:\n{fault}")

    def outcome(self, mutant, mutated):
        """`killed`, `survived`, or how it does not compile. mutated(root, mutant): the source with its one change."""
        with self.lock:
            if not self.tree.exists():
                self.begin()
            source = self.tree / mutant.source
            before = source.read_text(encoding="utf-8")
            source.write_text(mutated(self.tree, mutant), encoding="utf-8")
            try:
                return self.made() or self.tested(mutant)
            finally:
                source.write_text(before, encoding="utf-8")

    def tested(self, mutant):
        # What a test does not name it does not take: mini_llama.py takes the program alone.
        faults = [str(self.build / TARGETS[1])] if "FAULTS" in (self.tree / mutant.test).read_text(encoding="utf-8") else []
        try:
            done = subprocess.run([sys.executable, str(self.tree / mutant.test), str(self.build / TARGETS[0]), *faults,
                                   *mutant.names], capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            return "killed"
        if done.returncode == 0 and "Ran 0 tests" in done.stderr:
            return f"no test of {mutant.test} has one of the names {', '.join(mutant.names)}"
        return "killed" if done.returncode else "survived"
