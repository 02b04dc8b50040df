#!/usr/bin/env python3
"""Writes the README's table of architectures: one row for every reference case whose logits or hidden states `./run` reproduces.

    python3 tests/family_table.py            (from the top folder, after make; standard library only)

What a row says is read from the slots that are filled in the imported model, not from a list. The table stands between two
marks in README.md; a case that does not pass is left out and named on stderr, with exit status 1.
"""
import array, json, os, struct, subprocess, sys, tempfile

CASES = "tests/golden"


def run(*args):
    p = subprocess.run(["./run", *args], capture_output=True)
    return p.stdout if p.returncode == 0 else None


def npy(path):
    data = open(path, "rb").read()
    n = struct.unpack("<H", data[8:10])[0]
    header = data[10:10 + n].decode()
    shape = eval(header[header.index("(", header.index("shape")):header.index(")") + 1])
    values = array.array("f", data[10 + n:])
    if sys.byteorder == "big":
        values.byteswap()
    return shape, values


def ids(values):
    return ",".join(map(str, values))


def passes(folder):
    """The first input, its first row: every result within the case's own tolerance."""
    expected = json.load(open(f"{folder}/expected.json"))
    first = expected["inputs"][0]
    args, files = [], []

    def as_file(name):
        shape, values = npy(f"{folder}/{first[name]}")
        f = tempfile.NamedTemporaryFile(suffix=".f32", delete=False)
        f.write(values[:len(values) // shape[0]].tobytes())
        f.close()
        files.append(f.name)
        return f.name

    if "x" in first:
        args += ["--rows", as_file("x")]
        if "memory" in first:
            args += ["--memory", as_file("memory")]
    elif "decoder_input_ids" in first:
        args += ["--ids", ids(first["decoder_input_ids"][0])]
        args += ["--features", as_file("input_features")] if "input_features" in first else ["--source-ids", ids(first["input_ids"][0])]
    else:
        args += ["--ids", ids(first["input_ids"][0])]
        if "token_type_ids" in first:
            args += ["--types", ids(first["token_type_ids"][0])]
    good = True
    for what, verb in (("logits", ["logits", folder, "--all"]), ("hidden", ["hidden", folder]), ("output", ["hidden", folder])):
        if what not in first["expected"]:
            continue
        shape, want = npy(f"{folder}/{first['expected'][what]}")
        want = want[:len(want) // shape[0]]
        out = run(*verb, *args)
        got = array.array("f", out or b"")
        bound = max(2e-5, 10 * expected["noise"].get(what, 0))
        good &= len(got) == len(want) and all(abs(a - b) <= bound for a, b in zip(got, want))
    for f in files:
        os.unlink(f)
    return good


def slots_text(config, blocks, part):
    names = [s for b in blocks for s in b["slots"]]
    found = [slot for slot in ("pre", "post", "out") if f"{part}_norm_{slot}" in names]
    return " + ".join(found) or "none"


def row(folder):
    info = json.loads(run("info", folder, "--json"))
    c, blocks = info["config"], info["blocks"]
    slots = {s.split(" x ")[0] for b in blocks for s in b["slots"]}
    flags = c["flags"]
    h, k = c["n_heads"], c["n_kv_heads"]
    attention = "MLA" if c["kv_lora_rank"] else "MHA" if h == k else "MQA" if k == 1 else "GQA"
    more = []
    if "q_norm" in slots: more.append("QK-norm")
    if "sinks" in slots: more.append("sinks")
    if c["attn_softcap"]: more.append("soft-cap")
    if c["window"]: more.append("window")
    if c["chunk"]: more.append("chunks")
    if not flags & 1: more.append("both ways")
    if flags & 256: more.append("cross")
    attention = ", ".join([attention] + more)
    text = run("info", folder).decode()
    position = ("RoPE" if c["rope_dim"] else "relative bias" if "relative_bias" in slots else "disentangled" if "rel_key" in slots or "rel_query" in slots
                else "ALiBi" if "alibi_slopes" in text else "sinusoidal" if flags & 4 else "learned or table" if "position_embedding" in text else "none")
    if c["rope_dim"] and c["rope_dim"] < c["head_dim"] and not c["kv_lora_rank"]: position = "RoPE, part"
    act = ["SiLU", "GELU", "GELU tanh", "ReLU", "ReLU²", "quick GELU", "clamped SwiGLU", "tanh", "identity"][c["activation"]]
    ffn = ("gated " if "gate" in slots else "") + act
    if c["n_experts"]: ffn += f", {c['n_experts']} experts" + (" + shared" if c["shared_hidden_dim"] else "")
    norm = "LayerNorm" if c["norm"] else "RMSNorm"
    placement = f"{slots_text(c, blocks, 'attn')} / {slots_text(c, blocks, 'ffn')}" + (", parallel" if flags & 2 else "")
    kind = info["kind"].replace("Hugging Face ", "")
    return (kind, f"{norm}, {placement}", attention, position, ffn)


def main():
    rows, bad = {}, []                                               # cases that fill the same slots share a row
    for name in sorted(os.listdir(CASES)):
        folder = f"{CASES}/{name}"
        if not os.path.exists(f"{folder}/config.json"):
            continue
        if passes(folder):
            rows.setdefault(row(folder), []).append(f"`{name}`")
        else:
            bad.append(name)
    table = "| architecture | norms: kind, attention / feed-forward slots | attention | positions | feed-forward | case |\n|---|---|---|---|---|---|\n" + "\n".join("| " + " | ".join(r) + " | " + " ".join(c) + " |" for r, c in rows.items())
    readme = open("README.md").read()
    begin, end = "<!-- family table -->\n", "\n<!-- end of family table -->"
    a, z = readme.index(begin) + len(begin), readme.index(end)
    open("README.md", "w").write(readme[:a] + table + readme[z:])
    print(f"{len(rows)} rows, {sum(map(len, rows.values()))} cases")
    for name in bad:
        print(f"{name} does not pass", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
