"""Kernel values, random features and sums of them on a CPU, by C code in ``native.c``.

PyTorch makes a pass through memory for every operation of a formula; the C code makes one for all.
It is compiled for the processor it runs on when it is first needed, in about a second, by ``CC`` or
the first of ``cc``, ``gcc`` and ``clang`` that is found. The library is kept in the user's cache
folder (``XDG_CACHE_HOME``, or ``~/.cache``), under a name that tells the source, the compiler and
the processor it belongs to, and what is in it. Without a compiler, or with
``SCALABLE_BO_COMPILE=never`` in the environment, PyTorch does it in three to five times the time.

What is found of a point does not depend on the points beside it, nor on the number of threads.

Notation: X (m, d), Z (n, d), W (n, s), as in ``tiles.py``.
"""

import ctypes
import hashlib
import logging
import math
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

MODES = ("auto", "always", "never")
PROFILES = ("rbf", "matern12", "matern32", "matern52")  # in the order of the source
PANEL = 256  # rows, as in the source

SOURCE = Path(__file__).with_name("native.c")
DEFINITIONS = {torch.float32: (), torch.float64: ("-DDOUBLE",)}
# The arguments of its functions: integers, doubles, and pointers
SIGNATURES = {
    "values": "iiiiippdp",
    "kernel_sums": "iiiiiippiippp",
    "waves": "iiiipppp",
    "wave_sums": "iiiiippiipppp",
}
TYPES = {"i": ctypes.c_long, "d": ctypes.c_double, "p": ctypes.c_void_p}

