"""What sites tell of single classes: who was taken for whom, and how probable each class was where it was true.

Only sites that may tell their labels do so (`share-labels`), in counts that add up over sites.
"""

from collections.abc import Collection, Mapping
from typing import Any

from bayes_core.predict.histograms import SCORE_BINS
from fedbayes.protocol.columns import MODELS
from fedbayes.protocol.messages import COUNTS
from strategies.rounds.exchange import Replies
from strategies.rounds.replies import Reply
from strategies.rounds.roster import Site


def by_class(
    replies: Replies[Reply], sites: Mapping[str, Site], apart: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """For each model `confusion` (true × predicted), `scores` (class × false, true × bin) and how many `sites` told.

    Of several labels an example (`many`) each has a confusion of two classes, not there and there. Counts that do not
    add up to a site's test examples are left out, and sites that are `apart`.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, content in replies.content.items():
        if name in apart:
            continue
        site, said = sites[name], content.measures.get(COUNTS, {})
        classes, many = len(site.classes), site.claim.many
        for model in MODELS:
            confusion = _counts(
                said.get(f"{model}_confusion"),
                4 * classes if many else classes**2,
                site.n_test * site.decisions,
            )
            scores = _counts(said.get(f"{model}_scores"), 2 * classes * SCORE_BINS, site.n_test * classes)
            if confusion is None or scores is None or (site.labels is None and not many):
                continue
            total = found.setdefault(
                model,
                {"confusion": [0] * len(confusion), "scores": [0] * len(scores), "sites": 0, "many": many},
            )
            total["confusion"] = [a + b for a, b in zip(total["confusion"], confusion, strict=True)]
            total["scores"] = [a + b for a, b in zip(total["scores"], scores, strict=True)]
            total["sites"] += 1
    return found


def _counts(given: Any, length: int, total: int) -> list[int] | None:
    """Whole numbers of at least 0, so many of them and with this sum."""
    if not isinstance(given, list) or len(given) != length:
        return None
    if not all(isinstance(one, int | float) and one >= 0 and float(one).is_integer() for one in given):
        return None
    return [int(one) for one in given] if sum(given) == total else None
