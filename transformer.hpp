// transformer.hpp - the whole transformer block family in one dependency-free C++17 header
//
// Decoders, encoders and encoder-decoders, from a Cortex-M to a desktop: quantised weights used in place, memory that the
// caller owns, SIMD chosen at run time, and the same bits on every machine, for every thread count and every batch split.
//
//     #define TRANSFORMER_IMPLEMENTATION              // in exactly one .cpp file
//     #include "transformer.hpp"
//
//     transformer::Model model;                       // bytes: a checkpoint in flash, RAM or a mapped file
//     transformer::Status status = transformer::open(bytes, size, &model);
//     transformer::Options options;
//     options.capacity = 256;                         // positions that the session can hold
//     static unsigned char memory[...];               // session_size(model, options) bytes, yours
//     transformer::Session session;
//     if (status) status = transformer::start(model, options, memory, sizeof memory, &session);
//     if (status) status = transformer::generate(session, prompt_ids, n_ids, {}, print_piece, nullptr);
//     if (!status) puts(status.text);
//
// Licence: MIT, see LICENSE.
//
// Contents: search for a tag; behind it the budget of lines that `make lint` holds it to
//   Part I    Interface
//     >> 1 Switches                     70   macros
//     >> 2 Status                       22   what every fallible function returns
//     >> 3 Config                      130   all that changes the numbers; the record of the file
//     >> 4 Tensors                      66   views of weights, their roles
//     >> 5 Model                       130   slots that are present or absent
//     >> 6 Session                     234   options, observer, and plan(): where everything lies
//     >> 7 Functions                   220   the interface in use; switches of the implementation
//   Part II   The model
//     >> 8 Operations                   75   what the model is written in
//     >> 9 Forward                     130   embed, blocks, final norm, head; encoders
//     >> 10 The block                   55   one function, every published wiring
//     >> 11 Attention                  522   MHA, GQA, MQA, MLA, cross; its order of arithmetic
//     >> 12 Feed-forward               145   gated or plain, experts, router
//     >> 13 Positions                  135   embeddings, convolution, sinusoids, RoPE
//     >> 14 Norms                       25   LayerNorm and RMSNorm are one function
//   Part III  Numbers
//     >> 15 Formats                    150   f16, bf16, tiles of q8_0, q4_0, q4_1
//     >> 16 Mathematics                115   our own sqrt, exp, log, cos, sin, fused multiply-add
//     >> 17 Products                   125   y = W x + b, shared out over threads
//     >> 18 Rooms                      508   an ISA is one struct of words
//     >> 19 Kernels                    735   written once over the words
//   Part IV   Bytes
//     >> 20 Checkpoint                 550   the flat file: layout, checks, open, start
//     >> 21 Tokenizer                  1150   text to ids and back
//     >> 22 Sampler                    105   greedy, temperature, top-k, top-p, min-p
//     >> 23 Generate                    70   prompt, sample, feed back
//     >> 24 Threads                    226   a small pool, on request
//     >> 25 Files                      100   map or read a file; can be left out
//
// Notation: T tokens of a batch, S positions attended to, D dim, H n_heads, K n_kv_heads, d head_dim, F hidden_dim,
// E n_experts, V vocab_size, L n_layers, G groups of 32 columns. Shapes stand in parentheses, matrices are row-major
// (rows, cols) and act as y = W x + b. "f32" is IEEE binary32 throughout.
//
// References
//   [1] Vaswani et al. 2017, Attention is all you need            [2] Ba et al. 2016, Layer normalization
//   [3] Zhang & Sennrich 2019, Root mean square layer norm        [4] Shazeer 2020, GLU variants improve transformer
//   [5] Su et al. 2021, RoFormer: rotary position embedding       [6] Xiong et al. 2020, On layer normalization
//   [7] Ding et al. 2021, CogView (sandwich norm)                 [8] Henry et al. 2020, Query-key normalization
//   [9] Shazeer 2019, Fast transformer decoding (MQA)            [10] Ainslie et al. 2023, GQA
//  [11] DeepSeek-AI 2024, DeepSeek-V2 (MLA)                      [12] Shazeer et al. 2017, Sparsely-gated experts
//  [13] Press et al. 2022, ALiBi                                 [14] Raffel et al. 2020, T5 (relative bias)
//  [15] He et al. 2021, DeBERTa (disentangled attention)         [16] Milakov & Gimelshein 2018, Online softmax
//  [17] Hendrycks & Gimpel 2016, GELU                            [18] Beltagy et al. 2020, Longformer (windows)
//  [19] Xiao et al. 2024, Attention sinks                        [20] Wang & Komatsuzaki 2021, GPT-J (parallel block)
//  [21] Kudo & Richardson 2018, SentencePiece                    [22] Sennrich et al. 2016, Subword units (BPE)
//  [23] Radford et al. 2022, Whisper                             [24] Holtzman et al. 2020, Nucleus sampling
//  [25] Devlin et al. 2018, BERT (WordPiece)                     [26] Aoe 1989, Double-array tries

#ifndef TRANSFORMER_ROOM_PASS                                  // set only while the header includes itself, see >> 18 Rooms
#ifndef TRANSFORMER_HPP
#define TRANSFORMER_HPP

// ==== Part I: Interface ==============================================================================================

// >> 1 Switches -------------------------------------------------------------------------------------------------------
// Define them before the include; every unit of a program should see the same ones.
//   TRANSFORMER_IMPLEMENTATION  in one .cpp file: compile Parts II to IV there
//   TRANSFORMER_STATIC          make every function static to that unit
//   TRANSFORMER_NAMESPACE       another name for the namespace (two vendored versions can live in one program)
//   TRANSFORMER_NO_STDIO        leave out section 25 (files); nothing of the operating system is then used
//   TRANSFORMER_THREADS         compile section 24, a small pool on <thread>; without it use Options::parallel_for
//   TRANSFORMER_ISA             one room only, by name (Scalar, NeonDot, Avx2, ...): microcontrollers and tests
//   TRANSFORMER_FEATURES        mask of Feature: what is left out costs no code
//   TRANSFORMER_SELF            the header's own file name, if you rename it

#include <stddef.h>                                            // <cstdint> is missing from bare RISC-V toolchains
#include <stdint.h>
#include <string.h>

#ifndef TRANSFORMER_NAMESPACE
#define TRANSFORMER_NAMESPACE transformer
#endif
#ifndef TRANSFORMER_SELF
#define TRANSFORMER_SELF "transformer.hpp"
#endif
#ifndef TRANSFORMER_FEATURES
#define TRANSFORMER_FEATURES 0xffffffffu
#endif
#ifdef TRANSFORMER_STATIC
#define TRANSFORMER_API [[maybe_unused]] static
#else
#define TRANSFORMER_API
#endif

