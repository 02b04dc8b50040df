// GGUF files: every number format against gguf's own NumPy code, small files of each kind of
// architecture against the reference cases, the vocabulary, and files that are broken on purpose.
#include "helpers.hpp"

#include "weights/json.hpp"

#include "data/ggml_blocks.hpp"

#include <filesystem>
#include <fstream>

using namespace test;
using namespace transformer;
using weights::GgufKind;
using weights::Json;
using weights::Source;
using weights::TensorSource;

namespace {

// ---- Writing a file by hand ---------------------------------------------------------------------

void put32(std::string& to, uint64_t value)
{
    unsigned char b[4];
    weights::store_u32(b, static_cast<uint32_t>(value));
    to.append(reinterpret_cast<const char*>(b), 4);
}
void put64(std::string& to, uint64_t value)
{
    put32(to, value & 0xffffffff);
    put32(to, value >> 32);
}
void put_text(std::string& to, const std::string& text)
{
    put64(to, text.size());
    to += text;
}

struct Gguf {
    uint32_t version = 3;
    uint64_t n_values = 0, n_tensors = 0;
    std::string values, infos, data;

    Gguf& raw(const std::string& key, GgufKind kind, const std::string& bytes)
    {
        put_text(values, key);
        put32(values, static_cast<uint32_t>(kind));
        values += bytes;
        n_values++;
        return *this;
    }
    Gguf& number(const std::string& key, uint32_t value)
    {
        std::string bytes;
        put32(bytes, value);
        return raw(key, GgufKind::u32, bytes);
    }
    Gguf& real(const std::string& key, float value)
    {
        std::string bytes;
        put32(bytes, bits_of(value));
        return raw(key, GgufKind::f32, bytes);
    }
    Gguf& text(const std::string& key, const std::string& value)
    {
        std::string bytes;
        put_text(bytes, value);
        return raw(key, GgufKind::text, bytes);
    }
    Gguf& list(const std::string& key, GgufKind item, uint64_t count, const std::string& items)
    {
        std::string bytes;
        put32(bytes, static_cast<uint32_t>(item));
        put64(bytes, count);
        return raw(key, GgufKind::list, bytes + items);
    }
    Gguf& texts(const std::string& key, const std::vector<std::string>& items)
    {
        std::string bytes;
        for (const std::string& item : items) put_text(bytes, item);
        return list(key, GgufKind::text, items.size(), bytes);
    }
    Gguf& info(const std::string& name, const std::vector<uint64_t>& sizes, uint32_t type,
               uint64_t offset)
    {
        put_text(infos, name);
        put32(infos, sizes.size());
        for (const uint64_t size : sizes) put64(infos, size);
        put32(infos, type);
        put64(infos, offset);
        n_tensors++;
        return *this;
    }
    // `sizes` as in the file: the length of a row first.
    Gguf& tensor(const std::string& name, const std::vector<uint64_t>& sizes, uint32_t type,
                 const std::string& bytes)
    {
        info(name, sizes, type, data.size());
        data += bytes;
        data.append((32 - data.size() % 32) % 32, '\0');
        return *this;
    }
    Gguf& floats(const std::string& name, const std::vector<uint64_t>& sizes, uint64_t seed)
    {
        uint64_t n = 1;
        for (const uint64_t size : sizes) n *= size;
        std::string bytes;
        for (uint64_t i = 0; i < n; i++) put32(bytes, bits_of(unit(seed, i)));
        return tensor(name, sizes, 0, bytes);
    }
    std::string bytes(uint32_t alignment = 32) const
    {
        std::string out = "GGUF";
        put32(out, version);
        put64(out, n_tensors);
        put64(out, n_values);
        out += values + infos;
        out.append((alignment - out.size() % alignment) % alignment, '\0');
        return out + data;
    }
};

struct Names { // keys that a Llama must have; one can be left out
    std::string without;
    Gguf& operator()(Gguf& g, const std::string& architecture = "llama") const
    {
        if (without != "general.architecture") g.text("general.architecture", architecture);
        const std::pair<const char*, uint32_t> sizes[] = {
            {"block_count", 1},          {"context_length", 64},
            {"embedding_length", 32},    {"feed_forward_length", 64},
            {"attention.head_count", 4}, {"attention.head_count_kv", 2}};
        for (const auto& [key, value] : sizes)
            if (without != key) g.number(architecture + "." + key, value);
        if (without != "attention.layer_norm_rms_epsilon")
            g.real(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
        return g;
    }
};

// Random blocks of a format, with scales that a model could have.
std::string random_blocks(const weights::GgmlType& type, uint64_t values, uint64_t seed)
{
    std::string out;
    Random r{seed};
    for (uint64_t i = 0; i < values / type.block * type.bytes; i++)
        out += static_cast<char>(r.below(256));
    const auto half = [&](uint64_t block, uint32_t at, float value) {
        const uint16_t h = f32_to_f16(value);
        out[block * type.bytes + at] = static_cast<char>(h & 255);
        out[block * type.bytes + at + 1] = static_cast<char>(h >> 8);
    };
    for (uint64_t b = 0; b < values / type.block; b++) {
        const float a = 0.01f + 0.01f * static_cast<float>(r.below(8)), c = 0.02f;
        switch (type.id) {
        case 0:
        case 30: out[b * type.bytes + type.bytes - 1] = 0x3e; break;
        case 1: half(b, 0, a); break;
        case 28:
            out[b * 8 + 7] = 0x3f;
            out[b * 8 + 6] = static_cast<char>(0xa0);
            break;
        case 10: half(b, 80, a), half(b, 82, c); break;
        case 11: half(b, 108, a); break;
        case 14: half(b, 208, a); break;
        case 3:
        case 7:
        case 12:
        case 13: half(b, 0, a), half(b, 2, c); break;
        case 15: out.replace(b * type.bytes, 4, std::string("\x0a\xd7\x23\x3c", 4)); break;
        case 39: out[b * type.bytes] = 120; break;
        default: half(b, 0, a);
        }
    }
    return out;
}

Gguf small_llama(uint32_t matrix_type = 0, uint32_t dim = 32)
{
    Gguf g;
    Names{"embedding_length"}(g);
    g.number("llama.embedding_length", dim);
    const weights::GgmlType& type = *weights::ggml_type(matrix_type);
    uint64_t seed = 1;
    const auto matrix = [&](const std::string& name, uint64_t rows, uint64_t cols) {
        g.tensor(name, {cols, rows}, matrix_type, random_blocks(type, rows * cols, seed++));
    };
    g.floats("token_embd.weight", {dim, 40}, 50).floats("output_norm.weight", {dim}, 51);
    g.floats("blk.0.attn_norm.weight", {dim}, 52).floats("blk.0.ffn_norm.weight", {dim}, 53);
    matrix("blk.0.attn_q.weight", dim, dim);
    matrix("blk.0.attn_k.weight", dim / 2, dim);
    matrix("blk.0.attn_v.weight", dim / 2, dim);
    matrix("blk.0.attn_output.weight", dim, dim);
    matrix("blk.0.ffn_gate.weight", dim == 32 ? 64 : 256, dim);
    matrix("blk.0.ffn_up.weight", dim == 32 ? 64 : 256, dim);
    matrix("blk.0.ffn_down.weight", dim, dim == 32 ? 64 : 256);
    return g;
}

Source read_bytes(const std::string& bytes)
{
    const Temporary file("model.gguf", bytes);
    return weights::read_source(file.path, "");
}
std::string refused(const std::string& bytes)
{
    return error_of([&] { read_bytes(bytes); });
}

const TensorSource& tensor_of(const Source& s, uint32_t layer, Role role)
{
    for (const TensorSource& t : s.tensors)
        if (t.layer == layer && t.role == static_cast<uint8_t>(role)) return t;
    FAIL("no such tensor");
    return s.tensors[0];
}
std::vector<float> all_rows(const TensorSource& t, uint32_t matrix = 0)
{
    std::vector<float> out(size_t{t.rows} * t.cols);
    t.read(matrix, 0, t.rows, out.data());
    return out;
}
// What the tiles of a tensor mean.
std::vector<float> all_tiles(const TensorSource& t, uint32_t matrix = 0)
{
    std::vector<float> out(size_t{t.rows} * t.cols);
    std::vector<unsigned char> tile(static_cast<size_t>(matrix_bytes(t.stored, 16, t.cols)), 0xa5);
    Tensor view;
    view.data = tile.data();
    view.rows = 16;
    view.cols = t.cols;
    view.count = 1;
    view.dtype = t.stored;
    for (uint32_t r = 0; r < t.rows; r++) {
        if (r % 16 == 0) t.read_tile(matrix, r / 16, tile.data());
        dequantize_row(view, 0, r % 16, out.data() + size_t{r} * t.cols);
    }
    return out;
}
double relative_error(const std::vector<float>& got, const std::vector<float>& want)
{
    double error = 0, size = 0;
    for (size_t i = 0; i < want.size(); i++) {
        error += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
        size += std::pow(static_cast<double>(want[i]), 2);
    }
    return std::sqrt(error / size);
}

// ---- Reference cases ----------------------------------------------------------------------------

struct Array { // a .npy file: little-endian float32, C order
    std::vector<uint32_t> shape;
    std::vector<float> values;
};
Array read_npy(const std::string& path)
{
    const weights::File file = weights::map_file(path);
    const uint32_t header = weights::load_u16(file->data + 8);
    const std::string text(reinterpret_cast<const char*>(file->data) + 10, header);
    REQUIRE(contains(text, "'<f4'"));
    Array a;
    for (size_t at = text.find("'shape': (") + 10; text[at] != ')';) {
        size_t used = 0;
        a.shape.push_back(static_cast<uint32_t>(std::stoul(text.substr(at), &used)));
        at = text.find_first_not_of(", ", at + used);
    }
    for (uint64_t i = 10 + header; i + 4 <= file->size; i += 4)
        a.values.push_back(weights::load_f32(file->data + i));
    return a;
}
std::vector<int32_t> integers(const Json* list, uint32_t row)
{
    std::vector<int32_t> out;
    if (list)
        for (const Json& item : list->items.at(row).items)
            out.push_back(static_cast<int32_t>(item.integer));
    return out;
}
bool keep_hidden(void* user, const Event& e)
{
    if (e.kind == Event::hidden && !e.encoder)
        static_cast<std::vector<float>*>(user)->assign(
            e.rows.data, e.rows.data + size_t{e.rows.count} * e.rows.dim);
    return true;
}

// The folder with a case's expected.json: beside the file, ours, or a larger collection's.
std::string expected_folder(const std::filesystem::path& file)
{
    std::string name = file.stem().string();
    name = name.substr(0, std::min(name.find('@'), name.find("-00001-of-")));
    const char* const given = std::getenv("TRANSFORMER_GOLDEN");
    for (const std::string& root : {file.parent_path().string(), std::string("tests/golden"),
                                    std::string(given ? given : "../shared/golden")})
        if (weights::is_file(weights::join(weights::join(root, name), "expected.json")))
            return weights::join(root, name);
    return "";
}

void check_case(const std::filesystem::path& file)
{
    const std::string folder = expected_folder(file);
    REQUIRE_MESSAGE(!folder.empty(), "no expected numbers for " << file.string());
    const Json expected = weights::read_json(weights::join(folder, "expected.json"));
    weights::WriteOptions to_f32;
    to_f32.convert = true;
    Opened opened(weights::write_to_memory(weights::read_source(file.string(), ""), to_f32));
    const Model& m = opened.model;
    std::vector<float> hidden;
    Options o = plain_options(std::min(64u, m.main.config.max_seq_len));
    o.batch = 64;
    o.all_logits = true;
    o.observer = keep_hidden;
    o.observer_user = &hidden;
    if (m.encoder.config.n_layers) o.source_capacity = 64;
    Started machine(m, o);
    Session& s = machine.session;
    for (const Json& input : expected.find("inputs")->items) {
        const bool source = input.find("decoder_input_ids") != nullptr;
        for (const auto& result : input.find("expected")->members) {
            if (result.key != "logits" && result.key != "hidden") continue;
            if (result.key == "logits" && !m.lm_head.w) continue;
            const Array want = read_npy(weights::join(folder, result.value.string));
            double tolerance = 2e-5;
            if (const Json* noise = expected.find("noise")->find(result.key))
                tolerance = std::max(tolerance, 10 * noise->value);
            const size_t each = want.values.size() / want.shape[0];
            for (uint32_t row = 0; row < want.shape[0]; row++) {
                REQUIRE_OK(rewind(s, 0));
                const std::vector<int32_t> ids = integers(
                    input.find(source ? "decoder_input_ids" : "input_ids"), row);
                const std::vector<int32_t> from = integers(
                    source ? input.find("input_ids") : nullptr, row);
                const std::vector<int32_t> types = integers(input.find("token_type_ids"), row);
                std::vector<uint8_t> mask;
                for (const int32_t x : integers(input.find("attention_mask"), row))
                    mask.push_back(static_cast<uint8_t>(x));
                Input in = tokens_of(ids);
                in.types = types.empty() ? nullptr : types.data();
                if (source) {
                    Input encoded = tokens_of(from);
                    encoded.mask = mask.empty() ? nullptr : mask.data();
                    REQUIRE_OK(encode(s, encoded, nullptr));
                } else {
                    in.mask = mask.empty() ? nullptr : mask.data();
                }
                float* logits = nullptr;
                REQUIRE_OK(forward(s, in, &logits));
                const float* const got = result.key == "logits" ? logits : hidden.data();
                const size_t width = want.shape.back(); // one row where the model pools
                double worst = 0;
                for (size_t i = 0; i < each; i++) {
                    if (!source && !mask.empty() && !mask[i / width]) continue; // padding
                    const double want_value = static_cast<double>(want.values[row * each + i]);
                    worst = std::max(worst, std::fabs(static_cast<double>(got[i]) - want_value));
                }
                const std::string where = file.filename().string() + " " +
                                          input.find("name")->string;
                CHECK_MESSAGE(worst <= tolerance,
                              where << " " << result.key << ": " << worst << " > " << tolerance);
            }
        }
    }
}

} // namespace

// ---- Number formats -----------------------------------------------------------------------------

TEST_CASE("gguf: every number format gives the values that gguf gives, bit for bit")
{
    for (const Block& b : blocks) {
        const weights::GgmlType* type = weights::ggml_type(b.type);
        REQUIRE(type);
        const bool readable = type->decode != nullptr;
        REQUIRE(readable);
        std::vector<float> got(b.bits.size());
        type->decode(b.bytes.data(), b.bits.size() / type->block, got.data());
        size_t wrong = 0;
        for (size_t i = 0; i < got.size(); i++) wrong += bits_of(got[i]) != b.bits[i];
        CHECK_MESSAGE(wrong == 0, type->name << ": " << wrong << " of " << got.size());
    }
    const weights::GgmlType& f16 = *weights::ggml_type(1); // all halves, as the runtime reads them
    for (uint32_t h = 0; h < 65536; h++) {
        const unsigned char bytes[2] = {static_cast<unsigned char>(h & 255),
                                        static_cast<unsigned char>(h >> 8)};
        float got;
        f16.decode(bytes, 1, &got);
        if (!same(got, f16_to_f32(static_cast<uint16_t>(h)))) FAIL_CHECK("half " << h);
    }
}

TEST_CASE("gguf: tiles keep what a file says, and the rest within what the format can hold")
{
    // The largest relative error of each way; 0: to the bit.
    const std::map<std::string, double> allowed = {
        {"Q8_0", 0},      {"Q4_0", 0},     {"Q4_1", 0},     {"Q5_0", 0},     {"MXFP4", 0},
        {"Q8_K", 1e-3},   {"Q4_K", 1e-3},  {"Q5_1", 0.008}, {"Q5_K", 0.008}, {"Q6_K", 0.008},
        {"IQ4_NL", 0},    {"IQ4_XS", 1e-3}, {"Q2_K", 0.008}, {"Q3_K", 0.008}};
    for (const weights::GgmlType& type : weights::ggml::types) {
        if (!type.tile) continue;
        REQUIRE_MESSAGE(allowed.count(type.name), type.name);
        const uint32_t cols = 512, n_rows = 13; // three rows of the tile are missing
        const std::string blocks_of_it = random_blocks(type, uint64_t{n_rows} * cols, type.id);
        const unsigned char* rows[16] = {};
        const size_t row_bytes = size_t{cols} / type.block * type.bytes;
        for (uint32_t r = 0; r < n_rows; r++)
            rows[r] = reinterpret_cast<const unsigned char*>(blocks_of_it.data()) + r * row_bytes;
        std::vector<unsigned char> tile(static_cast<size_t>(matrix_bytes(type.stored, 16, cols)),
                                        0xa5);
        type.tile(rows, cols, tile.data());
        Tensor view;
        view.data = tile.data();
        view.rows = 16;
        view.cols = cols;
        view.count = 1;
        view.dtype = type.stored;
        std::vector<float> got, want;
        for (uint32_t r = 0; r < 16; r++) {
            std::vector<float> x(cols), y(cols);
            dequantize_row(view, 0, r, x.data());
            if (rows[r]) type.decode(rows[r], cols / type.block, y.data());
            else
                for (const float v : x)
                    CHECK_MESSAGE(!(v > 0 || v < 0), type.name << ": a missing row is not zero");
            got.insert(got.end(), x.begin(), x.end());
            want.insert(want.end(), y.begin(), y.end());
        }
        const double error = relative_error(got, want), most = allowed.at(type.name);
        CHECK_MESSAGE(error <= most, type.name << ": " << error);
        CHECK_MESSAGE((most > 0 || error == 0), type.name << " is not kept to the bit");
    }
}

TEST_CASE("gguf: blocks of zeros, and of broken numbers")
{
    for (const weights::GgmlType& type : weights::ggml::types) {
        if (!type.tile) continue;
        for (const int fill : {0x00, 0xff, 0x7c, 0x80}) { // zeros, NaN, infinity
            const std::vector<unsigned char> row(256 / type.block * type.bytes,
                                                 static_cast<unsigned char>(fill));
            const unsigned char* rows[16];
            for (auto& r : rows) r = row.data();
            std::vector<unsigned char> tile(
                static_cast<size_t>(matrix_bytes(type.stored, 16, 256)));
            type.tile(rows, 256, tile.data()); // no undefined behaviour: the sanitizers look on
            if (fill) continue;
            Tensor view;
            view.data = tile.data();
            view.rows = 16;
            view.cols = 256;
            view.count = 1;
            view.dtype = type.stored;
            std::vector<float> x(256);
            dequantize_row(view, 0, 7, x.data());
            for (const float v : x) CHECK_MESSAGE(!(v > 0 || v < 0), type.name);
        }
    }
}

TEST_CASE("gguf: q and k rows come in half-split order, as values and as tiles")
{
    for (const uint32_t type : {0u, 2u, 3u, 6u, 8u}) {
        const Source s = read_bytes(small_llama(type).bytes());
        const TensorSource& q = tensor_of(s, 1, Role::wq);
        const weights::GgmlType& format = *weights::ggml_type(type);
        const std::string stored = random_blocks(format, 32 * 32, 1); // attn_q is the first matrix
        std::vector<float> rows(32 * 32), want;
        format.decode(reinterpret_cast<const unsigned char*>(stored.data()), 32 * 32 / format.block,
                      rows.data());
        for (uint32_t r = 0; r < 32; r++) { // heads of 8 rows: 0 2 4 6 1 3 5 7
            const uint32_t i = r % 8, from = r / 8 * 8 + (i < 4 ? 2 * i : 2 * (i - 4) + 1);
            want.insert(want.end(), rows.begin() + from * 32, rows.begin() + from * 32 + 32);
        }
        CHECK(same_bits(all_rows(q), want));
        CHECK(q.stored == format.stored);
        if (type) CHECK(same_bits(all_tiles(q), want));
        std::vector<float> piece(3 * 32); // any rows of it
        q.read(0, 5, 3, piece.data());
        CHECK(same_bits(piece, {want.begin() + 5 * 32, want.begin() + 8 * 32}));
    }
}

TEST_CASE("gguf: a file of each number format becomes a checkpoint that runs")
{
    for (const weights::GgmlType& type : weights::ggml::types) {
        const uint32_t dim = type.block > 32 ? 256 : 32;
        const std::string bytes = small_llama(type.id, dim).bytes();
        if (!type.decode) {
            CHECK_MESSAGE(contains(refused(bytes), std::string("has the type ") + type.name),
                          type.name);
            continue;
        }
        const Source s = read_bytes(bytes);
        Opened kept(weights::write_to_memory(s, {}));
        CHECK_MESSAGE(tensor_of(s, 1, Role::up).stored == type.stored, type.name);
        weights::WriteOptions to_f32;
        to_f32.convert = true;
        Opened exact(weights::write_to_memory(s, to_f32));
        const std::vector<int32_t> ids = random_tokens(9, 40);
        const std::vector<float> a = last_logits(kept.model, plain_options(16), ids),
                                 b = last_logits(exact.model, plain_options(16), ids);
        for (const float v : a) CHECK(std::isfinite(v));
        if (!is_quantised(type.stored) && type.id != 28)
            CHECK(same_bits(a, b)); // 16-bit weights are exact in f32
    }
}

// ---- Architectures ------------------------------------------------------------------------------

TEST_CASE("gguf: the reference cases give their numbers out of GGUF files")
{
    size_t n = 0;
    const char* const more = std::getenv("TRANSFORMER_GGUF"); // a folder of more of them
    for (const std::string& root :
         {std::string("tests/golden-gguf"), std::string(more ? more : "")}) {
        std::error_code none;
        std::vector<std::filesystem::path> files;
        for (const auto& entry : std::filesystem::directory_iterator(root, none)) {
            const std::string name = entry.path().filename().string();
            if (entry.path().extension() == ".gguf" && !contains(name, "-00002-of-"))
                files.push_back(entry.path());
        }
        std::sort(files.begin(), files.end());
        for (const auto& file : files) {
            INFO(file.string());
            std::string error = error_of([&] { check_case(file); });
            CHECK_MESSAGE(error.empty(), error);
            n++;
        }
    }
    CHECK(n >= 25);
    MESSAGE(n << " files");
}

TEST_CASE("gguf: version 2, other alignments, tied heads, what a list says")
{
    const std::vector<int32_t> ids = random_tokens(9, 40);
    const auto logits = [&](const std::string& bytes) {
        Opened o(weights::write_to_memory(read_bytes(bytes), {}));
        return last_logits(o.model, plain_options(16), ids);
    };
    Gguf g = small_llama();
    const std::vector<float> want = logits(g.bytes());
    Gguf older = g;
    older.version = 2;
    CHECK(same_bits(logits(older.bytes()), want));
    Gguf wide = g;
    wide.number("general.alignment", 8);
    CHECK(same_bits(logits(wide.bytes(8)), want));

    Names names{"attention.head_count"}; // one number for each layer, the same
    Gguf listed = small_llama();
    listed.values.clear();
    listed.n_values = 0;
    names(listed);
    std::string four;
    put32(four, 4);
    listed.list("llama.attention.head_count", GgufKind::u32, 1, four);
    CHECK(same_bits(logits(listed.bytes()), want));

    Gguf vectors = g; // a decoder that makes vectors of texts has no head
    const Source embedder = read_bytes(vectors.number("llama.pooling_type", 3).bytes());
    CHECK(embedder.main.pooling == Pooling::last);
    CHECK(embedder.main.n_outputs == 0);
    Opened headless(weights::write_to_memory(embedder, {}));
    CHECK(!headless.model.lm_head.w);

    Gguf window = g; // a window that is longer than the text changes nothing, a short one does
    CHECK(same_bits(logits(window.number("llama.attention.sliding_window", 32).bytes()), want));
    Gguf small_window = g;
    CHECK(
        !same_bits(logits(small_window.number("llama.attention.sliding_window", 3).bytes()), want));
}

TEST_CASE("gguf: settings and tensors that are not known are refused by name")
{
    const Gguf g = small_llama();
    const auto with = [&](const std::function<void(Gguf&)>& change) {
        Gguf copy = g;
        change(copy);
        return refused(copy.bytes());
    };
    CHECK(refused(g.bytes()).empty());
    CHECK(contains(with([](Gguf& c) { c.number("llama.attention.new_trick", 1); }),
                   "llama.attention.new_trick = 1"));
    CHECK(with([](Gguf& c) { c.number("llama.attention.new_trick", 0); }).empty());
    CHECK(with([](Gguf& c) { c.number("other.attention.new_trick", 1); }).empty());
    CHECK(contains(with([](Gguf& c) { c.floats("blk.0.attn_new.weight", {32}, 1); }),
                   "blk.0.attn_new.weight"));
    CHECK(contains(with([](Gguf& c) { c.text("llama.rope.scaling.type", "spiral"); }), "spiral"));
    CHECK(contains(with([](Gguf& c) { c.text("llama.rope.scaling.type", "longrope"); }),
                   "rope.scaling.type"));
    CHECK(contains(with([](Gguf& c) { c.number("llama.pooling_type", 1); }), "pooling_type"));
    CHECK(contains(with([](Gguf& c) { c.number("llama.rope.dimension_count", 7); }),
                   "rope.dimension_count"));
    CHECK(contains(with([](Gguf& c) { c.text("general.type", "adapter"); }), "adapter"));
    CHECK(contains(with([](Gguf& c) { c.number("split.count", 2); }), "split model"));

    for (const char* key :
         {"general.architecture", "block_count", "context_length", "embedding_length",
          "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
        Gguf less = g;
        less.values.clear();
        less.n_values = 0;
        Names{key}(less);
        INFO(key);
        CHECK(!refused(less.bytes()).empty());
    }
    Gguf other;
    Names{}(other, "perceptron");
    CHECK(contains(refused(other.bytes()), "\"perceptron\" is not supported; these are: llama"));
    Gguf shape; // a tensor that does not fit the settings
    shape = small_llama();
    shape.values.clear();
    shape.n_values = 0;
    Names{"attention.head_count_kv"}(shape);
    CHECK(contains(refused(shape.bytes()),
                   "blk.0.attn_k.weight has the shape (16, 32), the settings ask for (32, 32)"));
    const std::pair<const char*, uint32_t> numbers[] = {{"block_count", 0},
                                                        {"block_count", 0xffffffff},
                                                        {"block_count", 100000},
                                                        {"embedding_length", 0},
                                                        {"embedding_length", 1u << 31},
                                                        {"attention.head_count", 0},
                                                        {"attention.head_count", 3},
                                                        {"attention.head_count", 1u << 30},
                                                        {"attention.head_count_kv", 0},
                                                        {"attention.head_count_kv", 3},
                                                        {"context_length", 0},
                                                        {"context_length", (1u << 28) + 1},
                                                        {"context_length", 2147483647}};
    for (const auto& one : numbers) {
        const char* const key = one.first;
        const uint32_t value = one.second;
        Gguf wrong = small_llama();
        wrong.values.clear();
        wrong.n_values = 0;
        Names{key}(wrong);
        wrong.number(std::string("llama.") + key, value);
        INFO(key << " " << value);
        const std::string sentence = refused(wrong.bytes());
        CHECK(!sentence.empty());
        if (key == std::string("context_length"))
            CHECK(contains(sentence, "llama.context_length = " + std::to_string(value) + " is"));
    }
    Gguf odd = small_llama(); // 32 heads of one value
    odd.values.clear();
    odd.n_values = 0;
    Names{"attention.head_count"}(odd);
    CHECK(contains(refused(odd.number("llama.attention.head_count", 32).bytes()),
                   "1 values of a head of 1 cannot be rotated in pairs"));
}

// ---- The vocabulary -----------------------------------------------------------------------------

TEST_CASE("gguf: the vocabulary")
{
    Gguf g = small_llama();
    std::vector<std::string> tokens = {"<unk>",
                                       "<s>",
                                       "</s>",
                                       "\xe2\x96\x81",
                                       "a",
                                       "\xe2\x96\x81"
                                       "a",
                                       "<|im_end|>"};
    std::string scores, types;
    const uint32_t kinds[] = {2, 3, 3, 1, 1, 1, 3};
    for (size_t i = 0; i < tokens.size(); i++) {
        put32(scores, bits_of(-static_cast<float>(i)));
        put32(types, kinds[i]);
    }
    g.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", tokens);
    g.list("tokenizer.ggml.scores", GgufKind::f32, tokens.size(), scores);
    g.list("tokenizer.ggml.token_type", GgufKind::i32, tokens.size(), types);
    g.number("tokenizer.ggml.bos_token_id", 1).number("tokenizer.ggml.eos_token_id", 2);
    g.number("tokenizer.ggml.eom_token_id", 4).text("tokenizer.chat_template", "{{ x }}");
    const Source s = read_bytes(g.bytes());
    const weights::VocabularySource& v = s.vocabulary;
    CHECK(v.kind == VocabularyKind::sentencepiece_bpe);
    CHECK(v.tokens.size() == tokens.size());
    CHECK(v.tokens[5] == " a");
    CHECK(v.bos == 1);
    CHECK(v.eos == 2);
    CHECK(v.chat_template == "{{ x }}");
    CHECK(v.unknown == 0); // by its type
    for (const int32_t id : {2, 4, 6}) { // eos, eom, and a text that ends a turn
        INFO(id);
        CHECK(std::find(v.stop.begin(), v.stop.end(), id) != v.stop.end());
    }
    std::string lossy = g.bytes();
    const size_t type_of_unknown = lossy.find(types);
    REQUIRE(type_of_unknown != std::string::npos);
    lossy[type_of_unknown] = 1;
    CHECK(contains(refused(lossy), "neither an unknown token nor tokens for bytes"));
    Opened o(weights::write_to_memory(s, {}));
    const std::string text = "a a";
    std::vector<unsigned char> work(tokenize_size(o.model.vocabulary, text.size()));
    int32_t ids[8];
    uint32_t n = 0;
    REQUIRE_OK(tokenize(o.model.vocabulary, text.data(), text.size(), {}, work.data(), work.size(),
                        ids, 8, &n));
    REQUIRE(n == 3);
    CHECK(ids[0] == 1);
    CHECK(ids[1] == 5);
    CHECK(ids[2] == 5);
}

// ---- Broken files -------------------------------------------------------------------------------

TEST_CASE("gguf: headers that promise what is not there")
{
    const uint64_t huge = UINT64_MAX, half = uint64_t{1} << 63;
    const auto header = [](uint32_t version, uint64_t tensors, uint64_t values) {
        std::string out = "GGUF";
        put32(out, version);
        put64(out, tensors);
        put64(out, values);
        return out;
    };
    CHECK(contains(refused("GGUF"), "no GGUF file"));
    CHECK(contains(refused(header(1, 0, 0)), "version 1"));
    CHECK(contains(refused(header(4, 0, 0)), "version 4"));
    CHECK(contains(refused(header(0, 0, 0)), "version 0"));
    CHECK(contains(refused(header(0x03000000, 0, 0)), "big-endian"));
    for (const uint64_t n : {huge, half, huge / 13 + 2, uint64_t{1} << 32, uint64_t{100}}) {
        CHECK(contains(refused(header(3, 0, n)), "settings"));
        CHECK(contains(refused(header(3, n, 0)), "tensors"));
    }
    CHECK(!refused(header(3, 0, 0)).empty()); // nothing in it

    // Settings.
    const auto with = [&](const std::string& values, uint64_t n = 1) {
        return refused(header(3, 0, n) + values);
    };
    std::string name;
    put64(name, huge);
    CHECK(contains(with(name + std::string(40, 'x')), "name of"));
    name.clear();
    put64(name, 65536);
    CHECK(contains(with(name + std::string(40, 'x')), "name of"));
    name.clear();
    put64(name, 0);
    CHECK(contains(with(name + std::string(40, 'x')), "name of 0 bytes"));
    Gguf g;
    CHECK(contains(with(g.raw("key", static_cast<GgufKind>(13), std::string(64, 'x')).values),
                   "unknown type 13"));
    for (const uint64_t n :
         {huge, half, huge / 4 + 1, huge / 8 + 1, huge / 12 + 1, uint64_t{1} << 40})
        for (uint32_t kind = 0; kind < 13; kind++) {
            Gguf lists;
            const std::string sentence = with(
                lists.list("key", static_cast<GgufKind>(kind), n, std::string(64, '\0')).values);
            CHECK_MESSAGE(contains(sentence, "more than there are bytes"),
                          kind << " " << n << ": " << sentence);
        }
    std::string text;
    put64(text, huge - 7);
    Gguf broken_text;
    CHECK(contains(with(broken_text.raw("key", GgufKind::text, text).values + std::string(64, 'x')),
                   "ends inside"));
    std::string nested; // lists in lists in lists ...
    for (int i = 0; i < 40; i++) {
        put32(nested, static_cast<uint32_t>(GgufKind::list));
        put64(nested, 1);
    }
    Gguf lists;
    CHECK(contains(with(lists.raw("key", GgufKind::list, nested).values), "lists inside lists"));
    Gguf twice;
    CHECK(contains(with(twice.number("key", 1).number("key", 2).values + std::string(64, '\0'), 2),
                   "there twice"));
    std::string pairs; // a list of lists is passed over
    for (int i = 0; i < 3; i++) {
        put32(pairs, static_cast<uint32_t>(GgufKind::u8));
        put64(pairs, 2);
        pairs += "ab";
    }
    Gguf fine = small_llama();
    CHECK(refused(fine.list("general.pairs", GgufKind::list, 3, pairs).bytes()).empty());
    for (const uint32_t alignment : {0u, 3u, 48u, 0xffffffffu}) {
        Gguf c = small_llama();
        CHECK(
            contains(refused(c.number("general.alignment", alignment).bytes()), "no power of two"));
    }
    Gguf far = small_llama();
    CHECK(!refused(far.number("general.alignment", 1u << 31).bytes()).empty());
    Gguf kind = small_llama();
    CHECK(contains(refused(kind.real("general.alignment", 32).bytes()), "general.alignment"));

    // Tensors.
    const auto info = [&](const std::vector<uint64_t>& sizes, uint32_t type, uint64_t offset) {
        Gguf c = small_llama();
        return refused(c.info("t.weight", sizes, type, offset).bytes());
    };
    CHECK(contains(info({}, 0, 0), "0 dimensions"));
    CHECK(contains(info({1, 1, 1, 1, 1}, 0, 0), "5 dimensions"));
    CHECK(contains(info({0, 4}, 0, 0), "is empty"));
    CHECK(contains(info({33}, 8, 0), "no multiple of the 32"));
    CHECK(contains(info({32}, 0, 31), "not aligned"));
    CHECK(contains(info({32}, 0, huge - 31), "past the end"));
    CHECK(contains(info({32}, 0, half), "past the end"));
    CHECK(contains(info({uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0), "past the end"));
    CHECK(contains(info({uint64_t{1} << 62, 4}, 0, 0), "past the end"));
    CHECK(contains(info({half, 2}, 30, 0), "past the end"));
    CHECK(contains(info({huge, huge, huge, huge}, 0, 0), "past the end"));
    CHECK(contains(info({uint64_t{1} << 61}, 0, 32), "past the end"));
    CHECK(contains(info({32}, 77, 0), "t.weight"));
    Gguf same = small_llama();
    CHECK(contains(refused(same.info("output_norm.weight", {32}, 0, 0).bytes()), "there twice"));
    Gguf unknown = small_llama(); // a type that nobody knows, where it is needed
    const size_t at = unknown.infos.find("output_norm.weight") + 18 + 4 + 8;
    unknown.infos[at] = 77;
    CHECK(contains(refused(unknown.bytes()), "has the type number 77"));
}

TEST_CASE(
    "gguf: a file that is cut off anywhere, or has any byte changed, ends in a sentence or a model")
{
    Gguf g = small_llama(8);
    g.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", {"<unk>", "a", "b"});
    std::string scores(12, '\0'), types(12, '\1');
    types.replace(0, 12, std::string("\2\0\0\0\1\0\0\0\1\0\0\0", 12));
    g.list("tokenizer.ggml.scores", GgufKind::f32, 3, scores)
        .list("tokenizer.ggml.token_type", GgufKind::i32, 3, types);
    const std::string bytes = g.bytes();
    REQUIRE(refused(bytes).empty());
    const size_t head = bytes.size() - g.data.size();
    for (size_t n = 4; n < bytes.size(); n += n < head ? 1 : 61) {
        const std::string sentence = refused(bytes.substr(0, n));
        if (sentence.empty())
            FAIL_CHECK("the first " << n << " of " << bytes.size()
                                    << " bytes are taken for a model");
    }
    Random r{11};
    size_t opened = 0;
    for (int i = 0; i < 3000; i++) {
        std::string broken = bytes;
        for (uint64_t k = r.below(3) + 1; k; k--) {
            const size_t at = r.below(static_cast<uint32_t>(head));
            const uint64_t how = r.below(4);
            const uint32_t flipped = static_cast<unsigned char>(broken[at]) ^ 1u << r.below(8);
            broken[at] = static_cast<char>(how == 0   ? r.below(256)
                                           : how == 1 ? 255u
                                           : how == 2 ? 0u
                                                      : flipped);
        }
        try {
            const Source s = read_bytes(broken);
            if (weights::checkpoint_size(s, {}) > 1 << 24) continue;
            const weights::AlignedBytes out = weights::write_to_memory(s, {});
            Model m;
            opened += transformer::open(out.data, out.size, &m).code == Code::ok;
        } catch (const weights::Error&) {
        }
    }
    CHECK(opened > 100); // most changes hit names and numbers that do not matter
}

TEST_CASE("gguf: small files that ask for much memory are refused before they get it")
{
    // 65,025 rules of normalisation that all name one text of a megabyte.
    constexpr uint32_t last = 512 + 256 * 256, n_units = last + 256;
    std::vector<uint32_t> units(n_units, 0xffffffff);
    const auto node = [&](uint32_t at, uint32_t base, uint32_t label, bool leaf) {
        units[at] = (at ^ base) << 10 | (leaf ? 256u : 0u) | label;
    };
    node(0, 256, 0, false);
    for (uint32_t a = 1; a < 256; a++) {
        node(256 ^ a, 512 + 256 * a, a, false);
        for (uint32_t b = 1; b < 256; b++) node((512 + 256 * a) ^ b, last, b, true);
    }
    units[last] = 0x80000000; // the text at 0
    std::string rules;
    put32(rules, 4 * n_units);
    for (const uint32_t unit : units) put32(rules, unit);
    rules += std::string(1 << 20, 'x');
    Gguf bomb = small_llama();
    std::string score, type;
    put32(score, 0);
    put32(type, 1);
    bomb.text("tokenizer.ggml.model", "t5").texts("tokenizer.ggml.tokens", {"a"});
    bomb.list("tokenizer.ggml.scores", GgufKind::f32, 1, score);
    bomb.list("tokenizer.ggml.token_type", GgufKind::i32, 1, type);
    bomb.list("tokenizer.ggml.precompiled_charsmap", GgufKind::u8, rules.size(), rules);
    CHECK(contains(refused(bomb.bytes()), "a rule of normalisation gives"));

    Gguf t5; // the biases of 65,536 heads in 1,024 layers
    t5.text("general.architecture", "t5");
    const std::pair<const char*, uint32_t> sizes[] = {{"t5.block_count", 1024},
                                                      {"t5.context_length", 64},
                                                      {"t5.embedding_length", 65536},
                                                      {"t5.attention.head_count", 65536},
                                                      {"t5.attention.relative_buckets_count", 4}};
    for (const auto& [key, value] : sizes) t5.number(key, value);
    t5.real("t5.attention.layer_norm_rms_epsilon", 1e-5f);
    t5.floats("token_embd.weight", {65536}, 1);
    for (const char* name : {"enc.blk.0.attn_rel_b.weight", "dec.blk.0.attn_rel_b.weight"})
        t5.tensor(name, {65536, 4}, 1, std::string(2 * 4 * 65536, '\0'));
    CHECK(contains(refused(t5.bytes()), "is missing"));
}

TEST_CASE("gguf: tensors beyond the fourth GiB")
{
    if (sizeof(void*) < 8) return;
    const uint64_t far = uint64_t{5} << 30;
    Gguf g = small_llama();
    const std::vector<float> want = all_rows(tensor_of(read_bytes(g.bytes()), 0, Role::final_norm));
    const size_t name = g.infos.find("output_norm.weight");
    const size_t at = name + 18 + 4 + 8 + 4; // name, dimensions, size, type
    const uint64_t near = weights::load_u64(
        reinterpret_cast<const unsigned char*>(g.infos.data()) + at);
    std::string offset;
    put64(offset, far);
    g.infos.replace(at, 8, offset);
    const std::string bytes = g.bytes();
    const uint64_t begin = bytes.size() - g.data.size();
    const Temporary sparse("sparse.gguf", bytes);
    std::error_code error;
    std::filesystem::resize_file(sparse.path, begin + far, error);
    if (error) {
        MESSAGE("this file system holds no sparse file of 5 GiB: not tested");
        return;
    }
    CHECK(contains(error_of([&] { (void)weights::read_source(sparse.path, ""); }),
                   "output_norm.weight reaches past the end"));
    std::ofstream(sparse.path, std::ios::binary | std::ios::app)
        .write(g.data.data() + near, 32 * 4);
    CHECK(same_bits(all_rows(tensor_of(weights::read_source(sparse.path, ""), 0, Role::final_norm)),
                    want));
}

TEST_CASE("gguf: split models")
{
    const std::string one = "tests/golden-gguf/llama-mqa-00001-of-00002.gguf",
                      two = "tests/golden-gguf/llama-mqa-00002-of-00002.gguf";
    REQUIRE(weights::is_file(one));
    const Source a = weights::read_source(one, ""),
                 b = weights::read_source(two, ""); // by any of its parts
    CHECK(a.tensors.size() == b.tensors.size());
    const Temporary folder("split");
    std::filesystem::create_directories(folder.path);
    const auto copy = [&](const std::string& from, const std::string& name) {
        std::filesystem::copy_file(from, weights::join(folder.path, name),
                                   std::filesystem::copy_options::overwrite_existing);
        return weights::join(folder.path, name);
    };
    const auto sentence = [&](const std::string& path) {
        return error_of([&] { weights::read_source(path, ""); });
    };
    CHECK(contains(sentence(copy(one, "m.gguf")), "must end in -00001-of-00002.gguf"));
    const std::string first = copy(one, "m-00001-of-00002.gguf");
    CHECK(contains(sentence(first), "m-00002-of-00002.gguf is missing"));
    copy(one, "m-00002-of-00002.gguf"); // the same part twice
    CHECK(contains(sentence(first), "is no part 2"));
    copy(two, "m-00002-of-00002.gguf");
    CHECK(sentence(first).empty());
}
