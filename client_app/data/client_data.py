"""What one client holds, before and after the sites have agreed on classes, columns and scale."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from client_app.data.errors import DataError
from client_app.data.tables.inputs import inputs_of
from client_app.data.tables.table import Table
from client_app.data.tables.told import told
from fedbayes.protocol.agreement import AUTO, SEQUENCES, Agreement, Claim, MeanVariance


@dataclass(frozen=True)
class ClientData:
    """Shared between calls of `load`: never change the tensors in place."""

    x_train: Tensor  # float32: images (n, channels, height, width), from bytes in [−1, 1], or vectors (n, features)
    y_train: Tensor  # int64 classes or float32 targets (n,)
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]  # their names, in the order of the labels; empty where the targets are numbers
    group: int | None = None  # the true group of this client in the layouts rotated and mixed, else None
    features: tuple[str, ...] = ()  # the names of the columns of x, where they have names
    declared: bool = True  # whether `classes` is the whole list in its order, or only what was found here
    brightest: int = 255  # the value of a white pixel before it was scaled, where x were bytes of images
    measured: bool = False  # whether x are measurements on some scale, and not bytes of images
    agreement: Agreement = field(default_factory=Agreement)  # what x and y are scaled and ordered by
    form: str = AUTO  # what x are, where that has to be said: tokens or sequences
    tables: tuple[Table, Table] | None = (
        None  # where x are rows of tables: those for training and for the test
    )

    @property
    def many(self) -> bool:
        """Whether an example may be of several classes: targets are then rows of 0 and 1."""
        return self.y_train.ndim == 2

    def fingerprint(self) -> str:
        """Equal for the same examples in the same order, as they were found."""
        found = hashlib.blake2b(json.dumps([self.classes, self.features]).encode(), digest_size=16)
        for part in (self.x_train, self.y_train, self.x_test, self.y_test):
            found.update(f"{tuple(part.shape)} {part.dtype}".encode())
            found.update(part.contiguous().numpy().data)
        for table in self.tables or ():
            found.update(table.fingerprint())
        return found.hexdigest()

    def claim(self, scale: str) -> Claim:
        """What this client brings into the agreement; moments only where all sites scale together."""
        pooled = scale == "pooled"
        table = told(self.tables[0], pooled) if self.tables else None
        plain = self.measured and (table is None or table.plain)
        return Claim(
            shape=tuple(self.x_train.shape[1:]),
            classes=self.classes,
            declared=self.declared,
            features=self.features,
            form=self.form,
            many=self.many,
            inputs=moments(self.x_train, self.form == SEQUENCES) if pooled and plain else None,
            target=moments(self.y_train[:, None]) if pooled and not self.classes else None,
            brightest=self.brightest,
            ids=self.tables[0].ids if self.tables else (),
            table=table,
            target_name=self.tables[0].target if self.tables else "",
            ignored=self.tables[0].reading.ignore if self.tables else (),
        )

    def agreed(self, agreement: Agreement, scale: str) -> "ClientData":
        """The same examples with the classes, the order of columns and the scale that all sites have."""
        data = (self._prepared if agreement.preparation else self._ordered)(agreement)._named(agreement)
        if scale == "site" and agreement.preparation:
            target = None if self.classes else moments(data.y_train[:, None])
            agreement = agreement.scaled_by(moments(data.x_train), target)
        elif scale == "site":
            agreement = replace(
                Agreement.of({"": data.claim("pooled")}),
                classes=agreement.classes,
                target=agreement.target,
                form=agreement.form,
                ignored=agreement.ignored,
            )
        changes: dict[str, Any] = {"agreement": agreement}
        if self.measured:
            changes |= {part: agreement.scaled(getattr(data, part)) for part in ("x_train", "x_test")}
        if not self.classes:
            mean, deviation = agreement.target_scale
            changes |= {part: (getattr(data, part) - mean) / deviation for part in ("y_train", "y_test")}
        return replace(data, **changes)

    def _prepared(self, agreement: Agreement) -> "ClientData":
        assert agreement.preparation is not None
        if self.tables is None:
            raise DataError("The other sites have tables, and this one has none.")
        x_train, x_test = (
            torch.from_numpy(inputs_of(table, agreement.preparation).astype(np.float32))
            for table in self.tables
        )
        return replace(self, x_train=x_train, x_test=x_test, features=agreement.features)

    def _ordered(self, agreement: Agreement) -> "ClientData":
        if self.features == agreement.features:
            return self
        if sorted(self.features) != sorted(agreement.features):
            raise DataError(
                f"The columns here are {', '.join(self.features)}, not {', '.join(agreement.features)}."
            )
        order = [self.features.index(name) for name in agreement.features]
        x_train, x_test = self.x_train[:, order], self.x_test[:, order]
        return replace(self, x_train=x_train, x_test=x_test, features=agreement.features)

    def _named(self, agreement: Agreement) -> "ClientData":
        if self.classes == agreement.classes:
            return self
        if unknown := [name for name in self.classes if name not in agreement.classes]:
            raise DataError(
                f'The class "{unknown[0]}" here is not among those of the federation: {", ".join(agreement.classes)}.'
            )
        place = torch.tensor([agreement.classes.index(name) for name in self.classes])
        y_train, y_test = place[self.y_train], place[self.y_test]
        return replace(self, y_train=y_train, y_test=y_test, classes=agreement.classes)


def moments(x: Tensor, last: bool = False) -> MeanVariance:
    """Of each feature of vectors (n, features) or of sequences, where it comes `last`, or channel of images."""
    kept = x.ndim - 1 if last else 1
    wide, others = x.double(), [axis for axis in range(x.ndim) if axis != kept]
    mean, variance = wide.mean(others), wide.var(others, correction=0)
    return MeanVariance(len(x), tuple(mean.tolist()), tuple(variance.tolist()))
