// main.cpp - the command line around transformer.hpp
//
//     run MODEL [options]          generate text; `run -h` lists the verbs, `run VERB -h` the options of one
//
// What was asked for goes to stdout, what is said about it (statistics, progress, errors) to stderr. Exit status: 0 done,
// 1 the work failed (one sentence says what, where and what to do), 2 wrong usage, 130 stopped by Ctrl-C.
//
// Contents: messages, output, model, session, input, generation, chat, the verbs for text, for encoders, for numbers, about
// models, main

#define TRANSFORMER_IMPLEMENTATION
#define TRANSFORMER_THREADS
#include "transformer.hpp"
#include "weights/chat.hpp"
#include "weights/import.hpp"
#include "weights/info.hpp"
#include "weights/options.hpp"
#include "weights/picture.hpp"
#include "weights/review.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <numeric>

#if defined(_WIN32)
#include <io.h>
#endif

namespace {

using namespace cli;
using transformer::Config;
using transformer::DType;
using transformer::Event;
using transformer::Input;
using transformer::Model;
using transformer::Session;
using transformer::Status;
using transformer::VocabularyKind;
using weights::bytes_text;
using weights::counted;
using weights::format;
using weights::joined;
using weights::JsonObject;
using weights::json_text;
using weights::Source;
using weights::type_name;
using Text = std::optional<std::string>;

// ---- Messages --------------------------------------------------------------------------------------------------------

using Failure = weights::Error;                                // the work failed: exit status 1
struct Interrupted {};                                         // Ctrl-C: exit status 130
struct ReaderGone {};                                          // nobody reads stdout any more: stop quietly

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int signal)
{
    interrupted = signal;
    std::signal(signal, SIG_DFL);                              // the second one ends the program at once
}
void hear_interrupts()
{
    interrupted = 0;
    std::signal(SIGINT, on_interrupt);
}
// While there is something half written that must be taken away, the end of the program is heard too, unless it is ignored
// (nohup). At other times it ends the program at once, also where that waits for stdin.
void hear_the_end()
{
    int ends[] = {SIGTERM,
#if defined(SIGHUP)
        SIGHUP
#endif
    };
    for (int signal : ends)
        if (std::signal(signal, on_interrupt) == SIG_IGN) std::signal(signal, SIG_IGN);
}

void say(const std::string& sentence) { std::fputs(("run: " + sentence + "\n").c_str(), stderr); }

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

const char* advice(const Status& status)
{
    using transformer::Code;
    switch (status.code) {
    case Code::not_a_checkpoint: case Code::bad_version: case Code::truncated: case Code::bad_config: case Code::bad_tensor:
    case Code::missing_tensor: case Code::bad_vocabulary: return "; make it again with `run import`";
    case Code::session_full: return "; raise --ctx-size";
    default: return std::strcmp(status.field, "options.capacity") == 0 ? "; lower --ctx-size" : "";
    }
}
void check(const Status& status, const std::string& where)
{
    if (status) return;
    if (status.code == transformer::Code::cancelled) throw Interrupted{};
    std::string detail = status.field;
    if (status.where) detail += (detail.empty() ? "" : " ") + std::to_string(status.where);
    throw Failure(where + ": " + status.text + (detail.empty() ? "" : " (" + detail + ")") + advice(status));
}

// ---- Output ----------------------------------------------------------------------------------------------------------

// stdout, or the file of an option, which has its name only when it is finished. A reader that went away ends the program
// quietly; any other byte that cannot be written is an error.
class Output {
public:
    explicit Output(const Text& path = std::nullopt) : path_(path.value_or("stdout"))
    {
        if (!path) return;
        hear_the_end();
        std::error_code error;
        const auto status = std::filesystem::status(*path, error);
        const bool stream = std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)
            && !std::filesystem::is_directory(status);
        if (stream || path->rfind("/dev/", 0) == 0) {          // a pipe, a device, /dev/stdout
            stream_ = std::fopen(path->c_str(), "wb");
            if (!stream_) fail();
        } else file_.emplace(*path);
    }
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;
    ~Output()
    {
        if (stream_ && stream_ != stdout) std::fclose(stream_);
    }
    void write(const void* data, size_t n)
    {
        if (file_) file_->write(static_cast<const unsigned char*>(data), n);
        else if (n && std::fwrite(data, 1, n, stream_) != n) fail();
    }
    void write(const std::string& text) { write(text.data(), text.size()); }
    void write(const std::vector<float>& values) { write(values.data(), values.size() * sizeof(float)); }
    void flush()
    {
        if (!file_ && std::fflush(stream_) != 0) fail();
    }
    void finish()
    {
        if (file_) file_->commit();
        flush();
        FILE* const stream = std::exchange(stream_, stdout);
        if (stream != stdout && std::fclose(stream) != 0) fail();
    }

private:
    [[noreturn]] void fail() const
    {
        const int code = errno;
        if (code == EPIPE && stream_ == stdout) throw ReaderGone{};
        throw weights::file_error(path_, "cannot be written", code);
    }
    std::string path_;
    FILE* stream_ = stdout;
    std::optional<weights::NewFile> file_;
};
int print(const std::string& text, const Text& path = std::nullopt)
{
    Output out(path);
    out.write(text);
    out.finish();
    return 0;
}

// Text as it comes: kept, and if it is not quiet written to stdout.
struct Printer {
    Output out;
    bool quiet = false;
    std::string text;
};
bool print_piece(void* user, const char* text, uint32_t n)
{
    Printer& p = *static_cast<Printer*>(user);
    p.text.append(text, n);
    if (p.quiet) return true;
    p.out.write(text, n);
    p.out.flush();
    return true;
}

bool terminal(FILE* stream)
{
#if defined(_WIN32)
    return _isatty(_fileno(stream)) != 0;
#else
    return isatty(fileno(stream)) != 0;
#endif
}

// ---- Model -----------------------------------------------------------------------------------------------------------

DType type_named(const std::string& name)
{
    const auto found = std::find(std::begin(weights::type_names), std::end(weights::type_names), name);
    return static_cast<DType>(found - std::begin(weights::type_names));
}
weights::WriteOptions write_options(const Arguments& a)
{
    weights::WriteOptions o;
    o.convert = !a.type.empty();
    if (o.convert) o.type = type_named(a.type);
    return o;
}

weights::File checkpoint_file(const std::string& path)        // null: something else
{
    std::error_code error;
    if (!std::filesystem::exists(path, error))
        throw Failure(path + ": there is no such file or folder; the model that ships is weights/stories.bin");
    if (weights::is_directory(path)) return nullptr;
    const weights::File file = weights::map_file(path);
    return file->size >= 8 && std::memcmp(file->data, "TRNSFRMR", 8) == 0 ? file : nullptr;
}

// Whatever MODEL is, as a source: a checkpoint, too, can be described and converted.
struct ModelSource {
    weights::File file;                                        // that a checkpoint's source reads from
    Source source;
};
ModelSource open_source(const Arguments& a)
{
    ModelSource m;
    m.file = checkpoint_file(a.model());
    if (m.file) {
        if (a.tokenizer) throw Failure(a.model() + ": has its tokenizer in it; -z is for other files, when they are imported");
        Model model;
        check(transformer::open(m.file->data, m.file->size, &model), a.model());
        m.source = weights::source_of(model);
    } else {
        m.source = weights::read_source(a.model(), a.tokenizer.value_or(""));
    }
    return m;
}

// A model that can run: a checkpoint where it lies, or another file converted in memory.
struct Loaded {
    std::string name;
    weights::File file;
    weights::AlignedBytes bytes;
    std::vector<unsigned char> vocabulary;                     // of a tokenizer that stands alone
    Model model;
    uint64_t size = 0;
    double seconds = 0;

    const Config& config() const { return model.main.config; }
    const Config& encoder() const { return model.encoder.config; }
    bool causal() const { return transformer::is_causal(config()); }
    bool cross() const { return (config().flags & transformer::flag_cross) != 0; }
};
void load(const Arguments& a, Loaded* m)
{
    const double start = now();
    m->name = a.model();
    m->file = checkpoint_file(a.model());
    if (!m->file || a.tokenizer || !a.type.empty()) {
        weights::WriteOptions o = write_options(a);
        o.threads = a.threads;
        o.progress = [&, told = false](uint64_t, uint64_t total) mutable {
            if (interrupted) throw Interrupted{};
            if (told || now() - start < 1) return;
            told = true;
            say("converting " + a.model() + " in " + bytes_text(total) +
                " of memory; `run import` writes a file that opens at once");
        };
        const ModelSource source = open_source(a);
        m->bytes = weights::write_to_memory(source.source, o);
        m->file = nullptr;
    }
    m->size = m->file ? m->file->size : m->bytes.size;
    check(transformer::open(m->file ? m->file->data : m->bytes.data, m->size, &m->model), a.model());
    m->seconds = now() - start;
}

// ---- Session ---------------------------------------------------------------------------------------------------------

// Positions that a sequence may have: what was asked for, or what the model was trained for but no more than 4,096.
uint32_t context(const Arguments& a, const Config& c)
{
    return a.ctx_size ? a.ctx_size : c.max_seq_len ? std::min(c.max_seq_len, 4096u) : 4096u;
}
DType cache_type(const Arguments& a, DType usual) { return a.kv.empty() ? usual : type_named(a.kv); }

uint64_t physical_memory()
{
#if defined(_SC_PHYS_PAGES) && defined(_SC_PAGESIZE)
    const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    if (pages > 0 && size > 0) return static_cast<uint64_t>(pages) * static_cast<uint64_t>(size);
#endif
    return UINT64_MAX;
}
transformer::Isa isa_named(const Arguments& a)
{
    uint32_t isa = 0;
    while (isa + 1 < transformer::n_isas && a.isa != transformer::isa_names[isa]) isa++;
    if (!transformer::room_available(static_cast<transformer::Isa>(isa)))
        throw Failure("--isa " + a.isa + ": this machine does not have it; use best");
    return static_cast<transformer::Isa>(isa);
}

