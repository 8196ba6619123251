/* machine.h - what the machine offers this process. */
#ifndef CF_MACHINE_H
#define CF_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* RAM, or the limit of the process's cgroup when that is less. */
size_t cf_machine_memory_bytes(void);

/* Largest resident set of this process so far; 0 when unknown. */
size_t cf_machine_resident_peak_bytes(void);

#endif
