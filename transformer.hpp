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
// Contents (search for the tag)                                                                          about lines
//   Part I    Interface   // >> 1 Switches   // >> 2 Status       // >> 3 Config     // >> 4 Tensors          620
//                         // >> 5 Model      // >> 6 Session      // >> 7 Functions
//   Part II   Model       // >> 8 Operations // >> 9 Forward      // >> 10 The block // >> 11 Attention       830
//                         // >> 12 Feed-forward  // >> 13 Positions   // >> 14 Norms
//   Part III  Numbers     // >> 15 Formats   // >> 16 Mathematics // >> 17 Products  // >> 18 Rooms           980
//                         // >> 19 Kernels
//   Part IV   Bytes       // >> 20 Checkpoint  // >> 21 Tokenizer // >> 22 Sampler   // >> 23 Generate        900
//                         // >> 24 Threads   // >> 25 Files
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
//   TRANSFORMER_ISA             one room only, by name (Scalar, Neon, Avx2): microcontrollers and tests
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

// Parts of the family that a small chip may leave out: TRANSFORMER_FEATURES is a mask of these bits.
enum class Feature : uint32_t {
    layer_norm = 1, biases = 2, experts = 4, mla = 8, cross = 16, encoder = 32, relative = 64, softcap = 128,
    dense_weights = 256, quantised_weights = 512, sampling = 1024, gelu = 2048, qk_norm = 4096
};
constexpr bool has(Feature f) { return (TRANSFORMER_FEATURES & static_cast<uint32_t>(f)) != 0; }

// >> 2 Status ---------------------------------------------------------------------------------------------------------
// Every function that can fail returns one. `text` is static and says what is wrong, `field` names the field or tensor ("" if
// none), `where` is the byte offset, index or number that it speaks of (0 if none). The library never prints, exits, aborts, throws or allocates.
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
    flag_cross = 256                // the layers have cross attention: this is an encoder-decoder's decoder
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
constexpr bool is_quantised(DType t) { return t == DType::q8_0 || t == DType::q4_0 || t == DType::q4_1; }
constexpr uint64_t round_up(uint64_t n, uint64_t m) { return (n + m - 1) / m * m; }

// Bytes of one 16-row tile of 32 columns (quantised) or of one value (plain).
constexpr uint32_t unit_bytes(DType t)
{
    return t == DType::q8_0 ? 544 : t == DType::q4_0 ? 288 : t == DType::q4_1 ? 320 : t == DType::f32 ? 4 : t == DType::u8 ? 1 : 2;
}
// Bytes of one (rows, cols) matrix. Exact in 64 bits for any 32-bit rows and cols below 2^31.
constexpr uint64_t matrix_bytes(DType t, uint64_t rows, uint64_t cols)
{
    return is_quantised(t) ? round_up(rows, 16) / 16 * (round_up(cols, 32) / 32) * unit_bytes(t) : rows * cols * unit_bytes(t);
}

// Where a tensor belongs. A bias or shift is the role of its weight + role_bias. The first group stands once in a stack (or,
// the head, once in the model), the second once a layer.
#define TRANSFORMER_ROLES(X)                                                                                            \
    X(token_embedding) X(type_embedding) X(position_embedding) X(embedding_norm) X(embedding_proj) X(conv1) X(conv2)    \
    X(rope_freqs) X(layer_flags) X(alibi_slopes) X(relative_rows) X(final_norm) X(head_dense) X(head_norm) X(lm_head)   \
    X(attn_norm_pre) X(attn_norm_post) X(attn_norm_out) X(cross_norm_pre) X(cross_norm_post) X(cross_norm_out)          \
    X(ffn_norm_pre) X(ffn_norm_post) X(ffn_norm_out) X(wq) X(wk) X(wv) X(wo) X(q_norm) X(k_norm) X(sinks)               \
    X(relative_bias) X(rel_key) X(rel_query) X(wq_a) X(q_a_norm) X(wkv_a) X(kv_a_norm) X(wk_b) X(wv_b)                  \
    X(cross_wq) X(cross_wk) X(cross_wv) X(cross_wo) X(gate) X(up) X(down) X(router) X(router_bias)                      \
    X(shared_gate) X(shared_up) X(shared_down) X(shared_router)
