// weights/options.hpp - the options of the command line: one table, and a parser that lets only what can be meant pass
#ifndef TRANSFORMER_WEIGHTS_OPTIONS_HPP
#define TRANSFORMER_WEIGHTS_OPTIONS_HPP

#include "files.hpp"                // printable

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <variant>
#include <vector>

namespace cli {

struct Misuse : std::runtime_error {                           // wrong usage: exit status 2
    using std::runtime_error::runtime_error;
};

struct Arguments {
    std::vector<std::string> words;                            // MODEL and what follows it
    std::optional<std::string> prompt, file, tokenizer, source, system, chat_template, pair, out, svg, header, features,
        rows, memory;
    std::string mode = "generate", type, kv, isa = "best", pooling; // choices
    float temperature = 1.0f, top_p = 0.9f, min_p = 0.0f, repeat_penalty = 1.0f;
    std::optional<uint64_t> seed, layer, predict;
    uint32_t top_k = 0, threads = 0, ctx_size = 0, window = 0, prefill = 512, decode = 128, depth = 0, repeat = 3;
    std::vector<int32_t> ids, source_ids, types, mask, source_mask;
    bool stats = false, json = false, all = false, ignore_eos = false, encoder = false, no_parse_special = false,
         no_add_special = false, help = false, version = false;

