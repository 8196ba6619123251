# CF_CUDA - the CUDA module (nvcc, cudart, cuBLASLt), and what it can use beside:
# cuDNN and NCCL.
#
# Off unless asked for: the program does not use the module by itself yet, and nvcc
# takes its time.  What is found and what is missing is told in either case.
# Asked for and not usable is an error.
#
# Sets NVCC, NVCC_GENCODE, CUDA_CPPFLAGS, CUDA_LIBS, the conditional HAVE_CUDA, and
# CF_CUDA_WHERE, CF_CUDNN_WHERE, CF_NCCL_WHERE for the table at the end.
AC_DEFUN([CF_CUDA], [
  AC_ARG_WITH([cuda],
    [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@],
      [build chunkflow_cuda.so with the CUDA toolkit in DIR (/usr/local/cuda)])],
    [], [with_cuda=no])
  AC_ARG_WITH([cuda-arch],
    [AS_HELP_STRING([--with-cuda-arch=LIST],
      [compute capabilities, as in 80,90 (the default); the last also as PTX])],
    [], [with_cuda_arch=80,90])
  AC_ARG_VAR([NVCC], [CUDA compiler])
  AC_ARG_VAR([NVCCFLAGS], [flags for the CUDA compiler])
  AS_CASE([$with_cuda],
    [yes|no], [cf_cuda_dir=${CUDA_HOME-/usr/local/cuda}],
    [cf_cuda_dir=$with_cuda])
  AC_PATH_PROG([NVCC], [nvcc], [], [$cf_cuda_dir/bin$PATH_SEPARATOR$PATH])
  AS_IF([test "x$with_cuda" != xno],
    [CF_CUDA_USE],
    [test "x$NVCC" != x],
    [CF_CUDA_WHERE="not used: --with-cuda uses $NVCC"],
    [CF_CUDA_WHERE="not used"])
  CF_CUDA_LIBRARY([cudnn], [cuDNN], [cudnn.h], [cudnnGetVersion])
  CF_CUDA_LIBRARY([nccl], [NCCL], [nccl.h], [ncclGetVersion])
  AM_CONDITIONAL([HAVE_CUDA], [test "x$with_cuda" != xno])
])

