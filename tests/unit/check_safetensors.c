/* check_safetensors.c - what is read is what was written, and nothing else. */
#include "src/safetensors.h"

#include "src/convert.h"
#include "tests/lib/alone.h"
#include "tests/lib/temp_folder.h"

#include <check.h>
#include <endian.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file of a header, spaces in front of its data, and n_data bytes that count
 * up from 0. */
static void write_file(const char *folder, const char *name, const char *header,
                       size_t n_data)
{
    unsigned char bytes[4096];
    uint64_t n = strlen(header), length = htole64(n);

    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < n_data; i++)
        bytes[8 + n + i] = (unsigned char)i;
    temp_file_write(folder, name, bytes, 8 + n + n_data);
}

static cf_status open_folder(const char *folder, cf_tensors **tensors_p,
                             captured_log *log)
{
    cf_status status;

    captured_log_begin(log);
    status = cf_tensors_open_folder(folder, tensors_p);
    captured_log_end(log);
    return status;
}

static void assert_refused(const char *folder, const char *part)
{
    cf_tensors *tensors;
    captured_log log;

    ck_assert_int_eq(open_folder(folder, &tensors, &log), CF_MALFORMED);
    ck_assert_msg(captured_log_is_error(&log, part), "wanted %s, got %s", part,
                  log.text);
}

/* ---- conversions ---- */

static float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, 4);
    return x;
}

/* The value of an F16 by its definition. */
static double f16_value(uint16_t h)
{
    int exponent = (h >> 10) & 31, mantissa = h & 1023;
    double magnitude = exponent == 0 ? ldexp(mantissa, -24)
                                     : ldexp(1024 + mantissa, exponent - 25);

    if (exponent == 31)
        magnitude = mantissa == 0 ? INFINITY : NAN;
    return h & 0x8000 ? -magnitude : magnitude;
}

static double bf16_value(uint16_t h)
{
    return (double)float_of((uint32_t)h << 16);
}

static uint16_t to_16(cf_dtype dtype, cf_compute compute, double x)
{
    float single = (float)x;
    uint16_t h;

    cf_convert_write(compute, 1,
                     compute == CF_COMPUTE_FP64 ? (void *)&x : (void *)&single,
                     dtype, &h);
    return h;
}

START_TEST(every_16_bit_value_is_read_exactly_and_comes_back)
{
    static const cf_dtype TYPES[] = {CF_DTYPE_F16, CF_DTYPE_BF16};

    for (size_t t = 0; t < 2; t++)
        for (uint32_t bits = 0; bits < 0x10000; bits++) {
            uint16_t h = (uint16_t)bits;
            double want = t == 0 ? f16_value(h) : bf16_value(h), wide;
            float single;

            cf_convert_read(TYPES[t], 1, &h, CF_COMPUTE_FP64, &wide);
            cf_convert_read(TYPES[t], 1, &h, CF_COMPUTE_FP32, &single);
            if (isnan(want)) {
                ck_assert(isnan(wide) && isnan(single));
                h = to_16(TYPES[t], CF_COMPUTE_FP32, NAN);
                cf_convert_read(TYPES[t], 1, &h, CF_COMPUTE_FP32, &single);
                ck_assert(isnan(single));
                continue;
            }
            ck_assert(wide == want && (double)single == want);
            ck_assert(signbit(wide) == signbit(want));
            ck_assert_uint_eq(to_16(TYPES[t], CF_COMPUTE_FP64, want), h);
            ck_assert_uint_eq(to_16(TYPES[t], CF_COMPUTE_FP32, want), h);
        }
}
END_TEST

/* Between two neighbours: below the middle down, above it up, at it to even,
 * however close; both as float (where it can say it) and as double. */
