"""The table of faults fits the sources; ``make faults`` runs the tests on each of them."""

from __future__ import annotations

import faults


def test_the_table_fits_the_sources():
    names = [name for rows in faults.FAULTS.values() for name in rows]
    assert len(names) == len({*names}) >= 40
    for file, text in faults.seeded().items():
        assert text.count("fault(") > 1, file
    for file in faults.FAULTS:
        assert (faults.ROOT / f"tests/devices/accelerator/test_{file}.py").exists()
