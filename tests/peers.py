#!/usr/bin/env python3
"""Speed beside llama.cpp and llama2.c on this machine, as a table for the README: `make bench-peers`. And `make bench-check`:
the program that `make bench-base` kept against the one that stands here, which fails where it is over 5 % slower.

    LLAMA_CPP=dir    where llama-bench and llama-quantize stand (its build/bin)
    LLAMA2C=dir      llama2.c with `run` and `runq`, as its `make runomp` builds them
    MODEL=file.gguf  the model that is quantised and compared
    TEXT=file        what the divergence from f32 is measured on (with the package numpy); README.md if it is not given

What is not given is left out. Every figure is the median of interleaved runs, A B A B; the spread is the largest less the
smallest over the median. A line below its aim says so."""
import array, json, os, random, re, struct, subprocess, statistics, sys

RUN, OUT = "./run", "build/peers"
LLAMA, LLAMA2C, MODEL = (os.environ.get(n, "") for n in ("LLAMA_CPP", "LLAMA2C", "MODEL"))
TEXT = os.environ.get("TEXT", "README.md")
REPEAT = int(os.environ.get("REPEAT", "5"))
THREADS = [int(t) for t in os.environ.get("THREADS", "1 2").split()]
ONLY = os.environ.get("ONLY", "")


def output(*command, env=None):
    p = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
    return p.stdout + p.stderr


def ours(path, threads, prefill, decode, *more, run=RUN, repeat=1):
    text = output(run, "bench", path, "--threads", str(threads), "--json", "--repeat", str(repeat),
                  "--prefill", str(prefill or 2), "--decode", str(decode or 2), *more)
    if "{" not in text:
        sys.exit(text.strip())
    r = json.loads(text[text.index("{"):])
    return r["prefill_tokens_per_s"] if prefill else r["decode_tokens_per_s"]


def theirs(path, threads, prefill, decode, *more):
    text = output(f"{LLAMA}/llama-bench", "-m", path, "-t", str(threads), "-p", str(prefill), "-n", str(decode), "-r", "1",
                  "-o", "json", *more)
    return json.loads(text[text.index("["):text.rindex("]") + 1])[0]["avg_ts"]


def llama2c(program, path, threads, steps):
    text = output(f"{LLAMA2C}/{program}", path, "-t", "0", "-n", str(steps), "-z", f"{LLAMA2C}/tokenizer.bin",
                  env={"OMP_NUM_THREADS": str(threads)})
    return float(re.search(r"achieved tok/s: ([\d.]+)", text).group(1))


def pair(name, aim, a, b):
    """Two interleaved measurements and their ratio."""
    if ONLY and not re.search(ONLY, name):
        return
    x, y = [], []
    for _ in range(REPEAT):
        x.append(a())
        y.append(b())
    m, n = statistics.median(x), statistics.median(y)
    spread = lambda v, mid: f"{100 * (max(v) - min(v)) / mid:.0f} %"
    print(f"| {name} | {m:,.0f} | {spread(x, m)} | {n:,.0f} | {spread(y, n)} | {m / n:.2f} | {aim:.1f} |"
          + ("" if m / n >= aim else " below |"), flush=True)


def quantised(kind):
    """The model as `kind`, made by llama-quantize."""
    path = f"{OUT}/{os.path.basename(MODEL)}.{kind}.gguf"
    if not os.path.exists(path):
        output(f"{LLAMA}/llama-quantize", "--allow-requantize", MODEL, path, kind, "2")
    return path


def imported(path, *more):
    out = f"{OUT}/{os.path.basename(path)}{''.join(more)}.bin"
    if not os.path.exists(out):
        print(output(RUN, "import", path, out, *more).strip().split("\n")[-1], file=sys.stderr)
    return out


