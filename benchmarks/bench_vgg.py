"""How much of a client's round with the VGG is the network's own forward and backward passes.

A round is all that a client does between a message's arrival and its reply: unpack, R = 20 steps on q and w, save the
personal state, pack. The network alone is the same 20 batches of 100, each in its two halves, through the plain
network and back. Processor time is compared, which a busy machine disturbs less than the clock. The images are noise
in the shape of CIFAR-10, which costs the same and needs no download.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from bayes_core.flat import flatten
from benchmarks.measure import Measurement, Options
from client_app.method import load
from client_app.store import Store
from fedbayes.protocol.codec import decode, encode
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, defaults

TITLE = "A client's round with the VGG on CIFAR-10 (one thread)"
EXAMPLES = 125  # size=small: 25 of five classes


def run(options: Options) -> list[Measurement]:
    torch.set_num_threads(1)
    settings = Settings.parse(defaults() | {"model": "vgg"})
    network = build("vgg", (3, 32, 32), 10, 1)
    random = torch.Generator().manual_seed(0)
    x = torch.rand(EXAMPLES, 3, 32, 32, generator=random) * 2 - 1
    y = torch.randint(0, 10, (EXAMPLES,), generator=random)
    method = load("pfedbayes")(settings, network, x, y, "site", torch.device("cpu"))
    rows = method.family.rows
    message = encode(method.family.init(flatten(network), settings.rho_init), rows)
    state = method.start({"w": decode(message, rows)})
    parameters = list(network.parameters())

    def network_alone() -> None:
        for _ in range(settings.local_steps):
            for half in (slice(0, 50), slice(50, 100)):
                torch.autograd.grad(cross_entropy(network(x[half]), y[half]), parameters)

    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder), "uuid", durable=False)

        def whole_round() -> None:
            trained = method.train(state, {"w": decode(message, rows)}, 1)
            store.save(1, trained.state, None)
            assert trained.upload is not None
            encode(trained.upload, rows)

        whole_round()
        network_alone()
        pairs = [(_spent(whole_round), _spent(network_alone)) for _ in range(15 if options.full else 5)]
    whole, network_part = (min(times) for times in zip(*pairs, strict=True))
    share = 1 - network_part / whole
    return [
        Measurement("client round, 20 steps", whole, "s"),
        Measurement("the network alone", network_part, "s"),
        Measurement("everything else", 100 * share, "%", note="of the round"),
    ]


def _spent(call: Callable[[], None]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start
