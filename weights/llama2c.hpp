// weights/llama2c.hpp - reads the model files and the tokenizer files of llama2.c
//
// Three versions. v0: seven int32 and float tensors, no magic number; a negative vocab_size says that the classifier
// has its own weights. v1: a header of 256 bytes, float tensors. v2: the same header, int8 in groups with a float scale
// each, where a group runs over the flat tensor and so may cross its rows. No version states its length, so the header
// is believed only if the file is exactly as long as it asks for. They rotate neighbouring elements of q and k, the
// runtime rotates element i with element i + d/2: the rows of wq and wk are put into that order here.
#ifndef TRANSFORMER_WEIGHTS_LLAMA2C_HPP
#define TRANSFORMER_WEIGHTS_LLAMA2C_HPP

#include "import.hpp"

#include <cmath>

namespace weights {

// ---- Sizes ----------------------------------------------------------------------------------------------------------
// Pure functions of the header, saturating: see add_sat.

struct Llama2cHeader {
    uint32_t version = 0;
    uint32_t dim = 0, hidden_dim = 0, n_layers = 0, n_heads = 0, n_kv_heads = 0, vocab_size = 0, max_seq_len = 0;
    bool tied = true;               // the classifier is the token embedding
    uint32_t group_size = 0;        // v2 only
};

enum class Llama2cTensor : uint32_t {
    token_embedding, attn_norm, wq, wk, wv, wo, ffn_norm, w1, w2, w3, final_norm, rope_tables, classifier, end
};

struct Llama2cShape {
    uint64_t layers, rows, cols;    // each of `layers` is (rows, cols)
};
inline Llama2cShape llama2c_shape(const Llama2cHeader& h, Llama2cTensor t)
{
    const uint64_t head_dim = h.n_heads ? h.dim / h.n_heads : 0, kv_dim = h.n_kv_heads * head_dim;
    switch (t) {
    case Llama2cTensor::token_embedding: return {1, h.vocab_size, h.dim};
    case Llama2cTensor::attn_norm: case Llama2cTensor::ffn_norm: return {h.n_layers, 1, h.dim};
    case Llama2cTensor::wq: case Llama2cTensor::wo: return {h.n_layers, h.dim, h.dim};
    case Llama2cTensor::wk: case Llama2cTensor::wv: return {h.n_layers, kv_dim, h.dim};
    case Llama2cTensor::w1: case Llama2cTensor::w3: return {h.n_layers, h.hidden_dim, h.dim};
    case Llama2cTensor::w2: return {h.n_layers, h.dim, h.hidden_dim};
    case Llama2cTensor::final_norm: return {1, 1, h.dim};
    // cos and sin, unused since long
    case Llama2cTensor::rope_tables: return {h.version == 0 ? 1u : 0u, h.max_seq_len, head_dim};
    case Llama2cTensor::classifier: return {h.tied ? 0u : 1u, h.vocab_size, h.dim};
    case Llama2cTensor::end: break;
    }
    return {0, 0, 0};
}
inline bool llama2c_quantised(const Llama2cHeader& h, Llama2cTensor t)
{
    return h.version == 2 && t != Llama2cTensor::attn_norm && t != Llama2cTensor::ffn_norm
        && t != Llama2cTensor::final_norm;
}
// Values before layer `layer` of a tensor.
inline uint64_t llama2c_elements(const Llama2cHeader& h, Llama2cTensor t, uint64_t layer)
{
    const Llama2cShape s = llama2c_shape(h, t);
    return mul_sat(layer, mul_sat(s.rows, s.cols));
}
// Bytes of one layer of a tensor. A last group that is cut short has a scale too.
inline uint64_t llama2c_bytes(const Llama2cHeader& h, Llama2cTensor t)
{
    const uint64_t n = llama2c_elements(h, t, 1);
    if (!llama2c_quantised(h, t)) return mul_sat(n, 4);
    const uint64_t group = h.group_size ? h.group_size : 1;
    return add_sat(n, mul_sat(n / group + (n % group != 0), 4));
}
// Where a layer of a tensor begins in the file; of Llama2cTensor::end: the length of the file.
inline uint64_t llama2c_offset(const Llama2cHeader& h, Llama2cTensor tensor, uint64_t layer = 0)
{
    using T = Llama2cTensor;
    static const T v0[] = {T::token_embedding, T::attn_norm, T::wq, T::wk, T::wv, T::wo, T::ffn_norm,
                           T::w1, T::w2, T::w3, T::final_norm, T::rope_tables, T::classifier, T::end};
    static const T later[] = {T::attn_norm, T::ffn_norm, T::final_norm, T::token_embedding, T::wq, T::wk, T::wv, T::wo,
                              T::w1, T::w2, T::w3, T::rope_tables, T::classifier, T::end};
    uint64_t at = h.version == 0 ? 28 : 256;
    for (const T* t = h.version == 0 ? v0 : later; *t != tensor && *t != T::end; t++)
        at = add_sat(at, mul_sat(llama2c_shape(h, *t).layers, llama2c_bytes(h, *t)));
    return add_sat(at, mul_sat(layer, llama2c_bytes(h, tensor)));
}
inline uint64_t llama2c_size(const Llama2cHeader& h) { return llama2c_offset(h, Llama2cTensor::end); }

// ---- Other files ----------------------------------------------------------------------------------------------------

// What the first bytes of a file say it is, "" if they say nothing. None of them is the beginning of a llama2.c file.
inline std::string foreign_file(const MappedFile& file)
{
    const uint64_t n = file.size;
    const unsigned char* p = file.data;
    const auto begins = [&](const char* bytes, size_t length, uint64_t at = 0) {
        return n >= at + length && std::memcmp(p + at, bytes, length) == 0;
    };
    if (n == 0) return "an empty file";
    if (begins("GGUF", 4)) return "a GGUF file, and GGUF files come in a later version";
    for (const char* name : {"ggjt", "tjgg", "ggml", "lmgg", "ggmf", "fmgg", "ggla", "algg"})
        if (begins(name, 4)) return "a ggml file of the time before GGUF (" + std::string(name) + ")";
    if (begins("TRNSFRMR", 8)) return "a flat checkpoint already: it is opened as it is";
    if (begins("\x7f" "ELF", 4)) return "a program (ELF)";
    if (begins("MZ", 2)) return "a program (Windows)";
    if (begins("PK\x03\x04", 4) || begins("PK\x05\x06", 4)) {
        for (uint64_t i = 30; i < 200 && i + 8 < n; i++)       // the first member's name follows its 30-byte header
            if (begins("data.pkl", 8, i))
                return "a PyTorch checkpoint (zip); save it as safetensors and give the folder";
        return "a zip archive";
    }
    if (n > 2 && p[0] == 0x80 && p[1] >= 2 && p[1] <= 5 && (p[2] == 0x8a || p[2] == 0x95 || p[2] == '}' || p[2] == 'c'
        || p[2] == ']'))
        return "a Python pickle (an old PyTorch checkpoint?); save it as safetensors and give the folder";
    if (begins("\x89PNG", 4)) return "a PNG picture";
    if (begins("\xff\xd8\xff", 3)) return "a JPEG picture";
    if (begins("\x1f\x8b", 2)) return "a gzip archive; unpack it first";
    if (begins("BZh", 3)) return "a bzip2 archive; unpack it first";
    if (begins("\xfd" "7zXZ", 5)) return "an xz archive; unpack it first";
    if (begins("\x28\xb5\x2f\xfd", 4)) return "a zstd archive; unpack it first";
    if (begins("ustar", 5, 257)) return "a tar archive; unpack it first";
    if (begins("%PDF", 4)) return "a PDF document";
    if (begins("RIFF", 4)) return "a RIFF file (sound or picture)";
    if (begins("\x89HDF", 4)) return "an HDF5 file";
    if (begins("\x93NUMPY", 6)) return "a NumPy array";
    if (begins("TFL3", 4, 4)) return "a TensorFlow Lite model";
    if (begins("SQLite format", 13)) return "an SQLite database";
    if (n > 9 && p[8] == '{' && load_u64(p) >= 2 && load_u64(p) <= n - 8)
        return "a safetensors file; give the folder that holds it and its config.json";
    if (begins("version https://git-lfs", 23))
        return "a Git LFS pointer in place of a model; fetch the model itself (git lfs pull)";

    // CTranslate2: a version, then the length and the name of a specification ("WhisperSpec", with its zero)
    const uint64_t name = n > 6 ? 6 + (p[4] | uint64_t{p[5]} << 8) : 0;
    if (name > 11 && name < 64 && begins("\0\0\0", 3, 1) && begins("Spec\0", 5, name - 5))
        return "a CTranslate2 model, and these are not read; give the Hugging Face folder that it was made from";

    const uint64_t head = std::min<uint64_t>(n, 4096);
    const auto all = [&](unsigned char value) {
        for (uint64_t i = 0; i < head; i++)
            if (p[i] != value) return false;
        return true;
    };
    if (all(0)) return "a file that begins with nothing but zeros (an unfinished download?)";
    if (all(0xff)) return "a file that begins with nothing but 0xff (erased flash?)";
    for (uint64_t i = 0; i < head; i++)
        if (p[i] == 127 || (p[i] < 32 && p[i] != '\n' && p[i] != '\r' && p[i] != '\t')) return "";
    uint64_t i = 0;
    while (i < head && (p[i] <= 32)) i++;
    if (begins("{", 1, i)) return "JSON text; give the folder that holds it and the weights";
    if (begins("<", 1, i)) return "an HTML or XML page (a failed download?)";
    return "text";
}

// ---- The tokenizer --------------------------------------------------------------------------------------------------
// int32 max_token_length, then for each id: float score, int32 length, the bytes. Their number is written nowhere.

// How many tokens a tokenizer.bin holds; 0 if the bytes are not exactly such a file.
inline uint64_t count_llama2c_tokens(const MappedFile& file)
{
    if (file.size < 4 || load_i32(file.data) < 0) return 0;
    uint64_t n = 0;
    for (uint64_t at = 4; at < file.size; n++) {
        if (file.size - at < 8) return 0;
        const int32_t length = load_i32(file.data + at + 4);
        at += 8;
        if (length < 0 || static_cast<uint64_t>(length) > file.size - at) return 0;
        at += static_cast<uint64_t>(length);
    }
    return n;
}

// The 256 tokens that stand for single bytes are named <0x00> to <0xFF> and follow the three special ones.
inline bool is_byte_name(const std::string& name, uint32_t byte)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    if (name.size() != 6 || name.compare(0, 3, "<0x") != 0 || name[5] != '>') return false;
    const auto is_digit = [](char c, uint32_t value) { return c == digits[value] || c == digits[16 + value]; };
    return is_digit(name[3], byte >> 4) && is_digit(name[4], byte & 15);
}

