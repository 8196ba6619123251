# CF_MPI - find the C library of Open MPI, without making mpicc the compiler.
#
# The mpicc on the path comes first: it goes with the mpirun on the path.
AC_DEFUN([CF_MPI], [
  AC_ARG_VAR([MPICC], [compiler wrapper of Open MPI, asked for its flags only])
  AC_CHECK_PROGS([MPICC], [mpicc])
  CF_MPI_WHERE=
  AS_IF([test "x$MPICC" != x &&
         cf_mpi_cflags=`$MPICC --showme:compile 2>/dev/null` &&
         cf_mpi_libs=`$MPICC --showme:link 2>/dev/null`],
    [MPI_CFLAGS=$cf_mpi_cflags
     MPI_LIBS=$cf_mpi_libs
     CF_MPI_WHERE="by $MPICC"],
    [PKG_CHECK_EXISTS([ompi-c],
      [MPI_CFLAGS=`$PKG_CONFIG --cflags ompi-c`
       MPI_LIBS=`$PKG_CONFIG --libs ompi-c`
       CF_MPI_WHERE="by pkg-config ompi-c"])])
  cf_save_LIBS=$LIBS
  cf_save_CPPFLAGS=$CPPFLAGS
  LIBS="$MPI_LIBS $LIBS"
  CPPFLAGS="$CPPFLAGS $MPI_CFLAGS"
  AC_MSG_CHECKING([for MPI])
  AC_LINK_IFELSE(
    [AC_LANG_PROGRAM([[#include <mpi.h>]], [[return MPI_Finalize();]])],
    [AC_MSG_RESULT([$CF_MPI_WHERE])],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([MPI is missing: apt install libopenmpi-dev openmpi-bin, or run scripts/setup])])
  LIBS=$cf_save_LIBS
  CPPFLAGS=$cf_save_CPPFLAGS
  AC_SUBST([MPI_CFLAGS])
  AC_SUBST([MPI_LIBS])
])
