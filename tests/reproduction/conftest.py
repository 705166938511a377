"""The scripts of reproduction/ import one another by name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "reproduction"))
