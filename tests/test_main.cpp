// The implementation's unit: it holds main(), the library, and the tests of what is internal: formats, mathematics,
// kernels.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#define TRANSFORMER_IMPLEMENTATION
#define TRANSFORMER_THREADS
#include "transformer.hpp"

#include "helpers.hpp"

#include <algorithm>

using test::float_of;
using test::is_nan;
using test::Random;
using test::same;

namespace tr = transformer;
using tr::DType;

namespace {

// ---- Independent definitions ----------------------------------------------------------------------------------------

// A float of 1 sign bit, some exponent and some fraction bits, by its definition.
double small_float(uint32_t half, int exponent_bits, int fraction_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(half >> fraction_bits) & ((1 << exponent_bits) - 1);
    const double fraction = std::ldexp(static_cast<double>(half & ((1u << fraction_bits) - 1)), -fraction_bits);
    const double sign = half >> 15 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) return fraction > 0 ? std::nan("") : sign * HUGE_VAL;
    return sign * (exponent ? std::ldexp(1 + fraction, exponent - bias) : std::ldexp(fraction, 1 - bias));
}

// The nearest of the values that a 16-bit format has, half to even: what lies between two neighbours goes by their
// middle.
uint16_t nearest_half(float x, int exponent_bits, int fraction_bits, uint32_t largest)
{
    const uint32_t sign = std::signbit(x) ? 0x8000u : 0u;
    const double size = std::fabs(static_cast<double>(x));
    uint32_t low = 0, high = largest;                          // value(low) <= size; patterns are ordered as values are
    if (size >= small_float(high, exponent_bits, fraction_bits)) low = high;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        (small_float(middle, exponent_bits, fraction_bits) <= size ? low : high) = middle;
    }
    if (low == high) return static_cast<uint16_t>(sign | low);
    const double below = small_float(low, exponent_bits, fraction_bits),
                 above = small_float(high, exponent_bits, fraction_bits);
    const bool up = size - below > above - size || (!(size - below < above - size) && (low & 1));
    return static_cast<uint16_t>(sign | (up ? high : low));
}

// Distance in units of the last place of the float nearest to `exact`.
double ulps(float x, double exact)
{
    int exponent;
    std::frexp(exact, &exponent);
    return std::fabs(static_cast<double>(x) - exact) / std::ldexp(1.0, std::max(exponent, -125) - 24);
}

struct Worst {
    double ulps = 0;
    float at = 0;
    void see(float x, double distance)
    {
        if (distance <= ulps) return;
        ulps = distance;
        at = x;
    }
};

// Products and sums rounded one by one: volatile, so that no compiler makes one fused operation of two.
float times(float a, float b)
{
    const volatile float product = a * b;
    return product;
}
float plus(float a, float b)
{
    const volatile float sum = a + b;
    return sum;
}

float sum_of_16(const float* a)                                // the documented tree: halves, quarters, ...
{
    float x[16];
    std::copy(a, a + 16, x);
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++) x[i] = plus(x[i], x[i + n]);
    return x[0];
}

const tr::Kernels& scalar() { return *tr::room_of(tr::Isa::scalar); }

float erf_f32(float x) { return tr::base_room::first_lane(tr::base_room::erf_of(tr::TRANSFORMER_BASE_ROOM::set(x))); }
float activation_f32(tr::Activation kind, float x)
{
    scalar().activate(kind, &x, 1);
    return x;
}

}  // namespace

// ---- Formats --------------------------------------------------------------------------------------------------------

TEST_CASE("every f16 and bf16 pattern converts to its value and back")
{
    uint32_t wrong = 0;
    for (uint32_t h = 0; h < 65536; h++) {
        const uint16_t half = static_cast<uint16_t>(h);
        const float f16 = tr::f16_to_f32(half), bf16 = tr::bf16_to_f32(half);
        wrong += !same(f16, static_cast<float>(small_float(h, 5, 10)));
        wrong += !same(bf16, static_cast<float>(small_float(h, 8, 7)));
        const bool infinite = (h & 0x7fff) == 0x7c00;          // saturates on the way back
        wrong += tr::f32_to_f16(f16) != (is_nan(f16) ? (h & 0x8000) | 0x7e00 : infinite ? h - 1 : h);
        wrong += tr::f32_to_bf16(bf16) != (is_nan(bf16) ? h | 0x40 : h);
    }
    CHECK(wrong == 0);
    CHECK(test::bits_of(tr::bf16_to_f32(0x7f80)) == 0x7f800000u);
    CHECK(test::bits_of(tr::bf16_to_f32(0xff80)) == 0xff800000u);
    CHECK(test::bits_of(tr::bf16_to_f32(0x7fc1)) == 0x7fc10000u);
    CHECK(test::bits_of(tr::bf16_to_f32(0x0001)) == 0x00010000u);
    CHECK(test::bits_of(tr::bf16_to_f32(0x8000)) == 0x80000000u);
    CHECK(tr::f32_to_bf16(float_of(0x7f800001u)) == 0x7fc0);   // a NaN whose payload lies in the lost bits stays one
}

TEST_CASE("f32 rounds to the nearest f16 and bf16, half to even")
{
    uint32_t wrong = 0;
    const auto check = [&](uint32_t u) {
        const float x = float_of(u);
        if (is_nan(x)) {
            wrong += !(is_nan(tr::f16_to_f32(tr::f32_to_f16(x))) && is_nan(tr::bf16_to_f32(tr::f32_to_bf16(x))));
            return;
        }
        wrong += tr::f32_to_f16(x) != nearest_half(x, 5, 10, 0x7bff);
        // beyond the largest bf16 comes infinity, where the next value would be
        const bool infinite = (u & 0x7fffffff) >= 0x7f7f8000u;
        wrong += tr::f32_to_bf16(x) != (infinite ? (u >> 16 & 0x8000) | 0x7f80 : nearest_half(x, 8, 7, 0x7f7f));
    };
    // every border between two halves and its neighbours: rounding changes nowhere else
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const uint32_t a = test::bits_of(static_cast<float>(small_float(h, 5, 10)));
        const uint32_t middle = test::bits_of(
            static_cast<float>((small_float(h, 5, 10) + small_float(h + 1 < 0x7c00 ? h + 1 : h, 5, 10)) / 2));
        for (const uint32_t u : {a, a + 1, a - (a > 0), middle, middle + 1, middle - (middle > 0)})
            for (const uint32_t sign : {0u, 0x80000000u}) check(u | sign);
    }
    for (uint32_t h = 0; h < 0x8000; h++)
        for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
            for (const uint32_t sign : {0u, 0x80000000u}) check(h << 16 | low | sign);
    for (uint64_t u = 0; u < uint64_t{1} << 32; u += 9973) check(static_cast<uint32_t>(u));
    CHECK(wrong == 0);
}

