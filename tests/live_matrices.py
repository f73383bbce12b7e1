"""How many matrices of one size are held at once."""

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveMatrices(TorchDispatchMode):
    """Counts the memory blocks of one size that operations within it have made.

    Attributes:
        most: held at once, since the count began or ``most`` was set.
    """

    def __init__(self, like: Tensor):
        super().__init__()
        self.size = like.untyped_storage().nbytes()
        self.live: set[int] = set()
        self.most = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        for part in tree_iter(found):
            if isinstance(part, Tensor):
                self._count(part)
        self.most = max(self.most, len(self.live))
        return found

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.nbytes() == self.size and storage._cdata not in self.live:
            self.live.add(storage._cdata)
            weakref.finalize(storage, self.live.discard, storage._cdata)
