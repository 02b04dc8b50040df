// weights/checkpoint.hpp - writes the flat checkpoint that transformer.hpp opens; README.md draws it
//
// Everything is laid out before the first byte is written, so that the file is written front to back in one pass: the
// sizes of all tensors follow from their shapes and types alone. Words are stored byte by byte, so any host writes the
// same file.
#ifndef TRANSFORMER_WEIGHTS_CHECKPOINT_HPP
#define TRANSFORMER_WEIGHTS_CHECKPOINT_HPP

#include "import.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <tuple>

namespace weights {

constexpr uint64_t header_bytes = 64, config_bytes = 256, entry_bytes = 32, data_alignment = 64;

// ---- What a tensor becomes ------------------------------------------------------------------------------------------

inline std::string tensor_name(const TensorSource& t)
{
    std::string name = t.stack ? "encoder " : "";
    if (t.layer) name += "layer " + std::to_string(t.layer - 1) + " ";
    name += transformer::role_name(t.role);
    if (t.role & transformer::role_bias) name += " bias";
    return name;
}

inline DType written_type(const TensorSource& t, const WriteOptions& options)
{
    const Role role = static_cast<Role>(t.role & 0x7f);
    const bool plain = !transformer::is_quantised(t.stored), plain_asked = !transformer::is_quantised(options.type);
    const DType stored = t.stored == DType::u8 ? DType::f32 : t.stored;
    if (t.role & transformer::role_bias) return DType::f32;
    switch (role) {
    case Role::layer_flags: return DType::u8;
    case Role::token_embedding: case Role::lm_head:
        // 4 bits cost these two the most: each row is one token's, so no sum averages its rounding away.
        if (options.convert)
            return options.type == DType::q4_0 || options.type == DType::q4_1 ? DType::q8_0 : options.type;
        return stored;
    case Role::embedding_proj: case Role::conv1: case Role::conv2: case Role::head_dense:
    case Role::wq: case Role::wk: case Role::wv: case Role::wo:
    case Role::wq_a: case Role::wkv_a: case Role::wk_b: case Role::wv_b:
    case Role::cross_wq: case Role::cross_wk: case Role::cross_wv: case Role::cross_wo:
    case Role::gate: case Role::up: case Role::down:
    case Role::shared_gate: case Role::shared_up: case Role::shared_down:
        return options.convert ? options.type : stored;
    case Role::router: case Role::shared_router:
        // A rounded router chooses other experts; it is too small to be worth it.
        if (options.convert && plain_asked) return options.type;
        return plain ? stored : DType::f32;
    case Role::position_embedding: case Role::type_embedding:
        // Read by rows, never multiplied: tiles would only cost time.
        if (options.convert) return plain_asked ? options.type : DType::f16;
        return plain ? stored : DType::f16;
    default: return DType::f32;
    }
}

// ---- The layout -----------------------------------------------------------------------------------------------------

struct Layout {
    struct Entry {
        const TensorSource* tensor;
        DType type;
        uint64_t offset;
        bool has_data;              // false: another entry of the same identity is written there
    };
    std::vector<Entry> entries;     // in the table's order, which is the data's order too
    std::string vocabulary;
    uint64_t vocabulary_at = 0, size = 0;
};

inline Layout lay_out(const Source& source, const WriteOptions& options)
{
    using transformer::round_up;
    if (options.convert && options.type == DType::u8) throw Error("u8 is no type for matrices");
    Layout layout;
    for (const TensorSource& t : source.tensors) {
        if ((t.role & 0x7f) >= static_cast<uint8_t>(Role::n_roles) || t.stack > 1 || t.layer > UINT16_MAX)
            throw Error("a tensor of stack " + std::to_string(t.stack) + ", layer " + std::to_string(t.layer)
                + ", role " +
                        std::to_string(t.role) + " has no place in a checkpoint");
        if (!t.rows || !t.cols || !t.count || t.cols >= uint32_t{1} << 31 || !t.read)
            throw Error(tensor_name(t) + ": (" + std::to_string(t.count) + ", " + std::to_string(t.rows) + ", " +
                        std::to_string(t.cols) + ") is no shape of a matrix");
        layout.entries.push_back({&t, written_type(t, options), 0, true});
    }
    const auto key = [](const Layout::Entry& e) {
        return std::make_tuple(e.tensor->stack, e.tensor->layer, e.tensor->role & 0x7f, e.tensor->role >> 7);
    };
    std::stable_sort(layout.entries.begin(), layout.entries.end(),
                     [&](const Layout::Entry& a, const Layout::Entry& b) { return key(a) < key(b); });
    for (size_t i = 1; i < layout.entries.size(); i++)
        if (key(layout.entries[i]) == key(layout.entries[i - 1]))
            throw Error(tensor_name(*layout.entries[i].tensor) + ": there are two tensors of this name");

    layout.vocabulary = vocabulary_section(source.vocabulary);
    layout.vocabulary_at = round_up(header_bytes + 2 * config_bytes + entry_bytes * layout.entries.size(),
        data_alignment);
    uint64_t at = round_up(layout.vocabulary_at + layout.vocabulary.size(), data_alignment);
    // Two uses of one tensor may ask for different types (no reader does): then each is written.
    std::map<std::tuple<uint64_t, DType, uint32_t, uint32_t, uint32_t>, uint64_t> written;
    for (Layout::Entry& e : layout.entries) {
        const TensorSource& t = *e.tensor;
        if (t.identity) {
            const auto found = written.emplace(std::make_tuple(t.identity, e.type, t.rows, t.cols, t.count), at);
            e.has_data = found.second;
            e.offset = found.first->second;
            if (!e.has_data) continue;
        }
        e.offset = at;
        const uint64_t size = mul_sat(t.count, transformer::matrix_bytes(e.type, t.rows, t.cols));
        if (size > (uint64_t{1} << 62) - at) throw Error(tensor_name(t) + ": is too large for a file");
        at = round_up(at + size, data_alignment);
    }
    layout.size = at;
    return layout;
}

inline uint64_t checkpoint_size(const Source& source, const WriteOptions& options)
{
    return lay_out(source, options).size;
}

// ---- Writing --------------------------------------------------------------------------------------------------------

using Sink = std::function<void(const unsigned char* bytes, size_t n)>;

// Rows of a plain type as they are stored.
inline void encode_rows(DType type, const float* values, size_t n, unsigned char* out)
{
    switch (type) {
    case DType::f32:
        for (size_t i = 0; i < n; i++) store_f32(out + 4 * i, values[i]);
        break;
    case DType::f16:
        for (size_t i = 0; i < n; i++) store_u16(out + 2 * i, transformer::f32_to_f16(values[i]));
        break;
    case DType::bf16:
        for (size_t i = 0; i < n; i++) store_u16(out + 2 * i, transformer::f32_to_bf16(values[i]));
        break;
    default:
        for (size_t i = 0; i < n; i++) {
            if (!(values[i] >= 0.0f && values[i] <= 255.0f))
                throw Error("a byte of a table is " + std::to_string(values[i]));
            out[i] = static_cast<unsigned char>(values[i]);
        }
    }
}

// Rows of one matrix that are read, converted and written together.
struct Piece {
    const Layout::Entry* entry;
    uint32_t matrix, first, rows;
    uint64_t offset, bytes;         // where they stand in the checkpoint
};
inline std::vector<Piece> cut_into_pieces(const Layout& layout)
{
    constexpr uint32_t tile_rows = 16, values = 1 << 18;       // so many that a piece costs little beside its work
    std::vector<Piece> pieces;
    for (const Layout::Entry& e : layout.entries) {
        const TensorSource& t = *e.tensor;
        const uint64_t each = transformer::matrix_bytes(e.type, t.rows, t.cols);
        const uint32_t most = tile_rows * std::max(1u, values / tile_rows / t.cols);
        for (uint32_t matrix = 0; e.has_data && matrix < t.count; matrix++)
            for (uint64_t first = 0; first < t.rows; first += most) {
                const uint32_t at = static_cast<uint32_t>(first), n = std::min(most, t.rows - at);
                pieces.push_back({&e, matrix, at, n,
                                  e.offset + matrix * each + transformer::matrix_bytes(e.type, at, t.cols),
                                  transformer::matrix_bytes(e.type, n, t.cols)});
            }
    }
    return pieces;
}
inline void convert(const Piece& piece, std::vector<float>& values, unsigned char* out)
{
    const TensorSource& t = *piece.entry->tensor;
    const DType type = piece.entry->type;
    const bool tiles = transformer::is_quantised(type);
    const size_t tile_bytes = tiles ? static_cast<size_t>(transformer::matrix_bytes(type, 16, t.cols)) : 0;
    if (tiles && type == t.stored && t.read_tile) {
        for (uint32_t r = 0; r < piece.rows; r += 16, out += tile_bytes)
            t.read_tile(piece.matrix, (piece.first + r) / 16, out);
        return;
    }
    values.resize(size_t{piece.rows} * t.cols);
    t.read(piece.matrix, piece.first, piece.rows, values.data());
    if (!tiles) return encode_rows(type, values.data(), values.size(), out);
    for (uint32_t r = 0; r < piece.rows; r += 16, out += tile_bytes)
        transformer::quantize_tile(type, &values[size_t{r} * t.cols], std::min(16u, piece.rows - r), t.cols, out);
}

// Threads take pieces in turn and convert them side by side. done() hears of them in their order, one at a time.
class Conversion {
public:
    using Done = std::function<void(const Piece& piece, const unsigned char* bytes)>;

