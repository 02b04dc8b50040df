"""Writes tests/data: what numpy and SentencePiece say about the small models and vocabularies of the tests.

usage: python tests/make_data.py        needs numpy and sentencepiece, writes the headers beside this file

The models have the same weights as tests/helpers.hpp gives them (integers from a counter, so exact); the formulas are written
here once more, in float64 and independently of the C++ code.
"""
import math
import os
import random
import tempfile

import numpy as np
import sentencepiece

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


# ---- The same numbers as tests/helpers.hpp ---------------------------------------------------------------------------


def scramble(x):
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def unit(seed, n):
    return np.array([((scramble((seed + i * GOLDEN) & MASK) >> 40) - (1 << 23)) / 8388608 for i in range(n)])


def random_tokens(n, vocab, seed=7):
    return [(scramble((seed + i * GOLDEN) & MASK) >> 32) * vocab >> 32 for i in range(n)]


class Weights:
    def __init__(self, seed):
        self.seed = seed

    def __call__(self, layer, role, *shape, kind="matrix"):
        """One tensor; kind: matrix, norm, bias, embedding."""
        name = "0/%d/%s%s" % (layer, role, "/b" if kind == "bias" else "")
        u = unit(scramble((fnv1a(name.encode()) + self.seed) & MASK), math.prod(shape))
        scale, n = 2.0, shape[-1]
        while n > 1:
            scale, n = scale / 2, n // 4
        values = {"matrix": u * scale, "norm": 1 + u / 4, "bias": u / 4, "embedding": u}[kind]
        return values.astype(np.float32).astype(np.float64).reshape(shape)


# ---- Models ----------------------------------------------------------------------------------------------------------


