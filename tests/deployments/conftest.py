"""Lets the tests of this room share `corpus`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
