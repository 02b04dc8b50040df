#!/bin/bash
# What the header costs on a Cortex-M4F at -Os: the example firmware (embedded/main.cpp), once with what its model needs only and
# once with the whole family; run under QEMU for the measured stack and, with a plugin built here, the instructions a token.
#
#     tests/size.sh [MODEL]        MODEL: a checkpoint, by default the one that ships
cd "$(dirname "$0")/.." || exit 1
out=${BUILD:-build}/size
model=${1:-weights/stories.bin}
opt=${OPT:--Os}
here=tests/embedded
cpu="-mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16"
lean="-std=c++17 $cpu -ffreestanding -fno-exceptions -fno-rtti -fno-threadsafe-statics -ffunction-sections -fdata-sections
      -DTRANSFORMER_NO_STDIO -DTRANSFORMER_ISA=Scalar -I. -I$out"
for tool in arm-none-eabi-g++:gcc-arm-none-eabi,libstdc++-arm-none-eabi-newlib qemu-system-arm:qemu-system-arm; do
    command -v "${tool%%:*}" > /dev/null || { echo "SKIP ${tool%%:*} is not installed (package ${tool#*:})"; exit 0; }
done
mkdir -p "$out"
[ -n "$RUN" ] || ${MAKE:-make} --no-print-directory run > "$out/run.log" 2>&1 || { cat "$out/run.log"; exit 1; }
${RUN:-./run} import "$model" "$out/model.bin" --ctx-size 256 --header "$out/model.hpp" > "$out/run.log" 2>&1 || { cat "$out/run.log"; exit 1; }
gcc -O2 -shared -fPIC $here/count.c -o "$out/count.so" 2> /dev/null

link() # NAME MAIN: $out/NAME.elf out of MAIN, start-up code and weights
{
    arm-none-eabi-g++ $lean $opt $flags -fstack-usage -c "$here/$2" -o "$out/$1.o" &&
        arm-none-eabi-g++ $lean $opt -fno-tree-loop-distribute-patterns -c $here/startup.cpp -o "$out/startup.o" &&
        arm-none-eabi-g++ $lean -DWEIGHTS="\"$out/model.bin\"" -c $here/weights.S -o "$out/weights.o" &&
        arm-none-eabi-g++ $cpu -nostdlib -Wl,--gc-sections -T $here/cortex-m.ld "$out"/{startup,$1,weights}.o -lgcc -o "$out/$1.elf" || exit 1
}

section() { arm-none-eabi-size -A "$out/$1.elf" | awk -v s=".$2" '$1 == s { print $2 }'; }

measure() # NAME, TRANSFORMER_FEATURES
{
    flags="-DTRANSFORMER_FEATURES=$2"
    link "$1" main.cpp
    link "$1.story" story.cpp
    local plugin="" library rest
    [ -e "$out/count.so" ] && plugin="-plugin $out/count.so,out=$out/$1.count,mark=_ZN11transformer7forwardERNS_7SessionERKNS_5InputEPPf"
    rm -f "$out/$1.count"
    timeout 600 qemu-system-arm -M mps2-an386 -nographic -monitor none -serial none -semihosting-config enable=on,target=native \
        $plugin -kernel "$out/$1.story.elf" > "$out/$1.story" 2>&1 < /dev/null
    library=$(arm-none-eabi-nm -S "$out/$1.elf" | awk '$4 ~ /^_?_?_(aeabi|[a-z]*[ds]f|u?div|[a-z]*di)/ { seen[$1] = $2 } END { for (a in seen) print seen[a] }' |
        while read -r x; do echo $((16#$x)); done | awk '{ n += $1 } END { print n + 0 }')
    rest=$(section "$1" text)
    echo "$1"
    echo "    code                    $((rest - library)) bytes, and $library of libgcc (double, 64-bit division)"
    echo "    constants, messages     $(section "$1" rodata) bytes"
    echo "    largest stack frame     $(sort -t$'\t' -k2 -rn "$out/$1.su" | awk -F'\t' 'NR == 1 { sub(/^.*hpp:[0-9]*:[0-9]*:/, "", $1); sub(/\(.*/, "", $1); print $2 " bytes, " $1 }')"
    echo "    stack, measured         $((16#$(sed -n 's/.* stack //p' "$out/$1.story"))) bytes"
    [ -e "$out/$1.count" ] && awk '/^mark/ { if ($2 == 0) first = $3; if ($2 < 200) { sum += $3; n++ } }
        END { printf "    instructions a token    %.2f M at position 0, %.2f M mean of %d\n", first / 1e6, sum / n / 1e6, n }' "$out/$1.count"
    [ -e "$out/$1.count" ] && grep ^function "$out/$1.count" | head -8 | c++filt -p | awk -v n="$(grep -c ^mark "$out/$1.count")" \
        '{ $1 = ""; count = $2; $2 = ""; printf "        %9d  %s\n", count / n, $0 }'
}

sizes() # the memory, from the header that `run import` wrote
{
    cat > "$out/sizes.cpp" <<'EOF'
#include "model.hpp"
#include <stdio.h>
int main()
{
    constexpr transformer::Plan p = transformer::plan(model::config, transformer::Config{}, model::options);
    const auto cache = static_cast<unsigned>(p.at[transformer::region_cache + 1] - p.at[transformer::region_cache]);
    printf("    session memory          %u bytes, and %u for a KV cache of %u positions\n", static_cast<unsigned>(model::session_bytes) - cache, cache, model::options.capacity);
    printf("    weights, used in place  %u bytes\n", static_cast<unsigned>(model::checkpoint_bytes));
}
EOF
    g++ -std=c++17 -I. -I"$out" "$out/sizes.cpp" -o "$out/sizes" && "$out/sizes"
    arm-none-eabi-nm -S "$out/llama.elf" | awk '/ _ZL7session$| _ZL3net$| _ZL7options$/ { print "16#" $2, $4 }' |
        while read -r n name; do printf '%s ' "$((n)) ${name#_ZL?}"; done | awk '{ print "    objects                 " $0 "bytes" }'
}

echo "$model on a Cortex-M4F, $opt, $(arm-none-eabi-g++ -dumpversion)"
measure llama "${LLAMA:-512u}"                                 # Feature::quantised_weights: the path of a Llama
measure everything 0xffffffffu
sizes
