"""Tensors as safetensors files, read by the library."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from client_app.tensor_file import KINDS, save_file


def test_the_library_reads_every_kind_of_tensor_and_the_tags(tmp_path: Path) -> None:
    tensors = {f"a {kind} \u00b5": torch.tensor([[0, 1], [1, 0], [1, 1]]).to(kind) for kind in KINDS}
    tensors |= {
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "odd": torch.ones(3, dtype=torch.uint8),
    }
    tags = {"round": "3", "card": '{"words": "\u00e4 \\" \\n"}'}
    save_file(tensors, tmp_path / "file", tags)
    loaded = load_file(tmp_path / "file")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor)
    with safe_open(tmp_path / "file", framework="pt") as file:
        assert file.metadata() == tags


def test_a_kind_that_the_format_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="q is of torch"):
        save_file({"q": torch.zeros(1, dtype=torch.complex128)}, tmp_path / "file", {})
