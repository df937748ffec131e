"""Clients of two kinds, each with a linear regression of its own, and a federation of both real halves by hand."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from by_hand import OneRound
from torch import Tensor, nn

from bayes_core.networks import WithNoise
from client_app.method import ClientMethod
from client_app.method import load as load_client
from fedbayes.protocol.settings import Settings, defaults
from strategies.rounds.method import ServerMethod, sent_to
from strategies.rounds.state import State

D, CLIENTS, N = 20, 20, 50


@dataclass
class TwoKinds:
    """Client i is of kind i mod 2; `truth` has the weights of both."""

    one_round: OneRound
    server: ServerMethod
    seed: int
    words: dict[str, Any]
    number: int = 0
    states: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        generator = torch.Generator().manual_seed(self.seed)
        truth = torch.randn(2, D, generator=generator)
        self.truth = truth / truth.norm(dim=1, keepdim=True)
        settings = Settings.parse(defaults() | {"batch-size": N, "optimizer": "sgd"} | self.words)
        network = WithNoise(nn.Linear(D, 1, bias=False), 1.0)
        self.clients: dict[str, ClientMethod] = {}
        for i in range(CLIENTS):
            x = torch.randn(N, D, generator=generator)
            y = x @ self.truth[i % 2] + 0.001 * torch.randn(N, generator=generator)
            kind, site = load_client(settings.method), f"site-{i:02d}"
            self.clients[site] = kind(settings, network, x, y, site, torch.device("cpu"))
        self.state: State = self.server.init(self.fresh)

    def fresh(self, *words: int | str) -> Tensor:
        from fedbayes.protocol.streams import stream

        return 0.3 * torch.randn(D, generator=stream(self.seed, *words))

    def run(self, rounds: int, sites: Collection[str] = ()) -> State:
        """So many rounds of these sites, or of all."""
        for _ in range(rounds):
            self.number += 1
            uploads, reports = {}, {}
            for site in sites or self.clients:
                received = sent_to(self.server, self.state, site)
                state = self.states.get(site) or self.clients[site].start(received)
                trained = self.clients[site].train(state, received, self.number)
                self.states[site], uploads[site] = trained.state, trained.uploads["w"]
                reports[site] = trained.report
            self.state, self.came = self.one_round(
                self.server, self.state, uploads, reports, number=self.number
            )
        return self.state

    @property
    def members(self) -> dict[str, int]:
        return dict(self.state.facts["members"])

    @property
    def split_by_kind(self) -> bool:
        """Whether each kind has one cluster, and each cluster one kind."""
        kinds = {(self.members[site], i % 2) for i, site in enumerate(self.clients)}
        return len(kinds) == 2 and {kind for _, kind in kinds} == {cluster % 2 for cluster, _ in kinds} == {
            0,
            1,
        }

    @property
    def error(self) -> float:
        """Of the models of the first two clients' clusters, which are of different kinds."""
        first = list(self.clients)[:2]
        models = [self.state.sent[f"u{self.members[site]}"][0] for site in first]
        return float(max((model - true).norm() for model, true in zip(models, self.truth, strict=True)))