    // memory: where the checkpoint lies; null: each thread has room for a piece.
    Conversion(const Layout& layout, unsigned char* memory, Done done)
        : pieces_(cut_into_pieces(layout)), memory_(memory), done_(std::move(done))
    {
        for (const Piece& p : pieces_) {
            const TensorSource& t = *p.entry->tensor;
            if (std::max(p.bytes, uint64_t{4} * p.rows * t.cols) > std::numeric_limits<size_t>::max() / 2)
                throw Error(tensor_name(t) + ": its rows are too long for this platform");
        }
    }
    void run(uint32_t n_threads)
    {
        std::vector<std::thread> others;
        try {
            while (others.size() + 1 < std::min<size_t>(n_threads, pieces_.size()))
                others.emplace_back([this] { work(); });
        } catch (const std::system_error&) {                   // no more threads: it takes longer
        }
        work();
        for (std::thread& t : others) t.join();
        if (error_) std::rethrow_exception(error_);
    }

private:
    void work()
    {
        std::vector<float> values;
        std::vector<unsigned char> own;
        try {
            for (size_t i; (i = taken_++) < pieces_.size();) {
                const Piece& piece = pieces_[i];
                if (!memory_) own.resize(static_cast<size_t>(piece.bytes));
                unsigned char* const out = memory_ ? memory_ + piece.offset : own.data();
                convert(piece, values, out);
                std::unique_lock<std::mutex> lock(mutex_);
                turn_.wait(lock, [&] { return finished_ == i || error_; });
                if (error_) return;
                lock.unlock();                                 // nobody else's turn comes before finished_ moves
                done_(piece, out);
                lock.lock();
                finished_++;
                turn_.notify_all();
            }
        } catch (...) {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (!error_) error_ = std::current_exception();
            turn_.notify_all();
        }
    }

