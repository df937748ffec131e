"""The Flower ServerApp: settings → hello → strategy → rounds → run folder."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from statistics import mode
from types import FrameType
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor, nn

import strategies
from bayes_core.flat import Shapes, fingerprint, flat_statistics, frozen, shapes_of, statistics_of
from fedbayes.protocol import messages as key
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, SettingsError
from fedbayes.protocol.streams import seed_of
from fedbayes.protocol.user_code import UserCodeError
from server_app.events import copied, emit
from server_app.facts import facts_in_words
from server_app.report import write_report
from server_app.rows import examples_of
from server_app.runs import RunFolder
from server_app.stored import RunError, closing_rows, read_rows, resumed, stored_agreement, stored_sites
from strategies.rounds.exchange import is_simulation
from strategies.rounds.loop import Loop
from strategies.rounds.roster import Roster, Site, StrategyError
from strategies.rounds.state import State

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run. It fails by raising, so that Flower marks it as failed; the error event has the sentence."""
    try:
        run(grid, Settings.parse(context.run_config))
    except (SettingsError, StrategyError, RunError) as error:
        emit("error", message=str(error))
        raise


def run(grid: Grid, settings: Settings) -> None:
    """Nothing is written before the clients have said hello."""
    settings = resumed(settings)
    if not settings.run_name:
        settings = settings.model_copy(update={"run_name": settings.made_name()})
    if is_simulation(grid):
        # Its clients keep all cores busy, and threads that wait for each other on busy cores take many times as long.
        torch.set_num_threads(settings.threads)
    found = strategies.load(settings.method)
    found.check(settings)
    method = found(found.reads.parse(settings.as_config()), seed=settings.seed, tell=emit)
    roster = Roster(grid, settings, emit, stored_agreement(settings), stored_sites(settings))
    roster.gather()
    assert roster.agreement is not None  # of the sites that were gathered
    settings.require_fit(roster.agreement.classes)
    if not (roster.agreement.classes or found.traits.numbers):
        raise SettingsError(f"method={settings.method} learns classes, but the targets are numbers.")
    if roster.agreement.many and not found.traits.numbers:
        raise SettingsError(
            f"method={settings.method} learns one class an example, but these have several labels."
        )
    one = next(iter(roster.sites.values()))
    # what most say: one site alone may say what it likes
    partitions = mode(site.partitions for site in roster.sites.values())
    facts: dict[str, Any] = {
        "clients": max(partitions, len(roster.sites)),
        "partitions": partitions,
        "sites": {site.name: site.sizes for site in roster.sites.values()},
        "classes": list(roster.agreement.classes),
        "agreement": asdict(roster.agreement),
        "model": {"name": settings.model, "fingerprint": one.fingerprint, "inputs": list(one.input_shape)},
        "method": {
            "title": found.title or settings.method,
            "idea": found.idea,
            "clusters": found.traits.clusters,
            "openings": found.openings,
            "global_model": found.traits.global_model,
        },
    }
    if roster.left_out:
        facts["left_out"] = _left_out(roster)
    loop = Loop(method, settings, roster, {}, emit)
    changed = [site.name for site in roster.sites.values() if site.data_changed]
    folder = RunFolder.open(settings, facts, found.columns, not is_simulation(grid), changed)
    # What a simulation says is in log.txt already; a federation's log is Flower's.
    log = nullcontext() if is_simulation(grid) else copied(folder.path / "log.txt")
    try:
        with log, _marked_when_stopped(folder):
            _train(grid, settings, loop, folder)
        if roster.left_out or "left_out" in folder.config:
            folder.config["left_out"] = _left_out(roster)
        if loop.early.over:
            folder.config["stopped_early"] = loop.early.sentence
        folder.set_state("finished")
        _report(folder)
        rows = read_rows(folder.path / "rounds.csv")
        failed, done = sum(int(row["clients_failed"] or 0) for row in rows), int(rows[-1]["round"])
        emit(
            "finished", round=done, rounds=done, sites=len(roster.sites), failed=failed,
            left_out=len(roster.left_out), folder=str(folder.path), rows=closing_rows(folder.path / "rounds.csv"),
            examples=examples_of(read_rows(folder.path / "clients.csv"), folder.config.get("sites")),
        )  # fmt: skip
    except BaseException as error:  # Flower ends a stopped run by SystemExit
        if isinstance(error, StrategyError) and (failures := loop.exchange.replies.failures):
            folder.config["failures"] = {"round": loop.at, "sites": failures}
        told = folder.trouble(error)
        with suppress(OSError):  # then `runs` tells by the lock that nobody writes it any more
            folder.set_state("failed" if isinstance(error, Exception) else "stopped", str(told or error))
        _report(folder)
        if told is not None:
            raise told from None
        raise
    finally:
        folder.close()


