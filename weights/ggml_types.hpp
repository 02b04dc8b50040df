// weights/ggml_types.hpp - the number formats of ggml: rows of blocks to f32, and to tiles of the
// checkpoint
//
// A row is cut into blocks of 32 or 256 values that share their scales. decode() gives what ggml
// gives, bit for bit: the same operations in the same order, each rounded to f32. tile() packs 16
// rows as transformer.hpp stores them:
//
//     kept to the bit         Q8_0, Q5_0, IQ4_NL, MXFP4 -> q8_0; Q4_0 -> q4_0; Q4_1 -> q4_1
//     scales rounded to f16   Q8_K, IQ4_XS -> q8_0; Q4_K -> q4_1 (its groups of 32 with scale and minimum are ours)
//     rounded anew            Q5_1, Q2_K, Q3_K, Q5_K, Q6_K -> q8_0
//
// README.md says what each of them costs.
#ifndef TRANSFORMER_WEIGHTS_GGML_TYPES_HPP
#define TRANSFORMER_WEIGHTS_GGML_TYPES_HPP

#include "../transformer.hpp"
#include "files.hpp"

namespace weights {

using transformer::DType;

struct GgmlType {
    uint32_t id;
    const char* name;
    uint32_t block, bytes; // values and bytes of a block
    DType stored;          // what it becomes when no type is asked for
    void (*decode)(const unsigned char* blocks, uint64_t n_blocks,
                   float* out); // null: known by name only
    // rows[r] (null: missing) of `cols` values, a multiple of 32, as one tile of `stored`.
    void (*tile)(const unsigned char* const* rows, uint32_t cols, unsigned char* out);
};
inline const GgmlType* ggml_type(uint32_t id);

// Products and sums are rounded one by one, whatever the flags. That a comparison may trap keeps
// g++ from vector code; it changes no value.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=off", "no-trapping-math")
#elif defined(__clang__)
#pragma float_control(precise, on, push)
#pragma clang fp contract(off)
#endif

namespace ggml {

using Bytes = const unsigned char*;

// ---- Numbers ------------------------------------------------------------------------------------

inline float of_bits(uint32_t word)
{
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
}
// f16, without a branch, so that a loop over it becomes vector code.
inline float f16(Bytes p)
{
    const uint32_t h = load_u16(p), m = (h & 0x7fffu) << 13, top = m & 0x0f800000u;
    const uint32_t above = m + (top == 0x0f800000u ? 0x70000000u
                                                   : 0x38000000u);       // infinity stays infinity
    const float below = of_bits(m + 0x38800000u) - of_bits(0x38800000u); // under 2^-14: exact
    uint32_t word;
    std::memcpy(&word, &below, sizeof word);
    return of_bits((top ? above : word) | (h & 0x8000u) << 16);
}
inline float e8m0_half(uint32_t e) // half of 2^(e - 127)
{
    return of_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}
inline int32_t s8(unsigned char byte) { return byte < 128 ? byte : byte - 256; }
inline float as_float(uint32_t value) { return static_cast<float>(static_cast<int32_t>(value)); }

// Eight 6-bit scales and minima in 12 bytes (Q4_K, Q5_K).
inline void scale_and_minimum(Bytes p, uint32_t i, uint32_t* scale, uint32_t* minimum)
{
    if (i < 4) {
        *scale = p[i] & 63u;
        *minimum = p[i + 4] & 63u;
    } else {
        *scale = (p[i + 4] & 15u) | (p[i - 4] & 0xc0u) >> 2;
        *minimum = static_cast<uint32_t>(p[i + 4] >> 4) | (p[i] & 0xc0u) >> 2;
    }
}
// Sixteen signed 6-bit scales in 12 bytes (Q3_K).
inline int32_t scale_q3(Bytes p, uint32_t i)
{
    const uint32_t low = i < 8 ? p[i] & 15u : static_cast<uint32_t>(p[i - 8] >> 4);
    const uint32_t high = static_cast<uint32_t>(p[8 + i % 4] >> 2 * (i / 4)) & 3u;
    return static_cast<int32_t>(low | high << 4) - 32;
}
inline int32_t scale_iq4(Bytes block, uint32_t i) // of IQ4_XS
{
    const uint32_t low = static_cast<uint32_t>(block[4 + i / 2] >> 4 * (i % 2)) & 15u;
    const uint32_t high = static_cast<uint32_t>(load_u16(block + 2) >> 2 * i) & 3u;
    return static_cast<int32_t>(low | high << 4) - 32;
}
constexpr int8_t levels_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t levels_mxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// ---- Rows to f32 --------------------------------------------------------------------------------

inline void decode_f32(Bytes p, uint64_t n, float* out)
{
    for (uint64_t i = 0; i < n; i++) out[i] = load_f32(p + 4 * i);
}
inline void decode_f16(Bytes p, uint64_t n, float* out)
{
    for (uint64_t i = 0; i < n; i++) out[i] = f16(p + 2 * i);
}
inline void decode_bf16(Bytes p, uint64_t n, float* out)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = of_bits(static_cast<uint32_t>(load_u16(p + 2 * i)) << 16);
}
inline void decode_f64(Bytes p, uint64_t n, float* out)
{
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t word = load_u64(p + 8 * i);
        double value;
        std::memcpy(&value, &word, sizeof value);
        out[i] = static_cast<float>(value);
    }
}
inline void decode_q8_0(Bytes p, uint64_t n, float* out)
{
    for (; n; n--, p += 34, out += 32) {
        const float d = f16(p);
        for (uint32_t i = 0; i < 32; i++) out[i] = d * static_cast<float>(s8(p[2 + i]));
    }
}
inline void decode_q4_0(Bytes p, uint64_t n, float* out)
{
    for (; n; n--, p += 18, out += 32) {
        const float d = f16(p);
        for (uint32_t i = 0; i < 16; i++) {
            out[i] = d * static_cast<float>((p[2 + i] & 15) - 8);
            out[i + 16] = d * static_cast<float>((p[2 + i] >> 4) - 8);
        }
    }
}
inline void decode_q4_1(Bytes p, uint64_t n, float* out)
{
    for (; n; n--, p += 20, out += 32) {
        const float d = f16(p), m = f16(p + 2);
        for (uint32_t i = 0; i < 16; i++) {
            out[i] = d * static_cast<float>(p[4 + i] & 15) + m;
            out[i + 16] = d * static_cast<float>(p[4 + i] >> 4) + m;
        }
    }
}
// The 5-bit value i of Q5_0 and Q5_1: 4 bits in `low`, the fifth in `high`.
inline uint32_t five_bits(Bytes low, uint32_t high, uint32_t i)
{
    return (i < 16 ? low[i] & 15u : static_cast<uint32_t>(low[i - 16] >> 4)) | (high >> i & 1u)
                                                                                   << 4;
}
inline void decode_q5_0(Bytes p, uint64_t n, float* out)
{
    for (; n; n--, p += 22, out += 32) {
        const float d = f16(p);
        const uint32_t high = load_u32(p + 2);
        for (uint32_t i = 0; i < 32; i++)
            out[i] = d * (as_float(five_bits(p + 6, high, i)) - 16.0f);
    }
}
inline void decode_q5_1(Bytes p, uint64_t n, float* out)
{
    for (; n; n--, p += 24, out += 32) {
        const float d = f16(p), m = f16(p + 2);
        const uint32_t high = load_u32(p + 4);
        for (uint32_t i = 0; i < 32; i++) out[i] = d * as_float(five_bits(p + 8, high, i)) + m;
    }
}
inline void decode_q2_k(Bytes p, uint64_t n, float* out)
{
    for (; n; n--, p += 84, out += 256) {
        const float d = f16(p + 80), dmin = f16(p + 82);
        for (uint32_t g = 0; g < 16;
             g++) { // groups of 16: 32 bytes hold eight of them, two bits each
            const float scale = d * as_float(p[g] & 15u), minimum = dmin * as_float(p[g] >> 4);
            const Bytes q = p + 16 + g / 8 * 32 + g % 2 * 16;
            const uint32_t shift = g % 8 / 2 * 2;
            for (uint32_t i = 0; i < 16; i++)
                out[16 * g + i] = scale * as_float(q[i] >> shift & 3u) - minimum;
        }
    }
}
inline void decode_q3_k(Bytes p, uint64_t n, float* out)
{
    for (; n; n--, p += 110, out += 256) {
        const float d = f16(p + 108);
        for (uint32_t g = 0; g < 16; g++) {
            const float scale = d * static_cast<float>(scale_q3(p + 96, g));
            const Bytes q = p + 32 + g / 8 * 32 + g % 2 * 16, high = p + g % 2 * 16;
            const uint32_t shift = g % 8 / 2 * 2, bit = g / 2;
            for (uint32_t i = 0; i < 16; i++)
                out[16 * g + i] =
                    scale * (as_float((q[i] >> shift & 3u) | (high[i] >> bit & 1u) << 2) - 4.0f);
        }
    }
}
inline void decode_q4_k(Bytes p, uint64_t n, float* out)
{
    for (; n; n--, p += 144, out += 256) {
        const float d = f16(p), dmin = f16(p + 2);
        for (uint32_t g = 0; g < 8; g++) { // groups of 32: low nibbles, then high ones
            uint32_t sc, m;
            scale_and_minimum(p + 4, g, &sc, &m);
            const float scale = d * as_float(sc), minimum = dmin * as_float(m);
            const Bytes q = p + 16 + g / 2 * 32;
            const uint32_t shift = g % 2 * 4;
            for (uint32_t i = 0; i < 32; i++)
                out[32 * g + i] = scale * as_float(q[i] >> shift & 15u) - minimum;
        }
    }
}
inline void decode_q5_k(Bytes p, uint64_t n, float* out)
{
    for (; n; n--, p += 176, out += 256) {
        const float d = f16(p), dmin = f16(p + 2);
        for (uint32_t g = 0; g < 8; g++) {
            uint32_t sc, m;
            scale_and_minimum(p + 4, g, &sc, &m);
            const float scale = d * as_float(sc), minimum = dmin * as_float(m);
            const Bytes q = p + 48 + g / 2 * 32, high = p + 16;
            const uint32_t shift = g % 2 * 4;
            for (uint32_t i = 0; i < 32; i++)
                out[32 * g + i] =
                    scale * as_float((q[i] >> shift & 15u) | (high[i] >> g & 1u) << 4) - minimum;
        }
    }
}
inline void decode_q6_k(Bytes p, uint64_t n, float* out)
{
    for (; n; n--, p += 210, out += 256) {
        const float d = f16(p + 208);
        for (uint32_t g = 0; g < 16; g++) { // groups of 16
            const float scale = d * static_cast<float>(s8(p[192 + g]));
            const uint32_t half = g / 8, row = g % 8 / 2; // 32 values are row 0 to 3 of a half
            const Bytes low = p + half * 64 + row % 2 * 32 + g % 2 * 16,
                        high = p + 128 + half * 32 + g % 2 * 16;
            for (uint32_t i = 0; i < 16; i++) {
                const uint32_t q = (low[i] >> row / 2 * 4 & 15u) | (high[i] >> 2 * row & 3u) << 4;
                out[16 * g + i] = scale * (as_float(q) - 32.0f);
            }
        }
    }
}
inline void decode_q8_k(Bytes p, uint64_t n, float* out)
{
    for (; n; n--, p += 292, out += 256) {
        const float d = load_f32(p);
        for (uint32_t i = 0; i < 256; i++) out[i] = d * static_cast<float>(s8(p[4 + i]));
    }
}
inline void decode_levels(Bytes q, float scale, const int8_t* levels,
                          float* out) // 32 values in 16 bytes
{
    for (uint32_t i = 0; i < 16; i++) {
        out[i] = scale * static_cast<float>(levels[q[i] & 15]);
        out[i + 16] = scale * static_cast<float>(levels[q[i] >> 4]);
    }
}
inline void decode_iq4_nl(Bytes p, uint64_t n, float* out)
{
    for (; n; n--, p += 18, out += 32) decode_levels(p + 2, f16(p), levels_iq4, out);
}
inline void decode_iq4_xs(Bytes p, uint64_t n, float* out)
{
    for (; n; n--, p += 136, out += 256) {
        const float d = f16(p);
        for (uint32_t g = 0; g < 8; g++)
            decode_levels(p + 8 + 16 * g, d * static_cast<float>(scale_iq4(p, g)), levels_iq4,
                          out + 32 * g);
    }
}
inline void decode_mxfp4(Bytes p, uint64_t n, float* out)
{
    for (; n; n--, p += 17, out += 32) decode_levels(p + 1, e8m0_half(p[0]), levels_mxfp4, out);
}