COMPILERS = ("cc", "gcc", "clang")
FLAGS = (
    *("-x", "c", "-std=gnu11", "-O3", "-fopenmp-simd", "-fno-fast-math", "-ffp-contract=fast"),
    *("-fno-finite-math-only", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"),
)
FOR_THIS_PROCESSOR = ("-march=native", "-mcpu=native")  # which of them depends on the compiler


SWITCH = "SCALABLE_BO_COMPILE"


class CompilationError(Exception):
    """There is no compiler, or it failed; says why."""


def mode() -> str:
    """Return what ``SCALABLE_BO_COMPILE`` says: ``"auto"`` (the default), ``"always"`` or
    ``"never"``.

    Raises:
        ValueError: if it says something else.
    """
    chosen = os.environ.get(SWITCH) or "auto"
    if chosen not in MODES:
        raise ValueError(
            f"`SCALABLE_BO_COMPILE` must be 'auto', 'always' or 'never', got {chosen!r}."
        )
    return chosen


def serves(*operands: Tensor) -> bool:
    """Whether the C code takes these tensors together: float32 or float64 numbers, all of one type,
    in memory on a CPU, whose derivatives nobody asks for, where it can be compiled and is not
    switched off.
    """
    dtype = operands[0].dtype
    if dtype not in DEFINITIONS or (SWITCH in os.environ and mode() == "never"):
        return False
    differentiates = torch.is_grad_enabled()
    try:
        for part in (*operands, operands[0].new_empty(0)):
            if part.dtype != dtype or part.device.type != "cpu":
                return False
            if differentiates and part.requires_grad:
                return False
            part.data_ptr()  # what is made inside a transform of `torch.func` has none
    except RuntimeError:
        return False
    return _is_usable(dtype)


@dataclass(frozen=True, eq=False)
class Panels:
    """The rows of Z (n, d) as the C code reads them."""

    numbers: Tensor  # (panels, d, ``PANEL``), with zeros after the last row
    count: int  # n

    @classmethod
    def of(cls, Z: Tensor) -> Self:
        padded = torch.nn.functional.pad(Z, (0, 0, 0, -len(Z) % PANEL))
        parts = padded.view(len(padded) // PANEL, PANEL, Z.shape[1])
        return cls(parts.mT.contiguous(), len(Z))

    def part(self, rows: slice) -> Self | None:
        """Return those of some rows without a copy; ``None`` of rows that do not begin a panel."""
        start, stop, step = rows.indices(self.count)
        if start % PANEL or step != 1 or (stop % PANEL and stop != self.count):
            return None
        return type(self)(self.numbers[start // PANEL : -(-stop // PANEL)], max(0, stop - start))


def values(
    profile: str, X: Tensor, Z: Panels, outputscale: Tensor, out: Tensor | None = None
) -> Tensor:
    """Return outputscale · κ(X, Z), (m, n), written to ``out``, contiguous, if that is given."""
    X = _points(X, Z)
    m, d = X.shape
    shape = (m, Z.count)
    out = X.new_empty(shape) if out is None else out
    if out.shape != shape or out.dtype != X.dtype or not out.is_contiguous():
        raise ValueError(
            f"`out` must be contiguous {X.dtype} of shape {shape}, got {out.dtype} of"
            f" shape {tuple(out.shape)} and strides {out.stride()}."
        )
    arguments = (d, Z.count, X, Z.numbers, outputscale.item(), out)
    _by_rows("values", X.dtype, (PROFILES.index(profile),), arguments, m, Z.count)
    return out


def kernel_sums(profile: str, X: Tensor, Z: Panels, W: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``f_i(x) = Σ_j κ(x, z_j) W_ij`` (m,) of each function at its own points, and the
    gradients (m, d), both without the outputscale.

    Args:
        X: (s · q, d), the points of function 0 first.
        W: (s, n), however it lies in memory.
    """
    sums, gradients = _sums("kernel_sums", (PROFILES.index(profile),), X, Z, W)
    return sums, gradients.mul_(2.0)


def waves(X: Tensor, Z: Panels) -> tuple[Tensor, Tensor]:
    """Return cos(X Zᵀ) and sin(X Zᵀ), (m, n)."""
    X = _points(X, Z)
    m, d = X.shape
    cosines = X.new_empty(m, Z.count)
    sines = torch.empty_like(cosines)
    _by_rows("waves", X.dtype, (), (d, Z.count, X, Z.numbers, cosines, sines), m, Z.count)
    return cosines, sines


def wave_sums(X: Tensor, Z: Panels, C: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``f_i(x) = Σ_j C_ij cos(xᵀ z_j) + S_ij sin(xᵀ z_j)`` (m,) of each function at its own
    points, and the gradients (m, d); for the shapes see :func:`kernel_sums`.
    """
    return _sums("wave_sums", (), X, Z, C, S)


def _sums(
    name: str, first: tuple[int, ...], X: Tensor, Z: Panels, *weights: Tensor
) -> tuple[Tensor, Tensor]:
    X = _points(X, Z)
    m, d = X.shape
    s = len(weights[0])
    for W in weights:
        if W.shape != (s, Z.count) or W.dtype != X.dtype or (m and (not s or m % s)):
            raise ValueError(
                f"weights must be {X.dtype}, {Z.count} of each of s functions that all have as many"
                f" of the {m} points, got {W.dtype} of shape {tuple(W.shape)}."
            )
    q = m // max(1, s)
    if len({part.stride() for part in weights}) > 1:
        weights = tuple(part.contiguous() for part in weights)
    sums = X.new_zeros(m, dtype=torch.float64)
    gradients = X.new_zeros(m, d, dtype=torch.float64)
    arguments: tuple[int | float | Tensor, ...]
    arguments = (q, d, Z.count, X, Z.numbers, *weights[0].stride(), *weights, sums, gradients)
    _by_rows(name, X.dtype, first, arguments, m, Z.count)
    return sums.to(X.dtype), gradients.to(X.dtype)


def _points(X: Tensor, Z: Panels) -> Tensor:
    dtype = Z.numbers.dtype
    dim = Z.numbers.shape[1]
    if X.shape[1:] != (dim,) or X.dtype != dtype or X.device != Z.numbers.device:
        raise ValueError(
            f"`X` must be {dtype} of shape (m, {dim}) on the {Z.numbers.device}, as what it is"
            f" compared with, got {X.dtype} of shape {tuple(X.shape)} on the {X.device}."
        )
    return X.contiguous()


def _by_rows(
    name: str,
    dtype: torch.dtype,
    first: tuple[int, ...],
    others: tuple[int | float | Tensor, ...],
    num_rows: int,
    width: int,
    entries_a_thread: int = 2**17,  # fewer take less time than to hand them to another thread
    entries_at_once: int = 2**28,  # of a call that cannot be interrupted
) -> None:
    """Call ``name(*first, start, stop, *others)`` for parts of the rows, threaded like PyTorch."""
    function: Callable[..., None] = getattr(_library(dtype), name)
    numbers = list[int | float]()
    for part in others:
        numbers.append(part.data_ptr() if isinstance(part, Tensor) else part)
    at_once = max(1, entries_at_once // max(1, width))
    for start in range(0, num_rows, at_once):
        stop = min(start + at_once, num_rows)
        most = max(1, (stop - start) * width // entries_a_thread)
        share = -(-(stop - start) // min(torch.get_num_threads(), most))
        waiting = []
        for begin in range(start + share, stop, share):
            arguments = (*first, begin, min(begin + share, stop), *numbers)
            try:
                waiting.append(_threads().submit(_call, function, arguments, others))
            except RuntimeError:  # the interpreter is ending, and takes no more of them
                function(*arguments)
        try:
            function(*first, start, min(start + share, stop), *numbers)
        finally:
            for other in waiting:
                other.result()


def _call(function: Callable[..., None], arguments: tuple[int | float, ...], held: object) -> None:
    """Call a function in a thread; ``held`` keeps its tensors, as the caller may have gone."""
    function(*arguments)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, "scalable_bo")


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_threads.cache_clear)


@cache
def _library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """Return the compiled library for a type; ``None`` if none compiles or agrees with PyTorch."""
    try:
        library = load(SOURCE, DEFINITIONS[dtype])
        for name, arguments in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes = [TYPES[argument] for argument in arguments]
            function.restype = None
    except (CompilationError, AttributeError) as error:
        level = logging.WARNING if mode() == "always" else logging.INFO
        logger.log(level, "kernels stay uncompiled, three to five times slower: %s", error)
        return None
    return library


@cache
def _is_usable(dtype: torch.dtype) -> bool:
    if _library(dtype) is None:
        return False
    bound = 100.0 * torch.finfo(dtype).eps  # a library that is further off is not taken
    is_right = all(
        bool((found - known).abs().max() <= bound * max(1.0, known.abs().max().item()))
        for found, known in _samples(dtype)
    )
    nothing = torch.full((PANEL, 1), math.nan, dtype=dtype, device="cpu")
    panels = Panels.of(torch.zeros_like(nothing))
    keeps_nan = all(
        bool(values(profile, nothing, panels, nothing.new_ones(())).isnan().all())
        for profile in PROFILES
    )
    if not (is_right and keeps_nan):
        logger.warning("compiled kernels find other numbers than PyTorch: they are not used")
    return is_right and keeps_nan


def _samples(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what the library finds of some points on a line, and what PyTorch does."""
    X = torch.linspace(0.0, 10.0, PANEL + 1, dtype=dtype, device="cpu").unsqueeze(1)
    Z = X[:-1] + 0.01
    panels = Panels.of(Z)
    one = X.new_ones(())
    W = Z.T.cos()
    differences = X - Z.T
    d2 = differences.square()
    r3 = (3.0 * d2).sqrt()
    r5 = (5.0 * d2).sqrt()
    known = {  # values, and slopes in d²
        "rbf": (torch.exp(-0.5 * d2), -0.5 * torch.exp(-0.5 * d2)),
        "matern12": (torch.exp(-d2.sqrt()), -0.5 / d2.sqrt() * torch.exp(-d2.sqrt())),
        "matern32": ((1.0 + r3) * torch.exp(-r3), -1.5 * torch.exp(-r3)),
        "matern52": (
            (1.0 + r5 + r5.square() / 3.0) * torch.exp(-r5),
            -5.0 / 6.0 * (1.0 + r5) * torch.exp(-r5),
        ),
    }
    for profile, (level, slope) in known.items():
        yield values(profile, X, panels, one), level
        sums, gradients = kernel_sums(profile, X, panels, W)
        yield sums, (level * W).sum(1)
        yield gradients[:, 0], 2.0 * (slope * W * differences).sum(1)
    angles = X * Z.T
    yield from zip(waves(X, panels), (angles.cos(), angles.sin()), strict=True)
    sums, gradients = wave_sums(X, panels, W, -W)
    yield sums, (W * (angles.cos() - angles.sin())).sum(1)
    yield gradients[:, 0], (-W * (angles.cos() + angles.sin()) * Z.T).sum(1)


def load(source: Path, definitions: Sequence[str] = ()) -> ctypes.CDLL:
    """Return the library of a C source, compiled where it was not before.

    Args:
        source: a file.
        definitions: further arguments of the compiler, such as ``-DDOUBLE``.

    Raises:
        CompilationError: if there is no compiler, or it fails.
    """
    try:
        compiler = find_compiler()
        if compiler is None:
            looked_for = os.environ.get("CC") or ", ".join(COMPILERS)
            raise CompilationError(f"no C compiler was found, of {looked_for}")
        name = f"{source.stem}-{_key(source, definitions, compiler)}"
        folder = _cache_folder()
        if folder is not None:
            library = _kept(folder, name)
            try:
                if library is None:
                    library = _made(folder, name, source, definitions, compiler)
                return ctypes.CDLL(str(library))
            except OSError as error:  # a full disk, or one whose files may not be run
                logger.info("the cache folder %s is of no use: %s", folder, error)
        with tempfile.TemporaryDirectory() as own:  # of this process alone
            return ctypes.CDLL(str(_made(Path(own), name, source, definitions, compiler)))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise CompilationError(f"{type(error).__name__}: {error}") from error


def find_compiler() -> list[str] | None:
    """Return the command of the C compiler, a path and arguments; ``None`` where there is none."""
    chosen = shlex.split(os.environ.get("CC", ""))
    commands = [chosen] if chosen else [[name] for name in COMPILERS]
    for program, *arguments in commands:
        path = shutil.which(program)
        if path is not None:
            return [path, *arguments]
    return None


def _kept(folder: Path, name: str) -> Path | None:
    for library in folder.glob(f"{name}-*.so"):
        if _is_own(library) and library.stem == f"{name}-{_digest(library)}":
            return library
    return None


def _made(
    folder: Path, name: str, source: Path, definitions: Sequence[str], compiler: Sequence[str]
) -> Path:
    logger.info("compiling %s; this takes a second, once", source.name)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        made = Path(place) / f"{name}.so"
        _compile(made, source, definitions, compiler)
        made.chmod(0o700)
        library = folder / f"{name}-{_digest(made)}.so"
        made.replace(library)  # as a whole: other processes may be about to load it
    return library


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _compile(
    library: Path, source: Path, definitions: Sequence[str], compiler: Sequence[str]
) -> None:
    special = FOR_THIS_PROCESSOR if _processor() else ()
    for processor in (*([flag] for flag in special), []):
        files = ["-o", str(library), str(source), "-lm"]
        run = subprocess.run(
            [*compiler, *FLAGS, *processor, *definitions, *files],
            capture_output=True,
            errors="replace",
            timeout=120.0,
        )
        if run.returncode == 0:
            return
    lines = run.stderr.strip().splitlines() or ["no message"]
    said = next((line for line in lines if "error" in line), lines[-1])
    raise CompilationError(f"{compiler[0]}: {said}")


def _key(source: Path, definitions: Sequence[str], compiler: Sequence[str]) -> str:
    """Return what a library is known by: another one for every processor and compiler."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, timeout=10.0).stdout
    settings = repr((FLAGS, FOR_THIS_PROCESSOR, tuple(definitions), tuple(compiler))).encode()
    parts = (source.read_bytes(), settings, version, _processor())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return b""
    kinds = (b"model name", b"flags", b"Features", b"CPU part")
    return b"\n".join(sorted({line for line in lines if line.startswith(kinds)}))


def _cache_folder() -> Path | None:
    """Return a folder that only the user can write to, as its files are run, or ``None``."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(chosen) if os.path.isabs(chosen) else Path.home() / ".cache"
        folder = base / "scalable_bo"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder if _is_own(folder) and os.access(folder, os.W_OK) else None
    except (OSError, RuntimeError):  # no home
        return None


def _is_own(path: Path) -> bool:
    """Whether the user, and nobody else, may write to a file or folder."""
    found = path.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
