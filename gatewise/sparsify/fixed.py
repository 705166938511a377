"""Fixed: what an object was made with is not set afterwards."""

from __future__ import annotations

from typing import ClassVar


class Fixed:
    """Mixin: once `_made`, public attributes but those in `changing` are read only: set, they would just be shown."""

    _made = False
    changing: ClassVar[frozenset[str]] = frozenset()

    def __setattr__(self, name: str, value: object) -> None:
        if self._made and not name.startswith("_") and name not in self.changing:
            kind = type(self).__name__
            raise AttributeError(
                f"{kind}.{name} cannot be set: a {kind} stays as it was made. Make another one with it."
            )
        super().__setattr__(name, value)
