// The same bits everywhere: small random models of every number format and several architectures, built in memory, run in every
// room of this build. Prints "room case checksum" a line, FNV-1a over the bits of all logits. Needs no file, no heap and no C
// library (a bare build links embedded/startup.cpp), so it runs on every target; cross.sh compares what they print.
#define TRANSFORMER_IMPLEMENTATION
#include "transformer.hpp"

#if __STDC_HOSTED__
#include <stdio.h>
static void put(const char* text, uint32_t n) { fwrite(text, 1, n, stdout); }
#else
void put(const char* text, uint32_t n);
#endif

using namespace transformer;

alignas(64) static unsigned char file[192 * 1024], memory[128 * 1024];
static Model model;
static Session session;
static uint32_t n_tensors, random_state;
static uint64_t end;

// >> A checkpoint in memory -------------------------------------------------------------------------------------------

static void write(uint64_t at, uint64_t x, int n)
{
    for (int i = 0; i < n; i++) file[at + static_cast<uint64_t>(i)] = static_cast<unsigned char>(x >> 8 * i);
}

static float uniform(float least, float most)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    const float x = static_cast<float>(random_state >> 8) * 5.9604644775390625e-8f;
    const volatile float width = (most - least) * x;           // volatile: no fused multiply-add on machines that have one
    return least + width;
}

static uint32_t word_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

// Entries come in ascending order of stack, layer, role, bias. Values are uniform around `middle`.
static void add(Role role, bool bias, uint32_t stack, uint32_t layer, DType type, uint32_t rows, uint32_t cols, uint32_t count,
    float middle, float spread)
{
    const uint64_t entry = 576 + uint64_t{n_tensors++} * 32;
    end = round_up(end, 64);
    write(entry, static_cast<uint32_t>(role) | (bias ? 128u : 0u), 1);
    write(entry + 1, static_cast<uint32_t>(type), 1);
    write(entry + 2, stack, 1);
    write(entry + 4, layer, 2);
    write(entry + 8, rows, 4);
    write(entry + 12, cols, 4);
    write(entry + 16, count, 4);
    write(entry + 24, end, 8);
    static float values[16 * 256];
    for (uint32_t matrix = 0; matrix < count; matrix++)
        for (uint32_t row = 0; row < rows; row += is_quantised(type) ? 16u : 1u) {
            const uint32_t n = !is_quantised(type) ? 1 : rows - row < 16 ? rows - row : 16;
            for (uint32_t i = 0; i < n * cols; i++) values[i] = uniform(middle - spread, middle + spread);
            if (is_quantised(type)) {
                quantize_tile(type, values, n, cols, file + end);
                end += matrix_bytes(type, 16, cols);
            } else {
                for (uint32_t i = 0; i < cols; i++, end += unit_bytes(type))
                    write(end, type == DType::f32 ? word_of(values[i]) : type == DType::f16 ? f32_to_f16(values[i])
                        : type == DType::bf16 ? f32_to_bf16(values[i])
                               : static_cast<uint32_t>(values[i]), static_cast<int>(unit_bytes(type)));
            }
        }
}

struct Case {
    const char* name;
    DType type, cache;
    // tokens of the prompt; layers of the encoder of an encoder-decoder
    uint32_t prompt, batch, encoder_layers;
    bool pre, post, out, biases, gate, final_norm, positions, types, qk_norm, sinks, alibi, relative, pooler;
    Config config;
};

static void norm(const Case& k, bool there, Role role, uint32_t stack, uint32_t layer, uint32_t cols)
{
    if (!there) return;
    add(role, false, stack, layer, DType::f32, 1, cols, 1, 1.0f, 0.2f);
    if (k.config.norm == NormKind::layer) add(role, true, stack, layer, DType::f32, 1, cols, 1, 0, 0.2f);
}

static void linear(const Case& k, Role role, uint32_t stack, uint32_t layer, uint32_t rows, uint32_t cols, uint32_t count = 1)
{
    add(role, false, stack, layer, role == Role::router ? DType::f32 : k.type, rows, cols, count, 0, 0.25f);
    if (k.biases && role != Role::wk_b && role != Role::wv_b)
        add(role, true, stack, layer, DType::f32, 1, rows, count, 0, 0.2f);
}

