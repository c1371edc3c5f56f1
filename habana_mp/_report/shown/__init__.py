"""A report as people and other tools see it: the page, the table of the terminal, files of other formats."""
