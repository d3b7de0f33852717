"""The examples are imported from their own folder, under the names that they have there."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLES = str(Path(__file__).parents[2] / "examples")
if EXAMPLES not in sys.path:
    sys.path.append(EXAMPLES)
