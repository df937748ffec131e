"""FedAvg, but site 2 dies in round 2, once: `HOW` says how, and `TRAP` is a file that is gone afterwards."""

import os
import signal
from pathlib import Path

from client_app.method import Tensors, Trained
from client_app.methods.fedavg import FedAvg


class Dying(FedAvg):
    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        trap = Path(os.environ["TRAP"])
        print(f"site {self.site} trains")
        if (self.site, server_round) == ("2", 2) and trap.exists():
            trap.unlink()
            if os.environ["HOW"] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("it died")
        return super().train(state, received, server_round)


METHOD = Dying
