#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Checks rules that compilers do not: the one-way include rule of docs/design.md, and the rules for files.

usage: include_rule.py [ROOT]   prints one line per violation, `file:line: message`; exit status 1 if there is one
"""
import fnmatch
import re
import sys
from pathlib import Path

# Layers of the numerics headers, lowest first. A header includes its own layer or lower ones. A new header in
# include/rotoscale/ is added here.
LAYERS = [
    "version nearest_name isa config bits view scratch parallel ex2_approx",
    "format",
    "round",
    "small_float scale philox",
    "limits pack sparse hadamard block layout mma gemm_epilogue mma_cases mma_models mma_terms mma_ref",
    "quantize_ref dequantize_ref",
    "gemm_options gemm_operand gemm_contracts",
    "k_order",
    "gemm_ref",
    "gemm quantize dequantize names eigen dlpack",
    "checked",
]
LAYER = {name: depth for depth, names in enumerate(LAYERS) for name in names.split()}
# The parts that each other part may include, besides numerics.
PARTS = {
    "io": {"io"},
    "nn": {"nn"},
    "train": {"io", "nn", "train"},
    "models": {"io", "nn", "train", "models"},
}
# The same for gpu/'s folders; each may include itself. api/ is the interface for programs of any compiler.
GPU_PARTS = {
    "gpu/api": {"nn"},
    "gpu/dialect": {"gpu/api"},
    "gpu/quantize": {"gpu/api", "gpu/dialect", "nn"},
    "gpu/gemm": {"gpu/api", "gpu/dialect"},
    "gpu/nn": {"gpu/api", "gpu/dialect", "gpu/quantize", "gpu/gemm", "nn"},
    "gpu/train": {"gpu/api", "nn"},
}
# Toolkit and device are tested only in gpu/dialect, and in files that exist in one mode only.
MODE = re.compile(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*(?:ROTOSCALE_(?:CUDA|AMD|GPU_HOST|NO_HIP_SDK)|__CUDA|"
                  r"__HIP|__gfx|__AMDGCN)")
MODE_FILES = {"gpu/gemm/kernels.hpp", "gpu/gemm/dense_kernels.hpp", "gpu/gemm/amd/listing.hip"}
# Numerics headers include the standard library only. Exceptions: opt-in bridges include one library each, the thread
# pool includes POSIX headers, and the choice of a matrix unit asks the processor and Linux.
BRIDGES = {"eigen": ("Eigen/",), "tile_registers": ("cpuid.h", "sys/syscall.h", "unistd.h"),
           "parallel": ("pthread.h", "sched.h", "time.h")}
# Not in rotoscale.hpp: bridges, headers that throw, test inputs.
NOT_IN_UMBRELLA = {"eigen", "dlpack", "checked", "mma_cases"}
# <immintrin.h> and similar headers belong to the compiler.
STANDARD = re.compile(r"[a-z_0-9]+|[a-z0-9]*intrin\.h|arm_neon\.h")

TOP_LEVEL = set("meson.build meson_options.txt pyproject.toml include gpu python examples tests bench docs README.md "
                "CHANGELOG.md LICENSE".split())
SOURCES = ("*.hpp", "*.cpp", "*.in", "*.py", "*.sh", "*.cu", "*.hip", "meson.build", "meson_options.txt",
           "CMakeLists.txt", ".clang-format", ".editorconfig", ".pre-commit-config.yaml", ".ci/run",
           "pyproject.toml")
SPDX = ("SPDX-FileCopyrightText: The Rotoscale authors", "SPDX-License-Identifier: Apache-2.0")
MAX_FUNCTION_LINES = 60  # from `template` to its brace, in headers and programs
# Folders of one machine.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|Users|home/\w+)/\w")

# The program whose headers are included relative to its folder. Its units, a header with its source, have no circle.
TRAINER = Path("examples/train")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)


def ignore_rule(root):
    """ignored(path): does .gitignore exclude the path? Its patterns are plain names, with or without /."""
    ignore = root / ".gitignore"
    lines = ignore.read_text(encoding="utf-8").splitlines() if ignore.exists() else []
    patterns = [line for line in lines if line and not line.startswith("#")]

    def ignored(path):
        return any(fnmatch.fnmatch(path.name, pattern.strip("/")) and
                   (path.parent == root or not pattern.startswith("/")) and
                   (path.is_dir() or not pattern.endswith("/")) for pattern in patterns)

    return ignored


def tree(root):
    """All files below root that .gitignore does not exclude, sorted."""
    ignored = ignore_rule(root)
    found = []

    def walk(folder):
        for path in sorted(folder.iterdir()):
            if path.name == ".git" or ignored(path):
                continue
            if path.is_dir() and not path.is_symlink():
                walk(path)
            else:
                found.append(path.relative_to(root))

    walk(root)
    return found


def part_of(path):
    """`numerics`, `io`, `nn`, `train`, `models` or `gpu/FOLDER`. None for programs and tests, which may include
    all parts."""
    if path.parts[0] == "gpu":
        return "/".join(path.parts[:2])
    if path.parts[0] != "include" or path.parts[1] == "compiled":
        return None
    if len(path.parts) < 4 or path.parts[2] == "detail":
        return "numerics"
    return path.parts[2]


def code_only(text):
    """The text without comments and string literals. Lines keep their numbers."""
    return COMMENT_OR_STRING.sub(lambda m: "\n" * m.group().count("\n"), text)


# Start of a brace that is not a function's.
TYPE = re.compile(r"^\s*(?:template\s*<.*>\s*)?(?:inline\s+)?(?:namespace|class|struct|enum|union|extern)\b", re.S)
FUNCTION_NAME = re.compile(r"([\w~]+|operator\W+)\s*\((?!\()")


def functions(text):
    """(first line, last line, name) of every function's body. Lambdas belong to the enclosing function."""
    text = re.sub(r"'(?:\\.|[^'\\\n])'", "0", code_only(text))
    text = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", lambda m: "\n" * m.group().count("\n"), text, flags=re.M)
    scopes, last = [], 0  # start of a function's text, or None for other braces
    for match in re.finditer(r"[{};]", text):
        if match.group() == "{":
            head = text[last:match.start()]
            is_body = (all(begin is None for begin in scopes) and "(" in head and not TYPE.search(head) and
                       not head.rstrip().endswith(("=", ",", "(")))
            scopes.append(match.start() - len(head.lstrip()) if is_body else None)
        elif match.group() == "}" and scopes:
            if (begin := scopes.pop()) is not None:
                body = text[begin:match.end()]
                names = [name for name in FUNCTION_NAME.findall(body.split("{")[0]) if name.islower()
                         and not name.startswith("__")]
                first = text.count("\n", 0, begin) + 1
                yield first, first + body.count("\n"), names[0] if names else "?"
        last = match.end()
    if scopes:
        yield 1, 10**6, "(braces do not match)"


