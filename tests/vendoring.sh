#!/bin/bash
# What people meet who copy transformer.hpp into a project: warnings, macros, namespaces, units with other flags,
# symbols, small stacks. Everything is compiled with $CXX (default g++) and, where it matters, with the other compilers
# that are installed; what is linked is run and must print one checksum of the model that ships.
#
#     tests/vendoring.sh [MODEL]        MODEL: a checkpoint, by default the one that ships
cd "$(dirname "$0")/.." || exit 1
root=$PWD
model=$(realpath "${1:-weights/stories.bin}")
CXX=${CXX:-g++}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/log" "$work/inc" "$work/moved"
cp transformer.hpp "$work/inc/"
cp transformer.hpp "$work/moved/renamed.hpp"
cd "$work" || exit 1

compilers=$CXX
for c in g++ clang++; do
    command -v $c > /dev/null && [ "$c" != "$CXX" ] && compilers="$compilers $c"
done
is_clang() { $1 --version 2> /dev/null | grep -q clang; }
x86=0
[ "$(uname -m)" = x86_64 ] && x86=1
avx2=0
grep -q avx2 /proc/cpuinfo 2> /dev/null && avx2=1

# ---- The programs ----------------------------------------------------------------------------------------------------

# One unit with the implementation: NAME(path) reads a checkpoint, runs it and gives a checksum of the logits.
cat > unit.hpp << 'END'
#include <stdio.h>
#include <stdlib.h>
#ifndef HEADER
#define HEADER "transformer.hpp"
#endif
#include HEADER
#ifndef TRANSFORMER_NAMESPACE
#define TRANSFORMER_NAMESPACE transformer
#endif
static unsigned features;
unsigned long long NAME(const char* path);
unsigned long long NAME(const char* path)
{
    using namespace TRANSFORMER_NAMESPACE;
    FILE* f = fopen(path, "rb");
    if (!f) return 1;
    fseek(f, 0, SEEK_END);
    const size_t n = static_cast<size_t>(ftell(f));
    rewind(f);
    void* bytes = malloc(n);
    if (!bytes || fread(bytes, 1, n, f) != n) return 2;
    fclose(f);
    Model model;
    if (!TRANSFORMER_NAMESPACE::open(bytes, n, &model)) return 3;
    features = model.features;
    Options options;
    options.capacity = 64;
    const uint64_t size = session_size(model, options);
    void* memory = malloc(static_cast<size_t>(size));
    Session session;
    if (!start(model, options, memory, size, &session)) return 4;
    const Config& c = model.main.config;
    int32_t ids[40];
    static uint8_t mask[40];                                   // hides some of what a decoder's cross attention sees
    float* rows = static_cast<float*>(malloc(40 * c.dim * sizeof(float)));
    for (uint32_t i = 0; i < 40 * c.dim; i++) rows[i] = 0.1f * static_cast<float>(i % 7) - 0.3f;
    for (uint32_t i = 0; i < 40; i++) {
        ids[i] = c.vocab_size ? static_cast<int32_t>((i * 7 + 3) % c.vocab_size) : 0;
        mask[i] = i % 3 != 0;
    }
    if (c.flags & flag_cross && !set_memory(session, rows, 40, mask)) return 6;
    Input in;
    if (c.vocab_size) in.tokens = ids;
    else in.rows = rows;
    in.count = 40;
    float* logits = nullptr;
    if (!forward(session, in, &logits)) return 5;
    unsigned long long hash = 0xcbf29ce484222325u;
    const float* const result = logits ? logits : session.hidden.data;
    for (uint32_t i = 0; i < (logits ? c.n_outputs : c.dim); i++) {
        uint32_t u;
        memcpy(&u, result + i, 4);
        for (int k = 0; k < 4; k++) hash = (hash ^ (u >> 8 * k & 255)) * 0x100000001b3u;
    }
    free(rows);
    free(memory);
    free(bytes);
    return hash;
}
END
cat > one.cpp << 'END'
#include "unit.hpp"
int main(int argc, char** argv)
{
    const unsigned long long sum = NAME(argv[1]);
    if (argc > 2) printf("0x%xu\n", features);
    else printf("%016llx\n", sum);
}
END
cat > two.cpp << 'END'
#include <stdio.h>
unsigned long long first(const char* path);
unsigned long long second(const char* path);
int main(int argc, char** argv)
{
    if (argc < 3) printf("%016llx ", second(argv[1]));
    printf("%016llx\n", first(argv[1]));
}
END
implement="-DTRANSFORMER_IMPLEMENTATION"
std="-std=c++17"