START_TEST(rounding_is_to_nearest_even_in_one_step)
{
    for (size_t t = 0; t < 2; t++) {
        cf_dtype dtype = t == 0 ? CF_DTYPE_F16 : CF_DTYPE_BF16;
        uint32_t largest = t == 0 ? 0x7bff : 0x7f7f;

        for (uint32_t h = 0; h < largest; h++) {
            double a =
                t == 0 ? f16_value((uint16_t)h) : bf16_value((uint16_t)h);
            double b = t == 0 ? f16_value((uint16_t)(h + 1))
                              : bf16_value((uint16_t)(h + 1));
            double middle = (a + b) / 2;
            uint32_t even = h + (h & 1);

            ck_assert_uint_eq(to_16(dtype, CF_COMPUTE_FP64, middle), even);
            ck_assert_uint_eq(to_16(dtype, CF_COMPUTE_FP32, middle), even);
            ck_assert_uint_eq(to_16(dtype, CF_COMPUTE_FP64, -middle),
                              even | 0x8000);
            ck_assert_uint_eq(
                to_16(dtype, CF_COMPUTE_FP64, nextafter(middle, b)), h + 1);
            ck_assert_uint_eq(
                to_16(dtype, CF_COMPUTE_FP64, nextafter(middle, a)), h);
        }
        /* Half a step beyond the largest is Inf. */
        ck_assert_uint_eq(to_16(dtype, CF_COMPUTE_FP64, 1e300), largest + 1);
        ck_assert_uint_eq(to_16(dtype, CF_COMPUTE_FP32, INFINITY), largest + 1);
        ck_assert_uint_eq(to_16(dtype, CF_COMPUTE_FP64, -1e300),
                          0x8000 | (largest + 1));
        ck_assert_uint_eq(to_16(dtype, CF_COMPUTE_FP64, 5e-324), 0);
    }
    ck_assert_uint_eq(to_16(CF_DTYPE_F16, CF_COMPUTE_FP32, 65519.0), 0x7bff);
    ck_assert_uint_eq(to_16(CF_DTYPE_F16, CF_COMPUTE_FP32, 65520.0), 0x7c00);
}
END_TEST

/* ---- round trip ---- */

enum {
    N_LARGE = 300000
};

START_TEST(what_is_written_is_read_in_every_type)
{
    static const cf_compute COMPUTE[] = {CF_COMPUTE_FP32, CF_COMPUTE_FP64,
                                         CF_COMPUTE_BF16};
    char *folder = temp_folder_open();
    char path[256];

    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    for (size_t c = 0; c < 3; c++) {
        bool wide = COMPUTE[c] == CF_COMPUTE_FP64;
        size_t bytes = wide ? sizeof(double) : sizeof(float);
        char *data = calloc(N_LARGE, bytes), *back = calloc(N_LARGE, bytes);
        cf_tensor_source sources[] = {
            {"b.bf16", CF_DTYPE_BF16, 2, {3, 100000}, data},
            {"a.f32", CF_DTYPE_F32, 1, {7}, data},
            {"d.f64", CF_DTYPE_F64, 4, {1, 5, 2, 3}, data},
            {"c.\"f16\"", CF_DTYPE_F16, 1, {5}, data},
            {"e.scalar", CF_DTYPE_F32, 0, {0}, data},
            {"f.none", CF_DTYPE_F32, 2, {4, 0}, data},
        };
        cf_tensors *tensors;

        /* Multiples of 1/8 up to 16: exact in every type. */
        for (int i = 0; i < N_LARGE; i++) {
            double x = (i * 37 % 256 - 128) / 8.0;
            float single = (float)x;

            memcpy(data + (size_t)i * bytes,
                   wide ? (void *)&x : (void *)&single, bytes);
        }
        ck_assert_int_eq(
            cf_tensors_write(alone(), path, COMPUTE[c], sources, 6), CF_OK);
        ck_assert_uint_eq(temp_folder_count(folder), 1);
        ck_assert_int_eq(cf_tensors_open_folder(folder, &tensors), CF_OK);
        ck_assert_uint_eq(cf_tensors_count(tensors), 6);
        for (size_t i = 0; i < 6; i++) {
            const cf_tensor *t = cf_tensors_find(tensors, sources[i].name);

            ck_assert_ptr_nonnull(t);
            ck_assert_str_eq(t->path, path);
            ck_assert_int_eq(t->dtype, sources[i].dtype);
            ck_assert_uint_eq(t->n_dims, sources[i].n_dims);
            ck_assert_mem_eq(t->dims, sources[i].dims,
                             sizeof(t->dims[0]) * t->n_dims);
            ck_assert_uint_eq((uintptr_t)t->data % cf_dtype_bytes(t->dtype), 0);
            memset(back, 0xff, N_LARGE * bytes);
            cf_tensor_read(t, 0, t->n, COMPUTE[c], back);
            ck_assert(memcmp(back, data, t->n * bytes) == 0);
            cf_tensor_release(t);
            if (t->n < 5)
                continue;
            cf_tensor_read(t, 3, 2, COMPUTE[c], back);
            ck_assert_mem_eq(back, data + 3 * bytes, 2 * bytes);
        }
        for (size_t i = 1; i < 6; i++)
            ck_assert_str_gt(cf_tensors_at(tensors, i)->name,
                             cf_tensors_at(tensors, i - 1)->name);
        ck_assert_ptr_null(cf_tensors_find(tensors, "no.such"));
        cf_tensors_close(tensors);
        free(data);
        free(back);
    }
    temp_folder_close(folder);
}
END_TEST

