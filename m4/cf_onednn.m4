# CF_ONEDNN - whether bf16 matrix products by oneDNN are built in.
#
# Only its headers are needed: the program loads the library when it is asked for
# bf16 on a processor with AMX, and does without where it is not installed.
AC_DEFUN([CF_ONEDNN], [
  AC_ARG_WITH([onednn],
    [AS_HELP_STRING([--with-onednn],
      [bf16 matrix products by oneDNN, for AMX [if its headers are there]])],
    [], [with_onednn=auto])
  cf_have_onednn=no
  CF_ONEDNN_WHERE="no, as asked: bf16 is computed by fp32 units"
  AS_IF([test "x$with_onednn" != xno],
    [AC_MSG_CHECKING([for oneDNN 2 or 3])
     AC_COMPILE_IFELSE(
       [AC_LANG_PROGRAM([[#include <dnnl.h>
                          #if DNNL_VERSION_MAJOR != 2 && DNNL_VERSION_MAJOR != 3
                          #error "another API"
                          #endif]],
                        [[(void)dnnl_memory_create;]])],
       [cf_have_onednn=yes])
     AC_MSG_RESULT([$cf_have_onednn])
     AS_IF([test "x$cf_have_onednn" = xyes],
       [CF_ONEDNN_WHERE="yes, loaded where a processor has AMX"
        AC_SEARCH_LIBS([dlopen], [dl])],
       [test "x$with_onednn" != xauto],
       [AC_MSG_ERROR([the headers of oneDNN 2 or 3 are missing: apt install libdnnl-dev, or leave --with-onednn out])],
       [CF_ONEDNN_WHERE="no: bf16 is computed by fp32 units (apt install libdnnl-dev)"])])
  AM_CONDITIONAL([HAVE_ONEDNN], [test "x$cf_have_onednn" = xyes])
])