// n_tokens 0: as many as the file holds.
inline VocabularySource read_llama2c_tokenizer(const MappedFile& file, const std::string& path, uint32_t n_tokens = 0)
{
    using transformer::TokenType;
    const std::string foreign = foreign_file(file);
    if (!foreign.empty()) throw Error(path + ": a llama2.c tokenizer is needed here, this is " + foreign);
    if (file.size < 4)
        throw Error(path + ": " + std::to_string(file.size) + " bytes are too few for a llama2.c tokenizer");
    // llama2.c sizes a buffer by it; here nothing depends on it, so a value that is too small does no harm.
    const int32_t max_token_length = load_i32(file.data);
    if (max_token_length < 0)
        throw Error(path + ": is no llama2.c tokenizer: max_token_length is " + std::to_string(max_token_length));

    VocabularySource v;
    v.kind = transformer::VocabularyKind::sentencepiece_bpe;
    v.flags = transformer::vocabulary_add_bos | transformer::vocabulary_dummy_prefix;
    uint64_t at = 4;
    uint32_t n_bytes = 0;
    for (uint32_t id = 0; n_tokens ? id < n_tokens : at < file.size; id++) {
        const std::string where = path + ": token " + std::to_string(id);
        if (file.size - at < 8)
            throw Error(n_tokens ? where + " is missing: the file ends at byte " + std::to_string(file.size)
                + ", the model has " +
                                       std::to_string(n_tokens) + " tokens"
                                 : where + " is cut short at byte " + std::to_string(file.size));
        const float score = load_f32(file.data + at);
        const int32_t length = load_i32(file.data + at + 4);
        at += 8;
        if (!std::isfinite(score)) throw Error(where + " has no finite score");
        if (length < 0 || static_cast<uint64_t>(length) > file.size - at)
            throw Error(where + " says that it is " + std::to_string(length) + " bytes long, "
                + std::to_string(file.size - at) +
                        " are left in the file");
        std::string text(reinterpret_cast<const char*>(file.data) + at, static_cast<size_t>(length));
        at += static_cast<uint64_t>(length);
        TokenType type = TokenType::normal;
        if (id == 0) {
            type = TokenType::unknown;
        } else if (id < 3) {        // stored as "\n<s>\n" and "\n</s>\n"
            type = TokenType::control;
            while (!text.empty() && text.front() == '\n') text.erase(0, 1);
            while (!text.empty() && text.back() == '\n') text.pop_back();
        } else if (id < 259 && is_byte_name(text, id - 3)) {
            type = TokenType::byte;
            text.assign(1, static_cast<char>(static_cast<unsigned char>(id - 3)));
            n_bytes++;
        }
        v.tokens.push_back(std::move(text));
        v.scores.push_back(score);
        v.types.push_back(type);
    }
    if (at != file.size)
        throw Error(path + ": goes on after the " + std::to_string(n_tokens) + " tokens of the model (byte "
            + std::to_string(at) + " of " +
                    std::to_string(file.size) + "): it belongs to another model");
    if (v.tokens.empty()) throw Error(path + ": holds no tokens");
    if (n_bytes == 256) v.flags |= transformer::vocabulary_byte_fallback;
    const int32_t n = static_cast<int32_t>(v.tokens.size());
    v.unknown = 0;
    if (n > 1) v.bos = 1;
    if (n > 2) v.eos = 2;
    return v;
}