START_TEST(a_file_that_cannot_be_written_is_one_line)
{
    float x = 1;
    cf_tensor_source source = {"x", CF_DTYPE_F32, 1, {1}, &x};
    captured_log log;

    captured_log_begin(&log);
    ck_assert_int_eq(
        cf_tensors_write(alone(), "/no/such/f", CF_COMPUTE_FP32, &source, 1),
        CF_IO);
    captured_log_end(&log);
    ck_assert(captured_log_is_error(&log, "/no/such/f: cannot create it: No "
                                          "such file or directory"));
}
END_TEST

/* 65519 rounds down to what F16 ends at, 65520 rounds to Inf. */
START_TEST(a_value_too_large_for_its_type_is_one_line_and_no_file)
{
    static const struct {
        float value;
        cf_dtype dtype;
        bool fits;
    } cases[] = {
        {65519, CF_DTYPE_F16, true},     {65520, CF_DTYPE_F16, false},
        {-65520, CF_DTYPE_F16, false},   {3.38e38f, CF_DTYPE_BF16, true},
        {3.4e38f, CF_DTYPE_BF16, false}, {3.4e38f, CF_DTYPE_F32, true},
        {INFINITY, CF_DTYPE_F32, false}, {NAN, CF_DTYPE_F64, false},
    };
    char *folder = temp_folder_open();
    char path[256];

    snprintf(path, sizeof(path), "%s/x.safetensors", folder);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const float values[3] = {1, cases[i].value, 0};
        const cf_tensor_source source = {
            "the.name", cases[i].dtype, 1, {3}, values};
        captured_log log;
        cf_status status;

        captured_log_begin(&log);
        status = cf_tensors_write(alone(), path, CF_COMPUTE_FP32, &source, 1);
        captured_log_end(&log);
        ck_assert_int_eq(status, cases[i].fits ? CF_OK : CF_OVERFLOW);
        ck_assert(cases[i].fits ||
                  captured_log_is_error(&log, "tensor 'the.name' has a value"));
        ck_assert_uint_eq(temp_folder_count(folder), cases[i].fits);
        if (cases[i].fits)
            ck_assert_int_eq(remove(path), 0);
    }
    temp_folder_close(folder);
}
END_TEST

/* ---- bad files ---- */

#define F32_2(begin, end)               \
    "{\"dtype\":\"F32\",\"shape\":[2]," \
    "\"data_offsets\":[" #begin "," #end "]}"

