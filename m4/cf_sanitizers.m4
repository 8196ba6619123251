# CF_SANITIZERS - build everything under AddressSanitizer and UBSan.
AC_DEFUN([CF_SANITIZERS], [
  AC_ARG_ENABLE([sanitizers],
    [AS_HELP_STRING([--enable-sanitizers], [build with AddressSanitizer and UBSan])],
    [], [enable_sanitizers=no])
  CF_SANITIZERS_ON=$enable_sanitizers
  AS_IF([test "x$enable_sanitizers" = xyes],
    [SANITIZER_FLAGS="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"])
  AC_SUBST([SANITIZER_FLAGS])
])