TEST_CASE("numbers beyond f16 saturate, as the cache needs it")
{
    CHECK(tr::f16_to_f32(tr::f32_to_f16(1e30f)) == 65504.0f);
    CHECK(tr::f16_to_f32(tr::f32_to_f16(-HUGE_VALF)) == -65504.0f);
    CHECK(tr::f16_to_f32(tr::f32_to_f16(65520.0f)) == 65504.0f);
    CHECK(tr::f32_to_f16(1e-30f) == 0);
    CHECK(tr::f32_to_f16(-1e-30f) == 0x8000);
}

TEST_CASE("quantised tiles hold what the format says, within half a step")
{
    Random r{5};
    for (const DType type : {DType::q8_0, DType::q4_0, DType::q4_1})
        for (const uint32_t cols : {1u, 7u, 31u, 32u, 33u, 64u, 100u})
            for (const uint32_t rows : {1u, 5u, 16u})
                for (const float size : {1.0f, 1000.0f, 0.01f, 0.0f}) {
                    std::vector<float> x(size_t{rows} * cols), back(cols);
                    for (float& v : x) v = size * r.number() + (type == DType::q4_1 ? size / 2 : 0);
                    std::vector<unsigned char> tile(static_cast<size_t>(tr::matrix_bytes(type, 16, cols)) + 64, 0xee);
                    tr::quantize_tile(type, x.data(), rows, cols, tile.data());
                    CHECK(tile[tile.size() - 64] == 0xee);
                    tr::Tensor w;
                    w.data = tile.data();
                    w.rows = rows;
                    w.cols = cols;
                    w.count = 1;
                    w.dtype = type;
                    const uint32_t quants = type == DType::q8_0 ? 512 : 256, bytes = tr::unit_bytes(type);
                    uint32_t wrong = 0;
                    for (uint32_t row = 0; row < rows; row++) {
                        tr::dequantize_row(w, 0, row, back.data());
                        for (uint32_t c = 0; c < cols; c++) {
                            // the value by the layout that the header draws
                            const unsigned char* const u = &tile[c / 32 * bytes];
                            const uint32_t k = c % 32, step = k / 4;
                            const double scale = small_float(weights::load_u16(u + quants + 2 * row), 5, 10);
                            double value;
                            if (type == DType::q8_0)
                                value = scale * static_cast<int8_t>(u[64 * step + 4 * row + k % 4]);
                            else {
                                const uint32_t b = u[64 * (step / 2) + 4 * row + k % 4], q = step % 2 ? b >> 4 : b & 15;
                                value =
                                    type == DType::q4_0
                                        ? scale * (static_cast<double>(q) - 8)
                                        : scale * q + small_float(weights::load_u16(u + quants + 32 + 2 * row), 5, 10);
                            }
                            wrong += std::fabs(static_cast<double>(back[c]) - value) > 1e-6 * std::fabs(value);
                            // its distance: half a step, and what the scale (and the minimum) lost in f16
                            float low = 0, high = 0;
                            for (uint32_t i = c / 32 * 32; i < std::min(cols, c / 32 * 32 + 32); i++) {
                                const float v = x[row * cols + i];
                                low = std::min(low, v);
                                high = std::max(high, v);
                            }
                            const double range = static_cast<double>(std::max(high, -low));
                            const double loss = range / 2048 + std::ldexp(128.0, -25);     // the latter below 2^-14
                            // q4_0 cannot say +8, and its range may be narrowed by 12 %: 8 / 0.88 is 2.1 steps above 7
                            const double most = type == DType::q4_0 ? 2.1 * scale : scale / 2;
                            wrong +=
                                std::fabs(value - static_cast<double>(x[row * cols + c])) > std::fabs(most) + 2 * loss;
                        }
                    }
                    CHECK(wrong == 0);
                }
}

TEST_CASE("columns and rows past the end of a matrix are stored as zeros")
{
    const std::vector<float> x(5 * 33, 1.0f);
    for (const DType type : {DType::q8_0, DType::q4_0, DType::q4_1}) {
        std::vector<unsigned char> tile(static_cast<size_t>(tr::matrix_bytes(type, 16, 33)), 0xee);
        tr::quantize_tile(type, x.data(), 5, 33, tile.data());
        tr::Tensor w;
        w.data = tile.data();
        w.rows = 16;
        w.cols = 64;
        w.count = 1;
        w.dtype = type;
        std::vector<float> back(64);
        tr::dequantize_row(w, 0, 4, back.data());
        for (uint32_t i = 0; i < 33; i++) CHECK(static_cast<double>(back[i]) == doctest::Approx(1).epsilon(1e-3));
        for (uint32_t row : {5u, 15u}) {
            tr::dequantize_row(w, 0, row, back.data());
            for (const float v : back) CHECK(std::fabs(v) < 1e-6f);
        }
    }
}

TEST_CASE("sizes of matrices are exact in 64 bits")
{
    CHECK(tr::matrix_bytes(DType::f32, 28672, uint64_t{8192} * 80) == uint64_t{28672} * 8192 * 80 * 4);
    CHECK(tr::matrix_bytes(DType::f16, 0x7fffffff, 0x7fffffff) == uint64_t{0x7fffffff} * 0x7fffffff * 2);
    CHECK(tr::matrix_bytes(DType::q8_0, 17, 33) == 2 * 2 * 544);
    CHECK(tr::matrix_bytes(DType::q4_0, 1, 1) == 288);
    CHECK(tr::matrix_bytes(DType::q4_1, 65536, 65536) == uint64_t{4096} * 2048 * 320);
    static_assert(tr::matrix_bytes(DType::q8_0, 16, 32) == 544, "a constant expression");
}

