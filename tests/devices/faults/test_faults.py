"""The table of faults fits the sources; ``make faults`` runs the tests on each of them."""

from __future__ import annotations

from faults import seeded
from faults.table import FAULTS


def test_the_table_fits_the_sources():
    names = [name for rows in FAULTS.values() for name in rows]
    assert len(names) == len({*names}) >= 40
    for file, text in seeded.seeded().items():
        assert text.count("fault(") > 1, file
    for file in FAULTS:
        assert (seeded.ROOT / f"tests/devices/accelerator/test_{file}.py").exists()
