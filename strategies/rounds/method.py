"""The server's half of a method: what it starts from, what it sends, what an upload is, and the step that follows.

A method is a few functions on a `State`, which is plain data; the loop (loop.py) drives them, and a checkpoint is that
state and nothing else. The same object is a Flower strategy (flower.py) for those who have apps of their own.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor, nn

from bayes_core import extrapolate
from bayes_core.families import Family
from bayes_core.flat import Shapes, flatten, shapes_of
from bayes_core.server.aggregate import Aggregate, Mean
from fedbayes.protocol.columns import Column
from fedbayes.protocol.messages import STATISTICS
from fedbayes.protocol.settings import NonNegative, Options, Settings, SettingsError, takes
from strategies.rounds.flower import FlowerStrategy
from strategies.rounds.state import Came, Fresh, Part, State, Traits

Weighting = Annotated[Literal["uniform", "examples"], takes("uniform or examples")]


class StepOptions(Options):
    """The settings of the default step."""

    beta: NonNegative
    weighting: Weighting


class ServerMethod(FlowerStrategy):
    """One method at the server. Subclasses say only in what they differ from FedAvg's shape."""

    title: ClassVar[str] = ""
    idea: ClassVar[str] = ""  # half a sentence for the report
    paper: ClassVar[str] = ""
    traits: ClassVar[Traits] = Traits()
    columns: ClassVar[tuple[Column, ...]] = ()  # further ones in rounds.csv and clients.csv
    plain: ClassVar[frozenset[str]] = frozenset()  # names of sent tensors that are no distributions
    openings: ClassVar[int] = 0  # exchanges with all sites before round 1; the last of them is round 0
    reads: ClassVar[type[Options]] = StepOptions
    options: Any
    family: Family
    aggregate_by: Callable[[Tensor], Aggregate] = Mean  # the paper's mean, unless a method offers another
    buffers_by: Callable[[Tensor], Aggregate] = Mean  # the same for the statistics that go with it

    def __init__(
        self,
        options: Options | None = None,
        *,
        seed: int = 1,
        tell: Callable[..., None] | None = None,
        **given: Any,
    ) -> None:
        """`options` as parsed from a run's settings, or some of them by name; the others have their defaults."""
        super().__init__(**{name: given.pop(name) for name in self.FLOWER & given.keys()})
        self.options = options or self.reads.of(**given)
        self.seed = seed
        self.tell = tell or (lambda event, **said: None)

    @classmethod
    def check(cls, settings: Settings) -> None:
        """SettingsError where the method cannot do what is asked for."""
        if cls.traits.every_site and settings.clients_per_round:
            raise SettingsError(
                f"method={settings.method} needs every site in every round; leave clients-per-round out (0 = all)."
            )

    @property
    def rho_origin(self) -> float:
        """Where ρ starts, for codecs that send its distance from there."""
        return 0.0

    def weights_of(self, network: nn.Module) -> Tensor:
        """The weights (T,) of a network that clients share: all of them, unless some stay at each client."""
        return flatten(network)

    def distributed(self, network: nn.Module) -> Shapes:
        """Names and shapes of the parameters in what is sent of a method whose family has uncertainty: all of them."""
        return shapes_of(network)

    @abstractmethod
    def init(self, fresh: Fresh) -> State:
        """The state before the first exchange. `fresh()` gives the common start, `fresh(k)` another one for each k."""

    def send(self, state: State, site: str) -> Mapping[str, Tensor]:
        """What this site receives. A tensor that several sites receive is encoded once."""
        return state.sent

    def expects(self, state: State, site: str, report: Mapping[str, Any]) -> Mapping[str, Part]:
        """The parts of this site's upload; BadReply for an impossible report."""
        return {"w": Part("w", state.sent["w"])}

    def holds(self, number: int) -> bool:
        """Whether this round's uploads are kept until the step, instead of being added up as they arrive."""
        return self.traits.single_uploads

    def sum_for(self, state: State, into: str) -> Aggregate:
        """An empty sum, near the server's own distribution."""
        return self.aggregate_by(state.sent[into])

    def step(self, state: State, came: Came) -> State:
        """w ← (1−β)·w + β·mean of the uploads, when all of them are in."""
        moved = {into: self.towards(state.sent[into], total.result()) for into, total in came.sums.items()}
        return replace(state, sent={**state.sent, **moved})

    def towards(self, v: Tensor, target: Tensor) -> Tensor:
        """The (1−β) extrapolation, within the family."""
        return self.family.after_extrapolation(extrapolate(v, target, self.options.beta))

    def describe(self, state: State, came: Came) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """The method's own columns after a step: of the round, and of each site."""
        return {}, {}


def sent_to(method: ServerMethod, state: State, site: str) -> dict[str, Tensor]:
    """What a site receives, with the statistics of those distributions that have such, as NAME.statistics."""
    sent = dict(method.send(state, site))
    if state.statistics:
        names = {id(tensor): name for name, tensor in state.sent.items()}
        owners = {name: names.get(id(tensor), "") for name, tensor in sent.items()}
        found = {name: state.statistics[of] for name, of in owners.items() if of in state.statistics}
        sent |= {name + STATISTICS: tensor for name, tensor in found.items()}
    return sent
