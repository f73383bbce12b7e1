"""What ``fit`` tried, what all data said of it, and why one result was taken."""

from dataclasses import dataclass, field, replace

from surrogates.fitting.evidence import Difference


class NoSignalWarning(UserWarning):
    """A fit found nothing in the data but noise about their mean."""


class FineStructureWarning(UserWarning):
    """The data vary over shorter distances than the kernel's lengthscales have, or may have."""


@dataclass(frozen=True)
class Stage:
    """One method that ``fit`` ran from the best hyperparameters before it.

    Attributes:
        method: the function ``fit_<method>``, or ``"simpler"``, fewer hyperparameters or those
            without an expectation of little noise, or ``"white noise"``.
        seconds: that the method took.
        log_density: nats a point, the mean over random data, each predicted from its neighbours;
            NaN if the stage was not judged.
        over_noise: by how much that exceeds the density if all were noise; ``None`` if not judged.
        over_best: by how much it exceeds that of the best stage before; ``None`` for the first too.
        accepted: whether the model went on with its result.
        note: why it was or was not, in words.
    """

    method: str
    seconds: float
    log_density: float = float("nan")
    over_noise: Difference | None = None
    over_best: Difference | None = None
    accepted: bool = True
    note: str = ""

    def __str__(self) -> str:
        parts = [f"{self.method}: {'taken' if self.accepted else 'not taken'}"]
        if self.over_noise is not None:
            parts.append(f"{self.log_density:.4f} nats a point")
            parts.append(f"{self.over_noise} above white noise")
        if self.over_best is not None:
            parts.append(f"{self.over_best} above the best before")
        parts.append(f"{self.seconds:.1f} s")
        return ", ".join(parts) + (f"; {self.note}" if self.note else "")


@dataclass(frozen=True)
class FitAccount:
    """What a fit did. ``str()`` gives one line a stage.

    Attributes:
        stages: in the order they were run.
        reason: why these methods were run.
        interrupted: whether Ctrl-C ended the fit; the model has the result of ``chosen``.
    """

    stages: tuple[Stage, ...] = field(default=())
    reason: str = ""
    interrupted: bool = False

    @property
    def chosen(self) -> str:
        """The method whose result the model has; empty if there is none."""
        return next((stage.method for stage in reversed(self.stages) if stage.accepted), "")

    def with_stage(self, stage: Stage, *, interrupted: bool = False) -> "FitAccount":
        """Return the account with one stage more."""
        return replace(self, stages=(*self.stages, stage), interrupted=interrupted)

    def __str__(self) -> str:
        end = " (interrupted)" if self.interrupted else ""
        head = f"Hyperparameters of {self.chosen or 'no stage'}{end}; {self.reason}"
        return "\n".join([head, *(f"  {stage}" for stage in self.stages)])
