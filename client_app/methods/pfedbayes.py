"""pFedBayes, the client's half: R alternating steps on q (kept here) and w (uploaded).

Where only a part of the weights has a distribution (`bayesian`), the others take FedAvg's steps beside each step on q,
and are uploaded; the personal model is q on the plain weights that were received. With `plain-weights = "personal"`
they are this client's own: they begin as the network does, are kept with q, and never leave.
"""

from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from bayes_core import ClientState, Gaussian, Recipe, client_update
from bayes_core.families import Family
from bayes_core.flat import buffers_in, flatten
from bayes_core.inference.plain import settled
from bayes_core.inference.recipe import zeta_for
from bayes_core.parts import PLAIN, Beside, bayesian_part, hold, plain_in
from bayes_core.predict.predictor import Predictor, WeightsPredictor
from client_app.method import ClientMethod, Tensors, Trained, statistics_in
from fedbayes.protocol.messages import BODY
from fedbayes.protocol.settings import (
    Bayesian,
    Count,
    Options,
    PlainWeights,
    Rate,
    RhoInit,
    SettingsError,
    Steps,
    Zeta,
    takes,
)

BESIDE = "plain_weights"  # in a stored state: how many weights are not in it, since they are everybody's


class UpdateOptions(Options):
    personal_steps: Steps
    mc_samples: Count
    zeta: Zeta
    zeta_start: Annotated[
        float, takes("a number above 0 and at most 1 (ζ is the same in all rounds)", gt=0, le=1)
    ]
    lr_personal: Rate
    compile: Annotated[Literal["auto"] | bool, takes("auto, true or false")]
    bayesian: Bayesian
    plain_weights: PlainWeights
    rho_init: RhoInit
    personal_init: Annotated[Literal["keep", "reset"], takes("keep or reset")]


