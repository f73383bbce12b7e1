"""What is installed: the version, whether ``surrogates`` and ``acquisition`` are ours, and what
extras bring.
"""

from importlib.util import find_spec
from pathlib import Path

# scalable_bo itself is on no package index
INSTALL = "Install the extra `{0}`: pip install '.[{0}]' in a clone, or '<wheel file>[{0}]'."


class MissingPackageError(ImportError):
    """A package that only an extra brings is not installed."""


def is_installed(module: str) -> bool:
    """Return whether ``module`` can be imported."""
    return find_spec(module) is not None


def require(module: str, *, extra: str, user: str) -> None:
    """Raise if ``module`` cannot be imported.

    Args:
        extra: of this package, which installs it.
        user: what needs it, to begin the message with.
    Raises:
        MissingPackageError: naming the extra that installs it.
    """
    if not is_installed(module):
        raise MissingPackageError(
            f"{user} needs the package `{module}`, which is not installed. {INSTALL.format(extra)}",
            name=module,
        )


def check_sibling_packages(*names: str) -> None:
    """Raise if importing a sibling package, by its name, would load somebody else's module.

    The three packages are installed side by side, so each sibling must lie beside this package's
    folder. Nothing is imported.

    Raises:
        ImportError: naming the file that was found in place of ours, or the missing package.
    """
    root = Path(__file__).resolve().parent.parent
    for name in names:
        spec = find_spec(name)  # without an `__init__.py`, it is of a folder
        places = spec and ([spec.origin] if spec.origin else spec.submodule_search_locations)
        found = next(map(Path, places or ()), None)
        expected = root / name / "__init__.py"
        if found is None or found.resolve() != expected:
            wrong = f"another module of that name: {found}" if found else "no module of that name"
            raise ImportError(
                f"scalable_bo needs its own package `{name}` at {expected}, but Python finds"
                f" {wrong}. Install scalable-bo again; or rename that module, uninstall the"
                " distribution that brought it, or start Python from another folder.",
                name=name,
                path=None if found is None else str(found),
            )


def installed_version() -> str:
    """Return the version of the distribution; "0+unknown" of a source tree not installed."""
    # Slow to import, and seldom needed.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("scalable-bo")
    except PackageNotFoundError:
        return "0+unknown"