// The promise of equal bits needs IEEE arithmetic as written: refuse what breaks it.
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || \
    (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "transformer.hpp: -ffast-math and -Ofast change results; compile with -O2 or -O3"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0 && __FLT_EVAL_METHOD__ != 16
#error "transformer.hpp: float must be evaluated as float (32-bit x86: add -msse2 -mfpmath=sse)"
#endif

#define TRANSFORMER_VERSION "0.1.0"
#define TRANSFORMER_FORMAT_VERSION 1u

namespace TRANSFORMER_NAMESPACE {

// Parts of the family that a small chip may leave out: TRANSFORMER_FEATURES is a mask of these bits. What a checkpoint needs is
// in the header that `run import --header` writes; open() refuses one that needs more, start() such a cache or slices.
enum class Feature : uint32_t {
    layer_norm = 1 << 0, biases = 1 << 1, experts = 1 << 2, mla = 1 << 3, qk_norm = 1 << 4, softcap = 1 << 5,
    cross = 1 << 6,
    encoder = 1 << 7,               // what is not causal, pooling, Whisper's convolutions
    relative = 1 << 8,              // ALiBi, relative biases and keys, sinks
    activations = 1 << 9,           // all but SiLU with a gate
    embeddings = 1 << 10,           // learned and sinusoidal positions, types; norms, maps and scales around embedding and head
    windows = 1 << 11,              // flags of layers, windows, chunks, a second set of rotary positions, clips, temperatures
    frequencies = 1 << 12,          // without: rope_freqs must stand in the checkpoint
    dense_weights = 1 << 13,        // f32, f16 and bf16 matrices
    quantised_weights = 1 << 14,    // q8_0 ones
    nibble_weights = 1 << 15,       // q4_0 and q4_1 ones
    f32_cache = 1 << 16, quantised_cache = 1 << 17,            // beside f16
    sampling = 1 << 18,             // without: greedy only
    observers = 1 << 19,
    slices = 1 << 20,
    checks = 1 << 21,               // without: open() trusts the bytes, which must then be part of the program itself
    messages = 1 << 22,             // without: a Status has its code and a number, no text
    tokenizer = 1 << 23             // without: no tokenize(); detokenize() stays
};
template <class... F> static constexpr uint32_t mask_of(F... features) { return (static_cast<uint32_t>(features) | ...); }
static constexpr bool has(Feature f) { return (TRANSFORMER_FEATURES & static_cast<uint32_t>(f)) != 0; }

// >> 2 Status ---------------------------------------------------------------------------------------------------------
// Every function that can fail returns one. `text` is static and says what is wrong, `field` names the field or tensor ("" if
// none), `where` is the byte offset, index or number that it speaks of (0 if none). The library never prints, exits, aborts,
// throws or allocates.
enum class Code : uint8_t {
    ok, not_a_checkpoint, bad_version, truncated, bad_config, bad_tensor, missing_tensor, bad_vocabulary, misaligned,
    memory_too_small, bad_argument, session_full, bad_token, no_memory_rows, not_a_number, cancelled, file_error,
    not_supported
};
struct Status {
    Code code = Code::ok;
    const char* text = "";
    const char* field = "";
    uint64_t where = 0;
    constexpr Status() = default;
    constexpr Status(Code c, const char* what, const char* in, uint64_t at) : code(c), text(has(Feature::messages) ? what : ""),
        field(has(Feature::messages) ? in : ""), where(at) {}
    constexpr explicit operator bool() const { return code == Code::ok; }
};

// >> 3 Config ---------------------------------------------------------------------------------------------------------
// All that changes the numbers of one stack of blocks, as 64 little-endian words: this struct is the file's record.
// 0 means absent or off unless said otherwise. Behind each field: its Hugging Face and GGUF keys.
enum class NormKind : uint32_t { rms, layer };
enum class Activation : uint32_t { silu, gelu, gelu_tanh, relu, relu_squared, quick_gelu, clamped_swiglu, tanh, identity };
enum class Router : uint32_t { softmax, sigmoid };             // scores of the experts before the choice
enum class Pooling : uint32_t { none, first, mean, last };     // which rows reach the head: all, [CLS], their mean, the last

enum : uint32_t {                                              // Config::flags
    flag_causal = 1,                // each position sees itself and earlier ones
    flag_parallel = 2,              // attention and feed-forward read the same x [20]
    flag_sinusoidal = 4,            // pe[p, 2i] = sin(p / 10000^(2i/D)), pe[p, 2i+1] = cos; added to the embedding [1]
    flag_qk_norm_layer = 8,         // the norms of q and k are LayerNorm, else RMSNorm
    flag_qk_norm_after_rope = 16,   // Llama 4
    flag_renormalise = 32,          // weights of the chosen experts sum to 1
    flag_scale_expert_input = 64,   // Llama 4: the router's weight multiplies the expert's input, not its output
    flag_group_top2 = 128,          // DeepSeek-V3: a group's score is the sum of its two best experts, else its best
    flag_cross = 256,               // the layers have cross attention: this is an encoder-decoder's decoder
    // without a head: the pooled rows of a text are scaled to length 1 (embed of the command line)
    flag_normalise = 512
};
enum : uint8_t {                                               // the byte of each layer in Stack::layer_flags
    layer_local = 1,                // window and chunk hold in this layer
    layer_no_rope = 2,              // NoPE layer
    layer_rope_local = 4,           // second row of rope_freqs
    layer_query_temperature = 8     // temperature_floor and temperature_scale hold in this layer
};

struct Config {
    uint32_t dim = 0;               // D                       hidden_size, d_model, n_embd     embedding_length
    uint32_t hidden_dim = 0;        // F, of each expert if E  intermediate_size, d_ff          feed_forward_length
    uint32_t n_layers = 0;          // L                       num_hidden_layers                block_count
    uint32_t n_heads = 0;           // H                       num_attention_heads              attention.head_count
    uint32_t n_kv_heads = 0;        // K, divides H            num_key_value_heads              attention.head_count_kv
    uint32_t head_dim = 0;          // d of q and k            head_dim                         attention.key_length
    uint32_t v_head_dim = 0;        // of v in the cache       v_head_dim                       attention.value_length
    uint32_t vocab_size = 0;        // V, 0: takes rows only   vocab_size                       vocab_size
    uint32_t n_outputs = 0;         // rows of lm_head: V, or labels; 0: the output is hidden states
    uint32_t max_seq_len = 0;       // positions trained for   max_position_embeddings          context_length
    uint32_t embedding_dim = 0;     // width of the embedding, D unless ALBERT or OPT-350M      embedding_size
    uint32_t n_types = 0;           // token types             type_vocab_size                  token_type_count
    uint32_t n_experts = 0;         // E                       num_local_experts                expert_count
    uint32_t n_experts_active = 0;  // chosen for a token      num_experts_per_tok              expert_used_count
    uint32_t dense_hidden_dim = 0;  // F of layers without experts, if they differ              intermediate_size
    uint32_t shared_hidden_dim = 0; // F of the shared expert  shared_expert_intermediate_size  expert_shared_...
    uint32_t n_groups = 0;          // groups of experts       n_group                          expert_group_count
    uint32_t n_groups_active = 0;   //                         topk_group                       expert_group_used_count
    uint32_t q_lora_rank = 0;       // MLA [11]                q_lora_rank                      attention.q_lora_rank
    uint32_t kv_lora_rank = 0;      // MLA if not 0: one cached row of rope_dim + kv_lora_rank  attention.kv_lora_rank
    uint32_t nope_head_dim = 0;     // MLA: q without rope     qk_nope_head_dim
    uint32_t mla_v_head_dim = 0;    // MLA: v after wv_b       v_head_dim                       attention.value_length
    uint32_t rope_dim = 0;          // rotated part of d       partial_rotary_factor * head_dim rope.dimension_count
    uint32_t rope_long_from = 0;    // sequences longer than this use row 1 of rope_freqs (LongRoPE)
    uint32_t window = 0;            // keys seen back, itself included: sliding_window          attention.sliding_window
    uint32_t window_ahead = 0;      // keys seen ahead (encoders with local attention)          local_attention / 2
    uint32_t chunk = 0;             // keys of the same chunk only                              attention_chunk_size
    uint32_t relative_distance = 0; // M: relative_bias has columns for distances -M..M; farther ones use the ends
    uint32_t n_features = 0;        // Whisper: mel bins       num_mel_bins
    uint32_t n_frames = 0;          // Whisper: input frames   2 * max_source_positions
    NormKind norm = NormKind::rms;
    Activation activation = Activation::silu;      // hidden_act
    Activation head_activation = Activation::identity;
    Router router = Router::softmax;
    Pooling pooling = Pooling::none;
    uint32_t flags = flag_causal;
    uint32_t decoder_start = 0;     // id + 1 that opens a decoder's output, 0: none            decoder_start_token_id
    float norm_eps = 1e-5f;         // rms_norm_eps, layer_norm_eps                             attention.layer_norm_..._epsilon
    float qk_norm_eps = 1e-5f;      // of q_norm, k_norm, q_a_norm, kv_a_norm
    float rope_theta = 10000.0f;    // rope_theta              rope.freq_base
    float rope_scale = 1.0f;        // multiplies cos and sin (YaRN, LongRoPE)                  rope.scaling.attn_factor
    float attn_scale = 0.0f;        // multiplies q.k; 0: 1 / sqrt(d)                           attention.scale
    float attn_softcap = 0.0f;      // c: s = c tanh(s / c)    attn_logit_softcapping           attn_logit_softcapping
    float logit_softcap = 0.0f;     // the same on logits      final_logit_softcapping          final_logit_softcapping
    float logit_scale = 1.0f;       // logit_scale, 1 / logits_scaling                          logit_scale
    float embedding_scale = 1.0f;   // embedding_multiplier, sqrt(D)                            embedding_scale
    float residual_scale = 1.0f;    // x + r f(x)              residual_multiplier              residual_scale
    float qkv_clip = 0.0f;          // q, k, v clamped to +-c  clip_qkv                         attention.clamp_kqv
    float routed_scale = 1.0f;      // weight of the experts   routed_scaling_factor            expert_weights_scale
    float temperature_floor = 0.0f; // q *= 1 + temperature_scale ln(1 + floor((pos + 1) / temperature_floor))
    float temperature_scale = 0.0f; // Llama 4: attn_scale, floor_scale
    float mlp_clamp = 0.0f;         // clamped_swiglu: limit (7) and slope (1.702) of GPT-OSS   swiglu_limit
    float mlp_alpha = 0.0f;
    uint32_t reserved[11] = {};     // 0; another value means a newer format
};
static_assert(sizeof(Config) == 256, "Config is the file's record: 64 words");

// >> 4 Tensors --------------------------------------------------------------------------------------------------------
// A view of weights inside the checkpoint. Types f32, f16, bf16 are plain rows; the quantised ones are tiles (>> 15 Formats).
enum class DType : uint8_t { f32, f16, bf16, q8_0, q4_0, q4_1, u8 };

struct Tensor {
    const unsigned char* data = nullptr;
    uint32_t rows = 0, cols = 0;
    uint32_t count = 0;                                        // stacked matrices: the experts of a layer, the heads of MLA
    DType dtype = DType::f32;
    constexpr explicit operator bool() const { return data != nullptr; }
};
constexpr uint32_t n_dtypes = 7;
static constexpr bool is_quantised(DType t) { return t == DType::q8_0 || t == DType::q4_0 || t == DType::q4_1; }
static constexpr uint64_t round_up(uint64_t n, uint64_t m) { return (n + m - 1) & ~(m - 1); }     // m: a power of two

// Bytes of one 16-row tile of 32 columns (quantised) or of one value (plain).
static constexpr uint32_t unit_bytes(DType t)
{
    return t == DType::q8_0 ? 544 : t == DType::q4_0 ? 288 : t == DType::q4_1 ? 320 : t == DType::f32 ? 4 : t == DType::u8
        ? 1 : 2;
}
// Bytes of one (rows, cols) matrix. Exact in 64 bits for any 32-bit rows and cols below 2^31.
static constexpr uint64_t matrix_bytes(DType t, uint64_t rows, uint64_t cols)
{
    return is_quantised(t) ? round_up(rows, 16) / 16 * (round_up(cols, 32) / 32) * unit_bytes(t) : rows * cols * unit_bytes(t);
}

// Where a tensor belongs: its role, the struct and the member that it is bound to, and its kind: a `linear` or a lone `table`
// may have any type but u8, a `norm` or a lone `vector` is f32 (layer_flags: u8). A linear's bias and a norm's shift are the
// role of their weight + role_bias. The first group stands once in a stack (the head: in the model), the second in each layer.
#define TRANSFORMER_ROLES(X)                                                                                            \
    X(token_embedding, Stack, token_embedding, table) X(type_embedding, Stack, type_embedding, table)                   \
    X(position_embedding, Stack, position_embedding, table) X(embedding_norm, Stack, embedding_norm, norm)              \
    X(embedding_proj, Stack, embedding_proj, linear) X(conv1, Stack, conv1, linear) X(conv2, Stack, conv2, linear)      \
    X(rope_freqs, Stack, rope_freqs, vector) X(layer_flags, Stack, layer_flags, vector)                                 \
    X(alibi_slopes, Stack, alibi_slopes, vector) X(relative_rows, Stack, relative_rows, vector)                         \
    X(final_norm, Stack, final_norm, norm) X(final_proj, Stack, final_proj, linear)                                     \
    X(head_dense, Model, head_dense, linear) X(head_norm, Model, head_norm, norm) X(lm_head, Model, lm_head, linear)    \
    X(attn_norm_pre, Layer, attn_norm.pre, norm) X(attn_norm_post, Layer, attn_norm.post, norm)                         \
    X(attn_norm_out, Layer, attn_norm.out, norm) X(cross_norm_pre, Layer, cross_norm.pre, norm)                         \
    X(cross_norm_post, Layer, cross_norm.post, norm) X(cross_norm_out, Layer, cross_norm.out, norm)                     \
    X(ffn_norm_pre, Layer, ffn_norm.pre, norm) X(ffn_norm_post, Layer, ffn_norm.post, norm)                             \
    X(ffn_norm_out, Layer, ffn_norm.out, norm) X(wq, Layer, self.wq, linear) X(wk, Layer, self.wk, linear)              \
    X(wv, Layer, self.wv, linear) X(wo, Layer, self.wo, linear) X(q_norm, Layer, self.q_norm, norm)                     \
    X(k_norm, Layer, self.k_norm, norm) X(sinks, Layer, self.sinks, vector)                                             \
    X(relative_bias, Layer, self.relative_bias, vector) X(rel_key, Layer, self.rel_key, vector)                         \
    X(rel_query, Layer, self.rel_query, vector) X(wq_a, Layer, self.wq_a, linear)                                       \
    X(q_a_norm, Layer, self.q_a_norm, norm) X(wkv_a, Layer, self.wkv_a, linear)                                         \
    X(kv_a_norm, Layer, self.kv_a_norm, norm) X(wk_b, Layer, self.wk_b, table) X(wv_b, Layer, self.wv_b, table)         \
    X(cross_wq, Layer, cross.wq, linear) X(cross_wk, Layer, cross.wk, linear) X(cross_wv, Layer, cross.wv, linear)      \
    X(cross_wo, Layer, cross.wo, linear) X(gate, Layer, ffn.experts.gate, linear) X(up, Layer, ffn.experts.up, linear)  \
    X(down, Layer, ffn.experts.down, linear) X(router, Layer, ffn.router, linear)                                       \
    X(router_bias, Layer, ffn.router_bias, vector) X(shared_gate, Layer, ffn.shared.gate, linear)                       \
    X(shared_up, Layer, ffn.shared.up, linear) X(shared_down, Layer, ffn.shared.down, linear)                           \
    X(shared_router, Layer, ffn.shared_router, linear)
#define TRANSFORMER_ROLE(role, owner, member, kind) role,
enum class Role : uint8_t { TRANSFORMER_ROLES(TRANSFORMER_ROLE) n_roles };
#undef TRANSFORMER_ROLE
constexpr uint8_t role_bias = 0x80;

struct Rows {                                                  // activations: `count` rows of `dim` floats
    float* data = nullptr;
    uint32_t count = 0, dim = 0;
};

// >> 5 Model ----------------------------------------------------------------------------------------------------------
// Slots that are present or absent: an absent weight means that the feature is off, an absent norm is the identity.
// Sharing (a tied head, one norm for two branches) is one tensor bound twice.
struct Linear { Tensor w, b; };                                // y = W x + b: w (out, in), b (out)
struct Norm { Tensor w, b; };                                  // w (n): gain; b (n): shift
// x = out(x + post(f(pre(x)))): which are filled is the architecture
struct NormSlots { Norm pre, post, out; };

struct Attention {
    Linear wq, wk, wv, wo;          // (H d, D), (K d, D), (K dv, D), (D, H dv)
    Norm q_norm, k_norm;            // over d, or over all heads at once; (H, d): its own row for each head
    Tensor sinks;                   // (H): a key without a value [19]
    Tensor relative_bias;           // (H, 2 M + 1): added to the score of a key at distance j - i [14]
    Tensor rel_key, rel_query;      // DeBERTa: the layer's projections of its relative positions, (buckets, H d) [15]
    Linear wq_a;                    // MLA: (q_lora_rank, D), then q_a_norm, then wq
    Norm q_a_norm;
    Linear wkv_a;                   // MLA: (rope_dim + kv_lora_rank, D); the second part through kv_a_norm
    Norm kv_a_norm;
    Tensor wk_b, wv_b;              // MLA: per head (kv_lora_rank, nope_head_dim) and (mla_v_head_dim, kv_lora_rank)
};
struct Mlp { Linear gate, up, down; };                         // (F, D), (F, D), (D, F); without gate: down(act(up x))
struct FeedForward {
    Mlp experts;                    // stacked: a dense layer is one expert of weight 1
    Linear router;                  // (E, D)
    Tensor router_bias;             // (E): added to the scores for the choice only (DeepSeek-V3)
    Mlp shared;                     // an expert that every token visits
    Linear shared_router;           // (1, D): its weight is the sigmoid of this; absent: 1
};
struct Layer {
    NormSlots attn_norm, cross_norm, ffn_norm;
    Attention self, cross;
    FeedForward ffn;
    uint32_t index = 0;
    uint8_t flags = 0;              // layer_local ...
};
struct Stack {                      // an encoder or a decoder
    Config config;
    Tensor token_embedding;         // (V, embedding_dim)
    Tensor type_embedding;          // (n_types, embedding_dim)
    Tensor position_embedding;      // (positions, embedding_dim or D)
    Norm embedding_norm;
    Linear embedding_proj;          // (D, embedding_dim)
    Linear conv1, conv2;            // Whisper: (D, 3 n_features), (D, 3 D), the second with stride 2 [23]
    Tensor rope_freqs;              // (1 or 2, rope_dim / 2): radians a position; absent: theta^(-2i / rope_dim)
    Tensor layer_flags;             // (L) bytes
    Tensor alibi_slopes;            // (H) [13]
    Tensor relative_rows;           // DeBERTa: (2 M + 1): which row of rel_key a distance j - i uses
    Norm final_norm;
    Linear final_proj;              // (embedding_dim, D), OPT-350M
    uint32_t first_entry = 0;       // where the layers begin in the tensor table
};

// Text and ids. The section is a list of chunks {tag, bytes} with their payload padded to 4; unknown tags are passed over.
enum class VocabularyKind : uint32_t { none, sentencepiece_bpe, byte_bpe, unigram, wordpiece };
enum class TokenType : uint8_t { normal, unknown, control, user_defined, byte, unused };
enum class Chunk : uint32_t {
    // kind, flags, n_tokens, bos, eos, unknown, pad, separator, classify, mask (absent: -1); growth of text that
    info = 1,
                        // is normalised (bytes, characters), longest word, f32: score of the unknown, of a symbol's byte
    stop,               // ids that end a turn
    offsets,            // n_tokens + 1 words: where each token's bytes begin in `text`
    text,               // the tokens' bytes, as they are printed
    scores,             // n_tokens f32
    types,              // n_tokens TokenType
    merges = 8,         // BPE by rank: a hash table of (left, right, rank, result), left all ones: free
    chat_template = 11, // text
    labels,             // class names, one a line
    trie,               // the tokens that text can become: bytes -> id, + 2^24 if its text needs no merging
    bytes,              // 256 words: the token of each byte, or all ones
    normal,             // normalisation: steps {kind, n words, words}
    split,              // pre-tokeniser: automata {flags, n words, words}
    classes,            // its classes of characters: 128 bytes for ASCII, then words first << 8 | class, ascending
    added,              // n, n x (id, flags), then a trie: text -> index of these
    // n, then n words for a text alone, the rest for a pair: id + type << 24, 0xffffff: text, 0xfffffe: second text
    layout
};
enum : uint32_t {                                              // Vocabulary::flags
    vocabulary_add_bos = 1, vocabulary_add_eos = 2,            // what the layout does, for those who ask
    vocabulary_dummy_prefix = 4, vocabulary_collapse_spaces = 16,                       // blanks that detokenize() takes away
    vocabulary_byte_fallback = 8,   // what is no token becomes byte tokens
    vocabulary_ignore_merges = 64,  // a whole word that is a token is one
    vocabulary_words = 128,         // no token has a blank behind another character
    vocabulary_fuse_unknown = 256, vocabulary_double_scores = 512, vocabulary_cleans_up = 1024,
    vocabulary_doubles_bos = 2048   // its own tokenizer puts a second BOS before one that is written
};
struct Span { const unsigned char* data = nullptr; uint32_t n = 0; };                    // n little-endian words
struct Vocabulary {                 // pointers into the checkpoint
    VocabularyKind kind = VocabularyKind::none;
    uint32_t flags = 0, n_tokens = 0;
    int32_t bos = -1, eos = -1, unknown = -1, pad = -1, separator = -1, classify = -1, mask = -1;
    uint32_t growth = 1, growth_chars = 1, longest_word = 100, n_steps = 0;
    float unknown_score = 0, symbol_score = 0;
    const unsigned char* text = nullptr;
    const unsigned char* types = nullptr;
    Span stop, offsets, scores, trie, merges, bytes, normal, split, classes, layout;
    Span added, added_trie;         // the entries (id, flags), the trie behind them
    uint32_t added_first[8] = {};   // bits of the bytes that added tokens begin with
    const char* chat_template = nullptr;                       // not terminated
    const char* labels = nullptr;
    uint32_t chat_template_size = 0, labels_size = 0;
};

struct Model {
    Stack main;                     // what forward() runs: a decoder, or an encoder that stands alone
    Stack encoder;                  // of an encoder-decoder; n_layers 0 if there is none
    Linear head_dense;              // BERT's head: lm_head(norm(act(dense x)))
    Norm head_norm;
    Linear lm_head;                 // (V, D) or (labels, D); absent: the output is hidden states
    Vocabulary vocabulary;
    const unsigned char* bytes = nullptr;
    const unsigned char* table = nullptr;
    uint32_t n_tensors = 0;
    uint32_t features = 0;          // mask of Feature: what it needs
};

// >> 6 Session --------------------------------------------------------------------------------------------------------
// One timeline over a model: the KV cache, the scratch of one batch and the logits, all inside the caller's memory. plan()
// both measures and places, so the size that session_size() gives is exact: one byte less is refused.
enum class Isa : uint8_t { best, scalar, neon, neon_dot, avx2, avx_vnni, avx512 };
constexpr uint32_t n_isas = 7;
constexpr const char* isa_names[n_isas] = {"best", "scalar", "neon", "neon_dot", "avx2", "avx_vnni", "avx512"};

struct Event {                      // what an observer sees; valid during the call only
    enum Kind : uint8_t { embedding, layer_output, hidden, attention_row } kind = embedding;
    bool encoder = false;           // of an encoder-decoder's encoder
    uint32_t layer = 0;
    uint32_t position = 0;          // of the first row; attention_row: of the query
    Rows rows;                      // x (T, D); attention_row: one row of weights, for keys from first_key on
    uint32_t head = 0, first_key = 0;
    bool cross = false;             // attention_row: over the encoder's output
};
typedef bool (*Observer)(void* user, const Event& event);      // false cancels the forward; the session stays usable
typedef void (*Task)(void* data, uint32_t slice);
// task(data, 0 .. n-1) in any order, then return; n is at most eight times Options::slices
typedef void (*ParallelFor)(void* user, uint32_t n, Task task, void* data);

struct Options {
    uint32_t capacity = 256;        // positions of the decoder's cache, or the longest text of a lone encoder
    uint32_t source_capacity = 0;   // rows of encoder output (encoder-decoders); 0: as capacity
    uint32_t batch = 256;           // tokens of one pass over the weights: more need more scratch and run faster
    DType cache = DType::f16;       // f16, f32 or q8_0
    bool all_logits = false;        // keep a row of logits for every token; a forward then takes at most `batch` tokens
    Isa isa = Isa::best;
    uint32_t slices = 1;            // parts that work is cut into, one for each thread; never changes a bit
    ParallelFor parallel_for = nullptr;
    void* parallel_user = nullptr;
    Observer observer = nullptr;    // called at least once a layer
    void* observer_user = nullptr;
    bool observe_attention = false; // also report attention rows (a second pass over the scores)
};

struct Input {                      // one of tokens, rows and features, `count` of them
    const int32_t* tokens = nullptr;
    const float* rows = nullptr;    // (count, D) already embedded
    const float* features = nullptr;// (n_features, count): log-mel frames
    const int32_t* types = nullptr; // token types; null: all 0
    const uint8_t* mask = nullptr;  // encoders: 1 = real, 0 = padding; null: all real
    uint32_t count = 0;
};

// The regions of a session's memory, in this order, each at a multiple of 64 bytes. Floats unless said otherwise.
enum Region : uint8_t {
    region_x,          // (T, D) the residual stream
    region_h,          // (T, D) its normalised copy
    region_g,          // (T, D) the second one of parallel blocks
    region_y,          // (T, D) what a sub-layer returns
    region_q,          // (T, H d)
    region_k,          // (T, K d)
    region_v,          // (T, K dv)
    region_mixed,      // (T, H dv) attention's weighted values
    region_latent,     // MLA: (T, q_lora_rank) and (T, H, rope + nope)
    region_head,       // MLA: one head's rows before and after its map
    region_state,      // (T, H, 2) maximum and sum of each query's softmax so far
    region_up,         // (T, F)
    region_gate,       // (T, F)
    region_router,     // (T + 2, E) weights of the experts
    region_expert,     // (2, T, D) gathered rows of one expert and what it returns
    region_quantised,  // (T, G) Group and (T, G / 3 + 1) Residual: the input of a quantised product
    region_rope,       // (2, T, rope_dim) cos and sin
    region_pieces,     // scratch of each piece of the attention
    region_convolved,  // (T, 3 C) rows of a convolution
    region_mask,       // bytes: the source's mask
    region_logits,     // (rows, V)
    region_cache,      // L layers of keys and values (one layer if not causal)
    region_cross,      // L layers of keys and values of the encoder's output
    region_end,        // 64 bytes: vectors of values may be read past the end of the last row
    n_regions
};
struct Plan {
    uint64_t at[n_regions + 1] = {};                           // at[n_regions]: all of it
};

// 32 activations of a quantised product: x = scale * q, offset = -128 (q[0] + ... + q[31]).
struct Group {
    int8_t q[32];
    float scale;
    int32_t offset;
};
// What the first rounding of a coarse group left, rounded in its turn; see >> 17 Products.
struct Residual {
    Group rest;
    uint32_t group, token;                                     // token of the panel; group = UINT32_MAX ends a list
};
constexpr uint32_t panel_rows = 8;                             // tokens whose groups stand side by side
static constexpr uint32_t most_residuals(uint32_t groups) { return groups / 3; }

constexpr uint32_t attention_block = 128;                      // positions; part of the numbers, not a tuning knob
constexpr uint32_t attention_rows = 8;                         // queries that share a pass over the keys, if there are as many
static constexpr uint32_t slices_of(const Options& o) { return has(Feature::slices) && o.slices > 1 ? o.slices : 1; }
static constexpr uint64_t pieces_at_most(const Options& o) { return slices_of(o) > 1 ? uint64_t{o.slices} * 8 : 1; }
constexpr uint32_t attention_wave = 32;                        // blocks that are shared out before their values are merged
static constexpr uint64_t wave_units(const Options& o) { return slices_of(o) > 1 ? uint64_t{o.slices} * 2 : 0; }

static constexpr uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
static constexpr uint32_t wider(uint32_t a, uint32_t b) { return a > b ? a : b; }
static constexpr bool is_causal(const Config& c) { return !has(Feature::encoder) || (c.flags & flag_causal) != 0; }
// The cache holds, for each kv head, K in tiles of 16 positions, [pos / 16][d][16], then V in rows, [pos][dv]. In 8 bits a
// tile is for each 32 of d [32][16] bytes and 16 f32 scales, a row for each 32 of dv a f32 scale and 32 bytes.
static constexpr uint64_t key_tile_bytes(uint32_t d, DType type)
{
    return type == DType::q8_0 ? (uint64_t{d} + 31) / 32 * 576 : uint64_t{d} * 16 * unit_bytes(type);
}
static constexpr uint64_t value_row_bytes(uint32_t dv, DType type)
{
    return type == DType::q8_0 ? (uint64_t{dv} + 31) / 32 * 36 : uint64_t{dv} * unit_bytes(type);
}
static constexpr uint64_t kv_head_bytes(const Config& c, uint64_t n, DType type)       // one layer's, for n positions
{
    return round_up(round_up(n, 16) / 16 * (key_tile_bytes(c.head_dim, type) + 16 * value_row_bytes(c.v_head_dim, type)), 64);
}
// Widths in 32 bits: open() keeps them below 2^27.
static constexpr uint32_t query_width(const Config& c) { return c.n_heads * c.head_dim; }
static constexpr uint32_t mixed_width(const Config& c) { return c.n_heads * c.v_head_dim; }
static constexpr uint32_t widest_hidden(const Config& c)
{
    return wider(wider(c.hidden_dim, c.dense_hidden_dim), c.shared_hidden_dim);
}
static constexpr uint32_t widest_input(const Config& c)               // the longest row that a matrix of this stack reads
{
    uint32_t n = wider(wider(c.dim, c.embedding_dim), wider(widest_hidden(c), mixed_width(c)));
    if (has(Feature::encoder) && c.n_features) n = wider(n, 3 * wider(c.dim, c.n_features));
    if (has(Feature::mla))
        n = wider(wider(n, c.n_heads * c.mla_v_head_dim), wider(wider(c.q_lora_rank, c.kv_lora_rank), c.nope_head_dim));
    return n;
}
static constexpr bool has_encoder(const Config& encoder) { return has(Feature::cross) && encoder.n_layers; }
// T of one stack: a causal one takes batches, another needs its whole input at once.
static constexpr uint32_t batch_rows(const Config& c, const Options& o, bool source)
{
    const uint32_t whole = source && o.source_capacity ? o.source_capacity : o.capacity;
    return has(Feature::encoder) && c.n_frames ? c.n_frames : is_causal(c) && o.batch < whole ? o.batch : whole;
}
static constexpr uint32_t source_rows(const Config& encoder, const Options& o)
{
    return has_encoder(encoder) && encoder.n_frames ? encoder.n_frames / 2 : o.source_capacity ? o.source_capacity : o.capacity;
}

// Queries of one kv head that a pass over its keys can have.
static constexpr uint32_t pass_rows(const Config& c, uint32_t t)
{
    const uint64_t n = c.n_kv_heads ? uint64_t{t} * (c.n_heads / c.n_kv_heads) : 1;
    return n < attention_rows ? static_cast<uint32_t>(n) : attention_rows;
}
static constexpr uint32_t pass_rows(const Config& main, const Config& encoder, const Options& o)
{
    return wider(pass_rows(main, batch_rows(main, o, false)),
        has_encoder(encoder) ? pass_rows(encoder, batch_rows(encoder, o, true)) : 1);
}

// Bytes that one stack needs in a region for each row that it runs at once.
static constexpr uint32_t row_bytes(Region r, const Config& c)
{
    const bool mla = has(Feature::mla) && c.kv_lora_rank;
    const bool experts = has(Feature::experts) && (c.n_experts || c.shared_hidden_dim);
    const uint32_t groups = (widest_input(c) + 31) / 32, residuals = most_residuals(groups) + 1;
    switch (r) {
    case region_x: case region_h: case region_y: return 4 * wider(c.dim, c.embedding_dim);
    case region_g: return c.flags & flag_parallel ? 4 * c.dim : 0;
    case region_q: return 4 * query_width(c);
    case region_k: return 4 * c.n_kv_heads * c.head_dim;
    case region_v: return 4 * c.n_kv_heads * c.v_head_dim;
    case region_mixed: return 4 * mixed_width(c);
    case region_latent: return mla
        ? 4 * (c.q_lora_rank + c.n_heads * wider(c.rope_dim + c.nope_head_dim, c.mla_v_head_dim)) : 0;
    case region_head: return mla ? 4 * (c.kv_lora_rank + wider(c.nope_head_dim, c.mla_v_head_dim)) : 0;
    case region_state: return 8 * c.n_heads;
    case region_up: case region_gate: return 4 * widest_hidden(c);
    case region_router: return experts ? 4 * c.n_experts : 0;
    case region_expert: return experts ? 8 * c.dim : 0;
    case region_quantised: return static_cast<uint32_t>(groups * sizeof(Group) + residuals * sizeof(Residual));
    case region_rope: return 8 * c.rope_dim;
    case region_convolved: return has(Feature::encoder) && c.n_features ? 12 * wider(c.dim, c.n_features) : 0;
    default: return 0;
    }
}

static constexpr Plan plan(const Config& main, const Config& encoder, const Options& o)
{
    Plan p;
    const bool two = has_encoder(encoder), causal = is_causal(main);
    const uint32_t t = batch_rows(main, o, false), t_encoder = two ? batch_rows(encoder, o, true) : 0;
    const uint32_t source = has(Feature::cross) && main.flags & flag_cross ? source_rows(encoder, o) : 0;
    const uint32_t logit_rows = o.all_logits || (!causal && main.pooling == Pooling::none) ? t : 1;
    const uint32_t dv = wider(main.v_head_dim, encoder.v_head_dim);
    for (uint32_t i = 0; i < n_regions; i++) {
        const Region r = static_cast<Region>(i);
        const uint32_t more = r == region_router ? 2 : 0;      // scratch of the choice
        uint64_t n = (uint64_t{t} + more) * row_bytes(r, main);
        if (two) n = larger(n, (uint64_t{t_encoder} + more) * row_bytes(r, encoder));
        if (r == region_pieces)                                // and, with several slices, the parts of a wave
            n = 4 * pass_rows(main, encoder, o)
                * (pieces_at_most(o) * (attention_block + dv + 2) + wave_units(o) * attention_wave * (dv + 2));
        if (r == region_mask) n = wider(source, t_encoder);
        if (r == region_logits) n = uint64_t{4} * logit_rows * main.n_outputs;
        if (r == region_cache) {
            n = (causal ? main.n_layers : 1) * (main.n_kv_heads * kv_head_bytes(main, causal ? o.capacity : t, o.cache));
            if (two) n = larger(n, encoder.n_kv_heads * kv_head_bytes(encoder, t_encoder, o.cache));
        }
        if (r == region_cross && source) n = main.n_layers * (main.n_kv_heads * kv_head_bytes(main, source, o.cache));
        if (r == region_end) n = 64;
        p.at[i + 1] = p.at[i] + round_up(n, 64);
    }
    return p;
}
// Exact bytes of a session, at compile time too: static unsigned char memory[session_size(config, options)];
static constexpr uint64_t session_size(const Config& main, const Options& o) { return plan(main, Config{}, o).at[n_regions]; }

struct Kernels;                                                // one room's functions, see >> 17 Products
struct Session {
    const Model* model = nullptr;
    Options options;
    const Kernels* room = nullptr;
    const Stack* stack = nullptr;   // whose forward is running
    unsigned char* memory = nullptr;
    Plan plan;
    Layer layer;                    // the one view that is bound at a time
    uint32_t position = 0;          // tokens in the cache
    uint32_t base = 0;              // position of the running batch's first row
    uint32_t source_count = 0;      // rows of encoder output
    const uint8_t* mask = nullptr;  // of the running encoder's input
    const uint8_t* source_mask = nullptr;
    uint32_t rope_rows = 0;         // where the second set begins in region_rope
    bool rope_long = false;         // row 1 of rope_freqs is in use
    bool cancelled = false;
    float* logits = nullptr;        // of the last forward: logit_rows rows of n_outputs
    uint32_t logit_rows = 0;
    Rows hidden;                    // of its last batch, after the final norm
};

// >> 7 Functions ------------------------------------------------------------------------------------------------------
// Check the bytes of a checkpoint and point `model` into them: no copy, no allocation. `bytes` must be aligned to 4 (64 is
// faster) and outlive the model. Everything is checked here; afterwards forward() can only report what Code names for it.
TRANSFORMER_API Status open(const void* bytes, uint64_t size, Model* model);

// Exact bytes that start() needs for these options.
TRANSFORMER_API uint64_t session_size(const Model& model, const Options& options);
// Make a session in `memory` (aligned to 4, 64 is faster). `model` and `memory` must outlive it.
TRANSFORMER_API Status start(const Model& model, const Options& options, void* memory, uint64_t size, Session* session);

// Run `input` after what the session holds; more tokens than options.batch go in several passes, with the same bits.
// `*logits` (may be null): the last row (n_outputs), or all rows with all_logits or for an encoder's head.
// session_full, bad_token, no_memory_rows, cancelled: the session is then as it was before the call.
TRANSFORMER_API Status forward(Session& session, const Input& input, float** logits);
// Run the encoder: of an encoder-decoder (its output becomes the decoder's memory and the decoder starts anew), or a lone one.
// `*hidden` (may be null): (count, D), until the next call.
TRANSFORMER_API Status encode(Session& session, const Input& input, Rows* hidden);
// Give the decoder an encoder's output directly: (count, D) rows, optional mask; the decoder starts anew.
TRANSFORMER_API Status set_memory(Session& session, const float* rows, uint32_t count, const uint8_t* mask);
// Forget all tokens from `position` on.
TRANSFORMER_API Status rewind(Session& session, uint32_t position);

// Choose a token; `logits` (n) are overwritten. temperature 0 is greedy, ties go to the lowest id. Otherwise softmax(logits /
// temperature), then top_k (0: off), top_p (the smallest set that reaches it, at least one token; 1: off) and min_p (of the
// best's probability; 0: off) [24]. not_a_number if a logit is NaN.
struct Sampler {
    float temperature = 1.0f, top_p = 0.9f, min_p = 0.0f;
    uint32_t top_k = 0;
    float repeat_penalty = 1.0f;    // divides the positive logits of the last 64 tokens, multiplies the negative ones
    uint64_t seed = 1;              // advanced by each draw, the same sequence everywhere
    int32_t recent[64] = {};
    uint32_t n_recent = 0;
};
TRANSFORMER_API Status sample(Sampler& sampler, float* logits, uint32_t n, int32_t* token);

// A vocabulary by itself: the checkpoint's section without its model. open() does this for the one inside a checkpoint.
TRANSFORMER_API Status open_vocabulary(const void* bytes, uint64_t size, Vocabulary* vocabulary);

// Text to ids. `work` is scratch of tokenize_size(v, n) bytes, aligned to 4. *count ids are written; memory_too_small if they
// exceed `capacity` (`where` says how many there are). Special tokens written in the text are recognised and the model's own
// (BOS, [CLS] ...) are put around it as asked. A pair of texts needs tokenize_size of the longer one; its `types` may be null.
struct TokenizeOptions {
    bool add_special = true, parse_special = true;
    bool single_bos = true;         // a BOS that the text itself begins with is not put before it once more
};
TRANSFORMER_API uint64_t tokenize_size(const Vocabulary& v, uint64_t text_bytes);
TRANSFORMER_API Status tokenize(const Vocabulary& v, const char* text, uint64_t n, const TokenizeOptions& options,
                                void* work, uint64_t work_size, int32_t* ids, uint32_t capacity, uint32_t* count);
TRANSFORMER_API Status tokenize_pair(const Vocabulary& v, const char* a, uint64_t n_a, const char* b, uint64_t n_b,
                                     const TokenizeOptions& options, void* work, uint64_t work_size, int32_t* ids,
                                     int32_t* types, uint32_t capacity, uint32_t* count);

// Ids to text, whole characters only: `emit` is called zero to two times with bytes that end at a character's end. Bytes that
// never become a character are given as they are, or as U+FFFD. detokenize_flush gives what is still held back.
struct Decoder {
    bool replace_invalid = false;   // U+FFFD for bytes that are not UTF-8
    bool special = false;           // also the text of control tokens
    bool started = false;
    bool each_byte = false;         // U+FFFD for each of them, as SentencePiece, not for each broken character
    uint8_t n_pending = 0;
    char pending[4] = {};
};
typedef bool (*Emit)(void* user, const char* text, uint32_t n);// false: stop
TRANSFORMER_API bool detokenize(const Vocabulary& v, Decoder& decoder, int32_t id, Emit emit, void* user);
TRANSFORMER_API bool detokenize_flush(Decoder& decoder, Emit emit, void* user);
TRANSFORMER_API int32_t token_id(const Vocabulary& v, const char* text, uint32_t n);       // -1 if there is none
TRANSFORMER_API const char* token_text(const Vocabulary& v, int32_t id, uint32_t* n);      // "" outside the vocabulary
TRANSFORMER_API bool is_stop(const Vocabulary& v, int32_t id);

// Feed `ids` (at least one), then sample and feed back until a stop token, max_tokens, a full session or emit() returning
// false, which is asked during the prompt too (with n = 0). *generated (may be null) counts the new tokens.
struct GenerateOptions {
    uint32_t max_tokens = 256;
    Sampler sampler;
    bool ignore_stop = false;
    int32_t* tokens = nullptr;      // max_tokens ids are written here if given
};
TRANSFORMER_API Status generate(Session& session, const int32_t* ids, uint32_t n, GenerateOptions& options, Emit emit,
    void* user,
                                uint32_t* generated = nullptr);

TRANSFORMER_API const char* room_name(const Session& session); // of isa_names
TRANSFORMER_API bool room_available(Isa isa);
TRANSFORMER_API const char* role_name(uint32_t role);          // of the tensor table, see >> 20 Checkpoint

// A whole file as read-only memory (section 25; absent with TRANSFORMER_NO_STDIO).
struct File {
    const void* data = nullptr;
    uint64_t size = 0;
};
#ifndef TRANSFORMER_NO_STDIO
TRANSFORMER_API Status map_file(const char* path, File* file);
TRANSFORMER_API void unmap_file(File* file);
#endif

// Scalar definitions of the formats, for importers and tests. A row is written or read as f32; quantised matrices go by
// tiles of 16 rows (missing ones zero), since that is how they are stored.
TRANSFORMER_API float f16_to_f32(uint16_t half);
TRANSFORMER_API uint16_t f32_to_f16(float value);              // round half even; beyond +-65504 saturates; NaN stays NaN
TRANSFORMER_API float bf16_to_f32(uint16_t half);
TRANSFORMER_API uint16_t f32_to_bf16(float value);             // round half even; NaN stays a quiet NaN
TRANSFORMER_API void quantize_tile(DType type, const float* rows, uint32_t n_rows, uint32_t cols, unsigned char* tile);
TRANSFORMER_API void dequantize_row(const Tensor& w, uint32_t matrix, uint32_t row, float* out);

}  // namespace TRANSFORMER_NAMESPACE
#endif  // TRANSFORMER_HPP: end of the interface

#if defined(TRANSFORMER_IMPLEMENTATION) && !defined(TRANSFORMER_IMPLEMENTED)
#define TRANSFORMER_IMPLEMENTED

// Which rooms this build has; the first is always compiled, the others stand beside it.
#if defined(__ARM_FEATURE_DSP) && defined(__ARM_FP) && __ARM_ARCH_PROFILE == 'M' && !defined(__ARM_BIG_ENDIAN)
#define TRANSFORMER_DSP 1
#else
#define TRANSFORMER_DSP 0
#endif
#ifdef TRANSFORMER_ISA
#define TRANSFORMER_BASE_ROOM TRANSFORMER_ISA                  // the compiler's flags must allow it
#define TRANSFORMER_MORE_ROOMS 0
#elif TRANSFORMER_DSP
#define TRANSFORMER_BASE_ROOM Dsp
#define TRANSFORMER_MORE_ROOMS 1
#else
#define TRANSFORMER_BASE_ROOM Scalar
#define TRANSFORMER_MORE_ROOMS 1
#endif
#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#define TRANSFORMER_X86 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define TRANSFORMER_X86 0
#endif
#if TRANSFORMER_X86 && __has_include(<avxvnniintrin.h>)        // g++ 11, clang 12
#define TRANSFORMER_AVX_VNNI 1
#else
#define TRANSFORMER_AVX_VNNI 0
#endif
#if defined(__aarch64__) && defined(__ARM_NEON) && !defined(__ARM_BIG_ENDIAN)
#define TRANSFORMER_NEON 1
#include <arm_neon.h>
#if defined(__linux__) && __has_include(<sys/auxv.h>)
#include <sys/auxv.h>
#endif
#else
#define TRANSFORMER_NEON 0
#endif
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define TRANSFORMER_FMA 1
#else
#define TRANSFORMER_FMA 0
#endif

#if defined(__clang__)                                         // no contraction, no reassociation, whatever the flags
#if TRANSFORMER_X86                                            // clang 14 has this pragma for few processors
#pragma float_control(precise, on, push)
#else
#pragma clang fp reassociate(off)
#endif
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#if defined(__thumb__) && !defined(__thumb2__)
#pragma GCC optimize("no-ipa-ra")                              // g++ 12 loses registers across calls on Cortex-M0 at -Os
#endif
#endif

namespace TRANSFORMER_NAMESPACE {

// ==== Part II: The model =============================================================================================

#if defined(__GNUC__)
#define TRANSFORMER_INLINE [[gnu::always_inline]] static inline
#define TRANSFORMER_OUTLINE [[gnu::noinline]]                  // keeps stack frames small
#define TRANSFORMER_COPY __builtin_memcpy                      // -ffreestanding would call memcpy, even for 4 bytes
#else
#define TRANSFORMER_INLINE static inline
#define TRANSFORMER_OUTLINE
#define TRANSFORMER_COPY memcpy
#endif
constexpr bool has_fma = TRANSFORMER_FMA;
constexpr bool f16_alone = !has(Feature::f32_cache) && !has(Feature::quantised_cache);  // the only cache of this build
constexpr float lowest_f32 = -3.402823466e+38f, most_f32 = 3.402823466e+38f;            // "no key", "chosen"

// A room's functions: what is worth a vector unit. Written once in >> 19 Kernels, compiled once a room.
struct Kernels {
    Isa isa;
    const char* name;
    // y[t][row] = W x[t] + b for the rows of tiles first .. last - 1 of a (rows, cols) matrix; x: n rows of floats or Groups
    void (*product[n_dtypes])(const struct ProductJob& job);
    // row `token` of n floats: its groups `stride` apart, and its residuals; returns the end of those
    Residual* (*quantise)(const float* x, uint32_t n, uint32_t token, uint32_t stride, Group* out, Residual* rest);
    void (*quantise_group)(const float* x, Group* out);                                 // 32 floats
    void (*to_f16)(const float* x, uint32_t n, unsigned char* out);                     // saturates at 65,504
    void (*normalise)(NormKind kind, const float* x, uint32_t n, const unsigned char* w, const unsigned char* b, float eps,
        float* y);
    void (*activate)(Activation kind, float* x, size_t n);
    void (*multiply)(float* x, const float* y, size_t n);                               // x *= y
    void (*add)(float* x, const float* y, float scale, size_t n);                       // x += scale y
    float (*dot)(const float* x, const unsigned char* w, uint32_t n);                   // w: f32 of the checkpoint
    // one block of attention for n queries: scores (n, 128) = q k', weights p and their maximum and sum, values p v
    void (*scores)(const float* const* q, uint32_t n, uint32_t d, const unsigned char* k, DType type, uint32_t n_tiles,
        float* s);
    void (*softmax)(float* s, uint32_t n_tiles, float* m, float* l);
    void (*mix)(const float* p, uint32_t n, uint32_t n_keys, const unsigned char* v, DType type, uint32_t dv, float* out);
    void (*merge)(float* x, float a, const float* y, float b, uint32_t n);              // x = a x + b y
};

// >> 8 Operations -----------------------------------------------------------------------------------------------------
// What the model is written in. All take and give rows in session memory; definitions stand in sections 12 to 19.
struct Product { const Linear* w; uint32_t matrix; float* y; };// y = W x + b for one of the stacked matrices
static void products(Session& s, Rows x, const Product* list, uint32_t n);              // several with the same x
static Rows linear(Session& s, const Linear& w, Rows x, float* y, uint32_t matrix = 0); // (T, in) -> (T, out)
static Rows norm(const Session& s, const Norm& w, Rows x, float* out);                  // an absent norm returns x
static void residual(const Session& s, Rows x, const NormSlots& n, Rows y);             // x = Nout(x + r Npost(y))
static Rows feed_forward(Session& s, const FeedForward& w, Rows x);                     // Σ p_e down(act(gate x) * up x)
static void activate(const Session& s, Activation kind, float* x, size_t n);            // x = act(x)
static Rows embed(Session& s, const Input& in, uint32_t first, uint32_t count);         // tokens, rows or features -> (T, D)
static void prepare_rope(Session& s, uint32_t count);                                   // cos and sin of the batch's positions
static void rotate(const Session& s, float* x, uint32_t t, bool local);                 // one head's row [5]
static uint32_t bind_layer(const Model& m, uint32_t entry, uint32_t index, const Stack& stack, Layer* layer);
static void parallel(const Session& s, uint32_t pieces, Task task, void* data);         // task(data, 0 .. pieces - 1)
static float exp_f32(float x);                                                          // >> 16 Mathematics
static float log_f32(float x);
static float tanh_f32(float x);
static float sqrt_f32(float x);
static double exp_f64(double x);
static double log_f64(double x);
static void cos_sin(double angle, float* cosine, float* sine);
static uint32_t bits_of(float x);
static float load_f32(const unsigned char* p);                                          // little-endian, any address
static void store_f32(unsigned char* p, float x);
static void store_u16(unsigned char* p, uint32_t x);

static float* floats(const Session& s, Region r) { return static_cast<float*>(static_cast<void*>(s.memory + s.plan.at[r])); }
static const Config& config(const Session& s) { return s.stack->config; }
template <class T> struct Same { typedef T type; };             // the second argument takes the first one's type
template <class T> static constexpr T least(T a, typename Same<T>::type b) { return a < b ? a : b; }
template <class T> static constexpr T most(T a, typename Same<T>::type b) { return a > b ? a : b; }

// Pieces that `work` (values, multiply-adds, bytes) is worth: a slice may take several, for they need not run at one speed.
static uint32_t pieces_of(const Session& s, uint64_t work, uint64_t least_each, uint64_t most_pieces)
{
    if (slices_of(s.options) == 1) return 1;
    return static_cast<uint32_t>(most(least(least(work / least_each, pieces_at_most(s.options)), most_pieces), 1u));
}
// Where piece i of n begins, which is where piece i - 1 ends. A single one needs no division, which is long on a small chip.
static uint32_t share(uint32_t total, uint32_t i, uint32_t n)
{
    return !has(Feature::slices) || n == 1 ? total * i : static_cast<uint32_t>(uint64_t{total} * i / n);
}

// work(first, last) for parts of the rows 0 .. count - 1, each of `width` values.
template <class Work> static void each_row(const Session& s, uint32_t count, uint64_t width, const Work& work)
{
    struct Split {
        const Work* work;
        uint32_t count, pieces;
        static void run(void* data, uint32_t i)
        {
            const Split& p = *static_cast<const Split*>(data);
            (*p.work)(share(p.count, i, p.pieces), share(p.count, i + 1, p.pieces));
        }
    };
    Split split = {&work, count, pieces_of(s, count * width, 8192, count)};
    if (split.pieces == 1) work(0, count);
    else parallel(s, split.pieces, Split::run, &split);
}

TRANSFORMER_OUTLINE static bool observe(Session& s, Event::Kind kind, uint32_t layer, Rows rows)
{
    if (!has(Feature::observers) || !s.options.observer || s.cancelled) return !s.cancelled;
    Event e;
    e.kind = kind;
    e.encoder = s.stack == &s.model->encoder;
    e.layer = layer;
    e.position = s.base;
    e.rows = rows;
    s.cancelled = !s.options.observer(s.options.observer_user, e);
    return !s.cancelled;
}

// >> 9 Forward --------------------------------------------------------------------------------------------------------
// embed -> blocks -> final norm -> head. A decoder appends to its cache, so a prompt may come in any pieces; an encoder
// takes its whole input at once.

static void block(Session& s, const Layer& w, Rows x);

// Input rows first .. first + count - 1 through a stack; s.hidden = (T, D) after the final norm. False: cancelled.
static bool run(Session& s, const Stack& stack, const Input& in, uint32_t first, uint32_t count)
{
    s.stack = &stack;
    s.cancelled = false;
    Rows x = embed(s, in, first, count);
    prepare_rope(s, x.count);
    uint32_t entry = stack.first_entry;
    if (!observe(s, Event::embedding, 0, x)) return false;
    for (uint32_t i = 0; i < stack.config.n_layers; i++) {
        entry = bind_layer(*s.model, entry, i, stack, &s.layer);
        block(s, s.layer, x);
        if (!observe(s, Event::layer_output, i, x)) return false;
    }
    s.hidden = norm(s, stack.final_norm, x, x.data);
    if (has(Feature::embeddings) && stack.final_proj.w) s.hidden = linear(s, stack.final_proj, s.hidden, floats(s, region_h));
    return observe(s, Event::hidden, 0, s.hidden);
}

// logits = softcap(scale * lm_head(Nhead(act(dense h)))), for all rows or the last one; pooled rows where the model pools.
static void head(Session& s, bool all)
{
    const Model& m = *s.model;
    const Config& c = m.main.config;
    Rows h = s.hidden;
    const uint32_t d = h.dim;
    if (has(Feature::encoder) && c.pooling == Pooling::first) h.count = 1;
    else if (has(Feature::encoder) && c.pooling == Pooling::mean) {
        float* y = floats(s, region_y);
        float n = 0;
        memset(y, 0, d * sizeof(float));
        for (uint32_t t = 0; t < h.count; t++) {
            if (s.mask && !s.mask[t]) continue;
            n += 1;
            for (uint32_t i = 0; i < d; i++) y[i] += h.data[uint64_t{t} * d + i];
        }
        for (uint32_t i = 0; i < d; i++) y[i] /= n;
        h = {y, 1, d};
    } else if (!all || c.pooling == Pooling::last) h = {h.data + uint64_t{h.count - 1} * d, 1, d};
    if (has(Feature::embeddings) && m.head_dense.w) {
        h = linear(s, m.head_dense, h, floats(s, h.data == floats(s, region_h) ? region_y : region_h));
        activate(s, c.head_activation, h.data, size_t{h.count} * h.dim);
    }
    if (has(Feature::embeddings)) h = norm(s, m.head_norm, h, h.data);
    s.logits = floats(s, region_logits);
    s.logit_rows = h.count;
    linear(s, m.lm_head, h, s.logits);
    const uint64_t n = uint64_t{h.count} * c.n_outputs;
    if (has(Feature::embeddings) && (c.logit_scale < 1.0f || c.logit_scale > 1.0f))
        for (uint64_t i = 0; i < n; i++) s.logits[i] *= c.logit_scale;
    if (has(Feature::softcap) && c.logit_softcap > 0)
        for (uint64_t i = 0; i < n; i++) s.logits[i] = c.logit_softcap * tanh_f32(s.logits[i] / c.logit_softcap);
}

static Status check_input(const Stack& stack, const Input& in, uint64_t room)
{
    const Config& c = stack.config;
    if (!in.count || (!in.tokens && !in.rows && !in.features)) return {Code::bad_argument, "no input", "count", in.count};
    if (has(Feature::encoder) && in.features && in.count != c.n_frames)
        return {Code::bad_argument, "the model needs another number of frames", "features", c.n_frames};
    if (!in.features && c.n_features) return {Code::bad_argument, "this encoder takes features", "features", 0};
    if (in.count > room) return {Code::session_full, "the input is longer than what is left of the session", "count", in.count};
    if (in.tokens && !in.rows && !in.features) {
        if (!stack.token_embedding) return {Code::bad_argument, "this model takes rows, not tokens", "tokens", 0};
        for (uint32_t i = 0; i < in.count; i++)
            if (in.tokens[i] < 0 || static_cast<uint32_t>(in.tokens[i]) >= c.vocab_size)
                return {Code::bad_token, "a token id is outside the vocabulary", "tokens", i};
    }
    for (uint32_t i = 0; in.types && i < in.count; i++)
        if (in.types[i] < 0 || static_cast<uint32_t>(in.types[i]) >= most(c.n_types, 1u))
            return {Code::bad_token, "a token type is outside the model's types", "types", i};
    return {};
}

TRANSFORMER_API Status forward(Session& s, const Input& in, float** logits)
{
    const Config& c = s.model->main.config;
    const bool causal = is_causal(c), all = s.options.all_logits || !causal;
    const uint64_t rows = batch_rows(c, s.options, false);
    const uint32_t before = causal ? s.position : 0;
    if (Status status = check_input(s.model->main, in, causal ? s.options.capacity - before : rows); !status) return status;
    if (c.flags & flag_cross && !s.source_count) return {Code::no_memory_rows, "encode() or set_memory() comes first", "", 0};
    if (s.options.all_logits && in.count > rows)
        return {Code::bad_argument, "with all_logits a forward takes at most options.batch tokens", "count", in.count};
    s.rope_long = c.rope_long_from && before + in.count > c.rope_long_from;
    s.mask = causal ? nullptr : in.mask;
    s.base = before;
    for (uint32_t done = 0; done < in.count;) {
        const uint32_t n = in.features ? in.count : static_cast<uint32_t>(least<uint64_t>(rows, in.count - done));
        if (!run(s, s.model->main, in, done, n)) return {Code::cancelled, "the observer stopped the forward", "", s.base};
        done += n;
        s.base += n;
    }
    if (s.model->lm_head.w) head(s, all);
    if (causal) s.position = s.base;
    if (logits) *logits = s.model->lm_head.w ? s.logits : nullptr;
    return {};
}

TRANSFORMER_API Status encode(Session& s, const Input& in, Rows* hidden)
{
    const bool lone = s.model->encoder.config.n_layers == 0;
    const Stack& stack = lone ? s.model->main : s.model->encoder;
    if (lone && is_causal(stack.config)) return {Code::bad_argument, "this model has no encoder", "", 0};
    if (Status status = check_input(stack, in, batch_rows(stack.config, s.options, !lone)); !status) return status;
    s.mask = in.mask;
    s.base = s.position = s.source_count = 0;                  // the encoder's keys take the place of the decoder's
    s.rope_long = false;
    if (!run(s, stack, in, 0, in.count)) return {Code::cancelled, "the observer stopped the encoder", "", 0};
    const Rows h = s.hidden;
    if (hidden) *hidden = h;
    return lone ? Status{} : set_memory(s, h.data, h.count, in.mask);
}

// >> 10 The block -----------------------------------------------------------------------------------------------------
// One block, every published wiring: x (T, D) is updated in place, [1] figure 1. A norm that is absent is the identity;
// which of the three slots of a sub-layer are filled is the architecture:
//
//     pre    x + f(N(x))           GPT-2, Llama, T5 ([6])        post         x + N(f(x))        OLMo 2
//     out    N(x + f(x))           the original, BERT, BART      pre + post   x + N'(f(N(x)))    Gemma 2 (sandwich, [7])
//
// In words, with f first attention, then cross attention if the layer has it, then the feed-forward network:
//   1. h = N(x)                              5. x = x + cross(N(x), memory)
//   2. q, k, v = Wq h, Wk h, Wv h            6. g = N(x)          (parallel blocks [20]: of the x of step 1)
//   3. a = softmax(q k' / sqrt(d)) v         7. y = Wdown (act(Wgate g) * Wup g)
//   4. x = x + Wo a                          8. x = x + y
static Rows attention(Session& s, const Attention& w, Rows x);
static Rows cross_attention(Session& s, const Attention& w, Rows x);

TRANSFORMER_OUTLINE static void block(Session& s, const Layer& w, Rows x)
{
    const bool parallel_branches = (config(s).flags & flag_parallel) != 0;
    float* const h = floats(s, region_h);

    Rows a = norm(s, w.attn_norm.pre, x, h);
    Rows g = parallel_branches ? norm(s, w.ffn_norm.pre, x, floats(s, region_g)) : Rows{};
    residual(s, x, w.attn_norm, attention(s, w.self, a));

    if (has(Feature::cross) && w.cross.wq.w)
        residual(s, x, w.cross_norm, cross_attention(s, w.cross, norm(s, w.cross_norm.pre, x, h)));

    if (!parallel_branches) g = norm(s, w.ffn_norm.pre, x, h);
    residual(s, x, w.ffn_norm, feed_forward(s, w.ffn, g));
}

static void residual(const Session& s, Rows x, const NormSlots& n, Rows y)
{
    y = norm(s, n.post, y, y.data);
    each_row(s, x.count, x.dim, [&](uint32_t first, uint32_t last) {
        const size_t from = size_t{first} * x.dim;
        s.room->add(x.data + from, y.data + from, config(s).residual_scale, size_t{last - first} * x.dim);
    });
    norm(s, n.out, x, x.data);
}

// >> 11 Attention -----------------------------------------------------------------------------------------------------
// softmax(scale q k' + bias) v over cached keys [1]; H query heads share K key heads (MHA: K = H, GQA [10], MQA [9]: K = 1).
// MLA [11] is MQA over one compressed row per position: its maps are applied around the same loop.
//
// The order of the arithmetic, the same everywhere: a score is one chain of fused multiply-adds over d; keys are taken in
// blocks of 128 absolute positions, each with its own maximum [16]; p = exp(s - m); its sum has 16 lanes by position % 16 and
// a fixed tree; p v is one chain of fused multiply-adds over the positions for each d; blocks merge in ascending order.

static float score_scale(const Config& c)
{
    return c.attn_scale > 0 ? c.attn_scale : 1.0f / sqrt_f32(static_cast<float>(c.head_dim));
}

struct Keys {                                                  // one layer's keys and values
    unsigned char* data;
    uint64_t head_bytes;                                       // of one kv head
    uint64_t v_offset;                                         // of its values, behind its K tiles
    uint32_t count;                                            // positions that are filled
};

// The cache of a layer: the decoder's own, one reused layer for encoders, or that of the encoder's output.
static Keys keys_of(const Session& s, uint32_t layer, bool cross, uint32_t count)
{
    const Config& c = config(s);
    const bool source = s.stack == &s.model->encoder;
    const uint64_t capacity = cross ? source_rows(s.model->encoder.config, s.options)
                                    : is_causal(c) ? s.options.capacity : batch_rows(c, s.options, source);
    Keys k;
    k.head_bytes = kv_head_bytes(c, capacity, s.options.cache);
    k.v_offset = round_up(capacity, 16) / 16 * key_tile_bytes(c.head_dim, s.options.cache);
    const uint64_t index = cross || is_causal(c) ? layer : 0;
    k.data = s.memory + s.plan.at[cross ? region_cross : region_cache] + index * c.n_kv_heads * k.head_bytes;
    k.count = count;
    return k;
}

// A tile of 16 keys is zeroed before its first position comes, for scores are computed for whole tiles.
static void clear_tiles(const Session& s, Keys keys, uint32_t first, uint32_t count)
{
    const size_t tile = static_cast<size_t>(key_tile_bytes(config(s).head_dim, s.options.cache));
    for (uint64_t t = (uint64_t{first} + 15) / 16; t * 16 < uint64_t{first} + count; t++)
        for (uint32_t h = 0; h < config(s).n_kv_heads; h++) memset(keys.data + h * keys.head_bytes + t * tile, 0, tile);
}

// n floats into the cache: as column `column` of a tile of 16 keys, or (width 1) as a row of values.
static void store_row(const Session& s, const float* x, uint32_t n, unsigned char* out, uint32_t width, uint32_t column)
{
    for (uint32_t i = 0; i < n; i += 32) {
        const uint32_t part = least(32u, n - i);
        unsigned char row[64];
        float group[32] = {};
        Group q;
        switch (f16_alone ? DType::f16 : s.options.cache) {
        case DType::f16:
            s.room->to_f16(x + i, part, row);
            for (uint32_t e = 0; e < part; e++) memcpy(out + 2 * (uint64_t{i + e} * width + column), row + 2 * e, 2);
            break;
        case DType::q8_0:
            if (!has(Feature::quantised_cache)) break;
            memcpy(group, x + i, part * sizeof(float));
            s.room->quantise_group(group, &q);
            if (width == 1) store_f32(out, q.scale), out += 4;
            for (uint32_t e = 0; e < 32; e++) memcpy(out + e * width + column, q.q + e, 1);
            out += 32 * width;
            if (width > 1) store_f32(out + 4 * column, q.scale), out += 4 * width;
            break;
        default:
            for (uint32_t e = 0; e < part; e++) store_f32(out + 4 * (uint64_t{i + e} * width + column), x[i + e]);
        }
    }
}

// Rows begin .. end - 1 of k (T, K d) and v (T, K dv) become positions first + begin .. of the cache.
static void store_keys(const Session& s, Keys keys, uint32_t first, const float* k, const float* v, uint32_t begin,
    uint32_t end)
{
    const Config& c = config(s);
    const uint32_t d = c.head_dim, dv = c.v_head_dim;
    const DType type = s.options.cache;
    for (uint32_t t = begin; t < end; t++)
        for (uint32_t h = 0; h < c.n_kv_heads; h++) {
            const uint64_t pos = uint64_t{first} + t, row = uint64_t{t} * c.n_kv_heads + h;
            unsigned char* const head = keys.data + h * keys.head_bytes;
            store_row(s, k + row * d, d, head + pos / 16 * key_tile_bytes(d, type), 16, static_cast<uint32_t>(pos % 16));
            store_row(s, v + row * dv, dv, head + keys.v_offset + pos * value_row_bytes(dv, type), 1, 0);
        }
}

struct Attend {                                                // what one attention over cached keys needs
    Session* s;
    const Attention* w;
    Keys keys;
    uint32_t count;                                            // T
    bool cross;
    const float* k;                                            // this batch's keys in rows, for DeBERTa's second term
    uint32_t units, pieces;                                    // Queries, and parts that they are cut into
    uint32_t wave, blocks;                                     // first key of the running wave, and how many blocks it has
};

static uint32_t most_value_dim(const Session& s)
{
    return most(s.model->main.config.v_head_dim, s.model->encoder.config.v_head_dim);
}
static uint64_t most_rows(const Session& s) { return pass_rows(s.model->main.config, s.model->encoder.config, s.options); }
static float* piece_scratch(const Attend& a, uint64_t piece)   // scores of a block, then one part
{
    return floats(*a.s, region_pieces) + piece * most_rows(*a.s) * (attention_block + most_value_dim(*a.s) + 2);
}
static float* wave_part(const Attend& a, uint64_t item)        // behind the pieces' own scratch
{
    return piece_scratch(a, pieces_at_most(a.s->options)) + item * most_rows(*a.s) * (most_value_dim(*a.s) + 2);
}

// Keys lo .. hi - 1 are visible to the query at absolute position pos.
static void visible(const Attend& a, uint32_t pos, uint32_t* lo, uint32_t* hi)
{
    const Config& c = config(*a.s);
    *lo = 0;
    *hi = a.keys.count;
    if (has(Feature::cross) && a.cross) return;
    if (is_causal(c)) *hi = pos + 1;
    if (!has(Feature::windows) || !(a.s->layer.flags & layer_local)) return;
    if (c.window && pos + 1 > c.window) *lo = pos + 1 - c.window;
    if (c.window && !is_causal(c)) *hi = least(*hi, pos + c.window_ahead + 1);
    if (c.chunk) *lo = most(*lo, pos / c.chunk * c.chunk);
    if (c.chunk && !is_causal(c)) *hi = least(*hi, (pos / c.chunk + 1) * c.chunk);
}

// What is added to the score of the query (row t, head h, position pos) and key j.
static float score_bias(const Attend& a, uint32_t t, uint32_t h, uint32_t pos, uint32_t j)
{
    const Session& s = *a.s;
    const Config& c = config(s);
    const int64_t distance = int64_t{j} - pos, m = c.relative_distance;
    const uint64_t column = static_cast<uint64_t>(m + most(-m, least(m, distance)));
    float bias = 0;
    if (s.stack->alibi_slopes) bias = load_f32(s.stack->alibi_slopes.data + 4 * h) * static_cast<float>(distance);
    if (a.w->relative_bias) bias += load_f32(a.w->relative_bias.data + 4 * (h * uint64_t{a.w->relative_bias.cols} + column));
    if (s.stack->relative_rows) {                              // [15]: content to position, position to content
        const uint64_t width = query_width(c), d = c.head_dim;
        const uint64_t row = static_cast<uint64_t>(load_f32(s.stack->relative_rows.data + 4 * column)) * width + h * d;
        if (a.w->rel_key) bias += s.room->dot(floats(s, region_q) + t * width + h * d, a.w->rel_key.data + 4 * row, c.head_dim);
        if (a.w->rel_query)
            bias += s.room->dot(a.k + j * width + h * d, a.w->rel_query.data + 4 * row, c.head_dim) * score_scale(c);
    }
    return bias;
}

// Scores of one block for n queries (rows r .. of one kv head; row = token * G + head within the group): s (n, 128).
static void block_scores(const Attend& a, uint32_t kv_head, uint32_t r, uint32_t n, uint32_t first_key, uint32_t n_keys,
    float* scores)
{
    const Session& s = *a.s;
    const Config& c = config(s);
    const uint32_t group = c.n_heads / c.n_kv_heads, width = query_width(c);
    const unsigned char* const k = a.keys.data + kv_head * a.keys.head_bytes
        + uint64_t{first_key} / 16 * key_tile_bytes(c.head_dim, s.options.cache);
    const float* q[attention_rows] = {};
    for (uint32_t i = 0; i < n; i++)
        q[i] = floats(s, region_q) + uint64_t{(r + i) / group} * width + (kv_head * group + (r + i) % group) * c.head_dim;
    s.room->scores(q, n, c.head_dim, k, s.options.cache, (n_keys + 15) / 16, scores);

    const bool biased = has(Feature::relative) && !a.cross && (s.stack->alibi_slopes || a.w->relative_bias
        || s.stack->relative_rows);
    const uint8_t* const mask = has(Feature::cross) && a.cross ? s.source_mask : has(Feature::encoder) ? s.mask : nullptr;
    for (uint32_t i = 0; i < n; i++) {
        float* const row = scores + i * attention_block;
        const uint32_t t = (r + i) / group, h = kv_head * group + (r + i) % group, pos = s.base + t;
        uint32_t lo, hi;
        visible(a, pos, &lo, &hi);
        if (has(Feature::softcap) && c.attn_softcap > 0)
            for (uint32_t j = 0; j < n_keys; j++) row[j] = c.attn_softcap * tanh_f32(row[j] / c.attn_softcap);
        for (uint32_t j = 0; biased && j < n_keys; j++) row[j] += score_bias(a, t, h, pos, first_key + j);
        const uint32_t begin = lo > first_key ? least(n_keys, lo - first_key) : 0,
            end = hi > first_key ? least(n_keys, hi - first_key) : 0;
        for (uint32_t j = 0; j < begin; j++) row[j] = lowest_f32;
        for (uint32_t j = end; j < (n_keys + 15) / 16 * 16; j++) row[j] = lowest_f32;
        for (uint32_t j = begin; mask && j < end; j++)
            if (!mask[first_key + j]) row[j] = lowest_f32;
    }
}

// Queries that share a pass over the keys of one kv head: rows r .. r + n - 1, row = token * G + head in the group.
struct Queries {
    uint32_t kv_head, r, n, first, last;                       // keys first .. last - 1 are visible to some of them
    float* out[attention_rows];                                // their dv values
    float* state[attention_rows];                              // their maximum and sum so far
};
static Queries queries_of(const Attend& a, uint32_t unit)
{
    const Session& s = *a.s;
    const Config& c = config(s);
    const uint32_t group = c.n_heads / c.n_kv_heads, rows = a.count * group;
    Queries u = {unit % c.n_kv_heads, unit / c.n_kv_heads * attention_rows, 0, UINT32_MAX, 0, {}, {}};
    for (u.n = 0; u.n < attention_rows && u.r + u.n < rows; u.n++) {
        const uint32_t t = (u.r + u.n) / group, h = u.kv_head * group + (u.r + u.n) % group;
        uint32_t lo, hi;
        visible(a, s.base + t, &lo, &hi);
        u.first = least(u.first, lo);
        u.last = most(u.last, hi);
        u.out[u.n] = floats(s, region_mixed) + (uint64_t{t} * c.n_heads + h) * c.v_head_dim;
        u.state[u.n] = floats(s, region_state) + (uint64_t{t} * c.n_heads + h) * 2;
    }
    u.first = u.first / attention_block * attention_block;
    return u;
}
static void begin_queries(const Attend& a, const Queries& u)
{
    const Config& c = config(*a.s);
    for (uint32_t i = 0; i < u.n; i++) {
        const uint32_t group = c.n_heads / c.n_kv_heads, h = u.kv_head * group + (u.r + i) % group;
        memset(u.out[i], 0, c.v_head_dim * sizeof(float));
        const bool sink = has(Feature::relative) && a.w->sinks;                         // a key without a value
        u.state[i][0] = sink ? load_f32(a.w->sinks.data + 4 * h) : lowest_f32;
        u.state[i][1] = sink ? 1.0f : 0.0f;
    }
}
// The block of keys from `key` on alone: part = maxima, sums and values (n, dv).
static void attend_block(const Attend& a, const Queries& u, uint32_t key, float* scores, float* part)
{
    const Session& s = *a.s;
    const uint32_t n_keys = least(attention_block, u.last - key), dv = config(s).v_head_dim;
    const unsigned char* const v = a.keys.data + u.kv_head * a.keys.head_bytes + a.keys.v_offset
        + key * value_row_bytes(dv, s.options.cache);
    block_scores(a, u.kv_head, u.r, u.n, key, n_keys, scores);
    for (uint32_t i = 0; i < u.n; i++)
        s.room->softmax(scores + i * attention_block, (n_keys + 15) / 16, &part[i], &part[u.n + i]);
    s.room->mix(scores, u.n, n_keys, v, s.options.cache, dv, part + 2 * u.n);
}
static void merge_block(const Attend& a, const Queries& u, const float* part)
{
    const uint32_t dv = config(*a.s).v_head_dim;
    for (uint32_t i = 0; i < u.n; i++) {
        const float m = part[i], l = part[u.n + i];
        if (m <= lowest_f32 && l >= 0) continue;               // no key of this block is visible; a NaN goes on
        float* const state = u.state[i];
        const float top = most(state[0], m), old = exp_f32(state[0] - top), now = exp_f32(m - top);
        state[0] = top;
        state[1] = state[1] * old + l * now;
        a.s->room->merge(u.out[i], old, part + 2 * u.n + i * dv, now, dv);
    }
}
static void finish_queries(const Attend& a, const Queries& u)
{
    for (uint32_t i = 0; i < u.n; i++) {
        const float by = u.state[i][1] <= 0 ? 0.0f : 1.0f / u.state[i][1];              // no key: all values are 0
        for (uint32_t e = 0; e < config(*a.s).v_head_dim; e++) u.out[i][e] *= by;
    }
}

// Some of the queries, each over all its keys.
static void attend_piece(void* data, uint32_t piece)
{
    const Attend& a = *static_cast<const Attend*>(data);
    float* const scores = piece_scratch(a, piece);
    for (uint32_t i = share(a.units, piece, a.pieces), end = share(a.units, piece + 1, a.pieces); i < end; i++) {
        const Queries u = queries_of(a, i);
        begin_queries(a, u);
        for (uint32_t key = u.first; key < u.last; key += attention_block) {
            float* const part = scores + u.n * attention_block;
            attend_block(a, u, key, scores, part);
            merge_block(a, u, part);
        }
        finish_queries(a, u);
    }
}

// work(queries, first key, item) for those of the running wave's items begin .. end - 1, one for queries and block, in
// ascending order, that have a key to see: few queries over many keys, as in decoding a long text.
template <class Work> static void each_item(const Attend& a, uint32_t begin, uint32_t end, const Work& work)
{
    for (uint32_t i = begin; i < end; i++) {
        const Queries u = queries_of(a, i % a.units);
        const uint32_t key = a.wave + i / a.units * attention_block;
        if (key >= u.first && key < u.last) work(u, key, i);
    }
}
static void wave_piece(void* data, uint32_t piece)
{
    const Attend& a = *static_cast<const Attend*>(data);
    const uint32_t items = a.units * a.blocks;
    const uint32_t begin = share(items, piece, a.pieces), end = share(items, piece + 1, a.pieces);
    each_item(a, begin, end, [&](const Queries& u, uint32_t key, uint32_t i) {
        attend_block(a, u, key, piece_scratch(a, piece), wave_part(a, i));
    });
}
static void attend_waves(Attend& a)
{
    uint32_t last = 0;
    a.wave = UINT32_MAX;
    for (uint32_t i = 0; i < a.units; i++) {
        const Queries u = queries_of(a, i);
        begin_queries(a, u);
        a.wave = least(a.wave, u.first);
        last = most(last, u.last);
    }
    for (; a.wave < last; a.wave += attention_wave * attention_block) {
        a.blocks = least(attention_wave, (last - a.wave + attention_block - 1) / attention_block);
        parallel(*a.s, a.pieces, wave_piece, &a);
        each_item(a, 0, a.units * a.blocks, [&](const Queries& u, uint32_t, uint32_t i) {
            merge_block(a, u, wave_part(a, i));
        });
    }
    for (uint32_t i = 0; i < a.units; i++) finish_queries(a, queries_of(a, i));
}

// Give the observer each query's weights, from the scores once more: exp(s - m) / l.
TRANSFORMER_OUTLINE static void observe_weights(Attend& a)
{
    Session& s = *a.s;
    const Config& c = config(s);
    const uint32_t group = c.n_heads / c.n_kv_heads;
    float* const scores = floats(s, region_pieces);
    for (uint32_t h = 0; h < c.n_heads; h++)
        for (uint32_t t = 0; t < a.count && !s.cancelled; t++) {
            const float* const state = floats(s, region_state) + (uint64_t{t} * c.n_heads + h) * 2;
            for (uint32_t key = 0; key < a.keys.count && !s.cancelled; key += attention_block) {
                const uint32_t n = least(attention_block, a.keys.count - key);
                block_scores(a, h / group, t * group + h % group, 1, key, n, scores);
                for (uint32_t j = 0; j < n; j++)
                    scores[j] = scores[j] > lowest_f32 ? exp_f32(scores[j] - state[0]) / state[1] : 0.0f;
                Event e;
                e.kind = Event::attention_row;
                e.encoder = s.stack == &s.model->encoder;
                e.cross = a.cross;
                e.layer = s.layer.index;
                e.head = h;
                e.position = s.base + t;
                e.first_key = key;
                e.rows = {scores, 1, n};
                s.cancelled = !s.options.observer(s.options.observer_user, e);
            }
        }
}

// The rows of region_q over `keys` -> (T, H dv).
static Rows attend(Session& s, const Attention& w, Keys keys, uint32_t count, bool cross, const float* k)
{
    const Config& c = config(s);
    const uint32_t rows = count * (c.n_heads / c.n_kv_heads);
    const uint32_t units = (rows + attention_rows - 1) / attention_rows * c.n_kv_heads;
    Attend a = {&s, &w, keys, count, cross, k, units, 1, 0, 0};
    const uint64_t work = uint64_t{count} * keys.count * c.n_heads * c.head_dim;
    a.pieces = pieces_of(s, work, 4096, UINT32_MAX);
    if (has(Feature::slices) && a.pieces > 1 && units < wave_units(s.options) && keys.count > attention_block) attend_waves(a);
    else parallel(s, a.pieces, attend_piece, &a);
    if (has(Feature::observers) && s.options.observe_attention && s.options.observer) observe_weights(a);
    return {floats(s, region_mixed), count, mixed_width(c)};
}

// A norm over each head's row, or over all heads at once, as the weight's shape says [8].
static void norm_heads(const Session& s, const Norm& w, float* x, uint32_t rows, uint32_t heads, uint32_t d, uint32_t stride)
{
    if (!has(Feature::qk_norm) || !w.w) return;
    const Config& c = config(s);
    const NormKind kind = c.flags & flag_qk_norm_layer ? NormKind::layer : NormKind::rms;
    const bool whole = w.w.cols != d;
    for (uint32_t t = 0; t < rows; t++)
        for (uint32_t h = 0; h < (whole ? 1 : heads); h++) {
            const uint64_t shift = w.w.rows > 1 ? uint64_t{h} * d * 4 : 0;
            float* const row = x + uint64_t{t} * stride + uint64_t{h} * d;
            s.room->normalise(kind, row, w.w.cols, w.w.data + shift, w.b ? w.b.data + shift : nullptr, c.qk_norm_eps, row);
        }
}

static float clamp(float x, float low, float high) { return x < low ? low : x > high ? high : x; }          // NaN stays
static void clip(float* x, size_t n, float limit)
{
    for (size_t i = 0; has(Feature::windows) && limit > 0 && i < n; i++) x[i] = clamp(x[i], -limit, limit);
}

// Norm, position and scale of the query and key rows, in the model's order.
static void finish_heads(const Session& s, const Attention& w, float* q, uint32_t n_q, float* k, uint32_t begin, uint32_t end)
{
    const Config& c = config(s);
    const uint32_t d = c.head_dim, n_k = c.n_kv_heads, count = end - begin;
    q += uint64_t{begin} * n_q * d;
    k += uint64_t{begin} * n_k * d;
    const uint8_t flags = s.layer.flags;
    const bool after = has(Feature::qk_norm) && c.flags & flag_qk_norm_after_rope;
    const bool turn = c.rope_dim && !(flags & layer_no_rope);
    for (int pass = 0; pass < 2; pass++) {
        if (after == (pass == 1)) {
            norm_heads(s, w.q_norm, q, count, n_q, d, n_q * d);
            norm_heads(s, w.k_norm, k, count, n_k, d, n_k * d);
        }
        if (pass == 0) clip(q, size_t{count} * n_q * d, c.qkv_clip), clip(k, size_t{count} * n_k * d, c.qkv_clip);
        if (pass == 1 || !turn) continue;
        for (uint32_t t = 0; t < count; t++) {
            for (uint32_t h = 0; h < n_q; h++) rotate(s, q + (uint64_t{t} * n_q + h) * d, begin + t, flags & layer_rope_local);
            for (uint32_t h = 0; h < n_k; h++) rotate(s, k + (uint64_t{t} * n_k + h) * d, begin + t, flags & layer_rope_local);
        }
    }
    for (uint32_t t = 0; t < count; t++) {
        float scale = score_scale(c);
        if (has(Feature::windows) && flags & layer_query_temperature && c.temperature_floor >= 1)
            scale *= 1.0f + c.temperature_scale * log_f32(1.0f + static_cast<float>(
                static_cast<uint32_t>(static_cast<float>(s.base + begin + t + 1) / c.temperature_floor)));
        for (size_t i = 0; i < size_t{n_q} * d; i++) q[size_t{t} * n_q * d + i] *= scale;
    }
}

// MLA [11], absorbed: q of a head = [rope part | Wk_b' nope part], key = value = [rope part | latent], so that it is one
// shared head over the compressed row. Fills region_q and the key row k (T, rope + latent).
static void project_latent(Session& s, const Attention& w, Rows x, float* k)
{
    const Config& c = config(s);
    const uint32_t d = c.head_dim, rope = c.rope_dim, nope = c.nope_head_dim, wide = rope + nope;
    float* const low = floats(s, region_latent);
    float* const full = low + uint64_t{x.count} * c.q_lora_rank;
    float* const q = floats(s, region_q);
    Rows from = x;
    if (w.wq_a.w) {
        from = linear(s, w.wq_a, x, low);
        norm_heads(s, w.q_a_norm, low, x.count, 1, from.dim, from.dim);
    }
    linear(s, w.wq, from, full);
    linear(s, w.wkv_a, x, k);
    for (uint32_t t = 0; t < x.count; t++) norm_heads(s, w.kv_a_norm, k + uint64_t{t} * d + rope, 1, 1, c.kv_lora_rank, d);
    float* const packed = floats(s, region_head);
    float* const mapped = packed + uint64_t{x.count} * nope;
    for (uint32_t h = 0; h < c.n_heads; h++) {                 // one head of all rows at a time: (T, nope) -> (T, latent)
        for (uint32_t t = 0; t < x.count; t++)
            memcpy(packed + uint64_t{t} * nope, full + (uint64_t{t} * c.n_heads + h) * wide + rope, nope * sizeof(float));
        const Linear wk_b = {w.wk_b, Tensor{}};
        linear(s, wk_b, {packed, x.count, nope}, mapped, h);
        for (uint32_t t = 0; t < x.count; t++) {
            float* const row = q + (uint64_t{t} * c.n_heads + h) * d;
            memcpy(row, full + (uint64_t{t} * c.n_heads + h) * wide, rope * sizeof(float));
            memcpy(row + rope, mapped + uint64_t{t} * c.kv_lora_rank, c.kv_lora_rank * sizeof(float));
        }
    }
}

// (T, H latent) -> (T, H mla_v_head_dim), the values of the heads.
static Rows expand_latent(Session& s, const Attention& w, Rows mixed)
{
    const Config& c = config(s);
    const uint32_t r = c.kv_lora_rank, n = c.mla_v_head_dim, wide = c.n_heads * n;
    float* const out = floats(s, region_latent);
    float* const packed = floats(s, region_head);
    float* const mapped = packed + uint64_t{mixed.count} * r;
    for (uint32_t h = 0; h < c.n_heads; h++) {
        for (uint32_t t = 0; t < mixed.count; t++)
            memcpy(packed + uint64_t{t} * r, mixed.data + (uint64_t{t} * c.n_heads + h) * r, r * sizeof(float));
        const Linear wv_b = {w.wv_b, Tensor{}};
        linear(s, wv_b, {packed, mixed.count, r}, mapped, h);
        for (uint32_t t = 0; t < mixed.count; t++)
            memcpy(out + uint64_t{t} * wide + h * n, mapped + uint64_t{t} * n, n * sizeof(float));
    }
    return {out, mixed.count, wide};
}

static Rows attention(Session& s, const Attention& w, Rows x)
{
    const Config& c = config(s);
    const bool latent = has(Feature::mla) && w.wkv_a.w;
    float* const q = floats(s, region_q);
    float* const k = floats(s, region_k);
    float* v = floats(s, region_v);
    if (latent) project_latent(s, w, x, k);
    else {
        const Product qkv[] = {{&w.wq, 0, q}, {&w.wk, 0, k}, {&w.wv, 0, v}};
        products(s, x, qkv, 3);
        clip(v, size_t{x.count} * c.n_kv_heads * c.v_head_dim, c.qkv_clip);
    }
    const Keys keys = keys_of(s, s.layer.index, false, s.base + x.count);
    clear_tiles(s, keys, s.base, x.count);
    each_row(s, x.count, c.n_heads * c.head_dim, [&](uint32_t first, uint32_t last) {
        finish_heads(s, w, q, c.n_heads, k, first, last);
        for (uint32_t t = first; latent && t < last; t++)      // the value is the latent part of the key
            memcpy(v + uint64_t{t} * c.v_head_dim, k + uint64_t{t} * c.head_dim + c.rope_dim, c.v_head_dim * sizeof(float));
        store_keys(s, keys, s.base, k, v, first, last);
    });
    Rows mixed = attend(s, w, keys, x.count, false, k);
    if (latent) mixed = expand_latent(s, w, mixed);
    return linear(s, w.wo, mixed, floats(s, region_y));
}

// Queries from the decoder, keys and values from the encoder's output, cached by set_memory().
static Rows cross_attention(Session& s, const Attention& w, Rows x)
{
    const Config& c = config(s);
    const Rows q = linear(s, w.wq, x, floats(s, region_q));
    const float scale = score_scale(c);
    for (uint64_t i = 0; i < uint64_t{q.count} * q.dim; i++) q.data[i] *= scale;
    const Rows mixed = attend(s, w, keys_of(s, s.layer.index, true, s.source_count), x.count, true, nullptr);
    return linear(s, w.wo, mixed, floats(s, region_y));
}

TRANSFORMER_API Status set_memory(Session& s, const float* rows, uint32_t count, const uint8_t* mask)
{
    const Config& c = s.model->main.config;
    if (!(c.flags & flag_cross)) return {Code::bad_argument, "this model has no cross attention", "", 0};
    if (!rows || !count) return {Code::bad_argument, "no rows", "count", 0};
    if (count > source_rows(s.model->encoder.config, s.options))
        return {Code::session_full, "more rows than options.source_capacity", "count", count};
    s.stack = &s.model->main;
    s.source_count = count;
    s.source_mask = nullptr;
    if (mask) {
        memcpy(s.memory + s.plan.at[region_mask], mask, count);
        s.source_mask = s.memory + s.plan.at[region_mask];
    }
    const uint32_t step = batch_rows(c, s.options, false);
    uint32_t entry = s.model->main.first_entry;
    for (uint32_t i = 0; i < c.n_layers; i++) {
        entry = bind_layer(*s.model, entry, i, s.model->main, &s.layer);
        for (uint32_t t = 0; t < count; t += step) {
            // rows are only read; Rows has no const form
            const Rows part = {const_cast<float*>(rows) + uint64_t{t} * c.dim, least(step, count - t), c.dim};
            const Product kv[] = {{&s.layer.cross.wk, 0, floats(s, region_k)}, {&s.layer.cross.wv, 0, floats(s, region_v)}};
            products(s, part, kv, 2);
            const Keys keys = keys_of(s, i, true, count);
            clear_tiles(s, keys, t, part.count);
            store_keys(s, keys, t, kv[0].y, kv[1].y, 0, part.count);
        }
    }
    s.position = 0;
    return {};
}

// >> 12 Feed-forward --------------------------------------------------------------------------------------------------
// y = Σ_e p_e Wdown (act(Wgate x) * Wup x), [4]; without a gate Wdown act(Wup x). A dense layer is one expert of weight 1 and
// has no router. With experts [12] the tokens are grouped, and what an expert returns is added in ascending order of experts.

static Rows mlp(Session& s, const Mlp& w, uint32_t expert, Rows x, float* y)
{
    const Config& c = config(s);
    const size_t n = size_t{x.count} * w.up.w.rows;
    Rows u = {floats(s, region_up), x.count, w.up.w.rows};
    float* const g = floats(s, region_gate);
    const Product both[] = {{&w.up, expert, u.data}, {&w.gate, expert, g}};
    products(s, x, both, !has(Feature::activations) || w.gate.w ? 2 : 1);
    if (has(Feature::activations) && !w.gate.w) activate(s, c.activation, u.data, n);
    // GPT-OSS: (up + 1) * g sigmoid(alpha g), both clamped
    else if (has(Feature::activations) && c.activation == Activation::clamped_swiglu)
        for (size_t i = 0; i < n; i++) {
            const float a = clamp(g[i], lowest_f32, c.mlp_clamp), b = clamp(u.data[i], -c.mlp_clamp, c.mlp_clamp);
            u.data[i] = (b + 1.0f) * (a / (1.0f + exp_f32(-c.mlp_alpha * a)));
        }
    else each_row(s, u.count, u.dim, [&](uint32_t first, uint32_t last) {
        const size_t from = size_t{first} * u.dim, part = size_t{last - first} * u.dim;
        if (!has(Feature::activations) || c.activation != Activation::identity) s.room->activate(c.activation, g + from, part);
        s.room->multiply(u.data + from, g + from, part);
    });
    return linear(s, w.down, u, y, expert);
}

// The weights of the experts for one token: p (E), 0 for those not chosen. `score` is scratch of E.
static void route(const Session& s, const FeedForward& w, float* p, float* score)
{
    const Config& c = config(s);
    const uint32_t n = c.n_experts, groups = most(c.n_groups, 1u), each = n / groups;
    float top = lowest_f32, sum = 0;
    for (uint32_t e = 0; e < n; e++) top = most(top, p[e]);
    for (uint32_t e = 0; e < n; e++) {
        p[e] = c.router == Router::sigmoid ? 1.0f / (1.0f + exp_f32(-p[e])) : exp_f32(p[e] - top);
        sum += p[e];
    }
    // a NaN must not vanish with the experts that it would not choose
    if (!(sum >= 0)) {
        for (uint32_t e = 0; e < n; e++) p[e] = e < c.n_experts_active ? sum : 0.0f;
        return;
    }
    for (uint32_t e = 0; e < n; e++) {
        if (c.router == Router::softmax) p[e] /= sum;
        score[e] = w.router_bias ? p[e] + load_f32(w.router_bias.data + 4 * e) : p[e];
    }
    const auto best = [&](uint32_t first, uint32_t count) {    // lowest index on a tie
        uint32_t b = first;
        for (uint32_t e = first; e < first + count; e++)
            if (score[e] > score[b]) b = e;
        return b;
    };
    for (uint32_t drop = c.n_groups_active && groups > 1 ? groups - least(groups, c.n_groups_active) : 0; drop > 0; drop--) {
        uint32_t worst = groups;                               // groups whose experts cannot be chosen: the lowest ones
        float least_score = 0;
        for (uint32_t g = groups; g-- > 0;) {
            const uint32_t b = best(g * each, each);
            if (score[b] <= lowest_f32) continue;
            float value = score[b];
            if (c.flags & flag_group_top2) {
                const float kept = score[b];
                score[b] = lowest_f32;
                value += score[best(g * each, each)];
                score[b] = kept;
            }
            if (worst == groups || value < least_score) { worst = g; least_score = value; }
        }
        for (uint32_t e = worst * each; worst < groups && e < (worst + 1) * each; e++) score[e] = lowest_f32;
    }
    sum = 0;
    for (uint32_t i = 0; i < c.n_experts_active; i++) {        // the best that is left is marked with most_f32
        uint32_t b = n;
        for (uint32_t e = 0; e < n; e++)
            if (score[e] > lowest_f32 && score[e] < most_f32 && (b == n || score[e] > score[b])) b = e;
        if (b == n) break;
        score[b] = most_f32;
        sum += p[b];
    }
    for (uint32_t e = 0; e < n; e++) {
        if (!(score[e] >= most_f32)) p[e] = 0;
        else p[e] = (c.flags & flag_renormalise ? p[e] / sum : p[e]) * c.routed_scale;
    }
}

static Rows feed_forward(Session& s, const FeedForward& w, Rows x)
{
    const Config& c = config(s);
    Rows y = {floats(s, region_y), x.count, c.dim};
    float* const gathered = floats(s, region_expert);
    float* const returned = gathered + uint64_t{x.count} * c.dim;
    if (!has(Feature::experts) || !w.router.w) y = mlp(s, w.experts, 0, x, y.data);
    else {
        const Rows p = linear(s, w.router, x, floats(s, region_router));
        for (uint32_t t = 0; t < x.count; t++) route(s, w, p.data + uint64_t{t} * p.dim, p.data + uint64_t{x.count} * p.dim);
        memset(y.data, 0, size_t{y.count} * y.dim * sizeof(float));
        for (uint32_t e = 0; e < c.n_experts; e++) {
            uint32_t n = 0;
            for (uint32_t t = 0; t < x.count; t++) {
                const float weight = p.data[uint64_t{t} * p.dim + e];
                if (bits_of(weight) << 1 == 0) continue;
                float* const to = gathered + uint64_t{n++} * c.dim;
                memcpy(to, x.data + uint64_t{t} * c.dim, c.dim * sizeof(float));
                for (uint32_t i = 0; c.flags & flag_scale_expert_input && i < c.dim; i++) to[i] *= weight;
            }
            if (!n) continue;
            const Rows out = mlp(s, w.experts, e, {gathered, n, c.dim}, returned);
            n = 0;
            for (uint32_t t = 0; t < x.count; t++) {
                const float weight = p.data[uint64_t{t} * p.dim + e];
                if (bits_of(weight) << 1 == 0) continue;
                s.room->add(y.data + uint64_t{t} * c.dim, out.data + uint64_t{n++} * c.dim,
                    c.flags & flag_scale_expert_input ? 1.0f : weight, c.dim);
            }
        }
    }
    if (has(Feature::experts) && w.shared.up.w) {
        const Rows out = mlp(s, w.shared, 0, x, returned);
        Rows gate = {};
        if (w.shared_router.w) gate = linear(s, w.shared_router, x, gathered);
        for (uint32_t t = 0; t < x.count; t++)
            s.room->add(y.data + uint64_t{t} * c.dim, out.data + uint64_t{t} * c.dim,
                gate.data ? 1.0f / (1.0f + exp_f32(-gate.data[t])) : 1.0f, c.dim);
    }
    return y;
}

// >> 13 Positions -----------------------------------------------------------------------------------------------------

// Whisper: two convolutions of width 3 over time [23]
TRANSFORMER_OUTLINE static Rows embed_features(Session& s, const Input& in)
{
    const Config& c = config(s);
    float* const wide = floats(s, region_convolved);
    Rows x = {floats(s, region_h), in.count, c.n_features};
    for (int layer = 0; layer < 2; layer++) {
        const Linear& w = layer ? s.stack->conv2 : s.stack->conv1;
        const uint32_t stride = layer ? 2 : 1, count = x.count / stride, channels = x.dim;
        for (uint32_t t = 0; t < count; t++)
            for (uint32_t tap = 0; tap < 3; tap++) {
                const int64_t from = int64_t{t} * stride + tap - 1;
                float* const to = wide + (uint64_t{t} * 3 + tap) * channels;
                for (uint32_t i = 0; i < channels; i++) {
                    if (from < 0 || from >= int64_t{x.count}) to[i] = 0;
                    else to[i] = layer ? x.data[uint64_t(from) * channels + i]
                        : in.features[uint64_t{i} * in.count + uint64_t(from)];
                }
            }
        x = linear(s, w, {wide, count, 3 * channels}, floats(s, layer ? region_x : region_h));
        activate(s, Activation::gelu, x.data, size_t{x.count} * x.dim);
    }
    return x;
}

static void add_row(float* x, const Tensor& table, uint32_t row, float* scratch)
{
    dequantize_row(table, 0, row, scratch);
    for (uint32_t i = 0; i < table.cols; i++) x[i] += scratch[i];
}

// x = scale * token + position + type, norm, projection, each if the model has it.
TRANSFORMER_OUTLINE static Rows embed(Session& s, const Input& in, uint32_t first, uint32_t count)
{
    const Stack& k = *s.stack;
    const Config& c = k.config;
    const uint32_t e = in.rows || in.features ? c.dim : c.embedding_dim;
    float* const scratch = floats(s, region_y);
    Rows x = {floats(s, region_x), count, e};
    if (has(Feature::encoder) && in.features) x = embed_features(s, in);
    for (uint32_t t = 0; t < x.count; t++) {
        float* const row = x.data + uint64_t{t} * e;
        if (in.rows) memcpy(row, in.rows + uint64_t{first + t} * e, e * sizeof(float));
        else if (!in.features) {
            dequantize_row(k.token_embedding, 0, static_cast<uint32_t>(in.tokens[first + t]), row);
            const bool scaled = has(Feature::embeddings) && (c.embedding_scale < 1.0f || c.embedding_scale > 1.0f);
            for (uint32_t i = 0; scaled && i < e; i++) row[i] *= c.embedding_scale;
        }
        if (!has(Feature::embeddings) || in.rows) continue;
        if (k.position_embedding && k.position_embedding.cols == e) add_row(row, k.position_embedding, s.base + t, scratch);
        if (k.type_embedding)
            add_row(row, k.type_embedding, in.types ? static_cast<uint32_t>(in.types[first + t]) : 0, scratch);
        for (uint32_t i = 0; c.flags & flag_sinusoidal && i + 1 < e; i += 2) {
            const double angle = (s.base + t) * exp_f64(-static_cast<double>(i) / e * log_f64(10000.0));
            float cosine, sine;
            cos_sin(angle, &cosine, &sine);
            row[i] += sine;
            row[i + 1] += cosine;
        }
    }
    if (!has(Feature::embeddings) || in.rows) return x;
    const bool norm_first = k.embedding_norm.w.cols == e;      // ALBERT; DeBERTa norms what is projected
    if (norm_first) norm(s, k.embedding_norm, x, x.data);
    if (k.embedding_proj.w) {
        memcpy(scratch, x.data, size_t{x.count} * e * sizeof(float));
        x = linear(s, k.embedding_proj, {scratch, x.count, e}, x.data);
        for (uint32_t t = 0; k.position_embedding && k.position_embedding.cols != e && t < x.count; t++)
            add_row(x.data + uint64_t{t} * x.dim, k.position_embedding, s.base + t, scratch);
    }
    return norm_first ? x : norm(s, k.embedding_norm, x, x.data);
}

// Row t of a set: rope_dim / 2 cosines, then as many sines of position * frequency, in the first set times rope_scale [5].
static void prepare_rope(Session& s, uint32_t count)
{
    const Config& c = config(s);
    const Tensor& table = s.stack->rope_freqs;
    const uint32_t half = c.rope_dim / 2, sets = has(Feature::windows) && !c.rope_long_from && table.rows > 1 ? 2 : 1;
    const bool given = !has(Feature::frequencies) || table;
    const double log_theta = given ? 0 : log_f64(static_cast<double>(c.rope_theta));
    for (uint32_t set = 0; set < sets; set++)
        for (uint32_t i = 0; i < half; i++) {
            const uint64_t row = c.rope_long_from ? (s.rope_long && table.rows > 1 ? 1 : 0) : set;
            const float f = given ? load_f32(table.data + 4 * (row * half + i))
                                  : static_cast<float>(exp_f64(-2.0 * i / c.rope_dim * log_theta));
            for (uint32_t t = 0; t < count; t++) {
                float* const out = floats(s, region_rope) + (uint64_t{set} * count + t) * c.rope_dim;
                cos_sin(static_cast<double>(static_cast<float>(s.base + t) * f), &out[i], &out[half + i]);
                out[i] *= set ? 1.0f : c.rope_scale;           // the local set is plain
                out[half + i] *= set ? 1.0f : c.rope_scale;
            }
        }
    s.rope_rows = sets > 1 ? count : 0;
}

// (x_i, x_{i + half}) turned by the angle of position t.
static void rotate(const Session& s, float* x, uint32_t t, bool local)
{
    const uint32_t n = config(s).rope_dim, half = n / 2;
    const float* const cosine = floats(s, region_rope) + (uint64_t{local ? s.rope_rows : 0} + t) * n;
    for (uint32_t i = 0; i < half; i++) {
        const float a = x[i], b = x[half + i];
        x[i] = a * cosine[i] - b * cosine[half + i];
        x[half + i] = b * cosine[i] + a * cosine[half + i];
    }
}

// >> 14 Norms ---------------------------------------------------------------------------------------------------------
// RMSNorm [3]: y = x / sqrt(mean(x^2) + eps) * w.  LayerNorm [2]: y = (x - mean) / sqrt(var + eps) * w + b.
static Rows norm(const Session& s, const Norm& w, Rows x, float* out)
{
    if (!w.w) return x;
    const Config& c = config(s);
    each_row(s, x.count, x.dim, [&](uint32_t first, uint32_t last) {
        for (uint64_t t = first; t < last; t++)
            s.room->normalise(c.norm, x.data + t * x.dim, x.dim, w.w.data, w.b.data, c.norm_eps, out + t * x.dim);
    });
    return {out, x.count, x.dim};
}

static void activate(const Session& s, Activation kind, float* x, size_t n)
{
    if (kind == Activation::identity) return;
    const uint32_t lines = static_cast<uint32_t>((n + 1023) / 1024);
    each_row(s, lines, 1024, [&](uint32_t first, uint32_t last) {
        s.room->activate(kind, x + size_t{first} * 1024, least(n, size_t{last} * 1024) - size_t{first} * 1024);
    });
}

// ==== Part III: Numbers ==============================================================================================

// >> 15 Formats -------------------------------------------------------------------------------------------------------
// f32, f16, bf16: rows. Quantised matrices are tiles of 16 rows; a tile is one unit for each group of 32 columns, so that a
// 4-byte broadcast of activations times 64 bytes of weights is one step for 16 outputs on every ISA:
//
//     q8_0, 544 bytes   8 x 64: step k, row r, column c at 64 k + 4 r + c: int8 of column 4 k + c   | 16 x f16 scale
//     q4_0, 288 bytes   4 x 64: the low nibble belongs to step 2 j, the high one to step 2 j + 1    | 16 x f16 scale
//     q4_1, 320 bytes   the same                                                                    | scale | 16 x f16 minimum
//
// value = scale q (q8_0), scale (q - 8) (q4_0), scale q + minimum (q4_1). Missing rows and columns are stored as zeros.

static uint32_t bits_of(float x) { uint32_t u; TRANSFORMER_COPY(&u, &x, 4); return u; }
static float of_bits(uint32_t u) { float x; TRANSFORMER_COPY(&x, &u, 4); return x; }
static uint32_t load_u16(const unsigned char* p) { return static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8; }
static uint32_t load_u32(const unsigned char* p) { return load_u16(p) | load_u16(p + 2) << 16; }
static uint64_t load_u64(const unsigned char* p) { return load_u32(p) | static_cast<uint64_t>(load_u32(p + 4)) << 32; }
static float load_f32(const unsigned char* p) { return of_bits(load_u32(p)); }
static void store_u16(unsigned char* p, uint32_t x)
{
    p[0] = static_cast<unsigned char>(x);
    p[1] = static_cast<unsigned char>(x >> 8);
}

static void store_f32(unsigned char* p, float x)
{
    store_u16(p, bits_of(x));
    store_u16(p + 2, bits_of(x) >> 16);
}

TRANSFORMER_API float f16_to_f32(uint16_t half)
{
    const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 1023u;
    if (exponent == 0) {
        const float tiny = static_cast<float>(fraction) * 5.9604644775390625e-8f;       // fraction * 2^-24, exact
        return sign ? -tiny : tiny;
    }
    return of_bits(sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13);
}
TRANSFORMER_API uint16_t f32_to_f16(float value)
{
    const uint32_t u = bits_of(value), sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7bffu);         // rounds beyond 65504: saturate
    if (magnitude < 0x38800000u)                               // below 2^-14: the sum rounds at 2^-24, half to even
        return static_cast<uint16_t>(sign | (bits_of(of_bits(magnitude) + 0.5f) - 0x3f000000u));
    const uint32_t even = magnitude >> 13 & 1;
    return static_cast<uint16_t>(sign | (magnitude - 0x38000000u + 0xfffu + even) >> 13);
}
TRANSFORMER_API float bf16_to_f32(uint16_t half) { return of_bits(static_cast<uint32_t>(half) << 16); }
TRANSFORMER_API uint16_t f32_to_bf16(float value)
{
    const uint32_t u = bits_of(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(u >> 16 | 0x40u);
    return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static int32_t to_int(float x, int32_t low, int32_t high)      // nearest, half to even, clamped; NaN gives low
{
    if (!(x > static_cast<float>(low))) return low;
    if (x > static_cast<float>(high)) return high;
    // 1.5 * 2^23: the integer in the low bits
    return static_cast<int32_t>(bits_of(x + 12582912.0f) - 0x4b400000u);
}

TRANSFORMER_API void quantize_tile(DType type, const float* rows, uint32_t n_rows, uint32_t cols, unsigned char* tile)
{
    const uint32_t unit = unit_bytes(type), quants = type == DType::q8_0 ? 512 : 256;
    memset(tile, 0, (cols + 31) / 32 * static_cast<size_t>(unit));
    for (uint32_t g = 0; g * 32 < cols; g++)
        for (uint32_t r = 0; r < n_rows; r++) {
            unsigned char* const u = tile + static_cast<size_t>(g) * unit;
            float x[32] = {}, low = 0, high = 0;
            memcpy(x, rows + static_cast<size_t>(r) * cols + g * 32, least(32u, cols - g * 32) * sizeof(float));
            if (type == DType::q4_1) low = high = x[0];
            for (float v : x) {
                low = least(v, low);
                high = most(v, high);
            }
            // q4_0 spends its 16th value on the side that reaches farther. With 4 bits a range a little narrower often fits
            // better, so four are tried and the first with the least squared error stays.
            const float extreme = -low > high ? low : high, cut = 0.03f * (high - low);
            float least_error = 0;
            for (uint32_t trial = 0; trial < (type == DType::q8_0 ? 1u : 4u); trial++) {
                const float bottom = trial & 1 ? low + cut : low, top = trial & 2 ? high - cut : high;
                const float step = type == DType::q8_0 ? (extreme < 0 ? -extreme : extreme) / 127.0f
                    : type == DType::q4_0 ? extreme / -8.0f * (1.0f - 0.04f * static_cast<float>(trial))
                    : (top - bottom) / 15.0f;
                const uint16_t scale = f32_to_f16(step), minimum = f32_to_f16(bottom);
                const float s = f16_to_f32(scale), m = type == DType::q4_1 ? f16_to_f32(minimum) : 0.0f;
                const int32_t zero = type == DType::q4_0 ? 8 : 0, most_q = type == DType::q8_0 ? 127 : 15 - zero;
                const bool flat = !(s > 0 || s < 0);
                int32_t q[32];
                float error = 0;
                for (uint32_t c = 0; c < 32; c++) {
                    q[c] = flat ? 0 : to_int((x[c] - m) / s, type == DType::q8_0 ? -127 : -zero, most_q);
                    const float off = x[c] - (s * static_cast<float>(q[c]) + m);
                    error += off * off;
                }
                if (trial && !(error < least_error)) continue;
                least_error = error;
                for (uint32_t c = 0; c < 32; c++) {
                    const unsigned char byte = static_cast<unsigned char>(q[c] + zero);
                    if (type == DType::q8_0) u[c / 4 * 64 + 4 * r + c % 4] = byte;
                    else if (c % 8 < 4) u[c / 8 * 64 + 4 * r + c % 4] = byte;
                    else u[c / 8 * 64 + 4 * r + c % 4] |= static_cast<unsigned char>(byte << 4);
                }
                store_u16(u + quants + 2 * r, scale);
                if (type == DType::q4_1) store_u16(u + quants + 32 + 2 * r, minimum);
            }
        }
}

TRANSFORMER_API void dequantize_row(const Tensor& w, uint32_t matrix, uint32_t row, float* out)
{
    const uint32_t unit = unit_bytes(w.dtype);
    const unsigned char* p = w.data + matrix * matrix_bytes(w.dtype, w.rows, w.cols);
    if (has(Feature::dense_weights) && !is_quantised(w.dtype)) {
        p += uint64_t{row} * w.cols * unit;
        for (uint32_t c = 0; c < w.cols; c++) {
            const uint16_t half = static_cast<uint16_t>(load_u16(p + uint64_t{c} * unit));
            out[c] = w.dtype == DType::f32 ? load_f32(p + uint64_t{c} * 4) : w.dtype == DType::f16 ? f16_to_f32(half)
                : bf16_to_f32(half);
        }
        return;
    }
    const uint32_t r = row % 16, quants = w.dtype == DType::q8_0 ? 512 : 256;
    p += row / 16 * ((uint64_t{w.cols} + 31) / 32) * unit;
    for (uint32_t c = 0; c < w.cols; c++) {
        const unsigned char* const u = p + uint64_t{c} / 32 * unit;
        const uint32_t k = c % 32;
        const float s = f16_to_f32(static_cast<uint16_t>(load_u16(u + quants + 2 * r)));
        if (!has(Feature::nibble_weights) || w.dtype == DType::q8_0) {
            out[c] = s * static_cast<float>(static_cast<int8_t>(u[k / 4 * 64 + 4 * r + k % 4]));
            continue;
        }
        const uint32_t byte = u[k / 8 * 64 + 4 * r + k % 4];
        const int32_t q = static_cast<int32_t>(k % 8 < 4 ? byte & 15 : byte >> 4);
        out[c] = w.dtype == DType::q4_0 ? s * static_cast<float>(q - 8)
                                        : s * static_cast<float>(q) + f16_to_f32(
                                            static_cast<uint16_t>(load_u16(u + quants + 32 + 2 * r)));
    }
}

// >> 16 Mathematics ---------------------------------------------------------------------------------------------------
// Our own, over + - * / only, so that every libm gives the same bits. The vector exp stands in >> 19 Kernels.

// correctly rounded, bit by bit; rooms have an instruction for it
static float sqrt_f32(float x)
{
    uint32_t u = bits_of(x);
    if (!(x > 0) || u >= 0x7f800000u) return x < 0 ? of_bits(0x7fc00000u) : x;
    int32_t e = static_cast<int32_t>(u >> 23);
    if (e == 0) {                                              // subnormal: scale by 2^24 and take 2^12 off the root
        u = bits_of(x * 16777216.0f);
        e = static_cast<int32_t>(u >> 23) - 24;
    }
    e -= 127;
    uint32_t m = (u & 0x7fffffu) | 0x800000u, root = 0, rest = 0;
    if (e & 1) m <<= 1;
    e = (e - (e & 1)) / 2;
    for (int i = 0; i < 25; i++) {                             // 24 bits of the root and one to round by
        rest = rest << 2 | (m >> 23 & 3);
        m = m << 2 & 0x1ffffffu;
        const uint32_t trial = root << 2 | 1;
        root <<= 1;
        if (rest >= trial) {
            rest -= trial;
            root |= 1;
        }
    }
    root = (root >> 1) + (root & 1);                           // never a tie: a root has at most 24 bits or is irrational
    return of_bits((static_cast<uint32_t>(e + 127) << 23) + (root - 0x800000u));
}

static double of_bits64(uint64_t u) { double x; TRANSFORMER_COPY(&x, &u, 8); return x; }
static uint64_t bits_of64(double x) { uint64_t u; TRANSFORMER_COPY(&u, &x, 8); return u; }

static double horner(double x, const double* c, int n)         // c[0] x^(n - 1) + ... + c[n - 1]
{
    double sum = c[0];
    for (int i = 1; i < n; i++) sum = sum * x + c[i];
    return sum;
}
static double exp_f64(double x)                                // |x| < 700; Taylor series on [-ln 2 / 2, ln 2 / 2]
{
    static const double c[] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0,
        1.0 / 40320.0, 1.0 / 5040.0,
                               1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0};
    const double magic = 6755399441055744.0, n = x * 1.4426950408889634 + magic;
    const double k = n - magic, r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    return horner(r, c, 14) * of_bits64((bits_of64(n) << 52) + (uint64_t{1023} << 52));
}
static double log_f64(double x)                                // x > 0, normal: 2 artanh((m - 1) / (m + 1)) + e ln 2
{
    static const double c[] = {2.0 / 21, 2.0 / 19, 2.0 / 17, 2.0 / 15, 2.0 / 13, 2.0 / 11, 2.0 / 9, 2.0 / 7, 2.0 / 5, 2.0 / 3,
        2.0};
    const uint64_t u = bits_of64(x);
    int32_t e = static_cast<int32_t>(u >> 52) - 1023;
    double m = of_bits64((u & 0xfffffffffffffu) | uint64_t{1023} << 52);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    const double s = (m - 1) / (m + 1);
    return s * horner(s * s, c, 11) + static_cast<double>(e) * 0.6931471805599453;
}
static float log_f32(float x) { return static_cast<float>(log_f64(static_cast<double>(x))); }

static void cos_sin(double x, float* cosine, float* sine)      // |x| < 2^31; Taylor series on [-pi/4, pi/4]
{
    static const double cs[] = {1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0,
        1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0};
    static const double ss[] = {-1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0, -1.0 / 5040.0,
        1.0 / 120.0, -1.0 / 6.0, 1.0};
    const double magic = 6755399441055744.0, n = x * 0.63661977236758134 + magic, k = n - magic;
    const double r = (x - k * 1.5707963267341256) - k * 6.0771005065061922e-11, q = r * r;
    const double c = horner(q, cs, 9), s = r * horner(q, ss, 8);
    const uint64_t turn = bits_of64(n) & 3;
    const double a = turn & 1 ? s : c, b = turn & 1 ? c : s;
    *cosine = static_cast<float>(turn == 1 || turn == 2 ? -a : a);
    *sine = static_cast<float>(turn >= 2 ? -b : b);
}

// a * b + c with one rounding. Where the target has no such instruction: the product is exact in double, the sum is rounded
// to odd there, so that the second rounding cannot go wrong.
static inline float fused(float a, float b, float c)
{
    if (has_fma) return __builtin_fmaf(a, b, c);
    const double p = static_cast<double>(a) * static_cast<double>(b), z = static_cast<double>(c), sum = p + z;
    const double back = sum - p, error = (p - (sum - back)) + (z - back);
    uint64_t u = bits_of64(sum);
    if ((error > 0 || error < 0) && !(u & 1)) u += (error > 0) == (sum > 0) ? uint64_t{1} : ~uint64_t{0};
    return static_cast<float>(of_bits64(u));
}

// >> 17 Products ------------------------------------------------------------------------------------------------------
// y = W x + b. Against plain weights x stays f32: 16 partial sums of fused multiply-adds by column % 16, then a fixed tree.
// Against quantised ones x is rounded to 8 bits with a scale for 32 values; the dot product of a group is exact in int32, then
// acc += float(dot) * (scale_w * scale_x), separately rounded, in ascending order of the groups.
//
// One large value makes the steps of its whole group coarse, and a few such groups make most of the error. Where a scale is
// over three times the row's mean, what the rounding left is rounded once more and multiplied in its turn, after all groups:
// one group in thirty on SmolLM2, and a third of the error of llama.cpp's single rounding.

struct ProductJob {
    struct Part {                                              // units first .. last - 1 of one matrix: its rows or tiles
        const unsigned char* w;                                // the matrix
        const unsigned char* b;                                // its bias or null
        uint32_t rows, first, last;
        float* y;                                              // (n, rows)
    };
    const Part* parts;
    uint32_t n_parts, cols;
    const float* x;                                            // (n, cols), for plain weights
    // for quantised ones, G = ceil(cols / 32): panels of up to 8 tokens with their groups side by side, q[(8 p G) + g w + t]
    // for token t of the w in panel p; the residuals of a panel from rest[8 p (G / 3 + 1)] on, by token, then by group
    const Group* q;
    const Residual* rest;
    uint32_t n;
};
constexpr uint32_t most_products = 3;                          // with one x: q, k and v

static uint32_t panels_of(uint32_t rows) { return (rows + panel_rows - 1) / panel_rows; }
struct ProductTask {
    const Session* s;
    Rows x;
    const Product* list;
    uint32_t n, pieces, token_pieces;                          // a piece: some of the tiles with some of the tokens
    uint32_t tiles;                                            // a matrix has at most 2^20
    Group* q;
    Residual* rest;
};

static void product_piece(void* data, uint32_t piece)
{
    const ProductTask& task = *static_cast<const ProductTask*>(data);
    const uint32_t row_pieces = task.pieces / task.token_pieces, of_tokens = piece / row_pieces, of_rows = piece % row_pieces;
    const uint32_t begin = share(task.tiles, of_rows, row_pieces), end = share(task.tiles, of_rows + 1, row_pieces);
    const uint32_t panels = panels_of(task.x.count), groups = (task.x.dim + 31) / 32;
    const uint32_t token = share(panels, of_tokens, task.token_pieces) * panel_rows;
    const uint32_t token_end = least(share(panels, of_tokens + 1, task.token_pieces) * panel_rows, task.x.count);
    ProductJob::Part parts[most_products];
    ProductJob job = {parts, 0, task.x.dim, task.x.data + uint64_t{token} * task.x.dim, task.q + uint64_t{token} * groups,
        task.rest + uint64_t{token} * (most_residuals(groups) + 1), token_end - token};
    uint32_t base = 0;
    for (uint32_t i = 0; i < task.n; i++) {                    // matrices of one type are one job
        const Product& p = task.list[i];
        const Tensor& w = p.w->w;
        const uint32_t tiles = (w.rows + 15) / 16, first = most(begin, base), last = least(end, base + tiles);
        const uint32_t unit = is_quantised(w.dtype) ? 1 : 16;
        if (first < last)
            parts[job.n_parts++] = {w.data + p.matrix * matrix_bytes(w.dtype, w.rows, w.cols),
                p.w->b ? p.w->b.data + uint64_t{p.matrix} * w.rows * 4 : nullptr, w.rows, (first - base) * unit,
                unit > 1 ? least((last - base) * unit, w.rows) : last - base, p.y + uint64_t{token} * w.rows};
        base += tiles;
        if (job.n_parts && (i + 1 == task.n || task.list[i + 1].w->w.dtype != w.dtype)) {
            task.s->room->product[static_cast<uint32_t>(w.dtype)](job);
            job.n_parts = 0;
        }
    }
}

// Panels of rows rounded to 8 bits, as ProductJob has them.
static void quantise_rows(const Kernels& room, Rows x, uint32_t first_panel, uint32_t last_panel, Group* q, Residual* rest)
{
    const uint32_t groups = (x.dim + 31) / 32;
    for (uint32_t t = first_panel * panel_rows, end = least(last_panel * panel_rows, x.count); t < end; t += panel_rows) {
        const uint32_t width = least(panel_rows, x.count - t);
        Group* const panel = q + uint64_t{t} * groups;
        Residual* list = rest + uint64_t{t} * (most_residuals(groups) + 1);
        for (uint32_t k = 0; k < width; k++)
            list = room.quantise(x.data + uint64_t{t + k} * x.dim, x.dim, k, width, panel + k, list);
        list->group = UINT32_MAX;
    }
}

static void products(Session& s, Rows x, const Product* list, uint32_t n)
{
    Group* const q = static_cast<Group*>(static_cast<void*>(floats(s, region_quantised)));
    Residual* const rest = static_cast<Residual*>(static_cast<void*>(q + uint64_t{x.count} * ((x.dim + 31) / 32)));
    ProductTask task = {&s, x, list, n, 1, 1, 0, q, rest};
    bool quantised = false;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        const Tensor& w = list[i].w->w;
        task.tiles += (w.rows + 15) / 16;
        bytes += matrix_bytes(w.dtype, w.rows, w.cols);
        quantised = quantised || is_quantised(w.dtype);
    }
    if (quantised)
        each_row(s, panels_of(x.count), uint64_t{x.dim} * panel_rows, [&](uint32_t first, uint32_t last) {
            quantise_rows(*s.room, x, first, last, q, rest);
        });
    // Tokens are cut first: each thread then reads what it wrote itself. With few tokens the memory is what counts: one stretch
    // for each thread, for a stream that begins anew is slow.
    const uint32_t slices = slices_of(s.options);
    task.token_pieces = most(least(slices, x.count / 64), 1u);
    const uint64_t at_most = x.count > panel_rows ? task.tiles * task.token_pieces : least(task.tiles, slices);
    task.pieces = pieces_of(s, bytes * x.count, 16384, at_most);
    task.pieces = most(task.pieces / task.token_pieces, 1u) * task.token_pieces;
    parallel(s, task.pieces, product_piece, &task);
}

static Rows linear(Session& s, const Linear& w, Rows x, float* y, uint32_t matrix)
{
    const Product p = {&w, matrix, y};
    products(s, x, &p, 1);
    return {y, x.count, w.w.rows};
}

static void parallel(const Session& s, uint32_t pieces, Task task, void* data)
{
    if (pieces > 1 && s.options.parallel_for) s.options.parallel_for(s.options.parallel_user, pieces, task, data);
    else for (uint32_t i = 0; i < pieces; i++) task(data, i);
}

// >> 18 Rooms ---------------------------------------------------------------------------------------------------------
// An ISA is one struct of words: vectors of `lanes` floats (f32) and int32 (i32), and bytes of weights for as many rows. No
// intrinsic stands elsewhere. The kernels below are compiled once a room by letting the header include itself between the
// pragmas that switch the target; so a plain -O2 build has every room, and start() picks one at run time. 16 accumulators
// are always 16 / lanes vectors, so that sums have one order.

#if defined(__GNUC__)
#define TRANSFORMER_UNROLL _Pragma("GCC unroll 4")
#else
#define TRANSFORMER_UNROLL
#endif
#define TRANSFORMER_UNROLL_STEPS
#define TRANSFORMER_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define TRANSFORMER_TARGET(isa) TRANSFORMER_PRAGMA(clang attribute push(__attribute__((target(isa))), apply_to = function))
#define TRANSFORMER_TARGET_END _Pragma("clang attribute pop")
#else
#define TRANSFORMER_TARGET(isa) _Pragma("GCC push_options") TRANSFORMER_PRAGMA(GCC target(isa))
#define TRANSFORMER_TARGET_END _Pragma("GCC pop_options")
#endif
#define TRANSFORMER_AVX2_TARGET "avx2,fma,f16c"
#define TRANSFORMER_AVX_VNNI_TARGET "avxvnni,avx2,fma,f16c"
#define TRANSFORMER_AVX512_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"
#if defined(__clang__)
#define TRANSFORMER_NEON_DOT_TARGET "dotprod"
#elif defined(__ARM_FEATURE_DOTPROD)
#define TRANSFORMER_NEON_DOT_TARGET "+dotprod"
#else
#define TRANSFORMER_NEON_DOT_TARGET "arch=armv8.2-a+dotprod"
#endif

struct Scalar {
    // what its registers hold at a time
    static constexpr uint32_t lanes = 1, wide = 4, tokens = 1, plain_rows = 1, plain_tokens = 1, streams = 1, queries = 2;
    typedef float f32;
    typedef int32_t i32;
    typedef const unsigned char* bytes;
    static constexpr Isa isa = Isa::scalar;
    static f32 zero() { return 0; }
    static f32 set(float x) { return x; }
    static f32 load(const float* p) { return *p; }
    static f32 load_f32(const unsigned char* p) { return TRANSFORMER_NAMESPACE::load_f32(p); }
    static f32 load_f16(const unsigned char* p) { return f16_to_f32(static_cast<uint16_t>(load_u16(p))); }
    static void load_f16s(const unsigned char* p, f32* x) { for (uint32_t i = 0; i < wide; i++) x[i] = load_f16(p + 2 * i); }
    static f32 load_bf16(const unsigned char* p) { return bf16_to_f32(static_cast<uint16_t>(load_u16(p))); }
    static f32 load_i8(const unsigned char* p) { return static_cast<float>(static_cast<int8_t>(*p)); }
    static void store(float* p, f32 x) { *p = x; }
    static void store_f16(unsigned char* p, f32 x) { store_u16(p, f32_to_f16(x)); }     // of -65504 .. 65504 or NaN
    static f32 add(f32 a, f32 b) { return a + b; }
    static f32 sub(f32 a, f32 b) { return a - b; }
    static f32 mul(f32 a, f32 b) { return a * b; }
    static f32 div(f32 a, f32 b) { return a / b; }
    static f32 fma(f32 a, f32 b, f32 c) { return fused(a, b, c); }
    static float root(float x) { return sqrt_f32(x); }
    static f32 less(f32 a, f32 b, f32 yes, f32 no) { return a < b ? yes : no; }         // NaN: no
    static f32 power(f32 n) { return of_bits((bits_of(n) << 23) + (127u << 23)); }      // 2^k of n = k + 1.5 * 2^23
    static float sum(const f32* a)                             // of 16 lanes, the fixed tree
    {
        f32 x[8];
        for (int i = 0; i < 8; i++) x[i] = a[i] + a[i + 8];
        for (int w = 4; w; w /= 2)
            for (int i = 0; i < w; i++) x[i] += x[i + w];
        return x[0];
    }
    static float largest(const f32* a)                         // of 16 lanes without NaN
    {
        f32 m = a[0];
        for (int i = 1; i < 16; i++) m = a[i] > m ? a[i] : m;
        return m;
    }
    static i32 izero() { return 0; }
    static i32 iset(int32_t x) { return x; }
    static f32 to_float(i32 x) { return static_cast<float>(x); }
    static i32 magnitude(f32 x) { return static_cast<int32_t>(bits_of(x) & 0x7fffffffu); }
    static i32 imax(i32 a, i32 b) { return a > b ? a : b; }
    static int32_t ilargest(i32 a) { return a; }
    static void store_i8(int8_t* p, f32 n) { *p = static_cast<int8_t>(bits_of(n) & 255u); }   // low byte of n = k + 1.5 * 2^23
    // Four columns of weights times four activations, summed: signed bytes, or nibbles of them, 0 .. 15 times `nibble`. What a
    // room adds to each signed byte, to make it unsigned, is taken off by `begin`, which knows the sum of the activations.
    static constexpr int32_t nibble = 1;
    static bytes load_bytes(const unsigned char* p) { return p; }
    static i32 begin(int32_t) { return 0; }
    static i32 dot(i32 acc, bytes w, const int8_t* x)
    {
        for (int i = 0; i < 4; i++) acc += static_cast<int8_t>(w[i]) * x[i];
        return acc;
    }
    // d[k] += 32 columns of `wide` vectors of rows with x[k], of the types that have this as one word
    static constexpr bool groups(DType type) { return type == DType::q8_0; }
    template <DType, uint32_t NT, uint32_t W> static void group(const unsigned char* w, const Group* x, i32 (&d)[NT][W])
    {
        for (uint32_t k = 0; k < 32; k += 4)
            TRANSFORMER_UNROLL for (uint32_t r = 0; r < wide; r++) d[0][r] = dot(d[0][r], w + 16 * k + 4 * r, x->q + k);
    }
    static i32 dot_low(i32 acc, bytes w, const int8_t* x)
    {
        for (int i = 0; i < 4; i++) acc += (w[i] & 15) * x[i];
        return acc;
    }
    static i32 dot_high(i32 acc, bytes w, const int8_t* x)
    {
        for (int i = 0; i < 4; i++) acc += (w[i] >> 4) * x[i];
        return acc;
    }
};

#if TRANSFORMER_DSP
struct Dsp : Scalar {                                          // Cortex-M4 and later with FPU: two products an instruction
    static float root(float x) { __asm__("vsqrt.f32 %0, %0" : "+t"(x)); return x; }
    static f32 load_f16(const unsigned char* p)
    {
        f32 x;
        __asm__("vcvtb.f32.f16 %0, %1" : "=t"(x) : "t"(of_bits(load_u16(p))));
        return x;
    }
    TRANSFORMER_INLINE void load_f16s(const unsigned char* p, f32* x)
    {
        TRANSFORMER_UNROLL for (uint32_t i = 0; i < wide; i += 2) {
            const float both = of_bits(word(p + 2 * i));
            __asm__("vcvtb.f32.f16 %0, %1" : "=t"(x[i]) : "t"(both));
            __asm__("vcvtt.f32.f16 %0, %1" : "=t"(x[i + 1]) : "t"(both));
        }
    }
    // 23 instructions for 16 products, which a compiler does not keep in registers
    template <DType, uint32_t NT, uint32_t W>
    TRANSFORMER_INLINE void group(const unsigned char* w, const Group* group, i32 (&d)[NT][W])
    {
        i32 a = d[0][0], b = d[0][1], c = d[0][2], e = d[0][3];
        uint32_t u, v, even_x, odd_x;
        const int8_t *x = group->q, *const end = x + 32;
        __asm__ volatile(
            "1: ldr %[ox], [%[x]], #4\n    ldrd %[u], %[v], [%[w]], #8\n  sxtb16 %[ex], %[ox]\n   sxtb16 %[ox], %[ox], ror #8\n"
            "   sxtb16 r12, %[u]\n         smlad %[a], r12, %[ex], %[a]\n sxtb16 %[u], %[u], ror #8\n smlad %[a], %[u], %[ox], %[a]\n"
            "   sxtb16 r12, %[v]\n         smlad %[b], r12, %[ex], %[b]\n sxtb16 %[v], %[v], ror #8\n smlad %[b], %[v], %[ox], %[b]\n"
            "   ldrd %[u], %[v], [%[w]], #56\n"
            "   sxtb16 r12, %[u]\n         smlad %[c], r12, %[ex], %[c]\n sxtb16 %[u], %[u], ror #8\n smlad %[c], %[u], %[ox], %[c]\n"
            "   sxtb16 r12, %[v]\n         smlad %[e], r12, %[ex], %[e]\n sxtb16 %[v], %[v], ror #8\n smlad %[e], %[v], %[ox], %[e]\n"
            "   cmp %[x], %[end]\n         bne 1b\n"
            : [a] "+r"(a), [b] "+r"(b), [c] "+r"(c), [e] "+r"(e), [w] "+r"(w), [x] "+r"(x), [u] "=&r"(u), [v] "=&r"(v),
                [ex] "=&r"(even_x), [ox] "=&r"(odd_x)
            : [end] "r"(end)
            : "r12", "cc", "memory");
        d[0][0] = a, d[0][1] = b, d[0][2] = c, d[0][3] = e;
    }
    static i32 dot(i32 acc, bytes w, const int8_t* x)
    {
        return pairs(pairs(acc, even(word(w)), even(word(x))), odd(word(w)), odd(word(x)));
    }
    static i32 dot_low(i32 acc, bytes w, const int8_t* x)
    {
        return pairs(pairs(acc, word(w) & 0x000f000fu, even(word(x))), word(w) >> 8 & 0x000f000fu, odd(word(x)));
    }
    static i32 dot_high(i32 acc, bytes w, const int8_t* x)
    {
        return pairs(pairs(acc, word(w) >> 4 & 0x000f000fu, even(word(x))), word(w) >> 12 & 0x000f000fu, odd(word(x)));
    }

private:
    static uint32_t word(const void* p) { uint32_t v; TRANSFORMER_COPY(&v, __builtin_assume_aligned(p, 4), 4); return v; }
    static uint32_t even(uint32_t v) { uint32_t r; __asm__("sxtb16 %0, %1" : "=r"(r) : "r"(v)); return r; }     // bytes 0 and 2
    static uint32_t odd(uint32_t v) { uint32_t r; __asm__("sxtb16 %0, %1, ror #8" : "=r"(r) : "r"(v)); return r; }
    static i32 pairs(i32 acc, uint32_t a, uint32_t b)
    {
        i32 r;
        __asm__("smlad %0, %1, %2, %3" : "=r"(r) : "r"(a), "r"(b), "r"(acc));
        return r;
    }
};
#endif

#if TRANSFORMER_X86
TRANSFORMER_TARGET(TRANSFORMER_AVX2_TARGET)
struct Avx2 {
    static constexpr uint32_t lanes = 8, wide = 1, tokens = 4, plain_rows = 2, plain_tokens = 2, streams = 4, queries = 4;
    typedef __m256 f32;
    typedef __m256i i32;
    typedef __m256i bytes;
    static constexpr Isa isa = Isa::avx2;
    static f32 zero() { return _mm256_setzero_ps(); }
    static f32 set(float x) { return _mm256_set1_ps(x); }
    static f32 load(const float* p) { return _mm256_loadu_ps(p); }
    static f32 load_f32(const unsigned char* p) { return _mm256_castsi256_ps(load_bytes(p)); }
    static f32 load_f16(const unsigned char* p) { return _mm256_cvtph_ps(half(p)); }
    static f32 load_bf16(const unsigned char* p)
    {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half(p)), 16));
    }
    static f32 load_i8(const unsigned char* p)
    {
        return to_float(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(static_cast<const void*>(p)))));
    }
    static void store(float* p, f32 x) { _mm256_storeu_ps(p, x); }
    static void store_f16(unsigned char* p, f32 x)
    {
        _mm_storeu_si128(static_cast<__m128i*>(static_cast<void*>(p)), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
    static f32 add(f32 a, f32 b) { return _mm256_add_ps(a, b); }
    static f32 sub(f32 a, f32 b) { return _mm256_sub_ps(a, b); }
    static f32 mul(f32 a, f32 b) { return _mm256_mul_ps(a, b); }
    static f32 div(f32 a, f32 b) { return _mm256_div_ps(a, b); }
    static f32 fma(f32 a, f32 b, f32 c) { return _mm256_fmadd_ps(a, b, c); }
    static float root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
    static f32 less(f32 a, f32 b, f32 yes, f32 no) { return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
    static f32 power(f32 n)
    {
        return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(n), 23), iset(127 << 23)));
    }
    static float sum(const f32* a)
    {
        const f32 x = _mm256_add_ps(a[0], a[1]);
        const __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        const __m128 z = _mm_add_ps(y, _mm_movehl_ps(y, y));
        return _mm_cvtss_f32(_mm_add_ss(z, _mm_shuffle_ps(z, z, 1)));
    }
    static float largest(const f32* a)
    {
        const f32 x = _mm256_max_ps(a[0], a[1]);
        const __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        const __m128 z = _mm_max_ps(y, _mm_movehl_ps(y, y));
        return _mm_cvtss_f32(_mm_max_ss(z, _mm_shuffle_ps(z, z, 1)));
    }
    static i32 izero() { return _mm256_setzero_si256(); }
    static i32 iset(int32_t x) { return _mm256_set1_epi32(x); }
    static f32 to_float(i32 x) { return _mm256_cvtepi32_ps(x); }
    static i32 magnitude(f32 x) { return _mm256_and_si256(_mm256_castps_si256(x), iset(0x7fffffff)); }
    static i32 imax(i32 a, i32 b) { return _mm256_max_epi32(a, b); }
    static int32_t ilargest(i32 x)
    {
        const __m128i y = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        const __m128i z = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0x4e));
        return _mm_cvtsi128_si32(_mm_max_epi32(z, _mm_shuffle_epi32(z, 0xb1)));
    }
    static void store_i8(int8_t* p, f32 n)
    {
        const i32 low = _mm256_shuffle_epi8(_mm256_castps_si256(n), iset(0x0c080400));  // the low bytes of four lanes
        const int32_t x[2] = {_mm256_extract_epi32(low, 0), _mm256_extract_epi32(low, 4)};
        memcpy(p, x, 8);
    }
    static bytes load_bytes(const unsigned char* p)
    {
        return _mm256_loadu_si256(static_cast<const __m256i*>(static_cast<const void*>(p)));
    }
    static constexpr bool groups(DType type) { return type != DType::q8_0; }
    static constexpr int32_t nibble = 1;
    static i32 begin(int32_t) { return izero(); }
    static i32 dot(i32 acc, bytes w, const int8_t* x)          // |w| x sign(w): sums of two fit in 16 bits, since |x| <= 127
    {
        return widen(acc, _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(four(x), w)));
    }
    // nibbles: eight sums of two products each fit in 16 bits
    template <DType, uint32_t NT, uint32_t W> static void group(const unsigned char* w, const Group* x, i32 (&d)[NT][W])
    {
        const i32 nibbles = _mm256_set1_epi8(15);
        i32 pairs[NT][W];
        TRANSFORMER_UNROLL for (uint32_t k = 0; k < NT; k++)
            TRANSFORMER_UNROLL for (uint32_t i = 0; i < W; i++) pairs[k][i] = izero();
        TRANSFORMER_UNROLL for (uint32_t step = 0; step < 4; step++)
            TRANSFORMER_UNROLL for (uint32_t i = 0; i < W; i++) {
                const i32 b = load_bytes(w + 64 * step + 32 * i), low = _mm256_and_si256(b, nibbles);
                const i32 high = _mm256_and_si256(_mm256_srli_epi16(b, 4), nibbles);
                TRANSFORMER_UNROLL for (uint32_t k = 0; k < NT; k++) {
                    pairs[k][i] = _mm256_add_epi16(pairs[k][i], _mm256_maddubs_epi16(low, four(x[k].q + 8 * step)));
                    pairs[k][i] = _mm256_add_epi16(pairs[k][i], _mm256_maddubs_epi16(high, four(x[k].q + 8 * step + 4)));
                }
            }
        TRANSFORMER_UNROLL for (uint32_t k = 0; k < NT; k++)
            TRANSFORMER_UNROLL for (uint32_t i = 0; i < W; i++) d[k][i] = widen(d[k][i], pairs[k][i]);
    }

