/* dataset_indexed.c - Megatron's indexed data, mapped: .bin, .idx and .mask.
 *
 * PREFIX.idx, version 1, little-endian and packed:
 *
 *     "MMIDIDX\0\0"  u64 version  u8 type of an id
 *     u64 sequences  u64 entries of the document index
 *     i32 length of each sequence, in tokens
 *     i64 where each sequence begins in PREFIX.bin, in bytes
 *     i64 document index: the first sequence of each document, and their count
 *
 * One Megatron sequence is one training sequence, whatever the documents.
 *
 * (1) Nothing of the .idx is believed before it is checked against the size of
 *     the file it speaks of; after open, every read stays inside its map.
 * (2) Nothing in the maps is aligned.
 */
#include "src/dataset_part.h"

#include "src/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAGIC_BYTES = 9,
    VERSION_AT = 9,
    TYPE_AT = 17,
    SEQUENCES_AT = 18,
    DOCUMENTS_AT = 26,
    LENGTHS_AT = 34,
    TYPE_INT32 = 4,
    TYPE_UINT16 = 8
};

typedef struct file_map {
    char *path;
    const unsigned char *bytes; /* NULL when the file is empty */
    size_t size;
} file_map;

typedef struct indexed_part {
    file_map idx;
    file_map bin;
    file_map mask; /* size 0 when there is none */
    uint64_t n;
    uint64_t n_documents; /* entries of the document index */
    size_t id_bytes;
} indexed_part;

/* ---- files ---- */

/* PREFIX with .bin or .idx behind it is fine, too. */
static size_t prefix_length(const char *path)
{
    size_t n = strlen(path);

    if (n > 4 && (strcmp(path + n - 4, ".bin") == 0 ||
                  strcmp(path + n - 4, ".idx") == 0))
        n -= 4;
    return n;
}

/* Sets the path in any case.  CF_IO, not logged, when it cannot be mapped:
 * errno says why. */
static cf_status map_open(const char *prefix, const char *suffix, file_map *map)
{
    size_t n = prefix_length(prefix);
    struct stat info;
    void *bytes;
    int fd;

    map->path = malloc(n + strlen(suffix) + 1);
    if (map->path == NULL)
        return CF_NO_MEMORY;
    memcpy(map->path, prefix, n);
    (void)strcpy(map->path + n, suffix);
    fd = open(map->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return CF_IO;
    if (fstat(fd, &info) != 0)
        goto close_fd;
    if (S_ISDIR(info.st_mode)) {
        errno = EISDIR;
        goto close_fd;
    }
    if (info.st_size > 0) {
        bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED)
            goto close_fd;
        map->bytes = bytes;
        map->size = (size_t)info.st_size;
    }
    (void)close(fd);
    return CF_OK;

close_fd:
    (void)close(fd);
    return CF_IO;
}

static void map_close(file_map *map)
{
    if (map->size > 0)
        (void)munmap((void *)(uintptr_t)map->bytes, map->size);
    free(map->path);
}

static uint64_t load_u64(const unsigned char *at)
{
    uint64_t value;

    memcpy(&value, at, sizeof(value));
    return value;
}

static int32_t load_i32(const unsigned char *at)
{
    int32_t value;

    memcpy(&value, at, sizeof(value));
    return value;
}

/* ---- the index ---- */

static size_t length_at(uint64_t sequence)
{
    return LENGTHS_AT + 4 * sequence;
}

static size_t pointer_at(const indexed_part *part, uint64_t sequence)
{
    return LENGTHS_AT + 4 * part->n + 8 * sequence;
}

static size_t document_at(const indexed_part *part, uint64_t document)
{
    return LENGTHS_AT + 12 * part->n + 8 * document;
}

static uint32_t length_of(const indexed_part *part, uint64_t sequence)
{
    return (uint32_t)load_i32(part->idx.bytes + length_at(sequence));
}

