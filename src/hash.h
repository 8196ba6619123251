/* hash.h - a fast 64-bit hash of content: to tell files apart and to find
 * damage, not to keep out anyone who means harm.
 *
 * XXH64 (Yann Collet's xxHash, doc/xxhash_spec.md), so that other tools can
 * check what is written down here.
 */
#ifndef CF_HASH_H
#define CF_HASH_H

#include <stddef.h>
#include <stdint.h>

enum {
    CF_HASH_BLOCK_BYTES = 32
};

typedef struct cf_hash {
    uint64_t lanes[4];
    uint64_t n_bytes;
    unsigned char rest[CF_HASH_BLOCK_BYTES]; /* n_bytes % 32 of them */
} cf_hash;

/* With seed 0. */
void cf_hash_begin(cf_hash *hash);
void cf_hash_append(cf_hash *hash, const void *bytes, size_t n);

/* The hash of everything appended so far. */
uint64_t cf_hash_end(const cf_hash *hash);

/* The hash of n bytes. */
uint64_t cf_hash_of(const void *bytes, size_t n, uint64_t seed);

#endif