protected:
    static __m128i half(const unsigned char* p)
    {
        return _mm_loadu_si128(static_cast<const __m128i*>(static_cast<const void*>(p)));
    }
    static i32 four(const int8_t* x) { int32_t v; TRANSFORMER_COPY(&v, x, 4); return iset(v); }
    static i32 widen(i32 acc, i32 pairs) { return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))); }
};
TRANSFORMER_TARGET_END
#endif

#if TRANSFORMER_AVX_VNNI
TRANSFORMER_TARGET(TRANSFORMER_AVX_VNNI_TARGET)
struct AvxVnni : Avx2 {                                        // VPDPBUSD without AVX-512
    static constexpr Isa isa = Isa::avx_vnni;
    static constexpr bool groups(DType) { return false; }
    static i32 begin(int32_t offset) { return iset(offset); }  // it wants unsigned weights: w + 128
    static i32 dot(i32 acc, bytes w, const int8_t* x)
    {
        return _mm256_dpbusd_avx_epi32(acc, _mm256_xor_si256(w, _mm256_set1_epi8(-128)), four(x));
    }
    static constexpr int32_t nibble = 16;                      // so that the offset of 8 is one of 128 as well
    static i32 dot_low(i32 acc, bytes w, const int8_t* x) { return dot_high(acc, _mm256_slli_epi16(w, 4), x); }
    static i32 dot_high(i32 acc, bytes w, const int8_t* x)
    {
        return _mm256_dpbusd_avx_epi32(acc, _mm256_and_si256(w, _mm256_set1_epi8(-16)), four(x));
    }
};
TRANSFORMER_TARGET_END
#endif

