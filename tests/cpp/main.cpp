// The main function of every C++ test program. Compiled once, as doctest's runner is slow to compile.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
