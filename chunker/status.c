/* status.c - a status in words.
 *
 * (1) Every value has a text, also one outside the list.
 */
#include <chunkflow/base.h>

const char *cf_status_str(cf_status status)
{
    switch (status) {
#define STATUS_CASE(name, text) \
    case CF_##name:             \
        return text;
        CF_STATUS_MAP(STATUS_CASE)
#undef STATUS_CASE
    case CF_STATUS_COUNT:
        break;
    }
    return "unknown status";
}
