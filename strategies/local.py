"""`local`, the server's half: no federation. The common start is sent, and nothing comes back but measures."""

from typing import ClassVar

from fedbayes.protocol.settings import Options
from strategies.fedavg import FedAvg
from strategies.rounds.state import Came, State, Traits


class Local(FedAvg):
    """Clients train alone; their weights stay at home."""

    title = "local"
    idea = "every client trains alone, for comparison"
    paper = ""
    traits = Traits(uploads=False, global_model=False)
    reads: ClassVar[type[Options]] = Options

    def step(self, state: State, came: Came) -> State:
        return state


METHOD = Local