// ---- Rows to tiles ------------------------------------------------------------------------------

// A unit is one group of 32 columns of the 16 rows; `r` is the row. Its quants stand in pieces of 4
// bytes, 64 bytes apart.

inline void put_scale(unsigned char* unit, uint32_t at, uint32_t r, float value)
{
    store_u16(unit + at + 2 * r, transformer::f32_to_f16(value));
}
// 32 int8, given as they are.
inline void put_q8(unsigned char* unit, uint32_t r, const void* q)
{
    for (uint32_t k = 0; k < 8; k++)
        std::memcpy(unit + 64 * k + 4 * r, static_cast<Bytes>(q) + 4 * k, 4);
}
inline uint32_t four(
    Bytes p) // four bytes as one word, in the host's order: only whole bytes are moved
{
    uint32_t word;
    std::memcpy(&word, p, 4);
    return word;
}
inline void put_four(unsigned char* unit, uint32_t pair, uint32_t r, uint32_t word)
{
    std::memcpy(unit + 64 * pair + 4 * r, &word, 4);
}
constexpr uint32_t lows = 0x0f0f0f0f, highs = 0xf0f0f0f0;
// 32 nibbles in 16 bytes: the low ones, then the high ones (Q4_0, Q4_1).
inline void put_halves(unsigned char* unit, uint32_t r, Bytes q)
{
    const uint32_t a = four(q), b = four(q + 4), c = four(q + 8), d = four(q + 12);
    put_four(unit, 0, r, (a & lows) | (b & lows) << 4);
    put_four(unit, 1, r, (c & lows) | (d & lows) << 4);
    put_four(unit, 2, r, (a >> 4 & lows) | (b & highs));
    put_four(unit, 3, r, (c >> 4 & lows) | (d & highs));
}
// The low or the high nibbles of 32 bytes (Q4_K).
inline void put_nibbles(unsigned char* unit, uint32_t r, Bytes q, bool high)
{
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t a = four(q + 8 * k), b = four(q + 8 * k + 4);
        put_four(unit, k, r, high ? (a >> 4 & lows) | (b & highs) : (a & lows) | (b & lows) << 4);
    }
}

