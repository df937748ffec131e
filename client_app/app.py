"""The Flower ClientApp: unpack the message, ask the method, pack the reply.

Three kinds of message: `query.hello` (who are you), `train` (one round, with evaluation when due) and
`evaluate` (evaluation only); with secure sums a fourth, `query.unmask`. What leaves the site: the localized global
distribution, and metrics as numbers or binned counts. What goes wrong is told in full in the site's own log, and
without paths to the coordinator.
"""

import json
import time
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from bayes_core.families import is_finite
from bayes_core.flat import buffers_in, fingerprint, flat_statistics, statistics_of, without_buffers
from client_app import site_log
from client_app.calibrate import calibration
from client_app.data import DataError
from client_app.data_seen import remember, require_same
from client_app.measure import measure
from client_app.method import Received, Tensors
from client_app.redact import Refusal, SiteError, redact
from client_app.site import (
    Participant,
    installed_version,
    is_real,
    participant,
    place_of,
    shares_labels,
    site_name,
)
from client_app.stages import Departure
from client_app.store import Store, Stored, holds
from fedbayes.protocol import messages as key
from fedbayes.protocol.settings import Settings, SettingsError
from fedbayes.protocol.streams import reseed
from fedbayes.protocol.user_code import problem

if TYPE_CHECKING:
    from client_app.masking import Secrets

app = ClientApp()
Handler = Callable[[Message, Context], Message]


