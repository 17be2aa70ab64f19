# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of the caller as the compiled module reads them: without a copy, with the format that their dtype means."""
import sys

import numpy as np

from . import _device

# Names of ml_dtypes and of torch. NumPy lends none of them through DLPack, torch not the narrow ones.
FORMAT_OF_DTYPE = {
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "float8_e4m3fnuz": "e4m3fnuz",
    "float8_e5m2fnuz": "e5m2fnuz",
    "float8_e4m3b11fnuz": "e4m3b11fnuz",
    "float8_e4m3": "e4m3ieee",
    "float8_e3m4": "e3m4ieee",
    "float8_e8m0fnu": "e8m0",
    "float6_e2m3fn": "e2m3",
    "float6_e3m2fn": "e3m2",
    "float4_e2m1fn": "e2m1",
    "float4_e2m1fn_x2": "e2m1",  # torch: two codes per byte, and the shape counts bytes
}

_SUB_BYTE = ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn")
_DEVICE_TYPES = (2, 10, 13)  # DLPack's CUDA, ROCm and CUDA's managed memory


def readable(x):
    """Returns (array, format): an array that DLPack or the buffer protocol lends, and the format of its integers."""
    dtype = getattr(x, "dtype", None)
    if isinstance(x, np.ndarray):
        format_name = FORMAT_OF_DTYPE.get(dtype.name)
        if format_name is None:
            return x, None
        return x.view(np.uint16 if dtype.itemsize == 2 else np.uint8), format_name
    name = str(dtype)
    if name.startswith("torch."):
        if getattr(x, "requires_grad", False):
            x = x.detach()
        if x.is_neg():  # DLPack lends the bits without the sign
            x = x.resolve_neg()
        format_name = FORMAT_OF_DTYPE.get(name[6:])
        if format_name is not None and format_name != "bf16":
            return x.view(sys.modules["torch"].uint8), format_name
    elif name in _SUB_BYTE:  # JAX lends two codes per byte, or refuses
        return readable(np.asarray(x))
    return x, None


def on_device(x):
    """Is `x` an array that librotoscale_device computes?"""
    if type(x) is np.ndarray:
        return False
    is_cpu = getattr(x, "is_cpu", None)  # of PyTorch
    if is_cpu is not None:
        return not is_cpu or _device.computes_cpu_tensors()
    device = getattr(x, "__dlpack_device__", None)
    return device is not None and device()[0] in _DEVICE_TYPES


def device_operators():
    """The module that computes arrays on a device. Raises RuntimeError if its parts are missing."""
    _device.library()
    try:
        from . import _ops
    except ImportError as error:
        raise RuntimeError(f"arrays on a device need PyTorch: {error}") from None
    return _ops


def as_numpy(x, argument="x"):
    """(array, dtype name): a NumPy array with x's bytes. Narrow dtypes become unsigned integers."""
    name = str(getattr(x, "dtype", type(x).__name__))
    if not name.startswith("torch.") and on_device(x):
        x = device_operators().as_tensor(x)
        name = str(x.dtype)
    if name.startswith("torch."):
        torch, x = sys.modules["torch"], x.detach().cpu().contiguous()
        name = name[6:]
        if name in FORMAT_OF_DTYPE:
            x = x.view(torch.int16 if name == "bfloat16" else torch.uint8)
        return x.numpy(), name
    array = readable(x)[0]
    if not isinstance(array, np.ndarray) and not hasattr(array, "__dlpack__"):
        raise TypeError(f"{argument}: {type(x).__name__} is no array that DLPack lends")
    return (array if isinstance(array, np.ndarray) else np.from_dlpack(array)), name
