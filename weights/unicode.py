#!/usr/bin/env python3
"""Writes unicode.hpp: what the tokenizer readers need of the Unicode character database.

    python weights/unicode.py [PATH_OF_unicodedata2] > weights/unicode.hpp

The tables are of Unicode 16, which Hugging Face tokenizers and tiktoken have: where Python's own unicodedata is of another
version, `pip install unicodedata2==16.0.0` brings the right one.
"""

import sys

if len(sys.argv) > 1:
    sys.path.insert(0, sys.argv[1])
try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata
assert unicodedata.unidata_version == "16.0.0", unicodedata.unidata_version

CATEGORIES = "Cn Cc Cf Cs Co Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp".split()
ALL = range(0x110000)


def ranges(value, shift):
    """Words first << shift | value, one where the value changes."""
    out, last = [], None
    for c in ALL:
        v = value(chr(c))
        if v != last:
            out.append(c << shift | v)
            last = v
    return out


def decompositions():
    """Words code << 8 | length << 2 | compatibility << 1 | (recomposes), then the code points, one step only."""
    out, skipped = [], inside(NOT_DECOMPOSED)
    for c in ALL:
        text = unicodedata.decomposition(chr(c))
        if not text or c in skipped or 0xAC00 <= c < 0xD7A4:
            continue
        parts = text.split()
        compatible = parts[0][0] == "<"
        points = [int(p, 16) for p in parts[compatible:]]
        again = (
            not compatible
            and len(points) == 2
            and unicodedata.normalize("NFC", unicodedata.normalize("NFD", chr(c))) == chr(c)
        )
        out += [c << 8 | len(points) << 2 | compatible << 1 | again] + points
    return out


def lower():
    """Runs (first, last, stride, difference) of characters with one lower-case character; U+0130, the only one with two, is apart."""
    out = []
    for c in ALL:
        low = lower_of(c)
        if low == c:
            continue
        if out and out[-1][3] == low - c:
            first, last, stride, _ = out[-1]
            if c - last == stride or (first == last and c - last <= 2):
                out[-1][1:3] = [c, c - last]
                continue
        out.append([c, c, 1, low - c])
    return [x & 0xFFFFFFFF for run in out for x in run]


def lower_of(c):
    # The only part that comes from Python itself; checked below against the database's version.
    low = chr(c).lower()
    if c in NEWER_LOWER:
        return NEWER_LOWER[c]
    return ord(low) if len(low) == 1 else c


# Upper-case letters that Unicode 15 to 17 brought, for Pythons that do not know them.
NEWER_LOWER = {
    0x1C89: 0x1C8A,
    0xA7CB: 0x264,
    0xA7CC: 0xA7CD,
    0xA7DA: 0xA7DB,
    0xA7DC: 0x19B,
    **{c: c + 0x20 for c in range(0x10D50, 0x10D66)},
    0xA7CE: 0xA7CF,
    0xA7D2: 0xA7D3,
    0xA7D4: 0xA7D5,
    **{c: c + 0x1B for c in range(0x16EA0, 0x16EB9)},
}