// Runs put(block, first unit, r) over all blocks of 16 rows.
template <class Put> void pack(Bytes const* rows, uint32_t cols, unsigned char* out, DType type,
                               uint32_t block, uint32_t bytes, Put put)
{
    const uint64_t unit = transformer::unit_bytes(type);
    for (uint32_t r = 0; r < 16; r++)
        if (!rows[r]) { // the tensor's last rows; zeros stand for what is missing
            std::memset(out, 0, static_cast<size_t>(cols / 32 * unit));
            break;
        }
    for (uint32_t b = 0; b < cols / block; b++)
        for (uint32_t r = 0; r < 16; r++)
            if (rows[r])
                put(rows[r] + uint64_t{b} * bytes, out + uint64_t{b} * (block / 32) * unit, r);
}

inline void tile_q8_0(Bytes const* rows, uint32_t cols, unsigned char* out)
{
    pack(rows, cols, out, DType::q8_0, 32, 34, [](Bytes p, unsigned char* unit, uint32_t r) {
        put_q8(unit, r, p + 2);
        std::memcpy(unit + 512 + 2 * r, p, 2);
    });
}
inline void tile_q5_0(Bytes const* rows, uint32_t cols, unsigned char* out)
{
    pack(rows, cols, out, DType::q8_0, 32, 22, [](Bytes p, unsigned char* unit, uint32_t r) {
        const uint32_t high = load_u32(p + 2);
        unsigned char q[32];
        for (uint32_t i = 0; i < 32; i++)
            q[i] = static_cast<unsigned char>(five_bits(p + 6, high, i) + 240);
        put_q8(unit, r, q);
        std::memcpy(unit + 512 + 2 * r, p, 2);
    });
}
// 32 nibbles that choose among 16 levels
inline void put_levels(unsigned char* unit, uint32_t r, Bytes q, const int8_t* levels)
{
    int8_t values[32];
    for (uint32_t i = 0; i < 16; i++) {
        values[i] = levels[q[i] & 15];
        values[i + 16] = levels[q[i] >> 4];
    }
    put_q8(unit, r, values);
}
inline void tile_mxfp4(Bytes const* rows, uint32_t cols, unsigned char* out)
{
    pack(rows, cols, out, DType::q8_0, 32, 17, [](Bytes p, unsigned char* unit, uint32_t r) {
        put_levels(unit, r, p + 1, levels_mxfp4);
        put_scale(unit, 512, r, e8m0_half(p[0]));
    });
}
inline void tile_iq4_nl(Bytes const* rows, uint32_t cols, unsigned char* out)
{
    pack(rows, cols, out, DType::q8_0, 32, 18, [](Bytes p, unsigned char* unit, uint32_t r) {
        put_levels(unit, r, p + 2, levels_iq4);
        std::memcpy(unit + 512 + 2 * r, p, 2);
    });
}
inline void tile_iq4_xs(Bytes const* rows, uint32_t cols, unsigned char* out)
{
    pack(rows, cols, out, DType::q8_0, 256, 136, [](Bytes p, unsigned char* unit, uint32_t r) {
        for (uint32_t g = 0; g < 8; g++, unit += 544) {
            put_levels(unit, r, p + 8 + 16 * g, levels_iq4);
            put_scale(unit, 512, r, f16(p) * static_cast<float>(scale_iq4(p, g)));
        }
    });
}
inline void tile_q8_k(Bytes const* rows, uint32_t cols, unsigned char* out)
{
    pack(rows, cols, out, DType::q8_0, 256, 292, [](Bytes p, unsigned char* unit, uint32_t r) {
        for (uint32_t g = 0; g < 8; g++, unit += 544) {
            put_q8(unit, r, p + 4 + 32 * g);
            put_scale(unit, 512, r, load_f32(p));
        }
    });
}
inline void tile_q4_0(Bytes const* rows, uint32_t cols, unsigned char* out)
{
    pack(rows, cols, out, DType::q4_0, 32, 18, [](Bytes p, unsigned char* unit, uint32_t r) {
        put_halves(unit, r, p + 2);
        std::memcpy(unit + 256 + 2 * r, p, 2);
    });
}
inline void tile_q4_1(Bytes const* rows, uint32_t cols, unsigned char* out)
{
    pack(rows, cols, out, DType::q4_1, 32, 20, [](Bytes p, unsigned char* unit, uint32_t r) {
        put_halves(unit, r, p + 4);
        std::memcpy(unit + 256 + 2 * r, p, 2);
        std::memcpy(unit + 288 + 2 * r, p + 2, 2);
    });
}
inline void tile_q4_k(Bytes const* rows, uint32_t cols, unsigned char* out)
{
    pack(rows, cols, out, DType::q4_1, 256, 144, [](Bytes p, unsigned char* unit, uint32_t r) {
        const float d = f16(p), dmin = f16(p + 2);
        for (uint32_t g = 0; g < 8; g++, unit += 320) {
            uint32_t sc, m;
            scale_and_minimum(p + 4, g, &sc, &m);
            put_nibbles(unit, r, p + 16 + g / 2 * 32, g % 2 != 0);
            put_scale(unit, 256, r, d * as_float(sc));
            put_scale(unit, 288, r, -(dmin * as_float(m)));
        }
    });
}

