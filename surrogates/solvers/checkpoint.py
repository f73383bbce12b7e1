"""Checkpoints of a solve, so that one that was cut short goes on from its last steps.

A checkpoint is one safetensors file a process, with numbers as JSON in its header; nothing in it is
run or imported. It is named after a digest of the solve (method, system, right-hand sides, state of
the generator), so that another solve never takes it for its own.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from surrogates import checks
from surrogates.atomic import replacing
from surrogates.callers import warn
from surrogates.solvers.state import Parts

NUM_KEPT = 2
FORMAT = 6  # version of the saved state; raise it when a solve saves other fields
ENDED = "ended"  # is among the parts of a solve that has come to its end


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often an iterative solve is saved.

    The same call, made again after the program was stopped, goes on from the last step that all
    processes have saved, and ends at the same iterates as without the interruption, bit by bit (on
    a CUDA device where ``SCALABLE_BO_COMPILE`` is ``never`` or ``always``: otherwise the kernel is
    compiled once that pays). What is refined in float64 begins that stage anew. When a solve ends,
    its files are removed, unless ``keep_solution`` is set.

    Args:
        folder: of the files, made if it is not there. Processes on several machines may have
            folders of their own.
        every_seconds: seconds from one checkpoint to the next; ``None`` for none by the clock.
        every_steps: likewise in steps.
        keep_solution: leave a file with the solution, so that the same call returns it at once
            where what follows the solve is interrupted; of a solve that its ``max_seconds`` cut
            short, one to go on from with more of them. Remove the folder when it has served.
    """

    folder: str | Path
    every_seconds: float | None = 600.0
    every_steps: int | None = None
    keep_solution: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | Path):
            raise TypeError(
                f"`folder` must be a path, got {type(self.folder).__name__} {self.folder!r}."
            )
        object.__setattr__(self, "folder", Path(self.folder).absolute())
        checks.optional(checks.positive_float, "every_seconds", self.every_seconds)
        checks.fields(self, ["every_steps"], checks.positive_int)
        if self.every_seconds is None and self.every_steps is None:
            raise ValueError("`every_seconds` or `every_steps` must be given, got None for both.")


class Saved(Mapping[str, Any]):
    """The parts in a file, of which a tensor is read when it is asked for: the solve that takes
    them holds its own already.

    Raises:
        SafetensorError: if the file is none, or is shorter than it says.
        OSError: if it cannot be read.
        ValueError, KeyError: if it has no numbers, or is of another version.
    """

    def __init__(self, path: Path):
        self.path = path
        with safe_open(path, framework="pt") as file:
            self._names = [*file.keys()]
            self._numbers = json.loads((file.metadata() or {})["numbers"])
        if self._numbers.pop("format", None) != FORMAT:
            raise ValueError("it is of another version of scalable_bo")

    def __getitem__(self, name: str) -> Any:
        if name in self._numbers:
            return self._numbers[name]
        if name not in self._names:
            raise KeyError(name)
        with safe_open(self.path, framework="pt") as file:
            # Tensors of the file lie at any address, and products round by that
            return file.get_tensor(name).clone()

    def __iter__(self) -> Iterator[str]:
        return iter([*self._names, *self._numbers])

    def __len__(self) -> int:
        return len(self._names) + len(self._numbers)


class Keeper:
    """Saves the parts of one solve, and finds them again.

    Args:
        rows: the ``Rows`` of the system, which know the other processes.
        key: tells this solve from others.
    """

    def __init__(self, checkpoint: Checkpoint, rows: Any, key: str):
        self.checkpoint = checkpoint
        self.rows = rows
        self.folder = Path(checkpoint.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._end = f".{rows.rank}-of-{rows.size}.safetensors"
        self._start = f"solve-{key[:16]}-"
        self._saved_at = time.monotonic()
        self._saved_steps = 0

    def is_due(self, steps: int) -> bool:
        """Return whether the state after so many steps is due, the same in all processes."""
        every_steps = self.checkpoint.every_steps
        every_seconds = self.checkpoint.every_seconds
        if every_steps is not None and steps - self._saved_steps >= every_steps:
            return True
        return every_seconds is not None and self.rows.agree(
            time.monotonic() - self._saved_at >= every_seconds
        )

    def save(self, steps: int, parts: Parts) -> None:
        """Write a checkpoint; once every process has done so, remove those before the last two."""
        with replacing(self._path(steps)) as temporary:
            tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor)}
            numbers = {name: part for name, part in parts.items() if name not in tensors}
            numbers["format"] = FORMAT
            try:
                save_file(_apart(tensors), temporary, metadata={"numbers": json.dumps(numbers)})
            except SafetensorError as error:  # what it makes of a full disk
                raise OSError(str(error)) from error
        self.rows.least(1)
        self._remove(self._steps()[NUM_KEPT:])
        self._saved_at = time.monotonic()
        self._saved_steps = steps

    def load(self) -> Saved | None:
        """Return the parts after the last step that every process has saved, if there is one."""
        read = {
            steps: saved
            for steps in self._steps()
            if (saved := self._read(self._path(steps))) is not None
        }
        steps = self.rows.least(max(read, default=-1))
        if not self.rows.least(steps in read):
            return None
        self._saved_steps = steps
        return read[steps]

    def end(self, steps: int, parts: Parts) -> None:
        """Remove the checkpoints of a solve that every process has ended,
        but for one of its ``parts`` in the end if the solution is to be kept.
        """
        if self.checkpoint.keep_solution:
            self.save(steps + 1, parts)
            self._remove(self._steps()[1:])
            return
        self.rows.least(1)
        for path in self.folder.glob(f"{self._start}*{self._end}*"):
            path.unlink()

    def _remove(self, steps: list[int]) -> None:
        for old in steps:
            self._path(old).unlink()

    def _path(self, steps: int) -> Path:
        return self.folder / f"{self._start}{steps:010d}{self._end}"

    def _steps(self) -> list[int]:
        name = re.compile(re.escape(self._start) + r"(\d+)" + re.escape(self._end))
        return sorted(
            (
                int(match[1])
                for path in self.folder.iterdir()
                if (match := name.fullmatch(path.name))
            ),
            reverse=True,
        )

    def _read(self, path: Path) -> Saved | None:
        try:
            return Saved(path)
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            warn(
                f"The checkpoint {path} cannot be read and was passed over ({error}). The solve"
                " goes on from an earlier one, or begins anew."
            )
            return None


def digest(text: str, tensors: list[Tensor]) -> str:
    """Return a number in hexadecimal digits that differs if any of the arguments does."""
    total = hashlib.sha256(text.encode())
    for tensor in tensors:
        total.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).numpy().data)
    return total.hexdigest()


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, no two of which share memory."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        separate[name] = tensor.clone() if tensor.untyped_storage().data_ptr() in seen else tensor
        seen.add(separate[name].untyped_storage().data_ptr())
    return separate
