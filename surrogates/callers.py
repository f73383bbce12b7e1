"""Warnings at the line that called us, where something can be done about them."""

import sys
import warnings

# Ours, and those that call us back or decorate what is ours
PACKAGES = {
    *("surrogates", "acquisition", "scalable_bo"),
    *("torch", "gpytorch", "botorch", "sklearn", "contextlib"),
}


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line outside of ``PACKAGES``; at the outermost if there is none."""
    frame = sys._getframe(1)
    level = 2
    while (
        str(frame.f_globals.get("__name__")).partition(".")[0] in PACKAGES
        and frame.f_back is not None
    ):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
