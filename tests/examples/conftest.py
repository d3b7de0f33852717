"""The import path of the examples: from their own folder, under their own names."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLES = str(Path(__file__).parents[2] / "examples")
if EXAMPLES not in sys.path:
    sys.path.append(EXAMPLES)
