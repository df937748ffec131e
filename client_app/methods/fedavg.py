"""FedAvg, the client's half: `local-steps` plain steps from the server's weights; only buffers are kept."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from bayes_core import Point
from bayes_core.flat import buffers_in, buffers_of, with_buffers
from bayes_core.inference.optimisers import OptimizerState
from bayes_core.inference.plain import MeanLoss, Term, Weights, train_weights
from bayes_core.inference.update import minibatches
from bayes_core.predict.predictor import Predictor
from client_app.method import ClientMethod, Tensors, Trained, statistics_in

if TYPE_CHECKING:
    from bayes_core.inference.private import Mechanism


class FedAvg(ClientMethod):
    """One weight vector for everybody; there is no personal model."""

    family = Point()
    private_examples = True

    def start(self, received: Tensors) -> dict[str, Tensor]:
        return with_buffers({}, buffers_of(self.network))

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        terms = self.terms(received["w"])
        if self.mechanism:
            return self._privately(self.begin(state, received), server_round, terms, self.mechanism)
        trained, loss = self.steps(self.begin(state, received), server_round, terms)
        return Trained(with_buffers({}, trained.buffers), {"w": trained.v}, {"loss": loss})

    def begin(self, state: Tensors, received: Tensors) -> Weights:
        """The server's weights, where a round begins."""
        v, buffers = received["w"], {**buffers_in(state), **statistics_in(received)}
        return Weights(v, OptimizerState.blank(v, self.settings.optimizer), buffers)

    def terms(self, w: Tensor) -> Sequence[Term]:
        """What the loss has beside the likelihood."""
        return ()

    def steps(
        self,
        weights: Weights,
        server_round: int,
        terms: Sequence[Term] = (),
        *,
        count: int | None = None,
        lr: float | None = None,
        purpose: str = "train",
    ) -> tuple[Weights, float]:
        """`local-steps` steps at `lr-global`, unless told otherwise; batches come from the stream of this purpose."""
        return train_weights(
            self.network,
            weights,
            self.x,
            self.y,
            steps=self.settings.local_steps if count is None else count,
            batch_size=self.settings.batch_size,
            optimizer=self.settings.optimizer,
            lr=self.settings.lr_global if lr is None else lr,
            adam_beta2=self.settings.adam_beta2,
            generator=self.stream(server_round, purpose),
            likelihood=self.likelihood,
            terms=terms,
            augment=self.augmentation and self.augmentation(server_round, purpose),
        )

    def _privately(
        self, start: Weights, server_round: int, terms: Sequence[Term], mechanism: "Mechanism"
    ) -> Trained:
        """`local-steps` steps of SGD in which single examples are private; no loss is told."""
        trained, _ = train_weights(
            self.network,
            replace(start, optimizer=OptimizerState.blank(start.v, "sgd")),
            self.x,
            self.y,
            steps=self.settings.local_steps,
            batch_size=self.settings.dp_example_batch or len(self.x),
            optimizer="sgd",
            lr=self.settings.dp_example_lr,
            adam_beta2=self.settings.adam_beta2,
            generator=self.stream(server_round, "private"),
            likelihood=self.likelihood,
            terms=terms,
            private=mechanism,
        )
        return Trained(with_buffers({}, trained.buffers), {"w": trained.v})

    def mean_loss(self, state: Tensors, received: Tensors, server_round: int | None = None) -> MeanLoss:
        """The loss, for a method that takes steps of its own from the server's weights; in a round, in training."""
        buffers = {**buffers_in(state), **statistics_in(received)}
        augment = None
        if server_round is not None and self.augmentation is not None:
            augment = self.augmentation(server_round)
        return MeanLoss(self.network, self.x, self.y, self.likelihood, buffers, augment)

    def batches(self, server_round: int, purpose: str = "train") -> Iterator[Tensor]:
        """The indices of `local-steps` batches, from the stream of this purpose."""
        n, settings = len(self.x), self.settings
        stream = self.stream(server_round, purpose)
        return minibatches(n, min(settings.batch_size, n), settings.local_steps, stream)

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        return {"gm": self.weights(received["w"], state, received)}


METHOD = FedAvg