    const std::string& model() const { return words[0]; }
};

struct Verb {
    const char* name;                                          // "": generate text
    uint32_t bit;
    const char* usage;
    const char* help;
    size_t fewest, most;                                       // words
    int (*work)(const Arguments&);                             // null: not in this version
};
enum : uint32_t {                                              // Verb::bit
    v_run = 1, v_chat = 2, v_embed = 4, v_logits = 8, v_hidden = 16, v_attention = 32, v_next = 64, v_fill = 128,
    v_classify = 256, v_greedy = 512, v_tokenize = 1024, v_detokenize = 2048, v_perplexity = 4096, v_bench = 8192,
    v_info = 16384, v_review = 32768, v_import = 65536,
    v_generates = v_run | v_chat,
    v_rows = v_logits | v_hidden | v_attention | v_greedy,     // take raw inputs, for those who compare numbers
    v_forward = v_generates | v_rows | v_embed | v_next | v_fill | v_classify | v_perplexity | v_bench,
    v_text = v_run | v_rows | v_next | v_tokenize,
    v_every = 0xffffffffu
};

using Slot = std::variant<bool Arguments::*, uint32_t Arguments::*, float Arguments::*, std::string Arguments::*,
                          std::optional<uint64_t> Arguments::*, std::optional<std::string> Arguments::*,
                          std::vector<int32_t> Arguments::*>;
struct Option {
    const char* name;
    char letter;                                               // 0: none
    const char* value;                                         // what it takes; a choice as "a|b|c"; null: nothing
    Slot slot;
    double low, high;                                          // of a number, or of each in a list
    uint32_t verbs;
    const char* help;
};
constexpr double any_u32 = 2147483647.0, any_u64 = 18446744073709551615.0;
using A = Arguments;
inline const Option options[] = {
    {"prompt", 'i', "TEXT", &A::prompt, 0, 0, v_text | v_chat,
     "the text to go on from; a source; the first message of a chat"},
    {"file", 'f', "FILE", &A::file, 0, 0, v_text | v_chat, "the same out of a file, every byte of it"},
    {"source", 0, "TEXT", &A::source, 0, 0, v_run | v_rows, "source of an encoder-decoder; -i then begins the answer"},
    {"predict", 'n', "N", &A::predict, 0, 1e9, v_generates | v_greedy, "new tokens at most (256)"},
    {"temp", 't', "X", &A::temperature, 0, 1000, v_generates, "temperature; 0 is greedy whatever else is set (1.0)"},
    {"top-p", 'p', "X", &A::top_p, 0, 1, v_generates, "choose among the likeliest tokens that reach X together (0.9)"},
    {"top-k", 0, "N", &A::top_k, 0, any_u32, v_generates, "choose among the N likeliest tokens (0: all)"},
    {"min-p", 0, "X", &A::min_p, 0, 1, v_generates, "drop tokens less likely than X times the likeliest (0)"},
    {"repeat-penalty", 0, "X", &A::repeat_penalty, 0.01, 100, v_generates,
     "above 1 makes the last 64 tokens less likely (1)"},
    {"seed", 's', "N", &A::seed, 0, any_u64, v_generates,
     "of the random choices; without it from the clock, told at the end"},
    {"mode", 'm', "generate|chat", &A::mode, 0, 0, v_run, "chat is the verb chat"},
    {"system", 'y', "TEXT", &A::system, 0, 0, v_generates, "system prompt of a chat"},
    {"chat-template", 0, "NAME or FILE", &A::chat_template, 0, 0, v_generates,
     "chatml, llama3 ... or a template in Jinja, in place of the model's"},
    {"pair", 0, "TEXT", &A::pair, 0, 0, v_classify, "a second text that belongs to the first"},
    {"pooling", 0, "mean|cls|last", &A::pooling, 0, 0, v_embed,
     "which rows make the vector (what the model says, or mean)"},
    {"ids", 0, "1,2,3", &A::ids, 0, any_u32, v_rows | v_next | v_detokenize | v_perplexity,
     "token ids in place of text"},
    {"rows", 0, "FILE", &A::rows, 0, 0, v_rows, "embedded rows in place of ids: raw float32, (T, dim)"},
    {"types", 0, "0,0,1", &A::types, 0, any_u32, v_rows, "token types, one an id"},
    {"mask", 0, "1,1,0", &A::mask, 0, 1, v_rows, "of an encoder: 1 is a real token, 0 padding"},
    {"source-ids", 0, "4,5,6", &A::source_ids, 0, any_u32, v_rows, "ids for the encoder of an encoder-decoder"},
    {"source-mask", 0, "1,1,0", &A::source_mask, 0, 1, v_rows, "of the source: 1 is a real token, 0 padding"},
    {"features", 0, "FILE", &A::features, 0, 0, v_run | v_rows,
     "log-mel frames for the encoder: raw float32, (mel bins, frames)"},
    {"memory", 0, "FILE", &A::memory, 0, 0, v_rows, "an encoder's output in place of a source: raw float32, (S, dim)"},
    {"all", 0, nullptr, &A::all, 0, 0, v_logits, "all rows, not the last alone"},
    {"layer", 0, "N", &A::layer, 0, 65535, v_hidden | v_attention,
     "what leaves block N (hidden: 0 is what enters block 1); attention of block N"},
    {"encoder", 0, nullptr, &A::encoder, 0, 0, v_hidden | v_attention, "of an encoder-decoder's encoder"},
    {"ignore-eos", 0, nullptr, &A::ignore_eos, 0, 0, v_run | v_greedy, "go on after the end of the text"},
    {"out", 'o', "FILE", &A::out, 0, 0, v_logits | v_hidden | v_attention, "write there in place of stdout"},
    {"svg", 0, "FILE", &A::svg, 0, 0, v_attention | v_info, "draw a picture there: the attention weights, the block"},
    {"no-add-special", 0, nullptr, &A::no_add_special, 0, 0, v_text | v_perplexity,
     "do not add the model's own tokens (BOS, [CLS] ...)"},
    {"no-parse-special", 0, nullptr, &A::no_parse_special, 0, 0, v_text | v_perplexity,
     "special tokens written in the text are plain text"},
    {"window", 0, "N", &A::window, 2, any_u32, v_perplexity, "tokens that are seen together (the context)"},
    {"prefill", 0, "N", &A::prefill, 1, 1e6, v_bench, "tokens of the prompt (512)"},
    {"decode", 0, "N", &A::decode, 1, 1e6, v_bench, "tokens made one by one (128)"},
    {"depth", 0, "N", &A::depth, 0, 1e6, v_bench, "positions that stand in the cache before decoding (0)"},
    {"repeat", 0, "N", &A::repeat, 1, 1000, v_bench, "runs of each (3)"},
    {"header", 0, "FILE", &A::header, 0, 0, v_import, "also write a C++ header with the constexpr Config and sizes"},
    {"threads", 0, "N", &A::threads, 1, 256, v_forward, "threads (as many as the processors given to the process)"},
    {"isa", 0, "best|scalar|neon|neon_dot|avx2|avx_vnni|avx512", &A::isa, 0, 0, v_forward,
     "which instructions to use; the results are the same"},
    {"ctx-size", 'c', "N", &A::ctx_size, 1, any_u32, v_forward | v_info | v_import,
     "positions (what the model was trained for, at most 4096)"},
    {"kv", 0, "f16|f32|q8_0", &A::kv, 0, 0, v_forward | v_info | v_import,
     "type of the cache (f16; f32 where numbers are compared)"},
    {"tokenizer", 'z', "FILE", &A::tokenizer, 0, 0, v_every, "the tokenizer, if it is not beside the model"},
    {"type", 0, "f32|f16|bf16|q8_0|q4_0|q4_1", &A::type, 0, 0, v_forward | v_info | v_import, "convert the weights"},
    {"stats", 0, nullptr, &A::stats, 0, 0, v_generates | v_embed, "more statistics"},
    {"json", 0, nullptr, &A::json, 0, 0,
     v_generates | v_info | v_review | v_bench | v_next | v_fill | v_classify | v_perplexity, "for a program to read"},
    {"help", 'h', nullptr, &A::help, 0, 0, v_every, "this text"},
    {"version", 0, nullptr, &A::version, 0, 0, v_every, "the version"},
};

// ---- Values ---------------------------------------------------------------------------------------------------------

template <class T> bool whole_number(const std::string& s, T* out)
{
    const auto result = std::from_chars(s.data(), s.data() + s.size(), *out);
    return !s.empty() && result.ec == std::errc() && result.ptr == s.data() + s.size();
}
inline bool real_number(const std::string& s, float* out)
{
    if (s.empty() || s.find_first_not_of("0123456789+-.eE") != std::string::npos) return false;
    char* end = nullptr;
    *out = std::strtof(s.c_str(), &end);
    return end == s.c_str() + s.size() && std::isfinite(*out);
}
inline bool number_list(const std::string& s, double low, double high, std::vector<int32_t>* out)
{
    for (size_t at = 0; at <= s.size();) {
        const size_t comma = std::min(s.find(',', at), s.size());
        int32_t value = 0;
        if (!whole_number(s.substr(at, comma - at), &value) || value < low || value > high) return false;
        out->push_back(value);
        at = comma + 1;
    }
    return true;
}
inline bool one_of(const std::string& s, const std::string& choices)
{
    return s.find('|') == std::string::npos && ("|" + choices + "|").find("|" + s + "|") != std::string::npos;
}

inline std::string in_quotes(const std::string& s) { return "'" + weights::printable(s) + "'"; }
inline std::string spelling(const Option& o)
{
    return (o.letter ? std::string("-") + o.letter + "/" : std::string()) + "--" + o.name;
}
[[noreturn]] inline void refuse(const Option& o, const std::string& expected, const std::string& value)
{
    throw Misuse(spelling(o) + " must be " + expected + ", not " + in_quotes(value));
}
inline std::string range(const Option& o)
{
    const auto number = [](double x) {
        if (x >= any_u64) return std::to_string(UINT64_MAX);
        std::string text = std::to_string(x);                  // 0.010000, 100.000000
        while (text.back() == '0') text.pop_back();
        if (text.back() == '.') text.pop_back();
        return text;
    };
    return " from " + number(o.low) + " to " + number(o.high);
}

inline void set_option(Arguments* a, const Option& o, const std::string& value)
{
    const auto within = [&](double x) { return x >= o.low && x <= o.high; };
    std::visit([&](auto slot) {
        auto& target = a->*slot;
        using T = std::decay_t<decltype(target)>;
        if constexpr (std::is_same_v<T, bool>) {
            target = true;
        } else if constexpr (std::is_same_v<T, uint32_t> || std::is_same_v<T, std::optional<uint64_t>>) {
            uint64_t n = 0;
            if (!whole_number(value, &n) || !within(static_cast<double>(n)))
                refuse(o, "a whole number" + range(o), value);
            target = static_cast<std::conditional_t<std::is_same_v<T, uint32_t>, uint32_t, uint64_t>>(n);
        } else if constexpr (std::is_same_v<T, float>) {
            if (!real_number(value, &target) || !within(static_cast<double>(target)))
                refuse(o, "a number" + range(o), value);
        } else if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
            target.clear();
            if (!number_list(value, o.low, o.high, &target)) refuse(o, std::string("a list such as ") + o.value, value);
        } else if constexpr (std::is_same_v<T, std::string>) {
            if (!one_of(value, o.value)) refuse(o, std::string("one of ") + o.value, value);
            target = value;
        } else {
            target = value;
        }
    }, o.slot);
}