#define TRANSFORMER_ROLE(name) name,
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
struct NormSlots { Norm pre, post, out; };                     // x = out(x + post(f(pre(x)))): which are filled is the architecture

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
    uint32_t first_entry = 0;       // where the layers begin in the tensor table
};

// Text and ids. The section is a list of chunks {tag, bytes} with their payload padded to 4; unknown tags are passed over.
enum class VocabularyKind : uint32_t { none, sentencepiece_bpe, byte_bpe, unigram, wordpiece };
enum class TokenType : uint8_t { normal, unknown, control, user_defined, byte, unused };
enum class Chunk : uint32_t {
    info = 1,           // kind, flags, n_tokens, bos, eos, unknown, pad, separator, classify, mask (absent: -1), split_rule
    stop,               // ids that end a turn
    offsets,            // n_tokens + 1 words: where each token's bytes begin in `text`
    text,               // the tokens' bytes, as they are printed
    scores,             // n_tokens f32
    types,              // n_tokens TokenType
    sorted,             // the ids in ascending order of their bytes (equal ones by id)
    merges,             // byte BPE: (left, right, rank, result), ascending by (left, right)
    classes,            // Unicode classes: (first, last, class), ascending
    normal,             // Unicode normalisation: n, then n x (code point, offset, length), then UTF-8
    chat_template,      // text
    labels              // class names, one a line
};
enum : uint32_t {                                              // Vocabulary::flags
    vocabulary_add_bos = 1, vocabulary_add_eos = 2, vocabulary_dummy_prefix = 4, vocabulary_byte_fallback = 8,
    vocabulary_collapse_spaces = 16, vocabulary_lower_case = 32, vocabulary_ignore_merges = 64
};
struct Vocabulary {                 // pointers into the checkpoint
    VocabularyKind kind = VocabularyKind::none;
    uint32_t flags = 0, n_tokens = 0;
    int32_t bos = -1, eos = -1, unknown = -1, pad = -1, separator = -1, classify = -1, mask = -1;
    uint32_t split_rule = 0;        // byte BPE: which pre-tokeniser
    const unsigned char* stop = nullptr;
    const unsigned char* offsets = nullptr;
    const unsigned char* text = nullptr;
    const unsigned char* scores = nullptr;
    const unsigned char* types = nullptr;
    const unsigned char* sorted = nullptr;
    const unsigned char* merges = nullptr;
    const unsigned char* classes = nullptr;
    const unsigned char* normal = nullptr;
    uint32_t n_stop = 0, n_merges = 0, n_classes = 0, normal_size = 0;
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
};

// >> 6 Session --------------------------------------------------------------------------------------------------------
// One timeline over a model: the KV cache, the scratch of one batch and the logits, all inside the caller's memory. plan()
// both measures and places, so the size that session_size() gives is exact: one byte less is refused.
enum class Isa : uint8_t { best, scalar, neon, avx2 };

struct Event {                      // what an observer sees; valid during the call only
    enum Kind : uint8_t { embedding, layer_output, hidden, attention_row } kind = embedding;
    bool encoder = false;           // of an encoder-decoder's encoder
    uint32_t layer = 0;
    uint32_t position = 0;          // of the first row; attention_row: of the query
    Rows rows;                      // x (T, D); attention_row: one row of weights, for keys from first_key on
    uint32_t head = 0, first_key = 0;
};
typedef bool (*Observer)(void* user, const Event& event);      // false cancels the forward; the session stays usable
typedef void (*Task)(void* data, uint32_t slice);
typedef void (*ParallelFor)(void* user, uint32_t n, Task task, void* data); // task(data, 0 .. n-1) in any order, then return

struct Options {
    uint32_t capacity = 256;        // positions of the decoder's cache, or the longest text of a lone encoder
    uint32_t source_capacity = 0;   // rows of encoder output (encoder-decoders); 0: as capacity
    uint32_t batch = 64;            // tokens of one pass over the weights: more need more scratch and run faster
    DType cache = DType::f16;       // f16 or f32
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
    region_state,      // (T, H, 2) maximum and sum of each query's softmax so far
    region_up,         // (T, F)
    region_gate,       // (T, F)
    region_router,     // (T + 2, E) weights of the experts
    region_expert,     // (2, T, D) gathered rows of one expert and what it returns
    region_quantised,  // (T, G) Group: the input of a quantised product
    region_rope,       // (2, T, rope_dim) cos and sin
    region_slices,     // scratch of each slice's attention
    region_convolved,  // (T, 3 C) rows of a convolution
    region_mask,       // bytes: the source's mask
    region_logits,     // (rows, V)
    region_cache,      // L layers of keys and values (one layer if not causal)
    region_cross,      // L layers of keys and values of the encoder's output
    n_regions
};
struct Plan {
    uint64_t at[n_regions + 1] = {};                           // at[n_regions]: all of it
};

