"""Models that are no weights of the clients' network, in a user's hands: trees, personal heads, a wider network."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import Outcome

from bayes_core import Gaussian
from client_app.data import load
from fedbayes.errors import ModelError
from fedbayes.model.adapt import adapt
from fedbayes.model.export import export
from fedbayes.model.find import find_model
from fedbayes.model.finished import Finished
from fedbayes.model.personal import PersonalModel
from fedbayes.protocol.settings import Settings, defaults

Federate = Callable[..., Outcome]
SIZE = {"size": "8+20"}


def pixels(site: int, clients: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A site's data as they were measured: training and test images, and their labels."""
    data = load(Settings.parse(defaults() | SIZE), site, clients)
    x, x_test = (((part + 1) * 8).round().to(torch.uint8) for part in (data.x_train, data.x_test))
    return x, data.y_train, x_test, data.y_test


@pytest.mark.parametrize("method", ["pfedgp", "pfedvem"])
def test_a_personal_model_predicts_as_it_was_measured(federate: Federate, method: str) -> None:
    run = federate(method=method, rounds=6, local_steps=10, lr_personal=0.01, **SIZE)
    personal = PersonalModel.load(run.folder.parent / "state" / run.folder.name / "1", trust_code=True)
    _, _, x, y = pixels(1)
    accuracy = float((personal.predict(x).labels == y).double().mean())
    (row,) = (one for one in run.clients if (one["round"], one["site"]) == ("6", "1"))
    assert accuracy == pytest.approx(float(row["pm_accuracy"]), abs=0.05), "other random numbers"
    assert accuracy > 0.5


def test_a_tree_of_gaussian_processes_is_no_network(federate: Federate, tmp_path: Path) -> None:
    run = federate(method="pfedgp", rounds=2, **SIZE)
    personal = find_model("run/1", run.folder.parent)
    with pytest.raises(
        ModelError, match="The models of pfedgp are no distributions over a network's weights"
    ):
        export(personal, tmp_path / "exported")
    with pytest.raises(ModelError, match="The models of pfedgp cannot be exported"):
        personal.state_dict()
    with pytest.raises(ModelError, match=r"The run run used pFedGP: .* it has no global model"):
        find_model("run/global", run.folder.parent)


@pytest.mark.parametrize("method", ["pfedgp", "pfedvem"])
def test_a_new_site_adapts(federate: Federate, method: str) -> None:
    run = federate(method=method, rounds=3, **SIZE)
    x, y, x_test, y_test = pixels(2)
    *_, last = adapt(Finished.open(run.folder, {"rounds": 3}), x, y, "new")
    found = last.personal().predict(x_test)
    assert found.probabilities.shape == (len(y_test), 10)
    assert float((found.labels == y_test).double().mean()) > 0.3
    with pytest.raises(ModelError, match=r"has no personal model yet: .* keeps it when the run ends"):
        PersonalModel.of(last.card, {})


def test_a_personal_head_has_a_distribution_and_can_be_exported(federate: Federate, tmp_path: Path) -> None:
    run = federate(method="pfedvem", rounds=2, **SIZE)
    personal = find_model("run/1", run.folder.parent)
    assert isinstance(personal.family, Gaussian)
    sigma = personal.family.sigma(personal.v)
    assert float(sigma[:6500].max()) < 1e-8 and float(sigma[6500:].min()) > 0.01
    assert [one.name for one in export(personal, tmp_path / "exported")] == ["network"]
    everybodys = find_model("run/global", run.folder.parent)
    assert torch.equal(everybodys.v, run.tensors["w"])


def test_a_matched_network_is_as_wide_as_it_has_become(federate: Federate, tmp_path: Path) -> None:
    options = {"bnfed.neuron-variance": 0.01, "bnfed.neuron-prior": 10.0}
    run = federate(method="bnfed", rounds=3, local_steps=10, **options, **SIZE)
    width = int(run.rows[-1]["neurons"])
    assert width > 100 and run.tensors["w"].shape == (1, 65 * width + 10 * width + 10)
    everybodys = find_model("run/global", run.folder.parent)
    for site in range(4):
        _, _, x, y = pixels(site)
        (row,) = (one for one in run.clients if (one["round"], one["site"]) == ("3", str(site)))
        found = float((everybodys.predict(x).labels == y).double().mean())
        assert found == pytest.approx(float(row["gm_accuracy"]), abs=1e-5)
    assert [one.name for one in export(everybodys, tmp_path / "exported")] == ["network"]
    assert everybodys.state_dict()["1.weight"].shape == (width, 64)
    with pytest.raises(ModelError, match="used bnfed, which has no personal models to adapt"):
        next(adapt(Finished.open(run.folder), *pixels(0)[:2], "new"))
