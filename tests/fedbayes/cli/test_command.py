"""The command line: what is refused, with which sentence; and what a valid line asks for."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbayes.cli import command
from fedbayes.launch import plan
from fedbayes.launch.plan import Plan

Refused = Callable[..., str]
MakeRun = Callable[..., Path]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that reach the simulation, which does not take place."""
    from fedbayes.launch import ready, simulate

    plans: list[Plan] = []
    monkeypatch.setattr(simulate, "simulate", lambda plan, *_: plans.append(plan) or 0)
    for module in (ready, command):
        monkeypatch.setattr(module, "check_data", lambda _settings, _clients: None)
    return plans


@pytest.fixture
def refused(asked: list[Plan], here: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Run a command that must be refused: status 2, one sentence, nothing started, nothing written."""

    def run(*arguments: str) -> str:
        before = sorted(here.rglob("*"))
        with pytest.raises(SystemExit) as ended:
            command.main(arguments)
        assert ended.value.code == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith("fedbayes: ") and output.err.count("\n") == 1
        assert asked == []
        assert sorted(here.rglob("*")) == before
        return output.err.removeprefix("fedbayes: ").strip()

    return run


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["zetta=1"], 'There is no setting "zetta"; did you mean "zeta"?'),
        (["zeta=-1"], 'The setting "zeta" takes auto or a number of at least 0, not "-1".'),
        (["beta=abc"], 'The setting "beta" takes a number of at least 0, not "abc".'),
        (["clients-per-round=99"], "clients-per-round=99, but there are only 10 clients (--clients 10)."),
        (["min-clients=4", "--clients", "3"], "min-clients=4, but there are only 3 clients (--clients 3)."),
        (["min-clients=4", "clients-per-round=2"], "clients-per-round=2 can never reach min-clients=4."),
        (["--clients", "0"], "--clients takes a whole number of at least 1, not 0."),
        (["fast"], '"fast" is not a setting; settings are written key=value, such as rounds=50.'),
        (["=3"], '"=3" is not a setting; settings are written key=value, such as rounds=50.'),
        (["resume=true"], "resume is not a setting to give; a run is resumed with --resume RUN."),
        (["--rounds", "5"], "rounds is a setting and is written rounds=VALUE, without dashes."),
        (["--engine", "slurm"], 'The engine is embedded, flower or ray, not "slurm".'),
        (["--address", "auto"], "An address is that of a Ray cluster and goes with the engine ray."),
        (["--seeds", "1,x"], '--seeds takes whole numbers with commas between, such as 1,2,3, not "1,x".'),
        (["--seeds", "1,2,1"], "--seeds names the seed 1 twice."),
        (["--seeds", "1,2", "seed=3"], "Give either seed=… or --seeds …, not both."),
        (["--seeds", "1", "--resume", "a"], "--seeds goes on with its own runs; give it without --resume."),
        (["run-name=../x"], 'The setting "run-name" takes letters, digits, \'.\', \'_\' and \'-\' '
         '(not \'.\', \'..\' or \'state\'), not "../x".'),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(refused: Refused, arguments: list[str], sentence: str) -> None:
    assert refused("run", *arguments) == sentence


def test_an_unknown_method_is_answered_with_those_that_exist(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "methods", lambda: ["fedavg", "pfedbayes"])
    answer = refused("run", "method=fedsgd")
    assert answer == 'There is no method "fedsgd"; there are fedavg, pfedbayes.'


def test_missing_data_is_told_before_anything_starts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        import client_app.data

        def check(settings: object, clients: int) -> None:
            raise client_app.data.DataError(f"There is no data for {clients} clients.")

        patch.setattr(client_app.data, "check", check)
        assert run("run", "data-dir=nothing") == 2
    assert capsys.readouterr().err == "fedbayes: There is no data for 10 clients.\n"
    assert list(here.iterdir()) == []


def test_the_engine_is_an_option_of_the_command(
    asked: list[Plan], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedbayes.launch import simulate

    engines: list[tuple[str, str | None]] = []
    monkeypatch.setattr(simulate, "simulate", lambda _plan, _console, *engine: engines.append(engine) or 0)
    assert run("run") == run("run", "--engine", "flower", "--seeds", "1,2") == 0
    assert run("run", "--engine", "ray", "--address", "head:6379") == 0
    assert engines == [("embedded", None), ("flower", None), ("flower", None), ("ray", "head:6379")]


def test_a_run_gets_absolute_folders_and_a_name(asked: list[Plan], here: Path) -> None:
    assert run("run", "rounds=3", "rounds=4", "run-name=a", "out-dir=./some/../out", "--clients", "4") == 0
    (plan,) = asked
    assert plan.folder == here / "out" / "a"
    assert plan.settings.data_dir == str(here / "data")
    assert (plan.settings.rounds, plan.clients, plan.settings.resume) == (4, 4, False)
    assert plan.resume_command == "fedbayes run --resume a out-dir=out"


def test_a_name_is_made_and_numbered(asked: list[Plan], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda *_: "20260102-030405")
    (here / "runs" / "fedavg-digits-20260102-030405").mkdir(parents=True)
    run("run", "method=fedavg")
    assert asked[0].settings.run_name == "fedavg-digits-20260102-030405-2"


def test_an_existing_run_is_not_overwritten(refused: Refused, make_run: MakeRun) -> None:
    make_run("a-b", saved=5)
    answer = refused("run", "run-name=a-b")
    assert "resume it with `fedbayes run --resume a-b`" in answer


def test_resume_takes_the_settings_of_the_run(asked: list[Plan], make_run: MakeRun) -> None:
    make_run("a", state="stopped", saved=5, rounds=20, zeta=3.0, clients=4)
    run("run", "--resume", "a", "rounds=30")
    (plan,) = asked
    assert (plan.settings.zeta, plan.settings.rounds, plan.settings.resume, plan.clients) == (
        3.0,
        30,
        True,
        4,
    )
    assert plan.resume_command == "fedbayes run --resume a"


def test_resume_by_path_from_elsewhere(
    asked: list[Plan], make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run("a", state="stopped", saved=5, rounds=20)
    monkeypatch.chdir(tmp_path)
    run("run", "--resume", str(folder))
    assert asked[0].folder == folder
    assert asked[0].resume_command == "fedbayes run --resume a out-dir=here/runs"


def test_what_resume_refuses(refused: Refused, make_run: MakeRun, here: Path) -> None:
    make_run("a", state="finished", saved=20, rounds=20)
    make_run("b", state="stopped", saved=20, rounds=20)
    assert refused("run", "--resume", "a") == (
        "The run a is finished (20 rounds); train longer with `fedbayes run --resume a rounds=40`."
    )
    assert refused("run", "--resume", "a", "zeta=5").startswith(
        "The run was started with zeta=10.0, not 5.0;"
    )
    assert refused("run", "--resume", "a", "rounds=4") == "The run a has 20 rounds already; rounds=4 is less."
    assert refused("run", "--resume", "a", "--clients", "3") == (
        "The run a was started with --clients 10, not 3."
    )
    assert refused("run", "--resume", "c") == (
        f'There is no run "c" in {here / "runs"}; `fedbayes runs` lists those there are.'
    )
    (here / "runs" / "b" / "config.json").write_text("{")
    assert "cannot be read" in refused("run", "--resume", "b")


def test_a_run_stopped_before_its_last_evaluation_goes_on(asked: list[Plan], make_run: MakeRun) -> None:
    make_run("a", state="stopped", saved=20, rounds=20)
    run("run", "--resume", "a")
    assert len(asked) == 1


def test_seeds_skip_what_is_finished_and_resume_what_is_not(
    asked: list[Plan], make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"round": 5, "pm_accuracy": 0.5, "gm_accuracy": 0.25}
    make_run("s-seed1", saved=5, rows=[row], rounds=5, seed=1)
    make_run("s-seed2", state="stopped", saved=3, rounds=5, seed=2)
    assert run("run", "run-name=s", "rounds=5", "--seeds", "1,2,3") == 0
    names = [(plan.settings.run_name, plan.settings.seed, plan.settings.resume) for plan in asked]
    assert names == [("s-seed2", 2, True), ("s-seed3", 3, False)]
    assert "s-seed1 is finished already." in capsys.readouterr().out


def test_seeds_of_other_settings_are_refused(refused: Refused, make_run: MakeRun) -> None:
    make_run("s-seed1", saved=5, rounds=5, seed=1, zeta=3.0)
    assert "started with zeta=3.0, not 10.0" in refused("run", "run-name=s", "rounds=5", "--seeds", "1,2")


def test_version_and_help_do_not_need_torch() -> None:
    start = "import sys; from fedbayes.cli.command import _status; _status(sys.argv[1:])"
    program = f"{start}; print('torch' in sys.modules)"
    for argument in ("--version", "--help"):
        answer = subprocess.run(
            [sys.executable, "-c", program, argument],
            capture_output=True, text=True, check=True, cwd=Path(command.__file__).parents[2],
        )  # fmt: skip
        assert answer.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    "name", [one.name or one.callback.__name__ for one in command.app.registered_commands]
)
def test_help_is_plain_and_explains_every_argument_once(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, "--help") == 0
    said = capsys.readouterr().out
    usage, *rest = said.split("\n\n")
    parts = {part.splitlines()[0].strip(): part.splitlines()[1:] for part in rest}
    assert "\\[" not in said and "Positional arguments:" not in said
    arguments = usage.partition("[OPTIONS]")[2].strip()
    assert bool(arguments) == ("Arguments:" in parts)
    for line in parts.get("Arguments:", []):
        assert "  " in line.strip() or line.startswith("   "), f"{line} is not explained"
        assert not line.endswith("  [required]") or len(line.split()) > 3


def test_the_list_of_commands_has_whole_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    said = capsys.readouterr().out
    assert "..." not in said.partition("Commands:")[2]
    assert "[required]" not in said
