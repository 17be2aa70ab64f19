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


def split_random(random):
    """(seed, stream) of None, a seed, or (seed, stream)."""
    split = pair("random", 0 if random is None else random, "seed", "stream")
    for name, value in zip(("seed", "stream"), split):
        if not hasattr(value, "__index__") or not 0 <= value < 1 << 64:
            raise ValueError(f"random: {name} {value!r} must be an integer of at most 64 bits")
    return tuple(map(operator.index, split))


def split_rotation(rotation):
    """(points, signs) of None, points, or (points, signs)."""
    split = pair("rotation", 0 if rotation is None else rotation, "points", "signs")
    for name, value, most in zip(("points", "signs"), split, (256, (1 << 256) - 1)):
        if not hasattr(value, "__index__") or not 0 <= value <= most:
            limit = "from 0 to 256" if name == "points" else "of at most 256 bits"
            raise ValueError(f"rotation: {name} {value!r} must be an integer {limit}")
    return tuple(map(operator.index, split))
