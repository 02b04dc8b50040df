// Fuzzes what reads a GGUF file: the container, its settings, vocabulary and chat template, then the checkpoint that is
// made of it. Needs clang; not part of `make test`, whose cases of broken files hold what this found.
//
//     clang++ -std=c++17 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I. tests/fuzz_gguf.cpp -o fuzz
//     ./fuzz -max_len=130000 -timeout=20 -rss_limit_mb=2000 CORPUS tests/golden-gguf
#define TRANSFORMER_IMPLEMENTATION
#include "transformer.hpp"

#include "weights/chat.hpp"
#include "weights/import.hpp"

#include <fstream>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

// ---- A file in pieces, so that a change of one leaves the lengths of the others right -----------------------------------

struct Pieces {
    std::vector<std::string> values;                           // key, kind and bytes of each setting
    std::string rest;                                          // tensors and data
    uint32_t version = 3;
    uint64_t n_tensors = 0;
};

uint64_t word(const std::string& s, size_t at) { return weights::load_u64(reinterpret_cast<const unsigned char*>(&s[at])); }
std::string packed(uint64_t value, size_t bytes = 8)
{
    std::string out;
    for (size_t i = 0; i < bytes; i++) out += static_cast<char>(static_cast<unsigned char>(value >> 8 * i & 255));
    return out;
}

// Where a value of this kind ends; 0: not in this file.
size_t end_of(const std::string& s, uint64_t kind, size_t at)
{
    if (kind > 12) return 0;
    const uint64_t width = weights::gguf_width(static_cast<weights::GgufKind>(kind)), left = s.size() - at;
    if (width) return width <= left ? at + width : 0;
    if (left < 12) return 0;
    if (kind == 8) return word(s, at) <= left - 8 ? at + 8 + word(s, at) : 0;
    const uint64_t item = word(s, at) & 0xffffffff, count = word(s, at + 4);
    if (item == 9 || count > left) return 0;
    at += 12;
    for (uint64_t i = 0; i < count && at; i++) at = end_of(s, item, at);
    return at;
}
bool take_apart(const std::string& s, Pieces* p)
{
    if (s.size() < 24) return false;
    p->version = static_cast<uint32_t>(word(s, 4) & 0xffffffff);
    p->n_tensors = word(s, 8);
    size_t at = 24;
    for (uint64_t i = word(s, 16); i; i--) {
        if (s.size() - at < 12 || word(s, at) > s.size() - at - 12) return false;
        const size_t kind = at + 8 + word(s, at), end = end_of(s, word(s, at + 8 + word(s, at) - 4) >> 32, kind + 4);
        if (!end) return false;
        p->values.push_back(s.substr(at, end - at));
        at = end;
    }
    p->rest = s.substr(at);
    return true;
}
std::string put_together(const Pieces& p)
{
    std::string out = "GGUF" + packed(p.version, 4) + packed(p.n_tensors) + packed(p.values.size());
    for (const std::string& v : p.values) out += v;
    return out + p.rest;
}

class Dice {
public:
    explicit Dice(unsigned seed) : state_(seed) {}
    size_t below(size_t n)
    {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        return n ? static_cast<size_t>(state_ >> 33) % n : 0;
    }

private:
    uint64_t state_;
};

std::string mutated(std::string s, size_t more)
{
    const size_t size = s.size();
    s.resize(size + more);
    s.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(&s[0]), size, s.size()));
    return s;
}

// One setting: a number that is likely to hurt, a text or list that keeps its form.
void change(std::string& v, Dice& dice)
{
    const size_t kind_at = 8 + word(v, 0), at = kind_at + 4;
    const uint64_t kind = static_cast<unsigned char>(v[kind_at]), width = weights::gguf_width(
        static_cast<weights::GgufKind>(std::min<uint64_t>(kind, 12)));
    if (kind == 8) {
        const std::string text = mutated(v.substr(at + 8), 64);
        v = v.substr(0, at) + packed(text.size()) + text;
    } else if (width) {
        static const uint64_t numbers[] = {0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 63, 64, 127, 128, 255, 256, 1023, 1024, 65535,
            65536, 1u << 24, 1u << 30, 0x7fffffff, 0x80000000, 0xffffffff, 0x7f800000, 0x7fc00000, 0xff800000, 0x3f800000,
            0xbf800000, 0x00000001, 0x7f7fffff, 0x461c4000, uint64_t{1} << 32, uint64_t{1} << 62, UINT64_MAX};
        v = v.substr(0, at) + packed(numbers[dice.below(std::size(numbers))], width);
    } else {
        const uint64_t item = word(v, at) & 0xffffffff, count = word(v, at + 4);
        std::vector<std::string> items;
        size_t from = at + 12;
        for (uint64_t i = 0; i < count; i++) {
            const size_t end = end_of(v, item, from);
            items.push_back(v.substr(from, end - from));
            from = end;
        }
        for (size_t k = 1 + dice.below(3); k && !items.empty(); k--) {
            std::string& one = items[dice.below(items.size())];
            const std::string other = items[dice.below(items.size())];
            switch (dice.below(item == 8 ? 5 : 3)) {
            case 0: one = other; break;
            case 1:
                if (dice.below(4)) break;
                if (dice.below(2)) items.pop_back();
                else items.push_back(other);
                break;
            case 2:
                if (item == 8) one = packed(one.size() - 8 + other.size() - 8) + one.substr(8) + other.substr(8);
                else one = mutated(one, 0), one.resize(other.size());
                break;
            default: {
                const std::string text = mutated(one.substr(8), 12);
                one = packed(text.size()) + text;
            }
            }
        }
        v = v.substr(0, at + 4) + packed(items.size());
        for (const std::string& one : items) v += one;
    }
}

