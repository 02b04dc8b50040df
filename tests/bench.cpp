// What the kernels and a whole model do on this machine: `make bench`. Figures are medians of several runs, one thread unless
// said otherwise; they move with the machine and the hour, so compare only pairs taken back to back.
#define TRANSFORMER_IMPLEMENTATION
#define TRANSFORMER_THREADS
#include "transformer.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

using namespace transformer;

template <class Work> double median_seconds(Work work)
{
    std::vector<double> times;
    for (int run = 0; run < 7; run++) {
        const auto begin = std::chrono::steady_clock::now();
        work();
        times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

uint32_t random_word(uint32_t& state) { return state = state * 1664525u + 1013904223u; }

// One matrix product of a room: `bytes` of weights pass once, n rows of activations.
void bench_product(Isa isa, const char* name, DType type, uint32_t n)
{
    const Kernels* const room = room_of(isa);
    if (!room) return;
    const uint32_t rows = 4096, cols = 2048;
    std::vector<unsigned char> weights(matrix_bytes(type, rows, cols) + 64);
    uint32_t state = 1;
    for (unsigned char& w : weights) w = static_cast<unsigned char>(random_word(state) >> 24 & 0x3b);   // small finite values
    std::vector<float> x(uint64_t{n} * cols), y(uint64_t{n} * rows);
    for (float& v : x) v = static_cast<float>(random_word(state) >> 8) / 8388608.0f - 1.0f;
    std::vector<Group> groups(uint64_t{n} * cols / 32);
    std::vector<Residual> rest(uint64_t{n} * (most_residuals(cols / 32) + 1));
    quantise_rows(*room, {x.data(), n, cols}, 0, panels_of(n), groups.data(), rest.data());
    const ProductJob::Part part = {weights.data(), nullptr, rows, 0, is_quantised(type) ? rows / 16 : rows, y.data()};
    const ProductJob job = {&part, 1, cols, x.data(), groups.data(), rest.data(), n};
    const double s = median_seconds([&] { room->product[static_cast<uint32_t>(type)](job); });
    std::printf("%-8s %-5s %4u rows  %7.1f GB/s of weights  %7.1f G multiply-adds/s\n", room->name, name, n,
                static_cast<double>(matrix_bytes(type, rows, cols)) / s / 1e9, static_cast<double>(rows) * cols * n / s / 1e9);
}

// A stories15M-shaped attention layer's worth of keys: scores, softmax and values of one head.
void bench_attention(Isa isa, uint32_t n_queries)
{
    const Kernels* const room = room_of(isa);
    if (!room) return;
    const uint32_t d = 64, blocks = 16;
    std::vector<unsigned char> k(blocks * attention_block * d * 2, 0x2c), v(k);
    std::vector<float> q(4 * d, 0.01f), scores(4 * attention_block), out(4 * d);
    const float* const rows[4] = {&q[0], &q[d], &q[2 * d], &q[3 * d]};
    const double s = median_seconds([&] {
        for (uint32_t b = 0; b < blocks; b++) {
            float m, l;
            room->scores(rows, n_queries, d, &k[b * attention_block * d * 2], DType::f16, 8, scores.data());
            for (uint32_t i = 0; i < n_queries; i++) room->softmax(&scores[i * attention_block], 8, &m, &l);
            room->mix(scores.data(), n_queries, attention_block, &v[b * attention_block * d * 2], DType::f16, d, out.data());
        }
    });
    std::printf("%-8s attention, f16 cache, %u queries together: %6.1f G multiply-adds/s\n", room->name, n_queries,
                2.0 * d * blocks * attention_block * n_queries / s / 1e9);
}

// Norms of rows of 4,096 values: RMSNorm against LayerNorm.
void bench_norm(Isa isa)
{
    const Kernels* const room = room_of(isa);
    if (!room) return;
    const uint32_t dim = 4096, rows = 256;
    std::vector<float> x(dim, 0.5f), y(dim), w(dim, 1.0f), b(dim, 0.1f);
    double seconds[2];
    for (NormKind kind : {NormKind::rms, NormKind::layer})
        seconds[static_cast<int>(kind)] = median_seconds([&] {
            const unsigned char* const gain = static_cast<const unsigned char*>(static_cast<const void*>(w.data()));
            const unsigned char* const shift = static_cast<const unsigned char*>(static_cast<const void*>(b.data()));
            for (uint32_t i = 0; i < rows; i++)
                room->normalise(kind, x.data(), dim, gain, kind == NormKind::layer ? shift : nullptr, 1e-5f, y.data());
        });
    std::printf("%-8s norm of %u values: RMSNorm %.2f us, LayerNorm %.2f us (%.2f times)\n", room->name, dim,
        seconds[0] / rows * 1e6,
                seconds[1] / rows * 1e6, seconds[1] / seconds[0]);
}

void bench_model(const char* path, uint32_t n_threads)
{
    File file;
    Model model;
    Session session;
    Options options;
    ThreadPool pool(n_threads);
    Status status = map_file(path, &file);
    if (status) status = open(file.data, file.size, &model);
    options.capacity = std::min(256u, model.main.config.max_seq_len);
    options.slices = n_threads;
    options.parallel_for = ThreadPool::parallel_for;
    options.parallel_user = &pool;
    std::vector<uint64_t> memory(session_size(model, options) / 8 + 8);
    if (status) status = start(model, options, memory.data(), memory.size() * 8, &session);
    if (!status) {
        std::printf("%s: %s\n", path, status.text);
        return;
    }
    std::vector<int32_t> ids(options.capacity / 2, 5);
    Input in;
    in.tokens = ids.data();
    const double prefill = median_seconds([&] {
        in.count = static_cast<uint32_t>(ids.size());
        rewind(session, 0);
        forward(session, in, nullptr);
    });
    const double decode = median_seconds([&] {
        in.count = 1;
        rewind(session, 0);
        for (size_t i = 0; i < ids.size(); i++) forward(session, in, nullptr);
    });
    std::printf("%s, %u threads: prefill %u: %.0f tokens/s, decode %u: %.0f tokens/s\n", path, n_threads, options.capacity / 2,
                static_cast<double>(ids.size()) / prefill, options.capacity / 2, static_cast<double>(ids.size()) / decode);
    unmap_file(&file);
}

// Reading is all that decoding does: bytes a second that one thread, and all of them, can read once from memory.
void bench_memory()
{
    const size_t n = size_t{1} << 28;
    unsigned char* const bytes = static_cast<unsigned char*>(std::aligned_alloc(size_t{1} << 21, n));
#if defined(__linux__)
    madvise(bytes, n, MADV_HUGEPAGE);                          // as much as the machine gives
#endif
    std::memset(bytes, 1, n);
    const uint64_t* const data = static_cast<const uint64_t*>(static_cast<const void*>(bytes));
    std::atomic<uint64_t> total{0};
    for (uint32_t threads : {1u, default_threads()}) {
        const double s = median_seconds([&] {
            std::vector<std::thread> readers;
            for (uint32_t t = 0; t < threads; t++)
                readers.emplace_back([&, t] {
                    uint64_t sums[8] = {};
                    const size_t begin = n / 8 * t / threads / 8 * 8, end = n / 8 * (t + 1) / threads / 8 * 8;
                    for (size_t i = begin; i < end; i += 8)
                        for (size_t k = 0; k < 8; k++) sums[k] += data[i + k];
                    for (uint64_t x : sums) total += x;
                });
            for (std::thread& r : readers) r.join();
        });
        std::printf("memory: %.1f GB/s read with %u threads\n", static_cast<double>(n) / s / 1e9, threads);
    }
    std::free(bytes);
}

}  // namespace

int main(int argc, char** argv)
{
    if (argc > 1 && std::strcmp(argv[1], "--memory") == 0) {
        bench_memory();
        return 0;
    }
    const struct { const char* name; DType type; } types[] = {{"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16},
                                                             {"q8_0", DType::q8_0}, {"q4_0", DType::q4_0},
                                                                 {"q4_1", DType::q4_1}};
    for (Isa isa : {Isa::avx512, Isa::avx2, Isa::neon, Isa::scalar})
        for (const auto& t : types)
            for (uint32_t n : {1u, 64u})
                if (isa != Isa::scalar || n == 1) bench_product(isa, t.name, t.type, n);
    for (Isa isa : {Isa::avx512, Isa::avx2, Isa::neon, Isa::scalar})
        for (uint32_t n : {1u, 4u}) bench_attention(isa, n);
    for (Isa isa : {Isa::avx512, Isa::avx2, Isa::neon, Isa::scalar}) bench_norm(isa);
    for (uint32_t threads : {1u, default_threads()}) bench_model(argc > 1 ? argv[1] : "weights/stories.bin", threads);
}
