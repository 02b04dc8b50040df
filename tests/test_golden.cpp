// Reference cases of the whole family: tiny models with the numbers that PyTorch and transformers give for them. Every folder
// of tests/golden (and of a larger collection, if TRANSFORMER_GOLDEN or ../shared/golden names one) is read like any Hugging
// Face folder and run through the one block: logits, hidden states, layers, greedy tokens; the same bits from every room,
// batch split and thread count; and a bounded error at 8 bits. No case is treated specially.
#include "doctest.h"

#define TRANSFORMER_THREADS

#include "weights/import.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

using namespace transformer;
using weights::Json;

struct Array {                                                 // a .npy file: little-endian float32, C order
    std::vector<uint32_t> shape;
    std::vector<float> values;
    uint32_t from_end(size_t i) const { return shape[shape.size() - i]; }
};

Array read_npy(const std::string& path)
{
    const weights::File file = weights::map_file(path);
    const uint32_t header = weights::load_u16(file->data + 8);
    const std::string text(reinterpret_cast<const char*>(file->data) + 10, header);
    REQUIRE(text.find("'<f4'") != std::string::npos);
    Array a;
    size_t at = text.find("'shape': (") + 10;
    uint64_t n = 1;
    while (text[at] != ')') {
        size_t used = 0;
        a.shape.push_back(static_cast<uint32_t>(std::stoul(text.substr(at), &used)));
        n *= a.shape.back();
        at = text.find_first_not_of(", ", at + used);
    }
    REQUIRE(file->size == 10 + header + n * 4);
    a.values.resize(n);
    std::memcpy(a.values.data(), file->data + 10 + header, n * 4);
    return a;
}

std::vector<int32_t> integers(const Json& list)
{
    std::vector<int32_t> out;
    for (const Json& item : list.items) out.push_back(static_cast<int32_t>(item.integer));
    return out;
}

// One row of one input: what is fed, and what should come out.
struct Feed {
    std::vector<int32_t> ids, source_ids, types;
    std::vector<uint8_t> mask;
    std::vector<float> rows, memory, features;
    uint32_t n_rows = 0, n_memory = 0, n_frames = 0;
};
struct Want { std::string what; Array values; uint32_t row = 0; double tolerance = 0; };

struct Outcome {
    std::vector<float> logits, hidden, encoder_hidden;
    std::vector<std::vector<float>> layers, encoder_layers;
    bool operator==(const Outcome& o) const
    {
        const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
            return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
        };
        return same(logits, o.logits) && same(hidden, o.hidden) && same(encoder_hidden, o.encoder_hidden);
    }
};

bool collect(void* user, const Event& e)
{
    Outcome& o = *static_cast<Outcome*>(user);
    const std::vector<float> rows(e.rows.data, e.rows.data + uint64_t{e.rows.count} * e.rows.dim);
    auto& layers = e.encoder ? o.encoder_layers : o.layers;
    const size_t index = e.kind == Event::embedding ? 0 : e.layer + 1;
    if (e.kind == Event::hidden) {
        std::vector<float>& hidden = e.encoder ? o.encoder_hidden : o.hidden;
        hidden.insert(hidden.end(), rows.begin(), rows.end());
        return true;
    }
    if (layers.size() <= index) layers.resize(index + 1);
    layers[index].insert(layers[index].end(), rows.begin(), rows.end());
    return true;
}

std::string words(const Status& s) { return std::string(s.text) + " " + s.field + " " + std::to_string(s.where); }

struct Machine {                                               // a model with a session's memory
    Model model;
    Session session;
    Outcome outcome;
    std::vector<uint64_t> memory;
    ThreadPool* pool = nullptr;