// ---- What a program does with a file -------------------------------------------------------------------------------------

void use(const std::string& path)
{
    const weights::Source source = weights::read_source(path, "");
    weights::WriteOptions options;
    options.convert = source.tensors.size() % 2;
    options.type = static_cast<transformer::DType>(source.tensors.size() / 2 % 6);
    if (weights::checkpoint_size(source, options) > 1u << 24) return;
    const weights::AlignedBytes bytes = weights::write_to_memory(source, options);
    transformer::Model model;
    if (!transformer::open(bytes.data, bytes.size, &model)) return;
    const transformer::Vocabulary& v = model.vocabulary;
    std::string text = "The <s>caf\xc3\xa9</s> \xf0\x9f\xa6\x99 12345\n\n  x\xff <|im_end|>";
    if (v.chat_template) {
        weights::ChatInput in;
        in.messages = {{"system", "be kind"}, {"user", "hi"}, {"assistant", "yes"}, {"user", "and?"}};
        weights::ChatLimits limits;
        limits.steps = 20000, limits.bytes = 1 << 20;
        try {
            text += weights::render_chat({v.chat_template, v.chat_template_size}, in, limits).substr(0, 2000);
        } catch (const weights::Error&) {
        }
    }
    std::vector<int32_t> ids = {1, 2, 3};
    if (v.n_tokens) {
        std::vector<unsigned char> work(transformer::tokenize_size(v, text.size()));
        std::vector<int32_t> all(8192);
        uint32_t n = 0;
        if (transformer::tokenize(v, text.data(), text.size(), {}, work.data(), work.size(), all.data(), 8192, &n)) {
            transformer::Decoder decoder;
            for (uint32_t i = 0; i < n; i++)
                transformer::detokenize(v, decoder, all[i], [](void*, const char*, uint32_t) { return true; }, nullptr);
            if (n) ids.assign(all.begin(), all.begin() + std::min<uint32_t>(n, 5));
        }
    }
    transformer::Options o;
    o.capacity = 8;
    if (model.encoder.config.n_layers) o.source_capacity = 8;
    const uint64_t size = transformer::session_size(model, o);
    if (size > 1u << 24) return;
    const weights::AlignedBytes memory(size);
    transformer::Session session;
    if (!transformer::start(model, o, memory.data, size, &session)) return;
    transformer::Input in;
    in.tokens = ids.data(), in.count = static_cast<uint32_t>(ids.size());
    if (o.source_capacity && !transformer::encode(session, in, nullptr)) return;
    (void)transformer::forward(session, in, nullptr);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed)
{
    Dice dice(seed);
    Pieces p;
    if (!dice.below(8) || !take_apart({reinterpret_cast<const char*>(data), size}, &p) || p.values.empty())
        return LLVMFuzzerMutate(data, size, max_size);
    for (size_t k = 1 + dice.below(3); k && !p.values.empty(); k--) {
        const size_t i = dice.below(p.values.size());
        switch (dice.below(16)) {
        case 0: p.values.erase(p.values.begin() + static_cast<ptrdiff_t>(i)); break;
        case 1: std::swap(p.values[i], p.values[dice.below(p.values.size())]); break;
        case 2: {                                              // the tensors' names, sizes and types
            const size_t n = std::min<size_t>(p.rest.size(), p.n_tensors * 60);
            const std::string head = mutated(p.rest.substr(0, n), 0);
            p.rest = head + p.rest.substr(n);
            break;
        }
        default: change(p.values[i], dice);
        }
    }
    const std::string out = put_together(p);
    const size_t n = std::min(out.size(), max_size);
    std::memcpy(data, out.data(), n);
    return n;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    static const std::string path = [] {                       // memory, where the system has a folder of it
        const std::string folder = std::filesystem::exists("/dev/shm") ? "/dev/shm"
                                                                       : std::filesystem::temp_directory_path().string();
        return folder + "/fuzz-" + std::to_string(std::random_device()()) + ".gguf";
    }();
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    try {
        use(path);
    } catch (const weights::Error&) {
    }
    std::filesystem::remove(path);
    return 0;
}
