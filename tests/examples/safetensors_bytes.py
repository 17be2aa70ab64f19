# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""safetensors files without a package, read and written by tests of programs."""
import json
import struct


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + length]), data[8 + length:]


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)"""
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def load(path):
    """The same, from a file."""
    header, body = read_safetensors(path)
    return {n: (t["dtype"], t["shape"], body[t["data_offsets"][0]:t["data_offsets"][1]])
            for n, t in header.items() if n != "__metadata__"}


def npy(descr, shape, data):
    """An .npy file in C order."""
    header = repr({"descr": descr, "fortran_order": False, "shape": tuple(shape)})
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data
