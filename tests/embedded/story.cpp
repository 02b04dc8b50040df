// main.cpp as a test: behind its text stand the stack it used and checksums (FNV-1a) of the logits' bits and of the ids.
#define main example
#define put told
#include "main.cpp"
#undef put
#undef main

#if __STDC_HOSTED__
#include <stdio.h>
static void put(const char* text, uint32_t n) { fwrite(text, 1, n, stdout); }
static uint32_t stack_used() { return 0; }
#else
void put(const char* text, uint32_t n);                        // startup.cpp
uint32_t stack_used();
#endif

static uint32_t of_logits = 2166136261u, of_ids = 2166136261u;

static void hash(uint32_t* sum, const void* words, uint32_t n) // a word's bytes from the low end, on every machine
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, static_cast<const unsigned char*>(words) + 4 * i, 4);
        for (uint32_t shift = 0; shift < 32; shift += 8) *sum = (*sum ^ (word >> shift & 255)) * 16777619u;
    }
}

static void number(const char* name, uint32_t x)
{
    char digits[10] = {};
    for (uint32_t i = 0; i < 8; i++) digits[i] = "0123456789abcdef"[x >> (28 - 4 * i) & 15];
    put(name, static_cast<uint32_t>(strlen(name)));
    put(digits, 8);
}

void told(const char* text, uint32_t n)
{
    if (session.logits) hash(&of_logits, session.logits, model::config.n_outputs);
    put(text, n);
}

int main()
{
    static int32_t ids[256];
    options.tokens = ids;
    const int code = example();
    hash(&of_ids, ids, options.max_tokens);
    number("\nlogits ", of_logits);
    number(" ids ", of_ids);
    number(" stack ", stack_used());
    put("\n", 1);
    return code;
}
