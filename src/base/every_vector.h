// Loops once more for the wider vectors of newer CPUs, chosen when the module is loaded.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define HABANA_MP_EVERY_VECTOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HABANA_MP_EVERY_VECTOR
#endif
