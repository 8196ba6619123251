/* base.h - the words every room speaks.  Pure C11, usable from C++. */
#ifndef CHUNKFLOW_BASE_H
#define CHUNKFLOW_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CF_VERSION_MAJOR 0
#define CF_VERSION_MINOR 1
#define CF_VERSION_PATCH 0
#define CF_VERSION       "0.1.0"

#if defined(__GNUC__)
#define CF_MUST_USE __attribute__((warn_unused_result))
#else
#define CF_MUST_USE
#endif

/* One list gives the code and the text of every status. */
#define CF_STATUS_MAP(X)                                     \
    X(OK, "success")                                         \
    X(INVALID, "argument outside its documented range")      \
    X(NO_SPACE, "caller's buffer is smaller than its bound") \
    X(OVERFLOW, "a size does not fit its type")              \
    X(NO_MEMORY, "out of memory")                            \
    X(MALFORMED, "data breaks a documented invariant")       \
    X(DEADLOCK, "schedule cannot make progress")             \
    X(IO, "file or socket failed")                           \
    X(DEVICE, "GPU runtime failed")                          \
    X(COMM, "MPI or NCCL failed")                            \
    X(NOT_FINITE, "a loss or gradient is not finite")

typedef enum cf_status {
#define CF_STATUS_ENUM(name, text) CF_##name,
    CF_STATUS_MAP(CF_STATUS_ENUM)
#undef CF_STATUS_ENUM
    CF_STATUS_COUNT
} cf_status;

/* Static text, never NULL, also for a value outside the list. */
const char *cf_status_str(cf_status status);

#ifdef __cplusplus
}
#endif

#endif