def shape(name, dim, hidden, layers, heads, vocab, length):
    """Random weights of a llama2.c model: v0 in f32, and where the sizes allow it v2 in 8 bits for runq and, when the package
    `gguf` is there, a GGUF."""
    rng = random.Random(1)
    block = array.array("f", [rng.gauss(0, 0.03) for _ in range(65536)])
    bytes_q = bytes(rng.randrange(256) for _ in range(65536))
    floats = lambda n: (block * (n // 65536 + 1))[:n].tobytes()
    head = struct.pack("<7i", dim, hidden, layers, heads, heads, vocab, length)
    v0, v2, gguf_path = (f"{OUT}/{name}.{e}" for e in ("v0.bin", "v2.bin", "gguf"))
    matrices = [layers * dim * dim] * 4 + [layers * dim * hidden] * 3
    norm = lambda n: array.array("f", [1.0] * n).tobytes()
    if not os.path.exists(v0):
        with open(v0, "wb") as f:
            f.write(head + floats(vocab * dim) + norm(layers * dim))
            for n in matrices[:4]:
                f.write(floats(n))
            f.write(norm(layers * dim))
            for n in matrices[4:]:
                f.write(floats(n))
            f.write(norm(dim) + floats(2 * length * dim // heads // 2))
    if hidden % 32:
        return v0, "", ""
    if not os.path.exists(v2):
        with open(v2, "wb") as f:
            f.write((struct.pack("<Ii", 0x616b3432, 2) + head + struct.pack("<Bi", 1, 32)).ljust(256, b"\0"))
            f.write(norm((2 * layers + 1) * dim))
            sizes = [vocab * dim] + [n // layers for n in matrices for _ in range(layers)]
            for n in sizes:
                f.write((bytes_q * (n // 65536 + 1))[:n] + array.array("f", [0.0003] * (n // 32)).tobytes())
    try:
        import gguf, numpy as np
        if not os.path.exists(gguf_path):
            w = gguf.GGUFWriter(gguf_path, "llama")
            w.add_context_length(length), w.add_embedding_length(dim), w.add_block_count(layers)
            w.add_feed_forward_length(hidden), w.add_head_count(heads), w.add_head_count_kv(heads)
            w.add_layer_norm_rms_eps(1e-5), w.add_rope_dimension_count(dim // heads), w.add_vocab_size(vocab)
            tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + [f"t{i}" for i in range(vocab - 259)]
            w.add_tokenizer_model("llama"), w.add_token_list(tokens), w.add_token_scores([0.0] * vocab)
            w.add_token_types([2, 3, 3] + [6] * 256 + [1] * (vocab - 259))
            g = np.random.default_rng(1)
            q8 = lambda r, c: gguf.quants.quantize(g.normal(0, 0.03, (r, c)).astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
            add = lambda n, r, c: w.add_tensor(n, q8(r, c), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
            add("token_embd.weight", vocab, dim)
            for i in range(layers):
                for n, r, c in (("attn_q", dim, dim), ("attn_k", dim, dim), ("attn_v", dim, dim), ("attn_output", dim, dim),
                                ("ffn_gate", hidden, dim), ("ffn_up", hidden, dim), ("ffn_down", dim, hidden)):
                    add(f"blk.{i}.{n}.weight", r, c)
                for n in ("attn_norm", "ffn_norm"):
                    w.add_tensor(f"blk.{i}.{n}.weight", np.ones(dim, np.float32))
            w.add_tensor("output_norm.weight", np.ones(dim, np.float32))
            w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
    except ImportError:
        gguf_path = ""
    return v0, v2, gguf_path


def quality():
    """Mean divergence from the same weights in f32, and how often the likeliest token stays: what 8-bit activations, an f16
    cache and (but for MODEL itself) quantised weights cost, beside llama.cpp's on the same pieces of TEXT. As llama-perplexity
    does, the second half of each piece of 512 tokens counts."""
    try:
        import numpy as np
    except ImportError:
        return
    length, base, exact = 512, f"{OUT}/divergence.base", quantised("F32")
    ids = subprocess.run([RUN, "tokenize", MODEL, "--no-parse-special"], stdin=open(TEXT), capture_output=True).stdout.split()
    pieces = [b",".join(ids[i:i + length]) for i in range(0, len(ids) - length + 1, length)]

    def logarithms(path, piece, *more):
        raw = subprocess.run([RUN, "logits", path, "--ids", piece, "--all", *more], capture_output=True).stdout
        x = np.frombuffer(raw, "<f4").reshape(length, -1)[length // 2:-1].astype(np.float64)
        x = x - x.max(1, keepdims=True)
        return x - np.log(np.exp(x).sum(1, keepdims=True))

    kinds = {"Q8_0": quantised("Q8_0"), "Q4_0": quantised("Q4_0"), "as it is": MODEL}
    found = {kind: ([], []) for kind in kinds}
    for piece in pieces:
        a = logarithms(exact, piece, "--type", "f32", "--kv", "f32")
        for kind, path in kinds.items():
            b = logarithms(path, piece, "--kv", "f16")
            found[kind][0].extend((np.exp(a) * (a - b)).sum(1))
            found[kind][1].extend(a.argmax(1) == b.argmax(1))
    perplexity = (f"{LLAMA}/llama-perplexity", "-c", str(length), "--chunks", str(len(pieces)), "--kl-divergence-base", base)
    output(*perplexity, "-m", exact, "-f", TEXT, "-ctk", "f32", "-ctv", "f32")
    print(f"\n| divergence from f32, {TEXT}, {len(pieces) * (length // 2 - 1)} positions | ours: mean, same token | theirs |\n|---|--:|--:|")
    for kind, path in kinds.items():
        text = output(*perplexity, "-m", path, "--kl-divergence")
        mean, same = (re.search(p + r":? +([\d.]+)", text).group(1) for p in (r"Mean +KLD", "Same top p"))
        print(f"| {kind} | {np.mean(found[kind][0]):.2e}, {100 * np.mean(found[kind][1]):.1f} % | {float(mean):.2e}, {float(same):.1f} % |", flush=True)


def check(base):
    """At least seven pairs of the kept program and this one on MODEL, in turn first and last; what seems over 5 % slower is
    measured once more, three times as long, for a neighbour's work must not count. False where it is slower then, too."""
    slower = False
    model = MODEL or "weights/stories.bin"
    for t in THREADS:
        for what, prefill, decode in (("prefill 256", 256, 0), ("decode 128", 0, 128)):
            for repeat in (5, 15):
                old, new = [], []
                for i in range(max(REPEAT, 7)):
                    for run, rates in ((base, old), (RUN, new))[::1 if i % 2 else -1]:
                        rates.append(ours(model, t, prefill, decode, run=run, repeat=repeat))
                ratio = statistics.median(n / o for n, o in zip(new, old))
                bad = ratio < 0.95
                print(f"{model}, {what}, {t} thread{'s' if t > 1 else ''}: {statistics.median(old):,.0f} -> "
                      f"{statistics.median(new):,.0f} tokens/s, {ratio:.3f} of before by pairs"
                      + (": over 5 % slower" if bad else ""), flush=True)
                if not bad:
                    break
            slower = slower or bad
    return not slower


def main():
    if len(sys.argv) > 1:
        sys.exit(0 if check(sys.argv[1]) else 1)
    os.makedirs(OUT, exist_ok=True)
    print(output("build/bench", "--memory").strip())
    print("| tokens/s | ours | spread | theirs | spread | ratio | aim |\n|---|--:|--:|--:|--:|--:|--:|")
    for t in THREADS:
        if LLAMA and MODEL:
            base = os.path.basename(MODEL).replace(".gguf", "")
            cases = [("Q8_0", quantised("Q8_0"), 2.5, 1.6), ("Q4_0", quantised("Q4_0"), 2.0, 1.5),
                     ("as it is", MODEL, 2.0, 1.5), ("Q4_K_M", quantised("Q4_K_M"), 2.0, 1.5), ("F16", quantised("F16"), 1.0, 1.2)]
            for kind, path, prefill, decode in cases:
                mine = imported(path)
                pair(f"{base} {kind}, prefill 512, {t} threads", prefill, lambda: ours(mine, t, 512, 0), lambda: theirs(path, t, 512, 0))
                pair(f"{base} {kind}, decode 128, {t} threads", decode, lambda: ours(mine, t, 0, 128), lambda: theirs(path, t, 0, 128))
                if kind == "Q8_0":
                    pair(f"{base} {kind}, decode 32 after 4,096, {t} threads", 1,
                         lambda: ours(mine, t, 0, 32, "--depth", "4096", "--ctx-size", "4160"),
                         lambda: theirs(path, t, 0, 32, "-d", "4096", "-fa", "1"))
        v0 = shape("stories260K", 64, 172, 5, 8, 512, 512)[0]
        for kind in ("f32", "q8_0") if LLAMA2C else ():
            mine = imported(v0, "--type", kind)
            pair(f"stories260K shape {kind}, decode 256, {t} threads, run", 2, lambda: ours(mine, t, 0, 254), lambda: llama2c("run", v0, t, 256))
        for name, *sizes, aim in (("stories15M", 288, 768, 6, 6, 32000, 256, (3, 5)), ("stories110M", 768, 2048, 12, 12, 32000, 1024, (1.3, 2.5))):
            v0, v2, gguf_path = shape(name, *sizes)
            mine = imported(v0, "--type", "q8_0")
            if LLAMA and gguf_path:
                pair(f"{name} shape q8_0, decode 256, {t} threads, llama.cpp", aim[0], lambda: ours(mine, t, 0, 254), lambda: theirs(gguf_path, t, 0, 254))
            if LLAMA2C:
                pair(f"{name} shape q8_0, decode 256, {t} threads, runq", aim[1], lambda: ours(mine, t, 0, 254), lambda: llama2c("runq", v2, t, 256))
    if LLAMA and MODEL and not ONLY:
        quality()


main()