static void add_stack(const Case& k, const Config& c, uint32_t stack)
{
    const uint32_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim, experts = c.n_experts > 1 ? c.n_experts : 1;
    add(Role::token_embedding, false, stack, 0, k.type, c.vocab_size, c.embedding_dim, 1, 0, 1);
    if (k.types) add(Role::type_embedding, false, stack, 0, k.type, c.n_types, c.embedding_dim, 1, 0, 1);
    if (k.positions) add(Role::position_embedding, false, stack, 0, k.type, c.max_seq_len, c.embedding_dim, 1, 0, 0.5f);
    norm(k, k.out, Role::embedding_norm, stack, 0, c.dim);
    if (c.window) add(Role::layer_flags, false, stack, 0, DType::u8, 1, c.n_layers, 1, 1.5f, 0.4f);
    if (k.alibi) add(Role::alibi_slopes, false, stack, 0, DType::f32, 1, c.n_heads, 1, 0.2f, 0.1f);
    norm(k, k.final_norm, Role::final_norm, stack, 0, c.dim);
    if (stack == 0 && k.pooler) linear(k, Role::head_dense, 0, 0, c.dim, c.dim);
    if (stack == 0 && c.n_outputs) linear(k, Role::lm_head, 0, 0, c.n_outputs, c.dim);
    for (uint32_t i = 1; i <= c.n_layers; i++) {
        const bool cross = (c.flags & flag_cross) != 0;
        norm(k, k.pre, Role::attn_norm_pre, stack, i, c.dim);
        norm(k, k.post, Role::attn_norm_post, stack, i, c.dim);
        norm(k, k.out, Role::attn_norm_out, stack, i, c.dim);
        norm(k, cross && k.pre, Role::cross_norm_pre, stack, i, c.dim);
        norm(k, cross && k.out, Role::cross_norm_out, stack, i, c.dim);
        norm(k, k.pre, Role::ffn_norm_pre, stack, i, c.dim);
        norm(k, k.post, Role::ffn_norm_post, stack, i, c.dim);
        norm(k, k.out, Role::ffn_norm_out, stack, i, c.dim);
        const bool mla = c.kv_lora_rank != 0;
        linear(k, Role::wq, stack, i, mla ? c.n_heads * (c.rope_dim + c.nope_head_dim) : q,
            c.q_lora_rank ? c.q_lora_rank : c.dim);
        if (!mla) linear(k, Role::wk, stack, i, kv, c.dim);
        if (!mla) linear(k, Role::wv, stack, i, c.n_kv_heads * c.v_head_dim, c.dim);
        linear(k, Role::wo, stack, i, c.dim, c.n_heads * (mla ? c.mla_v_head_dim : c.v_head_dim));
        norm(k, k.qk_norm, Role::q_norm, stack, i, c.head_dim);
        norm(k, k.qk_norm, Role::k_norm, stack, i, c.head_dim);
        if (k.sinks) add(Role::sinks, false, stack, i, DType::f32, 1, c.n_heads, 1, 0, 1);
        if (k.relative)
            add(Role::relative_bias, false, stack, i, DType::f32, c.n_heads, 2 * c.relative_distance + 1, 1, 0, 0.5f);
        if (c.q_lora_rank) linear(k, Role::wq_a, stack, i, c.q_lora_rank, c.dim);
        norm(k, c.q_lora_rank != 0, Role::q_a_norm, stack, i, c.q_lora_rank);
        if (mla) linear(k, Role::wkv_a, stack, i, c.head_dim, c.dim);
        norm(k, mla, Role::kv_a_norm, stack, i, c.kv_lora_rank);
        if (mla) linear(k, Role::wk_b, stack, i, c.kv_lora_rank, c.nope_head_dim, c.n_heads);
        if (mla) linear(k, Role::wv_b, stack, i, c.mla_v_head_dim, c.kv_lora_rank, c.n_heads);
        if (cross) {
            linear(k, Role::cross_wq, stack, i, q, c.dim);
            linear(k, Role::cross_wk, stack, i, kv, c.dim);
            linear(k, Role::cross_wv, stack, i, c.n_kv_heads * c.v_head_dim, c.dim);
            linear(k, Role::cross_wo, stack, i, c.dim, c.n_heads * c.v_head_dim);
        }
        if (k.gate) linear(k, Role::gate, stack, i, c.hidden_dim, c.dim, experts);
        linear(k, Role::up, stack, i, c.hidden_dim, c.dim, experts);
        linear(k, Role::down, stack, i, c.dim, c.hidden_dim, experts);
        if (c.n_experts) linear(k, Role::router, stack, i, c.n_experts, c.dim);
        if (c.shared_hidden_dim) {
            if (k.gate) linear(k, Role::shared_gate, stack, i, c.shared_hidden_dim, c.dim);
            linear(k, Role::shared_up, stack, i, c.shared_hidden_dim, c.dim);
            linear(k, Role::shared_down, stack, i, c.dim, c.shared_hidden_dim);
        }
    }
}