#if TRANSFORMER_X86
TRANSFORMER_TARGET(TRANSFORMER_AVX512_TARGET)
struct Avx512 {
    static constexpr uint32_t lanes = 16, wide = 1, tokens = 8, plain_rows = 4, plain_tokens = 4, streams = 4, queries = 8;
    typedef __m512 f32;
    typedef __m512i i32;
    typedef __m512i bytes;
    static constexpr Isa isa = Isa::avx512;
    static f32 zero() { return _mm512_setzero_ps(); }
    static f32 set(float x) { return _mm512_set1_ps(x); }
    static f32 load(const float* p) { return _mm512_loadu_ps(p); }
    static f32 load_f32(const unsigned char* p) { return _mm512_loadu_ps(p); }
    static f32 load_f16(const unsigned char* p) { return _mm512_cvtph_ps(half(p)); }
    static f32 load_bf16(const unsigned char* p)
    {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half(p)), 16));
    }
    static f32 load_i8(const unsigned char* p)
    {
        return to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(static_cast<const void*>(p)))));
    }
    static void store(float* p, f32 x) { _mm512_storeu_ps(p, x); }
    static void store_f16(unsigned char* p, f32 x)
    {
        const __m256i y = _mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT);   // without the mask g++ 12 warns
        _mm256_storeu_si256(static_cast<__m256i*>(static_cast<void*>(p)), y);
    }
    static f32 add(f32 a, f32 b) { return _mm512_add_ps(a, b); }
    static f32 sub(f32 a, f32 b) { return _mm512_sub_ps(a, b); }
    static f32 mul(f32 a, f32 b) { return _mm512_mul_ps(a, b); }
    static f32 div(f32 a, f32 b) { return _mm512_div_ps(a, b); }
    static f32 fma(f32 a, f32 b, f32 c) { return _mm512_fmadd_ps(a, b, c); }
    static float root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
    static f32 less(f32 a, f32 b, f32 yes, f32 no)
    {
        return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
    }
    static f32 power(f32 n)
    {
        return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(_mm512_castps_si512(n), 23), iset(127 << 23)));
    }
    static float sum(const f32* a)
    {
        const __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a[0]), _mm512_extractf32x8_ps(a[0], 1));
        const __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        const __m128 z = _mm_add_ps(y, _mm_movehl_ps(y, y));
        return _mm_cvtss_f32(_mm_add_ss(z, _mm_shuffle_ps(z, z, 1)));
    }
    static float largest(const f32* a) { return _mm512_reduce_max_ps(a[0]); }
    static i32 izero() { return _mm512_setzero_si512(); }
    static i32 iset(int32_t x) { return _mm512_set1_epi32(x); }
    static f32 to_float(i32 x) { return _mm512_cvtepi32_ps(x); }
    static i32 magnitude(f32 x) { return _mm512_and_si512(_mm512_castps_si512(x), iset(0x7fffffff)); }
    static i32 imax(i32 a, i32 b) { return _mm512_max_epi32(a, b); }
    static int32_t ilargest(i32 a) { return _mm512_reduce_max_epi32(a); }
    static void store_i8(int8_t* p, f32 n)
    {
        _mm_storeu_si128(static_cast<__m128i*>(static_cast<void*>(p)), _mm512_cvtepi32_epi8(_mm512_castps_si512(n)));
    }
    static bytes load_bytes(const unsigned char* p) { return _mm512_loadu_si512(p); }
    static constexpr bool groups(DType) { return false; }
    static i32 begin(int32_t offset) { return iset(offset); }  // VPDPBUSD wants unsigned weights: w + 128
    static i32 dot(i32 acc, bytes w, const int8_t* x)
    {
        return _mm512_dpbusd_epi32(acc, _mm512_xor_si512(w, _mm512_set1_epi8(-128)), four(x));
    }
    static constexpr int32_t nibble = 16;                      // so that the offset of 8 is one of 128 as well
    static i32 dot_low(i32 acc, bytes w, const int8_t* x) { return dot_high(acc, _mm512_slli_epi16(w, 4), x); }
    static i32 dot_high(i32 acc, bytes w, const int8_t* x)
    {
        return _mm512_dpbusd_epi32(acc, _mm512_and_si512(w, _mm512_set1_epi8(-16)), four(x));
    }

private:
    static __m256i half(const unsigned char* p)
    {
        return _mm256_loadu_si256(static_cast<const __m256i*>(static_cast<const void*>(p)));
    }
    static i32 four(const int8_t* x) { int32_t v; TRANSFORMER_COPY(&v, x, 4); return iset(v); }
};
TRANSFORMER_TARGET_END
#endif