struct Need {                                                  // what a verb wants of its model and session
    uint32_t positions = 0, source = 0;
    DType cache = DType::f32;
    bool all_logits = false, attention = false;
    // of prepare():
    bool logits = false, generates = false;
    bool from_start = false;                                   // without a prompt, begin with the start token
    uint64_t more = 0;                                         // positions behind the prompt, as far as the context allows
};
struct Runner {
    Session session;
    std::unique_ptr<transformer::ThreadPool> pool;
    weights::AlignedBytes memory;
    std::function<void(const Event&)> see;                     // told of all that the observer sees
    uint32_t threads = 1;
};
bool observe(void* user, const Event& event)
{
    const Runner& r = *static_cast<const Runner*>(user);
    if (!interrupted && r.see) r.see(event);
    return !interrupted;
}

void make_session(const Arguments& a, const Loaded& m, const Need& need, Runner* r)
{
    transformer::Options o;
    o.capacity = std::max({need.positions, m.causal() ? a.ctx_size : 0u, 1u});
    o.source_capacity = need.source;
    // Beyond rope_long_from all positions turn by other angles, so such a sequence must be seen in one piece.
    if (need.all_logits && m.config().rope_long_from && need.positions > m.config().rope_long_from) o.batch = need.positions;
    o.cache = cache_type(a, need.cache);
    o.all_logits = need.all_logits && m.causal();
    o.isa = isa_named(a);
    r->threads = a.threads ? a.threads : transformer::default_threads();
    try {
        if (r->threads > 1) r->pool = std::make_unique<transformer::ThreadPool>(r->threads);
    } catch (const std::system_error& error) {
        if (a.threads)
            throw Failure(std::to_string(a.threads) + " threads cannot be started (" + error.code().message() +
                "): lower --threads");
        r->threads = 1;                                        // it takes longer
    }
    if (r->pool) {
        o.slices = r->threads;
        o.parallel_for = transformer::ThreadPool::parallel_for;
        o.parallel_user = r->pool.get();
    }
    o.observer = observe;
    o.observer_user = r;
    o.observe_attention = need.attention;
    const uint64_t size = transformer::session_size(m.model, o);
    const std::string wanted = "a session of " + counted(o.capacity,
        "position") + " needs " + std::to_string(size) + " bytes of memory";
    if (size > physical_memory())
        throw Failure(wanted + " and this machine has " + std::to_string(physical_memory()) + ": lower --ctx-size");
    try {
        r->memory = weights::AlignedBytes(size);
    } catch (const Failure&) {
        throw Failure(wanted + ", which the system does not give: lower --ctx-size");
    }
    check(transformer::start(m.model, o, r->memory.data, size, &r->session), m.name);
}

// ---- Input -----------------------------------------------------------------------------------------------------------

std::string read_stream(FILE* stream, const std::string& name)
{
    std::string text;
    char piece[65536];
    for (size_t n; (n = std::fread(piece, 1, sizeof piece, stream)) > 0;) text.append(piece, n);
    if (std::ferror(stream)) throw weights::file_error(name, "cannot be read", errno);
    return text;
}
std::string read_file(const std::string& path)                 // a pipe, too
{
    const std::unique_ptr<FILE, int (*)(FILE*)> stream(std::fopen(path.c_str(), "rb"), std::fclose);
    if (!stream) throw weights::file_error(path, "cannot be opened", errno);
    return read_stream(stream.get(), path);
}

// -i, -f, or a word of the command line: one of them.
Text given_text(const Arguments& a)
{
    const Text word = a.words.size() > 1 ? Text(a.words[1]) : std::nullopt;
    if (a.prompt.has_value() + a.file.has_value() + word.has_value() > 1)
        throw Misuse("there are two texts: give one, on the command line, with -i or with -f");
    return a.file ? Text(read_file(*a.file)) : a.prompt ? a.prompt : word;
}

void require_tokenizer(const Loaded& m)
{
    if (m.model.vocabulary.kind == VocabularyKind::none)
        throw Failure(m.name + ": has no tokenizer; give one with -z FILE");
}
// Ids, and the token types if `types` is given, of a text or (second) of two that belong together.
std::vector<int32_t> tokenized(const Loaded& m, const std::string& text, const transformer::TokenizeOptions& o,
                               const Text& second = std::nullopt, std::vector<int32_t>* types = nullptr)
{
    const transformer::Vocabulary& v = m.model.vocabulary;
    require_tokenizer(m);
    const char* const b = second ? second->data() : nullptr;
    const size_t n_b = second ? second->size() : 0;
    std::vector<uint32_t> work(static_cast<size_t>(transformer::tokenize_size(v, std::max(text.size(), n_b)) / 4 + 1));
    std::vector<int32_t> ids(text.size() + n_b + 64);
    while (true) {                                             // a character can become many when it is normalised
        uint32_t count = 0;
        if (types) types->resize(ids.size());
        const Status status =
            transformer::tokenize_pair(v, text.data(), text.size(), b, n_b, o, work.data(), work.size() * 4, ids.data(),
                                       types ? types->data() : nullptr, static_cast<uint32_t>(ids.size()), &count);
        const bool larger = status.code == transformer::Code::memory_too_small && status.where > ids.size();
        if (!larger) check(status, "the text");
        ids.resize(larger ? static_cast<size_t>(status.where) : count);
        if (types && !larger) types->resize(count);
        if (!larger) return ids;
    }
}
std::vector<int32_t> tokenized(const Arguments& a, const Loaded& m, const std::string& text, bool add_special,
                               bool single_bos = true)
{
    return tokenized(m, text, {add_special && !a.no_add_special, !a.no_parse_special, single_bos});
}

std::string token_string(const Loaded& m, int32_t id)
{
    uint32_t n = 0;
    const char* text = transformer::token_text(m.model.vocabulary, id, &n);
    return std::string(text, n);
}

// What forward() or encode() is given, and the memory behind it.
struct Prompt {
    std::vector<int32_t> ids, types;
    std::vector<float> values;
    std::vector<uint8_t> mask;
    uint32_t count = 0;
    bool features = false;

    Input input() const
    {
        Input in;
        in.tokens = values.empty() ? ids.data() : nullptr;
        in.rows = values.empty() || features ? nullptr : values.data();
        in.features = features ? values.data() : nullptr;
        in.types = types.empty() ? nullptr : types.data();
        in.mask = mask.empty() ? nullptr : mask.data();
        in.count = count;
        return in;
    }
    void use(std::vector<int32_t> tokens)
    {
        ids = std::move(tokens);
        count = static_cast<uint32_t>(ids.size());
    }
    void use_file(const std::string& path, uint32_t width, bool are_features) // raw float32, `width` values a row or frame
    {
        const std::string bytes = read_file(path);
        if (bytes.empty() || bytes.size() % (size_t{4} * width))
            throw Failure(path + ": has " + counted(bytes.size(),
                "byte") + ", not a multiple of " + std::to_string(width) + " float32 values");
        for (size_t i = 0; i < bytes.size(); i += 4)
            values.push_back(weights::load_f32(reinterpret_cast<const unsigned char*>(&bytes[i])));
        count = static_cast<uint32_t>(values.size() / width);
        features = are_features;
    }
    void use_mask(const std::vector<int32_t>& bits, const char* option)
    {
        require_length(bits, option);
        mask.assign(bits.begin(), bits.end());
    }
    void require_length(const std::vector<int32_t>& list, const char* option) const
    {
        if (!list.empty() && list.size() != count)
            throw Misuse(std::string(option) + " has " + counted(list.size(), "value") + " for " + counted(count, "row"));
    }
};

void require_ids(const std::vector<int32_t>& ids, const Config& c)
{
    for (const int32_t id : ids)
        if (static_cast<uint32_t>(id) >= c.vocab_size)
            throw Failure(c.vocab_size ? format("%d is no token id: the vocabulary has ids 0 to %u", id, c.vocab_size - 1)
                                       : std::string("this model takes rows, not ids: give --rows"));
}
void require_room(const Arguments& a, const Config& c, uint64_t count)
{
    if (count > context(a, c))
        throw Failure("the prompt has " + counted(count, "token") + " and the context " + counted(context(a, c), "position") +
                      (context(a, c) < c.max_seq_len ? ": shorten it or raise --ctx-size" : ": shorten it"));
}
int32_t start_token(const Loaded& m)                           // what a text begins with; -1: nothing
{
    return m.config().decoder_start ? static_cast<int32_t>(m.config().decoder_start - 1) : m.model.vocabulary.bos;
}
// Of an encoder-decoder the text is the source, unless there is another.
bool text_is_source(const Arguments& a, const Loaded& m)
{
    return m.cross() && !a.source && a.source_ids.empty() && !a.features && !a.memory;
}

void require_one(int given, const char* what)
{
    if (given > 1) throw Misuse(std::string(what) + " are ways to say the same: give one");
}
// The input of the decoder, or of an encoder that stands alone.
Prompt main_prompt(const Arguments& a, const Loaded& m, bool from_start)
{
    Prompt p;
    const Text text = text_is_source(a, m) ? std::nullopt : given_text(a);
    require_one(a.rows.has_value() + !a.ids.empty() + text.has_value(), "--rows, --ids and a text");
    if (a.rows) {
        p.use_file(*a.rows, m.config().dim, false);
    } else if (a.features && m.config().n_features) {
        p.use_file(*a.features, m.config().n_features, true);
    } else if (!a.ids.empty()) {
        p.use(a.ids);
    } else {
        if (!text && !from_start && !m.cross()) throw Misuse("give --ids, -i/--prompt or --rows");
        if (text) p.ids = tokenized(a, m, *text, !m.cross());
        if (m.cross() || p.ids.empty()) {
            if (start_token(m) < 0)
                throw Failure(m.name
                + ": has no token that begins a text: give a prompt with -i, or --ids where a verb takes them");
            p.ids.insert(p.ids.begin(), start_token(m));
        }
        p.use(p.ids);
    }
    require_ids(p.ids, m.config());
    p.require_length(a.types, "--types");
    p.types = a.types;
    p.use_mask(a.mask, "--mask");
    if (m.causal()) {                                          // no real token sees padding that comes after it
        if (!std::is_sorted(p.mask.rbegin(), p.mask.rend()))
            throw Failure(m.name + ": is a decoder, so --mask may have zeros at its end only");
        p.mask.clear();
    }
    if (!p.features) require_room(a, m.config(), p.count);
    return p;
}

