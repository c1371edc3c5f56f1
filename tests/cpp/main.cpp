// The main function of every C++ test program, compiled once as doctest's runner compiles slowly.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
