"""``autocast``: the front end at torch's dispatcher. It must not know reports and the command line."""