@contextmanager
def _marked_when_stopped(folder: RunFolder) -> Iterator[None]:
    """Flower stops a run by SIGINT, says good-bye in the handler, and ends a process by force that takes long over it.

    So the state is written before. In a simulation, where this is not the main thread, `fedbayes run` writes it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: FrameType | None) -> None:
        folder.set_state("stopped")
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _report(folder: RunFolder) -> None:
    """The report is of use, but no reason to call a run failed."""
    try:
        write_report(folder.path)
    except Exception as error:
        emit("warning", message=f"The report could not be written ({error!r}); the run itself is whole.")


def _train(grid: Grid, settings: Settings, loop: Loop, folder: RunFolder) -> None:
    checkpoint, roster = folder.load_checkpoint(), loop.roster
    assert roster.agreement is not None
    loop.identity = {
        key.RUN: settings.run_name, key.UUID: folder.config["uuid"],
        key.SETTINGS: json.dumps(settings.as_config()), key.AGREED: roster.agreement.write(),
    }  # fmt: skip
    memory: dict[str, Any] = {}
    if checkpoint is None:
        one = next(iter(roster.sites.values()))
        network = _network(settings, one)

        def fresh(*words: int | str) -> Tensor:
            """The weights that every site's network starts from, or for further words those of another start."""
            return loop.method.weights_of(_network(settings, one, *words) if words else network)

        done, state = 0, loop.method.init(fresh)
        layers = loop.method.distributed(network)
        folder.config["weights"] = _weights(network, layers if loop.method.family.uncertain else {})
        folder.config["layers"] = {name: shape.numel() for name, shape in layers.items()}
        # They are the global model's: a personal one has its own.
        if (
            settings.buffers == "shared"
            and loop.method.traits.global_model
            and (shapes := statistics_of(network))
        ):
            found = flat_statistics(dict(network.named_buffers()), shapes)
            named = [name for name in state.sent if name not in {*loop.method.plain, key.BODY}]
            state = replace(state, statistics={name: found.clone() for name in named})
    else:
        done, tensors, memory = checkpoint
        state = State.of(tensors, memory["method"])
    folder.require_room(sum(tensor.nbytes for tensor in (*state.sent.values(), *state.kept.values())))
    folder.begin(done + 1)

    def joined(site: Site) -> None:
        if "left_out" in folder.config:
            folder.config["left_out"] = _left_out(roster)
        folder.add_site(site.name, site.sizes)
        emit("joined", run=settings.run_name, site=site.name, **_described(site))

    roster.joined = joined
    if not is_simulation(grid):
        emit(
            "sites", run=settings.run_name, sites={one.name: _described(one) for one in roster.sites.values()}
        )
    emit(
        "start", run=settings.run_name, folder=str(folder.path), uuid=folder.config["uuid"],
        round=max(done, 0) + 1, rounds=settings.rounds, sites=len(roster.sites), method=settings.method,
        about=facts_in_words(folder.config),
    )  # fmt: skip
    loop.run(grid, folder, state, memory)


def _left_out(roster: Roster) -> list[str]:
    """Why nodes take no part in the run, a sentence for each."""
    return list(roster.left_out.values())


def _weights(network: nn.Module, distributed: Shapes) -> dict[str, int]:
    """How many have a distribution, are plain numbers, or are frozen."""
    learned, bayesian = (
        sum(shape.numel() for shape in shapes.values()) for shapes in (shapes_of(network), distributed)
    )
    constant = sum(parameter.numel() for parameter in frozen(network).values())
    return {"bayesian": bayesian, "plain": learned - bayesian, "frozen": constant}


def _described(site: Site) -> dict[str, Any]:
    """For the operator of a federation."""
    return {**site.sizes, "version": site.installed}


def _network(settings: Settings, one: Site, *words: int | str) -> nn.Module:
    """The network whose weights all sites start from, the same as theirs; with `words`, another start of it."""
    seed = seed_of(settings.seed, *words) if words else settings.seed
    try:
        network = build(
            settings.model, one.input_shape, len(one.classes), seed, settings.noise_level, one.claim.many
        )
    except UserCodeError as error:
        raise RunError(f"At the coordinator {error}") from None
    # Another start has other random numbers in frozen parameters too; those of the first are what all sites have.
    if not words and (here := fingerprint(network)) != one.fingerprint:
        raise RunError(
            f'The coordinator and site "{one.name}" have different models: {here} and {one.fingerprint} '
            f"for model={settings.model}."
        )
    return network