static void write_config(uint64_t at, const Config& c)
{
    uint32_t words[sizeof(Config) / 4];
    memcpy(words, &c, sizeof c);
    for (uint32_t i = 0; i < sizeof(Config) / 4; i++) write(at + 4 * i, words[i], 4);
}

static void build(const Case& k)
{
    memset(file, 0, sizeof file);
    n_tensors = 0;
    random_state = 2463534242u;
    end = 576 + 128 * 32;
    add_stack(k, k.config, 0);
    Config encoder;
    if (k.encoder_layers) {
        encoder = k.config;
        encoder.n_layers = k.encoder_layers;
        encoder.flags = 0;
        encoder.n_outputs = 0;
        add_stack(k, encoder, 1);
    }
    memcpy(file, "TRNSFRMR", 8);
    write(8, TRANSFORMER_FORMAT_VERSION, 4);
    write(12, n_tensors, 4);
    write(16, end, 8);
    write(40, 2, 4);
    write_config(64, k.config);
    write_config(320, encoder);
}

// >> Cases ------------------------------------------------------------------------------------------------------------

static Case llama(const char* name, DType type, uint32_t prompt, DType cache = DType::f16)
{
    Case k = {};
    k.name = name;
    k.type = type;
    k.cache = cache;
    k.prompt = prompt;
    k.batch = 5;
    k.pre = k.gate = k.final_norm = true;
    Config& c = k.config;                                      // widths that are no multiples of 16 or 32
    c.dim = c.embedding_dim = 40;
    c.hidden_dim = 52;
    c.n_layers = 2;
    c.n_heads = 4;
    c.n_kv_heads = 2;
    c.head_dim = c.v_head_dim = c.rope_dim = 10;
    c.vocab_size = c.n_outputs = 70;
    c.max_seq_len = 256;
    return k;
}

