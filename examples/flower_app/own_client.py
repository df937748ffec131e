"""A Flower ClientApp of one's own: pFedBayes' client update on data that stays here.

The client keeps its personal distribution q in Flower's `context.state`, and sends only the localized global w.
"""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import Tensor, nn

from bayes_core import ClientState, Gaussian, Recipe, client_update, predictive

FAMILY = Gaussian()
RECIPE = Recipe(
    local_steps=20, personal_steps=5, batch_size=50, mc_samples=1, zeta=0.5, optimizer="adam",
    lr_personal=0.001, lr_global=0.001, lr_lambda=0.001, adam_beta2=0.99, compile=None,
)  # fmt: skip

app = ClientApp()


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def my_data(context: Context) -> tuple[Tensor, Tensor]:
    """This client's share of scanned digits: every n-th."""
    number, clients = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x[number::clients] / 8 - 1).float(), torch.tensor(y[number::clients])


def received(message: Message) -> Tensor:
    arrays = message.content["arrays"].to_torch_state_dict()
    return torch.stack([arrays["mu"], arrays["rho"]])


@app.train()
def train(message: Message, context: Context) -> Message:
    (x, y), network, w = my_data(context), make_network(), received(message)
    before = ClientState.start(w, network, RECIPE.optimizer)
    if "mine" in context.state:
        before = ClientState.load_state_dict(context.state["mine"].to_torch_state_dict())
    seed = torch.Generator().manual_seed(int(message.content["config"]["server-round"]))
    updated = client_update(network, FAMILY, before, w, x[::2], y[::2], RECIPE, seed)
    context.state["mine"] = ArrayRecord(updated.personal.state_dict())
    arrays = ArrayRecord(dict(zip(FAMILY.rows, updated.w, strict=True)))
    metrics = MetricRecord({"num-examples": len(x[::2]), "loss": updated.loss})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy of the personal and of the global model on the other half of the data."""
    (x, y), network, w = my_data(context), make_network(), received(message)
    models = {"gm_accuracy": w}
    if "mine" in context.state:
        models["pm_accuracy"] = context.state["mine"].to_torch_state_dict()["q"]
    metrics: dict[str, float | int] = {"num-examples": len(x[1::2])}
    for name, v in models.items():
        p = predictive(network, FAMILY, v, x[1::2], samples=10, generator=torch.Generator().manual_seed(1))
        metrics[name] = float((p.argmax(-1) == y[1::2]).float().mean())
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