# Hugging Face's tokenizers have the tables of Unicode 16 for their patterns, but older ones for BERT's cleaning (8) and for NFC and
# the like (9): punctuation, format characters and marks that came later, as measured with tokenizers 0.22.
AFTER_8 = """61d 7fd 890-891 897-89f 8ca-8e2 9fd-9fe a76 afa-aff b55 c04 c3c c77 c84 d00 d3b-d3c d81 eba
ece 180f 1885-1886 1abf-1ace 1b4e-1b4f 1b7d-1b7f 1df6-1dfb 2e43-2e4f 2e52-2e5d a82c a8c5
a8ff a9bd 10d24-10d27 10d69-10d6e 10eab-10ead 10efc-10eff 10f46-10f50 10f55-10f59
10f82-10f89 11070 11073-11074 110c2 110cd 111c9 111cf 1123e 11241 1133b 113bb-113c0 113ce
113d0 113d2 113d4-113d5 113d7-113d8 113e1-113e2 11438-1143f 11442-11444 11446 1144b-1144f
1145a-1145b 1145d-1145e 11660-1166c 116b9 1182f-11837 11839-1183b 1193b-1193c 1193e
11943-11946 119d4-119d7 119da-119db 119e0 119e2 11a01-11a0a 11a33-11a38 11a3b-11a47
11a51-11a56 11a59-11a5b 11a8a-11a96 11a98-11a9c 11a9e-11aa2 11b00-11b09 11be1 11c30-11c36
11c38-11c3d 11c3f 11c41-11c45 11c70-11c71 11c92-11ca7 11caa-11cb0 11cb2-11cb3 11cb5-11cb6
11d31-11d36 11d3a 11d3c-11d3d 11d3f-11d45 11d47 11d90-11d91 11d95 11d97 11ef3-11ef4
11ef7-11ef8 11f00-11f01 11f36-11f3a 11f40 11f42-11f4f 11f5a 11fff 12ff1-12ff2 13430-13440
13447-13455 1611e-16129 1612d-1612f 16d6d-16d6f 16e97-16e9a 16f4f 16fe2 16fe4 1cf00-1cf2d
1cf30-1cf46 1e000-1e006 1e008-1e018 1e01b-1e021 1e023-1e024 1e026-1e02a 1e08f 1e130-1e136
1e2ae 1e2ec-1e2ef 1e4ec-1e4ef 1e5ee-1e5ef 1e5ff 1e944-1e94a 1e95e-1e95f"""
AFTER_9 = """7fd 897-89f 8ca-8d3 9fe afa-aff b55 c04 c3c cf3 d00 d3b-d3c d81 eba ece 1715 180f 1abf-1ace
1cf7 1df6-1dfa a82c a8ff 10d24-10d27 10d69-10d6d 10eab-10eac 10efc-10eff 10f46-10f50
10f82-10f85 11070 11073-11074 110c2 11145-11146 111c9 111ce-111cf 11241 1133b 113b8-113c0
113c2 113c5 113c7-113ca 113cc-113d0 113d2 113e1-113e2 1145e 1182c-1183a 11930-11935
11937-11938 1193b-1193e 11940 11942-11943 119d1-119d7 119da-119e0 119e4 11a01-11a0a
11a33-11a39 11a3b-11a3e 11a47 11a51-11a5b 11a8a-11a99 11d31-11d36 11d3a 11d3c-11d3d
11d3f-11d45 11d47 11d8a-11d8e 11d90-11d91 11d93-11d97 11ef3-11ef6 11f00-11f01 11f03
11f34-11f3a 11f3e-11f42 11f5a 13440 13447-13455 1611e-1612f 16f4f 16f7f-16f87 16fe4
16ff0-16ff1 1cf00-1cf2d 1cf30-1cf46 1e08f 1e130-1e136 1e2ae 1e2ec-1e2ef 1e4ec-1e4ef
1e5ee-1e5ef"""
NOT_DECOMPOSED = """105c9 105e4 11383 11385 1138e 11391 113c5 113c7-113c8 11938 16121-16128 16d68-16d6a 32ff
a7f2-a7f4 ab69 10781-10785 10787-107b0 107b2-107ba 1ccd6-1ccf9 1e030-1e06d 1f16c 1fbf0-1fbf9"""


def points(text):
    out = []
    for part in text.split():
        first, _, last = part.partition("-")
        out.append((int(first, 16), int(last or first, 16)))
    return out


def inside(text):
    return {c for first, last in points(text) for c in range(first, last + 1)}


def table(name, words, comment):
    print(f"\n// {comment}\nconstexpr uint32_t {name}[] = {{")
    line = "   "
    for w in words:
        word = f" {w},"
        if len(line) + len(word) > 98:
            print(line)
            line = "   "
        line += word
    print(line + "\n};")


print(
    f"""// weights/unicode.hpp - the Unicode character database, as far as tokenizers need it; written by unicode.py, not by hand
#ifndef TRANSFORMER_WEIGHTS_UNICODE_HPP
#define TRANSFORMER_WEIGHTS_UNICODE_HPP

#include <cstdint>

namespace weights {{

constexpr char unicode_version[] = "{unicodedata.unidata_version}";
constexpr char unicode_categories[] = "{' '.join(CATEGORIES)}";"""
)
table(
    "unicode_category",
    ranges(lambda c: CATEGORIES.index(unicodedata.category(c)), 5),
    "first << 5 | index into the names above: holds up to the next entry's first",
)
later = inside(AFTER_9)
table(
    "unicode_combining",
    ranges(lambda c: 0 if ord(c) in later else unicodedata.combining(c), 8),
    "first << 8 | canonical combining class: holds up to the next entry's first",
)
table(
    "unicode_decomposition",
    decompositions(),
    "code << 8 | n << 2 | is compatibility << 1 | is composed again, then the n code points; Hangul is left out",
)
table("unicode_lower", lower(), "first, last, stride, difference (modulo 2^32)")
table(
    "unicode_after_8",
    [x for pair in points(AFTER_8) for x in pair],
    "first, last: what BERT's cleaning takes for unassigned",
)
table(
    "unicode_after_9",
    [x for pair in points(AFTER_9) for x in pair],
    "first, last: the same for stripping accents",
)
print("\n}  // namespace weights\n#endif")
