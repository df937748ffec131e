"""FeSEM, the server's half: K centres; a client belongs to the one that its upload is nearest to.

Xie, Long, Shen, Zhou, Wang, Jiang, Zhang: "Multi-Center Federated Learning", 2020; Long, Xie, Shen, Zhou, Wang, Jiang:
"Multi-center federated learning: clients clustering for better personalization", 2023.

Every client trains from its own centre. E step: client i goes to argmin_k ‖W_i − C_k‖², over all weights. M step: C_k
becomes the mean of its members' W_i; one without uploads stays. Round 1 starts all clients from one network, and
k-means++ on their uploads gives centres and members: centres drawn at random leave all clients with one of them.

A client that comes later has no centre yet: it takes the one that fits its training data.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from bayes_core.server.kinds import in_order
from fedbayes.protocol.settings import Natural, Options, Settings, SettingsError
from fedbayes.protocol.streams import seed_of
from strategies.rounds.clusters import USUAL, Groups, OwnCluster, in_words, require_several
from strategies.rounds.method import StepOptions
from strategies.rounds.state import Came, State


class CentreOptions(StepOptions):
    clusters: Natural


class FeSEM(OwnCluster):
    """K centres, found among the uploads of round 1."""

    title = "FeSEM"
    idea = "several networks, each the mean of the clients whose weights are nearest to it"
    paper = "Xie et al. 2020"
    reads: ClassVar[type[Options]] = CentreOptions
    options: CentreOptions

    @classmethod
    def check(cls, settings: Settings) -> None:
        super().check(settings)
        asked = CentreOptions.parse(settings.as_config()).clusters
        require_several(settings, asked)
        k = asked or USUAL
        if 0 < settings.clients_per_round < k:
            raise SettingsError(
                f"method={settings.method} finds its {k} clusters among the uploads of round 1; clients-per-round "
                f"takes at least {k}, or 0 for all."
            )

    def group(self, state: State, came: Came) -> Groups:
        uploads = torch.stack([upload.parts["w"][0] for upload in came.uploads]).double()
        if state.facts["members"]:
            labels = nearest(uploads, [v[0] for v in state.sent.values()])
            origins = list(range(len(state.sent)))
        else:
            labels = self._first(uploads)
            origins = [0] * (max(labels) + 1)
            sizes = ", ".join(str(labels.count(label)) for label in range(len(origins)))
            said = in_words(self.options.clusters, len(origins))
            self.tell("clusters", k=len(origins), message=f"{said} of {sizes} clients.")
        return Groups({one.site: label for one, label in zip(came.uploads, labels, strict=True)}, origins)

    def _first(self, uploads: Tensor) -> list[int]:
        """K-means; every upload is a cluster of its own where there are no more than K."""
        from sklearn.cluster import KMeans  # slow to import

        k = min(self.options.clusters or USUAL, len(uploads))
        seed = seed_of(self.seed, "clusters") % 2**32
        found = KMeans(k, init="k-means++", n_init=10, random_state=seed).fit(uploads.numpy())
        return in_order(found.labels_.tolist())


def nearest(uploads: Tensor, centres: Sequence[Tensor]) -> list[int]:
    """argmin_k ‖W_i − C_k‖² of each upload (n, T)."""
    distances = [(uploads - centre.double()).square().sum(1) for centre in centres]
    return [int(label) for label in torch.stack(distances).argmin(0)]


METHOD = FeSEM
