"""The processes of ``torch.distributed``: how they are joined and left, what is whose, and what
happens to a message where one of them is lost.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

from surrogates import checks, memory

# By default NCCL ends a process whose message has failed before Python hears of it. These make the
# process wait for its messages, and raise
NCCL_SETTINGS = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}

Send = Callable[..., dist.Work]  # a collective function and its arguments, but for the group


@contextmanager
def processes(
    timeout_seconds: float = 300.0, *, backend: str | None = None
) -> Iterator[torch.device]:
    """Join the processes that ``torchrun`` started, and leave them at the end; give the device of
    this one.

    Started alone, without ``torchrun``, the program is the only process.

    Args:
        timeout_seconds: a process that is not heard of for so long ends the others, with an error.
            A killed one usually does so at once.
        backend: of ``torch.distributed``: ``"nccl"``, a CUDA device for each process, or one of
            CPUs such as ``"gloo"``; ``None`` for ``"nccl"`` where there are CUDA devices and
            ``"gloo"`` where there are none.

    Raises:
        ValueError: if PyTorch has no such backend, or there are fewer CUDA devices than processes.
    """
    timeout_seconds = checks.positive_float("timeout_seconds", timeout_seconds)
    if backend is None:
        backend = "nccl" if torch.cuda.is_available() else "gloo"
    device = _own_device(backend)
    if not dist.is_torchelastic_launched():
        yield device
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
        for name, value in NCCL_SETTINGS.items():
            os.environ.setdefault(name, value)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    yield device
    dist.destroy_process_group()  # not after an error: others may be gone
    # Gloo's threads need the interpreter to free the last messages, and abort a process that ends
    time.sleep(0.1)


def _own_device(backend: str) -> torch.device:
    if not dist.is_backend_available(backend):
        raise ValueError(
            f"`backend` must be one that this build of PyTorch has, got {backend!r}. Try 'gloo', by"
            " which processes compute on CPUs."
        )
    if backend != "nccl":
        return torch.device("cpu")
    num_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    num_devices = torch.cuda.device_count()
    if num_processes > num_devices:
        raise ValueError(
            f"`backend` 'nccl' needs a CUDA device for each process, got {num_processes} processes"
            f" on a machine with {num_devices}. Start one a device, or pass 'gloo', by which"
            " processes compute on CPUs."
        )
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def own_rows(n: int, group: dist.ProcessGroup | None = None) -> slice:
    """Return the rows of n that are this process's, where all get equally many, or one more."""
    n = checks.positive_int("n", n)
    return share(n, *place(group))


def shares(name: str, number: int) -> slice:
    """Return this process's share of ``number`` paths, of which every process is to have some.

    Raises:
        ValueError: if there are fewer than processes; ``name`` says of what.
    """
    rank, size = place(None)
    if number < size:
        raise ValueError(
            f"`{name}` must be at least {size}, the number of processes that share them, got"
            f" {number}. Take more, or start fewer processes."
        )
    return share(number, rank, size)


def share(number: int, rank: int, size: int) -> slice:
    """Return the share of process ``rank`` of ``size`` in ``number`` rows, equal but for one."""
    return slice(rank * number // size, (rank + 1) * number // size)


def bytes_of_first(message: bytes | None) -> bytes | None:
    """Return the first process's message, or ``None``, to all.

    Raises:
        ConnectionError: if another process ended, or was not heard of in time.
    """
    rank, size = place(None)
    if size == 1:
        return message
    device = _message_device()
    with contact(rank, size, None) as send:
        length = torch.tensor(0 if message is None else len(message), device=device)
        send(dist.broadcast, length, group_src=0).wait()
        if not length:
            return None
        data = torch.empty(int(length), dtype=torch.uint8, device=device)
        if rank == 0:
            assert message is not None  # its length is sent
            data.copy_(torch.frombuffer(bytearray(message), dtype=torch.uint8))
        send(dist.broadcast, data, group_src=0).wait()
    return data.cpu().numpy().tobytes()


def of_all(numbers: Sequence[int]) -> list[list[int]]:
    """Return every process's numbers, of which each gives as many, to all.

    Raises:
        ConnectionError: if another process ended, or was not heard of in time.
    """
    rank, size = place(None)
    if size == 1:
        return [list(numbers)]
    found = torch.zeros(size, len(numbers), dtype=torch.long, device=_message_device())
    found[rank] = torch.tensor(numbers, device="cpu")
    with contact(rank, size, None) as send:
        send(dist.all_reduce, found).wait()
    return found.tolist()


def require_same(values: Mapping[str, Any]) -> None:
    """Require that all processes give the same values, by the same names; ``repr`` tells them
    apart.

    Raises:
        ValueError: in all processes, naming the first that differs.
        ConnectionError: if another process ended, or was not heard of in time.
    """
    own = [crc32(repr(value).encode()) for value in values.values()]
    found = of_all(own)
    for number, (name, value) in enumerate(values.items()):
        differing = [rank for rank, others in enumerate(found) if others[number] != own[number]]
        if differing:
            raise ValueError(
                f"`{name}` must be the same in all processes, got {value!r} in process"
                f" {place(None)[0]} of {len(found)} and another in process {differing[0]}. Run the"
                " same program with the same arguments in all."
            )


def _message_device() -> torch.device:
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


@contextmanager
def contact(rank: int, size: int, group: dist.ProcessGroup | None) -> Iterator[Send]:
    """Give what sends a message to the ``group``; what fails on the way is a lost process."""

    def send(call: Callable[..., dist.Work], message: Tensor, *others: Any, **named: int) -> Any:
        # What the device has still to do would count as silence of the others
        memory.wait_for(message.device)
        # A call that waits by itself does so on the device alone, where no error is raised
        return call(message, *others, group=group, async_op=True, **named)

    try:
        yield send
    except RuntimeError as error:
        raise ConnectionError(
            f"Process {rank} of {size} lost contact with another, which ended or was not heard of"
            f" in time ({error}). Start all again; a solver with a `checkpoint` goes on from its"
            " last one, a study with a `path` from its last round."
        ) from error


def place(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """Return the number of this process in the group, and how many there are.

    Raises:
        ValueError: if it is not in the group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(
            "`group` must have this process in it, got one that does not. Pass a group only to its"
            " members."
        )
    return rank, dist.get_world_size(group)
