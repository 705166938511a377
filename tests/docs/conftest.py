"""Pages quote numbers that scripts of reproduction/ read."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "reproduction"))