# Everything that the module needs, or an error.
AC_DEFUN([CF_CUDA_USE], [
  AS_IF([test "x$NVCC" = x],
    [AC_MSG_ERROR([--with-cuda: there is no nvcc in $cf_cuda_dir/bin or on the path])])
  AS_IF([test -d "$cf_cuda_dir/lib64"],
    [cf_cuda_lib=$cf_cuda_dir/lib64], [cf_cuda_lib=$cf_cuda_dir/lib])
  CUDA_CPPFLAGS="-isystem $cf_cuda_dir/include"
  CUDA_LIBS="-L$cf_cuda_lib -Wl,-rpath,$cf_cuda_lib -lcublasLt -lcudart -lstdc++"
  cf_save_CPPFLAGS=$CPPFLAGS
  cf_save_LIBS=$LIBS
  CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
  LIBS="$CUDA_LIBS $LIBS"
  AC_MSG_CHECKING([for cudart and cuBLASLt])
  AC_LINK_IFELSE(
    [AC_LANG_PROGRAM([[#include <cublasLt.h>
                       #include <cuda_runtime.h>]],
      [[int n = 0;
        return (int)cublasLtGetVersion() + (int)cudaGetDeviceCount(&n);]])],
    [AC_MSG_RESULT([$cf_cuda_lib])],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([--with-cuda: cudart or cuBLASLt is missing in $cf_cuda_dir, see config.log])])
  CPPFLAGS=$cf_save_CPPFLAGS
  LIBS=$cf_save_LIBS
  NVCC_GENCODE=
  for cf_arch in `AS_ECHO(["$with_cuda_arch"]) | tr ',' ' '`; do
    NVCC_GENCODE="$NVCC_GENCODE -gencode=arch=compute_$cf_arch,code=sm_$cf_arch"
  done
  NVCC_GENCODE="$NVCC_GENCODE -gencode=arch=compute_$cf_arch,code=compute_$cf_arch"
  AC_MSG_CHECKING([whether $NVCC builds for $with_cuda_arch])
  AS_ECHO(["__global__ void k(int *p) { *p = 1; }"]) >conftest.cu
  AS_IF([$NVCC $NVCC_GENCODE $NVCCFLAGS -c conftest.cu -o conftest.o >&AS_MESSAGE_LOG_FD 2>&1],
    [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([--with-cuda-arch: $NVCC does not build for $with_cuda_arch, see config.log])])
  rm -f conftest.cu conftest.o
  CF_CUDA_WHERE="$cf_cuda_dir, for $with_cuda_arch"
  AC_SUBST([NVCC_GENCODE])
  AC_SUBST([CUDA_CPPFLAGS])
  AC_SUBST([CUDA_LIBS])
])

# CF_CUDA_LIBRARY(name, Name, header, function) - a library beside the toolkit, by
# --with-name[=DIR]; nothing uses it yet, so it is only looked for.
AC_DEFUN([CF_CUDA_LIBRARY], [
  AC_ARG_WITH([$1],
    [AS_HELP_STRING([--with-$1@<:@=DIR@:>@],
      [look for $2 in DIR (where CUDA is); it is not used yet])],
    [], [with_$1=no])
  AS_VAR_SET([CF_]m4_toupper([$1])[_WHERE], ["not looked for"])
  AS_IF([test "x$with_$1" != xno],
    [AS_CASE([$with_$1], [yes], [cf_dir=$cf_cuda_dir], [cf_dir=$with_$1])
     AS_IF([test -d "$cf_dir/lib64"], [cf_lib=$cf_dir/lib64], [cf_lib=$cf_dir/lib])
     cf_save_CPPFLAGS=$CPPFLAGS
     cf_save_LIBS=$LIBS
     CPPFLAGS="$CPPFLAGS -isystem $cf_dir/include -isystem $cf_cuda_dir/include"
     LIBS="-L$cf_lib -Wl,-rpath,$cf_lib -l$1 $LIBS"
     AC_MSG_CHECKING([for $2])
     AC_LINK_IFELSE(
       [AC_LANG_PROGRAM([[#include <$3>]], [[return $4 == 0;]])],
       [AC_MSG_RESULT([$cf_dir])
        AS_VAR_SET([CF_]m4_toupper([$1])[_WHERE], ["$cf_dir, not used yet"])],
       [AC_MSG_RESULT([no])
        AC_MSG_ERROR([--with-$1: $2 is missing in $cf_dir, see config.log])])
     CPPFLAGS=$cf_save_CPPFLAGS
     LIBS=$cf_save_LIBS])
])

# CF_CUDA_SIMULATOR - a C++17 compiler, by which the tests run CUDA kernels on the
# CPU; no toolkit is needed.
AC_DEFUN([CF_CUDA_SIMULATOR], [
  AC_LANG_PUSH([C++])
  cf_save_CXXFLAGS=$CXXFLAGS
  CXXFLAGS="$CXXFLAGS -std=c++17"
  AC_MSG_CHECKING([whether $CXX can build the simulated GPU])
  AC_COMPILE_IFELSE(
    [AC_LANG_SOURCE([[#include <functional>
                      #include <tuple>
                      #include <ucontext.h>
                      inline int one(int x) { return x; }
                      int main() { return std::apply(one, std::tuple<int>(0)); }]])],
    [cf_simulator=yes], [cf_simulator=no])
  AC_MSG_RESULT([$cf_simulator])
  CXXFLAGS=$cf_save_CXXFLAGS
  AC_LANG_POP([C++])
  AM_CONDITIONAL([HAVE_SIMULATOR], [test "x$cf_simulator" = xyes])
])