// ---- Parsing --------------------------------------------------------------------------------------------------------

inline const Option& find_option(const std::string& name, const Verb& verb)
{
    for (const Option& o : options) {
        if (name != std::string("--") + o.name && (!o.letter || name != std::string("-") + o.letter)) continue;
        if (o.verbs & verb.bit) return o;
        throw Misuse(spelling(o) + " is no option of " + (*verb.name ? verb.name : "generating text"));
    }
    throw Misuse("there is no option " + in_quotes(name) + "; a text that begins with - goes after --");
}

// Options stand anywhere, as "-n 5", "--predict 5" or "--predict=5"; "--" ends them.
inline Arguments parse(const Verb& verb, const std::vector<std::string>& words)
{
    Arguments a;
    for (size_t i = 0; i < words.size(); i++) {
        const std::string& word = words[i];
        if (word == "--") {
            a.words.insert(a.words.end(), words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
            break;
        }
        if (word.size() < 2 || word[0] != '-') {
            a.words.push_back(word);
            continue;
        }
        const size_t equals = word[1] == '-' ? std::min(word.find('='), word.size()) : word.size();
        const Option& o = find_option(word.substr(0, equals), verb);
        if (!o.value && equals < word.size()) throw Misuse(spelling(o) + " takes no value");
        if (o.value && equals == word.size() && i + 1 == words.size())
            throw Misuse(spelling(o) + " needs a value: " + o.value);
        set_option(&a, o, !o.value ? "" : equals < word.size() ? word.substr(equals + 1) : words[++i]);
    }
    if (a.help || a.version) return a;
    if (a.words.empty()) throw Misuse("name a MODEL, for example weights/stories.bin");
    if (a.words.size() < verb.fewest) throw Misuse("something is missing after " + in_quotes(a.words.back()));
    if (a.words.size() > verb.most)
        throw Misuse("nothing is expected after " + in_quotes(a.words[verb.most - 1]) + ", but there is " +
                     in_quotes(a.words[verb.most]));
    return a;
}

}  // namespace cli
#endif