/* Where a sequence begins, in tokens from the start of the .bin. */
static uint64_t first_tok_of(const indexed_part *part, uint64_t sequence)
{
    return load_u64(part->idx.bytes + pointer_at(part, sequence)) /
           part->id_bytes;
}

static uint32_t id_at(const indexed_part *part, uint64_t tok)
{
    const unsigned char *at = part->bin.bytes + tok * part->id_bytes;
    uint16_t narrow;

    if (part->id_bytes == 4)
        return (uint32_t)load_i32(at);
    memcpy(&narrow, at, sizeof(narrow));
    return narrow;
}

static cf_status complain(const file_map *map, size_t offset,
                          const char *problem)
{
    cf_log_error("%s: offset %zu: %s; fetch or write the file again", map->path,
                 offset, problem);
    return CF_MALFORMED;
}

static cf_status check_header(indexed_part *part)
{
    const file_map *idx = &part->idx;
    uint64_t room;

    if (idx->size < LENGTHS_AT)
        return complain(idx, idx->size, "the file ends inside its header");
    if (memcmp(idx->bytes, "MMIDIDX\0", MAGIC_BYTES) != 0)
        return complain(idx, 0, "is not a Megatron index (MMIDIDX)");
    if (load_u64(idx->bytes + VERSION_AT) != 1)
        return complain(idx, VERSION_AT, "is not version 1 of the format");
    if (idx->bytes[TYPE_AT] == TYPE_INT32)
        part->id_bytes = 4;
    else if (idx->bytes[TYPE_AT] == TYPE_UINT16)
        part->id_bytes = 2;
    else
        return complain(idx, TYPE_AT,
                        "ids are neither int32 (4) nor uint16 (8): no other "
                        "type is read");
    part->n = load_u64(idx->bytes + SEQUENCES_AT);
    part->n_documents = load_u64(idx->bytes + DOCUMENTS_AT);
    room = idx->size - LENGTHS_AT;
    if (part->n > room / 12)
        return complain(idx, SEQUENCES_AT,
                        "more sequences than the file has room for");
    room -= 12 * part->n;
    if (part->n_documents > room / 8)
        return complain(idx, DOCUMENTS_AT,
                        "more documents than the file has room for");
    if (room - part->n_documents * 8 == part->n && part->n > 0)
        return complain(idx, document_at(part, part->n_documents),
                        "has one more array, as an index of multimodal data: "
                        "only text is read");
    if (part->n_documents * 8 != room)
        return complain(idx, document_at(part, part->n_documents),
                        "there is more behind the end of the index");
    return CF_OK;
}

static cf_status check_sequence(const indexed_part *part, uint64_t sequence)
{
    const size_t at = pointer_at(part, sequence);
    const int32_t n_tok = load_i32(part->idx.bytes + length_at(sequence));
    const uint64_t pointer = load_u64(part->idx.bytes + at);
    const uint64_t bin_bytes = part->bin.size;

    if (n_tok < 0)
        return complain(&part->idx, length_at(sequence),
                        "a sequence has a negative length");
    if (pointer > bin_bytes ||
        (uint64_t)n_tok * part->id_bytes > bin_bytes - pointer)
        return complain(&part->idx, at,
                        "a sequence lies outside the .bin file: that is cut "
                        "off, or of another index");
    if (pointer % part->id_bytes != 0)
        return complain(&part->idx, at, "a sequence begins inside a token");
    return CF_OK;
}

/* Documents are not used, but an index that contradicts itself is damaged. */
static cf_status check_documents(const indexed_part *part)
{
    uint64_t last = 0;

    for (uint64_t i = 0; i < part->n_documents; i++) {
        const size_t at = document_at(part, i);
        uint64_t first = load_u64(part->idx.bytes + at);

        if (first < last || first > part->n)
            return complain(&part->idx, at,
                            "the document index is not in ascending order, or "
                            "passes the number of sequences");
        last = first;
    }
    return CF_OK;
}

