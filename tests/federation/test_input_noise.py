"""`noise=input`: a regression whose network says for each example how large its noise is."""

import csv
import io
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import Outcome
from safetensors import safe_open

from bayes_core.networks import INPUT, WithNoise
from bayes_core.parts import bayesian_part
from client_app.site import forget
from fedbayes.model.export import export
from fedbayes.model.find import find_model
from fedbayes.model.personal import PersonalModel
from fedbayes.model.predict import predict_file
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, SettingsError, defaults

Federate = Callable[..., Outcome]


@pytest.fixture(scope="module")
def run(federate_once: Federate, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Two sites of 150 numbers around 100 with a noise of 1 on the left and of 10 on the right."""
    forget()
    folder, draw = tmp_path_factory.mktemp("data") / "sites", np.random.default_rng(0)
    folder.mkdir()
    for name in ("north", "south"):
        x = draw.uniform(-1, 1, 150)
        y = 100 + 5 * x + np.where(x < 0, 1.0, 10.0) * draw.normal(size=150)
        np.savez(folder / f"{name}.npz", x=x[:, None], y=y)
    words = {"dataset": str(folder), "model": "mlp", "noise": "input", "rounds": 10, "eval_every": 10}
    words |= {"local_steps": 30, "lr_personal": 0.01, "lr_global": 0.01, "zeta": 0.1, "batch_size": 60}
    return federate_once("noisy", clients=2, validation_fraction=0.2, conformal=0.9, **words)


def test_the_network_has_two_outputs_and_a_bounded_noise() -> None:
    network = build("mlp", (3,), 0, noise=INPUT)
    assert isinstance(network, WithNoise) and network.noise is None
    found = network(100 * torch.randn(50, 3)).detach()
    assert found.shape == (50, 2) and len(set(found[:, 1].tolist())) > 40
    within = found[:, 1] - math.log(0.5)
    assert float(within.abs().max()) <= WithNoise.BOUND
    with pytest.raises(ValueError, match="depends on the input"):
        _ = network.log_noise
    head = bayesian_part(network, "head")
    assert head is not None and head.stays == {"network.5.weight", "network.5.bias"}


def test_it_learns_where_the_noise_is_large(run: Outcome) -> None:
    personal = PersonalModel.load(run.folder.parent / "state" / "noisy" / "north")
    left, right = personal.forecast(np.array([[-0.6], [0.6]])).noise.tolist()
    assert 0.3 < left < 4 and 5 < right < 20
    assert float(run.rows[-1]["pm_conformal_coverage"]) > 0.75
    start = next(one for one in run.events if one["event"] == "start")
    assert start["about"][0] == "Model mlp: 1,186 Bayesian weights."


def test_conformal_intervals_hold_in_every_third(run: Outcome) -> None:
    """2000 new examples of each site, by thirds of the predicted sd; 24 held-out examples a site carry two groups."""
    draw, held = np.random.default_rng(1), [[], [], []]
    for name in ("north", "south"):
        personal = PersonalModel.load(run.folder.parent / "state" / "noisy" / name)
        assert personal.conformal is not None and len(personal.conformal.thresholds) == 2
        x = draw.uniform(-1, 1, 2000)
        y = torch.as_tensor(100 + 5 * x + np.where(x < 0, 1.0, 10.0) * draw.normal(size=2000))
        found = personal.forecast(x[:, None])
        low, high = personal.interval(found)
        within = ((low <= y) & (y <= high)).double()
        for third, places in enumerate(np.array_split(found.sd.argsort().numpy(), 3)):
            held[third].append(float(within[places].mean()))
    assert all(sum(third) / 2 > 0.87 for third in held), held


def test_predict_and_export_know_of_it(run: Outcome, tmp_path: Path) -> None:
    model = find_model("noisy/global", run.folder.parent)
    np.savez(tmp_path / "new.npz", x=np.array([[-0.6], [0.6]]))
    rows = list(csv.DictReader(io.StringIO(predict_file(model, str(tmp_path / "new.npz"))[0])))
    widths = [float(row["high"]) - float(row["low"]) for row in rows]
    assert widths[1] > 2 * widths[0]
    export(model, tmp_path / "out")
    with safe_open(tmp_path / "out" / "network.safetensors", "pt") as file:
        assert file.metadata()["noise"] == "input" and file.get_tensor("5.weight").shape == (2, 32)


def test_what_noise_takes() -> None:
    assert Settings.parse(defaults() | {"noise": "input"}).noise_level == "input"
    with pytest.raises(SettingsError, match="takes learned, input, or a number above 0"):
        Settings.parse(defaults() | {"noise": "none"})