// ---- The model ------------------------------------------------------------------------------------------------------

inline Llama2cHeader read_llama2c_header(const MappedFile& file, const std::string& path)
{
    const std::string foreign = foreign_file(file);
    if (!foreign.empty()) throw Error(path + ": is " + foreign);
    const auto too_short = [&](uint64_t needed) {
        return Error(path + ": " + std::to_string(file.size) + " bytes are too few for a model, its header alone has "
            + std::to_string(needed));
    };
    const unsigned char* p = file.data;
    // Its first score is 0, where a model has hidden_dim.
    if (file.size > 8 && load_u32(p + 4) == 0 && count_llama2c_tokens(file))
        throw Error(path + ": is a llama2.c tokenizer, not a model; give it with -z");
    if (file.size < 28) throw too_short(28);
    Llama2cHeader h;
    uint64_t group_at = 0;
    if (load_u32(p) == 0x616b3432) {
        if (file.size < 256) throw too_short(256);
        const int32_t version = load_i32(p + 4);
        if (version != 1 && version != 2)
            throw Error(path + ": is a llama2.c file of version " + std::to_string(version) + ", known are 0, 1 and 2");
        h.version = static_cast<uint32_t>(version);
        p += 8;
        if (p[28] > 1)
            throw Error(path + ": llama2.c header: shared_classifier is " + std::to_string(p[28])
                + ", it can be 0 or 1");
        h.tied = p[28] == 1;
        group_at = 8 + 29;          // behind a single byte, so it is not aligned
    }
    const std::string what = h.version == 0
        ? path + ": is no model file that is known here; read as a llama2.c file (v0), "
        : path + ": llama2.c header: ";
    const auto field = [&](const char* name, int64_t value, int64_t most) {
        if (value < 1 || value > most)
            throw Error(what + name + " is " + std::to_string(value) + ", it must be from 1 to "
                + std::to_string(most));
        return static_cast<uint32_t>(value);
    };
    // Generous limits, inside those of the runtime. What really guards is the file's exact length.
    const int32_t vocab_size = load_i32(p + 20);
    h.dim = field("dim", load_i32(p), 1 << 20);
    h.hidden_dim = field("hidden_dim", load_i32(p + 4), 1 << 24);
    h.n_layers = field("n_layers", load_i32(p + 8), 4096);
    h.n_heads = field("n_heads", load_i32(p + 12), h.dim);
    h.n_kv_heads = field("n_kv_heads", load_i32(p + 16), h.n_heads);
    if (h.version == 0) h.tied = vocab_size > 0;
    if (h.version == 0 && vocab_size < -(1 << 24)) field("vocab_size without its sign", -int64_t{vocab_size}, 1 << 24);
    h.vocab_size = field("vocab_size", h.tied || h.version ? vocab_size : -vocab_size, 1 << 24);
    h.max_seq_len = field("max_seq_len", load_i32(p + 24), 1 << 24);
    if (h.version == 2) h.group_size = field("group_size", load_i32(file.data + group_at), h.dim);
    const auto divides = [&](const char* many, uint32_t n, const char* whole, uint32_t of) {
        if (of % n)
            throw Error(what + many + " is " + std::to_string(n) + ", which does not divide " + whole + ", "
            + std::to_string(of));
    };
    divides("n_heads", h.n_heads, "dim", h.dim);
    divides("n_kv_heads", h.n_kv_heads, "n_heads", h.n_heads);
    if (h.dim / h.n_heads % 2)
        throw Error(what + "head_dim, dim / n_heads, is " + std::to_string(h.dim / h.n_heads)
            + "; it must be even, positions rotate pairs");
    const uint64_t expected = llama2c_size(h);
    if (file.size != expected) {
        Llama2cHeader other = h;
        other.tied = !h.tied;
        const char* const why = llama2c_size(other) == file.size
            ? h.tied ? "it has a classifier of its own, the header says that it has none"
                     : "it has no classifier of its own, the header says that it has one"
            : file.size < expected ? "cut short, or no llama2.c file" : "not the file that its header speaks of";
        throw Error(path + ": its llama2.c header (v" + std::to_string(h.version) + ") asks for " +
                    std::to_string(expected) + " bytes, the file has " + std::to_string(file.size) + ": " + why);
    }
    return h;
}

