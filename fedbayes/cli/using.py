"""The commands for those who have a trained model: adapt, predict, export."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedbayes.errors import CommandError
from fedbayes.launch.plan import absolute, find_run, parse_words
from fedbayes.protocol.settings import NAME, defaults
from fedbayes.protocol.user_code import look_here

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A personal model: its file, its folder, or RUN/SITE; RUN/global is the one of all.",
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write into.")]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Settings other than the run's; rounds=20.", show_default=False
    ),
]
Place = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[out-dir=DIR]", help="Where the runs are; runs unless given.", show_default=False
    ),
]
Test = Annotated[str | None, typer.Option(metavar="FILE", help="Examples with labels, to measure it on.")]

Trust = Annotated[
    bool,
    typer.Option(
        "--trust-code", help="Import and call what a model file names as its network; it may be anything."
    ),
]


def adapt(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run, given by its name or folder.")],
    data: Annotated[str, typer.Argument(metavar="DATA", help="The site's training data.")],
    out: Out,
    words: Words = None,
    test: Test = None,
    site: Annotated[str, typer.Option(metavar="NAME", help="The new site's name.")] = "new",
) -> None:
    """Give a new site a personal model: a run's distribution as the prior, and the site's own data.

    For example: fedbayes adapt RUN mine.npz --out mine rounds=20
    """
    from fedbayes.model.adapt import ROUNDS, adapt_files
    from fedbayes.model.finished import Finished

    look_here()
    values: dict[str, Any] = {"rounds": ROUNDS} | parse_words(words or ())
    finished = Finished.open(find_run(run, values), values)
    if not NAME.fullmatch(site):
        raise CommandError(f'--site takes letters, digits, ".", "_" and "-", not "{site}".')
    with writing(out):
        adapt_files(finished, data, test, out, site, Console())


def predict(
    model: Model,
    data: Annotated[str, typer.Argument(metavar="DATA", help="New examples.")],
    words: Place = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The CSV file; standard output unless given.")
    ] = None,
    abstain: Annotated[
        float, typer.Option(metavar="P", help="Leave out this share of the examples, the least certain.")
    ] = 0.0,
    samples: Annotated[int | None, typer.Option(metavar="N", help="Draws of the weights.", min=1)] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the draws.", min=0)] = 0,
    trust_code: Trust = False,
) -> None:
    """Class, probability and uncertainty of new examples, or number, sd and 90 % interval, as CSV."""
    from fedbayes.model.find import find_model
    from fedbayes.model.predict import predict_file

    look_here()
    personal = find_model(model, out_dir(words or ()), trust_code)
    table, said = predict_file(personal, data, abstain, samples, seed)
    if out is None:
        sys.stdout.write(table)
    else:
        with writing(out):
            out.write_text(table, encoding="utf-8", newline="")
    print(said, file=sys.stderr)


def export(
    model: Model,
    out: Out,
    words: Place = None,
    test: Test = None,
    threshold: Annotated[
        float,
        typer.Option(metavar="P", help="Of sparse models: the λ above which a weight stays.", min=0, max=1),
    ] = 0.5,
    format: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="hf: config.json and model.safetensors, as on the Hugging Face Hub."
        ),
    ] = "onnx",
    trust_code: Trust = False,
) -> None:
    """The posterior-mean network as a PyTorch state dict and as ONNX; of a sparse model the pruned one too."""
    from fedbayes.model.export import export_files
    from fedbayes.model.find import find_model

    look_here()
    if format not in ("onnx", "hf"):
        raise CommandError(f'--format takes onnx or hf, not "{format}".')
    if format == "hf" and (test is not None or threshold != 0.5):
        raise CommandError("--test and --threshold are for --format onnx.")
    personal = find_model(model, out_dir(words or ()), trust_code)
    if format == "hf":
        from fedbayes.model.hub import export_hub

        with writing(out):
            for file in export_hub(personal, out):
                print(file)
        return
    with writing(out):
        export_files(personal, out, test, threshold, Console())


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """What the disk refuses is one sentence."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"{out} cannot be written ({error.strerror or error}).") from None


def out_dir(words: Sequence[str]) -> Path:
    """Where the runs are."""
    values = parse_words(words)
    if unknown := [key for key in values if key != "out-dir"]:
        raise CommandError(f'This command takes only out-dir=…, not "{unknown[0]}".')
    return absolute(values.get("out-dir", defaults()["out-dir"]))