// Case i, in the order of the list below; false: there are no more.
static bool case_of(uint32_t i, Case* k)
{
    *k = llama("q8_0", DType::q8_0, 9);
    Config& c = k->config;
    switch (i) {
    case 0: return true;
    case 1: *k = llama("q4_0", DType::q4_0, 9); return true;
    case 2: *k = llama("q4_1", DType::q4_1, 9); return true;
    case 3: *k = llama("f32", DType::f32, 9, DType::f32); return true;
    case 4: *k = llama("f16", DType::f16, 9); return true;
    case 5: *k = llama("bf16", DType::bf16, 9, DType::f32); return true;
    case 6:                                                    // over the edge of an attention block
        k->name = "long";
        k->prompt = 150;
        k->batch = 64;
        c.n_layers = 1;
        return true;
    case 7:
        k->name = "layernorm-gelu-learned";
        c.norm = NormKind::layer;
        c.activation = Activation::gelu;
        c.rope_dim = 0;
        k->biases = k->positions = true;
        k->gate = false;
        return true;
    case 8:
        k->name = "sandwich-softcap-window";
        k->post = k->qk_norm = true;
        c.activation = Activation::gelu_tanh;
        c.attn_softcap = 5.0f;
        c.logit_softcap = 3.0f;
        c.embedding_scale = 1.7f;
        c.window = 4;
        return true;
    case 9:
        k->name = "parallel-partial-rope-sinks";
        k->sinks = true;
        c.flags |= flag_parallel;
        c.rope_dim = 4;
        c.activation = Activation::relu_squared;
        return true;
    case 10:
        k->name = "experts";
        c.n_experts = 5;
        c.n_experts_active = 2;
        c.shared_hidden_dim = 24;
        c.flags |= flag_renormalise;
        return true;
    case 11:
        k->name = "mla";
        c.n_kv_heads = 1;
        c.q_lora_rank = 20;
        c.kv_lora_rank = c.v_head_dim = 24;
        c.nope_head_dim = 8;
        c.mla_v_head_dim = 12;
        c.rope_dim = 6;
        c.head_dim = 30;
        return true;
    case 12:
        k->name = "alibi-relative-sinusoidal";
        k->alibi = k->relative = true;
        c.rope_dim = 0;
        c.relative_distance = 3;
        c.flags |= flag_sinusoidal;
        return true;
    case 13:
        k->name = "encoder-mean-tanh";
        k->pre = k->gate = k->final_norm = false;
        k->out = k->biases = k->positions = k->types = k->pooler = true;
        c.norm = NormKind::layer;
        c.activation = Activation::gelu;
        c.head_activation = Activation::tanh;
        c.pooling = Pooling::mean;
        c.n_types = 2;
        c.n_outputs = 3;
        c.rope_dim = 0;
        c.flags = 0;
        return true;
    case 14:
        k->name = "encoder-decoder";
        k->encoder_layers = 1;
        k->pre = k->final_norm = false;
        k->out = k->biases = true;
        k->gate = false;
        c.activation = Activation::quick_gelu;
        c.norm = NormKind::layer;
        c.rope_dim = 0;
        c.flags |= flag_cross | flag_sinusoidal;
        return true;
    default: return false;
    }
}

// >> Run --------------------------------------------------------------------------------------------------------------

static void print(const char* text)
{
    uint32_t n = 0;
    while (text[n]) n++;
    put(text, n);
}

static uint32_t checksum;

static void hash(const float* x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        for (uint32_t shift = 0; shift < 32; shift += 8) checksum = (checksum ^ (word_of(x[i]) >> shift & 255)) * 16777619u;
}

// The prompt in batches, then six tokens one by one, each the best one of the logits before it.
static Status run(const Case& k, Isa isa)
{
    static int32_t ids[256];
    const uint32_t n_outputs = k.config.n_outputs;
    Options o;
    o.capacity = k.prompt + 6;
    o.batch = k.batch;
    o.cache = k.cache;
    o.isa = isa;
    for (uint32_t i = 0; i < k.prompt; i++) ids[i] = static_cast<int32_t>((i * 37 + 11) % k.config.vocab_size);
    Status status = open(file, end, &model);
    if (status) status = start(model, o, memory, sizeof memory, &session);
    Input in;
    in.tokens = ids;
    in.count = k.prompt;
    Rows hidden;
    if (status && k.encoder_layers) {
        status = encode(session, in, &hidden);
        if (status) hash(hidden.data, uint64_t{hidden.count} * hidden.dim);
    }
    float* logits = nullptr;
    if (status) status = forward(session, in, &logits);
    if (status) hash(logits, n_outputs);
    for (uint32_t i = 0; status && is_causal(k.config) && i < 6; i++) {
        Sampler greedy;
        greedy.temperature = 0;
        int32_t id;
        status = sample(greedy, logits, n_outputs, &id);
        in.tokens = &id;
        in.count = 1;
        if (status) status = forward(session, in, &logits);
        if (status) hash(logits, n_outputs);
    }
    return status;
}

int main()
{
    static Case k;
    int failed = 0;
    for (uint32_t isa = 1; isa < n_isas; isa++)
        for (uint32_t i = 0; room_available(static_cast<Isa>(isa)) && case_of(i, &k); i++) {
            build(k);
            checksum = 2166136261u;
            const Status status = run(k, static_cast<Isa>(isa));
            char line[] = " 00000000\n";
            for (uint32_t d = 0; d < 8; d++) line[d + 1] = "0123456789abcdef"[checksum >> (28 - 4 * d) & 15];
            print(status ? room_name(session) : "failed");
            print(" ");
            print(k.name);
            if (status) print(line);
            else {
                print(": ");
                print(status.text);
                print(": ");
                print(status.field);
                print("\n");
                failed = 1;
            }
        }
    return failed;
}
