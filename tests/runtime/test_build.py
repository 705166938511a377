"""The C kernels are there. Other tests are skipped without them, and an install without them succeeds."""

from __future__ import annotations

from gatewise.runtime.bindings import native


def test_the_kernels_are_built() -> None:
    """So `make test` fails where a compile error left them out; the error says what is missing."""
    native()
