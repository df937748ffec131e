"""A method's tensors have names of their own: those that messages use are refused in a sentence."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from harness import Outcome

from client_app.method import Trained
from client_app.methods.fedavg import FedAvg as Client
from strategies import StrategyError
from strategies.fedavg import FedAvg as Server
from strategies.rounds.state import State

Federate = Callable[..., Outcome]


def test_a_sent_tensor(federate: Federate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "init", lambda self, fresh: State({"report": fresh()[None]}))
    with pytest.raises(ValueError, match='cannot send a tensor named "report"'):
        federate(method="fedavg")


def test_an_uploaded_tensor(federate: Federate, monkeypatch: pytest.MonkeyPatch) -> None:
    train = Client.train

    def renamed(self: Client, *arguments: object) -> Trained:
        trained = train(self, *arguments)  # type: ignore[arg-type]
        return replace(trained, uploads={"gm": trained.uploads["w"]}, bases={"gm": "w"})

    monkeypatch.setattr(Client, "train", renamed)
    with pytest.raises(StrategyError, match='cannot upload a tensor named "gm"'):
        federate(method="fedavg", rounds=1)
