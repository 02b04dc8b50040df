#!/bin/bash
# The same bits everywhere: builds checksum.cpp (small random models of all formats and architectures) and embedded/story.cpp (the
# model that ships, as a firmware has it) for every target whose compiler and emulator are installed, and compares the checksums
# of all logits, the ids and the text with those of this machine's Scalar room.
#
#     tests/cross.sh               all targets; ends with "N passed, N failed, N skipped", exit status 1 if one failed
#     tests/cross.sh cortex_m4     only these
#
# A new target is one function below and its name in `targets`.
cd "$(dirname "$0")/.." || exit 1
out=${BUILD:-build}/cross
model=${MODEL:-weights/stories.bin}
warnings="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wdouble-promotion -Wundef -Werror"
targets="desktop_O0 desktop_O2_native desktop_O3 clang_O3 clang_native one_room armv7 armv7_neon aarch64 riscv64 s390x i686
         cortex_m0 cortex_m3 cortex_m4 cortex_m7 cortex_m33"

# ---- Targets: hosted NAME COMPILER PACKAGE "FLAGS" [EMULATOR PACKAGE], bare NAME MACHINE "FLAGS" "ADDRESSES" -----------------

desktop_O0() { hosted desktop_O0 g++ g++ "-O0"; }
desktop_O2_native() { hosted desktop_O2_native g++ g++ "-O2 -march=native"; }
desktop_O3() { hosted desktop_O3 g++ g++ "-O3"; }
clang_O3() { hosted clang_O3 clang++ clang "-O3"; }
clang_native() { hosted clang_native clang++ clang "-O2 -march=native"; }
one_room() { hosted one_room g++ g++ "-O2 -DTRANSFORMER_ISA=Scalar"; }
armv7() { hosted armv7 arm-linux-gnueabihf-g++ g++-arm-linux-gnueabihf "-O2 -static" qemu-arm qemu-user; }
armv7_neon() { hosted armv7_neon arm-linux-gnueabihf-g++ g++-arm-linux-gnueabihf "-O3 -mfpu=neon -static" qemu-arm qemu-user; }
aarch64() { hosted aarch64 aarch64-linux-gnu-g++ g++-aarch64-linux-gnu "-O2 -static" qemu-aarch64 qemu-user; }
riscv64() { hosted riscv64 riscv64-linux-gnu-g++ g++-riscv64-linux-gnu "-O2 -static" qemu-riscv64 qemu-user; }
s390x() { hosted s390x s390x-linux-gnu-g++ g++-s390x-linux-gnu "-O2 -static" qemu-s390x qemu-user; }      # big-endian
i686() { hosted i686 i686-linux-gnu-g++ g++-i686-linux-gnu "-O2 -msse2 -mfpmath=sse -static" qemu-i386 qemu-user; }

# ARMv6-M code on the board of an M3 that traps unaligned accesses; no FPU. The others as their boards are.
cortex_m0() { bare cortex_m0 mps2-an385 "-Os -mcpu=cortex-m0 -mthumb"; }
cortex_m3() { bare cortex_m3 mps2-an385 "-Os -mcpu=cortex-m3 -mthumb -mno-unaligned-access"; }
cortex_m4() { bare cortex_m4 mps2-an386 "-Os -mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16"; }
cortex_m7() { bare cortex_m7 mps2-an500 "-O2 -mcpu=cortex-m7 -mthumb -mfloat-abi=hard -mfpu=fpv5-d16"; }
cortex_m33() { bare cortex_m33 mps2-an505 "-O2 -mcpu=cortex-m33 -mthumb -mfloat-abi=hard -mfpu=fpv5-sp-d16" "-Wl,--defsym=FLASH=0x10000000,--defsym=RAM=0x38000000"; }

# ---- What they share -----------------------------------------------------------------------------------------------------

passed=0 failed=0 skipped=0

needs() # PROGRAM PACKAGE: false, with a line, if it is not installed
{
    [ -z "$2" ] || command -v "$2" > /dev/null && return 0
    printf 'SKIP  %-18s %s is not installed (package %s)\n' "$1" "$2" "$3"
    skipped=$((skipped + 1))
    return 1
}

# Holds $out/NAME.checksum and $out/NAME.story against the reference.
verdict()
{
    local rooms room bad=""
    rooms=$(cut -d' ' -f1 "$out/$1.checksum" | sort -u | tr '\n' ' ')
    for room in $rooms; do
        sed -n "s/^$room //p" "$out/$1.checksum" | cmp -s - "$out/reference.checksum" || bad="$bad $room"
    done
    sed 's/ stack .*//' "$out/$1.story" | cmp -s - "$out/reference.story" || bad="$bad story"
    if [ -z "$bad" ] && [ -n "$rooms" ]; then
        printf 'PASS  %-18s %s(%s models), story\n' "$1" "$rooms" "$(grep -c . "$out/reference.checksum")"
        passed=$((passed + 1))
    else
        printf 'FAIL  %-18s differs:%s (see %s)\n' "$1" "${bad:- no output}" "$out/$1.*"
        failed=$((failed + 1))
    fi
}

