"""The value a solve returns, with an account of how well it solves the system."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surrogates.callers import warn

STALLED = "some columns stopped improving: the precision or the step is exhausted"
# Of weights that float64 arithmetic has found, rounded to float32
TOO_LARGE = "whose solution float32 cannot hold: its weights are too large"


class UnsolvedWarning(UserWarning):
    """A model uses the solution of a linear system whose residual missed the tolerance."""


@dataclass(frozen=True)
class Solution:
    """The returned estimate and an honest account of it.

    Attributes:
        value: (n, s); of a shared system, the rows held by this process.
        residual: (s,) relative residual of ``value``, evaluated, not estimated by the method: of a
            solve from zero for more than 16 384 rows in 1024 random ones, where these leave no
            doubt that it is done, or its budget allows no more; where float32 does not show it, in
            256 of them in float64. Where few rows hold a right-hand side, in all rows.
        converged: (s,) whether the tolerance was reached.
        steps: (s,) steps each column ran.
        epochs: kernel entries used, checks and preconditioner included, but for these rows; n² of
            them, between all data and all unknowns, are one epoch.
        note: what a user should know: jitter added, a step size reduced, precision exhausted. Empty
            if nothing.
    """

    value: Tensor
    residual: Tensor
    converged: Tensor
    steps: Tensor
    epochs: float
    seconds: float
    note: str = ""

    def no_worse_than_zero(self) -> "Solution":
        """Return this with 0, whose relative residual is 1, for the columns with a larger one, or
        one that is not a number.
        """
        worse = ~(self.residual <= 1.0)
        if not bool(worse.any()):
            return self
        note = "0 is returned for columns whose residual was above 1, which is that of 0"
        return replace(
            self,
            value=self.value.masked_fill(worse, 0.0),
            residual=self.residual.masked_fill(worse, 1.0),
            converged=self.converged & ~worse,
            note=f"{self.note}; {note}" if self.note else note,
        )

    def warn_if_unsolved(self, what: str) -> None:
        """Warn if a column missed the tolerance.

        Args:
            what: is computed from the solution, in the plural.

        Warns:
            UnsolvedWarning: with the number of these columns, the worst residual, and what helps.
        """
        missed = int((~self.converged).sum())
        if not missed:
            return
        if TOO_LARGE in self.note:
            remedy = "Float32 cannot hold weights as large, whatever the budget. Use float64"
        else:
            precision = "float64, " if self.value.dtype == torch.float32 else ""
            remedy = f"Use {precision}a solver with a larger budget such as `Auto(max_epochs=1000)`"
        warn(
            f"{what} are those of an unsolved linear system: {missed} of {self.converged.numel()}"
            " columns missed the solver's tolerance, the worst with a relative residual of"
            f" {self.residual.max().item():.1e}. {remedy}, or `Cholesky()` where n² numbers fit in"
            " memory.",
            UnsolvedWarning,
        )

    def __str__(self) -> str:
        done = int(self.converged.sum())
        worst = self.residual.max().item() if self.residual.numel() else 0.0
        text = (
            f"{done}/{self.converged.numel()} columns converged, worst residual {worst:.1e},"
            f" {self.epochs:.1f} epochs, {self.seconds:.1f} s"
        )
        return f"{text}; {self.note}" if self.note else text
