"""A method from elsewhere, the server's half: two networks with different starts, each for every second site.

It is no good method, but it asks for everything that a method may ask for: K starts, per-site payloads, state that
stays at the server, uploads held until the step, an upload of its own shape, an own setting, own columns.
"""

from typing import Any, ClassVar

import torch

from bayes_core import Point, mean
from fedbayes.protocol.columns import Column
from fedbayes.protocol.settings import Options, takes
from strategies.rounds.method import ServerMethod, StepOptions
from strategies.rounds.state import Came, Fresh, Part, State, Traits


class EnsembleOptions(StepOptions):
    momentum: float = takes(
        "a number from 0 up to, but not, 1", alias="ensemble.momentum", default=0.0, ge=0, lt=1
    )


class Ensemble(ServerMethod):
    title = "Ensemble"
    idea = "two networks, and a mixture of both at every client"
    traits = Traits(single_uploads=True)
    columns = (Column("drift", "distance of the two networks"), Column("examples", "examples", "client"))
    reads: ClassVar[type[Options]] = EnsembleOptions
    plain = frozenset({"told"})
    family = Point()

    def init(self, fresh: Fresh) -> State:
        starts = {f"start{k}": fresh(k)[None] for k in range(2)}
        return State(starts, kept={"velocity": torch.zeros_like(starts["start0"])}, facts={"steps": 0})

    def whose(self, site: str) -> str:
        return f"start{int(site[-1]) % 2}"

    def send(self, state: State, site: str) -> dict[str, torch.Tensor]:
        return {"w": state.sent[self.whose(site)], "told": torch.tensor([float(state.facts["steps"]), 0.5])}

    def expects(self, state: State, site: str, report: Any) -> dict[str, Part]:
        whose = self.whose(site)
        return {"w": Part(whose, state.sent[whose]), "sizes": Part("sizes", shape=(3,))}

    def step(self, state: State, came: Came) -> State:
        sent, velocity = dict(state.sent), state.kept["velocity"]
        for name in sent:
            uploads = [one.parts["w"] for one in came.uploads if self.whose(one.site) == name]
            if uploads:
                change = mean(uploads) - sent[name]
                velocity = self.options.momentum * velocity + change
                sent[name] = sent[name] + velocity
        return State(sent, {"velocity": velocity}, {"steps": state.facts["steps"] + 1})

    def describe(self, state: State, came: Came) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        drift = float((state.sent["start0"] - state.sent["start1"]).norm())
        sites = {one.site: {"examples": int(one.parts["sizes"][0])} for one in came.uploads}
        return {"drift": round(drift, 6)}, sites


METHOD = Ensemble
