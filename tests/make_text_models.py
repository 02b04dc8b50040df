"""Writes tests/data/text: tiny random models with their tokenizers, and what Hugging Face transformers says to texts.

usage: python tests/make_text_models.py      needs torch, transformers 4, tokenizers; writes the folders beside this file

Each folder is a model as it is published, with expected.json: vectors of texts, masks filled, classes, answers, turns of a
chat. All numbers are float32 on the CPU; greedy answers are taken only where the best token leads clearly.
"""
import json
import os
import shutil

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

transformers.logging.set_verbosity_error()
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "text")
TEXTS = ["The cat sits outside.", "A man is playing guitar!", "größe 漢 x", "I love the new movie", ""]
CORPUS = ["the cat sits outside", "a man is playing the guitar", "the new movie is great and so is the cat", "i love the garden",
          "one two three four five", "what is it", "do you like it", "yes i do", "no it is not", "the answer is here"] * 4


def byte_bpe(specials, all_bytes=True):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet()) if all_bytes else sorted("abcdefghijklmnopqrstuvwxyz?.,\u0120\u010a")
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=len(alphabet) + len(specials) + 40, special_tokens=specials, show_progress=False,
                                                      initial_alphabet=alphabet))
    return t


def wordpiece():
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    letters = sorted(set("abcdefghijklmnopqrstuvwxyzöß漢.!?"))
    words = sorted({w for line in CORPUS for w in line.split()})[:40]
    vocab = {w: i for i, w in enumerate(specials + letters + ["##" + c for c in letters] + [w for w in words if len(w) > 1])}
    t.model = models.WordPiece(vocab, unk_token="[UNK]")
    t.add_special_tokens(specials)
    cls, sep = vocab["[CLS]"], vocab["[SEP]"]
    t.post_processor = processors.TemplateProcessing(single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
                                                     special_tokens=[("[CLS]", cls), ("[SEP]", sep)])
    return PreTrainedTokenizerFast(tokenizer_object=t, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
                                   model_max_length=64)


def roberta_like(all_bytes=True):
    t = byte_bpe(["<s>", "<pad>", "</s>", "<unk>", "<mask>"], all_bytes)
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>", cls_token="<s>",
                                   sep_token="</s>", mask_token="<mask>", model_max_length=64)


def t5_like():
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.NFKC()])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    t.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=90, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=t, eos_token="</s>", unk_token="<unk>", pad_token="<pad>")


