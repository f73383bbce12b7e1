"""The processes that make the batches of a study together: the first has the study, and the others
help it to ask.

They are sent jobs, tensors by name, of which each builds the surrogate anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

from acquisition.strategy import Request
from scalable_bo.modelling.factory import SurrogateFactory
from scalable_bo.modelling.training import TrainingData
from scalable_bo.study.choices import Part
from surrogates import PathwiseGP
from surrogates.systems.processes import bytes_of_first, contact, of_all

# Between two batches, since objectives take as long as they like. Only the word that a job comes
# is waited for so long; all else goes by the default group, with its own timeout
LONGEST_WAIT = timedelta(days=365)
STATE = "state."  # before the names of a model's state in a job


class Team:
    """All processes of ``torch.distributed``, as many as its ``size``; each makes one, at the same
    time, and the first has the study.
    """

    def __init__(self) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size() if joined else 1
        self.is_first = not joined or dist.get_rank() == 0
        self._group = dist.new_group(timeout=LONGEST_WAIT, backend="gloo") if joined else None
        self._why_lost = ""  # why the others do not wait for a job; empty while they do

    def of_first(self, text: str) -> str:
        """Return the first process's text to all."""
        found = bytes_of_first(text.encode())
        assert found is not None  # every process gives one
        return found.decode()

    def require_waiting(self) -> None:
        """Require that the others wait for a job; raise ConnectionError if they do not."""
        if self._why_lost:
            raise ConnectionError(
                f"The other processes cannot help with a batch, since {self._why_lost}. Start all"
                " processes again: a study with a `path` goes on from what it has stored."
            )

    @contextmanager
    def working(self, job: dict[str, Tensor]) -> Iterator[None]:
        """Send a job to the others; what follows is done by all. After an error they are not sent
        another one, as they may be anywhere; raise ConnectionError then, or if one is lost.
        """
        self.require_waiting()
        tensors = {name: part.detach().cpu().clone().contiguous() for name, part in job.items()}
        message = save(tensors)
        self._why_lost = "an error ended an earlier one, which they may still be at"
        self._announce(True)
        bytes_of_first(message)
        yield
        self._why_lost = ""

    def next_job(self) -> dict[str, Tensor] | None:
        """Return what the first process sends, once it does; ``None`` when it sends no more."""
        word = torch.zeros((), dtype=torch.uint8, device="cpu")
        with contact(dist.get_rank(), self.size, self._group):
            dist.recv(word, group_src=0, group=self._group)
        of_all([0])  # acknowledges it
        if not word:
            return None
        message = bytes_of_first(None)
        assert message is not None  # which was announced
        return load(message)

    def dismiss(self) -> None:
        """Send no more jobs."""
        if self.is_first and self._group is not None and not self._why_lost:
            self._why_lost = "the study was closed, and they went on with their programs"
            self._announce(False)

    def _announce(self, job: bool) -> None:
        """Tell the others whether a job comes, and wait until they have heard it.

        A process that stands still may never receive the word, which itself may take as long as
        it likes: the acknowledgement may take the timeout of the default group.
        """
        word = torch.tensor(job, dtype=torch.uint8, device="cpu")
        with contact(0, self.size, self._group):
            others = range(1, self.size)
            sent = [dist.isend(word, group_dst=rank, group=self._group) for rank in others]
            of_all([0])
            for work in sent:
                assert work is not None  # to a process of the group
                work.wait()


def make_job(request: Request, part: Part) -> dict[str, Tensor]:
    """Return the job of a batch by a model of one objective."""
    (model,), (data,) = part.models, part.data
    found = {
        "q": torch.tensor(request.q, device="cpu"),
        "U": data.U,
        "y": data.y,
        "noise": data.noise,
        "start": model.mean_start,
        "generator": request.generator.get_state(),
        "X_pending": request.X_pending,
        "choices": request.choices,
        "batches": torch.cat([torch.empty(0, dtype=torch.float64, device="cpu"), *request.batches]),
        "sizes": torch.tensor(
            [len(part) for part in request.batches], dtype=torch.long, device="cpu"
        ),
    }
    state = {STATE + name: part for name, part in model.state_dict().items()}
    return {name: part for name, part in found.items() if part is not None} | state


def read_job(
    job: dict[str, Tensor], factory: SurrogateFactory
) -> tuple[PathwiseGP, int, torch.Generator, dict[str, Any]]:
    """Return a job's model, number of points, generator and further fields of the ``Request``."""
    U, y = job["U"], job["y"]
    data = TrainingData(U, y, job.get("noise"), 1.0, 0.0, y[:, 0])
    state = {name.removeprefix(STATE): part for name, part in job.items() if name.startswith(STATE)}
    model = factory.load(data, state, job.get("start"))
    generator = torch.Generator()
    generator.set_state(job["generator"])
    like = model.train_inputs[0]
    given: dict[str, Any] = {
        name: job[name].to(like) for name in ("X_pending", "choices") if name in job
    }
    given["batches"] = job["batches"].split(job["sizes"].tolist())
    return model, int(job["q"]), generator, given
