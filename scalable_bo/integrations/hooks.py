"""Registration with frameworks that are imported later, or never. Quick to import.

It watches what the process imports; ``SCALABLE_BO_PROCESS_SETTINGS=keep`` in the environment keeps
it from that, and ``import scalable_bo.integrations.ax`` then registers.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

SWITCH = "SCALABLE_BO_PROCESS_SETTINGS"  # that of `surrogates.memory`, which is slow to import
AX_STORAGE = "ax.storage.json_store.decoder"


def register_with_ax() -> None:
    """Let Ax load what was saved with our parts in it, whichever of the two is imported first."""
    if os.environ.get(SWITCH) != "keep":
        when_imported(AX_STORAGE, _import_our_parts)


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call ``then`` when the module ``name`` has been imported: now, if it has."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Watch(name, then))


def _import_our_parts() -> None:
    # Whoever imports the integration is told what it lacks; Ax's own users are not to be stopped
    with suppress(ImportError):
        import_module("scalable_bo.integrations.ax")


class _Watch(MetaPathFinder):
    """Leaves finding ``name`` to the other finders, and calls ``then`` after its execution."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._then()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