class PFedBayes(ClientMethod):
    """A distribution over the weights for this client, with the server's as its prior."""

    reads: ClassVar[type[Options]] = UpdateOptions
    private_examples = True
    options: UpdateOptions

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.family = self.make_family()
        try:
            self.split = bayesian_part(self.network, self.options.bayesian)
        except ValueError as error:
            raise SettingsError(str(error)) from None

    def make_family(self) -> Family:
        return Gaussian()

    @property
    def rho_origin(self) -> float:
        return self.options.rho_init

    def start(self, received: Tensors) -> dict[str, Tensor]:
        w = self.family.unconstrain(received["w"])
        start = ClientState.start(w, self.network, self.settings.optimizer)
        return replace(start, buffers=self.first_buffers(w, received)).state_dict() | self.kept(received)

    def network_for(self, received: Tensors) -> nn.Module:
        """Plain weights, where there are such, are constants in it: those that were received, or the first."""
        return hold(self.network, self.plain(received)) if self.split else self.network

    def plain(self, received: Tensors, state: Tensors | None = None) -> dict[str, Tensor]:
        """The plain weights by name: everybody's, or this client's own in its state."""
        if self.split is None:
            return {}
        if BODY in received:
            return self.split.named_shared(received[BODY][0])
        return plain_in(state or {}) or self.split.named_shared(self.split.shared(flatten(self.network)))

    def kept(self, received: Tensors, body: Tensor | None = None) -> dict[str, Tensor]:
        """What a state has of plain weights: those that are this client's own, else how many there are."""
        if self.split is None:
            return {}
        if BODY in received:
            return {} if body is None else {BESIDE: torch.tensor(body.shape[1])}
        named = self.plain(received) if body is None else self.split.named_shared(body[0])
        return {PLAIN + name: value.detach().clone() for name, value in named.items()}

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        w = received["w"]
        before = ClientState.load_state_dict(state)
        if self.options.personal_init == "reset":  # the paper's sFedBayes box restarts q from the global
            before = replace(before, q=self.family.unconstrain(w))
        recipe, beside = self.recipe(server_round), None
        if self.split:
            plainly = recipe.optimizer, self.settings.lr_global, recipe.adam_beta2
            named = self.plain(received, state)
            body = torch.cat([named[name].reshape(-1) for name in self.split.shared_names])[None]
            beside = Beside(self.network, self.split, body, *plainly)
        updated = client_update(
            self.network,
            self.family,
            before,
            w,
            self.x,
            self.y,
            recipe,
            self.stream(server_round, "train"),
            self.likelihood,
            gates=self.stream(server_round, "gates"),
            augment=self.augmentation and self.augmentation(server_round),
            beside=beside,
        )
        if self.mechanism:
            return self._beside_private(updated.personal, received, server_round)
        uploads = {"w": updated.w} | ({BODY: beside.body} if beside and BODY in received else {})
        bases = {name: name for name in uploads}
        state = updated.personal.state_dict() | (self.kept(received, beside.body) if beside else {})
        return Trained(state, uploads, {"loss": updated.loss}, bases)

    def _beside_private(self, personal: ClientState, received: Tensors, server_round: int) -> Trained:
        """What leaves where single examples are private: where a second q arrives from w in noised steps of SGD.

        It is not pulled back to w, from which it takes but a few steps (ζ = 0). The step on w sees no data and is taken
        to its end: KL(q ‖ w) is least at w = q. The personal q has no noise: it stays here, and nothing of it reaches
        the second one, which lives for a round.
        """
        n, settings, w = len(self.x), self.settings, received["w"]
        rate = settings.dp_example_lr / n  # a step is on the sum over all examples
        recipe = replace(
            self.recipe(server_round),
            personal_steps=1,
            mc_samples=1,
            zeta=0.0,
            batch_size=settings.dp_example_batch or n,
            optimizer="sgd",
            lr_personal=rate,
            lr_lambda=rate,
            lr_global=0.0,
            compile=False,
        )
        updated = client_update(
            self.network,
            self.family,
            ClientState.start(self.family.unconstrain(w), self.network, "sgd"),
            w,
            self.x,
            self.y,
            recipe,
            self.stream(server_round, "private"),
            self.likelihood,
            gates=self.stream(server_round, "private gates"),
            private=self.mechanism,
        )
        return Trained(personal.state_dict(), {"w": self.family.constrain(updated.personal.q)})

    def recipe(self, server_round: int) -> Recipe:
        settings, options, n = self.settings, self.options, len(self.x)
        steps = self.personal_steps(options.personal_steps)
        zeta = zeta_for(n) if options.zeta == "auto" else options.zeta
        pace = steps**0.5 if options.personal_steps == "auto" else 1.0  # of w, so that it keeps up with q
        return Recipe(
            local_steps=settings.local_steps,
            personal_steps=steps,
            batch_size=settings.batch_size,
            mc_samples=options.mc_samples,
            zeta=zeta * self.zeta_share(server_round),
            optimizer=settings.optimizer,
            lr_personal=options.lr_personal,
            lr_global=settings.lr_global * pace,
            lr_lambda=options.lr_personal,  # a Gaussian has no λ
            adam_beta2=settings.adam_beta2,
            compile=None if options.compile == "auto" else options.compile,
        )

    def zeta_share(self, server_round: int) -> float:
        """Of ζ: from `zeta-start` in round 0 it rises by one factor a round, to all of it in the middle of the run.

        A strong prior holds q where nothing has been learned yet: Adam's steps follow the pull back to w, not the data.
        """
        return float(self.options.zeta_start ** max(0.0, 1 - 2 * server_round / self.settings.rounds))

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        gm = self.family.unconstrain(received["w"])
        if self.split is None:
            return {"pm": self.weights(state["q"], state), "gm": self.weights(gm, state, received)}
        plain, own = self.plain(received, state), buffers_in(state)
        network = hold(self.network, plain)
        make = partial(WeightsPredictor, network, self.family, plain=plain)
        if BODY not in received:  # the state has all of the personal model
            return {"pm": make(state["q"], own), "gm": make(gm, {**own, **statistics_in(received)})}
        # the personal head on everybody's body: batch norm has this client's statistics under both
        settle = settled(network, self.family.centre(state["q"]), own, self.x)
        return {"pm": make(state["q"], settle), "gm": make(gm, {**own, **statistics_in(received)})}

    @classmethod
    def restore(cls, network: nn.Module, family: Family, tensors: Tensors) -> Predictor | None:
        """Where some weights are plain, a state alone has no model: the closing exchange keeps one."""
        if BESIDE in tensors and "model" not in tensors:
            return None
        return super().restore(network, family, tensors)


METHOD = PFedBayes
