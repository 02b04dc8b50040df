#!/usr/bin/env bash
# The command line, verb by verb: what goes to stdout, what is said on stderr, and the exit status.
#
#     tests/cli.sh ./run [MODEL]           from the top of the repository; MODEL is a checkpoint, weights/stories.bin without it
#
# One line for each failure; the last line counts. Exit status 0 if nothing failed.
set -u
run=${1:?usage: tests/cli.sh RUN [MODEL]}
model=${2:-weights/stories.bin}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0

pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); printf 'FAILED %s\n' "$*"; }
ok() { if eval "$2"; then pass; else fail "$1: $2"; fi; }       # ok NAME CONDITION

# go STATUS ARGUMENTS...: runs the program, keeps stdout and stderr in $dir, checks the exit status.
go() {
    local want=$1 got
    shift
    "$run" "$@" >"$dir/out" 2>"$dir/err" </dev/null
    got=$?
    called="run $*"
    if [ "$got" -eq "$want" ]; then pass; else fail "$called: exit status $got, not $want; $(head -n 1 "$dir/err")"; fi
}
out_has() { if grep -qE -- "$1" "$dir/out"; then pass; else fail "$called: stdout lacks /$1/: $(head -c 200 "$dir/out")"; fi; }
err_has() { if grep -qE -- "$1" "$dir/err"; then pass; else fail "$called: stderr lacks /$1/: $(head -c 200 "$dir/err")"; fi; }
out_empty() { if [ ! -s "$dir/out" ]; then pass; else fail "$called: stdout is not empty"; fi; }
one_line() { if [ "$(wc -l <"$dir/err")" -eq 1 ]; then pass; else fail "$called: stderr is not one line: $(head -c 200 "$dir/err")"; fi; }
misuse() { go 2 "$@"; out_empty; err_has '^run: '; err_has '^usage: run '; }            # wrong usage: a sentence and the usage line
refused() { local why=$1; shift; go 1 "$@"; out_empty; err_has "$why"; one_line; }      # the work fails: one sentence
size() { wc -c <"$1" | tr -d ' '; }
number() { sed -n "s/.*\"$1\": \([0-9.]*\).*/\1/p" "$dir/out"; }                        # of a JSON key

if ! "$run" info "$model" >"$dir/out"; then
    echo "FAILED run info $model: nothing else can be tested"
    echo "0 passed, 1 failed"
    exit 1
fi

# ---- info ----
go 0 info "$model" --json
vocab=$(number vocab_size) dim=$(number dim) layers=$(number n_layers) heads=$(number n_heads)
weights=$(number weights_bytes) session=$(number session_bytes)
for key in kind config parameters parameters_by_part weights_bytes bytes_per_token kv_cache_bytes_per_token session_bytes; do out_has "\"$key\": "; done
ok 'info: weights_bytes is the size of the file' "[ '$weights' -eq '$(size "$model")' ]"
go 0 info "$model"
out_has '^parameters: [0-9]+'
out_has 'attn_norm.pre: '
out_has 'cache: [0-9,]+ bytes a token'
out_has '12 d\^2 = [0-9,]+; here [0-9.]+ d\^2'
out_has 'a checkpoint of it: .* in f32, .* in q4_0'
go 0 info "$model" --json --ctx-size 16
ok 'info: a smaller context needs less memory' "[ '$(number session_bytes)' -lt '$session' ]"
shapes=$(dirname "$0")/golden-shapes                            # configurations of named models, no weights
for path in "$shapes/llama3-8b" "$shapes/llama3-8b/config.json"; do
    go 0 info "$path"
    out_has '^parameters: 8,030,261,248$'
    out_has 'attention 41,943,040 \+ feed-forward 176,160,768 \+ norms 8,192 = 218,112,000'
    out_has '^weights: not here$'
    out_has 'cache: 131,072 bytes a token in f16; for 4,096 positions 537 MB'
done
go 0 info "$shapes/llama3-8b" --ctx-size 8192 --kv f32
out_has 'cache: 262,144 bytes a token in f32; for 8,192 positions 2.1 GB'
go 0 info "$shapes/deepseek-v3" --json --ctx-size 1000
out_has '"parameters": 671026404352, "active_parameters": 37552282624, .*"has_weights": false'
ok 'info: the cache of a context is its tokens, in tiles of 16' "[ '$(number kv_cache_bytes)' -eq $((1008 * $(number kv_cache_bytes_per_token))) ]"
refused 'there is no model.safetensors' "$shapes/llama3-8b" -n 1
refused "$shapes/counts.json" info "$shapes/counts.json"

