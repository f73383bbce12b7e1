"""Whether the framework of an integration is installed."""

from importlib.util import find_spec


def require(module: str, extra: str) -> None:
    """Raise if ``module`` cannot be imported.

    Raises:
        ImportError: naming the extra that installs it.
    """
    if find_spec(module) is None:
        raise ImportError(
            f"`scalable_bo.integrations.{extra}` needs the package `{module}`, which is not"
            f" installed. Install it: pip install 'scalable-bo[{extra}]'",
            name=module,
        )
