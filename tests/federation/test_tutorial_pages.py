"""The tutorials for a coordinator and for a site, word by word, with real processes (but for the ports)."""

import re
import threading
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from deployed import Deployment, Running, until
from tutorials import Step, sections, words_of

from fedbayes.launch.flower import free_port
from fedbayes.watch.server import Server
from server_app.stored import read_rows

pytestmark = pytest.mark.deployment
# The two pages, as their readers turn from one to the other.
ORDER = (
    ("coordinator", "Keys"), ("coordinator", "Start"), ("site", "Your data"), ("site", "Take part"),
    ("coordinator", "Train"), ("coordinator", "Look"), ("coordinator", "Go on"),
    ("coordinator", "A model for everybody"), ("site", "Your own model"),
)  # fmt: skip


def steps() -> list[Step]:
    pages = {page: sections(page) for page in ("coordinator", "site")}
    assert sorted(ORDER) == sorted((page, title) for page in pages for title in pages[page]), (
        "none is left out"
    )
    return [step for page, title in ORDER for step in pages[page][title]]


def watched(out_dir: Path, run: str) -> str:
    """What `fedbayes watch` shows of a run, at the coordinator."""
    with Server(out_dir, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with urlopen(server.url(run)) as answer:
                return str(answer.read().decode("utf-8"))
        finally:
            server.shutdown()


def seen_running(page: Running, run: Running, name: str) -> None:
    """A page that was opened before the run says that it is running, while it is."""
    page.hears("Ctrl-C ends this page")
    (address,) = re.findall(r"http://\S+", page.said)
    place = address.replace("/?", f"/run/{name}?")

    def says_so() -> bool:
        assert run.process.poll() is None, f"the run has ended, and the page never said running:\n{run.said}"
        with suppress(HTTPError), urlopen(place) as answer:  # the run's folder may not be there yet
            return 'class="badge running">running' in answer.read().decode("utf-8")
        return False

    until(says_so, f"a page that says running at {place}")


def test_both_pages_make_a_federation_that_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fleet, control = f"localhost:{free_port()}", f"localhost:{free_port()}"
    federation = Deployment(tmp_path, 0)
    try:
        for number, (language, step) in enumerate(steps()):
            if language:
                exec(compile(step, "tutorial", "exec"), {})
                continue
            words = words_of(step)
            words += ["--listen", fleet, "--control", control] if words[0] == "coordinator" else []
            words = [fleet if word == "localhost" and words[0] == "site" else word for word in words]
            if new := "--on" in words and "--resume" not in words:
                page = federation.command("watch", "--no-browser", "--port", "0", log="watch")
                federation.running["watch"] = page
                page.hears("Ctrl-C ends this page")
            running = federation.command(*words, log=f"step-{number}")
            federation.running[str(number)] = running
            if new:
                seen_running(page, running, "clinics")
            if words[0] in ("coordinator", "site"):
                running.hears("may take part" if words[0] == "coordinator" else "SuperNode ID")
            else:
                assert running.ends() == 0, running.said
    finally:
        federation.end()
    rows = read_rows(tmp_path / "runs" / "clinics" / "rounds.csv")
    assert int(rows[-1]["round"]) == 6 and float(rows[-1]["pm_accuracy"]) > 0.85
    shown = watched(tmp_path / "runs", "clinics")
    assert "round 6 of 6" in shown and "site-0" in shown and "site-1" in shown
    assert "round 6: 2 replies" in shown, "the log, though Flower keeps that of a federation"
    assert "round 4" in (tmp_path / "site-0.log").read_text("utf-8")
    answers = read_rows(tmp_path / "answers.csv")
    assert len(answers) == 69
    assert (tmp_path / "everybody" / "network.safetensors").exists()
