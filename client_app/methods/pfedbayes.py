"""pFedBayes, the client's half: R alternating steps on q (kept here) and w (uploaded)."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bayes_core import ClientState, Recipe, build_family, client_update
from bayes_core.inference.optimisers import OptimizerState
from client_app.method import ClientMethod, Tensors, Trained, buffers_in, with_buffers


class PFedBayes(ClientMethod):
    """A distribution over the weights for this client, with the server's as its prior."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        settings = self.settings
        self.family = build_family(self.family_name(), settings.temperature, settings.lambda_init)

    def family_name(self) -> str:
        return "gaussian"

    def start(self, received: Tensors) -> dict[str, Tensor]:
        return self.start_at(received["w"])

    def start_at(self, w: Tensor) -> dict[str, Tensor]:
        return to_tensors(
            ClientState.start(self.family.unconstrain(w), self.network, self.settings.optimizer)
        )

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        w = received["w"]
        personal = from_tensors(state)
        if self.settings.personal_init == "reset":  # the paper's sFedBayes box restarts q from the global
            personal = replace(personal, q=self.family.unconstrain(w))
        updated = client_update(
            self.network,
            self.family,
            personal,
            w,
            self.x,
            self.y,
            self.recipe(server_round),
            self.stream(server_round, "train"),
            self.likelihood,
            gates=self.stream(server_round, "gates"),
        )
        return Trained(to_tensors(updated.personal), updated.w, {"loss": updated.loss})

    def recipe(self, server_round: int) -> Recipe:
        settings = self.settings
        return Recipe(
            local_steps=settings.local_steps,
            personal_steps=settings.personal_steps,
            batch_size=settings.batch_size,
            mc_samples=settings.mc_samples,
            zeta=settings.zeta,
            optimizer=settings.optimizer,
            lr_personal=settings.lr_personal,
            lr_global=settings.lr_global,
            lr_lambda=settings.lr_lambda,
            adam_beta2=settings.adam_beta2,
            compile=None if settings.compile == "auto" else settings.compile,
        )

    def models(self, state: Tensors, received: Tensors) -> dict[str, Tensor]:
        return {"pm": state["q"], "gm": self.family.unconstrain(received["w"])}


def to_tensors(personal: ClientState) -> dict[str, Tensor]:
    """A personal state in the form in which it is stored."""
    tensors = {
        "q": personal.q,
        "q_moments": personal.q_optimizer.moments,
        "w_moments": personal.w_optimizer.moments,
        "steps": torch.tensor([personal.q_optimizer.steps, personal.w_optimizer.steps]),
    }
    return with_buffers(tensors, personal.buffers)


def from_tensors(state: Tensors) -> ClientState:
    q_steps, w_steps = state["steps"].tolist()
    q_optimizer, w_optimizer = (
        OptimizerState(state["q_moments"], q_steps),
        OptimizerState(state["w_moments"], w_steps),
    )
    return ClientState(state["q"], q_optimizer, w_optimizer, buffers_in(state))


METHOD = PFedBayes