static cf_status check_index(indexed_part *part)
{
    cf_status status = check_header(part);

    for (uint64_t i = 0; status == CF_OK && i < part->n; i++)
        status = check_sequence(part, i);
    if (status == CF_OK)
        status = check_documents(part);
    if (status == CF_OK && part->bin.size % part->id_bytes != 0)
        status = complain(&part->bin, part->bin.size,
                          "the file ends inside a token");
    return status;
}

/* ---- the mask ---- */

/* Only a mask that is not there is no mask. */
static cf_status open_mask(indexed_part *part, const char *prefix)
{
    const file_map *mask = &part->mask;
    const size_t n_tok = part->bin.size / part->id_bytes;
    cf_status status = map_open(prefix, ".mask", &part->mask);
    unsigned char all = 0;

    if (status == CF_IO && errno == ENOENT)
        return CF_OK;
    if (status == CF_IO) {
        cf_log_error("%s: %s; check its permissions, or remove it to train on "
                     "every token",
                     mask->path, strerror(errno));
        return CF_MALFORMED;
    }
    if (status != CF_OK)
        return status;
    if (mask->size != n_tok) {
        cf_log_error("%s: has %zu bytes for %zu tokens of %s; it must have one "
                     "a token: write it again",
                     mask->path, mask->size, n_tok, part->bin.path);
        return CF_MALFORMED;
    }
    for (size_t i = 0; i < n_tok; i++)
        all |= mask->bytes[i];
    if (all <= 1)
        return CF_OK;
    for (size_t i = 0; i < n_tok; i++) {
        if (mask->bytes[i] > 1)
            return complain(mask, i, "is neither 0 nor 1");
    }
    return CF_OK;
}

static int is_target(const indexed_part *part, uint64_t tok)
{
    return part->mask.size == 0 || part->mask.bytes[tok] != 0;
}

/* ---- the part ---- */

static void part_close(void *state)
{
    indexed_part *part = state;

    map_close(&part->idx);
    map_close(&part->bin);
    map_close(&part->mask);
    free(part);
}

static void part_read(const void *state, size_t sequence, uint32_t first_tok,
                      uint32_t n_tok, uint32_t *ids, uint32_t *targets)
{
    const indexed_part *part = state;
    const uint64_t begin = first_tok_of(part, sequence);
    const uint64_t end = begin + length_of(part, sequence);

    for (uint32_t i = 0; i < n_tok; i++) {
        uint64_t tok = begin + first_tok + i;

        ids[i] = id_at(part, tok);
        targets[i] = tok + 1 < end && is_target(part, tok + 1)
                         ? id_at(part, tok + 1)
                         : CF_NO_TARGET;
    }
}

static size_t part_where(const void *state, size_t sequence, char *buf,
                         size_t size)
{
    const indexed_part *part = state;

    return (size_t)snprintf(buf, size, "%s: sequence %zu", part->bin.path,
                            sequence);
}

/* ---- a look at every token ---- */

typedef struct sequence_scan {
    uint64_t hash;
    uint32_t n_targets;
    uint32_t largest; /* id; a negative one is a large one here */
} sequence_scan;

static sequence_scan scan(const indexed_part *part, uint64_t sequence)
{
    enum {
        N = 1024
    };
    const uint32_t n_tok = length_of(part, sequence);
    sequence_scan result = {0};
    cf_tokens_hash hash;
    uint32_t ids[N];
    uint32_t targets[N];

    cf_tokens_hash_begin(&hash);
    for (uint32_t first = 0; first < n_tok;) {
        const uint32_t n = n_tok - first < N ? n_tok - first : N;

        part_read(part, sequence, first, n, ids, targets);
        cf_tokens_hash_append(&hash, ids, targets, n);
        for (uint32_t i = 0; i < n; i++) {
            result.n_targets += targets[i] != CF_NO_TARGET;
            result.largest = ids[i] > result.largest ? ids[i] : result.largest;
        }
        first += n;
    }
    result.hash = cf_tokens_hash_end(&hash);
    return result;
}

