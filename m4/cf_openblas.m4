# CF_OPENBLAS - find OpenBLAS, its OpenMP variant if there is one.
#
# The pthread variant works but loses a quarter of its speed between our own
# OpenMP regions.  On Debian both can be installed and the pthread one wins the
# alternative, so the OpenMP one is linked by its own folder.
AC_DEFUN([CF_OPENBLAS], [
  AC_ARG_WITH([openblas],
    [AS_HELP_STRING([--with-openblas=DIR], [folder of libopenblas.so])])
  cf_multiarch=`$CC -print-multiarch 2>/dev/null`
  cf_dir=
  AS_IF([test "x$with_openblas" != x && test "x$with_openblas" != xyes],
    [cf_dir=$with_openblas],
    [test -e "/usr/lib/$cf_multiarch/openblas-openmp/libopenblas.so"],
    [cf_dir=/usr/lib/$cf_multiarch/openblas-openmp])
  CF_OPENBLAS_WHERE="on the system's search path"
  OPENBLAS_LIBS=-lopenblas
  OPENBLAS_CFLAGS=
  AS_IF([test "x$cf_dir" != x],
    [OPENBLAS_LIBS="-L$cf_dir -Wl,-rpath,$cf_dir -lopenblas"
     CF_OPENBLAS_WHERE=$cf_dir])
  AS_IF([test -e "/usr/include/$cf_multiarch/openblas-openmp/cblas.h"],
    [OPENBLAS_CFLAGS="-I/usr/include/$cf_multiarch/openblas-openmp"])
  cf_save_LIBS=$LIBS
  cf_save_CPPFLAGS=$CPPFLAGS
  LIBS="$OPENBLAS_LIBS $LIBS"
  CPPFLAGS="$CPPFLAGS $OPENBLAS_CFLAGS"
  AC_MSG_CHECKING([for OpenBLAS])
  AC_LINK_IFELSE(
    [AC_LANG_PROGRAM([[#include <cblas.h>]], [[openblas_get_config();]])],
    [AC_MSG_RESULT([$CF_OPENBLAS_WHERE])],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([OpenBLAS is missing: apt install libopenblas-openmp-dev, or run scripts/setup])])
  LIBS=$cf_save_LIBS
  CPPFLAGS=$cf_save_CPPFLAGS
  AC_SUBST([OPENBLAS_CFLAGS])
  AC_SUBST([OPENBLAS_LIBS])
])
