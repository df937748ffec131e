"""A personal model in one's hands: `PersonalModel.load(path).predict(x)`.

The file is what a client keeps on its disk (client_app/store.py): `STATE/RUN/SITE/personal.safetensors`, or what
`fedbayes adapt` writes. It needs neither the run nor the network.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from torch import Tensor, nn

from bayes_core.families import Family
from bayes_core.flat import shapes_of
from bayes_core.predict.calibration import scale
from bayes_core.predict.conformal import Promise, class_sets, interval
from bayes_core.predict.forecast import Forecast
from bayes_core.predict.metrics import Tally, tally, tally_numbers
from bayes_core.predict.predictor import Predictor, WeightsPredictor
from bayes_core.predict.uncertainty import Prediction
from client_app.card import Card
from client_app.method import load as load_method
from client_app.store import FORMAT, LATEST, WITHOUT_CARD, read, read_model
from fedbayes.errors import ModelError
from fedbayes.model.inputs import NewExamples, read_examples, scaled
from fedbayes.protocol.streams import PREDICT, stream
from fedbayes.protocol.user_code import UserCodeError
from strategies import load as load_server


class PersonalModel:
    """One client's model, ready for new examples: most are distributions over the weights of a network."""

    def __init__(
        self,
        card: Card,
        predictor: Predictor,
        temperature: float = 1.0,
        conformal: Promise | None = None,
        note: str = "",
    ) -> None:
        self.card = card
        self.predictor = predictor
        self.temperature = temperature  # 1 unless the run fitted one
        self.conformal = conformal  # what sets and intervals promise, where the run made such
        self.note = note  # a sentence for whoever misses something that the run's other models have

    @classmethod
    def load(cls, path: str | Path, trust_code: bool = False) -> "PersonalModel":
        """From a file, or from the folder that holds it; ModelError says what is wrong with either.

        A file may name a function or a package of its maker's, which is then imported and called: only with
        `trust_code`.
        """
        file = Path(path)
        file = read_model(file) if file.is_dir() else file
        try:
            tags, tensors = read(file)
        except FileNotFoundError:
            raise ModelError(f"There is no model file {file}.") from None
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise ModelError(f"{file} is damaged or no model file ({shortened(error)}).") from None
        if tags.get("format") == str(WITHOUT_CARD) and {"q", "theta"} & tensors.keys():
            raise ModelError(
                f"{file} has format {WITHOUT_CARD}, which does not say which network it is for; resume its run for "
                "one more round to have it written anew."
            )
        if tags.get("format") != str(FORMAT) or not tags.get("card"):
            said = tags.get("format", "none")
            raise ModelError(f"{file} is no personal model of fedbayes (format {said}, not {FORMAT}).")
        try:
            card = Card.read(tags["card"])
            if card.code and not trust_code:
                raise ModelError(
                    f"{file} would import and call {shortened(' and '.join(card.code))}: a file from somebody else can "
                    "make this machine do anything that way. Where you trust whoever made it, say --trust-code "
                    "(in Python trust_code=True)."
                )
            card.require_fit(sum(tensor.numel() for tensor in tensors.values()))
            model = cls.of(card, tensors)
        except UserCodeError as error:
            raise ModelError(f"{file} cannot be used here: {error}") from None
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
            raise ModelError(f"{file} does not say what network it is for ({shortened(error)}).") from None
        model._check(file)
        return model

    @classmethod
    def of(cls, card: Card, state: Mapping[str, Tensor]) -> "PersonalModel":
        """From a client's state, or from what its predictor keeps in a file."""
        predictor = load_method(card.method).restore(card.network(), card.distribution(), state)
        if predictor is None and load_server(card.method).traits.personal_model:
            raise ModelError(
                f"Site {card.site} of the run {card.run} has no personal model yet: {card.method} makes it from what "
                "the server sends, and keeps it when the run ends."
            )
        if predictor is None:
            raise ModelError(
                f"Site {card.site} of the run {card.run} has no personal model: {card.method} has only the global one."
            )
        conformal = Promise.of(state["conformal"].tolist()) if "conformal" in state else None
        return cls(card, predictor, float(state.get("temperature", 1.0)), conformal)

    def calibration(self) -> dict[str, Tensor]:
        """What a file holds beside the predictor's own tensors."""
        kept = {}
        if self.temperature != 1:
            kept["temperature"] = torch.tensor(self.temperature)
        if self.conformal:
            kept["conformal"] = torch.tensor(self.conformal.numbers, dtype=torch.float64)
        return kept

    def _check(self, file: Path) -> None:
        if not isinstance(self.predictor, WeightsPredictor):
            return
        wanted = (len(self.family.rows), sum(shape.numel() for shape in shapes_of(self.network).values()))
        if tuple(self.v.shape) != wanted:
            raise ModelError(
                f"{file} has weights of shape {tuple(self.v.shape)}; its network takes {wanted}."
            )
        if problem := self.family.problem(self.family.constrain(self.v)):
            raise ModelError(f"{file} is damaged: it has {problem}.")

    @property
    def weights(self) -> WeightsPredictor:
        """The model as a distribution over weights; ModelError where it is something else."""
        if not isinstance(self.predictor, WeightsPredictor):
            raise ModelError(
                f"The models of {self.card.method} are no distributions over a network's weights."
            )
        return self.predictor

    @property
    def v(self) -> Tensor:
        """In the family's unconstrained coordinates."""
        return self.weights.v

    @property
    def family(self) -> Family:
        return self.weights.family

    @property
    def network(self) -> nn.Module:
        return self.weights.network

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        return self.weights.buffers

    @property
    def classes(self) -> tuple[str, ...]:
        return self.card.classes

    def predict(self, x: ArrayLike | Tensor, samples: int | None = None, seed: int = 0) -> Prediction:
        """Class probabilities, for examples (n, …) of the network's input shape; the same seed gives the same numbers.

        They are in their own units and scaled here as for training; images of numbers other than bytes are as the
        network takes them. Probabilities are temperature-scaled where the run fitted a temperature; the uncertainty is
        that of the predictive before it. Where an example may have several labels, `probabilities` are those of each,
        and the uncertainty is that of all together.
        """
        found = self.decisions(x, samples, seed)
        if not self.card.agreement.many:
            return found
        labels = len(self.classes)
        return Prediction(
            found.probabilities[:, 1].view(-1, labels),
            found.entropy.view(-1, labels).sum(-1),
            found.mutual_information.view(-1, labels).sum(-1),
        )

    def decisions(self, x: ArrayLike | Tensor, samples: int | None = None, seed: int = 0) -> Prediction:
        """As `predict`; of several labels an example, of each of them for itself: not there, there."""
        found = self._unscaled(x, samples, seed)
        if self.temperature == 1:
            return found
        return replace(found, probabilities=scale(found.probabilities, self.temperature))

    def _unscaled(self, x: ArrayLike | Tensor, samples: int | None, seed: int) -> Prediction:
        if not self.classes:
            raise ModelError("This model predicts numbers, not classes; ask it with `forecast`.")
        generator = stream(seed, PREDICT)
        return self.predictor.predict(self.inputs(x), samples or self.card.eval_samples, generator)

    def sets(self, x: ArrayLike | Tensor, samples: int | None = None, seed: int = 0) -> list[tuple[str, ...]]:
        """The conformal sets: for each example the classes of which the true one is one, as often as was promised.

        The promise is for examples like those of the site; with other `samples` or another `seed` than by default it is
        kept about as well, but not to the letter. ModelError where the run made no sets.
        """
        promise = self._promised()
        found = class_sets(self._unscaled(x, samples, seed).probabilities, promise).tolist()
        return [tuple(name for name, held in zip(self.classes, one, strict=True) if held) for one in found]

    def interval(self, found: Forecast) -> tuple[Tensor, Tensor]:
        """Of a regression: the bounds of conformal intervals, for what `forecast` gives; ModelError likewise."""
        return interval(found, self._in_units(self._promised()))

    def promised_in_units(self) -> dict[str, float | tuple[float, ...]] | None:
        """Level, thresholds and cuts for readers elsewhere; None where the run made no sets or intervals."""
        return asdict(self._in_units(self.conformal)) if self.conformal else None

    def _in_units(self, promise: Promise) -> Promise:
        return promise if self.classes else promise.scaled(self.card.agreement.target_scale[1])

    def _promised(self) -> Promise:
        if self.conformal is None:
            raise ModelError(
                self.note
                or "This model has no conformal sets or intervals: its run had no conformal, such as conformal=0.9."
            )
        return self.conformal

    def forecast(self, x: ArrayLike | Tensor, samples: int | None = None, seed: int = 0) -> Forecast:
        """Of a regression: numbers in the target's own units, with their spread, for examples as in `predict`."""
        if self.classes:
            raise ModelError("This model predicts classes, not numbers; ask it with `predict`.")
        samples = samples or self.card.eval_samples
        inputs, generator = self.inputs(x), stream(seed, PREDICT)
        found = self.predictor.forecast(inputs, samples, generator)
        return found.unscaled(*self.card.agreement.target_scale)

    def tally(self, x: ArrayLike | Tensor, y: Tensor) -> Tally:
        """The sums behind the metrics (bayes_core/predict/metrics.py) on examples with known targets."""
        if not self.classes:
            return tally_numbers(self.forecast(x), y)
        return tally(self.decisions(x).probabilities, y.reshape(-1))

    def point_probabilities(self, x: ArrayLike | Tensor) -> Tensor:
        """Class probabilities of the posterior-mean network, which is what `fedbayes export` writes."""
        found = self.predictor.point_probabilities(self.inputs(x))
        if found is None:
            raise ModelError(f"The models of {self.card.method} have no posterior-mean network.")
        return found[:, 1].view(-1, len(self.classes)) if self.card.agreement.many else found

    def state_dict(self) -> dict[str, Tensor]:
        """The posterior-mean network: weights and buffers under their PyTorch names."""
        found = self.predictor.mean_network()
        if found is None:
            raise ModelError(
                f"The models of {self.card.method} cannot be exported: they are no single network, but predict in a "
                "way of their own."
            )
        return {name: tensor.clone() for name, tensor in found.items()}

    def inputs(self, x: ArrayLike | Tensor) -> Tensor:
        """The examples as the network takes them."""
        return scaled(torch.as_tensor(x), self.card.inputs, self.card.agreement)

    def read(self, source: str) -> NewExamples:
        """New examples from an .npz file, a CSV table or a folder of images; `inputs` scales them."""
        return read_examples(source, self.card.agreement, self.card.inputs, self.card.image_size)


