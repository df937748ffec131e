"""Bytes: what one client receives and sends in a round, for every method and wire format, against FedAvg's 4T.

Counted in the arrays of real messages after one client's round on MNIST medium. In the full version also what 16 bits
cost in accuracy: whole runs of pFedBayes and sFedBayes with three seeds each, beside the same runs in float32.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from flwr.app import Array
from torch import Tensor

from bayes_core import SpikeSlab
from bayes_core.flat import flatten
from benchmarks.measure import Measurement, Options
from client_app.data import load as load_data
from client_app.method import load
from fedbayes.protocol.codec import FORMATS, OFF, Arrays, Wire
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, defaults
from server_app.rows import last, number
from server_app.stored import read_rows

TITLE = "Bytes of one client's round, DNN 784-100-10"
TAKES_MNIST = True
METHODS = ("fedavg", "fedprox", "local", "pfedbayes", "sfedbayes", "cfedbayes")
CLUSTERS = 2  # of cFedBayes: a client receives every prior and chooses
SHARES = (0.5, 0.2, 0.1)  # of sFedBayes' weights that are not switched off
LONG = {"size": "medium", "rounds": 30, "personal-steps": 5, "eval-every": 30}
SEEDS = (1, 2, 3)


def run(options: Options) -> list[Measurement]:
    torch.set_num_threads(1)
    data = load_data(settings_of(options), 0, 10)
    network = build("dnn", tuple(data.x_train.shape[1:]), len(data.classes), 1)
    plain = 4 * sum(parameter.numel() for parameter in network.parameters())
    rows = []
    for method in METHODS:
        for wire in FORMATS:
            down, up = one_round(
                settings_of(options, method=method, wire=wire), network, data.x_train, data.y_train
            )
            rows.append(row(f"{method}, {wire}", down, up, plain))
    rows += [sparse(share, plain) for share in SHARES]
    if options.full:
        rows += [cost(options, method, wire) for method in ("pfedbayes", "sfedbayes") for wire in FORMATS]
    return rows


def settings_of(options: Options, **words: object) -> Settings:
    places = {"dataset": "mnist", "size": "medium", "data-dir": str(options.data_dir)}
    return Settings.parse(defaults() | places | words)


def row(name: str, down: int, up: int, plain: int, note: str = "") -> Measurement:
    ratios = {"down ÷ 4T": down / plain, "up ÷ 4T": up / plain, "both ÷ FedAvg": (down + up) / (2 * plain)}
    return Measurement(name, (down + up) / 1e3, "kB", ratios, note)


def one_round(settings: Settings, network: torch.nn.Module, x: Tensor, y: Tensor) -> tuple[int, int]:
    """Bytes down and up."""
    method = load(settings.method)(settings, network, x, y, "0", torch.device("cpu"))
    w = method.family.init(flatten(network))
    names = [f"u{k}" for k in range(CLUSTERS)] if settings.method == "cfedbayes" else ["w"]
    codec = method.codec
    arrays = codec.encode(w)
    received = {name: codec.decode(arrays) for name in names}
    trained = method.train(method.start(received), received, 1)
    sent = {}
    for name, upload in trained.uploads.items():
        sent = codec.encode_upload(upload, received[trained.bases[name]])
    return len(names) * size(arrays), size(sent)


def size(arrays: Arrays) -> int:
    """As the server counts them: with numpy's headers."""
    return sum(len(Array(array).data) for array in arrays.values())


def sparse(share: float, plain: int) -> Measurement:
    """sFedBayes in bfloat16 when only this share of the gates is above `OFF`."""
    wire = Wire(SpikeSlab(), "bfloat16")
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(3, plain // 4, generator=generator)
    before[2] = torch.where(torch.rand(plain // 4, generator=generator) < share, 0.5, OFF / 2)
    up, down = size(wire.encode_upload(before + 0.001, before)), size(wire.encode(before))
    return row(f"sfedbayes, bfloat16, {share:.0%} of the weights on", down, up, plain)


def cost(options: Options, method: str, wire: str) -> Measurement:
    """Accuracy of the personal models after 30 rounds, and what the last upload of a client took."""
    accuracies, uploads = [], []
    for seed in SEEDS:
        rows = trained_rows(options, method, wire, seed)
        accuracies.append(100 * (last(rows, "pm_accuracy") or 0))
        uploads.append((number(rows[-1], "bytes_up") or 0) / (number(rows[-1], "clients_ok") or 1))
    spread, kilobytes = statistics.stdev(accuracies), statistics.fmean(uploads) / 1e3
    each = ", ".join(f"{accuracy:.2f}" for accuracy in accuracies)
    return Measurement(
        f"{method}, {wire}: PM accuracy",
        statistics.fmean(accuracies),
        "%",
        note=f"seeds {SEEDS}: {each} (sd {spread:.2f}); {kilobytes:.0f} kB up in the last round",
    )


def trained_rows(options: Options, method: str, wire: str, seed: int) -> list[dict[str, str]]:
    words = LONG | {
        "dataset": "mnist",
        "data-dir": options.data_dir,
        "method": method,
        "wire": wire,
        "seed": seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fedbayes.cli", "run", f"out-dir={folder}", "run-name=bytes"]
        command += [f"{key}={value}" for key, value in words.items()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return read_rows(Path(folder) / "bytes" / "rounds.csv")