// ---- Mathematics ----------------------------------------------------------------------------------------------------

TEST_CASE("the square root is the correctly rounded one")
{
    uint32_t wrong = 0;
    const auto check = [&](uint32_t u) { wrong += !same(tr::sqrt_f32(float_of(u)), std::sqrt(float_of(u))); };
    for (uint64_t u = 0; u < uint64_t{1} << 32; u += 2039) check(static_cast<uint32_t>(u));
    for (uint32_t i = 0; i < 4096; i++) {                      // squares and their neighbours
        const float square = static_cast<float>(i) * static_cast<float>(i);
        for (const uint32_t d : {0xffffffffu, 0u, 1u}) check(test::bits_of(square) + d);
    }
    for (uint32_t u = 0; u < 100000; u++) check(u);            // subnormals
    for (const uint32_t u : {0x007fffffu, 0x00800000u, 0x00800001u, 0x7f7fffffu, 0x7f800000u, 0x80000000u, 0xff800000u,
                             0xbf800000u, 0x7fc00000u})
        check(u);
    CHECK(wrong == 0);
}

TEST_CASE("the exponential function is within 1 unit of the last place, zero below -87 and monotonic at the ends")
{
    Worst worst;
    uint32_t wrong = 0;
    for (float x = -87; x <= 88; x += 0.000173f) worst.see(x, ulps(tr::exp_f32(x), std::exp(static_cast<double>(x))));
    for (float x = 1e-30f; x < 1; x *= 1.01f)
        for (const float v : {x, -x}) worst.see(v, ulps(tr::exp_f32(v), std::exp(static_cast<double>(v))));
    MESSAGE("exp: ", worst.ulps, " units at ", worst.at);
    CHECK(worst.ulps < 1);
    CHECK(tr::exp_f32(0) == 1);
    CHECK(tr::exp_f32(-0.0f) == 1);
    for (const float x : {-87.001f, -88.0f, -1000.0f, -1e30f, tr::lowest_f32, -HUGE_VALF})
        wrong += !same(tr::exp_f32(x), 0.0f);
    for (const float x : {88.0f, 88.5f, 1000.0f, tr::most_f32, HUGE_VALF})
        wrong += !same(tr::exp_f32(x), tr::exp_f32(88.0f));
    CHECK(wrong == 0);
    CHECK(is_nan(tr::exp_f32(float_of(0x7fc00000u))));
}

TEST_CASE("tanh and erf are within 1.25 units of the last place")
{
    Worst of_tanh, of_erf;
    for (float x = -10; x <= 10; x += 0.000137f) {
        of_tanh.see(x, ulps(tr::tanh_f32(x), std::tanh(static_cast<double>(x))));
        of_erf.see(x, ulps(erf_f32(x), std::erf(static_cast<double>(x))));
    }
    for (float x = 1e-30f; x < 1; x *= 1.003f)
        for (const float v : {x, -x}) {
            of_tanh.see(v, ulps(tr::tanh_f32(v), std::tanh(static_cast<double>(v))));
            of_erf.see(v, ulps(erf_f32(v), std::erf(static_cast<double>(v))));
        }
    MESSAGE("tanh: ", of_tanh.ulps, " units at ", of_tanh.at, "; erf: ", of_erf.ulps, " units at ", of_erf.at);
    CHECK(of_tanh.ulps < 1.25);
    CHECK(of_erf.ulps < 1.25);
    CHECK(tr::tanh_f32(HUGE_VALF) == 1);
    CHECK(tr::tanh_f32(-HUGE_VALF) == -1);
    CHECK(erf_f32(HUGE_VALF) == 1);
    CHECK(erf_f32(-100.0f) == -1);
    CHECK(test::bits_of(tr::tanh_f32(0)) == 0);
    CHECK(is_nan(tr::tanh_f32(float_of(0x7fc00000u))));
    CHECK(is_nan(erf_f32(float_of(0xffc00000u))));
}

TEST_CASE("both forms of GELU give the published values")
{
    using tr::Activation;
    CHECK(std::fabs(activation_f32(Activation::gelu, 1) - 0.841345f) < 1e-6f);
    CHECK(std::fabs(activation_f32(Activation::gelu_tanh, 1) - 0.841192f) < 1e-6f);
    CHECK(std::fabs(activation_f32(Activation::gelu, -2) + 0.045500f) < 1e-6f);
    CHECK(std::fabs(activation_f32(Activation::gelu_tanh, -2) + 0.045402f) < 1e-6f);
}

TEST_CASE("activations stay near their definition over their whole range")
{
    using tr::Activation;
    const double pi = 3.14159265358979323846;
    double worst[9] = {};
    for (float x = -30; x < 30; x += 0.00071f) {
        const double v = static_cast<double>(x);
        const std::pair<Activation, double> exact[] = {
            {Activation::silu, v / (1 + std::exp(-v))},
            {Activation::gelu, v / 2 * (1 + std::erf(v / std::sqrt(2.0)))},
            {Activation::gelu_tanh, v / 2 * (1 + std::tanh(std::sqrt(2 / pi) * (v + 0.044715 * v * v * v)))},
            {Activation::relu, std::max(v, 0.0)},
            {Activation::relu_squared, std::max(v, 0.0) * std::max(v, 0.0)},
            {Activation::quick_gelu, v / (1 + std::exp(-1.702 * v))},
            {Activation::tanh, std::tanh(v)}};
        for (const auto& e : exact) {
            double& w = worst[static_cast<int>(e.first)];
            w = std::max(w, std::fabs(static_cast<double>(activation_f32(e.first, x)) - e.second) /
                                (1e-2 + std::fabs(e.second)));
        }
    }
    for (const double w : worst) CHECK(w < 1e-5);
    for (const Activation kind :
         {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::quick_gelu, Activation::relu}) {
        CHECK(std::fabs(activation_f32(kind, -1000)) < 1e-30f);
        CHECK(activation_f32(kind, 1000) == 1000);
        CHECK(is_nan(activation_f32(kind, float_of(0x7fc00000u))));
    }
}

