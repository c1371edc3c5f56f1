// libstdc++ asks glibc 2.32 and later by this variable whether there is one thread, to count
// references without atomics. With a variable of our own, which says no, the module loads with
// glibc 2.28 too. It includes nothing that declares it.
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}
