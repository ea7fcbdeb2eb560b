#include "wire.h"

#include <string.h>

static uint64_t take_le(struct cursor *c, size_t bytes)
{
    uint64_t value = 0;

    if (c->bad || (size_t)(c->end - c->at) < bytes) {
        c->bad = true;
        return 0;
    }
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)c->at[i] << (8 * i);
    c->at += bytes;
    return value;
}

uint16_t take_u16(struct cursor *c) { return (uint16_t)take_le(c, 2); }
uint32_t take_u32(struct cursor *c) { return (uint32_t)take_le(c, 4); }
uint64_t take_u64(struct cursor *c) { return take_le(c, 8); }

const char *take_text(struct cursor *c)
{
    const uint8_t *start = c->at;
    const uint8_t *nul = c->bad || c->at == c->end ? NULL : memchr(c->at, 0, (size_t)(c->end - c->at));

    if (!nul) {
        c->bad = true;
        return NULL;
    }
    c->at = nul + 1;
    return (const char *)start;
}

static void put_le(uint8_t *at, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

void put_u32(uint8_t *at, uint32_t value) { put_le(at, value, 4); }
void put_u64(uint8_t *at, uint64_t value) { put_le(at, value, 8); }