TEST_CASE("double exponentials, logarithms and angles are good to the last bits")
{
    double of_exp = 0, of_log = 0;
    for (double x = -690; x < 690; x += 0.0371) of_exp = std::max(of_exp, std::fabs(tr::exp_f64(x) / std::exp(x) - 1));
    for (double x = 1e-300; x < 1e300; x *= 1.0137)
        of_log = std::max(of_log, std::fabs(tr::log_f64(x) - std::log(x)) / (1e-3 + std::fabs(std::log(x))));
    CHECK(of_exp < 1e-15);
    CHECK(of_log < 1e-15);
    uint32_t wrong = 0;
    for (float x = 1e-30f; x < 1e30f; x *= 1.0037f)
        wrong += ulps(tr::log_f32(x), std::log(static_cast<double>(x))) > 0.51;
    CHECK(wrong == 0);

    Worst of_cosine, of_sine;
    const auto check = [&](double x) {
        float c, s;
        tr::cos_sin(x, &c, &s);
        of_cosine.see(static_cast<float>(x), ulps(c, std::cos(x)));
        of_sine.see(static_cast<float>(x), ulps(s, std::sin(x)));
    };
    for (uint32_t i = 0; i < 200000; i++) check(0.00371 * i);
    for (uint32_t i = 0; i < 100000; i++)
        check(static_cast<double>(static_cast<float>(i * 11))); // positions up to a million
    for (double x = 1e-9; x < 1e6; x *= 1.0003) check(x), check(-x);
    MESSAGE("cos: ", of_cosine.ulps, " units at ", of_cosine.at, "; sin: ", of_sine.ulps, " units at ", of_sine.at);
    CHECK(of_cosine.ulps < 0.52);
    CHECK(of_sine.ulps < 0.52);
}

TEST_CASE("the multiply-add has one rounding, with and without an instruction for it")
{
    Random r{17};
    uint32_t wrong = 0;
    const auto check = [&](float a, float b, float c) { wrong += !same(tr::fused(a, b, c), std::fma(a, b, c)); };
    for (uint32_t i = 0; i < 3000000; i++) {
        const float a = r.pattern(), b = r.pattern(), p = a * b;
        check(a, b, r.pattern());
        // near cancellation: c is the rounded product, or a neighbour of it
        check(a, b, -p);
        check(a, b, -float_of(test::bits_of(p) + r.below(3) - 1));
        // c far below or above the product, where the last bit decides between two halves
        check(a, b, std::ldexp(p, static_cast<int>(r.below(60)) - 30));
    }
    const float special[] = {0.0f,
                             -0.0f,
                             1.0f,
                             -1.0f,
                             HUGE_VALF,
                             -HUGE_VALF,
                             float_of(0x7fc00000u),
                             float_of(1),
                             float_of(0x007fffffu),
                             float_of(0x00800000u),
                             float_of(0x7f7fffffu),
                             float_of(0xff7fffffu),
                             float_of(0x3f800001u),
                             float_of(0x33800000u),
                             float_of(0x19800000u),
                             0.1f,
                             16777216.0f,
                             16777215.0f,
                             float_of(0x5f000000u),
                             float_of(0x1f800000u)};
    for (const float a : special)
        for (const float b : special)
            for (const float c : special) check(a, b, c);
    CHECK(wrong == 0);
}

// ---- Kernels --------------------------------------------------------------------------------------------------------

namespace {

// Rows of test values: plain, small and large, with zeros, denormals, and (if asked) NaN and infinities.
void fill(Random& r, float* x, size_t n, uint32_t mood)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = r.number();
        if (mood == 1) x[i] = std::ldexp(r.number(), static_cast<int>(r.below(40)) - 20);
        if (mood == 2)
            x[i] = float_of(r.below(0x01000000u) | (r.chance(2) ? 0x80000000u : 0)); // denormals and the smallest
        if (mood == 3) x[i] = std::ldexp(r.number(), 120 + static_cast<int>(r.below(8)));
        if (mood == 4) x[i] = r.pattern();
        if (mood == 5) x[i] = r.chance(3) ? 0.0f : -0.0f;
    }
}
const uint32_t moods[] = {0, 1, 2, 3, 4, 5};

// A row that begins at an address that is a multiple of 4 and of nothing more.
struct Unaligned {
    explicit Unaligned(size_t n) : bytes(n * 4 + 68), data(bytes.data())
    {
        while (reinterpret_cast<uintptr_t>(data) % 64 != 4) data++;
    }
    Unaligned(const Unaligned&) = delete;
    Unaligned& operator=(const Unaligned&) = delete;
    std::vector<unsigned char> bytes;
    unsigned char* data;
    float* floats() { return static_cast<float*>(static_cast<void*>(data)); }
};

struct Matrix {                                                // rows x cols of one type, and its bias
    Matrix(Random& r, DType type, uint32_t rows, uint32_t cols, uint32_t mood)
        : bytes(static_cast<size_t>(tr::matrix_bytes(type, rows, cols)) / 4 + 1), bias(rows)
    {
        std::vector<float> x(size_t{16} * cols);
        fill(r, bias.floats(), rows, mood);
        unsigned char* to = bytes.data;
        for (uint32_t row = 0; row < rows; row += 16) {
            const uint32_t n = std::min(16u, rows - row);
            fill(r, x.data(), size_t{n} * cols, mood);
            if (tr::is_quantised(type)) {
                tr::quantize_tile(type, x.data(), n, cols, to);
                to += tr::matrix_bytes(type, 16, cols);
                if (mood == 4) // any bits: f16 scales that are infinite, -128 as a weight
                    for (unsigned char* p = to - tr::matrix_bytes(type, 16, cols); p < to; p++)
                        *p = static_cast<unsigned char>(r.bits());
            } else {
                weights::encode_rows(type, x.data(), size_t{n} * cols, to);
                to += tr::matrix_bytes(type, n, cols);
            }
        }
    }
    Unaligned bytes, bias;
};

