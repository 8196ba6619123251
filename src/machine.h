/* machine.h - what the machine offers this process. */
#ifndef CF_MACHINE_H
#define CF_MACHINE_H

#include <chunkflow/base.h>

#include <stddef.h>
#include <stdint.h>

/* RAM, or the limit of the process's cgroup when that is less. */
size_t cf_machine_memory_bytes(void);

/* Whether OpenBLAS has the room for its buffer, which it asks for in its first
 * product, and over and over when there is none.  Errors, logged: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_machine_check_gemm(void);

/* The name of the processor, as the system has it; "unknown" when it has none.
 * Returns buf. */
const char *cf_machine_cpu(char *buf, size_t size);

/* Largest resident set of this process so far; 0 when unknown. */
size_t cf_machine_resident_peak_bytes(void);

#endif