def check_functions(path, text, report):
    """Reports functions that are too long."""
    for first, last, name in functions(text):
        if last - first + 1 > MAX_FUNCTION_LINES:
            report(path, first, f"{name} has {last - first + 1} lines; a function has at most {MAX_FUNCTION_LINES}")


def includes(text):
    for number, line in enumerate(text.splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match.group(1) == "<", match.group(2)


def resolve(root, path, name):
    """The project file, relative to root, that `path` includes as `name`. None for other files."""
    for candidate in (Path("include") / name, Path(name), path.parent / name, TRAINER / name):
        if (root / candidate).is_file():
            return candidate
    return None


def check_arrow(path, target):
    """The violation if `path` includes `target`, or None."""
    here, there = part_of(path), part_of(target)
    if here is None:
        if "detail" in target.parts and path.parts[0] == "examples":
            return "detail/ is not for programs"
        return None
    if there is None:
        return f"a header must not include {target}"
    if here in GPU_PARTS:
        return None if there in (here, "numerics") or there in GPU_PARTS[here] else f"{here}/ must not include {there}/"
    if there in GPU_PARTS:
        return "include/ never includes gpu/"
    if here != "numerics":
        return None if there == "numerics" or there in PARTS[here] else f"{here}/ must not include {there}/"
    if there != "numerics":
        return f"a numerics header must not include {there}/"
    # The umbrella header and detail/ are outside the layers. cycles() checks them.
    from_layer, to_layer = LAYER.get(path.stem), LAYER.get(target.stem)
    layered = len(path.parts) == len(target.parts) == 3
    if layered and from_layer is not None and to_layer is not None and from_layer < to_layer:
        return f"{path.stem} is below {target.stem}"
    return None


def check_paths(path, text, report):
    for number, line in enumerate(text.splitlines(), 1):
        if match := MACHINE_PATH.search(line):
            report(path, number, f"a path of somebody's machine: {match.group()}...")


def check_header(path, text, report):
    part = part_of(path)
    if "#pragma once" not in text:
        report(path, 1, "no #pragma once")
    if part not in ("numerics", *PARTS, *GPU_PARTS):
        report(path, 1, f"unknown part {part}/: name it in tests/include_rule.py")
    if part == "numerics" and path.parts[1:2] == ("rotoscale",) and len(path.parts) == 3 and path.stem not in LAYER:
        report(path, 1, "no layer: name it in tests/include_rule.py")
    for number, line in enumerate(code_only(text).splitlines(), 1):
        if re.search(r"\bstd::(cout|cerr)\b", line):
            report(path, number, "a header does not print")
        if part == "numerics" and path.stem != "checked" and re.search(r"\b(throw|try|catch)\b", line):
            report(path, number, "numerics headers neither throw nor catch")


def check_modes(path, text, report):
    if not part_of(path) or not part_of(path).startswith("gpu/") or part_of(path) == "gpu/dialect":
        return
    for number, line in enumerate(text.splitlines(), 1):
        if MODE.match(line) and path.as_posix() not in MODE_FILES:
            report(path, number, "only gpu/dialect asks for toolkit or device")


def check_includes(root, path, text, report):
    edges = []
    for number, angled, name in includes(text):
        target = resolve(root, path, name)
        if target is not None:
            edges.append(target)
            if wrong := check_arrow(path, target):
                report(path, number, wrong)
        elif part_of(path) == "numerics":
            if not (angled and STANDARD.fullmatch(name)) and not name.startswith(BRIDGES.get(path.stem, ())):
                report(path, number, f"numerics headers include the standard library only, not {name}")
        elif not angled and path.parts[0] == "include":
            report(path, number, f"no such file: {name}")
    return edges


def check_umbrella(graph, report):
    """rotoscale.hpp includes every numerics header except detail/ and NOT_IN_UMBRELLA."""
    umbrella = Path("include/rotoscale.hpp")
    if umbrella not in graph:
        return
    folder = Path("include/rotoscale")
    expected = {path for path in graph if path.parent == folder and path.stem not in NOT_IN_UMBRELLA}
    for path in sorted(expected ^ set(graph[umbrella])):
        report(umbrella, 1, f"{'does not include' if path in expected else 'includes'} {path.relative_to('include')}")


def cycles(graph):
    """Headers that include themselves through others."""
    for start in graph:
        seen, todo = set(), list(graph[start])
        while todo:
            header = todo.pop()
            if header == start:
                yield start
                break
            if header not in seen:
                seen.add(header)
                todo.extend(graph.get(header, ()))


def units(graph):
    """The same graph with each header of TRAINER and its source as one node."""
    joined = {}
    for path, targets in graph.items():
        if TRAINER in path.parents:
            node = path.with_suffix("")
            found = {target.with_suffix("") for target in targets if TRAINER in target.parents}
            joined.setdefault(node, set()).update(found - {node})
    return joined


def check_listed(root, files, report):
    """Every X_test.cpp, X_fuzz.cpp and X_bench.cpp is named in the meson.build above it."""
    for path in files:
        for folder, suffix in (("tests", "_test.cpp"), ("tests/fuzz", "_fuzz.cpp"), ("bench", "_bench.cpp")):
            if path.as_posix().startswith(folder + "/") and path.name.endswith(suffix):
                name = path.as_posix().removeprefix(folder + "/").removesuffix(suffix)
                listing = Path(path.parts[0], "meson.build")
                if f"'{name}'" not in (root / listing).read_text(encoding="utf-8"):
                    report(path, 1, f"'{name}' is not listed in {listing}")


def main(root):
    violations = []

    def report(path, line, what):
        violations.append(f"{path}:{line}: {what}")

    files = tree(root)
    for name in sorted({path.parts[0] for path in files}):
        if not name.startswith(".") and name not in TOP_LEVEL:
            report(Path(name), 1, "not one of the top-level names (build directories are called build*)")

    graph = {}
    for path in files:
        if path.suffix in (".md", ".out", ".json"):
            check_paths(path, (root / path).read_text(encoding="utf-8"), report)
        if not any(fnmatch.fnmatch(path.name, p) or path.as_posix() == p for p in SOURCES):
            continue
        text = (root / path).read_text(encoding="utf-8")
        head = text.splitlines()[:4]
        for line in SPDX:
            if not any(line in candidate for candidate in head):
                report(path, 1, f"no line '{line}'")
        check_paths(path, text, report)
        if path.suffix in (".hpp", ".cpp", ".hip", ".cu") and path.parts[0] in ("include", "gpu", "examples", "bench"):
            check_functions(path, text, report)
        if path.parts[0] in ("examples", "bench"):
            for number, line in enumerate(code_only(text).splitlines(), 1):
                if match := re.search(r"\bdetail::\w+", line):
                    report(path, number, f"{match.group()} is not for programs")
        if path.suffix in (".hpp", ".cpp", ".hip", ".cu"):
            graph[path] = check_includes(root, path, text, report)
            check_modes(path, text, report)
        if path.suffix == ".hpp" and path.parts[0] in ("include", "gpu"):
            check_header(path, text, report)
    for path in [*cycles(graph), *cycles(units(graph))]:
        report(path, 1, "includes itself by way of other headers")
    check_listed(root, files, report)
    check_umbrella(graph, report)

    for line in violations:
        print(line)
    print(f"{len(graph)} source files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