// The input of an encoder-decoder's encoder, or with --memory what comes out of it.
Prompt source_prompt(const Arguments& a, const Loaded& m)
{
    Prompt p;
    if (!m.cross()) {
        if (!a.source_ids.empty() || !a.source_mask.empty() || a.source || a.memory || (a.features && !m.config().n_features))
            throw Failure(m.name + ": is no encoder-decoder, so it takes no source");
        return p;
    }
    require_one(!a.source_ids.empty() + a.source.has_value() + a.memory.has_value() + a.features.has_value(),
        "--source-ids, --source, --memory and --features");
    const Text text = a.source ? a.source : text_is_source(a, m) ? given_text(a) : std::nullopt;
    if (a.memory) {
        p.use_file(*a.memory, m.config().dim, false);
    } else if (!m.encoder().n_layers) {
        throw Failure(m.name + ": is a decoder without its encoder: give --memory FILE");
    } else if (m.encoder().n_features) {
        if (!a.features) throw Misuse(m.name + " takes log-mel frames as its source: give --features FILE");
        p.use_file(*a.features, m.encoder().n_features, true);
    } else {
        if (a.features) throw Failure(m.name + ": takes tokens as its source, not --features");
        if (a.source_ids.empty() && !text)
            throw Misuse(m.name + " is an encoder-decoder: give its source with --source-ids, --source or -i");
        p.use(!a.source_ids.empty() ? a.source_ids : tokenized(a, m, *text, true));
        if (!p.count) throw Failure("the source has no tokens");
        require_ids(p.ids, m.encoder());
        require_room(a, m.encoder(), p.count);
    }
    p.use_mask(a.source_mask, "--source-mask");
    return p;
}

// A model, its inputs and a session that is large enough for them.
struct Prepared {
    Loaded m;
    Prompt prompt, source;
    Runner r;
    bool encoder = false;                                      // only the encoder of an encoder-decoder runs

    const Config& config() const { return encoder ? m.encoder() : m.config(); }
};
void prepare(const Arguments& a, Need need, Prepared* p)
{
    load(a, &p->m);
    const Config& c = p->m.config();
    if ((need.logits || need.generates) && !c.n_outputs)
        throw Failure(p->m.name + ": has no head, so there are no logits; `run hidden` gives its hidden states");
    if (need.generates && !p->m.causal())
        throw Failure(p->m.name
            + ": is an encoder and does not generate text; `run logits` and `run hidden` show what it says");
    if (a.encoder && p->m.causal() && !p->m.encoder().n_layers)
        throw Failure(p->m.name + ": has no encoder; leave --encoder out");
    if (a.encoder && a.memory) throw Misuse("--memory is what comes out of the encoder: give --encoder a source");
    p->encoder = a.encoder && p->m.cross();
    if (!p->encoder) p->prompt = main_prompt(a, p->m, need.from_start);
    p->source = source_prompt(a, p->m);
    const uint64_t count = p->prompt.count;
    need.positions = static_cast<uint32_t>(std::min(count + need.more, std::max(count, uint64_t{context(a, c)})));
    need.source = p->source.count;
    make_session(a, p->m, need, &p->r);
}
void feed_source(Prepared* p, bool is_memory)
{
    if (!p->m.cross()) return;
    const Input in = p->source.input();
    check(is_memory ? transformer::set_memory(p->r.session, in.rows, in.count, in.mask)
        : transformer::encode(p->r.session, in, nullptr), p->m.name);
}

// ---- Generation ------------------------------------------------------------------------------------------------------

// Makes the session see what it has not seen yet of a prompt and the ids after it; gives the logits of the last position.
// Sequences longer than rope_long_from turn all positions by other angles: the token that crosses it sends everything through
// once more.
float* advance(Prepared* p, const std::vector<int32_t>& after)
{
    Session& session = p->r.session;
    const Prompt& prompt = p->prompt;
    const uint64_t total = prompt.count + after.size(), limit = p->m.config().rope_long_from;
    if (limit && total > limit && !session.rope_long && session.position) check(transformer::rewind(session, 0), p->m.name);
    Input next = prompt.input();
    std::vector<int32_t> again;
    if (session.position) {
        next = Input{};
        next.tokens = after.data() + (session.position - prompt.count);
    } else if (!after.empty()) {
        if (!next.tokens) throw Failure(p->m.name + ": cannot go on from rows beyond " + counted(limit, "position"));
        again = prompt.ids;
        again.insert(again.end(), after.begin(), after.end());
        next.tokens = again.data();
    }
    next.count = static_cast<uint32_t>(total - session.position);
    float* logits = nullptr;
    check(transformer::forward(session, next, &logits), p->m.name);
    return logits;
}

uint64_t seed_of(const Arguments& a)                           // from the clock, if none is given
{
    return a.seed.value_or(static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) % 1000000007);
}
transformer::Sampler sampler_of(const Arguments& a, uint64_t seed)
{
    transformer::Sampler s;
    s.temperature = a.temperature, s.top_p = a.top_p, s.top_k = a.top_k, s.min_p = a.min_p;
    s.repeat_penalty = a.repeat_penalty, s.seed = seed;
    return s;
}
void remember(transformer::Sampler* s, const std::vector<int32_t>& ids) // for the repetition penalty
{
    for (size_t i = ids.size() > 64 ? ids.size() - 64 : 0; i < ids.size(); i++) s->recent[s->n_recent++ % 64] = ids[i];
}

struct Generation {
    std::vector<int32_t> ids;                                  // the new ones; the stop token is not among them
    double start = now(), prompt_end = 0, end = 0;             // seconds
    const char* stop = "length";
};

// Feeds the source and the prompt, then samples and feeds back, telling `see` of each new token.
Generation generate(const Arguments& a, Prepared* p, uint64_t most, transformer::Sampler sampler,
    const std::function<void(int32_t)>& see)
{
    Generation g;
    try {
        feed_source(p, a.memory.has_value());
        float* logits = advance(p, g.ids);
        g.prompt_end = now();
        remember(&sampler, p->prompt.ids);
        while (g.ids.size() < most) {
            if (!g.ids.empty()) logits = advance(p, g.ids);
            int32_t token = 0;
            check(transformer::sample(sampler, logits, p->m.config().n_outputs, &token), p->m.name);
            if (!a.ignore_eos && transformer::is_stop(p->m.model.vocabulary, token)) {
                g.stop = "end";
                break;
            }
            g.ids.push_back(token);
            see(token);
        }
    } catch (const Interrupted&) {
        g.stop = "interrupted";
    }
    g.end = now();
    if (g.prompt_end <= 0) g.prompt_end = g.end;
    return g;
}

// How many new tokens are to be made: the last one needs no position of its own.
uint64_t clipped(const Arguments& a, const Prepared& p)
{
    const uint64_t asked = a.predict.value_or(256), room = uint64_t{p.r.session.options.capacity} - p.prompt.count + 1;
    if (asked > room && a.predict)
        say("-n " + std::to_string(asked) + " is cut to " + counted(room, "token") + ", what the context of " +
            counted(p.r.session.options.capacity, "position") + " has room for; --ctx-size raises it");
    return std::min(asked, room);
}

// ---- Chat -----------------------------------------------------------------------------------------------------------

// One line of stdin without its end; false: there is none. Ctrl-C ends the wait for it.
bool read_line(std::string* line)
{
    line->clear();
#if defined(_WIN32)
    std::signal(SIGINT, SIG_DFL);
#else
    struct sigaction waiting = {};                             // without SA_RESTART
    waiting.sa_handler = on_interrupt;
    sigaction(SIGINT, &waiting, nullptr);
#endif
    int c;
    while ((c = std::fgetc(stdin)) != EOF && c != '\n') *line += static_cast<char>(c);
    const int code = errno;
    if (interrupted) throw Interrupted{};
    if (std::ferror(stdin)) throw weights::file_error("stdin", "cannot be read", code);
    hear_interrupts();
    const bool any = c != EOF || !line->empty();
    if (!line->empty() && line->back() == '\r') line->pop_back();
    return any;
}

// A conversation and what of it lies in the cache. Each turn all of it is rendered and tokenized anew; the session goes
// back to where the ids begin to differ and sees the rest, so that templates may rewrite what came earlier.
class Chat {
public:
    explicit Chat(const Arguments& a) : a_(a), seed_(seed_of(a)), sampler_(sampler_of(a, seed_))
    {
        load(a, &m_);
        if (m_.cross() || !m_.causal() || !m_.config().n_outputs)
            throw Failure(m_.name + ": is no decoder with a head, and a chat needs one");
        require_tokenizer(m_);
        choose_template();
        Need need;
        need.positions = context(a, m_.config());
        need.cache = DType::f16;
        make_session(a, m_, need, &r_);
        reset();
    }
    void reset()                                               // the system prompt alone
    {
        messages_.clear();
        if (a_.system) messages_.push_back({"system", *a_.system});
    }
    // The answer to a message goes to stdout; false: the message does not fit into the context.
    bool answer(const std::string& message);
    void report() const
    {
        const auto tokens = [](uint64_t n, double seconds) {
            const double rate = seconds > 0 ? static_cast<double>(n) / seconds : 0.0;
            return counted(n, "token") + format(", %.1f tokens/s", rate);
        };
        std::string text = counted(turns_, "answer") + "; read " + tokens(read_, read_seconds_) + ", kept " +
                           std::to_string(kept_) + " in the cache; generated " + tokens(made_, made_seconds_);
        if (a_.temperature > 0) text += "; seed " + std::to_string(seed_);
        std::fputs((text + "\n").c_str(), stderr);
    }

private:
    const transformer::Vocabulary& vocabulary() const { return m_.model.vocabulary; }
    uint32_t capacity() const { return r_.session.options.capacity; }

