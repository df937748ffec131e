"""`fedbayes export --format hf`: a model as folders on the Hugging Face Hub are, without a need for its packages.

`model.safetensors` is the posterior-mean network under its PyTorch names, `config.json` says what it is for, and
`README.md` is the model card. `personal.safetensors` is the distribution, so the folder is a personal model as well:
`fedbayes predict DIR …` and `Personal.load(DIR)` give the same numbers as before.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save

from client_app.store import MODEL, Store
from fedbayes import __version__
from fedbayes.errors import ModelError
from fedbayes.model.personal import PersonalModel
from fedbayes.protocol.files import replace_file

README = """\
---
library_name: fedbayes
tags: [federated-learning, bayesian, {method}]
---
# {title}

{about}

| file | what |
|---|---|
| `model.safetensors` | the posterior-mean network, a PyTorch state dict |
| `personal.safetensors` | the distribution over its weights, for predictions with their uncertainty |
| `config.json` | classes, inputs, their scale, and which network it is |

With its uncertainty (`pip install` fedbayes {version} or newer{trust}):

```python
from fedbayes import Personal

found = Personal.load(".").{ask}(x)  # x: (n, {shape}), in its own units
```

or `fedbayes predict DIR new.csv`. The network alone, in PyTorch: inputs are scaled as `config.json` says.

```python
from safetensors.torch import load_file

network.load_state_dict(load_file("model.safetensors"))
```
"""


def export_hub(personal: PersonalModel, out: Path) -> list[Path]:
    """Write the four files; ModelError where the model is no single network."""
    weights = personal.state_dict()
    try:
        data = save({name: tensor.contiguous() for name, tensor in weights.items()}, {"format": "pt"})
    except KeyError as error:
        raise ModelError(f"safetensors cannot hold the network's buffers of the type {error}.") from None
    out.mkdir(parents=True, exist_ok=True)
    kept = personal.predictor.tensors() | personal.calibration()
    Store(out, "", durable=True, card=personal.card.write()).save(0, kept, None)
    replace_file(out / MODEL, data)
    replace_file(out / "config.json", json.dumps(config_of(personal), indent=2).encode())
    replace_file(out / "README.md", _readme(personal).encode())
    return [out / name for name in (MODEL, "personal.safetensors", "config.json", "README.md")]


def config_of(personal: PersonalModel) -> dict[str, Any]:
    """What config.json says: the usual keys, and all that fedbayes knows."""
    card = personal.card
    many, classes = card.agreement.many, card.classes
    kind = "regression" if not classes else f"{'multi' if many else 'single'}_label_classification"
    return {
        "model_type": "fedbayes",
        "architectures": [card.model],
        "problem_type": kind,
        "torch_dtype": "float32",
        "input_shape": list(card.inputs),
        "features": list(card.agreement.features),
        "input_mean": list(card.agreement.mean),
        "input_deviation": list(card.agreement.deviation),
        "id2label": {str(place): name for place, name in enumerate(classes)},
        "label2id": {name: place for place, name in enumerate(classes)},
        "temperature": personal.temperature,
        "conformal": personal.promised_in_units(),
        "fedbayes": {"version": __version__, "card": asdict(card)},
    }


def _readme(personal: PersonalModel) -> str:
    card = personal.card
    task = f"{len(card.classes)} classes: {_listed(card.classes)}." if card.classes else "One number."
    inputs = f" Inputs: {_listed(card.agreement.features)}." if card.agreement.features else ""
    about = f"The model of site {card.site} in the run {card.run}, trained by {card.method}. {task}{inputs}"
    return README.format(
        method=card.method,
        title=f"{card.run}/{card.site}",
        about=about,
        version=__version__,
        trust=", with its network's own code at hand and `trust_code=True`" if card.code else "",
        ask="predict" if card.classes else "forecast",
        shape=", ".join(map(str, card.inputs)),
    )


def _listed(names: Sequence[str], most: int = 50) -> str:
    """Names from data, as words that no Markdown is made of."""
    shown = [json.dumps(name, ensure_ascii=False).strip('"').replace("`", "'") for name in names[:most]]
    return ", ".join(f"`{name}`" for name in shown) + (", …" if len(names) > most else "")