// 32 activations of a quantised product: x = scale * q, sum = q[0] + ... + q[31].
struct Group {
    int8_t q[32];
    float scale;
    int32_t sum;
};

constexpr uint32_t attention_block = 128;                      // positions; part of the numbers, not a tuning knob
constexpr uint32_t attention_rows = 4;                         // queries that share a pass over the keys

constexpr uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
constexpr bool is_causal(const Config& c) { return (c.flags & flag_causal) != 0; }
// Bytes of one layer's keys and values for n positions: for each kv head K in tiles of 16 positions, [pos / 16][d][16], then
// V in rows, [pos][dv].
constexpr uint64_t kv_head_bytes(const Config& c, uint64_t n, DType type)
{
    return round_up(round_up(n, 16) * (uint64_t{c.head_dim} + c.v_head_dim) * unit_bytes(type), 64);
}
constexpr uint64_t query_width(const Config& c) { return uint64_t{c.n_heads} * c.head_dim; }
constexpr uint64_t mixed_width(const Config& c) { return uint64_t{c.n_heads} * c.v_head_dim; }
constexpr uint64_t widest_hidden(const Config& c) { return larger(larger(c.hidden_dim, c.dense_hidden_dim), c.shared_hidden_dim); }
constexpr uint64_t widest_input(const Config& c)               // the longest row that a matrix of this stack reads
{
    const uint64_t conv = c.n_features ? 3 * larger(c.dim, c.n_features) : 0;
    const uint64_t heads = larger(mixed_width(c), uint64_t{c.n_heads} * c.mla_v_head_dim);
    return larger(larger(larger(c.dim, c.embedding_dim), larger(widest_hidden(c), heads)), larger(conv, c.q_lora_rank));
}
// T of one stack: a causal one takes batches, another needs its whole input at once.
constexpr uint64_t batch_rows(const Config& c, const Options& o, bool source)
{
    const uint64_t whole = source && o.source_capacity ? o.source_capacity : o.capacity;
    return c.n_frames ? c.n_frames : is_causal(c) && o.batch < whole ? o.batch : whole;
}
constexpr uint64_t source_rows(const Config& encoder, const Options& o)
{
    return encoder.n_frames ? encoder.n_frames / 2 : o.source_capacity ? o.source_capacity : o.capacity;
}

// Bytes that one stack needs in a region when it runs t rows at once.
constexpr uint64_t region_bytes(Region r, const Config& c, uint64_t t)
{
    const uint64_t e = larger(c.dim, c.embedding_dim), mla = c.kv_lora_rank != 0;
    switch (r) {
    case region_x: case region_h: case region_y: return 4 * t * e;
    case region_g: return c.flags & flag_parallel ? 4 * t * c.dim : 0;
    case region_q: return 4 * t * query_width(c);
    case region_k: return 4 * t * c.n_kv_heads * c.head_dim;
    case region_v: return 4 * t * c.n_kv_heads * c.v_head_dim;
    case region_mixed: return 4 * t * mixed_width(c);
    case region_latent: return mla * 4 * t * (c.q_lora_rank + uint64_t{c.n_heads} * larger(c.rope_dim + c.nope_head_dim, c.mla_v_head_dim));
    case region_state: return 8 * t * c.n_heads;
    case region_up: case region_gate: return 4 * t * widest_hidden(c);
    case region_router: return 4 * (t + 2) * c.n_experts;
    case region_expert: return c.n_experts || c.shared_hidden_dim ? 8 * t * c.dim : 0;
    case region_quantised: return t * (round_up(widest_input(c), 32) / 32) * sizeof(Group);
    case region_rope: return 8 * t * c.rope_dim;
    case region_convolved: return c.n_features ? 4 * t * 3 * larger(c.dim, c.n_features) : 0;
    default: return 0;
    }
}

