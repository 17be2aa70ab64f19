# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments that are no arrays: an error names the argument and what it should be."""
import operator

TEXT, INTEGER, SIZE, NUMBER, FLAG = "a name", "an integer", "an integer of 64 bits", "a number", "True or False"


def _fits(value, kind):
    if kind is TEXT:
        return isinstance(value, str)
    if kind is FLAG:
        return isinstance(value, bool)
    return hasattr(value, "__index__") or (kind is NUMBER and hasattr(value, "__float__"))


def expect(kind, **arguments):
    """Raises TypeError for the first argument that is not of the kind, ValueError for an integer with too many bits."""
    for name, value in arguments.items():
        if not _fits(value, kind):
            raise TypeError(f"{name}: {value!r}, expected {kind}")
        bits = {INTEGER: 31, SIZE: 63}.get(kind)
        if bits and not -1 << bits <= operator.index(value) < 1 << bits:
            raise ValueError(f"{name}: {value!r} has more than {bits + 1} bits")


def number(name, value):
    """`value` as a float. Raises TypeError unless it is a number, ValueError beyond FP64."""
    expect(NUMBER, **{name: value})
    try:
        return float(value)
    except (TypeError, OverflowError) as error:
        raise (TypeError if isinstance(error, TypeError) else ValueError)(f"{name}: {error}") from None


def expect_optional(kind, **arguments):
    """As expect, but arguments may be None."""
    expect(kind, **{name: value for name, value in arguments.items() if value is not None})


def pair(name, value, first, second):
    """(first, second) of a pair, or (value, 0)."""
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise ValueError(f"{name}: {value!r}, expected {first} or ({first}, {second})")
        return tuple(value)
    return value, 0


def integers(name, parts, values, limits):
    """The values as integers from 0 to `limits`. Raises ValueError that names the argument and its part."""
    made = []
    for part, value, (most, limit) in zip(parts, values, limits):
        try:
            made.append(operator.index(value))
        except TypeError:
            made.append(-1)
        if not 0 <= made[-1] <= most:
            shown = type(value).__name__ if hasattr(value, "shape") else repr(value)
            raise ValueError(f"{name}: {part} {shown} must be an integer {limit}")
    return tuple(made)


def split_random(random):
    """(seed, stream) of None, a seed, or (seed, stream)."""
    parts = "seed", "stream"
    split = pair("random", 0 if random is None else random, *parts)
    return integers("random", parts, split, [((1 << 64) - 1, "of at most 64 bits")] * 2)


def split_rotation(rotation):
    """(points, signs) of None, points, or (points, signs)."""
    parts = "points", "signs"
    split = pair("rotation", 0 if rotation is None else rotation, *parts)
    return integers("rotation", parts, split, [(256, "from 0 to 256"), ((1 << 256) - 1, "of at most 256 bits")])