    std::string render(std::vector<weights::ChatMessage> messages, bool prompt) const
    {
        if (merge_system_ && messages.size() > 1 && messages[0].role == "system") {
            messages[1].content = messages[0].content + "\n\n" + messages[1].content;
            messages.erase(messages.begin());
        }
        weights::ChatInput in;
        in.messages = std::move(messages);
        in.bos_token = token_string(m_, vocabulary().bos);
        in.eos_token = token_string(m_, vocabulary().eos);
        in.add_generation_prompt = prompt;
        return weights::render_chat(template_, in);
    }
    void choose_template();
    void find_turn_end();

    std::vector<int32_t> ids() const                           // of the conversation, up to where the answer begins
    {
        const transformer::Vocabulary& v = vocabulary();
        std::vector<int32_t> out = tokenized(a_, m_, render(messages_, true), false);
        const bool begins = v.bos < 0 || (!out.empty() && out[0] == v.bos);
        if (v.flags & transformer::vocabulary_add_bos && !begins) out.insert(out.begin(), v.bos);
        return out;
    }
    float* feed(const std::vector<int32_t>& all);
    bool make_room(std::vector<int32_t>* prompt, const std::vector<int32_t>& answered);

    const Arguments& a_;
    Loaded m_;
    Runner r_;
    uint64_t seed_;
    transformer::Sampler sampler_;
    std::string template_;
    bool merge_system_ = false;                                // the template has no place for a system prompt
    int32_t turn_end_ = -1;                                    // the token that the template puts behind an answer
    std::vector<weights::ChatMessage> messages_;
    std::vector<int32_t> cached_;                              // what the session has seen
    size_t kept_now_ = 0;                                      // how much of it the last feed() kept
    uint64_t turns_ = 0, read_ = 0, kept_ = 0, made_ = 0;
    double read_seconds_ = 0, made_seconds_ = 0;
};

// The family whose marks are special tokens of the vocabulary; null: none is.
const weights::ChatFamily* family_of_tokens(const transformer::Vocabulary& v)
{
    const auto special = [&](const char* mark) {
        const int32_t id = transformer::token_id(v, mark, static_cast<uint32_t>(std::strlen(mark)));
        if (id < 0) return false;
        const auto type = static_cast<transformer::TokenType>(v.types[id]);
        return type == transformer::TokenType::control || type == transformer::TokenType::user_defined;
    };
    for (const weights::ChatFamily& f : weights::chat_families)
        if (special(f.marks[0]) && special(f.marks[1])) return &f;
    return nullptr;
}

void Chat::choose_template()
{
    const transformer::Vocabulary& v = vocabulary();
    if (a_.chat_template) {
        const weights::ChatFamily* const family = weights::chat_family_named(*a_.chat_template);
        if (!family && !weights::is_file(*a_.chat_template))
            throw Failure("--chat-template " + in_quotes(*a_.chat_template) + ": is no file and none of " +
                          weights::chat_family_names());
        template_ = family ? family->text : read_file(*a_.chat_template);
    } else if (v.chat_template_size) {
        template_.assign(v.chat_template, v.chat_template_size);
    } else if (const weights::ChatFamily* const family = family_of_tokens(v)) {
        template_ = family->text;
        say(m_.name + ": has no chat template; it has the tokens " + family->marks[0] + " and " + family->marks[1] +
            ", so it is taken for " + family->name + ", and --chat-template names another");
    } else {
        throw Failure(m_.name + ": has no chat template; name one with --chat-template (a file, or " +
                      weights::chat_family_names() + "), or generate text with `run " + m_.name + " -i TEXT`");
    }
    const std::string mark = "a system prompt";
    const std::vector<weights::ChatMessage> talk = {{"system", mark}, {"user", "a message"}};
    const auto works = [&] {
        try {
            merge_system_ = false;
            merge_system_ = render(talk, true).find(mark) == std::string::npos;
        } catch (const weights::ChatRefusal&) {
            merge_system_ = true;
        }
        render(talk, true);
    };
    try {
        works();
    } catch (const weights::Error& error) {
        const weights::ChatFamily* const family = weights::chat_family_of(template_);
        if (!family) throw Failure(std::string(error.what()) + "; --chat-template names another");
        say(std::string(error.what()) + "; it is taken for " + family->name + ", and --chat-template names another");
        template_ = family->text;
        works();
    }
    if (merge_system_ && a_.system)
        say("the chat template has no place for a system prompt, so it is put before the first message");
    find_turn_end();
}

// Models do not always name the token that ends an answer among their stop tokens, but their template writes it.
void Chat::find_turn_end()
{
    const std::string mark = "The answer.";
    std::string text;
    try {
        text = render({{"user", "a message"}, {"assistant", mark}}, false);
    } catch (const weights::Error&) {
        return;
    }
    const size_t at = text.rfind(mark);
    if (at == std::string::npos) return;
    const size_t begin = text.find_first_not_of(" \n", at + mark.size());
    if (begin == std::string::npos) return;
    const std::vector<int32_t> behind = tokenized(a_, m_, text.substr(begin), false);
    if (behind.empty()) return;
    const auto type = static_cast<transformer::TokenType>(vocabulary().types[behind[0]]);
    if (type == transformer::TokenType::control || type == transformer::TokenType::user_defined) turn_end_ = behind[0];
}

// Makes the session hold exactly these ids; gives the logits of the last one.
float* Chat::feed(const std::vector<int32_t>& all)
{
    const size_t most = std::min(cached_.size(), all.size() - 1), limit = m_.config().rope_long_from;
    size_t same = 0;
    while (same < most && all[same] == cached_[same]) same++;
    if (limit && (all.size() > limit) != r_.session.rope_long) same = 0; // beyond it all positions turn by other angles
    check(transformer::rewind(r_.session, static_cast<uint32_t>(same)), m_.name);
    cached_.resize(kept_now_ = same);
    Input rest;
    rest.tokens = all.data() + same;
    rest.count = static_cast<uint32_t>(all.size() - same);
    float* logits = nullptr;
    check(transformer::forward(r_.session, rest, &logits), m_.name);
    cached_ = all;
    return logits;
}

// The context is full: turns are forgotten, the oldest first, until a quarter of it is free or nothing but the system
// prompt and the last message is left. False: that is still too long.
bool Chat::make_room(std::vector<int32_t>* prompt, const std::vector<int32_t>& answered)
{
    size_t dropped = 0, last = messages_.size() - 1;           // the message that is being answered
    while (prompt->size() + answered.size() + (dropped ? capacity() / 4 : 0) > capacity()) {
        const size_t from = messages_[0].role == "system" ? 1 : 0;
        size_t to = from + 1;
        while (to < last && messages_[to].role != "user") to++;
        if (from >= last) break;
        const auto begin = messages_.begin();
        messages_.erase(begin + static_cast<std::ptrdiff_t>(from), begin + static_cast<std::ptrdiff_t>(to));
        last = messages_.size() - 1;
        dropped++;
        *prompt = ids();
    }
    const bool fits = prompt->size() + answered.size() <= capacity();
    if (dropped && fits)
        say("the context of " + counted(capacity(), "position") + " is full: the oldest " +
            (dropped == 1 ? "turn is" : std::to_string(dropped) + " turns are") +
            " forgotten, and what is left is read again");
    return fits;
}

bool Chat::answer(const std::string& message)
{
    const std::vector<weights::ChatMessage> before = messages_;
    messages_.push_back({"user", message});
    std::vector<int32_t> prompt = ids();
    if (!make_room(&prompt, {})) {
        messages_ = before;
        say("with this message the conversation has " + counted(prompt.size(), "token") + " and the context " +
            counted(capacity(), "position") + ": shorten it or raise --ctx-size");
        return false;
    }
    if (prompt.empty())
        throw Failure("the chat template makes no text of the conversation; --chat-template names another");
    require_ids(prompt, m_.config());
    const uint64_t most = a_.predict.value_or(256);
    const size_t asked = prompt.size();
    Printer printer;
    printer.quiet = a_.json;
    transformer::Decoder decoder;
    std::vector<int32_t> answered, all = prompt;
    const double start = now();
    double prompt_end = 0;
    size_t kept = 0;
    const char* stop = "length";
    try {
        float* logits = feed(all);
        kept = kept_now_;
        prompt_end = now();
        sampler_.n_recent = 0;
        remember(&sampler_, prompt);
        while (answered.size() < most) {
            int32_t token = 0;
            check(transformer::sample(sampler_, logits, m_.config().n_outputs, &token), m_.name);
            if (transformer::is_stop(vocabulary(), token) || token == turn_end_) {
                stop = "end";
                break;
            }
            answered.push_back(token);
            all.push_back(token);
            transformer::detokenize(vocabulary(), decoder, token, print_piece, &printer);
            if (answered.size() == most) break;
            if (all.size() > capacity()) {
                if (!make_room(&prompt, answered)) {
                    stop = "context";
                    break;
                }
                all = prompt;
                all.insert(all.end(), answered.begin(), answered.end());
            }
            logits = feed(all);
        }
    } catch (const Interrupted&) {
        stop = "interrupted";
    }
    transformer::detokenize_flush(decoder, print_piece, &printer);
    const double end = now();
    if (prompt_end <= 0) prompt_end = end;
    if (answered.empty() && *stop == 'i') messages_.pop_back(); // as if it had not been said
    else messages_.push_back({"assistant", printer.text});

    const size_t read = asked - kept;
    JsonObject json;
    json.add("content", printer.text).add("prompt_tokens", uint64_t{asked}).add("cached_tokens", uint64_t{kept});
    json.raw("tokens", "[" + joined(answered, ", ") + "]").add("stop", stop);
    json.add("prompt_seconds", prompt_end - start).add("seconds", end - prompt_end);
    if (a_.json) printer.out.write(json.text());
    printer.out.write("\n");
    printer.out.flush();
    if (*stop == 'c' && !a_.json)
        say("the context of " + counted(capacity(), "position") +
            " is full, and the answer ends there; --ctx-size raises it");
    if (*stop == 'l' && !a_.json) say("the answer was cut after " + counted(most, "token") + "; -n raises that");
    if (a_.stats)
        std::fprintf(stderr, "read %zu tokens in %.3f s, kept %zu in the cache; generated %zu in %.3f s; ended by %s\n",
                     read, prompt_end - start, kept, answered.size(), end - prompt_end, stop);
    turns_++;
    read_ += read, kept_ += kept, made_ += answered.size();
    read_seconds_ += prompt_end - start, made_seconds_ += end - prompt_end;
    return true;
}