def discreet(handler: Handler) -> Handler:
    """At a real site, an error's own words stay in its log, and only those fit for others leave it.

    A simulation's user hears them: on one line, whatever the engine that carries them makes of exceptions.
    """

    @wraps(handler)
    def wrapped(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except Exception as error:
            if not is_real(context.node_config):
                told = isinstance(error, SiteError | DataError | SettingsError)
                raise SiteError(str(error) if told else problem(error)) from error
            traceback.print_exc()
            _log(context, f"{message.metadata.message_type} failed: {type(error).__name__}: {error}")
            raise SiteError(redact(error)) from None

    return wrapped


def _log(context: Context, line: str) -> None:
    log_file = context.node_config.get("log-file")
    site_log.write(line, str(log_file) if log_file else None)


def _open(context: Context, said: Mapping[str, Any]) -> Participant:
    """This node in the run that a message speaks of; sets the number of threads, which results depend on."""
    config, agreed = tuple(sorted(context.node_config.items())), said.get(key.AGREED)
    one = participant(config, str(said[key.SETTINGS]), None if agreed is None else str(agreed))
    if torch.get_num_threads() != one.settings.threads:
        torch.set_num_threads(one.settings.threads)
    return one


@app.query("hello")
@discreet
def hello(message: Message, context: Context) -> Message:
    """Site id, sizes, shapes and classes, or what is wrong with this site's data or settings, in words."""
    said: dict[str, object] = {key.SITE: "?"}
    config = context.node_config
    try:
        said[key.SITE] = site_name(config)
        one = _open(context, message.content[key.HELLO])
        said[key.SITE] = one.site.name
        data = one.site.data
        if one.settings.resume:
            require_same(one.folder, one.site.data_print, one.settings.run_name, None, one.data_changed)
        said |= {
            key.N_TRAIN: len(data.y_train),
            key.N_TEST: len(data.y_test),
            key.INPUT_SHAPE: list(data.x_train.shape[1:]),
            key.CLASSES: list(data.classes),
            key.CLAIM: one.site.claim.write(),
            key.FINGERPRINT: fingerprint(one.site.network),
            key.GROUP: -1 if data.group is None else data.group,
            key.PARTITIONS: int(config.get("num-partitions", 0)),
        }
        if is_real(config):
            said[key.INSTALLED] = installed_version()
        if one.data_changed:
            said[key.DATA_CHANGED] = True
        if one.site.validation is not None:
            said[key.N_VALIDATION] = len(one.site.validation[1])
        if one.settings.secure_sum:
            said |= _secrets(context, one.settings).introduce(one.settings.run_name)
        elif data.classes and not data.many and shares_labels(config):
            said[key.LABELS] = torch.bincount(data.y_train, minlength=len(data.classes)).tolist()
    except (DataError, ValueError) as error:
        said[key.ERROR] = redact(error) if is_real(config) else str(error)
        if is_real(config):
            _log(context, f"cannot take part: {error}")
    return Message(RecordDict({key.HELLO: ConfigRecord(said)}), reply_to=message)  # type: ignore[arg-type]


@app.query("unmask")
@discreet
def unmask(message: Message, context: Context) -> Message:
    """Of a secure sum: what takes the masks off, for the sites that are left in it."""
    from client_app.secure import unmask

    said = message.content[key.UNMASK]
    secrets = _secrets(context, Settings.parse(json.loads(str(said[key.SETTINGS]))))
    with Store(secrets.folder, "", secrets.durable).locked():
        reply = unmask(said, message.content.array_records.get(key.MASKED), secrets)
    return Message(reply, reply_to=message)


def _secrets(context: Context, settings: Settings) -> "Secrets":
    """What this site keeps for secure sums; imported where a run has such."""
    from client_app.masking import Secrets
    from client_app.proof import Identity

    config = context.node_config
    keys = config.get("keys")
    folder, name = place_of(config, settings)
    return Secrets(folder, name, "state-dir" in config, Identity(Path(str(keys))) if keys else None)


@app.train()
@discreet
def train(message: Message, context: Context) -> Message:
    return _exchange(message, context)


@app.evaluate()
@discreet
def evaluate(message: Message, context: Context) -> Message:
    return _exchange(message, context)


def _exchange(message: Message, context: Context) -> Message:
    """One exchange, with the personal state locked meanwhile; a real site's log gets its line."""
    began = time.monotonic()
    said = message.content[key.EXCHANGE]
    one = _open(context, said)
    if not one.settings.run_name or said[key.RUN] != one.settings.run_name:
        raise ValueError(f"a message of the run {str(said[key.RUN])[:40]!r} with settings of another one")
    store = Store(one.folder, str(said[key.UUID]), one.site.durable, one.card)
    with store.locked():
        if one.site.data_print:
            require_same(one.folder, one.site.data_print, one.settings.run_name, store.uuid, one.data_changed)
            remember(one.folder, one.site.data_print, store.uuid)
        reply = own = _answer(message, one, store)
        if one.settings.secure_sum:
            from client_app.secure import masked

            secrets, examples = _secrets(context, one.settings), len(one.site.data.y_train)
            reply = masked(own, message.content, one.settings, secrets, examples)
    if one.real:
        _log(context, site_log.describe(message.content, own, time.monotonic() - began))
    return Message(reply, reply_to=message)


def _answer(message: Message, one: Participant, store: Store) -> RecordDict:
    """Evaluate the models if due, then train if asked; the personal state is saved before the reply leaves."""
    said, method, site = message.content[key.EXCHANGE], one.method, one.site
    number = int(said[key.ROUND])  # type: ignore[arg-type]
    records = message.content.array_records
    tensors = {name: one.codec.receive(record).to(site.device) for name, record in records.items()}
    shares = any(name.endswith(key.STATISTICS) for name in tensors)
    received = Received.of(tensors, site.network) if shares else tensors
    reseed(site.device, one.settings.seed, site.origin, number, "measured network")
    stored = store.load(before=number)
    state = stored.tensors if stored else method.start(received)
    state = {name: tensor.to(site.device) for name, tensor in state.items()}

    reply = RecordDict()
    if said[key.EVALUATE]:
        models = method.models(state, received)
        reply.update(measure(method, site, models, number, one.tells_labels and not one.settings.secure_sum))
        if said.get(key.CLOSING) and "pm" in models:
            made = models["pm"].tensors()
            if not holds(state, made):  # it is made from what was received
                store.save_model(
                    number - 1, made | calibration(method, models["pm"], site.validation, number)
                )
    refusal = {}
    if said[key.TRAIN]:
        try:
            reply.update(_train(message, one, store, stored, state, received))
        except Refusal as words:
            refusal[key.REFUSAL] = str(words)
    if notes := {str(i): note for i, note in enumerate(store.notes)} | refusal:
        reply[key.NOTES] = ConfigRecord(notes)  # type: ignore[arg-type]
    return reply


def _train(
    message: Message, one: Participant, store: Store, stored: Stored | None, state: Tensors, received: Tensors
) -> RecordDict:
    """One client round, saved; what it sends. Refusal where the site takes no part in it."""
    said, method, site, reply = message.content[key.EXCHANGE], one.method, one.site, RecordDict()
    number = int(said[key.ROUND])  # type: ignore[arg-type]
    reseed(site.device, one.settings.seed, site.origin, number, "network")  # dropout and the like
    if one.settings.dp_example_noise:
        from client_app.budget import train_within

        trained = train_within(one, store, state, received, number)
    else:
        trained = method.in_round(number).train(state, received, number)
    if not all(map(is_finite, without_buffers(trained.state).values())):
        raise SiteError("training diverged to values that are not finite; the state before it is kept")
    kept = trained.state
    if one.settings.temperature_scaling or one.settings.conformal:
        kept = kept | calibration(method, method.model_of(trained, received), site.validation, number)
    store.save(number, kept, stored)
    out = Departure(dict(trained.uploads), dict(trained.report), trained, received, number)
    for stage in one.stages:
        stage.leave(out)
    reply[key.REPORT] = MetricRecord(dict(out.report))
    if clash := sorted(key.RESERVED & out.uploads.keys()):
        raise SiteError(
            f'a method cannot upload a tensor named "{clash[0]}": messages use that name themselves'
        )
    statistics = received.statistics if isinstance(received, Received) else {}
    for name, upload in out.uploads.items() if said[key.UPLOAD] else ():
        base = trained.bases.get(name)
        reply[name] = one.codec.leave(upload, None if base is None else received[base])
        if base is not None and base in statistics:
            buffers = buffers_in(trained.state) if trained.buffers is None else trained.buffers
            found = flat_statistics(buffers, statistics_of(site.network))
            reply[name + key.STATISTICS] = one.codec.leave(found, None)
    return reply