// 32 values as q8_0, as transformer.hpp's quantize_tile() rounds them.
inline void round_q8(const float* x, unsigned char* unit, uint32_t r)
{
    float sizes[32];
    for (uint32_t i = 0; i < 32; i++) sizes[i] = x[i] > 0.0f ? x[i] : -x[i];
    for (uint32_t n = 16; n; n /= 2)
        for (uint32_t j = 0; j < n; j++)
            sizes[j] = sizes[j] > sizes[j + n] ? sizes[j] : sizes[j + n];
    const uint16_t scale = transformer::f32_to_f16(sizes[0] / 127.0f);
    const float s = transformer::f16_to_f32(scale), divisor = s > 0 ? s : 1.0f;
    float y[32];
    for (uint32_t i = 0; i < 32;
         i++) { // adding 1.5 * 2^23 leaves the nearest integer in the low bits
        const float v = x[i] / divisor, above = v > -127.0f ? v : -127.0f;
        y[i] = (above < 127.0f ? above : 127.0f) + 12582912.0f;
    }
    uint32_t words[32];
    std::memcpy(words, y, sizeof words);
    unsigned char bytes[32];
    for (uint32_t i = 0; i < 32; i++)
        bytes[i] = static_cast<unsigned char>(words[i] & (s > 0 ? 255u : 0u));
    put_q8(unit, r, bytes);
    store_u16(unit + 512 + 2 * r, scale);
}