# ---- The checks: each is a function that prints why it fails ---------------------------------------------------------

# A unit that is compiled without AVX2 and one that is, in one program: each keeps its own functions.
check_mixed_flags()
{
    [ $x86 = 1 ] || { echo "SKIP not x86"; return; }
    local unit="-Iinc $implement -DTRANSFORMER_STATIC -x c++ -c unit.hpp"
    $CXX $std -O1 -DNAME=first $unit -o first.o && $CXX $std -O1 -mavx2 -mfma -mf16c -DNAME=second $unit -o second.o &&
        $CXX $std -c two.cpp -o two.o && $CXX second.o first.o two.o -o mixed || return
    local names
    names=$(nm -C first.o second.o | grep -E ' [TWVuBDR] ' | grep -vE ' (first|second)\(char const\*\)$' |
        cut -c18- | sort -u)
    [ -z "$names" ] || echo "names that two units share: $names"
    if [ $avx2 = 1 ]; then
        [ "$(./mixed "$model")" = "$want $want" ] || echo "another checksum: $(./mixed "$model")"
    fi
    command -v qemu-x86_64 > /dev/null || return
    # a processor without AVX runs the plain unit
    local said
    said=$(qemu-x86_64 -cpu qemu64 ./mixed "$model" plain 2>&1)
    [ "$said" = "$want" ] || echo "without AVX: $said"
}

# The interface in one unit, the implementation in another, with other flags each.
check_two_units()
{
    cat > user.cpp << 'END'
#include "transformer.hpp"
#include <stdio.h>
unsigned long long first(const char* path);
int main(int argc, char** argv)
{
    static_assert(transformer::session_size(transformer::Config{}, transformer::Options{}) > 0, "");
    transformer::Options options;
    options.capacity = static_cast<uint32_t>(argc);
    if (transformer::session_size(transformer::Config{}, options) == 0) return 2;      // at run time
    transformer::Model model;
    if (transformer::open("GGUF    ", 8, &model).code != transformer::Code::not_a_checkpoint) return 1;
    printf("%016llx\n", first(argv[1]));
}
END
    local flags= names
    [ $avx2 = 1 ] && flags="-mavx2 -mfma -mf16c"
    $CXX $std -O3 $flags -Iinc -c user.cpp -o user.o &&
        $CXX -Wl,--warn-common -Wl,--fatal-warnings impl.o user.o -o two_units || return
    [ "$(./two_units "$model")" = "$want" ] || echo "another checksum"
    names=$(nm -C user.o | grep -E ' [TWVuBDR] ' | grep -v ' main$' | cut -c18- | sort -u)
    [ -z "$names" ] || echo "names that the interface alone shares: $names"
}

# Two copies under other names in one program.
check_two_namespaces()
{
    $CXX $std -O0 -Iinc $implement -DTRANSFORMER_NAMESPACE=copy_a -DNAME=first -x c++ -c unit.hpp -o a.o &&
        $CXX $std -O0 -Iinc $implement -DTRANSFORMER_NAMESPACE=copy_b -DNAME=second -x c++ -c unit.hpp -o b.o &&
        $CXX $std two.cpp a.o b.o -o copies || return
    [ "$(./copies "$model")" = "$want $want" ] || echo "another checksum"
}

