"""Sites that were too late once: they were asked, and nobody waits for them until they answer.

A silent site would else cost every round the whole `round-timeout`. Whoever did not answer in time has one message that
it may still answer; meanwhile it is asked nothing more, so that it has no old rounds to work off when it is back. Its
late answer counts for nothing but that: from then on it takes part again.
"""

from collections.abc import Mapping

from flwr.serverapp import Grid

from strategies.rounds.exchange import UNPACKABLE, now


class Late:
    """Who is not waited for: site → the message it was sent, and until when its answer can be had."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[str, float]] = {}

    def note(self, unanswered: Mapping[str, str], until: float) -> None:
        """These sites have not answered the messages of these ids."""
        self.waiting |= {site: (message, until) for site, message in unanswered.items()}

    def hear(self, grid: Grid) -> list[str]:
        """Whoever has answered by now, or whose message is no more, may be asked again; the first are returned."""
        heard = []
        for site, (message, until) in list(self.waiting.items()):
            try:
                answered = bool(list(grid.pull_messages([message])))
            except UNPACKABLE:  # whatever it is, it is an answer
                answered = True
            if answered:
                heard.append(site)
            if answered or now() > until:
                del self.waiting[site]
        return heard

    def reasons(self) -> dict[str, str]:
        return dict.fromkeys(sorted(self.waiting), "no answer yet to an earlier round; it is not waited for")