    const std::vector<Piece> pieces_;
    unsigned char* const memory_;
    const Done done_;
    std::atomic<size_t> taken_{0};
    size_t finished_ = 0;
    std::exception_ptr error_;
    std::mutex mutex_;              // of finished_ and error_
    std::condition_variable turn_;
};

// All of the checkpoint, front to back, goes to the sink; what is converted into `memory` stands there already.
inline void write_checkpoint(const Source& source, const WriteOptions& options, const Layout& layout,
                             unsigned char* memory, const Sink& sink)
{
    uint64_t at = 0;
    const auto put = [&](const unsigned char* bytes, uint64_t n) {
        sink(bytes, static_cast<size_t>(n));
        at += n;
        if (options.progress) options.progress(at, layout.size);
    };
    const auto pad_to = [&](uint64_t target) {
        static const unsigned char zeros[data_alignment] = {};
        if (target > at) put(zeros, target - at);              // never more than 63
    };

    const uint64_t head_bytes = header_bytes + 2 * config_bytes + entry_bytes * layout.entries.size();
    std::vector<unsigned char> head(static_cast<size_t>(head_bytes));
    std::memcpy(head.data(), "TRNSFRMR", 8);
    store_u32(&head[8], TRANSFORMER_FORMAT_VERSION);
    store_u32(&head[12], static_cast<uint32_t>(layout.entries.size()));
    store_u64(&head[16], layout.size);
    store_u64(&head[24], layout.vocabulary_at);
    store_u64(&head[32], layout.vocabulary.size());
    store_u32(&head[40], 2);
    for (size_t stack = 0; stack < 2; stack++) {
        uint32_t words[config_bytes / 4];                      // Config is 64 words in the host's byte order
        std::memcpy(words, stack ? &source.encoder : &source.main, config_bytes);
        unsigned char* record = head.data() + header_bytes + stack * config_bytes;
        for (const uint32_t word : words) {
            store_u32(record, word);
            record += 4;
        }
    }
    unsigned char* p = head.data() + header_bytes + 2 * config_bytes;
    for (const Layout::Entry& e : layout.entries) {
        p[0] = e.tensor->role;
        p[1] = static_cast<unsigned char>(e.type);
        p[2] = static_cast<unsigned char>(e.tensor->stack);
        store_u16(p + 4, static_cast<uint16_t>(e.tensor->layer));
        store_u32(p + 8, e.tensor->rows);
        store_u32(p + 12, e.tensor->cols);
        store_u32(p + 16, e.tensor->count);
        store_u64(p + 24, e.offset);
        p += entry_bytes;
    }
    put(head.data(), head.size());
    pad_to(layout.vocabulary_at);
    if (!layout.vocabulary.empty())
        put(reinterpret_cast<const unsigned char*>(layout.vocabulary.data()), layout.vocabulary.size());
    Conversion conversion(layout, memory, [&](const Piece& piece, const unsigned char* bytes) {
        pad_to(piece.offset);
        put(bytes, piece.bytes);
    });
    // A small model is written before threads have begun.
    const uint32_t threads = layout.size < 1 << 22 ? 1 : std::thread::hardware_concurrency();
    conversion.run(options.threads ? options.threads : std::max(1u, threads));
    pad_to(layout.size);
}

inline AlignedBytes write_to_memory(const Source& source, const WriteOptions& options)
{
    const Layout layout = lay_out(source, options);
    AlignedBytes out(layout.size);
    uint64_t at = 0;
    write_checkpoint(source, options, layout, out.data, [&](const unsigned char* bytes, size_t n) {
        if (bytes != out.data + at) std::memcpy(out.data + at, bytes, n);
        at += n;
    });
    return out;
}

// A file that has its name only once it is complete: written beside it, then renamed over what was there.
class NewFile {
public:
    explicit NewFile(const std::string& path) : path_(path), target_(path)
    {
        namespace fs = std::filesystem;
        std::error_code error;
        for (int links = 0; fs::is_symlink(target_, error); links++) {                 // replaced is what it points to
            if (links == 40) throw Error(path + ": is a circle of links");
            const fs::path next = fs::read_symlink(target_, error);
            target_ = next.is_absolute() ? next : target_.parent_path() / next;
        }
        const auto status = fs::status(target_, error);
        if (path.empty() || target_.filename().empty()) throw Error("\"" + path + "\" names no file to write to");
        if (fs::is_directory(status)) throw Error(path + ": is a folder; name a file in it");
        if (fs::exists(status) && !fs::is_regular_file(status))
            throw Error(path + ": is a pipe or device; name a file");
        std::random_device random;
        std::string name = target_.filename().string();
        if (name.size() > 200) name.resize(200);               // file systems take 255 bytes
        do temporary_ = target_.parent_path() / (name + ".part-" + std::to_string(random()));
        while (fs::exists(temporary_, error));
        stream_ = std::fopen(temporary_.string().c_str(), "wb");
        if (!stream_) fail();
        if (fs::exists(status)) fs::permissions(temporary_, status.permissions(), error);
        std::setvbuf(stream_, buffer_.data(), _IOFBF, buffer_.size());
    }
    NewFile(const NewFile&) = delete;
    NewFile& operator=(const NewFile&) = delete;
    ~NewFile() { discard(); }

