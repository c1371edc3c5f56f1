"""``convert``: the front end that patches Python's names for ops. It must not know autocast, reports and the command line."""