static const struct bad_file {
    const char *header;
    size_t n_data;
    const char *part;
} BAD[] = {
    {"{\"a\":" F32_2(0, 8) "}", 5,
     "truncated: 3 bytes of data are missing (tensor \"a\""},
    {"{\"a\":" F32_2(0, 8) "}", 11, "last 3 bytes belong to no tensor"},
    {"{\"a\":" F32_2(0, 8) ",\"b\":" F32_2(4, 12) "}", 12,
     "tensor \"b\" begins at byte 4 of the data, but the one before it ends at "
     "byte 8: they overlap"},
    {"{\"a\":" F32_2(0, 8) ",\"b\":" F32_2(12, 20) "}", 20,
     "tensor \"b\" begins at byte 12 of the data, but the one before it ends "
     "at byte 8: there is a hole"},
    {"{\"a\":" F32_2(9223372036854775799, 9223372036854775807) "}", 8,
     "tensor \"a\" begins at byte 9223372036854775799"},
    {"{\"a\":" F32_2(8, 0) "}", 8, "tensor \"a\" has bad data_offsets"},
    {"{\"a\":" F32_2(-8, 0) "}", 8, "tensor \"a\" has bad data_offsets"},
    {"{\"a\":" F32_2(0.0, 8) "}", 8, "tensor \"a\" has bad data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8,
     "tensor \"a\" has bad data_offsets"},
    {"{\"a\":" F32_2(0, 4) "}", 4, "tensor \"a\" has 4 bytes of data, but"},
    {"{\"a\":" F32_2(0, 8) ",\"a\":" F32_2(8, 16) "}", 16,
     "header is not a JSON object: duplicate object key"},
    {"{\"a\":{\"dtype\":\"I8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8,
     "tensor \"a\" has dtype \"I8\", which is not supported"},
    {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8,
     "tensor \"a\" has dtype \"F8_E4M3\""},
    {"{\"a\":{\"shape\":[8],\"data_offsets\":[0,8]}}", 8,
     "tensor \"a\" has dtype \"(none)\""},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8,
     "tensor \"a\" has no shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,2],"
     "\"data_offsets\":[0,8]}}",
     8, "tensor \"a\" has no shape of at most 4 dimensions"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,-1],\"data_offsets\":[0,8]}}", 8,
     "tensor \"a\" has a bad shape (dimension 1)"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8,
     "tensor \"a\" has a bad shape (dimension 0)"},
    /* 2^32 * 2^32 and 2^62 * 4 bytes are 0 in 64 bits. */
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],"
     "\"data_offsets\":[0,0]}}",
     0, "tensor \"a\" has a bad shape (dimension 1)"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],"
     "\"data_offsets\":[0,0]}}",
     0, "tensor \"a\" has 0 bytes of data, but"},
    {"{\"a\":3}", 0, "tensor \"a\" has dtype \"(none)\""},
    {"[]", 0, "header is not a JSON object"},
    {"{", 0, "header is not a JSON object"},
    {"", 0, "header is not a JSON object"},
};

START_TEST(a_bad_file_is_one_line_naming_file_and_tensor)
{
    const struct bad_file *bad = &BAD[_i];
    char *folder = temp_folder_open();

    write_file(folder, "model.safetensors", bad->header, bad->n_data);
    assert_refused(folder, bad->part);
    assert_refused(folder, "/model.safetensors: ");
    temp_folder_close(folder);
}
END_TEST

START_TEST(metadata_and_tensors_in_any_order_are_fine)
{
    char *folder = temp_folder_open();
    const unsigned char *data;
    cf_tensors *tensors;

    write_file(folder, "model.safetensors",
               "{\"z\":" F32_2(
                   0, 8) ",\"__metadata__\":{\"format\":\"pt\"},"
                         "\"a\":" F32_2(
                             8, 16) ",\"e\":{\"dtype\":\"F16\",\"shape\":[0],"
                                    "\"data_offsets\":[8,8]}}   ",
               16);
    ck_assert_int_eq(cf_tensors_open_folder(folder, &tensors), CF_OK);
    ck_assert_uint_eq(cf_tensors_count(tensors), 3);
    data = cf_tensors_find(tensors, "a")->data;
    ck_assert_uint_eq(data[0], 8);
    data = cf_tensors_find(tensors, "z")->data;
    ck_assert_uint_eq(data[0], 0);
    cf_tensors_close(tensors);
    temp_folder_close(folder);
}
END_TEST

