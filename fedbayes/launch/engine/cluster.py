"""A grid over the actors of a Ray cluster that is already there.

An actor (actor.py) does what a worker of this machine does. The app goes with it, so its node needs Python, fedbayes'
dependencies and a view of the run's folder, where the clients' states are, and of the data. A node that dies costs the
message that each of its actors was at; actors that are lost are replaced where, and when, the cluster has room.
"""

import logging
import os
import shutil
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import ArrayRecord, Error, Message, RecordDict

from fedbayes.launch.app_bundle import assemble
from fedbayes.launch.engine.actor import Actor, Post
from fedbayes.launch.engine.pool import CRASHED, Pool
from fedbayes.launch.plan import further_defaults
from fedbayes.protocol.settings import Settings
from strategies import StrategyError

BUNDLE = ".cluster"  # in the run folder: the app as it is sent to the nodes, and a token
TOKEN = "token"
BUILT_IN = ("digits", "diabetes")  # data sets that come with scikit-learn
ABREAST = 2  # messages of one actor under way
PER_GPU = 8  # actors on one GPU, unless gpu-share says otherwise
ANSWER = 10.0  # seconds for a cluster's address to answer
LOOK = 2.0  # seconds between looks at whether there is room for more actors
PATIENCE = 300.0  # seconds without any actor until the run ends
LOST = "the node of the cluster that served it was lost"
Promise = Any  # of Ray: what an actor will give back


@dataclass
class Seat:
    """One actor as the server sees it."""

    number: int
    actor: Any
    ready: Promise | None  # what it says of its node, until that has been heard
    messages: deque[tuple[Promise, Message]] = field(default_factory=deque)  # under way, the oldest first


@dataclass
class Put:
    """A record that was put into the cluster, once for all messages that carry it."""

    record: ArrayRecord
    place: Promise
    needed: int = 0


class ClusterGrid(Pool):
    """The federation's clients are there from the start; the cluster's nodes may come and go."""

    def __init__(self, clients: int, config: Mapping[str, Any], address: str) -> None:
        import ray

        super().__init__(clients)
        self._ray: Any = ray
        self._settings = Settings.parse(config)
        token = uuid4().hex
        _connect(address, _bundled(self._settings, token))
        needs = _needs(self._settings, self._ray.cluster_resources())
        self._needs = {"CPU": needs["num_cpus"]} | ({"GPU": needs["num_gpus"]} if "num_gpus" in needs else {})
        post = post_of(self._settings, clients, token)
        self._make: Callable[[], Any] = partial(self._ray.remote(Actor).options(**needs).remote, post)
        self._put: dict[int, Put] = {}  # by the id of the record
        self._seats: list[Seat] = []
        self._count = 0
        self._looked = -LOOK
        self._served = time.monotonic()  # when there was an actor last
        self._hire()
        while not self._team():
            self._hear(LOOK)
            self._give_up()

    def close(self) -> None:
        """Actors end with their driver, which this process is."""
        self._ray.shutdown()
        shutil.rmtree(bundle(self._settings), ignore_errors=True)

    def _team(self) -> list[Seat]:
        return [seat for seat in self._seats if seat.ready is None]

    def _hire(self) -> None:
        """As many actors as the cluster has room for, and no more than clients."""
        if time.monotonic() - self._looked < LOOK:
            return
        self._looked = time.monotonic()
        there = self._ray.cluster_resources()
        room = int(min(there.get(kind, 0) / needed for kind, needed in self._needs.items()))
        while len(self._seats) < min(room, len(self._nodes)):
            actor = self._make()
            self._seats.append(Seat(self._count, actor, actor.problem.remote()))
            self._count += 1

    def _hear(self, seconds: float) -> None:
        """What new actors say of their nodes."""
        new = {seat.ready: seat for seat in self._seats if seat.ready is not None}
        for promise in self._ray.wait(list(new), num_returns=len(new), timeout=seconds)[0] if new else ():
            seat = new[promise]
            try:
                problem = self._ray.get(promise)
            except self._ray.exceptions.RayError as error:
                self._seats.remove(seat)
                logging.getLogger("flwr").warning("An actor did not start: %s", error)
                continue
            if problem:
                raise StrategyError(problem)
            seat.ready = None

    def _give_up(self) -> None:
        if self._team():
            self._served = time.monotonic()
        elif time.monotonic() - self._served > PATIENCE:
            raise StrategyError(
                f"The Ray cluster has had no room for a client for {PATIENCE:.0f} s; a client takes "
                f"{' and '.join(f'{needed:g} {kind}' for kind, needed in self._needs.items())}."
            )

    def _need(self, message: Message) -> None:
        for record in message.content.array_records.values():
            if id(record) not in self._put:
                self._put[id(record)] = Put(record, self._ray.put(record))
            self._put[id(record)].needed += 1

    def _drop(self, message: Message) -> None:
        for record in message.content.array_records.values():
            item = self._put[id(record)]
            item.needed -= 1
            if not item.needed:
                del self._put[id(record)]

    def _hand_out(self) -> None:
        team = self._team()
        for most in range(1, ABREAST + 1):
            for seat in team:
                waiting = len(self._deal)
                if len(seat.messages) < most and waiting >= (1 if most == 1 else len(team)):
                    message = self._deal.take(seat.number)
                    seat.messages.append((self._ask(seat.actor, message), message))

    def _ask(self, actor: Any, message: Message) -> Promise:
        arrays = message.content.array_records
        others = {name: record for name, record in message.content.items() if name not in arrays}
        places = [self._put[id(record)].place for record in arrays.values()]
        return actor.answer.remote(message.metadata, others, list(arrays), *places)

    def _read(self, seconds: float | None) -> None:
        self._hear(0.0)
        self._hire()
        self._hand_out()
        promises = {promise: seat for seat in self._seats for promise, _ in seat.messages}
        self._give_up()
        if not promises:
            time.sleep(min(LOOK, LOOK if seconds is None else seconds))
            return
        self._ray.wait(list(promises), timeout=LOOK if seconds is None else seconds)
        done, _ = self._ray.wait(list(promises), num_returns=len(promises), timeout=0)
        for promise in done:
            if promises[promise] in self._seats:
                self._take(promises[promise], promise)
        self._hand_out()

    def _take(self, seat: Seat, promise: Promise) -> None:
        """A reply; or an actor that was lost, which costs the message that it was at."""
        message = next(message for one, message in seat.messages if one == promise)
        try:
            metadata, error, content, spent = self._ray.get(promise)
        except self._ray.exceptions.RayError as lost:
            logging.getLogger("flwr").warning("An actor was lost: %s", str(lost).splitlines()[0])
            self._seats.remove(seat)
            (_, at), *rest = seat.messages
            self._settle(at, Message(Error(CRASHED, LOST), reply_to=at))
            self._deal.add(message for _, message in rest)
            return
        seat.messages.remove((promise, message))
        self._deal.took(message, spent)
        self._settle(message, Message(error or RecordDict(content), metadata=metadata))  # type: ignore[call-overload]