int run_chat(const Arguments& a)
{
    if (a.source || a.features || a.ignore_eos)
        throw Misuse("--source, --features and --ignore-eos are no options of a chat");
    Text first = given_text(a);
    Chat chat(a);
    const bool person = terminal(stdin);
    int status = 0;
    if (person) std::fputs("/help tells what else than a message can be written\n", stderr);
    while (true) {
        std::string line;
        if (first) {
            line = *std::exchange(first, std::nullopt);
        } else {
            if (person) std::fputs("> ", stderr);
            try {
                if (!read_line(&line)) break;
            } catch (const Interrupted&) {
                status = 130;
                break;
            }
        }
        if (line == "/quit") break;
        if (line == "/reset") chat.reset();
        if (line == "/help")
            std::fputs("/reset forgets the conversation, /quit or Ctrl-D ends; Ctrl-C stops an answer\n", stderr);
        if (line == "/reset" || line == "/help" || line.find_first_not_of(" \t") == std::string::npos) continue;
        if (!chat.answer(line) && !person) status = 1;
        if (!interrupted) continue;
        if (!person) {
            status = 130;
            break;
        }
        hear_interrupts();
    }
    if (person) std::fputs("\n", stderr);
    chat.report();
    return status;
}

// ---- Verbs: text -----------------------------------------------------------------------------------------------------

void report(const Arguments& a, const Prepared& p, const Generation& g, uint64_t seed)
{
    const auto rate = [](size_t n, double seconds) { return seconds > 0 ? static_cast<double>(n) / seconds : 0.0; };
    const transformer::Plan& plan = p.r.session.plan;
    const double prompt = g.prompt_end - g.start, rest = g.end - g.prompt_end;
    const uint32_t seen = std::min(p.prompt.count, p.r.session.position); // less if Ctrl-C came during the prompt
    std::string text = format("prompt %s, %.1f tokens/s; generated %s, %.1f tokens/s; ", counted(seen, "token").c_str(),
        rate(seen, prompt),
                              counted(g.ids.size(), "token").c_str(), rate(g.ids.size(), rest));
    text += "weights " + bytes_text(p.m.size) + ", session " + bytes_text(p.r.memory.size) + ", of it cache " +
            bytes_text(plan.at[transformer::region_end] - plan.at[transformer::region_cache]);
    text += a.temperature > 0 ? "; seed " + std::to_string(seed) + "\n" : "\n";
    if (a.stats)
        text += format("opened in %.3f s; first token after %.3f s; %.3f ms a token; "
                       "%s, %s; context %u, cache %s; ended by %s\n", p.m.seconds, prompt,
                       g.ids.empty() ? 0.0 : 1000 * rest / static_cast<double>(g.ids.size()),
                           counted(p.r.threads, "thread").c_str(),
                       transformer::room_name(p.r.session), p.r.session.options.capacity, type_name(p.r.session.options.cache),
                           g.stop);
    std::fputs(text.c_str(), stderr);
}

int run_generate(const Arguments& a)
{
    if (a.mode == "chat") return run_chat(a);
    Prepared p;
    Need need;
    need.cache = DType::f16;
    need.generates = need.from_start = true;
    need.more = UINT32_MAX;
    prepare(a, need, &p);
    const transformer::Vocabulary& v = p.m.model.vocabulary;
    if (v.kind == VocabularyKind::none) throw Failure(p.m.name + ": has no tokenizer; give one with -z FILE");
    const uint64_t most = clipped(a, p);
    const uint64_t seed = seed_of(a);
    const transformer::Sampler sampler = sampler_of(a, seed);
    Printer printer;
    transformer::Decoder decoder;
    const auto show = [&](int32_t id) { transformer::detokenize(v, decoder, id, print_piece, &printer); };
    printer.quiet = true;                                      // the prompt in one piece
    for (const int32_t id : p.prompt.ids) show(id);
    printer.quiet = a.json;
    if (!a.json) printer.out.write(printer.text);
    const Generation g = generate(a, &p, most, sampler, show);
    transformer::detokenize_flush(decoder, print_piece, &printer);
    if (a.json) {
        JsonObject json;
        json.add("text", printer.text).add("prompt_tokens", uint64_t{p.prompt.count}).raw("tokens",
            "[" + joined(g.ids, ", ") + "]");
        json.add("stop", g.stop).add("seed", seed).add("prompt_seconds", g.prompt_end - g.start).add("seconds",
            g.end - g.prompt_end);
        printer.out.write(json.text());
    }
    printer.out.write("\n");
    printer.out.finish();
    report(a, p, g, seed);
    return interrupted ? 130 : 0;
}

// For tokenize and detokenize: MODEL, or -z FILE, may be a tokenizer alone.
void load_vocabulary(const Arguments& a, Loaded* m)
{
    const std::string& path = a.tokenizer ? *a.tokenizer : a.model();
    if (!weights::is_tokenizer(path)) return load(a, m);
    m->name = path;
    m->vocabulary = weights::write_vocabulary(weights::read_tokenizer(path));
    check(transformer::open_vocabulary(m->vocabulary.data(), m->vocabulary.size(), &m->model.vocabulary), path);
}

int run_tokenize(const Arguments& a)
{
    Loaded m;
    load_vocabulary(a, &m);
    const Text text = given_text(a);
    // as the model's own tokenizer does
    const bool single_bos = !(m.model.vocabulary.flags & transformer::vocabulary_doubles_bos);
    return print(joined(tokenized(a, m, text ? *text : read_stream(stdin, "stdin"), true, single_bos), " ") + "\n");
}

int run_detokenize(const Arguments& a)
{
    Loaded m;
    load_vocabulary(a, &m);
    const transformer::Vocabulary& v = m.model.vocabulary;
    if (v.kind == VocabularyKind::none) throw Failure(m.name + ": has no tokenizer; give one with -z FILE");
    std::vector<int32_t> ids = a.ids;
    for (size_t i = 1; i < a.words.size(); i++)
        if (!number_list(a.words[i], 0, any_u32, &ids)) throw Misuse(in_quotes(a.words[i]) + " is no token id");
    Printer printer;
    printer.quiet = true;
    transformer::Decoder decoder;
    // SentencePiece's own decoding leaves control tokens out, that of the other kinds writes them.
    decoder.special = v.kind == VocabularyKind::byte_bpe || v.kind == VocabularyKind::wordpiece;
    for (const int32_t id : ids) {
        if (static_cast<uint32_t>(id) >= v.n_tokens)
            throw Failure(format("%d is no token id: the vocabulary has ids 0 to %u", id, v.n_tokens - 1));
        transformer::detokenize(v, decoder, id, print_piece, &printer);
    }
    transformer::detokenize_flush(decoder, print_piece, &printer);
    return print(printer.text);
}

// log of the sum of exp(logits)
double log_sum(const float* logits, uint32_t n)
{
    const double most = static_cast<double>(*std::max_element(logits, logits + n));
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += std::exp(static_cast<double>(logits[i]) - most);
    return most + std::log(sum);
}

// The `most` likeliest of n logits with their probabilities, the lowest id first among equals.
std::vector<std::pair<int32_t, double>> likeliest(const float* logits, uint32_t n, uint32_t most)
{
    std::vector<int32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    most = std::min(most, n);
    std::partial_sort(order.begin(), order.begin() + most, order.end(), [&](int32_t x, int32_t y) {
        return logits[x] > logits[y] || (!(logits[x] < logits[y]) && x < y);
    });
    const double total = log_sum(logits, n);
    std::vector<std::pair<int32_t, double>> out;
    order.resize(most);
    for (const int32_t id : order) out.emplace_back(id, std::exp(static_cast<double>(logits[id]) - total));
    return out;
}
std::string bar_line(double probability, const std::string& what)
{
    const std::string bar(static_cast<size_t>(40 * probability + 0.5), '#');
    return format("%6.2f %%  %-40s  ", 100 * probability, bar.c_str()) + what + "\n";
}
std::string tokens_text(const Loaded& m, const std::vector<std::pair<int32_t, double>>& tokens, bool json)
{
    std::string text;
    for (const auto& [id, probability] : tokens) {
        const std::string token = token_string(m, id);
        JsonObject object;
        object.raw("id", std::to_string(id)).add("token", token).add("probability", probability);
        if (json) text += (text.empty() ? "" : ", ") + object.text();
        else text += bar_line(probability, json_text(token) + format(" (%d)", id));
    }
    return json ? "[" + text + "]" : text;
}

int run_next(const Arguments& a)
{
    Prepared p;
    Need need;
    need.generates = true;
    prepare(a, need, &p);
    feed_source(&p, a.memory.has_value());
    const float* const logits = advance(&p, {});
    return print(tokens_text(p.m, likeliest(logits, p.m.config().n_outputs, 10), a.json) + (a.json ? "\n" : ""));
}

// ---- Verbs: encoders ------------------------------------------------------------------------------------------------

