# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""python -m rotoscale: NumPy files to codes and scales and back; dumps of kernels against models."""
import argparse
import sys
import zipfile

import numpy as np

import rotoscale


def quantize_file(options):
    x = np.load(options.input, allow_pickle=False)
    q = rotoscale.quantize(x, preset=options.preset, format=options.format, scale_rule=options.scale_rule,
                           rounding=options.rounding, axis=options.axis, random=options.seed, square=options.square)
    with open(options.output, "wb") as file:
        np.savez(file, codes=q.codes, scales=q.scales, format=q.format, shape=q.shape, axis=q.axis,
                 rotation=q.rotation[0], square=q.square, global_factor=np.float32(q.global_factor))
    print(f"{options.output}: {q.format}, codes {q.codes.shape}, scales {q.scales.shape}, SQNR {q.sqnr(x):.2f} dB")


def dequantize_file(options):
    d = np.load(options.input, allow_pickle=False)
    if not isinstance(d, np.lib.npyio.NpzFile):
        raise ValueError(f"{options.input}: is no .npz of codes and scales")
    with d:
        y = rotoscale.dequantize(d["codes"], d["scales"], format=str(d["format"]), axis=int(d["axis"]),
                                 square=bool(d["square"]), global_factor=float(d["global_factor"]),
                                 rotation=int(d["rotation"]))
    with open(options.output, "wb") as file:
        np.save(file, y)
    print(f"{options.output}: float32 {y.shape}")


def dump_task(options):
    """Runs validate or identify with the options of rotoscale-validate; prints the report."""
    given, words = {}, iter(options.others)
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            raise ValueError(f"{word}: is no option")
        flag = name in ("--epilogue-c", "--add-after-rounding", "--transposed-d")
        value = True if flag else value if equals else next(words, None)
        if value is None:
            raise ValueError(f"{name}: needs a value")
        given[name[2:].replace("-", "_")] = value
    found = options.task(options.input, **given)
    print(found)
    return 0 if found.get("identical", found.get("accepted")) else 1


def parser():
    top = argparse.ArgumentParser(prog="python -m rotoscale", description=__doc__)
    top.add_argument("--version", action="version", version=rotoscale.__version__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    quantize = commands.add_parser("quantize", help=".npy to an .npz of codes and scales")
    quantize.add_argument("input", help=".npy with FP32, FP64 or FP16 numbers")
    quantize.add_argument("output", help=".npz with codes, scales, format, shape, axis, rotation, global_factor")
    quantize.add_argument("--preset", default="ocp", help="a shipped quantizer (default: ocp)")
    quantize.add_argument("--format", default="mxfp4", help="block format (default: mxfp4)")
    quantize.add_argument("--scale-rule", help="floor, ceil, even or rceil (default: the preset's)")
    quantize.add_argument("--rounding", help="of elements (default: the preset's)")
    quantize.add_argument("--seed", type=int, help="of stochastic rounding")
    quantize.add_argument("--axis", type=int, default=-1, help="contraction axis (default: the last)")
    quantize.add_argument("--square", action="store_true", help="one scale per square of elements")
    quantize.set_defaults(run=quantize_file)
    dequantize = commands.add_parser("dequantize", help="the inverse: .npz to .npy of FP32 numbers")
    dequantize.add_argument("input")
    dequantize.add_argument("output")
    dequantize.set_defaults(run=dequantize_file)
    for name, task, text in (("validate", rotoscale.validate, "compare a dump (safetensors) with a model or preset"),
                             ("identify", rotoscale.identify, "rank what may have made a dump")):
        command = commands.add_parser(name, help=text, description=text + ". Prints JSON; exit code 0: identical")
        command.add_argument("input")
        command.add_argument("others", nargs=argparse.REMAINDER, metavar="OPTION VALUE",
                             help="options of rotoscale-validate")
        command.set_defaults(run=dump_task, task=task)
    return top


def main():
    options = parser().parse_args()
    try:
        return options.run(options) or 0
    except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        print(f"rotoscale: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
