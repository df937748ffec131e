"""`aggregation-confidence` at the client: its upload says how sure its model is of its own training data."""

from typing import TYPE_CHECKING

from client_app.method import ClientMethod
from fedbayes.protocol.messages import UNCERTAINTY

if TYPE_CHECKING:
    from client_app.stages import Departure


class Certainty:
    """Adds the mean entropy, in nats, of the predictive on this client's training examples."""

    def __init__(self, method: ClientMethod) -> None:
        self.method = method

    def leave(self, departure: "Departure") -> None:
        method = self.method
        model = method.model_of(departure.trained, departure.received)
        generator = method.stream(departure.server_round, "uncertainty")
        found = model.predict(method.x, method.settings.eval_samples, generator)
        departure.report[UNCERTAINTY] = float(found.entropy.mean())


def stage(method: ClientMethod) -> Certainty | None:
    return Certainty(method) if method.settings.aggregation_confidence != "off" else None