// Which rows make the vector of a text, and whether it is scaled to length 1.
struct Embedding {
    transformer::Pooling pooling = transformer::Pooling::mean;
    bool normalised = true;
    std::string about;                                         // who says so
};
Embedding embedding_of(const Arguments& a, const Config& c, bool causal)
{
    using transformer::Pooling;
    Embedding e;
    static const std::pair<const char*, Pooling> names[] = {
        {"mean", Pooling::mean}, {"cls", Pooling::first}, {"last", Pooling::last}};
    const bool said = c.pooling != Pooling::none && !c.n_outputs; // of a model with a head it is what the head reads
    if (said) e.pooling = c.pooling, e.normalised = (c.flags & transformer::flag_normalise) != 0;
    for (const auto& [name, pooling] : names) {
        if (a.pooling == name) e.pooling = pooling;
        if (e.pooling == pooling) e.about = name;
    }
    const std::string usual = std::string("usual for ") + (causal ? "a decoder" : "an encoder") + " that does not say";
    e.about += std::string(" of the hidden rows, ") + (e.normalised ? "normalised" : "not normalised") + ": ";
    e.about += !a.pooling.empty() ? "--pooling says so"
               : said             ? "the model says so"
                                  : usual + "; --pooling takes another";
    return e;
}

// A model that turns texts into vectors; its session grows with the texts.
class Embedder {
public:
    explicit Embedder(const Arguments& a) : a_(a)
    {
        load(a, &m_);
        require_tokenizer(m_);
        if (m_.cross() && !m_.encoder().n_layers)
            throw Failure(m_.name + ": is a decoder without its encoder and has no vectors for texts");
        if (config().n_features)
            throw Failure(m_.name + ": takes log-mel frames, not text; `run hidden --features FILE` gives its rows");
        how_ = embedding_of(a, config(), decoder());
    }
    const std::string& about() const { return how_.about; }
    std::vector<float> embed(const std::string& text)
    {
        Prompt p;
        p.use(tokenized(a_, m_, text, true));
        if (!p.count) throw Failure("the text " + json_text(text) + " has no tokens");
        require_ids(p.ids, config());
        require_room(a_, config(), p.count);
        make_room(p.count);
        std::vector<double> sum(config().dim, 0.0);
        uint64_t rows = 0;
        r_->see = [&](const Event& e) {
            if (e.kind != Event::hidden || e.encoder != m_.cross()) return;
            sum.resize(e.rows.dim);
            for (uint32_t t = 0; t < e.rows.count; t++) {
                const bool first = rows++ == 0, mean = how_.pooling == transformer::Pooling::mean;
                if (how_.pooling == transformer::Pooling::first && !first) continue;
                const float* const row = e.rows.data + uint64_t{t} * e.rows.dim;
                for (uint32_t i = 0; i < e.rows.dim; i++)
                    sum[i] = (mean && !first ? sum[i] : 0.0) + static_cast<double>(row[i]);
            }
        };
        Session& session = r_->session;
        if (decoder()) check(transformer::rewind(session, 0), m_.name);
        const Input in = p.input();
        if (decoder()) check(transformer::forward(session, in, nullptr), m_.name);
        else check(transformer::encode(session, in, nullptr), m_.name);
        double length = how_.pooling == transformer::Pooling::mean ? static_cast<double>(rows) : 1.0;
        if (how_.normalised) {
            length = 0;
            for (const double x : sum) length += x * x;
            length = std::sqrt(length);
        }
        std::vector<float> out;
        for (const double x : sum) out.push_back(static_cast<float>(length > 0 ? x / length : x));
        return out;
    }

private:
    bool decoder() const { return m_.causal() && !m_.cross(); }
    const Config& config() const { return m_.cross() ? m_.encoder() : m_.config(); }
    void make_room(uint32_t count)
    {
        if (r_ && count <= room_) return;
        room_ = std::min(std::max({count, 2 * room_, 64u}), std::max(count, context(a_, config())));
        Need need;
        need.positions = need.source = room_;
        r_ = std::make_unique<Runner>();
        make_session(a_, m_, need, r_.get());
    }

    const Arguments& a_;
    Loaded m_;
    Embedding how_;
    uint32_t room_ = 0;
    std::unique_ptr<Runner> r_;
};

std::string number_text(float x)                               // the shortest that reads back as the same
{
    if (!std::isfinite(x)) throw Failure("the vector has no finite numbers: the model's weights are broken");
    std::string text;
    for (int digits = 6; digits <= 9; digits++) {
        text = format("%.*g", digits, static_cast<double>(x));
        const float back = std::strtof(text.c_str(), nullptr);
        if (back <= x && back >= x) break;
    }
    return text;
}

int run_embed(const Arguments& a)
{
    Embedder embedder(a);
    if (a.stats) say(embedder.about());
    Output out;
    const auto write = [&](const std::string& text) {
        std::string line;
        for (const float x : embedder.embed(text)) line += (line.empty() ? "[" : ", ") + number_text(x);
        out.write(line + "]\n");
        out.flush();
    };
    for (size_t i = 1; i < a.words.size(); i++) write(a.words[i]);
    for (std::string line; a.words.size() == 1 && read_line(&line);) write(line);
    out.finish();
    return 0;
}

// Every logit of an encoder's head for a text.
struct Scored {
    Loaded m;
    Prompt prompt;
    Runner r;
    const float* logits = nullptr;
};
void score(const Arguments& a, Scored* s, const std::string& text, const Text& second)
{
    const Config& c = s->m.config();
    std::vector<int32_t> types;
    s->prompt.use(tokenized(s->m, text, {}, second, &types));
    if (!s->prompt.count) throw Failure("the text has no tokens");
    require_ids(s->prompt.ids, c);
    require_room(a, c, s->prompt.count);
    if (c.n_types > 1) s->prompt.types = types;
    Need need;
    need.positions = s->prompt.count;
    make_session(a, s->m, need, &s->r);
    float* logits = nullptr;
    check(transformer::forward(s->r.session, s->prompt.input(), &logits), s->m.name);
    s->logits = logits;
}

int run_fill(const Arguments& a)
{
    Scored s;
    load(a, &s.m);
    const Config& c = s.m.config();
    if (s.m.causal())
        throw Failure(s.m.name + ": is a decoder and sees nothing behind a mask; `run next` says how a text goes on");
    if (c.n_outputs != c.vocab_size || c.pooling != transformer::Pooling::none || !c.n_outputs)
        throw Failure(s.m.name + ": has no masked-LM head; a file of the class ...ForMaskedLM has one");
    const int32_t mask = s.m.model.vocabulary.mask;
    require_tokenizer(s.m);
    if (mask < 0) throw Failure(s.m.name + ": its tokenizer has no mask token");
    std::string text = a.words[1];
    const std::string usual = "[MASK]", own = token_string(s.m, mask);
    for (size_t at = 0; own != usual && (at = text.find(usual, at)) != std::string::npos; at += own.size())
        text.replace(at, usual.size(), own);
    score(a, &s, text, std::nullopt);
    std::string out;
    for (uint32_t i = 0; i < s.prompt.count; i++) {
        if (s.prompt.ids[i] != mask) continue;
        if (!out.empty()) out += a.json ? ", " : "\n";
        out += tokens_text(s.m, likeliest(s.logits + uint64_t{i} * c.n_outputs, c.n_outputs, 5), a.json);
    }
    if (out.empty()) throw Failure("there is no " + usual + " in the text");
    return print(a.json ? "[" + out + "]\n" : out);
}

int run_classify(const Arguments& a)
{
    Scored s;
    load(a, &s.m);
    const Config& c = s.m.config();
    const transformer::Vocabulary& v = s.m.model.vocabulary;
    const bool tokens = c.pooling == transformer::Pooling::none, words = tokens || c.n_outputs == c.vocab_size;
    if (s.m.cross() || !c.n_outputs || (!v.labels_size && words))
        throw Failure(s.m.name + ": has no head for classes; a file of the class ...ForSequenceClassification has one");
    if (tokens)
        throw Failure(s.m.name + ": gives labels to tokens, not to a text; `run logits --all` has the numbers");
    std::vector<std::string> labels;
    for (size_t at = 0; at < v.labels_size;) {
        const std::string_view rest(v.labels + at, v.labels_size - at);
        labels.emplace_back(rest.substr(0, rest.find('\n')));
        at += labels.back().size() + 1;
    }
    for (size_t i = labels.size(); i < c.n_outputs; i++) labels.push_back("LABEL_" + std::to_string(i));
    score(a, &s, a.words[1], a.pair);
    std::string out;
    const uint32_t shown = a.json ? c.n_outputs : 10;
    for (const auto& [id, probability] : likeliest(s.logits, c.n_outputs, shown)) {
        const std::string& label = labels[static_cast<size_t>(id)];
        const double logit = static_cast<double>(s.logits[id]);
        JsonObject json;
        json.add("label", label);
        if (c.n_outputs > 1) json.add("probability", probability);
        if (a.json) out += (out.empty() ? "" : ", ") + json.add("logit", logit).text();
        else if (c.n_outputs > 1) out += bar_line(probability, label);
        else out += format("%.6f  ", logit) + label + "\n";    // one output is a score, not a choice
    }
    return print(a.json ? "[" + out + "]\n" : out);
}

// ---- Verbs: numbers --------------------------------------------------------------------------------------------------

int run_greedy(const Arguments& a)
{
    Prepared p;
    Need need;
    need.generates = true;
    need.more = a.predict.value_or(256);
    prepare(a, need, &p);
    transformer::Sampler sampler;
    sampler.temperature = 0;
    const Generation g = generate(a, &p, clipped(a, p), sampler, [](int32_t) {});
    print(joined(g.ids, " ") + "\n");
    return interrupted ? 130 : 0;
}

// Logits of all rows that a prompt gives, in pieces of one batch.
void forward_rows(Runner* r, const Prompt& prompt, const std::string& name,
    const std::function<void(const float*, uint32_t)>& see)
{
    const transformer::Options& o = r->session.options;
    const Input whole = prompt.input();
    const uint32_t step = o.all_logits ? std::min(o.batch, whole.count) : whole.count, dim = r->session.model->main.config.dim;
    for (uint32_t first = 0; first < whole.count; first += step) {
        Input part = whole;
        part.count = std::min(step, whole.count - first);
        if (part.tokens) part.tokens += first;
        if (part.types) part.types += first;
        if (part.rows) part.rows += size_t{first} * dim;
        float* logits = nullptr;
        check(transformer::forward(r->session, part, &logits), name);
        see(logits, r->session.logit_rows);
    }
}

