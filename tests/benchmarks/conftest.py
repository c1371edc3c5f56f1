import sys
from pathlib import Path

# The scripts import the folders beside them: harness and subjects.
sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))
