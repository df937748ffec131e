"""What goes out: who is asked to do what in a round, and the messages that say so."""

from collections.abc import Mapping, Sequence

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from fedbayes.protocol.codec import Wire
from fedbayes.protocol.streams import stream
from strategies.rounds.exchange import GRACE
from strategies.rounds.roster import Site

Task = dict[str, bool]  # train, upload, evaluate


def sample(online: Sequence[str], share: int, *words: int | str) -> list[str]:
    """`share` of the sites that can be reached (0 = all), by a generator from these words."""
    if share == 0 or share >= len(online):
        return list(online)
    chosen = torch.randperm(len(online), generator=stream(*words))[:share]
    return sorted(online[i] for i in chosen.tolist())


def tasks_of(
    sampled: Sequence[str], online: Sequence[str], upload: bool, evaluate: bool, train_all: bool
) -> dict[str, Task]:
    """Train and upload, train only, or (when due) evaluate only; a site with nothing to do is left out."""
    tasks = {site: {"train": True, "upload": upload, "evaluate": evaluate} for site in sampled}
    if train_all or evaluate:
        rest = {"train": train_all, "upload": False, "evaluate": evaluate}
        tasks |= {site: rest for site in online if site not in tasks}
    return tasks


def compose(
    tensors: Mapping[str, Tensor],
    wire: Wire,
    tasks: Mapping[str, Task],
    said: Mapping[str, str | int],
    sites: Mapping[str, Site],
    timeout: float,
) -> dict[str, Message]:
    """Every site gets the server's distributions; the records are made once and shared.

    `said` are the run's name and UUID and the round.
    """
    records = {
        name: ArrayRecord({row: Array(array) for row, array in wire.encode(v).items()})
        for name, v in tensors.items()
    }
    return {
        site: Message(
            RecordDict({**records, "exchange": ConfigRecord({**said, **task})}),
            dst_node_id=sites[site].node,
            message_type="train" if task["train"] else "evaluate",
            group_id=str(said["round"]),
            ttl=timeout + GRACE,
        )
        for site, task in tasks.items()
    }