# Nothing of the operating system is used: no heap, no output, no exit, no C++ library, nothing that can be written.
check_symbols()
{
    local c optimise allowed='memcpy|memset|memcmp|memmove|strlen|bcmp|fmaf|_GLOBAL_OFFSET_TABLE_'
    allowed="$allowed|__cpu_model|__cpu_features2|__cpu_indicator_init"        # which processor it is
    for c in $compilers; do
        echo '#include "transformer.hpp"' > bare.cpp
        optimise=-O0
        [ "$c" = "$CXX" ] && optimise=-O1
        $c $std $optimise -fno-pic -fno-pie -fno-exceptions -fno-rtti -fno-threadsafe-statics -fno-stack-protector \
            -Iinc $implement -DTRANSFORMER_NO_STDIO -c bare.cpp -o bare_$c.o || return
        nm -u bare_$c.o | awk '{print $2}' | grep -vxE "$allowed" | sed "s/^/$c: needs /"
        nm -C bare_$c.o | grep -E ' [BbDdCV] ' | grep -vE 'vtable' | sed "s/^/$c: can be written: /"
        nm -C bare_$c.o | grep -E ' [TWu] ' | grep -vE ' transformer::' | sed "s/^/$c: outside the namespace: /"
    done
}

# Each room by itself, as a chip build or a test forces it.
check_forced_rooms()
{
    $CXX $std -O1 -Iinc $implement -DTRANSFORMER_ISA=Scalar -DNAME=first one.cpp -o scalar || return
    [ "$(./scalar "$model")" = "$want" ] || echo "Scalar: another checksum"
    [ $avx2 = 1 ] || return
    $CXX $std -O1 -mavx2 -mfma -mf16c -Iinc $implement -DTRANSFORMER_ISA=Avx2 -DNAME=first one.cpp -o forced || return
    [ "$(./forced "$model")" = "$want" ] || echo "Avx2: another checksum"
    if nm -C forced | grep -q avx512_room; then echo "Avx2: other rooms are there too"; fi
}

# A build that has just what a model needs gives the same bits; one that has a feature less refuses it.
check_features()
{
    local flags="-Iinc $implement -DTRANSFORMER_ISA=Scalar -DNAME=first" case file mask
    for case in "" gpt2 deepseek-v3 torch-decoderlayer-prenorm gemma2; do
        file=$model
        [ -z "$case" ] || { file=$case.bin; "$root/run" import "$root/tests/golden/$case" "$file" --type q8_0 2> import.log || cat import.log; }
        mask=$(./plain "$file" features)
        $CXX $std -O1 $flags -DTRANSFORMER_FEATURES="$mask" one.cpp -o lean || return
        [ "$(./lean "$file")" = "$(./plain "$file")" ] || echo "$case $mask: another checksum: $(./lean "$file")"
    done
    for mask in "($mask & ($mask - 1))" 0x40000u; do           # without the lowest bit; only sampling
        $CXX $std -O0 $flags -DTRANSFORMER_FEATURES="$mask" one.cpp -o less || return
        [ "$(./less "$file")" = 0000000000000003 ] || echo "$mask lacks what the model needs: $(./less "$file")"
    done
}

# The ways to name the header, which includes itself.
check_includes()
{
    local c try
    for c in $compilers; do
        try="$c $std -fsyntax-only $implement -DNAME=first one.cpp"
        $try -Iinc -DHEADER='<transformer.hpp>' || echo "$c: <transformer.hpp> with -Iinc"
        $try -I"$work/inc" -fmacro-prefix-map="$work"=/elsewhere || echo "$c: -fmacro-prefix-map"
        $try -DHEADER='"inc/transformer.hpp"' || echo "$c: beside the including file"
        $try -Imoved -DHEADER='"renamed.hpp"' -DTRANSFORMER_SELF='"renamed.hpp"' || echo "$c: renamed"
    done
    $CXX $std -O0 -Iinc $implement -DHEADER='<transformer.hpp>' -fmacro-prefix-map="$work"=/elsewhere -DNAME=first \
        one.cpp -o included || return
    [ "$(./included "$model")" = "$want" ] || echo "another checksum"
}