// Rows rounded to 8 bits, by token: the groups of each, and what was rounded a second time.
struct Rounded {
    std::vector<tr::Group> groups;
    std::vector<tr::Residual> rest;
};

std::vector<float> product(const tr::Kernels& room, DType type, Matrix& w, bool bias, uint32_t rows, uint32_t cols,
                           const float* x, const Rounded& a, uint32_t n, uint32_t cut)
{
    const uint32_t groups = (cols + 31) / 32;
    std::vector<tr::Group> q;                                  // panels of 8 tokens, as the header lays them out
    std::vector<tr::Residual> rest(size_t{n} * (groups / 3 + 1));
    for (uint32_t first = 0; first < n; first += 8) {
        const uint32_t end = std::min(first + 8, n);
        for (uint32_t g = 0; g < groups; g++)
            for (uint32_t t = first; t < end; t++) q.push_back(a.groups[size_t{t} * groups + g]);
        size_t at = size_t{first} * (groups / 3 + 1);
        for (const tr::Residual& r : a.rest)
            if (r.token >= first && r.token < end) {
                rest[at] = r;
                rest[at++].token = r.token - first;
            }
        rest[at].group = UINT32_MAX;
    }
    std::vector<float> y(size_t{n} * rows, 777.0f);
    // cut into parts, which are one job or one job each
    const uint32_t units = tr::is_quantised(type) ? (rows + 15) / 16 : rows;
    std::vector<tr::ProductJob::Part> parts;
    for (uint32_t part = 0; part < cut; part++)
        if (units * part / cut < units * (part + 1) / cut)
            parts.push_back({w.bytes.data, bias ? w.bias.data : nullptr, rows, units * part / cut, units * (part + 1) / cut,
                             y.data()});
    const bool one = cut % 2 == 0;
    for (size_t i = 0; i < (one ? 1 : parts.size()); i++) {
        const tr::ProductJob job = {&parts[i], static_cast<uint32_t>(one ? parts.size() : 1), cols, x, q.data(), rest.data(), n};
        room.product[static_cast<int>(type)](job);
    }
    return y;
}

// The documented product, by its definition.
std::vector<float> exact_product(DType type, Matrix& w, bool bias, uint32_t rows, uint32_t cols, const float* x,
                                 const Rounded& rounded, uint32_t n)
{
    std::vector<float> y(size_t{n} * rows);
    const uint32_t groups = (cols + 31) / 32, unit = tr::unit_bytes(type), quants = type == DType::q8_0 ? 512 : 256;
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t row = 0; row < rows; row++) {
            float acc = 0;
            if (!tr::is_quantised(type)) {
                float lanes[16] = {};
                for (uint32_t c = 0; c < (cols + 15) / 16 * 16; c++) {
                    const unsigned char* const p = w.bytes.data + (size_t{row} * cols + c) * unit;
                    float v = 0;
                    if (c < cols)
                        v = type == DType::f32   ? weights::load_f32(p)
                            : type == DType::f16 ? tr::f16_to_f32(weights::load_u16(p))
                                                 : tr::bf16_to_f32(weights::load_u16(p));
                    lanes[c % 16] = std::fma(v, c < cols ? x[size_t{t} * cols + c] : 0.0f, lanes[c % 16]);
                }
                acc = sum_of_16(lanes);
            } else {
                std::vector<std::pair<uint32_t, const tr::Group*>> list;
                for (uint32_t g = 0; g < groups; g++) list.push_back({g, &rounded.groups[size_t{t} * groups + g]});
                for (const tr::Residual& r : rounded.rest)
                    if (r.token == t) list.push_back({r.group, &r.rest});
                for (const auto& [g, group] : list) {
                    const tr::Group& a = *group;
                    const unsigned char* const u = w.bytes.data + (size_t{row} / 16 * groups + g) * unit;
                    int32_t dot = 0, sum = 0;
                    for (uint32_t k = 0; k < 32; k++) {
                        const uint32_t step = k / 4, r = row % 16;
                        int32_t weight;
                        if (type == DType::q8_0) weight = static_cast<int8_t>(u[64 * step + 4 * r + k % 4]);
                        else {
                            const int32_t b = u[64 * (step / 2) + 4 * r + k % 4];
                            weight = (step % 2 ? b >> 4 : b & 15) - (type == DType::q4_0 ? 8 : 0);
                        }
                        dot += weight * a.q[k];
                        sum += a.q[k];
                    }
                    const float scale = tr::f16_to_f32(weights::load_u16(u + quants + 2 * (row % 16)));
                    acc = plus(acc, times(static_cast<float>(dot), times(scale, a.scale)));
                    if (type != DType::q4_1) continue;
                    const float minimum = tr::f16_to_f32(weights::load_u16(u + quants + 32 + 2 * (row % 16)));
                    acc = plus(acc, times(static_cast<float>(sum), times(minimum, a.scale)));
                }
            }
            y[size_t{t} * rows + row] = bias ? plus(acc, weights::load_f32(w.bias.data + 4 * size_t{row})) : acc;
        }
    return y;
}

// The documented rounding of a row to 8 bits.
void exact_quantise(const float* x, uint32_t n, tr::Group* out)
{
    for (uint32_t g = 0; g * 32 < n; g++) {
        float top = 0;
        bool broken = false;
        for (uint32_t i = g * 32; i < std::min(n, g * 32 + 32); i++) {
            broken = broken || !(std::fabs(x[i]) <= 1e30f);
            top = std::max(top, std::fabs(x[i]));
        }
        const bool nothing = broken || top < 1e-25f;
        out[g].scale = broken ? float_of(0x7fc00000u) : nothing ? 0.0f : top / 127.0f;
        out[g].offset = 0;
        for (uint32_t k = 0; k < 32; k++) {
            const float v = g * 32 + k < n ? x[g * 32 + k] : 0.0f;
            out[g].q[k] = static_cast<int8_t>(nothing ? 0 : std::lrint(times(v, 127.0f / top)));
            out[g].offset -= 128 * out[g].q[k];
        }
    }
}