constexpr Plan plan(const Config& main, const Config& encoder, const Options& o)
{
    Plan p;
    const uint64_t t = batch_rows(main, o, false), source = main.flags & flag_cross ? source_rows(encoder, o) : 0;
    const uint64_t t_encoder = encoder.n_layers ? batch_rows(encoder, o, true) : 0;
    const uint64_t logit_rows = o.all_logits || (!is_causal(main) && main.pooling == Pooling::none) ? t : 1;
    const uint64_t slices = larger(o.slices, 1), dv = larger(main.v_head_dim, encoder.v_head_dim);
    for (uint32_t i = 0; i < n_regions; i++) {
        const Region r = static_cast<Region>(i);
        uint64_t n = larger(region_bytes(r, main, t), encoder.n_layers ? region_bytes(r, encoder, t_encoder) : 0);
        if (r == region_slices) n = slices * 4 * attention_rows * (attention_block + dv);
        if (r == region_mask) n = larger(source, t_encoder);
        if (r == region_logits) n = 4 * logit_rows * main.n_outputs;
        if (r == region_cache)
            n = larger(main.n_kv_heads * kv_head_bytes(main, is_causal(main) ? o.capacity : t, o.cache) * (is_causal(main) ? main.n_layers : 1),
                       encoder.n_layers ? encoder.n_kv_heads * kv_head_bytes(encoder, t_encoder, o.cache) : 0);
        if (r == region_cross && source) n = uint64_t{main.n_layers} * main.n_kv_heads * kv_head_bytes(main, source, o.cache);
        p.at[i + 1] = p.at[i] + round_up(n, 64);
    }
    return p;
}
// Exact bytes of a session, at compile time too: static unsigned char memory[session_size(config, options)];
constexpr uint64_t session_size(const Config& main, const Options& o) { return plan(main, Config{}, o).at[n_regions]; }

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
    uint32_t source_count = 0;      // rows of encoder output
    const uint8_t* mask = nullptr;  // of the running encoder's input
    bool rope_long = false;         // the cache was written with row 1 of rope_freqs
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

// Text to ids. `work` is scratch of tokenize_size(n) bytes, aligned to 4. *count ids are written; memory_too_small if they
// exceed `capacity`. Special tokens written in the text are recognised and the model's own (BOS ...) added as asked; a BOS
// that the text already begins with is not added twice.
struct TokenizeOptions { bool add_special = true, parse_special = true; };
TRANSFORMER_API uint64_t tokenize_size(uint64_t text_bytes);
TRANSFORMER_API Status tokenize(const Vocabulary& v, const char* text, uint64_t n, const TokenizeOptions& options,
                                void* work, uint64_t work_size, int32_t* ids, uint32_t capacity, uint32_t* count);

// Ids to text, whole characters only: `emit` is called zero to two times with bytes that end at a character's end. Bytes that
// never become a character are given as they are, or as U+FFFD. detokenize_flush gives what is still held back.
struct Decoder {
    bool replace_invalid = false;   // U+FFFD for bytes that are not UTF-8
    bool special = false;           // also the text of control tokens
    bool started = false;
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
TRANSFORMER_API Status generate(Session& session, const int32_t* ids, uint32_t n, GenerateOptions& options, Emit emit, void* user,
                                uint32_t* generated = nullptr);

TRANSFORMER_API const char* room_name(const Session& session); // "scalar", "neon", "avx2"
TRANSFORMER_API bool room_available(Isa isa);
TRANSFORMER_API const char* role_name(uint32_t role);          // of the tensor table, see >> 20 Checkpoint

// Scalar definitions of the formats, for importers and tests. A row is written or read as f32; quantised matrices go by
// tiles of 16 rows (missing ones zero), since that is how they are stored.
TRANSFORMER_API float f16_to_f32(uint16_t half);
TRANSFORMER_API uint16_t f32_to_f16(float value);              // round half even; beyond +-65504 saturates; NaN stays NaN
TRANSFORMER_API float bf16_to_f32(uint16_t half);
TRANSFORMER_API uint16_t f32_to_bf16(float value);             // round half even; NaN stays a quiet NaN
TRANSFORMER_API void quantize_tile(DType type, const float* rows, uint32_t n_rows, uint32_t cols, unsigned char* tile);
TRANSFORMER_API void dequantize_row(const Tensor& w, uint32_t matrix, uint32_t row, float* out);
}  // namespace
#endif
#endif