START_TEST(a_lying_header_length_is_refused)
{
    static const struct {
        uint64_t length;
        size_t n;
        const char *part;
    } CASES[] = {
        {0, 0, "empty, or not a file"},
        {0, 7, "truncated: only 7 bytes"},
        {5, 8, "truncated: its header has 5 bytes, 5 of them are missing"},
        {100000000, 16, "its header has 100000000 bytes, 99999992 of them"},
        {100000001, 16, "header claims 100000001 bytes, more than the format"},
        {UINT64_MAX, 16, "header claims 18446744073709551615 bytes"},
        {UINT64_MAX - 7, 16, "more than the format allows"},
    };
    char *folder = temp_folder_open();

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        unsigned char bytes[16] = {0};
        uint64_t length = htole64(CASES[i].length);

        memcpy(bytes, &length, 8);
        temp_file_write(folder, "model.safetensors", bytes, CASES[i].n);
        assert_refused(folder, CASES[i].part);
    }
    temp_folder_close(folder);
}
END_TEST

START_TEST(a_folder_without_weights_is_one_line)
{
    char *folder = temp_folder_open();
    char path[256];

    assert_refused("/no/such/folder", "/no/such/folder: cannot open the model "
                                      "folder: No such file");
    assert_refused(folder, "no model.safetensors and no");
    temp_file_write_text(folder, "x", "");
    snprintf(path, sizeof(path), "%s/x", folder);
    assert_refused(path, "/x: not a folder");
    temp_folder_close(folder);
}
END_TEST

/* ---- shards ---- */

static const char INDEX[] = "model.safetensors.index.json";

START_TEST(shards_are_one_set_of_tensors)
{
    char *folder = temp_folder_open();
    cf_tensors *tensors;

    write_file(folder, "one.safetensors",
               "{\"b\":" F32_2(0, 8) ",\"d\":" F32_2(8, 16) "}", 16);
    write_file(folder, "two.safetensors",
               "{\"c\":" F32_2(0, 8) ",\"a\":" F32_2(8, 16) "}", 16);
    temp_file_write_text(folder, INDEX,
                         "{\"metadata\":{},\"weight_map\":{"
                         "\"b\":\"one.safetensors\",\"a\":\"two.safetensors\","
                         "\"d\":\"one.safetensors\","
                         "\"c\":\"two.safetensors\"}}");
    ck_assert_int_eq(cf_tensors_open_folder(folder, &tensors), CF_OK);
    ck_assert_uint_eq(cf_tensors_count(tensors), 4);
    for (size_t i = 0; i < 4; i++) {
        const cf_tensor *t = cf_tensors_at(tensors, i);

        ck_assert_int_eq(t->name[0], "abcd"[i]);
        ck_assert_ptr_nonnull(strstr(t->path, i % 2 ? "/one." : "/two."));
    }
    cf_tensors_close(tensors);
    temp_folder_close(folder);
}
END_TEST

START_TEST(a_bad_index_is_one_line)
{
    static const struct {
        const char *index, *part;
    } CASES[] = {
        {"{", "index.json: line 1"},
        {"{}", "index.json: field \"weight_map\" must be an object"},
        {"{\"weight_map\":{}}", "field \"weight_map\" must be an object"},
        {"{\"weight_map\":{\"a\":3}}", "tensor \"a\" is not given the name"},
        {"{\"weight_map\":{\"a\":\"../one.safetensors\"}}",
         "tensor \"a\" is not given the name of a file in this folder"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}",
         "tensor \"a\" is not given the name of a file in this folder"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "tensor \"a\" is not given"},
        {"{\"weight_map\":{\"a\":\"\"}}", "tensor \"a\" is not given"},
        {"{\"weight_map\":{\"a\":\"none.safetensors\"}}",
         "/none.safetensors: cannot open it: No such file"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\","
         "\"x\":\"one.safetensors\"}}",
         "tensor \"x\" is not in one.safetensors as it says"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\","
         "\"b\":\"one.safetensors\",\"c\":\"two.safetensors\"}}",
         "tensor \"b\" is not in one.safetensors as it says"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\","
         "\"b\":\"same.safetensors\"}}",
         "tensor \"a\" is also in "},
    };
    char *folder = temp_folder_open();

    write_file(folder, "one.safetensors", "{\"a\":" F32_2(0, 8) "}", 8);
    write_file(folder, "same.safetensors", "{\"a\":" F32_2(0, 8) "}", 8);
    write_file(folder, "two.safetensors",
               "{\"b\":" F32_2(0, 8) ",\"c\":" F32_2(8, 16) "}", 16);
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        temp_file_write_text(folder, INDEX, CASES[i].index);
        assert_refused(folder, CASES[i].part);
    }
    temp_folder_close(folder);
}
END_TEST

