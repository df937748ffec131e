"""A hostile site: its own Flower spoils what its ClientApp sends, in each round of a run in another way.

Python imports this file by itself when the folder is in PYTHONPATH.
"""

import os
import sys

NOTES = int(os.environ.get("HOSTILE_NOTES", "0"))  # bytes of them, in place of a spoilt upload
ARRAY = int(os.environ.get("HOSTILE_ARRAY", "0"))  # bytes of one, in place of the upload

if "fedbayes.deploy.supervise" in sys.orig_argv:
    import flwr.supernode.runtime.run_clientapp as runtime
    import numpy as np
    from flwr.app import Array, ArrayRecord, ConfigRecord

    honest = runtime.push_message

    def spoilt(rows: dict[str, np.ndarray], server_round: str) -> dict[str, np.ndarray]:
        match server_round:
            case "1":
                rows["mu"][5] = np.nan
            case "2":
                return {name: row[:-1] for name, row in rows.items()}
            case "3":
                return rows | {"lambda": np.full_like(rows["mu"], 0.5)}
            case "4":
                return {name: row * np.float32(1e6) for name, row in rows.items()}
        return rows

    def huge(server_round: str) -> Array:
        """Noise; in round 2 zeros, of which Flower sends one piece of 5 MB, and how often it comes."""
        if server_round == "2":
            return Array(np.zeros(ARRAY // 4, np.float32))
        return Array(np.random.default_rng().random(ARRAY // 4, np.float32))

    def push_message(client, message, context):  # type: ignore[no-untyped-def]
        if NOTES and message.has_content() and "w" in message.content:
            message.content["notes"] = ConfigRecord({"0": "x" * NOTES})
        elif ARRAY and message.has_content() and "w" in message.content:
            message.content["w"] = ArrayRecord({"mu": huge(message.metadata.group_id)})
        elif message.has_content() and "w" in message.content:
            rows = {name: array.numpy().copy() for name, array in message.content["w"].items()}
            rows = spoilt(rows, message.metadata.group_id)
            message.content["w"] = ArrayRecord({name: Array(row) for name, row in rows.items()})
        honest(client, message, context)

    runtime.push_message = push_message
