# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Reads listings of AMD device code: kernels with their names as a reader writes them, what they use, and their waits."""
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BUILTIN = {"v": "void", "b": "bool", "a": "signed char", "h": "unsigned char", "s": "short", "t": "unsigned short", "i": "int",
           "j": "unsigned", "l": "long", "m": "unsigned long", "x": "long long", "y": "unsigned long long", "f": "float",
           "d": "double", "c": "char"}


def enumerators():
    """enum -> its enumerators in order, of every `enum class` of the headers (all count from 0)."""
    found = {}
    for folder in ("include", "gpu"):
        for path in sorted((ROOT / folder).rglob("*.hpp")):
            text = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
            for name, body in re.findall(r"enum class (\w+)(?:\s*:\s*[\w:]+)?\s*\{(.*?)\}", text, re.S):
                found[name] = re.findall(r"\w+", re.sub(r"=[^,}]*", "", body))
    return found


def formats():
    """(exponent bits, mantissa bits, bias, has it a sign?) -> name; of formats that share them the first."""
    text = (ROOT / "include/rotoscale/format.hpp").read_text(encoding="utf-8")
    found = {}
    for name, *fields, signed in re.findall(r"inline constexpr format (\w+)\{(\d+), (\d+), (\d+)(?:, (true|false))?", text):
        found.setdefault((*fields, signed or "true"), name)
    return found


class Demangler:
    """Names of the Itanium C++ ABI as far as kernels need them: nested names, template arguments that are types, integers,
    enumerators or aggregates of them, and substitutions. Enumerators and formats get their names from the headers."""

    def __init__(self, enums, format_names):
        self.enums, self.formats = enums, format_names

    def name(self, mangled):
        """`_ZN9rotoscale3gpu6gfx942L11gemm_kernelILb0EEEv...` -> `gfx942::gemm_kernel<false>`."""
        self.text, self.at, self.seen = mangled, 2, []
        if not mangled.startswith("_Z"):
            return mangled
        return self.short(self.nested() if self.peek("N") else self.source_name())

    @staticmethod
    def short(name):
        return re.sub(r"small_float<(\w+)>", r"\1", re.sub(r"^rotoscale::(gpu::|probe::)?", "", name))

    def peek(self, part):
        return self.text.startswith(part, self.at)

    def take(self, part):
        if not self.peek(part):
            raise ValueError(f"{self.text}: '{part}' expected at {self.at}")
        self.at += len(part)

    def source_name(self):
        if self.peek("L"):  # internal linkage
            self.at += 1
        length = re.compile(r"\d+").match(self.text, self.at)
        if length is None:
            raise ValueError(f"{self.text}: a name expected at {self.at}")
        self.at = length.end() + int(length.group())
        return self.text[length.end():self.at]

    def substitution(self):
        match = re.compile(r"S([0-9A-Z]*)_").match(self.text, self.at)
        self.at = match.end()
        return self.seen[int(match.group(1), 36) + 1 if match.group(1) else 0]

    def nested(self):
        self.take("N")
        name = ""
        while not self.peek("E"):
            if self.peek("S"):
                name = self.substitution()
                continue
            if self.peek("I"):
                name += self.arguments()
            else:
                name += ("::" if name else "") + self.source_name()
            self.seen.append(name)
        self.take("E")
        return name

    def arguments(self):
        self.take("I")
        found = []
        while not self.peek("E"):
            found.append(self.argument())
        self.take("E")
        return "<" + ", ".join(found) + ">"

    def argument(self):
        if self.peek("L"):
            return self.literal()
        if self.peek("X"):
            self.take("X")
            found = self.aggregate()
            self.take("E")
            return found
        return self.short(self.type())

    def type(self):
        if self.peek("N"):
            return self.nested()
        if self.peek("S"):
            name = self.substitution()
            if self.peek("I"):
                name += self.arguments()
                self.seen.append(name)
            return name
        if self.text[self.at] in BUILTIN:
            self.at += 1
            return BUILTIN[self.text[self.at - 1]]
        name = self.source_name()
        self.seen.append(name)
        return name

    def literal(self):
        self.take("L")
        kind = self.type()
        value = re.compile(r"n?\d+").match(self.text, self.at)
        self.at = value.end()
        self.take("E")
        number = int(value.group().replace("n", "-"))
        if kind == "bool":
            return "true" if number else "false"
        enum = self.enums.get(kind.rpartition("::")[2])
        return enum[number] if enum else str(number)

    def aggregate(self):
        self.take("tl")
        kind = self.type()
        fields = []
        while not self.peek("E"):
            fields.append(self.literal() if self.peek("L") else self.aggregate())
        self.take("E")
        if kind.endswith("::format"):
            return self.formats.get(tuple(fields[:4]), f"format{{{', '.join(fields)}}}")
        return f"{self.short(kind)}{{{', '.join(fields)}}}"


