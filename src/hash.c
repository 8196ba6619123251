/* hash.c - see hash.h. */
#include "src/hash.h"

#include <endian.h>
#include <string.h>

static const uint64_t prime1 = 0x9e3779b185ebca87;
static const uint64_t prime2 = 0xc2b2ae3d27d4eb4f;
static const uint64_t prime3 = 0x165667b19e3779f9;
static const uint64_t prime4 = 0x85ebca77c2b2ae63;
static const uint64_t prime5 = 0x27d4eb2f165667c5;

static uint64_t rotate(uint64_t x, unsigned bits)
{
    return x << bits | x >> (64 - bits);
}

static uint64_t read64(const unsigned char *at)
{
    uint64_t x;

    memcpy(&x, at, sizeof(x));
    return le64toh(x);
}

static uint32_t read32(const unsigned char *at)
{
    uint32_t x;

    memcpy(&x, at, sizeof(x));
    return le32toh(x);
}

static uint64_t round_of(uint64_t lane, uint64_t input)
{
    return rotate(lane + input * prime2, 31) * prime1;
}

/* Whole blocks; returns the first byte behind them. */
static const unsigned char *take_blocks(cf_hash *hash, const unsigned char *at,
                                        size_t n)
{
    uint64_t a = hash->lanes[0], b = hash->lanes[1];
    uint64_t c = hash->lanes[2], d = hash->lanes[3];

    for (; n >= CF_HASH_BLOCK_BYTES; n -= CF_HASH_BLOCK_BYTES) {
        a = round_of(a, read64(at));
        b = round_of(b, read64(at + 8));
        c = round_of(c, read64(at + 16));
        d = round_of(d, read64(at + 24));
        at += CF_HASH_BLOCK_BYTES;
    }
    hash->lanes[0] = a;
    hash->lanes[1] = b;
    hash->lanes[2] = c;
    hash->lanes[3] = d;
    return at;
}

static void begin(cf_hash *hash, uint64_t seed)
{
    *hash = (cf_hash){
        .lanes = {seed + prime1 + prime2, seed + prime2, seed, seed - prime1},
    };
}

void cf_hash_begin(cf_hash *hash)
{
    begin(hash, 0);
}

void cf_hash_append(cf_hash *hash, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    size_t n_rest = hash->n_bytes % CF_HASH_BLOCK_BYTES;

    hash->n_bytes += n;
    if (n_rest > 0) {
        size_t n_now = CF_HASH_BLOCK_BYTES - n_rest;

        if (n_now > n)
            n_now = n;
        memcpy(hash->rest + n_rest, at, n_now);
        at += n_now;
        n -= n_now;
        if (n_rest + n_now < CF_HASH_BLOCK_BYTES)
            return;
        (void)take_blocks(hash, hash->rest, CF_HASH_BLOCK_BYTES);
    }
    at = take_blocks(hash, at, n);
    if (n % CF_HASH_BLOCK_BYTES > 0)
        memcpy(hash->rest, at, n % CF_HASH_BLOCK_BYTES);
}

static uint64_t merge_lanes(const uint64_t *lanes)
{
    uint64_t h = rotate(lanes[0], 1) + rotate(lanes[1], 7) +
                 rotate(lanes[2], 12) + rotate(lanes[3], 18);

    for (size_t i = 0; i < 4; i++)
        h = (h ^ round_of(0, lanes[i])) * prime1 + prime4;
    return h;
}

uint64_t cf_hash_end(const cf_hash *hash)
{
    const unsigned char *at = hash->rest;
    size_t n = hash->n_bytes % CF_HASH_BLOCK_BYTES;
    uint64_t h = hash->n_bytes < CF_HASH_BLOCK_BYTES ? hash->lanes[2] + prime5
                                                     : merge_lanes(hash->lanes);

    h += hash->n_bytes;
    for (; n >= 8; n -= 8, at += 8)
        h = rotate(h ^ round_of(0, read64(at)), 27) * prime1 + prime4;
    for (; n >= 4; n -= 4, at += 4)
        h = rotate(h ^ read32(at) * prime1, 23) * prime2 + prime3;
    for (; n > 0; n--, at++)
        h = rotate(h ^ *at * prime5, 11) * prime1;
    h = (h ^ h >> 33) * prime2;
    h = (h ^ h >> 29) * prime3;
    return h ^ h >> 32;
}

uint64_t cf_hash_of(const void *bytes, size_t n, uint64_t seed)
{
    cf_hash hash;

    begin(&hash, seed);
    cf_hash_append(&hash, bytes, n);
    return cf_hash_end(&hash);
}
