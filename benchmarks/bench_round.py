"""A round of simulation against its ideal: the clients' own compute, shared out evenly among the cores.

The run is that of `fedbayes run`, watched from outside, ten clients with MNIST medium and R = 20, on the embedded
engine and then on Flower's own. The clients' own compute is what `train` takes, for the same clients in processes that
do nothing else, one on each core, before and after each run because machines change their pace; processor time, which
is the wall time of a quiet core. The evaluation of all clients that ends the run is shown apart.
"""

import multiprocessing
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from bayes_core.flat import flatten
from bayes_core.server.aggregate import Mean
from benchmarks.measure import Measurement, Options
from benchmarks.watch import OTHERS, RAY, SERVER, WORKER, Watched, watch
from client_app.data import load as load_data
from client_app.methods.pfedbayes import PFedBayes
from client_app.store import Store
from fedbayes.launch.engines import EMBEDDED, FLOWER
from fedbayes.launch.resources import cpus
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, defaults

TITLE = "A round of simulation: 10 clients, MNIST medium, R = 20"
TAKES_MNIST = True
CLIENTS = 10


def run(options: Options) -> list[Measurement]:
    rows = []
    for personal_steps in (1, 5):
        after = on_all_cores(options, personal_steps)
        for engine, rounds in (EMBEDDED, 100 if options.full else 40), (FLOWER, 100 if options.full else 20):
            before = after
            watched = watch(options, CLIENTS, rounds, engine, size="medium", personal_steps=personal_steps)
            after = on_all_cores(options, personal_steps)
            parts = before + after
            mean = {name: statistics.mean(part[name] for part in parts) for name in parts[0]}
            rows += compare(
                watched, mean, f"{engine}, {personal_steps} personal step{'s' * (personal_steps > 1)}"
            )
    return rows


def compare(watched: Watched, parts: dict[str, float], title: str) -> list[Measurement]:
    """The round and its ideal, and where the cores' time went: in ms of a round, ÷ cores."""
    share = 1e3 / cpus()
    wall, ideal = 1e3 * statistics.median(watched.round_times()), share * parts["train"]
    others = {name: share * spent for name, spent in parts.items() if name not in ("train", "evaluate")}
    kinds = {kind: share * watched.processor(kind) for kind in (WORKER, SERVER, RAY, OTHERS)}
    values = [
        ("a round", wall, ""),
        ("ideal: the clients' compute ÷ cores", ideal, ""),
        ("unpack, store, pack ÷ cores", sum(others.values()), listed(others)),
        ("processor time of all processes ÷ cores", sum(kinds.values()), listed(kinds)),
        ("cores that wait", wall - sum(kinds.values()), "on a machine with nothing else to do"),
        ("an evaluation, apart", 1e3 * watched.evaluation, f"ideal {share * parts['evaluate']:.0f}"),
    ]
    return [
        Measurement(
            f"{title}: {name}", value, "ms", {"of the ideal": ideal / wall} if value is wall else {}, note
        )
        for name, value, note in values
    ]


def listed(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in parts.items())


def on_all_cores(options: Options, personal_steps: int) -> list[dict[str, float]]:
    """The clients' parts, measured by one process on each core at the same time."""
    count = cpus()
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(client_parts, [options] * count, [personal_steps] * count))


def client_parts(options: Options, personal_steps: int) -> dict[str, float]:
    """Processor seconds of all clients together in one round, by what is done between a message and its use."""
    torch.set_num_threads(1)
    words = {"dataset": "mnist", "size": "medium", "data-dir": str(options.data_dir)}
    settings = Settings.parse(defaults() | words | {"personal-steps": personal_steps})
    spent: dict[str, float] = defaultdict(float)

    @contextmanager
    def part(name: str) -> Iterator[None]:
        start = time.process_time()
        yield
        spent[name] += time.process_time() - start

    with tempfile.TemporaryDirectory() as folder:
        for client in range(CLIENTS):
            data = load_data(settings, client, CLIENTS)
            network = build(settings.model, tuple(data.x_train.shape[1:]), len(data.classes), settings.seed)
            method = PFedBayes(
                settings, network, data.x_train, data.y_train, str(client), torch.device("cpu")
            )
            w = method.family.init(flatten(network), method.options.rho_init)
            sent = method.codec.send(w)
            store = Store(Path(folder) / str(client), "uuid", durable=False)
            store.save(1, method.train(method.start({"w": w}), {"w": w}, 1).state, None)

            with part("unpack"):
                received = method.codec.receive(sent)
            with part("load"):
                stored = store.load(before=2)
            assert stored is not None
            with part("train"):
                trained = method.train(stored.tensors, {"w": received}, 2)
            with part("save"):
                store.save(2, trained.state, stored)
            with part("pack"):
                reply = method.codec.leave(trained.uploads["w"], received)
            aggregate = Mean(w)
            with part("server: unpack, add"):
                aggregate.add(method.codec.arrive(reply, w, w.shape))
            with part("evaluate"):
                for model in method.models(trained.state, {"w": received}).values():
                    model.predict_both(data.x_test, settings.eval_samples, torch.Generator())
    return dict(spent)