class Kernel(NamedTuple):
    name: str
    code: list  # (line, instruction with operands) and (line, label)
    registers: int  # vector registers, both kinds together
    scalar_registers: int
    vector_spills: int
    scalar_spills: int
    scratch: int  # bytes a thread
    lds: int  # bytes, static
    waves: int  # that a SIMD holds, by registers and static LDS

    def instructions(self):
        return [text.split()[0] for _, text in self.code if not text.endswith(":")]


def architecture(text):
    return re.search(r"amdgcn-amd-amdhsa--(gfx\w+)", text).group(1)


def compiler(text):
    """What the listing says its compiler is: `clang version 22.1.8`."""
    return re.search(r'\.ident\s+"(?:.*? )?(clang version [\d.]+)', text).group(1)


def body(text, first_line):
    """[(line, instruction or label)] of a function's text, comments dropped."""
    found = []
    for number, line in enumerate(text.splitlines(), first_line):
        line = line.split(";")[0].rstrip()
        if re.fullmatch(r"\.L\w+:", line) or re.match(r"\t[a-z]\w+(\s|$)", line):
            found.append((number, line.strip()))
    return found


def kernels(text):
    """Every kernel of a listing."""
    demangle = Demangler(enumerators(), formats()).name
    functions = {m.group(1): m for m in re.finditer(r"^(_Z\w+):[^\n]*\n(.*?)^\s*\.section(.*?)(?=^_Z\w+:|\Z)", text, re.M | re.S)}
    found = []
    for entry in text[text.index("amdhsa.kernels:"):text.index("amdhsa.target:")].split("\n  - ")[1:]:
        meta = dict(re.findall(r"^ {4}\.(\w+): +([^\s].*?)$", "    " + entry, re.M))
        function = functions[meta["name"]]
        found.append(Kernel(
            name=demangle(meta["name"]), code=body(function.group(2), text.count("\n", 0, function.start(2)) + 1),
            registers=int(meta["vgpr_count"]), scalar_registers=int(meta["sgpr_count"]),
            vector_spills=int(meta["vgpr_spill_count"]), scalar_spills=int(meta["sgpr_spill_count"]),
            scratch=int(meta["private_segment_fixed_size"]), lds=int(meta["group_segment_fixed_size"]),
            waves=int(re.search(r"^; Occupancy: (\d+)", function.group(3), re.M).group(1))))
    return found


# --- What may be outstanding at a barrier -----------------------------------------------------------------------------
# A wave that reaches s_barrier with LDS operations or copies to LDS outstanding lets the others read what has not been
# written, or overwrite what has not been read. State before an instruction: how many LDS operations may be
# outstanding at most (they finish in order, so s_waitcnt lgkmcnt(n) leaves n; scalar loads share the counter and can
# only make fewer of those n LDS operations), and how many vector memory operations at least were issued after the
# youngest copy to LDS (they finish in order as well: s_waitcnt vmcnt(n) with n at most that many has waited for it).
NONE = 1 << 20  # no copy is outstanding
CAP = 64  # more than any counter counts


def after(instruction, lds, copy):
    """The state behind an instruction."""
    operation, _, operands = instruction.partition("\t") if "\t" in instruction else instruction.partition(" ")
    if operation == "s_waitcnt":
        counters = re.findall(r"(\w+)\((\d+)\)", operands)
        if not counters:
            raise ValueError(f"cannot read '{instruction}'")
        for counter, n in counters:
            if counter == "lgkmcnt":
                lds = min(lds, int(n))
            elif counter == "vmcnt" and int(n) <= copy:
                copy = NONE
    elif operation.startswith("ds_"):
        lds = min(lds + 1, CAP)
    elif "_load_lds_" in operation or (operation.startswith("buffer_load") and re.search(r"\blds\b", operands)):
        copy = 0
    elif operation.startswith(("global_", "buffer_", "flat_", "scratch_")):
        if operation.startswith("flat_"):
            lds = min(lds + 1, CAP)
        if copy != NONE:
            copy = min(copy + 1, CAP)
    return lds, copy