/* Every truncation is refused; any other damage is refused or harmless. */
START_TEST(damaged_files_never_crash)
{
    const unsigned seed = 20250102;
    char *folder = temp_folder_open();
    float values[8] = {1, 2, 3, 4, 5, 6, 7, 8}, back[8];
    cf_tensor_source sources[] = {
        {"a", CF_DTYPE_F32, 2, {2, 4}, values},
        {"b", CF_DTYPE_BF16, 1, {5}, values},
    };
    char path[256];
    char *good, *bytes;
    size_t n;

    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    ck_assert_int_eq(
        cf_tensors_write(alone(), path, CF_COMPUTE_FP32, sources, 2), CF_OK);
    good = temp_file_read(folder, "model.safetensors", &n);
    bytes = malloc(n);
    srand(seed);
    for (size_t round = 0; round < n + 4000; round++) {
        size_t length = round < n ? round : n;
        cf_tensors *tensors;
        captured_log log;
        cf_status status;

        memcpy(bytes, good, n);
        for (int flip = rand() % 3; round >= n && flip >= 0; flip--)
            bytes[(size_t)rand() % n] = (char)(rand() % 256);
        temp_file_write(folder, "model.safetensors", bytes, length);
        status = open_folder(folder, &tensors, &log);
        if (status != CF_OK) {
            ck_assert_msg(captured_log_is_error(&log, "/model.safetensors: "),
                          "seed %u round %zu: %s", seed, round, log.text);
            continue;
        }
        ck_assert_msg(round >= n, "length %zu was accepted", length);
        for (size_t i = 0; i < cf_tensors_count(tensors); i++) {
            const cf_tensor *t = cf_tensors_at(tensors, i);

            cf_tensor_read(t, 0, t->n < 8 ? t->n : 8, CF_COMPUTE_FP32, back);
        }
        cf_tensors_close(tensors);
    }
    free(bytes);
    free(good);
    temp_folder_close(folder);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("safetensors");
    TCase *cases = tcase_create("safetensors");
    SRunner *runner;
    int failed;

    tcase_add_test(cases, every_16_bit_value_is_read_exactly_and_comes_back);
    tcase_add_test(cases, rounding_is_to_nearest_even_in_one_step);
    tcase_add_test(cases, what_is_written_is_read_in_every_type);
    tcase_add_test(cases, a_file_that_cannot_be_written_is_one_line);
    tcase_add_test(cases,
                   a_value_too_large_for_its_type_is_one_line_and_no_file);
    tcase_add_loop_test(cases, a_bad_file_is_one_line_naming_file_and_tensor, 0,
                        sizeof(BAD) / sizeof(BAD[0]));
    tcase_add_test(cases, metadata_and_tensors_in_any_order_are_fine);
    tcase_add_test(cases, a_lying_header_length_is_refused);
    tcase_add_test(cases, a_folder_without_weights_is_one_line);
    tcase_add_test(cases, shards_are_one_set_of_tensors);
    tcase_add_test(cases, a_bad_index_is_one_line);
    tcase_add_test(cases, damaged_files_never_crash);
    tcase_set_timeout(cases, 120);
    suite_add_tcase(suite, cases);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