    void begin(const Options& wanted)
    {
        Options o = wanted;
        o.cache = DType::f32;
        o.all_logits = true;
        o.observer = collect;
        o.observer_user = &outcome;
        memory.assign(session_size(model, o) / 8 + 1, 0xfefefefefefefefeu);
        const Status s = start(model, o, memory.data(), session_size(model, o), &session);
        REQUIRE_MESSAGE(s, words(s));
    }
    void source(const Feed& f)
    {
        const Config& encoder = model.encoder.config;
        Input in;
        in.mask = f.mask.empty() ? nullptr : f.mask.data();
        Status s;
        if (f.n_memory) s = set_memory(session, f.memory.data(), f.n_memory, nullptr);
        else if (encoder.n_layers) {
            in.tokens = f.source_ids.empty() ? nullptr : f.source_ids.data();
            in.features = f.features.empty() ? nullptr : f.features.data();
            in.count = in.features ? f.n_frames : static_cast<uint32_t>(f.source_ids.size());
            s = encode(session, in, nullptr);
        }
        REQUIRE_MESSAGE(s, words(s));
    }
    // The whole feed in pieces of `piece` tokens.
    Outcome run(const Feed& f, uint32_t piece)
    {
        outcome = Outcome{};
        rewind(session, 0);
        source(f);
        const bool causal = is_causal(model.main.config);
        const uint32_t n = f.n_rows ? f.n_rows : static_cast<uint32_t>(f.ids.size()), step = causal ? piece : n;
        for (uint32_t done = 0; done < n; done += step) {
            Input in;
            in.count = std::min(step, n - done);
            if (f.n_rows) in.rows = f.rows.data() + uint64_t{done} * model.main.config.dim;
            else in.tokens = f.ids.data() + done;
            if (!f.types.empty()) in.types = f.types.data() + done;
            if (!causal && !f.mask.empty()) in.mask = f.mask.data();
            float* logits = nullptr;
            const Status s = forward(session, in, &logits);
            REQUIRE_MESSAGE(s, words(s));
            if (logits)
                outcome.logits.insert(outcome.logits.end(), logits,
                logits + uint64_t{session.logit_rows} * model.main.config.n_outputs);
        }
        return outcome;
    }
    // The tokens that greedy decoding appends. Models whose frequencies change with the length start again when they do.
    std::vector<int32_t> greedy(const Feed& f, std::vector<int32_t> ids, uint32_t count)
    {
        std::vector<int32_t> out;
        rewind(session, 0);
        source(f);
        const uint32_t turn = model.main.config.rope_long_from;
        float* logits = nullptr;
        Input in;
        in.tokens = ids.data();
        in.count = static_cast<uint32_t>(ids.size());
        while (out.size() < count) {
            REQUIRE(forward(session, in, &logits));
            int32_t token = 0;
            Sampler sampler;
            sampler.temperature = 0;
            REQUIRE(sample(sampler, logits + uint64_t{session.logit_rows - 1} * model.main.config.n_outputs,
                model.main.config.n_outputs, &token));
            out.push_back(token);
            ids.push_back(token);
            const bool again = turn && ids.size() == turn + 1;
            if (again) rewind(session, 0);
            in.tokens = again ? ids.data() : &ids.back();
            in.count = again ? static_cast<uint32_t>(ids.size()) : 1;
        }
        return out;
    }
};

double largest_difference(const std::vector<float>& got, const Want& want, const std::vector<uint8_t>& mask)
{
    const uint64_t rows = want.values.shape.size() < 3 ? 1 : want.values.from_end(2), width = want.values.from_end(1);
    if (got.size() != rows * width) return HUGE_VAL;
    double worst = 0;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t i = 0; i < width; i++) {
            if (mask.size() == rows && !mask[r]) continue;     // what stands at padded positions means nothing
            const double a = static_cast<double>(got[r * width + i]),
                b = static_cast<double>(want.values.values[(want.row * rows + r) * width + i]);
            worst = std::isnan(a) ? HUGE_VAL : std::max(worst, std::fabs(a - b));
        }
    return worst;
}

std::string shared_golden()
{
    if (const char* path = std::getenv("TRANSFORMER_GOLDEN")) return path;
    return "../shared/golden";
}

std::vector<std::string> case_folders()
{
    std::map<std::string, std::string> found;                  // by name: ours first
    for (const std::string& root : {std::string("tests/golden"), shared_golden()}) {
        std::error_code none;
        for (const auto& entry : std::filesystem::directory_iterator(root, none)) {
            const std::string name = entry.path().filename().string();
            if (std::filesystem::exists(entry.path() / "model.safetensors")
                || std::filesystem::exists(entry.path() / "model.safetensors.index.json"))
                if (std::filesystem::exists(entry.path() / "expected.json")) found.emplace(name, entry.path().string());
        }
    }
    std::vector<std::string> folders;
    for (const auto& f : found) folders.push_back(f.second);
    return folders;
}

