"""The processes that train one model together. It must not know the front ends."""
