"""Data of which single examples are private: each becomes inputs by itself, or the run is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from bayes_core.flat import flatten
from bayes_core.inference.private import clipped_sum
from bayes_core.likelihoods import categorical
from client_app.data import check
from client_app.examples import require_private_network
from fedbayes.launch.ready import check_data
from fedbayes.protocol.settings import Settings, SettingsError, defaults

ROWS = 40
COLUMNS = {
    "age": [str(20 + i % 50) for i in range(ROWS)],
    "gap": ["" if i % 5 == 3 else str(i % 7) for i in range(ROWS)],
    "ward": ["north" if i % 3 else "south" for i in range(ROWS)],
    "smoker": ["yes" if i % 4 else "no" for i in range(ROWS)],
    "seen": [f"2024-05-{1 + i % 28:02d}" for i in range(ROWS)],
    "ill": ["ill" if i % 2 else "well" for i in range(ROWS)],
    "days": [f"{i / 7:.3f}" for i in range(ROWS)],
}
ALL = "made of all examples"


def site(folder: Path, *columns: str) -> str:
    """A folder with one site: a table of these columns, the last one being its target, or arrays of a type."""
    if columns[-1] in COLUMNS:
        cells = zip(*(COLUMNS[name] for name in columns), strict=True)
        (folder / "clinic.csv").write_text("\n".join(",".join(line) for line in (columns, *cells)))
    else:
        x = np.random.default_rng(1).integers(0, 256, (ROWS, 4, 4)).astype(columns[-1])
        np.savez(folder / "clinic.npz", x=x, y=np.arange(ROWS) % 2)
    return str(folder)


def settings(folder: Path, columns: Sequence[str], **given: Any) -> Settings:
    words = {"dp-example-noise": 1.0, "dataset": site(folder, *columns)} | given
    return Settings.parse(defaults() | words)


@pytest.mark.parametrize(
    ("columns", "given", "words"),
    [
        (("age", "ill"), {"scale": "site"}, f"scale=site brings inputs to a scale {ALL}"),
        (("age", "ill"), {"scale": "pooled"}, f"scale=pooled brings inputs to a scale {ALL}"),
        (("float32",), {"scale": "site"}, f"scale=site brings inputs to a scale {ALL}"),
        (("float32",), {}, f"scale=pooled brings inputs to a scale {ALL}"),
        (("gap", "ill"), {"scale": "none"}, f'stands for missing values of the column "gap" is {ALL}'),
        (("ward", "ill"), {"scale": "none"}, 'which words the column "ward" has, and how often'),
        (("smoker", "ill"), {"scale": "none"}, 'which words the column "smoker" has, and how often'),
    ],
)
def test_what_is_made_of_all_examples_is_refused(
    tmp_path: Path, columns: tuple[str, ...], given: dict[str, str], words: str
) -> None:
    with pytest.raises(SettingsError, match=f"^dp-example-noise=1: .*{words}"):
        check_data(settings(tmp_path, columns, **given), 1)


@pytest.mark.parametrize("scale", ["site", "pooled"])
def test_so_is_a_scale_of_targets(tmp_path: Path, scale: str) -> None:
    """Of images, whose inputs have a scale of their own."""
    x, y = np.zeros((ROWS, 4, 4), np.uint8), np.linspace(0, 9, ROWS)
    np.savez(tmp_path / "clinic.npz", x=x, y=y)
    words = {"dp-example-noise": 1.0, "dataset": str(tmp_path), "scale": scale, "task": "regression"}
    with pytest.raises(SettingsError, match=f"scale={scale} brings targets to a scale {ALL}"):
        check_data(Settings.parse(defaults() | words), 1)
    check_data(Settings.parse(defaults() | words | {"scale": "none"}), 1)


@pytest.mark.parametrize(
    ("columns", "given"),
    [
        (("age", "ill"), {"scale": "none"}),
        (("age", "days"), {"scale": "none"}),
        (("age", "seen", "ill"), {"scale": "none"}),
        (("ward", "ill"), {"scale": "none", "categories": "ward:north|south"}),
        (("smoker", "ill"), {"scale": "none", "categories": "smoker:yes|no"}),
        (("float32",), {"scale": "none"}),
        (("uint8",), {"scale": "site"}),
        (("uint8",), {"scale": "pooled"}),
    ],
)
def test_what_an_example_becomes_by_itself_is_taken(
    tmp_path: Path, columns: tuple[str, ...], given: dict[str, str]
) -> None:
    """Nothing that is told of the site, and no other example's inputs, depend on one that is changed."""
    one = settings(tmp_path, columns, **given)
    check_data(one, 1)
    before = check(one, 1)
    changed = {name: [cells[7], *cells[1:]] for name, cells in COLUMNS.items()}
    if columns[-1] in COLUMNS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"{__name__}.COLUMNS", changed)
            site(tmp_path, *columns)
        check_data(one, 1)
        after = check(one, 1)
        assert before.claim(one.scale) == after.claim(one.scale)
        moved = (before.x_train != after.x_train).any(1) | (before.y_train != after.y_train)
        assert int(moved.sum()) <= 1
    assert before.agreement.mean == () and before.agreement.target_mean is None


def test_why_one_example_would_move_all(tmp_path: Path) -> None:
    """With scale=site, taking one out moves the sum of clipped gradients by more than the clip."""
    x = np.concatenate([np.random.default_rng(1).normal(0, 0.1, (ROWS, 3)), [[50.0, 50.0, 50.0]]])
    y = (x[:, 0] > 0).astype(int)
    network = nn.Sequential(nn.Linear(3, 2))
    nn.init.zeros_(network[0].weight)
    moved = {}
    for scale in ("none", "site"):
        sums = []
        for part in (slice(None), slice(ROWS)):
            np.savez(tmp_path / "clinic.npz", x_train=x[part], y_train=y[part], x_test=x[:2], y_test=y[:2])
            words = {"dataset": str(tmp_path), "scale": scale}
            check_data(Settings.parse(defaults() | words), 1)  # reads the file anew
            data = check(Settings.parse(defaults() | words), 1)
            given = (network, flatten(network), {}, data.x_train, data.y_train)
            sums.append(clipped_sum(*given, categorical, 1.0))
        moved[scale] = float((sums[0] - sums[1]).norm())
    assert moved["none"] <= 1 + 1e-5
    assert moved["site"] > 3


@pytest.mark.parametrize("tracks", [True, False])
def test_batch_norm_is_refused_whatever_it_keeps(tracks: bool) -> None:
    one = Settings.parse(defaults() | {"dp-example-noise": 1.0})
    with pytest.raises(SettingsError, match="batch norm mixes the examples of a batch"):
        require_private_network(nn.Sequential(nn.BatchNorm2d(3, track_running_stats=tracks)), one)
    require_private_network(nn.Sequential(nn.GroupNorm(1, 3), nn.LayerNorm(3), nn.InstanceNorm2d(3)), one)