# ---- info --svg, review ----
go 0 info "$model" --svg "$dir/block.svg"
out_empty
ok 'info --svg draws' "grep -q '</svg>' '$dir/block.svg' && [ $(size "$dir/block.svg") -lt 30000 ]"
go 0 info "$shapes/llama3-8b" --svg "$dir/llama.svg"
ok 'the figure of Llama is what is drawn' "cmp -s '$dir/llama.svg' '$(dirname "$0")/figures/llama.svg'"
refused "$dir/none/x.svg: cannot be written" info "$model" --svg "$dir/none/x.svg"
go 0 review "$model"
out_has '^[=x] norm placement  (pre|out|post|sandwich)'
out_has '^= as today, x differs: [0-9]+ of [0-9]+ as today$'
ok 'a review fits 100 columns' "[ \$(awk 'length > 100' '$dir/out' | wc -l) -eq 0 ]"
go 0 review "$shapes/gpt2-small"
out_has '^x norm kind       LayerNorm, with shifts            RMSNorm                                  -19,200$'
out_has '^= head            tied to the embedding             tied: it is 31 % of all              \+38,597,376$'
go 0 review "$shapes/gpt2-small/config.json" --json
out_has '"aspect": "feed-forward", "has": "plain, gelu_tanh", "today": "SwiGLU or GEGLU", "same": false, '
out_has '"sources": \[4\], "change": "[^"]*", "parameters": 28348416'

# ---- usage ----
go 0 -h
out_has '^usage: run MODEL'
out_has 'run tokenize MODEL'
go 0 --version
out_has '^transformer.hpp [0-9]'
for verb in chat embed logits hidden attention next fill classify greedy tokenize detokenize perplexity bench info review import; do
    go 0 "$verb" -h
    out_has "^usage: run $verb "
done
misuse
err_has 'weights/stories.bin'
for verb in chat embed fill classify logits tokenize bench info review import; do misuse "$verb"; done
misuse review "$model" --svg x
misuse info "$model" --svg
misuse "$model" --no-such-option
misuse "$model" extra
misuse "$model" -n
misuse "$model" -n -5
misuse "$model" -n 5x
misuse "$model" -n ''
misuse "$model" -t nan
misuse "$model" -t inf
misuse "$model" -t -1
misuse "$model" -p 1.5
misuse "$model" -s -1
misuse "$model" -s 18446744073709551616
misuse "$model" --threads 0
misuse "$model" --threads -1
misuse "$model" --threads 1000
misuse "$model" --ctx-size 0
misuse "$model" --isa sse9
misuse "$model" --kv f64
misuse "$model" --type q3_0
misuse "$model" --mode dance
misuse "$model" --stats=yes
misuse "$model" --all
misuse "$model" -i a -f b
misuse logits "$model"
for ids in "" "," "1," ",1" "1,,x" 1,x 1.5 -1 99999999999 '1 2'; do misuse logits "$model" --ids "$ids"; done
misuse logits "$model" --ids 1,2 --types 0
misuse attention "$model" --ids 1,2
misuse detokenize "$model" x
misuse detokenize "$model" -1
misuse import "$model"
misuse tokenize "$model" a b
misuse bench "$model" --prefill 0
misuse bench "$model" --repeat 0

# ---- files ----
refused 'there is no such file' "$dir/none.bin"
err_has 'weights/stories.bin'
: >"$dir/empty"
refused "$dir/empty" "$dir/empty"
head -c 1000 "$model" >"$dir/cut"
refused 'shorter' "$dir/cut"
printf 'TRNSFRMR' >"$dir/magic"
refused "$dir/magic" "$dir/magic"
head -c 5000 /dev/zero >"$dir/zeros"
refused "$dir/zeros" "$dir/zeros"
head -c 5000 "$run" >"$dir/program"
refused "$dir/program" "$dir/program"
mkdir "$dir/folder"
go 1 "$dir/folder"
err_has "$dir/folder"

# ---- generate ----
go 0 "$model" -t 0 -n 30 -i 'Once upon a time'
out_has '^Once upon a time'
err_has '^prompt [0-9]+ tokens, .*generated [0-9]+ tokens, .* weights .* session .* cache '
cp "$dir/out" "$dir/greedy.txt"
for more in '--threads 1' '--threads 3' '--isa scalar' '-s 7' '-p 0' '-p 1' '--top-k 5' '--ctx-size 64'; do
    go 0 "$model" -t 0 -n 30 -i 'Once upon a time' $more
    ok "-t 0 gives the same text with $more" "cmp -s '$dir/out' '$dir/greedy.txt'"
done
printf 'Once upon a time' >"$dir/prompt"
go 0 "$model" -t 0 -n 30 -f "$dir/prompt"
ok '-f is as -i' "cmp -s '$dir/out' '$dir/greedy.txt'"
go 0 "$model" --temp=0 --predict=30 --prompt='Once upon a time'
ok 'long names with = are as short ones' "cmp -s '$dir/out' '$dir/greedy.txt'"
go 0 "$model" -s 5 -n 30
err_has 'seed 5$'
cp "$dir/out" "$dir/seed5"
go 0 "$model" -s 5 -n 30 --threads 1
ok 'a seed gives the same text again' "cmp -s '$dir/out' '$dir/seed5'"
differ=0
for seed in 6 7 8 9; do
    "$run" "$model" -s $seed -n 30 2>/dev/null | cmp -s - "$dir/seed5" || differ=1
