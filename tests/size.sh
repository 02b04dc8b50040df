#!/bin/bash
# What the header costs on a Cortex-M4F at -Os: the firmware of embedded/main.cpp, with the parts of the family that its model
# needs and with all of them. QEMU runs it for the measured stack and, with the plugin count.c, for the instructions a token.
#
#     tests/size.sh [MODEL]        MODEL: a checkpoint, by default the one that ships; OPT=-O2 in the environment for another level
cd "$(dirname "$0")/.." || exit 1
out=${BUILD:-build}/size
model=${1:-weights/stories.bin}
opt=${OPT:--Os}
here=tests/embedded
cpu="-mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16"
compile="arm-none-eabi-g++ -std=c++17 $opt $cpu -ffreestanding -fno-exceptions -fno-rtti -fno-threadsafe-statics -ffunction-sections
         -fdata-sections -DTRANSFORMER_NO_STDIO -I. -I$out"
machine="qemu-system-arm -M mps2-an386 -nographic -monitor none -serial none -semihosting-config enable=on,target=native"
for tool in arm-none-eabi-g++:gcc-arm-none-eabi,libstdc++-arm-none-eabi-newlib qemu-system-arm:qemu-system-arm; do
    command -v "${tool%%:*}" > /dev/null || { echo "SKIP ${tool%%:*} is not installed (packages ${tool#*:})"; exit 0; }
done
mkdir -p "$out"
[ -n "$RUN" ] || ${MAKE:-make} --no-print-directory run > "$out/run.log" 2>&1 || { cat "$out/run.log"; exit 1; }
${RUN:-./run} import "$model" "$out/model.bin" --ctx-size 256 --header "$out/model.hpp" > "$out/run.log" 2>&1 || { cat "$out/run.log"; exit 1; }
gcc -O2 -shared -fPIC $here/count.c -o "$out/count.so" 2> /dev/null || echo "no instruction counts: gcc cannot build count.c"

link() # NAME MAIN
{
    $compile $flags -fstack-usage -c "$here/$2" -o "$out/$1.o" &&
        $compile -fno-tree-loop-distribute-patterns -c $here/startup.cpp -o "$out/startup.o" &&
        $compile -DWEIGHTS="\"$out/model.bin\"" -c $here/weights.S -o "$out/weights.o" &&
        $compile -nostdlib -Wl,--gc-sections -T $here/chip.ld "$out"/{startup,$1,weights}.o -lgcc -o "$out/$1.elf" || exit 1
}

code() # NAME PATTERN: bytes of the functions whose names match, aliases once
{
    arm-none-eabi-nm -C -S -t d "$out/$1.elf" | awk -v pattern="$2" '$3 ~ /[tTW]/ && $4 ~ pattern { seen[$1] = $2 } END { for (a in seen) n += seen[a]; print n + 0 }'
}

measure() # NAME, WHAT, TRANSFORMER_FEATURES if they are not those of model.hpp
{
    local count=$out/$1.count plugin=""
    flags=${3:+-DTRANSFORMER_FEATURES=$3}
    link "$1" main.cpp
    link "$1.story" story.cpp
    rm -f "$count"
    [ -e "$out/count.so" ] && plugin="-plugin $out/count.so,out=$count,mark=_ZN11transformer7forwardERNS_7SessionERKNS_5InputEPPf"
    timeout 600 $machine $plugin -kernel "$out/$1.elf" > "$out/$1.text" 2>&1 < /dev/null
    timeout 600 $machine -kernel "$out/$1.story.elf" > "$out/$1.story" 2>&1 < /dev/null
    local all
    all=$(arm-none-eabi-size -A "$out/$1.elf" | awk '$1 == ".text" { print $2 }')
    echo "$1: $2"
    echo "    code                    $(code "$1" '^(transformer::|void|bool|static|unsigned|float)') bytes of the header, $(code "$1" '^__') of libgcc, $all with start-up and main"
    echo "    constants, messages     $(arm-none-eabi-size -A "$out/$1.elf" | awk '$1 == ".rodata" { print $2 }') bytes"
    awk -F'\t' '$2 + 0 > most { most = $2; name = $1 } END { sub(/^[^:]*:[0-9]*:[0-9]*:/, "", name); sub(/\(.*/, "", name); print "    largest stack frame     " most " bytes, " name }' "$out/$1.su"
    echo "    stack, measured         $((16#$(sed -n 's/.* stack //p' "$out/$1.story"))) bytes, of main() and all below"
    [ -e "$count" ] || return
    awk '/^mark/ { if ($2 == 0) first = $3; sum += $3; n++ } END { printf "    instructions a token    %.3f M at position 0, %.3f M mean of %d\n", first / 1e6, sum / n / 1e6, n }' "$count"
    grep ^function "$count" | head -6 | c++filt | sed 's/(.*//; s/ void / /' |
        awk -v n="$(grep -c ^mark "$count")" '{ c = $2; $1 = $2 = ""; printf "        %9d %s\n", c / n, $0 }'
}

memory() # RAM and weights, from the header that `run import` wrote
{
    cat > "$out/sizes.cpp" <<'EOF'
#include "model.hpp"
#include <stdio.h>
int main()
{
    constexpr transformer::Plan p = transformer::plan(model::config, transformer::Config{}, model::options);
    const auto cache = static_cast<unsigned>(p.at[transformer::region_cache + 1] - p.at[transformer::region_cache]);
    printf("    session memory          %u bytes, and %u for a cache of %u positions\n", static_cast<unsigned>(model::session_bytes) - cache, cache, model::options.capacity);
    printf("    weights, used in place  %u bytes\n", static_cast<unsigned>(model::checkpoint_bytes));
}
EOF
    echo memory
    g++ -std=c++17 -I. -I"$out" "$out/sizes.cpp" -o "$out/sizes" && "$out/sizes"
    arm-none-eabi-nm -S -t d "$out/model.elf" | awk '/ _ZL(7session|3net|7options)$/ { sub(/_ZL[0-9]/, "", $4); n = n (n ? ", " : "") $4 " " $2 + 0 } END { print "    objects                 " n " bytes" }'
}

echo "$model, Cortex-M4F, $opt, g++ $(arm-none-eabi-g++ -dumpversion)"
needs=$(sed -n 's/^#define TRANSFORMER_FEATURES (\(0x[0-9a-f]*u\).*/\1/p' "$out/model.hpp")
measure model "what the model needs, with sampling, tokenizer, checks and messages, as \`run import --header\` says it"
measure trusted "what the model needs ($needs): for a checkpoint that is part of the program" "$needs"
measure everything "every feature" 0xffffffffu
memory
printf '#define TRANSFORMER_IMPLEMENTATION\n#include "transformer.hpp"\n' > "$out/all.cpp"
$compile -c "$out/all.cpp" -o "$out/all.o" && echo "every function of the header, tokenizers too: $(arm-none-eabi-size "$out/all.o" | awk 'NR == 2 { print $1 }') bytes with constants"
