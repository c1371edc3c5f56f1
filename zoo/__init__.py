"""What of torch and transformers runs under the policies, under the instruments and compiled: ``make zoo`` writes a page of docs/ about each."""

# glibc counts what the cache of each thread holds as memory in use. Without these caches, what a round leaves can be told to the byte.
# Read once, where a program starts.
EXACT_MEMORY = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