def rms(x, w, eps=1e-5):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def layer_norm(x, w, b, eps=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * w + b


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def rotate(x, frequencies):
    """x (T, heads, d): pairs (i, i + d/2) turn by position * frequency."""
    half = len(frequencies)
    angle = np.arange(len(x))[:, None, None] * frequencies
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def attend(q, k, v):
    """q (T, H, d), k and v (T, K, d), causal -> (T, H d)."""
    t, heads, d = q.shape
    k, v = (np.repeat(a, heads // a.shape[1], 1) for a in (k, v))
    s = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(d)
    s = np.where(np.tril(np.ones((t, t), bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", p, v).reshape(t, -1)


def llama(w, ids, dim=16, hidden=40, layers=2, heads=4, kv=2, d=4, vocab=64, theta=1e4, frequencies=None, qk=None, experts=None,
          renormalise=False):
    if frequencies is None:
        frequencies = theta ** (-np.arange(d // 2) * 2.0 / d)
    x = w(0, "token_embedding", vocab, dim, kind="embedding")[ids]
    t = len(ids)
    for l in range(1, layers + 1):
        h = rms(x, w(l, "attn_norm_pre", dim, kind="norm"))
        q, k, v = h @ w(l, "wq", heads * d, dim).T, h @ w(l, "wk", kv * d, dim).T, h @ w(l, "wv", kv * d, dim).T
        if qk == "full":
            q, k = rms(q, w(l, "q_norm", heads * d, kind="norm")), rms(k, w(l, "k_norm", kv * d, kind="norm"))
        q, k, v = q.reshape(t, heads, d), k.reshape(t, kv, d), v.reshape(t, kv, d)
        if qk == "head":
            q, k = rms(q, w(l, "q_norm", d, kind="norm")), rms(k, w(l, "k_norm", d, kind="norm"))
        x = x + attend(rotate(q, frequencies), rotate(k, frequencies), v) @ w(l, "wo", dim, heads * d).T
        h = rms(x, w(l, "ffn_norm_pre", dim, kind="norm"))
        n = experts or 1
        gate, up, down = w(l, "gate", n, hidden, dim), w(l, "up", n, hidden, dim), w(l, "down", n, dim, hidden)
        out = [silu(h @ gate[e].T) * (h @ up[e].T) @ down[e].T for e in range(n)]
        if experts:
            score = np.exp(h @ w(l, "router", experts, dim).T)
            score /= score.sum(-1, keepdims=True)
            y = np.zeros_like(x)
            for i in range(t):
                best = np.argsort(-score[i])[:2]
                total = score[i][best].sum() if renormalise else 1
                for e in best:
                    y[i] += score[i][e] / total * out[e][i]
            x = x + y
        else:
            x = x + out[0]
    return rms(x, w(0, "final_norm", dim, kind="norm")) @ w(0, "lm_head", vocab, dim).T


def gpt2(w, ids, dim=16, hidden=64, layers=2, heads=4, vocab=50, positions=16):
    def linear(x, l, role, rows, cols):
        return x @ w(l, role, rows, cols).T + w(l, role, rows, kind="bias")

    def norm(x, l, role):
        return layer_norm(x, w(l, role, dim, kind="norm"), w(l, role, dim, kind="bias"))

    d, t = dim // heads, len(ids)
    embedding = w(0, "token_embedding", vocab, dim, kind="embedding")
    x = embedding[ids] + w(0, "position_embedding", positions, dim, kind="embedding")[:t]
    for l in range(1, layers + 1):
        h = norm(x, l, "attn_norm_pre")
        q, k, v = (linear(h, l, role, dim, dim).reshape(t, heads, d) for role in ("wq", "wk", "wv"))
        x = x + linear(attend(q, k, v), l, "wo", dim, dim)
        h = norm(x, l, "ffn_norm_pre")
        x = x + linear(gelu_tanh(linear(h, l, "up", hidden, dim)), l, "down", dim, hidden)
    return norm(x, 0, "final_norm") @ embedding.T                 # no matrix of its own: the embedding


def llama3_frequencies(d, theta, factor, low, high, original):
    """Frequencies of long waves divided by the factor, of short ones kept, blended between."""
    f = theta ** (-np.arange(d // 2) * 2.0 / d)
    wave = 2 * math.pi / f
    smooth = (original / wave - low) / (high - low)
    blended = (1 - smooth) * f / factor + smooth * f
    return np.where(wave > original / low, f / factor, np.where(wave < original / high, f, blended)).astype(np.float32)


# ---- The sampler -----------------------------------------------------------------------------------------------------


def draws(seed, logits, temperature, top_k, top_p, n):
    """n draws by the definition in transformer.hpp; every one must stand clear of the borders between tokens."""
    w = [math.exp((x - max(logits)) / temperature) for x in logits]
    order = sorted(range(len(w)), key=lambda i: (-w[i], i))
    if top_k:
        order = order[:top_k]
    kept, mass, total = [], 0.0, sum(w[i] for i in order)
    for i in order:
        if mass >= top_p * total and kept:
            break
        assert not kept or abs(mass - top_p * total) > 1e-4
        kept.append(i)
        mass += w[i]
    state, out = seed, []
    for _ in range(n):
        state ^= state >> 12
        state = (state ^ state << 25) & MASK
        state ^= state >> 27
        r = ((state * 0x2545F4914F6CDD1D) & MASK) >> 32
        left = r / 2**32 * mass
        for i in sorted(kept):
            if left < w[i]:
                assert min(left, w[i] - left) > 1e-6
                out.append(i)
                break
            left -= w[i]
    return out


# ---- SentencePiece ---------------------------------------------------------------------------------------------------


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, value):
    """One field of a protocol buffer."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + np.float32(value).tobytes()
    return varint(number << 3) + varint(value)


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def model_proto(pieces, byte_fallback, dummy_prefix):
    """The bytes of a BPE model: pieces are (text, score, type)."""
    out = b"".join(field(1, field(1, t.encode()) + field(2, float(s)) + field(3, k)) for t, s, k in pieces)
    trainer = field(3, 2) + field(35, int(byte_fallback))
    normalizer = field(1, b"identity") + field(3, int(dummy_prefix)) + field(4, 0) + field(5, 1)
    return out + field(2, trainer) + field(3, normalizer)


def hand_made(dummy_prefix=True, byte_fallback=True):
    """Unknown, BOS, EOS, the 256 bytes, and 41 pieces that spell a few words with and without a space before them."""
    pieces = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    if byte_fallback:
        pieces += [("<0x%02X>" % b, 0.0, BYTE) for b in range(256)]
    words = ["Th", "is", "This", "\u2581Th", "\u2581This", "\u2581is", "pp", "cpp", "\u2581\u2581", "he", "ll", "hell", "hello", "\u2581hello"]
    letters = list("\u2581Thisceplox.X<>0/4")
    rest = ["aa", "a", "b", "ab", "\u2581a", "\u00f6", "\u043f", "\u0440", "\u043f\u0440"]
    for i, text in enumerate(words + letters + rest):
        pieces.append((text, -float(i), NORMAL))
    return pieces


CORPUS_NAMES = ["Lily", "Tom", "Anna", "Ben", "J\u00f6rg", "\u0410\u043d\u044f", "Zo\u00eb", "Mr. Fox"]
CORPUS_THINGS = ["a big red ball", "the old dog", "12 small stones", "an apple", "x = 2 * y;", "\u043a\u043d\u0438\u0433\u0443", "\u4f60\u597d"]
CORPUS_WORDS = ["saw", "found", "liked", "did not want", "looked for", "gave away", "\u0432\u0438\u0434\u0435\u043b\u0430"]


def corpus():
    choose = random.Random(1)
    for i in range(400):
        yield "%s %s %s.%s" % (choose.choice(CORPUS_NAMES), choose.choice(CORPUS_WORDS), choose.choice(CORPUS_THINGS),
                               choose.choice(["", "  Then it rained.", "\tSo what?", " \"Why?\" they said."]))


def trained():
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "m")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=corpus(), model_prefix=prefix, vocab_size=430, model_type="bpe", byte_fallback=True,
            character_coverage=0.999, normalization_rule_name="identity", remove_extra_whitespaces=False, num_threads=1,
            allow_whitespace_only_pieces=True, minloglevel=2)
        model = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
    kind = lambda i: (UNKNOWN if model.is_unknown(i) else CONTROL if model.is_control(i) else BYTE if model.is_byte(i) else
                      UNUSED if model.is_unused(i) else NORMAL)
    return [(model.id_to_piece(i), model.get_score(i), kind(i)) for i in range(model.get_piece_size())]


TEXTS = ["", " ", "  ", "    ", "\t", "\n", "a", " a", "a ", " a b ", "This is X.cpp", "This is \U0001f999.cpp", "\U0001f999", "This", "is This",
         "<0x40>", "<s>hi", "</s>", "<unk>", "\x7f", "\x01\x02", "hello hello  hello", "aaaaaaaaa", "ababab", "\u00f6", "o\u0308", "\u043f\u0440\u0438\u0432\u0435\u0442",
         "\u65e5\u672c\u8a9e", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2581", "a\u2581b", "Lily found 12 small stones.  Then it rained.",
         "J\u00f6rg gave away the old dog.\tSo what?", "\u0410\u043d\u044f \u0432\u0438\u0434\u0435\u043b\u0430 \u043a\u043d\u0438\u0433\u0443.\n\n\u4f60\u597d, Zo\u00eb!", "x = 2 * y;\r\n  return (x);",
         "\"Why?\" they said.", "word" * 40, "a\u00a0b", "\ufeffa", "\U00010348", "\u0301"]


def texts():
    choose = random.Random(2)
    letters = "  This cpplxo.X<>04/ab\u00f6\u043f\u0440ehl\n\t\u65e5\U0001f999"
    return TEXTS + ["".join(choose.choice(letters) for _ in range(choose.randrange(1, 60))) for _ in range(40)]


# ---- C++ -------------------------------------------------------------------------------------------------------------


def literal(data):
    """Bytes as C++ string literals, a line of at most 100 columns each."""
    lines, line = [], ""
    for byte in data:
        part = chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else "\\%03o" % byte
        if len(line) + len(part) > 96:
            lines.append(line)
            line = ""
        line += part
    return "\n".join('    "%s"' % l for l in lines + [line])


def numbers(values, form):
    line, lines = "   ", []
    for v in values:
        part = " " + form(v) + ","
        if len(line) + len(part) > 116:
            lines.append(line)
            line = "   "
        line += part
    return "\n".join(lines + [line])


def array(kind, name, values, form=str):
    return "static const %s %s[] = {\n%s\n};\n" % (kind, name, numbers(values, form))


def float_literal(v):
    text = "%.9g" % np.float32(v)
    return text + ("f" if "." in text or "e" in text else ".0f")


def write(name, guard, about, body):
    with open(os.path.join(HERE, name), "w", encoding="ascii") as f:
        f.write("// Made by tests/make_data.py: %s\n#ifndef %s\n#define %s\n\n%s\n#endif\n" % (about, guard, guard, body))


def write_logits():
    frequencies = llama3_frequencies(4, 1e4, 8, 1, 4, 16)
    cases = {
        "llama": llama(Weights(1), random_tokens(16, 64)),
        "theta_million": llama(Weights(1), random_tokens(16, 64), theta=1e6),
        "head_dim_8": llama(Weights(2), random_tokens(16, 64), dim=20, hidden=24, heads=4, kv=2, d=8),
        "qk_norm_full": llama(Weights(3), random_tokens(16, 64), qk="full"),
        "qk_norm_head": llama(Weights(3), random_tokens(16, 64), qk="head"),
        "gpt2": gpt2(Weights(4), random_tokens(16, 50)),
        "rope_bands": llama(Weights(1), random_tokens(64, 64), frequencies=frequencies.astype(np.float64)),
        "experts": llama(Weights(5), random_tokens(16, 64), experts=4),
        "experts_renormalised": llama(Weights(5), random_tokens(16, 64), experts=4, renormalise=True),
    }
    body = "namespace numpy {\n\n"
    for name, logits in cases.items():
        t = len(logits)
        rows = [0, 1, t // 2, t - 1]
        body += "// logits after tokens 0, 1, %d and %d\n" % (t // 2, t - 1)
        body += array("float", name, np.concatenate([logits[r] for r in rows]), float_literal)
    body += "// theta 1e4, d 4, factor 8, low 1, high 4, trained for 16 positions\n"
    body += array("float", "rope_bands_frequencies", frequencies, float_literal)
    body += "// theta 5e5, d 64, factor 8, low 1, high 4, trained for 8192 positions\n"
    body += array("float", "llama3_frequencies", llama3_frequencies(64, 5e5, 8, 1, 4, 8192), float_literal)
    logits = [0.1 * i * (-1) ** i + 0.01 * i * i for i in range(20)]
    body += array("float", "sampler_logits", logits, float_literal)
    logits = [float(np.float32(x)) for x in logits]
    cases = {"draws_plain": (1, logits, 1.0, 0, 1.0), "draws_warm": (42, logits, 0.75, 0, 0.9), "draws_top_k": (7, logits, 1.5, 5, 0.8)}
    for name, arguments in cases.items():
        body += array("int32_t", name, draws(*arguments, 64))
    write("numpy_logits.hpp", "TRANSFORMER_TESTS_NUMPY_LOGITS_HPP", "what numpy computes for the small models of tests/test_model.cpp",
          "#include <cstdint>\n\n" + body + "\n}  // namespace numpy")


def write_sentencepiece():
    vocabularies = {
        "hand_made": (hand_made(), True, True),
        "no_prefix": (hand_made(), True, False),
        "no_bytes": (hand_made(byte_fallback=False), False, True),
        "trained": (trained(), True, True),
    }
    body = """namespace sentencepiece {

struct Vocabulary {
    const char* name;
    bool byte_fallback, dummy_prefix;
    uint32_t n_tokens;
    const char* text;                                          // of all tokens, one after the other
    const uint32_t* lengths;
    const unsigned char* types;                                // 1 normal, 2 unknown, 3 control, 4 user defined, 6 byte
    const float* scores;
    const int32_t* ids;                                        // of each text: how many, then the ids
};

"""
    samples = [t.encode() for t in texts()]
    body += "static const uint32_t n_texts = %d;\n" % len(samples)
    body += "static const char texts[] =\n%s;\n" % literal(b"".join(samples))
    body += array("uint32_t", "text_lengths", [len(t) for t in samples])
    table = ""
    for name, (pieces, byte_fallback, dummy_prefix) in vocabularies.items():
        model = sentencepiece.SentencePieceProcessor(model_proto=model_proto(pieces, byte_fallback, dummy_prefix))
        texts_of = [bytes([int(t[3:5], 16)]) if k == BYTE else t.replace("\u2581", " ").encode() for t, _, k in pieces]
        body += "\nstatic const char %s_text[] =\n%s;\n" % (name, literal(b"".join(texts_of)))
        body += array("uint32_t", name + "_lengths", [len(t) for t in texts_of])
        body += array("unsigned char", name + "_types", [k for _, _, k in pieces])
        body += array("float", name + "_scores", [s for _, s, _ in pieces], float_literal)
        ids = []
        for text in samples:
            encoded = model.encode(text.decode())
            ids += [len(encoded)] + encoded
        body += array("int32_t", name + "_ids", ids)
        table += "    {\"%s\", %s, %s, %d, %s_text, %s_lengths,\n     %s_types, %s_scores, %s_ids},\n" % (
            name, str(byte_fallback).lower(), str(dummy_prefix).lower(), len(pieces), name, name, name, name, name)
    body += "\nstatic const Vocabulary vocabularies[] = {\n%s};\n\n}  // namespace sentencepiece" % table
    write("sentencepiece.hpp", "TRANSFORMER_TESTS_SENTENCEPIECE_HPP", "ids that SentencePiece gives, for tests/test_text.cpp",
          "#include <cstdint>\n\n" + body)


if __name__ == "__main__":
    os.makedirs(HERE, exist_ok=True)
    write_logits()
    write_sentencepiece()
