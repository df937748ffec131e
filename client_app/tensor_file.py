"""Tensors as a safetensors file, written from where they lie: half of what the library's `save_file` takes.

The format is a length, a header in JSON and the tensors' bytes; the library reads and checks it.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}


def save_file(tensors: Mapping[str, Tensor], path: Path, tags: Mapping[str, str]) -> None:
    """Tensors of the CPU, each in one piece, with tags; OSError where the disk does not take them."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # so that all are aligned
    header: dict[str, object] = {"__metadata__": dict(tags)}
    end = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in KINDS:
            raise TypeError(f"{name} is of {tensor.dtype}, which a personal state cannot hold")
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": KINDS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    words = json.dumps(header, separators=(",", ":")).encode()
    words += b" " * (-len(words) % 8)
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(len(words).to_bytes(8, "little") + words)
        for name in names:
            file.write(content(tensors[name]))
        file.truncate()


def content(tensor: Tensor) -> memoryview:
    """The bytes of a tensor of the CPU, where they lie if it is in one piece."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
