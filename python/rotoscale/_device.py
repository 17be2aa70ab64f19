# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""librotoscale_device by ctypes: the structures of python/device/library.hpp, and the search for the library."""
import ctypes
import functools
import os
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path

from ._core import __version__

NAME = "librotoscale_device.so"
MISSING = (f"{NAME} was not found: it computes arrays on a device. Build it with a CUDA toolkit by "
           "`pip install . -Csetup-args=-Dgpu=cuda`, or with meson and -Dgpu=cuda, and set ROTOSCALE_DEVICE_LIBRARY to "
           "its path")


class Place(ctypes.Structure):
    _fields_ = [("stream", c_void_p), ("device", c_int32)]


class Matrix(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("rows", c_int64), ("columns", c_int64), ("row_stride", c_int64),
                ("column_stride", c_int64), ("element", c_char_p)]


class QuantizeCall(ctypes.Structure):
    _fields_ = [("x", Matrix), ("preset", c_char_p), ("format", c_char_p), ("source", c_char_p),
                ("scale_rule", c_char_p), ("scale_choice", c_char_p), ("rounding", c_char_p), ("policy", c_char_p),
                ("seed", c_uint64),
                ("random_stream", c_uint64), ("random_count", c_int32), ("points", c_int32), ("signs", c_uint32),
                ("encode_factor", c_float), ("square", c_int32), ("column", c_int32), ("codes", c_void_p),
                ("scales", c_void_p), ("factor", c_void_p), ("scratch", c_void_p)]


class Operand(ctypes.Structure):
    _fields_ = [("codes", Matrix), ("blocks", c_char_p), ("scales", c_void_p), ("factor", c_void_p),
                ("square", c_int32)]


class GemmCall(ctypes.Structure):
    _fields_ = [("a", Operand), ("b", Operand), ("contract", c_char_p), ("output", c_char_p), ("out", c_void_p),
                ("alpha", c_float), ("accumulate", c_int32), ("workspace", c_void_p), ("workspace_bytes", c_uint64)]


class OperandRecipe(ctypes.Structure):
    _fields_ = [("format", c_char_p), ("scale_rule", c_char_p), ("scale_choice", c_char_p), ("scaling", c_char_p),
                ("source", c_char_p), ("rounding", c_char_p), ("policy", c_char_p), ("signs", c_char_p),
                ("mask", c_uint32), ("points", c_int32), ("length", c_int32), ("rows", c_int32)]


class GemmRecipe(ctypes.Structure):
    _fields_ = [("left", OperandRecipe), ("right", OperandRecipe), ("contract", c_char_p), ("output", c_char_p)]


class Scaling(ctypes.Structure):
    _fields_ = [("scale", c_void_p), ("inverse", c_void_p), ("amax", c_void_p)]


SHARE_NONE, SHARE_MAKE, SHARE_USE = range(3)


class LinearCall(ctypes.Structure):
    _fields_ = [("recipe", c_void_p), ("left", Matrix), ("right", Matrix), ("left_scaling", Scaling),
                ("right_scaling", Scaling), ("layer", c_int64), ("state", c_void_p), ("gemm", c_int32),
                ("accumulate", c_int32), ("out", Matrix), ("memory", c_void_p), ("memory_bytes", c_uint64),
                ("share", c_int32), ("shared", c_void_p), ("shared_bytes", c_uint64)]


ARGUMENTS = {
    "quantize": [POINTER(QuantizeCall), Place],
    "dequantize": [POINTER(Operand), c_int32, c_void_p, Place],
    "plan_gemm": [POINTER(GemmCall), Place],
    "gemm": [POINTER(GemmCall), Place],
    "make_recipe": [POINTER(GemmRecipe), POINTER(c_void_p)],
    "write_state": [c_void_p, c_uint64, c_uint64, Place],
    "plan_linear": [POINTER(LinearCall), Place],
    "linear": [POINTER(LinearCall), Place],
    "update_scaling": [c_void_p, c_int32, c_char_p, c_int32, Place],
}


def _open():
    given = os.environ.get("ROTOSCALE_DEVICE_LIBRARY")
    beside = Path(__file__).with_name(NAME)
    try:
        return ctypes.CDLL(given or (str(beside) if beside.exists() else NAME))
    except OSError as error:
        raise RuntimeError(f"ROTOSCALE_DEVICE_LIBRARY: {error}" if given else MISSING) from None


class Library:
    """The functions of librotoscale_device. Raises RuntimeError if it is missing or of another version."""

    def __init__(self):
        self._library = _open()
        for name in ("rotoscale_device_version", "rotoscale_device_mode"):
            getattr(self._library, name).restype = c_char_p
        version = self._library.rotoscale_device_version().decode()
        if version != __version__:
            raise RuntimeError(f"{NAME} has version {version}, this package {__version__}: build them from one tree")
        self.mode = self._library.rotoscale_device_mode().decode()
        self.device_type = "cpu" if self.mode == "host" else "cuda"  # PyTorch names AMD's devices so as well
        self._functions = {}
        for name, arguments in ARGUMENTS.items():
            function = getattr(self._library, "rotoscale_" + name)
            function.argtypes, function.restype = arguments, c_char_p
            self._functions[name] = function
        self._library.rotoscale_free_recipe.argtypes = [c_void_p]
        self.free_recipe = self._library.rotoscale_free_recipe

    def xla_target(self, name):
        """The function that XLA calls for rotoscale_quantize, rotoscale_dequantize or rotoscale_gemm."""
        return getattr(self._library, name.replace("rotoscale_", "rotoscale_xla_"))

    def call(self, name, *arguments):
        """Calls a function. Raises ValueError for a wrong argument, RuntimeError for a failure of the device."""
        text = self._functions[name](*arguments)
        if text is None:
            return
        message = text.decode()
        if message.startswith("device: "):
            raise RuntimeError(message)
        raise ValueError(message)


@functools.cache
def library() -> Library:
    """The library, opened once."""
    return Library()


@functools.cache
def computes_cpu_tensors() -> bool:
    """Does a library of host mode, named by ROTOSCALE_DEVICE_LIBRARY, stand in for a device?"""
    return "ROTOSCALE_DEVICE_LIBRARY" in os.environ and library().mode == "host"


def name(text):
    """A name as C takes it; None stays None."""
    return None if text is None else text.encode()


def operand_recipe(record):
    """An operand of a record of rotoscale.recipes."""
    return OperandRecipe(name(record["format"]), name(record.get("scale_rule")), name(record.get("scale_choice")),
                         name(record["scaling"]), name(record.get("source")), name(record["rounding"]),
                         name(record.get("policy")), name(record.get("signs")), record.get("mask", 0),
                         record.get("rotation", 0), record.get("length", 0), record.get("rows", 0))


def recipe(record):
    """Makes a recipe of the library from a record of rotoscale.recipes. Free it with free_recipe."""
    gemms = (GemmRecipe * 3)(*(
        GemmRecipe(operand_recipe(record[gemm]["left"]), operand_recipe(record[gemm]["right"]),
                   name(record[gemm]["contract"]), name(record[gemm]["output"]))
        for gemm in ("fprop", "dgrad", "wgrad")))
    made = c_void_p()
    library().call("make_recipe", gemms, ctypes.byref(made))
    return made