build_failed()
{
    printf 'FAIL  %-18s does not build: %s\n' "$1" "$(grep -m1 -E 'error|warning' "$out/$1.log")"
    failed=$((failed + 1))
}

hosted()
{
    local name=$1 compiler=$2 flags=$4 emulator=$5
    needs "$name" "$compiler" "$3" && needs "$name" "$emulator" "$6" || return
    $compiler -std=c++17 $flags $warnings -I. tests/checksum.cpp -o "$out/$name.1" 2> "$out/$name.log" &&
        $compiler -std=c++17 $flags $warnings -I. -I"$out" -DWEIGHTS="\"$out/model.bin\"" tests/embedded/story.cpp tests/embedded/weights.S \
            -o "$out/$name.2" 2> "$out/$name.log" || { build_failed "$name"; return; }
    timeout 600 $emulator "$out/$name.1" > "$out/$name.checksum" 2>&1 < /dev/null
    timeout 600 $emulator "$out/$name.2" > "$out/$name.story" 2>&1 < /dev/null
    verdict "$name"
}

bare()
{
    local name=$1 machine=$2 flags=$3 addresses=$4 here=tests/embedded
    needs "$name" arm-none-eabi-g++ "gcc-arm-none-eabi, libstdc++-arm-none-eabi-newlib" && needs "$name" qemu-system-arm qemu-system-arm || return
    local lean="-ffreestanding -fno-exceptions -fno-rtti -fno-threadsafe-statics -ffunction-sections -fdata-sections -DTRANSFORMER_NO_STDIO -DTRANSFORMER_ISA=Scalar"
    local compile="arm-none-eabi-g++ -std=c++17 $flags $lean -I. -I$out"
    {
        $compile $warnings -Wstack-usage=512 -c tests/checksum.cpp -o "$out/$name.1.o" &&
            $compile $warnings -Wstack-usage=512 -c $here/story.cpp -o "$out/$name.2.o" &&
            $compile -fno-tree-loop-distribute-patterns -c $here/startup.cpp -o "$out/$name.startup.o" &&
            $compile -DWEIGHTS="\"$out/model.bin\"" -c $here/weights.S -o "$out/$name.weights.o" &&
            $compile -nostdlib -Wl,--gc-sections $addresses -T $here/cortex-m.ld "$out/$name".{startup,1,weights}.o -lgcc -o "$out/$name.1" &&
            $compile -nostdlib -Wl,--gc-sections $addresses -T $here/cortex-m.ld "$out/$name".{startup,2,weights}.o -lgcc -o "$out/$name.2"
    } 2> "$out/$name.log" || { build_failed "$name"; return; }
    local emulator="timeout 600 qemu-system-arm -M $machine -nographic -monitor none -serial none -semihosting-config enable=on,target=native"
    $emulator -kernel "$out/$name.1" > "$out/$name.checksum" 2>&1 < /dev/null
    $emulator -kernel "$out/$name.2" > "$out/$name.story" 2>&1 < /dev/null
    verdict "$name"
}

# ---- The reference: g++ -O2 on this machine, the Scalar room alone ---------------------------------------------------------

mkdir -p "$out"
[ -n "$RUN" ] || ${MAKE:-make} --no-print-directory run > "$out/run.log" 2>&1 || { cat "$out/run.log"; exit 1; }
${RUN:-./run} import "$model" "$out/model.bin" --ctx-size 256 --header "$out/model.hpp" > "$out/run.log" 2>&1 || { cat "$out/run.log"; exit 1; }
g++ -std=c++17 -O2 -DTRANSFORMER_ISA=Scalar -I. tests/checksum.cpp -o "$out/reference.1" || exit 1
g++ -std=c++17 -O2 -DTRANSFORMER_ISA=Scalar -I. -I"$out" -DWEIGHTS="\"$out/model.bin\"" tests/embedded/story.cpp tests/embedded/weights.S -o "$out/reference.2" || exit 1
"$out/reference.1" > "$out/reference.all" || { cat "$out/reference.all"; exit 1; }
sed 's/^scalar //' "$out/reference.all" > "$out/reference.checksum"
"$out/reference.2" | sed 's/ stack .*//' > "$out/reference.story"
echo "story: $(tail -1 "$out/reference.story"), all models: $(cksum < "$out/reference.checksum" | cut -d' ' -f1)"

for target in ${*:-$targets}; do $target; done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