// Groups over three times as coarse as the row's mean are rounded a second time, at most a third of them.
Rounded exact_rounding(const float* x, uint32_t rows, uint32_t n)
{
    const uint32_t groups = (n + 31) / 32;
    Rounded out;
    out.groups.resize(size_t{rows} * groups);
    for (uint32_t t = 0; t < rows; t++, x += n) {
        tr::Group* const row = &out.groups[size_t{t} * groups];
        exact_quantise(x, n, row);
        float total = 0;
        for (uint32_t g = 0; g < groups; g++) total = plus(total, row[g].scale);
        uint32_t more = 0;
        for (uint32_t g = 0; g < groups; g++) {
            if (!(row[g].scale > times(3, total) / static_cast<float>(groups)) || more == groups / 3) continue;
            float left[32] = {};
            for (uint32_t k = 0; k < 32 && g * 32 + k < n; k++)
                left[k] = plus(x[g * 32 + k], -times(row[g].scale, static_cast<float>(row[g].q[k])));
            tr::Residual r;
            exact_quantise(left, 32, &r.rest);
            r.group = g;
            r.token = t;
            out.rest.push_back(r);
            more++;
        }
    }
    return out;
}

bool same_groups(const std::vector<tr::Group>& a, const std::vector<tr::Group>& b)
{
    for (size_t i = 0; i < a.size(); i++)
        if (!same(a[i].scale, b[i].scale) || a[i].offset != b[i].offset || std::memcmp(a[i].q, b[i].q, 32) != 0) return false;
    return true;
}

}  // namespace

TEST_CASE("activations are rounded to 8 bits as the documentation says, in every room")
{
    Random r{31};
    size_t twice = 0;
    for (const uint32_t n : {1u, 5u, 31u, 32u, 33u, 47u, 48u, 64u, 100u, 256u, 1000u})
        for (const uint32_t mood : moods)
            for (uint32_t round = 0; round < 24; round++) {
                Unaligned x(n);
                fill(r, x.floats(), n, mood);
                for (uint32_t i = round % 8; i < 5; i++) x.floats()[r.below(n)] *= 40;
                if (round % 8 == 7) x.floats()[r.below(n)] = HUGE_VALF;
                const Rounded want = exact_rounding(x.floats(), 1, n);
                twice += want.rest.size();
                for (const tr::Isa isa : test::rooms()) {
                    std::vector<tr::Group> strided(want.groups.size() * 3), got(want.groups.size()), rest;
                    std::vector<tr::Residual> list(want.groups.size() / 3 + 1);
                    const tr::Residual* const end =
                        tr::room_of(isa)->quantise(x.floats(), n, 0, 3, strided.data(), list.data());
                    for (size_t g = 0; g < got.size(); g++) got[g] = strided[3 * g];
                    CHECK(same_groups(got, want.groups));
                    REQUIRE(end == list.data() + want.rest.size());
                    for (size_t i = 0; i < want.rest.size(); i++) {
                        CHECK(list[i].group == want.rest[i].group);
                        CHECK(list[i].token == 0);
                        CHECK(same_groups({list[i].rest}, {want.rest[i].rest}));
                    }
                }
            }
    CHECK(twice > 20);
}

TEST_CASE("rows turn into panels of eight tokens, each with its list of residuals, in every room")
{
    Random r{36};
    for (const uint32_t rows : {1u, 7u, 8u, 9u, 17u}) {
        const uint32_t cols = 300, groups = 10;
        std::vector<float> x(size_t{rows} * cols);
        for (float& v : x) v = r.number() * (r.below(100) ? 1.0f : 90.0f);
        const Rounded want = exact_rounding(x.data(), rows, cols);
        for (const tr::Isa isa : test::rooms()) {
            std::vector<tr::Group> q(size_t{rows} * groups);
            std::vector<tr::Residual> rest(size_t{rows} * (groups / 3 + 1));
            tr::quantise_rows(*tr::room_of(isa), {x.data(), rows, cols}, 0, (rows + 7) / 8, q.data(), rest.data());
            size_t next = 0;
            for (uint32_t t = 0; t < rows; t++) {
                const uint32_t first = t / 8 * 8, width = std::min(8u, rows - first);
                for (uint32_t g = 0; g < groups; g++)
                    CHECK(same_groups({q[size_t{first} * groups + size_t{g} * width + t - first]},
                                      {want.groups[size_t{t} * groups + g]}));
                if (t != first) continue;
                const tr::Residual* list = &rest[size_t{first} * (groups / 3 + 1)];
                for (; list->group != UINT32_MAX; list++, next++) {
                    REQUIRE(next < want.rest.size());
                    CHECK(list->group == want.rest[next].group);
                    CHECK(list->token == want.rest[next].token % 8);
                }
            }
            CHECK(next == want.rest.size());
        }
    }
}

TEST_CASE("products of every format are the documented ones to the bit, in every room")
{
    Random r{32};
    const uint32_t shapes[][2] = {{1, 1},   {3, 20},   {16, 32}, {17, 33}, {33, 47},
                                  {40, 64}, {64, 100}, {5, 256}, {50, 15}, {33, 400}};
    for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0, DType::q4_1})
        for (const auto& shape : shapes)
            for (const uint32_t mood : moods) {
                const uint32_t rows = shape[0], cols = shape[1], most = 17;
                Matrix w(r, type, rows, cols, mood);
                Unaligned x(size_t{most} * cols);
                fill(r, x.floats(), size_t{most} * cols, mood);
                for (uint32_t i = 0; cols > 100 && i < most; i++) x.floats()[r.below(most * cols)] *= 40;
                const Rounded q = exact_rounding(x.floats(), most, cols);
                for (const bool bias : {false, true})
                    for (const uint32_t n : {1u, 2u, 3u, 5u, 9u, 17u}) {
                        const std::vector<float> want =
                            exact_product(type, w, bias, rows, cols, x.floats(), q, n);
                        for (const tr::Isa isa : test::rooms())
                            for (const uint32_t cut : {1u, 2u, 3u}) {
                                const std::vector<float> got =
                                    product(*tr::room_of(isa), type, w, bias, rows, cols, x.floats(), q, n, cut);
                                if (test::differences(got.data(), want.data(), want.size()) == 0) continue;
                                FAIL_CHECK("type ", static_cast<int>(type), ", ", rows, " x ", cols, ", n ", n,
                                           ", room ", std::string(tr::room_of(isa)->name), ", mood ", mood);
                            }
                    }
            }
}

