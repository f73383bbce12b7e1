"""Whether a package that only an extra brings is installed."""

from importlib.util import find_spec


def is_installed(module: str) -> bool:
    """Return whether ``module`` can be imported."""
    return find_spec(module) is not None


def require(module: str, extra: str, user: str | None = None) -> None:
    """Raise if ``module`` cannot be imported.

    Args:
        module: its name.
        extra: of this package, which installs it.
        user: what needs it; ``None`` for the integration that is called like the extra.
    Raises:
        ImportError: naming the extra that installs it.
    """
    if not is_installed(module):
        raise ImportError(
            f"`{user or f'scalable_bo.integrations.{extra}'}` needs the package `{module}`, which"
            f" is not installed. Install it: pip install 'scalable-bo[{extra}]'",
            name=module,
        )
