// What a wheel is linked with (tools/wheel.py), so that it loads wherever torch's own wheels do:
// with glibc 2.28 and the libstdc++ of GCC 8. The headers that it is compiled with ask for newer
// versions of these functions. Each has an older one that does the same; here it has the name that
// the module asks for, which no other module sees. A source distribution is compiled for the
// machine that it runs on, and does not need it.

#ifdef __x86_64__
#define FIRST_GLIBC "GLIBC_2.2.5"
#else
#define FIRST_GLIBC "GLIBC_2.17"  // aarch64
#endif
#define NAMED(name) __asm__(name) __attribute__((visibility("hidden")))

extern "C" {

// glibc 2.29 left out the error handler that a program could have.
double first_log2(double number);
__asm__(".symver first_log2,log2@" FIRST_GLIBC);
double our_log2(double number) NAMED("log2");
double our_log2(double number) { return first_log2(number); }

// glibc 2.34 took it over from libpthread. std::call_once calls it, in pybind11/numpy.h.
int first_pthread_once(int* once, void (*function)());
__asm__(".symver first_pthread_once,pthread_once@" FIRST_GLIBC);
int our_pthread_once(int* once, void (*function)()) NAMED("pthread_once");
int our_pthread_once(int* once, void (*function)()) { return first_pthread_once(once, function); }

// GCC 9 has a constructor that moves a std::logic_error, where a copy counts a reference.
void copied_logic_error(void* made, const void* error) __asm__("_ZNSt11logic_errorC2ERKS_");
void moved_logic_error(void* made, void* error) NAMED("_ZNSt11logic_errorC2EOS_");
void moved_logic_error(void* made, void* error) { copied_logic_error(made, error); }
}