Feed feed_of(const Json& input, const std::string& folder, uint32_t row)
{
    Feed f;
    const auto list = [&](const char* key, std::vector<int32_t>& out) {
        if (const Json* j = input.find(key)) out = integers(j->items.at(row));
    };
    const auto floats_of = [&](const char* key, std::vector<float>& out, uint32_t* count, bool last) {
        if (!input.find(key)) return;
        const Array a = read_npy(folder + "/" + input.find(key)->string);
        const size_t each = a.values.size() / a.shape[0];
        out.assign(a.values.begin() + static_cast<std::ptrdiff_t>(each * row),
            a.values.begin() + static_cast<std::ptrdiff_t>(each * (row + 1)));
        *count = a.from_end(last ? 1 : 2);
    };
    list("token_type_ids", f.types);
    if (input.find("decoder_input_ids")) {
        list("decoder_input_ids", f.ids);
        list("input_ids", f.source_ids);
    } else list("input_ids", f.ids);
    if (const Json* j = input.find("attention_mask"))
        for (int32_t m : integers(j->items.at(row))) f.mask.push_back(static_cast<uint8_t>(m));
    floats_of("x", f.rows, &f.n_rows, false);
    floats_of("memory", f.memory, &f.n_memory, false);
    floats_of("input_features", f.features, &f.n_frames, true);
    return f;
}

weights::AlignedBytes checkpoint_of(const std::string& folder, bool convert, DType type)
{
    weights::WriteOptions options;
    options.convert = convert;
    options.type = type;
    return weights::write_to_memory(weights::read_source(folder, ""), options);
}

void check_against(const std::string& name, const Outcome& got, const Want& want, const Feed& feed, bool last_is_hidden,
    bool encoder_only)
{
    const std::vector<uint8_t> none;
    const std::vector<uint8_t>& mask = encoder_only || want.what == "encoder_hidden" ? feed.mask : none;
    if (want.what != "layers" && want.what != "encoder_layers") {
        const std::vector<float>& mine = want.what == "logits" ? got.logits : want.what == "encoder_hidden"
            ? got.encoder_hidden : got.hidden;
        const double d = largest_difference(mine, want, mask);
        CHECK_MESSAGE(d <= want.tolerance, name << " " << want.what << ": " << d << " > " << want.tolerance);
        return;
    }
    const auto& layers = want.what == "layers" ? got.layers : got.encoder_layers;
    const uint32_t n = want.values.from_end(3);
    const uint64_t each = uint64_t{want.values.from_end(2)} * want.values.from_end(1);
    for (uint32_t i = 0; i < n; i++) {
        if (i + 1 == n && (last_is_hidden || want.what == "encoder_layers")) continue;  // that one stands as hidden
        Want layer = want;
        layer.values.shape = {1, want.values.from_end(2), want.values.from_end(1)};
        layer.row = 0;
        const auto begin = want.values.values.begin() + static_cast<std::ptrdiff_t>((want.row * n + i) * each);
        layer.values.values.assign(begin, begin + static_cast<std::ptrdiff_t>(each));
        REQUIRE(i < layers.size());
        const double d = largest_difference(layers[i], layer, mask);
        CHECK_MESSAGE(d <= want.tolerance, name << " " << want.what << " " << i << ": " << d << " > " << want.tolerance);
    }
}

Options room_for(const Model& m, Isa isa, uint32_t slices)
{
    Options o;
    o.capacity = std::min(m.main.config.max_seq_len, 64u);
    if (m.main.config.flags & flag_cross)
        o.source_capacity = m.encoder.config.n_layers ? std::min(m.encoder.config.max_seq_len, 64u) : 64;
    o.batch = 64;
    o.isa = isa;
    o.slices = slices;
    return o;
}

}  // namespace

