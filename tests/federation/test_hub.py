"""A model on Hugging Face's convention: an ordinary state dict with its config, and the same model when loaded."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import Outcome
from safetensors.torch import load_file
from test_using import TRAINED, command, digits, store

from fedbayes import PersonalModel
from fedbayes.protocol.models import build

Federate = Callable[..., Outcome]


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"method": "sfedbayes"},
        {"temperature_scaling": True, "validation_fraction": 0.2},
        {"conformal": 0.8, "validation_fraction": 0.2},
    ],
)
def test_the_folder_is_the_model(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: dict[str, object]
) -> None:
    run, out = federate(**TRAINED | words), tmp_path / "hub"
    status, said, _ = command(
        capsys,
        "export",
        f"{run.folder.name}/2",
        "--format",
        "hf",
        "--out",
        out,
        f"out-dir={run.folder.parent}",
    )
    names = ["model.safetensors", "personal.safetensors", "config.json", "README.md"]
    assert (status, said.split()) == (0, [str(out / name) for name in names])
    before, after = PersonalModel.load(store(run, "2")), PersonalModel.load(out)
    x, _ = digits(2)
    assert torch.equal(after.predict(x).probabilities, before.predict(x).probabilities)
    config = json.loads((out / "config.json").read_text())
    assert (after.temperature, after.conformal) == (before.temperature, before.conformal)
    assert config["temperature"] == before.temperature and bool(config["conformal"]) == ("conformal" in words)
    if before.conformal:
        assert after.sets(x) == before.sets(x)
        assert config["conformal"]["thresholds"] == list(before.conformal.thresholds)
    assert config["model_type"] == "fedbayes" and config["problem_type"] == "single_label_classification"
    assert config["id2label"]["7"] == "7" and config["label2id"] == {str(i): i for i in range(10)}
    network = build(config["architectures"][0], tuple(config["input_shape"]), 10, seed=9)
    network.load_state_dict(load_file(out / "model.safetensors"))
    assert torch.allclose(network.eval()(x).softmax(-1), before.point_probabilities(x), atol=1e-6)
    assert (out / "README.md").read_text().startswith("---\nlibrary_name: fedbayes\n")


def test_the_global_model_and_what_is_refused(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = federate(rounds=1), tmp_path / "hub"
    place = f"out-dir={run.folder.parent}"
    name = f"{run.folder.name}/global"
    assert command(capsys, "export", name, "--format", "hf", "--out", out, place)[0] == 0
    assert "in the run" in (out / "README.md").read_text() and PersonalModel.load(out).classes
    refused = command(capsys, "export", name, "--format", "pickle", "--out", out, place)
    assert refused[::2] == (2, 'fedbayes: --format takes onnx or hf, not "pickle".\n')
    refused = command(capsys, "export", name, "--format", "hf", "--threshold", "0.4", "--out", out, place)
    assert refused[::2] == (2, "fedbayes: --test and --threshold are for --format onnx.\n")