def shortened(words: object) -> str:
    """What a file says, on one line that can be shown."""
    text = "".join(letter if letter.isprintable() else " " for letter in str(words)[:300])
    return " ".join(text.split())


def find_personal(word: str, states: Path) -> Path:
    """The model that a word of a command line means: a file, its folder, or RUN/SITE among the `states`."""
    if Path(word).is_file() or read_model(Path(word)).exists():
        return Path(word)
    run, slash, site = word.rstrip("/").rpartition("/")
    if not slash and (states / site).is_dir():
        there = sorted(path.name for path in (states / site).iterdir() if read_model(path).exists())
        example = f", as in {site}/{there[0]}" if there else "; none of them has a model yet"
        raise ModelError(f'"{site}" is a run; name one of its sites too{example}.')
    if not slash or not (states / run).is_dir():
        raise ModelError(
            f'There is no model "{word}": no file of that name, no folder with {LATEST}, and no RUN/SITE in {states}.'
        )
    sites = sorted(path.name for path in (states / run).iterdir() if read_model(path).exists())
    if site not in sites:
        known = (
            f"there are {', '.join(sites[:20])}{', …' if len(sites) > 20 else ''}"
            if sites
            else "there are none"
        )
        raise ModelError(f'The run {run} has no model of a site "{site}"; {known}.')
    return states / run / site