def chat_like():
    t = byte_bpe(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<|endoftext|>", eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + "
                               "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
    return tokenizer


def save(name, model, tokenizer, expected, folders=None):
    folder = os.path.join(OUT, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path, content in (folders or {}).items():
        os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
        json.dump(content, open(os.path.join(folder, path), "w"))
    for extra in ("special_tokens_map.json",):
        path = os.path.join(folder, extra)
        if os.path.exists(path):
            os.remove(path)
    with open(os.path.join(folder, "expected.json"), "w") as f:
        json.dump(expected, f, indent=0)
        f.write("\n")


def make(cls, config, seed):
    torch.manual_seed(seed)
    return cls(config).eval()


def vectors(model, tokenizer, pool, unit, texts=TEXTS):
    out = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            h = model(input_ids=ids).last_hidden_state[0]
        v = {"mean": h.mean(0), "cls": h[0], "last": h[-1]}[pool]
        out.append({"text": text, "ids": ids[0].tolist(), "vector": (v / v.norm() if unit else v).tolist()})
    return out


def pooling(mode):
    modules = {"1_Pooling/config.json": {"word_embedding_dimension": 16, "pooling_mode_cls_token": mode == "cls", "pooling_mode_mean_tokens": mode == "mean",
                                         "pooling_mode_lasttoken": mode == "last"}}
    names = ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"] + ["sentence_transformers.models.Normalize"] * (mode == "mean")
    modules["modules.json"] = [{"idx": i, "name": str(i), "path": "", "type": name} for i, name in enumerate(names)]
    return modules


def fills(model, tokenizer, texts):
    out = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            p = model(input_ids=ids).logits[0].softmax(-1)
        masks = []
        for at in (ids[0] == tokenizer.mask_token_id).nonzero()[:, 0].tolist():
            best = p[at].topk(6)
            assert (best.values[:-1] - best.values[1:]).min() > 1e-5
            masks.append([[int(i), float(x)] for x, i in zip(best.values[:5], best.indices[:5])])
        out.append({"text": text, "masks": masks})
    return out


def classes(model, tokenizer, texts):
    out = []
    for text, pair in texts:
        inputs = tokenizer(text, pair, return_tensors="pt")
        with torch.no_grad():
            logits = model(**inputs).logits[0]
        p = logits.softmax(-1)
        order = p.argsort(descending=True).tolist()
        out.append({"text": text, "pair": pair, "labels": [[model.config.id2label[i], float(p[i]), float(logits[i])] for i in order]})
    return out


def greedy(step, first, n, stops):
    """The tokens that follow, and the least lead of the best one."""
    ids, gap = list(first), 1e9
    while len(ids) < len(first) + n:
        with torch.no_grad():
            logits = step(torch.tensor([ids]))[0, -1]
        best = logits.topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        if int(best.indices[0]) in stops:
            return ids[len(first):], gap, True
        ids.append(int(best.indices[0]))
    return ids[len(first):], gap, False


def main():
    bert = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=64, initializer_range=0.4)
    t = wordpiece()
    size = len(t)
    m = make(transformers.BertForMaskedLM, transformers.BertConfig(vocab_size=size, **bert), 1)
    save("bert-fill", m, t, {"fill": fills(m, t, ["the [MASK] sits [MASK].", "[MASK]", "i love [MASK] Movie"])})
    labels = {0: "negative", 1: "neutral", 2: "very positive"}
    m = make(transformers.BertForSequenceClassification, transformers.BertConfig(vocab_size=size, id2label=labels, **bert), 2)
    save("bert-classes", m, t, {"classes": classes(m, t, [("the cat is great", None), ("do you like it?", "no it is not"), ("a", "b")])})
    m = make(transformers.BertModel, transformers.BertConfig(vocab_size=size, **bert), 3)
    save("embed-mean", m, t, {"vectors": vectors(m, t, "mean", True)}, pooling("mean"))
    save("embed-cls", m, t, {"vectors": vectors(m, t, "cls", False)}, pooling("cls"))

    t = roberta_like()
    roberta = dict(vocab_size=len(t), **{**bert, "max_position_embeddings": 66}, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2)
    m = make(transformers.RobertaForMaskedLM, transformers.RobertaConfig(**roberta), 4)
    save("roberta-fill", m, t, {"fill": fills(m, t, ["The <mask> sits outside.", "a<mask><mask>"])})
    m = make(transformers.RobertaForSequenceClassification, transformers.RobertaConfig(num_labels=1, **roberta), 5)
    save("roberta-score", m, t, {"classes": classes(m, t, [("The cat", "the Garden"), ("The cat", None)])})

    t = t5_like()
    m = make(transformers.T5ForConditionalGeneration,
             transformers.T5Config(vocab_size=len(t), d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0,
                                   pad_token_id=0, eos_token_id=1, initializer_factor=3.0), 6)
    answers = []
    for text in ["the cat sits outside", "what is it?"]:
        source = t(text, return_tensors="pt").input_ids
        ids, gap, ended = greedy(lambda x: m(input_ids=source, decoder_input_ids=x).logits, [0], 12, [1])
        answers.append({"source": text, "source_ids": source[0].tolist(), "ids": ids, "text": t.decode(ids), "gap": gap, "ended": ended})
    save("t5", m, t, {"answers": answers})

    t = roberta_like(False)
    answers = []
    for seed in range(7, 500):                                 # one that ends an answer, and leads clearly
        m = make(transformers.BartForConditionalGeneration,
                 transformers.BartConfig(vocab_size=len(t), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
                                         encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=2,
                                         decoder_start_token_id=2, forced_eos_token_id=None, init_std=0.5), seed)
        answers = []
        for text in ["the cat sits outside", "what is it?"]:
            source = t(text, return_tensors="pt").input_ids
            ids, gap, ended = greedy(lambda x: m(input_ids=source, decoder_input_ids=x).logits, [2], 12, [2])
            answers.append({"source": text, "source_ids": source[0].tolist(), "ids": ids, "text": t.decode(ids, skip_special_tokens=True), "gap": gap, "ended": ended})
        if any(a["ended"] and a["ids"] for a in answers) and min(a["gap"] for a in answers) > 0.03:
            break
    save("bart", m, t, {"answers": answers})

    t = chat_like()
    stops = [0, t.convert_tokens_to_ids("<|im_end|>")]
    turns = []
    for seed in range(8, 2000):
        m = make(transformers.LlamaForCausalLM,
                 transformers.LlamaConfig(vocab_size=len(t), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                                          max_position_embeddings=256, bos_token_id=0, eos_token_id=0, tie_word_embeddings=True, initializer_range=0.5), seed)
        messages, turns = [{"role": "system", "content": "be kind"}], []
        for text in ["the cat", "  what is it?", "no"]:
            messages.append({"role": "user", "content": text})
            rendered = t.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            prompt = t(rendered, add_special_tokens=False).input_ids
            ids, gap, ended = greedy(lambda x: m(input_ids=x).logits, prompt, 10, stops)
            answer = t.decode(ids, skip_special_tokens=True)
            turns.append({"message": text, "prompt_tokens": len(prompt), "ids": ids, "answer": answer, "gap": gap, "ended": ended})
            messages.append({"role": "assistant", "content": answer})
        if any(x["ended"] and x["ids"] for x in turns) and not all(x["ended"] for x in turns) and min(x["gap"] for x in turns) > 0.03:
            break
    save("chat", m, t, {"turns": turns, "vectors": vectors(m.model, t, "mean", True, ["the cat", "what is it?"])})


if __name__ == "__main__":
    main()