using Decode = void(Bytes, uint64_t, float*);
using Group = void(const float*, unsigned char*, uint32_t);
template <Decode decode, Group group, DType type, uint32_t block, uint32_t bytes>
void tile_anew(Bytes const* rows, uint32_t cols, unsigned char* out)
{
    pack(rows, cols, out, type, block, bytes, [](Bytes p, unsigned char* unit, uint32_t r) {
        float x[block];
        decode(p, 1, x);
        for (uint32_t g = 0; g < block / 32; g++, unit += transformer::unit_bytes(type))
            group(x + 32 * g, unit, r);
    });
}
template <Decode decode, uint32_t block, uint32_t bytes>
constexpr auto tile_rounded = tile_anew<decode, round_q8, DType::q8_0, block, bytes>;

inline const GgmlType types[] = {
    {0, "F32", 1, 4, DType::f32, decode_f32, nullptr},
    {1, "F16", 1, 2, DType::f16, decode_f16, nullptr},
    {2, "Q4_0", 32, 18, DType::q4_0, decode_q4_0, tile_q4_0},
    {3, "Q4_1", 32, 20, DType::q4_1, decode_q4_1, tile_q4_1},
    {6, "Q5_0", 32, 22, DType::q8_0, decode_q5_0, tile_q5_0},
    {7, "Q5_1", 32, 24, DType::q8_0, decode_q5_1, tile_rounded<decode_q5_1, 32, 24>},
    {8, "Q8_0", 32, 34, DType::q8_0, decode_q8_0, tile_q8_0},
    {9, "Q8_1", 32, 40, DType::f32, nullptr, nullptr},
    {10, "Q2_K", 256, 84, DType::q8_0, decode_q2_k, tile_rounded<decode_q2_k, 256, 84>},
    {11, "Q3_K", 256, 110, DType::q8_0, decode_q3_k, tile_rounded<decode_q3_k, 256, 110>},
    {12, "Q4_K", 256, 144, DType::q4_1, decode_q4_k, tile_q4_k},
    {13, "Q5_K", 256, 176, DType::q8_0, decode_q5_k, tile_rounded<decode_q5_k, 256, 176>},
    {14, "Q6_K", 256, 210, DType::q8_0, decode_q6_k, tile_rounded<decode_q6_k, 256, 210>},
    {15, "Q8_K", 256, 292, DType::q8_0, decode_q8_k, tile_q8_k},
    {16, "IQ2_XXS", 256, 66, DType::f32, nullptr, nullptr},
    {17, "IQ2_XS", 256, 74, DType::f32, nullptr, nullptr},
    {18, "IQ3_XXS", 256, 98, DType::f32, nullptr, nullptr},
    {19, "IQ1_S", 256, 50, DType::f32, nullptr, nullptr},
    {20, "IQ4_NL", 32, 18, DType::q8_0, decode_iq4_nl, tile_iq4_nl},
    {21, "IQ3_S", 256, 110, DType::f32, nullptr, nullptr},
    {22, "IQ2_S", 256, 82, DType::f32, nullptr, nullptr},
    {23, "IQ4_XS", 256, 136, DType::q8_0, decode_iq4_xs, tile_iq4_xs},
    {24, "I8", 1, 1, DType::f32, nullptr, nullptr},
    {25, "I16", 1, 2, DType::f32, nullptr, nullptr},
    {26, "I32", 1, 4, DType::f32, nullptr, nullptr},
    {27, "I64", 1, 8, DType::f32, nullptr, nullptr},
    {28, "F64", 1, 8, DType::f32, decode_f64, nullptr},
    {29, "IQ1_M", 256, 56, DType::f32, nullptr, nullptr},
    {30, "BF16", 1, 2, DType::bf16, decode_bf16, nullptr},
    {34, "TQ1_0", 256, 54, DType::f32, nullptr, nullptr},
    {35, "TQ2_0", 256, 66, DType::f32, nullptr, nullptr},
    {39, "MXFP4", 32, 17, DType::q8_0, decode_mxfp4, tile_mxfp4},
    {40, "NVFP4", 64, 36, DType::f32, nullptr, nullptr},
    {41, "Q1_0", 128, 18, DType::f32, nullptr, nullptr},
};

} // namespace ggml

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#elif defined(__clang__)
#pragma float_control(pop)
#endif

inline const GgmlType* ggml_type(uint32_t id)
{
    for (const GgmlType& type : ggml::types)
        if (type.id == id) return &type;
    return nullptr;
}

} // namespace weights
#endif