int run_logits(const Arguments& a)
{
    Prepared p;
    Need need;
    need.logits = true;
    need.all_logits = a.all;
    prepare(a, need, &p);
    feed_source(&p, a.memory.has_value());
    Output out(a.out);
    forward_rows(&p.r, p.prompt, p.m.name, [&](const float* logits, uint32_t rows) {
        out.write(logits, size_t{rows} * p.m.config().n_outputs * sizeof(float));
    });
    out.finish();
    return 0;
}

void require_layer(const Arguments& a, const Prepared& p, uint64_t least)
{
    if (a.layer && (*a.layer < least || *a.layer > p.config().n_layers))
        throw Failure("--layer " + std::to_string(*a.layer) + ": the blocks have the numbers 1 to "
            + std::to_string(p.config().n_layers) +
                      (least ? "" : ", and 0 is what enters the first"));
}
// Everything through the stacks once, for what `see` sees of the one that is asked for.
void watch(const Arguments& a, Prepared* p, const std::function<void(const Event&)>& see)
{
    p->r.see = [&](const Event& e) {
        if (e.encoder == p->encoder) see(e);
    };
    feed_source(p, a.memory.has_value());
    if (!p->encoder) check(transformer::forward(p->r.session, p->prompt.input(), nullptr), p->m.name);
}

int run_hidden(const Arguments& a)
{
    Prepared p;
    prepare(a, Need{}, &p);
    require_layer(a, p, 0);
    const Event::Kind kind = !a.layer ? Event::hidden : *a.layer ? Event::layer_output : Event::embedding;
    std::vector<float> rows;
    watch(a, &p, [&](const Event& e) {                         // a decoder's batches come one after the other
        if (e.kind == kind && (kind != Event::layer_output || e.layer + 1 == *a.layer))
            rows.insert(rows.end(), e.rows.data, e.rows.data + size_t{e.rows.count} * e.rows.dim);
    });
    Output out(a.out);
    out.write(rows);
    out.finish();
    return 0;
}

int run_attention(const Arguments& a)
{
    if (!a.layer) throw Misuse("--layer N says which block is meant");
    Prepared p;
    Need need;
    need.attention = true;
    prepare(a, need, &p);
    require_layer(a, p, 1);
    const uint32_t heads = p.config().n_heads, t = p.config().n_frames ? p.config().n_frames / 2 : p.encoder ? p.source.count
        : p.prompt.count;
    std::vector<float> values(size_t{heads} * t * t);
    watch(a, &p, [&](const Event& e) {
        if (e.kind != Event::attention_row || e.cross || e.layer + 1 != *a.layer) return;
        if (e.head >= heads || e.position >= t || uint64_t{e.first_key} + e.rows.dim > t)
            throw Failure("an attention row has no place in (heads, T, S)");
        std::copy_n(e.rows.data, e.rows.dim, &values[(size_t{e.head} * t + e.position) * t + e.first_key]);
    });
    if (a.svg) {
        std::vector<std::string> labels;
        for (const int32_t id : p.encoder ? p.source.ids : p.prompt.ids) labels.push_back(token_string(p.m, id));
        return print(weights::attention_svg(values, heads, t, t, labels), a.svg);
    }
    Output out(a.out);
    out.write(values);
    out.finish();
    return 0;
}

// Window rule: the tokens are cut into windows of at most N that do not overlap; each starts from an empty cache, and with the
// model's BOS where it adds one to a text; every token with another before it in its window is scored.
int run_perplexity(const Arguments& a)
{
    Loaded m;
    load(a, &m);
    if (!m.causal() || m.cross() || !m.config().n_outputs)
        throw Failure(m.name + ": is no decoder with a head, and perplexity is for these");
    if ((a.words.size() > 1) != a.ids.empty()) throw Misuse("name the FILE to read or give --ids");
    const transformer::Vocabulary& v = m.model.vocabulary;
    const std::vector<int32_t> ids = a.ids.empty() ? tokenized(a, m, read_file(a.words[1]), false) : a.ids;
    require_ids(ids, m.config());
    const bool bos = a.ids.empty() && !a.no_add_special && v.bos >= 0 && (v.flags & transformer::vocabulary_add_bos);
    if (ids.size() + bos < 2)
        throw Failure("perplexity needs two tokens at least, and there is " + std::to_string(ids.size() + bos));
    const uint32_t longest = context(a, m.config()), window = a.window ? a.window : longest;
    if (window > longest)
        throw Failure(format("--window %u is more than the context of %u positions: lower it or raise --ctx-size", window,
        longest));
    Need need;
    need.positions = static_cast<uint32_t>(std::min<uint64_t>(window, ids.size() + bos));
    need.all_logits = true;
    Runner r;
    make_session(a, m, need, &r);
    double nll = 0;
    uint64_t scored = 0, windows = 0;
    for (size_t at = 0; at < ids.size(); windows++) {
        const size_t end = std::min(ids.size(), at + window - bos);
        Prompt p;
        if (bos) p.ids.push_back(v.bos);
        p.ids.insert(p.ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(at),
            ids.begin() + static_cast<std::ptrdiff_t>(end));
        p.use(p.ids);
        at = end;
        size_t next = 1;                                       // the id that the coming row predicts
        check(transformer::rewind(r.session, 0), m.name);
        forward_rows(&r, p, m.name, [&](const float* row, uint32_t rows) {
            for (; rows && next < p.ids.size(); rows--, next++, scored++, row += m.config().n_outputs)
                nll += log_sum(row, m.config().n_outputs) - static_cast<double>(row[p.ids[next]]);
        });
    }
    nll /= static_cast<double>(scored);
    const std::string rule = std::string("no overlap, each from an empty cache") + (bos ? " and BOS" : "");
    JsonObject json;
    json.add("nll", nll).add("perplexity", std::exp(nll)).add("tokens", scored).add("window", uint64_t{window});
    if (a.json) return print(json.add("windows", windows).add("window_rule", rule).text() + "\n");
    return print(format("nll %.6f, perplexity %.4f, %s; %s of at most %u tokens, %s\n", nll, std::exp(nll),
        counted(scored, "token").c_str(),
                        counted(windows, "window").c_str(), window, rule.c_str()));
}

// ---- Verbs: models ---------------------------------------------------------------------------------------------------

// What describes a model: for that, a configuration without weights is enough.
struct Described {
    ModelSource m;
    bool weights = true;
    weights::Counts counts;
};
Described describe(const Arguments& a)
{
    Described d;
    d.weights = !weights::is_configuration(a.model());
    if (d.weights)
        d.m = open_source(a);
    else
        d.m.source = weights::read_config_only(a.model());
    const weights::WriteOptions o = write_options(a);
    const bool counted = !d.weights || weights::is_directory(a.model()); // Hugging Face: its reader counts
    d.counts = counted ? weights::count(d.m.source, o, weights::count_parameters(a.model()))
                       : weights::count(d.m.source, o);
    return d;
}
int run_info(const Arguments& a)
{
    const Described d = describe(a);
    if (a.svg) return print(weights::block_svg(d.m.source, d.counts), a.svg);
    weights::About about{a.model(), d.m.source, d.counts, write_options(a), transformer::Options(), d.weights};
    about.session.capacity = context(a, d.m.source.main);
    about.session.cache = cache_type(a, DType::f16);
    return print(a.json ? weights::info_json(about) : weights::info_text(about));
}
int run_review(const Arguments& a)
{
    const Described d = describe(a);
    const std::vector<weights::Finding> all = weights::review(d.m.source, d.counts);
    return print(a.json ? weights::review_json(a.model(), d.m.source, d.counts, all)
                        : weights::review_text(a.model(), d.m.source, d.counts, all));
}

struct Timing {                                                // of the same work done several times
    uint32_t tokens = 0;
    std::vector<double> seconds;

    double rate(size_t i) const { return seconds.empty() ? 0.0 : tokens / seconds[i]; }
    double best() const { return rate(0); }
    double median() const { return rate(seconds.size() / 2); }
};
Timing timed(uint32_t tokens, uint32_t repeat, Session* session, const std::function<Status()>& work,
             uint32_t depth = 0)
{
    Timing t;
    t.tokens = tokens;
    for (uint32_t i = 0; tokens && i < repeat; i++) {
        check(transformer::rewind(*session, depth), "bench");
        const double start = now();
        check(work(), "bench");
        t.seconds.push_back(now() - start);
    }
    std::sort(t.seconds.begin(), t.seconds.end());
    return t;
}
// `count` tokens (or rows, or frames) that mean nothing.
Prompt any_prompt(const Config& c, uint32_t count)
{
    Prompt p;
    p.count = count;
    p.features = c.n_features != 0;
    for (uint32_t i = 0; c.vocab_size && i < count; i++)
        p.ids.push_back(static_cast<int32_t>((i * uint64_t{7919} + 3) % c.vocab_size));
    if (!c.vocab_size) p.values.assign(size_t{count} * (p.features ? c.n_features : c.dim), 0.01f);
    return p;
}