TEST_CASE("every reference case gives the numbers of the implementation that made it")
{
    const std::vector<std::string> folders = case_folders();
    REQUIRE(folders.size() >= 20);
    double worst_q8 = 0;
    std::string worst_q8_case;
    for (const std::string& folder : folders) {
        const std::string name = std::filesystem::path(folder).filename().string();
        INFO(name);
        Machine f32;
        weights::AlignedBytes bytes, bytes8;
        try {
            bytes = checkpoint_of(folder, true, DType::f32);
            bytes8 = checkpoint_of(folder, true, DType::q8_0);
        } catch (const weights::Error& e) {
            FAIL_CHECK(name << ": " << e.what());
            continue;
        }
        const Status opened = open(bytes.data, bytes.size, &f32.model);
        CHECK_MESSAGE(opened, name << ": " << words(opened));
        if (!opened) continue;
        Machine q8;
        const Status opened8 = open(bytes8.data, bytes8.size, &q8.model);
        CHECK_MESSAGE(opened8, name << " at 8 bits: " << words(opened8));
        if (!opened8) continue;

        const Json expected = weights::read_json(folder + "/expected.json");
        const bool encoder_only = expected.find("kind")->string == "encoder";
        const bool last_is_hidden = !expected.find("layers_last_is_hidden") || expected.find("layers_last_is_hidden")->flag;
        f32.begin(room_for(f32.model, Isa::best, 1));
        q8.begin(room_for(q8.model, Isa::best, 1));
        std::map<std::string, Feed> first_rows;
        for (const Json& input : expected.find("inputs")->items) {
            const auto& results = input.find("expected")->members;
            const uint32_t n_rows = read_npy(folder + "/" + results.front().value.string).shape[0];
            for (uint32_t row = 0; row < n_rows; row++) {
                const Feed feed = feed_of(input, folder, row);
                if (row == 0) first_rows[input.find("name")->string] = feed;
                const Outcome got = f32.run(feed, 64);
                for (const auto& r : results) {
                    Want want = {r.key, read_npy(folder + "/" + r.value.string), row, 2e-5};
                    if (const Json* noise = expected.find("noise")->find(r.key))
                        want.tolerance = std::max(2e-5, 10 * noise->value);
                    check_against(name + " " + input.find("name")->string, got, want, feed, last_is_hidden, encoder_only);
                }
                const Outcome rough = q8.run(feed, 64);        // 8 bits: error against the spread of the values
                const std::vector<float>& a = got.logits.empty() ? got.hidden : got.logits;
                const std::vector<float>& b = rough.logits.empty() ? rough.hidden : rough.logits;
                double error = 0, spread = 0;
                for (size_t i = 0; i < a.size(); i++) {
                    error += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
                    spread += std::pow(static_cast<double>(a[i]), 2);
                }
                const double relative = std::sqrt(error / spread);
                if (relative > worst_q8) worst_q8_case = name;
                worst_q8 = std::max(worst_q8, relative);
                // a rounded input can choose another expert, so models with experts may move farther
                CHECK_MESSAGE(relative < (f32.model.main.config.n_experts ? 0.5 : 0.15), name << " at 8 bits: " << relative);
                const uint32_t pieces[] = {1, 2, 7, 64}, slices[] = {1, 3, 2, 5};
                for (Machine* m : {&f32, &q8}) {
                    const Outcome& reference = m == &f32 ? got : rough;
                    for (uint32_t k = 1; k < n_isas; k++)
                        for (int i = 0; i < 4 && room_available(static_cast<Isa>(k)); i++) {
                            const Isa isa = static_cast<Isa>(k);
                            Machine other;
                            other.model = m->model;
                            ThreadPool pool(slices[i]);
                            Options o = room_for(other.model, isa, slices[i]);
                            o.parallel_for = ThreadPool::parallel_for;
                            o.parallel_user = &pool;
                            other.begin(o);
                            // frequencies depend on the length so far
                            if (f32.model.main.config.rope_long_from && pieces[i] < 64) continue;
                            CHECK_MESSAGE(other.run(feed, pieces[i]) == reference,
                                name << ": other bits in pieces of " << pieces[i]);
                        }
                }
            }
        }
        if (const Json* list = expected.find("greedy"))
            for (const Json& g : list->items) {
                Feed feed = first_rows[g.find("input")->string];
                const std::vector<int32_t> want = integers(*g.find("tokens"));
                std::vector<int32_t> ids = feed.ids;
                if (const Json* token = g.find("start_token")) ids = {static_cast<int32_t>(token->integer)};
                CHECK_MESSAGE(f32.greedy(feed, ids, static_cast<uint32_t>(want.size())) == want,
                    name << ": other greedy tokens");
            }
    }
    MESSAGE(folders.size() << " cases; largest relative error at 8 bits " << worst_q8 << " (" << worst_q8_case << ")");
}