# Macros that other headers leave behind.
check_macros()
{
    cat > macros.cpp << 'END'
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define abs(x) ((x) > 0 ? (x) : -(x))
#define round(x) ((x) >= 0 ? (long)((x) + 0.5) : (long)((x) - 0.5))
#define near
#define far
#define small char
#define I (__extension__ 1.0iF)
#define B1 1
#define F(text) text
#define DEBUG 1
#define ERROR 0
#define OUT
#define IN
#define CONST const
#define interface struct
#define TRUE 1
#define FALSE 0
#define OPTIONAL
#define bit(b) (1UL << (b))
#define word(...) makeWord(__VA_ARGS__)
#define sq(x) ((x) * (x))
#define constrain(amt, low, high) ((amt) < (low) ? (low) : ((amt) > (high) ? (high) : (amt)))
#define DEFAULT 1
#define INPUT 0
#define HIGH 1
#define LOW 0
#define PI 3.14159
#define interrupts() sei()
#define lowByte(w) ((uint8_t)((w) & 0xff))
#include "transformer.hpp"
END
    local names='near|far|small|I|B1|DEBUG|ERROR|OUT|IN|CONST|TRUE|FALSE|OPTIONAL'
    sed -E "s/^#define ($names)\b.*/#define \1 this does not compile/" macros.cpp | grep -v interface > broken.cpp
    local c f
    for c in $compilers; do
        for f in macros broken; do
            $c $std -fsyntax-only -Iinc -DTRANSFORMER_NO_STDIO $implement $f.cpp || echo "$c: $f"
            $c $std -fsyntax-only -Iinc $f.cpp || echo "$c: the interface with $f"
        done
    done
}

# Flags that would change the numbers are refused.
check_fast_math()
{
    local c flag
    echo '#include "transformer.hpp"' > fast.cpp
    for c in $compilers; do
        for flag in -ffast-math -Ofast -funsafe-math-optimizations -ffinite-math-only "-O3 -ffast-math"; do
            [ "$flag" = -funsafe-math-optimizations ] && is_clang $c && continue        # clang says nothing of it
            if $c $std $flag -fsyntax-only -Iinc $implement fast.cpp 2> refused.$c; then echo "$c $flag is not refused"
            elif ! grep -q 'change results' refused.$c; then echo "$c $flag: refused without saying why"; fi
        done
    done
}

# No warnings, at levels that people really use; exceptions and run-time types may be off.
check_warnings()
{
    local c version extra strict="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wdouble-promotion"
    strict="$strict -Wundef -Wold-style-cast -Wnon-virtual-dtor -Wformat=2 -Wvla -Wcast-align -Werror"
    echo '#include "transformer.hpp"' > warn.cpp
    for c in $compilers; do
        extra="-Wcast-align=strict -Wlogical-op -Wduplicated-cond"
        is_clang $c && extra=
        for version in c++17 c++20; do
            $c -std=$version -fsyntax-only $strict $extra -Iinc $implement -DTRANSFORMER_THREADS warn.cpp ||
                echo "$c $version"
            $c -std=$version -fsyntax-only $strict $extra -fno-exceptions -fno-rtti -fno-threadsafe-statics -Iinc \
                $implement -DTRANSFORMER_NO_STDIO -DTRANSFORMER_STATIC warn.cpp ||
                echo "$c $version without exceptions, static"
        done
    done
    $CXX $std -O1 $strict -Iinc $implement -c warn.cpp -o warn.o || echo "$CXX, optimised"
}

# No stack frame above 512 bytes where the size is optimised, on this processor and on a Cortex-M4.
check_stack_frames()
{
    echo '#include "transformer.hpp"' > stack.cpp
    local flags="-Os -fstack-usage -fno-exceptions -fno-rtti -fno-threadsafe-statics -c stack.cpp"
    flags="$flags -Iinc $implement -DTRANSFORMER_NO_STDIO -DTRANSFORMER_ISA=Scalar"
    if is_clang $CXX; then echo "SKIP $CXX has no -fstack-usage that is read here"; return; fi
    $CXX $std $flags -o stack_host.o || return
    local files=stack_host.su
    if command -v arm-none-eabi-g++ > /dev/null; then
        arm-none-eabi-g++ $std -mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16 $flags -o stack_m4.o || return
        files="$files stack_m4.su"
    fi
    [ "$(cat $files | wc -l)" -gt 100 ] || echo "the compiler wrote no stack sizes"
    awk -F'\t' '$2 > 512 { print FILENAME ": " $2 " bytes: " $1 }
                $3 !~ /static/ && $3 !~ /bounded/ { print FILENAME ": " $3 ": " $1 }' $files
}