#if TRANSFORMER_NEON
struct Neon {
    static constexpr uint32_t lanes = 4, wide = 1, tokens = 4, plain_rows = 2, plain_tokens = 2, streams = 2, queries = 4;
    typedef float32x4_t f32;
    typedef int32x4_t i32;
    typedef int8x16_t bytes;
    static constexpr Isa isa = Isa::neon;
    static f32 zero() { return vdupq_n_f32(0); }
    static f32 set(float x) { return vdupq_n_f32(x); }
    static f32 load(const float* p) { return vld1q_f32(p); }
    static f32 load_f32(const unsigned char* p) { return vreinterpretq_f32_u8(vld1q_u8(p)); }
    static f32 load_f16(const unsigned char* p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
    static f32 load_bf16(const unsigned char* p)
    {
        return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
    }
    static f32 load_i8(const unsigned char* p)
    {
        uint32_t v;
        TRANSFORMER_COPY(&v, p, 4);
        return to_float(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(v))))));
    }
    static void store(float* p, f32 x) { vst1q_f32(p, x); }
    static void store_f16(unsigned char* p, f32 x) { vst1_u8(p, vreinterpret_u8_f16(vcvt_f16_f32(x))); }
    static f32 add(f32 a, f32 b) { return vaddq_f32(a, b); }
    static f32 sub(f32 a, f32 b) { return vsubq_f32(a, b); }
    static f32 mul(f32 a, f32 b) { return vmulq_f32(a, b); }
    static f32 div(f32 a, f32 b) { return vdivq_f32(a, b); }
    static f32 fma(f32 a, f32 b, f32 c) { return vfmaq_f32(c, a, b); }
    static float root(float x) { return vget_lane_f32(vsqrt_f32(vdup_n_f32(x)), 0); }
    static f32 less(f32 a, f32 b, f32 yes, f32 no) { return vbslq_f32(vcltq_f32(a, b), yes, no); }
    static f32 power(f32 n)
    {
        return vreinterpretq_f32_s32(vaddq_s32(vshlq_n_s32(vreinterpretq_s32_f32(n), 23), iset(127 << 23)));
    }
    static float sum(const f32* a)
    {
        const f32 x = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
        const float32x2_t y = vadd_f32(vget_low_f32(x), vget_high_f32(x));
        return vget_lane_f32(y, 0) + vget_lane_f32(y, 1);
    }
    static float largest(const f32* a) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a[0], a[1]), vmaxq_f32(a[2], a[3]))); }
    static i32 izero() { return vdupq_n_s32(0); }
    static i32 iset(int32_t x) { return vdupq_n_s32(x); }
    static f32 to_float(i32 x) { return vcvtq_f32_s32(x); }
    static i32 magnitude(f32 x) { return vandq_s32(vreinterpretq_s32_f32(x), iset(0x7fffffff)); }
    static i32 imax(i32 a, i32 b) { return vmaxq_s32(a, b); }
    static int32_t ilargest(i32 a) { return vmaxvq_s32(a); }
    static void store_i8(int8_t* p, f32 n)
    {
        const int16x4_t x = vmovn_s32(vreinterpretq_s32_f32(n));
        vst1_lane_s32(static_cast<int32_t*>(static_cast<void*>(p)), vreinterpret_s32_s8(vmovn_s16(vcombine_s16(x, x))), 0);
    }
    static bytes load_bytes(const unsigned char* p) { return vreinterpretq_s8_u8(vld1q_u8(p)); }
    static constexpr bool groups(DType) { return false; }
    static constexpr int32_t nibble = 1;
    static i32 begin(int32_t) { return izero(); }
    static i32 dot(i32 acc, bytes w, const int8_t* x)
    {
        const bytes v = four(x);
        const i32 a = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(v))), b = vpaddlq_s16(vmull_high_s8(w, v));
        return vaddq_s32(acc, vpaddq_s32(a, b));
    }
    static i32 dot_low(i32 acc, bytes w, const int8_t* x) { return dot(acc, vandq_s8(w, vdupq_n_s8(15)), x); }
    static i32 dot_high(i32 acc, bytes w, const int8_t* x)
    {
        return dot(acc, vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(w), 4)), x);
    }

protected:
    static bytes four(const int8_t* x) { int32_t v; TRANSFORMER_COPY(&v, x, 4); return vreinterpretq_s8_s32(iset(v)); }
};

// SDOT by assembler: clang 14's header has no such function unless the whole unit is compiled for it.
TRANSFORMER_TARGET(TRANSFORMER_NEON_DOT_TARGET)
struct NeonDot : Neon {
    static constexpr Isa isa = Isa::neon_dot;
    static i32 dot(i32 acc, bytes w, const int8_t* x) { return quarter<0>(acc, w, four(x)); }
    static i32 dot_low(i32 acc, bytes w, const int8_t* x) { return dot(acc, low(w), x); }
    static i32 dot_high(i32 acc, bytes w, const int8_t* x) { return dot(acc, high(w), x); }
    static constexpr bool groups(DType) { return true; }
    template <DType type, uint32_t NT, uint32_t W> static void group(const unsigned char* w, const Group* x, i32 (&d)[NT][W])
    {
        TRANSFORMER_UNROLL for (uint32_t half = 0; half < 2; half++) {
            bytes v[NT];
            TRANSFORMER_UNROLL for (uint32_t k = 0; k < NT; k++) v[k] = vld1q_s8(x[k].q + 16 * half);
            TRANSFORMER_UNROLL for (uint32_t i = 0; i < W; i++) {
                if constexpr (type == DType::q8_0) {
                    const unsigned char* const p = w + 256 * half + 16 * i;
                    quarters<0>(d, i, load_bytes(p), v), quarters<1>(d, i, load_bytes(p + 64), v);
                    quarters<2>(d, i, load_bytes(p + 128), v), quarters<3>(d, i, load_bytes(p + 192), v);
                } else {
                    const bytes a = load_bytes(w + 128 * half + 16 * i), b = load_bytes(w + 128 * half + 64 + 16 * i);
                    quarters<0>(d, i, low(a), v), quarters<1>(d, i, high(a), v);
                    quarters<2>(d, i, low(b), v), quarters<3>(d, i, high(b), v);
                }
            }
        }
    }

private:
    static bytes low(bytes w) { return vandq_s8(w, vdupq_n_s8(15)); }
    static bytes high(bytes w) { return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(w), 4)); }
    template <int columns> static i32 quarter(i32 acc, bytes w, bytes x)    // four of 16 columns, the same ones for all rows
    {
        __asm__("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(acc) : "w"(w), "w"(x), "i"(columns));
        return acc;
    }
    template <int columns, uint32_t NT, uint32_t W>
    static void quarters(i32 (&d)[NT][W], uint32_t i, bytes w, const bytes (&x)[NT])
    {
        TRANSFORMER_UNROLL for (uint32_t k = 0; k < NT; k++) d[k][i] = quarter<columns>(d[k][i], w, x[k]);
    }
};
TRANSFORMER_TARGET_END
#endif

}  // namespace TRANSFORMER_NAMESPACE

#define TRANSFORMER_IMPLEMENTING
#define TRANSFORMER_ROOM TRANSFORMER_BASE_ROOM
#define TRANSFORMER_ROOM_SPACE base_room
#endif  // TRANSFORMER_IMPLEMENTATION, its first half
#endif  // !TRANSFORMER_ROOM_PASS

// >> 19 Kernels -------------------------------------------------------------------------------------------------------
// Written once over a room's words V; this part is what the header includes of itself, once a room.
#if defined(TRANSFORMER_IMPLEMENTING)
namespace TRANSFORMER_NAMESPACE {
namespace TRANSFORMER_ROOM_SPACE {

typedef TRANSFORMER_ROOM V;
// vectors that hold 16 lanes; that share a pass
static constexpr uint32_t lanes = V::lanes, vectors = 16 / lanes, wide = V::wide;

static inline V::f32 exp_of(V::f32 x)                          // 2^k (1 + r + r^2 P(r)), r = x - k ln 2; 0 below -87
{
    x = V::less(V::set(88.0f), x, V::set(88.0f), x);
    const V::f32 n = V::add(V::mul(x, V::set(1.44269504f)), V::set(12582912.0f)), k = V::sub(n, V::set(12582912.0f));
    const V::f32 r = V::sub(V::sub(x, V::mul(k, V::set(0.693359375f))), V::mul(k, V::set(-2.12194440e-4f)));
    V::f32 p = V::set(0.00139508082f);
    p = V::add(V::mul(p, r), V::set(0.00836907327f));
    p = V::add(V::mul(p, r), V::set(0.0416662022f));
    p = V::add(V::mul(p, r), V::set(0.166665167f));
    p = V::add(V::mul(p, r), V::set(0.5f));
    p = V::add(V::add(V::mul(V::mul(r, r), p), r), V::set(1.0f));
    return V::less(x, V::set(-87.0f), V::zero(), V::mul(p, V::power(n)));
}
static inline V::f32 negative(V::f32 x) { return V::sub(V::zero(), x); }
static inline V::f32 magnitude_of(V::f32 x) { return V::less(x, V::zero(), negative(x), x); }
static inline V::f32 with_sign(V::f32 x, V::f32 sign) { return V::less(sign, V::zero(), negative(x), x); }
static inline V::f32 sigmoid_times(V::f32 x, V::f32 z) { return V::div(x, V::add(V::set(1.0f), exp_of(negative(z)))); }

static inline V::f32 tanh_of(V::f32 x)
{
    const V::f32 t = magnitude_of(x), q = V::mul(x, x);
    V::f32 p = V::set(-0.00566078629f);
    p = V::add(V::mul(p, q), V::set(0.0206020046f));
    p = V::add(V::mul(p, q), V::set(-0.0537292287f));
    p = V::add(V::mul(p, q), V::set(0.133313283f));
    p = V::add(V::mul(p, q), V::set(-0.333332777f));
    const V::f32 outer = V::sub(V::set(1.0f), V::div(V::set(2.0f), V::add(exp_of(V::add(t, t)), V::set(1.0f))));
    return V::less(t, V::set(0.625f), V::add(x, V::mul(V::mul(x, q), p)), with_sign(outer, x));
}
static inline V::f32 erf_of(V::f32 x)
{
    V::f32 t = magnitude_of(x);
    const V::f32 q = V::mul(x, x);
    V::f32 p = V::set(8.36230902e-5f);
    p = V::add(V::mul(p, q), V::set(-0.000814148050f));
    p = V::add(V::mul(p, q), V::set(0.00520099001f));
    p = V::add(V::mul(p, q), V::set(-0.0268594138f));
    p = V::add(V::mul(p, q), V::set(0.112836964f));
    p = V::add(V::mul(p, q), V::set(-0.376126349f));
    p = V::add(V::mul(p, q), V::set(0.128379166f));
    const V::f32 inner = V::add(x, V::mul(x, p));
    t = V::less(V::set(4.0f), t, V::set(4.0f), t);
    p = V::set(4.80651033e-6f);
    p = V::add(V::mul(p, t), V::set(-4.40003824e-5f));
    p = V::add(V::mul(p, t), V::set(-5.75109589e-5f));
    p = V::add(V::mul(p, t), V::set(0.00295166601f));
    p = V::add(V::mul(p, t), V::set(-0.0227082893f));
    p = V::add(V::mul(p, t), V::set(0.105294436f));
    p = V::add(V::mul(p, t), V::set(0.635609269f));
    p = V::add(V::mul(p, t), V::set(0.128555119f));
    const V::f32 outer = V::sub(V::set(1.0f), exp_of(negative(V::add(t, V::mul(t, p)))));
    return V::less(t, V::set(0.92f), inner, with_sign(outer, x));
}

static inline V::f32 activation_of(Activation kind, V::f32 x)
{
    if (!has(Feature::activations)) return sigmoid_times(x, x);
    const V::f32 positive = V::less(x, V::zero(), V::zero(), x);
    switch (kind) {
    case Activation::relu: return positive;
    case Activation::relu_squared: return V::mul(positive, positive);
    case Activation::gelu: return V::mul(V::mul(V::set(0.5f), x),
        V::add(V::set(1.0f), erf_of(V::mul(x, V::set(0.707106781f)))));
    case Activation::gelu_tanh: {                              // 0.5 x (1 + tanh u) = x sigmoid(2 u)
        const V::f32 cube = V::mul(V::mul(x, x), x);
        return sigmoid_times(x, V::mul(V::set(1.59576912f), V::add(x, V::mul(V::set(0.044715f), cube))));
    }
    case Activation::quick_gelu: return sigmoid_times(x, V::mul(V::set(1.702f), x));
    case Activation::tanh: return tanh_of(x);
    default: return sigmoid_times(x, x);
    }
}

// 16 floats from x + i on; past n the rest is `fill`, through the caller's buffer.
static inline const float* chunk(const float* x, size_t i, size_t n, float fill, float* buffer)
{
    if (i + 16 <= n) return x + i;
    for (size_t k = 0; k < 16; k++) buffer[k] = i + k < n ? x[i + k] : fill;
    return buffer;
}
static inline const unsigned char* chunk(const unsigned char* x, size_t i, size_t n, uint32_t bytes, unsigned char* buffer)
{
    if (i + 16 <= n) return x + i * bytes;
    memset(buffer, 0, 64);
    memcpy(buffer, x + i * bytes, (n - i) * bytes);
    return buffer;
}
static inline void put(float* y, size_t i, size_t n, const V::f32* x)
{
    float buffer[16];
    float* const to = i + 16 <= n ? y + i : buffer;
    for (uint32_t r = 0; r < vectors; r++) V::store(to + r * lanes, x[r]);
    for (size_t k = 0; to == buffer && i + k < n; k++) y[i + k] = buffer[k];
}

static void activate(Activation kind, float* x, size_t n)
{
    float buffer[16];
    V::f32 y[vectors];
    for (size_t i = 0; i < n; i += 16) {
        const float* const from = chunk(x, i, n, 0, buffer);
        for (uint32_t r = 0; r < vectors; r++) y[r] = activation_of(kind, V::load(from + r * lanes));
        put(x, i, n, y);
    }
}

// x = a x + b y; the plain sums and products of rows are the same loop
static void merge(float* x, float a, const float* y, float b, uint32_t n)
{
    uint32_t i = 0;
    for (; i + lanes <= n; i += lanes)
        V::store(x + i, V::add(V::mul(V::load(x + i), V::set(a)), V::mul(V::load(y + i), V::set(b))));
    for (; i < n; i++) x[i] = x[i] * a + y[i] * b;
}
static void add(float* x, const float* y, float scale, size_t n)
{
    size_t i = 0;
    for (; i + lanes <= n; i += lanes) V::store(x + i, V::add(V::load(x + i), V::mul(V::set(scale), V::load(y + i))));
    for (; i < n; i++) x[i] = x[i] + scale * y[i];
}
static void multiply(float* x, const float* y, size_t n)
{
    size_t i = 0;
    for (; i + lanes <= n; i += lanes) V::store(x + i, V::mul(V::load(x + i), V::load(y + i)));
    for (; i < n; i++) x[i] = x[i] * y[i];
}

static void normalise(NormKind kind, const float* x, uint32_t n, const unsigned char* w, const unsigned char* b, float eps,
    float* y)
{
    const bool centred = has(Feature::layer_norm) && kind == NormKind::layer;
    if (!has(Feature::layer_norm)) b = nullptr;
    float buffer[16], mean = 0;
    V::f32 acc[vectors];
    for (int pass = centred ? 0 : 1; pass < 2; pass++) {       // 0: the mean, 1: the mean square around it
        for (uint32_t r = 0; r < vectors; r++) acc[r] = V::zero();
        for (uint32_t i = 0; i < n; i += 16) {
            const float* const from = chunk(x, i, n, pass ? mean : 0.0f, buffer);
            for (uint32_t r = 0; r < vectors; r++) {
                const V::f32 v = V::load(from + r * lanes), u = V::sub(v, V::set(mean));
                acc[r] = V::add(acc[r], pass ? V::mul(u, u) : v);
            }
        }
        const float average = V::sum(acc) / static_cast<float>(n);
        if (pass == 0) mean = average;
        else {
            const float scale = 1.0f / V::root(average + eps);
            unsigned char bytes[64];
            for (uint32_t i = 0; i < n; i += 16) {
                const float* const from = chunk(x, i, n, 0.0f, buffer);
                for (uint32_t r = 0; r < vectors; r++)
                    acc[r] = V::mul(V::sub(V::load(from + r * lanes), V::set(mean)), V::set(scale));
                const unsigned char* p = chunk(w, i, n, 4, bytes);
                for (uint32_t r = 0; r < vectors; r++) acc[r] = V::mul(acc[r], V::load_f32(p + r * lanes * 4));
                if (b) p = chunk(b, i, n, 4, bytes);
                for (uint32_t r = 0; b && r < vectors; r++) acc[r] = V::add(acc[r], V::load_f32(p + r * lanes * 4));
                put(y, i, n, acc);
            }
        }
    }
}

// A group's scale is its largest magnitude / 127. What is under 1e-25 is 0; over 1e30, infinite or NaN it makes the scale NaN,
// so that it cannot vanish: in between no product of a group overflows or loses bits, in whatever order it is scaled.
static void quantise_group(const float* x, Group* out)
{
    V::i32 m = V::izero();
    for (uint32_t k = 0; k < 32; k += lanes) m = V::imax(m, V::magnitude(V::load(x + k)));
    const uint32_t largest = static_cast<uint32_t>(V::ilargest(m));
    const float top = of_bits(largest);
    const bool broken = !(top <= 1e30f), nothing = broken || top < 1e-25f;
    out->scale = broken ? of_bits(0x7fc00000u) : nothing ? 0.0f : top / 127.0f;
    out->offset = 0;
    if (nothing) {
        memset(out->q, 0, 32);
        return;
    }
    const V::f32 inverse = V::set(127.0f / top), magic = V::set(12582912.0f);
    V::f32 sum[vectors];
    for (uint32_t r = 0; lanes > 1 && r < vectors; r++) sum[r] = V::zero();
    for (uint32_t k = 0; k < 32; k += lanes) {
        const V::f32 n = V::add(V::mul(V::load(x + k), inverse), magic);
        V::store_i8(out->q + k, n);
        if (lanes > 1) sum[k / lanes % vectors] = V::add(sum[k / lanes % vectors], V::sub(n, magic));   // whole numbers
    }
    if (lanes > 1) out->offset = -128 * static_cast<int32_t>(V::sum(sum));
    else for (int8_t q : out->q) out->offset -= 128 * q;
}
static Residual* quantise(const float* x, uint32_t n, uint32_t token, uint32_t stride, Group* out, Residual* rest)
{
    const uint32_t groups = (n + 31) / 32;
    const Residual* const end = rest + most_residuals(groups);
    float buffer[32], total = 0;
    for (uint32_t g = 0; g < groups; g++) {
        const float* from = x + uint64_t{g} * 32;
        if (g * 32 + 32 > n) {
            for (uint32_t k = 0; k < 32; k++) buffer[k] = g * 32 + k < n ? from[k] : 0.0f;
            from = buffer;
        }
        quantise_group(from, out + uint64_t{g} * stride);
        total += out[uint64_t{g} * stride].scale;
    }
    const float coarse = 3.0f * total / static_cast<float>(groups);
    for (uint32_t g = 0; g < groups && rest != end; g++) {
        const Group& a = out[uint64_t{g} * stride];
        if (!(a.scale > coarse)) continue;
        for (uint32_t k = 0; k < 32; k++)
            buffer[k] = g * 32 + k < n ? x[g * 32 + k] - a.scale * static_cast<float>(a.q[k]) : 0.0f;
        quantise_group(buffer, &rest->rest);
        rest->group = g;
        rest->token = token;
        rest++;
    }
    return rest;
}

static void to_f16(const float* x, uint32_t n, unsigned char* out)
{
    float part[16] = {};
    unsigned char halves[32];
    for (uint32_t i = 0; i < n; i += lanes) {
        const bool whole = i + lanes <= n;
        if (!whole) memcpy(part, x + i, (n - i) * sizeof(float));
        const V::f32 v = V::load(whole ? x + i : part), low = V::less(v, V::set(-65504.0f), V::set(-65504.0f), v);
        V::store_f16(whole ? out + 2 * i : halves, V::less(V::set(65504.0f), low, V::set(65504.0f), low));
        if (!whole) memcpy(out + 2 * i, halves, 2 * (n - i));
    }
}

template <DType type> static inline V::f32 load_as(const unsigned char* p)
{
    if constexpr (type == DType::f32) return V::load_f32(p);
    else if constexpr (type == DType::f16) return V::load_f16(p);
    else if constexpr (type == DType::q8_0) return V::load_i8(p);                       // of the cache
    else return V::load_bf16(p);
}

static constexpr uint32_t value_bytes(DType type) { return type == DType::q8_0 ? 1 : unit_bytes(type); }

// W vectors that stand side by side
template <DType type, uint32_t W, class R = V>
TRANSFORMER_INLINE void load_wide(const unsigned char* p, typename R::f32 (&x)[W])
{
    if constexpr (R::wide > 1 && type == DType::f16) R::load_f16s(p, x);
    else TRANSFORMER_UNROLL for (uint32_t i = 0; i < W; i++) x[i] = load_as<type>(p + i * lanes * value_bytes(type));
}

// Dot products of NR rows of plain weights with NT rows of activations: out[row][token].
template <DType type, uint32_t NR, uint32_t NT>
static inline void dots(const unsigned char* const (&w)[NR], uint32_t cols, const float* x, float out[NR][NT])
{
    constexpr uint32_t bytes = unit_bytes(type);
    V::f32 acc[NR][NT][vectors];
    TRANSFORMER_UNROLL for (uint32_t i = 0; i < NR; i++)
        TRANSFORMER_UNROLL for (uint32_t t = 0; t < NT; t++)
            TRANSFORMER_UNROLL for (uint32_t r = 0; r < vectors; r++) acc[i][t][r] = V::zero();
    uint32_t k = 0;
    for (; k + 16 <= cols; k += 16)
        TRANSFORMER_UNROLL for (uint32_t r = 0; r < vectors; r++) {
            V::f32 v[NT];
            TRANSFORMER_UNROLL for (uint32_t t = 0; t < NT; t++) v[t] = V::load(x + uint64_t{t} * cols + k + r * lanes);
            TRANSFORMER_UNROLL for (uint32_t i = 0; i < NR; i++) {
                const V::f32 u = load_as<type>(w[i] + uint64_t{k + r * lanes} * bytes);
                TRANSFORMER_UNROLL for (uint32_t t = 0; t < NT; t++) acc[i][t][r] = V::fma(u, v[t], acc[i][t][r]);
            }
        }
    if (k < cols) {
        float tail[16];
        unsigned char weights[64];
        TRANSFORMER_UNROLL for (uint32_t t = 0; t < NT; t++) {
            const float* const v = chunk(x + uint64_t{t} * cols, k, cols, 0, tail);
            TRANSFORMER_UNROLL for (uint32_t i = 0; i < NR; i++) {
                const unsigned char* const u = chunk(w[i], k, cols, bytes, weights);
                TRANSFORMER_UNROLL for (uint32_t r = 0; r < vectors; r++)
                    acc[i][t][r] = V::fma(load_as<type>(u + r * lanes * bytes), V::load(v + r * lanes), acc[i][t][r]);
            }
        }
    }
    TRANSFORMER_UNROLL for (uint32_t i = 0; i < NR; i++)
        TRANSFORMER_UNROLL for (uint32_t t = 0; t < NT; t++) out[i][t] = V::sum(acc[i][t]);
}

// Where unit `index` of all the job's units stands.
struct Place { const ProductJob::Part* part; uint32_t unit; };
static inline Place place(const ProductJob& j, uint32_t index)
{
    const ProductJob::Part* p = j.parts;
    for (; index >= p->last - p->first; p++) index -= p->last - p->first;
    return {p, p->first + index};
}
static uint32_t units_of(const ProductJob& j)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < j.n_parts; i++) n += j.parts[i].last - j.parts[i].first;
    return n;
}

template <DType type, uint32_t NR, uint32_t NT>
static void plain_rows(const ProductJob& j, uint32_t index, uint32_t apart, uint32_t t)
{
    float out[NR][NT];
    Place at[NR];
    const unsigned char* w[NR];
    TRANSFORMER_UNROLL for (uint32_t i = 0; i < NR; i++) {
        at[i] = place(j, index + i * apart);
        w[i] = at[i].part->w + uint64_t{at[i].unit} * j.cols * unit_bytes(type);
    }
    dots<type, NR, NT>(w, j.cols, j.x + uint64_t{t} * j.cols, out);
    TRANSFORMER_UNROLL for (uint32_t i = 0; i < NR; i++)
        TRANSFORMER_UNROLL for (uint32_t k = 0; k < NT; k++) {
            const ProductJob::Part& p = *at[i].part;
            float* const y = p.y + uint64_t{t + k} * p.rows + at[i].unit;
            *y = has(Feature::biases) && p.b ? out[i][k] + load_f32(p.b + uint64_t{at[i].unit} * 4) : out[i][k];
        }
}
// Blocks of 32 rows, which stay in the cache, with NT tokens at a time; a token that is left takes rows far apart, for each is
// a stream that the processor reads ahead.
template <DType type> static void product_plain(const ProductJob& j)
{
    constexpr uint32_t NR = V::plain_rows, NT = V::plain_tokens, NS = V::streams;
    const uint32_t rows = units_of(j), whole = NT > 1 ? j.n / NT * NT : 0, apart = rows / NS;
    for (uint32_t row = 0; row < rows && whole; row += 32)
        for (uint32_t t = 0, end = least(row + 32, rows); t < whole; t += NT) {
            uint32_t r = row;
            for (; r + NR <= end; r += NR) plain_rows<type, NR, NT>(j, r, 1, t);
            for (; r < end; r++) plain_rows<type, 1, NT>(j, r, 1, t);
        }
    for (uint32_t t = whole; t < j.n; t++) {
        for (uint32_t r = 0; r < apart; r++) plain_rows<type, NS, 1>(j, r, apart, t);
        for (uint32_t r = apart * NS; r < rows; r++) plain_rows<type, 1, 1>(j, r, 1, t);
    }
}

// d[k] += the dot products of 32 columns of a tile, rows part * lanes on, with the groups x[0 .. NT - 1].
template <DType type, uint32_t NT, uint32_t W, class R = V>
TRANSFORMER_INLINE void group_dots(const unsigned char* u, uint32_t part, const Group* x, typename R::i32 (&d)[NT][W])
{
    if constexpr (R::groups(type)) R::template group<type, NT, W>(u + part * lanes * 4, x, d);
    else
    TRANSFORMER_UNROLL_STEPS for (uint32_t step = 0; step < (type == DType::q8_0 ? 8 : 4); step++)
        TRANSFORMER_UNROLL for (uint32_t i = 0; i < W; i++) {
            const typename R::bytes b = R::load_bytes(u + 64 * step + (part + i) * lanes * 4);
            TRANSFORMER_UNROLL for (uint32_t k = 0; k < NT; k++) {
                if constexpr (type == DType::q8_0) d[k][i] = R::dot(d[k][i], b, x[k].q + 4 * step);
                else d[k][i] = R::dot_high(R::dot_low(d[k][i], b, x[k].q + 8 * step), b, x[k].q + 8 * step + 4);
            }
        }
}

// acc[k] += the same products as floats.
template <DType type, uint32_t NT, uint32_t W>
TRANSFORMER_INLINE void add_unit(const unsigned char* u, uint32_t part, const Group* x, V::f32 (&acc)[NT][W])
{
    constexpr uint32_t quants = type == DType::q8_0 ? 512 : 256;
    V::i32 d[NT][W];
    TRANSFORMER_UNROLL for (uint32_t k = 0; k < NT; k++)
        TRANSFORMER_UNROLL for (uint32_t i = 0; i < W; i++)
            d[k][i] = type == DType::q8_0 ? V::begin(x[k].offset)
                : type == DType::q4_0 ? V::iset(x[k].offset / (16 / V::nibble)) : V::izero();
    group_dots<type>(u, part, x, d);
    V::f32 scale[W], minimum[W];
    load_wide<DType::f16>(u + quants + part * lanes * 2, scale);
    if constexpr (type == DType::q4_1) load_wide<DType::f16>(u + quants + 32 + part * lanes * 2, minimum);
    TRANSFORMER_UNROLL for (uint32_t i = 0; i < W; i++) {   // by powers of two, which no rounding sees
        if (type != DType::q8_0 && V::nibble > 1) scale[i] = V::mul(scale[i], V::set(1.0f / V::nibble));
        if constexpr (type == DType::q4_1) minimum[i] = V::mul(minimum[i], V::set(-1.0f / 128));
        TRANSFORMER_UNROLL for (uint32_t k = 0; k < NT; k++) {
            const V::f32 by = V::set(x[k].scale);
            acc[k][i] = V::add(acc[k][i], V::mul(V::to_float(d[k][i]), V::mul(scale[i], by)));
            if constexpr (type == DType::q4_1)
                acc[k][i] = V::add(acc[k][i], V::mul(V::to_float(V::iset(x[k].offset)), V::mul(minimum[i], by)));
        }
    }
}

// A tile of 16 rows with NT tokens from t on, which stand in one panel. Tiles follow each other in memory: one stream.
template <DType type, uint32_t NT> static void tile(const ProductJob& j, uint32_t index, uint32_t t)
{
    constexpr uint32_t unit = unit_bytes(type), W = NT == 1 && lanes > 1 ? vectors : wide;
    const uint32_t groups = (j.cols + 31) / 32, panel = t / panel_rows * panel_rows;
    const uint32_t width = NT > 1 ? panel_rows : least(panel_rows, j.n - panel);
    const Place at = place(j, index);
    const ProductJob::Part& p = *at.part;
    const unsigned char* const w = p.w + uint64_t{at.unit} * groups * unit;
    const Group* const x = j.q + uint64_t{panel} * groups + (t - panel);
    float out[NT][16];
    for (uint32_t part = 0; part < vectors; part += W) {
        V::f32 acc[NT][W];
        TRANSFORMER_UNROLL for (uint32_t k = 0; k < NT; k++)
            TRANSFORMER_UNROLL for (uint32_t i = 0; i < W; i++) acc[k][i] = V::zero();
        for (uint32_t g = 0; g < groups; g++)
            add_unit<type>(w + uint64_t{g} * unit, part, x + uint64_t{g} * width, acc);
        TRANSFORMER_UNROLL for (uint32_t k = 0; k < NT; k++)
            TRANSFORMER_UNROLL for (uint32_t i = 0; i < W; i++) V::store(out[k] + (part + i) * lanes, acc[k][i]);
    }
    for (const Residual* r = j.rest + uint64_t{panel} * (most_residuals(groups) + 1); r->group != UINT32_MAX; r++)
        for (uint32_t part = 0, k = r->token - (t - panel); k < NT && part < vectors; part += W) {
            V::f32 acc[1][W];
            for (uint32_t i = 0; i < W; i++) acc[0][i] = V::load(out[k] + (part + i) * lanes);
            add_unit<type>(w + uint64_t{r->group} * unit, part, &r->rest, acc);
            for (uint32_t i = 0; i < W; i++) V::store(out[k] + (part + i) * lanes, acc[0][i]);
        }
    const uint32_t row = at.unit * 16, rows = least(16u, p.rows - row);
    for (uint32_t k = 0; k < NT; k++) {
        float* const y = p.y + uint64_t{t + k} * p.rows + row;
        const bool biased = has(Feature::biases) && p.b;
        if (!biased && rows == 16) memcpy(y, out[k], 16 * sizeof(float));
        else for (uint32_t r = 0; r < rows; r++) y[r] = biased ? out[k][r] + load_f32(p.b + uint64_t{row + r} * 4) : out[k][r];
    }
}

template <DType type> static void product_tiles(const ProductJob& j)
{
    constexpr uint32_t NT = V::tokens;
    const uint32_t tiles = units_of(j), whole = NT > 1 ? j.n / panel_rows * panel_rows : 0;
    for (uint32_t i = 0; i < tiles; i++) {
        for (uint32_t t = 0; t < whole; t += NT) tile<type, NT>(j, i, t);
        for (uint32_t t = whole; t < j.n; t++) tile<type, 1>(j, i, t);
    }
}

static float dot(const float* x, const unsigned char* w, uint32_t n)
{
    float out[1][1];
    const unsigned char* const rows[1] = {w};
    dots<DType::f32, 1, 1>(rows, n, x, out);
    return out[0][0];
}

// Scores of NQ queries with the 16 keys of NT tiles: one chain of fused multiply-adds over d for each. Against an 8-bit cache
// a chain of separate sums over each 32 of d, then sum += chain * scale.
template <DType type, uint32_t NQ, uint32_t NT>
static inline void score_tiles(const float* const* q, uint32_t d, const unsigned char* k, float* s)
{
    constexpr bool scaled = type == DType::q8_0;
    constexpr uint32_t bytes = value_bytes(type);
    const uint64_t tile_bytes = key_tile_bytes(d, type);
    TRANSFORMER_UNROLL_STEPS for (uint32_t r = 0; r < vectors; r += wide) {
        V::f32 acc[NQ][NT][wide], sum[NQ][NT][wide];
        TRANSFORMER_UNROLL for (uint32_t i = 0; i < NQ; i++)
            TRANSFORMER_UNROLL for (uint32_t t = 0; t < NT; t++)
                TRANSFORMER_UNROLL for (uint32_t w = 0; w < wide; w++) acc[i][t][w] = sum[i][t][w] = V::zero();
        for (uint32_t e = 0; e < d;) {
            const unsigned char* const group = k + (scaled ? key_tile_bytes(e, type) : 0);
            for (const uint32_t begin = e, end = scaled ? least(d, e + 32) : d; e < end; e++) {
                V::f32 v[NT][wide];
                TRANSFORMER_UNROLL for (uint32_t t = 0; t < NT; t++)
                    load_wide<type>(group + t * tile_bytes + (uint64_t{e - begin} * 16 + r * lanes) * bytes, v[t]);
                TRANSFORMER_UNROLL for (uint32_t i = 0; i < NQ; i++) {
                    const V::f32 u = V::set(q[i][e]);
                    TRANSFORMER_UNROLL for (uint32_t t = 0; t < NT; t++)
                        TRANSFORMER_UNROLL for (uint32_t w = 0; w < wide; w++)
                            acc[i][t][w] = scaled ? V::add(acc[i][t][w], V::mul(u, v[t][w])) : V::fma(u, v[t][w], acc[i][t][w]);
                }
            }
            TRANSFORMER_UNROLL for (uint32_t t = 0; scaled && t < NT; t++)
                TRANSFORMER_UNROLL for (uint32_t w = 0; w < wide; w++) {
                    const V::f32 scale = V::load_f32(group + t * tile_bytes + 512 + (r + w) * lanes * 4);
                    TRANSFORMER_UNROLL for (uint32_t i = 0; i < NQ; i++) {
                        sum[i][t][w] = V::add(sum[i][t][w], V::mul(acc[i][t][w], scale));
                        acc[i][t][w] = V::zero();
                    }
                }
        }
        TRANSFORMER_UNROLL for (uint32_t i = 0; i < NQ; i++)
            TRANSFORMER_UNROLL for (uint32_t t = 0; t < NT; t++)
                TRANSFORMER_UNROLL for (uint32_t w = 0; w < wide; w++)
                    V::store(s + i * attention_block + t * 16 + (r + w) * lanes, scaled ? sum[i][t][w] : acc[i][t][w]);
    }
}
template <DType type, uint32_t NQ> static void scores_of(const float* const* q, uint32_t d, const unsigned char* k,
    uint32_t n_tiles, float* s)
{
    constexpr uint32_t many = lanes == 1 ? 1 : NQ > 1 ? 2 : 4;
    const uint64_t tile_bytes = key_tile_bytes(d, type);
    uint32_t t = 0;
    for (; t + many <= n_tiles; t += many) score_tiles<type, NQ, many>(q, d, k + t * tile_bytes, s + t * 16);
    for (; many > 1 && t < n_tiles; t++) score_tiles<type, NQ, 1>(q, d, k + t * tile_bytes, s + t * 16);
}

// NQ weighted sums of value rows, elements e .. e + n - 1: one chain of fused multiply-adds over the keys for each element;
// against an 8-bit cache separate sums of (p * scale) * q. The lanes past the end of a row read what follows it and are lost;
// region_end is there for the last one.
template <DType type, uint32_t NQ, uint32_t NV>
static inline void mix_part(const float* p, uint32_t n_keys, const unsigned char* v, uint32_t dv, uint32_t e, uint32_t n,
    float* out)
{
    constexpr bool scaled = type == DType::q8_0;
    constexpr uint32_t bytes = value_bytes(type);
    const uint64_t row_bytes = value_row_bytes(dv, type);
    V::f32 acc[NQ][NV];
    TRANSFORMER_UNROLL for (uint32_t i = 0; i < NQ; i++)
        TRANSFORMER_UNROLL for (uint32_t r = 0; r < NV; r++) acc[i][r] = V::zero();
    v += scaled ? value_row_bytes(e / 32 * 32, type) : uint64_t{e} * bytes;
    for (uint32_t j = 0; j < n_keys; j++, v += row_bytes) {
        const unsigned char* const from = scaled ? v + 4 + e % 32 : v;
        const float scale = scaled ? load_f32(v) : 1.0f;
        V::f32 u[NV];
        if constexpr (NV == wide) load_wide<type>(from, u);
        else TRANSFORMER_UNROLL for (uint32_t r = 0; r < NV; r++) u[r] = load_as<type>(from + r * lanes * bytes);
        TRANSFORMER_UNROLL for (uint32_t i = 0; i < NQ; i++) {
            const V::f32 w = V::set(scaled ? p[i * attention_block + j] * scale : p[i * attention_block + j]);
            TRANSFORMER_UNROLL for (uint32_t r = 0; r < NV; r++)
                acc[i][r] = scaled ? V::add(acc[i][r], V::mul(w, u[r])) : V::fma(w, u[r], acc[i][r]);
        }
    }
    for (uint32_t i = 0; i < NQ; i++) {
        float values[lanes * NV > 16 ? lanes * NV : 16];
        float* const to = lanes > 1 && n < NV * lanes ? values : out + uint64_t{i} * dv + e;
        TRANSFORMER_UNROLL for (uint32_t r = 0; r < NV; r++) V::store(to + r * lanes, acc[i][r]);
        if (to == values) memcpy(out + uint64_t{i} * dv + e, values, n * sizeof(float));
    }
}
// NV vectors of a row at a time: chains enough to hide how long a step of one takes. Then what is left with fewer.
template <DType type, uint32_t NQ, uint32_t NV> static void mix_of(const float* p, uint32_t n_keys, const unsigned char* v,
    uint32_t dv, uint32_t e, float* out)
{
    for (; e + NV * lanes <= dv; e += NV * lanes) mix_part<type, NQ, NV>(p, n_keys, v, dv, e, NV * lanes, out);
    if constexpr (lanes > 1 && NV > 1) {
        if (e < dv) mix_of<type, NQ, NV - 1>(p, n_keys, v, dv, e, out);
    } else for (; e < dv; e += lanes) mix_part<type, NQ, 1>(p, n_keys, v, dv, e, least(lanes, dv - e), out);
}

// NQ queries at a time, then what is left with fewer
template <DType type, uint32_t NQ = V::queries>
static void scores_type(const float* const* q, uint32_t n, uint32_t d, const unsigned char* k, uint32_t n_tiles, float* s)
{
    uint32_t i = 0;
    for (; i + NQ <= n; i += NQ) scores_of<type, NQ>(q + i, d, k, n_tiles, s + i * attention_block);
    if constexpr (NQ > 1)
        if (i < n) scores_type<type, NQ - 1>(q + i, n - i, d, k, n_tiles, s + i * attention_block);
}
static void scores(const float* const* q, uint32_t n, uint32_t d, const unsigned char* k, DType type, uint32_t n_tiles,
    float* s)
{
    if (f16_alone || type == DType::f16) scores_type<DType::f16>(q, n, d, k, n_tiles, s);
    else if (has(Feature::quantised_cache) && type == DType::q8_0) scores_type<DType::q8_0>(q, n, d, k, n_tiles, s);
    else if (has(Feature::f32_cache)) scores_type<DType::f32>(q, n, d, k, n_tiles, s);
}
template <DType type, uint32_t NQ = V::queries>
static void mix_type(const float* p, uint32_t n, uint32_t n_keys, const unsigned char* v, uint32_t dv, float* out)
{
    constexpr uint32_t NV = lanes == 1 ? wide : NQ > 1 || type == DType::q8_0 ? 2 : lanes == 16 ? 4 : 8;
    uint32_t i = 0;
    for (; i + NQ <= n; i += NQ) mix_of<type, NQ, NV>(p + i * attention_block, n_keys, v, dv, 0, out + uint64_t{i} * dv);
    if constexpr (NQ > 1)
        if (i < n) mix_type<type, NQ - 1>(p + i * attention_block, n - i, n_keys, v, dv, out + uint64_t{i} * dv);
}
static void mix(const float* p, uint32_t n, uint32_t n_keys, const unsigned char* v, DType type, uint32_t dv, float* out)
{
    if (f16_alone || type == DType::f16) mix_type<DType::f16>(p, n, n_keys, v, dv, out);
    else if (has(Feature::quantised_cache) && type == DType::q8_0) mix_type<DType::q8_0>(p, n, n_keys, v, dv, out);
    else if (has(Feature::f32_cache)) mix_type<DType::f32>(p, n, n_keys, v, dv, out);
}

