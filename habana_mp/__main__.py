"""``python -m habana_mp``: the command line, as ``habana-mp`` is."""

from habana_mp.cli import main

main()
