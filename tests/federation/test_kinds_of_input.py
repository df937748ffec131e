"""Tokens and sequences reach a user's network as they are, in a run and afterwards; weighted classes count alike."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import Outcome
from torch.nn.functional import cross_entropy

from bayes_core.likelihoods import balanced, categorical
from client_app import site
from client_app.data.errors import DataError
from client_app.data.examples import read_inputs
from fedbayes.cli.command import _status
from fedbayes.model.find import find_model
from fedbayes.protocol.settings import SettingsError

Federate = Callable[..., Outcome]
SOURCE = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.table, self.out = nn.Embedding(12, 6), nn.Linear(6, classes)

    def forward(self, x):
        assert x.dtype == torch.int64 and x.ndim == 2
        return self.out(self.table(x).mean(1))

class Signals(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        assert len(inputs) == 2
        self.step, self.out = nn.Linear(inputs[1], 8), nn.Linear(8, classes)

    def forward(self, x):
        assert x.ndim == 3
        return self.out(self.step(x).relu().mean(1))

def words(inputs, classes):
    return Words(classes)

def signals(inputs, classes):
    return Signals(inputs, classes)
"""
WORDS = {
    "clients": 2,
    "layout": "iid",
    "size": "60+30",
    "local_steps": 40,
    "zeta": 0.05,
    "lr_personal": 0.02,
    "rounds": 3,
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "kinds_net.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("kinds_net", None)
    site.forget()


def test_tokens_stay_whole_numbers_from_the_file_to_onnx(federate: Federate, own: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    draw = np.random.default_rng(0)
    y = np.arange(300) % 2
    x = draw.integers(0, 6, (300, 5)) + 6 * y[:, None]  # each class has words of its own
    np.savez(own / "texts.npz", x=x, y=y)
    run = federate("run", dataset=str(own / "texts.npz"), model="kinds_net:words", inputs="tokens", **WORDS)
    assert float(run.rows[-1]["pm_accuracy"]) > 0.9
    place = f"out-dir={run.folder.parent}"
    assert _status(["predict", "run/0", str(own / "texts.npz"), "--out", str(own / "said.csv"), place]) == 0
    assert _status(["export", "run/0", "--out", str(own / "out"), place]) == 0
    assert (
        _status(["adapt", "run", str(own / "texts.npz"), "--out", str(own / "mine"), "rounds=1", place]) == 0
    )
    session = onnxruntime.InferenceSession(str(own / "out" / "network.onnx"))
    ours = find_model("run/0", run.folder.parent).point_probabilities(x[:7]).numpy()
    assert abs(session.run(None, {"x": x[:7].astype(np.int64)})[0] - ours).max() < 1e-5


def test_sequences_are_scaled_by_feature_and_stay_sequences(federate: Federate, own: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    draw = np.random.default_rng(0)
    y = np.arange(300) % 2
    x = draw.normal(size=(300, 4, 3)) * [1, 100, 1e4] + [0, 500, 1e5]
    x[:, :, 1] += 300 * y[:, None]
    np.savez(own / "signals.npz", x=x, y=y)
    words = WORDS | {"dataset": str(own / "signals.npz"), "model": "kinds_net:signals", "inputs": "sequences"}
    run = federate("run", **words)
    assert float(run.rows[-1]["pm_accuracy"]) > 0.9
    personal = find_model("run/0", run.folder.parent)
    assert np.allclose(personal.card.agreement.mean, [0, 650, 1e5], rtol=0.05, atol=0.2)
    assert personal.inputs(x).shape == (300, 4, 3) and abs(float(personal.inputs(x).std((0, 1))[2]) - 1) < 0.1
    assert _status(["export", "run/0", "--out", str(own / "out"), f"out-dir={run.folder.parent}"]) == 0
    session = onnxruntime.InferenceSession(str(own / "out" / "network.onnx"))
    ours = personal.point_probabilities(x[:7]).numpy()
    assert abs(session.run(None, {"x": x[:7].astype(np.float32)})[0] - ours).max() < 1e-4
    assert federate("alone", **(words | {"scale": "site", "rounds": 1})).state == "finished"


def test_what_is_neither_is_one_sentence(federate: Federate) -> None:
    with pytest.raises(DataError, match="inputs=tokens takes whole numbers from 0 on"):
        read_inputs(np.array([[1, -2]]), "x", "a.npz", "tokens")
    with pytest.raises(DataError, match=r"inputs=tokens takes whole numbers from 0 on \(n, steps\)"):
        read_inputs(np.array([[1.5]]), "x", "a.npz", "tokens")
    with pytest.raises(DataError, match=r"inputs=sequences takes numbers \(n, steps, features\)"):
        read_inputs(np.zeros((2, 3)), "x", "a.npz", "sequences")
    with pytest.raises(SettingsError, match="inputs=tokens is for a network of one's own"):
        federate(inputs="tokens")


# ---------------------------------------------------------------- class weights


def test_balanced_weights_by_hand() -> None:
    y = torch.tensor([0, 0, 0, 2])  # of four classes two are here: weights 4/(2·3) and 4/(2·1)
    logits = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    each = cross_entropy(logits, y, reduction="none")
    expected = (each * torch.tensor([2 / 3, 2 / 3, 2 / 3, 2])).sum()
    torch.testing.assert_close(balanced(y)(logits, y), expected)
    even = torch.tensor([0, 1, 0, 1])
    torch.testing.assert_close(balanced(even)(logits, even), categorical(logits, even))


def test_a_rare_class_is_found_with_balanced_weights(federate: Federate, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    y = (draw.random(600) < 0.06).astype(int)
    x = draw.normal(size=(600, 2)) + 1.2 * y[:, None]
    np.savez(tmp_path / "rare.npz", x=x, y=y)
    found = {}
    for weights in ("none", "balanced"):
        words = WORDS | {"size": "150+60", "model": "mlp", "class_weights": weights, "method": "fedavg"}
        run = federate(weights, dataset=str(tmp_path / "rare.npz"), **words)
        chosen = find_model(f"{weights}/global", run.folder.parent).point_probabilities(x).argmax(-1).numpy()
        found[weights] = float((chosen[y == 1] == 1).mean())
    assert found["balanced"] > found["none"] + 0.2


def test_class_weights_are_refused_where_they_mean_nothing(federate: Federate) -> None:
    with pytest.raises(SettingsError, match="class-weights is about the probabilities of classes"):
        federate(dataset="diabetes", layout="iid", size="10+10", class_weights="balanced")
    with pytest.raises(SettingsError, match="method=pfedgp has no loss"):
        federate(method="pfedgp", class_weights="balanced")