# A forward pass in a thread with a small stack.
check_small_stack()
{
    [ "$(uname)" = Linux ] || { echo "SKIP not Linux"; return; }
    cat > small.cpp << 'END'
#define NAME inside
#include "unit.hpp"
#include <pthread.h>
static const size_t size = 128 * 1024;
static unsigned char* stack;
static unsigned long long result;
static void* nothing(void*) { return nullptr; }
static void* work(void* path)
{
    result = inside(static_cast<const char*>(path));
    return nullptr;
}
static size_t used(void* (*run)(void*), void* argument)
{
    memset(stack, 0xa5, size);
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, size);
    pthread_create(&thread, &attributes, run, argument);
    pthread_join(thread, nullptr);
    size_t i = 0;
    while (stack[i] == 0xa5) i++;
    return size - i;
}
int main(int, char** argv)
{
    stack = static_cast<unsigned char*>(aligned_alloc(4096, size));
    const size_t before = used(nothing, nullptr), after = used(work, argv[1]);
    printf("%016llx %zu\n", result, after > before ? after - before : 0);
}
END
    $CXX $std -Os -pthread -Iinc $implement -DTRANSFORMER_ISA=Scalar small.cpp -o small || return
    local out bytes
    out=$(./small "$model")
    bytes=${out#* }
    [ "${out% *}" = "$want" ] || echo "another checksum"
    [ "$bytes" -le 8192 ] || echo "$bytes bytes of stack, 8192 are allowed (reading the file included)"
}

# A file that is too large for the platform's addresses.
check_large_file()
{
    local c=
    for c in i686-linux-gnu-g++ arm-linux-gnueabihf-g++; do command -v $c > /dev/null && break; done
    command -v $c > /dev/null || { echo "SKIP no compiler for 32 bits"; return; }
    truncate -s 5G large.bin 2> /dev/null || { echo "SKIP no sparse files here"; return; }
    cat > large.cpp << 'END'
#include "transformer.hpp"
#include <stdio.h>
int main(int, char** argv)
{
    transformer::File file;
    puts(transformer::map_file(argv[1], &file).text);
}
END
    local flags="-static -O0 -Iinc $implement" run=
    case $c in i686*) flags="$flags -msse2 -mfpmath=sse" ;; *) run="qemu-arm" ;; esac
    local size
    for size in "" -D_FILE_OFFSET_BITS=64; do
        $c $std $flags $size large.cpp -o large || return
        $run ./large large.bin > large.out 2>&1
        grep -q 'too large' large.out || echo "$c $size says: $(head -1 large.out)"
    done
}

# The first program of the README tells a story.
check_readme() {
    mkdir -p readme/weights && cp "$root/transformer.hpp" readme/ && cp "$root/weights/stories.bin" readme/weights/
    sed -n '/^```cpp$/,/^```$/p' "$root/README.md" | sed '/^```/d' > readme/readme.cpp
    ( cd readme && $CXX $std -O2 readme.cpp -o readme && ./readme > story 2> errors && [ "$(wc -c < story)" -gt 200 ] ) ||
        echo "the README's program fails: $(head -2 readme/errors)"
}

# ---- Running them ----------------------------------------------------------------------------------------------------

implementation="-Iinc $implement -DNAME=first"
$CXX $std -O1 $implementation -x c++ -c unit.hpp -o impl.o && $CXX $std -O1 $implementation one.cpp -o plain || exit 1
want=$(./plain "$model")
[ ${#want} = 16 ] && [ "$want" != 0000000000000003 ] || { echo "vendoring: $model cannot be run: $want"; exit 1; }

checks="warnings symbols stack_frames mixed_flags two_units two_namespaces forced_rooms features includes macros
        fast_math small_stack large_file readme"
jobs=$(nproc 2> /dev/null || echo 1)
export -f is_clang
for check in $checks; do
    ( "check_$check" > "log/$check" 2>&1 ) &
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
done
wait
failed=0
for check in $checks; do
    if [ ! -s "log/$check" ]; then echo "ok      ${check//_/ }"
    elif grep -q '^SKIP' "log/$check"; then sed "s/^SKIP/skipped ${check//_/ }:/" "log/$check"
    else
        failed=1
        echo "FAILED  ${check//_/ }"
        head -20 "log/$check" | sed 's/^/        /'
    fi
done
exit $failed
