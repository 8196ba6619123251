/* dataset_laws.h - what holds for every data set that can be opened. */
#ifndef CF_DATASET_LAWS_H
#define CF_DATASET_LAWS_H

#include <stddef.h>

/* Open a --data that n bytes of input were written to, hold the laws, close. */
void dataset_laws_hold(const char *path, size_t n);

#endif
