# CF_CPU_VARIANTS - which instruction sets the CPU kernels are compiled for.
# The choice among them is made at run time (kernels/cpu/dispatch.c).
AC_DEFUN([CF_CPU_VARIANTS], [
  AS_CASE([$host_cpu],
    [x86_64], [CF_VARIANTS="avx2 avx512, chosen at run time"],
    [AC_MSG_ERROR([the CPU kernels are written for x86-64 with AVX2 so far, this is $host_cpu])])
])