done
ok 'other seeds give other texts' "[ $differ -eq 1 ]"
go 0 "$model" -n 30
seed=$(sed -n 's/.*seed \([0-9]*\)$/\1/p' "$dir/err")
cp "$dir/out" "$dir/clock"
go 0 "$model" -n 30 -s "$seed"
ok 'the seed that is told repeats the run' "cmp -s '$dir/out' '$dir/clock'"
go 0 "$model" -n 5 --stats
err_has 'context [0-9]+'
go 0 "$model" -t 0 -n 12 --json -i 'Once upon a time'
out_has '^\{"text": "Once upon a time'
out_has '"tokens": \[[0-9, ]+\], "stop": "(length|end)", "seed": [0-9]+'
tokens=$(sed 's/.*"tokens": \[\([0-9, ]*\)\].*/\1/; s/,//g' "$dir/out")
go 0 "$model" -i ''
go 0 "$model" -i ' ' -n 3
go 0 "$model" -n 0 -i 'Hello'
ok '-n 0 generates nothing' "[ \"\$(cat '$dir/out')\" = Hello ]"
refused 'prompt has [0-9]+ tokens and the context 4 positions' "$model" -i 'Once upon a time there was a little dog' --ctx-size 4
go 0 "$model" -t 0 -n 1000000 --ctx-size 16 --ignore-eos
err_has 'cut to 16 tokens, what the context of 16 positions'
err_has 'generated 16 tokens'
refused 'needs [0-9]+ bytes of memory.*lower --ctx-size' "$model" --ctx-size 2000000000

# ---- the ends of stdout, Ctrl-C ----
"$run" "$model" -n 200 -t 0 2>"$dir/err" | head -c 5 >/dev/null
status=${PIPESTATUS[0]}
ok 'a reader that goes away is no error' "[ $status -eq 0 ]"
sleep 4 | timeout -k 2 -s TERM 1 "$run" tokenize "$model" >/dev/null 2>&1     # 137: only SIGKILL ended it
ok 'SIGTERM ends a program that waits for stdin' "[ ${PIPESTATUS[1]} -eq 124 ]"
"$run" "$model" -n 5 >&- 2>"$dir/err"
ok 'a closed stdout is an error: the text is lost' "[ $? -eq 1 ] && grep -q 'stdout: cannot be written' '$dir/err'"
if [ -e /dev/full ]; then
    "$run" "$model" -n 5 >/dev/full 2>"$dir/err"
    ok 'a full disk is an error' "[ $? -eq 1 ] && grep -q 'stdout: cannot be written' '$dir/err'"
    refused '/dev/full: cannot be written' logits "$model" --ids 1 --out /dev/full
fi
refused "$dir/none/x: cannot be written" logits "$model" --ids 1 --out "$dir/none/x"
interrupt() {                                                   # interrupt NAME ARGUMENTS...: Ctrl-C in the middle gives 130
    local name=$1 status pid wait=20
    shift
    rm -f "$dir/out"
    "$run" "$@" >"$dir/out" 2>"$dir/err" </dev/null &
    pid=$!
    until [ $wait -eq 0 ] || [ -s "$dir/out" ]; do              # until there is output, two seconds at most
        sleep 0.1
        wait=$((wait - 1))
    done
    kill -INT $pid 2>/dev/null
    wait $pid
    status=$?
    ok "Ctrl-C during $name" "[ $status -eq 130 ]"
}
set -m                                                          # jobs that hear SIGINT
interrupt generating "$model" -n 100000000 --ctx-size 100000 --ignore-eos
err_has '^prompt .* generated [0-9]+ tokens'
ok 'Ctrl-C ends the text with a newline' "[ \"\$(tail -c 1 '$dir/out' | od -An -c | tr -d ' ')\" = '\\n' ]"
printf 'Once upon a time there was a dog. %.0s' $(seq 12000) >"$dir/long"
interrupt 'a prompt' "$model" -f "$dir/long" --ctx-size 1000000
interrupt perplexity perplexity "$model" "$dir/long" --ctx-size 1000000
interrupt bench bench "$model" --repeat 1000
set +m