TEST_CASE("an 8-bit weight of -128, which no writer makes, is multiplied as -128 in every room")
{
    std::vector<unsigned char> tile(544, 0x80);
    for (uint32_t i = 0; i < 16; i++) weights::store_u16(&tile[512 + 2 * i], tr::f32_to_f16(1));
    tr::Group q;
    for (int8_t& v : q.q) v = 127;
    q.q[1] = -127;
    q.scale = 1;
    q.offset = -128 * 30 * 127;
    float y[16];
    tr::Residual none;
    none.group = UINT32_MAX;
    const tr::ProductJob::Part part = {tile.data(), nullptr, 16, 0, 1, y};
    const tr::ProductJob job = {&part, 1, 32, nullptr, &q, &none, 1};
    for (const tr::Isa isa : test::rooms()) {
        tr::room_of(isa)->product[static_cast<int>(DType::q8_0)](job);
        for (const float v : y) CHECK(v == -128.0f * 127 * 30);
    }
}

TEST_CASE("norms, activations, sums and products of rows have the same bits in every room")
{
    Random r{33};
    for (const uint32_t n : {1u, 2u, 7u, 15u, 16u, 17u, 20u, 43u, 64u, 100u, 257u})
        for (const uint32_t mood : moods)
            for (uint32_t round = 0; round < 3; round++) {
                Unaligned x(n), y(n), w(n), b(n), a(n), c(n);
                for (Unaligned* u : {&x, &y, &w, &b}) fill(r, u->floats(), n, mood);
                const float first = r.number(), second = mood == 4 ? r.pattern() : r.number();
                const auto reset = [&] {
                    std::memcpy(a.data, x.data, n * 4);
                    std::memcpy(c.data, x.data, n * 4);
                };
                for (const tr::Isa isa : test::rooms()) {
                    const tr::Kernels& room = *tr::room_of(isa);
                    uint32_t wrong = 0;
                    for (const tr::NormKind kind : {tr::NormKind::rms, tr::NormKind::layer})
                        for (const bool shift : {false, true}) {
                            scalar().normalise(kind, x.floats(), n, w.data, shift ? b.data : nullptr, 1e-5f,
                                               a.floats());
                            room.normalise(kind, x.floats(), n, w.data, shift ? b.data : nullptr, 1e-5f, c.floats());
                            wrong += test::differences(a.floats(), c.floats(), n) != 0;
                            reset();                           // in place
                            room.normalise(kind, c.floats(), n, w.data, shift ? b.data : nullptr, 1e-5f, c.floats());
                            scalar().normalise(kind, a.floats(), n, w.data, shift ? b.data : nullptr, 1e-5f,
                                               a.floats());
                            wrong += test::differences(a.floats(), c.floats(), n) != 0;
                        }
                    for (uint32_t kind = 0; kind < 8; kind++) {
                        if (kind == static_cast<uint32_t>(tr::Activation::clamped_swiglu)) continue;
                        reset();
                        scalar().activate(static_cast<tr::Activation>(kind), a.floats(), n);
                        room.activate(static_cast<tr::Activation>(kind), c.floats(), n);
                        wrong += test::differences(a.floats(), c.floats(), n) != 0;
                    }
                    reset();
                    scalar().add(a.floats(), y.floats(), second, n);
                    room.add(c.floats(), y.floats(), second, n);
                    wrong += test::differences(a.floats(), c.floats(), n) != 0;
                    for (uint32_t i = 0; i < n; i++)
                        wrong += !same(c.floats()[i], plus(x.floats()[i], times(second, y.floats()[i])));
                    reset();
                    scalar().multiply(a.floats(), y.floats(), n);
                    room.multiply(c.floats(), y.floats(), n);
                    wrong += test::differences(a.floats(), c.floats(), n) != 0;
                    reset();
                    scalar().merge(a.floats(), first, y.floats(), second, n);
                    room.merge(c.floats(), first, y.floats(), second, n);
                    wrong += test::differences(a.floats(), c.floats(), n) != 0;
                    wrong += !same(scalar().dot(x.floats(), w.data, n), room.dot(x.floats(), w.data, n));
                    CHECK(wrong == 0);
                }
            }
}

TEST_CASE("norms are near their definition")
{
    Random r{34};
    for (const uint32_t n : {1u, 16u, 43u, 500u}) {
        std::vector<float> x(n), y(n), w(n, 1.0f);
        for (float& v : x) v = 3 + 2 * r.number();
        for (const tr::NormKind kind : {tr::NormKind::rms, tr::NormKind::layer}) {
            scalar().normalise(kind, x.data(), n, static_cast<const unsigned char*>(static_cast<const void*>(w.data())),
                               nullptr, 1e-5f, y.data());
            double mean = 0, square = 0;
            for (const float v : x) mean += static_cast<double>(v) / n;
            if (kind == tr::NormKind::rms) mean = 0;
            for (const float v : x) square += (static_cast<double>(v) - mean) * (static_cast<double>(v) - mean) / n;
            for (uint32_t i = 0; i < n; i++)
                CHECK(std::fabs(static_cast<double>(y[i]) -
                                (static_cast<double>(x[i]) - mean) / std::sqrt(square + 1e-5)) < 2e-5);
        }
    }
}

