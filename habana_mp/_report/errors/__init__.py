"""How far losses and outputs are off: as the step ran, and as it would run."""
