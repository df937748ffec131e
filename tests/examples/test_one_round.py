"""The first file a newcomer opens: short, and true."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "one_round.py"


def test_one_round_says_what_happens() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, cwd=EXAMPLE.parents[1])
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    # 64·50 + 50 weights of the first layer, 50·10 + 10 of the second
    assert said[0].startswith("The server's distribution has 3760 weights")
    clients = [
        re.fullmatch(r"Client (\d) knows (\d+)% .* went (\d+) nats from w .*", line) for line in said[1:4]
    ]
    assert [one and one[1] for one in clients] == ["0", "1", "2"]
    assert all(one and int(one[2]) > 80 and int(one[3]) > 100 for one in clients)
    assert "averaged 3 uploads" in said[4]
    before, after = (int(re.search(r"(\d+)% right on all", line)[1]) for line in said[5:])
    assert before < 30 and after > 80


def test_it_is_short_and_needs_no_flower() -> None:
    text = EXAMPLE.read_text("utf-8")
    assert len(text.splitlines()) <= 60
    assert not re.search(r"^(from|import) (flwr|client_app|server_app|strategies|fedbayes)", text, re.M)
