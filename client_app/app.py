"""The Flower ClientApp: unpack the message, ask the method, pack the reply.

Three kinds of message: `query.hello` (who are you), `train` (one round, with evaluation when due) and
`evaluate` (evaluation only). What leaves the site: the localized global distribution, and metrics as numbers
or binned counts. What goes wrong is told in full in the site's own log, and without paths to the coordinator.
"""

import time
import traceback
from collections.abc import Callable
from functools import wraps

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from bayes_core.families import is_finite
from bayes_core.flat import fingerprint
from client_app import site_log
from client_app.card import Card
from client_app.confidence import calibration, training_uncertainty
from client_app.data import DataError
from client_app.measure import measure
from client_app.method import buffers_in, load
from client_app.redact import SiteError, redact
from client_app.site import (
    Site,
    agreement_of,
    find_site,
    is_real,
    settings_of,
    shares_labels,
    site_name,
)
from client_app.store import Store
from fedbayes.protocol.settings import Settings
from fedbayes.protocol.streams import seed_of

app = ClientApp()
Handler = Callable[[Message, Context], Message]


def discreet(handler: Handler) -> Handler:
    """At a real site, an error's own words stay in its log, and only those fit for others leave it."""

    @wraps(handler)
    def wrapped(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except Exception as error:
            if not is_real(context):
                raise
            traceback.print_exc()
            _log(context, f"{message.metadata.message_type} failed: {type(error).__name__}: {error}")
            raise SiteError(redact(error)) from None

    return wrapped


def _log(context: Context, line: str) -> None:
    log_file = context.node_config.get("log-file")
    site_log.write(line, str(log_file) if log_file else None)


@app.query("hello")
@discreet
def hello(message: Message, context: Context) -> Message:
    """Site id, sizes, shapes and classes, or what is wrong with this site's data, in words."""
    said: dict[str, object] = {"site": "?"}
    try:
        said["site"] = site_name(context)
        asked = message.content["hello"]
        settings = settings_of(asked)
        said["site"] = site_name(context, settings)
        site = find_site(context, settings, agreement_of(asked))
        data = site.data
        said |= {
            "n_train": len(data.y_train),
            "n_test": len(data.y_test),
            "input_shape": list(data.x_train.shape[1:]),
            "classes": list(data.classes),
            "claim": site.claim.write(),
            "fingerprint": fingerprint(site.network),
            "group": -1 if data.group is None else data.group,
            "partitions": int(context.node_config.get("num-partitions", 0)),
        }
        if data.classes and shares_labels(context):
            said["labels"] = torch.bincount(data.y_train, minlength=len(data.classes)).tolist()
    except (DataError, ValueError) as error:
        said["error"] = redact(error) if is_real(context) else str(error)
        if is_real(context):
            _log(context, f"cannot take part: {error}")
    return Message(RecordDict({"hello": ConfigRecord(said)}), reply_to=message)  # type: ignore[arg-type]


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
    said = message.content["exchange"]
    settings = settings_of(said)
    site = find_site(context, settings, agreement_of(said))
    store = site.store(str(said["run"]), str(said["uuid"]))
    with store.locked():
        reply = _answer(message, settings, site, store)
    if is_real(context):
        _log(context, site_log.describe(message.content, reply, time.monotonic() - began))
    return Message(reply, reply_to=message)


def _answer(message: Message, settings: Settings, site: Site, store: Store) -> RecordDict:
    """Evaluate (w, q) if due, then train if asked; the personal state is saved before the reply leaves."""
    said = message.content["exchange"]
    server_round = int(said["round"])  # type: ignore[arg-type]
    method = load(settings.method)(
        settings, site.network, site.data.x_train, site.data.y_train, site.origin, site.device
    )
    received = {
        name: method.wire.decode({row: array.numpy() for row, array in record.items()}).to(site.device)
        for name, record in message.content.array_records.items()
    }
    store.card = Card.of(method, str(said["run"]), site.name, site.data.agreement).write()
    stored = store.load(before=server_round)
    state = stored.tensors if stored else method.start(received)
    state = {name: tensor.to(site.device) for name, tensor in state.items()}

    reply = RecordDict()
    if said["evaluate"]:
        reply.update(measure(method, site, state, received, server_round))
    if said["train"]:
        torch.manual_seed(
            seed_of(settings.seed, site.origin, server_round, "network")
        )  # dropout and the like
        trained = method.train(state, received, server_round)
        if not all(is_finite(tensor) for tensor in trained.state.values()):
            raise SiteError("training diverged to values that are not finite; the state before it is kept")
        store.save(
            server_round, trained.state | calibration(method, trained, site.validation, server_round), stored
        )
        report = dict(trained.report)
        if settings.aggregation_confidence != "off":
            v, buffers = method.model_of(trained), buffers_in(trained.state)
            report["uncertainty"] = training_uncertainty(method, v, buffers, server_round)
        reply["report"] = MetricRecord(dict(report))
        if said["upload"] and trained.upload is not None:
            arrays = method.wire.encode_upload(trained.upload, received[trained.base])
            reply["w"] = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    if store.notes:
        reply["notes"] = ConfigRecord({str(i): note for i, note in enumerate(store.notes)})
    return reply
