"""What a run in which single examples are private cannot have: refused at the start, in a sentence each."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from harness import Outcome
from inprocess import sites

from client_app import examples
from client_app.site import forget
from fedbayes.protocol.settings import Settings, SettingsError, defaults

Federate = Callable[..., Outcome]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "ditto"}, "method=ditto has no private training; pfedbayes, sfedbayes, fedavg"),
        ({"method": "cfedbayes"}, "method=cfedbayes has no private training"),
        ({"augment": "flip-crop"}, "augment=flip-crop looks at all of a site's images"),
        ({"class-weights": "balanced"}, "class-weights count a site's labels"),
        ({"aggregation-confidence": "weight"}, "what a site says of its certainty has no noise"),
        ({"bayesian": "head"}, "with bayesian=head plain weights would leave without noise"),
    ],
)
def test_what_cannot_be_combined_is_refused(given: dict[str, str], words: str) -> None:
    from fedbayes.launch.methods import checked

    settings = Settings.parse(defaults() | {"dp-example-noise": 1.0} | given)
    with pytest.raises(SettingsError, match=f"^dp-example-noise=1: {words}"):
        checked(settings)


def test_a_site_tells_nothing_of_data_that_it_refuses(federate: Federate, tmp_path: Path) -> None:
    """A scale made of all examples: the sums for it stay where they are."""
    told: set[str] = set()

    def look(number: int, message: Message, reply: Message) -> Message:
        told.update(reply.content["hello"])
        return reply

    grid = sites(tmp_path / "far")
    grid.interfere = look
    with pytest.raises(
        Exception, match="dp-example-noise=1: scale=pooled brings inputs to a scale made of all"
    ):
        federate(dataset="diabetes", layout="iid", size="20+10", dp_example_noise=1.0, grid=grid)
    assert told == {"site", "error"}
    forget()
    given = {"scale": "none", "dp_example_noise": 1.0}
    run = federate(
        "alone",
        rounds=1,
        dataset="diabetes",
        layout="iid",
        size="20+10",
        **given,
        grid=sites(tmp_path / "far"),
    )
    assert run.rows[-1]["epsilon_examples"]


def test_networks_that_mix_examples_or_share_buffers_are_refused() -> None:
    settings = Settings.parse(defaults() | {"dp-example-noise": 1.0})
    with pytest.raises(SettingsError, match="batch norm mixes the examples of a batch"):
        examples.require_private_network(torch.nn.BatchNorm1d(3), settings)
    buffered = torch.nn.Linear(2, 2)
    buffered.register_buffer("positions", torch.zeros(2))
    with pytest.raises(SettingsError, match="buffers would leave a site without noise; take buffers=local"):
        examples.require_private_network(buffered, settings)
    local = Settings.parse(defaults() | {"dp-example-noise": 1.0, "buffers": "local"})
    examples.require_private_network(buffered, local)


def test_a_budget_without_noise_is_refused() -> None:
    with pytest.raises(
        SettingsError, match="dp-example-epsilon=8 is a budget for noise and takes a dp-example-noise"
    ):
        Settings.parse(defaults() | {"dp-example-epsilon": 8.0})