TEST_CASE("scores, weights and mixed values of attention are the documented ones to the bit, in every room")
{
    Random r{35};
    const uint32_t block = tr::attention_block;
    for (const DType type : {DType::f32, DType::f16})
        for (const uint32_t d : {1u, 2u, 5u, 8u, 15u, 16u, 17u, 24u, 40u})
            for (const uint32_t n_keys : {1u, 15u, 16u, 17u, 33u, 48u, 64u, 100u, 127u, 128u})
                for (const uint32_t mood : {0u, 1u, 4u}) {
                    const uint32_t tiles = (n_keys + 15) / 16, bytes = tr::unit_bytes(type);
                    Unaligned k(size_t{tiles} * 16 * d), v(size_t{block} * d), query(size_t{4} * d);
                    std::vector<float> keys(size_t{tiles} * 16 * d), values(size_t{n_keys} * d);
                    fill(r, keys.data(), keys.size(), mood);
                    fill(r, values.data(), values.size(), mood);
                    fill(r, query.floats(), size_t{4} * d, mood);
                    for (size_t i = 0; i < keys.size(); i++) {
                        if (type == DType::f16)
                            weights::store_u16(k.data + i * 2, tr::f32_to_f16(keys[i])),
                                keys[i] = tr::f16_to_f32(tr::f32_to_f16(keys[i]));
                        else weights::store_f32(k.data + i * 4, keys[i]);
                    }
                    for (size_t i = 0; i < values.size(); i++) {
                        if (type == DType::f16)
                            weights::store_u16(v.data + i * bytes, tr::f32_to_f16(values[i])),
                                values[i] = tr::f16_to_f32(tr::f32_to_f16(values[i]));
                        else weights::store_f32(v.data + i * 4, values[i]);
                    }
                    const float* q[4];
                    for (uint32_t i = 0; i < 4; i++) q[i] = query.floats() + size_t{i} * d;
                    std::vector<float> want(size_t{4} * block), p(want), mixed(size_t{4} * d);
                    for (uint32_t i = 0; i < 4; i++)
                        for (uint32_t j = 0; j < tiles * 16; j++) {
                            float acc = 0;
                            for (uint32_t e = 0; e < d; e++)
                                acc = std::fma(q[i][e], keys[(size_t{j} / 16 * d + e) * 16 + j % 16], acc);
                            want[i * block + j] = acc;
                        }
                    float m[4], l[4];
                    p = want;
                    for (uint32_t i = 0; i < 4; i++) {
                        if (mood == 0)                         // some keys are not visible, in one row none is
                            for (uint32_t j = 0; j < tiles * 16; j++)
                                if (i == 3 || j >= n_keys || r.chance(4)) p[i * block + j] = tr::lowest_f32;
                        m[i] = tr::lowest_f32;
                        float lanes[16] = {};
                        for (uint32_t j = 0; j < tiles * 16; j++)
                            if (p[i * block + j] > m[i]) m[i] = p[i * block + j];
                        for (uint32_t j = 0; j < tiles * 16; j++)
                            lanes[j % 16] = plus(lanes[j % 16], tr::exp_f32(plus(p[i * block + j], -m[i])));
                        l[i] = sum_of_16(lanes);
                    }
                    std::vector<float> weights_of(p);
                    for (uint32_t i = 0; i < 4; i++)
                        for (uint32_t j = 0; j < tiles * 16; j++)
                            weights_of[i * block + j] = tr::exp_f32(plus(p[i * block + j], -m[i]));
                    for (uint32_t i = 0; i < 4; i++)
                        for (uint32_t e = 0; e < d; e++) {
                            float acc = 0;
                            for (uint32_t j = 0; j < n_keys; j++)
                                acc = std::fma(weights_of[i * block + j], values[size_t{j} * d + e], acc);
                            mixed[size_t{i} * d + e] = acc;
                        }
                    uint32_t wrong = 0;
                    for (const tr::Isa isa : test::rooms())
                        for (uint32_t n = 1; n <= 4; n++) {
                            const tr::Kernels& room = *tr::room_of(isa);
                            std::vector<float> s(size_t{4} * block), out(size_t{4} * d);
                            room.scores(q, n, d, k.data, type, tiles, s.data());
                            for (uint32_t i = 0; i < n; i++) {
                                wrong += test::differences(&s[i * block], &want[i * block], tiles * 16) != 0;
                                std::copy_n(&p[i * block], block, &s[i * block]);
                                float top, sum;
                                room.softmax(&s[i * block], tiles, &top, &sum);
                                wrong += !(same(top, m[i]) && same(sum, l[i]));
                                wrong += test::differences(&s[i * block], &weights_of[i * block], tiles * 16) != 0;
                            }
                            room.mix(s.data(), n, n_keys, v.data, type, d, out.data());
                            wrong += test::differences(out.data(), mixed.data(), size_t{n} * d) != 0;
                        }
                    if (wrong)
                        FAIL_CHECK("type ", static_cast<int>(type), ", d ", d, ", keys ", n_keys, ", mood ", mood);
                }
}

TEST_CASE("a softmax with one entry far below the others ignores it")
{
    std::vector<float> s(128, tr::lowest_f32);
    s[0] = 1;
    s[1] = 1;
    s[2] = -1e30f;
    for (const tr::Isa isa : test::rooms()) {
        std::vector<float> p = s;
        float m, l;
        tr::room_of(isa)->softmax(p.data(), 8, &m, &l);
        CHECK(m == 1);
        CHECK(l == 2);
        CHECK(p[0] == 1);
        CHECK(p[2] == 0);
        CHECK(p[100] == 0);
    }
}

// ---- The pool -------------------------------------------------------------------------------------------------------

TEST_CASE("a pool of threads runs every slice exactly once, whatever their number was before")
{
    struct Counts {
        std::atomic<uint32_t> of[64];
    };
    for (const uint32_t threads : {1u, 2u, 3u, 8u}) {
        tr::ThreadPool pool(threads);
        Random r{threads};
        uint32_t wrong = 0;
        for (uint32_t round = 0; round < 4000; round++) {
            Counts counts = {};
            const uint32_t n = round % 3 ? r.between(1, 64) : round % 2 ? 1 : 64;
            tr::ThreadPool::parallel_for(
                &pool, n, [](void* data, uint32_t slice) { static_cast<Counts*>(data)->of[slice % 64]++; }, &counts);
            for (uint32_t i = 0; i < 64; i++) wrong += counts.of[i] != (i < n ? 1u : 0u);
        }
        CHECK(wrong == 0);
    }
    CHECK(tr::default_threads() >= 1);
}
