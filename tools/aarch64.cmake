# What CMake must know to build the core for aarch64 on another CPU, and to run its tests through QEMU: `make aarch64`.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

# spdlog and fmt are used as headers, which are the same for every CPU. Debian keeps their CMake files in a folder of the CPU
# that they are installed on, where a build for another CPU does not look.
execute_process(COMMAND c++ -print-multiarch OUTPUT_VARIABLE HOST_TRIPLET OUTPUT_STRIP_TRAILING_WHITESPACE)
foreach(package spdlog fmt)
  if(EXISTS /usr/lib/${HOST_TRIPLET}/cmake/${package})
    set(${package}_DIR /usr/lib/${HOST_TRIPLET}/cmake/${package})
  endif()
endforeach()