def outstanding_at_barriers(code):
    """[(line, LDS operations at most, whether copies to LDS)] of each s_barrier that either may be outstanding at; and how many
    barriers there are."""
    labels = {text[:-1]: i for i, (_, text) in enumerate(code) if text.endswith(":")}
    states, todo = {0: (0, NONE)}, [0]
    while todo:
        i = todo.pop()
        if i >= len(code):
            continue
        text = code[i][1]
        operation, *operands = text.split()
        if operation.startswith(("s_setpc", "s_swappc", "s_call", "s_cbranch_g_fork", "s_cbranch_i_fork")):
            raise ValueError(f"line {code[i][0]}: cannot follow '{text}'")
        state = states[i] if text.endswith(":") else after(text, *states[i])
        following = [] if operation in ("s_endpgm", "s_branch") else [i + 1]
        if operation == "s_branch" or operation.startswith("s_cbranch"):
            following.append(labels[operands[0]])
        for j in following:
            old = states.get(j)
            new = state if old is None else (max(old[0], state[0]), min(old[1], state[1]))
            if new != old:
                states[j] = new
                todo.append(j)
    barriers = [i for i in states if i < len(code) and code[i][1] == "s_barrier"]
    open_at = [(code[i][0], states[i][0], states[i][1] != NONE) for i in sorted(barriers) if states[i] != (0, NONE)]
    return open_at, len(barriers)


def main_loop(code):
    """The instructions, with operands, from the target to the end of the backward branch that holds the most matrix
    instructions; empty without one."""
    labels = {text[:-1]: i for i, (_, text) in enumerate(code) if text.endswith(":")}
    best, most = [], 0
    for i, (_, text) in enumerate(code):
        operation, *operands = text.split()
        if not operation.startswith(("s_cbranch", "s_branch")) or labels.get(operands[0], i) >= i:
            continue
        inside = [t for _, t in code[labels[operands[0]]:i + 1] if not t.endswith(":")]
        count = sum(t.startswith("v_mfma") for t in inside)
        if count > most:
            best, most = inside, count
    return best


def idle_cycles(loop):
    """Those of s_nop, which compilers put where a matrix instruction's registers are not ready."""
    return sum(int(text.split()[1], 0) + 1 for text in loop if text.startswith("s_nop"))


def products_before_waits(loop, begins, counter, counted):
    """Of each instruction of a loop that `begins` something, if it is waited for: how many matrix instructions the loop issues between it
    and the first wait for it, which may be in its next round. `counter` counts the instructions that begin with `counted`, which finish in
    order: a wait that leaves n has waited for all but the n youngest."""
    found = []
    for i, text in enumerate(loop):
        if not begins(text):
            continue
        younger = products = 0
        for following in loop[i + 1:] + loop:
            products += following.startswith("v_mfma")
            younger += following.startswith(counted)
            wait = re.search(counter + r"\((\d+)\)", following)
            if wait and int(wait.group(1)) <= younger:
                found.append(products)
                break
    return found


def products_before_wait(loop):
    """How many matrix instructions a loop issues at least between a load from memory to registers and the wait for it; None without such
    a load, or without a wait."""
    return min(products_before_waits(loop, lambda text: text.startswith("global_load_") and "_lds_" not in text, "vmcnt",
                                     ("global_", "buffer_", "flat_", "scratch_")), default=None)


def products_over_reads(loop):
    """How many matrix instructions a loop issues while each of its reads of LDS is in flight, ascending; a read that is never waited for
    is left out. Scalar loads share the counter: a wait may be for them alone, and is taken for one for the read."""
    return sorted(products_before_waits(loop, lambda text: text.startswith("ds_read"), "lgkmcnt",
                                        ("ds_", "flat_", "s_load_", "s_buffer_load_")))


def longest_wait_for_lds(loop):
    """How many reads of LDS a loop issues at most without a matrix instruction between them, before it waits for all."""
    longest = run = 0
    for text in loop:
        run = 0 if text.startswith("v_mfma") else run + text.startswith("ds_read")
        if "lgkmcnt(0)" in text:
            longest = max(longest, run)
    return longest