static void softmax(float* s, uint32_t n_tiles, float* m, float* l)
{
    V::f32 top[vectors], sum[vectors];
    for (uint32_t r = 0; r < vectors; r++) {
        top[r] = V::set(lowest_f32);
        sum[r] = V::zero();
    }
    for (uint32_t t = 0; t < n_tiles; t++)
        for (uint32_t r = 0; r < vectors; r++) {
            const V::f32 x = V::load(s + t * 16 + r * lanes);
            top[r] = V::less(top[r], x, x, top[r]);
        }
    *m = V::largest(top);
    for (uint32_t t = 0; t < n_tiles; t++)
        for (uint32_t r = 0; r < vectors; r++) {
            const V::f32 p = exp_of(V::sub(V::load(s + t * 16 + r * lanes), V::set(*m)));
            V::store(s + t * 16 + r * lanes, p);
            sum[r] = V::add(sum[r], p);
        }
    *l = V::sum(sum);
}

static inline float first_lane(V::f32 x)
{
    float buffer[16];
    V::store(buffer, x);
    return buffer[0];
}

static constexpr Kernels kernels = {
    V::isa, isa_names[static_cast<uint32_t>(V::isa)],
    {has(Feature::dense_weights) ? product_plain<DType::f32> : nullptr,
        has(Feature::dense_weights) ? product_plain<DType::f16> : nullptr,
     has(Feature::dense_weights) ? product_plain<DType::bf16> : nullptr,
         has(Feature::quantised_weights) ? product_tiles<DType::q8_0> : nullptr,
     has(Feature::nibble_weights) ? product_tiles<DType::q4_0> : nullptr,
         has(Feature::nibble_weights) ? product_tiles<DType::q4_1> : nullptr, nullptr},
    quantise, quantise_group, to_f16, normalise, activate, multiply, add, has(Feature::relative) ? dot : nullptr, scores,
    softmax, mix, merge};

}  // namespace TRANSFORMER_ROOM_SPACE
}  // namespace TRANSFORMER_NAMESPACE
#endif  // TRANSFORMER_IMPLEMENTING

#if defined(TRANSFORMER_IMPLEMENTING) && !defined(TRANSFORMER_ROOM_PASS)
#undef TRANSFORMER_ROOM
#undef TRANSFORMER_ROOM_SPACE
#define TRANSFORMER_ROOM_PASS
#undef TRANSFORMER_UNROLL
#undef TRANSFORMER_UNROLL_STEPS
#if defined(__clang__)
#define TRANSFORMER_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define TRANSFORMER_UNROLL _Pragma("GCC unroll 16")
#else
#define TRANSFORMER_UNROLL
#endif
#define TRANSFORMER_UNROLL_STEPS TRANSFORMER_UNROLL

#if TRANSFORMER_X86 && TRANSFORMER_MORE_ROOMS                  // rooms beyond the first: one block each
TRANSFORMER_TARGET(TRANSFORMER_AVX2_TARGET)
#define TRANSFORMER_ROOM Avx2
#define TRANSFORMER_ROOM_SPACE avx2_room
#include TRANSFORMER_SELF
#undef TRANSFORMER_ROOM
#undef TRANSFORMER_ROOM_SPACE
TRANSFORMER_TARGET_END
#define TRANSFORMER_AVX2_KERNELS &avx2_room::kernels,
#else
#define TRANSFORMER_AVX2_KERNELS
#endif

#if TRANSFORMER_AVX_VNNI && TRANSFORMER_MORE_ROOMS
TRANSFORMER_TARGET(TRANSFORMER_AVX_VNNI_TARGET)
#define TRANSFORMER_ROOM AvxVnni
#define TRANSFORMER_ROOM_SPACE avx_vnni_room
#include TRANSFORMER_SELF
#undef TRANSFORMER_ROOM
#undef TRANSFORMER_ROOM_SPACE
TRANSFORMER_TARGET_END
#define TRANSFORMER_AVX_VNNI_KERNELS &avx_vnni_room::kernels,
#else
#define TRANSFORMER_AVX_VNNI_KERNELS
#endif

#if TRANSFORMER_X86 && TRANSFORMER_MORE_ROOMS
TRANSFORMER_TARGET(TRANSFORMER_AVX512_TARGET)
#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"               // g++ 12's own AVX-512 header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#define TRANSFORMER_ROOM Avx512
#define TRANSFORMER_ROOM_SPACE avx512_room
#include TRANSFORMER_SELF
#undef TRANSFORMER_ROOM
#undef TRANSFORMER_ROOM_SPACE
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
TRANSFORMER_TARGET_END
#define TRANSFORMER_AVX512_KERNELS &avx512_room::kernels,
#else
#define TRANSFORMER_AVX512_KERNELS
#endif

#if TRANSFORMER_NEON && TRANSFORMER_MORE_ROOMS
#define TRANSFORMER_ROOM Neon
#define TRANSFORMER_ROOM_SPACE neon_room
#include TRANSFORMER_SELF
#undef TRANSFORMER_ROOM
#undef TRANSFORMER_ROOM_SPACE
#define TRANSFORMER_NEON_KERNELS &neon_room::kernels,
TRANSFORMER_TARGET(TRANSFORMER_NEON_DOT_TARGET)
#define TRANSFORMER_ROOM NeonDot
#define TRANSFORMER_ROOM_SPACE neon_dot_room
#include TRANSFORMER_SELF
#undef TRANSFORMER_ROOM
#undef TRANSFORMER_ROOM_SPACE
TRANSFORMER_TARGET_END
#define TRANSFORMER_NEON_DOT_KERNELS &neon_dot_room::kernels,
#else
#define TRANSFORMER_NEON_KERNELS
#define TRANSFORMER_NEON_DOT_KERNELS
#endif
#undef TRANSFORMER_ROOM_PASS
#undef TRANSFORMER_IMPLEMENTING

namespace TRANSFORMER_NAMESPACE {

static float exp_f32(float x) { return base_room::first_lane(base_room::exp_of(TRANSFORMER_BASE_ROOM::set(x))); }
static float tanh_f32(float x) { return base_room::first_lane(base_room::tanh_of(TRANSFORMER_BASE_ROOM::set(x))); }

// Whether this processor, and its operating system, can run a room that this build has.
static bool processor_has(Isa isa)
{
#if TRANSFORMER_X86
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");  // f16c came before both
    uint32_t eax = 0, ebx, ecx, edx;
    if (isa == Isa::avx2) return avx2;
    if (isa == Isa::avx_vnni)
        return avx2 && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && eax &&
            __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & 1u << 4);
    if (isa == Isa::avx512)
        return avx2 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#elif TRANSFORMER_NEON && defined(AT_HWCAP)
    if (isa == Isa::neon_dot) return (getauxval(AT_HWCAP) & 1ul << 20) != 0;            // HWCAP_ASIMDDP
#elif !defined(__ARM_FEATURE_DOTPROD)
    if (isa == Isa::neon_dot) return false;
#endif
    return isa != Isa::best;
}
static const Kernels* room_of(Isa isa)
{
    const Kernels* const others[] = {TRANSFORMER_AVX512_KERNELS TRANSFORMER_AVX_VNNI_KERNELS TRANSFORMER_AVX2_KERNELS
        TRANSFORMER_NEON_DOT_KERNELS TRANSFORMER_NEON_KERNELS nullptr};
    for (const Kernels* const* k = others; *k; k++)
        if ((isa == Isa::best || isa == (*k)->isa) && processor_has((*k)->isa)) return *k;
    return isa == Isa::best || isa == base_room::kernels.isa ? &base_room::kernels : nullptr;
}
TRANSFORMER_API bool room_available(Isa isa) { return room_of(isa) != nullptr; }
TRANSFORMER_API const char* room_name(const Session& s) { return s.room->name; }

// ==== Part IV: Bytes =================================================================================================

// >> 20 Checkpoint ----------------------------------------------------------------------------------------------------
// Little-endian, used in place. All offsets count from the first byte; data is aligned to 64.
//
//     0    "TRNSFRMR"                               24   u64 offset of the vocabulary, 0: none
//     8    u32 format version, 1                    32   u64 its bytes
//     12   u32 number of tensors                    40   u32 number of config records, 2
//     16   u64 bytes of the file                    44   20 bytes of zeros
//     64   Config of the main stack (256 bytes)     320  Config of the encoder (n_layers 0: none)
//     576  tensor table: 32 bytes each, ascending by stack, layer, role, bias
//          u8 role (bit 7: bias)  u8 dtype  u8 stack (0 main, 1 encoder)  u8 0  u16 layer (0: the stack, i + 1: block i)
//          u16 0  u32 rows  u32 cols  u32 count  u32 0  u64 offset
//     ...  vocabulary (chunks, see enum Chunk), then the data
//
// Two entries may name the same bytes (a tied head, shared layers). Plain types are rows, quantised ones tiles (>> 15).

constexpr uint32_t header_bytes = 64, config_bytes = 256, entry_bytes = 32, table_offset = header_bytes + 2 * config_bytes;
static const char magic[9] = "TRNSFRMR";

TRANSFORMER_API const char* role_name(uint32_t role)
{
#define TRANSFORMER_ROLE(role, owner, member, kind) #role,
    static const char* const names[] = {TRANSFORMER_ROLES(TRANSFORMER_ROLE)};
#undef TRANSFORMER_ROLE
    role &= role_bias - 1u;
    return role < static_cast<uint32_t>(Role::n_roles) ? names[role] : "unknown role";
}

struct Entry { uint32_t role, bias, dtype, stack, layer, rows, cols, count; uint64_t offset, key; };

static Entry entry_at(const Model& m, uint32_t i)
{
    const unsigned char* const p = m.table + uint64_t{i} * entry_bytes;
    Entry e;
    e.role = p[0] & 0x7fu;
    e.bias = p[0] >> 7;
    e.dtype = p[1];
    e.stack = p[2];
    e.layer = load_u16(p + 4);
    e.rows = load_u32(p + 8);
    e.cols = load_u32(p + 12);
    e.count = load_u32(p + 16);
    e.offset = load_u64(p + 24);
    e.key = uint64_t{e.stack} << 32 | uint64_t{e.layer} << 16 | e.role << 1 | e.bias;
    return e;
}

// Where a role lives in its struct, whose weight stands before its bias.
enum class Kind : uint8_t { linear, table, norm, vector };
struct Place { uint16_t offset; Kind kind; };
static constexpr Place places[] = {
#define TRANSFORMER_ROLE(role, owner, member, kind) {offsetof(owner, member), Kind::kind},
    TRANSFORMER_ROLES(TRANSFORMER_ROLE)
#undef TRANSFORMER_ROLE
};
static Kind kind_of(Role r) { return places[static_cast<uint32_t>(r)].kind; }
static bool is_matrix(Role r) { return kind_of(r) == Kind::linear || kind_of(r) == Kind::table; }
static bool takes_bias(Role r) { return kind_of(r) == Kind::linear || kind_of(r) == Kind::norm; }
static bool is_head(Role r) { return r == Role::head_dense || r == Role::head_norm || r == Role::lm_head; }

static void bind(void* owner, const Model& m, const Entry& e)  // of a Stack, a Layer or, the head, a Model
{
    unsigned char* const at = static_cast<unsigned char*>(owner) + places[e.role].offset + e.bias * sizeof(Tensor);
    Tensor* const t = static_cast<Tensor*>(static_cast<void*>(at));
    t->data = m.bytes + e.offset;
    t->rows = e.rows;
    t->cols = e.cols;
    t->count = e.count;
    t->dtype = static_cast<DType>(e.dtype);
}

// The view of block `index`, whose entries begin at `entry`; returns where the next block begins.
static uint32_t bind_layer(const Model& m, uint32_t entry, uint32_t index, const Stack& stack, Layer* layer)
{
    memset(static_cast<void*>(layer), 0, sizeof *layer);       // all absent; no temporary on a small stack
    layer->index = index;
    layer->flags = stack.layer_flags ? stack.layer_flags.data[index] : static_cast<uint8_t>(layer_local);
    const uint32_t of = entry < m.n_tensors ? entry_at(m, entry).stack : 0;
    for (; entry < m.n_tensors; entry++) {
        const Entry e = entry_at(m, entry);
        if (e.stack != of || e.layer != index + 1) break;
        bind(layer, m, e);
    }
    return entry;
}

static Status bad(const char* text, const char* field, uint64_t where = 0) { return {Code::bad_config, text, field, where}; }

static void load_config(const unsigned char* p, Config& c)     // Config is 64 words of 32 bits, floats among them
{
    for (uint32_t i = 0; i < config_bytes / 4; i++) {
        const uint32_t word = load_u32(p + 4 * i);
        memcpy(static_cast<unsigned char*>(static_cast<void*>(&c)) + 4 * i, &word, 4);
    }
}

// The features that a configuration, and an entry of the tensor table, needs.
static uint32_t needs(const Config& c)
{
    const struct { bool needed; uint32_t features; } list[] = {
        {c.norm == NormKind::layer || c.flags & flag_qk_norm_layer, mask_of(Feature::layer_norm)},
        {c.n_experts || c.shared_hidden_dim, mask_of(Feature::experts)},
        {c.kv_lora_rank != 0, mask_of(Feature::mla)},
        {c.attn_softcap > 0 || c.logit_softcap > 0, mask_of(Feature::softcap)},
        {(c.flags & flag_cross) != 0, mask_of(Feature::cross)},
        {!(c.flags & flag_causal), mask_of(Feature::encoder)},
        {c.activation != Activation::silu, mask_of(Feature::activations)},
        {c.embedding_dim != c.dim || c.flags & flag_sinusoidal || c.embedding_scale < 1.0f || c.embedding_scale > 1.0f ||
            c.logit_scale < 1.0f || c.logit_scale > 1.0f, mask_of(Feature::embeddings)},
        {c.window || c.chunk || c.qkv_clip > 0 || c.temperature_floor > 0, mask_of(Feature::windows)},
    };
    uint32_t mask = 0;
    for (const auto& one : list) mask |= one.needed ? one.features : 0;
    return mask;
}
static uint32_t needs(const Entry& e)
{
    const Role role = static_cast<Role>(e.role);
    const DType type = static_cast<DType>(e.dtype);
    if (e.bias) return is_matrix(role) ? mask_of(Feature::biases) : mask_of(Feature::layer_norm);
    if (is_matrix(role)) {
        const uint32_t format = mask_of(!is_quantised(type) ? Feature::dense_weights : type == DType::q8_0
            ? Feature::quantised_weights : Feature::nibble_weights);
        if (role == Role::conv1 || role == Role::conv2) return format | mask_of(Feature::encoder, Feature::activations);
        if (role == Role::head_dense) return format | mask_of(Feature::embeddings, Feature::activations);
        return format | (role > Role::token_embedding && role < Role::lm_head ? mask_of(Feature::embeddings) : 0);
    }
    switch (role) {
    case Role::embedding_norm: case Role::head_norm: return mask_of(Feature::embeddings);
    case Role::rope_freqs: return e.rows > 1 ? mask_of(Feature::windows) : 0;
    case Role::layer_flags: return mask_of(Feature::windows);
    case Role::q_norm: case Role::k_norm: case Role::q_a_norm: case Role::kv_a_norm: return mask_of(Feature::qk_norm);
    case Role::router_bias: return mask_of(Feature::experts);
    default: return kind_of(role) == Kind::vector ? mask_of(Feature::relative) : 0;
    }
}

// Ranges that keep every later product of sizes inside 64 bits.
struct Range { const char* name; uint16_t offset; uint32_t least, most; };
static const Range ranges[] = {
#define TRANSFORMER_RANGE(name, low, high) {#name, offsetof(Config, name), low, high},
    TRANSFORMER_RANGE(dim, 1, 1u << 24) TRANSFORMER_RANGE(hidden_dim, 1, 1u << 24)
    TRANSFORMER_RANGE(n_layers, 1, 1024) TRANSFORMER_RANGE(n_heads, 1, 65536)
    TRANSFORMER_RANGE(n_kv_heads, 1, 65536) TRANSFORMER_RANGE(head_dim, 1, 65536)
    TRANSFORMER_RANGE(v_head_dim, 1, 65536) TRANSFORMER_RANGE(vocab_size, 0, 1u << 24)
    TRANSFORMER_RANGE(n_outputs, 0, 1u << 24) TRANSFORMER_RANGE(max_seq_len, 1, 1u << 28)
    TRANSFORMER_RANGE(embedding_dim, 1, 1u << 24) TRANSFORMER_RANGE(n_types, 0, 65536)
    TRANSFORMER_RANGE(n_experts, 0, 65536) TRANSFORMER_RANGE(n_experts_active, 0, 65536)
    TRANSFORMER_RANGE(dense_hidden_dim, 0, 1u << 24) TRANSFORMER_RANGE(shared_hidden_dim, 0, 1u << 24)
    TRANSFORMER_RANGE(n_groups, 0, 65536) TRANSFORMER_RANGE(n_groups_active, 0, 65536)
    TRANSFORMER_RANGE(q_lora_rank, 0, 1u << 24) TRANSFORMER_RANGE(kv_lora_rank, 0, 65536)
    TRANSFORMER_RANGE(nope_head_dim, 0, 65536) TRANSFORMER_RANGE(mla_v_head_dim, 0, 65536)
    TRANSFORMER_RANGE(rope_dim, 0, 65536) TRANSFORMER_RANGE(rope_long_from, 0, 1u << 28)
    TRANSFORMER_RANGE(window, 0, 1u << 28) TRANSFORMER_RANGE(window_ahead, 0, 1u << 28)
    TRANSFORMER_RANGE(chunk, 0, 1u << 28) TRANSFORMER_RANGE(relative_distance, 0, 1u << 24)
    TRANSFORMER_RANGE(n_features, 0, 65536) TRANSFORMER_RANGE(n_frames, 0, 1u << 24)
    TRANSFORMER_RANGE(norm, 0, 1) TRANSFORMER_RANGE(activation, 0, 8)
    TRANSFORMER_RANGE(head_activation, 0, 8) TRANSFORMER_RANGE(router, 0, 1)
    TRANSFORMER_RANGE(pooling, 0, 3) TRANSFORMER_RANGE(flags, 0, 1023)
    TRANSFORMER_RANGE(decoder_start, 0, 1u << 24)
#undef TRANSFORMER_RANGE
};

struct Number { const char* name; uint16_t offset; bool negative; };
static const Number numbers[] = {
#define TRANSFORMER_NUMBER(name, negative) {#name, offsetof(Config, name), negative},
    TRANSFORMER_NUMBER(norm_eps, false) TRANSFORMER_NUMBER(qk_norm_eps, false) TRANSFORMER_NUMBER(rope_theta, false)
    TRANSFORMER_NUMBER(rope_scale, true) TRANSFORMER_NUMBER(attn_scale, false) TRANSFORMER_NUMBER(attn_softcap, false)
    TRANSFORMER_NUMBER(logit_softcap, false) TRANSFORMER_NUMBER(logit_scale, true) TRANSFORMER_NUMBER(embedding_scale, true)
    TRANSFORMER_NUMBER(residual_scale, true) TRANSFORMER_NUMBER(qkv_clip, false) TRANSFORMER_NUMBER(routed_scale, true)
    TRANSFORMER_NUMBER(temperature_floor, false) TRANSFORMER_NUMBER(temperature_scale, true) TRANSFORMER_NUMBER(mlp_clamp,
        false)
    TRANSFORMER_NUMBER(mlp_alpha, true)
#undef TRANSFORMER_NUMBER
};

TRANSFORMER_OUTLINE static Status check_config(const Config& c)
{
    const unsigned char* const words = static_cast<const unsigned char*>(static_cast<const void*>(&c));
    for (const Range& r : ranges) {
        uint32_t value;
        memcpy(&value, words + r.offset, 4);
        if (value < r.least || value > r.most) return bad("a field of the configuration is out of range", r.name, value);
    }
    if (c.n_kv_heads > c.n_heads || c.n_heads % c.n_kv_heads)
        return bad("n_kv_heads does not divide n_heads", "n_kv_heads", c.n_kv_heads);
    if (c.rope_dim > c.head_dim || c.rope_dim % 2)
        return bad("rotary positions need an even width of at most head_dim", "rope_dim", c.rope_dim);
    if (c.n_experts_active > c.n_experts || (c.n_experts && !c.n_experts_active))
        return bad("must be 1 to n_experts", "n_experts_active", c.n_experts_active);
    if (c.n_groups > c.n_experts || (c.n_groups && c.n_experts % c.n_groups))
        return bad("n_groups does not divide n_experts", "n_groups", c.n_groups);
    if (c.n_groups_active > c.n_groups) return bad("more than n_groups", "n_groups_active", c.n_groups_active);
    if (c.decoder_start > c.vocab_size) return bad("outside the vocabulary", "decoder_start", c.decoder_start);
    if (c.n_features ? c.n_frames < 2 : c.n_frames != 0)
        return bad("frames and features belong together", "n_frames", c.n_frames);
    if (c.n_features && (is_causal(c) || c.embedding_dim != c.dim))
        return bad("features belong to an encoder as wide as its embedding", "n_features", c.n_features);
    if (is_causal(c) && (c.pooling == Pooling::first || c.pooling == Pooling::mean))
        return bad("a decoder can only pool its last row", "pooling", static_cast<uint64_t>(c.pooling));
    const uint64_t widest = larger(larger(c.head_dim, c.v_head_dim),
        larger(uint64_t{c.rope_dim} + c.nope_head_dim, c.mla_v_head_dim));
    if (c.n_heads * widest > 1u << 23) return bad("the heads are too wide together", "head_dim", c.head_dim);
    if (c.kv_lora_rank && (c.n_kv_heads != 1 || c.head_dim != c.rope_dim + c.kv_lora_rank || c.v_head_dim != c.kv_lora_rank
        || !c.mla_v_head_dim || !c.nope_head_dim))
        return bad("latent attention has one cached row of rope_dim + kv_lora_rank", "kv_lora_rank", c.kv_lora_rank);
    for (const Number& n : numbers) {
        float x;
        memcpy(&x, words + n.offset, 4);
        if (!(x <= most_f32 && x >= (n.negative ? lowest_f32 : 0.0f)))
            return bad("a number of the configuration is out of range", n.name);
    }
    if (!(c.rope_theta > 0)) return bad("must be positive", "rope_theta");
    if (c.temperature_floor > 0 && c.temperature_floor < 1) return bad("must be 0 or at least 1", "temperature_floor");
    for (uint32_t r : c.reserved)
        if (r) return bad("a reserved word is set: the file is newer than this program", "reserved", r);
    return {};
}

// The shape that a role must have; rows 0 in the answer: the role does not belong to this model.
struct Shape { uint32_t rows, cols, count; };
static Shape shape_of(const Entry& e, const Config& c)
{
    const uint32_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim, vv = c.n_kv_heads * c.v_head_dim;
    const uint32_t mixed = c.kv_lora_rank ? c.n_heads * c.mla_v_head_dim : c.n_heads * c.v_head_dim,
        wide_q = c.n_heads * (c.rope_dim + c.nope_head_dim);
    const bool mla = c.kv_lora_rank != 0, experts = e.count > 1 || (c.n_experts == 1 && e.count == 1);
    const uint32_t f = experts || !c.dense_hidden_dim ? c.hidden_dim : c.dense_hidden_dim;
    const uint32_t many = e.count > 1 ? c.n_experts : 1, distances = 2 * c.relative_distance + 1;
    switch (static_cast<Role>(e.role)) {
    case Role::token_embedding: return {c.vocab_size, c.embedding_dim, 1};
    case Role::type_embedding: return {c.n_types, c.embedding_dim, 1};
    case Role::position_embedding: return {e.rows, e.cols == c.dim ? c.dim : c.embedding_dim, 1};
    case Role::embedding_norm: return {1, e.cols == c.dim ? c.dim : c.embedding_dim, 1};
    case Role::embedding_proj: return {c.dim, c.embedding_dim, 1};
    case Role::conv1: return {c.n_features ? c.dim : 0, 3 * c.n_features, 1};
    case Role::conv2: return {c.n_features ? c.dim : 0, 3 * c.dim, 1};
    case Role::rope_freqs: return {e.rows == 1 || e.rows == 2 ? e.rows : 0, c.rope_dim / 2, 1};
    case Role::layer_flags: return {1, c.n_layers, 1};
    case Role::alibi_slopes: return {1, c.n_heads, 1};
    case Role::relative_rows: return {1, distances, 1};
    case Role::final_norm: return {1, c.dim, 1};
    case Role::final_proj: return {c.embedding_dim, c.dim, 1};
    case Role::head_dense: return {e.rows, e.cols, 1};
    case Role::head_norm: return {1, e.cols, 1};
    case Role::lm_head: return {c.n_outputs, e.cols, 1};
    case Role::q_norm: return e.cols == c.head_dim ? Shape{e.rows == 1 ? 1 : c.n_heads, c.head_dim, 1} : Shape{1, q, 1};
    case Role::k_norm: return e.cols == c.head_dim ? Shape{e.rows == 1 ? 1 : c.n_kv_heads, c.head_dim, 1} : Shape{1, kv, 1};
    case Role::sinks: return {1, c.n_heads, 1};
    case Role::relative_bias: return {c.n_heads, distances, 1};
    case Role::rel_key: case Role::rel_query: return {e.rows, q, 1};
    case Role::wq: return mla ? Shape{wide_q, c.q_lora_rank ? c.q_lora_rank : c.dim, 1} : Shape{q, c.dim, 1};
    case Role::wk: return {mla ? 0 : kv, c.dim, 1};
    case Role::wv: return {mla ? 0 : vv, c.dim, 1};
    case Role::wo: return {c.dim, mixed, 1};
    case Role::wq_a: return {c.q_lora_rank, c.dim, 1};
    case Role::q_a_norm: return {1, c.q_lora_rank, 1};
    case Role::wkv_a: return {mla ? c.head_dim : 0, c.dim, 1};
    case Role::kv_a_norm: return {mla ? 1u : 0u, c.kv_lora_rank, 1};
    case Role::wk_b: return {c.kv_lora_rank, c.nope_head_dim, c.n_heads};
    case Role::wv_b: return {c.mla_v_head_dim, c.kv_lora_rank, c.n_heads};
    case Role::cross_wq: return {c.flags & flag_cross ? q : 0, c.dim, 1};
    case Role::cross_wk: return {c.flags & flag_cross ? kv : 0, c.dim, 1};
    case Role::cross_wv: return {c.flags & flag_cross ? vv : 0, c.dim, 1};
    case Role::cross_wo: return {c.flags & flag_cross ? c.dim : 0, c.n_heads * c.v_head_dim, 1};
    case Role::gate: case Role::up: return {f, c.dim, many};
    case Role::down: return {c.dim, f, many};
    case Role::router: return {c.n_experts, c.dim, 1};
    case Role::router_bias: return {1, c.n_experts, 1};
    case Role::shared_gate: case Role::shared_up: return {c.shared_hidden_dim, c.dim, 1};
    case Role::shared_down: return {c.shared_hidden_dim ? c.dim : 0, c.shared_hidden_dim, 1};
    case Role::shared_router: return {1, c.dim, 1};
    default: return {1, c.dim, 1};                             // the norms of the block
    }
}

TRANSFORMER_OUTLINE static Status check_entry(const Model& m, const Entry& e, const Entry& weight, uint64_t size)
{
    const char* const name = role_name(e.role);
    const Config& c = e.stack ? m.encoder.config : m.main.config;
    const Role role = static_cast<Role>(e.role);
    const auto wrong = [&](const char* text, uint64_t where) { return Status{Code::bad_tensor, text, name, where}; };
    if (role >= Role::n_roles || e.stack > 1 || (e.stack && !c.n_layers) || e.layer > c.n_layers)
        return wrong("the tensor table names an unknown place", e.layer);
    if ((e.layer == 0) != (role < Role::attn_norm_pre)) return wrong("a tensor stands in the wrong layer", e.layer);
    if (e.stack && is_head(role))
        return wrong("a head belongs to the main stack", 0);
    if (e.dtype >= n_dtypes) return wrong("unknown number format", e.dtype);
    const DType type = static_cast<DType>(e.dtype);
    if (e.bias && !takes_bias(role)) return wrong("this tensor has no bias", e.layer);
    if ((role == Role::rel_key || role == Role::rel_query) && (is_causal(c) || c.n_kv_heads != c.n_heads
        || !c.relative_distance))
        return wrong("relative keys belong to an encoder with as many key heads as query heads", e.layer);
    Shape want = shape_of(e, c);
    if (!want.rows) return wrong("this model has no such tensor", e.layer);
    if (e.bias) {                                              // its weight is the entry before it
        if (weight.key + 1 != e.key) return wrong("a bias stands without its weight", e.layer);
        want = is_matrix(role) ? Shape{1, weight.rows, weight.count} : Shape{weight.rows, weight.cols, weight.count};
    }
    if (e.rows != want.rows || e.cols != want.cols || e.count != want.count || !e.rows || !e.cols || !e.count)
        return wrong("a tensor's shape does not fit the configuration", e.layer);
    if (e.cols > 1u << 24 || e.rows > 1u << 24) return wrong("a tensor is too wide", e.layer);
    if (role == Role::layer_flags ? type != DType::u8 : e.bias || !is_matrix(role) ? type != DType::f32 : type == DType::u8)
        return wrong("a tensor has a number format that its role does not take", e.dtype);
    const uint64_t bytes = matrix_bytes(type, e.rows, e.cols); // below 2^48 * 4
    if (e.offset % 64) return wrong("a tensor's offset is not a multiple of 64", e.offset);
    if (e.offset > size || bytes > (size - e.offset) / e.count)
        return {Code::truncated, "a tensor reaches past the end of the file", name, e.offset};
    return {};
}

// relative_rows holds row numbers of the layers' rel_key and rel_query.
static Status check_relative(const Model& m, const Stack& k, uint32_t end)
{
    float rows = 65536;
    for (uint32_t i = k.first_entry; i < end; i++) {
        const Entry e = entry_at(m, i);
        if (e.role != static_cast<uint32_t>(Role::rel_key) && e.role != static_cast<uint32_t>(Role::rel_query)) continue;
        if (!k.relative_rows) return {Code::missing_tensor, "a tensor is missing", "relative_rows", 0};
        rows = least(rows, static_cast<float>(e.rows));
    }
    for (uint32_t i = 0; k.relative_rows && i < k.relative_rows.cols; i++) {
        const float row = load_f32(k.relative_rows.data + 4 * uint64_t{i});
        if (!(row >= 0 && row < rows)) return {Code::bad_tensor, "a row number is out of range", "relative_rows", i};
    }
    return {};
}

// What a block must have: `seen` has a bit for each role that the table names in it.
template <class... R> static constexpr uint64_t roles(R... r) { return ((uint64_t{1} << static_cast<uint32_t>(r)) | ...); }
TRANSFORMER_OUTLINE static Status check_layer(const Config& c, uint64_t seen, uint32_t n_experts, uint32_t index)
{
    uint64_t need = roles(Role::wq, Role::wo, Role::up, Role::down);
    need |= c.kv_lora_rank ? roles(Role::wkv_a, Role::wk_b, Role::wv_b) : roles(Role::wk, Role::wv);
    if (c.kv_lora_rank && c.q_lora_rank) need |= roles(Role::wq_a);
    if (c.flags & flag_cross) need |= roles(Role::cross_wq, Role::cross_wk, Role::cross_wv, Role::cross_wo);
    if (c.flags & flag_parallel) need |= roles(Role::ffn_norm_pre);
    if (n_experts > 1) need |= roles(Role::router);
    if (seen & roles(Role::shared_up)) need |= roles(Role::shared_down);
    for (uint32_t role = 0; role < static_cast<uint32_t>(Role::n_roles); role++)
        if ((need & ~seen) >> role & 1) return {Code::missing_tensor, "a tensor is missing", role_name(role), index};
    if (seen & roles(Role::router) && n_experts != c.n_experts)
        return {Code::bad_tensor, "a router stands before another number of experts", "router", index};
    return {};
}

// What a stack must have beside its blocks, which end at entry `end` of the table.
TRANSFORMER_OUTLINE static Status check_stack(const Model& m, const Stack& k, uint32_t end, uint32_t stack)
{
    if (Status s = check_relative(m, k, end); !s) return s;
    if (k.config.vocab_size && !k.token_embedding)
        return {Code::missing_tensor, "a tensor is missing", "token_embedding", stack};
    if (k.config.embedding_dim != k.config.dim && !k.embedding_proj.w && k.config.vocab_size)
        return {Code::missing_tensor, "a tensor is missing", "embedding_proj", stack};
    if (k.config.n_features && (!k.conv1.w || !k.conv2.w))
        return {Code::missing_tensor, "a tensor is missing", "conv1, conv2", stack};
    if (k.rope_freqs && k.config.rope_long_from && k.rope_freqs.rows != 2)
        return {Code::bad_tensor, "two rows are needed", "rope_freqs", stack};
    return {};
}
TRANSFORMER_OUTLINE static Status check_head(const Model& m)
{
    if (m.main.config.n_outputs && !m.lm_head.w) return {Code::missing_tensor, "a tensor is missing", "lm_head", 0};
    uint32_t width = m.main.final_proj.w ? m.main.final_proj.w.rows : m.main.config.dim;
    if (m.head_dense.w && m.head_dense.w.cols != width)
        return {Code::bad_tensor, "the head's shapes do not fit each other", "head_dense", width};
    if (m.head_dense.w) width = m.head_dense.w.rows;
    if (width > wider(m.main.config.dim, m.main.config.embedding_dim) || (m.head_norm.w && m.head_norm.w.cols != width)
        || (m.lm_head.w && m.lm_head.w.cols != width))
        return {Code::bad_tensor, "the head's shapes do not fit each other", "lm_head", width};
    return {};
}
TRANSFORMER_OUTLINE static Status check_configs(const Model& m)
{
    const Config& main = m.main.config;
    const Config& encoder = m.encoder.config;
    if (Status s = check_config(main); !s) return s;
    if (encoder.n_layers)
        if (Status s = check_config(encoder); !s) return s;
    const bool cross = (main.flags & flag_cross) != 0;
    if (encoder.n_layers && (!cross || is_causal(encoder) || encoder.dim != main.dim))
        return bad("the encoder does not fit the decoder", "encoder", encoder.dim);
    if (cross && !is_causal(main)) return bad("only a decoder has cross attention", "flags", main.flags);
    return {};
}
static Status left_out(const Model& m)
{
    const uint32_t missing = m.features & ~TRANSFORMER_FEATURES;
    if (!missing) return {};
    return {Code::not_supported, "this build leaves out a feature that the model needs", "TRANSFORMER_FEATURES", missing};
}

static Status open_checked(const unsigned char* p, uint64_t size, Model& m)
{
    if (!p || size < 8 || memcmp(p, magic, 8) != 0)
        return {Code::not_a_checkpoint, "these bytes are not a transformer.hpp checkpoint", "magic", 0};
    if (reinterpret_cast<uintptr_t>(p) % 4)
        return {Code::misaligned, "the checkpoint must lie at a multiple of 4 bytes (64 is faster)", "bytes",
        reinterpret_cast<uintptr_t>(p) % 64};
    if (size < table_offset) return {Code::truncated, "the file ends inside its header", "header", size};
    if (load_u32(p + 8) != TRANSFORMER_FORMAT_VERSION)
        return {Code::bad_version, "unknown format version", "version", load_u32(p + 8)};
    if (load_u64(p + 16) != size)
        return {Code::truncated, load_u64(p + 16) > size ? "the file is shorter than its header says"
        : "the file is longer than its header says", "size", load_u64(p + 16)};
    if (load_u32(p + 40) != 2) return bad("the header must hold two configurations", "config records", load_u32(p + 40));
    m.bytes = p;
    m.n_tensors = load_u32(p + 12);
    m.table = p + table_offset;
    if (m.n_tensors > (size - table_offset) / entry_bytes)
        return {Code::truncated, "the tensor table reaches past the end of the file", "tensors", m.n_tensors};
    load_config(p + header_bytes, m.main.config);
    load_config(p + header_bytes + config_bytes, m.encoder.config);
    m.features = needs(m.main.config) | (m.encoder.config.n_layers ? needs(m.encoder.config) : 0);
    if (Status s = left_out(m); !s) return s;
    if (has(Feature::checks))
        if (Status s = check_configs(m); !s) return s;

    uint64_t before = 0;
    uint32_t at = 0;
    for (uint32_t stack = 0; stack < 2; stack++) {             // globals of the stack, then its blocks
        Stack& k = stack ? m.encoder : m.main;
        if (!k.config.n_layers) continue;
        for (uint32_t index = 0; index <= k.config.n_layers; index++) {
            uint64_t seen = 0;
            uint32_t n_experts = 0;
            if (index == 1) k.first_entry = at;
            for (; at < m.n_tensors; at++) {
                const Entry e = entry_at(m, at);
                const Role role = static_cast<Role>(e.role);
                if (e.stack != stack || e.layer != index) break;
                if (has(Feature::checks) && at && e.key <= before)
                    return {Code::bad_tensor, e.key == before ? "a tensor is there twice" : "the tensor table is not in order",
                    role_name(e.role), at};
                before = e.key;
                if (has(Feature::checks))
                    if (Status s = check_entry(m, e, e.bias ? entry_at(m, at ? at - 1 : 0) : e, size); !s) return s;
                m.features |= needs(e);
                if (role == Role::gate || role == Role::up || role == Role::down) {
                    if (has(Feature::checks) && n_experts && n_experts != e.count)
                        return {Code::bad_tensor, "the experts' tensors differ in number", role_name(e.role), at};
                    n_experts = e.count;
                }
                if (!e.bias) seen |= uint64_t{1} << e.role;
                if (index == 0) bind(is_head(role) ? static_cast<void*>(&m) : &k, m, e);
            }
            if (has(Feature::checks) && index)
                if (Status s = check_layer(k.config, seen, n_experts, index - 1); !s) return s;
            if (index && !(seen & roles(Role::gate))) m.features |= mask_of(Feature::activations);
        }
        if (k.config.rope_dim && !k.rope_freqs) m.features |= mask_of(Feature::frequencies);
        if (has(Feature::checks))
            if (Status s = check_stack(m, k, at, stack); !s) return s;
    }
    if (Status s = left_out(m); !s) return s;
    if (at < m.n_tensors) {
        const Entry e = entry_at(m, at);
        return {Code::bad_tensor, e.key <= before ? "the tensor table is not in order"
            : "the tensor table names an unknown place", role_name(e.role), at};
    }
    if (has(Feature::checks))
        if (Status s = check_head(m); !s) return s;
    const uint64_t vocabulary = load_u64(p + 24), vocabulary_bytes = load_u64(p + 32);
    if (vocabulary_bytes) {
        if (vocabulary % 4 || vocabulary > size || vocabulary_bytes > size - vocabulary)
            return {Code::truncated, "the vocabulary reaches past the end of the file", "vocabulary", vocabulary};
        if (Status s = open_vocabulary(p + vocabulary, vocabulary_bytes, &m.vocabulary); !s) return s;
    }
    return {};
}