inline Source read_llama2c(const std::string& path, const std::string& tokenizer)
{
    using T = Llama2cTensor;
    const File file = map_file(path);
    const Llama2cHeader h = read_llama2c_header(*file, path);
    const uint32_t head_dim = h.dim / h.n_heads;

    Source source;
    source.kind = "llama2.c v" + std::to_string(h.version);
    if (h.version == 2) source.kind += " (int8 in groups of " + std::to_string(h.group_size) + ")";
    Config& c = source.main;
    c.dim = c.embedding_dim = h.dim;
    c.hidden_dim = h.hidden_dim;
    c.n_layers = h.n_layers;
    c.n_heads = h.n_heads;
    c.n_kv_heads = h.n_kv_heads;
    c.head_dim = c.v_head_dim = c.rope_dim = head_dim;
    c.vocab_size = c.n_outputs = h.vocab_size;
    c.max_seq_len = h.max_seq_len;
    c.norm = transformer::NormKind::rms;
    c.norm_eps = 1e-5f;             // llama2.c has this, theta and SiLU in its code, not in the file
    c.rope_theta = 10000.0f;
    c.activation = transformer::Activation::silu;
    c.flags = transformer::flag_causal;

    const auto add = [&](Role role, T tensor, uint32_t layer, uint64_t identity) {
        const Llama2cShape s = llama2c_shape(h, tensor);
        const bool quantised = llama2c_quantised(h, tensor);
        TensorSource t;
        t.layer = layer;
        t.role = static_cast<uint8_t>(role);
        t.rows = static_cast<uint32_t>(s.rows);
        t.cols = static_cast<uint32_t>(s.cols);
        t.stored = quantised ? DType::q8_0 : DType::f32;
        t.identity = identity;
        const uint64_t offset = llama2c_offset(h, tensor, layer ? layer - 1 : 0);
        const uint32_t pairs = role == Role::wq || role == Role::wk ? head_dim / 2 : 0, group = h.group_size;
        t.read = [file, offset, s, quantised, pairs, group](uint32_t, uint32_t first, uint32_t n, float* out) {
            const unsigned char* data = file->data + offset;
            const unsigned char* scales = data + s.rows * s.cols;
            for (uint64_t i = first; i < uint64_t{first} + n; i++, out += s.cols) {
                // (x[2j], x[2j+1]) become (x[j], x[j + d/2]).
                const uint64_t in_head = pairs ? i % (2 * pairs) : 0;
                const uint64_t turned = in_head < pairs ? 2 * in_head : 2 * (in_head - pairs) + 1;
                const uint64_t row = pairs ? i - in_head + turned : i;
                uint64_t at = row * s.cols;
                if (!quantised) {
                    for (uint64_t j = 0; j < s.cols; j++) out[j] = load_f32(data + 4 * (at + j));
                    continue;
                }
                for (uint64_t j = 0; j < s.cols;) {            // up to the end of the group or of the row
                    const uint64_t in_group = at % group, run = std::min<uint64_t>(group - in_group, s.cols - j);
                    const float scale = load_f32(scales + 4 * (at / group));
                    for (uint64_t k = 0; k < run; k++)
                        out[j + k] = scale * static_cast<float>(data[at + k] < 128 ? int{data[at + k]}
                            : int{data[at + k]} - 256);
                    j += run;
                    at += run;
                }
            }
        };
        source.tensors.push_back(std::move(t));
    };
    add(Role::token_embedding, T::token_embedding, 0, 1);
    for (uint32_t layer = 1; layer <= h.n_layers; layer++) {
        add(Role::attn_norm_pre, T::attn_norm, layer, 0);
        add(Role::wq, T::wq, layer, 0);
        add(Role::wk, T::wk, layer, 0);
        add(Role::wv, T::wv, layer, 0);
        add(Role::wo, T::wo, layer, 0);
        add(Role::ffn_norm_pre, T::ffn_norm, layer, 0);
        add(Role::gate, T::w1, layer, 0);
        add(Role::down, T::w2, layer, 0);
        add(Role::up, T::w3, layer, 0);
    }
    add(Role::final_norm, T::final_norm, 0, 0);
    add(Role::lm_head, h.tied ? T::token_embedding : T::classifier, 0, h.tied ? 1 : 2);

    if (!tokenizer.empty()) {
        source.vocabulary = read_llama2c_tokenizer(*map_file(tokenizer), tokenizer, h.vocab_size);
    } else {
        // The names that llama2.c gives them: the Llama tokenizer, and one trained for a vocabulary of this size.
        for (const std::string& name : {std::string("tokenizer.bin"), "tok" + std::to_string(h.vocab_size) + ".bin"}) {
            const std::string beside = join(folder_of(path), name);
            if (!is_file(beside)) continue;
            const File found = map_file(beside);
            if (count_llama2c_tokens(*found) != h.vocab_size) continue;
            source.vocabulary = read_llama2c_tokenizer(*found, beside, h.vocab_size);
            break;
        }
    }
    // llama2.c ends a text at either, whatever the tokenizer.
    if (h.vocab_size > 2) {
        source.vocabulary.stop = {1, 2};
        source.vocabulary.bos = 1;
        source.vocabulary.eos = 2;
    }
    return source;
}

}  // namespace weights
#endif