static cf_status refuse_id(const indexed_part *part, uint64_t sequence,
                           uint32_t vocab)
{
    uint64_t tok = first_tok_of(part, sequence);
    uint32_t i = 0;

    while (id_at(part, tok + i) < vocab)
        i++;
    cf_log_error("%s: offset %" PRIu64 ": token %" PRIu32
                 " of sequence %" PRIu64 " is %" PRId32
                 ", outside the model's vocabulary of %" PRIu32
                 "; was the data tokenised for this model?",
                 part->bin.path, (tok + i) * part->id_bytes, i, sequence,
                 (int32_t)id_at(part, tok + i), vocab);
    return CF_MALFORMED;
}

/* The sequences of one go: at most SCAN_SEQUENCES, and not much more than
 * SCAN_TOK tokens. */
enum {
    SCAN_SEQUENCES = 4096,
    SCAN_TOK = 1 << 22
};

static uint64_t scan_end(const indexed_part *part, uint64_t first)
{
    uint64_t n_tok = 0;
    uint64_t end = first;

    while (end < part->n && end - first < SCAN_SEQUENCES && n_tok < SCAN_TOK)
        n_tok += length_of(part, end++);
    return end;
}

/* Pages that were looked at are given back, or a large file would stand in the
 * books as memory of this process. */
static void pages_drop(const file_map *map)
{
    if (map->size > 0)
        (void)madvise((void *)(uintptr_t)map->bytes, map->size, MADV_DONTNEED);
}

static cf_status append_sequences(const indexed_part *part, uint32_t vocab,
                                  cf_sequence_table *table)
{
    sequence_scan scans[SCAN_SEQUENCES];
    cf_status status = CF_OK;

    for (uint64_t first = 0, end; first < part->n; first = end) {
        end = scan_end(part, first);
#pragma omp parallel for schedule(dynamic, 16)
        for (uint64_t i = first; i < end; i++)
            scans[i - first] = scan(part, i);
        for (uint64_t i = first; status == CF_OK && i < end; i++) {
            const sequence_scan *s = &scans[i - first];
            const cf_sequence_info info = {.n_tok = length_of(part, i),
                                           .n_targets = s->n_targets,
                                           .hash = s->hash};

            status = info.n_tok > 0 && s->largest >= vocab
                         ? refuse_id(part, i, vocab)
                         : cf_sequence_table_append(table, &info);
        }
        pages_drop(&part->bin);
        pages_drop(&part->mask);
        if (status != CF_OK)
            return status;
    }
    return CF_OK;
}

static cf_status open_pair(indexed_part *part, const char *path)
{
    const char *missing;
    cf_status status = map_open(path, ".idx", &part->idx);

    missing = part->idx.path;
    if (status == CF_OK) {
        status = map_open(path, ".bin", &part->bin);
        missing = part->bin.path;
    }
    if (status == CF_IO) {
        cf_log_error("%s: %s; data is a file named .jsonl, or the prefix of a "
                     ".bin and an .idx file",
                     missing, strerror(errno));
        return CF_MALFORMED;
    }
    return status;
}

cf_status cf_dataset_part_open_indexed(const char *path, uint32_t vocab,
                                       cf_sequence_table *table,
                                       cf_dataset_part *part_p)
{
    indexed_part *part = calloc(1, sizeof(*part));
    cf_status status;

    if (part == NULL)
        return CF_NO_MEMORY;
    status = open_pair(part, path);
    if (status == CF_OK)
        status = check_index(part);
    if (status == CF_OK)
        status = open_mask(part, path);
    if (status == CF_OK)
        status = append_sequences(part, vocab, table);
    if (status != CF_OK) {
        part_close(part);
        return status;
    }
    part_p->state = part;
    part_p->close = part_close;
    part_p->read = part_read;
    part_p->where = part_where;
    return CF_OK;
}