TRANSFORMER_API Status open(const void* bytes, uint64_t size, Model* model)
{
    memset(static_cast<void*>(model), 0, sizeof *model);       // no temporary on a small stack
    model->vocabulary = Vocabulary{};
    const Status status = open_checked(static_cast<const unsigned char*>(bytes), size, *model);
    if (!status) model->bytes = nullptr;
    return status;
}

TRANSFORMER_API uint64_t session_size(const Model& m, const Options& o)
{
    return plan(m.main.config, m.encoder.config, o).at[n_regions];
}

TRANSFORMER_API Status start(const Model& m, const Options& o, void* memory, uint64_t size, Session* session)
{
    constexpr uint32_t longest = 1u << 24;                     // keeps plan() inside 64 bits
    const auto wrong = [](const char* text, const char* field,
        uint64_t value) { return Status{Code::bad_argument, text, field, value}; };
    memset(static_cast<void*>(session), 0, sizeof *session);   // no temporary on a small stack
    if (!m.bytes) return wrong("the model is not open", "model", 0);
    if (!o.capacity || o.capacity > longest) return wrong("must be 1 to 2^24", "options.capacity", o.capacity);
    if (o.source_capacity > longest) return wrong("must be at most 2^24", "options.source_capacity", o.source_capacity);
    if (!o.batch || o.batch > longest) return wrong("must be 1 to 2^24", "options.batch", o.batch);
    if (o.slices > (has(Feature::slices) ? 1024u : 1u))
        return wrong("must be at most 1024, or 1 in a build without slices", "options.slices", o.slices);
    if (o.cache != DType::f16 && !(has(Feature::f32_cache) && o.cache == DType::f32)
        && !(has(Feature::quantised_cache) && o.cache == DType::q8_0))
        return wrong("must be f16, f32 or q8_0, as far as this build has them", "options.cache",
            static_cast<uint64_t>(o.cache));
    if (o.observer && !has(Feature::observers)) return wrong("this build leaves out observers", "options.observer", 0);
    const Kernels* const room = room_of(o.isa);
    if (!room)
        return {Code::not_supported, "this build or processor lacks that instruction set", "options.isa",
        static_cast<uint64_t>(o.isa)};
    const Stack* const stacks[] = {&m.main, &m.encoder};
    for (const Stack* k : stacks) {
        if (!has(Feature::embeddings) || !k->config.n_layers || !k->position_embedding) continue;
        const uint64_t rows = k->config.n_frames ? k->config.n_frames / 2 : k == &m.encoder ? batch_rows(k->config, o, true)
            : o.capacity;
        if (rows > k->position_embedding.rows)
            return wrong("longer than the model's learned positions",
            k == &m.encoder ? "options.source_capacity" : "options.capacity", k->position_embedding.rows);
    }
    if (!memory || reinterpret_cast<uintptr_t>(memory) % 4)
        return {Code::misaligned, "the session's memory must lie at a multiple of 4 bytes (64 is faster)", "memory",
        reinterpret_cast<uintptr_t>(memory) % 64};
    session->plan = plan(m.main.config, m.encoder.config, o);
    const uint64_t need = session->plan.at[n_regions];
    if (size < need) return {Code::memory_too_small, "the session needs more memory", "memory", need};
    session->model = &m;
    session->options = o;
    session->room = room;
    session->stack = &m.main;
    session->memory = static_cast<unsigned char*>(memory);
    return {};
}

TRANSFORMER_API Status rewind(Session& s, uint32_t position)
{
    if (position > s.position) return {Code::bad_argument, "cannot go forward", "position", position};
    s.position = position;
    return {};
}

// >> 21 Tokenizer -----------------------------------------------------------------------------------------------------
// Text becomes ids in five steps, each of them data of the checkpoint: added tokens are cut out;
// what lies between them is normalised (a list of steps), cut into words (finite automata over
// classes of characters), and each word is looked up by the model: BPE [22], unigram [21] or
// WordPiece [25]; last, the special tokens of the layout are put around. Blanks that SentencePiece
// writes as U+2581 are plain blanks in tokens and in normalised text. All loops are bounded by the
// text's length times a constant, whatever the vocabulary says; every index out of the vocabulary
// is checked here or where it is used.

constexpr uint32_t no_word = 0xffffffffu, longest_key = 1024, max_stages = 8, max_prefix = 16;
enum class Step : uint32_t {
    map = 1, compose, spaces, escape, collapse, strip, prefix, clusters, late = 0x80000000u
};
enum : uint32_t {
    map_keeps_symbols = 1, map_replaces_invalid = 2, map_drops_invalid = 4,    // of Step::map
    spaces_prefix = 1, spaces_collapse = 2, spaces_suffix = 4,                 // of Step::spaces
    strip_left = 1, strip_right = 2,                                           // of Step::strip
    prefix_unless_there = 1, prefix_at_start = 2, prefix_escapes = 4, prefix_words = 8,
    added_strips_left = 1, added_strips_right = 2, added_normal = 4, added_symbol = 8,
    added_special = 16, trie_whole = 1u << 24, layout_a = 0xffffffu, layout_b = 0xfffffeu
};
static const char space_symbol[4] = "\xe2\x96\x81", replacement[4] = "\xef\xbf\xbd";

static uint32_t word(const Span& s, uint64_t i) { return load_u32(s.data + 4 * i); }
static Span part(const Span& s, uint32_t first, uint32_t n)
{
    return {s.data + 4 * uint64_t{first}, n};
}
static const char* chars(const unsigned char* p)
{
    return static_cast<const char*>(static_cast<const void*>(p));
}

// ---- Tries ----
// A double array [26] of 32-bit units. A node: bits 0-8 the byte that leads to it + 1, 9 a key ends
// here, 11-30 the distance (as exclusive or; bit 10: in units of 512) to its base; a child stands
// at base ^ (byte + 1), the key's value, with bit 31, at base.
static uint32_t trie_base(uint32_t node, uint32_t unit)
{
    return node ^ (unit >> 11 & 0xfffffu) << (unit & 1024 ? 9 : 0);
}
static bool trie_child(const Span& t, uint32_t* node, char c)
{
    if (*node >= t.n) return false;
    const uint32_t label = static_cast<unsigned char>(c) + 1u,
                   next = trie_base(*node, word(t, *node)) ^ label;
    if (next >= t.n || (word(t, next) & 0x800001ffu) != label) return false;
    *node = next;
    return true;
}
static uint32_t trie_value(const Span& t, uint32_t node)       // no_word: no key ends here
{
    const uint32_t unit = node < t.n ? word(t, node) : 0, at = trie_base(node, unit);
    return unit & 512 && at < t.n ? word(t, at) & 0x7fffffffu : no_word;
}
static uint32_t trie_find(const Span& t, const char* p, uint64_t n, uint32_t node = 0)
{
    if (n > longest_key) return no_word;
    for (uint64_t i = 0; i < n; i++)
        if (!trie_child(t, &node, p[i])) return no_word;
    return trie_value(t, node);
}
struct Match { uint32_t value, size; };                        // size 0: none
static Match trie_longest(const Span& t, const char* p, uint64_t n, uint32_t node = 0,
                          bool shortest = false)
{
    Match best = {no_word, 0};
    for (uint32_t i = 0; i < least<uint64_t>(n, longest_key) && trie_child(t, &node, p[i]); i++) {
        if (const uint32_t value = trie_value(t, node); value != no_word) best = {value, i + 1};
        if (shortest && best.size) break;
    }
    return best;
}

// ---- Opening ----

// Lists of {tag, n, n words}; stops at a record that is cut short or that `each(tag, words)` says
// no to.
template <class Each> static bool records(const Span& s, Each each)
{
    for (uint32_t at = 0; at < s.n;) {
        if (s.n - at < 2 || word(s, at + 1) > s.n - at - 2) return false;
        const Span payload = part(s, at + 2, word(s, at + 1));
        if (!each(word(s, at), payload)) return false;
        at += 2 + payload.n;
    }
    return true;
}
static bool step_is_right(uint32_t kind, const Span& s)
{
    switch (static_cast<Step>(kind & ~static_cast<uint32_t>(Step::late))) {
    case Step::map: return s.n >= 2 && word(s, 1) <= s.n - 2;
    case Step::compose: case Step::clusters:
        return s.n >= 3 && uint64_t{word(s, 1)} + word(s, 2) <= s.n - 3;
    case Step::spaces: case Step::strip: return s.n == 1;
    case Step::escape: return s.n == 0;
    case Step::collapse: case Step::prefix:
        return s.n >= 2 && word(s, 1) <= max_prefix && word(s, 1) <= 4 * (s.n - 2);
    default: return false;
    }
}
// A stage of splitting: states, classes, then 16 bits for each state and class: the next state (0:
// none), + 2^15 where a match ends before the character that is read. State 1 is the first. Its
// tag: 1 matches are dropped, 2 what is between.
struct Stage { const unsigned char* table; uint32_t n_classes, flags; };
static bool stage_is_right(const Vocabulary& v, uint32_t flags, const Span& s)
{
    const uint32_t n_states = s.n ? word(s, 0) : 0, n_classes = s.n > 1 ? word(s, 1) : 0;
    const uint64_t cells = uint64_t{n_states} * n_classes;
    if (flags > 3 || n_states < 2 || n_states > 0x7fff || n_classes < 2 || n_classes > 256)
        return false;
    if (v.classes.n < 33 || s.n - 2 != (cells + 1) / 2) return false;
    for (uint64_t i = 0; i < cells; i++)
        if ((load_u16(s.data + 8 + 2 * i) & 0x7fff) >= n_states) return false;
    for (uint32_t i = 0; i < 128; i++)
        if (v.classes.data[i] >= n_classes - 1) return false;
    for (uint32_t i = 32; i < v.classes.n; i++)
        if ((word(v.classes, i) & 255) >= n_classes - 1) return false;
    return true;
}
static bool below(const Span& s, uint32_t first, uint32_t step, uint32_t n,
                  bool or_none) // every `step`th word
{
    for (uint64_t i = first; i < s.n; i += step)
        if (word(s, i) >= n && !(or_none && word(s, i) == no_word)) return false;
    return true;
}

// What is wrong with an opened vocabulary: the name of a chunk, or null.
TRANSFORMER_OUTLINE static const char* damaged(Vocabulary& v, uint64_t text_size, uint64_t types)
{
    const uint32_t n = v.n_tokens, unused = static_cast<uint32_t>(TokenType::unused);
    if (v.kind == VocabularyKind::none)                        // labels alone, without a tokenizer
        return v.offsets.n || v.text || v.stop.n ? "info" : nullptr;
    if (!has(Feature::checks) && !has(Feature::tokenizer)) return nullptr;
    if (v.offsets.n != n + 1 || types != n || !v.trie.n) return "tokens";
    for (uint32_t i = 0; i <= n; i++) {
        const uint32_t at = word(v.offsets, i);
        if (at > text_size || at < (i ? word(v.offsets, i - 1) : 0)) return "offsets";
        if (i < n && v.types[i] > unused) return "types";
    }
    if (v.scores.n != n && (v.scores.n || v.kind == VocabularyKind::unigram)) return "scores";
    if (!below(v.stop, 0, 1, n, false)) return "stop";
    if (!has(Feature::tokenizer)) return nullptr;
    if (v.bytes.n && (v.bytes.n != 256 || !below(v.bytes, 0, 1, n, true))) return "bytes";
    for (uint32_t i = 0; i < 4; i++)
        if (i != 2 && !below(v.merges, i, 4, n, true)) return "merges";
    uint32_t count = 0;
    const auto step = [&](uint32_t k, const Span& s) {
        return step_is_right(k, s) && ++count <= 32;
    };
    if (!records(v.normal, step)) return "normal";
    v.n_steps = count;
    count = 0;
    const auto stage = [&](uint32_t f, const Span& s) {
        return stage_is_right(v, f, s) && ++count <= max_stages;
    };
    if (!records(v.split, stage)) return "split";
    const uint64_t entries = v.added.n ? 2 * uint64_t{word(v.added, 0)} : 0;
    if (entries >= most(v.added.n, 1u)) return "added";
    if (v.added.n) {
        const uint32_t end = static_cast<uint32_t>(1 + entries);
        v.added_trie = part(v.added, end, v.added.n - end);
        v.added = part(v.added, 1, end - 1);
    }
    if (!below(v.added, 0, 2, n, false)) return "added";
    for (uint32_t c = 0, node = 0; c < 256; c++, node = 0)
        if (trie_child(v.added_trie, &node, static_cast<char>(c)))
            v.added_first[c / 32] |= 1u << c % 32;
    if (v.layout.n && word(v.layout, 0) > v.layout.n - 1) return "layout";
    for (uint32_t i = 1; i < v.layout.n; i++)
        if (const uint32_t id = word(v.layout, i) & layout_a; id < layout_b && id >= n)
            return "layout";
    return v.growth < 1 || v.growth > 64 || v.growth_chars < 1 || v.growth_chars > 64 ? "growth"
                                                                                      : nullptr;
}

TRANSFORMER_API Status open_vocabulary(const void* bytes, uint64_t size, Vocabulary* out)
{
    const unsigned char* const p = static_cast<const unsigned char*>(bytes);
    Vocabulary& v = *out;
    v = Vocabulary{};
    Span* const spans[] = {
        nullptr,  nullptr,   &v.stop,  &v.offsets, nullptr,  &v.scores, nullptr,
        nullptr,  &v.merges, nullptr,  nullptr,    nullptr,  nullptr,   &v.trie,
        &v.bytes, &v.normal, &v.split, &v.classes, &v.added, &v.layout}; // by tag
    uint64_t text_size = 0, types = 0, at = 0;
    const char* bad = nullptr;
    while (at < size && !bad) {
        const uint64_t n = size - at < 8 ? UINT64_MAX : load_u32(p + at + 4);
        if (n > size - at - 8) {
            bad = "chunk";                                     // it is cut short
            break;
        }
        const uint32_t tag = load_u32(p + at);
        const unsigned char* const data = p + at + 8;
        const Span words = {data, static_cast<uint32_t>(n / 4)};
        at = least(at + 8 + round_up(n, 4), size);
        if (tag < sizeof spans / sizeof *spans && spans[tag]) *spans[tag] = words;
        switch (static_cast<Chunk>(tag)) {
        case Chunk::info: {
            const uint32_t kind = words.n < 15 ? 0 : word(words, 0),
                           n_tokens = kind ? word(words, 2) : 0;
            if (kind < 1 || kind > 4) bad = "kind";
            else if (!n_tokens || n_tokens > 1u << 24) bad = "n_tokens";
            else if (!below(part(words, 3, 7), 0, 1, n_tokens, true)) bad = "info";
            if (bad) break;
            v.kind = static_cast<VocabularyKind>(kind);
            v.flags = word(words, 1);
            v.n_tokens = n_tokens;
            int32_t* const ids[] = {&v.bos,       &v.eos,      &v.unknown, &v.pad,
                                    &v.separator, &v.classify, &v.mask};
            for (uint32_t i = 0; i < 7; i++) *ids[i] = static_cast<int32_t>(word(words, 3 + i));
            v.growth = word(words, 10);
            v.growth_chars = word(words, 11);
            v.longest_word = word(words, 12);
            v.unknown_score = of_bits(word(words, 13));
            v.symbol_score = of_bits(word(words, 14));
            break;
        }
        case Chunk::text: v.text = data; text_size = n; break;
        case Chunk::types: v.types = data; types = n; break;
        case Chunk::chat_template:
            v.chat_template = chars(data);
            v.chat_template_size = static_cast<uint32_t>(n);
            break;
        case Chunk::labels: v.labels = chars(data); v.labels_size = static_cast<uint32_t>(n); break;
        default: break;
        }
    }
    v.merges.n -= v.merges.n % 4;
    if (!bad) bad = damaged(v, text_size, types);
    if (!bad) return {};
    v = Vocabulary{};
    return {Code::bad_vocabulary, "the vocabulary is damaged or has too little", bad, at};
}

TRANSFORMER_API const char* token_text(const Vocabulary& v, int32_t id, uint32_t* n)
{
    *n = 0;
    if (id < 0 || static_cast<uint32_t>(id) >= v.n_tokens) return "";
    const uint32_t begin = word(v.offsets, static_cast<uint32_t>(id));
    *n = word(v.offsets, static_cast<uint32_t>(id) + 1u) - begin;
    return chars(v.text) + begin;
}
TRANSFORMER_API bool is_stop(const Vocabulary& v, int32_t id)
{
    for (uint32_t i = 0; i < v.stop.n; i++)
        if (static_cast<int32_t>(word(v.stop, i)) == id) return true;
    return false;
}
TRANSFORMER_API int32_t token_id(const Vocabulary& v, const char* text, uint32_t n)
{
    const uint32_t added = trie_find(v.added_trie, text, n),
                   id = trie_find(v.trie, text, n) & 0xffffffu;
    if (added < v.added.n / 2) return static_cast<int32_t>(word(v.added, 2 * uint64_t{added}));
    return id < v.n_tokens ? static_cast<int32_t>(id) : -1;
}

// ---- Characters ----

// Bytes of the UTF-8 character that begins at p, 0 if none does; *good: how many bytes could begin
// one (of 0: at least 1); *code: which it is, 0x110000 if none.
static uint32_t utf8_at(const char* p, uint64_t n, uint32_t* good, uint32_t* code)
{
    const auto at = [&](uint64_t i) { return uint32_t{static_cast<unsigned char>(p[i])}; };
    *good = 1;
    *code = 0x110000;
    const uint32_t lead = n ? at(0) : 0xff, want = lead < 0x80   ? 1
                                                   : lead < 0xe0 ? 2
                                                   : lead < 0xf0 ? 3
                                                                 : 4;
    if (lead >= 0xf5 || (lead >= 0x80 && lead < 0xc2)) return 0;
    uint32_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;           // nothing overlong,
    uint32_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;          // no surrogates
    uint32_t c = want == 1 ? lead : lead & (0x7fu >> want);
    for (uint32_t i = 1; i < want; i++, low = 0x80, high = 0xbf) {
        if (i == n || at(i) < low || at(i) > high) return 0;
        c = c << 6 | (at(i) & 63);
        *good = i + 1;
    }
    *code = c;
    return want;
}
static uint32_t utf8_length(const char* p, uint64_t n, uint32_t* good)
{
    uint32_t code;
    return utf8_at(p, n, good, &code);
}
static uint32_t code_at(const char* p, uint64_t n, uint32_t* size) // *size is at least 1
{
    uint32_t code, good;
    *size = most(utf8_at(p, n, &good, &code), 1u);
    return code;
}
static uint32_t char_size(const char* p, uint64_t n)
{
    uint32_t size;
    (void)code_at(p, n, &size);
    return size;
}
static uint32_t put_code(uint32_t c, char* out) // 3-byte characters, which is all that Hangul needs
{
    out[0] = static_cast<char>(0xe0 | c >> 12);
    out[1] = static_cast<char>(0x80 | (c >> 6 & 63));
    out[2] = static_cast<char>(0x80 | (c & 63));
    return 3;
}
// The value of the last of the words first << 8 | value whose first is at most `code`.
static uint32_t class_of(const Span& s, uint32_t code)
{
    uint32_t low = 0, high = s.n;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        (word(s, middle) >> 8 <= code ? low : high) = middle;
    }
    return s.n ? word(s, low) & 255 : 0;
}
static bool is_space(uint32_t c)                               // White_Space
{
    return (c >= 9 && c <= 13) || c == 32 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}
static bool is_symbol(const char* p, uint64_t n)
{
    return n >= 3 && memcmp(p, space_symbol, 3) == 0;
}

// ---- Normalising ----

struct Text { const char* data; uint64_t size; };
struct Output { // a buffer that is full stays full, and says so
    char* data;
    uint64_t size, capacity;
    bool full;
    void add(const char* p, uint64_t n)
    {
        if (n > capacity - size) full = true;
        else if (n == 1) data[size++] = *p;
        else {
            memcpy(data + size, p, static_cast<size_t>(n));
            size += n;
        }
    }
};
// An added token at p: the longest whose flags `mask` are `want`. `raw`: blanks of the text are not
// those of tokens.
static Match added_at(const Vocabulary& v, const char* p, uint64_t n, uint32_t mask, uint32_t want,
                      bool raw)
{
    Match best = {no_word, 0};
    const uint32_t first = n ? static_cast<unsigned char>(raw && is_symbol(p, n) ? ' ' : *p) : 0;
    if (!n || !(v.added_first[first / 32] >> first % 32 & 1)) return best;
    uint32_t node = 0;
    for (uint32_t i = 0; i < least<uint64_t>(n, longest_key);) {
        const bool symbol = raw && is_symbol(p + i, n - i);
        if ((raw && p[i] == ' ') || !trie_child(v.added_trie, &node, symbol ? ' ' : p[i])) break;
        i += symbol ? 3 : 1;
        const uint32_t at = trie_value(v.added_trie, node);
        if (at < v.added.n / 2 && (word(v.added, 2 * uint64_t{at} + 1) & mask) == want)
            best = {at, i};
    }
    return best;
}
// Longest keys of a trie become their strings: SentencePiece's rules, lower-casing, BERT's cleaning
// ... A string is a length byte and its bytes; a value is where it stands.
static bool replace(const Span& trie, const Span& pool, const char* p, uint64_t n, bool shortest,
                    Output& out, uint32_t* size)
{
    const Match m = trie_longest(trie, p, n, 0, shortest);
    const uint64_t room = 4 * uint64_t{pool.n};
    *size = m.size;
    if (!m.size || m.value >= room || pool.data[m.value] >= room - m.value) return false;
    out.add(chars(pool.data) + m.value + 1, pool.data[m.value]);
    return true;
}
// A grapheme cluster (Unicode annex 29) as far as its first 6 bytes need it. Classes: 1 a mark that
// extends one, 2 one that precedes its base, 3 a control character.
static uint64_t cluster_size(const Span& classes, const char* p, uint64_t n)
{
    uint64_t at = 0;
    uint32_t size = 0, kind = 2;
    if (n > 1 && p[0] == '\r' && p[1] == '\n') return 2;
    for (; at < n && kind == 2; at += size) {
        kind = class_of(classes, code_at(p + at, n - at, &size));
        if (kind == 3) return at ? at : size;
    }
    while (at < n && class_of(classes, code_at(p + at, n - at, &size)) == 1) at += size;
    return at;
}
// With `clusters` the rules of SentencePiece as Hugging Face's Precompiled has them: the shortest
// rule that begins a cluster of less than 6 bytes replaces all of it, others go by characters.
static void map_text(const Vocabulary& v, const Span& s, bool clusters, Text in, Output& out)
{
    const uint32_t flags = word(s, 0), units = word(s, 1), n_classes = clusters ? word(s, 2) : 0;
    const uint32_t from = clusters ? 3 : 2, to = from + units + n_classes;
    const Span trie = part(s, from, units), classes = part(s, from + units, n_classes);
    const Span pool = part(s, to, s.n - to);
    uint64_t next = 0;                                         // where the next cluster begins
    for (uint64_t i = 0; i < in.size && !out.full;) {
        const char* const p = in.data + i;
        const uint64_t n = in.size - i;
        uint32_t size, good;
        if (flags & map_keeps_symbols)
            if (const Match m = added_at(v, p, n, added_symbol, added_symbol, true); m.size) {
                out.add(p, m.size);
                i += m.size;
                continue;
            }
        const uint64_t whole = clusters && i >= next ? cluster_size(classes, p, n) : 0;
        next += whole;
        if (whole && whole < 6 && replace(trie, pool, p, whole, true, out, &size)) {
            i = next;
            continue;
        }
        if (!replace(trie, pool, p, clusters ? char_size(p, n) : n, clusters, out, &size)) {
            size = utf8_length(p, n, &good);
            if (size || !(flags & (map_replaces_invalid | map_drops_invalid)))
                out.add(p, size = most(size, 1u));
            else if (flags & map_replaces_invalid) out.add(replacement, 3);
        }
        i += most(size, 1u);
    }
}
// NFC, NFKC, NFD, NFKD (Unicode annex 15): flags (1: compose), units of the trie, number of class
// words; the trie maps a character to its full decomposition, and 0xff with two characters to the
// one that they compose; class 255: a starter that is not left alone.
static void compose_text(const Span& s, Text in, Output& out, Output rough)
{
    const uint32_t units = word(s, 1), n_classes = word(s, 2);
    const Span trie = part(s, 3, units), classes = part(s, 3 + units, n_classes),
               pool = part(s, 3 + units + n_classes, s.n - 3 - units - n_classes);
    uint32_t size = 0, good = 0;
    bool quick = true;
    for (uint64_t i = 0; i < in.size && quick; i += size) {
        size = 1;
        quick = static_cast<unsigned char>(in.data[i]) < 0x80 ||
                class_of(classes, code_at(in.data + i, in.size - i, &size)) == 0;
    }
    if (quick) return out.add(in.data, in.size);
    for (uint64_t i = 0; i < in.size; i += size) {             // 1. decompose
        const uint32_t c = code_at(in.data + i, in.size - i, &size), hangul = c - 0xac00;
        char jamo[9];
        if (hangul < 11172) {
            uint32_t n = put_code(0x1100 + hangul / 588, jamo);
            n += put_code(0x1161 + hangul % 588 / 28, jamo + n);
            if (hangul % 28) n += put_code(0x11a7 + hangul % 28, jamo + n);
            rough.add(jamo, n);
        } else if (!replace(trie, pool, in.data + i, size, false, rough, &good))
            rough.add(in.data + i, size);
    }
    const uint64_t from = out.size;
    for (uint64_t i = 0; i < rough.size;) { // 2. marks in the order of their classes: one pass for
                                            // each class that is there
        uint64_t end = i;
        for (uint32_t done = 0, next = 1; next; done = next) { // a stable sort in bounded time
            next = 0;
            for (uint64_t j = i; j < rough.size; j += size) {
                const uint32_t c =
                    class_of(classes, code_at(rough.data + j, rough.size - j, &size)) % 255;
                if (!c && (done || next || j > i)) break;
                end = most(end, j + size);
                if (!c) {
                    if (!done) out.add(rough.data + j, size);
                    break;
                }
                if (c > done && (!next || c < next)) next = c;
            }
            for (uint64_t j = i; next && j < end; j += size)
                if (class_of(classes, code_at(rough.data + j, rough.size - j, &size)) % 255 == next)
                    out.add(rough.data + j, size);
        }
        i = most(end, i + 1);
    }
    if (!(word(s, 0) & 1) || out.full || rough.full) {
        out.full = out.full || rough.full;
        return;
    }
    char starter[1 + 8 + 4]; // 3. compose: starter and mark, unless another mark between blocks it
    uint32_t n_starter = 0, last = 0;
    uint64_t to = from, end = out.size;
    Output kept = {rough.data, 0, rough.capacity, false};
    starter[0] = static_cast<char>(0xff);
    const auto flush = [&](uint64_t limit) {
        if (to + n_starter + kept.size > limit)
            return false; // only if a composed character is longer than its parts
        memcpy(out.data + to, starter + 1, n_starter);
        memcpy(out.data + to + n_starter, kept.data, static_cast<size_t>(kept.size));
        to += n_starter + kept.size;
        kept.size = n_starter = last = 0;
        return true;
    };
    for (uint64_t i = from; i < end; i += size) {
        const char* const p = out.data + i;
        const uint32_t c = code_at(p, end - i, &size), mark = class_of(classes, c) % 255,
                       before = code_at(starter + 1, n_starter, &good);
        if (n_starter && (kept.size == 0 || (mark && last < mark))) {
            uint32_t made = 0;
            if (c - 0x1161 < 21 && before - 0x1100 < 19)
                made = put_code(0xac00 + (before - 0x1100) * 588 + (c - 0x1161) * 28, starter + 1);
            else if (c - 0x11a8 < 27 && before - 0xac00 < 11172 && (before - 0xac00) % 28 == 0)
                made = put_code(before + c - 0x11a7, starter + 1);
            else {
                memcpy(starter + 1 + n_starter, p, size);
                const uint32_t at = trie_find(trie, starter, 1 + n_starter + size);
                const uint64_t room = 4 * uint64_t{pool.n};
                if (at < room && pool.data[at] && pool.data[at] <= 4 && pool.data[at] < room - at)
                    memcpy(starter + 1, pool.data + at + 1, made = pool.data[at]);
            }
            if (made) {
                n_starter = made;
                continue;
            }
        }
        if (mark) {
            kept.add(p, size);
            last = mark;
            continue;
        }
        char own[4];
        memcpy(own, p, size);
        if (!flush(i)) out.full = true;
        memcpy(starter + 1, own, n_starter = size);
    }
    if (!flush(end)) out.full = true;
    out.size = to;
}
// SentencePiece's rules for white space, Normalizer::Normalize in its normalizer.cc.
static void spaces_text(uint32_t flags, Text in, Output& out)
{
    const bool collapse = (flags & spaces_collapse) != 0, suffix = (flags & spaces_suffix) != 0;
    uint64_t i = 0;
    while (collapse && i < in.size && in.data[i] == ' ') i++;
    if (i == in.size) return;
    if (flags & spaces_prefix && !suffix) out.add(" ", 1);
    for (bool space = collapse; i < in.size; i++) {
        const bool blank = in.data[i] == ' ', symbol = is_symbol(in.data + i, in.size - i);
        if (!blank || !space) out.add(symbol ? " " : in.data + i, 1);
        space = blank && collapse;
        i += symbol ? 2 : 0;
    }
    while (collapse && out.size && out.data[out.size - 1] == ' ') out.size--;
    if (flags & spaces_prefix && suffix) out.add(" ", 1);
}
static void step_text(const Vocabulary& v, Step kind, const Span& s, bool at_start, Text in,
                      Output& out, Output scratch)
{
    const uint32_t flags = s.n ? word(s, 0) : 0;
    const Text payload = {chars(s.data) + 8, s.n > 1 ? word(s, 1) : 0};
    if (kind == Step::map || kind == Step::clusters)
        return map_text(v, s, kind == Step::clusters, in, out);
    if (kind == Step::compose) return compose_text(s, in, out, scratch);
    if (kind == Step::spaces) return spaces_text(flags, in, out);
    uint64_t first = 0, end = in.size;
    if (kind == Step::strip) {
        uint32_t size;
        while (flags & strip_left && first < end &&
               is_space(code_at(in.data + first, end - first, &size)))
            first += size;
        for (uint64_t at = end, begin; flags & strip_right && at > first; at = end = begin) {
            for (begin = at - 1;
                 begin > first && at - begin < 4 && (in.data[begin] & 0xc0) == 0x80;)
                begin--;
            if (!is_space(code_at(in.data + begin, at - begin, &size))) break;
        }
        return out.add(in.data + first, end - first);
    }
    if (kind == Step::prefix &&
        flags & prefix_words) { // each word between white space, with the prefix
        uint32_t size = 0;
        for (bool inside = false; first < end; first += size) {
            const bool space = is_space(code_at(in.data + first, end - first, &size)),
                       symbol = is_symbol(in.data + first, size);
            if (!space && !inside && !symbol) out.add(payload.data, payload.size);
            if (!space) out.add(symbol ? " " : in.data + first, symbol ? 1 : size);
            inside = !space;
        }
        return;
    }
    const bool escapes = kind == Step::escape || (kind == Step::prefix && flags & prefix_escapes);
    if (kind == Step::prefix && in.size && (!(flags & prefix_at_start) || at_start)) {
        const bool there = in.size >= payload.size &&
                           memcmp(in.data, payload.data, static_cast<size_t>(payload.size)) == 0;
        const bool blank = escapes && (in.data[0] == ' ' || is_symbol(in.data, in.size));
        if (!(flags & prefix_unless_there) || !(there || blank))
            out.add(payload.data, payload.size);
    }
    for (uint64_t i = 0; i < in.size; i++) {
        const char* const p = in.data + i;
        if (kind == Step::collapse && *p == ' ' && i + 1 < in.size && p[1] == ' ') {
            while (i + 1 < in.size && in.data[i + 1] == ' ') i++;
            out.add(payload.data, payload.size);
        } else if (escapes && is_symbol(p, in.size - i)) {
            out.add(" ", 1);
            i += 2;
        } else out.add(p, 1);
    }
}

// ---- Words ----

struct Encoder {
    const Vocabulary& v;
    TokenizeOptions options;
    Output buffer[2], scratch; // normalised text; the model's memory
    int32_t* ids;
    int32_t* types;                                            // or null
    uint64_t count, fuel; // ids so far; steps that the automata may still take
    uint32_t capacity;
    int32_t type;
    bool unknown;                                              // the last id was the unknown one
    Status status;
    void add(uint32_t id)
    {
        if (count < capacity) {
            ids[count] = static_cast<int32_t>(id);
            if (types) types[count] = type;
        }
        count++;
        unknown = false;
    }
};

// What no token stands for: its bytes, or the unknown token (one for a run of them, if so), or
// nothing.
static void add_unknown(Encoder& e, const char* p, uint64_t n)
{
    const Vocabulary& v = e.v;
    const bool blanks = v.kind == VocabularyKind::sentencepiece_bpe ||
                        v.kind == VocabularyKind::unigram;
    bool all = v.flags & vocabulary_byte_fallback && v.bytes.n;
    for (uint32_t pass = 0; pass < 2 && all; pass++)
        for (uint64_t i = 0; i < n; i++) {
            const bool blank = blanks && p[i] == ' ';
            for (uint32_t j = 0; j < (blank ? 3 : 1); j++) {
                const uint32_t id = word(
                    v.bytes, static_cast<unsigned char>(blank ? space_symbol[j] : p[i]));
                if (pass) e.add(id);
                else all = all && id != no_word;
            }
        }
    if (all || v.unknown < 0 || (e.unknown && v.flags & vocabulary_fuse_unknown)) return;
    e.add(static_cast<uint32_t>(v.unknown));
    e.unknown = true;
}

// BPE [22]: characters (or bytes), then always the adjacent pair of the best rank, the leftmost of
// equals. A heap of candidates makes it O(n log n). Pairs are those listed in `merges`, or, where
// there are none (SentencePiece), any whose text is a token, by its score.
struct Symbol {
    uint32_t begin, size, before, after;
    int32_t id;
}; // size 0: merged into an earlier one
struct Candidate { uint32_t rank, left, size; int32_t id; };
struct Merger {
    const Vocabulary& v;
    const char* text;
    Symbol* symbols;
    Candidate* heap;
    uint32_t n_heap;
};
static bool better(const Candidate& a, const Candidate& b)
{
    return a.rank < b.rank || (a.rank == b.rank && a.left < b.left);
}

static uint32_t pair_hash(uint32_t left, uint32_t right, uint32_t n_slots)
{
    uint32_t h = left * 0x9e3779b1u ^ right * 0x85ebca77u;
    h = (h ^ h >> 15) * 0x2c1b3c6du;
    return static_cast<uint32_t>((uint64_t{h ^ h >> 13} * n_slots) >> 32);
}
static bool join(const Merger& m, const Symbol& a, const Symbol& b, Candidate* c)
{
    const Vocabulary& v = m.v;
    c->size = a.size + b.size;
    if (v.merges.n) {
        const uint32_t n = v.merges.n / 4, left = static_cast<uint32_t>(a.id),
                       right = static_cast<uint32_t>(b.id);
        if (a.id < 0 || b.id < 0) return false;
        for (uint32_t slot = pair_hash(left, right, n), probe = 0; probe < 256;
             probe++, slot = slot + 1 == n ? 0 : slot + 1) {
            const Span s = part(v.merges, 4 * slot, 4);
            if (word(s, 0) == no_word) return false;
            if (word(s, 0) != left || word(s, 1) != right) continue;
            c->rank = word(s, 2);
            c->id = static_cast<int32_t>(word(s, 3));
            return true;
        }
        return false;
    }
    const uint32_t id = trie_find(v.trie, m.text + a.begin, c->size) & 0xffffffu;
    if (id >= v.n_tokens) return false;
    const uint32_t score = bits_of(v.scores.n ? of_bits(word(v.scores, id)) + 0.0f : 0.0f);
    c->rank = ~(score >> 31 ? ~score : score | 1u << 31);      // the highest score first
    c->id = static_cast<int32_t>(id);
    return true;
}
static void push_pair(Merger& m, uint32_t left, uint32_t right)
{
    Candidate c;
    if (left == no_word || right == no_word || !join(m, m.symbols[left], m.symbols[right], &c))
        return;
    c.left = left;
    uint32_t i = m.n_heap++;
    for (; i && better(c, m.heap[(i - 1) / 2]); i = (i - 1) / 2) m.heap[i] = m.heap[(i - 1) / 2];
    m.heap[i] = c;
}
static Candidate pop_pair(Merger& m)
{
    const Candidate top = m.heap[0], last = m.heap[--m.n_heap];
    uint32_t i = 0;
    for (uint32_t child = 1; child < m.n_heap; child = 2 * i + 1) {
        if (child + 1 < m.n_heap && better(m.heap[child + 1], m.heap[child])) child++;
        if (!better(m.heap[child], last)) break;
        m.heap[i] = m.heap[child];
        i = child;
    }
    if (m.n_heap) m.heap[i] = last;
    return top;
}
static void bpe(Encoder& e, const char* p, uint32_t n)
{
    const Vocabulary& v = e.v;
    const uint32_t whole = trie_find(v.trie, p, n), id = whole & 0xffffffu;
    if (whole != no_word && whole & trie_whole && id < v.n_tokens) return e.add(id);
    Merger m = {v, p, static_cast<Symbol*>(static_cast<void*>(e.scratch.data)), nullptr, 0};
    uint32_t count = 0;
    const bool byte_level = v.kind == VocabularyKind::byte_bpe;
    for (uint32_t i = 0, size; i < n; i += size) {
        size = byte_level ? 1 : char_size(p + i, n - i);
        const uint32_t value = byte_level
                                   ? (v.bytes.n ? word(v.bytes, static_cast<unsigned char>(p[i]))
                                                : no_word)
                                   : trie_find(v.trie, p + i, size);
        const uint32_t token = value == no_word ? no_word : value & 0xffffffu;
        if (token >= v.n_tokens && byte_level && v.unknown < 0)
            continue; // a byte without a token is left out
        m.symbols[count] = {i, size, count ? count - 1 : no_word, count + 1,
                            token < v.n_tokens ? static_cast<int32_t>(token) : -1};
        count++;
    }
    if (!count) return;
    m.symbols[count - 1].after = no_word;
    m.heap = static_cast<Candidate*>(
        static_cast<void*>(m.symbols + count)); // each merge takes one candidate and adds two
    for (uint32_t i = 1; i < count; i++) push_pair(m, i - 1, i);
    while (m.n_heap) {
        const Candidate c = pop_pair(m);
        Symbol& left = m.symbols[c.left];
        if (!left.size || left.after == no_word || left.size + m.symbols[left.after].size != c.size)
            continue; // out of date
        Symbol& right = m.symbols[left.after];
        left.size = c.size;
        left.id = c.id;
        left.after = right.after;
        right.size = 0;
        if (left.after != no_word) m.symbols[left.after].before = c.left;
        push_pair(m, left.before, c.left);
        push_pair(m, c.left, left.after);
    }
    for (uint32_t i = 0; i != no_word; i = m.symbols[i].after) {
        const Symbol& s = m.symbols[i];
        if (s.id >= 0) e.add(static_cast<uint32_t>(s.id));
        else add_unknown(e, p + s.begin, s.size);
    }
}