// Prefill: a prompt from an empty cache. Decode: tokens one by one, after `depth` others. Of an encoder-decoder, prefill is
// what its encoder does with a source; an encoder alone has no decode.
int run_bench(const Arguments& a)
{
    Loaded m;
    load(a, &m);
    const bool encodes = m.cross() && m.encoder().n_layers;
    const Config& first = encodes ? m.encoder() : m.config();
    const uint32_t most = context(a, m.config()), n_prefill = first.n_frames ? first.n_frames : std::min(a.prefill, most);
    const uint32_t n_decode = m.causal() ? std::min(a.decode, most) : 0;
    const uint32_t depth = m.causal() ? std::min(a.depth, most - n_decode) : 0;
    const Prompt prefill = any_prompt(first, n_prefill), decode = any_prompt(m.config(), n_decode);
    const Prompt before = any_prompt(m.config(), depth);
    Need need;
    need.positions = std::max(n_prefill, n_decode + depth);
    need.source = n_prefill;
    need.cache = DType::f16;
    Runner r;
    make_session(a, m, need, &r);
    const auto cut = [&](const char* what, uint32_t asked, uint32_t given) {
        if (given < asked)
            say(format("%s %u is cut to %u: the context has %s", what, asked, given, counted(most, "position").c_str()));
    };
    cut("--prefill", first.n_frames ? n_prefill : a.prefill, n_prefill);
    cut("--decode", m.causal() ? a.decode : 0, n_decode);
    cut("--depth", m.causal() ? a.depth : 0, depth);
    if (m.cross() && !encodes)
        check(transformer::set_memory(r.session, any_prompt(m.config(), 1).input().rows, 1, nullptr), m.name);
    const auto pass = [&] {
        return encodes ? transformer::encode(r.session, prefill.input(), nullptr)
            : transformer::forward(r.session, prefill.input(), nullptr);
    };
    timed(n_prefill, 1, &r.session, pass);                     // not counted: it brings the pages in
    const Timing in = timed(n_prefill, a.repeat, &r.session, pass);
    if (depth) {
        check(transformer::rewind(r.session, 0), m.name);
        check(transformer::forward(r.session, before.input(), nullptr), m.name);
    }
    const Timing out = timed(n_decode, a.repeat, &r.session, [&] {
        Status status;
        for (uint32_t i = 0; i < n_decode && status; i++) {
            Input one = decode.input();
            one.tokens = one.tokens ? one.tokens + i : nullptr;
            one.count = 1;
            status = transformer::forward(r.session, one, nullptr);
        }
        return status;
    }, depth);
    const uint64_t bytes = weights::count(weights::source_of(m.model), weights::WriteOptions{}).bytes_per_token;
    const char *isa = transformer::room_name(r.session), *cache = type_name(r.session.options.cache);
    if (a.json) {
        JsonObject json;
        const auto add = [&](const std::string& what, const Timing& t) {
            json.add(what + "_tokens", uint64_t{t.tokens}).add(what + "_tokens_per_s",
                t.median()).add(what + "_tokens_per_s_best", t.best());
        };
        json.add("model", m.name);
        add("prefill", in);
        add("decode", out);
        json.add("depth", uint64_t{depth}).add("repeat", uint64_t{a.repeat}).add("threads", uint64_t{r.threads});
        json.add("isa", isa).add("kv", cache);
        json.add("bytes_per_token", bytes).add("weights_bytes", m.size).add("session_bytes", r.memory.size);
        return print(json.text() + "\n");
    }
    const auto line = [](const char* what, const Timing& t, uint32_t after) {
        return format("%s of %u%s: %.1f tokens/s (best %.1f)\n", what, t.tokens,
            after ? (" after " + std::to_string(after)).c_str() : "", t.median(), t.best()); };
    return print(line("prefill", in, 0) + (n_decode ? line("decode", out, depth) : "") +
                 format("median of %u; %s of weights a token; %s, %s, cache %s\n", a.repeat, bytes_text(bytes).c_str(),
                     counted(r.threads, "thread").c_str(), isa, cache));
}

int run_import(const Arguments& a)
{
    const double start = now();
    const std::string& target = a.words[1];
    const ModelSource m = open_source(a);
    weights::WriteOptions o = write_options(a);
    o.progress = [bar = terminal(stderr), shown = -1](uint64_t done, uint64_t total) mutable {
        if (interrupted) throw Interrupted{};
        const int percent = static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total));
        if (!bar || percent == shown) return;
        shown = percent;
        std::fprintf(stderr, "\r[%-50s] %3d %%%s", std::string(static_cast<size_t>(percent / 2), '#').c_str(), percent,
            done == total ? "\n" : "");
    };
    const uint64_t bytes = weights::checkpoint_size(m.source, o);
    Output header(a.header);                                   // before OUT is replaced it is known that this can be written
    hear_the_end();
    weights::write_to_file(m.source, o, target);
    say(target + ": " + bytes_text(bytes) + " from " + m.source.kind + format(" in %.1f s", now() - start));
    if (!a.header) return 0;
    transformer::Options session;
    session.capacity = context(a, m.source.main);
    session.batch = 1;
    session.cache = cache_type(a, DType::f16);
    const weights::File file = weights::map_file(target);
    Model model;
    check(transformer::open(file->data, file->size, &model), target);
    header.write(weights::firmware_header(m.source, model, target, bytes, session));
    header.finish();
    return 0;
}

// ---- Main ------------------------------------------------------------------------------------------------------------

const Verb verbs[] = {
    {"", v_run, "MODEL [-i TEXT] [-n 256] [-t 1.0] [-p 0.9] [-s SEED] [options]", "generate text", 1, 1, run_generate},
    {"chat", v_chat, "MODEL [-y TEXT] [options]", "chat with the model's own template", 1, 1, run_chat},
    {"embed", v_embed, "MODEL [TEXT...]", "one vector a text, or a line of stdin", 1, SIZE_MAX, run_embed},
    {"logits", v_logits, "MODEL --ids 1,2,3 [--all] [--out FILE]", "raw float32 logits of the last position, or of all", 1, 1,
        run_logits},
    {"hidden", v_hidden, "MODEL --ids 1,2,3 [--layer N] [--encoder] [--out FILE]", "raw float32 hidden states, (T, dim)", 1, 1,
        run_hidden},
    {"attention", v_attention, "MODEL --ids 1,2,3 --layer N [--svg FILE]", "raw float32 attention weights, (heads, T, S)", 1,
        1, run_attention},
    {"next", v_next, "MODEL TEXT", "the ten likeliest next tokens", 1, 2, run_next},
    {"fill", v_fill, "MODEL TEXT", "what may stand for each [MASK]", 2, 2, run_fill},
    {"classify", v_classify, "MODEL TEXT [--pair TEXT]", "class labels with probabilities", 2, 2, run_classify},
    {"greedy", v_greedy, "MODEL --ids 1,2,3 [-n 256] [--ignore-eos]", "the ids that greedy decoding appends", 1, 1, run_greedy},
    {"tokenize", v_tokenize, "MODEL [TEXT]", "the ids of a text, or of stdin", 1, 2, run_tokenize},
    {"detokenize", v_detokenize, "MODEL ID...", "the text of ids, every byte of it and no more", 1, SIZE_MAX, run_detokenize},
    {"perplexity", v_perplexity, "MODEL FILE [--window N]", "how well it predicts a text, in windows without overlap", 1, 2,
        run_perplexity},
    {"bench", v_bench, "MODEL [--prefill 512] [--decode 128] [--threads N]", "tokens per second", 1, 1, run_bench},
    {"info", v_info, "MODEL [--json] [--svg FILE]", "what a model or a config.json is and what memory it needs", 1, 1,
        run_info},
    {"review", v_review, "MODEL [--json]", "the block held against today's defaults", 1, 1, run_review},
    {"import", v_import, "SOURCE OUT [--type q8_0] [--header FILE]", "write a checkpoint that opens at once", 2, 2, run_import},
};
std::string usage(const Verb& v) { return std::string("run ") + v.name + (*v.name ? " " : "") + v.usage; }

std::string help(const Verb& verb)
{
    std::string text = "usage: " + usage(verb) + "\n" + verb.help + "\n\n";
    for (const Option& o : options) {
        const std::string left = spelling(o) + (o.value ? std::string(" ") + o.value : "");
        if (!(o.verbs & verb.bit)) continue;
        text += format(left.size() > 40 ? "  %s\n%43s" : "  %-40s %s", left.c_str(), "") + o.help + "\n";
    }
    if (*verb.name) return text;
    text += "\nMODEL is a checkpoint that `run import` wrote, a llama2.c .bin, a .gguf or a Hugging Face folder.\n"
            "Other verbs (`run VERB -h` tells more):\n";
    for (const Verb& v : verbs)
        if (*v.name && v.work) text += format("  %-70s %s\n", usage(v).c_str(), v.help);
    return text;
}

bool same_file(const std::string& a, const std::string& b)
{
    std::error_code none, error, other;
    return std::filesystem::equivalent(a, b, none)
        || (std::filesystem::weakly_canonical(a, error) == std::filesystem::weakly_canonical(b, other) && !error && !other);
}

int run(const Verb& verb, const std::vector<std::string>& words)
{
    if (!verb.work) throw Failure(std::string("this version does not have ") + verb.name);
    const Arguments a = parse(verb, words);
    if (a.help) return print(help(verb));
    for (const Text& result : {a.out, a.svg, a.header})
        for (const std::string& word : a.words)
            if (result && same_file(*result, word))
                throw Failure(*result + ": would take the place of what the command line names elsewhere; name another file");
    if (a.version)
        return print(format("transformer.hpp %s, checkpoint format %u\n", TRANSFORMER_VERSION, TRANSFORMER_FORMAT_VERSION));
    return verb.work(a);
}

void prepare_process()
{
    hear_interrupts();
#if defined(_WIN32)
    _setmode(_fileno(stdin), 0x8000);                          // _O_BINARY
    _setmode(_fileno(stdout), 0x8000);
#else
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);                             // a file over the limit is a failed write
    // a closed stdout must not become the number of a file that we open; writing to it fails
    int descriptor;
    while ((descriptor = ::open("/dev/null", O_RDONLY)) >= 0 && descriptor <= 2) {}
    if (descriptor > 2) ::close(descriptor);
#endif
}

}  // namespace

int main(int argc, char** argv)
{
    prepare_process();
    std::vector<std::string> words(argv + (argc > 0), argv + argc);
    const Verb* verb = &verbs[0];
    for (const Verb& v : verbs)
        if (*v.name && !words.empty() && words[0] == v.name) verb = &v;
    if (*verb->name) words.erase(words.begin());
    try {
        return run(*verb, words);
    } catch (const Misuse& error) {
        say(error.what());
        std::fputs(("usage: " + usage(*verb) + "\n").c_str(), stderr);
        return 2;
    } catch (const Interrupted&) {
        return interrupted ? 128 + interrupted : 130;
    } catch (const ReaderGone&) {
        return 0;
    } catch (const std::bad_alloc&) {
        say("there is not enough memory");
    } catch (const std::exception& error) {
        say(error.what());
    }
    return 1;
}