# ---- tokenize, detokenize ----
go 0 tokenize "$model" 'Once upon a time'
out_has '^[0-9]+( [0-9]+)*$'
ids=$(cat "$dir/out")
list=${ids// /,}
printf 'Once upon a time' | "$run" tokenize "$model" >"$dir/stdin"
ok 'tokenize reads stdin' "cmp -s '$dir/out' '$dir/stdin'"
go 0 tokenize "$model" --no-add-special 'Once upon a time'
ok 'no-add-special leaves BOS out' "[ $(wc -w <"$dir/out") -lt $(wc -w <"$dir/stdin") ]"
for text in 'Once upon a time' ' two  spaces ' $'a\nb\n\n' 'größe – 漢字 🦙' '<s>' '\x'; do
    printf '%s' "$text" >"$dir/text"
    "$run" detokenize "$model" $("$run" tokenize "$model" --no-parse-special <"$dir/text") >"$dir/back"
    ok "detokenize gives back $(printf '%q' "$text")" "cmp -s '$dir/text' '$dir/back'"
done
printf 'a\0b' >"$dir/text"
"$run" detokenize "$model" $("$run" tokenize "$model" <"$dir/text") >"$dir/back"
ok 'a NUL is a byte like any other' "cmp -s '$dir/text' '$dir/back'"
go 0 tokenize "$model" --no-add-special ''
ok 'the empty text has no ids' "[ \"\$(cat '$dir/out')\" = '' ]"
go 0 detokenize "$model"
out_empty
refused "the vocabulary has ids 0 to $((vocab - 1))" detokenize "$model" "$vocab"

# ---- logits, hidden, greedy, attention ----
count=$(wc -w <<<"$ids")
go 0 logits "$model" --ids "$list"
cp "$dir/out" "$dir/last"
ok 'logits: one row' "[ $(size "$dir/out") -eq $((4 * vocab)) ]"
go 0 logits "$model" --ids "$list" --all
cp "$dir/out" "$dir/all"
ok 'logits --all: a row a token' "[ $(size "$dir/all") -eq $((4 * vocab * count)) ]"
ok 'the last row of --all is the last row' "tail -c $((4 * vocab)) '$dir/all' | cmp -s - '$dir/last'"
for more in '--threads 1' '--threads 5' '--isa scalar' '--ctx-size 100'; do
    go 0 logits "$model" --ids "$list" --all $more
    ok "the same bits with $more" "cmp -s '$dir/out' '$dir/all'"
done
go 0 logits "$model" -i 'Once upon a time' --all --out "$dir/file"
out_empty
ok 'logits of text to a file' "cmp -s '$dir/file' '$dir/all'"
many=$(seq -s, 3 150 | sed 's/,$//')                            # more than one batch
"$run" logits "$model" --ids "$many" --all | tail -c $((4 * vocab)) >"$dir/piece"
"$run" logits "$model" --ids "$many" >"$dir/out"
ok 'the same bits in pieces' "cmp -s '$dir/out' '$dir/piece'"
for layer in '' '--layer 0' "--layer $layers"; do
    go 0 hidden "$model" --ids "$list" $layer
    ok "hidden $layer: a row a token" "[ $(size "$dir/out") -eq $((4 * dim * count)) ]"
done
"$run" hidden "$model" --ids "$list" --layer 0 >"$dir/rows"
go 0 attention "$model" --ids "$list" --layer "$layers"
ok 'attention: (heads, T, S)' "[ $(size "$dir/out") -eq $((4 * heads * count * count)) ]"
sums=$(od -An -v -t f4 -w$((4 * count)) "$dir/out" | awk '{s = 0; for (i = 1; i <= NF; i++) s += $i; if (s < 0.999 || s > 1.001) bad++} END {print bad + 0}')
ok 'the weights of a query sum to 1' "[ '$sums' -eq 0 ]"
go 0 attention "$model" -i 'a <b> & c' --layer 1 --svg "$dir/picture.svg"
ok 'attention --svg draws' "grep -q '</svg>' '$dir/picture.svg' && ! grep -q '<b>' '$dir/picture.svg'"
go 0 greedy "$model" --ids "$list" -n 12
ok 'greedy and generate agree' "[ \"\$(cat '$dir/out')\" = '$tokens' ]"
go 0 greedy "$model" --ids "$list" -n 0
ok 'greedy -n 0 is an empty line' "[ $(size "$dir/out") -eq 1 ]"
refused "the vocabulary has ids 0 to $((vocab - 1))" logits "$model" --ids "1,$vocab"
refused 'the prompt has 3 tokens and the context 2 positions' logits "$model" --ids 1,2,3 --ctx-size 2
refused 'the blocks have the numbers 1 to' hidden "$model" --ids 1 --layer $((layers + 1))
refused 'the blocks have the numbers 1 to' attention "$model" --ids 1 --layer 0
refused 'no encoder-decoder' logits "$model" --ids 1 --source-ids 2
refused 'has no encoder' hidden "$model" --ids 1 --encoder
refused '--mask may have zeros at its end only' logits "$model" --ids 1,2 --mask 0,1
printf 'abc' >"$dir/odd"
refused 'not a multiple of' logits "$model" --rows "$dir/odd"
ok 'rows that layer 0 gave, given back, give the same logits' "'$run' logits '$model' --rows '$dir/rows' 2>/dev/null | cmp -s - '$dir/last'"

# ---- next, perplexity, bench ----
go 0 next "$model" 'Once upon a'
ok 'next: ten lines' "[ $(wc -l <"$dir/out") -eq 10 ]"
go 0 next "$model" 'Once upon a' --json
out_has '^\[\{"id": [0-9]+, "token": ".*", "probability": [0-9.]+\}'
printf 'Once upon a time there was a little dog. He was happy.' >"$dir/text"
go 0 perplexity "$model" "$dir/text"
out_has '^nll [0-9.]+, perplexity [0-9.]+, [0-9]+ tokens; 1 window of '
go 0 perplexity "$model" "$dir/text" --json --window 8
out_has '"nll": [0-9.]+, "perplexity": [0-9.]+, "tokens": [0-9]+, "window": 8, "windows": [0-9]+, "window_rule": '
go 0 perplexity "$model" --ids "$list" --json
ok 'perplexity of ids scores all but the first' "[ $(number tokens) -eq $((count - 1)) ]"
refused 'more than the context' perplexity "$model" "$dir/text" --window 8 --ctx-size 4
refused "$dir/none" perplexity "$model" "$dir/none"
go 0 bench "$model" --prefill 20 --decode 5 --repeat 2 --json --threads 1
for key in prefill_tokens_per_s decode_tokens_per_s threads bytes_per_token; do ok "bench: $key" "[ -n '$(number $key)' ]"; done
out_has '"isa": "(scalar|neon(_dot)?|avx2|avx_vnni|avx512)"'
go 0 bench "$model" --prefill 20 --decode 5 --repeat 1
out_has '^prefill of 20: [0-9.]+ tokens/s'

# ---- embed, fill, classify ----
# tests/data/text holds tiny models with their tokenizers, and in expected.json what Hugging Face transformers says.
texts=$(dirname "$0")/data/text
expected() {                                                    # expected FOLDER KEY N: the numbers of the N-th list KEY
    awk -v key="\"$2\": [" -v n="$3" '$0 == key { k++; next } k == n && /^]/ { exit } k == n { gsub(/[],[]/, ""); if ($0 != "") print }' \
        "$texts/$1/expected.json"
}
near() {                                                        # near NAME: $dir/want and $dir/got agree to 2e-5
    local bad
    bad=$(paste "$dir/want" "$dir/got" | awk 'NF != 2 || ($1 - $2) ^ 2 > 4e-10 { bad++ } END { print bad + (NR == 0) }')
    ok "$1" "[ '$bad' -eq 0 ]"
}
for folder in embed-mean embed-cls; do
    n=0
    for text in 'The cat sits outside.' 'A man is playing guitar!' 'größe 漢 x' 'I love the new movie' ''; do
        n=$((n + 1))
        go 0 embed "$texts/$folder" "$text"
        out_has '^\[-?[0-9]'
        tr -d '[] ' <"$dir/out" | tr ',' '\n' >"$dir/got"
        expected $folder vector $n >"$dir/want"
        near "$folder: the vector of '$text'"
    done
done
go 0 embed "$texts/embed-mean" --stats 'the cat' 'a man'
err_has 'mean of the hidden rows, normalised: the model says so'
ok 'embed: a line a text' "[ $(wc -l <"$dir/out") -eq 2 ]"
cp "$dir/out" "$dir/two"
printf 'the cat\r\na man' | "$run" embed "$texts/embed-mean" >"$dir/out" 2>"$dir/err"
ok 'embed reads lines' "cmp -s '$dir/out' '$dir/two'"
go 0 embed "$texts/embed-cls" --stats a
err_has 'cls of the hidden rows, not normalised: the model says so'
"$run" embed "$texts/embed-mean" --pooling cls a | tr -d '[] \n' | tr ',' '\n' | awk '{ s += $1 * $1 } END { exit !(s > 0.9999 && s < 1.0001) }'
ok 'embed --pooling cls, normalised as the model says' "[ $? -eq 0 ]"
go 0 embed "$texts/bert-fill" --stats a
err_has 'mean of the hidden rows, normalised: usual for an encoder'
go 0 embed "$texts/t5" 'the cat'
go 0 embed "$texts/chat" --pooling mean 'the cat'
tr -d '[] ' <"$dir/out" | tr ',' '\n' >"$dir/got"
expected chat vector 1 >"$dir/want"
near 'a decoder, too, has a vector for a text'
go 0 embed "$model" --stats 'Once upon a time' --pooling last
err_has 'last of the hidden rows, normalised: --pooling says so'
many=$(printf 'a man is %.0s' $(seq 100))
refused 'the prompt has 302 tokens and the context 64 positions' embed "$texts/embed-mean" "$many"
refused 'has no tokens' embed "$texts/chat" ''
refused 'has no tokenizer' embed "$(dirname "$0")/golden/bert-mlm" a
misuse embed "$model" --pooling max a

probabilities() { grep -oE '"(probability|logit)": [-0-9.e]+' "$dir/out" | grep "$1" | sed 's/.* //' >"$dir/got"; }
go 0 fill "$texts/bert-fill" 'the [MASK] sits [MASK].' --json
ids=$(grep -oE '"id": [0-9]+' "$dir/out" | sed 's/.* //')
ok 'fill: five tokens for each mask' "[ \"\$(wc -w <<<'$ids')\" -eq 10 ]"
# the lists of the first text: an id and its probability each
awk '/^"text"/ && seen++ { exit } /^[0-9]/ { gsub(/,/, ""); print }' "$texts/bert-fill/expected.json" >"$dir/lines"
ok 'fill: the ids of transformers' "[ \"\$(sed -n 'p;n' '$dir/lines')\" = '$ids' ]"
sed -n 'n;p' "$dir/lines" >"$dir/want"
probabilities probability
near 'fill: the probabilities of transformers'
go 0 fill "$texts/bert-fill" 'the [MASK] sits [MASK].'
ok 'fill: lists with a blank line between' "[ $(wc -l <"$dir/out") -eq 11 ]"
go 0 fill "$texts/roberta-fill" 'The <mask> sits outside.'
cp "$dir/out" "$dir/own"
go 0 fill "$texts/roberta-fill" 'The [MASK] sits outside.'
ok "fill: [MASK] stands for the model's own token" "cmp -s '$dir/out' '$dir/own'"
refused 'there is no \[MASK\] in the text' fill "$texts/bert-fill" 'the cat'
refused 'has no masked-LM head' fill "$texts/bert-classes" 'the [MASK]'
refused 'is a decoder' fill "$model" 'the [MASK]'
misuse fill "$model"

labels() { awk -v n="$1" '/^"text"/ { k++ } k == n && /^-?[0-9]/ { gsub(/,/, ""); print }' "$texts/$2/expected.json" >"$dir/lines"; }
n=0
for text in 'the cat is great' 'do you like it?' a; do
    n=$((n + 1))
    pair=$(sed -n "${n}p" <<<$'\nno it is not\nb')
    if [ -n "$pair" ]; then go 0 classify "$texts/bert-classes" "$text" --pair "$pair" --json; else go 0 classify "$texts/bert-classes" "$text" --json; fi
    labels $n bert-classes
    sed -n 'p;n' "$dir/lines" >"$dir/want"
    probabilities probability
    near "classify: the probabilities of '$text'"
    sed -n 'n;p' "$dir/lines" >"$dir/want"
    probabilities logit
    near "classify: the logits of '$text'"
done
go 0 classify "$texts/bert-classes" 'the cat is great'
out_has '^ *[0-9.]+ %  #* +(negative|neutral|very positive)$'
go 0 classify "$texts/roberta-score" 'The cat' --pair 'the Garden' --json
out_has '^\[\{"label": "LABEL_0", "logit": -1\.0178'
refused 'has no head for classes' classify "$texts/bert-fill" a
refused 'has no head for classes' classify "$model" a
misuse classify "$texts/bert-classes"

# ---- encoder-decoders with text ----
for folder in t5 bart; do
    n=0
    for text in 'the cat sits outside' 'what is it?'; do
        n=$((n + 1))
        for option in --source -i; do
            go 0 "$texts/$folder" $option "$text" -t 0 -n 12 --json --kv f32
            ok "$folder $option '$text': the tokens of transformers" \
                "[ \"\$(sed 's/.*\"tokens\": \[\([0-9, ]*\)\].*/\1/; s/,//g' '$dir/out')\" = '$(expected $folder ids $n | tr '\n' ' ' | sed 's/ $//')' ]"
        done
    done
done
go 0 "$texts/bart" --source 'the cat sits outside' -t 0 -n 12
ok 'bart: the answer alone is printed' "[ \"\$(cat '$dir/out')\" = foboo ]"
misuse "$texts/t5" -t 0 -n 3

# ---- chat ----
talk() { "$run" "$@" >"$dir/out" 2>"$dir/err"; }
printf 'the cat\n  what is it?\nno\n' >"$dir/talk"
talk chat "$texts/chat" -t 0 -n 10 --json -y 'be kind' --kv f32 <"$dir/talk"
ok 'chat: three answers' "[ $? -eq 0 ] && [ $(wc -l <"$dir/out") -eq 3 ]"
for n in 1 2 3; do
    ok "chat: the tokens of transformers in turn $n" "[ \"\$(sed -n '${n}p' '$dir/out' | sed 's/.*\"tokens\": \[\([0-9, ]*\)\].*/\1/; s/,//g')\" = '$(expected chat ids $n | tr '\n' ' ' | sed 's/ $//')' ]"
done
ok 'chat: what was said stays in the cache' "sed -n 2p '$dir/out' | grep -qE '\"prompt_tokens\": 69, \"cached_tokens\": 35'"
ok 'chat: an answer ends where the template ends it' "head -n 1 '$dir/out' | grep -q '\"stop\": \"end\"'"
sed 's/.*"content": "\([^"]*\)".*/\1/' "$dir/out" >"$dir/answers"
talk chat "$texts/chat" -t 0 -n 10 -y 'be kind' --kv f32 <"$dir/talk"
ok 'chat prints the answers' "cmp -s '$dir/out' '$dir/answers'"
err_has '^3 answers; read [0-9]+ tokens'
err_has 'the answer was cut after 10 tokens; -n raises that'
talk "$texts/chat" -m chat -i 'the cat' -t 0 -n 10 -y 'be kind' --kv f32 </dev/null
ok '-m chat is chat, and -i its first message' "[ \"\$(cat '$dir/out')\" = \"\$(head -n 1 '$dir/answers')\" ]"
printf '/help\n\n \nthe cat\n/reset\nthe cat\n/quit\nno\n' >"$dir/talk"
talk chat "$texts/chat" -t 0 -n 10 -y 'be kind' --kv f32 --stats <"$dir/talk"
ok 'chat: /reset begins anew, /quit ends' "[ \"\$(cat '$dir/out')\" = \"\$(head -n 1 '$dir/answers'; head -n 1 '$dir/answers')\" ]"
err_has '/reset forgets'
err_has 'kept 34 in the cache'
printf 'the cat\nwhat is it?\nno\nyes\nyes i do\n' >"$dir/talk"
talk chat "$texts/chat" -t 0 -n 12 --ctx-size 64 --json <"$dir/talk"
ok 'chat: a full context' "[ $? -eq 0 ] && [ $(wc -l <"$dir/out") -eq 5 ]"
err_has 'the context of 64 positions is full: the oldest turn is forgotten'
talk chat "$model" --chat-template chatml -t 0 -n 100 --ctx-size 64 -i 'Hello' </dev/null
ok 'chat: an answer that fills the context' "[ $? -eq 0 ] && [ -s '$dir/out' ]"
err_has 'the context of 64 positions is full, and the answer ends there; --ctx-size raises it'
talk chat "$model" --chat-template chatml -t 0 -n 100 --ctx-size 64 --json -i 'Hello' </dev/null
out_has '"stop": "context"'
printf '%s\nthe cat\n' "$many" >"$dir/talk"
talk chat "$texts/chat" -t 0 -n 10 -y 'be kind' --ctx-size 64 --kv f32 <"$dir/talk"
ok 'chat: a message that does not fit is refused, the next one is not' "[ $? -eq 1 ] && [ \"\$(cat '$dir/out')\" = \"\$(head -n 1 '$dir/answers')\" ]"
err_has 'with this message the conversation has [0-9]+ tokens and the context 64 positions'
cp -r "$texts/chat" "$dir/bare"
rm "$dir/bare/chat_template.jinja"
printf 'the cat\n  what is it?\nno\n' >"$dir/talk"
talk chat "$texts/chat" --chat-template chatml -t 0 -n 10 -y 'be kind' --kv f32 <"$dir/talk"
cp "$dir/out" "$dir/chatml"
talk chat "$dir/bare" -t 0 -n 10 -y 'be kind' --kv f32 <"$dir/talk"
ok 'chat: without a template the special tokens say which' "[ $? -eq 0 ] && [ -s '$dir/out' ] && cmp -s '$dir/out' '$dir/chatml'"
err_has 'has no chat template; it has the tokens <.im_start.> and <.im_end.>, so it is taken for chatml'
sed -i 's/"bos_token"/"chat_template": "{{ messages[0].content }}", &/' "$dir/bare/tokenizer_config.json"
talk chat "$dir/bare" -t 0 -n 1 --json -i 'the cat' </dev/null
ok "chat: the template of tokenizer_config.json" "grep -q '\"prompt_tokens\": 2,' '$dir/out'"
cp "$texts/chat/chat_template.jinja" "$dir/bare"
talk chat "$dir/bare" -t 0 -n 10 -y 'be kind' --kv f32 <"$dir/talk"
ok 'chat: chat_template.jinja counts more than tokenizer_config.json' "cmp -s '$dir/out' '$dir/answers'"
for name in chatml llama3 gemma deepseek phi3 zephyr llama2 mistral; do
    talk chat "$model" --chat-template $name -t 0 -n 4 -y 'Be nice.' -i 'Hello' </dev/null
    ok "chat --chat-template $name" "[ $? -eq 0 ] && [ -s '$dir/out' ]"
done
printf "{%% for m in messages %%}{{ raise_exception('no system') if m.role == 'system' }}{{ m.content }}\n{%% endfor %%}" >"$dir/template"
talk chat "$model" --chat-template "$dir/template" -t 0 -n 4 -y 'Be nice.' -i Hello </dev/null
ok 'chat: a template without a system prompt' "[ $? -eq 0 ]"
err_has 'has no place for a system prompt'
printf '{{ x.y.z }}<|im_start|><|im_end|>' >"$dir/template"
talk chat "$model" --chat-template "$dir/template" -t 0 -n 4 -i Hello </dev/null
ok 'chat: a template that fails, of a family' "[ $? -eq 0 ]"
err_has "line 1: 'x' is undefined; it is taken for chatml"
printf '{{ x.y.z }}' >"$dir/template"
refused "line 1: 'x' is undefined; --chat-template names another" chat "$model" --chat-template "$dir/template"
printf '{%% if false %%}x{%% endif %%}' >"$dir/template"
refused 'makes no text of the conversation' chat "$texts/chat" --chat-template "$dir/template" -i a
refused 'is no file and none of chatml' chat "$model" --chat-template nobody
refused 'has no chat template; name one with --chat-template' chat "$model"
refused 'is no decoder' chat "$texts/bert-fill" --chat-template chatml
misuse "$model" -m chat --source x --chat-template chatml
misuse chat "$model" --ignore-eos
set -m
interrupt 'the prompt of a chat' "$model" -m chat --chat-template llama2 -f "$dir/long" --ctx-size 1000000
"$run" chat "$texts/chat" >"$dir/out" 2>"$dir/err" < <(sleep 3) &
pid=$!
sleep 0.5
kill -INT $pid
wait $pid
ok 'Ctrl-C while a chat waits' "[ $? -eq 130 ]"
err_has '^0 answers; '
set +m

# ---- import ----
go 0 import "$model" "$dir/copy.bin" --header "$dir/model.hpp"
out_empty
ok 'an import of a checkpoint is the same file' "cmp -s '$model' '$dir/copy.bin'"
ok 'import leaves no temporary file' "[ \$(ls '$dir' | grep -c part) -eq 0 ]"
cat >"$dir/firmware.cpp" <<END
#include "$dir/model.hpp"
static unsigned char memory[model::session_bytes];
int main() { return model::config.dim == $dim && sizeof memory > 0 && model::checkpoint_bytes == $weights ? 0 : 1; }
END
ok 'the header of import compiles' "${CXX:-c++} -std=c++17 -Wall -Wextra -Werror -I. '$dir/firmware.cpp' -o '$dir/firmware' && '$dir/firmware'"
for type in f32 f16 bf16 q8_0 q4_0 q4_1; do
    go 0 import "$model" "$dir/$type.bin" --type $type
    go 0 "$dir/$type.bin" -t 0 -n 8
    cp "$dir/out" "$dir/imported"
    go 0 "$model" --type $type -t 0 -n 8
    ok "--type $type is as an import with it" "cmp -s '$dir/out' '$dir/imported'"
done
ok 'q8_0 is smaller than f16, and that than f32' "[ $(size "$dir/q8_0.bin") -lt $(size "$dir/f16.bin") ] && [ $(size "$dir/f16.bin") -lt $(size "$dir/f32.bin") ]"
go 1 import "$model" "$dir/none/x.bin"
err_has "$dir/none/x.bin"
go 1 import "$dir/zeros" "$dir/x.bin"
ok 'a failed import leaves nothing' "[ ! -e '$dir/x.bin' ]"
cp "$model" "$dir/own.bin"
program=$(realpath "$run")
for option in "logits own.bin --ids 1,2 -o own.bin" "info own.bin --svg ./own.bin" "import own.bin x.bin --header own.bin" "import own.bin x.bin --header x.bin"; do
    # shellcheck disable=SC2086
    (cd "$dir" && "$program" $option) >"$dir/out" 2>"$dir/err"
    ok "run $option is refused" "[ $? -eq 1 ] && grep -q 'name another file' '$dir/err' && cmp -s '$model' '$dir/own.bin' && [ ! -e '$dir/x.bin' ]"
done
refused "$dir/none/x.hpp" import "$model" "$dir/x.bin" --header "$dir/none/x.hpp"
ok 'a header that cannot be written is known before the checkpoint is' "[ ! -e '$dir/x.bin' ]"
chmod 600 "$dir/copy.bin"
go 0 import "$model" "$dir/copy.bin"
ok 'a file that is replaced keeps who may read it' "[ \"\$(ls -l '$dir/copy.bin' | cut -c1-10)\" = -rw------- ]"
ln -s far.bin "$dir/link"
go 0 import "$model" "$dir/link"
ok 'what a link points to is written, though it is not there yet' "[ -L '$dir/link' ] && cmp -s '$model' '$dir/far.bin'"
ln -s round "$dir/round"
refused 'is a circle of links' import "$model" "$dir/round"
go 0 logits "$model" --ids 1 -o /dev/stdout
ok '-o takes what is no file as it is' "[ $(size "$dir/out") -eq $((4 * vocab)) ]"
if (ulimit -v 300000 && "$run" "$model" -n 1 --threads 2) >/dev/null 2>&1; then            # not where addresses are many, as under a sanitizer
    (ulimit -v 300000 && "$run" "$model" -n 1 --threads 256) >"$dir/out" 2>"$dir/err"
    ok 'threads that cannot be had are a sentence' "[ $? -eq 1 ] && grep -q '256 threads cannot be started' '$dir/err'"
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