// Unigram [21]: the path of the highest sum of scores, Model::EncodeOptimized of sentencepiece:
// sums are rounded to float, of equal sums the first found (the longest last token) stays. Hugging
// Face's tokenizers keep sums in double.
struct Best {
    uint32_t score[2], begin;
    int32_t id;
}; // of the paths that end here; the score is a double
static void unigram(Encoder& e, const char* p, uint32_t n)
{
    const Vocabulary& v = e.v;
    const bool doubles = (v.flags & vocabulary_double_scores) != 0;
    Best* const best = static_cast<Best*>(static_cast<void*>(e.scratch.data));
    for (uint32_t i = 0; i <= n; i++) best[i] = {{0, 0}, no_word, -1};
    const auto offer = [&](uint32_t begin, uint32_t end, int32_t id, double sum) {
        Best& b = best[end];
        double before;
        memcpy(&before, b.score, sizeof before);
        if (!doubles) sum = static_cast<double>(static_cast<float>(sum));
        if (b.begin != no_word && !(sum > before)) return;
        memcpy(b.score, &sum, sizeof sum);
        b.begin = begin;
        b.id = id;
    };
    for (uint32_t i = 0; i < n;) {
        const uint32_t size = char_size(p + i, n - i);
        double so_far;
        memcpy(&so_far, best[i].score, sizeof so_far);
        bool single = false;
        uint32_t node = 0;
        for (uint32_t j = i; j < n && j - i < longest_key && trie_child(v.trie, &node, p[j]);) {
            j++;
            const uint32_t id = trie_value(v.trie, node) & 0xffffffu;
            if (id >= v.n_tokens || v.types[id] == static_cast<uint8_t>(TokenType::unused))
                continue;
            const bool symbol = v.types[id] == static_cast<uint8_t>(TokenType::user_defined);
            const float bonus = static_cast<float>(j - i) * v.symbol_score;
            offer(i, j, static_cast<int32_t>(id),
                  (symbol ? static_cast<double>(bonus) - 0.1
                          : static_cast<double>(of_bits(word(v.scores, id)))) +
                      so_far);
            single = single || j - i == size;
        }
        if (!single) offer(i, i + size, -1, static_cast<double>(v.unknown_score) + so_far);
        i += size;
    }
    uint32_t next = no_word; // the links run backwards: turn them round
    for (uint32_t at = n, before; at; at = before) {
        before = best[at].begin;
        best[at].begin = next;
        next = at;
        if (before >= at) return; // cannot be: every character was reached
    }
    for (uint32_t at = 0; next != no_word; next = best[next].begin) {
        if (best[next].id >= 0) e.add(static_cast<uint32_t>(best[next].id));
        else add_unknown(e, p + at, next - at);
        at = next;
    }
}

// WordPiece [25]: the longest token that begins the word, then the longest continuations; a word
// with a gap is unknown as a whole.
static void wordpiece(Encoder& e, const char* p, uint32_t n)
{
    const uint64_t count = e.count;
    uint32_t n_chars = 0, inside = 0;
    for (uint32_t i = 0; i < n; i += char_size(p + i, n - i)) n_chars++;
    const bool continues = trie_child(e.v.trie, &inside, '#') && trie_child(e.v.trie, &inside, '#');
    bool good = n_chars <= e.v.longest_word;
    for (uint32_t i = 0; i < n && good;) {
        const Match m = trie_longest(e.v.trie, p + i, n - i, i ? inside : 0);
        good = m.size && (!i || continues) && (m.value & 0xffffffu) < e.v.n_tokens;
        if (good) e.add(m.value & 0xffffffu);
        i += m.size;
    }
    if (good) return;
    e.count = count;
    if (e.v.unknown >= 0) e.add(static_cast<uint32_t>(e.v.unknown));
}

static void model_text(Encoder& e, const char* p, uint64_t size)
{
    const uint32_t n = static_cast<uint32_t>(size);
    if (e.v.kind == VocabularyKind::unigram) return unigram(e, p, n);
    if (e.v.kind == VocabularyKind::wordpiece) return wordpiece(e, p, n);
    if (!(e.v.flags & vocabulary_words)) return bpe(e, p, n);
    for (uint32_t begin = 0, end = 1; begin < n;
         end++) { // no token has a blank behind another character: words are apart
        if (end < n && (p[end] != ' ' || p[end - 1] == ' ')) continue;
        bpe(e, p + begin, end - begin);
        begin = end;
    }
}

// Where the automaton's match at `begin` ends; `begin` if there is none. It reads one character
// further than it matches, the class n_classes - 1 at the end of the text: that is how lookahead
// works.
static uint64_t run_stage(Encoder& e, const Stage& s, const char* p, uint64_t begin, uint64_t end)
{
    const Span ranges_of = part(e.v.classes, 32, e.v.classes.n - 32);
    uint64_t best = begin;
    for (uint64_t at = begin, state = 1; e.fuel; e.fuel--) {
        uint32_t size = 1, which = s.n_classes - 1;
        if (at < end) {
            const uint32_t c = static_cast<unsigned char>(p[at]);
            which = c < 0x80 ? e.v.classes.data[c]
                             : class_of(ranges_of, code_at(p + at, end - at, &size));
        }
        const uint32_t next = load_u16(s.table + 2 * (state * s.n_classes + which));
        if (next & 0x8000) best = at;
        state = next & 0x7fff;
        if (!state || at == end) break;
        at += size;
    }
    return best;
}
// Each stage cuts the pieces of the one before into matches and what lies between them.
static void split_text(Encoder& e, const char* p, uint64_t size)
{
    Stage stages[max_stages];
    uint64_t ends[max_stages + 1];
    uint32_t n_stages = 0, depth = 0;
    records(e.v.split, [&](uint32_t flags, const Span& s) {
        stages[n_stages++] = {s.data + 8, word(s, 1), flags};
        return true;
    });
    ends[0] = size;
    for (uint64_t at = 0; at < size; at = ends[depth]) {
        while (depth && ends[depth] == at) depth--;
        bool dropped = false;
        for (; depth < n_stages && !dropped; depth++) {
            uint64_t end = run_stage(e, stages[depth], p, at, ends[depth]);
            const bool match = end > at;
            while (!match && end < ends[depth]) {
                end += char_size(p + end, ends[depth] - end);
                if (end < ends[depth] && run_stage(e, stages[depth], p, end, ends[depth]) > end)
                    break;
            }
            ends[depth + 1] = end;
            dropped = (stages[depth].flags & (match ? 1 : 2)) != 0;
        }
        if (n_stages) e.unknown = false;
        if (!dropped) model_text(e, p + at, ends[depth] - at);
    }
    if (!e.fuel && e.status)
        e.status = {Code::bad_vocabulary, "splitting the text takes longer than its length allows",
                    "split", size};
}

// Runs the steps of one phase; the result stands in the text itself or in a buffer other than the
// one that it came from.
static Text normalise(Encoder& e, Text text, bool late, bool at_start)
{
    records(e.v.normal, [&](uint32_t kind, const Span& s) {
        if ((kind >= static_cast<uint32_t>(Step::late)) != late) return true;
        Output& out = e.buffer[text.data == e.buffer[0].data ||
                               (late && text.data >= e.buffer[0].data &&
                                text.data < e.buffer[0].data + e.buffer[0].capacity)];
        out.size = 0;
        step_text(e.v, static_cast<Step>(kind & ~static_cast<uint32_t>(Step::late)), s, at_start,
                  text, out, e.scratch);
        if (out.full && e.status)
            e.status = {Code::bad_vocabulary, "normalised text grows more than the vocabulary says",
                        "growth", e.v.growth};
        text = {out.data, out.size};
        return !late; // one late step, for the other buffer may hold what it came from
    });
    return text;
}

// Cuts added tokens out of text; what lies between goes on. `normal`: the text is normalised.
// Hugging Face's AddedVocabulary.
static void cut_text(Encoder& e, Text text, bool normal, bool at_start)
{
    uint32_t mask = added_normal | added_symbol;
    if (!e.options.parse_special) mask |= added_special;
    for (uint64_t begin = 0, end = 0; begin < text.size || end < text.size;) {
        Match m = {no_word, 0};
        for (; end < text.size; end++) {
            m = added_at(e.v, text.data + end, text.size - end, mask,
                         normal ? uint32_t{added_normal} : 0, false);
            if (!m.size && normal && e.v.kind == VocabularyKind::sentencepiece_bpe)
                m = added_at(e.v, text.data + end, text.size - end, mask, added_symbol, false);
            if (m.size) break;
        }
        uint64_t stop = end + m.size, left = end;
        const uint32_t flags = m.size ? word(e.v.added, 2 * uint64_t{m.value} + 1) : 0;
        uint32_t size;
        while (flags & added_strips_left &&
               left > begin) { // blanks before and behind belong to such a token
            uint64_t at = left - 1;
            while (at > begin && left - at < 4 && (text.data[at] & 0xc0) == 0x80) at--;
            if (!is_space(code_at(text.data + at, left - at, &size))) break;
            left = at;
        }
        while (flags & added_strips_right && stop < text.size &&
               is_space(code_at(text.data + stop, text.size - stop, &size)))
            stop += size;
        const Text between = {text.data + begin, left - begin};
        if (between.size && normal) {
            const Text word_text = normalise(e, between, true, at_start && !begin);
            split_text(e, word_text.data, word_text.size);
        } else if (between.size)
            cut_text(e, normalise(e, between, false, at_start && !begin), true, at_start && !begin);
        if (m.size) e.add(word(e.v.added, 2 * uint64_t{m.value}));
        begin = end = stop;
        if (!m.size) break;
    }
}

struct WorkSizes { uint64_t bytes, buffers, model; };
static WorkSizes work_sizes(const Vocabulary& v, uint64_t n)
{
    const uint64_t bytes = round_up(n * v.growth + 2 * max_prefix, 8),
                   n_chars = n * v.growth_chars + 2 * max_prefix;
    const bool merges = v.kind == VocabularyKind::byte_bpe ||
                        v.kind == VocabularyKind::sentencepiece_bpe;
    const uint64_t model = merges ? n_chars * (sizeof(Symbol) + 2 * sizeof(Candidate))
                           : v.kind == VocabularyKind::unigram ? (bytes + 1) * sizeof(Best)
                                                               : 0;
    return {bytes, v.n_steps < 2 ? v.n_steps : 2, most(model, v.n_steps ? bytes : 0)};
}
TRANSFORMER_API uint64_t tokenize_size(const Vocabulary& v, uint64_t n)
{
    const WorkSizes w = work_sizes(v, n);
    return w.bytes * w.buffers + w.model;
}

static bool begins_with_bos(const Vocabulary& v, const TokenizeOptions& options, const char* text,
                            uint64_t n, uint32_t id)
{
    uint32_t size;
    const char* const bos = token_text(v, v.bos, &size);
    if (!options.parse_special || v.bos < 0 || id != static_cast<uint32_t>(v.bos)) return false;
    return size && size <= n && memcmp(text, bos, size) == 0;
}

TRANSFORMER_API Status tokenize_pair(const Vocabulary& v, const char* a, uint64_t n_a,
                                     const char* b, uint64_t n_b, const TokenizeOptions& options,
                                     void* work, uint64_t work_size, int32_t* ids, int32_t* types,
                                     uint32_t capacity, uint32_t* count)
{
    *count = 0;
    if (!has(Feature::tokenizer))
        return {Code::not_supported, "this build leaves out the tokenizer", "TRANSFORMER_FEATURES", 0};
    const uint64_t n = most(n_a, n_b);
    if (v.kind == VocabularyKind::none)
        return {Code::bad_vocabulary, "the checkpoint holds no vocabulary", "vocabulary", 0};
    if (n_a >= 1u << 30 || n_b >= 1u << 30 || n * v.growth >= 1u << 31)
        return {Code::bad_argument, "the text is too long", "text", n};
    const WorkSizes w = work_sizes(v, n);
    if (work_size < tokenize_size(v, n))
        return {Code::memory_too_small, "tokenize() needs more memory", "work",
                tokenize_size(v, n)};
    if (reinterpret_cast<uintptr_t>(work) % 4)
        return {Code::misaligned, "the work memory must lie at a multiple of 4 bytes", "work", 0};
    char* const memory = static_cast<char*>(work);
    char* const model = memory + w.bytes * w.buffers;
    const Output one = {memory, 0, w.bytes, false}, scratch = {model, 0, w.bytes, false};
    const Output two = {w.buffers ? model - w.bytes : memory, 0, w.bytes, false};
    const uint64_t fuel = 4096 + 256 * w.bytes;
    Encoder e = {v, options, {one, two}, scratch, ids, types, 0, fuel, capacity, 0, false, {}};
    const uint32_t n_single = v.layout.n ? word(v.layout, 0) : 0;
    const uint32_t first = b ? 1 + n_single : 1, end = b ? most(v.layout.n, first) : 1 + n_single;
    bool seen = false;
    for (uint32_t i = first; i <= end; i++) { // the layout; without one the texts stand alone
        const uint32_t item = i < end ? word(v.layout, i) : layout_a, id = item & 0xffffffu;
        if (i == end && seen) break;
        e.type = i < end ? static_cast<int32_t>(item >> 24) : 0;
        e.unknown = false;
        if (id < layout_b) {
            const bool again = options.single_bos && i == first &&
                               begins_with_bos(v, options, a, n_a, id);
            if (options.add_special && !again) e.add(id);
            continue;
        }
        seen = true;
        if (id == layout_a) cut_text(e, {a, n_a}, false, true);
        if (b && (id == layout_b || first >= end)) cut_text(e, {b, n_b}, false, true);
    }
    if (!e.status) return e.status;
    if (e.count > capacity)
        return {Code::memory_too_small, "more tokens than the array holds", "ids", e.count};
    *count = static_cast<uint32_t>(e.count);
    return {};
}
TRANSFORMER_API Status tokenize(const Vocabulary& v, const char* text, uint64_t n,
                                const TokenizeOptions& options, void* work, uint64_t work_size,
                                int32_t* ids, uint32_t capacity, uint32_t* count)
{
    return tokenize_pair(v, text, n, nullptr, 0, options, work, work_size, ids, nullptr, capacity,
                         count);
}

// ---- Back to text ----

// Give the whole characters of text, hold back an unfinished tail of at most 3 bytes.
static bool emit_characters(Decoder& d, const char* text, uint32_t n, Emit emit, void* user)
{
    uint32_t i = 0, good;
    while (d.n_pending && i < n) { // complete what an earlier token began, or give it up
        d.pending[d.n_pending] = text[i];
        const uint32_t size = utf8_length(d.pending, d.n_pending + 1u, &good);
        if (size || good > d.n_pending) {
            d.n_pending++;
            i++;
            if (!size) continue;
        }
        if (!detokenize_flush(d, emit, user)) return false;
    }
    uint32_t from = i;
    while (i < n) {
        const uint32_t size = utf8_length(text + i, n - i, &good);
        if (!size && i + good == n &&
            (static_cast<unsigned char>(text[i]) >= 0xc2 &&
             static_cast<unsigned char>(text[i]) < 0xf5))
            break;
        if (!size && d.replace_invalid) {
            if (i > from && !emit(user, text + from, i - from)) return false;
            for (uint32_t k = 0; k < (d.each_byte ? good : 1); k++)
                if (!emit(user, replacement, 3)) return false;
            from = i + good;
        }
        i += size ? size : good;
    }
    if (i > from && !emit(user, text + from, i - from)) return false;
    for (; i < n; i++) d.pending[d.n_pending++] = text[i];
    return true;
}

// SentencePiece: DecodeSentencePiece in sentencepiece_processor.cc. WordPiece: Hugging Face's
// decoder with its cleaning up.
TRANSFORMER_API bool detokenize(const Vocabulary& v, Decoder& d, int32_t id, Emit emit, void* user)
{
    uint32_t n;
    const char* text = token_text(v, id, &n);
    if (id < 0 || static_cast<uint32_t>(id) >= v.n_tokens) return true;
    const TokenType type = static_cast<TokenType>(v.types[id]);
    if (type == TokenType::control && !d.special) return true;
    const bool strips = v.flags & (vocabulary_dummy_prefix | vocabulary_collapse_spaces) &&
                        (type == TokenType::normal || type == TokenType::user_defined ||
                         type == TokenType::unused);
    d.each_byte = v.kind == VocabularyKind::sentencepiece_bpe || v.kind == VocabularyKind::unigram;
    if (v.kind == VocabularyKind::wordpiece) {
        static const char glued[] = ".\0?\0!\0,\0n't\0'm\0's\0've\0're\0";
        bool blank = d.started;
        if (d.started && n >= 2 && text[0] == '#' && text[1] == '#') {
            text += 2;
            n -= 2;
            blank = false;
        }
        for (const char* g = glued; *g && v.flags & vocabulary_cleans_up; g += strlen(g) + 1)
            blank = blank && !(n == strlen(g) && memcmp(text, g, n) == 0);
        if (blank && !emit_characters(d, " ", 1, emit, user)) return false;
    } else if (!d.started && strips && n && *text == ' ') { // the blank that tokenize() put there
        text++;
        n--;
        d.started = !(v.flags & vocabulary_collapse_spaces);
    }
    d.started = d.started || n || v.kind == VocabularyKind::wordpiece;
    return emit_characters(d, text, n, emit, user);
}

TRANSFORMER_API bool detokenize_flush(Decoder& d, Emit emit, void* user)
{
    const uint32_t n = d.n_pending;
    uint32_t good;
    d.n_pending = 0;
    if (!n) return true;
    if (!d.replace_invalid || utf8_length(d.pending, n, &good) == n)
        return emit(user, d.pending, n);
    for (uint32_t k = 0; k < (d.each_byte ? n : 1); k++)
        if (!emit(user, replacement, 3)) return false;
    return true;
}

// >> 22 Sampler -------------------------------------------------------------------------------------------------------

static uint32_t next_random(uint64_t& state)                   // xorshift64*
{
    if (!state) state = 0x9e3779b97f4a7c15u;
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return static_cast<uint32_t>((state * 0x2545f4914f6cdd1du) >> 32);
}

// Probabilities as integers, so that sums are exact and have no order: w in [0, 1] as multiples of 2^-40.
static uint64_t fixed(float w) { return w > 0 ? static_cast<uint64_t>(w * 1099511627776.0f) : 0; }

// Keep the largest weights, as few as make `measure` (of those kept) reach `need`; among equals the lowest ids. Finds the
// threshold by halving the bit patterns, which are ordered as the weights are.
static void keep_largest(float* w, uint32_t n, uint64_t need, bool by_count)
{
    uint32_t low = 0, high = 0x3f800001u;                      // measure(>= low) reaches the need, measure(>= high) does not
    const auto measure = [&](float above) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < n; i++)
            if (w[i] >= above) sum += by_count ? 1 : fixed(w[i]);
        return sum;
    };
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        (measure(of_bits(middle)) >= need ? low : high) = middle;
    }
    const float threshold = of_bits(low);
    uint64_t kept = measure(of_bits(high));
    for (uint32_t i = 0; i < n; i++) {
        if (w[i] > threshold) continue;
        if (w[i] < threshold || kept >= need) w[i] = 0;
        else kept += by_count ? 1 : fixed(w[i]);
    }
}

TRANSFORMER_API Status sample(Sampler& s, float* logits, uint32_t n, int32_t* token)
{
    const bool penalty = s.repeat_penalty < 1.0f || s.repeat_penalty > 1.0f;
    if (!n) return {Code::bad_argument, "no logits", "n", 0};
    if (!has(Feature::sampling) && (penalty || s.temperature > 0))
        return {Code::not_supported, "this build is greedy: temperature 0, no penalty", "sampler.temperature", 0};
    for (uint32_t i = 0, recent = least(s.n_recent, 64u); has(Feature::sampling) && penalty && i < recent; i++) {
        bool seen = false;
        for (uint32_t j = 0; j < i; j++) seen = seen || s.recent[j] == s.recent[i];
        if (seen || s.recent[i] < 0 || static_cast<uint32_t>(s.recent[i]) >= n) continue;
        float& x = logits[s.recent[i]];
        x = x > 0 ? x / s.repeat_penalty : x * s.repeat_penalty;
    }
    for (uint32_t i = 0; i < n; i++)
        if (bits_of(logits[i]) << 1 > 0xff000000u)
            return {Code::not_a_number, "a logit is NaN: the model's numbers are broken", "logits", i};
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    if (has(Feature::sampling) && s.temperature > 0) {
        const float top = logits[best];
        uint64_t total = 0;
        for (uint32_t i = 0; i < n; i++) logits[i] = logits[i] >= top ? 1.0f : exp_f32((logits[i] - top) / s.temperature);
        if (s.top_k && s.top_k < n) keep_largest(logits, n, s.top_k, true);
        for (uint32_t i = 0; i < n; i++) total += fixed(logits[i]);
        if (s.top_p < 1.0f) {
            const double part = static_cast<double>(s.top_p > 0 ? s.top_p : 0.0f) * static_cast<double>(total);
            keep_largest(logits, n, most<uint64_t>(static_cast<uint64_t>(part), 1), false);
        }
        total = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (logits[i] < s.min_p) logits[i] = 0;
            total += fixed(logits[i]);
        }
        uint64_t left = static_cast<uint64_t>((static_cast<double>(next_random(s.seed)) / 4294967296.0)
            * static_cast<double>(total));
        for (uint32_t i = 0; i < n; i++) {
            if (left < fixed(logits[i])) {
                best = i;
                break;
            }
            left -= fixed(logits[i]);
        }
    }
    *token = static_cast<int32_t>(best);
    s.recent[s.n_recent++ % 64] = *token;
    return {};
}

// >> 23 Generate ------------------------------------------------------------------------------------------------------

TRANSFORMER_API Status generate(Session& s, const int32_t* ids, uint32_t n, GenerateOptions& o, Emit emit, void* user,
    uint32_t* generated)
{
    if (generated) *generated = 0;
    if (!n || !ids) return {Code::bad_argument, "the prompt is empty", "ids", 0};
    if (!s.model->lm_head.w || !is_causal(s.model->main.config))
        return {Code::bad_argument, "this model does not generate", "model", 0};
    const Vocabulary& v = s.model->vocabulary;
    const uint32_t before = s.position;
    float* logits = nullptr;
    if (n > s.options.capacity - s.position)
        return {Code::session_full, "the prompt is longer than what is left of the session", "ids", n};
    // LongRoPE looks at the whole prompt
    const uint32_t step = s.model->main.config.rope_long_from && !s.options.all_logits ? n : s.options.batch;
    for (uint32_t done = 0; done < n;) {                       // batch by batch, so that emit() can stop a long prompt
        Input in;
        in.tokens = ids + done;
        in.count = least(step, n - done);
        const Status status = emit(user, "", 0) ? forward(s, in, &logits)
            : Status{Code::cancelled, "stopped during the prompt", "ids", done};
        if (!status) {
            s.position = before;
            return status;
        }
        done += in.count;
    }
    for (uint32_t i = 0; i < n; i++) o.sampler.recent[o.sampler.n_recent++ % 64] = ids[i];
    Decoder decoder;
    decoder.started = ids[n - 1] != v.bos;                     // after a prompt a leading space is text
    for (uint32_t i = 0; i < o.max_tokens; i++) {
        int32_t token;
        if (Status status = sample(o.sampler, logits + uint64_t{s.logit_rows - 1} * s.model->main.config.n_outputs,
            s.model->main.config.n_outputs, &token); !status) return status;
        if (!o.ignore_stop && is_stop(v, token)) break;
        if (o.tokens) o.tokens[i] = token;
        if (generated) *generated = i + 1;
        if (!detokenize(v, decoder, token, emit, user)) return {Code::cancelled, "stopped", "", i + 1};
        if (i + 1 == o.max_tokens) break;
        if (s.position == s.options.capacity) {
            detokenize_flush(decoder, emit, user);
            return {Code::session_full, "the session is full", "options.capacity", s.options.capacity};
        }
        Input in;
        in.tokens = &token;
        in.count = 1;
        if (Status status = forward(s, in, &logits); !status) return status;
    }
    detokenize_flush(decoder, emit, user);
    return {};
}

}  // namespace TRANSFORMER_NAMESPACE

#if defined(__clang__) && TRANSFORMER_X86
#pragma float_control(pop)
#elif defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif
#endif  // TRANSFORMER_IMPLEMENTING


// >> 24 Threads -------------------------------------------------------------------------------------------------------
// A small pool on the standard library for Options::parallel_for. Who waits spins for some microseconds, then offers the
// processor to others, then sleeps: one that only spins is lost to the very thread that it waits for. Nothing here changes a
// bit of the results.
#if !defined(TRANSFORMER_ROOM_PASS) && defined(TRANSFORMER_THREADS) && !defined(TRANSFORMER_THREADS_DEFINED)
#define TRANSFORMER_THREADS_DEFINED
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#if defined(__linux__)
#include <sched.h>
#endif

namespace TRANSFORMER_NAMESPACE {

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
inline void spin_briefly() { __builtin_ia32_pause(); }
#elif defined(__GNUC__) && defined(__aarch64__)
inline void spin_briefly() { __asm__ volatile("yield"); }
#else
inline void spin_briefly() {}
#endif

#if defined(__linux__)
// Up to two numbers that a file of the kernel begins with; 0 for what is not one ("max").
inline void read_numbers(const std::string& path, double* a, double* b)
{
    *a = *b = 0;
    std::FILE* const f = std::fopen(path.c_str(), "r");
    if (!f) return;
    if (std::fscanf(f, "%lf %lf", a, b) < 1) *a = 0;
    std::fclose(f);
}
// The processors that a control group grants: the smallest quota / period on the way up to the root, rounded up. Version 2
// has both in cpu.max, version 1 in a file each.
inline uint32_t granted_processors(uint32_t n)
{
    std::FILE* const groups = std::fopen("/proc/self/cgroup", "r");
    char line[1024];
    while (groups && std::fgets(line, sizeof line, groups)) {  // id:controllers:path
        std::string path = line, root = "/sys/fs/cgroup";
        const size_t first = path.find(':'), second = path.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = "," + path.substr(first + 1, second - first - 1) + ",";
        if (controllers.find(",cpu,") != std::string::npos) root += "/cpu";
        else if (controllers != ",,") continue;
        path = path.substr(second + 1, path.find('\n') - second - 1);
        for (bool more = true; more; path.resize(more ? path.rfind('/') : 0)) {
            double quota, period, nothing;
            read_numbers(root + path + "/cpu.max", &quota, &period);
            if (period <= 0) {
                read_numbers(root + path + "/cpu.cfs_quota_us", &quota, &nothing);
                read_numbers(root + path + "/cpu.cfs_period_us", &period, &nothing);
            }
            if (quota > 0 && period > 0 && quota < period * n) n = static_cast<uint32_t>((quota + period - 1) / period);
            more = path.rfind('/') != std::string::npos;
        }
    }
    if (groups) std::fclose(groups);
    return n;
}
// A processor that shares its core with a lower one of this process adds little.
inline bool is_second_thread(uint32_t cpu, const cpu_set_t& set)
{
    char path[96];
    unsigned first = cpu;
    std::snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
    if (std::FILE* f = std::fopen(path, "r")) {
        if (std::fscanf(f, "%u", &first) != 1) first = cpu;
        std::fclose(f);
    }
    return first < cpu && CPU_ISSET(first, &set);
}
#endif

// Threads worth starting: the cores given to this process, by its affinity and its control group.
inline uint32_t default_threads()
{
    uint32_t n = std::thread::hardware_concurrency();
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        n = 0;
        for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++) n += CPU_ISSET(cpu, &set) && !is_second_thread(cpu, set);
    }
    if (n) n = granted_processors(n);
#endif
    return n ? n : 1;
}

// The constructor throws what std::thread throws where the system gives no more of them.
class ThreadPool {
public:
    explicit ThreadPool(uint32_t n_threads) : n_workers_(n_threads > 1 ? n_threads - 1 : 0),
        sections_(new Section[n_workers_ + 1]), workers_(new std::thread[n_workers_]), ending_(*this)
    {
        for (uint32_t i = 0; i < n_workers_; i++) workers_[i] = std::thread([this, i] { work(i); });
    }
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    // Options::parallel_for with the pool as its user pointer. A thread begins with its own section of the slices, the same one
    // every time, for what it wrote is in its cache; then it helps with the others.
    static void parallel_for(void* pool, uint32_t n, Task task, void* data)
    {
        ThreadPool& p = *static_cast<ThreadPool*>(pool);
        p.round_++;
        p.done_.store(0, std::memory_order_relaxed);
        for (uint64_t i = 0, begin = 0, all = p.n_workers_ + 1; i < all; i++) {
            const uint64_t end = n * (i + 1) / all;
            p.sections_[i].open(p.round_, static_cast<uint32_t>(begin), static_cast<uint32_t>(end), task, data);
            begin = end;
        }
        p.wake(p.news_, p.sleepers_);
        const uint32_t own = p.take(p.round_, p.n_workers_);
        p.wait(p.finished_, p.waiting_, [&] { return p.done_.load() + own >= n; });
    }

private:
    // All that a thread is told, in one cache line, which goes from processor to processor once a round.
    struct alignas(64) Section {
        std::atomic<uint64_t> ticket{0};                       // {round, next slice}
        std::atomic<Task> task{nullptr};
        std::atomic<void*> data{nullptr};
        std::atomic<uint32_t> end{0};

        void open(uint32_t round, uint32_t first, uint32_t last, Task t, void* d)
        {
            // who is late from the round before and sees any of the new values finds that its old ticket is gone
            ticket.store(uint64_t{round} << 32 | UINT32_MAX, std::memory_order_relaxed);
            task.store(t, std::memory_order_release);
            data.store(d, std::memory_order_release);
            end.store(last, std::memory_order_release);
            ticket.store(uint64_t{round} << 32 | first);
        }
        uint32_t round() const { return static_cast<uint32_t>(ticket.load() >> 32); }
        uint32_t take(uint32_t round)                          // slices of that round; returns how many there were
        {
            uint32_t taken = 0;
            for (uint64_t t = ticket.load(std::memory_order_acquire); t >> 32 == round;) {
                const Task call = task.load(std::memory_order_acquire);
                void* const with = data.load(std::memory_order_acquire);
                if ((t & UINT32_MAX) >= end.load(std::memory_order_acquire)) break;
                if (!ticket.compare_exchange_weak(t, t + 1, std::memory_order_acq_rel)) continue;
                call(with, static_cast<uint32_t>(t));
                taken++;
                t = ticket.load(std::memory_order_acquire);
            }
            return taken;
        }
    };

    // A sleeper counts itself before it looks for the last time, so that a change is seen by it or it by who makes the change.
    void wake(std::condition_variable& to, const std::atomic<uint32_t>& sleepers)
    {
        if (!sleepers.load()) return;
        { std::lock_guard<std::mutex> lock(mutex_); }
        to.notify_all();
    }
    template <class Ready> void wait(std::condition_variable& on, std::atomic<uint32_t>& sleepers, Ready ready)
    {
        for (uint32_t spins = 0; spins < 500; spins++) {
            if (ready()) return;
            if (spins < 200) spin_briefly();
            else std::this_thread::yield();
        }
        std::unique_lock<std::mutex> lock(mutex_);
        sleepers++;
        on.wait(lock, ready);
        sleepers--;
    }
    // Slices of one round, as long as there are any, its own first. Returns how many this thread did; a worker's are counted.
    uint32_t take(uint32_t round, uint32_t own)
    {
        uint32_t all = 0;
        for (uint32_t i = 0; i <= n_workers_; i++) {
            const uint32_t n = sections_[(own + i) % (n_workers_ + 1)].take(round);
            all += n;
            if (!n || own == n_workers_) continue;
            done_ += n;
            wake(finished_, waiting_);
        }
        return all;
    }
    void work(uint32_t own)
    {
        for (uint32_t seen = 0; true;) {
            wait(news_, sleepers_, [&] { return stop_ || sections_[own].round() != seen; });
            if (stop_) return;
            seen = sections_[own].round();
            take(seen, own);
        }
    }

    alignas(64) std::atomic<uint32_t> done_{0};                // by workers, in this round
    std::atomic<uint32_t> waiting_{0};
    alignas(64) std::atomic<uint32_t> sleepers_{0};
    std::atomic<bool> stop_{false};
    uint32_t round_ = 0;
    std::mutex mutex_;
    std::condition_variable news_, finished_;
    uint32_t n_workers_;
    std::unique_ptr<Section[]> sections_;                      // the last one is the caller's
    std::unique_ptr<std::thread[]> workers_;
    struct Ending {                                            // before all else goes, also when a thread could not be started
        ThreadPool& pool;
        explicit Ending(ThreadPool& p) : pool(p) {}
        ~Ending()
        {
            pool.stop_ = true;
            pool.wake(pool.news_, pool.sleepers_);
            for (uint32_t i = 0; i < pool.n_workers_; i++)
                if (pool.workers_[i].joinable()) pool.workers_[i].join();
        }
    } ending_;
};

}  // namespace TRANSFORMER_NAMESPACE
#endif

// >> 25 Files ---------------------------------------------------------------------------------------------------------
// A checkpoint as read-only memory: mapped where the system can, else read. Left out with TRANSFORMER_NO_STDIO.
#if !defined(TRANSFORMER_ROOM_PASS) && defined(TRANSFORMER_IMPLEMENTATION) && !defined(TRANSFORMER_NO_STDIO) && !defined(TRANSFORMER_FILES_DEFINED)
#define TRANSFORMER_FILES_DEFINED
#if defined(__unix__) || defined(__APPLE__)
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace TRANSFORMER_NAMESPACE {

TRANSFORMER_API Status map_file(const char* path, File* file)
{
    *file = File{};
    const int handle = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);                 // a pipe must not wait for its writer
    if (handle < 0)
        return {Code::file_error, errno == EOVERFLOW ? "the file is too large for this platform" : "the file cannot be opened",
        "path", 0};
    struct stat info;
    Status status;
    if (fstat(handle, &info) != 0 || !S_ISREG(info.st_mode)) status = {Code::file_error, "not a regular file", "path", 0};
    else if (info.st_size <= 0) status = {Code::truncated, "the file is empty", "size", 0};
    else if (static_cast<uint64_t>(info.st_size) > SIZE_MAX / 2)
        status = {Code::file_error, "the file is too large for this platform", "size", static_cast<uint64_t>(info.st_size)};
    else {
        void* const p = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, handle, 0);
        if (p == MAP_FAILED) status = {Code::file_error, "the file cannot be mapped", "path", 0};
        else *file = {p, static_cast<uint64_t>(info.st_size)};
#if defined(MADV_HUGEPAGE)
        if (status) madvise(p, static_cast<size_t>(info.st_size), MADV_HUGEPAGE);       // read faster, if the system has them
#endif
    }
    close(handle);
    return status;
}
TRANSFORMER_API void unmap_file(File* file)
{
    if (file->data) munmap(const_cast<void*>(file->data), static_cast<size_t>(file->size));
    *file = File{};
}

}  // namespace TRANSFORMER_NAMESPACE
#else
#include <stdio.h>
#include <stdlib.h>
#if defined(_WIN32)
#define TRANSFORMER_SEEK _fseeki64
#define TRANSFORMER_TELL _ftelli64
#else
#define TRANSFORMER_SEEK fseek
#define TRANSFORMER_TELL ftell
#endif

namespace TRANSFORMER_NAMESPACE {

TRANSFORMER_API Status map_file(const char* path, File* file)  // the only place that allocates
{
    *file = File{};
    FILE* const handle = fopen(path, "rb");
    if (!handle) return {Code::file_error, "the file cannot be opened", "path", 0};
    Status status;
    const long long size = TRANSFORMER_SEEK(handle, 0, SEEK_END) == 0 ? static_cast<long long>(TRANSFORMER_TELL(handle)) : -1;
    if (size <= 0) status = {Code::truncated, "the file is empty or cannot be measured", "size", 0};
    else if (static_cast<uint64_t>(size) > SIZE_MAX / 2)
        status = {Code::file_error, "the file is too large for this platform", "size", static_cast<uint64_t>(size)};
    else {
        void* const p = malloc(static_cast<size_t>(size));
        if (!p || TRANSFORMER_SEEK(handle, 0, SEEK_SET) != 0 || fread(p, 1, static_cast<size_t>(size),
            handle) != static_cast<size_t>(size)) {
            free(p);
            status = {Code::file_error, p ? "the file cannot be read" : "there is no memory for the file", "size",
                static_cast<uint64_t>(size)};
        } else *file = {p, static_cast<uint64_t>(size)};
    }
    fclose(handle);
    return status;
}
TRANSFORMER_API void unmap_file(File* file)
{
    free(const_cast<void*>(file->data));
    *file = File{};
}

}  // namespace TRANSFORMER_NAMESPACE
#endif
#endif
