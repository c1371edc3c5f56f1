"""What scripts for Gaudi import from Habana's package, for machines where it is not installed. `importer.py` makes the modules."""
