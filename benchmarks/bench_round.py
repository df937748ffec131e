"""A round of simulation against its ideal: the clients' own compute, shared out evenly among the cores.

The run is `fedbayes run` itself, watched from outside, ten clients with MNIST medium and R = 20. The clients' own
compute is what `train` takes, for the same clients in a process that does nothing else; processor time, which is the
wall time of a quiet core. Rounds in which the clients also measure the models are shown apart.
"""

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord

from bayes_core.aggregate import Mean
from bayes_core.flat import flatten
from bayes_core.networks import build
from bayes_core.predict import point_probabilities
from bayes_core.uncertainty import predict
from bayes_core.wire import Arrays
from benchmarks.measure import Measurement, Options
from benchmarks.watch import ACTOR, FLOWER, RAY, SERVER, Watched, watch
from client_app.data import load as load_data
from client_app.methods.pfedbayes import PFedBayes
from client_app.store import Store
from fedbayes.resources import cpus
from fedbayes.settings import Settings, defaults

TITLE = "A round of simulation: 10 clients, MNIST medium, R = 20"
CLIENTS = 10
WARM_UP = 3  # rounds in which an actor still meets new clients


def run(options: Options) -> list[Measurement]:
    torch.set_num_threads(1)
    rows = []
    for personal_steps in (1, 5):
        words: dict[str, object] = {"size": "medium", "personal_steps": personal_steps}
        rounds = 100 if options.full else 40
        watched = watch(options, CLIENTS, rounds=rounds, eval_every=10, **words)
        rows += compare(watched, client_parts(options, personal_steps), personal_steps)
    return rows


def compare(watched: Watched, parts: dict[str, float], personal_steps: int) -> list[Measurement]:
    """The round, its ideal, and processor seconds by where they were spent."""
    title, cores = f"{personal_steps} personal step{'s' * (personal_steps > 1)}", cpus()
    wall = statistics.median(watched.round_times()[WARM_UP:])
    ideal = parts["train"] / cores
    evaluation = statistics.median(watched.round_times(measured=True)[1:]) - wall
    others = {name: seconds for name, seconds in parts.items() if name not in ("train", "evaluate")}
    note = ", ".join(f"{name} {1e3 * seconds / cores:.0f}" for name, seconds in others.items())
    kinds = {kind: watched.processor(kind) for kind in (ACTOR, SERVER, RAY, FLOWER)}
    spent = ", ".join(f"{kind} {1e3 * seconds / cores:.0f}" for kind, seconds in kinds.items())
    return [
        Measurement(f"{title}: a round", 1e3 * wall, "ms", {"of the ideal": ideal / wall}),
        Measurement(f"{title}: ideal, clients' compute ÷ cores", 1e3 * ideal, "ms"),
        Measurement(
            f"{title}: the clients' other work ÷ cores", 1e3 * sum(others.values()) / cores, "ms", note=note
        ),
        Measurement(
            f"{title}: processor time ÷ cores",
            1e3 * sum(kinds.values()) / cores,
            "ms",
            note=f"{spent} (with evaluations)",
        ),
        Measurement(
            f"{title}: an evaluation, on top",
            1e3 * evaluation,
            "ms",
            note=f"clients' own ÷ cores {1e3 * parts['evaluate'] / cores:.0f}",
        ),
    ]


def client_parts(options: Options, personal_steps: int) -> dict[str, float]:
    """Processor seconds of all clients together in one round, by what is done between a message and its use."""
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
            w = method.family.init(flatten(network), settings.rho_init)
            sent = record(method.wire.encode(w))
            store = Store(Path(folder) / str(client), "uuid", durable=False)
            store.save(1, method.train(method.start({"w": w}), {"w": w}, 1).state, None)

            with part("unpack"):
                received = method.wire.decode({name: array.numpy() for name, array in sent.items()})
            with part("load"):
                stored = store.load(before=2)
            assert stored is not None
            with part("train"):
                trained = method.train(stored.tensors, {"w": received}, 2)
            with part("save"):
                store.save(2, trained.state, stored)
            assert trained.upload is not None
            with part("pack"):
                reply = record(method.wire.encode_upload(trained.upload, received))
            aggregate = Mean(w)
            with part("server: unpack, add"):
                aggregate.add(
                    method.wire.decode_upload({name: array.numpy() for name, array in reply.items()}, w)
                )
            with part("evaluate"):
                for v in method.models(trained.state, {"w": received}).values():
                    predict(network, method.family, v, data.x_test, settings.eval_samples, torch.Generator())
                    point_probabilities(network, method.family, v, data.x_test)
    return dict(spent)


def record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})