    void write(const unsigned char* bytes, size_t n)
    {
        if (std::fwrite(bytes, 1, n, stream_) != n) fail();
    }
    void commit()
    {
        if (std::fflush(stream_) != 0) fail();
#ifdef TRANSFORMER_HAS_MMAP
        // Some file systems find out that they are full only here; and a name must not outlive its bytes in a power
        // cut. Not every one can do it: EINVAL says no more than that.
        if (::fsync(::fileno(stream_)) != 0 && errno != EINVAL) fail();
#endif
        FILE* stream = std::exchange(stream_, nullptr);
        if (std::fclose(stream) != 0) fail();
        std::error_code error;
        std::filesystem::rename(temporary_, target_, error);
        if (error) fail(error.value());
        temporary_.clear();
    }

private:
    [[noreturn]] void fail() { fail(errno); }
    [[noreturn]] void fail(int code)
    {
        discard();
        throw file_error(path_, "cannot be written", code);
    }
    void discard()
    {
        if (stream_) std::fclose(std::exchange(stream_, nullptr));
        std::error_code error;
        if (!temporary_.empty()) std::filesystem::remove(temporary_, error);
        temporary_.clear();
    }
    std::string path_;
    std::filesystem::path target_, temporary_;
    // What Linux is given two megabytes at a time it keeps in large pages: one core decodes a tenth faster from them.
    std::vector<char> buffer_ = std::vector<char>(size_t{2} << 20);
    FILE* stream_ = nullptr;
};

inline void write_to_file(const Source& source, const WriteOptions& options, const std::string& path)
{
    const Layout layout = lay_out(source, options);
    NewFile file(path);
    write_checkpoint(source, options, layout, nullptr,
                     [&](const unsigned char* bytes, size_t n) { file.write(bytes, n); });
    file.commit();
}

}  // namespace weights
#endif
