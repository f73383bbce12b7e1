"""A storage from outside the packages: a file with a line of JSON for every change, told again when
it is opened.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Outcomes, Rows
from scalable_bo.storage.storage import Ask, Change, Contents, Source


class Diary:
    checkpoints = None

    def __init__(self, folder: Path) -> None:
        self.name = f"The diary in {folder}"
        self.file = folder / "diary"
        self.file.touch()

    def lines(self, *kinds: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [line for line in lines if line["kind"] in kinds]

    def write(self, kind: str, **content: Any) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps({"kind": kind, **content}) + "\n")

    def load_settings(self) -> dict[str, Any] | None:
        found = self.lines("settings")
        return found[-1]["settings"] if found else None

    def save_settings(self, settings: Mapping[str, Any]) -> None:
        self.write("settings", settings=dict(settings))

    def load(self, dim: int) -> Contents:
        rows = Rows(dim)
        contents = Contents(rows, rows.X)
        for line in self.lines("ask", "outcomes", "source", "remove", "replace", "queue", "note"):
            if line["kind"] == "queue":
                X = torch.tensor(line["X"], dtype=torch.float64)
                contents.queue = torch.cat([contents.queue, X])
            elif line["kind"] == "note":
                rows.notes[line["id"]] = line["text"]
            elif line["kind"] == "ask":
                contents.queue = contents.queue[line["queued"] :]
                ask = Ask(**line["ask"])
                contents.asks.append(ask)
                contents.costs[ask.number] = AskReport(**line["cost"])
                X = torch.tensor(line["X"], dtype=torch.float64)
                rows.append(X, ask.number, line["cost"]["time"])
            elif line["kind"] == "outcomes":
                rows.record(line["ids"], read(line["outcomes"]))
            elif line["kind"] == "source":
                contents.sources.append(Source(**line["source"]))
                X = torch.tensor(line["X"], dtype=torch.float64)
                rows.record(rows.append(X, 0), read(line["outcomes"]))
            elif line["kind"] == "replace":
                rows.replace(line["ids"], read(line["outcomes"]))
                contents.asks[:] = [Ask(**ask) for ask in line["asks"]]
                contents.changes.extend(Change(**change) for change in line["changes"])
            else:
                rows.forget(line["ids"])
        return contents

    def add_queued(self, X: Tensor) -> None:
        self.write("queue", X=X.tolist())

    def add_ask(
        self, ask: Ask, cost: AskReport, first_id: int, X: Tensor, num_queued: int = 0
    ) -> None:
        content = {"ask": asdict(ask), "cost": asdict(cost), "X": X.tolist()}
        self.write("ask", queued=num_queued, **content)

    def add_outcomes(self, ids: Sequence[int], outcomes: Outcomes, first_told: int) -> None:
        self.write("outcomes", ids=list(ids), outcomes=written(outcomes))

    def add_source(self, source: Source, X: Tensor, outcomes: Outcomes, first_told: int) -> None:
        self.write("source", source=asdict(source), X=X.tolist(), outcomes=written(outcomes))

    def set_note(self, id: int, text: str) -> None:
        self.write("note", id=id, text=text)

    def remove_outcomes(self, ids: Sequence[int]) -> None:
        self.write("remove", ids=list(ids))

    def replace_outcomes(
        self,
        ids: Sequence[int],
        outcomes: Outcomes,
        first_told: int,
        asks: Sequence[Ask],
        changes: Sequence[Change],
    ) -> None:
        self.write(
            "replace",
            ids=list(ids),
            outcomes=written(outcomes),
            asks=[asdict(ask) for ask in asks],
            changes=[asdict(change) for change in changes],
        )

    def require_writable(self) -> None: ...

    def close(self) -> None: ...


def written(outcomes: Outcomes) -> list[Any]:
    reasons = list(outcomes.reasons.items())
    parts = (outcomes.values, outcomes.noise, outcomes.further, outcomes.times)
    return [*(part.tolist() for part in parts), reasons]


def read(parts: list[Any]) -> Outcomes:
    *tensors, reasons = parts
    values, noise, further, times = (torch.tensor(t, dtype=torch.float64) for t in tensors)
    return Outcomes(values, noise, dict(reasons), further, times)