def bundle(settings: Settings) -> Path:
    return Path(settings.out_dir) / settings.run_name / BUNDLE


def post_of(settings: Settings, clients: int, token: str) -> Post:
    file = bundle(settings) / TOKEN
    return Post(clients, settings.threads, settings.out_dir, str(file), token, data_of(settings))


def data_of(settings: Settings) -> tuple[str, ...]:
    """What nodes must see to have the data: files of one's own, or data-dir, as far as they are there."""
    names = settings.dataset.split(",")
    places = [
        name if Path(name).is_absolute() else settings.data_dir for name in names if name not in BUILT_IN
    ]
    return tuple(place for place in dict.fromkeys(places) if Path(place).exists())


def _bundled(settings: Settings, token: str) -> Path:
    """The app in the run's folder, with those modules of the user's that lie in the folder of the command."""
    folder = bundle(settings)
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier attempt that was killed
    app = assemble(folder / "app", further_defaults(settings))
    for name in (settings.model, settings.dataset, settings.method):
        top = Path.cwd() / name.partition(":")[0].partition(".")[0]
        if (":" in name or (name == settings.method and settings.is_foreign)) and top.is_dir():
            shutil.copytree(
                top, app / top.name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
            )
        elif ":" in name and top.with_suffix(".py").is_file():
            shutil.copy(top.with_suffix(".py"), app)
    (folder / TOKEN).write_text(token, "utf-8")
    return app


def _connect(address: str, app: Path) -> None:
    import ray

    try:
        place = _this_machine_s() if address == "auto" else address
        host, _, port = place.rpartition(":")
        socket.create_connection(
            (host, int(port)), timeout=ANSWER
        ).close()  # Ray itself would try for minutes
        ray.init(
            address=place,
            runtime_env={"working_dir": str(app)},
            logging_level=logging.ERROR,
            log_to_driver=True,
        )
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise StrategyError(f"There is no Ray cluster at {address} that can be joined: {reason}") from None
    version = sys.version_info[:2]
    logging.getLogger("flwr").info("Joined the Ray cluster at %s with Python %d.%d", address, *version)


def _this_machine_s() -> str:
    """The cluster that this machine belongs to, as Ray notes it when it is started."""
    from ray._private.utils import read_ray_address

    if found := os.environ.get("RAY_ADDRESS") or read_ray_address():
        return str(found)
    raise ValueError("none was started on this machine (ray start --head, or --address=HOST:PORT).")


def _needs(settings: Settings, there: Mapping[str, float]) -> dict[str, float]:
    """What Ray keeps free for an actor; a GPU only where the cluster has one and clients would use it."""
    needs: dict[str, float] = {"num_cpus": settings.threads}
    if there.get("GPU") and settings.device in ("auto", "cuda"):
        needs["num_gpus"] = settings.gpu_share or 1 / PER_GPU
    return needs
