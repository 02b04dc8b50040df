// weights/gguf.hpp - GGUF files, llama.cpp's format, as a Source
//
// "GGUF", u32 version, u64 tensors, u64 settings; the settings: key, type, value; the tensors:
// name, sizes, type, offset; then the data, aligned. Versions 2 and 3, little-endian. A file may be
// crafted: every count, length and offset is held against the bytes that are left before anything
// is made of it, and what is kept of a file is smaller than the file.
//
// An architecture is one row of gguf_families(): where its tensors go, and a function for what no
// table says. A tensor that no row asks for and a setting that nobody has read are refused by name.
// The numbers are those of the model that was converted (its own GELU, T5's scale of a tied head),
// which are not llama.cpp's in every last digit.
#ifndef TRANSFORMER_WEIGHTS_GGUF_HPP
#define TRANSFORMER_WEIGHTS_GGUF_HPP

#include "ggml_types.hpp"
#include "huggingface.hpp" // RopeSettings, rope_frequencies, t5_bucket, alibi_slopes
#include "import.hpp"
#include "tokenizers.hpp"

#include <string_view>

namespace weights {

// ---- The container ------------------------------------------------------------------------------

enum class GgufKind : uint32_t {
    u8, i8, u16, i16, u32, i32, f32, boolean, text, list, u64, i64, f64, n_kinds
};

inline uint64_t gguf_width(GgufKind kind) // bytes of a value; 0: it says itself
{
    static constexpr uint8_t widths[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return widths[static_cast<uint32_t>(kind)];
}
struct GgufValue {
    GgufKind kind, item; // item: of a list
    uint64_t count, at;  // of a list; offset of the value, or of the list's first item
};
struct GgufTensor {
    std::string name;
    uint32_t type_id = 0;
    const GgmlType* type = nullptr;   // null: a type without a name here
    uint64_t sizes[4] = {1, 1, 1, 1}; // the first is along a row
    const unsigned char* data = nullptr;
    File file; // keeps the data alive
    std::string path;

    uint64_t row_bytes() const { return sizes[0] / type->block * type->bytes; }
    Shape shape() const // as PyTorch says it: rows before columns
    {
        Shape shape;
        for (size_t i = 4; i-- > 0;)
            if (sizes[i] != 1 || !shape.empty()) shape.push_back(sizes[i]);
        return shape;
    }
};

class GgufFile {
public:
    explicit GgufFile(const std::string& name) : path(name), file(map_file(name))
    {
        if (file->size < 24 || std::memcmp(file->data, "GGUF", 4) != 0)
            throw Error(path + ": is no GGUF file");
        const uint32_t version = load_u32(file->data + 4);
        if (version && version % 65536 == 0)
            throw Error(path + ": is a big-endian GGUF file; only little-endian ones are read");
        if (version != 2 && version != 3)
            throw Error(path + ": is a GGUF file of version " + std::to_string(version) +
                        "; versions 2 and 3 are read");
        const uint64_t n_tensors = load_u64(file->data + 8), n_values = load_u64(file->data + 16);
        at_ = 24;
        if (n_values > most_values || n_values > left() / 13)
            fail("it says that it has " + std::to_string(n_values) + " settings");
        for (uint64_t i = 0; i < n_values; i++) read_value();
        if (n_tensors > most_tensors || n_tensors > left() / 32)
            fail("it says that it has " + std::to_string(n_tensors) + " tensors");
        uint64_t alignment = 32;
        if (const auto v = values.find("general.alignment"); v != values.end()) {
            if (v->second.kind != GgufKind::u32) fail("general.alignment is no 32-bit number");
            alignment = load_u32(file->data + v->second.at);
            if (!alignment || (alignment & (alignment - 1)))
                fail("general.alignment is " + std::to_string(alignment) + ", no power of two");
        }
        std::vector<GgufTensor*> order;
        std::vector<uint64_t> offsets;
        for (uint64_t i = 0; i < n_tensors; i++) {
            order.push_back(&read_tensor());
            offsets.push_back(load_u64(take(8, "a tensor")));
            if (offsets.back() % alignment)
                fail("the offset of the tensor " + printable(order.back()->name) +
                     " is not aligned");
        }
        // Both are far below 2^63.
        const uint64_t begin = transformer::round_up(at_, alignment);
        for (size_t i = 0; i < order.size(); i++) place(*order[i], begin, offsets[i]);
    }

    std::string path;
    File file;
    std::map<std::string, GgufValue> values;
    std::map<std::string, GgufTensor> tensors;

private:
    // Far more than any file has.
    static constexpr uint64_t most_values = 65536, most_tensors = 1 << 20;
    uint64_t at_ = 0;

    uint64_t left() const { return file->size - at_; }
    [[noreturn]] void fail(const std::string& what) const
    {
        throw Error(path + ": broken GGUF file, at byte " + std::to_string(at_) + " of " +
                    std::to_string(file->size) + ": " + what);
    }
    const unsigned char* take(uint64_t n, const char* what)
    {
        if (n > left()) fail(std::string("it ends inside ") + what + " (an unfinished download?)");
        at_ += n;
        return file->data + (at_ - n);
    }
    std::string take_name(const char* what)
    {
        const uint64_t n = load_u64(take(8, what));
        if (!n || n > 65535)
            fail(std::string(what) + " has a name of " + std::to_string(n) + " bytes");
        return std::string(reinterpret_cast<const char*>(take(n, what)), static_cast<size_t>(n));
    }
    GgufKind take_kind(const std::string& key)
    {
        const uint32_t kind = load_u32(take(4, "a setting"));
        if (kind >= static_cast<uint32_t>(GgufKind::n_kinds))
            fail(printable(key) + " has the unknown type " + std::to_string(kind));
        return static_cast<GgufKind>(kind);
    }
    void read_value()
    {
        const std::string key = take_name("a setting");
        GgufValue v = {take_kind(key), GgufKind::u8, 1, at_};
        if (v.kind == GgufKind::list) {
            v.item = take_kind(key);
            v.count = load_u64(take(8, "a list"));
            v.at = at_;
            skip_items(v.item, v.count, key, 0);
        } else {
            skip_items(v.kind, 1, key, 0);
        }
        if (!values.emplace(key, v).second)
            fail("the setting " + printable(key) + " is there twice");
    }
    void skip_items(GgufKind kind, uint64_t count, const std::string& key, uint32_t depth)
    {
        const uint64_t least = kind == GgufKind::text   ? 8
                               : kind == GgufKind::list ? 12
                                                        : gguf_width(kind);
        if (count > left() / least)
            fail(printable(key) + " has " + std::to_string(count) +
                 " items, more than there are bytes");
        if (kind != GgufKind::text && kind != GgufKind::list) {
            take(count * gguf_width(kind), "a setting");
            return;
        }
        if (depth > 3) fail(printable(key) + " has lists inside lists");
        for (uint64_t i = 0; i < count; i++) {
            if (kind == GgufKind::text) {
                take(load_u64(take(8, "a text")), "a text");
            } else {
                const GgufKind item = take_kind(key);
                skip_items(item, load_u64(take(8, "a list")), key, depth + 1);
            }
        }
    }
    GgufTensor& read_tensor()
    {
        const std::string name = take_name("a tensor");
        const auto added = tensors.emplace(name, GgufTensor());
        if (!added.second) fail("the tensor " + printable(name) + " is there twice");
        GgufTensor& t = added.first->second;
        t.name = name;
        t.path = path;
        t.file = file;
        const uint32_t n = load_u32(take(4, "a tensor"));
        if (n < 1 || n > 4)
            fail("the tensor " + printable(name) + " has " + std::to_string(n) + " dimensions");
        for (uint32_t i = 0; i < n; i++)
            if (!(t.sizes[i] = load_u64(take(8, "a tensor"))))
                fail("the tensor " + printable(name) + " is empty");
        t.type_id = load_u32(take(4, "a tensor"));
        t.type = ggml_type(t.type_id);
        return t;
    }
    void place(GgufTensor& t, uint64_t begin, uint64_t offset) const
    {
        if (!t.type) return; // refused if someone wants to read it
        const std::string what = path + ": the tensor " + printable(t.name);
        if (t.sizes[0] % t.type->block)
            throw Error(what + " has rows of " + std::to_string(t.sizes[0]) +
                        " values, no multiple of the " + std::to_string(t.type->block) +
                        " of a block of " + t.type->name);
        const uint64_t n = mul_sat(mul_sat(t.sizes[0] / t.type->block, t.sizes[1]),
                                   mul_sat(t.sizes[2], t.sizes[3]));
        const uint64_t end = add_sat(add_sat(begin, offset), mul_sat(n, t.type->bytes));
        if (end > file->size)
            throw Error(what + " reaches past the end of the file, which has " +
                        std::to_string(file->size) + " bytes (an unfinished download?)");
        t.data = file->data + begin + offset;
    }
};

// ---- Name maps ----------------------------------------------------------------------------------

struct GgufRow {
    const char* name;      // of a weight and its bias; of a block's without blk.N.
    Role role;
    const char* when = ""; // condition; "?": if the file has it; ! for the contrary
};
using GgufRows = std::vector<GgufRow>;
inline GgufRows operator+(GgufRows a, const GgufRows& b)
{
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

class GgufReader;
enum : uint32_t {
    gguf_pairs = 1,    // RoPE turns neighbouring pairs of q and k
    gguf_shifts = 2,   // norms have a bias
    gguf_parallel = 4, // attention and feed-forward read the same norm
    gguf_encoder = 8
};
struct GgufFamily {
    const char* names; // of general.architecture, between blanks
    transformer::NormKind norm;
    Activation activation;
    uint32_t traits;
    GgufRows rows;
    void (*quirks)(GgufReader&);
    GgufRows encoder = {}; // of an encoder-decoder
};
inline const std::vector<GgufFamily>& gguf_families();

// Where the rows of a slot stand in the file.
struct GgufPick {
    std::vector<const GgufTensor*> parts; // one, or one for each matrix
    std::shared_ptr<const void> files;
    uint32_t rows = 0, cols = 0;
    uint64_t first = 0;                    // rows before the slot's first one,
    uint64_t matrix = 0;                   // and from one stacked matrix to the next
    uint32_t head = 0, rope = 0;           // of each head's rows the first `rope` are rotated;
    bool pairs = false, rope_last = false; // in the file: as neighbouring pairs, at the head's end
    bool flat = false;                     // a vector: what holds for rows holds for its elements
    bool across = false;                   // the slot's rows are the file's columns

    uint64_t source_row(uint64_t r) const
    {
        if (!head) return r;
        const uint64_t base = r / head * head, i = r % head, half = rope / 2;
        if (i >= rope) return base + i - (rope_last ? rope : 0);
        const uint64_t turned = pairs ? (i < half ? 2 * i : 2 * (i - half) + 1) : i;
        return base + turned + (rope_last ? head - rope : 0);
    }
    const unsigned char* row(uint32_t m, uint64_t r) const
    {
        return at(m, r, parts[0]->row_bytes());
    }
    const unsigned char* element(uint32_t m) const { return at(m, 0, parts[0]->type->bytes); }
    const unsigned char* at(uint32_t m, uint64_t r, uint64_t bytes) const
    {
        const bool one = parts.size() == 1;
        return parts[one ? 0 : m]->data + (first + (one ? m * matrix : 0) + r) * bytes;
    }
    void read(uint32_t m, uint32_t from, uint32_t n, float* out) const
    {
        const GgmlType& type = *parts[0]->type;
        if (flat) {
            std::vector<float> whole(size_t{rows} * cols);
            type.decode(element(m), whole.size(), whole.data());
            for (size_t i = 0; i < size_t{n} * cols; i++)
                out[i] = whole[source_row(size_t{from} * cols + i)];
        } else if (across) {
            const uint32_t begin = from / type.block * type.block,
                           end = (from + n + type.block - 1) / type.block * type.block;
            std::vector<float> piece(end - begin);
            for (uint32_t c = 0; c < cols; c++) {
                type.decode(row(m, c) + begin / type.block * type.bytes, piece.size() / type.block,
                            piece.data());
                for (uint32_t i = 0; i < n; i++)
                    out[size_t{i} * cols + c] = piece[from - begin + i];
            }
        } else {
            for (uint32_t i = 0; i < n; i++)
                type.decode(row(m, source_row(uint64_t{from} + i)), cols / type.block,
                            out + size_t{i} * cols);
        }
    }
    void tile(uint32_t m, uint32_t number, unsigned char* out) const
    {
        const unsigned char* list[16] = {};
        for (uint32_t r = 0; r < 16 && number * 16 + r < rows; r++)
            list[r] = row(m, source_row(uint64_t{number} * 16 + r));
        parts[0]->type->tile(list, cols, out);
    }
};

// ---- The reader ---------------------------------------------------------------------------------

class GgufReader {
public:
    GgufReader(const std::string& path, const std::string& tokenizer)
    {
        open_parts(path);
        choose_family();
        main.norm = encoder.norm = family->norm;
        main.activation = family->activation;
        main_rows = family->rows;
        if (!(family->traits & gguf_encoder)) main.n_outputs = rows_of("token_embd.weight");
        family->quirks(*this);
        if (pooled) set_pooling();
        if (main.n_outputs && (main.pooling != Pooling::none || !transformer::is_causal(main)) &&
            !(family->traits & gguf_encoder)) // a decoder that gives vectors of texts
            drop_head();
        add_rows(main_rows, 0, main);
        if (encoder.n_layers) add_rows(family->encoder, 1, encoder);
        finish();
        read_vocabulary(tokenizer);
        source.main = main;
        source.encoder = encoder;
    }

    // ---- Settings ----
    // A name without a dot in front is the architecture's: "block_count" is llama.block_count.

    std::string full(const std::string& name) const
    {
        return name[0] == '.' ? name.substr(1) : architecture + "." + name;
    }
    const GgufValue* find(const std::string& name) const
    {
        asked.insert(full(name));
        const auto found = parts[0]->values.find(full(name));
        return found == parts[0]->values.end() ? nullptr : &found->second;
    }
    [[noreturn]] void refuse(const std::string& name,
                             const std::string& why = "is not supported") const
    {
        const GgufValue* v = find(name);
        throw Error(where + ": " + full(name) + (v ? " = " + in_words(*v) : "") + " " + why);
    }
    void refuse_if(bool wrong, const std::string& name) const
    {
        if (wrong) refuse(name);
    }
    double real(const std::string& name) const
    {
        const GgufValue* v = find(name);
        if (!v) throw Error(where + ": the setting " + full(name) + " is missing");
        return number(*v, 0, name);
    }
    double real(const std::string& name, double otherwise) const
    {
        return find(name) ? real(name) : otherwise;
    }
    float f32(const std::string& name, double otherwise) const
    {
        return static_cast<float>(real(name, otherwise));
    }
    // A list that says the same of each layer is one number.
    uint32_t u32(const std::string& name) const
    {
        const GgufValue* v = find(name);
        if (!v) throw Error(where + ": the setting " + full(name) + " is missing");
        const double value = number(*v, 0, name);
        if (!(value >= 0 && value < 2147483648.0) || value != std::floor(value))
            refuse(name, "is no whole number below 2^31");
        for (uint64_t i = 1; i < v->count; i++)
            if (number(*v, i, name) != value)
                refuse(name, "differs from layer to layer, which is not supported");
        return static_cast<uint32_t>(value);
    }
    uint32_t u32(const std::string& name, uint32_t otherwise) const
    {
        return find(name) ? u32(name) : otherwise;
    }
    bool truth(const std::string& name, bool otherwise) const { return real(name, otherwise) != 0; }
    std::string word(const std::string& name, const std::string& otherwise = "") const
    {
        const GgufValue* v = find(name);
        if (!v) return otherwise;
        if (v->kind != GgufKind::text) refuse(name, "is no text");
        return std::string(text_at(v->at));
    }
    std::vector<double> numbers(const std::string& name) const
    {
        std::vector<double> list;
        const GgufValue* v = find(name);
        if (v && v->count > longest_list) refuse(name, "has too many entries");
        for (uint64_t i = 0; v && i < v->count; i++) list.push_back(number(*v, i, name));
        return list;
    }
    // The texts of a list, one after another.
    template <class Each> void texts(const std::string& name, const Each& each) const
    {
        const GgufValue* v = find(name);
        if (!v) return;
        if (v->kind != GgufKind::list || v->item != GgufKind::text)
            refuse(name, "is no list of texts");
        if (v->count > longest_list) refuse(name, "has too many entries");
        uint64_t at = v->at;
        for (uint64_t i = 0; i < v->count; i++) {
            const std::string_view text = text_at(at);
            each(text);
            at += 8 + text.size();
        }
    }

    // ---- The configuration of one stack ----

    void fill(Config& c)
    {
        c.dim = c.embedding_dim = u32("embedding_length");
        const uint32_t blocks = u32("block_count"), further = u32("nextn_predict_layers", 0);
        if (further >= blocks || blocks > 1024) refuse("block_count");
        c.n_layers = blocks - further; // those guess further tokens, which nobody asks for
        c.n_heads = u32("attention.head_count");
        if (!c.n_heads || c.n_heads > 65536) refuse("attention.head_count");
        if (const GgufTensor* t = optional("token_embd.weight"); !t || t->sizes[0] != c.dim)
            refuse("embedding_length", "does not fit the tensor token_embd.weight");
        c.n_kv_heads = u32("attention.head_count_kv", c.n_heads);
        if (!c.n_kv_heads || c.n_heads % c.n_kv_heads)
            throw Error(where + ": " + std::to_string(c.n_heads) + " heads cannot share " +
                        std::to_string(c.n_kv_heads) + " key heads");
        if (!find("attention.key_length") && c.dim % c.n_heads)
            throw Error(where + ": embedding_length " + std::to_string(c.dim) +
                        " is no multiple of " + std::to_string(c.n_heads) + " heads");
        c.head_dim = u32("attention.key_length", c.dim / c.n_heads);
        c.v_head_dim = u32("attention.value_length", c.dim / c.n_heads);
        for (const uint32_t size : {c.head_dim, c.v_head_dim})
            if (!size || size > 65536)
                throw Error(where + ": heads of " + std::to_string(size) +
                            " values are not possible");
        refuse_if(u32("attention.key_length_swa", c.head_dim) != c.head_dim,
                  "attention.key_length_swa");
        refuse_if(u32("attention.value_length_swa", c.v_head_dim) != c.v_head_dim,
                  "attention.value_length_swa");
        c.max_seq_len = u32("context_length");
        if (!c.max_seq_len || c.max_seq_len > most_positions)
            refuse("context_length", "is no number of positions from 1 to 2^28");
        c.vocab_size = rows_of("token_embd.weight");
        // Some converters take feed_forward_length to be 4 dim, so the tensor counts.
        c.hidden_dim = width_of("ffn_down.weight", false);
        if (!c.hidden_dim) c.hidden_dim = u32("feed_forward_length", 0);
        const bool rms = c.norm == transformer::NormKind::rms;
        c.norm_eps = c.qk_norm_eps = static_cast<float>(
            real(rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"));
        c.attn_scale = f32("attention.scale", 1 / std::sqrt(static_cast<double>(c.head_dim)));
        c.qkv_clip = f32("attention.clamp_kqv", 0);
        if (!truth("attention.causal", !(family->traits & gguf_encoder)))
            c.flags &= ~uint32_t{transformer::flag_causal};
        if (family->traits & gguf_parallel) c.flags |= transformer::flag_parallel;
        flags.assign(c.n_layers, transformer::layer_local);
    }

    // `local`: rope.freq_base_swa, or what stands for it, in layers with a window; unscaled unless
    // `scaled`.
    void set_rope(Config& c, double local = 0, bool scaled = false)
    {
        c.rope_dim = u32("rope.dimension_count", c.kv_lora_rank ? c.rope_dim : c.head_dim);
        if (c.rope_dim % 2 != 0 || c.rope_dim > c.head_dim)
            throw Error(where + ": rope.dimension_count: " + std::to_string(c.rope_dim) +
                        " values of a head of " + std::to_string(c.head_dim) +
                        " cannot be rotated in pairs");
        refuse_if(u32("rope.dimension_count_swa", c.rope_dim) != c.rope_dim,
                  "rope.dimension_count_swa");
        RopeSettings s;
        s.theta = real("rope.freq_base", 10000);
        refuse_if(!(s.theta > 0), "rope.freq_base");
        s.type = word("rope.scaling.type", "linear");
        s.factor = real("rope.scaling.factor", real("rope.scale_linear", 1));
        if (s.factor == 0) s.factor = 1;
        refuse_if(!(s.factor > 0), "rope.scaling.factor");
        s.original_positions = u32("rope.scaling.original_context_length", c.max_seq_len);
        s.beta_fast = real("rope.scaling.yarn_beta_fast", 32);
        s.beta_slow = real("rope.scaling.yarn_beta_slow", 1);
        s.truncate = yarn_truncates;
        const double share = real("rope.scaling.yarn_ext_factor", 1),
                     factor = real("rope.scaling.attn_factor", 1);
        const double given = real("rope.scaling.yarn_attn_factor", 0);
        s.attention_factor = factor * (given != 0         ? given
                                       : yarn_factor != 0 ? yarn_factor
                                                          : yarn_mscale(s.factor, 1));
        for (const bool beyond : {false, true})
            if (const GgufTensor* t = optional(beyond ? "rope_factors_long.weight"
                                                      : "rope_factors_short.weight")) {
                const std::vector<float> list = vector(*t, c.rope_dim / 2);
                (beyond ? s.long_factor : s.short_factor).assign(list.begin(), list.end());
                s.type = "longrope";
                s.attention_factor = factor;
            }
        if (s.type == "none") s.factor = 1;
        if (s.type == "none" || (s.type == "linear" && s.factor == 1) ||
            (s.type == "yarn" && s.factor == 1))
            s.type = "default";
        refuse_if(s.type != "default" && s.type != "linear" && s.type != "yarn" &&
                      s.type != "longrope",
                  "rope.scaling.type");
        refuse_if(s.type == "yarn" && share != 1, "rope.scaling.yarn_ext_factor");
        refuse_if(s.type != "yarn" && share != 1 && share != 0, "rope.scaling.yarn_ext_factor");
        if (s.type == "longrope" && (s.short_factor.empty() || s.long_factor.empty()))
            refuse("rope.scaling.type", "needs two lists of factors");
        refuse_if(s.type != "default" && !(s.original_positions > 0),
                  "rope.scaling.original_context_length");
        refuse_if(real("rope.scaling.alpha", 0) != 0, "rope.scaling.alpha");
        c.rope_theta = static_cast<float>(s.theta);
        c.rope_scale = static_cast<float>(
            s.type == "default" || s.type == "linear" ? factor : rope_attention_factor(s));
        if (!c.rope_dim) return;

        const GgufTensor* const divisors = optional("rope_freqs.weight");
        RopeSettings l = s;
        if (!scaled) l.type = "default";
        l.theta = real("rope.freq_base_swa", local);
        const bool two = local > 0 && (l.theta != s.theta || l.type != s.type);
        if (s.type == "default" && !divisors && !two) return;
        std::vector<float> rows = rope_frequencies(s, c.rope_dim), second;
        if (s.type == "longrope") {
            refuse_if(two, "rope.freq_base_swa");
            second = rope_frequencies(s, c.rope_dim, true);
            c.rope_long_from = static_cast<uint32_t>(s.original_positions);
        } else if (two) {
            refuse_if(scaled && c.rope_scale != 1.0f, "rope.freq_base_swa");
            second = rope_frequencies(l, c.rope_dim);
            for (uint8_t& f : flags)
                if (f & transformer::layer_local)
                    f = static_cast<uint8_t>(f | transformer::layer_rope_local);
        }
        if (divisors) {
            const std::vector<float> by = vector(*divisors, c.rope_dim / 2);
            for (size_t i = 0; i < by.size(); i++) rows[i] /= by[i];
            for (size_t i = 0; i < by.size() && i < second.size(); i++) second[i] /= by[i];
        }
        const uint32_t n = second.empty() ? 1 : 2;
        rows.insert(rows.end(), second.begin(), second.end());
        table(0, 0, Role::rope_freqs, n, c.rope_dim / 2, std::move(rows));
    }

    // Every `pattern`-th layer sees everything, the others attention.sliding_window keys; 0: all
    // have the window. The first of `pattern` layers is the one that sees everything, or the last.
    void set_window(uint32_t pattern, bool first = false, uint32_t otherwise = 0)
    {
        const uint32_t window = u32("attention.sliding_window", otherwise);
        const GgufValue* v = find("attention.sliding_window_pattern");
        std::vector<double> list;
        if (v && v->kind == GgufKind::list) {
            list = numbers("attention.sliding_window_pattern");
            refuse_if(list.size() != main.n_layers, "attention.sliding_window_pattern");
        } else {
            pattern = u32("attention.sliding_window_pattern", pattern);
            list.assign(main.n_layers, 1);
            for (uint32_t i = 0; pattern && i < main.n_layers; i++)
                list[i] = i % pattern != (first ? 0 : pattern - 1);
        }
        for (uint32_t i = 0; i < main.n_layers; i++)
            if (!window || list[i] == 0)
                flags[i] = static_cast<uint8_t>(flags[i] & ~transformer::layer_local);
        main.window = window;
    }
    // A window to either side.
    void set_window_around(uint32_t pattern, bool first)
    {
        set_window(pattern, first);
        if (!main.window) return;
        main.window_ahead = main.window / 2;
        main.window = main.window_ahead + 1;
    }
    // Which rows are the vector of a text. Only an encoder has rows that know of all others.
    void set_pooling()
    {
        static constexpr Pooling kinds[] = {Pooling::none, Pooling::mean, Pooling::first,
                                            Pooling::last};
        const uint32_t type = u32("pooling_type", 0);
        refuse_if(type > 3 || (transformer::is_causal(main) && (type == 1 || type == 2)),
                  "pooling_type");
        main.pooling = kinds[type];
        if (main.pooling != Pooling::none)
            main.flags |= transformer::flag_normalise; // as llama.cpp gives vectors
    }
    void drop_head()
    {
        main.n_outputs = 0;
        used.insert("output.weight");
        main_rows.erase(std::remove_if(main_rows.begin(), main_rows.end(),
                                       [](const GgufRow& r) { return r.role == Role::lm_head; }),
                        main_rows.end());
    }
    // A classifier on an encoder's pooled row.
    void set_classifier(Activation activation, Pooling pooling)
    {
        const bool there = has("cls.output.weight"), wanted = u32("pooling_type", 4) == 4;
        conditions["classifier"] = there && wanted;
        for (const char* name :
             {"cls.weight", "cls.bias", "cls.norm.weight", "cls.output.weight", "cls.output.bias"})
            if (!wanted) used.insert(name);
        if (!there || !wanted) return;
        main.n_outputs = rows_of("cls.output.weight");
        main.pooling = pooling;
        main.head_activation = activation;
        pooled = false;
        texts("classifier.output_labels", [&](std::string_view text) {
            source.vocabulary.labels += (source.vocabulary.labels.empty() ? "" : "\n") +
                                        std::string(text);
        });
    }
    void without_rope(const std::function<bool(uint32_t)>& layer)
    {
        for (uint32_t i = 0; i < main.n_layers; i++)
            if (layer(i)) flags[i] = static_cast<uint8_t>(flags[i] | transformer::layer_no_rope);
    }

    bool has(const std::string& name) const { return tensors.count(name) != 0; }
    static std::string block(uint32_t layer, const std::string& name)
    {
        return "blk." + std::to_string(layer) + "." + name;
    }
    bool routed(uint32_t layer) const { return has(block(layer, "ffn_gate_inp.weight")); }

    // Experts where there is a router. What the file does not say: whether the weights of the
    // chosen ones sum to 1.
    void set_experts(bool renormalise)
    {
        Config& c = main;
        bool any = false, dense = false;
        for (uint32_t i = 0; i < c.n_layers; i++) (routed(i) ? any : dense) = true;
        c.n_experts = u32("expert_count", 0);
        c.n_experts_active = u32("expert_used_count", 0);
        uint32_t gating = u32("expert_gating_func", 0);
        for (uint32_t i = 0; i < c.n_layers && !gating; i++) // only sigmoid routers have this bias
            if (has(block(i, "exp_probs_b.bias"))) gating = 2;
        renormalise = truth("expert_weights_norm", renormalise);
        const float scale = f32("expert_weights_scale", 0);
        const uint32_t groups = u32("expert_group_count", 0);
        const uint32_t groups_active = u32("expert_group_used_count", 0);
        if (!any) {
            c.n_experts = c.n_experts_active = 0;
            return;
        }
        if (!c.n_experts || c.n_experts > 65536 || !c.n_experts_active ||
            c.n_experts_active > c.n_experts)
            throw Error(where + ": " + std::to_string(c.n_experts_active) +
                        " experts cannot be chosen from " + std::to_string(c.n_experts));
        refuse_if(gating > 3, "expert_gating_func");
        if (gating == 3) renormalise = true; // a softmax over the chosen ones comes to the same
        if (gating == 2) c.router = transformer::Router::sigmoid;
        if (renormalise) c.flags |= transformer::flag_renormalise;
        if (scale != 0.0f) c.routed_scale = scale;
        if (groups > 1) {
            refuse_if(c.n_experts % groups || !groups_active || groups_active > groups,
                      "expert_group_count");
            c.n_groups = groups;
            c.n_groups_active = groups_active;
            if (gating == 2) c.flags |= transformer::flag_group_top2;
        }
        c.dense_hidden_dim = dense ? width_of("ffn_down.weight", false) : 0;
        for (const char* name : {"ffn_down_exps.weight", "ffn_down.0.weight"})
            if (const uint32_t n = width_of(name, true)) c.hidden_dim = n;
        if (c.dense_hidden_dim == c.hidden_dim) c.dense_hidden_dim = 0;
        c.shared_hidden_dim = width_of("ffn_down_shexp.weight", true);
    }

    // ---- Tensors ----

    uint32_t rows_of(const std::string& name)
    {
        const GgufTensor* t = optional(name);
        if (!t) throw Error(where + ": the tensor " + name + " is missing");
        if (t->sizes[1] > (1u << 30))
            throw Error(where + ": the tensor " + name + " has too many rows");
        return static_cast<uint32_t>(t->sizes[1]);
    }
    const GgufTensor* optional(const std::string& name)
    {
        const auto found = tensors.find(name);
        if (found == tensors.end()) return nullptr;
        used.insert(name);
        const GgufTensor& t = *found->second;
        if (!t.type || !t.type->decode)
            throw Error(
                t.path + ": the tensor " + printable(name) + " has the type " +
                (t.type ? std::string(t.type->name) : "number " + std::to_string(t.type_id)) +
                ", which is not read");
        return &t;
    }
    // One of that shape, rows before columns; null if it is not there.
    const GgufTensor* optional(const std::string& name, const Shape& shape)
    {
        const GgufTensor* t = optional(name);
        Shape want = shape;
        while (want.size() > 1 && want.front() == 1) want.erase(want.begin());
        Shape have = t ? t->shape() : want;
        if (have.empty()) have = {1};
        if (have != want)
            throw Error(t->path + ": the tensor " + printable(name) + " has the shape " +
                        shape_text(have) + ", the settings ask for " + shape_text(want));
        return t;
    }
    std::vector<float> vector(const GgufTensor& t, uint32_t n)
    {
        optional(t.name, {n});
        std::vector<float> values(n);
        if (t.type->block != 1)
            throw Error(t.path + ": the tensor " + t.name + " has the type " + t.type->name +
                        ", which is not read");
        t.type->decode(t.data, n, values.data());
        return values;
    }

    TensorSource& push(uint32_t stack, uint32_t layer, uint8_t role, uint32_t rows, uint32_t cols)
    {
        TensorSource t;
        t.stack = stack;
        t.layer = layer;
        t.role = role;
        t.rows = rows;
        t.cols = cols;
        source.tensors.push_back(std::move(t));
        return source.tensors.back();
    }
    // Tensors of the same key are one.
    uint64_t identity(const std::string& key)
    {
        return identities.emplace(key, identities.size() + 1).first->second;
    }
    // A tensor that follows from the settings.
    TensorSource& table(uint32_t stack, uint32_t layer, Role role, uint32_t rows, uint32_t cols,
                        std::vector<float> values)
    {
        TensorSource& t = push(stack, layer, static_cast<uint8_t>(role), rows, cols);
        const auto all = std::make_shared<const std::vector<float>>(std::move(values));
        t.read = [all, cols](uint32_t, uint32_t first, uint32_t n, float* out) {
            std::copy_n(all->begin() + static_cast<std::ptrdiff_t>(size_t{first} * cols),
                        size_t{n} * cols, out);
        };
        return t;
    }
    // A norm without weights.
    void ones(uint32_t layer, Role role, uint32_t n)
    {
        TensorSource& t = push(0, layer, static_cast<uint8_t>(role), 1, n);
        t.read = [n](uint32_t, uint32_t, uint32_t, float* out) { std::fill_n(out, n, 1.0f); };
        t.identity = identity("ones " + std::to_string(n));
    }

    // relative_bias of every layer out of tables of (buckets, heads); the first one is for layers
    // that have none.
    void add_relative_bias(Config& c, uint32_t stack, const std::string& at)
    {
        constexpr uint32_t longest = 128; // no setting says another
        const uint32_t buckets = u32("attention.relative_buckets_count");
        const bool both = !transformer::is_causal(c);
        refuse_if(buckets < 4 || buckets / (both ? 4 : 2) >= longest,
                  "attention.relative_buckets_count");
        c.relative_distance = longest;
        const uint32_t cols = 2 * longest + 1, heads = c.n_heads;
        for (uint32_t i = 0; i < c.n_layers; i++) {
            std::string name = at + std::to_string(i) + ".attn_rel_b.weight";
            if (!has(name)) name = at + "0.attn_rel_b.weight";
            const GgufTensor* t = optional(name, {buckets, heads});
            if (!t) throw Error(where + ": the tensor " + name + " is missing");
            TensorSource& bias = push(stack, i + 1, static_cast<uint8_t>(Role::relative_bias),
                                      heads, cols);
            bias.identity = identity(name + " expanded");
            // Expanded when it is written: many heads in many layers would take more than the file.
            bias.read = [t, heads, both, buckets, keep = files](uint32_t, uint32_t first,
                                                                uint32_t n, float* out) {
                const std::vector<float> rows = matrix(*t);
                for (uint32_t h = first; h < first + n; h++)
                    for (int64_t distance = -int64_t{longest}; distance <= longest; distance++)
                        *out++ = rows[size_t{t5_bucket(distance, both, buckets, longest)} * heads +
                                      h];
            };
        }
    }

    std::string where, architecture; // where: for messages
    const GgufFamily* family = nullptr;
    Source source;
    Config main, encoder;
    std::vector<uint8_t> flags; // of each layer
    std::map<std::string, bool> conditions;
    // q_norm: one for all heads, its own for each, one over all.
    enum { shared_norm, head_norm, full_norm } qk_norm = shared_norm;
    std::string prefix = "blk.", encoder_prefix = "enc.blk.";
    GgufRows main_rows; // the family's unless its quirks change them
    bool shifts = true; // gguf_shifts: a bias must be there; else it may be missing
    bool pooled = true; // pooling_type says which rows count
    bool yarn_truncates = true;
    double yarn_factor = 0; // what YaRN multiplies cos and sin by, if it is not the usual

private:
    void open_parts(const std::string& path)
    {
        where = path;
        parts.push_back(std::make_shared<GgufFile>(path));
        const auto number_of = [&](const GgufFile& f, const char* key) -> uint64_t {
            const auto v = f.values.find(key);
            if (v == f.values.end()) return 0;
            const double x = scalar(*f.file, v->second.kind, v->second.at);
            return x > 0 && x < 1e9 ? static_cast<uint64_t>(x) : 0;
        };
        const uint64_t n = number_of(*parts[0], "split.count");
        if (n > 1) { // PREFIX-00001-of-00003.gguf
            char tail[32] = "";
            std::snprintf(tail, sizeof tail, "-%05u-of-%05u.gguf",
                          static_cast<unsigned>(number_of(*parts[0], "split.no") + 1),
                          static_cast<unsigned>(std::min<uint64_t>(n, 99999)));
            const size_t length = std::strlen(tail);
            if (n > 99999 || path.size() < length ||
                path.compare(path.size() - length, length, tail) != 0)
                throw Error(path + ": is one of " + std::to_string(n) +
                            " files of a split model; its name must end in " + tail);
            std::vector<std::shared_ptr<GgufFile>> all;
            for (unsigned i = 1; i <= n; i++) {
                std::snprintf(tail, sizeof tail, "-%05u-of-%05u.gguf", i, static_cast<unsigned>(n));
                const std::string name = path.substr(0, path.size() - length) + tail;
                if (!is_file(name))
                    throw Error(path + ": is one of " + std::to_string(n) + " files; " + name +
                                " is missing");
                all.push_back(name == path ? parts[0] : std::make_shared<GgufFile>(name));
                if (number_of(*all.back(), "split.count") != n ||
                    number_of(*all.back(), "split.no") != i - 1)
                    throw Error(name + ": is no part " + std::to_string(i) + " of " +
                                std::to_string(n) + " of a split model");
            }
            parts = std::move(all);
        }
        files = std::make_shared<const std::vector<std::shared_ptr<GgufFile>>>(parts);
        for (const auto& part : parts)
            for (const auto& [name, t] : part->tensors)
                if (!tensors.emplace(name, &t).second)
                    throw Error(t.path + ": the tensor " + printable(name) +
                                " is in another part too");
        if (const uint64_t all = number_of(*parts[0], "split.tensors.count");
            n > 1 && all && all != tensors.size())
            throw Error(path + ": the parts have " + std::to_string(tensors.size()) +
                        " tensors, not " + std::to_string(all));
    }

    void choose_family()
    {
        architecture = word(".general.architecture");
        const std::string type = word(".general.type", "model");
        if (type != "model")
            throw Error(where + ": holds no model but \"" + printable(type) + "\"");
        std::string known;
        for (const GgufFamily& f : gguf_families())
            for (const std::string& name : split(f.names, ' ')) {
                known += (known.empty() ? "" : ", ") + name;
                if (name == architecture) family = &f;
            }
        if (!family)
            throw Error(where + ": the architecture \"" + printable(architecture) +
                        "\" is not supported; these are: " + known);
        source.kind = "GGUF " + architecture;
    }

    static constexpr uint64_t longest_list = 1 << 24; // tokens, more than a checkpoint can hold
    static constexpr uint32_t most_positions = 1u << 28; // the checkpoint's own limit

    // ---- Values in the file ----

    static double scalar(const MappedFile& file, GgufKind kind, uint64_t at)
    {
        const unsigned char* p = file.data + at;
        const auto signed_of = [](uint64_t value, uint32_t bits) {
            return value >> (bits - 1)
                       ? -static_cast<double>((~value & (~uint64_t{0} >> (64 - bits))) + 1)
                       : static_cast<double>(value);
        };
        switch (kind) {
        case GgufKind::u8: return p[0];
        case GgufKind::i8: return signed_of(p[0], 8);
        case GgufKind::boolean: return p[0] != 0;
        case GgufKind::u16: return load_u16(p);
        case GgufKind::i16: return signed_of(load_u16(p), 16);
        case GgufKind::u32: return load_u32(p);
        case GgufKind::i32: return load_i32(p);
        case GgufKind::f32: return static_cast<double>(load_f32(p));
        case GgufKind::u64: return static_cast<double>(load_u64(p));
        case GgufKind::i64: return signed_of(load_u64(p), 64);
        case GgufKind::f64: {
            const uint64_t word = load_u64(p);
            double wide;
            std::memcpy(&wide, &word, sizeof wide);
            return wide;
        }
        default: return 0;
        }
    }
    double number(const GgufValue& v, uint64_t i, const std::string& name) const
    {
        const GgufKind kind = v.kind == GgufKind::list ? v.item : v.kind;
        if (kind == GgufKind::text || kind == GgufKind::list || i >= v.count)
            refuse(name, "is no number");
        const double value = scalar(*parts[0]->file, kind, v.at + i * gguf_width(kind));
        if (!(std::fabs(value) <= 3e38)) refuse(name, "is no usable number");
        return value;
    }
    std::string_view text_at(uint64_t at) const // its length was checked when the file was read
    {
        const unsigned char* p = parts[0]->file->data + at;
        return {reinterpret_cast<const char*>(p) + 8, static_cast<size_t>(load_u64(p))};
    }
    std::string in_words(const GgufValue& v) const
    {
        if (v.kind == GgufKind::list) return "a list of " + std::to_string(v.count);
        if (v.kind == GgufKind::text)
            return "\"" + printable(std::string(text_at(v.at).substr(0, 100))) + "\"";
        if (v.kind == GgufKind::boolean)
            return scalar(*parts[0]->file, v.kind, v.at) != 0 ? "true" : "false";
        std::ostringstream out;
        out.imbue(std::locale::classic());
        const double value = scalar(*parts[0]->file, v.kind, v.at);
        if (v.kind != GgufKind::f32 && v.kind != GgufKind::f64) out.precision(20);
        out << value;
        return out.str();
    }

    // ---- Sizes ----

    // What the first block that has this tensor reads with it; 0 if none has. `routed_block`: of
    // those with experts, or not.
    uint32_t width_of(const std::string& name, bool routed_block)
    {
        for (uint32_t i = 0; i < main.n_layers; i++)
            if (routed(i) == routed_block)
                for (const std::string& at : {prefix, encoder_prefix})
                    if (const auto t = tensors.find(at + std::to_string(i) + "." + name);
                        t != tensors.end() && t->second->sizes[0] < (1u << 30))
                        return static_cast<uint32_t>(t->second->sizes[0]);
        return 0;
    }
    static std::vector<float> matrix(const GgufTensor& t)
    {
        std::vector<float> values(static_cast<size_t>(t.sizes[0] * t.sizes[1]));
        t.type->decode(t.data, values.size() / t.type->block, values.data());
        return values;
    }

    struct Size {
        uint32_t count, rows, cols;
    };
    Size size_of(Role role, const Config& c, uint32_t layer) const
    {
        const bool expert = c.n_experts && routed(layer), mla = c.kv_lora_rank != 0;
        const uint32_t n = expert ? c.n_experts : 1,
                       hidden = expert || !c.dense_hidden_dim ? c.hidden_dim : c.dense_hidden_dim;
        const uint32_t q = c.n_heads * (mla ? c.rope_dim + c.nope_head_dim : c.head_dim);
        const auto qk = [&](uint32_t heads) {
            return qk_norm == full_norm   ? Size{1, 1, heads * c.head_dim}
                   : qk_norm == head_norm ? Size{1, heads, c.head_dim}
                                          : Size{1, 1, c.head_dim};
        };
        switch (role) {
        case Role::token_embedding: return {1, c.vocab_size, c.dim};
        case Role::type_embedding: return {1, c.n_types, c.dim};
        case Role::position_embedding: return {1, c.max_seq_len, c.dim};
        case Role::lm_head: return {1, c.n_outputs, c.dim};
        case Role::head_dense: return {1, c.dim, c.dim};
        case Role::wq:
        case Role::cross_wq: return {1, q, c.q_lora_rank ? c.q_lora_rank : c.dim};
        case Role::wk:
        case Role::cross_wk: return {1, c.n_kv_heads * c.head_dim, c.dim};
        case Role::wv:
        case Role::cross_wv: return {1, c.n_kv_heads * c.v_head_dim, c.dim};
        case Role::wo:
        case Role::cross_wo: return {1, c.dim, c.n_heads * (mla ? c.mla_v_head_dim : c.v_head_dim)};
        case Role::q_norm: return qk(c.n_heads);
        case Role::k_norm: return qk(c.n_kv_heads);
        case Role::sinks: return {1, 1, c.n_heads};
        case Role::wq_a: return {1, c.q_lora_rank, c.dim};
        case Role::q_a_norm: return {1, 1, c.q_lora_rank};
        case Role::wkv_a: return {1, c.rope_dim + c.kv_lora_rank, c.dim};
        case Role::kv_a_norm: return {1, 1, c.kv_lora_rank};
        case Role::wk_b: return {c.n_heads, c.kv_lora_rank, c.nope_head_dim};
        case Role::wv_b: return {c.n_heads, c.mla_v_head_dim, c.kv_lora_rank};
        case Role::gate:
        case Role::up: return {n, hidden, c.dim};
        case Role::down: return {n, c.dim, hidden};
        case Role::router: return {1, c.n_experts, c.dim};
        case Role::router_bias: return {1, 1, c.n_experts};
        case Role::shared_gate:
        case Role::shared_up: return {1, c.shared_hidden_dim, c.dim};
        case Role::shared_down: return {1, c.dim, c.shared_hidden_dim};
        default: return {1, 1, c.dim};
        }
    }
    static bool is_norm(Role role)
    {
        return role == Role::embedding_norm || role == Role::final_norm ||
               role == Role::head_norm || role == Role::q_norm || role == Role::k_norm ||
               role == Role::q_a_norm || role == Role::kv_a_norm ||
               (role >= Role::attn_norm_pre && role <= Role::ffn_norm_out);
    }

    // ---- Slots ----

    void add_rows(const GgufRows& rows, uint32_t stack, const Config& c)
    {
        for (const GgufRow& row : rows)
            if (row.role < Role::attn_norm_pre) add_row(rows, row, stack, c, 0, "");
            else
                for (uint32_t i = 0; i < c.n_layers; i++)
                    add_row(rows, row, stack, c, i + 1,
                            (stack ? encoder_prefix : prefix) + std::to_string(i) + ".");
    }
    bool holds(std::string when, const std::string& stem, uint32_t layer) const
    {
        if (when.empty()) return true;
        const bool negated = when[0] == '!';
        if (negated) when.erase(0, 1);
        bool value = false;
        if (when == "?") value = has(stem + ".weight") || has(stem + ".bias");
        else if (when == "experts") value = layer && main.n_experts && routed(layer - 1);
        else if (when == "shared") value = layer && has(block(layer - 1, "ffn_down_shexp.weight"));
        else if (const auto at = conditions.find(when); at != conditions.end()) value = at->second;
        return value != negated;
    }
    void add_row(const GgufRows& rows, const GgufRow& row, uint32_t stack, const Config& c,
                 uint32_t layer, const std::string& at)
    {
        const Role role = row.role;
        const std::string stem = at + row.name;
        if (!holds(row.when, stem, layer)) return;
        Slot slot = {role, stack, layer, stem, false, false};
        for (const GgufRow& other : rows)
            slot.gated |= other.role == Role::gate && holds(other.when, at + other.name, layer);
        add_tensor(slot, c, true);
        slot.bias = true;
        switch (role) {
        case Role::token_embedding:
        case Role::type_embedding:
        case Role::position_embedding:
        case Role::sinks:
        case Role::wk_b:
        case Role::wv_b:
        case Role::router_bias: return;
        case Role::q_norm:
        case Role::k_norm: return add_tensor(slot, c, false);
        default: break;
        }
        if (!is_norm(role)) add_tensor(slot, c, false);
        else if (family->traits & gguf_shifts) add_tensor(slot, c, shifts);
    }

    struct Slot {
        Role role;
        uint32_t stack, layer;
        std::string stem; // the tensor's name without .weight
        bool bias, gated; // gated: the block has gates
    };
    static std::string replaced_in(std::string text, const std::string& from, const std::string& to)
    {
        const size_t at = text.rfind(from);
        return at == std::string::npos ? text : text.replace(at, from.size(), to);
    }

    // The tensor of a slot, or where it stands in one that holds several.
    void add_tensor(const Slot& slot, const Config& c, bool needed)
    {
        const Role role = slot.role;
        const bool norm = is_norm(role),
                   flat = slot.bias || norm || role == Role::sinks || role == Role::router_bias;
        const Size whole = size_of(role, c, slot.layer ? slot.layer - 1 : 0);
        const Size size = slot.bias && !norm ? Size{whole.count, 1, whole.rows} : whole;
        const uint64_t n = flat ? uint64_t{size.rows} * size.cols : size.rows;
        const std::string ending = slot.bias || role == Role::router_bias ? ".bias" : ".weight";
        const auto there = [&](const std::string& stem) { return has(stem + ".weight"); };
        uint64_t total = n;
        GgufPick pick;
        std::vector<std::string> stems = {slot.stem};

        const bool gate = role == Role::gate || role == Role::shared_gate,
                   up = role == Role::up || role == Role::shared_up;
        if (role == Role::wq || role == Role::wk || role == Role::wv) {
            // Below each other in attn_qkv; biases may stand alone.
            const std::string own(1, role == Role::wq ? 'q' : role == Role::wk ? 'k' : 'v');
            const std::string fused = replaced_in(slot.stem, "attn_" + own, "attn_qkv");
            if (!there(slot.stem) && there(fused) && (!slot.bias || has(fused + ending))) {
                const uint64_t queries = uint64_t{c.n_heads} * c.head_dim,
                               keys = uint64_t{c.n_kv_heads} * c.head_dim;
                stems = {fused};
                total = queries + keys + uint64_t{c.n_kv_heads} * c.v_head_dim;
                pick.first = role == Role::wq ? 0 : role == Role::wk ? queries : queries + keys;
            }
        } else if (gate || up || role == Role::down) {
            const std::string mark = gate ? "ffn_gate" : up ? "ffn_up" : "ffn_down";
            const bool many = size.count > 1;
            const std::string fused = replaced_in(slot.stem, mark, many ? "ffn_gate_up" : "ffn_up");
            if (many && !there(slot.stem) &&
                there(replaced_in(slot.stem, mark + "_exps", mark + ".0"))) {
                stems.clear(); // one tensor for each expert
                for (uint32_t i = 0; i < size.count; i++)
                    stems.push_back(
                        replaced_in(slot.stem, mark + "_exps", mark + "." + std::to_string(i)));
            } else if ((gate || up) && (slot.gated || role >= Role::shared_gate) && there(fused) &&
                       !there(replaced_in(slot.stem, mark, "ffn_gate"))) {
                stems = {fused}; // gates above the rest
                total = 2 * n;
                pick.first = gate ? 0 : n;
            }
        }

        // The order of rotated rows.
        const bool turned = role == Role::wq || role == Role::wk ||
                            ((role == Role::q_norm || role == Role::k_norm) &&
                             qk_norm != shared_norm);
        pick.pairs = (family->traits & gguf_pairs) != 0;
        if (c.kv_lora_rank && (role == Role::wq || role == Role::wkv_a)) {
            pick.head = c.rope_dim + (role == Role::wq ? c.nope_head_dim : c.kv_lora_rank);
            pick.rope = c.rope_dim;
            pick.rope_last = true;
        } else if (turned && pick.pairs && c.rope_dim) {
            pick.head = c.head_dim;
            pick.rope = c.rope_dim;
        }

        // Its shape in the file.
        Shape shape = flat ? norm && size.rows > 1 ? Shape{size.rows, size.cols} : Shape{total}
                           : Shape{total, size.cols};
        if (size.count > 1 && stems.size() == 1) shape.insert(shape.begin(), size.count);
        pick.matrix = total;
        if ((role == Role::wk_b || role == Role::wv_b) &&
            !there(slot.stem)) { // an older file has both in one
            const uint64_t both = uint64_t{c.nope_head_dim} + c.mla_v_head_dim;
            stems = {
                replaced_in(slot.stem, role == Role::wk_b ? "attn_k_b" : "attn_v_b", "attn_kv_b")};
            shape = {c.n_heads * both, c.kv_lora_rank};
            pick.matrix = both;
            pick.first = role == Role::wk_b ? 0 : c.nope_head_dim;
            pick.across = role == Role::wk_b;
        }
        if (slot.stem == "output" && !slot.bias && !there(slot.stem))
            stems = {"token_embd"}; // a tied head

        for (const std::string& stem : stems) {
            const std::string name = stem + ending;
            const GgufTensor* t = optional(name, shape);
            if (!t && !needed) return;
            if (!t) throw Error(where + ": the tensor " + name + " is missing");
            if (!pick.parts.empty() && t->type != pick.parts[0]->type)
                throw Error(where + ": the experts of " + slot.stem + " differ in type");
            if (flat && t->type->block != 1)
                throw Error(where + ": the tensor " + name + " is a vector of type " +
                            t->type->name + ", which is not read");
            pick.parts.push_back(t);
        }
        pick.files = files;
        pick.rows = size.rows;
        pick.cols = size.cols;
        pick.flat = flat;

        TensorSource& target = push(slot.stack, slot.layer,
                                    static_cast<uint8_t>(static_cast<uint8_t>(role) |
                                                         (slot.bias ? transformer::role_bias : 0)),
                                    size.rows, size.cols);
        const GgmlType& type = *pick.parts[0]->type;
        target.count = size.count;
        target.stored = type.stored;
        std::string key = stems[0] + ending;
        for (const uint64_t value : {pick.first, uint64_t{pick.head}, uint64_t{pick.rope},
                                     uint64_t{pick.across}, uint64_t{size.rows}})
            key += " " + std::to_string(value);
        target.identity = identity(key);
        const auto shared = std::make_shared<const GgufPick>(std::move(pick));
        target.read = [shared](uint32_t m, uint32_t first, uint32_t rows, float* out) {
            shared->read(m, first, rows, out);
        };
        if (type.tile && !shared->across)
            target.read_tile = [shared](uint32_t m, uint32_t tile, unsigned char* out) {
                shared->tile(m, tile, out);
            };
    }

    void finish()
    {
        bool differ = false;
        const bool limited = main.window || main.chunk;
        for (const uint8_t f : flags)
            differ |= limited ? f != transformer::layer_local : f > transformer::layer_local;
        if (differ) {
            std::vector<float> values;
            for (const uint8_t f : flags)
                values.push_back(limited ? f : f & ~transformer::layer_local);
            table(0, 0, Role::layer_flags, 1, main.n_layers, std::move(values)).stored = DType::u8;
        }
        for (const auto& [name, t] : tensors) {
            if (used.count(name)) continue;
            uint32_t layer = 0; // those of layers that guess further tokens are left alone
            if (std::sscanf(name.c_str(), "blk.%9u.", &layer) == 1 && layer >= main.n_layers &&
                layer < u32("block_count"))
                continue;
            throw Error(t->path + ": the tensor " + printable(name, 200) +
                        " has no place in the architecture " + architecture);
        }
        // What nobody has read may change the numbers; a value of 0 switches nothing on.
        static const char* const neutral =
            "vocab_size tensor_data_layout attention.layer_norm_epsilon "
            "attention.layer_norm_rms_epsilon attention.group_norm_epsilon "
            "attention.group_norm_groups expert_feed_forward_length "
            "expert_shared_feed_forward_length expert_shared_count leading_dense_block_count "
            "interleave_moe_layer_step moe_every_n_layers n_deepstack_layers "
            "use_parallel_residual rope.scaling.finetuned feed_forward_length rope.freq_base "
            "rope.dimension_count context_length pooling_type classifier.output_labels";
        for (const std::string& name : split(neutral, ' ')) find(name);
        for (const auto& [key, value] : parts[0]->values) {
            if (key.rfind(architecture + ".", 0) != 0 || asked.count(key)) continue;
            const bool plain = value.kind != GgufKind::text && value.kind != GgufKind::list;
            if (plain && scalar(*parts[0]->file, value.kind, value.at) == 0) continue;
            if (value.kind == GgufKind::list && !value.count) continue;
            throw Error(where + ": the setting " + printable(key) + " = " + in_words(value) +
                        " is not known, and it may change the numbers");
        }
    }

    inline void read_vocabulary(const std::string& tokenizer);

    std::vector<std::shared_ptr<GgufFile>> parts;
    std::shared_ptr<const void> files; // the same, for whoever reads a tensor later
    std::map<std::string, const GgufTensor*> tensors;
    mutable std::set<std::string> asked;
    std::set<std::string> used;
    std::map<std::string, uint64_t> identities;
};

// ---- The vocabulary -----------------------------------------------------------------------------

// Its own tokenizer, or the one given; the ids that end a turn in any case.
inline void GgufReader::read_vocabulary(const std::string& tokenizer)
{
    VocabularyParts p;
    const auto id = [&](const std::string& name) {
        const double value = real(".tokenizer.ggml." + name + "_token_id", -1);
        return value >= 0 && value < INT32_MAX ? static_cast<int32_t>(value) : -1;
    };
    const auto said = [&](const std::string& name) {
        return find(".tokenizer.ggml." + name)
                   ? static_cast<int>(truth(".tokenizer.ggml." + name, false))
                   : -1;
    };
    p.name = where;
    p.model = word(".tokenizer.ggml.model");
    p.pre = word(".tokenizer.ggml.pre", "default");
    texts(".tokenizer.ggml.tokens", [&](std::string_view text) { p.tokens.emplace_back(text); });
    texts(".tokenizer.ggml.merges", [&](std::string_view text) { p.merges.emplace_back(text); });
    for (const double score : numbers(".tokenizer.ggml.scores"))
        p.scores.push_back(static_cast<float>(score));
    for (const double type : numbers(".tokenizer.ggml.token_type"))
        p.types.push_back(type >= 0 && type <= 6 ? static_cast<int32_t>(type) : 0);
    for (const double byte : numbers(".tokenizer.ggml.precompiled_charsmap"))
        p.charsmap += static_cast<char>(
            static_cast<unsigned char>(static_cast<int32_t>(byte) & 255));
    p.chat_template = word(".tokenizer.chat_template");
    p.bos = id("bos");
    p.eos = id("eos");
    p.eot = id("eot");
    p.unknown = id("unknown");
    p.separator = id("seperator"); // so spelled
    p.pad = id("padding");
    p.classify = id("cls");
    p.mask = id("mask");
    p.add_bos = said("add_bos_token");
    p.add_eos = said("add_eos_token");
    p.add_space_prefix = said("add_space_prefix");
    p.remove_extra_whitespaces = said("remove_extra_whitespaces");

    VocabularySource own;
    const auto stop = [&](int32_t at) {
        if (at >= 0 && std::find(own.stop.begin(), own.stop.end(), at) == own.stop.end())
            own.stop.push_back(at);
    };
    for (const int32_t at : {p.eos, p.eot, id("eom")}) stop(at);
    // Not every converter says all ids that end a turn; these texts mean nothing else.
    static const char* const ends[] = {
        "<|eot_id|>",    "<|im_end|>", "<|end|>",        "<end_of_turn>",
        "<|endoftext|>", "<|eom_id|>", "<EOT>",          "<|END_OF_TURN_TOKEN|>",
        "<|return|>",    "<|call|>",   "<|end_of_text|>"};
    for (size_t i = 0; i < p.tokens.size() && i < INT32_MAX; i++)
        for (const char* text : ends)
            if (p.tokens[i] == text && i < p.types.size() && p.types[i] == 3)
                stop(static_cast<int32_t>(i));
    own.bos = p.bos;
    own.eos = p.eos;
    own.pad = p.pad;
    own.separator = p.separator;
    own.classify = p.classify;
    own.mask = p.mask;
    own.labels = source.vocabulary.labels;
    own.chat_template = p.chat_template;
    const std::string chat_template = p.chat_template;
    if (!tokenizer.empty()) join_tokenizer(own, read_tokenizer(tokenizer));
    else if (!p.tokens.empty() && p.model != "no_vocab" && p.model != "none")
        join_tokenizer(own, vocabulary_from_parts(std::move(p)));
    if (own.chat_template.empty()) own.chat_template = chat_template;
    source.vocabulary = std::move(own);
}

// ---- What the tables share ----------------------------------------------------------------------

inline GgufRows gguf_ends()
{
    return {{"token_embd", Role::token_embedding},
            {"output_norm", Role::final_norm},
            {"output", Role::lm_head}};
}
inline GgufRows gguf_attention()
{
    return {{"attn_q", Role::wq},
            {"attn_k", Role::wk},
            {"attn_v", Role::wv},
            {"attn_output", Role::wo}};
}
inline GgufRows gguf_pre_norms()
{
    return {{"attn_norm", Role::attn_norm_pre}, {"ffn_norm", Role::ffn_norm_pre}};
}
inline GgufRows gguf_gated(const char* when = "")
{
    return {
        {"ffn_gate", Role::gate, when}, {"ffn_up", Role::up, when}, {"ffn_down", Role::down, when}};
}
inline GgufRows gguf_ungated() { return {{"ffn_up", Role::up}, {"ffn_down", Role::down}}; }
inline GgufRows gguf_experts()
{
    return gguf_gated("!experts") + GgufRows{{"ffn_gate_inp", Role::router, "experts"},
                                             {"ffn_gate_exps", Role::gate, "experts"},
                                             {"ffn_up_exps", Role::up, "experts"},
                                             {"ffn_down_exps", Role::down, "experts"}};
}
inline GgufRows gguf_shared_expert()
{
    return {{"ffn_gate_shexp", Role::shared_gate, "shared"},
            {"ffn_up_shexp", Role::shared_up, "shared"},
            {"ffn_down_shexp", Role::shared_down, "shared"}};
}
inline GgufRows gguf_qk_norms(const char* when = "")
{
    return {{"attn_q_norm", Role::q_norm, when}, {"attn_k_norm", Role::k_norm, when}};
}
inline GgufRows gguf_llama()
{
    return gguf_ends() + gguf_pre_norms() + gguf_attention() + gguf_experts();
}
inline GgufRows gguf_dense()
{
    return gguf_ends() + gguf_pre_norms() + gguf_attention() + gguf_gated();
}
inline GgufRows gguf_older()
{
    return gguf_ends() + gguf_pre_norms() + gguf_attention() + gguf_ungated();
}
// Of parallel blocks.
inline GgufRows gguf_one_norm()
{
    return {{"attn_norm", Role::attn_norm_pre}, {"attn_norm", Role::ffn_norm_pre}};
}
inline GgufRows gguf_sandwich()
{
    return gguf_pre_norms() + GgufRows{{"post_attention_norm", Role::attn_norm_post},
                                       {"post_ffw_norm", Role::ffn_norm_post}};
}
inline GgufRows gguf_bert()
{
    return {{"token_embd", Role::token_embedding},      {"token_types", Role::type_embedding, "?"},
            {"token_embd_norm", Role::embedding_norm},  {"attn_output_norm", Role::attn_norm_out},
            {"layer_output_norm", Role::ffn_norm_out},  {"cls", Role::head_dense, "dense"},
            {"cls.output", Role::lm_head, "classifier"}};
}

// ---- What no table says -------------------------------------------------------------------------

inline void gguf_rotary(GgufReader& r)
{
    r.fill(r.main);
    r.set_window(0);
    r.set_rope(r.main);
}
inline void gguf_gemma(GgufReader& r)
{
    r.fill(r.main);
    r.main.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(r.main.dim)));
    r.main.attn_softcap = r.f32("attn_logit_softcapping", 0);
    r.main.logit_softcap = r.f32("final_logit_softcapping", 0);
}
// llama.cpp's file does not say query_pre_attn_scalar; the largest model of the family has its own.
inline void gguf_gemma_scale(GgufReader& r, uint32_t layers_of_27b)
{
    const uint32_t width = r.main.n_layers == layers_of_27b ? r.main.dim / r.main.n_heads
                                                            : r.main.head_dim;
    r.main.attn_scale = r.f32("attention.scale", 1 / std::sqrt(static_cast<double>(width)));
}
inline void gguf_lone_encoder(GgufReader& r)
{
    r.fill(r.main);
    if (r.has("token_types.weight")) r.main.n_types = r.rows_of("token_types.weight");
    r.set_classifier(Activation::tanh, Pooling::first);
    r.conditions["dense"] = r.conditions["classifier"] && r.has("cls.weight");
}
// MLA in its absorbed form: one cached row of the rotated part and the latent.
inline void gguf_deepseek(GgufReader& r)
{
    Config& c = r.main;
    r.fill(c);
    const bool split = r.find("attention.key_length_mla") != nullptr;
    c.rope_dim = r.u32("rope.dimension_count");
    const uint32_t key = split ? r.u32("attention.key_length_mla") : c.head_dim;
    c.q_lora_rank = r.u32("attention.q_lora_rank", 0);
    c.kv_lora_rank = r.u32("attention.kv_lora_rank");
    c.mla_v_head_dim = split ? r.u32("attention.value_length_mla") : c.v_head_dim;
    if (key <= c.rope_dim || key > 65536 || !c.kv_lora_rank || c.kv_lora_rank > 65536 ||
        !c.mla_v_head_dim || c.mla_v_head_dim > 65536)
        throw Error(r.where + ": the sizes of latent attention are not possible");
    c.nope_head_dim = key - c.rope_dim;
    c.n_kv_heads = 1;
    c.head_dim = c.rope_dim + c.kv_lora_rank;
    c.v_head_dim = c.kv_lora_rank;
    c.qk_norm_eps = 1e-6f; // its latent norms keep their own
    r.conditions["q_lora"] = c.q_lora_rank != 0;
    const double log_multiplier = r.real("rope.scaling.yarn_log_multiplier", 0),
                 factor = r.real("rope.scaling.factor", 1);
    if (log_multiplier != 0) r.yarn_factor = 1; // mscale is taken to be mscale_all_dim
    const bool yarn = r.word("rope.scaling.type") == "yarn" && factor > 1;
    const double mscale = yarn ? 1 + log_multiplier * std::log(factor) : 1;
    c.attn_scale = r.f32("attention.scale", mscale * mscale / std::sqrt(static_cast<double>(key)));
    r.set_rope(c);
    r.set_experts(false);
}
inline void gguf_t5(GgufReader& r)
{
    r.prefix = "dec.blk.";
    r.fill(r.main);
    r.main.attn_scale = 1;
    const bool gated = r.has("enc.blk.0.ffn_gate.weight");
    r.conditions["gated"] = gated;
    r.main.activation = gated ? Activation::gelu_tanh : Activation::relu;
    r.encoder = r.main;
    r.encoder.flags = 0;
    r.encoder.n_outputs = 0;
    r.main.n_layers = r.u32("decoder_block_count", r.encoder.n_layers);
    if (!r.main.n_layers || r.main.n_layers > 1024) r.refuse("decoder_block_count");
    r.main.flags |= transformer::flag_cross;
    r.flags.assign(r.main.n_layers, transformer::layer_local);
    r.main.decoder_start = r.find("decoder_start_token_id") ? r.u32("decoder_start_token_id") + 1
                                                            : 0;
    if (!r.has("output.weight"))
        r.main.logit_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(r.main.dim)));
    r.add_relative_bias(r.encoder, 1, "enc.blk.");
    r.add_relative_bias(r.main, 0, "dec.blk.");
    for (uint32_t i = 0; i < r.main.n_layers; i++) // transformers does not use these
        r.optional("dec.blk." + std::to_string(i) + ".cross_attn_rel_b.weight");
}
inline GgufRows gguf_t5_rows(bool decoder)
{
    GgufRows rows = {{"token_embd", Role::token_embedding},
                     {decoder ? "dec.output_norm" : "enc.output_norm", Role::final_norm},
                     {"attn_norm", Role::attn_norm_pre},
                     {"attn_q", Role::wq},
                     {"attn_k", Role::wk},
                     {"attn_v", Role::wv},
                     {"attn_o", Role::wo},
                     {"ffn_norm", Role::ffn_norm_pre},
                     {"ffn_gate", Role::gate, "gated"},
                     {"ffn_up", Role::up},
                     {"ffn_down", Role::down}};
    if (decoder)
        rows = rows +
               GgufRows{{"output", Role::lm_head},        {"cross_attn_norm", Role::cross_norm_pre},
                        {"cross_attn_q", Role::cross_wq}, {"cross_attn_k", Role::cross_wk},
                        {"cross_attn_v", Role::cross_wv}, {"cross_attn_o", Role::cross_wo}};
    return rows;
}

// ---- The architectures --------------------------------------------------------------------------

inline const std::vector<GgufFamily>& gguf_families()
{
    using transformer::NormKind;
    constexpr NormKind rms = NormKind::rms, layer = NormKind::layer;
    constexpr Activation silu = Activation::silu, gelu = Activation::gelu,
                         gelu_tanh = Activation::gelu_tanh;
    static const auto scaled = [](GgufReader& r) { // Granite
        r.fill(r.main);
        r.set_window(0);
        if (r.truth("rope.scaling.finetuned", true)) r.set_rope(r.main); // else without rotation
        r.main.embedding_scale = r.f32("embedding_scale", 1);
        r.main.residual_scale = r.f32("residual_scale", 1);
        r.main.logit_scale = static_cast<float>(1 / r.real("logit_scale", 1));
        r.set_experts(true);
    };
    static const auto rotary_experts = [](GgufReader& r) {
        gguf_rotary(r);
        r.set_experts(true);
    };
    static const std::vector<GgufFamily> all = {
        // Llama and what has its blocks.
        {"llama", rms, silu, gguf_pairs, gguf_llama(), rotary_experts},
        {"internlm2 xverse ernie4_5", rms, silu, gguf_pairs, gguf_llama(), gguf_rotary},
        {"qwen2 qwen2vl qwen", rms, silu, 0, gguf_dense(),
         [](GgufReader& r) {
             r.find("rope.dimension_sections"); // the same for text
             gguf_rotary(r);
         }},
        {"qwen3 qwen3vl", rms, silu, 0, gguf_dense() + gguf_qk_norms(),
         [](GgufReader& r) {
             r.find("rope.dimension_sections");
             gguf_rotary(r);
         }},
        {"qwen2moe", rms, silu, 0,
         gguf_llama() + gguf_shared_expert() +
             GgufRows{{"ffn_gate_inp_shexp", Role::shared_router, "shared"}},
         [](GgufReader& r) {
             gguf_rotary(r);
             r.set_experts(false);
         }},
        {"qwen3moe qwen3vlmoe", rms, silu, 0, gguf_llama() + gguf_qk_norms(),
         [](GgufReader& r) {
             r.find("rope.dimension_sections");
             gguf_rotary(r);
             r.set_experts(true);
         }},
        {"phi3", rms, silu, 0, gguf_dense(), gguf_rotary},
        {"exaone", rms, silu, 0, gguf_dense(), gguf_rotary},
        {"seed_oss", rms, silu, 0,
         gguf_ends() +
             GgufRows{{"attn_norm", Role::attn_norm_pre},
                      {"post_attention_norm", Role::ffn_norm_pre}} +
             gguf_attention() + gguf_gated(),
         gguf_rotary},
        {"orion", layer, silu, gguf_shifts, gguf_dense(), gguf_rotary},
        {"arcee", rms, Activation::relu_squared, gguf_pairs, gguf_older(), gguf_rotary},
        {"granite granitemoe", rms, silu, gguf_pairs, gguf_llama() + gguf_shared_expert(),
         scaled},
        {"smollm3", rms, silu, gguf_pairs, gguf_llama(),
         [](GgufReader& r) {
             gguf_rotary(r);
             const std::vector<double> list = r.numbers("attention.rope_pattern");
             if (!list.empty() && list.size() != r.main.n_layers)
                 r.refuse("attention.rope_pattern");
             r.without_rope(
                 [&](uint32_t i) { return list.empty() ? i % 4 == 3 : list[i] == 0; });
         }},
        {"olmo", layer, silu, gguf_pairs,
         GgufRows{{"token_embd", Role::token_embedding}, {"output", Role::lm_head}} +
             gguf_attention() + gguf_gated(),
         [](GgufReader& r) {
             gguf_rotary(r);
             r.ones(0, Role::final_norm, r.main.dim);
             for (uint32_t i = 1; i <= r.main.n_layers; i++)
                 for (const Role role : {Role::attn_norm_pre, Role::ffn_norm_pre})
                     r.ones(i, role, r.main.dim);
         }},
        {"olmo2", rms, silu, 0,
         gguf_ends() +
             GgufRows{{"post_attention_norm", Role::attn_norm_post},
                      {"post_ffw_norm", Role::ffn_norm_post}} +
             gguf_attention() + gguf_qk_norms() + gguf_gated(),
         [](GgufReader& r) {
             r.fill(r.main);
             r.set_window(4);
             // Layers with a window are not scaled.
             r.set_rope(r.main, r.main.window ? r.real("rope.freq_base", 10000) : 0);
             r.qk_norm = r.full_norm;
         }},
        {"olmoe", rms, silu, 0, gguf_llama() + gguf_qk_norms(),
         [](GgufReader& r) {
             gguf_rotary(r);
             r.qk_norm = r.full_norm;
             r.set_experts(false);
         }},
        {"glm4", rms, silu, gguf_pairs,
         gguf_ends() + gguf_sandwich() + gguf_attention() + gguf_gated(), gguf_rotary},
        {"chatglm", rms, silu, gguf_pairs, gguf_dense(), gguf_rotary},
        {"command-r cohere2", layer, silu, gguf_pairs | gguf_parallel,
         gguf_ends() + gguf_one_norm() + gguf_attention() + gguf_qk_norms("?") + gguf_gated(),
         [](GgufReader& r) {
             const bool newer = r.architecture == "cohere2";
             r.fill(r.main);
             r.set_window(newer ? 4 : 0, false, newer ? 4096 : 0);
             r.set_rope(r.main);
             r.qk_norm = r.head_norm;
             r.main.flags |= transformer::flag_qk_norm_layer;
             r.main.logit_scale = r.f32("logit_scale", 1);
             if (newer)
                 r.without_rope(
                     [&](uint32_t i) { return !(r.flags[i] & transformer::layer_local); });
         }},
        {"chameleon", rms, silu, gguf_pairs,
         gguf_ends() +
             GgufRows{{"attn_norm", Role::attn_norm_pre, "!swin"},
                      {"ffn_norm", Role::ffn_norm_pre, "!swin"},
                      {"attn_norm", Role::attn_norm_post, "swin"},
                      {"ffn_norm", Role::ffn_norm_post, "swin"}} +
             gguf_attention() + gguf_qk_norms() + gguf_gated(),
         [](GgufReader& r) {
             gguf_rotary(r);
             r.qk_norm = r.head_norm;
             r.main.flags |= transformer::flag_qk_norm_layer;
             r.main.qk_norm_eps = 1e-5f;
             r.conditions["swin"] = r.truth("swin_norm", false);
         }},
        {"llama4", rms, silu, gguf_pairs, gguf_llama() + gguf_shared_expert(),
         [](GgufReader& r) {
             Config& c = r.main;
             r.fill(c);
             r.set_window(4, false, 8192);
             r.set_rope(c);
             c.chunk = c.window;
             c.window = 0;
             r.set_experts(false);
             c.router = transformer::Router::sigmoid;
             c.flags |= transformer::flag_qk_norm_after_rope |
                        transformer::flag_scale_expert_input;
             if (c.chunk) { // every fourth layer goes without rotation, tuned by length
                 c.temperature_floor = r.f32("attention.temperature_length", 8192);
                 c.temperature_scale = r.f32("attention.temperature_scale", 0.1);
             }
             for (uint32_t i = 0; i < c.n_layers; i++) {
                 if (c.chunk && !(r.flags[i] & transformer::layer_local))
                     r.flags[i] = static_cast<uint8_t>(r.flags[i] | transformer::layer_no_rope |
                                                       transformer::layer_query_temperature);
                 else if (c.n_experts != 128) // L2 norm, which the largest model lacks
                     for (const Role role : {Role::q_norm, Role::k_norm})
                         r.ones(i + 1, role, c.head_dim);
             }
         }},
        {"gpt-oss", rms, Activation::clamped_swiglu, 0,
         gguf_ends() +
             GgufRows{{"attn_norm", Role::attn_norm_pre},
                      {"post_attention_norm", Role::ffn_norm_pre}} +
             gguf_attention() + GgufRows{{"attn_sinks", Role::sinks}} + gguf_experts(),
         [](GgufReader& r) {
             r.fill(r.main);
             r.yarn_truncates = false; // no setting says so
             r.set_window(2);
             r.set_rope(r.main, r.real("rope.freq_base", 10000), true);
             r.set_experts(true);
             r.main.mlp_clamp = 7;
             r.main.mlp_alpha = 1.702f;
         }},
        {"deepseek2", rms, silu, gguf_pairs,
         gguf_ends() + gguf_pre_norms() +
             GgufRows{{"attn_q", Role::wq, "!q_lora"},
                      {"attn_q_a", Role::wq_a, "q_lora"},
                      {"attn_q_a_norm", Role::q_a_norm, "q_lora"},
                      {"attn_q_b", Role::wq, "q_lora"},
                      {"attn_kv_a_mqa", Role::wkv_a},
                      {"attn_kv_a_norm", Role::kv_a_norm},
                      {"attn_k_b", Role::wk_b},
                      {"attn_v_b", Role::wv_b},
                      {"attn_output", Role::wo}} +
             gguf_experts() + GgufRows{{"exp_probs_b", Role::router_bias, "?"}} +
             gguf_shared_expert(),
         gguf_deepseek},

        // Gemma.
        {"gemma", rms, gelu_tanh, 0, gguf_dense(),
         [](GgufReader& r) {
             gguf_gemma(r);
             r.set_rope(r.main);
         }},
        {"gemma2", rms, gelu_tanh, 0,
         gguf_ends() + gguf_sandwich() + gguf_attention() + gguf_gated(),
         [](GgufReader& r) {
             gguf_gemma(r);
             r.main.attn_softcap = r.f32("attn_logit_softcapping", 50);
             r.main.logit_softcap = r.f32("final_logit_softcapping", 30);
             gguf_gemma_scale(r, 46);
             r.set_window(2, false, 4096);
             r.set_rope(r.main, r.real("rope.freq_base", 10000), true);
         }},
        {"gemma3", rms, gelu_tanh, 0,
         gguf_ends() + gguf_sandwich() + gguf_attention() + gguf_qk_norms() + gguf_gated(),
         [](GgufReader& r) {
             gguf_gemma(r);
             gguf_gemma_scale(r, 62);
             r.set_window(6);
             r.set_rope(r.main, 10000);
         }},
        {"gemma-embedding", rms, gelu_tanh, gguf_encoder,
         GgufRows{{"token_embd", Role::token_embedding}, {"output_norm", Role::final_norm}} +
             gguf_sandwich() + gguf_attention() + gguf_qk_norms() + gguf_gated(),
         [](GgufReader& r) {
             gguf_gemma(r);
             r.set_window_around(6, false);
             r.set_rope(r.main, 10000);
         }},

        // GPT-2 and the older decoders.
        {"gpt2 starcoder", layer, gelu_tanh, gguf_shifts,
         gguf_older() + GgufRows{{"position_embd", Role::position_embedding}},
         [](GgufReader& r) { r.fill(r.main); }},
        {"gptneox", layer, gelu, gguf_shifts, gguf_older(),
         [](GgufReader& r) {
             gguf_rotary(r);
             if (r.truth("use_parallel_residual", true))
                 r.main.flags |= transformer::flag_parallel;
         }},
        {"gptj", layer, gelu_tanh, gguf_shifts | gguf_pairs | gguf_parallel,
         gguf_ends() + gguf_one_norm() + gguf_attention() + gguf_ungated(), gguf_rotary},
        {"phi2", layer, gelu_tanh, gguf_shifts | gguf_parallel,
         gguf_ends() + gguf_one_norm() + gguf_attention() + gguf_ungated(), gguf_rotary},
        {"falcon", layer, gelu, gguf_shifts | gguf_parallel,
         gguf_ends() +
             GgufRows{{"attn_norm", Role::ffn_norm_pre},
                      {"attn_norm", Role::attn_norm_pre, "one_norm"},
                      {"attn_norm_2", Role::attn_norm_pre, "!one_norm"}} +
             gguf_attention() + gguf_ungated(),
         [](GgufReader& r) {
             gguf_rotary(r);
             r.conditions["one_norm"] = !r.has("blk.0.attn_norm_2.weight");
         }},
        {"starcoder2", layer, gelu_tanh, gguf_shifts, gguf_older(), gguf_rotary},
        {"nemotron", layer, Activation::relu_squared, gguf_shifts, gguf_older(), gguf_rotary},
        {"stablelm", layer, silu, gguf_shifts,
         gguf_ends() +
             GgufRows{{"attn_norm", Role::attn_norm_pre},
                      {"attn_norm", Role::ffn_norm_pre, "parallel"},
                      {"ffn_norm", Role::ffn_norm_pre, "!parallel"}} +
             gguf_attention() + gguf_qk_norms("?") + gguf_gated(),
         [](GgufReader& r) {
             gguf_rotary(r);
             r.conditions["parallel"] = !r.has("blk.0.ffn_norm.weight");
             if (r.conditions["parallel"]) r.main.flags |= transformer::flag_parallel;
             r.qk_norm = r.head_norm;
             r.main.flags |= transformer::flag_qk_norm_layer;
         }},
        {"bloom", layer, gelu_tanh, gguf_shifts,
         gguf_older() + GgufRows{{"token_embd_norm", Role::embedding_norm}},
         [](GgufReader& r) {
             r.fill(r.main);
             r.table(0, 0, Role::alibi_slopes, 1, r.main.n_heads, alibi_slopes(r.main.n_heads));
         }},
        {"mpt", layer, gelu, gguf_shifts,
         gguf_older() + GgufRows{{"position_embd", Role::position_embedding, "?"}} +
             gguf_qk_norms("?"),
         [](GgufReader& r) {
             r.fill(r.main);
             r.shifts = false;
             r.qk_norm = r.full_norm;
             r.main.flags |= transformer::flag_qk_norm_layer;
             const double most = r.real("attention.max_alibi_bias", 0);
             if (most > 0)
                 r.table(0, 0, Role::alibi_slopes, 1, r.main.n_heads,
                         mpt_slopes(r.main.n_heads, most));
         }},

        // Encoders.
        {"bert", layer, gelu, gguf_encoder | gguf_shifts,
         gguf_bert() + GgufRows{{"position_embd", Role::position_embedding}} +
             gguf_attention() + gguf_ungated(),
         gguf_lone_encoder},
        {"nomic-bert", layer, silu, gguf_encoder | gguf_shifts,
         gguf_bert() + gguf_attention() + gguf_gated(),
         [](GgufReader& r) {
             gguf_lone_encoder(r);
             r.set_rope(r.main);
         }},
        {"modern-bert", layer, gelu, gguf_encoder,
         GgufRows{{"token_embd", Role::token_embedding},
                  {"token_embd_norm", Role::embedding_norm},
                  {"output_norm", Role::final_norm},
                  {"attn_norm", Role::attn_norm_pre, "?"},
                  {"ffn_norm", Role::ffn_norm_pre},
                  {"cls", Role::head_dense, "dense"},
                  {"cls.norm", Role::head_norm, "dense"},
                  {"cls.output", Role::lm_head, "classifier"}} +
             gguf_attention() + gguf_gated(),
         [](GgufReader& r) {
             r.fill(r.main);
             const uint32_t pooling = r.u32("classifier.pooling_type",
                                            1); // of files that do not say it
             if (pooling != 1 && pooling != 2) r.refuse("classifier.pooling_type");
             r.set_classifier(Activation::gelu, pooling == 1 ? Pooling::mean : Pooling::first);
             r.conditions["dense"] = r.conditions["classifier"] && r.has("cls.weight");
             const std::string activation = r.word("hidden_activation", "gelu");
             if (activation == "silu") r.main.activation = Activation::silu;
             else if (activation != "gelu") r.refuse("hidden_activation");
             r.set_window_around(3, true);
             r.set_rope(r.main, 10000);
         }},

        // Encoder-decoders.
        {"t5", rms, Activation::relu, 0, gguf_t5_rows(true), gguf_t5, gguf_t5_rows(false)},
        {"t5encoder", rms, Activation::relu, gguf_encoder, gguf_t5_rows(false),
         [](GgufReader& r) {
             r.prefix = "enc.blk.";
             r.fill(r.main);
             r.main.attn_scale = 1;
             r.conditions["gated"] = r.has("enc.blk.0.ffn_gate.weight");
             if (r.conditions["gated"]) r.main.activation = Activation::gelu_tanh;
             r.optional("output.weight"); // of the decoder that is not here
             r.add_relative_bias(r.main, 0, "enc.blk.");
         }},
    };
    return all;
}

inline Source read_gguf(const std::string& path, const std::string& tokenizer)
{
    return std::move(GgufReader(path, tokenizer).source);
}

} // namespace weights
#endif
